"""The worker that forecasts: it answers as the simulator does, and whatever becomes of it, cycles go on."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs
from unit.controller.faulty_workers import READY as READY_HERE
from unit.controller.faulty_workers import faulty
from unit.controller.model_slurm import ModelSlurm, VirtualClock
from unit.slurm.test_process import gone

from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.policy import Loaded
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.learnt import forecast_worker as module
from rltuned.controller.learnt.forecast_worker import CACHE, READY, ForecastWorker, forecasts, needed, work
from rltuned.controller.learnt.start_times import StartTimes
from rltuned.controller.shown.checks import forecast
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.config import Config, ForecastSection, StateSection, resolve
from rltuned.core.errors import ConfigError
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.tables import Partition, Snapshot
from rltuned.decide.rank import by_name
from rltuned.simulate.forecast.start_forecast import StartRequest
from rltuned.simulate.forecast.start_simulation import StartSimulation

NOW = 1_000_000.0


@pytest.fixture
def without_numba(monkeypatch):
    """Call it: from then on Numba is not installed."""
    return lambda: monkeypatch.setattr("rltuned.core.installed.find_spec", lambda _name: None)


def queue(pending=12, seed=2):
    """A request for a full cluster: running jobs first, pending ones, then others."""
    rng = np.random.default_rng(seed)
    n = 4 + pending + 3
    state = np.array([JobState.RUNNING] * 4 + [JobState.PENDING] * pending + [JobState.OTHER] * 3, dtype=np.int8)
    running = state == JobState.RUNNING
    jobs = job_table(
        n,
        job_id=np.arange(101, 101 + n),
        state=state,
        user=[f"user{k}" for k in range(n)],
        account="physics",
        partition="gpu",
        gpus=np.where(running, 4, rng.choice([1, 2, 4], n)),
        cpus=4,
        mem=1000.0,
        time_limit=7200.0,
        eligible_time=NOW - 600.0,
        submit_time=NOW - 600.0,
        start_time=np.where(running, NOW - 300.0, np.nan),
        end_time=np.where(running, NOW + 6900.0, np.nan),
        priority=1000,
        held_nodes=[[k] if k < 4 else [] for k in range(n)],
    )
    names = [f"n{k}" for k in range(4)]
    nodes = node_table(names, ("a100",), 4, gpus_alloc=4, cpus_alloc=4, mem_alloc=1000.0)
    gpu = Partition("gpu", np.arange(4, dtype=np.int32), True, 1, OverSubscribe.NO, 1, np.inf)
    times = np.maximum(rng.lognormal(6.0, 1.2, n), 60.0)
    return StartRequest(Snapshot(NOW, (24, 11), jobs, nodes, (gpu,)), jobs.pending, times, 0.5)


class Desk:
    """A worker of a daemon, and what was said of it."""

    def __init__(self, directory, target=work):
        config = Config(state=StateSection(directory=directory))
        self.clock, self.metrics, self.log = VirtualClock(NOW), Metrics(), structlog.get_logger()
        self.runtime = Runtime(config, self.clock, self.log, self.metrics)
        self.worker = ForecastWorker(self.runtime, target)

    def ask(self):
        return self.worker(queue())

    def until(self, condition):
        """Ask until it is so, what was answered last."""
        deadline = time.monotonic() + 300.0
        while True:
            answer = self.ask()
            if condition(answer):
                return answer
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def until_warm(self):
        return self.until(lambda _: self.worker._warm)

    def until_failed(self, times):
        return self.until(lambda _: self.worker._failures == times)

    def daemon(self, directory):
        """One whose start times this worker forecasts, with four jobs."""
        slurm = ModelSlurm(self.clock)
        for number in range(4):
            slurm.submit(1000 - number, time_limit=600.0)
        config = Config(state=StateSection(directory=directory, mirror=None))
        parts = Parts(
            runtime=Runtime(config, self.clock, self.log, self.metrics),
            policy=Loaded.only(by_name("saf")),
            reader=slurm.reader(),
            writer=None,
            journal=Journal.open(config.state.directory, None),
            rng=random.Random(1),
            start_times=StartTimes(self.worker, lambda: None, self.runtime),
            worker=self.worker,
        )
        return Daemon(parts)


@pytest.fixture
def desk(tmp_path):
    desks = []

    def start(target=work):
        desks.append(Desk(tmp_path, target))
        return desks[-1]

    yield start
    for one in desks:
        one.worker.close()
        one.worker.rest()


@pytest.fixture
def logs():
    with capture_logs() as entries:
        yield entries


# --- the worker


def test_the_worker_answers_what_the_simulator_answers_here(desk, logs):
    site = desk()
    asked = queue()
    assert site.ask() is None, "nobody waits for the worker to get warm"
    site.until_warm()
    found = site.ask()
    direct = StartSimulation()(needed(asked))
    assert found.rows.tolist() == direct.rows.tolist()
    if found.scenarios == direct.scenarios:  # the worker has half a second, shared with whatever else runs here
        np.testing.assert_array_equal(found.waits, direct.waits)
    assert [entry["event"] for entry in logs] == ["forecast.ready"]
    worker = site.worker.worker
    about = Path(f"/proc/{worker}")
    (data,) = [line.split() for line in (about / "limits").read_text().splitlines() if "data size" in line]
    assert data[3:5] == [str(module.MEMORY), str(module.MEMORY)], "it is confined"
    assert (about / "oom_score_adj").read_text().strip() == "1000", "and the first to go where memory is short"
    site.worker.close()
    assert gone(worker)
    assert site.ask() is None
    assert site.worker.worker is None, "closed is closed"


def test_a_worker_that_wants_too_much_memory_dies_alone(desk, logs, monkeypatch):
    monkeypatch.setattr(module, "FORECAST", 30.0)
    desk(faulty("hungry")).until_failed(1)
    (failed,) = [entry for entry in logs if entry["event"] == "forecast.failed"]
    assert failed["reason"].startswith("the worker is gone")


def test_only_what_is_needed_is_sent_and_no_names():
    whole = queue()
    few, snapshot = whole.rows[[7, 2, 5]], whole.snapshot
    small = needed(replace(whole, rows=few))
    jobs, places = small.snapshot.jobs, small.rows
    assert jobs.job_id.tolist() == [101, 102, 103, 104, *sorted(snapshot.jobs.job_id[few].tolist())]
    assert (jobs.job_id[places] == snapshot.jobs.job_id[few]).all()
    keep = np.union1d(few, snapshot.jobs.running)
    assert (small.run_times == whole.run_times[keep]).all()
    assert not set(jobs.user.names) & set(snapshot.jobs.user.names)
    assert (jobs.account.names, jobs.reason.names) == ((), ())


def test_when_the_daemon_is_killed_its_worker_ends_whatever_it_does(tmp_path):
    program = """
import sys, time
from unit.controller.test_forecast_worker import Desk, Path
site = Desk(Path(sys.argv[1]))
site.ask()
print(site.worker.worker, flush=True)
time.sleep(600)
"""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as daemon:
        worker = int(daemon.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        daemon.kill()
    assert gone(worker)


# --- a worker that does not do its work


@pytest.mark.parametrize("target", [faulty("hangs"), faulty("never reads")])
def test_a_worker_that_hangs_is_killed_and_the_cycle_goes_on(desk, logs, monkeypatch, target):
    monkeypatch.setattr(module, "GRACE", 0.05)
    monkeypatch.setattr(module, "FORECAST", 0.05)
    site = desk(target)
    asked = queue()
    nodes = replace(asked.snapshot.nodes, names=("x" * 4_000_000, *asked.snapshot.nodes.names[1:]))
    long = replace(asked, snapshot=replace(asked.snapshot, nodes=nodes))
    site.ask()
    worker = site.worker.worker
    while not site.worker._hears(site.worker._process, site.worker._pipe):
        time.sleep(0.01)
    assert site.worker(long) is None
    assert gone(worker)
    assert site.worker.worker not in {None, worker}, "another one is getting warm"
    assert [(entry["event"], entry.get("reason")) for entry in logs] == [
        ("forecast.ready", None),
        ("forecast.failed", "no answer within 0.1 s"),
    ]


def test_a_worker_that_cannot_be_started_is_a_reason_and_no_error(desk, monkeypatch, logs):
    class Context:
        @staticmethod
        def Pipe():  # noqa: N802 - as multiprocessing calls it
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(module.multiprocessing, "get_context", lambda _: Context)
    site = desk()
    assert site.ask() is None
    assert "Too many open files" in site.worker.trouble
    assert [entry["event"] for entry in logs] == ["forecast.failed"]


def test_a_worker_that_is_killed_in_the_middle_costs_one_cycle_and_comes_back(desk, logs):
    site = desk(faulty("dies once"))
    site.until_failed(1)
    assert "is gone" in site.worker.trouble
    site.until_warm()
    assert site.worker.trouble == "", "another one stands ready, whether it is asked or not"
    found = site.until(lambda answer: answer is not None)
    assert found.scenarios == 3
    assert (site.worker.trouble, site.worker._failures) == ("", 0)
    os.kill(site.worker.worker, signal.SIGKILL)  # by somebody else, between two cycles
    assert site.ask() is None
    assert site.until(lambda answer: answer is not None).scenarios == 3
    said = [f"{entry['event']}: {entry['sentence']}".partition(" (")[0] for entry in logs]
    ready = "forecast.ready: Start times are forecast from now on"
    failed = "forecast.failed: No start times are forecast until it works again."
    works = "forecast.works: Start times are forecast again."
    assert said == [ready, failed, ready, works, failed, ready, works]
    assert 'forecast.enabled = "off"' in logs[1]["remedy"]


def test_a_worker_that_keeps_dying_is_started_ever_more_rarely_and_named_once(desk, logs):
    site = desk(faulty("dies at once"))
    site.until_failed(2)
    waits = []
    for tries in range(3, 8):
        assert site.ask() is None
        assert site.worker.worker is None, "not before its time"
        waits.append(site.worker._again - site.clock.monotonic())
        site.clock.sleep(waits[-1])
        site.until_failed(tries)
    assert waits == [60.0, 120.0, 240.0, 480.0, 900.0]
    assert [entry["event"] for entry in logs] == ["forecast.failed"]
    assert "exit code 3" in logs[0]["reason"]


def test_a_queue_that_cannot_be_simulated_does_not_cost_the_worker(desk, logs):
    site = desk(faulty("complains first"))
    site.until_failed(2)
    worker = site.worker.worker
    assert site.until(lambda answer: answer is not None).scenarios == 3
    assert site.worker.worker == worker
    assert [entry["event"] for entry in logs] == ["forecast.ready", "forecast.failed", "forecast.works"]
    assert logs[1]["reason"] == "ValueError: odd queue"


def test_a_worker_that_never_gets_warm_is_replaced_in_the_end(desk):
    site = desk(faulty("never ready"))
    site.ask()
    worker = site.worker.worker
    site.clock.sleep(module.WARM - 1.0)
    site.ask()
    assert site.worker.worker == worker
    site.clock.sleep(2.0)
    site.ask()
    assert gone(worker)
    assert "not ready after 300 s" in site.worker.trouble


def test_the_names_of_the_stand_ins_are_those_of_the_real_one():
    assert READY_HERE == READY


# --- who wants it


def test_start_times_are_forecast_unless_it_is_switched_off_or_numba_is_missing(without_numba):
    auto, off = ForecastSection(), ForecastSection(enabled="off")
    assert (forecasts(auto), forecasts(off)) == (True, False)
    without_numba()
    assert not forecasts(auto)
    assert forecast(Config(), NOW) == [], "who has no Numba has not asked for it"


def test_a_cycle_after_it_was_switched_off_ends_the_worker_and_another_one_starts_when_it_is_on_again(desk, tmp_path):
    site = desk(faulty("never ready"))
    daemon = site.daemon(tmp_path / "state")
    daemon.tick()
    worker, on = site.worker.worker, daemon.config
    assert worker is not None
    daemon.runtime.config = on.model_copy(update={"forecast": ForecastSection(enabled="off")})
    daemon.tick()
    assert gone(worker)
    assert site.worker.worker is None
    daemon.runtime.config = on
    daemon.tick()
    assert site.worker.worker not in {None, worker}


@pytest.mark.parametrize("line", ['enabled = "yes"', "enable = 4"])
def test_a_mistake_in_the_section_names_the_key(line):
    with pytest.raises(ConfigError, match=r"c\.toml:2: (unknown key ')?forecast\.enable"):
        resolve(f"[forecast]\n{line}\n", "c.toml", {}, {})


@pytest.mark.parametrize("text", ["[rollout]\n", '[rollout]\nforecast = "off"\n', "[rollout]\norders = 3\n"])
def test_a_section_of_before_is_refused_with_what_to_write_now(text):
    with pytest.raises(ConfigError, match=r"^c\.toml:1: section 'rollout' is gone, take it out: .*forecast\.enabled"):
        resolve(text, "c.toml", {}, {})
    with pytest.raises(ConfigError, match=r"section 'rollout' is gone, take it out: .*forecast\.enabled"):
        resolve(None, "c.toml", {"RLTUNED_ROLLOUT__FORECAST": "off"}, {})


# --- in a cycle, and for the admin


def test_compiled_kernels_go_where_the_environment_says_else_where_the_daemon_may_write(tmp_path, monkeypatch):
    monkeypatch.delenv(CACHE, raising=False)
    module.load_kernel(tmp_path)
    assert CACHE not in os.environ, "the package's own directory is writable here"
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv(CACHE, "/elsewhere")
    module.load_kernel(tmp_path)
    assert os.environ[CACHE] == "/elsewhere"
    monkeypatch.delenv(CACHE)
    module.load_kernel(tmp_path)
    assert os.environ[CACHE] == str(tmp_path)


def test_a_cycle_without_an_answer_is_a_good_cycle_and_doctor_says_what_is_missing(desk, tmp_path):
    site = desk(faulty("forbidden"))
    daemon = site.daemon(tmp_path / "state")
    assert forecast(daemon.config, site.clock.time()) == [], "no cycle yet"
    while not site.worker.trouble:
        assert daemon.tick().outcome is CycleOutcome.DONE
        time.sleep(0.01)
    daemon.tick()
    [finding] = forecast(daemon.config, site.clock.time())
    assert (finding.severity, finding.subject) == (Severity.WARNING, "start times")
    assert finding.cause.startswith("no start times are forecast: ")
    assert "executable memory" in finding.cause
    assert "rltuned-forecast.conf" in finding.remedy
    assert forecast(daemon.config, site.clock.time() + 3600.0) == [], "that was long ago"
    off = daemon.config.model_copy(update={"forecast": ForecastSection(enabled="off")})
    assert forecast(off, site.clock.time()) == []

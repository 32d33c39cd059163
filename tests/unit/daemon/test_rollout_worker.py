"""The rollout worker: it answers as the simulator does, and whatever becomes of it, cycles go on."""

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
from unit.daemon import faulty_workers
from unit.daemon.model_slurm import ModelSlurm, VirtualClock

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.changes import JobState, OverSubscribe
from rltuned.cluster.objective import DEFAULT, Objective
from rltuned.cluster.plain_tables import job_table, node_table
from rltuned.cluster.tables import Partition, Snapshot
from rltuned.config import Config, CycleSection, PolicySection, RolloutSection, Stage, StateSection, resolve
from rltuned.daemon import decisions
from rltuned.daemon import rollout_worker as module
from rltuned.daemon.checks import Severity, rollout
from rltuned.daemon.clock import SystemClock
from rltuned.daemon.cycle_report import CycleOutcome
from rltuned.daemon.journal import Journal
from rltuned.daemon.loop import Daemon
from rltuned.daemon.metrics import Metrics, SearchOutcome
from rltuned.daemon.planning import Planning
from rltuned.daemon.rollout_worker import (
    CACHE,
    READY,
    InProcessSearch,
    SearchTask,
    WorkerSearch,
    checked,
    needed,
    wanted,
    work,
)
from rltuned.daemon.runtime import Runtime
from rltuned.daemon.start_times import StartTimes
from rltuned.decide.decision import RolloutRecord
from rltuned.decide.loans import Book
from rltuned.decide.rollout import RolloutRequest, RolloutResult, recent_jobs
from rltuned.errors import ConfigError, RltunedError
from rltuned.forecast.start_forecast import StartRequest
from rltuned.policy import by_name, files
from rltuned.simulate.search import OrderSearch

NOW = 1_000_000.0


@pytest.fixture
def without_numba(monkeypatch):
    """Call it: from then on Numba is not installed."""
    return lambda: monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


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
    return RolloutRequest(Snapshot(NOW, (24, 11), jobs, nodes, (gpu,)), jobs.pending, rng.normal(size=pending), times)


class Desk:
    """A search with a worker, and what it said and counted."""

    def __init__(self, directory, target=work, **settings):
        config = Config(
            rollout=RolloutSection(**{"enabled": "auto"} | settings), state=StateSection(directory=directory)
        )
        self.clock, self.metrics = VirtualClock(NOW), Metrics()
        self.log = structlog.get_logger()
        self.runtime = Runtime(config, self.clock, self.log, self.metrics)
        self.search = WorkerSearch(self.runtime, target)

    def reload(self, **settings):
        self.runtime.config = self.runtime.config.model_copy(
            update={"rollout": RolloutSection(**{"enabled": "auto"} | settings)}
        )

    def want(self, objective):
        self.runtime.config = self.runtime.config.model_copy(update={"policy": PolicySection(objective=objective)})

    def ask(self, asked=None):
        return self.search(asked or queue())

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
        return self.until(lambda _: self.search._warm)

    def count(self, outcome):
        return self.metric("rollout_searches_total", {"outcome": outcome.value})

    def metric(self, name, labels=None):
        return self.metrics.registry.get_sample_value(f"rltuned_{name}", labels or {})

    def expected(self):
        """Wait, then gain and error over the policy's order and over Slurm's."""
        names = ("rollout_expected_gain_seconds", "rollout_expected_gain_error_seconds")
        gains = (self.metric(name, {"over": over}) for over in ("policy", "slurm") for name in names)
        return (self.metric("rollout_expected_wait_seconds"), *gains)


@pytest.fixture
def desk(tmp_path):
    desks = []

    def start(target=work, **settings):
        desks.append(Desk(tmp_path, target, **settings))
        return desks[-1]

    yield start
    for one in desks:
        one.search.close()
        one.search.rest()


@pytest.fixture
def logs():
    with capture_logs() as entries:
        yield entries


def gone(process):
    """Whether it ends soon."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


# --- the worker


def test_the_worker_answers_what_the_simulator_answers_here(desk, logs):
    site = desk(orders=12, time_limit=30.0)
    wanted = Objective.parse("slowdown=1,idle=0.2")
    site.want(wanted)
    assert site.ask() is None, "nobody waits for the worker to get warm"
    found = site.until(lambda answer: answer is not None)
    asked = queue()
    assert found == OrderSearch(orders=12, objective=wanted, over_slurm=True)(asked)
    assert sorted(found.order) == sorted(found.simulated) == sorted(asked.rows.tolist())
    assert 6 < found.rollouts <= 1 + 13 + 1, "each order that is another one, and Slurm's own"
    # A reload counts from the next cycle on.
    assert site.expected() == (found.best, found.gain, found.error, *found.over_slurm)
    assert found.gain > 0.0
    site.reload(orders=1, margin=0.9, time_limit=30.0)
    scores = -np.array([found.order.index(row) for row in asked.rows], dtype=np.float64)
    kept = site.ask(replace(asked, scores=scores))
    assert (kept.rollouts, kept.order) == (4, None)
    assert (site.count(SearchOutcome.MOVED), site.count(SearchOutcome.KEPT)) == (1, 1)
    assert (site.metric("rollouts_total"), site.metric("rollout_ready")) == (found.rollouts + kept.rollouts, 1)
    assert site.expected() == (kept.best, 0.0, 0.0, *kept.over_slurm)
    # So few jobs are simulated with arrivals, sampled from recent jobs; the worker gets them.
    recent = recent_jobs(asked.snapshot, asked.run_times, None, np.zeros(0))
    site.reload(orders=1, margin=0.9, min_jobs=16, time_limit=30.0)
    among = site.ask(replace(asked, recent=recent))
    direct = OrderSearch(orders=1, objective=wanted, margin=0.9, min_jobs=16, over_slurm=True)
    assert among == direct(replace(asked, recent=recent))
    assert among.cost > found.cost
    assert among.over_slurm.error > 0.0, "arrivals differ from scenario to scenario"
    assert site.ask(replace(asked, rows=asked.rows[:1], scores=asked.scores[:1])) is None
    assert [entry["event"] for entry in logs] == ["rollout.ready"]
    worker = site.search.worker
    site.search.close()
    assert gone(worker)
    assert site.ask() is None
    assert site.search.worker is None, "closed is closed"


def test_a_worker_that_wants_too_much_memory_dies_alone(desk, logs):
    site = desk(faulty_workers.hungry, time_limit=30.0)
    site.until(lambda _: site.count(SearchOutcome.FAILED) >= 1)
    (failed,) = [entry for entry in logs if entry["event"] == "rollout.failed"]
    assert failed["reason"].startswith("the worker is gone")


def test_the_worker_is_confined_and_the_first_to_go_where_memory_is_short(desk):
    site = desk()
    site.until_warm()
    about = Path(f"/proc/{site.search.worker}")
    (data,) = [line.split() for line in (about / "limits").read_text().splitlines() if "data size" in line]
    assert data[3:5] == [str(module.MEMORY), str(module.MEMORY)]
    assert (about / "oom_score_adj").read_text().strip() == "1000"


def test_only_what_is_needed_is_sent_and_rows_are_told_back_in_the_callers_numbers(desk, monkeypatch):
    whole = queue()
    few, snapshot = whole.rows[[7, 2, 5]], whole.snapshot
    asked = replace(whole, rows=few, scores=np.zeros(3))
    small, keep = needed(asked)
    jobs, places = small.snapshot.jobs, small.rows
    assert jobs.job_id.tolist() == [101, 102, 103, 104, *sorted(snapshot.jobs.job_id[few].tolist())]
    assert (jobs.job_id[places] == snapshot.jobs.job_id[few]).all()
    assert (keep[places] == few).all()
    assert (small.run_times == whole.run_times[keep]).all()
    assert (jobs.user.names, jobs.account.names, jobs.reason.names) == ((), (), ())
    site = desk()
    monkeypatch.setattr(site.search, "_is_ready", lambda: True)
    found = RolloutResult(5, 9.0, 4.0, tuple(places.tolist()), tuple(places[::-1].tolist()))
    monkeypatch.setattr(site.search, "_exchange", lambda *_: (True, found))
    answer = site.ask(asked)
    assert (answer.simulated, answer.order) == (tuple(few.tolist()), tuple(few[::-1].tolist()))
    monkeypatch.setattr(site.search, "_exchange", lambda *_: (True, replace(found, order=None)))
    assert site.ask(asked).order is None


def test_the_time_limit_ends_the_search_and_the_best_so_far_counts():
    clock = VirtualClock(NOW)
    task = SearchTask(RolloutSection(orders=12, time_limit=5.0), DEFAULT, queue())
    monotonic = clock.monotonic
    clock.monotonic = lambda: (clock.sleep(0.5), monotonic())[1]  # each look at the clock takes half a second
    assert 2 < task.run(clock).rollouts < 14
    assert task.run(VirtualClock(NOW)).rollouts == 15
    with pytest.raises(RltunedError, match=r"the least rollout\.time_limit"):
        replace(task, settings=RolloutSection(orders=12, time_limit=1.0)).run(clock)


def test_when_the_daemon_is_killed_its_worker_ends_whatever_it_does(tmp_path):
    program = """
import sys, time
from unit.daemon.test_rollout_worker import Desk, Path
site = Desk(Path(sys.argv[1]))
site.ask()
print(site.search.worker, flush=True)
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


@pytest.mark.parametrize("target", [faulty_workers.hangs, faulty_workers.never_reads])
def test_a_worker_that_hangs_is_killed_and_the_cycle_goes_on(desk, logs, monkeypatch, target):
    monkeypatch.setattr(module, "GRACE", 0.05)
    site = desk(target, time_limit=0.05)
    asked = queue()
    nodes = replace(asked.snapshot.nodes, names=("x" * 4_000_000, *asked.snapshot.nodes.names[1:]))
    long = replace(asked, snapshot=replace(asked.snapshot, nodes=nodes))
    while not site.search._is_ready():
        time.sleep(0.01)
    worker = site.search.worker
    assert site.ask(long) is None
    assert gone(worker)
    assert site.count(SearchOutcome.LATE) == 1
    assert site.search.worker not in {None, worker}, "another one is getting warm"
    assert [(entry["event"], entry.get("reason")) for entry in logs] == [
        ("rollout.ready", None),
        ("rollout.failed", "no answer within 0.1 s"),
    ]


def test_an_arrival_that_can_never_start_leaves_no_cost_and_so_no_answer(desk):
    asked = queue(pending=3)
    one_node = replace(asked.snapshot.partitions[0], max_nodes=1)
    larger = recent_jobs(asked.snapshot, asked.run_times, None, np.zeros(0))
    larger = replace(larger, gpus=np.full(len(larger), 16.0), cpus=np.full(len(larger), 4.0))
    asked = replace(asked, snapshot=replace(asked.snapshot, partitions=(one_node,)), recent=larger)
    found = OrderSearch()(asked)
    assert not np.isfinite(found.cost), "the arrivals are larger than the node that they may have"
    assert SearchTask(RolloutSection(), DEFAULT, asked).run(SystemClock()) is None
    assert SearchTask(RolloutSection(min_jobs=0), DEFAULT, asked).run(SystemClock()) is not None
    site = desk(time_limit=30.0)
    site.until_warm()
    skipped = site.count(SearchOutcome.SKIPPED)
    assert site.ask(asked) is None
    assert site.count(SearchOutcome.SKIPPED) == skipped + 1
    assert np.isnan(site.expected()).all(), "no cost is measured"


def test_a_worker_that_cannot_be_started_is_a_reason_and_no_error(desk, monkeypatch, logs):
    class Context:
        @staticmethod
        def Pipe():  # noqa: N802 - as multiprocessing calls it
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(module.multiprocessing, "get_context", lambda _: Context)
    site = desk()
    assert site.ask() is None
    assert "Too many open files" in site.search.trouble
    assert [entry["event"] for entry in logs] == ["rollout.failed"]


def test_a_worker_that_is_killed_in_the_middle_costs_one_cycle_and_comes_back(desk, logs):
    site = desk(faulty_workers.dies_once)
    site.until(lambda _: site.count(SearchOutcome.FAILED) == 1)
    assert "is gone" in site.search.trouble
    site.until_warm()
    assert site.search.trouble == "", "another one stands ready, whether it is asked or not"
    found = site.until(lambda answer: answer is not None)
    assert found == RolloutResult(3, 10.0, 10.0)
    assert site.search.trouble == ""
    assert site.count(SearchOutcome.FAILED) == 1
    os.kill(site.search.worker, signal.SIGKILL)  # by somebody else, between two cycles
    assert site.ask() is None
    assert site.until(lambda answer: answer is not None) == found
    events = [entry["event"] for entry in logs]
    again = ["rollout.failed", "rollout.ready", "rollout.works"]
    assert events == ["rollout.ready", *again, *again]


def test_a_worker_that_keeps_dying_is_started_ever_more_rarely_and_named_once(desk, logs):
    site = desk(faulty_workers.dies_at_once)
    site.until(lambda _: site.count(SearchOutcome.FAILED) == 2)
    waits = []
    for tries in range(3, 8):
        assert site.ask() is None
        assert site.search.worker is None, "not before its time"
        waits.append(site.search._again - site.clock.monotonic())
        site.clock.sleep(waits[-1])
        site.until(lambda _, tries=tries: site.count(SearchOutcome.FAILED) == tries)
    assert waits == [60.0, 120.0, 240.0, 480.0, 900.0]
    assert [entry["event"] for entry in logs] == ["rollout.failed"]
    assert "exit code 3" in logs[0]["reason"]


def test_a_queue_that_cannot_be_simulated_does_not_cost_the_worker(desk, logs):
    site = desk(faulty_workers.complains_first)
    site.until(lambda _: site.count(SearchOutcome.FAILED) == 2)
    worker = site.search.worker
    assert site.until(lambda answer: answer is not None).rollouts == 3
    assert site.search.worker == worker
    assert [entry["event"] for entry in logs] == ["rollout.ready", "rollout.failed", "rollout.works"]
    assert logs[1]["reason"] == "ValueError: odd queue"


def test_a_worker_that_never_gets_warm_is_replaced_in_the_end(desk):
    site = desk(faulty_workers.never_ready)
    site.ask()
    worker = site.search.worker
    site.clock.sleep(module.WARM - 1.0)
    site.ask()
    assert site.search.worker == worker
    site.clock.sleep(2.0)
    site.ask()
    assert gone(worker)
    assert "not ready after 300 s" in site.search.trouble


def test_where_machine_code_may_not_be_made_the_remedy_is_the_drop_in_of_the_unit(desk, logs, tmp_path):
    site = desk(faulty_workers.forbidden)
    site.until(lambda _: site.count(SearchOutcome.FAILED) == 1)
    assert "rltuned-rollout.conf" in logs[0]["remedy"]


def test_the_names_of_the_stand_ins_are_those_of_the_real_one():
    assert faulty_workers.READY == READY


# --- who wants it


def test_rollouts_are_made_for_a_model_for_a_rule_only_when_it_is_switched_on_and_nobody_without_numba(
    without_numba,
):
    model, rule = files.load("general"), by_name("saf")
    told = {
        name: (wanted(RolloutSection(enabled=name), model), wanted(RolloutSection(enabled=name), rule))
        for name in ("auto", "on", "off")
    }
    assert told == {"auto": (True, False), "on": (True, True), "off": (False, False)}
    # What a verdict was given for: a rule as it is, Slurm's own order untouched, a model with its search.
    on = RolloutSection(enabled="on")
    judged = {policy.name: wanted(on, policy, judged=True) for policy in (model, rule, by_name("multifactor"))}
    assert judged == {"general": True, "saf": False, "multifactor": False}
    checked(Config(rollout=RolloutSection(enabled="on")))
    without_numba()
    assert not wanted(RolloutSection(enabled="auto"), model)
    checked(Config(rollout=RolloutSection(enabled="auto")))
    with pytest.raises(ConfigError, match=r'rollout\.enabled = "on" needs Numba: .* -m pip install'):
        checked(Config(rollout=RolloutSection(enabled="on")))


def test_the_planner_asks_only_when_it_is_wanted_and_lets_the_worker_rest_otherwise(without_numba):
    class Counting:
        asked = rested = 0
        trouble = ""

        def __call__(self, request):
            self.asked += 1
            rows = tuple(request.rows.tolist())
            return RolloutResult(2, 9.0, 4.0, rows, rows[::-1])

        def rest(self, *, forecasts):
            self.rested += 1
            kept.append(forecasts)

    kept = []

    slurm = ModelSlurm(VirtualClock(NOW))
    jobs = [slurm.submit(1000 - number, time_limit=600.0 + number).job_id for number in range(4)]
    snapshot, counting = slurm.reader().snapshot(NOW), Counting()
    model, rule, auto = files.load("general"), by_name("fifo"), Config(rollout=RolloutSection(enabled="auto"))
    made = Planning(search=counting)(snapshot, model, auto, AppliedChanges(), Book())
    assert snapshot.jobs.job_id[made.rows[made.queue]][0] == jobs[-1]
    assert (made.rollout.gain, counting.asked, counting.rested) == (5.0, 1, 0)
    planning = Planning(search=counting)
    for policy, config in (
        (rule, auto),
        (rule, Config(policy=PolicySection(name="auto"), rollout=RolloutSection(enabled="on"))),
        (model, Config()),
        (model, Config(rollout=RolloutSection(enabled="off", forecast="off"))),
    ):
        assert planning(snapshot, policy, config, AppliedChanges(), Book()).rollout is None
    without_numba()
    assert planning(snapshot, model, auto, AppliedChanges(), Book()).rollout is None
    assert (counting.asked, counting.rested) == (1, 5)
    assert kept == [True, True, True, False, False], "forecasts of start times want the worker, where there is one"
    assert Planning()(snapshot, model, auto, AppliedChanges(), Book()).rollout is None


def test_a_worker_that_is_not_wanted_any_more_ends_and_another_one_starts_when_it_is_again(desk):
    site = desk(faulty_workers.never_ready)
    site.ask()
    worker = site.search.worker
    site.search.rest()
    assert gone(worker)
    assert site.search.worker is None
    site.ask()
    assert site.search.worker not in {None, worker}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('enabled = "yes"', "enabled"),
        ("orders = 0", "orders"),
        ("orders = 1001", "orders"),
        ("time_limit = 0", "time_limit"),
        ("time_limit = 31", "time_limit"),
        ("margin = 1", "margin"),
        ("order = 4", "order"),
    ],
)
def test_a_mistake_in_the_section_names_the_key(line, key):
    with pytest.raises(ConfigError, match=rf"c\.toml:2: (unknown key ')?rollout\.{key}"):
        resolve(f"[rollout]\n{line}\n", "c.toml", {}, {})


# --- in the foreground, in a cycle, and for the admin


def test_in_the_foreground_the_same_search_needs_no_process_and_a_failure_is_said_once(tmp_path, logs, monkeypatch):
    metrics = Metrics()
    config = Config(state=StateSection(directory=tmp_path))
    search = InProcessSearch(Runtime(config, SystemClock(), structlog.get_logger(), metrics))
    asked = queue()
    assert search(asked) == OrderSearch(over_slurm=True)(asked)
    assert search(replace(asked, rows=asked.rows[:1], scores=asked.scores[:1])) is None
    monkeypatch.setattr(SearchTask, "run", lambda *_: 1 / 0)
    for _ in range(2):
        assert search(asked) is None
    assert "ZeroDivisionError" in search.trouble
    assert [entry["event"] for entry in logs] == ["rollout.failed"]
    counts = {
        o: metrics.registry.get_sample_value("rltuned_rollout_searches_total", {"outcome": o}) for o in SearchOutcome
    }
    assert counts == {"moved": 1, "kept": 0, "skipped": 1, "late": 0, "failed": 2}


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
    site = desk(faulty_workers.forbidden)
    clock = site.clock
    slurm = ModelSlurm(clock)
    for number in range(4):
        slurm.submit(1000 - number, time_limit=600.0)
    config = Config(
        cycle=CycleSection(stage=Stage.SHADOW),
        policy=PolicySection(name="model"),
        rollout=RolloutSection(enabled="auto"),
        state=StateSection(directory=tmp_path / "state", mirror=None),
    )
    daemon = Daemon(
        runtime=Runtime(config, clock, site.log, site.metrics),
        policy=files.load("general"),
        reader=slurm.reader(),
        writer_factory=None,
        journal=Journal.open(config.state.directory, None),
        rng=random.Random(1),
        planner=Planning(search=site.search),
        rollout_trouble=lambda: site.search.trouble,
    )
    assert rollout(config, clock.time()) == [], "no cycle yet"
    while site.count(SearchOutcome.FAILED) == 0:
        assert daemon.tick().outcome is CycleOutcome.DONE
        time.sleep(0.01)
    [finding] = rollout(config, clock.time())
    assert (finding.severity, finding.subject) == (Severity.WARNING, "rollout")
    assert "executable memory" in finding.cause
    assert "rltuned-rollout.conf" in finding.remedy
    assert rollout(config, clock.time() + 3600.0) == [], "that was long ago"
    made = decisions.load(config.state.directory)
    decisions.save(config.state.directory, replace(made, rollout_trouble="", rollout=RolloutRecord(16, 5, {}, 0.0)))
    [finding] = rollout(config, clock.time())
    assert (finding.severity, finding.cause) == (Severity.OK, "the last cycle made 16 rollouts")


def test_where_only_start_times_are_forecast_the_log_speaks_of_these(desk, logs):
    site = desk(faulty_workers.dies_once, enabled="off")
    site.search.rest(forecasts=True)
    request = StartRequest(queue().snapshot, queue().rows, queue().run_times)
    deadline = time.monotonic() + 60.0
    while len(logs) < 4 and time.monotonic() < deadline:
        site.search.forecast(request)
        time.sleep(0.01)
    said = [f"{entry['event']}: {entry['sentence']}" for entry in logs]
    assert [line.partition(" (")[0] for line in said] == [
        "rollout.ready: Start times are forecast from now on",
        "rollout.failed: No start times are forecast until it works again.",
        "rollout.ready: Start times are forecast from now on",
        "rollout.works: Start times are forecast again.",
    ]
    assert 'rollout.forecast = "off"' in logs[1]["remedy"]
    assert [site.count(outcome) for outcome in SearchOutcome] == [0] * len(SearchOutcome), "nothing was searched"


def test_doctor_names_a_dead_worker_where_only_start_times_are_forecast(desk, tmp_path):
    site = desk(faulty_workers.forbidden, enabled="off")
    slurm = ModelSlurm(site.clock)
    for number in range(4):
        slurm.submit(1000 - number, time_limit=600.0)
    config = Config(state=StateSection(directory=tmp_path / "state", mirror=None))
    assert config.rollout.enabled == "off"
    daemon = Daemon(
        runtime=Runtime(config, site.clock, site.log, site.metrics),
        policy=by_name("saf"),
        reader=slurm.reader(),
        writer_factory=None,
        journal=Journal.open(config.state.directory, None),
        rng=random.Random(1),
        planner=Planning(search=site.search),
        rollout_trouble=lambda: site.search.trouble,
        start_times=StartTimes(site.search.forecast, lambda: None, site.runtime),
    )
    while not site.search.trouble:
        assert daemon.tick().outcome is CycleOutcome.DONE
        time.sleep(0.01)
    daemon.tick()
    [finding] = rollout(config, site.clock.time())
    assert (finding.severity, finding.subject) == (Severity.WARNING, "start times")
    assert finding.cause.startswith("no start times are forecast: ")
    assert "rltuned-rollout.conf" in finding.remedy
    off = config.model_copy(update={"rollout": RolloutSection(forecast="off")})
    assert rollout(off, site.clock.time()) == []


def test_doctor_names_a_missing_numba_as_bad_as_the_configuration_makes_it(without_numba):
    without_numba()

    def said(**sections):
        return [(one.severity, " -m pip install " in one.remedy) for one in rollout(Config(**sections), NOW)]

    auto = RolloutSection(enabled="auto")
    assert said(rollout=auto) == [(Severity.NOTE, True)]
    assert said(rollout=RolloutSection(enabled="on")) == [(Severity.ERROR, True)]
    assert said() == []
    assert said(rollout=auto, policy=PolicySection(name="saf")) == []

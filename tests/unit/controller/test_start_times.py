"""Start times: the daemon learns who comes and when jobs start, and says when those start that wait."""

import json
import sys
from dataclasses import replace

import numpy as np
import structlog
from structlog.testing import capture_logs
from unit.simulate.house import NO_ONE, House, busy_slurm, config
from unit.test_cli import run

from rltuned.controller.learnt.forecast_worker import needed
from rltuned.controller.learnt.start_times import FILE_NAME, KeptForecast, StartTimes
from rltuned.controller.users.user_records import write_all_records
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.safe_files import parse
from rltuned.core.tables import Partition, Snapshot
from rltuned.decide.user_record import UserRecord, UserRecords
from rltuned.records import decisions
from rltuned.simulate.forecast.start_simulation import StartSimulation

CYCLES = 60


def watched(memory_path, **settings):
    """A daemon on a simulated cluster that forecasts in this process."""
    house = House(busy_slurm(2 * CYCLES, rates=NO_ONE), config(memory_path, **settings))
    small = StartSimulation(scenarios=8)

    def forecast(request):
        """As the worker: in this time it gets a few of the probes."""
        return small(replace(needed(request), probes=request.probes[:6]))

    house.daemon.parts.start_times = StartTimes(forecast, lambda: None, house.daemon.runtime)
    house.published = []
    house.daemon.parts.reporting.publish = house.published.append
    return house


def test_most_jobs_start_within_the_interval_that_was_published(memory_path):
    house = watched(memory_path)
    said, inside = {}, []
    for _ in range(CYCLES):
        found = house.tick().record.starts
        for job, low, high in zip(found.id, found.low, found.high, strict=True):
            if low is not None:
                said.setdefault(job, (low, np.inf if high is None else high))
    start = house.slurm.simulation.start + house.slurm.profile.epoch
    for job, (low, high) in said.items():
        if np.isfinite(start[job - 1]):
            # Times are those of readings and of passes of the scheduler, a minute apart.
            inside.append(low - 60.0 <= start[job - 1] <= high + 60.0)
    assert len(inside) > 40
    assert np.mean(inside) > 0.6
    assert found.outcomes > 20
    assert 0.5 < found.coverage <= 1.0
    assert found.scenarios == 8
    # What is learnt of who comes is bounded by who came.
    known = house.daemon.parts.start_times.seen
    submitted = int((house.slurm.jobs.submit_time <= house.slurm.simulation.now).sum())
    assert 0.8 * submitted < len(known) <= submitted
    ended = np.isfinite(known.run_time)
    rows = known.job_id[ended] - 1
    took = (house.slurm.simulation.end - house.slurm.simulation.start)[rows]
    np.testing.assert_allclose(known.run_time[ended], took, atol=130.0)


def test_probes_go_round_and_are_said_to_everybody_jobs_to_their_owners_only(memory_path):
    house = watched(memory_path)
    for _ in range(8):
        made = house.tick().record
    records = house.published[-1]
    assert isinstance(records, UserRecords)
    assert len(made.starts.probes) > 5
    everybody = {user: records.record(user) for user in records.users}
    expected = dict(zip(made.starts.id, zip(made.starts.low, made.starts.high, strict=True), strict=True))
    told = 0
    for user, own in everybody.items():
        assert own.probes == made.starts.probes
        for job in own.jobs:
            if job.start is not None:
                assert job.start == expected[job.job_id]
                told += 1
        others = {job.job_id for name, other in everybody.items() if name != user for job in other.jobs}
        assert not others & {job.job_id for job in own.jobs}
        # It survives the way to a user.
        assert parse(UserRecord, json.dumps(own.as_dict()), "a user record") == own
    assert told > 3


def test_what_was_learnt_outlives_a_restart_and_a_broken_file_is_learnt_anew(memory_path):
    house = watched(memory_path)
    for _ in range(30):
        house.tick()
    before = house.daemon.parts.start_times
    house.daemon.stop()
    path = house.config.state.directory / FILE_NAME
    runtime = replace(house.daemon.runtime, log=structlog.get_logger())
    with capture_logs() as entries:
        after = StartTimes(lambda _: None, lambda: None, runtime)
        after.load()
        assert entries == []
        assert (after._kept, after.seen.rows()) == (before._kept, before.seen.rows())
        assert len(after._kept) > 10
        # The second has more than a column holds.
        for row in ("1", f'1, 1.7e9, "u", "p", "", {2**40}, 1, 0, 1, 1.0, null, 1.0, null, null'):
            path.write_text(f'{{"version": 1, "submitted": [[{row}]], "kept": []}}')
            anew = StartTimes(lambda _: None, lambda: None, runtime)
            anew.load()
            assert anew._kept == []
    assert [entry["event"] for entry in entries] == ["forecast.unreadable"] * 2


def test_a_forecast_that_cannot_be_had_leaves_the_cycle_as_it_was(memory_path):
    house = watched(memory_path)

    def fails(_request):
        raise ValueError("a defect")

    for _ in range(8):
        house.tick()
    for forecast in (lambda _: None, fails):
        house.daemon.parts.start_times._forecast = forecast
        report = house.tick()
        assert report.record.starts is None
        assert report.record.jobs.id
    assert len(house.events("forecast.defect")) == 1


# --- the command


LICENCES = "Not simulated, though it changes who starts when: Licenses=matlab:5."


def licensed(house, monkeypatch):
    """slurm.conf has something that is not simulated."""
    facts = type(house.slurm).facts
    monkeypatch.setattr(
        type(house.slurm), "facts", lambda *of: replace(facts(*of), not_simulated=("Licenses=matlab:5",))
    )


def test_when_answers_for_jobs_and_for_jobs_that_are_not_submitted(memory_path, tmp_path, capsys, monkeypatch):
    house = watched(memory_path)
    licensed(house, monkeypatch)
    for _ in range(20):
        made = house.tick().record
    decisions.save(house.config.state.directory, made)
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "{house.config.state.directory}"\nmirror = ""\n')
    at = next(place for place, low in enumerate(made.starts.low) if low is not None and place > 1)
    job = made.starts.id[at]
    code, text, _ = run(capsys, "when", job, "--config", path)
    assert code == 0
    assert f"Job {job} starts" in text
    assert "with 80 %" in text
    assert f"{at} jobs stand before it" in text
    assert LICENCES in text
    code, answer, _ = run(capsys, "when", job, "--json", "--config", path)
    answer = json.loads(answer)
    assert (answer["start"], answer["likely"]) == ([made.starts.low[at], made.starts.high[at]], made.starts.middle[at])
    code, text, _ = run(capsys, "explain", job, "--config", path)
    assert "Expected to start in" in text
    assert LICENCES in text
    code, text, _ = run(capsys, "when", 4_000_000, "--config", path)
    assert (code, "has ended" in text) == (16, True)
    # A job that nobody has submitted.
    code, answer, _ = run(capsys, "when", "--gpus", 2, "--time", "0:30:00", "--json", "--config", path)
    answer = json.loads(answer)
    assert code == 0
    assert answer["found"]["gpus"] >= 2
    assert answer["found"]["time_limit"] >= 1800.0
    assert answer["not_simulated"] + "." == LICENCES.replace("Not", "not")
    code, text, _ = run(capsys, "when", "--gpus", 4000, "--time", "8:00:00", "--config", path)
    assert "Nothing that was simulated" in text
    code, text, said = run(capsys, "when", "--time", "1:00:00", "--partition", "mian", "--config", path)
    assert (code, text) == (1, "")
    assert "--partition mian" in said
    assert "did you mean main?" in said
    for wrong in (("when",), ("when", job, "--time", "60"), ("when", "--time", "soon"), ("when", job, "--gpus", "2")):
        assert run(capsys, *wrong, "--config", path)[0] == 2
    decisions.save(house.config.state.directory, replace(made, starts=None))
    for asked in ((job,), ("--time", "60")):
        code, _, said = run(capsys, "when", *asked, "--config", path)
        assert (code, "no start times are forecast: the daemon's last cycle made none" in said) == (1, True)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "Numba is not installed: " in run(capsys, "when", job, "--config", path)[2]
    for section, cause in (
        ('forecast]\nenabled = "off', "forecast.enabled is"),
        ('cycle]\nstage = "observe', "stage obs"),
    ):
        path.write_text(f'[state]\ndirectory = "{house.config.state.directory}"\nmirror = ""\n[{section}"\n')
        assert f"no start times are forecast: {cause}" in run(capsys, "when", job, "--config", path)[2]


def test_users_ask_when_their_own_jobs_start_and_nothing_else(memory_path, tmp_path, capsys, monkeypatch):
    house = watched(memory_path)
    licensed(house, monkeypatch)
    for _ in range(20):
        made = house.tick().record
    records = house.published[-1]
    user = next(name for name in records.users if any(job.start for job in records.record(name).jobs))
    own = next(job for job in records.record(user).jobs if job.start)
    monkeypatch.setattr("rltuned.controller.users.user_records.uid_of", lambda name: 7 if name == user else None)
    monkeypatch.setattr("rltuned.controller.users.user_records._let_in", lambda *_, **__: None)
    monkeypatch.setattr("os.geteuid", lambda: 7)
    shared = tmp_path / "users"
    shared.mkdir(mode=0o711)
    monkeypatch.setattr("rltuned.controller.users.user_records._open_ours", lambda path: __import__("os").open(path, 0))
    assert write_all_records(shared, records) is None
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "/nowhere"\nmirror = ""\n[users]\ndirectory = "{shared}"\n')
    code, answer, _ = run(capsys, "when", own.job_id, "--json", "--config", path)
    assert (code, json.loads(answer)["start"]) == (0, list(own.start))
    other = next(job for job in made.starts.id if job not in {one.job_id for one in records.record(user).jobs})
    code, answer, _ = run(capsys, "when", other, "--config", path)
    assert (code, "not among your pending jobs" in answer) == (16, True)
    code, text, _ = run(capsys, "when", "--gpus", 1, "--time", "30", "--config", path)
    assert (code, LICENCES in text) == (0, True)
    for command in ("when", "explain"):
        assert LICENCES in run(capsys, command, own.job_id, "--config", path)[1]


def test_of_more_jobs_than_are_kept_the_last_submissions_are_and_stay_so(memory_path, monkeypatch):
    house = watched(memory_path)
    for _ in range(20):
        house.tick()
    learned = house.daemon.parts.start_times
    everything = learned.seen
    most = len(everything) // 2
    monkeypatch.setattr("rltuned.controller.learnt.start_times.MOST_SUBMISSIONS", most)
    ended = 0
    for _ in range(20):
        before = learned.seen
        house.tick()
        known = learned.seen
        assert len(known) <= most
        if len(before) == most:
            # Only a later submission takes the place of one that is known; those that have ended are no exception.
            assert known.submit_time.min() >= before.submit_time.min()
        ended = max(ended, int(np.isfinite(known.run_time).sum()))
    assert ended > 0


def test_of_more_forecasts_than_are_kept_the_last_are(memory_path, monkeypatch):
    house = watched(memory_path)
    learned, most = house.daemon.parts.start_times, 3
    for _ in range(20):
        house.tick()
    assert len(learned._kept) > most
    monkeypatch.setattr("rltuned.controller.learnt.start_times.MOST_FORECASTS", most)
    for _ in range(20):
        house.tick()
        assert len(learned._kept) <= most
    assert learned._kept


def kept_after(memory_path, jobs, array_of, *, made=100.0):
    """A forecast for array 1, of 10 to 120 seconds, when these jobs are seen: id → start, NaN: none."""
    known = StartTimes(lambda _: None, lambda: None, House(busy_slurm(1), config(memory_path)).daemon.runtime)
    known._kept = [KeptForecast(1, 0.0, made, 10.0, 60.0, 120.0, None, None, made + 10.0, made + 120.0)]
    start = np.array(list(jobs.values()))
    table = job_table(len(jobs), job_id=list(jobs), state=np.isfinite(start).astype(int), start_time=start)
    part = Partition("gpu", np.array([0], dtype=np.int32))
    nodes = node_table(["n"], ("gpu",), [[8]])
    known._resolve(Snapshot(3600.0, (24, 11), table, nodes, (part,), arrays={1: 0}, array_of=array_of))
    return known._kept


def test_an_array_has_started_when_its_first_task_has(memory_path):
    tasks = dict.fromkeys(range(1000, 1010), 150.0) | {1010: 160.0}
    for first in ({1: np.nan}, {1: 700.0}, {}):  # its record waits on, has become the last task, is gone
        (kept,) = kept_after(memory_path, first | tasks, dict.fromkeys(tasks, 1))
        assert (kept.started, kept.inside) == (150.0, True)


def test_tasks_that_ran_when_the_forecast_was_made_say_nothing_of_the_next_one(memory_path):
    (kept,) = kept_after(memory_path, {1: np.nan, 1000: 50.0}, {1000: 1})
    assert kept.started is None
    (kept,) = kept_after(memory_path, {1: np.nan, 1000: 50.0, 1001: 400.0}, {1000: 1, 1001: 1})
    assert (kept.started, kept.inside) == (400.0, False)
    assert kept_after(memory_path, {1000: 50.0}, {1000: 1}) == []
    (kept,) = kept_after(memory_path, {1: np.nan, 7: 150.0}, {})
    assert kept.started is None, "another job"

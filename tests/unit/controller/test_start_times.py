"""Start times: the daemon learns who comes and when jobs start, and says when those start that wait."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs
from unit.simulate.house import NO_ONE, RATES, House, busy_slurm, config
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


def watched(memory_path, rates=NO_ONE, **settings):
    """A daemon on a simulated cluster that forecasts in this process."""
    house = House(busy_slurm(2 * CYCLES, rates=rates), config(memory_path, **settings))
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
    code, answer, _ = run(capsys, "when", "--gpus", 2, "--json", "--config", path)
    offers = json.loads(answer)
    assert len(offers) > 1
    assert [each["found"]["gpus"] >= 2 for each in offers] == [True] * len(offers)
    assert [each["asked"]["time_limit"] for each in offers] == sorted({each["asked"]["time_limit"] for each in offers})
    assert run(capsys, "when", "--gpus", 2, "--config", path)[1].count(": starts in ") == len(offers)
    assert "Nothing that was simulated" in run(capsys, "when", "--gpus", 4000, "--config", path)[1]
    decisions.save(house.config.state.directory, replace(made, starts=None))
    for asked in ((job,), (job, "--time", "60"), ("--time", "60"), ("--gpus", "1")):
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


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("7", "--time", limit)
            for limit in ("soon", "0", "-5", "NaN", "UNLIMITED", "1e9", "9" * 5000, "1:0:0:0", "")
        ),
        ("7", "--time", "1-0\x1b[2J"),
        ("7", "--time"),
        ("7", "--time", "60", "--gpus", "2"),
        ("7", "8", "--time", "60"),
        ("0", "--time", "60"),
        ("7; scontrol hold 7", "--time", "60"),
        ("--gpus", "-1"),
        ("--gpus", "1", "--nodes", "0"),
        ("--gpus", "1", "--mem", "much"),
    ],
)
def test_a_wrong_question_is_wrong_usage_and_its_control_characters_reach_no_terminal(arguments, tmp_path, capsys):
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "{tmp_path}"\nmirror = ""\n')
    code, text, said = run(capsys, "when", *arguments, "--config", path)
    assert (code, text) == (2, "")
    assert "Usage: rltuned when" in said
    assert "\x1b" not in said


def whole(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_a_shorter_limit_is_worth_is_said_of_the_job_that_asked_for_the_longer_one(memory_path):
    # People hold jobs: these wait for something else than their turn, and the worker's table is without them.
    house, requests = watched(memory_path, rates=RATES), []
    forecast = house.daemon.parts.start_times._forecast

    def seen(request):
        requests.append(request)
        return forecast(request)

    house.daemon.parts.start_times._forecast = seen
    gained = left_out = 0
    for _ in range(30):
        starts = house.tick().record.starts
        request = requests[-1]
        jobs = request.snapshot.jobs
        whole = StartSimulation(scenarios=8)(replace(request, probes=request.probes[:1]))
        worth = zip(jobs.job_id[whole.rows[whole.shorter.at]].tolist(), whole.shorter.limit.tolist(), strict=True)
        assert {(job, one.time_limit) for job, those in starts.shorter.items() for one in those} == set(worth)
        for job, those in starts.shorter.items():
            own = starts.of(job)
            for one in those:
                assert one.time_limit < own.limit == jobs.time_limit[jobs.row_of[job]]
                assert one.low <= own.low
                assert own.high is None or one.high <= own.high
        gained += len(starts.shorter)
        left_out += len(jobs) - len(jobs.running) - len(request.rows)
    assert gained > 5
    assert left_out > 10


def test_admins_ask_when_a_job_starts_with_another_limit_and_nothing_is_written(memory_path, tmp_path, capsys):
    house = watched(memory_path)
    while not (made := house.tick().record).starts.shorter:
        pass
    decisions.save(house.config.state.directory, made)
    assert decisions.load(house.config.state.directory).starts == made.starts
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "{house.config.state.directory}"\nmirror = ""\n')
    job, records = next(iter(made.starts.shorter.items()))
    own = made.starts.of(job).limit
    assert own == house.slurm.jobs.time_limit[job - 1]
    before = whole(house.config.state.directory), house.slurm.simulation.now
    for one in records:
        assert one.time_limit < own
        code, answer, _ = run(capsys, "when", job, "--time", f"0:0:{one.time_limit:.0f}", "--json", "--config", path)
        answer = json.loads(answer)
        assert (code, answer["found"], answer["meaning"]) == (0, one._asdict(), "")
        assert (answer["time_limit"], answer["likely"]) == (own, made.starts.of(job).middle)
        assert one.middle < answer["likely"]
    code, text, _ = run(capsys, "when", job, "--time", "1", "--config", path)
    assert (code, f"Job {job} with a time limit of up to 30 min starts" in text) == (0, True)
    assert "With its own of" in text
    assert "All of them were of jobs with their own limits" in text
    code, text, _ = run(capsys, "when", job, "--time", "30-0", "--config", path)
    assert (code, "starts no sooner with a longer one" in text) == (0, True)
    # One that gains nothing, and one that is gone.
    alike = next(one for one in made.starts.id if one not in made.starts.shorter and made.starts.of(one).limit > 1800.0)
    code, text, _ = run(capsys, "when", alike, "--time", "30", "--config", path)
    assert (code, "starts hardly sooner than with its own limit" in text) == (0, True)
    code, text, _ = run(capsys, "when", 4_000_000, "--time", "30", "--config", path)
    assert (code, "has ended" in text) == (16, True)
    assert (whole(house.config.state.directory), house.slurm.simulation.now) == before


def test_users_see_what_other_limits_are_worth_for_their_own_jobs_only_and_what_their_last_jobs_used(
    memory_path, tmp_path, capsys, monkeypatch
):
    house = watched(memory_path)
    while not (made := house.tick().record).starts.shorter:
        pass
    last = {"user1": [(3600.0, 36_000.0)] * 20, "user2": [(60.0, 60.0)]}
    records = replace(house.published[-1], last=last)
    everybody = {user: records.record(user) for user in records.users}
    told = {job.job_id: job.shorter for own in everybody.values() for job in own.jobs if job.shorter}
    assert told == dict(made.starts.shorter)
    for user, own in everybody.items():
        assert (own.limits_used is not None) == (user in last)
        assert parse(UserRecord, json.dumps(own.as_dict()), "a user record") == own
    asked = next(user for user, own in everybody.items() if any(job.shorter for job in own.jobs))
    job = next(job for job in everybody[asked].jobs if job.shorter)
    other = next(job for job in made.starts.id if job not in {one.job_id for one in everybody[asked].jobs})
    shown = replace(everybody[asked], limits_used=records.record("user1").limits_used)
    monkeypatch.setattr("rltuned.records.published.fetch", lambda *_: shown)
    monkeypatch.setattr("rltuned.controller.shown.once.fetch", lambda *_: shown)
    path = tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "/nowhere"\nmirror = ""\n[users]\ndirectory = "{tmp_path}"\n')
    code, answer, _ = run(capsys, "when", job.job_id, "--time", "10", "--json", "--config", path)
    answer = json.loads(answer)
    assert (code, answer["found"], answer["time_limit"]) == (0, job.shorter[0]._asdict(), job.time_limit)
    code, text, _ = run(capsys, "when", other, "--time", "10", "--config", path)
    assert (code, "not among your pending jobs" in text) == (16, True)
    code, text, _ = run(capsys, "when", "--config", path)
    assert code == 0
    assert f"Job {job.job_id} (time limit " in text
    assert "  With a limit of up to " in text
    assert "Your last 20 jobs that ended ran for 20.0 h of the 8.3 d that their time limits asked for (10 %)" in text
    assert "none of them reached it" in text
    assert json.loads(run(capsys, "when", "--json", "--config", path)[1])["limits_used"]["asked"] == 720_000.0
    shown = replace(shown, jobs=(), limits_used=records.record("user2").limits_used)
    text = run(capsys, "when", "--config", path)[1]
    assert text.startswith("You have no pending jobs")
    assert "Your last job that ended ran for 60 s of the 60 s" in text
    assert "1 of them reached it" in text


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

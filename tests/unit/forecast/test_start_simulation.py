"""Forecasts of start times: what the simulator would do, with arrivals."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from unit.simulate.instances import given, jobs_of
from unit.simulate.test_scenarios import FixedKeys, in_the_middle, seen, shares_are_known

from rltuned.core.tables import Category
from rltuned.decide.decision import LimitRecord, ProbeRecord
from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.forecast.arrivals import DAY, HOUR, ArrivalModel
from rltuned.simulate.forecast.start_forecast import Probe, StartRequest, probes_of
from rltuned.simulate.forecast.start_offer import (
    Asked,
    JobAnswer,
    OtherLimits,
    offer_of,
    telling_limits,
    with_limit,
)
from rltuned.simulate.forecast.start_simulation import StartSimulation
from rltuned.simulate.forecast.submissions import Submissions
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.scenarios import SimulatedQueue
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Backfill, SimulationSettings

MONDAY = 1_800_000_000.0 - 1_800_000_000.0 % (7 * DAY) + 4 * DAY


def submissions(submit, gpus=1, run_time=HOUR, user="ann", partition=""):
    n = len(submit)
    whole = np.ones(n, dtype=np.int32)
    return Submissions(
        job_id=np.arange(1, n + 1),
        submit_time=np.sort(np.asarray(submit, dtype=np.float64)),
        user=Category.of([user] * n if isinstance(user, str) else user),
        partition=Category.of([partition] * n),
        gpu_type=Category.of([""] * n),
        nodes=whole,
        gpus=whole * np.int32(gpus),
        gpus_per_node=whole * np.int32(gpus),
        cpus=whole,
        mem=np.zeros(n),
        time_limit=np.full(n, 2 * run_time),
        expected=np.full(n, run_time),
        run_time=np.full(n, run_time),
    )


def strangers(n):
    """Each of another user, so that nobody's jobs are a batch."""
    return [f"u{k}" for k in range(n)]


# --- arrivals


def test_as_many_come_in_each_hour_of_the_day_as_came_before():
    rng = np.random.default_rng(1)
    busy = [day * DAY + hour * HOUR + at for day in range(28) for hour in (9, 10) for at in rng.uniform(0, HOUR, 12)]
    quiet = [day * DAY + hour * HOUR + at for day in range(28) for hour in (2, 20) for at in rng.uniform(0, HOUR, 1)]
    times = np.sort(np.array([*busy, *quiet])) + MONDAY
    now = MONDAY + 28 * DAY
    model = ArrivalModel.of(submissions(times, user=strangers(len(times))), now)
    found = [model.sample(scenario, DAY, 10_000)[0] for scenario in range(60)]
    per_hour = np.bincount(np.floor(np.concatenate(found) / HOUR).astype(int), minlength=24) / len(found)
    assert per_hour[[9, 10]] == pytest.approx([12, 12], rel=0.2)
    assert per_hour[2] < 2.5
    assert per_hour.sum() == pytest.approx(26, rel=0.15)


def test_weekends_are_as_quiet_as_they_were():
    rng = np.random.default_rng(2)
    times = np.sort([day * DAY + at for day in range(28) if day % 7 < 5 for at in rng.uniform(0, DAY, 60)]) + MONDAY
    now = MONDAY + 28 * DAY
    model = ArrivalModel.of(submissions(times, user=strangers(len(times))), now)
    week = np.concatenate([model.sample(scenario, 7 * DAY, 10_000)[0] for scenario in range(20)])
    days = np.bincount(np.floor(week / DAY).astype(int), minlength=7) / 20
    assert days[5:].max() < 0.25 * days[:5].min()


def test_what_comes_in_batches_comes_in_batches_again():
    starts = np.arange(0.0, 20 * DAY, 6 * HOUR)
    times = np.concatenate([start + np.arange(10) * 30.0 for start in starts]) + MONDAY
    users = [f"u{at}" for at in np.repeat(np.arange(len(starts)), 10)]
    model = ArrivalModel.of(submissions(times, user=users), MONDAY + 20 * DAY)
    come, rows = model.sample(0, 2 * DAY, 10_000)
    assert len(come) > 20
    assert (np.diff(come) < 31.0).mean() > 0.8
    assert (come > 0).all()
    assert (np.diff(come) >= 0).all()
    assert rows.max() < len(times)


def test_one_minute_later_the_same_jobs_come():
    times = np.sort(np.random.default_rng(3).uniform(0, 20 * DAY, 2000)) + MONDAY
    known = submissions(times, user=strangers(len(times)))
    now = MONDAY + 20 * DAY + 600.0
    before, after = (ArrivalModel.of(known, at).sample(1, 6 * HOUR, 500)[0] + at for at in (now, now + 60.0))
    shared = np.isin(np.round(before, 3), np.round(after, 3)).mean()
    assert shared > 0.9


def test_of_a_handful_of_jobs_nothing_is_learnt():
    assert ArrivalModel.of(submissions(MONDAY + np.arange(10.0)), MONDAY + DAY) is None


# --- the forecast


def test_with_certain_run_times_and_no_arrivals_it_says_what_the_simulator_does():
    compared = waiting = 0
    for seed in range(40):
        simulation = in_the_middle(seed, backfill=Backfill.EASY)
        if len(simulation.pending) < 2 or not shares_are_known(simulation):
            continue
        snapshot, rows, run = seen(simulation)
        found = StartSimulation(settings=simulation.settings)(StartRequest(snapshot, rows, run))
        keys = np.full(len(simulation.jobs), np.inf)
        keys[snapshot.jobs.job_id[rows] - 1] = np.arange(len(rows))
        pending = np.sort(simulation.pending)
        simulation.set_keys(pending, keys[pending])
        now = simulation.now
        simulation.run(FixedKeys(keys))
        wait = simulation.start[snapshot.jobs.job_id[rows] - 1] - now
        started = np.isfinite(wait)
        for column in found.waits.T:
            np.testing.assert_allclose(column[started], wait[started], atol=1e-6, err_msg=f"seed {seed}")
        assert np.isinf(found.waits[~started]).all()
        compared += 1
        waiting += int((wait[started] > 0).sum())
    assert compared >= 15
    assert waiting >= 50


def full(n=30, seed=4):
    """A cluster of 16 GPUs with much to do, by SAF."""
    rng = np.random.default_rng(seed)
    run = np.maximum(rng.lognormal(8.0, 1.0, n), 60.0)
    jobs = jobs_of(np.sort(rng.uniform(0, 50, n)), run, rng.choice([1, 2, 4, 8], n))
    simulation = Simulation(parse_shape("2x8"), jobs, given(2.0 * run, run))
    simulation.run(RuleRanker(by_name("saf")), until=60.0)
    return simulation


def request(simulation, spread=0.0, come=None):
    snapshot = simulation.snapshot(epoch=MONDAY + 28 * DAY)
    return StartRequest(
        snapshot, snapshot.jobs.pending, simulation.jobs.run_time[snapshot.jobs.job_id - 1], spread, come
    )


def test_small_jobs_that_come_make_the_large_ones_wait_longer():
    simulation = full()
    times = np.sort(np.random.default_rng(5).uniform(0, 28 * DAY, 4000)) + MONDAY
    alone = StartSimulation()(request(simulation))
    come = StartSimulation()(request(simulation, come=submissions(times, gpus=2, user=strangers(4000))))
    assert come.scenarios == 16
    delayed = come.waits[:, 1] / np.maximum(alone.waits[:, 1], 60.0)
    assert delayed[-5:].min() > 1.3
    assert (come.waits[:, 2] >= come.waits[:, 0]).all()


@pytest.mark.parametrize("impossible", [{"gpus": 9}, {"partition": "elsewhere"}], ids=str)
def test_what_arrives_and_fits_nowhere_delays_nobody(impossible):
    simulation = full()
    times = np.sort(np.random.default_rng(5).uniform(0, 28 * DAY, 4000)) + MONDAY
    asked = request(simulation, come=submissions(times, user=strangers(4000), **impossible))
    first = asked.snapshot.partitions[0]
    asked = replace(asked, snapshot=replace(asked.snapshot, partitions=(first, replace(first, name="other"))))
    np.testing.assert_allclose(StartSimulation()(asked).waits, StartSimulation()(request(simulation)).waits)


def test_uncertain_run_times_make_an_interval_and_the_same_request_the_same_one():
    asked = request(full(), spread=1.0)
    one, two = StartSimulation()(asked), StartSimulation()(asked)
    np.testing.assert_array_equal(one.waits, two.waits)
    late = one.waits[:, 1] > HOUR
    assert (one.waits[late, 2] > 1.2 * one.waits[late, 0]).mean() > 0.8


def test_time_that_runs_out_leaves_fewer_scenarios_and_too_little_of_it_none():
    asked = request(full(), spread=1.0)
    found = StartSimulation(seconds_left=running_out(0.03))(asked)
    assert 2 <= found.scenarios < 16
    assert StartSimulation(seconds_left=running_out(0.4))(asked) is None


def running_out(step):
    """A second that is over after 1 / step looks at the clock."""
    left = itertools.count(1.0, -step)
    return lambda: next(left)


def test_nobody_waits():
    simulation = full()
    assert StartSimulation()(replace(request(simulation), rows=np.zeros(0, dtype=np.intp))) is None


# --- jobs that nobody has submitted


def probe(gpus, limit, nodes=1, partition="batch"):
    return Probe(partition, nodes, gpus, 1, 0, limit)


def test_a_probe_starts_when_the_same_job_would_if_it_were_submitted():
    # Two nodes of 8 GPUs are full for 1,000 s; then one frees 4 GPUs, and at 3,000 s both are free.
    jobs = jobs_of([0.0, 0.0, 0.0], [1000.0, 3000.0, 3000.0], [4, 4, 8])
    simulation = Simulation(parse_shape("2x8"), jobs, given(jobs.run_time))
    simulation.run(RuleRanker(by_name("fifo")), until=0.0)
    snapshot = simulation.snapshot()
    name = snapshot.partitions[0].name
    probes = (probe(4, 60.0, partition=name), probe(8, 60.0, partition=name), probe(8, 60.0, 2, name), probe(9, 60.0))
    run = np.maximum(jobs.run_time[snapshot.jobs.job_id - 1], 1.0)
    found = StartSimulation()(StartRequest(snapshot, snapshot.jobs.pending, run, probes=probes))
    assert len(found) == 0
    median = found.probes[:, 1]
    assert 1000.0 <= median[0] <= 1130.0, "passes are every minute or two"
    assert 3000.0 <= median[1] <= 3130.0
    assert 3000.0 <= median[2] <= 3130.0
    assert np.isnan(median[3]), "no node has 9 GPUs"


def test_probes_are_left_out_when_the_time_is_over_and_jobs_never():
    asked = request(full(), spread=1.0)
    probes = probes_of(asked.snapshot)
    assert len(probes) > 10
    some = StartSimulation(seconds_left=running_out(0.008))(replace(asked, probes=probes))
    assert some.scenarios >= 2
    assert 0 < len(some.probes) < len(probes)


def test_a_smaller_probe_starts_no_later_and_probes_do_not_change_the_forecast():
    asked = request(full(), spread=1.0)
    probes = tuple(each for each in probes_of(asked.snapshot) if each.time_limit == HOUR and each.nodes == 1)
    assert [each.gpus for each in probes] == [1, 2, 4, 8]
    found = StartSimulation()(replace(asked, probes=probes))
    np.testing.assert_array_equal(found.waits, StartSimulation()(asked).waits)
    assert found.probes[0, 1] <= found.probes[-1, 1]
    assert found.probes[-1, 1] > 0


@pytest.mark.parametrize(
    ("asked", "covered"),
    [
        (("", 1, 4, 32, 1000, HOUR), True),
        (("gpu", 2, 2, 2, 0, 60.0), True),
        (("other", 1, 1, 1, 0, 60.0), False),
        (("", 3, 1, 1, 0, 60.0), False),
        (("", 1, 5, 1, 0, 60.0), False),
        (("", 1, 1, 33, 0, 60.0), False),
        (("", 1, 1, 1, 1001, 60.0), False),
        (("", 1, 1, 1, 0, HOUR + 1), False),
    ],
)
def test_a_probe_stands_for_jobs_that_ask_for_no_more(asked, covered):
    one = ProbeRecord("gpu", 2, 4, 32, 1000, HOUR, 0.0, 0.0, 0.0, 0.0)
    assert (offer_of(Asked(*asked), [one], 0).found is one) == covered


def test_with_a_longer_limit_a_job_that_nobody_has_submitted_starts_no_sooner():
    asked = request(backfilled(), spread=1.0)
    probes = tuple(each for each in probes_of(asked.snapshot) if each.nodes == 1)
    found = StartSimulation()(replace(asked, probes=probes)).probes[:, 1].reshape(-1, 6)
    assert [each.time_limit for each in probes[:6]] == sorted(each.time_limit for each in probes[:6])
    assert (np.diff(np.minimum(found, 4 * DAY), axis=1) >= -60.0).all()
    assert (found[:, -1] > found[:, 0]).any(), "limits matter in this queue"


# --- other time limits


def backfilled(seed=1, n=60):
    """A queue by submission, whose limits are 2 to 20 times the run times: backfill goes by them."""
    rng = np.random.default_rng(seed)
    run = np.maximum(rng.lognormal(8.5, 1.2, n), 60.0)
    jobs = jobs_of(np.sort(rng.uniform(0, 50, n)), run, rng.choice([1, 2, 4, 8], n))
    simulation = Simulation(parse_shape("4x8"), jobs, given(np.maximum(rng.choice([2, 5, 20], n) * run, 1800.0), run))
    simulation.run(RuleRanker(by_name("fifo")), until=60.0)
    return simulation


def others(asked, row, limit):
    """The forecast of one job, if it had been submitted with that limit."""
    jobs = asked.snapshot.jobs
    limits = jobs.time_limit.copy()
    limits[row] = limit
    changed = replace(asked, snapshot=replace(asked.snapshot, jobs=replace(jobs, time_limit=limits)))
    found = StartSimulation()(changed)
    return found.waits[found.rows.tolist().index(row)]


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_what_is_said_of_a_shorter_limit_is_what_the_forecast_says_of_a_job_that_has_it(spread, partitions):
    times = np.sort(np.random.default_rng(5).uniform(0, 28 * DAY, 4000)) + MONDAY
    compared = 0
    for seed in (1, 2):
        asked = request(backfilled(seed), spread, submissions(times, user=strangers(4000)))
        if partitions == 2:  # that have nodes in common
            first, jobs = asked.snapshot.partitions[0], asked.snapshot.jobs
            names = Category.of([("batch", "half")[row % 2] for row in range(len(jobs))])
            parts = (replace(first, name="batch"), replace(first, name="half", nodes=first.nodes[:2]))
            asked = replace(
                asked, snapshot=replace(asked.snapshot, partitions=parts, jobs=replace(jobs, partition=names))
            )
        found = StartSimulation()(asked)
        shorter, own = found.shorter, asked.snapshot.jobs.time_limit
        assert set(shorter.limit.tolist()) <= set(shorter.limits)
        rows = found.rows[shorter.at]
        for row, limit, waits in list(zip(rows, shorter.limit.tolist(), shorter.waits, strict=True))[::4]:
            assert limit < own[row]
            np.testing.assert_allclose(waits, others(asked, row, limit), err_msg=f"{seed}, {row}, {limit}")
            compared += 1
        # And of those that are not named it says nothing better.
        named = set(zip(rows.tolist(), shorter.limit.tolist(), strict=True))
        for at, row in list(enumerate(found.rows.tolist()))[::6]:
            if own[row] > 7200.0 and (row, 7200.0) not in named:
                assert others(asked, row, 7200.0)[1] > min(0.8 * found.waits[at, 1], found.waits[at, 1] - 1.0)
    assert compared >= 8


def test_a_shorter_limit_starts_no_later_than_a_longer_one_and_asking_changes_nothing(monkeypatch):
    asked = request(backfilled(), spread=1.0)
    found = StartSimulation()(asked)
    shorter, gained = found.shorter, 0
    for at in set(shorter.at.tolist()):
        waits = shorter.waits[shorter.at == at]
        assert (np.diff(shorter.limit[shorter.at == at]) > 0).all()
        assert (np.diff(waits, axis=0) >= 0).all()
        assert (waits <= found.waits[at]).all()
        gained += int((np.diff(waits[:, 1]) > 0).any())
    assert gained > 3
    starts = SimulatedQueue.starts

    def unasked(*of, **_shorter):
        return starts(*of)

    monkeypatch.setattr(SimulatedQueue, "starts", unasked)
    without = StartSimulation()(asked)
    np.testing.assert_array_equal(without.waits, found.waits)
    assert len(without.shorter.at) == 0


@pytest.mark.parametrize("backfill", [Backfill.NONE, Backfill.SLURM])
def test_where_nothing_is_backfilled_no_limit_starts_a_job_sooner_and_slurms_own_backfill_is_simulated_as_easy(
    backfill,
):
    asked = request(backfilled(), spread=1.0)
    found = StartSimulation(settings=SimulationSettings(backfill=backfill))(asked)
    assert (len(found.shorter.at) > 0) == (backfill is Backfill.SLURM)


JOB = JobAnswer(7, 0.0, (10_000.0, 30_000.0), 20_000.0, "3 jobs stand before it.", 5, "")
SOONER = (LimitRecord(1800.0, 0.0, 60.0, 300.0), LimitRecord(3600.0, 0.0, 4000.0, 9000.0))
GRID = (1800.0, 3600.0, 7200.0, 14_400.0)


@pytest.mark.parametrize(
    ("asked", "own", "limits", "sooner", "found", "meaning"),
    [
        (1800.0, 86_400.0, GRID, SOONER, SOONER[0], ""),
        (60.0, 86_400.0, GRID, SOONER, SOONER[0], ""),
        (1801.0, 86_400.0, GRID, SOONER, SOONER[1], ""),
        (1801.0, None, GRID, SOONER, SOONER[1], ""),
        (3700.0, 86_400.0, GRID, SOONER, None, "With up to 2.0 h it starts hardly sooner"),
        (20_000.0, 86_400.0, GRID, SOONER, None, "Between 4.0 h and its own limit none was simulated"),
        (86_400.0, 86_400.0, GRID, SOONER, None, "That is its own limit"),
        (90_000.0, 86_400.0, GRID, SOONER, None, "it starts no sooner with a longer one"),
        (600.0, 1200.0, GRID, (), None, "No shorter limit was simulated"),
        (600.0, 86_400.0, (), (), None, "No shorter limit was simulated"),
    ],
)
def test_the_answer_is_that_of_the_shortest_limit_that_covers_what_is_asked(asked, own, limits, sooner, found, meaning):
    answer = with_limit(JOB, asked, OtherLimits(own, limits, sooner))
    assert answer.found == found
    assert meaning in answer.meaning
    assert (answer.meaning == "") == (found is not None)


def test_of_a_job_of_which_nothing_is_forecast_that_is_what_is_said_and_beyond_the_horizon_a_limit_may_still_help():
    waits = JOB._replace(start=None, likely=None)
    assert with_limit(waits, 60.0, OtherLimits(None, GRID, ())).meaning == "3 jobs stand before it."
    assert with_limit(waits, 60.0, OtherLimits(None, GRID, SOONER)).found == SOONER[0]


def test_of_the_shorter_limits_those_are_told_that_gain_something_the_longest_first():
    no_better = LimitRecord(900.0, 0.0, 55.0, 300.0)
    assert telling_limits((no_better, *SOONER)) == [SOONER[1], SOONER[0]]
    assert telling_limits(()) == []

"""Whether jobs have really waited longer since a version came into force; reality is a simulation here."""

from dataclasses import replace

import numpy as np
import pytest
from unit.evaluate.small import jobs_of, settings

from rltuned.decide.rank.heuristics import by_name
from rltuned.lab.evaluate import live
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import parse_shape

DAY = 86_400.0
DAYS, EACH_DAY = 28, 100
ASKED = settings(estimates="noisy:1", policies=("saf",))
SHAPE = parse_shape("2x4")


class WrongWayRound:
    """SAF the wrong way round: the largest job first."""

    ages = at_once = False

    def __init__(self):
        self._rule = RuleRanker(by_name("saf"))

    def fixed(self, simulation):
        return -self._rule.fixed(simulation)

    def keys(self, simulation, rows):
        return -self._rule.keys(simulation, rows)


def four_weeks(seed=1):
    """Jobs of four weeks that a cluster of 2 × 4 GPUs can just keep up with: in bursts by day."""
    rng = np.random.default_rng(seed)
    n = DAYS * EACH_DAY
    at = np.sort(rng.integers(0, DAYS, n) * DAY + rng.uniform(8.0, 20.0, n) * 3600.0).round()
    run = np.minimum(np.maximum(rng.lognormal(7.0, 1.5, n).round(), 1.0), 40_000.0)
    return jobs_of(at - at[0], run, rng.choice([1, 1, 2, 4], n), user=[f"u{k}" for k in rng.integers(5, size=n)])


def lived(jobs, before, after, since):
    """The jobs with the waits of a cluster whose order is another one from `since` on. Its run times are known worse
    than the yardstick thinks.
    """
    (case,) = ready(replace(ASKED, seed=99), jobs, SHAPE, "", (Window(0, 0, len(jobs)),)).cases
    reality = contender("saf", ASKED).settings
    simulation = Simulation(case.shape, case.submitted, case.own_estimates(), reality, None, case.asked)
    simulation.run(before, until=since)
    if len(simulation.pending):
        simulation.set_keys(simulation.pending, after.fixed(simulation)[simulation.pending])
    simulation.run(after)
    return replace(jobs, wait_time=simulation.result().start - jobs.submit_time)


def rule(name):
    return RuleRanker(by_name(name))


def looked(jobs, since=14 * DAY):
    return live.look(ASKED, jobs, SHAPE, "", 0.0, since)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_order_that_is_the_wrong_way_round_is_found_and_one_that_stays_is_not(seed):
    jobs, since = four_weeks(seed), 14 * DAY
    bad = looked(lived(jobs, rule("saf"), WrongWayRound(), since))
    assert bad.worse, str(bad)
    assert bad.ratio > 1.5
    same = looked(lived(jobs, rule("saf"), rule("saf"), since))
    assert not same.worse, str(same)


def test_a_better_order_is_never_given_up():
    jobs = four_weeks()
    better = looked(lived(jobs, rule("fifo"), rule("saf"), 14 * DAY))
    assert better.ratio < 1.0
    assert not better.worse


def test_more_load_is_no_reason_where_the_order_is_the_same():
    jobs = four_weeks()
    at = np.where(jobs.submit_time < 14 * DAY, jobs.submit_time, 14 * DAY + 0.85 * (jobs.submit_time - 14 * DAY))
    busier = replace(jobs, submit_time=at)
    real = lived(busier, rule("saf"), rule("saf"), 14 * DAY)
    before, after = at < 14 * DAY, at >= 14 * DAY
    assert real.wait_time[after].mean() > 1.5 * real.wait_time[before].mean(), "or this shows nothing"
    assert not looked(real).worse


def test_with_few_jobs_or_without_waits_nothing_is_said():
    jobs = lived(four_weeks(), rule("saf"), WrongWayRound(), 14 * DAY)
    assert looked(jobs, since=27 * DAY) == live.UNKNOWN
    nobody = np.zeros(2_000)
    assert live.compare(nobody, nobody + 1.0, np.zeros(2_000, np.int32), 1_000, 1) == live.UNKNOWN
    assert not live.UNKNOWN.worse


@pytest.mark.parametrize("every", [200, 100, 30, 10])
@pytest.mark.parametrize("parked", [10 * DAY, 60 * DAY])
def test_one_users_parked_jobs_bring_no_version_down(every, parked):
    """They wait for a drained node, or for a limit of their own."""
    rng = np.random.default_rng(0)
    simulated, user = rng.exponential(3600.0, 2_000), rng.integers(1, 40, 2_000)
    real = simulated * rng.uniform(0.8, 1.2, 2_000)
    real[1_000::every], user[1_000::every] = parked, 0
    assert not live.compare(real, simulated, user, 1_000, 1).worse
    assert not live.compare(real[::-1], simulated[::-1], user[::-1], 1_000, 1).worse, "before, and gone"
    slower = np.where(np.arange(2_000) < 1_000, 1.0, 1.7)
    assert live.compare(simulated * slower, simulated, user, 1_000, 1).worse, "everybody waits longer"
    assert live.compare(simulated * slower, simulated, np.full(2_000, -1), 1_000, 1).worse, "nobody knows who"

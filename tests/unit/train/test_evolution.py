"""The evolution strategy: it finds what is known to be there, from nothing, and goes on where it was stopped."""

from dataclasses import replace

import numpy as np
import pytest
from unit.train.windows import starving, waiting_at_once, worth

from rltuned.core.objective import Objective
from rltuned.decide.rank.actor import MOMENT, Actor, plain_rule, with_network
from rltuned.decide.see.observation import STATE_COLUMNS
from rltuned.lab.train.evolution import Evolution, EvolutionSettings, Tried
from rltuned.lab.train.sampling import in_slurms_order, judge_pairs

USUAL = np.zeros(len(MOMENT)), np.ones(len(MOMENT))
URGENCY = STATE_COLUMNS.index("job_urgency")
SMALL = EvolutionSettings(pairs=6, windows=4, rate=0.1)


def evolved(actor: Actor, window, objective: str, steps: int) -> Actor:
    """After so many steps, each on new windows."""
    strategy, wanted = Evolution(actor, SMALL), Objective.parse(objective)
    for step in range(steps):
        moved = strategy.moved(np.random.default_rng(step))
        found = []
        for number in range(SMALL.windows):
            case = window(step * SMALL.windows + number)
            slurm = {name: 3.0 * value for name, value in in_slurms_order(case).items()}  # nothing is cut at `MOST`
            pairs, *_ = judge_pairs(case, slurm, replace(strategy.actor, objective=wanted), moved[number], 0.0)
            found.append(pairs)
        strategy.step(moved, found, 1.0 - step / steps)
    return strategy.mean


def test_from_nothing_it_finds_the_shortest_job_first_where_that_is_optimal():
    found = evolved(plain_rule("a"), waiting_at_once, "wait=1", 40)
    best = worth(plain_rule("sjf", requested_time=-1.0), "wait_mean", waiting_at_once)
    assert worth(plain_rule("a"), "wait_mean", waiting_at_once) > 1.1 * best
    assert worth(found, "wait_mean", waiting_at_once) == pytest.approx(best, rel=1e-3)


def test_it_finds_how_much_waiting_is_to_count_where_that_is_the_answer():
    rule = plain_rule("sjf", requested_time=-1.0)
    found = evolved(rule, starving, "tail=1", 40)
    assert found.weights["constant"][URGENCY] > 0.3
    assert worth(found, "wait_p99", starving) < 0.6 * worth(rule, "wait_p99", starving)


def said(moved, slopes, moments=None):
    """What windows of these slopes, (8,) each, would say of the pairs."""
    moments = [np.zeros((1, len(MOMENT)))] * len(moved) if moments is None else moments
    along = [0.1 * each @ slope for each, slope in zip(moved, slopes, strict=True)]
    return [
        Tried(moment, np.column_stack((1.0 + cost, 1.0 - cost))) for moment, cost in zip(moments, along, strict=True)
    ]


def test_a_step_moves_against_what_costs_and_says_how_clear_that_was():
    settings = EvolutionSettings(windows=50)
    strategy = Evolution(plain_rule("a"), settings)
    moved = strategy.moved(np.random.default_rng(1))
    slope = np.eye(8)[0] - np.eye(8)[2]
    clear = strategy.step(moved, said(moved, [slope] * 50), 1.0)
    now = strategy.actor.weights["constant"]
    assert now[0] < -0.01
    assert now[2] > 0.01
    noise = Evolution(plain_rule("a"), settings).step(
        moved, said(moved, np.random.default_rng(2).standard_normal((50, 8))), 1.0
    )
    assert clear > 3.0 * noise


def test_the_network_learns_what_each_moment_wants():
    actor = with_network(plain_rule("a"), *USUAL)
    strategy = Evolution(actor, EvolutionSettings(windows=20, rate=0.1))
    much, little = np.zeros(len(MOMENT)), np.zeros(len(MOMENT))
    much[MOMENT.index("backlog")], little[MOMENT.index("backlog")] = 1.0, -1.0
    wanted = [np.eye(8)[URGENCY] * sign for sign in (1.0, -1.0)] * 10
    for step in range(30):
        moved = strategy.moved(np.random.default_rng(step))
        strategy.step(moved, said(moved, wanted, [much[None], little[None]] * 10), 1.0)
    found = strategy.actor
    assert found.coefficients(much)[URGENCY] < found.coefficients(little)[URGENCY] - 0.6


def test_one_window_decides_no_step():
    strategy = Evolution(plain_rule("a"), EvolutionSettings(windows=10))
    moved = strategy.moved(np.random.default_rng(1))
    slopes = [np.eye(8)[0]] * 9 + [-1e6 * np.eye(8)[0]]
    strategy.step(moved, said(moved, slopes), 1.0)
    assert strategy.actor.weights["constant"][0] < 0.0


def test_a_strategy_with_the_same_state_takes_the_same_step():
    actor = with_network(plain_rule("a"), *USUAL)
    first, second = Evolution(actor, SMALL), Evolution(actor, SMALL)
    rng = np.random.default_rng(3)
    for step in range(3):
        moved = first.moved(np.random.default_rng(step))
        first.step(moved, said(moved, rng.standard_normal((SMALL.windows, 8))), 0.5)
    second.state = {name: value.copy() for name, value in first.state.items()}
    slopes = rng.standard_normal((SMALL.windows, 8))
    for one in (first, second):
        moved = one.moved(np.random.default_rng(9))
        one.step(moved, said(moved, slopes), 0.4)
    for mine, theirs in ((first.actor, second.actor), (first.mean, second.mean)):
        for name, value in mine.weights.items():
            np.testing.assert_array_equal(value, theirs.weights[name])

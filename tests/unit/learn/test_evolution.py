"""The evolution strategy: it finds what is known to be there, from nothing, and goes on where it was stopped."""

import numpy as np
import pytest
from unit.learn.windows import starving, waiting_at_once

from rltuned.learn.evolution import Evolution, EvolutionSettings
from rltuned.learn.sampling import in_slurms_order, judge
from rltuned.observe.observation import STATE_COLUMNS
from rltuned.policy.actor import Actor, plain_rule, with_network
from rltuned.policy.objective import Objective

URGENCY = STATE_COLUMNS.index("job_urgency")
SMALL = EvolutionSettings(pairs=6, windows=4)


def evolved(actor: Actor, columns, window, objective: str, steps: int) -> Actor:
    """After so many steps, each on new windows."""
    strategy, wanted = Evolution(actor, SMALL, columns), Objective.parse(objective)
    for step in range(steps):
        actors, drawn = strategy.tried(np.random.default_rng(step))
        costs = np.zeros(len(actors))
        for number in range(SMALL.windows):
            case = window(step * SMALL.windows + number)
            slurm = {name: 3.0 * value for name, value in in_slurms_order(case).items()}  # nothing is cut at `MOST`
            found = judge(case, slurm, [Actor(one.name, one.weights, wanted) for one in actors])
            costs += [one["objective"] for one in found]
        strategy.step(drawn, costs, 1.0 - step / steps)
    return strategy.actor


def worth(actor: Actor, metric: str, window, seeds=range(1000, 1006)) -> float:
    return float(np.mean([judge(window(seed), in_slurms_order(window(seed)), [actor])[0][metric] for seed in seeds]))


def test_from_nothing_it_finds_the_shortest_job_first_where_that_is_optimal():
    def window(seed):
        return waiting_at_once(seed=seed)

    found = evolved(plain_rule("a"), STATE_COLUMNS, window, "wait=1", 40)
    best, nothing = plain_rule("sjf", requested_time=-1.0), plain_rule("a")
    assert worth(nothing, "wait_mean", window) > 1.1 * worth(best, "wait_mean", window)
    assert worth(found, "wait_mean", window) == pytest.approx(worth(best, "wait_mean", window), rel=1e-3)


def test_it_finds_how_much_waiting_is_to_count_where_that_is_the_answer():
    rule = plain_rule("sjf", requested_time=-1.0)
    found = evolved(rule, ["job_urgency"], starving, "tail=1", 40)
    assert found.weights["constant"][URGENCY] > 0.3
    others = np.delete(found.weights["constant"], URGENCY)
    np.testing.assert_array_equal(others, np.delete(rule.weights["constant"], URGENCY))
    assert worth(found, "wait_p99", starving) < 0.6 * worth(rule, "wait_p99", starving)


def test_a_step_moves_against_what_costs_and_says_how_clear_that_was():
    actor = with_network(plain_rule("a"), 3, np.random.default_rng(0))
    strategy = Evolution(actor, EvolutionSettings(pairs=50))
    _, drawn = strategy.tried(np.random.default_rng(1))
    before = strategy.actor.weights["constant"][0]
    clear = strategy.step(
        drawn, np.concatenate((drawn[:, 0], -drawn[:, 0])), 1.0
    )  # the first number is all that counts
    assert strategy.actor.weights["constant"][0] < before
    noise = Evolution(actor, EvolutionSettings(pairs=50)).step(drawn, np.random.default_rng(2).random(100), 1.0)
    assert clear > 1.3 * noise


def test_columns_that_are_left_out_count_at_no_moment():
    actor = with_network(plain_rule("a", requested_time=-1.0), 3, np.random.default_rng(0))
    strategy = Evolution(actor, SMALL, ["job_urgency"])
    for one in strategy.tried(np.random.default_rng(1))[0]:
        assert (np.delete(one.weights["constant"], [0, URGENCY]) == 0).all()
        assert (np.delete(one.weights["change"], URGENCY, axis=1) == 0).all()
        assert one.weights["change"][:, URGENCY].all()


def test_a_strategy_with_the_same_state_takes_the_same_step():
    actor = with_network(plain_rule("a"), 2, np.random.default_rng(0))
    first, second = Evolution(actor, SMALL), Evolution(actor, SMALL)
    rng = np.random.default_rng(3)
    for step in range(3):
        first.step(first.tried(np.random.default_rng(step))[1], rng.random(12), 0.5)
    second.state = {name: value.copy() for name, value in first.state.items()}
    costs = rng.random(12)
    for one in (first, second):
        one.step(one.tried(np.random.default_rng(9))[1], costs, 0.4)
    for name, value in first.actor.weights.items():
        np.testing.assert_array_equal(value, second.actor.weights[name])

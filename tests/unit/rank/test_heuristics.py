"""The plain rules, the right way round."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from unit.rank.conftest import observation

from rltuned.core.errors import ConfigError
from rltuned.decide.rank import RULES, by_name

COLUMNS = ("run_time", "time_limit", "gpus", "wait", "submit", "priority")
SEEN = observation(jobs=(3, 3))


def queue(**columns):
    """Jobs that differ only in what is given."""
    n = len(next(iter(columns.values())))
    same = {"run_time": 60.0, "time_limit": 3600.0, "gpus": 1.0, "wait": 0.0, "submit": 0.0, "priority": 5000.0}
    given_or_same = {name: columns.get(name, [value] * n) for name, value in same.items()}
    columns = {name: np.array(values, dtype=np.float64) for name, values in given_or_same.items()}
    return replace(SEEN, rows=np.arange(n), **columns)


def order(name, seen):
    """Jobs from first to last; a list of lists where some tie."""
    scores = by_name(name).score(seen)
    return [np.flatnonzero(scores == value).tolist() for value in sorted(set(scores), reverse=True)]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("fifo", {"submit": [20.0, 0.0, 10.0], "run_time": [1.0, 9.0, 5.0]}, [[1], [2], [0]]),
        ("sjf", {"run_time": [600.0, 60.0, 6000.0], "gpus": [1.0, 64.0, 1.0]}, [[1], [0], [2]]),
        ("saf", {"run_time": [600.0, 100.0, 300.0], "gpus": [1.0, 8.0, 1.0]}, [[2], [0], [1]]),
        # CPU jobs by run time, as if they had one GPU.
        ("saf", {"run_time": [600.0, 100.0, 300.0], "gpus": [0.0, 0.0, 1.0]}, [[1], [2], [0]]),
        # A small job overtakes one that was submitted a little earlier: 5·64 + 870·3 = 2930, 1·1 + 870·3.04 = 2647.
        ("f1", {"run_time": [1e5, 10.0], "gpus": [64.0, 1.0], "submit": [1000.0, 1100.0]}, [[1], [0]]),
        ("multifactor", {"priority": [10.0, 900.0, 10.0], "submit": [5.0, 9.0, 0.0]}, [[1], [0, 2]]),
        # The longer wait, and at equal wait the shorter job.
        *((name, {"wait": [10.0, 3000.0, 400.0]}, [[1], [2], [0]]) for name in ("wfp3", "unicep")),
        *(
            (name, {"wait": [500.0] * 3, "run_time": [7200.0, 60.0, 600.0]}, [[1], [2], [0]])
            for name in ("wfp3", "unicep")
        ),
        # Ties go to the earlier submission, and equal jobs share a score.
        *((name, {"submit": [5.0, 0.0, 5.0]}, [[1], [0, 2]]) for name in ("sjf", "saf", "wfp3", "unicep")),
    ],
)
def test_each_rule_starts_with_the_job_that_it_is_named_after(name, columns, expected):
    assert order(name, queue(**columns)) == expected


@pytest.mark.parametrize(
    ("name", "columns", "keys"),
    [
        # (600/300)³·1 = 8, (600/600)³·16 = 16, (1200/300)³·2 = 128
        (
            "wfp3",
            {"wait": [600.0, 600.0, 1200.0], "run_time": [300.0, 600.0, 300.0], "gpus": [1.0, 16.0, 2.0]},
            [-8.0, -16.0, -128.0],
        ),
        # 600/(3·100) = 2, 600/(1·200) = 3, 900/(2·90) = 5
        (
            "unicep",
            {"wait": [600.0, 600.0, 900.0], "run_time": [100.0, 200.0, 90.0], "gpus": [8.0, 2.0, 4.0]},
            [-2.0, -3.0, -5.0],
        ),
        # Jobs of one GPU do not go before all others: one counts as two, and so does none. 100/100 = 1.
        ("unicep", {"wait": [100.0] * 3, "run_time": [100.0] * 3, "gpus": [1.0, 2.0, 0.0]}, [-1.0] * 3),
        # 2·4 + 870·0 (submitted first) = 8, 3·1 + 870·2 = 1743, 2·1 + 870·3 = 2612
        (
            "f1",
            {"run_time": [100.0, 1000.0, 100.0], "gpus": [4.0, 1.0, 1.0], "submit": [0.0, 100.0, 1000.0]},
            [8.0, 1743.0, 2612.0],
        ),
    ],
)
def test_the_keys_are_those_worked_out_by_hand(name, columns, keys):
    assert by_name(name).key(queue(**columns)).tolist() == pytest.approx(keys)


@pytest.mark.parametrize("name", sorted(RULES))
def test_only_the_rules_that_say_so_change_an_order_by_time_alone(name):
    rng = np.random.default_rng(4)
    now = queue(
        run_time=rng.lognormal(6, 2, 60) + 1,
        wait=rng.uniform(0, 9e4, 60),
        gpus=rng.integers(0, 9, 60),
        submit=range(60),
    )
    later = replace(now, wait=now.wait + 1e6)
    if name != "multifactor":  # its priorities come from Slurm, and age there
        assert np.array_equal(by_name(name).score(now), by_name(name).score(later)) != RULES[name].ages


@st.composite
def queues(draw):
    """Whatever an observation may hold: run times from a second to a century, waits from nothing, no GPU to a
    million."""
    n = draw(st.integers(0, 8))

    def column(low, high):
        return draw(arrays(np.float64, n, elements=st.floats(low, high)))

    century = 100 * 365 * 86400.0
    return queue(
        run_time=column(1.0, century),
        gpus=np.floor(column(0.0, 1e6)),
        wait=column(0.0, century),
        submit=column(0.0, century),
        priority=np.floor(column(0.0, 2.0**32)),
    )


@pytest.mark.parametrize("name", sorted(RULES))
@given(seen=queues(), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_keys_are_finite_and_scores_move_with_their_jobs(name, seen, seed):
    assert np.isfinite(by_name(name).key(seen)).all()
    shuffled = np.random.default_rng(seed).permutation(len(seen.wait))
    moved = replace(seen, **{column: getattr(seen, column)[shuffled] for column in COLUMNS})
    assert np.array_equal(by_name(name).score(seen)[shuffled], by_name(name).score(moved))


def test_an_unknown_rule_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"no rule 'lifo'; there are f1, fifo, multifactor, saf, sjf, unicep, wfp3$"):
        by_name("lifo")

"""GLPK behind its door: limits, outcomes, wrong models, memory."""

import dataclasses

import numpy as np
import pytest
import swiglpk as glpk
from unit.place.instances import random_problem

from rltuned.core.errors import PlacementError
from rltuned.decide.place.integer_program import IntegerProgram, formulate
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.place.solve import solve
from rltuned.decide.place.ways import enumerate_ways


def _ways(seed=3, jobs=24, nodes=10):
    return enumerate_ways(random_problem(np.random.default_rng(seed), jobs, nodes))


def _knapsack():
    """max 5a + 4b + 3c, 2a + 3b + c ≤ 5, 4a + b + 2c ≤ 11, binary: 9 at a = b = 1."""
    return IntegerProgram(
        row=np.array([0, 0, 0, 1, 1, 1]),
        column=np.array([0, 1, 2, 0, 1, 2]),
        value=np.array([2.0, 3.0, 1.0, 4.0, 1.0, 2.0]),
        rhs=np.array([5.0, 11.0]),
        objective=np.array([5.0, 4.0, 3.0]),
        upper=np.ones(3),
        integer=np.ones(3, dtype=np.bool_),
        patterns=3,
    )


def _blocks():
    """Blocks of GLPK's memory in use."""
    count = glpk.intArray(1)
    glpk.glp_mem_usage(count.cast(), None, None, None)
    return count[0]


def test_a_textbook_knapsack_has_its_textbook_answer():
    solved = solve(_knapsack(), 5.0, 0.0)
    assert solved.outcome is SolveOutcome.OPTIMAL
    assert solved.objective == pytest.approx(9.0)
    assert solved.counts.tolist() == [1, 1, 0]


def test_without_time_there_is_no_solution_and_the_outcome_says_so():
    ways = enumerate_ways(random_problem(np.random.default_rng(0), 200, 100))
    solved = solve(formulate(ways), 1e-6, 0.0)
    assert solved.outcome is SolveOutcome.TIMEOUT
    assert solved.counts is None


def test_a_known_solution_within_the_gap_ends_the_search():
    known = solve(_knapsack(), 5.0, 0.5, 8.0)
    assert (known.outcome, known.counts) == (SolveOutcome.OPTIMAL, None)
    assert solve(_knapsack(), 5.0, 0.0, 8.0).counts.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"value": np.array([2.0, np.nan, 1.0, 4.0, 1.0, 2.0])}, "not finite"),
        ({"objective": np.array([5.0, np.inf, 3.0])}, "not finite"),
        ({"column": np.array([0, 1, 3, 0, 1, 2])}, "outside the matrix"),
        ({"row": np.array([0, 0, 0, 1, 1, -1])}, "outside the matrix"),
        ({"column": np.array([0, 0, 2, 0, 1, 2])}, "share a cell"),
        ({"upper": np.array([1.0, -1.0, 1.0])}, "negative"),
    ],
)
def test_a_model_that_would_make_glpk_end_the_process_is_refused(changes, reason):
    with pytest.raises(PlacementError, match=reason):
        solve(dataclasses.replace(_knapsack(), **changes), 1.0, 0.0)


def test_a_model_without_a_solution_is_an_error_and_not_a_crash():
    solved = solve(dataclasses.replace(_knapsack(), rhs=np.array([-1.0, 11.0])), 1.0, 0.0)
    assert (solved.outcome, solved.counts) == (SolveOutcome.ERROR, None)


def test_memory_is_freed_on_every_path():
    model = formulate(_ways())
    solve(model, 5.0, 0.0)
    before = _blocks()
    solve(model, 5.0, 0.0)
    solve(model, 1e-6, 0.0)
    solve(dataclasses.replace(model, rhs=model.rhs - 1e6), 1.0, 0.0)
    solve(model, 5.0, 1.0, 1e9)
    assert _blocks() == before

"""swiglpk on grouped matrices against CVXPY on the plain model, and both against trying everything."""

import itertools
import os

import numpy as np
import pytest
from unit.place.instances import random_problem
from unit.place.proof import verify
from unit.place.specification import Shape, Specification

from rltuned.decide.place.integer_program import formulate
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.place.placing import choose, concrete, place, worth
from rltuned.decide.place.problem import Placement
from rltuned.decide.place.solve import solve
from rltuned.decide.place.ways import WaySet, enumerate_ways

INSTANCES = int(os.environ.get("RLTUNED_TEST_PLACEMENT_INSTANCES", "200"))
JOBS, NODES, CHOICES = 5, 4, 64


def test_glpk_and_the_cvxpy_specification_agree_on_random_instances():
    specification = Specification(Shape(jobs=JOBS, choices=CHOICES, nodes=NODES, types=2))
    compared, binding = 0, 0
    seed = 0
    while compared < INSTANCES:
        rng = np.random.default_rng(seed)
        seed += 1
        ways = enumerate_ways(random_problem(rng, int(rng.integers(1, JOBS + 1)), NODES))
        columns = sum(len(ways.classes.jobs[c]) for c in ways.columns.job_class)
        if not 0 < columns <= CHOICES:
            continue
        solved = solve(formulate(ways), 20.0, 0.0)
        assert solved.outcome is SolveOutcome.OPTIMAL, f"seed {seed - 1}: {solved}"
        expected = specification.optimum(ways)
        assert solved.objective == pytest.approx(expected, rel=1e-6, abs=1e-6), f"seed {seed - 1}"
        compared += 1
        binding += expected > worth(ways, ways.greedy) + 1e-6
    # The comparison means something only where jobs stand in each other's way.
    assert binding > INSTANCES / 20


def _try_everything(ways: WaySet) -> float:
    problem, columns = ways.problem, ways.columns
    options = [[-1, *np.flatnonzero(columns.job_class == c).tolist()] for c in ways.classes.job_of]
    best = -np.inf
    for choice in itertools.product(*options):
        chosen = np.array(choice, dtype=np.intp)
        value = worth(ways, chosen)
        if value <= best:
            continue
        try:
            named = concrete(ways, chosen)
        except IndexError:
            continue  # more whole nodes than there are
        if not verify(problem, Placement(SolveOutcome.OPTIMAL, named, value)):
            best = value
    return best


def test_no_choice_of_ways_that_fits_beats_the_solution():
    improved = 0
    for seed in range(120):
        ways = enumerate_ways(random_problem(np.random.default_rng(10_000 + seed), 3, 3))
        if not ways.columns.patterns:
            continue
        placed = place(ways.problem, 20.0, 0.0)
        assert placed.objective == pytest.approx(_try_everything(ways), abs=1e-6), f"seed {seed}"
        improved += placed.objective > worth(ways, ways.greedy)
    assert improved > 10


def test_equal_jobs_in_one_class_are_worth_what_they_are_worth_one_by_one():
    grouped = 0
    for seed in range(200):
        problem = random_problem(np.random.default_rng(20_000 + seed), 6, 3, distinct=False)
        ways = enumerate_ways(problem)
        if not ways.columns.patterns:
            continue
        solved = solve(formulate(ways), 20.0, 0.0)
        assert solved.counts is not None
        assert worth(ways, choose(ways, solved.counts)) == pytest.approx(solved.objective, abs=1e-6)
        grouped += len(ways.classes.jobs) < len(problem)
    assert grouped > 20

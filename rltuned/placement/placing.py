"""Batches → ways → model → solver → mapping: one call."""

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.config import PlacementSection
from rltuned.placement.integer_program import formulate
from rltuned.placement.mapping import choose, concrete, worth
from rltuned.placement.placement_values import Placement, PlacementProblem, SolveOutcome
from rltuned.placement.rounding import round_relaxation
from rltuned.placement.solve import solve
from rltuned.placement.ways import enumerate_ways


def place(problem: PlacementProblem, settings: PlacementSection) -> Placement:
    """Place those of the problem's jobs that can start now; the better of the solver's and the greedy solution.

    Uses `settings.time_limit` (s, of the solver alone) and `settings.gap`.

    Raises:
        PlacementError: the problem is stated wrongly. Never for one that has no solution.
    """
    problem.validate()
    if len(problem) == 0:
        return _nothing(SolveOutcome.OPTIMAL, "no jobs to place")
    if len(problem.free) == 0:
        return _nothing(SolveOutcome.INFEASIBLE, "no nodes to place jobs on")
    ways = enumerate_ways(problem)
    if not ways.columns.patterns:
        return _nothing(SolveOutcome.INFEASIBLE, "no job can start now")
    model = formulate(ways)

    greedy = np.bincount(ways.greedy[ways.greedy >= 0], minlength=model.patterns).astype(np.int64)
    baseline = worth(ways, ways.greedy)

    def rounding(relaxed: Floats) -> tuple[npt.NDArray[np.int64], float]:
        counts = round_relaxation(ways, relaxed)
        value = worth(ways, choose(ways, counts))
        return (counts, value) if value > baseline else (greedy, baseline)

    solved = solve(model, settings.time_limit, settings.gap, rounding)
    chosen, objective = ways.greedy, baseline
    if solved.counts is not None:
        found = choose(ways, solved.counts)
        value = worth(ways, found)
        if value > baseline:
            chosen, objective = found, value
    return Placement(
        outcome=solved.outcome,
        ways=concrete(ways, chosen),
        objective=objective,
        bound=max(solved.bound, objective),
        message=solved.message,
        greedy=chosen is ways.greedy,
    )


def _nothing(outcome: SolveOutcome, message: str) -> Placement:
    return Placement(outcome, (), 0.0, 0.0, message)

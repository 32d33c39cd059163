"""Problem → ways → model → solver → named nodes, and which jobs Slurm is told to isolate (docs/placement.md)."""

import numpy as np

from rltuned.cluster.tables import Bools
from rltuned.config import PlacementSection
from rltuned.placement.choices import choose, concrete, worth
from rltuned.placement.integer_program import formulate
from rltuned.placement.placement_values import Kind, Placement, PlacementProblem, SolveOutcome
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
        return Placement(SolveOutcome.OPTIMAL, (), 0.0)
    if len(problem.free) == 0:
        return Placement(SolveOutcome.INFEASIBLE, (), 0.0)
    ways = enumerate_ways(problem)
    if not ways.columns.patterns:
        return Placement(SolveOutcome.INFEASIBLE, (), 0.0)
    chosen, objective = ways.greedy, worth(ways, ways.greedy)
    solved = solve(formulate(ways), settings.time_limit, settings.gap, objective)
    if solved.counts is not None:
        found = choose(ways, solved.counts)
        value = worth(ways, found)
        if value > objective:
            chosen, objective = found, value
    return Placement(solved.outcome, concrete(ways, chosen), objective)


def isolated(placement: Placement, problem: PlacementProblem, asleep: Bools | None = None) -> tuple[int, ...]:
    """Jobs planned to spread onto idle nodes: candidates of OverSubscribe=NO, in rank order.

    One-way in Slurm, and not free: a NO job waits until a whole node is idle and keeps everybody else off it. The
    caller still has to check that the job's value is the default and its partition allows it.

    A job planned for a node that is asleep (M,) is left to Slurm: it shares a node that is up before it wakes another,
    and an isolated job would wait minutes for the node to come up (measured).
    """
    found: list[int] = []
    for way in placement.ways:
        nodes = np.array(way.nodes, dtype=np.intp)
        if way.kind is not Kind.SPREAD or (asleep is not None and asleep[nodes].any()):
            continue
        # A job that is exclusive already has what NO would give it.
        if problem.idle[nodes].all() and not problem.exclusive[way.job]:
            found.append(way.job)
    return tuple(found)

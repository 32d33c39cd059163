"""Problem → ways → model → solver → named nodes, and which jobs Slurm is told to isolate (decision 0020)."""

from typing import Final

import numpy as np

from rltuned.core.tables import Bools, Floats, Ints, Rows
from rltuned.decide.place.integer_program import formulate
from rltuned.decide.place.outcome import PlacementKind, SolveOutcome
from rltuned.decide.place.problem import Placement, PlacementProblem, Way
from rltuned.decide.place.solve import solve
from rltuned.decide.place.ways import CROWD, CROWDING, WaySet, enumerate_ways

SECONDS: Final = 0.5  # that the solver may take; the best solution so far counts
GAP: Final = 0.01  # relative, at which it may stop


def place(problem: PlacementProblem, seconds: float = SECONDS, gap: float = GAP) -> Placement:
    """Place those of the problem's jobs that can start now; the better of the solver's and the greedy solution."""
    if len(problem) == 0:
        return Placement(SolveOutcome.OPTIMAL, (), 0.0)
    if len(problem.free) == 0:
        return Placement(SolveOutcome.INFEASIBLE, (), 0.0)
    ways = enumerate_ways(problem)
    if not ways.columns.patterns:
        return Placement(SolveOutcome.INFEASIBLE, (), 0.0)
    chosen, objective = ways.greedy, worth(ways, ways.greedy)
    solved = solve(formulate(ways), seconds, gap, objective)
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
        if way.kind is not PlacementKind.SPREAD or (asleep is not None and asleep[nodes].any()):
            continue
        # A job that is exclusive already has what NO would give it.
        if problem.idle[nodes].all() and not problem.exclusive[way.job]:
            found.append(way.job)
    return tuple(found)


# --- from counts of patterns back to jobs and nodes, and what a choice is worth


def choose(ways: WaySet, counts: Ints) -> Rows:
    """(K,) pattern of each job, −1 none: the best-ranked jobs of a class get one."""
    chosen = np.full(len(ways.problem), -1, dtype=np.intp)
    columns = ways.columns
    used = np.flatnonzero(counts > 0)
    order = used[np.lexsort((used, columns.job_class[used]))]
    repeated = np.repeat(order, counts[order])
    classes = columns.job_class[repeated]
    for c in np.unique(classes).tolist():
        mine = repeated[classes == c]
        chosen[ways.classes.jobs[c][: len(mine)]] = mine
    return chosen


def crowding(ways: WaySet, chosen: Rows) -> Floats:
    """(M,) what each node's crowding by planned jobs costs."""
    columns, problem = ways.columns, ways.problem
    counts = np.bincount(chosen[chosen >= 0], minlength=len(columns.patterns))[columns.part_pattern]
    totals = np.maximum(problem.total[:, -2:], 1.0)
    share = np.zeros_like(totals)
    np.add.at(share, columns.part_node, columns.part_use[:, -3:-1] * counts[:, None])
    over = np.maximum((share / totals).max(axis=1, initial=0.0) - CROWD, 0.0)
    return np.asarray(CROWDING * problem.node_sizes * over)


def worth(ways: WaySet, chosen: Rows) -> float:
    """The objective of a choice, straight from its definition (decision 0020), job by job."""
    columns, problem = ways.columns, ways.problem
    jobs = np.flatnonzero(chosen >= 0)
    pattern = chosen[jobs]
    value = problem.weight[jobs] * problem.size[jobs]
    return float((value - columns.cost[pattern]).sum() - crowding(ways, chosen).sum())


def concrete(ways: WaySet, chosen: Rows) -> tuple[Way, ...]:
    """Name the nodes: shared ones are named already, whole ones come from the end of their class, best rank first."""
    columns, classes, problem = ways.columns, ways.classes, ways.problem
    taken = np.zeros(len(problem.free), dtype=np.bool_)
    counts = np.bincount(chosen[chosen >= 0], minlength=len(columns.patterns))
    taken[columns.part_node[counts[columns.part_pattern] > 0]] = True
    left = {
        n: [int(row) for row in classes.nodes[n] if not taken[row]] for n in np.unique(columns.token_class).tolist()
    }
    result = []
    for k in np.flatnonzero(chosen >= 0).tolist():
        pattern = columns.patterns[chosen[k]]
        spots = sorted([*pattern.parts, *((left[n].pop(), gpus) for n, gpus in pattern.tokens)])
        nodes, gpus = zip(*spots, strict=True)
        result.append(Way(k, pattern.kind, nodes, gpus, pattern.gpu_type))
    return tuple(result)

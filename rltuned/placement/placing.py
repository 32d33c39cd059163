"""Placing: ways → model → solver → whole solution → nodes by name; and which jobs Slurm is told to isolate."""

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Floats
from rltuned.config import PlacementSection
from rltuned.placement.base import Kind, Placement, PlacementProblem, SolveOutcome, Way
from rltuned.placement.model import formulate, node_sizes
from rltuned.placement.solve import solve
from rltuned.placement.ways import CROWD, CROWDING, WaySet, enumerate_ways

Rows = npt.NDArray[np.intp]


def place(problem: PlacementProblem, settings: PlacementSection) -> Placement:
    """Place those of the problem's jobs that can start now; the better of the solver's and the greedy solution.

    Uses `settings.time_limit` (s, of the solver alone) and `settings.gap`.

    Raises:
        PlacementError: the problem is stated wrongly. Never for one that has no solution.
    """
    problem.validate()
    if len(problem) == 0:
        return Placement(SolveOutcome.OPTIMAL, (), 0.0, 0.0, "no jobs to place")
    if len(problem.free) == 0:
        return Placement(SolveOutcome.INFEASIBLE, (), 0.0, 0.0, "no nodes to place jobs on")
    ways = enumerate_ways(problem)
    if not ways.columns.patterns:
        return Placement(SolveOutcome.INFEASIBLE, (), 0.0, 0.0, "no job can start now")
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


def choose(ways: WaySet, counts: npt.NDArray[np.int64]) -> Rows:
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
    depth = problem.free.shape[1]
    counts = np.bincount(chosen[chosen >= 0], minlength=len(columns.patterns))[columns.part_pattern]
    totals = np.maximum(np.stack([problem.total_cpus, problem.total_mem], axis=1), 1.0)
    share = np.zeros_like(totals)
    np.add.at(share, columns.part_node, columns.part_use[:, depth - 3 : depth - 1] * counts[:, None])
    over = np.maximum((share / totals).max(axis=1, initial=0.0) - CROWD, 0.0)
    return np.asarray(CROWDING * node_sizes(problem) * over)


def worth(ways: WaySet, chosen: Rows) -> float:
    """The objective of a choice, straight from its definition (docs/placement.md), job by job."""
    columns, problem = ways.columns, ways.problem
    jobs = np.flatnonzero(chosen >= 0)
    pattern = chosen[jobs]
    value = problem.weight[jobs] * problem.size[jobs]
    return float((value - columns.cost[pattern]).sum() - crowding(ways, chosen).sum())


def concrete(ways: WaySet, chosen: Rows) -> tuple[Way, ...]:
    """Name the nodes: shared ones are named already, whole ones come from the end of their class, best rank first."""
    columns = ways.columns
    jobs = np.flatnonzero(chosen >= 0)
    taken = np.zeros(len(ways.problem.free), dtype=np.bool_)
    taken[columns.part_node[np.isin(columns.part_pattern, chosen[jobs])]] = True
    left = {n: rows[~taken[rows]].tolist() for n, rows in enumerate(ways.classes.nodes)}
    result = []
    for k, j in zip(jobs.tolist(), chosen[jobs].tolist(), strict=True):
        pattern = columns.patterns[j]
        whole = pattern.kind is Kind.SPREAD
        nodes = [left[n].pop() for n in pattern.places] if whole else pattern.places
        spots = sorted(zip(nodes, pattern.gpus, strict=True))
        gpus = tuple(gpus for _, gpus in spots)
        result.append(Way(k, pattern.kind, tuple(node for node, _ in spots), gpus, pattern.gpu_type))
    return tuple(result)


class _Room:
    """What is left on the nodes while patterns are taken."""

    def __init__(self, ways: WaySet) -> None:
        self._columns = ways.columns
        problem, classes = ways.problem, ways.classes
        self._left = problem.free.copy()
        self._node_of = classes.node_of
        self._free_nodes = np.array([len(rows) for rows in classes.nodes])
        self._shared = np.zeros(len(problem.free), dtype=np.bool_)
        count = len(ways.columns.patterns)
        self._parts = np.searchsorted(ways.columns.part_pattern, np.arange(count + 1))
        self._tokens = np.searchsorted(ways.columns.token_pattern, np.arange(count + 1))

    def take(self, j: int) -> bool:
        """Take pattern `j` once more, if it fits."""
        columns = self._columns
        parts = slice(self._parts[j], self._parts[j + 1])
        nodes, use = columns.part_node[parts], columns.part_use[parts]
        if np.any(self._left[nodes] < use * (1 - 1e-12)):
            return False
        tokens = columns.token_class[self._tokens[j] : self._tokens[j + 1]]
        need = self._node_of[nodes[~self._shared[nodes]]]
        need = np.concatenate((tokens, need)) if len(tokens) else need
        if len(need):
            counts = np.bincount(need)
            if np.any(counts > self._free_nodes[: len(counts)]):
                return False
            self._free_nodes[: len(counts)] -= counts
        self._left[nodes] -= use
        self._shared[nodes] = True
        return True


def round_relaxation(ways: WaySet, relaxed: Floats) -> npt.NDArray[np.int64]:
    """(P,) counts of patterns: a feasible choice near `relaxed` (P,), never leaving out a job that one of its ways
    fits.

    Whole parts first, then fractions from the largest down, then, in rank order, whatever way of an unplaced job is
    worth most and still fits. Deterministic.
    """
    columns, classes, problem = ways.columns, ways.classes, ways.problem
    room = _Room(ways)
    counts = np.zeros(len(columns.patterns), dtype=np.int64)
    left = np.array([len(jobs) for jobs in classes.jobs])
    first = classes.first_job[columns.job_class]
    net = problem.weight[first] * problem.size[first] - columns.cost
    relaxed = np.where(net > 0, relaxed, 0.0)
    liked = np.flatnonzero(relaxed > 1e-6)
    whole = np.floor(relaxed + 1e-6).astype(np.int64)
    for j in liked[np.lexsort((liked, -net[liked], -whole[liked]))].tolist():
        for _ in range(min(int(whole[j]), int(left[columns.job_class[j]]))):
            if room.take(j):
                counts[j] += 1
                left[columns.job_class[j]] -= 1
    part = relaxed - whole
    for j in liked[np.lexsort((liked, -net[liked], -np.round(part[liked], 6)))].tolist():
        if part[j] > 1e-6 and left[columns.job_class[j]] > 0 and room.take(j):
            counts[j] += 1
            left[columns.job_class[j]] -= 1
    order = np.lexsort((np.arange(len(net)), -net, first))
    for j in order[(left[columns.job_class[order]] > 0) & (net[order] > 0)].tolist():
        while left[columns.job_class[j]] > 0 and room.take(j):
            counts[j] += 1
            left[columns.job_class[j]] -= 1
    return counts

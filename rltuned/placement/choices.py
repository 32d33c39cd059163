"""Choices: from counts of patterns back to jobs and nodes, what a choice is worth, and a first one by rounding."""

import numpy as np

from rltuned.cluster.tables import Floats, Ints, Rows
from rltuned.placement.placement_values import Way
from rltuned.placement.ways import CROWD, CROWDING, WaySet


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
    """The objective of a choice, straight from its definition (docs/placement.md), job by job."""
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
        shares = [problem.share(k, gpus) for _, gpus in spots]
        result.append(
            Way(
                job=k,
                kind=pattern.kind,
                nodes=tuple(node for node, _ in spots),
                gpus=tuple(gpus for _, gpus in spots),
                gpu_type=pattern.gpu_type,
                cpus=tuple(cpus for cpus, _ in shares),
                mem=tuple(mem for _, mem in shares),
            )
        )
    return tuple(result)


class _Room:
    """What is left on the nodes while patterns are taken: none is taken that the nodes cannot carry out."""

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


def round_relaxation(ways: WaySet, relaxed: Floats) -> Ints:
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

    def take(j: int, times: int) -> None:
        """Pattern `j` so many times, as far as there are jobs and room."""
        c = columns.job_class[j]
        for _ in range(min(times, int(left[c]))):
            if not room.take(j):
                return
            counts[j] += 1
            left[c] -= 1

    for j in liked[np.lexsort((liked, -net[liked], -whole[liked]))].tolist():
        take(j, int(whole[j]))
    part = relaxed - whole
    for j in liked[np.lexsort((liked, -net[liked], -np.round(part[liked], 6)))].tolist():
        take(j, int(part[j] > 1e-6))
    order = np.lexsort((np.arange(len(net)), -net, first))
    for j in order[(left[columns.job_class[order]] > 0) & (net[order] > 0)].tolist():
        take(j, len(problem))
    return counts

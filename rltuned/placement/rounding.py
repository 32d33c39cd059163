"""From the root relaxation to a whole solution: what the relaxation likes best first, as long as it fits."""

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.placement.ways import WaySet


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

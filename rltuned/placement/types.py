"""Which GPU types a job is better off without: comparative advantage on clusters of several types.

List scheduling of the queue on what is free and on what running jobs are expected to give back, with the run time that
each job is expected to have on each type. A job goes where its end, and what it costs those behind it, come first.
Types on which that is much later are avoided, also where they have room now: the job waits for a better one. The number
of jobs behind on each type is not known before they are placed, so the whole is done `ROUNDS` times.
"""

from bisect import insort
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Floats, Snapshot
from rltuned.placement.base import PlacementProblem

ROUNDS: Final = 3
MUCH_LATER: Final = 2.0
"""A type is avoided where a job's cost there is more than so many times that of its best type. Smaller: expected run
times err by as much, and a job that waits for nothing costs more than one that runs a little slower (measured)."""
LEAST_LEFT: Final = 60.0
"""Seconds that a running job is expected to go on at least."""

_End = tuple[float, npt.NDArray[np.intp], npt.NDArray[np.int64]]
"""When a job gives back which GPUs of which nodes."""


@dataclass(frozen=True)
class Running:
    """What running jobs hold, and until when."""

    ends: tuple[_End, ...]
    """In order of time, seconds from now."""


def running(snapshot: Snapshot, by_type: Floats) -> Running:
    """The running jobs of a snapshot; `by_type`: (N, T) expected run times of all its jobs on each type, NaN: unknown.

    A job that has run for longer than expected is expected to go on for as long again, up to its limit.
    """
    jobs, types = snapshot.jobs, _node_types(snapshot.nodes.gpus)
    ends: list[_End] = []
    for row in jobs.running.tolist():
        nodes = np.asarray(jobs.nodes_of(row), dtype=np.intp)
        gpus = int(jobs.gpus[row])
        if not len(nodes) or not gpus or types[nodes[0]] < 0:
            continue
        ran = max(snapshot.time - float(jobs.start_time[row]), 0.0)
        limit = float(jobs.end_time[row]) - snapshot.time
        expected = float(by_type[row, types[nodes[0]]])
        left = expected - ran if expected > ran else max(ran, LEAST_LEFT)
        left = limit if np.isnan(left) else min(left, limit)
        each = np.full(len(nodes), gpus // len(nodes), dtype=np.int64)
        each[: gpus % len(nodes)] += 1
        if np.isfinite(left):
            ends.append((max(left, LEAST_LEFT), nodes, each))
    return Running(tuple(sorted(ends, key=itemgetter(0))))


def avoided(problem: PlacementProblem, by_type: Floats, held: Running, usable: Bools | None = None) -> Bools:
    """(K, M) nodes that a job could use and is better off without, because of the type of their GPUs.

    Nothing where there is one type, or where a job names one. At least one type that can hold the job is left to it.

    Args:
        problem: of K jobs in rank order on M nodes.
        by_type: (K, T) expected run times, seconds; a row of NaN: nothing is known of the job.
        held: by running jobs.
        usable: (M,) nodes that may take a new job; the GPUs of the others serve nobody who waits. None: all.
    """
    types = _node_types(problem.total_gpus)
    none = np.zeros(problem.eligible.shape, dtype=np.bool_)
    if len(np.unique(types[types >= 0])) < 2 or (problem.total_gpus > 0).sum(axis=1).max(initial=0) > 1:
        return none
    makers = [np.flatnonzero(types == t) for t in range(problem.total_gpus.shape[1])]
    offered = problem.total_gpus if usable is None else problem.total_gpus * usable[:, None]
    total = np.array([offered[nodes].sum() for nodes in makers], dtype=np.float64)
    price = np.zeros(by_type.shape)
    best: tuple[float, Floats] = (np.inf, np.zeros(by_type.shape))
    for _ in range(ROUNDS):
        costs, chosen, ends = _round(problem, by_type, held, makers, price)
        if ends < best[0]:
            best = ends, costs
        behind = np.zeros(len(makers))
        for k in range(len(problem) - 1, -1, -1):
            price[k] = behind / np.maximum(total, 1.0)
            if chosen[k] >= 0:
                behind[chosen[k]] += 1.0
    costs = best[1]
    least = costs.min(axis=1, initial=np.inf)[:, None]
    untyped = (problem.gpu_type < 0)[:, None] & np.isfinite(least)
    late = untyped & (costs > MUCH_LATER * least)
    return np.asarray(np.where(types >= 0, late[:, types], False) & problem.eligible, dtype=np.bool_)


def _node_types(gpus: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """(M,) column of the type of each node's GPUs, −1: none."""
    if not gpus.shape[1]:
        return np.full(len(gpus), -1, dtype=np.intp)
    return np.where(gpus.any(axis=1), gpus.argmax(axis=1), -1).astype(np.intp)


def _round(
    problem: PlacementProblem,
    by_type: Floats,
    held: Running,
    makers: list[npt.NDArray[np.intp]],
    price: Floats,
) -> tuple[Floats, list[int], float]:
    """List scheduling once: (K, T) cost of each job on each type, what each gets (−1: nothing), the sum of the ends."""
    free = problem.free_gpus[0].sum(axis=1).astype(np.int64)
    of_node = _node_types(problem.total_gpus)
    ends = [[end for end in held.ends if of_node[end[1][0]] == t] for t in range(len(makers))]
    now = [0.0] * len(makers)
    costs = np.full(by_type.shape, np.inf)
    chosen = [-1] * len(problem)
    together = 0.0
    for k in range(len(problem)):
        gpus = int(problem.gpus[k])
        if not gpus or problem.gpu_type[k] >= len(makers) or not np.isfinite(by_type[k]).any():
            continue
        found: tuple[float, int, float, int, npt.NDArray[np.intp], npt.NDArray[np.int64]] | None = None
        for t, nodes in enumerate(makers):
            seconds = float(by_type[k, t])
            if not np.isfinite(seconds) or problem.gpu_type[k] not in {-1, t}:
                continue
            mine = nodes[problem.eligible[k, nodes]]
            fit = _earliest(problem, k, mine, free, ends[t], now[t])
            if fit is None:
                continue
            start, passed, taken, amounts = fit
            costs[k, t] = start + seconds * (1.0 + price[k, t] * gpus)
            if found is None or costs[k, t] < found[0]:
                found = float(costs[k, t]), t, start, passed, taken, amounts
        if found is None:
            continue
        _, t, start, passed, taken, amounts = found
        for _, others, given in ends[t][:passed]:
            free[others] += given
        del ends[t][:passed]
        free[taken] -= amounts
        now[t], chosen[k] = start, t
        end = start + float(by_type[k, t])
        insort(ends[t], (end, taken, amounts), key=itemgetter(0))
        together += end
    return costs, chosen, together


def _earliest(
    problem: PlacementProblem,
    k: int,
    nodes: npt.NDArray[np.intp],
    free: npt.NDArray[np.int64],
    ends: list[_End],
    now: float,
) -> tuple[float, int, npt.NDArray[np.intp], npt.NDArray[np.int64]] | None:
    """When a job fits on some of these nodes, after how many of the ends, and what it takes there; None: never."""
    then, start, passed = free.copy(), now, 0
    per_node, least = int(problem.gpus_per_node[k]), int(problem.nodes[k])
    one = per_node or (int(problem.gpus[k]) if least == 1 else 0)
    gpus = int(problem.gpus[k])
    while True:
        if one:
            able = nodes[then[nodes] >= one]
            if len(able) >= least:
                taken = able[np.argsort(then[able], kind="stable")[:least]]
                return start, passed, taken, np.full(least, one, dtype=np.int64)
        if not per_node:
            able = nodes[then[nodes] > 0]
            if len(able) >= least and then[able].sum() >= gpus:
                order = able[np.argsort(-then[able], kind="stable")]
                count = max(int(np.searchsorted(np.cumsum(then[order]), gpus)) + 1, least)
                amounts = np.minimum(then[order[:count]], gpus)
                amounts[-1] -= max(int(amounts.sum()) - gpus, 0)
                return start, passed, order[:count], np.maximum(amounts, 0)
        if passed == len(ends):
            return None
        start = max(start, ends[passed][0])
        np.add.at(then, ends[passed][1], ends[passed][2])
        passed += 1

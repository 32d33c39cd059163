"""Expected fragmentation of a node (FGD: Weng et al., "Beware of Fragmentation", USENIX ATC 2023)."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.cluster.tables import Floats, Rows
from rltuned.placement.placement_values import PlacementProblem

MOST_DEMANDS: Final = 8
"""Kinds of request that stand for the queue; more change the expectation little and cost time on every node."""


@dataclass(frozen=True)
class Demand:
    """The typical demand mix of the queue: D kinds of per-node request with their shares."""

    share: Floats
    """(D,) sums to 1 (or D is 0 when no job asks for GPUs)."""
    column: Rows
    """(D,) GPU type, T for any."""
    gpus: Floats
    cpus: Floats
    mem: Floats
    """(D,) what one node must have."""
    scarcity: float
    """min(1, GPUs that the queue asks for / GPUs free now): leftovers matter only where somebody wants them."""

    def fragments(self, free: Floats) -> Floats:
        """(n,) GPUs of each node that a job drawn from the mix is expected to be unable to use.

        `free` is (n, T+3): GPUs by type, CPUs, memory, local disk. F_n = Σ_m p_m · (free GPUs if m does not fit).
        """
        types = free.shape[1] - 3
        if len(self.share) == 0 or types == 0:
            return np.zeros(len(free))
        gpus = np.empty((len(free), types + 1))
        gpus[:, :types] = free[:, :types]
        gpus[:, types] = free[:, :types].max(axis=1)
        fits = gpus[:, self.column] >= self.gpus
        fits &= free[:, types, None] >= self.cpus
        fits &= free[:, types + 1, None] >= self.mem
        return np.asarray((1.0 - fits @ self.share) * free[:, :types].sum(axis=1))


def demand_mix(problem: PlacementProblem) -> Demand:
    """The most frequent per-node requests of the problem's GPU jobs, CPUs and memory averaged within each."""
    types = problem.types
    rows = np.flatnonzero((problem.gpus > 0) & (problem.gpu_type < types))
    node_gpus = problem.total_gpus.max(initial=1)
    # A job that may be split is as easy to host as one node's worth of it.
    total = np.minimum(problem.gpus[rows], max(int(node_gpus), 1))
    per_node = np.where(problem.gpus_per_node[rows] > 0, problem.gpus_per_node[rows], total)
    part = per_node / np.maximum(problem.gpus[rows], 1)
    column = np.where(problem.gpu_type[rows] < 0, types, problem.gpu_type[rows])
    key = column.astype(np.int64) * (int(per_node.max(initial=0)) + 1) + per_node
    _, first, inverse, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    cpus = np.bincount(inverse, problem.cpus[rows] * part, len(first)) / np.maximum(count, 1)
    mem = np.bincount(inverse, problem.mem[rows] * part, len(first)) / np.maximum(count, 1)
    top = np.argsort(-count, kind="stable")[:MOST_DEMANDS]
    free = float(problem.free[:, :types].sum())
    return Demand(
        share=count[top] / max(float(count[top].sum()), 1.0),
        column=column[first[top]].astype(np.intp),
        gpus=per_node[first[top]].astype(np.float64),
        cpus=np.floor(cpus[top]),
        mem=np.floor(mem[top]),
        scarcity=min(1.0, float(problem.gpus.sum()) / free) if free > 0 else 1.0,
    )

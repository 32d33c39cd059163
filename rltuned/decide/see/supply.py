"""What each pool of nodes offers, now and as running jobs end: computed once per snapshot, shared by all its jobs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.pools import Pools
from rltuned.core.tables import Bools, Codes, Floats, NodeTable, Snapshot
from rltuned.core.taken import whole_nodes

MOST_GPUS: Final = 32767
"""GPUs of a node are counted in 16 bits where jobs and nodes are compared; no node has more."""

CENTURY: Final = 100 * 365 * 86400.0
"""Seconds that no job waited or ran for: makes times that are far off, or missing, finite."""

MOST_MIB: Final = 1e15  # and memory and disk in 32-bit floats; no node has more


@dataclass(frozen=True)
class PoolStats:
    """P pools of usable nodes, and as row P the whole cluster. C candidate nodes: where a job could start now.

    GPUs are counted of the pool's type only, or all of them where the pool's jobs take any type.
    """

    gpus: Floats  # (P+1,) configured GPUs: G of the formulas
    free_gpus: Floats  # (P+1,) F
    configured_gpus: float  # GPUs of all nodes, usable or not: a scale that no drained node changes
    release_time: Floats  # (E,) expected ends of running jobs, ascending, epoch seconds
    released: Floats  # (P+1, E+1) GPUs that the first e of those ends give back
    idle_candidates: int  # candidates 0 … idle_candidates−1 are idle, the others run something
    room_gpus: npt.NDArray[np.int16]  # (P, C) free GPUs of one type; −1: not of this pool
    room_cpus: npt.NDArray[np.int32]  # (C,)
    room_mem: npt.NDArray[np.float32]  # (C,) MiB
    room_tmp: npt.NDArray[np.float32]  # (C,) MiB
    gpus_of: Floats  # (P+1, M) configured GPUs on each node
    free_of: Floats  # (P+1, M) free ones
    members: Bools  # (P+1, M) the nodes of each pool
    nodes: NodeTable

    # What only some policies read is computed for these.

    @cached_property
    def sums(self) -> tuple[Floats, Floats, Floats]:
        """(P+1,) each: share of the nodes that are wholly idle, 0 where there are none; configured CPUs, and MiB."""
        nodes = self.nodes
        per_node: Floats = np.column_stack((np.ones(len(nodes)), nodes.idle, nodes.cpus, nodes.mem)).astype(np.float64)
        count, idle, cpus, mem = (self.members.astype(np.float64) @ per_node).T
        return idle / np.maximum(count, 1.0), cpus, mem

    @property
    def fragmentation(self) -> Floats:
        """(P+1,) equation 3, normalised so that it stays in [0, 1]: 1 − Σ f² / (F · g_max), 0 where nothing is free.

        f: free GPUs of a node, F = Σ f, g_max: GPUs of the largest node.
        """
        whole = self.free_gpus * self.gpus_of.max(axis=1, initial=0)
        return np.asarray(np.maximum(whole - (self.free_of * self.free_of).sum(axis=1), 0.0) / np.maximum(whole, 1.0))


def expected_ends(snapshot: Snapshot, rows: npt.NDArray[np.intp], estimates: Floats) -> Floats:
    """(R,) when the running jobs in `rows` are expected to end: epoch seconds, infinite when unknown.

    Start plus estimate, but not after the limit. A job that outlived its estimate is expected to run as long again as
    it has so far. `estimates`: (N,) seconds, NaN where unknown.
    """
    elapsed = np.minimum(np.fmax(snapshot.time - snapshot.jobs.start_time[rows], 0.0), CENTURY)
    left: Floats = estimates[rows] - elapsed
    np.copyto(left, elapsed, where=left <= 0)  # NaN, no estimate, stays
    end: Floats = np.fmin(snapshot.time + left, snapshot.jobs.end_time[rows])
    end[np.isnan(end)] = np.inf
    return end


def pool_stats(snapshot: Snapshot, pools: Pools, estimates: Floats) -> PoolStats:
    """Statistics of `pools`. `estimates`: (N,) run time of every job of the snapshot in seconds, NaN where unknown."""
    nodes = snapshot.nodes
    members = np.empty((len(pools.nodes) + 1, len(nodes)), dtype=np.bool_)
    members[:-1] = pools.nodes
    members[-1] = True
    members &= nodes.usable
    # −1, any type, is also the last row of a per-type array. A type that no node has leaves a pool empty, or was named
    # by jobs of no GPUs.
    kind = np.append(pools.gpu_type, -1)
    kind[kind >= len(nodes.gpu_types)] = -1
    configured = _by_type(nodes.gpus)
    jobs = snapshot.jobs
    whole = np.repeat(whole_nodes(snapshot, np.arange(len(jobs))), np.diff(jobs.node_ptr))
    free = nodes.gpus_free.copy()
    free[jobs.node_idx[whole]] = 0  # Slurm shows what is left of a node that nobody may join as free
    gpus_of, free_of = members * configured[kind], members * _by_type(free)[kind]
    candidates = (nodes.cpus_free > 0).nonzero()[0]
    idle = nodes.idle[candidates]
    candidates = np.concatenate((candidates[idle], candidates[~idle]))
    room = np.empty((len(nodes.gpu_types) + 1, len(candidates)), dtype=np.int16)
    room[:-1] = np.minimum(free[candidates], MOST_GPUS).T
    room[-1] = room[:-1].max(axis=0, initial=0)
    release_time, released = _releases(snapshot, members, kind, estimates, whole, gpus_of)
    return PoolStats(
        gpus=gpus_of.sum(axis=1),
        free_gpus=free_of.sum(axis=1),
        configured_gpus=float(configured[-1].sum()),
        release_time=release_time,
        released=released,
        idle_candidates=int(np.count_nonzero(idle)),
        room_gpus=np.where(pools.nodes[:, candidates], room[kind[:-1]], np.int16(-1)),
        room_cpus=nodes.cpus_free[candidates],
        room_mem=np.minimum(nodes.mem_free[candidates], MOST_MIB).astype(np.float32),
        room_tmp=np.minimum(nodes.tmp[candidates], MOST_MIB).astype(np.float32),
        gpus_of=gpus_of,
        free_of=free_of,
        members=members,
        nodes=nodes,
    )


def _by_type(gpus: Codes) -> Floats:
    """(T+1, M) GPUs of each node by type, the last row over all types."""
    rows = np.empty((gpus.shape[1] + 1, gpus.shape[0]))
    rows[:-1] = gpus.T
    gpus.sum(axis=1, out=rows[-1])
    return rows


def _releases(
    snapshot: Snapshot, members: Bools, kind: npt.NDArray[np.intp], estimates: Floats, whole: Bools, gpus_of: Floats
) -> tuple[Floats, Floats]:
    """`PoolStats.release_time` and `released`. A job's GPUs are taken to be spread evenly over its nodes.

    `whole`: of each entry of `JobTable.node_idx`, whether the job has that node to itself; `gpus_of`: (P+1, M).
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    counts = jobs.node_ptr[1:] - jobs.node_ptr[:-1]
    holders = counts.nonzero()[0]
    counts = counts[holders]
    column = {name: index for index, name in enumerate(nodes.gpu_types)}
    # One entry per job and node of it, by the job's end. Ties in any order: what is released by then is the same.
    ends = expected_ends(snapshot, holders, estimates)
    owner = np.repeat(np.arange(len(holders)), counts)
    order = ends[owner].argsort()
    owner, node = owner[order], jobs.node_idx[order]
    type_of = jobs.gpu_type[holders].mapped(lambda name: column.get(name, -1), none=-1, kind=np.int64)[owner]
    # An untyped job on a typed node holds that node's type; a pool of any type counts all.
    counted = (type_of == kind[:, None]) | (type_of == -1)
    counted[kind == -1] = True
    counted &= members[:, node]
    released = np.zeros((len(members), len(order) + 1))
    np.multiply(counted, (jobs.gpus[holders] / counts)[owner], out=released[:, 1:])
    back = whole[order].nonzero()[0]
    released[:, 1 + back] = gpus_of[:, node[back]]
    np.cumsum(released, axis=1, out=released)
    return ends[owner], released

"""What a job takes from others: GPUs, or the nodes that it has to itself; and its size, of all that nodes have."""

from typing import Final

import numpy as np

from rltuned.core.changes import OverSubscribe
from rltuned.core.pools import Pools, bounded_pools
from rltuned.core.tables import Bools, Floats, NodeTable, Rows, Snapshot

_WITH_ITS_OWN: Final = frozenset({OverSubscribe.USER.value, OverSubscribe.MCS.value})
"""Jobs of one user, or of one label, share nodes."""
LEAST: Final = 1e-3  # GPUs that any job keeps from others
_ROUNDING: Final = 1e-9


def alone(snapshot: Snapshot, rows: Rows) -> Bools:
    """(n,) whether a job starts on idle nodes only, and no job of another user joins it.

    With select/linear, each. It asked for that; or each of its partitions gives whole nodes; or it takes all memory of
    its nodes (NaN), as a job does that names none where slurm.conf has no DefMemPerCPU. Where Slurm does not count
    memory, that is nothing.
    """
    if snapshot.scheduler.whole_nodes:
        return np.ones(len(rows), dtype=np.bool_)
    jobs = snapshot.jobs
    exclusive = {part.name for part in snapshot.partitions if part.oversubscribe is OverSubscribe.EXCLUSIVE}
    by_partition = jobs.partition[rows].mapped(lambda names: exclusive.issuperset(names.split(",")), none=False)
    all_memory = np.isnan(jobs.mem[rows]) & snapshot.nodes.counts_memory
    return np.asarray(jobs.exclusive[rows] | by_partition | all_memory, dtype=np.bool_)


def whole_nodes(snapshot: Snapshot, rows: Rows) -> Bools:
    """(n,) whether nobody at all shares nodes with a job."""
    own = snapshot.jobs.oversubscribe[rows].mapped(_WITH_ITS_OWN.__contains__, none=False)
    return np.asarray(alone(snapshot, rows) & ~own, dtype=np.bool_)


def taken_gpus(snapshot: Snapshot, rows: Rows) -> Floats:
    """(n,) GPUs that nobody else gets while a job runs: those that it asks for, or all of its nodes.

    The nodes of a job that waits are taken to be like the median one of those that could run it.
    """
    jobs = snapshot.jobs
    gpus = np.maximum(jobs.gpus[rows], 0).astype(np.float64)
    whole = np.flatnonzero(whole_nodes(snapshot, rows))
    if not len(whole):
        return gpus
    rows = rows[whole]
    pools = bounded_pools(snapshot, rows)
    each = np.array([_median(snapshot.nodes, *pool) for pool in zip(pools.nodes, pools.gpu_type, strict=True)])
    each = each[pools.pool_of]
    nodes = np.maximum(jobs.nodes[rows], np.ceil(gpus[whole] / np.maximum(each, 1.0)))
    first, last = jobs.node_ptr[rows], jobs.node_ptr[rows + 1]
    before = np.concatenate(([0], np.cumsum(snapshot.nodes.gpus.sum(axis=1)[jobs.node_idx])))
    gpus[whole] = np.maximum(gpus[whole], np.where(last > first, before[last] - before[first], nodes * each))
    return gpus


def sizes(snapshot: Snapshot, rows: Rows, pools: Pools) -> Floats:
    """(n,) GPUs that each job, or each task of an array, keeps from others: the largest of its shares of a node's GPUs,
    CPUs and memory, times the GPUs of the node, over all of its nodes.

    A node without GPUs counts as one. The nodes of a job are taken to be like the median one of those that could run
    it. `rows`: of jobs that wait; `pools`: `bounded_pools` of these.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    of = pools.pool_of
    gpus = np.array([_median(nodes, *pool) for pool in zip(pools.nodes, pools.gpu_type, strict=True)])
    cpus, mem = (
        np.array([float(np.median(column[able])) if able.any() else 0.0 for able in pools.nodes])
        for column in (nodes.cpus, nodes.mem)
    )
    share = _share(snapshot, rows, gpus[of], cpus[of], mem[of])
    whole = np.maximum(jobs.nodes[rows], np.ceil(share - _ROUNDING))
    share = np.where(alone(snapshot, rows), whole, share)
    found: Floats = np.maximum(share * np.maximum(gpus, 1.0)[of], LEAST)
    return found


def sizes_held(snapshot: Snapshot, rows: Rows) -> Floats:
    """(n,) the same of jobs that run, of the nodes that they hold. 0: nobody knows which."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    held = [jobs.nodes_of(row) for row in rows.tolist()]
    count = np.array([len(of) for of in held], dtype=np.float64)
    each = np.maximum(count, 1.0)
    gpus = np.array([np.maximum(nodes.gpus[of].sum(axis=1), 1.0).sum() for of in held]).reshape(len(held))
    cpus, mem = (np.array([column[of].sum() for of in held]).reshape(len(held)) for column in (nodes.cpus, nodes.mem))
    share = _share(snapshot, rows, gpus / each, cpus / each, mem / each)
    share = np.minimum(np.where(alone(snapshot, rows), count, share), count)
    found: Floats = share * gpus / each
    return found


def _share(snapshot: Snapshot, rows: Rows, gpus: Floats, cpus: Floats, mem: Floats) -> Floats:
    """(n,) nodes that each job takes as a whole, where a node has so much: by GPUs, CPUs or memory, the most."""
    jobs = snapshot.jobs
    shares = [
        np.maximum(jobs.gpus[rows], 0) / np.maximum(gpus, 1.0),
        jobs.cpus[rows] / np.where(cpus > 0, cpus, np.inf),
    ]
    if snapshot.nodes.counts_memory:
        shares.append(np.nan_to_num(jobs.mem[rows]) / np.where(mem > 0, mem, np.inf))
    found: Floats = np.maximum.reduce(shares)
    return found


def _median(nodes: NodeTable, members: Bools, gpu_type: int) -> float:
    """GPUs of the median of these nodes, of that type where there is one."""
    gpus = nodes.gpus[members]
    of_each = gpus[:, gpu_type] if 0 <= gpu_type < gpus.shape[1] else gpus.sum(axis=1)
    return float(np.median(of_each)) if len(of_each) else 0.0

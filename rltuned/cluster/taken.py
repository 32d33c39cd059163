"""What a job takes from others: the GPUs that it asks for, or, where it has its nodes to itself, all that they have."""

from typing import Final

import numpy as np

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.pools import bounded_pools
from rltuned.cluster.tables import Bools, Floats, NodeTable, Rows, Snapshot

_WITH_ITS_OWN: Final = frozenset({OverSubscribe.USER.value, OverSubscribe.MCS.value})
"""Jobs of one user, or of one label, share nodes."""


def alone(snapshot: Snapshot, rows: Rows) -> Bools:
    """(n,) whether a job starts on idle nodes only, and no job of another user joins it.

    It asked for that; or each of its partitions gives whole nodes; or it takes all memory of its nodes (NaN), as a job
    does that names none where slurm.conf has no DefMemPerCPU. Where Slurm does not count memory, that is nothing.
    """
    jobs = snapshot.jobs
    exclusive = {part.name for part in snapshot.partitions if part.oversubscribe is OverSubscribe.EXCLUSIVE}
    by_partition = jobs.partition.take(rows).mapped(lambda names: exclusive.issuperset(names.split(",")), none=False)
    all_memory = np.isnan(jobs.mem[rows]) & snapshot.nodes.counts_memory
    return np.asarray(jobs.exclusive[rows] | by_partition | all_memory, dtype=np.bool_)


def whole_nodes(snapshot: Snapshot, rows: Rows) -> Bools:
    """(n,) whether nobody at all shares nodes with a job."""
    own = snapshot.jobs.oversubscribe.take(rows).mapped(_WITH_ITS_OWN.__contains__, none=False)
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


def _median(nodes: NodeTable, members: Bools, gpu_type: int) -> float:
    """GPUs of the median of these nodes, of that type where there is one."""
    gpus = nodes.gpus[members]
    of_each = gpus[:, gpu_type] if 0 <= gpu_type < gpus.shape[1] else gpus.sum(axis=1)
    return float(np.median(of_each)) if len(of_each) else 0.0

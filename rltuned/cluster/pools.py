"""Which nodes could ever run a job: the pool that its supply, demand and fragmentation are measured against."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.constraint import compile_constraint
from rltuned.cluster.hostlist import expand
from rltuned.cluster.tables import Bools, Codes, JobTable, Snapshot
from rltuned.errors import SlurmParseError


@dataclass(frozen=True)
class Pools:
    """Distinct sets of capable nodes. P pools, M nodes, n jobs."""

    pool_of: Codes
    """(n,) pool of each job."""
    nodes: Bools
    """(P, M) capable nodes, busy or not, usable or not."""
    gpu_type: Codes
    """(P,) column of `NodeTable.gpus` that the pool's jobs ask for, −1 any."""


def job_pools(snapshot: Snapshot, rows: npt.NDArray[np.intp]) -> Pools:
    """Pools of the jobs in `rows`: partition, features, node lists, GPU type and GPUs per node all considered.

    Jobs that agree in all of these share a pool, so the result is small however long the queue.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    types = {name: column for column, name in enumerate(nodes.gpu_types)}
    type_column = np.array([types.get(name, len(types)) for name in jobs.gpu_type.names] + [-1], dtype=np.int64)
    wanted_type = type_column[jobs.gpu_type.codes[rows]]
    gpus = jobs.gpus[rows]
    # Least GPUs that one node must have: the per-node request, else one if the job uses GPUs at all.
    per_node = np.where(gpus > 0, np.maximum(jobs.gpus_per_node[rows], 1), 0)
    # One integer per distinct request: mixed radix over the small code ranges.
    key = np.zeros(len(rows), dtype=np.int64)
    for codes, size in (
        (jobs.partition.codes[rows].astype(np.int64) + 1, len(jobs.partition.names) + 1),
        (jobs.features.codes[rows].astype(np.int64) + 1, len(jobs.features.names) + 1),
        (jobs.req_nodes.codes[rows].astype(np.int64) + 1, len(jobs.req_nodes.names) + 1),
        (jobs.exc_nodes.codes[rows].astype(np.int64) + 1, len(jobs.exc_nodes.names) + 1),
        (wanted_type + 1, len(types) + 2),
        (per_node.astype(np.int64), int(per_node.max(initial=0)) + 1),
    ):
        key = key * size + codes
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    masks = np.zeros((len(first), len(nodes)), dtype=np.bool_)
    for pool, at in enumerate(first):
        masks[pool] = _capable(snapshot, jobs, int(rows[at]), int(wanted_type[at]), int(per_node[at]))
    return Pools(inverse.astype(np.int32), masks, wanted_type[first].astype(np.int32))


def _capable(snapshot: Snapshot, jobs: JobTable, row: int, gpu_type: int, per_node: int) -> Bools:
    nodes = snapshot.nodes
    mask = np.zeros(len(nodes), dtype=np.bool_)
    for name in jobs.partition.value(row).split(","):
        partition = snapshot.partition_by_name.get(name)
        if partition is not None:
            mask[partition.nodes] = True
    if expression := jobs.features.value(row):
        test = compile_constraint(expression)
        mask &= np.fromiter((test(features) for features in nodes.features), dtype=np.bool_, count=len(nodes))
    if wanted := jobs.req_nodes.value(row):
        mask &= node_mask(snapshot, wanted)
    if excluded := jobs.exc_nodes.value(row):
        mask &= ~node_mask(snapshot, excluded)
    if per_node > 0:
        if gpu_type >= nodes.gpus.shape[1]:
            mask[:] = False  # a type that no node has
        elif gpu_type >= 0:
            mask &= nodes.gpus[:, gpu_type] >= per_node
        else:
            mask &= nodes.gpus.sum(axis=1) >= per_node
    return mask


def node_mask(snapshot: Snapshot, text: str) -> Bools:
    """(M,) nodes named in a node list; unknown names and unreadable lists name none."""
    mask = np.zeros(len(snapshot.nodes), dtype=np.bool_)
    try:
        names = expand(text)
    except SlurmParseError:
        return mask
    rows = [snapshot.nodes.row_of[name] for name in names if name in snapshot.nodes.row_of]
    mask[rows] = True
    return mask

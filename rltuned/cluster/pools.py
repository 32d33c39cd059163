"""Which nodes could ever run a job: the pool that its supply, demand and fragmentation are measured against."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.constraint import compile_constraint
from rltuned.cluster.hostlist import expand
from rltuned.cluster.tables import Bools, Codes, NodeTable, Snapshot
from rltuned.errors import SlurmParseError

_WIDE: Final = 2**31
"""Each code range has at most about as many values, and the product of two still fits into 64 bits."""


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
    # Types that no node has are apart: a name may stand for several.
    asked = np.where(wanted_type == len(types), len(types) + jobs.gpu_type.codes[rows], wanted_type)
    # One integer per distinct request: mixed radix over the code ranges.
    key, span = np.zeros(len(rows), dtype=np.int64), 1
    for codes, size in (
        (jobs.partition.codes[rows].astype(np.int64) + 1, len(jobs.partition.names) + 1),
        (jobs.features.codes[rows].astype(np.int64) + 1, len(jobs.features.names) + 1),
        (jobs.req_nodes.codes[rows].astype(np.int64) + 1, len(jobs.req_nodes.names) + 1),
        (jobs.exc_nodes.codes[rows].astype(np.int64) + 1, len(jobs.exc_nodes.names) + 1),
        (asked + 1, len(types) + len(jobs.gpu_type.names) + 1),
        (per_node.astype(np.int64), int(per_node.max(initial=0)) + 1),
    ):
        if span > _WIDE:  # thousands of distinct lists: renumber, or the next factor would leave 64 bits
            key, span = np.unique(key, return_inverse=True)[1].astype(np.int64), len(rows)
        if size > 1:
            key, span = key * size + codes, span * size
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    masks = _capable(snapshot, rows[first], wanted_type[first], per_node[first])
    return Pools(inverse.astype(np.int32), masks, wanted_type[first].astype(np.int32))


def _capable(
    snapshot: Snapshot, rows: npt.NDArray[np.intp], gpu_type: npt.NDArray[np.int64], per_node: npt.NDArray[np.int32]
) -> Bools:
    """(P, M) nodes that could run the jobs in `rows`, one of each kind."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    # By code; the last row is for the code −1, no partition.
    of_partition = np.zeros((len(jobs.partition.names) + 1, len(nodes)), dtype=np.bool_)
    for code, names in enumerate(jobs.partition.names):
        for name in names.split(","):
            partition = snapshot.partition_by_name.get(name)
            if partition is not None:
                of_partition[code, partition.nodes] = True
    masks = of_partition[jobs.partition.codes[rows]]
    # By type, then a type that no node has, then (as −1) any type.
    offered = np.zeros((len(nodes.gpu_types) + 2, len(nodes)), dtype=np.int32)
    offered[:-2] = nodes.gpus.T
    offered[-1] = nodes.gpus.sum(axis=1)
    masks &= (offered[gpu_type] >= per_node[:, None]) | _of_several_types(snapshot, rows, gpu_type, per_node)
    features, wanted, excluded = (column.codes[rows] for column in (jobs.features, jobs.req_nodes, jobs.exc_nodes))
    satisfying = {code: _satisfying(nodes, jobs.features.names[code]) for code in set(features.tolist()) if code >= 0}
    for pool in np.flatnonzero((features >= 0) | (wanted >= 0) | (excluded >= 0)):
        row = int(rows[pool])
        if features[pool] >= 0:
            masks[pool] &= satisfying[int(features[pool])]
        if text := jobs.req_nodes.value(row):
            masks[pool] &= node_mask(snapshot, text)
        if text := jobs.exc_nodes.value(row):
            masks[pool] &= ~node_mask(snapshot, text)
    return masks


def _satisfying(nodes: NodeTable, expression: str) -> Bools:
    """(M,) nodes whose features satisfy a constraint. Thousands of nodes have a few sets of features: each is asked once."""
    test, sets = compile_constraint(expression), nodes.feature_sets
    return np.array([test(features) for features in sets.sets], dtype=np.bool_)[sets.of]


def _of_several_types(
    snapshot: Snapshot, rows: npt.NDArray[np.intp], gpu_type: npt.NDArray[np.int64], per_node: npt.NDArray[np.int32]
) -> Bools:
    """(P, M) nodes that have the GPUs of jobs that ask for several types at once (slices of a GPU, say); else False.

    All of the types where each node has to have its share, one of them where the job asks for a total.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    found = np.zeros((len(rows), len(nodes)), dtype=np.bool_)
    total = nodes.gpus.sum(axis=1)
    for pool in np.flatnonzero(gpu_type == len(nodes.gpu_types)).tolist():
        names = jobs.gpu_type.value(int(rows[pool])).split(",")
        columns = [nodes.gpu_types.index(name) for name in names if name in nodes.gpu_types]
        if len(names) < 2 or len(columns) < len(names):
            continue
        has = nodes.gpus[:, columns] > 0
        here = has.all(axis=1) if jobs.gpus_per_node[rows[pool]] > 0 else has.any(axis=1)
        found[pool] = here & (total >= per_node[pool])
    return found


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

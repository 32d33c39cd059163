"""What each job of a workload asks of this cluster, and whether it can ever run there (docs/simulator.md, Jobs, Never).

Shared by the compiled engine and the plain reference (`tests/oracles`): both must mean the same job. A million jobs
take a second or two, because equal requests are computed once and nodes of the same kind are counted, not listed.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rltuned.core.tables import Bools, Codes, Floats, Ints, NodeTable, Rows, columns_at, distinct
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

GPU: Final = 0
CPU: Final = 1
MEM: Final = 2
TMP: Final = 3
_NAMES: Final = ("GPUs", "CPUs", "MiB of memory", "MiB of local disk")

_PLENTY: Final = 2**40
"""Stands for an amount or a number that has no bound; times any number of units it is still an int64."""


@dataclass(frozen=True)
class Requests:
    """Requests of N jobs on M nodes. Of a rejected job only the reason means anything (its pool is −1)."""

    per_node: Bools  # (N,) nodes with the same on each; otherwise so much in all
    nodes: Codes  # (N,) at least so many (in all: ≤ its units, each node gives at least one)
    most_nodes: Ints
    """(N,) at most so many. Per node: `nodes`, or the most of a range. In all: MaxNodes; 2⁴⁰ where there is none."""
    gpus: Ints
    """(N,) per node or in all, like CPUs and MiB of memory, where 0 does not limit. A job of no GPUs counts in CPUs."""
    cpus: Ints
    mem: Ints
    tmp: Ints  # (N,) MiB on each node, whatever the kind of request
    gpu_type: Codes  # (N,) column of `NodeTable.gpu_types`; −1: any, or a job of no GPUs.
    partition: Codes  # (N,) index into `ClusterShape.partitions`.
    pool: Codes
    """(N,) row of `pool_nodes`: partition, type, nodes that take its limit, and as many GPUs as the job wants of a node
    (at least one in all).
    """
    pool_nodes: Bools  # (L, M)
    capacity: Ints  # (M, 4) GPUs, CPUs, MiB of memory and of disk of an empty node
    rejected: dict[int, str]  # why, by row: jobs that could not run on the empty cluster

    def __len__(self) -> int:
        return len(self.per_node)

    def take(self, rows: Rows | Bools | slice) -> "Requests":
        """The requests of some rows, so that windows of one trace need not be computed again."""
        index = np.arange(len(self))[rows]
        rejected = {at: self.rejected[row] for at, row in enumerate(index.tolist()) if row in self.rejected}
        return replace(self, **columns_at(self, index, ("pool_nodes", "capacity", "rejected")), rejected=rejected)


def capacity(nodes: NodeTable) -> Ints:
    """(M, 4) what an empty node has: GPUs, CPUs, whole MiB of memory and of disk."""
    columns = (nodes.gpus.sum(axis=1), nodes.cpus, np.floor(nodes.mem), np.floor(nodes.tmp))
    return np.stack([np.minimum(column.astype(np.float64), _PLENTY).astype(np.int64) for column in columns], axis=1)


def requests(shape: ClusterShape, jobs: Workload, time_limit: Floats) -> Requests:
    """Requests of all jobs; `time_limit` (N,) seconds is compared with MaxTime, and with `ClusterShape.longest`."""
    longest = np.full(len(shape.nodes), np.inf) if shape.longest is None else shape.longest
    bounds = np.unique(longest)
    beyond = np.searchsorted(bounds, time_limit).astype(np.int32)
    amounts = (jobs.gpus, jobs.nodes, jobs.cpus, jobs.mem, jobs.tmp, jobs.most_nodes)
    groups, of = distinct((jobs.partition.codes, jobs.gpu_type.codes, *amounts, beyond))
    some = _Groups(shape, jobs.take(groups), beyond[groups], np.searchsorted(bounds, longest))
    reason = some.reasons
    rejected = {int(row): reason[int(of[row])] for row in np.flatnonzero(np.isin(of, list(reason)))}
    limits = np.array([partition.max_time for partition in shape.partitions])
    for row in np.flatnonzero((some.partition >= 0)[of] & (time_limit > limits[some.partition][of])):
        if int(row) not in rejected:
            partition = shape.partitions[some.partition[of[row]]]
            rejected[int(row)] = (
                f"time limit of {time_limit[row]:g} s is above MaxTime {partition.max_time:g} s of partition "
                f"{partition.name}"
            )
    pool = some.pool[of]
    pool[list(rejected)] = -1
    return Requests(
        per_node=some.per_node[of],
        nodes=some.nodes[of].astype(np.int32),
        most_nodes=some.most[of],
        gpus=some.need[of, GPU],
        cpus=some.need[of, CPU],
        mem=some.need[of, MEM],
        tmp=some.need[of, TMP],
        gpu_type=some.gpu_type[of],
        partition=some.partition[of],
        pool=pool,
        pool_nodes=some.pool_nodes,
        capacity=some.capacity,
        rejected=dict(sorted(rejected.items())),
    )


class _Groups:
    """Computes U distinct requests."""

    def __init__(self, shape: ClusterShape, jobs: Workload, beyond: Codes, takes: Ints) -> None:
        """`beyond`: (U,) how many of the different `ClusterShape.longest` the limit is beyond. `takes`: (M,) which
        of them is the node's: it takes the job where that is no smaller.
        """
        self._shape, self._jobs = shape, jobs
        self._beyond, self._takes = beyond, takes
        self.capacity = capacity(shape.nodes)
        u = len(jobs)
        self.reasons: dict[int, str] = {}
        self.per_node = np.ones(u, dtype=np.bool_)
        self.nodes = np.ones(u, dtype=np.int64)
        self.need = np.zeros((u, 4), dtype=np.int64)
        self.partition = self._partitions()
        self.gpu_type = self._gpu_types()
        caps = np.array([min(partition.max_nodes, _PLENTY) for partition in shape.partitions], dtype=np.int64)
        self._max_nodes = caps
        self.most = caps[self.partition]
        self.pool = np.full(u, -1, dtype=np.int32)
        alive = np.array([group not in self.reasons for group in range(u)], dtype=np.bool_)
        columns = (self.partition, self.gpu_type, beyond)
        for key in set(zip(*(column[alive].tolist() for column in columns), strict=True)):
            rows = np.flatnonzero(
                alive & np.all([column == of for column, of in zip(columns, key, strict=True)], axis=0)
            )
            self._derive(rows, self._able(*key))
        self.pool_nodes = self._pools(np.flatnonzero(alive))

    def _partitions(self) -> Codes:
        """Index of the partition of each request; −1 and a reason where there is none."""
        shape, jobs = self._shape, self._jobs
        index = {partition.name: k for k, partition in enumerate(shape.partitions)}
        default = next((k for k, partition in enumerate(shape.partitions) if partition.default), 0)
        found = jobs.partition.mapped(lambda name: index.get(name, -1), none=default, kind=np.int32)
        for group, partition in enumerate(found):
            if partition < 0:
                self.reasons[group] = f"unknown partition {jobs.partition.value(group)!r}"
            elif not shape.partitions[partition].up:
                self.reasons[group] = f"partition {shape.partitions[partition].name} is not up"
        return found

    def _gpu_types(self) -> Codes:
        """Column of the type of each request; −1: any, and for jobs of no GPUs."""
        jobs, index = self._jobs, {name: k for k, name in enumerate(self._shape.nodes.gpu_types)}
        unknown = -2
        wanted = jobs.gpu_type.mapped(lambda name: index.get(name, unknown), none=-1, kind=np.int32)
        found = np.where(jobs.gpus > 0, wanted, -1).astype(np.int32)
        for group in np.flatnonzero(found == unknown):
            self.reasons.setdefault(int(group), f"unknown GPU type {jobs.gpu_type.value(int(group))!r}")
        return found

    def _able(self, partition: int, gpu_type: int, beyond: int) -> Ints:
        """(M, 4) `capacity` with the GPUs of that type only (−1: all); nothing of nodes without any, not of the
        partition, or where so long a limit does not start.
        """
        mask = np.zeros(len(self.capacity), dtype=np.bool_)
        mask[self._shape.partitions[partition].nodes] = True
        mask &= self._takes >= beyond
        found = self.capacity.copy()
        if gpu_type >= 0:
            found[:, GPU] = self._shape.nodes.gpus[:, gpu_type]
            mask &= found[:, GPU] > 0
        found[~mask] = -1
        return found

    def _derive(self, rows: Rows, able: Ints) -> None:
        """Kind of request, numbers and feasibility of requests that may use the same nodes."""
        jobs = self._jobs
        there = (able[:, GPU] >= 0) & self._shape.nodes.usable
        kinds, count = np.unique(able[there], axis=0, return_counts=True)
        named, gpus = jobs.nodes[rows].astype(np.int64), jobs.gpus[rows].astype(np.int64)
        cpus = jobs.cpus[rows].astype(np.int64)
        cpus = np.where(gpus > 0, cpus, np.maximum(cpus, np.maximum(named, 1)))  # a CPU job: one on each node
        mem, tmp = (np.ceil(np.minimum(column[rows], _PLENTY)).astype(np.int64) for column in (jobs.mem, jobs.tmp))
        total = np.stack([gpus, cpus, mem, np.zeros_like(gpus)], axis=1)
        unit = np.where(gpus > 0, GPU, CPU)
        units = total[np.arange(len(rows)), unit]
        largest = kinds.max(axis=0)[unit] if len(kinds) else np.ones_like(units)
        # One node, k equal nodes, or as many as the trace names.
        k = np.where(named > 0, named, np.maximum(-(-units // np.maximum(largest, 1)), 1))
        need = -(-total // k[:, None])
        need[:, TMP] = tmp
        enough = ((kinds[None, :, :] >= need[:, None, :]).all(axis=2) * count).sum(axis=1) >= k
        # Where too few nodes are that large, the same GPUs on more and smaller ones will do.
        large = ((kinds.T[unit] >= need[np.arange(len(rows)), unit][:, None]) * count).sum(axis=1) >= k
        per_node = (units % k == 0) & (large | (named > 0) | (k == 1))
        # In all: each node gives at least one unit, so a job of 2 GPUs named with 4 nodes is one of 2 nodes.
        least = np.where(per_node, k, np.minimum(np.where(named > 0, named, 1), units))
        ranged = np.where(jobs.most_nodes[rows] > 0, np.maximum(jobs.most_nodes[rows], k), k)
        need = np.where(per_node[:, None], need, total)
        need[:, TMP] = tmp
        feasible = np.where(
            per_node,
            enough & (k <= self.most[rows]),
            _in_all(kinds, count, need, unit, least, self.most[rows]),
        )
        self.per_node[rows], self.nodes[rows], self.need[rows] = per_node, least, need
        most = self.most[rows]
        self.most[rows] = np.where(per_node, np.minimum(ranged, most), most)
        for at in np.flatnonzero(~feasible):
            self.reasons[int(rows[at])] = self._why(int(rows[at]), kinds, count)

    def _why(self, group: int, kinds: Ints, count: Ints) -> str:
        """The first thing that this request asks too much of."""
        partition = self._shape.partitions[self.partition[group]]
        where = f"partition {partition.name}"
        if self.gpu_type[group] >= 0:
            where += f" with GPUs of type {self._shape.nodes.gpu_types[self.gpu_type[group]]}"
        if self._beyond[group]:
            where += " on nodes that take its time limit"
        if not len(kinds):
            return f"no node in {where}"
        need, nodes, most = self.need[group], int(self.nodes[group]), self._max_nodes[self.partition[group]]
        if self.per_node[group]:
            if nodes > most:
                return f"{nodes} nodes are more than MaxNodes {most} of {where}"
            count_of = f"{nodes} node" if nodes == 1 else f"{nodes} nodes"
            for d, name in enumerate(_NAMES):
                able = int(count[kinds[:, d] >= need[d]].sum())
                if able < nodes:
                    have = "no node has" if able == 0 else f"only {able} have"
                    return f"needs {count_of} with {need[d]} {name} in {where}, {have} that many"
            return f"needs {count_of} with {_list(need)} together in {where}, fewer have"
        for d, name in enumerate(_NAMES[:TMP]):
            amount = int((kinds[:, d] * count).sum())
            if amount < need[d]:
                return f"needs {need[d]} {name}, {where} has {amount}"
        if (kinds[:, TMP] < need[TMP]).all():
            return f"no node in {where} has {need[TMP]} {_NAMES[TMP]}"
        if int(count.sum()) < nodes or nodes > most:
            return f"needs at least {nodes} nodes, {where} gives {min(int(count.sum()), int(most))}"
        up_to = f" on at most {most} nodes (MaxNodes)" if most < int(count.sum()) else ""
        return f"needs {_list(need)} together in {where}{up_to}, which no set of its nodes has"

    def _pools(self, rows: Rows) -> Bools:
        """(L, M) distinct sets of capable nodes; sets `pool`."""
        known: dict[bytes, int] = {}
        masks: list[Bools] = []
        of_key: dict[tuple[int, int, int, int], int] = {}
        for row in rows:
            gpus = int(self.need[row, GPU]) if self.per_node[row] else min(int(self.need[row, GPU]), 1)
            key = (int(self.partition[row]), int(self.gpu_type[row]), int(self._beyond[row]), gpus)
            if key not in of_key:
                mask = self._able(*key[:3])[:, GPU] >= gpus
                of_key[key] = known.setdefault(mask.tobytes(), len(masks))
                if of_key[key] == len(masks):
                    masks.append(mask)
            self.pool[row] = of_key[key]
        return np.array(masks, dtype=np.bool_).reshape(len(masks), len(self.capacity))


def _in_all(kinds: Ints, count: Ints, need: Ints, unit: Rows, least: Ints, most: Ints) -> Bools:
    """(U,) whether the nodes, H kinds of them, give the units of each request on `least` to `most` nodes.

    A node gives as many units as it has, and whose share of CPUs and memory, rounded up, it has too.
    """
    total = need[np.arange(len(need)), unit][:, None]
    gives = np.minimum(kinds.T[unit], total)
    for d in (GPU, CPU, MEM):
        asked = need[:, d][:, None]
        gives = np.where(asked > 0, np.minimum(gives, kinds[:, d] * total // np.maximum(asked, 1)), gives)
    gives = np.where(kinds[:, TMP] >= need[:, TMP][:, None], gives, 0)
    order = np.argsort(-gives, axis=1, kind="stable")
    gives = np.take_along_axis(gives, order, axis=1)
    nodes = np.where(gives > 0, count[order], 0)
    # The best `most` nodes: what is left of it at each kind.
    used = np.diff(np.minimum(np.cumsum(nodes, axis=1), most[:, None]), axis=1, prepend=0)
    together = (gives * used).sum(axis=1)
    return np.asarray((together >= total[:, 0]) & (nodes.sum(axis=1) >= least) & (least <= most), dtype=np.bool_)


def _list(need: Ints) -> str:
    """What is asked, without what is not."""
    return ", ".join(f"{amount} {name}" for amount, name in zip(need, _NAMES, strict=True) if amount)

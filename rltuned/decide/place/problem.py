"""What is placed, and the answer; from a snapshot and a ranking to the problem."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.pools import Pools
from rltuned.core.tables import Bools, Codes, Floats, JobTable, Rows, Snapshot
from rltuned.decide.place.outcome import PlacementKind, SolveOutcome

LEAST_WEIGHT = 0.5
"""Weight of the last of many ranks, so that no penalty of a model outweighs starting a job (decision 0020)."""
HALF_RANK = 16.0  # rank at which the weight is half-way between 1 and `LEAST_WEIGHT`


@dataclass(frozen=True)
class PlacementProblem:
    """K jobs in rank order on M nodes of T GPU types. Capacities are what is free now."""

    weight: Floats  # (K,) worth per GPU of starting the job, in (0, 1], decreasing with rank
    nodes: Codes  # (K,) least number of nodes
    gpus: Codes  # (K,) GPUs in all
    gpus_per_node: Codes  # (K,) exact GPUs per node, 0: any split of the total
    gpu_type: Codes
    """(K,) column of the types, −1 any (but one type per job), T or more: a type that no node has."""
    cpus: Codes  # (K,) CPUs in all, at least one per node
    mem: Floats  # (K,) MiB in all
    tmp: Floats  # (K,) MiB of local disk per node
    exclusive: Bools
    """(K,) must have its nodes for itself (asked for whole nodes, or OverSubscribe is NO already)."""
    eligible: Bools  # (K, M) nodes that the job may use: partition, features, node lists
    free: Floats  # (M, T+3) free GPUs by type, CPUs, MiB of memory and of local disk
    total: Floats  # (M, T+2) likewise what the nodes have in all, without the disk
    idle: Bools  # (M,) wholly idle

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def types(self) -> int:
        """T, the number of GPU types."""
        return int(self.free.shape[1]) - 3

    @property
    def total_gpus(self) -> Floats:
        """(M, T)"""
        return self.total[:, :-2]

    @cached_property
    def size(self) -> Floats:
        """(K,) GPUs of a job; a CPU job counts as the GPUs that go with its CPUs or memory, whichever are more, in this
        cluster (at least 0.05). Without GPUs in the cluster, nodes take their place.
        """
        devices = float(self.total_gpus.sum()) or float(len(self.total))
        per_cpu, per_mib = (devices / max(float(amount.sum()), 1.0) for amount in self.total.T[-2:])
        equivalent = np.maximum(np.maximum(self.cpus * per_cpu, self.mem * per_mib), 0.05)
        return np.where(self.gpus > 0, self.gpus, equivalent).astype(np.float64)

    @cached_property
    def node_sizes(self) -> Floats:
        """(M,) GPUs of a node; 1 for a node without."""
        return np.asarray(np.maximum(self.total_gpus.sum(axis=1), 1.0))

    def share(self, job: int, gpus: int) -> tuple[int, float]:
        """CPUs and MiB that a job takes from a node which gives it `gpus` GPUs: even where its nodes are equal, else in
        proportion to the GPUs; CPUs rounded up.
        """
        cpus, mem = int(self.cpus[job]), float(self.mem[job])
        if self.gpus_per_node[job] > 0 or self.gpus[job] == 0:
            nodes = int(self.nodes[job])
            return -(-cpus // nodes), mem / nodes
        total = int(self.gpus[job])
        return max(1, -(-cpus * gpus // total)), mem * gpus / total


@dataclass(frozen=True)
class Way:
    """One way of placing one job: how many nodes of which rows, and what it takes from each."""

    job: int  # row of the problem
    kind: PlacementKind
    nodes: tuple[int, ...]  # node rows, in ascending order
    gpus: tuple[int, ...]
    """From each of them; CPUs and memory are `PlacementProblem.share` of these."""
    gpu_type: int  # column of the types, −1 for a job without GPUs


@dataclass(frozen=True)
class Placement:
    """The solution: at most one way per job."""

    outcome: SolveOutcome
    ways: tuple[Way, ...]  # in rank order of their jobs
    objective: float


def rank_weight(count: int) -> Floats:
    """(count,) 1 for the first rank, decreasing towards `LEAST_WEIGHT`; independent of how many follow."""
    rank = np.arange(count, dtype=np.float64)
    return LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * HALF_RANK / (HALF_RANK + rank)


def build(snapshot: Snapshot, rows: Rows, pools: Pools) -> PlacementProblem:
    """State the problem of placing the jobs `rows` (job-table rows of pending jobs, best rank first).

    `pools` are the pools of `rows`, in the same order. Row k of the problem is job-table row `rows[k]`. CPUs and memory
    that a job did not ask for are its GPU share of the leanest node of its pool.
    """
    pool_of = pools.pool_of
    jobs, table = snapshot.jobs, snapshot.nodes
    eligible = pools.nodes[pool_of] & table.usable[None, :]
    gpus = jobs.gpus[rows].astype(np.int32)
    per_node = np.where(gpus > 0, jobs.gpus_per_node[rows], 0).astype(np.int32)
    # A job of 8 GPUs at 4 per node needs 2 nodes whatever its node count says (Slurm's NumNodes of a range is a guess).
    nodes = np.maximum(jobs.nodes[rows], 1)
    nodes = np.where(per_node > 0, np.maximum(nodes, -(-gpus // np.maximum(per_node, 1))), nodes).astype(np.int32)
    gpus = np.where(per_node > 0, nodes * per_node, gpus).astype(np.int32)
    cpus, mem = _shares(snapshot, pools, pool_of, gpus, jobs.cpus[rows], jobs.mem[rows])
    free, idle = _free(snapshot)
    return PlacementProblem(
        weight=rank_weight(len(rows)),
        nodes=nodes,
        gpus=gpus,
        gpus_per_node=per_node,
        gpu_type=_types(snapshot, rows, gpus),
        cpus=np.maximum(cpus, nodes).astype(np.int32),
        mem=mem,
        tmp=np.nan_to_num(jobs.tmp[rows], nan=0.0),
        exclusive=_exclusive(snapshot, rows),
        eligible=eligible,
        free=free,
        total=np.column_stack((table.gpus, table.cpus, table.mem)).astype(np.float64),
        idle=idle,
    )


def _types(snapshot: Snapshot, rows: Rows, gpus: Codes) -> Codes:
    known = {name: column for column, name in enumerate(snapshot.nodes.gpu_types)}
    wanted = snapshot.jobs.gpu_type[rows].mapped(lambda name: known.get(name, len(known)), none=-1, kind=np.int32)
    return np.where(gpus > 0, wanted, -1).astype(np.int32)


def _exclusive(snapshot: Snapshot, rows: Rows) -> Bools:
    """(n,) jobs that only ever start on idle nodes."""
    jobs = snapshot.jobs
    whole = {p.name for p in snapshot.partitions if p.oversubscribe is OverSubscribe.EXCLUSIVE}
    # A list of partitions counts as exclusive if any of them is: idle nodes satisfy all of them.
    partition = jobs.partition[rows].mapped(lambda names: not whole.isdisjoint(names.split(",")), none=False)
    return np.asarray(jobs.exclusive[rows] | _isolated(jobs)[rows] | partition, dtype=np.bool_)


def _isolated(jobs: JobTable) -> Bools:
    """(N,) jobs whose nodes nobody may join (sbatch(1) --exclusive, or OverSubscribe=NO by scontrol)."""
    values = {OverSubscribe.NO, OverSubscribe.EXCLUSIVE}
    return np.asarray(jobs.oversubscribe.mapped(values.__contains__, none=False) | jobs.exclusive, dtype=np.bool_)


def _shares(
    snapshot: Snapshot,
    pools: Pools,
    pool_of: Codes,
    gpus: Codes,
    cpus: Codes,
    mem: Floats,
) -> tuple[Floats, Floats]:
    """CPUs and memory of each job, from its GPU share (for memory of a CPU job: its CPU share) where not given."""
    table = snapshot.nodes
    node_gpus = table.gpus.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.stack(
            [
                np.where(node_gpus > 0, table.cpus / node_gpus, np.inf),
                np.where(node_gpus > 0, table.mem / node_gpus, np.inf),
                np.where(table.cpus > 0, table.mem / table.cpus, np.inf),
            ]
        )
    used = pools.nodes & table.usable[None, :]
    # The leanest node of the pool: a share never makes a job that fits by its GPUs not fit.
    lean = np.array([[ratio[mask].min(initial=np.inf) for mask in used] for ratio in ratios]).reshape(3, len(used))
    lean = np.where(np.isfinite(lean), lean, 0.0)[:, pool_of]
    all_cpus = np.where(cpus > 0, cpus, np.maximum(np.floor(gpus * lean[0]), 1.0))
    share = np.where(gpus > 0, gpus * lean[1], all_cpus * lean[2])
    return all_cpus, np.where(np.isnan(mem), np.floor(share), mem)


def _free(snapshot: Snapshot) -> tuple[Floats, Bools]:
    """(M, T+3) what is free, and (M,) which nodes are idle."""
    jobs, table = snapshot.jobs, snapshot.nodes
    holder = np.repeat(np.arange(len(jobs)), np.diff(jobs.node_ptr))
    alone = (jobs.state[holder] == JobState.RUNNING) & _isolated(jobs)[holder]
    # Nobody may join a node whose job has it for itself, however much of it seems free.
    joinable = np.bincount(jobs.node_idx[alone], minlength=len(table)) == 0
    left = np.column_stack((table.gpus_free, table.cpus_free, table.mem_free)).astype(np.float64)
    free = np.where(joinable[:, None], left, 0.0)
    # Slurm does not account for local disk (slurm.conf(5) TmpDisk is a property): what jobs hold is unknown.
    disk = np.where(table.usable, np.nan_to_num(table.tmp, nan=0.0), 0.0)
    return np.column_stack((free, disk)), table.idle & joinable

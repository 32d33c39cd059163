"""From a snapshot and a ranking to the placement problem."""

import numpy as np
import numpy.typing as npt

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.pools import Pools
from rltuned.cluster.tables import Bools, Floats, JobState, JobTable, Snapshot
from rltuned.config import PlacementSection
from rltuned.placement.base import PlacementProblem

RELEASE_GRID = 60.0
"""Seconds. Releases within a minute of each other are one slot: a plan lives for a cycle of about that length."""
ROUNDING = 1e-6
"""What uneven splits of whole devices may lose to floating point."""
LEAST_WEIGHT = 0.5
"""Weight of the last of many ranks, so that no penalty of a model outweighs starting a job (docs/placement.md)."""
HALF_RANK = 16.0
"""Rank at which the weight is half-way between 1 and `LEAST_WEIGHT`."""


def rank_weight(count: int) -> Floats:
    """(count,) 1 for the first rank, decreasing towards `LEAST_WEIGHT`; independent of how many follow."""
    rank = np.arange(count, dtype=np.float64)
    return LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * HALF_RANK / (HALF_RANK + rank)


def build(snapshot: Snapshot, rows: npt.NDArray[np.intp], settings: PlacementSection, pools: Pools) -> PlacementProblem:
    """State the problem of placing the jobs `rows` (job-table rows of pending jobs, best rank first).

    `pools` are the pools of `rows`, in the same order; `settings.slots` is how many start slots to look at. Row k of
    the problem is job-table row `rows[k]`. The caller decides how much of the queue to place (`settings.top_k`).
    Free capacity at a later slot is today's plus what the running jobs that must have ended by then (time limit) hold:
    their GPUs, CPUs and memory evenly over their nodes, GPUs by type. CPUs and memory that a job did not ask for are
    its GPU share of the leanest node of its pool.
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
    slot_time, gpu_free, cpu_free, mem_free, idle = _slots(snapshot, settings.slots)
    tmp_free = np.where(table.usable, np.nan_to_num(table.tmp, nan=0.0), 0.0)
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
        slot_time=slot_time,
        free_gpus=gpu_free,
        free_cpus=cpu_free,
        free_mem=mem_free,
        # Slurm does not account for local disk (slurm.conf(5) TmpDisk is a property): what jobs hold is unknown.
        free_tmp=np.repeat(tmp_free[None, :], len(slot_time), axis=0),
        idle=idle,
        total_gpus=table.gpus.astype(np.int32),
        total_cpus=table.cpus.astype(np.int32),
        total_mem=table.mem.astype(np.float64),
    )


def _types(snapshot: Snapshot, rows: npt.NDArray[np.intp], gpus: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    known = {name: column for column, name in enumerate(snapshot.nodes.gpu_types)}
    names = snapshot.jobs.gpu_type.names
    column = np.array([known.get(name, len(known)) for name in names] + [-1], dtype=np.int32)
    return np.where(gpus > 0, column[snapshot.jobs.gpu_type.codes[rows]], -1).astype(np.int32)


def _exclusive(snapshot: Snapshot, rows: npt.NDArray[np.intp]) -> Bools:
    """(n,) jobs that only ever start on idle nodes."""
    jobs = snapshot.jobs
    whole = {p.name for p in snapshot.partitions if p.oversubscribe is OverSubscribe.EXCLUSIVE}
    # A list of partitions counts as exclusive if any of them is: idle nodes satisfy all of them.
    partition = np.array([bool(whole & set(name.split(","))) for name in jobs.partition.names] + [False])
    return np.asarray(jobs.exclusive[rows] | _alone(jobs)[rows] | partition[jobs.partition.codes[rows]], dtype=np.bool_)


def _alone(jobs: JobTable) -> Bools:
    """(N,) jobs whose nodes nobody may join (sbatch(1) --exclusive, or OverSubscribe=NO by scontrol)."""
    values = {OverSubscribe.NO, OverSubscribe.EXCLUSIVE}
    alone = np.array([name in values for name in jobs.oversubscribe.names] + [False])
    return np.asarray(alone[jobs.oversubscribe.codes] | jobs.exclusive, dtype=np.bool_)


def _shares(
    snapshot: Snapshot,
    pools: Pools,
    pool_of: npt.NDArray[np.int32],
    gpus: npt.NDArray[np.int32],
    cpus: npt.NDArray[np.int32],
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


def _slots(
    snapshot: Snapshot, most: int
) -> tuple[Floats, npt.NDArray[np.int32], npt.NDArray[np.int32], Floats, npt.NDArray[np.bool_]]:
    """Slot times and, at each, free GPUs (S, M, T), CPUs, memory (S, M) and idleness (S, M)."""
    jobs, table = snapshot.jobs, snapshot.nodes
    running = jobs.running
    left = np.maximum(np.ceil((jobs.end_time[running] - snapshot.time) / RELEASE_GRID), 1.0) * RELEASE_GRID
    times = np.unique(left[np.isfinite(left)])[: most - 1]
    slot_time = np.concatenate(([0.0], times))
    alone = _alone(jobs)
    held_gpus = table.gpus_alloc.astype(np.float64)
    held_cpus = table.cpus_alloc.astype(np.float64)
    held_mem = table.mem_alloc.astype(np.float64)
    holder = np.repeat(np.arange(len(jobs)), np.diff(jobs.node_ptr))
    held = jobs.state[holder] == JobState.RUNNING
    holders = np.bincount(jobs.node_idx[held], minlength=len(table))
    closed = np.bincount(jobs.node_idx[held & alone[holder]], minlength=len(table))
    usable = table.usable
    columns: list[tuple[Floats, Floats, Floats, Bools]] = []
    for slot, time in enumerate(slot_time):
        if slot > 0:
            for row in running[left == time]:
                _release(snapshot, int(row), held_gpus, held_cpus, held_mem)
                nodes = jobs.nodes_of(int(row))
                closed[nodes] -= int(alone[row])
                holders[nodes] -= 1
                # The last one out leaves nothing behind, however unevenly its resources really lay.
                empty = nodes[holders[nodes] == 0]
                held_gpus[empty], held_cpus[empty], held_mem[empty] = 0.0, 0.0, 0.0
        # Nobody may join a node whose job has it for itself, however much of it seems free.
        open_ = usable & (closed == 0)
        busy = (held_cpus > 0) | (held_gpus.sum(axis=1) > 0) | (held_mem > 0)
        columns.append(
            (
                np.where(open_[:, None], np.maximum(table.gpus - held_gpus, 0), 0),
                np.where(open_, np.maximum(table.cpus - held_cpus, 0), 0),
                np.where(open_, np.maximum(table.mem - held_mem, 0.0), 0.0),
                np.asarray(open_ & ~busy),
            )
        )
    gpu, cpu, mem, idle = (np.stack(list(column)) for column in zip(*columns, strict=True))
    return slot_time, np.floor(gpu + ROUNDING).astype(np.int32), np.floor(cpu + ROUNDING).astype(np.int32), mem, idle


def _release(snapshot: Snapshot, row: int, held_gpus: Floats, held_cpus: Floats, held_mem: Floats) -> None:
    """Give back what running job `row` holds, evenly over its nodes and never more than a node has allocated."""
    jobs, table = snapshot.jobs, snapshot.nodes
    nodes = jobs.nodes_of(row)
    if len(nodes) == 0:
        return
    held_cpus[nodes] = np.maximum(held_cpus[nodes] - jobs.cpus[row] / len(nodes), 0.0)
    mem = jobs.mem[row]
    # --mem=0 holds all memory of its nodes.
    held_mem[nodes] = 0.0 if np.isnan(mem) else np.maximum(held_mem[nodes] - mem / len(nodes), 0.0)
    if jobs.gpus[row] > 0:
        kind = jobs.gpu_type.value(row)
        columns = [table.gpu_types.index(kind)] if kind in table.gpu_types else range(len(table.gpu_types))
        rest = np.full(len(nodes), jobs.gpus[row] / len(nodes))
        for column in columns:
            given = np.minimum(rest, held_gpus[nodes, column])
            held_gpus[nodes, column] -= given
            rest -= given

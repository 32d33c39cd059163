"""The simulator's initial state: an idle cluster and a workload, or a snapshot with its running and waiting jobs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.pools import job_pools
from rltuned.core.tables import Bools, Floats, Ints, JobTable, NodeTable, Partition, Rows, Snapshot
from rltuned.core.taken import alone
from rltuned.decide.scope import priority_tiers
from rltuned.simulate import kernel as k
from rltuned.simulate.requests import Requests, capacity
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Backfill, Estimates, Fit, JobFate, SimulationSettings
from rltuned.simulate.workload.jobs import Workload

_PLENTY: Final = 2**40
_SLURM: Final = SimulationSettings()
_BACKFILL: Final = {Backfill.NONE: k.NO_BACKFILL, Backfill.EASY: k.EASY_BACKFILL, Backfill.SLURM: k.SLURM_BACKFILL}
_KINDS: Final = 32
"""Of waiting jobs, for which sched/backfill remembers what it has computed."""
_FIT: Final = {Fit.BEST: k.BEST, Fit.WORST: k.WORST, Fit.SLURM: k.SLURM}


class ArrivalRoom(NamedTuple):
    """Room for arrivals that have requests, partitions and pools of their own; who writes their records writes them."""

    slots: int  # nodes that the arrivals of a scenario may get together, at most
    pools: Bools  # (E, M) nodes; these pools follow those of the waiting jobs


def initial_state(
    snapshot: Snapshot,
    queue: Rows,
    run_times: Floats,
    settings: SimulationSettings = _SLURM,
    arrivals: int = 0,
    room: ArrivalRoom | None = None,
) -> k.State:
    """The cluster as it was read, as a state of the simulator. Its clock starts at 0 when the snapshot was read.

    Its jobs are the waiting ones of `queue` (n,) in that order, the running ones, then free rows for `arrivals`, jobs
    that are assumed to come; `room` is what these need beside their rows. `run_times`: (N,) expected seconds of every
    job of the table, from its start; a running job that has outlived them takes half as long again. A job for several
    partitions waits in one of its own that has all their nodes.
    """
    jobs, running, n = snapshot.jobs, snapshot.jobs.running, len(queue)
    pools = job_pools(snapshot, queue)
    rows = np.concatenate((queue, running))
    known = len(rows)
    records = unstarted(known + arrivals)
    need = np.zeros((len(records), k.DIMENSIONS), dtype=np.int64)
    partitions, records["partition"][:known] = _partitions(snapshot, rows)
    records["tier"][:n] = priority_tiers(snapshot, queue)
    records["alone"][:known] = _alone(snapshot, rows)
    records["limit"][:known] = np.maximum(jobs.time_limit[rows], 1.0)
    records["run"][:known] = np.minimum(np.maximum(run_times[rows], 1.0), records["limit"][:known])
    records["submit"][:n] = -np.fmax(snapshot.time - jobs.eligible_time[queue], 0.0)
    records["pool"][:n] = pools.pool_of
    records["user"][:known] = 1 + _first_of(jobs.user.codes[rows])
    records["peer"] = 1 + _first_of(records["partition"])
    records["submit"][known:] = np.inf
    most = np.array([min(partition.max_nodes, _PLENTY) for partition in partitions] or [1], dtype=np.int64)
    pool_nodes = pools.nodes if room is None else np.concatenate((pools.nodes, room.pools))
    size = pools.nodes.sum(axis=1)
    asked = jobs.take(queue)
    width = ask(asked, size[pools.pool_of], most[records["partition"][:n]], records[:n], need[:n])
    need[:n, k.DISK] = np.minimum(asked.tmp, _PLENTY).astype(np.int64)
    records["on"][n:known] = np.diff(jobs.node_ptr)[running]
    slot = np.concatenate(([0], np.cumsum(np.concatenate((width, records["on"][n:known])))))
    records["slot"][:known], records["slot"][known:] = slot[:-1], slot[-1]
    state = idle_state(
        records,
        need,
        int(slot[-1]) + (0 if room is None else room.slots),
        snapshot.nodes,
        pool_nodes,
        partitions,
        settings,
        n + arrivals,
    )
    state.counts[k.NEXT] = known
    _occupy(state, snapshot, n, int(slot[n]))
    return state


def set_time_left(running: k.Array, left: Floats) -> None:
    """Let these running jobs go on for so many seconds, but not past their limits."""
    running["end"] = running["freed"] = np.minimum(left, running["ends_by"])
    running["run"] = running["end"] - running["start"]


def restore(state: k.State, initial: Sequence[Any]) -> None:
    """Begin again. `initial` has all columns of the state but the last: what was planned does not outlive a pass."""
    for column, first in zip(state[:-1], initial, strict=True):
        column[...] = first


def heap_by_end(jobs: k.Array) -> Ints:
    """(J,) the kernel's heap of running jobs. A sorted list is a heap."""
    running = np.flatnonzero(jobs["fate"] == k.RUNNING)
    heap = np.zeros(len(jobs), dtype=np.int64)
    heap[: len(running)] = running[np.argsort(jobs["freed"][running], kind="stable")]
    return heap


def _occupy(state: k.State, snapshot: Snapshot, pending: int, slot: int) -> None:
    """Give the running jobs (rows from `pending` on, slots from `slot` on) their nodes and the time they have left."""
    jobs, nodes, running = snapshot.jobs, snapshot.nodes, snapshot.jobs.running
    records, room = state.jobs[pending : pending + len(running)], state.amount[k.ROOM]
    owner = np.repeat(np.arange(len(running)), records["on"])
    of_running = np.repeat(jobs.state == JobState.RUNNING, np.diff(jobs.node_ptr))
    held = jobs.node_idx[of_running].astype(np.int64)
    # What is free of a node, usable or not. Slurm reports all that is allocated of it except local disk.
    disk = np.bincount(held, weights=jobs.tmp[running][owner], minlength=len(nodes))
    used = np.stack((nodes.gpus_alloc.sum(axis=1), nodes.cpus_alloc, np.ceil(nodes.mem_alloc), disk), axis=1)
    state.amount[k.NOW_FREE] = np.maximum(room - np.minimum(used, _PLENTY).astype(np.int64), 0)
    taken = room - state.amount[k.NOW_FREE]
    held_by = slice(slot, slot + len(held))
    state.given_node[held_by] = held
    state.given[held_by] = _given(jobs, running, owner, held, taken, records["alone"] == k.WHOLE)
    state.jobs_on[k.NOW_FREE] = np.bincount(held, minlength=len(nodes))
    state.closed[k.NOW_FREE, held[(records["alone"] != k.SHARED)[owner]]] = True
    records["fate"] = k.RUNNING
    records["start"] = np.fmin(jobs.start_time[running] - snapshot.time, 0.0)
    ends_by = np.nan_to_num(jobs.end_time[running] - snapshot.time, nan=np.inf, posinf=np.inf)
    records["ends_by"] = np.maximum(ends_by, 0.0)
    expected, elapsed = records["run"], -records["start"]
    set_time_left(records, np.where(expected > elapsed, expected - elapsed, 0.5 * np.maximum(elapsed, 1.0)))
    state.heap[:] = heap_by_end(state.jobs)
    state.holding[: len(running)] = pending + np.argsort(records["ends_by"], kind="stable")
    state.counts[k.HOLDING] = len(running)


def ask(jobs: Any, pool_size: Ints, most: Ints | int, records: Any, need: Ints) -> Ints:
    """Write what n jobs that wait ask for, but local disk, into `records` and `need`. `jobs`: a table with the columns
    of `JobTable` for that; `most`: MaxNodes. Returns (n,) the most nodes that each may get.
    """
    count = np.maximum(jobs.nodes, 1).astype(np.int64)
    gpus, cpus = jobs.gpus.astype(np.int64), np.maximum(jobs.cpus, 0).astype(np.int64)
    mem = np.nan_to_num(np.minimum(jobs.mem, _PLENTY), nan=0.0).astype(np.int64)
    # A job with GPUs per node gets exactly its nodes, each with the same share. One with GPUs in all, or with CPUs that
    # do not divide by its nodes, gets at least its number of nodes.
    per_node = np.where(gpus > 0, (jobs.gpus_per_node > 0) | (gpus <= 1), cpus % count == 0)
    each = np.where(per_node, count, 1)
    for column, amount in enumerate((gpus, cpus, mem)):
        need[:, column] = -(-amount // each)
    units = np.maximum(np.where(gpus > 0, gpus, cpus), 1)
    records["form"] = np.where(per_node, k.PER_NODE, k.IN_ALL)
    records["least"] = np.where(per_node, count, np.minimum(count, units))
    records["most_nodes"] = np.where(per_node, count, most)
    width: Ints = np.where(per_node, count, np.minimum(units, np.maximum(pool_size, 1)))
    return width


def _given(jobs: JobTable, running: Rows, owner: Rows, held: Ints, taken: Ints, whole: Bools) -> Ints:
    """(slots, 4) what running jobs hold of each of their nodes: even shares, but never more of a node than is `taken`.

    Slurm does not report the shares. What even ones leave of a node goes, in order, to the jobs on it that got less
    than they hold. A job that holds whole nodes has all that is taken of them.
    """
    on = np.bincount(owner, minlength=len(running))
    mem = np.nan_to_num(np.minimum(jobs.mem[running], _PLENTY), nan=0.0)
    total = np.stack((jobs.gpus[running], jobs.cpus[running], mem), axis=1).astype(np.int64)
    given = np.zeros((len(held), k.DIMENSIONS), dtype=np.int64)
    given[:, :3] = -(-total // np.maximum(on, 1)[:, None])[owner]
    given[:, k.DISK] = np.minimum(jobs.tmp[running], _PLENTY).astype(np.int64)[owner]
    given[whole[owner]] = taken[held[whole[owner]]]
    order = np.argsort(held, kind="stable")
    node = held[order]
    first = np.searchsorted(node, node)  # where the entries of the same node begin
    for d in range(k.DIMENSIONS):
        running_sum = np.cumsum(given[order, d])
        before = np.where(first > 0, running_sum[np.maximum(first - 1, 0)], 0)
        upto = np.minimum(running_sum - before, taken[node, d])
        start = np.arange(len(node)) == first
        given[order, d] = np.diff(upto, prepend=0) * ~start + upto * start
    for d in range(k.DISK):
        _make_up(given[:, d], owner, held, total[:, d], taken[:, d])
    return given


def _make_up(given: Ints, owner: Rows, held: Ints, total: Ints, taken: Ints) -> None:
    """Give what even shares have left of nodes to the jobs on them that hold more in all. For one kind of resource."""
    have = np.bincount(owner, weights=given, minlength=len(total)).astype(np.int64)
    if (have >= total).all():
        return
    left = taken - np.bincount(held, weights=given, minlength=len(taken)).astype(np.int64)
    for at in np.flatnonzero((have < total)[owner]):
        job = owner[at]
        more = min(int(left[held[at]]), int(total[job] - have[job]))
        if more > 0:
            given[at] += more
            left[held[at]] -= more
            have[job] += more


def _alone(snapshot: Snapshot, rows: Rows) -> Ints:
    """(n,) with whom a job shares its nodes: SHARED, ISOLATED or WHOLE of the kernel."""
    isolated = snapshot.jobs.oversubscribe[rows].mapped(OverSubscribe.NO.value.__eq__, none=False)
    return np.where(alone(snapshot, rows), k.WHOLE, np.where(isolated, k.ISOLATED, k.SHARED))


def _partitions(snapshot: Snapshot, rows: Rows) -> tuple[list[Partition], Ints]:
    """The partitions of the snapshot and, behind them, one for each list of several that these jobs name: a partition
    must have all nodes that its jobs may get. And (n,) which of them each job waits in.
    """
    partitions = list(snapshot.partitions)
    index = {partition.name: at for at, partition in enumerate(partitions)}
    column = snapshot.jobs.partition
    of = np.zeros(len(column.names) + 1, dtype=np.int64)
    for code in np.unique(column.codes[rows]):
        names = column.names[code] if code >= 0 else ""
        several = [partition for partition in snapshot.partitions_of(names) if partition is not None]
        if len(several) > 1:
            nodes = np.unique(np.concatenate([partition.nodes for partition in several]))
            most = max(partition.max_nodes for partition in several)
            of[code] = len(partitions)
            partitions.append(replace(several[0], name=names, nodes=nodes, max_nodes=most))
        elif several:
            of[code] = index[several[0].name]
    return partitions, of[column.codes[rows]]


def idle_cluster(
    shape: ClusterShape, jobs: Workload, estimates: Estimates, asked: Requests, settings: SimulationSettings
) -> k.State:
    """The idle cluster at the time of the first submission."""
    # A request in all may be spread over as many nodes as it has units, or as its pool has nodes.
    units = np.where(asked.gpus > 0, asked.gpus, asked.cpus)
    size_of_pool = asked.pool_nodes.sum(axis=1)[np.maximum(asked.pool, 0)] if len(asked.pool_nodes) else 0
    width = np.minimum(np.where(asked.per_node, asked.most_nodes, units), size_of_pool)
    width[list(asked.rejected)] = 0
    slot = np.concatenate(([0], np.cumsum(width))).astype(np.int64)
    partition = np.maximum(asked.partition, 0)
    tiers = np.array([p.priority_tier for p in shape.partitions], dtype=np.int64)
    whole = np.array([p.oversubscribe is OverSubscribe.EXCLUSIVE for p in shape.partitions], dtype=np.bool_)
    records = unstarted(len(jobs))
    records["submit"], records["run"], records["limit"] = jobs.submit_time, jobs.run_time, estimates.time_limit
    records["form"] = np.where(asked.per_node, k.PER_NODE, k.IN_ALL)
    records["least"], records["most_nodes"] = np.maximum(asked.nodes, 1), asked.most_nodes
    records["pool"], records["partition"] = np.maximum(asked.pool, 0), partition
    records["tier"], records["alone"] = tiers[partition], np.where(whole[partition], k.WHOLE, k.SHARED)
    records["user"], records["peer"] = 1 + _first_of(jobs.user.codes), 1 + _first_of(partition)
    records["slot"] = slot[:-1]
    records["curve"], records["fewest"], records["work"] = jobs.curve + 1, asked.nodes, jobs.run_time
    records["fate"][list(asked.rejected)] = JobFate.REJECTED
    state = idle_state(
        records,
        np.stack((asked.gpus, asked.cpus, asked.mem, asked.tmp), axis=1),
        int(slot[-1]),
        shape.nodes,
        asked.pool_nodes,
        shape.partitions,
        settings,
        len(jobs),
    )._replace(scaling=np.ascontiguousarray(jobs.scaling, dtype=np.float64))
    if len(jobs):
        state.clock[k.NOW] = jobs.submit_time[0]
    return state


def _first_of(of: npt.NDArray[Any]) -> Rows:
    """(n,) the first row with the same value."""
    _, first, inverse = np.unique(of, return_index=True, return_inverse=True)
    return first[inverse]


def unstarted(count: int) -> k.Array:
    """(count,) `kernel.JOB` of jobs that have not started, and that no refresh has seen."""
    records = np.zeros(count, dtype=k.JOB)
    records["start"], records["end"], records["ends_by"], records["key"] = np.nan, np.nan, np.inf, np.inf
    return records


def idle_state(
    jobs: k.Array,
    need: Ints,
    slots: int,
    table: NodeTable,
    pool_nodes: Bools,
    partitions: Sequence[Partition],
    settings: SimulationSettings,
    waiting: int,
) -> k.State:
    """The kernel's state at time 0: nobody is in the queue, nothing runs. The jobs are not copied; `slots`: nodes that
    all of them together may get; `waiting`: how many may ever wait. `pool_nodes` (L, M) and `partitions` are what
    `pool` and `partition` of the jobs count.
    """
    n, m, pools = len(jobs), len(table), len(pool_nodes)
    amount = np.zeros((5, m, k.DIMENSIONS), dtype=np.int64)
    amount[k.NOW_FREE] = amount[k.ROOM] = capacity(table)
    nodes = np.zeros(m, dtype=k.NODE)
    nodes["usable"], nodes["weight"], nodes["shadow"] = table.usable, table.weights, np.inf
    pool_ptr, pool_members = _ragged([np.flatnonzero(mask) for mask in pool_nodes])
    part_ptr, part_members = _ragged([partition.nodes for partition in partitions])
    member = np.zeros((len(partitions), m), dtype=np.bool_)
    member[np.repeat(np.arange(len(partitions)), np.diff(part_ptr)), part_members] = True
    return k.State(
        jobs=jobs,
        need=need,
        given_node=np.zeros(slots, dtype=np.int64),
        given=np.zeros((slots, k.DIMENSIONS), dtype=np.int64),
        queue=np.zeros(n, dtype=np.int64),
        fresh=np.zeros(n, dtype=np.int64),
        heap=np.zeros(n, dtype=np.int64),
        holding=np.zeros(n, dtype=np.int64),
        nodes=nodes,
        amount=amount,
        jobs_on=np.zeros((2, m), dtype=np.int64),
        closed=np.zeros((2, m), dtype=np.bool_),
        pick=np.zeros((m, k.DIMENSIONS), dtype=np.int64),
        pool_ptr=pool_ptr,
        pool_nodes=pool_members,
        part_ptr=part_ptr,
        part_nodes=part_members,
        pools=np.zeros(pools, dtype=k.POOL),
        blocked=np.zeros(len(partitions), dtype=np.bool_),
        clock=np.array([0.0, np.inf, np.inf, -np.inf, np.inf]),
        counts=np.zeros(k.COUNTS, dtype=np.int64),
        scaling=np.ones((0, 1)),
        plans=plans(settings, member, n, waiting, slots),
    )


def _ragged(rows: Sequence[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """Row pointer and, one after the other, the values of all rows."""
    ptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    flat = np.concatenate([*rows, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    return ptr, flat


def plans(settings: SimulationSettings, member: Bools, jobs: int, waiting: int, slots: int) -> k.Plans:
    """Room for what a pass of sched/backfill plans. Each waiting job that it looks at plans a node once at most."""
    used = settings.backfill is Backfill.SLURM
    nodes, parts = (member.shape[1], member.shape[0]) if used else (0, 0)
    tested = min(settings.bf_max_job_test, waiting) if used else 0
    kinds, jobs, slots = (_KINDS, jobs, slots) if used else (0, 0, 0)
    return k.Plans(
        member=member,
        start=np.zeros((nodes, tested)),
        end=np.zeros((nodes, tested)),
        by_end_start=np.zeros((parts, tested)),
        by_end=np.zeros((parts, tested)),
        partitions=np.zeros(parts, dtype=k.PARTITION),
        limit_end=np.zeros(jobs),
        release_ptr=np.zeros(nodes + 2, dtype=np.int64),
        release_at=np.zeros(slots, dtype=np.int64),
        release_slot=np.zeros(slots, dtype=np.int64),
        kinds=np.zeros(kinds, dtype=k.KIND),
        ready=np.zeros((kinds, nodes), dtype=np.int64),
        clear=np.zeros((kinds, nodes)),
        earliest=np.zeros(nodes),
    )


def setup(settings: SimulationSettings, *, plan_all: bool = False) -> k.Setup:
    """The settings as the kernel takes them."""
    own = {"backfill", "fit", "stale", "plan_all", "shorter"}
    same = {name: kind for name, kind in k.Setup.__annotations__.items() if name not in own}
    return k.Setup(
        backfill=int(_BACKFILL[settings.backfill]),
        fit=_FIT[settings.fit],
        stale=float(max(settings.stale, settings.refresh)),
        plan_all=plan_all,
        shorter=False,
        **{name: kind(getattr(settings, name)) for name, kind in same.items()},
    )

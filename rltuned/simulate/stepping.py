"""`Stepper` moves a state of the kernel from one refresh to the next. `idle_cluster` and `idle_state` make states.

`engine.Simulation`, rollouts (`scenarios`) and training episodes (`episodes`) run the kernel through this class.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Bools, Floats, Ints, Partition, Rows
from rltuned.errors import RltunedError
from rltuned.simulate import kernel as k
from rltuned.simulate.loop_kernel import REFRESH, advance
from rltuned.simulate.requests import Requests, requests
from rltuned.simulate.values import Backfill, Estimates, Fit, JobFate, SimulationSettings
from rltuned.workload.jobs import Workload

_BACKFILL: Final = {
    Backfill.NONE: k.NO_BACKFILL,
    Backfill.EASY: k.EASY_BACKFILL,
    Backfill.SLURM: k.SLURM_BACKFILL,
}
_KINDS: Final = 32
"""Of waiting jobs, for which sched/backfill remembers what it has computed."""
_FIT: Final = {Fit.BEST: k.BEST, Fit.WORST: k.WORST, Fit.SLURM: k.SLURM}


class Stepper:
    """A state of the kernel, and the settings with which it moves in time."""

    def __init__(self, state: k.State, settings: SimulationSettings) -> None:
        self.state, self.setup = state, _setup(settings)

    def advance(self, ranking: k.Ranking, until: float = np.inf) -> bool:
        """Move to the next moment at which the queue wants to be ranked. False: `until` is reached, events at it
        included, or nothing can happen any more.
        """
        return bool(advance(self.state, self.setup, ranking, float(until)) == REFRESH)

    def something_changed(self) -> None:
        """Both passes look at the queue again."""
        k.something_changed(self.state, self.setup)

    def enqueue(self, job: int) -> None:
        """Put a job into its place in the queue, unranked."""
        self.state.jobs["key"][job] = np.inf
        self.state.counts[k.UNRANKED] += 1
        k.enqueue(self.state, job)

    def finish(self, job: int) -> None:
        """A running job ends now. Its end stays in the heap."""
        k.finish(self.state, self.setup, job)

    def order(self, rows: Rows, keys: Floats) -> bool:
        """Give some pending jobs new keys, smaller first. Returns whether that changes the order of the queue."""
        s, n = self.state, int(self.state.counts[k.QUEUED])
        s.jobs["key"][rows] = keys
        queue = s.queue[:n]
        key, tier = s.jobs["key"][queue], s.jobs["tier"][queue]
        s.counts[k.UNRANKED] = int((key == np.inf).sum())
        # The queue is nearly in order, and a stable sort (Timsort) of one column is fast at that.
        order = np.argsort(key, kind="stable")
        ties = key[order[1:]] == key[order[:-1]]
        if (tier != tier[:1]).any() or (ties & (queue[order[1:]] < queue[order[:-1]])).any():
            order = np.lexsort((queue, key, -tier))
        s.queue[:n] = queue[order]
        return bool((order != np.arange(n)).any())

    def configure(self, settings: SimulationSettings) -> None:
        """Go on with other settings."""
        self.setup = _setup(settings)
        s = self.state
        self.state = s._replace(plans=_plans(settings, s.plans.member, len(s.jobs), len(s.jobs), len(s.given)))


def checked_requests(
    shape: ClusterShape, jobs: Workload, estimates: Estimates, asked: Requests | None = None
) -> Requests:
    """What the jobs ask of the cluster; `asked`, where the caller has it.

    Raises:
        RltunedError: estimates of another length, or that are no times.
    """
    if not len(estimates.time_limit) == len(estimates.run_time) == len(jobs):
        raise RltunedError(f"{len(jobs)} jobs, but {len(estimates.time_limit)} time limits")
    if len(jobs) and not (estimates.time_limit.min() >= 1.0 and estimates.run_time.min() >= 1.0):
        raise RltunedError("every time limit and every estimate must be at least one second")
    return asked if asked is not None else requests(shape, jobs, estimates.time_limit)


def idle_cluster(
    shape: ClusterShape,
    jobs: Workload,
    estimates: Estimates,
    asked: Requests,
    settings: SimulationSettings,
) -> Stepper:
    """The idle cluster at the time of the first submission. `asked`: of `checked_requests`."""
    # A request in all may be spread over as many nodes as it has units, or as its pool has nodes.
    units = np.where(asked.gpus > 0, asked.gpus, asked.cpus)
    size_of_pool = asked.pool_nodes.sum(axis=1)[np.maximum(asked.pool, 0)] if len(asked.pool_nodes) else 0
    width = np.where(asked.per_node, asked.nodes, np.minimum(units, size_of_pool))
    width[list(asked.rejected)] = 0
    slot = np.concatenate(([0], np.cumsum(width))).astype(np.int64)
    state = idle_state(
        _job_records(jobs, estimates, asked, shape, slot),
        np.stack((asked.gpus, asked.cpus, asked.mem, asked.tmp), axis=1),
        int(slot[-1]),
        asked.capacity,
        shape.nodes.usable,
        asked.pool_nodes,
        shape.partitions,
        settings,
    )
    if len(jobs):
        state.clock[k.NOW] = jobs.submit_time[0]
    return Stepper(state, settings)


def _job_records(
    jobs: Workload, estimates: Estimates, asked: Requests, shape: ClusterShape, slot: Ints
) -> npt.NDArray[Any]:
    partition = np.maximum(asked.partition, 0)
    tiers = np.array([p.priority_tier for p in shape.partitions], dtype=np.int64)
    whole = np.array([p.oversubscribe is OverSubscribe.EXCLUSIVE for p in shape.partitions], dtype=np.bool_)
    records = np.zeros(len(jobs), dtype=k.JOB)
    columns: dict[str, Any] = {
        "submit": jobs.submit_time,
        "run": jobs.run_time,
        "limit": estimates.time_limit,
        "form": np.where(asked.per_node, k.PER_NODE, k.IN_ALL),
        "least": np.maximum(asked.nodes, 1),
        "most_nodes": asked.most_nodes,
        "pool": np.maximum(asked.pool, 0),
        "partition": partition,
        "tier": tiers[partition],
        "alone": np.where(whole[partition], k.WHOLE, k.SHARED),
        "slot": slot[:-1],
        "key": np.inf,
        "start": np.nan,
        "end": np.nan,
        "ends_by": np.inf,
    }
    for name, values in columns.items():
        records[name] = values
    records["fate"][list(asked.rejected)] = JobFate.REJECTED
    return records


def idle_state(
    jobs: k.Array,
    need: Ints,
    slots: int,
    capacity: Ints,
    usable: Bools,
    pool_nodes: Bools,
    partitions: Sequence[Partition],
    settings: SimulationSettings,
    waiting: int | None = None,
) -> k.State:
    """The kernel's state at time 0 with nobody in the queue and nothing running.

    Args:
        jobs: (J,) `kernel.JOB`; not copied.
        need: (J, 4), as in `kernel.State`.
        slots: nodes that all jobs together may get.
        capacity: (M, 4) what an empty node has.
        usable: (M,)
        pool_nodes: (L, M) the sets that `pool` of the jobs counts.
        partitions: those that `partition` of the jobs counts.
        settings: Slurm's.
        waiting: how many of the jobs may ever wait; None: all.
    """
    n, m, pools = len(jobs), len(capacity), len(pool_nodes)
    amount = np.zeros((5, m, k.DIMENSIONS), dtype=np.int64)
    amount[k.NOW_FREE] = amount[k.ROOM] = capacity
    nodes = np.zeros(m, dtype=k.NODE)
    nodes["usable"], nodes["shadow"] = usable, np.inf
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
        heap=np.zeros(n, dtype=k.END),
        holding=np.zeros(n, dtype=np.int64),
        nodes=nodes,
        amount=amount,
        jobs_on=np.zeros((2, m), dtype=np.int64),
        closed=np.zeros((2, m), dtype=np.bool_),
        pick=np.zeros((m, k.DIMENSIONS), dtype=np.int64),
        tally=np.zeros(int(capacity[:, :2].max(initial=0)) + 1, dtype=np.int64),
        pool_ptr=pool_ptr,
        pool_nodes=pool_members,
        part_ptr=part_ptr,
        part_nodes=part_members,
        known=np.zeros(pools, dtype=np.bool_),
        most=np.zeros((pools, 4), dtype=np.int64),
        shadow_range=np.zeros((pools, 2)),
        blocked=np.zeros(len(partitions), dtype=np.bool_),
        clock=np.array([0.0, np.inf, np.inf, -np.inf, np.inf]),
        counts=np.zeros(k.COUNTS, dtype=np.int64),
        plans=_plans(settings, member, n, n if waiting is None else waiting, slots),
    )


def _ragged(rows: Sequence[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """Row pointer and, one after the other, the values of all rows."""
    ptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    flat = np.concatenate([*rows, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    return ptr, flat


def _plans(settings: SimulationSettings, member: Bools, jobs: int, waiting: int, slots: int) -> k.Plans:
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
        planned=np.zeros(parts, dtype=np.int64),
        limit_end=np.zeros(jobs),
        release_ptr=np.zeros(nodes + 2, dtype=np.int64),
        release_at=np.zeros(slots, dtype=np.int64),
        release_slot=np.zeros(slots, dtype=np.int64),
        kind_job=np.zeros(kinds, dtype=np.int64),
        kind_limit=np.zeros(kinds),
        kind_since=np.zeros(kinds),
        kind_before=np.zeros(kinds),
        kind_hopeless=np.zeros(kinds),
        ready=np.zeros((kinds, nodes), dtype=np.int64),
        clear=np.zeros((kinds, nodes)),
        earliest=np.zeros(nodes),
    )


def _setup(settings: SimulationSettings) -> k.Setup:
    """The settings as the kernel takes them."""
    return k.Setup(
        backfill=int(_BACKFILL[settings.backfill]),
        fit=_FIT[settings.fit],
        sched_interval=float(settings.sched_interval),
        bf_interval=float(settings.bf_interval),
        bf_offset=float(settings.bf_offset),
        bf_max_job_test=int(settings.bf_max_job_test),
        bf_window=float(settings.bf_window),
        bf_resolution=float(settings.bf_resolution),
        refresh=float(settings.refresh),
        stale=float(max(settings.stale, settings.refresh)),
        turnover=float(settings.turnover),
        launch=float(settings.launch),
        kill_interval=float(settings.kill_interval),
    )

"""What is written for a plan, with the placement of its front, in the order of writing; what is given back instead."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from rltuned.cluster.changes import (
    MAX_FACTOR,
    Applied,
    Change,
    Field,
    OverSubscribe,
)
from rltuned.cluster.pools import Pools
from rltuned.cluster.tables import Ints, Snapshot
from rltuned.config import PlacementApply, PlacementSection
from rltuned.decide.managed import ManagedJobs
from rltuned.decide.outside import Rows
from rltuned.decide.ranks import Order, ranks_of
from rltuned.decide.scope import Veto
from rltuned.placement import Placement, build, isolated, place


@dataclass(frozen=True)
class Front:
    """The K jobs that the placement is about."""

    rows: Rows
    """(K,) rows of the job table in the planned order."""
    placement: Placement | None
    """Its jobs are positions in `rows`. None: placement is off, or there is no job."""
    isolate: frozenset[int]
    """Rows of the job table: jobs that the placement spreads onto idle nodes."""


_NOTHING: Final = Front(np.zeros(0, dtype=np.intp), None, frozenset())


def place_front(managed: ManagedJobs, queue: Rows, window: Rows, settings: PlacementSection) -> Front:
    """Place the front of the queue, (n,) positions of managed jobs, as far as they are in the (w,) `window`."""
    if settings.apply is PlacementApply.OFF or not len(queue):
        return _NOTHING
    visible = np.zeros(len(queue), dtype=np.bool_)
    visible[window] = True
    head = queue[visible[queue]][: settings.top_k]
    rows, pools = managed.rows[head], managed.pools
    problem = build(managed.snapshot, rows, Pools(pools.pool_of[head], pools.nodes, pools.gpu_type))
    placement = place(problem, settings)
    isolate = isolated(placement, problem, managed.snapshot.nodes.asleep)
    return Front(rows, placement, frozenset(int(rows[k]) for k in isolate))


def changes_of(
    managed: ManagedJobs, queue: Rows, target: Ints, front: Front, withdraw: tuple[int, ...]
) -> tuple[Change, ...]:
    """The changes, head of the queue first.

    Args:
        managed: n managed jobs.
        queue: (n,) their positions in the planned order.
        target: (n,) priorities that they shall have.
        front: what the placement wants.
        withdraw: jobs that are given back; none of them is changed.
    """
    jobs, applied = managed.snapshot.jobs, managed.applied
    withdrawn = frozenset(withdraw)
    leaving = np.isin(jobs.job_id[managed.rows], list(withdrawn))
    # They are given back first, and moved by a later plan: what rests on that waits as long.
    current = np.where(leaving, managed.base, managed.current)
    before = jobs.site_factor[managed.rows]
    # Slurm shows 1 for a sum below it: a job that shall have what it has anyway needs no factor.
    wanted = np.where(target != managed.base, target - jobs.base[managed.rows], 0)
    after = np.clip(wanted, -MAX_FACTOR, MAX_FACTOR)
    moved = (target != current) & (before != after)
    steered = np.isin(managed.rows, list(front.isolate)) & ~leaving
    steering: list[Change] = []
    for position in np.flatnonzero(steered[queue]).tolist():
        at = queue[position]
        row = int(managed.rows[at])
        job, submit = int(jobs.job_id[row]), int(jobs.submit_time[row])
        if _isolable(managed.snapshot, row, applied.by_job.get(job)):
            shown = jobs.oversubscribe.value(row)
            request, alone = jobs.request.value(row), OverSubscribe.NO.value
            steering.append(Change(job, submit, Field.OVERSUBSCRIBE, shown, alone, position, request=request))
    positions = np.flatnonzero(moved[queue])
    moving = queue[positions]
    rows = managed.rows[moving]
    ids = jobs.job_id[rows]
    places = np.concatenate((positions, np.array([change.position for change in steering], dtype=np.intp)))
    # A short budget is spent on jobs that enter or leave the head of the queue: a job moved to the head is only there
    # once the one before it has moved away. So what counts is the better of the planned place and the present one.
    urgency = places.copy()
    urgency[: len(moving)] = np.minimum(positions, ranks_of(np.lexsort((ids, -current[moving]))))
    turns, steering_turns = np.split(ranks_of(np.lexsort((places, urgency))), [len(moving)])
    turns, rests_on = _in_turn(managed, current, target, moving, turns)
    columns = (
        *(ids, jobs.submit_time[rows].astype(np.int64), before[moving], after[moving]),
        *(positions, turns, jobs.request.codes[rows]),
    )
    requests = (*jobs.request.names, "")
    changes = [
        Change(job, submit, Field.SITE_FACTOR, old, new, position, turn, rests_on.get(job, ()), requests[request])
        for job, submit, old, new, position, turn, request in zip(*(column.tolist() for column in columns), strict=True)
        if job not in withdrawn
    ]
    if steering:
        changes += [change._replace(turn=turn) for change, turn in zip(steering, steering_turns.tolist(), strict=True)]
        changes.sort(key=attrgetter("position"))  # stable: a job's move stands before its steering
    return tuple(changes)


def _in_turn(
    managed: ManagedJobs, current: Ints, target: Ints, moving: Rows, turns: Order
) -> tuple[Order, dict[int, tuple[int, ...]]]:
    """The turns, so exchanged within classes that no outside job pays for a part of them; and what each rests on."""
    rests_on: dict[int, tuple[int, ...]] = {}
    turn = np.full(len(managed.rows), -1, dtype=np.intp)
    turn[moving] = turns
    target = np.where(turn >= 0, target, current)
    for members, tier in zip(managed.classes.members, managed.classes.tiers, strict=True):
        changing = np.flatnonzero(turn[members] >= 0)
        if not len(changing):
            continue
        changing = changing[np.argsort(turn[members[changing]])]
        border = managed.outside.border(managed.at[members], tier)
        order = border.turns(current[members], target[members], changing)
        if not order:
            continue
        turn[members[[member for member, _ in order]]] = turn[members[changing]]
        names = managed.snapshot.jobs.job_id[managed.rows[members]].tolist()
        rests_on |= {names[member]: tuple(map(names.__getitem__, before)) for member, before in order if before}
    return turn[moving], rests_on


def _isolable(snapshot: Snapshot, row: int, record: Applied | None) -> bool:
    """Whether a job that is to be isolated may be: one-way in Slurm, so only from the default."""
    jobs, parts = snapshot.jobs, snapshot.partitions_of(snapshot.jobs.partition.value(row))
    # The tasks of an array share one record: what is right for the task that starts now would bind all the others.
    single = jobs.array_tasks[row] <= 1
    # Since 26.05 the default looks like NO: the reader's UNKNOWN. Writing NO to a job that has it changes nothing.
    default = jobs.oversubscribe.value(row) in {OverSubscribe.OK, OverSubscribe.UNKNOWN} and not jobs.exclusive[row]
    ours = record is not None and record.oversubscribe is not None
    # OverSubscribe=NO means nothing under FORCE and EXCLUSIVE.
    counts = {OverSubscribe.NO, OverSubscribe.YES}
    return bool(
        single and default and not ours and all(part is not None and part.oversubscribe in counts for part in parts)
    )


def newly_foreign(managed: ManagedJobs) -> tuple[int, ...]:
    """Jobs that the journal claims, but that somebody else has changed since."""
    applied = managed.applied.by_job
    if not applied:
        return ()
    ids = (int(managed.snapshot.jobs.job_id[row]) for row in managed.scope.vetoed().get(Veto.FOREIGN, ()))
    return tuple(job for job in ids if (record := applied.get(job)) is not None and not record.foreign)


_HANDS_OFF: Final = frozenset({Veto.UNREADABLE, Veto.FOREIGN, Veto.NO_PRIORITY})
"""Vetoes under which not even our own value is taken back: the job is somebody else's business now."""


def to_withdraw(managed: ManagedJobs) -> tuple[int, ...]:
    """Jobs that carry a site factor of ours but are out of scope now."""
    order, codes = tuple(Veto), managed.scope.veto.tolist()
    return tuple(
        record.job_id
        for at, record in managed.applied.on(managed.snapshot.jobs, managed.scope.rows)
        if record.site_factor and not record.foreign and codes[at] >= 0 and order[codes[at]] not in _HANDS_OFF
    )

"""What has to be written for a plan, in the order of writing; and which jobs are to be given back instead."""

from operator import attrgetter
from typing import Any, Final

import numpy as np

from rltuned.cluster.changes import (
    MAX_FACTOR,
    MAX_PRIORITY,
    Applied,
    ApplyMode,
    Change,
    Field,
    OverSubscribe,
)
from rltuned.cluster.hostlist import compress
from rltuned.cluster.tables import Ints, Snapshot
from rltuned.config import Config, PlacementApply
from rltuned.decide.front import Front
from rltuned.decide.managed import ManagedJobs, records
from rltuned.decide.outside import Rows
from rltuned.decide.ranks import Order, ranks_of
from rltuned.decide.scope import Veto


def changes_of(
    managed: ManagedJobs, queue: Rows, target: Ints, front: Front, withdraw: tuple[int, ...], config: Config
) -> tuple[Change, ...]:
    """The changes, head of the queue first.

    Args:
        managed: n managed jobs.
        queue: (n,) their positions in the planned order.
        target: (n,) priorities that they shall have.
        front: what the placement wants.
        withdraw: jobs that are given back; none of them is changed.
        config: the apply modes of order and placement.
    """
    jobs, applied = managed.snapshot.jobs, managed.applied
    withdrawn = frozenset(withdraw)
    leaving = np.isin(jobs.job_id[managed.rows], list(withdrawn))
    # They are given back first, and moved by a later plan: what rests on that waits as long.
    current = np.where(leaving, managed.base, managed.current)
    of, before, after = _moves(managed, current, target, config.decide.mode)
    moved = (target != current) & (before != after)
    steered = np.isin(managed.rows, [*front.isolate, *front.exclude])
    steered |= np.isin(
        jobs.job_id[managed.rows], [job for job, old in applied.by_job.items() if old.exc_nodes is not None]
    )
    steering: list[Change] = []
    for position in np.flatnonzero((steered & ~leaving)[queue]).tolist():
        at = queue[position]
        row = int(managed.rows[at])
        job, submit = int(jobs.job_id[row]), int(jobs.submit_time[row])
        identity = {
            "job_id": job,
            "submit_time": submit,
            "position": position,
            "base": int(managed.base[at]),
        }
        steering += _steering(managed.snapshot, front, row, applied.by_job.get(job), config.placement.apply, identity)
    positions = np.flatnonzero(moved[queue])
    moving = queue[positions]
    rows = managed.rows[moving]
    ids = jobs.job_id[rows]
    present = ranks_of(np.lexsort((ids, -current[moving])))
    places = np.concatenate((positions, np.array([change.position for change in steering], dtype=np.intp)))
    turns, steering_turns = np.split(_urgent_first(places, present), [len(moving)])
    turns, rests_on = _in_turn(managed, current, target, moving, turns)
    columns = (
        *(ids, jobs.submit_time[rows].astype(np.int64), before[moving], after[moving]),
        *(positions, managed.base[moving], turns),
    )
    changes = [
        Change(job, submit, of, old, new, position, base, turn, rests_on.get(job, ()))
        for job, submit, old, new, position, base, turn in zip(*(column.tolist() for column in columns), strict=True)
        if job not in withdrawn
    ]
    if steering:
        changes += [change._replace(turn=turn) for change, turn in zip(steering, steering_turns.tolist(), strict=True)]
        changes.sort(key=attrgetter("position"))  # stable: a job's move stands before its steering
    return tuple(changes)


def _urgent_first(places: Rows, present: Order) -> Order:
    """The order in which a short budget is spent: jobs that enter or leave the head of the queue first.

    A job moved to the head is only there once the one before it has moved away; so what counts is the better of the
    planned place and the present one.

    Args:
        places: (k,) where the plan has each job that changes: first m that are moved, then those that are only steered.
        present: (m,) places of the moved jobs among each other as they stand now.

    Returns:
        (k,) turns.
    """
    urgency = places.copy()
    np.minimum(urgency[: len(present)], present, out=urgency[: len(present)])
    return ranks_of(np.lexsort((places, urgency)))


def _moves(managed: ManagedJobs, current: Ints, target: Ints, mode: ApplyMode) -> tuple[Field, Ints, Ints]:
    """The field by which jobs are moved, and (n,) its value now and as wanted."""
    jobs, rows = managed.snapshot.jobs, managed.rows
    if mode is ApplyMode.PRIORITY:
        return Field.PRIORITY, current, np.clip(target, 1, MAX_PRIORITY)
    # Slurm shows 1 for a sum below it: a job that shall have what it has anyway needs no factor.
    wanted = np.where(target != managed.base, target - jobs.base[rows], 0)
    return Field.SITE_FACTOR, jobs.site_factor[rows], np.clip(wanted, -MAX_FACTOR, MAX_FACTOR)


def _in_turn(
    managed: ManagedJobs, current: Ints, target: Ints, moving: Rows, turns: Order
) -> tuple[Order, dict[int, tuple[int, ...]]]:
    """The turns of the moved jobs, so exchanged within each class that no outside job pays for a part of them.

    Args:
        managed: n managed jobs.
        current: (n,) priorities that they have.
        target: (n,) priorities that they shall have.
        moving: (k,) positions of those that are moved.
        turns: (k,) the turn of each, the most urgent first.

    Returns:
        (k,) turns, and by job id the jobs that must be lowered before it, where there are any.
    """
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


def _steering(
    snapshot: Snapshot, front: Front, row: int, record: Applied | None, how: PlacementApply, identity: dict[str, Any]
) -> list[Change]:
    """The changes by which one job is steered to its nodes."""
    jobs = snapshot.jobs
    # The tasks of an array share one record: what is right for the task that starts now would bind all the others.
    single = jobs.array_tasks[row] <= 1
    changes = []
    if how is PlacementApply.OVERSUBSCRIBE and row in front.isolate and single:
        # One-way in Slurm: only from the default, never on a job whose user asked for something.
        shown = jobs.oversubscribe.value(row)
        free = _is_default(shown) and not jobs.exclusive[row] and not _was_isolated(record)
        if free and _isolation_counts(snapshot, jobs.partition.value(row)):
            changes.append(Change(field=Field.OVERSUBSCRIBE, before=shown, after=OverSubscribe.NO.value, **identity))
    ours = record.exc_nodes if record is not None else None
    if how is PlacementApply.EXCLUDE_NODES or ours is not None:
        own = jobs.exc_nodes.value(row)
        wanted = own
        if how is PlacementApply.EXCLUDE_NODES and single and (excluded := front.exclude.get(row)):
            names = [snapshot.nodes.names[node] for node in excluded]
            wanted = ",".join(filter(None, (own, compress(names))))
        present = ours if ours is not None else own
        if wanted != present:
            changes.append(Change(field=Field.EXC_NODES, before=present, after=wanted, **identity))
    return changes


def _isolation_counts(snapshot: Snapshot, partitions: str) -> bool:
    """Whether OverSubscribe=NO means something in each of these partitions: not under FORCE, nor under EXCLUSIVE."""
    counts = {OverSubscribe.NO, OverSubscribe.YES}
    return all(part is not None and part.oversubscribe in counts for part in snapshot.partitions_of(partitions))


def _is_default(shown: str) -> bool:
    """Whether the job has OverSubscribe's default. Since 26.05 Slurm shows it as it shows NO: the reader's UNKNOWN.

    Writing NO to a job that has it already changes nothing, so the doubt does no harm.
    """
    return shown in {OverSubscribe.OK, OverSubscribe.UNKNOWN}


def _was_isolated(record: Applied | None) -> bool:
    return record is not None and record.oversubscribe is not None


def newly_foreign(managed: ManagedJobs) -> tuple[int, ...]:
    """Jobs that the journal claims, but that somebody else has changed since."""
    applied = managed.applied.by_job
    if not applied:
        return ()
    ids = (int(managed.snapshot.jobs.job_id[row]) for row in managed.scope.vetoed().get(Veto.FOREIGN, ()))
    return tuple(job for job in ids if (record := applied.get(job)) is not None and not record.foreign)


_HANDS_OFF: Final = frozenset({Veto.UNREADABLE, Veto.FOREIGN, Veto.HELD, Veto.NO_PRIORITY})
"""Vetoes under which not even our own value is taken back: the job is somebody else's business now."""


def to_withdraw(managed: ManagedJobs, mode: ApplyMode) -> tuple[int, ...]:
    """Jobs that carry a value of ours but are out of scope now, or carry it by the other apply mode."""
    order, codes = tuple(Veto), managed.scope.veto.tolist()
    withdrawn = []
    for at, record in records(managed.applied, managed.snapshot.jobs, managed.scope.rows):
        if record.foreign:
            continue
        by_factor, by_priority = record.site_factor != 0, record.priority is not None
        wrong_mode = by_priority if mode is ApplyMode.SITE_FACTOR else by_factor
        veto = order[codes[at]] if codes[at] >= 0 else None
        # Under site-factor, a job with our explicit priority is vetoed as NO_PRIORITY by that very priority.
        if veto in _HANDS_OFF and not (wrong_mode and veto is Veto.NO_PRIORITY):
            continue
        ours = by_factor or by_priority or record.exc_nodes is not None
        if (veto is not None and ours) or wrong_mode:
            withdrawn.append(record.job_id)
    return tuple(withdrawn)

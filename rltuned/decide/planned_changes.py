"""What is written for a plan, with the placement of its front, in the order of writing; what is given back instead."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from rltuned.core.changes import MAX_FACTOR, Applied, Change, Field, OverSubscribe, SiteFactor
from rltuned.core.config import PlacementApply
from rltuned.core.pools import Pools
from rltuned.core.tables import Ints, Rows, Snapshot
from rltuned.decide.managed import ManagedJobs
from rltuned.decide.scope import Veto

if TYPE_CHECKING:  # see `place_front`
    from rltuned.decide.place.problem import Placement


@dataclass(frozen=True)
class Front:
    """The K jobs that the placement is about."""

    rows: Rows  # (K,) rows of the job table in the planned order
    placement: "Placement | None"
    """Its jobs are positions in `rows`. None: placement is off, or there is no job."""
    isolate: frozenset[int]
    """Rows of the job table: jobs that the placement spreads onto idle nodes."""


FRONT: Final = 64  # jobs of the queue's front that are placed, at most
_NOTHING: Final = Front(np.zeros(0, dtype=np.intp), None, frozenset())


def place_front(managed: ManagedJobs, queue: Rows, window: Rows, apply: PlacementApply) -> Front:
    """Place the front of the queue, (n,) positions of managed jobs, as far as they are in the (w,) `window`."""
    if apply is PlacementApply.OFF or not len(queue):
        return _NOTHING
    # Only here: a daemon that places nothing loads neither the solver nor what formulates its programs.
    from rltuned.decide.place.placing import isolated, place  # noqa: PLC0415
    from rltuned.decide.place.problem import build  # noqa: PLC0415

    visible = np.zeros(len(queue), dtype=np.bool_)
    visible[window] = True
    head = queue[visible[queue]][:FRONT]
    rows, pools = managed.rows[head], managed.pools
    problem = build(managed.snapshot, rows, Pools(pools.pool_of[head], pools.nodes, pools.gpu_type))
    placement = place(problem)
    isolate = isolated(placement, problem, managed.snapshot.nodes.asleep)
    return Front(rows, placement, frozenset(int(rows[k]) for k in isolate))


def changes_of(
    managed: ManagedJobs, queue: Rows, target: Ints, front: Front, withdraw: tuple[int, ...]
) -> tuple[Change, ...]:
    """The changes, in the order of writing: what is given back, then the head of the queue first.

    `queue`: (n,) positions of the managed jobs in the planned order; `target`: (n,) priorities that they shall have;
    `withdraw`: jobs that are given back, of which none is changed.
    """
    jobs, applied = managed.snapshot.jobs, managed.applied
    leaving = np.isin(jobs.job_id[managed.rows], list(withdraw))
    before, undone = jobs.site_factor[managed.rows], np.zeros(len(managed.rows), dtype=np.bool_)
    for job, older in applied.undone.items():
        undone |= (at := jobs.job_id[managed.rows] == job)
        before[at] = np.maximum(before[at], older)
    # Slurm shows 1 for a sum below it: a job that shall have what it has anyway needs no factor.
    after = np.where(target > managed.base, np.minimum(target - jobs.base[managed.rows], MAX_FACTOR), 0)
    moved = (undone | (before != after)) & ~leaving
    steered = np.isin(managed.rows, list(front.isolate)) & ~leaving
    changes: list[Change] = []
    for position in np.flatnonzero((moved | steered)[queue]).tolist():
        at = queue[position]
        row = int(managed.rows[at])
        job, submit, request = int(jobs.job_id[row]), int(jobs.submit_time[row]), jobs.request.value(row)
        if moved[at]:
            old, new = int(before[at]), SiteFactor(int(after[at]))
            changes.append(Change(job, submit, Field.SITE_FACTOR, old, new, position, request=request))
        if steered[at] and _isolable(managed.snapshot, row, applied.by_job.get(job)):
            shown, alone = jobs.oversubscribe.value(row), OverSubscribe.NO.value
            changes.append(Change(job, submit, Field.OVERSUBSCRIBE, shown, alone, position, request=request))
    # What is given back comes first: it is nobody's loan any more.
    turns = sorted(range(len(changes)), key=lambda nth: (not changes[nth].gives_back, nth))
    return tuple(changes[nth]._replace(turn=turn) for nth, turn in zip(turns, range(len(turns)), strict=True))


def _isolable(snapshot: Snapshot, row: int, record: Applied | None) -> bool:
    """Whether a job that is to be isolated may be: one-way in Slurm, so only from the default."""
    jobs, parts = snapshot.jobs, snapshot.partitions_of(snapshot.jobs.partition.value(row))
    # The tasks of an array share one record: what is right for the task that starts now would bind all the others.
    single = jobs.array_tasks[row] <= 1
    # Since 26.05 the default looks like NO: the reader's UNKNOWN. Writing NO to a job that has it changes nothing.
    default = jobs.oversubscribe.value(row) in {OverSubscribe.OK, OverSubscribe.UNKNOWN}
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

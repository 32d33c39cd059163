"""The journal against the queue: at start, after an outage, and in every cycle, always the same way.

What a crash, a time-out, a restart of slurmctld or a person did since the last cycle shows as a difference between what
the journal claims (with its doubts) and what the jobs carry. This module settles each difference; it writes nothing to
Slurm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from rltuned.cluster.changes import MOVES, Field, JobStatus, OverSubscribe
from rltuned.daemon.claims import (
    MULTIFACTOR,
    NO_TERMS,
    NOT_ELIGIBLE,
    SETTLE_SECONDS,
    Entry,
    Value,
    claimed,
    confirmed,
    dated,
    estranged,
    given_back,
    may_be_requeued,
    noticed,
    recognised,
    requeued,
    rolled_back,
    shown,
)
from rltuned.daemon.journal import Journal

if TYPE_CHECKING:  # the values come in with the caller; nothing here needs NumPy
    from rltuned.cluster.tables import Snapshot

BATCH_SECONDS: Final = 0.5
"""Entries noted within so many seconds of each other are of one batch; batches are a cycle (a second or more) apart."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one reconciliation found."""

    forgotten: tuple[int, ...] = ()
    """Jobs that left the queue, or whose id belongs to another job now."""
    settled: tuple[int, ...] = ()
    """Jobs on which a write whose outcome was unknown turned out to have succeeded."""
    foreign: tuple[int, ...] = ()
    """Jobs that somebody else changed; newly found."""
    owing: tuple[int, ...] = ()
    """Jobs whose explicit priority was taken back, but not (an interrupted restore) their user's nice: `restore` first,
    because their priority without it is not what Slurm alone would give."""


@dataclass(slots=True)
class Reconciler:
    """Reconciles again and again; remembers from one time to the next what needs a second look."""

    _missing: dict[int, float] = field(default_factory=dict)
    """Jobs that were not in the queue last time, with when they were missing first: forgotten when slurmctld, killed
    now, would not bring them back."""
    _unlisted: dict[int, int] = field(default_factory=dict)
    """Jobs that sprio left out last time while it listed others, with their priority."""

    def reconcile(
        self,
        journal: Journal,
        seen: Mapping[int, JobStatus],
        now: float,
        *,
        calculated: bool,
        silent: bool = False,
    ) -> Reconciled:
        """Settle every difference.

        Args:
            journal: is updated, in memory and on disk.
            seen: the jobs of the journal's entries, as far as Slurm knows them.
            now: when the jobs were read, by the steady clock, as `Entry.touched`.
            calculated: sprio lists at least one job of the cluster, so a job that it leaves out is left out on purpose.
            silent: the daemon gave no sign of life for so long that the dead-man timer may have given jobs back:
                neutral values are its doing, and not somebody's who wants these jobs left alone.

        Raises:
            JournalError: what was learned is not on disk (in memory it counts).
        """
        changed: list[Entry] = []
        forgotten: list[int] = []
        settled: list[int] = []
        foreign: list[int] = []
        missing: dict[int, float] = {}
        unlisted: dict[int, int] = {}
        rollback = _slurmctld_went_back(journal, seen)
        ids_go_on = any(job in seen and seen[job].submit_time == e.submit_time for job, e in journal.entries.items())
        for job, entry in journal.entries.items():
            status = seen.get(job)
            if status is None:
                missing[job] = since = self._missing.get(job, now)
                if now - since >= SETTLE_SECONDS:
                    forgotten.append(job)
                continue
            if status.strange:
                continue
            if status.submit_time != entry.submit_time:
                again = requeued(entry, status, ids_go_on=ids_go_on) if status.pending else None
                if again is not None:
                    changed.append(again)
                elif status.pending and (status.site_factor is not None or not may_be_requeued(entry)):
                    forgotten.append(job)
                continue
            if not status.pending:
                continue
            if status.site_factor is None and not status.held:
                unlisted[job] = status.priority
            explicit = calculated and self._unlisted.get(job) == status.priority
            before = _helped(dated(entry, now), status, now) if silent else dated(entry, now)
            after = noticed(entry, _settle(before, status, now, explicit=explicit, rollback=rollback), now)
            if after is entry:
                continue
            if after.applied.foreign and not entry.applied.foreign:
                foreign.append(job)
            elif after.applied != entry.applied:
                settled.append(job)
            if after != entry:
                changed.append(after)
        self._missing = missing
        self._unlisted = unlisted if calculated else {}
        journal.update(changed, forgotten)
        owing = [job for job, entry in journal.entries.items() if _owes_now(entry, seen.get(job))]
        return Reconciled(tuple(forgotten), tuple(settled), tuple(foreign), tuple(owing))


def _slurmctld_went_back(journal: Journal, seen: Mapping[int, JobStatus]) -> bool:
    """Whether most jobs written last (at least two) carry their previous value: slurmctld lost its latest state.

    A person changes single jobs. A killed slurmctld loses all writes after some moment. So only writes since the oldest
    one that was lost are counted.
    """
    written: list[tuple[float, bool]] = []
    for job, entry in journal.entries.items():
        status = seen.get(job)
        if status is None or not status.pending or status.held or status.submit_time != entry.submit_time:
            continue
        for of, values in entry.previous.items():
            value = shown(status, of)
            if value is not None:  # of a slurmctld that has just started sprio tells nothing
                written.append((entry.touched, value in values))
    back = [touched for touched, is_back in written if is_back]
    since = min(back, default=0.0) - BATCH_SECONDS
    return len(back) >= 2 and 2 * len(back) >= sum(touched >= since for touched, _ in written)


def _owes_now(entry: Entry, status: JobStatus | None) -> bool:
    if status is None or not status.pending or status.held or status.submit_time != entry.submit_time:
        return False
    return entry.owes_nice and not entry.applied.foreign and not entry.doubts.get(Field.PRIORITY) and status.nice == 0


def _helped(entry: Entry, status: JobStatus, now: float) -> Entry:
    """The entry of a job that the dead-man timer may have given back."""
    for of in MOVES:
        if claimed(entry.applied, of) and shown(status, of) == MULTIFACTOR and not status.held:
            entry = replace(given_back(entry, of, sure=False), touched=now)
    return entry


def _settle(entry: Entry, status: JobStatus, now: float, *, explicit: bool, rollback: bool) -> Entry:
    """The entry of a pending job after a look at it.

    `rollback`: slurmctld came back with an older state (`_slurmctld_went_back`).
    `explicit`: sprio left it out twice in a row, with the same priority, while it listed others.
    """
    if _as_left(entry, status):
        return entry
    for of, values in entry.previous.items():
        value = shown(status, of)
        # A former value of ours is nobody else's choice; a neutral value may be.
        if value is not None and value in values and (rollback or value != MULTIFACTOR):
            entry = rolled_back(entry, of, value)
    if not status.held:
        entry = _settle_priority(entry, status, now)
        entry = _settle_factor(entry, status, now, explicit=explicit)
    of = Field.OVERSUBSCRIBE
    if entry.doubts.get(of) and status.oversubscribe in {OverSubscribe.NO, OverSubscribe.UNKNOWN}:
        # Recent releases do not tell; taking it for ours costs nothing but a line of the report.
        entry = confirmed(recognised(entry, of, OverSubscribe.NO.value), of)
    elif entry.doubts.get(of) and _old(entry, now):
        entry = confirmed(entry, of)
    if entry.owes_nice and not entry.doubts.get(Field.PRIORITY) and status.nice != 0:
        entry = replace(entry, applied=replace(entry.applied, nice=0))  # the user has one again
    return entry


def _as_left(entry: Entry, status: JobStatus) -> bool:
    """Whether a job has our site factor and nothing is in doubt: so it is with most jobs of a long queue."""
    applied = entry.applied
    return (
        status.site_factor == applied.site_factor
        and applied.priority is None
        and not (applied.nice or entry.doubts or entry.previous)
    )


def _settle_factor(entry: Entry, status: JobStatus, now: float, *, explicit: bool) -> Entry:
    of = Field.SITE_FACTOR
    if status.site_factor is not None:
        return _settle_value(entry, of, status.site_factor, now)
    at_stake = entry.applied.site_factor != 0 or bool(entry.doubts.get(of))
    hidden_by_us = entry.applied.priority is not None or bool(entry.doubts.get(Field.PRIORITY))
    if entry.applied.site_factor == 0 and status.priority == NO_TERMS:
        return entry  # what we wrote last, 0, looks the same
    if at_stake and explicit and not hidden_by_us and status.reason not in NOT_ELIGIBLE:
        return estranged(entry, of, hidden=True)
    return entry


def _settle_priority(entry: Entry, status: JobStatus, now: float) -> Entry:
    of = Field.PRIORITY
    value = shown(status, of)
    at_stake = entry.applied.priority is not None or bool(entry.doubts.get(of))
    if not at_stake or value is None:
        return entry
    if value != MULTIFACTOR and MULTIFACTOR in entry.ours(of) and value not in entry.ours(of):
        return entry  # explicit by somebody, or not calculated yet: the pre-read before a write decides
    return _settle_value(entry, of, value, now)


def _settle_value(entry: Entry, of: Field, value: Value, now: float) -> Entry:
    ours = entry.ours(of)
    if ours and value == ours[0]:
        return confirmed(entry, of) if _unsettled(entry, of) and _old(entry, now) else entry
    if value in ours:
        return recognised(entry, of, value)
    return estranged(entry, of)


def _unsettled(entry: Entry, of: Field) -> bool:
    return bool(entry.doubts.get(of)) or of in entry.previous


def _old(entry: Entry, now: float) -> bool:
    return now - entry.touched >= SETTLE_SECONDS


def view(snapshot: "Snapshot", journal: Journal) -> dict[int, JobStatus]:
    """The snapshot's rows of the jobs that the journal knows, as statuses.

    A job that could not be understood is there as such: it is neither gone nor ours to judge.
    """
    jobs = snapshot.jobs
    found: dict[int, JobStatus] = {}
    rows: list[int] = []
    for job in journal.entries:
        row = jobs.row_of.get(job)
        if reason := snapshot.unread.about(job, queued=row is not None):
            found[job] = JobStatus.not_understood(job, reason)
        elif row is not None:
            rows.append(row)
    numbers = (
        jobs.job_id,
        jobs.submit_time,
        jobs.state,
        jobs.held,
        jobs.priority,
        jobs.nice,
        jobs.site_factor,
        jobs.site_known,
    )
    share_of = [*(OverSubscribe(name) for name in jobs.oversubscribe.names), OverSubscribe.UNKNOWN]
    columns = [column[rows].tolist() for column in numbers]
    columns += [column.codes[rows].tolist() for column in (jobs.oversubscribe, jobs.reason)]
    reasons = (*jobs.reason.names, "")  # code −1 is the last
    for job, submit, state, held, priority, nice, factor, known, share, why in zip(*columns, strict=True):
        if state in {0, 1}:  # JobState.PENDING, RUNNING
            found[job] = JobStatus(
                job_id=job,
                submit_time=int(submit),
                pending=state == 0,
                held=held or priority == 0,
                priority=priority,
                nice=nice,
                site_factor=factor if known else None,
                oversubscribe=share_of[share],
                reason=reasons[why],
            )
    # A task that runs is not the array, but may be requeued with what the array has.
    for array in snapshot.arrays.keys() & (journal.entries.keys() - found.keys()):
        found[array] = JobStatus.started(array, snapshot.arrays[array])
    return found


def orphans(snapshot: "Snapshot", journal: Journal) -> tuple[int, ...]:
    """Pending jobs with a SiteFactor that the journal knows nothing about."""
    jobs = snapshot.jobs
    suspects = jobs.job_id[(jobs.state == 0) & jobs.site_known & (jobs.site_factor != 0)]
    return tuple(int(job) for job in suspects if int(job) not in journal.entries)

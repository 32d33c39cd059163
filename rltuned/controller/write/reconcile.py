"""The journal against the queue: at start, after an outage, and in every cycle, always the same way.

What a crash, a time-out, a restart of slurmctld or a person did since the last cycle shows as a difference between the
journal's claims (with their doubts) and what the jobs carry. It is settled here; nothing is written to Slurm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rltuned.controller.write.claims import RULES, SETTLE_SECONDS, Entry, Look
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import SPLIT, Field, JobStatus, OverSubscribe
from rltuned.core.tables import Snapshot

BATCH_SECONDS: Final = 0.5
"""Entries noted within so many seconds of each other are of one batch; batches are a cycle (a second or more) apart."""


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
        settling: float = SETTLE_SECONDS,
    ) -> tuple[int, ...]:
        """Settle every difference; the journal is updated, also where JournalError says that it is not on disk.

        `seen`: the jobs of the journal's entries, as far as Slurm knows them, read at `now` by the steady clock.
        `calculated`: sprio lists at least one job, so a job that it leaves out is left out on purpose. `silent`: the
        daemon gave no sign of life for so long that the dead-man timer may have given jobs back: neutral values are its
        doing, and not somebody's who wants these jobs left alone. `settling`: see `claims.Look`. Returns jobs that
        somebody else changed; newly found.
        """
        changed: list[Entry] = []
        forgotten: list[int] = []
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
            if status.submit_time != entry.submit_time:
                again = entry.requeued(status, ids_go_on=ids_go_on) if status.pending else None
                if again is not None:
                    changed.append(again)
                elif status.pending and (status.site_factor is not None or not entry.factors):
                    forgotten.append(job)
                continue
            if not status.pending:
                continue
            if status.site_factor is None and not status.held:
                unlisted[job] = status.priority
            explicit = calculated and self._unlisted.get(job) == status.priority
            before = _helped(entry.dated(now), status, now) if silent else entry.dated(now)
            settled = _settle(before, Look(status, now, settling, explicit), rollback=rollback)
            after = settled.noticed(entry, now)
            if after is entry:
                continue
            if after.applied.foreign and not entry.applied.foreign:
                foreign.append(job)
            if after != entry:
                changed.append(after)
        self._missing = missing
        self._unlisted = unlisted if calculated else {}
        journal.update(changed, forgotten)
        return tuple(foreign)


def waiting(journal: Journal, seen: Mapping[int, JobStatus]) -> Iterator[tuple[Entry, JobStatus]]:
    """The entries of jobs that wait, each with what was read of it."""
    for job, entry in journal.entries.items():
        status = seen.get(job)
        if status is not None and status.pending and status.submit_time == entry.submit_time:
            yield entry, status


def _slurmctld_went_back(journal: Journal, seen: Mapping[int, JobStatus]) -> bool:
    """Whether most jobs written last (at least two) carry their previous value: slurmctld lost its latest state."""
    written = [
        (entry.touched, status.site_factor in entry.previous)
        for entry, status in waiting(journal, seen)
        if entry.previous and not status.held and status.site_factor is not None
    ]
    # A person changes single jobs. A killed slurmctld loses all writes after some moment.
    back = [touched for touched, is_back in written if is_back]
    since = min(back, default=0.0) - BATCH_SECONDS
    return len(back) >= 2 and 2 * len(back) >= sum(touched >= since for touched, _ in written)


def _helped(entry: Entry, status: JobStatus, now: float) -> Entry:
    """The entry of a job that the dead-man timer may have given back."""
    if entry.claims and status.site_factor == 0 and not status.held:
        return replace(entry.given_back(Field.SITE_FACTOR, sure=False), touched=now)
    return entry


def _settle(entry: Entry, look: Look, *, rollback: bool) -> Entry:
    value = look.status.site_factor
    if value == entry.applied.site_factor and not (entry.doubts or entry.previous):
        return entry  # so it is with most jobs of a long queue
    # A former value of ours is nobody else's choice; a neutral value may be.
    if value is not None and value in entry.previous and (rollback or value != 0):
        entry = entry.rolled_back(value)
    for rules in RULES.values():
        entry = rules.settle(entry, look)
    return entry


def undone(journal: Journal, seen: Mapping[int, JobStatus]) -> dict[int, int]:
    """By id of each job that stands with an older site factor of ours (`Entry.standing`) than it has: that one."""
    found: dict[int, int] = {}
    for entry, status in waiting(journal, seen):
        older = entry.standing(status)
        if older is not None and older != status.site_factor == entry.applied.site_factor:
            found[entry.job_id] = older
    return found


def view(snapshot: Snapshot, journal: Journal) -> dict[int, JobStatus]:
    """Statuses of the jobs that the journal knows; one that was not understood is neither gone nor ours to judge."""
    jobs = snapshot.jobs
    found: dict[int, JobStatus] = {}
    rows: list[int] = []
    for job in journal.entries:
        row = jobs.row_of.get(job)
        if reason := snapshot.unread.about(job, queued=row is not None):
            found[job] = JobStatus.not_understood(job, reason)
        elif row is not None and jobs.request.value(row) == SPLIT:
            found[job] = JobStatus.not_understood(job, "its waiting tasks differ")
        elif row is not None:
            rows.append(row)
    numbers = (
        *(jobs.job_id, jobs.submit_time, jobs.state, jobs.held, jobs.priority),
        *(jobs.site_factor, jobs.site_known, jobs.base_least, jobs.base),
    )
    share_of = [*(OverSubscribe(name) for name in jobs.oversubscribe.names), OverSubscribe.UNKNOWN]
    columns = [column[rows].tolist() for column in numbers]
    columns += [column.codes[rows].tolist() for column in (jobs.oversubscribe, jobs.reason)]
    reasons = (*jobs.reason.names, "")  # code −1 is the last
    for job, submit, state, held, priority, factor, known, *bases, share, why in zip(*columns, strict=True):
        if state in {0, 1}:  # JobState.PENDING, RUNNING
            found[job] = JobStatus(
                job_id=job,
                submit_time=int(submit),
                pending=state == 0,
                held=held or priority == 0,
                priority=priority,
                site_factor=factor if known else None,
                oversubscribe=share_of[share],
                reason=reasons[why],
                bases=snapshot.bases.get(job, tuple(bases)),
            )
    # A task that runs is not the array, but may be requeued with what the array has.
    for array in snapshot.arrays.keys() & (journal.entries.keys() - found.keys()):
        found[array] = JobStatus.started(array, snapshot.arrays[array])
    return found


def orphans(snapshot: Snapshot, journal: Journal) -> tuple[int, ...]:
    """Pending jobs with a SiteFactor that the journal does not explain."""
    jobs = snapshot.jobs
    suspects = (jobs.state == 0) & jobs.site_known & (jobs.site_factor != 0)
    found = zip(jobs.job_id[suspects].tolist(), jobs.site_factor[suspects].tolist(), strict=True)
    return tuple(job for job, factor in found if journal.is_orphan(job, factor))

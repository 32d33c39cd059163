"""The way back: take everything of rltuned's off the queue, and prove it. Imports no NumPy, needs no daemon, no model.

A job is undone in rounds of read and write, until a reading shows nothing of ours on it; each round asks only for what
is still there, so an interrupted restore is continued by the next one. Only a value that is ours is taken back.

=============  ======================================================================================================
SiteFactor     → 0. Also on held jobs and under somebody's explicit priority, where Slurm takes it but does not show it
Priority       ``scontrol release`` of a job that still carries our value and is not held; then the user's nice, which
               Slurm had reset to 0, is written back
ExcNodeList    → the user's own
OverSubscribe  one-way in Slurm (docs/placement.md). NO → YES only where that means packing again, as it does for a job in
               an OverSubscribe=NO partition on 22.05 and 26.05; elsewhere the job is left isolated, and named
=============  ======================================================================================================

Running jobs are left alone: what they carry has no effect unless they are requeued, and then the next restore sees it.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from rltuned.cluster.changes import Applied, Change, Field, JobStatus, Outcome, OverSubscribe
from rltuned.daemon.budget import STATUS_RPCS, Budget
from rltuned.daemon.claims import (
    BAD_CONSTRAINTS,
    MULTIFACTOR,
    Entry,
    Value,
    among,
    estranged,
    intended,
    requeued,
    same,
    shown,
    take,
)
from rltuned.daemon.clock import Clock
from rltuned.daemon.journal import Journal
from rltuned.errors import JournalError, SlurmError
from rltuned.slurm.port import SlurmReader, SlurmWriter

_T = TypeVar("_T")

ROUNDS: Final = 4
"""Release, nice, a retry, and the proof."""
CHUNK: Final = 200
"""Most jobs per batch: an interrupt loses no more than one."""
ROUND_PAUSE: Final = 1.0
"""Seconds before a retry: Slurm shows a released job in sprio within its next calculation at the latest."""

YES_PACKS_AGAIN: Final = frozenset({(22, 5), (26, 5)})
"""Releases on which YES was measured to pack in an OverSubscribe=NO partition; on 24.11 it means one job per node."""

ISOLATED: Final = frozenset({OverSubscribe.NO, OverSubscribe.UNKNOWN})
"""How a job that we isolated shows: recent releases do not tell it from a default one."""

NOT_UNDERSTOOD: Final = "?"
"""As the field of a `Leftover`: any of them."""

HEARTBEAT_NAME: Final = "heartbeat.json"

Progress = Callable[[int, int], None]
"""Called with (jobs done, jobs in all)."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that could not be taken back."""

    job_id: int
    field: str
    value: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did. Job ids are sorted."""

    restored: tuple[int, ...] = ()
    """Nothing of ours is on these pending jobs any more, by reading (or, where Slurm shows it not, by its word)."""
    left: tuple[Leftover, ...] = ()
    gone: tuple[int, ...] = ()
    """Not in the queue any more: nothing to do."""
    running: tuple[int, ...] = ()
    """Started: left alone, remembered in case they are requeued."""
    foreign: tuple[int, ...] = ()
    """Somebody else changed these; their values stand."""
    orphans: tuple[int, ...] = ()
    """Jobs with a SiteFactor that the journal does not know; cleared only when asked for."""
    cleared_orphans: tuple[int, ...] = ()
    journal_trouble: str = ""
    """Why the journal could not be brought up to date; the queue is restored nevertheless."""

    @property
    def complete(self) -> bool:
        """Whether nothing of ours is left on any pending job."""
        return not self.left

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"complete": self.complete}

    def sentence(self) -> str:
        """One line for the log."""
        parts = [f"{len(self.restored)} jobs restored"]
        if self.left:
            parts.append(f"{len(self.left)} values left")
        if self.cleared_orphans:
            parts.append(f"{len(self.cleared_orphans)} orphans cleared")
        if self.gone:
            parts.append(f"{len(self.gone)} gone")
        if self.running:
            parts.append(f"{len(self.running)} running")
        if self.foreign:
            parts.append(f"{len(self.foreign)} changed by others and left to them")
        return ", ".join(parts)


@dataclass(slots=True)
class _Steps:
    """What one job still needs."""

    release: bool = False
    writes: list[Change] = field(default_factory=list)
    left: list[Leftover] = field(default_factory=list)


def restore(
    journal: Journal,
    reader: SlurmReader,
    writer: SlurmWriter,
    budget: Budget,
    clock: Clock,
    *,
    job_ids: Collection[int] | None = None,
    orphans: bool = False,
    hands_off: bool = False,
    record: bool = True,
    progress: Progress | None = None,
) -> RestoreReport:
    """Undo, verify, report. Idempotent; slow but finishing under Slurm's RPC limiter.

    Args:
        journal: what is ours. Brought up to date when `record`.
        reader: Slurm.
        writer: Slurm.
        budget: paces the writes; this function waits where the cycle would throttle.
        clock: for the budget.
        job_ids: only these jobs; None: all of the journal.
        orphans: also clear the SiteFactor of pending jobs that the journal does not know. Only for sites where nobody
            else uses SiteFactor.
        hands_off: leave the restored jobs alone from now on (an admin asked for these very jobs).
        record: False when a living daemon owns the journal: it will see the jobs changed and leave them alone.
        progress: told after each batch.

    Raises:
        SlurmError: the queue could not be read. What was written so far is journalled as far as possible.
    """
    return _Restore(journal, reader, writer, budget, clock, hands_off, record, progress).run(job_ids, orphans)


@dataclass(slots=True)
class _Restore:
    journal: Journal
    reader: SlurmReader
    writer: SlurmWriter
    budget: Budget
    clock: Clock
    hands_off: bool
    record: bool
    progress: Progress | None
    _trouble: str = ""
    _answers: dict[tuple[int, Field], str] = field(default_factory=dict)
    """What Slurm said to a write: "" when it took it without a word."""
    _release_asked: set[int] = field(default_factory=set)
    _release_answer: str = ""
    _packs_again: bool | None = None

    def run(self, job_ids: Collection[int] | None, orphans: bool) -> RestoreReport:
        known = self.journal.entries
        wanted = {job: entry for job, entry in known.items() if job_ids is None or job in job_ids}
        asked = sorted({*wanted, *(job_ids or ())})
        seen: Mapping[int, JobStatus] = {}
        if wanted or orphans:
            seen = self._read(asked, everything=orphans)
        strangers = {
            job: status
            for job, status in seen.items()
            if status.pending and status.site_factor not in {None, 0} and job not in known
        }
        if job_ids is not None:
            strangers = {job: status for job, status in strangers.items() if job in job_ids}
        entries = dict(wanted)
        if orphans:
            for job, status in strangers.items():
                factor = status.site_factor or 0
                entries[job] = Entry(Applied(job, status.submit_time, 0.0, site_factor=factor))
        gone, running = [], []
        unread: list[Leftover] = []
        for job, entry in list(entries.items()):
            found = seen.get(job)
            if found is None:
                gone.append(job)
                del entries[job]
            elif found.strange:
                unread.append(_not_understood(found))
                del entries[job]
            elif not found.pending:
                running.append(job)
                del entries[job]
            elif found.submit_time != entry.submit_time:
                again = requeued(entry, found)
                if again is not None:
                    entries[job] = again
                else:
                    gone.append(job)
                    del entries[job]
        left = self._rounds(entries, seen)
        left += unread
        stuck = {item.job_id for item in left}
        foreign = sorted(job for job, entry in entries.items() if entry.applied.foreign)
        self._note(
            self._kept(entries, left), [*gone, *(job for job in entries if job not in stuck and job not in foreign)]
        )
        return RestoreReport(
            restored=tuple(sorted(set(entries) - stuck - set(strangers) - set(foreign))),
            left=tuple(sorted(left, key=lambda item: (item.job_id, item.field))),
            gone=tuple(sorted(gone)),
            running=tuple(sorted(running)),
            foreign=tuple(foreign),
            orphans=() if orphans else tuple(sorted(strangers)),
            cleared_orphans=tuple(sorted(set(strangers) - stuck)) if orphans else (),
            journal_trouble=self._trouble,
        )

    def _kept(self, entries: Mapping[int, Entry], left: Sequence[Leftover]) -> list[Entry]:
        """Entries that stay in the journal: with what is left, or as a mark to keep away."""
        fields: dict[int, set[str]] = {}
        for item in left:
            fields.setdefault(item.job_id, set()).add(item.field)
        kept: list[Entry] = []
        for job, entry in entries.items():
            remains = entry
            if NOT_UNDERSTOOD in fields.get(job, ()):
                kept.append(entry)  # nothing was seen, so nothing is known to be gone
                continue
            if Field.SITE_FACTOR.value not in fields.get(job, ()):
                remains = _cleared(remains, Field.SITE_FACTOR, 0)
            if Field.PRIORITY.value not in fields.get(job, ()):
                remains = _cleared(remains, Field.PRIORITY, MULTIFACTOR)
            if Field.NICE.value not in fields.get(job, ()) and remains.applied.priority is None:
                remains = replace(remains, applied=replace(remains.applied, nice=0, base=0))
            if Field.EXC_NODES.value not in fields.get(job, ()):
                remains = _cleared(remains, Field.EXC_NODES, remains.applied.exc_nodes_before)
            if Field.OVERSUBSCRIBE.value not in fields.get(job, ()):
                applied = replace(remains.applied, oversubscribe=None, oversubscribe_before=None)
                remains = _without_doubts(replace(remains, applied=applied), Field.OVERSUBSCRIBE)
            if self.hands_off:
                remains = replace(remains, applied=replace(remains.applied, foreign=True))
            if not remains.is_empty:
                kept.append(remains)
        return kept

    def _rounds(self, entries: dict[int, Entry], seen: Mapping[int, JobStatus]) -> list[Leftover]:
        left: list[Leftover] = []
        for number in range(ROUNDS):
            work: dict[int, _Steps] = {}
            left = []
            for job, entry in entries.items():
                status = seen.get(job)
                if status is not None and status.strange:
                    left.append(_not_understood(status))
                if status is None or not status.pending:
                    continue
                steps, entries[job] = self._steps(entry, status)
                left.extend(steps.left)
                if steps.release or steps.writes:
                    work[job] = steps
            if not work:
                break
            if number == ROUNDS - 1:
                left.extend(item for job, steps in work.items() for item in self._gave_up(job, steps, seen[job]))
                break
            if number > 1:
                self.clock.sleep(ROUND_PAUSE)
            self._announce(entries, work)
            self._carry_out(work)
            seen = self._read(sorted(entries))
        return left

    def _read(self, ids: Sequence[int], *, everything: bool = False) -> Mapping[int, JobStatus]:
        """Fresh statuses; `everything`: of all pending jobs, and of the journal's whatever their state."""
        self._pause(STATUS_RPCS)
        seen = dict(self.reader.status(ids)) if ids else {}
        self.budget.spend(STATUS_RPCS, self.clock.monotonic())
        if everything:
            seen |= self.reader.status(None)
            self.budget.spend(STATUS_RPCS, self.clock.monotonic())
        return seen

    def _steps(self, entry: Entry, status: JobStatus) -> tuple[_Steps, Entry]:
        """What this job still needs, and its entry with values that turned out to be somebody else's taken out."""
        steps = _Steps()
        entry = self._undo_priority(entry, status, steps)
        entry = self._undo_factor(entry, status, steps)
        entry = self._undo_nodes(entry, status, steps)
        self._undo_oversubscribe(entry, status, steps)
        self._undo_nice(entry, status, steps)
        return steps, entry

    def _undo_priority(self, entry: Entry, status: JobStatus, steps: _Steps) -> Entry:
        of = Field.PRIORITY
        values = tuple(value for value in entry.ours(of) if value != MULTIFACTOR)
        if not values or status.held or status.site_factor is not None:
            # A hold took the explicit priority off for good, and a job that sprio lists has none.
            return entry
        if status.priority in values:
            steps.release = True
            return entry
        claimed_alone = entry.applied.priority is not None and not entry.doubts.get(of)
        return estranged(entry, of) if claimed_alone and entry.job_id not in self._release_asked else entry

    def _undo_factor(self, entry: Entry, status: JobStatus, steps: _Steps) -> Entry:
        of = Field.SITE_FACTOR
        values = entry.ours(of)
        if status.site_factor is not None:
            if status.site_factor == 0:
                return entry
            if status.site_factor not in values:
                return estranged(entry, of)
            steps.writes.append(_change(entry, of, status.site_factor, 0))
        elif any(values) and self._answers.get((entry.job_id, of)) != "" and not steps.release:
            # Slurm takes it, but shows it to nobody: on held, not eligible and explicitly prioritised jobs.
            steps.writes.append(_change(entry, of, entry.applied.site_factor, 0))
        return entry

    def _undo_nodes(self, entry: Entry, status: JobStatus, steps: _Steps) -> Entry:
        of, before = Field.EXC_NODES, entry.applied.exc_nodes_before
        ours = tuple(value for value in entry.ours(of) if not same(of, value, before))
        if not ours or same(of, status.exc_nodes, before):
            return entry
        if not among(of, status.exc_nodes, ours):
            return estranged(entry, of)
        steps.writes.append(_change(entry, of, status.exc_nodes, before))
        return entry

    def _undo_oversubscribe(self, entry: Entry, status: JobStatus, steps: _Steps) -> None:
        of = Field.OVERSUBSCRIBE
        if entry.applied.oversubscribe is None and not entry.doubts.get(of):
            return
        if status.oversubscribe not in ISOLATED or self._answers.get((entry.job_id, of)) == "":
            return
        if entry.shares is OverSubscribe.NO and self._yes_packs():
            steps.writes.append(_change(entry, of, OverSubscribe.NO.value, OverSubscribe.YES.value))
            return
        reason = (
            "on this release YES would give it a node of its own as well"
            if entry.shares is OverSubscribe.NO
            else "in its partition YES would make it share its CPUs, which its user did not ask for"
        )
        steps.left.append(
            Leftover(
                entry.job_id,
                of.value,
                status.oversubscribe.value,
                f"OverSubscribe=NO cannot be taken back in Slurm; {reason}",
                "none needed: it waits for an idle node; its owner may submit it again",
            )
        )

    def _undo_nice(self, entry: Entry, status: JobStatus, steps: _Steps) -> None:
        of = Field.NICE
        if entry.applied.nice == 0 or status.nice != 0 or steps.release:
            return
        explicit = entry.ours(Field.PRIORITY) != (MULTIFACTOR,)
        if not explicit and not entry.owes_nice:
            return
        answered = self._answers.get((entry.job_id, of))
        if answered is None or (answered == "" and status.site_factor is not None):
            steps.writes.append(_change(entry, of, 0, entry.applied.nice))
        else:
            why = "it is held" if status.held else "its explicit priority, set by somebody else, makes Slurm ignore it"
            steps.left.append(
                Leftover(
                    entry.job_id,
                    of.value,
                    "0",
                    f"the user's nice of {entry.applied.nice} is not back: {why}",
                    f"once it is released: scontrol update JobId={entry.job_id} Nice={entry.applied.nice}",
                )
            )

    def _yes_packs(self) -> bool:
        if self._packs_again is None:
            try:
                self._packs_again = self.reader.facts().release in YES_PACKS_AGAIN
            except SlurmError:
                self._packs_again = False
        return self._packs_again

    def _announce(self, entries: dict[int, Entry], work: Mapping[int, _Steps]) -> None:
        """Put the neutral values in doubt first, so that a daemon that goes on after an interrupt takes them for ours."""
        now = self.clock.time()
        for job, steps in work.items():
            entry = entries[job]
            for change in steps.writes:
                if change.field is not Field.NICE:
                    entry = intended(entry, change, now)
            if steps.release:
                release = _change(entry, Field.PRIORITY, 1, MULTIFACTOR)
                entry = intended(entry, release, now)
            entries[job] = entry
        self._note([entries[job] for job in work], [])

    def _note(self, entries: Sequence[Entry], forget: Sequence[int]) -> None:
        """Bring the journal up to date; the way back does not stop for a full disk."""
        if not self.record:
            return
        forgotten = set(forget) - {entry.job_id for entry in entries}
        try:
            self.journal.update(entries, sorted(forgotten))
        except JournalError as error:
            self._trouble = str(error)

    def _carry_out(self, work: Mapping[int, _Steps]) -> None:
        releases = [job for job, steps in work.items() if steps.release]
        writes = [change for steps in work.values() for change in steps.writes]
        total, done = len(releases) + len(writes), 0
        while releases:
            batch = self._batch(releases)
            self._release_asked.update(batch)
            try:
                self.writer.release(batch)
            except SlurmError as error:
                self._release_answer = str(error)
            releases = releases[len(batch) :]
            done += len(batch)
            self._tell(done, total)
        while writes:
            chunk = self._batch(writes)
            try:
                for answer in self.writer.write(chunk):
                    said = answer.message or ("" if answer.outcome in {None, Outcome.APPLIED} else answer.outcome.value)
                    if not answer.sent:
                        said = said or "not sent"
                    self._answers[answer.change.job_id, answer.change.field] = said
            except SlurmError as error:
                for change in chunk:
                    self._answers[change.job_id, change.field] = str(error)
            writes = writes[len(chunk) :]
            done += len(chunk)
            self._tell(done, total)

    def _batch(self, items: Sequence[_T]) -> list[_T]:
        self._pause(min(len(items), 8))
        self.budget.start_cycle()
        now = self.clock.monotonic()
        count = max(1, min(CHUNK, self.budget.allowance(len(items), now)))
        self.budget.spend(0, now, writes=count)
        return list(items[:count])

    def _pause(self, rpcs: int) -> None:
        seconds = self.budget.wait(rpcs, self.clock.monotonic())
        if seconds > 0:
            self.clock.sleep(seconds)

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)

    def _gave_up(self, job: int, steps: _Steps, status: JobStatus) -> list[Leftover]:
        items = []
        if steps.release:
            said = self._release_answer or "Slurm gave no reason"
            items.append(
                Leftover(
                    job,
                    Field.PRIORITY.value,
                    str(status.priority),
                    f"the explicit priority is still there: {said}",
                    f"scontrol release {job}",
                )
            )
        for change in steps.writes:
            said = self._answers.get((job, change.field)) or "Slurm gave no reason"
            value: Value | None = shown(status, change.field)
            hint = f"scontrol update JobId={job} {change.field.value}={change.after}"
            if status.reason == BAD_CONSTRAINTS:
                hint += " (the job has BadConstraints)"
            items.append(
                Leftover(
                    job,
                    change.field.value,
                    "?" if value is None else str(value),
                    f"Slurm did not take it: {said}",
                    hint,
                )
            )
        return items


def _not_understood(status: JobStatus) -> Leftover:
    """It may carry something of ours, and it may be pending: left alone, remembered, and tried again by the next restore."""
    reason = f"what Slurm says of this job cannot be understood: {status.strange}"
    return Leftover(status.job_id, NOT_UNDERSTOOD, "?", reason, "rltuned doctor")


def _change(entry: Entry, of: Field, before: Value, after: Value) -> Change:
    return Change(entry.job_id, entry.submit_time, of, before, after, position=0, nice=entry.applied.nice)


def _cleared(entry: Entry, of: Field, neutral: Value) -> Entry:
    return _without_doubts(replace(entry, applied=take(entry.applied, of, neutral)), of)


def _without_doubts(entry: Entry, of: Field) -> Entry:
    return replace(
        entry,
        doubts={name: values for name, values in entry.doubts.items() if name is not of},
        previous={name: value for name, value in entry.previous.items() if name is not of},
    )


@dataclass(frozen=True, slots=True)
class Remains:
    """What `doctor` reports: is anything of rltuned's on the queue?"""

    jobs: tuple[int, ...] = ()
    """Pending jobs that carry a value of ours."""
    unverifiable: tuple[int, ...] = ()
    """Jobs that may carry something of ours: sprio does not list them (held, explicit priority, restart), or what Slurm
    says of them cannot be understood."""
    foreign: tuple[int, ...] = ()
    """Pending jobs that somebody else changed: marked to be left alone."""
    orphans: tuple[int, ...] = ()
    """Pending jobs with a SiteFactor unknown to the journal."""

    @property
    def nothing(self) -> bool:
        """Whether every pending job's priority is what Slurm alone computes, as far as rltuned is concerned."""
        return not self.jobs and not self.unverifiable


def remains(journal: Journal, seen: Mapping[int, JobStatus]) -> Remains:
    """Compare the journal with `SlurmReader.status(None)`; changes nothing."""
    jobs, unverifiable, foreign = [], [], []
    for job, entry in journal.entries.items():
        status = seen.get(job)
        if status is not None and status.strange and not entry.is_empty:
            unverifiable.append(job)
        if status is None or not status.pending or status.submit_time != entry.submit_time:
            continue
        if entry.applied.foreign:
            foreign.append(job)
        factors = [value for value in entry.ours(Field.SITE_FACTOR) if value != 0]
        priorities = [value for value in entry.ours(Field.PRIORITY) if value != MULTIFACTOR]
        nodes = [
            value
            for value in entry.ours(Field.EXC_NODES)
            if not same(Field.EXC_NODES, value, entry.applied.exc_nodes_before)
        ]
        carries = (
            (status.site_factor is not None and status.site_factor in factors)
            or (status.site_factor is None and status.priority in priorities)
            or among(Field.EXC_NODES, status.exc_nodes, tuple(nodes))
            or (entry.applied.oversubscribe is not None and status.oversubscribe in ISOLATED)
            or (entry.owes_nice and status.nice == 0)
        )
        if carries:
            jobs.append(job)
        elif factors and status.site_factor is None:
            unverifiable.append(job)
    stray = [
        job
        for job, status in seen.items()
        if status.pending and status.site_factor not in {None, 0} and job not in journal.entries
    ]
    return Remains(tuple(sorted(jobs)), tuple(sorted(unverifiable)), tuple(sorted(foreign)), tuple(sorted(stray)))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The daemon's sign of life, as the dead-man timer reads it."""

    time: float
    """Epoch seconds of the last one."""
    stale_after: float
    """Seconds after which the daemon itself considers it stale (several cycles)."""
    pid: int


def read_heartbeat(*directories: Path | None) -> Heartbeat | None:
    """The latest heartbeat in any of the state directories; None when there is none that can be understood."""
    found: list[Heartbeat] = []
    for directory in directories:
        if directory is None:
            continue
        try:
            data = json.loads((directory / HEARTBEAT_NAME).read_text(encoding="utf-8"))
            found.append(Heartbeat(float(data["time"]), float(data["stale_after"]), int(data["pid"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return max(found, key=lambda heartbeat: heartbeat.time, default=None)


def is_stale(max_age: float, now: float, *directories: Path | None) -> bool:
    """Whether the daemon shows no sign of life: no heartbeat, or none for `max_age` seconds (several cycles at least)."""
    heartbeat = read_heartbeat(*directories)
    return heartbeat is None or now - heartbeat.time > max(max_age, heartbeat.stale_after)

"""Takes everything of rltuned's off a set of jobs, and proves it. Needs no daemon and no model.

Jobs are undone in batches of read and write: a batch acts on a reading that was made for it. A job comes up again until
a reading shows nothing of ours on it; an interrupted restore is continued by the next one. Only a value that is ours is
taken back. A job is forgotten when a reading long enough after its undoing shows nothing of ours: the next restore's
(the dead-man timer's) or the daemon's.

Running jobs are left alone: what they carry has no effect unless they are requeued, and then the next restore sees it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from rltuned.controller.health.clock import Clock
from rltuned.controller.health.rpc_budget import STATUS_RPCS, Budget
from rltuned.controller.write.claims import (
    ISOLATED,
    READING_SECONDS,
    RULES,
    SETTLE_SECONDS,
    Entry,
    Value,
    settling_seconds,
    which_slurmctld,
)
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import Applied, Change, Field, JobStatus, Outcome, OverSubscribe, SiteFactor
from rltuned.core.errors import JournalError, SlurmDeniedError, SlurmError
from rltuned.slurm.port import ClusterFacts, SlurmReader, SlurmWriter

TRIES: Final = 3
"""Writes to one job: one, and two retries. A reading follows each; the last one is the proof."""
CHUNK: Final = 500
"""Most jobs per batch: written within about a second of their reading, and an interrupt loses no more than one
batch."""
CALCULATION_SECONDS: Final = 30.0
"""Within so many seconds after it is due, slurmctld has calculated the priorities of a long queue."""
OUTLAST: Final = 30.0
"""Seconds that a pass of backfill is waited for; after longer ones the dead-man timer looks again."""
ROUND_PAUSE: Final = 1.0  # seconds before a retry

YES_PACKS_AGAIN: Final = frozenset({(22, 5), (26, 5)})
"""Releases on which YES was measured to pack in an OverSubscribe=NO partition; on 24.11 it means one job per node."""
NOT_UNDERSTOOD: Final = "?"  # as the field of a `Leftover`: any of them

Progress = Callable[[int, int], None]  # called with (jobs done, jobs in all)


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that could not be taken back."""

    job_id: int
    field: str
    value: str
    reason: str
    remedy: str
    final: bool = False  # Slurm has no way to take it back: another try would end the same way


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did. Job ids are sorted."""

    restored: tuple[int, ...] = ()
    """Nothing of ours is on these pending jobs any more, by reading (or, where Slurm shows it not, by its word)."""
    left: tuple[Leftover, ...] = ()
    gone: tuple[int, ...] = ()  # not in the queue any more: nothing to do
    running: tuple[int, ...] = ()  # started: left alone, remembered in case they are requeued
    foreign: tuple[int, ...] = ()  # somebody else changed these; their values stand
    orphans: tuple[int, ...] = ()  # with a SiteFactor that the journal does not know; cleared only when asked for
    cleared_orphans: tuple[int, ...] = ()
    marked: tuple[int, ...] = ()  # pending, and carried nothing of ours: left alone from now on, as asked
    unknown: tuple[int, ...] = ()  # asked for, but neither in the journal nor waiting: nothing to do
    journal_trouble: str = ""
    """Why the journal could not be brought up to date; the queue is restored nevertheless."""
    outlasted: float = 0.0
    """Seconds for which a pass of backfill, which may put back what was written, was waited for."""

    @property
    def complete(self) -> bool:
        """Whether nothing of ours is left on any pending job."""
        return not self.left

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"complete": self.complete}

    def sentence(self) -> str:
        """One line for the log."""
        others = (
            (self.left, "values left"),
            (self.cleared_orphans, "orphans cleared"),
            (self.gone, "gone"),
            (self.running, "running"),
            (self.foreign, "changed by others and left to them"),
            (self.marked, "carried nothing and are left alone from now on"),
        )
        parts = [f"{len(jobs)} {text}" for jobs, text in others if jobs]
        if self.outlasted >= 1.0:
            parts.append(f"of the time {self.outlasted:.0f} s for a pass of Slurm's backfill to end")
        named = f" ({', '.join(map(str, self.restored))})" if self.restored else ""
        return ", ".join([f"{len(self.restored)} jobs restored{named}", *parts])


@dataclass(slots=True)
class Slurm:
    """What a restore asks of Slurm, and what that has said. Waits for the budget."""

    reader: SlurmReader
    writer: SlurmWriter
    budget: Budget
    clock: Clock
    facts: ClusterFacts | None = None  # how the cluster is configured; None: read when it matters
    calculated: bool = False
    """sprio listed a job: slurmctld has calculated priorities since it started."""
    outlasts: bool = False
    """Where a pass of backfill goes on, its end is waited for, and looked once more: it may put back what was written.
    Not of a daemon, which looks in each cycle."""
    answers: dict[tuple[int, Field], str | None] = field(default_factory=dict)
    """What it said to a write; None where it took it without a word."""
    started: float = 0.0
    """When the slurmctld had started that took the first hidden value back, epoch seconds (`Entry.cleared`)."""
    outlasted: float = 0.0  # seconds that `outlast` has taken

    def pause(self, rpcs: int) -> None:
        """Wait for so many."""
        seconds = self.budget.wait(rpcs, self.clock.monotonic())
        if seconds > 0:
            self.clock.sleep(seconds)

    def read(self, ids: Sequence[int] | None) -> Mapping[int, JobStatus]:
        """Fresh statuses; None: of all pending jobs."""
        self.pause(STATUS_RPCS)
        seen = self.reader.status(ids)
        self.budget.spend(STATUS_RPCS, self.clock.monotonic())
        self.calculated |= any(status.site_factor is not None for status in seen.values())
        return seen

    def write(self, changes: Sequence[Change]) -> None:
        """Send these, and note in `answers` what it says."""
        self.budget.spend(0, self.clock.monotonic(), writes=len(changes))
        try:
            for answer in self.writer.write(changes):
                taken = answer.sent and answer.outcome in {None, Outcome.APPLIED}
                refusal = None if taken else answer.outcome or "not sent"
                self.answers[answer.change.job_id, answer.change.field] = answer.message or refusal
        except SlurmError as error:
            self.answers |= {(change.job_id, change.field): str(error) for change in changes}

    def took(self, job: int, of: Field) -> bool:
        """Whether it has taken the last write without a word."""
        return self.answers.get((job, of), "") is None

    def cluster(self) -> ClusterFacts | None:
        """Its facts, where they can be had."""
        if self.facts is None:
            with contextlib.suppress(SlurmError):
                self.facts = self.reader.facts()
        return self.facts

    def refuse_hidden(self) -> None:
        """Jobs that this user may not see are not gone: raises SlurmError."""
        self.facts = self.facts or self.reader.facts()
        if self.facts.hides_jobs:
            raise hidden(self.facts.user)

    def hides(self, entry: Entry, status: JobStatus) -> bool:
        """Whether sprio leaves the job out for what it is, and not because no priority was calculated yet."""
        requeued_since = entry.touched < status.submit_time
        if status.held or not status.eligible or (self.calculated and not requeued_since):
            return True
        facts = self.cluster()
        if facts is None:
            return False
        since = max(facts.started, status.submit_time if requeued_since else 0.0)
        return self.clock.time() - since > facts.priority_calc_period + CALCULATION_SECONDS

    def outlast(self) -> bool:
        """Wait while a pass of backfill goes on, for some time. Whether there was one."""
        began, was = self.clock.steady(), False
        with contextlib.suppress(SlurmError):
            while self.reader.backfills() and self.clock.steady() < began + OUTLAST:
                was = True
                self.clock.sleep(ROUND_PAUSE)
                self.pause(1)
        self.outlasted = self.clock.steady() - began
        return was


@dataclass(frozen=True, slots=True)
class WhatToRestore:
    """What is to be given back."""

    job_ids: Collection[int] | None = None  # these jobs only; None: all of the journal
    orphans: bool = False  # clear the SiteFactor of pending jobs, too, where the journal does not know or explain it
    hands_off: bool = False  # leave the jobs alone from now on: an admin asked for these very jobs

    def unknown(self, journal: Journal, slurm: Slurm) -> dict[int, JobStatus]:
        """Jobs unknown to the journal: those asked for, as far as they are pending or not understood; or, of orphans,
        the pending ones of the queue, and those whose value it does not explain.
        """
        known = journal.entries
        if self.job_ids is not None:
            ids = sorted(set(self.job_ids) - known.keys())
            seen = slurm.read(ids) if ids else {}
            return {job: one for job, one in seen.items() if job not in known and (one.pending or one.strange)}
        seen = slurm.read(None) if self.orphans else {}
        pending = ((job, status) for job, status in seen.items() if status.pending)
        return {job: one for job, one in pending if job not in known or journal.is_orphan(job, one.site_factor)}


def restore(journal: Journal, slurm: Slurm, asked: WhatToRestore, progress: Progress | None = None) -> RestoreReport:
    """Undo, verify, report. Idempotent. Slow but finishing under Slurm's RPC limiter: waits for the budget.

    A journal that was opened for reading is not brought up to date: it is a living daemon's, which sees the jobs
    changed and leaves them alone. SlurmError: the queue could not be read; what was written so far is journalled as far
    as possible.
    """
    known, began, settling = journal.entries, slurm.clock.steady(), settling_seconds(slurm.facts)
    others, job_ids = asked.unknown(journal, slurm), asked.job_ids
    unknown = set(job_ids or ()) - known.keys() - others.keys()
    strange = [others.pop(job) for job in list(others) if others[job].strange]
    strangers = {job: status.site_factor for job, status in others.items() if status.site_factor}
    before = {job: entry.dated(began) for job, entry in known.items() if job_ids is None or job in job_ids}
    if asked.orphans:
        for job, factor in strangers.items():
            before[job] = Entry(Applied(job, others[job].submit_time, site_factor=factor))
    work = _Work(journal, slurm, dict(before))
    left = [*work.run(progress), *map(_not_understood, strange)]
    entries, stuck = work.entries, {item.job_id for item in left}
    foreign = {job for job, entry in entries.items() if entry.applied.foreign}
    proven = {job for job in entries if not before[job].claims and began - before[job].touched >= settling}
    # What carried nothing of ours is marked all the same: an admin asked to leave it alone.
    marked = others.keys() - entries.keys() if asked.hands_off else frozenset[int]()
    marks = [Entry(Applied(job, others[job].submit_time, foreign=True)) for job in sorted(marked)]
    # A job that was cancelled just now comes back when slurmctld is killed before it saves that.
    missing = [
        _unproven(before[job], began)
        for job in sorted(work.missing)
        if before[job].claims or began - before[job].touched < SETTLE_SECONDS
    ]
    work.note(
        [*work.kept(left, proven, hands_off=asked.hands_off), *marks, *missing],
        [*work.gone, *(job for job in entries if job not in stuck and job not in foreign)],
    )
    undone = {job for job in entries if before[job].claims or job in work.written}
    cleared = strangers.keys() if asked.orphans else frozenset[int]()
    return RestoreReport(
        restored=tuple(sorted(undone - stuck - strangers.keys() - foreign)),
        left=tuple(sorted(left, key=lambda item: (item.job_id, item.field))),
        gone=tuple(sorted(work.gone)),
        running=tuple(sorted(work.running)),
        foreign=tuple(sorted(foreign)),
        orphans=tuple(sorted(strangers.keys() - cleared)),
        cleared_orphans=tuple(sorted(cleared - stuck)),
        marked=tuple(sorted(marked)),
        unknown=tuple(sorted(unknown)),
        journal_trouble=work.trouble,
        outlasted=slurm.outlasted,
    )


@dataclass(slots=True)
class _Work:
    """The jobs of a restore."""

    journal: Journal
    slurm: Slurm
    entries: dict[int, Entry]  # kept up to date; jobs that are gone or run are taken out
    trouble: str = ""
    gone: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    """Not in the queue at all; of a job that is `gone`, another one may have the id."""
    running: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    ids_go_on: bool = False
    """A job of the journal was seen with the submit time that the journal has: slurmctld did not lose its state."""

    def run(self, progress: Progress | None) -> list[Leftover]:
        """Work the jobs off, batch by batch: read, judge, write."""
        slurm, clock, entries, outlast = self.slurm, self.slurm.clock, self.entries, self.slurm.outlasts
        left: dict[int, list[Leftover]] = {}
        tries = dict.fromkeys(entries, 0)
        total, todo = len(entries), deque(entries)
        while todo:
            batch = [todo.popleft() for _ in range(min(CHUNK, len(todo)))]
            if tries[batch[0]] > 1:
                clock.sleep(ROUND_PAUSE)
            # A job that was written already is only looked at again, as a rule.
            slurm.pause(STATUS_RPCS + max(1, sum(not tries[job] for job in batch)))
            read_at = clock.steady()
            seen = slurm.read(batch)
            if not any(job in seen for job in batch):
                slurm.refuse_hidden()
            self.ids_go_on |= any(seen[job].submit_time == entries[job].submit_time for job in batch if job in seen)
            # `write.per_cycle` is for plans: what is given back counts, and waits for Slurm's limiter only.
            tokens = int(slurm.budget.tokens(clock.monotonic()))
            room = max(1, tokens) if slurm.budget.limited else 2 * len(batch)
            work: dict[int, list[Change]] = {}
            while batch and room > 0:
                job = batch.pop(0)
                needs = self._judge(job, seen.get(job))
                left[job] = [need for need in needs if isinstance(need, Leftover)]
                writes = [need for need in needs if isinstance(need, Change)]
                if writes and tries[job] == TRIES:
                    left[job] += [self._gave_up(change, seen[job]) for change in writes]
                elif writes:
                    work[job] = writes
                    room -= len(writes)
            todo.extendleft(reversed(batch))
            if work:
                self._announce(work)
                if clock.steady() - read_at < READING_SECONDS:  # else they are read and judged anew
                    slurm.write([change for changes in work.values() for change in changes])
                    self.written.update(work)
                for job in work:
                    tries[job] += 1
                todo.extend(work)
            if progress is not None:
                progress(total - sum(not tries[job] for job in todo), total)
            if not todo and outlast and self.written:
                outlast = False
                todo.extend(sorted(self.written & entries.keys()) if slurm.outlast() else ())
        return [item for items in left.values() for item in items]

    def _judge(self, job: int, status: JobStatus | None) -> list[Change | Leftover]:
        """What this job still needs, and what cannot be done; neither where it is gone or runs."""
        entry, nowhere = self.entries[job], status is None
        if status is not None and status.strange:
            return [_not_understood(status)]
        if status is not None and status.pending and status.submit_time != entry.submit_time:
            again = entry.requeued(status, ids_go_on=self.ids_go_on)
            if again is None and status.site_factor is None and entry.factors:
                return [_unidentified(entry)]
            status = None if again is None else status
            entry = again or entry
        if status is None or not status.pending:
            (self.gone if status is None else self.running).add(job)
            if nowhere:
                self.missing.add(job)
            del self.entries[job]
            return []
        if status.site_factor and status.site_factor not in entry.factors:
            judged, need = entry.estranged(Field.SITE_FACTOR), None  # somebody else's
        else:
            judged, need = entry, self._site_factor(entry, status)
        self.entries[job] = judged.noticed(entry, self.slurm.clock.steady())
        return [each for each in (need, self._oversubscribe(judged, status)) if each is not None]

    def _site_factor(self, entry: Entry, status: JobStatus) -> Change | Leftover | None:
        value, job, of, slurm = status.site_factor, entry.job_id, Field.SITE_FACTOR, self.slurm
        if value is not None:
            # A job that has 0 may stand raised all the same; the same value once more puts its priority right.
            carried = value or entry.standing(status)
            return _undoing(entry, of, carried, SiteFactor(0)) if carried else None
        if not entry.carries or slurm.took(job, of):
            return None
        if not slurm.hides(entry, status):
            why = "slurmctld has not calculated its priority yet, so nothing tells whose site factor it has"
            return Leftover(job, of.value, "?", why, "run it again in some minutes")
        if not slurm.started and (facts := slurm.cluster()) is not None:
            slurm.started = which_slurmctld(facts)
        # Slurm takes it, but shows it to nobody. Only another slurmctld can have lost it again; writing once more to
        # this one would undo what somebody else sets.
        if entry.cleared and entry.cleared == slurm.started:
            return None
        return _undoing(entry, of, entry.applied.site_factor, SiteFactor(0))

    def _oversubscribe(self, entry: Entry, status: JobStatus) -> Change | Leftover | None:
        """NO → YES where that means packing again (`YES_PACKS_AGAIN`); elsewhere the job is named."""
        job, of = entry.job_id, Field.OVERSUBSCRIBE
        touched = entry.applied.oversubscribe is not None or of in entry.doubts
        if not touched or status.oversubscribe not in ISOLATED or self.slurm.took(job, of):
            return None
        if entry.shares is not OverSubscribe.NO:
            why = "in its partition YES would make it share its CPUs, which its user did not ask for"
        elif (facts := self.slurm.cluster()) is None or facts.release not in YES_PACKS_AGAIN:
            why = "on this release YES would give it a node of its own as well"
        else:
            return _undoing(entry, of, OverSubscribe.NO.value, OverSubscribe.YES.value)
        why = f"OverSubscribe=NO cannot be taken back in Slurm; {why}"
        remedy = "none needed: it waits for an idle node; its owner may submit it again"
        return Leftover(job, of.value, status.oversubscribe.value, why, remedy, final=True)

    def _gave_up(self, change: Change, status: JobStatus) -> Leftover:
        value, of = RULES[change.field].shown(status), change.field.value
        said = self.slurm.answers.get((change.job_id, change.field)) or "Slurm gave no reason"
        why = f"Slurm did not take it: {said}"
        if change.field is Field.SITE_FACTOR and value == 0:
            facts = self.slurm.facts
            within = "" if facts is None else f", within {facts.priority_calc_period:.0f} s"
            why = (
                f"squeue shows the priority {status.priority} of before, which backfill has put back, until Slurm"
                f" calculates priorities anew{within} (PriorityCalcPeriod)"
            )
        remedy = f"scontrol update JobId={change.job_id} {of}={change.after}"
        return Leftover(change.job_id, of, "?" if value is None else str(value), why, remedy)

    def _announce(self, work: Mapping[int, list[Change]]) -> None:
        """Put the neutral values in doubt: a daemon that goes on after an interrupt takes them for ours."""
        now = self.slurm.clock.steady()
        for job, changes in work.items():
            for change in changes:
                self.entries[job] = self.entries[job].intended(change, now)
        self.note([self.entries[job] for job in work], [])

    def note(self, entries: Sequence[Entry], forget: Sequence[int]) -> None:
        """Bring the journal up to date; the way back does not stop for a full disk."""
        forgotten = set(forget) - {entry.job_id for entry in entries}
        try:
            if not self.journal.read_only:
                self.journal.update(entries, sorted(forgotten))
        except JournalError as error:
            self.trouble = str(error)

    def kept(self, left: Sequence[Leftover], proven: Collection[int], *, hands_off: bool) -> list[Entry]:
        """Entries that stay in the journal: with what is left, as a mark to keep away, or because nothing is proven."""
        stuck = {(item.job_id, item.field) for item in left}
        kept: list[Entry] = []
        for job, entry in self.entries.items():
            # A killed slurmctld comes back with the state of some seconds ago: what was taken back stays in doubt until
            # it was seen to be gone after that time.
            remains, sure = entry, job in proven and job not in self.written
            if (job, NOT_UNDERSTOOD) in stuck:
                continue  # nothing was seen: the entry stays as it is
            if (job, Field.SITE_FACTOR) not in stuck:
                remains = remains.given_back(Field.SITE_FACTOR, sure=sure)
                if self.slurm.took(job, Field.SITE_FACTOR):
                    remains = replace(remains, cleared=self.slurm.started)
            if (job, Field.OVERSUBSCRIBE) not in stuck:
                remains = remains.given_back(Field.OVERSUBSCRIBE, sure=True)
            if entry.claims and not remains.claims and job not in self.written:
                # Somebody else took it back (`restore JOBID` beside a daemon), and when is not known: perhaps just now.
                remains = replace(remains, touched=self.slurm.clock.steady())
            if hands_off:
                remains = replace(remains, applied=replace(remains.applied, foreign=True))
            if not remains.is_empty:
                kept.append(remains)
        return kept


def _undoing(entry: Entry, of: Field, before: Value, after: SiteFactor | str) -> Change:
    return Change(entry.job_id, entry.submit_time, of, before, after, position=0)


def hidden(user: str) -> SlurmDeniedError:
    """The error where the queue cannot be seen."""
    return SlurmDeniedError(
        f"PrivateData=jobs hides the jobs of others from {user}, who has no privilege any more: what is out cannot be"
        f" given back; sacctmgr modify user {user} set adminlevel=operator"
    )


def _not_understood(status: JobStatus) -> Leftover:
    """Of a job that may carry something of ours, and may be pending: the next restore tries again."""
    reason = f"what Slurm says of this job cannot be understood: {status.strange}"
    return Leftover(status.job_id, NOT_UNDERSTOOD, "?", reason, "rltuned doctor")


def _unproven(entry: Entry, now: float) -> Entry:
    """The entry of a job that is missing for the first time: nothing claimed, what was ours in doubt."""
    touched = now if entry.claims else entry.touched
    return replace(entry.given_back(Field.SITE_FACTOR, sure=False), touched=touched)


def _unidentified(entry: Entry) -> Leftover:
    return Leftover(
        entry.job_id,
        Field.SITE_FACTOR.value,
        "?",
        "it is the job that carried our value and was requeued, or, after slurmctld lost its state, another one with"
        " its id; sprio does not list it, so neither can be ruled out",
        f"look again once it is released; if it was requeued: scontrol update JobId={entry.job_id} SiteFactor=0",
    )

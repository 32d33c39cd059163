"""From changes to outcomes: read, judge, journal, write, read back.

The job is read right before and right after the write, because neither the plan's snapshot (seconds old) nor Slurm's
answer (for arrays, return code and stderr say nothing) proves anything. What the pre-read shows decides
whether the job is still ours to change; what the read-back shows is the outcome.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from rltuned.controller.health.clock import Clock
from rltuned.controller.health.rpc_budget import LOOK_RPCS, STATUS_RPCS, Budget
from rltuned.controller.write.claims import READING_SECONDS, RULES, Entry, Judgement
from rltuned.controller.write.journal import Journal, Settlement
from rltuned.core.changes import Change, Field, JobStatus, Outcome, OverSubscribe, WriteResult
from rltuned.core.errors import JournalError, SlurmDeniedError, SlurmError
from rltuned.slurm.port import SlurmReader, SlurmWriter


class Result(NamedTuple):
    """What became of one change, and a sentence about it ("" where there is nothing to say)."""

    change: Change
    outcome: Outcome
    message: str


_GONE: Final = "it is not pending any more"
_HELD: Final = "it is held"
_CHANGED: Final = "its limit, size, partition, account or QOS was changed"
_ALTERED: Final = "its limit, size, partition, account or QOS changed with the write (a job_submit plugin?)"
_UNDONE: Final = "squeue shows its old priority: backfill has put it back"
_NO_BUDGET: Final = "the write budget of this cycle is spent"
_STRANGE: Final = "what Slurm says of it cannot be understood"
SPARE: Final = 64
"""Changes that are looked at beside twice as many as fit: some jobs will have started, or be somebody else's."""


@dataclass(frozen=True)
class Applier:
    """Carries out changes, one batch at a time."""

    reader: SlurmReader
    writer: SlurmWriter
    journal: Journal
    budget: Budget
    clock: Clock

    def apply(
        self,
        changes: Sequence[Change],
        shares: Mapping[int, OverSubscribe] | None = None,
        *,
        only_one: bool = False,
    ) -> list[Result]:
        """Carry out what may still be carried out: read, write one batch in the order of `Change.turn`, read back.

        What does not fit into the `budget` is THROTTLED; what comes so late that it will not fit is not even looked at.
        Of a full bucket one change is sent in any case, so that a small one does not keep the queue as it is for ever.

        `shares`: OverSubscribe of the job's partition, by job id. `only_one`: of what may be sent, send one change.
        Returns one result per change, in the order of `Change.position`. Raises SlurmError, JournalError: the jobs
        could not be read, or the intents not be put on disk; nothing was written.
        """
        if not changes:
            return []
        # Of many changes a few fit.
        turns = sorted(changes, key=attrgetter("turn"))
        most = SPARE + 2 * self.budget.allowance(len(turns), self.clock.monotonic(), keep=STATUS_RPCS)
        looked_at = sorted(turns[:most], key=attrgetter("position"))
        full = self.budget.full(self.clock.monotonic())
        read_at = self.clock.steady()
        seen = self.reader.status(sorted({change.job_id for change in looked_at}))
        self.budget.spend(LOOK_RPCS, self.clock.monotonic())
        results = {id(change): Result(change, Outcome.THROTTLED, _NO_BUDGET) for change in turns}
        may: set[int] = set()
        learned: dict[int, Entry] = {}
        for change in looked_at:
            known = learned.get(change.job_id) or self.journal.entry(change.job_id, change.submit_time)
            judged = _judge(change, seen, known)
            if judged.entry is not None:
                learned[change.job_id] = judged.entry.noticed(known, read_at)
            if judged.outcome is None:
                may.add(id(change))
            else:
                results[id(change)] = Result(change, judged.outcome, judged.message)
        if learned:
            self.journal.update(entry for job, entry in learned.items() if self.journal.entries.get(job) != entry)
        sendable = [change for change in turns[:most] if id(change) in may]
        room = self.budget.allowance(len(sendable), self.clock.monotonic(), keep=STATUS_RPCS, least=int(full))
        room = min(room, 1) if only_one else room
        if room:
            for result in self._send(sendable[:room], seen, read_at, shares or {}):
                results[id(result.change)] = result
        return sorted(results.values(), key=lambda result: result.change.position)

    def _send(
        self,
        changes: Sequence[Change],
        seen: Mapping[int, JobStatus],
        read_at: float,
        shares: Mapping[int, OverSubscribe],
    ) -> list[Result]:
        intents: list[tuple[Change, Entry]] = []
        pending: dict[int, Entry] = {}
        for change in changes:
            entry = pending.get(change.job_id) or self.journal.entry(change.job_id, change.submit_time)
            entry = entry or Entry.blank(change)
            entry = entry.intended(change, self.clock.steady(), shares=shares.get(change.job_id))
            pending[change.job_id] = entry
            intents.append((change, entry))
        self.journal.intend(intents)
        if self.clock.steady() - read_at > READING_SECONDS:
            return self._too_late(intents)
        answers: Sequence[WriteResult]
        try:
            answers = self.writer.write(changes)
        except SlurmError as error:
            denied = Outcome.DENIED if isinstance(error, SlurmDeniedError) else None
            answers = [WriteResult(change, sent=True, outcome=denied, message=str(error)) for change in changes]
        finally:
            self.budget.spend(0, self.clock.monotonic(), writes=len(changes))
        try:
            now_seen: Mapping[int, JobStatus] | str = self.reader.status(sorted(pending))
            self.budget.spend(STATUS_RPCS, self.clock.monotonic())
        except SlurmError as error:
            now_seen = f"could not be read back: {error}"
        settlements: list[Settlement] = []
        for change, answer in zip(changes, answers, strict=True):
            entry = pending[change.job_id]
            if isinstance(now_seen, str):
                settled = Settlement(change, Outcome.FAILED, now_seen, entry)
            else:
                settled = Settlement(change, *settle(change, answer, seen, now_seen, entry, self.clock.steady()))
            pending[change.job_id] = settled.entry
            settlements.append(settled)
        return self._settled(settlements)

    def _too_late(self, intents: Sequence[tuple[Change, Entry]]) -> list[Result]:
        """Changes that were judged by an old reading are not sent: what was intended is nobody's."""
        why = "what was read of the job is too old (suspended machine, slow disk?)"
        entries: dict[int, Entry] = {}
        for change, entry in intents:
            entries[change.job_id] = entries.get(change.job_id, entry).refused(change)
        return self._settled([Settlement(one, Outcome.THROTTLED, why, entries[one.job_id]) for one, _ in intents])

    def _settled(self, settlements: Sequence[Settlement]) -> list[Result]:
        with contextlib.suppress(JournalError):  # the intents on disk stand in for the outcomes; `alarms` tells
            self.journal.settle(settlements)
        return [Result(change, outcome, message) for change, outcome, message, _ in settlements]


def _judge(change: Change, seen: Mapping[int, JobStatus], entry: Entry | None) -> Judgement:
    status = seen.get(change.job_id)
    if status is not None and status.strange:
        return Judgement(Outcome.THROTTLED, f"{_STRANGE}: {status.strange}")
    if status is None or not status.pending or status.submit_time != change.submit_time:
        return Judgement(Outcome.GONE, _GONE)
    if entry is not None and entry.applied.foreign:
        return Judgement(Outcome.FOREIGN, "somebody else changed it before")
    if status.held:
        return Judgement(Outcome.HELD, _HELD)
    if change.request and status.request and change.request != status.request:
        return Judgement(Outcome.CHANGED, _CHANGED)
    return RULES[change.field].judge(change, status, entry or Entry.blank(change))


def settle(
    change: Change,
    answer: WriteResult,
    before: Mapping[int, JobStatus],
    after: Mapping[int, JobStatus],
    entry: Entry,
    now: float,
) -> tuple[Outcome, str, Entry]:
    """The outcome of a sent change by reading the job again, and its entry."""
    status, row = after.get(change.job_id), RULES[change.field]
    if status is not None and status.strange:
        # The value may be on it: stays in doubt.
        return Outcome.FAILED, f"could not be read back; {_STRANGE}: {status.strange}", entry
    if status is None or status.submit_time != change.submit_time or not status.pending:
        # If it started in between, the value may be on it and would come back with a requeue: stays in doubt.
        return Outcome.GONE, answer.message or _GONE, entry
    was = before[change.job_id]
    value = row.shown(status)
    done = "" if value == change.after else row.accepted(answer, status)
    if done is not None:
        older = change.field is Field.SITE_FACTOR and entry.standing(status) != value
        entry = entry.landed(change.field, change.after, now)
        if status.request != was.request:
            return Outcome.ALTERED, _ALTERED, entry
        return (Outcome.UNDONE, _UNDONE, entry) if older else (Outcome.APPLIED, done, entry)
    if status.held and change.field is Field.SITE_FACTOR:
        return Outcome.HELD, _HELD, entry
    if answer.outcome is Outcome.DENIED:
        return Outcome.DENIED, answer.message, entry.refused(change)
    if lost := row.lost(status):
        return Outcome.FAILED, answer.message or lost, entry
    if value == row.shown(was):
        return answer.outcome or Outcome.FAILED, answer.message or f"{change.field.value} is still {value}", entry
    return Outcome.FOREIGN, f"somebody set {change.field.value}={value}", entry.estranged(change.field)

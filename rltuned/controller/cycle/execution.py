"""Carries out a plan: jobs that leave it are given back first, then others are raised."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rltuned.controller.cycle.state import DaemonState
from rltuned.controller.give_back.by_daemon import DaemonRestore
from rltuned.controller.health.liveness import Liveness
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.write.apply import Applier, Result
from rltuned.core.changes import NOT_RAISED, SENT, TAKEN, Change, Field, Outcome, OverSubscribe
from rltuned.core.errors import JournalError, SlurmError
from rltuned.core.tables import Snapshot
from rltuned.decide.loans import Offer
from rltuned.decide.plan import Plan
from rltuned.decide.raising import STOP_MEANING, Stop
from rltuned.decide.scope import Veto
from rltuned.slurm.port import SlurmWriter

SPREAD: Final = 0.5
"""Share of the interval over which writes are spread when Slurm's RPC limiter does not take them at once."""
_OTHERS_LEAVE: Final = "jobs that go ahead no more are given back first"


@dataclass
class Execution:
    """Writes what plans want, within the budget."""

    runtime: Runtime
    liveness: Liveness
    restoring: DaemonRestore
    writer: Callable[[], SlurmWriter]
    state: DaemonState
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the running cycle is to end early, between two batches."""
    _tried: float | None = None
    """Start of the slurmctld that has taken a write and changed nothing beside it."""

    def carry_out(
        self, snapshot: Snapshot, plan: Plan, began: float, offers: Mapping[int, Offer], against: str | None = None
    ) -> tuple[tuple[int, ...], list[Result]]:
        """Give back and write, in a cycle that `began` then (monotonic seconds).

        `offers`: of the plan before, by job id. `against`: why nobody may be raised. Returns which jobs left the
        plan and were given back, and what became of each change. SlurmError, JournalError: jobs not read, or intents
        not kept; nothing was written since.
        """
        back, until = self.restoring, began + SPREAD * self.runtime.config.cycle.interval
        undone = plan.managed.applied.undone
        leaving = back.leaving(snapshot, plan.withdraw, undone)
        restored, stuck = back.give_back(leaving, _why_back(plan, undone))
        left_out = set(leaving)
        changes = [change for change in plan.changes if change.job_id not in left_out]
        shares = _partition_shares(snapshot, changes)
        results = self._spread([change for change in changes if change.gives_back], shares, until)
        stuck |= {change.job_id for change, outcome, _ in results if outcome not in NOT_RAISED}
        # What lenders have promised to a job that is still raised they cannot lend to another one. Where the plan knows
        # that it is, it has left them their promise.
        known = {job for job, offer in offers.items() if offer.unwanted} - plan.raised.offers.keys()
        if stuck & (offers.keys() | plan.raised.offers.keys() | undone.keys()) - known:
            against = against or _OTHERS_LEAVE
        others = [change for change in changes if not change.gives_back]
        if against:
            results += [Result(change, Outcome.THROTTLED, against) for change in others]
        else:
            results += self._spread(others, shares, until)
        self._tell(plan, results)
        return restored, results

    def again(self, plan: Plan, changes: Sequence[Change]) -> list[Result]:
        """Write once more what Slurm has taken of this plan, and backfill undone. SlurmError, JournalError: as of
        `carry_out`.
        """
        results = self._batch(changes, {}, only_one=False)
        self._tell(plan, results)
        return results

    def _spread(self, changes: Sequence[Change], shares: Mapping[int, OverSubscribe], until: float) -> list[Result]:
        """Write, and under Slurm's RPC limiter go on as the bucket refills, up to a moment."""
        slurmctld, clock = self.restoring.slurmctld, self.runtime.clock
        started = 0.0 if slurmctld.facts is None else slurmctld.facts.started
        if not changes:
            return []
        # Until this slurmctld has taken a write and changed nothing beside it, one change at a time.
        trial, left = self._tried != started, len(changes)
        results = self._batch(changes, shares, only_one=trial)
        while throttled := [result.change for result in results if result.outcome is Outcome.THROTTLED]:
            sent = {result.outcome for result in results} & SENT
            if trial and sent - TAKEN:
                break
            if trial and len(throttled) < left:
                trial, left = not sent, len(throttled)
                self._tried = self._tried if trial else started
            else:
                now = clock.monotonic()
                wait = slurmctld.budget.wait(int(slurmctld.budget.burst), now)
                if wait <= 0 or now + wait > until or not self._pause(wait):
                    break
            try:
                done = {id(result.change): result for result in self._batch(throttled, shares, only_one=trial)}
            except (SlurmError, JournalError) as error:
                # What went out before is reported; if the trouble lasts, the next cycle's read says so.
                self.runtime.log.warning(
                    "writes.stopped", sentence="The rest waits for the next cycle.", reason=str(error)
                )
                break
            results = [done.get(id(result.change), result) for result in results]
        return results

    def _batch(self, changes: Sequence[Change], shares: Mapping[int, OverSubscribe], *, only_one: bool) -> list[Result]:
        """Write one batch, if slurm.conf as it is now does not forbid it."""
        back = self.restoring
        if against := back.slurmctld.against():
            return [Result(change, Outcome.THROTTLED, against.detail) for change in changes]
        budget = back.slurmctld.budget
        return Applier(back.reader, self.writer(), back.journal, budget, self.runtime.clock).apply(
            changes, shares, only_one=only_one
        )

    def _pause(self, seconds: float) -> bool:
        """Sleep in small steps; False as soon as the daemon is to stop."""
        clock = self.runtime.clock
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0 and not self.stopping.is_set():
            clock.sleep(min(left, 0.5))
            self.liveness.progress()
        return not self.stopping.is_set()

    def _tell(self, plan: Plan, results: Sequence[Result]) -> None:
        """Count and log the outcomes, a line for each job that Slurm shows changed; where most writes failed, raise the
        alarm.
        """
        for (of, outcome), count in Counter((change.field, outcome) for change, outcome, _ in results).items():
            self.runtime.metrics.changes.labels(of.value, outcome.value).inc(count)
        for change, outcome, message in results:
            taken = outcome in TAKEN or outcome is Outcome.ALTERED
            event, facts = _told(plan, change) if taken else ("job.not_changed", {})
            (self.runtime.log.info if taken else self.runtime.log.debug)(
                event,
                **facts,
                job=change.job_id,
                field=change.field.value,
                before=change.before,
                after=change.after,
                outcome=outcome.value,
                message=message,
            )
        sent = [item for item in results if item.outcome in SENT]
        bad = [item for item in sent if item.outcome not in TAKEN]
        if bad:
            self.restoring.slurmctld.forget_facts()
        if sent and 2 * len(bad) >= len(sent):
            self.state.alarm(f"{len(bad)} of {len(sent)} writes failed ({bad[0].message})")
        else:
            self.state.alarms = 0


def _told(plan: Plan, change: Change) -> tuple[str, dict[str, Any]]:
    """The event of a change that Slurm took, and whom it concerns."""
    at, job = plan.queue[change.position], f"Job {change.job_id}"
    if change.field is not Field.SITE_FACTOR:
        return "job.isolated", {"sentence": f"{job} gets nodes of its own, as the placement wants it."}
    if int(change.after) == 0:
        stop = STOP_MEANING.get(Stop(plan.raised.stop[at]), "it has its place without that")
        return "job.given_back", {"sentence": f"{job} has Slurm's own place again: {stop}."}
    place, was = int(plan.rank[at]), int(plan.base_rank[at])
    passes = int(((plan.base_rank < was) & (plan.rank > place)).sum())
    lenders = len(plan.raised.offers[change.job_id].parts)
    sentence = (
        f"{job} goes ahead of {passes} others, from place {was + 1} to {place + 1}: policy {plan.policy} wants it"
    )
    return "job.raised", {"sentence": f"{sentence}; {lenders} of them lend.", "passes": passes, "lenders": lenders}


def _why_back(plan: Plan, undone: Collection[int]) -> Callable[[int], str]:
    """Why each job that leaves a plan is given back."""
    rows, vetoes = plan.snapshot.jobs.row_of, plan.scope.vetoed()

    def why(job: int) -> str:
        found = (veto for veto, of in vetoes.items() if rows.get(job) in of)
        stands = "squeue showed it raised although it was given back" if job in undone else Veto.UNREADABLE.meaning
        veto = next(found, None)
        return stands if veto is None else veto.meaning

    return why


def _partition_shares(snapshot: Snapshot, changes: Sequence[Change]) -> dict[int, OverSubscribe]:
    """OverSubscribe of the partitions of the jobs that are to be isolated; UNKNOWN where several differ."""
    shares: dict[int, OverSubscribe] = {}
    for change in changes:
        if change.field is not Field.OVERSUBSCRIBE or (row := snapshot.jobs.row_of.get(change.job_id)) is None:
            continue
        parts = snapshot.partitions_of(snapshot.jobs.partition.value(row))
        found = {part.oversubscribe for part in parts if part is not None}
        shares[change.job_id] = found.pop() if len(found) == 1 else OverSubscribe.UNKNOWN
    return shares

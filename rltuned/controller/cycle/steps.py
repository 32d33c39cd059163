"""The steps of a cycle, in their order: read, reconcile, give back, plan, apply, forecast, tell.

Each takes what the steps before it have put into the `Cycle`, and adds its own. A step that returns a report ends the
cycle with it; `Tell` does so in any case.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rltuned.controller.cycle.choice import Choice
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.report import CycleReport, sentence_of
from rltuned.controller.give_back import left_alone
from rltuned.controller.health.liveness import OUTDATED
from rltuned.controller.health.rpc_budget import SNAPSHOT_RPCS
from rltuned.controller.health.runtime import WRITING, Cause, Refusal
from rltuned.controller.learnt.forecast_worker import forecasts
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.apply import Result
from rltuned.controller.write.claims import Entry, settling_seconds
from rltuned.controller.write.reconcile import Reconciler, orphans, undone, view
from rltuned.core.changes import Applied, Outcome
from rltuned.core.config import Stage
from rltuned.core.errors import JournalError
from rltuned.core.tables import Snapshot
from rltuned.decide.decision import StartRecord
from rltuned.decide.decision import record as record_of
from rltuned.decide.entry import Seen
from rltuned.decide.loans import Book
from rltuned.decide.plan import Plan
from rltuned.decide.rank import Policy


class Cycle:
    """What is known in one cycle. What has no value here, the step that is named puts into it."""

    def __init__(self, began: float) -> None:
        self.began = began  # monotonic seconds
        self.phases: dict[str, float] = {}  # seconds that each has taken
        # read
        self.snapshot: Snapshot
        self.read_at = 0.0  # by the steady clock
        self.silent = False  # the dead-man timer may have given jobs back since the reading before
        # reconcile
        self.refusal: Refusal | None = None
        """Why nothing is written in this cycle, although its stage writes."""
        self.stage = Stage.SHADOW  # in force in this cycle
        # give back, apply
        self.restored: tuple[int, ...] = ()
        self.acted = False  # see `CycleReport`
        # plan
        self.policy: Policy
        self.choice: Choice
        self.book: Book  # of loans, before the plan
        self.made: Plan
        # apply, forecast
        self.results: list[Result] = []
        self.starts: StartRecord | None = None

    @property
    def writes(self) -> bool:
        """Whether its stage writes to Slurm."""
        return self.stage in WRITING


@dataclass
class Step(ABC):
    """One of them."""

    parts: Parts

    @abstractmethod
    def run(self, cycle: Cycle) -> CycleReport | None:
        """Do it. The cycle ends with the report, if there is one."""

    @contextmanager
    def phase(self, cycle: Cycle, name: str) -> Iterator[None]:
        """Measure how long this takes; its end is a sign that the loop moves."""
        clock = self.parts.runtime.clock
        began = clock.monotonic()
        try:
            yield
        finally:
            cycle.phases[name] = seconds = clock.monotonic() - began
            self.parts.runtime.metrics.seconds.labels(name).observe(seconds)
            self.parts.liveness.progress()


class Read(Step):
    """Seven commands, unless slurmctld runs elsewhere and nothing of ours is out."""

    def run(self, cycle: Cycle) -> CycleReport | None:
        """SlurmError: the cluster could not be read."""
        parts = self.parts
        clock, metrics, slurmctld = parts.runtime.clock, parts.runtime.metrics, parts.slurmctld
        with self.phase(cycle, "read"):
            if slurmctld.refresh_facts():
                parts.restoring.retries.soon()
            if slurmctld.elsewhere() and (standby := self._stands_by()):
                return standby
            cycle.read_at, cycle.silent = clock.steady(), parts.liveness.begin_reading()
            snapshot = parts.watched.snapshot(clock.time())
            slurmctld.budget.spend(SNAPSHOT_RPCS, clock.monotonic())
            parts.reporting.unread(snapshot.unread)
        slurmctld.hint(snapshot.health)
        parts.restoring.refuse_hidden(snapshot)
        if slurmctld.facts is not None:
            snapshot = replace(snapshot, scheduler=slurmctld.facts.scheduler)
        for tier, waited in parts.starts.since_last(snapshot):
            metrics.waiting.labels(tier).observe(waited)
        metrics.pending.set(len(snapshot.jobs.pending))
        metrics.unknown_reasons.set(snapshot.unknown_reasons().total())
        cycle.snapshot = snapshot
        return None

    def _stands_by(self) -> CycleReport | None:
        """Where slurmctld runs on another host: the report, if nothing of ours is out."""
        parts = self.parts
        why = parts.slurmctld.primacy.why(0, parts.runtime.clock.monotonic())
        parts.state.put(Cause.STANDBY, why)
        parts.runtime.metrics.orphans.set(0)
        if any(entry.carries or not entry.applied.foreign for entry in parts.journal.entries.values()):
            return None
        parts.starts.manages_none()
        sentence = f"{why}; nothing of this daemon's is out"
        return CycleReport(CycleOutcome.STANDBY, parts.state.stage, sentence, acted=True)


@dataclass
class Reconcile(Step):
    """The journal against the queue; then it is clear which stage is in force."""

    _reconciler: Reconciler = field(default_factory=Reconciler)
    _orphans: tuple[int, ...] = ()

    def run(self, cycle: Cycle) -> CycleReport | None:
        """JournalError, of a dry run: the journal cannot be read."""
        parts = self.parts
        runtime, journal, snapshot = parts.runtime, parts.journal, cycle.snapshot
        primacy = parts.slurmctld.primacy
        with self.phase(cycle, "reconcile"):
            calculated = bool(snapshot.jobs.site_known.any())
            parts.restoring.calculated = calculated
            journal.look_again()
            seen = view(snapshot, journal)
            foreign: tuple[int, ...] = ()
            try:
                foreign = self._reconciler.reconcile(
                    journal,
                    seen,
                    cycle.read_at,
                    calculated=calculated,
                    silent=cycle.silent or parts.liveness.outdated,
                    settling=settling_seconds(parts.slurmctld.facts),
                )
                if primacy.stands_by:
                    # What was given back and shows another value has it of the other host's daemon.
                    theirs = {job for job in foreign if not journal.entries[job].carries}
                    journal.update((), theirs)
                    foreign = tuple(job for job in foreign if job not in theirs)
            except JournalError as error:
                cycle.refusal = Refusal(Cause.JOURNAL, str(error))
            parts.undoing.look(undone(journal, seen))
            if cycle.refusal is None:
                self._leave_alone(cycle)
            parts.lending.advance(snapshot, cycle.read_at, parts.told(), runtime.config, journal)
            for job in foreign:
                sentence = "Somebody else changed it; it is left alone from now on."
                runtime.log.info("job.foreign", job=job, sentence=sentence)
            self._look_for_orphans(snapshot)
            known = calculated or not len(snapshot.jobs.pending)
            strays = len(self._orphans) if known else None
            parts.state.put(Cause.STANDBY, primacy.why(strays, runtime.clock.monotonic()))
        cycle.stage = parts.state.stage
        return None

    def _look_for_orphans(self, snapshot: Snapshot) -> None:
        parts = self.parts
        strays = () if parts.slurmctld.primacy.stands_by else orphans(snapshot, parts.journal)
        if strays != self._orphans and strays:
            parts.runtime.log.warning(
                "jobs.orphaned",
                sentence=f"{len(strays)} pending jobs have a SiteFactor that is not in the journal.",
                jobs=strays[:20],
                remedy="if nobody else, and no other rltuned, uses SiteFactor: rltuned restore --orphans",
            )
        self._orphans = strays
        parts.runtime.metrics.orphans.set(len(strays))

    def _leave_alone(self, cycle: Cycle) -> None:
        """Mark the jobs that an admin wants left alone (``rltuned restore JOBID``)."""
        parts = self.parts
        directory, journal = parts.runtime.config.state.directory, parts.journal
        snapshot, marked, answered = cycle.snapshot, [], []
        for job in left_alone.asked(directory):
            entry, row = journal.entries.get(job), snapshot.jobs.row_of.get(job)
            submitted = None if row is None else int(snapshot.jobs.submit_time[row])
            same = entry is None or submitted is None or entry.submit_time == submitted
            # Else the request stays: the entry may be of another job with this id, and the mark would go with it.
            sure = same and not snapshot.is_unread(job)
            if sure:
                answered.append(job)
            if entry is None and sure and submitted is not None:
                entry = Entry(Applied(job, submitted))
            if entry is not None and not entry.applied.foreign:
                marked.append(replace(entry, applied=replace(entry.applied, foreign=True)))
        try:
            journal.update(marked)
        except JournalError as error:
            cycle.refusal = Refusal(Cause.JOURNAL, str(error))
            return
        if journal.on_disk:
            left_alone.answered(directory, answered)


class GiveBack(Step):
    """What the stage in force, which does not write, does not want on the queue."""

    def run(self, cycle: Cycle) -> CycleReport | None:
        """In stage observe the cycle ends here. SlurmError: the jobs could not be read."""
        parts = self.parts
        snapshot = cycle.snapshot
        out = [] if cycle.writes else parts.restoring.out(snapshot)
        left = set(out)
        if cycle.refusal is None:
            why = str(parts.state.refusal or f"stage {cycle.stage} writes nothing")
            cycle.restored, left = parts.restoring.give_back(out, lambda _: why)
            parts.undoing.wrote((), cycle.restored)
        cycle.acted = cycle.refusal is None and not left
        if cycle.stage is not Stage.OBSERVE:
            return None
        parts.reporting.users(snapshot, None)
        parts.starts.manages_none()
        return CycleReport(
            CycleOutcome.DONE,
            cycle.stage,
            f"{len(snapshot.jobs.pending)} pending jobs, {len(snapshot.nodes)} nodes",
            restored=len(cycle.restored),
            acted=cycle.acted,
            seen=Seen.of(snapshot),
        )


class MakePlan(Step):
    """`plan()`, by the policy in force."""

    def run(self, cycle: Cycle) -> CycleReport | None:
        """Any error of `plan` is a defect."""
        parts = self.parts
        lending = parts.lending
        if parts.slurmctld.overloaded(cycle.snapshot) is None:
            parts.slurmctld.budget.spend(parts.look(cycle.snapshot.jobs), parts.runtime.clock.monotonic())
        with self.phase(cycle, "plan"):
            cycle.policy, cycle.choice = parts.choice.choose(cycle.snapshot)
            applied = replace(parts.journal.applied(), largest=lending.largest, undone=parts.undoing.found)
            config, cycle.book = lending.followed(cycle.choice, parts.runtime.config), lending.book
            cycle.made = parts.planner(cycle.snapshot, cycle.policy, config, applied, cycle.book)
        parts.starts.manages(cycle.made)
        return None


class Apply(Step):
    """Write, where that is allowed, and note who lends."""

    def run(self, cycle: Cycle) -> CycleReport | None:
        """SlurmError: the jobs could not be read."""
        parts = self.parts
        liveness = parts.liveness
        cycle.refusal = cycle.refusal or parts.slurmctld.overloaded(cycle.snapshot)
        # After a long time without a plan the dead-man timer may be at work this very moment. This cycle only ends that
        # time, by its heartbeat; the next one writes, on what it finds then.
        resumes = cycle.writes and cycle.refusal is None and liveness.given_up()
        liveness.outdated |= resumes
        if cycle.refusal is None and liveness.outdated:
            cycle.refusal = Refusal(Cause.OUTDATED, OUTDATED)
        if cycle.writes and cycle.refusal is None:
            with self.phase(cycle, "apply"):
                self._carry_out(cycle)
        parts.lending.take_in(cycle.made, parts.journal, cycle.book, cycle.results)
        parts.undoing.wrote(cycle.results, cycle.restored)
        if cycle.writes:
            throttled = cycle.results and all(item.outcome is Outcome.THROTTLED for item in cycle.results)
            stopped = throttled and not cycle.restored
            cycle.acted = resumes or (cycle.refusal is None and not parts.state.alarms and not stopped)
        return None

    def _carry_out(self, cycle: Cycle) -> None:
        parts = self.parts
        against = parts.lending.promise(cycle.made)
        try:
            cycle.restored, cycle.results = parts.execution.carry_out(
                cycle.snapshot, cycle.made, cycle.began, cycle.book.offers, against
            )
        except JournalError as error:
            cycle.refusal = Refusal(Cause.JOURNAL, str(error))
        parts.undoing.watch(cycle.made, cycle.results, settling_seconds(parts.slurmctld.facts))


class Forecast(Step):
    """When the pending jobs start, by the worker."""

    def run(self, cycle: Cycle) -> CycleReport | None:
        """Raises nothing."""
        parts, facts = self.parts, self.parts.slurmctld.facts
        with self.phase(cycle, "forecast"):
            if parts.start_times is not None and forecasts(parts.runtime.config.forecast):
                settings = () if facts is None else facts.not_simulated
                cycle.starts = parts.start_times.look(cycle.made, cycle.policy, settings, moves=cycle.writes)
            elif parts.worker is not None:
                parts.worker.rest()
        return None


class Tell(Step):
    """The decision record, the users' records, and the report of the cycle."""

    def run(self, cycle: Cycle) -> CycleReport:
        """Raises nothing."""
        parts = self.parts
        worker, refusal, pending = parts.worker, cycle.refusal, len(cycle.snapshot.jobs.pending)
        with self.phase(cycle, "report"):
            record = record_of(
                cycle.made,
                stage=cycle.stage,
                held_back=str(parts.state.held_back or ""),
                policy_why=cycle.choice.why or "",
                forecast_trouble="" if worker is None else worker.trouble,
                results=cycle.results,
                starts=cycle.starts,
            )
            parts.reporting.decided(record)
            parts.reporting.users(cycle.snapshot, cycle.made, cycle.starts)
        outcome = CycleOutcome.DONE
        if refusal is not None:
            outcome = CycleOutcome.FAILED if refusal.cause is Cause.JOURNAL else CycleOutcome.SHED
        return CycleReport(
            outcome=outcome,
            stage=cycle.stage,
            sentence=sentence_of(pending, record, parts.state.refusal, cycle.results, refusal, len(cycle.restored)),
            results=tuple(cycle.results),
            restored=len(cycle.restored),
            undone=parts.undoing.newly,
            acted=cycle.acted,
            seen=Seen.of(cycle.snapshot),
            record=record,
        )

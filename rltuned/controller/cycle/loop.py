"""One cycle: read → reconcile → plan → apply → report. Whatever happens in it, the next one comes.

`Daemon.tick` is what the scheduler calls; `Daemon.cycle` is what happens inside; both run on the clock that they are
given. Which stage is in force is decided anew in each cycle (`runtime`).
"""

import gc
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from rltuned.controller.cycle.auto_policy import Auto
from rltuned.controller.cycle.lending import Lending
from rltuned.controller.cycle.policy_choice import PolicyChoice, load_policy
from rltuned.controller.cycle.runtime import Permissions, Runtime
from rltuned.controller.give_back import left_alone, pause
from rltuned.controller.give_back.by_daemon import MOST_NAMED, DaemonRestore
from rltuned.controller.health.clock import Moment
from rltuned.controller.health.heartbeat import Condition
from rltuned.controller.health.liveness import OUTDATED, Liveness, WatchedReader, WatchedWriter
from rltuned.controller.health.primacy import Primacy, own_names
from rltuned.controller.health.rpc_budget import LEAST_BURST, SNAPSHOT_RPCS, STATUS_RPCS
from rltuned.controller.health.slurmctld import Slurmctld
from rltuned.controller.learnt.forecast_worker import ForecastWorker, forecasts
from rltuned.controller.learnt.start_times import StartTimes
from rltuned.controller.tell.cycle_report import CycleOutcome, CycleReport, Notifier, Reporting, sentence_of
from rltuned.controller.tell.metrics import Starts
from rltuned.controller.write.apply import Result
from rltuned.controller.write.claims import Entry, settling_seconds
from rltuned.controller.write.execution import Execution
from rltuned.controller.write.journal import Journal
from rltuned.controller.write.reconcile import Reconciler, orphans, undone, view
from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import TAKEN, Applied, Change, Field, Outcome
from rltuned.core.config import Config, Stage
from rltuned.core.errors import (
    JournalError,
    RltunedError,
    SlurmDeniedError,
    SlurmError,
    SlurmParseError,
    SlurmUnavailableError,
)
from rltuned.core.tables import Snapshot
from rltuned.decide.decision import record as record_of
from rltuned.decide.entry import Seen
from rltuned.decide.loans import NOTHING_TOLD, Book, Told
from rltuned.decide.plan import Plan, plan
from rltuned.decide.rank import Policy
from rltuned.decide.user_record import UserRecords
from rltuned.slurm.port import SlurmReader, SlurmWriter

_KINDS: Final[Mapping[type[SlurmError], str]] = {
    SlurmUnavailableError: "unavailable",
    SlurmParseError: "parse",
    SlurmDeniedError: "denied",
}
Planner = Callable[[Snapshot, Policy, Config, AppliedChanges, Book], Plan]


class Daemon:
    """The loop. One per process; `tick` and `reload` may be called from different threads."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        policy: Policy | Auto,
        reader: SlurmReader,
        writer_factory: Callable[[], SlurmWriter] | None,
        journal: Journal,
        rng: random.Random,
        notifier: Notifier | None = None,
        planner: Planner | None = None,
        told: Callable[[], Told] = lambda: NOTHING_TOLD,
        owns: Callable[[], bool] = lambda: True,
        publish: Callable[[UserRecords], None] | None = None,
        start_times: StartTimes | None = None,
        worker: ForecastWorker | None = None,
        primacy: Primacy | None = None,
    ) -> None:
        """Reads nothing yet.

        `writer_factory`: None is a dry run: there is nothing that could write. `rng`: jitter of the circuit breaker.
        `told`: what accounting says of jobs that have ended. `owns`: whether the lock of the state directory is still
        this process's. `publish`: shows users the records of their own jobs; returns at once. It, `start_times` and the
        `worker` that these ask are None where nobody asked for that.
        """
        self.runtime = runtime
        self.planner, self.reader, self.journal = planner or _plain, reader, journal
        self._told = told
        self.primacy = primacy or Primacy(own_names())
        self._writer_factory = writer_factory
        self._writer: SlurmWriter | None = None
        self.owns, self.start_times, self._worker = owns, start_times, worker
        self.liveness = Liveness(self.runtime, self._condition)
        self._reader = WatchedReader(reader, self.liveness)
        self.slurmctld = Slurmctld(self.runtime, journal, self._reader, reader, self.primacy, rng)
        self.permissions = Permissions(
            self.runtime,
            dry_run=writer_factory is None,
            unseen=lambda: self.liveness.unseen_for(0.5 * self.liveness.stale_after),
            missing=lambda: [finding.cause for finding in self.slurmctld.lacking],
        )
        self.restoring = DaemonRestore(
            runtime=self.runtime,
            journal=journal,
            reader=self._reader,
            writer=None if writer_factory is None else self.writer,
            slurmctld=self.slurmctld,
            progress=self.liveness.progress,
        )
        self.execution = Execution(self.runtime, self.restoring, self.writer, self.permissions)
        self.reporting = Reporting(
            self.runtime, notifier or Notifier(), journal, self.permissions, self.slurmctld, publish
        )
        self.choice = PolicyChoice(self.runtime, policy)
        self._reconciler, self._starts = Reconciler(), Starts()
        self._lending = Lending(runtime, journal, keep=writer_factory is not None)
        self._orphans: tuple[int, ...] = ()
        self._undone: Mapping[int, int] = {}
        """As `reconcile.undone`, at the last reading."""
        self._newly_undone = 0
        self._counted: set[int] = set()
        """Jobs whose last write was undone, and counted as that."""
        self._sent: tuple[Plan, Sequence[Change]] | None = None
        """The last cycle's plan and the site factors of it that were written, and …"""
        self._undoable_until = 0.0
        """… until when backfill may undo them (monotonic)."""
        self._turn = threading.Lock()
        self._began = runtime.clock.monotonic()
        self._phases: dict[str, float] = {}
        runtime.metrics.interval.set(runtime.config.cycle.interval)
        runtime.metrics.journal_damage.set(journal.damaged_lines)
        if journal.damage:
            runtime.log.error("journal.damaged", detail=journal.damage)
        self.liveness.beat()

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.runtime.config

    @property
    def stage(self) -> Stage:
        """The stage in force."""
        return self.permissions.stage

    def writer(self) -> SlurmWriter:
        """Return the writer, made when it is first needed; RltunedError in a dry run."""
        if self._writer_factory is None:
            raise RltunedError("a dry run has no writer")
        if self._writer is None:
            self._writer = WatchedWriter(self._writer_factory(), self.liveness)
        return self._writer

    def _condition(self, inactive: float) -> Condition | None:
        """How the daemon is, for the heartbeat."""
        if self.permissions.dry_run or self.permissions.lock_lost:
            return None
        unreturned = tuple(self.restoring.retries.waiting[:MOST_NAMED])
        return Condition(writing=self.permissions.writes, inactive=inactive, unreturned=unreturned)

    # --- asked from outside, in any thread

    def alive(self) -> tuple[bool, str]:
        """Whether the loop moves, as the watchdog sees it."""
        moves = self.liveness.healthy()
        return moves, "the loop moves" if moves else "the loop has not moved for long"

    def ready(self) -> tuple[bool, str]:
        """Whether the daemon does what its configuration and its people want. A pause, a dry run and a standby are
        wanted: who waits for it to be ready need not wait for their end.
        """
        permissions, inactive = self.permissions, self.liveness.inactive
        if not self.liveness.healthy():
            return self.alive()
        if not self.liveness.acted:
            return False, "no cycle has ended well yet"
        if inactive > self.config.write.give_back_after:
            return False, f"the last cycle that did all it should ended {inactive:.0f} s ago; the log has the cause"
        why = f": {permissions.held_back}" if permissions.held_back else ""
        return not permissions.hindered, f"stage {permissions.stage}{why}"

    # --- the scheduler's entry

    def tick(self) -> CycleReport | None:
        """Run one cycle with everything around it. Never raises; None when the cycle before still runs."""
        if not self._turn.acquire(blocking=False):
            self._overrun("the cycle before still runs")
            return None
        clock, interval = self.runtime.clock, self.config.cycle.interval
        self._began, self._phases = clock.monotonic(), {}
        try:
            self.liveness.in_cycle = True
            self.liveness.progress()
            self._look_at_lock()
            self._look_at_pause()
            self.choice.follow_store()
            with _uncollected():
                report = self._guarded_cycle()
            self._ended(report)
            self.reporting.ended(report, self._phases, clock.monotonic() - self._began)
        finally:
            self.liveness.in_cycle = False
            self._turn.release()
        if clock.monotonic() - self._began > interval:
            self._overrun(f"the cycle took longer than its {interval:g} s")
        self.liveness.beat()
        return report

    def look_again(self) -> None:
        """Between two cycles: write again what backfill has undone of the last one's writes.

        Trouble with Slurm or the disk is left to the next cycle.
        """
        clock, budget = self.runtime.clock, self.slurmctld.budget
        if self._sent is None or self.execution.stopping.is_set() or not self._turn.acquire(blocking=False):
            return
        made, sent = self._sent
        try:
            self._look_at_lock()
            if clock.monotonic() > self._undoable_until or not self.permissions.writes or self.liveness.given_up():
                self._sent = None
            elif budget.allowance(1, clock.monotonic(), keep=LEAST_BURST):
                jobs = {change.job_id for change in sent}
                seen = self._reader.status(sorted(jobs))
                budget.spend(STATUS_RPCS, clock.monotonic())
                # Of all others nothing new is known.
                others = {job: older for job, older in self._undone.items() if job not in jobs}
                self._look_at_undone({**others, **undone(self.journal, seen)})
                again = [change for change in sent if change.job_id in self._undone and self._claims(change)]
                if again:
                    self._counts(self.execution.again(made, again))
        except RltunedError:
            self._sent = None  # the next cycle finds the same, and says so
        except Exception:
            self._sent = None
            self.runtime.metrics.errors.labels("other").inc()
            self.runtime.log.exception("look.defect", sentence="This is a defect; please report it.")
        finally:
            self._turn.release()

    def _claims(self, change: Change) -> bool:
        """Whether this is the last that was written to the job: it may have been given back since."""
        entry = self.journal.entries.get(change.job_id)
        return entry is not None and entry.applied.site_factor == change.after

    def _counts(self, results: Sequence[Result]) -> None:
        """Note whose last write was counted as undone."""
        of = {item.change.job_id: item.outcome for item in results if item.change.field is Field.SITE_FACTOR}
        self._counted |= {job for job, outcome in of.items() if outcome is Outcome.UNDONE}
        self._counted -= {job for job, outcome in of.items() if outcome is Outcome.APPLIED}

    def _overrun(self, why: str) -> None:
        self.runtime.metrics.overruns.inc()
        sentence = f"{why}; the next one starts when it is due."
        self.runtime.log.warning("cycle.overrun", sentence=sentence)

    def _look_at_lock(self) -> None:
        if self.permissions.lock_lost or self.permissions.dry_run or self.owns():
            return
        self.permissions.lock_lost = True
        self.journal.let_go()
        self._lending.let_go()
        self.runtime.log.error(
            "lock.lost",
            sentence="The file of the lock was removed. What is out is given back, and nothing is written any more.",
            remedy="find out who removes files of the state directory, then `systemctl restart rltuned`",
        )

    def _look_at_pause(self) -> None:
        """As the file says now: while it is there, the stage in force is at most shadow."""
        permissions, now = self.permissions, Moment.of(self.runtime.clock)
        keeps = not (permissions.dry_run or permissions.lock_lost)
        found = pause.asked(self.config.state.directory, now, tidy=keeps)
        permissions.paused = "" if found is None else found.sentence(now)
        self.runtime.metrics.paused.set(found is not None)

    def _guarded_cycle(self) -> CycleReport:
        slurmctld, metrics = self.slurmctld, self.runtime.metrics
        try:
            report = self.cycle()
        except SlurmError as error:
            metrics.errors.labels(_KINDS.get(type(error), "other")).inc()
            slurmctld.unavailable = isinstance(error, SlurmUnavailableError) and not slurmctld.answers()
            slurmctld.forget_facts()
            self._failed()
            why = f"Slurm could not be used: {error}"
        except RltunedError as error:
            why = str(error)
        except Exception as error:
            metrics.errors.labels("other").inc()
            self.runtime.log.exception("cycle.defect", sentence="This is a defect; please report it.")
            self._failed()
            why = f"{type(error).__name__}: {error}"
        else:
            if report.outcome is not CycleOutcome.WAITING:
                slurmctld.unavailable = False
                slurmctld.breaker.success()
            return report
        return CycleReport(CycleOutcome.FAILED, self.stage, why)

    def _failed(self) -> None:
        self._sent = None
        if self.slurmctld.breaker.failure(self.runtime.clock.monotonic()):
            self.permissions.alarm("the circuit breaker opened")

    # --- the cycle

    def cycle(self) -> CycleReport:
        """Run one cycle. SlurmError: the cluster could not be read; nothing was written."""
        clock, slurmctld = self.runtime.clock, self.slurmctld
        if not slurmctld.may_be_asked():
            wait = max(0.0, slurmctld.breaker.until - clock.monotonic())
            return CycleReport(CycleOutcome.WAITING, self.stage, f"Slurm is left alone for another {wait:.0f} s")
        slurmctld.budget.start_cycle()
        self._sent = None
        with self._phase("read"):
            if slurmctld.refresh_facts():
                self.restoring.retries.soon()
            if self._nothing_to_do():
                self._starts.manages_none()
                sentence = f"{self.permissions.standby}; nothing of this daemon's is out"
                return CycleReport(CycleOutcome.STANDBY, self.stage, sentence, acted=True)
            read_at, outdated = clock.steady(), self.liveness.begin_reading()
            snapshot = self._reader.snapshot(clock.time())
            slurmctld.budget.spend(SNAPSHOT_RPCS, clock.monotonic())
            self.reporting.unread(snapshot.unread)
        slurmctld.hint(snapshot.health)
        slurmctld.refuse_hidden(snapshot)
        if slurmctld.facts is not None:
            snapshot = replace(snapshot, scheduler=slurmctld.facts.scheduler)
        for tier, waited in self._starts.since_last(snapshot):
            self.runtime.metrics.waiting.labels(tier).observe(waited)
        self.runtime.metrics.pending.set(len(snapshot.jobs.pending))
        self.runtime.metrics.unknown_reasons.set(snapshot.unknown_reasons().total())
        with self._phase("reconcile"):
            blocked = self._reconcile(snapshot, read_at, silent=outdated or self.liveness.outdated)
        stage = self.stage
        out = [] if self.permissions.writes else self.restoring.out(snapshot)
        why = self.permissions.against or f"stage {stage} writes nothing"
        restored, left = ((), set(out)) if blocked else self.restoring.give_back(out, lambda _: why)
        self._counted.difference_update(restored)
        acted = not blocked and not left
        if stage is Stage.OBSERVE:
            self.reporting.users(snapshot, None)
            self._starts.manages_none()
            pending, seen = len(snapshot.jobs.pending), Seen.of(snapshot)
            sentence = f"{pending} pending jobs, {len(snapshot.nodes)} nodes"
            return CycleReport(
                CycleOutcome.DONE, stage, sentence, pending, restored=len(restored), acted=acted, seen=seen
            )
        return self._steer(snapshot, blocked, restored, acted=acted)

    def _nothing_to_do(self) -> bool:
        """Whether slurmctld runs on another host and nothing of ours is out."""
        if not self.slurmctld.elsewhere():
            return False
        self.permissions.standby = self.primacy.why(0, self.runtime.clock.monotonic())
        self.runtime.metrics.orphans.set(0)
        return all(entry.applied.foreign and not entry.carries for entry in self.journal.entries.values())

    def _steer(self, snapshot: Snapshot, blocked: str, restored: tuple[int, ...], *, acted: bool) -> CycleReport:
        """Plan, write, forecast and record."""
        stage, writes = self.stage, self.permissions.writes
        with self._phase("plan"):
            policy, choice = self.choice.choose(snapshot)
            applied = replace(self.journal.applied(), largest=self._lending.largest, undone=self._undone)
            book = self._lending.book
            made = self.planner(snapshot, policy, choice.applied(self.config), applied, book)
        self._starts.manages(made)
        results: list[Result] = []
        # After a long time without a plan the dead-man timer may be at work this very moment. This cycle only ends that
        # time, by its heartbeat; the next one writes, on what it finds then.
        shed = self.slurmctld.overloaded(snapshot)
        resumes = writes and not blocked and not shed and self.liveness.given_up()
        self.liveness.outdated |= resumes
        shed = shed or (OUTDATED if self.liveness.outdated else "")
        if writes and not blocked and not shed:
            with self._phase("apply"):
                against = self._lending.promise(made)
                try:
                    restored, results = self.execution.carry_out(snapshot, made, self._began, book.offers, against)
                except JournalError as error:
                    blocked = str(error)
            taken = (change for change, outcome, _ in results if outcome in TAKEN)
            sent = [change for change in taken if change.field is Field.SITE_FACTOR]
            self._sent = (made, sent) if sent else None
            self._undoable_until = self.runtime.clock.monotonic() + settling_seconds(self.slurmctld.facts)
        self._lending.take_in(made, self.journal, book, results)
        self._counts(results)
        self._counted -= set(restored)
        if writes:
            stopped = not restored and bool(results) and all(item.outcome is Outcome.THROTTLED for item in results)
            acted = resumes or (not blocked and not shed and not self.permissions.alarms and not stopped)
        with self._phase("forecast"):
            starts, facts = None, self.slurmctld.facts
            if self.start_times is not None and forecasts(self.config.forecast):
                settings = () if facts is None else facts.not_simulated
                starts = self.start_times.look(made, policy, settings, moves=writes)
            elif self._worker is not None:
                self._worker.rest()
        with self._phase("report"):
            record = record_of(
                made,
                stage=stage,
                held_back=self.permissions.held_back,
                policy_why=choice.why,
                forecast_trouble="" if self._worker is None else self._worker.trouble,
                results=results,
                starts=starts,
            )
            self.reporting.decided(record)
            self.reporting.users(snapshot, made, starts)
        outcome, pending = CycleOutcome.SHED if shed else CycleOutcome.DONE, len(snapshot.jobs.pending)
        return CycleReport(
            outcome=CycleOutcome.FAILED if blocked else outcome,
            stage=stage,
            sentence=sentence_of(pending, record, self.permissions.against, results, blocked or shed, len(restored)),
            pending=pending,
            managed=len(record.jobs),
            raised=len(record.raises),
            planned=len(record.changes),
            results=tuple(results),
            restored=len(restored),
            undone=self._newly_undone,
            acted=acted,
            seen=Seen.of(snapshot),
            record=record,
        )

    def _reconcile(self, snapshot: Snapshot, read_at: float, *, silent: bool) -> str:
        """Compare the journal with the queue. Why nothing may be written in this cycle ("" when it may)."""
        calculated = bool(snapshot.jobs.site_known.any())
        self.restoring.calculated = calculated
        self.journal.look_again()
        foreign: tuple[int, ...] = ()
        blocked = ""
        seen = view(snapshot, self.journal)
        try:
            settling = settling_seconds(self.slurmctld.facts)
            foreign = self._reconciler.reconcile(
                self.journal,
                seen,
                read_at,
                calculated=calculated,
                silent=silent,
                settling=settling,
            )
            if self.primacy.stands_by:
                # What was given back and shows another value has it of the other host's daemon.
                theirs = {job for job in foreign if not self.journal.entries[job].carries}
                self.journal.update((), theirs)
                foreign = tuple(job for job in foreign if job not in theirs)
        except JournalError as error:
            blocked = str(error)
        self._look_at_undone(undone(self.journal, seen))
        blocked = blocked or self._leave_alone(snapshot)
        self._lending.advance(snapshot, read_at, self._told(), self.config, self.journal)
        for job in foreign:
            sentence = "Somebody else changed it; it is left alone from now on."
            self.runtime.log.info("job.foreign", job=job, sentence=sentence)
        self._look_for_orphans(snapshot)
        known = calculated or not len(snapshot.jobs.pending)
        strays = len(self._orphans) if known else None
        self.permissions.standby = self.primacy.why(strays, self.runtime.clock.monotonic())
        return blocked

    def _look_at_undone(self, found: Mapping[int, int]) -> None:
        # It stays undone until it is written again: what does not fit into a cycle's budget is seen again and again.
        self._newly_undone, self._counted = len(found.keys() - self._counted), set(found)
        self.runtime.metrics.changes.labels(Field.SITE_FACTOR.value, Outcome.UNDONE.value).inc(self._newly_undone)
        if found and not self._undone:
            self.runtime.log.warning(
                "writes.undone",
                sentence=f"squeue shows {len(found)} jobs with an older priority, which backfill has put back; they are"
                " written again.",
                jobs=sorted(found)[:MOST_NAMED],
                remedy="where it happens often: `rltuned doctor`",
            )
        self._undone = found

    def _look_for_orphans(self, snapshot: Snapshot) -> None:
        strays = () if self.primacy.stands_by else orphans(snapshot, self.journal)
        if strays != self._orphans and strays:
            self.runtime.log.warning(
                "jobs.orphaned",
                sentence=f"{len(strays)} pending jobs have a SiteFactor that is not in the journal.",
                jobs=strays[:20],
                remedy="if nobody else, and no other rltuned, uses SiteFactor: rltuned restore --orphans",
            )
        self._orphans = strays
        self.runtime.metrics.orphans.set(len(strays))

    def _leave_alone(self, snapshot: Snapshot) -> str:
        """Mark the jobs that an admin wants left alone (``rltuned restore JOBID``). Why that failed, or ""."""
        directory = self.config.state.directory
        marked, answered = [], []
        for job in left_alone.asked(directory):
            entry, row = self.journal.entries.get(job), snapshot.jobs.row_of.get(job)
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
            self.journal.update(marked)
        except JournalError as error:
            return str(error)
        if self.journal.on_disk:
            left_alone.answered(directory, answered)
        return ""

    def _ended(self, report: CycleReport) -> None:
        """Give everything back when Slurm has answered for long, but no plan could be carried out. Never raises."""
        liveness, log = self.liveness, self.runtime.log
        liveness.ended_cycle(acted=report.acted, slurm_away=self.slurmctld.unavailable)
        if liveness.unable >= self.config.write.give_back_after:
            # What the dead-man timer may have done concerns the next cycle's comparison. What is given back is read
            # anew.
            outdated, liveness.outdated = liveness.outdated, False
            try:
                restored = self.restoring.give_all_back()
                if restored:
                    log.error(
                        "queue.given_back",
                        sentence=f"No plan could be carried out for {liveness.unable:.0f} s: {restored} jobs were given"
                        " back to Slurm. The next plan starts anew.",
                    )
            except RltunedError as error:
                log.warning("queue.not_given_back", sentence="It is tried again in the next cycle.", reason=str(error))
            except Exception:
                log.exception("cycle.defect", sentence="This is a defect; please report it.")
            finally:
                liveness.outdated |= outdated
        self.runtime.metrics.unable.set(liveness.unable)
        self.restoring.retries.keep(self.journal.entries)
        self.runtime.metrics.unreturned.set(len(self.restoring.retries.waiting))

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        clock = self.runtime.clock
        began = clock.monotonic()
        try:
            yield
        finally:
            self._phases[name] = seconds = clock.monotonic() - began
            self.runtime.metrics.seconds.labels(name).observe(seconds)
            self.liveness.progress()

    # --- life

    def reload(self, load: Callable[[], Config], policy_of: Callable[[Config], Policy | Auto] = load_policy) -> bool:
        """Swap in a new configuration and policy between two cycles, if both are good; else keep the old ones.

        A change of `slurm`, `state`, `metrics` or `users` needs a restart: it is refused with a warning.
        """
        log, metrics = self.runtime.log, self.runtime.metrics
        kept = {name: getattr(self.config, name) for name in ("slurm", "state", "metrics", "users")}
        try:
            loaded = load()
            config = loaded.model_copy(update=kept)
            policy = policy_of(config)
        except RltunedError as error:
            metrics.reloads.labels("refused").inc()
            log.error(  # noqa: TRY400 - a mistake of the admin's, not a defect: no traceback
                "reload.refused", sentence="The old configuration stays in force.", reason=str(error)
            )
            return False
        changed = [name for name, value in kept.items() if getattr(loaded, name) != value]
        if changed:
            log.warning("reload.partial", sentence=f"[{'], ['.join(changed)}] change only with a restart.")
        with self._turn:
            self.runtime.config = config
            self._sent = None  # by this configuration, nobody may want it
            self.choice.replace(policy)
            self.permissions.forgive()
            self.restoring.retries.soon()
            self.slurmctld.reconfigured()
        metrics.interval.set(config.cycle.interval)
        metrics.reloads.labels("applied").inc()
        log.info("reload.done", sentence=f"Policy {policy.name}, stage {config.cycle.stage}.")
        return True

    def request_stop(self) -> None:
        """Let the running cycle end early, between two batches."""
        self.execution.stopping.set()

    def stop(self) -> None:
        """Wait for the running cycle, then close what is open. ``rltuned restore`` gives the queue back."""
        with self._turn:
            if self.start_times is not None and self.reporting.keeps_records:
                self.start_times.save()
            self.journal.close()
            self.liveness.end()


def _plain(snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges, book: Book) -> Plan:
    """A plan without predictions."""
    return plan(snapshot, policy, config, applied, book=book)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles of references, which goes on afterwards."""
    # A cycle leaves none behind, and the search takes a fifth of the time of a cycle with 100,000 jobs.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

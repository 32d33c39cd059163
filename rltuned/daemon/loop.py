"""One cycle: read → reconcile → plan → apply → report. Whatever happens in it, the next one comes.

`Daemon.tick` is what the scheduler calls; `Daemon.cycle` is what happens inside; both run on the clock that they are
given. Which stage is in force is decided anew in each cycle: the configured one, unless this is a dry run, a
prerequisite is missing, or alarms have made it fall to shadow.
"""

import enum
import gc
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from rltuned.cluster.changes import (
    MOVES,
    Applied,
    AppliedChanges,
    Change,
    Field,
    JobStatus,
    Outcome,
    OverSubscribe,
    WriteResult,
)
from rltuned.cluster.tables import Snapshot
from rltuned.cluster.unread import RowKind, Unread
from rltuned.cluster.verdict import MODEL
from rltuned.config import Config, PolicySection, Stage, did_you_mean
from rltuned.daemon import handsoff
from rltuned.daemon.apply import Result, apply, not_moved
from rltuned.daemon.breaker import Breaker
from rltuned.daemon.budget import SNAPSHOT_RPCS, Budget
from rltuned.daemon.checks import Finding, blocking, prerequisites
from rltuned.daemon.claims import Entry
from rltuned.daemon.clock import Clock, Moment
from rltuned.daemon.decision_log import DecisionLog
from rltuned.daemon.giving_back import MOST_NAMED, GivingBack, unread
from rltuned.daemon.heartbeat import DEAD_MAN_PATIENCE, Condition, beat, stop_beating
from rltuned.daemon.journal import Journal
from rltuned.daemon.lock import holder
from rltuned.daemon.logs import Log
from rltuned.daemon.metrics import Metrics
from rltuned.daemon.notify import Notifier
from rltuned.daemon.primacy import Primacy, own_names
from rltuned.daemon.reconcile import Reconciled, Reconciler, orphans, view
from rltuned.daemon.record import save
from rltuned.daemon.restore import hidden
from rltuned.daemon.returns import Returns
from rltuned.daemon.rollout import forecasts
from rltuned.daemon.start_times import StartTimes
from rltuned.daemon.starts import Starts
from rltuned.daemon.verdict import AUTO, Auto, Choice, Standing, auto, chosen, drifted, remedy
from rltuned.decide.decision import OFF, DecisionRecord, StartRecord
from rltuned.decide.entry import MAX_TEXT, CycleEntry, Seen, Wanted
from rltuned.decide.plan import Plan, plan
from rltuned.decide.predictions import EndedJobs
from rltuned.decide.record import record as record_of
from rltuned.decide.user_record import UserRecords
from rltuned.errors import (
    ConfigError,
    JournalError,
    RltunedError,
    SlurmDeniedError,
    SlurmError,
    SlurmParseError,
    SlurmUnavailableError,
)
from rltuned.policy import Policy, by_name, files, store
from rltuned.policy.heuristics import RULES
from rltuned.slurm.port import ClusterFacts, ControllerReader, Privilege, SlurmReader, SlurmWriter

WRITING: Final = frozenset({Stage.CANARY, Stage.ACTIVE})
FACTS_SECONDS: Final = 3600.0
"""How long facts of the cluster's configuration are taken for true when nothing hints at a change."""
STALE_SECONDS: Final = 300.0
"""Least age at which the heartbeat counts as stale."""
SPREAD: Final = 0.5
"""Share of the interval over which writes are spread when Slurm's RPC limiter does not take them at once."""
LONGEST_RETRY: Final = 600.0
"""Longest time between two tries to give a job back, seconds."""
_OTHERS_LEAVE: Final = "jobs that left its class are given back first"
STUCK_TIMEOUTS: Final = 6.0
"""A step of a cycle that takes so many time-outs of Slurm's commands is stuck: the watchdog may act."""


class CycleOutcome(enum.StrEnum):
    """How a cycle ended."""

    DONE = "done"
    SHED = "shed"
    """slurmctld is under load: planned, but wrote nothing."""
    WAITING = "waiting"
    """The circuit breaker is open."""
    STANDBY = "standby"
    """slurmctld runs on another host, and nothing of ours is out: nothing was read."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did."""

    outcome: CycleOutcome
    stage: Stage
    sentence: str
    pending: int = 0
    managed: int = 0
    moved: int = 0
    planned: int = 0
    """Changes that the plan wants."""
    results: tuple[Result, ...] = ()
    restored: int = 0
    """Jobs given back to Slurm in this cycle."""
    acted: bool = False
    """The queue is as the plan wants it: its changes were sent. In a stage that writes nothing: none of ours is out."""
    seen: Seen | None = None
    """None: the cluster could not be read."""
    record: DecisionRecord | None = None
    """None: nothing was planned."""

    def count(self, outcome: Outcome) -> int:
        """Changes with this outcome."""
        return sum(result.outcome is outcome for result in self.results)


class Planner(Protocol):
    """`rltuned.decide.plan.plan`."""

    def __call__(self, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges) -> Plan:
        """One cycle's decision."""


def load_policy(settings: PolicySection) -> Policy | Auto:
    """The policy that the configuration names; what "auto" stands for is decided anew in each cycle.

    Raises:
        ModelError, ConfigError: the model file was refused, or there is no such rule. Never for "auto".
    """
    if settings.name == AUTO:
        return auto(settings)
    if settings.name == MODEL:
        return files.load(settings.model)
    known = (AUTO, MODEL, *sorted(RULES))
    if settings.name not in known:
        meant = did_you_mean(settings.name, known)
        raise ConfigError(f"policy.name: there is no policy '{settings.name}'; there are {', '.join(known)}{meant}")
    return by_name(settings.name)


class _Reader:
    """Wraps the reader and reports progress after each answer, for the watchdog.

    A status that took so long that the dead-man timer may have acted meanwhile (`outdated` says so) is an error: what
    it shows may be the timer's doing.
    """

    def __init__(self, reader: SlurmReader, moved: Callable[[], None], outdated: Callable[[], str]) -> None:
        self._reader, self._moved, self._outdated = reader, moved, outdated

    def ping(self) -> None:
        self._reader.ping()
        self._moved()

    def facts(self) -> ClusterFacts:
        answer = self._reader.facts()
        self._moved()
        return answer

    def snapshot(self, now: float) -> Snapshot:
        answer = self._reader.snapshot(now)
        self._moved()
        return answer

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        answer = self._reader.status(job_ids)
        self._moved()
        if why := self._outdated():
            raise SlurmUnavailableError(f"the jobs' status came too late: {why}")
        return answer


class _Writer:
    """Wraps the writer likewise."""

    def __init__(self, writer: SlurmWriter, moved: Callable[[], None]) -> None:
        self._writer, self._moved = writer, moved

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        answer = self._writer.write(changes)
        self._moved()
        return answer

    def release(self, job_ids: Sequence[int]) -> None:
        self._writer.release(job_ids)
        self._moved()


@dataclass
class Daemon:
    """The loop's state. One per process; `tick` and `reload` may be called from different threads."""

    config: Config
    policy: Policy | Auto
    reader: SlurmReader
    writer_factory: Callable[[], SlurmWriter] | None
    """None is a dry run: there is nothing that could write."""
    journal: Journal
    clock: Clock
    rng: random.Random
    log: Log
    metrics: Metrics
    notifier: Notifier = field(default_factory=Notifier)
    planner: Planner = plan
    rollout_trouble: Callable[[], str] = str
    """Why the planner makes no rollouts although it should; "" where it does. For the record, and `doctor`."""
    ended: Callable[[], EndedJobs | None] = lambda: None
    """The last jobs that ended; None while none are known."""
    owns: Callable[[], bool] = lambda: True
    """Whether the lock of the state directory is still this process's."""
    publish: Callable[[UserRecords], None] | None = None
    """Shows users the records of their own jobs; returns at once. None: nobody asked for that."""
    start_times: StartTimes | None = None
    """Says when jobs start; None: nobody asked for that."""
    primacy: Primacy = field(default_factory=lambda: Primacy(own_names()))
    facts: ClusterFacts | None = None
    findings: list[Finding] = field(default_factory=list)
    demoted: str = ""
    """Why the stage fell to shadow; empty when it did not."""

    def __post_init__(self) -> None:
        self.budget = Budget.of(self.config.write, None)
        self.breaker = self._new_breaker()
        self._reconciler = Reconciler()
        self._starts = Starts()
        self._reader = _Reader(self.reader, self._progress, self._outdated)
        self._writer: SlurmWriter | None = None
        self._turn = threading.Lock()
        self._facts_at = float("-inf")
        self._alarms = 0
        self._unavailable = False
        self.giving_back = GivingBack(
            journal=self.journal,
            reader=self._reader,
            writer=None if self.writer_factory is None else self._the_writer,
            clock=self.clock,
            budget=lambda: self.budget,
            log=lambda: self.log,
            metrics=self.metrics,
            primacy=self.primacy,
            progress=self._progress,
            returns=Returns(self.config.cycle.interval, LONGEST_RETRY),
        )
        self._acted_at = self.clock.monotonic()
        """When the queue was last as the plan wants it."""
        self._unable = 0.0
        """Seconds for which Slurm has answered but no plan could be carried out."""
        self._decision_log = DecisionLog(self.config.state.directory, self.config.state.decision_log)
        self._orphans: tuple[int, ...] = ()
        self._unread: set[tuple[RowKind, str]] = set()
        self._chosen: Choice | None = None
        """What the policy "auto" stood for in the last cycle."""
        self._store: object = None
        """`store.mark` of the cycle before; None: there was none, or the policy is in no store."""
        self._journal_alarms: tuple[str, ...] = ()
        self._in_tick = False
        self._stopping = threading.Event()
        self._began = self._looked_at = self.clock.monotonic()
        self._progress_at = self._began
        self._beat_at = float("-inf")
        self._standby = ""
        """Why another host's daemon writes, or is to give back first; "" where this one may."""
        self._shown_at = float("-inf")
        """When a state directory took the heartbeat last."""
        self._silent = True
        """Without a heartbeat for long, or without a daemon until now: restore may have given jobs back since the last
        reading that this daemon knows, and may have found no room on any disk to note that."""
        self._lost = False
        """The lock's file was removed: another process may hold a lock of its own."""
        self._phases: dict[str, float] = {}
        self.metrics.interval.set(self.config.cycle.interval)
        self.metrics.journal_damage.set(self.journal.damage.lines)
        if self.journal.damage:
            self.log.error("journal.damaged", detail=str(self.journal.damage))
        self._beat()

    def _new_breaker(self) -> Breaker:
        write = self.config.write
        return Breaker(write.breaker_failures, 2 * self.config.cycle.interval, write.breaker_max_wait, self.rng)

    # --- what is in force

    @property
    def stage(self) -> Stage:
        """The stage in force."""
        wanted = self.config.cycle.stage
        return Stage.SHADOW if wanted in WRITING and self.held_back else wanted

    @property
    def held_back(self) -> str:
        """Why the configured stage is not in force; empty when nothing stands against writing."""
        if self.writer_factory is None:
            return "dry run"
        if self._standby:
            return self._standby
        if self._lost:
            return "the lock's file was removed, so another rltuned may be at work"
        if self.demoted:
            return f"demoted: {self.demoted}"
        if self._unseen_for(0.5 * self._stale_after):
            return "no state directory takes the heartbeat, so the dead-man timer would undo what is written"
        missing = blocking(self.findings)
        return "; ".join(finding.cause for finding in missing)

    def healthy(self) -> bool:
        """Whether the loop moves: not stuck in a step, and not overdue."""
        idle = self.clock.monotonic() - self._progress_at
        patience = STUCK_TIMEOUTS * self.config.slurm.timeout
        return idle < (patience if self._in_tick else 2 * self.config.cycle.interval + patience)

    # --- the scheduler's entry

    def tick(self) -> CycleReport | None:
        """One cycle with everything around it. Never raises; None when the cycle before still runs."""
        if not self._turn.acquire(blocking=False):
            self._overrun("the cycle before still runs")
            return None
        began = self._began = self.clock.monotonic()
        try:
            self._in_tick = True
            self._progress()
            self._look_at_lock()
            self._follow_store()
            with _uncollected():
                report = self._guarded_cycle()
            self._watch_ability(report)
            seconds = self.clock.monotonic() - began
            self._report(report, seconds)
            self._keep(report, seconds)
        finally:
            self._in_tick = False
            self._turn.release()
        if self.clock.monotonic() - began > self.config.cycle.interval:
            self._overrun(f"the cycle took longer than its {self.config.cycle.interval:g} s")
        self._beat()
        return report

    def _overrun(self, why: str) -> None:
        self.metrics.overruns.inc()
        self.log.warning("cycle.overrun", sentence=f"{why}; the next one starts at the next full interval.")

    def _guarded_cycle(self) -> CycleReport:
        self._phases = {}
        try:
            report = self.cycle()
        except SlurmError as error:
            self.metrics.errors.labels(_kind(error)).inc()
            self._unavailable = isinstance(error, SlurmUnavailableError) and not self._answers()
            self._facts_at = float("-inf")
            self._failed()
            return CycleReport(CycleOutcome.FAILED, self.stage, f"Slurm could not be used: {error}")
        except RltunedError as error:
            return CycleReport(CycleOutcome.FAILED, self.stage, str(error))
        except Exception as error:
            self.metrics.errors.labels("other").inc()
            self.log.exception("cycle.defect", sentence="This is a defect; please report it.")
            self._failed()
            return CycleReport(CycleOutcome.FAILED, self.stage, f"{type(error).__name__}: {error}")
        if report.outcome is not CycleOutcome.WAITING:
            self._unavailable = False
            self.breaker.success()
        return report

    def _failed(self) -> None:
        if self.breaker.failure(self.clock.monotonic()):
            self._alarm("the circuit breaker opened")

    def _alarm(self, why: str) -> None:
        self._alarms += 1
        if self._alarms >= self.config.write.demote_after and not self.demoted and self.stage in WRITING:
            self.demoted = f"{self._alarms} alarms in a row, the last: {why}"
            self.metrics.demotions.inc()
            self.log.error(
                "stage.demoted",
                sentence=f"Fell back to stage shadow after {self.demoted}. The queue is given back to Slurm.",
                remedy="find the cause, then `systemctl reload rltuned`",
            )

    def _look_at_lock(self) -> None:
        if self._lost or self.writer_factory is None or self.owns():
            return
        self._lost = True
        self.journal.let_go()
        self.log.error(
            "lock.lost",
            sentence="The file of the lock was removed. What is out is given back, and nothing is written any more.",
            remedy="find out who removes files of the state directory, then `systemctl restart rltuned`",
        )

    # --- the model store

    def _follow_store(self) -> None:
        """Take what `rltuned learn` or `rltuned model use` has brought into force; a bad one leaves the old one.

        A version that changes while it is read shows another mark in the next cycle, and is read again.
        """
        section, why = self.config.policy, ""
        seen = store.mark(section.model, section.verdict) if section.name in {AUTO, MODEL} else None
        if seen == self._store:
            return
        self._store, number = seen, store.number_of(section.model)
        self.metrics.model_version.set(number)
        if seen is None:
            return
        try:
            policy = load_policy(section)
        except RltunedError as error:
            why = str(error)
        else:
            if isinstance(policy, Auto):
                reading = policy.reading
                why = reading.model_trouble or (reading.trouble if reading.standing is Standing.UNREADABLE else "")
        if why:
            self.metrics.reloads.labels("refused").inc()
            self.log.error("model.refused", sentence="The old model stays in force.", reason=why)
            return
        self.policy, self._chosen = policy, None
        self.metrics.reloads.labels("applied").inc()
        self.log.info("model.taken", sentence=f"The model store's version {number} is in force.", version=number)

    # --- the cycle

    def cycle(self) -> CycleReport:
        """One cycle.

        Raises:
            SlurmError: the cluster could not be read; nothing was written.
        """
        if not self.breaker.allow(self.clock.monotonic()) and not self._answers_again():
            wait = max(0.0, self.breaker.until - self.clock.monotonic())
            return CycleReport(CycleOutcome.WAITING, self.stage, f"Slurm is left alone for another {wait:.0f} s")
        self.budget.start_cycle()
        with self._phase("read"):
            self._refresh_facts()
            if self._stands_by() and all(
                entry.applied.foreign and not entry.carries for entry in self.journal.entries.values()
            ):
                self._starts.manages_none()
                sentence = f"{self._standby}; nothing of this daemon's is out"
                return CycleReport(CycleOutcome.STANDBY, self.stage, sentence, acted=True)
            read_at = self.clock.steady()
            silent = self._silent or self._dead_man_may_have_acted() or self._unseen_for(self._stale_after)
            self._silent = False
            snapshot = self._reader.snapshot(self.clock.time())
            self.budget.spend(SNAPSHOT_RPCS, self.clock.monotonic())
            self._tell_unread(snapshot.unread)
        self._refuse_hidden(snapshot)
        for tier, waited in self._starts.since_last(snapshot):
            self.metrics.waiting.labels(tier).observe(waited)
        self.giving_back.calculated = bool(snapshot.jobs.site_known.any())
        with self._phase("reconcile"):
            self.journal.look_again()
            found, blocked = self._reconcile(snapshot, read_at, silent=silent or self._silent)
            calculated = bool(snapshot.jobs.site_known.any()) or not len(snapshot.jobs.pending)
            self._standby = self.primacy.why(len(self._orphans) if calculated else None, self.clock.monotonic())
        pending = len(snapshot.jobs.pending)
        self.metrics.pending.set(pending)
        stage = self.stage
        out = [] if stage in WRITING else self.giving_back.out(snapshot)
        restored, acted = (0, False) if blocked else self.giving_back.give_back(out)
        if stage is Stage.OBSERVE:
            self._publish(snapshot, None)
            self._starts.manages_none()
            sentence = f"{pending} pending jobs, {len(snapshot.nodes)} nodes"
            seen = Seen.of(snapshot)
            return CycleReport(CycleOutcome.DONE, stage, sentence, pending, restored=restored, acted=acted, seen=seen)
        with self._phase("plan"):
            policy, choice = self._choose(snapshot)
            known = replace(snapshot, scheduler=self.facts.scheduler) if self.facts is not None else snapshot
            result = self.planner(known, policy, self.config, self.journal.applied(read_at))
        self._starts.manages(result)
        results: list[Result] = []
        # After a long time without a plan the dead-man timer may be at work this very moment. This cycle only ends that
        # time, by its heartbeat; the next one writes, on what it finds then.
        shed = self._overloaded(snapshot)
        resumes = stage in WRITING and not blocked and not shed and self._dead_man_may_have_acted()
        self._silent |= resumes
        shed = shed or self._outdated()
        if stage in WRITING and not blocked and not shed:
            with self._phase("apply"):
                try:
                    restored, results = self._write(snapshot, found, result)
                except JournalError as error:
                    blocked = str(error)
        if stage in WRITING:
            stopped = not restored and bool(results) and all(item.outcome is Outcome.THROTTLED for item in results)
            acted = resumes or (not blocked and not shed and not self._alarms and not stopped)
        with self._phase("forecast"):
            starts = None
            if self.start_times is not None and forecasts(self.config.rollout):
                starts = self.start_times.look(result, policy, moves=stage in WRITING)
        with self._phase("report"):
            record = record_of(
                result,
                stage=stage,
                policy_why=choice.why,
                rollout_trouble=self.rollout_trouble(),
                results=results,
                starts=starts,
            )
            trouble = ""
            if self._recorder:
                trouble = save(self.config.state.directory, record)
            if trouble:
                self.log.warning("record.not_written", detail=trouble)
            self._measure(record)
            self._publish(known, result, starts)
        tally = Counter(item.outcome for item in results)
        why = blocked or shed
        outcome = CycleOutcome.SHED if shed else CycleOutcome.DONE
        return CycleReport(
            outcome=CycleOutcome.FAILED if blocked else outcome,
            stage=stage,
            sentence=_sentence(pending, record, self.held_back, tally, why, restored),
            pending=pending,
            managed=len(record.jobs),
            moved=record.ranks_changed,
            planned=len(record.changes),
            results=tuple(results),
            restored=restored,
            acted=acted,
            seen=Seen.of(snapshot),
            record=record,
        )

    def _refuse_hidden(self, snapshot: Snapshot) -> None:
        """Where all jobs of the journal are gone at once, ask whether this user may still see them.

        Raises:
            SlurmDeniedError: it may not.
        """
        known = snapshot.jobs.row_of
        gone = 0
        for job, entry in self.journal.entries.items():
            if entry.carries:
                if job in known or unread(snapshot, job):
                    return  # nearly always the first one
                gone += 1
        if not gone:
            return
        self._facts_at = float("-inf")
        self._refresh_facts()
        if self.facts is not None and self.facts.hides_jobs:
            raise hidden(self.facts.user)

    def _tell_unread(self, unread: Unread) -> None:
        """What Slurm says and cannot be understood; said once for as long as it stays the same."""
        self.metrics.set_skipped(unread.counts)
        strange = {(row.kind, row.name) for row in unread.rows}
        if strange != self._unread and unread:
            self.log.warning(
                "rows.skipped",
                sentence=f"{len(unread)} rows of Slurm's answers cannot be understood and are left alone.",
                rows=[str(row) for row in unread.rows[:20]],
                remedy="`rltuned doctor` names them",
            )
        self._unread = strange

    def _choose(self, snapshot: Snapshot) -> tuple[Policy, Choice]:
        """The policy of this cycle; what "auto" has become is said once."""
        policy, choice = chosen(self.policy, snapshot, self.config.rollout)
        last, self._chosen = self._chosen, choice
        self.metrics.set_verdict(choice.standing)
        verdict = self.policy.reading.verdict if isinstance(self.policy, Auto) else None
        self.metrics.verdict_end.set(math.nan if verdict is None else verdict.expires)
        self.metrics.set_drift(drifted(verdict, self.ended()))
        if last is not None and (last.runs, last.standing) == (choice.runs, choice.standing):
            return policy, choice
        if choice.standing is Standing.GOOD:
            self.log.info("policy.chosen", sentence=f"Policy '{policy.name}': {choice.why}")
        elif choice.standing is not Standing.UNUSED:
            self.log.warning(
                "verdict.not_used",
                sentence=f"Policy '{policy.name}': {choice.why}.",
                standing=choice.standing.value,
                remedy=remedy(self.config.policy),
            )
        return policy, choice

    def _answers_again(self) -> bool:
        """Whether slurmctld, whose silence opened the breaker, answers the cheapest question: then wait no longer."""
        if not self._unavailable or not self._answers():
            return False
        self.breaker.probe()
        return True

    def _answers(self) -> bool:
        try:
            self._reader.ping()
        except SlurmError:
            return False
        return True

    def _stands_by(self) -> bool:
        """Whether slurmctld runs on another host now. Not asked if there is one controller, or this host is none."""
        reader, facts = self.reader, self.facts
        if facts is None or not self.primacy.concerns(facts.controllers) or not isinstance(reader, ControllerReader):
            return False
        changed = self.primacy.look(reader.controllers(facts), self.clock.monotonic())
        stands_by = self.primacy.stands_by
        self.metrics.standby.set(stands_by)
        if stands_by:
            self._standby = self.primacy.why(0, self.clock.monotonic())
            self.metrics.orphans.set(0)
        if changed:
            doing = "What this daemon has written is given back." if stands_by else "This daemon writes, once it may."
            self.log.warning("primacy.changed", sentence=f"slurmctld runs on {self.primacy.acting}. {doing}")
        return stands_by

    def _refresh_facts(self) -> None:
        now, old = self.clock.monotonic(), self.facts
        doubtful = blocking(self.findings) or (old is not None and old.accounting and not old.accounting_reachable)
        if now - self._facts_at < FACTS_SECONDS and not doubtful:
            return
        facts = self._reader.facts()
        if (
            old is not None
            and old.privilege is not Privilege.NONE
            and facts.accounting
            and not facts.accounting_reachable
        ):
            # slurmdbd is away for a while; slurmctld remembers the privilege, and so do we
            facts = replace(facts, privilege=old.privilege)
        before = {finding.cause for finding in blocking(self.findings)}
        self.facts, self._facts_at = facts, now
        self.findings = prerequisites(facts, self.config)
        for finding in blocking(self.findings):
            if finding.cause not in before:
                self.log.error(
                    "prerequisite.missing", subject=finding.subject, cause=finding.cause, remedy=finding.remedy
                )
        if before - {finding.cause for finding in blocking(self.findings)}:
            self.giving_back.returns.soon()
        self.metrics.blocked.set(len(blocking(self.findings)))
        self._set_budget()

    def _set_budget(self) -> None:
        fresh = Budget.of(self.config.write, self.facts)
        same = ("limited", "burst", "rate", "per_cycle")
        if any(getattr(fresh, name) != getattr(self.budget, name) for name in same):
            self.budget = fresh
            self.budget.spend(0, self.clock.monotonic())

    def _unseen_for(self, seconds: float) -> bool:
        """Whether no state directory has taken the heartbeat for so long."""
        return self.clock.monotonic() - self._shown_at > seconds

    def _dead_man_may_have_acted(self) -> bool:
        """Whether this daemon has been unable to act for so long that the dead-man timer gives back in its place."""
        return self.clock.monotonic() - self._acted_at > DEAD_MAN_PATIENCE * self.config.write.give_back_after

    def _outdated(self) -> str:
        """Why the plan must not be carried out although nothing is wrong with it."""
        return "the dead-man timer may have been at work since the reading" if self._silent else ""

    def _reconcile(self, snapshot: Snapshot, read_at: float, *, silent: bool) -> tuple[Reconciled, str]:
        """What was found, and why nothing may be written in this cycle ("" when it may)."""
        blocked = ""
        found = Reconciled()
        try:
            found = self._reconciler.reconcile(
                self.journal,
                view(snapshot, self.journal),
                read_at,
                calculated=bool(snapshot.jobs.site_known.any()),
                silent=silent,
            )
            if self.primacy.stands_by:
                found = self._without_the_others(found)
        except JournalError as error:
            blocked = str(error)
        blocked = blocked or self._leave_alone(snapshot)
        for job in found.foreign:
            self.log.info("job.foreign", job=job, sentence="Somebody else changed it; it is left alone from now on.")
        strays = () if self.primacy.stands_by else orphans(snapshot, self.journal)
        if strays != self._orphans and strays:
            self.log.warning(
                "jobs.orphaned",
                sentence=f"{len(strays)} pending jobs have a SiteFactor that is not in the journal.",
                jobs=strays[:20],
                remedy="if nobody else uses SiteFactor: rltuned restore --orphans",
            )
        self._orphans = strays
        self.metrics.orphans.set(len(strays))
        return found, blocked

    def _without_the_others(self, found: Reconciled) -> Reconciled:
        """On standby, a job that was given back and shows another value has it of the other host's daemon."""
        theirs = {job for job in found.foreign if not self.journal.entries[job].carries}
        self.journal.update((), theirs)
        return replace(found, foreign=tuple(job for job in found.foreign if job not in theirs))

    def _leave_alone(self, snapshot: Snapshot) -> str:
        """Mark the jobs that an admin wants left alone (``rltuned restore JOBID``). Why that could not be noted, or "".

        An entry that is there keeps its claim, which may still have to be given back. The request stays while a reading
        does not tell which job has the id: the entry may be another one's, and the mark would go with it.
        """
        directory = self.config.state.directory
        marked, answered = [], []
        for job in handsoff.asked(directory):
            entry, row = self.journal.entries.get(job), snapshot.jobs.row_of.get(job)
            submitted = None if row is None else int(snapshot.jobs.submit_time[row])
            same = entry is None or submitted is None or entry.submit_time == submitted
            sure = same and not unread(snapshot, job)
            if sure:
                answered.append(job)
            if entry is None and sure and submitted is not None:
                entry = Entry(Applied(job, submitted, 0.0))
            if entry is not None and not entry.applied.foreign:
                marked.append(replace(entry, applied=replace(entry.applied, foreign=True)))
        try:
            self.journal.update(marked)
        except JournalError as error:
            return str(error)
        if self.journal.on_disk:
            handsoff.answered(directory, answered)
        return ""

    def _overloaded(self, snapshot: Snapshot) -> str:
        health, limits = snapshot.health, self.config.write
        if health.server_threads > limits.max_server_threads:
            return f"slurmctld has {health.server_threads} busy threads"
        if health.agent_queue > limits.max_agent_queue:
            return f"slurmctld has {health.agent_queue} messages waiting"
        return ""

    def _write(self, snapshot: Snapshot, found: Reconciled, result: Plan) -> tuple[int, list[Result]]:
        writer, back = self._the_writer(), self.giving_back
        leaving = back.leaving(snapshot, found.owing, result.withdraw)
        restored, _ = back.give_back(leaving.first)
        raised = back.unreturned(leaving.raised)
        left_out = leaving.jobs
        changes = [change for change in result.changes if change.job_id not in left_out]
        in_two = bool(leaving.last or raised)
        early = [change for change in changes if not in_two or _may_go_first(change)]
        late = [change for change in changes if in_two and not _may_go_first(change)]
        shares = _partition_shares(snapshot, changes)

        def batch(wanted: Sequence[Change], left_out: Collection[int]) -> list[Result]:
            return apply(wanted, self._reader, writer, self.journal, self.budget, self.clock, shares, left_out)

        results = self._spread(batch, early, left_out)
        throttled = any(item.outcome is Outcome.THROTTLED for item in results)
        lowered, last = back.give_back_lowered(
            leaving.last, at_once=not (raised or throttled), patience=self.config.write.give_back_after
        )
        restored += lowered
        if raised or last or throttled:
            results += [Result(change, Outcome.THROTTLED, _OTHERS_LEAVE) for change in late]
        elif late:
            results += self._spread(batch, late, left_out | not_moved(results))
        for (of, outcome), count in Counter((change.field, outcome) for change, outcome, _ in results).items():
            self.metrics.changes.labels(of.value, outcome.value).inc(count)
        for change, outcome, message in results:
            self.log.debug(
                "job.changed" if outcome is Outcome.APPLIED else "job.not_changed",
                job=change.job_id,
                field=change.field.value,
                before=change.before,
                after=change.after,
                outcome=outcome.value,
                message=message,
            )
        sent = [item for item in results if item.outcome in {Outcome.APPLIED, Outcome.FAILED, Outcome.DENIED}]
        bad = [item for item in sent if item.outcome is not Outcome.APPLIED]
        if sent and 2 * len(bad) >= len(sent):
            self._alarm(f"{len(bad)} of {len(sent)} writes failed ({bad[0].message})")
        else:
            self._alarms = 0
        return restored, results

    def _spread(
        self,
        batch: Callable[[Sequence[Change], Collection[int]], list[Result]],
        changes: Sequence[Change],
        left_out: set[int],
    ) -> list[Result]:
        """Under Slurm's RPC limiter, go on writing as the bucket refills, for at most half of the interval.

        Each batch reads the jobs again right before it writes, so a change by somebody else is seen however late. A
        bucket holds fewer RPCs than a long queue wants, and waiting for the next cycle would let most of it go to
        waste. What an earlier batch could not move (or `left_out`: what is given back instead) counts for the later
        ones.
        """
        results = batch(changes, left_out)
        deadline = self._began + SPREAD * self.config.cycle.interval
        while throttled := [result.change for result in results if result.outcome is Outcome.THROTTLED]:
            wait = self.budget.wait(int(self.budget.burst), self.clock.monotonic())
            if wait <= 0 or self.clock.monotonic() + wait > deadline or not self._pause(wait):
                break
            stays = left_out | not_moved(result for result in results if result.outcome is not Outcome.THROTTLED)
            try:
                done = {id(result.change): result for result in batch(throttled, stays)}
            except (SlurmError, JournalError) as error:
                # What went out before is reported; if the trouble lasts, the next cycle's read says so.
                self.log.warning("writes.stopped", sentence="The rest waits for the next cycle.", reason=str(error))
                break
            results = [done.get(id(result.change), result) for result in results]
        return results

    def _pause(self, seconds: float) -> bool:
        """Sleep in small steps; False as soon as the daemon is to stop."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            if self._stopping.is_set():
                return False
            self.clock.sleep(min(left, 0.5))
            self._progress()
        return not self._stopping.is_set()

    def request_stop(self) -> None:
        """Let the running cycle end early, between two batches."""
        self._stopping.set()

    def _the_writer(self) -> SlurmWriter:
        if self.writer_factory is None:
            raise RltunedError("a dry run has no writer")
        if self._writer is None:
            self._writer = _Writer(self.writer_factory(), self._progress)
        return self._writer

    def _watch_ability(self, report: CycleReport) -> None:
        """Give everything back when Slurm has answered for long, but no plan could be carried out. Never raises.

        Needs the jobs' status only: no nodes, no model, no plan. Time in which slurmctld was away does not count.
        """
        now = self.clock.monotonic()
        passed, self._looked_at = now - self._looked_at, now
        if report.acted:
            self._unable = 0.0
            self._acted_at = now
        elif not self._unavailable:
            self._unable += passed
        try:
            if self._unable >= self.config.write.give_back_after:
                restored = self._give_all_back()
                if restored:
                    self.log.error(
                        "queue.given_back",
                        sentence=f"No plan could be carried out for {self._unable:.0f} s: {restored} jobs were given"
                        " back to Slurm. The next plan starts anew.",
                    )
        except RltunedError as error:
            self.log.warning("queue.not_given_back", sentence="It is tried again in the next cycle.", reason=str(error))
        except Exception:
            self.log.exception("cycle.defect", sentence="This is a defect; please report it.")
        self.metrics.unable.set(self._unable)
        self.giving_back.returns.keep(self.journal.entries)
        self.metrics.unreturned.set(len(self.giving_back.returns.waiting))

    def _give_all_back(self) -> int:
        # What the dead-man timer may have done concerns the next cycle's comparison. What is given back is read anew.
        silent, self._silent = self._silent, False
        try:
            return self.giving_back.give_all_back()
        finally:
            self._silent |= silent

    # --- what others see

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = self.clock.monotonic()
        try:
            yield
        finally:
            seconds = self.clock.monotonic() - began
            self._phases[name] = seconds
            self.metrics.seconds.labels(name).observe(seconds)
            self._progress()

    def _progress(self) -> None:
        self._progress_at = self.clock.monotonic()
        self._beat()

    def _beat(self) -> None:
        if self.writer_factory is None or self._lost:
            return  # who has no writer or no lock must not keep the dead-man timer from giving back
        now = self.clock.monotonic()
        if now - self._beat_at >= 5.0:
            self._beat_at = now
            condition = Condition(
                writing=self.stage in WRITING,
                inactive=now - self._acted_at,
                unreturned=tuple(self.giving_back.returns.waiting[:MOST_NAMED]),
            )
            if beat(self._directories(), Moment.of(self.clock), self._stale_after, condition):
                self._silent |= self._stale_after < now - self._shown_at < math.inf
                self._shown_at = now

    @property
    def _stale_after(self) -> float:
        return max(STALE_SECONDS, 4 * self.config.cycle.interval)

    def _directories(self) -> Sequence[Path]:
        state = self.config.state
        return [root for root in (state.directory, state.mirror) if root is not None]

    def _publish(self, snapshot: Snapshot, result: Plan | None, starts: StartRecord | None = None) -> None:
        """Users' records. What is wrong with them must not make a cycle fail that has done its work."""
        if self.publish is None:
            return
        try:
            moves = self.stage in WRITING
            interval = self.config.cycle.interval
            self.publish(UserRecords.of(snapshot, interval=interval, plan=result, moves=moves, starts=starts))
        except Exception:
            self.log.exception("users.defect", sentence="This is a defect; please report it.")

    def _measure(self, record: DecisionRecord) -> None:
        metrics = self.metrics
        metrics.managed.set(len(record.jobs))
        metrics.moved.set(record.ranks_changed)
        metrics.displacement.set(record.displacement)
        metrics.set_vetoes({veto.value: len(jobs) for veto, jobs in record.vetoed.items()})
        if record.placement.outcome != OFF:
            metrics.placements.labels(record.placement.outcome).inc()

    @property
    def _recorder(self) -> bool:
        """Whether this daemon writes the decision record and the decision log: without the lock, as in a dry run, those
        of a daemon beside it are the ones that count.
        """
        return (self.writer_factory is not None and not self._lost) or holder(self.config.state.directory) is None

    def _keep(self, report: CycleReport, seconds: float) -> None:
        """An entry of the decision log."""
        if not self._recorder:
            return
        phases = {name: round(value, 4) for name, value in {**self._phases, "total": seconds}.items()}
        entry = CycleEntry(
            time=self.clock.time(),
            outcome=report.outcome.value,
            stage=report.stage,
            held_back=self.held_back[:MAX_TEXT] if self.config.cycle.stage in WRITING else "",
            sentence=report.sentence[:MAX_TEXT],
            seen=report.seen,
            wanted=None if report.record is None else Wanted.of(report.record),
            results=Counter(result.outcome for result in report.results),
            restored=report.restored,
            seconds=phases,
            decision=report.record,
        )
        if trouble := self._decision_log.add(entry):
            self.log.warning("decision_log.not_written", detail=trouble)

    def _report(self, report: CycleReport, seconds: float) -> None:
        metrics, now = self.metrics, self.clock.time()
        metrics.cycles.labels(report.outcome.value).inc()
        metrics.seconds.labels("total").observe(seconds)
        metrics.last_cycle.set(now)
        if report.outcome in {CycleOutcome.DONE, CycleOutcome.SHED, CycleOutcome.STANDBY}:
            metrics.last_success.set(now)
        metrics.set_stage(report.stage)
        metrics.set_breaker(self.breaker.state)
        metrics.tokens.set(max(0.0, self.budget.tokens(self.clock.monotonic())))
        metrics.journal_jobs.set(len(self.journal.entries))
        metrics.foreign.set(sum(entry.applied.foreign for entry in self.journal.entries.values()))
        alarms = self.journal.alarms
        metrics.journal_failed.set(len(alarms))
        if alarms and alarms != self._journal_alarms:
            self.log.error("journal.degraded", sentence="A copy of the journal cannot be written: " + "; ".join(alarms))
        self._journal_alarms = alarms
        say = self.log.warning if report.outcome is CycleOutcome.FAILED else self.log.info
        say(
            "cycle.done",
            sentence=report.sentence + f"; {seconds:.2f} s.",
            outcome=report.outcome.value,
            stage=report.stage.value,
            pending=report.pending,
            managed=report.managed,
            moved=report.moved,
            changes={outcome.value: count for outcome, count in Counter(r.outcome for r in report.results).items()},
            restored=report.restored,
            seconds={name: round(value, 4) for name, value in self._phases.items()},
        )
        self.notifier.status(f"{report.stage}: {report.sentence}")

    # --- life

    def reload(
        self, load: Callable[[], Config], policy_of: Callable[[PolicySection], Policy | Auto] = load_policy
    ) -> bool:
        """Swap in a new configuration and policy between two cycles, if both are good; else keep the old ones.

        `slurm`, `state`, `metrics` and `users` need a restart; a change there is refused with a warning, the rest is
        taken.
        """
        try:
            config = load()
            policy = policy_of(config.policy)
        except RltunedError as error:
            self.metrics.reloads.labels("refused").inc()
            self.log.error(  # noqa: TRY400 - a mistake of the admin's, not a defect: no traceback
                "reload.refused", sentence="The old configuration stays in force.", reason=str(error)
            )
            return False
        kept = {name: getattr(self.config, name) for name in ("slurm", "state", "metrics", "users")}
        changed = [name for name, value in kept.items() if getattr(config, name) != value]
        if changed:
            self.log.warning("reload.partial", sentence=f"[{'], ['.join(changed)}] change only with a restart.")
        with self._turn:
            self.config = config.model_copy(update=kept)
            self.policy, self._chosen = policy, None
            self.demoted, self._alarms = "", 0
            self.giving_back.returns.soon()
            self._facts_at = float("-inf")
            if self.facts is not None:
                self.findings = prerequisites(self.facts, self.config)
            self.breaker = self._new_breaker()
            self._set_budget()
        self.metrics.interval.set(config.cycle.interval)
        self.metrics.reloads.labels("applied").inc()
        self.log.info("reload.done", sentence=f"Policy {policy.name}, stage {config.cycle.stage}.")
        return True

    def stop(self) -> None:
        """Wait for the running cycle (see `request_stop`), then close what is open.

        The queue is given back by ``rltuned restore``.
        """
        with self._turn:
            if self.start_times is not None and self._recorder:
                self.start_times.save()
            self.journal.close()
            if self.writer_factory is not None and not self._lost:  # else a heartbeat that is there is somebody else's
                stop_beating(self._directories())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles of references, which goes on afterwards.

    A cycle leaves none behind, and beside a long queue the search looks at a million live objects again and again: a
    fifth of the time of a cycle with 100,000 jobs.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _kind(error: SlurmError) -> str:
    kinds: Mapping[type[SlurmError], str] = {
        SlurmUnavailableError: "unavailable",
        SlurmParseError: "parse",
        SlurmDeniedError: "denied",
    }
    return kinds.get(type(error), "other")


def _may_go_first(change: Change) -> bool:
    """Whether it lets nobody stand before an outside job: it lowers the job."""
    return change.field in MOVES and int(change.after) < int(change.before)


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


def _sentence(
    pending: int,
    record: DecisionRecord,
    held_back: str,
    tally: Mapping[Outcome, int],
    why: str,
    restored: int,
) -> str:
    """What `cycle.done` says."""
    head = f"{pending} pending, {len(record.jobs)} managed, {record.ranks_changed} at another rank"
    wanted = len(record.changes)
    if record.stage not in WRITING:
        reason = f" ({held_back})" if held_back else ""
        tail = f"{wanted} changes not written: stage {record.stage}{reason}"
    elif why:
        tail = f"{wanted} changes not written: {why}"
    elif not wanted and not tally:
        tail = "nothing to change"
    else:
        others = ", ".join(f"{count} {outcome}" for outcome, count in tally.items() if outcome is not Outcome.APPLIED)
        tail = f"{tally.get(Outcome.APPLIED, 0)} of {sum(tally.values())} changes applied" + (
            f" ({others})" if others else ""
        )
    return head + "; " + tail + (f"; {restored} given back" if restored else "")

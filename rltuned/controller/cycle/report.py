"""What a cycle did, and who is told: the log, the metrics, systemd, the decision record and log, the users."""

import contextlib
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from rltuned.controller.cycle.state import DaemonState
from rltuned.controller.health.lock import holder
from rltuned.controller.health.runtime import WRITING, Refusal, Runtime
from rltuned.controller.health.slurmctld import Slurmctld
from rltuned.controller.tell.logs import DEFECT
from rltuned.controller.tell.metrics import show
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.apply import Result
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import Outcome
from rltuned.core.config import Stage
from rltuned.core.errors import RltunedError
from rltuned.core.tables import Snapshot
from rltuned.core.unread import RowKind, Unread
from rltuned.decide.decision import OFF, DecisionRecord, StartRecord
from rltuned.decide.entry import MAX_TEXT, CycleEntry, Seen, Wanted
from rltuned.decide.plan import Plan
from rltuned.records.decisions import DecisionLog, save

if TYPE_CHECKING:  # see `Reporting.users`
    from rltuned.decide.user_record import UserRecords

AGAIN: Final = 3600.0
"""Seconds after which a cycle that is like one before is told at info again: a sign of life."""
_NUMBERS: Final = re.compile(r"[0-9.,]+")


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did."""

    outcome: CycleOutcome
    stage: Stage
    sentence: str
    results: tuple[Result, ...] = ()
    restored: int = 0
    undone: int = 0
    """Writes of before that backfill has undone, as the reading showed; each is counted once."""
    acted: bool = False
    """The queue is as the plan wants it: its changes were sent. In a stage that writes nothing: none of ours is out."""
    seen: Seen | None = None  # None: the cluster could not be read
    record: DecisionRecord | None = None  # None: nothing was planned

    def count(self, outcome: Outcome) -> int:
        """Changes with this outcome."""
        return sum(result.outcome is outcome for result in self.results)


def sentence_of(
    pending: int,
    record: DecisionRecord,
    held_back: Refusal | None,
    results: Sequence[Result],
    why: Refusal | None,
    restored: int,
) -> str:
    """Say what a cycle did. `held_back`: why the configured stage is not in force. `why`: nothing was written."""
    head = f"{pending} pending, {len(record.jobs)} managed, {len(record.raises)} raised, {record.in_force} in force"
    wanted, tally = len(record.changes), Counter(result.outcome for result in results)
    if record.stage not in WRITING:
        reason = f" ({held_back})" if held_back else ""
        tail = f"{wanted} changes not written: stage {record.stage}{reason}"
    elif why:
        tail = f"{wanted} changes not written: {why}"
    elif not wanted and not tally:
        tail = "nothing to change"
    else:
        others = ", ".join(f"{count} {outcome}" for outcome, count in tally.items() if outcome is not Outcome.APPLIED)
        tail = f"{tally[Outcome.APPLIED]} of {tally.total()} changes applied" + (f" ({others})" if others else "")
    return head + "; " + tail + (f"; {restored} given back" if restored else "")


@dataclass(frozen=True, slots=True)
class Notifier:
    """systemd's notification socket: sd_notify(3) by hand. Silent where there is none; never raises."""

    address: str = ""  # path, or "@name" of an abstract socket; empty: none
    watchdog_seconds: float = 0.0  # WatchdogSec of the unit; 0: no watchdog

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self:
        """From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        usec, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
        seconds = int(usec) / 1e6 if usec.isdigit() and owner == str(pid) else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds)

    def send(self, *lines: str) -> None:
        """Send variable assignments, one datagram."""
        if not self.address:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)

    def status(self, text: str, *more: str) -> None:
        """Send what `systemctl status` shows, behind other assignments."""
        self.send(*more, f"STATUS={' '.join(text.split())[:500]}")


@dataclass
class Reporting:
    """Tells what cycles do. Nothing that goes wrong here makes a cycle fail."""

    runtime: Runtime
    notifier: Notifier
    journal: Journal
    state: DaemonState
    slurmctld: Slurmctld
    publish: "Callable[[UserRecords], None] | None"
    """Shows users the records of their own jobs; returns at once. None: nobody asked for that."""
    _unread: set[tuple[RowKind, str]] = field(default_factory=set)
    _journal_alarms: tuple[str, ...] = ()
    _said: dict[str, float] = field(default_factory=dict)
    """Until when each kind of sentence is not to be said again at info, monotonic seconds."""

    def __post_init__(self) -> None:
        state = self.runtime.config.state
        self._decision_log = DecisionLog(state.directory, state.decision_log)

    @property
    def keeps_records(self) -> bool:
        """Whether this daemon writes the decision record and log: without the lock, a daemon beside it would."""
        return self.state.owns_files or holder(self.runtime.config.state.directory) is None

    def unread(self, unread: Unread) -> None:
        """What Slurm says and cannot be understood; said once for as long as it stays the same."""
        for kind in RowKind:
            self.runtime.metrics.skipped.labels(kind.value).set(unread.counts.get(kind, 0))
        strange = {(row.kind, row.name) for row in unread.rows}
        if strange != self._unread and unread:
            self.runtime.log.warning(
                "rows.skipped",
                sentence=f"{len(unread)} rows of Slurm's answers cannot be understood and are left alone.",
                rows=[str(row) for row in unread.rows[:20]],
                remedy="`rltuned doctor` names them",
            )
        self._unread = strange

    def decided(self, record: DecisionRecord) -> None:
        """The decision of this cycle."""
        if self.keeps_records:
            try:
                save(self.runtime.config.state.directory, record)
            except RltunedError as error:
                self.runtime.log.warning("record.not_written", detail=str(error))
        metrics = self.runtime.metrics
        metrics.managed.set(len(record.jobs))
        metrics.raised.set(len(record.raises))
        metrics.raised_in_force.set(record.in_force)
        metrics.lent.set(sum(one.lent for one in record.lent.values()))
        metrics.open_loans.set(len(record.loans))
        metrics.share.set(record.share)
        metrics.set_vetoes({veto.value: len(jobs) for veto, jobs in record.vetoed.items()})
        if record.placement.outcome != OFF:
            metrics.placements.labels(record.placement.outcome).inc()

    def users(self, snapshot: Snapshot, plan: Plan | None, starts: StartRecord | None = None) -> None:
        """The users' own records."""
        if self.publish is None:
            return
        # Only here: most sites show users no records. `service` has loaded this with what publishes them.
        from rltuned.decide.user_record import UserRecords  # noqa: PLC0415

        moves, interval = self.state.writes, self.runtime.config.cycle.interval
        try:
            self.publish(UserRecords(snapshot, interval=interval, plan=plan, moves=moves, starts=starts))
        except Exception:
            self.runtime.log.exception("users.defect", sentence=DEFECT)

    def ended(self, report: CycleReport, phases: Mapping[str, float], seconds: float) -> None:
        """A cycle; the seconds that each of its phases took, and that it took as a whole."""
        self._measure(report, seconds)
        seen, record = report.seen, report.record
        changes = Counter(result.outcome for result in report.results)
        changes.update({Outcome.UNDONE: report.undone} if report.undone else {})
        self._say(report)(
            "cycle.done",
            sentence=report.sentence + f"; {seconds:.2f} s.",
            outcome=report.outcome.value,
            stage=report.stage.value,
            pending=0 if seen is None else seen.pending,
            managed=0 if record is None else len(record.jobs),
            raised=0 if record is None else len(record.raises),
            changes={outcome.value: count for outcome, count in changes.items()},
            restored=report.restored,
            seconds={name: round(value, 4) for name, value in phases.items()},
        )
        self.notifier.status(f"{report.stage}: {report.sentence}")
        if self.keeps_records:
            self._keep(report, changes, {**phases, "total": seconds})

    def _say(self, report: CycleReport) -> Callable[..., None]:
        """At which level a cycle is told: at info what has not been said for an hour, whatever the numbers in it."""
        log, now = self.runtime.log, self.runtime.clock.monotonic()
        if report.outcome is CycleOutcome.FAILED:
            return log.warning
        kind = _NUMBERS.sub("", f"{report.stage} {report.sentence}")
        if now < self._said.get(kind, now):
            return log.debug
        self._said = {kind: until for kind, until in self._said.items() if now < until} | {kind: now + AGAIN}
        return log.info

    def _measure(self, report: CycleReport, seconds: float) -> None:
        metrics, clock = self.runtime.metrics, self.runtime.clock
        metrics.cycles.labels(report.outcome.value).inc()
        metrics.seconds.labels("total").observe(seconds)
        metrics.last_cycle.set(clock.time())
        if report.outcome in {CycleOutcome.DONE, CycleOutcome.SHED, CycleOutcome.STANDBY}:
            metrics.last_success.set(clock.time())
        show(metrics.stage, report.stage)
        metrics.demoted.set(self.state.demoted)
        show(metrics.breaker, self.slurmctld.breaker.state)
        metrics.tokens.set(max(0.0, self.slurmctld.budget.tokens(clock.monotonic())))
        metrics.journal_jobs.set(len(self.journal.entries))
        metrics.foreign.set(sum(entry.applied.foreign for entry in self.journal.entries.values()))
        alarms = self.journal.alarms
        metrics.journal_failed.set(len(alarms))
        if alarms and alarms != self._journal_alarms:
            sentence = "A copy of the journal cannot be written: " + "; ".join(alarms)
            self.runtime.log.error("journal.degraded", sentence=sentence)
        self._journal_alarms = alarms

    def _keep(self, report: CycleReport, changes: Counter[Outcome], seconds: Mapping[str, float]) -> None:
        """Add to the decision log."""
        entry = CycleEntry(
            time=self.runtime.clock.time(),
            outcome=report.outcome.value,
            stage=report.stage,
            held_back=str(self.state.held_back or "")[:MAX_TEXT],
            sentence=report.sentence[:MAX_TEXT],
            seen=report.seen,
            wanted=None if report.record is None else Wanted.of(report.record),
            results=changes,
            restored=report.restored,
            seconds={name: round(value, 4) for name, value in seconds.items()},
            decision=report.record,
        )
        try:
            self._decision_log.add(entry)
        except RltunedError as error:
            self.runtime.log.warning("decision_log.not_written", detail=str(error))

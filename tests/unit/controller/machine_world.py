"""A whole site around the real daemon: model Slurm, disks, systemd, clocks, people; and the invariants that must hold.

`World` drives the project's own `Daemon`, `Journal`, `Lock` and `undo` (as ExecStopPost, as dead-man timer, by an
admin) on virtual time. Processes are nested calls: while one of them waits, the others get their turn (`pass_time`), so
a restore runs beside a cycle that is spread over the limiter's bucket. Every command, every update and every write to
disk is one step, at which a process may be killed or anybody may do anything.

What is found is noted in `violations` as (name of the invariant, text); `test_machine` asks after each rule.
"""

import contextlib
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from unit.controller.lenders import SLACK, Lenders
from unit.controller.machine_slurm import CALCULATION, PARTITIONS, SAVE, US, Cluster, Faults, Reading, Task
from unit.controller.model_slurm import TIERS, Killed, VirtualClock

import rltuned.controller.give_back.left_alone
import rltuned.controller.health.lock
import rltuned.controller.write.journal
import rltuned.core.safe_files
from rltuned.controller.cycle.lending import FILE_NAME as LOANS_NAME
from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.policy import Loaded
from rltuned.controller.cycle.report import CycleReport
from rltuned.controller.cycle.service import open_journal
from rltuned.controller.give_back import pause
from rltuned.controller.give_back.batches import RestoreReport
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.health.clock import Moment
from rltuned.controller.health.lock import FILE_NAME as LOCK_NAME
from rltuned.controller.health.runtime import WRITING, Runtime
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.journal import FILE_NAME, Journal
from rltuned.core.changes import Field, Outcome
from rltuned.core.config import (
    Config,
    CycleSection,
    EstimatesSection,
    LendSection,
    PlacementApply,
    PlacementSection,
    PolicySection,
    ScopeSection,
    Stage,
    StateSection,
)
from rltuned.core.errors import RltunedError
from rltuned.decide.expect.predictions import RunTimes
from rltuned.decide.loans import NOTHING_TOLD, Told
from rltuned.decide.plan import Plan, plan
from rltuned.slurm.port import Privilege
from rltuned.slurm.writer import ScontrolWriter

INTERVAL = 300.0  # seconds from cycle to cycle: five minutes, so that hours are few cycles
DEADMAN = 60.0  # seconds from one run of the dead-man timer to the next (systemd/rltuned-deadman.timer)
STALE = 300.0  # as systemd/rltuned-deadman.service has it
BOUND = 5400.0
"""Seconds within which what no recent plan wants is given back, once Slurm can be asked: stale heartbeat (four cycles),
longest wait of the breaker (15 minutes), the configured time without a plan, back-off of what could not be given
back."""
WATCHDOG = 180.0  # as systemd/rltuned.service has it
OUTSIDER = "olga"  # opted out

NAMES = (
    "fail open",
    "hands off",
    "fresh reading",
    "journal first",
    "book first",
    "raise only",
    "lends no more",
    "book covers",
    "dry run",
    "bounded",
    "journal covers",
    "no defect",
    "foreign only by others",
    "in force",
)
"""The invariants."""


class WorldClock(VirtualClock):
    """Real time passes for everybody; the wall clock may jump."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world
        self.offset = 0.0

    def time(self) -> float:
        return self.now + self.offset

    def steady(self) -> float:
        return self.now + self.world.stack[-1].offset

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.world.pass_time(max(seconds, 1e-6))  # real time moves on, however short the wait


class Disk:
    """`os` as the project's modules see it: each write is a step, and directories may be full or read-only."""

    def __init__(self, step: Callable[[str], None], opened: Callable[[], set[int]]) -> None:
        self.step, self.opened = step, opened
        self.full: set[Path] = set()
        self.readonly: set[Path] = set()
        self._paths: dict[int, Path] = {}
        self._modules = (
            rltuned.core.safe_files,
            rltuned.controller.give_back.left_alone,
            rltuned.controller.write.journal,
            rltuned.controller.health.lock,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def install(self) -> None:
        for module in self._modules:
            module.os = self  # type: ignore[attr-defined]

    def remove(self) -> None:
        for module in self._modules:
            module.os = os  # type: ignore[attr-defined]

    def _on(self, roots: set[Path], path: Path) -> bool:
        return any(root in path.parents for root in roots)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and self._on(self.readonly, Path(path)):
            raise OSError(errno.EROFS, "Read-only file system")
        fd = os.open(path, flags, mode)
        self._paths[fd] = Path(path)
        self.opened().add(fd)
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)
        self.opened().discard(fd)

    @staticmethod
    def ended(opened: set[int]) -> None:
        """A process was killed: the kernel closes what it had open."""
        for fd in opened:
            with contextlib.suppress(OSError):
                os.close(fd)
        opened.clear()

    def write(self, fd: int, data: Any) -> int:
        path = self._paths.get(fd, Path("/"))
        if self._on(self.full, path):
            raise OSError(errno.ENOSPC, "No space left on device")
        try:
            self.step(f"write {path.name}")
        except BaseException:
            os.write(fd, bytes(data)[: len(data) // 2])  # the kernel had taken a part of it
            raise
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        self.step(f"synced {self._paths.get(fd, Path('/')).name}")


@dataclass
class Whim:
    """A policy that wants another order whenever somebody changes its mind."""

    seed: int = 1
    name: str = "whim"

    def score(self, observation: Any) -> Any:
        key = observation.priority * 7919 + observation.submit * 104_729 + observation.gpus * 31 + 17
        return np.asarray((key * self.seed) % 997, dtype=np.float64)


class Silent:
    """A log that keeps nothing but defects, and knows when the book of loans is lost."""

    def __init__(self, defect: Callable[[str], None], lost: Callable[[], None]) -> None:
        self._defect, self._lost = defect, lost

    def debug(self, *_: Any, **__: Any) -> None: ...

    info = error = debug

    def warning(self, event: str, **_: Any) -> None:
        if event == "loans.lost":
            self._lost()

    def exception(self, event: str, **_: Any) -> None:
        import traceback

        self._defect(f"{event}: {traceback.format_exc()}")


@dataclass
class Order:
    """Kill a process at one of its next steps."""

    name: str
    steps: int


@dataclass
class World:
    """See the module. Make it with a directory of its own; `close` it."""

    root: Path
    release: tuple[int, int] = (24, 11)
    placement: PlacementApply = PlacementApply.OFF
    ageing: float = 0.0
    limiter: bool = False
    ignored: frozenset[str] = frozenset()
    outsiders: tuple[str, ...] = (OUTSIDER,)  # users that the configuration leaves out
    share: float = 0.1
    most: int = 16
    predicted: float = 1.0  # part of their limits that jobs are expected to take
    violations: list[tuple[str, str]] = field(default_factory=list)
    checks: int = 0  # invariants checked so far

    def __post_init__(self) -> None:
        self.clock = WorldClock(self)
        self.rng = random.Random(1)
        self.slurm = Cluster(self.clock, release=self.release, ageing=self.ageing, limiter=self.limiter)
        self.slurm.step, self.slurm.reading, self.slurm.complain = self.step, lambda: self.stack[-1], self.complain
        self.slurm.on_update, self.slurm.before_batch = self._update, self._before_batch  # type: ignore[attr-defined]
        slurm = self.slurm
        slurm.on_start, slurm.on_leave, slurm.on_requeue = self._started, self._left, self._requeued
        slurm.on_return = self._returned
        self.lenders = Lenders(self.root / "state" / LOANS_NAME)
        self.unlent: set[int] = set()
        """Jobs that carry a raise for which nobody need lend: an older state of slurmctld has it."""
        self.took: dict[int, tuple[float, float]] = {}
        self.cancelled: dict[int, tuple[Task, float]] = {}
        """What accounting knows: of jobs that have run, and of those that never did."""
        self.told = NOTHING_TOLD
        self.jumped = self.highest = 0.0
        """Seconds by which the wall clock was set in all, and by which it was ahead at most."""
        self.offsets = {0.0}
        self.stack: list[Reading] = [Reading("nobody")]
        self.disk = Disk(self.step, lambda: self.stack[-1].opened)
        self.disk.install()
        self.policy = Whim()
        self.daemon: Daemon | None = None
        self.journal: Journal | None = None
        self.dry_run = False
        self.config = self.configured(Stage.ACTIVE)
        self.run_reading = Reading("daemon")
        self.plan: Plan | None = None
        self.wanted: dict[int, float] = {}
        """When a plan that was carried out last wanted each job raised, by job id (monotonic)."""
        self.planned_at = float("-inf")
        self.decided_at, self.decided_of = 0.0, frozenset[int]()
        """When the last plan was made, and which jobs sprio had listed."""
        self.raised: dict[int, int] = {}  # site factors that the last plan which was carried out wants, by job id
        self.last_bad = self.clock.monotonic()  # when it was last impossible to give anything back
        self.unread: dict[int, float] = {}  # when a job's own row could last not be understood, by job id
        self.ended_at = float("-inf")  # when the last daemon ended
        self.unlocked = False
        self.spoiled = False  # both copies of the journal were damaged: nobody can know any more
        self.kill: Order | None = None
        self.orphaned = True
        self.doing = ""
        self.later: list[tuple[int, Callable[[], None]]] = []
        """(steps to go, act): what others do in the middle of something of ours."""
        self.anchored: list[tuple[str, Callable[[], None]]] = []
        """(beginning of a step's name, act): what others do at the next such step."""
        self.supervised = True
        self.restart_at = float("inf")
        self.started_by_person: set[int] = set()
        self.backfill: Callable[[], None] | None = None
        """What backfill does once a cycle of ours, or a restore, has ended."""
        now = self.clock.monotonic()
        self.next_tick, self.next_deadman = float("inf"), now + DEADMAN
        self.next_calculation, self.next_save = now, now
        self.in_tick = self.in_deadman = False
        self.threads = threading.active_count()
        self.descriptors = descriptors()
        self.ticks = 0
        self.looked_at = 0, 0
        self.late: set[int] = set()  # jobs that a scontrol has written to whose process was killed before
        self.named: set[int] = set()  # ids that ``rltuned restore JOBID`` was given

    # --- settings

    def configured(self, stage: Stage) -> Config:
        canary = {"canary": "50 %"} if stage is Stage.CANARY else {}
        return Config(
            cycle=CycleSection(stage=stage, interval=INTERVAL),
            policy=PolicySection(name="sjf"),
            estimates=EstimatesSection(source="limit"),
            lend=LendSection(share=self.share, most=self.most),
            scope=ScopeSection(exclude_users=self.outsiders, **canary),
            placement=PlacementSection(apply=self.placement),
            state=StateSection(directory=self.root / "state", mirror=self.root / "mirror"),
        )

    # --- processes

    def a_process(self, name: str) -> Reading:
        return Reading(name, self.clock.offset)

    @contextlib.contextmanager
    def process(self, reading: Reading) -> Iterator[None]:
        self.stack.append(reading)
        try:
            yield
        except Killed:
            self.disk.ended(reading.opened)
            raise
        finally:
            self.stack.pop()

    def step(self, what: str) -> None:
        if len(self.stack) == 1:
            return
        due = [act for steps, act in self.later if steps <= 0]
        self.later = [(steps - 1, act) for steps, act in self.later if steps > 0]
        self.doing = what
        for text, act in [item for item in self.anchored if what.startswith(item[0])]:
            self.anchored.remove((text, act))
            due.append(act)
        for act in due:
            with self.process(self.stack[0]):
                act()
        order = self.kill
        if order is not None and order.name == self.stack[-1].name:
            order.steps -= 1
            if order.steps < 0:
                self.kill = None
                raise Killed

    def pass_time(self, seconds: float) -> None:
        clock, until = self.clock, self.clock.now + seconds
        base = clock.now - clock.monotonic()
        while True:
            self._look()
            events = [
                (self.next_calculation, self._calculate),
                (self.next_save, self._save),
                (self.restart_at if self.daemon is None and not self.in_tick else float("inf"), self._restart),
                (self.next_deadman if not self.in_deadman else float("inf"), self._deadman),
                (self.next_tick if self.daemon is not None and not self.in_tick else float("inf"), self._tick),
            ]
            at, act = min(events, key=lambda event: event[0])
            if at + base > until:
                break
            clock.now = max(clock.now, at + base)
            act()
        clock.now = max(clock.now, until)
        self._look()

    def _look(self) -> None:
        self._tell()
        if not self.able:
            self.last_bad = self.clock.monotonic()
        faults = self.slurm.faults
        if faults.unreadable and faults.strange_job:
            self.unread[faults.strange_job] = self.clock.monotonic()
        # Nobody can give back to a job that runs; it may be requeued.
        running = (job.job_id for job in self.slurm.tasks() if job.state == "R")
        self.wanted |= dict.fromkeys(running, self.clock.monotonic())

    @property
    def able(self) -> bool:
        """Whether anything could be given back at present."""
        slurm, faults = self.slurm, self.slurm.faults
        return slurm.answers and faults.readable and not faults.lost_answers and slurm.privilege is not Privilege.NONE

    def _calculate(self) -> None:
        self.next_calculation += CALCULATION
        if self.slurm.answers:
            self.slurm.calculate()

    def _save(self) -> None:
        self.next_save += SAVE
        if self.slurm.answers and self.slurm.saved != self.slurm.op:
            self.slurm.save_state()
        lines, self.slurm.orphan_lines = self.slurm.orphan_lines, []
        for line in lines:
            if self.slurm.answers and not self.slurm.faults.refused and not self.slurm.faults.cut:
                self.slurm.carry_out(line, None)

    def _tick(self) -> None:
        daemon = self.daemon
        assert daemon is not None
        now = self.clock.monotonic()
        self.next_tick = now + INTERVAL
        self.in_tick, self.ticks = True, self.ticks + 1
        self.plan = None
        before = self._foreign()
        changed = self.slurm.world
        paused = pause.asked(self.config.state.directory, Moment.of(self.clock)) is not None
        try:
            with self.process(self.run_reading):
                report = daemon.tick()
        except Killed:
            self._died(killed=True)
        else:
            self._note(report)
            if paused and report is not None and report.stage in WRITING:  # in no other one it writes
                self.complain("dry run", f"a cycle in stage {report.stage} although it is paused")
            self._check_foreign(before, changed)
        finally:
            self.in_tick = False
        self._backfill()
        self._check_book()  # each version of the file is of one cycle

    def _note(self, report: CycleReport | None) -> None:
        """What the last plan wants, if it could be carried out; and what the cycle has learned of others."""
        if report is None or self.plan is None:
            return
        if report.outcome in {CycleOutcome.DONE, CycleOutcome.SHED} and not self.unlocked:  # else it can note nothing
            for job in self.slurm.tasks():
                if job.job_id in self.run_reading.listed:
                    job.shown = self.run_reading.began
        if report.outcome is CycleOutcome.DONE and report.stage in WRITING:
            self._check_in_force(report)
            self._check_passed(report)
            now = self.clock.monotonic()
            self.planned_at, jobs, made = now, self.plan.snapshot.jobs, self.plan.raised
            targets = dict(zip(jobs.job_id[self.plan.rows].tolist(), made.target.tolist(), strict=True))
            self.raised = {job: targets[job] - int(jobs.base[jobs.row_of[job]]) for job in made.offers}
            self.wanted |= dict.fromkeys(made.offers, now)

    def _planner(self, snapshot: Any, policy: Any, config: Any, applied: Any, book: Any) -> Plan:
        expected = snapshot.jobs.time_limit * self.predicted
        self.decided_at, self.decided_of = self.clock.now, self.run_reading.listed
        self.plan = plan(snapshot, policy, config, applied, RunTimes(expected), book)
        return self.plan

    # --- invariants: who lends

    def _started(self, job: Task) -> None:
        """A job that starts raised borrows; one that starts lends no more."""
        if not job.array:
            self.lenders.no_lender(job.key)
        if job.marks.get(Field.SITE_FACTOR) == US and job.site_factor > 0:
            self.checks += 1
            faults = self.slurm.faults
            unseen = faults.strange_job == job.job_id or bool((faults.garbled | faults.truncated) & {"jobs"})
            lends = self.lenders.started(job.record, job.key, job.size, self.clock.now, unseen=unseen)
            excused = job.record in self.unlent | self.late or self.spoiled
            if not lends and not excused:
                text = f"job {job.job_id} starts with our site factor {job.site_factor}, and nobody lends for it"
                self.complain("lends no more", text)

    def _left(self, job: Task) -> None:
        if job.state == "R":
            self.lenders.ended(job.key, self.clock.now)
            self.took[job.job_id] = float(int(job.start_time)), self.clock.now - job.running_since
        else:
            self.lenders.no_lender(job.key)
            self.cancelled[job.job_id] = job, self.clock.now
        self._tell()

    def _requeued(self, job: Task) -> None:
        self.lenders.requeued(job.key, self.clock.now)

    def _returned(self, known: Mapping[int, Task]) -> None:
        """slurmctld is there with another state than before."""
        present = {job.key: job for job in self.slurm.tasks()}
        self.lenders.look()
        for job in known.values():
            now = present.get(job.key)
            if job.state == "R" and (now is None or now.state != "R"):
                self.lenders.unseen(job.key, self._read() - SLACK)
                (self.lenders.ended if now is None else self.lenders.requeued)(job.key, self.clock.now)
        for job in present.values():
            before = known.get(job.job_id)
            if before is None or before.site_factor != job.site_factor:
                self.unlent.add(job.record)
            self.took.pop(job.job_id, None)
            self.cancelled.pop(job.job_id, None)
        if not present:
            # Ids start over; what accounting says is of other jobs.
            self.took, self.cancelled = {}, {}
        self._tell()

    def _tell(self) -> None:
        """What accounting says, unless nobody can ask it."""
        if not self.slurm.faults.dbd_away:
            self.told = Told(dict(self.took).get, frozenset(self.cancelled))

    def _forgotten(self) -> None:
        """The book is lost: who was held or could not run then counts as having lent nothing; all others, all."""
        self.lenders.lost()
        for job in self.slurm.tasks():
            if job.state == "PD" and not self.slurm.eligible(job):
                self.lenders.no_lender(job.key)

    def _may_lend(self, job: Task) -> float:
        """GPU-seconds that the job may have lent in all."""
        forward = max(self.highest - job.ahead, 0.0)
        wait = self.clock.now - job.since + forward
        for gone, at in self.cancelled.values():
            if _request(gone) == _request(job):
                wait += at - gone.since + forward
        return self.share * wait * job.size * job.most_tasks

    def _check_lent(self) -> None:
        """A waiting job has lent its part at most, and what running borrowers use beyond what they were charged for."""
        now = self.clock.now
        for job in self.slurm.tasks():
            if job.state != "PD" or job.array:
                continue
            self.checks += 1
            lent, beyond = self.lenders.lent(job.key, now)
            slack = self.jumped * sum(gpus for _, gpus in self.lenders.of(job.key)) + SLACK * job.size * job.most_tasks
            if lent > (most := self._may_lend(job)) + beyond + slack:
                self.complain(
                    "lends no more",
                    f"job {job.job_id} has lent {lent:.0f} GPU-seconds, {beyond:.0f} beyond what was promised, and may"
                    f" lend {most:.0f}: {list(self.lenders.of(job.key))}",
                )

    def _read(self) -> float:
        """When the reading was of which the file is."""
        return min(self.clock.now, *(self.lenders.time - offset for offset in self.offsets))

    def _check_book(self) -> None:
        """The file never says that a job has lent less than it has."""
        lenders = self.lenders
        if not lenders.look():
            return
        read = self._read()
        for job in self.slurm.tasks():
            if job.state != "PD" or job.array:
                continue
            self.checks += 1
            lent, slack = 0.0, 1.0
            for loan, gpus in lenders.of(job.key):
                if not loan.unseen:
                    used = loan.more * loan.charged(read + SLACK)
                    if loan.ended is not None and abs(loan.ended - read) <= SLACK:
                        # What ends while the queue is being read is read as ended, or not at all: where few are shown
                        # of those that Slurm counts, nothing is concluded until the next reading.
                        used = min(used, loan.seconds)
                    elif loan.began > read - SLACK and loan.ended is None:
                        used = loan.seconds
                    lent += gpus * used
                slack += gpus * loan.more * (SLACK + self.jumped)
            claimed = lenders.claims.get(job.key, 0.0)
            if claimed + slack < lent:
                self.complain(
                    "book covers",
                    f"job {job.job_id} has lent {lent:.0f} GPU-seconds, on disk are {claimed:.0f}:"
                    f" {list(lenders.of(job.key))}",
                )

    def _undisturbed(self, report: CycleReport) -> bool:
        """Whether all that a plan wants was done, and nobody did anything else meanwhile."""
        others = self.slurm.world != self.run_reading.planned or self.slurm.faults.strange_job
        return report.acted and not others and report.count(Outcome.APPLIED) == len(report.results)

    def _check_passed(self, report: CycleReport) -> None:
        """Where all that a plan wants was done and nobody did anything else: nobody passes whom they may not."""
        if self.plan is None or not self._undisturbed(report):
            return
        waiting = [job for job in self.slurm.tasks() if self.slurm.could_start(job)]
        raised = [job for job in waiting if job.job_id in self.plan.raised.offers]
        for one in raised:
            for other in waiting:
                if other in raised or other.user == one.user or not _meet(one, other):
                    continue
                self.checks += 1
                before = (-self.slurm.without_ours(other), *other.turn) < (-self.slurm.without_ours(one), *one.turn)
                # Where no number lies between, a point of age that is cut off later can put it there for a while.
                point = int(self.ageing > 0)
                passes = (point - self.slurm.in_queue(one), *one.turn) < (-self.slurm.in_queue(other), *other.turn)
                if before and passes and (why := self._not_passed(one, other)):
                    text = f"job {one.job_id} with our site factor {one.site_factor} passes job {other.job_id}: {why}"
                    self.complain("lends no more", text)

    def _check_in_force(self, report: CycleReport) -> None:
        """Where all that a plan wants was done and nobody did anything else, squeue shows it."""
        if self.restoring or not self._undisturbed(report):
            return
        self.checks += 1
        undone = set() if self.plan is None or not self.limiter else set(self.plan.managed.applied.undone)
        # For the next cycle: the limiter lets no more be sent.
        waits = undone if report.restored < len(undone) else set()
        for job in self.slurm.out_of_force():
            if job.record in waits:
                continue
            text = f"job {job.job_id} has site factor {job.site_factor}, and squeue shows {self.slurm.in_queue(job)}"
            self.complain("in force", f"{text} instead of {self.slurm.priority(job)} at the end of a cycle")

    @property
    def restoring(self) -> bool:
        """Whether the daemon could not give all jobs back that it wants to."""
        return self.daemon is None or bool(self.daemon.restoring.retries.waiting)

    def _not_passed(self, one: Task, other: Task) -> str:
        """Why the first of these may not pass the second one; "" where it may."""
        if other.user in self.outsiders:
            return "its user has opted out"
        if other.job_id not in self.decided_of or other.explicit is not None:
            return "nobody knows what was decided about it"
        if _decided(other) > _decided(one):
            return "more was decided for it"
        lent, _ = self.lenders.lent(other.key, self.decided_at)
        gpus = sum(gpus * loan.more for loan, gpus in self.lenders.of(other.key))
        slack = (self.jumped + SLACK) * (gpus + self.share * other.size * other.most_tasks)
        if lent > self._may_lend(other) + slack:
            return f"it has lent {lent:.0f} GPU-seconds and may lend {self._may_lend(other):.0f}"
        return ""

    def _deadman(self) -> None:
        self.next_deadman = self.clock.monotonic() + DEADMAN
        self.in_deadman = True
        try:
            self.restore("dead-man", if_stale=STALE)
        finally:
            self.in_deadman = False
            self.next_deadman = self.clock.monotonic() + DEADMAN

    def restore(self, name: str, **arguments: Any) -> None:
        """``rltuned restore`` as a process of its own."""
        with contextlib.suppress(RltunedError, Killed), self.process(self.a_process(name)):
            self._restore(**arguments)
        self._backfill()

    def _backfill(self) -> None:
        act, self.backfill = self.backfill, None
        if act is not None and self.slurm.answers:
            act()

    def _restore(self, **arguments: Any) -> RestoreReport | None:
        return restore_queue(
            self.config,
            clock=self.clock,
            connect_reader=lambda _: self.slurm.open_reader(),
            connect_writer=lambda _: ScontrolWriter(self.slurm.runner()),
            **arguments,
        )

    def start(self, stage: Stage, *, dry_run: bool = False, supervised: bool = True) -> None:
        """``rltuned run``, as `service.serve` does it."""
        assert self.daemon is None
        self.supervised, self.dry_run = supervised, dry_run
        self.config = self.configured(stage)
        self.restart_at = self.clock.monotonic()
        self._restart()

    def _restart(self) -> None:
        self.restart_at = float("inf")
        config, reading = self.config, self.a_process("daemon")
        self.offsets.add(reading.offset)
        try:
            with self.process(reading):
                self.held = ExitStack()  # what a process has open ends with it, not with a block of ours
                journal, owns = open_journal(config, self.clock, self.held, dry_run=self.dry_run)
                self.journal, self.run_reading = journal, reading
                parts = Parts(
                    runtime=Runtime(
                        config,
                        self.clock,
                        Silent(lambda text: self.complain("no defect", text), self._forgotten),
                        Metrics(),
                    ),
                    policy=Loaded.only(self.policy),
                    told=lambda: self.told,
                    reader=self.slurm.open_reader(),
                    writer=None if self.dry_run else lambda: ScontrolWriter(self.slurm.runner()),
                    journal=journal,
                    owns=owns,
                    rng=self.rng,
                    planner=self._planner,
                )
                self.daemon = Daemon(parts)
        except (RltunedError, Killed):
            self.disk.ended(reading.opened)
            self._died(killed=True, stop_post=False)
            return
        self.next_tick = self.clock.monotonic()

    def _died(self, *, killed: bool, stop_post: bool = True) -> None:
        """The daemon is gone: the kernel closes what it had open, systemd does what the unit says."""
        self.disk.ended(self.run_reading.opened)
        self.ended_at = self.clock.monotonic()
        self.daemon = self.journal = None
        self.unlocked = False
        self.next_tick = float("inf")
        if not self.orphaned or self.supervised:
            self.slurm.orphan_lines = []  # the unit kills the whole control group
        if self.supervised and killed:
            if stop_post:
                self.restore("stop-post")
            self.restart_at = self.clock.monotonic() + 5.0

    def stop(self) -> None:
        self.restart_at = float("inf")
        daemon = self.daemon
        if daemon is None:
            return
        with contextlib.suppress(Killed), self.process(self.run_reading):
            daemon.request_stop()
            daemon.stop()
        self._died(killed=False)
        if self.supervised:
            self.restore("stop-post")

    def pause(self, seconds: float | None) -> None:
        """``rltuned pause``."""
        with contextlib.suppress(RltunedError):
            pause.ask(self.config.state.directory, Moment.of(self.clock), seconds)

    def resume(self) -> None:
        """``rltuned resume``."""
        pause.end(self.config.state.directory)

    def reload(self, stage: Stage) -> None:
        if self.daemon is not None:
            self.config = self.configured(stage)
            with self.process(self.run_reading):
                self.daemon.reload(lambda: self.config, lambda _: Loaded.only(self.policy))

    # --- invariants: noted where they happen

    def complain(self, name: str, text: str) -> None:
        assert name in NAMES, name
        if name not in self.ignored:
            self.violations.append((name, text))

    def _acting(self) -> Reading:
        return self.stack[-1]

    def _update(self, job: Task, act: Callable[[], None]) -> None:
        self.checks += 2
        if self._acting().name == "nobody":
            self.late.add(job.job_id)
        daemon = self.daemon
        stage = Stage.SHADOW if daemon is None else daemon.stage
        before, marks = self._carried(job), dict(job.marks)
        act()
        if self._acting().name == "daemon" and (stage not in WRITING or self.dry_run):
            added = {(name, value) for name, value in self._carried(job).items() if before.get(name) != value}
            if added:
                self.complain("dry run", f"job {job.job_id} got {added} in stage {stage} (had {before}, {marks})")
        if job.site_factor < 0 and job.marks.get(Field.SITE_FACTOR) == US:
            self.complain("raise only", f"job {job.job_id} has our site factor {job.site_factor}")
        self.unlent.discard(job.record)

    @staticmethod
    def _carried(job: Task) -> dict[Field, object]:
        """Values of ours on a job."""
        ours = job.marks.get(Field.SITE_FACTOR) == US
        return {Field.SITE_FACTOR: job.site_factor} if ours else {}

    def _before_batch(self, lines: Sequence[str]) -> None:
        """Journal first: what is about to be written can be read by a fresh process."""
        self.checks += 1
        journal: Journal | None = None
        for line in lines:
            if not line.startswith("update"):
                continue
            _, target, *settings = line.split(" ")
            job_id = int(target.removeprefix("JobId="))
            job = self.slurm.jobs.get(job_id)
            for setting in settings:
                name, _, text = setting.partition("=")
                of = Field(name)
                if of is Field.OVERSUBSCRIBE or text == "0" or not isinstance(job, Task):
                    continue
                self.lenders.look()
                if job_id not in self.lenders.promises:
                    self.complain("book first", f"{line} is sent, and the book on disk names nobody who lends")
                journal = journal or self.on_disk()
                entry = journal.entries.get(job_id)
                if entry is None or int(text) not in entry.ours(of):
                    self.complain("journal first", f"{line} is sent, and the journal on disk says {entry}")

    def on_disk(self) -> Journal:
        """The journal as a fresh process reads it."""
        state = self.config.state
        return Journal.read(state.directory, state.mirror)

    def _foreign(self) -> set[int]:
        if self.journal is None:
            return set()
        return {job for job, entry in self.journal.entries.items() if entry.applied.foreign}

    def _check_foreign(self, before: set[int], world: int) -> None:
        """Nobody is taken for a stranger who is none: our own restore beside a living daemon, say.

        A single job that an older state of slurmctld shows without our value cannot be told from one that a person
        changed.
        """
        self.checks += 1
        # Just after a start sprio shows nothing, so that it takes two cycles to see what slurmctld came back with.
        since, self.looked_at = self.looked_at[0], (self.looked_at[1], self.slurm.op)
        if self.slurm.fell_back >= since or self.unlocked:
            return
        for job_id in self._foreign() - before:
            job = self.slurm.jobs.get(job_id)
            if not isinstance(job, Task) or job.asked or job.touched:
                continue
            if job.state != "PD":
                continue  # it may have started between squeue and sprio, and looked like a job with a priority
            if job.hold or job.held_at or job_id in self.named | self.late:
                continue  # `named`: the next job with the id, once slurmctld has lost its state
            self.complain("foreign only by others", f"job {job_id} was given up, and nobody but rltuned changed it")

    # --- invariants: looked at after each rule

    def look_around(self) -> None:
        """All invariants that are about states."""
        self._look()
        self._check_fail_open()
        self._check_covered()
        self._check_lent()
        self._check_book()
        self._check_bounded()

    def ours(self) -> list[tuple[Task, Field]]:
        """What of ours is on pending jobs."""
        return [(job, of) for job in self.slurm.tasks() if job.state == "PD" for of in self._carried(job)]

    def overdue(self) -> list[str]:
        """What should have been given back by now."""
        now = self.clock.monotonic()
        active = self.daemon is not None and now - self.planned_at <= BOUND
        found = []
        for job, of in self.ours():
            never = float("-inf")
            since = max(self.last_bad, self.wanted.get(job.job_id, never), self.unread.get(job.job_id, never))
            if job.touched:
                since = max(since, self.ended_at)
                if active:
                    # A living daemon keeps its hands off; what it gives back of such jobs is the way back's business.
                    continue
            elif job.hold:
                since = max(since, job.held_since)
            if now - since > BOUND and not self._may_be_another(job):  # as in `leave`
                found.append(self._describe(job, of, now - since))
        return found

    def _may_be_another(self, job: Task) -> bool:
        """Whether a job that sprio leaves out cannot be told from another one with the id of the one in the journal.

        It has another submit time (it was requeued), and no job of the journal has kept its own: slurmctld may have
        lost its state, and ids may have started over.
        """
        if not job.hold and job.explicit is None:
            return False  # the journal need not be read for a job that sprio lists
        entries = self.on_disk().entries
        if job.job_id not in entries or entries[job.job_id].submit_time == job.submit_time:
            return False
        return not any(
            other.job_id in entries and entries[other.job_id].submit_time == other.submit_time
            for other in self.slurm.tasks()
        )

    def _describe(self, job: Task, of: Field, age: float) -> str:
        held = f", held ({job.hold})" if job.hold else ""
        who = "no daemon" if self.daemon is None else f"daemon in stage {self.daemon.stage}"
        entry = self.on_disk().entries.get(job.job_id)
        return (
            f"job {job.job_id}{held} has carried our {of.value}={self._carried(job)[of]} for {age:.0f} s that no"
            f" plan wants and nothing hinders to take back; {who}; the journal says {entry}"
        )

    def _check_fail_open(self) -> None:
        self.checks += 1
        for text in self.overdue():
            self.complain("fail open", text)
        now = self.clock.monotonic()
        for job in self.slurm.out_of_force():
            age = now - max(self.last_bad, job.put_back_at, self.unread.get(job.job_id, float("-inf")))
            if age > BOUND and not self.spoiled:
                self.complain("in force", f"squeue shows {self.slurm.in_queue(job)}: {self._stands(job, age)}")

    def _stands(self, job: Task, age: float) -> str:
        entry = self.on_disk().entries.get(job.job_id)
        return (
            f"job {job.job_id} with the site factor {job.site_factor} should stand at {self.slurm.priority(job)} for"
            f" {age:.0f} s; the journal says {entry}"
        )

    def _check_covered(self) -> None:
        if self.spoiled or not any(True for _ in self.ours()):
            return
        self.checks += 1
        try:
            entries = self.on_disk().entries
        except RltunedError as error:
            self.complain("journal covers", str(error))
            return
        for job, of in self.ours():
            entry = entries.get(job.job_id)
            value = self._carried(job)[of]
            known = (*entry.ours(of), *entry.previous) if entry is not None else ()
            if value not in known:
                self.complain("journal covers", f"job {job.job_id} carries our {of.value}={value}; on disk is {entry}")

    def _check_bounded(self) -> None:
        self.checks += 1
        if threading.active_count() > self.threads:
            self.complain("bounded", f"{threading.active_count()} threads, {self.threads} at the start")
        open_now = descriptors()
        if open_now > self.descriptors + 3:  # two copies of the journal, the lock
            self.complain("bounded", f"{open_now} descriptors, {self.descriptors} at the start")
        for copy in ("state", "mirror"):
            with contextlib.suppress(FileNotFoundError):
                size = (self.root / copy / FILE_NAME).stat().st_size
                if size > 4_000_000:
                    self.complain("bounded", f"the journal in {copy} has {size} bytes")

    # --- the end

    def all_faults_end(self) -> None:
        slurm = self.slurm
        self.kill, self.later, self.anchored = None, [], []
        slurm.faults = Faults()
        slurm.privilege = Privilege.OPERATOR
        slurm.down.clear()
        self.disk.full.clear()
        self.disk.readonly.clear()
        if slurm.frozen:
            slurm.thaw()
        if not slurm.up:
            slurm.restart()

    def settle(self) -> None:
        """Nobody does anything any more; the daemon or the dead-man timer get their bounded time."""
        self.all_faults_end()
        began = self.clock.monotonic()
        while self.clock.monotonic() - began <= BOUND + INTERVAL:
            self.pass_time(INTERVAL)
            if not self._left_with_a_daemon():
                break
        for text in self._left_with_a_daemon():
            self.complain("fail open", f"{BOUND:.0f} s after the last fault: {text}")

    def _left_with_a_daemon(self) -> list[str]:
        now = self.clock.monotonic()
        acting = self.daemon is not None and now - self.planned_at <= 2 * INTERVAL
        left = [self._stands(job, now - job.put_back_at) for job in self.slurm.out_of_force() if not self.spoiled]
        for job, of in self.ours():
            age = now - self.wanted.get(job.job_id, float("-inf"))
            if self._may_be_another(job):
                continue  # As in `leave`.
            if acting and (age <= 2 * INTERVAL or job.touched):
                wanted, carried = self.raised.get(job.job_id), self._carried(job)[of]
                if carried != wanted and not job.touched:
                    left.append(f"{self._describe(job, of, age)}; the last plan wants {wanted}")
                continue
            left.append(self._describe(job, of, age))
        return left

    def leave(self) -> None:
        """The daemon is stopped for good: after the bound nothing of ours is on any job, held and foreign ones
        included."""
        self.stop()
        began = self.clock.monotonic()
        while self.clock.monotonic() - began <= BOUND:
            if not self.ours() and not self.slurm.out_of_force():
                break
            self.pass_time(INTERVAL)
        now = self.clock.monotonic()
        for job in [] if self.spoiled else self.slurm.out_of_force():
            self.complain("in force", f"without a daemon, {self._stands(job, now - began)}")
        for job, of in self.ours():
            if self._may_be_another(job):
                continue  # Restore says so; once the job is released, it is known and given back.
            self.complain("fail open", f"without a daemon: {self._describe(job, of, now - began)}")
        present = set(self.slurm.jobs)
        strays = set(self.on_disk().entries) - present
        if strays and not self.spoiled:
            self.pass_time(BOUND)
            strays = set(self.on_disk().entries) - present
            if strays:
                self.complain("bounded", f"the journal still knows {sorted(strays)}, which left the queue long ago")

    # --- further things that may happen

    def set_clock(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.clock.offset += seconds
        self.jumped += abs(seconds)
        self.highest = max(self.highest, self.clock.offset)

    def damage_loans(self, how: str, at: float) -> None:
        """The file of loans is damaged, in a way that shows."""
        self.lenders.look()
        path = self.lenders.path
        if path.exists() and path.parent not in self.disk.readonly:
            if how == "gone":
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[: int(at * path.stat().st_size)])

    def restore_by_name(self, job_id: int) -> None:
        """``rltuned restore JOBID``: hands off that job from now on."""
        self.slurm.task(job_id).asked = True
        self.named.add(job_id)
        done = []
        with contextlib.suppress(RltunedError, Killed), self.process(self.a_process("restore")):
            report = self._restore(job_ids=(job_id,))
            if report is not None and report.complete and not report.journal_trouble:
                done.append(job_id)
        if done and job_id in self.slurm.jobs:
            self.slurm.task(job_id).hands_off = True

    def stop_for(self, seconds: float) -> None:
        """The daemon's process is stopped for so long, wherever it is; then it goes on, or the watchdog has killed
        it."""
        if self.daemon is None:
            return
        killed = self.supervised and seconds > WATCHDOG
        if killed:
            seconds = WATCHDOG
        if not self.in_tick:
            self.next_tick = max(self.next_tick, self.clock.monotonic() + seconds)
            if killed:
                self._died(killed=True)
            return
        if "update" in self.doing:
            return  # Nobody can do anything about what is in Slurm's hands already.
        self.pass_time(seconds)
        if killed:
            self.kill = Order("daemon", 0)

    def remove_lock(self) -> None:
        """Somebody removes the lock file: nothing keeps a second process from acting, and the daemon gives up."""
        self.unlocked = True
        (self.root / "state" / LOCK_NAME).unlink(missing_ok=True)

    def end_faults(self) -> None:
        """What the rule `fault` did is over."""
        self.slurm.faults = Faults()

    def plan_kill(self, name: str, steps: int, *, supervised: bool) -> None:
        self.supervised = supervised
        self.kill = Order(name, steps)

    def damage(self, copy: str, how: str, at: float) -> None:
        """One copy of the journal is damaged, if the other one alone knows all."""
        other = self.root / ("mirror" if copy == "state" else "state")
        path = self.root / copy / FILE_NAME
        try:
            entries = Journal.read(other).entries
            known = all(
                job.job_id in entries and self._carried(job)[of] in entries[job.job_id].ours(of)
                for job, of in self.ours()
            )
            whole = set(self.on_disk().entries) == set(entries)
        except RltunedError:
            return
        if not (known and whole and path.exists() and (other / FILE_NAME).exists()):
            return
        if path.parent in self.disk.readonly or other in self.disk.full | self.disk.readonly:
            return
        if how == "gone":
            # /run may be emptied; in the state directory the lock stays, whoever removes that removes the house.
            shutil.rmtree(path.parent) if copy == "mirror" else path.unlink()
            return
        data = bytearray(path.read_bytes())
        place = int(at * len(data))
        if how == "torn":
            data = data[:place]
        elif data:
            data[min(place, len(data) - 1)] ^= 0x15
        path.write_bytes(bytes(data))

    def close(self) -> None:
        if self.daemon is not None:
            self.supervised = False
            self._died(killed=False)
        self.disk.remove()


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _request(job: Task) -> tuple[object, ...]:
    """What a job that was cancelled has in common with the one that has its wait: who changes the limit has waited."""
    return job.user, job.gpus, job.partition


def _decided(job: Task) -> int:
    """Priority that the site, its people and its user have decided about."""
    theirs = job.site_factor if job.marks.get(Field.SITE_FACTOR) == "admin" else 0
    return theirs - job.nice + int(job.partition == "left")


def _meet(one: Task, other: Task) -> bool:
    """Whether two jobs stand in one queue, and share nodes."""
    parts = [job.partition.split(",") for job in (one, other)]
    tiers = [{TIERS.get(part, 1) for part in names} for names in parts]
    nodes = [
        {node for part in names for node in PARTITIONS[part]} - {*job.exc_nodes.split(",")}
        for names, job in zip(parts, (one, other), strict=True)
    ]
    return bool(tiers[0] & tiers[1] and nodes[0] & nodes[1])

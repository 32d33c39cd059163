"""The model of Slurm behind its own commands: what `squeue`, `scontrol`, `sprio`, `sdiag` and `sacctmgr` print and
take.

`Cluster` is `ModelSlurm` with what a whole daemon meets over hours: several partitions and QOS, arrays, requeue-held
and special-exit jobs, limits, an RPC limiter, calculations of priorities, saved states, answers that are cut, garbled
or strange. `Commands` is a `Runner` on it, so that the project's own reader and writer are under test, too. It also
knows *who* set each value (`Task.marks`): that is what the invariants of `machine_world` are about.

Semantics as measured (SLURM.md §3 and §9; the texts of tests/recorded/*/failures.json).
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unit.daemon.model_slurm import NODES, Job, ModelSlurm

from rltuned.cluster.changes import Field, Outcome
from rltuned.cluster.tables import Snapshot
from rltuned.errors import SlurmUnavailableError
from rltuned.slurm import controller
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import REGISTRY, SEPARATOR
from rltuned.slurm.facts import facts_from
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.process import Answer, Runner

UID = 64_000
"""The daemon's user: not root, so that privileges and the limiter count."""
US = "rltuned"
PARTITIONS = {"gpu": NODES, "left": NODES[:2], "right": NODES[2:], "urgent": NODES}
"""Nodes by partition."""
TIERS = {"urgent": 2}
CALCULATION = 30.0
"""PriorityCalcPeriod, seconds."""
SAVE = 5.0
"""slurmctld saves job state at most so many seconds after a change."""
RPC_SECONDS = 0.002
FRESH, FIRST = 4.0, 60.0
"""How old a reading may be, in seconds, when it has been acted on already, and when it has not."""
PRIORITY = "Priority"
"""The field by which an admin sets an explicit priority."""
LIMITER = (12, 0.5)
"""Bucket and refill per second of Slurm's RPC limiter: small, so that a dozen jobs are as paced as hundreds are."""

REQUEUE_DELAY = 120
"""Seconds for which a job that was requeued is not eligible (measured: reason BeginTime, not listed by sprio)."""

_COMPACT = {"special": "SE"}
"""A job that was requeued and held shows as any pending one (measured)."""


@dataclass
class Task(Job):
    """A job, and who did what to it."""

    marks: dict[str, str] = field(default_factory=dict)
    """Who set the value that the field has, where somebody did; Slurm's or the user's own at submission: absent."""
    touched: dict[str, int] = field(default_factory=dict)
    """Operation number of the last change by a person."""
    held_at: int = 0
    held_since: float = 0.0
    """By the monotonic clock."""
    limited: bool = False
    """A limit of its QOS keeps it from starting."""
    calculated: bool = False
    """Whether multifactor has calculated it at least once since it could run."""
    tasks: str = ""
    """Pending tasks of an array."""
    begin: float = 0.0
    """Not eligible before."""
    shown: int = 0
    """Operation number of the last cycle of the daemon's, carried to its end, in which sprio showed its site factor."""
    asked: bool = False
    """An admin has asked for it back by name."""
    hands_off: bool = False
    """And was told that it was done."""

    @property
    def turn(self) -> tuple[int, int]:
        """Among jobs of one priority slurmctld takes the earlier submission, then the lower id."""
        return self.submit_time, self.job_id

    @property
    def compact(self) -> str:
        return _COMPACT.get(self.hold, self.state) if self.state == "PD" else self.state


@dataclass
class Reading:
    """What one process of ours knows: when its last reading of the queue began, and its batches since."""

    name: str
    offset: float = 0.0
    """What the wall clock was ahead by when the process began."""
    began: int = 0
    at: float = 0.0
    """Monotonic time of it."""
    world: int = 0
    planned: int = 0
    """`Cluster.world` when the snapshot that the plan is made of began."""
    batches: list[str] = field(default_factory=list)
    """What was sent since: "release" or "update"; one of each, the second at once, is one batch."""
    writes: int = 0
    listed: frozenset[int] = frozenset()
    """Jobs whose site factor it showed."""
    opened: set[int] = field(default_factory=set)
    """Its descriptors."""


@dataclass
class Faults:
    """What is wrong at present."""

    refused: bool = False
    """Nothing listens (slurmctld is stopped, or the network refuses)."""
    cut: bool = False
    """Packets vanish: commands hang until they are killed."""
    lost_answers: bool = False
    """Updates are carried out, their answers never come."""
    garbled: frozenset[str] = frozenset()
    """Commands whose answers make no sense."""
    truncated: frozenset[str] = frozenset()
    strange_job: int = 0
    """The job whose row holds what nobody can understand."""
    unreadable: bool = False
    """Not even the few columns that are re-read around a write."""
    strange_node: bool = False
    overloaded: bool = False
    slow: float = 0.0
    """Seconds that each command takes."""
    dbd_away: bool = False

    @property
    def readable(self) -> bool:
        """Whether `status` can be answered."""
        needed = {"status", "status-exclusive", "site-factors", "version"}
        return not (self.refused or self.cut or (self.garbled | self.truncated) & needed or self.slow >= 20.0)


@dataclass
class Cluster(ModelSlurm):
    """See the module. `step` is called at every single operation of ours and may raise `Killed`."""

    step: Callable[[str], None] = lambda _: None
    reading: Callable[[], Reading] = lambda: Reading("?")
    complain: Callable[[str, str], None] = lambda _name, _text: None
    op: int = 0
    """Number of things that have happened: commands, updates, what people and Slurm did."""
    world: int = 0
    """Number of things that others did."""
    saved: int = -1
    """`op` when slurmctld last saved its state."""
    fell_back: int = -1
    """`op` when it last came back with an older one."""
    faults: Faults = field(default_factory=Faults)
    down: set[str] = field(default_factory=set)
    """Partitions that are down."""
    limiter: bool = False
    orphan_lines: list[str] = field(default_factory=list)
    """Lines that a scontrol still has in its pipe although the daemon that started it was killed."""
    on_update: Callable[[Task, str, bool, Callable[[], None]], None] | None = None
    """Wraps each single update of ours: job, what, whether it gives back, the act itself."""
    on_start: Callable[[Task], None] = lambda _: None
    _tokens: float = float(LIMITER[0])
    _tokens_at: float = 0.0

    # --- people and Slurm itself. Whatever they do counts as one operation.

    def happened(self) -> int:
        self.op += 1
        self.world += 1
        return self.op

    def task(self, job_id: int) -> Task:
        job = self.jobs[job_id]
        assert isinstance(job, Task)
        return job

    def tasks(self) -> list[Task]:
        return [job for job in self.jobs.values() if isinstance(job, Task)]

    @property
    def answers(self) -> bool:
        """Whether people can do anything."""
        return self.up and not self.frozen

    def submit(self, multifactor: int, **values: object) -> Task:
        self.happened()
        job = Task(self.next_id, int(self.clock.time()), multifactor, **values)  # type: ignore[arg-type]
        self.jobs[job.job_id] = job
        self.next_id += 1
        return job

    def person_holds(self, job_id: int, who: str) -> None:
        job = self.task(job_id)
        if job.state == "PD" and not job.hold:
            job.held_at, job.held_since = self.happened(), self.clock.monotonic()
            job.hold, job.explicit = who, None
            job.marks.pop(PRIORITY, None)

    def person_releases(self, job_id: int, *, admin: bool) -> None:
        job = self.task(job_id)
        if job.hold and job.hold != "BadConstraints" and (admin or job.hold == "user"):
            self.happened()
            job.hold, job.explicit = "", None
        elif not job.hold and admin and job.state == "PD" and job.explicit is not None:
            job.touched[PRIORITY] = self.happened()
            self._end_explicit(job)

    def _end_explicit(self, job: Task) -> None:
        job.explicit = None
        job.marks.pop(PRIORITY, None)

    def person_sets_priority(self, job_id: int, value: int) -> None:
        job = self.task(job_id)
        if not job.hold:
            job.touched[PRIORITY] = self.happened()
            job.marks[PRIORITY] = "admin"
            job.explicit, job.nice = value, 0

    def person_sets_factor(self, job_id: int, value: int) -> None:
        job = self.task(job_id)
        job.touched[Field.SITE_FACTOR] = self.happened()
        if job.site_factor != value or job.marks.get(Field.SITE_FACTOR) != US:
            job.marks[Field.SITE_FACTOR] = "admin"
        job.site_factor = value

    def person_sets_nice(self, job_id: int, value: int) -> None:
        job = self.task(job_id)
        if job.explicit is None:
            self.happened()
            job.nice = value

    def person_tops(self, job_id: int) -> None:
        """``scontrol top`` by an operator: nice brings the job before the others of the same kind, which pay for it."""
        job = self.task(job_id)
        alike = [
            other
            for other in self.tasks()
            if other.state == "PD" and not other.hold and other.explicit is None and _kind(other) == _kind(job)
        ]
        if job in alike and len(alike) > 1:
            self.happened()
            gap = max(self.priority(other) for other in alike) - self.priority(job)
            job.nice -= gap
            for other in alike:
                other.nice += gap // (len(alike) - 1) if other is not job else 0

    def person_changes_request(self, job_id: int, what: str, value: object) -> None:
        job = self.task(job_id)
        if job.state == "PD":
            self.happened()
            setattr(job, what, value)

    def person_excludes(self, job_id: int, nodes: str) -> None:
        job = self.task(job_id)
        if job.state == "PD":
            self.happened()
            job.exc_nodes = nodes
            if job.hold == "BadConstraints":
                job.hold = ""
                self._end_explicit(job)

    def start(self, job_id: int) -> None:
        job = self.task(job_id)
        if job.state == "PD" and self.eligible(job) and not job.limited:
            self.happened()
            self.on_start(job)
            job.state = "R"

    def requeue(self, job_id: int) -> None:
        job = self.task(job_id)
        if job.state == "R":
            self.happened()
            job.state, job.submit_time, job.calculated = "PD", int(self.clock.time()) + 1, False
            job.begin = self.clock.now + REQUEUE_DELAY

    def requeue_held(self, job_id: int, how: str) -> None:
        """``scontrol requeuehold`` ("requeue") or ``State=SpecialExit`` ("special")."""
        job = self.task(job_id)
        was = job.state
        if was == "R":
            self.requeue(job_id)
            job.held_at, job.held_since = self.happened(), self.clock.monotonic()
            job.hold = how
            self._end_explicit(job)

    def leave(self, job_id: int) -> None:
        self.happened()
        del self.jobs[job_id]

    # --- slurmctld's own clockwork

    def calculate(self) -> None:
        self.calculated = True
        for job in self.tasks():
            if job.state == "PD" and self.eligible(job):
                job.calculated = True

    def save_state(self) -> None:
        self._saved, self.saved = self._copied(self.jobs), self.op

    def crash_and_start(self) -> None:
        known, self.jobs = self.jobs, self._copied(self._saved)
        self.fell_back = self.op
        for job in self.tasks():
            twin = known.get(job.job_id)
            if isinstance(twin, Task) and twin.submit_time == job.submit_time:
                # What is known outside of slurmctld goes on.
                job.asked, job.hands_off, job.shown = twin.asked, twin.hands_off, twin.shown
        self.restart()

    @staticmethod
    def _copied(jobs: Mapping[int, Job]) -> dict[int, Job]:
        copied: dict[int, Job] = {}
        for job_id, job in jobs.items():
            assert isinstance(job, Task)
            copied[job_id] = twin = copy.copy(job)
            twin.marks, twin.touched = dict(job.marks), dict(job.touched)
        return copied

    def lose_state(self) -> None:
        self._saved = {}
        super().lose_state()

    def restart(self) -> None:
        super().restart()
        self.happened()
        self.frozen = False
        self._backlog = []
        for job in self.tasks():
            job.calculated = False

    def listed(self, job: Job) -> bool:
        return super().listed(job) and getattr(job, "calculated", True)

    def eligible(self, job: Task) -> bool:
        """Whether neither a hold, nor another job, nor its begin time keeps it from waiting for its turn."""
        return not job.hold and not job.dependent and job.begin <= self.clock.now

    def reason(self, job: Job) -> str:
        if job.hold in {"requeue", "special"}:
            return "job_requeued_in_held_state" if job.hold == "requeue" else "JobHeldUser"
        if isinstance(job, Task) and job.state == "PD" and not job.hold and not job.dependent:
            if not self.eligible(job):
                return "BeginTime"
            if job.limited:
                return "QOSMaxJobsPerUserLimit"
            if set(job.partition.split(",")) <= self.down:
                return "PartitionDown"
        return super().reason(job)

    def could_start(self, job: Task) -> bool:
        """Whether only room and its turn keep it from starting."""
        free = self.eligible(job) and not job.limited
        return job.state == "PD" and free and not set(job.partition.split(",")) <= self.down

    # --- our updates

    def carry_out(self, line: str, reading: Reading | None) -> str:
        """One line of scontrol's standard input. What it says on standard error, "" when it takes it.

        `reading` is None for a line that comes long after its process died: it knows nothing of what came in between.
        """
        self.op += 1
        word, _, rest = line.partition(" ")
        assert word == "update", f"rltuned never holds, releases, cancels or requeues: {line}"
        target, *settings = rest.split(" ")
        job_id = int(target.removeprefix("JobId="))
        job = self.jobs.get(job_id)
        if job is None:
            return f"Invalid job id specified for job {job_id}\n"
        assert isinstance(job, Task)
        if self.privilege is Privilege.NONE:
            return f"Access/permission denied for job {job_id}\n"
        for setting in settings:
            name, _, text = setting.partition("=")
            of = Field(name)
            value: int | str = text if of is Field.OVERSUBSCRIBE else int(text)
            outcome: list[tuple[Outcome | None, str]] = []
            self._judge_ours(job, of, value, reading)
            back = value == 0

            def act(of: Field = of, value: int | str = value, out: list[Any] = outcome) -> None:
                out.append(self._set_ours(job, of, value))

            self._act(job, f"{of.value}={value}", back, act)
            if outcome and outcome[0][1]:
                return outcome[0][1] + "\n"
            self.log.append((job_id, of.value, value))
        return ""

    def _act(self, job: Task, what: str, back: bool, act: Callable[[], None]) -> None:
        if self.on_update is None:
            act()
        else:
            self.on_update(job, what, back, act)

    def _set_ours(self, job: Task, of: Field, value: int | str) -> tuple[Outcome | None, str]:
        answer = super()._set(job, of, value)
        if not answer[1] and of is Field.SITE_FACTOR:
            self._mark(job, of, ours=value != 0)
        return answer

    @staticmethod
    def _mark(job: Task, of: Field, *, ours: bool) -> None:
        job.marks.pop(of, None)
        if ours:
            job.marks[of] = US

    @staticmethod
    def _who(reading: Reading | None) -> str:
        return "a scontrol of a dead daemon" if reading is None else reading.name

    @staticmethod
    def _was_seen(when: int, reading: Reading | None) -> bool:
        """Whether what happened at `when` was there when the last reading began."""
        return reading is not None and when < reading.began

    @staticmethod
    def _was_shown(job: Task, reading: Reading | None) -> bool:
        """Whether sprio has shown what an admin set: it lists no job that is held, or has an explicit priority."""
        return (reading is not None and job.job_id in reading.listed) or job.touched[Field.SITE_FACTOR] < job.shown

    def _judge_ours(self, job: Task, of: Field, value: int | str, reading: Reading | None) -> None:
        """Hands off: nothing that a person set, and that could be seen, is overwritten."""
        who = f"job {job.job_id}: {of.value}={value} written by {self._who(reading)}"
        theirs = of is Field.SITE_FACTOR and job.marks.get(of) == "admin"
        if theirs and self._was_seen(job.touched[of], reading) and self._was_shown(job, reading):
            self.complain("hands off", f"{who} over an admin's {job.site_factor}")
        if of is Field.SITE_FACTOR and value == 0:
            return
        if job.hands_off:
            self.complain("hands off", f"{who}, although an admin asked for it back by name")
        if job.hold and self._was_seen(job.held_at, reading) and job.hold != "BadConstraints":
            self.complain("hands off", f"{who} on a job that is held ({job.hold})")
        others = job.marks.get(PRIORITY) == "admin" and of is Field.SITE_FACTOR
        if others and self._was_seen(job.touched[PRIORITY], reading):
            self.complain("hands off", f"{who} under an admin's Priority={job.explicit}")

    def take_token(self) -> None:
        """Slurm's RPC limiter: the client sleeps without a word while the bucket is empty."""
        if not self.limiter or self.privilege is Privilege.SLURM_USER:
            return
        bucket, rate = LIMITER
        now = self.clock.monotonic()
        self._tokens = min(float(bucket), self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        if self._tokens < 1.0:
            self.clock.sleep((1.0 - self._tokens) / rate)
            self._tokens, self._tokens_at = 1.0, self.clock.monotonic()
        self._tokens -= 1.0

    # --- as the commands connect

    def open_reader(self) -> "Reader":
        return Reader(Commands(self))

    def runner(self) -> "Commands":
        return Commands(self)


class Reader(CliReader):
    """The project's reader, for a user that is not root whoever runs the tests."""

    def facts(self) -> ClusterFacts:
        return facts_from(controller.config(self._runner.ask("config")), self._runner, UID)

    def snapshot(self, now: float) -> Snapshot:
        slurm = self._runner.slurm  # type: ignore[attr-defined]
        slurm.reading().planned = slurm.world
        return super().snapshot(now)


class Commands(Runner):
    """A `Runner` whose commands ask the model."""

    def __init__(self, slurm: Cluster) -> None:
        self.slurm = slurm

    def run(self, name: str, argument: str | None = None, stdin: str = "", second: str | None = None) -> Answer:
        slurm, command = self.slurm, REGISTRY[name]
        slurm.op += 1
        slurm.step(f"command {name}")
        reading = slurm.reading()
        began = slurm.clock.monotonic()
        if name in {"jobs", "jobs-exclusive", "status", "status-exclusive"}:
            reading.began, reading.world, reading.batches, reading.at = slurm.op, slurm.world, [], began
        slurm.clock.sleep(RPC_SECONDS + slurm.faults.slow)
        if slurm.faults.slow >= 20.0 and name != "version":
            raise SlurmUnavailableError(f"{command.program} ({name}) gave no complete answer in time; killed")
        out, err, code = self._answer(name, stdin, reading, began)
        slurm.step(f"answer {name}")
        return Answer(command, out, err, code, slurm.clock.monotonic() - began)

    def _answer(self, name: str, stdin: str, reading: Reading, began: float) -> tuple[str, str, int]:
        slurm, faults = self.slurm, self.slurm.faults
        if name == "version":
            year, month = slurm.release
            return f"slurm-wlm {year}.{month:02}.5\n", "", 0
        if name == "privilege":
            return self._privilege()
        if faults.cut:
            if name == "ping":
                slurm.clock.sleep(5.0)
                return "Slurmctld(primary) at ctl is DOWN\n", "", 1
            slurm.clock.sleep(20.0)
            raise SlurmUnavailableError(f"{name} gave no complete answer within 20 s; killed")
        if name == "update":
            return self._update(stdin, reading, began)
        if not slurm.answers or faults.refused:
            if name == "ping":
                return "Slurmctld(primary) at ctl is DOWN\n", "", 1
            slurm.clock.sleep(10.0 if slurm.frozen else 9.0)
            why = (
                "Socket timed out on send/recv operation"
                if slurm.frozen
                else "Unable to contact slurm controller (connect failure)"
            )
            return "", f"slurm_load_jobs error: {why}\n", 1
        slurm.take_token()
        out, err, code = {
            "ping": lambda: ("Slurmctld(primary) at ctl is UP\n", "", 0),
            "config": self._config,
            "federation": lambda: ("", "", 0),  # in none
            "jobs": lambda: self._squeue(name),
            "jobs-exclusive": lambda: self._squeue(name),
            "status": lambda: self._squeue(name),
            "status-exclusive": lambda: self._squeue(name),
            "excluded": lambda: self._squeue(name),
            "site-factors": self._sprio,
            "nodes": self._nodes,
            "partitions": self._partitions,
            "diagnostics": self._sdiag,
        }[name]()
        if name in faults.garbled:
            out = "".join("?" if character.isalnum() else character for character in out) or "?\n"
        if name in faults.truncated:
            # Within a row: a command that fails at the end of one says so by its exit status.
            out = out[: len(out) // 2].rstrip("\n")
        return out, err, code

    def _privilege(self) -> tuple[str, str, int]:
        if self.slurm.faults.dbd_away:
            self.slurm.clock.sleep(20.0)
            raise SlurmUnavailableError("sacctmgr (privilege) gave no complete answer within 20 s; killed")
        levels = {Privilege.OPERATOR: "Operator", Privilege.ADMIN: "Administrator"}
        level = levels.get(self.slurm.privilege, "None")
        return f"{UID}|{level}\n", "", 0

    def _config(self) -> tuple[str, str, int]:
        year, month = self.slurm.release
        limiter = "rl_enable,rl_bucket_size=12,rl_refill_rate=1,rl_refill_period=2" if self.slurm.limiter else "(null)"
        lines = [
            "Configuration data as of 1000000",
            "AccountingStorageTRES   = cpu,mem,energy,node,billing,gres/gpu",
            "AccountingStorageType   = accounting_storage/slurmdbd",
            "ClusterName             = model",
            "PriorityCalcPeriod      = 00:00:30",
            f"BOOT_TIME               = {int(self.slurm.started)}",
            "PriorityType            = priority/multifactor",
            "SchedulerParameters     = bf_continue",
            "SchedulerType           = sched/backfill",
            "SelectType              = select/cons_tres",
            f"SlurmctldParameters     = {limiter}",
            f"SLURM_VERSION           = {year}.{month:02}.5",
            "SlurmUser               = slurm(64030)",
            "SlurmctldHost[0]        = ctl",
            "",
            "Slurmctld(primary) at ctl is UP",
        ]
        return "\n".join(lines) + "\n", "", 0

    def _squeue(self, name: str) -> tuple[str, str, int]:
        arguments = REGISTRY[name].arguments
        fields = (
            ["JobID", "ArrayJobID", "ArrayTaskID", "ExcNodes"]
            if name == "excluded"
            else [part.partition(":")[0] for part in arguments[-1].split(",")]
        )
        rows = []
        for job in self.slurm.tasks():
            values = self._row(job)
            if self.slurm.faults.strange_job == job.job_id:
                values |= {"TimeLimit": "soon", "tres-alloc": "gres/gpu:?=x,"}
                if self.slurm.faults.unreadable:
                    values["Nice"] = "many"
            rows.append("".join(values.get(name, "N/A") + SEPARATOR for name in fields))
        return "".join(row + "\n" for row in rows), "", 0

    def _row(self, job: Task) -> dict[str, str]:
        slurm = self.slurm
        running = job.state == "R"
        waits = job.begin > slurm.clock.now
        eligible = not (job.dependent or job.hold)
        since = int(job.begin + slurm.clock.time() - slurm.clock.now) if waits else job.submit_time
        shares = slurm.oversubscribe(job).value
        return {
            "JobID": str(job.job_id),
            "ArrayJobID": str(job.job_id),
            "ArrayTaskID": job.tasks if job.tasks and not running else "N/A",
            "HetJobID": "N/A",
            "UserName": job.user,
            "Account": job.account,
            "Partition": job.partition,
            "QOS": job.qos,
            "Reservation": "(null)",
            "StateCompact": job.compact,
            "Reason": "None" if running else slurm.reason(job),
            "SubmitTime": str(job.submit_time),
            "EligibleTime": str(since) if eligible else "N/A",
            "StartTime": str(job.submit_time) if running else "N/A",
            "EndTime": str(int(job.submit_time + job.time_limit)) if running else "N/A",
            "TimeLimit": f"{int(job.time_limit) // 60}:00",
            "NumNodes": "1",
            "NumTasks": "1",
            "NumCPUs": "1",
            "MinMemory": "1000M",
            "MinTmpDisk": "0",
            "tres-alloc": f"cpu=1,mem=1000M,node=1,billing=1,gres/gpu={job.gpus}",
            "Feature": "(null)",
            "ReqNodes": "",
            "NodeList": PARTITIONS[job.partition.split(",")[0]][0] if running else "",
            "Dependency": "a" if job.dependent else "(",
            "Deadline": "N/A",
            "PriorityLong": str(slurm.priority(job)),
            "Nice": str(job.nice),
            "OverSubscribe": "NO" if shares == "UNKNOWN" else shares,
            "Exclusive": "NODE" if job.share == "exclusive" else "NO",
            "ExcNodes": job.exc_nodes,
        }

    def _sprio(self) -> tuple[str, str, int]:
        slurm, rows = self.slurm, []
        listed: list[int] = []
        for job in slurm.tasks():
            if not slurm.calculated or job.state != "PD" or not slurm.eligible(job) or not job.calculated:
                continue
            aged = int((slurm.clock.time() - job.submit_time) * slurm.ageing)
            if job.explicit is not None:
                # Listed with every term 0, and nothing for TRES.
                cells = [job.job_id, 0, job.explicit, "", 0, 0, 0, 0, 0, 0, 0]
            else:
                total = slurm.priority(job)
                # The site has decided that this partition comes a little before the others.
                term = int(job.partition == "left")
                terms = (job.nice, aged, job.multifactor - term, 0, term, 0, 0)
                cells = [job.job_id, job.site_factor, total, "cpu=0,mem=0", *terms]
                listed.append(job.job_id)
            # One row for each partition.
            rows.append(("".join(f"{cell}{SEPARATOR}" for cell in cells) + "\n") * len(job.partition.split(",")))
        said = "site-factors" not in slurm.faults.garbled | slurm.faults.truncated
        slurm.reading().listed = frozenset(listed if said else ())
        if not rows:
            return "", "Unable to find jobs matching user/id(s) specified\n", 1
        return "".join(rows), "", 0

    def _nodes(self) -> tuple[str, str, int]:
        used = dict.fromkeys(NODES, 0)
        for job in self.slurm.tasks():
            if job.state == "R":
                used[PARTITIONS[job.partition.split(",")[0]][0]] += job.gpus
        lines = []
        for node in NODES:
            gpus = min(used[node], 4)
            of = "p100" if node in NODES[:2] else "k80"
            kind = f"gpu:{of}:?" if self.slurm.faults.strange_node and node == NODES[-1] else f"gpu:{of}:{gpus}(IDX:0)"
            state = "ALLOCATED" if gpus == 4 else "MIXED" if gpus else "IDLE"
            lines.append(
                f"NodeName={node} Arch=x86_64 CoresPerSocket=32  CPUAlloc={gpus} CPUEfctv=64 CPUTot=64 CPULoad=0.0"
                f" AvailableFeatures={of} ActiveFeatures={of} Gres=gpu:{of}:4 GresDrain=N/A GresUsed={kind}"
                f" RealMemory=256000 AllocMem={gpus * 1000} State={state} TmpDisk=0 Weight=1"
                f" CfgTRES=cpu=64,mem=250G,billing=64,gres/gpu=4 AllocTRES=cpu={gpus},gres/gpu={gpus}"
            )
        return "".join(line + "\n" for line in lines), "", 0

    def _partitions(self) -> tuple[str, str, int]:
        lines = [
            f"PartitionName={name} AllowGroups=ALL Default={'YES' if name == 'gpu' else 'NO'} MaxNodes=UNLIMITED"
            f" MaxTime=7-00:00:00 Nodes={','.join(nodes)} PriorityTier={TIERS.get(name, 1)} OverSubscribe=NO"
            f" State={'DOWN' if name in self.slurm.down else 'UP'}"
            for name, nodes in PARTITIONS.items()
        ]
        return "".join(line + "\n" for line in lines), "", 0

    def _sdiag(self) -> tuple[str, str, int]:
        slurm = self.slurm
        pending = sum(job.state == "PD" for job in slurm.jobs.values())
        threads = 300 if slurm.faults.overloaded else 1
        lines = [
            f"Server thread count:  {threads}",
            "Agent queue size:     0",
            f"Job states ts:  now ({int(slurm.clock.time())})",
            f"Jobs pending:   {pending}",
            f"Jobs running:   {len(slurm.jobs) - pending}",
            "Main schedule statistics (microseconds):",
            "\tMean cycle:   100",
            "Backfilling stats",
            "\tMean cycle: 100",
        ]
        return "\n".join(lines) + "\n", "", 0

    def _update(self, stdin: str, reading: Reading, began: float) -> tuple[str, str, int]:
        slurm = self.slurm
        lines = stdin.splitlines()
        age = began - reading.at  # what other processes do while the command is under way happens all at once here
        kind = lines[0].partition(" ")[0]
        if (kind in reading.batches and age > FRESH) or age > FIRST:
            text = (
                f"{reading.name} sends {lines[0]!r} on a reading {age:.0f} s old, after {reading.batches} on the same"
            )
            slurm.complain("fresh reading", text)
        reading.batches.append(kind)
        if self.slurm.reading is not None:
            self._announce(lines)
        patience = slurm.clock.monotonic() + 60.0
        err = ""
        for at, line in enumerate(lines):
            try:
                slurm.step(f"update {line}")
            except BaseException:
                # The scontrol of a killed daemon goes on with what is in its pipe.
                slurm.orphan_lines = lines[at:]
                raise
            reading.writes += 1
            slurm.updates += 1
            if slurm.frozen:
                # The request lies in the socket: carried out once slurmctld goes on, long after the client gave up.
                slurm._backlog.append(lambda line=line: slurm.carry_out(line, None))  # type: ignore[misc]
                slurm.clock.sleep(10.0)
                err += f"Unexpected message received for job {_named(line)}\n"
            elif not slurm.up or slurm.faults.refused:
                slurm.clock.sleep(9.0)
                err += f"Unexpected message received for job {_named(line)}\n"
            else:
                slurm.take_token()
                slurm.clock.sleep(RPC_SECONDS)
                err += slurm.carry_out(line, reading)
                if slurm.faults.lost_answers:
                    slurm.clock.sleep(60.0)
            if (slurm.clock.monotonic() > patience and at < len(lines) - 1) or slurm.faults.lost_answers:
                raise SlurmUnavailableError("scontrol (update) gave no complete answer within 60 s; killed")
        return "", err, 1 if err else 0

    def _announce(self, lines: Iterable[str]) -> None:
        """Tells the world what is about to be written (see `World.before_batch`)."""
        before = getattr(self.slurm, "before_batch", None)
        if before is not None:
            before(list(lines))


def _kind(job: Task) -> tuple[str, str, str, str]:
    return job.user, job.account, job.partition, job.qos


def _named(line: str) -> str:
    return line.split(" ")[1].removeprefix("JobId=").split(",")[0]

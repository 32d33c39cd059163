"""The model of Slurm with all that a daemon meets.

`Cluster` is `ModelSlurm` with what a whole daemon meets over hours: several partitions and QOS, arrays, requeue-held
and special-exit jobs, limits, an RPC limiter, calculations of priorities, saved states, answers that are cut, garbled
or strange. It also knows *who* set each value (`Task.marks`): that is what the invariants of `machine_world` are about.

Semantics as measured (SLURM.md §3 and §9; the texts of tests/recorded/*/failures.json).
"""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from unit.controller import model_slurm
from unit.controller.model_slurm import NODES, UID, Job, ModelSlurm, named

from rltuned.core.changes import Field
from rltuned.core.errors import SlurmUnavailableError
from rltuned.core.tables import Snapshot
from rltuned.slurm import controller
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import REGISTRY
from rltuned.slurm.facts import facts_from
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.process import Answer

US = "rltuned"
PARTITIONS = {"gpu": NODES, "left": NODES[:2], "right": NODES[2:], "urgent": NODES}  # nodes by partition
CALCULATION = 30.0  # PriorityCalcPeriod, seconds
SAVE = 5.0  # slurmctld saves job state at most so many seconds after a change
RPC_SECONDS = 0.002
BACKFILL = 30.0  # longest time of a cycle of backfill, as bf_max_time has it by default
FRESH, FIRST = 4.0, 60.0
"""How old a reading may be, in seconds, when it has been acted on already, and when it has not."""
PRIORITY = "Priority"  # the field by which an admin sets an explicit priority
LIMITER = (12, 0.5)
"""Bucket and refill per second of Slurm's RPC limiter: small, so that a dozen jobs are as paced as hundreds are."""

REQUEUE_DELAY = 120
"""Seconds for which a job that was requeued is not eligible (measured: reason BeginTime, not listed by sprio)."""

_COMPACT = {"special": "SE"}  # a job that was requeued and held shows as any pending one (measured)


@dataclass
class Task(Job):
    """A job, and who did what to it."""

    marks: dict[str, str] = field(default_factory=dict)
    """Who set the value that the field has, where somebody did; Slurm's or the user's own at submission: absent."""
    touched: dict[str, int] = field(default_factory=dict)  # operation number of the last change by a person
    held_at: int = 0
    held_since: float = 0.0  # by the monotonic clock
    limited: bool = False  # a limit of its QOS keeps it from starting
    calculated: bool = False  # whether multifactor has calculated it at least once since it could run
    begin: float = 0.0  # not eligible before
    shown: int = 0
    """Operation number of the last cycle of the daemon's, carried to its end, in which sprio showed its site factor."""
    since: float = 0.0
    """When it began to wait, by a clock that nobody sets; at that moment the wall clock was ahead by … """
    ahead: float = 0.0
    running_since: float = 0.0  # by the same clock
    most_tasks: int = 1  # of an array, the tasks that it has had
    asked: bool = False  # an admin has asked for it back by name
    hands_off: bool = False  # and was told that it was done
    put_back_at: float = 0.0  # when backfill last put an older priority back, by the monotonic clock

    @property
    def turn(self) -> tuple[int, int]:
        """Among jobs of one priority slurmctld takes the earlier submission, then the lower id."""
        return self.submit_time, self.job_id

    @property
    def key(self) -> tuple[int, int]:
        """Who it is, over the ids that slurmctld may give twice."""
        return self.job_id, self.submit_time

    @property
    def record(self) -> int:
        """The id under which squeue and sprio show it while it waits."""
        return self.array or self.job_id

    @property
    def size(self) -> float:
        """GPUs that it keeps from others: of four GPUs, 64 CPUs and 256 GB of a node."""
        return max(float(self.gpus), 4.0 / 64.0) if self.share == "default" else 4.0

    @property
    def compact(self) -> str:
        return _COMPACT.get(self.hold, self.state) if self.state == "PD" else self.state


@dataclass
class Reading:
    """What one process of ours knows: when its last reading of the queue began, and its batches since."""

    name: str
    offset: float = 0.0  # what the wall clock was ahead by when the process began
    began: int = 0
    at: float = 0.0  # monotonic time of it
    world: int = 0
    planned: int = 0  # `Cluster.world` when the snapshot that the plan is made of began
    batches: list[str] = field(default_factory=list)
    """What was sent since: "release" or "update"; one of each, the second at once, is one batch."""
    writes: int = 0
    listed: frozenset[int] = frozenset()  # jobs whose site factor it showed
    opened: set[int] = field(default_factory=set)  # its descriptors


@dataclass
class Faults:
    """What is wrong at present."""

    refused: bool = False  # nothing listens (slurmctld is stopped, or the network refuses)
    cut: bool = False  # packets vanish: commands hang until they are killed
    lost_answers: bool = False  # updates are carried out, their answers never come
    garbled: frozenset[str] = frozenset()  # commands whose answers make no sense
    truncated: frozenset[str] = frozenset()
    strange_job: int = 0  # the job whose row holds what nobody can understand
    unreadable: bool = False  # not even the few columns that are re-read around a write
    strange_node: bool = False
    overloaded: bool = False
    slow: float = 0.0  # seconds that each command takes
    dbd_away: bool = False

    @property
    def readable(self) -> bool:
        """Whether `status` can be answered."""
        needed = {"status", "status-exclusive", "site-factors", "version"}
        return not (self.refused or self.cut or (self.garbled | self.truncated) & needed or self.slow >= 20.0)


@dataclass
class Cluster(ModelSlurm):
    """See the module. `step` is called at every single operation of ours and may raise `Killed`."""

    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PARTITIONS)
    gpu_types: tuple[str, ...] = ("p100", "p100", "k80", "k80")
    calculation: float = CALCULATION
    step: Callable[[str], None] = lambda _: None
    reading: Callable[[], Reading] = lambda: Reading("?")
    complain: Callable[[str, str], None] = lambda _name, _text: None
    op: int = 0  # number of things that have happened: commands, updates, what people and Slurm did
    world: int = 0  # number of things that others did
    saved: int = -1  # `op` when slurmctld last saved its state
    fell_back: int = -1  # `op` when it last came back with an older one
    faults: Faults = field(default_factory=Faults)
    orphan_lines: list[str] = field(default_factory=list)
    """Lines that a scontrol still has in its pipe although the daemon that started it was killed."""
    on_update: Callable[[Task, Callable[[], None]], None] | None = None
    """Wraps each single update of ours: the job, and the act itself."""
    on_start: Callable[[Task], None] = lambda _: None
    on_leave: Callable[[Task], None] = lambda _: None
    on_requeue: Callable[[Task], None] = lambda _: None
    on_return: Callable[[Mapping[int, Task]], None] = lambda _: None
    """slurmctld is there again, with another state; what it had before."""
    _reading: Reading | None = None  # of the process whose line is being carried out
    _tokens: float = float(LIMITER[0])
    _tokens_at: float = 0.0

    # --- people and Slurm itself. Whatever they do counts as one operation.

    def happened(self) -> int:
        self.op += 1
        self.world += 1
        return self.op

    def backfill_goes_on(self, seconds: float = BACKFILL, jobs: Collection[int] | None = None) -> None:
        self.happened()
        before = dict(self.put_back)
        super().backfill_goes_on(seconds, jobs)
        for job_id in self.put_back.keys() & self.jobs.keys():
            if self.put_back[job_id] != before.get(job_id):
                self.task(job_id).put_back_at = self.clock.monotonic()

    def out_of_force(self) -> list[Task]:
        """Waiting jobs that squeue shows with another priority than Slurm's sum."""
        return [job for job in self.tasks() if job.state == "PD" and self.in_queue(job) != self.priority(job)]

    def _calculated_anew(self, job: Task) -> None:
        """By an update of somebody else's."""
        self.put_back.pop(job.job_id, None)
        self.overwritten.pop(job.job_id, None)

    def task(self, job_id: int) -> Task:
        job = self.jobs[job_id]
        assert isinstance(job, Task)
        return job

    def tasks(self) -> list[Task]:
        return [job for job in self.jobs.values() if isinstance(job, Task)]

    def submit(self, multifactor: int, **values: object) -> Task:
        self.happened()
        job = self.add(Task, multifactor, **values)
        job.ahead = self.clock.time() - self.clock.now
        job.since = job.submit_time - job.ahead
        job.most_tasks = _tasks(job)
        return job

    def person_holds(self, job_id: int, who: str) -> None:
        job = self.task(job_id)
        if job.state == "PD" and not job.hold:
            job.held_at, job.held_since = self.happened(), self.clock.monotonic()
            job.hold, job.explicit = who, None
            job.marks.pop(PRIORITY, None)
            self._calculated_anew(job)

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
        self._calculated_anew(job)
        job.marks.pop(PRIORITY, None)

    def person_sets_priority(self, job_id: int, value: int) -> None:
        job = self.task(job_id)
        if not job.hold:
            job.touched[PRIORITY] = self.happened()
            job.marks[PRIORITY] = "admin"
            job.explicit, job.nice = value, 0
            self._calculated_anew(job)

    def person_sets_factor(self, job_id: int, value: int) -> None:
        job = self.task(job_id)
        job.touched[Field.SITE_FACTOR] = self.happened()
        if job.site_factor != value or job.marks.get(Field.SITE_FACTOR) != US:
            job.marks[Field.SITE_FACTOR] = "admin"
        job.site_factor = value
        self._calculated_anew(job)

    def person_sets_nice(self, job_id: int, nice: int) -> None:
        job = self.task(job_id)
        if job.explicit is None:
            self.happened()
            job.nice = nice
            self._calculated_anew(job)

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
                self._calculated_anew(other)
                other.nice += gap // (len(alike) - 1) if other is not job else 0

    def person_changes_request(self, job_id: int, what: str, value: object) -> None:
        job = self.task(job_id)
        if job.state == "PD":
            self.happened()
            setattr(job, what, value)
            self._calculated_anew(job)

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
        if job.state != "PD" or not self.eligible(job) or job.limited:
            return
        self.happened()
        if _tasks(job) > 1:
            first, _, last = job.tasks.partition("-")
            job.tasks = f"{int(first) + 1}-{last}"
            job = self._copied({job_id: job})[job_id]
            job.job_id, job.array, job.tasks = self.next_id, job_id, ""
            self.jobs[job.job_id] = job
            self.next_id += 1
        self.on_start(job)
        super().start(job.job_id)
        job.running_since = self.clock.now

    def requeue(self, job_id: int) -> None:
        job = self.task(job_id)
        if job.state == "R" and not job.array:
            self.happened()
            self.on_requeue(job)
            self._calculated_anew(job)
            job.state, job.submit_time, job.calculated = "PD", int(self.clock.time()) + 1, False
            job.begin = self.clock.now + REQUEUE_DELAY
            job.since, job.ahead, job.tasks = self.clock.now, self.clock.time() - self.clock.now, ""

    def requeue_held(self, job_id: int, how: str) -> None:
        """``scontrol requeuehold`` ("requeue") or ``State=SpecialExit`` ("special")."""
        job = self.task(job_id)
        was = job.state
        if was == "R" and not job.array:
            self.requeue(job_id)
            job.held_at, job.held_since = self.happened(), self.clock.monotonic()
            job.hold = how
            self._end_explicit(job)

    def leave(self, job_id: int) -> None:
        self.happened()
        self.on_leave(self.task(job_id))
        del self.jobs[job_id]

    # --- slurmctld's own clockwork

    def calculate(self) -> None:
        # What backfill has put back stays: nobody but us puts it right, however long the PriorityCalcPeriod is.
        self.calculated = True
        for job in self.tasks():
            if job.state == "PD" and self.eligible(job):
                job.calculated = True

    def save_state(self) -> None:
        self._saved, self.saved = dict[int, Job](self._copied(self.jobs)), self.op

    def crash_and_start(self) -> None:
        known, self.jobs = self._copied(self.jobs), dict[int, Job](self._copied(self._saved))
        self.fell_back = self.op
        for job in self.tasks():
            twin = known.get(job.job_id)
            if twin is not None and twin.submit_time == job.submit_time:
                # What is known outside of slurmctld goes on.
                job.asked, job.hands_off, job.shown = twin.asked, twin.hands_off, twin.shown
        self.on_return(known)
        self.restart()

    @staticmethod
    def _copied(jobs: Mapping[int, Job]) -> dict[int, Task]:
        copied: dict[int, Task] = {}
        for job_id, job in jobs.items():
            assert isinstance(job, Task)
            copied[job_id] = twin = copy.copy(job)
            twin.marks, twin.touched = dict(job.marks), dict(job.touched)
        return copied

    def lose_state(self) -> None:
        self._saved, known = {}, self._copied(self.jobs)
        super().lose_state()
        self.on_return(known)

    def restart(self) -> None:
        super().restart()
        self.happened()
        self.frozen = False
        self.backlog = []
        for job in self.tasks():
            job.calculated = False

    def eligible(self, job: Job) -> bool:
        """Whether neither a hold, nor another job, nor its begin time keeps it from waiting for its turn."""
        return super().eligible(job) and self.task(job.job_id).begin <= self.clock.now

    def eligible_from(self, job: Job) -> int:
        begin = self.task(job.job_id).begin
        return int(begin + self.clock.time() - self.clock.now) if begin > self.clock.now else job.submit_time

    def in_sprio(self, job: Job) -> bool:
        return super().in_sprio(job) and self.task(job.job_id).calculated

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

    def without_ours(self, job: Task) -> int:
        """Its priority if it carried nothing of ours."""
        ours = job.site_factor if job.marks.get(Field.SITE_FACTOR) == US and job.explicit is None else 0
        return self.priority(replace(job, site_factor=job.site_factor - ours))

    # --- our updates

    def carry_out(self, line: str, reading: Reading | None = None) -> str:
        """As `ModelSlurm.carry_out`.

        `reading` is None for a line that comes long after its process died: it knows nothing of what came in between.
        """
        self.op += 1
        self._reading = reading
        return super().carry_out(line)

    def _set(self, job: Job, of: Field, value: int | str) -> str:
        task, said = self.task(job.job_id), ""
        self._judge_ours(task, of, value, self._reading)

        def act() -> None:
            nonlocal said
            said = ModelSlurm._set(self, task, of, value)
            if self._reading is None:
                self.overwritten.pop(task.job_id, None)  # written long after its process could know when
            if not said and of is Field.SITE_FACTOR:
                self._mark(task, of, ours=value != 0)

        if self.on_update is None:
            act()
        else:
            self.on_update(task, act)
        return said

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

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:
        return facts_from(controller.config(self._runner.ask("config")), self._runner, UID, known)

    def snapshot(self, now: float) -> Snapshot:
        slurm = self._runner.slurm  # type: ignore[attr-defined]
        slurm.reading().planned = slurm.world
        return super().snapshot(now)


class Commands(model_slurm.Commands):
    """What a whole daemon meets when it asks: faults, slowness, the limiter."""

    slurm: Cluster

    def run(self, name: str, *words: str, stdin: str = "") -> Answer:
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
        out, err, code = self._update(stdin, reading, began) if name == "update" else self.answer(name)
        slurm.step(f"answer {name}")
        return Answer(command, out, err, code, slurm.clock.monotonic() - began)

    def answer(self, name: str) -> tuple[str, str, int]:
        slurm, faults = self.slurm, self.slurm.faults
        if name == "privilege" and faults.dbd_away:
            slurm.clock.sleep(20.0)
            raise SlurmUnavailableError("sacctmgr (privilege) gave no complete answer within 20 s; killed")
        if name in {"version", "privilege"}:
            return super().answer(name)
        if faults.cut and name != "ping":
            slurm.clock.sleep(20.0)
            raise SlurmUnavailableError(f"{name} gave no complete answer within 20 s; killed")
        if not slurm.answers or faults.refused or faults.cut:
            if name == "ping":
                slurm.clock.sleep(5.0 if faults.cut else 0.0)
                return "Slurmctld(primary) at ctl is DOWN\n", "", 1
            slurm.clock.sleep(10.0 if slurm.frozen else 9.0)
            why = (
                "Socket timed out on send/recv operation"
                if slurm.frozen
                else "Unable to contact slurm controller (connect failure)"
            )
            return "", f"slurm_load_jobs error: {why}\n", 1
        slurm.take_token()
        out, err, code = super().answer(name)
        if name == "site-factors":
            said = name not in faults.garbled | faults.truncated
            slurm.reading().listed = frozenset(
                job.job_id for job in slurm.tasks() if said and slurm.in_sprio(job) and job.explicit is None
            )
        if name in faults.garbled:
            out = "".join("?" if character.isalnum() else character for character in out) or "?\n"
        if name in faults.truncated:
            # Within a row: a command that fails at the end of one says so by its exit status.
            out = out[: len(out) // 2].rstrip("\n")
        return out, err, code

    def _row(self, job: Job) -> dict[str, str]:
        faults, row = self.slurm.faults, super()._row(job)
        if faults.strange_job == job.job_id:
            row |= {"TimeLimit": "soon", "tres-alloc": "gres/gpu:?=x,"}
            if faults.unreadable:
                row |= {"Nice": "many", "SubmitTime": "never"}
        return row

    def _nodes(self) -> str:
        out, used = super()._nodes(), "GresUsed=gpu:k80:"
        return f"{used}?".join(out.rsplit(used, 1)) if self.slurm.faults.strange_node else out

    def _sdiag(self) -> str:
        out = super()._sdiag()
        return out.replace("count:  1", "count:  300") if self.slurm.faults.overloaded else out

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
        # Tells the world what is about to be written (see `World.before_batch`).
        if (before := getattr(slurm, "before_batch", None)) is not None:
            before(lines)
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
                slurm.backlog.append(line)
                slurm.clock.sleep(10.0)
                err += f"Unexpected message received for job {named(line)}\n"
            elif not slurm.up or slurm.faults.refused:
                slurm.clock.sleep(9.0)
                err += f"Unexpected message received for job {named(line)}\n"
            else:
                slurm.take_token()
                slurm.clock.sleep(RPC_SECONDS)
                err += slurm.carry_out(line, reading)
                if slurm.faults.lost_answers:
                    slurm.clock.sleep(60.0)
            if (slurm.clock.monotonic() > patience and at < len(lines) - 1) or slurm.faults.lost_answers:
                raise SlurmUnavailableError("scontrol (update) gave no complete answer within 60 s; killed")
        return "", err, 1 if err else 0


def _kind(job: Task) -> tuple[str, str, str, str]:
    return job.user, job.account, job.partition, job.qos


def _tasks(job: Job) -> int:
    """Tasks of it that wait: "2-5" are four."""
    first, _, last = job.tasks.partition("-")
    return int(last) - int(first) + 1 if last else 1

"""A Slurm in memory that does to a pending job what was measured on real ones, behind its own commands: what `squeue`,
`scontrol`, `sprio`, `sdiag` and `sacctmgr` print and take, so that the project's own reader and writer are under test.

What is modelled: SiteFactor, Priority, Nice (and that Priority resets it), hold and release by users and admins, what
sprio lists, OverSubscribe's one-way street, requeue, restarts of slurmctld with saved,
old and lost state, a frozen slurmctld that carries out later what the client gave up on, missing privileges, limits.
What is not: scheduling. Jobs start when the test says so. The real thing is tested on the clusters.
"""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rltuned.core.changes import Field, JobStatus, OverSubscribe
from rltuned.core.errors import SlurmUnavailableError
from rltuned.core.tables import Snapshot
from rltuned.slurm import controller
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import EXCLUSIVE_SINCE, REGISTRY, SEPARATOR
from rltuned.slurm.facts import facts_from
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.process import Answer, Runner
from rltuned.slurm.writer import ScontrolWriter

UID = 64_000  # the daemon's user: not root, so that privileges and the limiter count
USERS = ("dora", "alice")
"""Who submits jobs, in turn, where a test does not say who: a job lends only to jobs of others."""
WAITED = 36_000.0
"""Seconds that a job has waited when it appears, where a test does not say when it was submitted: who has just come
can lend nothing."""
NODES = ("n1", "n2", "n3", "n4")
TIERS = {"urgent": 2}  # priority tiers of partitions that have not the first


class Killed(BaseException):
    """kill -9 of the daemon: nothing may catch it."""


class VirtualClock:
    """Time that only passes when somebody waits."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.now = start
        self.slept: list[float] = []
        self.set_by = 0.0  # seconds by which the wall clock was set forward (negative: back) since the start
        self.suspended = 0.0  # seconds that the machine was suspended

    def time(self) -> float:
        return self.now + self.set_by

    def steady(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - self.suspended - 900_000.0

    def set(self, seconds: float) -> None:
        self.set_by += seconds

    def suspend(self, seconds: float) -> None:
        """The machine is suspended and resumed."""
        self.suspended += seconds
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        # Some time passes, however short the wait: what is left of one after rounding may be too small to add.
        self.now = max(self.now + seconds, math.nextafter(self.now, math.inf)) if seconds else self.now


@dataclass
class Job:
    job_id: int
    submit_time: int
    multifactor: int  # sum of the factors without site factor and nice, at submission
    state: str = "PD"
    nice: int = 0
    site_factor: int = 0
    explicit: int | None = None
    hold: str = ""
    """"", "user", "admin" or "BadConstraints"."""
    dependent: bool = False
    share: str = "default"
    """"default", "yes", "no" or "exclusive" (the user's own)."""
    exc_nodes: str = ""
    partition: str = "gpu"
    user: str = "alice"
    account: str = "acct"
    qos: str = "normal"
    nodes: int = 1
    gpus: int = 1
    gpu_type: str = ""
    time_limit: float = 3600.0
    start_time: float = 0.0
    array: int = 0  # id of the array that it is a task of, once it has a record of its own
    tasks: str = ""  # pending tasks of an array

    @property
    def compact(self) -> str:
        return self.state


AJob = TypeVar("AJob", bound=Job)


@dataclass
class ModelSlurm:
    clock: VirtualClock
    release: tuple[int, int] = (24, 11)
    cluster: str = "model"
    privilege: Privilege = Privilege.OPERATOR
    shares: OverSubscribe = OverSubscribe.NO  # OverSubscribe of partition gpu
    ageing: float = 0.0  # priority points per second
    passing: int = 0  # answers of sdiag for which a pass of backfill goes on; at its end it puts back what was before
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"gpu": NODES})  # nodes of each
    gpu_types: tuple[str, ...] = ("p100",)  # of the nodes, in turn
    weights: tuple[int, ...] | None = None  # of the nodes, in turn; each has four GPUs
    calculation: float = 60.0  # PriorityCalcPeriod, seconds
    limiter: bool = False  # whether Slurm's RPC limiter is on
    scheduler_parameters: str = "bf_continue"  # SchedulerParameters
    down: set[str] = field(default_factory=set)  # partitions that are down
    jobs: dict[int, Job] = field(default_factory=dict)
    started: float = 0.0  # when slurmctld was started
    calculated: bool = True  # sprio is empty until the first calculation after a start
    up: bool = True
    frozen: bool = False
    next_id: int = 1
    updates: int = 0  # single job updates and releases that reached slurmctld
    reads: int = 0
    log: list[tuple[int, str, object]] = field(default_factory=list)
    """(job, field, value) of each update that was carried out."""
    violations: list[str] = field(default_factory=list)
    strange: set[int] = field(default_factory=set)  # jobs in whose rows a value cannot be understood
    nameless: set[int] = field(default_factory=set)  # and those of whose rows not even the id can be
    before_update: Callable[[int], None] = lambda _: None
    """Called before each single update with its number; may raise `Killed` or change the world."""
    before_read: Callable[[int], None] = lambda _: None
    put_back: dict[int, int] = field(default_factory=dict)
    """What squeue shows of jobs whose old priority backfill has put back after a write: until the next write, or the
    next calculation."""
    overwritten: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By job: when its site factor was written last, and the priority that it had before."""
    writers: int = 0
    backlog: list[str] = field(default_factory=list)  # lines that reached a frozen slurmctld
    _saved: dict[int, Job] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return self.up and not self.frozen

    @property
    def version(self) -> str:
        year, month = self.release
        return f"{year}.{month:02}.5"

    # --- people

    def submit(self, multifactor: int, **values: object) -> Job:
        return self.add(Job, multifactor, **values)

    def add(self, kind: type[AJob], multifactor: int, **values: object) -> AJob:
        """A new job: of one of `USERS`, `WAITED` ago, unless `values` say something else."""
        usual = {"submit_time": int(self.clock.time() - WAITED), "user": USERS[self.next_id % len(USERS)]}
        job = kind(job_id=self.next_id, multifactor=multifactor, **usual | values)  # type: ignore[arg-type]
        self.jobs[job.job_id] = job
        self.next_id += 1
        return job

    def hold(self, job_id: int, who: str = "user") -> None:
        self.jobs[job_id].hold, self.jobs[job_id].explicit = who, None

    def user_release(self, job_id: int) -> None:
        self.hold(job_id, "")

    def admin_site_factor(self, job_id: int, value: int) -> None:
        self.jobs[job_id].site_factor = value

    def start(self, job_id: int) -> None:
        job = self.jobs[job_id]
        job.state, job.start_time = "R", self.clock.time()

    def start_task(self, array: int) -> Job:
        """A task of an array starts while others wait: it gets a record of its own, with all that the array's has."""
        self.jobs[array].tasks = "100-199"
        task = copy.deepcopy(self.jobs[array])
        task.job_id, task.array, task.state, task.start_time = self.next_id, array, "R", self.clock.time()
        self.jobs[task.job_id] = task
        self.next_id += 1
        return task

    def requeue(self, job_id: int) -> None:
        job = self.jobs[job_id]
        job.state, job.submit_time = "PD", int(self.clock.time()) + 1

    def leave(self, job_id: int) -> None:
        del self.jobs[job_id]

    # --- slurmctld

    def save_state(self) -> None:
        self._saved = copy.deepcopy(self.jobs)

    def restart(self) -> None:
        """Stopped in order and started: all is kept, sprio is empty until the next calculation."""
        self.up, self.calculated, self.started = True, False, self.clock.time()
        self.put_back, self.overwritten = {}, {}

    def crash_and_start(self) -> None:
        """kill -9 and started: back to the last saved state."""
        self.jobs = copy.deepcopy(self._saved)
        self.restart()

    def lose_state(self) -> None:
        """Started without its state: the jobs are gone, ids start over."""
        self.jobs, self.next_id = {}, 1
        self.restart()

    def calculate(self) -> None:
        self.calculated, self.put_back = True, {}

    def backfill_goes_on(self, seconds: float = 30.0, jobs: Collection[int] | None = None) -> None:
        """A backfill cycle that began so long ago reaches these jobs (None: all): each has again the priority that it
        had then, whatever was written since; sprio shows what was written.
        """
        for job_id, (when, priority) in self.overwritten.items():
            if (jobs is None or job_id in jobs) and self.clock.monotonic() - when <= seconds:
                self.put_back[job_id] = priority

    def thaw(self) -> None:
        self.frozen = False
        backlog, self.backlog = self.backlog, []
        for line in backlog:
            self.carry_out(line)

    # --- what Slurm computes and shows

    def alone(self, job: Job) -> int:
        """Priority that Slurm alone would give: no explicit one, no site factor, the user's nice."""
        aged = job.multifactor + int((self.clock.time() - job.submit_time) * self.ageing)
        return 0 if job.hold else max(1, aged - job.nice)

    def priority(self, job: Job) -> int:
        if job.hold:
            return 0
        if job.explicit is not None:
            return job.explicit
        aged = job.multifactor + int((self.clock.time() - job.submit_time) * self.ageing)
        return max(1, aged + job.site_factor - job.nice)

    def in_queue(self, job: Job) -> int:
        """The priority that squeue shows, and by which Slurm starts jobs."""
        kept = job.state == "PD" and not job.hold and job.explicit is None
        return self.put_back.get(job.job_id, self.priority(job)) if kept else self.priority(job)

    def eligible(self, job: Job) -> bool:
        """Whether neither a hold nor another job keeps it from waiting for its turn."""
        return not job.hold and not job.dependent

    def eligible_from(self, job: Job) -> int:
        return job.submit_time

    def node_of(self, job: Job) -> str:
        """Where a job runs."""
        return self.partitions.get(job.partition.split(",")[0], NODES)[0]

    def in_sprio(self, job: Job) -> bool:
        return self.calculated and job.state == "PD" and self.eligible(job)

    def listed(self, job: Job) -> bool:
        """Whether sprio lists it, in a way that can be told from an explicit priority: with any term but 0."""
        return bool(job.multifactor or job.nice or job.site_factor) and self.in_sprio(job) and job.explicit is None

    def oversubscribe(self, job: Job) -> OverSubscribe:
        if job.share == "yes":
            return OverSubscribe.YES
        if self.release >= EXCLUSIVE_SINCE:
            return OverSubscribe.NO if job.share == "exclusive" else OverSubscribe.UNKNOWN
        return OverSubscribe.OK if job.share == "default" else OverSubscribe.NO

    def reason(self, job: Job) -> str:
        held = {"user": "JobHeldUser", "admin": "JobHeldAdmin", "BadConstraints": "BadConstraints"}
        return held.get(job.hold, "Dependency" if job.dependent else "Priority")

    def order(self) -> list[int]:
        """Pending jobs as Slurm would look at them."""
        pending = [job for job in self.jobs.values() if job.state == "PD" and not job.hold]
        return [job.job_id for job in sorted(pending, key=lambda job: (-self.in_queue(job), job.job_id))]

    def untouched(self, job: Job) -> bool:
        """Whether the priority is what Slurm alone computes."""
        return job.explicit is None and job.site_factor == 0

    def reader(self) -> "ModelReader":
        return ModelReader(self)

    def writer(self) -> ScontrolWriter:
        self.writers += 1
        return ScontrolWriter(Commands(self))

    # --- what updates do

    def carry_out(self, line: str) -> str:
        """One line of scontrol's standard input. What it says on standard error, "" when it takes it."""
        assert line.startswith("update JobId="), f"rltuned never holds, releases, cancels or requeues: {line}"
        named, *settings = line.removeprefix("update JobId=").split(" ")
        job_id = int(named)
        jobs = [job for job in self.jobs.values() if job_id in {job.job_id, job.array}]
        if not jobs:
            return f"Invalid job id specified for job {job_id}\n"
        if self.privilege is Privilege.NONE:
            return f"Access/permission denied for job {job_id}\n"
        for setting in settings:
            name, _, text = setting.partition("=")
            of = Field(name)
            value: int | str = text if of is Field.OVERSUBSCRIBE else int(text)
            refused, *_ = [self._set(job, of, value) for job in jobs]
            if refused:
                return refused
            self.log.append((job_id, of.value, value))
        return ""

    def _set(self, job: Job, of: Field, value: int | str) -> str:
        match of:
            case Field.SITE_FACTOR:
                self.overwritten[job.job_id] = self.clock.monotonic(), self.in_queue(job)
                self.put_back.pop(job.job_id, None)
                job.site_factor = int(value)
            case Field.OVERSUBSCRIBE if job.state != "PD":
                return f"Job is no longer pending execution for job {job.job_id}\n"
            case Field.OVERSUBSCRIBE:
                if job.share == "exclusive" and value == "YES":
                    self.violations.append(f"job {job.job_id} lost its --exclusive")
                job.share = {"YES": "yes", "NO": "no"}[str(value)] if job.share != "exclusive" else job.share
        return ""


class Commands(Runner):
    """A `Runner` whose commands ask the model."""

    def __init__(self, slurm: ModelSlurm) -> None:
        self.slurm = slurm

    def run(self, name: str, *words: str, stdin: str = "") -> Answer:
        out, err, code = self.update(stdin) if name == "update" else self.answer(name)
        return Answer(REGISTRY[name], out, err, code, 0.0)

    def update(self, stdin: str) -> tuple[str, str, int]:
        slurm, err = self.slurm, ""
        for line in stdin.splitlines():
            slurm.updates += 1
            slurm.before_update(slurm.updates)
            if slurm.frozen:
                # The request lies in the socket: carried out once slurmctld goes on, long after the client gave up.
                slurm.backlog.append(line)
                slurm.clock.sleep(10.0)
            if not slurm.answers:
                return "", f"Unexpected message received for job {named(line)}\n", 1
            err += slurm.carry_out(line)
        return "", err, 1 if err else 0

    def answer(self, name: str) -> tuple[str, str, int]:
        """Standard output and error, and exit status, of a command that only reads."""
        slurm = self.slurm
        match name:
            case "version":
                return f"slurm-wlm {slurm.version}\n", "", 0
            case "ping":
                up = slurm.answers
                return f"Slurmctld(primary) at ctl is {'UP' if up else 'DOWN'}\n", "", 0 if up else 1
            case "federation":
                return "", "", 0  # in none
            case "privilege":
                levels = {Privilege.OPERATOR: "Operator", Privilege.ADMIN: "Administrator"}
                return f"{UID}|{levels.get(slurm.privilege, 'None')}\n", "", 0
            case "config":
                return self._config(), "", 0
            case "nodes":
                return self._nodes(), "", 0
            case "partitions":
                return self._partitions(), "", 0
            case "diagnostics":
                return self._sdiag(), "", 0
            case "site-factors":
                rows = self._sprio()
                return (rows, "", 0) if rows else ("", "Unable to find jobs matching user/id(s) specified\n", 1)
        *options, _, asked = REGISTRY[name].arguments
        fields = [part.partition(":")[0] for part in asked.split(",")]
        fields = ["JobID", "ArrayJobID", "ArrayTaskID", "ExcNodes"] if name == "excluded" else fields
        return self._squeue(fields, merged="-r" not in options), "", 0

    def _config(self) -> str:
        slurm = self.slurm
        limiter = "rl_enable,rl_bucket_size=12,rl_refill_rate=1,rl_refill_period=2" if slurm.limiter else "(null)"
        lines = [
            "Configuration data as of 1000000",
            "AccountingStorageTRES   = cpu,mem,energy,node,billing,gres/gpu",
            "AccountingStorageType   = accounting_storage/slurmdbd",
            f"ClusterName             = {slurm.cluster}",
            f"PriorityCalcPeriod      = 00:00:{slurm.calculation:02.0f}",
            f"BOOT_TIME               = {int(slurm.started)}",
            "PriorityType            = priority/multifactor",
            "PriorityWeightFairShare = 10000",
            f"SchedulerParameters     = {slurm.scheduler_parameters}",
            "SchedulerType           = sched/backfill",
            "SelectType              = select/cons_tres",
            f"SlurmctldParameters     = {limiter}",
            f"SLURM_VERSION           = {slurm.version}",
            "SlurmUser               = slurm(64030)",
            "SlurmctldHost[0]        = ctl",
            "",
            "Slurmctld(primary) at ctl is UP",
        ]
        return "\n".join(lines) + "\n"

    def _squeue(self, fields: list[str], *, merged: bool) -> str:
        rows, odd = [], "Nice" if "Nice" in fields else "SubmitTime"
        for job in self.slurm.jobs.values():
            if merged and self._with_its_array(job):
                continue
            row = self._row(job)
            if merged and job.tasks:
                of_array = (other for other in self.slurm.jobs.values() if other.array == job.job_id)
                apart = {self.slurm.reason(other) for other in of_array if self._with_its_array(other)}
                row["Reason"] = ",".join([row["Reason"], *sorted(apart - {row["Reason"]})])
            row |= {odd: "?"} if job.job_id in self.slurm.strange else {}
            rows.append("".join(row.get(name, "N/A") + SEPARATOR for name in fields) + "\n")
        return "".join(rows)

    def _with_its_array(self, job: Job) -> bool:
        """Whether squeue prints this waiting task as one of those that have no record of their own."""
        array = self.slurm.jobs.get(job.array)
        return job.state == "PD" and array is not None and bool(array.tasks) and array.partition == job.partition

    def _row(self, job: Job) -> dict[str, str]:
        slurm = self.slurm
        running = job.state == "R"
        shares = slurm.oversubscribe(job).value
        of = f"gres/gpu:{job.gpu_type}" if job.gpu_type else "gres/gpu"
        typed = f",{of}={job.gpus}" if job.gpu_type else ""
        minutes, seconds = divmod(int(job.time_limit), 60)
        return {
            "JobID": "?" if job.job_id in slurm.nameless else str(job.job_id),
            "ArrayJobID": str(job.array or job.job_id),
            "ArrayTaskID": str(job.job_id) if job.array else job.tasks if job.tasks and not running else "N/A",
            "HetJobID": "N/A",
            "UserName": job.user,
            "Account": job.account,
            "Partition": job.partition,
            "QOS": job.qos,
            "Reservation": "(null)",
            "StateCompact": job.compact,
            "Reason": "None" if running else slurm.reason(job),
            "SubmitTime": str(job.submit_time),
            "EligibleTime": "N/A" if job.dependent or job.hold else str(slurm.eligible_from(job)),
            "StartTime": str(int(job.start_time)) if running else "N/A",
            "EndTime": str(int(job.start_time + job.time_limit)) if running else "N/A",
            "TimeLimit": f"{minutes}:{seconds:02}",
            "NumNodes": str(job.nodes),
            "NumTasks": "1",
            "NumCPUs": "1",
            "MinMemory": "1000M",
            "MinTmpDisk": "0",
            "tres-alloc": f"cpu=1,mem=1000M,node=1,billing=1,gres/gpu={job.gpus}{typed}",
            "tres-per-job": f"{of}:{job.gpus}",
            "Feature": "(null)",
            "ReqNodes": "",
            "NodeList": slurm.node_of(job) if running else "",
            "Dependency": "a" if job.dependent else "(",
            "Deadline": "N/A",
            "PriorityLong": str(slurm.in_queue(job)),
            "Nice": str(job.nice),
            "OverSubscribe": "NO" if shares == "UNKNOWN" else shares,
            "Exclusive": "NODE" if job.share == "exclusive" else "NO",
            "ExcNodes": job.exc_nodes,
        }

    def _sprio(self) -> str:
        slurm, rows = self.slurm, []
        for job in slurm.jobs.values():
            if not slurm.in_sprio(job):
                continue
            aged = int((slurm.clock.time() - job.submit_time) * slurm.ageing)
            if job.explicit is not None:
                # Listed with every term 0, and nothing for TRES.
                cells = [job.job_id, 0, job.explicit, "", 0, 0, 0, 0, 0, 0, 0]
            else:
                # The site has decided that this partition comes a little before the others.
                term = int(job.partition == "left")
                terms = (job.nice, aged, job.multifactor - term, 0, term, 0, 0)
                cells = [job.job_id, job.site_factor, slurm.priority(job), "cpu=0,mem=0", *terms]
            # One row for each partition.
            rows.append(("".join(f"{cell}{SEPARATOR}" for cell in cells) + "\n") * len(job.partition.split(",")))
        return "".join(rows)

    def _nodes(self) -> str:
        slurm, used = self.slurm, dict.fromkeys(NODES, 0)
        for job in slurm.jobs.values():
            if job.state == "R":
                used[slurm.node_of(job)] += job.gpus
        lines = []
        for at, node in enumerate(NODES):
            gpus, of = min(used[node], 4), slurm.gpu_types[at % len(slurm.gpu_types)]
            state = "ALLOCATED" if gpus == 4 else "MIXED" if gpus else "IDLE"
            lines.append(
                f"NodeName={node} Arch=x86_64 CoresPerSocket=32  CPUAlloc={gpus} CPUEfctv=64 CPUTot=64 CPULoad=0.0"
                f" AvailableFeatures={of} ActiveFeatures={of} Gres=gpu:{of}:4 GresDrain=N/A"
                f" GresUsed=gpu:{of}:{gpus}(IDX:0) RealMemory=256000 AllocMem={gpus * 1000} State={state} TmpDisk=0"
                f" Weight={slurm.weights[at] if slurm.weights else 1}"
                f" CfgTRES=cpu=64,mem=250G,billing=64,gres/gpu=4 AllocTRES=cpu={gpus},gres/gpu={gpus}"
            )
        return "".join(line + "\n" for line in lines)

    def _partitions(self) -> str:
        slurm = self.slurm
        lines = [
            f"PartitionName={name} AllowGroups=ALL Default={'YES' if name == 'gpu' else 'NO'} MaxNodes=UNLIMITED"
            f" MaxTime=UNLIMITED Nodes={','.join(nodes)} PriorityTier={TIERS.get(name, 1)}"
            f" OverSubscribe={slurm.shares.value} State={'DOWN' if name in slurm.down else 'UP'}"
            for name, nodes in slurm.partitions.items()
        ]
        return "".join(line + "\n" for line in lines)

    def _sdiag(self) -> str:
        slurm = self.slurm
        pending = sum(job.state == "PD" for job in slurm.jobs.values())
        passing = " (WARNING: data obtained in the middle of backfilling execution.)" if slurm.passing else ""
        if slurm.passing:
            slurm.passing -= 1
            if not slurm.passing:
                slurm.backfill_goes_on()
        lines = [
            f"Data since      Tue Jan 01 00:00:00 2030 ({int(slurm.started)})",
            "Server thread count:  1",
            "Agent queue size:     0",
            f"Job states ts:  now ({int(slurm.clock.time())})",
            f"Jobs pending:   {pending}",
            f"Jobs running:   {len(slurm.jobs) - pending}",
            "Main schedule statistics (microseconds):",
            "\tMean cycle:   100",
            f"Backfilling stats{passing}",
            "\tMean cycle: 100",
        ]
        return "\n".join(lines) + "\n"


class ModelReader(CliReader):
    """The project's reader on the model, for a user that is not root whoever runs the tests."""

    def __init__(self, slurm: ModelSlurm) -> None:
        super().__init__(Commands(slurm))
        self.slurm = slurm

    def _reach(self) -> None:
        """One reading, however many commands it takes."""
        slurm = self.slurm
        slurm.reads += 1
        slurm.before_read(slurm.reads)
        if not slurm.answers:
            slurm.clock.sleep(20.0 if slurm.frozen else 9.0)
            raise SlurmUnavailableError("Unable to contact slurm controller (connect failure)")

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:
        self._reach()
        return facts_from(controller.config(self._runner.ask("config")), self._runner, UID, known)

    def snapshot(self, now: float) -> Snapshot:
        self._reach()
        return super().snapshot(now)

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        self._reach()
        return super().status(job_ids)


def named(line: str) -> str:
    """The job of an update."""
    return line.split(" ")[1].removeprefix("JobId=")

"""A Slurm in memory that does to a pending job what was measured on real ones. A model for property tests.

What is modelled: SiteFactor, Priority, Nice (and that Priority resets it), hold and release by users and admins, what
sprio lists, OverSubscribe's one-way street, ExcNodeList with BadConstraints, requeue, restarts of slurmctld with saved,
old and lost state, a frozen slurmctld that carries out later what the client gave up on, missing privileges, limits.
What is not: scheduling. Jobs start when the test says so. The real thing is tested on the clusters.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rltuned.cluster.changes import Change, Field, JobStatus, Outcome, OverSubscribe, WriteResult
from rltuned.cluster.hostlist import expand
from rltuned.cluster.plain_tables import job_table, node_table
from rltuned.cluster.tables import Health, Partition, Snapshot
from rltuned.cluster.unread import RowKind, Skipped, Unread
from rltuned.errors import SlurmUnavailableError
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.status import completed

NODES = ("n1", "n2", "n3", "n4")
SHOWS_NO_FOR_DEFAULT = (25, 11)


class Killed(BaseException):
    """kill -9 of the daemon: nothing may catch it."""


class VirtualClock:
    """Time that only passes when somebody waits."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.now = start
        self.slept: list[float] = []
        self.set_by = 0.0
        """Seconds by which the wall clock was set forward (negative: back) since the start."""
        self.suspended = 0.0
        """Seconds that the machine was suspended."""

    def time(self) -> float:
        return self.now + self.set_by

    def steady(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - self.suspended - 900_000.0

    def set(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
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
    multifactor: int
    """Sum of the factors without site factor and nice, at submission."""
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
    gpus: int = 1
    gpu_type: str = ""
    time_limit: float = 3600.0
    start_time: float = np.nan
    array: int = 0
    """Id of the array that it is a task of, once it has a record of its own."""

    @property
    def request(self) -> str:
        """What the readers make a digest of."""
        return f"{self.account} {self.partition} {self.qos} {self.time_limit} {self.gpus}"

    @property
    def shown_as(self) -> int:
        """The id that scontrol takes for it, as the readers have it: the array's while it waits."""
        return self.array if self.array and self.state == "PD" else self.job_id


@dataclass
class ModelSlurm:
    clock: VirtualClock
    release: tuple[int, int] = (24, 11)
    privilege: Privilege = Privilege.OPERATOR
    shares: OverSubscribe = OverSubscribe.NO
    """OverSubscribe of partition gpu."""
    ageing: float = 0.0
    """Priority points per second."""
    gpu_types: tuple[str, ...] = ("p100",)
    weights: tuple[int, ...] | None = None
    """Of the nodes, in turn; each has four GPUs."""
    jobs: dict[int, Job] = field(default_factory=dict)
    started: float = 0.0
    """When slurmctld was started."""
    calculated: bool = True
    """sprio is empty until the first calculation after a start."""
    up: bool = True
    frozen: bool = False
    next_id: int = 1
    updates: int = 0
    """Single job updates and releases that reached slurmctld."""
    reads: int = 0
    log: list[tuple[int, str, object]] = field(default_factory=list)
    """(job, field, value) of each update that was carried out."""
    violations: list[str] = field(default_factory=list)
    strange: set[int] = field(default_factory=set)
    """Jobs whose rows the reader cannot understand."""
    nameless: set[int] = field(default_factory=set)
    """And those of whose rows it cannot even read the id."""
    before_update: Callable[[int], None] = lambda _: None
    """Called before each single update with its number; may raise `Killed` or change the world."""
    before_read: Callable[[int], None] = lambda _: None
    writers: int = 0
    _backlog: list[Callable[[], object]] = field(default_factory=list)
    _saved: dict[int, Job] = field(default_factory=dict)

    # --- people

    def submit(self, multifactor: int, **values: object) -> Job:
        job = Job(self.next_id, int(self.clock.time()), multifactor, **values)  # type: ignore[arg-type]
        self.jobs[job.job_id] = job
        self.next_id += 1
        return job

    def hold(self, job_id: int, who: str = "user") -> None:
        job = self.jobs[job_id]
        job.hold, job.explicit = who, None

    def user_release(self, job_id: int) -> None:
        job = self.jobs[job_id]
        job.hold, job.explicit = "", None

    def admin_priority(self, job_id: int, value: int) -> None:
        job = self.jobs[job_id]
        job.explicit, job.nice = value, 0

    def admin_site_factor(self, job_id: int, value: int) -> None:
        self.jobs[job_id].site_factor = value

    def start(self, job_id: int) -> None:
        job = self.jobs[job_id]
        job.state, job.start_time = "R", self.clock.time()

    def start_task(self, array: int) -> Job:
        """A task of an array starts while others wait: it gets a record of its own, with all that the array's has."""
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

    def crash_and_start(self) -> None:
        """kill -9 and started: back to the last saved state."""
        self.jobs = copy.deepcopy(self._saved)
        self.restart()

    def lose_state(self) -> None:
        """Started without its state: the jobs are gone, ids start over."""
        self.jobs, self.next_id = {}, 1
        self.restart()

    def calculate(self) -> None:
        self.calculated = True

    def thaw(self) -> None:
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        for act in backlog:
            act()

    def schedule(self) -> None:
        """The scheduler looks at the jobs: a job whose nodes are all excluded gets BadConstraints."""
        for job in self.jobs.values():
            impossible = set(NODES) <= set(expand(job.exc_nodes))
            if job.state == "PD" and impossible and not job.hold:
                job.hold = "BadConstraints"

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

    def listed(self, job: Job) -> bool:
        """Whether sprio lists it, in a way that can be told from an explicit priority: with any term but 0."""
        terms = job.multifactor or job.nice or job.site_factor
        return (
            bool(terms)
            and self.calculated
            and job.state == "PD"
            and not job.hold
            and job.explicit is None
            and not job.dependent
        )

    def oversubscribe(self, job: Job) -> OverSubscribe:
        if job.share == "yes":
            return OverSubscribe.YES
        if self.release >= SHOWS_NO_FOR_DEFAULT:
            return OverSubscribe.NO if job.share == "exclusive" else OverSubscribe.UNKNOWN
        return OverSubscribe.OK if job.share == "default" else OverSubscribe.NO

    def reason(self, job: Job) -> str:
        held = {"user": "JobHeldUser", "admin": "JobHeldAdmin", "BadConstraints": "BadConstraints"}
        return held.get(job.hold, "Dependency" if job.dependent else "Priority")

    def order(self) -> list[int]:
        """Pending jobs as Slurm would look at them."""
        pending = [job for job in self.jobs.values() if job.state == "PD" and not job.hold]
        return [job.job_id for job in sorted(pending, key=lambda job: (-self.priority(job), job.job_id))]

    def untouched(self, job: Job) -> bool:
        """Whether the priority is what Slurm alone computes."""
        return job.explicit is None and job.site_factor == 0

    def reader(self) -> "ModelReader":
        return ModelReader(self)

    def writer(self) -> "ModelWriter":
        self.writers += 1
        return ModelWriter(self)

    # --- what updates do

    def update(self, job_id: int, changes: Sequence[Change]) -> tuple[Outcome | None, str]:
        """One line of scontrol: all fields of one job. Slurm's answer; no outcome and no message: taken silently."""
        jobs = [job for job in self.jobs.values() if job_id in {job.job_id, job.array}]
        if not jobs:
            return Outcome.GONE, f"Invalid job id specified for job {job_id}"
        if self.privilege is Privilege.NONE:
            return Outcome.DENIED, f"Access/permission denied for job {job_id}"
        for change in changes:
            answers = [self._set(job, change.field, change.after) for job in jobs]
            if answers[0][1]:
                return answers[0]
            self.log.append((job_id, change.field.value, change.after))
        return None, ""

    def _set(self, job: Job, of: Field, value: int | str) -> tuple[Outcome | None, str]:
        match of:
            case Field.SITE_FACTOR:
                job.site_factor = int(value)
            case Field.OVERSUBSCRIBE if job.state != "PD":
                return Outcome.GONE, f"Job is no longer pending execution for job {job.job_id}"
            case Field.OVERSUBSCRIBE:
                if job.share == "exclusive" and value == "YES":
                    self.violations.append(f"job {job.job_id} lost its --exclusive")
                job.share = {"YES": "yes", "NO": "no"}[str(value)] if job.share != "exclusive" else job.share
        return None, ""


class ModelReader:
    """`SlurmReader` on the model."""

    def __init__(self, slurm: ModelSlurm) -> None:
        self.slurm = slurm

    def _reach(self) -> None:
        slurm = self.slurm
        slurm.reads += 1
        slurm.before_read(slurm.reads)
        if not slurm.up or slurm.frozen:
            slurm.clock.sleep(20.0 if slurm.frozen else 9.0)
            raise SlurmUnavailableError("Unable to contact slurm controller (connect failure)")

    def ping(self) -> None:
        if not self.slurm.up or self.slurm.frozen:
            raise SlurmUnavailableError("Slurmctld(primary) at ctl is DOWN")

    def facts(self) -> ClusterFacts:
        self._reach()
        slurm = self.slurm
        return ClusterFacts(
            version=f"{slurm.release[0]}.{slurm.release[1]:02}.5",
            release=slurm.release,
            cluster_name="model",
            user="rltuned",
            privilege=slurm.privilege,
            priority_type="priority/multifactor",
            site_factor_plugin="",
            scheduler_type="sched/backfill",
            scheduler_parameters={"bf_continue": ""},
            rate_limiter=False,
            rate_bucket=30,
            rate_refill=2.0,
            accounting=True,
            accounting_reachable=True,
            accounting_tres=("gres/gpu",),
            priority_calc_period=60.0,
            started=slurm.started,
        )

    def snapshot(self, now: float) -> Snapshot:
        self._reach()
        slurm = self.slurm
        lost = {job.job_id for job in slurm.jobs.values() if job.job_id in slurm.strange and job.state != "PD"}
        jobs = [job for job in slurm.jobs.values() if job.job_id not in lost | slurm.nameless]
        strange = [job.job_id in slurm.strange for job in jobs]
        table = job_table(
            len(jobs),
            job_id=[job.shown_as for job in jobs],
            state=[0 if job.state == "PD" else 1 for job in jobs],
            held_nodes=[(0,) if job.state == "R" else () for job in jobs],
            user=[job.user for job in jobs],
            account=[job.account for job in jobs],
            partition=[job.partition for job in jobs],
            qos=[job.qos for job in jobs],
            reason=[slurm.reason(job) for job in jobs],
            submit_time=[0.0 if odd else float(job.submit_time) for job, odd in zip(jobs, strange, strict=True)],
            eligible_time=[np.nan if job.dependent or job.hold else float(job.submit_time) for job in jobs],
            start_time=[job.start_time if job.state == "R" else np.nan for job in jobs],
            time_limit=[job.time_limit for job in jobs],
            gpus=[job.gpus for job in jobs],
            gpu_type=[job.gpu_type for job in jobs],
            exc_nodes=[job.exc_nodes for job in jobs],
            dependent=[job.dependent for job in jobs],
            held=[bool(job.hold) for job in jobs],
            priority=[0 if odd else slurm.priority(job) for job, odd in zip(jobs, strange, strict=True)],
            base=[slurm.alone(job) for job in jobs],
            nice=[job.nice for job in jobs],
            decided=[f"nice={job.nice}" if job.nice else "" for job in jobs],
            site_factor=[job.site_factor if slurm.listed(job) else 0 for job in jobs],
            site_known=[slurm.listed(job) for job in jobs],
            oversubscribe=[slurm.oversubscribe(job).value for job in jobs],
            exclusive=[job.share == "exclusive" for job in jobs],
            request=[job.request for job in jobs],
        )
        types = slurm.gpu_types
        nodes = node_table(NODES, types, np.resize(4 * np.eye(len(types), dtype=np.int32), (len(NODES), len(types))))
        if slurm.weights is not None:
            nodes = replace(nodes, weight=np.array(slurm.weights))
        everything = np.arange(len(NODES), dtype=np.int32)
        partitions = (Partition("gpu", everything, True, 1, slurm.shares, 1, float("inf"), default=True),)
        running = {job.array: job.submit_time for job in jobs if job.array and job.state == "R"}
        return Snapshot(
            now,
            slurm.release,
            table,
            nodes,
            partitions,
            Health(),
            self._unread(),
            arrays=running,
            array_of={job.job_id: job.array for job in jobs if job.array and job.state == "R"},
        )

    def _unread(self) -> Unread:
        unread, slurm = Unread(), self.slurm
        for job in slurm.strange & slurm.jobs.keys():
            unread.skip(
                Skipped(RowKind.JOB, str(job), f"squeue, job {job}, column Nice: number: cannot understand '?'"), [job]
            )
        for _ in slurm.nameless & slurm.jobs.keys():
            unread.skip(Skipped(RowKind.JOB, "", "squeue, job ?: job id: cannot understand '?'"))
            unread.listed[RowKind.JOB] = slurm.jobs.keys() - slurm.nameless
        return unread

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        self._reach()
        wanted, unread = None if job_ids is None else set(job_ids), self._unread()
        found = {job: status for job, status in self._statuses(wanted).items() if job not in self.slurm.nameless}
        return completed(found, wanted, {}, unread)

    def _statuses(self, wanted: set[int] | None) -> dict[int, JobStatus]:
        slurm = self.slurm
        found = {
            job.array: JobStatus.started(job.array, job.submit_time)
            for job in slurm.jobs.values()
            if job.array and wanted is not None and job.array in wanted
        }
        return found | {
            job.shown_as: JobStatus(
                job_id=job.shown_as,
                submit_time=job.submit_time,
                pending=job.state == "PD",
                held=job.state == "PD" and bool(job.hold),
                priority=slurm.priority(job),
                site_factor=job.site_factor if slurm.listed(job) else None,
                oversubscribe=slurm.oversubscribe(job),
                reason=slurm.reason(job),
                request=job.request,
            )
            for job in slurm.jobs.values()
            if (job.state == "PD" if wanted is None else job.shown_as in wanted)
        }


class ModelWriter:
    """`SlurmWriter` on the model."""

    def __init__(self, slurm: ModelSlurm) -> None:
        self.slurm = slurm

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        slurm = self.slurm
        said: dict[int, tuple[Outcome | None, str]] = {}
        lines: dict[int, list[Change]] = {}
        for change in changes:
            others = lines.get(change.job_id, [])
            if change.field is Field.SITE_FACTOR:
                lines.pop(change.job_id, None)
            lines[change.job_id] = [*others, change]
        for job_id, line in lines.items():
            slurm.updates += 1
            slurm.before_update(slurm.updates)
            if slurm.frozen:
                # The request lies in the socket: carried out once slurmctld goes on, long after the client gave up.
                slurm._backlog.append(lambda job_id=job_id, line=line: slurm.update(job_id, line))
                slurm.clock.sleep(10.0)
                raise SlurmUnavailableError("Unexpected message received")
            if not slurm.up:
                raise SlurmUnavailableError("Unexpected message received")
            said[job_id] = slurm.update(job_id, line)
        blind = slurm.release >= SHOWS_NO_FOR_DEFAULT and not any(message for _, message in said.values())
        return [
            WriteResult(
                change,
                sent=True,
                outcome=Outcome.APPLIED if blind and change.field is Field.OVERSUBSCRIBE else said[change.job_id][0],
                message=said[change.job_id][1],
            )
            for change in changes
        ]

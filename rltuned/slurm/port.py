"""The port: what the rest of rltuned may ask of Slurm. Adapters: `cli`, `pyslurm`; the simulator is a third.

Two protocols, so that a dry run can be given a reader and nothing else: what is not constructed cannot write.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rltuned.core.changes import Change, JobStatus, WriteResult
from rltuned.core.ended import Past
from rltuned.core.scheduler import SchedulerParameters

if TYPE_CHECKING:
    from rltuned.core.name_kinds import NameKind
    from rltuned.core.tables import Snapshot
    from rltuned.slurm.job_names import JobNames


class Privilege(enum.StrEnum):
    """What Slurm lets the calling user do."""

    NONE = "none"
    OPERATOR = "operator"
    ADMIN = "admin"
    SLURM_USER = "slurm-user"  # root or SlurmUser: exempt from the RPC limiter


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What `doctor` and the daemon need to know of how the cluster is set up; changes only with slurm.conf."""

    version: str
    release: tuple[int, int]
    cluster_name: str
    user: str
    privilege: Privilege
    priority_type: str
    site_factor_plugin: str
    scheduler_type: str
    scheduler_parameters: Mapping[str, str]
    rate_limiter: bool
    rate_bucket: int
    rate_refill: float  # RPCs per second of the limiter
    accounting: bool
    accounting_reachable: bool
    accounting_tres: tuple[str, ...]
    priority_calc_period: float  # seconds
    started: float = 0.0
    """When slurmctld started, epoch seconds; 0: unknown. sprio lists a job from the first calculation after that on."""
    priority_flags: tuple[str, ...] = ()
    priority_weights: Mapping[str, float] = field(default_factory=dict)
    """Of multifactor, as `rltuned.decide.rank.multifactor.Weights` has them: times in seconds, 1 for yes."""
    job_submit_plugins: str = ""  # they run on each of our writes, too
    controllers: tuple[str, ...] = ()  # hosts of slurmctld, the primary first
    addresses: tuple[tuple[str, int], ...] = ()
    federation: str = ""
    half_life: float = 7 * 86_400.0  # of usage, seconds; 0: it does not decay
    select_type: str = ""
    free_accounts: bool = False
    """Who has no association gives a job any account, text as long and as odd as they like."""
    preempts_by: str = ""
    """The setting by which a job's priority decides whom it may stop, PRIORITY or WITHIN; "" where none does."""
    private_jobs: bool = False
    """PrivateData=jobs: without a privilege a user sees only their own jobs, with exit status 0."""
    not_simulated: tuple[str, ...] = ()
    """Settings that change who starts when and that the simulator does not know, as slurm.conf spells them."""

    @property
    def hides_jobs(self) -> bool:
        """Whether this user may see an empty queue that is not."""
        return self.private_jobs and self.privilege is Privilege.NONE

    @property
    def backfill_seconds(self) -> float:
        """The longest that a cycle of backfill takes, slurm.conf(5): bf_max_time, which is bf_interval by default."""
        parameters = self.scheduler_parameters
        told = (parameters.get(name, "") for name in ("bf_max_time", "bf_interval"))
        return next((float(text) for text in told if text.isdigit()), 30.0)

    @property
    def scheduler(self) -> SchedulerParameters:
        """How its backfill is configured, and how fast usage decays."""
        return SchedulerParameters.read(
            self.scheduler_parameters, self.scheduler_type, self.half_life, self.select_type
        )


@dataclass(frozen=True, slots=True)
class Controller:
    """A host of slurmctld's, as ``scontrol ping`` finds it."""

    host: str
    up: bool  # its slurmctld answers; that of a backup that stands by does, too
    listens: bool = False  # it does not answer, but its port takes connections


class SlurmReader(Protocol):
    """Reads. A fixed number of commands per call, whatever the queue length.

    `SlurmUnavailableError`: no, or no timely, answer. `SlurmParseError`: one that is cut short, inconsistent or
    unexpected; never an empty queue instead. So it is with what a reader may offer beside this.
    """

    def ping(self) -> None:
        """Return when slurmctld answers."""

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:
        """Version, plugins, privileges, limiter; with `known`, only what slurm.conf says is read anew."""

    def backfills(self) -> bool:
        """Whether a pass of backfill is under way, which may put back what is written now."""

    def snapshot(self, now: float) -> "Snapshot":
        """The whole queue and all nodes; `now` (epoch seconds) becomes its time."""

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """Fresh facts of these jobs (None: of every pending one); ids that Slurm no longer knows are absent."""


@runtime_checkable
class ControllerReader(Protocol):
    """Which controllers are up. The simulator has one, and no need to tell."""

    def controllers(self, facts: ClusterFacts) -> tuple[Controller, ...]:
        """Every controller of the cluster, the primary first."""


@runtime_checkable
class NamesReader(Protocol):
    """Which names there are. The simulator has no need to tell."""

    def names(self, what: str) -> frozenset[str]:
        """All names of "partitions", "reservations", "qos", "accounts" or "users" that this user may see."""


@runtime_checkable
class HistoryReader(Protocol):
    """The accounting's memory. The simulator need not have one."""

    def ended(self, start: float, end: float) -> Past:
        """Jobs that ended in [start, end), epoch seconds. May be called from another thread."""


@runtime_checkable
class JobNamesReader(Protocol):
    """What jobs are called. In the simulator they are called nothing."""

    def job_names(self, kind: "NameKind") -> "JobNames":
        """What reads that."""


class SlurmWriter(Protocol):
    """Writes. Never holds, releases, cancels or requeues."""

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        """Send the changes in order, in one go. One result per change, in order."""

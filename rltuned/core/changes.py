"""Changes to jobs, their outcomes, and the record of what rltuned has put on a job."""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from rltuned.core.reasons import Waits, parse

MAX_FACTOR: Final = 2_147_483_645
"""Largest absolute SiteFactor that scontrol(1) accepts (measured on 22.05, 24.11, 26.05)."""


class SiteFactor(int):
    """What rltuned adds to a job's priority: never below 0, so that no job gets less than Slurm gives it."""

    def __new__(cls, value: int) -> Self:
        """Raises ValueError: below 0, or more than scontrol takes."""
        if not 0 <= value <= MAX_FACTOR:
            raise ValueError(f"site factor {value} is not between 0 and {MAX_FACTOR}")
        return super().__new__(cls, value)


SPLIT: Final = "split"
"""As the request of an array: its waiting tasks have several records that differ. An update reaches all of them."""


class JobState(enum.IntEnum):
    """The three states that a plan distinguishes."""

    PENDING = 0
    RUNNING = 1  # running, suspended or completing: holds resources
    OTHER = 2


class Field(enum.StrEnum):
    """Fields of a pending job that rltuned writes, by their name in ``scontrol update``."""

    SITE_FACTOR = "SiteFactor"  # never below 0: ageing, fair share and the user's nice stay alive, 0 undoes it
    OVERSUBSCRIBE = "OverSubscribe"


class Outcome(enum.StrEnum):
    """What became of one change."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"  # the job had the wanted value already
    GONE = "gone"  # started, finished, cancelled or unknown by the time of the write
    HELD = "held"
    FOREIGN = "foreign"  # somebody else changed the job; their value stands for good
    CHANGED = "changed"  # its request was changed since the plan: it is not the job that the plan was about
    ALTERED = "altered"
    """Written, and its request changed with it: by a job_submit plugin of the site's, or by a person that moment."""
    UNDONE = "undone"
    """Written, and squeue shows an older priority: Slurm's backfill has put it back. Written again soon
    (`Daemon.look_again`)."""
    DENIED = "denied"
    THROTTLED = "throttled"  # not sent: the write budget of this cycle was spent
    FAILED = "failed"


IN_FORCE: Final = frozenset({Outcome.APPLIED, Outcome.UNCHANGED, Outcome.ALTERED})
"""Outcomes after which a job stands as the change wants it."""
NOT_RAISED: Final = IN_FORCE | {Outcome.HELD, Outcome.FOREIGN}
"""Outcomes of giving a job back after which it cannot start raised."""
TAKEN: Final = frozenset({Outcome.APPLIED, Outcome.UNDONE})
"""Outcomes of changes that Slurm took as they were."""
SENT: Final = TAKEN | {Outcome.ALTERED, Outcome.FAILED, Outcome.DENIED}
"""Outcomes of changes that certainly reached Slurm."""


class OverSubscribe(enum.StrEnum):
    """OverSubscribe of a job as squeue(1) shows it, or of a partition (slurm.conf(5))."""

    OK = "OK"  # the default of a job: neither asked to share nor to be alone
    YES = "YES"
    NO = "NO"
    USER = "USER"
    MCS = "MCS"
    TOPO = "TOPO"
    FORCE = "FORCE"
    EXCLUSIVE = "EXCLUSIVE"
    UNKNOWN = "UNKNOWN"


class Change(NamedTuple):
    """One field of one pending job, from the value that the plan saw to the value that it wants."""

    job_id: int
    submit_time: int
    """Epoch seconds. Identifies the job together with its id: ids start over when slurmctld loses its state."""
    field: Field
    before: int | str
    """Of a site factor that was undone: the larger of what sprio shows and of what is in force."""
    after: SiteFactor | str
    position: int  # place in the planned queue, 0 first
    turn: int = 0  # order of writing: what is given back comes before what is raised
    request: str = ""  # `JobTable.request` that this was made for; "": not known

    @property
    def gives_back(self) -> bool:
        """Whether it takes a raise, or a part of one, back."""
        return self.field is Field.SITE_FACTOR and int(self.after) < int(self.before)


@dataclass(frozen=True, slots=True)
class Applied:
    """What rltuned has put on one job, and what is needed to take it back. The journal keeps one per touched job."""

    job_id: int
    submit_time: int
    site_factor: int = 0  # that rltuned wrote last; 0 when none
    oversubscribe: OverSubscribe | None = None
    oversubscribe_before: OverSubscribe | None = None
    foreign: bool = False  # somebody else changed this job since; never touched again
    request: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of rltuned's is left on the job."""
        return self.site_factor == 0 and self.oversubscribe is None and not self.foreign


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The few facts about one job that are re-read right before and right after a write."""

    job_id: int
    submit_time: int
    pending: bool
    held: bool
    priority: int
    site_factor: int | None
    """None: sprio does not list the job (held, explicit priority, not eligible, or not calculated yet)."""
    oversubscribe: OverSubscribe
    reason: str = ""
    request: str = ""
    strange: str = ""
    bases: tuple[int, ...] = ()
    """sprio's sums without the site factor, of each partition, not cut off at Slurm's least of 1."""

    @property
    def eligible(self) -> bool:
        """Whether sprio(1) would list it, if its priority is multifactor's."""
        return parse(self.reason).waits is not Waits.ELIGIBILITY

    @classmethod
    def started(cls, array: int, submit_time: int) -> Self:
        """An array of which no task waits, and a task with a number of its own runs: it may be requeued."""
        return cls(array, submit_time, False, False, 0, None, OverSubscribe.UNKNOWN)

    @classmethod
    def not_understood(cls, job_id: int, reason: str) -> Self:
        """A job of which nothing is known but that it may be there: neither gone nor pending, so it is left alone."""
        return cls(job_id, 0, False, False, 0, None, OverSubscribe.UNKNOWN, strange=reason)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What the writer saw while sending one change. The proof is the read-back, not this (SLURM arrays)."""

    change: Change
    sent: bool
    outcome: Outcome | None = None  # set where Slurm's answer already settles it; else None: read back
    message: str = ""

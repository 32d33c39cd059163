"""The user record: what one user may know of a cycle, which is about this user's own jobs only.

A `UserRecord` holds no id, name, number or request of somebody else's job. It does hold how many jobs wait, all users
together: a place means nothing without it; and to how many jobs each has lent, and how much, as that is why it waits.
Run-time predictions are left out, because they may rest on the jobs of others (docs/estimates.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from rltuned.core.reasons import parse
from rltuned.core.tables import Category, Codes, Partition, Snapshot
from rltuned.decide.decision import ProbeRecord, StartRecord, lent_by, read
from rltuned.decide.explain import STOP_MEANING
from rltuned.decide.plan import Plan
from rltuned.decide.raising import Stop
from rltuned.decide.resizing import Registration, ResizeAdvice, advice
from rltuned.decide.scope import MEANING, Veto

VERSION: Final = 2
MOST_JOBS: Final = 500
"""Jobs of one record: those at the front. A record then takes at most half a megabyte."""

_LONGEST: Final = (
    "Its time limit is the longest that its partition allows. If it needs less: "
    "`scontrol update JobId=JOBID TimeLimit=…`."
)
_VETOES: Final[Mapping[Veto, str]] = {
    **MEANING,
    Veto.UNREADABLE: "what Slurm says of it cannot be understood",
    Veto.BLOCKED: "it cannot start now, whatever its priority",
}


@dataclass(frozen=True, kw_only=True)
class UserJob:
    """One pending job, for its owner. A field of a later version is ignored by an older reader."""

    job_id: int
    waited: float
    """Seconds since it could have started; 0 while a dependency, a hold or a begin time keeps it."""
    gpus: int
    time_limit: float | None
    """Seconds; None: none."""
    reason: str
    meaning: str
    help: tuple[str, ...]
    """What its owner can do; JOBID stands for its id."""
    place: int | None = None
    """In the managed queue, 1 first: as rltuned wants it, or, where it writes nothing, as Slurm has it. None: left
    alone."""
    slurm_place: int | None = None
    may_lend: float | None = None
    """GPU-seconds in all; once they are lent, nobody else's job passes it. None: rltuned lets nobody pass it."""
    lent: float = 0.0
    """GPU-seconds."""
    loans: int = 0
    """To how many jobs it has lent."""
    lenders: int | None = None
    """How many jobs lend for it, as it goes ahead of them; None: it does not go ahead."""
    note: str = ""
    """Why it goes no further ahead, or why rltuned leaves it alone."""
    start: tuple[float, float | None] | None = None
    """80 % interval of its start, epoch seconds. None, of its end: beyond the simulation; as a whole: not known."""
    likely: float | None = None
    """As likely before as after it, epoch seconds."""


@dataclass(frozen=True, kw_only=True)
class UserRecord:
    """One user's pending jobs, and those running ones that can resize themselves."""

    version: Literal[2]
    time: float
    """Of the reading of Slurm, epoch seconds."""
    interval: float
    """Seconds after which the next record is made."""
    user: str
    moves: bool
    """Whether rltuned writes its order to Slurm."""
    managed: int
    """Jobs of all users that `UserJob.place` counts."""
    jobs: tuple[UserJob, ...]
    left_out: int
    outcomes: int = 0
    """Earlier forecasts of all users that the start times are calibrated on."""
    probes: tuple[ProbeRecord, ...] = ()
    not_simulated: str = ""
    """As in `StartRecord`."""
    elastic: tuple[ResizeAdvice, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form; what is not known is left out."""
        jobs = [{key: value for key, value in vars(job).items() if value is not None} for job in self.jobs]
        return {**vars(self), "jobs": jobs, "elastic": [vars(each) for each in self.elastic]}

    @staticmethod
    def from_json(data: bytes | str) -> "UserRecord":
        """The record that was written as this JSON; see `decision.read`."""
        return read(UserRecord, data, "a user record")


_JOB: Final = np.dtype(
    [
        ("job_id", np.int64),
        ("reason", np.int32),  # code
        ("waited", np.float64),  # 0 where the job could not have started
        ("gpus", np.int32),
        ("time_limit", np.float64),
        ("longest", np.bool_),  # whether the time limit is the longest of the job's partition
        ("veto", np.int8),  # index into `list(Veto)`, −1 for a managed job, −2 where nothing was planned
        ("place", np.int32),  # 0 first; −1 of a job that is not managed
        ("slurm_place", np.int32),
        ("may_lend", np.float64),  # −1 where nobody is let pass
        ("lent", np.float64),
        ("loans", np.int32),
        ("lenders", np.int32),  # −1 where the job does not go ahead
        ("stop", np.int8),  # `Stop`
    ]
)


@dataclass(frozen=True)
class UserRecords:
    """What the records of all users are made of: P pending jobs. 75 bytes for each, whoever asks for what."""

    time: float
    interval: float
    moves: bool
    managed: int
    user: Category
    position: Codes
    """In the order of the whole queue that `place` goes by, and behind it what is not managed."""
    jobs: npt.NDArray[np.void]
    """`_JOB` of each."""
    reasons: tuple[str, ...]
    starts: Mapping[int, tuple[float | None, float | None, float | None]]
    """By job id, as in `StartRecord`."""
    outcomes: int
    probes: tuple[ProbeRecord, ...]
    not_simulated: str
    plan: Plan | None = None
    """That is written to Slurm."""
    elastic: Mapping[str, Sequence[ResizeAdvice]] = field(default_factory=dict)
    """By user."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        *,
        interval: float,
        plan: Plan | None = None,
        moves: bool = False,
        starts: StartRecord | None = None,
    ) -> "UserRecords":
        """Of a reading, and of what was planned on it.

        Args:
            snapshot: as read.
            interval: seconds from one record to the next.
            plan: of that snapshot. None: nothing was planned.
            moves: whether the plan is written to Slurm.
            starts: when jobs are expected to start.
        """

        def longest(parts: Sequence[Partition | None]) -> float:
            return max((part.max_time for part in parts if part is not None), default=np.inf)

        jobs = snapshot.jobs
        rows = jobs.pending
        eligible = jobs.eligible_time[rows]
        managed = 0 if plan is None else len(plan.rows)
        position, found = np.arange(len(rows), dtype=np.int32), np.zeros(len(rows), dtype=_JOB)
        found["job_id"] = jobs.job_id[rows]
        found["reason"] = jobs.reason.codes[rows]
        found["waited"] = np.where(eligible <= snapshot.time, snapshot.time - eligible, 0.0)
        found["gpus"] = jobs.gpus[rows]
        found["time_limit"] = jobs.time_limit[rows]
        found["longest"] = jobs.time_limit[rows] >= snapshot.by_partitions(rows, longest, none=np.inf, kind=np.float64)
        found["veto"] = -2
        for column in ("place", "slurm_place", "may_lend", "lenders"):
            found[column] = -1
        if plan is not None:
            at = plan.managed.at
            found["veto"] = plan.scope.veto
            found["place"][at] = plan.rank if moves else plan.base_rank
            found["slurm_place"][at] = plan.base_rank
            if moves:
                _lending(found, plan)
            position += managed
            position[at[plan.queue if moves else plan.managed.queue(plan.base)]] = np.arange(managed)
        return cls(
            time=snapshot.time,
            interval=interval,
            moves=moves,
            managed=managed,
            user=jobs.user.take(rows),
            position=position,
            jobs=found,
            reasons=jobs.reason.names,
            starts={}
            if starts is None
            else dict(zip(starts.id, zip(starts.low, starts.middle, starts.high, strict=True), strict=True)),
            outcomes=0 if starts is None else starts.outcomes,
            probes=() if starts is None else starts.probes,
            not_simulated="" if starts is None else starts.not_simulated,
            plan=plan if moves else None,
        )

    def advised(self, registered: Mapping[int, Registration]) -> "UserRecords":
        """With advice for these jobs, where a plan is written to Slurm."""
        return self if self.plan is None else replace(self, elastic=advice(self.plan, registered))

    @property
    def users(self) -> tuple[str, ...]:
        """Who has a pending job, or advice for a running one."""
        waiting = [self.user.names[code] for code in np.unique(self.user.codes).tolist() if code >= 0]
        return tuple(dict.fromkeys([*waiting, *filter(None, self.elastic)]))

    def record(self, user: str) -> UserRecord:
        """What `user` may know; without jobs where nobody of that name has one."""
        mine = np.empty(0, dtype=np.intp)
        if user and user in self.user.names:
            mine = np.flatnonzero(self.user.codes == self.user.names.index(user))
        mine = mine[np.argsort(self.position[mine], kind="stable")]
        front = mine[:MOST_JOBS]
        return UserRecord(
            version=VERSION,
            time=self.time,
            interval=self.interval,
            user=user,
            moves=self.moves,
            managed=self.managed,
            jobs=tuple(self._job(row) for row in self.jobs[front]),
            left_out=len(mine) - len(front),
            outcomes=self.outcomes,
            probes=self.probes,
            not_simulated=self.not_simulated,
            elastic=tuple(self.elastic.get(user, ())) if user else (),
        )

    def _job(self, row: np.void) -> UserJob:
        job: dict[str, Any] = {name: row[name].item() for name in _JOB.names or ()}
        reason = self.reasons[job["reason"]] if job["reason"] >= 0 else ""
        words, managed = parse(reason), job["place"] >= 0
        low, middle, high = self.starts.get(job["job_id"], (None, None, None))
        return UserJob(
            job_id=job["job_id"],
            waited=round(job["waited"], 3),
            gpus=job["gpus"],
            time_limit=job["time_limit"] if isfinite(job["time_limit"]) else None,
            reason=reason,
            meaning=words.meaning,
            help=(words.help, _LONGEST) if managed and job["longest"] else (words.help,),
            place=job["place"] + 1 if managed else None,
            slurm_place=job["slurm_place"] + 1 if managed else None,
            may_lend=round(job["may_lend"], 1) if job["may_lend"] >= 0 else None,
            lent=round(job["lent"], 1),
            loans=job["loans"],
            lenders=job["lenders"] if job["lenders"] >= 0 else None,
            note=_VETOES[list(Veto)[job["veto"]]] if job["veto"] >= 0 else STOP_MEANING.get(Stop(job["stop"]), ""),
            start=None if low is None else (low, high),
            likely=middle,
        )


def _lending(found: npt.NDArray[np.void], plan: Plan) -> None:
    """What each job may lend and has lent, who goes ahead, and what stops the others."""
    raised, scope = plan.raised, plan.scope
    found["stop"][plan.managed.at] = raised.stop
    passed = scope.passable & scope.startable  # passing one that cannot start is free: it lends nothing
    found["may_lend"] = np.where(passed, raised.lent + raised.lendable, -1.0)
    found["lent"] = raised.lent
    ids, lent = found["job_id"].tolist(), lent_by(plan)
    found["loans"] = [lent[job].loans if job in lent else 0 for job in ids]
    for one in raised.raises:
        found["lenders"][one.at] = len(one.lenders)

"""The user record: what one user may know of a cycle, which is about this user's own jobs only.

A `UserRecord` holds no id, name, number or request of somebody else's job. It does hold how many jobs wait, all users
together: a place means nothing without it; and to how many jobs each has lent, and how much, as that is why it waits.
Run-time predictions are left out, because they may rest on the jobs of others (docs/estimates.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any, Final, Literal, Self

import numpy as np

from rltuned.core import reasons
from rltuned.core.tables import Bools, Partition, Rows, Snapshot
from rltuned.decide.decision import LentRecord, LimitRecord, ProbeRecord, StartRecord, lent_by
from rltuned.decide.plan import Plan
from rltuned.decide.raising import STOP_MEANING, Stop
from rltuned.decide.resizing import Registration, ResizeAdvice, advice
from rltuned.decide.scope import Veto

VERSION: Final = 2
MOST_JOBS: Final = 500
"""Jobs of one record: those at the front. A record then takes at most a megabyte."""

LastJobs = Mapping[str, Sequence[tuple[float, float]]]
"""Run time and limit, seconds, of the jobs of each user that ended last, of those that had a limit."""

_LONGEST: Final = (
    "Its time limit is the longest that its partition allows. If it needs less: "
    "`scontrol update JobId=JOBID TimeLimit=…`."
)
_VETOES: Final[Mapping[Veto, str]] = {
    **{veto: veto.meaning for veto in Veto},
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
    time_limit: float | None  # seconds; None: none
    reason: str
    meaning: str
    help: tuple[str, ...]  # what its owner can do; JOBID stands for its id
    place: int | None = None
    """In the managed queue, 1 first: as rltuned wants it, or, where it writes nothing, as Slurm has it. None: left
    alone."""
    slurm_place: int | None = None
    may_lend: float | None = None
    """GPU-seconds in all; once they are lent, nobody else's job passes it. None: rltuned lets nobody pass it."""
    lent: float = 0.0  # GPU-seconds
    loans: int = 0  # to how many jobs it has lent
    lenders: int | None = None
    """How many jobs lend for it, as it goes ahead of them; None: it does not go ahead."""
    note: str = ""  # why it goes no further ahead, or why rltuned leaves it alone
    start: tuple[float, float | None] | None = None
    """80 % interval of its start, epoch seconds. None, of its end: beyond the simulation; as a whole: not known."""
    likely: float | None = None  # as likely before as after it, epoch seconds
    shorter: tuple[
        LimitRecord, ...
    ] = ()  # shorter limits with which it would start noticeably sooner; as `StartRecord`


@dataclass(frozen=True)
class LimitsUsed:
    """What a user's last jobs took of the time limits that they asked for. Jobs without a limit do not count."""

    jobs: int
    ran: float  # seconds, all of them together
    asked: float  # likewise
    reached: int  # of these jobs, those that ran until their limit

    @classmethod
    def of(cls, last: Sequence[tuple[float, float]]) -> Self | None:
        """Of jobs as in `LastJobs`; None: of none."""
        ran, asked = (sum(column) for column in zip(*last, strict=True)) if last else (0.0, 0.0)
        return cls(len(last), ran, asked, sum(took >= limit for took, limit in last)) if asked else None


@dataclass(frozen=True, kw_only=True)
class UserRecord:
    """One user's pending jobs, and those running ones that can resize themselves."""

    version: Literal[2]
    time: float  # of the reading of Slurm, epoch seconds
    interval: float  # seconds after which the next record is made
    user: str
    moves: bool  # whether rltuned writes its order to Slurm
    managed: int  # jobs of all users that `UserJob.place` counts
    jobs: tuple[UserJob, ...]
    left_out: int
    outcomes: int = 0  # earlier forecasts of all users that the start times are calibrated on
    probes: tuple[ProbeRecord, ...] = ()
    not_simulated: str = ""  # as in `StartRecord`
    elastic: tuple[ResizeAdvice, ...] = ()
    limits: tuple[float, ...] = ()  # as in `StartRecord`
    limits_used: LimitsUsed | None = None  # None: none of this user's jobs has ended that is known

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form; what is not known is left out."""
        jobs = [{key: value for key, value in vars(job).items() if value is not None} for job in self.jobs]
        return {
            **vars(self),
            "jobs": jobs,
            "elastic": [vars(each) for each in self.elastic],
            "limits_used": None if self.limits_used is None else vars(self.limits_used),
        }


@dataclass(frozen=True)
class UserRecords:
    """What the records of all users are made of: a reading with P pending jobs, and what was planned on it."""

    snapshot: Snapshot
    interval: float  # seconds from one record to the next
    plan: Plan | None = None  # None: nothing was planned
    moves: bool = False  # whether the plan is written to Slurm
    starts: StartRecord | None = None
    elastic: Mapping[str, Sequence[ResizeAdvice]] = field(default_factory=dict)  # by user
    last: LastJobs = field(default_factory=dict)

    def advised(self, registered: Callable[[Snapshot], Mapping[int, Registration]]) -> "UserRecords":
        """With advice for the jobs that have `registered`, who are asked for only where a plan is written to Slurm."""
        moved = self.plan if self.moves else None
        return self if moved is None else replace(self, elastic=advice(moved, registered(self.snapshot)))

    @cached_property
    def users(self) -> tuple[str, ...]:
        """Who has a pending job, or advice for a running one."""
        jobs = self.snapshot.jobs
        waiting = [jobs.user.names[code] for code in np.unique(jobs.user.codes[jobs.pending]).tolist() if code >= 0]
        return tuple(dict.fromkeys([*waiting, *filter(None, self.elastic)]))

    def record(self, user: str) -> UserRecord:
        """What `user` may know; without jobs where nobody of that name has one."""
        jobs, starts = self.snapshot.jobs, self.starts
        mine = np.empty(0, dtype=np.intp)
        if user and user in jobs.user.names:
            mine = np.flatnonzero(jobs.user.codes[jobs.pending] == jobs.user.names.index(user))
        mine = mine[np.argsort(self._position[mine], kind="stable")]
        front = mine[:MOST_JOBS]
        return UserRecord(
            version=VERSION,
            time=self.snapshot.time,
            interval=self.interval,
            user=user,
            moves=self.moves,
            managed=0 if self.plan is None else len(self.plan.rows),
            jobs=tuple(self._job(at) for at in front.tolist()),
            left_out=len(mine) - len(front),
            outcomes=0 if starts is None else starts.outcomes,
            probes=() if starts is None else starts.probes,
            not_simulated="" if starts is None else starts.not_simulated,
            elastic=tuple(self.elastic.get(user, ())) if user else (),
            limits=() if starts is None else starts.limits,
            limits_used=LimitsUsed.of(self.last.get(user, ())) if user else None,
        )

    @cached_property
    def _position(self) -> Rows:
        """(P,) place in the order of the whole queue that `UserJob.place` goes by; behind it what is not managed."""
        position, plan = np.arange(len(self.snapshot.jobs.pending)), self.plan
        if plan is not None:
            position += len(plan.rows)
            order = plan.queue if self.moves else plan.managed.queue(plan.base)
            position[plan.managed.at[order]] = np.arange(len(plan.rows))
        return position

    @cached_property
    def _longest(self) -> Bools:
        """(P,) whether the time limit is the longest of the job's partition."""

        def longest(parts: Sequence[Partition | None]) -> float:
            return max((part.max_time for part in parts if part is not None), default=np.inf)

        rows = self.snapshot.jobs.pending
        most = self.snapshot.by_partitions(rows, longest, none=np.inf, kind=np.float64)
        return np.asarray(self.snapshot.jobs.time_limit[rows] >= most, dtype=np.bool_)

    @cached_property
    def _lent(self) -> dict[int, LentRecord]:
        return {} if self.plan is None else lent_by(self.plan)

    def _job(self, at: int) -> UserJob:
        jobs, plan, now = self.snapshot.jobs, self.plan, self.snapshot.time
        row = int(jobs.pending[at])
        job, eligible, limit = int(jobs.job_id[row]), float(jobs.eligible_time[row]), float(jobs.time_limit[row])
        reason = jobs.reason.value(row)
        words = reasons.parse(reason)
        start = None if self.starts is None else self.starts.of(job)
        found = UserJob(
            job_id=job,
            waited=round(now - eligible, 3) if eligible <= now else 0.0,
            gpus=int(jobs.gpus[row]),
            time_limit=limit if isfinite(limit) else None,
            reason=reason,
            meaning=words.meaning,
            help=(words.help,),
            start=None if start is None else start.interval,
            likely=None if start is None else start.middle,
            shorter=() if self.starts is None else self.starts.shorter.get(job, ()),
        )
        return found if plan is None else self._planned(found, plan, at)

    def _planned(self, job: UserJob, plan: Plan, at: int) -> UserJob:
        """With the place of a job, why it has that, and what it lends."""
        scope, raised, veto, stop = plan.scope, plan.raised, int(plan.scope.veto[at]), Stop.NONE
        if veto < 0:
            nth = int(np.searchsorted(plan.managed.at, at))
            place = int((plan.rank if self.moves else plan.base_rank)[nth]) + 1
            job = replace(job, place=place, slurm_place=int(plan.base_rank[nth]) + 1)
            stop = Stop(raised.stop[nth]) if self.moves else stop
            if self._longest[at]:
                job = replace(job, help=(*job.help, _LONGEST))
        job = replace(job, note=STOP_MEANING.get(stop, "") if veto < 0 else _VETOES[list(Veto)[veto]])
        if not self.moves:
            return job
        lent, known = float(raised.lent[at]), self._lent.get(job.job_id)
        # Passing one that cannot start is free: it lends nothing.
        passed = scope.passable[at] and scope.startable[at]
        return replace(
            job,
            may_lend=round(lent + float(raised.lendable[at]), 1) if passed else None,
            lent=round(lent, 1),
            loans=0 if known is None else known.loans,
            lenders=next((len(one.lenders) for one in raised.raises if one.at == at), None),
        )

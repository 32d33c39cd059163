"""Which pending jobs are managed, and why the others are left alone."""

import enum
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import SPLIT
from rltuned.core.config import Config, ScopeSection, Stage
from rltuned.core.pools import MOST_REQUESTS, MOST_SETS, Pools
from rltuned.core.reasons import Waits, parse
from rltuned.core.tables import Bools, Category, Ints, JobTable, Partition, Rows, Snapshot


class Veto(enum.StrEnum):
    """Why a pending job is left to Slurm. The first that applies counts, in this order."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """A veto with its name in JSON, and in words."""
        veto = str.__new__(cls, name)
        veto._value_, veto.meaning = name, meaning
        return veto

    UNREADABLE = "unreadable", "what Slurm says of it cannot be understood (`rltuned doctor` says what)"
    HELD = "held", "the job is held (priority 0); only its owner or an admin may release it"
    SPLIT_ARRAY = (
        "split-array",
        "tasks of this array that wait have records of their own: changed, held or requeued alone; it lends as before",
    )
    FOREIGN = "foreign", "somebody else set this job's priority, site factor or placement; their value stands"
    DEPENDENCY = "dependency", "it waits for another job; Slurm gives it a place when it becomes eligible"
    NOT_ELIGIBLE = "not-eligible", "Slurm lets it start later at the earliest"
    HETEROGENEOUS = (
        "heterogeneous",
        "a heterogeneous job starts as a whole through backfill; its components are not reordered",
    )
    NO_PRIORITY = (
        "no-priority",
        (
            "sprio does not list it, or with no term but 0: an explicit priority was set by hand, or Slurm has not "
            "calculated one yet"
        ),
    )
    NEGATIVE_NICE = "negative-nice", "an admin gave it a negative nice: what was decided about this job stands"
    DEADLINE = "deadline", "its --deadline is near: Slurm ends it if it starts too late, so no job is moved before it"
    PARTITION = "partition", "its partition is outside the configured scope"
    QOS = "qos", "its QOS is outside the configured scope"
    ACCOUNT = "account", "its account is outside the configured scope"
    USER = "user", "its user opted out or is outside the configured scope"
    RESERVATION = "reservation", "it runs in a reservation"
    SEVERAL_QOS = (
        "several-qos",
        "it may run under several QOS, of different priorities: nobody knows which one counts",
    )
    SEVERAL_TIERS = "several-tiers", "it asks for partitions of different priority tiers"
    NODE_SETS = (
        "node-sets",
        (
            f"the queue asks for more than {MOST_SETS} different sets of nodes (or {MOST_REQUESTS} combinations "
            "of partition, features, GPUs and node lists), and few ask for this one, or its node list cannot be read "
            "or is too long; only the most common ones are compared"
        ),
    )
    NEVER_RUNS = (
        "never-runs",
        "no node of its partitions can ever satisfy the request; moving it forward would only block others",
    )
    BLOCKED = (
        "blocked",
        (
            "it cannot start now, whatever its priority: for its reason in squeue, or because its partition is down or "
            "too few of its nodes are up"
        ),
    )
    CHANGED = "changed", "what it asks for has changed: it first gets back the place that Slurm alone gives it"
    CANARY = "canary", "it is not part of the canary"


NEAR: Final = 6 * 3600.0
"""Seconds: a job with a deadline that has to start within so long is left alone. One that may start later lends as any
other does: else a deadline in a year's time would keep everybody from passing."""

_CANNOT_START: Final = frozenset({Veto.HELD, Veto.DEPENDENCY, Veto.NOT_ELIGIBLE, Veto.NEVER_RUNS, Veto.BLOCKED})
_NOT_PASSED: Final = frozenset(
    {
        # Nobody knows what was decided for these, or a late start ends them.
        *(Veto.UNREADABLE, Veto.NO_PRIORITY, Veto.SEVERAL_QOS, Veto.DEADLINE),
        # Who is out of scope neither gains nor lends.
        *(Veto.PARTITION, Veto.QOS, Veto.ACCOUNT, Veto.USER, Veto.RESERVATION),
    }
)


@dataclass(frozen=True)
class Scope:
    """The verdict on every pending job. P pending jobs, in the order of `JobTable.pending`."""

    rows: Rows
    veto: npt.NDArray[np.int8]  # (P,) index into `list(Veto)`, −1 for a managed job
    base: Ints
    """(P,) priority that the job has without rltuned, 0 for a held one; the highest of its partitions'."""
    least: Ints  # (P,) the lowest of its partitions'
    tier: Ints
    startable: Bools
    """(P,) whether room or its turn is all that keeps the job from starting: passing another one costs nobody
    anything."""
    passable: Bools
    """(P,) whether the job may be passed at all: it is in scope, and Slurm says what was decided for it."""
    decided: Ints
    """(P,) the least that the site and its people decided for its place, over its partitions: terms of partition, QOS,
    association and nice, and a SiteFactor of somebody else."""
    most_decided: Ints  # (P,) the most, over its partitions

    @property
    def managed(self) -> Rows:
        """Positions (not rows) of managed jobs."""
        return np.flatnonzero(self.veto < 0)

    def vetoed(self) -> dict[Veto, Rows]:
        """Rows by veto."""
        return {veto: self.rows[self.veto == code] for code, veto in enumerate(Veto) if (self.veto == code).any()}


def examine(snapshot: Snapshot, pools: Pools, config: Config, applied: AppliedChanges) -> Scope:
    """Scope of all pending jobs; `pools`: of the pending jobs of `snapshot`."""
    jobs = snapshot.jobs
    rows = jobs.pending
    veto, codes = np.full(len(rows), -1, dtype=np.int8), {reason: code for code, reason in enumerate(Veto)}

    startable, passable = np.ones((2, len(rows)), dtype=np.bool_)

    def apply(reason: Veto, where: Bools) -> None:
        veto[where & (veto < 0)] = codes[reason]
        if reason in _CANNOT_START:
            startable[where] = False
        if reason in _NOT_PASSED:
            passable[where] = False

    priority, site, known = jobs.priority[rows], jobs.site_factor[rows], jobs.site_known[rows]
    ours, foreign, other_request = _claims(jobs, rows, applied)
    if snapshot.unread.jobs:
        apply(Veto.UNREADABLE, np.isin(jobs.job_id[rows], list(snapshot.unread.jobs)))
    apply(Veto.HELD, jobs.held[rows] | (priority == 0))
    waits = jobs.reason[rows].mapped(lambda reason: parse(reason).waits.value, none=Waits.ROOM.value, kind=np.int64)
    split = jobs.request[rows].mapped(SPLIT.__eq__, none=False)
    apply(Veto.SPLIT_ARRAY, split | (waits == Waits.SOME.value))
    changed = known & (site != ours)  # somebody else decided
    apply(Veto.FOREIGN, foreign | changed)
    apply(Veto.DEPENDENCY, jobs.dependent[rows])
    eligible = jobs.eligible_time[rows]
    apply(Veto.NOT_ELIGIBLE, ~(eligible <= snapshot.time))
    apply(Veto.HETEROGENEOUS, jobs.het_job_id[rows] > 0)
    apply(Veto.NO_PRIORITY, ~known)
    apply(Veto.NEGATIVE_NICE, jobs.nice[rows] < 0)
    apply(Veto.DEADLINE, jobs.deadline[rows] - jobs.time_limit[rows] < snapshot.time + NEAR)
    scope = config.scope
    apply(Veto.PARTITION, ~_allowed(jobs.partition, rows, scope.partitions, scope.exclude_partitions, several=True))
    apply(Veto.QOS, ~_allowed(jobs.qos, rows, scope.qos, scope.exclude_qos, several=True))
    apply(Veto.ACCOUNT, ~_allowed(jobs.account, rows, scope.accounts, scope.exclude_accounts))
    apply(Veto.USER, ~_allowed(jobs.user, rows, scope.users, scope.exclude_users))
    apply(Veto.RESERVATION, _reserved(jobs, rows, scope))
    apply(Veto.SEVERAL_QOS, jobs.qos[rows].mapped(lambda name: "," in name, none=False))
    tier = priority_tiers(snapshot, rows)
    apply(Veto.SEVERAL_TIERS, tier < 0)
    apply(Veto.NODE_SETS, pools.pool_of == pools.rest)
    capable = pools.nodes.sum(axis=1)
    apply(Veto.NEVER_RUNS, capable[pools.pool_of] < np.maximum(jobs.nodes[rows], 1))
    able = (pools.nodes & snapshot.nodes.usable).sum(axis=1)
    short = able[pools.pool_of] < np.maximum(jobs.nodes[rows], 1)
    # A limit, a licence or a begin time is none of our business: moving such a job changes nothing for it, and placing
    # it would keep room from others that can use it.
    room = (waits == Waits.ROOM.value) | (waits == Waits.SOME.value)
    # A partition that is not listed is not known to be down.
    down = snapshot.by_partitions(
        rows, lambda parts: all(part is not None and not part.up for part in parts), none=False
    )
    apply(Veto.BLOCKED, short | ~room | down)
    apply(Veto.CHANGED, other_request)
    if config.cycle.stage is Stage.CANARY:
        canary = _canary(jobs, rows, scope)
        apply(Veto.CANARY, ~canary)
        if isinstance(scope.canary, tuple):  # others are none of the canary's business; of a part of the jobs, all lend
            passable &= canary
    theirs = np.where(changed, site, 0)  # what an admin adds is part of what Slurm alone would do
    base, least = (
        np.where(known, np.maximum(sums[rows] + theirs, 1), priority) for sums in (jobs.base, jobs.base_least)
    )
    decided, most_decided = decided_terms(jobs, rows)
    return Scope(rows, veto, base, least, tier, startable, passable, decided + theirs, most_decided + theirs)


def decided_terms(jobs: JobTable, rows: Rows) -> tuple[Ints, Ints]:
    """(n,) the least and the most that `JobTable.decided` adds up to, over the partitions of each job."""
    column = jobs.decided[rows]
    return (
        column.mapped(lambda text: min(map(_added_up, text.split(" or "))), none=0, kind=np.int64),
        column.mapped(lambda text: max(map(_added_up, text.split(" or "))), none=0, kind=np.int64),
    )


def _added_up(terms: str) -> int:
    """Of "nice=20 partition=1000": 980. Slurm subtracts a nice and adds the others."""
    total = 0
    for term in terms.split():
        name, _, value = term.partition("=")
        total += -int(value) if name == "nice" else int(value)
    return total


def _claims(jobs: JobTable, rows: Rows, applied: AppliedChanges) -> tuple[Ints, Bools, Bools]:
    """Our site factor on each job (0: none), whether it is foreign, and whether its request has changed since."""
    site = np.zeros(len(rows), dtype=np.int64)
    foreign, other_request = np.zeros((2, len(rows)), dtype=np.bool_)
    for at, record in applied.on(jobs, rows):
        now = jobs.request.value(rows[at])
        site[at], foreign[at] = record.site_factor, record.foreign
        other_request[at] = bool(record.site_factor and now and record.request) and now != record.request
    return site, foreign, other_request


def _allowed(
    column: Category,
    rows: Rows,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    several: bool = False,
) -> Bools:
    """Whether each row's value is in scope; `several`: the value is a comma list and all of it must be."""
    if not include and not exclude:
        return np.ones(len(rows), dtype=np.bool_)

    def inside(name: str) -> bool:
        parts = name.split(",") if several else [name]
        return all((not include or part in include) and part not in exclude for part in parts)

    return column[rows].mapped(inside, none=not include)


def _reserved(jobs: JobTable, rows: Rows, scope: ScopeSection) -> Bools:
    codes = jobs.reservation.codes[rows]
    if scope.exclude_reservations == "all":
        return np.asarray(codes >= 0, dtype=np.bool_)
    return ~_allowed(jobs.reservation, rows, (), scope.exclude_reservations)


def priority_tiers(snapshot: Snapshot, rows: Rows) -> Ints:
    """(n,) priority tier of each job; −1 where the partitions that it may run in differ in it, or are unknown."""

    def tier(parts: Sequence[Partition | None]) -> int:
        values = {part.priority_tier if part else -1 for part in parts}
        return values.pop() if len(values) == 1 else -1

    return snapshot.by_partitions(rows, tier, none=-1, kind=np.int64)


def _canary(jobs: JobTable, rows: Rows, scope: ScopeSection) -> Bools:
    if isinstance(scope.canary, tuple):
        return _allowed(jobs.partition, rows, scope.canary, (), several=True)
    # A hash of the id, not of the position: a job stays in or out of the canary for its whole life.
    percent = [zlib.crc32(str(job).encode()) % 10_000 / 100 for job in jobs.job_id[rows]]
    return np.array(percent, dtype=np.float64) < scope.percent

"""The simulated cluster as Slurm: `SlurmReader` and `SlurmWriter` on a `Simulation`. The daemon runs on it unchanged.

What was measured on real Slurm and holds here:

- Multifactor priorities are computed at submission and every PriorityCalcPeriod. SiteFactor is added and Nice taken
  off, with a floor of 1.
- An explicit Priority is frozen, resets Nice to 0 for good, and is handed back by a release.
- sprio lists no held job, no job with an explicit priority, and no job submitted since the last calculation.
- OverSubscribe is one-way. An ExcNodeList that leaves too few nodes holds the job (BadConstraints) until it is cleared.
- Running jobs take a priority without effect and refuse placement. A user who is no operator is denied.
- The RPC limiter makes the client wait. Answers take virtual time, so jobs start between a reading and the write that
  follows it.

Not simulated: arrays and heterogeneous jobs, dependencies, requeue, a slurmctld that is away.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.changes import Change, Field, JobStatus, Outcome, OverSubscribe, WriteResult
from rltuned.cluster.ended import EndedJob, Past
from rltuned.cluster.hostlist import expand
from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Bools, Category, Floats, Health, Ints, JobState, JobTable, Rows, Snapshot
from rltuned.errors import RltunedError, SlurmError, SlurmParseError
from rltuned.policy.multifactor import USUAL, Weights
from rltuned.simulate.engine import Simulation, request_columns
from rltuned.simulate.people import Act, Intervention
from rltuned.simulate.priorities import MultifactorPriorities
from rltuned.simulate.values import Backfill, Estimates, JobFate, SimulationSettings
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.writer import update_word
from rltuned.workload.jobs import Workload

NO_PRIORITY: Final = -1
"""Stands for "no explicit priority"."""

YES_ISOLATES: Final = frozenset({(24, 11)})
"""Releases on which OverSubscribe=YES in an OverSubscribe=NO partition was measured to put one job on a node."""

HIDES_DEFAULT: Final = (25, 11)
"""Since this release a default job and one that was set to NO look the same."""


USER_HOLD: Final = 1
ADMIN_HOLD: Final = 2
BAD_CONSTRAINTS: Final = 3

SHARE_YES: Final = 1
SHARE_NO: Final = 2
"""0: the partition's default."""


class _Overrides:
    """What is set on N jobs beside what they were submitted with, and the priorities that follow."""

    def __init__(self, n: int) -> None:
        self.site = np.zeros(n, dtype=np.int64)
        self.nice = np.zeros(n, dtype=np.int64)
        self.explicit = np.full(n, NO_PRIORITY, dtype=np.int64)
        self.hold = np.zeros(n, dtype=np.int8)
        self.share = np.zeros(n, dtype=np.int8)
        self.excluded: dict[int, str] = {}

    def priority(self, rows: Rows, base: Ints, hold: npt.NDArray[np.int8]) -> Ints:
        """(n,) as squeue shows it: 0 for held jobs. `base`, `hold`: (N,) multifactor's sums, and holds."""
        factors = np.maximum(base[rows] + self.site[rows] - self.nice[rows], 1)
        value = np.where(self.explicit[rows] >= 0, self.explicit[rows], factors)
        return np.where(hold[rows] > 0, 0, value)


@dataclass(frozen=True)
class Latency:
    """How long Slurm's answers take, virtual seconds. Measured on 24.11 with some thousand jobs (two shared cores)."""

    reading: float = 0.2
    update: float = 0.002
    """Per job."""


NO_LATENCY: Final = Latency(0.0, 0.0)


@dataclass(frozen=True)
class Limiter:
    """SlurmctldParameters=rl_enable: a token bucket per user; root and SlurmUser are exempt."""

    bucket: int = 30
    refill: float = 2.0
    """Per second."""


@dataclass(frozen=True)
class Profile:
    """How this Slurm is configured, and what its client may do."""

    release: tuple[int, int] = (24, 11)
    privilege: Privilege = Privilege.OPERATOR
    epoch: int = 1_800_000_000
    """Epoch seconds of the workload's 0."""
    calc_period: float = 60.0
    """PriorityCalcPeriod, seconds."""
    latency: Latency = Latency()
    limiter: Limiter | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A value of a pending job that is not as people left it."""

    job_id: int
    field: Field
    value: int | str
    theirs: int | str


class SimulatedClock:
    """The simulation's time as the daemon's clock (`rltuned.daemon.clock.Clock`). Sleeping advances the simulation."""

    def __init__(self, slurm: "SimulatedSlurm") -> None:
        self._slurm = slurm
        self._start = slurm.simulation.now

    def time(self) -> float:
        """Epoch seconds."""
        return self._slurm.time

    def steady(self) -> float:
        """As `time`: nobody sets this clock."""
        return self._slurm.time

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._slurm.simulation.now - self._start

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass on the cluster."""
        self._slurm.advance(self._slurm.simulation.now + seconds)


class _ByPriority:
    """Slurm's own order (`rltuned.simulate.engine.Ranker`)."""

    ages = False
    """Priorities change at each calculation only, and `reorder` follows."""
    at_once = True

    def __init__(self, slurm: "SimulatedSlurm") -> None:
        self._slurm = slurm

    def fixed(self, simulation: Simulation) -> Floats | None:
        del simulation
        return None

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        del simulation
        return self._slurm.keys(rows)


class SimulatedSlurm:
    """slurmctld, its jobs and the people around it. Job ids are rows of the workload + 1.

    Nothing here knows a daemon: `reader` and `writer` are what it gets, `leftovers` says what is left of it afterwards.
    """

    def __init__(
        self,
        shape: ClusterShape,
        jobs: Workload,
        estimates: Estimates,
        settings: SimulationSettings | None = None,
        weights: Weights = USUAL,
        interventions: Sequence[Intervention] = (),
        profile: Profile | None = None,
        outside: Callable[[], float] | None = None,
        past: Sequence[EndedJob] = (),
    ) -> None:
        """Args:
        shape: the cluster.
        jobs: what is submitted, in order of submission.
        estimates: time limits (backfill, kill); r is not looked at, Slurm knows none.
        settings: of the scheduler.
        weights: of priority/multifactor.
        interventions: what people do, in any order.
        profile: release, privilege, limiter, delays.
        outside: epoch seconds that pass by themselves (a real clock, say): each reading and write first catches up.
        past: jobs that ended before the simulation began, for the accounting.
        """
        self.simulation = Simulation(shape, jobs, estimates, settings)
        self.shape, self.jobs, self.profile = shape, jobs, profile or Profile()
        self.priorities = MultifactorPriorities(self.simulation, weights)
        n = len(jobs)
        self._outside = outside
        self._past = sorted(past, key=lambda job: job.end)
        self._ranker = _ByPriority(self)
        self._interventions = sorted(interventions, key=lambda intervention: intervention.time)
        self._next = 0
        """Of the interventions."""
        self._calculated = math.floor(self.simulation.now / self.profile.calc_period)
        self._tokens = float(self.profile.limiter.bucket) if self.profile.limiter else math.inf
        self._tokens_at = self.simulation.now
        self._base = np.full(n, -1, dtype=np.int64)
        """Multifactor's sum at the last calculation; −1 before the first."""
        self._listed = np.zeros(n, dtype=np.bool_)
        """A calculation has passed since the job was submitted: sprio may list it."""
        self._overrides = _Overrides(n)
        """What is set now."""
        self._theirs = _Overrides(n)
        """What would be set if only people had acted."""
        self._static = request_columns(shape, jobs, self.simulation.asked) | {
            "time_limit": estimates.time_limit,
            "exclusive": np.zeros(n, dtype=np.bool_),
        }
        self._partitions = self._static["partition"].codes
        self._row_of_node = shape.nodes.row_of
        self.updates = 0
        """Job updates and releases that reached slurmctld by a writer."""

    # --- time

    @property
    def time(self) -> float:
        """Epoch seconds."""
        return self.profile.epoch + self.simulation.now

    @property
    def clock(self) -> SimulatedClock:
        """A clock for a daemon on this cluster."""
        return SimulatedClock(self)

    def finish(self) -> None:
        """Go on until no intervention is left, and no job waits (held ones aside), runs or is still to be submitted."""
        while self._next_time() < math.inf or not (self.simulation.done or self._only_running()):
            self.advance(self.simulation.now + 10.0 * self.profile.calc_period)
        self.simulation.run(self._ranker)

    def _only_running(self) -> bool:
        """Nothing is left to be decided: all jobs that are still there run."""
        return not len(self.simulation.pending) and bool((self.jobs.submit_time <= self.simulation.now).all())

    @property
    def done(self) -> bool:
        """Whether no job waits, is held, runs, or is still to be submitted."""
        return self.simulation.done and not len(self._waiting())

    def advance(self, until: float) -> None:
        """Go on to `until` (seconds on the workload's clock), with calculations and interventions at their times."""
        period = self.profile.calc_period
        while self.simulation.now < until or self._next_time() <= self.simulation.now:
            stop = min(until, self._next_time(), (self._calculated + 1) * period)
            self.simulation.run(self._ranker, max(stop, self.simulation.now))
            if self.simulation.now >= (self._calculated + 1) * period:
                self._calculate()
            while self._next_time() <= self.simulation.now:
                self._next += 1
                self._do(self._interventions[self._next - 1])

    def _next_time(self) -> float:
        return self._interventions[self._next].time if self._next < len(self._interventions) else math.inf

    def catch_up(self, at_least: float = -math.inf) -> None:
        """To the outside's time, and to `at_least` (epoch seconds)."""
        time = max(at_least, self._outside() if self._outside is not None else -math.inf) - self.profile.epoch
        if time > self.simulation.now:
            self.advance(time)

    def let_pass(self, seconds: float) -> None:
        """Virtual seconds that an answer takes. None pass where time passes by itself."""
        if seconds > 0.0 and self._outside is None:
            self.advance(self.simulation.now + seconds)

    def message(self) -> None:
        """One message to slurmctld: the limiter makes the client sleep until there is a token."""
        limiter = self.profile.limiter
        if limiter is None or self.profile.privilege is Privilege.SLURM_USER:
            return
        now = self.simulation.now
        self._tokens = min(float(limiter.bucket), self._tokens + (now - self._tokens_at) * limiter.refill)
        self._tokens_at = now
        if self._tokens < 1.0:
            wait = (1.0 - self._tokens) / limiter.refill
            self._tokens, self._tokens_at = 1.0, now + wait
            self.let_pass(wait)
        self._tokens -= 1.0

    # --- priorities

    def _calculate(self) -> None:
        """PriorityCalcPeriod: usage and all factors are computed anew. sprio lists all present jobs from now on."""
        self._calculated = math.floor(self.simulation.now / self.profile.calc_period)
        self.priorities.passed(self.simulation)
        rows = self._waiting()
        self._base[rows] = self.priorities.sums(self.simulation, rows)
        self._listed[rows] = True
        self.reorder()

    def reorder(self) -> None:
        """The queue in the order of the priorities as they are now."""
        rows = self.simulation.pending
        if len(rows):
            self.simulation.set_keys(rows, self.keys(rows))

    def keys(self, rows: Rows) -> Floats:
        """(n,) what the engine sorts by. A job that was just submitted gets its first priority here."""
        fresh = rows[self._base[rows] < 0]
        if len(fresh):
            self._base[fresh] = self.priorities.sums(self.simulation, fresh)
        return -self.priority(rows).astype(np.float64)

    def priority(self, rows: Rows) -> Ints:
        """(n,) as squeue shows it: 0 for held jobs."""
        return self._overrides.priority(rows, self._base, self._overrides.hold)

    def alone(self, rows: Rows) -> Ints:
        """(n,) priority that each job would have if nobody but people had touched it."""
        return self._theirs.priority(rows, self._base, self._overrides.hold)

    def _sprio(self, rows: Rows) -> Bools:
        """(n,) whether sprio lists each of these pending jobs."""
        overrides = self._overrides
        return np.asarray(
            self._listed[rows] & (overrides.hold[rows] == 0) & (overrides.explicit[rows] < 0), dtype=np.bool_
        )

    def _waiting(self) -> Rows:
        """Pending jobs in order of their id, held ones included."""
        fate = self.simulation.fate
        submitted = self.jobs.submit_time <= self.simulation.now
        return np.flatnonzero((fate == JobFate.WAITING) & submitted)

    # --- people

    def _do(self, done: Intervention) -> None:
        """Carry an intervention out, as far as Slurm permits it."""
        if done.act in {Act.DRAIN, Act.RESUME}:
            node = self._row_of_node[str(done.value)]
            self.simulation.set_usable(node, usable=done.act is Act.RESUME)
            return
        row = done.row
        if not 0 <= row < len(self.jobs):
            raise RltunedError(f"an intervention names row {row} of a workload of {len(self.jobs)} jobs")
        if not self.is_pending(row):
            return
        overrides, theirs = self._overrides, self._theirs
        match done.act:
            case Act.HOLD if not overrides.hold[row]:  # of a held job, only an operator can change who holds it
                theirs.explicit[row] = NO_PRIORITY
                self._hold(row, USER_HOLD)
            case Act.ADMIN_HOLD | Act.ADMIN_PRIORITY if done.act is Act.ADMIN_HOLD or done.value == 0:
                theirs.explicit[row] = NO_PRIORITY
                self._hold(row, ADMIN_HOLD)
            case Act.RELEASE if overrides.hold[row] == USER_HOLD:
                self.hand_back(row)
            case Act.ADMIN_RELEASE:
                theirs.explicit[row] = NO_PRIORITY
                self.hand_back(row)
            case Act.CANCEL:
                self.simulation.cancel(row)
            case Act.NICE if overrides.explicit[row] < 0:
                overrides.nice[row] = theirs.nice[row] = int(done.value)
            case Act.EXCLUDE:
                self._exclude(row, str(done.value))
            case Act.ADMIN_PRIORITY if overrides.hold[row] == 0:
                for side in (overrides, theirs):
                    side.explicit[row], side.nice[row] = int(done.value), 0
            case Act.ADMIN_SITE_FACTOR:
                overrides.site[row] = theirs.site[row] = int(done.value)
            case _:
                pass
        self.reorder()

    def is_pending(self, row: int) -> bool:
        """Whether the job waits, held or not."""
        return bool(self.simulation.fate[row] == JobFate.WAITING and self.jobs.submit_time[row] <= self.simulation.now)

    def _hold(self, row: int, kind: int) -> None:
        """Priority 0. An explicit priority is lost for good, whoever set it."""
        self._overrides.hold[row] = kind
        self._overrides.explicit[row] = NO_PRIORITY
        self.simulation.hold(row)

    def hand_back(self, row: int) -> None:
        """``scontrol release`` by an operator: no hold, no explicit priority, the factors of the last calculation."""
        self._overrides.explicit[row] = NO_PRIORITY
        if self._overrides.hold[row]:
            self._overrides.hold[row] = 0
            self.simulation.release(row)

    # --- what slurmctld does with an update

    def update(self, job_id: int, changes: Sequence[Change]) -> tuple[Outcome | None, str]:
        """One line of scontrol, all fields of one job. The message is "" where Slurm accepts them without a word."""
        self.updates += 1
        row = job_id - 1
        fate = self.simulation.fate
        if not 0 <= row < len(self.jobs) or self.jobs.submit_time[row] > self.simulation.now:
            return Outcome.GONE, f"Invalid job id specified for job {job_id}"
        if self.profile.privilege is Privilege.NONE:
            return Outcome.DENIED, f"Access/permission denied for job {job_id}"
        if fate[row] not in {JobFate.WAITING, JobFate.RUNNING}:
            return Outcome.GONE, f"Job has already finished for job {job_id}"
        for change in changes:
            said = self._set(row, change.field, change.after)
            if said[1]:
                return said
        return None, ""

    def _set(self, row: int, of: Field, value: int | str) -> tuple[Outcome | None, str]:
        overrides, running = self._overrides, self.simulation.fate[row] == JobFate.RUNNING
        match of:
            case Field.SITE_FACTOR:
                overrides.site[row] = int(value)
            case Field.OVERSUBSCRIBE if running:
                return Outcome.GONE, f"Job is no longer pending execution for job {row + 1}"
            case Field.OVERSUBSCRIBE:
                overrides.share[row] = SHARE_YES if value == "YES" else SHARE_NO
                self.simulation.set_isolated(row, isolated=self._isolated(row))
        return None, ""

    def _isolated(self, row: int) -> bool:
        """Whether the job waits for an idle node and keeps it for itself."""
        partition = self.shape.partitions[self._partitions[row]].oversubscribe
        if partition in {OverSubscribe.FORCE, OverSubscribe.EXCLUSIVE}:
            return False
        share = self._overrides.share[row]
        quirk = self.profile.release in YES_ISOLATES and partition is OverSubscribe.NO
        return bool(share == SHARE_NO or (share == SHARE_YES and quirk))

    def _exclude(self, row: int, value: str) -> tuple[Outcome | None, str]:
        """ExcNodeList. Where it leaves too few nodes: priority 0, BadConstraints, until the list is changed."""
        try:
            nodes = sorted({self._row_of_node[name] for name in expand(value)})
        except (KeyError, SlurmParseError):
            return None, f"Invalid node name specified for job {row + 1}"
        if self._overrides.hold[row] == BAD_CONSTRAINTS:
            self.hand_back(row)
        self._overrides.excluded[row] = value
        if not value:
            del self._overrides.excluded[row]
        self.simulation.set_excluded(row, nodes)
        asked = self.simulation.asked
        able = asked.pool_nodes[asked.pool[row]].copy()
        able[nodes] = False
        have = asked.capacity[able, 0].sum() if asked.gpus[row] else asked.capacity[able, 1].sum()
        need = asked.gpus[row] or asked.cpus[row]
        impossible = able.sum() < asked.nodes[row] or (not asked.per_node[row] and have < need)
        if impossible and not self._overrides.hold[row]:
            self._hold(row, BAD_CONSTRAINTS)
        return None, ""

    # --- the two ports

    def reader(self) -> "SimulatedReader":
        """A `SlurmReader`."""
        return SimulatedReader(self)

    def writer(self) -> "SimulatedWriter":
        """A `SlurmWriter`."""
        return SimulatedWriter(self)

    # --- looking at it from outside

    def leftovers(self) -> list[Leftover]:
        """Pending jobs whose site factor or isolation are not as people alone have left them."""
        found = []
        overrides, theirs = self._overrides, self._theirs
        for row in self._waiting():
            job = int(row)
            pairs: list[tuple[Field, int | str, int | str]] = [
                (Field.SITE_FACTOR, int(overrides.site[job]), int(theirs.site[job])),
                (Field.OVERSUBSCRIBE, "NO" if self._isolated(job) else "OK", "OK"),
            ]
            found += [Leftover(job + 1, of, value, own) for of, value, own in pairs if value != own]
        return found

    # --- what the commands show

    def reason(self, rows: Rows) -> Category:
        """Reason of pending jobs: the first of each partition waits for resources, the others for their turn."""
        codes = np.zeros(len(rows), dtype=np.int32)
        queue = self.simulation.pending
        _, first = np.unique(self._partitions[queue], return_index=True)
        codes[np.isin(rows, queue[first])] = 1
        hold = self._overrides.hold[rows]
        codes[hold > 0] = hold[hold > 0] + 1
        return Category(codes, ("Priority", "Resources", "JobHeldUser", "JobHeldAdmin", "BadConstraints"))

    def shown_share(self, rows: Rows) -> Category:
        """OverSubscribe of each job as squeue shows it."""
        share = self._overrides.share[rows]
        forced = np.array([p.oversubscribe is OverSubscribe.FORCE for p in self.shape.partitions], dtype=np.bool_)[
            self._partitions[rows]
        ]
        names = (OverSubscribe.OK, OverSubscribe.YES, OverSubscribe.NO)
        if self.profile.release >= HIDES_DEFAULT:
            names = (OverSubscribe.UNKNOWN, OverSubscribe.YES, OverSubscribe.UNKNOWN)
        return Category(np.where(forced, SHARE_YES, share).astype(np.int32), tuple(name.value for name in names))

    def ended(self, since: float, until: float) -> list[EndedJob]:
        """Jobs that ended in [since, until), epoch seconds, in order of their ends."""
        first, last = (bisect_left(self._past, time, key=lambda job: job.end) for time in (since, until))
        result, jobs, epoch = self.simulation.result(), self.jobs, self.profile.epoch
        end = np.floor(result.end) + epoch  # NaN: has not ended
        rows = np.flatnonzero((end >= since) & (end < until) & ~np.isnan(result.start))
        rows = rows[np.argsort(result.end[rows], kind="stable")]
        limits = self.simulation.estimates.time_limit
        return self._past[first:last] + [
            EndedJob(
                row + 1,
                jobs.user.value(row),
                jobs.account.value(row),
                self._static["partition"].value(row),
                int(jobs.gpus[row]),
                float(limits[row]),
                float(result.end[row] - result.start[row]),
                float(end[row]),
                int(jobs.cpus[row]),
            )
            for row in rows.tolist()
        ]

    def table(self) -> JobTable:
        """Pending and running jobs in order of their id."""
        simulation, overrides, epoch = self.simulation, self._overrides, self.profile.epoch
        fate = simulation.fate
        active = np.asarray(fate == JobFate.RUNNING, dtype=np.bool_)
        waiting = self._waiting()
        rows = np.sort(np.concatenate((waiting, np.flatnonzero(active))))
        running = active[rows]
        columns: dict[str, Any] = {
            name: value.take(rows) if isinstance(value, Category) else value[rows]
            for name, value in self._static.items()
        }
        submit = np.floor(self.jobs.submit_time[rows]) + epoch
        start = np.where(running, np.floor(simulation.start[rows]) + epoch, np.nan)
        held = (overrides.hold[rows] > 0) & ~running
        known = self._sprio(rows) & ~running
        base = self._base[rows] - overrides.nice[rows]
        reason = self.reason(rows)
        ptr, index = simulation.allocations(rows)
        return JobTable(
            **columns,
            job_id=rows.astype(np.int64) + 1,
            state=np.where(running, JobState.RUNNING, JobState.PENDING).astype(np.int8),
            reason=Category(np.where(running, -1, reason.codes).astype(np.int32), reason.names),
            submit_time=submit,
            eligible_time=np.where(held, np.nan, submit),
            start_time=start,
            end_time=start + columns["time_limit"],
            held=held,
            priority=self.priority(rows),
            nice=overrides.nice[rows].copy(),
            site_factor=np.where(known, overrides.site[rows], 0),
            site_known=known,
            base=base,
            base_least=base,
            oversubscribe=self.shown_share(rows),
            exc_nodes=Category.of([overrides.excluded.get(int(row), "") for row in rows])
            if overrides.excluded
            else Category(np.full(len(rows), -1, dtype=np.int32), ()),
            node_ptr=ptr,
            node_idx=index,
        )

    def status_of(self, job_ids: Sequence[int] | None) -> dict[int, JobStatus]:
        """See `SlurmReader.status`."""
        fate = self.simulation.fate
        if job_ids is None:
            rows = self._waiting()
        else:
            asked = np.array([job - 1 for job in job_ids if 0 < job <= len(self.jobs)], dtype=np.intp)
            submitted = self.jobs.submit_time[asked] <= self.simulation.now
            rows = asked[submitted & ((fate[asked] == JobFate.WAITING) | (fate[asked] == JobFate.RUNNING))]
        pending = fate[rows] == JobFate.WAITING
        overrides, known = self._overrides, self._sprio(rows) & pending
        share, reason = self.shown_share(rows), self.reason(rows)
        columns = zip(
            rows.tolist(),
            (np.floor(self.jobs.submit_time[rows]) + self.profile.epoch).astype(np.int64).tolist(),
            pending.tolist(),
            (overrides.hold[rows] > 0).tolist(),
            self.priority(rows).tolist(),
            overrides.site[rows].tolist(),
            known.tolist(),
            share.codes.tolist(),
            reason.codes.tolist(),
            strict=True,
        )
        return {
            row + 1: JobStatus(
                job_id=row + 1,
                submit_time=submit,
                pending=waits,
                held=waits and held,
                priority=priority,
                site_factor=site if listed else None,
                oversubscribe=OverSubscribe(share.names[shown]),
                reason=reason.names[why] if waits else "",
            )
            for row, submit, waits, held, priority, site, listed, shown, why in columns
        }


class SimulatedReader:
    """`SlurmReader` on a `SimulatedSlurm`."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self.slurm = slurm

    def ping(self) -> None:
        """See `SlurmReader`; it always answers."""

    def facts(self) -> ClusterFacts:
        """A healthy Slurm."""
        slurm = self.slurm
        slurm.catch_up()
        profile, settings = slurm.profile, slurm.simulation.settings
        limiter = profile.limiter or Limiter()
        major, minor = profile.release
        return ClusterFacts(
            version=f"{major}.{minor:02}.5",
            release=profile.release,
            cluster_name="simulated",
            user="rltuned",
            privilege=profile.privilege,
            priority_type="priority/multifactor",
            site_factor_plugin="",
            scheduler_type="sched/builtin" if settings.backfill is Backfill.NONE else "sched/backfill",
            scheduler_parameters=settings.parameters(),
            rate_limiter=profile.limiter is not None,
            rate_bucket=limiter.bucket,
            rate_refill=limiter.refill,
            accounting=True,
            accounting_reachable=True,
            accounting_tres=("gres/gpu", *(f"gres/gpu:{kind}" for kind in slurm.shape.nodes.gpu_types)),
            priority_calc_period=profile.calc_period,
        )

    def ended(self, start: float, end: float) -> Past:
        """What sacct remembers (`rltuned.slurm.port.HistoryReader`). No time passes: another thread may ask."""
        return Past(self.slurm.ended(start, end), [])

    def snapshot(self, now: float) -> Snapshot:
        """The queue and the nodes at `now`, or at the simulation's present moment if that is later."""
        slurm = self.slurm
        slurm.catch_up(now)
        slurm.message()
        taken = Snapshot(
            slurm.time,
            slurm.profile.release,
            slurm.table(),
            slurm.simulation.node_table(),
            slurm.shape.partitions,
            Health(),
        )
        slurm.let_pass(slurm.profile.latency.reading)
        return taken

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """See `SlurmReader`."""
        slurm = self.slurm
        slurm.catch_up()
        slurm.message()
        taken = slurm.status_of(job_ids)
        slurm.let_pass(slurm.profile.latency.reading)
        return taken


class SimulatedWriter:
    """`SlurmWriter` on a `SimulatedSlurm`. It refuses what scontrol's adapter refuses to send, by the same check."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self.slurm = slurm

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        """See `SlurmWriter`."""
        slurm = self.slurm
        slurm.catch_up()
        lines: dict[int, list[Change]] = {}
        refused: dict[int, str] = {}
        for index, change in enumerate(changes):
            try:
                update_word(change)
            except SlurmError as error:
                refused[index] = str(error)
            else:
                lines.setdefault(change.job_id, []).append(change)
        said: dict[int, tuple[Outcome | None, str]] = {}
        for job, line in lines.items():
            slurm.message()
            said[job] = slurm.update(job, line)
            slurm.let_pass(slurm.profile.latency.update)
        slurm.reorder()
        blind = slurm.profile.release >= HIDES_DEFAULT
        return [
            WriteResult(change, sent=False, outcome=Outcome.FAILED, message=refused[index])
            if index in refused
            else _answer(change, said[change.job_id], blind=blind)
            for index, change in enumerate(changes)
        ]


def _answer(change: Change, said: tuple[Outcome | None, str], *, blind: bool) -> WriteResult:
    outcome, message = said
    if blind and not message and change.field is Field.OVERSUBSCRIBE:
        outcome = Outcome.APPLIED  # reading back shows nothing: what scontrol says counts
    return WriteResult(change, sent=True, outcome=outcome, message=message)

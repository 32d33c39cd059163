"""The simulated cluster as Slurm, on a `Simulation`. The daemon runs on it unchanged.

What was measured on real Slurm and holds here:

- Multifactor priorities are computed at submission and every PriorityCalcPeriod. SiteFactor is added and Nice taken
  off, with a floor of 1.
- An explicit Priority of an admin is frozen, resets Nice to 0 for good, and is handed back by a release.
- sprio lists no held job, no job with an explicit priority, and no job submitted since the last calculation.
- OverSubscribe is one-way. Running jobs take a site factor without effect and refuse placement.
- Answers take virtual time, so jobs start between a reading and the write that follows it.

Not simulated: arrays and heterogeneous jobs, dependencies, requeue, excluded nodes, a slurmctld that is away.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.changes import Change, Field, JobState, JobStatus, Outcome, OverSubscribe, WriteResult
from rltuned.core.ended import EndedJob, Past
from rltuned.core.errors import RltunedError, SlurmError
from rltuned.core.tables import Bools, Category, Floats, Ints, JobTable, Rows, Snapshot
from rltuned.decide.rank.multifactor import USUAL, Weights
from rltuned.lab.demo.people import Act, Intervention
from rltuned.simulate.engine import RELEASE, Simulation
from rltuned.simulate.priorities import MultifactorPriorities
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Backfill, Estimates, JobFate, SimulationSettings
from rltuned.simulate.workload.jobs import Workload
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.writer import update_word

NO_PRIORITY: Final = -1  # stands for "no explicit priority"

USER_HOLD: Final = 1
ADMIN_HOLD: Final = 2

SHARE_YES: Final = 1
SHARE_NO: Final = 2
"""0: the partition's default. In an OverSubscribe=NO partition, YES puts one job on a node, too (24.11)."""


@dataclass(frozen=True)
class Profile:
    """How this Slurm is configured."""

    epoch: int = 1_800_000_000  # epoch seconds of the workload's 0
    calc_period: float = 60.0  # priorityCalcPeriod, seconds
    calc_phase: float = 0.0
    """Seconds behind the workload's 0 at which there is a calculation; slurmctld's count from its start."""
    listed_at_once: bool = False
    """Whether sprio lists a new job before the next calculation."""
    # Virtual seconds that an answer takes; measured on 24.11 with some thousand jobs (two shared cores).
    reading: float = 0.2
    update: float = 0.002  # per job


def as_accounted(
    jobs: Workload, ids: Rows, partitions: Sequence[str], time_limit: Floats, run_time: Floats, end: Floats
) -> list[EndedJob]:
    """(n,) jobs that have ended, as sacct has them; `end`: epoch seconds."""
    columns = (ids, jobs.gpus, time_limit, run_time, end, jobs.cpus)
    return [
        EndedJob(number, jobs.user.value(row), jobs.account.value(row), partition, gpus, limit, ran, ended, cpus)
        for row, (partition, number, gpus, limit, ran, ended, cpus) in enumerate(
            zip(partitions, *(column.tolist() for column in columns), strict=True)
        )
    ]


class StrayField(NamedTuple):
    """A field of a pending job that is not as people left it."""

    job_id: int
    field: Field


class SimulatedClock:
    """The simulation's time as the daemon's clock (`health.clock.Clock`). Sleeping advances the simulation."""

    def __init__(self, slurm: "SimulatedSlurm") -> None:
        self._slurm = slurm
        self._start = slurm.simulation.now

    def time(self) -> float:
        """Epoch seconds."""
        return self._slurm.time

    steady = time  # nobody sets this clock

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._slurm.simulation.now - self._start

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass on the cluster."""
        self._slurm.advance(self._slurm.simulation.now + seconds)


class SimulatedSlurm:
    """slurmctld, its jobs and the people around it, as `SlurmReader`, `HistoryReader` and `SlurmWriter`.

    Job ids are rows of the workload + 1. Nothing here knows a daemon: `leftovers` says what is left of it afterwards.
    It is the `Ranker` of its simulation: Slurm's own order.
    """

    ages = False
    """Priorities change at each calculation only, and `reorder` follows."""
    at_once = True

    def __init__(
        self,
        shape: ClusterShape,
        jobs: Workload,
        estimates: Estimates,
        settings: SimulationSettings | None = None,
        weights: Weights = USUAL,
        interventions: Sequence[Intervention] = (),
        profile: Profile | None = None,
        past: Sequence[EndedJob] = (),
    ) -> None:
        """`jobs`: in order of submission. `estimates`: time limits; Slurm knows no r. `past`: jobs that ended before
        the simulation began, for the accounting.
        """
        self.simulation = Simulation(shape, jobs, estimates, settings)
        self.shape, self.jobs, self.profile = shape, jobs, profile or Profile()
        self.priorities = MultifactorPriorities(self.simulation, weights)
        n = len(jobs)
        self._past = sorted(past, key=lambda job: job.end)
        self._interventions = sorted(interventions, key=lambda intervention: intervention.time)
        self._next = 0  # of the interventions
        self._calculated = self._calculations()
        # Multifactor's sum at the last calculation; −1 before the first. After that, sprio may list the job.
        self._base, self._listed = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.bool_)
        # What is set now, and what would be if only people had acted.
        self._site, self._their_site = np.zeros((2, n), dtype=np.int64)
        self._nice = np.zeros(n, dtype=np.int64)
        self._explicit = np.full(n, NO_PRIORITY, dtype=np.int64)
        self._hold, self._share = np.zeros((2, n), dtype=np.int8)
        self._partitions = np.maximum(self.simulation.asked.partition, 0)
        self._row_of_node = shape.nodes.row_of

    # --- time

    @property
    def time(self) -> float:
        """Epoch seconds."""
        return self.profile.epoch + self.simulation.now

    @property
    def clock(self) -> SimulatedClock:
        """A clock for a daemon on this cluster."""
        return SimulatedClock(self)

    @property
    def done(self) -> bool:
        """Whether no job waits, is held, runs, or is still to be submitted."""
        return self.simulation.done and not len(self.waiting())

    def finish(self) -> None:
        """Go on until no intervention is left, and no job waits (held ones aside), runs or is still to be submitted."""
        while self._next_time() < math.inf or not self.simulation.done:
            self.advance(self.simulation.now + 10.0 * self.profile.calc_period)

    def advance(self, until: float) -> None:
        """Go on to `until` (seconds on the workload's clock), with calculations and interventions at their times."""
        period, phase = self.profile.calc_period, self.profile.calc_phase
        while self.simulation.now < until or self._next_time() <= self.simulation.now:
            stop = min(until, self._next_time(), phase + (self._calculated + 1) * period)
            self.simulation.run(self, max(stop, self.simulation.now))
            if self.simulation.now >= phase + (self._calculated + 1) * period:
                self._calculate()
            while self._next_time() <= self.simulation.now:
                self._next += 1
                self._do(self._interventions[self._next - 1])

    def _next_time(self) -> float:
        return self._interventions[self._next].time if self._next < len(self._interventions) else math.inf

    def let_pass(self, seconds: float) -> None:
        """Virtual seconds that an answer takes."""
        if seconds > 0.0:
            self.advance(self.simulation.now + seconds)

    # --- priorities

    def _calculations(self) -> int:
        """How many there were since the workload's 0."""
        return math.floor((self.simulation.now - self.profile.calc_phase) / self.profile.calc_period)

    def _calculate(self) -> None:
        """PriorityCalcPeriod: usage and all factors are computed anew. sprio lists all present jobs from now on."""
        self._calculated = max(self._calculations(), self._calculated + 1)  # a sum of floats may fall short
        self.priorities.passed(self.simulation)
        rows = self.waiting()
        self._base[rows] = self.priorities.sums(self.simulation, rows)
        self._listed[rows] = True
        self.reorder()

    def reorder(self) -> None:
        """The queue in the order of the priorities as they are now."""
        rows = self.simulation.pending
        if len(rows):
            self.simulation.set_keys(rows, self.keys(self.simulation, rows))

    def fixed(self, simulation: Simulation) -> None:
        """Nothing: people and the daemon change priorities."""

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """(n,) what the engine sorts by. A job that was just submitted gets its first priority here."""
        fresh = rows[self._base[rows] < 0]
        if len(fresh):
            self._base[fresh] = self.priorities.sums(simulation, fresh)
        return -self.priority(rows).astype(np.float64)

    def priority(self, rows: Rows) -> Ints:
        """(n,) as squeue shows it: 0 for held jobs."""
        return self._priority(rows, self._site)

    def alone(self, rows: Rows) -> Ints:
        """(n,) priority that each job would have if nobody but people had touched it."""
        return self._priority(rows, self._their_site)

    def _priority(self, rows: Rows, site: Ints) -> Ints:
        factors = np.maximum(self._base[rows] + site[rows] - self._nice[rows], 1)
        value = np.where(self._explicit[rows] >= 0, self._explicit[rows], factors)
        return np.where(self._hold[rows] > 0, 0, value)

    def _sprio(self, rows: Rows) -> Bools:
        """(n,) whether sprio lists each of these pending jobs."""
        listed = self._listed[rows] | self.profile.listed_at_once
        return np.asarray(listed & (self._hold[rows] == 0) & (self._explicit[rows] < 0))

    @property
    def _waits(self) -> Bools:
        """(N,) whether the job is pending, held or not."""
        return np.asarray((self.simulation.fate == JobFate.WAITING) & (self.jobs.submit_time <= self.simulation.now))

    def waiting(self) -> Rows:
        """Pending jobs in order of their id, held ones included."""
        return np.flatnonzero(self._waits)

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
        if not self._waits[row]:
            return
        match done.act:
            case Act.HOLD if not self._hold[row]:  # of a held job, only an operator can change who holds it
                self._hold_back(row, USER_HOLD)
            case Act.ADMIN_HOLD | Act.ADMIN_PRIORITY if done.act is Act.ADMIN_HOLD or done.value == 0:
                self._hold_back(row, ADMIN_HOLD)
            case Act.RELEASE if self._hold[row] == USER_HOLD:
                self._hand_back(row)
            case Act.ADMIN_RELEASE:
                self._hand_back(row)
            case Act.CANCEL:
                self.simulation.cancel(row)
            case Act.NICE if self._explicit[row] < 0:
                self._nice[row] = int(done.value)
            case Act.ADMIN_PRIORITY if self._hold[row] == 0:
                self._explicit[row], self._nice[row] = int(done.value), 0
            case Act.ADMIN_SITE_FACTOR:
                self._site[row] = self._their_site[row] = int(done.value)
            case _:
                pass
        self.reorder()

    def _hold_back(self, row: int, kind: int) -> None:
        """Priority 0. An explicit priority is lost for good."""
        self._hold[row], self._explicit[row] = kind, NO_PRIORITY
        self.simulation.hold(row)

    def _hand_back(self, row: int) -> None:
        """``scontrol release`` by an operator: no hold, no explicit priority, the factors of the last calculation."""
        self._explicit[row] = NO_PRIORITY
        if self._hold[row]:
            self._hold[row] = 0
            self.simulation.release(row)

    # --- what slurmctld does with an update

    def update(self, job_id: int, changes: Sequence[Change]) -> tuple[Outcome | None, str]:
        """One line of scontrol, all fields of one job. The message is "" where Slurm accepts them without a word."""
        row = job_id - 1
        fate = self.simulation.fate
        if not 0 <= row < len(self.jobs) or self.jobs.submit_time[row] > self.simulation.now:
            return Outcome.GONE, f"Invalid job id specified for job {job_id}"
        if fate[row] not in {JobFate.WAITING, JobFate.RUNNING}:
            return Outcome.GONE, f"Job has already finished for job {job_id}"
        for change in changes:
            if change.field is Field.SITE_FACTOR:
                self._site[row] = int(change.after)
            elif fate[row] == JobFate.RUNNING:
                return Outcome.GONE, f"Job is no longer pending execution for job {job_id}"
            else:
                self._share[row] = SHARE_YES if change.after == "YES" else SHARE_NO
                self.simulation.set_isolated(row, isolated=self._isolated(row))
        return None, ""

    def _isolated(self, row: int) -> bool:
        """Whether the job waits for an idle node and keeps it for itself."""
        partition = self.shape.partitions[self._partitions[row]].oversubscribe
        if partition in {OverSubscribe.FORCE, OverSubscribe.EXCLUSIVE}:
            return False
        share = self._share[row]
        return bool(share == SHARE_NO or (share == SHARE_YES and partition is OverSubscribe.NO))

    # --- looking at it from outside

    def leftovers(self) -> list[StrayField]:
        """Pending jobs whose site factor or isolation are not as people alone have left them."""
        found = []
        for row in self.waiting().tolist():
            if self._site[row] != self._their_site[row]:
                found.append(StrayField(row + 1, Field.SITE_FACTOR))
            if self._isolated(row):
                found.append(StrayField(row + 1, Field.OVERSUBSCRIBE))
        return found

    # --- what the commands show

    def reason(self, rows: Rows) -> Category:
        """Reason of pending jobs: the first of each partition waits for resources, the others for their turn."""
        codes = np.zeros(len(rows), dtype=np.int32)
        queue = self.simulation.pending
        _, first = np.unique(self._partitions[queue], return_index=True)
        codes[np.isin(rows, queue[first])] = 1
        hold = self._hold[rows]
        codes[hold > 0] = hold[hold > 0] + 1
        return Category(codes, ("Priority", "Resources", "JobHeldUser", "JobHeldAdmin"))

    def ended(self, start: float, end: float) -> Past:
        """What sacct remembers (`rltuned.slurm.port.HistoryReader`). No time passes: another thread may ask."""
        first, last = (bisect_left(self._past, time, key=lambda job: job.end) for time in (start, end))
        result = self.simulation.result()
        ends = np.floor(result.end) + self.profile.epoch  # NaN: has not ended
        rows = np.flatnonzero((ends >= start) & (ends < end) & ~np.isnan(result.start))
        rows = rows[np.argsort(result.end[rows], kind="stable")]
        names = [self.shape.partitions[code].name for code in self._partitions[rows]]
        limits, run_time = self.simulation.estimates.time_limit[rows], (result.end - result.start)[rows]
        since_then = as_accounted(self.jobs.take(rows), rows + 1, names, limits, run_time, ends[rows])
        return Past(self._past[first:last] + since_then, [])

    def table(self, rows: Rows | None = None) -> JobTable:
        """These pending and running jobs; without `rows`, all, in order of their id."""
        simulation, epoch = self.simulation, self.profile.epoch
        if rows is None:
            rows = np.sort(np.concatenate((self.waiting(), np.flatnonzero(simulation.fate == JobFate.RUNNING))))
        made = simulation.job_table(rows, epoch, self._base - self._nice)
        running = made.state == JobState.RUNNING
        submit = np.floor(self.jobs.submit_time[rows]) + epoch
        start = np.where(running, np.floor(simulation.start[rows]) + epoch, np.nan)
        held = (self._hold[rows] > 0) & ~running
        known = self._sprio(rows) & ~running
        reason = self.reason(rows)
        force = np.array([part.oversubscribe is OverSubscribe.FORCE for part in self.shape.partitions], dtype=np.bool_)
        share = np.where(force[self._partitions[rows]], SHARE_YES, self._share[rows]).astype(np.int32)
        return replace(
            made,
            reason=Category(np.where(running, -1, reason.codes).astype(np.int32), reason.names),
            submit_time=submit,
            eligible_time=np.where(held, np.nan, submit),
            start_time=start,
            end_time=start + made.time_limit,
            held=held,
            priority=self.priority(rows),
            nice=self._nice[rows],
            decided=Category.of([f"nice={nice}" if nice else "" for nice in self._nice[rows].tolist()]),
            site_factor=np.where(known, self._site[rows], 0),
            site_known=known,
            oversubscribe=Category(share, (OverSubscribe.OK.value, OverSubscribe.YES.value, OverSubscribe.NO.value)),
            exclusive=np.zeros(len(rows), dtype=np.bool_),
        )

    # --- the two ports

    def ping(self) -> None:
        """See `SlurmReader`; it always answers."""

    def backfills(self) -> bool:
        """See `SlurmReader`; a pass takes no time."""
        return False

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:  # noqa: ARG002 - the port's
        """A healthy Slurm."""
        backfill = self.simulation.settings.backfill is not Backfill.NONE
        return ClusterFacts(
            version="24.11.5",
            release=RELEASE,
            cluster_name="simulated",
            user="rltuned",
            privilege=Privilege.OPERATOR,
            priority_type="priority/multifactor",
            site_factor_plugin="",
            scheduler_type="sched/backfill" if backfill else "sched/builtin",
            scheduler_parameters=self.simulation.settings.parameters(),
            rate_limiter=False,
            rate_bucket=30,
            rate_refill=2.0,
            accounting=True,
            accounting_reachable=True,
            accounting_tres=("gres/gpu", *(f"gres/gpu:{kind}" for kind in self.shape.nodes.gpu_types)),
            priority_calc_period=self.profile.calc_period,
            half_life=self.priorities.weights.half_life,
        )

    def snapshot(self, now: float) -> Snapshot:
        """The queue and the nodes at `now`, or at the simulation's present moment if that is later."""
        if now - self.profile.epoch > self.simulation.now:
            self.advance(now - self.profile.epoch)
        taken = Snapshot(self.time, RELEASE, self.table(), self.simulation.node_table(), self.shape.partitions)
        self.let_pass(self.profile.reading)
        return taken

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """See `SlurmReader`."""
        if job_ids is None:
            rows = self.waiting()
        else:
            asked = np.array([job - 1 for job in job_ids if 0 < job <= len(self.jobs)], dtype=np.intp)
            rows = asked[(self._waits | (self.simulation.fate == JobFate.RUNNING))[asked]]
        jobs = self.table(rows)
        taken = {
            job: JobStatus(
                job_id=job,
                submit_time=int(jobs.submit_time[at]),
                pending=bool(jobs.state[at] == JobState.PENDING),
                held=bool(jobs.held[at]),
                priority=int(jobs.priority[at]),
                site_factor=int(jobs.site_factor[at]) if jobs.site_known[at] else None,
                oversubscribe=OverSubscribe(jobs.oversubscribe.value(at)),
                reason=jobs.reason.value(at),
            )
            for at, job in enumerate(jobs.job_id.tolist())
        }
        self.let_pass(self.profile.reading)
        return taken

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        """See `SlurmWriter`. It refuses what scontrol's adapter refuses to send, by the same check."""
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
            said[job] = self.update(job, line)
            self.let_pass(self.profile.update)
        self.reorder()
        return [
            WriteResult(change, sent=False, outcome=Outcome.FAILED, message=refused[index])
            if index in refused
            else WriteResult(change, True, *said[change.job_id])
            for index, change in enumerate(changes)
        ]

"""What a plan asks of a rollout search, and what it gets back: the queue simulated forward in several orders
(decision 0096).

The policy ranks each job by itself. Which of the first few should go first together is a question of how they fit, and
is answered by trying (a rollout policy: Bertsekas and Castañón, J. Heuristics 1999). That needs a model of Slurm, which
lives in a higher layer (`rltuned.simulate.search`).
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Ints, Snapshot
from rltuned.estimates.predictions import EndedJobs

Rows = npt.NDArray[np.intp]

MOST_RECENT: Final = 64
"""Jobs that arrivals are sampled from."""


@dataclass(frozen=True)
class RecentJobs:
    """The last jobs that were submitted, pending, running or ended. (n,) each, in the order of their submission."""

    job_id: Ints
    interarrival: Floats
    """Seconds since the submission before; the first has the mean of the others."""
    gpus: Floats
    """In all; likewise CPUs."""
    cpus: Floats
    time_limit: Floats
    expected: Floats
    run_time: Floats
    """Seconds that it took. Of a job that has not ended: the larger of what is expected and how long it has run."""

    def __len__(self) -> int:
        return len(self.job_id)


@dataclass(frozen=True)
class RolloutRequest:
    """A queue in the order of a policy, and what is expected of its run times."""

    snapshot: Snapshot
    rows: Rows
    """(n,) pending jobs that the policy has seen, as rows of the job table."""
    scores: Floats
    """(n,) of the policy, higher first."""
    run_times: Floats
    """(N,) expected run time of every job of the table, running ones included, seconds from its start."""
    spread: float = 0.0
    """σ of ln(run time / expected); see `PredictionError`."""
    recent: RecentJobs | None = None
    base: Ints | None = None
    """(n,) the priority that each job has without rltuned; these places are exchanged. None: as the table has it."""


class Gain(NamedTuple):
    """Expected, of one order over another in the same scenarios. Seconds of waiting, all simulated jobs together."""

    seconds: float
    error: float
    """Standard error of the mean over the scenarios, 0 of a single one; without how wrong the simulator may be."""


@dataclass(frozen=True)
class RolloutResult:
    """What a rollout search found."""

    rollouts: int
    """Simulations of the queue, one for each order and scenario; the policy's own order included."""
    cost: float
    """Seconds that all simulated jobs together will wait from now on, in the policy's own order."""
    best: float
    """The same in the order that was chosen; equal to `cost` when no candidate is better."""
    simulated: tuple[int, ...] = ()
    """Rows in the snapshot's job table of the jobs that were simulated, in the policy's order."""
    order: tuple[int, ...] | None = None
    """The same rows in the order that was chosen, each class in its places. None: the policy's order stays."""
    error: float = 0.0
    over_slurm: Gain | None = None
    """Of the order that was chosen over that of Slurm's own priorities; None: not asked for, or there was no time."""

    @property
    def gain(self) -> float:
        """Seconds of waiting that the order saves, all simulated jobs together; may be below 0."""
        return self.cost - self.best

    def of_table(self, rows: Rows) -> "RolloutResult":
        """The same for a larger job table: `rows` has, for each row of the smaller one, that of the larger."""
        order = None if self.order is None else tuple(rows[list(self.order)].tolist())
        return replace(self, simulated=tuple(rows[list(self.simulated)].tolist()), order=order)


def recent_jobs(snapshot: Snapshot, run_times: Floats, ended: EndedJobs | None, expected: Floats) -> RecentJobs | None:
    """The last jobs that were submitted; None where there are fewer than two. Ended jobs count from their start.

    Args:
        snapshot: the cluster as read.
        run_times: (N,) expected seconds of every job of its table.
        ended: jobs that have ended; None: not known.
        expected: (n,) what those were expected to run.
    """
    jobs, now = snapshot.jobs, snapshot.time
    live = np.concatenate((jobs.pending, jobs.running))
    submitted = np.fmin(np.nan_to_num(jobs.submit_time[live], nan=now), now)
    elapsed = np.concatenate((np.zeros(len(jobs.pending)), np.fmax(now - jobs.start_time[jobs.running], 0.0)))
    taking = np.maximum(run_times[live], elapsed)
    job_id = jobs.job_id[live]
    columns = [submitted, jobs.gpus[live], jobs.cpus[live], jobs.time_limit[live], run_times[live], taking]
    if ended is not None:
        job_id = np.concatenate((job_id, ended.job_id))
        past = (ended.began, ended.gpus, ended.cpus, ended.time_limit, expected, ended.run_time)
        columns = [np.concatenate(both) for both in zip(columns, past, strict=True)]
    times, gpus, cpus, limit, expects, taken = (column.astype(np.float64) for column in columns)
    last = np.lexsort((job_id, times))[-MOST_RECENT:]
    if len(last) < 2:
        return None
    interarrival = np.diff(times[last])
    return RecentJobs(
        job_id=job_id[last],
        interarrival=np.concatenate(([interarrival.mean()], interarrival)),
        gpus=np.maximum(gpus[last], 0.0),
        cpus=np.maximum(cpus[last], 0.0),
        time_limit=np.maximum(np.where(np.isnan(limit[last]), np.inf, limit[last]), 1.0),
        expected=np.maximum(expects[last], 1.0),
        run_time=np.maximum(taken[last], 1.0),
    )

"""What a plan needs of somebody who can rehearse the queue: play it to its end in several orders, and say which is best.

The policy ranks each job by itself. Which of the first few should go first together is a question of how they fit: it is
answered by trying (a roll-out policy, Bertsekas and Castañón, J. Heuristics 1999). Whoever tries needs a model of Slurm, which
lives higher up (`rltuned.simulate.rollout`); a plan takes it as an argument and goes without where there is none.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Ints, Snapshot


class MoveTo(enum.StrEnum):
    """Where the rehearsal puts a job."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class RolloutResult:
    """What a rehearsal found."""

    rollouts: int
    """Orders that were played, the policy's own included."""
    cost: float
    """Seconds that the jobs that were played will wait from now on, all together, in the policy's own order."""
    best: float
    """The same in the order that was chosen; equal to `cost` when nothing is better."""
    moved: int | None
    """Row in the snapshot's job table of the job to move; None: the policy's order stays."""
    to: MoveTo | None
    """Where to."""
    behind: int | None = None
    """Row of the job that one moved to the back comes right behind: the last one that was played. None: behind all."""

    @property
    def gain(self) -> float:
        """Seconds that the move is expected to save, all waiting jobs together."""
        return self.cost - self.best

    def of_table(self, rows: npt.NDArray[np.intp]) -> "RolloutResult":
        """The same, told of a larger job table: `rows` has, for each row of the smaller one, that of the larger."""
        moved, behind = (None if row is None else int(rows[row]) for row in (self.moved, self.behind))
        return replace(self, moved=moved, behind=behind)


LEAST_ENDED: Final = 20
"""Ended jobs from which on they say how good expectations are."""

UNKNOWN_SPREAD: Final = 1.0
"""σ of ln(run time / expected) where too few jobs have ended to tell: a factor of e either way, as predictions from history err."""

_SHORT: Final = 60.0
"""Seconds: whether a job takes one second or one minute makes no difference to a plan of hours."""


@dataclass(frozen=True)
class EndedJobs:
    """Jobs that have ended, (n,) each, seconds."""

    estimate: Floats
    """What was expected of them before they ran, as a plan's `estimates`; not NaN."""
    time_limit: Floats
    run_time: Floats
    """What they took."""
    job_id: Ints
    gpus: Floats
    """In all."""
    cpus: Floats
    """In all."""
    began: Floats
    """Epoch seconds of their starts."""

    def __len__(self) -> int:
        return len(self.run_time)


@dataclass(frozen=True)
class PredictionError:
    """How run times turn out beside what is expected of them."""

    bias: float = 0.0
    """Mean of ln(run time / expected)."""
    spread: float = UNKNOWN_SPREAD
    """Its standard deviation."""


def prediction_error(expected: Floats, run_time: Floats) -> PredictionError:
    """Of ended jobs, (n,) seconds each; with few of them, the bias counts the less. What is known when there are too few."""
    n = len(run_time)
    if n < LEAST_ENDED:
        return PredictionError()
    error = np.log(np.maximum(run_time, _SHORT) / np.maximum(expected, _SHORT))
    return PredictionError(float(error.mean()) * n / (n + 2 * LEAST_ENDED), float(error.std()))


@dataclass(frozen=True)
class RecentJobs:
    """Jobs that came lately, whatever has become of them, (n,) each, in the order in which they came: what is still to come may
    be like them.
    """

    job_id: Ints
    since: Floats
    """Seconds from the coming of the one before; the first has the mean of the others."""
    gpus: Floats
    """In all."""
    cpus: Floats
    """In all."""
    time_limit: Floats
    expected: Floats
    """Seconds that each was expected to run."""
    run_time: Floats
    """Seconds that it took; of one that has not ended, what is expected, or how long it has run by now."""

    def __len__(self) -> int:
        return len(self.job_id)


MOST_RECENT: Final = 64


def recent_jobs(snapshot: Snapshot, run_times: Floats, ended: EndedJobs | None, expected: Floats) -> RecentJobs | None:
    """The last jobs that came: those of the snapshot by their submission, those that have ended by their start, which is all that is known of
    them. None where there are fewer than two.

    Args:
        snapshot: the cluster as read.
        run_times: (N,) expected seconds of every job of its table.
        ended: jobs that have ended; None: not known.
        expected: (n,) what those were expected to run.
    """
    jobs, now = snapshot.jobs, snapshot.time
    here = np.concatenate((jobs.pending, jobs.running))
    submitted = np.fmin(np.nan_to_num(jobs.submit_time[here], nan=now), now)
    elapsed = np.concatenate((np.zeros(len(jobs.pending)), np.fmax(now - jobs.start_time[jobs.running], 0.0)))
    taking = np.maximum(run_times[here], elapsed)
    job_id = jobs.job_id[here]
    asked = [submitted, jobs.gpus[here], jobs.cpus[here], jobs.time_limit[here], run_times[here], taking]
    if ended is not None:
        job_id = np.concatenate((job_id, ended.job_id))
        past = (ended.began, ended.gpus, ended.cpus, ended.time_limit, expected, ended.run_time)
        asked = [np.concatenate(both) for both in zip(asked, past, strict=True)]
    times, gpus, cpus, limit, thought, taken = (column.astype(np.float64) for column in asked)
    last = np.lexsort((job_id, times))[-MOST_RECENT:]
    if len(last) < 2:
        return None
    since = np.diff(times[last])
    return RecentJobs(
        job_id=job_id[last],
        since=np.concatenate(([since.mean()], since)),
        gpus=np.maximum(gpus[last], 0.0),
        cpus=np.maximum(cpus[last], 0.0),
        time_limit=np.maximum(np.where(np.isnan(limit[last]), np.inf, limit[last]), 1.0),
        expected=np.maximum(thought[last], 1.0),
        run_time=np.maximum(taken[last], 1.0),
    )


class RolloutSearch(Protocol):
    """Plays the queue."""

    def search(
        self,
        snapshot: Snapshot,
        rows: npt.NDArray[np.intp],
        scores: Floats,
        run_times: Floats,
        spread: float = 0.0,
        came: RecentJobs | None = None,
    ) -> RolloutResult | None:
        """Try the order of `scores`, and what moving one job does to it.

        Args:
            snapshot: the cluster as read.
            rows: (n,) pending jobs that the policy has seen, as rows of the job table.
            scores: (n,) of the policy, higher first.
            run_times: (N,) expected run time of every job of the table, running ones included, seconds from its start.
            spread: σ of ln(run time / expected): how far run times are from what is expected.
            came: jobs that came lately; None: not known.

        Returns:
            What was found; None when there is nothing to rehearse (too few jobs wait), or it cannot be done now.
        """


@runtime_checkable
class PredictsRunTimes(Protocol):
    """A policy that knows how estimates and limits relate to run times."""

    def expected_run_time(self, run_time: Floats, time_limit: Floats) -> Floats:
        """(N,) expected seconds of jobs with the estimate r and the limit L."""

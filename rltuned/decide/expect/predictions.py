"""Run-time predictions, and how wrong they have been: what a plan and a forecast of start times expect of them."""

from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Floats, Rows
from rltuned.decide.rank.actor import Actor
from rltuned.decide.rank.protocol import Policy
from rltuned.decide.see.features import known_run_times

LEAST_ENDED: Final = 20  # with fewer ended jobs than this, the prediction error is not known

UNKNOWN_SPREAD: Final = 1.0
"""σ of ln(run time / expected) where the prediction error is not known: a factor of e either way, as predictions from
history err."""

COVER: Final = 0.8  # share of jobs that the interval is to hold

_SHORT: Final = 60.0
"""Seconds: whether a job takes one second or one minute makes no difference to a plan of hours. Where half of the jobs
are shorter, their median instead, but a second at least."""


class RunTimePredictions(NamedTuple):
    """Of jobs, (n,) seconds each: not below 1, not above the limit."""

    expected: Floats
    """The mean: what a job costs in the long run. Rules rank on it: the mean waiting of a queue depends on the mean
    time that each job holds its GPUs."""
    median: Floats  # what an earlier job took, or the limit: half of the jobs take longer
    low: Floats
    high: Floats  # `COVER` of the jobs end between these

    def take(self, rows: Rows) -> "RunTimePredictions":
        """Of these jobs."""
        return RunTimePredictions(*(column[rows] for column in self))


class RunTimes(NamedTuple):
    """What a plan expects of the (N,) jobs of a table."""

    expected: Floats
    """Seconds, NaN where there is no prediction: the time limit bounds each, and stands in for a missing one."""
    predicted: RunTimePredictions | None = None
    """Whose means `expected` are. None: no job is predicted, and `expected` may err."""


class EndedJobs(NamedTuple):
    """Jobs that have ended, (n,) each, seconds."""

    estimate: Floats  # what was predicted of them before they ran, as a plan's `estimates`; not NaN
    time_limit: Floats
    run_time: Floats  # what they took


class PredictionError(NamedTuple):
    """How run times differ from what was expected of them."""

    bias: float = 0.0  # mean of ln(run time / expected)
    spread: float = UNKNOWN_SPREAD  # its standard deviation


def prediction_error(expected: Floats, run_time: Floats) -> PredictionError:
    """Of ended jobs, (n,) seconds each. The fewer they are, the smaller is the bias; with fewer than `LEAST_ENDED` it
    is 0 and the spread is `UNKNOWN_SPREAD`.
    """
    n = len(run_time)
    if n < LEAST_ENDED:
        return PredictionError()
    short = min(_SHORT, max(float(np.median(run_time)), 1.0))
    error = np.log(np.maximum(run_time, short) / np.maximum(expected, short))
    return PredictionError(float(error.mean()) * n / (n + 2 * LEAST_ENDED), float(error.std()))


def expected_run_times(policy: Policy, estimates: Floats, time_limit: Floats) -> Floats:
    """(N,) expected seconds of jobs with these estimates (NaN: none) and limits, corrected by a policy that can."""
    run_times = known_run_times(estimates, time_limit)
    return policy.expected_run_time(run_times, time_limit) if isinstance(policy, Actor) else run_times


def uncertain_run_times(
    policy: Policy, estimates: Floats, time_limit: Floats, ended: EndedJobs | None
) -> tuple[Floats, float]:
    """(N,) expected run times of jobs with these estimates (NaN: none) and limits, seconds, corrected by how wrong the
    policy has been on `ended` jobs; and their spread, as of `PredictionError`. None: no ended job is known.
    """
    known = PredictionError()
    if ended is not None:
        before = expected_run_times(policy, ended.estimate, ended.time_limit)
        known = prediction_error(before, ended.run_time)
    run_times = expected_run_times(policy, estimates, time_limit) * np.exp(known.bias)
    return np.maximum(np.fmin(run_times, time_limit), 1.0), known.spread

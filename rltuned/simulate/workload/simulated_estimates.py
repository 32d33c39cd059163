"""What is known about run times before a job has run: time limits, and the estimates that policies rank on.

Four ways, by the names that ``rltuned evaluate --estimates`` takes (docs/estimates.md): ``true``, ``noisy:SIGMA``,
``limit``, ``history``, and ``history:names``, which goes by what jobs are called, too. What is drawn is drawn by a hash
of seed and job id, not from a stream: a job has the same limit and the same estimate in whichever window, order or
number of rows it is found.
"""

import enum
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.core.draws import uniform
from rltuned.core.errors import ConfigError
from rltuned.core.tables import Floats, Ints
from rltuned.simulate.workload.jobs import Estimates, Workload

WRITTEN_LIMITS: Final = 60.0 * np.array(
    [10, 30, 60, 120, 240, 480, 720, 1440, 2880, 5760, 10080, 20160, 43200, 86400], dtype=np.float64
)
"""Seconds: 10, 30 min; 1, 2, 4, 8, 12 h; 1, 2, 4, 7, 14, 30, 60 d: what people write as a time limit."""

LONGEST: Final = float(WRITTEN_LIMITS[-1])
"""Estimate of a job that has no limit at all, seconds: finite, and behind every job that has one."""

OVER_ASKING: Final = 1.2
"""σ of ln(limit / run time), half-normal: people ask for more than they need, by a factor of 2.2 in the median."""

NAMES: Final = "names"  # behind `history:`

_DAY: Final = 86400.0

_HOW: Final = "true, noisy:SIGMA (for example noisy:1.5), limit, history or history:names"


class EstimateKind(enum.StrEnum):
    """Where limit and estimate of a job come from."""

    TRUE = "true"
    """Both are the run time: nobody is killed, backfill knows everything (the protocol of most papers)."""
    NOISY = "noisy"
    """A drawn limit that is never too short, and an estimate that errs both ways."""
    LIMIT = "limit"
    """Both are what the user asked for in the trace."""
    HISTORY = "history"
    """The limit as asked for, else drawn; the estimate from the jobs that have ended (`rltuned.decide.expect`)."""


@dataclass(frozen=True, slots=True)
class EstimateSpec:
    """What ``--estimates`` says."""

    kind: EstimateKind
    sigma: float = 0.0  # σ of ln(estimate / run time), `EstimateKind.NOISY` only.
    names: bool = False  # it goes by what jobs are called, too, `EstimateKind.HISTORY` only.

    def __str__(self) -> str:
        if self.names:
            return f"{self.kind}:{NAMES}"
        return f"{self.kind}:{self.sigma:g}" if self.kind is EstimateKind.NOISY else str(self.kind)


def parse_estimates(how: str) -> EstimateSpec:
    """The meaning of ``true``, ``noisy:SIGMA``, ``limit``, ``history`` or ``history:names``. Raises ConfigError:
    anything else, or a SIGMA that is no number from 0 to 10.
    """
    name, colon, rest = how.strip().partition(":")
    try:
        kind = EstimateKind(name)
    except ValueError:
        raise ConfigError(f"estimates: {how!r} is none of {_HOW}") from None
    if kind is EstimateKind.HISTORY and rest == NAMES:
        return EstimateSpec(kind, names=True)
    if kind is not EstimateKind.NOISY:
        if colon:
            raise ConfigError(f"estimates: {how!r}: {name} takes no number; choose {_HOW}")
        return EstimateSpec(kind)
    try:
        sigma = float(rest)
    except ValueError:
        sigma = math.nan
    if not 0.0 <= sigma <= 10.0:
        raise ConfigError(f"estimates: {how!r}: SIGMA must be a number from 0 to 10; choose {_HOW}")
    return EstimateSpec(kind, sigma)


def estimate(jobs: Workload, how: str, seed: int, time_scale: float = 1.0) -> Estimates:
    """Time limits and estimates of `jobs` before the first of them runs, made as ``--estimates`` says.

    Jobs that share a job id share their draws. For `history` the estimate is the limit until a `HistoryPredictor`,
    given to the simulation, knows better. `time_scale`: by how much the times of `jobs` have been divided (a replay 60
    times as fast: 60). Limits are written in the original's minutes and hours, and divided like the run times.

    Raises ConfigError: an unknown `how`; `limit`, and most of the jobs have none; a time scale that is not above 0.
    """
    spec = parse_estimates(how)
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise ConfigError(f"estimates: the time scale must be above 0, not {time_scale}")
    run_time = np.maximum(jobs.run_time, 1.0)
    if spec.kind is EstimateKind.TRUE:
        return Estimates(time_limit=run_time, run_time=run_time.copy())
    if spec.kind is EstimateKind.LIMIT:
        limit = _asked(jobs)
        return Estimates(time_limit=limit, run_time=np.minimum(limit, LONGEST))
    over, error = normals(jobs.job_id, seed)
    original = run_time * time_scale
    drawn = written_limit(original * np.exp(OVER_ASKING * np.abs(over)), original) / time_scale
    drawn = np.maximum(drawn, run_time)  # the division must not make a limit an ulp too short
    if spec.kind is EstimateKind.NOISY:
        guess = np.maximum(run_time * np.exp(spec.sigma * error), 1.0)
        return Estimates(time_limit=drawn, run_time=np.minimum(drawn, guess))
    limit = np.where(np.isnan(jobs.time_limit), drawn, np.maximum(jobs.time_limit, 1.0))
    return Estimates(time_limit=limit, run_time=np.minimum(limit, LONGEST))


def written_limit(seconds: Floats, at_least: Floats | None = None) -> Floats:
    """(N,) the next limit that people write, seconds. Beyond the longest: the longest, or `at_least` (the run times),
    rounded up to whole days, where that is more.
    """
    found = WRITTEN_LIMITS[np.minimum(np.searchsorted(WRITTEN_LIMITS, seconds), len(WRITTEN_LIMITS) - 1)]
    return found if at_least is None else np.where(at_least > found, np.ceil(at_least / _DAY) * _DAY, found)


def _asked(jobs: Workload) -> Floats:
    """(N,) the users' own limits; jobs without one are unlimited, if they are the fewer; else it is an error."""
    without = int(np.isnan(jobs.time_limit).sum())
    if 2 * without >= len(jobs) > 0:
        raise ConfigError(
            f"estimates: limit: {without} of {len(jobs)} jobs of {jobs.source.name or 'the workload'} have no time "
            "limit of their own; use history, noisy:SIGMA or true"
        )
    return np.where(np.isnan(jobs.time_limit), np.inf, np.maximum(jobs.time_limit, 1.0))


# --- numbers by job and seed -------------------------------------------------------------------------------------


def normals(job_id: Ints, seed: int) -> tuple[Floats, Floats]:
    """Two (N,) independent standard normal columns, functions of job id and seed alone (Box and Muller 1958)."""
    first = uniform(job_id, seed, 1)
    second = uniform(job_id, seed, 2)
    radius = np.sqrt(-2.0 * np.log(first))
    return radius * np.cos(2.0 * np.pi * second), radius * np.sin(2.0 * np.pi * second)

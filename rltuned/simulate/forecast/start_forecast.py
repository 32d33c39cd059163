"""When does a job start? What a forecast is asked, what it says, and how earlier forecasts have turned out
(docs/start-times.md).

Waits differ by factors, so all of this is in ln(wait + `GRAIN`). A forecast's interval is calibrated on the outcomes of
earlier ones (conformal prediction: Vovk, Gammerman and Shafer 2005; normalised scores: Papadopoulos et al. 2002). A
forecast whose job still waits has no outcome yet, but it is known to be late by then: such scores are right-censored,
and the distribution of scores is the product-limit estimate (Kaplan and Meier, JASA 1958).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Bools, Floats, Ints, Rows, Snapshot
from rltuned.decide.expect.predictions import EndedJobs, uncertain_run_times
from rltuned.decide.plan import Plan
from rltuned.decide.rank.actor import on_means
from rltuned.decide.rank.protocol import Policy
from rltuned.decide.scope import Veto
from rltuned.simulate.forecast.submissions import Submissions

GRAIN: Final = 60.0  # seconds: waits that differ by less than this are as good as equal
HORIZON: Final = 4 * 86_400.0
"""Seconds: what starts later is not simulated. It is only said that it starts after that."""
FAR: Final = 14 * 86_400.0
"""Seconds: a quantile beyond the horizon of the simulation counts as this far; what comes out beyond half of it is not
known."""
LEVELS: Final = (0.1, 0.5, 0.9)
MOST_JOBS: Final = 1000  # pending jobs that a forecast looks at: those at the front
NARROWEST: Final = 0.2
"""Least distance of an outer quantile from the middle one, in ln: scenarios that agree are not certain."""
PRIOR: Final = 30  # outcomes as which the uncalibrated forecast counts
_UNCALIBRATED: Final = (-1.6, 0.0, 1.6)
"""Scores at `LEVELS` that are assumed until outcomes say better: intervals of a few scenarios are too narrow."""
NEIGHBOURS: Final = 200
"""Outcomes that a forecast is calibrated on: those of the forecasts that were most like it."""


@dataclass(frozen=True)
class Probe:
    """A job that nobody has submitted: when would it start? It asks for a share of nodes (GPUs, CPUs and MiB of each,
    seconds), and so stands for all jobs that ask for no more.
    """

    partition: str
    nodes: int
    gpus: int
    cpus: int
    mem: int
    time_limit: float


@dataclass(frozen=True)
class StartRequest:
    """A queue in the order that is in force."""

    snapshot: Snapshot
    rows: Rows
    """(n,) pending jobs, as rows of the job table, the front first; later ones than `MOST_JOBS` are left out."""
    run_times: Floats  # (N,) expected run time of every job of the table, seconds from its start
    spread: float = 0.0  # σ of ln(run time / expected)
    submissions: Submissions | None = None  # whom arrivals are like; None: nobody comes
    probes: tuple[Probe, ...] = ()  # asked of after the jobs, in this order, as far as there is time


class ShorterLimits(NamedTuple):
    """Who would start noticeably sooner with which time limit instead of a longer one of its own, m of them: everything
    else being the same, the places in the queue, too.
    """

    limits: tuple[float, ...]  # seconds, all that were simulated
    at: Rows  # (m,) places in `StartForecast.rows`
    limit: Floats  # (m,) seconds
    waits: Floats  # (m, 3) as in `StartForecast`


@dataclass(frozen=True)
class StartForecast:
    """What a simulation says, not calibrated yet."""

    rows: Rows  # (n,) rows of the job table
    waits: Floats
    """(n, 3) quantiles at `LEVELS` of the seconds until each job starts; infinite: not within the horizon."""
    scenarios: int
    probes: Floats  # (p, 3) the same of the first p probes
    shorter: ShorterLimits

    def __len__(self) -> int:
        return len(self.rows)


class Scores(NamedTuple):
    """How forecasts have turned out, (n,) each."""

    middle: Floats  # ln(median wait + GRAIN) that was forecast
    score: Floats
    """0 where the outcome was the median, −1 and 1 where it was an outer quantile."""
    open: Bools  # the job still waits, so its score will be higher than this

    def __len__(self) -> int:
        return len(self.score)


class Interval(NamedTuple):
    """Seconds from the moment of the forecast, (n,) each."""

    low: Floats
    middle: Floats
    high: Floats


NOTHING_KNOWN: Final = Scores(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.bool_))


_LIMITS: Final = (3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 3 * 86_400.0, 7 * 86_400.0)
"""Time limits of probes, seconds, and the longest of the partition."""
_MOST_PARTITIONS: Final = 8
_SEVERAL: Final = (2, 4, 8)  # whole nodes of probes that ask for several


_NOT_FOR_ROOM: Final = frozenset(
    {
        *(Veto.UNREADABLE, Veto.HELD, Veto.DEPENDENCY, Veto.NOT_ELIGIBLE, Veto.HETEROGENEOUS),
        *(Veto.RESERVATION, Veto.NEVER_RUNS, Veto.BLOCKED),
    }
)
"""Of jobs that wait for something else than their turn and free nodes: no simulation of the nodes says when they start.
"""


def probes_of(snapshot: Snapshot) -> tuple[Probe, ...]:
    """What is asked of this cluster: of each partition the node that is commonest there, an eighth, a quarter, half and
    all of it (with GPUs: 1, 2, 4 … GPUs), and several whole ones; each with several time limits.
    """
    nodes = snapshot.nodes
    found: list[Probe] = []
    gpus = nodes.gpus.sum(axis=1)
    parts = sorted((part for part in snapshot.partitions if part.up), key=lambda part: -len(part.nodes))
    for part in parts[:_MOST_PARTITIONS]:
        rows = part.nodes[nodes.usable[part.nodes]]
        if not len(rows):
            continue
        kinds = np.stack((gpus[rows], nodes.cpus[rows], nodes.mem[rows].astype(np.int64)), axis=1)
        kind, number = np.unique(kinds, axis=0, return_counts=True)
        has, cpus, mem = kind[np.lexsort((number, kind[:, 0] > 0))[-1]].tolist()
        alike = int((kinds >= (has, cpus, mem)).all(axis=1).sum())
        whole = max(has, 1) if has else 8
        slices = sorted({min(2**step, whole) for step in range(6)})
        limits = [limit for limit in _LIMITS if limit < part.max_time]
        if np.isfinite(part.max_time):
            limits.append(float(part.max_time))
        wanted = [(1, share) for share in slices] + [(several, whole) for several in _SEVERAL if several <= alike]
        for count, share in wanted:
            each = share if has else 0, max(cpus * share // whole, 1), mem * share // whole
            found.extend(Probe(part.name, count, *each, limit) for limit in limits)
    return tuple(found)


def start_request(
    plan: Plan,
    policy: Policy,
    ended: EndedJobs | None,
    *,
    moves: bool,
    probes: tuple[Probe, ...] = (),
) -> StartRequest:
    """The request after a plan, which `policy` made. `ended`: None: not known. `moves`: the plan is written to Slurm;
    else Slurm's own order is in force.
    """
    jobs, scope = plan.snapshot.jobs, plan.scope
    codes = np.array([veto in _NOT_FOR_ROOM for veto in Veto] + [False])
    waits = ~codes[scope.veto]
    priority = jobs.priority[scope.rows].copy()
    priority[plan.managed.at] = plan.target if moves else plan.base
    order = np.lexsort((jobs.job_id[scope.rows], -priority, -scope.tier))
    rows = scope.rows[order[waits[order]]]
    policy = policy if plan.run_times.predicted is None else on_means(policy)
    run_times, spread = uncertain_run_times(policy, plan.run_times.expected, jobs.time_limit, ended)
    return StartRequest(plan.snapshot, rows, run_times, spread, probes=probes)


def in_logs(waits: Floats) -> tuple[Floats, Floats, Floats]:
    """(n, 3) quantiles as ln(median + GRAIN), and how far the outer ones are from it, at least `NARROWEST`."""
    low, middle, high = np.log(np.clip(waits, 0.0, FAR) + GRAIN).T
    return middle, np.maximum(middle - low, NARROWEST), np.maximum(high - middle, NARROWEST)


def score_of(waits: Floats, outcome: Floats) -> Floats:
    """(n,) of forecasts with these (n, 3) quantiles and the waits that came, seconds."""
    middle, below, above = in_logs(waits)
    off = np.log(np.maximum(outcome, 0.0) + GRAIN) - middle
    return off / np.where(off < 0.0, below, above)


def calibrated(waits: Floats, known: Scores) -> Interval:
    """(n, 3) quantiles of forecasts as intervals that hold the outcome so often as they should, by the scores of
    earlier forecasts with about the same median. The median itself stays (docs/start-times.md).
    """
    middle, below, above = in_logs(waits)
    shifts = np.empty((len(middle), 2))
    # Forecasts of about the same median share their scores: four medians per factor of e are enough.
    step = np.round(middle * 4.0) / 4.0
    for value in np.unique(step):
        near = np.argsort(np.abs(known.middle - value), kind="stable")[:NEIGHBOURS]
        shifts[step == value] = score_quantiles(known.score[near], known.open[near])
    # What the scenarios of this forecast say is no more certain than what they say themselves.
    down, up = np.minimum(shifts[:, 0], -1.0), np.maximum(shifts[:, 1], 1.0)
    low, high = (np.exp(found) - GRAIN for found in (middle + down * below, middle + up * above))
    beyond = ~np.isfinite(waits[:, 1])
    return Interval(
        low=np.clip(low, 0.0, HORIZON),
        middle=np.where(beyond, np.inf, waits[:, 1]),
        high=np.where(beyond | (high > FAR / 2), np.inf, high),
    )


def score_quantiles(score: Floats, still_open: Bools) -> tuple[float, float]:
    """Scores at the outer two of `LEVELS`, of outcomes and of a prior that counts as `PRIOR` of them."""
    outer = (np.arange(PRIOR) + 0.5) / PRIOR
    prior = np.interp(outer, LEVELS, _UNCALIBRATED)
    # Beyond the outer levels the prior goes on as straight as before.
    slope = (_UNCALIBRATED[2] - _UNCALIBRATED[1]) / (LEVELS[2] - LEVELS[1])
    prior = np.where(outer > LEVELS[2], _UNCALIBRATED[2] + slope * (outer - LEVELS[2]), prior)
    prior = np.where(outer < LEVELS[0], _UNCALIBRATED[0] - slope * (LEVELS[0] - outer), prior)
    values = np.concatenate((score, prior))
    censored = np.concatenate((still_open, np.zeros(PRIOR, dtype=np.bool_)))
    order = np.lexsort((censored, values))
    at_risk = len(values) - np.arange(len(values))
    survival = np.cumprod(1.0 - ~censored[order] / at_risk)
    levels = 1.0 - survival
    places = np.minimum(np.searchsorted(levels, np.array(LEVELS[::2]) - 1e-9), len(values) - 1)
    found = values[order][places].tolist()
    return found[0], found[1]


def known_at(middle: Floats, waits: Floats, made: Floats, started: Floats, now: float) -> Scores:
    """Scores of forecasts at a moment, with (n,) `middle`, ln(median + GRAIN), and (n, 3) quantiles `waits`, seconds,
    `made` when, of jobs that `started` when; NaN: it waits.
    """
    ended = started <= now
    outcome = np.where(ended, started, now) - made
    return Scores(middle, score_of(waits, outcome), ~ended)


def sampled(job_id: Ints, most: int, moment: int) -> Rows:
    """Positions of at most so many jobs, others at each moment: whose forecasts are kept to see how they turn out."""
    if len(job_id) <= most:
        return np.arange(len(job_id))
    return np.sort(np.random.default_rng(moment).permutation(len(job_id))[:most])

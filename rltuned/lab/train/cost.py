"""What is minimised: J of a finished window (`rltuned.core.objective`), written as an integral over time that each
moment adds a part to.

The mean wait is 1/n · ∫ (jobs in the queue) dt, the mean bounded slowdown n⁻¹ ∫ Σ 1/max(run, 10) dt over them, and so
on: each is a sum of spans, and a decision answers for what is added after it. All costs are over Slurm's own metric on
the same jobs, so that windows of minutes and of weeks teach alike (paper §4.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rltuned.core.objective import TAIL, Objective, at_least
from rltuned.core.tables import Floats
from rltuned.simulate.values import BOUND


@dataclass(frozen=True)
class FinishedJobs:
    """A window's jobs that ran, (n,) each, seconds."""

    submit: Floats
    start: Floats
    end: Floats
    gpus: Floats
    capacity: float  # GPUs of the cluster

    @cached_property
    def wait(self) -> Floats:
        """Start − submission."""
        return self.start - self.submit


class Spans(NamedTuple):
    """A cost: span i adds `rate` each second from `begin` to `end`, (m,) each."""

    begin: Floats
    end: Floats
    rate: Floats

    def until(self, times: Floats) -> Floats:
        """(t,) what has been added up to each moment. O((m + t) log m)."""
        return _ramp(times, self.begin, self.rate) - _ramp(times, self.end, self.rate)

    @property
    def total(self) -> float:
        """All of it."""
        return float(((self.end - self.begin) * self.rate).sum())


def _ramp(times: Floats, since: Floats, rate: Floats) -> Floats:
    """(t,) Σ rate · max(t − since, 0)."""
    order = np.argsort(since, kind="stable")
    since, rate = since[order], rate[order]
    rates = np.concatenate(([0.0], np.cumsum(rate)))
    moments = np.concatenate(([0.0], np.cumsum(rate * since)))
    passed = np.searchsorted(since, times, side="right")
    return np.asarray(times * rates[passed] - moments[passed])


def cost(objective: Objective, jobs: FinishedJobs, slurm: Mapping[str, float], tail: float) -> Spans:
    """J of a run, with another tail: what the `TAIL` of the jobs with the longest waits wait beyond `tail` seconds on
    average, over Slurm's 99th percentile. A percentile is no sum of spans.

    `slurm`: metrics of the window in Slurm's own order.
    """
    n, unit = len(jobs.submit), {name: at_least(name, slurm) for name in Objective._fields}
    begin = jobs.submit + np.maximum(BOUND - (jobs.end - jobs.start), 0.0)
    slowed = 1.0 / np.maximum(jobs.end - jobs.start, BOUND)
    parts = (
        Spans(jobs.submit, jobs.start, np.full(n, objective.wait / (n * unit["wait"]))),
        Spans(begin, np.maximum(jobs.start, begin), slowed * objective.slowdown / (n * unit["slowdown"])),
        _tail(jobs, tail, objective.tail / (TAIL * n * unit["tail"])),
        _idle(jobs, objective.idle / (3600.0 * unit["idle"])),
    )
    return Spans(*map(np.concatenate, zip(*parts, strict=True)))


def _tail(jobs: FinishedJobs, beyond: float, rate: float) -> Spans:
    begin = jobs.submit + beyond
    return Spans(begin, np.maximum(jobs.start, begin), np.full(len(begin), rate))


def _idle(jobs: FinishedJobs, rate: float) -> Spans:
    """GPUs that no job holds while one waits, until the last submission (`window_metrics.idle_while_waiting`)."""
    n = len(jobs.submit)
    moment = np.minimum(np.concatenate((jobs.submit, jobs.start, jobs.end)), jobs.submit.max())
    order = np.argsort(moment, kind="stable")
    waiting = np.cumsum(np.repeat((1, -1, 0), n)[order])[:-1]
    holding = np.cumsum(np.concatenate((np.zeros(n), jobs.gpus, -jobs.gpus))[order])[:-1]
    return Spans(moment[order][:-1], moment[order][1:], rate * np.where(waiting > 0, jobs.capacity - holding, 0.0))


def ahead(costs: Sequence[Spans], grid: Floats) -> Floats:
    """(K, t) cost-to-go of each of K runs at the moments of `grid`."""
    return np.array([one.total for one in costs])[:, None] - np.stack([one.until(grid) for one in costs])


def advantages(costs: Sequence[Spans], reference: Spans, times: Sequence[Floats]) -> list[Floats]:
    """Advantage of each step of each of K trajectories of the same arrivals: the cost-to-go at that time of the others
    and of the rule that training began with, on average, less that of this one (an input-dependent baseline, Mao et
    al., ICLR 2019; RLOO).

    `reference`: of the rule. `times`: of the steps of each trajectory, seconds.
    """
    grid = np.unique(np.concatenate(times))
    own = ahead(costs, grid)
    others = (ahead([reference], grid) + own.sum(axis=0) - own) / len(costs)
    return [(others[at] - own[at])[np.searchsorted(grid, each)] for at, each in enumerate(times)]

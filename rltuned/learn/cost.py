"""What is minimised: a metric of a finished window, written as an integral over time that each moment adds a part to.

The mean wait is 1/n · ∫ (jobs in the queue) dt, the mean bounded slowdown n⁻¹ ∫ Σ 1/max(run, 10) dt over them, and so
on: each is a sum of spans, one for each job, and a decision answers for what is added after it. All costs are in units
of the base rule's own metric on the same jobs, so that windows of minutes and of weeks teach alike (paper §4.2).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rltuned.cluster.tables import Floats
from rltuned.simulate.values import BOUND, bounded_slowdown


class Objective(enum.StrEnum):
    """What a policy is trained for."""

    WAIT = "wait"
    BSLD = "bsld"
    MIX = "mix"
    """Half wait, a quarter slowdown, a quarter tail, so that a gain in one does not cost another."""


@dataclass(frozen=True)
class FinishedJobs:
    """A window's jobs that ran, (n,) each, seconds."""

    submit: Floats
    start: Floats
    end: Floats

    @cached_property
    def wait(self) -> Floats:
        """Start − submission."""
        return self.start - self.submit

    @cached_property
    def run_time(self) -> Floats:
        """End − start."""
        return self.end - self.start

    def metric(self, objective: Objective) -> float:
        """The plain metric that an objective is named after, smaller is better; of a mix, the mean wait."""
        if objective is Objective.BSLD:
            return float(bounded_slowdown(self.wait, self.run_time).mean())
        return float(self.wait.mean())


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


def cost(objective: Objective, jobs: FinishedJobs, base: FinishedJobs) -> Spans:
    """The objective of a run in units of the base rule's; what both have in common is left out.

    `total` differs between two runs of a window as the metric does, divided by the base's metric; by one (second) where
    that is less: in such a window there is nothing to be better at.
    """
    n = len(jobs.submit)
    unit = max(base.metric(objective), 1.0)
    match objective:
        case Objective.WAIT:
            return _wait(jobs, 1.0 / (n * unit))
        case Objective.BSLD:
            return _slowdown(jobs, 1.0 / (n * unit))
        case Objective.MIX:
            parts = (
                _wait(jobs, 0.5 / (n * unit)),
                _slowdown(jobs, 0.25 / (n * base.metric(Objective.BSLD))),
                _tail(jobs, base, 0.25),
            )
            return Spans(*map(np.concatenate, zip(*parts, strict=True)))


def _wait(jobs: FinishedJobs, rate: float) -> Spans:
    return Spans(jobs.submit, jobs.start, np.full(len(jobs.submit), rate))


def _slowdown(jobs: FinishedJobs, rate: float) -> Spans:
    """Bounded: a run of less than 10 s is slowed down only by what waits beyond them."""
    begin = jobs.submit + np.maximum(BOUND - jobs.run_time, 0.0)
    return Spans(begin, np.maximum(jobs.start, begin), rate / np.maximum(jobs.run_time, BOUND))


def _tail(jobs: FinishedJobs, base: FinishedJobs, share: float) -> Spans:
    """Waiting beyond the base's 99th percentile, in units of what one job of a hundred waits there."""
    beyond = max(float(np.percentile(base.wait, 99.0)), 1.0)
    begin = jobs.submit + beyond
    rate = share / (0.01 * len(jobs.submit) * beyond)
    return Spans(begin, np.maximum(jobs.start, begin), np.full(len(begin), rate))


def leave_one_out(
    objective: Objective, trajectories: Sequence[FinishedJobs], base: FinishedJobs, times: Sequence[Floats]
) -> list[Floats]:
    """Advantage of each step of each of K trajectories of the same arrivals: the cost-to-go of the others at that time,
    on average, less that of this one (an input-dependent baseline, Mao et al., ICLR 2019; RLOO).

    `times`: of the steps of each trajectory, seconds.
    """
    grid = np.unique(np.concatenate(times))
    spans = [cost(objective, one, base) for one in trajectories]
    ahead = np.array([one.total for one in spans])[:, None] - np.stack([one.until(grid) for one in spans])
    others = (ahead.sum(axis=0) - ahead) / max(len(trajectories) - 1, 1)
    return [(others[at] - ahead[at])[np.searchsorted(grid, each)] for at, each in enumerate(times)]

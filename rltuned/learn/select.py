"""Which checkpoint of a training is kept: the best one on windows that were not trained on.

They are measured as `rltuned evaluate` measures: without sampling, relative to the best plain rule on the same windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.learn.cost import Objective
from rltuned.learn.curriculum import ValidationWindow
from rltuned.learn.sampling import MeasureTask, measure_policies
from rltuned.policy.actor import Actor
from rltuned.workers.pool import WorkerPool

RULES: Final = ("fifo", "sjf", "saf", "wfp3", "unicep", "f1")
"""Plain rules that a policy must beat. Not Slurm's own order, which needs accounts."""

TOLERATED: Final = 1.05
"""Slowdown and 99th percentile of the wait may be at most so many times the rule's: a gain in one metric must not cost
another."""

CHANCE: Final = 0.005
"""A smaller difference between two scores may be chance. The rule that training began with is not given up for it."""

_METRIC: Final = {Objective.WAIT: "wait_mean", Objective.BSLD: "bsld_mean"}
_WATCHED: Final = ("wait_mean", "bsld_mean", "wait_p99", "jct_mean", "makespan")

Measured = Mapping[str, float]


@dataclass(frozen=True)
class Validation:
    """How good a policy is on the validation windows."""

    score: float
    """To be minimised: the objective relative to the best rule's, plus what exceeds `TOLERATED`; mean over the
    groups."""
    ratios: Mapping[str, float]
    """Metric relative to the best rule's; mean over the groups."""
    groups: Mapping[str, Mapping[str, float]]
    """The same of each group."""
    rules: Mapping[str, str]
    """The best rule of each group."""


def better(one: Validation, than: Validation, margin: float = 0.0) -> bool:
    """Whether a policy is to be preferred; `margin`: by how much it must be."""
    return one.score < than.score - margin


class Validator:
    """The validation windows, and the metrics of the plain rules on them."""

    def __init__(self, windows: Sequence[ValidationWindow], objective: Objective, pool: WorkerPool) -> None:
        self._windows, self._objective, self._pool = windows, objective, pool
        self._plain = list(pool.map(measure_policies, [MeasureTask(one.case, RULES) for one in windows]))
        self._groups = tuple(dict.fromkeys(one.group for one in windows))
        self.best = {group: min(RULES, key=lambda name: self._mean(group, name, "wait_mean")) for group in self._groups}
        """The rule with the least mean wait of each group."""

    def validate(self, actor: Actor) -> Validation:
        """The actor relative to the best rules."""
        found = list(self._pool.map(measure_policies, [MeasureTask(one.case, actor=actor) for one in self._windows]))
        groups = {
            group: {
                name: _ratio(self._of(found, group, "actor", name), self._mean(group, self.best[group], name))
                for name in _WATCHED
            }
            for group in self._groups
        }
        score = float(np.mean([self._score(ratios) for ratios in groups.values()]))
        ratios = {name: float(np.mean([ratios[name] for ratios in groups.values()])) for name in _WATCHED}
        return Validation(score, ratios, groups, self.best)

    def _score(self, ratios: Measured) -> float:
        beyond = sum(max(ratios[name] - TOLERATED, 0.0) for name in ("bsld_mean", "wait_p99"))
        if self._objective is Objective.MIX:
            return 0.5 * ratios["wait_mean"] + 0.25 * ratios["bsld_mean"] + 0.25 * ratios["wait_p99"] + beyond
        return ratios[_METRIC[self._objective]] + beyond

    def _mean(self, group: str, name: str, metric: str) -> float:
        return self._of(self._plain, group, name, metric)

    def _of(self, found: Sequence[Mapping[str, Measured]], group: str, name: str, metric: str) -> float:
        values = [one[name][metric] for one, window in zip(found, self._windows, strict=True) if window.group == group]
        kept = [value for value in values if np.isfinite(value)]
        return float(np.mean(kept)) if kept else float("nan")


def _ratio(mine: float, theirs: float) -> float:
    """1 where there is nothing to improve."""
    return mine / theirs if theirs > 0 and np.isfinite(mine) else 1.0

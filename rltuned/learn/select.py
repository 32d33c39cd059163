"""Which checkpoint of a training is kept: the best one on windows that were not trained on.

They are measured as `rltuned evaluate` measures: without sampling, relative to the best plain rule on the same windows.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import call
from typing import Final, NamedTuple

import numpy as np

from rltuned.evaluate.case import Case
from rltuned.learn.cost import Objective
from rltuned.learn.sampling import measure_policies
from rltuned.policy.actor import Actor
from rltuned.workers.pool import WorkerPool

RULES: Final = ("fifo", "sjf", "saf", "wfp3", "unicep", "f1")
"""Plain rules that a policy must beat. Not Slurm's own order, which needs accounts."""

TOLERATED: Final = 1.05
"""Slowdown and 99th percentile of the wait may be at most so many times the rule's: a gain in one metric must not cost
another."""

CHANCE: Final = 0.005
"""A smaller difference between two scores may be chance. The rule that training began with is not given up for it."""

_SHARES: Final[Mapping[Objective, Mapping[str, float]]] = {
    Objective.WAIT: {"wait_mean": 1.0},
    Objective.BSLD: {"bsld_mean": 1.0},
    Objective.MIX: {"wait_mean": 0.5, "bsld_mean": 0.25, "wait_p99": 0.25},
}
_WATCHED: Final = ("wait_mean", "bsld_mean", "wait_p99", "jct_mean", "makespan")


class Validation(NamedTuple):
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


class Validator:
    """The validation windows, and the best plain rule of each group on them."""

    def __init__(self, windows: Sequence[tuple[str, Case]], objective: Objective, pool: WorkerPool) -> None:
        self._windows, self._objective, self._pool = windows, objective, pool
        plain = self._measure(RULES)
        self._rules = {
            group: min(zip(RULES, rules, strict=True), key=lambda one: one[1]["wait_mean"])
            for group, rules in plain.items()
        }
        """The rule with the least mean wait of each group, and its metrics."""

    def _measure(self, policies: Sequence[str | Actor]) -> dict[str, list[dict[str, float]]]:
        """For each group and each policy, the mean of each metric over the windows in which it is a number."""
        groups: dict[str, list[list[dict[str, float]]]] = {}
        found = self._pool.map(call, [partial(measure_policies, case, policies) for _, case in self._windows])
        for (group, _), measured in zip(self._windows, found, strict=True):
            groups.setdefault(group, []).append(measured)
        return {
            group: [
                {name: _mean([one[name] for one in policy]) for name in _WATCHED}
                for policy in zip(*measured, strict=True)
            ]
            for group, measured in groups.items()
        }

    def validate(self, actor: Actor) -> Validation:
        """The actor relative to the best rules."""
        groups = {}
        for group, (mine,) in self._measure([actor]).items():
            theirs = self._rules[group][1]
            groups[group] = {name: _ratio(mine[name], theirs[name]) for name in _WATCHED}
        score = float(np.mean([self._score(ratios) for ratios in groups.values()]))
        ratios = {name: float(np.mean([ratios[name] for ratios in groups.values()])) for name in _WATCHED}
        return Validation(score, ratios, groups, {group: rule for group, (rule, _) in self._rules.items()})

    def _score(self, ratios: Mapping[str, float]) -> float:
        beyond = sum(max(ratios[name] - TOLERATED, 0.0) for name in ("bsld_mean", "wait_p99"))
        return sum(share * ratios[name] for name, share in _SHARES[self._objective].items()) + beyond


def _mean(values: Sequence[float]) -> float:
    kept = [value for value in values if np.isfinite(value)]
    return float(np.mean(kept)) if kept else float("nan")


def _ratio(mine: float, theirs: float) -> float:
    """1 where there is nothing to improve."""
    return mine / theirs if theirs > 0 and np.isfinite(mine) else 1.0

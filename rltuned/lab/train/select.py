"""Which actor of a training is kept: the best one on windows that were not trained on.

They are measured as `rltuned evaluate` measures: without sampling, relative to smallest area first.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import call
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.objective import METRICS
from rltuned.core.workers.pool import WorkerPool
from rltuned.decide.rank.actor import Actor
from rltuned.lab.evaluate.case import Case
from rltuned.lab.train.sampling import Measures, in_slurms_order, judge

CHANCE: Final = 0.005
"""A smaller difference between two scores may be chance. Smallest area first is not given up for it."""
TOLERATED: Final = 1.02
"""Mean wait may be at most so many times smallest area first's in any group: a gain in J must not cost that."""
WATCHED: Final = ("objective", "wait_mean", "bsld_mean", "wait_p99", "idle", "makespan")
_LEAST: Final = dict(METRICS.values())
"""That Slurm's own metric counts as, as in J; of the others 1."""


class Validation(NamedTuple):
    """How good an actor is on the validation windows."""

    score: float
    """To be minimised: J over the rule's, plus what exceeds `TOLERATED`; mean over the groups."""
    ratios: Mapping[str, float]
    """Each of `WATCHED` over the rule's; mean over the groups."""
    groups: Mapping[str, Mapping[str, float]]  # the same of each group


class Validator:
    """The validation windows, and what a rule does on them."""

    def __init__(self, windows: Sequence[tuple[str, Case]], pool: WorkerPool, rule: Actor) -> None:
        self._windows, self._pool = windows, pool
        self._slurm = list(pool.map(call, [partial(in_slurms_order, case) for _, case in windows]))
        self._rule = self._measured(rule)

    def compare(self, actor: Actor) -> Validation:
        """An actor relative to the rule."""
        groups: dict[str, list[tuple[Measures, Measures]]] = {}
        every = zip(self._windows, self._slurm, self._measured(actor), self._rule, strict=True)
        for (group, _), slurm, mine, theirs in every:
            groups.setdefault(group, []).append((over(mine, slurm), over(theirs, slurm)))
        return _validation({group: _ratios(found) for group, found in groups.items()})

    def _measured(self, actor: Actor) -> list[Measures]:
        both = zip(self._windows, self._slurm, strict=True)
        return list(self._pool.map(call, [partial(judge, case, slurm, actor) for (_, case), slurm in both]))


def over(own: Measures, slurm: Measures) -> Measures:
    """The metrics of a window over Slurm's own there, which J is already: windows of minutes and weeks count alike."""
    return {name: own[name] / max(slurm.get(name, 1.0), _LEAST.get(name, 1.0)) for name in WATCHED}


def _ratios(windows: Sequence[tuple[Measures, Measures]]) -> dict[str, float]:
    """Means over the windows of an actor over those of the rule; 1 where there is nothing to improve."""
    found = {}
    for name in WATCHED:
        values = np.array([(mine[name], theirs[name]) for mine, theirs in windows])
        mine, theirs = values[np.isfinite(values).all(axis=1)].sum(axis=0)
        found[name] = float(mine / theirs) if theirs > 0 else 1.0
    return found


def _validation(groups: Mapping[str, Mapping[str, float]]) -> Validation:
    scores = [found["objective"] + max(found["wait_mean"] - TOLERATED, 0.0) for found in groups.values()]
    ratios = {name: float(np.mean([found[name] for found in groups.values()])) for name in WATCHED}
    return Validation(float(np.mean(scores)), ratios, groups)

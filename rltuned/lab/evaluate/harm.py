"""Whom a policy harms beyond chance, and whether it wastes GPUs (docs/good-for-us.md): the bounds of each verdict.

Chance is Slurm's own order once more, each job submitted up to a minute later. Means over windows are held against each
other, so that one hard window decides nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np


class Bound(NamedTuple):
    """Of a metric: what is allowed is `times` that of the other, and `plus`."""

    metric: str
    words: str
    of_chance: bool  # the other is chance; else it is Slurm's own order
    times: float = 1.0
    plus: float = 0.0
    least: bool = False  # so much has to be there; else no more than so much


ACCOUNTS: Final = (
    Bound("accounts_worse", "accounts worse off", of_chance=True, plus=0.05),
    Bound("worst_tenth", "worst tenth of accounts", of_chance=True, times=1.1),
)
"""Of what accounts wait: unknown where a trace names nobody, or nobody has enough jobs."""
BOUNDS: Final = (
    *ACCOUNTS,
    Bound("wait_p99", "p99 of the wait", of_chance=False, times=1.02),
    Bound("utilization", "GPUs in use", of_chance=False, times=0.99, least=True),
)


class Harm(NamedTuple):
    """A bound that is not kept."""

    metric: str
    words: str
    value: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.words} {self.value:.2f}, and {self.allowed:.2f} is allowed"

    @property
    def excess(self) -> float:
        """How far beyond what is allowed."""
        return abs(self.value - self.allowed)


def harms(
    own: Mapping[str, float],
    slurm: Mapping[str, float],
    chance: Mapping[str, float],
    bounds: tuple[Bound, ...] = BOUNDS,
) -> Iterator[Harm]:
    """Bounds that a policy does not keep; those that cannot be judged are kept (`unknown`). Of `wait_p99` and
    `utilization` the ratio to Slurm's own is told.

    Means over the windows by metric, NaN or infinite where not measured: its own, those of Slurm's own order, and of
    that once more (chance).
    """
    for bound in bounds:
        value, other = own[bound.metric], (chance if bound.of_chance else slurm)[bound.metric]
        if not bound.of_chance:
            value, other = value / other if other > 0.0 else 1.0, 1.0
        allowed = bound.times * other + bound.plus
        if np.isfinite([value, allowed]).all() and (value < allowed if bound.least else value > allowed):
            yield Harm(bound.metric, bound.words, value, allowed)


def unknown(chance: Mapping[str, float]) -> list[str]:
    """Words for the bounds that cannot be judged."""
    return [bound.words for bound in BOUNDS if bound.of_chance and not np.isfinite(chance[bound.metric])]

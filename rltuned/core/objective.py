"""What a site wants, as one number: waits, slowdowns, the tail of waits and idle GPUs, over Slurm's own order."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

TAIL: Final = 0.1
"""Share of the jobs, those that wait longest, that stand for the 99th percentile in training, where a cost is a
sum over time and a percentile cannot be used."""
MOST: Final = 3.0
"""A metric counts as at most so many times Slurm's: one window must not outweigh all others."""
METRICS: Final[Mapping[str, tuple[str, float]]] = {
    "wait": ("wait_mean", 60.0),
    "slowdown": ("bsld_mean", 1.0),
    "tail": ("wait_p99", 60.0),
    "idle": ("idle", 1.0),
}
"""Of each weight: its metric, and the least that Slurm's own is taken to be: below it there is nothing to win."""


class Objective(NamedTuple):
    """Weights of J = Σ weight · metric / the same metric in Slurm's own order, on the same window. They sum up to 1."""

    wait: float = 0.5  # of the mean wait
    slowdown: float = 0.2  # of the mean bounded slowdown
    tail: float = 0.2  # of the 99th percentile of the wait
    idle: float = 0.1  # of the GPU time that stands idle while a job waits

    @classmethod
    def parse(cls, text: str) -> Self:
        """Weights as `wait=5,tail=2`, 0 where none is given; only their proportions count."""
        given: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (word.strip() for word in part.partition("="))
            try:
                weight = float(value)
            except ValueError:
                weight = math.nan
            if name not in cls._fields or not 0.0 <= weight < math.inf:
                known = ", ".join(cls._fields)
                msg = f"'{part.strip()}' is not NAME=WEIGHT with a name of {known} and a weight that is not below 0"
                raise ValueError(msg)
            given[name] = weight
        total = math.fsum(given.values())
        if total <= 0.0:
            msg = f"'{text}' has no weight above 0"
            raise ValueError(msg)
        return cls(*(given.get(name, 0.0) / total for name in cls._fields))

    def of(self, own: Mapping[str, float | None], slurm: Mapping[str, float | None]) -> float:
        """J of one window, smaller is better; NaN where a metric is not known."""
        total = 0.0
        for name, weight in self._asdict().items():
            mine, theirs = own[METRICS[name][0]], slurm[METRICS[name][0]]
            if mine is None or theirs is None:
                return math.nan
            total += weight * min(mine / at_least(name, {METRICS[name][0]: theirs}), MOST)
        return total

    def __str__(self) -> str:
        return ",".join(f"{name}={weight:.12g}" for name, weight in self._asdict().items())


def at_least(name: str, slurm: Mapping[str, float]) -> float:
    """What a metric in Slurm's own order counts as: the weight `name` is over it."""
    metric, least = METRICS[name]
    return max(slurm[metric], least)


DEFAULT: Final = Objective()  # where a site names no other weights

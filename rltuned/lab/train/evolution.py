"""An evolution strategy over an actor's coefficients, from which its network learns: no gradient through the simulator.

In each window, pairs of actors are tried whose coefficients are c + σε and c − σε at every moment: the difference of
what they cost says how J of that window changes with the eight coefficients (Salimans et al., arXiv 1703.03864). The
chain rule takes it from there to `constant` and `change`, at the moments that the window had; the first layer stays.
Each window has directions of its own: with the same ones in all windows, as where the weights themselves are moved, a
step learns of ten directions out of 120; this way of hundreds out of eight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Floats
from rltuned.decide.rank.actor import Actor
from rltuned.decide.see.observation import STATE_COLUMNS

_MOST: Final = 0.15
"""Half a difference of J counts as at most so much: in a few windows one job decides it."""
_FIRST: Final = 0.9
_SECOND: Final = 0.98  # of Adam's moments: a training has few steps
_MEAN: Final = 30
"""Steps that the mean forgets in (Polyak and Juditsky, SIAM J. Control 30, 1992)."""
_LEARNED: Final = {"constant": 1.0, "change": 0.3}
"""Weights that move, each with its share of the rate: a coefficient has 14 of the second, whose noise adds up."""


@dataclass(frozen=True)
class EvolutionSettings:
    """How a strategy goes on."""

    windows: int = 96  # of a step
    pairs: int = 4  # in each window
    spread: float = 0.2  # σ: that of requested_time begins with −1
    rate: float = 0.02
    """Of Adam at the first step; falls to a tenth as a line."""


class Tried(NamedTuple):
    """What a window says of its pairs."""

    moment: Floats  # (s, 14) at some of its decisions
    cost: Floats  # (pairs, 2) of c + σε and of c − σε


class Evolution:
    """An actor on its way."""

    def __init__(self, actor: Actor, settings: EvolutionSettings) -> None:
        self.settings, self.begun = settings, actor
        now = {name: actor.weights[name].astype(np.float64) for name in _LEARNED}
        none = {name: np.zeros_like(value) for name, value in now.items()}
        held = {"now": now, "mean": now, "first": none, "second": none}
        self.state: dict[str, npt.NDArray[Any]] = {
            f"{of}.{name}": value for of, each in held.items() for name, value in each.items()
        }
        """Everything that the next step depends on."""
        self.state["steps"] = np.zeros(1, dtype=np.int64)

    @property
    def actor(self) -> Actor:
        """As it is now."""
        return self._of("now")

    @property
    def mean(self) -> Actor:
        """The mean over the last steps: what is good of them without the noise of each."""
        return self._of("mean")

    def moved(self, rng: np.random.Generator) -> Floats:
        """(windows, pairs, 8) σε of a step."""
        shape = self.settings.windows, self.settings.pairs, len(STATE_COLUMNS)
        return self.settings.spread * rng.standard_normal(shape)

    def step(self, moved: Sequence[Floats], found: Sequence[Tried], left: float) -> float:
        """Move by what the pairs of some windows cost; `left`: share of the training that is still to come.

        Returns:
            Signal to noise: the length of the mean of the windows' slopes over its standard error; NaN where that is 0.
        """
        slopes = np.array([self._slope(away, one.cost) for away, one in zip(moved, found, strict=True)])
        hidden = [np.tanh(one.moment @ self.begun.weights["kernel"] + self.begun.weights["bias"]) for one in found]
        units = np.array([each.mean(axis=0) for each in hidden])
        self._adam({"constant": slopes.mean(axis=0), "change": units.T @ slopes / len(found)}, left)
        error = np.sqrt((slopes.var(axis=0, ddof=1) / len(slopes)).sum()) if len(slopes) > 1 else 0.0
        return float(np.sqrt((slopes.mean(axis=0) ** 2).sum()) / error) if error > 0.0 else float("nan")

    def _slope(self, moved: Floats, cost: Floats) -> Floats:
        """(8,) how the cost of a window rises with each coefficient."""
        half = np.clip((cost[:, 0] - cost[:, 1]) / 2.0, -_MOST, _MOST)
        return np.asarray((half[:, None] * moved).mean(axis=0) / self.settings.spread**2)

    def _adam(self, gradient: dict[str, Floats], left: float) -> None:
        held = self.state
        held["steps"] = held["steps"] + 1
        steps, rate = int(held["steps"][0]), self.settings.rate * (0.1 + 0.9 * left)
        for name, slope in gradient.items():
            first = _FIRST * held[f"first.{name}"] + (1.0 - _FIRST) * slope
            second = _SECOND * held[f"second.{name}"] + (1.0 - _SECOND) * slope**2
            by = first / (1.0 - _FIRST**steps) / (np.sqrt(second / (1.0 - _SECOND**steps)) + 1e-5)
            now = held[f"now.{name}"] - rate * _LEARNED[name] * by
            mean = held[f"mean.{name}"] + (now - held[f"mean.{name}"]) / min(steps, _MEAN)
            held |= {f"first.{name}": first, f"second.{name}": second, f"now.{name}": now, f"mean.{name}": mean}

    def _of(self, which: str) -> Actor:
        moved = {name: self.state[f"{which}.{name}"].astype(np.float32) for name in _LEARNED}
        return replace(self.begun, weights={**self.begun.weights, **moved})

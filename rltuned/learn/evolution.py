"""An evolution strategy over an actor's weights (Salimans et al., arXiv 1703.03864): no gradient of the network.

Each step tries pairs of actors, x + σε and x − σε, on the same windows, and moves x against the ranks of what they
cost. What all of them have in common, above all how hard the windows are, cancels out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.observe.observation import STATE_COLUMNS
from rltuned.policy.actor import RUN_TIME, Actor

SCALE: Final[Mapping[str, float]] = {"constant": 0.2, "kernel": 1.0, "bias": 1.0, "change": 0.2}
"""Of a unit of x in each tensor: coefficients are of the size of a tenth, the moment's inputs of the size of one."""
_FIRST: Final = 0.9
_SECOND: Final = 0.99
"""Of Adam's moments: a training has few steps."""


@dataclass(frozen=True)
class EvolutionSettings:
    """How a strategy goes on."""

    pairs: int = 10
    windows: int = 36
    """Of a step, the same for all actors."""
    spread: float = 0.4
    """σ, in units of `SCALE`."""
    rate: float = 0.2
    """Of Adam at the first step, in the same units; falls to a tenth as a line."""


class Evolution:
    """An actor on its way."""

    def __init__(self, actor: Actor, settings: EvolutionSettings, columns: Sequence[str] = STATE_COLUMNS) -> None:
        """Begin at an actor. `columns`: whose coefficients may change."""
        self.settings, self.begun = settings, actor
        self._names = [name for name in actor.weights if name != RUN_TIME]
        free = np.isin(STATE_COLUMNS, columns)
        self._scale = np.concatenate(
            [
                (np.broadcast_to(free if name in {"constant", "change"} else True, actor.weights[name].shape)).ravel()
                * SCALE[name]
                for name in self._names
            ]
        )
        self.state: dict[str, npt.NDArray[Any]] = {
            "x": np.concatenate([actor.weights[name].ravel() for name in self._names]).astype(np.float64),
            "first": np.zeros(len(self._scale)),
            "second": np.zeros(len(self._scale)),
            "steps": np.zeros(1, dtype=np.int64),
        }
        """Everything that the next step depends on."""

    @property
    def actor(self) -> Actor:
        """As it is now."""
        return self._at(self.state["x"])

    def tried(self, rng: np.random.Generator) -> tuple[list[Actor], Floats]:
        """The actors of a step, those with +ε before those with −ε, and (pairs, d) ε."""
        drawn = rng.standard_normal((self.settings.pairs, len(self._scale)))
        moved = self.settings.spread * self._scale * drawn
        return [self._at(self.state["x"] + sign * each) for sign in (1.0, -1.0) for each in moved], drawn

    def step(self, drawn: Floats, costs: Floats, left: float) -> float:
        """Move by what the actors of `tried` cost; `left`: share of the training that is still to come.

        Returns:
            Signal to noise: the length of the mean over the pairs' directions over its standard error.
        """
        pairs, held = self.settings.pairs, self.state
        rank = np.empty(2 * pairs)
        rank[np.argsort(costs, kind="stable")] = np.linspace(-0.5, 0.5, 2 * pairs)
        each = (rank[:pairs] - rank[pairs:])[:, None] * drawn
        gradient = each.mean(axis=0)
        held["steps"] = held["steps"] + 1
        steps = int(held["steps"][0])
        held["first"] = _FIRST * held["first"] + (1.0 - _FIRST) * gradient
        held["second"] = _SECOND * held["second"] + (1.0 - _SECOND) * gradient**2
        first, second = held["first"] / (1.0 - _FIRST**steps), held["second"] / (1.0 - _SECOND**steps)
        rate = self.settings.rate * (0.1 + 0.9 * left)
        held["x"] = held["x"] - rate * self._scale * first / (np.sqrt(second) + 1e-8)
        error = np.sqrt((each.var(axis=0, ddof=1) / pairs).sum()) if pairs > 1 else np.nan
        return float(np.sqrt((gradient**2).sum()) / error)

    def _at(self, x: Floats) -> Actor:
        weights, begin = dict(self.begun.weights), 0
        for name in self._names:
            shape = weights[name].shape
            end = begin + int(np.prod(shape))
            weights[name] = x[begin:end].reshape(shape).astype(np.float32)
            begin = end
        return replace(self.begun, weights=weights)

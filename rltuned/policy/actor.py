"""The learned ranking, in NumPy: one small network that every row of the window goes through."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.observe.observation import Observation
from rltuned.policy.heuristics import by_name, places

Weights = Mapping[str, npt.NDArray[np.float32]]


class Activation(enum.StrEnum):
    """Between the layers."""

    RELU = "relu"
    TANH = "tanh"


@dataclass(frozen=True)
class Architecture:
    """The shape of the network. The paper's: 8 → 32 → 16 → 8 → 1, the same for each job."""

    inputs: int = 8
    hidden: tuple[int, ...] = (32, 16, 8)
    activation: Activation = Activation.RELU
    context: bool = False
    """Whether the first layer also sees the mean of the window's rows, so that a job is judged among its company."""
    residual: str | None = None
    """Name of a rule. Score = the rule's order in [0, 1] + bound · tanh(network): with zero weights it is the rule."""
    bound: float = 0.25
    """Largest correction of a residual network, in fractions of the whole queue."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor: ``layer<i>.kernel`` (in, out), ``layer<i>.bias`` (out,), ``context.kernel``.

        ``input.mean`` and ``input.scale`` (inputs,) are the normalisers: the network sees (x − mean) / scale.
        """
        widths = (self.inputs, *self.hidden, 1)
        shapes: dict[str, tuple[int, ...]] = {"input.mean": (self.inputs,), "input.scale": (self.inputs,)}
        for index, (before, after) in enumerate(pairwise(widths)):
            shapes[f"layer{index}.kernel"] = (before, after)
            shapes[f"layer{index}.bias"] = (after,)
        if self.context:
            shapes["context.kernel"] = (self.inputs, widths[1])
        return shapes

    @property
    def layers(self) -> int:
        """Layers with weights."""
        return len(self.hidden) + 1

    @property
    def parameters(self) -> int:
        """Trained numbers, normalisers not counted."""
        return sum(int(np.prod(shape)) for name, shape in self.shapes().items() if not name.startswith("input."))


@dataclass(frozen=True)
class Actor:
    """A `Policy` that scores with a network. Permutation-equivariant: a row is judged alone, or beside the mean."""

    name: str
    architecture: Architecture
    weights: Weights
    """float32, with the names and shapes of `Architecture.shapes`."""

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, higher first.

        Rounded to 1e-6: a matrix product may treat equal rows differently in the last bits, and equal jobs must tie.
        """
        rule = self.architecture.residual
        base = rule_order(rule, observation) if rule is not None else None
        return np.round(self.score_rows(observation.state[: len(observation)], base), 6)

    def score_rows(self, state: npt.NDArray[np.float32], base: Floats | None = None) -> Floats:
        """(n,) scores of (n, inputs) rows, all of them jobs; `base`: (n,) `rule_order` of the residual's rule."""
        output = self.network(state)
        if self.architecture.residual is None:
            return output
        if base is None:
            raise ValueError(f"{self.name} corrects the rule '{self.architecture.residual}': its order is missing")
        return base + self.architecture.bound * np.tanh(output)

    def network(self, state: npt.NDArray[np.float32]) -> Floats:
        """(n,) output of the network alone.

        In double precision: then neither the machine nor the place of a row in the matrix shows in a score.
        """
        value = state.astype(np.float64)
        for index, (kernel, bias) in enumerate(self._layers):
            if index:
                relu = self.architecture.activation is Activation.RELU
                value = np.maximum(value, 0.0, out=value) if relu else np.tanh(value, out=value)
            elif self.architecture.context and len(state):
                bias = bias + value.mean(axis=0) @ self._context  # noqa: PLW2901 - the bias of this window
            value = value @ kernel
            value += bias
        return np.asarray(value[:, 0])

    @cached_property
    def _layers(self) -> tuple[tuple[Floats, Floats], ...]:
        """Kernel and bias of each layer, the normalisers folded into the first."""
        layers = [
            (
                self.weights[f"layer{index}.kernel"].astype(np.float64),
                self.weights[f"layer{index}.bias"].astype(np.float64),
            )
            for index in range(self.architecture.layers)
        ]
        mean, scale = self.weights["input.mean"].astype(np.float64), self.weights["input.scale"].astype(np.float64)
        kernel, bias = layers[0][0] / scale[:, None], layers[0][1]
        bias = bias - mean @ kernel
        if self.architecture.context:
            bias = bias - mean @ self._context
        layers[0] = (kernel, bias)
        return tuple(layers)

    @cached_property
    def _context(self) -> Floats:
        """What the mean row adds to the first layer."""
        kernel = self.weights["context.kernel"].astype(np.float64)
        return np.asarray(kernel / self.weights["input.scale"].astype(np.float64)[:, None])


def initial_weights(
    architecture: Architecture, mean: npt.NDArray[np.float32], scale: npt.NDArray[np.float32], rng: np.random.Generator
) -> dict[str, npt.NDArray[np.float32]]:
    """Kernels drawn as He et al. 2015 (normal, variance 2 / inputs), biases 0, and the given normalisers."""
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in architecture.shapes().items():
        if name.endswith(".kernel"):
            weights[name] = (rng.standard_normal(shape) * np.sqrt(2.0 / shape[0])).astype(np.float32)
        elif name.endswith(".bias"):
            weights[name] = np.zeros(shape, dtype=np.float32)
    weights["input.mean"], weights["input.scale"] = mean, scale
    return weights


def untrained(name: str, architecture: Architecture, seed: int) -> Actor:
    """An actor that has learned nothing: `initial_weights` of the seed, inputs as they are."""
    plain = np.zeros(architecture.inputs, dtype=np.float32), np.ones(architecture.inputs, dtype=np.float32)
    return Actor(name, architecture, initial_weights(architecture, *plain, np.random.default_rng(seed)))


def rule_order(name: str, observation: Observation) -> Floats:
    """(n,) a rule's order as numbers in [0, 1], 1 for its first job: what a residual network corrects."""
    place = places(by_name(name).key(observation), observation.submit)
    return 1.0 - place / max(int(place.max(initial=0)), 1)

"""The learned ranking, in NumPy: one small network that every row of the window goes through."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.observe.features import RUN_TIME_HORIZON
from rltuned.observe.observation import Observation
from rltuned.observe.supply import CENTURY
from rltuned.policy.heuristics import by_name
from rltuned.policy.protocol import Policy, Queue, QueueView

Weights = Mapping[str, npt.NDArray[np.float32]]

CORRECTED: Final = ("saf", "sjf")
"""Rules that a residual can correct: their keys are products, at least 1, so that a logarithm is their level."""
RUN_TIME: Final = "run_time.coefficients"
"""(3,) optional tensor: c0, c1, c2 of ln T = c0 + c1 ln r + c2 ln L, the run time that is expected."""
AGEING: Final = "rule.ageing"
"""(1,) optional tensor: a ≥ 0. The rule's key is divided by (1 + wait / T)^a, a power of the job's expansion factor."""
EXTRAS: Final[Mapping[str, tuple[int, ...]]] = {RUN_TIME: (3,), AGEING: (1,)}
"""Tensors that an actor may have beside those of its network, and their shapes."""
_TIME_SCALE: Final = math.log1p(RUN_TIME_HORIZON)


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
    """Whether the first layer also sees the mean of the window's rows, the pooled context of the queue."""
    residual: str | None = None
    """One of `CORRECTED`. Score = `Actor.level` + bound · tanh(network): with zero weights, the rule's own order."""
    bound: float = 0.25
    """Largest correction of a residual network, on the scale of requested_time: 0.25 is e^3.7 in the rule's key."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor: ``layer<i>.kernel`` (in, out), ``layer<i>.bias`` (out,), ``context.kernel``.

        ``input.mean`` and ``input.scale`` (inputs,) are the normalisers: the network sees (x − mean) / scale. `EXTRAS`
        are no part of the network and not listed.
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
    def trained(self) -> dict[str, tuple[int, ...]]:
        """`shapes` without the normalisers."""
        return {name: shape for name, shape in self.shapes().items() if not name.startswith("input.")}

    @property
    def parameters(self) -> int:
        """Numbers of `trained`."""
        return sum(map(math.prod, self.trained.values()))


@dataclass(frozen=True)
class Actor:
    """A `Policy` that scores with a network. Permutation-equivariant: a row is judged alone, or beside the mean."""

    name: str
    architecture: Architecture
    weights: Weights
    """float32, with the names and shapes of `Architecture.shapes`, and those of `EXTRAS` that were fitted."""

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, higher first."""
        # Rounded: a matrix product may treat equal rows differently in the last bits, and equal jobs must tie. The
        # rule's level is no such product, and keeps three digits more to tell apart what the rule does.
        correction = np.round(self._corrections(observation.state[: len(observation)]), 6)
        rule = self.architecture.residual
        return correction if rule is None else np.round(self.level(observation), 9) + correction

    def level(self, queue: Queue) -> Floats:
        """(n,) what the network corrects: `rule_level` of its rule, with the run times that are expected, and what a
        job gains by waiting (`AGEING`). 0 without a rule.
        """
        rule = self.architecture.residual
        if rule is None:
            return np.zeros(len(queue.run_time))
        expected = self.expected_run_time(queue.run_time, queue.time_limit)
        view = QueueView(expected, queue.time_limit, queue.gpus, queue.wait, queue.submit, queue.priority)
        level = rule_level(rule, view)
        return level + self.ageing * np.log1p(queue.wait / expected) / _TIME_SCALE if self.ageing else level

    @property
    def ageing(self) -> float:
        """A of `AGEING`; 0 where the rule does not age."""
        exponent = self.weights.get(AGEING)
        return 0.0 if exponent is None else float(exponent[0])

    @cached_property
    def corrects_nothing(self) -> bool:
        """Whether the order is the rule's own: the last layer of the network that corrects it is zero."""
        last = self.architecture.layers - 1
        kernel, bias = self.weights[f"layer{last}.kernel"], self.weights[f"layer{last}.bias"]
        return self.architecture.residual is not None and not (kernel.any() or bias.any())

    @property
    def summary(self) -> str:
        """What decides the order, in one sentence."""
        rule = self.architecture.residual
        if rule is None:
            return "the network's scores"
        run_time = ""
        if (coefficients := self.weights.get(RUN_TIME)) is not None:
            constant, of_run_time, of_limit = coefficients.tolist()
            run_time = (
                f" on expected run times (predicted means as they are; "
                f"e^{constant:.2f} · r^{of_run_time:.2f} · L^{of_limit:.2f} of any other estimate r and limit L)"
            )
        ageing = f", waiting counted with exponent {self.ageing:g}" if self.ageing else ""
        most = self.architecture.bound * _TIME_SCALE
        corrected = f"the network corrects that by up to a factor of e^{most:.1f} in the key"
        if self.corrects_nothing:
            corrected = "the network corrects nothing" if self.architecture.hidden else "no network corrects it"
        return f"the plain rule {rule}{run_time}{ageing}; {corrected}"

    def score_rows(self, state: npt.NDArray[np.float32], base: Floats | None = None) -> Floats:
        """(n,) scores of (n, inputs) rows, all of them jobs; `base`: (n,) `level` of a residual actor."""
        corrections = self._corrections(state)
        if self.architecture.residual is None:
            return corrections
        if base is None:
            raise ValueError(f"{self.name} corrects the rule '{self.architecture.residual}': its level is missing")
        return base + corrections

    def expected_run_time(self, run_time: Floats, time_limit: Floats) -> Floats:
        """(n,) T, seconds: how long each job is expected to run.

        ln T = c0 + c1 ln r + c2 ln L, cut to [1, L]; an unlimited job counts as one of 30 days. T = r where the model
        has no such coefficients, and where r is no less than L: the estimate is the limit, or says that it will be
        reached.

        Args:
            run_time: (n,) r, the smaller of estimate and limit, seconds, at least 1.
            time_limit: (n,) L, seconds, infinite or NaN when unlimited.
        """
        coefficients = self.weights.get(RUN_TIME)
        if coefficients is None:
            return run_time.copy()
        constant, of_run_time, of_limit = coefficients.astype(np.float64)
        limit = np.maximum(np.fmin(time_limit, RUN_TIME_HORIZON), 1.0)
        level = constant + of_run_time * np.log(run_time) + of_limit * np.log(limit)
        expected = np.fmin(np.exp(np.clip(level, 0.0, math.log(CENTURY))), time_limit)
        return np.where(run_time < limit, np.maximum(expected, 1.0), run_time)

    def _corrections(self, state: npt.NDArray[np.float32]) -> Floats:
        """(n,) what the network adds to its rule; its output where there is none."""
        if self.corrects_nothing:
            return np.zeros(len(state))
        output = self.network(state)
        return output if self.architecture.residual is None else self.architecture.bound * np.tanh(output)

    def network(self, state: npt.NDArray[np.float32]) -> Floats:
        """(n,) output of the network alone."""
        # In double precision neither the machine nor the place of a row in the matrix shows in a score.
        value = state.astype(np.float64)
        for index, (kernel, bias) in enumerate(self.folded_layers):
            if index:
                relu = self.architecture.activation is Activation.RELU
                value = np.maximum(value, 0.0, out=value) if relu else np.tanh(value, out=value)
            elif self.architecture.context and len(state):
                bias = bias + value.mean(axis=0) @ self.folded_context  # noqa: PLW2901 - the bias of this window
            value = value @ kernel
            value += bias
        return np.asarray(value[:, 0])

    @cached_property
    def folded_layers(self) -> tuple[tuple[Floats, Floats], ...]:
        """Kernel (in, out) and bias (out,) of each layer, the normalisers folded into the first."""
        held = {name: value.astype(np.float64) for name, value in self.weights.items()}
        layers = [(held[f"layer{at}.kernel"], held[f"layer{at}.bias"]) for at in range(self.architecture.layers)]
        mean = held["input.mean"]
        kernel = layers[0][0] / held["input.scale"][:, None]
        bias = layers[0][1] - mean @ kernel
        if self.architecture.context:
            bias = bias - mean @ self.folded_context
        layers[0] = (kernel, bias)
        return tuple(layers)

    @cached_property
    def folded_context(self) -> Floats:
        """(inputs, out) what the mean row adds to the first layer, the normalisers folded in."""
        kernel = self.weights["context.kernel"].astype(np.float64)
        return np.asarray(kernel / self.weights["input.scale"].astype(np.float64)[:, None])


def initial_weights(
    architecture: Architecture, mean: npt.NDArray[np.float32], scale: npt.NDArray[np.float32], rng: np.random.Generator
) -> dict[str, npt.NDArray[np.float32]]:
    """Kernels drawn as He et al. 2015 (normal, variance 2 / inputs), biases 0, and the given normalisers."""
    weights = {"input.mean": mean, "input.scale": scale}
    for name, shape in architecture.shapes().items():
        if name.endswith(".kernel"):
            weights[name] = (rng.standard_normal(shape) * np.sqrt(2.0 / shape[0])).astype(np.float32)
        elif name.endswith(".bias"):
            weights[name] = np.zeros(shape, dtype=np.float32)
    return weights


def untrained(name: str, architecture: Architecture, seed: int) -> Actor:
    """An actor that has learned nothing: `initial_weights` of the seed, inputs as they are."""
    plain = np.zeros(architecture.inputs, dtype=np.float32), np.ones(architecture.inputs, dtype=np.float32)
    return Actor(name, architecture, initial_weights(architecture, *plain, np.random.default_rng(seed)))


def on_means(policy: Policy) -> Policy:
    """The policy for run times that are predicted means: without `RUN_TIME`, which is for estimates that err."""
    if not (isinstance(policy, Actor) and RUN_TIME in policy.weights):
        return policy
    return replace(policy, weights={name: value for name, value in policy.weights.items() if name != RUN_TIME})


def rule_level(name: str, queue: Queue) -> Floats:
    """(n,) −ln(key) / ln(1 + 30 d) of one of the rules `CORRECTED`, higher first, on the scale of requested_time."""
    return -np.log(by_name(name).key(queue)) / _TIME_SCALE

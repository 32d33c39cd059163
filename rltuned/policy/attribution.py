"""How each number of a job moves its score: exact for the rule, integrated gradients for the network.

The score of a residual actor is a sum: the level of a plain rule, and a bounded correction by the network. The level of
SAF is a sum again, of a part for the run time and a part for the GPUs, so the rule's half needs no method. The
network's half is attributed by integrated gradients (Sundararajan, Taly and Yan, ICML 2017): the gradient is integrated
along the straight line from a reference row to the job's row. The reference is the mean row of the window. So the
question is "why does this job's score differ from that of the average job?", and the parts add up to that difference
(completeness).

The pooled context that a network may have is that of the window, and is held fixed: it is the same for the job and for
the reference, so no part of the difference is due to it. docs/decisions/0094 says more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.observe.observation import Observation
from rltuned.observe.table3 import RUN_TIME_HORIZON
from rltuned.policy.actor import RUN_TIME, Activation, Actor
from rltuned.policy.heuristics import sizes

COMPLETE: Final = 1e-9
"""How far the parts of a smooth network may miss their sum before the way is cut into more pieces."""

MOST_PANELS: Final = 256
"""Pieces of the way at most, 32 points each; a network that is still rough there is not one of these weights."""


@dataclass(frozen=True)
class Attribution:
    """The score of one job as a sum: `reference`, the parts of `rule`, the parts of `network`."""

    score: float
    """Of the job; the actor's, before it is rounded."""
    reference: float
    """Score of the reference: the mean level of the rule, and what the network makes of the mean row."""
    columns: tuple[str, ...]
    """Names of the state's columns."""
    rule: Mapping[str, float]
    """What the rule's level adds, by the feature that it comes from; empty where no rule is corrected."""
    network: Floats
    """(inputs,) what each column adds through the network."""

    @property
    def gap(self) -> float:
        """What the parts miss; 0 but for rounding."""
        return self.score - self.reference - sum(self.rule.values()) - float(self.network.sum())


def attribute(actor: Actor, observation: Observation, row: int) -> Attribution:
    """The score of the visible job at `row` of the window, taken apart."""
    architecture = actor.architecture
    state = observation.state[: len(observation)].astype(np.float64)
    mean, mine = state.mean(axis=0), state[row]
    outer, _ = _outer(actor)
    parts = integrated_gradients(actor, mean, mine, mean)
    ends, _ = gradients(actor, np.stack((mean, mine)), mean)
    bent = outer(ends)
    rule: dict[str, float] = {}
    level = base = 0.0
    if architecture.residual is not None:
        for name, values in level_parts(actor, observation).items():
            average = float(values.mean())
            rule[name] = float(values[row]) - average
            level, base = level + float(values[row]), base + average
    return Attribution(
        score=level + float(bent[1]),
        reference=base + float(bent[0]),
        columns=observation.columns,
        rule=rule,
        network=parts,
    )


def level_parts(actor: Actor, observation: Observation) -> dict[str, Floats]:
    """(n,) what a residual actor corrects, as a sum by feature: ln(T · n) is ln T + ln n (SAF, QSSF), and the expected
    run time T a product of powers of estimate and limit; what a job gains by waiting is part of its urgency.
    """
    scale = np.log1p(RUN_TIME_HORIZON)
    run_time, limit = observation.run_time, observation.time_limit
    expected = actor.expected_run_time(run_time, limit)
    time = -np.log(expected) / scale
    parts = {"requested_time": time}
    if (coefficients := actor.weights.get(RUN_TIME)) is not None:
        bounded = np.maximum(np.fmin(limit, RUN_TIME_HORIZON), 1.0)
        of_limit = np.where(run_time < bounded, -float(coefficients[2]) * np.log(bounded) / scale, 0.0)
        parts = {"requested_time": time - of_limit, "requested_limit": of_limit}
    if actor.architecture.residual != "sjf":
        parts["requested_gpus"] = -np.log(sizes(observation)) / scale
    if actor.ageing:
        parts["job_urgency"] = actor.level_of_waiting(observation, expected)
    return parts


def gradients(actor: Actor, rows: Floats, context: Floats) -> tuple[Floats, Floats]:
    """(m,) output of the network for (m, inputs) rows, and (m, inputs) its derivatives, by hand.

    `context`: (inputs,) the mean row of the window, which is held. At the corner of a ReLU the derivative is 0.
    """
    relu = actor.architecture.activation is Activation.RELU
    value, layers = _first(actor, rows, context), _layers(actor)
    inner = []  # d activation / d input, of each hidden layer
    for kernel, bias in layers[1:]:
        if relu:
            inner.append((value > 0.0).astype(np.float64))
            value = np.maximum(value, 0.0)
        else:
            value = np.tanh(value)
            inner.append(1.0 - value * value)
        value = value @ kernel + bias
    back = np.ones((len(rows), 1))
    for (kernel, _), bend in zip(reversed(layers[1:]), reversed(inner), strict=True):
        back = (back @ kernel.T) * bend
    return value[:, 0], (back @ layers[0][0].T) / _scale(actor)


def integrated_gradients(actor: Actor, start: Floats, end: Floats, context: Floats) -> Floats:
    """(inputs,) what each input adds from `start` to `end`: together, the difference of the (bounded) outputs.

    A ReLU network is linear between its corners. They are found, so the integral is a sum without an error of its own.
    A tanh network is smooth: Gauss–Legendre, with more points until the parts add up.
    """
    way = end - start
    if actor.architecture.activation is Activation.RELU:
        return way * _between_corners(actor, start, way, context)
    outer, slope = _outer(actor)
    ends, _ = gradients(actor, np.stack((start, end)), context)
    difference = float(np.diff(outer(ends))[0])
    points, weights = np.polynomial.legendre.leggauss(32)
    panels = 1
    while True:
        at = ((np.arange(panels)[:, None] + (points + 1.0) / 2.0) / panels).ravel()
        output, gradient = gradients(actor, start + at[:, None] * way, context)
        weight = np.tile(weights / (2.0 * panels), panels) * slope(output)
        parts: Floats = way * (weight @ gradient)
        if abs(float(parts.sum()) - difference) <= COMPLETE or panels >= MOST_PANELS:
            return parts
        panels *= 2


def _between_corners(actor: Actor, start: Floats, way: Floats, context: Floats) -> Floats:
    """(inputs,) mean gradient of the bounded output on the way, of a ReLU network."""
    at = np.array([0.0, 1.0])
    for layer in range(1, len(_layers(actor))):
        value = _first(actor, start + at[:, None] * way, context)
        for kernel, bias in _layers(actor)[1:layer]:
            value = np.maximum(value, 0.0) @ kernel + bias
        before, after = value[:-1], value[1:]
        piece, unit = np.nonzero(before * after < 0.0)
        share = before[piece, unit] / (before[piece, unit] - after[piece, unit])
        at = np.unique(np.concatenate((at, at[piece] + share * (at[piece + 1] - at[piece]))))
    outer, slope = _outer(actor)
    output, _ = gradients(actor, start + at[:, None] * way, context)
    middle, gradient = gradients(actor, start + ((at[:-1] + at[1:]) / 2.0)[:, None] * way, context)
    # The bound bends what is straight: its mean slope over a piece is the secant.
    rise = np.diff(output)
    flat = np.abs(rise) < 1e-9
    mean_slope = np.where(flat, slope(middle), np.diff(outer(output)) / np.where(flat, 1.0, rise))
    return np.asarray((np.diff(at) * mean_slope) @ gradient)


def _outer(actor: Actor) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """What becomes of the network's output in the score, and its derivative."""
    if actor.architecture.residual is None:
        return np.asarray, np.ones_like
    bound = actor.architecture.bound
    return lambda output: bound * np.tanh(output), lambda output: bound * (1.0 - np.tanh(output) ** 2)


def _first(actor: Actor, rows: Floats, context: Floats) -> Floats:
    """(m, width) input of the first activation."""
    mean, scale = actor.weights["input.mean"].astype(np.float64), _scale(actor)
    kernel, bias = _layers(actor)[0]
    value = ((rows - mean) / scale) @ kernel + bias
    if actor.architecture.context:
        value += ((context - mean) / scale) @ actor.weights["context.kernel"].astype(np.float64)
    return np.asarray(value)


def _scale(actor: Actor) -> Floats:
    return actor.weights["input.scale"].astype(np.float64)


def _layers(actor: Actor) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    return [
        (
            actor.weights[f"layer{index}.kernel"].astype(np.float64),
            actor.weights[f"layer{index}.bias"].astype(np.float64),
        )
        for index in range(actor.architecture.layers)
    ]

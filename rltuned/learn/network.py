"""The actor in TensorFlow: the twin of `rltuned.policy.actor.Actor`, which tests hold to 1e-5 of it."""

from collections.abc import Mapping
from typing import Any

from rltuned.cluster.tables import Singles
from rltuned.learn.quiet import tf
from rltuned.policy.actor import EXTRAS, Activation, Architecture


def variables(weights: Mapping[str, Singles]) -> dict[str, Any]:
    """A TensorFlow variable for each array; normalisers and `EXTRAS` are not trained by gradients."""
    return {
        name: tf.Variable(value, name=name, trainable=not (name.startswith("input.") or name in EXTRAS))
        for name, value in weights.items()
    }


def network(weights: Mapping[str, Any], architecture: Architecture, state: Any, context: Any = None) -> Any:
    """(B, W) output of the network for (B, W, inputs) states.

    `context`: (B, inputs) mean of the jobs of each state (`context_of`); needed where the architecture has a context.
    Rows of padding have an output too, which means nothing.
    """
    value = (state - weights["input.mean"]) / weights["input.scale"]
    for index in range(architecture.layers):
        if index:
            value = tf.nn.relu(value) if architecture.activation is Activation.RELU else tf.tanh(value)
        value = tf.tensordot(value, weights[f"layer{index}.kernel"], 1) + weights[f"layer{index}.bias"]
        if index == 0 and architecture.context:
            seen = (context - weights["input.mean"]) / weights["input.scale"]
            value += tf.matmul(seen, weights["context.kernel"])[:, None, :]
    return value[:, :, 0]


def context_of(state: Any, mask: Any) -> Any:
    """(B, inputs) mean of the jobs' rows of (B, W, inputs) states; (B, W) `mask` is 1.0 for jobs, 0.0 for padding."""
    count = tf.maximum(tf.reduce_sum(mask, axis=1), 1.0)
    return tf.reduce_sum(state * mask[:, :, None], axis=1) / count[:, None]


def scores(weights: Mapping[str, Any], architecture: Architecture, state: Any, mask: Any, base: Any = None) -> Any:
    """(B, W) scores; (B, W) `base`: level of the residual's rule (`rltuned.policy.actor.rule_level`)."""
    return correct(architecture, network(weights, architecture, state, context_of(state, mask)), base)


def correct(architecture: Architecture, output: Any, base: Any = None) -> Any:
    """Scores from the network's output, of any shape: the output, or the residual's rule corrected by it."""
    if architecture.residual is None:
        return output
    if base is None:
        raise ValueError(f"the level of the rule '{architecture.residual}' is missing")
    return base + architecture.bound * tf.tanh(output)

"""The actor in TensorFlow: the twin of `rltuned.policy.actor.Actor`, and the distribution over orders of its scores.

The distribution is Plackett's (1975) and Luce's (1959), as `rltuned.learn.ppo` has it. Only the first places are drawn;
the rest goes by score. `rltuned.simulate.episode_kernel.draw` draws, and gives the log-probability of what it drew. The
gradient needs the same number in TensorFlow: `batch_log_probability`. Tests hold the two equal.
"""

from collections.abc import Mapping
from typing import Any

from rltuned.cluster.tables import Singles
from rltuned.learn.quiet import tf
from rltuned.policy.actor import RUN_TIME


def variables(weights: Mapping[str, Singles]) -> dict[str, Any]:
    """A TensorFlow variable for each array; what is expected of run times is not trained by gradients."""
    return {name: tf.Variable(value, name=name, trainable=name != RUN_TIME) for name, value in weights.items()}


def scores(weights: Mapping[str, Any], terms: Any, moment: Any, segment: Any) -> Any:
    """(R,) scores of (R, 8) terms of B queues, whose moments are (B, 14); `segment`: (R,) queue of each row."""
    coefficients = tf.zeros_like(moment[:, :1]) + weights["constant"]
    if weights["bias"].shape[0]:  # TensorFlow ends the process on a product over nothing
        unit = tf.tanh(tf.matmul(moment, weights["kernel"]) + weights["bias"])
        coefficients += tf.matmul(unit, weights["change"])
    return tf.reduce_sum(terms * tf.gather(coefficients, segment), axis=1)


def batch_log_probability(value: Any, segment: Any, picks: Any, queues: Any) -> tuple[Any, Any]:
    """(B,) log-probability of the picks of B queues, and (B,) entropy of the first place.

    Args:
        value: (R,) scores divided by the temperature.
        segment: (R,) which queue a row belongs to.
        picks: (B, heads) row of each place that was drawn, −1: none.
        queues: B.
    """
    top = tf.stop_gradient(tf.math.unsorted_segment_max(value, segment, queues))
    logit = value - tf.gather(top, segment)
    weight = tf.exp(logit)
    drawn = picks >= 0
    rows = tf.maximum(picks, 0)
    chosen = tf.where(drawn, tf.gather(logit, rows), -1e9)  # a place that was not drawn adds nothing
    placed = tf.scatter_nd(
        tf.boolean_mask(rows, drawn)[:, None], tf.ones_like(tf.boolean_mask(chosen, drawn)), tf.shape(value)
    )
    rest = tf.math.unsorted_segment_sum(tf.where(placed > 0, 0.0, weight), segment, queues)
    # From the last place to the first: what is left to draw from is the rest and the jobs placed from here on.
    among = tf.where(rest > 0.0, tf.math.log(tf.maximum(rest, 1e-37)), -1e9)
    total = tf.zeros_like(among)
    for head in range(picks.shape[1] - 1, -1, -1):
        one = chosen[:, head]
        high = tf.maximum(among, one)
        among = high + tf.math.log1p(tf.exp(-tf.abs(among - one)))
        total += tf.where(drawn[:, head], one - among, 0.0)
    sum_ = tf.math.unsorted_segment_sum(weight, segment, queues)
    entropy = tf.math.log(sum_) - tf.math.unsorted_segment_sum(weight * logit, segment, queues) / sum_
    return total, entropy

"""The distribution over orders that our policy is trained with (Plackett 1975, Luce 1959), here and nowhere else.

An order is drawn place by place, without replacement, each of those that are left with weight e^(score / temperature).
Only the first places are drawn; the rest goes by score. `rltuned.simulate.episode_kernel.draw` draws, and gives the
log-probability of what it drew. The gradient needs the same number in TensorFlow: `batch_log_probability`. Tests hold
the two equal.
"""

from typing import Any, Final

from rltuned.learn.quiet import tf

_NOT_DRAWN: Final = -1e9
"""Logit of a place that was not drawn."""
_LEAST: Final = 1e-30


def batch_log_probability(value: Any, segment: Any, picks: Any, queues: Any) -> tuple[Any, Any]:
    """(B,) log-probability of the picks of B queues, and (B,) entropy of the first place; in TensorFlow.

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
    chosen = tf.where(drawn, tf.gather(logit, rows), _NOT_DRAWN)
    placed = tf.scatter_nd(
        tf.boolean_mask(rows, drawn)[:, None], tf.ones_like(tf.boolean_mask(chosen, drawn)), tf.shape(value)
    )
    rest = tf.math.unsorted_segment_sum(tf.where(placed > 0, 0.0, weight), segment, queues)
    # From the last place to the first: what is left to draw from is the rest and the jobs placed from here on.
    among = tf.math.log(tf.maximum(rest, _LEAST))
    total = tf.zeros_like(among)
    for head in range(picks.shape[1] - 1, -1, -1):
        one = chosen[:, head]
        high = tf.maximum(among, one)
        among = high + tf.math.log1p(tf.exp(-tf.abs(among - one)))
        total += tf.where(drawn[:, head], one - among, 0.0)
    sum_ = tf.math.unsorted_segment_sum(weight, segment, queues)
    entropy = tf.math.log(sum_) - tf.math.unsorted_segment_sum(weight * logit, segment, queues) / sum_
    return total, entropy

"""The critic: what a queue is going to cost, of the (n, 5) `rltuned.decide.see.observation.CRITIC_COLUMNS` of its jobs.

Each job's row goes through one layer, the mean over the jobs and their number through another, to a value. TensorFlow.
The present training does not use it: its baseline is other orders of the same queue (`cost`).
"""

from typing import Any, Final

import numpy as np

from rltuned.decide.see.observation import CRITIC_COLUMNS
from rltuned.lab.train.quiet import tf

HIDDEN: Final = 32
"""Width of the layers."""


class Critic:
    """A value network with its optimiser."""

    def __init__(self, rng: np.random.Generator, rate: float = 1e-3) -> None:
        shapes = {"row": (len(CRITIC_COLUMNS), HIDDEN), "pool": (HIDDEN + 1, HIDDEN), "value": (HIDDEN, 1)}
        self._weights: dict[str, Any] = {}
        for name, shape in shapes.items():
            scale = 0.0 if name == "value" else np.sqrt(2.0 / shape[0])
            kernel = (rng.standard_normal(shape) * scale).astype(np.float32)
            self._weights[f"{name}.kernel"] = tf.Variable(kernel)
            self._weights[f"{name}.bias"] = tf.Variable(np.zeros(shape[1], dtype=np.float32))
        self._optimizer = tf.keras.optimizers.Adam(rate)

    def values(self, rows: Any, segment: Any, queues: int) -> Any:
        """(B,) value of each of B queues. `rows`: (R, 5); `segment`: (R,) number of the queue of each row."""
        weights = self._weights
        hidden = tf.nn.relu(rows @ weights["row.kernel"] + weights["row.bias"])
        count = tf.math.unsorted_segment_sum(tf.ones_like(hidden[:, :1]), segment, queues)
        mean = tf.math.unsorted_segment_sum(hidden, segment, queues) / tf.maximum(count, 1.0)
        pooled = tf.concat((mean, tf.math.log1p(count) / float(np.log1p(256.0))), axis=1)
        hidden = tf.nn.relu(pooled @ weights["pool.kernel"] + weights["pool.bias"])
        return (hidden @ weights["value.kernel"] + weights["value.bias"])[:, 0]

    def fit(self, rows: Any, segment: Any, target: Any) -> float:
        """Take one step towards the (B,) `target`; returns the mean squared error before it."""
        trained = list(self._weights.values())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.values(rows, segment, len(target)) - target))
        self._optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return float(loss)

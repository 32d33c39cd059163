"""Proximal policy optimisation (Schulman et al., 2017), to be read beside the paper. TensorFlow 2; one file.

Unlike in the paper, an action is a ranking of the queue. The policy is the distribution over orders of Plackett (1975)
and Luce (1959), π(a|s) = Π_h e^{s(a_h)/T} / Σ_{j not yet placed} e^{s(j)/T} over the first `heads` places, with the
actor's scores s; the rest goes by score. With T → 0 it is the order that is served.

The scores come from the twin of the served actor, `scores`. `rltuned.simulate.episode_kernel.draw` draws, and gives the
log-probability of what it drew; the gradient needs the same number in TensorFlow. Tests hold both pairs equal. The jobs
of all queues of a minibatch are in one array, with the number of their queue (`segment`). Queues are short and few are
equally long: padding them would be most of the work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Rows, Singles
from rltuned.decide.rank.actor import COLUMNS, MOMENT, RUN_TIME, Actor
from rltuned.lab.train.quiet import tf
from rltuned.lab.train.sampling import Steps, begins
from rltuned.lab.train.training_settings import PPOSettings


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


def deterministic() -> None:
    """The same numbers on every run of a machine: one thread, no operation whose order of summing varies."""
    tf.config.experimental.enable_op_determinism()
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        pass  # TensorFlow is in use already, as in tests: operations are deterministic, with as many threads as before


class IterationStats(NamedTuple):
    """What one iteration did to the policy."""

    loss: float
    divergence: float
    entropy: float
    clipped: float
    """Share of the decisions whose ratio left [1 − ε, 1 + ε]."""
    epochs: int  # that were begun
    signal: float
    """Length of the mean gradient over its standard error, of `_GROUPS` parts of the decisions: 1 is noise alone."""


_GROUPS: Final = 8


class PPO:
    """An actor with its optimiser."""

    def __init__(self, settings: PPOSettings, actor: Actor) -> None:
        self.settings = settings
        self._actor = actor
        self._weights = variables(actor.weights)
        self._trained = [weight for weight in self._weights.values() if weight.trainable and tf.size(weight) > 0]
        self._optimizer = tf.keras.optimizers.Adam(settings.learning_rate)
        self._optimizer.build(self._trained)

        def spec(kind: Any, *shape: int | None) -> Any:
            return tf.TensorSpec(shape, kind)

        row, moment, column = (
            spec(tf.float32, None, COLUMNS),
            spec(tf.float32, None, len(MOMENT)),
            spec(tf.float32, None),
        )
        batch = row, moment, spec(tf.int32, None), spec(tf.int32, None, settings.heads), spec(tf.int32)
        self._old = tf.function(lambda batch: self._distribution(batch)[0], input_signature=(batch,))
        self._step = tf.function(self._improve, input_signature=(batch, column, column))
        self._direction = tf.function(self._gradient, input_signature=(batch, column))

    # --- state

    @property
    def actor(self) -> Actor:
        """As it is now, in NumPy."""
        weights = {name: value.numpy() for name, value in self._weights.items()}
        return replace(self._actor, weights=weights)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that the next update depends on."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def restore(self, held: Mapping[str, npt.NDArray[Any]]) -> None:
        """The state that `state` gave."""
        for name, variable in self._variables().items():
            variable.assign(held[name])

    def _variables(self) -> dict[str, Any]:
        actor = {f"actor/{name}": variable for name, variable in self._weights.items()}
        return actor | {f"adam/{at}": variable for at, variable in enumerate(self._optimizer.variables)}

    # --- one iteration

    def update(self, steps: Steps, rng: np.random.Generator, left: float = 1.0) -> IterationStats:
        """Several epochs over the decisions of an iteration; `left`: share of the training that is still to come."""
        settings = self.settings
        self._optimizer.learning_rate = settings.learning_rate * (0.1 + 0.9 * left)
        old = self.log_probabilities(steps)
        signal = self._signal(steps, rng)
        seen: list[tuple[float, ...]] = []
        begun = 0
        for _ in range(settings.epochs):
            begun += 1
            divergences = []
            for part in _parts(rng.permutation(len(steps.count)), settings.minibatch):
                advantage = steps.advantage[part]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                numbers = self._step(_batch(steps, part), old[part], advantage.astype(np.float32))
                seen.append(tuple(map(float, numbers)))
                divergences.append(seen[-1][1])
            if np.mean(divergences) > settings.divergence:
                break
        loss, divergence, entropy, clipped = np.mean(seen, axis=0)
        return IterationStats(float(loss), float(divergence), float(entropy), float(clipped), begun, signal)

    def log_probabilities(self, steps: Steps) -> Singles:
        """(S,) of the picks of these decisions, by the actor as it is now."""
        parts = _parts(np.arange(len(steps.count)), self.settings.minibatch)
        return np.concatenate([self._old(_batch(steps, part)).numpy() for part in parts])

    def _signal(self, steps: Steps, rng: np.random.Generator) -> float:
        """`IterationStats.signal` of these decisions; NaN for fewer than two groups."""
        parts = np.array_split(rng.permutation(len(steps.count)), min(_GROUPS, len(steps.count)))
        if len(parts) < 2:
            return float("nan")
        advantage = ((steps.advantage - steps.advantage.mean()) / (steps.advantage.std() + 1e-8)).astype(np.float32)
        found = np.array([self._direction(_batch(steps, part), advantage[part]).numpy() for part in parts])
        error = np.sqrt((found.var(axis=0, ddof=1) / len(found)).sum())
        return float(np.sqrt((found.mean(axis=0) ** 2).sum()) / max(error, 1e-12))

    def _gradient(self, batch: tuple[Any, ...], advantage: Any) -> Any:
        """(weights,) of the mean of log-probability × advantage."""
        with tf.GradientTape() as tape:
            gain = tf.reduce_mean(self._distribution(batch)[0] * advantage)
        return tf.concat([tf.reshape(each, [-1]) for each in tape.gradient(gain, self._trained)], axis=0)

    def _distribution(self, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """(B,) log-probability of the picks of a `_batch`, and (B,) entropy of the first place."""
        terms, moment, segment, picks, queues = batch
        score = scores(self._weights, terms, moment, segment)
        return batch_log_probability(score / self.settings.temperature, segment, picks, queues)

    def _improve(self, batch: tuple[Any, ...], old: Any, advantage: Any) -> tuple[Any, ...]:
        """One step of Adam on the clipped objective (equation 7 of the paper) with an entropy bonus (equation 9)."""
        settings = self.settings
        with tf.GradientTape() as tape:
            new, entropy = self._distribution(batch)
            change = tf.clip_by_value(new - old, -20.0, 20.0)
            ratio = tf.exp(change)
            within = tf.clip_by_value(ratio, 1.0 - settings.clip, 1.0 + settings.clip)
            gain = tf.reduce_mean(tf.minimum(ratio * advantage, within * advantage))
            loss = -gain - settings.entropy * tf.reduce_mean(entropy)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self._trained), settings.gradient)
        self._optimizer.apply_gradients(zip(gradients, self._trained, strict=True))
        # Schulman's estimate of KL(old, new): never below 0, and of little variance.
        divergence = tf.reduce_mean(ratio - 1.0 - change)
        clipped = tf.reduce_mean(tf.cast(tf.abs(ratio - 1.0) > settings.clip, tf.float32))
        return loss, divergence, tf.reduce_mean(entropy), clipped


def _batch(steps: Steps, part: Rows) -> tuple[Any, ...]:
    """Some decisions as tensors: rows, moment of each queue, queue of each row, picks as rows, queues."""
    taken = steps.take(part)
    segment = np.repeat(np.arange(len(part)), taken.count)
    picks = np.where(taken.picks >= 0, taken.picks + begins(taken.count)[:-1, None], -1).astype(np.int32)
    return taken.terms, taken.moment, segment.astype(np.int32), picks, np.int32(len(part))


def _parts(order: Rows, size: int) -> Sequence[Rows]:
    """Minibatches of nearly equal size."""
    return np.array_split(order, max(1, round(len(order) / size)))

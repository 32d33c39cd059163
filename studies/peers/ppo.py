"""PPO as the learned peers have it: Spinning Up's, clipped, on all decisions of an epoch at once.

None of what `rltuned`'s own PPO adds is here: no minibatches, no warm start, no shared baselines, no gradient clipping.
What it does is what the public code of both papers does (studies/README.md): terminal reward, GAE, advantages
normalised over the epoch, up to 80 policy steps until the KL divergence is 1.5 × its target, then 80 steps of the value
network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from rltuned.core.tables import Floats, Singles
from rltuned.lab.train.quiet import tf
from studies.peers.episodes import PeerEpisode, joined
from studies.peers.model import Peer
from studies.peers.net import HIDDEN
from studies.peers.rlscheduler import VISIBLE, RLScheduler

_QUEUE: Final = (64, 32, 8)


@dataclass(frozen=True)
class PeerPPOSettings:
    """Hyper-parameters of both papers' public code (studies/README.md has the sources)."""

    policy_rate: float = 3e-4
    """Adam's, of the policy (pi_lr)."""
    value_rate: float = 1e-3
    """Adam's, of the value network (vf_lr)."""
    policy_steps: int = 80
    """Per epoch at most (train_pi_iters)."""
    value_steps: int = 80
    """Per epoch (train_v_iters)."""
    clip: float = 0.2
    lam: float = 0.97
    """λ of GAE. γ is 1: the reward comes at the end, and later decisions are worth as much as earlier ones."""
    target_kl: float = 0.01


def glorot(shape: tuple[int, ...], rng: np.random.Generator) -> Singles:
    """A kernel drawn as tf.layers.dense does by default (Glorot and Bengio 2010, uniform)."""
    limit = np.sqrt(6.0 / (shape[0] + shape[1]))
    return rng.uniform(-limit, limit, size=shape).astype(np.float32)


class PeerPPO:
    """A peer's policy and its value network, in TensorFlow, and the optimisers' state."""

    def __init__(self, peer: Peer, settings: PeerPPOSettings, rng: np.random.Generator) -> None:
        tf.config.experimental.enable_op_determinism()
        self.settings, self.picks = settings, isinstance(peer, RLScheduler)
        start = {
            name: glorot(value.shape, rng) if name.endswith(".kernel") else value
            for name, value in peer.net.weights.items()
        }
        self.policy = {
            name: tf.Variable(value, trainable=not name.startswith("input.")) for name, value in start.items()
        }
        self.inputs = len(peer.net.weights["input.mean"])
        layers = [*pairwise((self.inputs, *HIDDEN, 1)), *(pairwise((VISIBLE, *_QUEUE, 1)) if self.picks else ())]
        self.value = [
            (tf.Variable(glorot(shape, rng)), tf.Variable(np.zeros(shape[1], dtype=np.float32))) for shape in layers
        ]
        self._policy_trained = [each for each in self.policy.values() if each.trainable]
        self._value_trained = [each for layer in self.value for each in layer]
        self._policy_adam = tf.keras.optimizers.Adam(settings.policy_rate, epsilon=1e-8)
        self._value_adam = tf.keras.optimizers.Adam(settings.value_rate, epsilon=1e-8)
        self._look, self._policy_step, self._value_step = self._compiled()

    def weights(self) -> Mapping[str, Singles]:
        """Of the policy, as the model file has them."""
        return {name: value.numpy() for name, value in self.policy.items()}

    def update(self, episodes: Sequence[PeerEpisode]) -> None:
        """One epoch. `episodes`: those with a decision and a reward; at least one."""
        batch = joined(episodes)
        lengths = np.diff(batch.ptr)
        segment = np.repeat(np.arange(len(lengths)), lengths)
        shown = (
            tf.constant(batch.rows),
            tf.constant(segment, dtype=tf.int32),
            tf.constant(np.arange(len(segment)) - batch.ptr[segment], dtype=tf.int32),
            tf.constant(batch.action + (batch.ptr[:-1] if self.picks else 0), dtype=tf.int32),
        )
        logp, values = self._look(*shown)
        advantage, returns = advantages(episodes, values.numpy().astype(np.float64), self.settings.lam)
        gain, wanted = tf.constant(advantage, dtype=tf.float32), tf.constant(returns, dtype=tf.float32)
        steps, kl = 0, 0.0
        while steps < self.settings.policy_steps and kl <= 1.5 * self.settings.target_kl:
            kl = float(self._policy_step(*shown, gain, logp))
            steps += 1
        for _ in range(self.settings.value_steps):
            self._value_step(*shown[:3], wanted)

    def _log_probability(self, rows: Any, segment: Any, action: Any) -> Any:
        """(D,) of the actions. `action`: the picked row (RLScheduler), or whether it was rejected."""
        held = self.policy
        layers = [(held[f"layer{at}.kernel"], held[f"layer{at}.bias"]) for at in range(len(HIDDEN) + 1)]
        output = _mlp(layers, (rows - held["input.mean"]) / held["input.scale"])[:, 0]
        if not self.picks:
            return -tf.nn.softplus(-output * (2.0 * tf.cast(action, tf.float32) - 1.0))
        highest = tf.stop_gradient(tf.math.segment_max(output, segment))
        total = tf.math.segment_sum(tf.exp(output - tf.gather(highest, segment)), segment)
        return tf.gather(output, action) - highest - tf.math.log(total)

    def _values(self, rows: Any, segment: Any, slot: Any) -> Any:
        """(D,) expected reward. RLScheduler's: a kernel on each job, then a network on the 128 places of the window."""
        value = _mlp(self.value[: len(HIDDEN) + 1], rows)[:, 0]
        if self.picks:
            # Jobs submitted at once are all seen or none: where that is more than the window, its last place is a sum.
            place = tf.stack((segment, tf.minimum(slot, VISIBLE - 1)), axis=1)
            queues = tf.scatter_nd(place, value, (segment[-1] + 1, VISIBLE))
            value = _mlp(self.value[len(HIDDEN) + 1 :], queues)[:, 0]
        return value

    def _compiled(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        rows = tf.TensorSpec((None, self.inputs), tf.float32)
        count, number = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((None,), tf.float32)
        clip = self.settings.clip

        @tf.function(input_signature=(rows, count, count, count))  # type: ignore[untyped-decorator]
        def look(rows: Any, segment: Any, slot: Any, action: Any) -> Any:
            return self._log_probability(rows, segment, action), self._values(rows, segment, slot)

        @tf.function(input_signature=(rows, count, count, count, number, number))  # type: ignore[untyped-decorator]
        def policy_step(rows: Any, segment: Any, slot: Any, action: Any, gain: Any, old: Any) -> Any:  # noqa: ARG001
            with tf.GradientTape() as tape:
                logp = self._log_probability(rows, segment, action)
                ratio = tf.exp(logp - old)
                bounded = tf.where(gain > 0, (1.0 + clip) * gain, (1.0 - clip) * gain)
                loss = -tf.reduce_mean(tf.minimum(ratio * gain, bounded))
            gradient = tape.gradient(loss, self._policy_trained)
            self._policy_adam.apply_gradients(zip(gradient, self._policy_trained, strict=True))
            return tf.reduce_mean(old - self._log_probability(rows, segment, action))

        @tf.function(input_signature=(rows, count, count, number))  # type: ignore[untyped-decorator]
        def value_step(rows: Any, segment: Any, slot: Any, wanted: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((wanted - self._values(rows, segment, slot)) ** 2)
            gradient = tape.gradient(loss, self._value_trained)
            self._value_adam.apply_gradients(zip(gradient, self._value_trained, strict=True))
            return loss

        return look, policy_step, value_step


def advantages(episodes: Sequence[PeerEpisode], values: Floats, lam: float) -> tuple[Floats, Floats]:
    """(D,) normalised GAE(λ) advantages and (D,) returns of all decisions, γ = 1, the only reward at the end.

    `values`: (D,) of the value network, in the order of the episodes.
    """
    found, returns, first = [], [], 0
    for episode in episodes:
        count = len(episode.action)
        one = values[first : first + count]
        delta = np.append(one[1:], episode.reward) - one
        for at in range(count - 2, -1, -1):
            delta[at] += lam * delta[at + 1]
        found.append(delta)
        returns.append(np.full(count, episode.reward))
        first += count
    every = np.concatenate(found)
    # Without a difference there is nothing to learn, and nothing to divide by.
    return (every - every.mean()) / max(float(every.std()), 1e-8), np.concatenate(returns)


def _mlp(layers: Sequence[tuple[Any, Any]], value: Any) -> Any:
    """Dense layers with ReLU between them."""
    for index, (kernel, bias) in enumerate(layers):
        value = tf.matmul(tf.nn.relu(value) if index else value, kernel) + bias
    return value

"""Supervised learning of an order: which of two jobs of a queue goes first (RankNet, Burges et al., ICML 2005).

The warm start before PPO (`warm`) and the imitation of a rule (`imitate`) both use it. They differ in what the right
order is and in what a wrong pair weighs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltuned.cluster.tables import Ints, Singles
from rltuned.learn.ragged import begins, contexts
from rltuned.policy.actor import Actor
from rltuned.workers.progress import Progress

Pairs = Callable[[Ints], tuple[Singles, Singles]]
"""(B, 2) rows to (B,) which of each pair should go first (1: the first, −1: the other, 0: a tie), and (B,) its
weight."""


@dataclass(frozen=True)
class PairwiseSettings:
    """How long, and how fast."""

    steps: int
    batch: int
    """Pairs of each step; both jobs of a pair wait in the same queue."""
    learning_rate: float
    """Of Adam at the start; falls to 0 as half a cosine."""
    sharpness: float = 1.0
    """Of the loss: a difference of scores counts so many times."""


def fit(
    actor: Actor,
    queues: tuple[Singles, Singles, Ints],
    pairs: Pairs,
    settings: PairwiseSettings,
    rng: np.random.Generator,
    progress: Progress,
    phase: str,
) -> tuple[Actor, float]:
    """Adam on the pairwise logistic loss; with the actor the mean loss of the last hundred steps.

    Args:
        actor: to begin with.
        queues: (R, inputs) rows, (R,) level of the rule that the actor corrects, (S,) rows of each queue, at least 2.
        pairs: the right order of pairs of rows, and their weights.
        settings: of the descent.
        rng: draws the pairs.
        progress: called every hundred steps with the name of the `phase`.
        phase: see `progress`.
    """
    from rltuned.learn import network  # noqa: PLC0415 - imports TensorFlow
    from rltuned.learn.quiet import tf  # noqa: PLC0415 - takes seconds, and only training needs it

    tf.config.experimental.enable_op_determinism()
    state, base, count = queues
    first, context = begins(count)[:-1], contexts(state, count)
    architecture = actor.architecture
    weights = network.variables(actor.weights)
    trained = [weight for weight in weights.values() if weight.trainable]
    optimizer = tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.steps)
    )

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def step(state: Any, base: Any, context: Any, sooner: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            score = network.correct(architecture, network.network(weights, architecture, state, context), base)
            wrong = tf.nn.softplus(-sooner * (score[:, 0] - score[:, 1]) * settings.sharpness)
            loss = tf.reduce_sum(wrong * weight) / tf.maximum(tf.reduce_sum(weight), 1e-6)
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    losses = []
    for done in range(1, settings.steps + 1):
        queue = rng.integers(len(count), size=settings.batch)
        one = rng.integers(count[queue])
        other = (one + rng.integers(1, count[queue])) % count[queue]
        pair = first[queue][:, None] + np.stack((one, other), axis=1)
        loss = step(state[pair], base[pair], context[queue], *pairs(pair))
        if done > settings.steps - 100:
            losses.append(float(loss))
        if done % 100 == 0 or done == settings.steps:
            progress(phase, done, settings.steps)
    fitted = Actor(actor.name, architecture, {name: value.numpy() for name, value in weights.items()})
    return fitted, float(np.mean(losses)) if losses else 0.0

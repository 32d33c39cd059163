"""The warm start: supervised imitation of hindsight (as DL2 starts from a known scheduler; Peng et al., TPDS 2021).

The best order that one number per job can give is that of the GPU-seconds that it will need; nobody knows them before, but
afterwards the trace says. The network sees its columns only, so what it learns is what these columns say about the need on
average: that estimates err, that limits tell something too, how the two go together on these traces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.evaluate.case import Case
from rltuned.learn.rollouts import Lesson
from rltuned.observe import RUN_TIME_HORIZON
from rltuned.observe.sampling import STATE_COLUMNS
from rltuned.policy.actor import Actor, Architecture, initial_weights
from rltuned.workers.progress import Progress, silent


@dataclass(frozen=True)
class WarmSettings:
    """Of the warm start."""

    windows: int = 128
    """That are played by the base rule and recorded."""
    most_steps: int = 48
    """Queues of each that are kept."""
    temperature: float = 0.05
    """Of these plays: the policy will meet queues that the rule itself would not have let come about."""
    steps: int = 3000
    batch: int = 2048
    """Pairs of jobs of one queue."""
    learning_rate: float = 3e-3
    """Of Adam at the start; falls to 0 as half a cosine."""
    regret: float = 0.5
    """How much a wrong pair weighs: ((a − b) / (a + b)) to this power; 0: all pairs alike."""


def run_time_coefficients(cases: Sequence[Case]) -> npt.NDArray[np.float32]:
    """(3,) c of ln T = c0 + c1 ln r + c2 ln L by least squares over the jobs whose estimate is below their limit.

    (0, 1, 0), the estimate itself, where these are too few to say, and the limit counts as one of 30 days at most.
    """
    r = np.concatenate([case.estimates.run_time for case in cases])
    limit = np.minimum(np.concatenate([case.estimates.time_limit for case in cases]), RUN_TIME_HORIZON)
    true = np.maximum(np.concatenate([case.jobs.run_time for case in cases]), 1.0)
    known = r < limit
    if np.count_nonzero(known) < 100:
        return np.array([0.0, 1.0, 0.0], dtype=np.float32)
    columns = np.column_stack((np.ones(known.sum()), np.log(r[known]), np.log(limit[known])))
    found, *_ = np.linalg.lstsq(columns, np.log(true[known]), rcond=None)
    return np.asarray(found, dtype=np.float32)


def rule_alone(rule: str, extras: Mapping[str, npt.NDArray[np.float32]]) -> Actor:
    """An actor whose network corrects nothing: one of `CORRECTED`, with these tensors of `EXTRAS`."""
    columns = len(STATE_COLUMNS)
    nothing = {"layer0.kernel": np.zeros((columns, 1), dtype=np.float32), "layer0.bias": np.zeros(1, dtype=np.float32)}
    scale = {"input.mean": np.zeros(columns, dtype=np.float32), "input.scale": np.ones(columns, dtype=np.float32)}
    return Actor("rule", Architecture(inputs=columns, hidden=(), residual=rule), {**nothing, **scale, **extras})


_UNSEEN: Final = np.float32(1e12)
"""Scale of a column that the network is not to see: nothing of it is left, before training and after it."""


def beginner(
    name: str,
    architecture: Architecture,
    lessons: Sequence[Lesson],
    rng: np.random.Generator,
    columns: Sequence[str] = STATE_COLUMNS,
) -> Actor:
    """An actor that is its rule (or, without one, scores everybody alike), with the normalisers of these queues.

    `columns`: those of the state that its network sees.
    """
    state = np.concatenate([lesson.state for lesson in lessons])
    mean, scale = state.mean(axis=0), np.maximum(state.std(axis=0), np.float32(0.05))
    scale = np.where(np.isin(STATE_COLUMNS, columns), scale, _UNSEEN)
    weights = initial_weights(architecture, mean, scale, rng)
    weights[f"layer{architecture.layers - 1}.kernel"] *= np.float32(0.0)
    return Actor(name, architecture, weights)


def warm_start(
    actor: Actor,
    lessons: Sequence[Lesson],
    settings: WarmSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> tuple[Actor, float]:
    """Teach the actor; with it the mean loss of the last hundred steps.

    A pairwise logistic loss (RankNet, Burges et al., ICML 2005) whose pairs weigh what the wrong order costs (Burges et
    al., NIPS 2006): of two jobs that need a and b GPU-seconds, starting the larger first makes the two wait a − b longer.
    """
    import tensorflow as tf  # noqa: PLC0415 - takes seconds, and only training needs it

    from rltuned.learn import network  # noqa: PLC0415 - imports TensorFlow

    state = np.concatenate([lesson.state for lesson in lessons])
    base = np.concatenate([lesson.base for lesson in lessons])
    area = np.concatenate([lesson.area for lesson in lessons])
    count = np.concatenate([lesson.count for lesson in lessons])
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    company = (np.add.reduceat(state, first, axis=0) / count[:, None]).astype(np.float32)
    architecture = actor.architecture
    weights = network.variables(actor.weights)
    trained = [weight for weight in weights.values() if weight.trainable]
    optimizer = tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.steps)
    )

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def step(state: Any, base: Any, company: Any, sooner: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            score = network.correct(architecture, network.network(weights, architecture, state, company), base)
            # The scale of scores on which the softness of the loss is an e-fold of the key.
            wrong = tf.nn.softplus(-sooner * (score[:, 0] - score[:, 1]) * 14.8)
            loss = tf.reduce_sum(wrong * weight) / tf.maximum(tf.reduce_sum(weight), 1e-6)
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    losses = []
    for done in range(1, settings.steps + 1):
        queue = rng.integers(len(count), size=settings.batch)
        one = rng.integers(count[queue])
        other = (one + rng.integers(1, count[queue])) % count[queue]
        pair = first[queue][:, None] + np.stack((one, other), axis=1)
        sooner, weight = _regret(area[pair], settings.regret)
        loss = step(state[pair], base[pair], company[queue], sooner, weight)
        if done > settings.steps - 100:
            losses.append(float(loss))
        if done % 100 == 0 or done == settings.steps:
            progress("warm start", done, settings.steps)
    taught = Actor(actor.name, architecture, {name: value.numpy() for name, value in weights.items()})
    return taught, float(np.mean(losses)) if losses else 0.0


def _regret(area: Floats, power: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(B,) which of each pair should go first (1: the first, −1: the other), and (B,) what the wrong order weighs."""
    difference = area[:, 1] - area[:, 0]
    share = np.abs(difference) / area.sum(axis=1)
    weight = np.where(difference == 0.0, 0.0, share**power)
    return np.sign(difference).astype(np.float32), weight.astype(np.float32)

"""Supervised imitation: the actor learns to rank as a plain rule does (the first phase of DL2, Peng et al., TPDS 2021).

A policy that starts as good as the best plain rule needs far less reinforcement learning to be better, and can be
shipped as it is. The network sees the sampled columns only, never the rule's own key.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.learn.progress import Report, silent
from rltuned.learn.queues import UNSEEN, QueueSettings, generate
from rltuned.observe import WINDOW, Observation, observe
from rltuned.policy.actor import Actor, Architecture, rule_order
from rltuned.policy.files import save
from rltuned.policy.heuristics import Rule, by_name
from rltuned.policy.manifest import TrainingPart

GOLDEN_ROWS: Final = 16
"""Rows of the golden vector, taken from states that were not trained on."""


@dataclass(frozen=True)
class ImitateSettings:
    """Everything that decides the result."""

    rule: str = "saf"
    """Name of the rule to imitate."""
    name: str = "base"
    """Of the model that is written."""
    seed: int = 7
    architecture: Architecture = Architecture()
    states: int = 4000
    """Generated queue states to learn from."""
    test_states: int = 400
    """Unseen states to measure on, from each of the two parametrisations."""
    epochs: int = 40
    batch: int = 32
    """States per step."""
    learning_rate: float = 4e-3
    """Of Adam at the start; falls to 0 as half a cosine."""
    pairs: int = 24
    """Random pairings of the jobs of a state per step: each is one comparison per job."""


@dataclass(frozen=True)
class Agreement:
    """How far a ranking agrees with the rule's, over many states."""

    tau: float
    """Mean Kendall τ over the pairs that the rule orders."""
    tau_b: float
    """Mean Kendall τ-b, which also asks that the rule's ties be ties."""
    tau_low: float
    """τ that 95 % of the states exceed."""
    states: int


@dataclass(frozen=True)
class ImitateResult:
    """The trained actor and what was measured."""

    actor: Actor
    settings: ImitateSettings
    unseen: Agreement
    """On new states of the training's parametrisation."""
    shifted: Agreement
    """On states of another parametrisation (`queues.UNSEEN`)."""
    network_alone: Agreement | None
    """As `unseen`, of the network without the rule that it corrects; None where there is no such rule."""
    golden_state: npt.NDArray[np.float32]
    golden_base: Floats | None
    loss: float
    """Mean of the last epoch."""


@dataclass(frozen=True)
class _Lesson:
    """S states as arrays."""

    state: npt.NDArray[np.float32]
    """(S, W, 8)"""
    mask: npt.NDArray[np.float32]
    """(S, W)"""
    key: npt.NDArray[np.float32]
    """(S, W) ln(1 + key) of the rule: small first; 0 in the padding."""
    base: npt.NDArray[np.float32]
    """(S, W) order of the residual's rule, zeros without one."""


def imitate(settings: ImitateSettings, progress: Report = silent) -> ImitateResult:
    """Train and measure. The same settings give the same weights on the same machine and TensorFlow.

    Raises:
        ConfigError: there is no such rule.
    """
    rule = by_name(settings.rule)
    streams = np.random.SeedSequence(settings.seed).spawn(4)
    drawn, tests, shifted, steps = (np.random.default_rng(stream) for stream in streams)
    observations = _observations(drawn, QueueSettings(), settings.states, "generating states", progress)
    actor, loss = _fit(settings, _lesson(observations, rule, settings.architecture), steps, progress)
    unseen = _observations(tests, QueueSettings(), settings.test_states, "generating unseen states", progress)
    others = _observations(shifted, UNSEEN, settings.test_states, "generating shifted states", progress)
    golden = max(unseen, key=len)
    rows = np.linspace(0, len(golden) - 1, min(GOLDEN_ROWS, len(golden))).astype(np.intp)
    residual = settings.architecture.residual
    return ImitateResult(
        actor=actor,
        settings=settings,
        unseen=agreement(rule, [actor.score(each) for each in unseen], unseen),
        shifted=agreement(rule, [actor.score(each) for each in others], others),
        network_alone=None
        if residual is None
        else agreement(rule, [actor.network(each.state[: len(each)]) for each in unseen], unseen),
        golden_state=golden.state[rows],
        golden_base=None if residual is None else rule_order(residual, golden)[rows],
        loss=loss,
    )


def write_model(result: ImitateResult, directory: Path, revision: str = "unknown") -> Path:
    """Write the model files into `directory` and give the manifest's path. `revision`: of the code, from the caller.

    Raises:
        ModelError: the files cannot be written.
    """
    settings = asdict(result.settings)
    settings.pop("seed")
    settings["architecture"] = {**settings["architecture"], "hidden": list(result.settings.architecture.hidden)}
    metrics = {"loss": result.loss}
    measured = {"unseen": result.unseen, "shifted": result.shifted, "network_alone": result.network_alone}
    for where, value in measured.items():
        if value is not None:
            metrics |= {f"{where}.{name}": float(number) for name, number in asdict(value).items()}
    training = TrainingPart(
        method="imitation",
        data=f"{result.settings.states} generated queue states (rltuned.learn.queues.QueueSettings), no trace; "
        f"target: the order of '{result.settings.rule}'",
        traces={},
        seed=result.settings.seed,
        revision=revision,
        settings=settings,
    )
    return save(result.actor, directory, training, metrics, result.golden_state, result.golden_base)


def agreement(rule: Rule, scores: Sequence[Floats], observations: Sequence[Observation]) -> Agreement:
    """How far `scores`, one array per observation, rank as `rule` does. States that the rule does not order are left out."""
    both = [kendall(-rule.key(each), score) for each, score in zip(observations, scores, strict=True)]
    measured = np.array([pair for pair in both if pair is not None]).reshape(-1, 2)
    if len(measured) == 0:
        return Agreement(tau=float("nan"), tau_b=float("nan"), tau_low=float("nan"), states=0)
    return Agreement(
        tau=float(measured[:, 0].mean()),
        tau_b=float(measured[:, 1].mean()),
        tau_low=float(np.quantile(measured[:, 0], 0.05)),
        states=len(measured),
    )


def kendall(reference: Floats, scores: Floats) -> tuple[float, float] | None:
    """Kendall's τ over the pairs that `reference` orders, and τ-b over all pairs; None when it orders none.

    The first does not punish an order among jobs that are all the same to the reference (Somers' D); the second, τ-b
    (Kendall 1945), does. O(n²).
    """
    upper = np.triu_indices(len(reference), 1)
    wanted = np.sign(reference[:, None] - reference[None, :])[upper]
    got = np.sign(scores[:, None] - scores[None, :])[upper]
    ordered, distinct = np.count_nonzero(wanted), np.count_nonzero(got)
    if ordered == 0:
        return None
    concordant = float(wanted @ got)
    return concordant / ordered, concordant / float(np.sqrt(float(ordered) * max(distinct, 1)))


def _observations(
    rng: np.random.Generator, settings: QueueSettings, count: int, stage: str, progress: Report
) -> list[Observation]:
    seen = []
    for done in range(1, count + 1):
        snapshot, estimates = generate(rng, settings)
        seen.append(observe(snapshot, snapshot.jobs.pending, estimates))
        progress(stage, done, count)
    return seen


def _lesson(observations: Sequence[Observation], rule: Rule, architecture: Architecture) -> _Lesson:
    key = np.zeros((len(observations), WINDOW), dtype=np.float32)
    base = np.zeros_like(key)
    for index, each in enumerate(observations):
        key[index, : len(each)] = np.log1p(rule.key(each))
        if architecture.residual is not None:
            base[index, : len(each)] = rule_order(architecture.residual, each)
    return _Lesson(
        state=np.stack([each.state for each in observations]),
        mask=np.stack([each.mask for each in observations]).astype(np.float32),
        key=key,
        base=base,
    )


def _fit(settings: ImitateSettings, lesson: _Lesson, rng: np.random.Generator, progress: Report) -> tuple[Actor, float]:
    """Adam on the pairwise logistic loss (RankNet, Burges et al. 2005) plus 1 − correlation with −ln key.

    The correlation brings the network near quickly, the pairs make the order right where jobs are close.
    """
    import tensorflow as tf  # noqa: PLC0415 - takes seconds, and only training needs it

    from rltuned.learn import network  # noqa: PLC0415 - imports TensorFlow

    tf.config.experimental.enable_op_determinism()
    architecture = settings.architecture
    jobs = lesson.state[lesson.mask > 0]
    mean, scale = jobs.mean(axis=0), np.maximum(jobs.std(axis=0), np.float32(1e-3))
    weights = network.variables(network.initial_weights(architecture, mean, scale, rng))
    trained = [weight for weight in weights.values() if weight.trainable]
    batches = max(len(lesson.state) // settings.batch, 1)
    schedule = tf.keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.epochs * batches)
    optimizer = tf.keras.optimizers.Adam(schedule)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def step(state: Any, mask: Any, key: Any, base: Any, partners: Any) -> Any:
        with tf.GradientTape() as tape:
            score = network.scores(weights, architecture, state, mask, base)
            # (B, W, K): each job beside K others of its state; pairs with padding and ties count for nothing.
            other_score, other_key, other_mask = (tf.gather(each, partners, axis=1) for each in (score, key, mask))
            wanted = tf.sign(other_key - key[:, :, None])
            counts = mask[:, :, None] * other_mask * tf.abs(wanted)
            wrong = tf.nn.softplus(-wanted * (score[:, :, None] - other_score)) * counts
            pairwise_loss = tf.reduce_sum(wrong) / tf.maximum(tf.reduce_sum(counts), 1.0)
            loss = pairwise_loss + 1.0 - _correlation(tf, score, -key, mask)
        gradients = tape.gradient(loss, trained)
        optimizer.apply_gradients(zip(gradients, trained, strict=True))
        return loss

    mean_loss = float("nan")
    for epoch in range(settings.epochs):
        order = rng.permutation(len(lesson.state))
        edges = np.linspace(0, len(order), batches + 1).astype(int)
        losses = []
        for start, end in pairwise(edges):
            chosen = order[start:end]
            partners = rng.integers(1, WINDOW, size=(1, settings.pairs)) + np.arange(WINDOW)[:, None]
            losses.append(
                step(
                    *(each[chosen] for each in (lesson.state, lesson.mask, lesson.key, lesson.base)), partners % WINDOW
                )
            )
        mean_loss = float(np.mean([float(loss) for loss in losses]))
        progress("training", epoch + 1, settings.epochs)
    return Actor(settings.name, architecture, {name: value.numpy() for name, value in weights.items()}), mean_loss


def _correlation(tf: Any, score: Any, target: Any, mask: Any) -> Any:
    """Mean Pearson correlation of scores and targets within the states of a batch."""
    count = tf.maximum(tf.reduce_sum(mask, axis=1, keepdims=True), 1.0)
    score = (score - tf.reduce_sum(score * mask, axis=1, keepdims=True) / count) * mask
    target = (target - tf.reduce_sum(target * mask, axis=1, keepdims=True) / count) * mask
    together = tf.reduce_sum(score * target, axis=1)
    apart = tf.sqrt(tf.reduce_sum(score * score, axis=1) * tf.reduce_sum(target * target, axis=1) + 1e-9)
    return tf.reduce_mean(together / apart)

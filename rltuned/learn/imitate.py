"""Supervised imitation: the actor learns to rank as a plain rule does (the first phase of DL2, Peng et al., TPDS 2021).

A policy that starts as good as the best plain rule needs far less reinforcement learning to become better, and can be
shipped as it is. The network sees the sampled columns only, never the rule's own key.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.cluster.tables import Floats, Ints, Singles
from rltuned.learn.pairwise import PairwiseSettings, fit
from rltuned.learn.queues import UNSEEN, QueueSettings, generate
from rltuned.observe import Observation, observe
from rltuned.policy.actor import Actor, Architecture, initial_weights, rule_level
from rltuned.policy.files import save
from rltuned.policy.heuristics import Rule, by_name
from rltuned.policy.manifest import TrainingPart
from rltuned.workers.progress import Progress, silent

MEASURED_JOBS: Final = 10
"""Queues shorter than this are not measured on: the τ of two jobs that the rule ties is 1 or −1 by chance."""

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
    architecture: Architecture = field(default_factory=Architecture)
    states: int = 4000
    """Generated queue states to learn from."""
    test_states: int = 400
    """Unseen states to measure on, from each of the two parametrisations."""
    steps: int = 24_000
    batch: int = 1024
    """Pairs of jobs per step; both jobs of a pair wait in the same queue."""
    learning_rate: float = 1e-2
    """Of Adam at the start; falls to 0 as half a cosine."""


@dataclass(frozen=True)
class Agreement:
    """How far a ranking agrees with the rule's, over many states."""

    tau: float
    """Mean Kendall τ with the rule's whole order, in which earlier submission breaks its ties."""
    tau_low: float
    """τ that 95 % of the states exceed."""
    tau_key: float
    """Mean Kendall τ over the pairs that the rule's own key orders, ties and how they are broken left out."""
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
    golden_state: Singles
    golden_base: Floats | None
    loss: float
    """Mean of the last hundred steps."""


def imitate(settings: ImitateSettings, progress: Progress = silent) -> ImitateResult:
    """Train and measure. The same settings give the same weights on the same machine and TensorFlow.

    Raises:
        ConfigError: there is no such rule.
    """
    rule = by_name(settings.rule)
    streams = np.random.SeedSequence(settings.seed).spawn(4)
    drawn, tests, shifted, steps = (np.random.default_rng(stream) for stream in streams)
    observations = _observations(drawn, QueueSettings(), settings.states, "generating states", progress)
    actor, loss = _fit(settings, observations, rule, steps, progress)
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
        golden_base=None if residual is None else rule_level(residual, golden)[rows],
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
    """How far `scores`, one array per observation, rank as `rule` does.

    States that the rule does not order, and those of fewer than `MEASURED_JOBS` jobs, do not count.
    """
    whole, key = [], []
    for observation, score in zip(observations, scores, strict=True):
        tau = kendall(rule.score(observation), score)
        if tau is not None and len(observation) >= MEASURED_JOBS:
            whole.append(tau)
            among_keys = kendall(-rule.key(observation), score)
            key.append(tau if among_keys is None else among_keys)
    if not whole:
        return Agreement(tau=math.nan, tau_low=math.nan, tau_key=math.nan, states=0)
    return Agreement(
        tau=float(np.mean(whole)),
        tau_low=float(np.quantile(whole, 0.05)),
        tau_key=float(np.mean(key)),
        states=len(whole),
    )


def kendall(reference: Floats, scores: Floats) -> float | None:
    """Kendall's τ over the pairs that `reference` orders (Somers' D); None when it orders none. O(n²).

    Without ties in `reference` it is τ itself, a tie in `scores` counting as half agreed. Pairs that the reference ties
    do not count.
    """
    upper = np.triu_indices(len(reference), 1)
    wanted = np.sign(reference[:, None] - reference[None, :])[upper]
    ordered = int(np.count_nonzero(wanted))
    if ordered == 0:
        return None
    return float(wanted @ np.sign(scores[:, None] - scores[None, :])[upper]) / ordered


def _observations(
    rng: np.random.Generator, settings: QueueSettings, count: int, phase: str, progress: Progress
) -> list[Observation]:
    seen = []
    for done in range(1, count + 1):
        snapshot, estimates = generate(rng, settings)
        seen.append(observe(snapshot, snapshot.jobs.pending, estimates))
        progress(phase, done, count)
    return seen


def _fit(
    settings: ImitateSettings,
    observations: Sequence[Observation],
    rule: Rule,
    rng: np.random.Generator,
    progress: Progress,
) -> tuple[Actor, float]:
    """Learn the rule's order in the states with at least two jobs."""
    seen = [each for each in observations if len(each) > 1]
    state = np.concatenate([each.state[: len(each)] for each in seen])
    residual = settings.architecture.residual
    base = [np.zeros(len(each)) if residual is None else rule_level(residual, each) for each in seen]
    # The place in the rule's order, 0 first; jobs that the rule cannot tell apart share one.
    place = np.concatenate([-rule.score(each) for each in seen]).astype(np.float32)
    mean, scale = state.mean(axis=0), np.maximum(state.std(axis=0), np.float32(1e-3))
    begun = Actor(settings.name, settings.architecture, initial_weights(settings.architecture, mean, scale, rng))

    def pairs(rows: Ints) -> tuple[Singles, Singles]:
        sooner = np.sign(place[rows[:, 1]] - place[rows[:, 0]])
        return sooner, np.abs(sooner)

    queues = state, np.concatenate(base).astype(np.float32), np.array([len(each) for each in seen])
    how = PairwiseSettings(settings.steps, settings.batch, settings.learning_rate)
    fitted, loss = fit(begun, queues, pairs, how, rng, progress, "training")
    return _rescaled(fitted, state), loss


def _rescaled(actor: Actor, state: Singles) -> Actor:
    """The same order from scores of mean 0 and standard deviation 1.

    The pairwise loss lets scores grow without end. Large scores lose digits in float32, and reinforcement learning
    would start from a policy without entropy. A residual's correction is bounded anyway, and its scale matters.
    """
    if actor.architecture.residual is not None:
        return actor
    scores = actor.network(state)
    last = actor.architecture.layers - 1
    spread = max(float(scores.std()), 1e-6)
    weights = dict(actor.weights)
    weights[f"layer{last}.kernel"] = (weights[f"layer{last}.kernel"] / spread).astype(np.float32)
    weights[f"layer{last}.bias"] = ((weights[f"layer{last}.bias"] - scores.mean()) / spread).astype(np.float32)
    return replace(actor, weights=weights)

"""Everything that decides what training makes: what each number means and where it comes from. Loads no TensorFlow."""

from dataclasses import dataclass, field
from typing import Final

from rltuned.learn.cost import Objective
from rltuned.learn.curriculum import MIXED, CurriculumSettings
from rltuned.observe.observation import STATE_COLUMNS
from rltuned.policy.actor import Architecture


@dataclass(frozen=True)
class PPOSettings:
    """The hyper-parameters, each with where it comes from."""

    objective: Objective = Objective.MIX
    temperature: float = 0.02
    """T of the softmax that places are drawn from, on the scale of scores: 0.02 is a third of an e-fold of the rule's
    key."""
    heads: int = 8
    """Places that are drawn and learned from. Behind them the order hardly matters before the next refresh."""
    windows: int = 48
    """Windows of an iteration."""
    trajectories: int = 4
    """Of each window: the others are the baseline of one."""
    most_steps: int = 32
    """Decisions of a trajectory that are learned from, drawn evenly."""
    epochs: int = 4
    minibatch: int = 2048
    """Decisions."""
    learning_rate: float = 5e-4
    """Of Adam at the first iteration; falls to a tenth as a line (annealing: Engstrom et al., ICLR 2020)."""
    clip: float = 0.2
    """ε of the paper."""
    entropy: float = 1e-3
    """Weight of the entropy of the first place."""
    gradient: float = 0.5
    """Largest norm."""
    divergence: float = 0.03
    """KL from the policy of the trajectories at which the iteration ends early (Spinning Up)."""


ITERATIONS_PER_MINUTE: Final = 4
"""Of the default settings on 2 cores, validation counted in; measured (docs/training.md). `--budget` is
turned into iterations by it, so that a faster machine ends sooner with the same model instead of ending with
another."""


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides the result, but for the traces and clusters themselves."""

    name: str = "site"
    """Of the model."""
    seed: int = 7
    iterations: int = 30 * ITERATIONS_PER_MINUTE
    estimates: str = MIXED
    check: int = 5
    """Iterations from one validation, and checkpoint, to the next."""
    validation_window: int = 1024
    """Jobs of a validation window."""
    validation_windows: int = 40
    """Of each trace."""
    ageing: tuple[float, ...] = (0.0, 0.15, 0.3, 0.6)
    """Exponents a of `rltuned.policy.actor.AGEING` that are tried, in order; the validation windows choose."""
    columns: tuple[str, ...] = STATE_COLUMNS
    """Of the state, that the network sees; fewer to measure what the others are worth."""
    base: str = "saf"
    """The rule whose metric is the unit of rewards (the paper's base policy)."""
    architecture: Architecture = field(default_factory=lambda: Architecture(residual="saf", context=True))
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)

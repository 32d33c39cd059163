"""Everything that decides what training makes: what each number means and where it comes from. Loads no TensorFlow."""

from dataclasses import dataclass, field
from typing import Final

from rltuned.core.objective import DEFAULT, Objective
from rltuned.lab.train.curriculum import MIXED, CurriculumSettings
from rltuned.lab.train.evolution import EvolutionSettings


@dataclass(frozen=True)
class PPOSettings:
    """The hyper-parameters, each with where it comes from."""

    temperature: float = 0.02
    """T of the softmax that places are drawn from, on the scale of scores: 0.02 is a third of an e-fold of the area."""
    heads: int = 8
    """Places that are drawn and learned from. Behind them the order hardly matters before the next refresh."""
    windows: int = 48  # windows of an iteration
    trajectories: int = 8
    """Of each window: the others, and the rule, are the baseline of one."""
    most_steps: int = 32
    """Decisions of a trajectory that are learned from, drawn evenly."""
    epochs: int = 4
    minibatch: int = 2048  # decisions
    learning_rate: float = 2e-3
    """Of Adam at the first iteration; falls to a tenth as a line (annealing: Engstrom et al., ICLR 2020)."""
    clip: float = 0.2  # ε of the paper
    entropy: float = 1e-3  # weight of the entropy of the first place
    gradient: float = 0.5  # largest norm
    divergence: float = 0.03
    """KL from the policy of the trajectories at which the iteration ends early (Spinning Up)."""


STEPS_PER_MINUTE: Final = 12
"""Of the default settings on 2 cores, validation counted in; measured (docs/learning.md). `--budget` is turned into
steps by it, so that a faster machine ends sooner with the same model instead of ending with another."""
SHARES: Final = (0.875, 0.125)  # of the steps: evolution strategy, PPO


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides the result, but for the traces and clusters themselves."""

    name: str = "site"  # of the model
    seed: int = 7
    steps: tuple[int, int] = (120, 15)  # of the evolution strategy, of PPO
    objective: Objective = DEFAULT
    """What half of the windows are trained for; in the others the weights are drawn."""
    begin: str = ""
    """Model that the evolution strategy goes on from, a name or an absolute path; "": from smallest area first."""
    estimates: str = MIXED
    check: int = 10
    """Steps from one validation, and checkpoint, to the next."""
    validation_window: int = 384  # jobs of a validation window
    validation_windows: int = 40  # of each trace
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    evolution: EvolutionSettings = field(default_factory=EvolutionSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)

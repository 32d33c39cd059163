"""Everything that decides what a learned peer becomes, with what each number means and where it comes from."""

from dataclasses import dataclass, field

from rltuned.errors import ConfigError
from rltuned.evaluate.settings import PEERS
from rltuned.learn.peers.episodes import Metric


@dataclass(frozen=True)
class PeerPPOSettings:
    """Hyper-parameters of both papers' public code (docs/peers.md has the sources)."""

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


@dataclass(frozen=True)
class PeerSettings:
    """Everything that decides the result, but for how many epochs the minutes have room for."""

    peer: str
    """One of `rltuned.evaluate.settings.PEERS`."""
    name: str = ""
    """Of the model; "": the peer's."""
    seed: int = 7
    minutes: float = 30.0
    """No epoch is begun that would end later, as far as the last one tells."""
    epochs: int | None = None
    """At most; None: as many as there is time for."""
    trajectories: int = 100
    """Windows per epoch (traj_per_epoch of both codes)."""
    jobs: int | None = None
    """Of a window; None: the codes' JOB_SEQUENCE_SIZE, 256 for RLScheduler and 128 for SchedInspector."""
    metric: Metric = Metric.WAIT
    rule: str = "sjf"
    """SchedInspector's base rule (sched_algo 4 of its code)."""
    ppo: PeerPPOSettings = field(default_factory=PeerPPOSettings)
    validation_windows: int = 30
    """Of 256 jobs, for the report alone: no model is chosen by them."""
    validation_jobs: int = 256
    processes: int = 1
    """That simulate windows. The result does not depend on it."""

    def __post_init__(self) -> None:
        """Raises:
        ConfigError: no such peer, or a number that makes no sense.
        """
        if self.peer not in PEERS:
            raise ConfigError(f"there is no learned peer '{self.peer}'; there are {', '.join(PEERS)}")
        for what in ("trajectories", "length", "processes", "validation_windows", "validation_jobs"):
            if getattr(self, what) < 1:
                raise ConfigError(f"{what} must be at least 1")
        if self.minutes <= 0 or (self.epochs is not None and self.epochs < 1):
            raise ConfigError("training needs more than 0 minutes and at least one epoch")

    @property
    def length(self) -> int:
        """Jobs of a window."""
        return self.jobs if self.jobs is not None else {"rlscheduler": 256, "schedinspector": 128}[self.peer]

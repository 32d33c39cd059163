"""The warm start: supervised imitation of hindsight (as DL2 starts from a known scheduler; Peng et al., TPDS 2021).

The best order that one number per job can give is that of the GPU-seconds that it will need. Nobody knows them before,
but the trace has them afterwards. The network sees its columns only, so it learns what these say about the GPU-seconds
on average: how wrong estimates are, what limits say, and how the two go together on these traces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.cluster.tables import Floats, Ints, Singles
from rltuned.evaluate.case import Case
from rltuned.learn.pairwise import PairwiseSettings, fit
from rltuned.learn.sampling import RecordedQueues
from rltuned.observe import RUN_TIME_HORIZON
from rltuned.observe.sampling import STATE_COLUMNS
from rltuned.policy.actor import Actor, Architecture, initial_weights
from rltuned.workers.progress import Progress, silent


@dataclass(frozen=True)
class WarmSettings:
    """Of the warm start."""

    windows: int = 128
    """That are simulated under the base rule and recorded."""
    most_steps: int = 48
    """Queues of each that are kept."""
    temperature: float = 0.05
    """Of these simulations: the policy will meet queues that do not arise under the rule itself."""
    steps: int = 3000
    batch: int = 2048
    """Pairs of jobs of one queue."""
    learning_rate: float = 3e-3
    """Of Adam at the start; falls to 0 as half a cosine."""
    regret: float = 0.5
    """How much a wrong pair weighs: ((a − b) / (a + b)) to this power; 0: all pairs alike."""


def run_time_coefficients(cases: Sequence[Case]) -> Singles:
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


def rule_alone(rule: str, extras: Mapping[str, Singles]) -> Actor:
    """An actor whose network corrects nothing: one of `CORRECTED`, with these tensors of `EXTRAS`."""
    columns = len(STATE_COLUMNS)
    nothing = {"layer0.kernel": np.zeros((columns, 1), dtype=np.float32), "layer0.bias": np.zeros(1, dtype=np.float32)}
    scale = {"input.mean": np.zeros(columns, dtype=np.float32), "input.scale": np.ones(columns, dtype=np.float32)}
    return Actor("rule", Architecture(inputs=columns, hidden=(), residual=rule), {**nothing, **scale, **extras})


_SHARPNESS: Final = 14.8
"""On the scale of scores, 1 / 14.8 is an e-fold of the rule's key: so soft is the loss."""
_UNSEEN: Final = np.float32(1e12)
"""Scale of a column that the network is not to see: divided by it, the column is 0."""


def beginner(
    name: str,
    architecture: Architecture,
    recorded: Sequence[RecordedQueues],
    rng: np.random.Generator,
    columns: Sequence[str] = STATE_COLUMNS,
) -> Actor:
    """An actor that is its rule (or, without one, gives all jobs the same score), with the normalisers of these queues.

    `columns`: those of the state that its network sees.
    """
    state = np.concatenate([queues.state for queues in recorded])
    mean, scale = state.mean(axis=0), np.maximum(state.std(axis=0), np.float32(0.05))
    scale = np.where(np.isin(STATE_COLUMNS, columns), scale, _UNSEEN)
    weights = initial_weights(architecture, mean, scale, rng)
    weights[f"layer{architecture.layers - 1}.kernel"] *= np.float32(0.0)
    return Actor(name, architecture, weights)


def warm_start(
    actor: Actor,
    recorded: Sequence[RecordedQueues],
    settings: WarmSettings,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> tuple[Actor, float]:
    """Train the actor. Returns it with the mean loss of the last hundred steps.

    A pair weighs what the wrong order costs (Burges et al., NIPS 2006): of two jobs that need a and b GPU-seconds,
    starting the larger first makes the two wait a − b longer.
    """
    state, base, area, count = (
        np.concatenate([getattr(queues, name) for queues in recorded]) for name in ("state", "base", "area", "count")
    )
    how = PairwiseSettings(settings.steps, settings.batch, settings.learning_rate, _SHARPNESS)

    def pairs(rows: Ints) -> tuple[Singles, Singles]:
        return _regret(area[rows], settings.regret)

    return fit(actor, (state, base, count), pairs, how, rng, progress, "warm start")


def _regret(area: Floats, power: float) -> tuple[Singles, Singles]:
    """(B,) which of each pair should go first (1: the first, −1: the other), and (B,) what the wrong order weighs."""
    difference = area[:, 1] - area[:, 0]
    share = np.abs(difference) / area.sum(axis=1)
    weight = np.where(difference == 0.0, 0.0, share**power)
    return np.sign(difference).astype(np.float32), weight.astype(np.float32)

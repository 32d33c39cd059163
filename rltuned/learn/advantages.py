"""How much better each decision was: rewards, costs-to-go, advantages, and the critic.

NumPy only: workers compute them. `rltuned.learn.ppo.values` is the critic's twin in TensorFlow.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rltuned.cluster.tables import Floats, Ints, Singles
from rltuned.learn.cost import FinishedJobs, Objective, cost
from rltuned.policy.actor import Weights

CRITIC_HIDDEN: Final = 32
"""Width of the critic's layers."""


def costs_to_go(costs: Floats, times: Floats, horizon: float) -> Floats:
    """(K, G) cost-to-go of each moment: Σ of the (K, G) costs of the intervals that begin there or later.

    What lies `horizon` seconds ahead counts 1/e; infinite: everything counts.
    """
    if np.isinf(horizon):
        return np.cumsum(costs[:, ::-1], axis=1)[:, ::-1]
    kept = np.exp(-np.diff(times) / horizon)
    out = costs.copy()
    for at in range(len(times) - 2, -1, -1):
        out[:, at] += kept[at] * out[:, at + 1]
    return out


def leave_one_out(
    objective: Objective,
    trajectories: Sequence[FinishedJobs],
    base: FinishedJobs,
    times: Sequence[Floats],
    horizon: float = np.inf,
) -> list[Floats]:
    """Advantage of each step of each of K trajectories of the same arrivals: the cost-to-go of the others at that time,
    on average, less that of this one (an input-dependent baseline, Mao et al., ICLR 2019; RLOO).
    """
    grid = np.unique(np.concatenate(times))
    spans = [cost(objective, one, base) for one in trajectories]
    paid = np.stack([one.until(grid) for one in spans])
    total = np.array([one.total for one in spans])
    ahead = costs_to_go(np.diff(paid, axis=1, append=total[:, None]), grid, horizon)
    others = (ahead.sum(axis=0) - ahead) / max(len(trajectories) - 1, 1)
    return [(others[at] - ahead[at])[np.searchsorted(grid, each)] for at, each in enumerate(times)]


def rewards(objective: Objective, own: FinishedJobs, base: FinishedJobs, times: Floats) -> Floats:
    """(S,) reward of each step: the base rule's cost until the next step, less the own. Σ = 1 − metric / base's."""
    mine, theirs = cost(objective, own, base), cost(objective, base, base)
    difference = theirs.until(times) - mine.until(times)
    if len(difference):
        difference[0] = 0.0  # before the first step nothing was decided
    return np.diff(difference, append=theirs.total - mine.total)


def gae(reward: Floats, values: Floats, kept: Floats, smoothing: float) -> tuple[Floats, Floats]:
    """Generalised advantage estimates (Schulman et al., ICLR 2016) and the critic's targets.

    `kept`: (S,) discount from each step to the next; `smoothing`: λ. The episode ends after the last step.
    """
    out, after, following = np.zeros(len(reward)), 0.0, 0.0
    for at in range(len(reward) - 1, -1, -1):
        delta = reward[at] + kept[at] * following - values[at]
        after = delta + kept[at] * smoothing * after
        out[at], following = after, values[at]
    return out, out + values


# --- critic


def critic_weights(rng: np.random.Generator) -> dict[str, Singles]:
    """Each job's row through one layer, the mean over the jobs and their number through another, and a value."""
    shapes = {"row": (5, CRITIC_HIDDEN), "pool": (CRITIC_HIDDEN + 1, CRITIC_HIDDEN), "value": (CRITIC_HIDDEN, 1)}
    weights: dict[str, Singles] = {}
    for name, shape in shapes.items():
        scale = 0.0 if name == "value" else np.sqrt(2.0 / shape[0])
        weights[f"{name}.kernel"] = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(shape[1], dtype=np.float32)
    return weights


def critic_values(weights: Weights, rows: Singles, ptr: Ints) -> Floats:
    """(S,) value of each step; the twin of `ppo.values`."""
    if len(ptr) < 2:
        return np.zeros(0)
    hidden = np.maximum(rows.astype(np.float64) @ weights["row.kernel"] + weights["row.bias"], 0.0)
    count = np.diff(ptr)
    mean = np.add.reduceat(hidden, ptr[:-1], axis=0) / count[:, None]
    pooled = np.column_stack((mean, np.log1p(count) / np.log1p(256.0)))
    hidden = np.maximum(pooled @ weights["pool.kernel"] + weights["pool.bias"], 0.0)
    return np.asarray((hidden @ weights["value.kernel"] + weights["value.bias"])[:, 0])

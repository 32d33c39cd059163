"""What training begins with: the rule that is corrected, on the run times that estimates and limits let expect."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rltuned.cluster.tables import Singles
from rltuned.evaluate.case import Case
from rltuned.observe import RUN_TIME_HORIZON
from rltuned.observe.observation import STATE_COLUMNS
from rltuned.policy.actor import EXTRAS, Actor, Architecture, initial_weights

RECORDED_WINDOWS: Final = 128
"""That are simulated under the rule and recorded, for the normalisers."""
RECORDED_STEPS: Final = 48
"""Queues of each that are kept."""
RECORDED_TEMPERATURE: Final = 0.05
"""Of these simulations: the policy will meet queues that do not arise under the rule itself."""
_UNSEEN: Final = np.float32(1e12)
"""Scale of a column that the network is not to see: divided by it, the column is 0."""


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


def rule_alone(rule: str, weights: Mapping[str, Singles], name: str = "rule") -> Actor:
    """An actor whose network corrects nothing: one of `CORRECTED`, with those tensors of `EXTRAS` that are given."""
    architecture = Architecture(inputs=len(STATE_COLUMNS), hidden=(), residual=rule)
    own = {each: np.zeros(shape, dtype=np.float32) for each, shape in architecture.shapes().items()}
    own["input.scale"] += 1
    return Actor(name, architecture, own | {each: weights[each] for each in EXTRAS if each in weights})


def beginner(
    name: str, architecture: Architecture, state: Singles, rng: np.random.Generator, columns: Sequence[str]
) -> Actor:
    """An actor that is its rule (or, without one, gives all jobs the same score), with the normalisers of these rows.

    `state`: (R, inputs) rows of recorded queues. `columns`: those of the state that its network sees.
    """
    mean, scale = state.mean(axis=0), np.maximum(state.std(axis=0), np.float32(0.05))
    scale = np.where(np.isin(STATE_COLUMNS, columns), scale, _UNSEEN)
    weights = initial_weights(architecture, mean, scale, rng)
    weights[f"layer{architecture.layers - 1}.kernel"] *= np.float32(0.0)
    return Actor(name, architecture, weights)

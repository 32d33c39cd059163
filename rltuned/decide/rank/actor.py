"""The learned ranking, in NumPy: a rule of named terms whose coefficients a small network sets by the moment.

score(job) = Σ_k c_k · x_k: x are the job's `STATE_COLUMNS`, and c = constant + tanh(m · kernel + bias) · change, where
m is the `MOMENT`: what the queue is like, how much of it there is, and what the site wants. With a last layer
(`change`) of zero it is a plain rule: a product of powers of run time, limit, GPUs and waiting, since most columns are
logarithms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.tables import Floats
from rltuned.decide.rank.protocol import Policy, Queue
from rltuned.decide.see.features import RUN_TIME_HORIZON
from rltuned.decide.see.observation import STATE_COLUMNS, WINDOW, Observation
from rltuned.decide.see.supply import CENTURY

AnyPolicy = TypeVar("AnyPolicy", bound=Policy)
Weights = Mapping[str, npt.NDArray[np.float32]]

COLUMNS: Final = len(STATE_COLUMNS)
MOMENT: Final = (*STATE_COLUMNS, "jobs", "backlog", *Objective._fields)
"""What the network sees: the mean of each column over the jobs seen, how many they are, the hours that the whole
cluster needs for them (both as logarithms), and the weights of the site's objective."""
RUN_TIME: Final = "run_time.coefficients"
"""(3,) optional tensor: c0, c1, c2 of ln T = c0 + c1 ln r + c2 ln L, the run time that is expected."""
_TIME_SCALE: Final = math.log1p(RUN_TIME_HORIZON)
_URGENCY_SCALE: Final = math.log1p(RUN_TIME_HORIZON / 10.0)
_JOBS_SCALE: Final = math.log1p(WINDOW)
_BACKLOG_SCALE: Final = math.log1p(RUN_TIME_HORIZON / 3600.0)
_TIME: Final = STATE_COLUMNS.index("requested_time")
_URGENCY: Final = STATE_COLUMNS.index("job_urgency")


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of an actor whose network has so many hidden units, but the optional one."""
    return {
        "constant": (COLUMNS,),
        "kernel": (len(MOMENT), hidden),
        "bias": (hidden,),
        "change": (hidden, COLUMNS),
    }


class Scored(NamedTuple):
    """Scores of n jobs, and what they are made of."""

    scores: Floats  # (n,) higher first
    terms: npt.NDArray[np.float32]  # (n, 8) x
    moment: Floats  # (14,) m
    coefficients: Floats  # (8,) c


@dataclass(frozen=True)
class Actor:
    """A `Policy` of named terms. Permutation-equivariant: a row is judged beside the mean of all."""

    name: str
    weights: Weights
    """float32, with the names and shapes of `shapes`, and `RUN_TIME` where it was fitted."""
    objective: Objective = DEFAULT  # what the site wants

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, higher first."""
        return self.explained(observation).scores

    def explained(self, observation: Observation) -> Scored:
        """The scores with all that they are made of."""
        n = len(observation)
        terms = self.terms(observation.state[:n], observation)
        moment = self.moment(terms, observation, observation.cluster_gpus)
        return Scored(self.score_rows(terms, moment), terms, moment, self.coefficients(moment))

    def terms(self, state: npt.NDArray[np.float32], queue: Queue) -> npt.NDArray[np.float32]:
        """(n, 8) x: the state with the run times that are expected in the place of the estimates."""
        if RUN_TIME not in self.weights:
            return state
        made = state.copy()
        expected = self.expected_run_time(queue.run_time, queue.time_limit)
        made[:, _TIME] = np.minimum(np.log1p(expected) / _TIME_SCALE, 1.0)
        made[:, _URGENCY] = np.minimum(np.log1p(queue.wait / np.maximum(expected, 10.0)) / _URGENCY_SCALE, 1.0)
        return made

    def moment(self, terms: npt.NDArray[np.float32], queue: Queue, cluster_gpus: float) -> Floats:
        """(14,) `MOMENT` of the jobs of these terms; `cluster_gpus`: of all nodes."""
        n = len(terms)
        area = self.expected_run_time(queue.run_time, queue.time_limit) * np.maximum(queue.gpus, 1.0)
        mean = terms.mean(axis=0, dtype=np.float64) if n else np.zeros(COLUMNS)
        backlog = math.log1p(float(area.sum()) / (3600.0 * cluster_gpus)) / _BACKLOG_SCALE
        return np.array([*mean, math.log1p(n) / _JOBS_SCALE, backlog, *self.objective])

    def coefficients(self, moment: Floats) -> Floats:
        """(8,) c."""
        held = self._doubles
        return np.asarray(held["constant"] + np.tanh(moment @ held["kernel"] + held["bias"]) @ held["change"])

    def score_rows(self, terms: npt.NDArray[np.float32], moment: Floats) -> Floats:
        """(n,) scores of (n, 8) terms at a (14,) moment."""
        # In double precision, column by column and rounded, equal jobs tie wherever they stand.
        scores = np.zeros(len(terms))
        for column, coefficient in enumerate(self.coefficients(moment).tolist()):
            scores += coefficient * terms[:, column].astype(np.float64)
        return np.asarray(np.round(scores, 9))

    def expected_run_time(self, run_time: Floats, time_limit: Floats) -> Floats:
        """(n,) T, seconds: how long each job is expected to run.

        ln T = c0 + c1 ln r + c2 ln L, cut to [1, L]; an unlimited job counts as one of 30 days. T = r where the model
        has no such coefficients, and where r is no less than L: the estimate is the limit, or says that it will be
        reached.

        Args:
            run_time: (n,) r, the smaller of estimate and limit, seconds, at least 1.
            time_limit: (n,) L, seconds, infinite or NaN when unlimited.
        """
        coefficients = self.weights.get(RUN_TIME)
        if coefficients is None:
            return run_time
        constant, of_run_time, of_limit = coefficients.astype(np.float64)
        limit = np.maximum(np.fmin(time_limit, RUN_TIME_HORIZON), 1.0)
        level = constant + of_run_time * np.log(run_time) + of_limit * np.log(limit)
        expected = np.fmin(np.exp(np.clip(level, 0.0, math.log(CENTURY))), time_limit)
        return np.where(run_time < limit, np.maximum(expected, 1.0), run_time)

    @property
    def hidden(self) -> int:
        """Hidden units of the network."""
        return len(self.weights["bias"])

    @property
    def is_rule(self) -> bool:
        """Whether the coefficients are the same at every moment."""
        return not self.weights["change"].any()

    @property
    def summary(self) -> str:
        """What decides the order, in one sentence."""
        constant, reach = self.weights["constant"], np.abs(self.weights["change"]).sum(axis=0)
        told = [
            f"{value:+.2f}{'' if not most else f' ± {most:.2f}'} · {name}"
            for name, value, most in zip(STATE_COLUMNS, constant.tolist(), reach.tolist(), strict=True)
            if value or most
        ]
        how = (
            "the same at every moment" if self.is_rule else f"± what the moment changes, by {self.hidden} hidden units"
        )
        run_time = ""
        if (coefficients := self.weights.get(RUN_TIME)) is not None:
            c0, c1, c2 = coefficients.tolist()
            run_time = (
                f"; run times are expected ones (predicted means as they are; "
                f"e^{c0:.2f} · r^{c1:.2f} · L^{c2:.2f} of any other estimate r and limit L)"
            )
        return f"the largest {' '.join(told) or '0'}, {how}{run_time}"

    @cached_property
    def _doubles(self) -> dict[str, Floats]:
        return {name: value.astype(np.float64) for name, value in self.weights.items()}


def plain_rule(name: str, run_time: npt.NDArray[np.float32] | None = None, **coefficients: float) -> Actor:
    """An actor whose coefficients are the same at every moment, 0 where none is given, with those of `RUN_TIME`."""
    weights = {each: np.zeros(shape, dtype=np.float32) for each, shape in shapes(0).items()}
    for column, value in coefficients.items():
        weights["constant"][STATE_COLUMNS.index(column)] = value
    return Actor(name, weights if run_time is None else {**weights, RUN_TIME: run_time})


def with_network(rule: Actor, usual: Floats, spread: Floats) -> Actor:
    """The rule with a network that changes nothing yet. Hidden unit i says how far entry i of the moment is from its
    usual value, in units of its spread; (14,) each.
    """
    weights = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes(len(MOMENT)).items()}
    weights["kernel"] = np.diag(1.0 / spread).astype(np.float32)
    weights["bias"] = (-usual / spread).astype(np.float32)
    kept = {name: value for name, value in rule.weights.items() if name in {"constant", RUN_TIME}}
    return replace(rule, weights={**weights, **kept})


def on_means(policy: AnyPolicy) -> AnyPolicy:
    """The policy for run times that are predicted means: without `RUN_TIME`, which is for estimates that err."""
    if not (isinstance(policy, Actor) and RUN_TIME in policy.weights):
        return policy
    return replace(policy, weights={name: value for name, value in policy.weights.items() if name != RUN_TIME})

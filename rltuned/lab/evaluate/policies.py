"""Policies by name: how each one that `--policies` takes becomes a ranker and the settings of its simulated Slurm."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.config import Config, LendSection
from rltuned.core.tables import Floats, Ints
from rltuned.decide.rank.actor import on_means
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.rank.multifactor import USUAL, Weights
from rltuned.decide.rank.protocol import Policy
from rltuned.lab.evaluate.evaluation_settings import AGAIN, STRICT, EvaluationSettings, is_learned, served
from rltuned.lab.evaluate.slurm_conf import Values, with_values
from rltuned.records import model_files as files
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.priorities import MultifactorPriorities
from rltuned.simulate.rankers import PlanRanker, RuleRanker
from rltuned.simulate.values import Backfill, Fit, SimulationSettings

PRIORITY_CALC_PERIOD: Final = 300.0
"""Seconds (slurm.conf(5), PriorityCalcPeriod): so often slurmctld adds up usage and lets it decay."""


class MultifactorRanker:
    """Slurm's own order, by `rltuned.decide.rank.multifactor`. A job has it at submission."""

    ages = True
    at_once = True

    def __init__(self, weights: Weights = USUAL) -> None:
        self._weights = weights
        self._priorities: MultifactorPriorities | None = None
        self._charged = 0.0

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        """None: age and fair share change all the time."""
        return None

    def keys(self, simulation: Simulation, rows: npt.NDArray[np.intp]) -> Floats:
        """The priorities now, the highest first."""
        return -self.priorities(simulation, rows).astype(np.float64)

    def priorities(self, simulation: Simulation, rows: npt.NDArray[np.intp]) -> Ints:
        """(n,) priorities now."""
        if self._priorities is None:
            self._priorities, self._charged = MultifactorPriorities(simulation, self._weights), simulation.now
        elif simulation.now >= self._charged + PRIORITY_CALC_PERIOD:
            self._priorities.passed(simulation)
            self._charged = simulation.now
        return self._priorities.sums(simulation, rows)


def rule_ranker(name: str, weights: str = "") -> Ranker:
    """A plain rule, or Slurm's own order, for one simulation. Raises ConfigError: there is no such rule."""
    if name in {"multifactor", AGAIN}:
        return MultifactorRanker(Weights.parse(weights) if weights else USUAL)
    return RuleRanker(by_name(name))


@dataclass(frozen=True)
class Contender:
    """A policy of an evaluation."""

    name: str
    settings: SimulationSettings  # of its simulated Slurm
    policy: Policy | None  # a learned one, loaded; None: a plain rule
    weights: str = ""
    share: float | None = None
    """`lend.share`; None: the default, and a plain rule has nothing of the daemon's around it."""
    values: Values = field(default_factory=dict)
    """Of slurm.conf, for the weights of nodes; none: the cluster's own."""

    def ranker(self) -> Ranker:
        """A new one, for one simulation."""
        if self.policy is None and self.share is None:
            return rule_ranker("fifo" if self.name == STRICT else self.name, self.weights)
        config = Config() if self.share is None else Config(lend=LendSection(share=self.share))
        slurm = MultifactorRanker(Weights.parse(self.weights)).priorities if self.weights else None
        policy = self.policy or by_name(served(self.name)[0])
        return PlanRanker(policy, config, slurm)

    def play(self, simulation: Simulation, ranker: Ranker) -> None:
        """Simulate to the end."""
        simulation.run(ranker)


def contender(name: str, settings: EvaluationSettings, values: Values | None = None) -> Contender:
    """The policy of that name, with the slurm.conf of the settings, or with these `values` of it. Raises ModelError."""
    if name == STRICT:
        strict = SimulationSettings(backfill=Backfill.NONE, fit=Fit.WORST)
        return Contender(name, strict, policy=None)
    if values is not None:
        settings = with_values(settings, values)
    return Contender(
        name,
        settings.simulated,
        policy=_learned(name, settings),
        weights=settings.weights,
        share=served(name)[1],
        values=values or {},
    )


def _learned(name: str, settings: EvaluationSettings) -> Policy | None:
    if not is_learned(name):
        return None
    model = replace(files.load(_model_of(name, settings)), objective=settings.objective)
    return on_means(model) if settings.by_history else model


def _model_of(name: str, settings: EvaluationSettings) -> str:
    """What `files.load` takes, of a learned policy."""
    name, _ = served(name)
    return model_path(name if name.endswith(".json") else settings.model)


def model_path(chosen: str) -> str:
    """A model's name, or the absolute path of the manifest that `chosen` is the path of."""
    return str(Path(chosen).resolve()) if chosen.endswith(".json") else chosen


def described(name: str, settings: EvaluationSettings) -> dict[str, Any]:
    """What a policy was, for the report."""
    chosen = contender(name, settings)
    found: dict[str, Any] = {
        "backfill": chosen.settings.backfill.value,
        "fit": chosen.settings.fit.value,
    }
    if chosen.policy is not None:
        info = files.info(_model_of(name, settings))
        found["model"] = {"name": info.name, "sha256": info.sha256}
    return found

"""What it would be worth to a site to have run times predicted by what its jobs are called (docs/estimates.md#names).

On the windows of a gate, with and without names: how far the median is off and what the order costs for the jobs that
wait, as they start; and the mean wait and slowdown under one policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.tables import Bools, Floats
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.bootstrap import Comparison, compare, counts
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.decided import decided, order_cost
from rltuned.lab.evaluate.evaluation import Evaluation
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.measure import Measured, measured
from rltuned.lab.evaluate.policies import contender
from rltuned.simulate.rankers import compile_kernel

METRICS: Final = {"wait": "wait_mean", "slowdown": "bsld_mean"}
"""Of a simulation under one policy, by what is compared."""


class Predicted(NamedTuple):
    """Of the jobs of one window that waited; NaN where none did."""

    error: float  # mean of |ln(median / run time)|
    cost: float  # of the order, as of `decided.order_cost`


@dataclass(frozen=True)
class NamesWorth:
    """With names over without, on the same windows."""

    share: float  # of the windows' jobs that have a name
    policy: str  # under which jobs wait
    means: Mapping[str, tuple[float, float]]  # without and with, by what is compared
    error: Comparison
    cost: Comparison
    wait: Comparison
    slowdown: Comparison

    @property
    def on(self) -> bool:
        """Whether predictions are certainly nearer, the order by them certainly costs less, and neither wait nor
        slowdown is certainly larger. How much less jobs wait is not asked: lending bounds that, whatever is known, and
        start times and intervals rest on predictions, too.
        """
        larger = [one for one in (self.wait, self.slowdown) if one.lo is not None and one.lo > 1.0]
        return self.error.lower and self.cost.lower and not larger

    def as_dict(self) -> dict[str, Any]:
        """For a verdict's file."""
        compared = {name: asdict(one) for name, one in self._compared()}
        means = {name: dict(zip(("without", "with"), values, strict=True)) for name, values in self.means.items()}
        return {"on": self.on, "share": self.share, "policy": self.policy} | {
            name: means[name] | of for name, of in compared.items()
        }

    def lines(self) -> list[str]:
        """For people."""
        said = {"error": "error of the median", "cost": "order's cost", "wait": f"mean wait under {self.policy}"}
        said["slowdown"] = f"slowdown under {self.policy}"
        found = [
            f"{said[name]} {self.means[name][0]:.4g} without names, {self.means[name][1]:.4g} with: {one}"
            for name, one in self._compared()
        ]
        advice = 'set estimates.names = "hashed"' if self.on else "they would not certainly help here"
        of = f"names ({self.share:.0%} of the jobs have one)"
        return [f"{of}: {'on' if self.on else 'off'}; {advice}", *found]

    def _compared(self) -> tuple[tuple[str, Comparison], ...]:
        return ("error", self.error), ("cost", self.cost), ("wait", self.wait), ("slowdown", self.slowdown)


def worth(
    evaluation: Evaluation, policy: str, pool: WorkerPool, known: Measured | None = None, progress: Progress = silent
) -> NamesWorth:
    """Of a gate's evaluation. `policy`: the one that jobs wait under, one of it; `known`: what was measured of that."""
    settings, cases = evaluation.settings, evaluation.cases
    called = np.concatenate([case.jobs.name_kind.codes[case.past :] >= 0 for case in cases])
    ways = [tuple(replace(case, named=named) for case in cases) for named in (False, True)]
    tasks = [(case, settings) for way in ways for case in way]
    with pool:
        predicted = _in_order(pool, tasks, progress)
        served = [
            known
            if known is not None and way[0].named == cases[0].named
            else measured(way, [contender(policy, settings)], pool, progress)[0]
            for way in ways
        ]
    columns = {name: np.array([of[metric] for of in served]) for name, metric in METRICS.items()}
    error, cost = np.moveaxis(np.array(predicted).reshape(2, len(cases), 2), 2, 0)
    return _compared(called, policy, {"error": error, "cost": cost, **columns}, settings.seed)


def _compared(called: Bools, policy: str, columns: Mapping[str, Floats], seed: int) -> NamesWorth:
    """`columns`: (2, W) without and with names, by what is compared."""
    drawn = counts(columns["wait"].shape[1], seed)
    return NamesWorth(
        share=float(called.mean()),
        policy=policy,
        means={name: (_mean(values[0]), _mean(values[1])) for name, values in columns.items()},
        **{name: compare(values[1], values[0], drawn) for name, values in columns.items()},
    )


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def _in_order(
    pool: WorkerPool, tasks: Sequence[tuple[Case, EvaluationSettings]], progress: Progress
) -> list[Predicted]:
    progress("predicting", 0, len(tasks))
    found = pool.map(_predicted, tasks)
    progress("predicting", len(tasks), len(tasks))
    return list(found)


def _predicted(task: tuple[Case, EvaluationSettings]) -> Predicted:
    compile_kernel()
    found = decided(*task)
    if not len(found.took):
        return Predicted(float("nan"), float("nan"))
    error = float(np.abs(np.log(found.median / found.took)).mean())
    return Predicted(error, order_cost(found.mean, found.took, found.size))

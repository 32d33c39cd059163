"""The period's own jobs in the simulator, under Slurm's order and under rltuned, beside what really happened.

The policies, the simulations, the metrics and the intervals are those of `rltuned.lab.evaluate`; what is added is each
job's wait, so that the report can say whose it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rltuned.core.config import Config
from rltuned.core.errors import EvaluationError
from rltuned.core.tables import Bools, Floats, Rows
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.bootstrap import Comparison, compare, counts, of_resampled, pooled_quantiles
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import (
    AGAIN,
    OWN,
    PLAIN,
    EvaluationSettings,
    as_configured,
    with_share,
)
from rltuned.lab.evaluate.measure import how_long, simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.window_metrics import measure, most_in_use
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import SimulationResult
from rltuned.simulate.workload.jobs import Workload

SLURM: Final = OWN
REAL: Final = "real"
MEANS: Final = ("wait_mean", "bsld_mean", "jct_mean", "utilization")
QUANTILES: Final = {"wait_p50": 0.5, "wait_p99": 0.99, "wait_max": 1.0}
LEAD_DAYS: Final = 14.0
"""Days before the period whose jobs fill the cluster before it begins, and teach how long jobs run."""
MOST: Final = 10_000  # jobs that are replayed
BLOCKS: Final = 30
SMALLEST_BLOCK: Final = 32  # jobs of a block
SLICES: Final = 100  # signs of life of one simulation


@dataclass(frozen=True)
class Replay:
    """Of the n jobs that ran in reality and in both simulations."""

    jobs: Workload  # `submit_time` is epoch seconds
    wait: Mapping[str, Floats]
    """(n,) seconds: `REAL`, `SLURM` and the policy's name; `AGAIN` where it was simulated."""
    start: Mapping[str, Floats]  # (n,) epoch seconds
    end: Mapping[str, Floats]
    block: Rows  # (n,) of consecutive jobs, that each belongs to
    measured: Mapping[str, Mapping[str, Floats]]
    """(B,) by policy and name of `MEANS`: its mean over each block's jobs, times their number, so that a mean over
    blocks is one over jobs. Of GPUs in use: their share from a block's first submission to its last end."""
    policy: str  # of rltuned, as `--policies` names it: with the share that waiting jobs lend
    reference: str  # the simulation that should be like reality: under the order that really ruled
    in_period: int  # jobs that were submitted in the period and have ended
    gpus: float
    seed: int
    exact: bool = False  # reality is a simulation itself, that of `reference`

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return int(self.block[-1]) + 1

    @property
    def names(self) -> dict[str, str]:
        """Of the three, by what the report calls them."""
        return {"real": REAL, "slurm": SLURM, "rltuned": self.policy}

    @property
    def waits(self) -> dict[str, Floats]:
        """`wait`, by `names`."""
        return {of: self.wait[name] for of, name in self.names.items()}

    def compared(self, above: str, below: str) -> dict[str, Comparison]:
        """Ratios of two of them by metric, with their intervals: paired bootstrap over blocks of consecutive jobs
        (Carlstein, Annals of Statistics 14, 1986): neighbours in the queue are not independent. The jobs of the blocks
        that are drawn are pooled: a quantile is one of all of them, not a mean of the blocks' own.
        """
        drawn = counts(self.blocks, self.seed)
        found = {metric: compare(self.measured[above][metric], self.measured[below][metric], drawn) for metric in MEANS}
        values, shares = self.values(), tuple(QUANTILES.values())
        pooled = [pooled_quantiles(self.wait[name], self.block, drawn, shares) for name in (above, below)]
        for at, metric in enumerate(QUANTILES):
            one, other = values[above][metric], values[below][metric]
            found[metric] = of_resampled(one, other, pooled[0][:, at], pooled[1][:, at], interval=self.blocks > 1)
        return found

    def values(self) -> dict[str, dict[str, float]]:
        """Of all jobs together, by policy and metric."""
        jobs = float(len(self))
        return {
            name: {
                **{metric: round(float(np.nansum(sums)) / jobs, 3) for metric, sums in self.measured[name].items()},
                **{metric: round(float(np.quantile(wait, share)), 3) for metric, share in QUANTILES.items()},
            }
            for name, wait in self.wait.items()
        }


def settings_of(
    config: Config, logged: str, given: Mapping[str, Any], share: float | None = None
) -> EvaluationSettings:
    """Settings of a replay: the policy of the log ("": none says), else of the configuration, beside Slurm's order.

    `given`: `trace` or `from_sacct`; `cluster`, as `as_configured`. `share`: `lend.share` by the log; None: that
    of the configuration. Raises EvaluationError, ConfigError.
    """
    name = logged or config.policy.name
    # Slurm's own order, which `auto` begins with, is not compared with itself: the model is.
    policy = name if name in PLAIN and name != SLURM else "rl"
    policy = with_share(policy, config.lend.part if share is None else share)
    return as_configured(config, {"policies": f"{policy},{SLURM},{AGAIN}", **given})


def replay(
    settings: EvaluationSettings,
    jobs: Workload,
    shape: ClusterShape,
    since: float,
    until: float,
    *,
    revision: str,
    wrote: bool,
    progress: Progress = silent,
    tell: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Replay the jobs of [since, until), epoch seconds, in one go: what a job leaves in the queue concerns the next.

    `settings` are of `settings_of`, with the cluster's scheduler parameters. Of the `jobs` before the period the ones
    that ended within `LEAD_DAYS` of it count; of more than `MOST` in it, the last ones are replayed. `wrote`: rltuned
    steered the queue in the period, so that its replay should be like reality. `tell` is told how long it will take.
    Raises EvaluationError: too few jobs, or none that both the cluster and its replay could run. ModelError.
    """
    ended = jobs.submit_time + np.nan_to_num(jobs.wait_time) + jobs.run_time + jobs.source.start
    jobs = jobs.take(ended >= since - LEAD_DAYS * 86_400.0)
    submitted = jobs.submit_time + jobs.source.start
    first, last = (int(at) for at in np.searchsorted(submitted, [since, until]))
    there = last - first
    if there < SMALLEST_BLOCK:
        raise EvaluationError(
            f"{there} jobs of the period have ended, and a replay needs {SMALLEST_BLOCK}: take a longer period"
        )
    first = max(first, last - MOST)
    window = Window(0, first, last - first)
    settled = replace(settings, window=window.jobs, windows=1, warm_jobs=max(first, 1))
    evaluation = ready(settled, jobs, shape, revision, (window,))
    (case,), names = evaluation.cases, settled.policies
    tell(how_long(evaluation.cases, names, 1))
    compile_kernel()
    ran = {name: _run(case, name, settled, progress) for name in names}
    really = case.submit_time + case.jobs.wait_time
    return of_times(
        replace(case.jobs, submit_time=case.submit_time),
        {REAL: really, **{name: result.start for name, result in ran.items()}},
        {REAL: really + case.jobs.run_time, **{name: result.end for name, result in ran.items()}},
        chosen=case.measured,
        capacity=case.capacity,
        zero=float(jobs.submit_time[first]) + jobs.source.start,
        policy=names[0],
        reference=names[0] if wrote else SLURM,
        in_period=there,
        seed=settled.seed,
    )


def _run(case: Case, policy: str, settings: EvaluationSettings, progress: Progress) -> SimulationResult:
    kinds = {SLURM: "Slurm's order", AGAIN: "Slurm's order once more"}
    last = float(case.jobs.submit_time[-1])

    def tell(now: float) -> None:
        what = f"replaying under {kinds.get(policy, 'rltuned')}"
        progress(what, min(int(SLICES * now / max(last, 1.0)), SLICES), SLICES)

    moments = np.linspace(0.0, last, SLICES + 1)[1:]
    simulation = simulate_case(case, contender(policy, settings), moments.tolist(), tell)
    return simulation.result()


def of_times(
    jobs: Workload,
    start: Mapping[str, Floats],
    end: Mapping[str, Floats],
    *,
    capacity: float,
    zero: float,
    policy: str,
    reference: str,
    in_period: int,
    seed: int,
    chosen: Bools | None = None,
    exact: bool = False,
) -> Replay:
    """A replay of the times that N jobs had in reality (`REAL`), under Slurm's order (`SLURM`) and under `policy`.

    `start` and `end` are (N,) seconds on the jobs' clock, which begins at `zero`, epoch seconds; NaN: never ran.
    `capacity`: GPUs of the cluster; more, where more were in use at once. `chosen`: (N,) the jobs to report, None:
    all; the others only count as load. Raises EvaluationError: no job ran in all three.
    """
    # The same jobs for all three: what only one of them could run is nobody's gain.
    ran = np.logical_and.reduce([np.isfinite(of) for of in end.values()])
    rows = np.flatnonzero(ran if chosen is None else ran & chosen)
    if not len(rows):
        raise EvaluationError("no job of the period ran both in reality and in its replay: is this the right cluster?")
    blocks = np.array_split(rows, min(max(len(rows) // SMALLEST_BLOCK, 1), BLOCKS))
    gpus = jobs.gpus.astype(np.float64)
    # Nodes may be gone on which jobs ran.
    capacity = max(capacity, most_in_use(start[REAL], end[REAL], gpus))
    measured: dict[str, dict[str, list[float]]] = {name: {metric: [] for metric in MEANS} for name in end}
    for block in blocks:
        inside = np.zeros(len(jobs), dtype=np.bool_)
        inside[block] = True
        for name, values in measured.items():
            one = measure(jobs.submit_time, start[name], end[name], gpus, inside, jobs.user, capacity)._asdict()
            for metric in MEANS:
                values[metric].append(len(block) * one[metric])
    taken = jobs.take(rows)
    submitted = taken.submit_time + zero
    return Replay(
        jobs=replace(taken, submit_time=submitted, source=replace(taken.source, start=0.0)),
        wait={name: np.maximum(values[rows] - taken.submit_time, 0.0) for name, values in start.items()},
        start={name: values[rows] + zero for name, values in start.items()},
        end={name: values[rows] + zero for name, values in end.items()},
        block=np.repeat(np.arange(len(blocks)), [len(block) for block in blocks]),
        measured={name: {metric: np.array(of) for metric, of in by.items()} for name, by in measured.items()},
        policy=policy,
        reference=reference,
        in_period=in_period,
        gpus=capacity,
        seed=seed,
        exact=exact,
    )

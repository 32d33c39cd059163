"""What is measured of an A/B: pure functions over the times of the jobs, the table for people, the plots."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ab_jobs import MULTIFACTOR, owned, sizes

from rltuned.core.installed import require
from rltuned.core.tables import owners
from rltuned.lab.evaluate.bootstrap import compare, counts
from rltuned.lab.evaluate.window_metrics import against_slurm, busy, idle_while_waiting, measure
from rltuned.simulate.values import bounded_slowdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ab_jobs import Site
    from replay import Jobs

Floats = np.ndarray[Any, np.dtype[np.float64]]

BLOCK: Final = 32
"""Jobs, one submitted after the other, that are drawn together for an interval: neighbours wait for the same."""
RESAMPLES: Final = 5_000
POINTS: Final = 300
"""Of a curve of GPUs in use."""
MEANS: Final = ("wait_mean", "jct_mean", "bsld_mean")
"""Metrics that are means over jobs: these have intervals."""
NAMES: Final = {
    "wait_mean": "mean wait, s",
    "wait_p50": "median wait, s",
    "wait_p99": "99th percentile of wait, s",
    "wait_max": "longest wait, s",
    "jct_mean": "mean job completion time, s",
    "bsld_mean": "mean bounded slowdown",
    "makespan": "makespan, s",
    "gpus": "GPUs in use over the makespan",
    "gpus_arriving": "GPUs in use while jobs arrive",
    "gpus_waiting": "GPUs in use while jobs wait",
}
"""Metrics of the report, in its order."""
OVER_SLURM: Final = {
    "accounts_worse": "accounts worse off, %",
    "worst_tenth": "worst tenth of accounts, wait ratio",
    "late": "late jobs, %",
    "wait_ratio_p95": "95th percentile of wait ratio",
}
"""Metrics against Slurm alone (`rltuned.lab.evaluate.window_metrics`), which have no ratio."""


@dataclass(frozen=True)
class Times:
    """What became of the N jobs of a run in one arm; (N,) seconds since the run's zero."""

    submit: Floats
    start: Floats
    end: Floats

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        """All three."""
        return self.submit, self.start, self.end


@dataclass(frozen=True)
class Run:
    """One seed: the same jobs in each arm."""

    seed: int
    slurm: str
    """Release."""
    site: Site
    interval: float
    """Of the daemon's cycle, seconds."""
    jobs: Jobs
    cluster: Mapping[str, Any]
    """As `rltuned.simulate.shape.from_json` takes it."""
    real: Mapping[str, Times]
    """By arm, multifactor first."""
    facts: Mapping[str, Mapping[str, Any]]
    """Of each arm's daemon and Slurm."""
    simulated: dict[str, list[Times]] = field(default_factory=dict)
    """By arm, one for each draw; empty where nothing was simulated."""


def capacity(run: Run) -> int:
    """GPUs."""
    return int(sum(pool["nodes"] * pool["gpus_per_node"] for pool in run.cluster["pools"]))


def measured(run: Run, times: Times, slurm: Times) -> dict[str, float]:
    """The metrics of one arm. `slurm`: the times of Slurm alone."""
    jobs, all_gpus = run.jobs, capacity(run)
    gpus, window = jobs.workload.gpus.astype(np.float64), np.arange(len(jobs.workload)) >= jobs.warm
    found = measure(times.submit, times.start, times.end, gpus, window, jobs.workload.user, all_gpus)._asdict()
    first, last = float(times.submit[window].min()), float(times.submit.max())
    in_use = busy(times.start, times.end, gpus, first, last) / (last - first) if last > first else float("nan")

    def idle(gpus_of_all: float) -> float:
        span = first, float(times.end.max())
        return idle_while_waiting(times.submit, times.start, times.end, gpus, span, gpus_of_all)

    waiting = idle(1.0) - idle(0.0)  # seconds
    found |= {"gpus": found["utilization"] / 100.0 * all_gpus, "gpus_arriving": in_use}
    found |= {"gpus_waiting": -idle(0.0) / waiting if waiting else float("nan")}
    of = owners(jobs.workload.account, jobs.workload.user)
    real = (run.site.factor * each for each in (times.submit, times.start, slurm.start))
    fares = against_slurm(*real, window, of)
    found |= {**fares._asdict(), "accounts_worse": 100.0 * fares.accounts_worse, "late": 100.0 * fares.late}
    return {name: found[name] for name in (*NAMES, *OVER_SLURM)}


def in_use(jobs: Jobs, times: Times, edges: Floats) -> Floats:
    """(len(edges) − 1,) GPUs in use, the mean between each two moments."""
    gpus = jobs.workload.gpus.astype(np.float64)
    taken = [busy(times.start, times.end, gpus, float(a), float(b)) for a, b in pairwise(edges)]
    return np.array(taken) / np.diff(edges)


def per_job(run: Run, arm: str) -> dict[str, Floats]:
    """Of each measured job, by the name of the metric that is their mean."""
    submit, start, end = (of[run.jobs.warm :] for of in run.real[arm].columns)
    wait = np.maximum(start - submit, 0.0)
    return {"wait_mean": wait, "jct_mean": end - submit, "bsld_mean": bounded_slowdown(wait, end - start)}


def blocks(values: Floats) -> Floats:
    """Means of blocks of about `BLOCK` values."""
    parts = np.array_split(values, max(len(values) // BLOCK, 1))
    return np.array([part.mean() for part in parts])


def shared_arms(runs: Sequence[Run]) -> list[str]:
    """Arms that every run has, multifactor first."""
    return [arm for arm in runs[0].real if all(arm in run.real for run in runs)]


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """All that is reported of the arms that these runs share: of each run, and of all together.

    Pooled metrics are means over the runs, ratios those of such means. `lo` and `hi` bound the 95 % interval of a
    ratio, by a bootstrap over blocks of consecutive jobs: it says how far these jobs decide, not other seeds.
    """
    arms = shared_arms(runs)
    each: list[dict[str, Any]] = []
    for run in runs:
        real = {arm: measured(run, run.real[arm], run.real[MULTIFACTOR]) for arm in arms}
        each.append(
            {
                "seed": run.seed,
                "slurm": run.slurm,
                "trace": run.jobs.workload.source.name,
                "scale": run.site.scale,
                "arms": real,
                "ratios": {arm: _ratios(real[arm], real[MULTIFACTOR]) for arm in arms},
                "submitted_late": {arm: _late(run, arm) for arm in arms},
            }
        )
    pooled = {arm: _mean([of["arms"][arm] for of in each]) for arm in arms}
    ratios = {arm: {k: {"ratio": v} for k, v in _ratios(pooled[arm], pooled[MULTIFACTOR]).items()} for arm in arms}
    for name in MEANS:
        values = {arm: np.concatenate([blocks(per_job(run, arm)[name]) for run in runs]) for arm in arms}
        drawn = counts(len(values[MULTIFACTOR]), 1, RESAMPLES)
        for arm in arms:
            compared = compare(values[arm], values[MULTIFACTOR], drawn)
            ratios[arm][name] |= {"lo": compared.lo, "hi": compared.hi}
    found: dict[str, Any] = {
        "jobs": sum(len(run.jobs.workload) - run.jobs.warm for run in runs),
        "runs": each,
        "arms": pooled,
        "ratios": ratios,
        "groups": _groups(runs, arms),
    }
    if all(run.simulated for run in runs):
        found["prediction"] = _prediction(runs, arms, ratios)
    return found


def _ratios(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one[name] / other[name] if other[name] else float("nan") for name in NAMES}


def _mean(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([of[name] for of in several])) for name in (*NAMES, *OVER_SLURM)}


def _late(run: Run, arm: str) -> float:
    """Seconds by which the latest job was submitted behind its time."""
    return float((run.real[arm].submit - run.jobs.workload.submit_time).max())


def _groups(runs: Sequence[Run], arms: Sequence[str]) -> dict[str, Any]:
    """Mean wait and slowdown by user, account and size, all seeds together."""
    found: dict[str, Any] = {}
    several = {what: [owned(run.jobs, what) for run in runs] for what in ("user", "account")}
    for what, masks in {**several, "size": [sizes(run.jobs) for run in runs]}.items():
        found[what] = {}
        for name in dict.fromkeys(name for mask in masks for name in mask):
            chosen = [
                mask.get(name, np.zeros(len(run.jobs.workload), np.bool_))[run.jobs.warm :]
                for mask, run in zip(masks, runs, strict=True)
            ]
            number = int(sum(rows.sum() for rows in chosen))
            if not number:
                continue
            found[what][name] = {"jobs": number}
            for arm in arms:
                values = [per_job(run, arm) for run in runs]
                found[what][name][arm] = {
                    metric: float(np.concatenate([v[metric][r] for v, r in zip(values, chosen, strict=True)]).mean())
                    for metric in ("wait_mean", "bsld_mean")
                }
    if list(found["user"].values()) == list(found["account"].values()):  # each has one of his own
        del found["user"]
    return found


def _prediction(
    runs: Sequence[Run], arms: Sequence[str], real: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, Any]:
    """Ratios as the simulator predicts them, and how far they are from the real ones, in points."""
    pooled = {
        arm: _mean(
            [
                measured(run, *both)
                for run in runs
                for both in zip(run.simulated[arm], run.simulated[MULTIFACTOR], strict=True)
            ]
        )
        for arm in arms
    }
    found: dict[str, Any] = {}
    for arm in arms:
        predicted = _ratios(pooled[arm], pooled[MULTIFACTOR])
        found[arm] = {
            name: {
                "value": pooled[arm][name],
                "ratio": predicted[name],
                "points": 100.0 * (predicted[name] - real[arm][name]["ratio"]),
            }
            for name in NAMES
        }
        found[arm] |= {name: {"value": pooled[arm][name]} for name in OVER_SLURM}
    return found


# --- for people --------------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> str:
    """The summary as text."""
    arms = list(found["arms"])
    wide = max(22, *(len(arm) + 2 for arm in arms))
    runs = found["runs"]
    lines = [f"{found['jobs']} jobs; " + ", ".join(f"{of['trace']} on {of['slurm']}" for of in runs), ""]

    def row(name: str, cells: Sequence[str]) -> None:
        lines.append(f"  {name:<34}" + "".join(f"{cell:>{wide}}" for cell in cells))

    row("", arms)
    for metric, name in {**NAMES, **OVER_SLURM}.items():
        row(name, [f"{found['arms'][arm][metric]:.2f}" for arm in arms])
    others = [arm for arm in arms if arm != MULTIFACTOR]
    lines += ["", f"over {MULTIFACTOR} (95 % interval over blocks of {BLOCK} jobs)"]
    for metric, name in NAMES.items():
        row(name, ["", *(_ratio(found["ratios"][arm][metric]) for arm in others)])
    if len(runs) > 1:
        lines += ["", f"mean wait over {MULTIFACTOR}, by run"]
        for of in runs:
            cells = [f"{of['ratios'][arm]['wait_mean']:.3f}" for arm in others]
            row(f"{of['trace']} on {of['slurm']}", ["", *cells])
    if "prediction" in found:
        lines += ["", "the same, as simulated, and simulated less real in points"]
        for metric, name in NAMES.items():
            of = [found["prediction"][arm][metric] for arm in others]
            row(name, ["", *(f"{each['ratio']:.3f} {each['points']:+.1f}" for each in of)])
        for metric, name in OVER_SLURM.items():
            row(name, [f"{found['prediction'][arm][metric]['value']:.2f}" for arm in arms])
    for what, groups in found["groups"].items():
        lines += ["", f"mean wait by {what}, s (jobs)"]
        for name, of in groups.items():
            row(f"{name} ({of['jobs']})", [f"{of[arm]['wait_mean']:.1f}" for arm in arms])
    return "\n".join(lines)


def _ratio(of: Mapping[str, float | None]) -> str:
    text = f"{of['ratio']:.3f}"
    return f"{text} [{of['lo']:.2f}, {of['hi']:.2f}]" if of.get("lo") is not None else text


def draw(runs: Sequence[Run], directory: Path) -> list[Path]:
    """The plots, as the paper's Figs. 18 and 19 show them: waits and slowdowns of each arm; GPUs in use over time.

    Raises:
        MissingError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    require("--plot", "matplotlib")
    # Figure, not pyplot: no display, no state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of the extra [simulate]
    from matplotlib.figure import Figure  # noqa: PLC0415 - see above

    directory.mkdir(parents=True, exist_ok=True)
    arms = shared_arms(runs)
    jobs = sum(len(run.jobs.workload) - run.jobs.warm for run in runs)
    title = f"{jobs} jobs on a real Slurm {runs[0].slurm}, {capacity(runs[0])} GPUs"
    waits = Figure(figsize=(10.0, 4.5), layout="constrained")
    FigureCanvasAgg(waits)
    for axes, metric, label in zip(
        waits.subplots(1, 2), ("wait_mean", "bsld_mean"), ("wait (s)", "bounded slowdown"), strict=True
    ):
        for arm in arms:
            values = np.sort(np.concatenate([per_job(run, arm)[metric] for run in runs]))
            share = np.arange(1, len(values) + 1) / len(values)
            axes.plot(np.maximum(values, 1.0), share, drawstyle="steps-post", label=f"{arm}, mean {values.mean():.1f}")
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("share of jobs")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    waits.suptitle(title, fontsize=10)
    curves = Figure(figsize=(10.0, 3.0 * len(runs) + 0.6), layout="constrained")
    FigureCanvasAgg(curves)
    for axes, run in zip(np.ravel(curves.subplots(len(runs), 1, squeeze=False)), runs, strict=True):
        for arm in arms:
            end = float(run.real[arm].end.max())
            edges = np.linspace(0.0, end, POINTS + 1)
            axes.plot(edges[1:] / 60.0, _smooth(in_use(run.jobs, run.real[arm], edges)), label=f"{arm}, {end:.0f} s")
        axes.axhline(capacity(run), color="grey", linewidth=0.5)
        axes.set_ylabel("GPUs in use")
        axes.set_xlabel(f"minutes, seed {run.seed}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    curves.suptitle(f"{title}: GPUs in use, makespan", fontsize=10)
    written = []
    for figure, name in ((waits, "waits.png"), (curves, "gpus.png")):
        figure.savefig(directory / name, dpi=120)
        written.append(directory / name)
    return written


def _smooth(values: Floats, width: int = 9) -> Floats:
    """A running mean, narrower at both ends."""
    ones = np.ones(min(width, len(values)))
    return np.asarray(np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same"))

"""Box plots of an evaluation: one PNG for each metric, a box for each policy, over the windows."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

# Figure, not pyplot: no display, no state.
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rltuned.errors import EvaluationError

LABELS: Final = {
    "wait_mean": "mean wait (s)",
    "wait_p50": "median wait (s)",
    "wait_p99": "99th percentile of wait (s)",
    "wait_max": "longest wait (s)",
    "jct_mean": "mean job completion time (s)",
    "bsld_mean": "mean bounded slowdown",
    "utilization": "GPU utilisation (%)",
    "makespan": "makespan (s)",
    "fairness": "Jain index of slowdowns",
}
WIDE: Final = 10.0
"""A metric whose largest value is more than so many times its smallest gets a logarithmic axis."""


def draw(report: Mapping[str, Any], directory: Path, metrics: Collection[str] = tuple(LABELS)) -> list[Path]:
    """Write the plots of these metrics; returns their paths. A metric that no window has is left out.

    Raises:
        EvaluationError: a file cannot be written.
    """
    written = []
    names = list(report["policies"])
    for metric, label in LABELS.items():
        values = [[v for w in report["windows"] if (v := w["policies"][name][metric]) is not None] for name in names]
        flat = [value for column in values for value in column]
        if not flat or metric not in metrics:
            continue
        figure = Figure(figsize=(2.0 + 0.9 * len(names), 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.boxplot(values, showmeans=True, meanprops={"marker": "D", "markersize": 4})
        axes.set_xticks(range(1, len(names) + 1), names, rotation=35, ha="right")
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        positive = [value for value in flat if value > 0]
        if positive and max(positive) > WIDE * min(positive):
            # Zeros (windows without any wait) stay visible at the foot of the axis.
            axes.set_yscale("log" if len(positive) == len(flat) else "symlog", **_threshold(positive, flat))
        meta, windows = report["meta"], report["windows"]
        axes.set_title(
            f"{meta['trace']['name']} on {meta['cluster']['text']}\n"
            f"{len(windows)} windows of {windows[0]['jobs']} jobs, estimates {meta['settings']['estimates']}; ◆ mean",
            fontsize=9,
        )
        path = directory / f"{metric}.png"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120)
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error
        written.append(path)
    return written


def _threshold(positive: list[float], flat: list[float]) -> dict[str, float]:
    """Where a symlog axis becomes linear: below the smallest value that is not 0."""
    return {} if len(positive) == len(flat) else {"linthresh": max(min(positive), max(positive) * 1e-6)}

"""docs/results/*.csv: every number of the results, the same bytes for the same results.

A sheet is in long form: a row holds one number with its interval, or the metrics of one policy.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rltuned.lab.evaluate.bootstrap import Comparison
from rltuned.lab.evaluate.evaluation_settings import PLAIN, STRICT
from studies import clusters
from studies.clusters import RealCluster
from studies.paper import Measured, tables
from studies.tables import Together

METRICS: Final = ("wait_mean", "wait_p99", "wait_max", "bsld_mean", "jct_mean", "utilization", "fairness")

Cell = str | float | int | None


@dataclass(frozen=True)
class Sheet:
    """A CSV file beside the page."""

    name: str
    titles: Sequence[str]
    rows: Iterable[Sequence[Cell]]

    @cached_property
    def text(self) -> str:
        """CSV with six significant digits; an empty cell where there is no number."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.titles)
        writer.writerows([_written(cell) for cell in row] for row in self.rows)
        return out.getvalue()


def _written(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.6g}" if np.isfinite(cell) else ""
    return "" if cell is None else str(cell)


ABOUT: Final = {
    "policies": "each policy on each protocol.",
    "comparisons": "each model over each plain rule, and over the shipped model.",
    "clusters": "the A/Bs on real clusters: together, by window, by account and by size of the jobs. `points`: the "
    "simulator's ratio less the real one, in per cent.",
    "paper": "numbers of the paper, and ours. `studies/paper.toml` says where each stands and how the protocols "
    "differ.",
}
"""What the sheets hold, by name; for the page."""


def sheets(of: Mapping[str, Together], real: Mapping[str, RealCluster]) -> Iterator[Sheet]:
    """Make all of them. `of`: results by protocol. `real`: A/Bs by name."""
    shown = {name: one for name, one in of.items() if not one.protocol.paper}
    compared = ("ratio", "lo", "hi")
    yield Sheet("policies", ("protocol", "policy", "kind", "windows", *METRICS), _policies(shown))
    yield Sheet("comparisons", ("protocol", "policy", "over", "metric", *compared), _comparisons(shown))
    over = f"over_{clusters.AGAINST}"
    yield Sheet("clusters", ("run", "part", "metric", "arm", over, "lo", "hi", "points"), _clusters(real))
    yield Sheet("paper", ("table", "row", "column", "whose", "value", "lo", "hi"), _paper({**of, **real}))


def _numbers(found: Comparison) -> tuple[float | None, float | None, float | None]:
    return found.ratio, found.lo, found.hi


def _policies(of: Mapping[str, Together]) -> Iterator[Sequence[Cell]]:
    for name, one in of.items():
        for label in (STRICT, *PLAIN, *one.parts):
            kind = "rule" if label not in one.parts else str(one.parts[label])
            means = (one.mean(label, metric) for metric in METRICS)
            yield name, label, kind, one.windows, *means


def _comparisons(of: Mapping[str, Together]) -> Iterator[Sequence[Cell]]:
    for name, one in of.items():
        for label in one.parts:
            for other in (STRICT, *PLAIN, "rl"):
                if other == label or other not in one.labels:
                    continue
                for metric in ("wait_mean", "bsld_mean"):
                    yield name, label, other, metric, *_numbers(one.ratio(label, other, metric))


def _clusters(found: Mapping[str, RealCluster]) -> Iterator[Sequence[Cell]]:
    for name, cluster in found.items():
        arms = [arm for arm in cluster.arms if arm != clusters.AGAINST]
        for arm in arms:
            for metric in cluster.ratios[arm]:
                points = cluster.prediction.get(arm, {}).get(metric, {}).get("points")
                yield name, "all", metric, arm, *_numbers(cluster.ratio(arm, clusters.AGAINST, metric)), points
        for run in cluster.runs if len(cluster.runs) > 1 else ():
            yield from _over(name, clusters.window(run), run["arms"], arms)
        for of, groups in cluster.groups.items():
            for group, values in groups.items():
                waits = {arm: {"wait_mean": values[arm]["wait_mean"]} for arm in (*arms, clusters.AGAINST)}
                yield from _over(name, f"{of} {group}", waits, arms)


def _over(name: str, part: str, of: Mapping[str, Mapping[str, float]], arms: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Arms of a part over the arm without rltuned; no interval."""
    for arm in arms:
        for metric, base in of[clusters.AGAINST].items():
            value = of[arm].get(metric)
            if isinstance(value, int | float) and isinstance(base, int | float):
                yield name, part, metric, arm, value / base if base else None, None, None, None


def _paper(measured: Mapping[str, Measured]) -> Iterator[Sequence[Cell]]:
    for table in tables():
        for line in table.rows:
            for column, value in zip(table.columns, line["values"], strict=True):
                yield table.name, line["name"], column["name"], "the paper", float(value), None, None
                for variant in table.variants:
                    found = table.beside(column, line, variant).of(measured)
                    numbers = (None, None, None) if found is None else _numbers(found)
                    yield table.name, line["name"], column["name"], table.named(line, variant), *numbers

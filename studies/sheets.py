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

from rltuned.evaluate.bootstrap import Comparison
from rltuned.evaluate.evaluation_settings import PLAIN, STRICT
from studies import clusters
from studies.catalogue import GUARD, LONGEST, NETWORK, Part, Study
from studies.clusters import RealCluster
from studies.paper import Measured, tables
from studies.tables import Together, verdict

LONG_WAIT: Final = "windows_with_long_wait"
"""Share of the windows in which the longest wait is above `LONGEST` times FIFO's."""
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


@dataclass(frozen=True)
class Target:
    """A number that is aimed at, and what was measured."""

    protocol: str
    model: str
    metric: str
    over: str
    measured: Comparison
    most: float

    @property
    def verdict(self) -> str:
        """Whether it is met, and whether the interval says the same."""
        return verdict(self.measured, self.most)


def targets(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[Target]:
    """Those of all models that have been measured."""
    for name, one in of.items():
        for study in studies:
            label = study.label
            if study.protocol != one.protocol or study.part is not Part.MAIN or label not in one.parts:
                continue
            aims = [
                ("wait_mean", one.best, one.protocol.wait),
                ("bsld_mean", one.best, GUARD),
                ("wait_p99", one.best, GUARD),
                ("wait_mean", "multifactor", one.protocol.multifactor),
            ]
            for metric, over, most in aims:
                if most is not None:
                    yield Target(name, label, metric, over, one.ratio(label, over, metric), most)
            share = one.longer(label) / one.windows
            yield Target(name, label, LONG_WAIT, "fifo", Comparison(share, share, share), 0.0)


ABOUT: Final = {
    "policies": f"each policy on each protocol. `{LONG_WAIT}`: the share of windows whose longest wait is above "
    f"{LONGEST} times FIFO's.",
    "comparisons": "each model over each plain rule, over the shipped model, and over its network alone.",
    "targets": "what is aimed at, and whether it is met.",
    "clusters": "the A/Bs on real clusters: together, by seed, by user and by size of the jobs. `points`: the "
    "simulator's ratio less the real one, in per cent.",
    "paper": "numbers of the paper, and ours. `studies/paper.toml` says where each stands and how the protocols "
    "differ.",
}
"""What the sheets hold, by name; for the page."""


def sheets(of: Mapping[str, Together], real: Mapping[str, RealCluster], studies: Sequence[Study]) -> Iterator[Sheet]:
    """Make all of them. `of`: results by protocol. `real`: A/Bs by name."""
    shown = {name: one for name, one in of.items() if not one.protocol.paper}
    compared = ("ratio", "lo", "hi")
    yield Sheet("policies", ("protocol", "policy", "kind", "windows", *METRICS, LONG_WAIT), _policies(shown))
    yield Sheet("comparisons", ("protocol", "policy", "over", "metric", *compared), _comparisons(shown))
    yield Sheet(
        "targets", ("protocol", "model", "metric", "over", *compared, "target", "verdict"), _targets(shown, studies)
    )
    over = f"over_{clusters.AGAINST}"
    yield Sheet("clusters", ("run", "part", "metric", "arm", over, "lo", "hi", "points"), _clusters(real))
    yield Sheet("paper", ("table", "row", "column", "whose", "value", "lo", "hi"), _paper({**of, **real}))


def _numbers(found: Comparison) -> tuple[float | None, float | None, float | None]:
    return found.ratio, found.lo, found.hi


def _targets(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[Sequence[Cell]]:
    for one in targets(of, studies):
        yield one.protocol, one.model, one.metric, one.over, *_numbers(one.measured), one.most, one.verdict


def _policies(of: Mapping[str, Together]) -> Iterator[Sequence[Cell]]:
    for name, one in of.items():
        for label in (STRICT, *PLAIN, *one.parts):
            kind = "rule" if label not in one.parts else str(one.parts[label])
            means = (one.mean(label, metric) for metric in METRICS)
            yield name, label, kind, one.windows, *means, one.longer(label) / one.windows


def _comparisons(of: Mapping[str, Together]) -> Iterator[Sequence[Cell]]:
    for name, one in of.items():
        for label in one.parts:
            for other in (STRICT, *PLAIN, "rl", NETWORK):
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
            yield from _over(name, f"seed {run['seed']}", run["arms"], arms)
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

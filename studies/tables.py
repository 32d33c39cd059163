"""The results of one protocol side by side: ratios with intervals."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rltuned.core.errors import EvaluationError
from rltuned.core.tables import Floats
from rltuned.lab.evaluate.bootstrap import Comparison, compare, counts
from rltuned.lab.evaluate.evaluation_settings import LEARNED, PLAIN
from rltuned.lab.evaluate.window_metrics import COMPARED
from studies.catalogue import Part, Protocol, Study
from studies.kept import read_report
from studies.peers import PEERS


@dataclass(frozen=True)
class Together:
    """All results of a protocol: the same windows, each study's learned policy under its label."""

    protocol: Protocol
    reports: Mapping[str, Mapping[str, Any]]
    """By the name of the study; the main one is there."""
    parts: Mapping[str, Part]
    """Of each label that is not a plain rule."""
    values: Mapping[str, Mapping[str, Floats]]
    """By label and metric, (W,); NaN where a window has none."""
    seconds: Mapping[str, float]
    """By label: for a window, of the machine that made the result."""

    @property
    def labels(self) -> Collection[str]:
        """Of all that was measured."""
        return self.values.keys()

    @property
    def main(self) -> Mapping[str, Any]:
        """The report with the plain rules."""
        return self.reports[self.protocol.name]

    @property
    def windows(self) -> int:
        """How many."""
        return len(self.main["windows"])

    @cached_property
    def best(self) -> str:
        """The plain rule of the least mean wait over these windows."""
        return min(PLAIN, key=lambda rule: self.mean(rule, "wait_mean"))

    def mean(self, label: str, metric: str) -> float:
        """Over the windows that have it; infinite when none has."""
        found = self.values[label][metric]
        return float(np.nanmean(found)) if np.isfinite(found).any() else float("inf")

    def ratio(self, label: str, other: str, metric: str = "wait_mean") -> Comparison:
        """Mean over mean, with its interval (`rltuned.lab.evaluate.bootstrap`)."""
        return compare(self.values[label][metric], self.values[other][metric], self._drawn)

    @cached_property
    def _drawn(self) -> Floats:
        return counts(self.windows, int(self.main["meta"]["seed"]))


def together(protocol: Protocol, studies: Sequence[Study], results: Path) -> Together | None:
    """The results of a protocol that are there; None without the main one.

    Raises:
        EvaluationError: a file cannot be read, or two are about different windows.
    """
    reports: dict[str, Mapping[str, Any]] = {}
    parts: dict[str, Part] = {}
    values: dict[str, Mapping[str, Floats]] = {}
    seconds: dict[str, float] = {}
    for study in studies:
        path = results / f"{study.name}.json"
        if study.protocol != protocol or not path.exists():
            continue
        report = read_report(path)
        if not reports and study.part is not Part.MAIN:
            return None
        same = [_same(report), *map(_same, reports.values())]
        if any(other != same[0] for other in same):
            raise EvaluationError(
                f"{path}: is about other windows than the rest of {protocol.name}: `make results` again"
            )
        reports[study.name] = report
        for name, label in study.labels.items():
            seconds[label] = report["policies"][name]["seconds"]
            if name in (*LEARNED, *PEERS):
                parts[label] = study.part
            values[label] = {metric: _column(report, name, metric) for metric in COMPARED}
    return Together(protocol, reports, parts, values, seconds) if reports else None


def _same(report: Mapping[str, Any]) -> tuple[Any, ...]:
    meta = report["meta"]
    return (
        meta["trace"]["sha256"],
        meta["cluster"]["sha256"],
        meta["settings"]["estimates"],
        meta["seed"],
        [(window["start"], window["jobs"]) for window in report["windows"]],
    )


def _column(report: Mapping[str, Any], name: str, metric: str) -> Floats:
    # Results that were made before a metric existed do not have it.
    found = [window["policies"][name].get(metric) for window in report["windows"]]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


# --- for people


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def heading(titles: Sequence[str], numbers: int) -> list[str]:
    """The first two lines of a table whose last `numbers` columns hold numbers."""
    left = len(titles) - numbers
    return [row(titles), "|" + " --- |" * left + " ---: |" * numbers]


def ratio_text(compared: Comparison, digits: int = 3, *, interval: bool = True) -> str:
    """0.912 [0.881, 0.953]."""
    if compared.ratio is None:
        return "–"
    if not interval or (compared.lo is None and compared.hi is None):
        return f"{compared.ratio:.{digits}f}"
    ends = [f"{end:.{digits}f}" if end is not None else "?" for end in (compared.lo, compared.hi)]
    return f"{compared.ratio:.{digits}f} [{', '.join(ends)}]"


def number(value: float, digits: int = 0) -> str:
    """With thousands separated."""
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"

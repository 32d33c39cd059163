"""The part of the page that stands beside the RLTune paper: its cells from paper.toml, ours from the kept results."""

import enum
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.bootstrap import Comparison
from studies import clusters
from studies.catalogue import Study
from studies.tables import heading, number, ratio_text, row

CELLS: Final = Path(__file__).with_name("paper.toml")
BATCHES: Final = 10
"""Of 256 jobs, whose scheduling time Table 9 gives."""

_DIGITS: Final = {"bsld_mean": 1, "utilization": 1}
"""Decimals of a metric; the others are whole seconds."""

_INTRODUCTION: Final = """\
RLTune: Dongare et al., "Hybrid Learning and Optimization-Based Dynamic Scheduling for DL Workloads on Heterogeneous GPU
Clusters", SoCC'25, doi 10.1145/3772052.3772257; code: github.com/dshruti20/RLTune. Two of its tables stand here, others
in [paper.csv](results/paper.csv). –: the paper has no number. Below each of its rows are ours.

Ours are other windows of the same traces. The paper's row of FIFO on Philly comes out again only without backfill and
with worst fit (*strict*), while its learned policy places by best fit. In the paper's code WFP3 and UNICEP are
inverted, multifactor is the smallest GPU count first, and "utilisation" counts busy nodes of 8 GPUs. Run times are
known in all tables but Table 8. The paper's Tables 6 and 7 and Figs. 10 to 16 are not here: they compare training from
several base policies, which this project no longer does."""
SHOWN: Final = ("Table 9", "Figs. 18 and 19")
"""Tables of the paper that stand on the page; the others are in its data."""


class Kind(enum.StrEnum):
    """What a number says."""

    VALUE = "value"
    LESS = "less"
    """By how many % the metric is below the other policy's."""
    MORE = "more"
    """By how many % it is above."""
    MINUTES = "minutes"
    SECONDS = "seconds"
    """That a machine takes for `BATCHES` windows."""


class Measured(Protocol):
    """Results by label: of a protocol of the catalogue, or of an A/B."""

    @property
    def labels(self) -> Collection[str]:
        """Of all that was measured."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """By label: for a window."""
        ...

    def mean(self, label: str, metric: str) -> float:
        """Over the windows or seeds."""
        ...

    def ratio(self, label: str, other: str, metric: str = "wait_mean") -> Comparison:
        """Mean over mean."""
        ...


@dataclass(frozen=True)
class Ours:
    """What stands beside a cell of the paper."""

    protocol: str
    label: str
    kind: Kind
    metric: str = ""
    over: str = ""

    def of(self, measured: Mapping[str, Measured]) -> Comparison | None:
        """The number, with its interval where it compares; None where there is no result."""
        found = measured.get(self.protocol)
        if found is None or not {self.label, self.over or self.label} <= set(found.labels):
            return None
        match self.kind:
            case Kind.VALUE:
                return Comparison(found.mean(self.label, self.metric), None, None)
            case Kind.MINUTES:
                return Comparison(found.mean(self.label, self.metric) / 60.0, None, None)
            case Kind.SECONDS:
                return Comparison(BATCHES * found.seconds[self.label], None, None)
            case Kind.LESS | Kind.MORE:
                return _percent(found.ratio(self.label, self.over, self.metric), less=self.kind is Kind.LESS)

    def text(self, measured: Mapping[str, Measured]) -> str:
        """The cell of a table; empty where there is no result."""
        found = self.of(measured)
        if found is None or found.ratio is None:
            return "" if found is None else "–"
        digits = {Kind.VALUE: _DIGITS.get(self.metric, 0), Kind.SECONDS: 2}.get(self.kind, 1)
        if found.lo is None or found.hi is None:
            return number(found.ratio, digits)
        return ratio_text(found, digits)

    def given_by(self, studies: Sequence[Study]) -> set[str]:
        """The names of the results that it needs; empty when no study has one of its policies."""
        if self.protocol.startswith(clusters.PREFIX):
            return {self.protocol}
        of = [study for study in studies if study.protocol.name == self.protocol]
        wanted = [label for label in (self.label, self.over) if label]
        names = [{study.name for study in of if label in study.labels.values()} for label in wanted]
        return set().union(*names) if all(names) else set()


def _percent(compared: Comparison, *, less: bool) -> Comparison:
    """By how many % a ratio is below or above 1; its interval in ascending order."""
    sign = -1.0 if less else 1.0
    mean, *ends = (
        None if end is None else sign * 100.0 * (end - 1.0) for end in (compared.ratio, compared.lo, compared.hi)
    )
    known = sorted(end for end in ends if end is not None)
    return Comparison(mean, *(known if len(known) == len(ends) else (None, None)))


@dataclass(frozen=True)
class Table:
    """A table or a figure of the paper, as paper.toml has it."""

    name: str
    title: str
    source: str
    differs: str
    """How its protocol and ours differ."""
    ours: Mapping[str, str]
    columns: Sequence[Mapping[str, str]]
    rows: Sequence[Mapping[str, Any]]
    variants: Sequence[Mapping[str, str]]

    def beside(self, column: Mapping[str, str], line: Mapping[str, Any], variant: Mapping[str, str]) -> Ours:
        """Ours of a cell."""
        merged = {**self.ours, **column, **line, **variant}
        of = {name: merged[name] for name in Ours.__dataclass_fields__ if name in merged}
        return Ours(**{**of, "kind": Kind(of["kind"])})

    def named(self, line: Mapping[str, Any], variant: Mapping[str, str]) -> str:
        """A variant of a row, in words."""
        return variant["name"].format_map({**self.ours, **line})


def tables(path: Path = CELLS) -> list[Table]:
    """All of them.

    Raises:
        EvaluationError: the file cannot be read, or a row has not a value for each column.
    """
    try:
        found = [Table(**table) for table in tomllib.loads(path.read_text(encoding="utf-8"))["tables"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(f"{path}: cannot be read: {error!r}") from error
    for table in found:
        for line in table.rows:
            if len(line["values"]) != len(table.columns):
                raise EvaluationError(f"{path}: {table.name}, {line['name']}: not a value for each column")
    return found


def paper(measured: Mapping[str, Measured]) -> Iterator[str]:
    """The paper's main tables beside ours. `measured`: results by the name of the protocol or of the A/B."""
    yield from ["## Beside the RLTune paper", "", _INTRODUCTION]
    for table in tables():
        if table.name in SHOWN:
            yield from ["", f"### {table.name}: {table.title}", "", table.differs, "", *_beside(table, measured)]


def _beside(table: Table, measured: Mapping[str, Measured]) -> Iterator[str]:
    """The paper's rows, ours below each."""
    yield from heading(("", *(column["name"] for column in table.columns)), len(table.columns))
    for line in table.rows:
        theirs = line["values"]
        if not all(map(math.isnan, theirs)):
            yield row((f"**{line['name']}**, the paper", *("–" if math.isnan(v) else f"{v:,}" for v in theirs)))
        for variant in table.variants:
            cells = (table.beside(column, line, variant).text(measured) for column in table.columns)
            yield row((f"{line['name']}, ours: {table.named(line, variant)}", *cells))

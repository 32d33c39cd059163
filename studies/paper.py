"""The part of the page that stands beside the RLTune paper: its cells from paper.toml, ours from the kept results."""

import enum
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rltuned.errors import EvaluationError
from rltuned.evaluate.bootstrap import Comparison
from rltuned.evaluate.settings import PLAIN, STRICT
from studies import clusters
from studies.catalogue import (
    BASES,
    NETWORK,
    PAPER_PHILLY,
    RAW_BASE,
    RAW_COLUMNS,
    STRICT_TARGETS,
    Part,
    Study,
    base_label,
)
from studies.curves import FIGURE, Curve, in_words
from studies.tables import Together, heading, number, ratio_text, row, verdict

CELLS: Final = Path(__file__).with_name("paper.toml")
BATCHES: Final = 10
"""Of 256 jobs, whose scheduling time Table 9 gives."""

_DIGITS: Final = {"bsld_mean": 1, "utilization": 1}
"""Decimals of a metric; the others are whole seconds."""

_PLACEMENT: Final = (
    "[docs/placement.md](placement.md) has what it gains where GPU types differ, and why it does nothing where they do "
    "not."
)
_INTRODUCTION: Final = """\
RLTune: Dongare et al., "Hybrid Learning and Optimization-Based Dynamic Scheduling for DL Workloads on Heterogeneous GPU
Clusters", SoCC'25, doi 10.1145/3772052.3772257, arXiv 2512.10271; the authors' code is github.com/dshruti20/RLTune.
Its numbers are in `studies/paper.toml`, each with the table or the sentence that it is from. –: it has none, or only
in a plot. Below each of its rows are ours. `NAME` …: several studies whose names begin so
(`make results RESULTS="--only NAME"`).

**How all protocols differ.** Ours are other windows of the same traces. The paper says that it backfills (§ 4.1), but
only Table 8 is marked so, and its Philly row of FIFO comes out again only without backfill and with worst fit; its
learned policy places by best fit. So most tables have our numbers twice: over the rule as the paper runs it (*strict*:
no backfill, worst fit) and over the rule with the EASY backfill and best fit that our policies have. The second says
what learning gives. In the paper's code WFP3 and UNICEP are inverted, its multifactor is the smallest GPU count first,
and "utilisation" counts busy nodes of 8 GPUs. All run times are true where nothing else is said."""


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

    def text(self, of: Mapping[str, Measured]) -> str | None:
        """The cell; None where there is no result."""
        found = of.get(self.protocol)
        if found is None or not {self.label, self.over or self.label} <= set(found.labels):
            return None
        match self.kind:
            case Kind.VALUE:
                return number(found.mean(self.label, self.metric), _DIGITS.get(self.metric, 0))
            case Kind.MINUTES:
                return number(found.mean(self.label, self.metric) / 60.0, 1)
            case Kind.SECONDS:
                return number(BATCHES * found.seconds[self.label], 2)
            case Kind.LESS | Kind.MORE:
                return _percent(found.ratio(self.label, self.over, self.metric), less=self.kind is Kind.LESS)

    def given_by(self, studies: Sequence[Study]) -> set[str]:
        """The names of the results that it needs; empty when no study has one of its policies."""
        if self.protocol.startswith(clusters.PREFIX):
            return {self.protocol}
        of = [study for study in studies if study.protocol.name == self.protocol]
        wanted = [label for label in (self.label, self.over) if label]
        names = [{study.name for study in of if label in study.labels.values()} for label in wanted]
        return set().union(*names) if all(names) else set()


def _percent(compared: Comparison, *, less: bool) -> str:
    if compared.ratio is None:
        return "–"
    sign = -1.0 if less else 1.0
    mean, *ends = (
        None if end is None else sign * 100.0 * (end - 1.0) for end in (compared.ratio, compared.lo, compared.hi)
    )
    known = sorted(end for end in ends if end is not None)
    interval = f" [{known[0]:.1f}, {known[1]:.1f}]" if len(known) == len(ends) else ""
    return f"{mean:.1f}{interval}"


@dataclass(frozen=True)
class Table:
    """A table or a figure of the paper, as paper.toml has it."""

    name: str
    title: str
    source: str
    differs: str
    """How its protocol and ours differ."""
    ours: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[Mapping[str, str]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    variants: Sequence[Mapping[str, str]] = ()
    curves: Mapping[str, Any] = field(default_factory=dict)

    def beside(self, column: Mapping[str, str], line: Mapping[str, Any], variant: Mapping[str, str]) -> Ours:
        """Ours of a cell."""
        merged = {**self.ours, **column, **line, **variant}
        known = {name: value for name, value in merged.items() if name != "values"}
        of = {name: known[name].format_map(known) for name in Ours.__dataclass_fields__ if name in known}
        return Ours(**{**of, "kind": Kind(of["kind"])})


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


def paper(
    of: Mapping[str, Together],
    real: Mapping[str, Measured],
    curves: Sequence[Curve],
    studies: Sequence[Study],
    images: str,
) -> Iterator[str]:
    """The paper's tables and figures.

    Args:
        of: results by the name of the protocol.
        real: results of A/Bs on real clusters, by name.
        curves: learning curves that are kept.
        studies: all that there are.
        images: where pictures are, from the page.
    """
    yield from ["## The paper's tables and figures", "", _INTRODUCTION]
    measured: dict[str, Measured] = {**of, **real}
    for table in tables():
        yield from ["", f"### {table.name}: {table.title}", ""]
        yield f"The paper: {table.source}. {table.differs}"
        if table.rows:
            yield from ["", *_beside(table, measured, studies)]
        if table.curves:
            yield from ["", *_curves(table, curves, images)]
    usual = {name: one for name, one in of.items() if not one.protocol.paper}
    own = [study for study in studies if not study.protocol.paper]
    yield from ["", "## More of what the paper is about", ""]
    if PAPER_PHILLY in of:
        yield from ["### Over strict FIFO on Philly", "", _strict_targets(of[PAPER_PHILLY]), ""]
    yield from ["### Trained with one base policy, tested against another", "", *_bases(usual, own), ""]
    yield from ["### RLScheduler and SchedInspector", "", *_peers(usual, own), ""]
    yield from ["### With and without the integer program (§ 5.1)", "", _PLACEMENT, ""]
    yield from ["### Raw and sampled features (§ 5.1)", "", *_raw(usual, own)]


def _beside(table: Table, measured: Mapping[str, Measured], studies: Sequence[Study]) -> Iterator[str]:
    """The paper's rows, ours below each."""
    yield from heading(("", *(column["name"] for column in table.columns)), len(table.columns))
    for line in table.rows:
        theirs = line["values"]
        if not all(map(math.isnan, theirs)):
            yield row((f"**{line['name']}**, the paper", *("–" if math.isnan(v) else f"{v:,}" for v in theirs)))
        for variant in table.variants:
            cells = [table.beside(column, line, variant) for column in table.columns]
            texts = [cell.text(measured) for cell in cells]
            label = variant["name"].format_map({**table.ours, **line})
            name = f"{line['name']}, ours: {label}"
            if None in texts:
                name += f"; not run yet: {_lacking(cells, measured, studies)}"
            yield row((name, *(text or "" for text in texts)))


def _lacking(cells: Sequence[Ours], measured: Mapping[str, Measured], studies: Sequence[Study]) -> str:
    """Which results give the cells that have none: one name, or how several begin, as `--only` takes it."""
    protocol = cells[0].protocol
    if protocol.startswith(clusters.PREFIX):
        return f"`testbed ab`, kept as {protocol}.json"
    there = {study.name for study in studies if protocol in measured and _has(measured[protocol], study)}
    names = set().union(*(cell.given_by(studies) for cell in cells)) - there
    return f"`{names.pop()}`" if len(names) == 1 else f"`{protocol}` …"


def _has(one: Measured, study: Study) -> bool:
    return set(study.labels.values()) <= set(one.labels)


def _curves(table: Table, curves: Sequence[Curve], images: str) -> Iterator[str]:
    """The picture of its learning curves, and the same in words."""
    found, lacking = chosen(table, curves)
    metric = table.curves["metric"]
    if lacking:
        names = ", ".join(f"`{name}`" for name in lacking)
        yield f"No learning curves are kept yet of {names}: `studies/models/train.sh` keeps those of what it trains."
    if found:
        yield f"{metric} over the best plain rule's: {'; '.join(in_words(curve, metric) for curve in found)}."
        yield ""
        yield f"![learning curves]({images}/{FIGURE}/{picture_of(table)})"


def chosen(table: Table, curves: Sequence[Curve]) -> tuple[list[Curve], list[str]]:
    """Of the curves that a figure shows: those that are kept, and the names of the others."""
    kept = {curve.name: curve for curve in curves if curve.of(table.curves["metric"])}
    wanted = table.curves["runs"]
    return [kept[name] for name in wanted if name in kept], [name for name in wanted if name not in kept]


def picture_of(table: Table) -> str:
    """Name of the file with its learning curves."""
    return "".join(letter if letter.isalnum() else "-" for letter in table.name.lower()) + ".png"


def _strict_targets(one: Together) -> str:
    ratios = {metric: one.ratio("rl", STRICT, metric) for metric in STRICT_TARGETS}
    targets = [
        f"{metric.removesuffix('_mean')} ≤ {most:.2f} of {STRICT}: {ratio_text(ratios[metric])}, "
        f"{verdict(ratios[metric], most)}"
        for metric, most in STRICT_TARGETS.items()
    ]
    return f"Targets of `rl` on {PAPER_PHILLY}: {'; '.join(targets)}."


def _raw(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "The paper samples 8 of its features by a heuristic from cycle to cycle; here the 8 are always the same "
        "(docs/features.md, decision 0010). Compared are two networks "
        f"that correct no rule, trained alike with the base policy {RAW_BASE} (`rltuned train --rule {RAW_BASE} "
        f"--columns …`): one sees all 8, the other only what a job says of "
        f"itself ({', '.join(RAW_COLUMNS)}). Mean wait; both without rollouts."
    )
    yield ""
    yield from heading(
        ("protocol", "8 columns over the best rule", "raw over the best rule", "raw over 8 columns", "slowdown"), 4
    )
    for study in studies:
        if study.part is not Part.RAW:
            continue
        one, sampled = of.get(study.protocol.name), base_label(RAW_BASE)
        if one is None or not {study.label, sampled} <= one.parts.keys():
            yield row((study.protocol.name, _absent(True), *[""] * 3))
            continue
        ratios = (
            one.ratio(sampled, one.best),
            one.ratio(study.label, one.best),
            one.ratio(study.label, sampled),
            one.ratio(study.label, sampled, "bsld_mean"),
        )
        yield row((study.protocol.name, *map(ratio_text, ratios)))


def _bases(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "Mean wait of the model over that of each rule, without rollouts. The shipped model starts from SAF; the paper "
        f"trains with {', '.join(BASES)} (`rltuned train --rule`). With SJF the network corrects the rule; with "
        "the others it replaces it."
    )
    for protocol in dict.fromkeys(study.protocol for study in studies if study.part is Part.BASE):
        one = of.get(protocol.name)
        yield from ["", *heading((f"{protocol.name}: trained with", *PLAIN), len(PLAIN))]
        for label, title in [(NETWORK, "saf (shipped)"), *((base_label(base), base) for base in BASES)]:
            if one is None or label not in one.parts:
                yield row((title, _absent(title in BASES), *[""] * (len(PLAIN) - 1)))
            else:
                yield row((title, *(ratio_text(one.ratio(label, rule)) for rule in PLAIN)))


def _peers(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    yield (
        "Trained on our simulator with their own hyper-parameters, 8 minutes on one core each; `general` took six to "
        "nine (docs/peers.md). Theirs are served without rollouts, `rl` with them. Mean wait over that of the best "
        "plain rule, and of `rl` over theirs."
    )
    yield ""
    yield from heading(("protocol", "peer", "over the best rule", "slowdown over the best rule's", "`rl` over it"), 3)
    for study in studies:
        if study.part is not Part.PEER:
            continue
        one = of.get(study.protocol.name)
        if one is None or study.label not in one.parts:
            yield row((study.protocol.name, study.label, _absent(True), "", ""))
            continue
        ratios = (
            one.ratio(study.label, one.best),
            one.ratio(study.label, one.best, "bsld_mean"),
            one.ratio("rl", study.label),
        )
        yield row((study.protocol.name, study.label, *map(ratio_text, ratios)))


def _absent(training: bool) -> str:
    return "not trained or not run here yet" if training else "not run yet"

"""docs/results.md: every number from the results, the same bytes for the same results."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.config import DEFAULT_MODEL
from rltuned.errors import EvaluationError
from rltuned.evaluate import plots
from rltuned.evaluate.card import card
from rltuned.evaluate.settings import PLAIN, STRICT
from rltuned.policy import files
from studies import clusters, curves
from studies.catalogue import GUARD, HISTORY, LONGEST, NETWORK, NOISY, TRACE_UNSEEN, Part, Study
from studies.clusters import RealCluster
from studies.curves import Curve
from studies.paper import chosen, paper, picture_of, tables
from studies.tables import Together, heading, number, ratio_text, row, together, verdict

PLOTTED: Final = ("wait_mean", "bsld_mean")
COLUMNS: Final = 120
"""Of a line of prose."""
JUDGED: Final = (Part.MAIN, Part.UNSEEN)
"""Parts whose models have targets."""

_HEAD: Final = """\
# Results

Made by `make results TRACES=DIR` from `studies/results/*.json`; do not edit. [evaluation.md](evaluation.md) says what
the numbers mean and how windows, estimates and intervals are made. All windows are from the last 15 % of each trace,
which no model was trained or chosen on. Rows named *trace unseen* have a model that was trained on the other traces
only. One exception: the jobs of venus-16x8-history are a part of those that the shipped model was trained on; there
only *trace unseen* counts. The best plain rule is the one with the least mean wait over the same windows, chosen after
the fact: harder to beat than any rule that an admin could have chosen before.
A target is *met* when the ratio is at most the target; *not certain*: the 95 % interval reaches over to the other side.
"""

_SITE: Final = """\
The shipped model with rollouts under Slurm's own backfill and placement: mean over mean of `rltuned evaluate`, below 1
rltuned is better, but for GPUs in use. First over the best plain rule: mean wait, mean bounded slowdown, 99th
percentile of wait. Then over Slurm's own order with the usual weights (age, fair share and QOS 10,000, job size and
partition 1,000; [policies](policies.md)): mean wait, slowdown, completion time (JCT), GPUs in use. Nearly all jobs of
`venus` and `pai` name no user, so fair share orders nothing there. *Run times*: all known; estimates with a log-normal
error of σ = 1.5 (about one of three is wrong by more than a factor of 4.5); predicted from finished jobs as the daemon
does it, on a cluster that is busy when a window begins; the users' time limits only. *Unseen*: a model of all other
traces, because the shipped one was trained on these jobs. The time limits of Venus are drawn from its run times
([estimates](estimates.md)), which makes predictions there better than a site's. The plain rules rank on the same
predictions: where they say enough, as there and on HPC2N, smallest area first is as good as the model."""
_REAL: Final = """\
`testbed ab` ([testbed](testbed.md#ab)): the same jobs on clusters of a real Slurm, one for each arm, over Slurm alone
with equal multifactor weights. Intervals are over blocks of neighbouring jobs: they say how far these jobs decide, not
how far other seeds differ. In brackets: the simulator's ratio less the real one, in points. Aimed at, for `rl` and all
seeds of 24.11 together: mean wait at most 0.50, slowdown 0.35, makespan 1.00, GPUs in use at least 1.00, no seed above
0.95 in wait. [Rollouts](rollout.md#waiting-against-makespan) has what keeps it from that."""
_REAL_ROWS: Final = (
    ("wait_mean", "mean wait"),
    ("wait_p50", "median wait"),
    ("wait_p99", "p99 of wait"),
    ("bsld_mean", "slowdown"),
    ("jct_mean", "completion time"),
    ("makespan", "makespan"),
    ("gpus", "GPUs in use"),
    ("gpus_arriving", "GPUs in use while jobs arrive"),
)
REAL_PLOTTED: Final = "ab-24.11"
"""Whose plots of `testbed ab --plot` are kept beside the others (the paper's Figs. 18 and 19)."""
_OF_EACH_SEED: Final = ("wait_mean", "bsld_mean", "makespan", "gpus")
KNOWN: Final = {"true": "all", NOISY: "σ = 1.5", HISTORY: "predicted", "limit": "users' limits"}
"""What is known of run times, in words, by `Protocol.estimates`."""
README_MARKS: Final = ("<!-- results: make pages -->\n", "<!-- end of results -->\n")
"""Between these two lines of README.md stand `site` and `_real_in_short`."""
_IN_SHORT: Final = {
    "wait_mean": "mean wait",
    "bsld_mean": "slowdown",
    "wait_p99": "99th percentile of wait",
    "makespan": "makespan",
    "gpus": "GPUs in use",
}

_NOTHING: Final = """\
**Nothing has been measured yet.** `make results TRACES=DIR` runs the studies (many hours on 2 cores; it goes on where
it was stopped), writes `studies/results/` and makes this page anew. `make results-quick` runs 8 windows of each, into
`build/results-quick`: too few to say anything, enough to see that it works."""


@dataclass(frozen=True)
class Kept:
    """All results that there are."""

    of: Mapping[str, Together]
    """By the name of the protocol."""
    clusters: Mapping[str, RealCluster]
    """A/Bs on real clusters, by name."""
    curves: Sequence[Curve]
    """Learning curves."""

    @property
    def shown(self) -> dict[str, Together]:
        """Those with a table and box plots of their own."""
        return {name: one for name, one in self.of.items() if not one.protocol.paper}


def collect(studies: Sequence[Study], results: Path) -> Kept:
    """The results, as far as there are any.

    Raises:
        EvaluationError: as `together`, `clusters.read` and `curves.read`.
    """
    found = {}
    for protocol in dict.fromkeys(study.protocol for study in studies):
        if (one := together(protocol, studies, results)) is not None:
            found[protocol.name] = one
    return Kept(found, clusters.read(results), curves.read(results))


def page(results: Kept, studies: Sequence[Study], images: str) -> str:
    """The page. `images`: where its box plots are, from the page."""
    lines = [_HEAD]
    of = results.shown
    if not of:
        lines += [_NOTHING, ""]
    else:
        few = sorted({one.windows for one in results.of.values() if one.windows < one.protocol.windows})
        if few:
            lines += [f"**Not results: made of {few[0]} windows only.**", ""]
        lines += ["## What your site would see", "", _SITE, "", *site(of), ""]
        lines += ["## Targets", "", *_targets(of, studies), ""]
    if results.clusters:
        lines += ["## On real clusters", "", _REAL, "", *_real(results.clusters, images), ""]
    if of:
        lines += ["## A model of each trace alone", "", *_own(of), ""]
        for one in of.values():
            lines += [*_protocol(one, studies, images), ""]
    lines += [*paper(results.of, results.clusters, results.curves, studies, images), ""]
    if results.of:
        lines += ["## How to make each again", "", *_made(results.of), ""]
    return "\n".join(_wrapped(lines))


def _wrapped(lines: Sequence[str]) -> Iterator[str]:
    """Prose in lines of at most 120 columns; rows of tables, headings and images stay whole."""
    for line in "\n".join(lines).split("\n"):
        if line.startswith(("|", "#", "!")) or not line:
            yield line
        else:
            indent = "  " if line.startswith("- ") else ""
            yield from textwrap.wrap(
                line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )


def write(results: Kept, studies: Sequence[Study], target: Path, images: Path) -> None:
    """The page, its box plots and its learning curves.

    Raises:
        EvaluationError: matplotlib is not there, or a file cannot be written.
    """
    for name, one in results.shown.items():
        plots.draw(one.merged(), images / name, PLOTTED)
    for table in tables():
        if table.curves and (found := chosen(table, results.curves)[0]):
            curves.draw(found, table.curves["metric"], images / curves.FIGURE / picture_of(table))
    text = page(results, studies, images.relative_to(target.parent).as_posix())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"{target}: cannot be written: {error.strerror or error}") from error


def site(of: Mapping[str, Together]) -> Iterator[str]:
    """What rltuned gives over the best plain rule and over Slurm's own order, under Slurm as it is."""
    titles = "trace, nodes × GPUs", "run times", "best rule", "wait / its", "slowdown", "p99"
    yield from heading((*titles, "wait / Slurm's", "slowdown", "JCT", "GPUs"), 7)
    for one in of.values():
        protocol = one.protocol
        label = TRACE_UNSEEN if protocol.trace.seen else "rl"
        if protocol.easy or label not in one.labels:
            continue
        over_best = [one.ratio(label, one.best, metric) for metric in ("wait_mean", "bsld_mean", "wait_p99")]
        over_slurm = [
            one.ratio(label, "multifactor", metric) for metric in ("wait_mean", "bsld_mean", "jct_mean", "utilization")
        ]
        nodes, _, gpus = protocol.trace.nodes.partition("x")
        yield row(
            (
                f"{protocol.trace.name}, {nodes} × {gpus}{', unseen' if protocol.trace.seen else ''}",
                KNOWN[protocol.estimates],
                f"`{one.best}`",
                ratio_text(over_best[0], 2),
                *(number(found.ratio if found.ratio is not None else np.inf, 2) for found in over_best[1:]),
                ratio_text(over_slurm[0], 2),
                *(number(found.ratio if found.ratio is not None else np.inf, 2) for found in over_slurm[1:]),
            )
        )


def _real(found: Mapping[str, RealCluster], images: str) -> Iterator[str]:
    names = dict(_REAL_ROWS)
    for kept, cluster in found.items():
        arms = [arm for arm in cluster.arms if arm != clusters.AGAINST]
        yield f"{_ran(cluster)}:"
        yield ""
        yield from heading(("over multifactor", *arms), len(arms))
        for metric, title in _REAL_ROWS:
            if any(metric not in cluster.ratios[arm] for arm in arms):
                continue
            yield row((title, *(_real_cell(cluster, arm, metric) for arm in arms)))
        for of, groups in cluster.groups.items():
            for name, group in groups.items():
                base = group[clusters.AGAINST]["wait_mean"]
                cells = (number(group[arm]["wait_mean"] / base if base else np.inf, 3) for arm in arms)
                yield row((f"mean wait by {of}: {name} ({number(group['jobs'])} jobs)", *cells))
        for run in cluster.runs if len(cluster.runs) > 1 else ():
            of = run["arms"]
            for metric in _OF_EACH_SEED:
                base = of[clusters.AGAINST][metric]
                yield row(
                    (f"seed {run['seed']}: {names[metric]}", *(number(of[arm][metric] / base, 3) for arm in arms))
                )
        yield ""
        if kept == REAL_PLOTTED:
            yield f"![waits and slowdowns]({images}/{kept}/waits.png)"
            yield f"![GPUs in use over time]({images}/{kept}/gpus.png)"
            yield ""


def _ran(cluster: RealCluster) -> str:
    release = ", ".join(sorted({str(run["slurm"]) for run in cluster.runs}))
    seeds = ", ".join(str(run["seed"]) for run in cluster.runs)
    each = number(cluster.jobs / max(len(cluster.runs), 1))
    return (
        f"Slurm {release}, {each} jobs, seed {seeds}"
        if len(cluster.runs) < 2
        else (f"Slurm {release}, {each} jobs for each of the seeds {seeds}")
    )


def _real_cell(cluster: RealCluster, arm: str, metric: str) -> str:
    points = cluster.prediction.get(arm, {}).get(metric, {}).get("points")
    return ratio_text(cluster.ratio(arm, clusters.AGAINST, metric)) + ("" if points is None else f" ({points:+.1f})")


def _real_in_short(found: Mapping[str, RealCluster]) -> Iterator[str]:
    if found:
        yield (
            "On real clusters ([`testbed ab`](docs/testbed.md#ab): the same jobs, one cluster with Slurm alone and one "
            "with rltuned), over Slurm alone with equal weights:"
        )
        yield ""
    for cluster in found.values():
        if "rl" not in cluster.arms:
            continue
        ratios = ", ".join(
            f"{title} {number(cluster.arms['rl'][metric] / cluster.arms[clusters.AGAINST][metric], 2)}"
            for metric, title in _IN_SHORT.items()
        )
        yield f"- {_ran(cluster)}: {ratios}."


def with_results(readme: str, results: Kept) -> str:
    """README.md with the table of `site` and, of each release of Slurm, the A/B on real clusters.

    Raises:
        EvaluationError: it has not the two marks.
    """
    first, last = README_MARKS
    before, begun, rest = readme.partition(first)
    _, ended, after = rest.partition(last)
    if not begun or not ended:
        raise EvaluationError(f"README.md: the lines {first.strip()} and {last.strip()} are missing")
    parts = ["\n".join(_wrapped(list(lines))) for lines in (site(results.shown), _real_in_short(results.clusters))]
    return f"{before}{first}\n" + "\n\n".join(part for part in parts if part) + f"\n\n{last}{after}"


def general_card(results: Kept) -> str:
    """models/general.md, from the main result of each protocol.

    Raises:
        EvaluationError: one of them is about other weights than the shipped ones.
    """
    return card(files.info(DEFAULT_MODEL), [one.main for one in results.shown.values()])


def _judged(one: Together, studies: Sequence[Study]) -> Iterator[tuple[Study, bool]]:
    """Studies of a protocol whose models have targets, and whether they have been run."""
    for study in studies:
        if study.protocol == one.protocol and study.part in JUDGED:
            yield study, study.label in one.parts


def _targets(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[str]:
    rows = list(_target_rows(of, studies))
    kinds = ("wait", "slowdown", "p99 of wait", "multifactor", "longest wait")
    yield from heading(("targets met, missed", *kinds), len(kinds))
    for label in dict.fromkeys(cells[1] for cells in rows):
        columns = [[cells[at] for cells in rows if cells[1] == label] for at in range(3, 3 + len(kinds))]
        yield row((label, *map(_met, columns)))
    yield ""
    yield (
        f"Ratios of means. Slowdown and p99 wait: at most {GUARD} of the best plain rule's. Longest wait: windows in "
        f"which it is above {LONGEST} times FIFO's; the target is none."
    )
    yield ""
    yield from heading(
        (
            "protocol",
            "model",
            "best plain rule",
            "wait over its",
            "slowdown",
            "p99 of wait",
            "wait over multifactor's",
            "longest wait",
        ),
        5,
    )
    for cells in rows:
        yield row(cells)


def _met(cells: Sequence[str]) -> str:
    """How many of these cells tell of a target that is met, and how many of one that is missed."""
    words = [_word(cell) for cell in cells if cell not in {"", "–"}]
    met, missed = words.count("met"), words.count("missed")
    return f"{met}, {missed}{f', {len(words) - met - missed} cannot be told' if len(words) > met + missed else ''}"


def _word(cell: str) -> str:
    return "missed" if "missed" in cell else "met" if "met" in cell.rpartition(": ")[2] else ""


def _target_rows(of: Mapping[str, Together], studies: Sequence[Study]) -> Iterator[tuple[str, ...]]:
    for name, one in of.items():
        for study, there in _judged(one, studies):
            label = study.label
            if not there:
                yield name, label, "not trained here yet", *[""] * 5
                continue
            unseen = study.part is Part.UNSEEN
            wait = one.protocol.wait(unseen=unseen)
            multifactor = one.protocol.multifactor(unseen=unseen)
            long = one.longer(label)
            share = 100 * long / one.windows
            yield (
                name,
                label,
                one.best,
                _judge(one, label, one.best, "wait_mean", wait),
                _judge(one, label, one.best, "bsld_mean", GUARD),
                _judge(one, label, one.best, "wait_p99", GUARD),
                "–" if multifactor is None else _judge(one, label, "multifactor", "wait_mean", multifactor),
                f"{long} of {one.windows} windows ({share:.0f} %): {'**missed**' if long else 'met'}",
            )


def _judge(one: Together, label: str, other: str, metric: str, most: float) -> str:
    compared = one.ratio(label, other, metric)
    return f"{ratio_text(compared)} ≤ {most:.2f}: {verdict(compared, most)}"


def _own(of: Mapping[str, Together]) -> Iterator[str]:
    """Whether a model of the trace alone is better than the general one."""
    yield (
        "Mean wait of a model that was trained on this trace alone, over that of the best plain rule and over the "
        "general model's; both without rollouts."
    )
    yield ""
    yield from heading(("protocol", "over the best plain rule", f"over `{NETWORK}`", "slowdown over its"), 3)
    for name, one in of.items():
        own = next((label for label, part in one.parts.items() if part is Part.OWN), None)
        if own is None or NETWORK not in one.parts:
            yield row((name, "not trained or not run here yet", "", ""))
            continue
        ratios = one.ratio(own, one.best), one.ratio(own, NETWORK), one.ratio(own, NETWORK, "bsld_mean")
        yield row((name, *map(ratio_text, ratios)))


def _protocol(one: Together, studies: Sequence[Study], images: str) -> Iterator[str]:
    meta, name = one.main["meta"], one.protocol.name
    yield f"## {name}"
    yield ""
    yield (
        f"{meta['trace']['name']} on {meta['cluster']['text']}, {one.windows} windows of "
        f"{one.protocol.trace.window} jobs, estimates {one.protocol.estimates}, {one.protocol.scheduler}. "
        f"Best plain rule: {one.best}. "
        f"Lower bound of mean completion time: {number(one.main['lower_bound']['larger'] or float('inf'))} s."
    )
    rejected = sum(window["rejected"]["count"] for window in one.main["windows"])
    if rejected:
        yield f"{rejected} jobs of these windows can never run on this cluster and are in no number."
    yield ""
    others = list(dict.fromkeys((one.best, STRICT, "fifo", "multifactor")))
    titles = (
        "policy",
        "wait s",
        "p99 s",
        "longest s",
        "slowdown",
        "completion s",
        "GPU %",
        "fairness",
        *(f"wait over {other}" for other in others),
        "longest > 1.2 FIFO's",
    )
    yield from heading(titles, len(titles) - 1)
    for label in (STRICT, *PLAIN, *one.parts):
        cells = [number(one.mean(label, metric), digits) for metric, digits in _COLUMNS]
        ratios = ["" if other == label else ratio_text(one.ratio(label, other)) for other in others]
        long = f"{100 * one.longer(label) / one.windows:.0f} %"
        yield row((f"**{label}**" if label in one.parts else label, *cells, *ratios, long))
    yield ""
    absent = [
        study.label or "plain rules, strict"
        for study in studies
        if study.protocol == one.protocol
        and study.part is not Part.MAIN
        and not {*study.labels.values()} <= {*one.labels}
    ]
    if absent:
        yield f"Not trained or not run here yet: {'; '.join(absent)}."
        yield ""
    for metric in PLOTTED:
        yield f"![{plots.LABELS[metric]}]({images}/{name}/{metric}.png)"


_COLUMNS: Final = (
    ("wait_mean", 0),
    ("wait_p99", 0),
    ("wait_max", 0),
    ("bsld_mean", 1),
    ("jct_mean", 0),
    ("utilization", 1),
    ("fairness", 2),
)


def _made(of: Mapping[str, Together]) -> Iterator[str]:
    reports = {name: report for one in of.values() for name, report in one.reports.items()}
    codes = {report["meta"]["study"]["inputs"]["code"] for report in reports.values()}
    if len(codes) > 1:
        yield (
            f"**These results come from {len(codes)} different states of the code**: "
            "`make results` runs the older ones again."
        )
        yield ""
    yield "In the directory of the traces, with `studies/models` as `models` there. The digest is that of the weights."
    yield ""
    yield from heading(("study", "revision", "weights", "command"), 0)
    for name, report in reports.items():
        meta = report["meta"]
        weights = sorted({used["model"]["sha256"][:12] for used in meta["policies"].values() if "model" in used})
        yield row((name, f"`{meta['revision'][:12]}`", ", ".join(f"`{w}`" for w in weights), f"`{meta['command']}`"))

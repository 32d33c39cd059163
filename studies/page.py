"""docs/results.md, a summary, and docs/results/*.csv, every number: the same bytes for the same results."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rltuned.config import DEFAULT_MODEL
from rltuned.errors import EvaluationError
from rltuned.policy.files import info
from studies import clusters, plots
from studies.catalogue import GUARD, HISTORY, LONGEST, NOISY, Study
from studies.clusters import RealCluster
from studies.paper import paper
from studies.sheets import ABOUT, LONG_WAIT, Target, sheets, targets
from studies.tables import Together, heading, number, ratio_text, row, together

PLOTTED: Final = {"wait_mean": "wait", "bsld_mean": "slowdown"}
COLUMNS: Final = 120
"""Of a line of prose."""

_HEAD: Final = """\
# Results

Made by `make pages` from `studies/results/*.json`; do not edit. `make results TRACES=DIR` runs the studies.
[Evaluation](evaluation.md) says what the numbers mean and how windows, estimates and intervals are made. Each result
holds the command that made it: `jq -r .meta.command studies/results/NAME.json`.

All windows are from the last 15 % of each trace. The model was neither trained nor chosen on them, but for one row:
these jobs of Venus are in the training part of another trace. The best plain rule is the one with the least mean wait
over the same windows, chosen after the fact: no admin could have chosen better."""
_SITE: Final = """\
The model with rollouts, under Slurm's own backfill and placement. Each number is a ratio of means; below 1
rltuned is better, but for GPUs in use. Slurm's order has age, fair share and QOS at a weight of 10,000, job size and
partition at 1,000. *Run times* is what the policies know: all of them; estimates with a log-normal error of σ = 1.5
(one of three is wrong by more than a factor of 4.5); what the daemon predicts from finished jobs; the users' time
limits. The plain rules rank on the same estimates.

- Nearly all jobs of Venus and PAI name no user, so fair share orders nothing there.
- The time limits of Venus are drawn from its run times. Predictions are better there than at a site.
- Where run times are predicted or are limits, smallest area first is as good as the model on Venus and HPC2N."""
_TARGETS: Final = f"""\
How many targets are met and missed. *Mean wait*: at most 0.86 to 0.95 of the best plain rule's. *Slowdown* and *p99*:
at most {GUARD} of it. *Over Slurm's order*: mean wait at most 0.26 to 0.42. *Longest wait*: in no window above
{LONGEST} times FIFO's. [targets.csv](results/targets.csv) has each of them."""
_REAL: Final = """\
`testbed ab` ([testbed](testbed.md#ab)): the same jobs on clusters of a real Slurm, one cluster for each arm. Ratios
over Slurm alone with equal multifactor weights. Intervals are over blocks of neighbouring jobs. In brackets: the
simulator's ratio less the real one, in per cent. Targets of `rl` on 24.11: mean wait 0.50, slowdown 0.35, makespan
1.00, GPUs in use 1.00. In `rl-utilisation-10`, with a setting of then, GPUs in use weighed ten times as much as waits
and slowdowns. Waits and slowdowns fall. The jobs that want most of the GPUs wait longer, and the last of them end later
([rollouts](rollout.md#waiting-against-makespan))."""
_REAL_ROWS: Final = (
    ("wait_mean", "mean wait"),
    ("wait_p99", "p99 of wait"),
    ("bsld_mean", "slowdown"),
    ("makespan", "makespan"),
    ("gpus", "GPUs in use"),
)
REAL_PLOTTED: Final = "ab-24.11"
"""Whose plots of `testbed ab --plot` are kept beside the others (the paper's Figs. 18 and 19)."""
KNOWN: Final = {"true": "all", NOISY: "σ = 1.5", HISTORY: "predicted", "limit": "users' limits"}
"""What is known of run times, in words, by `Protocol.estimates`."""
README_MARKS: Final = ("<!-- results: make pages -->\n", "<!-- end of results -->\n")
"""Between these two lines of README.md stand `site` in short, and `_real_in_short`."""
_IN_SHORT: Final = {
    "wait_mean": "mean wait",
    "bsld_mean": "slowdown",
    "wait_p99": "p99 of wait",
    "makespan": "makespan",
}

_NOTHING: Final = """\
**Nothing has been measured yet.** `make results TRACES=DIR` runs the studies (many hours on 2 cores; it goes on where
it was stopped). `make results-quick` runs 8 windows of each, into `build/results-quick`: too few to say anything,
enough to see that it works."""


@dataclass(frozen=True)
class Kept:
    """All results that there are."""

    of: Mapping[str, Together]
    """By the name of the protocol."""
    clusters: Mapping[str, RealCluster]
    """A/Bs on real clusters, by name."""

    @property
    def shown(self) -> dict[str, Together]:
        """Those that are not only for the tables of the paper."""
        return {name: one for name, one in self.of.items() if not one.protocol.paper}


def collect(studies: Sequence[Study], results: Path) -> Kept:
    """Read the results, as far as there are any.

    Raises:
        EvaluationError: as `together` and `clusters.read`.
    """
    found = {}
    for protocol in dict.fromkeys(study.protocol for study in studies):
        if (one := together(protocol, studies, results)) is not None:
            found[protocol.name] = one
    return Kept(found, clusters.read(results))


def page(results: Kept, studies: Sequence[Study], images: str) -> str:
    """Make the summary. `images`: where its pictures are, from the page."""
    lines = [_HEAD, ""]
    of = results.shown
    if not of:
        lines += [_NOTHING, ""]
    else:
        few = sorted({one.windows for one in results.of.values() if one.windows < one.protocol.windows})
        if few:
            lines += [f"**Not results: made of {few[0]} windows only.**", ""]
        lines += [*_states(results.of), "## What your site would see", "", *site(of), "", _SITE, ""]
        lines += ["## Targets", "", _TARGETS, "", *_counted(list(targets(of, studies))), ""]
    if results.clusters:
        lines += ["## On real clusters", "", _REAL, "", *_real(results.clusters, images), ""]
    if of:
        lines += ["## Each protocol", "", *_protocols(of, images), ""]
    lines += [*paper({**results.of, **results.clusters}), ""]
    lines += ["## The data", "", "Six significant digits; `lo` and `hi` are the ends of the 95 % interval.", ""]
    lines += [f"- [{name}.csv](results/{name}.csv): {about}" for name, about in ABOUT.items()]
    return "\n".join(_wrapped(lines)) + "\n"


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
    """Write the page, its data and its box plots.

    Raises:
        EvaluationError: matplotlib is not there, or a file cannot be written.
    """
    for name, one in results.shown.items():
        plots.draw(one.merged(), images / name, tuple(PLOTTED))
    beside = target.with_suffix("")
    texts = {target: page(results, studies, images.relative_to(target.parent).as_posix())}
    texts |= {beside / f"{sheet.name}.csv": sheet.text for sheet in sheets(results.of, results.clusters, studies)}
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error


def _states(of: Mapping[str, Together]) -> Iterator[str]:
    """Say when results come from different states of the code."""
    reports = [report for one in of.values() for report in one.reports.values()]
    codes = {report["meta"]["study"]["inputs"]["code"] for report in reports}
    if len(codes) > 1:
        yield f"These results come from {len(codes)} states of the code; `make results` runs the older ones again."
        yield ""
    yield from _former(of)


def _former(of: Mapping[str, Together]) -> Iterator[str]:
    """Say when results are of another model than the one that is shipped."""
    policies = [report["meta"]["policies"] for one in of.values() for report in one.reports.values()]
    models = [each["rl"]["model"]["sha256"] for each in policies if "rl" in each]
    if set(models) - {info(DEFAULT_MODEL).sha256}:
        yield "These numbers are of a model before the one that is shipped now."
        yield ""


def site(of: Mapping[str, Together], *, short: bool = False) -> Iterator[str]:
    """Tell what rltuned gives over Slurm's own order and over the best plain rule, under Slurm as it is.

    `short`: without intervals, for README.md.
    """
    titles = ["trace, nodes × GPUs", "run times", "wait / Slurm's", "slowdown", "wait / best rule's"]
    titles += [] if short else ["best rule", "slowdown", "p99", "GPUs / Slurm's"]
    yield from heading(titles, len(titles) - 2)
    for one in of.values():
        protocol = one.protocol
        if protocol.easy or "rl" not in one.labels:
            continue
        wanted = [("multifactor", "wait_mean"), ("multifactor", "bsld_mean"), (one.best, "wait_mean")]
        wanted += [(one.best, "bsld_mean"), (one.best, "wait_p99"), ("multifactor", "utilization")]
        cells = [
            ratio_text(one.ratio("rl", other, metric), 2, interval=metric == "wait_mean" and not short)
            for other, metric in wanted
        ]
        nodes, _, gpus = protocol.trace.nodes.partition("x")
        name = f"{protocol.trace.name}, {nodes} × {gpus}{', seen in training' if protocol.trace.seen else ''}"
        more = [] if short else [f"`{one.best}`", *cells[3:]]
        yield row((name, KNOWN[protocol.estimates], *cells[:3], *more))


def _counted(found: Sequence[Target]) -> Iterator[str]:
    kinds = {
        "mean wait": [one for one in found if one.metric == "wait_mean" and one.over != "multifactor"],
        "slowdown": [one for one in found if one.metric == "bsld_mean"],
        "p99": [one for one in found if one.metric == "wait_p99"],
        "over Slurm's order": [one for one in found if one.over == "multifactor"],
        "longest wait": [one for one in found if one.metric == LONG_WAIT],
    }
    yield from heading(("met, missed", *kinds), len(kinds))
    for model in dict.fromkeys(one.model for one in found):
        words = [[one.verdict for one in each if one.model == model] for each in kinds.values()]
        yield row((model, *(f"{_count(each, 'met')}, {_count(each, 'missed')}" for each in words)))


def _count(verdicts: Sequence[str], word: str) -> int:
    return sum(found.startswith(word) for found in verdicts)


def _real(found: Mapping[str, RealCluster], images: str) -> Iterator[str]:
    for name, cluster in found.items():
        arms = [arm for arm in cluster.arms if arm != clusters.AGAINST]
        yield f"{_ran(cluster)}:"
        yield ""
        yield from heading(("over multifactor", *arms), len(arms))
        for metric, title in _REAL_ROWS:
            if all(metric in cluster.ratios[arm] for arm in arms):
                yield row((title, *(_real_cell(cluster, arm, metric) for arm in arms)))
        yield ""
        if name == REAL_PLOTTED:
            yield f"![waits and slowdowns]({images}/{name}/waits.png)"
            yield f"![GPUs in use over time]({images}/{name}/gpus.png)"
            yield ""


def _ran(cluster: RealCluster) -> str:
    release = ", ".join(sorted({str(run["slurm"]) for run in cluster.runs}))
    seeds = ", ".join(str(run["seed"]) for run in cluster.runs)
    each = number(cluster.jobs / max(len(cluster.runs), 1))
    many = "seed" if len(cluster.runs) < 2 else "for each of the seeds"
    return f"Slurm {release}, {each} jobs{',' if len(cluster.runs) < 2 else ''} {many} {seeds}"


def _real_cell(cluster: RealCluster, arm: str, metric: str) -> str:
    points = cluster.prediction.get(arm, {}).get(metric, {}).get("points")
    return ratio_text(cluster.ratio(arm, clusters.AGAINST, metric), 2) + ("" if points is None else f" ({points:+.0f})")


def _real_in_short(found: Mapping[str, RealCluster]) -> Iterator[str]:
    for cluster in found.values():
        if "rl" in cluster.arms:
            ratios = ", ".join(
                f"{title} {number(cluster.arms['rl'][metric] / cluster.arms[clusters.AGAINST][metric], 2)}"
                for metric, title in _IN_SHORT.items()
            )
            release = ", ".join(sorted({str(run["slurm"]) for run in cluster.runs}))
            yield f"- Slurm {release}, {number(cluster.jobs)} jobs: {ratios}."


def with_results(readme: str, results: Kept) -> str:
    """Make README.md with what a site would see and, of each release of Slurm, the A/B on real clusters.

    Raises:
        EvaluationError: it has not the two marks.
    """
    first, last = README_MARKS
    before, begun, rest = readme.partition(first)
    _, ended, after = rest.partition(last)
    if not begun or not ended:
        raise EvaluationError(f"README.md: the lines {first.strip()} and {last.strip()} are missing")
    parts = [
        "\n".join(_wrapped(list(lines)))
        for lines in (_former(results.of), site(results.shown, short=True), _real_in_short(results.clusters))
    ]
    return f"{before}{first}\n" + "\n\n".join(part.strip() for part in parts if part) + f"\n\n{last}{after}"


def _protocols(of: Mapping[str, Together], images: str) -> Iterator[str]:
    """Tell the mean waits of each protocol, with its box plots."""
    yield "Mean wait in seconds."
    yield ""
    yield from heading(("protocol", "best rule", "its wait", "rl", "plots"), 0)
    for name, one in of.items():
        waits = (number(one.mean(label, "wait_mean")) if label in one.labels else "" for label in (one.best, "rl"))
        drawn = ", ".join(f"[{title}]({images}/{name}/{metric}.png)" for metric, title in PLOTTED.items())
        yield row((name, f"`{one.best}`", *waits, drawn))

"""docs/results.md, a summary, and docs/results/*.csv, every number: the same bytes for the same results."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from rltuned.core.config import DEFAULT_MODEL, DEFAULT_SHARE
from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.evaluation_settings import AGAIN
from rltuned.records.model_files import info
from studies import clusters, waits, waits_chart
from studies.catalogue import HISTORY, NOISY, Study
from studies.clusters import RealCluster
from studies.lending import EVIDENCE, LIMITS
from studies.paper import paper
from studies.sheets import ABOUT, sheets
from studies.tables import Together, heading, number, ratio_text, row, together

COLUMNS: Final = 120
"""Of a line of prose."""

_HEAD: Final = """\
# Results

Made by `make pages` from `studies/results/*.json` and `studies/lending.csv`; do not edit.
[studies](../studies/README.md) says which command makes which number, [evaluation](evaluation.md) what the numbers
mean, [what rltuned does not win](not-won.md) where to be careful. All tables are ratios of means over Slurm's own
order; below 1 is better, but for GPUs in use. The model was neither trained nor chosen on these jobs, but for what is
said."""
_NO_PROMISE: Final = """\
**What follows promises nothing to a site.** Where limits or estimates were drawn from the run times, the policies knew
more than a site knows; the clusters are smaller than what the traces' users need, so queues are longer than a site's;
and the order is that of a version before jobs lent a part of their wait."""
_REAL: Final = """\
`testbed ab` ([testbed](../docker-slurm-testbed/README.md#ab)): the same jobs on clusters of a real Slurm side by side,
one for each arm. *multifactor-again* is Slurm alone once more: what chance does. *rl* is rltuned as installed then.
Fair share is in force. PAI names no users, so they are drawn; the jobs of Venus are in the training part of another
trace. Intervals are over blocks of neighbouring jobs. In brackets: what the simulator predicted less what came, in per
cent of Slurm's."""
_REAL_ROWS: Final = (
    ("wait_mean", "mean wait"),
    ("bsld_mean", "slowdown"),
    ("wait_p99", "p99 of wait"),
    ("wait_max", "longest wait"),
    ("makespan", "makespan"),
    ("gpus", "GPUs in use"),
    ("gpus_waiting", "GPUs in use while jobs wait"),
)
_FREE: Final = "equal weights, nothing bounds the order"
_OF: Final = {
    clusters.TUNED: ", a tuned slurm.conf beside the site's (`rltuned tune` on the jobs before each window)",
    "ab-24.11-graham": " (tune found nothing better than the site's slurm.conf, so *tuned* is chance)",
    "ab-paper": f" of scripts on the paper's five nodes, {_FREE}",
    "ab-paper-exclusive": f" of scripts on the paper's five nodes, each of which runs one job, {_FREE}",
}
_SHARES: Final = (("accounts_worse", "accounts worse off, %"),)
"""Not over Slurm's: `multifactor-again` says what is chance."""
_LENDING: Final = """\
`python -m studies.lending TRACES`, [all numbers](../studies/lending.csv): what a site knows, at a site's load. Windows
of 3,000 jobs after 1,000 that fill the cluster, in two seeds; run times as the daemon predicts them. *Limits* are the
users' own; or drawn, and tell as much of run times as Graham's users' own do; or drawn, and tell more, which is no
evidence; or one for all jobs, which tells nothing ([how much they tell](estimates.md#what-limits-tell)). A waiting job
may be passed until it has *lent* this part of its wait. In brackets: what is chance, Slurm's own order with each job
submitted up to a minute later. *worst tenth*: of accounts, by (mean wait + 5 min); *late*: jobs that start an hour and
a tenth of their wait later. Of each trace, the default for smallest area first (saf) and for the model (rl), and what
has the least J and harms nobody beyond chance, in bold: what `rltuned gate` would choose if it is certain. Rows
of Venus and HPC2N, and those of SDSC-BLUE and Graham where fair share decides, are measured as predictions are learned
now; all others are older."""
_WAITS: Final = """\
`python -m studies.waits TRACES`, [all numbers](../studies/waits.csv): the same windows where fair share decides, all of
their jobs together, a tenth of the wait lent."""
_SITE: Final = """\
Windows of the last 15 % of each trace under Slurm's own backfill and placement. *Run times* is what the policies know:
all of them; estimates with an error of σ = 1.5 (one of three is wrong by more than a factor of 4.5); what the daemon
predicts from finished jobs; the users' time limits. The plain rules rank on the same estimates. The best of them is
chosen after the fact: no admin could have chosen better."""
KNOWN: Final = {"true": "all", NOISY: "σ = 1.5", HISTORY: "predicted", "limit": "users' limits"}
"""What is known of run times, in words, by `Protocol.estimates`."""
_CONFIRMED: Final = (
    "Mean waits on published traces, at a site's load, fair share deciding, with what a site knows ([how it is"
    " measured](docs/results.md)); behind each the ratio to Slurm's, with its 95 % interval. `rltuned gate`"
    " confirms each: jobs certainly wait less, and accounts, longest waits and GPUs in use stay within [its"
    " bounds](docs/good-for-us.md#the-gate)."
)
_RULE: Final = (
    "**Most of this is small jobs first, done safely.** Smallest area first is a plain rule: with as much lent and"
    " taken back in the same way, jobs of {traces} wait {rule} with it, and {model} with the model. The model is worth"
    " its place where your own jobs show it ([what rltuned does not win](docs/not-won.md))."
)
NONE_CONFIRMED: Final = """\
No figures stand here until they are measured as a site runs: at a site's load, with time limits as users write them,
with the daemon's own predictions of run times, and confirmed by `rltuned gate` on the same jobs. Those of earlier
versions ([results](docs/results.md)) knew more than a site knows."""
README_MARKS: Final = ("<!-- results: make pages -->\n", "<!-- end of results -->\n")
"""Between these two lines of README.md stands `in_short`."""

_NOTHING: Final = """\
**Nothing has been measured yet.** `make results TRACES=DIR` runs the studies (an hour or two on 2 cores; it goes on
where it was stopped)."""


@dataclass(frozen=True)
class Kept:
    """All results that there are."""

    of: Mapping[str, Together]
    """By the name of the protocol."""
    clusters: Mapping[str, RealCluster]
    """A/Bs on real clusters, by name."""
    lending: Sequence[Mapping[str, str]]
    """Rows of `studies.lending`."""
    waits: Sequence[Mapping[str, str]] = ()
    """Rows of `studies.waits`."""

    @property
    def shown(self) -> dict[str, Together]:
        """Those that are not only for the tables of the paper."""
        return {name: one for name, one in self.of.items() if not one.protocol.paper}


def collect(
    studies: Sequence[Study],
    results: Path,
    lending: Sequence[Mapping[str, str]] = (),
    hours: Sequence[Mapping[str, str]] = (),
) -> Kept:
    """Read the results, as far as there are any.

    Raises:
        EvaluationError: as `together` and `clusters.read`.
    """
    found = {}
    for protocol in dict.fromkeys(study.protocol for study in studies):
        if (one := together(protocol, studies, results)) is not None:
            found[protocol.name] = one
    return Kept(found, clusters.read(results), lending, hours)


def page(results: Kept) -> str:
    """Make the summary."""
    lines = [_HEAD, ""]
    of = results.shown
    if not of:
        lines += [_NOTHING, ""]
    if results.lending:
        lines += ["## At the load of a site", "", _LENDING, "", *_lending(results.lending), ""]
    if results.waits:
        lines += ["### In hours", "", _WAITS, "", *_waits(results.waits), ""]
    lines += [_NO_PROMISE, ""]
    if results.clusters:
        lines += ["## On real clusters", "", _REAL, "", *_real(results.clusters)]
    if of:
        lines += ["## Where nothing bounds the order", "", _SITE, "", *_states(results.of), *site(of), ""]
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


def write(results: Kept, target: Path) -> None:
    """Write the page and its data.

    Raises:
        EvaluationError: a file cannot be written.
    """
    beside = target.with_suffix("")
    texts = {target: page(results)}
    texts |= {beside / f"{sheet.name}.csv": sheet.text for sheet in sheets(results.of, results.clusters)}
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


def site(of: Mapping[str, Together]) -> Iterator[str]:
    """Tell what rltuned gives over Slurm's own order and over the best plain rule, under Slurm as it is."""
    titles = ["trace, nodes × GPUs", "run times", "wait / Slurm's", "slowdown", "p99", "GPUs in use"]
    titles += ["wait / best rule's", "best rule"]
    yield from heading(titles, len(titles) - 2)
    for one in of.values():
        protocol = one.protocol
        if protocol.easy or "rl" not in one.labels:
            continue
        over = [("multifactor", metric) for metric in ("wait_mean", "bsld_mean", "wait_p99", "utilization")]
        cells = [
            ratio_text(one.ratio("rl", other, metric), 2, interval=metric == "wait_mean")
            for other, metric in (*over, (one.best, "wait_mean"))
        ]
        nodes, _, gpus = protocol.trace.nodes.partition("x")
        name = f"{protocol.trace.name}, {nodes} × {gpus}{', seen in training' if protocol.trace.seen else ''}"
        yield row((name, KNOWN[protocol.estimates], *cells, f"`{one.best}`"))


def _real(found: Mapping[str, RealCluster]) -> Iterator[str]:
    for name, cluster in found.items():
        arms = [arm for arm in cluster.arms if arm != clusters.AGAINST]
        windows = "; ".join(map(clusters.window, cluster.runs))
        yield f"Slurm {cluster.releases}, {number(cluster.jobs)} jobs{_OF.get(name, '')}: {windows}."
        yield ""
        yield from heading((f"over {clusters.AGAINST}", *arms), len(arms))
        for metric, title in _REAL_ROWS:
            if all(metric in cluster.ratios[arm] for arm in arms):
                yield row((title, *(_real_cell(cluster, arm, metric) for arm in arms)))
        for metric, title in _SHARES:
            if all(metric in cluster.arms[arm] for arm in arms):
                yield row((title, *(f"{cluster.arms[arm][metric]:.0f}" for arm in arms)))
        yield ""
        if _is_chance(cluster):
            yield "Slurm alone once more differs from itself here as much as rltuned does from it: it says nothing."
            yield ""


def _is_chance(cluster: RealCluster) -> bool:
    """Whether mean waits differ by chance as much as by rltuned."""
    if not {AGAIN, "rl"} <= cluster.ratios.keys():
        return False
    again, ours = (abs(math.log(cluster.ratio(arm, clusters.AGAINST).ratio or 1.0)) for arm in (AGAIN, "rl"))
    return again >= ours


def _real_cell(cluster: RealCluster, arm: str, metric: str) -> str:
    points = cluster.prediction.get(arm, {}).get(metric, {}).get("points")
    return ratio_text(cluster.ratio(arm, clusters.AGAINST, metric), 2) + ("" if points is None else f" ({points:+.0f})")


def _lending(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Of each trace and kind of weights: the default, and the best that harms nobody."""
    ours = ("wait", "slowdown", "p99", "GPUs in use", "accounts worse off", "worst tenth", "late")
    first = ("trace, nodes × GPUs", "limits", "decides", "", "load", "Slurm waits", "lent")
    yield from heading((*first, *ours), 3 + len(ours))
    traces = list(dict.fromkeys(row["trace"] for row in rows))  # a later run adds what was still missing
    ordered = sorted(rows, key=lambda row: traces.index(row["trace"]))
    for _, these in groupby(ordered, lambda row: (row["trace"], row["nodes"], row["weights"])):
        several = list(these)
        harmless = [row for row in several if not row["harms"] and float(row["j"]) < 1.0]
        best = min(harmless, key=lambda row: float(row["j"]), default=None)
        for one in several:
            if one is not best and float(one["share"]) != DEFAULT_SHARE:
                continue
            load, waits = number(float(one["load"]), 2), _hours(one)
            shown = f"**{_wait(one)}**" if one is best else _wait(one)
            ratios = (_by_chance(one, of, 2) for of in ("slowdown", "p99", "gpus"))
            digits = {"worse": 2, "worst_tenth": 1, "late": 3}
            shares = (_by_chance(one, of, n) for of, n in digits.items())
            about = (_where(one), LIMITS[one["trace"]], one["weights"], one["policy"], load, waits, one["share"])
            yield row((*about, shown, *ratios, *shares))


def _waits(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Mean waits and two quantiles by size, under Slurm alone and both orders as installed."""
    named = ("mean", "half within", "nine of ten within")
    titles = [f"{what}: {name}" for what in named for name in ("Slurm", "saf", "rl")]
    yield from heading(("trace, nodes × GPUs", "GPUs", "jobs", *titles), 1 + len(titles))
    of = {(one["trace"], one["gpus"], one["order"]): one for one in rows}
    for trace, size in dict.fromkeys((one["trace"], one["gpus"]) for one in rows):
        these = [of[trace, size, order] for order in waits.ORDERS]
        cells = (waits.told(float(one[f"{what}_h"])) for what in ("mean", "p50", "p90") for one in these)
        yield row((_where(these[0]), size, number(int(these[0]["jobs"])), *cells))


def _by_chance(one: Mapping[str, str], of: str, digits: int) -> str:
    """A number, and what it is by chance where that was measured."""
    chance = one.get(f"{of}_chance")
    return f"{float(one[of]):.{digits}f}" + (f" ({float(chance):.{digits}f})" if chance else "")


def _hours(one: Mapping[str, str], *, ours: bool = False) -> str:
    """Mean wait in Slurm's own order, or in `ours`."""
    return waits.told(float(one["slurm_wait_h"]) * (float(one["wait"]) if ours else 1.0))


def _where(one: Mapping[str, str]) -> str:
    return f"{one['trace']}, {one['nodes'].replace('x', ' × ')}"


def _wait(one: Mapping[str, str]) -> str:
    return f"{float(one['wait']):.2f} [{float(one['lo']):.2f}, {float(one['hi']):.2f}]"


def in_short(rows: Sequence[Mapping[str, str]], hours: Sequence[Mapping[str, str]] = ()) -> Iterator[str]:
    """What stands in README.md between its marks, of the rows of `studies.lending`: those that are evidence, and that
    the gate confirms; and of `studies.waits`, of the first of these traces.
    """
    measured = [one for one in rows if one["weights"] == "fair share" and LIMITS[one["trace"]] in EVIDENCE]
    confirmed = [one for one in measured if one["certain"] == "yes" and not one["harms"]]
    if not confirmed:
        yield NONE_CONFIRMED
        return
    yield from (_CONFIRMED, "")
    yield from heading(("jobs of", "Slurm alone", "as installed (the model)", "as its gate chooses"), 3)
    traces = list(dict.fromkeys(one["trace"] for one in measured))
    both = []
    for trace in traces:
        of = [one for one in confirmed if one["trace"] == trace]
        if not of:
            continue
        best = min(of, key=lambda one: float(one["j"]))
        installed = next((one for one in of if _is_default(one)), None)
        cells = (_where(best), _hours(best), "–" if installed is None else _ratio(installed), _ratio(best, chosen=True))
        yield row((f"{cells[0]} GPUs", *cells[1:]))
        by = {one["policy"]: one for one in of if float(one["share"]) == DEFAULT_SHARE}
        both += [by] if {"saf", "rl"} <= by.keys() else []
    yield from _in_hours(confirmed[0], hours)
    if both:
        rule, model = (_listed([_hours(by[policy], ours=True) for by in both]) for policy in ("saf", "rl"))
        traces_of = _listed([by["rl"]["trace"] for by in both])
        yield from ("", _RULE.format(traces=traces_of, rule=rule, model=model))
    without = [trace for trace in traces if not any(one["trace"] == trace for one in confirmed)]
    if without:
        said = (_not_confirmed(next(one for one in measured if one["trace"] == trace and _is_default(one)))
                for trace in without)  # fmt: skip
        yield from ("", f"Not confirmed as installed: {'; '.join(said)}.")


def _in_hours(confirmed: Mapping[str, str], hours: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """How long the same jobs of a trace wait by size: Slurm alone, and as installed; the picture of that; and where
    large jobs of another trace wait longer.
    """
    of = {(one["trace"], one["order"], one["gpus"]): one for one in hours}
    trace, slurm, installed = confirmed["trace"], waits.ORDERS[0], waits.ORDERS[-1]
    if (trace, slurm, "all") not in of:
        return

    def both(where: str, size: str, what: str, between: str = " instead of ") -> str:
        return between.join(waits.told(float(of[where, order, size][f"{what}_h"])) for order in (installed, slurm))

    jobs = number(int(of[trace, slurm, "all"]["jobs"]))
    longer = [
        f" (on {other} {both(other, waits.LARGE, 'mean')})"
        for other in dict.fromkeys(one["trace"] for one in hours)
        if other != trace
        and float(of[other, installed, waits.LARGE]["mean_h"]) > float(of[other, slurm, waits.LARGE]["mean_h"])
    ]
    yield ""
    yield f"![Mean waits of these jobs by GPUs](docs/images/{waits_chart.NAME})"
    yield ""
    yield (
        f"As installed, **nine of ten of the {jobs} jobs of {trace} start within {both(trace, 'all', 'p90')}**, all but"
        f" one of a hundred within {both(trace, 'all', 'p99')}; jobs of {waits.LARGE} GPUs wait"
        f" {both(trace, waits.LARGE, 'mean', ' in the mean instead of ')}{''.join(longer)}, those of one GPU"
        f" {both(trace, '1', 'mean')}. Half start within {both(trace, 'all', 'p50', ', under Slurm alone ')} ([more in"
        " hours](docs/results.md#in-hours))."
    )


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _is_default(one: Mapping[str, str]) -> bool:
    return one["policy"] == "rl" and float(one["share"]) == DEFAULT_SHARE


def _not_confirmed(one: Mapping[str, str]) -> str:
    """Why the gate does not confirm a row."""
    why = f"against it: {one['harms'].replace('; ', ', ')}" if one["certain"] == "yes" else "nothing is certain"
    return f"{one['trace']}, mean wait {_wait(one)} ({why})"


def _ratio(one: Mapping[str, str], *, chosen: bool = False) -> str:
    order = "the model" if one["policy"] == "rl" else "smallest area first"
    about = f" ({order}, `lend.share` {one['share']})" if chosen else ""
    return f"{_hours(one, ours=True)}: {_wait(one)}{about}"


def with_results(readme: str, rows: Sequence[Mapping[str, str]], hours: Sequence[Mapping[str, str]] = ()) -> str:
    """Make README.md with the table of `in_short`.

    Raises:
        EvaluationError: it has not the two marks.
    """
    first, last = README_MARKS
    before, begun, rest = readme.partition(first)
    _, ended, after = rest.partition(last)
    if not begun or not ended:
        raise EvaluationError(f"README.md: the lines {first.strip()} and {last.strip()} are missing")
    return f"{before}{first}\n" + "\n".join(_wrapped([*in_short(rows, hours)])) + f"\n\n{last}{after}"

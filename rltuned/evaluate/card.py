"""The model card, as Markdown beside the manifest: what a model is, how it was made, how it measures, where it loses.

After Mitchell et al., "Model Cards for Model Reporting" (FAT* 2019). Every number comes from the manifest or from
reports of `rltuned evaluate`; the same files give the same card.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rltuned.errors import EvaluationError
from rltuned.evaluate.report import best_plain, difference
from rltuned.evaluate.settings import LEARNED
from rltuned.policy.files import ModelInfo

SHOWN: Final = {
    "wait_mean": "mean wait",
    "bsld_mean": "slowdown",
    "jct_mean": "completion time",
    "wait_p99": "p99 of wait",
    "wait_max": "longest wait",
}
"""Metrics of the tables; of all of them less is better."""

ALWAYS: Final = ("fifo", "multifactor")
"""What most sites run: compared with wherever the report has it, beside the best plain rule."""


def card(info: ModelInfo, reports: Sequence[Mapping[str, Any]]) -> str:
    """The card of a model, with the results of evaluations (`--json` of ``rltuned evaluate``).

    Raises:
        EvaluationError: a report is none, or is about another model or other weights.
    """
    learned = [_learned(info, report) for report in reports]
    evaluations = _count(len(reports), "evaluation")
    lines = [
        f"# {info.name}",
        "",
        f"Made by `rltuned model card {info.name}` from the manifest and {evaluations}; do not edit.",
        "docs/evaluation.md says what the numbers mean, docs/policy.md how to see what the model learned.",
        "",
        "## What it is",
        "",
        *_what(info),
        "",
        "## How it was made",
        "",
        *_made(info),
        "",
        "## How it measures",
        "",
    ]
    if not reports:
        lines.append("Nothing was given: `rltuned evaluate --model … --json R.json`, then `--report R.json`.")
    for report, name in zip(reports, learned, strict=True):
        lines += [*_results(report, name), ""]
    lines += ["## Where it loses", "", *_losses(reports, learned), ""]
    return "\n".join(lines)


def read_report(path: Path) -> dict[str, Any]:
    """A report from its file.

    Raises:
        EvaluationError: it cannot be read.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: cannot be read: {error}") from error
    if not isinstance(report, dict) or "comparisons" not in report:
        raise EvaluationError(f"{path}: not a report of `rltuned evaluate --json`")
    return report


def _what(info: ModelInfo) -> Iterator[str]:
    shape = info.architecture
    widths = " → ".join(str(width) for width in (shape.inputs, *shape.hidden, 1))
    network = f"{widths}, {shape.activation.value}, {shape.parameters} weights"
    yield f"What decides the order: {info.summary}."
    yield f"Its network scores each pending job, higher first: {network}."
    if shape.context:
        yield "It also sees the mean of the jobs that wait."
    yield ""
    yield f"- Columns: {', '.join(info.columns)} (docs/features.md)"
    yield f"- Format {info.format_version}, weights of sha256 `{info.sha256}`"


def _made(info: ModelInfo) -> Iterator[str]:
    yield f"- Method: {info.method}, seed {info.seed}, revision `{info.revision}`"
    yield f"- Data: {info.data}"
    for name, digest in sorted(info.traces.items()):
        yield f"  - `{name}`, sha256 `{digest}`"
    yield f"- Settings: `{json.dumps(info.settings, sort_keys=True)}`"
    for name, value in sorted(info.metrics.items()):
        yield f"- Measured while training: {name} = {value:.6g}"


def _learned(info: ModelInfo, report: Mapping[str, Any]) -> str:
    """The policy of the report that is this model."""
    try:
        trace, policies = report["meta"]["trace"]["name"], report["meta"]["policies"]
        found = [name for name in LEARNED if name in policies]
        made_by = {policies[name]["model"]["sha256"] for name in found}
    except (KeyError, TypeError) as error:
        raise EvaluationError(f"not a report of `rltuned evaluate --json`: {error} is missing") from error
    if not found:
        raise EvaluationError(f"the report on {trace} has no learned policy: add rl to its --policies")
    if made_by != {info.sha256}:
        raise EvaluationError(
            f"the report on {trace} is about other weights than those of '{info.name}': evaluate again"
        )
    return found[0]


def _where(meta: Mapping[str, Any]) -> str:
    """Trace, cluster, estimates and scheduler of a report."""
    settings = meta["settings"]
    scheduler = f"backfill {settings['backfill']}, placement {settings['placement']}"
    return f"{meta['trace']['name']} on {meta['cluster']['text']}, estimates {settings['estimates']}, {scheduler}"


def _results(report: Mapping[str, Any], name: str) -> Iterator[str]:
    meta, windows = report["meta"], report["windows"]
    settings = meta["settings"]
    yield f"### {_where(meta)}"
    yield ""
    yield (
        f"{_count(len(windows), 'window')} of {windows[0]['jobs']} jobs, {settings['split']} part of the trace "
        f"(sha256 `{meta['trace']['sha256'][:16]}`), {settings['start']} start, "
        f"seed {meta['seed']}, revision `{meta['revision']}`. Intervals: {meta['intervals']}."
    )
    yield ""
    yield f"    {meta['command']}"
    yield ""
    own = report["policies"][name]
    yield "| | " + " | ".join(SHOWN.values()) + " |"
    yield "| --- |" + " ---: |" * len(SHOWN)
    yield f"| {name} | " + " | ".join(_absolute(metric, own[metric]) for metric in SHOWN) + " |"
    best = best_plain(report)
    for other in dict.fromkeys([best, *ALWAYS]):
        if other is None or other not in report["policies"]:
            continue
        compared = report["comparisons"][f"{name}/{other}"]
        title = f"against {other}, the best plain rule" if other == best else f"against {other}"
        yield f"| {title} | " + " | ".join(difference(compared[metric]) for metric in SHOWN) + " |"


def _losses(reports: Sequence[Mapping[str, Any]], learned: Sequence[str]) -> Iterator[str]:
    """Every comparison that the model loses, with any policy of any report."""
    certain: list[str] = []
    likely: list[str] = []
    for report, name in zip(reports, learned, strict=True):
        where = _where(report["meta"])
        for other in report["policies"]:
            if other in LEARNED:
                continue
            for metric, title in SHOWN.items():
                compared = report["comparisons"][f"{name}/{other}"][metric]
                ratio, low = compared["ratio"], compared["lo"]
                if ratio is not None and ratio > 1.0:
                    line = f"- {where}: {title} {difference(compared)} against {other}"
                    (certain if low is not None and low > 1.0 else likely).append(line)
    if not reports:
        yield "Not known: nothing was measured."
        return
    yield "Certainly, the whole interval above 0:" if certain else "Nowhere certainly: no interval lies above 0."
    yield from ["", *certain] if certain else []
    if likely:
        yield from ["", "Perhaps, the mean is above 0 and the interval is not:", "", *likely]


def _absolute(metric: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f}" if metric == "bsld_mean" else f"{value:,.0f} s"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""The result of an evaluation, for machines and for people."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import permutations
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from rltuned.lab.evaluate.bootstrap import LEVEL, RESAMPLES, Comparison, compare, counts, mean
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import Evaluation, whose
from rltuned.lab.evaluate.evaluation_settings import OWN, PLAIN
from rltuned.lab.evaluate.measure import Measured
from rltuned.lab.evaluate.window_metrics import AGAINST_SLURM, COMPARED

KEPT: Final = (*COMPARED, *AGAINST_SLURM, "seconds")  # of each policy, as means over the windows
NAMED_JOBS: Final = 20  # rejected or killed jobs of a window that are named; all are counted


def assemble(evaluation: Evaluation, tables: Mapping[str, Measured]) -> dict[str, Any]:
    """The report (docs/evaluation.md says what each number is), of what `evaluate` has measured. Only fields called
    `seconds` depend on the machine.
    """
    count = len(evaluation.cases)
    intervals = f"paired bootstrap over {count} windows, {RESAMPLES} resamples, {LEVEL:.0%}, percentiles"
    return {
        "meta": {**evaluation.meta, "intervals": intervals if count > 1 else "none: there is one window"},
        "windows": [_window(case, at, tables) for at, case in enumerate(evaluation.cases)],
        "policies": means(tables),
        "comparisons": comparisons(tables, evaluation.settings.seed),
    }


def means(tables: Mapping[str, Measured]) -> dict[str, dict[str, Any]]:
    """By policy: means over the windows, and how many jobs were killed."""
    return {
        name: {**{metric: _finite(mean(table[metric])) for metric in KEPT}, "killed": int(table["killed"].sum())}
        for name, table in tables.items()
    }


def _window(case: Case, at: int, tables: Mapping[str, Measured]) -> dict[str, Any]:
    jobs, window, rejected = case.jobs, case.window, case.rejected
    killed = np.setdiff1d(np.flatnonzero(case.killed & case.measured), list(rejected))
    return {
        "index": window.index,
        "start": window.start,
        "jobs": window.jobs,
        "first_job": int(jobs.job_id[case.past]),
        "last_job": int(jobs.job_id[-1]),
        "span": float(jobs.submit_time[-1] - jobs.submit_time[case.past]),
        "warm_jobs": case.past,
        "rejected": {
            "count": len(rejected),
            "jobs": [
                {"job": int(jobs.job_id[row]), "line": int(jobs.line[row]), "reason": rejected[row]}
                for row in sorted(rejected)[:NAMED_JOBS]
            ],
        },
        "killed": {"count": len(killed), "jobs": [int(job) for job in jobs.job_id[killed[:NAMED_JOBS]]]},
        "policies": {
            name: {metric: _finite(values[at]) for metric, values in table.items()}
            | {"killed": int(table["killed"][at])}
            for name, table in tables.items()
        },
    }


def comparisons(tables: Mapping[str, Measured], seed: int) -> dict[str, dict[str, Any]]:
    """Every policy over every other, by each metric."""
    drawn = counts(len(next(iter(tables.values()))["wait_mean"]), seed)
    return {
        f"{a}/{b}": {metric: asdict(compare(tables[a][metric], tables[b][metric], drawn)) for metric in COMPARED}
        for a, b in permutations(tables, 2)
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def text(report: Mapping[str, Any]) -> str:
    """The report as JSON."""
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


# --- for people

WIDTH: Final = 200  # columns of a table that does not go to a terminal

_COLUMNS: Final = (
    ("wait_mean", "wait mean s", 0),
    ("wait_p50", "p50", 0),
    ("wait_p99", "p99", 0),
    ("wait_max", "max", 0),
    ("jct_mean", "JCT s", 0),
    ("bsld_mean", "slowdown", 1),
    ("utilization", "GPU %", 1),
    ("makespan", "makespan s", 0),
    ("idle", "idle GPU h", 0),
    ("fairness", "fairness", 2),
    ("objective", "J", 3),
    ("seconds", "took s", 2),
)


_AGAINST_SLURM: Final = (
    ("accounts_worse", "accounts worse off", 3),
    ("worst_tenth", "worst tenth", 2),
    ("late", "late jobs", 3),
    ("wait_ratio_p95", "p95 of wait ratio", 2),
)


def best_plain(report: Mapping[str, Any]) -> str | None:
    """The plain rule of the least mean wait: what a policy has to beat."""
    waits = {name: values["wait_mean"] for name, values in report["policies"].items() if name in PLAIN}
    known = {name: wait for name, wait in waits.items() if wait is not None}
    return min(known, key=known.__getitem__) if known else None


def table(report: Mapping[str, Any]) -> Table:
    """Means over the windows, and how sure the difference in wait to the best plain rule is."""
    meta, reference = report["meta"], best_plain(report)
    if meta["settings"]["weights"] and OWN in report["policies"]:
        reference = OWN
    windows = report["windows"]
    shown = Table(
        title=f"{whose(meta)}\n{len(windows)} windows of {windows[0]['jobs']} jobs, "
        f"estimates {meta['settings']['estimates']}",
        caption=_caption(report),
        caption_justify="left",
    )
    shown.add_column("policy")
    columns = (*_COLUMNS, *_AGAINST_SLURM) if meta["settings"]["weights"] else _COLUMNS
    for _, heading, _ in columns:
        shown.add_column(heading, justify="right")
    if reference is not None:
        shown.add_column(f"wait vs {reference}", justify="right")
    for name, values in report["policies"].items():
        cells = [_cell(values[metric], digits) for metric, _, digits in columns]
        if reference is not None:
            compared = report["comparisons"].get(f"{name}/{reference}")
            cells.append(difference(Comparison(**compared["wait_mean"])) if compared is not None else "")
        shown.add_row(name, *cells, style="bold" if name == reference else "")
    return shown


def show(console: Console, made: Table) -> None:
    """Print a table."""
    if not console.is_terminal:
        console.width = WIDTH  # in a file or a pipe there is room for all columns
    console.print(made)


def difference(compared: Comparison) -> str:
    """A ratio as a relative difference with its interval: −12.3 % [−15.0, −9.1]."""
    ratio, ends = compared.ratio, (compared.lo, compared.hi)
    if ratio is None:
        return "–"
    interval = ", ".join(f"{100 * (end - 1):+.1f}" if end is not None else "?" for end in ends)
    shown = f" [{interval}]" if ends != (None, None) else ""
    return f"{100 * (ratio - 1):+.1f} %{shown}".replace("-", "−")


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _caption(report: Mapping[str, Any]) -> str:
    lines = [f"intervals: {report['meta']['intervals']}"]
    rejected = [job for window in report["windows"] for job in window["rejected"]["jobs"]]
    if rejected:
        count = sum(window["rejected"]["count"] for window in report["windows"])
        first = rejected[0]
        lines.append(f"{count} jobs can never run here and are left out, e.g. job {first['job']}: {first['reason']}")
    killed = sum(window["killed"]["count"] for window in report["windows"])
    if killed:
        lines.append(f"{killed} jobs run into their time limit")
    return "\n".join(lines)

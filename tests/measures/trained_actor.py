"""What training makes of published traces, and what is left of it on windows that it never saw (docs/learning.md).

``PYTHONPATH=.:tests python -m measures.trained_actor TRACES`` trains what `RUNS` names below build/actor, goes on where
it was stopped, and writes studies/actor-curves.csv, studies/actor.csv and docs/images/actor-curves.svg. TRACES is the
directory of the published traces. ``--only NAME,NAME`` trains these alone.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import call
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rltuned import revision
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import progress_bar
from rltuned.decide.rank.actor import RUN_TIME, Actor
from rltuned.lab.evaluate.bootstrap import compare, counts
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.windows import Split, draw
from rltuned.lab.train import command, training
from rltuned.lab.train.curriculum import (
    HISTORY,
    CurriculumSettings,
    Site,
    cases_of,
    smallest_area_first,
    with_limits,
    with_predictions,
)
from rltuned.lab.train.sampling import Measures, in_slurms_order, judge
from rltuned.lab.train.select import WATCHED, over
from rltuned.records import model_files as files
from rltuned.simulate.shape import read_shape
from studies.traces import read

WORK: Final = Path("build/actor")
TABLE: Final = Path("studies/actor.csv")
CURVES: Final = Path("studies/actor-curves.csv")
PICTURE: Final = Path("docs/images/actor-curves.svg")
SITES: Final = {
    "Venus": ("helios-venus.csv.gz", "16x8:v100"),
    "PAI": ("alibaba-pai.csv.gz", "8x8:v100"),
    "Philly": ("philly.csv.gz", "20x8:p100"),
    "Philly small": ("philly.csv.gz", "4x8:p100"),
    "HPC2N": ("hpc2n.swf.gz", "120x2"),
    "SDSC-BLUE": ("sdsc-blue.swf.gz", "144x8"),
    "Venus users": ("helios-venus-users.csv.gz", "8x8:v100"),
    "Philly users": ("philly-users.csv.gz", "4x8:p100"),
    "Graham": ("drac-graham.csv.gz", "14x8"),
}
"""File and cluster of each."""
STEPS: Final = "120,15"
JUDGED: Final = (256, 60, 5)
"""Jobs, number and seed of the test windows of a site."""
LEAST: Final = CurriculumSettings.least_wait
"""Seconds: a window in which jobs wait less in Slurm's own order tells nothing."""
BASELINE: Final = "seed-7"


class Run(NamedTuple):
    """A training."""

    without: str = ""
    """Traces whose names begin so are left out."""
    seed: int = 7
    options: Mapping[str, Any] = {}
    """More of `rltuned.lab.train.command.settings`."""


RUNS: Final = {
    BASELINE: Run(),
    "seed-8": Run(seed=8),
    "seed-9": Run(seed=9),
    "without-Venus": Run(without="Venus"),
    "without-PAI": Run(without="PAI"),
    "wait-only": Run(options={"objective": Objective.parse("wait=1")}),
}


class Window(NamedTuple):
    """A test window."""

    site: str
    estimates: str
    case: Case
    slurm: Measures


def sites_of(run: Run, traces: Path) -> list[Site]:
    """What it learns from."""
    names = [name for name in SITES if not run.without or not name.startswith(run.without)]
    return [Site(read(traces / SITES[name][0]), read_shape(SITES[name][1])) for name in names]


def train(name: str, run: Run, traces: Path, processes: int) -> None:
    """Unless its model is there."""
    out = WORK / name
    if (out / "general.json").exists():
        return
    asked = command.settings(name="general", steps=STEPS, begin=command.NONE, seed=run.seed, **run.options)
    line = f"python -m measures.trained_actor TRACES --only {name}"
    with progress_bar() as progress:
        training.train(
            sites_of(run, traces),
            asked,
            out,
            progress=progress,
            command=line,
            revision=revision(),
            processes=processes,
            resume=(out / "settings.json").exists(),
        )


def test_windows(traces: Path, pool: WorkerPool) -> Iterator[Window]:
    """Of the last 15 % of each trace, with errors of σ = 1.5, and predicted run times where users are known."""
    length, count, seed = JUDGED
    for name, (file, cluster) in SITES.items():
        site = with_predictions(Site(read(traces / file), read_shape(cluster)), "mixed", seed)
        drawn = draw(len(site.jobs), length, count, seed, Split.TEST)
        kinds = ["noisy:1.5", *([HISTORY] if site.predicted else []), *(["limit"] if with_limits(site.jobs) else [])]
        for kind in kinds:
            found = list(cases_of(site, kind, seed, drawn))
            own = pool.map(call, [partial(in_slurms_order, case) for case in found])
            for case, slurm in zip(found, own, strict=True):
                if slurm["wait_mean"] >= LEAST:
                    yield Window(name, kind, case, slurm)


def measured(actor: Actor, windows: Sequence[Window], pool: WorkerPool) -> list[Measures]:
    """`WATCHED` of each window over Slurm's own."""
    tasks = [partial(judge, window.case, window.slurm, actor) for window in windows]
    return [over(found, window.slurm) for window, found in zip(windows, pool.map(call, tasks), strict=True)]


def judged(mine: Sequence[Measures], theirs: Sequence[Measures], windows: Sequence[Window]) -> Iterator[dict[str, Any]]:
    """A row of the table for each site and kind of estimates: what is `measured` of an actor over that of a rule."""
    both = mine, theirs
    of = list(dict.fromkeys((window.site, window.estimates) for window in windows))
    for site, kind in of:
        rows = [at for at, window in enumerate(windows) if (window.site, window.estimates) == (site, kind)]
        values = {name: np.array([[found[at][name] for at in rows] for found in both]) for name in WATCHED}
        j = compare(*values["objective"], counts(len(rows), JUDGED[2]))
        ratios = {name: each[0].sum() / each[1].sum() if each[1].sum() else 1.0 for name, each in values.items()}
        told = {"trace": site, "estimates": kind, "windows": len(rows), "lo": j.lo, "hi": j.hi}
        yield told | {name: round(float(value), 4) for name, value in ratios.items()}


def variants(actor: Actor, name: str) -> Iterator[tuple[str, Actor]]:
    """What is judged of a run."""
    yield "actor", actor
    if name == BASELINE:
        weights = {**actor.weights, "change": np.zeros_like(actor.weights["change"])}
        yield "last layer zero", replace(actor, weights=weights)
        for wanted in ("wait=1", "tail=1", "idle=1"):
            yield wanted, replace(actor, objective=Objective.parse(wanted))


def table(traces: Path, processes: int) -> list[dict[str, Any]]:
    """Of all runs whose models are there, over smallest area first on the run times that the first expects, J by what
    each actor wants."""
    rows = []
    by_rule: dict[Objective, list[Measures]] = {}
    with WorkerPool(processes) as pool:
        windows = list(test_windows(traces, pool))
        first = files.load(str((WORK / BASELINE / "general.json").resolve()))
        rule = smallest_area_first("saf", first.weights[RUN_TIME])
        for name in RUNS:
            if not (WORK / name / "general.json").exists():
                continue
            actor = files.load(str((WORK / name / "general.json").resolve()))
            for policy, one in variants(replace(actor, objective=RUNS[name].options.get("objective", DEFAULT)), name):
                wanted = one.objective
                if wanted not in by_rule:
                    by_rule[wanted] = measured(replace(rule, objective=wanted), windows, pool)
                found = judged(measured(one, windows, pool), by_rule[wanted], windows)
                rows += [{"run": name, "policy": policy, **row} for row in found]
    return rows


def curves() -> list[dict[str, Any]]:
    """Of all runs that are there: each validation."""
    found = []
    for name in RUNS:
        path = WORK / name / "metrics.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            told = json.loads(line)
            if "validation.objective" in told:
                measured = {metric: round(told[f"validation.{metric}"], 4) for metric in WATCHED}
                found.append({"run": name, "step": told["step"], **measured})
    return found


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        made = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        made.writeheader()
        made.writerows(rows)


def picture(rows: Sequence[Mapping[str, Any]]) -> None:
    """J on the validation windows by step; the parts of a training are told apart by lines."""
    evolution, _ = map(int, STEPS.split(","))
    with rc_context({"svg.hashsalt": "rltuned", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for name in dict.fromkeys(str(row["run"]) for row in rows):
            points = [(int(row["step"]), float(row["objective"])) for row in rows if row["run"] == name]
            axes.plot(*zip(*points, strict=True), marker=".", linewidth=2.0 if "seed" in name else 0.8, label=name)
        axes.axvline(evolution, color="grey", linewidth=0.8)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set(xlabel="step: evolution | PPO", ylabel="J over that of smallest area first")
        axes.legend(fontsize="small", ncols=2)
        FigureCanvasSVG(figure)
        figure.savefig(PICTURE, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, judge, write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m measures.trained_actor", description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--only", default=",".join(RUNS), help="runs to train (default: all)")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(arguments)
    for name in asked.only.split(","):
        train(name, RUNS[name], asked.traces, asked.processes)
    write(TABLE, table(asked.traces, asked.processes))
    found = curves()
    write(CURVES, found)
    picture(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

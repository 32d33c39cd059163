"""Which policy a site should run, and what part of its wait a job should lend, by a paired test on its own recent jobs
(docs/evaluation.md, decision 0093).

Of what harms nobody beyond chance and certainly waits less than Slurm's own order, the policy and the share of the
least J are chosen; where there is none, Slurm's order stays. "Certainly" is the upper end of a paired bootstrap
interval of the mean wait. One of several points only has to pass, so the intervals hold for all of them at once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from rich.table import Table

from rltuned import __version__
from rltuned.cluster.gate_verdict import FORMAT, MODEL, SLURM, VERSION
from rltuned.cluster.objective import DEFAULT, Objective
from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Floats
from rltuned.config import DEFAULT_SHARE, Config, SlurmSection
from rltuned.errors import EvaluationError
from rltuned.evaluate import site
from rltuned.evaluate.bootstrap import FEWEST as FEWEST_WINDOWS
from rltuned.evaluate.bootstrap import LEVEL, RESAMPLES, Comparison
from rltuned.evaluate.evaluation import Evaluation, ready
from rltuned.evaluate.evaluation_settings import (
    AGAIN,
    OWN,
    TUNED,
    UNTUNED,
    EvaluationSettings,
    from_options,
)
from rltuned.evaluate.frontier import TESTED, Point, contenders, parse_shares, points, table
from rltuned.evaluate.harm import unknown
from rltuned.evaluate.policies import model_path
from rltuned.evaluate.window_metrics import AGAINST_SLURM, COMPARED
from rltuned.evaluate.windows import Split, Window, bounds
from rltuned.policy import files
from rltuned.workers.progress import Progress, minutes, silent
from rltuned.workload.describe import DATED
from rltuned.workload.jobs import Workload
from rltuned.workload.readers import read
from rltuned.workload.shapes import read_shape

WINDOW: Final = 3000
WARM: Final = 1000
"""Jobs of a window, and before it: shorter ones never have the queue that a site has."""
WINDOWS: Final = 30
SHORTEST_WINDOW: Final = 64
VALID_DAYS: Final = 90.0
SERVED_SECONDS: Final = 0.003
PLAIN_SECONDS: Final = 0.0003
"""Seconds of a process for each simulated job, the warm start's too: of a policy that is served, of Slurm's own order.
Rough: for the sentence that is said beforehand, and nothing else."""


def not_judged(config: Config) -> list[str]:
    """Settings of the site's that the gate does not simulate, as ``section.key``."""
    return [] if config.lend.most == Config().lend.most else ["lend.most"]


def as_configured(config: Config, given: Mapping[str, Any]) -> EvaluationSettings:
    """The settings of a gate's evaluation: what the daemon is configured to do, on a busy cluster. What is `given`, by
    the names of `EvaluationSettings`, comes first; `shares` as `frontier.parse_shares` takes them. Raises
    EvaluationError, ConfigError.
    """
    given = dict(given)
    shares = given.pop("shares", None)
    return from_options(
        {
            "trace": "",
            "cluster": "",
            "policies": ",".join(contenders() if shares is None else contenders(parse_shares(shares))),
            "estimates": config.estimates.source,
            "model": config.policy.model,
            "objective": config.policy.objective,
            "start": "warm",
            "gate": True,
            **given,
        }
    )


def site_of(
    settings: EvaluationSettings,
    slurm: SlurmSection,
    now: float,
    tell: Callable[[str], None],
    progress: Progress = silent,
    period: tuple[float, float] | None = None,
) -> tuple[EvaluationSettings, Workload, ClusterShape]:
    """The jobs and the cluster that a verdict is about: of files where the settings name them, else of Slurm itself.
    Where Slurm shows the cluster, the settings get its scheduler parameters, too.

    `settings`: `from_sacct` or `trace`; `cluster`, or "" for the cluster that Slurm shows: with the nodes of the
    `period`, epoch seconds, or of the jobs' own. Raises WorkloadError, ShapeError, SlurmError: jobs or cluster cannot
    be read.
    """
    shape = read_shape(settings.cluster) if settings.cluster else None
    if settings.from_sacct is not None:
        jobs = site.own_jobs(slurm, settings.from_sacct, now, tell, progress)
    else:
        jobs = read(settings.trace, skip_bad=settings.skip_bad, progress=progress)
    if shape is None:
        settings, shape = site.of_slurm(settings, slurm, now, tell)
        if jobs.source.form == DATED:
            shape = site.own_past(shape, slurm, jobs, period, tell)
    return settings, jobs, shape


def prepare(
    settings: EvaluationSettings,
    jobs: Workload,
    shape: ClusterShape,
    revision: str,
    length: int | None = None,
    begin: int = 0,
) -> Evaluation:
    """The evaluation that a verdict rests on: recent windows that share no job.

    `settings`: `windows` at most are taken; of the part `split`, where the whole means its recent half, or its last
    15 % where the model says that it was trained on this very file. `length`: jobs of a window; None: `WINDOW` after
    `WARM`, or fewer where the history is short. `begin`: no window begins before this row. Accounts are always looked
    at: without weights, Slurm's order has the usual ones. Raises EvaluationError: too little history. ModelError: the
    model was refused.
    """
    split = settings.split
    if split is Split.ALL and jobs.source.sha256 in files.info(model_path(settings.model)).traces.values():
        split = Split.TEST
    windows = recent(len(jobs), split, length, settings.windows, settings.warm_jobs, begin)
    settled = replace(settings, gate=True, split=split, window=windows[0].jobs, windows=len(windows))
    if length is None and settings.warm_jobs is None:
        settled = replace(settled, warm_jobs=max(settled.window, WARM))
    return ready(replace(settled, weights=settled.weights or "usual"), jobs, shape, revision, windows)


def duration(evaluation: Evaluation, workers: int) -> str:
    """How long the simulations will take, in a sentence; a rough figure, of jobs and processes alone."""
    sizes = [len(case.jobs) for case in evaluation.cases]
    each = [PLAIN_SECONDS if name in {OWN, AGAIN, TUNED} else SERVED_SECONDS for name in evaluation.settings.policies]
    seconds = max(sum(sizes) * sum(each) / workers, max(sizes) * max(each))  # one simulation is one process's
    count = len(evaluation.cases) * len(evaluation.settings.policies)
    processes = "1 process" if workers == 1 else f"{workers} processes"
    return f"{count} simulations with {processes}: about {minutes(seconds)}, longer where the queue is long"


def recent(
    jobs: int,
    split: Split,
    length: int | None = None,
    count: int = WINDOWS,
    past: int | None = None,
    begin: int = 0,
    *,
    most: int = WINDOW,
    fewest: int = FEWEST_WINDOWS,
    whose: str = "the gate",
) -> tuple[Window, ...]:
    """Windows that share no job, the last ones that fit into the recent part of a trace, from early to late.

    Disjoint, where `windows.draw` lets windows overlap: a decision is taken here, and overlapping windows look surer
    than they are. `split`: which part; the whole trace means its last half, so that there is a past to learn run times
    from. `length`: jobs of a window; None: `most`, or fewer where the part is short. `count`: at most so many.
    `past`: jobs before each window that a warm start simulates; None: as many as a window has. The first window begins
    behind as many. `begin`: no window begins before this row. Raises EvaluationError: fewer than `fewest` fit; says of
    `whose`.
    """
    first, last = bounds(jobs, split) if split is not Split.ALL else (jobs // 2, jobs)
    first = max(first, begin)
    there = max(last - first, 0)
    chosen = length if length is not None else min(most, there // fewest)
    first = max(first, chosen if past is None else past)
    fit = min((last - first) // chosen, count) if chosen else 0
    if fit < fewest or (length is None and chosen < SHORTEST_WINDOW):
        wanted = length if length is not None else SHORTEST_WINDOW
        raise EvaluationError(
            f"{whose} needs {fewest} windows of at least {wanted} jobs that share none, and the recent part "
            f"of the history has {there:,} jobs: give more of it (--from-sacct DAYS, --trace), or a smaller --window"
        )
    start = last - fit * chosen
    return tuple(Window(index, start + index * chosen, chosen) for index in range(fit))


@dataclass(frozen=True)
class Judgement:
    """What the paired tests say."""

    points: Sequence[Point]
    chance: Point
    best: Point | None
    """What is chosen; None: Slurm's own order stays."""
    rule: Point | None
    """As `best`, had there been no model."""
    unknown: Sequence[str]
    """Bounds that could not be judged, in words."""

    @property
    def reason(self) -> str:
        """The decision in a sentence or two."""
        unjudged = (
            f" Nothing is known of: {', '.join(self.unknown)} (no account with enough jobs)." if self.unknown else ""
        )
        if self.best is not None:
            return (
                f"Of what harms nobody beyond chance and certainly waits less than Slurm's own order, {self.best.name} "
                f"has the least J: {self.best.objective:.3f}, mean wait {self.best.ratios[TESTED]}.{unjudged}"
            )
        if harmless := [point for point in self.points if not point.harms]:
            least = min(harmless, key=lambda point: point.objective)
            why = f"of what harms nobody, {least.name} has the least J, and its mean wait is {least.ratios[TESTED]}"
        else:
            why = "each share harms somebody, with the rule and with the model"
        return f"Nothing certainly waits less than Slurm's own order and harms nobody beyond chance: {why}.{unjudged}"


def judge(measured: Mapping[str, Mapping[str, Floats]], seed: int, objective: Objective = DEFAULT) -> Judgement:
    """The decision, from what was measured by policy and metric: (W,) values of the same windows in the same order, NaN
    where a window has none.
    """
    found, chance = points(measured, seed, objective)
    good = [point for point in found if point.certain and not point.harms]
    rules = [point for point in good if not point.learned]
    best, rule = (min(of, key=lambda point: point.objective, default=None) for of in (good, rules))
    return Judgement(found, chance, best, rule, unknown(chance.means))


def over_tuned(
    tuned: Mapping[str, Comparison], who: str, over: Mapping[str, Comparison], names: Mapping[str, str]
) -> str:
    """What the `tuned` slurm.conf gives over the site's own, and `who` gives over the tuned one, in two sentences.

    `names`: of the metrics that are told; what is certain is so by the first.
    """
    alone, beside = (" and ".join(f"{name} {of[metric]}" for metric, name in names.items()) for of in (tuned, over))
    certain = "certainly" if over[next(iter(names))].lower else "not certainly"
    return f"The tuned slurm.conf alone has {alone} of yours. {who} is {certain} better: {beside} of that."


# --- from a report to a verdict


def measurements(report: Mapping[str, Any]) -> dict[str, dict[str, Floats]]:
    """(W,) values by policy and metric, of a report (`rltuned.evaluate.evaluation_report.assemble`)."""
    return {
        name: {
            metric: np.array(
                [
                    float("nan") if (v := window["policies"][name].get(metric)) is None else v
                    for window in report["windows"]
                ],
                dtype=np.float64,
            )
            for metric in (*COMPARED, *AGAINST_SLURM)
        }
        for name in report["policies"]
    }


def verdict(
    report: Mapping[str, Any],
    settings: EvaluationSettings,
    made_at: float,
    valid_days: float = VALID_DAYS,
) -> dict[str, Any]:
    """The verdict file's content: the choice, what it is about, and the evidence.

    `report`: of the evaluation (`rltuned.evaluate.evaluation.evaluate`) of windows that share no jobs. `settings`: of
    that evaluation. `valid_days`: for how long it may be gone by. Raises ModelError: the model has gone since it was
    evaluated.
    """
    found = judge(measurements(report), settings.seed, settings.objective)
    info = files.info(model_path(settings.model))
    meta, windows = report["meta"], report["windows"]
    shown = found.best or min(found.points, key=lambda point: point.objective)
    chosen, share = _chosen(found.best)
    fallback, fallback_share = _chosen(found.rule)
    return {
        "format": FORMAT,
        "version": VERSION,
        "chosen": chosen,
        "share": share,
        "fallback": fallback,
        "fallback_share": fallback_share,
        "reason": found.reason,
        "tuned": _tuned(report, settings, shown),
        "made_at": made_at,
        "valid_days": valid_days,
        "model": {
            "name": info.name,
            "path": str(info.path),
            "manifest_sha256": files.manifest_sha256(str(info.path)),
            "weights_sha256": info.sha256,
        },
        "cluster": meta["cluster"],
        "trace": meta["trace"],
        "settings": meta["settings"],
        "program": {
            "name": "rltuned",
            "version": __version__,
            "revision": meta["revision"],
            "command": meta["command"],
        },
        "evidence": {
            "windows": len(windows),
            "jobs": sum(window["jobs"] for window in windows),
            "first_job": windows[0]["first_job"],
            "last_job": windows[-1]["last_job"],
            "rejected": sum(window["rejected"]["count"] for window in windows),
            "frontier": [point.as_dict() for point in found.points],
            "chance": found.chance.as_dict(),
            "unknown": list(found.unknown),
            "means": report["policies"],
            "intervals": f"paired bootstrap over windows that share no job, {RESAMPLES} resamples, {LEVEL:.0%}; that a "
            "mean wait is certainly less than in Slurm's own order, for all points at once",
        },
    }


def _chosen(point: Point | None) -> tuple[str, float]:
    """What a verdict calls it, and its share."""
    if point is None or point.share is None:
        return SLURM, DEFAULT_SHARE
    return MODEL if point.learned else point.policy, point.share


def _tuned(report: Mapping[str, Any], settings: EvaluationSettings, served: Point) -> dict[str, Any] | None:
    """What the tuned slurm.conf gives, and what is `served` over it; None: nothing is tuned."""
    if settings.tuned is None:
        return None
    over_slurm, served_over = (report["comparisons"][pair] for pair in (f"{TUNED}/{OWN}", f"{served.name}/{TUNED}"))
    tuned, over = ({metric: Comparison(**one) for metric, one in of.items()} for of in (over_slurm, served_over))
    return {
        "sentence": over_tuned(tuned, served.name, over, {"objective": "J", TESTED: "mean wait"}),
        "found": dict(settings.tuned.found),
        "over_slurm": over_slurm,
        "served": served.name,
        "served_over": served_over,
    }


def text(made: Mapping[str, Any]) -> str:
    """A verdict as its file has it."""
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


def frontier(made: Mapping[str, Any]) -> Table:
    """The points of a verdict for people."""
    evidence, settings = made["evidence"], made["settings"]
    title = f"{evidence['windows']} windows of {settings['window']} jobs of {made['trace']['name']} on "
    title += f"{made['cluster']['text']}, estimates {settings['estimates']}, weights {settings['weights']}"
    chosen = "rl" if made["chosen"] == MODEL else made["chosen"]
    return table(evidence["frontier"], evidence["chance"], title, (chosen, made["share"]))


def lines(made: Mapping[str, Any]) -> list[str]:
    """A verdict for people."""
    share = "" if made["chosen"] == SLURM else f", and a waiting job lends {made['share']:g} of its wait"
    tuned = made["tuned"]
    return [f"verdict: {made['chosen']}{share}", made["reason"], UNTUNED if tuned is None else tuned["sentence"]]

"""Which policy a site should run, and what part of its wait a job should lend, by a paired test on its own recent jobs
(docs/good-for-us.md, decision 0093).

Of what harms nobody beyond chance and certainly waits less than Slurm's own order, the policy and the share of the
least J are chosen; where there is none, Slurm's order stays. "Certainly" is the upper end of a paired bootstrap
interval of the mean wait. One of several points only has to pass, so the intervals hold for all of them at once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from rich.table import Table

from rltuned import __version__
from rltuned.core.config import DEFAULT_SHARE, Config
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.tables import Floats
from rltuned.core.workers.progress import minutes
from rltuned.lab.evaluate.bootstrap import LEVEL, RESAMPLES
from rltuned.lab.evaluate.evaluation import Evaluation, ready
from rltuned.lab.evaluate.evaluation_settings import (
    AGAIN,
    ASK_TUNE,
    OWN,
    EvaluationSettings,
    from_options,
)
from rltuned.lab.evaluate.frontier import TESTED, Point, contenders, parse_shares, points, table
from rltuned.lab.evaluate.harm import unknown
from rltuned.lab.evaluate.policies import model_path
from rltuned.lab.evaluate.window_metrics import AGAINST_SLURM, COMPARED
from rltuned.lab.evaluate.windows import Split, recent
from rltuned.records import model_files as files
from rltuned.records.gate_verdict import FORMAT, MODEL, SLURM, VERSION
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

WARM: Final = 1000
"""Jobs before a window: fewer never have the queue that a site has."""
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
    15 % where the model says that it was trained on this very file. `length`: jobs of a window; None: as `recent` has
    it, after `WARM`. `begin`: no window begins before this row. Accounts are always looked at: without weights, Slurm's
    order has the usual ones. Raises EvaluationError: too little history. ModelError: the model was refused.
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
    each = [PLAIN_SECONDS if name in {OWN, AGAIN} else SERVED_SECONDS for name in evaluation.settings.policies]
    seconds = max(sum(sizes) * sum(each) / workers, max(sizes) * max(each))  # one simulation is one process's
    count = len(evaluation.cases) * len(evaluation.settings.policies)
    processes = "1 process" if workers == 1 else f"{workers} processes"
    return f"{count} simulations with {processes}: about {minutes(seconds)}, longer where the queue is long"


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


# --- from a report to a verdict


def measurements(report: Mapping[str, Any]) -> dict[str, dict[str, Floats]]:
    """(W,) values by policy and metric, of a report (`rltuned.lab.evaluate.evaluation_report.assemble`)."""
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

    `report`: of the evaluation (`lab.evaluate.evaluation.evaluate`) of windows that share no jobs. `settings`: of
    that evaluation. `valid_days`: for how long it may be gone by. Raises ModelError: the model has gone since it was
    evaluated.
    """
    found = judge(measurements(report), settings.seed, settings.objective)
    info = files.info(model_path(settings.model))
    meta, windows = report["meta"], report["windows"]
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
    return [f"verdict: {made['chosen']}{share}", made["reason"], ASK_TUNE]

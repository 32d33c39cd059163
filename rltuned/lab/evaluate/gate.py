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

from rich.table import Table

from rltuned import __version__
from rltuned.core.config import DEFAULT_SHARE, MODEL, Config
from rltuned.core.errors import EvaluationError
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.bootstrap import LEVEL, RESAMPLES
from rltuned.lab.evaluate.evaluation import Evaluation, ready, refuse_nameless, whose
from rltuned.lab.evaluate.evaluation_report import means
from rltuned.lab.evaluate.evaluation_settings import ASK_TUNE, EvaluationSettings, Start, as_configured
from rltuned.lab.evaluate.frontier import TESTED, Point, contenders, parse_shares, points, table
from rltuned.lab.evaluate.harm import unknown
from rltuned.lab.evaluate.measure import Measured
from rltuned.lab.evaluate.names import NamesWorth, worth
from rltuned.lab.evaluate.policies import model_path
from rltuned.lab.evaluate.windows import Split, recent
from rltuned.records import model_files as files
from rltuned.records.gate_verdict import FORMAT, SLURM, VERSION
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

WARM: Final = {Start.IDLE: 0, Start.WARM: 1000, Start.REAL: 3000}
"""Jobs before a window. Fewer never have the queue that a site has; where it is as it was, they say who has used how
much."""
VALID_DAYS: Final = 90.0


def asked(config: Config, given: Mapping[str, Any]) -> EvaluationSettings:
    """The settings of a gate's evaluation, `as_configured`; `shares` are given as `frontier.parse_shares` takes them.
    Names are judged where the site wants its verdict to say whether they are read. Raises EvaluationError, ConfigError.
    """
    given = dict(given)
    shares = given.pop("shares", None)
    policies = contenders() if shares is None else contenders(parse_shares(shares))
    settings = as_configured(config, {"policies": ",".join(policies), **given})
    wanted = config.estimates.names == "auto" and settings.from_sacct is not None and settings.by_history
    return replace(settings, names=settings.names or wanted)


def prepare(
    settings: EvaluationSettings,
    jobs: Workload,
    shape: ClusterShape,
    revision: str,
    length: int | None = None,
    begin: int = 0,
) -> Evaluation:
    """The evaluation that a verdict rests on: recent windows that share no job, `settings.windows` at most.

    Of the part `split` the whole means the recent half, or the last 15 % where the model says that it was trained on
    this very file. `length`: jobs of a window; None: as `recent` has it, after `WARM`. `begin`: no window begins before
    this row. Accounts are always looked at: without weights, Slurm's order has the usual ones. Raises EvaluationError:
    too little history, or no names where these are to be judged. ModelError: the model was refused.
    """
    split = settings.split
    if split is Split.ALL and jobs.source.sha256 in files.info(model_path(settings.model)).traces.values():
        split = Split.TEST
    if settings.names:
        refuse_nameless(jobs)
        if not settings.by_history:
            raise EvaluationError(f"--names: estimates are '{settings.estimates}', which names tell nothing of")
    windows = recent(len(jobs), split, length, settings.windows, settings.warm_jobs, begin)
    settled = replace(settings, gate=True, split=split, window=windows[0].jobs, windows=len(windows))
    if length is None and settings.warm_jobs is None:
        settled = replace(settled, warm_jobs=max(settled.window, WARM[settled.start]))
    return ready(replace(settled, weights=settled.weights or "usual"), jobs, shape, revision, windows)


@dataclass(frozen=True)
class PairedTests:
    """What the paired tests say."""

    points: Sequence[Point]
    chance: Point
    best: Point | None  # what is chosen; None: Slurm's own order stays
    rule: Point | None  # as `best`, had there been no model
    unknown: Sequence[str]  # bounds that could not be judged, in words

    @property
    def chosen(self) -> str:
        """The model, a plain rule, or Slurm's own order."""
        return _called(self.best)[0]

    @property
    def share(self) -> float:
        """`lend.share`."""
        return _called(self.best)[1]

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


def judge(measured: Mapping[str, Measured], seed: int, objective: Objective = DEFAULT) -> PairedTests:
    """The decision, from what was measured by policy and metric: (W,) values of the same windows in the same order, NaN
    where a window has none.
    """
    found, chance = points(measured, seed, objective)
    good = [point for point in found if point.certain and not point.harms]
    rules = [point for point in good if not point.learned]
    best, rule = (min(of, key=lambda point: point.objective, default=None) for of in (good, rules))
    return PairedTests(found, chance, best, rule, unknown(chance.means))


def _called(point: Point | None) -> tuple[str, float]:
    if point is None or point.share is None:
        return SLURM, DEFAULT_SHARE
    return MODEL if point.learned else point.policy, point.share


@dataclass(frozen=True)
class Verdict(PairedTests):
    """The choice, what it is about, and the evidence."""

    evaluation: Evaluation  # of windows that share no jobs
    measured: Mapping[str, Measured]
    model: files.ModelInfo
    manifest_sha256: str  # of the model
    made_at: float
    valid_days: float  # for how long it may be gone by
    names: NamesWorth | None = None  # what predictions by names would be worth; None: nobody asked

    @property
    def judged_by(self) -> Point:
        """What is chosen, or had come nearest to it: names are judged under it."""
        return self.best or min(self.points, key=lambda point: point.objective)

    def as_dict(self) -> dict[str, Any]:
        """As its file has it."""
        meta, cases = self.evaluation.meta, self.evaluation.cases
        fallback, fallback_share = _called(self.rule)
        return {
            "format": FORMAT,
            "version": VERSION,
            "chosen": self.chosen,
            "share": self.share,
            "fallback": fallback,
            "fallback_share": fallback_share,
            "reason": self.reason,
            "made_at": self.made_at,
            "valid_days": self.valid_days,
            **({} if self.names is None else {"names": self.names.as_dict()}),
            "model": {
                "name": self.model.name,
                "path": str(self.model.path),
                "manifest_sha256": self.manifest_sha256,
                "weights_sha256": self.model.sha256,
            },
            "cluster": meta["cluster"],
            "trace": meta["trace"],
            "load": meta["load"],
            "limits_tell": meta["limits_tell"],
            "settings": meta["settings"],
            "program": {
                "name": "rltuned",
                "version": __version__,
                "revision": meta["revision"],
                "command": meta["command"],
            },
            "evidence": {
                "windows": len(cases),
                "jobs": sum(case.window.jobs for case in cases),
                "first_job": int(cases[0].jobs.job_id[cases[0].past]),
                "last_job": int(cases[-1].jobs.job_id[-1]),
                "rejected": sum(len(case.rejected) for case in cases),
                "frontier": [point.as_dict() for point in self.points],
                "chance": self.chance.as_dict(),
                "unknown": list(self.unknown),
                "means": means(self.measured),
                "intervals": f"paired bootstrap over windows that share no job, {RESAMPLES} resamples, {LEVEL:.0%}; "
                "that a mean wait is certainly less than in Slurm's own order, for all points at once",
            },
        }

    def text(self) -> str:
        """The content of its file."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n"

    def table(self) -> Table:
        """The points for people."""
        meta, settings = self.evaluation.meta, self.evaluation.settings
        title = f"{whose(meta)}\n{len(self.evaluation.cases)} windows of {settings.window} jobs, estimates "
        title += f"{settings.estimates}, weights {settings.weights}"
        return table(self.points, self.chance, title, self.best)

    def lines(self) -> list[str]:
        """For people."""
        share = "" if self.chosen == SLURM else f", and a waiting job lends {self.share:g} of its wait"
        names = [] if self.names is None else self.names.lines()
        return [f"verdict: {self.chosen}{share}", self.reason, *names, ASK_TUNE]


def verdict(
    evaluation: Evaluation, measured: Mapping[str, Measured], made_at: float, valid_days: float = VALID_DAYS
) -> Verdict:
    """Of an evaluation of `prepare`, and what `evaluate` has measured. Raises ModelError: the model has gone since it
    was evaluated.
    """
    settings, info = evaluation.settings, files.info(model_path(evaluation.settings.model))
    found = judge(measured, settings.seed, settings.objective)
    about = (evaluation, measured, info, files.manifest_sha256(str(info.path)), made_at, valid_days)
    return Verdict(found.points, found.chance, found.best, found.rule, found.unknown, *about)


def with_names(made: Verdict, pool: WorkerPool, progress: Progress = silent) -> Verdict:
    """The verdict with what names would be worth, where its settings ask for that."""
    if not made.evaluation.settings.names:
        return made
    policy = made.judged_by.name
    return replace(made, names=worth(made.evaluation, policy, pool, made.measured[policy], progress))

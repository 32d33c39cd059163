"""Which policy a site should run, by a paired test on its own recent jobs (docs/evaluation.md, decision 0093).

The model is chosen where its mean wait is certainly lower than that of each plain rule and of Slurm's own order, and no
other metric and no account pays for it; else the best plain rule that certainly beats Slurm's order; else Slurm's order
stays.

"Certainly" is the upper end of a paired bootstrap interval. The model has to pass every single test, so choosing the
best rule on the same windows cannot flatter it (an intersection-union test: Berger, Technometrics 24, 1982). A rule
only has to pass one of several tests, so each of those is made that much harder (Bonferroni).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from rltuned import __version__
from rltuned.cluster.gate_verdict import FORMAT, MODEL, SLURM, VERSION
from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Floats
from rltuned.config import Config, SlurmSection
from rltuned.errors import EvaluationError
from rltuned.evaluate import site
from rltuned.evaluate.bootstrap import (
    FAIRNESS,
    GUARDED,
    LEVEL,
    MOST_WORSE,
    RESAMPLES,
    Comparison,
    beyond_chance,
    compare,
    counts,
)
from rltuned.evaluate.bootstrap import FEWEST as FEWEST_WINDOWS
from rltuned.evaluate.evaluation import Evaluation, ready
from rltuned.evaluate.evaluation_settings import AGAIN, LEARNED, PLAIN, TUNED, UNTUNED, EvaluationSettings, from_options
from rltuned.evaluate.policies import model_path
from rltuned.evaluate.window_metrics import COMPARED
from rltuned.evaluate.windows import Split, Window, bounds
from rltuned.policy import files
from rltuned.workers.progress import Progress, minutes, silent
from rltuned.workload.jobs import Workload
from rltuned.workload.readers import read
from rltuned.workload.shapes import read_shape

OWN: Final = "multifactor"
"""Slurm's own order."""
RULES: Final = ("saf", "sjf", "unicep", "wfp3", "fifo")
"""The plain rules that a model has to beat, and that are chosen where it does not."""
CANDIDATES: Final = ("rl", *RULES, OWN, AGAIN)

TESTED: Final = "wait_mean"

WINDOW: Final = 256
WINDOWS: Final = 30
SHORTEST_WINDOW: Final = 64
VALID_DAYS: Final = 90.0
ROLLOUT_SECONDS: Final = 0.1
PLAIN_SECONDS: Final = 0.003
"""Seconds of a process for each simulated job, the warm start's too: of a model that makes rollouts, of any other
policy. Rough: for the sentence that is said beforehand, and nothing else."""

_SIMULATED: Final = {
    "decide": ("class_by", "window", "age_bound", "borrow"),
    "rollout": ("orders", "min_jobs", "depth", "margin"),
}
"""Settings that what is served depends on, and that are simulated with their defaults."""


def not_judged(config: Config) -> list[str]:
    """Settings of the site's that the gate does not simulate, as ``section.key``."""
    plain = Config()
    return [
        f"{section}.{key}"
        for section, keys in _SIMULATED.items()
        for key in keys
        if getattr(getattr(config, section), key) != getattr(getattr(plain, section), key)
    ]


def as_configured(config: Config, given: Mapping[str, Any]) -> EvaluationSettings:
    """The settings of a gate's evaluation: what the daemon is configured to do, on a busy cluster. What is `given`, by
    the names of `EvaluationSettings`, comes first. Raises EvaluationError, ConfigError.
    """
    return from_options(
        {
            "trace": "",
            "cluster": "",
            "policies": ",".join(CANDIDATES),
            "estimates": config.estimates.source,
            "rollout": config.rollout.enabled != "off",
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
) -> tuple[EvaluationSettings, Workload, ClusterShape]:
    """The jobs and the cluster that a verdict is about: of files where the settings name them, else of Slurm itself.
    Where Slurm shows the cluster, the settings get its scheduler parameters, too.

    `settings`: `from_sacct` or `trace`; `cluster`, or "" for the cluster that Slurm shows now. Raises WorkloadError,
    ShapeError, SlurmError: jobs or cluster cannot be read.
    """
    if settings.cluster:
        shape = read_shape(settings.cluster)
    else:
        settings, shape = site.of_slurm(settings, slurm, now)
    if settings.from_sacct is not None:
        return settings, site.own_jobs(slurm, settings.from_sacct, now, tell, progress), shape
    return settings, read(settings.trace, skip_bad=settings.skip_bad, progress=progress), shape


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
    15 % where the model says that it was trained on this very file. `length`: jobs of a window; None: `WINDOW`, or
    fewer where the history is short. `begin`: no window begins before this row. Raises EvaluationError: too little
    history, or policies that cannot be gated. ModelError: the model was refused.
    """
    checked(settings)
    split = settings.split
    if split is Split.ALL and jobs.source.sha256 in files.info(model_path(settings.model)).traces.values():
        split = Split.TEST
    windows = recent(len(jobs), split, length, settings.windows, settings.warm_jobs, begin)
    settled = replace(settings, gate=True, split=split, window=windows[0].jobs, windows=len(windows))
    return ready(settled, jobs, shape, revision, windows)


def duration(evaluation: Evaluation, workers: int) -> str:
    """How long the simulations will take, in a sentence; a rough figure, of jobs and processes alone."""
    sizes = [len(case.jobs) for case in evaluation.cases]
    rollout = ROLLOUT_SECONDS if evaluation.settings.rollout else PLAIN_SECONDS
    each = [rollout if name in LEARNED else PLAIN_SECONDS for name in evaluation.settings.policies]
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
    fewest: int = FEWEST_WINDOWS,
    whose: str = "the gate",
) -> tuple[Window, ...]:
    """Windows that share no job, the last ones that fit into the recent part of a trace, from early to late.

    Disjoint, where `windows.draw` lets windows overlap: a decision is taken here, and overlapping windows look surer
    than they are. `split`: which part; the whole trace means its last half, so that there is a past to learn run times
    from. `length`: jobs of a window; None: `WINDOW`, or fewer where the part is short. `count`: at most so many.
    `past`: jobs before each window that a warm start simulates; None: as many as a window has. The first window begins
    behind as many. `begin`: no window begins before this row. Raises EvaluationError: fewer than `fewest` fit; says of
    `whose`.
    """
    first, last = bounds(jobs, split) if split is not Split.ALL else (jobs // 2, jobs)
    first = max(first, begin)
    there = max(last - first, 0)
    chosen = length if length is not None else min(WINDOW, there // fewest)
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

    chosen: str
    """`MODEL`, `SLURM`, or a rule."""
    fallback: str
    """As `chosen`, had there been no model."""
    best: str
    """The plain policy, Slurm's own order among them, of the least mean wait: what guarded metrics are held against."""
    against: Mapping[str, Comparison]
    """The model's mean wait over each plain policy's, at `LEVEL`."""
    guards: Mapping[str, Comparison]
    """The model's guarded metrics over those of `best`."""
    rules: Mapping[str, Comparison]
    """Each rule's mean wait over Slurm's own order's, at a level that allows for choosing among them."""
    unbeaten: Sequence[str]
    """Plain policies that the model does not certainly beat."""
    losing: Sequence[str]
    """Metrics in which it is too much worse than `best`, and where accounts lose, in words."""

    @property
    def reason(self) -> str:
        """The decision in a sentence or two."""
        if self.chosen == MODEL:
            ratio = in_words(self.against[self.best])
            return f"The model certainly waits less than every plain policy: {ratio} of {self.best}, the best of them."
        why = []
        if self.unbeaten:
            first = in_words(self.against[self.unbeaten[0]])
            why.append(f"it does not certainly wait less than {', '.join(self.unbeaten)} ({first})")
        refused = f"Not the model: {'; '.join([*why, *self.losing])}."
        if self.chosen == SLURM:
            return f"{refused} No plain rule certainly waits less than Slurm's own order: it stays."
        proof = in_words(self.rules[self.chosen])
        return f"{refused} {self.chosen} is the best plain rule: {proof} of Slurm's own order."


def judge(measured: Mapping[str, Mapping[str, Floats]], model: str, seed: int) -> Judgement:
    """The decision, from what was measured by policy and metric: (W,) values of the same windows in the same order, NaN
    where a window has none. `model`: which policy is the model; the others, `OWN` among them, are plain.
    """
    plain = [name for name in measured if name not in {model, AGAIN, TUNED}]
    rules = [name for name in plain if name != OWN]
    windows = len(measured[model][TESTED])
    drawn = counts(windows, seed)
    names = [model, *plain]
    waits = np.array([measured[name][TESTED] for name in names], dtype=np.float64)
    against = dict(zip(plain, compare(waits, drawn)[0][1:], strict=True))
    strict = compare(waits, drawn, 1.0 - (1.0 - LEVEL) / max(len(rules), 1))
    own = names.index(OWN)
    proven = {name: strict[names.index(name)][own] for name in rules}
    waited = {name: mean(measured[name][TESTED]) for name in names}
    best = min(plain, key=waited.__getitem__)
    certain = [name for name in rules if lower(proven[name]) and not unfair(measured, name)]
    fallback = min(certain, key=waited.__getitem__) if certain else SLURM

    guards, losing = {}, []
    for metric in GUARDED:
        pair = np.array([measured[model][metric], measured[best][metric]], dtype=np.float64)
        guards[metric] = compare(pair, drawn)[0][1]
        # Where the best rule has 0 there is no ratio, and any more than that is worse.
        if not mean(pair[0]) <= MOST_WORSE * mean(pair[1]):
            ratio = in_words(guards[metric])
            losing.append(f"its {metric} is {ratio} of that of {best}, and {MOST_WORSE} is allowed")
    unbeaten = [name for name in plain if not lower(against[name])]
    losing += unfair(measured, model)
    chosen = MODEL if not (unbeaten or losing) else fallback
    return Judgement(
        chosen=chosen,
        fallback=fallback,
        best=best,
        against=against,
        guards=guards,
        rules=proven,
        unbeaten=unbeaten,
        losing=losing,
    )


def unfair(measured: Mapping[str, Mapping[str, Floats]], name: str) -> list[str]:
    """Where accounts lose more under a policy than by chance, in words. Nothing where that was not measured."""
    nothing = np.zeros(0)
    own, chance = (
        {metric: mean(measured.get(of, {}).get(metric, nothing)) for metric in FAIRNESS} for of in (name, AGAIN)
    )
    return [
        f"{what}: {share:.2f}, by chance {usual:.2f}, and {allowed:g} more is allowed"
        for what, share, usual, allowed in beyond_chance(own, chance)
    ]


def lower(compared: Comparison) -> bool:
    """Whether a ratio is certainly below 1: two policies that never differ (1, 1, 1) are not a win for either."""
    return compared.ratio is not None and compared.hi is not None and compared.ratio < 1.0 and compared.hi <= 1.0


def mean(values: Floats) -> float:
    """Of what is known; infinite for nothing."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("inf")


def in_words(compared: Comparison) -> str:
    """A ratio with its interval."""
    if compared.ratio is None:
        return "no ratio (nobody waits)"
    ends = ", ".join("?" if end is None else f"{end:.3f}" for end in (compared.lo, compared.hi))
    return f"{compared.ratio:.3f} [{ends}]"


def over_tuned(
    tuned: Mapping[str, Comparison], who: str, over: Mapping[str, Comparison], names: Mapping[str, str]
) -> str:
    """What the `tuned` slurm.conf gives over the site's own, and `who` gives over the tuned one, in two sentences.

    `names`: of the metrics that are told; what is certain is so by the first.
    """
    alone, beside = (
        " and ".join(f"{name} {in_words(of[metric])}" for metric, name in names.items()) for of in (tuned, over)
    )
    certain = "certainly" if lower(over[next(iter(names))]) else "not certainly"
    return f"The tuned slurm.conf alone has {alone} of yours. {who} is {certain} better: {beside} of that."


# --- from a report to a verdict


def checked(settings: EvaluationSettings) -> str:
    """The name of the model among the policies; EvaluationError where a gate cannot judge them."""
    learned = [name for name in settings.policies if name in LEARNED]
    plain = [name for name in settings.policies if name in PLAIN]
    others = set(settings.policies) - {*learned, *plain, AGAIN, TUNED}
    if len(learned) != 1 or others or OWN not in plain or len(plain) < 2:
        raise EvaluationError(
            f"gate: --policies needs {LEARNED[0]}, {OWN} and at least one of {', '.join(PLAIN)}; "
            f"not '{','.join(settings.policies)}'"
        )
    return learned[0]


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
            for metric in (*COMPARED, *FAIRNESS)
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
    that evaluation. `valid_days`: for how long it may be gone by. Raises EvaluationError: as `checked`. ModelError: the
    model has gone since it was evaluated.
    """
    name = checked(settings)
    found = judge(measurements(report), name, settings.seed)
    info = files.info(model_path(settings.model))
    meta, windows = report["meta"], report["windows"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "chosen": found.chosen,
        "fallback": found.fallback,
        "reason": found.reason,
        "tuned": _tuned(report, settings, name if found.chosen in {MODEL, SLURM} else found.chosen),
        "made_at": made_at,
        "valid_days": valid_days,
        "model": {
            "name": info.name,
            "path": str(info.path),
            "policy": name,
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
            "best_plain": found.best,
            "model_wait": _each(found.against),
            "model_guarded": _each(found.guards),
            "rules_wait_of_slurm": _each(found.rules),
            "means": report["policies"],
            "intervals": f"paired bootstrap over windows that share no job, {RESAMPLES} resamples; the model against "
            f"each plain policy at {LEVEL:.0%}, a rule against Slurm's own order at {LEVEL:.0%} for all rules "
            f"together; guarded metrics at most {MOST_WORSE} of the best plain policy's",
        },
    }


def _tuned(report: Mapping[str, Any], settings: EvaluationSettings, served: str) -> dict[str, Any] | None:
    """What the tuned slurm.conf gives, and the policy that would be `served` over it; None: nothing is tuned."""
    if settings.tuned is None:
        return None
    over_slurm, served_over = (report["comparisons"][pair] for pair in (f"{TUNED}/{OWN}", f"{served}/{TUNED}"))
    tuned, over = ({metric: Comparison(**one) for metric, one in of.items()} for of in (over_slurm, served_over))
    return {
        "sentence": over_tuned(
            tuned, "The model" if served in LEARNED else served, over, {"objective": "J", TESTED: "mean wait"}
        ),
        "found": dict(settings.tuned.found),
        "over_slurm": over_slurm,
        "served": served,
        "served_over": served_over,
    }


def _each(compared: Mapping[str, Comparison]) -> dict[str, Any]:
    return {name: asdict(one) for name, one in compared.items()}


def text(made: Mapping[str, Any]) -> str:
    """A verdict as its file has it."""
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


def lines(made: Mapping[str, Any]) -> list[str]:
    """A verdict for people."""
    evidence, settings, tuned = made["evidence"], made["settings"], made["tuned"]
    where = f"{evidence['windows']} windows of {settings['window']} jobs of {made['trace']['name']}"
    found = [
        f"verdict: {made['chosen']}",
        made["reason"],
        UNTUNED if tuned is None else tuned["sentence"],
        f"{where} on {made['cluster']['text']}, estimates {settings['estimates']}, start {settings['start']}",
    ]
    for name, means in evidence["means"].items():
        compared = evidence["model_wait"].get(name)
        beside = f"   model / {name}: {in_words(Comparison(**compared))}" if compared is not None else ""
        if name == TUNED:
            beside = f"   over {OWN}: {in_words(Comparison(**tuned['over_slurm'][TESTED]))}"
        wait = "–" if means[TESTED] is None else f"{means[TESTED]:,.0f} s"
        shown = "slurm.conf, tuned" if name == TUNED else name
        found.append(f"  {shown:<17} mean wait {wait:>12}{beside}")
    return found

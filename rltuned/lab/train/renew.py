"""`rltuned learn`: a site's own model and verdict, renewed from its own jobs (docs/learning.md, decision 0152).

A candidate is trained on the earlier jobs, and the gate judges it and the version in force on the same later ones.
Everything that takes long is kept in a working directory, so that a run that was killed goes on.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.config import DEFAULT_MODEL, MODEL, SlurmSection
from rltuned.core.errors import EvaluationError, ModelError, RltunedError
from rltuned.core.safe_files import encode, read, write_atomic
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate import gate, live, site
from rltuned.lab.evaluate.bootstrap import Comparison, compare, counts
from rltuned.lab.evaluate.evaluation import evaluate
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings, with_share
from rltuned.lab.evaluate.frontier import TESTED
from rltuned.lab.evaluate.windows import Split, bounds, recent
from rltuned.lab.train import command
from rltuned.lab.train.curriculum import Site
from rltuned.lab.train.training import train
from rltuned.records import model_files as files
from rltuned.records.gate_verdict import DAY
from rltuned.records.store import ModelStore, Version
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

RESUMED: Final = DAY
"""A run that was interrupted goes on with the same jobs for so many seconds; then it begins anew."""
PAUSE_DAYS: Final = 7.0
"""After a rollback no candidate is made for so long: tomorrow's would be like the one that was given up."""

Trainer = Callable[[Workload, ClusterShape, Path], Path]
"""Makes a model of jobs and a cluster in a directory, or goes on with one; returns the path of its manifest."""


@dataclass(frozen=True)
class _Begun:
    now: float


class Renewal(NamedTuple):
    """What a run has done."""

    version: int
    """In force now."""
    accepted: bool
    """It is a new one."""
    verdict: gate.Verdict
    """About it."""
    candidate: gate.Verdict | None
    """The verdict about the candidate; None: there was none."""
    over_current: Comparison | None
    """Mean wait of the candidate over that of the version that was in force, each with its share; None where the gate
    does not choose the candidate."""
    why: str
    """In a sentence: what became of the candidate, or why there was none."""
    given_up: int = 0
    """Version that was rolled back in this run; 0: none."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "version": self.version,
            "accepted": self.accepted,
            "chosen": self.verdict.chosen,
            "share": self.verdict.share,
            "reason": self.verdict.reason,
            "why": self.why,
            "given_up": self.given_up,
            "candidate": None if self.candidate is None else self.candidate.chosen,
            "over_current": None if self.over_current is None else vars(self.over_current),
        }


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run is given, in a store that is locked."""

    store: ModelStore
    settings: EvaluationSettings  # of the gate
    pool: WorkerPool  # that simulates
    now: float  # epoch seconds
    revision: str
    length: int | None = None  # jobs of a window; None: as `recent`
    valid_days: float = gate.VALID_DAYS
    tell: Callable[[str], None] = lambda _: None
    """Gets a sentence about what does not stop the run."""
    progress: Progress = silent

    @property
    def work(self) -> Path:
        """The working directory (`end_of_history`), deleted at the end."""
        return self.store.root / "work"


def learn(run: Run, slurm: SlurmSection, minutes: float) -> Renewal:
    """`renew`, of the jobs and the cluster that the settings name, with a candidate that is trained for so many
    `minutes` on 2 cores; without one where these are 0, or TensorFlow is missing.
    """
    settings, jobs, shape = site.of_settings(
        run.settings, slurm, end_of_history(run.work, run.now), run.tell, run.progress
    )

    def trainer(jobs: Workload, shape: ClusterShape, out: Path) -> Path:
        asked = command.settings(
            name="site", budget=minutes, seed=settings.seed, objective=settings.objective, begin=DEFAULT_MODEL
        )
        return train(
            [Site(jobs, shape)],
            asked,
            out,
            command="rltuned learn",
            revision=run.revision,
            processes=run.pool.processes,
            resume=True,
            seconds=60.0 * minutes,
            progress=run.progress,
        ).path

    why_not = "" if minutes else "--budget 0"
    if minutes and find_spec("tensorflow") is None:
        why_not = "TensorFlow is not installed on this host (docs/learning.md)"
    return renew(replace(run, settings=settings), jobs, shape, trainer, why_not)


def end_of_history(work: Path, now: float) -> float:
    """The end of the history of this run, epoch seconds: now, or that of a run that was interrupted within `RESUMED`.

    What an older run has left in the working directory `work` is deleted.
    """
    run = work / "run.json"
    with suppress(RltunedError):
        begun = read(_Begun, run, "a run")
        if begun is not None and 0.0 <= now - begun.now < RESUMED:
            return begun.now
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        write_atomic(run, encode(_Begun(now)))
    except OSError as error:
        raise EvaluationError(f"{work}: cannot be written: {error.strerror}") from error
    return now


def in_force(store: ModelStore, now: float, tell: Callable[[str], None]) -> Version:
    """The version in force. Where there is none, or it is damaged: the one before it, else the shipped model."""
    current, why = store.current(), "there was none"
    if current is not None:
        try:
            files.load(str(current.model))
        except ModelError as error:
            why = f"version {current.number} is damaged"
            tell(f"{why}: {error}")
        else:
            return current
    version = store.before() or store.add(DEFAULT_MODEL, now, f"shipped: {DEFAULT_MODEL}")
    store.use(version, now, why)
    return version


def paused(store: ModelStore, now: float) -> str:
    """Why no candidate is to be made now; "" where one may."""
    uses = store.uses()
    if uses and uses[-1].back and now - uses[-1].since < PAUSE_DAYS * DAY:
        return f"the last version was given up less than {PAUSE_DAYS:g} days ago ({uses[-1].why})"
    return ""


def watched(
    store: ModelStore, now: float, tell: Callable[[str], None], look: Callable[[float, float], live.Live]
) -> int:
    """Go back to the version before, where jobs have really waited longer since this one came into force.

    `look`: since when the two are in force → `live.look`. Gives the version that was given up; 0: none. One that a
    person has chosen is only told of.
    """
    uses = store.uses()
    if len(uses) < 2 or uses[-1].back or now - uses[-1].since > (live.LOOK_DAYS + 1.0) * DAY:
        return 0
    last = uses[-1]
    found = look(uses[-2].since, last.since)
    if not found.worse:
        return 0
    why = f"since version {last.version} came into force, jobs have waited {found}"
    tell(why)
    if not last.watched or store.before() is None:
        return 0
    store.rollback(now, why)
    return last.version


def renew(run: Run, jobs: Workload, shape: ClusterShape, trainer: Trainer, why_not: str = "") -> Renewal:
    """One run on a site's history and cluster; its settings are those of `site.of_settings`.

    `why_not`: why there is to be no candidate; "": there is to be one.

    Raises:
        EvaluationError: too little history for a verdict; what is in force stays.
        ModelError: the store cannot be used.
    """
    store, settings, now, revision, length = run.store, run.settings, run.now, run.revision, run.length
    given_up = watched(store, now, run.tell, partial(live.look, settings, jobs, shape, revision))
    current = in_force(store, now, run.tell)
    why_not = why_not or paused(store, now)
    known = current.learned_until - jobs.source.start
    begin = int(np.searchsorted(jobs.submit_time, known, side="right")) if current.learned_until else 0

    def judged(model: Path, name: str) -> gate.Verdict:
        asked = replace(settings, model=str(model), split=split)
        evaluation = gate.prepare(asked, jobs, shape, revision, length, begin)
        measured = evaluate(evaluation, run.pool, run.work / f"{name}.json", progress=run.progress)
        return gate.with_names(gate.verdict(evaluation, measured, now, run.valid_days), run.pool, run.progress)

    # What one of the two has learned from must not judge it, and both are judged on the same jobs.
    split, candidate = Split.ALL, None
    with _kept(run.work, [jobs.source.sha256, current.manifest_sha256, revision, length, settings.as_dict()]):
        if not why_not:
            try:
                recent(len(jobs), Split.TEST, length, settings.windows, settings.warm_jobs, begin)
                candidate, split = trainer(jobs, shape, run.work / "training"), Split.TEST
            except EvaluationError as error:
                why_not = str(error)
        verdict = judged(current.model, "current")
        other, over, why = None, None, f"No candidate: {why_not}."
        if candidate is not None:
            other = judged(candidate, "candidate")
            over = compared(other, verdict, settings.seed)
            why = not_better(other, verdict, over)
        if other is None or why:
            store.renew(current, verdict.text().encode())
            return Renewal(current.number, False, verdict, other, over, why, given_up)
        last = float(jobs.submit_time[bounds(len(jobs), Split.TEST)[0] - 1]) + jobs.source.start
        version = store.add(
            str(candidate),
            now,
            f"learned from {len(jobs):,} jobs",
            verdict=other.text().encode(),
            learned_until=max(last, current.learned_until),
        )
        store.use(version, now, "the gate accepted it", watched=True)
        said = f"The candidate is in force as version {version.number}."
        return Renewal(version.number, version != current, other, other, over, said, given_up)


def compared(candidate: gate.Verdict, current: gate.Verdict, seed: int) -> Comparison | None:
    """Mean wait of a candidate that the gate chooses over that of the version in force, each with the share that its
    verdict has; where it is not the model that that one chooses, with the candidate's. None: it is not chosen.
    """
    if candidate.chosen != MODEL:
        return None
    share = current.share if current.chosen == MODEL else candidate.share
    mine = candidate.measured[with_share("rl", candidate.share)][TESTED]
    theirs = current.measured[with_share("rl", share)][TESTED]
    return compare(mine, theirs, counts(len(mine), seed))


def not_better(candidate: gate.Verdict, current: gate.Verdict, over: Comparison | None) -> str:
    """Why a candidate does not come into force; "" where it does.

    `candidate`: the gate's verdict about it; `current`: about the version in force, on the same windows; `over`: mean
    wait of the one over that of the other (`compared`).
    """
    if over is None:
        return f"The candidate is refused: the gate does not choose it ({candidate.reason.rstrip('.')})."
    if current.chosen == MODEL and not over.lower:
        return f"The candidate is refused: it does not certainly wait less than the version in force ({over})."
    return ""


@contextmanager
def _kept(work: Path, asked: list[Any]) -> Iterator[None]:
    """Keep in the working directory what was interrupted, if it was asked the same; delete it at the end.

    sacct tells of some jobs late: the same time of the past may have other jobs now. After an `EvaluationError` the
    next run is to look at more jobs.
    """
    sign, wanted = work / "asked.json", json.dumps(asked, sort_keys=True, default=str)
    try:
        if not sign.exists() or sign.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(work / "training", ignore_errors=True)
            for path in work.glob("c*.json.state"):
                path.unlink()
            work.mkdir(parents=True, exist_ok=True)
            write_atomic(sign, wanted.encode())
        yield
    except OSError as error:
        raise EvaluationError(f"{work}: cannot be written: {error.strerror}") from error
    except EvaluationError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)

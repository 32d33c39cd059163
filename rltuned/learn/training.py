"""Training from traces to a model file: PPO, and the checkpoint that is best on windows set aside.

The same settings give the same weights on the same machine and TensorFlow, however many processes simulate and however
often the run was killed and resumed: what is random is drawn from the seed and the number of the iteration.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Singles
from rltuned.errors import EvaluationError
from rltuned.evaluate.case import Case
from rltuned.learn.beginning import (
    RECORDED_STEPS,
    RECORDED_TEMPERATURE,
    RECORDED_WINDOWS,
    beginner,
    rule_alone,
    run_time_coefficients,
)
from rltuned.learn.curriculum import Site, candidate, validation_windows
from rltuned.learn.ppo import PPO, deterministic, tensorboard
from rltuned.learn.run_directory import RunDirectory, draw_curves
from rltuned.learn.sampling import (
    MeasureTask,
    RecordedQueues,
    RecordTask,
    SamplingTask,
    Steps,
    measure_policies,
    record_queues,
    sample_trajectories,
)
from rltuned.learn.select import CHANCE, Validation, Validator, better
from rltuned.learn.training_settings import TrainSettings
from rltuned.policy.actor import AGEING, EXTRAS, RUN_TIME, Actor
from rltuned.policy.files import TrainingPart, save
from rltuned.workers.pool import WorkerPool
from rltuned.workers.progress import Progress, silent


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    path: Path
    """Of the manifest."""
    actor: Actor
    validation: Validation
    """Of the checkpoint that was kept."""
    iteration: int
    """Of that checkpoint; 0: what PPO began with."""
    iterations: int
    """That were done."""
    skipped: Mapping[str, int]
    """Windows that could not teach, by reason."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "manifest": str(self.path),
            "iteration": self.iteration,
            "iterations": self.iterations,
            "skipped": dict(self.skipped),
            "validation": asdict(self.validation),
        }


class _Training:
    """A run between two iterations."""

    def __init__(self, sites: Sequence[Site], settings: TrainSettings, pool: WorkerPool, progress: Progress) -> None:
        self.sites, self.settings, self.pool, self.progress = sites, settings, pool, progress
        self.skipped: dict[str, int] = {}
        self.headroom = self._with_headroom()
        windows = validation_windows(
            sites, settings.validation_window, settings.validation_windows, settings.seed, settings.estimates
        )
        self.validator = Validator(windows, settings.ppo.objective, pool)

    def _with_headroom(self) -> list[int]:
        """Numbers of the candidates that can teach.

        Raises:
            EvaluationError: none can.
        """
        settings, count = self.settings, self.settings.curriculum.candidates
        tasks = [MeasureTask(self.candidate(index), (settings.base,)) for index in range(count)]
        kept = []
        for done, found in enumerate(self.pool.map(measure_policies, tasks), 1):
            wait = found[settings.base]["wait_mean"]
            if wait >= settings.curriculum.least_wait:  # not when it is NaN
                kept.append(done - 1)
            self.progress("choosing windows", done, count)
        self.skipped["no headroom"] = count - len(kept)
        if not kept:
            raise EvaluationError(
                f"in none of {count} windows does {settings.base} let jobs wait {settings.curriculum.least_wait:g} s "
                "on average: nothing to be learned from this trace on this cluster; is the cluster larger than the "
                "trace's own?"
            )
        return kept

    def candidate(self, index: int) -> Case:
        return candidate(self.sites, self.settings.curriculum, self.settings.seed, index)

    def beginning(self) -> Actor:
        """The rule on expected run times, with a network that corrects nothing yet."""
        settings = self.settings
        windows = [self.candidate(index) for index in self.headroom[:RECORDED_WINDOWS]]
        extras = self._extras(run_time_coefficients(windows))
        plain = self.rule_alone(extras)
        tasks = [
            RecordTask(case, plain, RECORDED_TEMPERATURE, settings.seed + number, RECORDED_STEPS)
            for number, case in enumerate(windows)
        ]
        recorded: list[RecordedQueues] = []
        for queues in self.pool.map(record_queues, tasks):
            recorded.append(queues)
            self.progress("recording queues", len(recorded), len(tasks))
        recorded = [queues for queues in recorded if len(queues.count)]
        if not recorded:
            raise EvaluationError("no queue of two jobs in any window: nothing to be learned from this trace")
        rng = np.random.default_rng([settings.seed, 4])
        rule = beginner(settings.name, settings.architecture, recorded, rng, settings.columns)
        return replace(rule, weights={**rule.weights, **extras})

    def rule_of(self, actor: Actor) -> Actor:
        """The rule that an actor corrects, as it was fitted to these traces, under the actor's name."""
        extras = {name: actor.weights[name] for name in EXTRAS if name in actor.weights}
        return replace(self.rule_alone(extras), name=actor.name)

    def rule_alone(self, extras: Mapping[str, Singles]) -> Actor:
        """The rule to be corrected, or SAF, with these tensors of `EXTRAS`."""
        return rule_alone(self.settings.architecture.residual or "saf", extras)

    def _extras(self, coefficients: Singles) -> dict[str, Singles]:
        """The coefficients, and the exponent of ageing that is best on the validation windows.

        One that is better than a smaller one by what may be chance is not taken: what ages more is further from the
        rule.
        """
        chosen: dict[str, Singles] = {RUN_TIME: coefficients}
        if self.settings.architecture.residual is None:
            return chosen  # no rule that could age
        best = None
        for done, exponent in enumerate(self.settings.ageing, 1):
            tried = {RUN_TIME: coefficients}
            if exponent > 0.0:
                tried[AGEING] = np.array([exponent], dtype=np.float32)
            validation = self.validator.validate(self.rule_alone(tried))
            if best is None or better(validation, best, CHANCE):
                best, chosen = validation, tried
            self.progress("choosing how waiting counts", done, len(self.settings.ageing))
        return chosen

    def sample(self, iteration: int, ppo: PPO) -> tuple[Steps | None, float]:
        """The decisions of an iteration, and the mean objective of its trajectories in units of the base rule's."""
        settings, options = self.settings, self.settings.ppo
        rng = np.random.default_rng([settings.seed, 5, iteration])
        chosen = rng.choice(self.headroom, options.windows, replace=len(self.headroom) < options.windows)
        seeds = rng.integers(2**31, size=options.windows)
        actor = ppo.actor
        tasks = [
            SamplingTask(
                case=self.candidate(int(index)),
                actor=actor,
                base=settings.base,
                objective=options.objective,
                temperature=options.temperature,
                heads=options.heads,
                count=options.trajectories,
                seed=int(seed),
                most_steps=options.most_steps,
            )
            for index, seed in zip(chosen, seeds, strict=True)
        ]
        parts: list[Steps] = []
        ratios: list[float] = []
        for found in self.pool.map(sample_trajectories, tasks):
            if found.steps is None:
                self.skipped[found.skipped] = self.skipped.get(found.skipped, 0) + 1
            else:
                parts.append(found.steps)
                ratios += found.ratios
        return (Steps.joined(parts), float(np.mean(ratios))) if parts else (None, float("nan"))


def train(
    sites: Sequence[Site],
    settings: TrainSettings,
    out: Path,
    *,
    command: str = "",
    revision: str = "unknown",
    processes: int = 1,
    resume: bool = False,
    seconds: float = float("inf"),
    progress: Progress = silent,
    clock: Callable[[], float] = time.monotonic,
) -> Trained:
    """A model of these traces, in the directory `out`.

    Args:
        sites: traces with their clusters.
        settings: what decides the result.
        out: the run directory (`rltuned.learn.run_directory`).
        command: as it was given, for the record.
        revision: of the code.
        processes: that simulate windows.
        resume: go on with what is in `out`.
        seconds: after so many no iteration is begun; what is best until then is kept.
        progress: called after each step.
        clock: for `seconds`.

    Raises:
        EvaluationError: nothing to be learned, windows longer than a trace's part, or a directory of another run.
    """
    began = clock()
    deterministic()
    directory = RunDirectory(out, _record(sites, settings, revision), resume=resume)
    (out / "command").write_text(command + "\n", encoding="utf-8")
    with WorkerPool(processes) as pool, tensorboard(out / "tensorboard") as curves:
        run = _Training(sites, settings, pool, progress)
        held = directory.last() if resume else None
        if held is None:
            actor = run.beginning()
            validation = run.validator.validate(actor)
            ppo = PPO(settings.ppo, actor)
            best, done = actor, 0
            kept: dict[str, Any] = {"validation": asdict(validation), "iteration": 0}
            directory.metrics(before=-1)
            _add(directory, curves, {"iteration": 0, **_flat(validation)})
            _checkpoint(directory, 0, ppo, best, kept, run.skipped)
        else:
            done, arrays, kept = held
            run.skipped = kept.pop("skipped")
            actor, best = (Actor(settings.name, settings.architecture, _part(arrays, of)) for of in ("actor/", "best/"))
            ppo = PPO(settings.ppo, actor)
            ppo.restore(arrays)
            directory.metrics(before=done)
        last = settings.iterations
        while done < last and clock() - began < seconds:
            done += 1
            steps, objective = run.sample(done, ppo)
            line: dict[str, Any] = {"iteration": done}
            if steps is not None:
                rng = np.random.default_rng([settings.seed, 7, done])
                stats = ppo.update(steps, rng, 1.0 - (done - 1) / last)
                line |= {"objective": objective, "decisions": len(steps.count), **asdict(stats)}
            if done % settings.check == 0 or done == last:
                actor = ppo.actor
                validation = run.validator.validate(actor)
                line |= _flat(validation)
                if better(validation, Validation(**kept["validation"]), CHANCE if kept["iteration"] == 0 else 0.0):
                    best, kept = actor, {"validation": asdict(validation), "iteration": done}
                _add(directory, curves, line)
                _checkpoint(directory, done, ppo, best, kept, run.skipped)
            else:
                _add(directory, curves, line)
            progress("learning", done, last)
        if done < last:
            progress("learning", last, last)
        draw_curves(directory.metrics(), out / "learning.png")
        validation = Validation(**kept["validation"])
        if best.corrects_nothing:
            best = run.rule_of(best)  # the file says plainly what the model is: a rule with a few numbers, no network
        golden_state, golden_base = _golden(run, best)
    path = save(
        best,
        out,
        _training_part(sites, settings, revision, done, kept["iteration"]),
        _metrics(validation),
        golden_state,
        golden_base,
    )
    return Trained(path, best, validation, kept["iteration"], done, run.skipped)


def _record(sites: Sequence[Site], settings: TrainSettings, revision: str) -> dict[str, Any]:
    """What the run directory says of what was asked."""
    traces = [
        {
            "trace": site.jobs.source.name,
            "sha256": site.jobs.source.sha256,
            "jobs": len(site.jobs),
            "cluster": site.shape.text,
        }
        for site in sites
    ]
    return {"settings": settings.as_dict(), "sites": traces, "revision": revision}


def _checkpoint(
    directory: RunDirectory, done: int, ppo: PPO, best: Actor, kept: Mapping[str, Any], skipped: Mapping[str, int]
) -> None:
    arrays = ppo.state() | {f"best/{name}": value for name, value in best.weights.items()}
    directory.save(done, arrays, {**kept, "skipped": dict(skipped)})


def _part(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a checkpoint whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _add(directory: RunDirectory, curves: Callable[[int, Mapping[str, float]], None], line: dict[str, Any]) -> None:
    directory.add_metrics(line)
    curves(line["iteration"], {key: value for key, value in line.items() if isinstance(value, float)})


def _flat(validation: Validation) -> dict[str, float]:
    return {
        "validation.score": validation.score,
        **{f"validation.{name}": value for name, value in validation.ratios.items()},
    }


def _metrics(validation: Validation) -> dict[str, float]:
    """For the manifest."""
    found = _flat(validation)
    for group, ratios in validation.groups.items():
        found |= {f"validation.{group}.{name} / {validation.rules[group]}": value for name, value in ratios.items()}
    return {name: round(value, 6) for name, value in found.items()}


def _training_part(sites: Sequence[Site], settings: TrainSettings, revision: str, done: int, kept: int) -> TrainingPart:
    return TrainingPart(
        method="ppo",
        data=f"the first 70 % of {', '.join(f'{site.jobs.source.name} on {site.shape.text}' for site in sites)}; "
        f"the next 15 % chose iteration {kept} of {done}",
        traces=_digests(sites),
        seed=settings.seed,
        revision=revision,
        settings=settings.as_dict(),
    )


def _digests(sites: Sequence[Site]) -> dict[str, str]:
    """Digest of each file by its name; two files of one name are numbered."""
    found: dict[str, str] = {}
    for source in (site.jobs.source for site in sites):
        name, number = source.name, 2
        while found.get(name, source.sha256) != source.sha256:
            name, number = f"{source.name} ({number})", number + 1
        found[name] = source.sha256
    return found


def _golden(run: _Training, actor: Actor) -> tuple[Singles, Floats | None]:
    """A queue of some training window, for the manifest's golden vector."""
    plain = run.rule_of(actor)
    for index in run.headroom:
        queues = record_queues(RecordTask(run.candidate(index), plain, 0.0, 0, 1_000_000))
        if len(queues.count):
            widest = int(np.argmax(queues.count))
            first = int(queues.count[:widest].sum())
            rows = slice(first, first + min(int(queues.count[widest]), 16))
            base = None if run.settings.architecture.residual is None else queues.base[rows].astype(np.float64)
            return queues.state[rows], base
    raise EvaluationError("no queue of two jobs in any window")

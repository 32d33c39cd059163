"""Training from traces to a model file: warm start, then PPO, and the checkpoint that is best on windows set aside (docs/training.md).

The same settings give the same weights on the same machine and TensorFlow, however many processes play and however often
the run was killed and resumed: what is random is drawn from the seed and the number of the iteration.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltuned.errors import EvaluationError
from rltuned.evaluate.case import Case
from rltuned.learn.curriculum import Site, candidate, validation
from rltuned.learn.ppo import PPO, deterministic, tensorboard
from rltuned.learn.rollouts import Judge, Lesson, Roll, Rolled, Steps, Teach, critic_weights, judge, roll, teach
from rltuned.learn.run_directory import RunDirectory, draw_curves
from rltuned.learn.select import CHANCE, Jury, Verdict, better
from rltuned.learn.settings import TrainSettings
from rltuned.learn.warm import beginner, rule_alone, run_time_coefficients, warm_start
from rltuned.policy.actor import AGEING, EXTRAS, RUN_TIME, Actor
from rltuned.policy.files import save
from rltuned.policy.manifest import TrainingPart
from rltuned.workers.pool import WorkerPool
from rltuned.workers.progress import Progress, silent

Singles = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trained:
    """What came of a run."""

    path: Path
    """Of the manifest."""
    actor: Actor
    verdict: Verdict
    """On the validation windows, of the checkpoint that was kept."""
    iteration: int
    """Of that checkpoint; 0: what PPO began with."""
    iterations: int
    """That were done."""
    skipped: Mapping[str, int]
    """Windows that could not teach, by reason."""


class _Training:
    """A run between two iterations."""

    def __init__(self, sites: Sequence[Site], settings: TrainSettings, pool: WorkerPool, progress: Progress) -> None:
        self.sites, self.settings, self.pool, self.progress = sites, settings, pool, progress
        self.skipped: dict[str, int] = {}
        self.headroom = self._with_headroom()
        checked = validation(
            sites, settings.validation_window, settings.validation_windows, settings.seed, settings.estimates
        )
        self.jury = Jury(checked, settings.ppo.objective, pool)

    def _with_headroom(self) -> list[int]:
        """Numbers of the candidates that can teach.

        Raises:
            EvaluationError: none can.
        """
        settings, count = self.settings, self.settings.curriculum.candidates
        tasks = [Judge(self.candidate(index), (settings.base,)) for index in range(count)]
        kept = []
        for done, found in enumerate(self.pool.map(judge, tasks), 1):
            wait = found[settings.base]["wait_mean"]
            if wait >= settings.curriculum.least_wait:  # not when it is NaN
                kept.append(done - 1)
            self.progress("choosing windows", done, count)
        self.skipped["no headroom"] = count - len(kept)
        if not kept:
            raise EvaluationError(
                f"in none of {count} windows does {settings.base} let jobs wait {settings.curriculum.least_wait:g} s on average: "
                "nothing to be learned from this trace on this cluster; is the cluster larger than the trace's own?"
            )
        return kept

    def candidate(self, index: int) -> Case:
        return candidate(self.sites, self.settings.curriculum, self.settings.seed, index)

    def beginning(self) -> tuple[Actor, Verdict, Mapping[str, float]]:
        """The rule on expected run times, or what the warm start has made of it where that is better; and how good it is."""
        settings = self.settings
        rng = np.random.default_rng([settings.seed, 4])
        windows = [self.candidate(index) for index in self.headroom[: settings.warm.windows]]
        extras = self._extras(run_time_coefficients(windows))
        plain = self.rule_alone(extras)
        tasks = [
            Teach(case, plain, settings.warm.temperature, settings.seed + number, settings.warm.most_steps)
            for number, case in enumerate(windows)
        ]
        lessons: list[Lesson] = []
        for found in self.pool.map(teach, tasks):
            lessons.append(found)
            self.progress("recording queues", len(lessons), len(tasks))
        lessons = [lesson for lesson in lessons if len(lesson.count)]
        if not lessons:
            raise EvaluationError("no queue of two jobs in any window: nothing to be learned from this trace")
        rule = beginner(settings.name, settings.architecture, lessons, rng, settings.columns)
        rule = replace(rule, weights={**rule.weights, **extras})
        verdict = self.jury.verdict(rule)
        if not settings.warm.steps:
            return rule, verdict, {}
        actor, loss = warm_start(rule, lessons, settings.warm, rng, self.progress)
        warm = self.jury.verdict(actor)
        told = {"warm.loss": loss, "warm.score": warm.score, "rule.score": verdict.score}
        return (actor, warm, told) if better(warm, verdict, CHANCE) else (rule, verdict, told)

    def rule_alone(self, extras: Mapping[str, Singles]) -> Actor:
        """The rule to be corrected, or SAF, with these tensors of `EXTRAS`."""
        return rule_alone(self.settings.architecture.residual or "saf", extras)

    def _extras(self, coefficients: Singles) -> dict[str, Singles]:
        """The coefficients, and the exponent of ageing that is best on the validation windows.

        One that is better than a smaller one by what may be chance is not taken: what ages more is further from the rule.
        """
        chosen: dict[str, Singles] = {RUN_TIME: coefficients}
        if self.settings.architecture.residual is None:
            return chosen  # no rule that could age
        best = None
        for done, exponent in enumerate(self.settings.ageing, 1):
            tried = {RUN_TIME: coefficients}
            if exponent > 0.0:
                tried[AGEING] = np.array([exponent], dtype=np.float32)
            verdict = self.jury.verdict(self.rule_alone(tried))
            if best is None or better(verdict, best, CHANCE):
                best, chosen = verdict, tried
            self.progress("choosing how waiting counts", done, len(self.settings.ageing))
        return chosen

    def rolls(self, iteration: int, ppo: PPO) -> tuple[Steps | None, float]:
        """The decisions of an iteration, and the mean objective of its roll-outs in units of the base rule's."""
        settings, options = self.settings, self.settings.ppo
        rng = np.random.default_rng([settings.seed, 5, iteration])
        chosen = rng.choice(self.headroom, options.windows, replace=len(self.headroom) < options.windows)
        seeds = rng.integers(2**31, size=options.windows)
        actor, critic = ppo.actor, ppo.critic
        tasks = [
            Roll(
                case=self.candidate(int(index)),
                actor=actor,
                critic=critic,
                base=settings.base,
                objective=options.objective,
                temperature=options.temperature,
                heads=options.heads,
                count=options.rollouts,
                seed=int(seed),
                horizon=options.horizon,
                smoothing=options.smoothing,
                most_steps=options.most_steps,
            )
            for index, seed in zip(chosen, seeds, strict=True)
        ]
        parts: list[Steps] = []
        ratios: list[float] = []
        found: Rolled
        for found in self.pool.map(roll, tasks):
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
        processes: that play windows.
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
            actor, verdict, told = run.beginning()
            ppo = PPO(settings.ppo, actor, critic_weights(np.random.default_rng([settings.seed, 6])))
            best, done = actor, 0
            kept: dict[str, Any] = {"verdict": asdict(verdict), "iteration": 0}
            directory.told(before=-1)
            _tell(directory, curves, {"iteration": 0, **told, **_flat(verdict)})
            _checkpoint(directory, 0, ppo, best, kept, run.skipped)
        else:
            done, arrays, kept = held
            run.skipped = kept.pop("skipped")
            started = {name[6:]: value for name, value in arrays.items() if name.startswith("actor/")}
            ppo = PPO(
                settings.ppo,
                Actor(settings.name, settings.architecture, started),
                {name[7:]: value for name, value in arrays.items() if name.startswith("critic/")},
            )
            ppo.restore(arrays)
            best = Actor(
                settings.name,
                settings.architecture,
                {name[5:]: value for name, value in arrays.items() if name.startswith("best/")},
            )
            directory.told(before=done)
        last = settings.iterations
        while done < last and clock() - began < seconds:
            done += 1
            steps, objective = run.rolls(done, ppo)
            line: dict[str, Any] = {"iteration": done}
            if steps is not None:
                rng = np.random.default_rng([settings.seed, 7, done])
                update = ppo.update(steps, rng, 1.0 - (done - 1) / last)
                line |= {"objective": objective, "decisions": len(steps.count), **asdict(update)}
            if done % settings.check == 0 or done == last:
                actor = ppo.actor
                verdict = run.jury.verdict(actor)
                line |= _flat(verdict)
                if better(verdict, Verdict(**kept["verdict"]), CHANCE if kept["iteration"] == 0 else 0.0):
                    best, kept = actor, {"verdict": asdict(verdict), "iteration": done}
                _tell(directory, curves, line)
                _checkpoint(directory, done, ppo, best, kept, run.skipped)
            else:
                _tell(directory, curves, line)
            progress("learning", done, last)
        if done < last:
            progress("learning", last, last)
        draw_curves(directory.told(), out / "learning.png")
        verdict = Verdict(**kept["verdict"])
        golden_state, golden_base = _golden(run, best)
    path = save(
        best,
        out,
        _training_part(sites, settings, revision, done, kept["iteration"]),
        _metrics(verdict),
        golden_state,
        golden_base,
    )
    return Trained(path, best, verdict, kept["iteration"], done, run.skipped)


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


def _tell(directory: RunDirectory, curves: Callable[[int, Mapping[str, float]], None], line: dict[str, Any]) -> None:
    directory.tell(line)
    curves(line["iteration"], {key: value for key, value in line.items() if isinstance(value, float)})


def _flat(verdict: Verdict) -> dict[str, float]:
    return {
        "validation.score": verdict.score,
        **{f"validation.{name}": value for name, value in verdict.ratios.items()},
    }


def _metrics(verdict: Verdict) -> dict[str, float]:
    """For the manifest."""
    found = _flat(verdict)
    for group, ratios in verdict.groups.items():
        found |= {f"validation.{group}.{name} / {verdict.rules[group]}": value for name, value in ratios.items()}
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


def _golden(run: _Training, actor: Actor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64] | None]:
    """A queue of some training window, for the manifest's golden vector."""
    plain = run.rule_alone({name: actor.weights[name] for name in EXTRAS if name in actor.weights})
    for index in run.headroom:
        lesson = teach(Teach(run.candidate(index), plain, 0.0, 0, 1_000_000))
        if len(lesson.count):
            widest = int(np.argmax(lesson.count))
            first = int(lesson.count[:widest].sum())
            rows = slice(first, first + min(int(lesson.count[widest]), 16))
            base = None if run.settings.architecture.residual is None else lesson.base[rows].astype(np.float64)
            return lesson.state[rows], base
    raise EvaluationError("no queue of two jobs in any window")

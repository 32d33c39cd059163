"""Training from traces to a model file: PPO, and the checkpoint that is best on windows set aside.

The same settings give the same weights on the same machine and TensorFlow, however many processes simulate and however
often the run was killed and resumed: what is random is drawn from the seed and the number of the iteration.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import call
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Singles
from rltuned.errors import EvaluationError
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
from rltuned.learn.sampling import Steps, measure_policies, record_queues, sample_trajectories
from rltuned.learn.select import CHANCE, Validation, Validator
from rltuned.learn.training_settings import TrainSettings
from rltuned.policy.actor import AGEING, RUN_TIME, Actor
from rltuned.policy.files import TrainingPart, save
from rltuned.workers.pool import Result, WorkerPool
from rltuned.workers.progress import Progress, silent


class Trained(NamedTuple):
    """The result of a run."""

    path: Path
    """Of the manifest."""
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
            "skipped": self.skipped,
            "validation": self.validation._asdict(),
        }


class _Training:
    """A run between two iterations."""

    def __init__(self, sites: Sequence[Site], settings: TrainSettings, pool: WorkerPool, progress: Progress) -> None:
        self.settings, self.pool, self.progress = settings, pool, progress
        self.candidate = partial(candidate, sites, settings.curriculum, settings.seed)
        self.rule = settings.architecture.residual or "saf"
        """That is corrected, or stands for none."""
        self.skipped: dict[str, int] = {}
        self.headroom = self._with_headroom()
        windows = validation_windows(
            sites, settings.validation_window, settings.validation_windows, settings.seed, settings.estimates
        )
        self.validator = Validator(windows, settings.ppo.objective, pool)

    def _map(self, what: str, tasks: Sequence[partial[Result]]) -> Iterator[Result]:
        """The result of each task, in their order, with progress."""
        for done, found in enumerate(self.pool.map(call, tasks), 1):
            yield found
            self.progress(what, done, len(tasks))

    def _with_headroom(self) -> list[int]:
        """Numbers of the candidates that can teach.

        Raises:
            EvaluationError: none can.
        """
        base, curriculum = self.settings.base, self.settings.curriculum
        least, count = curriculum.least_wait, curriculum.candidates
        tasks = [partial(measure_policies, self.candidate(index), (base,)) for index in range(count)]
        waits = [found["wait_mean"] for (found,) in self._map("choosing windows", tasks)]
        kept = [index for index, wait in enumerate(waits) if wait >= least]  # not when it is NaN
        self.skipped["no headroom"] = count - len(kept)
        if not kept:
            raise EvaluationError(
                f"in none of {count} windows does {base} let jobs wait {least:g} s on average: nothing to be learned "
                "from this trace on this cluster; is the cluster larger than the trace's own?"
            )
        return kept

    def beginning(self) -> Actor:
        """The rule on expected run times, with a network that corrects nothing yet."""
        settings = self.settings
        windows = [self.candidate(index) for index in self.headroom[:RECORDED_WINDOWS]]
        extras = self._extras(run_time_coefficients(windows))
        plain = rule_alone(self.rule, extras)
        tasks = [
            partial(record_queues, case, plain, RECORDED_TEMPERATURE, settings.seed + number, RECORDED_STEPS)
            for number, case in enumerate(windows)
        ]
        state = np.concatenate([queues.state for queues in self._map("recording queues", tasks)])
        if not len(state):
            raise EvaluationError("no queue of two jobs in any window: nothing to be learned from this trace")
        rng = np.random.default_rng([settings.seed, 4])
        rule = beginner(settings.name, settings.architecture, state, rng, settings.columns)
        return replace(rule, weights={**rule.weights, **extras})

    def _extras(self, coefficients: Singles) -> dict[str, Singles]:
        """The coefficients, and the exponent of ageing that is best on the validation windows.

        One that is better than a smaller one by what may be chance is not taken: what ages more is further from the
        rule.
        """
        chosen: dict[str, Singles] = {RUN_TIME: coefficients}
        if self.settings.architecture.residual is None:
            return chosen  # no rule that could age
        best = float("inf")
        for done, exponent in enumerate(self.settings.ageing, 1):
            tried = {RUN_TIME: coefficients}
            if exponent > 0.0:
                tried[AGEING] = np.array([exponent], dtype=np.float32)
            score = self.validator.validate(rule_alone(self.rule, tried)).score
            if score < best - CHANCE:
                best, chosen = score, tried
            self.progress("choosing how waiting counts", done, len(self.settings.ageing))
        return chosen

    def sample(self, iteration: int, ppo: PPO) -> tuple[Steps | None, float]:
        """The decisions of an iteration, and the mean objective of its trajectories in units of the base rule's."""
        settings, options, actor = self.settings, self.settings.ppo, ppo.actor
        rng = np.random.default_rng([settings.seed, 5, iteration])
        chosen = rng.choice(self.headroom, options.windows, replace=len(self.headroom) < options.windows)
        seeds = rng.integers(2**31, size=options.windows)
        tasks = [
            partial(sample_trajectories, self.candidate(int(index)), actor, settings.base, options, int(seed))
            for index, seed in zip(chosen, seeds, strict=True)
        ]
        parts: list[Steps] = []
        ratios: list[float] = []
        for found in self.pool.map(call, tasks):
            if isinstance(found, str):
                self.skipped[found] = self.skipped.get(found, 0) + 1
            else:
                parts.append(found[0])
                ratios += found[1]
        return (Steps.joined(parts), float(np.mean(ratios))) if parts else (None, float("nan"))

    def golden(self, actor: Actor) -> tuple[Singles, Floats | None]:
        """A queue of some training window, for the manifest's golden vector."""
        plain = rule_alone(self.rule, actor.weights)
        for index in self.headroom:
            queues = record_queues(self.candidate(index), plain, 0.0, 0, 1_000_000)
            if len(queues.count):
                widest = queues.take(np.argmax(queues.count, keepdims=True))
                base = None if self.settings.architecture.residual is None else widest.base[:16].astype(np.float64)
                return widest.state[:16], base
        raise EvaluationError("no queue of two jobs in any window")


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
    """A model of these traces, in the run directory `out` (`rltuned.learn.run_directory`).

    `command` and `revision`, of the code, are for the record. `resume`: go on with what is in `out`. After so many
    `seconds` of `clock` no iteration is begun, and what is best until then is kept.

    Raises:
        EvaluationError: nothing to be learned, windows longer than a trace's part, or a directory of another run.
    """
    began = clock()
    deterministic()
    asked = {"settings": asdict(settings), "sites": [_described(site) for site in sites], "revision": revision}
    directory = RunDirectory(out, asked, resume=resume)
    (out / "command").write_text(command + "\n", encoding="utf-8")
    with WorkerPool(processes) as pool, tensorboard(out / "tensorboard") as curves:
        run = _Training(sites, settings, pool, progress)

        def add(line: dict[str, Any]) -> None:
            directory.add_metrics(line)
            curves(line["iteration"], {key: value for key, value in line.items() if isinstance(value, float)})

        def checkpoint() -> None:
            arrays = ppo.state() | {f"best/{name}": value for name, value in best.weights.items()}
            facts = {"validation": kept._asdict(), "iteration": iteration, "skipped": run.skipped}
            directory.save(done, arrays, facts)

        held = directory.last() if resume else None
        if held is None:
            best = run.beginning()
            kept, iteration, done = run.validator.validate(best), 0, 0
            ppo = PPO(settings.ppo, best)
            directory.metrics(before=-1)
            add({"iteration": 0, **_flat(kept)})
            checkpoint()
        else:
            done, arrays, facts = held
            run.skipped = facts["skipped"]
            kept, iteration = Validation(**facts["validation"]), facts["iteration"]
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
                line |= {"objective": objective, "decisions": len(steps.count), **stats._asdict()}
            if done % settings.check and done < last:
                add(line)
            else:
                actor = ppo.actor
                validation = run.validator.validate(actor)
                if validation.score < kept.score - (CHANCE if iteration == 0 else 0.0):
                    best, kept, iteration = actor, validation, done
                add(line | _flat(validation))
                checkpoint()
            progress("learning", done, last)
        if done < last:
            progress("learning", last, last)
        draw_curves(directory.metrics(), out / "learning.png")
        if best.corrects_nothing:
            # The file says plainly what the model is: a rule with a few numbers, no network.
            best = rule_alone(run.rule, best.weights, best.name)
        golden_state, golden_base = run.golden(best)
    training = TrainingPart(
        method="ppo",
        data=f"the first 70 % of {', '.join(f'{site.jobs.source.name} on {site.shape.text}' for site in sites)}; "
        f"the next 15 % chose iteration {iteration} of {done}",
        traces=digests(sites),
        seed=settings.seed,
        revision=revision,
        settings=asdict(settings),
    )
    metrics = _flat(kept)
    for group, ratios in kept.groups.items():
        metrics |= {f"validation.{group}.{name} / {kept.rules[group]}": value for name, value in ratios.items()}
    metrics = {name: round(value, 6) for name, value in metrics.items()}
    path = save(best, out, training, metrics, golden_state, golden_base)
    return Trained(path, kept, iteration, done, run.skipped)


def _described(site: Site) -> dict[str, Any]:
    """What the run directory says of a trace."""
    source = site.jobs.source
    return {"trace": source.name, "sha256": source.sha256, "jobs": len(site.jobs), "cluster": site.shape.text}


def _part(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a checkpoint whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _flat(validation: Validation) -> dict[str, float]:
    ratios = {f"validation.{name}": value for name, value in validation.ratios.items()}
    return {"validation.score": validation.score, **ratios}


def digests(sites: Sequence[Site]) -> dict[str, str]:
    """sha256 of each trace by its name; two traces of one name are numbered."""
    found: dict[str, str] = {}
    for source in (site.jobs.source for site in sites):
        name, number = source.name, 2
        while found.get(name, source.sha256) != source.sha256:
            name, number = f"{source.name} ({number})", number + 1
        found[name] = source.sha256
    return found

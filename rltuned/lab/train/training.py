"""Training from traces to a model file: an evolution strategy from smallest area first or a model, PPO from there, and
of all of them the actor that is best on windows set aside.

The same settings give the same weights on the same machine and TensorFlow, however many processes simulate and however
often the run was killed and resumed: what is random is drawn from the seed and the number of the step.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from operator import call
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import EvaluationError
from rltuned.core.objective import Objective
from rltuned.core.tables import Floats, Singles
from rltuned.core.workers.pool import Result, WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.decide.rank.actor import MOMENT, Actor, with_network
from rltuned.lab.train.curriculum import (
    Site,
    candidate,
    run_time_coefficients,
    smallest_area_first,
    validation_windows,
    with_predictions,
)
from rltuned.lab.train.evolution import Evolution
from rltuned.lab.train.run_directory import RunDirectory
from rltuned.lab.train.sampling import (
    Measures,
    Steps,
    drawn_objective,
    in_slurms_order,
    judge_pairs,
    longest_queue,
    moments,
    sample_trajectories,
)
from rltuned.lab.train.select import CHANCE, Validation, Validator
from rltuned.lab.train.training_settings import TrainSettings
from rltuned.records.model_files import TrainingPart, info, load, save

if TYPE_CHECKING:
    from rltuned.lab.train.ppo import PPO

FITTED: Final = 128
"""Windows whose jobs the expected run times are fitted to, and whose moments say what is usual."""
MAKESPAN: Final = 1.02
"""Times Slurm's own: what is beyond it costs, and the more the longer it lasts."""
DRAWN: Final = 2
"""Of so many windows, one is to want what is drawn. With one of four, the site's own J falls by half as much."""
OBJECTIVES: Final = 0.2
"""Standard deviation of a weight of `drawn_objective`."""
_LEAST_SPREAD: Final = 0.02
"""Of an entry of the moment: one that hardly changes must not decide."""
_MULTIPLIER_RATE: Final = 0.2
"""How fast the price of a broken bound rises, and falls where it is kept (Lagrange)."""


class Trained(NamedTuple):
    """The result of a run."""

    path: Path  # of the manifest
    validation: Validation
    """Of the actor that was kept, over smallest area first."""
    step: int
    """That it is of; 0: it is what training began with, the model or smallest area first, whichever is better."""
    steps: int  # that were done
    skipped: Mapping[str, int]  # windows that could not teach, by reason

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        told = {"manifest": str(self.path), "validation": self.validation._asdict()}
        return told | {"step": self.step, "steps": self.steps, "skipped": self.skipped}


class _Training:
    """The windows of a run, and what is measured on them."""

    def __init__(self, sites: Sequence[Site], settings: TrainSettings, pool: WorkerPool, progress: Progress) -> None:
        self.settings, self.pool, self.progress = settings, pool, progress
        tasks = [partial(with_predictions, site, settings.estimates, settings.seed) for site in sites]
        sites = list(self._map("predicting run times", tasks))
        self.candidate = partial(candidate, sites, settings.curriculum, settings.seed)
        self.skipped: dict[str, int] = {}
        self.slurm = self._worth_learning()
        self.windows = list(self.slurm)
        self.part = validation_windows(
            sites, settings.validation_window, settings.validation_windows, settings.seed, settings.estimates
        )
        self.price = 0.0  # of makespan beyond `MAKESPAN`

    def _map(self, what: str, tasks: Sequence[partial[Result]]) -> Iterator[Result]:
        """The result of each task, in their order, with progress."""
        for done, found in enumerate(self.pool.map(call, tasks), 1):
            yield found
            self.progress(what, done, len(tasks))

    def _worth_learning(self) -> dict[int, Measures]:
        """Slurm's own metrics of the candidates that can teach, by number. EvaluationError: none can."""
        least, count = self.settings.curriculum.least_wait, self.settings.curriculum.candidates
        tasks = [partial(in_slurms_order, self.candidate(index)) for index in range(count)]
        found = enumerate(self._map("choosing windows", tasks))
        kept = {index: own for index, own in found if own["wait_mean"] >= least}  # not when it is NaN
        self.skipped["hardly a wait"] = count - len(kept)
        if not kept:
            raise EvaluationError(
                f"in none of {count} windows does Slurm's own order let jobs wait {least:g} s on average: nothing to "
                "be learned from this trace on this cluster; is the cluster larger than the trace's own?"
            )
        return kept

    def beginning(self) -> Actor:
        """Smallest area first on expected run times: of windows whose run times are not predicted, they are fitted."""
        erring = (case for case in map(self.candidate, self.windows) if not case.predicted)
        saf = smallest_area_first(self.settings.name, run_time_coefficients(list(islice(erring, FITTED))))
        return replace(saf, objective=self.settings.objective)

    def _scenarios(self, rng: np.random.Generator, count: int) -> list[tuple[int, Objective]]:
        """Windows of a step, and what each is to want: one of `DRAWN` has weights that are drawn."""
        chosen = rng.choice(self.windows, count, replace=len(self.windows) < count)
        wanted = [drawn_objective(rng) if at % DRAWN == 0 else self.settings.objective for at in range(count)]
        return list(zip(map(int, chosen), wanted, strict=True))

    def evolve(self, step: int, evolution: Evolution, left: float) -> dict[str, float]:
        """One step of an evolution strategy; numbers of it."""
        rng = np.random.default_rng([self.settings.seed, 5, step])
        moved = evolution.moved(rng)
        scenarios = self._scenarios(rng, len(moved))
        actor = evolution.actor
        tasks = [
            partial(judge_pairs, self.candidate(at), self.slurm[at], replace(actor, objective=wanted), away, self.price)
            for (at, wanted), away in zip(scenarios, moved, strict=True)
        ]
        found = [(away, *said) for away, said in zip(moved, self.pool.map(call, tasks), strict=True) if said]
        if not found:
            return {}
        away, pairs, objective, makespan = zip(*found, strict=True)
        signal, lasts = evolution.step(away, pairs, left), float(np.mean(makespan))
        self.price = max(self.price + _MULTIPLIER_RATE * (lasts - MAKESPAN), 0.0)
        return {"objective": float(np.mean(objective)), "signal": signal, "makespan": lasts, "price": self.price}

    def usual(self, rule: Actor) -> tuple[Floats, Floats]:
        """(14,) mean and spread of the moments under a rule; the objective's weights are drawn later."""
        tasks = [partial(moments, self.candidate(at), rule) for at in self.windows[:FITTED]]
        seen = np.concatenate([*self._map("looking at queues", tasks), np.zeros((1, len(MOMENT)))])
        mean, spread = seen.mean(axis=0), seen.std(axis=0)
        spread[-len(Objective._fields) :] = OBJECTIVES
        return mean, np.maximum(spread, _LEAST_SPREAD)

    def sample(self, step: int, actor: Actor, rule: Actor) -> tuple[Steps | None, float]:
        """The decisions of an iteration of PPO, and what its trajectories cost over the rule, in Slurm's own J."""
        options = self.settings.ppo
        rng = np.random.default_rng([self.settings.seed, 5, step])
        scenarios = self._scenarios(rng, options.windows)
        seeds = rng.integers(2**31, size=len(scenarios)).tolist()
        tasks = [
            partial(
                sample_trajectories,
                self.candidate(at),
                self.slurm[at],
                replace(actor, objective=wanted),
                rule,
                options,
                seed,
            )
            for (at, wanted), seed in zip(scenarios, seeds, strict=True)
        ]
        parts: list[Steps] = []
        over: list[float] = []
        for found in self.pool.map(call, tasks):
            if isinstance(found, str):
                self.skipped[found] = self.skipped.get(found, 0) + 1
            else:
                parts.append(found[0])
                over += found[1]
        return (Steps.joined(parts), float(np.mean(over))) if parts else (None, float("nan"))

    def golden(self, actor: Actor) -> tuple[Singles, Floats]:
        """Jobs of a training window and its moment, for the manifest's golden vector."""
        for index in self.windows:
            found = longest_queue(self.candidate(index), actor, 16)
            if found is not None:
                return found
        raise EvaluationError("no queue of two jobs in any window: nothing to be learned from this trace")


class _Run:
    """Where a run stands: which actor, and the best of each kind so far."""

    def __init__(self, run: _Training) -> None:
        self.run, self.settings = run, run.settings
        evolution, ppo = self.settings.steps
        self.ends = evolution, evolution + ppo
        self.done, self.step, self.kept = 0, 0, Validation(1.0, {}, {})
        """Steps done; the step that `best` is of, and how good it is, over smallest area first."""
        self.best = self.rule = rule = run.beginning()
        self.validator = Validator(run.part, run.pool, rule)
        start = (
            replace(load(self.settings.begin), name=rule.name, objective=rule.objective)
            if self.settings.begin
            else with_network(rule, *run.usual(rule))
        )
        self.evolution = Evolution(start, self.settings.evolution)
        self.ppo: PPO | None = None

    def advance(self) -> dict[str, float]:
        """One step, and what is to be said of it."""
        evolved, last = self.ends
        self.done += 1
        if self.done <= evolved:
            return self.run.evolve(self.done, self.evolution, 1.0 - (self.done - 1) / evolved)
        if self.ppo is None:
            self.ppo = self._ppo()
        steps, over = self.run.sample(self.done, self.ppo.actor, self.rule)
        if steps is None:
            return {}
        rng = np.random.default_rng([self.settings.seed, 7, self.done])
        stats = self.ppo.update(steps, rng, 1.0 - (self.done - evolved - 1) / (last - evolved))
        return {"over_rule": over, "decisions": float(len(steps.count)), **stats._asdict()}

    def _ppo(self) -> "PPO":
        """From the best so far that has a network."""
        from rltuned.lab.train.ppo import PPO  # noqa: PLC0415 - TensorFlow takes seconds

        return PPO(self.settings.ppo, self.evolution.mean if self.is_rule else self.best)

    @property
    def is_rule(self) -> bool:
        """Nothing was better than smallest area first so far."""
        return not self.kept.groups

    @property
    def actor(self) -> Actor:
        """As it is now."""
        return self.evolution.mean if self.ppo is None else self.ppo.actor

    def validate(self, step: int) -> Validation:
        """Measure the actor of that step, and keep it if it is the best one."""
        found = self.validator.compare(self.actor)
        if found.score < self.kept.score - (CHANCE if self.is_rule else 0.0):
            self.best, self.kept, self.step = self.actor, found, step
        return found

    # --- checkpoints

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and facts that `restore` takes."""
        held = {"evolution": self.evolution.state, "best": self.best.weights}
        held |= {"ppo": self.ppo.state()} if self.ppo is not None else {}
        arrays = {f"{of}/{name}": value for of, each in held.items() for name, value in each.items()}
        return arrays, {
            "kept": self.kept._asdict(),
            "step": self.step,
            "skipped": self.run.skipped,
            "price": self.run.price,
        }

    def restore(self, done: int, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, after so many steps."""

        def part(of: str) -> dict[str, npt.NDArray[Any]]:
            return {name.removeprefix(of + "/"): value for name, value in arrays.items() if name.startswith(of + "/")}

        self.done, self.step, self.kept = done, facts["step"], Validation(**facts["kept"])
        self.run.skipped, self.run.price = facts["skipped"], facts["price"]
        self.best, self.evolution.state = replace(self.best, weights=part("best")), part("evolution")
        if held := part("ppo"):
            self.ppo = self._ppo()
            self.ppo.restore(held)


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
    """A model of these traces in the run directory `out` (`rltuned.lab.train.run_directory`).

    `command` and `revision`, of the code, are for the record. `resume`: go on with what is in `out`. After so many
    `seconds` of `clock` no step is begun, and what is best until then is kept. EvaluationError: nothing to be learned,
    windows longer than a trace's part, or a directory of another run.
    """
    from rltuned.lab.train.ppo import deterministic  # noqa: PLC0415 - TensorFlow takes seconds

    began = clock()
    begun = info(settings.begin) if settings.begin else None
    deterministic()
    asked = {"settings": asdict(settings), "sites": [_described(site) for site in sites], "revision": revision}
    directory = RunDirectory(out, asked, resume=resume)
    (out / "command").write_text(command + "\n", encoding="utf-8")
    with WorkerPool(processes) as pool:
        training = _Training(sites, settings, pool, progress)
        run = _Run(training)

        held = directory.last() if resume else None
        if held is not None:
            run.restore(*held)
        elif begun:
            run.validate(0)
        directory.forget_metrics(after=run.done if held is not None else -1)
        last = run.ends[-1]
        while run.done < last and clock() - began < seconds:
            line: dict[str, Any] = {"step": run.done + 1, **run.advance()}
            checked = run.done % settings.check == 0 or run.done in run.ends
            if checked:
                line |= _flat(run.validate(run.done))
            directory.add_metrics(line)
            if checked:
                directory.save(run.done, *run.state())
            progress("learning", run.done, last)
        if run.done < last:
            progress("learning", last, last)
        kept, golden = run.validator.compare(run.best), training.golden(run.best)
    evolved = min(run.done, run.ends[0])
    ran = ["evolution strategy"] * (evolved > 0) + ["PPO"] * (run.done > evolved)
    part = TrainingPart(
        method=f"{f'from {begun.name} {begun.sha256[:12]}: ' if begun else ''}{', then '.join(ran) or 'no step'}",
        data=f"the first 70 % of {', '.join(f'{site.jobs.source.name} on {site.shape.text}' for site in sites)}; "
        f"the next 15 % chose step {run.step} of {run.done}",
        traces={**(begun.traces if begun else {}), **digests(sites)},
        seed=settings.seed,
        revision=revision,
        settings=asdict(settings),
    )
    metrics = _flat(kept)
    for group, ratios in kept.groups.items():
        metrics |= {f"validation.{group}.{name}": value for name, value in ratios.items()}
    path = save(run.best, out, part, {name: round(value, 6) for name, value in metrics.items()}, golden)
    return Trained(path, kept, run.step, run.done, training.skipped)


def _described(site: Site) -> dict[str, Any]:
    """What the run directory says of a trace."""
    source = site.jobs.source
    return {"trace": source.name, "sha256": source.sha256, "jobs": len(site.jobs), "cluster": site.shape.text}


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

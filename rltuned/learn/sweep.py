"""Several trainings of the same traces, each seed with each objective: one after the other, or as an array job.

Each has a run directory of its own below the sweep's, and can be resumed, looked at and evaluated like any other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rltuned.evaluate.executors import SlurmArray
from rltuned.learn.cost import Objective
from rltuned.learn.curriculum import Site
from rltuned.learn.settings import TrainSettings


@dataclass(frozen=True)
class Run:
    """One training of a sweep; sent to another host as it is."""

    sites: tuple[Site, ...]
    settings: TrainSettings
    out: Path
    command: str
    revision: str
    processes: int


def runs(
    sites: Sequence[Site],
    settings: TrainSettings,
    seeds: Sequence[int],
    objectives: Sequence[str],
    out: Path,
    line: Callable[[TrainSettings], str],
    **how: Any,
) -> list[Run]:
    """Each objective with each seed, in directories called ``OBJECTIVE-SEED``; the models are called
    ``NAME-OBJECTIVE-SEED``.

    `line`: the command that makes one of them again.
    """
    found = []
    for objective, seed in product(dict.fromkeys(objectives), dict.fromkeys(seeds)):
        label = f"{objective}-{seed}"
        ppo = replace(settings.ppo, objective=Objective(objective))
        own = replace(settings, name=f"{settings.name}-{label}", seed=seed, ppo=ppo)
        found.append(Run(tuple(sites), own, (out / label).resolve(), line(own), **how))
    return found


def train_one(run: Run) -> dict[str, Any]:
    """Train, or go on where an earlier attempt stopped. Returns what `--json` prints."""
    from rltuned.learn.train import train  # noqa: PLC0415 - TensorFlow takes seconds

    result = train(
        run.sites,
        run.settings,
        run.out,
        command=run.command,
        revision=run.revision,
        processes=run.processes,
        resume=True,
    )
    return {"run": run.out.name, **result.as_dict()}


def run_locally(runs_: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """One after the other, in this process."""
    return map(train_one, runs_)


def on_slurm(runs_: Sequence[Run], array: SlurmArray) -> Iterator[dict[str, Any]]:
    """A task of an array job for each, through submitit; what `array` says counts for all.

    Raises:
        EvaluationError: no submitit, no sbatch, or a task that failed; submitting again goes on from its last
        checkpoint.
    """
    failed = "of the sweep failed; the same command goes on from its last checkpoint"
    return array.map(train_one, runs_, "train", max(run.processes for run in runs_), failed)

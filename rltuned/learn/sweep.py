"""Several trainings of the same traces: each seed with each objective, here one after the other, or as an array job.

Each has a run directory of its own below the sweep's, and can be resumed, looked at and evaluated like any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rltuned.errors import EvaluationError
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
    **how: Any,
) -> list[Run]:
    """Each objective with each seed, in directories called ``OBJECTIVE-SEED``; the models are called ``NAME-OBJECTIVE-SEED``."""
    found = []
    for objective, seed in product(dict.fromkeys(objectives), dict.fromkeys(seeds)):
        label = f"{objective}-{seed}"
        ppo = replace(settings.ppo, objective=Objective(objective))
        own = replace(settings, name=f"{settings.name}-{label}", seed=seed, ppo=ppo)
        found.append(Run(tuple(sites), own, (out / label).resolve(), **how))
    return found


def train_one(run: Run) -> dict[str, Any]:
    """Train, or go on where an earlier attempt stopped; what `--json` says of it."""
    from rltuned.learn.command import as_dict  # noqa: PLC0415 - see below
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
    return {"run": run.out.name, **as_dict(result)}


def here(runs_: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """One after the other, in this process."""
    return map(train_one, runs_)


def on_slurm(runs_: Sequence[Run], array: SlurmArray) -> Iterator[dict[str, Any]]:
    """A task of an array job for each, through submitit; what `array` says counts for all.

    Raises:
        EvaluationError: no submitit, no sbatch, or a task that failed; submitting again goes on from its last checkpoint.
    """
    try:
        import submitit  # noqa: PLC0415 - of the extra [simulate], and only this needs it
        from submitit.helpers import as_completed  # noqa: PLC0415 - see above
    except ImportError as error:
        raise EvaluationError(f"--executor slurm needs submitit: pip install 'rltuned[simulate]' ({error})") from error
    parameters: dict[str, Any] = {
        "job_name": "rltuned-train",
        "time": array.minutes,
        "array_parallelism": array.parallel,
        "cpus_per_task": max(run.processes for run in runs_),
        "additional_parameters": dict(array.options),
        # A step of its own would only cost time, and not every site lets batch jobs have one.
        "use_srun": False,
    }
    if array.partition:
        parameters["partition"] = array.partition
    try:
        executor = submitit.SlurmExecutor(folder=array.folder, max_num_timeout=0)
        executor.update_parameters(**parameters)
        jobs = executor.map_array(train_one, list(runs_))
    except (RuntimeError, submitit.core.utils.FailedJobError) as error:
        said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise EvaluationError(f"--executor slurm: {said}") from error
    for job in as_completed(jobs, poll_frequency=array.poll):
        try:
            yield job.result()
        except Exception as error:
            raise EvaluationError(
                f"Slurm job {job.job_id} of the sweep failed; the same command goes on from its last checkpoint\n{error}"
            ) from error

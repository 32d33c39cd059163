"""Where the work is done: on this machine, or in array jobs of a Slurm cluster."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rltuned.errors import EvaluationError
from rltuned.evaluate.measure import Outcome, Task, work, work_all
from rltuned.installed import needed
from rltuned.workers.pool import WorkerPool


class Executor(Protocol):
    """Does tasks in any order."""

    def run(self, tasks: Sequence[Task]) -> Iterator[list[Outcome]]:
        """The outcomes of each piece of work as it ends."""


@dataclass(frozen=True)
class LocalExecutor:
    """On this machine."""

    workers: int = 1
    """Processes; with one, the tasks are done in this process."""

    def run(self, tasks: Sequence[Task]) -> Iterator[list[Outcome]]:
        """See `Executor`."""
        with WorkerPool(self.workers, remedy="; with --json, --resume goes on from what is done") as pool:
            yield from pool.as_completed(work, tasks)


@dataclass(frozen=True)
class SlurmArray:
    """An array job of a Slurm cluster, through submitit: tasks are cut into pieces, each is a task of the array.

    Needs a directory that all nodes see, this Python under the same path on them, and sbatch here. Jobs that are still
    queued when the evaluation is interrupted are left alone: they end by themselves, and `--resume` submits what is
    missing.
    """

    folder: Path
    """For the work as it is sent, its outcomes and its logs; on a shared file system."""
    pieces: int = 64
    """Tasks of the array, at most."""
    parallel: int = 256
    """How many may run at a time."""
    minutes: int = 60
    """Time limit of each."""
    partition: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of sbatch(1), by long name."""
    poll: float = 2.0
    """Seconds between two looks for results."""

    def run(self, tasks: Sequence[Task]) -> Iterator[list[Outcome]]:
        """See `Executor`."""
        pieces = min(self.pieces, len(tasks))
        cut = [list(tasks[piece::pieces]) for piece in range(pieces)]
        return self.map(work_all, cut, "evaluate", 1, "of the evaluation failed; --resume goes on from what is done")

    def map(
        self, function: Callable[[Any], Any], pieces: Sequence[Any], name: str, cpus: int, failed: str
    ) -> Iterator[Any]:
        """What `function` makes of each piece, a task of the array, as they end.

        Args:
            function: can be sent.
            pieces: what it is called with, one each.
            name: of the job, behind ``rltuned-``.
            cpus: of each task.
            failed: what is said of a task that failed, behind the job's number.

        Raises:
            MissingError: submitit is not installed.
            EvaluationError: no sbatch, or a task that failed.
        """
        with needed("--executor slurm"):
            import submitit  # noqa: PLC0415 - of the extra [simulate], and only this needs it
            from submitit.helpers import as_completed as ended  # noqa: PLC0415 - see above
        parameters: dict[str, Any] = {
            "job_name": f"rltuned-{name}",
            "time": self.minutes,
            "array_parallelism": self.parallel,
            "cpus_per_task": cpus,
            "additional_parameters": dict(self.options),
            # A step of its own would only cost time, and not every site lets batch jobs have one.
            "use_srun": False,
        }
        if self.partition:
            parameters["partition"] = self.partition
        try:
            executor = submitit.SlurmExecutor(folder=self.folder, max_num_timeout=0)
            executor.update_parameters(**parameters)
            jobs = executor.map_array(function, list(pieces))
        except (RuntimeError, submitit.core.utils.FailedJobError) as error:
            said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
            raise EvaluationError(f"--executor slurm: {said}") from error
        for job in ended(jobs, poll_frequency=self.poll):
            try:
                yield job.result()
            except Exception as error:
                raise EvaluationError(f"Slurm job {job.job_id} {failed}\n{error}") from error


def chosen(executor: str, workers: int | None, out: Path | None, slurm: Mapping[str, Any]) -> Executor:
    """The executor that the command line asks for.

    Args:
        executor: "local" or "slurm".
        workers: processes; None: one per core that this process may use.
        out: where the report goes; pieces of an array job are kept beside it.
        slurm: partition, tasks, parallel, minutes, and option, a sequence of NAME=VALUE.

    Raises:
        EvaluationError: an option that is not NAME=VALUE.
    """
    if executor == "slurm" and out is not None:
        options = {}
        for word in slurm["option"]:
            name, equals, value = word.partition("=")
            if not (name and equals):
                raise EvaluationError(f"--slurm-option: {word!r} is not NAME=VALUE")
            options[name.removeprefix("--")] = value
        return SlurmArray(
            folder=out.with_name(out.name + ".slurm").resolve(),
            pieces=slurm["tasks"],
            parallel=slurm["parallel"],
            minutes=slurm["minutes"],
            partition=slurm["partition"],
            options=options,
        )
    return LocalExecutor(workers if workers is not None else len(os.sched_getaffinity(0)))

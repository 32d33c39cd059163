"""Where the simulations of an evaluation run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rltuned.evaluate.measure import Outcome, Task, work
from rltuned.workers.pool import WorkerPool


class Executor(Protocol):
    """Does tasks in any order."""

    def run(self, tasks: Sequence[Task]) -> Iterator[list[Outcome]]:
        """The outcomes of each piece of work as it ends."""


@dataclass(frozen=True)
class LocalExecutor:
    """Processes on this machine; with one, the tasks are done in this process."""

    workers: int = 1

    def run(self, tasks: Sequence[Task]) -> Iterator[list[Outcome]]:
        """See `Executor`."""
        with WorkerPool(self.workers) as pool:
            yield from pool.as_completed(work, tasks)

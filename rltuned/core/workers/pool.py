"""Several processes that do tasks, or this one. The results do not depend on how many there are."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rltuned.core.errors import EvaluationError

Task = TypeVar("Task")
Result = TypeVar("Result")

_turn: AbstractContextManager[Any] = nullcontext()
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class WorkerPool:
    """`processes` worker processes; with one, the tasks are done in this process. Use as a context.

    What is sent must be a value that pickle knows, the functions among it. An error of a task is raised where its
    result is taken. Leaving the context by an error cancels what has not begun.
    """

    processes: int
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        if self.processes > 1:
            # One thread each, for there is a process for each core. Spawned processes read these when they import
            # NumPy.
            for name in _THREADS:
                os.environ.setdefault(name, "1")
            # Spawned, not forked: threads (a progress bar's, a BLAS library's, TensorFlow's) do not survive a fork.
            context = multiprocessing.get_context("spawn")
            turn = context.Lock()
            self._pool = ProcessPoolExecutor(
                self.processes, mp_context=context, initializer=begin_worker, initargs=(turn,)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def map(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """The result of each task, in the order of the tasks."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        with self._killed_is_said():
            yield from self._pool.map(function, tasks)

    def as_completed(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """The result of each task as it ends."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        with self._killed_is_said():
            for future in as_completed([self._pool.submit(function, task) for task in tasks]):
                yield future.result()

    @contextmanager
    def _killed_is_said(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as error:
            raise EvaluationError(
                "a worker process was killed (out of memory?): fewer processes need less memory"
            ) from error


def one_at_a_time() -> AbstractContextManager[Any]:
    """For what a worker keeps for all of them on disk: the others of its pool come after it, and find it there."""
    return _turn


def begin_worker(turn: AbstractContextManager[Any]) -> None:
    """Ctrl-C is the parent's business; and a worker whose parent was killed has nobody to work for. `turn`: of
    `one_at_a_time`.
    """
    global _turn  # noqa: PLW0603 - this process is a worker of one pool
    _turn = turn
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)

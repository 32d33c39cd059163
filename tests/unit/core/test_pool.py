"""The pool of worker processes."""

import os
import signal

import pytest

from rltuned.core.errors import EvaluationError, WorkloadError
from rltuned.core.workers.pool import WorkerPool


def squared(number):
    return os.getpid(), number * number


def killed(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refused(number):
    raise WorkloadError(f"line {number}")


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_tasks_or_as_they_end_and_all_of_them(processes):
    with WorkerPool(processes) as pool:
        ordered = list(pool.map(squared, range(20)))
        ended = list(pool.as_completed(squared, range(20)))
    assert [value for _, value in ordered] == [number * number for number in range(20)]
    assert sorted(value for _, value in ended) == [number * number for number in range(20)]
    workers = {process for process, _ in ordered + ended}
    assert len(workers) <= processes
    assert (os.getpid() in workers) == (processes == 1)


@pytest.mark.parametrize("how", ["map", "as_completed"])
def test_a_worker_that_is_killed_is_said_with_what_helps(how):
    with (
        pytest.raises(EvaluationError, match=r"killed \(out of memory\?\): fewer processes need less memory"),
        WorkerPool(2) as pool,
    ):
        list(getattr(pool, how)(killed, range(3)))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("how", ["map", "as_completed"])
def test_an_error_of_a_task_is_raised_where_its_result_is_taken(processes, how):
    with WorkerPool(processes) as pool, pytest.raises(WorkloadError, match="line 7"):
        list(getattr(pool, how)(refused, [7]))

"""The pool of worker processes, and how far they are."""

import os
import signal
import time
from contextlib import contextmanager

import pytest

from rltuned.core.errors import EvaluationError, WorkloadError
from rltuned.core.workers.pool import WorkerPool, one_at_a_time
from rltuned.core.workers.progress import ProgressLines, progress_bar
from rltuned.simulate import rankers


def squared(number):
    return os.getpid(), number * number


def killed(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def at_the_same_time(folder):
    """How many processes are in the part that is for one at a time, the most that one of two has seen."""
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        time.sleep(0.01)
    with one_at_a_time():
        mine = folder / f"inside-{os.getpid()}"
        mine.touch()
        seen = []
        for _ in range(20):
            seen.append(len(list(folder.glob("inside-*"))))
            time.sleep(0.01)
        mine.unlink()
    return max(seen)


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


def test_what_workers_keep_for_each_other_is_made_by_one_of_them(tmp_path, monkeypatch):
    with WorkerPool(2) as pool:
        assert list(pool.map(at_the_same_time, [tmp_path] * 2)) == [1, 1]

    made = []

    @contextmanager
    def turn():
        made.append("begins")
        yield
        made.append("ends")

    monkeypatch.setattr(rankers, "one_at_a_time", turn)
    rankers.compile_kernel.__wrapped__()
    assert made == ["begins", "ends"]


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


@pytest.mark.parametrize(
    ("every", "step", "done", "lines"),
    [
        (
            *(60.0, 5.0, range(10, 51)),
            [
                "rltuned: work: 22 of 70 after 1 min, about 4 min left",
                "rltuned: work: 34 of 70 after 2 min, about 3 min left",
                "rltuned: work: 46 of 70 after 3 min, about 2 min left",
            ],
        ),
        (
            *(10.0, 4.0, range(0, 63, 7)),
            [
                "rltuned: work: 21 of 70 after 12 s, about 28 s left",
                "rltuned: work: 42 of 70 after 24 s, about 16 s left",
            ],
        ),
    ],
)
def test_a_log_gets_a_line_now_and_then_with_what_is_left(every, step, done, lines):
    now, told = [0.0], []
    report = ProgressLines(lambda: now[0], told.append, every)
    for number, of in enumerate(done):
        now[0] = step * number
        report("work", of, 70)
    assert told == lines


def test_where_there_is_no_terminal_only_long_work_is_told_of(capfd, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress_bar() as report:
        report("training", 1, 3)
    assert capfd.readouterr() == ("", "")
    now = iter([0.0, 0.0, 61.0])
    with progress_bar(lambda: next(now)) as report:
        report("simulating", 0, 2)
        report("simulating", 1, 2)
    assert capfd.readouterr().err == "rltuned: simulating: 1 of 2 after 1 min, about 1 min left\n"


def test_a_terminal_shows_each_stage_and_how_far_it_is(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as report:
        report("training", 3, 3)
    shown = capfd.readouterr().err
    assert "training" in shown
    assert "3/3" in shown

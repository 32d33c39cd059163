"""Long work says how far it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Report(Protocol):
    """Told by long work after each step."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps of `stage` are over."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar per stage on standard error where that is a terminal; elsewhere nothing is printed."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total)

        yield report

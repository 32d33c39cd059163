"""Long work says how far it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Called by long work after each step."""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """`done` of `total` steps of `phase` are over. A phase is named in words that a user understands."""


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar for each phase on standard error where that is a terminal; elsewhere nothing is printed."""
    # Whoever reads a trace imports this module, the daemon among them; only a terminal needs Rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        shown: dict[str, TaskID] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in shown:
                shown[phase] = bars.add_task(phase)
            bars.update(shown[phase], completed=done, total=total)

        yield progress

"""Long work says how far it is."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol


class Progress(Protocol):
    """Called by long work after each step."""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """`done` of `total` steps of `phase` are over. A phase is named in words that a user understands."""


def silent(phase: str, done: int, total: int) -> None:
    """Report nothing."""


EVERY: Final = 60.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress_bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A bar for each phase on standard error where that is a terminal; elsewhere a line a minute (`ProgressLines`)."""
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
    if not console.is_terminal:
        yield ProgressLines(clock, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201 - as the bar is
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        shown: dict[str, TaskID] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in shown:
                shown[phase] = bars.add_task(phase)
            bars.update(shown[phase], completed=done, total=total)

        yield progress


class ProgressLines:
    """Progress for a log: a line each `every` seconds at most, with what is left by the pace so far.

    Work that is over sooner prints nothing. A step that takes longer is reported at its end.
    """

    def __init__(self, clock: Callable[[], float], tell: Callable[[str], None], every: float = EVERY) -> None:
        """`clock`: seconds, monotonic. `tell`: called with each line."""
        self._clock, self._tell, self._every = clock, tell, every
        self._phase = ""
        self._began = self._told = clock()
        self._first = 0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """See `Progress`."""
        now = self._clock()
        if phase != self._phase:
            # What a resumed run found done says nothing about the pace.
            self._phase, self._began, self._first = phase, now, done
        if now - self._told < self._every:
            return
        self._told = now
        steps = done - self._first
        left = (
            f", about {minutes((now - self._began) * (total - done) / steps)} left"
            if steps > 0 and done < total
            else ""
        )
        self._tell(f"rltuned: {phase}: {done:,} of {total:,} after {minutes(now - self._began)}{left}")


def minutes(seconds: float) -> str:
    """A duration in whole seconds, minutes, or in hours."""
    if seconds < 60.0:
        return f"{seconds:.0f} s"
    whole = round(seconds / 60.0)
    return f"{whole} min" if whole < 120 else f"{whole / 60.0:.1f} h"

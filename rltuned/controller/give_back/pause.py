"""A pause that an admin asks a living daemon for: one small file, read at the beginning of each cycle.

While it is there the daemon gives everything back and writes nothing else; a restart changes nothing about that. A file
that cannot be understood is a pause, too: to leave the queue to Slurm is the safe side, and `doctor` names it.
"""

import contextlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from rltuned.controller.health.clock import Moment
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import make_directory, read, write

FILE_NAME: Final = "pause.json"
LONGEST: Final = 1e9
"""Seconds; a date so far ahead can still be written."""
LONG: Final = 86_400.0
"""Seconds after which a pause may have been forgotten."""
_AS_WHOM: Final = "run as root or as the daemon's user"


@dataclass(frozen=True, slots=True)
class _File:
    began: Moment
    seconds: Annotated[float, Field(gt=0.0, le=LONGEST)] | None


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause as it was asked for; all None where the file cannot be understood."""

    began: Moment | None = None
    seconds: float | None = None  # None: until it is ended by hand
    trouble: str | None = None  # why the file cannot be understood

    def passed(self, now: Moment) -> float:
        """Seconds since it began; inf: nobody knows. No wall clock that is set counts, unless the machine was started
        anew in between, and then in both directions: the pause becomes at most twice as long.
        """
        if self.began is None:
            return math.inf
        passed = now.since(self.began)
        return passed if passed < math.inf else abs(now.time - self.began.time)

    def in_force(self, now: Moment) -> bool:
        """Whether it has not ended by itself."""
        return self.seconds is None or self.passed(now) < self.seconds

    def sentence(self, now: Moment) -> str:
        """Until when, and how it ends sooner."""
        if self.trouble:
            return f"paused, because {self.trouble}; `rltuned resume` removes it"
        if self.seconds is None:
            return "paused until `rltuned resume`"
        end = datetime.fromtimestamp(now.time + self.seconds - self.passed(now), UTC).astimezone()
        return f"paused until {end:%Y-%m-%d %H:%M}, or `rltuned resume`"


def ask(state: Path, now: Moment, seconds: float | None) -> Pause:
    """Leave the request for the daemon of this state directory, now or later. RltunedError: it cannot be."""
    path = state / FILE_NAME
    try:
        make_directory(state)
        write(path, _File(now, seconds))
    except (OSError, RltunedError) as error:
        raise RltunedError(f"the pause cannot be asked for: {error}; {_AS_WHOM}") from error
    return Pause(now, seconds)


def asked(state: Path, now: Moment, *, tidy: bool = False) -> Pause | None:
    """The pause that is in force; None where there is none. `tidy`: take one away that has ended by itself, so that no
    clock brings it back.
    """
    try:
        file = read(_File, state / FILE_NAME, "a pause")
    except RltunedError as error:
        return Pause(trouble=str(error))
    found = None if file is None else Pause(file.began, file.seconds)
    if found is None or found.in_force(now):
        return found
    if tidy:
        with contextlib.suppress(RltunedError):
            end(state)
    return None


def end(state: Path) -> bool:
    """Take the request away; whether there was one. RltunedError: it cannot be."""
    path = state / FILE_NAME
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RltunedError(f"{path}: the pause cannot be ended: {error.strerror}; {_AS_WHOM}") from error
    return True

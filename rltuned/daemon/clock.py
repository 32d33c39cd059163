"""The clock, passed in everywhere so that tests run on a virtual one."""

import time
from typing import Protocol


class Clock(Protocol):
    """Time and waiting."""

    def time(self) -> float:
        """Epoch seconds: what is compared with Slurm's times and written to disk."""

    def monotonic(self) -> float:
        """Seconds that never jump: durations, budgets, back-off."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The real one."""

    def time(self) -> float:
        """See `Clock`."""
        return time.time()

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)

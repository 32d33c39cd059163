"""The clock, passed in everywhere so that tests run on a virtual one.

Three readings, because none does for all: the wall clock may be set by hours and backwards, so it is only compared with
times of Slurm's, and shown. What is compared with an earlier reading of our own goes by one of the other two.
"""

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol, Self

from pydantic import Field

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has it; elsewhere no daemon runs."""
Seconds = Annotated[float, Field(ge=0.0, le=1e11)]
"""What a clock may have shown, as it is read from a file: no calendar goes much further."""


class Clock(Protocol):
    """Time and waiting."""

    def time(self) -> float:
        """Epoch seconds by the wall clock: what is compared with Slurm's times. May jump."""

    def steady(self) -> float:
        """Epoch seconds that never jump, for how old something is: the wall clock's when this process began, and what
        has passed since then, suspended or not.
        """

    def monotonic(self) -> float:
        """Seconds that never jump, the same for all processes of the machine, without the time in which it was
        suspended: durations, budgets, back-off.
        """

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The real one."""

    def __init__(self) -> None:
        """Take the wall clock's word for what time it is."""
        self._began = time.time() - time.clock_gettime(_BOOTTIME)

    def steady(self) -> float:
        """See `Clock`."""
        return self._began + time.clock_gettime(_BOOTTIME)

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    time = staticmethod(time.time)


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened, so that another process, maybe on another host, can tell how long ago that was."""

    time: Seconds  # since the epoch, by the wall clock
    monotonic: Seconds  # see `Clock`
    host: str
    boot: str  # of the machine since its last start; "" where it is hidden (``ProcSubset=pid``)

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """Now and here."""
        try:
            boot = BOOT_ID.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            boot = ""
        return cls(clock.time(), clock.monotonic(), socket.gethostname(), boot)

    def since(self, then: "Moment") -> float:
        """Seconds from `then` to this moment in which the machine was awake; inf if it was started anew in between. The
        wall clock counts for another host only, and there in both directions: munge refuses a skew of five minutes.
        """
        if self.boot and then.boot:
            if self.boot == then.boot:
                return self.monotonic - then.monotonic
            return float("inf") if self.host == then.host else abs(self.time - then.time)
        if self.host != then.host:
            return abs(self.time - then.time)
        passed = self.monotonic - then.monotonic
        # A reboot is not visible here. The heartbeat may look young at first, but becomes stale after the usual time.
        return passed if passed >= 0 else float("inf")

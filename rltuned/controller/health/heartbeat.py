"""The daemon's sign of life: a small file in each state directory, for the dead-man timer and `doctor`.

How old it is does not depend on the wall clock (`controller.health.clock.Moment`): a clock that is set by minutes must
neither set the dead-man on a living daemon nor keep it from a dead one.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rltuned.controller.health.clock import Moment
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import read, write

HEARTBEAT_NAME: Final = "heartbeat.json"
STALE_SECONDS: Final = 300.0  # least age at which a sign of life counts as stale
DEAD_MAN_PATIENCE: Final = 2.0
"""Times `write.give_back_after` for which a daemon that lives but cannot act is left to itself."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How the daemon is, by its own account."""

    writing: bool = True
    inactive: float = 0.0
    """Seconds since the queue was last as the plan wants it (in a stage that writes nothing: free of what is ours)."""
    unreturned: tuple[int, ...] = ()
    """Some of the jobs that are to be given back and could not be yet."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Moment):
    """The daemon's sign of life at a moment, as the dead-man timer reads it; its last fields are a `Condition`."""

    stale_after: float  # seconds after which the daemon itself considers it stale (several cycles)
    pid: int
    writing: bool
    inactive: float
    unreturned: tuple[int, ...]


def stale_after(interval: float) -> float:
    """Age, in seconds, at which the daemon's last sign of life is stale, where its cycles are so far apart."""
    return max(STALE_SECONDS, 4 * interval)


def beat(directories: Iterable[Path], now: Moment, stale_after: float, condition: Condition = Condition()) -> bool:
    """Write the heartbeat into each directory. False when no disk took it; the dead-man timer then restores in time."""
    sign = Heartbeat(**asdict(now), **asdict(condition), stale_after=stale_after, pid=os.getpid())
    taken = False
    for directory in directories:
        # Not durable: a heartbeat lost in a power cut is rightly stale.
        with contextlib.suppress(RltunedError):
            write(directory / HEARTBEAT_NAME, sign, durable=False)
            taken = True
    return taken


def stop_beating(directories: Iterable[Path]) -> None:
    """Remove the heartbeat: an orderly end. What is left to restore is restored by the dead-man timer at once."""
    for directory in directories:
        with contextlib.suppress(OSError):
            (directory / HEARTBEAT_NAME).unlink()


def read_heartbeat(now: Moment, *directories: Path | None) -> Heartbeat | None:
    """The latest heartbeat in any of the state directories; None when there is none that can be understood."""
    found = []
    for directory in filter(None, directories):
        with contextlib.suppress(RltunedError):
            found.append(read(Heartbeat, directory / HEARTBEAT_NAME, "a heartbeat"))
    return min(filter(None, found), key=now.since, default=None)


def is_fresh(sign: Heartbeat | None, now: Moment, max_age: float = 0.0) -> bool:
    """Whether there is a heartbeat that is no older than `max_age` seconds, and several cycles."""
    return sign is not None and now.since(sign) <= max(max_age, sign.stale_after)


def fresh_heartbeat(max_age: float, now: Moment, *directories: Path | None) -> Heartbeat | None:
    """The latest heartbeat, if it `is_fresh`."""
    sign = read_heartbeat(now, *directories)
    return sign if is_fresh(sign, now, max_age) else None


def elsewhere(directory: Path, now: Moment) -> str | None:
    """Whose daemon on another host lives in this directory, although its lock is free here; None: nobody's."""
    sign = fresh_heartbeat(0.0, now, directory)
    if sign is None or sign.host == now.host or (now.boot and sign.boot == now.boot):
        return None  # the same machine, perhaps another container: locks are seen
    return f"{directory}: process {sign.pid} on {sign.host} works in it, and its lock is not seen on this host"

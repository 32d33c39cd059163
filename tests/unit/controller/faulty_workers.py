"""Workers that misbehave, for `test_forecast_worker`. Each is started in a process of its own: nothing slow is imported
here."""

import os
import time
from pathlib import Path
from typing import Any

READY = "ready"


def hangs(pipe: Any, cache: Path) -> None:
    """Is ready, takes a request, and never answers."""
    pipe.send(READY)
    pipe.recv_bytes()
    time.sleep(600)


def never_reads(pipe: Any, cache: Path) -> None:
    """Is ready, and lets the pipe run full."""
    pipe.send(READY)
    time.sleep(600)


def never_ready(pipe: Any, cache: Path) -> None:
    """Compiles for ever."""
    time.sleep(600)


def dies_at_once(pipe: Any, cache: Path) -> None:
    """As where there is no memory for it."""
    os._exit(3)


def forbidden(pipe: Any, cache: Path) -> None:
    """As where the unit has MemoryDenyWriteExecute=yes."""
    pipe.send("PermissionError: [Errno 13] cannot allocate executable memory.")


def dies_once(pipe: Any, cache: Path) -> None:
    """The first of its kind dies in the middle of a request; `cache` is where it leaves a note for the next."""
    found = answer()
    pipe.send(READY)
    while True:
        pipe.recv_bytes()
        if not cache.exists():
            cache.touch()
            os._exit(1)
        pipe.send(found)


def hungry(pipe: Any, cache: Path) -> None:
    """Wants more memory than there is on any machine, a piece at a time."""
    from rltuned.controller.learnt.forecast_worker import MEMORY, confine

    confine(MEMORY)
    pipe.send(READY)
    pipe.recv_bytes()
    taken = []
    while True:
        taken.append(bytearray(8 * 2**20))


def answer() -> Any:
    """A forecast of nobody. What it imports takes longer than a busy machine waits for an answer."""
    import numpy as np

    from rltuned.simulate.forecast.start_forecast import StartForecast

    nothing = np.zeros((0, 3))
    return StartForecast(np.zeros(0, dtype=np.intp), nothing, 3, nothing)


def complains_first(pipe: Any, cache: Path) -> None:
    """Cannot simulate the first queue, but goes on living."""
    found = answer()
    pipe.send(READY)
    for said in ("ValueError: odd queue", "ValueError: odd queue", found):
        pipe.recv_bytes()
        pipe.send(said)

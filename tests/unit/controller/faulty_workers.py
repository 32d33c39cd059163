"""Workers that misbehave, for `test_forecast_worker`. Each is started in a process of its own: nothing slow is imported
here."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

READY = "ready"


def _work(how: str, pipe: Any, cache: Path) -> None:
    found = _answer() if how in {"dies once", "complains first"} else None
    match how:
        case "never ready":  # compiles for ever
            time.sleep(600)
        case "dies at once":  # as where there is no memory for it
            os._exit(3)
        case "forbidden":  # as where the unit has MemoryDenyWriteExecute=yes
            pipe.send("PermissionError: [Errno 13] cannot allocate executable memory.")
            return
    pipe.send(READY)
    match how:
        case "hangs":
            pipe.recv_bytes()
            time.sleep(600)
        case "never reads":  # lets the pipe run full
            time.sleep(600)
        case "dies once":  # the first of its kind, which leaves a note for the next
            while pipe.recv_bytes():
                if not cache.exists():
                    cache.touch()
                    os._exit(1)
                pipe.send(found)
        case "hungry":  # wants more memory than there is on any machine, a piece at a time
            from rltuned.controller.learnt.forecast_worker import MEMORY, confine

            confine(MEMORY)
            pipe.recv_bytes()
            taken = []
            while True:
                taken.append(bytearray(8 * 2**20))
        case "complains first":  # cannot simulate the first queues, but goes on living
            for said in ("ValueError: odd queue", "ValueError: odd queue", found):
                pipe.recv_bytes()
                pipe.send(said)


def faulty(how: str) -> Any:
    """The work of such a worker."""
    return partial(_work, how)


def _answer() -> Any:
    """A forecast of nobody. What it imports takes longer than a busy machine waits for an answer."""
    import numpy as np

    from rltuned.simulate.forecast.start_forecast import ShorterLimits, StartForecast

    nobody, nothing = np.zeros(0, dtype=np.intp), np.zeros((0, 3))
    return StartForecast(nobody, nothing, 3, nothing, ShorterLimits((), nobody, np.zeros(0), nothing))

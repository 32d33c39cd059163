"""The forecast of start times (`simulate.forecast`), in a process that may fail (docs/start-times.md).

Numba and LLVM take more memory than all the rest of the daemon, and seconds to load. So the daemon has one worker
process: the first cycle that wants it starts it; it gets what it needs of each snapshot, and answers in time or is
killed. Whatever becomes of it, cycles go on.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.controller.health.clock import Clock, SystemClock
from rltuned.controller.health.runtime import Runtime
from rltuned.core.config import ForecastSection
from rltuned.core.installed import forecast_remedy, has_numba
from rltuned.core.tables import Category
from rltuned.simulate.forecast.start_forecast import MOST_JOBS, StartForecast, StartRequest

GRACE: Final = 2.0
"""Seconds beyond `FORECAST`: for a scenario that began in time, and for the way there and back."""
FORECAST: Final = 0.5
"""Seconds of a cycle that the forecast of start times may take."""
WARM: Final = 300.0
"""Seconds after which a worker that has not said it is ready is taken for stuck; compiling takes 20 to 40."""
FIRST_WAIT: Final = 60.0
LONGEST_WAIT: Final = 900.0
"""Seconds between the tries to start a worker that keeps failing, doubling; the first failure is tried again at
once."""
NICE: Final = 5
MEMORY: Final = 512 * 2**20
"""Bytes of its own that the worker may have (RLIMIT_DATA). With 20,000 pending and 5,000 running jobs it takes 270 MB,
and 430 while it compiles."""
OOM_FIRST: Final = "1000"
"""Its oom_score_adj(5): where memory is short, the kernel ends the worker and nothing else of the service."""
READY: Final = "ready"
CACHE: Final = "NUMBA_CACHE_DIR"


def forecasts(settings: ForecastSection) -> bool:
    """Whether start times are forecast."""
    return settings.enabled == "auto" and has_numba()


def forecast(request: StartRequest, clock: Clock) -> StartForecast | None:
    """When each pending job starts, simulated in this process for at most `FORECAST` seconds."""
    from rltuned.simulate.forecast.start_simulation import StartSimulation  # noqa: PLC0415 - Numba (see above)
    from rltuned.simulate.values import SimulationSettings  # noqa: PLC0415 - as above

    until = clock.monotonic() + FORECAST
    settings = SimulationSettings.of_cluster(request.snapshot.scheduler)
    return StartSimulation(settings=settings, seconds_left=lambda: until - clock.monotonic())(request)


def load_kernel(cache: Path) -> None:
    """Load the compiled kernel, or compile it and keep it in `cache` where the environment names nothing and the
    package's own directory cannot be written. ImportError, OSError, RuntimeError: there is no Numba, or it cannot work
    here.
    """
    if CACHE not in os.environ and not os.access(Path(__file__).parents[2] / "simulate", os.W_OK):
        os.environ[CACHE] = str(cache)
    from rltuned.simulate.scenarios import compile_scenarios  # noqa: PLC0415 - Numba (see above)

    compile_scenarios()


def work(pipe: Connection, cache: Path) -> None:
    """The worker's life: get warm, say so, answer requests until the daemon is gone."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the whole group; the daemon decides
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the unit's filter may forbid it, and is nice itself
        os.nice(NICE)
    confine(MEMORY)
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    clock = SystemClock()
    try:
        load_kernel(cache)
    except Exception as error:  # noqa: BLE001 - whatever it is, the daemon is told
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(READY)
    while True:
        try:
            request: StartRequest = pipe.recv()
        except EOFError:
            return
        try:
            answer: StartForecast | str | None = forecast(request, clock)
        except Exception as error:  # noqa: BLE001 - the next queue is another one
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)


def confine(memory: int) -> None:
    """Let this process have so many bytes of its own at most: it fails before it takes them from the daemon."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (least, least))


def _end_with_the_daemon() -> None:
    """However the daemon ends, and whatever is being compiled or simulated meanwhile."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def needed(request: StartRequest) -> StartRequest:
    """Only what a forecast looks at: the front of the queue and the running jobs, without names of people."""
    rows = request.rows[:MOST_JOBS]
    keep = np.union1d(rows, request.snapshot.jobs.running).astype(np.intp)
    jobs, user = request.snapshot.jobs.take(keep), request.snapshot.jobs.user
    nothing = Category(np.full(len(keep), -1, dtype=np.int32), ())
    # Whose jobs are alike matters, not who that is.
    numbers = Category(user.codes[keep], tuple(str(number) for number in range(len(user.names))))
    jobs = replace(jobs, user=numbers, account=nothing, reason=nothing)
    return replace(
        request,
        snapshot=replace(request.snapshot, jobs=jobs),
        rows=np.searchsorted(keep, rows),
        run_times=request.run_times[keep],
        submissions=None if request.submissions is None else request.submissions.without_names(),
    )


class ForecastWorker:
    """Sends the queue to the worker, which it starts, watches and kills. Never raises."""

    def __init__(self, runtime: Runtime, target: Callable[[Connection, Path], None] = work) -> None:
        self._runtime, self._target = runtime, target
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._warm, self._began = False, 0.0
        self._again = float("-inf")  # no worker is started before
        self._failures = 0  # in a row
        self.trouble = ""
        """Why it does not answer; "" where it does, or has not been asked."""
        self._closed = threading.Event()
        self._starting = threading.Lock()
        """A worker that is just being started must not be missed by `close`."""

    @property
    def worker(self) -> int | None:
        """Process id of the worker, where there is one."""
        return None if self._process is None else self._process.pid

    def __call__(self, request: StartRequest) -> StartForecast | None:
        """When each pending job starts; None whenever there is no answer in time."""
        if self._process is None and self._runtime.clock.monotonic() >= self._again:
            self._start()
        process, pipe = self._process, self._pipe
        if process is None or pipe is None or not (self._warm or self._hears(process, pipe)):
            return None
        # Killed, it ends whatever waits for it here: a full pipe as well as an answer that does not come.
        wanted, late, patience = needed(request), threading.Event(), FORECAST + GRACE

        def give_up() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(patience, give_up)
        watch.daemon = True
        try:
            watch.start()
            pipe.send(wanted)
            answer = pipe.recv()
        except Exception as error:  # noqa: BLE001 - half a message of a killed worker may be anything
            gone = f"the worker is gone ({type(error).__name__})"
            self._broken(f"no answer within {patience:g} s" if late.is_set() else gone)
            return None
        finally:
            watch.cancel()
        if isinstance(answer, str):
            self._failed(answer)
            return None
        if self._failures:
            self._failures, self.trouble = 0, ""
            self._runtime.log.info("forecast.works", sentence="Start times are forecast again.")
        return answer if isinstance(answer, StartForecast) else None

    def _hears(self, process: SpawnProcess, pipe: Connection) -> bool:
        """Whether a worker that was started says that it is ready; does not wait for it."""
        seconds = self._runtime.clock.monotonic() - self._began
        try:
            said = pipe.recv() if pipe.poll(0) else None
        except (EOFError, OSError):
            process.join(1.0)
            self._broken(f"the worker ended before it was ready (exit code {process.exitcode})")
            return False
        if said == READY:
            self._warm, self.trouble = True, ""  # how often it failed before stays known until it has answered
            sentence = f"Start times are forecast from now on ({seconds:.0f} s)."
            self._runtime.log.info("forecast.ready", sentence=sentence)
        elif said is not None:
            self._broken(str(said))
        elif seconds > WARM:
            self._broken(f"the worker was not ready after {WARM:g} s")
        return self._warm

    def _start(self) -> None:
        with self._starting:
            if self._closed.is_set():
                return
            context = multiprocessing.get_context("spawn")  # a fork would inherit locks that other threads hold
            # Where compiled kernels are kept when nothing better is known.
            cache = self._runtime.config.state.directory / "numba"
            with contextlib.ExitStack() as opened:
                try:
                    ours, theirs = context.Pipe()
                    opened.callback(ours.close)
                    with theirs:
                        process = context.Process(
                            target=self._target, args=(theirs, cache), name="forecast", daemon=True
                        )
                        process.start()
                        with contextlib.suppress(OSError):
                            Path(f"/proc/{process.pid}/oom_score_adj").write_text(OOM_FIRST)
                except (OSError, RuntimeError) as error:
                    self._failed(f"the worker cannot be started: {error}")
                    return
                opened.pop_all()
            self._process, self._pipe, self._warm, self._began = process, ours, False, self._runtime.clock.monotonic()

    def _broken(self, why: str) -> None:
        """The worker is of no use any more; another one follows."""
        self._end()
        if self._closed.is_set():
            return
        self._failed(why)
        if self._failures == 1:
            self._start()

    def _failed(self, why: str) -> None:
        self._failures += 1
        self.trouble = why
        wait = FIRST_WAIT * 2.0 ** (self._failures - 2) if self._failures > 1 else 0.0
        self._again = self._runtime.clock.monotonic() + min(wait, LONGEST_WAIT)
        if self._failures == 1:
            sentence = "No start times are forecast until it works again."
            self._runtime.log.warning("forecast.failed", sentence=sentence, reason=why, remedy=forecast_remedy(why))

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process, self._pipe, self._warm = None, None, False
        if process is not None:
            process.kill()
            process.join(5.0)
        if pipe is not None:
            pipe.close()

    def rest(self) -> None:
        """No forecasts are wanted for now: end the worker. For the thread of the cycle."""
        self._end()
        self._failures, self.trouble, self._again = 0, "", float("-inf")

    def close(self) -> None:
        """End the worker for good, from any thread; a forecast that waits for it returns at once."""
        self._closed.set()
        with self._starting:
            process = self._process
        if process is not None:
            process.kill()

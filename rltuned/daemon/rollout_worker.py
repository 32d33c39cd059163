"""The rollout search (`rltuned.simulate.search`) beside the daemon, in a process that may fail (docs/rollout.md).

Numba and LLVM take more memory than all the rest of the daemon, and seconds to load. So the daemon has one worker
process: the first cycle that wants it starts it; it gets what it needs of each snapshot, and answers in time or is
killed. Whatever becomes of it, the cycle goes on with the policy's order. Commands that decide once have the same
without a process: `InProcessSearch`.
"""

import contextlib
import math
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.cluster.objective import Objective
from rltuned.cluster.tables import Category, Snapshot
from rltuned.config import Config, RolloutSection
from rltuned.daemon.auto_policy import has_numba
from rltuned.daemon.checks import rollout_remedy
from rltuned.daemon.clock import Clock, SystemClock
from rltuned.daemon.metrics import SearchOutcome
from rltuned.daemon.runtime import Runtime
from rltuned.decide.rollout import RolloutRequest, RolloutResult, Rows
from rltuned.errors import ConfigError
from rltuned.estimates.predictions import PredictsRunTimes
from rltuned.forecast.start_forecast import MOST_JOBS, StartForecast, StartRequest
from rltuned.installed import how_to_install
from rltuned.policy import Policy

GRACE: Final = 2.0
"""Seconds beyond the time limit: for a rollout that began in time, and for the way there and back."""
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


def checked(config: Config) -> Config:
    """The configuration; ConfigError where rollouts are switched on, and Numba is not there."""
    if config.rollout.enabled == "on" and not has_numba():
        raise ConfigError(f'rollout.enabled = "on" needs Numba: {how_to_install("simulate")} (or set it to "auto")')
    return config


def wanted(settings: RolloutSection, policy: Policy, *, judged: bool = False) -> bool:
    """Whether rollouts are made of this policy's order. `judged`: a verdict chose it, and a rule was judged without."""
    every = settings.enabled == "on" and not judged
    return settings.enabled != "off" and (every or isinstance(policy, PredictsRunTimes)) and has_numba()


def forecasts(settings: RolloutSection) -> bool:
    """Whether start times are forecast."""
    return settings.forecast == "auto" and has_numba()


@dataclass(frozen=True)
class SearchTask:
    """What the worker is asked: the request of a plan, the settings of the search, and what the site wants."""

    settings: RolloutSection
    objective: Objective
    request: RolloutRequest

    def run(self, clock: Clock) -> RolloutResult | None:
        """Search in this process. The kernel is loaded, or compiled where it has never been."""
        from rltuned.simulate.search import OrderSearch  # noqa: PLC0415 - Numba (see above)
        from rltuned.simulate.values import SimulationSettings  # noqa: PLC0415 - as above

        settings, until = self.settings, clock.monotonic() + self.settings.time_limit
        search = OrderSearch(
            orders=settings.orders,
            min_jobs=settings.min_jobs,
            depth=settings.depth,
            objective=self.objective,
            margin=settings.margin,
            settings=SimulationSettings.of_cluster(self.request.snapshot.scheduler),
            over_slurm=True,
            seconds_left=lambda: until - clock.monotonic(),
        )
        found = search(self.request)
        # Where a job never starts the cost is NaN. Such a result changes no order, and no record could hold it.
        return None if found is None or not math.isfinite(found.cost + found.best) else found


@dataclass(frozen=True)
class ForecastTask:
    """What the worker is asked after the decision: when each pending job starts."""

    request: StartRequest

    def run(self, clock: Clock) -> StartForecast | None:
        """Simulate in this process, for at most `FORECAST` seconds."""
        from rltuned.forecast.start_simulation import StartSimulation  # noqa: PLC0415 - Numba (see above)
        from rltuned.simulate.values import SimulationSettings  # noqa: PLC0415 - as above

        until = clock.monotonic() + FORECAST
        settings = SimulationSettings.of_cluster(self.request.snapshot.scheduler)
        return StartSimulation(settings=settings, seconds_left=lambda: until - clock.monotonic())(self.request)


def load_kernel(cache: Path) -> None:
    """Load the compiled kernel, or compile it and keep it in `cache` where the environment names nothing and the
    package's own directory cannot be written. ImportError, OSError, RuntimeError: there is no Numba, or it cannot work
    here.
    """
    if CACHE not in os.environ and not os.access(Path(__file__).parents[1] / "simulate", os.W_OK):
        os.environ[CACHE] = str(cache)
    from rltuned.simulate.search import compile_rollouts  # noqa: PLC0415 - Numba (see above)

    compile_rollouts()


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
            task: SearchTask | ForecastTask = pipe.recv()
        except EOFError:
            return
        try:
            answer: RolloutResult | StartForecast | str | None = task.run(clock)
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


def needed(request: RolloutRequest) -> tuple[RolloutRequest, Rows]:
    """Only what rollouts look at, without names of people, and for each row of its job table the row that it had."""
    small, keep = _smaller(request.snapshot, request.rows)
    rows = np.searchsorted(keep, request.rows)
    return replace(request, snapshot=small, rows=rows, run_times=request.run_times[keep]), keep


def needed_of_starts(request: StartRequest) -> StartRequest:
    """As `needed`, of a forecast, which looks at the front of the queue only."""
    rows = request.rows[:MOST_JOBS]
    small, keep = _smaller(request.snapshot, rows)
    # Whose jobs are alike matters, not who that is.
    user = request.snapshot.jobs.user
    numbers = Category(user.codes[keep], tuple(str(number) for number in range(len(user.names))))
    return replace(
        request,
        snapshot=replace(small, jobs=replace(small.jobs, user=numbers)),
        rows=np.searchsorted(keep, rows),
        run_times=request.run_times[keep],
        submissions=None if request.submissions is None else request.submissions.without_names(),
    )


def _smaller(snapshot: Snapshot, rows: Rows) -> tuple[Snapshot, Rows]:
    keep = np.union1d(rows, snapshot.jobs.running).astype(np.intp)
    jobs = snapshot.jobs.take(keep)
    nothing = Category(np.full(len(keep), -1, dtype=np.int32), ())
    return replace(snapshot, jobs=replace(jobs, user=nothing, account=nothing, reason=nothing)), keep


class WorkerSearch:
    """Satisfies `RolloutSearch`: sends the queue to the worker, which it starts, watches and kills. Never raises."""

    def __init__(self, runtime: Runtime, target: Callable[[Connection, Path], None] = work) -> None:
        self._runtime, self._target = runtime, target
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._warm = False
        self._began = 0.0
        self._again = float("-inf")
        """No worker is started before."""
        self._failures = 0
        """In a row."""
        self.trouble = ""
        """Why it does not answer; "" where it does, or has not been asked."""
        self._rollouts = False
        """It was asked for a rollout last; else it only forecasts start times."""
        self._closed = threading.Event()
        self._starting = threading.Lock()
        """A worker that is just being started must not be missed by `close`."""

    @property
    def worker(self) -> int | None:
        """Process id of the worker, where there is one."""
        return None if self._process is None else self._process.pid

    # --- the cycle's side

    def __call__(self, request: RolloutRequest) -> RolloutResult | None:
        """As the protocol says; None whenever there is no answer in time."""
        self._rollouts = True
        if len(request.rows) < 2 or not self._is_ready():
            self._runtime.metrics.searched(SearchOutcome.SKIPPED)
            return None
        config, began = self._runtime.config, self._runtime.clock.monotonic()
        small, keep = needed(request)
        answered, answer = self._exchange(
            SearchTask(config.rollout, config.policy.objective, small), config.rollout.time_limit + GRACE
        )
        found = answer if isinstance(answer, RolloutResult) else None
        if answered:
            _count(self._runtime, found, began)
        return None if found is None else found.of_table(keep)

    def forecast(self, request: StartRequest) -> StartForecast | None:
        """When each pending job starts; None whenever there is no answer in time."""
        if not self._is_ready():
            return None
        _, found = self._exchange(ForecastTask(needed_of_starts(request)), FORECAST + GRACE)
        return found if isinstance(found, StartForecast) else None

    def _exchange(self, task: SearchTask | ForecastTask, patience: float) -> tuple[bool, object]:
        """Whether the worker has answered, and what."""
        process, pipe = self._process, self._pipe
        if process is None or pipe is None:
            return False, None
        # Killed, it ends whatever waits for it here: a full pipe as well as an answer that does not come.
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(patience, give_up)
        watch.daemon = True
        try:
            watch.start()
            pipe.send(task)
            answer = pipe.recv()
        except Exception as error:  # noqa: BLE001 - half a message of a killed worker may be anything
            if late.is_set():
                self._broken(f"no answer within {patience:g} s", SearchOutcome.LATE)
            else:
                self._broken(f"the worker is gone ({type(error).__name__})", SearchOutcome.FAILED)
            return False, None
        finally:
            watch.cancel()
        if isinstance(answer, str):
            self._failed(answer, SearchOutcome.FAILED)
            return False, None
        if self._failures:
            self._failures, self.trouble = 0, ""
            sentence = "Rollouts work again." if self._rollouts else "Start times are forecast again."
            self._runtime.log.info("rollout.works", sentence=sentence)
        return True, answer

    def _is_ready(self) -> bool:
        """Whether the worker can be asked. Starts it where there is none, hears whether it is warm; does not wait."""
        if self._process is None and self._runtime.clock.monotonic() >= self._again:
            self._start()
        if self._process is None or self._pipe is None or self._warm:
            return self._warm
        try:
            said = self._pipe.recv() if self._pipe.poll(0) else None
        except (EOFError, OSError):
            self._process.join(1.0)
            self._broken(f"the worker ended before it was ready (exit code {self._process.exitcode})")
            return False
        if said == READY:
            self._warm, self.trouble = True, ""  # how often it failed before stays known until it has answered
            self._runtime.metrics.rollout_ready.set(1)
            seconds = self._runtime.clock.monotonic() - self._began
            does = "Rollouts are made" if self._rollouts else "Start times are forecast"
            self._runtime.log.info("rollout.ready", sentence=f"{does} from now on ({seconds:.0f} s).")
        elif said is not None:
            self._broken(str(said))
        elif self._runtime.clock.monotonic() - self._began > WARM:
            self._broken(f"the worker was not ready after {WARM:g} s")
        return self._warm

    # --- the worker

    def _start(self) -> None:
        with self._starting:
            if self._closed.is_set():
                return
            context = multiprocessing.get_context("spawn")  # a fork would inherit locks that other threads hold
            with contextlib.ExitStack() as opened:
                try:
                    ours, theirs = context.Pipe()
                    opened.callback(ours.close)
                    with theirs:
                        process = context.Process(
                            target=self._target, args=(theirs, _cache(self._runtime)), name="rollout", daemon=True
                        )
                        process.start()
                        with contextlib.suppress(OSError):
                            Path(f"/proc/{process.pid}/oom_score_adj").write_text(OOM_FIRST)
                except (OSError, RuntimeError) as error:
                    self._failed(f"the worker cannot be started: {error}", SearchOutcome.FAILED)
                    return
                opened.pop_all()
            self._process, self._pipe, self._warm, self._began = process, ours, False, self._runtime.clock.monotonic()

    def _broken(self, why: str, outcome: SearchOutcome = SearchOutcome.FAILED) -> None:
        """The worker is of no use any more; another one follows."""
        self._end()
        if self._closed.is_set():
            return
        self._failed(why, outcome)
        if self._failures == 1:
            self._start()

    def _failed(self, why: str, outcome: SearchOutcome) -> None:
        self._failures += 1
        self.trouble = why
        wait = FIRST_WAIT * 2.0 ** (self._failures - 2) if self._failures > 1 else 0.0
        self._again = self._runtime.clock.monotonic() + min(wait, LONGEST_WAIT)
        if self._rollouts:
            self._runtime.metrics.searched(outcome)
        if self._failures == 1:
            stands = "The policy's order stands" if self._rollouts else "No start times are forecast"
            self._runtime.log.warning(
                "rollout.failed",
                sentence=f"{stands} until it works again.",
                reason=why,
                remedy=rollout_remedy(why),
            )

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process, self._pipe, self._warm = None, None, False
        self._runtime.metrics.rollout_ready.set(0)
        if process is not None:
            process.kill()
            process.join(5.0)
        if pipe is not None:
            pipe.close()

    def rest(self, *, forecasts: bool = False) -> None:
        """No rollouts are wanted for now: end the worker, unless `forecasts` want it. For the thread of the cycle."""
        self._runtime.metrics.expects(None)
        self._rollouts = False
        if forecasts:
            return
        if self._process is not None:
            self._end()
        self._failures, self.trouble, self._again = 0, "", float("-inf")

    def close(self) -> None:
        """End the worker for good, from any thread; a search that waits for it returns at once."""
        self._closed.set()
        with self._starting:
            process = self._process
        if process is not None:
            process.kill()


class InProcessSearch:
    """Satisfies `RolloutSearch` in this process: for commands that decide once, and the demonstration. Never raises."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._loaded = runtime, False
        self.trouble = ""

    def __call__(self, request: RolloutRequest) -> RolloutResult | None:
        """As the protocol says. The first time the kernel is loaded, which the time limit does not count."""
        try:
            if not self._loaded:
                load_kernel(_cache(self._runtime))
                self._loaded = True
            began = self._runtime.clock.monotonic()
            config = self._runtime.config
            found = SearchTask(config.rollout, config.policy.objective, request).run(self._runtime.clock)
        except Exception as error:  # noqa: BLE001 - the policy's order is good enough
            if not self.trouble:
                self._runtime.log.warning("rollout.failed", sentence="The policy's order stands.", reason=str(error))
            self.trouble = f"{type(error).__name__}: {error}"
            self._runtime.metrics.searched(SearchOutcome.FAILED)
            return None
        self.trouble = ""
        _count(self._runtime, found, began)
        return found

    def forecast(self, request: StartRequest) -> None:
        """None: one cycle knows too little of how forecasts turn out."""

    def rest(self, *, forecasts: bool = False) -> None:  # noqa: ARG002 - as of `WorkerSearch`
        """There is nothing to end."""
        self._runtime.metrics.expects(None)

    def close(self) -> None:
        """There is nothing to end."""


def _count(runtime: Runtime, found: RolloutResult | None, began: float) -> None:
    """Count a search that was answered."""
    if found is None:
        runtime.metrics.searched(SearchOutcome.SKIPPED)
        return
    outcome = SearchOutcome.KEPT if found.order is None else SearchOutcome.MOVED
    runtime.metrics.searched(outcome, found, runtime.clock.monotonic() - began)


def _cache(runtime: Runtime) -> Path:
    """Where compiled kernels are kept when nothing better is known."""
    return runtime.config.state.directory / "numba"

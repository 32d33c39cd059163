"""The process around the loop: lock, journal, policy, metrics endpoint, scheduler, signals, systemd."""

import gc
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

import prometheus_client
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger

import rltuned.slurm.snapshot  # noqa: F401 - what the first cycle reads with is loaded before it
from rltuned import __version__
from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.planning import planned
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.cycle.report import Notifier
from rltuned.controller.health.clock import Clock, Moment, SystemClock
from rltuned.controller.health.heartbeat import elsewhere
from rltuned.controller.health.lock import NEEDS_LOCKS, Lock, holder
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.learnt.forecast_worker import ForecastWorker
from rltuned.controller.learnt.history import Known, LearntRunTimes
from rltuned.controller.learnt.start_times import StartTimes
from rltuned.controller.tell.endpoint import serve as serve_metrics
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.journal import Journal
from rltuned.core.config import Config, Effective, SlurmSection
from rltuned.core.errors import LockedError, SlurmUnavailableError
from rltuned.core.safe_files import make_directory
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.scope import Veto
from rltuned.slurm.connect import open_reader, open_writer
from rltuned.slurm.port import HistoryReader, SlurmReader, SlurmWriter

AT_ONCE: Final = DateTrigger(datetime(1970, 1, 1, tzinfo=UTC))
"""A time that has passed, wherever the wall clock is set to."""
LOOK_AGAIN: Final = 5.0
"""Seconds from one look at what was written to the next, between two cycles."""
WAITS: Final = (0.5, 1.5)  # least and most intervals from one cycle to the next
RESTORE_WAIT: Final = 40.0
"""Seconds to wait for a running restore; below TimeoutStartSec of the unit, which tries again."""


def serve(
    load: Callable[[], Effective],
    *,
    dry_run: bool = False,
    once: bool = False,
    connect_reader: Callable[[SlurmSection], SlurmReader] = open_reader,
    connect_writer: Callable[[SlurmSection], SlurmWriter] = open_writer,
    clock: Clock | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; with `once`, for one cycle in the foreground. SIGHUP reloads: `load` again.

    Ready as soon as configuration, model, lock and journal are good: a slurmctld that is down is waited for, not died
    of. What is on the queue at the end stays there; the unit's ExecStopPost runs ``rltuned restore``. In a dry run no
    writer is made. Raises ConfigError, ModelError: nothing was started. LockedError: another rltuned steers this
    cluster. StateError: this user cannot use the state directory. JournalError: the journal cannot be read.
    SlurmUnavailableError: `once`, and the cycle failed.
    """
    clock = clock or SystemClock()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # this one has no annotations
    # Its warning about a cycle that is still running is ``cycle.overrun`` here.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    config = load().config
    policy = load_policy(config)
    log = make(config.log.level, config.log.format, sys.stderr)
    with ExitStack() as stack:
        journal, owns = open_journal(config, clock, stack, dry_run=dry_run)
        metrics = Metrics([veto.value for veto in Veto], [outcome.value for outcome in SolveOutcome])
        runtime = Runtime(config, clock, log, metrics)
        reader = connect_reader(config.slurm)
        run_times = None
        if isinstance(reader, HistoryReader):
            run_times = LearntRunTimes(reader, runtime, make_key=not dry_run)
        known = Known() if run_times is None else run_times
        publish = worker = start_times = None
        # A dry run has no lock, and may run beside the daemon whose directory it is.
        if not (once or dry_run):
            if config.users.directory is not None:
                # Only here: most sites show users no records.
                from rltuned.controller.users.user_records import UserFiles  # noqa: PLC0415

                publisher = UserFiles(config.users.directory, runtime, known.last_of_users)
                stack.callback(publisher.close)
                publish = publisher.publish
            worker = ForecastWorker(runtime)
            start_times = StartTimes(worker, known.ended, runtime)
            start_times.load()
        parts = Parts(
            runtime=runtime,
            policy=policy,
            reader=reader,
            writer=None if dry_run else lambda: connect_writer(config.slurm),
            journal=journal,
            owns=owns,
            planner=partial(planned, known.predicted),
            look=(lambda _: 0) if run_times is None else run_times.look,
            told=known.told,
            start_times=start_times,
            worker=worker,
            publish=publish,
            notifier=Notifier.of(os.environ, os.getpid()),
        )
        daemon = Daemon(parts)
        stack.callback(daemon.stop)
        if once:
            # By what is known: reading weeks of jobs would keep somebody waiting.
            if run_times is not None:
                run_times.load()
            report = daemon.tick()
            if report is None or report.outcome is CycleOutcome.FAILED:
                raise SlurmUnavailableError(report.sentence if report is not None else "no cycle was run")
            return
        endpoint = serve_metrics(metrics, config.metrics, {"/healthz": daemon.alive, "/readyz": daemon.ready})
        if endpoint is not None:
            stack.callback(endpoint.close)
        if worker is not None:
            stack.callback(worker.close)
        if run_times is not None:
            stack.callback(run_times.stop)
            run_times.start()
        log.info(
            "daemon.started",
            sentence=f"rltuned {__version__}: policy {policy.name}, stage {config.cycle.stage}"
            + (", dry run" if dry_run else "")
            + (f", metrics on {endpoint.host}:{endpoint.port}" if endpoint is not None else ""),
            metrics_port=endpoint.port if endpoint is not None else None,
        )
        _run(daemon, load)
        log.info("daemon.stopped", sentence="The running cycle was finished. `rltuned restore` gives the queue back.")


def open_journal(
    config: Config, clock: Clock, stack: ExitStack, *, dry_run: bool
) -> tuple[Journal, Callable[[], bool]]:
    """The journal, behind the lock, for which a running restore is waited for, and whether the lock still holds. A dry
    run needs none. LockedError: another one has it, or the restore takes long. StateError: it cannot be opened.
    """
    directory, mirror = config.state.directory, config.state.mirror
    if dry_run:
        with suppress(OSError):  # for the decision record; where it cannot be written, the log says so
            make_directory(directory)
        return Journal.look(directory, mirror), lambda: True
    deadline = clock.monotonic() + RESTORE_WAIT
    while True:
        try:
            lock = stack.enter_context(Lock.acquire(directory, "run", clock.time()))
        except LockedError:
            held = holder(directory)
            if (held is not None and held.purpose != "restore") or clock.monotonic() > deadline:
                raise
            clock.sleep(1.0)
        else:
            if strange := elsewhere(directory, Moment.of(clock)):
                raise LockedError(f"{strange}; {NEEDS_LOCKS}")
            return Journal.open(directory, mirror), lock.still_held


@dataclass
class Pace:
    """When the next cycle is due by the monotonic clock: half to one and a half intervals after the last, drawn then.
    There is no grid: whoever changes a job for the moment of the reading cannot tell when that is.
    """

    last: float  # when the last one was due, seconds of that clock
    rng: random.Random
    _wait: float = 1.0  # intervals from then to the next one

    def left(self, now: float, interval: float) -> float:
        """Seconds until the next one is due."""
        return max(0.0, self.last + self._wait * interval - now)

    def is_due(self, now: float, interval: float) -> bool:
        """Whether it is due now; then the one after it is next."""
        if self.left(now, interval) > 0.0:
            return False
        self.last, self._wait = now, self.rng.uniform(*WAITS)
        return True


def _run(daemon: Daemon, load: Callable[[], Effective]) -> None:
    """Cycles and reloads, one at a time, in their own thread; signals and the watchdog here, where nobody waits."""
    clock, notifier = daemon.runtime.clock, daemon.parts.notifier
    asked, ending = threading.Event(), threading.Event()
    # One job at a time. When one is due is said here, by a clock that never jumps (docs/decisions/0171).
    scheduler = BackgroundScheduler(
        executors={"default": ThreadPoolExecutor(1)}, job_defaults={"misfire_grace_time": None}, timezone=UTC
    )
    at_once = partial(scheduler.add_job, trigger=AT_ONCE, replace_existing=True)

    def reload() -> None:
        asked.clear()  # a signal from now on is about what is written from now on
        if ending.is_set():
            return
        notifier.send("RELOADING=1", f"MONOTONIC_USEC={int(clock.monotonic() * 1e6)}")  # for Type=notify-reload
        try:
            if daemon.reload(lambda: load().config):
                daemon.runtime.log = make(daemon.config.log.level, daemon.config.log.format, sys.stderr)
        finally:
            notifier.status(f"{daemon.stage}: reloaded", "READY=1")

    def first() -> None:
        daemon.tick()
        # What stays for good is searched for cycles of references no more: 14 % of a cycle's processor time at 30,000
        # pending jobs, 4 % at 100,000.
        gc.collect()
        gc.freeze()

    with _signals() as wait:
        scheduler.start()
        pace = Pace(clock.monotonic(), daemon.parts.rng)
        at_once(first, id="cycle")
        notifier.status(f"{daemon.stage}: first cycle runs", "READY=1")
        pause = min(LOOK_AGAIN, notifier.watchdog_seconds / 3) if notifier.watchdog_seconds else LOOK_AGAIN
        while True:
            caught = wait(min(pause, pace.left(clock.monotonic(), daemon.config.cycle.interval)))
            if pace.is_due(clock.monotonic(), daemon.config.cycle.interval):
                at_once(daemon.tick, id="cycle")
            else:
                at_once(daemon.look_again, id="look again")
            if daemon.liveness.healthy():
                notifier.send("WATCHDOG=1")
            if caught in {signal.SIGTERM, signal.SIGINT}:
                break
            if caught == signal.SIGHUP and not asked.is_set():
                asked.set()
                at_once(reload)  # after the cycle that runs
        notifier.send("STOPPING=1")
        ending.set()
        daemon.request_stop()
        if daemon.parts.worker is not None:
            daemon.parts.worker.close()  # a cycle may wait for it
        scheduler.shutdown(wait=True)


@contextmanager
def _signals() -> Iterator[Callable[[float], int | None]]:
    """Collects SIGTERM, SIGINT and SIGHUP; the value waits for so many seconds and returns one that came."""
    # Python runs handlers in the main thread, where taking a lock could deadlock: this queue's `put` is reentrant.
    caught: SimpleQueue[int] = SimpleQueue()
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: caught.put(number)) for number in wanted}

    def wait(seconds: float) -> int | None:
        with suppress(Empty):
            return caught.get(timeout=seconds)
        return None

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

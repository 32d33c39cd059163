"""Cycles while somebody sets the wall clock or suspends the machine: APScheduler itself, under a clock of ours."""

import datetime as dt
import threading

import apscheduler.schedulers.base
import pytest
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.interval import IntervalTrigger
from unit.daemon.model_slurm import VirtualClock

from rltuned.daemon.clock import SystemClock
from rltuned.daemon.pace import SteadyScheduler

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


@pytest.fixture
def read_by(monkeypatch):
    """Makes APScheduler read the wall clock by a clock of the test's."""

    def install(clock):
        class Wall(dt.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls.fromtimestamp(clock.time(), tz)

        monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Wall)
        return clock

    return install


def paced(clock, job, interval, **options):
    scheduler = SteadyScheduler(clock, timezone=dt.UTC, **options)
    trigger = IntervalTrigger(seconds=interval, timezone=dt.UTC)
    scheduler.add_job(job, trigger, next_run_time=scheduler.now(), coalesce=True, misfire_grace_time=None)
    return scheduler


class Paced:
    """A job each minute, and when it ran by the monotonic clock; the scheduler's loop is run by hand."""

    def __init__(self, clock):
        self.clock, self.at = clock, []
        self.scheduler = paced(clock, self.run, 60.0, executors={"default": DebugExecutor()})
        self.scheduler._event = threading.Event()
        BaseScheduler.start(self.scheduler)  # without its thread
        self.began = clock.monotonic()

    def run(self):
        self.at.append(self.clock.monotonic())

    def go_on(self, seconds, more=lambda: None):
        """What APScheduler's loop does for so long."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            more()
            self.clock.sleep(min(self.scheduler._process_jobs(), left))

    @property
    def minutes(self):
        return [round((at - self.began) / 60.0, 3) for at in self.at]


@pytest.mark.parametrize(
    ("befalls", "jump"), [*(("set", jump) for jump in (-YEAR, -HOUR, -20.0, 20.0, HOUR, YEAR)), ("suspend", HOUR)]
)
def test_the_pace_is_kept_while_the_clock_is_set_or_the_machine_suspended(read_by, befalls, jump):
    job = Paced(read_by(VirtualClock()))
    job.go_on(130.0)
    getattr(job.clock, befalls)(jump)
    job.go_on(175.0)
    # It was waiting for the third minute when that happened, and it wakes up in time.
    assert job.minutes == [0, 1, 2, 3, 4, 5]


def test_a_clock_that_runs_fast_does_not_make_the_pace_fast(read_by):
    job = Paced(read_by(VirtualClock()))
    job.go_on(3590.0, lambda: job.clock.set(0.003))
    assert job.minutes == pytest.approx(list(range(60)), abs=0.001)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_clock_set_at_the_very_moment_in_which_the_next_time_is_worked_out_costs_one_interval_at_most(
    read_by, jump, monkeypatch
):
    job = Paced(read_by(VirtualClock()))
    job.go_on(90.0)
    process, jumps = BackgroundScheduler._process_jobs, iter([jump])

    def set_meanwhile(scheduler):
        job.clock.set(next(jumps, 0.0))
        return process(scheduler)

    monkeypatch.setattr(BackgroundScheduler, "_process_jobs", set_meanwhile)
    job.go_on(600.0)
    gaps = [later - earlier for earlier, later in zip(job.at, job.at[1:], strict=False)]
    assert max(gaps) <= 120.0
    assert len(job.at) >= 10


class SetClock(SystemClock):
    """The real clock, but for what somebody did to the wall clock."""

    offset = 0.0

    def time(self):
        return super().time() + self.offset


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_with_its_own_thread_it_goes_on(read_by, jump):
    clock, beaten = read_by(SetClock()), threading.Semaphore(0)
    scheduler = paced(clock, beaten.release, 0.1)
    scheduler.start()
    try:
        assert beaten.acquire(timeout=30)
        clock.offset += jump
        for _ in range(5):
            assert beaten.acquire(timeout=30)
    finally:
        scheduler.shutdown()

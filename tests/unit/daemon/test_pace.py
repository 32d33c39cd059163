"""Cycles at a fixed rate while somebody sets the wall clock or suspends the machine."""

import datetime as dt
import random
import threading

import apscheduler.schedulers.base
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from unit.daemon.model_slurm import VirtualClock

from rltuned.daemon.service import AT_ONCE, CYCLE, Pace

HOUR = 3600.0


class Punctual(random.Random):
    """No cycle is late."""

    def uniform(self, a, b):
        return a


def due(clock, pace, seconds, step=0.25):
    """In which minutes a cycle is due, within so long."""
    found, began = [], clock.monotonic()
    while clock.monotonic() - began < seconds:
        if pace.is_due(clock.monotonic(), 60.0):
            found.append(clock.monotonic() / 60.0)
        clock.sleep(min(step, pace.left(clock.monotonic(), 60.0)) or step)
    return found


@pytest.mark.parametrize(("befalls", "jump"), [("set", -HOUR), ("set", HOUR), ("suspend", HOUR)])
def test_the_rate_is_kept_while_the_clock_is_set_or_the_machine_suspended(befalls, jump):
    clock = VirtualClock()
    pace = Pace(clock.monotonic(), Punctual())
    began = clock.monotonic() / 60.0
    before = due(clock, pace, 130.0)
    getattr(clock, befalls)(jump)
    after = due(clock, pace, 175.0)
    assert [at - began for at in before + after] == pytest.approx([1, 2, 3, 4, 5], abs=0.01)


def test_what_was_missed_is_left_out_and_the_rate_goes_on():
    pace = Pace(100.0, Punctual())
    assert not pace.is_due(159.9, 60.0)
    assert pace.is_due(290.0, 60.0)
    assert not pace.is_due(339.9, 60.0)
    assert pace.left(330.0, 60.0) == 10.0
    assert pace.is_due(340.0, 60.0)
    assert pace.is_due(350.0, 10.0), "a reload with a shorter interval"


def test_nobody_knows_when_jobs_are_read_and_the_rate_is_kept():
    clock = VirtualClock()
    pace = Pace(clock.monotonic(), random.Random(1))
    began = clock.monotonic() / 60.0
    late = [at - began - minute for minute, at in enumerate(due(clock, pace, 3600.0), start=1)]
    assert len(late) in {59, 60}
    assert -0.01 < min(late) < 0.03
    assert 0.22 < max(late) < 0.26


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_the_scheduler_runs_at_once_what_is_due_whatever_the_wall_clock_says(monkeypatch, jump):
    class Wall(dt.datetime):
        offset = dt.timedelta()

        @classmethod
        def now(cls, tz=None):
            return dt.datetime.now(tz) + cls.offset

    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Wall)
    ran = threading.Semaphore(0)
    scheduler = BackgroundScheduler(job_defaults={"misfire_grace_time": None}, timezone=dt.UTC)
    scheduler.start()
    try:
        for _ in range(3):
            scheduler.add_job(ran.release, AT_ONCE, id=CYCLE, replace_existing=True)
            assert ran.acquire(timeout=30)
            Wall.offset += dt.timedelta(seconds=jump)
    finally:
        scheduler.shutdown()

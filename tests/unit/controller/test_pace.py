"""When cycles begin while somebody sets the wall clock or suspends the machine."""

import datetime as dt
import random
import threading

import apscheduler.schedulers.base
import numpy as np
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from unit.controller.model_slurm import VirtualClock

from rltuned.controller.cycle.service import AT_ONCE, Pace

HOUR = 3600.0


class Punctual(random.Random):
    """Each cycle comes an interval after the last one."""

    def uniform(self, a, b):
        return (a + b) / 2


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


def test_what_was_missed_is_left_out():
    pace = Pace(100.0, Punctual())
    assert not pace.is_due(159.9, 60.0)
    assert pace.is_due(290.0, 60.0)
    assert not pace.is_due(349.9, 60.0)
    assert pace.left(330.0, 60.0) == 20.0
    assert pace.is_due(350.0, 60.0)
    assert pace.is_due(360.0, 10.0), "a reload with a shorter interval"


def test_nobody_can_tell_from_all_readings_until_now_when_the_next_one_is():
    clock = VirtualClock()
    found = np.array(due(clock, Pace(clock.monotonic(), random.Random(1)), 60_000.0))
    waits = np.diff(found)
    assert (0.5 <= waits.min() < 0.52, 1.48 < waits.max() < 1.51, 0.98 < waits.mean() < 1.02) == (True, True, True)
    # No part of a minute is read seldom, and no wait follows from the one before.
    assert np.histogram(found % 1.0, bins=10)[0].min() > 0.7 * len(found) / 10
    assert abs(np.corrcoef(waits[:-1], waits[1:])[0, 1]) < 0.1


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
            scheduler.add_job(ran.release, AT_ONCE, id="cycle", replace_existing=True)
            assert ran.acquire(timeout=30)
            Wall.offset += dt.timedelta(seconds=jump)
    finally:
        scheduler.shutdown()

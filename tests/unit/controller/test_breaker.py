import random

from rltuned.controller.health.rpc_budget import Breaker
from rltuned.controller.tell.states import BreakerState


def breaker():
    return Breaker(interval=30.0, rng=random.Random(3))


def test_it_opens_after_so_many_failures_in_a_row_and_only_then():
    one = breaker()
    assert [one.failure(0.0), one.failure(0.0)] == [False, False]
    one.success()
    assert [one.failure(0.0), one.failure(0.0), one.failure(0.0)] == [False, False, True]
    assert not one.allow(1.0)


def test_each_failed_trial_doubles_the_wait_up_to_the_longest_with_jitter():
    one, now, waits = breaker(), 0.0, []
    for _ in range(3):
        one.failure(now)
    for _ in range(8):
        waits.append(one.until - now)
        now = one.until
        assert one.allow(now)
        assert one.state is BreakerState.HALF_OPEN
        assert not one.failure(now), "a failed trial is no new alarm"
    for number, wait in enumerate(waits):
        full = min(480.0, 60.0 * 2**number)
        assert full / 2 <= wait <= full
    assert len({round(wait / min(480.0, 60.0 * 2**n), 6) for n, wait in enumerate(waits)}) > 4


def test_a_trial_that_succeeds_closes_it_and_a_probe_brings_the_trial_forward():
    one = breaker()
    for _ in range(3):
        one.failure(0.0)
    one.probe()
    assert one.allow(0.0)
    one.success()
    assert one.state is BreakerState.CLOSED
    assert one.failure(0.0) is False


def test_where_cycles_are_long_it_waits_no_longer_than_a_quarter_of_an_hour():
    one = Breaker(interval=3600.0, rng=random.Random(3))
    for _ in range(3):
        one.failure(0.0)
    assert 450.0 <= one.until <= 900.0

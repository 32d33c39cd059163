"""How wrong predictions have been, and what is expected of run times after that."""

import numpy as np
import pytest
from unit.rank.conftest import expecting

from rltuned.decide.expect.predictions import (
    LEAST_ENDED,
    UNKNOWN_SPREAD,
    EndedJobs,
    prediction_error,
    uncertain_run_times,
)
from rltuned.decide.rank import by_name
from rltuned.decide.rank.actor import plain_rule


def ended_jobs(estimate, time_limit, run_time):
    n = len(estimate)
    return EndedJobs(estimate, np.full(n, time_limit), np.full(n, run_time))


def test_errors_of_ended_jobs_are_a_bias_and_a_spread():
    rng = np.random.default_rng(1)
    expected = np.exp(rng.uniform(6.0, 10.0, 4000))
    found = prediction_error(expected, expected * np.exp(rng.normal(-0.5, 1.4, 4000)))
    assert found.bias == pytest.approx(-0.5, abs=0.1)
    assert found.spread == pytest.approx(1.4, abs=0.1)
    sure = prediction_error(expected, expected)
    assert (sure.bias, sure.spread) == (0.0, 0.0)
    # Seconds are no errors in a plan of hours, but they are where most jobs take seconds.
    run_time = np.repeat([40.0, 7200.0], [20, 30])
    assert prediction_error(np.repeat([1.0, 7200.0], [20, 30]), run_time).spread == 0.0
    found = prediction_error(np.full(50, 10.0), np.repeat([10.0, 40.0], 25))
    assert found.spread == pytest.approx(np.log(40 / 25) / 2)


def test_a_few_ended_jobs_prove_nothing():
    few = prediction_error(np.full(LEAST_ENDED - 1, 1000.0), np.full(LEAST_ENDED - 1, 9000.0))
    assert (few.bias, few.spread) == (0.0, UNKNOWN_SPREAD)
    more = prediction_error(np.full(LEAST_ENDED, 1000.0), np.full(LEAST_ENDED, 9000.0))
    assert 0.0 < more.bias < np.log(9.0)


def test_most_jobs_that_end_within_their_first_second_leave_the_error_finite():
    found = prediction_error(np.repeat([0.0, 600.0], [30, 20]), np.repeat([0.0, 900.0], [30, 20]))
    assert np.isfinite(found).all()
    assert found.spread > 0.0


def test_run_times_are_as_the_policy_expects_them_and_as_they_turned_out():
    limits = np.array([90_000.0, 600.0, np.inf])
    estimates = np.array([5000.0, np.nan, 7000.0])
    times, spread = uncertain_run_times(by_name("sjf"), estimates, limits, None)
    assert (times.tolist(), spread) == ([5000.0, 600.0, 7000.0], UNKNOWN_SPREAD)
    ended = ended_jobs(np.full(1000, 5000.0), 90_000.0, 1000.0)
    sceptic = expecting(plain_rule("sceptic"), np.log(0.1), 1.0, 0.0)
    times, spread = uncertain_run_times(sceptic, estimates, limits, ended)
    # A tenth was expected, but of the one whose estimate is its limit, and they took twice that.
    assert times == pytest.approx([1000.0, 600.0, 1400.0], rel=0.05)
    assert spread == pytest.approx(0.0, abs=1e-9)
    late = ended_jobs(np.full(1000, 10.0), 90_000.0, 90_000.0)
    times, _ = uncertain_run_times(by_name("sjf"), estimates, limits, late)
    assert times[1] == 600.0, "nobody runs longer than the limit"

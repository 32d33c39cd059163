"""Forecasts are calibrated on how earlier ones turned out."""

import numpy as np
import pytest

from rltuned.simulate.forecast.start_forecast import (
    GRAIN,
    HORIZON,
    NOTHING_KNOWN,
    Scores,
    calibrated,
    in_logs,
    known_at,
    sampled,
    score_of,
    score_quantiles,
)


def forecasts(n, seed=0, width=0.5):
    """Quantiles whose outer ones are `width` (in ln) from the median."""
    middle = np.random.default_rng(seed).uniform(np.log(600.0), np.log(50_000.0), n)
    return np.exp(middle[:, None] + np.array([-width, 0.0, width])) - GRAIN


def outcomes(waits, bias=0.0, spread=1.0, seed=1):
    middle = in_logs(waits)[0]
    return np.exp(middle + bias + spread * np.random.default_rng(seed).normal(size=len(waits))) - GRAIN


@pytest.mark.parametrize(("bias", "spread"), [(0.0, 1.0), (0.3, 0.7), (-0.5, 1.5)])
def test_intervals_hold_four_of_five_outcomes_however_wrong_the_forecast_is(bias, spread):
    before, later = forecasts(1500), forecasts(1500, seed=7)
    came = outcomes(before, bias, spread)
    known = Scores(in_logs(before)[0], score_of(before, came), np.zeros(len(before), dtype=bool))
    interval, truth = calibrated(later, known), outcomes(later, bias, spread, seed=9)
    inside = (truth >= interval.low) & (truth <= interval.high)
    assert 0.75 < inside.mean() < 0.85
    assert 0.06 < (truth < interval.low).mean() < 0.14
    np.testing.assert_array_equal(interval.middle, later[:, 1])


def test_jobs_that_still_wait_count_as_late_as_they_are_by_now():
    waits = forecasts(3000)
    came = outcomes(waits, 0.3, 1.0)
    made = np.zeros(len(waits))
    everything = known_at(in_logs(waits)[0], waits, made, came, 1e9)
    made = np.random.default_rng(3).uniform(-80_000.0, 0.0, len(waits))
    some = known_at(in_logs(waits)[0], waits, made, made + came, 0.0)
    assert 0.1 < some.open.mean() < 0.6
    wanted = score_quantiles(everything.score, everything.open)
    assert score_quantiles(some.score, some.open) == pytest.approx(wanted, abs=0.25)
    # Without them, only quick starts are known.
    ended = ~some.open
    assert score_quantiles(some.score[ended], some.open[ended])[1] < wanted[1] - 0.3


def test_a_forecast_that_nothing_is_known_of_is_wider_than_its_scenarios():
    waits = forecasts(5)
    interval = calibrated(waits, NOTHING_KNOWN)
    assert (interval.low < waits[:, 0]).all()
    assert (interval.high > waits[:, 2]).all()
    np.testing.assert_allclose(interval.middle, waits[:, 1], rtol=0.2)


def test_what_does_not_start_within_the_horizon_stays_unknown_and_low_is_kept():
    waits = np.array([[3600.0, np.inf, np.inf], [60.0, 120.0, np.inf]])
    interval = calibrated(waits, NOTHING_KNOWN)
    assert interval.low[0] < 3600.0
    assert calibrated(np.full((1, 3), np.inf), NOTHING_KNOWN).low[0] == HORIZON
    assert np.isinf(interval.middle[0])
    assert np.isinf(interval.high[0])
    assert np.isfinite(interval.middle[1])
    assert np.isinf(interval.high[1])


def test_long_waits_are_calibrated_on_long_waits():
    short, long = np.tile([200.0, 300.0, 450.0], (600, 1)), np.tile([20_000.0, 30_000.0, 45_000.0], (600, 1))
    waits = np.concatenate((short, long))
    came = np.concatenate((np.full(600, 300.0), outcomes(long, 1.0, 0.2)))
    known = Scores(in_logs(waits)[0], score_of(waits, came), np.zeros(1200, dtype=bool))
    interval = calibrated(waits[[0, -1]], known)
    assert interval.high[0] == pytest.approx(450.0, rel=0.1)
    assert interval.high[1] == pytest.approx(30_000.0 * np.exp(1.0 + 0.2 * 1.28), rel=0.1)


def test_a_sample_is_of_all_jobs_and_another_one_at_another_moment():
    ids = np.arange(100)
    assert sampled(ids[:5], 10, 1).tolist() == [0, 1, 2, 3, 4]
    one, two = sampled(ids, 10, 1), sampled(ids, 10, 2)
    assert len(one) == len(two) == 10
    assert one.tolist() != two.tolist()

"""Intervals of differences between policies."""

import numpy as np
import pytest

from rltuned.lab.evaluate.bootstrap import RESAMPLES, Comparison, compare, counts, pooled_quantiles, simultaneous


def test_a_policy_that_is_always_a_tenth_better_is_so_in_every_resample():
    base = np.array([10.0, 200.0, 3000.0, 5.0])
    found = compare(0.9 * base, base, counts(4, seed=1))
    assert found == Comparison(0.9, 0.9, 0.9)
    assert compare(base, 0.9 * base, counts(4, seed=1)).ratio == pytest.approx(1 / 0.9, abs=1e-6)


def test_the_interval_is_that_of_windows_drawn_one_by_one():
    rng = np.random.default_rng(3)
    values = rng.lognormal(5.0, 1.0, (2, 25))
    found = compare(*values, counts(25, seed=9))
    slow = []
    for _ in range(4000):
        rows = rng.integers(25, size=25)
        slow.append(values[0, rows].mean() / values[1, rows].mean())
    low, high = np.percentile(slow, [2.5, 97.5])
    assert found.lo == pytest.approx(low, rel=0.05)
    assert found.hi == pytest.approx(high, rel=0.05)
    assert found.ratio == pytest.approx(values[0].mean() / values[1].mean(), abs=1e-6)
    assert found.lo < found.ratio < found.hi


def test_ends_that_hold_at_once_are_wider_for_many_that_differ_and_not_for_many_that_are_alike():
    rng = np.random.default_rng(5)
    base, drawn = rng.lognormal(5.0, 1.0, 20), counts(20, seed=3)
    noise = rng.lognormal(0.0, 0.3, (12, 20))
    alone = compare(base * noise[0], base, drawn).hi
    one, alike, apart = (
        simultaneous(np.vstack((base * times, base)), drawn)[0] for times in (noise[:1], noise[[0] * 12], noise)
    )
    assert one == pytest.approx(alone, rel=2e-3)
    assert one == pytest.approx(alike)
    assert apart > 1.02 * one
    # In so many resamples all of them are below their ends at once.
    ends = simultaneous(np.vstack((base * noise, base)), drawn)
    ratios = (drawn @ (base * noise).T) / (drawn @ base)[:, None]
    assert (ratios <= ends).all(axis=1).mean() == pytest.approx(0.975, abs=2e-3)


def test_nothing_is_certain_of_windows_in_which_nobody_waits_and_unknown_ones_do_not_count():
    nobody = np.zeros((3, 10))
    assert np.isinf(simultaneous(nobody, counts(10, seed=1))).all()
    values = np.vstack((np.full(10, 0.5), np.ones(10)))
    values[0, 3] = np.nan
    assert simultaneous(values, counts(10, seed=1)).tolist() == [0.5]


def test_pairing_makes_the_interval_narrow_where_windows_differ_more_than_policies():
    rng = np.random.default_rng(4)
    hard = rng.lognormal(5.0, 2.0, 30)
    together = np.stack((hard * rng.uniform(0.75, 0.85, 30), hard))
    apart = np.stack((together[0][rng.permutation(30)], hard))
    drawn = counts(30, seed=2)
    paired, shuffled = compare(*together, drawn), compare(*apart, drawn)
    assert paired.hi - paired.lo < 0.1
    assert paired.hi < 0.9
    assert shuffled.hi - shuffled.lo > 5 * (paired.hi - paired.lo)


def test_one_window_has_a_ratio_and_no_interval():
    assert compare(np.array([5.0]), np.array([10.0]), counts(1, seed=1)) == Comparison(0.5, None, None)


def test_nothing_is_told_against_a_policy_whose_mean_is_zero():
    some, nobody, drawn = np.array([5.0, 6.0]), np.zeros(2), counts(2, seed=1)
    assert compare(some, nobody, drawn) == Comparison(None, None, None)
    assert compare(nobody, some, drawn).ratio == 0.0


def test_an_interval_has_no_upper_end_where_resamples_divide_by_zero():
    # One of two windows has no wait: every fourth resample consists of it alone.
    found = compare(np.array([5.0, 6.0]), np.array([0.0, 4.0]), counts(2, seed=1))
    assert found.ratio == pytest.approx(11 / 4)
    assert found.lo == pytest.approx(1.5)
    assert found.hi is None


def test_windows_without_the_metric_are_left_out_of_both_policies_of_a_pair():
    values = np.array([[1.0, np.nan, 3.0], [2.0, 100.0, 6.0], [np.nan, 1.0, np.nan]])
    one, other, third = values
    assert compare(one, other, counts(3, seed=1)).ratio == 0.5
    assert compare(one, third, counts(3, seed=1)).ratio is None


def test_ten_thousand_resamples_draw_each_window_once_in_the_mean():
    drawn = counts(7, seed=3)
    assert drawn.shape == (RESAMPLES, 7)
    assert RESAMPLES == 10_000
    assert (drawn.sum(axis=1) == 7).all()
    assert drawn.mean(axis=0) == pytest.approx(np.ones(7), abs=0.05)


def test_quantiles_of_a_resample_are_those_of_all_jobs_of_its_blocks_together():
    rng = np.random.default_rng(3)
    values, block = rng.exponential(100.0, 50).round(), np.repeat(np.arange(4), [13, 13, 12, 12])
    drawn, shares = counts(4, 7, 20), (0.5, 0.99, 1.0)
    found = pooled_quantiles(values, block, drawn, shares)
    for times, row in zip(drawn.astype(int), found, strict=True):
        assert row == pytest.approx(np.quantile(np.repeat(values, times[block]), shares))

"""The mean of values as a product of powers."""

import numpy as np
import pytest

from rltuned.decide.expect.mixture import mean_regression


def test_the_regression_is_of_the_mean_and_not_of_the_mean_logarithm():
    rng = np.random.default_rng(2)
    x = rng.uniform(0.0, 10.0, size=20_000)
    values = np.exp(1.0 + 0.5 * x + rng.normal(size=len(x)))  # the mean is e^(1/2) times the median
    columns = np.column_stack((np.ones(len(x)), x))
    assert mean_regression(columns, values) == pytest.approx([1.5, 0.5], abs=0.05)
    # A column that says the same twice, and a few values far off.
    values[:5] = 1e9
    twice = np.column_stack((columns, 2.0 * x))
    at_three = float(np.exp(np.array([1.0, 3.0, 6.0]) @ mean_regression(twice, values)))
    assert at_three == pytest.approx(float(np.exp(np.array([1.0, 3.0]) @ mean_regression(columns, values))), rel=1e-3)


def test_a_weight_counts_as_so_many_of_the_same():
    rng = np.random.default_rng(3)
    columns = np.column_stack((np.ones(60), rng.normal(size=60)))
    values, times = rng.exponential(size=60) + 0.1, rng.integers(1, 5, size=60)
    found = mean_regression(columns, values, times.astype(np.float64))
    np.testing.assert_allclose(found, mean_regression(np.repeat(columns, times, axis=0), np.repeat(values, times)))

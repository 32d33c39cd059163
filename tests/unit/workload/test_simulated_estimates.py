"""Time limits and estimates: what each of the four ways gives, and that a job's numbers are its own."""

import numpy as np
import pytest

from rltuned.core.errors import ConfigError
from rltuned.simulate.workload.jobs import Source, Workload, workload
from rltuned.simulate.workload.simulated_estimates import (
    LONGEST,
    WRITTEN_LIMITS,
    estimate,
    parse_estimates,
    uniform,
    written_limit,
)

N = 20_000


def jobs_of(run_time: object, **columns: object) -> Workload:
    count = len(np.atleast_1d(np.asarray(run_time)))
    return workload(Source("test"), np.arange(count), run_time, 1, **columns)


@pytest.fixture(scope="module")
def varied() -> Workload:
    rng = np.random.default_rng(3)
    return jobs_of(np.exp(rng.normal(7.0, 2.0, N)), job_id=rng.permutation(10 * N)[:N] + 5)


def test_true_gives_the_run_time_for_both_and_at_least_a_second() -> None:
    made = estimate(jobs_of([0.0, 0.5, 77.0]), "true", 1)
    assert made.time_limit.tolist() == made.run_time.tolist() == [1.0, 1.0, 77.0]


def test_a_noisy_limit_is_one_that_people_write_and_never_below_the_run_time(varied: Workload) -> None:
    made = estimate(varied, "noisy:1.5", 7)
    assert np.isin(made.time_limit, WRITTEN_LIMITS).all()
    assert (made.time_limit >= varied.run_time).all()
    assert ((made.run_time >= 1.0) & (made.run_time <= made.time_limit)).all()
    assert np.array_equal(made.time_limit, estimate(varied, "noisy:0", 7).time_limit), "it does not depend on the error"


def test_noise_has_the_spread_that_was_asked_for() -> None:
    # Run times for which the next written limit is far away, so that it cuts off little.
    jobs = jobs_of(np.full(N, 1800.0))
    over = np.log(estimate(jobs, "noisy:0", 1).time_limit / 1800.0)
    # e^|N(0, 1.2)| of 30 min stays at or below 1 h with probability P(|N| < ln 2 / 1.2) = 0.4365.
    assert np.mean(over <= np.log(2.0)) == pytest.approx(0.4365, abs=0.015)
    error = np.log(estimate(jobs, "noisy:0.1", 1).run_time / 1800.0)
    assert np.std(error) == pytest.approx(0.1, rel=0.03)
    assert np.mean(error) == pytest.approx(0.0, abs=0.003)
    assert estimate(jobs, "noisy:0", 1).run_time.tolist() == [1800.0] * N


def test_limit_and_error_of_a_job_are_independent() -> None:
    jobs = jobs_of(np.full(N, 1800.0))
    made = estimate(jobs, "noisy:0.2", 1)
    assert abs(np.corrcoef(np.log(made.time_limit), np.log(made.run_time))[0, 1]) < 0.03


def test_a_job_has_the_same_numbers_in_every_window_and_order(varied: Workload) -> None:
    whole = estimate(varied, "noisy:1.5", 7)
    for rows in (np.arange(1234, 1300), np.arange(N)[::-1], np.array([17])):
        part = estimate(varied.take(rows), "noisy:1.5", 7)
        assert np.array_equal(part.time_limit, whole.time_limit[rows])
        assert np.array_equal(part.run_time, whole.run_time[rows])


def test_another_seed_draws_other_numbers_and_the_same_seed_the_same(varied: Workload) -> None:
    first, again, other = (estimate(varied, "noisy:1.5", seed) for seed in (7, 7, 8))
    assert np.array_equal(first.run_time, again.run_time)
    assert np.mean(first.run_time == other.run_time) < 0.2
    assert (
        abs(np.corrcoef(np.log(first.run_time / varied.run_time), np.log(other.run_time / varied.run_time))[0, 1]) < 0.2
    )


def test_hashed_numbers_are_uniform_over_neighbouring_keys() -> None:
    drawn = uniform(np.arange(N), 1, 1)
    counts = np.bincount((drawn * 20).astype(int), minlength=20)
    chi_squared = ((counts - N / 20) ** 2 / (N / 20)).sum()
    assert chi_squared < 43.8  # 0.1 % point with 19 degrees of freedom
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.03
    assert 0.0 < drawn.min() < drawn.max() < 1.0


def test_a_job_above_the_longest_written_limit_gets_its_run_time_in_whole_days() -> None:
    made = estimate(jobs_of([61.5 * 86400.0, 60 * 86400.0, 59.9 * 86400.0]), "noisy:1", 3)
    assert made.time_limit.tolist() == [62 * 86400.0, 60 * 86400.0, 60 * 86400.0]


def test_a_limit_that_is_written_already_stays() -> None:
    assert written_limit(WRITTEN_LIMITS).tolist() == WRITTEN_LIMITS.tolist()
    assert written_limit(np.array([0.0, 600.1])).tolist() == [600.0, 1800.0]


def test_a_compressed_workload_has_compressed_limits(varied: Workload) -> None:
    fast = jobs_of(varied.run_time / 60.0, job_id=varied.job_id)
    slow = estimate(varied, "noisy:1", 7)
    made = estimate(fast, "noisy:1", 7, time_scale=60.0)
    long = varied.run_time >= 60.0  # shorter ones become one second
    assert made.time_limit[long] == pytest.approx(slow.time_limit[long] / 60.0)
    assert (made.time_limit >= np.maximum(fast.run_time, 1.0)).all()


def test_limit_takes_what_the_users_asked_for_even_where_it_is_too_short() -> None:
    made = estimate(jobs_of([500.0, 500.0, 500.0], time_limit=[600.0, 400.0, 0.0]), "limit", 1)
    assert made.time_limit.tolist() == made.run_time.tolist() == [600.0, 400.0, 1.0]


def test_the_few_without_a_limit_are_unlimited_and_rank_behind() -> None:
    made = estimate(jobs_of([5.0, 5.0, 5.0, 5.0], time_limit=[600.0, np.nan, np.inf, 60.0]), "limit", 1)
    assert made.time_limit.tolist() == [600.0, np.inf, np.inf, 60.0]
    assert made.run_time.tolist() == [600.0, LONGEST, LONGEST, 60.0]


def test_limit_is_refused_with_the_count_when_most_have_none() -> None:
    with pytest.raises(ConfigError, match=r"2 of 3 jobs of test have no time limit .* use history"):
        estimate(jobs_of([5.0, 5.0, 5.0], time_limit=[np.nan, np.nan, 60.0]), "limit", 1)


def test_history_starts_from_the_users_limit_and_draws_where_there_is_none(varied: Workload) -> None:
    made = estimate(varied, "history", 7)
    assert np.array_equal(made.time_limit, estimate(varied, "noisy:1", 7).time_limit)
    assert np.array_equal(made.run_time, made.time_limit)
    assert estimate(jobs_of([5.0], time_limit=[1234.0]), "history", 7).time_limit.tolist() == [1234.0]


@pytest.mark.parametrize("how", ["", "exact", "noisy", "noisy:", "noisy:x", "noisy:-1", "noisy:nan", "true:1"])
def test_anything_else_is_refused_with_the_choices(how: str) -> None:
    with pytest.raises(ConfigError, match=r"noisy:SIGMA.*limit, history or history:names"):
        parse_estimates(how)
    with pytest.raises(ConfigError, match="time scale"):
        estimate(jobs_of([5.0]), "noisy:1", 1, time_scale=0.0)


def test_no_jobs_are_no_error() -> None:
    for how in ("true", "noisy:1", "limit", "history"):
        assert len(estimate(jobs_of([]), how, 1).run_time) == 0

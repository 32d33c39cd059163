"""Metrics, worked out by hand."""

import numpy as np
import pytest

from rltuned.core.objective import Objective
from rltuned.core.tables import Category
from rltuned.lab.evaluate.window_metrics import (
    busy,
    fairness,
    idle_while_waiting,
    measure,
)
from rltuned.simulate.values import bounded_slowdown

EVERYBODY = Category.of(["ann", "ann", "bob", ""])


def four_jobs(**changes):
    # On 4 GPUs: waits 0, 10, 90 and 5 s; the last one never ran.
    values = {
        "submit": np.array([100.0, 110.0, 110.0, 120.0]),
        "start": np.array([100.0, 120.0, 200.0, np.nan]),
        "end": np.array([200.0, 125.0, 300.0, np.nan]),
        "gpus": np.array([2.0, 1.0, 4.0, 1.0]),
        "measured": np.ones(4, dtype=np.bool_),
        "groups": EVERYBODY,
        "capacity": 4.0,
    }
    return measure(**{**values, **changes})


def test_waits_and_completion_times_are_of_the_jobs_that_ran():
    metrics = four_jobs()
    assert metrics.wait_mean == pytest.approx((0 + 10 + 90) / 3)
    assert metrics.wait_p50 == 10.0
    assert metrics.wait_p99 == pytest.approx(10 + 0.98 * 80)  # between the second and the third of three
    assert metrics.wait_max == 90.0
    assert metrics.jct_mean == pytest.approx((100 + 15 + 190) / 3)
    assert metrics.makespan == 200.0  # 100 … 300


def test_the_bounded_slowdown_counts_ten_seconds_at_least_and_is_never_below_one():
    # 0 + 100 over 100; 10 + 5 over 10; 90 + 100 over 100; nothing over 10 is 0, bounded by 1
    found = bounded_slowdown(np.array([0.0, 10.0, 90.0, 0.0]), np.array([100.0, 5.0, 100.0, 0.0]))
    assert found.tolist() == pytest.approx([1.0, 1.5, 1.9, 1.0])
    assert four_jobs().bsld_mean == pytest.approx((1.0 + 1.5 + 1.9) / 3)


def test_utilisation_is_the_share_of_the_gpu_seconds_of_the_makespan():
    # 2·100 + 1·5 + 4·100 = 605 of 4 GPUs · 200 s
    assert four_jobs().utilization == pytest.approx(100 * 605 / 800)


def test_jobs_before_the_window_count_as_load_but_are_not_measured():
    measured = np.array([False, True, True, True])
    metrics = four_jobs(measured=measured)
    assert metrics.wait_mean == pytest.approx((10 + 90) / 2)
    assert metrics.makespan == 190.0  # 110 … 300
    assert metrics.utilization == pytest.approx(100 * (2 * 90 + 5 + 400) / (4 * 190))


def test_gpu_time_is_cut_at_both_ends_and_a_job_that_still_runs_is_busy_to_the_end():
    start, end = np.array([0.0, 50.0, np.nan]), np.array([20.0, np.nan, np.nan])
    assert busy(start, end, np.array([1.0, 2.0, 5.0]), 10.0, 60.0) == 10.0 + 20.0


def test_jain_is_one_for_equal_shares_and_one_over_n_when_one_has_all():
    four = Category.of(["a", "b", "c", "d"])
    assert fairness(np.full(4, 3.0), four) == pytest.approx(1.0)
    assert fairness(np.array([0.0, 0.0, 5.0, 0.0]), four) == pytest.approx(0.25)


def test_fairness_compares_the_mean_slowdowns_of_users_and_leaves_out_jobs_of_nobody():
    # ann (2 + 4) / 2 = 3, bob 6; the last belongs to nobody
    assert fairness(np.array([2.0, 4.0, 6.0, 1000.0]), EVERYBODY) == pytest.approx(81 / (2 * 45))


def test_there_is_no_fairness_of_a_single_user_or_of_none():
    assert np.isnan(fairness(np.array([2.0, 4.0]), Category.of(["ann", "ann"])))
    assert np.isnan(fairness(np.array([2.0, 4.0]), Category.of(["", ""])))


def test_a_window_whose_jobs_never_ran_has_no_metrics():
    nothing = np.full(4, np.nan)
    assert all(np.isnan(value) for value in four_jobs(start=nothing, end=nothing))


def test_idle_gpu_time_counts_while_a_job_waits_and_only_then():
    rng = np.random.default_rng(3)
    submit = np.sort(rng.integers(0, 60, 20)).astype(float)
    start = submit + rng.integers(0, 2, 20) * rng.integers(1, 40, 20)
    end, gpus = start + rng.integers(1, 30, 20), rng.integers(0, 4, 20).astype(float)
    start[7], end[7], end[11] = np.nan, np.nan, np.nan  # one never ran, one still runs
    expected = 0.0
    for second in range(10, 70):  # all moments are whole seconds
        if ((submit <= second) & (start > second)).any():
            expected += 100.0 - gpus[(start <= second) & ~(end <= second)].sum()
    assert idle_while_waiting(submit, start, end, gpus, (10.0, 70.0), 100.0) == pytest.approx(expected)


def test_the_objective_is_the_weighted_sum_of_ratios_over_slurms_own_order():
    slurm = {"wait_mean": 1000.0, "bsld_mean": 10.0, "wait_p99": 5000.0, "idle": 40.0}
    own = {"wait_mean": 500.0, "bsld_mean": 2.0, "wait_p99": 6000.0, "idle": 400.0}
    assert Objective.parse("wait=3,idle=1").of(own, slurm) == pytest.approx(0.75 * 0.5 + 0.25 * 3.0)
    assert Objective(0.25, 0.25, 0.25, 0.25).of(own, slurm) == pytest.approx(0.25 * (0.5 + 0.2 + 1.2 + 3.0))
    assert Objective().of(slurm, slurm) == pytest.approx(1.0)
    assert np.isnan(Objective().of({**own, "wait_p99": None}, slurm))
    # Where Slurm's own order hardly waits there is nothing to win.
    assert Objective.parse("wait=1").of({**own, "wait_mean": 6.0}, {**slurm, "wait_mean": 0.0}) == pytest.approx(0.1)
    assert Objective.parse(str(Objective(0.4, 0.3, 0.2, 0.1))) == pytest.approx((0.4, 0.3, 0.2, 0.1))


@pytest.mark.parametrize("text", ["", "wait", "wait=x", "wait=-1", "wait=0", "speed=1", "wait=inf"])
def test_weights_of_an_objective_that_make_no_sense_are_refused(text):
    with pytest.raises(ValueError, match="weight"):
        Objective.parse(text)

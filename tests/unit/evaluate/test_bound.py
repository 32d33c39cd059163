"""The lower bound, against brute force and against what schedules reach."""

from functools import cache

import numpy as np
import pytest
from unit.evaluate.small import report

from rltuned.evaluate.bound import lower_bound, srpt


def best_of_all_schedules(submit: tuple[int, ...], work: tuple[int, ...]) -> float:
    """Least mean completion time on one machine of speed 1, by trying every job at every second."""

    @cache
    def rest(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        here = sum(1 for s, w in zip(submit, left, strict=True) if w and s <= now)
        able = [k for k, w in enumerate(left) if w and submit[k] <= now]
        options = [rest(now + 1, tuple(w - (j == k) for j, w in enumerate(left))) for k in able]
        return here + (min(options) if options else rest(now + 1, left))

    return rest(0, work) / len(submit)


def test_srpt_is_as_good_as_the_best_of_all_preemptive_schedules():
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(1, 5))
        submit = tuple(sorted(rng.integers(0, 6, n).tolist()))
        work = tuple(rng.integers(1, 5, n).tolist())
        found = srpt(np.array(submit, dtype=float), np.array(work, dtype=float), 1.0)
        assert found == pytest.approx(best_of_all_schedules(submit, work))


def test_a_short_job_preempts_a_long_one_with_more_left():
    # 10 s of work at 0, 2 at 1: the first ends at 12, the second at 3
    assert srpt(np.array([0.0, 1.0]), np.array([10.0, 2.0]), 1.0) == (12 + 2) / 2
    # … but not one with less left: at 9, one second is left of the first
    assert srpt(np.array([0.0, 9.0]), np.array([10.0, 2.0]), 1.0) == (10 + 3) / 2


def test_the_machine_is_as_fast_as_the_cluster_has_gpus():
    # 4 GPUs · 100 s on 8 GPUs
    bound = lower_bound(np.array([50.0]), np.array([100.0]), np.array([4.0]), 8.0)
    assert bound.jct_mean == 50.0
    assert bound.run_time_mean == bound.larger == 100.0


def test_many_large_jobs_are_bound_by_their_area_and_not_by_their_run_times():
    bound = lower_bound(np.zeros(10), np.full(10, 100.0), np.full(10, 8.0), 8.0)
    assert bound.jct_mean == pytest.approx(np.mean(np.arange(1, 11) * 100.0))
    assert bound.larger == bound.jct_mean > bound.run_time_mean


def test_jobs_without_gpus_count_with_their_run_time_only_and_no_jobs_have_no_bound():
    bound = lower_bound(np.array([0.0, 5.0]), np.array([10.0, 30.0]), np.zeros(2), 8.0)
    assert (bound.jct_mean, bound.larger) == (0.0, 20.0)
    assert lower_bound(np.array([0.0]), np.array([10.0]), np.zeros(1), 0.0).jct_mean == 0.0
    assert np.isnan(lower_bound(np.zeros(0), np.zeros(0), np.zeros(0), 8.0).jct_mean)


@pytest.mark.parametrize("estimates", ["true", "noisy:1.5"])
def test_no_policy_is_below_the_bound_in_any_window(estimates):
    found = report(policies=("fifo-strict", "fifo", "sjf", "saf", "wfp3", "rl"), estimates=estimates)
    for window in found["windows"]:
        for values in window["policies"].values():
            assert values["jct_mean"] >= window["lower_bound"]["larger"] >= window["lower_bound"]["jct_mean"]
    assert all(ratio >= 1.0 for ratio in found["lower_bound"]["ratio"].values())

"""What the daemon would have predicted of the jobs of a workload, at each moment."""

import math
from pathlib import Path

import numpy as np
import pytest

from rltuned.core.tables import Floats
from rltuned.decide.expect.run_time_history import JobKind, RunTimeHistory
from rltuned.simulate.run_times import HistoryPredictor, at_submission, ended_before, past
from rltuned.simulate.workload.jobs import Estimates, Source, workload
from rltuned.simulate.workload.simulated_estimates import estimate
from studies.traces import read

TRACE = Path(__file__).resolve().parents[3] / "../shared/traces/sdsc-blue.swf.gz"


def test_a_simulations_predictor_learns_from_the_jobs_that_end() -> None:
    jobs = workload(Source("t"), range(4), [50.0] * 4, 1, user=["ann", "ann", "bob", "ann"])
    predictor = HistoryPredictor(jobs, np.full(4, 600.0))
    assert np.isnan(predictor.predict(np.array([0, 2])).expected).all()
    predictor.ended(np.array([0]), np.array([50.0]), np.array([60.0]))
    assert predictor.predict(np.array([1, 2])).median[0] == pytest.approx(50.0, rel=1e-3)
    same = predictor.predict(np.array([3, 1, 3])).expected
    assert (same == same[0]).all()


def test_predictors_that_share_a_past_do_not_disturb_each_other() -> None:
    jobs = workload(Source("t"), range(3), [50.0] * 3, 1, user="ann")
    before = RunTimeHistory()
    before.ended(JobKind("ann", gpus=1, time_limit=600.0), 40.0, 1e6)
    first, second = (HistoryPredictor(jobs, np.full(3, 600.0), before) for _ in range(2))
    first.ended(np.array([0, 1]), np.array([500.0, 500.0]), np.array([2e6, 2e6]))
    assert first.predict(np.array([2])).median[0] == pytest.approx(500.0, rel=1e-3)
    assert second.predict(np.array([2])).median[0] == pytest.approx(40.0, rel=1e-3)


def test_the_past_of_a_window_is_what_had_ended_by_then_and_no_more() -> None:
    jobs = workload(Source("t"), [0, 10, 20, 30], [5.0, 100.0, 5.0, 7.0], 1, wait_time=[0, 0, 30, 0], user="ann")
    limits = Estimates(np.full(4, 50.0), np.full(4, 50.0))
    # Ends: 5, 60 (killed at its limit of 50), 55, 37. The last one comes first.
    assert [past(jobs, limits, until).to_json()["last"][0][6] for until in (30.0, 56.0, 60.0)] == [
        [5.0],
        [5.0, 7.0, 5.0],
        [50.0, 5.0, 7.0, 5.0],
    ]
    assert [job[2:5] for job in past(jobs, limits, 60.0).to_json()["log"]] == [
        [5.0, 5.0, 50.0],
        [7.0, 37.0, 50.0],
        [5.0, 55.0, 50.0],
        [50.0, 60.0, 50.0],
    ]


def test_what_was_expected_at_submission_is_what_a_predictor_tells_that_is_asked_job_by_job() -> None:
    rng = np.random.default_rng(6)
    jobs = workload(
        Source("t"),
        np.cumsum(rng.exponential(60.0, 600)).round(),
        rng.lognormal(6.0, 1.5, 600).round(),
        1,
        user=[f"u{user}" for user in rng.integers(8, size=600)],
        wait_time=np.where(rng.random(600) < 0.5, np.nan, 300.0),
    )
    limits = np.full(600, 7200.0)
    rows, ran, ends = ended_before(jobs, Estimates(limits, limits), math.inf)
    predictor, told_until, expected = HistoryPredictor(jobs, limits), 0, np.empty((4, 600))
    for row in range(600):
        until = int(np.searchsorted(ends, jobs.submit_time[row], side="right"))
        fresh = slice(told_until, until)
        predictor.ended(rows[fresh], ran[fresh], ends[fresh])
        told_until = until
        expected[:, row] = np.ravel(predictor.predict(np.array([row])))
    found = np.array(at_submission(jobs, Estimates(limits, limits)))
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.skipif(not TRACE.exists(), reason="no traces beside the project")
def test_on_a_real_trace_it_beats_the_users_own_limits() -> None:
    """Accuracy min(r, t) / max(r, t) over the first 8,000 jobs of SDSC-BLUE (the whole: docs/estimates.md)."""
    jobs = read(TRACE)
    jobs = jobs.take(slice(0, 8_000)).take(~np.isnan(jobs.time_limit[:8_000]))
    limits = estimate(jobs, "limit", 1).time_limit
    run_time = np.clip(jobs.run_time, 1.0, limits)
    predicted = at_submission(jobs, Estimates(limits, limits)).median

    def accuracy(guess: Floats) -> float:
        return float(np.mean(np.minimum(guess, run_time) / np.maximum(guess, run_time)))

    known = ~np.isnan(predicted)
    assert known.mean() > 0.99
    predicted = np.where(known, predicted, limits)
    assert (predicted <= limits).all()
    assert accuracy(predicted) > accuracy(limits) + 0.1

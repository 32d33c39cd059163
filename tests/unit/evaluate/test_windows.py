"""Which jobs are evaluated."""

import numpy as np
import pytest
from unit.evaluate.small import busy_jobs, jobs_of, prepared

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.evaluation_settings import Start
from rltuned.lab.evaluate.windows import Split, bounds, draw


def test_a_seed_draws_the_same_windows_and_fewer_are_the_first_of_more():
    assert draw(1000, 50, 30, seed=7)[:8] == draw(1000, 50, 8, seed=7) != draw(1000, 50, 8, seed=8)


def test_windows_begin_at_different_jobs_and_end_inside_of_the_trace():
    windows = draw(60, 50, 11, seed=1)
    assert sorted(window.start for window in windows) == list(range(11))
    assert [window.index for window in windows] == list(range(11))


def test_the_parts_of_a_trace_follow_each_other_and_share_no_job():
    edges = [bounds(1001, split) for split in (Split.TRAIN, Split.VALIDATION, Split.TEST)]
    assert edges[0][0] == 0
    assert edges[0][1] == edges[1][0]
    assert edges[1][1] == edges[2][0]
    assert edges[2][1] == 1001
    assert bounds(1001, Split.ALL) == (0, 1001)
    for split in Split:
        first, last = bounds(1001, split)
        windows = draw(1001, 40, 60, seed=2, split=split)
        assert all(first <= window.start and window.start + 40 <= last for window in windows)


@pytest.mark.parametrize(
    ("length", "count", "split", "message"),
    [
        (101, 1, Split.ALL, "window of 101 jobs is longer.*trace has 100 jobs"),
        (16, 1, Split.TEST, "longer.*'test' has 15 jobs.*smaller --window"),
        (99, 3, Split.ALL, "3 windows of 99 jobs.*2 beginnings.*smaller --windows"),
    ],
)
def test_windows_that_do_not_fit_are_refused_with_the_remedy(length, count, split, message):
    with pytest.raises(EvaluationError, match=message):
        draw(100, length, count, seed=0, split=split)


def test_a_window_begins_at_time_0_and_has_the_jobs_of_its_rows():
    jobs = busy_jobs()
    for case in prepared(jobs).cases:
        rows = slice(case.window.start, case.window.start + 20)
        assert case.jobs.job_id.tolist() == jobs.job_id[rows].tolist()
        assert case.jobs.submit_time[0] == 0.0
        assert (case.jobs.submit_time == jobs.submit_time[rows] - jobs.submit_time[rows][0]).all()


def test_a_warm_start_has_the_jobs_before_the_window_at_negative_times_as_far_as_there_are_any():
    jobs = jobs_of(range(0, 100, 10), [5] * 10, [1] * 10)
    by_start = {
        case.window.start: case for case in prepared(jobs, window=4, windows=7, start=Start.WARM, warm_jobs=3).cases
    }
    assert by_start[5].jobs.submit_time.tolist() == [-30, -20, -10, 0, 10, 20, 30]
    assert by_start[5].measured.tolist() == [False] * 3 + [True] * 4
    assert by_start[1].past == 1
    assert by_start[0].past == 0


def test_a_real_start_has_who_had_not_ended_as_they_really_started_and_all_others_with_the_window():
    wait = [5.0, 2.0, 100.0, np.nan, 3.0, 0.0]  # the first one still runs, and the third one still waits
    jobs = jobs_of(range(0, 60, 10), [200, 5, 5, 5, 5, 5], [1] * 6, wait_time=wait)
    asked = {"window": 1, "windows": 6, "start": Start.REAL, "warm_jobs": 3}
    (case,) = (case for case in prepared(jobs, **asked).cases if case.window.start == 5)
    assert case.jobs.job_id.tolist() == jobs.job_id[[0, 3, 4, 2, 5]].tolist()
    assert case.jobs.submit_time.tolist() == [-45, -20, -7, 0, 0]
    assert (case.past, case.since, case.measured.tolist()) == (4, -30.0, [False] * 4 + [True])
    assert case.really is not None
    assert case.really.tolist() == [-50, -20, -10, -30]


def test_a_job_has_the_same_estimate_in_every_window_and_for_every_length():
    short, long = (prepared(window=w, windows=5, estimates="noisy:1.5") for w in (10, 30))
    limit: dict[int, tuple[float, float]] = {}
    for case in (*short.cases, *long.cases):
        for job, *known in zip(case.jobs.job_id, case.estimates.time_limit, case.estimates.run_time, strict=True):
            assert limit.setdefault(int(job), tuple(known)) == tuple(known)
    assert len(limit) > 40

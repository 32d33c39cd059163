"""Speeds by GPU type."""

import csv
from pathlib import Path

import numpy as np
import pytest

from rltuned.cluster.shape import parse_shape
from rltuned.errors import WorkloadError
from rltuned.workload.jobs import Source, workload
from rltuned.workload.speeds import FILE, Speeds, draw
from studies import speeds as study

MIXED = parse_shape("4x2:k80,2x8:p100,1x8:v100")


def jobs_of(n=400, **columns):
    rng = np.random.default_rng(5)
    usual = {"user": [f"u{k}" for k in rng.integers(20, size=n)], "gpus": rng.choice([0, 1, 2, 4, 8, 16], n)}
    columns = {**usual, **columns}
    return workload(Source("by hand"), np.arange(n), np.full(n, 100.0), columns.pop("gpus"), **columns)


def packed(jobs, shape=MIXED, seed=1):
    return draw(jobs, shape, seed).rate[:, 0]


def test_the_run_time_of_the_trace_is_the_one_on_the_type_with_most_gpus_or_the_one_that_is_asked_for():
    assert (packed(jobs_of())[:, 1] == 1.0).all()  # 16 P100s, 8 of each other type
    assert (packed(jobs_of(gpu_type=["v100"] * 400))[:, 2] == 1.0).all()


def test_jobs_run_faster_on_newer_types_mostly_and_slower_when_spread_never_faster():
    jobs = jobs_of()
    speeds = draw(jobs, MIXED, 1)
    wide = jobs.gpus > 1
    assert (speeds.rate[:, 1] <= speeds.rate[:, 0]).all()
    assert (speeds.rate[wide, 1] < speeds.rate[wide, 0]).any(axis=1).mean() > 0.8
    assert 2.0 < np.median(1 / speeds.rate[jobs.gpus == 1, 0, 0]) < 5.0  # P100 over K80: 3.2 in the median, measured
    assert (speeds.rate[jobs.gpus == 0] == 1.0).all()


def test_a_user_has_one_kind_for_each_number_of_gpus_most_of_the_time():
    jobs = jobs_of(user=["a"] * 400, gpus=[1] * 400)
    _, count = np.unique(packed(jobs)[:, 0], return_counts=True)
    assert 0.75 < count.max() / 400 < 0.95
    nobody = jobs_of(user=[""] * 400, gpus=[1] * 400)
    assert len(np.unique(packed(nobody), axis=0)) > 20


def test_a_job_has_the_same_speeds_in_any_part_of_the_trace_and_others_with_another_seed():
    jobs = jobs_of()
    np.testing.assert_array_equal(packed(jobs.take(slice(100, 200))), packed(jobs)[100:200])
    assert (packed(jobs, seed=2) != packed(jobs)).any()


def test_the_columns_follow_the_types_that_are_asked_for():
    speeds = draw(jobs_of(), MIXED, 1)
    np.testing.assert_array_equal(speeds.of(("v100", "k80")), speeds.rate[:, :, [2, 0]])
    np.testing.assert_array_equal(speeds.take(slice(3, 7)).rate, speeds.rate[3:7])


def test_the_extremes_of_a_job_that_asks_for_a_type_are_those_of_that_type():
    rate = np.array([[[1.0, 4.0], [0.5, 3.0]]] * 2)
    slowest, fastest = Speeds(("k80", "v100"), rate).extremes(jobs_of(2, gpu_type=["", "v100"], user="", gpus=[1, 1]))
    assert (slowest.tolist(), fastest.tolist()) == ([0.5, 3.0], [4.0, 4.0])


def test_types_that_nobody_measured_are_refused_by_name():
    with pytest.raises(WorkloadError, match="'h100'"):
        draw(jobs_of(), parse_shape("1x8:h100,1x8:p100"), 1)


def test_types_that_are_like_measured_ones_have_their_speeds_or_lie_between_them():
    jobs = jobs_of()
    speeds = draw(jobs, parse_shape("9x8:k80,1x8:t4,1x8:p100,1x8:misc"), 1)
    k80, t4, p100, misc = speeds.rate[:, 0].T
    np.testing.assert_allclose(t4, np.sqrt(k80 * p100))
    np.testing.assert_array_equal(k80, misc)


def test_the_file_is_made_of_ratios_and_kinds_that_were_not_measured_everywhere_are_left_out(tmp_path):
    names = [f"steps_per_s_{name}{tail}" for tail in ("", "_unconsolidated") for name in study.TYPES]
    path = tmp_path / "table.csv"
    path.write_text(
        f"job_type,gpus,{','.join(names)}\nA,1,2,8,10,2,8,12\nB,2,2,6,8,1,,2\nC,2,,6,8,,3,2\n", encoding="utf-8"
    )
    with path.open(encoding="utf-8", newline="") as file:
        text = study.made(csv.DictReader(file))
    assert "gpus = 1\nspeed = [\n    [1.00, 4.00, 5.00],\n]\nspread = [\n    [1.00, 1.00, 1.00],\n]" in text
    # Spreading B was not measured on P100: the mean of 0.5 and 0.25. C was not measured on K80.
    assert text.endswith("spread = [\n    [0.50, 0.38, 0.25],\n]\n")
    shipped = Path(study.__file__).parents[1] / "rltuned" / "workload" / FILE
    assert shipped.read_text(encoding="utf-8").startswith(study.HEAD)

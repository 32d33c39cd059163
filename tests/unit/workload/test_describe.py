"""The statistics of a workload: worked out by hand, and those published beside real traces."""

import json
import math
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from rltuned.cli.main import cli
from rltuned.core.errors import WorkloadError
from rltuned.simulate.workload.describe import describe
from rltuned.simulate.workload.jobs import Source, workload
from studies.traces import read

TRACES = Path(__file__).parents[3] / ".." / "shared" / "traces"

FOUR = workload(
    Source("four", form="csv", left_out=3, start=50),
    submit_time=[0, 10, 20, 40],
    run_time=[100, 20, 0, 40],
    gpus=[1, 8, 0, 1],
    time_limit=[100, 80, math.inf, math.nan],
    wait_time=[5, math.nan, 15, math.nan],
    user=["a", "b", "a", ""],
    partition=["p", "", "", ""],
)


def test_statistics_of_four_jobs():
    found = describe(FOUR)
    assert list(found["gpu_counts"].items()) == [(1, 2), (0, 1), (8, 1)]
    expected = {
        "jobs": 4,
        "cpu_jobs": 1,
        "left_out": 3,
        "start": 50,
        "span": 40,
        "users": 2,
        "partitions": 1,
        "wait_mean": 10,
        "run_mean": 40,
        "run_median": 30,
        "run_max": 100,
        "gpus_mean": 2.5,
        "gpus_max": 8,
        "gpus_total": 10,
        "one_gpu": 0.5,
        "arrival_rate": 0.1,
        "demand": 7.5,  # (100·1 + 20·8 + 40·1) / 40
        # 100/100 and 20/80; the unlimited job has nothing to use up.
        "limit_known": 0.75,
        "limit_used": (1 + 0.25) / 2,
        "limit_reached": 0.5,
    }
    assert {name: found[name] for name in expected} == expected


def test_one_job_has_no_rate_and_no_demand():
    found = describe(FOUR.take(slice(0, 1)))
    assert (found["arrival_rate"], found["demand"]) == (None, None)
    json.dumps(found, allow_nan=False)
    with pytest.raises(WorkloadError, match="no jobs to describe"):
        describe(FOUR.take(slice(0, 0)))


def test_the_command_prints_a_table_or_json(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("submit_time,run_time,num_gpus,user\n100,10,1,a\n160,30,2,b\n190,-1,1,b\n")
    table = CliRunner().invoke(cli, ["traces", "describe", str(file)])
    assert table.exit_code == 0
    assert "of unknown run time" in table.output
    as_json = CliRunner().invoke(cli, ["traces", "describe", str(file), "--json"])
    value = json.loads(as_json.stdout)
    assert (value["jobs"], value["demand"], value["users"]) == (3, 70 / 90, 2)


def test_the_command_names_a_wrong_line_or_counts_it(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("submit_time,run_time,num_gpus\n100,10,1\n160,x,2\n")
    failed = CliRunner().invoke(cli, ["traces", "describe", str(file)])
    assert isinstance(failed.exception, WorkloadError)
    assert failed.exception.exit_code == 11
    assert str(failed.exception) == f"{file}:3: run_time: 'x' is not a number"
    counted = CliRunner().invoke(cli, ["traces", "describe", str(file), "--skip-bad", "--json"])
    assert json.loads(counted.stdout)["skipped"] == 1


PUBLISHED = {
    # file, from, until: jobs, span (d), mean wait, mean run, median run, max run (d), mean GPUs, max, 1 GPU, rate,
    # demand
    ("alibaba-openb-2023.csv.gz", None, None): (7255, 149.3, 61.3, 28_950, 616, 145.1, 0.906, 8, 84.5, 0.000562, 17),
    ("philly.csv.gz", 4_062_780, 6_654_780): (57_875, 30.0, None, 26_297, 1826, 60.0, 1.462, 128, 90.5, 0.022329, 1875),
    ("hpc2n.swf.gz", None, None): (202_871, 1264.4, 54_108, 17_024, 2873, 5.9, 6.357, 200, 42.1, 0.001857, 144),
    ("sdsc-blue.swf.gz", None, None): (243_306, 974.1, 32_195, 4052, 189, 7.1, 43.58, 1152, 0.0, 0.002891, 887),
}


@pytest.mark.parametrize(("name", "start", "until"), PUBLISHED, ids=[name for name, _, _ in PUBLISHED])
def test_real_traces_have_the_statistics_that_are_published_beside_them(name, start, until):
    path = TRACES / name
    if not path.exists():
        pytest.skip("the traces are not on this machine")
    if not name.startswith("alibaba") and not os.environ.get("RLTUNED_ALL_TRACES"):
        pytest.skip("takes seconds: set RLTUNED_ALL_TRACES=1")
    jobs = read(path, keep_unknown=True)
    if start is not None:
        submitted = jobs.submit_time + jobs.source.start
        jobs = jobs.take((submitted >= start) & (submitted < until))
    found = describe(jobs)
    shown = (
        found["jobs"],
        round(found["span"] / 86_400, 1),
        found["wait_mean"],
        found["run_mean"],
        round(found["run_median"]),
        round(found["run_max"] / 86_400, 1),
        found["gpus_mean"],
        found["gpus_max"],
        round(found["one_gpu"] * 100, 1),
        round(found["arrival_rate"], 6),
        round(found["demand"]),
    )
    expected = PUBLISHED[name, start, until]
    assert shown == tuple(None if value is None else pytest.approx(value, rel=5e-4) for value in expected)

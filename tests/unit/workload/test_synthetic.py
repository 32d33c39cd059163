"""Generated workloads: like the published traces, as loaded as asked for, and possible on the cluster they are made
for.

The published values are those of the traces that the presets were counted from (docs/evaluation.md).
"""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rltuned.cli.main import cli
from rltuned.core.errors import ConfigError, WorkloadError
from rltuned.core.tables import Category
from rltuned.simulate.shape import from_json, parse_shape
from rltuned.simulate.workload.describe import describe
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.simulated_estimates import WRITTEN_LIMITS
from rltuned.simulate.workload.synthetic import generate
from rltuned.simulate.workload.write import write_csv

LARGE = parse_shape("200x8:p100")
N = 20_000

PUBLISHED = {
    # mean and median run time (s), GPUs of a job, share of 1-GPU jobs, mean of run time x GPUs over the product of the
    # means, jobs per hour, variance over mean of the submissions of an hour
    "philly": (37_677, 1417, 1.672, 0.872, 1.94, 37.9, 168.5),
    "helios": (13_041, 204, 6.892, 0.505, 1.12, 25.9, 40.7),
    "pai": (5171, 635, 5.032, 0.767, 1.62, 38.6, 9.3),
}


@pytest.fixture(scope="module", params=list(PUBLISHED))
def large(request: pytest.FixtureRequest) -> tuple[str, Workload]:
    """Many jobs at the trace's own rate of submission."""
    name: str = request.param
    probe = generate(name, N, LARGE, 3)
    per_hour = PUBLISHED[name][5]
    return name, generate(name, N, LARGE, 3, float(probe.submit_time[-1]) / (N / per_hour * 3600))


def same(left: Workload, right: Workload) -> bool:
    def column(of: Workload, name: str) -> np.ndarray:
        found = getattr(of, name)
        return np.array(found.texts()) if isinstance(found, Category) else found

    names = [each.name for each in fields(Workload) if each.name not in {"source", "line"}]
    pairs = [(column(left, name), column(right, name)) for name in names]
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def test_run_times_and_gpus_are_the_published_ones(large: tuple[str, Workload]) -> None:
    name, jobs = large
    mean, median, gpus, single, together, _, _ = PUBLISHED[name]
    assert jobs.run_time.mean() == pytest.approx(mean, rel=0.06)
    assert np.median(jobs.run_time) == pytest.approx(median, rel=0.03)
    assert jobs.gpus.mean() == pytest.approx(gpus, rel=0.03)
    assert (jobs.gpus == 1).mean() == pytest.approx(single, abs=0.005)
    area = (jobs.run_time * jobs.gpus).mean() / jobs.run_time.mean() / jobs.gpus.mean()
    # Who asks for many GPUs is a matter of a few users.
    assert together / 1.6 < area < together * 1.6


def test_submissions_come_in_bursts_as_published_not_as_poisson(large: tuple[str, Workload]) -> None:
    name, jobs = large
    hourly = np.bincount((jobs.submit_time // 3600).astype(int))
    fano = hourly.var() / hourly.mean()
    published = PUBLISHED[name][6]
    assert published / 2 < fano < published * 2
    assert fano > 4  # Poisson: 1
    gaps = np.diff(jobs.submit_time)
    assert gaps.std() / gaps.mean() > 1.3  # Poisson: 1


def test_the_night_is_quieter_than_the_afternoon_where_it_was() -> None:
    jobs = generate("helios", 10_000, LARGE, 3, 0.5)
    hours = np.bincount((jobs.submit_time % 86_400 // 3600).astype(int), minlength=24)
    assert hours[3:7].mean() < 0.5 * hours[14:18].mean()


def test_users_have_habits_and_few_submit_most(large: tuple[str, Workload]) -> None:
    _, jobs = large
    users = np.sort(np.bincount(jobs.user.codes))[::-1]
    # 5 % of the users submit 56 % of HPC2N's jobs, 34 % of SDSC-BLUE's.
    assert 0.3 < users[: len(users) // 20].sum() / len(jobs) < 0.65
    order = np.lexsort((np.arange(len(jobs)), jobs.user.codes))
    same_user = np.diff(jobs.user.codes[order]) == 0
    log_run, gpus = np.log(jobs.run_time[order]), jobs.gpus[order]
    correlation = np.corrcoef(log_run[1:][same_user], log_run[:-1][same_user])[0, 1]
    # HPC2N 0.84, SDSC-BLUE 0.75, same number of processors 0.89 and 0.85.
    assert 0.6 < correlation < 0.9
    assert (gpus[1:] == gpus[:-1])[same_user].mean() > 0.75


def test_limits_are_written_ones_and_nobody_is_killed(large: tuple[str, Workload]) -> None:
    _, jobs = large
    assert np.isin(jobs.time_limit, WRITTEN_LIMITS).all()
    assert (jobs.time_limit >= jobs.run_time).all()
    assert 2.0 < np.median(jobs.time_limit / jobs.run_time) < 15.0


@pytest.mark.parametrize("load", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("preset", list(PUBLISHED))
def test_the_load_is_what_was_asked_for(preset: str, load: float) -> None:
    shape = parse_shape("10x8:a100,6x4:v100")
    jobs = generate(preset, 1000, shape, 5, load)
    assert (jobs.run_time * jobs.gpus).sum() / jobs.submit_time[-1] / shape.gpus == pytest.approx(load, rel=1e-3)


def test_the_same_seed_gives_the_same_jobs_and_another_one_others() -> None:
    first, again, other = (generate("philly", 500, LARGE, seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


def test_every_job_fits_into_half_of_its_partition_and_type() -> None:
    shape = from_json(
        {
            "pools": [
                {"name": "A", "nodes": 4, "gpus_per_node": 8, "gpu_type": "a100", "cpus": 64, "mem_gib": 512},
                {"name": "T", "nodes": 6, "gpus_per_node": 2, "gpu_type": "t4", "cpus": 16, "mem_gib": 64},
                {"name": "C", "nodes": 2, "gpus_per_node": 0, "cpus": 64, "mem_gib": 256},
            ],
            "partitions": [
                {"name": "big", "pools": ["A", "T"], "max_time": "1-00:00:00"},
                {"name": "small", "pools": ["T"], "default": True},
                {"name": "cpu", "pools": ["C"]},
            ],
        },
        "test",
    )
    jobs = generate("helios", 3000, shape, 5, 1.0)
    partitions = np.array([jobs.partition.value(row) for row in range(len(jobs))])
    types = np.array([jobs.gpu_type.value(row) for row in range(len(jobs))])
    assert set(partitions) == {"big", "small"}
    assert set(types) == {"", "a100", "t4"}
    assert jobs.gpus[partitions == "small"].max() <= 6
    assert jobs.gpus[types == "t4"].max() <= 6
    assert 8 <= jobs.gpus.max() <= 16
    assert jobs.gpus.min() >= 1
    assert jobs.time_limit[partitions == "big"].max() <= 86_400
    assert jobs.run_time[partitions == "big"].max() <= 86_400
    # No more CPUs and memory than go with the GPUs of the leanest node.
    assert (jobs.cpus <= jobs.gpus * 8).all()
    assert (jobs.mem <= jobs.gpus * 64 * 1024).all()
    assert (jobs.cpus >= 1).all()
    assert len(np.unique(jobs.cpus / jobs.gpus)) > 2


@pytest.mark.parametrize(
    ("preset", "jobs", "cluster", "seed", "load", "reason"),
    [
        ("venus", 10, "2x8:p100", 1, 1.0, "no preset 'venus'; choose one of philly, helios, pai"),
        ("pai", 0, "2x8:p100", 1, 1.0, "number of jobs"),
        ("pai", 10, "2x8:p100", -3, 1.0, "seed: expected a number from 0, not -3"),
        ("pai", 10, "2x8:p100", 1, float("nan"), "load"),
        ("pai", 10, "2x8:p100", 1, 1e-300, "load"),
        ("pai", 10, "2x0", 1, 1.0, "without GPUs"),
    ],
)
def test_what_cannot_be_generated_is_refused(preset, jobs, cluster, seed, load, reason) -> None:
    with pytest.raises(ConfigError, match=reason):
        generate(preset, jobs, parse_shape(cluster), seed, load)


@pytest.mark.parametrize("jobs", [1, 300])
@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz"])
def test_a_written_workload_is_read_back_unchanged(tmp_path: Path, name: str, jobs: int) -> None:
    made = generate("helios", jobs, parse_shape("10x8:a100,6x4:v100"), 5)
    write_csv(made, tmp_path / name)
    assert same(read(tmp_path / name), made)
    first = (tmp_path / name).read_bytes()
    write_csv(made, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    with pytest.raises(WorkloadError, match=r"missing/jobs.csv: cannot be written: No such file"):
        write_csv(made, tmp_path / "missing" / "jobs.csv")


def test_traces_generate_writes_what_it_says(tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv.gz"
    arguments = ["traces", "generate", "philly", "--jobs", "200", "--cluster", "20x8:p100", "--seed", "3"]
    result = CliRunner().invoke(cli, [*arguments, "--load", "0.9", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "200 jobs" in result.output
    assert describe(read(out))["jobs"] == 200
    assert same(read(out), generate("philly", 200, parse_shape("20x8:p100"), 3, 0.9))

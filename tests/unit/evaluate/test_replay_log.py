"""What `testbed replay` reads out of slurmctld's log; lines as 22.05, 24.11 and 26.05 wrote them."""

from typing import Any

import numpy as np
import pytest

LOG = """\
[2026-11-21T09:50:39.352] _slurm_rpc_submit_batch_job: JobId=4 InitPrio=16179 usec=494
[2026-11-21T09:50:39.523] debug:  sched/backfill: _attempt_backfill: beginning
[2026-11-21T09:50:39.523] sched/backfill: _start_job: Started JobId=4 in gpu on k80-2
[2026-11-21T09:50:39.731] _slurm_rpc_submit_batch_job: JobId=5 SLUID=s90DM7YRX50600 InitPrio=16179 usec=471
[2026-11-21T09:50:40.000] debug:  sched: Running job scheduler for default depth.
[2026-11-21T09:50:40.004] debug:  sched: Running job scheduler for full queue.
[2026-11-21T09:50:40.004] sched: Allocate JobId=5 NodeList=m40-1 #CPUs=1 Partition=gpu
[2026-11-21T09:50:40.005] debug:  slurm_cred_create: creating credential for JobId=5 SLUID=s90DM7YRX50600
[2026-11-21T09:50:40.112] _slurm_rpc_submit_batch_job: JobId=6 InitPrio=16179 usec=674
[2026-11-21T09:50:40.524] debug:  slurm_cred_create: creating credential for JobId=6 SLUID=s90DM7YS88S100
[2026-11-21T09:50:43.560] _job_complete: JobId=4 WEXITSTATUS 0
[2026-11-21T09:50:43.561] _job_complete: JobId=4 done
[2026-11-21T09:50:44.043] _job_complete: JobId=5 WEXITSTATUS 0
error: a line of another form
[2026-11-21T09:50:44.576] _job_complete: JobId=6 WEXITSTATUS 0
[2026-11-21T09:50:44.580] debug:  slurm_cred_create: creating credential for JobId=6 SLUID=s90DM7YS88S100
"""


@pytest.fixture(scope="module")
def replay(ab: Any) -> Any:
    return ab.replay


def test_every_job_has_the_millisecond_of_its_submission_start_and_end_and_who_started_it(replay: Any):
    logged = replay.parse_log(LOG)
    base = logged.submit[4] - 0.352
    assert {job: round(at - base, 3) for job, at in logged.start.items()} == {4: 0.523, 5: 1.004, 6: 1.524}
    assert {job: round(at - base, 3) for job, at in logged.end.items()} == {4: 4.56, 5: 5.043, 6: 5.576}
    assert logged.backfilled == {4, 6}
    assert len(logged.main_passes) == len(logged.backfill_passes) == 1
    assert replay.parse_log(LOG, offset=3600.0).submit[4] == logged.submit[4] - 3600


def test_the_grid_of_passes_is_found_where_some_are_missing_and_some_are_late(replay: Any):
    rng = np.random.default_rng(1)
    times = 50.0 + 0.4 + 1.012 * np.delete(np.arange(100), [3, 4, 50]) + rng.normal(0.0, 0.004, 97)
    found = replay.grid(times, zero=50.0)
    assert found["interval"] == pytest.approx(1.012, abs=1e-3)
    assert found["offset"] == pytest.approx(0.4, abs=0.03)


def test_the_mixture_is_the_same_for_the_same_seed_and_has_every_class(replay: Any):
    one, same, other = (replay.mixture(200, seed, 20.0, 4.5) for seed in (1, 1, 2))
    assert one.workload.run_time.tolist() == same.workload.run_time.tolist() != other.workload.run_time.tolist()
    assert {kind: one.kind.count(kind) >= 12 for kind in set(one.kind)} == {kind.name: True for kind in replay.KINDS}
    assert set(one.workload.time_limit) == {60.0, 120.0, 180.0, 300.0, 600.0}
    assert 4.0 < one.workload.run_time.mean() < 5.0


def test_a_trace_is_compressed_its_limits_become_whole_minutes_and_impossible_jobs_are_left_out(replay: Any):
    shape = replay.from_json({"pools": [{"nodes": 2, "gpus_per_node": 4, "cpus": 8, "mem_mib": 1000}]}, "here")
    made = replay.workload(
        replay.Source("a trace"), [0, 600, 700], [1200, 7200, 60], [1, 4, 64], time_limit=[3600, 3600, 3600]
    )
    jobs = replay.from_trace(made, shape, "limit", 1, 60.0)
    assert jobs.workload.submit_time.tolist() == [0.0, 10.0]
    assert jobs.workload.run_time.tolist() == [20.0, 60.0]  # the second one would be killed after an hour
    assert jobs.workload.time_limit.tolist() == [60.0, 60.0]
    assert list(jobs.left_out.values()) == [1]
    commands = replay.sbatch(jobs, shape, np.array([3, 7]))
    assert {"--nice=7", "--time=1", "--gres=gpu:4", "--nodes=1", "--wrap=sleep 60.00"} <= set(commands[1])

"""From snapshot to problem: free capacity, shares, who may go where."""

import numpy as np
import pytest
from unit.place.proof import verify

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.pools import job_pools
from rltuned.core.tables import Partition, Snapshot
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.place.placing import place
from rltuned.decide.place.problem import build

NOW = 1_000_000.0
PENDING, RUNNING = int(JobState.PENDING), int(JobState.RUNNING)
INF = float("inf")


def snapshot_of(jobs, *, gpus_alloc=0, cpus_alloc=0, mem_alloc=0.0, usable=True, whole_partition=False):
    """Two p100 nodes of 4 GPUs, one k80 node of 2; 10 CPUs and 1,000 MiB per GPU; partitions gpu and whole."""
    nodes = node_table(
        ["p1", "p2", "k1"],
        ["p100", "k80"],
        [[4, 0], [4, 0], [0, 2]],
        gpus_alloc=gpus_alloc,
        cpus=[40, 40, 20],
        cpus_alloc=cpus_alloc,
        mem=[4000.0, 4000.0, 2000.0],
        mem_alloc=mem_alloc,
        tmp=500.0,
        usable=usable,
    )
    everywhere = np.arange(3, dtype=np.int32)
    partitions = (
        Partition("gpu", everywhere, True, 1, OverSubscribe.NO, 1, INF, default=True),
        Partition("whole", everywhere, True, 1, OverSubscribe.EXCLUSIVE, 1, INF),
    )
    return Snapshot(NOW, (24, 11), jobs, nodes, partitions)


def problem_of(snapshot):
    rows = snapshot.jobs.pending
    return build(snapshot, rows, job_pools(snapshot, rows))


def beside_one_that_runs(**columns):
    """Pending job 0, and one that runs on p1 with one GPU."""
    return job_table(2, [(), (0,)], state=[PENDING, RUNNING], end_time=[np.nan, NOW + 600.0], gpus=1, **columns)


def test_what_is_free_is_what_is_not_allocated():
    jobs = beside_one_that_runs()
    problem = problem_of(snapshot_of(jobs, gpus_alloc=[[1, 0], [0, 0], [0, 0]], cpus_alloc=[4, 0, 0], mem_alloc=300.0))
    assert problem.free.tolist() == [[3, 0, 36, 3700, 500], [4, 0, 40, 3700, 500], [0, 2, 20, 1700, 500]]
    assert not problem.idle.any()


@pytest.mark.parametrize("columns", [{"oversubscribe": ["OK", "NO"]}, {"exclusive": [False, True]}])
def test_nobody_may_join_a_running_job_that_has_its_node_for_itself(columns):
    jobs = beside_one_that_runs(**columns)
    problem = problem_of(snapshot_of(jobs, gpus_alloc=[[1, 0], [0, 0], [0, 0]], cpus_alloc=[1, 0, 0]))
    assert problem.free[:, [0, 2]].tolist() == [[0, 0], [4, 40], [0, 20]]


def test_a_node_that_takes_no_job_offers_nothing():
    jobs = beside_one_that_runs()
    snapshot = snapshot_of(jobs, gpus_alloc=[[1, 0], [0, 0], [0, 0]], usable=[False, True, True])
    problem = problem_of(snapshot)
    assert problem.free[0].max() == 0
    assert not problem.eligible[0, 0]


def test_cpus_and_memory_that_were_not_given_are_the_gpu_share_of_the_leanest_node():
    jobs = job_table(3, gpus=[2, 0, 4], cpus=[0, 5, 0], mem=[np.nan, np.nan, 7.0])
    problem = problem_of(snapshot_of(jobs))
    assert problem.cpus.tolist() == [20, 5, 40]
    assert problem.mem.tolist() == [2000.0, 500.0, 7.0]


def test_a_share_never_keeps_a_job_off_a_node_that_has_its_gpus():
    jobs = job_table(1, gpus=4, cpus=0, mem=np.nan)
    problem = problem_of(snapshot_of(jobs))
    assert len(place(problem).ways) == 1


def test_node_count_follows_from_gpus_per_node():
    jobs = job_table(2, gpus=[8, 4], gpus_per_node=[4, 2], nodes=[1, 2])
    problem = problem_of(snapshot_of(jobs))
    assert problem.nodes.tolist() == [2, 2]
    assert problem.gpus.tolist() == [8, 4]


def test_jobs_keep_the_rank_order_that_was_given():
    jobs = job_table(3, gpus=[1, 2, 4])
    snapshot = snapshot_of(jobs)
    rows = np.array([2, 0, 1], dtype=np.intp)
    problem = build(snapshot, rows, job_pools(snapshot, rows))
    assert problem.gpus.tolist() == [4, 1, 2]
    assert np.all(np.diff(problem.weight) < 0)
    assert problem.weight.min() > 0.5


def test_types_partitions_and_lists_decide_where_a_job_may_go():
    jobs = job_table(
        4, gpu_type=["k80", "", "v100", ""], exc_nodes=["", "p1", "", ""], req_nodes=["", "", "", "k1"], gpus=1
    )
    problem = problem_of(snapshot_of(jobs))
    assert problem.gpu_type.tolist() == [1, -1, 2, -1]
    assert problem.eligible.tolist() == [[False, False, True], [False, True, True], [False] * 3, [False, False, True]]
    placed = place(problem)
    assert sorted(way.job for way in placed.ways) == [0, 1, 3]
    assert verify(problem, placed) == ()


def test_jobs_that_must_be_alone_are_those_that_asked_those_already_isolated_and_those_of_exclusive_partitions():
    jobs = job_table(
        4,
        exclusive=[True, False, False, False],
        oversubscribe=["OK", "NO", "OK", "OK"],
        partition=["gpu", "gpu", "whole", "gpu"],
    )
    assert problem_of(snapshot_of(jobs)).exclusive.tolist() == [True, True, True, False]


def test_a_queue_of_jobs_without_gpus_on_a_cluster_without_gpus_can_be_placed():
    nodes = node_table(["a", "b"], [], np.zeros((2, 0)), cpus=8, mem=100.0)
    everywhere = np.arange(2, dtype=np.int32)
    partition = Partition("gpu", everywhere, True, 1, OverSubscribe.NO, 1, INF)
    snapshot = Snapshot(NOW, (24, 11), job_table(3, gpus=0, cpus=4, mem=10.0), nodes, (partition,))
    problem = problem_of(snapshot)
    placed = place(problem)
    assert len(placed.ways) == 3
    assert verify(problem, placed) == ()


def test_a_cluster_without_nodes_is_infeasible_and_no_error():
    nodes = node_table([], ["p100"], np.zeros((0, 1)))
    partition = Partition("gpu", np.zeros(0, dtype=np.int32), True, 1, OverSubscribe.NO, 1, INF)
    snapshot = Snapshot(NOW, (24, 11), job_table(2), nodes, (partition,))
    problem = problem_of(snapshot)
    assert place(problem).outcome is SolveOutcome.INFEASIBLE


def test_a_snapshot_without_pending_jobs_is_an_empty_problem():
    problem = problem_of(snapshot_of(job_table(1, [(0,)], state=RUNNING, end_time=NOW + 60.0)))
    assert len(problem) == 0
    assert place(problem).ways == ()

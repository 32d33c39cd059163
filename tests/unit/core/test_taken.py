"""Which jobs have their nodes to themselves, what they take then, and how much each keeps from others."""

from dataclasses import replace

import numpy as np
import pytest

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.pools import bounded_pools
from rltuned.core.tables import Partition, Snapshot
from rltuned.core.taken import LEAST, alone, sizes, sizes_held, taken_gpus, whole_nodes

BUSY = {"cpus_alloc": [4, 0, 0, 0, 0], "mem_alloc": [9_000.0, 0, 0, 0, 0]}


def snapshot_of(n, held_nodes=None, nodes=BUSY, **columns):
    """Two nodes of 8 V100, two of 4 K80, one without; all in "gpu" and in "whole", and those of K80 in "old"."""
    names, types = ["v1", "v2", "k1", "k2", "c1"], ["v100", "k80"]
    table = node_table(names, types, [[8, 0], [8, 0], [0, 4], [0, 4], [0, 0]], **nodes)
    everywhere, old = np.arange(5, dtype=np.int32), np.array([2, 3], dtype=np.int32)
    partitions = (
        Partition("gpu", everywhere),
        Partition("whole", everywhere, oversubscribe=OverSubscribe.EXCLUSIVE),
        Partition("old", old, oversubscribe=OverSubscribe.EXCLUSIVE),
    )
    return Snapshot(1e6, (24, 11), job_table(n, held_nodes, **columns), table, partitions)


def taken(n=1, **columns):
    snapshot = snapshot_of(n, **columns)
    return taken_gpus(snapshot, np.arange(n)).tolist()


def test_a_job_that_shares_its_nodes_takes_what_it_asks_for():
    assert taken(4, gpus=[0, 1, 8, 12], nodes=BUSY) == [0.0, 1.0, 8.0, 12.0]


ALONE = pytest.mark.parametrize("columns", [{"exclusive": True}, {"partition": "whole"}, {"mem": np.nan}])
WITH_ITS_OWN = pytest.mark.parametrize("value", [OverSubscribe.USER, OverSubscribe.MCS])


@ALONE
def test_one_that_has_its_nodes_to_itself_takes_all_gpus_of_them(columns):
    assert taken(gpu_type="v100", **columns) == [8.0]
    assert taken(gpu_type="k80", **columns) == [4.0]


def test_it_takes_as_many_nodes_as_it_asks_for_or_needs():
    assert taken(3, partition="whole", gpu_type="v100", gpus=[2, 12, 16], nodes=BUSY) == [8.0, 16.0, 16.0]
    snapshot = snapshot_of(1, partition="whole", gpu_type="v100")
    two = replace(snapshot, jobs=replace(snapshot.jobs, nodes=np.array([2], dtype=np.int32)))
    assert taken_gpus(two, np.arange(1)).tolist() == [16.0]


def test_where_nodes_differ_it_is_those_of_the_median_of_the_nodes_that_could_run_it():
    assert taken(3, partition=["whole", "old", "whole"], gpus=[0, 0, 1]) == [4.0, 4.0, 6.0]
    assert taken(partition="whole", gpus=5, gpus_per_node=5) == [8.0]
    assert taken(partition="gone", exclusive=True) == [1.0]


def test_a_job_without_gpus_keeps_others_off_them_too():
    assert taken(partition="old", gpus=0) == [4.0]


def test_a_job_of_several_partitions_is_alone_where_all_of_them_say_so():
    assert taken(2, partition=["whole,gpu", "whole,old"], gpu_type="k80") == [1.0, 4.0]


def test_all_memory_is_nothing_where_slurm_counts_none():
    """SelectTypeParameters=CR_CPU, CR_Core: MinMemory is 0 there, too, but jobs share nodes, and none has memory."""
    uncounted = {"cpus_alloc": [4, 0, 0, 0, 0]}
    assert taken(mem=np.nan, nodes=uncounted) == [1.0]
    assert taken(mem=np.nan, exclusive=True, gpu_type="k80", nodes=uncounted) == [4.0]
    assert taken(mem=np.nan, gpu_type="k80", nodes={}) == [4.0], "nothing runs, and nobody knows"


@WITH_ITS_OWN
def test_nodes_that_a_user_shares_with_himself_are_not_taken_by_one_job(value):
    snapshot = snapshot_of(1, exclusive=True, oversubscribe=value.value)
    assert alone(snapshot, np.arange(1)).tolist() == [True]
    assert whole_nodes(snapshot, np.arange(1)).tolist() == [False]
    assert taken_gpus(snapshot, np.arange(1)).tolist() == [1.0]


def test_one_that_runs_takes_what_its_nodes_have():
    held = {"held_nodes": [[0, 2], [1], [4], []], "state": [JobState.RUNNING] * 3 + [JobState.PENDING]}
    assert taken(4, exclusive=[True, False, True, True], gpus=[1, 1, 0, 1], gpu_type="k80", **held) == [12, 1, 0, 4]


# --- size: what a job keeps from others


def size(n=1, counts=BUSY, **columns):
    snapshot = snapshot_of(n, nodes=counts, **columns)
    rows = snapshot.jobs.pending
    return [round(float(value), 4) for value in sizes(snapshot, rows, bounded_pools(snapshot, rows))]


def test_a_jobs_size_is_the_largest_of_its_shares_of_a_node_in_gpus():
    """A V100 node has 8 GPUs, 64 CPUs, 256,000 MiB."""
    mem = [1000.0, 1000.0, 128_000.0, 1000.0]
    assert size(4, gpu_type="v100", gpus=[1, 1, 1, 12], cpus=[1, 64, 1, 1], mem=mem) == [1.0, 8.0, 4.0, 12.0]


def test_a_job_that_takes_all_cpus_of_32_nodes_is_as_large_as_they_are():
    assert size(2, gpus=[0, 1], gpu_type=["", "k80"], cpus=[2048, 64]) == [128.0, 4.0]


@ALONE
def test_one_that_is_alone_on_its_nodes_has_their_size(columns):
    assert size(gpu_type="v100", **columns) == [8.0]
    snapshot = snapshot_of(1, gpu_type="k80", **columns)
    two = replace(snapshot, jobs=replace(snapshot.jobs, nodes=np.array([2], dtype=np.int32)))
    assert sizes(two, np.arange(1), bounded_pools(two, np.arange(1))).tolist() == [8.0]


@WITH_ITS_OWN
def test_nodes_that_a_user_shares_with_himself_are_kept_from_all_others(value):
    assert size(gpu_type="v100", exclusive=True, oversubscribe=value.value) == [8.0]


def test_a_node_without_gpus_counts_as_one_and_no_job_is_nothing():
    (cpus_only,) = size(gpus=0, partition="gpu", exc_nodes="v[1-2],k[1-2]", cpus=16, mem=0.0)
    assert cpus_only == pytest.approx(16 / 64)
    assert size(gpus=0, cpus=0, mem=0.0) == [LEAST]


def test_memory_is_no_share_where_slurm_counts_none():
    assert size(counts={"cpus_alloc": [4, 0, 0, 0, 0]}, gpu_type="v100", mem=256_000.0) == [1.0]


def held(n=1, **columns):
    """Of jobs that run on v1 and v2, and on c1."""
    places = {"held_nodes": [[0, 1], [4]][:n], "state": JobState.RUNNING}
    return [round(float(value), 4) for value in sizes_held(snapshot_of(n, **places, **columns), np.arange(n))]


def test_one_that_runs_has_the_size_of_what_it_was_given_on_its_nodes():
    assert held(2, gpus=[3, 0], cpus=[4, 32], mem=[1000.0, 1000.0]) == [3.0, 0.5]
    assert held(2, gpus=[3, 0], cpus=[128, 64]) == [16.0, 1.0]
    assert held(2, gpus=[3, 0], exclusive=[True, True]) == [16.0, 1.0]
    assert held(1, gpus=99) == [16.0], "no more than there is"
    nowhere = snapshot_of(1, [[]], state=JobState.RUNNING)
    assert sizes_held(nowhere, np.arange(1)).tolist() == [0.0]

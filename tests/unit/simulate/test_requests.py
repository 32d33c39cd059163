"""What a trace's row asks of a cluster, and whether the empty cluster could give it."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.reference import Reference
from unit.simulate.instances import cluster, given, jobs_of, partition, random_instance

from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.requests import requests


def asked(gpus, shape=None, **columns):
    shape = shape or cluster([8] * 6)
    n = len(gpus)
    return requests(shape, jobs_of([0.0] * n, [10.0] * n, gpus, **columns), np.full(n, 10.0))


@pytest.mark.parametrize(
    ("gpus", "per_node", "nodes", "each"),
    [
        (1, True, 1, 1),
        (8, True, 1, 8),
        (12, True, 2, 6),  # 2 = ceil(12 / 8) divides 12
        (16, True, 2, 8),
        (9, False, 1, 9),  # 2 does not divide 9
        (24, True, 3, 8),
        (48, True, 6, 8),
    ],
)
def test_gpus_in_all_become_one_node_or_equal_nodes_or_as_few_as_possible(gpus, per_node, nodes, each):
    want = asked([gpus])
    assert not want.rejected
    assert (want.per_node[0], want.nodes[0], want.gpus[0]) == (per_node, nodes, each)


def test_named_nodes_share_the_gpus_evenly_where_they_divide_them_and_give_one_each_at_least_otherwise():
    want = asked([4, 5, 2], nodes=[2, 2, 4])
    assert want.per_node.tolist() == [True, False, False]
    assert want.nodes.tolist() == [2, 2, 2]  # 2 GPUs cannot be on 4 nodes
    assert want.gpus.tolist() == [2, 5, 2]


def test_where_too_few_nodes_are_that_large_the_same_gpus_are_asked_in_all():
    # 24 GPUs are 3 nodes of 8, but there is one such node: it and 8 small ones have the GPUs.
    want = asked([24, 25], cluster([8] + [2] * 8))
    assert (want.per_node[0], want.gpus[0]) == (False, 24)
    assert want.rejected == {1: "needs 25 GPUs, partition main has 24"}


def test_a_job_of_a_longer_limit_is_one_of_a_cluster_without_the_nodes_that_do_not_take_it():
    shape = replace(cluster([8, 8, 4, 4]), longest=np.array([600.0, 600.0, np.inf, 1200.0]))
    limits = np.array([600.0, 601.0, 601.0, 1201.0, 1201.0])
    found = requests(shape, jobs_of([0.0] * 5, [10.0] * 5, [16, 16, 8, 4, 8]), limits)
    assert found.rejected == {
        1: "needs 16 GPUs, partition main on nodes that take its time limit has 8",
        4: "needs 8 GPUs, partition main on nodes that take its time limit has 4",
    }
    assert found.nodes[[0, 2, 3]].tolist() == [2, 2, 1]
    pools = [found.pool_nodes[found.pool[row]].tolist() for row in (0, 2, 3)]
    assert pools == [[True, True, False, False], [False, False, True, True], [False, False, True, False]]


def test_cpus_and_memory_are_shared_out_and_rounded_up():
    want = asked([16, 3], cpus=[17, 5], mem=[1001.0, 10.0])
    assert want.cpus.tolist() == [9, 5]
    assert want.mem.tolist() == [501, 10]


def test_more_memory_or_disk_than_any_number_can_say_is_too_much():
    want = asked([1, 1, 1, 1], mem=[1e19, np.inf, 0, 0], tmp=[0, 0, 1e19, np.inf])
    assert list(want.rejected) == [0, 1, 2, 3]
    assert "MiB of memory" in want.rejected[0]
    assert "MiB of local disk" in want.rejected[3]


def test_a_cpu_job_counts_in_cpus_one_on_each_node_if_none_is_given():
    want = asked([0, 0, 0, 0], cluster([0, 0, 0], cpus=16), cpus=[0, 20, 0, 17], nodes=[0, 0, 3, 0])
    assert want.per_node.tolist() == [True, True, True, False]
    assert want.nodes.tolist() == [1, 2, 3, 1]
    assert want.cpus.tolist() == [1, 10, 1, 17]


def test_the_largest_node_is_that_of_the_partition_and_of_the_type():
    parts = [partition("all", range(4)), partition("small", [2, 3])]
    shape = cluster([8, 8, 2, 2], types=["v100", "v100", "t4", "t4"], partitions=parts)
    want = asked([4, 4, 4], shape, partition=["all", "small", "all"], gpu_type=["", "", "t4"])
    assert want.nodes.tolist() == [1, 2, 2]
    assert want.pool_nodes[want.pool].tolist() == [
        [True, True, False, False],
        [False, False, True, True],
        [False, False, True, True],
    ]


def with_gpus(*nodes):
    """One node for each mapping of GPU types to numbers."""
    types = tuple(dict.fromkeys(name for of in nodes for name in of))
    gpus = [[of.get(name, 0) for name in types] for of in nodes]
    shape = cluster([sum(row) for row in gpus])
    return replace(shape, nodes=replace(shape.nodes, gpu_types=types, gpus=np.array(gpus, dtype=np.int32)))


def test_a_node_of_several_types_takes_the_jobs_of_each_as_far_as_it_has_that_type():
    slices = {"b200": 4, "b200_2g.45gb": 8, "b200_3g.90gb": 4}
    shape = with_gpus({"a30": 4, "q6k": 4}, {"a30": 4, "q6k": 4}, slices)
    kinds = ["a30", "q6k", "q6k", "q6k", "q6k", "a30", "b200", "b200_2g.45gb", "b200_3g.90gb", "b200", ""]
    want = asked([1, 1, 4, 6, 8, 9, 4, 8, 1, 5, 16], shape, gpu_type=kinds)
    assert want.rejected == {
        5: "needs 9 GPUs, partition main with GPUs of type a30 has 8",
        9: "needs 5 GPUs, partition main with GPUs of type b200 has 4",
    }
    assert want.nodes[2:5].tolist() == [1, 2, 2]
    assert want.gpus[2:5].tolist() == [4, 3, 4]
    mixed, sliced = [True, True, False], [False, False, True]
    found = want.pool_nodes[want.pool].tolist()
    assert [found[row] for row in (0, 1, 2, 3, 4, 6, 7, 8, 10)] == [mixed] * 5 + [sliced] * 4


def test_a_simulated_node_of_several_types_never_shows_more_in_use_of_a_type_than_it_has():
    shape = with_gpus({"a30": 4, "q6k": 4})
    jobs = jobs_of([0.0] * 3, [50.0] * 3, [4, 1, 1], gpu_type=["q6k", "a30", ""])
    simulation = Simulation(shape, jobs, given([50.0] * 3))
    simulation.run(RuleRanker(by_name("fifo")), 1.0)
    nodes = simulation.node_table()
    assert nodes.gpus_alloc.sum() == 6
    assert (nodes.gpus_alloc <= nodes.gpus).all()


def test_a_row_without_a_partition_goes_to_the_default_one_and_one_that_is_down_takes_nobody():
    parts = [partition("first", [0]), partition("second", [1]), partition("closed", [0], up=False)]
    want = asked([1, 1, 1], cluster([1, 1], partitions=parts), partition=["", "second", "closed"])
    assert want.partition.tolist() == [0, 1, 2]
    assert want.rejected == {2: "partition closed is not up"}


def test_exactly_those_are_rejected_whom_the_reference_finds_no_nodes_for_on_the_empty_cluster():
    accepted = rejected = 0
    for seed in range(150):
        instance = random_instance(seed)
        unlimited = given([10.0] * len(instance.jobs))
        idle = Reference(instance.shape, instance.jobs, unlimited, RuleRanker(by_name("fifo")))
        want = idle.asked
        types = instance.shape.nodes.gpu_types
        for job in idle.every:
            reason = want.rejected.get(job.row, "")
            name = instance.jobs.gpu_type.value(job.row)
            if reason.startswith("unknown"):
                assert instance.jobs.gpus[job.row] > 0
                assert name not in types
                continue
            part = instance.shape.partitions[job.partition]
            kind = want.gpu_type[job.row]
            pool = [int(node) for node in part.nodes if kind < 0 or instance.shape.nodes.gpus[node, kind] > 0]
            found = idle.choose(job, idle.room, pool) is not None
            assert found == (not reason), f"seed {seed}, job {job.row}: {reason}"
            accepted, rejected = accepted + found, rejected + (not found)
    assert min(accepted, rejected) > 300


def test_the_requests_of_a_window_are_those_that_the_window_alone_would_have():
    for seed in range(20):
        instance = random_instance(seed)
        limit, rows = instance.estimates.time_limit, slice(len(instance.jobs) // 3, None)
        part = requests(instance.shape, instance.jobs, limit).take(rows)
        alone = requests(instance.shape, instance.jobs.take(rows), limit[rows])
        assert part.rejected == alone.rejected
        for row in set(range(len(alone))) - set(alone.rejected):
            for name in ("per_node", "nodes", "most_nodes", "gpus", "cpus", "mem", "tmp", "gpu_type", "partition"):
                assert getattr(part, name)[row] == getattr(alone, name)[row]
            np.testing.assert_array_equal(part.pool_nodes[part.pool[row]], alone.pool_nodes[alone.pool[row]])

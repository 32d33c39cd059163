"""Feature constraints and pools of capable nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltuned.core import notation
from rltuned.core.changes import OverSubscribe
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.pools import compile_constraint, job_pools
from rltuned.core.tables import Partition, Snapshot


def snapshot(jobs):
    nodes = node_table(
        ["p1", "p2", "k1", "k2", "m1"],
        ["p100", "k80", "m40"],
        [[4, 0, 0], [4, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 1]],
        features=[frozenset({"p100", "ib"})] * 2 + [frozenset({"k80"})] * 2 + [frozenset({"m40", "ib"})],
    )
    parts = (
        Partition("gpu", np.arange(5, dtype=np.int32), True, 1, OverSubscribe.NO, 1, 1e6),
        Partition("small", np.array([2, 3], dtype=np.int32), True, 1, OverSubscribe.NO, 1, 1e6),
    )
    return Snapshot(0.0, (24, 11), jobs, nodes, parts)


def pool_names(snap):
    pools = job_pools(snap, snap.jobs.pending)
    return [{snap.nodes.names[node] for node in np.flatnonzero(pools.nodes[pool])} for pool in pools.pool_of]


def test_a_pool_is_what_partition_type_features_and_node_lists_leave():
    jobs = job_table(
        9,
        partition=["gpu", "small", "gpu", "gpu", "gpu", "gpu", "gpu", "small,gpu", "gpu"],
        gpu_type=["", "", "p100", "", "", "", "v100", "", ""],
        gpus_per_node=[0, 0, 0, 4, 0, 0, 0, 0, 0],
        gpus=[1, 1, 1, 4, 1, 0, 1, 1, 1],
        features=["", "", "", "", "ib", "", "", "", ""],
        exc_nodes=["", "", "p1", "", "", "", "", "", ""],
        req_nodes=["", "", "", "", "", "", "", "", "k[1-2]"],
    )
    everything = {"p1", "p2", "k1", "k2", "m1"}
    assert pool_names(snapshot(jobs)) == [
        everything,
        {"k1", "k2"},
        {"p2"},
        {"p1", "p2"},
        {"p1", "p2", "m1"},
        everything,
        set(),
        everything,
        {"k1", "k2"},
    ]


def test_tens_of_thousands_of_node_lists_do_not_mix_up_partitions():
    # Ranges of codes whose product is 2**64: what is multiplied by it is gone.
    lists = 2**16 - 1
    n = lists + 2
    jobs = job_table(
        n,
        partition=[*(["small"] * lists), "small", "gpu"],
        features=["", "ib", *[""] * lists],
        req_nodes=[*(f"x{number}" for number in range(lists)), "", ""],
        exc_nodes=[*(f"y{number}" for number in range(lists)), "", ""],
        gpu_type="",
        gpus=[2**31 - 1, *[1] * (lists + 1)],
        gpus_per_node=[2**31 - 1, *[0] * (lists + 1)],
    )
    assert pool_names(snapshot(jobs))[-2:] == [{"k1", "k2"}, {"p1", "p2", "k1", "k2", "m1"}]


def test_jobs_that_ask_for_the_same_share_a_pool():
    jobs = job_table(1000, gpu_type=["p100", ""] * 500)
    pools = job_pools(snapshot(jobs), jobs.pending)
    assert pools.nodes.shape == (2, 5)


def test_a_job_of_several_types_may_run_where_they_are_and_is_not_taken_for_one_of_other_types():
    nodes = node_table(
        ["both", "first", "second", "neither"],
        ["1g.10gb", "2g.20gb", "gpu"],
        [[2, 1, 0], [2, 0, 0], [0, 2, 0], [0, 0, 4]],
    )
    everywhere = (Partition("gpu", np.arange(4, dtype=np.int32), True, 1, OverSubscribe.NO, 1, 1e6),)
    jobs = job_table(
        5,
        partition=["gpu"] * 5,
        gpus=[2, 2, 2, 2, 4],
        gpus_per_node=[2, 0, 2, 2, 4],
        gpu_type=["1g.10gb,2g.20gb", "1g.10gb,2g.20gb", "1g.10gb,7g.80gb", "", "1g.10gb,2g.20gb"],
    )
    assert pool_names(Snapshot(0.0, (24, 11), jobs, nodes, everywhere)) == [
        {"both"},
        {"both", "first", "second"},  # in all, wherever
        set(),
        {"both", "first", "second", "neither"},
        set(),
    ]


@pytest.mark.parametrize(
    ("expression", "accepts"),
    [
        ("ib", {"ib"}),
        ("p100&ib", set()),
        ("p100|ib", {"ib"}),
        ("(p100|k80)&ib", set()),
        ("p100&k80|ib", {"ib"}),
        ("ib|p100&k80", set()),
        ("[p100*2&ib*1]", {"ib"}),
        ("[p100|ib]", {"ib"}),
        ("ib*4", {"ib"}),
        ("!p100", {"ib"}),
        ("((", {"ib"}),
        ("a&&b", {"ib"}),
    ],
)
def test_constraints_are_applied_left_to_right_and_unclear_ones_accept(expression, accepts):
    assert compile_constraint(expression)(frozenset({"ib"})) is bool(accepts)


@given(st.text(max_size=100), st.frozensets(st.text(max_size=5)))
def test_any_constraint_gives_a_verdict(expression, features):
    assert compile_constraint(expression)(features) in {True, False}


def test_rows_taken_from_a_table_keep_the_nodes_they_hold():
    jobs = job_table(3, held_nodes=[[0, 1], [], [2]])
    taken = jobs.take(np.array([2, 0]))
    assert [list(taken.nodes_of(row)) for row in range(2)] == [[2], [0, 1]]
    assert list(jobs.take(np.array([False, True, True])).job_id) == [2, 3]


@pytest.mark.parametrize("expression", ["&".join(["ib"] * 5000), "|".join(["no"] * 5000 + ["ib"]), "!" * 5000 + "ib"])
def test_a_constraint_of_any_number_of_terms_is_tested(expression):
    assert compile_constraint(expression)(frozenset({"ib"}))


@pytest.mark.parametrize("deep", [500, 5000])
def test_brackets_within_brackets_beyond_measure_accept(deep):
    assert compile_constraint("(" * deep + "no" + ")" * deep)(frozenset({"ib"}))


expand_one = notation._expand_one


def test_node_lists_that_cost_too_much_are_not_looked_up_and_cost_no_other(monkeypatch):
    read = []

    def counted(*args):
        read.append(args)
        return expand_one(*args)

    monkeypatch.setattr(notation, "_expand_one", counted)
    mallorys = [
        *(",".join(["[p,k,m][1-2]"] * 199 + [f"x{number}"]) for number in range(300)),
        *(f"p1,x[1-{number}]" for number in range(190_000, 190_300)),
        *(",".join(["p1"] * 30_000 + [f"x{number}"]) for number in range(20)),
        "p[1-2",
    ]
    n = len(mallorys)
    jobs = job_table(n + 2, exc_nodes=[*mallorys, "p1", "k[1-2]"], user=["mallory"] * n + ["alice", "bob"])
    snap = snapshot(jobs)
    pools = job_pools(snap, jobs.pending)
    assert pool_names(snap)[-2:] == [{"p2", "k1", "k2", "m1"}, {"p1", "p2", "m1"}]
    assert np.count_nonzero(pools.pool_of == pools.rest) == n
    assert pools.nodes[pools.rest].all()
    assert len(read) < 2**16

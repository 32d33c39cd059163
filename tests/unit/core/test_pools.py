"""Feature constraints and pools of capable nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltuned.core import notation
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
    parts = Partition("gpu", np.arange(5, dtype=np.int32)), Partition("small", np.array([2, 3], dtype=np.int32))
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
    everything, k80 = {"p1", "p2", "k1", "k2", "m1"}, {"k1", "k2"}
    capable = [everything, k80, {"p2"}, {"p1", "p2"}, {"p1", "p2", "m1"}, everything, set(), everything, k80]
    assert pool_names(snapshot(jobs)) == capable


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
    everywhere = (Partition("gpu", np.arange(4, dtype=np.int32)),)
    jobs = job_table(
        5,
        partition=["gpu"] * 5,
        gpus=[2, 2, 2, 2, 4],
        gpus_per_node=[2, 0, 2, 2, 4],
        gpu_type=["1g.10gb,2g.20gb", "1g.10gb,2g.20gb", "1g.10gb,7g.80gb", "", "1g.10gb,2g.20gb"],
    )
    wherever, everything = {"both", "first", "second"}, set(nodes.names)
    found = pool_names(Snapshot(0.0, (24, 11), jobs, nodes, everywhere))
    assert found == [{"both"}, wherever, set(), everything, set()]


@pytest.mark.parametrize(
    ("expression", "accepts"),
    [
        *((text, True) for text in ("ib", "p100|ib", "p100&k80|ib", "[p100*2&ib*1]", "[p100|ib]", "ib*4", "!p100")),
        *((text, False) for text in ("p100&ib", "(p100|k80)&ib", "ib|p100&k80", "!ib", "!(p100|ib)")),
        *((text, True) for text in ("((", "a&&b", "(a]", "*2", "a b")),  # unclear
        *((text, True) for text in ("&".join(["ib"] * 5000), "|".join(["no"] * 5000 + ["ib"]), "!" * 5000 + "ib")),
        *(("(" * deep + "no" + ")" * deep, deep > 32) for deep in (31, 500, 5000)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_constraints_are_applied_left_to_right_and_unclear_ones_accept(expression, accepts):
    assert compile_constraint(expression)(frozenset({"ib"})) is accepts


@given(st.text(max_size=100), st.frozensets(st.text(max_size=5)))
def test_any_constraint_gives_a_verdict(expression, features):
    assert compile_constraint(expression)(features) in {True, False}


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

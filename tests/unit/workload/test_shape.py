"""Clusters written down: the short form, JSON, files, and where a wrong one is wrong."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.core.changes import OverSubscribe
from rltuned.core.errors import ShapeError
from rltuned.core.notation import seconds_of
from rltuned.simulate.shape import Pool, from_json, parse_shape, read_shape, shape


def test_twenty_nodes_of_eight_gpus():
    cluster = parse_shape("20x8:p100")
    nodes, [main] = cluster.nodes, cluster.partitions
    assert (len(nodes), cluster.gpus, nodes.gpu_types, cluster.text) == (20, 160, ("p100",), "20x8:p100")
    assert {*zip(nodes.cpus, nodes.mem, nodes.tmp, strict=True)} == {(64, 8 * 64 * 1024, 0)}
    assert (main.default, main.max_time, main.nodes.tolist()) == (True, math.inf, [*range(20)])
    assert cluster.partition("") is cluster.partition("main") is main
    assert cluster.partition("other") is None


def test_each_node_has_gpus_of_one_type():
    nodes = parse_shape("2x4:V100:96c:512.5g:2000d, 3x2:t4,1x0:32c,1x1").nodes
    assert nodes.gpu_types == ("v100", "t4", "gpu")
    assert nodes.gpus.tolist() == [[4, 0, 0]] * 2 + [[0, 2, 0]] * 3 + [[0, 0, 0], [0, 0, 1]]
    assert nodes.cpus.tolist() == [96, 96, 16, 16, 16, 32, 8]
    assert (nodes.mem[0], nodes.tmp[0], nodes.mem[5]) == (512.5 * 1024, 2000 * 1024, 64 * 1024)
    assert parse_shape("4x0:16c").nodes.gpus.shape == (4, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected NODESxGPUS"),
        ("20x", "expected NODESxGPUS"),
        ("20x8:p100,", "pool '': expected"),
        ("axb", "expected NODESxGPUS"),
        ("-1x8", "expected NODESxGPUS"),
        ("0x8", "0 nodes"),
        ("200000x8", "200000 nodes"),
        ("90000x1,90000x1", "1 to 100,000 nodes"),
        ("1x5000", "5000 GPUs on a node"),
        ("2x8:p100:64c:32c", "CPUs are given twice"),
        ("2x8:p100:v100", "cannot understand 'v100'"),
        ("2x8:64c:p100", "cannot understand 'p100'"),
        ("2x8:0.5c", "whole number above 0"),
        ("2x8:0g", "memory is above 0"),
        ("2x8:p1\u0660", "cannot understand"),
    ],
)
def test_a_wrong_short_form_is_named(text, reason):
    with pytest.raises(ShapeError, match=r"^cluster ") as error:
        parse_shape(text)
    assert reason in str(error.value)


pools = st.builds(
    Pool,
    nodes=st.integers(1, 20),
    gpus_per_node=st.integers(0, 16),
    gpu_type=st.sampled_from(["", "p100", "a100-80g"]),
    cpus=st.integers(1, 256),
    mem_gib=st.integers(1, 4096).map(float),
    disk_gib=st.integers(1, 4096).map(float),
)


@settings(max_examples=40)
@given(st.lists(pools, min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(written):
    text = ",".join(
        f"{p.nodes}x{p.gpus_per_node}{':' + p.gpu_type if p.gpu_type else ''}"
        f":{p.cpus}c:{p.mem_gib:.0f}g:{p.disk_gib:.0f}d"
        for p in written
    )
    read, meant = parse_shape(text), shape(written, text)
    assert read.nodes.names == meant.nodes.names
    assert len(set(read.nodes.names)) == sum(p.nodes for p in written)
    for column in ("cpus", "mem", "tmp"):
        assert (getattr(read.nodes, column) == getattr(meant.nodes, column)).all()
    assert read.nodes.gpus.sum(axis=1).tolist() == [p.gpus_per_node for p in written for _ in range(p.nodes)]
    assert ((read.nodes.gpus > 0).sum(axis=1) <= 1).all()


LONG = {
    "pools": [
        {
            "name": "new",
            "nodes": 4,
            "gpus_per_node": 8,
            "gpu_type": "A100",
            "cpus": 128,
            "mem_gib": 1024,
            "disk_gib": 3500,
        },
        {"name": "old", "nodes": 6, "gpus_per_node": 2, "gpu_type": "p100", "features": ["ib"]},
        {"name": "lab", "nodes": 2, "gpus_per_node": 4, "gpu_type": "v100"},
    ],
    "partitions": [
        {"name": "prod", "pools": ["new"], "tier": 2, "max_time": "2-00:00:00"},
        {"name": "all", "max_nodes": 3, "oversubscribe": "EXCLUSIVE", "default": True, "billing": {"GRES/gpu": 2}},
        {"name": "lab", "pools": ["lab"], "max_time": 90},
    ],
    "qos": ["normal", "high"],
}


def test_partitions_have_the_pools_that_they_name_or_all():
    cluster = from_json(LONG, "site.json")
    prod, everything, lab = cluster.partitions
    assert prod.nodes.tolist() == [0, 1, 2, 3]
    assert everything.nodes.tolist() == list(range(12))
    assert lab.nodes.tolist() == [10, 11]
    assert [p.default for p in cluster.partitions] == [False, True, False]
    assert cluster.partition("") is everything
    assert (prod.priority_tier, everything.priority_tier) == (2, 1)
    assert (prod.max_time, everything.max_time, lab.max_time) == (172_800, math.inf, 90)
    assert (everything.max_nodes, prod.max_nodes) == (3, math.inf)
    assert (everything.billing, prod.billing) == ({"gres/gpu": 2.0}, None)
    assert everything.oversubscribe is OverSubscribe.EXCLUSIVE
    assert cluster.qos == ("normal", "high")
    assert cluster.nodes.gpu_types == ("a100", "p100", "v100")
    assert cluster.nodes.tmp[0] == 3500 * 1024
    assert cluster.nodes.features[4] == {"ib"}


NODE = {"nodes": 1, "gpus_per_node": 8}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (7, "valid dictionary or instance of _Cluster"),
        ({}, "pools: Field required"),
        ([NODE], "valid dictionary or instance of _Cluster"),
        ({"vc_nodes": {"vcA": 3}}, "pools: Field required"),
        ({"pools": [NODE], "vc_nodes": {"vcA": 3}}, "vc_nodes: Extra inputs are not permitted"),
        ({"pools": []}, "pools: List should have at least 1 item"),
        ({"pools": [NODE, NODE | {"nodes": "4"}]}, "pools 2 nodes: Input should be a valid integer, not '4'"),
        ({"pools": [{"gpus_per_node": 4}]}, "pools 1 nodes: Field required"),
        ({"pools": [{"nodes": 1}]}, "pools 1 gpus_per_node: Field required"),
        ({"pools": [NODE | {"nodes": True}]}, "nodes: Input should be a valid integer, not True"),
        ({"pools": [NODE | {"mem_gib": -4}]}, "mem_gib: Input should be greater than 0, not -4"),
        ({"pools": [NODE | {"mem_gb": 4}]}, "pools 1 mem_gb: Extra inputs are not permitted"),
        ({"pools": [NODE | {"cpus": 1.5}]}, "cpus: Input should be a valid integer"),
        ({"pools": [NODE | {"gpu_type": "a,b"}]}, "gpu_type: String should match"),
        ({"pools": [NODE | {"name": "a"}, NODE | {"name": "a"}]}, "pools: 'a' is there twice"),
        ({"partitions": [{"tier": 1}]}, "partitions 1 name: Field required"),
        ({"partitions": [{"name": "a"}, {"name": "a"}]}, "partitions: 'a' is there twice"),
        ({"partitions": [{"name": "a", "pools": ["x"]}]}, "partition a: no pool is named 'x'; there is none"),
        ({"partitions": [{"name": "a", "pools": []}]}, "partitions 1 pools: List should have at least 1 item"),
        (
            {"partitions": [{"name": "a", "max_time": "soon"}]},
            "max_time: Value error, expected seconds or a time such as 1-12:00:00, not 'soon'",
        ),
        ({"partitions": [{"name": "a", "max_time": False}]}, "max_time: Input should be a valid number"),
        ({"partitions": [{"name": "a", "tier": -1}]}, "tier: Input should be greater than or equal to 0, not -1"),
        ({"partitions": [{"name": "a", "max_nodes": 0}]}, "max_nodes: Input should be greater than or equal to 1"),
        ({"partitions": [{"name": "a", "billing": {"cpu": "1"}}]}, "billing cpu: Input should be a valid number"),
        ({"partitions": [{"name": "a", "oversubscribe": "MAYBE"}]}, "not 'MAYBE'"),
        ({"partitions": [{"name": "a", "oversubscribe": "FORCE:\u00b2"}]}, "oversubscribe: String should match"),
        ({"partitions": [{"name": n, "default": True} for n in "ab"]}, "two partitions are the default one: a, b"),
        ({"qos": "normal"}, "qos: Input should be a valid list, not 'normal'"),
    ],
)
def test_a_wrong_json_form_is_named_with_its_place(value, reason):
    if isinstance(value, dict) and {"partitions", "qos"} & set(value):
        value = {"pools": [NODE]} | value
    with pytest.raises(ShapeError, match=r"^site\.json") as error:
        from_json(value, "site.json")
    assert reason in str(error.value)


KEYS = ["pools", "partitions", "nodes", "name", "max_time", "gpus_per_node", "cpus"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=4) | st.just(NODE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(json_values)
def test_any_json_is_a_cluster_or_a_named_error(value):
    try:
        cluster = from_json(value, "x")
    except ShapeError:
        return
    assert sum(p.default for p in cluster.partitions) == 1
    assert all(len(p.nodes) for p in cluster.partitions)


DURATIONS = {
    "30": 1800,
    "1:30": 90,
    "2:00:00": 7200,
    "1-0": 86_400,
    "1-12:30": 131_400,
    "1-00:00:01": 86_401,
    "UNLIMITED": math.inf,
    **dict.fromkeys(("", "soon", "1-", "-5", "1:2:3:4", "Partition_Limit"), math.nan),
}


def test_durations_as_slurm_writes_them():
    np.testing.assert_array_equal([seconds_of(text) for text in DURATIONS], [*DURATIONS.values()])


def test_a_file_that_is_no_json_is_named_with_its_line(tmp_path):
    file = tmp_path / "site.json"
    file.write_text('{"pools": [\n  {"nodes": 4,}\n]}')
    with pytest.raises(ShapeError, match=r"site\.json:2: "):
        read_shape(file)
    with pytest.raises(ShapeError, match="cannot be read"):
        read_shape(tmp_path / "missing.json")


def test_a_short_form_is_no_file():
    assert read_shape("16x2:p100,20x8:p100").gpus == 192
    assert np.array_equal(read_shape("2x1").nodes.gpus, [[1], [1]])

"""Clusters written down: the short form, JSON, files, and where a wrong one is wrong."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.durations import duration
from rltuned.cluster.shape import Pool, from_json, parse_shape, shape
from rltuned.errors import ShapeError
from rltuned.workload import read_shape


def test_twenty_nodes_of_eight_gpus():
    cluster = parse_shape("20x8:p100")
    assert len(cluster.nodes) == 20
    assert cluster.gpus == 160
    assert cluster.nodes.gpu_types == ("p100",)
    assert (cluster.nodes.cpus == 64).all()
    assert (cluster.nodes.mem == 8 * 64 * 1024).all()
    assert (cluster.nodes.tmp == 0).all()
    assert cluster.text == "20x8:p100"
    [main] = cluster.partitions
    assert main.default
    assert main.nodes.tolist() == list(range(20))
    assert main.max_time == math.inf
    assert cluster.partition("") is cluster.partition("main") is main
    assert cluster.partition("other") is None


def test_each_node_has_gpus_of_one_type():
    cluster = parse_shape("2x4:V100:96c:512.5g:2000d, 3x2:t4,1x0:32c,1x1")
    assert cluster.nodes.gpu_types == ("v100", "t4", "gpu")
    assert cluster.nodes.gpus.tolist() == [[4, 0, 0]] * 2 + [[0, 2, 0]] * 3 + [[0, 0, 0], [0, 0, 1]]
    assert cluster.nodes.cpus.tolist() == [96, 96, 16, 16, 16, 32, 8]
    assert cluster.nodes.mem[0] == 512.5 * 1024
    assert cluster.nodes.tmp[0] == 2000 * 1024
    assert cluster.nodes.mem[5] == 64 * 1024


def test_a_cluster_without_gpus_has_no_types():
    cluster = parse_shape("4x0:16c")
    assert cluster.gpus == 0
    assert cluster.nodes.gpus.shape == (4, 0)


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
    gpus=st.integers(0, 16),
    gpu_type=st.sampled_from(["", "p100", "a100-80g"]),
    cpus=st.integers(1, 256),
    mem=st.integers(1, 4096).map(lambda gib: gib * 1024.0),
    tmp=st.integers(1, 4096).map(lambda gib: gib * 1024.0),
)


@settings(max_examples=40)
@given(st.lists(pools, min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(written):
    text = ",".join(
        f"{p.nodes}x{p.gpus}{':' + p.gpu_type if p.gpu_type else ''}:{p.cpus}c:{p.mem / 1024:.0f}g:{p.tmp / 1024:.0f}d"
        for p in written
    )
    read, meant = parse_shape(text), shape(written, text)
    assert read.nodes.names == meant.nodes.names
    assert len(set(read.nodes.names)) == sum(p.nodes for p in written)
    for column in ("cpus", "mem", "tmp"):
        assert (getattr(read.nodes, column) == getattr(meant.nodes, column)).all()
    assert read.nodes.gpus.sum(axis=1).tolist() == [p.gpus for p in written for _ in range(p.nodes)]
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
    ],
    "partitions": [
        {"name": "prod", "pools": ["new"], "tier": 2, "max_time": "2-00:00:00"},
        {"name": "all", "max_nodes": 3, "oversubscribe": "EXCLUSIVE", "default": True, "billing": {"GRES/gpu": 2}},
        {"name": "lab", "nodes": 2, "gpus_per_node": 4, "gpu_type": "v100", "max_time": 90},
    ],
    "qos": ["normal", "high"],
}


def test_partitions_have_pools_that_they_share_or_own():
    cluster = from_json(LONG, "site.json")
    prod, everything, lab = cluster.partitions
    assert prod.nodes.tolist() == [0, 1, 2, 3]
    assert everything.nodes.tolist() == list(range(10))
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


def test_one_partition_per_virtual_cluster():
    cluster = from_json({"gpus_per_node": 4, "gpu_type": "V100", "vc_nodes": {"vcA": 3, "vcB": 1}}, "vcs")
    assert [(p.name, p.nodes.tolist(), p.default) for p in cluster.partitions] == [
        ("vcA", [0, 1, 2], True),
        ("vcB", [3], False),
    ]
    assert cluster.gpus == 16
    # Nobody says: eight.
    assert from_json({"vcA": 3, "vcB": 1}, "vcs").gpus == 32
    assert from_json({"vc_nodes": [6, 4]}, "vcs").partitions[1].name == "vc2"
    assert from_json({"vcs": [{"vc": 1, "nodes": 2}], "gpus_per_node": 8}, "vcs").partitions[0].name == "1"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (7, "expected an object"),
        ({}, "no pools, partitions, vcs, vc_nodes or nodes"),
        ({"pools": []}, "pools: expected a list with at least one entry"),
        ({"pools": [{"nodes": "4"}]}, "pool 1: nodes: expected a whole number, not '4'"),
        ({"pools": [{"gpus_per_node": 4}]}, "pool 1: nodes: expected a whole number, not None"),
        ({"pools": [{"nodes": True}]}, "nodes: expected a whole number, not True"),
        ({"pools": [{"nodes": 1, "mem_gib": -4}]}, "mem_gib: expected a number above 0"),
        ({"pools": [{"nodes": 1, "cpus": 1.5}]}, "cpus: expected a whole number"),
        ({"pools": [{"nodes": 1, "gpu_type": "a,b"}]}, "is not the name of a GPU type"),
        ({"pools": [{"nodes": 1, "name": "a"}, {"nodes": 1, "name": "a"}]}, "another pool of that name"),
        ({"partitions": [{"nodes": 1}]}, "partitions, entry 1: a partition needs a name"),
        ({"partitions": [{"name": "a", "nodes": 1}, {"name": "a", "nodes": 1}]}, "two partitions of that name"),
        ({"partitions": [{"name": "a", "pools": ["x"]}]}, "partition a: no pool is named 'x'"),
        ({"partitions": [{"name": "a"}]}, "partition a has no nodes"),
        ({"partitions": [{"name": "a"}, {"name": "b", "nodes": 1}]}, "partition a has no nodes"),
        ({"partitions": [{"name": "a", "nodes": 1, "max_time": "soon"}]}, "max_time: expected seconds"),
        ({"partitions": [{"name": "a", "nodes": 1, "tier": -1}]}, "tier: expected a number"),
        ({"partitions": [{"name": "a", "nodes": 1, "max_nodes": 0}]}, "max_nodes: expected a number above 0"),
        ({"partitions": [{"name": "a", "nodes": 1, "billing": {"cpu": "1"}}]}, "billing: expected weights by TRES"),
        ({"partitions": [{"name": "a", "nodes": 1, "oversubscribe": "MAYBE"}]}, "'MAYBE' is none of NO, YES"),
        ({"partitions": [{"name": "a", "nodes": 1, "oversubscribe": "FORCE:\u00b2"}]}, "is none of NO, YES"),
        ({"partitions": [{"name": n, "nodes": 1, "default": True} for n in "ab"]}, "two partitions are the default"),
        ({"vc_nodes": {"vcA": "many"}}, "vc_nodes, vcA: nodes: expected a whole number"),
        ({"pools": [{"nodes": 1}], "qos": "normal"}, "qos is a list of names"),
    ],
)
def test_a_wrong_json_form_is_named_with_its_place(value, reason):
    with pytest.raises(ShapeError, match=r"^site\.json") as error:
        from_json(value, "site.json")
    assert reason in str(error.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["pools", "partitions", "nodes", "name", "vc_nodes", "gpus_per_node", "cpus"]),
            inner,
            max_size=4,
        )
    ),
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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-0", 86_400),
        ("1-12:30", 131_400),
        ("1-00:00:01", 86_401),
        ("UNLIMITED", math.inf),
    ],
)
def test_durations_as_slurm_writes_them(text, seconds):
    assert duration(text) == seconds


def test_what_is_no_duration_is_nan():
    assert all(math.isnan(duration(text)) for text in ("", "soon", "1-", "-5", "1:2:3:4", "Partition_Limit"))


def test_a_part_of_a_file_inherits_what_encloses_it(tmp_path):
    file = tmp_path / "clusters.json"
    file.write_text(
        json.dumps({"site": {"gpus_per_node": 4, "gpu_type": "V100 (newer)", "vcs_now": {"a": 2, "b": 1}}, "x": LONG})
    )
    part = read_shape(f"{file}#site.vcs_now")
    assert part.gpus == 12
    assert part.nodes.gpu_types == ("v100",)
    assert part.text == "clusters.json#site.vcs_now"
    assert read_shape(f"{file}#x").gpus == from_json(LONG, "x").gpus
    assert read_shape(f"{file}#x.pools").gpus == 4 * 8 + 6 * 2
    with pytest.raises(ShapeError, match=r"no 'y' in the file; there is site, x"):
        read_shape(f"{file}#y")


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

"""The decision record on disk: whole, bounded, and refused with the name of the file where it is not one."""

import json

import numpy as np
import pytest

from rltuned.cluster.build import job_table, node_table
from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.tables import Partition, Snapshot
from rltuned.config import Config
from rltuned.daemon.record import FILE_NAME, load, save
from rltuned.decide import plan, record
from rltuned.errors import RltunedError
from rltuned.policy import by_name


@pytest.fixture
def made():
    nodes = node_table(["n1"], ["a"], [[4]])
    partition = Partition("p", np.arange(1, dtype=np.int32), True, 1, OverSubscribe.NO, 1, 86_400.0, default=True)
    jobs = job_table(3, priority=[30, 20, 10], submit_time=[1.0, 2.0, 3.0], partition="p")
    return record(plan(Snapshot(100.0, (24, 11), jobs, nodes, (partition,)), by_name("sjf"), Config()))


def test_it_is_read_as_it_was_written(tmp_path, made):
    assert save(tmp_path, made) == ""
    assert load(tmp_path) == made


def test_one_that_is_too_large_leaves_the_old_one(tmp_path, made):
    save(tmp_path, made)
    assert "above the limit of 100" in save(tmp_path, made, limit=100)
    assert load(tmp_path) == made


def test_what_cannot_be_used_is_named_with_its_file(tmp_path, made):
    with pytest.raises(RltunedError, match="no decision record yet"):
        load(tmp_path)
    save(tmp_path, made)
    path = tmp_path / FILE_NAME
    tree = json.loads(path.read_bytes())
    tree["jobs"]["base"][0] = None
    path.write_text(json.dumps(tree))
    with pytest.raises(RltunedError, match=rf"{path}: .*jobs\.base\.0: .*wait for the next cycle"):
        load(tmp_path)

"""A small cluster shaped like the paper's, and snapshots of queues on it."""

import numpy as np
import pytest

from rltuned.core.changes import OverSubscribe
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.tables import Partition, Snapshot

NOW = 1_000_000.0


def make_snapshot(jobs, *, now=NOW, release=(24, 11), gpus_alloc=0, cpus_alloc=0):
    nodes = node_table(
        ["p100-1", "p100-2", "k80-1", "k80-2", "m40-1"],
        ["p100", "k80", "m40"],
        [[4, 0, 0], [4, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 1]],
        gpus_alloc=gpus_alloc,
        cpus=[56, 56, 28, 28, 28],
        cpus_alloc=cpus_alloc,
        mem=[256_000, 256_000, 128_000, 128_000, 128_000],
    )
    everywhere = np.arange(5, dtype=np.int32)
    partitions = (
        Partition("gpu", everywhere, True, 1, OverSubscribe.NO, 1, 7 * 86400.0, default=True),
        Partition("share", everywhere, True, 1, OverSubscribe.YES, 4, 7 * 86400.0),
        Partition("urgent", everywhere, True, 10, OverSubscribe.NO, 1, 7 * 86400.0),
    )
    return Snapshot(now, release, jobs, nodes, partitions)


def pending(n, **columns):
    """`n` eligible jobs of ascending id and descending priority."""
    columns.setdefault("submit_time", NOW - 3600.0 + np.arange(n))
    columns.setdefault("eligible_time", columns["submit_time"])
    columns.setdefault("priority", 10_000 - 7 * np.arange(n))
    return job_table(n, **columns)


@pytest.fixture
def snapshot_of():
    return make_snapshot


@pytest.fixture
def pending_jobs():
    return pending

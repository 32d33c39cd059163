"""The 15 numeric features."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from unit.generated_queues import UNSEEN, QueueSettings, generate
from unit.see.reference import reference_features

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.pools import job_pools
from rltuned.core.tables import Partition, Snapshot
from rltuned.decide.see.features import FEATURES, demand, features
from rltuned.decide.see.supply import pool_stats

NOW = 1_000_000.0


def snapshot_of(jobs, nodes, sharing=OverSubscribe.NO):
    everywhere = np.arange(len(nodes), dtype=np.int32)
    return Snapshot(NOW, (24, 11), jobs, nodes, (Partition("gpu", everywhere, True, 1, sharing, 1, np.inf),))


def numeric(snapshot, estimates=None):
    rows = snapshot.jobs.pending
    estimates = np.full(len(snapshot.jobs), np.nan) if estimates is None else estimates
    pools = job_pools(snapshot, rows)
    return features(snapshot, rows, demand(snapshot, rows, estimates), pools, pool_stats(snapshot, pools, estimates))


def column(snapshot, name, estimates=None):
    return numeric(snapshot, estimates)[:, FEATURES.index(name)]


def two_nodes(**columns):
    return node_table(["a", "b"], ["p100"], [[4], [4]], **columns)


def test_what_is_left_of_a_node_that_nobody_may_join_is_not_free_until_its_job_ends():
    """Slurm gave the job one of four GPUs and all memory."""
    left = two_nodes(gpus_alloc=[[1], [0]], cpus_alloc=[1, 0], mem_alloc=[256_000.0, 0.0])
    full = two_nodes(gpus_alloc=[[4], [0]], cpus_alloc=[1, 0], mem_alloc=[256_000.0, 0.0])
    ends = {"held_nodes": [[0], [], []], "end_time": [NOW + 3600.0, np.nan, np.nan]}
    states = [JobState.RUNNING, JobState.PENDING, JobState.PENDING]
    found = [
        numeric(snapshot_of(job_table(3, state=states, gpus=[gpus, 4, 8], mem=[np.nan, 1e3, 1e3], **ends), nodes))
        for gpus, nodes in ((1, left), (4, full))
    ]
    np.testing.assert_array_equal(*found)
    seconds = np.expm1(found[0][:, FEATURES.index("time_to_free")].astype(float) * np.log1p(30 * 86400.0))
    np.testing.assert_allclose(seconds, [0.0, 3600.0], rtol=1e-4)


def test_a_job_that_names_no_memory_joins_others_where_slurm_counts_none():
    nodes = two_nodes(gpus_alloc=[[1], [4]], cpus_alloc=[1, 4])
    jobs = job_table(2, mem=np.nan, partition="gpu")
    assert column(snapshot_of(jobs, nodes), "can_schedule_now").tolist() == [1.0, 1.0]


@pytest.mark.parametrize("distribution", [QueueSettings(), UNSEEN], ids=["usual", "unseen"])
@pytest.mark.parametrize("seed", range(6))
def test_features_equal_the_job_by_job_reference(seed, distribution):
    snapshot, estimates = generate(np.random.default_rng(seed), replace(distribution, jobs=(60, 120), nodes=(1, 12)))
    running = snapshot.jobs.running
    # Estimates of running jobs too, some of which they have outlived.
    estimates[running] = np.random.default_rng(seed).exponential(20_000.0, size=len(running))
    rows = snapshot.jobs.pending
    np.testing.assert_allclose(numeric(snapshot, estimates), reference_features(snapshot, rows, estimates), atol=2e-6)


@pytest.mark.parametrize("sharing", [OverSubscribe.NO, OverSubscribe.EXCLUSIVE])
def test_features_equal_the_reference_on_nodes_of_mixed_types_with_exclusive_jobs_and_local_disk(sharing):
    rng = np.random.default_rng(3)
    nodes = node_table(
        [f"n{i}" for i in range(6)],
        ["p100", "k80"],
        [[4, 2], [4, 0], [0, 4], [2, 2], [8, 0], [0, 0]],
        gpus_alloc=[[1, 0], [0, 0], [0, 4], [0, 1], [3, 0], [0, 0]],
        cpus_alloc=[8, 0, 16, 4, 24, 0],
        tmp=[0, 1e5, 2e5, 0, 1e6, 1e6],
        usable=[True, True, True, True, True, False],
    )
    n = 80
    jobs = job_table(
        n,
        held_nodes=[[0, 4], [2], [3], *([()] * (n - 3))],
        state=[JobState.RUNNING] * 3 + [JobState.PENDING] * (n - 3),
        start_time=[NOW - 900.0, NOW - 7200.0, NOW - 60.0, *([np.nan] * (n - 3))],
        end_time=[NOW + 2700.0, NOW + 1800.0, np.inf, *([np.nan] * (n - 3))],
        time_limit=rng.choice([600.0, 3600.0, 86400.0, np.inf], size=n),
        eligible_time=NOW - np.append(rng.exponential(9000.0, size=n - 2), [np.nan, -50.0]),
        gpus=[4, 4, 1, *rng.choice([0, 1, 2, 4, 8], size=n - 3)],
        gpu_type=["", "k80", "p100", *rng.choice(["", "p100", "k80", "h100"], size=n - 3).tolist()],
        nodes=rng.choice([1, 1, 2], size=n),
        cpus=rng.integers(0, 80, size=n),
        mem=rng.choice([np.nan, 1000.0, 200_000.0, 400_000.0], size=n),
        tmp=rng.choice([0.0, 1e5, 5e5], size=n),
        exclusive=rng.random(n) < 0.2,
    )
    snapshot = snapshot_of(jobs, nodes, sharing)
    estimates = rng.exponential(5000.0, size=n)
    rows = jobs.pending
    np.testing.assert_allclose(numeric(snapshot, estimates), reference_features(snapshot, rows, estimates), atol=2e-6)


ODD_TIMES = st.sampled_from([0.0, 1.0, NOW - 5.0, NOW + 1e6, 1e18, -1e18, np.nan, np.inf, -np.inf])
ODD_DURATIONS = st.sampled_from([0.0, 1e-3, 60.0, 1e6, 1e300, -5.0, np.nan, np.inf])


@st.composite
def odd_snapshots(draw):
    m = draw(st.integers(0, 4))
    types = draw(st.integers(0, 2))

    def per(count, values):
        return draw(st.lists(values, min_size=count, max_size=count))

    nodes = node_table(
        [f"n{i}" for i in range(m)],
        [f"t{i}" for i in range(types)],
        np.array(per(m * types, st.integers(0, 8)), dtype=np.int32).reshape(m, types),
        gpus_alloc=np.array(per(m * types, st.integers(0, 12)), dtype=np.int32).reshape(m, types),
        cpus=per(m, st.sampled_from([0, 1, 64])),
        cpus_alloc=per(m, st.sampled_from([0, 1, 70])),
        mem=per(m, st.sampled_from([0.0, 1.0, 1e6])),
        mem_alloc=per(m, st.sampled_from([0.0, 1e7])),
        usable=per(m, st.booleans()),
    )
    n = draw(st.integers(0, 6))
    states = per(n, st.sampled_from([JobState.PENDING, JobState.PENDING, JobState.RUNNING, JobState.OTHER]))
    held = [per(1, st.integers(0, m - 1)) if m and s == JobState.RUNNING else [] for s in states]
    jobs = job_table(
        n,
        held_nodes=held,
        state=np.array(states, dtype=np.int8),
        submit_time=per(n, ODD_TIMES),
        eligible_time=per(n, ODD_TIMES),
        start_time=per(n, ODD_TIMES),
        end_time=per(n, ODD_TIMES),
        time_limit=per(n, ODD_DURATIONS),
        nodes=per(n, st.sampled_from([0, 1, 3])),
        gpus=per(n, st.sampled_from([0, 1, 5, 100_000])),
        gpus_per_node=per(n, st.sampled_from([0, 1, 40_000])),
        gpu_type=per(n, st.sampled_from(["", "t0", "t1", "none"])),
        partition=per(n, st.sampled_from(["gpu", "gpu,gone", "gone", ""])),
        cpus=per(n, st.sampled_from([0, 1, 2**31 - 1])),
        mem=per(n, st.sampled_from([0.0, np.nan, 1e3, 1e300])),
        tmp=per(n, st.sampled_from([0.0, 1e9])),
    )
    return snapshot_of(jobs, nodes), np.array(per(n, ODD_DURATIONS), dtype=np.float64)

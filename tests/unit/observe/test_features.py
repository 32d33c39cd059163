"""The 14 numeric features."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.generated_queues import UNSEEN, QueueSettings, generate
from unit.observe.reference import reference_features

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.plain_tables import job_table, node_table
from rltuned.cluster.pools import job_pools
from rltuned.cluster.tables import JobState, Partition, Snapshot
from rltuned.observe import FEATURES, METADATA, demand, expected_ends, features, num_ways, pool_stats

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


def ways(snapshot):
    rows = snapshot.jobs.pending
    pools = job_pools(snapshot, rows)
    stats = pool_stats(snapshot, pools, np.full(len(snapshot.jobs), np.nan))
    return num_ways(snapshot.jobs, rows, pools, stats).tolist()


def two_nodes(**columns):
    return node_table(["a", "b"], ["p100"], [[4], [4]], **columns)


def test_there_are_the_seventeen_features_of_the_paper_and_the_time_limit():
    assert len(set(METADATA + FEATURES)) == 18
    assert FEATURES[-1] == "requested_limit"


@pytest.mark.parametrize("distribution", [QueueSettings(), UNSEEN], ids=["usual", "unseen"])
@pytest.mark.parametrize("seed", range(6))
def test_features_equal_the_job_by_job_reference(seed, distribution):
    snapshot, estimates = generate(np.random.default_rng(seed), replace(distribution, jobs=(60, 120), nodes=(1, 12)))
    running = snapshot.jobs.running
    # Estimates of running jobs too, some of which they have outlived.
    estimates[running] = np.random.default_rng(seed).exponential(20_000.0, size=len(running))
    rows = snapshot.jobs.pending
    np.testing.assert_allclose(numeric(snapshot, estimates), reference_features(snapshot, rows, estimates), atol=2e-6)


def test_features_equal_the_reference_on_nodes_of_mixed_types_with_exclusive_jobs_and_local_disk():
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
        eligible_time=NOW - rng.exponential(9000.0, size=n),
        gpus=[4, 4, 1, *rng.choice([0, 1, 2, 4, 8], size=n - 3)],
        gpu_type=["", "k80", "p100", *rng.choice(["", "p100", "k80", "h100"], size=n - 3).tolist()],
        nodes=rng.choice([1, 1, 2], size=n),
        cpus=rng.integers(0, 80, size=n),
        mem=rng.choice([np.nan, 1000.0, 200_000.0, 400_000.0], size=n),
        tmp=rng.choice([0.0, 1e5, 5e5], size=n),
        exclusive=rng.random(n) < 0.2,
    )
    snapshot = snapshot_of(jobs, nodes)
    estimates = rng.exponential(5000.0, size=n)
    rows = jobs.pending
    np.testing.assert_allclose(numeric(snapshot, estimates), reference_features(snapshot, rows, estimates), atol=2e-6)


def test_future_availability_depends_on_the_jobs_own_gpus_and_run_time():
    """As coded by the paper's authors the demand cancels and every job gets the same value."""
    jobs = job_table(
        4,
        held_nodes=[[0], (), (), ()],
        state=[JobState.RUNNING, *[JobState.PENDING] * 3],
        start_time=[NOW - 600.0, *[np.nan] * 3],
        end_time=[NOW + 1000.0, *[np.nan] * 3],
        gpus=[4, 4, 8, 4],
        time_limit=[1600.0, 600.0, 3600.0, 3600.0],
    )
    snapshot = snapshot_of(jobs, two_nodes(gpus_alloc=[[4], [0]], cpus_alloc=[4, 0]))
    # 4 of 8 are free: a job of 4 that ends before the running one leaves 0, one of 8 that ends after it leaves 0 of 8,
    # one of 4 that ends after it leaves 4.
    assert column(snapshot, "future_availability").tolist() == [0.5, 0.5, 0.75]


def test_requested_time_is_the_estimate_unless_the_limit_is_shorter():
    snapshot = snapshot_of(job_table(4, time_limit=[3600.0, 3600.0, np.inf, np.inf]), two_nodes())
    estimates = np.array([600.0, 7200.0, np.nan, 600.0])
    asked = demand(snapshot, snapshot.jobs.pending, estimates)
    assert asked.run_time.tolist() == [600.0, 3600.0, 365 * 86400.0, 600.0]


def test_requested_limit_stays_beside_an_estimate_and_is_1_without_a_limit():
    snapshot = snapshot_of(job_table(4, time_limit=[3600.0, 30 * 86400.0, np.inf, np.nan]), two_nodes())
    estimates = np.array([600.0, np.nan, 600.0, np.nan])
    expected = [np.log(3601.0) / np.log(1 + 30 * 86400.0), 1.0, 1.0, 1.0]
    assert column(snapshot, "requested_limit", estimates).tolist() == pytest.approx(expected)


def test_wait_is_zero_for_a_job_that_is_not_eligible_or_will_be():
    snapshot = snapshot_of(job_table(3, eligible_time=[NOW - 50.0, np.nan, NOW + 50.0]), two_nodes())
    assert demand(snapshot, np.arange(3), np.full(3, np.nan)).wait.tolist() == [50.0, 0.0, 0.0]


def test_a_running_job_that_outlived_its_estimate_is_expected_to_run_as_long_again_but_not_past_its_limit():
    jobs = job_table(
        4,
        state=JobState.RUNNING,
        start_time=NOW - 1000.0,
        end_time=[NOW + 5000.0, NOW + 5000.0, NOW + 300.0, np.inf],
    )
    snapshot = snapshot_of(jobs, two_nodes())
    ends = expected_ends(snapshot, np.arange(4), np.array([1500.0, 700.0, 700.0, np.nan]))
    assert (ends - NOW).tolist() == [500.0, 1000.0, 300.0, np.inf]


def test_a_pool_of_scattered_gpus_is_fragmented_and_a_pool_of_whole_nodes_is_not():
    scattered = snapshot_of(job_table(1), two_nodes(gpus_alloc=[[2], [2]], cpus_alloc=[2, 2]))
    whole = snapshot_of(job_table(1), two_nodes(gpus_alloc=[[4], [0]], cpus_alloc=[4, 0]))
    full = snapshot_of(job_table(1), two_nodes(gpus_alloc=[[4], [4]], cpus_alloc=[4, 4]))
    assert [column(each, "fragmentation")[0] for each in (scattered, whole, full)] == [0.5, 0.0, 0.0]


def test_one_gpu_has_a_node_to_itself_or_a_shared_one():
    jobs = job_table(1, gpus=1, gpus_per_node=1)
    assert ways(snapshot_of(jobs, two_nodes(gpus_alloc=[[1], [0]], cpus_alloc=[1, 0]))) == [2]
    assert ways(snapshot_of(jobs, two_nodes(gpus_alloc=[[1], [1]], cpus_alloc=[1, 1]))) == [1]
    assert ways(snapshot_of(jobs, two_nodes())) == [1]


def test_an_exclusive_job_or_partition_has_only_idle_nodes():
    nodes = two_nodes(gpus_alloc=[[1], [0]], cpus_alloc=[1, 0])
    assert ways(snapshot_of(job_table(1, exclusive=True), nodes)) == [1]
    assert ways(snapshot_of(job_table(1), nodes, sharing=OverSubscribe.EXCLUSIVE)) == [1]
    assert ways(snapshot_of(job_table(1), nodes)) == [2]


def test_gpus_are_split_over_nodes_only_where_the_job_lets_slurm():
    nodes = two_nodes(gpus_alloc=[[2], [2]], cpus_alloc=[2, 2])
    assert ways(snapshot_of(job_table(1, gpus=4), nodes)) == [1]
    assert ways(snapshot_of(job_table(1, gpus=4, gpus_per_node=4), nodes)) == [0]


@pytest.mark.parametrize(
    ("short_of", "columns"),
    [
        ("CPUs", {"cpus": 64}),
        ("memory", {"mem": 300_000.0}),
        ("local disk", {"tmp": 10.0}),
        ("GPUs", {"gpus": 9}),
        ("its type", {"gpu_type": "h100"}),
    ],
)
def test_a_job_that_lacks_one_resource_cannot_be_scheduled_now(short_of, columns):
    nodes = two_nodes(cpus_alloc=[1, 1])
    assert column(snapshot_of(job_table(1), nodes), "can_schedule_now")[0] == 1.0
    assert column(snapshot_of(job_table(1, **columns), nodes), "can_schedule_now")[0] == 0.0, short_of


def test_jobs_without_gpus_on_nodes_without_gpus_are_ranked_like_any_other():
    snapshot = snapshot_of(job_table(2, gpus=0, cpus=[1, 63]), node_table(["a"], [], np.zeros((1, 0)), cpus=64))
    values = numeric(snapshot)
    assert values[:, FEATURES.index("can_schedule_now")].tolist() == [1.0, 1.0]
    assert values[0, FEATURES.index("req_cpu")] < values[1, FEATURES.index("req_cpu")]


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


@settings(max_examples=300, deadline=None)
@given(odd_snapshots())
def test_any_cluster_and_any_jobs_give_finite_values_between_0_and_1(case):
    snapshot, estimates = case
    values = numeric(snapshot, estimates)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    assert values.min(initial=0.0) >= 0.0
    assert values.max(initial=1.0) <= 1.0

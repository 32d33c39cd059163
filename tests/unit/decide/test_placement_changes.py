"""What of a placement becomes a change: which jobs are isolated or kept off nodes, which never, and how it ends."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.cluster.build import job_table
from rltuned.cluster.changes import Applied, AppliedChanges, ApplyMode, Field, OverSubscribe
from rltuned.cluster.hostlist import expand
from rltuned.cluster.pools import job_pools
from rltuned.cluster.tables import JobState, Partition
from rltuned.config import Config, DecideSection, PlacementApply, PlacementSection, ScopeSection
from rltuned.decide import plan, record
from rltuned.policy.heuristics import by_name

from .conftest import NOW, make_snapshot, pending

NODES = ("p100-1", "p100-2", "k80-1", "k80-2", "m40-1")


def clustered(jobs, **columns):
    """The small cluster with a partition of each OverSubscribe setting."""
    snapshot = make_snapshot(jobs, **columns)
    everywhere = np.arange(5, dtype=np.int32)
    extra = (
        Partition("force", everywhere, True, 1, OverSubscribe.FORCE, 4, 7 * 86400.0),
        Partition("excl", everywhere, True, 1, OverSubscribe.EXCLUSIVE, 1, 7 * 86400.0),
    )
    return replace(snapshot, partitions=(*snapshot.partitions, *extra))


def hungry(**columns):
    """One job that takes most CPUs of a P100 node and one of its GPUs: the integer program gives it a node of its
    own."""
    return pending(1, gpus=1, gpu_type="p100", cpus=50, **columns)


def decided(snapshot, how=PlacementApply.OVERSUBSCRIBE, applied=None, by_type=None, **sections):
    config = Config(placement=PlacementSection(apply=how), **sections)
    return plan(snapshot, by_name("fifo"), config, applied, by_type=by_type)


def slow_k80(snapshot):
    """What each job is expected to take on each type: on a K80 ten times as long as on a P100."""
    hours = {"p100": 1.0, "k80": 10.0, "m40": 1.5}
    return np.array([[3600.0 * hours[name] for name in snapshot.nodes.gpu_types]] * len(snapshot.jobs))


def changes_of(result, field):
    return [(change.job_id, change.before, change.after) for change in result.changes if change.field is field]


def remembered(snapshot, row=0, **values):
    job, submitted = int(snapshot.jobs.job_id[row]), int(snapshot.jobs.submit_time[row])
    return AppliedChanges({job: Applied(job, submitted, NOW - 60, **values)})


@pytest.mark.parametrize("partition", ["gpu", "share", "gpu,share"])
def test_a_job_that_spreads_now_is_isolated(partition):
    result = decided(clustered(hungry(partition=[partition])))
    assert record(result).placement.ways[1].kind == "spread"
    assert changes_of(result, Field.OVERSUBSCRIBE) == [(1, "OK", "NO")]


@pytest.mark.parametrize("partition", ["force", "excl", "gpu,force", "gpu,unknown"])
def test_nothing_is_written_where_the_partition_gives_it_no_effect(partition):
    result = decided(clustered(hungry(partition=[partition])))
    assert changes_of(result, Field.OVERSUBSCRIBE) == []


@pytest.mark.parametrize(
    ("reason", "isolated"),
    [
        ("", True),
        ("None", True),
        ("Priority", True),
        ("Resources", True),
        ("AssocMaxJobsLimit", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("Licenses", False),
        ("ReqNodeNotAvail, UnavailableNodes:p100-1", False),
        ("a-reason-of-tomorrow", False),
    ],
)
def test_only_a_job_that_waits_for_nothing_but_room_is_placed(reason, isolated):
    result = decided(clustered(hungry(reason=[reason])))
    assert len(result.front.rows) == isolated
    assert len(changes_of(result, Field.OVERSUBSCRIBE)) == isolated
    untyped = clustered(pending(1, gpus=1, reason=[reason]))
    lists = changes_of(decided(untyped, PlacementApply.EXCLUDE_NODES, by_type=slow_k80(untyped)), Field.EXC_NODES)
    assert len(lists) == isolated


@pytest.mark.parametrize(
    ("how", "field"),
    [(PlacementApply.OVERSUBSCRIBE, Field.OVERSUBSCRIBE), (PlacementApply.EXCLUDE_NODES, Field.EXC_NODES)],
)
def test_the_tasks_of_an_array_are_not_bound_by_the_one_that_starts_now(how, field):
    for tasks, bound in ((7, 0), (1, 1)):
        alone = how is PlacementApply.OVERSUBSCRIBE
        snapshot = clustered(hungry(array_tasks=tasks) if alone else pending(1, gpus=1, array_tasks=tasks))
        assert len(changes_of(decided(snapshot, how, by_type=slow_k80(snapshot)), field)) == bound


@pytest.mark.parametrize("by_type", [None, "alike"])
def test_without_a_difference_of_types_nothing_is_planned_and_no_list_written(by_type):
    snapshot = clustered(pending(9, gpus=1))
    alike = np.full((len(snapshot.jobs), len(snapshot.nodes.gpu_types)), 3600.0)
    result = decided(snapshot, PlacementApply.EXCLUDE_NODES, by_type=None if by_type is None else alike)
    assert result.front.placement is None
    assert changes_of(result, Field.EXC_NODES) == []


def test_by_default_nothing_but_the_order_is_changed():
    result = plan(clustered(hungry()), by_name("fifo"), Config())
    assert result.front.placement is None
    assert {Field.OVERSUBSCRIBE, Field.EXC_NODES}.isdisjoint(change.field for change in result.changes)


def test_a_full_cluster_gets_no_toggle():
    result = decided(clustered(hungry(), gpus_alloc=[[4, 0, 0], [4, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 1]]))
    assert changes_of(result, Field.OVERSUBSCRIBE) == []


@pytest.mark.parametrize("shown", ["YES", "NO", "USER", "MCS", "TOPO", "FORCE"])
def test_a_value_that_is_not_the_default_is_never_touched(shown):
    result = decided(clustered(hungry(oversubscribe=[shown])))
    assert changes_of(result, Field.OVERSUBSCRIBE) == []


def test_nodes_of_a_job_that_we_isolated_are_closed_even_where_slurm_does_not_show_it():
    # Job 2 runs on p100-1 with one of four GPUs; since 26.05 it shows what a default job shows.
    jobs = job_table(
        2,
        [(), (0,)],
        state=[int(JobState.PENDING), int(JobState.RUNNING)],
        submit_time=NOW - 600,
        eligible_time=NOW - 600,
        start_time=[np.nan, NOW - 60],
        end_time=[np.nan, NOW + 86_400],
        gpus=[4, 1],
        gpu_type="p100",
        oversubscribe=OverSubscribe.UNKNOWN.value,
    )
    snapshot = clustered(jobs, release=(26, 5), gpus_alloc=[[1, 0, 0]] + [[0, 0, 0]] * 4, cpus_alloc=[1, 0, 0, 0, 0])
    smaller = replace(snapshot, jobs=replace(jobs, gpus=np.array([3, 1], dtype=np.int32)))
    packed = record(decided(smaller)).placement.ways[1]
    assert packed.nodes == ("p100-1",), "beside a default job there is room"
    applied = remembered(smaller, 1, oversubscribe=OverSubscribe.NO, oversubscribe_before=OverSubscribe.UNKNOWN)
    apart = record(decided(smaller, applied=applied)).placement.ways[1]
    assert apart.nodes == ("p100-2",)


def test_a_node_list_of_ours_is_cleared_when_the_plan_does_not_want_it_any_more():
    full = clustered(
        hungry(exc_nodes=["m40-1,p100-2"]), gpus_alloc=[[4, 0, 0], [4, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 1]]
    )
    applied = remembered(full, exc_nodes="m40-1,p100-2", exc_nodes_before="m40-1")
    cleared = [(1, "m40-1,p100-2", "m40-1")]
    assert changes_of(decided(full, PlacementApply.EXCLUDE_NODES, applied), Field.EXC_NODES) == cleared
    # Nor is it forgotten when the admin asks for another way of applying placement, or for none.
    assert changes_of(decided(full, PlacementApply.OVERSUBSCRIBE, applied), Field.EXC_NODES) == cleared
    assert changes_of(decided(full, PlacementApply.OFF, applied), Field.EXC_NODES) == cleared


def test_a_node_list_of_ours_goes_with_the_job_that_leaves_the_scope():
    snapshot = clustered(hungry(exc_nodes=["p100-2"], user=["bob"]))
    applied = remembered(snapshot, exc_nodes="p100-2")
    scope = ScopeSection(exclude_users=("bob",))
    assert decided(snapshot, PlacementApply.EXCLUDE_NODES, applied, scope=scope).withdraw == (1,)
    assert decided(snapshot, PlacementApply.EXCLUDE_NODES, applied).withdraw == ()


def test_a_planned_job_keeps_its_users_own_exclusions():
    snapshot = clustered(pending(1, gpus=1, exc_nodes=["p100-1"]))
    result = decided(snapshot, PlacementApply.EXCLUDE_NODES, by_type=slow_k80(snapshot))
    ((_, before, after),) = changes_of(result, Field.EXC_NODES)
    assert before == "p100-1"
    assert set(expand(str(after))) == {"p100-1", "k80-1", "k80-2"}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from(list(ApplyMode)))
def test_no_plan_ever_excludes_every_capable_node(seed, n, mode):
    rng = np.random.default_rng(seed)
    limits = np.array([[4, 0, 0], [4, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 1]])
    alloc = rng.integers(0, limits + 1)
    jobs = pending(
        n,
        gpus=rng.integers(0, 5, n),
        nodes=rng.choice([1, 1, 1, 2], n),
        gpu_type=rng.choice(["", "p100", "k80", "m40"], n).tolist(),
        cpus=rng.choice([1, 4, 20, 50], n),
        mem=rng.choice([1_000.0, 60_000.0, np.nan], n),
        exclusive=rng.random(n) < 0.1,
        array_tasks=rng.choice([0, 0, 0, 5], n),
        exc_nodes=rng.choice(["", "", "p100-1", "k80-[1-2]", "m40-1,p100-2"], n).tolist(),
        reason=rng.choice(["", "Priority", "Resources", "AssocMaxJobsLimit"], n).tolist(),
        partition=rng.choice(["gpu", "share", "force", "excl", "gpu,share"], n).tolist(),
    )
    snapshot = clustered(jobs, gpus_alloc=alloc, cpus_alloc=rng.integers(0, 29, 5))
    by_type = rng.uniform(600.0, 36_000.0, (len(jobs), 3))
    result = decided(snapshot, PlacementApply.EXCLUDE_NODES, by_type=by_type, decide=DecideSection(mode=mode))
    pools = job_pools(snapshot, jobs.pending)
    for change in result.changes:
        if change.field is not Field.EXC_NODES:
            continue
        row = jobs.row_of[change.job_id]
        excluded = set(expand(str(change.after)))
        capable = {NODES[node] for node in np.flatnonzero(pools.nodes[pools.pool_of[row]])}
        assert len(capable - excluded) >= max(int(jobs.nodes[row]), 1)
        assert set(expand(jobs.exc_nodes.value(row))) <= excluded


def test_a_job_is_kept_off_slow_types_that_cost_it_much_until_it_is_old():
    snapshot = clustered(pending(1, gpus=1))
    by_type = slow_k80(snapshot)
    result = decided(snapshot, PlacementApply.EXCLUDE_NODES, by_type=by_type)
    ((_, _, after),) = changes_of(result, Field.EXC_NODES)
    assert set(expand(str(after))) == {"k80-1", "k80-2"}  # and not the m40, which is little slower
    # Lists need no integer program, so no node is named that nobody tells Slurm.
    assert (record(result).placement.outcome, record(result).placement.ways) == ("off", {})
    old = decided(snapshot, PlacementApply.EXCLUDE_NODES, by_type=by_type, decide=DecideSection(age_bound=1.0))
    assert changes_of(old, Field.EXC_NODES) == []
    assert changes_of(decided(snapshot, by_type=by_type), Field.EXC_NODES) == []

"""What of a placement becomes a change: which jobs are isolated, and which never."""

from dataclasses import replace

import numpy as np
import pytest

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied, Field, JobState, OverSubscribe
from rltuned.core.config import Config, PlacementApply, PlacementSection
from rltuned.core.plain_tables import job_table
from rltuned.core.tables import Partition
from rltuned.decide.decision import record
from rltuned.decide.plan import plan
from rltuned.decide.rank.heuristics import by_name

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


def decided(snapshot, how=PlacementApply.OVERSUBSCRIBE, applied=None, **sections):
    config = Config(placement=PlacementSection(apply=how), **sections)
    return plan(snapshot, by_name("fifo"), config, applied)


def changes_of(result, field):
    return [(change.job_id, change.before, change.after) for change in result.changes if change.field is field]


def remembered(snapshot, row=0, **values):
    job, submitted = int(snapshot.jobs.job_id[row]), int(snapshot.jobs.submit_time[row])
    return AppliedChanges({job: Applied(job, submitted, **values)})


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


def test_the_tasks_of_an_array_are_not_bound_by_the_one_that_starts_now():
    for tasks, bound in ((7, 0), (1, 1)):
        assert len(changes_of(decided(clustered(hungry(array_tasks=tasks))), Field.OVERSUBSCRIBE)) == bound


def test_by_default_nothing_but_the_order_is_changed():
    result = plan(clustered(hungry()), by_name("fifo"), Config())
    assert result.front.placement is None
    assert Field.OVERSUBSCRIBE not in {change.field for change in result.changes}


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

"""Ten jobs on two nodes, worked out by hand: what Slurm would do, and so both simulators.

A job is (submit, run, limit, GPUs). The queue is in order of submission, backfill runs at every event, and a node is
taken by best fit, the first on ties. n0 and n1 are the nodes; "until 60" means that the job's limit ends then.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracles import reference
from unit.simulate.instances import SIMULATORS, Simulator, cluster, given, jobs_of, partition

from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate import kernel
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Backfill, Fit, JobFate, SimulationResult, SimulationSettings

AT_EVENTS = SimulationSettings(backfill=Backfill.EASY, fit=Fit.BEST, bf_interval=0.0)


@pytest.fixture(params=SIMULATORS.values(), ids=SIMULATORS)
def simulate(request: pytest.FixtureRequest) -> Simulator:
    simulator: Simulator = request.param
    return simulator


def run(
    simulate: Simulator,
    shape: ClusterShape,
    rows: list[tuple[float, float, float, int]],
    settings: SimulationSettings = AT_EVENTS,
    **columns: Any,
) -> SimulationResult:
    submit, run_time, limit, gpus = zip(*rows, strict=True)
    return simulate(
        shape, jobs_of(submit, run_time, gpus, **columns), given(limit), RuleRanker(by_name("fifo")), settings
    )


def nodes(result: SimulationResult, row: int) -> set[int]:
    return {int(node) for node in result.node_idx[result.node_ptr[row] : result.node_ptr[row + 1]]}


def test_a_backfilled_job_does_not_delay_the_reservation_of_the_blocked_one(simulate):
    rows = [
        (0, 100, 100, 4),  # 0: n0 until 100
        (0, 60, 60, 2),  # 1: n1 until 60
        (0, 50, 50, 8),  # 2: wants both nodes whole: blocked, reserved at 100, when job 0 ends
        (0, 100, 100, 2),  # 3: the rest of n1, until exactly 100: backfilled at 0
        (0, 101, 101, 1),  # 4: at 60 n1 has two GPUs, but it would be there until 161: not before job 2 has gone at 150
        (10, 40, 40, 2),  # 5: at 60, until exactly 100
        (20, 10, 41, 1),  # 6: would end at 70, but its limit is 101; 150
        (30, 5, 5, 1),  # 7: at 60 job 5 has the last GPUs; 150 (n0, with 4 and 6)
        (110, 30, 30, 4),  # 8: 150, n1
        (120, 20, 20, 2),  # 9: n0 has one GPU left at 150, two when job 7 ends at 155
    ]
    result = run(simulate, cluster([4, 4]), rows)
    assert result.start.tolist() == [0, 0, 100, 0, 150, 60, 150, 150, 150, 155]
    assert result.backfilled.tolist() == [row in {3, 5} for row in range(10)]


def test_a_job_may_outlast_the_reservation_on_what_the_reserved_job_leaves(simulate):
    # Job 1 is reserved at 50 with 3 of the 4 GPUs of n0: job 2 may have the fourth for as long as it likes, job 3 not.
    rows = [(0, 50, 50, 2), (0, 10, 10, 3), (0, 500, 500, 1), (0, 500, 500, 1)]
    assert run(simulate, cluster([4]), rows).start.tolist() == [0, 50, 0, 60]


def test_sched_backfill_reserves_whole_nodes_for_every_job_that_it_looks_at(simulate):
    # One node of 4 GPUs, plans in whole minutes. Job 0: until 600. Job 1 (4 GPUs) is planned at 600 until 720 (its 700
    # rounded up), job 2 (4 GPUs) from then until 840. Job 3 (1 GPU, until 900) could run beside job 0 now, and EASY
    # would refuse it for job 1's sake as well. Job 4, until 599, fits in front of all plans.
    rows = [(0, 600, 600, 2), (0, 100, 100, 4), (0, 100, 100, 4), (0, 100, 900, 1), (0, 599, 599, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=60.0)
    assert run(simulate, cluster([4]), rows, settings).start.tolist() == [0, 600, 700, 800, 0]
    # With a look at two jobs only, nobody gets to job 4 …
    short = replace(settings, bf_max_job_test=2)
    assert run(simulate, cluster([4]), rows, short).start.tolist() == [0, 600, 700, 800, 800]
    # … and what cannot start within bf_window reserves nothing: job 3 starts now.
    near = replace(settings, bf_window=300.0)
    assert run(simulate, cluster([4]), rows, near).start.tolist() == [0, 600, 700, 0, 0]


@pytest.mark.parametrize(
    ("busy", "limits", "starts"),
    [
        (3, {}, [0, 100, 0, 40]),
        (3, {"bf_max_job_user": 2}, [0, 100, 0, 40]),
        # Job 1 is all of ann's that is looked at: job 2 waits for the main pass, and is none of the two of the pass.
        (3, {"bf_max_job_user": 1}, [0, 100, 200, 0]),
        (3, {"bf_max_job_user": 1, "bf_max_job_test": 2}, [0, 100, 200, 0]),
        (3, {"bf_max_job_part": 1}, [0, 100, 200, 200]),
        (2, {}, [0, 100, 0, 0]),
        (2, {"bf_max_job_start": 1}, [0, 100, 0, 40]),
    ],
)
def test_a_pass_of_sched_backfill_looks_at_so_many_jobs_of_a_user_and_a_partition(simulate, busy, limits, starts):
    # One node of 4 GPUs. Job 0 has some of them until 100, job 1 waits for all; jobs 2 and 3 of one GPU fit beside.
    rows = [(0, 100, 100, busy), (0, 100, 100, 4), (0, 40, 40, 1), (0, 40, 40, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=1.0, **limits)
    result = run(simulate, cluster([4]), rows, settings, user=["ann", "ann", "ann", "bob"])
    assert result.start.tolist() == starts


@pytest.mark.parametrize(("age", "start"), [(0, 800), (200, 800), (201, 200)])
def test_a_job_keeps_nothing_from_others_before_it_has_waited_for_bf_min_age_reserve(simulate, age, start):
    # One node of 4 GPUs. Job 0 has two until 600, jobs 1 and 2 wait for all, and are planned at 600 and 700. Job 3 of
    # one GPU comes at 200 and may run for 900 s, which is in their way, unless they are too young to be planned.
    rows = [(0, 600, 600, 2), (0, 100, 100, 4), (0, 100, 100, 4), (200, 100, 900, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_min_age_reserve=age)
    assert run(simulate, cluster([4]), rows, settings).start.tolist() == [0, 600, 700, start]


@pytest.mark.parametrize(("count", "start"), [(0, 700), (1, 0), (2, 700)])
def test_bf_job_part_count_reserve_jobs_of_a_pass_keep_nodes_from_others(simulate, count, start):
    # Jobs 0 and 1 have three GPUs each of two nodes until 600, jobs 2 and 3 want a node and are planned then. Job 4,
    # of one GPU until 900, would be in their way: on n1 only if job 3 is planned, too.
    rows = [*[(0, 600, 600, 3)] * 2, *[(0, 100, 100, 4)] * 2, (0, 100, 900, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_job_part_count_reserve=count)
    assert run(simulate, cluster([4, 4]), rows, settings).start.tolist() == [0, 0, 600, 600, start]


def test_each_partition_has_bf_job_part_count_reserve_jobs_that_keep_nodes(simulate):
    # As above with a node for each partition: job 3 is the first of right.
    shape = cluster([4, 4], partitions=[partition("left", [0]), partition("right", [1])])
    rows = [*[(0, 600, 600, 3)] * 2, *[(0, 100, 100, 4)] * 2, (0, 100, 900, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_job_part_count_reserve=1)
    names = ["left", "right", "left", "right", "right"]
    assert run(simulate, shape, rows, settings, partition=names).start.tolist() == [0, 0, 600, 600, 700]


def test_a_job_that_is_not_planned_is_none_of_bf_job_part_count_reserve(simulate):
    # Job 2 wants both nodes, which are free together at 2000, after the window. So job 3, planned on n1 at 600, is the
    # first one, and of jobs 4 and 5 one at a time runs on n0.
    rows = [(0, 2000, 2000, 3), (0, 600, 600, 3), (0, 100, 100, 8), (0, 100, 100, 4), *[(0, 100, 900, 1)] * 2]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_job_part_count_reserve=1, bf_window=1200.0)
    assert run(simulate, cluster([4, 4]), rows, settings).start.tolist() == [0, 0, 2000, 600, 0, 100]


@pytest.mark.parametrize("backfill", [Backfill.EASY, Backfill.SLURM])
@pytest.mark.parametrize(("longest", "starts", "on"), [(np.inf, [0, 0, 50], 0), (300.0, [0, 50, 1], 1)])
def test_no_job_of_a_longer_limit_starts_on_a_node_of_a_floating_reservation(simulate, backfill, longest, starts, on):
    # Two nodes of 4 GPUs. Jobs 0 and 1 may run for 301 s: where n1 takes 300 s at most, job 1 waits for n0, and keeps
    # nothing of n1 from job 2, which may run for 300 s.
    shape = replace(cluster([4, 4]), longest=np.array([np.inf, longest]))
    result = run(
        simulate, shape, [(0, 50, 301, 4), (0, 50, 301, 4), (1, 50, 300, 4)], replace(AT_EVENTS, backfill=backfill)
    )
    assert result.start.tolist() == starts
    assert nodes(result, 2) == {on}


@pytest.mark.parametrize(("age", "start"), [(0, 200), (49, 200), (50, 49)])
def test_a_young_job_does_not_block_its_partition_in_the_main_pass(simulate, age, start):
    # Job 2 comes at 49 and fits beside job 0; job 1, which wants all, blocks the partition once it is old enough.
    rows = [(0, 100, 100, 3), (0, 100, 100, 4), (49, 40, 40, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.NONE, bf_min_age_reserve=age)
    assert run(simulate, cluster([4]), rows, settings).start.tolist() == [0, 100, start]


@pytest.mark.parametrize(
    ("settings", "starts"),
    [
        ({"default_queue_depth": 3}, [0, 100, 150, 10, 20]),
        # At 10, jobs 1 to 3 are tried; job 2 counts, though job 1 has blocked its partition. At 20, so many again.
        ({"default_queue_depth": 2}, [0, 100, 150, 10, 20]),
        ({"default_queue_depth": 1}, [0, 100, 150, 60, 60]),
        ({"default_queue_depth": 0}, [0, 100, 150, 60, 60]),
        ({"default_queue_depth": 0, "sched_interval": 15.0}, [0, 105, 165, 15, 30]),
        ({"default_queue_depth": 0, "backfill": Backfill.EASY, "bf_interval": 30.0}, [0, 100, 150, 30, 30]),
    ],
)
def test_a_main_pass_tries_default_queue_depth_jobs_and_one_more_and_all_at_each_whole_minute(
    simulate, settings, starts
):
    shape = cluster([4, 4], partitions=[partition("left", [0]), partition("right", [1])])
    rows = [(0, 100, 100, 4), (0, 50, 50, 4), (0, 50, 50, 4), (10, 5, 5, 1), (20, 5, 5, 1)]
    settings = replace(AT_EVENTS, **{"backfill": Backfill.NONE, **settings})
    names = ["left", "left", "left", "right", "right"]
    assert run(simulate, shape, rows, settings, partition=names).start.tolist() == starts


@pytest.mark.parametrize(("depth", "starts"), [(3, [10] * 4), (2, [10, 10, 10, 60]), (0, [10, 15, 60, 60])])
def test_jobs_that_a_main_pass_starts_count_too(simulate, depth, starts):
    # What ends at 15 is an event, and brings the next pass of a few jobs.
    rows = [(10, 5 if depth == 0 else 100, 100, 1), *[(10, 100, 100, 1)] * 3]
    settings = replace(AT_EVENTS, backfill=Backfill.NONE, default_queue_depth=depth)
    assert run(simulate, cluster([4]), rows, settings).start.tolist() == starts


def test_where_no_partition_is_open_the_depth_brings_no_further_pass(simulate):
    rows = [(10, 100, 100, 4), *[(20, 100, 100, 4)] * 3]
    settings = replace(AT_EVENTS, backfill=Backfill.NONE, default_queue_depth=1)
    found = run(simulate, cluster([4]), rows, settings)
    assert (found.start.tolist(), found.passes) == ([10, 110, 210, 310], 5)


@pytest.mark.parametrize(("resolution", "starts"), [(1.0, [0, 100, 150, 0]), (1000.0, [0, 100, 150, 150])])
def test_a_reservation_lasts_whole_steps_however_short_the_job_is(simulate, resolution, starts):
    # Two nodes of one GPU. Job 1 wants both and is planned at 100, when job 0 ends, until 150. Job 2 would be in its
    # way. Job 3 ends before 100, but in steps of 1000 both nodes are reserved from 0 until 1000.
    rows = [(0, 100, 100, 1), (0, 50, 50, 2), (0, 200, 200, 1), (0, 90, 90, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=resolution)
    assert run(simulate, cluster([1, 1]), rows, settings).start.tolist() == starts


def test_a_reservation_ends_with_the_step_in_which_its_job_does(simulate):
    # n0 is the partition left, both nodes are all; steps of 60. Job 1 is planned on n0 at 100 until 150: from 60 to
    # 180. So job 2, on both nodes, is planned at 180, and job 3 may have n1 until 150.
    shape = cluster([1, 1], partitions=[partition("left", [0]), partition("all", [0, 1])])
    rows = [(0, 100, 100, 1), (0, 50, 50, 1), (0, 50, 50, 2), (0, 150, 150, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=60.0)
    result = run(simulate, shape, rows, settings, partition=["left", "left", "all", "all"])
    assert result.start.tolist() == [0, 100, 150, 0]


def test_what_begins_in_the_last_step_of_the_window_reserves_nothing(simulate):
    # As above in steps of 60. Plans end at 120, the last multiple within the window, for all that it ends at 130: job
    # 1, planned at 130, does not keep job 2 off the second node.
    rows = [(0, 130, 130, 1), (0, 50, 50, 2), (0, 200, 200, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=60.0, bf_window=130.0)
    assert run(simulate, cluster([1, 1]), rows, settings).start.tolist() == [0, 200, 0]
    wide = replace(settings, bf_window=180.0)
    assert run(simulate, cluster([1, 1]), rows, wide).start.tolist() == [0, 130, 180]


def test_backfill_starts_nothing_while_the_window_ends_before_the_next_step(simulate):
    # Job 2 would fit beside job 0 and nothing is reserved: at 50 the window ends at 150, its last step at 0.
    rows = [(0, 100, 100, 1), (0, 50, 50, 2), (50, 10, 10, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=1000.0, bf_window=100.0)
    assert run(simulate, cluster([1, 1]), rows, settings).start.tolist() == [0, 100, 150]
    wide = replace(settings, bf_resolution=1.0)
    assert run(simulate, cluster([1, 1]), rows, wide).start.tolist() == [0, 100, 50]


@pytest.mark.parametrize(("limit", "starts", "node"), [(105, [0, 0, 105, 0], 0), (110, [0, 0, 100, 0], 1)])
def test_sched_backfill_expects_a_start_when_a_group_of_near_ends_is_over(simulate, limit, starts, node):
    # Two nodes of 2 GPUs, worst fit: job 0 holds one GPU of n0 until 100, job 1 one of n1 until 110. Job 2 wants a
    # whole node. 100 is raised to 120, and all who end by 150 are one group: job 2 is planned on n0 at 110, not at 100.
    # So job 3, until 105, may go to n0 now (and job 2 waits for it until 105). Until 110 it may not, not even to that
    # very second: it goes to n1.
    rows = [(0, 100, 100, 1), (0, 110, 110, 1), (0, 10, 10, 2), (0, limit, limit, 1)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=1.0, fit=Fit.WORST)
    result = run(simulate, cluster([2, 2]), rows, settings)
    assert result.start.tolist() == starts
    assert nodes(result, 3) == {node}


def test_cons_tres_goes_by_runs_of_neighbours_and_their_free_cpus(simulate):
    # CPUs 4, 8, 2, 8, 8 and GPUs 2, 2, 1, 2, 3. Jobs of 2 GPUs have the runs n0-n1 (12 CPUs) and n3-n4 (16). Job 0 goes
    # to n0, the smaller of the first run. Job 1, two nodes of 2 GPUs: n1 alone is no run of two: n3 and n4. Job 2, one
    # GPU: the runs are now n1-n2 (10) and n4 (8): n4. Job 3, 3 GPUs in all: no node has them: n1 gives 2, n2 one.
    shape = cluster([2, 2, 1, 2, 3], cpus=[4, 8, 2, 8, 8])
    rows = [(0, 50, 50, 2), (0, 50, 50, 4), (0, 50, 50, 1), (0, 50, 50, 3)]
    result = run(simulate, shape, rows, replace(AT_EVENTS, fit=Fit.SLURM), nodes=[1, 2, 1, 2])
    assert result.start.tolist() == [0, 0, 0, 0]
    assert [nodes(result, row) for row in range(4)] == [{0}, {3, 4}, {4}, {1, 2}]


def test_nodes_of_a_smaller_weight_go_first_whatever_else_would_fit_better(simulate):
    # Node 0 has the fewest CPUs; but node 3, then 1 and 2, weigh less. A job of two nodes takes the rest of the lighter
    # ones, though no run of them has two.
    shape = cluster([4] * 4, cpus=[8, 16, 16, 64], weight=[9, 5, 5, 1])
    rows = [(0, 100, 100, 4), (0, 100, 100, 4), (0, 100, 100, 8)]
    result = run(simulate, shape, rows, replace(AT_EVENTS, fit=Fit.SLURM), nodes=[1, 1, 2])
    assert result.start.tolist() == [0, 0, 0]
    assert [nodes(result, row) for row in range(3)] == [{3}, {1}, {0, 2}]


def test_the_first_job_of_a_partition_that_does_not_fit_blocks_that_partition_only(simulate):
    # n0 is the partition left, n1 the partition right. No backfill: only blocking decides.
    shape = cluster([4, 4], partitions=[partition("left", [0]), partition("right", [1])])
    rows = [
        (0, 100, 100, 4),  # 0 left: 0
        (0, 50, 50, 4),  # 1 left: 100, and blocks left
        (0, 30, 30, 3),  # 2 right: 0, although left is blocked
        (0, 20, 20, 2),  # 3 right: one GPU is free: blocks right until 30
        (0, 10, 10, 1),  # 4 right: would fit, stands behind 3: 30
        (5, 10, 10, 4),  # 5 right: 50, when 3 ends
        (10, 10, 10, 1),  # 6 left: behind 1, which has all of n0 until 150
        (20, 5, 5, 2),  # 7 left: 150, beside 6
        (35, 10, 10, 1),  # 8 right: two GPUs are free at 40, but 5 blocks until 50 and then has all: 60
        (60, 1, 1, 1),  # 9 right: 60, beside 8
    ]
    names = ["left", "left", "right", "right", "right", "right", "left", "left", "right", "right"]
    result = run(simulate, shape, rows, replace(AT_EVENTS, backfill=Backfill.NONE), partition=names)
    assert result.start.tolist() == [0, 100, 0, 30, 30, 50, 150, 150, 60, 60]


def test_a_blocked_partition_keeps_its_nodes_from_others_until_backfill_looks_at_them(simulate):
    # Partition both has n0 and n1, partition right n1 alone. Job 1 blocks both: job 2, of right, fits on n1 but n1 is
    # kept.
    shape = cluster([4, 4], partitions=[partition("both", [0, 1]), partition("right", [1])])
    rows = [(0, 90, 90, 4), (1, 10, 10, 8), (1, 40, 40, 1), (1, 91, 91, 1)]
    names = ["both", "both", "right", "right"]
    strict = run(simulate, shape, rows, replace(AT_EVENTS, backfill=Backfill.NONE), partition=names)
    assert strict.start.tolist() == [0, 90, 100, 100]
    # The backfill pass at 30 lets job 2 in: 70 is before 90, where job 1 is reserved; job 3 would be there until 121.
    late = run(simulate, shape, rows, replace(AT_EVENTS, bf_interval=30.0), partition=names)
    assert late.start.tolist() == [0, 90, 30, 100]


def test_a_job_that_can_never_run_is_named_and_blocks_nobody(simulate):
    # n0: 4 p100, n1: 2 v100; 8 CPUs and 100 MiB each. Partition one takes one node of them at most.
    parts = [partition("main", [0, 1], max_time=100.0), partition("one", [0, 1], max_nodes=1.0)]
    shape = cluster([4, 2], types=["p100", "v100"], cpus=8, mem=100.0, partitions=parts)
    rows = [
        (0, 10, 10, 7),
        (0, 10, 10, 3),
        (0, 10, 101, 1),
        (0, 10, 10, 1),
        (0, 10, 10, 1),
        (0, 10, 10, 1),
        (0, 10, 10, 1),
        (0, 10, 10, 6),
        (0, 10, 10, 6),  # 8: there are no 2 nodes of 3: 6 in all, 4 and 2, at 0
        (0, 10, 10, 1),  # 9: 10
        (0, 5, 5, 0),  # 10: a CPU job, backfilled at 0
    ]
    result = run(
        simulate,
        shape,
        rows,
        gpu_type=["", "v100", *[""] * 9],
        mem=[0, 0, 0, 101, *[0] * 7],
        cpus=[0, 0, 0, 0, 9, *[0] * 6],
        tmp=[0, 0, 0, 0, 0, 1, *[0] * 5],
        partition=["main"] * 6 + ["nope", "one", "main", "main", "main"],
    )
    assert result.rejected == {
        0: "needs 7 GPUs, partition main has 6",
        1: "needs 3 GPUs, partition main with GPUs of type v100 has 2",
        2: "time limit of 101 s is above MaxTime 100 s of partition main",
        3: "needs 1 node with 101 MiB of memory in partition main, no node has that many",
        4: "needs 1 node with 9 CPUs in partition main, no node has that many",
        5: "needs 1 node with 1 MiB of local disk in partition main, no node has that many",
        6: "unknown partition 'nope'",
        7: "needs 6 GPUs together in partition one on at most 1 nodes (MaxNodes), which no set of its nodes has",
    }
    assert [fate == JobFate.REJECTED for fate in result.fate] == [row < 8 for row in range(11)]
    assert np.isnan(result.start[:8]).all()
    assert result.start[8:].tolist() == [0, 10, 0]


def test_the_policy_ranks_at_the_next_refresh_and_new_jobs_stand_behind_until_then(simulate):
    # One GPU, shortest job first, refreshed at 0, 60, 120 … Job 1 (long) and job 2 (short) come at 10, job 0 runs until
    # 50: nobody has ranked them, so job 1, with the smaller row, goes first; job 3 (shortest) comes at 55.
    # At 60 the order is 3, 2; job 1 ends at 150.
    jobs = jobs_of([0, 10, 10, 55], [50, 100, 30, 5], [1, 1, 1, 1])
    limits = given([50, 100, 30, 5])
    result = simulate(cluster([1]), jobs, limits, RuleRanker(by_name("sjf")), AT_EVENTS, [])
    assert result.start.tolist() == [0, 50, 155, 150]


def test_a_job_that_waits_for_one_without_a_limit_is_not_planned_however_far_ahead_slurm_plans(simulate):
    settings = SimulationSettings(backfill=Backfill.SLURM, bf_interval=0.0, bf_window=np.inf)
    result = run(simulate, cluster([1]), [(0, 30, np.inf, 1), (0, 10, 10, 1)], settings)
    assert result.start.tolist() == [0, 30]


@pytest.mark.parametrize("multiple", [kernel.next_multiple, reference.next_multiple])
def test_a_pass_is_due_at_a_multiple_and_not_one_later_where_the_quotient_is_rounded_up(multiple):
    three = 3 * 0.1  # three / 0.1 is 3.0000000000000004
    assert multiple(three, 0.1) == three
    assert multiple(three + 0.001, 0.1) == 0.4


def test_a_range_takes_its_most_nodes_as_far_as_they_have_room_and_runs_the_shorter(simulate):
    # n0 is busy until 30: job 1 gets the other three nodes. On one it would run for 80 s.
    rows = [(0, 30, 30, 4), (0, 80, 80, 2)]
    open_ = {"nodes": [1, 1], "most_nodes": [0, 4], "curve": [-1, 0], "scaling": np.array([[1.0, 0.6, 0.5]])}
    result = run(simulate, cluster([4, 4, 4, 4]), rows, **open_)
    assert nodes(result, 1) == {1, 2, 3}
    assert (result.start[1], result.end[1]) == (0, 40)


def test_sched_backfill_plans_a_range_when_its_least_nodes_are_free(simulate):
    # Two nodes of three are busy until 60 and 600. Job 2 wants two to three nodes: planned at 60 with two.
    rows = [(0, 60, 60, 4), (0, 600, 600, 4), (1, 100, 100, 8), (2, 50, 50, 4), (3, 500, 500, 4)]
    settings = replace(AT_EVENTS, backfill=Backfill.SLURM, bf_resolution=1.0)
    result = run(simulate, cluster([4, 4, 4]), rows, settings, nodes=[1, 1, 2, 1, 1], most_nodes=[0, 0, 3, 0, 0])
    assert result.start.tolist() == [0, 0, 60, 2, 160]
    assert len(nodes(result, 2)) == 2

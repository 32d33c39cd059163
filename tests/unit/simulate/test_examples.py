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

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.shape import ClusterShape
from rltuned.policy.heuristics import by_name
from rltuned.simulate import kernel
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.values import Backfill, Fit, JobFate, SimulationResult, SimulationSettings

AT_EVENTS = SimulationSettings(backfill=Backfill.EASY, fit=Fit.BEST, bf_interval=0.0)
NEVER = np.nan


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


def test_without_backfill_everybody_waits_behind_the_blocked_job(simulate):
    rows = [(0, 100, 100, 4), (0, 60, 60, 2), (0, 50, 50, 8), (0, 10, 10, 2)]
    result = run(simulate, cluster([4, 4]), rows, replace(AT_EVENTS, backfill=Backfill.NONE))
    assert result.start.tolist() == [0, 0, 100, 150]


def test_a_job_may_outlast_the_reservation_on_what_the_reserved_job_leaves(simulate):
    # Job 1 is reserved at 50 with 3 of the 4 GPUs of n0: job 2 may have the fourth for as long as it likes, job 3 not.
    rows = [(0, 50, 50, 2), (0, 10, 10, 3), (0, 500, 500, 1), (0, 500, 500, 1)]
    assert run(simulate, cluster([4]), rows).start.tolist() == [0, 50, 0, 60]


def test_sched_backfill_reserves_whole_nodes_for_every_job_that_it_looks_at(simulate):
    # One node of 4 GPUs, plans in whole minutes. Job 0: until 600. Job 1 (4 GPUs) is planned at 600 until 660 (its 700
    # rounded down), job 2 (4 GPUs) from then until 720. Job 3 (1 GPU, until 900) could run beside job 0 now, and EASY
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


def test_the_passes_of_slurmctld_have_clocks_of_their_own(simulate):
    # A main pass at whole tens, a backfill pass at 3 and 3 + multiples of 10: job 0 (at 1) starts at 3, job 1 (at 5) at
    # 10.
    settings = replace(AT_EVENTS, sched_interval=10.0, bf_interval=10.0, bf_offset=3.0)
    result = run(simulate, cluster([4]), [(1, 20, 20, 1), (5, 20, 20, 1)], settings)
    assert result.start.tolist() == [3, 10]


def test_a_job_outlives_its_limit_until_slurmctld_looks_and_needs_time_to_launch(simulate):
    # Looked at every 30 s: job 0 (limit 40) is killed at 60, job 1 ends by itself after launch and 20 s.
    settings = replace(AT_EVENTS, kill_interval=30.0, launch=0.5)
    result = run(simulate, cluster([1]), [(0, 100, 40, 1), (0, 20, 20, 1)], settings)
    assert result.end.tolist() == [60, 80.5]
    assert result.fate.tolist() == [JobFate.TIMEOUT, JobFate.COMPLETED]


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


def test_a_higher_tier_goes_first_whoever_came_first(simulate):
    shape = cluster([4], partitions=[partition("low", [0]), partition("high", [0], priority_tier=5)])
    rows = [(0, 10, 10, 4), (1, 10, 10, 4), (2, 10, 10, 4)]
    assert run(simulate, shape, rows, partition=["low", "low", "high"]).start.tolist() == [0, 20, 10]


def test_a_typed_request_waits_for_its_type_and_an_untyped_one_takes_any(simulate):
    # n0 has 4 p100, n1 has 4 v100.
    shape = cluster([4, 4], types=["p100", "v100"])
    rows = [
        (0, 50, 50, 4),  # 0 any: n0, the first of two equal nodes
        (0, 10, 10, 1),  # 1 p100: blocked, reserved on n0 at 50
        (0, 30, 30, 2),  # 2 v100: backfilled on n1, until 30
        (0, 100, 100, 2),  # 3 any: n1 too, until 100: nobody has reserved n1
        (0, 20, 20, 2),  # 4 v100: 30, when 2 ends
        (5, 10, 10, 1),  # 5 any: 50, on n1, which has 2 GPUs free then, n0 has 3
        (6, 40, 40, 4),  # 6 p100: 60, when 1 has gone from n0
        (7, 10, 10, 4),  # 7 any: 100, n0, when 6 ends and 3 ends
        (8, 10, 10, 1),  # 8 v100: backfilled at 50 on the last GPU of n1: 6 waits for n0
        (9, 10, 10, 1),  # 9 k80: there is none
    ]
    types = ["", "p100", "v100", "", "v100", "", "p100", "", "v100", "k80"]
    result = run(simulate, shape, rows, gpu_type=types)
    assert result.start[:9].tolist() == [0, 50, 0, 0, 30, 50, 60, 100, 50]
    assert [nodes(result, row) for row in (0, 1, 2, 3, 5, 6)] == [{0}, {0}, {1}, {1}, {1}, {0}]
    assert result.rejected == {9: "unknown GPU type 'k80'"}


def test_a_job_of_several_nodes_starts_when_all_of_them_have_room(simulate):
    rows = [
        (0, 10, 10, 6),  # 0: does not fit into one node, 2 nodes of 3: n0 and n1
        (0, 20, 20, 2),  # 1: the trace says 2 nodes: the last GPU of each
        (0, 10, 10, 7),  # 2: 2 does not divide 7: 7 in all, 4 of one and 3 of the other; 6 are free at 10, 8 at 20
        (0, 10, 10, 2),  # 3: one node; backfilled at 10, n0, until 20
        (0, 10, 10, 3),  # 4: 3 in all on at least 2 nodes: 10, 2 of n1 (it has 3) and the last of n0
        (0, 10, 10, 1),  # 5: 10, the last of n1
        (0, 11, 11, 1),  # 6: nothing is free at 10; beside 2 at 20, until 31
        (5, 10, 10, 8),  # 7: 31
        (6, 10, 10, 9),  # 8: there are 8
        (8, 5, 5, 4),  # 9: 2 nodes of 2; at 30 they are free until 31 only; 41
    ]
    result = run(simulate, cluster([4, 4]), rows, nodes=[0, 2, 0, 0, 2, 0, 0, 0, 0, 2])
    assert result.start.tolist()[:8] == [0, 0, 20, 10, 10, 10, 20, 31]
    assert result.start[9] == 41
    assert [nodes(result, row) for row in (0, 1, 2, 3, 4, 5)] == [{0, 1}, {0, 1}, {0, 1}, {0}, {0, 1}, {1}]
    assert result.rejected == {8: "needs 9 GPUs, partition main has 8"}


def test_a_job_is_killed_at_its_limit(simulate):
    # Two nodes of 2 GPUs.
    rows = [
        (0, 100, 60, 2),  # 0: n0, killed at 60
        (0, 40, 80, 2),  # 1: n1, ends by itself at 40
        (0, 50, 50, 4),  # 2: blocked; 60, when job 0 is killed; a run time that is the limit is no kill
        (0, 30, 30, 2),  # 3: n1 is free at 40, but until 60 only; 110, n0
        (0, 20, 20, 1),  # 4: backfilled at 40, until 60
        (0, 500, 20, 1),  # 5: so is this one, and killed at 60
        (0, 0, 10, 1),  # 6: runs no time at all: 110 to 110, on n1
        (0, 30, 30, 2),  # 7: 110 too, when 6 has gone
        (50, 10, 5, 2),  # 8: 140, killed at 145
        (50, 10, 10, 2),  # 9: 140
    ]
    result = run(simulate, cluster([2, 2]), rows)
    assert result.start.tolist() == [0, 0, 60, 110, 40, 40, 110, 110, 140, 140]
    assert result.end.tolist() == [60, 40, 110, 140, 60, 60, 110, 140, 145, 150]
    killed = {row for row in range(10) if result.fate[row] == JobFate.TIMEOUT}
    assert killed == {0, 5, 8}
    assert set(result.fate.tolist()) == {JobFate.TIMEOUT, JobFate.COMPLETED}


def test_an_overestimate_opens_a_hole_that_is_not_there(simulate):
    # Two nodes of 2 GPUs. Job 0 says 200 and runs 50: its limit holds the reservation at 200, and backfill fills the
    # time.
    rows = [
        (0, 50, 200, 2),  # 0: n0
        (0, 20, 20, 1),  # 1: n1
        (0, 10, 10, 4),  # 2: reserved at 200, by the limits; could have had the cluster at 50 without backfill
        (0, 150, 150, 1),  # 3: n1, until 150: before 200, at 0
        (0, 90, 180, 1),  # 4: n1 at 20, until exactly 200
        (0, 30, 190, 1),  # 5: would run 30, but its limit always passes the reservation; 160
        (0, 30, 150, 2),  # 6: n0 at 50, until exactly 200
        (60, 40, 120, 1),  # 7: n0 at 80, until exactly 200
        (61, 5, 121, 1),  # 8: one second too long at 80, and later; 160
        (62, 30, 30, 1),  # 9: n0 at 80, beside 7
    ]
    result = run(simulate, cluster([2, 2]), rows)
    # 4, 9 end at 110, 7 at 120, 3 at 150: then job 2 has all.
    assert result.start.tolist() == [0, 0, 150, 0, 20, 160, 50, 80, 160, 80]


def test_memory_is_the_bottleneck(simulate):
    # Two nodes of 8 GPUs with 100 MiB each: GPUs are always free.
    rows = [
        (0, 100, 100, 1),  # 0: 60 MiB: n0
        (0, 50, 50, 1),  # 1: 60 MiB: n0 has fewer GPUs free but 40 MiB: n1
        (0, 10, 10, 1),  # 2: 50 MiB: blocked, reserved on n1 at 50
        (0, 60, 60, 1),  # 3: 40 MiB: n0, the first of equal nodes; nobody has reserved it
        (0, 60, 60, 1),  # 4: 40 MiB: n1, where job 2 leaves 50 at 50
        (0, 10, 10, 1),  # 5: 10 MiB: none is free until 50, and then as much as job 2 leaves
        (0, 10, 10, 1),  # 6: not given: memory does not limit it: 0
        (0, 10, 10, 1),  # 7: 20 MiB: 60, n0 (fewer GPUs free)
        (0, 10, 10, 1),  # 8: 90 MiB: 60, n1
        (0, 10, 10, 1),  # 9: 101 MiB: no node has them
        (0, 10, 10, 16),  # 10: 2 nodes of 8 GPUs and 50 MiB: job 0 holds a GPU of n0 until 100
    ]
    mem = [60, 60, 50, 40, 40, 10, 0, 20, 90, 101, 100]
    result = run(simulate, cluster([8, 8], mem=100.0), rows, mem=mem)
    assert result.start[:9].tolist() == [0, 0, 50, 0, 0, 50, 0, 60, 60]
    assert result.start[10] == 100
    assert [nodes(result, row) for row in (0, 1, 2, 3, 4, 7, 8)] == [{0}, {1}, {1}, {0}, {1}, {0}, {1}]
    assert result.rejected == {
        9: "needs 1 node with 101 MiB of memory in partition main, no node has that many",
    }


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


def test_worst_fit_spreads_and_best_fit_fills_up(simulate):
    rows = [(0, 10, 10, 1), (0, 10, 10, 1), (0, 10, 10, 4)]
    best = run(simulate, cluster([4, 4]), rows)
    assert [nodes(best, row) for row in range(3)] == [{0}, {0}, {1}]
    worst = run(simulate, cluster([4, 4]), rows, replace(AT_EVENTS, fit=Fit.WORST))
    assert [nodes(worst, row) for row in range(2)] == [{0}, {1}]
    assert worst.start.tolist() == [0, 0, 10]


def test_an_isolated_job_starts_on_an_idle_node_and_nobody_joins_it(simulate):
    # OverSubscribe=NO on job 1: n0 has room for it beside job 0, but it waits for an idle node, n1, and is alone there.
    submit, run_time, gpus = [0, 0, 0, 0], [50, 20, 30, 10], [1, 1, 4, 1]
    order = RuleRanker(by_name("fifo"))
    result = simulate(cluster([4, 4]), jobs_of(submit, run_time, gpus), given(run_time), order, AT_EVENTS, [1])
    assert result.start.tolist() == [0, 0, 20, 0]
    assert [nodes(result, row) for row in range(4)] == [{0}, {1}, {1}, {0}]


def test_an_exclusive_partition_gives_whole_nodes(simulate):
    shape = cluster([4, 4], partitions=[partition("whole", [0, 1], oversubscribe=OverSubscribe.EXCLUSIVE)])
    result = run(simulate, shape, [(0, 10, 10, 1), (0, 10, 10, 1), (0, 10, 10, 1)])
    assert result.start.tolist() == [0, 0, 10]


def test_the_policy_ranks_at_the_next_refresh_and_new_jobs_stand_behind_until_then(simulate):
    # One GPU, shortest job first, refreshed at 0, 60, 120 … Job 1 (long) and job 2 (short) come at 10, job 0 runs until
    # 50: nobody has ranked them, so job 1, with the smaller row, goes first; job 3 (shortest) comes at 55.
    # At 60 the order is 3, 2; job 1 ends at 150.
    jobs = jobs_of([0, 10, 10, 55], [50, 100, 30, 5], [1, 1, 1, 1])
    limits = given([50, 100, 30, 5])
    result = simulate(cluster([1]), jobs, limits, RuleRanker(by_name("sjf")), AT_EVENTS, [])
    assert result.start.tolist() == [0, 50, 155, 150]


def test_turnover_keeps_the_resources_after_the_end(simulate):
    settings = replace(AT_EVENTS, turnover=3.0)
    result = run(simulate, cluster([1]), [(0, 10, 10, 1), (0, 10, 10, 1)], settings)
    assert result.start.tolist() == [0, 13]
    assert result.end.tolist() == [10, 23]


def test_a_job_that_waits_for_one_without_a_limit_is_not_planned_however_far_ahead_slurm_plans(simulate):
    settings = SimulationSettings(backfill=Backfill.SLURM, bf_interval=0.0, bf_window=np.inf)
    result = run(simulate, cluster([1]), [(0, 30, np.inf, 1), (0, 10, 10, 1)], settings)
    assert result.start.tolist() == [0, 30]


@pytest.mark.parametrize("multiple", [kernel.next_multiple, reference.next_multiple])
def test_a_pass_is_due_at_a_multiple_and_not_one_later_where_the_quotient_is_rounded_up(multiple):
    three = 3 * 0.1  # three / 0.1 is 3.0000000000000004
    assert multiple(three, 0.1) == three
    assert multiple(three + 0.001, 0.1) == 0.4

"""A queue simulated ahead: each job starts when the simulator starts it, in scenarios of uncertain run times."""

from dataclasses import replace

import numpy as np
import pytest
from unit.simulate.instances import Instance, cluster, given, jobs_of, random_instance

from rltuned.core.tables import Category
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.see.features import UNLIMITED_RUN_TIME
from rltuned.simulate import kernel as k
from rltuned.simulate.engine import Simulation
from rltuned.simulate.initial_state import heap_by_end, initial_state
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.scenarios import SimulatedQueue, expected_scenario, sampled_scenarios
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Backfill, SimulationSettings

NOW = 60.0
"""All jobs are submitted before it, and it is a multiple of the intervals of the passes."""
LONG = 1e9
"""Seconds by which all jobs have started that can."""
EXACT = {
    "bf_interval": 30.0,
    **dict.fromkeys(("turnover", "launch", "kill_interval", "bf_offset", "sched_interval"), 0.0),
}


class FixedKeys:
    """A ranker with given keys."""

    ages = at_once = False

    def __init__(self, keys):
        self.given_keys = keys

    def fixed(self, simulation):
        return self.given_keys

    def keys(self, simulation, rows):
        return self.given_keys[rows]


def in_the_middle(seed, **settings):
    """A simulation of whole seconds at NOW, with nobody still to come; and true run times."""
    drawn = random_instance(seed, **{**EXACT, **settings})
    submit = drawn.jobs.submit_time
    jobs = replace(
        drawn.jobs,
        submit_time=np.floor(submit * (NOW - 10.0) / max(submit.max(), 1.0)),
        run_time=np.maximum(np.round(drawn.jobs.run_time), 1.0),
    )
    limits = np.ceil(drawn.estimates.time_limit)
    instance = Instance(drawn.shape, jobs, given(limits), "saf", drawn.settings, drawn.isolated)
    simulation = instance.simulation()
    simulation.run(RuleRanker(by_name("sjf")), until=NOW)
    return simulation


def shares_are_known(simulation):
    """Whether every running job has the same on each of its nodes, so that a snapshot tells its shares."""
    asked = simulation.asked
    return all(asked.per_node[row] or len(simulation.nodes_of(row)) == 1 for row in simulation.running)


def seen(simulation):
    """Snapshot, rows of the pending jobs and expected run times, which are the true ones."""
    snapshot = simulation.snapshot()
    run = np.maximum(simulation.jobs.run_time[snapshot.jobs.job_id - 1], 1.0)
    return snapshot, snapshot.jobs.pending, run


def busy(n=60, shape="2x8,2x4", seed=3):
    rng = np.random.default_rng(seed)
    run = np.maximum(np.round(rng.lognormal(5.5, 1.5, n)), 1.0)
    jobs = jobs_of(np.sort(rng.uniform(0.0, 50.0, n)), run, rng.choice([1, 1, 2, 4, 8], n))
    simulation = Simulation(parse_shape(shape), jobs, given(2.0 * run, run))
    simulation.run(RuleRanker(by_name("saf")), until=NOW)
    return simulation


def ahead(snapshot, queue, run, settings=None):
    """The queue in one scenario, the expected run times."""
    settings = settings or SimulationSettings()
    state = initial_state(snapshot, queue, run, settings)
    return SimulatedQueue(len(queue), state, settings, [expected_scenario(state)])


def starts(simulation, queue_of):
    """(n,) starts of the pending jobs in that order, on the simulation's clock, by row of the workload; NaN: never."""
    snapshot, rows, run = seen(simulation)
    queue = rows[queue_of(snapshot.jobs.job_id[rows] - 1)]
    start = np.full(len(simulation.jobs), np.nan)
    start[snapshot.jobs.job_id[queue] - 1] = ahead(snapshot, queue, run, simulation.settings).starts(0, LONG) + NOW
    return start


# --- one scenario


@pytest.mark.parametrize("backfill", list(Backfill))
def test_every_job_starts_when_the_simulator_going_on_in_that_order_does(backfill):
    compared = waiting = 0
    for seed in range(60):
        simulation = in_the_middle(seed, backfill=backfill)
        pending = np.sort(simulation.pending)
        if len(pending) < 2 or not shares_are_known(simulation):
            continue
        keys = np.random.default_rng(seed).permutation(len(simulation.jobs)).astype(np.float64)
        tiers = np.array([part.priority_tier for part in simulation.shape.partitions])[simulation.asked.partition]
        start = starts(simulation, lambda rows, keys=keys, tiers=tiers: np.lexsort((keys[rows], -tiers[rows])))
        simulation.set_keys(pending, keys[pending])
        simulation.something_changed()
        simulation.run(FixedKeys(keys))
        np.testing.assert_array_equal(start[pending], simulation.start[pending], err_msg=f"seed {seed}")
        compared += 1
        waiting += int((simulation.start[pending] > NOW).sum())
    assert compared >= 20
    assert waiting >= 100, "orders that nobody waits in are all alike"


def test_it_never_gives_more_of_a_node_than_it_has_however_uneven_the_shares_of_running_jobs():
    uneven = kept = 0
    for seed in range(40):
        simulation = in_the_middle(seed)
        snapshot, rows, run = seen(simulation)
        rng = np.random.default_rng(seed)
        # As Slurm may show it in the middle of things: allocations that no listed job accounts for, or too few.
        nodes = snapshot.nodes
        odd = replace(
            nodes,
            gpus_alloc=np.minimum(nodes.gpus, rng.integers(0, 9, nodes.gpus.shape)).astype(np.int32),
            cpus_alloc=np.minimum(nodes.cpus, rng.integers(0, 70, len(nodes))).astype(np.int32),
            mem_alloc=nodes.mem * rng.choice([0.0, 0.5, 1.5], len(nodes)),
        )
        for table in (odd, nodes):
            made = ahead(replace(snapshot, nodes=table), rows, run, simulation.settings)
            made.starts(0, LONG)
            free, room = made._state.amount[k.NOW_FREE], made._state.amount[k.ROOM]
            assert (free >= 0).all()
            assert (free <= room).all()
            assert made._state.counts[k.HOLDING] == 0
        kept += (free[:, k.GPU] < room[:, k.GPU]).any()
        uneven += not shares_are_known(simulation)
    assert uneven >= 5
    # With the true allocations the GPUs come back, wherever the even shares put them, but for a rare pattern that one
    # pass over the nodes does not untangle. (CPUs in proportion to GPUs are rounded up on each node, and a snapshot
    # does not say it: what no job accounts for stays taken.)
    assert kept <= 1


def test_each_simulation_begins_with_the_initial_state():
    snapshot, rows, run = seen(busy())
    made = ahead(snapshot, rows, run)
    first = made.starts(0, LONG)
    assert not np.array_equal(made.starts(0, 60.0), first)
    np.testing.assert_array_equal(made.starts(0, LONG), first)


# --- odd queues


def test_room_for_reservations_is_kept_for_waiting_jobs_only():
    snapshot, rows, run = seen(busy())
    assert len(snapshot.jobs.running) > 4
    state = initial_state(snapshot, rows[:3], run, SimulationSettings(bf_max_job_test=10_000), arrivals=1)
    assert state.plans.start.shape == (len(snapshot.nodes), 4)


@pytest.mark.parametrize("backfill", list(Backfill))
def test_a_job_of_two_partitions_starts_when_it_would_in_one_with_the_nodes_of_both(backfill):
    compared = 0
    for seed in range(60):
        simulation = in_the_middle(seed, backfill=backfill)
        snapshot, rows, run = seen(simulation)
        if len(snapshot.partitions) < 2 or len(rows) < 2:
            continue
        first, second = snapshot.partitions[:2]
        if first.oversubscribe is not second.oversubscribe:  # a job that shares would not in a partition like the first
            continue
        nodes = np.union1d(first.nodes, second.nodes).astype(first.nodes.dtype)
        tier = max(first.priority_tier, second.priority_tier)
        most = max(first.max_nodes, second.max_nodes)
        both = replace(first, name="both", nodes=nodes, priority_tier=tier, max_nodes=most)
        of = np.array([snapshot.jobs.partition.value(row) for row in range(len(snapshot.jobs))], dtype=object)
        started = []
        for name, partitions in ((f"{first.name},{second.name}", ()), ("both", (both,))):
            of[rows[::2]] = name
            jobs = replace(snapshot.jobs, partition=Category.of(list(of)))
            seen_so = replace(snapshot, jobs=jobs, partitions=(*snapshot.partitions, *partitions))
            started.append(ahead(seen_so, rows, run, simulation.settings).starts(0, LONG))
        np.testing.assert_array_equal(*started, err_msg=f"seed {seed}")
        compared += 1
    assert compared >= 10


def test_jobs_that_can_never_start_keep_nobody_from_starting():
    snapshot, rows, run = seen(busy())
    gpus, never = snapshot.jobs.gpus.copy(), np.isin(rows, rows[::7])
    gpus[rows[never]] = 5000
    odd = replace(snapshot, jobs=replace(snapshot.jobs, gpus=gpus))
    found = ahead(odd, rows, run).starts(0, LONG)
    assert np.isinf(found[never]).all()
    assert np.isfinite(found[~never]).all()


def test_nodes_that_may_take_no_job_take_none():
    snapshot, rows, run = seen(busy())
    drained = replace(snapshot, nodes=replace(snapshot.nodes, usable=np.arange(len(snapshot.nodes)) < 2))
    made = ahead(drained, rows, run)
    made.starts(0, LONG)
    jobs = made._state.jobs[: len(rows)]
    nodes = {int(node) for job in jobs for node in made._state.given_node[job["slot"] : job["slot"] + job["on"]]}
    assert nodes == {0, 1}
    dark = replace(snapshot, nodes=replace(snapshot.nodes, usable=np.zeros(len(snapshot.nodes), dtype=np.bool_)))
    assert np.isinf(ahead(dark, rows, run).starts(0, LONG)).all()


def test_an_empty_cluster_and_jobs_without_a_limit_are_simulated_too():
    shape = cluster([2])
    jobs = jobs_of([0.0, 0.0, 0.0], [300.0, 50.0, 20.0], [2, 1, 1])
    simulation = Simulation(shape, jobs, given([np.inf, np.inf, 30.0]))
    snapshot = simulation.snapshot()
    assert len(snapshot.jobs) == 0
    simulation.run(FixedKeys(np.arange(3.0)), until=0.0)
    snapshot, rows, _ = seen(simulation)
    run = np.full(len(snapshot.jobs), UNLIMITED_RUN_TIME)
    assert np.isfinite(ahead(snapshot, rows, run).starts(0, LONG)).all()


# --- run times that are not certain


def test_the_same_queue_gets_the_same_samples_and_each_scenario_others():
    snapshot, rows, run = seen(busy())
    state = initial_state(snapshot, rows, run)
    nobodys = np.arange(len(snapshot.jobs))
    first, again = (sampled_scenarios(state, snapshot.jobs, rows, run, 1.0, 6, nobodys) for _ in range(2))
    drawn = [scenario.jobs["run"].tolist() for scenario in first]
    assert drawn == [scenario.jobs["run"].tolist() for scenario in again]
    assert len({tuple(times) for times in drawn}) == 6


def test_drawn_run_times_keep_to_limits_and_running_jobs_outlast_what_they_have_run():
    snapshot, rows, run = seen(busy())
    state, n = initial_state(snapshot, rows, run), len(rows)
    every = np.concatenate((rows, snapshot.jobs.running))
    expected = np.minimum(snapshot.jobs.time_limit[every], 1e5) / 30.0
    drawn = []
    times = np.full(len(snapshot.jobs), np.nan)
    times[every] = expected
    for after in sampled_scenarios(state, snapshot.jobs, rows, times, 0.8, 40, np.arange(len(times))):
        jobs, running = after.jobs[:n], after.jobs[n:]
        assert (jobs["run"] >= 1.0).all()
        assert (jobs["run"] <= jobs["limit"]).all()
        assert (running["end"] >= 0.0).all()
        assert (running["end"] <= running["ends_by"]).all()
        in_order = heap_by_end(after.jobs)[: len(running)]
        assert np.array_equal(after.jobs["freed"][in_order], np.sort(running["end"]))
        drawn.append(np.log(jobs["run"] / expected[:n]))
    free = np.array(drawn)[:, expected[:n] > 20.0]
    assert free.size > 100
    assert abs(free.mean()) < 0.1
    assert abs(free.std() - 0.8) < 0.1

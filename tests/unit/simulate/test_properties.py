"""What holds of every simulation, recomputed from its result alone or from what the engine shows between two events."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from unit.simulate import instances
from unit.simulate.instances import Instance, cluster, compiled, floating, given, jobs_of, random_instance

from rltuned.core.changes import OverSubscribe
from rltuned.core.config import Config
from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import PlanRanker, RuleRanker
from rltuned.simulate.requests import Requests, requests
from rltuned.simulate.values import Backfill, Estimates, JobFate, SimulationResult, SimulationSettings

SEEDS = range(40)
EXACT = {"turnover": 0.0, "launch": 0.0, "kill_interval": 0.0}
"""A job runs for its run time or its limit."""
AT_EVENTS = {**EXACT, "sched_interval": 0.0, "bf_offset": 0.0}


def asked(instance: Instance) -> Requests:
    return requests(instance.shape, instance.jobs, instance.estimates.time_limit)


def nodes(result: SimulationResult, row: int) -> npt.NDArray[np.int32]:
    return result.node_idx[result.node_ptr[row] : result.node_ptr[row + 1]]


def ran(result: SimulationResult) -> npt.NDArray[np.intp]:
    return np.flatnonzero(~np.isnan(result.start))


def fits(need: npt.NDArray[np.int64], k: int, pool: npt.NDArray[np.bool_], free: npt.NDArray[np.int64]) -> bool:
    """Whether k nodes of the pool have the need; for requests per node."""
    return int((free[pool] >= need).all(axis=1).sum()) >= k


@pytest.mark.parametrize("block", range(4))
def test_capacity_is_never_exceeded_in_any_dimension(block):
    for seed in SEEDS[block::4]:
        instance = random_instance(seed)
        result, want = instance.run(compiled), asked(instance)
        need = np.stack([want.gpus, want.cpus, want.mem, want.tmp], axis=1)
        rows = ran(result)
        for time in np.unique(result.start[rows]):
            at = rows[(result.start[rows] <= time) & (time < result.end[rows])]
            used = np.zeros_like(want.capacity)
            for row in at:
                used[nodes(result, row), 3] += need[row, 3]
                if want.per_node[row] or len(nodes(result, row)) == 1:
                    used[nodes(result, row), :3] += need[row, :3]
                else:  # at least one unit of each node; all of it together on its nodes
                    used[nodes(result, row), 0 if need[row, 0] else 1] += 1
            assert (used <= want.capacity).all(), f"seed {seed} at {time}"
            # In all: no more on any job's nodes than these nodes have.
            together = sum(need[row, :3] * (len(nodes(result, row)) if want.per_node[row] else 1) for row in at)
            assert (together <= want.capacity[:, :3].sum(axis=0)).all(), f"seed {seed} at {time}"


def test_no_job_starts_on_a_node_that_does_not_take_its_limit():
    longer = 0
    for seed in SEEDS:
        instance = floating(random_instance(seed), seed)
        if (longest := instance.shape.longest) is None:
            continue
        limit, result = instance.estimates.time_limit, instance.run(compiled)
        for row in ran(result):
            assert (limit[row] <= longest[nodes(result, row)]).all(), f"seed {seed}, job {row}"
            longer += bool((limit[row] > longest).any())
    assert longer > 20


def test_every_feasible_job_runs_after_it_came_for_its_run_time_or_its_limit_and_all_end():
    for seed in SEEDS:
        instance = random_instance(seed, **EXACT)
        jobs, limit, result = instance.jobs, instance.estimates.time_limit, instance.run(compiled)
        rows = ran(result)
        assert set(rows) | set(result.rejected) == set(range(len(jobs))), f"seed {seed}"
        assert not set(rows) & set(result.rejected)
        assert (result.start[rows] >= jobs.submit_time[rows]).all(), f"seed {seed}"
        expected = np.minimum(jobs.run_time, limit)[rows]
        np.testing.assert_allclose(result.end[rows] - result.start[rows], expected, atol=1e-6)
        killed = result.fate[rows] == JobFate.TIMEOUT
        np.testing.assert_array_equal(killed, (jobs.run_time > limit)[rows])
        assert (result.fate[rows][~killed] == JobFate.COMPLETED).all()


def head_at(
    result: SimulationResult, jobs_submit: npt.NDArray[np.float64], rows: npt.NDArray[np.intp], time: float
) -> int:
    """First of the rows, in order of submission, that waits at `time` and after it; −1: nobody."""
    waiting = [int(row) for row in rows if jobs_submit[row] <= time < result.start[row]]
    return waiting[0] if waiting else -1


def test_no_backfilled_job_delays_the_reservation_of_the_head():
    """First come, first served, so that a head stays the head until it starts.

    At every moment at which somebody is backfilled, the head could start, at the latest, when the jobs that run
    *without* the backfilled ones are ended by their limits. It must have started by then.
    """
    checked = 0
    for seed in range(120):
        instance = random_instance(seed, backfill=Backfill.EASY, bf_min_age_reserve=0, **AT_EVENTS)
        if np.bincount(np.concatenate([part.nodes for part in instance.shape.partitions])).max() > 1:
            continue
        estimates = instance.estimates
        simple = asked(instance).per_node  # the others would need a search of their own to tell whether they fit
        instance = replace(
            instance,
            jobs=instance.jobs.take(simple),
            estimates=Estimates(estimates.time_limit[simple], estimates.run_time[simple]),
            rule="fifo",
            isolated=(),
        )
        want, result = asked(instance), instance.run(compiled)
        need = np.stack([want.gpus, want.cpus, want.mem, want.tmp], axis=1)
        rows, limit = ran(result), instance.estimates.time_limit
        for time in np.unique(result.start[rows[result.backfilled[rows]]]):
            for partition in range(len(instance.shape.partitions)):
                mine = rows[want.partition[rows] == partition]
                head = head_at(result, instance.jobs.submit_time, mine, float(time))
                new = mine[(result.start[mine] == time) & result.backfilled[mine]]
                if head < 0 or not len(new) or new.min() < head:
                    continue
                others = mine[(result.start[mine] <= time) & (result.end[mine] > time) & ~np.isin(mine, new)]
                latest = np.inf
                for moment in np.unique((result.start + limit)[others]):
                    free = want.capacity.copy()
                    for row in others[(result.start + limit)[others] > moment]:
                        free[nodes(result, row)] -= need[row]
                    if fits(need[head], int(want.nodes[head]), want.pool_nodes[want.pool[head]], free):
                        latest = float(moment)
                        break
                assert result.start[head] <= latest, f"seed {seed}: job {head} at {time}"
                checked += np.isfinite(latest)
    assert checked > 50


def test_a_simulation_is_the_same_again_and_the_same_when_it_is_stopped_on_the_way():
    for seed in SEEDS[:20]:
        instance = random_instance(seed)
        once, again = instance.run(compiled), instance.run(compiled)
        simulation = instance.simulation()
        ranker = RuleRanker(by_name(instance.rule))
        for time in (10.0, 60.0, 60.0, 333.3, 900.0):
            simulation.run(ranker, until=time)
        simulation.run(ranker)
        for other in (again, simulation.result()):
            np.testing.assert_array_equal(once.start, other.start, err_msg=f"seed {seed}")
            np.testing.assert_array_equal(once.end, other.end)
            np.testing.assert_array_equal(once.node_idx, other.node_idx)


def test_jobs_that_come_together_are_ranked_by_the_policy_not_by_their_row():
    for seed in range(15):
        rng = np.random.default_rng(seed)
        shape, n = random_instance(seed).shape, 30
        run_time, gpus = rng.permutation(n) * 7.0 + 3.0, rng.choice([1, 1, 2, 4], n)
        settings = SimulationSettings()
        order = rng.permutation(n)
        results = []
        for rows in (np.arange(n), order):
            jobs = jobs_of(np.zeros(n), run_time[rows], gpus[rows])
            results.append(compiled(shape, jobs, given(run_time[rows]), RuleRanker(by_name("sjf")), settings))
        np.testing.assert_array_equal(results[0].start[order], results[1].start)


def test_a_drained_node_that_somebody_waits_for_does_not_keep_the_simulation_going_for_ever():
    simulation = Simulation(cluster([4, 4]), jobs_of([0, 0], [10, 10], [1, 1]), given([10, 10]), SimulationSettings())
    for usable, fate in ((False, JobFate.WAITING), (True, JobFate.COMPLETED)):
        for node in range(2):
            simulation.set_usable(node, usable=usable)
        simulation.run(RuleRanker(by_name("wfp3")))
        assert simulation.result().fate.tolist() == [fate, fate]


def test_settings_that_change_before_anything_happens_are_as_if_they_had_been_there_from_the_beginning():
    for seed in range(15):
        instance = random_instance(seed, backfill=Backfill.SLURM, bf_max_job_test=500)
        simulation = replace(instance, settings=SimulationSettings(bf_max_job_test=1)).simulation()
        simulation.reconfigure(instance.settings)
        simulation.run(RuleRanker(by_name(instance.rule)))
        found, expected = simulation.result(), instance.run(compiled)
        np.testing.assert_array_equal(found.start, expected.start, err_msg=f"seed {seed}")
        np.testing.assert_array_equal(found.node_idx, expected.node_idx)


def test_a_job_that_has_ended_cannot_be_cancelled_while_its_nodes_are_cleaned_up():
    settings = SimulationSettings(turnover=5.0)
    simulation = Simulation(cluster([1]), jobs_of([0, 0], [10, 10], [1, 1]), given([10, 10]), settings)
    ranker = RuleRanker(by_name("fifo"))
    simulation.run(ranker, until=12.0)
    simulation.cancel(0)
    simulation.run(ranker)
    assert simulation.result().fate.tolist() == [JobFate.COMPLETED, JobFate.COMPLETED]
    assert simulation.result().end[0] == 10.0


def test_a_ranker_that_steers_jobs_is_asked_once_in_an_instant():
    asked_at: list[float] = []

    class Steering(RuleRanker):
        def fixed(self, simulation: Simulation) -> None:
            return None

        def keys(self, simulation: Simulation, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
            asked_at.append(simulation.now)
            for row in rows:
                simulation.set_isolated(int(row), isolated=len(asked_at) % 2 == 1)
            return super().keys(simulation, rows)

    jobs = jobs_of([0] * 6, [100] * 6, [1] * 6)
    Simulation(cluster([1, 1]), jobs, given([100] * 6), SimulationSettings()).run(Steering(by_name("fifo")))
    assert len(asked_at) > 1
    assert len(set(asked_at)) == len(asked_at)


def test_where_a_node_runs_one_job_the_smallest_is_the_shortest():
    rng = np.random.default_rng(5)
    run = np.round(rng.exponential(300.0, 60)) + 1.0
    jobs = jobs_of(np.sort(rng.uniform(0.0, 600.0, 60)), run, rng.choice([0, 1, 1, 2, 4, 8], 60))
    whole = cluster([8] * 4, partitions=[instances.partition("whole", range(4), oversubscribe=OverSubscribe.EXCLUSIVE)])
    starts = {}
    for shape in (whole, cluster([8] * 4)):
        for rule in ("saf", "sjf"):
            for ranker in (RuleRanker(by_name(rule)), PlanRanker(by_name(rule), Config())):
                simulation = Simulation(shape, jobs, given(run))
                simulation.run(ranker)
                starts[shape is whole, rule, type(ranker)] = simulation.result().start
    for ranker in (RuleRanker, PlanRanker):
        np.testing.assert_array_equal(starts[True, "saf", ranker], starts[True, "sjf", ranker])
        assert (starts[False, "saf", ranker] != starts[False, "sjf", ranker]).any()

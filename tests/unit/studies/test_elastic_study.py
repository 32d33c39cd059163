"""Simulated jobs that change their number of nodes while they run."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from unit.simulate.instances import Asked, cluster, given, jobs_of, left_open, random_instance

from rltuned.core.errors import RltunedError
from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.values import Backfill, Estimates, Fit, JobFate, SimulationSettings
from studies.elastic import resize
from studies.open_nodes import runs_of

AT_EVENTS = SimulationSettings(backfill=Backfill.EASY, fit=Fit.BEST, bf_interval=0.0, refresh=1.0)
EXACT = {"turnover": 0.0, "launch": 0.0, "kill_interval": 0.0}
"""A job runs for its run time or its limit."""


def test_a_job_that_gives_nodes_back_loses_a_restart_and_goes_on_with_its_work_on_the_others():
    # Alone it takes two nodes: 100 s of one node's work in 60 s. Half is done at 30, when job 1 waits. It keeps one
    # node, has 50 s to go, and the restart; job 1 starts. Its limit goes on.
    jobs = jobs_of(
        [0, 10], [100, 40], [4, 4], nodes=1, most_nodes=[2, 0], curve=[0, -1], scaling=np.array([[1.0, 0.6]])
    )
    simulation, fifo = Simulation(cluster([4, 4]), jobs, given([200, 200]), AT_EVENTS), RuleRanker(by_name("fifo"))
    simulation.run(fifo, until=30.0)
    with pytest.raises(RltunedError, match="did not ask for 3 nodes"):
        resize(simulation, 0, 3)
    resize(simulation, 0, 1, restart=7.0)
    table = simulation.snapshot().jobs
    assert (table.nodes.tolist(), table.gpus.tolist(), table.end_time[0]) == ([1, 1], [4, 4], 200.0)
    simulation.run(fifo)
    result = simulation.result()
    assert (result.start.tolist(), result.end.tolist()) == ([30, 30], [87, 70])
    assert [set(simulation.nodes_of(row)) for row in range(2)] == [{0}, {1}]
    first, _, runs = runs_of(simulation)
    assert first.tolist() == [0, 30]
    assert [*zip(runs.row, runs.submit, runs.start, runs.end, runs.gpus, strict=True)] == [
        (0, 0, 0, 30, 8),
        (0, 30, 30, 87, 4),
        (1, 10, 30, 70, 4),
    ]
    with pytest.raises(RltunedError, match="has ended"):
        resize(simulation, 0, 1)


def test_a_job_that_wants_more_nodes_requeues_itself_behind_those_that_wait():
    jobs = jobs_of([0, 0], [90, 30], [4, 4], nodes=1, most_nodes=[2, 0], curve=[0, -1], scaling=np.array([[1.0, 0.5]]))
    simulation, fifo = Simulation(cluster([4, 4]), jobs, given([200, 200]), AT_EVENTS), RuleRanker(by_name("fifo"))
    resize(simulation, 0, 1)
    simulation.run(fifo, until=20.0)
    resize(simulation, 0, 2, restart=5.0, requeue=2.0)
    simulation.run(fifo)
    # Job 1 has its node until 30. Then 7 s, and 70 s of work at twice the speed.
    assert simulation.start.tolist() == [30, 0]
    assert simulation.end.tolist() == [72, 30]


class Restless(Asked):
    """Lets some running jobs of a range resize themselves at each refresh, and whenever it is told to."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule, at_once=False)
        self.count = 0

    def some(self, simulation: Simulation) -> None:
        for row in simulation.running.tolist():
            low, high = int(simulation.asked.nodes[row]), int(simulation.asked.most_nodes[row])
            rng = np.random.default_rng([row, round(simulation.now)])
            per_node, ends = simulation.asked.per_node[row], simulation.end[row]
            if per_node and high > low and ends > simulation.now and rng.random() < 0.4:
                before = int(simulation.state.jobs["on"][row])
                resize(simulation, row, after := int(rng.integers(low, high + 1)), restart=9.0, requeue=4.0)
                self.count += after != before

    def keys(self, simulation: Simulation, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        self.some(simulation)
        return super().keys(simulation, rows)


def test_a_job_does_all_its_work_however_often_it_resizes_itself_and_no_gpu_twice():
    resized = 0
    for seed in range(40):
        instance = left_open(random_instance(seed, **EXACT), seed)
        instance = replace(
            instance, estimates=Estimates(np.full(len(instance.jobs), np.inf), np.ones(len(instance.jobs)))
        )
        simulation = Simulation(instance.shape, instance.jobs, instance.estimates, instance.settings)
        ranker = Restless(instance.rule)
        for time in range(0, 4000, 20):
            simulation.run(ranker, until=float(time))
            ranker.some(simulation)
        simulation.run(ranker)
        resized += ranker.count
        result, jobs, need = simulation.result(), instance.jobs, simulation.asked
        runs = runs_of(simulation)[2]
        assert len(runs.row) == len(jobs) + ranker.count
        for row in np.flatnonzero(result.fate == JobFate.COMPLETED).tolist():
            mine = np.flatnonzero(runs.row == row)
            nodes = np.rint(runs.gpus[mine] / max(need.gpus[row], 1)).astype(int)
            curve = jobs.scaling[jobs.curve[row]] if jobs.curve[row] >= 0 else np.ones(1)
            if not (need.per_node[row] and need.gpus[row]):
                continue
            factor = curve[np.minimum(nodes, len(curve)) - 1] / curve[min(int(need.nodes[row]), len(curve)) - 1]
            # 9 s after each change, 4 s more where it got more nodes.
            lost = np.where(np.arange(len(mine)) > 0, 9.0 + 4.0 * (np.diff(nodes, prepend=nodes[0]) > 0), 0.0)
            worked = np.maximum(runs.end[mine] - runs.start[mine] - lost, 0.0) / factor
            assert worked.sum() == pytest.approx(jobs.run_time[row]), f"seed {seed}, job {row}"
            assert (runs.start[mine] >= runs.submit[mine]).all()
        ran = ~np.isnan(runs.start)
        last = np.where(np.isnan(runs.end), np.inf, runs.end)
        for time in np.unique(runs.start[ran]):
            held = (runs.gpus * ran)[(runs.start <= time) & (time < last)].sum()
            assert held <= simulation.asked.capacity[:, 0].sum(), f"seed {seed}, {time} s"
    assert resized > 50

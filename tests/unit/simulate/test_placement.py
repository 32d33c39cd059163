"""What the planner does with placements in the simulator."""

import numpy as np
from unit.simulate.instances import cluster, given, jobs_of

from rltuned.config import Config, PlacementApply, PlacementSection
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import PlanRanker, RuleRanker
from rltuned.workload.speeds import Speeds

STEERED = Config(placement=PlacementSection(apply=PlacementApply.EXCLUDE_NODES, time_limit=30.0))


def steered(shape, jobs, limits, speeds=None, until=np.inf):
    simulation = Simulation(shape, jobs, given(limits), speeds=speeds)
    simulation.run(PlanRanker(by_name("fifo"), STEERED), until)
    return simulation


def test_a_list_that_the_plan_does_not_want_any_more_is_taken_back():
    # Nothing has room, so the plan keeps nobody off anything; the list is one of an earlier plan.
    jobs = jobs_of([0.0, 0.0, 1.0], [500.0, 500.0, 100.0], [4, 4, 1])
    simulation = Simulation(cluster([4, 4]), jobs, given([600.0, 600.0, 200.0]))
    ranker = PlanRanker(by_name("fifo"), STEERED)
    simulation.run(ranker, until=30.0)
    simulation.set_excluded(2, [0])
    simulation.run(ranker, until=90.0)
    assert not simulation.excluded.get(2)


def test_a_long_job_waits_for_the_fast_type_and_a_short_one_takes_the_slow_one():
    shape = cluster([1, 1], types=["k80", "v100"])
    asked = ["v100", "k80", "", ""]
    jobs = jobs_of([0.0, 0.0, 1.0, 2.0], [600.0, 100.0, 9000.0, 60.0], [1, 1, 1, 1], gpu_type=asked)
    # The V100 is taken until 600. Then it does in 900 s what the K80, free at 100, does in 9,000.
    rate = np.ones((4, 2, 2))
    rate[2:, :, 1] = 10.0
    limits = [600.0, 100.0, 9000.0, 60.0]
    simulation = steered(shape, jobs, limits, Speeds(("k80", "v100"), rate))
    assert simulation.gpu_types_of(np.arange(4)) == ["v100", "k80", "v100", "k80"]
    assert simulation.result().end.max() < 2000.0
    assert steered(shape, jobs, limits).gpu_types_of(np.array([2])) == ["k80"]


def test_a_job_on_gpus_of_two_types_ran_on_none_of_them():
    jobs = jobs_of([0.0, 0.0], [600.0, 60.0], [2, 1])
    simulation = Simulation(cluster([1, 1], types=["k80", "v100"]), jobs, given([600.0, 60.0]))
    simulation.run(RuleRanker(by_name("fifo")))
    assert simulation.result().end.tolist() == [600.0, 660.0]
    assert simulation.gpu_types_of(np.array([0, 1])) == ["", "k80"]

"""What the planner does with placements in the simulator."""

from unit.simulate.instances import cluster, given, jobs_of

from rltuned.config import Config, PlacementApply, PlacementSection
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import PlanRanker

STEERED = Config(placement=PlacementSection(apply=PlacementApply.EXCLUDE_NODES, time_limit=30.0))


def test_a_list_that_the_plan_does_not_want_any_more_is_taken_back():
    # Nothing has room, so the plan keeps nobody off anything; the list is one of an earlier plan.
    jobs = jobs_of([0.0, 0.0, 1.0], [500.0, 500.0, 100.0], [4, 4, 1])
    simulation = Simulation(cluster([4, 4]), jobs, given([600.0, 600.0, 200.0]))
    ranker = PlanRanker(by_name("fifo"), STEERED)
    simulation.run(ranker, until=30.0)
    simulation.set_excluded(2, [0])
    simulation.run(ranker, until=90.0)
    assert not simulation.excluded.get(2)

"""What the planner does with placements in the simulator."""

import numpy as np
from unit.simulate.instances import cluster, given, jobs_of

from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker


def test_a_job_on_gpus_of_two_types_ran_on_none_of_them():
    jobs = jobs_of([0.0, 0.0], [600.0, 60.0], [2, 1])
    simulation = Simulation(cluster([1, 1], types=["k80", "v100"]), jobs, given([600.0, 60.0]))
    simulation.run(RuleRanker(by_name("fifo")))
    assert simulation.result().end.tolist() == [600.0, 660.0]
    assert simulation.gpu_types_of(np.array([0, 1])) == ["", "k80"]

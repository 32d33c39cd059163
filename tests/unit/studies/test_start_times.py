"""What a forecast is compared with: the start times that Slurm itself would say."""

import numpy as np
import pytest
from unit.simulate.instances import given, jobs_of

from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import SimulationSettings
from studies.start_times import planned_starts


@pytest.mark.parametrize(("window", "last"), [(86_400.0, 1598.0), (1200.0, np.nan)])
def test_slurm_expects_starts_at_time_limits_one_job_after_the_other_and_nothing_beyond_its_window(window, last):
    # One node of 2 GPUs. The first job runs, with 1,000 s of limit left; the second and third want both GPUs.
    jobs = jobs_of([0.0, 1.0, 2.0], [100.0, 100.0, 100.0], [2, 2, 2])
    simulation = Simulation(parse_shape("1x2"), jobs, given(np.array([1000.0, 600.0, 600.0]), np.full(3, 100.0)))
    simulation.run(RuleRanker(by_name("fifo")), until=2.0)
    snapshot = simulation.snapshot()
    settings = SimulationSettings(bf_resolution=1.0, bf_window=window)
    np.testing.assert_array_equal(planned_starts(snapshot, snapshot.jobs.pending, settings), [998.0, last])

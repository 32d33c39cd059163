from dataclasses import replace

import numpy as np
from unit.simulate.instances import jobs_of

from rltuned.bench_simulate import SLURM_LIKE, at_once, forecast_request, in_windows, most_queued, seconds, trace
from rltuned.evaluate.policies import plan_config
from rltuned.policy.files import load
from rltuned.simulate.episodes import Network
from rltuned.simulate.forecast import StartSimulation
from rltuned.simulate.rankers import PlanRanker


def test_the_benchmark_times_two_simulators_of_the_same_story():
    window = trace(2_000, 200.0, seed=1).window(1_500, 200)
    compiled, plain = window.compiled(), window.plain()
    np.testing.assert_array_equal(compiled.start, plain.start)
    assert most_queued(window.jobs, compiled) > 50
    assert seconds(lambda: in_windows(trace(300, 1.5, seed=3), [0, 20])) > 0


def test_the_longest_queue_is_counted_without_those_who_start_at_once():
    result = trace(10, 1.0, seed=1).compiled()
    jobs = jobs_of([0, 0, 0, 5, 20] + [30] * 5, [1] * 10, [1] * 10)
    result.start[:] = [0, 10, 12, 20, 20, *[30] * 5]
    assert most_queued(jobs, result) == 3  # from 5 on; the five of 30 start at once


def test_the_benchmark_times_a_model_in_two_ways_of_playing_the_same_window():
    window, model = trace(600, 40.0, seed=2).window(300, 150), load("base")
    planned = window.planned(PlanRanker(model, plan_config(placement=False)))
    assert planned.refreshes > 20
    np.testing.assert_array_equal(window.episode(Network.from_actor(model)).start, planned.start)


def test_a_sequence_that_comes_at_once_queues_nearly_whole_and_is_simulated_as_slurm_does_it():
    long = at_once(trace(400, 1.5, seed=1))
    as_slurm = long.compiled(SLURM_LIKE)
    assert 200 < most_queued(long.jobs, as_slurm) < 400
    assert not np.array_equal(as_slurm.start, long.compiled().start)


def test_the_benchmark_forecasts_start_times_of_a_thousand_jobs_with_arrivals_and_probes():
    asked = forecast_request(64, seed=1)
    assert len(asked.rows) == 1_000
    assert len(asked.probes) > 20
    one = replace(asked, probes=asked.probes[:1])
    found = StartSimulation(scenarios=2)(one)
    assert (len(found), len(found.probes), found.scenarios) == (1_000, 1, 2)
    alone = StartSimulation(scenarios=2)(replace(one, submissions=None))
    assert np.mean(found.waits[:, 1] > alone.waits[:, 1]) > 0.2, "those who come make others wait"

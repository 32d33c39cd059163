"""What Slurm is told of a placement."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.place.instances import random_problem

from rltuned.decide.place.placing import isolated, place
from rltuned.decide.place.problem import Kind, Placement, SolveOutcome, Way


def _problem(seed=1, jobs=6, nodes=6):
    problem = random_problem(np.random.default_rng(seed), jobs, nodes, types=1, distinct=False)
    idle = np.ones(nodes, dtype=np.bool_)
    return dataclasses.replace(
        problem,
        nodes=np.ones(jobs, dtype=np.int32),
        gpus=np.ones(jobs, dtype=np.int32),
        gpus_per_node=np.zeros(jobs, dtype=np.int32),
        gpu_type=np.zeros(jobs, dtype=np.int32),
        cpus=np.ones(jobs, dtype=np.int32),
        exclusive=np.zeros(jobs, dtype=np.bool_),
        eligible=np.ones((jobs, nodes), dtype=np.bool_),
        free=np.tile([2.0, 16.0, 1e6, 100.0], (nodes, 1)),
        total=np.tile([2.0, 16.0, 1e6], (nodes, 1)),
        idle=idle,
    )


def _way(job, kind=Kind.PACK, nodes=(0,)):
    return Way(job, kind, nodes, (1,) * len(nodes), 0)


def _placed(*ways):
    return Placement(SolveOutcome.OPTIMAL, ways, 0.0)


def test_nothing_is_isolated_on_a_node_that_is_asleep_or_kept_off_the_others_for_it():
    asleep = np.array([False, True] + [False] * 4)
    placed = _placed(
        _way(0, Kind.SPREAD, (1,)), _way(1, Kind.SPREAD, (2,)), _way(2, Kind.PACK, (1,)), _way(3, nodes=(3,))
    )
    assert isolated(placed, _problem(), asleep) == (1,)
    assert isolated(placed, _problem(), np.zeros(6, dtype=np.bool_)) == isolated(placed, _problem()) == (0, 1)


def test_only_jobs_that_spread_onto_idle_nodes_are_isolated():
    problem = _problem()
    busy = problem.idle.copy()
    busy[3] = False
    alone = np.array([False] * 5 + [True])
    problem = dataclasses.replace(problem, idle=busy, exclusive=alone)
    found = isolated(
        _placed(
            _way(0, Kind.SPREAD, (1,)),
            _way(2, Kind.SPREAD, (3,)),
            _way(3, Kind.PACK, (4,)),
            _way(4, nodes=(4, 5)),
            _way(5, Kind.SPREAD, (0,)),
        ),
        problem,
    )
    assert found == (0,)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), jobs=st.integers(1, 16), nodes=st.integers(1, 10))
def test_only_jobs_planned_now_onto_idle_nodes_are_isolated(seed, jobs, nodes):
    problem = random_problem(np.random.default_rng(seed), jobs, nodes)
    placed = place(problem)
    ways = {way.job: way for way in placed.ways}
    for job in isolated(placed, problem):
        assert problem.idle[list(ways[job].nodes)].all()

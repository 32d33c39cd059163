"""Which GPU types jobs are better off without."""

from dataclasses import replace

import numpy as np
import pytest
from unit.placement.instances import random_problem

from rltuned.placement.types import Running, avoided

NOBODY = Running(())
HOUR = 3600.0


def problem_of(gpus, types=("k80", "k80", "v100"), free=None, gpu_type=None, each=4):
    """Jobs of so many GPUs in rank order, on nodes of `each` GPUs of these types."""
    jobs, nodes = len(gpus), len(types)
    names = tuple(dict.fromkeys(types))
    total = np.zeros((nodes, len(names)), dtype=np.int32)
    for node, name in enumerate(types):
        total[node, names.index(name)] = each
    have = total if free is None else np.minimum(total, np.array(free, dtype=np.int32)[:, None])
    base = random_problem(np.random.default_rng(1), jobs, nodes, slots=1, types=len(names), distinct=False)
    return replace(
        base,
        nodes=np.ones(jobs, dtype=np.int32),
        gpus=np.array(gpus, dtype=np.int32),
        gpus_per_node=np.array(gpus, dtype=np.int32),
        gpu_type=np.full(jobs, -1, dtype=np.int32) if gpu_type is None else np.array(gpu_type, dtype=np.int32),
        cpus=np.ones(jobs, dtype=np.int32),
        mem=np.zeros(jobs),
        tmp=np.zeros(jobs),
        exclusive=np.zeros(jobs, dtype=np.bool_),
        eligible=np.ones((jobs, nodes), dtype=np.bool_),
        free_gpus=have[None],
        free_cpus=np.full((1, nodes), 64, dtype=np.int32),
        free_mem=np.full((1, nodes), 1e6),
        free_tmp=np.zeros((1, nodes)),
        idle=(have == total).all(axis=1)[None],
        total_gpus=total,
        total_cpus=np.full(nodes, 64, dtype=np.int32),
        total_mem=np.full(nodes, 1e6),
    )


def test_a_long_job_waits_for_fast_gpus_that_are_free_soon_and_a_short_one_does_not():
    problem = problem_of([4, 4], free=[4, 4, 0])
    held = Running(((HOUR, np.array([2]), np.array([4])),))
    long, short = [10 * HOUR, 2 * HOUR], [600.0, 120.0]
    # And the short one keeps off the fast GPUs: it would end much later there.
    assert avoided(problem, np.array([long, short]), held).tolist() == [[True, True, False], [False, False, True]]
    # Nobody waits for what is free only in two days.
    late = Running(((48 * HOUR, np.array([2]), np.array([4])),))
    assert not avoided(problem, np.array([long, short]), late)[0, :2].any()


def test_who_gains_most_gets_the_fast_gpus_and_the_other_one_keeps_off_them_if_they_cost_him_much():
    problem = problem_of([4] * 6, types=("k80",) * 5 + ("v100",))
    gains, loses = [8 * HOUR, HOUR], [HOUR, 3 * HOUR]
    found = avoided(problem, np.array([loses, gains, loses, loses, loses, loses]), NOBODY)
    assert found[1].tolist() == [True] * 5 + [False]
    assert (found[[0, 2, 3, 4, 5]] == [False] * 5 + [True]).all()


@pytest.mark.parametrize(
    ("types", "gpu_type"), [(("k80", "k80", "k80"), None), (("k80", "k80", "v100"), [0, 1]), (("k80",) * 3, [0, 0])]
)
def test_nothing_is_avoided_where_there_is_one_type_or_the_job_names_it(types, gpu_type):
    problem = problem_of([4, 4], types=types, gpu_type=gpu_type)
    times = np.array([[10 * HOUR, HOUR]] * 2)[:, : problem.total_gpus.shape[1]]
    assert not avoided(problem, times, NOBODY).any()


def test_a_job_of_which_nothing_is_known_or_that_needs_no_gpus_avoids_nothing():
    problem = problem_of([4, 0])
    found = avoided(problem, np.array([[np.nan, np.nan], [10 * HOUR, HOUR]]), NOBODY)
    assert not found.any()


def test_a_job_is_always_left_a_type_that_can_hold_it():
    rng = np.random.default_rng(4)
    for _ in range(100):
        gpus = rng.choice([1, 2, 4], 8)
        problem = problem_of(gpus, types=("k80", "p100", "v100", "k80"), free=rng.integers(0, 5, 4))
        times = rng.lognormal(8.0, 2.0, (8, 3))
        held = Running(tuple((float(60 * k), np.array([k % 4]), np.array([1])) for k in range(1, 8)))
        without = avoided(problem, times, held)
        assert (problem.eligible & ~without).any(axis=1).all()


def test_gpus_that_nobody_can_have_do_not_make_a_type_cheap():
    types = ("k80", *("v100",) * 5)
    drained = np.array([True, True, *[False] * 4])
    problem = problem_of([4] * 8, types=types)
    half = replace(problem, eligible=problem.eligible & drained)
    times = np.random.default_rng(23).lognormal(8.0, 1.5, (8, 2))
    without_them = avoided(problem_of([4] * 8, types=types[:2]), times, NOBODY)
    np.testing.assert_array_equal(avoided(half, times, NOBODY, drained)[:, :2], without_them)
    assert (avoided(half, times, NOBODY)[:, :2] != without_them).any()

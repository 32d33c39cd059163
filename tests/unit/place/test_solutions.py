"""Every solution can be carried out, is never worse than greedy, and says how it was found."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.place.instances import random_problem
from unit.place.proof import verify

from rltuned.core.tables import Bools
from rltuned.decide.place.outcome import PlacementKind, SolveOutcome
from rltuned.decide.place.placing import isolated, place, worth
from rltuned.decide.place.problem import Placement, PlacementProblem, Way
from rltuned.decide.place.ways import enumerate_ways

PACK, SPREAD = PlacementKind.PACK, PlacementKind.SPREAD


def problem_of(
    gpus: list[int],
    *,
    nodes: int = 1,
    per_node: int = 4,
    cpus: list[int] | None = None,
    held: list[int] | None = None,
    held_cpus: list[int] | None = None,
    **columns: object,
) -> PlacementProblem:
    """One-node jobs on `nodes` equal nodes of one GPU type, 10 CPUs and 100 MiB per GPU; `held` GPUs per node taken."""
    k = len(gpus)
    taken = np.array(held or [0] * nodes)
    taken_cpus = np.array(held_cpus) if held_cpus is not None else taken * 10
    total = per_node * np.tile([1.0, 10.0, 100.0], (nodes, 1))
    values: dict[str, object] = {
        "weight": np.linspace(1.0, 0.9, k),
        "nodes": np.ones(k, dtype=np.int32),
        "gpus": np.array(gpus, dtype=np.int32),
        "gpus_per_node": np.zeros(k, dtype=np.int32),
        "gpu_type": np.where(np.array(gpus) > 0, 0, -1).astype(np.int32),
        "cpus": np.array(cpus or [max(1, g) for g in gpus], dtype=np.int32),
        "mem": np.ones(k),
        "tmp": np.zeros(k),
        "exclusive": np.zeros(k, dtype=np.bool_),
        "eligible": np.ones((k, nodes), dtype=np.bool_),
        "free": np.column_stack((total - np.column_stack((taken, taken_cpus, 0 * taken)), np.zeros(nodes))),
        "total": total,
        "idle": (taken == 0) & (taken_cpus == 0),
    }
    values.update(columns)
    return PlacementProblem(**values)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    jobs=st.integers(1, 24),
    nodes=st.integers(1, 12),
    types=st.integers(1, 3),
)
def test_every_solution_can_be_carried_out_and_none_is_worse_than_greedy(seed, jobs, nodes, types):
    problem = random_problem(np.random.default_rng(seed), jobs, nodes, types=types)
    placed = place(problem)
    assert verify(problem, placed) == ()
    ways = enumerate_ways(problem)
    if ways.columns.patterns:
        assert placed.objective >= worth(ways, ways.greedy) - 1e-9
    assert [way.job for way in placed.ways] == sorted({way.job for way in placed.ways})


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), jobs=st.integers(1, 16))
def test_the_greedy_solution_can_be_carried_out_too(seed, jobs):
    problem = random_problem(np.random.default_rng(seed), jobs, 8)
    # So little time that the root relaxation is not solved: greedy is all there is.
    placed = place(problem, 1e-9)
    assert verify(problem, placed) == ()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_same_problem_has_the_same_solution(seed):
    problem = random_problem(np.random.default_rng(seed), 12, 8)
    first, second = place(problem, 20.0), place(problem, 20.0)
    assert (first.ways, first.objective, first.outcome) == (second.ways, second.objective, second.outcome)


def _broken(placed: Placement, **changes: object) -> Placement:
    first, *rest = placed.ways
    return dataclasses.replace(placed, ways=(dataclasses.replace(first, **changes), *rest))  # type: ignore[arg-type]


def test_verify_finds_each_kind_of_violation():
    problem = problem_of([2, 2, 4], nodes=3)
    placed = place(problem)
    assert len(placed.ways) == 3
    assert verify(problem, placed) == ()
    first, second, third = placed.ways
    assert "placed twice" in str(verify(problem, dataclasses.replace(placed, ways=(first, first))))
    assert "too few nodes" in str(verify(problem, _broken(placed, nodes=(), gpus=())))
    assert "wrong number of GPUs" in str(verify(problem, _broken(placed, gpus=(1,))))
    assert "wrong GPU type" in str(verify(problem, _broken(placed, gpu_type=-1)))
    more = dataclasses.replace(problem, cpus=problem.cpus + 40)
    assert "gives more than it has" in str(verify(more, placed))
    on_one = (
        dataclasses.replace(first, nodes=(0,), kind=SPREAD),
        dataclasses.replace(second, nodes=(0,)),
        third,
    )
    assert "has others" in str(verify(problem, dataclasses.replace(placed, ways=on_one)))
    nowhere: Bools = np.zeros((3, 3), dtype=np.bool_)
    assert "may not use" in str(verify(dataclasses.replace(problem, eligible=nowhere), placed))
    assert "not idle" in str(verify(dataclasses.replace(problem, idle=nowhere[0]), _broken(placed, kind=SPREAD)))
    alone = dataclasses.replace(problem, exclusive=np.ones(3, dtype=np.bool_))
    assert "must have for itself" in str(verify(alone, placed))


def test_packing_leaves_the_idle_node_for_the_job_that_needs_all_of_it():
    placed = place(problem_of([1, 4], nodes=2, held=[2, 0], held_cpus=[2, 0]))
    assert [(way.job, way.nodes) for way in placed.ways] == [(0, (0,)), (1, (1,))]


def test_a_job_spreads_when_the_only_neighbours_press_and_nobody_wants_the_rest_of_the_idle_node():
    crowded = problem_of([1], nodes=4, held=[1, 1, 0, 0], held_cpus=[38, 38, 0, 0], cpus=[2])
    # The idle nodes are off limits for sharing only by pressure of the job's own making: it takes nearly all CPUs.
    greedy_job = problem_of([1], nodes=2, cpus=[39])
    assert place(crowded).ways[0].nodes[0] in {2, 3}
    way = place(greedy_job).ways[0]
    assert way.kind is SPREAD


def test_a_job_packs_when_nobody_presses():
    assert place(problem_of([1], nodes=2)).ways[0].kind is PACK


def test_nobody_joins_a_spread_job():
    # Both want most of a node's CPUs; a third and a fourth that would fit beside them have to go elsewhere.
    problem = problem_of([1, 1, 1, 1], nodes=3, cpus=[38, 38, 2, 2])
    placed = place(problem)
    spread = {way.nodes[0] for way in placed.ways if way.kind is SPREAD}
    assert len(spread) == 2
    assert all(way.nodes[0] not in spread for way in placed.ways if way.kind is PACK)
    assert len(placed.ways) == 4


def test_jobs_that_fit_nowhere_are_infeasible_and_no_error():
    placed = place(problem_of([9], nodes=1))
    assert (placed.outcome, placed.ways) == (SolveOutcome.INFEASIBLE, ())


def test_a_cut_off_solver_leaves_the_greedy_placement_and_says_so():
    problem = random_problem(np.random.default_rng(5), 200, 100)
    placed = place(problem, 1e-9)
    assert placed.outcome in {SolveOutcome.TIMEOUT, SolveOutcome.FEASIBLE}
    assert placed.ways


def test_nothing_is_printed(capfd):
    place(random_problem(np.random.default_rng(3), 20, 8))
    assert capfd.readouterr() == ("", "")


# --- what Slurm is told of a placement


def _way(job, kind=PACK, nodes=(0,)):
    return Way(job, kind, nodes, (1,) * len(nodes), 0)


def _placed(*ways):
    return Placement(SolveOutcome.OPTIMAL, ways, 0.0)


def test_nothing_is_isolated_on_a_node_that_is_asleep_or_kept_off_the_others_for_it():
    asleep, problem = np.array([False, True] + [False] * 4), problem_of([1] * 6, nodes=6, per_node=2)
    placed = _placed(
        _way(0, SPREAD, (1,)),
        _way(1, SPREAD, (2,)),
        _way(2, nodes=(1,)),
        _way(3, nodes=(3,)),
    )
    assert isolated(placed, problem, asleep) == (1,)
    assert isolated(placed, problem, np.zeros(6, dtype=np.bool_)) == isolated(placed, problem) == (0, 1)


def test_only_jobs_that_spread_onto_idle_nodes_are_isolated():
    problem = problem_of([1] * 6, nodes=6, per_node=2)
    busy = problem.idle.copy()
    busy[3] = False
    alone = np.array([False] * 5 + [True])
    problem = dataclasses.replace(problem, idle=busy, exclusive=alone)
    found = isolated(
        _placed(
            _way(0, SPREAD, (1,)),
            _way(2, SPREAD, (3,)),
            _way(3, PACK, (4,)),
            _way(4, nodes=(4, 5)),
            _way(5, SPREAD, (0,)),
        ),
        problem,
    )
    assert found == (0,)

"""The data that a student of the rollouts learns from."""

import numpy as np
from measures.student import RULES, compared, evidence, measured, student
from unit.evaluate.small import busy_jobs

from rltuned.cluster.shape import parse_shape
from rltuned.evaluate.case import cases
from rltuned.evaluate.settings import EvaluationSettings
from rltuned.evaluate.windows import Window
from rltuned.policy import files
from rltuned.simulate.search import OrderSearch
from rltuned.workload.estimates import estimate
from studies.teacher import POINTS, decision_point, requests_of


def test_each_order_of_a_decision_point_is_one_of_the_queue_and_costs_what_a_rollout_says():
    jobs = busy_jobs(120)
    (case,) = cases(jobs, estimate(jobs, "noisy:1.5", 3), parse_shape("2x4"), [Window(0, 0, 120)])
    settings = EvaluationSettings(trace="t", cluster="2x4", window=120, estimates="noisy:1.5")
    requests = requests_of(case, settings, files.load("general"))
    assert len(requests) == POINTS
    search = OrderSearch()
    for asked in requests:
        point = decision_point(asked, search)
        orders, costs = point["orders"], point["costs"]
        n = len(point["run"])
        assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(n), (len(orders), 1)))
        assert np.array_equal(orders[0], np.arange(n))
        assert (np.diff(point["score"]) <= 0).all()
        rollouts = search.rollouts(asked.request)
        last = rollouts.run(np.argsort(orders[-1]).astype(np.float64))
        assert np.array_equal(costs[-1], np.stack(last))
        assert point["state"].shape == (n, 8)
    assert len({asked.request.snapshot.time for asked in requests}) == POINTS


def test_a_student_of_a_few_points_is_a_model_that_can_be_served(tmp_path):
    jobs = busy_jobs(120)
    (case,) = cases(jobs, estimate(jobs, "noisy:1.5", 3), parse_shape("2x4"), [Window(0, 0, 120)])
    settings = EvaluationSettings(trace="t", cluster="2x4", window=120, estimates="noisy:1.5")
    asked = requests_of(case, settings, files.load("general"))
    made = [decision_point(one, OrderSearch()) for one in asked]
    flat = {f"{number}.{key}": value for number, one in enumerate(made) for key, value in one.items()}
    np.savez(tmp_path / "pai-noisy-train-0000.npz", **flat)
    np.savez(tmp_path / "venus-noisy-train-0000.npz", **{f"0.{key}": value for key, value in made[0].items()})
    actor, loss = student(tmp_path, tmp_path / "out", "venus", 20, 0, context=True)
    assert np.isfinite(loss)
    kept = files.load(str(tmp_path / "out" / f"{actor.name}.json"))
    assert not kept.corrects_nothing
    info = files.info(str(tmp_path / "out" / f"{actor.name}.json"))
    assert info.data.startswith(f"{POINTS} decision points"), "without those of Venus"
    assert measured(kept, [case]).shape == (1, 3)


def test_a_move_that_gains_is_evidence_for_the_moved_job_and_one_that_costs_against_it():
    own = [0, 1, 2, 3]
    orders = np.array([own] * RULES + [[2, 0, 1, 3], [1, 2, 3, 0], own])
    costs = np.full((len(orders), 3, 2), 100.0)
    costs[RULES] *= 0.96  # job 2 went first: everything is 4 % less
    costs[RULES + 1] *= 1.02  # job 0 went last: 2 % more
    point = {"run": np.ones(4), "orders": orders, "costs": costs}
    wanted = np.zeros((4, 4))
    wanted[2, [0, 1]] = 0.02
    wanted[0, [1, 2, 3]] += 0.02 / 3
    np.testing.assert_allclose(evidence(point), wanted - wanted.T, atol=1e-7)


def test_a_student_is_measured_beside_its_rule():
    rule = np.array([[10.0, 2.0, 30.0], [20.0, 4.0, 50.0], [30.0, 6.0, 70.0]])
    ratios, (low, high) = compared(0.9 * rule, rule)
    np.testing.assert_allclose([*ratios, low, high], 0.9)
    _, (low, high) = compared(rule * np.array([[0.5], [1.0], [1.2]]), rule)
    assert low < 1.0 < high

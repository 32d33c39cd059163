"""The data that a student of the rollouts learns from."""

import numpy as np
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
    for request in requests:
        point = decision_point(request, search)
        orders, costs = point["orders"], point["costs"]
        n = len(point["run"])
        assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(n), (len(orders), 1)))
        assert np.array_equal(orders[0], np.arange(n))
        assert (np.diff(point["score"]) <= 0).all()
        rollouts = search.rollouts(request)
        last = rollouts.run(np.argsort(orders[-1]).astype(np.float64))
        assert np.array_equal(costs[-1], np.stack(last))
    assert len({point.tobytes() for point in (request.scores for request in requests)}) > 1

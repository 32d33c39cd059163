"""The study of predictions: who is asked about when, and what its columns say."""

import numpy as np
import pytest
from unit.evaluate.small import jobs_of

from rltuned.lab.evaluate.case import cases
from rltuned.lab.evaluate.decided import decided, order_cost
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Estimates
from studies.run_times import rows


def test_jobs_that_waited_are_predicted_from_those_that_had_ended_when_they_started():
    took = [100.0, 1000.0, 2000.0, 3000.0]
    jobs = jobs_of([0, 1, 2, 3], took, gpus=4, user="ann")
    limits = Estimates(np.full(4, 9000.0), np.full(4, 9000.0))
    (case,) = cases(jobs, limits, parse_shape("1x4"), [Window(0, 0, 4)], history=True)
    settings = EvaluationSettings(trace="tiny", cluster="1x4", window=4, windows=1, estimates="history")
    found = decided(case, settings)
    assert found.took.tolist() == took[1:], "the first one did not wait"
    assert found.median[0] == pytest.approx(took[0], rel=1e-3), "it is all that had ended"
    assert found.median[2] > found.median[0]
    of_limit, of_predicted = rows([found], "tiny")
    assert of_limit.startswith(f"| tiny: the limit | {np.abs(np.log(9000.0 / found.took)).mean():.2f} |")
    assert of_predicted.startswith(f"| tiny: predicted | {np.abs(np.log(found.median / found.took)).mean():.2f} |")


def test_the_cost_of_an_order_is_one_where_it_is_the_true_one_and_more_in_any_other():
    took, size = np.array([10.0, 20.0, 40.0]), np.array([1.0, 1.0, 1.0])
    assert order_cost(took * 7.0, took, size) == 1.0
    assert order_cost(-took, took, size) == pytest.approx((40 + 60 + 70) / (10 + 30 + 70))

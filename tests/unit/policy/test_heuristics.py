"""The plain rules, the right way round."""

from dataclasses import replace

import numpy as np
import pytest
from unit.policy.conftest import observation

from rltuned.errors import ConfigError
from rltuned.policy import RULES, by_name

COLUMNS = ("run_time", "time_limit", "gpus", "wait", "submit", "priority")


def queue(**columns):
    """Three jobs that differ only in what is given."""
    seen = observation(jobs=(3, 3))
    same = {"run_time": [60.0] * 3, "gpus": [1.0] * 3, "submit": [0.0] * 3}
    return replace(seen, **{name: np.array(values, dtype=np.float64) for name, values in {**same, **columns}.items()})


def order(name, seen):
    """Jobs from first to last; a list of lists where some tie."""
    scores = by_name(name).score(seen)
    return [np.flatnonzero(scores == value).tolist() for value in sorted(set(scores), reverse=True)]


def test_fifo_starts_with_the_job_submitted_first():
    assert order("fifo", queue(submit=[20.0, 0.0, 10.0], run_time=[1.0, 9.0, 5.0])) == [[1], [2], [0]]


def test_sjf_starts_with_the_shortest_job():
    assert order("sjf", queue(run_time=[600.0, 60.0, 6000.0], gpus=[1.0, 64.0, 1.0])) == [[1], [0], [2]]


def test_saf_starts_with_the_smallest_product_of_run_time_and_gpus():
    assert order("saf", queue(run_time=[600.0, 100.0, 300.0], gpus=[1.0, 8.0, 1.0])) == [[2], [0], [1]]


def test_saf_orders_cpu_jobs_by_run_time_as_if_they_had_one_gpu():
    assert order("saf", queue(run_time=[600.0, 100.0, 300.0], gpus=[0.0, 0.0, 1.0])) == [[1], [2], [0]]


@pytest.mark.parametrize("name", ["sjf", "saf"])
def test_ties_go_to_the_earlier_submission_and_equal_jobs_share_a_score(name):
    assert order(name, queue(submit=[5.0, 0.0, 5.0])) == [[1], [0, 2]]


@pytest.mark.parametrize("name", sorted(RULES))
def test_scores_do_not_depend_on_the_order_of_the_rows(name, seen):
    shuffled = np.random.default_rng(1).permutation(len(seen))
    moved = replace(seen, **{column: getattr(seen, column)[shuffled] for column in COLUMNS})
    assert np.array_equal(by_name(name).score(seen)[shuffled], by_name(name).score(moved))


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_empty_queue_has_no_scores(name, seen):
    nothing = replace(seen, **{column: np.zeros(0) for column in COLUMNS})
    assert by_name(name).score(nothing).shape == (0,)


def test_an_unknown_rule_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"no rule 'lifo'; there are fifo, .*saf, sjf"):
        by_name("lifo")

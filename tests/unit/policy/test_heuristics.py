"""The plain rules, the right way round."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from unit.policy.conftest import observation

from rltuned.errors import ConfigError
from rltuned.policy import RULES, by_name

COLUMNS = ("run_time", "time_limit", "gpus", "wait", "submit", "priority")
SEEN = observation(jobs=(3, 3))


def queue(**columns):
    """Jobs that differ only in what is given; three if nothing says otherwise."""
    n = max((len(values) for values in columns.values()), default=3)
    same = {"run_time": 60.0, "time_limit": 3600.0, "gpus": 1.0, "wait": 0.0, "submit": 0.0, "priority": 5000.0}
    given_or_same = {name: columns.get(name, [value] * n) for name, value in same.items()}
    columns = {name: np.array(values, dtype=np.float64) for name, values in given_or_same.items()}
    return replace(SEEN, rows=np.arange(n), **columns)


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


@pytest.mark.parametrize("name", ["wfp3", "unicep"])
def test_wfp3_and_unicep_prefer_the_job_that_waited_longer_and_at_equal_wait_the_shorter_one(name):
    assert order(name, queue(wait=[10.0, 3000.0, 400.0])) == [[1], [2], [0]]
    assert order(name, queue(wait=[500.0] * 3, run_time=[7200.0, 60.0, 600.0])) == [[1], [2], [0]]


def test_wfp3_is_the_cube_of_wait_over_run_time_times_gpus():
    # (600/300)³·1 = 8, (600/600)³·16 = 16, (1200/300)³·2 = 128
    seen = queue(wait=[600.0, 600.0, 1200.0], run_time=[300.0, 600.0, 300.0], gpus=[1.0, 16.0, 2.0])
    assert by_name("wfp3").key(seen).tolist() == [-8.0, -16.0, -128.0]
    assert order("wfp3", seen) == [[2], [1], [0]]


def test_unicep_is_wait_over_run_time_and_the_logarithm_of_the_gpus():
    # 600/(3·100) = 2, 600/(1·200) = 3, 900/(2·90) = 5
    seen = queue(wait=[600.0, 600.0, 900.0], run_time=[100.0, 200.0, 90.0], gpus=[8.0, 2.0, 4.0])
    assert by_name("unicep").key(seen).tolist() == [-2.0, -3.0, -5.0]


def test_unicep_does_not_put_every_job_of_one_gpu_before_all_others():
    # One GPU counts as two: 100/100 = 1 for both of the first, a CPU job too; the last has 1000/(1·100) = 10.
    seen = queue(wait=[100.0, 100.0, 100.0, 1000.0], run_time=[100.0] * 4, gpus=[1.0, 2.0, 0.0, 2.0])
    assert by_name("unicep").key(seen).tolist() == [-1.0, -1.0, -1.0, -10.0]


def test_f1_is_the_logarithm_of_run_time_times_gpus_plus_870_times_that_of_the_submission():
    # 2·4 + 870·0 (submitted first) = 8, 3·1 + 870·2 = 1743, 2·1 + 870·3 = 2612
    seen = queue(run_time=[100.0, 1000.0, 100.0], gpus=[4.0, 1.0, 1.0], submit=[0.0, 100.0, 1000.0])
    assert by_name("f1").key(seen).tolist() == pytest.approx([8.0, 1743.0, 2612.0])
    assert order("f1", seen) == [[0], [1], [2]]


def test_f1_lets_a_small_job_overtake_one_that_was_submitted_a_little_earlier():
    # 5·64 + 870·log10(1000) = 2930, 1·1 + 870·log10(1100) = 2647
    assert order("f1", queue(run_time=[1e5, 10.0], gpus=[64.0, 1.0], submit=[1000.0, 1100.0])) == [[1], [0]]


def test_multifactor_starts_with_the_highest_priority_and_leaves_ties_to_slurm():
    assert order("multifactor", queue(priority=[10.0, 900.0, 10.0], submit=[5.0, 9.0, 0.0])) == [[1], [0, 2]]


@pytest.mark.parametrize("name", sorted(RULES))
def test_only_the_rules_that_say_so_change_an_order_by_time_alone(name):
    rng = np.random.default_rng(4)
    now = queue(
        run_time=rng.lognormal(6, 2, 60) + 1,
        wait=rng.uniform(0, 9e4, 60),
        gpus=rng.integers(0, 9, 60),
        submit=range(60),
    )
    later = replace(now, wait=now.wait + 1e6)
    if name != "multifactor":  # its priorities come from Slurm, and age there
        assert np.array_equal(by_name(name).score(now), by_name(name).score(later)) != RULES[name].ages


def test_the_plain_rules_are_all_there():
    assert sorted(RULES) == ["f1", "fifo", "multifactor", "saf", "sjf", "unicep", "wfp3"]


@st.composite
def queues(draw):
    """Whatever an observation may hold: run times from a second to a century, waits from nothing, no GPU to a
    million."""
    n = draw(st.integers(1, 8))

    def column(low, high):
        return draw(arrays(np.float64, n, elements=st.floats(low, high)))

    century = 100 * 365 * 86400.0
    return queue(
        run_time=column(1.0, century),
        gpus=np.floor(column(0.0, 1e6)),
        wait=column(0.0, century),
        submit=column(0.0, century),
        priority=np.floor(column(0.0, 2.0**32)),
    )


@pytest.mark.parametrize("name", sorted(RULES))
@given(seen=queues(), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_keys_are_finite_and_scores_move_with_their_jobs(name, seen, seed):
    assert np.isfinite(by_name(name).key(seen)).all()
    shuffled = np.random.default_rng(seed).permutation(len(seen.wait))
    moved = replace(seen, **{column: getattr(seen, column)[shuffled] for column in COLUMNS})
    assert np.array_equal(by_name(name).score(seen)[shuffled], by_name(name).score(moved))


@pytest.mark.parametrize("name", ["sjf", "saf", "wfp3", "unicep"])
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
    with pytest.raises(ConfigError, match=r"no rule 'lifo'; there are f1, fifo, .*saf, sjf"):
        by_name("lifo")

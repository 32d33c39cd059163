"""What the plan asks of the rollout search, and what it makes of the answer."""

import numpy as np
import pytest
from unit.decide.conftest import NOW, make_snapshot, pending

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.changes import Applied
from rltuned.config import Config
from rltuned.decide import plan
from rltuned.decide.rollout import MOST_RECENT, RolloutResult
from rltuned.estimates.predictions import LEAST_ENDED, UNKNOWN_SPREAD, EndedJobs, prediction_error
from rltuned.policy import by_name


class Asked:
    """A search that keeps what it was asked, and puts the first jobs by score in the order of these places."""

    def __init__(self, *places):
        self.places = places

    def __call__(self, request):
        self.request = request
        head = request.rows[np.argsort(-request.scores, kind="stable")][: len(self.places) or None].tolist()
        order = tuple(head[place] for place in self.places) or None
        return RolloutResult(rollouts=3, cost=10.0, best=5.0, simulated=tuple(head), order=order)


class Sceptic:
    """Ranks as SJF, and takes every run time for a tenth of the estimate."""

    name = "sceptic"

    def score(self, observation):
        return by_name("sjf").score(observation)

    def expected_run_time(self, run_time, time_limit):
        assert (run_time <= time_limit).all()
        return np.maximum(run_time / 10.0, 1.0)


def ended_jobs(estimate, time_limit, run_time, began=None, **columns):
    n = len(estimate)
    began = NOW - 1e6 + np.arange(n) if began is None else np.asarray(began)
    plain = {"job_id": 100_000 + np.arange(n), "gpus": np.ones(n), "cpus": np.ones(n), **columns}
    return EndedJobs(estimate, np.full(n, time_limit), np.full(n, run_time), began=began, **plain)


def test_errors_of_ended_jobs_are_a_bias_and_a_spread():
    rng = np.random.default_rng(1)
    expected = np.exp(rng.uniform(6.0, 10.0, 4000))
    found = prediction_error(expected, expected * np.exp(rng.normal(-0.5, 1.4, 4000)))
    assert found.bias == pytest.approx(-0.5, abs=0.1)
    assert found.spread == pytest.approx(1.4, abs=0.1)
    sure = prediction_error(expected, expected)
    assert (sure.bias, sure.spread) == (0.0, 0.0)
    # Seconds are no errors in a plan of hours, but they are where most jobs take seconds.
    run_time = np.repeat([40.0, 7200.0], [20, 30])
    assert prediction_error(np.repeat([1.0, 7200.0], [20, 30]), run_time).spread == 0.0
    found = prediction_error(np.full(50, 10.0), np.repeat([10.0, 40.0], 25))
    assert found.spread == pytest.approx(np.log(40 / 25) / 2)


def test_a_few_ended_jobs_prove_nothing():
    few = prediction_error(np.full(LEAST_ENDED - 1, 1000.0), np.full(LEAST_ENDED - 1, 9000.0))
    assert (few.bias, few.spread) == (0.0, UNKNOWN_SPREAD)
    more = prediction_error(np.full(LEAST_ENDED, 1000.0), np.full(LEAST_ENDED, 9000.0))
    assert 0.0 < more.bias < np.log(9.0)


def test_most_jobs_that_end_within_their_first_second_leave_the_error_finite():
    found = prediction_error(np.repeat([0.0, 600.0], [30, 20]), np.repeat([0.0, 900.0], [30, 20]))
    assert np.isfinite(found).all()
    assert found.spread > 0.0


def test_run_times_are_as_the_policy_expects_them_and_as_they_turned_out():
    snapshot = make_snapshot(pending(3, time_limit=[90_000.0, 600.0, np.inf]))
    estimates = np.array([5000.0, np.nan, 7000.0])
    asked = Asked()
    plan(snapshot, by_name("sjf"), Config(), estimates=estimates, search=asked)
    assert asked.request.run_times.tolist() == [5000.0, 600.0, 7000.0]
    assert asked.request.spread == UNKNOWN_SPREAD
    ended = ended_jobs(np.full(1000, 5000.0), 90_000.0, 1000.0)
    plan(snapshot, Sceptic(), Config(), estimates=estimates, search=asked, ended=ended)
    # A tenth was expected, and they took twice that.
    assert asked.request.run_times == pytest.approx([1000.0, 120.0, 1400.0], rel=0.05)
    assert asked.request.spread == pytest.approx(0.0, abs=1e-9)
    late = ended_jobs(np.full(1000, 10.0), 90_000.0, 90_000.0)
    plan(snapshot, by_name("sjf"), Config(), estimates=estimates, search=asked, ended=late)
    assert asked.request.run_times[1] == 600.0, "nobody runs longer than the limit"


def test_recent_jobs_are_in_the_order_of_their_submission_pending_or_ended():
    table = pending(2, time_limit=[600.0, np.inf], gpus=[4, 0], submit_time=[NOW - 50, NOW - 90])
    ended = ended_jobs(
        np.array([100.0, 900.0]),
        3600.0,
        250.0,
        began=[NOW - 30, NOW - 80],
        gpus=np.array([2.0, 8.0]),
        cpus=np.array([3.0, 9.0]),
    )
    asked = Asked()
    plan(make_snapshot(table), Sceptic(), Config(), estimates=np.array([500.0, 7000.0]), search=asked, ended=ended)
    recent, first = asked.request.recent, int(make_snapshot(table).jobs.job_id[0])
    assert recent.job_id.tolist() == [first + 1, 100_001, first, 100_000]
    assert recent.interarrival.tolist() == [20.0, 10.0, 30.0, 20.0], "the first has the mean of the others"
    assert recent.gpus.tolist() == [0.0, 8.0, 4.0, 2.0]
    assert recent.cpus.tolist()[1::2] == [9.0, 3.0]
    assert recent.time_limit.tolist() == [np.inf, 3600.0, 600.0, 3600.0]
    # Who has ended took what it took; of the others, what is expected.
    assert recent.run_time.tolist()[1::2] == [250.0, 250.0]
    assert recent.run_time.tolist()[::2] == recent.expected.tolist()[::2]
    # A tenth of the estimates, and what is known to be wrong with that.
    assert recent.expected[1] / recent.expected[3] == pytest.approx(9.0)
    assert len(recent) == 4


def test_only_the_last_jobs_count_as_recent_and_one_alone_says_nothing():
    snapshot = make_snapshot(pending(3))
    asked = Asked()
    plan(snapshot, by_name("sjf"), Config(), search=asked, ended=ended_jobs(np.full(1000, 60.0), 600.0, 60.0))
    assert len(asked.request.recent) == MOST_RECENT
    assert set(snapshot.jobs.job_id) <= set(asked.request.recent.job_id), "the last of all are those that wait"
    plan(snapshot, by_name("sjf"), Config(), search=asked)
    assert len(asked.request.recent) == 3
    plan(make_snapshot(pending(1)), by_name("sjf"), Config(), search=asked)
    assert asked.request.recent is None


def test_the_simulated_jobs_stand_in_the_order_that_was_found_and_the_others_behind_them():
    snapshot = make_snapshot(pending(5, time_limit=[500.0, 400.0, 300.0, 200.0, 100.0], eligible_time=[NOW - 60] * 5))
    plain = plan(snapshot, by_name("sjf"), Config())
    a, b, c, d, e = (int(row) for row in plain.rows[plain.queue])
    made = plan(snapshot, by_name("sjf"), Config(), search=Asked(2, 0, 1))
    assert [int(row) for row in made.rows[made.queue]] == [c, a, b, d, e]
    # The scores are the policy's own all the same.
    assert np.array_equal(made.scores, plain.scores)
    kept = plan(snapshot, by_name("sjf"), Config(), search=Asked())
    assert [int(row) for row in kept.rows[kept.queue]] == [a, b, c, d, e]


def test_jobs_of_equal_scores_change_places_too():
    # They ask for other CPUs: of jobs that ask for the same Slurm's order stands.
    snapshot = make_snapshot(pending(3, time_limit=300.0, priority=[30, 20, 10], submit_time=NOW - 60, cpus=[1, 2, 3]))
    plain = plan(snapshot, by_name("sjf"), Config())
    assert len(set(plain.scores)) == 1
    a, b, c = (int(row) for row in plain.rows[plain.queue])
    made = plan(snapshot, by_name("sjf"), Config(), search=Asked(2, 1, 0))
    assert [int(row) for row in made.rows[made.queue]] == [c, b, a]


def test_of_jobs_of_equal_scores_those_that_were_not_simulated_stay_behind():
    snapshot = make_snapshot(
        pending(6, time_limit=300.0, priority=[60, 50, 40, 30, 20, 10], submit_time=NOW - 60, cpus=range(1, 7))
    )
    a, b, c, d, e, f = snapshot.jobs.pending.tolist()
    made = plan(snapshot, by_name("sjf"), Config(), search=Asked(2, 1, 0))
    assert len(set(made.scores)) == 1
    assert [int(row) for row in made.rows[made.queue]] == [c, b, a, d, e, f]


def test_the_search_is_told_what_slurm_alone_gives_not_what_is_raised():
    snapshot = make_snapshot(pending(3, priority=[40, 30, 95], site_factor=[0, 0, 75]))
    ours = AppliedChanges({3: Applied(3, int(snapshot.jobs.submit_time[2]), site_factor=75)})
    plan(snapshot, by_name("sjf"), Config(), ours, search=(asked := Asked()))
    assert dict(zip(asked.request.rows.tolist(), asked.request.base.tolist(), strict=True)) == {0: 40, 1: 30, 2: 20}


def test_whatever_the_search_finds_nobody_passes_a_job_that_cannot_lend():
    snapshot = make_snapshot(pending(3, user=["a", "b", "c"], eligible_time=NOW, cpus=[1, 2, 3]))
    made = plan(snapshot, by_name("sjf"), Config(), search=Asked(2, 1, 0))
    assert made.snapshot.jobs.job_id[made.rows[made.queue]].tolist() == [1, 2, 3]


def test_a_policy_that_fails_gets_no_rollouts():
    class Broken:
        name = "broken"

        def score(self, observation):
            return np.full(len(observation), np.nan)

    asked = Asked(1, 0)
    made = plan(make_snapshot(pending(3)), Broken(), Config(), search=asked)
    assert made.rollout is None
    assert not hasattr(asked, "request")

"""Drift: jobs that are like those of the history, and jobs that are not."""

import json

import numpy as np
import pytest

from rltuned.cluster.verdict import DRIFT_FEATURES
from rltuned.decide import drift


def ended(n, seed, *, factor=1.0, error=1.0, gpus=(1, 1, 2, 4)):
    rng = np.random.default_rng(seed)
    run = factor * rng.lognormal(7.0, 1.5, n)
    predicted = run * np.exp(error * rng.standard_normal(n))
    return drift.columns(run, np.full(n, 86_400.0), rng.choice(gpus, n).astype(np.float64), predicted)


MADE = json.loads(json.dumps(drift.usual(ended(5_000, 1))))


def far(found):
    return {name for name, ratio in drift.drift(MADE, found).items() if ratio > drift.ALARM}


@pytest.mark.parametrize("seed", range(2, 12))
def test_jobs_that_are_like_those_of_the_history_are_not_far_from_them(seed):
    assert far(ended(500, seed)) == set()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"factor": 4.0}, {"run_time"}),
        ({"error": 2.5}, {"prediction_error"}),
        ({"gpus": (4, 8)}, {"gpus"}),
    ],
)
def test_a_feature_that_changes_is_the_one_that_is_named(changed, named):
    assert far(ended(500, 2, **changed)) == named


def test_what_was_usual_in_the_history_is_no_news():
    weeks = [ended(1_000, seed, factor=4.0 ** (seed % 2)) for seed in range(8)]
    history = {name: np.concatenate([week[name] for week in weeks]) for name in DRIFT_FEATURES}
    ratios = drift.drift(drift.usual(history), ended(500, 20, factor=4.0))
    assert ratios["run_time"] < drift.ALARM


def test_with_few_jobs_nothing_is_said():
    assert drift.usual(ended(1_999, 1)) == {}
    assert all(np.isnan(ratio) for ratio in drift.drift(MADE, ended(199, 2, factor=9.0)).values())
    no_limit = ended(500, 2)
    no_limit["time_limit"] = np.full(500, np.inf)
    assert np.isnan(drift.drift(MADE, no_limit)["time_limit"])


@pytest.mark.parametrize(
    "strange",
    [
        None,
        {},
        {"gpus": 3},
        {"gpus": {"points": [], "below": [], "largest": 1}},
        {"gpus": {"points": [1], "below": [1, 2], "largest": 1}},
        {"gpus": {"points": "x", "below": [1], "largest": 1}},
        {"gpus": {"points": [1], "below": [1], "largest": 0}},
        {"gpus": {"points": [1], "below": [1], "largest": "x"}},
    ],
)
def test_a_verdict_that_says_something_strange_says_nothing(strange):
    assert all(np.isnan(ratio) for ratio in drift.drift(strange, ended(500, 2)).values())

"""Predictions from jobs that have ended: which jobs count, what bounds them, what is kept."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from rltuned.cluster.build import job_table
from rltuned.cluster.tables import Floats
from rltuned.errors import WorkloadError
from rltuned.workload.estimates import estimate
from rltuned.workload.jobs import Estimates, Source, workload
from rltuned.workload.predict import LAST_OF_GROUP, Basis, HistoryPredictor, Kind, RunTimeHistory, past, predict_table

ANN = Kind("ann", "physics", "gpu", 4, 3600.0)


def told(*jobs: tuple[Kind, float]) -> RunTimeHistory:
    history = RunTimeHistory()
    for kind, seconds in jobs:
        history.ended(kind, seconds)
    return history


def test_nothing_known_is_the_limit() -> None:
    assert RunTimeHistory().predict(ANN) == (3600.0, Basis.LIMIT)
    assert RunTimeHistory().predict(Kind()) == (math.inf, Basis.LIMIT)


def test_the_median_of_the_users_last_three_alike_counts() -> None:
    history = told(*((ANN, seconds) for seconds in (3000.0, 100.0, 900.0, 200.0)))
    assert history.predict(ANN) == (200.0, Basis.REQUEST)
    assert told((ANN, 100.0), (ANN, 300.0)).predict(ANN) == (200.0, Basis.REQUEST)


@pytest.mark.parametrize(
    ("other", "basis"),
    [
        (Kind("ann", "physics", "gpu", 4, 7200.0), Basis.KIND),
        (Kind("ann", "physics", "gpu", 1, 3600.0), Basis.USER),
        (Kind("ann", "chemistry", "cpu", 0, 60.0), Basis.USER),
        (Kind("bob", "physics", "cpu", 4, 3600.0), Basis.ACCOUNT),
        (Kind("bob", "chemistry", "gpu", 4, 3600.0), Basis.PARTITION),
        (Kind("bob", "chemistry", "cpu", 4, 3600.0), Basis.LIMIT),
    ],
)
def test_less_alike_jobs_stand_in_one_step_after_the_other(other: Kind, basis: Basis) -> None:
    assert told((other, 50.0)).predict(ANN) == (50.0 if basis < Basis.LIMIT else 3600.0, basis)


def test_more_alike_jobs_come_first_even_when_others_are_newer() -> None:
    history = told((ANN, 10.0), (Kind("ann", "physics", "gpu", 4, 60.0), 20.0), (Kind("ann", gpus=1), 30.0))
    assert history.predict(ANN) == (10.0, Basis.REQUEST)


def test_a_prediction_is_bounded_by_limit_and_one_second() -> None:
    history = told((Kind("ann", gpus=4), 9000.0), (Kind("bob"), 0.0))
    assert history.predict(ANN)[0] == 3600.0
    assert history.predict(Kind("bob"))[0] == 1.0


def test_without_users_the_last_ten_of_the_same_kind_count_whoever_they_are() -> None:
    nobody = Kind(partition="vc1", gpus=8, time_limit=600.0)
    history = told(*((nobody, float(seconds)) for seconds in range(1, 31)))
    assert history.predict(nobody) == (25.5, Basis.REQUEST)
    assert history.predict(Kind(partition="vc2", gpus=8, time_limit=600.0)) == (600.0, Basis.LIMIT)


def test_a_job_of_several_partitions_takes_the_most_telling_one() -> None:
    history = told((Kind("ann", "", "b", 4, 3600.0), 77.0), (Kind("zoe", "", "a", 4, 3600.0), 5.0))
    assert history.predict(Kind("ann", "", "a,b", 4, 3600.0)) == (77.0, Basis.REQUEST)


def test_memory_is_bounded_and_the_least_used_goes_first() -> None:
    history = RunTimeHistory(most_keys=30)
    for number in range(1000):
        history.ended(Kind(f"user{number}", "acct", "gpu", 1, 60.0), 5.0)
        history.ended(ANN, float(number))
    assert len(history) == 30
    assert history.predict(ANN) == (998.0, Basis.REQUEST)
    assert history.predict(Kind("user0", "", "", 1, 60.0))[1] is Basis.LIMIT


def test_what_is_known_survives_a_round_through_json() -> None:
    history = told(*((Kind(f"u{n % 7}", "a", "gpu", n % 3, math.inf), float(n)) for n in range(100)))
    again = RunTimeHistory.from_json(json.loads(json.dumps(history.to_json())))
    assert again.to_json() == history.to_json()
    for n in range(8):
        kind = Kind(f"u{n}", "a", "gpu", 2, 60.0)
        assert again.predict(kind) == history.predict(kind)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"format": 2, "last": []},
        {"format": 1, "last": 5},
        {"format": 1, "last": [[0, "u", "p", 1]]},
        {"format": 1, "last": [[9, "u", "p", 1, 60, [1.0]]]},
        {"format": 1, "last": [[0, "u", "p", 1, 60, []]]},
        {"format": 1, "last": [[0, "u", "p", 1, 60, [-1.0]]]},
        {"format": 1, "last": [[0, "u", "p", 1, 60, ["x"]]]},
        {"format": 1, "last": [[0, "u", "p", 1, 60, [math.inf]]]},
        {"format": 1, "last": [[0, "u", "p", 1, 60, [1.0] * (LAST_OF_GROUP + 1)]]},
    ],
)
def test_any_other_json_is_refused(value: object) -> None:
    with pytest.raises(WorkloadError, match="history"):
        RunTimeHistory.from_json(value)


def test_a_simulations_predictor_learns_from_the_jobs_that_end() -> None:
    jobs = workload(Source("t"), range(4), [50.0] * 4, 1, user=["ann", "ann", "bob", "ann"])
    predictor = HistoryPredictor(jobs, np.full(4, 600.0))
    assert predictor.predict(np.array([0, 2])).tolist() == [600.0, 600.0]
    predictor.ended(np.array([0]), np.array([50.0]))
    assert predictor.predict(np.array([1, 2])).tolist() == [50.0, 600.0]


def test_predictors_that_share_a_past_do_not_disturb_each_other() -> None:
    jobs = workload(Source("t"), range(2), [50.0] * 2, 1, user="ann")
    before = told((Kind("ann", gpus=1, time_limit=600.0), 40.0))
    first, second = (HistoryPredictor(jobs, np.full(2, 600.0), before) for _ in range(2))
    first.ended(np.array([0]), np.array([500.0]))
    assert first.predict(np.array([1])).tolist() == [270.0]
    assert second.predict(np.array([1])).tolist() == [40.0]


def test_the_past_of_a_window_is_what_had_ended_by_then_and_no_more() -> None:
    jobs = workload(Source("t"), [0, 10, 20, 30], [5.0, 100.0, 5.0, 7.0], 1, wait_time=[0, 0, 30, 0], user="ann")
    limits = Estimates(np.full(4, 50.0), np.full(4, 50.0))
    kind = Kind("ann", gpus=1, time_limit=50.0)
    # Ends: 5, 60 (killed at its limit of 50), 55, 37.
    assert past(jobs, limits, 30.0).predict(kind) == (5.0, Basis.REQUEST)
    assert past(jobs, limits, 56.0).predict(kind) == (5.0, Basis.REQUEST)
    assert past(jobs, limits, 60.0).to_json()["last"][0][5] == [7.0, 5.0, 50.0]


def test_a_live_queue_gets_nan_where_nothing_is_known() -> None:
    jobs = job_table(3, user=["ann", "bob", "ann"], gpus=[4, 1, 4], partition="gpu", time_limit=[3600.0, 60.0, 20.0])
    known = told((Kind("ann", gpus=4, partition="dev", time_limit=3600.0), 100.0))
    assert predict_table(known, jobs).tolist() == pytest.approx([100.0, math.nan, 20.0], nan_ok=True)


TRACE = Path(__file__).resolve().parents[3] / "../shared/traces/sdsc-blue.swf.gz"


@pytest.mark.skipif(not TRACE.exists(), reason="no traces beside the project")
def test_on_a_real_trace_it_beats_the_users_own_limits() -> None:
    """Accuracy min(r, t) / max(r, t) over the first 8,000 jobs of SDSC-BLUE (the whole: docs/estimates.md)."""
    rows = []
    with gzip.open(TRACE, "rt", encoding="latin-1") as file:
        for line in file:
            if not line.startswith(";"):
                rows.append([float(value) for value in line.split()])
            if len(rows) == 8_000:
                break
    table = np.array(rows)
    ok = (table[:, 3] >= 0) & (table[:, 8] > 0)
    table = table[ok]
    jobs = workload(
        Source("sdsc-blue"),
        table[:, 1],
        table[:, 3],
        table[:, 7],
        time_limit=table[:, 8],
        user=[f"{user:g}" for user in table[:, 11]],
    )
    limits = estimate(jobs, "limit", 1).time_limit
    run_time = np.clip(jobs.run_time, 1.0, limits)
    end = table[:, 1] + np.maximum(table[:, 2], 0) + run_time
    order = np.argsort(end, kind="stable")
    predictor = HistoryPredictor(jobs, limits)
    predicted = np.empty(len(jobs))
    told_until = 0
    for row in range(len(jobs)):
        now_known = int(np.searchsorted(end[order], jobs.submit_time[row], side="right"))
        if now_known > told_until:
            fresh = order[told_until:now_known]
            predictor.ended(fresh, run_time[fresh])
            told_until = now_known
        predicted[row] = predictor.predict(np.array([row]))[0]

    def accuracy(guess: Floats) -> float:
        return float(np.mean(np.minimum(guess, run_time) / np.maximum(guess, run_time)))

    assert (predicted <= limits).all()
    assert accuracy(predicted) > accuracy(limits) + 0.1

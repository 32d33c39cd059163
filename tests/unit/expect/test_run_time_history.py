"""Predictions from jobs that have ended: which jobs count, what bounds them, what is kept."""

import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rltuned.core.errors import WorkloadError
from rltuned.core.plain_tables import job_table
from rltuned.decide.expect.mixture import LAST, Known, Mixture, mean_regression
from rltuned.decide.expect.run_time_history import (
    LEARN_FROM,
    MOST_KEYS,
    JobKind,
    RunTimeHistory,
    predict_table,
)

ANN = JobKind("ann", "physics", "gpu", 4, 3600.0, 8)


def told(*jobs: tuple[JobKind, float], named: bool = False) -> RunTimeHistory:
    history = RunTimeHistory(named=named)
    for at, (kind, seconds) in enumerate(jobs):
        history.ended(kind, seconds, 1e6 + 1e5 * at)
    return history


def wide(history: RunTimeHistory, kind: JobKind) -> float:
    """ln(high / low) of the interval."""
    found = history.run_times([kind])
    return float(np.log(found.high / found.low)[0])


def usual(history: RunTimeHistory, kind: JobKind = ANN) -> float:
    return float(history.run_times([kind]).median[0])


def runs(rng: np.random.Generator, jobs: int, again: float) -> RunTimeHistory:
    """Ten users, who run the same again with that probability, else anything; one job after the other."""
    history, last, now = RunTimeHistory(), dict.fromkeys(range(10), 600.0), 0.0
    for _ in range(jobs):
        user = int(rng.integers(10))
        seconds = last[user] if rng.random() < again else float(np.exp(rng.normal(7.0, 2.0)))
        last[user] = seconds
        history.ended(JobKind(f"u{user}", "a", "gpu", 1, 1e6), seconds, now := now + 1e6)
    history.renew()
    return history


def test_nothing_is_predicted_before_a_job_has_ended() -> None:
    assert math.isnan(RunTimeHistory().predict(ANN))
    assert math.isnan(wide(RunTimeHistory(), ANN))


def test_the_same_again_is_expected_of_who_runs_the_same_again() -> None:
    history = told(*((ANN, seconds) for seconds in (3000.0, 200.0, 200.0, 200.0, 900.0, 200.0)))
    assert usual(history) == pytest.approx(200.0, rel=1e-3)


def test_the_median_is_a_run_time_that_there_was_and_the_expected_one_is_the_mean() -> None:
    history = told(*((ANN, seconds) for seconds in (100.0, 2000.0, 100.0, 2000.0, 100.0)))
    found = usual(history)
    assert found == pytest.approx(100.0, rel=1e-3) or found == pytest.approx(2000.0, rel=1e-3)
    assert 500.0 < history.predict(ANN) < 1500.0


@pytest.mark.parametrize("throw_away", [ANN, replace(ANN, time_limit=60.0)], ids=["the same limit", "a small limit"])
def test_throw_away_runs_do_not_make_a_long_job_look_short(throw_away: JobKind) -> None:
    day = replace(ANN, time_limit=86_400.0)
    history = told(*((day, 72_000.0) for _ in range(10)))
    new_limit = replace(day, time_limit=86_460.0)
    before = history.predict(day), history.predict(new_limit)
    for number in range(20):
        history.ended(throw_away, 5.0, 1e7 + number)
    assert history.predict(day) > 0.6 * before[0]
    assert history.predict(new_limit) > 0.6 * before[1]
    # Who really runs short jobs now pays for each with a real one.
    for number in range(10):
        history.ended(day, 2000.0, 2e7 + number)
    assert history.predict(day) < 0.2 * before[0]


def test_what_limits_say_beside_earlier_run_times_is_learned_from_the_sites_own_jobs() -> None:
    rng, history = np.random.default_rng(4), RunTimeHistory()
    short, long = (JobKind("new", "physics", "gpu", 4, limit, 8) for limit in (600.0, 36_000.0))
    for number in range(1500):  # each by another user
        like = (short, long)[number % 2]
        seconds = like.time_limit * rng.uniform(0.4, 0.6)
        history.ended(replace(like, user=f"u{number}"), seconds, 1e6 + 1e5 * number)
    before = [history.predict(kind) / (0.5 * kind.time_limit) for kind in (short, long)]
    history.renew()
    after = [history.predict(kind) / (0.5 * kind.time_limit) for kind in (short, long)]
    assert before[0] > 2.0 * before[1], "the mixture knows only what all jobs took, and that limits are reached"
    assert after == pytest.approx([1.0, 1.0], rel=0.25)
    again = RunTimeHistory.from_json(json.loads(json.dumps(history.to_json())))
    assert again.predict(short) == pytest.approx(history.predict(short), rel=1e-3)


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        (ANN, replace(ANN, cpus=1)),
        (replace(ANN, cpus=1), replace(ANN, time_limit=7200.0)),
        (replace(ANN, time_limit=7200.0), replace(ANN, gpus=1)),
        (replace(ANN, partition="dev"), replace(ANN, user="bob")),
    ],
)
def test_jobs_that_are_more_alike_tell_more(nearer: JobKind, farther: JobKind) -> None:
    history = told(*[(nearer, 100.0)] * 4, *[(farther, 1000.0)] * 2, *[(nearer, 100.0)] * 2)
    assert usual(history) == pytest.approx(100.0, rel=1e-3)


def test_a_prediction_and_its_interval_are_bounded_by_limit_and_one_second() -> None:
    history = told((replace(ANN, user="bob", time_limit=math.inf), 0.0), *[(replace(ANN, time_limit=1e6), 9000.0)] * 9)
    found = history.run_times([ANN, JobKind("bob"), replace(ANN, time_limit=math.nan)])
    assert (found.median[0], found.high[0]) == (3600.0, 3600.0)
    assert found.expected.max() <= 1e6
    assert found.low.min() >= 1.0
    assert (found.low <= found.median).all()
    assert (found.median <= found.high).all()
    assert found.median[2] == pytest.approx(9000.0, rel=1e-3)


def test_weights_are_learned_from_how_jobs_were_like_earlier_ones() -> None:
    kind = JobKind("u3", "a", "gpu", 1, 1e6)
    rng = np.random.default_rng(1)
    same, anything = runs(rng, 600, 0.95), runs(rng, 600, 0.0)
    for history in (same, anything):
        for _ in range(10):
            history.ended(kind, 777.0, 1e12)
    assert usual(same, kind) == pytest.approx(777.0, rel=1e-3)
    assert wide(same, kind) < 0.5 * wide(anything, kind)


def test_it_is_learned_from_what_was_told_of_jobs_when_they_were_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Known] = []
    monkeypatch.setattr(Mixture, "learn", lambda _self, known, *_others: learned.append(known))
    rng, history, moments = np.random.default_rng(1), RunTimeHistory(), []
    for number in range(1000):
        # Many that end at once, between long ones, several at a time.
        kind = replace(ANN, user=f"u{number % 5}", gpus=1 + number % 2, time_limit=60.0 * (1 + number % 3))
        submitted, seconds = 10.0 * number, float(np.exp(rng.choice([1.0, 9.0]) + rng.normal()))
        moments += [(submitted, number, kind, seconds), (submitted + seconds, -number, kind, seconds)]
    told_then: dict[int, Known] = {}
    ended = []
    for now, number, kind, seconds in sorted(moments, key=lambda moment: moment[:2]):
        if number > 0:
            told_then[number] = history.known(kind)
        elif number < 0:
            ended.append(-number)
            history.ended(kind, seconds, now)
    history.renew()
    np.testing.assert_array_equal(learned[0], [told_then[number] for number in ended])


def test_how_a_users_jobs_are_like_earlier_ones_is_learned_of_each_user() -> None:
    rng, history = np.random.default_rng(6), RunTimeHistory()
    steady, fickle = JobKind("steady", gpus=1, time_limit=1e6), JobKind("fickle", gpus=1, time_limit=1e6)
    for number in range(800):
        seconds = float(np.exp(rng.normal(7.0, 2.0)))
        history.ended(fickle, seconds, 1e6 * number)
        history.ended(steady, 700.0, 1e6 * number)
    alike = wide(history, fickle) / wide(history, steady)
    history.renew()
    assert wide(history, fickle) / wide(history, steady) > 2.0 * alike
    assert wide(history, steady) < 0.2


@pytest.mark.parametrize("again", [0.9, 0.5, 0.0])
def test_four_of_five_jobs_end_within_their_intervals(again: float) -> None:
    rng = np.random.default_rng(2)
    history, last, now, held = RunTimeHistory(), dict.fromkeys(range(10), 600.0), 0.0, []
    for number in range(1500):
        user = int(rng.integers(10))
        kind = JobKind(f"u{user}", "a", "gpu", 1, math.inf)
        last[user] = last[user] * 1.01 if rng.random() < again else float(np.exp(rng.normal(7.0, 2.0)))
        if number >= 500:
            found = history.run_times([kind])
            held.append(found.low[0] <= last[user] <= found.high[0])
        history.ended(kind, last[user], now := now + 1e6)
        history.renew()
    assert 0.75 <= np.mean(held) <= 0.86


def test_predictions_follow_users_who_change_their_habits_within_a_day() -> None:
    rng = np.random.default_rng(5)
    usual_of = np.exp(rng.normal(8.0, 1.5, 20))
    history, error = RunTimeHistory(), np.full((10, 400), np.nan)
    for day in range(10):
        if day == 5:
            usual_of = np.roll(usual_of, 1)
        for number in range(400):
            user = int(rng.integers(20))
            kind = JobKind(f"u{user}", "a", "gpu", 1, 7 * 86_400.0)
            seconds = float(usual_of[user] * np.exp(rng.normal(0.0, 0.3)))
            error[day, number] = abs(math.log(history.run_times([kind]).median[0] / seconds))
            now = (day + number / 400) * 86_400.0
            history.ended(kind, seconds, now)
            history.renew()
    before, changed, after = error[4].mean(), error[5, :20].mean(), error[6].mean()
    assert changed > 3.0 * before, "their habits did change"
    assert after < 1.2 * before


def test_jobs_that_run_together_say_nothing_of_each_other() -> None:
    # A hundred jobs of one array end within a second; each had started before the first of them ended.
    arrays = RunTimeHistory()
    rng = np.random.default_rng(3)
    for number in range(10):
        seconds = float(np.exp(rng.normal(7.0, 2.0)))
        for _ in range(100):
            arrays.ended(ANN, seconds, 1e6 * (number + 1))
    arrays.renew()
    assert wide(arrays, replace(ANN, time_limit=1e6)) > 2.5


def test_without_users_jobs_of_the_same_kind_count_whoever_they_are() -> None:
    nobody = JobKind(partition="vc1", gpus=8, time_limit=600.0)
    history = told((JobKind(partition="vc2", gpus=8, time_limit=600.0), 500.0), *[(nobody, 30.0)] * 5)
    assert usual(history, nobody) == pytest.approx(30.0, rel=1e-3)


def test_a_job_of_several_partitions_takes_the_most_telling_one() -> None:
    history = told((replace(ANN, partition="b"), 77.0), (replace(ANN, partition="a", user="zoe"), 5.0))
    assert history.predict(replace(ANN, partition="a,b")) == history.predict(replace(ANN, partition="b"))


def test_memory_is_bounded_and_the_least_used_goes_first() -> None:
    history = RunTimeHistory(most_keys=30)
    for number in range(1000):
        history.ended(JobKind(f"user{number}", "acct", "gpu", 1, 60.0), 5.0, 100.0 * number)
        history.ended(ANN, float(number), 100.0 * number)
    assert len(history) == 30
    assert 990.0 <= usual(history) <= 999.0
    assert history.predict(JobKind("user0", "", "", 1, 1e6)) == history.predict(JobKind("nobody", "", "", 1, 1e6))


def test_what_is_known_survives_a_round_through_json() -> None:
    history = runs(np.random.default_rng(4), 300, 0.7)
    again = RunTimeHistory.from_json(json.loads(json.dumps(history.to_json())))
    assert again.to_json() == history.to_json()
    kinds = [JobKind(f"u{n}", "a", "gpu", 1, limit) for n in range(12) for limit in (60.0, 1e6)]
    for known in (history, again):
        for _ in range(200):
            known.ended(kinds[3], 5.0, 1e12)
        known.renew()
    for ours, theirs in zip(history.run_times(kinds), again.run_times(kinds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.02)


def test_the_jobs_of_the_log_stay_their_users_where_the_keys_of_these_are_forgotten() -> None:
    history = RunTimeHistory(most_keys=30)
    for number in range(300):
        history.ended(JobKind(f"u{number % 40}", gpus=1, time_limit=60.0), 5.0, 100.0 * number)
    again = RunTimeHistory.from_json(json.loads(json.dumps(history.to_json())), most_keys=30)
    assert [job[0] for job in again.to_json()["log"]] == [f"u{number % 40}" for number in range(300)]


def test_a_key_that_a_file_has_twice_counts_once() -> None:
    known = told((ANN, 5.0), (replace(ANN, gpus=1), 7.0)).to_json()
    twice = known | {"last": [*known["last"], known["last"][0]]}
    twice["log"][1][1][0] = len(known["last"])
    again = RunTimeHistory.from_json(json.loads(json.dumps(twice))).to_json()
    assert len(again["last"]) == len(known["last"])
    assert again["log"][1][1][0] < len(known["last"])


def test_long_and_strange_names_of_users_take_no_more_memory_than_they_are_long() -> None:
    history, kind = RunTimeHistory(), JobKind("x\0" + 20_000 * "y", gpus=1, time_limit=6e4)
    for number in range(1000):
        history.ended(replace(kind, user="bob"), float(np.exp(number % 9)), 1e6 * number)
        history.ended(kind, 700.0, 1e6 * number)
    tracemalloc.start()
    history.renew()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
    assert wide(history, kind) < 0.5 * wide(history, replace(kind, user="bob")), "it has weights of its own"


def test_of_more_users_than_are_learned_from_the_last_ones_count() -> None:
    history = RunTimeHistory()
    for number in range(2 * LEARN_FROM + 50):
        history.ended(JobKind(f"u{number}", time_limit=60.0), 5.0, 100.0 * number)
    history.renew()
    log = history.to_json()["log"]
    assert LEARN_FROM <= len(log) <= 2 * LEARN_FROM
    assert log[-1][0] == f"u{2 * LEARN_FROM + 49}"


GOOD: dict[str, Any] = json.loads(json.dumps(told((ANN, 5.0)).to_json()))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        GOOD | {"format": 1},
        GOOD | {"last": 5},
        GOOD | {"last": [[0, "u", "p", 1, 60, 1]]},
        GOOD | {"last": [[9, "u", "p", 1, 60, 1, [1.0]]]},
        GOOD | {"last": [[0, "u", "p", 1, 60, 1, []]]},
        GOOD | {"last": [[0, "u", "p", 1, 60, 1, [-1.0]]]},
        GOOD | {"last": [[0, "u", "p", 1, 60, 1, ["x"]]]},
        GOOD | {"last": [[0, "u", "p", 1, 60, 1, [math.inf]]]},
        GOOD | {"last": [[0, "u", "p", 1, 60, 1, [1.0] * (LAST + 1)]]},
        GOOD | {"log": [["u", [0, 1, 2, 3, 5], 5.0, 9.0, None, [0] * 5]]},
        GOOD | {"log": [["u", [0, 1, 2, 3], 5.0, 9.0, None, [0] * 5]]},
        GOOD | {"log": [["u", [0, 1, 2, 3, 4], 5.0, "now", None, [0] * 5]]},
        GOOD | {"mixture": None},
        GOOD | {"log": [["u", [0, 1, 2, 3, 4], 5.0, 9.0, None]]},
        GOOD | {"log": [["u", [0, 1, 2, 3, 4], 5.0, 9.0, None, [0, 0, 0, 2, 0]]]},
        GOOD | {"log": [["u", [0, 1, 2, 3, 4], 5.0, 9.0, None, [0, [], 0, 0, 0]]]},
        GOOD | {"log": [[7, [0, 1, 2, 3, 4], 5.0, 9.0, None, [0] * 5]]},
        GOOD | {"mixture": {"weights": [1.0], "wider": 0.0}},
        GOOD | {"mixture": GOOD["mixture"] | {"own": {"ann": [1.0]}}},
        GOOD | {"mixture": GOOD["mixture"] | {"own": []}},
        GOOD | {"mixture": GOOD["mixture"] | {"wider": math.nan}},
        GOOD | {"mixture": GOOD["mixture"] | {"weights": [0.0] * len(GOOD["mixture"]["weights"])}},
    ],
)
def test_any_other_json_is_refused(value: object) -> None:
    RunTimeHistory.from_json(GOOD)
    with pytest.raises(WorkloadError, match="history"):
        RunTimeHistory.from_json(value)


def test_a_live_queue_gets_nan_while_nothing_is_known_and_each_kind_the_same() -> None:
    jobs = job_table(3, user=["ann", "bob", "ann"], gpus=[4, 1, 4], partition="gpu", time_limit=[3600.0, 60.0, 20.0])
    assert np.isnan(predict_table(RunTimeHistory(), jobs).expected).all()
    known = predict_table(told(*[(JobKind("ann", gpus=4, partition="dev", time_limit=3600.0), 100.0)] * 5), jobs)
    assert known.median[[0, 2]] == pytest.approx([100.0, 20.0], rel=1e-3)
    assert known.expected[1] <= 60.0


@cache
def site(jobs: int) -> tuple[RunTimeHistory, list[JobKind], float]:
    """What is known when jobs of fifty users have ended, who have a run time each; their kinds, and the time then."""
    rng, history = np.random.default_rng(1), RunTimeHistory()
    kinds = [JobKind(f"u{number}", "a", "gpu", 1, 86_400.0, 8) for number in range(50)]
    usual_time = rng.uniform(600.0, 30_000.0, len(kinds))
    for number in range(jobs):
        history.ended(kinds[number % 50], usual_time[number % 50] * rng.uniform(0.8, 1.2), 60.0 * (number + 1))
    history.renew()
    return history, kinds, 60.0 * jobs


def sent(known: RunTimeHistory, now: float, jobs: int, seconds: float, *, alike: bool) -> RunTimeHistory:
    """What is known when one user's short jobs have ended, too, all alike or each of a limit and of CPUs of its own."""
    history = known.copy()
    for number in range(jobs):
        limit, cpus = (3600.0, 1) if alike else (60.0 * (1 + number % 5000), 1 + number % 63)
        history.ended(JobKind("mallory", "b", "gpu", 1, limit, cpus), seconds, now + 0.1 * number)
        if number % 3000 == 0:
            history.renew()
    history.renew()
    return history


@pytest.mark.parametrize(
    ("jobs", "tasks", "seconds", "alike"),
    [
        (10_000, 8_000, 2.0, True),
        (10_000, 9_500, 2.0, True),
        (10_000, 12_000, 2.0, True),
        (10_000, 12_000, 400.0, True),
        (10_000, 17_000, 2.0, False),
        (1_000, 9_500, 2.0, True),  # a site of which little is known yet
        (1_000, 9_500, 2.0, False),
    ],
)
def test_nobodys_jobs_change_what_is_expected_of_the_others(jobs: int, tasks: int, seconds: float, alike: bool) -> None:
    history, kinds, now = site(jobs)
    before = history.run_times(kinds)
    after = sent(history, now, tasks, seconds, alike=alike).run_times(kinds)
    for was, column in zip(before[:2], after[:2], strict=True):
        np.testing.assert_allclose(column, was, rtol=0.1 if jobs == 10_000 else 0.15)
    assert np.abs(np.log((after.high / after.low) / (before.high / before.low))).max() < 0.5


def test_who_sends_many_kinds_of_jobs_drives_out_what_is_known_of_nobody_else() -> None:
    history, kinds, now = site(1_000)
    known = sent(history, now, 48_000, 2.0, alike=False)
    assert all(np.isfinite(known.known(kind)[0]).all() for kind in kinds)
    assert len(known) <= MOST_KEYS
    assert len(known.to_json()["log"]) <= 2 * LEARN_FROM


# --- names ----------------------------------------------------------------------------------------------------------


def called(rng: np.random.Generator, jobs: int, says: Callable[[int], int]) -> list[tuple[JobKind, float]]:
    """Jobs of ten users, of three sorts each, which differ twentyfold and ask for the same; `says`: the name of a job
    of a sort.
    """
    found = []
    for _ in range(jobs):
        user, sort = (int(rng.integers(most)) for most in (10, 3))
        kind = JobKind(f"u{user}", "a", "gpu", 1, 86_400.0, 8, name=says(sort))
        found.append((kind, 30.0 * 20.0**sort * float(np.exp(rng.normal(0.0, 0.2)))))
    return found


def errors(jobs: list[tuple[JobKind, float]], *, named: bool) -> float:
    """Mean error of the last 500 of them, |ln(median / run time)|."""
    history, found = RunTimeHistory(named=named), []
    for at, (kind, seconds) in enumerate(jobs):
        if at >= len(jobs) - 500:
            found.append(abs(math.log(history.run_times([kind]).median[0] / seconds)))
        history.ended(kind, seconds, 1e6 * (at + 1))
        history.renew()
    return float(np.mean(found))


def test_names_that_tell_of_jobs_that_ask_for_the_same_are_learned() -> None:
    jobs = called(np.random.default_rng(8), 1000, lambda sort: 1 + sort)
    assert errors(jobs, named=True) < 0.4
    assert errors(jobs, named=False) > 1.5


def test_names_that_tell_nothing_or_mislead_cost_next_to_nothing() -> None:
    rng = np.random.default_rng(9)
    for says in (lambda _: int(rng.integers(1, 4)), lambda _: int(rng.integers(1, 1 << 60))):
        jobs = called(np.random.default_rng(8), 1000, says)
        assert errors(jobs, named=True) < 1.05 * errors(jobs, named=False)
    # What had a name of its own for half of the time has those of the others from then on.
    jobs = called(np.random.default_rng(8), 1000, lambda sort: 1 + sort)
    jobs += called(np.random.default_rng(7), 1000, lambda sort: 1 + (sort + 1) % 3)
    assert errors(jobs, named=True) < 1.05 * errors(jobs, named=False)


def test_a_history_without_names_is_the_same_whatever_jobs_are_called() -> None:
    jobs = called(np.random.default_rng(8), 300, lambda sort: 1 + sort)
    with_names, without = told(*jobs), told(*((replace(kind, name=0), seconds) for kind, seconds in jobs))
    with_names.renew()
    without.renew()
    assert json.dumps(with_names.to_json()) == json.dumps(without.to_json())
    assert with_names.to_json()["format"] == 3
    assert with_names.predict(jobs[0][0]) == without.predict(replace(jobs[0][0], name=7))


def test_a_name_tells_most_of_jobs_that_also_ask_for_the_same() -> None:
    kind = replace(ANN, name=5)
    other, unlike = replace(kind, gpus=1, time_limit=60_000.0), replace(ANN, name=6)
    history = told(*[(unlike, 3000.0)] * 4, *[(other, 900.0)] * 4, *[(kind, 100.0)] * 4, named=True)
    assert usual(history, kind) == pytest.approx(100.0, rel=1e-3)
    # Of nothing else than the name it is known what such a job takes.
    strange = replace(ANN, partition="dev", gpus=16, time_limit=7000.0)
    assert history.predict(replace(strange, name=6)) > 1.2 * history.predict(replace(strange, name=5))
    assert history.predict(replace(strange, name=5, user="bob")) == history.predict(replace(strange, user="bob"))


def test_what_names_tell_survives_a_round_through_json() -> None:
    jobs = called(np.random.default_rng(8), 400, lambda sort: (1 << 62) + sort)
    history = told(*jobs, named=True)
    history.renew()
    known = history.to_json()
    again = RunTimeHistory.from_json(json.loads(json.dumps(known)))
    assert (again.named, again.to_json(), known["format"]) == (True, known, 4)
    assert again.predict(jobs[0][0]) == pytest.approx(history.predict(jobs[0][0]), rel=1e-3)
    for value in (known | {"format": 3}, told(*jobs).to_json() | {"format": 4}):
        with pytest.raises(WorkloadError, match="history"):
            RunTimeHistory.from_json(value)


def test_it_is_learned_from_what_names_told_of_jobs_when_they_were_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Known] = []
    monkeypatch.setattr(Mixture, "learn", lambda _self, known, *_others: learned.append(known))
    history, known_then = RunTimeHistory(named=True), []
    for at, (kind, seconds) in enumerate(called(np.random.default_rng(3), 300, lambda sort: sort)):
        known_then.append(history.known(kind))
        history.ended(kind, seconds, 1e6 * (at + 1))
    history.renew()
    np.testing.assert_array_equal(learned[0], known_then)


def test_who_calls_each_job_something_else_drives_out_what_is_known_of_nobody_else() -> None:
    history = told(*[(replace(ANN, name=5), 700.0)] * 300, named=True)
    history.renew()
    before = history.run_times([replace(ANN, name=5)])
    for number in range(20_000):
        history.ended(JobKind("mallory", "b", "gpu", 1, 3600.0, 1, name=1 + number), 2.0, 1e9 + number)
    history.renew()
    assert len(history) < 1_100
    for was, column in zip(before[:2], history.run_times([replace(ANN, name=5)])[:2], strict=True):
        np.testing.assert_allclose(column, was, rtol=0.1)


def test_jobs_of_a_live_queue_that_differ_by_name_are_told_apart() -> None:
    jobs = job_table(4, user="ann", gpus=4, partition="gpu", time_limit=3600.0, cpus=8)
    known = told(*[(replace(ANN, name=5), 100.0), (replace(ANN, name=1 << 62), 2000.0)] * 5, named=True)
    found = predict_table(known, jobs, np.array([5, 1 << 62, 5, 7])).expected
    assert found[0] == found[2] < 0.8 * found[1]
    assert found[3] == predict_table(known, jobs).expected[0], "what is called otherwise is as what nothing is known of"


def test_the_regression_is_of_the_mean_and_not_of_the_mean_logarithm() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(0.0, 10.0, size=20_000)
    values = np.exp(1.0 + 0.5 * x + rng.normal(size=len(x)))  # the mean is e^(1/2) times the median
    columns = np.column_stack((np.ones(len(x)), x))
    assert mean_regression(columns, values) == pytest.approx([1.5, 0.5], abs=0.05)
    # A column that says the same twice, and a few values far off.
    values[:5] = 1e9
    twice = np.column_stack((columns, 2.0 * x))
    at_three = float(np.exp(np.array([1.0, 3.0, 6.0]) @ mean_regression(twice, values)))
    assert at_three == pytest.approx(float(np.exp(np.array([1.0, 3.0]) @ mean_regression(columns, values))), rel=1e-3)


def test_a_weight_counts_as_so_many_of_the_same() -> None:
    rng = np.random.default_rng(3)
    columns = np.column_stack((np.ones(60), rng.normal(size=60)))
    values, times = rng.exponential(size=60) + 0.1, rng.integers(1, 5, size=60)
    found = mean_regression(columns, values, times.astype(np.float64))
    np.testing.assert_allclose(found, mean_regression(np.repeat(columns, times, axis=0), np.repeat(values, times)))

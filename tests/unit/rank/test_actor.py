"""Inference of the learned ranking."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from unit.rank.conftest import actor_of, expecting

from rltuned.core.objective import Objective
from rltuned.decide.rank import by_name
from rltuned.decide.rank.actor import MOMENT, RUN_TIME, on_means, plain_rule, shapes, with_network
from rltuned.decide.see.observation import STATE_COLUMNS, Observation

HORIZON = 30 * 86400.0
COEFFICIENTS = (-1.5, 0.45, 0.625)
ACTORS = pytest.mark.parametrize(
    "actor",
    [actor_of(), actor_of(hidden=0), expecting(actor_of(seed=3, hidden=2), *COEFFICIENTS)],
    ids=["network", "plain rule", "expected run times"],
)


def permuted(seen: Observation, order):
    n = len(seen)
    state = seen.state.copy()
    state[: len(order)] = state[:n][order]
    columns = ("rows", "features", "run_time", "time_limit", "gpus", "wait", "submit", "priority")
    return replace(seen, state=state, **{name: getattr(seen, name)[order] for name in columns})


@ACTORS
def test_permuting_the_jobs_permutes_the_scores(actor, seen):
    order = np.random.default_rng(3).permutation(len(seen))
    scores = actor.score(seen)
    assert scores.shape == (len(seen),)
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > len(scores) // 2
    np.testing.assert_allclose(actor.score(permuted(seen, order)), scores[order], atol=2e-6)


def plain_sum(actor, seen):
    """The scores by loops over plain numbers, after the words of docs/ranking.md."""
    rows = [[float(value) for value in row] for row in seen.state[: len(seen)]]
    weights = {name: value.astype(float).tolist() for name, value in actor.weights.items()}
    area = 0.0
    for row, r, limit, gpus, wait in zip(rows, seen.run_time, seen.time_limit, seen.gpus, seen.wait, strict=True):
        expected = r
        if RUN_TIME in weights and r < min(limit, HORIZON):
            c0, c1, c2 = weights[RUN_TIME]
            expected = min(max(math.exp(c0) * r**c1 * min(limit, HORIZON) ** c2, 1.0), limit)
        row[STATE_COLUMNS.index("requested_time")] = min(math.log(1 + expected) / math.log(1 + HORIZON), 1.0)
        urgency = math.log(1 + wait / max(expected, 10.0)) / math.log(1 + HORIZON / 10)
        row[STATE_COLUMNS.index("job_urgency")] = min(urgency, 1.0)
        area += expected * max(gpus, 1.0)
    moment = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    moment.append(math.log(1 + len(rows)) / math.log(1 + 256))
    moment.append(math.log(1 + area / 3600 / seen.cluster_gpus) / math.log(1 + HORIZON / 3600))
    moment += [actor.objective.wait, actor.objective.slowdown, actor.objective.tail, actor.objective.idle]
    units = []
    for unit in range(actor.hidden):
        into = sum(m * weights["kernel"][at][unit] for at, m in enumerate(moment))
        units.append(math.tanh(into + weights["bias"][unit]))
    coefficients = [
        constant + sum(value * weights["change"][unit][column] for unit, value in enumerate(units))
        for column, constant in enumerate(weights["constant"])
    ]
    return [sum(c * x for c, x in zip(coefficients, row, strict=True)) for row in rows], moment, coefficients


@ACTORS
def test_scores_equal_a_sum_in_plain_python(actor, seen):
    actor = replace(actor, objective=Objective(0.1, 0.2, 0.3, 0.4))
    scores, moment, coefficients = plain_sum(actor, seen)
    made = actor.explained(seen)
    np.testing.assert_allclose(made.scores, scores, atol=1e-6)
    np.testing.assert_allclose(made.moment, moment, atol=1e-6)
    np.testing.assert_allclose(made.coefficients, coefficients, atol=1e-6)
    np.testing.assert_allclose(made.terms @ made.coefficients, made.scores, atol=1e-6)
    assert np.array_equal(actor.score(seen), made.scores)
    assert len(moment) == len(MOMENT)


def test_a_network_whose_last_layer_is_zero_changes_nothing(seen):
    rule = plain_rule("mine", np.array(COEFFICIENTS, np.float32), requested_time=-1.0, job_urgency=0.25)
    usual, spread = np.linspace(0.1, 0.6, len(MOMENT)), np.linspace(0.1, 0.3, len(MOMENT))
    grown = with_network(rule, usual, spread)
    assert grown.hidden == len(MOMENT)
    assert rule.is_rule
    assert grown.is_rule
    assert {name: value.shape for name, value in grown.weights.items()} == shapes(len(MOMENT)) | {RUN_TIME: (3,)}
    assert np.array_equal(grown.score(seen), rule.score(seen))
    change = np.zeros((len(MOMENT), len(STATE_COLUMNS)), np.float32)
    change[MOMENT.index("backlog"), 0] = 1.0
    at_work = replace(grown, weights={**grown.weights, "change": change})
    far = usual + 2.0 * spread * (np.array(MOMENT) == "backlog")
    assert at_work.coefficients(usual) == pytest.approx(rule.coefficients(usual), abs=1e-6)
    assert at_work.coefficients(far)[0] == pytest.approx(-1.0 + np.tanh(2.0), abs=1e-6)
    assert not at_work.is_rule
    assert not np.array_equal(at_work.score(seen), rule.score(seen))


def test_a_queue_of_twice_the_jobs_on_twice_the_gpus_has_the_same_backlog(seen):
    actor, at = actor_of(), MOMENT.index("backlog")
    twice = np.repeat(np.arange(len(seen)), 2)
    doubled = replace(permuted(seen, twice), cluster_gpus=2 * seen.cluster_gpus)
    assert actor.explained(doubled).moment[at] == pytest.approx(actor.explained(seen).moment[at])


RUN_TIMES = np.array([100.0, 1000.0, 50.0, 3600.0])
LIMITS = np.array([3600.0, 7200.0, np.inf, 3600.0])


def test_no_job_is_expected_to_outlive_its_limit_or_to_run_for_less_than_a_second():
    longest = expecting(actor_of(), 3e38, 1.0, 1.0)
    assert np.array_equal(longest.expected_run_time(RUN_TIMES, LIMITS)[[0, 1, 3]], LIMITS[[0, 1, 3]])
    for unlimited in (np.inf, np.nan):
        assert np.isfinite(longest.expected_run_time(RUN_TIMES, np.full(4, unlimited))).all()
    shortest = expecting(actor_of(), -3e38, 1.0, 1.0)
    assert shortest.expected_run_time(RUN_TIMES, LIMITS).tolist() == [1.0] * 3 + [3600.0]


def test_without_coefficients_or_where_the_estimate_is_the_limit_the_run_time_is_what_is_expected():
    assert np.array_equal(actor_of().expected_run_time(RUN_TIMES, LIMITS), RUN_TIMES)
    actor, some = expecting(actor_of(), np.log(2.0), 0.5, 0.25), np.array([3600.0, 60.0, 3600.0, 3599.0])
    assert (actor.expected_run_time(some, np.full(4, 3600.0)) != some).tolist() == [False, True, False, True]
    # Neither limit nor estimate: a stand-in of a year, which is no estimate.
    year = np.full(9, 365 * 86400.0)
    assert np.array_equal(actor.expected_run_time(year, np.full(9, np.inf)), year)
    assert actor.expected_run_time(np.zeros(0), np.zeros(0)).shape == (0,)


def test_run_times_that_are_predicted_means_are_not_corrected(seen):
    actor = actor_of()
    errs = expecting(actor, *COEFFICIENTS)
    short = replace(seen, run_time=np.maximum(0.1 * seen.run_time, 1.0))
    assert not np.allclose(errs.score(short), actor.score(short))
    assert np.array_equal(on_means(errs).score(short), actor.score(short))
    assert on_means(errs).objective == errs.objective
    assert RUN_TIME in errs.weights
    assert on_means(actor) is actor
    rule = by_name("saf")
    assert on_means(rule) is rule


def test_the_state_of_an_observation_is_left_as_it_is(seen):
    before = seen.state.copy()
    expecting(actor_of(), *COEFFICIENTS).score(seen)
    assert np.array_equal(seen.state, before)


@ACTORS
def test_equal_jobs_have_equal_scores_wherever_they_stand(actor, seen):
    alike = permuted(seen, np.zeros(len(seen), dtype=np.intp))
    assert len(set(actor.score(alike).tolist())) == 1


@ACTORS
def test_an_empty_queue_has_no_scores_and_finite_coefficients(actor, seen):
    made = actor.explained(permuted(seen, np.zeros(0, dtype=np.intp)))
    assert made.scores.shape == (0,)
    assert made.terms.shape == (0, len(STATE_COLUMNS))
    assert np.isfinite(made.coefficients).all()
    assert made.moment[: len(STATE_COLUMNS) + 2].tolist() == [0.0] * (len(STATE_COLUMNS) + 2)


def test_the_summary_names_the_terms_that_count():
    rule = plain_rule("mine", requested_time=-1.0, job_urgency=0.25)
    assert rule.summary == "the largest -1.00 · requested_time +0.25 · job_urgency, the same at every moment"
    assert plain_rule("none").summary == "the largest 0, the same at every moment"
    grown = with_network(expecting(rule, *COEFFICIENTS), np.zeros(len(MOMENT)), np.ones(len(MOMENT)))
    grown.weights["change"][:2, STATE_COLUMNS.index("requested_gpus")] = [0.25, -0.5]
    assert grown.summary == (
        "the largest -1.00 · requested_time +0.00 ± 0.75 · requested_gpus +0.25 · job_urgency, ± what the moment "
        "changes, by 14 hidden units; run times are expected ones (predicted means as they are; "
        "e^-1.50 · r^0.45 · L^0.62 of any other estimate r and limit L)"
    )


def test_ranking_imports_no_tensorflow():
    code = (
        "import sys, rltuned.decide.plan, rltuned.records.model_files; "
        "sys.exit(any(name.split('.')[0] in {'tensorflow', 'keras', 'scipy'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Inference of the learned ranking."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from unit.policy.conftest import actor_of, observation

from rltuned.observe import Observation
from rltuned.policy import Activation, Actor, by_name
from rltuned.policy.actor import AGEING, CORRECTED, RUN_TIME, on_means, rule_level

SHAPES = [
    {},
    {"activation": Activation.TANH},
    {"context": True},
    {"residual": "saf"},
    {"context": True, "residual": "sjf", "hidden": (16,)},
]


def with_weights(actor, weights):
    return replace(actor, weights={**actor.weights, **weights})


def permuted(seen: Observation, order):
    n = len(seen)
    state = seen.state.copy()
    state[: len(order)] = state[:n][order]
    columns = ("rows", "features", "run_time", "time_limit", "gpus", "wait", "submit", "priority")
    return replace(seen, state=state, **{name: getattr(seen, name)[order] for name in columns})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_permuting_the_jobs_permutes_the_scores(shape, seen):
    actor = actor_of(**shape)
    order = np.random.default_rng(3).permutation(len(seen))
    scores = actor.score(seen)
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > len(scores) // 2
    np.testing.assert_allclose(actor.score(permuted(seen, order)), scores[order], atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_equal_a_layer_by_layer_sum_in_plain_python(shape, seen):
    actor = actor_of(**shape)
    weights = {name: value.astype(np.float64) for name, value in actor.weights.items()}
    architecture = actor.architecture
    rows = [
        (row - weights["input.mean"]) / weights["input.scale"] for row in seen.state[: len(seen)].astype(np.float64)
    ]
    mean = sum(rows) / len(rows)
    keys = {"saf": np.maximum(seen.gpus, 1) * seen.run_time, "sjf": seen.run_time}
    key = keys.get(architecture.residual)
    expected = []
    for at, row in enumerate(rows):
        value = row
        for layer in range(architecture.layers):
            if layer:
                value = np.tanh(value) if architecture.activation is Activation.TANH else np.maximum(value, 0.0)
            kernel = weights[f"layer{layer}.kernel"]
            out = [sum(value[i] * kernel[i, o] for i in range(len(value))) for o in range(kernel.shape[1])]
            value = np.array(out) + weights[f"layer{layer}.bias"]
            if layer == 0 and architecture.context:
                value = value + mean @ weights["context.kernel"]
        score = value[0]
        if key is not None:
            score = -np.log(key[at]) / np.log(1 + 30 * 86400) + architecture.bound * np.tanh(score)
        expected.append(score)
    np.testing.assert_allclose(actor.score(seen), expected, atol=1e-5)


@pytest.mark.parametrize("rule", CORRECTED)
def test_a_residual_actor_with_zero_weights_is_its_rule(rule, seen):
    actor = actor_of(residual=rule)
    zero = {name: np.zeros_like(value) for name, value in actor.weights.items()}
    zero["input.scale"] = actor.weights["input.scale"]
    scores = replace(actor, weights=zero).score(seen)
    assert len(np.unique(scores)) == len(np.unique(by_name(rule).key(seen)))
    # Equal ones go by submission, as with the rule.
    assert np.array_equal(np.lexsort((seen.submit, -scores)), np.argsort(-by_name(rule).score(seen), kind="stable"))


NOTHING = {"layer3.kernel": np.zeros((8, 1), np.float32)}
COEFFICIENTS = np.array([-1.5, 0.45, 0.625], dtype=np.float32)


def test_an_actor_whose_last_layer_is_zero_says_that_it_corrects_nothing_and_asks_no_network(seen, monkeypatch):
    actor = actor_of(residual="saf", context=True)
    idle = with_weights(actor, {**NOTHING, "layer3.bias": np.zeros(1, np.float32), RUN_TIME: COEFFICIENTS})
    assert idle.corrects_nothing
    assert idle.summary == (
        "the plain rule saf on expected run times (predicted means as they are; e^-1.50 · r^0.45 · L^0.62 of any other "
        "estimate r and limit L); the network corrects nothing"
    )
    by_network = idle.level(seen) + idle.architecture.bound * np.tanh(idle.network(seen.state[: len(seen)]))
    monkeypatch.setattr(Actor, "network", None)
    np.testing.assert_allclose(idle.score(seen), by_network, atol=1e-9)


def test_an_actor_whose_network_does_something_says_what():
    actor = actor_of(residual="sjf")
    assert not actor.corrects_nothing
    assert actor.summary == "the plain rule sjf; the network corrects that by up to a factor of e^3.7 in the key"
    assert not with_weights(actor, NOTHING).corrects_nothing, "its bias is not 0"
    assert not actor_of().corrects_nothing
    assert actor_of().summary == "the network's scores"


def test_a_job_keeps_its_level_whatever_other_jobs_wait(seen):
    order = np.random.default_rng(3).permutation(len(seen))[:7]
    assert np.array_equal(rule_level("saf", permuted(seen, order)), rule_level("saf", seen)[order])
    ten_times = replace(seen, run_time=seen.run_time * 10)
    lower = rule_level("saf", seen) - rule_level("saf", ten_times)
    np.testing.assert_allclose(lower, np.log(10) / np.log(1 + 30 * 86400))


def test_a_residual_moves_no_job_by_more_than_the_bound_allows(seen):
    actor = actor_of(residual="saf")
    weights = {name: value * (1000.0 if name.endswith("kernel") else 1.0) for name, value in actor.weights.items()}
    corrected = replace(actor, weights=weights).score(seen)
    moved = np.abs(corrected - rule_level("saf", seen))
    assert moved.max() <= 0.25 + 1e-6
    assert moved.max() > 0.2


RUN_TIMES = np.array([100.0, 1000.0, 50.0, 3600.0])
LIMITS = np.array([3600.0, 7200.0, np.inf, 3600.0])


def expecting(*coefficients):
    return with_weights(actor_of(), {RUN_TIME: np.array(coefficients, dtype=np.float32)})


def test_the_expected_run_time_is_a_product_of_powers_of_estimate_and_limit():
    expected = 2.0 * RUN_TIMES**0.5 * np.minimum(LIMITS, 30 * 86400.0) ** 0.25
    assert (expected < LIMITS).all()
    actual = expecting(np.log(2.0), 0.5, 0.25).expected_run_time(RUN_TIMES, LIMITS)
    np.testing.assert_allclose(actual[:3], expected[:3], rtol=1e-6)
    assert actual[3] == RUN_TIMES[3]  # that is its limit


def test_no_job_is_expected_to_outlive_its_limit_or_to_run_for_less_than_a_second():
    longest = expecting(3e38, 1.0, 1.0)
    assert np.array_equal(longest.expected_run_time(RUN_TIMES, LIMITS)[[0, 1, 3]], LIMITS[[0, 1, 3]])
    for unlimited in (np.inf, np.nan):
        assert np.isfinite(longest.expected_run_time(RUN_TIMES, np.full(4, unlimited))).all()
    assert expecting(-3e38, 1.0, 1.0).expected_run_time(RUN_TIMES, LIMITS).tolist() == [1.0] * 3 + [3600.0]


def test_without_coefficients_or_where_the_estimate_is_the_limit_the_run_time_is_what_is_expected():
    assert np.array_equal(actor_of().expected_run_time(RUN_TIMES, LIMITS), RUN_TIMES)
    actor, some = expecting(np.log(2.0), 0.5, 0.25), np.array([3600.0, 60.0, 3600.0, 3599.0])
    assert (actor.expected_run_time(some, np.full(4, 3600.0)) != some).tolist() == [False, True, False, True]
    # Neither limit nor estimate: a stand-in of a year, which is no estimate.
    year = np.full(9, 365 * 86400.0)
    assert np.array_equal(actor.expected_run_time(year, np.full(9, np.inf)), year)
    assert actor.expected_run_time(np.zeros(0), np.zeros(0)).shape == (0,)


def test_run_times_that_are_predicted_means_are_not_corrected(seen):
    actor = actor_of(residual="saf")
    estimated = replace(seen, run_time=np.maximum(0.1 * seen.run_time, 1.0))
    errs = with_weights(actor, {RUN_TIME: COEFFICIENTS})
    assert not np.allclose(errs.level(estimated), actor.level(estimated))
    assert np.array_equal(on_means(errs).score(estimated), actor.score(estimated))
    assert RUN_TIME in errs.weights
    assert on_means(actor) is actor
    rule = by_name("saf")
    assert on_means(rule) is rule


def test_a_job_gains_by_waiting_as_its_expansion_factor_grows(seen):
    actor = actor_of(residual="saf")
    aged = with_weights(actor, {AGEING: np.array([0.5], dtype=np.float32)})
    fresh = replace(seen, wait=np.zeros(len(seen)))
    assert np.array_equal(aged.level(fresh), actor.level(seen))
    # After three times its run time a job of four times the area stands where the fresh one would be twice as large.
    waited = replace(seen, wait=3.0 * seen.run_time)
    np.testing.assert_allclose(aged.level(waited) - aged.level(fresh), 0.5 * np.log(4.0) / np.log(1 + 30 * 86400))
    # What counts is the run time that is expected.
    knowing = with_weights(aged, {RUN_TIME: np.array([np.log(1e9), 0.0, 0.0], dtype=np.float32)})
    below = seen.run_time < np.minimum(seen.time_limit, 30 * 86400.0)
    gained = knowing.level(waited) - knowing.level(fresh)
    expected = knowing.expected_run_time(seen.run_time, seen.time_limit)
    assert (expected[below] > seen.run_time[below]).all()
    assert (gained[below] < 0.5 * np.log(4.0) / np.log(1 + 30 * 86400)).all()


def test_equal_jobs_have_equal_scores_wherever_they_stand(seen):
    actor = actor_of()
    state = seen.state.copy()
    state[: len(seen)] = state[0]
    assert len(set(actor.score(replace(seen, state=state)).tolist())) == 1


def test_a_context_makes_the_score_depend_on_the_company(seen):
    other = observation(seed=1)
    state = other.state.copy()
    state[0] = seen.state[0]
    other = replace(other, state=state)
    assert actor_of(context=True).score(seen)[0] != actor_of(context=True).score(other)[0]
    assert actor_of().score(seen)[0] == pytest.approx(actor_of().score(other)[0], abs=2e-6)


def test_padding_has_no_score_and_an_empty_queue_none_at_all(seen):
    actor: Actor = actor_of(context=True, residual="saf")
    assert actor.score(seen).shape == (len(seen),)
    assert actor.score(permuted(seen, np.zeros(0, dtype=np.intp))).shape == (0,)


def test_ranking_imports_no_tensorflow():
    code = (
        "import sys, rltuned.observe, rltuned.policy.files; "
        "sys.exit(any(name.split('.')[0] in {'tensorflow', 'keras', 'scipy'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

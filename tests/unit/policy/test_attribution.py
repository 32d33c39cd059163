"""How each number of a job moves its score."""

from dataclasses import replace

import numpy as np
import pytest
from unit.policy.conftest import actor_of, observation

from rltuned.observe import STATE_COLUMNS
from rltuned.policy import Activation
from rltuned.policy.actor import AGEING, RUN_TIME, rule_level
from rltuned.policy.attribution import attribute, gradients, integrated_gradients, level_parts

SHAPES = [
    {},
    {"activation": Activation.TANH},
    {"context": True},
    {"hidden": ()},
    {"residual": "saf"},
    {"residual": "sjf", "context": True},
    {"residual": "qssf", "context": True, "activation": Activation.TANH, "hidden": (16,)},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_parts_add_up_to_the_score_less_that_of_the_average_job(shape, seen):
    actor = actor_of(**shape)
    last = f"layer{actor.architecture.layers - 1}"
    actor.weights[f"{last}.kernel"][:] *= 0.2  # or the bound would leave nothing to tell
    actor.weights[f"{last}.bias"][:] = 0.0
    scores = actor.score(seen)
    told = [attribute(actor, seen, row) for row in range(0, len(seen), 7)]
    assert max(abs(one.gap) for one in told) < 1e-9
    np.testing.assert_allclose([one.score for one in told], scores[::7], atol=1e-6)
    assert len({round(one.reference, 12) for one in told}) == 1
    assert max(np.abs(one.network).max() for one in told) > 0.01


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_by_hand_is_that_of_small_differences(shape, seen):
    actor = actor_of(**shape)
    rows = seen.state[:20].astype(np.float64)
    company = seen.state[: len(seen)].astype(np.float64).mean(axis=0)
    _, gradient = gradients(actor, rows, company)
    step = 1e-6
    for column in range(len(STATE_COLUMNS)):
        moved = np.zeros(len(STATE_COLUMNS))
        moved[column] = step
        above, _ = gradients(actor, rows + moved, company)
        below, _ = gradients(actor, rows - moved, company)
        np.testing.assert_allclose(gradient[:, column], (above - below) / (2 * step), atol=1e-6)


def test_a_column_that_no_weight_reads_gets_nothing(seen):
    actor = actor_of()
    blind = STATE_COLUMNS.index("job_urgency")
    actor.weights["layer0.kernel"][blind] = 0.0
    told = attribute(actor, seen, 3)
    assert told.network[blind] == 0.0
    assert np.count_nonzero(told.network) == len(STATE_COLUMNS) - 1


def test_of_a_linear_network_each_column_gets_its_weight_times_its_distance(seen):
    actor = actor_of(hidden=())
    state = seen.state[: len(seen)].astype(np.float64)
    told = attribute(actor, seen, 5)
    by_hand = actor.weights["layer0.kernel"][:, 0] / actor.weights["input.scale"] * (state[5] - state.mean(axis=0))
    np.testing.assert_allclose(told.network, by_hand, atol=1e-9)


def test_the_corners_of_a_relu_are_found_where_a_thousand_small_steps_find_them(seen):
    actor = actor_of(residual="saf")
    state = seen.state[: len(seen)].astype(np.float64)
    mean = state.mean(axis=0)
    exact = integrated_gradients(actor, mean, state[2], mean)
    at = (np.arange(20_000) + 0.5) / 20_000
    output, gradient = gradients(actor, mean + at[:, None] * (state[2] - mean), mean)
    slope = actor.architecture.bound * (1 - np.tanh(output) ** 2)
    np.testing.assert_allclose(exact, (state[2] - mean) * (slope @ gradient) / 20_000, atol=1e-5)


def test_the_level_of_a_product_falls_into_run_time_and_gpus(seen):
    parts = level_parts(actor_of(residual="saf"), seen)
    np.testing.assert_allclose(sum(parts.values()), rule_level("saf", seen), atol=1e-12)
    doubled = np.maximum(seen.gpus, 1.0)
    np.testing.assert_allclose(parts["requested_gpus"], -np.log(doubled) / np.log1p(30 * 86400.0), atol=1e-12)
    assert set(level_parts(actor_of(residual="sjf"), seen)) == {"requested_time"}


def test_the_level_of_an_expected_run_time_falls_into_estimate_limit_and_gpus(seen):
    actor = actor_of(residual="saf")
    actor = replace(actor, weights={**actor.weights, RUN_TIME: np.array([0.5, 0.75, 0.25], dtype=np.float32)})
    # A third of the jobs has no estimate below its limit.
    estimated = np.arange(len(seen)) % 3 > 0
    seen = replace(seen, run_time=np.where(estimated, np.maximum(0.3 * seen.run_time, 1.0), seen.run_time))
    parts = level_parts(actor, seen)
    np.testing.assert_allclose(sum(parts.values()), actor.level(seen), atol=1e-12)
    below = seen.run_time < np.minimum(seen.time_limit, 30 * 86400.0)
    assert 0 < below.sum() < len(seen)
    np.testing.assert_allclose(
        parts["requested_limit"],
        np.where(below, -0.25 * np.log(np.minimum(seen.time_limit, 30 * 86400.0)) / np.log1p(30 * 86400.0), 0.0),
        atol=1e-12,
    )
    for row in range(len(seen)):
        assert abs(attribute(actor, seen, row).gap) < 1e-9


def test_what_a_job_gains_by_waiting_is_a_part_of_its_own(seen):
    actor = actor_of(residual="saf")
    aged = replace(actor, weights={**actor.weights, AGEING: np.array([0.3], dtype=np.float32)})
    parts = level_parts(aged, seen)
    np.testing.assert_allclose(sum(parts.values()), aged.level(seen), atol=1e-12)
    assert "job_urgency" not in level_parts(actor, seen)
    assert (parts["job_urgency"] > 0.0).tolist() == (seen.wait > 0.0).tolist()
    assert seen.wait.max() > 0.0
    for row in range(len(seen)):
        assert abs(attribute(aged, seen, row).gap) < 1e-9


def test_the_only_job_of_a_queue_is_the_average_job():
    alone = observation(jobs=(1, 1))
    told = attribute(actor_of(residual="saf", context=True), alone, 0)
    assert told.score == told.reference
    assert not told.network.any()

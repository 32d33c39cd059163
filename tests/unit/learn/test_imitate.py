"""Imitation of a plain rule, and the shipped model that came of it."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from unit.policy.conftest import actor_of, observation

from rltuned.errors import ConfigError
from rltuned.learn.imitate import ImitateSettings, agreement, imitate, kendall, write_model
from rltuned.learn.queues import UNSEEN, QueueSettings, generate
from rltuned.observe import WINDOW, observe
from rltuned.policy import Activation, Architecture, by_name, files
from rltuned.policy.actor import rule_level

TINY = ImitateSettings(states=60, test_states=20, steps=150, batch=256)


def states(seed, distribution, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        snapshot, estimates = generate(rng, distribution)
        yield observe(snapshot, snapshot.jobs.pending, estimates)


def test_kendall_is_one_for_the_same_order_minus_one_for_the_reverse_and_a_third_for_one_swap_of_three():
    order = np.array([3.0, 2.0, 1.0])
    assert kendall(order, order * 10) == 1.0
    assert kendall(order, -order) == -1.0
    assert kendall(order, np.array([3.0, 1.0, 2.0])) == pytest.approx(1 / 3)


def test_kendall_asks_for_no_order_among_ties_of_the_reference_and_gives_nothing_for_ties_of_the_scores():
    assert kendall(np.array([2.0, 1.0, 1.0]), np.array([9.0, 5.0, 4.0])) == 1.0
    assert kendall(np.array([2.0, 1.0]), np.array([1.0, 1.0])) == 0.0
    assert kendall(np.array([1.0, 1.0]), np.array([2.0, 1.0])) is None


def test_kendall_equals_counting_pairs():
    rng = np.random.default_rng(0)
    reference, scores = rng.integers(0, 9, size=50).astype(float), rng.normal(size=50)
    pairs = [(i, j) for i in range(50) for j in range(i) if reference[i] != reference[j]]
    agreed = sum((reference[i] > reference[j]) == (scores[i] > scores[j]) for i, j in pairs)
    assert kendall(reference, scores) == pytest.approx(2 * agreed / len(pairs) - 1)


@pytest.mark.parametrize("distribution", [QueueSettings(), UNSEEN], ids=["usual", "unseen"])
def test_the_shipped_actor_ranks_as_saf_does_on_queues_that_it_has_never_seen(distribution):
    actor = files.load("base")
    assert actor.architecture.residual is None
    fresh = list(states(20_261_121, distribution, 300))
    measured = agreement(by_name("saf"), [actor.score(each) for each in fresh], fresh)
    assert measured.states >= 150
    assert measured.tau >= 0.98
    assert measured.tau_key >= 0.99


def test_the_shipped_model_says_how_it_was_made_and_its_metrics_reach_the_bar():
    told = files.info("base")
    assert told.method == "imitation"
    assert told.settings["rule"] == "saf"
    assert told.metrics["unseen.tau"] >= 0.98
    assert told.metrics["shifted.tau"] >= 0.98
    assert told.metrics["unseen.states"] >= 200
    assert files.verify("base").checks


def test_an_unknown_rule_is_refused_before_anything_is_generated():
    with pytest.raises(ConfigError, match="no rule 'best'"):
        imitate(replace(TINY, rule="best"))


@pytest.mark.learn
def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    one, other, third = imitate(TINY), imitate(TINY), imitate(replace(TINY, seed=8))
    for name, weight in one.actor.weights.items():
        assert np.array_equal(weight, other.actor.weights[name]), name
    assert not np.array_equal(one.actor.weights["layer0.kernel"], third.actor.weights["layer0.kernel"])
    assert one.unseen == other.unseen


@pytest.mark.learn
def test_training_improves_agreement_and_reports_its_progress():
    told = []
    short = imitate(replace(TINY, steps=1))
    longer = imitate(replace(TINY, steps=600), lambda stage, done, total: told.append((stage, done, total)))
    assert longer.unseen.tau > max(short.unseen.tau + 0.2, 0.8)
    assert {stage for stage, _, _ in told} == {
        "generating states",
        "training",
        "generating unseen states",
        "generating shifted states",
    }
    assert all(any(s == stage and done == total for s, done, total in told) for stage, _, _ in told)


@pytest.mark.learn
def test_a_trained_model_is_written_and_loads_with_its_history(tmp_path):
    result = imitate(TINY)
    path = write_model(result, tmp_path, revision="r1")
    told = files.info(str(path))
    assert (told.revision, told.seed) == ("r1", 7)
    assert told.metrics["unseen.tau"] == result.unseen.tau
    seen = observation()
    assert np.array_equal(files.load(str(path)).score(seen), result.actor.score(seen))


@pytest.mark.learn
def test_a_residual_is_trained_and_its_network_measured_alone(tmp_path):
    result = imitate(replace(TINY, rule="sjf", architecture=Architecture(residual="saf", context=True)))
    assert result.network_alone is not None
    assert result.actor.architecture.residual == "saf"
    assert files.load(str(write_model(result, tmp_path))).architecture.context


@pytest.mark.learn
@pytest.mark.parametrize(
    "shape",
    [{}, {"activation": Activation.TANH}, {"context": True}, {"context": True, "residual": "saf"}],
    ids=str,
)
def test_tensorflow_and_numpy_agree(shape):
    from rltuned.learn import network

    actor = actor_of(**shape)
    weights = network.variables(actor.weights)
    seen = [observation(seed=seed, jobs=(1, 256)) for seed in range(12)]
    base = np.zeros((len(seen), WINDOW), dtype=np.float32)
    if actor.architecture.residual:
        for at, each in enumerate(seen):
            base[at, : len(each)] = rule_level(actor.architecture.residual, each)
    state = np.stack([each.state for each in seen])
    mask = np.stack([each.mask for each in seen]).astype(np.float32)
    scores = network.scores(weights, actor.architecture, state, mask, base).numpy()
    for at, each in enumerate(seen):
        np.testing.assert_allclose(scores[at, : len(each)], actor.score(each), atol=1e-5)


@pytest.mark.learn
def test_tensorflow_and_numpy_agree_on_the_shipped_model():
    from rltuned.learn import network

    actor = files.load("base")
    seen = observation(jobs=(256, 256))
    scores = network.scores(
        network.variables(actor.weights), actor.architecture, seen.state[None], seen.mask[None].astype(np.float32)
    )
    np.testing.assert_allclose(scores.numpy()[0, : len(seen)], actor.score(seen), atol=1e-5)


def test_settings_can_be_written_as_json():
    assert asdict(TINY)["architecture"]["hidden"] == (32, 16, 8)

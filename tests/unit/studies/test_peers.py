"""The published peers: what they decide, what is rewarded, that they learn, and that their kept models are measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unit.rank.conftest import observation

from rltuned.core.config import Config
from rltuned.core.errors import ModelError
from rltuned.decide.rank import by_name
from rltuned.decide.see.features import FEATURES
from rltuned.lab.evaluate.case import cases
from rltuned.lab.evaluate.windows import Window
from rltuned.records import model_files as files
from rltuned.simulate.rankers import PlanRanker, RuleRanker
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Source, workload
from rltuned.simulate.workload.simulated_estimates import estimate
from rltuned.simulate.workload.write import write_csv
from studies.peers import model, rlscheduler, schedinspector
from studies.peers.episodes import mean_wait, run_episode

KEPT = Path(__file__).resolve().parents[3] / "studies" / "models" / "peers"
BURST = 12
PER_JOB = ("features", "run_time", "time_limit", "gpus", "wait", "submit", "priority", "rows")
BOTH = pytest.mark.parametrize("policy", [rlscheduler.fresh(4), schedinspector.fresh(4)], ids=lambda one: one.name)


@pytest.fixture
def seen():
    return observation()


def of(seen, order):
    """The observation of some jobs, in another order."""
    return replace(seen, **{name: getattr(seen, name)[order] for name in PER_JOB})


def constant(peer, layer, value):
    """The peer with a network of zeros, but for one number."""
    weights = {name: np.zeros_like(each) for name, each in peer.net.weights.items()}
    weights["input.scale"] = np.ones_like(weights["input.scale"])
    weights[layer].flat[0] = value
    return replace(peer, net=replace(peer.net, weights=weights))


def always(verdict):
    """A SchedInspector around SJF that is sure of its verdict: positive rejects."""
    return constant(schedinspector.fresh(1), "layer3.bias", verdict)


def preferring(short):
    """An RLScheduler that is all but sure to pick the shortest job, or the longest."""
    peer = constant(rlscheduler.fresh(1), "layer3.kernel", -1000.0 if short else 1000.0)
    peer.net.weights["layer0.kernel"][rlscheduler.COLUMNS.index("requested_time"), 0] = 1.0
    for layer in (1, 2):
        peer.net.weights[f"layer{layer}.kernel"][0, 0] = 1.0
    return peer


def burst(jobs=240):
    """Bursts of jobs of one GPU, half of them long: on one GPU, whoever takes the short ones first wins."""
    rng = np.random.default_rng(3)
    run = np.where(rng.random(jobs) < 0.5, 10.0, 10_000.0)
    return workload(Source("burst", sha256="ab"), np.repeat(np.arange(jobs // BURST) * 200_000.0, BURST), run, 1)


def window(shape="1x1", length=BURST):
    jobs = burst()
    return next(cases(jobs, estimate(jobs, "true", 1), parse_shape(shape), [Window(0, 0, length)]))


# --- what they decide


def test_the_order_of_rlscheduler_is_that_of_picking_the_best_job_again_and_again(seen):
    policy = rlscheduler.fresh(3)
    scores = policy.score(seen)
    left = list(range(len(seen)))
    for place in range(5):
        outputs = policy.net.network(rlscheduler.inputs(of(seen, np.array(left))))
        assert scores[left.pop(int(np.argmax(outputs)))] == -place


def test_rlscheduler_sees_the_128_jobs_submitted_first_and_leaves_the_others_behind_in_order_of_submission():
    seen = observation(jobs=(200, 200))
    seen = replace(seen, submit=np.random.default_rng(5).permutation(200).astype(float))
    scores = rlscheduler.fresh(3).score(seen)
    behind = np.flatnonzero(seen.submit >= 128)
    assert scores[behind].max() < np.delete(scores, behind).min()
    assert np.array_equal(behind[np.argsort(-scores[behind])], behind[np.argsort(seen.submit[behind])])


@BOTH
def test_scores_are_finite_and_move_with_their_jobs_in_any_queue(policy, seen):
    for count in (0, 1, len(seen)):
        order = np.random.default_rng(2).permutation(count)
        scores = policy.score(of(seen, np.arange(count)))
        assert np.isfinite(scores).all()
        assert np.array_equal(policy.score(of(seen, order)), scores[order])


def test_an_inspector_accepts_or_puts_the_base_rules_first_job_behind_until_it_has_waited_twelve_hours(seen):
    rule = by_name("sjf").score(seen)
    first = int(np.argmax(rule))
    for hours, verdict, behind in ((0.0, -1.0, False), (0.0, 1.0, True), (11.9, 1.0, True), (12.0, 1.0, False)):
        scores = always(verdict).score(replace(seen, wait=np.full(len(seen), hours * 3600)))
        assert (int(scores.argmin()) == first) == behind
        assert np.array_equal(np.delete(scores, first), np.delete(rule, first))


def test_what_the_inspector_sees_of_a_small_queue(seen):
    jobs = of(seen, np.arange(4))
    jobs.features[:, FEATURES.index("can_schedule_now")] = [1.0, 1.0, 0.0, 0.0]
    jobs = replace(jobs, run_time=np.array([1.0, 60.0, 600.0, 6000.0]))
    shown = dict(zip(schedinspector.COLUMNS, schedinspector.inputs(jobs, 1, 18).tolist(), strict=True))
    assert (shown["can_schedule_now"], shown["rejections"]) == (1.0, 0.25)
    # 600/10 + 600/60 + 600/600 + 600/6000 = 71.1 of at most 60 · 256
    assert shown["queue_delay"] == pytest.approx(71.1 / 15360)
    assert shown["backfilling"] == pytest.approx(1 / 3)


# --- what is rewarded


def test_rlscheduler_is_rewarded_by_the_wait_and_taking_short_jobs_first_earns_more():
    short, long = (run_episode(preferring(which), window(), np.random.default_rng(0)) for which in (True, False))
    assert short.reward == -short.wait
    assert short.wait == pytest.approx(mean_wait(window(), RuleRanker(by_name("sjf"))), rel=0.02)
    assert short.wait < 0.7 * long.wait
    lengths = np.diff(short.ptr)
    assert lengths[:2].tolist() == [BURST, BURST - 1], "the first pick can start, the second has to wait"
    assert (short.action < lengths).all()


def test_schedinspector_is_rewarded_by_the_gap_to_its_base_rule():
    agreed, rejected = (run_episode(always(to), window(), np.random.default_rng(0)) for to in (-50.0, 50.0))
    base = mean_wait(window(), RuleRanker(by_name("sjf")))
    assert (agreed.reward, agreed.action.any(), rejected.action.all()) == (0.0, False, True)
    assert rejected.reward == pytest.approx((base - rejected.wait) / rejected.wait)


def test_a_peer_that_is_sure_is_simulated_as_it_is_served():
    case = window("2x2", 5 * BURST)
    for peer in (preferring(short=True), preferring(short=False), always(-50.0)):
        served = mean_wait(case, PlanRanker(peer, Config()))
        assert run_episode(peer, case, np.random.default_rng(0)).wait == pytest.approx(served)


# --- learning and files


@pytest.mark.learn
def test_advantages_are_those_worked_out_by_hand():
    from studies.peers.ppo import advantages

    episode = run_episode(always(0.0), window(), np.random.default_rng(0))
    # Values 1, 2, 3: differences 1, 1 and 4 − 3; with λ = 0.5: 1.75, 1.5, 1.
    asked = replace(episode, reward=4.0, action=np.zeros(3, dtype=np.int64))
    found, returns = advantages([asked], np.array([1.0, 2.0, 3.0]), 0.5)
    plain = np.array([1.75, 1.5, 1.0])
    assert found == pytest.approx((plain - plain.mean()) / plain.std())
    assert returns.tolist() == [4.0, 4.0, 4.0]


@pytest.mark.learn
@pytest.mark.parametrize(("peer", "kept"), [("rlscheduler", 0.85), ("schedinspector", 0.5)])
def test_a_peer_learns_and_the_same_seed_gives_the_same_weights(peer, kept):
    from studies.peers.__main__ import PeerSettings, TrainingData, train_peer
    from studies.peers.ppo import PeerPPOSettings

    ppo = PeerPPOSettings(policy_rate=2e-2, value_steps=20)
    settings = PeerSettings(peer, seed=2, epochs=7, trajectories=8, jobs=BURST, ppo=ppo)
    data = TrainingData(burst(), estimate(burst(), "true", 1), parse_shape("1x1"))
    (one, rewards), (other, _) = (train_peer(data, settings, lambda: 0.0) for _ in range(2))
    assert np.mean(rewards[-3:]) > kept * rewards[0], "they are negative"
    for name, value in one.net.weights.items():
        assert np.array_equal(value, other.net.weights[name])


@pytest.mark.learn
def test_the_command_writes_a_model_that_the_product_refuses_and_the_studies_load(tmp_path, capsys):
    from studies.peers.__main__ import main

    write_csv(burst().take(slice(0, 60)), tmp_path / "burst.csv")
    words = ["schedinspector", "--trace", str(tmp_path / "burst.csv"), "--cluster", "1x1", "--out", str(tmp_path)]
    assert main([*words, "--name", "mine", "--epochs", "1", "--trajectories", "2", "--jobs", "12"]) == 0
    loaded = model.load(tmp_path / "mine.json")
    assert (loaded.name, loaded.base.name) == ("mine", "sjf")
    with pytest.raises(ModelError):
        files.load(str(tmp_path / "mine.json"))
    assert main([*words, "--epochs", "1", "--jobs", "100"]) == 1
    assert "longer than what it is drawn from" in capsys.readouterr().err


def test_the_kept_peers_load_and_damaged_ones_are_refused(tmp_path, seen):
    kept = sorted(KEPT.glob("*.json"))
    assert len(kept) == 6
    for path in kept:
        peer = model.load(path)
        assert path.stem.startswith(type(peer).__name__.lower())
        again = model.load(model.save(peer, tmp_path, {}, {}))
        assert np.array_equal(again.score(seen), peer.score(seen))
    (tmp_path / "pai.json").write_text("{}")
    with pytest.raises(ModelError, match="no model of a peer"):
        model.load(tmp_path / "pai.json")
    broken = tmp_path / f"{kept[0].stem}.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(ModelError, match="the weights are others"):
        model.load(broken.with_suffix(".json"))

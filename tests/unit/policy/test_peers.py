"""The learned peers: RLScheduler and SchedInspector, untrained."""

import json
from dataclasses import replace

import numpy as np
import pytest
from unit.policy.conftest import actor_of, observation

from rltuned.errors import ModelError
from rltuned.observe import FEATURES
from rltuned.policy import by_name, files, rlscheduler, schedinspector
from rltuned.policy.manifest import TrainingPart
from rltuned.policy.schedinspector import COLUMNS, MAX_REJECTIONS, SchedInspector

TRAINING = TrainingPart(method="none", data="untrained", traces={}, seed=1, revision="abc", settings={})
PER_JOB = ("features", "run_time", "time_limit", "gpus", "wait", "submit", "priority", "rows")


def of(seen, order):
    """The observation of some jobs, in another order."""
    return replace(seen, **{name: getattr(seen, name)[order] for name in PER_JOB})


def verdict(seen, *, rejects):
    """An inspector that always says the same, whatever it sees."""
    fresh = schedinspector.fresh(0)
    weights = {name: np.zeros_like(value) for name, value in fresh.inspector.weights.items()}
    weights["input.scale"] = np.ones_like(weights["input.scale"])
    weights["layer3.bias"] = np.array([1.0 if rejects else -1.0], dtype=np.float32)
    return SchedInspector(by_name("sjf"), replace(fresh.inspector, weights=weights))


def test_the_order_of_rlscheduler_is_that_of_picking_the_best_job_again_and_again(seen):
    policy = rlscheduler.fresh(3)
    scores = policy.score(seen)
    left = list(range(len(seen)))
    for place in range(5):
        outputs = policy.kernel.network(rlscheduler.inputs(of(seen, np.array(left))))
        picked = left.pop(int(np.argmax(outputs)))
        assert scores[picked] == -place


def test_the_kernel_sees_wait_run_time_gpus_memory_and_whether_a_job_could_start(seen):
    shown = rlscheduler.inputs(seen)
    assert shown.shape == (len(seen), 5)
    wanted = ("submit_time", "requested_time", "requested_gpus", "req_mem", "can_schedule_now")
    for column, name in enumerate(wanted):
        assert np.array_equal(shown[:, column], seen.features[:, FEATURES.index(name)])


def test_rlscheduler_sees_the_128_jobs_submitted_first_and_leaves_the_others_behind_in_order_of_submission():
    seen = observation(jobs=(200, 200))
    seen = replace(seen, submit=np.random.default_rng(5).permutation(200).astype(float))
    scores = rlscheduler.fresh(3).score(seen)
    behind = np.flatnonzero(seen.submit >= 128)
    assert scores[behind].max() < np.delete(scores, behind).min()
    assert np.array_equal(behind[np.argsort(-scores[behind])], behind[np.argsort(seen.submit[behind])])
    ahead = np.flatnonzero(seen.submit < 128)
    assert not np.array_equal(ahead[np.argsort(-scores[ahead])], ahead[np.argsort(seen.submit[ahead])])


@pytest.mark.parametrize("policy", [rlscheduler.fresh(4), schedinspector.fresh(4)], ids=lambda policy: policy.name)
def test_a_peers_scores_are_finite_and_move_with_their_jobs(policy, seen):
    order = np.random.default_rng(2).permutation(len(seen))
    scores = policy.score(seen)
    assert np.isfinite(scores).all()
    assert np.array_equal(policy.score(of(seen, order)), scores[order])


@pytest.mark.parametrize("policy", [rlscheduler.fresh(4), schedinspector.fresh(4)], ids=lambda policy: policy.name)
def test_an_empty_queue_and_a_single_job_are_ranked(policy, seen):
    assert policy.score(of(seen, np.arange(0))).shape == (0,)
    assert policy.score(of(seen, np.arange(1))).shape == (1,)


def test_the_same_seed_makes_the_same_peers_and_another_seed_others(seen):
    assert np.array_equal(rlscheduler.fresh(1).score(seen), rlscheduler.fresh(1).score(seen))
    assert not np.array_equal(rlscheduler.fresh(1).score(seen), rlscheduler.fresh(2).score(seen))


def test_an_inspector_that_accepts_leaves_the_base_rules_order(seen):
    policy = verdict(seen, rejects=False)
    decision = policy.inspect(seen, np.zeros(len(seen), dtype=np.int64))
    assert decision.rejected is None
    assert np.array_equal(decision.scores, by_name("sjf").score(seen))


def test_a_rejected_job_goes_behind_all_others_and_those_keep_their_order(seen):
    policy = verdict(seen, rejects=True)
    first = int(np.argmax(by_name("sjf").score(seen)))
    decision = policy.inspect(seen, np.zeros(len(seen), dtype=np.int64))
    assert decision.rejected == first
    assert decision.scores.argmin() == first
    others = np.delete(np.arange(len(seen)), first)
    assert np.array_equal(decision.scores[others], by_name("sjf").score(seen)[others])


def test_a_job_is_rejected_72_times_and_then_accepted(seen):
    policy = verdict(seen, rejects=True)
    rejections = np.zeros(len(seen), dtype=np.int64)
    for _ in range(MAX_REJECTIONS):
        rejected = policy.inspect(seen, rejections).rejected
        assert rejected == int(np.argmax(by_name("sjf").score(seen)))
        rejections[rejected] += 1
    assert policy.inspect(seen, rejections).rejected is None


def test_without_a_count_a_job_that_waited_twelve_hours_is_never_rejected(seen):
    policy, first = verdict(seen, rejects=True), int(np.argmax(by_name("sjf").score(seen)))
    for hours, place in ((11.9, len(seen)), (12.0, 0)):
        waited = replace(seen, wait=np.full(len(seen), hours * 3600))
        assert int((policy.score(waited) > policy.score(waited)[first]).sum()) == min(place, len(seen) - 1)


def test_what_the_inspector_sees_of_a_small_queue(seen):
    jobs = of(seen, np.arange(4))
    features = jobs.features.copy()
    features[:, FEATURES.index("can_schedule_now")] = [1.0, 1.0, 0.0, 0.0]
    jobs = replace(jobs, features=features, run_time=np.array([1.0, 60.0, 600.0, 6000.0]))
    shown = dict(zip(COLUMNS, schedinspector.inputs(jobs, 1, 18).tolist(), strict=True))
    assert shown["requested_time"] == features[1, FEATURES.index("requested_time")]
    assert shown["can_schedule_now"] == 1.0
    assert shown["rejections"] == 0.25
    # 600/10 + 600/60 + 600/600 + 600/6000 = 71.1 of at most 60 · 256
    assert shown["queue_delay"] == pytest.approx(71.1 / 15360)
    assert shown["backfilling"] == pytest.approx(1 / 3)
    assert all(0.0 <= value <= 1.0 for value in shown.values())


def test_the_pick_of_equal_jobs_does_not_depend_on_their_order(seen):
    tied = replace(seen, run_time=np.full(len(seen), 60.0), submit=np.zeros(len(seen)))
    none = np.zeros(len(seen), dtype=np.int64)
    order = np.random.default_rng(8).permutation(len(seen))
    picked = schedinspector.head(tied, by_name("sjf"), none)
    again = order[schedinspector.head(of(tied, order), by_name("sjf"), none)]
    assert np.array_equal(tied.features[picked], tied.features[again])


@pytest.mark.parametrize("peer", [rlscheduler.fresh(6), schedinspector.fresh(6, "saf")], ids=lambda peer: peer.name)
def test_a_saved_peer_ranks_as_before(peer, seen, tmp_path):
    golden = np.random.default_rng(0).random((5, 5 if peer.name == "rlscheduler" else 8)).astype(np.float32)
    path = files.save_peer(peer, tmp_path, TRAINING, {}, golden)
    loaded = files.load_peer(str(path))
    assert type(loaded) is type(peer)
    assert np.array_equal(loaded.score(seen), peer.score(seen))
    assert files.info(str(path)).architecture.hidden == (32, 16, 8)


def test_a_saved_inspector_remembers_its_base_rule(tmp_path):
    path = files.save_peer(schedinspector.fresh(6, "saf"), tmp_path, TRAINING, {}, np.zeros((1, 8), dtype=np.float32))
    assert files.load_peer(str(path)).base is by_name("saf")


def test_the_daemon_refuses_a_peer_and_a_comparison_an_actor(seen, tmp_path):
    peer = files.save_peer(rlscheduler.fresh(6), tmp_path, TRAINING, {}, np.zeros((1, 5), dtype=np.float32))
    actor = files.save(actor_of(), tmp_path, TRAINING, {}, seen.state[:5])
    with pytest.raises(ModelError, match="a network of rlscheduler, for comparison only; the daemon runs actors"):
        files.load(str(peer))
    with pytest.raises(ModelError, match="an actor, not a learned peer"):
        files.load_peer(str(actor))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "actor"}, "made for the features"),
        ({"kind": "oracle"}, "kind: Input should be 'actor', 'rlscheduler' or 'schedinspector'"),
        ({"rule": None}, "a base rule that this release has is needed for a schedinspector"),
        ({"rule": "lifo"}, "a base rule that this release has is needed for a schedinspector"),
    ],
    ids=str,
)
def test_a_manifest_whose_kind_does_not_fit_is_refused(change, reason, tmp_path):
    path = files.save_peer(schedinspector.fresh(6), tmp_path, TRAINING, {}, np.zeros((1, 8), dtype=np.float32))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=reason):
        files.load_peer(str(path))


def test_the_manifest_of_an_actor_is_written_as_before_there_were_kinds(seen, tmp_path):
    path = files.save(actor_of(), tmp_path, TRAINING, {}, seen.state[:5])
    assert not {"kind", "rule"} & json.loads(path.read_text()).keys()

"""Training of the learned peers: what is rewarded, what is recorded, and that it learns."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from rltuned.cluster.shape import parse_shape
from rltuned.commands.main import cli
from rltuned.config import Config
from rltuned.errors import ConfigError, RltunedError
from rltuned.learn.peers import train as peers
from rltuned.learn.peers.episodes import Inspecting, Metric, Picking, joined, mean_metric, run_episode
from rltuned.learn.peers.settings import PeerPPOSettings, PeerSettings
from rltuned.learn.peers.train import TrainingData, train_from_files, train_peer, write_peer
from rltuned.policy import by_name, files, rlscheduler, schedinspector
from rltuned.policy.schedinspector import SchedInspector
from rltuned.simulate import PlanRanker, RuleRanker
from rltuned.workload.estimates import estimate
from rltuned.workload.jobs import Source, workload
from rltuned.workload.write import write_csv

BURST = 12


def training_data(jobs=240, shape="1x1"):
    """Bursts of jobs of one GPU on a cluster of one, half of them long: whoever takes the short ones first wins."""
    rng = np.random.default_rng(3)
    run = np.where(rng.random(jobs) < 0.5, 10.0, 10_000.0)
    submit = np.repeat(np.arange(jobs // BURST) * 200_000.0, BURST)
    made = workload(Source("burst", sha256="ab"), submit, run, 1)
    return TrainingData(made, estimate(made, "true", 1), parse_shape(shape))


def settings(peer, **values):
    tiny = {"epochs": 2, "trajectories": 3, "jobs": BURST, "validation_windows": 2, "validation_jobs": BURST}
    return PeerSettings(peer, **(tiny | values))


def still():
    """A clock that stands: only the number of epochs ends a training."""
    return 0.0


def preferring(short):
    """An RLScheduler that is all but sure to pick the shortest job, or the longest."""
    peer = rlscheduler.fresh(1)
    weights = {name: np.zeros_like(value) for name, value in peer.kernel.weights.items()}
    weights["input.scale"] = np.ones_like(weights["input.scale"])
    weights["layer0.kernel"][rlscheduler.COLUMNS.index("requested_time"), 0] = 1.0
    for layer in (1, 2):
        weights[f"layer{layer}.kernel"][0, 0] = 1.0
    weights["layer3.kernel"][0, 0] = -1000.0 if short else 1000.0
    return rlscheduler.RLScheduler(replace(peer.kernel, weights=weights))


def always(verdict):
    """A SchedInspector around SJF that is sure of its verdict: positive rejects."""
    peer = schedinspector.fresh(1)
    weights = {name: np.zeros_like(value) for name, value in peer.inspector.weights.items()}
    weights["input.scale"] = np.ones_like(weights["input.scale"])
    weights["layer3.bias"] = np.array([verdict], dtype=np.float32)
    return SchedInspector(by_name("sjf"), replace(peer.inspector, weights=weights))


# --- what is played


def test_the_reward_of_rlscheduler_is_the_metric_with_a_minus_and_taking_short_jobs_first_earns_more():
    window = training_data().window(0, BURST)
    rng = np.random.default_rng(0)
    short, long = (run_episode(preferring(which), window, Metric.WAIT, rng) for which in (True, False))
    assert short.reward == -short.metric
    assert short.metric == pytest.approx(mean_metric(window, RuleRanker(by_name("sjf")), Metric.WAIT), rel=0.02)
    assert short.metric < 0.7 * long.metric


def test_a_peer_that_is_sure_is_played_as_it_is_served():
    window = training_data(shape="2x2").window(0, 5 * BURST)
    for peer in (preferring(short=True), preferring(short=False), always(-50.0)):
        served = mean_metric(window, PlanRanker(peer, Config()), Metric.WAIT)
        assert run_episode(peer, window, Metric.WAIT, np.random.default_rng(0)).metric == pytest.approx(served)


def test_the_reward_of_schedinspector_is_the_gap_to_its_base_rule():
    window = training_data().window(0, BURST)
    agreed = run_episode(always(-50.0), window, Metric.WAIT, np.random.default_rng(0))
    rejected = run_episode(always(50.0), window, Metric.WAIT, np.random.default_rng(0))
    base = mean_metric(window, RuleRanker(by_name("sjf")), Metric.WAIT)
    assert agreed.reward == 0.0
    assert not agreed.action.any()
    assert rejected.action.all()
    assert rejected.reward == pytest.approx((base - rejected.metric) / rejected.metric)
    assert rejected.reward < 0.0


def test_a_decision_of_rlscheduler_shows_the_jobs_that_are_left_and_the_one_that_it_picks():
    episode = run_episode(rlscheduler.fresh(2), training_data().window(0, BURST), Metric.WAIT, np.random.default_rng(0))
    lengths = np.diff(episode.ptr)
    assert len(episode.rows) == lengths.sum()
    assert len(episode.action) == len(lengths)
    assert (episode.action < lengths).all()
    assert (lengths >= 1).all()
    assert lengths[:2].tolist() == [BURST, BURST - 1]  # the first pick can start, the second has to wait


def test_both_metrics_are_means_over_the_jobs():
    # One GPU: waits 0, 99 and 198 s of jobs of 100, 100 and 5 s.
    made = workload(Source("three"), [0.0, 1.0, 2.0], [100.0, 100.0, 5.0], 1)
    window = TrainingData(made, estimate(made, "true", 1), parse_shape("1x1")).window(0, 3)
    assert mean_metric(window, RuleRanker(by_name("fifo")), Metric.WAIT) == pytest.approx(99.0 / 3600)
    assert mean_metric(window, RuleRanker(by_name("fifo")), Metric.BSLD) == pytest.approx((1.0 + 1.99 + 20.3) / 3)


def test_the_explorers_leave_jobs_that_the_network_does_not_see_behind_as_they_were_submitted():
    made = workload(Source("many"), np.arange(200.0), 50.0, 1)
    window = TrainingData(made, estimate(made, "true", 1), parse_shape("1x1")).window(0, 200)
    for ranker in (
        Picking(rlscheduler.fresh(1), np.random.default_rng(0)),
        Inspecting(always(0.0), np.random.default_rng(0)),
    ):
        assert np.isfinite(mean_metric(window, ranker, Metric.WAIT))
    ranker = Picking(rlscheduler.fresh(1), np.random.default_rng(0))
    mean_metric(window, ranker, Metric.WAIT)
    assert max(len(rows) for rows in ranker.rows) == rlscheduler.VISIBLE


def test_episodes_are_joined_one_behind_the_other():
    window = training_data().window(0, BURST)
    one, other = (
        run_episode(rlscheduler.fresh(2), window, Metric.WAIT, np.random.default_rng(seed)) for seed in (0, 1)
    )
    both = joined([one, other])
    assert np.array_equal(both.rows, np.concatenate((one.rows, other.rows)))
    assert np.array_equal(np.diff(both.ptr), np.concatenate((np.diff(one.ptr), np.diff(other.ptr))))
    assert both.metric == (one.metric + other.metric) / 2


# --- settings


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"peer": "decima"}, "no learned peer 'decima'"),
        ({"peer": "rlscheduler", "trajectories": 0}, "trajectories must be at least 1"),
        ({"peer": "rlscheduler", "minutes": 0.0}, "more than 0 minutes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, told):
    with pytest.raises(ConfigError, match=told):
        PeerSettings(**values)


def test_estimates_by_history_are_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ConfigError, match="not history"):
        train_from_files(tmp_path / "none.csv", "1x1", tmp_path, settings("rlscheduler"), still, estimates="history")


def test_windows_are_as_long_as_each_paper_has_them_unless_said_otherwise():
    assert [PeerSettings(name).length for name in ("rlscheduler", "schedinspector")] == [256, 128]
    assert PeerSettings("rlscheduler", jobs=64).length == 64


# --- learning


def eager(peer, epochs):
    """Settings with which a training of seconds shows something."""
    quick = settings(peer, epochs=epochs, trajectories=8, seed=2)
    return replace(quick, ppo=replace(quick.ppo, policy_rate=2e-2, value_steps=20))


@pytest.mark.learn
def test_rlscheduler_learns_to_take_short_jobs_first_and_the_same_seed_gives_the_same_files_which_load_and_rank(
    tmp_path,
):
    taught, told, paths = training_data(), [], []
    trace = tmp_path / "burst.csv"
    write_csv(taught.jobs, trace)
    for run in ("one", "other"):
        result, path = train_from_files(
            trace,
            "1x1",
            tmp_path / run,
            eager("rlscheduler", 8),
            still,
            revision="r1",
            progress=lambda *step: told.append(step),
        )
        paths.append(path)
    assert len(result.curve) == 8
    assert np.mean([epoch.reward for epoch in result.curve[-3:]]) > 0.85 * result.curve[0].reward  # they are negative
    assert result.validation["trained"] <= 1.05 * result.validation["sjf"] < 0.9 * result.validation["fifo"]
    assert ("training", 8, 8) in told
    assert paths[0].name == "rlscheduler.json"
    for suffix in (".json", ".safetensors", ".csv"):
        assert paths[0].with_suffix(suffix).read_bytes() == paths[1].with_suffix(suffix).read_bytes()
    window, config = taught.window(0, BURST), Config()
    waits = [
        mean_metric(window, PlanRanker(peer, config), Metric.WAIT)
        for peer in (files.load_peer(str(paths[0])), result.peer, preferring(short=False))
    ]
    assert waits[0] == waits[1] < waits[2]
    info = files.info(str(paths[0]))
    assert (info.seed, info.revision, list(info.traces)) == (2, "r1", ["burst.csv"])
    assert (info.settings["estimates"], info.settings["metric"]) == ("true", "wait")
    assert info.metrics["epochs"] == 8.0
    with paths[0].with_suffix(".csv").open(encoding="utf-8") as file:
        assert [line["epoch"] for line in csv.DictReader(file)] == [str(epoch) for epoch in range(1, 9)]


@pytest.mark.learn
def test_schedinspector_learns_to_leave_a_rule_alone_and_ctrl_c_leaves_the_last_complete_epoch(tmp_path):
    def stop_after_two(_stage, done, _total):
        if done == 2:
            raise KeyboardInterrupt

    taught = training_data()
    whole = train_peer(taught, eager("schedinspector", 8), still)
    assert whole.curve[0].reward < -0.01
    assert np.mean([epoch.reward for epoch in whole.curve[-3:]]) > 0.5 * whole.curve[0].reward
    assert whole.validation["trained"] == pytest.approx(whole.validation["sjf"], rel=0.02)
    stopped = train_peer(taught, eager("schedinspector", 8), still, stop_after_two)
    assert stopped.interrupted
    assert stopped.curve == whole.curve[:2]
    path = write_peer(stopped, taught, tmp_path)
    assert "interrupted" in files.info(str(path)).method
    kernel = files.load_peer(str(path)).inspector.weights["layer0.kernel"]
    assert np.array_equal(kernel, stopped.peer.inspector.weights["layer0.kernel"])
    assert not np.array_equal(kernel, whole.peer.inspector.weights["layer0.kernel"])


def test_no_epoch_is_begun_that_the_minutes_have_no_room_for():
    budget = settings("rlscheduler", minutes=1.0)
    assert peers._room(100.0, 0, budget)  # without one there is no model
    assert peers._room(40.0, 2, budget)
    assert not peers._room(41.0, 2, budget)


@pytest.mark.learn
def test_another_seed_begins_with_other_weights():
    from rltuned.learn.peers.ppo import PeerPPO

    one, same, other = (
        PeerPPO(rlscheduler.fresh(1), PeerPPOSettings(), np.random.default_rng(seed)).weights() for seed in (1, 1, 2)
    )
    assert np.array_equal(one["layer0.kernel"], same["layer0.kernel"])
    assert not np.array_equal(one["layer0.kernel"], other["layer0.kernel"])


@pytest.mark.learn
def test_ctrl_c_before_the_first_epoch_leaves_no_model():
    calls: list[float] = []

    def clock():
        if calls:
            raise KeyboardInterrupt
        calls.append(0.0)
        return 0.0

    with pytest.raises(RltunedError, match="interrupted before the first epoch"):
        train_peer(training_data(), settings("schedinspector"), clock)


@pytest.mark.learn
def test_a_trace_that_is_too_short_and_jobs_that_can_never_run_are_told():
    with pytest.raises(RltunedError, match="longer than what it is drawn from"):
        train_peer(training_data(24), settings("rlscheduler", jobs=100), still)
    made = workload(Source("large"), np.arange(60.0), 50.0, 9)
    taught = TrainingData(made, estimate(made, "true", 1), parse_shape("1x2"))
    with pytest.raises(ConfigError, match="no job of the windows"):
        train_peer(taught, settings("rlscheduler", validation_jobs=4, jobs=4), still)


@pytest.mark.learn
def test_advantages_are_those_worked_out_by_hand():
    from rltuned.learn.peers.ppo import advantages

    window = training_data().window(0, BURST)
    episode = replace(
        run_episode(always(0.0), window, Metric.WAIT, np.random.default_rng(0)),
        reward=4.0,
        action=np.zeros(3, dtype=np.int64),
    )
    # Values 1, 2, 3: differences 1, 1 and 4 − 3; with λ = 0.5: 1.75, 1.5, 1.
    found, returns = advantages([episode], np.array([1.0, 2.0, 3.0]), 0.5)
    plain = np.array([1.75, 1.5, 1.0])
    assert found == pytest.approx((plain - plain.mean()) / plain.std())
    assert returns.tolist() == [4.0, 4.0, 4.0]


# --- the command


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--peer", "rlscheduler", "--resume"], "no --resume"),
        (["--peer", "rlscheduler", "--trace", "b", "--cluster", "1x1"], "one --trace"),
        (["--peer", "decima"], "'decima' is not one of"),
    ],
)
def test_the_command_names_what_a_peer_does_not_take(tmp_path, words, told):
    words = ["train", "--trace", "a", "--cluster", "1x1", "--out", str(tmp_path), *words]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


def test_options_become_settings_and_an_objective_that_peers_do_not_have_is_refused():
    chosen = peers.from_options("schedinspector", {"objective": "bsld", "minutes": 3.0, "rule": "saf", "name": "other"})
    assert (chosen.metric, chosen.minutes, chosen.rule, chosen.name) == (Metric.BSLD, 3.0, "saf", "other")
    with pytest.raises(ConfigError, match="trained for wait or bsld, not mix"):
        peers.from_options("rlscheduler", {"objective": "mix"})


@pytest.mark.learn
def test_the_command_trains_and_says_what_came_of_it(tmp_path, monkeypatch):
    trace = tmp_path / "burst.csv"
    write_csv(training_data().jobs, trace)
    chosen = []

    def tiny(peer, given):
        chosen.append((peer, given))
        return settings(peer, epochs=1)

    monkeypatch.setattr(peers, "from_options", tiny)
    words = ["--peer", "schedinspector", "--trace", str(trace), "--cluster", "1x1", "--minutes", "5", "--rule", "saf"]
    result = CliRunner().invoke(cli, ["train", *words, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert chosen == [("schedinspector", {"minutes": 5.0, "rule": "saf"})]
    told = json.loads(result.stdout)
    assert told["epochs"] == 1
    assert 0.0 < told["validation"]["sjf"] <= told["validation"]["fifo"]
    assert files.info(told["manifest"]).name == "schedinspector"


@pytest.mark.parametrize("option", [["--columns", "job_size"], ["--seeds", "1,2"], ["--slurm-partition", "gpu"]])
def test_options_that_a_peer_does_not_have_are_refused(tmp_path, option):
    words = ["train", "--peer", "rlscheduler", "--trace", "t.csv", "--cluster", "1x1", "--out", str(tmp_path), *option]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"{option[0]} does not go with --peer" in result.stderr

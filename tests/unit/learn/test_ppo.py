"""PPO: the distribution over orders, advantages, and that it solves what is easy."""

import numpy as np
import pytest
from unit.evaluate.small import busy_jobs, jobs_of
from unit.learn.windows import case_of, waiting_at_once

from rltuned.learn import sampling
from rltuned.learn.cost import FinishedJobs, Objective, cost, leave_one_out
from rltuned.learn.sampling import Steps, by_rule, episode, finished_jobs, sample_trajectories
from rltuned.learn.training_settings import PPOSettings
from rltuned.policy.actor import Architecture, untrained

pytestmark = pytest.mark.learn

ARCHITECTURE = Architecture(hidden=(16, 8))


def rolled(case, actor=None, base="saf", seed=3, **values):
    usual = {"objective": Objective.WAIT, "temperature": 0.1, "trajectories": 4, "most_steps": 64}
    asked = PPOSettings(**{**usual, **values})
    return sample_trajectories(case, actor or untrained("a", ARCHITECTURE, 1), base, asked, seed)


def log_probabilities(values, orders):
    """Of drawing the first places of queues, one value for each job and one order for each queue; and entropies."""
    tf = pytest.importorskip("tensorflow")
    from rltuned.learn.network import batch_log_probability

    first = np.cumsum([0, *map(len, values)])
    picks = np.full((len(orders), max(map(len, orders))), -1, dtype=np.int32)
    for at, order in enumerate(orders):
        picks[at, : len(order)] = order + first[at]
    segment = np.repeat(np.arange(len(values)), [len(value) for value in values]).astype(np.int32)
    flat = np.concatenate(values).astype(np.float32)
    return batch_log_probability(*map(tf.constant, (flat, segment, picks, len(values))))


def test_the_log_probability_and_the_entropy_are_those_of_drawing_place_by_place():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=size) * 5 for size in (2, 5, 40, 8, 3)]
    orders = [rng.permutation(len(value))[:8] for value in values]
    expected, entropy = [], []
    for value, order in zip(values, orders, strict=True):
        left, logp = value.copy(), 0.0
        for pick in order:
            logp += value[pick] - np.logaddexp.reduce(left)
            left[pick] = -np.inf
        expected.append(logp)
        share = np.exp(value - np.logaddexp.reduce(value))
        entropy.append(-(share * np.log(share)).sum())
    got, spread = log_probabilities(values, orders)
    assert np.allclose(got, expected, atol=1e-5)
    assert np.allclose(spread, entropy, atol=1e-5)


def test_ppo_gives_the_picks_the_probability_that_the_compiled_episode_drew_them_with():
    pytest.importorskip("tensorflow")
    from rltuned.learn.ppo import PPO

    for architecture in (Architecture(residual="saf"), Architecture(context=True)):
        actor = untrained("a", architecture, 4)
        played = episode(case_of(busy_jobs(), estimates="noisy:1")).run(
            actor, temperature=0.05, heads=4, seed=1, record=True
        )
        steps = sampling._kept(played, np.zeros(len(played)), 10_000, np.random.default_rng(0))
        got = PPO(PPOSettings(temperature=0.05, heads=4), actor).log_probabilities(steps)
        assert np.allclose(got, played.logp[np.diff(played.ptr) > 1], atol=1e-3)


@pytest.mark.parametrize("objective", list(Objective))
def test_what_a_run_costs_differs_from_the_base_rules_as_the_metric_does(objective):
    case = case_of(busy_jobs(), estimates="noisy:1.5")
    base, mine = (finished_jobs(case, *by_rule(case, rule)) for rule in ("saf", "fifo"))
    spans = [cost(objective, one, base) for one in (base, mine)]
    ends = [one.until(np.array([0.0, 1e9])) for one in spans]
    assert [end[0] for end in ends] == pytest.approx([0.0, 0.0])
    assert [end[1] for end in ends] == pytest.approx([one.total for one in spans])
    if objective is not Objective.MIX:
        measured = [one.metric(objective) for one in (base, mine)]
        assert spans[1].total - spans[0].total == pytest.approx(measured[1] / measured[0] - 1.0)


def test_leave_one_out_compares_a_play_with_the_others_at_the_same_time():
    submit = np.zeros(2)
    base = FinishedJobs(submit, np.array([0.0, 100.0]), np.array([100.0, 150.0]))
    worse = FinishedJobs(submit, np.array([0.0, 150.0]), np.array([150.0, 200.0]))
    found = leave_one_out(Objective.WAIT, [base, worse], base, [np.array([0.0]), np.array([0.0, 120.0])])
    assert found[0] == pytest.approx([0.5])  # 50 s of the 100 that the base rule's two jobs wait in all
    assert found[1] == pytest.approx([-0.5, -0.3])


def test_advantages_of_the_plays_of_a_window_add_up_to_nothing_at_the_same_time():
    case = case_of(busy_jobs())
    base = finished_jobs(case, *by_rule(case, "saf"))
    plays = [finished_jobs(case, *by_rule(case, rule)) for rule in ("fifo", "sjf", "saf", "wfp3")]
    times = np.quantile(case.jobs.submit_time, [0.0, 0.3, 0.6, 0.9])
    found = np.array(leave_one_out(Objective.WAIT, plays, base, [times] * len(plays)))
    assert np.abs(found).max() > 0.01
    assert found.sum(axis=0) == pytest.approx(0.0, abs=1e-9)


def test_a_roll_out_has_finite_advantages():
    steps, ratios = rolled(case_of(busy_jobs()))
    assert np.isfinite(steps.advantage).all()
    assert np.mean(ratios) > 0


def test_ppo_finds_the_shortest_job_first_from_nothing_on_a_queue_where_it_is_optimal():
    pytest.importorskip("tensorflow")
    from rltuned.learn.ppo import PPO

    settings = PPOSettings(
        objective=Objective.WAIT, temperature=0.3, windows=4, trajectories=8, learning_rate=1e-2,
        minibatch=256, divergence=0.1,
    )  # fmt: skip
    ppo = PPO(settings, untrained("a", ARCHITECTURE, 3))
    unseen = [waiting_at_once(seed=seed) for seed in range(100, 104)]

    def regret():
        plays = [episode(one).run(ppo.actor, temperature=0.0, heads=0, seed=0, record=False) for one in unseen]
        best = [np.nanmean(by_rule(one, "sjf")[0]) for one in unseen]
        return np.mean([np.nanmean(play.start) / wait for play, wait in zip(plays, best, strict=True)])

    assert regret() > 1.1
    iteration = 0
    while regret() > 1.0001 and iteration < 30:
        iteration += 1
        parts = [
            rolled(waiting_at_once(seed=iteration * 4 + at), actor=ppo.actor, temperature=0.3,
                   trajectories=8, seed=iteration * 100 + at * 10, base="sjf")[0]
            for at in range(4)
        ]  # fmt: skip
        ppo.update(Steps.joined(parts), np.random.default_rng(iteration), 1.0 - iteration / 30)
    assert 1.0 - 1e-9 <= regret() <= 1.0001


def test_a_window_without_jobs_or_of_one_job_or_in_which_nobody_waits_is_left_out_with_its_reason():
    assert rolled(case_of(jobs_of([0.0], [60.0], [1]))) == "empty"
    apart = case_of(jobs_of([0.0, 1e5], [60.0, 60.0], [1, 1]))
    assert rolled(apart) == "never two jobs to choose from"
    too_large = case_of(jobs_of([0.0, 0.0], [60.0, 60.0], [64, 64]))
    assert rolled(too_large) == "empty"


def test_a_reward_that_is_no_number_never_reaches_the_network(monkeypatch):
    monkeypatch.setattr(sampling, "leave_one_out", lambda *_: [np.array([np.nan])] * 4)
    assert rolled(case_of(busy_jobs(20))) == "reward is no number"


def test_the_critic_learns_what_a_queue_costs_and_does_not_see_the_order_of_the_jobs():
    tf = pytest.importorskip("tensorflow")
    from rltuned.learn.critic import Critic

    rng = np.random.default_rng(2)
    rows, segment = rng.random((30, 5)).astype(np.float32), np.repeat(np.arange(10), 3).astype(np.int32)
    target = np.add.reduceat(rows[:, 0], np.arange(0, 30, 3)).astype(np.float32)
    critic = Critic(rng, rate=1e-2)
    first = critic.fit(tf.constant(rows), tf.constant(segment), target)
    for _ in range(200):
        last = critic.fit(tf.constant(rows), tf.constant(segment), target)
    assert last < 0.05 * first
    shuffled = np.concatenate([rng.permutation(rows[at : at + 3]) for at in range(0, 30, 3)])
    values = [critic.values(tf.constant(each), tf.constant(segment), 10).numpy() for each in (rows, shuffled)]
    assert values[0] == pytest.approx(values[1], abs=1e-5)

"""PPO: the distribution over orders, advantages, and that it solves what is easy."""

from dataclasses import replace

import numpy as np
import pytest
from unit.evaluate.small import busy_jobs, jobs_of
from unit.train.windows import case_of, starving, waiting_at_once, worth

from rltuned.core.objective import Objective
from rltuned.decide.rank.actor import MOMENT, plain_rule, with_network
from rltuned.decide.see.observation import STATE_COLUMNS
from rltuned.lab.train import sampling
from rltuned.lab.train.cost import FinishedJobs, advantages, cost
from rltuned.lab.train.sampling import Steps, episode, finished_jobs, in_slurms_order, kept, sample_trajectories
from rltuned.lab.train.training_settings import PPOSettings

pytestmark = pytest.mark.learn

SJF = plain_rule("sjf", requested_time=-1.0)
FIFO = plain_rule("fifo", job_urgency=1e-3)
NETWORK = with_network(plain_rule("a"), np.full(len(MOMENT), 0.4), np.full(len(MOMENT), 0.2))
WAIT = Objective.parse("wait=1")


def rolled(case, actor=None, rule=SJF, seed=3, objective=WAIT, **values):
    asked = PPOSettings(**{"temperature": 0.1, "trajectories": 4, "most_steps": 64, **values})
    actor = replace(actor or NETWORK, objective=objective)
    return sample_trajectories(case, in_slurms_order(case), actor, rule, asked, seed)


def played(case, actor, **values):
    return episode(case).run(actor, **{"temperature": 0.0, "heads": 0, "seed": 0, "record": False, **values})


def log_probabilities(values, orders):
    """Of drawing the first places of queues, one value for each job and one order for each queue; and entropies."""
    tf = pytest.importorskip("tensorflow")
    from rltuned.lab.train.ppo import batch_log_probability

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
    from rltuned.lab.train.ppo import PPO

    rng = np.random.default_rng(4)
    rule = plain_rule("a", requested_time=-0.5, job_urgency=0.4)
    for actor in (rule, with_network(rule, np.zeros(len(MOMENT)), np.ones(len(MOMENT)))):
        actor.weights["change"][:] = rng.normal(size=actor.weights["change"].shape)
        run = played(case_of(busy_jobs(), estimates="noisy:1"), actor, temperature=0.05, heads=4, seed=1, record=True)
        steps = kept(run, np.zeros(len(run)), 10_000, np.random.default_rng(0))
        got = PPO(PPOSettings(temperature=0.05, heads=4), actor).log_probabilities(steps)
        assert np.allclose(got, run.logp[np.diff(run.ptr) > 1], atol=1e-3)


@pytest.mark.parametrize(("name", "metric"), [("wait", "wait_mean"), ("slowdown", "bsld_mean"), ("idle", "idle")])
def test_what_a_run_costs_differs_from_another_ones_as_the_metric_does(name, metric):
    case = case_of(busy_jobs(), estimates="noisy:1.5")
    slurm, objective = in_slurms_order(case), Objective.parse(f"{name}=1")
    runs = [played(case, rule) for rule in (SJF, FIFO)]
    spans = [cost(objective, finished_jobs(case, one), slurm, 100.0) for one in runs]
    measured = [case.metrics(one.start, one.end)[metric] for one in runs]
    assert measured[0] != measured[1]
    least = {"wait": 60.0, "slowdown": 1.0, "idle": 1.0}[name]
    expected = (measured[1] - measured[0]) / max(slurm[metric], least)
    assert spans[1].total - spans[0].total == pytest.approx(expected)
    assert spans[1].until(np.array([-1.0, 1e9])) == pytest.approx([0.0, spans[1].total])


def test_the_tail_costs_what_is_waited_beyond_it():
    jobs = FinishedJobs(np.zeros(2), np.array([10.0, 100.0]), np.array([20.0, 110.0]), np.ones(2), 1.0)
    slurm = {"wait_mean": 60.0, "bsld_mean": 1.0, "wait_p99": 400.0, "idle": 1.0}
    assert cost(Objective.parse("tail=1"), jobs, slurm, 60.0).total == pytest.approx(40.0 / (0.1 * 2 * 400.0))


def test_an_advantage_compares_a_run_with_the_others_and_with_the_rule_at_the_same_time():
    submit, gpus = np.zeros(2), np.ones(2)
    slurm = {"wait_mean": 100.0, "bsld_mean": 1.0, "wait_p99": 60.0, "idle": 1.0}

    def costs(start):
        return cost(WAIT, FinishedJobs(submit, start, start + 50.0, gpus, 1.0), slurm, 1e9)

    rule, better, worse = (costs(np.array([0.0, each])) for each in (100.0, 60.0, 140.0))
    found = advantages([better, worse], rule, [np.array([0.0]), np.array([0.0, 120.0])])
    # In units of the 200 s that Slurm's two jobs wait in all: 60 s against 100 and 140, 140 against 100 and 60.
    assert found[0] == pytest.approx([0.5 * (100 + 140) / 200 - 60 / 200])
    assert found[1] == pytest.approx([0.5 * (100 + 60) / 200 - 140 / 200, -20 / 200])


def test_a_roll_out_has_finite_advantages_and_costs_over_the_rule():
    steps, over = rolled(case_of(busy_jobs()), objective=Objective())
    assert np.isfinite(steps.advantage).all()
    assert np.ptp(steps.advantage) > 0.01
    assert np.mean(over) > 0.0, "an actor that knows nothing costs more than the shortest job first"


def test_the_signal_is_clear_where_all_advantages_say_the_same_and_noise_where_they_are_drawn():
    pytest.importorskip("tensorflow")
    from rltuned.lab.train.ppo import PPO

    parts = [rolled(waiting_at_once(seed=seed), seed=10 * seed)[0] for seed in range(6)]
    steps = Steps.joined([part for part in parts if not isinstance(part, str)])
    rng = np.random.default_rng(0)
    ppo = PPO(PPOSettings(), NETWORK)
    first = steps.picks[:, 0] + sampling.begins(steps.count)[:-1]
    short = replace(steps, advantage=-steps.terms[first, 0].astype(np.float64))  # whoever begins with a short job wins
    drawn = replace(steps, advantage=rng.normal(size=len(steps.count)))
    assert ppo._signal(short, rng) > 3.0 * ppo._signal(drawn, rng)


def trained(start, window, objective, iterations, **values):
    """Of PPO, on new windows in each iteration."""
    pytest.importorskip("tensorflow")
    from rltuned.lab.train.ppo import PPO

    ppo = PPO(PPOSettings(minibatch=256, divergence=0.1, **values), start)
    for iteration in range(iterations):
        parts = [
            rolled(window(iteration * 4 + at), ppo.actor, start, iteration * 100 + at * 10, objective, **values)[0]
            for at in range(4)
        ]
        ppo.update(Steps.joined(parts), np.random.default_rng(iteration), 1.0 - iteration / iterations)
    return ppo.actor


def test_ppo_finds_the_shortest_job_first_from_nothing_on_a_queue_where_it_is_optimal():
    best = worth(SJF, "wait_mean", waiting_at_once)
    assert worth(NETWORK, "wait_mean", waiting_at_once) > 1.1 * best
    found = trained(NETWORK, waiting_at_once, WAIT, 12, temperature=0.1, trajectories=8, learning_rate=4e-2)
    assert worth(found, "wait_mean", waiting_at_once) == pytest.approx(best, rel=1e-3)


def longest_waits(actor):
    """Mean of the longest waits, a tenth of all."""
    cases = [starving(seed) for seed in range(1000, 1006)]
    waits = [np.sort(played(case, actor).start - case.jobs.submit_time) for case in cases]
    return float(np.mean([wait[-len(wait) // 10 :].mean() for wait in waits]))


def test_ppo_finds_how_much_waiting_is_to_count_where_that_is_the_answer():
    found = trained(SJF, starving, Objective.parse("tail=1"), 15, temperature=0.05, trajectories=8, learning_rate=0.3)
    assert found.weights["constant"][STATE_COLUMNS.index("job_urgency")] > 0.2
    assert longest_waits(found) < 0.8 * longest_waits(SJF)


def test_a_window_without_jobs_or_of_one_job_or_in_which_nobody_waits_is_left_out_with_its_reason():
    assert rolled(case_of(jobs_of([0.0], [60.0], [1]))) == "empty"
    apart = case_of(jobs_of([0.0, 1e5], [60.0, 60.0], [1, 1]))
    assert rolled(apart) == "never two jobs to choose from"
    too_large = case_of(jobs_of([0.0, 0.0], [60.0, 60.0], [64, 64]))
    assert rolled(too_large) == "empty"


def test_a_reward_that_is_no_number_never_reaches_the_network(monkeypatch):
    monkeypatch.setattr(sampling, "advantages", lambda *_: [np.array([np.nan])] * 4)
    assert rolled(case_of(busy_jobs(20))) == "reward is no number"

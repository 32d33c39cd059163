"""The Gymnasium environment: what is seen, what is paid, and that it plays as the simulator does."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env
from unit.learn.windows import busy_jobs, case_of, jobs_of

from rltuned.errors import EvaluationError
from rltuned.learn.cost import Objective, cost
from rltuned.learn.environment import QueueEnv, vectorised
from rltuned.learn.sampling import by_rule, episode, finished_jobs
from rltuned.policy.actor import Architecture, untrained
from rltuned.simulate import Network, Simulation


def finish(env, policy, **reset):
    """Play to the end: the sum of the rewards, and the last info."""
    seen, _ = env.reset(**reset)
    total, over = 0.0, False
    while not over:
        seen, reward, over, truncated, info = env.step(policy(seen))
        assert not truncated
        total += reward
    return total, info


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's advice about boxes that are not −1 … 1
def test_gymnasium_finds_nothing_wrong_with_the_environment():
    check_env(QueueEnv([case_of(busy_jobs(25))]), skip_render_check=True)


@pytest.mark.parametrize(
    ("objective", "metric"),
    [("wait", "wait_mean"), ("jct", "jct_mean"), ("bsld", "bsld_mean"), ("utilization", "makespan")],
)
def test_the_rewards_of_an_episode_add_up_to_one_minus_the_metric_over_the_base_rules(objective, metric):
    env = QueueEnv([case_of(busy_jobs(), estimates="noisy:1")], objective)
    rng = np.random.default_rng(5)
    total, info = finish(env, lambda _: rng.normal(size=256).astype(np.float32))
    assert total == pytest.approx(1.0 - info["metrics"][metric] / info["base_metrics"][metric], abs=1e-9)
    assert abs(total) > 1e-4


def test_the_mix_adds_up_to_its_parts():
    case = case_of(busy_jobs())
    rng = np.random.default_rng(5)
    total, _ = finish(QueueEnv([case], "mix"), lambda _: rng.normal(size=256).astype(np.float32))
    rng = np.random.default_rng(5)
    simulation = Simulation(case.shape, case.submitted, case.estimates, asked=case.asked)
    while simulation.next_refresh():
        seen, pending = simulation.observation(), simulation.pending
        scores = rng.normal(size=256).astype(np.float32)[: len(seen)]
        simulation.rank(seen.rows[np.lexsort((pending[seen.rows], -scores))])
    result = simulation.result()
    base = finished_jobs(case, *by_rule(case, "saf"))
    mine = finished_jobs(case, result.start, result.end)
    beyond = np.percentile(base.wait, 99)
    tails = [np.maximum(one.wait - beyond, 0).sum() / (0.01 * len(one.wait) * beyond) for one in (mine, base)]
    parts = [one.metric(Objective.WAIT) / base.metric(Objective.WAIT) for one in (mine, base)]
    slow = [one.metric(Objective.BSLD) / base.metric(Objective.BSLD) for one in (mine, base)]
    expected = 0.5 * (parts[1] - parts[0]) + 0.25 * (slow[1] - slow[0]) + 0.25 * (tails[1] - tails[0])
    assert total == pytest.approx(expected, abs=1e-9)


def test_what_is_paid_until_a_moment_grows_to_the_total_and_is_what_counting_gives():
    case = case_of(busy_jobs(20))
    base = finished_jobs(case, *by_rule(case, "saf"))
    spans = cost(Objective.WAIT, base, base)
    times = np.linspace(0.0, base.end.max(), 50)
    counted = [np.clip(np.minimum(t, base.start) - base.submit, 0, None).sum() for t in times]
    assert spans.until(times) == pytest.approx(np.array(counted) / base.wait.sum())
    assert spans.until(times)[-1] == pytest.approx(spans.total) == pytest.approx(1.0)


def test_the_environment_played_by_the_base_rules_own_level_earns_what_the_compiled_episode_says():
    case = case_of(busy_jobs(), estimates="noisy:1.5")
    actor = untrained("a", Architecture(residual="saf"), 1)
    fast = episode(case).run(Network.from_actor(actor), temperature=0.0, heads=8, seed=0, record=True)
    env = QueueEnv([case])
    env.reset()
    total, over = 0.0, False
    while not over:
        scores = np.zeros(256, dtype=np.float32)
        scores[: len(env._seen)] = actor.score(env._seen)
        _, reward, over, _, info = env.step(scores)
        total += reward
    expected = case.metrics(fast.start, fast.end).as_dict()["wait_mean"]
    assert info["metrics"]["wait_mean"] == pytest.approx(expected, rel=0.02)  # scores lose digits in float32
    assert total == pytest.approx(1.0 - info["metrics"]["wait_mean"] / info["base_metrics"]["wait_mean"], abs=1e-9)


def test_scores_that_are_no_numbers_rank_last_and_do_no_harm():
    env = QueueEnv([case_of(busy_jobs())])
    total, info = finish(env, lambda _: np.full(256, np.nan, dtype=np.float32))
    assert np.isfinite(total)
    assert np.isfinite(info["metrics"]["wait_mean"])


def test_a_queue_of_one_job_is_an_episode_and_an_environment_without_windows_is_refused():
    total, info = finish(QueueEnv([case_of(jobs_of([0.0], [100.0], [1]))], "jct"), lambda _: np.zeros(256, np.float32))
    assert total == pytest.approx(0.0)
    assert info["metrics"]["jct_mean"] == info["base_metrics"]["jct_mean"]
    with pytest.raises(EvaluationError, match="at least one window"):
        QueueEnv([])


def test_several_environments_step_together():
    env = vectorised([case_of(busy_jobs(20))], 2)
    seen, _ = env.reset(seed=1)
    assert seen["state"].shape == (2, 256, 8)
    _, reward, *_ = env.step(np.zeros((2, 256), dtype=np.float32))
    assert reward[0] == reward[1]
    env.close()

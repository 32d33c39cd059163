"""How accounts fare under a policy, over Slurm's own order in which fair share decides."""

import numpy as np
import pytest

from rltuned.cluster.shape import parse_shape
from rltuned.cluster.tables import Category
from rltuned.errors import ConfigError
from rltuned.evaluate.evaluation import evaluate, ready
from rltuned.evaluate.evaluation_settings import AGAIN, EvaluationSettings
from rltuned.evaluate.executors import LocalExecutor
from rltuned.evaluate.window_metrics import over_slurm
from rltuned.policy.multifactor import Weights
from rltuned.workload.jobs import Source, workload

HOUR = 3600.0


def measured(own, slurm, accounts, gpus=1.0, submit=0.0, run=HOUR):
    n = len(own)
    own, slurm = np.asarray(own, dtype=float), np.asarray(slurm, dtype=float)
    return over_slurm(
        np.full(n, submit),
        (own, own + run),
        (slurm, slurm + run),
        np.full(n, gpus),
        np.ones(n, dtype=np.bool_),
        Category.of(accounts),
    )


def test_an_account_is_worse_off_where_its_mean_wait_grows_by_a_tenth_and_five_minutes():
    accounts, slurm = ["a"] * 5 + ["b"] * 5 + ["few"], [HOUR] * 11
    worse, _ = measured([1.5 * HOUR] * 5 + [HOUR] * 5 + [9 * HOUR], slurm, accounts)
    assert worse == 0.5, "an account of one job says nothing"
    assert measured([1.05 * HOUR] * 5 + slurm[5:], slurm, accounts)[0] == 0.0, "less than a tenth"
    assert measured([200.0] * 5 + [100.0] * 6, [100.0] * 11, accounts)[0] == 0.0, "less than five minutes"


def test_service_is_moved_where_others_have_got_the_gpu_time_when_slurm_has_ended_most_jobs():
    # Slurm starts a's seven jobs and, when they have ended, b's three; at that moment b has had nothing.
    accounts, slurm = ["a"] * 7 + ["b"] * 3, [0.0] * 7 + [HOUR] * 3
    assert measured(slurm, slurm, accounts)[1] == 0.0
    assert measured([HOUR] * 7 + [0.0] * 3, slurm, accounts)[1] == pytest.approx(3 / 7)


def test_accounts_that_nobody_knows_say_nothing():
    assert np.isnan(measured([0.0] * 6, [0.0] * 6, [""] * 6)).all()


def flood():
    """Two users on two GPUs: one with long jobs, one that floods the queue with short ones."""
    n = 40
    long = np.arange(n) % 4 == 0
    run = np.where(long, 4 * HOUR, 600.0)
    return workload(
        Source("flood"),
        np.arange(n) * 60.0,
        run,
        np.ones(n, dtype=int),
        user=np.where(long, "long", "short").tolist(),
    )


def settings(**values):
    given = {"window": 40, "windows": 1, "policies": ("multifactor", AGAIN, "rl"), "rollout": False} | values
    return EvaluationSettings(trace="flood", cluster="1x2", weights="fair-share", **given)


def report(**values):
    return evaluate(ready(settings(**values), flood(), parse_shape("1x2"), "test"), LocalExecutor(1))


def test_the_report_says_how_accounts_fare_and_what_is_chance():
    found = report()["policies"]
    assert (found["multifactor"]["accounts_worse"], found["multifactor"]["service_moved"]) == (0.0, 0.0)
    assert 0.0 <= found[AGAIN]["service_moved"] < 1.0
    assert found["rl"]["wait_mean"] < found["multifactor"]["wait_mean"]


def test_what_accounts_may_borrow_bounds_what_is_moved():
    none, all_of_it = (report(borrow=share)["policies"]["rl"] for share in (0.0, 1.0))
    assert none["service_moved"] <= all_of_it["service_moved"]
    assert none["wait_mean"] > all_of_it["wait_mean"]


def test_weights_that_do_not_exist_are_refused():
    for wrong in ("x", "age=", "age=-1", "age=1,=2", "age=inf"):
        with pytest.raises(ConfigError, match="is no NAME=NUMBER; or give one of usual, fair-share"):
            EvaluationSettings(trace="t", cluster="1x1", weights=wrong)


def test_the_weights_of_a_site_are_a_list_that_the_report_repeats():
    site = "age=1000,fairshare=100000,max_age=3600,half_life=604800,gres/gpu=500"
    settings = EvaluationSettings(trace="t", cluster="1x1", weights=site)
    assert f"--weights {site}" in settings.command
    weights = Weights.parse(site)
    assert (weights.age, weights.fairshare, weights.max_age) == (1e3, 1e5, 3600.0)
    assert weights.tres == {"gres/gpu": 500.0}

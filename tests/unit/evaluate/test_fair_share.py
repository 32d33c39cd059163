"""How accounts fare under a policy, over Slurm's own order in which fair share decides."""

from dataclasses import replace

import numpy as np
import pytest
from unit.evaluate.small import reported

from rltuned.core.errors import ConfigError, EvaluationError
from rltuned.core.tables import Category
from rltuned.core.workers.pool import WorkerPool
from rltuned.decide.rank.multifactor import Weights
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import AGAIN, EvaluationSettings
from rltuned.lab.evaluate.policies import rule_ranker
from rltuned.lab.evaluate.window_metrics import against_slurm
from rltuned.simulate.engine import Simulation
from rltuned.simulate.run_times import HistoryPredictor, past
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import SimulationSettings
from rltuned.simulate.workload.jobs import Source, workload

HOUR = 3600.0


def measured(own, slurm, accounts, submit=0.0):
    n = len(own)
    own, slurm = np.asarray(own, dtype=float), np.asarray(slurm, dtype=float)
    return against_slurm(np.full(n, submit), own, slurm, np.ones(n, dtype=np.bool_), Category.of(accounts))


def test_an_account_is_worse_off_where_its_mean_wait_grows_by_a_tenth_and_five_minutes():
    accounts, slurm = ["a"] * 5 + ["b"] * 5 + ["few"], [HOUR] * 11
    found = measured([1.5 * HOUR] * 5 + [HOUR] * 5 + [9 * HOUR], slurm, accounts)
    assert found.accounts_worse == 0.5, "an account of one job says nothing"
    assert measured([1.05 * HOUR] * 5 + slurm[5:], slurm, accounts).accounts_worse == 0.0, "less than a tenth"
    assert measured([200.0] * 5 + [100.0] * 6, [100.0] * 11, accounts).accounts_worse == 0.0, "less than five minutes"


def test_the_worst_tenth_of_accounts_is_a_ratio_of_mean_waits_with_five_minutes_added():
    # Eleven accounts of five jobs each: the second-worst of them is the 90th percentile.
    accounts = [f"a{k}" for k in range(11) for _ in range(5)]
    ratios = np.repeat([9.0, 2.0, *[1.0] * 9], 5)
    slurm = np.tile([0.0, 300.0, 600.0, 900.0, 1200.0], 11)
    found = measured((600.0 + 300.0) * ratios - 300.0 + slurm - 600.0, slurm, accounts)
    assert found.worst_tenth == pytest.approx(2.0)
    assert measured(slurm, slurm, accounts).worst_tenth == 1.0


def test_a_job_is_late_that_starts_an_hour_and_a_tenth_of_its_wait_later():
    slurm = np.full(20, 10 * HOUR)
    own = slurm.copy()
    own[0], own[1], own[2] = 12.01 * HOUR, 11.99 * HOUR, np.nan
    found = measured(own, slurm, [""] * 20)
    assert found.late == pytest.approx(1 / 19), "of the jobs that ran"
    ratio = np.ones(19)
    ratio[:2] = (own[:2] + 300.0) / (10 * HOUR + 300.0)
    assert found.wait_ratio_p95 == pytest.approx(np.quantile(ratio, 0.95))


def test_accounts_that_nobody_knows_say_nothing_and_jobs_do():
    found = measured([0.0] * 6, [0.0] * 6, [""] * 6)
    assert np.isnan([found.accounts_worse, found.worst_tenth]).all()
    assert (found.late, found.wait_ratio_p95) == (0.0, 1.0)
    assert np.isnan(measured([np.nan] * 6, [0.0] * 6, ["a"] * 6)).all(), "nothing ran"


def flood():
    """Two users on two GPUs: one with long jobs, one that floods the queue with short ones."""
    long = np.arange(40) % 4 == 0
    run, users = np.where(long, 4 * HOUR, 600.0), np.where(long, "long", "short").tolist()
    return workload(Source("flood"), np.arange(40) * 60.0, run, 1, user=users)


def settings(**values):
    given = {"window": 40, "windows": 1, "policies": ("multifactor", AGAIN, "rl")} | values
    return EvaluationSettings(trace="flood", cluster="1x2", weights="fair-share", **given)


def report(**values):
    return reported(ready(settings(**values), flood(), parse_shape("1x2"), "test"), WorkerPool(1))


def test_the_report_says_how_accounts_fare_and_what_is_chance():
    found = report()["policies"]
    own = found["multifactor"]
    fares = own["accounts_worse"], own["worst_tenth"], own["late"], own["wait_ratio_p95"]
    assert fares == (0.0, 1.0, 0.0, 1.0)
    assert found[AGAIN]["wait_ratio_p95"] != 1.0
    assert found["rl"]["wait_mean"] < found["multifactor"]["wait_mean"]


def test_the_share_that_jobs_lend_bounds_how_long_the_others_wait():
    names = ("saf:0", "saf:0.05", "saf:1", "rl:0.05", "rl:1")
    found = report(policies=("multifactor", *names))["policies"]
    for order in ("saf", "rl"):
        few, all_of_it = (found[f"{order}:{share}"] for share in ("0.05", "1"))
        assert few["wait_mean"] > all_of_it["wait_mean"]
        assert few["wait_ratio_p95"] <= all_of_it["wait_ratio_p95"]
    assert found["saf:0"]["wait_mean"] > found["saf:0.05"]["wait_mean"], "own jobs only pass each other"


def test_slurms_own_order_asks_for_no_predictions_and_would_not_change_by_them():
    jobs = replace(flood(), time_limit=2.0 * flood().run_time)
    waits = []
    for estimates in ("history", "limit"):
        found = reported(ready(settings(estimates=estimates), jobs, parse_shape("1x2"), "test"), WorkerPool(1))
        waits.append([found["policies"][name]["wait_mean"] for name in ("multifactor", AGAIN)])
    assert waits[0] == waits[1]
    (case,) = ready(settings(estimates="history"), jobs, parse_shape("1x2"), "test").cases
    estimates = case.own_estimates()
    knows = HistoryPredictor(case.jobs, estimates.time_limit, past(case.before, case.before_estimates, 0.0))
    simulation = Simulation(case.shape, case.submitted, estimates, SimulationSettings(), knows, case.asked)
    simulation.run(rule_ranker("multifactor", "fair-share"))
    assert (simulation.result().start - case.jobs.submit_time).mean() == pytest.approx(waits[0][0])


@pytest.mark.parametrize(
    "wrong", ["saf:2", "saf:x", "saf:-1", "multifactor:0.1", "multifactor-again:0.1", "nobody:0.1"]
)
def test_a_share_that_cannot_be_lent_is_refused(wrong):
    with pytest.raises(EvaluationError, match="there is no policy"):
        settings(policies=("multifactor", wrong))


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

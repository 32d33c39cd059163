"""`testbed ab` without clusters: the jobs that it draws, what it measures of them, what it writes."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltuned.core.config import Config
from rltuned.simulate.run_times import HistoryPredictor
from rltuned.simulate.shape import from_json
from rltuned.simulate.workload.simulated_estimates import Estimates


@pytest.fixture(scope="module")
def jobs(ab: Any) -> Any:
    return ab.ab_jobs.draw(1024, 1, 30.0, 1.0)


def test_the_same_seed_has_the_same_jobs_and_another_one_others(ab: Any, jobs: Any):
    again, other = (ab.ab_jobs.draw(1024, seed, 30.0, 1.0) for seed in (1, 2))
    for column in ("submit_time", "run_time", "time_limit", "gpus"):
        assert getattr(again.workload, column).tolist() == getattr(jobs.workload, column).tolist()
        assert getattr(other.workload, column).tolist() != getattr(jobs.workload, column).tolist()


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_jobs_are_those_of_a_busy_cluster(ab: Any, seed: int):
    drawn = ab.ab_jobs.draw(1024, seed, 30.0, 1.0)
    small = drawn.workload
    assert len(small) == 1024
    # They arrive in three quarters of the half hour and are as much work as the cluster can do meanwhile.
    span = float(small.submit_time.max())
    assert 0.9 * 1350.0 < span <= 1350.0
    assert small.run_time @ small.gpus == pytest.approx(13 * 1350.0, rel=0.01)
    # Every kind, size, user, account and QOS is there, kinds by their weights.
    counted = Counter(drawn.kind)
    assert all(counted[kind.name] >= 10 * kind.weight for kind in ab.ab_jobs.KINDS)
    for masks in (ab.ab_jobs.sizes(drawn), ab.ab_jobs.owned(drawn, "user")):
        assert all(mask.sum() >= 30 for mask in masks.values())
    assert Counter(small.account.texts()).keys() == {"physics", "biology"}
    assert Counter(small.qos.texts()).keys() == {"low", "normal", "high"}
    # Heavy-tailed: the longest tenth runs for a third of the time.
    ordered = np.sort(small.run_time)
    assert ordered[-102:].sum() > 0.3 * ordered.sum()
    assert ordered[-1] > 8.0 * np.median(ordered)


def test_limits_are_whole_minutes_of_each_script_s_own_and_above_every_run_time(jobs: Any):
    small = jobs.workload
    minutes = small.time_limit / 60.0
    assert (minutes == np.round(minutes)).all()
    assert (small.time_limit > small.run_time).all()
    # No tie among many: a limit belongs to one script, hence to one user and one kind.
    of_limit: dict[float, set[tuple[str, str, str]]] = {}
    for limit, *who in zip(minutes.tolist(), small.user.texts(), jobs.kind, small.qos.texts(), strict=True):
        of_limit.setdefault(limit, set()).add(tuple(who))
    assert all(len(who) == 1 for who in of_limit.values())
    assert len(of_limit) >= 40
    assert max(Counter(minutes.tolist()).values()) < 0.08 * len(small)


def test_users_rerun_their_scripts_so_that_history_predicts_run_times_and_limits_do_not(jobs: Any):
    small = jobs.workload
    known = Estimates(small.time_limit, small.time_limit.copy())
    predictor = HistoryPredictor(small, known.time_limit)
    guess = np.zeros(len(small))
    for row in range(len(small)):  # as if each had ended before the next one came
        guess[row] = predictor.predict(np.array([row])).median[0]
        predictor.ended(np.array([row]), small.run_time[row : row + 1], small.submit_time[row : row + 1])
    late = slice(200, None)
    by_history = np.abs(np.log(guess / small.run_time))[late]
    by_limit = np.log(small.time_limit / small.run_time)[late]
    assert np.median(by_history) < 0.4
    # A limit is a multiple that differs from script to script.
    assert np.std(by_limit) > 2.0 * np.median(by_history)


def test_every_job_can_run_on_the_testbed_and_is_submitted_as_its_user_in_its_account_and_qos(ab: Any, jobs: Any):
    commands = ab.replay.sbatch(
        jobs, from_json(ab.ab_jobs.CLUSTER, "here"), np.zeros(len(jobs.workload), dtype=np.int64)
    )
    small = jobs.workload
    for row in (0, 500, 1023):
        wanted = {
            f"--uid={small.user.value(row)}",
            f"--account={small.account.value(row)}",
            f"--qos={small.qos.value(row)}",
            "--partition=gpu",
            f"--time={round(small.time_limit[row] / 60.0)}",
        }
        assert wanted <= set(commands[row])


def test_too_few_jobs_are_refused(ab: Any):
    with pytest.raises(ab.testbed.TestbedError, match="too few"):
        ab.ab_jobs.draw(20, 1, 5.0, 1.0)


def test_where_a_node_runs_one_job_the_load_is_of_nodes(ab: Any):
    small = ab.ab_jobs.draw(1024, 1, 30.0, 1.0, exclusive=True).workload
    nodes = np.where(small.nodes > 0, small.nodes, 2)
    assert small.run_time @ nodes == pytest.approx(5 * 0.75 * 30 * 60, rel=0.01)
    assert small.partition.texts()[0] == "excl"


def test_multifactor_is_always_an_arm_and_one_that_does_not_exist_is_refused(ab: Any):
    assert [arm.name for arm in ab.ab_jobs.chosen("rl, saf")] == ["multifactor", "saf", "rl"]
    with pytest.raises(ab.testbed.TestbedError, match="'sjf'"):
        ab.ab_jobs.chosen("rl,sjf")
    with pytest.raises(ab.testbed.TestbedError, match="nothing to compare"):
        ab.ab_jobs.chosen("multifactor")


def test_each_arm_has_a_configuration_that_the_daemon_takes(ab: Any):
    for arm in ab.ab_jobs.ARMS.values():
        config = Config.model_validate(arm.configuration(5.0))
        assert config.cycle.interval == 5.0
        assert config.cycle.stage == "active"
    rl = Config.model_validate(ab.ab_jobs.ARMS["rl"].configuration(5.0))
    assert (rl.policy.name, rl.placement.apply) == ("model", "off")


def test_slurm_and_the_simulator_have_the_same_equal_weights(ab: Any):
    conf = ab.ab_jobs.slurm_conf(30.0)
    weights = ab.ab_jobs.weights(conf)
    equal = {conf[f"PriorityWeight{name}"] for name in ("Age", "FairShare", "JobSize", "Partition", "QOS")}
    assert {float(each) for each in equal} == {weights.age, weights.fairshare, weights.job_size, weights.qos}
    assert int(conf["PriorityMaxAge"]) * 60.0 == weights.max_age == weights.half_life == 21 * 60.0


def one_after_the_other(ab: Any, jobs: Any, seconds: Any) -> Any:
    """Everybody waits so long, or each as long as these say."""
    small = jobs.workload
    start = small.submit_time + seconds
    return ab.ab_report.Times(small.submit_time, start, start + small.run_time)


def run_of(ab: Any, jobs: Any, waits: dict[str, float], seed: int = 1) -> Any:
    real = {arm: one_after_the_other(ab, jobs, seconds) for arm, seconds in waits.items()}
    facts = {arm: {"daemon": {"cycles": 1}} for arm in waits}
    return ab.ab_report.Run(seed, "24.11.5", ab.ab_jobs.synthetic(30.0), 5.0, jobs, ab.ab_jobs.CLUSTER, real, facts)


def test_the_metrics_of_two_jobs_worked_out_by_hand(ab: Any):
    made = ab.replay.workload(ab.replay.Source("two"), [0.0, 10.0], [20.0, 100.0], [4, 1], user=["alice", "bob"])
    jobs = ab.replay.Jobs(made, made.run_time, ("a", "b"), {})
    times = ab.ab_report.Times(*(np.array(of) for of in ([0.0, 10.0], [0.0, 30.0], [20.0, 130.0])))
    run = replace(run_of(ab, jobs, {}), real={"multifactor": times})
    found = ab.ab_report.measured(run, times, times)
    assert found["wait_mean"] == 10.0
    assert found["wait_max"] == 20.0
    assert found["jct_mean"] == 70.0
    assert found["bsld_mean"] == pytest.approx((1.0 + 1.2) / 2)
    assert found["makespan"] == 130.0
    assert found["gpus"] == pytest.approx((4 * 20 + 100) / 130)
    assert found["gpus_arriving"] == 4.0
    assert found["gpus_waiting"] == (4 * 10 + 0 * 10) / 20
    assert ab.ab_report.in_use(jobs, times, np.array([0.0, 10.0, 40.0])).tolist() == pytest.approx(
        [4.0, (4 * 10 + 10) / 30]
    )


def test_half_the_wait_is_a_ratio_of_a_half_with_an_interval_around_it(ab: Any, jobs: Any):
    found = ab.ab_report.summary([run_of(ab, jobs, {"multifactor": 100.0, "rl": 50.0})])
    wait = found["ratios"]["rl"]["wait_mean"]
    assert wait["ratio"] == pytest.approx(0.5)
    assert wait["lo"] == pytest.approx(0.5)
    assert found["ratios"]["rl"]["makespan"]["ratio"] < 1.0
    assert found["ratios"]["multifactor"]["bsld_mean"]["ratio"] == 1.0
    assert found["groups"]["size"]["several nodes"]["rl"]["wait_mean"] == pytest.approx(50.0)
    assert sum(of["jobs"] for of in found["groups"]["user"].values()) == 1024
    assert "prediction" not in found


def test_an_interval_is_wide_where_a_few_jobs_decide(ab: Any, jobs: Any):
    run = run_of(ab, jobs, {"multifactor": 100.0, "rl": 100.0})
    mended = run.real["rl"]
    start = mended.start.copy()
    start[:64] -= 100.0
    end = start + jobs.workload.run_time
    found = ab.ab_report.summary([replace(run, real={**run.real, "rl": ab.ab_report.Times(mended.submit, start, end)})])
    wait = found["ratios"]["rl"]["wait_mean"]
    assert wait["ratio"] == pytest.approx(1.0 - 64 / 1024)
    assert wait["lo"] < 0.9
    assert wait["hi"] == pytest.approx(1.0)


def test_several_seeds_are_pooled_and_each_is_told(ab: Any, jobs: Any):
    other = ab.ab_jobs.draw(1024, 2, 30.0, 1.0)
    runs = [
        run_of(ab, jobs, {"multifactor": 100.0, "rl": 50.0}),
        run_of(ab, other, {"multifactor": 300.0, "saf": 10.0, "rl": 300.0}, seed=2),
    ]
    found = ab.ab_report.summary(runs)
    assert list(found["arms"]) == ["multifactor", "rl"]
    assert found["arms"]["rl"]["wait_mean"] == pytest.approx(175.0)
    assert found["ratios"]["rl"]["wait_mean"]["ratio"] == pytest.approx(350 / 400)
    assert [of["ratios"]["rl"]["wait_mean"] for of in found["runs"]] == pytest.approx([0.5, 1.0])
    assert "testbed A/B, seed 2 on 24.11.5" in ab.ab_report.table(found)


def test_what_is_written_can_be_pooled_again(ab: Any, jobs: Any, tmp_path: Path, capsys: Any):
    run = run_of(ab, jobs, {"multifactor": 100.0, "rl": 50.0})
    run.simulated.update({"multifactor": [run.real["multifactor"]], "rl": [one_after_the_other(ab, jobs, 40.0)]})
    path, both = tmp_path / "one.json", tmp_path / "both.json"
    path.write_text(json.dumps(ab.ab.to_json([run], ["--seed", "1"])))
    assert ab.ab.main(["--pool", str(path), str(path), "--json", str(both), "--plot", str(tmp_path)]) == 0
    found = json.loads(both.read_text())["summary"]
    assert found["jobs"] == 2048
    assert found["ratios"]["rl"]["wait_mean"]["ratio"] == pytest.approx(0.5)
    predicted = found["prediction"]["rl"]["wait_mean"]
    assert predicted["ratio"] == pytest.approx(0.4)
    assert predicted["points"] == pytest.approx(-10.0)
    assert "0.400 -10.0" in capsys.readouterr().out
    assert (tmp_path / "waits.png").stat().st_size > 10_000
    assert (tmp_path / "gpus.png").stat().st_size > 10_000


def test_a_file_of_something_else_is_refused_with_a_reason(ab: Any, tmp_path: Path, capsys: Any):
    path = tmp_path / "other.json"
    path.write_text('{"meta": {"form": 1}}')
    assert ab.ab.main(["--pool", str(path)]) == 1
    assert "not what `testbed ab --json` writes" in capsys.readouterr().err


def test_where_nothing_can_be_predicted_the_real_numbers_stand_alone(ab: Any, jobs: Any, monkeypatch: Any, capsys: Any):
    def never_ends(*_: Any) -> None:
        raise ab.testbed.TestbedError("simulated saf: job 7 never ended")

    run = run_of(ab, jobs, {"multifactor": 100.0, "saf": 50.0})
    monkeypatch.setattr(ab.ab, "simulate", never_ends)
    ab.ab.predict(run, 1)
    assert "prediction" not in ab.ab_report.summary([run])
    assert "no prediction: simulated saf: job 7 never ended" in capsys.readouterr().err
    run.real["of-old"] = run.real["saf"]
    ab.ab.predict(run, 1)
    assert "there is no arm of-old any more" in capsys.readouterr().err


def test_the_simulated_daemon_makes_the_same_jobs_wait_less(ab: Any):
    jobs, shape = ab.ab_jobs.draw(300, 12, 3.0, 1.8), from_json(ab.ab_jobs.CLUSTER, "here")
    waits = {}
    for name in ("multifactor", "saf"):
        start, end = ab.ab_simulated.simulate(
            jobs, shape, ab.ab_jobs.ARMS[name], ab.ab_jobs.synthetic(3.0), 2.0, 0.1, draw=0
        )
        assert np.allclose(end - start, jobs.workload.run_time + 0.1)
        waits[name] = float((start - jobs.workload.submit_time).mean())
    assert waits["saf"] < 0.8 * waits["multifactor"]

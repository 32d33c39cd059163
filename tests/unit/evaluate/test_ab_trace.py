"""`testbed ab --trace` without clusters: which jobs of a trace, how they are compressed, what is measured of them."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from unit.evaluate.test_ab import one_after_the_other

from rltuned.core.config import Config
from rltuned.simulate.shape import from_json, parse_shape
from rltuned.simulate.workload.jobs import Source, Workload, workload

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
MINUTES = 4.0


def busy_trace(jobs: int = 2_000, users: int = 12) -> Workload:
    """Jobs of an hour, each a minute after the last: 60 GPUs' work, and more."""
    rng = np.random.default_rng(5)
    who = rng.integers(0, users, jobs)
    return workload(
        Source("busy"),
        60.0 * np.arange(jobs),
        np.round(rng.lognormal(np.log(1800.0), 1.0, jobs)),
        rng.choice([1, 2, 8], jobs),
        user=[f"{at:x}@lab" for at in who],
        time_limit=np.full(jobs, 86400.0),
    )


def written(jobs: Workload, path: Path) -> Path:
    rows = zip(jobs.submit_time, jobs.run_time, jobs.gpus, jobs.user.texts(), strict=True)
    lines = [f"{submit:.0f},{run:.0f},{gpus},{user}" for submit, run, gpus, user in rows]
    path.write_text("\n".join(["submit_time,run_time,num_gpus,user", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def drawn(ab: Any, tmp_path_factory: Any) -> Any:
    path = written(busy_trace(), tmp_path_factory.mktemp("trace") / "busy.csv")
    return ab.ab_trace.window(str(path), 2, 60, MINUTES, 1)[:2]


def test_a_window_is_as_long_as_planned_and_fits_the_cluster(ab: Any, drawn: Any):
    jobs, site = drawn
    small, own = jobs.workload, slice(-60, None)
    assert jobs.warm > 0
    assert small.submit_time.max() <= ab.ab_trace.BEGINS + ab.ab_jobs.ARRIVING * MINUTES * 60.0 + 0.1
    # A minute of the trace between two jobs.
    assert np.allclose(np.diff(small.submit_time[own]), 60.0 / site.factor)
    assert small.run_time.min() >= 2.0
    assert small.run_time.max() <= 0.25 * MINUTES * 60.0
    assert small.run_time @ small.gpus <= 16 * MINUTES * 60.0
    assert (small.time_limit % 60.0 == 0.0).all()
    assert (small.time_limit >= small.run_time + ab.ab_trace.SPARE).all()
    assert ab.replay.sbatch(jobs, from_json(ab.ab_trace.cluster(2), "2x8"), np.zeros(len(small), np.int64))


def test_where_a_node_runs_one_job_the_jobs_fit_with_the_nodes_that_they_take(ab: Any, tmp_path: Path):
    path = written(busy_trace(), tmp_path / "busy.csv")
    jobs, site, _ = ab.ab_trace.window(str(path), 2, 60, MINUTES, 1, exclusive=True)
    small = jobs.workload
    assert site.conf["PartitionName"].startswith("gpu Nodes=n[0-1] ")
    assert site.conf["PartitionName"].endswith(" OverSubscribe=EXCLUSIVE")
    assert small.run_time.sum() * 8 <= 16 * MINUTES * 60.0
    assert set(small.gpus) == {1, 2, 8}


def test_the_same_seed_is_the_same_window(ab: Any, drawn: Any, tmp_path: Path):
    path = written(busy_trace(), tmp_path / "busy.csv")
    again, other = (ab.ab_trace.window(str(path), 2, 60, MINUTES, seed)[0] for seed in (1, 2))
    assert again.workload.job_id.tolist() == drawn[0].workload.job_id.tolist()
    assert other.workload.job_id.tolist() != again.workload.job_id.tolist()


def test_users_are_anonymous_and_each_has_an_account(drawn: Any):
    jobs, site = drawn
    pairs = set(zip(jobs.workload.user.texts(), jobs.workload.account.texts(), strict=True))
    assert all(user == f"u{account[1:]}" for user, account in pairs)
    assert {job.user for job in site.past} >= {user for user, _ in pairs}


def test_slurms_slow_clocks_are_as_fast_as_the_jobs(ab: Any, drawn: Any):
    _, site = drawn
    weights = ab.ab_jobs.weights(site.conf)
    assert weights.half_life == weights.max_age == pytest.approx(7 * 86400.0 / site.factor, abs=30.0)
    assert weights.fairshare == 10.0 * weights.age == 10.0 * weights.qos


def test_what_runs_when_the_window_begins_has_the_rest_of_its_time_left_and_what_has_ended_is_the_past(ab: Any):
    jobs = workload(
        Source("by hand"),
        [0.0, 400.0, 450.0, 500.0, 560.0],
        [100.0, 300.0, 40.0, 60.0, 60.0],
        [8, 8, 8, 8, 8],
        user=["u0", "u0", "u1", "u0", "u1"],
        account=["a0", "a0", "a1", "a0", "a1"],
        time_limit=np.full(5, 3600.0),
    )
    # The window is the last two jobs.
    shape = from_json(ab.ab_trace.cluster(1), "1x8")
    made, site, clipped = ab.ab_trace.compressed(jobs, 3, shape, 80.0 / 60.0)
    assert made.warm == 1  # the other one waits
    factor, begins = site.factor, ab.ab_trace.BEGINS
    assert made.workload.submit_time.tolist() == pytest.approx([0.0, 3.0, begins, begins + 60.0 / factor])
    longest = 0.25 * 80.0
    wanted = np.clip(np.array([200.0, 40.0, 60.0, 60.0]) / factor, 2.0, longest)
    assert made.workload.run_time.tolist() == pytest.approx(wanted.tolist(), abs=0.01)
    assert clipped == (np.array([200.0, 40.0, 60.0, 60.0]) / factor > longest).sum()
    assert [(job.user, job.gpus, job.end) for job in site.past] == [("u0", 8, pytest.approx(-400.0 / factor))]


def test_a_job_that_no_node_can_hold_is_left_out_and_said(ab: Any):
    jobs = busy_trace(100)
    jobs.gpus[90] = 64
    made, _, _ = ab.ab_trace.compressed(jobs, 50, from_json(ab.ab_trace.cluster(2), "2x8"), MINUTES)
    assert sum(made.left_out.values()) == 1
    assert (made.workload.submit_time >= ab.ab_trace.BEGINS).sum() == 49


def test_more_jobs_than_fit_the_time_are_refused(ab: Any):
    shape = from_json(ab.ab_trace.cluster(1), "1x8")
    with pytest.raises(ab.testbed.TestbedError, match="too many"):
        ab.ab_trace.compressed(busy_trace(), 1, shape, 1.0)


def test_a_trace_without_users_gets_some_and_a_preset_stands_in_for_a_file(ab: Any, tmp_path: Path):
    path = tmp_path / "nobody.csv"
    path.write_text("submit_time,run_time,num_gpus\n" + "".join(f"{at},60,{1 + at // 3 % 2}\n" for at in range(300)))
    jobs = ab.ab_trace.trace(str(path), parse_shape("2x8"), 1)
    assert 5 < len(jobs.user.names) <= 23
    # Jobs alike that follow each other are one user's.
    assert len(set(jobs.user.texts()[:3])) == 1
    made = ab.ab_trace.trace("philly", parse_shape("2x8"), 1)
    assert len(made) == ab.ab_trace.SYNTHETIC
    assert made.account.value(0).startswith("a")


@pytest.mark.parametrize("name", ["helios-venus-users", "philly-users", "drac-graham", "alibaba-pai"])
def test_there_are_windows_of_the_real_traces(ab: Any, name: str):
    path = TRACES / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there: the traces are not part of the project")
    jobs, site, _ = ab.ab_trace.window(str(path), 8, 256, 30.0, 1)
    assert len(jobs.workload) - jobs.warm > 240
    assert len(site.past) > 500


def test_the_arms_of_a_trace_lend_by_default_and_slurm_stands_beside_itself(ab: Any):
    arms = ab.ab_jobs.chosen("", ab.ab_jobs.TRACE_ARMS)
    assert [arm.name for arm in arms] == [
        "multifactor",
        "multifactor-again",
        "saf",
        "rl",
        "tuned",
        "rl-tuned",
    ]
    for arm in (*arms[2:4], arms[5]):
        assert Config.model_validate(arm.configuration(5.0)).lend == Config().lend


def test_lines_of_slurm_conf_are_put_beside_or_instead_of_those_of_the_testbed(ab: Any, drawn: Any):
    conf = drawn[1].conf
    text = "# found\nPriorityWeightFairshare=5  # less\nPriorityFavorSmall=YES\nSchedulerParameters=...,bf_interval=2\n"
    found = ab.ab_jobs.tuned(text.splitlines(), conf)
    assert found["PriorityWeightFairShare"] == "5"
    assert found["PriorityFavorSmall"] == "YES"
    parameters = found["SchedulerParameters"].split(",")
    assert "bf_interval=2" in parameters
    assert "bf_interval=1" not in parameters
    assert "bf_continue" in parameters
    assert "..." not in parameters
    assert ab.ab_jobs.weights({**conf, **found}).fairshare == 5.0
    with pytest.raises(ab.testbed.TestbedError, match="not a line"):
        ab.ab_jobs.tuned(["hello world"], conf)


def test_the_tuned_arm_has_what_the_search_finds_on_earlier_jobs_of_the_trace(
    ab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = written(busy_trace(), tmp_path / "busy.csv")
    _, site, earlier = ab.ab_trace.window(str(path), 2, 60, MINUTES, 1)
    assert len(earlier) == round(0.85 * len(busy_trace()))
    assert set(earlier.partition.texts()) == {"gpu"}
    assert np.allclose(np.diff(earlier.submit_time), 60.0 / site.factor)
    monkeypatch.setattr(ab.ab_trace, "tune", partial(ab.ab_trace.tune, budget=6, length=20))
    lines = ab.ab_trace.tuned_lines(earlier, 2, site, 1)
    assert bool(lines) == bool(ab.ab_jobs.tuned(lines, site.conf))


def test_users_accounts_and_past_are_made_on_the_cluster(ab: Any, drawn: Any):
    asked: list[tuple[str, str, str]] = []

    def execute(command: str, *, service: str = "ctl", text_input: str = "") -> None:
        asked.append((service, command, text_input))

    jobs, site = drawn
    ab.ab_trace.enrol(SimpleNamespace(execute=execute), jobs, site)
    assert [service for service, *_ in asked] == ["ctl", "scale", "ctl", "dbd"]
    assert asked[0][2] == asked[1][2]
    assert "u0:x:3000:3000::/tmp:/bin/bash" in asked[0][2]
    assert "add user u0 account=a0 cluster=testbed" in asked[2][2]
    assert asked[3][2].count("'gpu',") == len(site.past)


def run_of(ab: Any, drawn: Any, waits: dict[str, Any]) -> Any:
    jobs, site = drawn
    real = {arm: one_after_the_other(ab, jobs, wait) for arm, wait in waits.items()}
    return ab.ab_report.Run(1, "24.11.5", site, 5.0, jobs, ab.ab_trace.cluster(2), real, {arm: {} for arm in real})


def test_jobs_that_run_when_the_window_begins_are_not_measured(ab: Any, drawn: Any):
    jobs, _ = drawn
    measured = len(jobs.workload) - jobs.warm
    assert measured > 60  # those that wait are
    wait = np.where(np.arange(len(jobs.workload)) < jobs.warm, 1_000.0, 30.0)
    found = ab.ab_report.summary([run_of(ab, drawn, {"multifactor": wait, "saf": wait / 2.0})])
    assert found["jobs"] == measured
    assert found["arms"]["multifactor"]["wait_mean"] == pytest.approx(30.0)
    assert found["ratios"]["saf"]["wait_mean"]["ratio"] == pytest.approx(0.5)
    assert sum(of["jobs"] for of in found["groups"]["account"].values()) == measured
    assert "user" not in found["groups"]  # the same once more


def test_an_account_that_waits_longer_is_counted_and_so_are_the_jobs_that_are_late(ab: Any, drawn: Any):
    jobs, _ = drawn
    mine = (
        np.array(jobs.workload.account.texts())
        == Counter(jobs.workload.account.texts()[jobs.warm :]).most_common(1)[0][0]
    )
    wait, later = np.full(len(mine), 30.0), 60.0 + 3600.0 / drawn[1].factor
    run = run_of(ab, drawn, {"multifactor": wait, "multifactor-again": wait, "saf": np.where(mine, later, 15.0)})
    found = ab.ab_report.summary([run])["arms"]
    assert found["saf"]["accounts_worse"] > 0.0
    assert found["saf"]["worst_tenth"] < 1.0 < found["saf"]["wait_ratio_p95"], "one account of many"
    assert found["saf"]["late"] == pytest.approx(100.0 * mine[jobs.warm :].mean())
    again = found["multifactor-again"]
    assert (again["accounts_worse"], again["worst_tenth"], again["late"]) == (0.0, 1.0, 0.0)
    shown = ab.ab_report.table(ab.ab_report.summary([run]))
    assert "accounts worse off, %" in shown
    assert "mean wait by account" in shown


def test_a_run_of_a_trace_can_be_written_and_read(ab: Any, drawn: Any, tmp_path: Path):
    run = run_of(ab, drawn, {"multifactor": 30.0, "saf": 15.0})
    path = tmp_path / "ab.json"
    path.write_text(json.dumps(ab.ab.to_json([run], [])))
    (read,) = ab.ab.from_json_file(path)
    assert read.site == run.site
    assert read.jobs.warm == run.jobs.warm
    for arm, metrics in ab.ab_report.summary([run])["arms"].items():
        assert ab.ab_report.summary([read])["arms"][arm] == pytest.approx(metrics, rel=1e-2)


def test_nodes_of_other_sizes_than_four_can_be_asked_for(ab: Any):
    assert ab.testbed.nodes_and_gpus("32") == (32, 4)
    assert ab.testbed.nodes_and_gpus("16x8") == (16, 8)

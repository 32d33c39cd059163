"""Whole evaluations of small workloads."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from unit.evaluate.small import Recording, busy_jobs, jobs_of, prepared, report, reported, settings, without_timings

from rltuned.core.config import DEFAULT_MODEL
from rltuned.core.errors import ConfigError, EvaluationError, ModelError
from rltuned.core.objective import Objective
from rltuned.core.workers.pool import WorkerPool
from rltuned.decide.rank.actor import RUN_TIME
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_report import show, table, text
from rltuned.lab.evaluate.evaluation_settings import DEFAULT_POLICIES, POLICIES, Start
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.state import state_path
from rltuned.lab.evaluate.window_metrics import COMPARED
from rltuned.lab.evaluate.windows import Split
from rltuned.lab.train.curriculum import Site, with_predictions
from rltuned.simulate.run_times import HistoryPredictor, past
from rltuned.simulate.shape import parse_shape, read_shape
from rltuned.simulate.values import Backfill, Fit


def waits(found, policy, window=0):
    return found["windows"][window]["policies"][policy]["wait_mean"]


def window_from(found, start):
    return next(window for window in found["windows"] if window["start"] == start)


def one_window(jobs, **values):
    return report(jobs, **{"window": len(jobs), "windows": 1, **values})


# --- what is simulated


def test_the_waits_of_three_jobs_on_one_gpu_are_those_worked_out_by_hand():
    # FIFO: 0, 99, 198; shortest first: the 10 s job at 100, the 300 s job at 110.
    jobs = jobs_of([0.0, 1.0, 2.0], [100.0, 300.0, 10.0], [1, 1, 1])
    found = one_window(jobs, cluster="1x1", policies=("fifo", "sjf"))
    assert waits(found, "fifo") == pytest.approx((0 + 99 + 398) / 3)
    assert waits(found, "sjf") == pytest.approx((0 + 109 + 98) / 3)
    assert found["policies"]["sjf"]["makespan"] == 410.0
    assert found["policies"]["sjf"]["utilization"] == pytest.approx(100.0)


def test_strict_fifo_lets_nobody_pass_and_spreads_where_fifo_backfills_and_packs():
    # 2 nodes × 2 GPUs. Best fit puts both small jobs on one node, so the large one starts at once; worst fit does not.
    packed = jobs_of([0.0, 1.0, 2.0], [1000.0, 1000.0, 50.0], [1, 1, 2])
    found = one_window(packed, cluster="2x2", policies=("fifo-strict", "fifo"))
    assert (waits(found, "fifo-strict"), waits(found, "fifo")) == (pytest.approx(998 / 3), 0.0)
    # 4 GPUs of one node. The third job fits beside the first without delaying the second.
    behind = jobs_of([0.0, 1.0, 2.0], [1000.0, 50.0, 50.0], [3, 2, 1])
    found = one_window(behind, cluster="1x4", policies=("fifo-strict", "fifo"))
    assert waits(found, "fifo-strict") == pytest.approx((999 + 998) / 3)
    assert waits(found, "fifo") < (999 + 60) / 3


def test_backfill_and_placement_flags_reach_every_policy_but_strict_fifo():
    meta = prepared(policies=("fifo-strict", "saf", "multifactor"), backfill=Backfill.SLURM, placement=Fit.WORST).meta
    assert meta["policies"]["fifo-strict"] == {"backfill": "none", "fit": "worst"}
    assert meta["policies"]["saf"] == meta["policies"]["multifactor"]
    assert meta["policies"]["saf"] == {"backfill": "slurm", "fit": "worst"}
    usual = prepared(policies=("saf",)).meta
    assert usual["policies"]["saf"] == {"backfill": "slurm", "fit": "slurm"}


def test_a_model_does_not_correct_run_times_that_are_predicted_means():
    for estimates, corrects in (("noisy:1.5", True), ("history", False)):
        policy = contender("rl", prepared(policies=("rl",), estimates=estimates).settings).policy
        assert (RUN_TIME in policy.weights) == corrects


def test_the_model_is_told_what_is_wanted():
    wanted = Objective.parse("tail=1")
    rl = contender("rl", prepared(policies=("rl",), objective=wanted).settings)
    assert rl.policy.objective == wanted


def test_a_warm_start_leaves_running_and_waiting_jobs_that_the_policy_ranks_anew():
    # One GPU. At 0, when the window's only job (60 s) comes, a job runs until 50, and 80 s and 10 s jobs wait.
    jobs = jobs_of([0.0, 10.0, 20.0, 50.0], [100.0, 80.0, 10.0, 60.0], [1] * 4)
    asked = {"cluster": "1x1", "window": 1, "windows": 4, "policies": ("fifo", "sjf"), "warm_jobs": 3}
    found = report(jobs, **asked, start=Start.WARM)
    last = window_from(found, 3)
    assert last["warm_jobs"] == 3
    assert last["policies"]["fifo"]["wait_mean"] == 140.0  # 50 + 80 + 10
    assert last["policies"]["sjf"]["wait_mean"] == 60.0  # 50 + 10: behind the shorter one only
    assert last["policies"]["sjf"]["utilization"] == pytest.approx(100.0)
    idle = report(jobs, **asked)
    assert all(window["policies"]["sjf"]["wait_mean"] == 0.0 for window in idle["windows"])


def test_a_real_start_leaves_what_really_ran_and_waited_with_the_age_that_it_has():
    # One GPU. Slurm had let the second job (1000 s) go first: it runs until 1020, and the first one (100 s) waits.
    jobs = jobs_of([0.0, 10.0, 50.0], [100.0, 1000.0, 60.0], [1] * 3, wait_time=[1020.0, 10.0, 1070.0])
    asked = {"cluster": "1x1", "window": 1, "windows": 3, "policies": ("fifo", "sjf"), "warm_jobs": 2}
    policies = window_from(report(jobs, **asked, start=Start.REAL), 2)["policies"]
    assert (policies["fifo"]["wait_mean"], policies["sjf"]["wait_mean"]) == (1070.0, 970.0)
    warm = window_from(report(jobs, **asked, start=Start.WARM), 2)["policies"]
    assert (warm["fifo"]["wait_mean"], warm["sjf"]["wait_mean"]) == (1050.0, 50.0)

    evaluation = prepared(jobs, **asked, start=Start.REAL)
    (case,) = (case for case in evaluation.cases if case.window.start == 2)
    simulation = simulate_case(case, contender("fifo", evaluation.settings))
    assert simulation.submitted.tolist() == [-40.0, -50.0, 0.0]
    assert (simulation.state.jobs["submit"] == simulation.submitted).all()


def test_a_real_start_knows_who_has_used_the_cluster():
    # One GPU. Ann's job ended before the window, and Cyd's runs; then Bob's goes before Ann's second one.
    jobs = jobs_of(
        [0.0, 10.0, 500.0, 501.0], [400.0, 600.0, 60.0, 60.0], [1] * 4,
        user=["ann", "cyd", "ann", "bob"], wait_time=[0.0, 390.0, np.nan, np.nan],
    )  # fmt: skip
    asked = {"cluster": "1x1", "window": 2, "windows": 3, "policies": ("multifactor",), "weights": "fair-share"}
    first = {}
    for start in (Start.WARM, Start.REAL):
        evaluation = prepared(jobs, **asked, warm_jobs=2, start=start)
        (case,) = (case for case in evaluation.cases if case.window.start == 2)
        found = simulate_case(case, contender("multifactor", evaluation.settings)).result().start
        first[start] = jobs.user.texts()[2:][int(np.argmin(found[case.measured]))]
    assert first == {Start.WARM: "ann", Start.REAL: "bob"}


def test_a_window_that_begins_as_it_really_did_waits_more_like_reality():
    jobs = busy_jobs(400)
    asked = {"cluster": "2x4", "policies": ("multifactor",), "weights": "usual", "windows": 6}
    whole = prepared(jobs, **{**asked, "window": len(jobs), "windows": 1})
    (case,) = whole.cases
    start = simulate_case(case, contender("multifactor", whole.settings)).result().start
    known = replace(jobs, wait_time=start - case.jobs.submit_time)
    off = {}
    for begin in (Start.WARM, Start.REAL):
        evaluation = prepared(known, **asked, window=40, warm_jobs=40, start=begin)
        ratios = []
        for case in evaluation.cases:
            simulated = simulate_case(case, contender("multifactor", evaluation.settings)).result().start
            really = known.wait_time[case.window.start :][: case.window.jobs]
            ratios.append((simulated - case.jobs.submit_time)[case.measured].sum() / really.sum())
        off[begin] = np.abs(np.log(ratios)).mean()
    assert off[Start.REAL] < 0.5 * off[Start.WARM]


def test_the_past_of_a_warm_start_is_the_same_whatever_the_flags_of_the_policy():
    # The past (1 of 4 GPUs each, 10 s apart) is packed onto one node by best fit, even for strict FIFO (worst fit).
    jobs = jobs_of([0.0, 10.0, 20.0], [1000.0, 1000.0, 60.0], [1, 1, 4])
    found = report(
        jobs, cluster="2x4", window=1, windows=3, policies=("fifo-strict", "fifo"), start=Start.WARM, warm_jobs=2
    )
    last = window_from(found, 2)
    assert last["policies"]["fifo"]["wait_mean"] == last["policies"]["fifo-strict"]["wait_mean"] == 0.0


def test_jobs_that_can_never_run_are_named_with_the_reason_and_not_measured():
    jobs = jobs_of([0.0, 1.0, 2.0], [10.0, 20.0, 30.0], [1, 64, 1], job_id=[11, 12, 13], line=[2, 3, 4])
    found = one_window(jobs)
    rejected = found["windows"][0]["rejected"]
    assert rejected["count"] == 1
    assert (rejected["jobs"][0]["job"], rejected["jobs"][0]["line"]) == (12, 3)
    assert "GPUs" in rejected["jobs"][0]["reason"]
    assert found["policies"]["saf"]["jct_mean"] == 20.0


def test_jobs_that_run_into_their_limit_are_killed_there_counted_and_named():
    jobs = jobs_of([0.0, 1.0], [500.0, 50.0], [1, 1], job_id=[7, 8], time_limit=[120.0, 100.0])
    found = one_window(jobs, estimates="limit", policies=("fifo", "saf"))
    assert found["windows"][0]["killed"] == {"count": 1, "jobs": [7]}
    assert found["policies"]["saf"]["killed"] == 1
    assert 120.0 / 2 + 50.0 / 2 <= found["policies"]["saf"]["jct_mean"] < 120.0  # Slurm looks every 30 s


def test_the_partitions_of_a_trace_do_not_matter_on_a_cluster_of_one_pool_but_fairness_knows_them():
    jobs = replace(busy_jobs(), user=busy_jobs().gpu_type, partition=busy_jobs().user)
    found = report(jobs)
    assert all(window["rejected"]["count"] == 0 for window in found["windows"])
    assert 0.0 < found["policies"]["saf"]["fairness"] < 1.0
    nobody = replace(jobs, partition=jobs.user)
    assert report(nobody)["policies"]["saf"]["fairness"] is None


def test_estimates_by_history_know_the_jobs_before_the_window():
    # ann's jobs take 10 s, bob's 1,000; all have the same limit. Only who has seen them before puts ann's first.
    people = [*["bob", "ann"] * 18, "bob", "bob", "bob", "ann"]
    submit = np.minimum(np.arange(40), 37) * 2000.0  # the last three come together
    run = [1000.0 if name == "bob" else 10.0 for name in people]
    jobs = jobs_of(submit, run, [1] * 40, user=people, time_limit=[7200.0] * 40)
    values = {"cluster": "1x1", "window": 3, "windows": 38, "policies": ("sjf",)}
    by_kind = {}
    for kind in ("limit", "history"):
        found = report(jobs, estimates=kind, **values)
        by_kind[kind] = window_from(found, 37)["policies"]["sjf"]["wait_mean"]
    assert by_kind["limit"] == pytest.approx((0 + 1000 + 2000) / 3)
    assert by_kind["history"] == pytest.approx((0 + 10 + 1010) / 3)


def test_a_job_that_came_just_before_the_window_is_predicted_as_well():
    # One GPU, busy from −1,000 to 4,000. ann's jobs take 100 s, as the past knows; of cid nothing is known. Her job of
    # −10 has seen no refresh when the window begins with cid's: it has to go before his all the same.
    jobs = jobs_of(
        [0.0, 1000.0, 9000.0, 9990.0, 10000.0, 10010.0],
        [100.0, 100.0, 5000.0, 100.0, 50.0, 100.0],
        [1] * 6,
        user=["ann", "ann", "bob", "ann", "cid", "ann"],
        time_limit=[7200.0] * 6,
    )
    values = {"cluster": "1x1", "window": 2, "windows": 5, "policies": ("sjf",), "start": Start.WARM, "warm_jobs": 4}
    found = report(jobs, estimates="history", **values)
    last = window_from(found, 4)
    assert last["policies"]["sjf"]["wait_mean"] == pytest.approx((4200 + 4090) / 2)


def test_training_predicts_the_jobs_of_a_window_as_an_evaluation_does():
    # A hundred jobs have ended when a window of thirty comes at once.
    jobs = busy_jobs(130)
    jobs = replace(jobs, submit_time=np.where(np.arange(130) < 100, 40_000.0 * np.arange(130), 1e7))
    asked = prepared(jobs, estimates="history", window=30, windows=101).settings
    (case,) = (case for case in ready(asked, jobs, parse_shape("2x4"), "").cases if case.window.start == 100)
    known = past(case.before, case.before_estimates, float(case.jobs.submit_time[0]))
    expected = HistoryPredictor(case.jobs, case.estimates.time_limit, known).predict(np.arange(30)).expected
    predicted = with_predictions(Site(jobs, parse_shape("2x4")), "mixed", asked.seed).predicted
    assert np.array_equal(predicted.time_limit[100:], case.estimates.time_limit)
    assert predicted.run_time[100:] == pytest.approx(expected, rel=1e-6)
    assert len(np.unique(predicted.run_time[100:])) > 10
    assert predicted.run_time[0] == predicted.time_limit[0], "nothing had ended"


def test_every_policy_runs():
    assert {*DEFAULT_POLICIES} <= {*POLICIES}
    found = report(window=15, windows=1, policies=POLICIES)
    assert all(values["wait_mean"] is not None for values in found["policies"].values())
    assert found["meta"]["policies"]["rl"]["model"]["name"] == DEFAULT_MODEL


# --- the report


def test_the_report_has_the_published_shape():
    found = report()
    assert set(found) == {"meta", "windows", "policies", "comparisons"}
    assert {"command", "seed", "revision", "version", "cluster", "settings"} <= set(found["meta"])
    assert found["meta"]["trace"]["sha256"] == "0" * 64
    for values in found["policies"].values():
        assert {*COMPARED, "seconds"} <= set(values)
    names = list(found["policies"])
    assert set(found["comparisons"]) == {f"{a}/{b}" for a in names for b in names if a != b}
    for pair in found["comparisons"].values():
        assert set(pair) == set(COMPARED)
        assert set(pair["wait_mean"]) == {"ratio", "lo", "hi"}
    json.loads(text(found), parse_constant=pytest.fail)


def test_numbers_over_windows_are_means_and_ratios_are_those_of_the_means():
    found = report()
    for name, values in found["policies"].items():
        assert values["bsld_mean"] == pytest.approx(
            np.mean([w["policies"][name]["bsld_mean"] for w in found["windows"]])
        )
    ratio = found["comparisons"]["saf/fifo"]["jct_mean"]["ratio"]
    assert ratio == pytest.approx(
        found["policies"]["saf"]["jct_mean"] / found["policies"]["fifo"]["jct_mean"], abs=1e-6
    )


def test_equal_command_lines_give_equal_bytes_but_for_timings_whoever_does_the_work():
    values = {"policies": ("fifo", "saf", "rl"), "estimates": "noisy:1.5", "window": 12, "windows": 3}
    once = reported(prepared(**values), WorkerPool(1))
    again = reported(prepared(**values), WorkerPool(2))
    assert text(without_timings(once)) == text(without_timings(again))
    other = report(**{**values, "seed": 2})
    assert without_timings(other["policies"]) != without_timings(once["policies"])


def test_the_command_line_in_the_report_gives_the_settings_again():
    asked = settings(split=Split.TEST, start=Start.WARM, estimates="noisy:1.5", warm_jobs=9, skip_bad=True)
    assert asked.command == (
        "rltuned evaluate --trace t.csv --cluster 2x4 --window 20 --windows 4 --seed 1 --policies fifo-strict,fifo,saf "
        "--estimates noisy:1.5 --split test --start warm:9 --skip-bad"
    )


def test_one_window_has_no_intervals_and_says_so():
    found = one_window(busy_jobs())
    assert "one window" in found["meta"]["intervals"]
    compared = found["comparisons"]["saf/fifo"]["wait_mean"]
    assert compared["ratio"] is not None
    assert (compared["lo"], compared["hi"]) == (None, None)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"policies": ("saf", "best")}, EvaluationError, "no policy 'best'; there are fifo-strict"),
        ({"policies": ("saf", "saf")}, EvaluationError, "each policy once"),
        ({"window": 0}, EvaluationError, "--window: 0"),
        ({"seed": -1}, EvaluationError, "--seed"),
        ({"estimates": "guess"}, ConfigError, "guess"),
        ({"model": "none-such", "policies": ("rl",)}, ModelError, "none-such"),
        ({"estimates": "limit"}, ConfigError, "no time limit of their own"),
        ({"window": 81}, EvaluationError, "longer"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_runs(values, error, message):
    with pytest.raises(error, match=message):
        prepared(**values)


# --- interruption


def test_an_interrupted_run_goes_on_where_it_stopped_and_ends_with_the_same_bytes(tmp_path):
    evaluation, out = prepared(), tmp_path / "r.json"
    whole = reported(evaluation, WorkerPool(1))
    first, second = Recording(stop_after=5), Recording()
    with pytest.raises(KeyboardInterrupt):
        reported(evaluation, first, out)
    with state_path(out).open("a") as file:
        file.write('{"window": 3, "poli')  # the last line was cut off by what ended the run
    found = reported(evaluation, second, out)
    assert len(first.done) == 5
    assert len(second.done) == 4 * 3 - 5
    assert not {*first.done} & {*second.done}
    assert text(without_timings(found)) == text(without_timings(whole))
    assert reported(evaluation, Recording(stop_after=0), out) == found


def test_what_is_kept_of_another_evaluation_or_of_none_is_begun_anew(tmp_path):
    out, cluster = tmp_path / "r.json", tmp_path / "c.json"
    changed = replace(busy_jobs(), source=replace(busy_jobs().source, sha256="1" * 64))
    described = {"pools": [{"nodes": 2, "gpus_per_node": 4, "mem_mib": 64_000}]}
    cluster.write_text(json.dumps(described))
    before = ready(settings(), busy_jobs(), read_shape(cluster), "revision")
    described["pools"][0]["mem_mib"] = 128_000
    cluster.write_text(json.dumps(described))
    for evaluation in (
        prepared(),
        prepared(estimates="noisy:0.5"),
        ready(settings(), changed, parse_shape("2x4"), "revision"),
        before,
        ready(settings(), busy_jobs(), read_shape(cluster), "revision"),
    ):
        for left in (12, 0):
            pool = Recording()
            reported(evaluation, pool, out)
            assert len(pool.done) == left
    state_path(out).write_text("something else\n")
    reported(prepared(), again := Recording(), out)
    assert len(again.done) == 12


# --- for people


@pytest.mark.parametrize(
    ("apart", "load"),
    [(200.0, "0.50"), (50.0, "2.00, more than the cluster can do: a backlog that drains, not a site's queue")],
)
def test_the_first_line_says_how_much_of_the_cluster_is_asked_for(apart, load):
    jobs = jobs_of([0.0, apart, 2 * apart], [100.0] * 3, [4, 4, 8])  # the last one can never run
    screen = io.StringIO()
    show(Console(file=screen), table(one_window(jobs, cluster="1x4")))
    assert screen.getvalue().splitlines()[0].strip() == f"by hand on 1x4, offered load {load}"


def test_the_table_has_a_row_for_each_policy_and_the_difference_to_the_best_plain_rule():
    screen = io.StringIO()
    found = report()
    show(Console(file=screen, width=60), table(found))
    printed = screen.getvalue()
    for name in found["policies"]:
        assert f"│ {name} " in printed
    assert "wait vs saf" in printed
    compared = found["comparisons"]["fifo/saf"]["wait_mean"]
    assert f"+{100 * (compared['ratio'] - 1):.1f} % [" in printed

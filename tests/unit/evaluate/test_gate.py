"""The gate: what it chooses, and on which jobs."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.evaluate.small import busy_jobs, jobs_of, report, settings, tuned_file
from unit.slurm.standin import CONFIG, StandIn

from rltuned.cluster.gate_verdict import MODEL, SLURM, parse_verdict
from rltuned.cluster.objective import Objective
from rltuned.cluster.shape import parse_shape
from rltuned.commands.common import processes, slurmctld_runs
from rltuned.commands.main import cli
from rltuned.config import Config, SlurmSection, resolve
from rltuned.errors import EvaluationError, WorkloadError
from rltuned.evaluate import gate, site
from rltuned.evaluate.evaluation import evaluate
from rltuned.evaluate.evaluation_settings import TUNED, UNTUNED, Start, TunedConf
from rltuned.evaluate.executors import LocalExecutor
from rltuned.evaluate.windows import Split
from rltuned.observe import STATE_COLUMNS
from rltuned.policy import files
from rltuned.policy.actor import MOMENT, plain_rule
from rltuned.policy.files import TrainingPart
from rltuned.simulate.values import Backfill
from rltuned.slurm.commands import SEPARATOR
from rltuned.slurm.sacct import TraceRows
from rltuned.workload.jobs import Source

WINDOWS = 12
LARGEST = {"requested_time": 1.0, "requested_gpus": 0.5}
SMALLEST = {name: -weight for name, weight in LARGEST.items()}
TRAINING = TrainingPart(method="cooked", data="none", traces={}, seed=1, revision="abc", settings={})


# --- the decision


def measured(**waits):
    """Policies with these mean waits, times a difficulty that all share, and equal in all else."""
    hard = np.random.default_rng(5).lognormal(0.0, 0.5, WINDOWS)
    rng = np.random.default_rng(6)
    found = {}
    for name, (wait, noise) in waits.items():
        values = wait * hard * np.exp(noise * rng.standard_normal(WINDOWS))
        found[name] = {"wait_mean": values, "bsld_mean": np.full(WINDOWS, 10.0), "wait_p99": np.full(WINDOWS, 9e3)}
    return found


def judged(found):
    return gate.judge(found, "rl", 1)


@pytest.mark.parametrize(
    ("waits", "chosen", "best", "reason"),
    [
        # Certainly less than every plain policy; less than all but one; less, but not certainly.
        ({"rl": 90, "saf": 100, "sjf": 110, "multifactor": 200}, MODEL, "saf", "0.9"),
        ({"rl": 103, "saf": 100, "sjf": 300, "multifactor": 400}, "saf", "saf", "not certainly wait less than saf"),
        # Where no rule certainly beats Slurm's own order, that stays; the model has to beat it, too.
        ({"rl": 105, "saf": 101, "sjf": 102, "multifactor": 100}, SLURM, "multifactor", ""),
        ({"rl": 100, "saf": 120, "multifactor": 90}, SLURM, "multifactor", ""),
    ],
)
def test_what_is_chosen_of_these_mean_waits(waits, chosen, best, reason):
    found = judged(measured(**{name: (wait, 0.02) for name, wait in waits.items()}))
    assert (found.chosen, found.fallback, found.best) == (chosen, SLURM if chosen == SLURM else "saf", best)
    assert (found.against["saf"].hi < 1.0) == (waits["rl"] < waits["saf"])
    assert reason in found.reason


def test_a_lower_mean_that_is_not_certain_is_no_win_and_where_nobody_waits_slurms_own_order_stays():
    found = judged(measured(rl=(97, 0.3), saf=(100, 0.3), multifactor=(300, 0.1)))
    assert found.against["saf"].lo < 1.0 < found.against["saf"].hi
    assert found.chosen == "saf"
    assert judged(measured(rl=(0, 0.0), saf=(0, 0.0), multifactor=(0, 0.0))).chosen == SLURM


def test_a_model_that_is_the_rule_itself_is_not_chosen():
    waits = measured(saf=(100, 0.1), multifactor=(300, 0.1))
    found = judged({"rl": waits["saf"], **waits})
    assert found.against["saf"].ratio == found.against["saf"].hi == 1.0
    assert found.chosen == "saf"


@pytest.mark.parametrize("metric", gate.GUARDED)
@pytest.mark.parametrize(("worse", "chosen"), [(1.049, MODEL), (1.051, "saf")])
def test_a_shorter_wait_may_not_be_bought_with_another_metric(metric, worse, chosen):
    waits = measured(rl=(80, 0.02), saf=(100, 0.02), multifactor=(300, 0.02))
    waits["rl"][metric] = worse * waits["saf"][metric]
    found = judged(waits)
    assert found.chosen == chosen
    assert (metric in found.reason) == (chosen != MODEL)


def test_a_guarded_metric_is_held_against_the_best_plain_policy_only():
    waits = measured(rl=(80, 0.02), saf=(100, 0.02), multifactor=(300, 0.02))
    waits["multifactor"]["wait_p99"] = waits["saf"]["wait_p99"] / 3
    assert judged(waits).chosen == MODEL


def test_a_rule_that_is_picked_out_of_several_needs_more_proof_than_a_single_one():
    rules = dict.fromkeys(("sjf", "unicep", "wfp3", "fifo", "f1"), (100.0, 0.0))
    chosen = []
    for others in ({}, rules):
        waits = measured(rl=(200, 0.0), multifactor=(100, 0.0), saf=(100, 0.0), **others)
        # Better in the mean by a little more than chance.
        waits["saf"]["wait_mean"] = waits["multifactor"]["wait_mean"] * np.where(np.arange(WINDOWS) % 4, 0.88, 1.07)
        found = judged(waits)
        chosen.append(found.chosen)
        assert found.rules["saf"].ratio < 1.0
    assert chosen == ["saf", SLURM]


# --- which jobs


def test_windows_share_no_job_and_are_the_last_ones():
    windows = gate.recent(10_000, Split.ALL, 300, 30)
    assert windows[-1].start + 300 == 10_000
    assert np.all(np.diff([window.start for window in windows]) == 300)
    assert windows[0].start >= 5_000
    assert len(windows) == 16


def test_a_short_history_has_shorter_windows_unless_they_were_asked_for():
    assert {window.jobs for window in gate.recent(2_000, Split.ALL)} == {100}
    assert {window.jobs for window in gate.recent(100_000, Split.ALL)} == {gate.WINDOW}
    with pytest.raises(EvaluationError, match="recent part of the history has 1,000 jobs"):
        gate.recent(2_000, Split.ALL, 101)
    with pytest.raises(EvaluationError, match="at least 64 jobs"):
        gate.recent(1_000, Split.ALL)
    with pytest.raises(EvaluationError):
        gate.recent(5, Split.ALL)


def test_the_first_window_has_the_past_that_a_warm_start_needs():
    assert gate.recent(2_000, Split.ALL, 20, 99, past=1_700)[0].start >= 1_700


@pytest.mark.parametrize(
    "policies", [("saf", "multifactor"), ("rl", "saf"), ("rl", "multifactor"), ("rl", "fifo-strict", "multifactor")]
)
def test_policies_that_cannot_be_gated_are_refused(policies):
    with pytest.raises(EvaluationError, match="gate: --policies needs rl, multifactor"):
        gate.checked(settings(policies=policies))


# --- with real simulations


def cooked(directory, name, training=TRAINING, **weights):
    """A model whose score is a weighted sum of columns of the state."""
    rng = np.random.default_rng(1)
    golden = rng.random((4, len(STATE_COLUMNS)), dtype=np.float32), rng.random(len(MOMENT))
    return str(files.save(plain_rule(name, **weights), directory, training, {}, golden))


def reached(model, *, jobs=None, **values):
    asked = settings(
        **{"policies": ("rl", "saf", "fifo", "multifactor"), "windows": 10, "start": Start.WARM, "model": model}
        | values
    )
    evaluation = gate.prepare(asked, jobs or busy_jobs(400), parse_shape(asked.cluster), "revision", 16)
    return gate.verdict(evaluate(evaluation, LocalExecutor()), evaluation.settings, 1e9, 30.0)


def test_a_model_that_is_worse_than_saf_is_never_chosen(tmp_path):
    made = reached(cooked(tmp_path, "largest-first", **LARGEST), rollout=False)
    assert made["chosen"] == made["fallback"] == "saf"
    assert made["evidence"]["model_wait"]["saf"]["ratio"] > 1.0
    read = parse_verdict(gate.text(made).encode())
    assert (read.chosen, read.fallback, read.model, read.gpus) == ("saf", "saf", "largest-first", 8)
    assert (read.made_at, read.expires) == (1e9, 1e9 + 30 * 86400)


def test_a_model_that_is_better_than_the_plain_rules_it_is_held_against_is_chosen(tmp_path):
    model = cooked(tmp_path, "smallest-first", **SMALLEST)
    made = reached(model, policies=("rl", "fifo", "multifactor"))
    assert made["chosen"] == MODEL, made["reason"]
    assert made["evidence"]["model_wait"]["fifo"]["hi"] < 1.0
    assert made["model"]["manifest_sha256"] == files.manifest_sha256(model)
    assert any("model / fifo" in line for line in gate.lines(made))


def test_equal_questions_have_equal_verdicts_and_the_command_line_tells_the_question(tmp_path):
    model = cooked(tmp_path, "smallest-first", **SMALLEST)
    first, second = (reached(model, policies=("rl", "saf", "multifactor")) for _ in range(2))
    for made in (first, second):
        for means in made["evidence"]["means"].values():
            means.pop("seconds")
    assert first == second
    command = first["program"]["command"]
    assert command.startswith("rltuned gate --trace t.csv --cluster 2x4 --window 16 --windows 10")


def test_a_model_that_was_trained_on_the_same_file_is_judged_on_its_last_jobs_only(tmp_path):
    jobs = busy_jobs(2_000)
    model = cooked(tmp_path, "own", TRAINING.model_copy(update={"traces": {"t.csv": jobs.source.sha256}}))
    asked = settings(policies=("rl", "saf", "multifactor"), windows=30, model=model)
    shape = parse_shape("2x4")
    assert gate.prepare(asked, jobs, shape, "r", 25).cases[0].window.start >= 1_700
    other = replace(jobs, source=Source("other", sha256="1" * 64))
    assert gate.prepare(asked, other, shape, "r", 25).cases[0].window.start < 1_700


# --- beside the slurm.conf that `rltuned tune` found

SHORT_LIMITS_FIRST = {"job_size": 1e8, "small_relative_to_time": 1.0}


def test_the_tuned_slurm_conf_is_shown_beside_and_changes_no_verdict(tmp_path):
    model = cooked(tmp_path, "smallest-first", **SMALLEST)
    conf = TunedConf.read(tuned_file(tmp_path / "t.json", found=SHORT_LIMITS_FIRST))
    policies = ("rl", "fifo", "multifactor")
    alone, made = (
        reached(model, **given) for given in ({"policies": policies}, {"policies": (*policies, TUNED), "tuned": conf})
    )
    assert [key for key in ("chosen", "fallback", "reason") if alone[key] != made[key]] == []
    assert alone["evidence"]["model_wait"] == made["evidence"]["model_wait"]
    tuned, means = made["tuned"], made["evidence"]["means"]
    waits = [means[name]["wait_mean"] for name in ("rl", TUNED, "multifactor")]
    assert tuned["over_slurm"]["wait_mean"]["ratio"] == pytest.approx(waits[1] / waits[2], abs=1e-6)
    assert tuned["over_slurm"]["wait_mean"]["hi"] < 1.0
    assert (tuned["served"], tuned["found"]) == ("rl", conf.found)
    assert tuned["served_over"]["wait_mean"]["ratio"] == pytest.approx(waits[0] / waits[1], abs=1e-6)
    ratios = [
        f"{tuned[over][of]['ratio']:.3f}" for over in ("over_slurm", "served_over") for of in ("objective", "wait_mean")
    ]
    assert re.findall(r"(\d\.\d{3}) \[", tuned["sentence"]) == ratios
    certain = tuned["served_over"]["objective"]["hi"] <= 1.0
    assert f"The model is {'certainly' if certain else 'not certainly'} better" in tuned["sentence"]
    said = "\n".join(gate.lines(made))
    assert tuned["sentence"] in said
    assert f"slurm.conf, tuned mean wait {waits[1]:>10,.0f} s   over multifactor: {ratios[1]}" in said
    assert (alone["tuned"], UNTUNED in gate.lines(alone), UNTUNED in said) == (None, True, False)
    assert "--tuned" in made["program"]["command"]


def test_a_tuned_slurm_conf_that_is_the_sites_own_gives_what_that_gives(tmp_path):
    conf = TunedConf.read(tuned_file(tmp_path / "t.json"))
    found = report(policies=("multifactor", TUNED), tuned=conf, estimates="history", start=Start.WARM)
    assert {one["ratio"] for one in found["comparisons"][f"{TUNED}/multifactor"].values()} == {1.0}


def test_weights_of_nodes_that_were_found_are_those_of_the_simulated_cluster(tmp_path):
    # The first of two jobs takes any GPU, and the second one needs the old one.
    jobs = jobs_of(
        np.repeat(np.arange(20.0) * 1e4, 2) + [0.0, 60.0] * 20, [600.0] * 40, [1] * 40, gpu_type=["", "old"] * 20
    )
    cluster = "1x1:old,1x1:new"
    conf = TunedConf.read(tuned_file(tmp_path / "t.json", cluster, {"Weight of old": 5.0}))
    found = report(jobs, policies=("multifactor", TUNED), tuned=conf, cluster=cluster)["policies"]
    assert found["multifactor"]["wait_mean"] > 200.0
    assert found[TUNED]["wait_mean"] == 0.0


def test_what_tune_found_for_another_slurm_conf_is_refused_with_what_differs(tmp_path):
    path = tuned_file(tmp_path / "t.json", weights="age=5")
    with pytest.raises(
        EvaluationError, match=r"t.json: of another slurm.conf: age was 5.0 and is 10000.0; run `rltuned"
    ):
        report(policies=("multifactor", TUNED), tuned=TunedConf.read(path))


# --- as typed


@pytest.fixture
def trace(tmp_path):
    rng = np.random.default_rng(1)
    at = np.cumsum(rng.exponential(60.0, 300)).round()
    run = np.maximum(rng.lognormal(6.0, 1.5, 300).round(), 1.0)
    lines = [f"{t:.0f},{r:.0f},{g}" for t, r, g in zip(at, run, rng.choice([1, 2, 4], 300), strict=True)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["submit_time,run_time,num_gpus", *lines]) + "\n")
    return path


def typed(trace, *more, cluster="2x4"):
    words = ["gate", "--trace", str(trace), "--cluster", cluster, "--window", "14", "--workers", "1"]
    return CliRunner().invoke(cli, [*words, *more])


def test_a_verdict_is_written_and_said(trace, tmp_path):
    model, out = cooked(tmp_path, "largest", **LARGEST), tmp_path / "verdict.json"
    done = typed(
        trace,
        "--model",
        model,
        "--policies",
        "rl,saf,multifactor",
        "--no-rollout",
        "--out",
        str(out),
        "--valid-days",
        "7",
    )
    made = json.loads(out.read_text())
    assert f"verdict: {made['chosen']}" in done.stdout
    assert made["chosen"] != MODEL
    assert done.exit_code == (14 if made["chosen"] == SLURM else 0)
    assert parse_verdict(out.read_bytes()).valid_days == 7.0
    assert (made["settings"]["estimates"], made["settings"]["start"]) == ("history", "warm"), "as the daemon has it"


def test_the_tuned_slurm_conf_is_read_from_a_file_that_tune_wrote(trace, tmp_path):
    words = ("--model", cooked(tmp_path, "m", **LARGEST), "--policies", "rl,saf,multifactor", "--no-rollout")
    path, out = tmp_path / "tune.json", tmp_path / "verdict.json"
    done = typed(trace, *words, "--out", str(out), "--tuned", tuned_file(path, found=SHORT_LIMITS_FIRST))
    assert json.loads(out.read_text())["tuned"]["sentence"] in done.stdout
    for text, why in (("{", "prints: Expecting"), ('{"own": {}}', "no numbers called 'found'"), ("[]", "called 'own'")):
        path.write_text(text)
        done = typed(trace, *words, "--tuned", str(path))
        said = " ".join(done.stderr.split())
        assert (done.exit_code, f"{path.name}: not what" in said, why in said) == (2, True, True)
    assert "cannot be read" in typed(trace, *words, "--tuned", "no-such-file").stderr


def test_where_nobody_has_to_wait_the_exit_code_says_that_slurms_order_stays(trace, tmp_path):
    model, out = cooked(tmp_path, "m", **SMALLEST), tmp_path / "verdict.json"
    done = typed(trace, "--model", model, "--policies", "rl,saf,multifactor", "--out", str(out), cluster="90x4")
    assert done.exit_code == 14
    assert parse_verdict(out.read_bytes()).chosen == SLURM


def test_a_verdict_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    done = typed(tmp_path / "no-such-trace.csv", "--out", str(tmp_path / "no-such-directory" / "v.json"))
    assert done.exit_code == 2
    assert f"there is no directory {tmp_path}/no-such-directory" in " ".join(done.stderr.split())


def test_the_gate_says_beforehand_how_long_it_will_take():
    def said(windows, jobs, workers, *, rollout=True):
        cases = tuple(SimpleNamespace(jobs=range(jobs)) for _ in range(windows))
        settings = SimpleNamespace(policies=gate.CANDIDATES, rollout=rollout)
        return gate.duration(SimpleNamespace(cases=cases, settings=settings), workers)

    assert said(10, 300, 1).startswith("80 simulations with 1 process: about ")

    def minutes(*arguments, **how):
        return int(said(*arguments, **how).partition("about ")[2].split()[0])

    assert minutes(30, 512, 1) >= 2 * minutes(10, 512, 1)
    assert minutes(30, 512, 1) >= minutes(30, 512, 2) * 1.8
    assert minutes(30, 512, 1, rollout=False) < minutes(30, 512, 1) / 4
    assert minutes(1, 5000, 2) >= 0.8 * minutes(1, 5000, 1), "the model's is one simulation"


def test_beside_slurmctld_one_niced_process_simulates_unless_more_are_asked_for(tmp_path, monkeypatch, capsys):
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "comm").write_text("bash\n")
    assert not slurmctld_runs(tmp_path)
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "comm").write_text("slurmctld\n")
    assert slurmctld_runs(tmp_path)
    niced = []
    monkeypatch.setattr("os.nice", niced.append)
    monkeypatch.setattr("rltuned.commands.common.slurmctld_runs", lambda: True)
    assert processes(None) == 1
    assert "one process with nice 10" in capsys.readouterr().err
    assert processes(4) == 4
    assert niced == [10, 10]
    monkeypatch.setattr("rltuned.commands.common.slurmctld_runs", lambda: False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert (processes(None), processes(None, 2), processes(5, 2)) == (3, 2, 5), "one per core"
    assert niced == [10, 10]


# --- the site itself


def test_the_sites_history_is_asked_for_in_stretches_that_leave_nothing_out():
    asked = []

    def ask(start, end):
        asked.append((start, end))
        line = (
            f"{len(asked)}|u|a|gpu|normal|{start:.0f}|{start:.0f}|{start + 60:.0f}|{end:.0f}|600|30|"
            "cpu=1,gres/gpu=2|cpu=1,gres/gpu=2|1|COMPLETED"
        )
        return TraceRows([line], [])

    said = []
    jobs = site.history(ask, 1.0, 1e9, said.append)
    assert said == []
    assert asked[0][0] == 1e9 - 86400
    assert asked[-1][1] == 1e9
    assert [start for start, _ in asked[1:]] == [end for _, end in asked[:-1]]
    assert len(jobs) == len(asked) == 4
    assert jobs.gpus.tolist() == [2] * 4
    assert jobs.time_limit.tolist() == [1800.0] * 4


def test_a_site_without_finished_jobs_is_told_so():
    with pytest.raises(WorkloadError, match="no job ended in the last 2 days"):
        site.history(lambda *_: TraceRows([], []), 2.0, 1e9, [].append)


def test_rows_of_the_accounting_that_cannot_be_understood_are_left_out_and_said_once():
    good = "8|u|a|gpu|normal|10|10|70|90|600|30|cpu=1,gres/gpu=2|cpu=1,gres/gpu=2|1|COMPLETED"
    strange = "sacct, job '7', column End: 'soon' is no time"
    said = []
    rows = TraceRows([good, good.replace("|10|10|70|", "|10|10|never|")], [strange])
    jobs = site.history(lambda *_: rows, 0.25, 1e9, said.append)
    assert jobs.job_id.tolist() == [8]
    assert said == [f"2 rows of sacct cannot be understood and are left out of 3, the first of them: {strange}"]
    with pytest.raises(WorkloadError, match=r"no job ended .*, and 1 rows cannot be understood, the first .*'soon'"):
        site.history(lambda *_: TraceRows([], [strange]), 0.25, 1e9, said.append)


def test_the_live_cluster_is_taken_with_nothing_running_and_with_its_drained_nodes(monkeypatch):
    from unit.daemon.model_slurm import ModelSlurm, VirtualClock

    snapshot = ModelSlurm(VirtualClock()).reader().snapshot(0.0)
    busy = replace(snapshot.nodes, gpus_alloc=snapshot.nodes.gpus, usable=np.zeros_like(snapshot.nodes.usable))
    partitions = tuple(replace(partition, default=False) for partition in snapshot.partitions)
    shape = site.live_shape(replace(snapshot, nodes=busy, partitions=partitions), "here")
    assert shape.gpus == int(snapshot.nodes.gpus.sum())
    assert not shape.nodes.gpus_alloc.any()
    assert not shape.nodes.usable.any()
    assert [partition.default for partition in shape.partitions] == [True]


def test_jobs_and_nodes_are_the_sites_own_unless_files_are_named(tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("config", CONFIG.replace("SLURM_VERSION", "PriorityWeightAge       = 1234567\nSLURM_VERSION"))
    row = "8|u|a|gpu|normal|10|10|70|90|20|30|cpu=1,gres/gpu=2|cpu=1,gres/gpu=2|1|COMPLETED"
    slurm.answer("trace", row.replace("|", SEPARATOR) + SEPARATOR + "\n")
    reached = SlurmSection(bin_dir=slurm.bin_dir)
    asked = gate.as_configured(Config(), {"from_sacct": 0.25})
    settled, jobs, shape = gate.site_of(asked, reached, 100.0, [].append)
    assert jobs.job_id.tolist() == [8]
    assert (shape.text, shape.gpus, shape.nodes.gpus_alloc.any()) == ("testbed", 6, False)
    assert settled.scheduler == "bf_interval=1", "that of the site"
    assert settled.weights == "age=1234567", "to the last digit"
    assert (settled.simulated.backfill, settled.simulated.bf_interval) == (Backfill.SLURM, 1.0)
    settled, jobs, shape = gate.site_of(replace(asked, cluster="2x4"), reached, 100.0, [].append)
    assert (len(jobs), shape.gpus, settled.scheduler) == (1, 8, "")
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_time,num_gpus,run_time\n0,1,600\n30,8,7200\n")
    _, jobs, shape = gate.site_of(gate.as_configured(Config(), {"trace": str(trace)}), reached, 100.0, [].append)
    assert (len(jobs), shape.text) == (2, "testbed")


def test_the_gate_plays_what_the_daemon_is_configured_to_do_unless_told_otherwise():
    text = '[estimates]\nsource = "limit"\n[policy]\nmodel = "base"\nobjective = "wait=1"\n'
    config = resolve(text, "config.toml", {}, {}).config
    asked = gate.as_configured(config, {})
    assert (asked.estimates, asked.model, asked.start.value, asked.gate) == ("limit", "base", "warm", True)
    assert asked.policies == gate.CANDIDATES
    assert asked.objective == Objective.parse("wait=1")
    assert gate.as_configured(config, {"estimates": "true", "seed": 3}) == replace(asked, estimates="true", seed=3)


@pytest.mark.parametrize(("loses", "metric"), [("rl", "accounts_worse"), ("saf", "service_moved")])
def test_who_takes_from_accounts_more_than_chance_does_is_not_chosen(loses, metric):
    found = measured(rl=(90, 0.02), saf=(100, 0.02), sjf=(110, 0.02), multifactor=(200, 0.02))
    found[gate.AGAIN] = found["multifactor"]
    for values in found.values():
        values |= {"accounts_worse": np.full(WINDOWS, 0.1), "service_moved": np.full(WINDOWS, 0.1)}
    assert (judged(found).chosen, judged(found).fallback) == (MODEL, "saf")
    found[loses] = found[loses] | {metric: np.full(WINDOWS, 0.2)}
    verdict = judged(found)
    assert (verdict.chosen, verdict.fallback) == (("saf", "saf") if loses == "rl" else (MODEL, "sjf"))
    if loses == "rl":
        assert "accounts worse: 0.20, by chance 0.10, and 0.05 more is allowed" in verdict.reason


def test_settings_that_the_gate_does_not_play_are_named():
    assert gate.not_judged(Config()) == []
    other = Config(decide={"borrow": 0.5}, rollout={"orders": 2, "time_limit": 5.0})
    assert gate.not_judged(other) == ["decide.borrow", "rollout.orders"]

"""The gate: what it chooses, and on which jobs."""

import io
import json
import re
import shlex
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from unit.evaluate.small import bursts, busy_jobs, jobs_of, settings
from unit.slurm.standin import CONFIG, NODES, PARTITIONS, StandIn, job

from rltuned.cli.common import processes, slurmctld_runs
from rltuned.cli.main import cli
from rltuned.core.changes import OverSubscribe
from rltuned.core.config import DEFAULT_SHARE, MODEL, Config, SlurmSection, resolve
from rltuned.core.errors import EvaluationError, WorkloadError
from rltuned.core.objective import Objective
from rltuned.core.taken import alone
from rltuned.core.workers.pool import WorkerPool
from rltuned.decide.rank.actor import MOMENT, plain_rule
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.see.observation import STATE_COLUMNS
from rltuned.lab.evaluate import gate, site
from rltuned.lab.evaluate.evaluation import evaluate
from rltuned.lab.evaluate.evaluation_report import show
from rltuned.lab.evaluate.evaluation_settings import AGAIN, Start, not_judged
from rltuned.lab.evaluate.frontier import contenders, parse_shares, table
from rltuned.lab.evaluate.frontier_picture import draw
from rltuned.lab.evaluate.measure import how_long
from rltuned.lab.evaluate.windows import RECENT, Split, recent
from rltuned.records import model_files as files
from rltuned.records.gate_verdict import SLURM, parse_verdict
from rltuned.records.model_files import TrainingPart
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Backfill, Estimates
from rltuned.simulate.workload.jobs import Source
from rltuned.simulate.workload.write import write_csv
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import SEPARATOR
from rltuned.slurm.not_simulated import BEGINNING
from rltuned.slurm.sacct import TraceRows

WINDOWS = 12
LARGEST = {"requested_time": 1.0, "requested_gpus": 0.5}
SMALLEST = {name: -weight for name, weight in LARGEST.items()}
TRAINING = TrainingPart(method="cooked", data="none", traces={}, seed=1, revision="abc", settings={})


# --- the decision

OWN = "multifactor"
METRICS = {
    "bsld_mean": 10.0,
    "wait_p99": 9e3,
    "utilization": 80.0,
    "idle": 40.0,
    "accounts_worse": 0.1,
    "worst_tenth": 1.5,
    "late": 0.05,
    "wait_ratio_p95": 1.6,
}
"""Of every policy, unless a test says otherwise."""


def measured(**points):
    """Policies with these mean waits over Slurm's own order and what else is given: wait, noise, metrics."""
    hard = 1e3 * np.random.default_rng(5).lognormal(0.0, 0.5, WINDOWS)
    rng = np.random.default_rng(6)
    found = {}
    for name, (wait, noise, metrics) in {OWN: (1.0, 0.0, {}), AGAIN: (1.0, 0.0, {}), **points}.items():
        values = {metric: np.full(WINDOWS, value) for metric, value in (METRICS | metrics).items()}
        waits = wait * hard * np.exp(noise * rng.standard_normal(WINDOWS))
        found[name.replace("_", ":", 1).replace("_", ".")] = {"wait_mean": waits, **values}
    return found


def judged(objective="wait=1", **points):
    return gate.judge(measured(**points), 1, Objective.parse(objective))


def point(wait, noise=0.02, **metrics):
    return wait, noise, metrics


def named(point):
    return None if point is None else point.name


def test_of_what_harms_nobody_and_certainly_waits_less_that_of_the_least_j_is_chosen_with_its_share():
    found = judged(saf_0_1=point(0.8), saf_0_5=point(0.6), rl_0_1=point(0.7), rl_0_5=point(0.5))
    assert (named(found.best), found.best.share, named(found.rule)) == ("rl:0.5", 0.5, "saf:0.5")
    assert re.search(r"rl:0.5 has the least J: (0.\d{3}), mean wait \1 \[", found.reason)
    found = judged("slowdown=1", saf_0_1=point(0.8, bsld_mean=5.0), saf_0_5=point(0.6, bsld_mean=7.0))
    assert (named(found.best), found.best.objective) == ("saf:0.1", 0.5), "the site's objective counts, not the wait"
    # What is as good is not better: the rule, and the smaller share.
    assert named(judged(saf_0_1=point(0.7, 0), saf_0_5=point(0.7, 0), rl_0_1=point(0.7, 0)).best) == "saf:0.1"


@pytest.mark.parametrize(
    ("metric", "kept", "broken", "said"),
    [
        ("accounts_worse", 0.149, 0.151, ("accounts worse off", 0.151, 0.15)),
        ("worst_tenth", 1.64, 1.66, ("worst tenth of accounts", 1.66, 1.65)),
        ("wait_p99", 9170.0, 9190.0, ("p99 of the wait", 9190 / 9000, 1.02)),
        ("utilization", 79.3, 79.1, ("GPUs in use", 79.1 / 80, 0.99)),
    ],
)
def test_what_harms_somebody_beyond_chance_is_not_chosen(metric, kept, broken, said):
    for value, chosen in ((kept, "rl:0.5"), (broken, "saf:0.1")):
        found = judged(saf_0_1=point(0.8), rl_0_5=point(0.5, **{metric: value}))
        assert (named(found.best), named(found.rule)) == (chosen, "saf:0.1")
    (harmful,) = (point for point in found.points if point.harms)
    (told,) = harmful.harms
    assert (harmful.name, told.metric, told.words) == ("rl:0.5", metric, said[0])
    assert (told.value, told.allowed) == pytest.approx(said[1:])
    alone = judged(rl_0_5=point(0.5, **{metric: broken}))
    assert (alone.best, alone.rule) == (None, None)
    assert "each share harms somebody" in alone.reason


def test_late_jobs_are_told_beside_and_decide_nothing():
    found = judged(rl_0_5=point(0.5, late=0.9, wait_ratio_p95=99.0))
    assert named(found.best) == "rl:0.5"
    assert (found.best.means["late"], found.chance.means["late"]) == pytest.approx((0.9, 0.05))


def test_a_lower_mean_that_is_not_certain_is_no_win_and_where_nobody_waits_slurms_own_order_stays():
    found = judged(saf_0_1=point(0.9, 0.3))
    assert found.points[0].ratios["wait_mean"].lo < 1.0 < found.points[0].ratios["wait_mean"].hi
    assert found.best is None
    assert "of what harms nobody, saf:0.1 has the least J, and its mean wait is " in found.reason
    nobody = {name: {**values, "wait_mean": np.zeros(WINDOWS)} for name, values in measured(rl_0_1=point(1)).items()}
    assert gate.judge(nobody, 1).best is None


def test_what_waits_less_than_slurms_own_order_but_no_less_than_that_once_more_is_chance():
    """Submissions up to a minute later move the waits of all that follows, in each window."""
    lucky = {AGAIN: point(0.9), "saf_0_1": point(0.9)}
    found = judged(**lucky)
    assert found.points[0].ratios["wait_mean"].hi < 1.0
    assert found.best is None
    assert named(judged(**lucky, rl_0_1=point(0.8)).best) == "rl:0.1"


def test_what_is_picked_out_of_several_needs_more_proof_than_a_single_one():
    chosen = {}
    for others, noise in ((0, 0.0), (11, 0.0), (11, 0.4)):
        found = measured(rl_0_1=point(1.0, 0.0), **{f"saf_0_{n + 20}": point(2.0, noise) for n in range(others)})
        # Better in the mean by a little more than chance.
        found["rl:0.1"]["wait_mean"] = found[OWN]["wait_mean"] * np.where(np.arange(WINDOWS) % 4, 0.86, 1.07)
        chosen[others, noise] = named(gate.judge(found, 1).best)
    # What goes up and down together is one thing to choose from.
    assert chosen == {(0, 0.0): "rl:0.1", (11, 0.0): "rl:0.1", (11, 0.4): None}


def test_what_accounts_wait_is_said_to_be_unknown_where_nobody_is_named():
    nobody = {"accounts_worse": np.nan, "worst_tenth": np.nan}
    found = measured(saf_0_1=point(0.8, **nobody))
    found[AGAIN] |= {metric: np.full(WINDOWS, np.nan) for metric in nobody}
    made = gate.judge(found, 1)
    assert named(made.best) == "saf:0.1"
    assert made.reason.endswith(
        "Nothing is known of: accounts worse off, worst tenth of accounts (no account with enough jobs)."
    )


def test_the_table_has_each_point_and_chance_and_says_what_is_not_allowed():
    found = judged(saf_0_5=point(0.6), rl_0_5=point(0.5, accounts_worse=0.3, utilization=70.0))
    screen = io.StringIO()
    show(Console(file=screen, width=60), table(found.points, found.chance, "a site", found.best))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in screen.getvalue().splitlines() if "│" in line]
    for at in reversed(range(1, len(cells))):  # what has no room goes on in the next line
        if not cells[at][0]:
            cells[at - 1] = [" ".join(pair).strip() for pair in zip(cells[at - 1], cells.pop(at), strict=True)]
    shown = {(policy, share): rest for policy, share, *rest in cells}
    assert shown.keys() == {("saf", "0.5"), ("rl", "0.5"), (AGAIN, "")}
    assert shown["rl", "0.5"][-1] == "certainly waits less; not allowed: accounts worse off, GPUs in use"
    assert shown["saf", "0.5"][-1] == "certainly waits less; harms nobody"
    assert shown["saf", "0.5"][0] == "0.60 [0.60, 0.61]"
    assert shown["saf", "0.5"][2:9] == [
        "1.00",
        "1.00",
        "0.60",
        "0.10 (0.10)",
        "1.5 (1.5)",
        "0.050 (0.050)",
        "1.6 (1.6)",
    ]


def test_shares_are_numbers_from_0_to_1():
    assert parse_shares("1,0,.05,.1,0.1") == (0.0, 0.05, 0.1, 1.0)
    for wrong in ("", "x", "0.1,2", "-1", "nan"):
        with pytest.raises(EvaluationError, match="is no list of numbers from 0 to 1"):
            parse_shares(wrong)


# --- which jobs


def test_windows_share_no_job_and_are_the_last_ones_behind_the_past_that_a_warm_start_needs():
    windows = recent(10_000, Split.ALL, 300, 30)
    assert [window.start for window in windows] == [10_000 - 300 * left for left in range(16, 0, -1)]
    assert recent(2_000, Split.ALL, 20, 99, past=1_700)[0].start >= 1_700


def test_a_short_history_has_shorter_windows_unless_they_were_asked_for():
    assert {window.jobs for window in recent(2_000, Split.ALL)} == {100}
    assert {window.jobs for window in recent(100_000, Split.ALL)} == {RECENT}
    with pytest.raises(EvaluationError, match="recent part of the history has 1,000 jobs"):
        recent(2_000, Split.ALL, 101)
    with pytest.raises(EvaluationError, match="at least 64 jobs"):
        recent(1_000, Split.ALL)
    with pytest.raises(EvaluationError):
        recent(5, Split.ALL)


def test_the_cluster_is_filled_by_a_thousand_jobs_unless_lengths_are_given():
    def prepared(length, start=Start.WARM, **values):
        asked = settings(policies=contenders((0.5,)), windows=30, start=start, **values)
        return gate.prepare(asked, busy_jobs(2_600), parse_shape("2x4"), "r", length)

    usual = prepared(None)
    assert (usual.settings.window, usual.settings.past) == (130, 1000)
    assert {case.past for case in usual.cases} == {1000}
    assert prepared(None, Start.REAL).settings.past == 3000
    assert (prepared(40).settings.past, prepared(None, warm_jobs=7).settings.past) == (40, 7)


# --- with real simulations


def cooked(directory, name, training=TRAINING, **weights):
    """A model whose score is a weighted sum of columns of the state."""
    rng = np.random.default_rng(1)
    golden = rng.random((4, len(STATE_COLUMNS)), dtype=np.float32), rng.random(len(MOMENT))
    return str(files.save(plain_rule(name, **weights), directory, training, {}, golden))


BURSTS = bursts(30)


def reached(model, *, jobs=BURSTS, length=12, **values):
    usual = {"policies": contenders((0.5,)), "windows": 10, "start": Start.WARM, "model": model, "cluster": "1x1"}
    asked = settings(**usual | values)
    evaluation = gate.prepare(asked, jobs, parse_shape(asked.cluster), "revision", length)
    return gate.verdict(evaluation, evaluate(evaluation, WorkerPool(1)), 1e9, 30.0)


def points_of(made):
    return {(point.policy, point.share): point for point in made.points}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The verdict about three shares and a model that prefers what nobody should."""
    model = cooked(tmp_path_factory.mktemp("models"), "largest-first", **LARGEST)
    return reached(model, policies=contenders((0.0, 0.1, 0.5)))


def test_a_share_that_gains_more_and_harms_nobody_is_chosen_and_a_model_that_is_worse_than_saf_is_not(made):
    assert (made.chosen, made.best, made.share) == ("saf", made.rule, 0.5)
    points = points_of(made)
    waits = [points["saf", share].ratios["wait_mean"].ratio for share in (0.5, 0.1, 0.0)]
    assert waits[0] < waits[1] < waits[2]
    assert waits[0] < 0.7
    assert points["rl", 0.5].ratios["wait_mean"].ratio >= waits[0]
    read = parse_verdict(made.text().encode())
    assert (read.chosen, read.share, read.fallback, read.fallback_share) == ("saf", 0.5, "saf", 0.5)
    assert (read.model.name, read.cluster.gpus) == ("largest-first", 1)
    assert (read.made_at, read.expires) == (1e9, 1e9 + 30 * 86400)
    assert made.lines()[0] == "verdict: saf, and a waiting job lends 0.5 of its wait"


def test_a_model_that_harms_nobody_and_certainly_waits_less_is_chosen(tmp_path):
    model = cooked(tmp_path, "smallest-first", **SMALLEST)
    made = reached(model, policies=("multifactor", AGAIN, "rl:0.5"))
    assert (made.chosen, made.share, made.rule) == (MODEL, 0.5, None), made.reason
    assert points_of(made)["rl", 0.5].ratios["wait_mean"].hi < 1.0
    assert made.as_dict()["model"]["manifest_sha256"] == files.manifest_sha256(model)


def test_without_users_the_verdict_says_what_could_not_be_judged(tmp_path):
    jobs = replace(BURSTS, user=BURSTS.gpu_type)
    made = reached(cooked(tmp_path, "smallest-first", **SMALLEST), jobs=jobs)
    assert made.chosen == "saf"
    assert made.unknown == ["accounts worse off", "worst tenth of accounts"]
    assert "Nothing is known of: accounts worse off" in made.reason


def test_equal_questions_have_equal_verdicts_and_the_command_line_tells_the_question(tmp_path):
    model = cooked(tmp_path, "smallest-first", **SMALLEST)
    first, second = (reached(model, policies=("multifactor", AGAIN, "saf:0")).as_dict() for _ in range(2))
    for made in (first, second):
        for means in made["evidence"]["means"].values():
            means.pop("seconds")
    assert first == second
    command = first["program"]["command"]
    assert command.startswith("rltuned gate --trace t.csv --cluster 1x1 --window 12 --windows 10 --seed 1 --shares 0")
    assert "--weights usual" in command, "accounts are always looked at"


OTHER = {
    "policy": {"model": "/etc/other.json", "objective": "wait=1"},
    "estimates": {"source": "limit"},
}


@pytest.mark.parametrize("of", [{}, {"start": "idle"}, {"skip_bad": True}, {"objective": Objective.parse("idle=1")}])
def test_the_command_line_gives_the_same_gate_whatever_the_daemon_is_configured_to_by_then(of):
    asked = gate.asked(Config(), {"trace": "t.csv", "cluster": "1x1", **of})
    name, *words = shlex.split(asked.command)[1:]
    typed = cli.commands[name].make_context(name, words).params
    again = {key: value for key, value in typed.items() if value is not None and hasattr(asked, key)}
    found = gate.asked(Config.model_validate(OTHER), again)
    assert (found, found.command) == (asked, asked.command)


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_frontier_is_drawn_with_each_share_and_the_same_bytes_twice(made, tmp_path, ending):
    paths = [tmp_path / f"{name}{ending}" for name in ("a", "b")]
    for path in paths:
        draw(made, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if ending == ".svg":
        words = re.findall(r"<text[^>]*>([^<]*)</text>", paths[0].read_text())
        assert words.count("0.1") >= 2 * 4, "of the rule and of the model, in each panel"
        assert {"accounts worse off", "worst tenth of accounts", "mean wait over Slurm's own order"} <= set(words)
    with pytest.raises(EvaluationError, match="cannot be written"):
        draw(made, tmp_path / "none" / f"a{ending}")


def test_a_model_that_was_trained_on_the_same_file_is_judged_on_its_last_jobs_only(tmp_path):
    jobs = busy_jobs(2_000)
    model = cooked(tmp_path, "own", TRAINING.model_copy(update={"traces": {"t.csv": jobs.source.sha256}}))
    asked = settings(policies=contenders((0.5,)), windows=30, model=model)
    shape = parse_shape("2x4")
    assert gate.prepare(asked, jobs, shape, "r", 25).cases[0].window.start >= 1_700
    other = replace(jobs, source=Source("other", sha256="1" * 64))
    assert gate.prepare(asked, other, shape, "r", 25).cases[0].window.start < 1_700


# --- as typed


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.csv"
    write_csv(BURSTS, path)
    return path


def typed(trace, *more, cluster="1x1"):
    words = ["gate", "--trace", str(trace), "--cluster", cluster, "--window", "12", "--workers", "1"]
    return CliRunner().invoke(cli, [*words, "--shares", "0.5", *map(str, more)])


def test_a_verdict_is_written_drawn_and_said(trace, tmp_path):
    out, report, picture = tmp_path / "verdict.json", tmp_path / "r.json", tmp_path / "f.svg"
    words = ("--model", cooked(tmp_path, "largest", **LARGEST), "--estimates", "true", "--valid-days", "7")
    done = typed(trace, *words, "--out", out, "--json", report, "--plot", picture)
    made = json.loads(out.read_text())
    assert f"verdict: {made['chosen']}" in done.stdout
    assert (made["chosen"], made["share"], done.exit_code) == ("saf", 0.5, 0)
    assert parse_verdict(out.read_bytes()).valid_days == 7.0
    assert made["settings"]["start"] == "warm"
    assert "│ saf " in done.stdout
    assert "`rltuned tune` finds" in done.stdout
    whole = json.loads(report.read_text())
    assert (whole["verdict"], len(whole["windows"])) == (made, made["evidence"]["windows"])
    assert picture.read_text().startswith("<?xml")
    wrong = typed(trace, "--plot", tmp_path / "f.gif")
    assert (wrong.exit_code, "neither in .svg nor in .png" in wrong.stderr) == (2, True)
    wrong = typed(trace, "--shares", "2")
    assert (wrong.exit_code, "no list of numbers from 0 to 1" in " ".join(wrong.stderr.split())) == (2, True)


def test_where_nobody_has_to_wait_the_exit_code_says_that_slurms_order_stays(trace, tmp_path):
    out = tmp_path / "verdict.json"
    done = typed(trace, "--model", cooked(tmp_path, "m", **SMALLEST), "--out", out, cluster="90x4")
    assert done.exit_code == 14
    read = parse_verdict(out.read_bytes())
    assert (read.chosen, read.share) == (SLURM, DEFAULT_SHARE)


def test_a_verdict_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    done = typed(tmp_path / "no-such-trace.csv", "--out", str(tmp_path / "no-such-directory" / "v.json"))
    assert done.exit_code == 2
    assert f"there is no directory {tmp_path}/no-such-directory" in " ".join(done.stderr.split())


def test_the_gate_says_beforehand_how_long_it_will_take():
    def said(windows, jobs, workers):
        cases = [SimpleNamespace(jobs=range(jobs)) for _ in range(windows)]
        return how_long(cases, contenders(), workers)

    assert said(10, 300, 1).startswith("140 simulations with 1 process: about ")

    def minutes(*arguments):
        number, unit = said(*arguments).partition("about ")[2].split()[:2]
        return float(number) * {"min,": 1.0, "h,": 60.0}[unit]

    assert minutes(30, 2048, 1) >= 1.9 * minutes(15, 2048, 1)
    assert minutes(30, 2048, 1) >= minutes(30, 2048, 2) * 1.8
    assert minutes(1, 50_000, 20) >= 1.3 * minutes(1, 50_000, 1) / 20, "one simulation is one process's"


def test_beside_slurmctld_one_niced_process_simulates_unless_more_are_asked_for(tmp_path, monkeypatch, capsys):
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "comm").write_text("bash\n")
    assert not slurmctld_runs(tmp_path)
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "comm").write_text("slurmctld\n")
    assert slurmctld_runs(tmp_path)
    niced = []
    monkeypatch.setattr("os.nice", niced.append)
    monkeypatch.setattr("rltuned.cli.common.slurmctld_runs", lambda: True)
    assert processes(None) == 1
    assert "one process with nice 10" in capsys.readouterr().err
    assert processes(4) == 4
    assert niced == [10, 10]
    monkeypatch.setattr("rltuned.cli.common.slurmctld_runs", lambda: False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert (processes(None), processes(None, 2), processes(5, 2)) == (3, 2, 5), "one per core"
    assert niced == [10, 10]


# --- the site itself


def sacct(job=8, times="10|10|70|90", gpus=2):
    """A row of the accounting: when it was submitted, eligible, began and ended."""
    return f"{job}|u|a|gpu|normal|{times}|600|30|cpu=1,gres/gpu={gpus}|cpu=1,gres/gpu={gpus}|1|COMPLETED"


def test_the_sites_history_is_asked_for_in_stretches_that_leave_nothing_out():
    asked = []

    def ask(start, end):
        asked.append((start, end))
        return TraceRows([sacct(len(asked), f"{start:.0f}|{start:.0f}|{start + 60:.0f}|{end:.0f}")], [])

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
    good = sacct()
    strange = "sacct, job '7', column End: 'soon' is no time"
    said = []
    rows = TraceRows([good, good.replace("|10|10|70|", "|10|10|never|")], [strange])
    jobs = site.history(lambda *_: rows, 0.25, 1e9, said.append)
    assert jobs.job_id.tolist() == [8]
    assert said == [f"2 rows of sacct cannot be understood and are left out of 3, the first of them: {strange}"]
    with pytest.raises(WorkloadError, match=r"no job ended .*, and 1 rows cannot be understood, the first .*'soon'"):
        site.history(lambda *_: TraceRows([], [strange]), 0.25, 1e9, said.append)


def test_the_live_cluster_is_taken_with_nothing_running_and_without_its_drained_nodes(tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    reserved = NODES.replace("State=MIXED ", "State=IDLE+MAINTENANCE+RESERVED ")
    slurm.answer("nodes", reserved)
    shape, _ = site.own_cluster(SlurmSection(bin_dir=slurm.bin_dir), 100.0, [].append)
    # What is in maintenance will be back; jobs in a reservation are in the trace, too.
    assert dict(zip(shape.nodes.names, shape.nodes.usable.tolist(), strict=True)) == {"p100-1": True, "k80-1": False}


def test_what_of_the_site_is_not_simulated_is_said_first(tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("config", CONFIG.replace("PreemptType             = (null)", "PreemptType = preempt/partition_prio"))
    slurm.answer("partitions", PARTITIONS.replace("State=UP", "State=UP LLN=YES QoS=part-gpu MaxCPUsPerNode=8"))
    slurm.answer("nodes", NODES.replace("gpu:p100:4", "gpu:p100:2,gpu:mig:4"))
    said = []
    site.of_slurm(gate.asked(Config(), {}), SlurmSection(bin_dir=slurm.bin_dir), 100.0, said.append)
    (sentence,) = said
    assert sentence == (
        "not simulated, though it changes who starts when: PreemptType=preempt/partition_prio; LLN=YES (partition "
        "gpu); MaxCPUsPerNode=8 (partition gpu); QoS=part-gpu (partition gpu); OverSubscribe=YES:4 (partition share); "
        "which GPUs are free on nodes of several types"
    )


def test_with_select_linear_jobs_get_whole_nodes(tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("config", CONFIG.replace("select/cons_tres", "select/linear"))
    shape, facts = site.own_cluster(SlurmSection(bin_dir=slurm.bin_dir), 100.0, [].append)
    assert {part.oversubscribe for part in shape.partitions} == {OverSubscribe.EXCLUSIVE}
    waiting = jobs_of([0.0] * 4, [100.0] * 4, [1] * 4, partition=["gpu"] * 4)  # on the one node that is not drained
    simulation = Simulation(shape, waiting, Estimates(waiting.run_time, waiting.run_time))
    simulation.run(RuleRanker(by_name("fifo")))
    assert np.diff(simulation.start).min() >= 100.0
    slurm.queue([job(7)])
    snapshot = replace(CliReader(slurm.runner()).snapshot(100.0), scheduler=facts.scheduler)
    assert alone(snapshot, snapshot.jobs.pending).all()


def test_the_live_cluster_has_a_default_partition():
    from unit.controller.model_slurm import ModelSlurm, VirtualClock

    snapshot = ModelSlurm(VirtualClock()).reader().snapshot(0.0)
    busy = replace(snapshot.nodes, gpus_alloc=snapshot.nodes.gpus)
    partitions = tuple(replace(partition, default=False) for partition in snapshot.partitions)
    shape = site.live_shape(replace(snapshot, nodes=busy, partitions=partitions), "here")
    assert shape.gpus == int(snapshot.nodes.gpus.sum())
    assert not shape.nodes.gpus_alloc.any()
    assert [partition.default for partition in shape.partitions] == [True]


def test_jobs_and_nodes_are_the_sites_own_unless_files_are_named(tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("config", CONFIG.replace("SLURM_VERSION", "PriorityWeightAge       = 1234567\nSLURM_VERSION"))
    slurm.answer("trace", sacct().replace("|", SEPARATOR) + SEPARATOR + "\n")
    reached = SlurmSection(bin_dir=slurm.bin_dir)
    asked = gate.asked(Config(), {"from_sacct": 0.25})
    settled, jobs, shape = site.of_settings(asked, reached, 100.0, [].append)
    assert jobs.job_id.tolist() == [8]
    assert (shape.text, shape.gpus, shape.nodes.gpus_alloc.any()) == ("testbed", 6, False)
    assert settled.scheduler == "default_queue_depth=100,bf_interval=1", "that of the site"
    assert settled.weights == "age=1234567", "to the last digit"
    assert (settled.simulated.backfill, settled.simulated.bf_interval) == (Backfill.SLURM, 1.0)
    settled, jobs, shape = site.of_settings(replace(asked, cluster="2x4"), reached, 100.0, [].append)
    assert (len(jobs), shape.gpus, settled.scheduler) == (1, 8, "")
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_time,num_gpus,run_time\n0,1,600\n30,8,7200\n")
    _, jobs, shape = site.of_settings(gate.asked(Config(), {"trace": str(trace)}), reached, 100.0, [].append)
    assert (len(jobs), shape.text) == (2, "testbed")


@pytest.fixture
def nodes_then(tmp_path):
    """Which nodes of p100-1 (4 GPUs, up now) and k80-1 (2, drained now) a site's jobs are replayed on, and what is
    said; `events`: of sacctmgr; `gpus`: of jobs that ran from second 0 to 1000 side by side.
    """

    number = count()

    def found(events, *gpus, **how):
        slurm = StandIn(tmp_path / str(next(number)))
        slurm.answer("events", "".join(f"{event}\n" for event in ("||0|Unknown", *events)), **how)
        rows = (sacct(number, "0|0|0|1000", each) + "|\n" for number, each in enumerate(gpus, start=1))
        slurm.answer("trace", "".join(rows).replace("|", SEPARATOR))
        said = []
        asked = gate.asked(Config(), {"from_sacct": 0.25})
        _, _, shape = site.of_settings(asked, SlurmSection(bin_dir=slurm.bin_dir), 2000.0, said.append)
        return sorted(np.array(shape.nodes.names)[shape.nodes.usable]), said

    return found


@pytest.mark.parametrize(
    ("events", "usable"),
    [
        (["k80-1|DRAIN|990|Unknown"], ["k80-1", "p100-1"]),  # drained at the end
        (["k80-1|DRAIN|1500|Unknown"], ["k80-1", "p100-1"]),  # and afterwards
        (["k80-1|DRAIN|10|Unknown"], ["p100-1"]),
        (["k80-1|DOWN|0|Unknown", "k80-1|DRAIN|0|Unknown"], ["p100-1"]),  # an event of each state
        (["k80-1|DRAIN|990|Unknown", "p100-1|DOWN|10|800", "p100-1|DRAIN|700|990"], ["k80-1"]),
        (["k80-1|DRAIN|990|Unknown", "p100-1|DOWN|10|300", "gone-1|DOWN|0|Unknown"], ["k80-1", "p100-1"]),
    ],
)
def test_the_nodes_are_those_of_the_period_and_not_those_of_now(nodes_then, events, usable):
    found, said = nodes_then(events, 1)
    assert (found, [text for text in said if not text.startswith(BEGINNING)]) == (usable, [])


def test_where_no_event_tells_of_a_node_that_is_out_of_use_the_most_gpus_that_were_in_use_count(nodes_then):
    for how in ({}, {"stderr": "sacctmgr: error: accounting storage disabled\n", "code": 1}):
        usable, said = nodes_then([], 4, **how)
        assert usable == ["p100-1"]
        assert re.search(
            "since when 1 of 2 nodes are out of use is not known: .* most GPUs .* in use at once, 4", said[-1]
        )
        assert nodes_then([], 3, 2, **how)[0] == ["k80-1", "p100-1"]


def test_what_was_in_use_at_once_is_always_there(nodes_then):
    assert nodes_then(["k80-1|DRAIN|10|Unknown"], 4, 1)[0] == ["k80-1", "p100-1"]


def test_the_gate_plays_what_the_daemon_is_configured_to_do_unless_told_otherwise():
    text = '[estimates]\nsource = "limit"\n[policy]\nmodel = "base"\nobjective = "wait=1"\n'
    config = resolve(text, "config.toml", {}, {}).config
    asked = gate.asked(config, {})
    assert (asked.estimates, asked.model, asked.start.value, asked.gate) == ("limit", "base", "real", True)
    assert gate.asked(config, {"cluster": "1x4"}).start.value == "warm"
    assert asked.policies == contenders()
    assert gate.asked(config, {"shares": "0,.3"}).policies == contenders((0.0, 0.3))
    assert asked.objective == Objective.parse("wait=1")
    assert gate.asked(config, {"estimates": "true", "seed": 3}) == replace(asked, estimates="true", seed=3)


def test_the_help_says_what_gate_and_tune_begin_with_where_nobody_says_more():
    def words(command):
        return " ".join(CliRunner().invoke(cli, [command, "--help"]).stdout.split())

    here, elsewhere = (gate.asked(Config(), given).start.value for given in ({}, {"cluster": "1x4"}))
    assert f"[default: {here}; with --cluster {elsewhere}]" in words("gate")
    assert f"[default: up to {RECENT}]" in words("tune")


def test_settings_that_the_gate_does_not_play_are_named():
    assert not_judged(Config()) == []
    assert not_judged(Config(lend={"share": 0.5, "most": 3})) == ["lend.most"]

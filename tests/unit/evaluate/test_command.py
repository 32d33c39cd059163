"""`rltuned evaluate` as typed."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rltuned.cli.main import cli
from rltuned.core.errors import EvaluationError, RltunedError
from rltuned.core.objective import Objective
from rltuned.simulate.shape import parse_shape

LINES = ["submit_time,run_time,num_gpus,user"] + [
    f"{30 * k},{100 + 37 * (k % 11)},{1 + k % 3},u{k % 4}" for k in range(60)
]


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def run(trace: Path, *more: str):
    words = f"evaluate --trace {trace} --cluster 2x2 --window 20 --windows 3 --workers 1".split()
    return CliRunner().invoke(cli, [*words, "--policies", "fifo,saf", *more], catch_exceptions=False)


def test_a_table_is_printed_and_the_report_is_written(trace, tmp_path):
    done = run(trace, "--json", str(tmp_path / "r.json"))
    assert done.exit_code == 0
    assert "│ saf " in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert len(found["windows"]) == 3
    assert len(found["meta"]["trace"]["sha256"]) == 64


def test_a_dash_prints_the_report_instead_of_the_table(trace):
    assert set(json.loads(run(trace, "--json", "-").stdout)["policies"]) == {"fifo", "saf"}


def test_the_simulated_slurm_is_one_list_that_comes_before_easy_and_that_the_report_repeats(trace):
    words = ("--easy", "--slurm", "placement=worst,bf_interval=60", "--start", "warm:5", "--json", "-")
    meta = json.loads(run(trace, *words).stdout)["meta"]
    said = [meta["settings"][name] for name in ("backfill", "placement", "scheduler", "start", "warm_jobs")]
    assert said == ["easy", "worst", "bf_interval=60", "warm", 5]
    again = CliRunner().invoke(cli, [*shlex.split(meta["command"])[1:], "--workers", "1", "--json", "-"])
    assert json.loads(again.stdout)["meta"] == meta


def test_beside_slurm_the_configuration_says_what_the_site_wants_unless_the_command_line_does(
    trace, tmp_path, monkeypatch
):
    path = tmp_path / "config.toml"
    path.write_text('[policy]\nobjective = "wait=1"\n')
    monkeypatch.setattr("rltuned.lab.evaluate.site.of_slurm", lambda settings, *_: (settings, parse_shape("2x2")))
    words = ["evaluate", "--trace", str(trace), "--from-slurm", "--config", str(path), "--policies", "saf"]
    words += ["--window", "20", "--windows", "1", "--workers", "1", "--json", "-"]
    for more, wanted in (([], "wait=1"), (["--objective", "tail=2"], "tail=1")):
        done = CliRunner().invoke(cli, [*words, *more])
        assert Objective.parse(json.loads(done.stdout)["meta"]["settings"]["objective"]) == Objective.parse(wanted)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate --cluster 1x1", "Missing option '--trace'"),
        ("evaluate --trace t.csv", "--trace needs --cluster, or --from-slurm"),
        ("evaluate --trace t --cluster 1x1 --warm-jobs 9", "--start warm:JOBS"),
        ("gate --scheduler bf_window=60", "--scheduler is gone: --slurm takes SchedulerParameters"),
        ("evaluate --trace t --cluster 1x1 --json /", "'/' is a directory"),
        ("evaluate --trace t --cluster 1x1 --from-slurm", "both name a cluster"),
        ("evaluate --trace t --cluster 1x1 --config c", "--config goes with --from-slurm"),
        ("gate", "Either --from-sacct DAYS, or --trace FILE"),
        ("gate --trace t --from-sacct 3", "Either --from-sacct DAYS, or --trace FILE"),
        ("gate --trace t", "--trace needs --cluster"),
        ("report --jobs 9", "--jobs is gone: the last 10,000 jobs"),
        ("tune", "Either --from-sacct DAYS, or --trace FILE"),
        ("tune --trace t.csv", "--trace needs --cluster"),
        ("tune --from-sacct 30 --weights nonsense", "'nonsense' is no NAME=NUMBER"),
        ("tune --from-sacct 30 --budget 4", "4 is not in the range x>=5"),
    ],
)
def test_wrong_usage_is_refused_with_what_is_missing(words, said):
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(trace, tmp_path):
    trace.write_text("nobody reads this")
    (tmp_path / "file").write_text("")
    for path in ("file/r.json", "none/r.json", "."):
        done = run(trace, "--json", str(tmp_path / path))
        assert done.exit_code == 2
        assert "--json" in done.stderr
        assert str(tmp_path) in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--window", "0"], "--window"),
        (["--windows", "0"], "--windows"),
        (["--workers", "0"], "--workers"),
        (["--seed", "-1"], "--seed"),
        (["--estimates", "limt"], "limt"),
        (["--policies", "fifo,sfa"], "sfa"),
        (["--slurm", "bf_window=x"], "bf_window"),
        (["--slurm", "placement=first"], "placement is one of best, worst, slurm, not 'first'"),
        (["--start", "warm:0"], "'warm:0' is none of idle, warm, real, warm:JOBS"),
        (["--objective", "wait=x"], "'--objective': 'wait=x' is not NAME=WEIGHT"),
    ],
)
def test_wrong_usage_has_one_exit_code_and_is_refused_before_anything_is_read(words, said, tmp_path):
    done = run(tmp_path / "no-such-trace.csv", *words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_window_longer_than_the_trace_ends_with_its_own_exit_code(trace):
    with pytest.raises(RltunedError, match="window of 61 jobs is longer") as error:
        run(trace, "--window", "61")
    assert error.value.exit_code == 13


def test_where_no_job_can_run_there_is_an_error_that_says_why_instead_of_a_table(trace):
    typed = [f"{LINES[0]},gpu_type", *(f"{line},k80" for line in LINES[1:])]
    trace.write_text("\n".join(typed) + "\n")
    with pytest.raises(EvaluationError, match=r"no job of these 3 windows can run on 2x2.*unknown GPU type 'k80'"):
        run(trace)

"""`rltuned evaluate` as typed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit.evaluate.small import without_timings

from rltuned.commands.main import cli
from rltuned.errors import EvaluationError, MissingError, RltunedError, WorkloadError
from rltuned.evaluate.executors import SlurmArray, chosen
from rltuned.evaluate.metrics import COMPARED
from rltuned.evaluate.state import state_path

LINES = ["submit_time,run_time,num_gpus,user"] + [
    f"{30 * k},{100 + 37 * (k % 11)},{1 + k % 3},u{k % 4}" for k in range(60)
]


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def run(trace: Path, *more: str):
    words = [
        "evaluate",
        "--trace",
        str(trace),
        "--cluster",
        "2x2",
        "--window",
        "20",
        "--windows",
        "3",
        "--workers",
        "1",
    ]
    return CliRunner().invoke(cli, [*words, "--policies", "fifo,saf", *more], catch_exceptions=False)


def test_a_table_is_printed_and_the_report_and_plots_are_written(trace, tmp_path):
    done = run(trace, "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "plots"))
    assert done.exit_code == 0
    assert "│ saf " in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert len(found["windows"]) == 3
    assert len(found["meta"]["trace"]["sha256"]) == 64
    written = {path.stem: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert set(written) == set(COMPARED)
    assert all(data.startswith(b"\x89PNG") and len(data) > 5000 for data in written.values())
    assert not state_path(tmp_path / "r.json").exists()


def test_two_equal_command_lines_differ_in_timings_only_wherever_they_are_written_to(trace, tmp_path):
    reports = []
    for name in ("a.json", "b.json"):
        run(trace, "--json", str(tmp_path / name), "--estimates", "noisy:1")
        reports.append(json.dumps(without_timings(json.loads((tmp_path / name).read_text()))))
    assert reports[0] == reports[1]


def test_it_says_where_a_policy_cannot_differ_from_another(trace):
    assert "the same as without" in run(trace, "--placement", "milp").stderr
    assert "the same as without" not in run(trace, "--placement", "best").stderr


def test_a_dash_prints_the_report_instead_of_the_table(trace):
    assert set(json.loads(run(trace, "--json", "-").stdout)["policies"]) == {"fifo", "saf"}


def test_a_run_that_was_interrupted_is_resumed_and_another_one_is_not(trace, tmp_path):
    out = tmp_path / "r.json"
    run(trace, "--json", str(out))
    whole = json.loads(out.read_text())
    meta = {key: value for key, value in whole["meta"].items() if key != "intervals"}
    first = {**whole["windows"][0]["policies"]["fifo"]}
    kept = {"window": 0, "policy": "fifo", "killed": first.pop("killed"), "seconds": 12345.0}
    first.pop("seconds")
    lines = [{"format": 1, "asked": meta}, {**kept, "metrics": first}]
    state_path(out).write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run(trace, "--json", str(out), "--resume")
    assert "nothing to resume" not in done.stderr
    again = json.loads(out.read_text())
    assert again["windows"][0]["policies"]["fifo"]["seconds"] == 12345.0, "was not measured again"
    assert without_timings(again) == without_timings(whole)
    state_path(out).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(EvaluationError, match=r"settings\.backfill: \"slurm\" then, \"none\" now"):
        run(trace, "--json", str(out), "--resume", "--backfill", "none")
    state_path(out).unlink()
    assert "nothing to resume" in run(trace, "--json", str(out), "--resume").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "--cluster", "1x1"], "Missing option '--trace'"),
        (["evaluate", "--trace", "t.csv"], "Missing option '--cluster'"),
        (["evaluate", "--trace", "t", "--cluster", "1x1", "--resume"], "--resume needs --json OUT"),
        (["evaluate", "--trace", "t", "--cluster", "1x1", "--executor", "slurm"], "--executor slurm needs --json OUT"),
        (["evaluate", "--trace", "t", "--cluster", "1x1", "--warm-jobs", "9"], "add --start warm"),
        (["evaluate", "--trace", "t", "--cluster", "1x1", "--json", "/"], "'/' is a directory"),
        (["evaluate", "--against", "r.json", "--plot", "p"], "--plot does not go with --against"),
    ],
)
def test_wrong_usage_is_refused_with_what_is_missing(words, said):
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(trace, tmp_path):
    trace.write_text("nobody reads this")
    (tmp_path / "file").write_text("")
    for option, path in (
        ("--json", "file/r.json"),
        ("--json", "none/r.json"),
        ("--json", "."),
        ("--plot", "file"),
        ("--plot", "none/plots"),
    ):
        done = run(trace, option, str(tmp_path / path))
        assert done.exit_code == 2
        assert option in done.stderr
        assert str(tmp_path) in done.stderr
    assert not (tmp_path / "none").exists()


def test_plots_without_matplotlib_are_refused_before_anything_runs(trace, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    trace.write_text("nobody reads this")
    with pytest.raises(MissingError, match="--plot needs matplotlib, which is not installed"):
        run(trace, "--plot", str(tmp_path / "plots"))
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--window", "0"], "--window"),
        (["--windows", "0"], "--windows"),
        (["--workers", "0"], "--workers"),
        (["--seed", "-1"], "--seed"),
        (["--estimates", "limt"], "limt"),
        (["--policies", "fifo,sfa"], "sfa"),
        (["--scheduler", "bf_window=x"], "bf_window"),
        (["--slurm-option", "account=lab"], "--slurm-option goes with --executor slurm"),
        (["--slurm-minutes", "5"], "--slurm-minutes goes with --executor slurm"),
        (["--executor", "slurm", "--json", "r.json", "--slurm-option", "account"], "'account' is not NAME=VALUE"),
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


def test_a_job_table_goes_with_the_traces_that_have_one(trace):
    with pytest.raises(WorkloadError, match="a job table goes with the format pai"):
        run(trace, "--job-table", str(trace))


def test_the_options_of_an_array_job_reach_its_executor(tmp_path):
    slurm = {"partition": "gpu", "tasks": 5, "parallel": 2, "minutes": 9, "option": ("account=lab", "--mem=2G")}
    executor = chosen("slurm", None, tmp_path / "r.json", slurm)
    assert isinstance(executor, SlurmArray)
    assert executor.folder == tmp_path / "r.json.slurm"
    assert (executor.pieces, executor.parallel, executor.minutes, executor.partition) == (5, 2, 9, "gpu")
    assert executor.options == {"account": "lab", "mem": "2G"}
    with pytest.raises(EvaluationError, match="'account' is not NAME=VALUE"):
        chosen("slurm", None, tmp_path / "r.json", {**slurm, "option": ("account",)})


def test_a_file_that_is_no_replay_is_refused(tmp_path):
    path = tmp_path / "r.json"
    for text, said in (("nothing", "is no JSON"), ("[]", "has no meta"), ('{"meta": {"form": 99}}', "form 99")):
        path.write_text(text)
        with pytest.raises(EvaluationError, match=said):
            CliRunner().invoke(cli, ["evaluate", "--against", str(path)], catch_exceptions=False)


def replayed(second_start: float) -> dict[str, Any]:
    """Two jobs on one GPU, both submitted at 0, the first of which ran for 100 s."""
    job = {"gpus": 1, "gpu_type": "", "nodes_asked": 1, "cpus": 1, "mem": 100.0, "partition": "", "user": "ann"}
    job |= {"time_limit": 600.0, "estimate": 600.0, "submit": 0.0, "eligible": 0.0, "nodes": "n1"}
    times = [("short", 0.0, 100.0), ("long", second_start, second_start + 50.0)]
    jobs = [
        {**job, "class": kind, "start": start, "end": end, "job_id": row, "slurm_job_id": 10 + row, "nice": row}
        for row, (kind, start, end) in enumerate(times)
    ]
    meta = {
        "form": 1,
        "slurm": "24.11.5",
        "policy": "fifo",
        "interval": None,
        "workload": "by hand",
        "sha256": "",
        "zero": 0.0,
    }
    passes = {"main_pass": {"interval": 1.0, "offset": 0.0}, "backfill_pass": {"interval": 1.0, "offset": 0.5}}
    meta |= {"scheduler_parameters": "bf_interval=1,bf_resolution=1", **passes}
    pools = [{"name": "n1", "nodes": 1, "gpus_per_node": 1, "cpus": 8, "mem_mib": 8000}]
    return {"meta": meta, "cluster": {"pools": pools}, "jobs": jobs}


@pytest.mark.parametrize(("real_start", "difference"), [(100.0, 0.0), (200.0, -0.5)])
def test_against_a_replay_the_mean_waits_are_compared_in_all_and_by_class(tmp_path, real_start, difference):
    path = tmp_path / "REPLAY.json"
    path.write_text(json.dumps(replayed(real_start)))
    words = ["evaluate", "--against", str(path), "--json", str(tmp_path / "r.json")]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "│ long " in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["wait_mean"]["real"] == real_start / 2
    assert found["wait_mean"]["difference"] == pytest.approx(difference, abs=0.03)
    assert found["classes"]["long"]["simulated"] == pytest.approx(100.0, abs=3.0)
    assert found["classes"]["short"]["real"] == 0.0
    assert found["same_node"] == 1.0
    assert len(found["meta"]["replay"]["sha256"]) == 64

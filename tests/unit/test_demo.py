"""``rltuned demo``: the same for a seed, honest about what it compares, and nothing left of it on the queue."""

import io
import json
import re
import urllib.request
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from rltuned.cli import show
from rltuned.cli.main import cli
from rltuned.controller.health.clock import SystemClock
from rltuned.core.errors import ConfigError, RltunedError
from rltuned.core.wording import duration
from rltuned.lab.demo.demo_clusters import INTERVAL, Demo, DemoSettings

CLUSTER = {
    "pools": [
        {"name": "big", "nodes": 1, "gpus_per_node": 8, "gpu_type": "a100"},
        {"name": "small", "nodes": 2, "gpus_per_node": 4, "gpu_type": "v100"},
    ],
    "partitions": [{"name": "train", "pools": ["big", "small"], "max_time": 3600}],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "small.json"
    path.write_text(json.dumps(CLUSTER))
    return DemoSettings(jobs=50, past=150, seed=3, load=3.0, cluster=str(path))


@pytest.fixture(scope="module")
def ran(small, tmp_path_factory):
    return run(tmp_path_factory.mktemp("ran"), small)


class Clock(SystemClock):
    """A second passes with each look at it."""

    def __init__(self):
        self.now, self.slept = 0.0, 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now

    def sleep(self, seconds):
        self.slept += seconds


def run(directory, settings, *, after=10**9, **values):
    """Summary and lines of a demonstration that is stopped after so many cycles."""
    lines = []
    with Demo(settings, directory) as demo:
        cut = demo.play(lines.append, Clock(), lambda: demo.cycles >= after, **values)
        return demo.summary(interrupted=cut), lines


def test_jobs_are_reordered_restore_leaves_nothing_and_the_seed_decides_everything(ran, small, memory_path):
    summary, lines = ran
    again = run(memory_path, small)
    assert (json.dumps(summary, default=str), lines) == (json.dumps(again[0], default=str), again[1])
    assert summary["changes"]["applied"] > 0
    assert summary["raised_per_cycle"] > 0
    assert summary["changes"]["failed"] == 0
    proof = summary["restore"]
    assert proof["changed"] > 0
    assert proof["left"] == 0
    assert proof["restored"] >= proof["changed"] - proof["others"]
    assert not summary["interrupted"]
    assert summary["jobs"]["compared"] >= 45
    assert summary["rltuned"]["wait_mean"] != summary["multifactor"]["wait_mean"]
    assert [line.split(" h ")[0].strip() for line in lines[:2]] == ["1.0", "2.0"]
    assert "  50/50 jobs  queue    0 (Slurm alone    0)  mean wait " in lines[-1]
    assert lines[-1].endswith(f"{summary['changes']['applied']} changes")


def test_slurms_own_order_as_the_policy_gives_slurms_own_numbers(small, memory_path):
    summary, _ = run(memory_path, replace(small, policy="multifactor"))
    assert summary["changes"]["applied"] == 0
    assert summary["rltuned"] == summary["multifactor"]


def test_the_metrics_endpoint_is_open_on_the_loopback_while_it_runs(small, memory_path):
    with Demo(small, memory_path) as demo:
        demo.step()
        assert demo.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(demo.url) as answer:  # noqa: S310 - http, and ours
            text = answer.read().decode()
    assert 'rltuned_cycles_total{outcome="done"} 1.0' in text
    assert "rltuned_history_timestamp_seconds 1.8e+09" in text


def test_cut_short_it_restores_then_and_says_what_it_has(small, memory_path):
    summary, _ = run(memory_path, small, after=20)
    assert summary["interrupted"]
    assert summary["cycles"] == 20
    assert summary["jobs"]["compared"] < 50
    assert summary["restore"]["left"] == 0
    assert 0 < summary["virtual_seconds"] <= 21 * INTERVAL


def test_it_can_be_slowed_down(small, memory_path):
    clock = Clock()
    with Demo(small, memory_path) as demo:
        assert demo.play(lambda _: None, clock, lambda: demo.cycles == 3, speed=24.0)
    assert clock.slept == pytest.approx(10 + 20 + 30 - 1 - 2 - 3)  # a cycle is due every ten seconds, none of them pass


def test_what_a_run_time_limit_of_the_partition_allows_is_all_that_is_asked(small, memory_path):
    with Demo(replace(small, cluster="", jobs=200), memory_path) as demo:
        assert demo.steered.simulation.asked.rejected == {}
        assert demo.steered.simulation.estimates.time_limit.max() <= 6 * 3600
        demo.step()


def test_what_it_is_asked_for_must_exist(small, memory_path):
    with pytest.raises(ConfigError, match="nonsense"), Demo(replace(small, policy="nonsense"), memory_path):
        pass
    with pytest.raises(RltunedError, match="20y8"), Demo(replace(small, cluster="20y8"), memory_path):
        pass


def test_the_command_prints_one_object_and_explain_reads_what_it_kept(small, memory_path):
    kept = memory_path / "kept"
    options = ["--jobs", "120", "--seed", "3", "--load", "3", "--cluster", small.cluster, "--policy", "saf"]
    result = CliRunner().invoke(cli, ["demo", "--json", *options, "--state", str(kept)])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["settings"]["policy"] == "saf"
    assert summary["policy"]["name"] == "saf"
    assert json.loads((kept / "summary.json").read_text())["jobs"] == summary["jobs"]
    assert "cycle.done" in (kept / "rltuned.log").read_text()
    explained = CliRunner().invoke(cli, ["explain", str(summary["example_job"]), "--config", str(kept / "config.toml")])
    assert explained.exit_code == 0, explained.output
    assert "goes ahead" in explained.output
    page = (kept / "report.html").read_text()
    assert "What rltuned did" in page
    for order in ("multifactor", "rltuned"):
        assert duration(summary[order]["wait_mean"]) in page
    assert "Who lent, and to whom" in page


def test_people_get_a_table_the_undo_and_the_way_on(ran, memory_path):
    summary, _ = ran
    screen = Console(file=io.StringIO(), width=110)
    show.demo_summary(screen, summary, memory_path, "rltuned")
    text = screen.file.getvalue()
    assert re.search(r"mean wait  .* min .* [-+]\d+%\n", text)
    assert f"rltuned explain {summary['example_job']} --config {memory_path}/config.toml" in text
    assert "is again as Slurm and its users alone would have it" in text
    show.demo_summary(screen, summary | {"restore": summary["restore"] | {"left": 2}}, None, "rltuned")
    assert "2 jobs are not as they were" in screen.file.getvalue()

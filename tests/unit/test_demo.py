"""``rltuned demo``: the same for a seed, honest about what it compares, and nothing left of it on the queue."""

import io
import json
import urllib.request
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from rltuned.cli import show
from rltuned.cli.main import cli
from rltuned.core.errors import ConfigError, RltunedError
from rltuned.core.wording import duration
from rltuned.lab.demo.demo_clusters import INTERVAL, Demo, DemoSettings, play

CLUSTER = {
    "pools": [
        {"name": "big", "nodes": 1, "gpus_per_node": 8, "gpu_type": "a100"},
        {"name": "small", "nodes": 2, "gpus_per_node": 4, "gpu_type": "v100"},
    ],
    "partitions": [{"name": "train", "pools": ["big", "small"], "max_time": 3600}],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A few dozen jobs in two virtual hours."""
    path = tmp_path_factory.mktemp("cluster") / "small.json"
    path.write_text(json.dumps(CLUSTER))
    return DemoSettings(jobs=50, past=150, seed=3, load=3.0, cluster=str(path), metrics_port=None)


@pytest.fixture(scope="module")
def ran(small, tmp_path_factory):
    """Summary and pictures of a whole one."""
    return run(tmp_path_factory.mktemp("ran"), small)


class Clock:
    """A second passes with each look at it."""

    def __init__(self):
        self.now, self.slept = 0.0, 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now

    def time(self):
        return self.now

    def steady(self):
        return self.now

    def sleep(self, seconds):
        self.slept += seconds


def run(directory, settings, *, after=10**9, **values):
    """Summary and pictures of a demonstration that is stopped after so many cycles."""
    pictures = []
    with Demo(settings, directory) as demo:
        cut = play(demo, pictures.append, Clock(), stop=lambda: demo.cycles >= after, every=100.0, **values)
        return demo.summary(interrupted=cut), pictures


def test_jobs_are_reordered_restore_leaves_nothing_and_the_seed_decides_everything(ran, small, memory_path):
    summary, pictures = ran
    assert json.dumps(summary, default=str) == json.dumps(run(memory_path, small)[0], default=str)
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
    last = pictures[-1].parts[-1]
    assert last.steered.queue == 0
    assert pictures[-1].submitted == 50
    assert "The learned model" in summary["policy"]["what"]


def test_slurms_own_order_as_the_policy_gives_slurms_own_numbers(small, memory_path):
    summary, _ = run(memory_path, replace(small, policy="multifactor"))
    assert summary["changes"]["applied"] == 0
    assert summary["rltuned"] == summary["multifactor"]


def test_the_metrics_endpoint_is_open_on_the_loopback_while_it_runs(small, memory_path):
    with Demo(replace(small, metrics_port=0), memory_path) as demo:
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


def test_it_can_be_slowed_down_and_ended_by_the_clock(small, memory_path):
    clock = Clock()
    with Demo(small, memory_path) as demo:
        assert play(demo, lambda _: None, clock, stop=lambda: False, every=1e9, speed=6.0, seconds=10.0)
        assert demo.cycles < 12
        assert clock.slept > 10.0  # ten virtual seconds of a cycle's minute for each real one


def test_what_a_run_time_limit_of_the_partition_allows_is_all_that_is_asked(small, memory_path):
    with Demo(replace(small, cluster="", estimates="noisy:2", jobs=200), memory_path) as demo:
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
    assert "plain rule 'saf'" in summary["policy"]["what"]
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


def test_people_get_a_line_now_and_then_a_table_and_the_way_on(ran, memory_path):
    summary, pictures = ran
    screen = Console(file=io.StringIO(), width=110)
    screen.print(show.demo_picture(pictures[0], "policy saf"))
    screen.print(show.demo_line(pictures[0]))
    show.demo_summary(screen, summary)
    show.demo_next(screen, summary, memory_path, "rltuned")
    text = screen.file.getvalue()
    for piece in (
        "partition",
        "mean wait so far",
        "Slurm alone",
        "jobs go ahead, those that wait have lent",
        "changes applied so far",
        "median wait",
        "The learned model",
    ):
        assert piece in text
    assert f"rltuned explain {summary['example_job']}" in text
    assert "is again as Slurm and its users alone would have it" in text
    show.demo_summary(screen, summary | {"restore": summary["restore"] | {"left": 2}})
    assert "2 jobs are not as they were" in screen.file.getvalue()

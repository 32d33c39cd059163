"""`rltuned evaluate --executor slurm`: the work goes through a real Slurm as an array job, the numbers are the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cluster.support import RLTUNED, Cluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.conftest import Clusters

# One release is enough: submitit knows sbatch and sacct only. That of the oldest Python, which has every wheel.
RELEASE = "22.05"
# The containers share no directory: submitter and array tasks are on the same node.
NODE = "p100-1"
USER = "alice"
TRACE = "\n".join(
    ["submit_time,run_time,num_gpus", *(f"{40 * k},{100 + 61 * (k * k % 17)},{1 + k % 4}" for k in range(80))]
)
COMMAND = [
    "evaluate",
    "--trace",
    "t.csv",
    "--cluster",
    "2x4",
    "--window",
    "25",
    "--windows",
    "3",
    "--policies",
    "fifo,saf,rl",
]


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    running = clusters.get(RELEASE)
    running.reset()
    running.install_rltuned(NODE)
    running.install_simulator(NODE)
    running.sh(f"rm -rf /home/{USER}/evaluate", service=NODE)
    running.sh(f"mkdir -p ~/evaluate && cat >~/evaluate/t.csv <<'EOF'\n{TRACE}\nEOF", user=USER, service=NODE)
    yield running
    running.cancel_all()


def evaluate(cluster: Cluster, out: str, *more: str) -> str:
    words = " ".join([RLTUNED, *COMMAND, "--json", out, *more])
    return cluster.sh(f"cd ~/evaluate && exec {words}", user=USER, service=NODE, timeout=900).stdout


def report(cluster: Cluster, out: str) -> dict[str, Any]:
    return dict(json.loads(cluster.read_file(f"/home/{USER}/evaluate/{out}", service=NODE)))


def without_timings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_timings(inner) for key, inner in value.items() if key != "seconds"}
    return [without_timings(inner) for inner in value] if isinstance(value, list) else value


def tasks(cluster: Cluster) -> list[list[str]]:
    """Number, state, partition, node and limit of each task of this user's arrays, as accounted."""
    words = f"sacct -X -n -P -u {USER} --name rltuned-evaluate -S now-1hour -o JobID,State,Partition,NodeList,Timelimit"
    rows = [row.split("|") for row in cluster.sh(words).stdout.splitlines()]
    return [[job.rpartition("_")[2], *rest] for job, *rest in rows]


def test_an_array_job_gives_the_same_numbers_as_processes_of_one_machine(cluster: Cluster):
    evaluate(cluster, "local.json", "--workers", "1")
    slurm = ["--executor", "slurm", "--slurm-partition", "gpu", "--slurm-tasks", "2", "--slurm-minutes", "9"]
    said = evaluate(cluster, "slurm.json", *slurm, "--slurm-option", f"nodelist={NODE}")
    assert "│ saf " in said
    here, there = report(cluster, "local.json"), report(cluster, "slurm.json")
    assert without_timings(here) == without_timings(there)
    assert here != there, "each was measured by itself"
    expected = [[task, "COMPLETED", "gpu", NODE, "00:09:00"] for task in ("0", "1")]
    # A task writes its result before it ends, and slurmdbd hears of the end later still.
    wait_until(
        lambda: sorted(tasks(cluster)[-2:]) == expected,
        "the accounting has both tasks of the array, as they were asked for",
    )


def test_a_refused_submission_says_what_sbatch_said(cluster: Cluster):
    with pytest.raises(AssertionError, match=r"rltuned: --executor slurm: .*no-such-option"):
        evaluate(cluster, "r.json", "--executor", "slurm", "--slurm-option", "no-such-option=1")


def test_a_task_that_fails_is_named_and_the_run_goes_on_with_resume(cluster: Cluster):
    slurm = ["--executor", "slurm", "--slurm-tasks", "2"]
    # That node has neither the directory nor rltuned.
    with pytest.raises(AssertionError, match=r"Slurm job \d+_\d of the evaluation failed; --resume goes on"):
        evaluate(cluster, "r.json", *slurm, "--slurm-option", "nodelist=p100-2")
    evaluate(cluster, "r.json", *slurm, "--slurm-option", f"nodelist={NODE}", "--resume")
    assert len(report(cluster, "r.json")["windows"]) == 3

"""The testbed itself: what the other cluster tests take for granted."""

import json
import re
import shutil
import subprocess
import urllib.parse
import uuid
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from cluster.conftest import Clusters
from cluster.support import (
    NEWEST,
    NODES,
    OPERATOR,
    ROOT,
    TESTBED,
    WANTED,
    Cluster,
    image_of,
    on_one_release,
    wait_until,
)
from cluster.test_placement import queue_at_rest


def test_processes_that_want_the_same_image_at_once_build_it_once(clusters: Clusters, tmp_path: Path):
    tree = tmp_path / TESTBED.name
    shutil.copytree(TESTBED, tree, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    # One of a kind: no cache has it. It takes long enough that the second process comes while the first one builds.
    unique = uuid.uuid4()
    (tree / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}} AS slurm\nRUN echo {unique} >/unique && sleep 3\n")
    command = [str(tree / "testbed"), "build", "--slurm", NEWEST]
    builds = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [build.communicate() for build in builds]
    try:
        assert [build.returncode for build in builds] == [0, 0], said
        names = {out.strip() for out, _ in said}
        assert len(names) == 1
        assert sorted(err.count("built") for _, err in said) == [0, 1]
        # What is there is not built again, and another source has another name.
        third = subprocess.run(command, check=True, capture_output=True, text=True)
        assert (third.stdout.strip(), third.stderr) == (*names, "")
        assert names != {image_of(NEWEST)}
    finally:
        for name in {out.strip() for out, _ in said} - {""}:
            subprocess.run(["docker", "rmi", name], check=False, capture_output=True)


KEY = "sha256sum </etc/munge/munge.key"


@on_one_release
def test_every_cluster_has_its_own_munge_key_on_all_its_hosts(cluster: Cluster):
    keys = {cluster.sh(KEY, service=service).stdout for service in ("ctl", "dbd", "login", *NODES)}
    assert len(keys) == 1
    # A container of the same image that belongs to no cluster has made another one.
    start = ["docker", "run", "-d", image_of(cluster.release), "login"]
    alone = subprocess.run(start, check=True, capture_output=True, text=True).stdout.strip()
    look = ["docker", "exec", alone, "bash", "-c", f"test -s /etc/munge/munge.key && {KEY}"]
    try:
        wait_until(lambda: subprocess.run(look, check=False, capture_output=True).returncode == 0, "it has a key")
        assert subprocess.run(look, check=True, capture_output=True, text=True).stdout not in keys
    finally:
        subprocess.run(["docker", "rm", "-f", "-v", alone], check=False, capture_output=True)


@pytest.mark.parametrize("target", ["slurm", "forecast", "systemd", "prometheus"])
def test_no_image_has_a_munge_key(clusters: Clusters, target: str):
    for release in WANTED if target == "slurm" else ["24.11"]:
        look = ["docker", "run", "--rm", "--entrypoint", "find", image_of(release, target), "/", "-xdev"]
        found = subprocess.run([*look, "-name", "munge.key*"], check=True, capture_output=True, text=True)
        assert found.stdout == ""


def test_the_demonstration_prints_addresses_that_answer_and_is_taken_down_whole():
    name = f"demo-{uuid.uuid4().hex[:8]}"
    command = [str(TESTBED / "testbed"), "demo", "--project", name, "--jobs", "20"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        metrics, graphs = (urllib.parse.urlsplit(found) for found in re.findall(r"http://\S+", said))

        def read(netloc: str, path: str) -> bytes:
            with closing(HTTPConnection(netloc)) as connection:
                connection.request("GET", path)
                answer = connection.getresponse()
                assert answer.status == 200, path
                return answer.read()

        def found(expression: str) -> list[object]:
            asked = urllib.parse.urlencode({"query": expression})
            found: list[object] = json.loads(read(graphs.netloc, f"/api/v1/query?{asked}"))["data"]["result"]
            return found

        assert b"rltuned_build_info" in read(metrics.netloc, metrics.path)
        assert b"graph" in read(graphs.netloc, f"{graphs.path}?{graphs.query}")
        panels = [values[0] for key, values in urllib.parse.parse_qs(graphs.query).items() if key.endswith(".expr")]
        wait_until(lambda: len(found(panels[0])) == 3, "Prometheus has scraped rltuned")
        for panel in panels:
            found(panel)
        (undo,) = re.findall(r"undo everything +(.+)", said)
        undone = subprocess.run(["bash", "-c", undo], check=False, capture_output=True, text=True, cwd=ROOT)
        assert (undone.returncode, "jobs restored" in undone.stdout) == (0, True), undone
    finally:
        subprocess.run([str(TESTBED / "testbed"), "down", "--project", name], check=True, capture_output=True)
    left = ["docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={name}"]
    assert subprocess.run(left, check=True, capture_output=True, text=True).stdout == ""


def test_each_release_is_what_it_says_with_five_idle_nodes_their_gpus_and_a_rate_limiter(cluster: Cluster):
    assert cluster.run(["scontrol", "-V"]).stdout.split()[1].startswith(cluster.release)
    listed = cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T %G"]).stdout.split("\n")
    assert listed[:-1] == [
        "k80-1 idle gpu:k80:2",
        "k80-2 idle gpu:k80:2",
        "m40-1 idle gpu:m40:1",
        "p100-1 idle gpu:p100:4",
        "p100-2 idle gpu:p100:4",
    ]
    configured = cluster.run(["scontrol", "show", "config"]).stdout
    assert ("rl_enable" in configured) == (cluster.release != "22.05")  # which has none
    job = cluster.submit(
        "alice", "--gres=gpu:p100:2", "-w", "p100-1", "-o", "/tmp/devices-%j", command="echo $CUDA_VISIBLE_DEVICES"
    )
    seen = f"cat /tmp/devices-{job}"
    wait_until(
        lambda: cluster.sh(seen, service="p100-1", check=False).stdout.strip() == "0,1", "the job sees two devices"
    )


@on_one_release
def test_the_rate_limiter_holds_up_the_operator_but_not_root(cluster: Cluster):
    job = cluster.submit("alice", "--hold")
    # The bucket holds 30; then two a second. The limiter's own log line is the proof, not a stopwatch.
    limited = "grep -c 'RPC rate limit exceeded by uid 2010' /var/log/slurm/slurmctld.log || true"
    before = int(cluster.sh(limited).stdout)
    cluster.run(["scontrol"], input=f"update JobId={job} Comment=x\n" * 40, user="root")
    assert int(cluster.sh(limited).stdout) == before
    cluster.run(["scontrol"], input=f"update JobId={job} Comment=x\n" * 40, user=OPERATOR)
    assert int(cluster.sh(limited).stdout) > before


@on_one_release
def test_jobs_of_every_partition_user_and_qos_are_accepted(cluster: Cluster):
    cluster.fill()
    cluster.workload(jobs=80, seed=7)
    rows = cluster.sh("squeue -h -t PD -o '%P %u %q'").stdout.split("\n")[:-1]
    partitions, users, qos = (set(column) for column in zip(*(row.split() for row in rows), strict=True))
    assert partitions == {"gpu", "share", "force", "excl", "urgent", "k80", "endless"}
    assert users == {"alice", "bob", "carol", "dave"}
    assert qos == {"low", "normal", "high"}


@on_one_release
def test_slurmctld_can_be_stopped_frozen_and_restarted_and_keeps_its_jobs(cluster: Cluster):
    cluster.fill()
    job = cluster.submit("alice")
    cluster.slurmctld.freeze()
    assert cluster.slurmctld.running()
    assert not cluster.slurmctld.answers()
    cluster.slurmctld.thaw()
    cluster.slurmctld.stop()
    assert not cluster.slurmctld.answers()
    cluster.slurmctld.start()
    assert job in cluster.priorities()


@on_one_release
def test_the_network_between_a_client_and_slurmctld_can_be_cut(cluster: Cluster):
    ask = ["squeue", "-h"]
    for service in ("ctl", "login"):
        cluster.block_network(service)
        assert cluster.run(["timeout", "3", *ask], service=service, check=False).returncode != 0
        cluster.unblock_network()
        cluster.run(ask, service=service)


@on_one_release
def test_a_scheduler_parameter_can_be_taken_out(cluster: Cluster):
    with cluster.conf(cluster.scheduler_parameters(remove=["bf_continue"])):
        assert "bf_continue" not in cluster.run(["scontrol", "show", "config"]).stdout
    assert "bf_continue" in cluster.run(["scontrol", "show", "config"]).stdout


@on_one_release
def test_reset_leaves_an_empty_queue_and_idle_nodes(cluster: Cluster):
    cluster.workload(jobs=40, seed=3)
    cluster.drain("m40-1")
    words = ["StartTime=now", "Duration=60", "Users=alice", "Nodes=k80-1", "Flags=ignore_jobs"]
    cluster.run(["scontrol", "create", "reservation", *words])
    cluster.run(["scontrol", "update", "PartitionName=share", "State=DOWN"])
    cluster.reset()
    assert cluster.states() == {}
    assert "No reservations" in cluster.run(["scontrol", "show", "reservation"]).stdout
    rows = cluster.run(["sinfo", "-h", "-o", "%R %a %T", "-S", "R"]).stdout.split("\n")[:-1]
    assert {row.split()[1] for row in rows} == {"up"}
    assert {row.split()[2] for row in rows} == {"idle"}


def test_a_slurmctld_that_was_started_at_rest_schedules_again_after_a_reset(clusters: Clusters):
    """22.05's backfill sleeps for the interval that it was started with, whatever is reconfigured meanwhile; the others
    start anew."""
    cluster = clusters.get("22.05")
    cluster.reset()
    with queue_at_rest(cluster):
        cluster.slurmctld.restart()
    cluster.reset()
    cluster.fill()
    cluster.submit("alice")  # no job, no pass
    wait_until(lambda: cluster.backfill_passes() > 1, "backfill makes its passes")


@on_one_release
def test_a_program_in_the_background_can_be_watched_and_killed(cluster: Cluster):
    job = cluster.background(["bash", "-c", "echo begun; sleep 100"])
    wait_until(lambda: "begun" in job.output(), "it writes")
    assert job.returncode() is None
    job.kill("KILL")
    assert job.wait() == 137

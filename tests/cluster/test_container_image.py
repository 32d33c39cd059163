"""deploy/Dockerfile: the daemon's container against a real Slurm 24.11, run as deploy/README.md says."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.conftest import Clusters
from cluster.support import OPERATOR, Cluster, image_of, wait_until

# The hardening that the README recommends; its network is the cluster's instead of the host's.
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")

# Slurm's RPC limiter gives rltuned 1.5 requests a second: in ten seconds more than a cycle needs to read.
ACTIVE = """\
[cycle]
stage = "active"
interval = 10.0
[policy]
name = "sjf"
[estimates]
# Other tests have left finished jobs in the accounting, which would say the same of all eight.
source = "limit"
"""


def docker(*args: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *args], check=False, capture_output=True, text=True, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(args)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


@pytest.fixture(scope="module")
def trixie(clusters: Clusters) -> Cluster:
    return clusters.get("24.11")


@pytest.fixture(scope="module")
def image(clusters: Clusters) -> str:
    """The image, built from what .dockerignore lets through; all but the wheel comes from the cache."""
    return image_of("24.11", "daemon")


@pytest.fixture
def host(trixie: Cluster) -> Iterator[str]:
    """A container that stands for the host: its munged and its /etc/slurm are what the daemon's container mounts."""
    trixie.reset()
    mounted = [part for path in ("/run/munge", "/etc/slurm", "/etc/rltuned") for part in ("-v", path)]
    entry = ["--entrypoint", "sleep", image_of("24.11"), "infinity"]
    started = docker("run", "-d", "--network", f"{trixie.project}_default", *mounted, *entry).stdout.strip()
    try:
        # The host joins the cluster as hosts do: with a copy of its key. Mounted here, it would be mounted in the
        # daemon's container.
        encoded = trixie.sh("base64 /etc/munge/munge.key").stdout
        join = (
            "base64 -d >/etc/munge/munge.key && chmod 400 /etc/munge/munge.key && "
            "chown munge: /etc/munge/munge.key /run/munge"
        )
        docker("exec", "-i", started, "sh", "-c", f"{join} && runuser -u munge -- munged", input=encoded)
        for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
            text = trixie.read_file(f"/etc/slurm/{name}")
            docker("exec", "-i", started, "sh", "-c", f"cat >/etc/slurm/{name}", input=text)
        yield started
    finally:
        docker("rm", "-f", "-v", started, check=False)
        trixie.reset()


def configure(host: str, text: str) -> None:
    docker("exec", "-i", host, "sh", "-c", "cat >/etc/rltuned/config.toml", input=text)


def options(cluster: Cluster, host: str) -> list[str]:
    return ["--network", f"{cluster.project}_default", "--volumes-from", f"{host}:ro", *HARDENED]


def log_of(container: str) -> str:
    found = docker("logs", container)
    return found.stdout + found.stderr


def test_the_image_runs_rltuned_as_an_unprivileged_user(trixie: Cluster, image: str):
    version = docker("run", "--rm", *HARDENED, image, "--version").stdout
    assert version.startswith("rltuned, version ")
    assert "ok" in docker("run", "--rm", *HARDENED, image, "model", "verify").stdout
    who = docker("run", "--rm", "--entrypoint", "id", image).stdout
    assert who.startswith(f"uid={trixie.sh(f'id -u {OPERATOR}').stdout.strip()}({OPERATOR})")


def test_the_image_holds_no_key_and_nothing_of_the_building_network(image: str):
    script = "test -x /usr/sbin/munged && ls -d /etc/munge/munge.key /tmp/extra-ca.crt /opt/rltuned/venv/bin/pip 2>&1"
    looked = docker("run", "--rm", "--user", "0", "--entrypoint", "sh", image, "-c", script, check=False)
    assert looked.stdout.count("No such file") == 3
    assert looked.stdout.count("\n") == 3


def test_doctor_in_the_container_finds_nothing_wrong_with_the_cluster(trixie: Cluster, image: str, host: str):
    # slurmctld's own count is half a minute old: an empty queue would not be believed just after another test's.
    trixie.submit("alice", "-t5")
    done = docker("run", "--rm", *options(trixie, host), image, "doctor", "--json", check=False)
    findings = {item["subject"]: item for item in json.loads(done.stdout)}
    assert [item for item in findings.values() if item["severity"] == "error"] == []
    assert done.returncode == 0
    assert findings["privilege"]["cause"] == f"{OPERATOR} is operator"
    assert "24.11" in findings["release"]["cause"]


def test_a_container_that_stops_gives_the_queue_back(trixie: Cluster, image: str, host: str):
    jobs = trixie.queue_longest_first()
    configure(host, ACTIVE)
    daemon = docker("run", "-d", *options(trixie, host), image).stdout.strip()
    try:
        steered = "jobs carry site factors"
        wait_until(lambda: sum(map(bool, trixie.site_factors().values())) >= 2, steered)
        # Before its first cycle is done there is no record to explain from, and Slurm's RPC limiter is busy with the
        # daemon.
        wait_until(lambda: "cycle.done" in log_of(daemon), "the first cycle is done")
        assert docker("exec", daemon, "rltuned", "explain", str(jobs[-1])).stdout
        docker("stop", "-t", "120", daemon)
        state = json.loads(docker("inspect", daemon).stdout)[0]["State"]
        log = docker("logs", daemon)
        assert state["ExitCode"] == 0, log.stdout + log.stderr
        assert {trixie.site_factors()[job] for job in jobs} == {0}, log.stdout + log.stderr
    finally:
        print(log_of(daemon)[-8000:])  # noqa: T201 - pytest shows it when the test fails
        docker("rm", "-f", "-v", daemon, check=False)


def test_a_container_forecasts_start_times(trixie: Cluster, image: str, host: str):
    trixie.queue_longest_first()
    # Time enough for a cycle on a busy machine: no question is put to Slurm while another one waits for its answer.
    configure(host, '[cycle]\nstage = "shadow"\ninterval = 10.0\n')
    daemon = docker("run", "-d", *options(trixie, host), image).stdout.strip()
    try:
        wait_until(lambda: "forecast.ready" in log_of(daemon), "the worker has compiled")

        def forecast() -> bool:
            shown = docker("exec", daemon, "cat", "/var/lib/rltuned/decision.json", check=False).stdout
            return bool(shown) and json.loads(shown)["starts"] is not None

        wait_until(forecast, "a cycle has forecast start times")
        findings = json.loads(docker("exec", daemon, "rltuned", "doctor", "--json", check=False).stdout)
        assert [item for item in findings if item["subject"] == "start times"] == [], findings
    finally:
        print(trixie.sh("sinfo -N -l; squeue -l", check=False).stdout)  # noqa: T201 - pytest shows it when the test fails
        print(log_of(daemon)[-8000:])  # noqa: T201 - as above
        docker("rm", "-f", "-v", daemon, check=False)


def test_a_container_without_a_good_configuration_says_so_and_ends(trixie: Cluster, image: str, host: str):
    configure(host, "[cycle]\nintervall = 1\n")
    done = docker("run", "--rm", *options(trixie, host), image, check=False)
    assert done.returncode == 3
    assert "config.toml:2: unknown key 'cycle.intervall'" in done.stderr

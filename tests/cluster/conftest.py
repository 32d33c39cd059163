"""Fixtures over docker-slurm-testbed: `cluster` is a real Slurm of each release, clean for each test.

Environment:
    RLTUNED_TEST_SLURM     releases to test, e.g. `24.11` or `22.05,26.05`; default: all three
    RLTUNED_TEST_PROJECT   keep the clusters under this project name after the session, and use them
                           again in the next: much faster while writing tests
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest
from cluster.support import (
    NODES_OF,
    OLD_AND_NEW,
    PATIENCE,
    POWER_OFF,
    RELEASES,
    ROOT,
    TESTBED,
    WANTED,
    Cluster,
    image_of,
    session_name,
)
from pytest_docker.plugin import get_docker_services

LONGEST = (
    "test_on_a_site_with_everything",
    "test_every_command_of_the_first_pages",
    "test_backfill_starts_nothing_while",
    "test_an_interval_is_said",
    "test_a_daemon_that_steers_by",
    "test_whatever_happens_to_a_busy",
    "test_200_jobs_wait",
    "test_the_debian_package_from",
    "test_twenty_of_them",
    "test_a_flood_of_an_account",
    "test_a_window_of_a_trace",
    "test_ten_thousand_jobs",
    "test_a_slurmctld_that_was_started_at_rest",
    "test_slurmctld_frozen_or_restarted",
    "test_a_job_gives_a_node",
    "test_the_weekly_report_is",
    "test_of_two_controllers",
    "test_slurmctld_stopped_killed",
    "test_the_unit_with_its_drop_in",
    "test_a_job_that_may_not",
    "test_the_ansible_role",
)
"""Tests that take a minute and more, as their names begin, the longest first (`--durations`)."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks the tests of real clusters, and puts those of a release one after the other, else in the order that they
    have.

    Workers get neighbouring tests: most then need clusters of one release, not of all three. Each begins with the
    longest of its tests, because one that is begun at the end is what all workers wait for.
    """
    here = ROOT / "tests" / "cluster"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            # A test may start clusters and wait several times on a busy machine; this only ends one that hangs.
            item.add_marker(pytest.mark.timeout(4 * PATIENCE))
    yield  # `-m` takes out the others

    def place(item: pytest.Item) -> tuple[bool, str]:
        if here not in item.path.parents:
            return False, ""
        given = item.callspec.params if hasattr(item, "callspec") else {}
        default = getattr(item.module, "RELEASE", "24.11")
        release = next((value for value in given.values() if value in RELEASES), default)
        return True, release

    items.sort(key=place)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    borders = [len(items) * at // workers for at in range(workers + 1)]
    for first, last in pairwise(borders):
        items[first:last] = sorted(items[first:last], key=_turn)


def _turn(item: pytest.Item) -> int:
    return next((at for at, name in enumerate(LONGEST) if item.name.startswith(name)), len(LONGEST))


class Clusters:
    """The clusters of a session, each brought up when the first test asks for its release.

    Not a parametrised session fixture: pytest would take one down whenever the next test, in the
    random order, wants another release.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[tuple[str, str], Cluster] = {}
        kept = os.environ.get("RLTUNED_TEST_PROJECT")
        self._prefix = kept or f"{session_name()}{os.getpid()}"
        self._cleanup = [] if kept else ["down -v --remove-orphans -t 1"]

    def get(self, release: str, profile: str = "paper") -> Cluster:
        if (release, profile) not in self._running:
            project = f"{self._prefix}-{release.replace('.', '')}" + ("" if profile == "paper" else f"-{profile}")
            compose = "compose.yaml" if profile == "paper" else f"compose.{profile}.yaml"
            image = image_of(release)
            services = self._stack.enter_context(
                get_docker_services(
                    docker_compose_command=f"env RLTUNED_TESTBED_IMAGE={image} {TESTBED}/compose.sh",
                    docker_compose_file=str(TESTBED / compose),
                    docker_compose_project_name=project,
                    docker_setup=["up -d"],
                    docker_cleanup=self._cleanup,
                )
            )
            cluster = Cluster(release, project, NODES_OF[profile])
            self._stack.callback(cluster.close)

            def all_nodes_known() -> bool:
                listed = cluster.sh("sinfo -h -N -o '%N %T'", check=False).stdout
                known = {line.split()[0] for line in listed.splitlines()}
                return known >= set(cluster.nodes) and "*" not in listed and "unk" not in listed

            # A kept cluster may have been left stopped or frozen by an interrupted session.
            if not cluster.slurmctld.running():
                services.wait_until_responsive(cluster.slurmctld.running, timeout=PATIENCE, pause=0.5)
            cluster.sh("pkill -CONT -x 'slurmctld(-wlm)?' || true")
            services.wait_until_responsive(all_nodes_known, timeout=PATIENCE, pause=0.5)
            self._running[release, profile] = cluster
        return self._running[release, profile]


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    engine = subprocess.run([str(TESTBED / "engine.sh")], check=False, capture_output=True, text=True)
    if engine.returncode != 0:
        pytest.skip(f"no container engine can be had here: {engine.stderr.strip()}")
    with ExitStack() as stack:
        yield Clusters(stack)


@pytest.fixture(params=WANTED)
def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[Cluster]:
    """A real cluster of one release with an empty queue, idle nodes and the testbed's own slurm.conf."""
    running = clusters.get(request.param)
    running.reset()
    yield running
    # A test that froze or cut something must not leave it so for a person looking at the cluster.
    running.unblock_network()
    running.sh("pkill -CONT -x 'slurmctld(-wlm)?' || true")


@pytest.fixture(params=OLD_AND_NEW)  # what the nodes are like on each release is recorded (tests/recorded, …-mixed.txt)
def mixed_cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[Cluster]:
    """Likewise of the testbed's profile "mixed": a node of each kind that real sites have."""
    running = clusters.get(request.param, "mixed")
    running.sh(f"rm -f {POWER_OFF}", service="mixed")
    running.reset()
    yield running
    running.sh(f"rm -f {POWER_OFF}", service="mixed")


@pytest.fixture(params=OLD_AND_NEW)
def pair(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[Cluster]:
    """Likewise of the profile "pair": a backup controller, `ctl2`. `ctl` acts when a test begins."""
    running = clusters.get(request.param, "pair")
    running.sh("pgrep -x 'slurmctld(-wlm)?' >/dev/null || slurmctld -i", service="ctl2")
    running.reset()
    running.sh("pkill -KILL -u rltuned; true", service="ctl2")
    yield running
    running.sh("pkill -KILL -u rltuned; true", service="ctl2")


@pytest.fixture
def prometheus_image() -> str:
    """Name of an image with Debian's prometheus and promtool; see also Cluster.start_prometheus."""
    return image_of("24.11", "prometheus")

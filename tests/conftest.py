"""What every test shares: Hypothesis without a clock, because the machines are shared and noisy, and a quick
directory."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("rltuned", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rltuned")

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory that is quick to write to where there is one: the journal waits for the disk in every cycle."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
        yield Path(directory)


def _starts_clusters(config: pytest.Config) -> bool:
    """Whether this process begins a session in which tests of a real Slurm are asked for, by path and by marker."""
    here = Path(__file__).parent / "cluster"
    paths = [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]
    asked = any(path == here or here in path.parents or path in here.parents for path in paths)
    left_out = "not cluster" in config.option.markexpr or config.option.collectonly
    return asked and not left_out and not hasattr(config, "workerinput")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Makes the images that all tests of a real Slurm need, before there are workers that would each wait for them.

    What is amiss here is said by the first test that needs it.
    """
    if not _starts_clusters(session.config):
        return
    from cluster.support import SESSION, TESTBED, WANTED

    os.environ[SESSION] = str(os.getpid())
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        if subprocess.run([str(TESTBED / "engine.sh")], check=False).returncode == 0:
            build = [str(TESTBED / "testbed"), "build", "--slurm", *WANTED]
            subprocess.run(build, check=False, stdout=subprocess.DEVNULL)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the clusters that workers left behind: those of an interrupted session are ended without a farewell."""
    if not _starts_clusters(config):
        return
    from cluster.support import run_testbed, session_name

    listed = ["docker", "volume", "ls", "--format", "{{.Name}}", "--filter", f"name={session_name()}"]
    found = subprocess.run(listed, check=False, capture_output=True, text=True) if shutil.which("docker") else None
    for volume in found.stdout.split() if found else []:
        if volume.startswith(session_name()):
            run_testbed("down", "--project", volume.rpartition("_")[0])

"""What every test shares: Hypothesis without a clock, because the machines are shared and noisy, and a quick directory."""

import os
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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Makes the images that all tests of a real Slurm need, before there are workers that would each wait for them.

    Only where such tests are asked for, by path and by marker. What is amiss here is said by the first test that needs it.
    """
    config = session.config
    here = Path(__file__).parent / "cluster"
    paths = [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]
    asked = any(path == here or here in path.parents or path in here.parents for path in paths)
    if (
        hasattr(config, "workerinput")
        or not asked
        or "not cluster" in config.option.markexpr
        or config.option.collectonly
    ):
        return
    from cluster.support import TESTBED, WANTED

    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        if subprocess.run([str(TESTBED / "engine.sh")], check=False).returncode == 0:
            build = [str(TESTBED / "testbed"), "build", "--slurm", *WANTED]
            subprocess.run(build, check=False, stdout=subprocess.DEVNULL)

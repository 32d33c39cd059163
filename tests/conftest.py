"""What every test shares: Hypothesis without a clock, because the machines are shared and noisy, and a quick directory."""

import os
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

"""What the tests without a real Slurm share."""

import codecs
import time

import pytest

# Loaded when first used. Tests that go on as another user in a child may not be able to read this Python by then.
time.strptime("2026", "%Y")
for _name in ("ascii", "utf-8-sig"):
    codecs.lookup(_name)


@pytest.fixture(autouse=True)
def no_slurmctld_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in the process of the tests do not lower its priority, whatever clusters run on this machine."""
    monkeypatch.setattr("rltuned.cli.common.slurmctld_runs", lambda: False)

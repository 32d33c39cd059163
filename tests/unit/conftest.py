"""What the tests without a real Slurm share."""

import pytest


@pytest.fixture(autouse=True)
def no_slurmctld_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in the process of the tests do not lower its priority, whatever clusters run on this machine."""
    monkeypatch.setattr("rltuned.daemon.host.slurmctld_runs", lambda: False)

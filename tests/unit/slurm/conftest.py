"""Fixtures of the tests of rltuned.slurm."""

import pytest
from unit.slurm.standin import StandIn


@pytest.fixture
def slurm(tmp_path):
    return StandIn(tmp_path / "slurm")

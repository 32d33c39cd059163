"""Fixtures of the daemon's tests."""

import pytest
from unit.controller.support import Bench

from rltuned.controller.shown.checks import examine


@pytest.fixture
def bench(tmp_path):
    """Four jobs that wait; the daemon raises the last ones."""
    return Bench.make(tmp_path, [1000, 900, 800, 700])


@pytest.fixture
def doctor(bench):
    """What ``rltuned doctor`` finds, by subject."""

    def doctor(reader=None, **sections):
        found = examine(reader or bench.slurm.reader(), bench.config(**sections), bench.clock)
        return {finding.subject: finding for finding in found}

    return doctor

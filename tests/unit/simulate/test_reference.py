"""The compiled engine and the plain reference tell the same story of every job."""

import os
from collections import Counter

import numpy as np
import pytest
from unit.simulate.instances import Instance, compiled, random_instance

from rltuned.simulate.reference import reference
from rltuned.simulate.values import Backfill, JobFate, SimulationResult

INSTANCES = int(os.environ.get("RLTUNED_TEST_SIMULATIONS", "200"))
SHARES = 4


def nodes_of(result: SimulationResult) -> list[list[int]]:
    return [sorted(map(int, part)) for part in np.split(result.node_idx, result.node_ptr[1:-1])]


def assert_same(instance: Instance, case: str) -> SimulationResult:
    expected, found = instance.run(reference), instance.run(compiled)
    np.testing.assert_array_equal(found.start, expected.start, err_msg=f"{case}: starts")
    np.testing.assert_array_equal(found.end, expected.end, err_msg=f"{case}: ends")
    np.testing.assert_array_equal(found.fate, expected.fate, err_msg=f"{case}: fates")
    np.testing.assert_array_equal(found.backfilled, expected.backfilled, err_msg=f"{case}: backfilled")
    assert nodes_of(found) == nodes_of(expected), f"{case}: nodes"
    assert found.rejected == expected.rejected, case
    assert found.passes == expected.passes, case
    return found


@pytest.mark.parametrize("share", range(SHARES))
def test_engine_and_reference_agree_job_by_job(share):
    seen: Counter[str] = Counter()
    for seed in range(share, INSTANCES, SHARES):
        instance = random_instance(seed)
        result = assert_same(instance, f"seed {seed}")
        seen["backfilled"] += int(result.backfilled.sum())
        seen["timeout"] += int((result.fate == JobFate.TIMEOUT).sum())
        seen["several nodes"] += int((np.diff(result.node_ptr) > 1).sum())
        seen[instance.settings.backfill] += 1
        seen["shared nodes"] += sum(len(part.nodes) for part in instance.shape.partitions) > len(instance.shape.nodes)
        seen["isolated"] += bool(instance.isolated)
        seen["contention"] += instance.settings.contention > 0
    # Agreement on instances in which nothing happens would be no agreement.
    wanted = ["backfilled", "timeout", "several nodes", *Backfill, "shared nodes", "isolated", "contention"]
    assert all(seen[what] for what in wanted), seen

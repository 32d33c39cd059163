"""The compiled engine and the plain reference tell the same story of every job."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracles.reference import reference
from unit.simulate.instances import (
    Asked,
    Average,
    Instance,
    compiled,
    floating,
    left_open,
    random_instance,
)

from rltuned.core.scheduler import WHOLE_QUEUE
from rltuned.simulate.values import Backfill, JobFate, SimulationResult

INSTANCES = int(os.environ.get("RLTUNED_TEST_SIMULATIONS", "120"))
SHARES = 4


def nodes_of(result: SimulationResult) -> list[list[int]]:
    return [sorted(map(int, part)) for part in np.split(result.node_idx, result.node_ptr[1:-1])]


def assert_same(instance: Instance, case: str, ranker: Any = None, predictors: Any = (None, None)) -> SimulationResult:
    expected = instance.run(reference, ranker, predictors[0])
    found = instance.run(compiled, ranker, predictors[1])
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
        instance = floating(random_instance(seed), seed)
        result = assert_same(instance, f"seed {seed}")
        everything = replace(instance, settings=replace(instance.settings, default_queue_depth=WHOLE_QUEUE))
        seen["queue left untried"] += not np.array_equal(everything.run(compiled).start, result.start, equal_nan=True)
        freely = left_open(instance, seed)
        result_of_open = assert_same(freely, f"seed {seed}, left open")
        nodes, asked = np.diff(result_of_open.node_ptr), np.maximum(freely.jobs.nodes, 1)
        seen["range taken"] += int(((freely.jobs.most_nodes > 0) & (nodes > asked)).sum())
        seen["backfilled"] += int(result.backfilled.sum())
        seen["timeout"] += int((result.fate == JobFate.TIMEOUT).sum())
        seen["several nodes"] += int((np.diff(result.node_ptr) > 1).sum())
        seen[instance.settings.backfill] += 1
        seen["shared nodes"] += sum(len(part.nodes) for part in instance.shape.partitions) > len(instance.shape.nodes)
        seen["isolated"] += bool(instance.isolated)
    # Agreement on instances in which nothing happens would be no agreement.
    wanted = ["backfilled", "timeout", "several nodes", *Backfill, "shared nodes", "isolated"]
    wanted += ["range taken", "queue left untried"]
    assert all(seen[what] for what in wanted), seen


def test_they_agree_on_a_ranking_that_is_asked_for_at_each_refresh_or_at_each_submission():
    for seed in range(INSTANCES // 5):
        instance = random_instance(seed)
        assert_same(instance, f"seed {seed}", Asked(instance.rule, at_once=bool(seed % 2)))


def test_they_tell_a_predictor_the_same_and_rank_by_what_it_says():
    told = 0
    for seed in range(INSTANCES // 10):
        instance = random_instance(seed)
        predictors = (Average(), Average())
        assert_same(instance, f"seed {seed}", Asked("saf", at_once=False), predictors)
        assert predictors[0].told == predictors[1].told
        assert predictors[0].asked == predictors[1].asked
        told += len(predictors[0].told)
    assert told

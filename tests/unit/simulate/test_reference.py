"""The compiled engine and the plain reference tell the same story of every job."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit.simulate.instances import (
    Asked,
    Average,
    Instance,
    cluster,
    compiled,
    given,
    jobs_of,
    random_instance,
    random_mixed_instance,
)

from rltuned.policy.heuristics import by_name
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.reference import reference
from rltuned.simulate.values import Backfill, JobFate, SimulationResult, SimulationSettings
from rltuned.workload.speeds import Speeds

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


@pytest.mark.parametrize("types", [("p100", "v100", "p100"), ("k80", "p100", "v100")])
def test_they_agree_where_the_type_and_the_spread_of_a_job_decide_how_fast_it_runs(types):
    seen: Counter[str] = Counter()
    for seed in range(INSTANCES // 2):
        instance = random_mixed_instance(seed, types)
        result = assert_same(instance, f"seed {seed}")
        alike = replace(instance, speeds=None).run(compiled)
        seen["other ends"] += not np.array_equal(result.end, alike.end, equal_nan=True)
        seen["several types"] += len(instance.shape.nodes.gpu_types) > 1
        seen["contention"] += instance.settings.contention > 0
        seen["timeout"] += int((result.fate == JobFate.TIMEOUT).sum())
    assert all(seen[what] for what in ("other ends", "several types", "contention", "timeout")), seen


@pytest.mark.parametrize("simulator", [compiled, reference])
def test_a_job_runs_as_fast_as_the_slowest_of_its_gpus_and_slower_when_spread(simulator):
    # 100 s of work. v100: 4 times as fast, over two nodes half of that. The third job fits on one node and is spread.
    shape = cluster([2, 2, 2, 2], types=["k80", "k80", "v100", "v100"])
    jobs = jobs_of([0.0] * 4, [100.0] * 4, [2, 3, 2, 3], gpu_type=["v100", "k80", "k80", "v100"])
    rate = np.repeat(np.array([[[1.0, 4.0], [0.5, 2.0]]]), 4, axis=0)
    speeds = Speeds(("k80", "v100"), rate)
    settings = SimulationSettings(launch=1.0)
    result = simulator(shape, jobs, given([500.0] * 4), RuleRanker(by_name("fifo")), settings, (), None, speeds)
    took = result.end - result.start
    # The launch takes as long everywhere. 3 GPUs need two nodes of 2: these are the fewest.
    np.testing.assert_allclose(took, [26.0, 101.0, 101.0, 26.0])
    apart = cluster([1, 1, 2], types=["k80", "v100", "v100"])
    jobs = jobs_of([0.0, 0.0], [100.0, 100.0], [1, 3], gpu_type=["v100", ""])
    result = simulator(
        apart, jobs, given([500.0] * 2), RuleRanker(by_name("fifo")), SimulationSettings(), (), None,
        Speeds(("k80", "v100"), rate[:2]),
    )  # fmt: skip
    # Best fit puts the first job on node 1; the other one waits for its v100s, or takes the k80 and runs as on two.
    assert [sorted(part) for part in nodes_of(result)] == [[1], [0, 2]]
    np.testing.assert_allclose(result.end - result.start, [25.0, 100.0])


def test_the_limit_of_a_job_is_the_same_on_each_type():
    shape = cluster([1], types=["k80"])
    jobs = jobs_of([0.0], [100.0], [1])
    speeds = Speeds(("k80",), np.full((1, 2, 1), 0.5))
    found = [
        simulator(shape, jobs, given([150.0]), RuleRanker(by_name("fifo")), SimulationSettings(), (), None, speeds)
        for simulator in (compiled, reference)
    ]
    assert [(one.end[0], one.fate[0]) for one in found] == [(150.0, JobFate.TIMEOUT)] * 2

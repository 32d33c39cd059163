"""sched/backfill on long queues: every shortcut of the compiled pass against the plain reference, which has none."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracles import reference
from unit.simulate.instances import Instance, floating, left_open, random_cluster
from unit.simulate.test_reference import assert_same

from rltuned.simulate.values import Backfill, Estimates, Fit, SimulationSettings
from rltuned.simulate.workload.jobs import Source, workload

INSTANCES = 2 * int(os.environ.get("RLTUNED_TEST_SIMULATIONS", "120"))
SHARES = 16
"""Tests that the instances are dealt out to, so that none takes minutes on a slow machine."""


def crowded(seed: int) -> Instance:
    """Nearly all jobs come at once, so that a pass plans most of them, one after the other on the same nodes.

    Limits are far from run times: what is planned is not what happens, and each pass plans anew. Few different limits
    make equal times; few kinds of jobs come often, as users submit them.
    """
    rng = np.random.default_rng([seed, 0x13])
    shape = random_cluster(rng)
    n, kinds = int(rng.integers(30, 80)), int(rng.choice([2, 3, 5, 40]))
    kind = rng.integers(0, kinds, n)
    submit = np.sort(np.where(rng.random(n) < 0.7, 0.0, np.round(rng.uniform(0.0, 900.0, n))))
    step = float(rng.choice([1.0, 30.0, 60.0, 0.25]))
    run = np.round(rng.exponential(240.0, n) / step) * step
    few = rng.choice([30.0, 60.0, 90.0, 300.0, 600.0, 1200.0, 3600.0], n)
    any_length = np.maximum(run, np.round(rng.exponential(500.0, n) / step) * step)
    limit = np.where(rng.random(n) < rng.choice([0.0, 0.5, 1.0]), few, any_length)
    limit = np.where(rng.random(n) < 0.03, np.inf, np.maximum(limit, 1.0))
    some = rng.random(3) < 0.4  # which columns the trace has
    names = [part.name for part in shape.partitions]
    jobs = workload(
        Source("at random"),
        submit,
        run,
        rng.choice([0, 1, 1, 1, 2, 2, 4, 4, 8, 12, 16], kinds)[kind],
        nodes=np.where(rng.random(kinds) < 0.25, rng.integers(1, 4, kinds), 0)[kind],
        cpus=rng.choice([0, 1, 4, 8], kinds)[kind] * some[0],
        mem=rng.choice([0.0, 20.0, 90.0], kinds)[kind] * some[1],
        tmp=rng.choice([0.0, 0.0, 40.0], kinds)[kind] * some[2],
        partition=[names[k] for k in rng.integers(0, len(names), kinds)[kind]],
        gpu_type=[("", "", "", "p100")[k] for k in rng.integers(0, 4, kinds)[kind]],
    )
    settings = SimulationSettings(
        backfill=Backfill.SLURM,
        fit=list(Fit)[rng.choice([0, 1, 2, 2, 2, 2])],
        bf_interval=float(rng.choice([60.0, 30.0, 7.0])),
        bf_max_job_test=int(rng.choice([500, 500, 20, 6])),
        bf_job_part_count_reserve=int(rng.spawn(1)[0].choice([0, 0, 1, 2])),
        bf_window=float(rng.choice([86_400.0, 3_600.0, 1_200.0, 300.0])),
        bf_resolution=float(rng.choice([60.0, 60.0, 1.0, 0.0, 2800.0])),
        bf_offset=float(rng.choice([0.0, 0.5])),
        kill_interval=float(rng.choice([0.0, 30.0])),
        turnover=float(rng.choice([0.0, 0.0, 4.0])),
    )
    isolated = tuple(int(row) for row in np.flatnonzero(rng.random(n) < rng.choice([0.0, 0.2])))
    rule = str(rng.choice(["fifo", "saf", "wfp3"]))
    return floating(Instance(shape, jobs, Estimates(limit, np.minimum(limit, 1e6)), rule, settings, isolated), seed)


@pytest.mark.parametrize("share", range(SHARES))
def test_what_a_pass_plans_does_not_depend_on_the_work_that_it_is_spared(share, monkeypatch):
    seen: Counter[str] = Counter()
    rounded = reference.reserved

    def counted(start: float, end: float, step: float) -> tuple[float, float]:
        seen["plans"] += 1
        return rounded(start, end, step)

    monkeypatch.setattr(reference, "reserved", counted)
    for seed in range(share, INSTANCES, SHARES):
        instance = crowded(seed)
        result = assert_same(instance, f"seed {seed}")
        assert_same(left_open(instance, seed), f"seed {seed}, left open")
        seen["passes"] += result.passes
        seen["several nodes"] += int((np.diff(result.node_ptr) > 1).sum())
        seen["isolated"] += bool(instance.isolated)
        seen["shared nodes"] += sum(len(part.nodes) for part in instance.shape.partitions) > len(instance.shape.nodes)
    assert all(seen[what] for what in ("several nodes", "isolated", "shared nodes")), seen
    assert seen["plans"] > seen["passes"], seen


def test_more_kinds_of_jobs_than_a_pass_remembers():
    instance = crowded(1)
    rng, n = np.random.default_rng(1), 120
    columns: dict[str, Any] = {"cpus": np.arange(n) % 41 % 8 + 1, "mem": np.arange(n) % 41 + 1.0}
    jobs = workload(Source("at random"), np.zeros(n), rng.integers(60, 600, n).astype(float), np.ones(n), **columns)
    limit = rng.choice([600.0, 1200.0, 3600.0], n)
    assert_same(replace(instance, jobs=jobs, estimates=Estimates(limit, limit), isolated=()), "many kinds")

"""Generated queue states are clusters that could be."""

import numpy as np
import pytest

from rltuned.cluster.tables import JobState
from rltuned.learn.queues import UNSEEN, QueueSettings, generate
from rltuned.observe import FEATURES, observe
from rltuned.workload.estimates import WRITTEN_LIMITS


@pytest.mark.parametrize("distribution", [QueueSettings(), UNSEEN], ids=["usual", "unseen"])
@pytest.mark.parametrize("seed", range(5))
def test_what_runs_is_what_the_nodes_have_allocated(seed, distribution):
    snapshot, estimates = generate(np.random.default_rng(seed), distribution)
    jobs, nodes = snapshot.jobs, snapshot.nodes
    assert len(estimates) == len(jobs)
    assert (nodes.gpus_alloc <= nodes.gpus).all()
    assert (nodes.cpus_alloc <= nodes.cpus).all()
    assert (nodes.mem_alloc <= nodes.mem).all()
    used = np.zeros(len(nodes))
    for row in jobs.running:
        held = jobs.nodes_of(row)
        used[held] += jobs.gpus[row] / len(held)
    assert np.array_equal(used, nodes.gpus_alloc.sum(axis=1))
    assert (jobs.state[jobs.pending] == JobState.PENDING).all()
    limits = jobs.time_limit[jobs.pending]
    assert np.isin(limits[np.isfinite(limits)], WRITTEN_LIMITS).all()


def test_a_seed_decides_everything():
    one, one_estimates = generate(np.random.default_rng(3), QueueSettings())
    other, other_estimates = generate(np.random.default_rng(3), QueueSettings())
    assert np.array_equal(one_estimates, other_estimates, equal_nan=True)
    assert np.array_equal(one.jobs.submit_time, other.jobs.submit_time)
    assert np.array_equal(one.nodes.gpus_alloc, other.nodes.gpus_alloc)


def test_the_states_are_varied():
    """Every feature takes many values, and the cases that policies go wrong on are all there."""
    rng = np.random.default_rng(0)
    snapshots = [generate(rng, QueueSettings()) for _ in range(80)]
    seen = [observe(snapshot, snapshot.jobs.pending, estimates) for snapshot, estimates in snapshots]
    features = np.concatenate([each.features for each in seen])
    for column, name in enumerate(FEATURES):
        values = features[:, column]
        assert values.std() > 0.01, name
    assert min(map(len, seen)) < 10
    assert max(map(len, seen)) > 150
    jobs = [snapshot.jobs.take(snapshot.jobs.pending) for snapshot, _ in snapshots]
    assert any((each.gpus == 0).any() for each in jobs)
    assert any((each.nodes > 1).any() for each in jobs)
    assert any(np.isinf(each.time_limit).any() for each in jobs)
    assert any(np.isnan(each.mem).any() for each in jobs)
    assert any(len(each) > 10 and len(set(each.gpu_type.codes)) > 2 for each in jobs)

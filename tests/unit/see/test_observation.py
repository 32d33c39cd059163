"""Window, sampling, padding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from unit.generated_queues import QueueSettings, generate
from unit.see.test_features import odd_snapshots, snapshot_of, two_nodes

from rltuned.core.plain_tables import job_table
from rltuned.core.pools import job_pools
from rltuned.decide.see.features import FEATURES
from rltuned.decide.see.observation import CRITIC_COLUMNS, OF_USER, STATE_COLUMNS, WINDOW, observe, select_window
from rltuned.decide.see.supply import pool_stats


def queue(n):
    rng = np.random.default_rng(5)
    return job_table(n, priority=rng.integers(1, 10**6, size=n), job_id=rng.permutation(n) + 1)


def generated(seed, **settings):
    return generate(np.random.default_rng(seed), QueueSettings(**settings))


def state(observation, name):
    return observation.state[: len(observation), STATE_COLUMNS.index(name)]


def test_a_queue_that_fits_is_seen_whole_in_slurms_order():
    jobs = queue(200)
    seen = select_window(jobs, np.arange(200), np.ones(200))
    assert sorted(seen) == list(range(200))
    assert (np.diff(jobs.priority[seen]) <= 0).all()


def test_of_a_long_queue_the_head_is_seen_and_the_smallest_jobs_behind_it():
    jobs = queue(10_000)
    place = np.empty(10_000, dtype=int)
    place[np.argsort(-jobs.priority, kind="stable")] = np.arange(10_000)
    area = np.random.default_rng(3).lognormal(8.0, 2.0, 10_000)
    chosen = select_window(jobs, np.arange(10_000), area)
    seen = place[chosen]
    assert len(set(seen)) == WINDOW
    assert seen[:192].tolist() == list(range(192))
    assert (np.diff(seen) > 0).all()
    behind = np.flatnonzero(place >= 192)
    assert set(chosen[192:]) == set(behind[np.argsort(area[behind])[:64]])


def test_small_jobs_that_one_user_parks_behind_the_head_take_few_places_from_others():
    jobs = queue(1000)
    place = np.argsort(np.argsort(-jobs.priority, kind="stable"))
    area = np.random.default_rng(3).lognormal(8.0, 2.0, 1000)
    parked = np.argsort(place)[-100:]
    area[parked] = 1.0
    users = np.arange(1000) % 50 + 1
    users[parked] = 0
    chosen = select_window(jobs, np.arange(1000), area, users=users)
    assert (len(set(chosen)), np.count_nonzero(users[chosen[192:]] == 0)) == (WINDOW, OF_USER)
    assert np.bincount(users[chosen[192:]]).max() <= OF_USER
    alone = select_window(jobs, np.arange(1000), area, users=np.zeros(1000, dtype=np.int32))
    assert alone.tolist() == select_window(jobs, np.arange(1000), area).tolist(), "who is alone has all places"


def test_which_jobs_are_seen_does_not_depend_on_their_order_in_the_table():
    jobs = queue(1000)
    jobs = replace(jobs, priority=jobs.priority // 100_000)  # many ties
    area = np.random.default_rng(3).integers(1, 50, 1000).astype(float)  # here, too
    shuffled = np.random.default_rng(1).permutation(1000)
    assert (
        shuffled[select_window(jobs, shuffled, area[shuffled])].tolist()
        == select_window(jobs, np.arange(1000), area).tolist()
    )


def test_the_state_is_256_by_8_and_the_critic_view_256_by_5_with_zero_padding():
    snapshot, estimates = generated(1, jobs=(40, 40))
    seen = observe(snapshot, snapshot.jobs.pending, estimates)
    assert seen.state.shape == (256, 8)
    assert seen.critic.shape == (256, 5)
    assert not seen.critic[40:].any()
    assert np.array_equal(seen.critic[:40], seen.features[:, [FEATURES.index(name) for name in CRITIC_COLUMNS]])
    assert seen.mask.tolist() == [True] * 40 + [False] * 216
    assert not seen.state[40:].any()
    assert seen.state[:40].any(axis=1).all()


def test_what_is_not_asked_for_is_not_there_and_the_rest_is_the_same_to_the_bit():
    snapshot, estimates = generated(1, jobs=(40, 40))
    every, few = (observe(snapshot, snapshot.jobs.pending, estimates, named=of) for of in (FEATURES, STATE_COLUMNS))
    assert (every.named, few.named) == (FEATURES, STATE_COLUMNS)
    assert np.array_equal(every.features[:, [FEATURES.index(name) for name in STATE_COLUMNS]], few.features)
    assert np.array_equal(every.state, few.state)
    with pytest.raises(ValueError, match="not in tuple"):
        _ = few.critic


@pytest.mark.parametrize("jobs", [60, 900])
def test_permuting_the_jobs_permutes_the_rows(jobs):
    snapshot, estimates = generated(2, jobs=(jobs, jobs))
    running, pending = snapshot.jobs.running, snapshot.jobs.pending
    order = np.concatenate((running, np.random.default_rng(0).permutation(pending)))
    shuffled = replace(snapshot, jobs=snapshot.jobs.take(order))
    one = observe(snapshot, pending, estimates)
    other = observe(shuffled, shuffled.jobs.pending, estimates[order])
    one_by_id = dict(zip(snapshot.jobs.job_id[one.rows].tolist(), one.state, strict=False))
    other_by_id = dict(zip(shuffled.jobs.job_id[other.rows].tolist(), other.state, strict=False))
    assert one_by_id.keys() == other_by_id.keys()
    for job, row in one_by_id.items():
        np.testing.assert_allclose(row, other_by_id[job], atol=1e-6)


def test_priority_is_what_slurm_alone_gives_without_the_site_factor_where_that_is_known():
    jobs = job_table(3, priority=[900, 800, 700], site_factor=[-50, 300, 25], site_known=[True, True, False])
    seen = observe(snapshot_of(jobs, two_nodes()), np.arange(3), np.full(3, np.nan))
    assert dict(zip(seen.rows.tolist(), seen.priority.tolist(), strict=True)) == {0: 950.0, 1: 500.0, 2: 700.0}


def test_a_base_priority_that_the_caller_knows_counts_and_follows_its_job_into_the_window():
    jobs = queue(300)
    seen = observe(snapshot_of(jobs, two_nodes()), np.arange(300), np.full(300, np.nan), base=jobs.job_id * 10)
    assert len(seen) == 256
    assert seen.priority.tolist() == (10.0 * jobs.job_id[seen.rows]).tolist()


def test_pools_that_the_caller_has_give_the_same_observation():
    snapshot, estimates = generated(3, jobs=(700, 700))
    rows = snapshot.jobs.pending
    own = observe(snapshot, rows, estimates)
    given_pools = observe(snapshot, rows, estimates, pools=job_pools(snapshot, rows))
    assert np.array_equal(own.rows, given_pools.rows)
    assert np.array_equal(own.features, given_pools.features)
    few = rows[:100]
    pools = job_pools(snapshot, few)
    given_stats = observe(snapshot, few, estimates, pools=pools, stats=pool_stats(snapshot, pools, estimates))
    assert np.array_equal(observe(snapshot, few, estimates).features, given_stats.features)


def test_the_state_is_the_features_but_for_gpus_which_are_on_a_scale_that_is_the_same_on_each_cluster():
    snapshot, estimates = generated(1, jobs=(40, 40))
    seen = observe(snapshot, snapshot.jobs.pending, estimates)
    for at, name in enumerate(STATE_COLUMNS):
        expected = seen.features[:, FEATURES.index(name)]
        if name == "requested_gpus":
            expected = np.log(np.maximum(seen.gpus, 1.0)) / np.log(4096)
        np.testing.assert_allclose(seen.state[:40, at], expected, rtol=1e-6)


def test_the_gpus_of_the_cluster_are_counted_whether_a_node_is_usable_or_not():
    jobs = job_table(1)
    whole, drained = (
        observe(snapshot_of(jobs, two_nodes(usable=usable)), np.arange(1), np.full(1, np.nan))
        for usable in ([True, True], [True, False])
    )
    assert whole.cluster_gpus == drained.cluster_gpus == 8.0


def test_an_empty_queue_is_an_empty_observation():
    snapshot = snapshot_of(job_table(0), two_nodes())
    seen = observe(snapshot, np.zeros(0, dtype=np.intp), np.zeros(0))
    assert len(seen) == 0
    assert not seen.mask.any()


@settings(max_examples=200, deadline=None)
@given(odd_snapshots())
def test_every_observation_is_finite_and_between_0_and_1(case):
    snapshot, estimates = case
    seen = observe(snapshot, snapshot.jobs.pending, estimates)
    for values in (seen.state, seen.critic, seen.features):
        assert np.isfinite(values).all()
        assert values.min(initial=0.0) >= 0.0
        assert values.max(initial=1.0) <= 1.0
    for plain in (seen.run_time, seen.gpus, seen.wait, seen.submit):
        assert np.isfinite(plain).all()
    assert (seen.run_time >= 1.0).all()
    assert (seen.wait >= 0.0).all()

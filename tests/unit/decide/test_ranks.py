"""Orders, guards and targets of one class, as properties."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rltuned.decide.ranks import age_bound, defer, hand_out, ranks_of, slurm_order, with_hysteresis

NOBODY = np.array([False])


@st.composite
def classes(draw, max_priority=60):
    n = draw(st.integers(1, 25))
    base = np.array(draw(st.lists(st.integers(1, max_priority), min_size=n, max_size=n)), dtype=np.int64)
    ids = np.array(draw(st.lists(st.integers(1, 500), min_size=n, max_size=n, unique=True)), dtype=np.int64)
    order = np.array(draw(st.permutations(range(n))), dtype=np.intp)
    flags = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    return base, ids, order, flags


@given(classes())
def test_no_old_job_stands_behind_its_base_rank(case):
    base, ids, order, old = case
    base_rank = ranks_of(slurm_order(base, ids))
    bound = age_bound(order, base_rank, old)
    assert sorted(bound) == list(range(len(base)))
    assert (ranks_of(bound)[old] <= base_rank[old]).all()


@given(classes())
def test_the_age_bound_changes_nothing_that_needs_no_change(case):
    base, ids, order, _ = case
    base_rank = ranks_of(slurm_order(base, ids))
    assert (age_bound(order, base_rank, np.zeros(len(base), dtype=np.bool_)) == order).all()


def test_the_age_bound_keeps_the_wanted_order_of_everybody_else():
    # Slurm's order 0..5, wanted order reversed, job 2 is old: it may not stand behind place 2.
    order = np.array([5, 4, 3, 2, 1, 0])
    bound = age_bound(order, np.arange(6), np.array([False, False, True, False, False, False]))
    assert list(bound) == [5, 4, 2, 3, 1, 0]


@given(classes())
def test_targets_are_the_classes_own_priorities_in_the_wanted_order(case):
    base, ids, order, _ = case
    targets = hand_out(order, base, ids, NOBODY)
    assert (np.sort(targets)[::-1] <= np.sort(base)[::-1]).all(), "nobody outside the class is overtaken by more"
    floor = targets[order] <= 1
    assert (slurm_order(targets, ids)[~floor] == order[~floor]).all()


@given(classes(max_priority=12))
def test_no_old_job_gets_less_than_its_base_and_no_place_more_than_there_are(case):
    base, ids, order, old = case
    base_rank = ranks_of(slurm_order(base, ids))
    targets = hand_out(age_bound(order, base_rank, old), base, ids, old)
    assert (targets[old] >= base[old]).all()
    if targets.min() > 1:  # ties at Slurm's floor are what `outside.Border.hold_back` is for
        assert (ranks_of(slurm_order(targets, ids))[old] <= base_rank[old]).all()
    assert (np.sort(targets) <= np.sort(base)).all()


def test_a_chain_of_ties_does_not_pull_an_old_job_along():
    # 10, 10, 10 in the order 3, 2, 1 are 10, 9, 8: the old job 4 keeps its 9 and stands before 1.
    targets = hand_out(
        np.array([2, 1, 0, 3]), np.array([10, 10, 10, 9]), np.array([1, 2, 3, 4]), np.array([False, False, False, True])
    )
    assert targets.tolist() == [8, 9, 10, 9]


@given(classes(), st.data())
def test_deferred_members_stand_no_further_ahead_than_they_may_and_the_others_keep_their_order(case, data):
    _, _, order, movable = case
    n = len(order)
    ranks = ranks_of(order)
    late = np.array(data.draw(st.lists(st.integers(0, n), min_size=n, max_size=n)), dtype=np.intp)
    earliest = np.where(movable, np.minimum(late, n - 1), 0)
    places = np.flatnonzero(movable[order])
    feasible = all((earliest[movable] <= place).sum() > at for at, place in enumerate(places))
    deferred = defer(order, movable, earliest)
    assert sorted(deferred) == sorted(order)
    assert (ranks_of(deferred)[~movable] == ranks[~movable]).all()
    if feasible:
        assert (ranks_of(deferred)[movable] >= earliest[movable]).all()
    free = deferred[movable[deferred] & (earliest[deferred] == 0)]
    assert (np.diff(ranks[free]) > 0).all()


@given(classes(max_priority=10**9))
def test_without_ties_the_multiset_is_exactly_kept(case):
    base, ids, order, _ = case
    if len(set(base.tolist())) == len(base):
        assert sorted(hand_out(order, base, ids, NOBODY)) == sorted(base)


@given(classes())
def test_slurms_own_order_needs_no_target_but_the_base(case):
    base, ids, _, _ = case
    assert (hand_out(slurm_order(base, ids), base, ids, NOBODY) == base).all()


@given(classes(), st.integers(0, 20), st.integers(0, 10))
def test_hysteresis_keeps_the_order_and_moves_nobody_further_than_its_tolerance(case, tolerance, drift):
    base, ids, order, ours = case
    target = hand_out(order, base + 100, ids, NOBODY)
    current = target + np.where(np.arange(len(base)) % 2 == 0, drift, -drift)
    settled = with_hysteresis(order, target, current, ids, ours, tolerance)
    assert (slurm_order(settled, ids) == order).all()
    assert (np.abs(settled - target) <= tolerance).all()
    assert (settled[~ours] == target[~ours]).all()


def settle_by_rounds(order, target, current, ids, ours, tolerance):
    """The whole class looked at again and again: what `settle` does, in the time of its square."""
    keep = (ours & (np.abs(target - current) <= tolerance))[order]
    while True:
        value = np.where(keep, current[order], target[order])
        wrong = (value[:-1] < value[1:]) | ((value[:-1] == value[1:]) & (ids[order][:-1] > ids[order][1:]))
        wrong &= keep[:-1] | keep[1:]
        if not wrong.any():
            result = np.empty_like(value)
            result[order] = value
            return result
        keep[:-1] &= ~wrong
        keep[1:] &= ~wrong


@given(classes(), st.integers(0, 20), st.integers(0, 2**32))
def test_hysteresis_gives_way_where_looking_at_the_whole_class_again_and_again_would(case, tolerance, seed):
    base, ids, order, ours = case
    target = hand_out(order, base, ids, np.zeros(len(base), dtype=np.bool_))
    current = target + np.random.default_rng(seed).integers(-10, 11, len(base))
    assert (
        with_hysteresis(order, target, current, ids, ours, tolerance)
        == settle_by_rounds(order, target, current, ids, ours, tolerance)
    ).all()

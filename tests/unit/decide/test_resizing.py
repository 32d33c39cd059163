"""How many nodes are advised to jobs that can resize themselves."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltuned.core.changes import JobState
from rltuned.core.config import Config
from rltuned.core.safe_files import parse
from rltuned.decide.plan import plan
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.resizing import (
    POOLED,
    RESTART,
    SOON,
    Registration,
    Resizable,
    Waiting,
    advice,
    advised_nodes,
    gpu_releases,
)
from rltuned.decide.see.supply import CENTURY
from rltuned.decide.user_record import UserRecord, UserRecords

from .conftest import NOW, make_snapshot, pending

ANY = np.ones(6, dtype=np.bool_)


def amdahl(most):
    return 0.1 + 0.9 / np.arange(1, most + 1)


def waits(nodes, gpus, capable, wait=1e7):
    return Waiting(nodes, gpus, capable, wait)


def job(held, least=1, most=4, gpus=1, remaining=1e5, cost=100.0, capable=ANY):
    return Resizable(tuple(held), least, most, gpus, capable, remaining, amdahl(most), cost)


def free(*gpus):
    return np.array(gpus, dtype=np.int32)


def test_what_nobody_waits_for_goes_to_the_job_that_gains_most_by_it():
    short, long = job([0], remaining=1e4), job([1], remaining=1e6)
    assert advised_nodes([short, long], free(0, 0, 1, 0, 0, 0), []) == [1, 2]
    assert advised_nodes([short, long], free(0, 0, 1, 1, 1, 1), []) == [2, 4]
    # On one node more each gains less than on the one before.
    assert advised_nodes([job([0]), job([1])], free(0, 0, 1, 1, 0, 0), []) == [2, 2]
    # By GPU: two jobs of one GPU a node gain more than one of two.
    assert advised_nodes([job([0], gpus=2), job([1])], free(0, 0, 2, 0, 0, 0), []) == [1, 2]


def test_no_job_grows_onto_a_node_that_it_has_or_cannot_use_or_beyond_its_most():
    assert advised_nodes([job([0], most=9)], free(4, 0, 0, 0, 0, 0), []) == [1]
    assert advised_nodes([job([0], capable=np.arange(6) < 1)], free(0, 4, 4, 0, 0, 0), []) == [1]
    assert advised_nodes([job([0], gpus=2)], free(0, 1, 1, 0, 0, 0), []) == [1]
    assert advised_nodes([job([0], most=3)], free(0, 4, 4, 4, 4, 4), []) == [3]


def test_more_nodes_have_to_be_worth_the_restart():
    gains = job([0], most=2).gained(2)
    assert advised_nodes([job([0], most=2, cost=gains - 1.0)], free(0, 1, 0, 0, 0, 0), []) == [2]
    assert advised_nodes([job([0], most=2, cost=gains + 1.0)], free(0, 1, 0, 0, 0, 0), []) == [1]
    # All of its nodes would be worth it, but it would get one only.
    assert advised_nodes([job([0], most=4, cost=gains + 1.0)], free(0, 1, 0, 0, 0, 0), []) == [1]


def test_what_a_waiting_job_takes_or_waits_for_is_given_to_nobody():
    assert advised_nodes([job([0])], free(0, 1, 1, 0, 0, 0), [waits(1, 1, ANY)]) == [2]
    assert advised_nodes([job([0], least=1)], free(0, 1, 1, 0, 0, 0), [waits(4, 1, ANY, SOON - 1.0)]) == [1]
    assert advised_nodes([job([0], least=1)], free(0, 1, 1, 0, 0, 0), [waits(4, 1, ANY, SOON)]) == [3]
    elsewhere = np.arange(6) > 3
    assert advised_nodes([job([0])], free(0, 1, 1, 0, 0, 0), [waits(1, 4, elsewhere, 1.0)]) == [3]


def test_nodes_are_given_back_only_where_that_lets_a_waiting_job_start_and_only_as_many():
    wide = job([0, 1, 2, 3], least=1)
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(1, 1, ANY)]) == [3]
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(3, 1, ANY)]) == [1]
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(4, 1, ANY)]) == [4]
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(1, 2, ANY)]) == [4]
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(1, 1, ANY), waits(1, 1, ANY)]) == [2]
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), []) == [4]
    # The second one cannot start, so the third gets its turn.
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(1, 1, ANY), waits(9, 1, ANY)]) == [3]


def test_nodes_are_given_back_only_where_the_waiting_job_would_wait_for_longer_than_that_costs():
    wide = job([0, 1], most=2)
    lost = RESTART - wide.gained(1)
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(1, 1, ANY, lost - 1.0)]) == [2]
    assert advised_nodes([wide], free(0, 0, 0, 0, 0, 0), [waits(1, 1, ANY, lost + 1.0)]) == [1]


def test_a_gpu_comes_free_as_its_job_is_expected_to_end():
    jobs = pending(
        3,
        held_nodes=[(0,), (0, 1), ()],
        state=[JobState.RUNNING, JobState.RUNNING, JobState.PENDING],
        start_time=[NOW - 100.0, NOW - 100.0, np.nan],
        end_time=[NOW + 900.0, np.inf, np.nan],
        gpus=[1, 4, 1],
    )
    taken = np.zeros((5, 3), dtype=np.int32)
    taken[:2, 0] = 3, 2
    releases = gpu_releases(make_snapshot(jobs, gpus_alloc=taken), np.array([500.0, 2000.0, 60.0]))
    assert releases[:2].tolist() == [[0.0, 400.0, 1900.0, 1900.0], [0.0, 0.0, 1900.0, 1900.0]]
    assert releases[4].tolist() == [0.0] + [CENTURY] * 3, "the M40 node has one"


def test_the_job_that_loses_least_gives_back_and_nobody_gives_back_what_is_not_needed():
    wide, wider = job([0, 1], most=2, gpus=2), job([2, 3, 4, 5], gpus=2)
    none = free(0, 0, 0, 0, 0, 0)
    assert advised_nodes([wide, wider], none, [waits(1, 2, ANY)]) == [2, 3]
    # What it gives back first is not where the waiting job can run.
    there = np.arange(6) == 1
    assert advised_nodes([wide, wider], none, [waits(1, 2, there)]) == [1, 4]
    # Both have to give back on the same node, and neither more than that.
    both = [job([0, 1, 2]), job([0, 1, 2])]
    assert advised_nodes(both, none, [waits(1, 2, ANY)]) == [2, 2]


@st.composite
def situations(draw):
    nodes = draw(st.integers(1, 6))
    total = np.array(draw(st.lists(st.integers(1, 4), min_size=nodes, max_size=nodes)), dtype=np.int32)
    left, running = total.copy(), []
    masks = st.lists(st.booleans(), min_size=nodes, max_size=nodes).map(np.array)
    for _ in range(draw(st.integers(0, 3))):
        gpus = draw(st.integers(1, 3))
        able = np.flatnonzero(left >= gpus).tolist()
        if not able:
            continue
        held = draw(st.lists(st.sampled_from(able), min_size=1, unique=True))
        left[held] -= gpus
        least = draw(st.integers(1, len(held)))
        most = draw(st.integers(len(held), 7))
        numbers = draw(st.floats(1, 1e6)), draw(st.floats(0, 1e5))
        running.append(Resizable(tuple(held), least, most, gpus, draw(masks), numbers[0], amdahl(most), numbers[1]))
    waiting = draw(
        st.lists(st.builds(Waiting, st.integers(1, 4), st.integers(1, 4), masks, st.floats(0, 1e6)), max_size=4)
    )
    return running, left, waiting


@given(situations())
def test_each_advice_can_be_followed_all_at_once(situation):
    running, left, waiting = situation
    before = left.copy()
    sizes = advised_nodes(running, left, waiting)
    assert (left == before).all()
    given_back = left.copy()
    for each, size in zip(running, sizes, strict=True):
        assert each.least <= size <= each.most
        given_back[list(each.held[size:])] += each.gpus
        if size > len(each.held):
            assert each.gained(size) > each.cost
    if any(size < len(each.held) for each, size in zip(running, sizes, strict=True)):
        assert any((wants.capable & (given_back >= wants.gpus)).sum() >= wants.nodes for wants in waiting)
    for each, size in zip(running, sizes, strict=True):
        room = each.capable & (given_back >= each.gpus)
        room[list(each.held)] = False
        assert room.sum() >= size - len(each.held)


def greedy(wants, running, left, size):
    """What of each job's nodes remains where one node after another is given back, by whoever loses least by it, until
    `wants` can start, and none that is not needed. None: it cannot start.
    """

    def can_start():
        room = free.copy()
        for each, had, has in zip(running, size, remains, strict=True):
            room[list(each.held[has:had])] += each.gpus
        return (wants.capable & (room >= wants.gpus)).sum() >= wants.nodes

    free, remains = left, list(size)
    while not can_start():
        able = [
            (each.next_gain(has - 1), at)
            for at, (each, has) in enumerate(zip(running, remains, strict=True))
            if has > each.least and wants.capable[list(each.held[each.least : has])].any()
        ]
        if not able:
            return None
        remains[min(able)[1]] -= 1
    for at, had in enumerate(size):
        while remains[at] < had:
            remains[at] += 1
            if not can_start():
                remains[at] -= 1
                break
    return remains


@given(situations())
def test_nodes_are_given_back_as_one_after_the_other_would_be(situation):
    running, left, waiting = situation
    for wants in waiting:
        size = [len(each.held) for each in running]
        expected = greedy(wants, running, left, size)
        lost = 0.0
        for each, has in zip(running, expected or size, strict=True):
            lost += RESTART - each.gained(has) if has < len(each.held) else 0.0
        pays = expected is not None and lost <= wants.wait
        never = [replace(each, cost=np.inf) for each in running]
        assert advised_nodes(never, left, [wants]) == (expected if pays else size)


def test_the_advice_of_two_thousand_nodes_takes_seconds():
    many = np.ones(2000, dtype=np.bool_)
    running = [job(range(8 * at, 8 * at + 8), most=8, gpus=4, capable=many) for at in range(250)]
    began = time.process_time()
    sizes = advised_nodes(running, np.zeros(2000, dtype=np.int32), [waits(1500, 4, many, 1e12)] * 64)
    idle = advised_nodes([replace(each, held=each.held[:1]) for each in running], np.full(2000, 4, np.int32), [])
    assert (sum(sizes), sum(idle)) == (500, 2000)
    assert time.process_time() - began < 10.0


# --- of a plan


def queue(*, waiting=0, gpus=4, job_state=JobState.RUNNING, held=((0, 1),), **columns):
    """Row 0 is alice's job, with two GPUs on each of two P100 nodes; the rest waits."""
    n = 1 + waiting
    state = [job_state, *[JobState.PENDING] * waiting]
    began = [NOW - 600.0, *[np.nan] * waiting] if job_state == JobState.RUNNING else np.nan
    jobs = pending(
        n,
        held_nodes=[*held, *[()] * waiting],
        user=["alice", *["bob"] * waiting],
        state=state,
        start_time=began,
        end_time=NOW + 1e5 - 600.0,
        time_limit=1e5,
        nodes=[2, *[1] * waiting],
        gpus=[4, *[gpus] * waiting],
        gpus_per_node=[2, *[gpus] * waiting],
        gpu_type=["p100", *[""] * waiting],
        **columns,
    )
    taken = np.zeros((5, 3), dtype=np.int32)
    taken[list(held[0]), 0] = 2
    return make_snapshot(jobs, gpus_alloc=taken)


def advised(snapshot, least=1, most=4, cost=100.0, job=1):
    made = plan(snapshot, by_name("sjf"), Config())
    return made, advice(made, {job: Registration(1, least, most, cost)})


def test_a_job_gives_a_node_back_for_one_that_waits_and_its_user_is_told():
    made, by_user = advised(queue(waiting=1))
    (told,) = by_user["alice"]
    assert (list(by_user), told.job_id, told.nodes, told.advised, told.left) == (["alice"], 1, 2, 1, 1e5 - 600.0)
    assert told.saves == pytest.approx(1.0 - 1.0 / POOLED.more_nodes(2)[1], abs=1e-3)
    records = UserRecords(made.snapshot, interval=60.0, plan=made, moves=True)
    records = records.advised(lambda _: {1: Registration(1, 1, 4, 100.0)})
    assert set(records.users) == {"alice", "bob"}
    assert records.record("alice").elastic == (told,)
    assert records.record("bob").elastic == records.record("").elastic == ()
    read = parse(UserRecord, json.dumps(records.record("alice").as_dict()), "a user record")
    assert read.elastic == (told,)


def test_where_nothing_is_written_to_slurm_nothing_is_advised():
    made, _ = advised(queue(waiting=1))
    watched = UserRecords(made.snapshot, interval=60.0, plan=made, moves=False)
    assert watched.advised(lambda _: {1: Registration(1, 1, 4, 100.0)}).record("alice").elastic == ()


def test_an_idle_cluster_gives_more_of_the_kind_that_the_job_has():
    one = queue(held=((0,),))
    assert [told.advised for told in advised(one)[1]["alice"]] == [2], "the K80 nodes have two GPUs, too"
    full = make_snapshot(one.jobs, gpus_alloc=one.nodes.gpus_alloc, cpus_alloc=[1, 56, 0, 0, 0])
    assert [told.advised for told in advised(full)[1]["alice"]] == [1]


def test_a_job_that_has_requeued_itself_gets_its_room_before_others_are_told_to_grow():
    both = queue(waiting=1, gpus=4, held=((0,),), eligible_time=[NOW - 700.0, NOW + 100.0])
    made = plan(both, by_name("sjf"), Config())
    said = Registration(1, 1, 4, 100.0)
    assert [told.advised for told in advice(made, {1: said})["alice"]] == [2]
    assert [told.advised for told in advice(made, {1: said, 2: said})["alice"]] == [1]


@pytest.mark.parametrize("column", [{"held": [False, True]}, {"dependent": [False, True]}])
def test_a_job_that_could_not_start_takes_no_room_from_others_by_a_registration(column):
    both = queue(waiting=1, gpus=4, held=((0,),), eligible_time=[NOW - 700.0, NOW + 100.0])
    both = replace(both, jobs=replace(both.jobs, **{name: np.array(of) for name, of in column.items()}))
    made = plan(both, by_name("sjf"), Config())
    said = Registration(1, 1, 4, 100.0)
    assert [told.advised for told in advice(made, {1: said, 2: said})["alice"]] == [2]


def test_a_job_without_a_limit_is_advised_in_finite_numbers():
    snapshot = queue(waiting=1)
    limits = {name: np.full(2, np.inf) for name in ("time_limit", "end_time")}
    for made in (snapshot, queue()):
        endless = replace(made, jobs=replace(made.jobs, **{name: of[: len(made.jobs)] for name, of in limits.items()}))
        (told,) = advised(endless)[1]["alice"]
        assert (np.isfinite(told.saves), told.left) == (True, 365 * 86_400.0)


def test_a_registration_that_is_not_true_is_passed_over():
    assert advised(queue(waiting=1), least=3)[1] == {}
    assert advised(queue(waiting=1), most=1)[1] == {}
    in_all = queue(waiting=1)
    in_all = replace(in_all, jobs=replace(in_all.jobs, gpus_per_node=np.array([0, 4], dtype=np.int32)))
    assert advised(in_all)[1] == {}


def test_gpus_in_all_count_as_on_the_fewest_nodes():
    snapshot = queue(waiting=1)
    in_all = replace(snapshot, jobs=replace(snapshot.jobs, gpus_per_node=np.array([2, 0], dtype=np.int32)))
    assert [told.advised for told in advised(in_all)[1]["alice"]] == [1]


def test_a_waiting_job_that_no_node_is_large_enough_for_keeps_nothing_from_anybody():
    (told,) = advised(queue(waiting=1, gpus=99, held=((0,),)))[1]["alice"]
    assert told.advised == 2

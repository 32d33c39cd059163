"""Fair share is traded within a bound: what accounts may borrow, what is charged, and what is forgotten."""

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.borrowed import Borrowed, Loan
from rltuned.cluster.tables import JobState
from rltuned.config import Config, DecideSection, PlacementApply, PlacementSection
from rltuned.decide import explain, plan, record
from rltuned.decide.borrowing import WEEK, budget_of, charged, overtaking
from rltuned.decide.ranks import Guard
from rltuned.policy.heuristics import by_name

from .conftest import NOW, make_snapshot, pending

SAF = by_name("saf")


def borrowing(share, **decide):
    return Config(placement=PlacementSection(apply=PlacementApply.OFF), decide=DecideSection(borrow=share, **decide))


def share_of(snapshot, seconds):
    """The setting with which each account may owe so many GPU-seconds."""
    return seconds / budget_of(snapshot, 1.0)


def two_accounts():
    """One long job of "other" at the front, then six small ones of "small", 600 GPU-seconds each."""
    jobs = pending(7, account=["other", *["small"] * 6], time_limit=[86_400.0, *[600.0] * 6])
    return make_snapshot(jobs)


def planned(result):
    """Job ids in the planned order."""
    return result.snapshot.jobs.job_id[result.rows[result.queue]].tolist()


def test_small_jobs_pass_another_accounts_job_as_long_as_their_account_can_pay():
    snapshot = two_accounts()
    result = plan(snapshot, SAF, borrowing(share_of(snapshot, 1_300.0)))
    assert planned(result) == [2, 3, 1, 4, 5, 6, 7]
    assert result.raised == {job: Loan(int(snapshot.jobs.submit_time[job - 1]), "small", 600.0) for job in (2, 3)}
    assert all(result.guards[3:] & Guard.BUDGET)
    assert "budget of borrowed service" in " ".join(explain(record(result), 5).guards)


def test_what_passes_nobody_elses_job_costs_nothing():
    snapshot = make_snapshot(pending(4, account=["a", "a", "a", "b"], time_limit=[9e4, 600.0, 500.0, 9e4]))
    result = plan(snapshot, SAF, borrowing(0.0))
    assert planned(result) == [3, 2, 1, 4]
    assert result.raised == {}


def test_where_all_jobs_are_of_one_account_its_users_have_budgets():
    snapshot = make_snapshot(pending(3, user=["long", "short", "short"], time_limit=[9e4, 600.0, 600.0]))
    assert planned(plan(snapshot, SAF, borrowing(0.0))) == [1, 2, 3]
    assert planned(plan(snapshot, SAF, borrowing(share_of(snapshot, 600.0)))) == [2, 1, 3]


def test_an_array_borrows_for_all_of_its_tasks():
    snapshot = make_snapshot(pending(2, account=["a", "b"], time_limit=[9e4, 600.0], array_tasks=[0, 10]))
    assert planned(plan(snapshot, SAF, borrowing(share_of(snapshot, 5_999.0)))) == [1, 2]
    assert plan(snapshot, SAF, borrowing(share_of(snapshot, 6_000.0))).raised[2].seconds == 6_000.0


def test_a_job_with_nodes_of_its_own_borrows_all_gpus_of_them():
    jobs = pending(2, account=["a", "b"], time_limit=[9e4, 600.0], gpu_type="p100", exclusive=[False, True])
    snapshot = make_snapshot(jobs)
    assert planned(plan(snapshot, SAF, borrowing(share_of(snapshot, 2_399.0)))) == [1, 2]
    loans = plan(snapshot, SAF, borrowing(share_of(snapshot, 2_400.0))).raised
    assert loans[2].seconds == 2_400.0
    late = started(snapshot, [1], NOW)
    table = replace(late.jobs, node_ptr=np.array([0, 0, 1], np.int32), node_idx=np.array([0], np.int32))
    late = replace(late, jobs=table, time=NOW + 1_000.0)
    owed = charged(Borrowed(NOW + 1_000.0).raising(loans), late).owed
    assert owed == {"b": 4_000.0}, "four GPUs for as long as it runs"


def started(snapshot, rows, at):
    jobs, row = snapshot.jobs, list(rows)
    state, start = jobs.state.copy(), jobs.start_time.copy()
    state[row], start[row] = JobState.RUNNING, at
    return replace(snapshot, jobs=replace(jobs, state=state, start_time=start))


def test_a_raised_job_is_charged_when_it_starts_and_what_it_runs_longer_as_well():
    snapshot = two_accounts()
    loans = {2: Loan(int(snapshot.jobs.submit_time[1]), "small", 600.0)}
    asked = Borrowed(NOW).raising(loans)
    assert charged(asked, snapshot) == asked, "it still waits"
    now = replace(started(snapshot, [1], NOW), time=NOW + 300.0)
    start = charged(asked, now)
    assert start.owed == {"small": 600.0}
    assert start.raised == {}
    assert start.running == loans
    later = charged(start, replace(now, time=NOW + 900.0))
    forgotten = 0.5 ** (600.0 / WEEK)
    np.testing.assert_allclose(later.owed["small"], 600.0 * forgotten + 300.0)
    assert later.running[2].seconds == 900.0
    # Ended, or it had started and ended between two readings: nobody knows, so it is charged.
    gone = replace(now, jobs=now.jobs.take(np.array([0, 2, 3, 4, 5, 6])))
    assert charged(start, gone).running == {}
    assert charged(asked, gone).owed == {"small": 600.0}


def test_another_job_of_the_same_id_is_not_the_one_that_borrowed():
    snapshot = two_accounts()
    asked = Borrowed(NOW).raising({2: Loan(int(snapshot.jobs.submit_time[1]) - 50, "small", 600.0)})
    assert charged(asked, snapshot).raised == {}


def test_what_was_borrowed_is_forgotten_with_slurms_half_life_and_small_debts_altogether():
    snapshot = two_accounts()
    before = Borrowed(NOW, {"small": 4_000.0, "tiny": 1.5})
    snapshot = replace(snapshot, time=NOW + 3_600.0, scheduler=replace(snapshot.scheduler, half_life=3_600.0))
    assert charged(before, snapshot).owed == {"small": 2_000.0}
    never = replace(snapshot, scheduler=replace(snapshot.scheduler, half_life=0.0))
    assert charged(before, never).owed == before.owed


def test_it_survives_json():
    loan = Loan(int(NOW), "small", 600.0)
    kept = Borrowed(NOW, {"small": 12.5}, {2: loan}, {7: loan})
    assert Borrowed.from_dict(json.loads(json.dumps(kept.as_dict()))) == kept


@given(data=st.data())
def test_overtaking_is_what_its_definition_says(data):
    n = data.draw(st.integers(1, 12))
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=np.int64)
    rank, base = (np.array(data.draw(st.permutations(range(n))), dtype=np.intp) for _ in range(2))
    places = {mine: sorted(base[owner == mine]) for mine in set(owner.tolist())}
    slow = []
    for at in range(n):
        ahead = rank < rank[at]
        place = places[owner[at]][(ahead & (owner == owner[at])).sum()]
        others = [theirs[(ahead & (owner == mine)).sum() :] for mine, theirs in places.items() if mine != owner[at]]
        if any(theirs and theirs[0] < place for theirs in others):
            slow.append(at)
    assert sorted(overtaking(owner, rank, base).tolist()) == slow


@settings(max_examples=150)
@given(data=st.data())
def test_no_account_is_raised_for_more_than_it_has_left_whatever_the_queue(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n = int(rng.integers(2, 60))
    jobs = pending(
        n,
        account=[f"a{k}" for k in rng.integers(0, 4, n)],
        qos=list(rng.choice(["normal", "high"], n)),
        partition=list(rng.choice(["gpu", "share"], n)),
        gpu_type=list(rng.choice(["", "p100", "k80"], n)),
        time_limit=rng.integers(1, 90_000, n).astype(float),
        gpus=rng.integers(1, 3, n),
        array_tasks=rng.choice([0, 0, 3], n),
        eligible_time=NOW - rng.choice([60.0, 15 * 86_400.0], n, p=[0.9, 0.1]),
        priority=rng.integers(1, 400, n),
    )
    snapshot = make_snapshot(jobs)
    owed = {"a0": 3_000.0, "a1": 1e9}
    window = int(rng.integers(1, n + 1))
    config = borrowing(share_of(snapshot, float(rng.choice([0.0, 4_000.0, 300_000.0]))), window=window)
    result = plan(snapshot, SAF, config, AppliedChanges(borrowed=Borrowed(NOW, owed)))
    lent = defaultdict(float)
    for loan in result.raised.values():
        lent[loan.account] += loan.seconds
    budget = budget_of(snapshot, config.decide.borrow)
    for account, seconds in lent.items():
        assert seconds <= max(budget - owed.get(account, 0.0), 0.0) + 1e-6

"""`plan()` as a whole: who is managed, what is written, what is never touched."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.core.applied import AppliedChanges, LargestRequests, Request
from rltuned.core.changes import Applied, Field, SiteFactor
from rltuned.core.config import Config, CycleSection, LendSection, PlacementApply, PlacementSection, ScopeSection, Stage
from rltuned.core.unread import RowKind, Unread
from rltuned.decide.decision import record
from rltuned.decide.expect.predictions import RunTimePredictions, RunTimes
from rltuned.decide.explain import Treatment, explain
from rltuned.decide.loans import Book, Inherited
from rltuned.decide.plan import Plan, plan
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.scope import Veto

from .conftest import NOW, make_snapshot, pending

QUIET = Config(placement=PlacementSection(apply=PlacementApply.OFF))


def configured(**sections):
    return QUIET.model_copy(update=sections)


WHOLE = configured(lend=LendSection(share=1.0))  # each may lend all of its wait


def queue_after(result: Plan) -> list[int]:
    """Job ids in the order in which Slurm would consider them after the changes."""
    jobs = result.snapshot.jobs
    priority = {int(job): int(value) for job, value in zip(jobs.job_id, jobs.priority, strict=True)}
    for change in result.changes:
        if change.field is Field.SITE_FACTOR:
            priority[change.job_id] += int(change.after) - int(change.before)
    submitted = dict(zip(jobs.job_id.tolist(), jobs.submit_time.tolist(), strict=True))
    return sorted(priority, key=lambda job: (-priority[job], submitted[job], job))


def apply_to(snapshot, changes):
    """The snapshot of the next cycle, and what is applied, after all changes were applied."""
    jobs = snapshot.jobs
    priority, site = jobs.priority.copy(), jobs.site_factor.copy()
    applied = {}
    for change in changes:
        row = jobs.row_of[change.job_id]
        if change.field is Field.SITE_FACTOR:
            priority[row] += change.after - change.before
            site[row] = change.after
            applied[change.job_id] = Applied(change.job_id, change.submit_time, site_factor=change.after)
    return replace(snapshot, jobs=replace(jobs, priority=priority, site_factor=site)), AppliedChanges(applied)


def test_what_is_given_back_is_written_before_what_is_raised():
    """Cycle after cycle another job is the shortest."""
    limits = [7200.0, 3600.0, 1200.0, 600.0]
    snap = make_snapshot(pending(4, time_limit=limits, user=list("abcd")))
    one = configured(lend=LendSection(share=1.0, most=1))
    first = plan(snap, by_name("sjf"), one)
    assert [(change.job_id, change.gives_back) for change in first.changes] == [(4, False)]
    after, applied = apply_to(snap, first.changes)
    longer = replace(after.jobs, time_limit=np.array([7200.0, 3600.0, 1200.0, 9000.0]))
    second = plan(replace(after, jobs=longer), by_name("sjf"), one, applied, book=first.book)
    assert [(change.job_id, change.after) for change in second.changes] == [(4, 0), (3, second.target[2] - 9986)]
    assert [change.turn for change in second.changes] == [0, 1]
    assert all(isinstance(change.after, SiteFactor) for change in second.changes)


def test_the_book_of_a_plan_has_the_offers_of_what_it_raises():
    snap = make_snapshot(pending(2, time_limit=[7200.0, 600.0], user=["a", "b"]))
    made = plan(snap, by_name("sjf"), WHOLE)
    (part,) = made.book.offers[2].parts
    assert (set(made.book.offers), part.lender, part.gpus, made.book.offers[2].seconds) == ({2}, 1, 1.0, 600.0)
    assert plan(snap, by_name("fifo"), QUIET).book.offers == {}


def test_what_a_job_is_charged_for_is_the_median_not_the_mean():
    snap = make_snapshot(pending(2, time_limit=[7200.0, 6000.0], user=["a", "b"]))
    mean = np.array([7200.0, 3000.0])
    median = RunTimePredictions(
        mean, median=np.array([7200.0, 400.0]), **{name: np.full(2, np.nan) for name in RunTimePredictions._fields[2:]}
    )
    made = plan(snap, by_name("sjf"), WHOLE, run_times=RunTimes(mean, median))
    assert made.book.offers[2].seconds == 400.0


def test_what_a_cancelled_job_has_waited_counts_for_the_policy_and_for_lending():
    snap = make_snapshot(pending(2, time_limit=600.0, user=["a", "b"], priority=[20, 10]))
    # Slurm says that the second has waited for a second less.
    heir = Book(time=NOW, inherited={2: Inherited(int(NOW - 3600.0 + 1), 900.0)})
    assert queue_after(plan(snap, by_name("wfp3"), WHOLE)) == [1, 2]
    made = plan(snap, by_name("wfp3"), WHOLE, book=heir)
    assert queue_after(made) == [2, 1]
    assert made.raised.lendable.tolist() == pytest.approx([3600.0, 3599.0 + 900.0])


def test_a_second_cycle_has_nothing_to_write():
    rng = np.random.default_rng(7)
    snap = make_snapshot(pending(120, time_limit=rng.integers(600, 90_000, 120), gpus=rng.integers(1, 5, 120)))
    first = plan(snap, by_name("saf"), QUIET)
    assert first.changes
    after, applied = apply_to(snap, first.changes)
    assert plan(after, by_name("saf"), QUIET, applied).changes == ()


@pytest.mark.parametrize(
    ("columns", "veto"),
    [
        ({"priority": [0], "held": [True]}, Veto.HELD),
        ({"site_factor": [300]}, Veto.FOREIGN),
        ({"dependent": [True]}, Veto.DEPENDENCY),
        ({"eligible_time": [NOW + 60]}, Veto.NOT_ELIGIBLE),
        ({"eligible_time": [float("nan")]}, Veto.NOT_ELIGIBLE),
        ({"het_job_id": [1]}, Veto.HETEROGENEOUS),
        ({"site_known": [False]}, Veto.NO_PRIORITY),
        ({"nice": [-10]}, Veto.NEGATIVE_NICE),
        ({"deadline": [NOW + 3600]}, Veto.DEADLINE),
        ({"partition": ["share"]}, Veto.PARTITION),
        ({"qos": ["high"]}, Veto.QOS),
        ({"qos": ["normal,high"]}, Veto.QOS),
        ({"qos": ["normal,low"]}, Veto.SEVERAL_QOS),
        ({"account": ["secret"]}, Veto.ACCOUNT),
        ({"user": ["bob"]}, Veto.USER),
        ({"reservation": ["maint"]}, Veto.RESERVATION),
        ({"partition": ["gpu,urgent"]}, Veto.SEVERAL_TIERS),
        ({"gpu_type": ["v100"]}, Veto.NEVER_RUNS),
        ({"gpus_per_node": [8], "gpus": [8]}, Veto.NEVER_RUNS),
        ({"nodes": [3], "gpus_per_node": [4], "gpus": [12]}, Veto.NEVER_RUNS),
    ],
)
def test_each_kind_of_job_that_is_left_alone_has_its_reason(columns, veto):
    # The job in question is the shortest: if it were managed it would be moved to the front.
    jobs = pending(
        3, time_limit=[5000.0, 4000.0, 60.0], **{name: _third(name, value) for name, value in columns.items()}
    )
    scope = ScopeSection(
        exclude_partitions=("share",), exclude_qos=("high",), exclude_accounts=("secret",), exclude_users=("bob",)
    )
    result = plan(make_snapshot(jobs), by_name("sjf"), configured(scope=scope))
    assert {reason: list(rows) for reason, rows in result.scope.vetoed().items()} == {veto: [2]}
    assert {change.job_id for change in result.changes} == {2}, "before the first, though the third stays"
    answer = explain(record(result), 3)
    assert answer.verdict is Treatment.NOT_MANAGED
    assert answer.veto.startswith(veto.value)


@pytest.mark.parametrize(
    ("reason", "managed"),
    [
        ("No suitable topology unit found for segment", True),
        ("Required nodes lack available resources", True),
        ("Licenses", False),
        ("SomethingOf2031", False),
    ],
)
def test_only_a_wait_for_room_is_anything_that_a_place_changes(reason, managed):
    jobs = pending(2, time_limit=[5000.0, 60.0], reason=["Priority", reason])
    made = plan(make_snapshot(jobs), by_name("sjf"), QUIET)
    assert (2 in made.snapshot.jobs.job_id[made.rows]) is managed
    assert list(made.scope.vetoed()) == ([] if managed else [Veto.BLOCKED])


def test_an_array_of_which_some_tasks_wait_for_something_else_lends_and_is_not_raised():
    jobs = pending(2, time_limit=[5000.0, 60.0], reason=["Priority", "Resources,BeginTime"])
    scope = plan(make_snapshot(jobs), by_name("sjf"), QUIET).scope
    assert {veto: list(rows) for veto, rows in scope.vetoed().items()} == {Veto.SPLIT_ARRAY: [1]}
    assert (scope.startable & scope.passable).all()


def test_a_job_that_cannot_be_understood_is_left_alone_and_counts_for_the_others():
    jobs = pending(3, time_limit=[5000.0, 4000.0, 60.0])
    snap = replace(
        make_snapshot(jobs), unread=Unread(jobs={3: "squeue, job 3, column Nice: number: cannot understand"})
    )
    result = plan(snap, by_name("sjf"), QUIET)
    assert {reason: list(rows) for reason, rows in result.scope.vetoed().items()} == {Veto.UNREADABLE: [2]}
    assert 3 not in {change.job_id for change in result.changes}
    # What is ours on it is not taken back by a plan: nothing says that it is still there.
    ours = AppliedChanges({3: Applied(3, int(jobs.submit_time[2]), site_factor=7)})
    assert plan(snap, by_name("sjf"), QUIET, ours).withdraw == ()
    answer = explain(record(result), 3)
    assert answer.verdict is Treatment.NOT_MANAGED
    assert "rltuned doctor" in answer.veto


def test_a_job_whose_deadline_is_far_away_is_a_job_as_any_other():
    """By its limit: what counts is when it has to start."""
    columns = {"user": ["a", "b", "c"], "time_limit": [80_000.0, 900.0, 60.0], "submit_time": NOW - 86_400.0}
    columns["eligible_time"] = columns["submit_time"]
    far, near = ([NOW + seconds, float("nan"), float("nan")] for seconds in (110_000.0, 100_000.0))
    made = plan(make_snapshot(pending(3, deadline=far, **columns)), by_name("sjf"), QUIET)
    assert (made.scope.vetoed(), made.raised.raises[0].lenders) == ({}, ((0, 1.0),))
    made = plan(make_snapshot(pending(3, deadline=near, **columns)), by_name("sjf"), QUIET)
    assert (list(made.scope.vetoed()), made.raised.raises[0].lenders) == ([Veto.DEADLINE], ((1, 1.0),))


def _third(name, value):
    plain = {
        "priority": 9000, "held": False, "site_factor": 0, "dependent": False, "deadline": float("nan"),
            "eligible_time": NOW - 60,
        "het_job_id": 0, "site_known": True, "nice": 0,
        "partition": "gpu", "qos": "normal", "account": "acct", "user": "alice",
        "reservation": "", "gpu_type": "", "gpus_per_node": 0, "gpus": 1, "nodes": 1,
    }[name]  # fmt: skip
    return [plain, plain, *value]


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_in_which_waits_grow_and_nothing_else_happens_is_hardly_written(seed):
    """No two jobs change places for ever, and no place moves on in each cycle."""
    rng, cycles = np.random.default_rng(seed), 40
    n = int(rng.choice([15, 40]))
    came = NOW - rng.uniform(0.0, 36_000.0, n)
    snap = make_snapshot(
        pending(
            n,
            user=[f"user{user}" for user in rng.integers(0, 6, n)],
            time_limit=rng.choice([600.0, 3600.0, 14_400.0, 86_400.0], n),
            gpus=rng.integers(1, 5, n),
            priority=10 * rng.integers(1, 1000, n),
            submit_time=came,
            eligible_time=came,
        )
    )
    applied, book, writes = AppliedChanges(), Book(time=NOW), []
    for cycle in range(cycles):
        snap = replace(snap, time=NOW + 60.0 * cycle)
        made = plan(snap, by_name("saf"), QUIET, applied, book=book.advanced(snap, snap.time))
        book = made.book
        snap, new = apply_to(snap, made.changes)
        applied = AppliedChanges({**applied.by_job, **new.by_job})
        writes.append(len(made.changes))
    assert sum(writes) > 0
    assert sum(writes[1:]) / cycles < 1.0
    assert not all(writes[-10:])


def test_our_own_values_do_not_count_as_slurms_own():
    snap = make_snapshot(pending(3, time_limit=[3000.0, 2000.0, 1000.0]))
    after, applied = apply_to(snap, plan(snap, by_name("sjf"), QUIET).changes)
    again = plan(after, by_name("fifo"), QUIET, applied)
    assert list(again.base) == list(snap.jobs.priority)
    assert queue_after(again) == [1, 2, 3]
    assert all(change.after == 0 for change in again.changes)


def test_a_foreign_site_factor_on_a_job_of_ours_is_reported_and_left():
    snap = make_snapshot(pending(3, time_limit=[3000.0, 2000.0, 1000.0]))
    after, applied = apply_to(snap, plan(snap, by_name("sjf"), QUIET).changes)
    site = after.jobs.site_factor.copy()
    site[2] += 5
    result = plan(replace(after, jobs=replace(after.jobs, site_factor=site)), by_name("sjf"), QUIET, applied)
    assert result.foreign == (3,)
    assert 3 not in {change.job_id for change in result.changes}


def test_what_the_journal_says_about_an_earlier_job_of_the_same_id_is_not_believed():
    snap = make_snapshot(pending(3, time_limit=[3000.0, 2000.0, 1000.0]))
    earlier = {job: Applied(job, 5, site_factor=77, oversubscribe="NO") for job in (1, 2, 3)}
    assert (
        plan(snap, by_name("sjf"), Config(), AppliedChanges(earlier)).changes
        == plan(snap, by_name("sjf"), Config()).changes
    )


def test_multifactor_leaves_slurms_order_alone_ties_included():
    # Job 3 came before 1 and 2 (a requeued array has a low id and a late submission): slurmctld's tie-break is the
    # submission, then the id (sort_job_queue2 in job_scheduler.c, read in 22.05.8 and later).
    jobs = pending(4, priority=[500, 500, 500, 900], submit_time=[NOW - 60, NOW - 60, NOW - 600, NOW - 10])
    result = plan(make_snapshot(jobs), by_name("multifactor"), Config())
    assert result.changes == ()
    assert list(result.rank) == [2, 3, 1, 0]


def test_jobs_behind_the_window_keep_slurms_order():
    n = 600
    jobs = pending(n, time_limit=np.linspace(90_000, 600, n))
    result = plan(make_snapshot(jobs), by_name("sjf"), QUIET)
    hidden = np.setdiff1d(np.arange(n), result.window)
    assert len(result.window) == 256
    assert (result.target[hidden] == jobs.priority[hidden]).all()
    assert np.count_nonzero(result.target > jobs.priority) == 16


def test_the_canary_writes_only_for_its_partitions_or_its_share():
    jobs = pending(200, partition=["gpu", "share"] * 100, time_limit=np.linspace(90_000, 600, 200))
    snap = make_snapshot(jobs)
    canary = CycleSection(stage=Stage.CANARY)
    named = plan(snap, by_name("sjf"), configured(cycle=canary, scope=ScopeSection(canary=("share",))))
    assert {int(row) % 2 for row in named.rows} == {1}
    share = plan(snap, by_name("sjf"), configured(cycle=canary, scope=ScopeSection(canary="25 %")))
    assert 20 <= len(share.rows) <= 80
    again = plan(replace(snap, time=NOW + 600), by_name("sjf"), share.config)
    assert list(again.rows) == list(share.rows)


@dataclass
class Saying:
    scores: list[float]
    name: str = "saying"

    def score(self, observation):
        return np.array(self.scores)


@pytest.mark.parametrize("last", [[np.nan, 9.0], [0.0, np.inf], [9.0], [0.0, 0.0, 9.0]], ids=str)
def test_a_policy_that_returns_nonsense_leaves_slurms_order(last):
    snap = make_snapshot(pending(4, time_limit=[7200.0, 3600.0, 1200.0, 600.0], user=list("abcd")))
    assert plan(snap, Saying([0.0, 0.0, 0.0, 9.0]), WHOLE).changes
    assert plan(snap, Saying([0.0, 0.0, *last]), WHOLE).changes == ()


def test_an_empty_queue_is_an_empty_plan():
    result = plan(make_snapshot(pending(0)), by_name("saf"), Config())
    assert result.changes == ()
    assert explain(record(result), 17).verdict is Treatment.NOT_PENDING


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from(["fifo", "sjf", "saf"]))
def test_for_any_queue_few_jobs_are_raised_none_is_lowered_and_no_other_job_is_touched(seed, n, rule):
    rng = np.random.default_rng(seed)
    jobs = pending(
        n,
        job_id=rng.permutation(np.arange(1, n + 1) * 3),
        priority=rng.integers(1, 40, n) if seed % 2 else rng.integers(1, 10**6, n),
        time_limit=rng.choice([600.0, 3600.0, 86400.0, np.inf], n),
        gpus=rng.integers(0, 5, n),
        user=rng.choice(list("abcd"), n).tolist(),
        qos=rng.choice(["normal", "high"], n).tolist(),
        partition=rng.choice(["gpu", "urgent", "share", "gpu,share"], n).tolist(),
        held=rng.random(n) < 0.1,
        site_known=rng.random(n) < 0.9,
    )
    result = plan(make_snapshot(jobs), by_name(rule), QUIET)
    untouched = {int(jobs.job_id[row]) for rows in result.scope.vetoed().values() for row in rows}
    changed = {change.job_id: int(change.after) for change in result.changes}
    assert untouched.isdisjoint(changed)
    assert (result.target >= result.base).all()
    raised = result.target > result.base
    assert set(result.book.offers) == set(changed) == set(jobs.job_id[result.rows[raised]].tolist())
    assert (len(changed) <= QUIET.lend.most, min(changed.values(), default=1) > 0) == (True, True)
    # Whom the policy wants first goes as far as anybody: the others keep Slurm's order.
    kept = np.flatnonzero(~raised)
    assert np.array_equal(np.argsort(result.rank[kept]), np.argsort(result.base_rank[kept]))


def test_fewer_gpus_than_before_do_not_move_a_job_forward():
    jobs = pending(3, gpus=[4, 2, 1], time_limit=3600.0)
    before = LargestRequests.of({3: Request(int(jobs.submit_time[2]), 8, 3600.0)})
    assert queue_after(plan(make_snapshot(jobs), by_name("saf"), QUIET)) == [3, 2, 1]
    result = plan(make_snapshot(jobs), by_name("saf"), QUIET, AppliedChanges(largest=before))
    assert queue_after(result) == [2, 1, 3]
    assert set(before.grown(make_snapshot(jobs)).shrunk(jobs)) == {3}
    # Another job has the id now.
    another = LargestRequests.of({3: Request(int(jobs.submit_time[2]) - 5, 8, 3600.0)})
    assert queue_after(plan(make_snapshot(jobs), by_name("saf"), QUIET, AppliedChanges(largest=another))) == [3, 2, 1]


def test_what_a_row_that_cannot_be_understood_seems_to_ask_for_is_not_remembered_and_what_it_asked_for_before_is():
    jobs = pending(3, gpus=[4, 2, 1], time_limit=[3600.0, np.inf, np.inf])
    before = LargestRequests.of({job: Request(int(jobs.submit_time[0]), 8, 60.0) for job in (3, 7)})
    before = replace(before, submit_time=jobs.submit_time[[2, 2]].astype(np.int64))
    # Job 7 has no row of its own.
    strange = replace(make_snapshot(jobs), unread=Unread(jobs=dict.fromkeys((2, 3, 7), "column TimeLimit")))
    grown = before.grown(strange)
    assert (grown.job_id.tolist(), grown.gpus.tolist()) == ([1, 3, 7], [4, 8, 8])
    assert grown.time_limit.tolist() == [3600.0, 60.0, 60.0]
    # squeue tells what all ask for, where sprio says nothing of any.
    silent = replace(make_snapshot(jobs), unread=Unread(listed={RowKind.SITE_FACTOR: ()}))
    grown = before.grown(silent).grown(silent)
    assert (grown.job_id.tolist(), grown.gpus.tolist()) == ([1, 2, 3], [4, 2, 8])

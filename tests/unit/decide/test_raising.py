"""The rule, sentence by sentence: who goes ahead, whom he passes, and who lends for it.

Unless a test says otherwise each job belongs to another user, has one GPU, has waited for an hour (so that it may lend
360 GPU-seconds), and a raised job is charged for 100 s. The first job is the first in Slurm's own order.
"""

import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied
from rltuned.core.config import Config, LendSection, ScopeSection
from rltuned.decide.loans import Book, Given, Offer, Part
from rltuned.decide.managed import ManagedJobs, managed_jobs
from rltuned.decide.raising import LEAST_SECONDS, UNLIMITED, Raised, Stop, charged_seconds, lendable, raise_jobs

from .conftest import NOW, make_snapshot, pending

HOUR = 3600.0
WHOLE = 360.0  # GPU-seconds that a job of one GPU may lend after an hour


@dataclass(frozen=True)
class Outcome:
    managed: ManagedJobs
    found: Raised

    @property
    def targets(self) -> dict[int, int]:
        """Of the jobs that get another priority than Slurm alone gives them."""
        base, target = self.managed.base.tolist(), self.found.target.tolist()
        return {job: to for job, alone, to in zip(self.ids, base, target, strict=True) if to != alone}

    @property
    def ids(self) -> list[int]:
        return self.managed.snapshot.jobs.job_id[self.managed.rows].tolist()

    @property
    def order(self) -> list[int]:
        """All pending jobs, as Slurm would look at them afterwards."""
        scope, jobs = self.managed.scope, self.managed.snapshot.jobs
        priority = scope.base.copy()
        priority[self.managed.at] = self.found.target
        order = np.lexsort((self.managed.tie, -priority, -scope.tier))
        return jobs.job_id[scope.rows[order]].tolist()

    def lenders(self, job: int) -> dict[int, float]:
        """GPUs by lender."""
        return {part.lender: part.gpus for part in self.found.offers[job].parts}

    def stop(self, job: int) -> tuple[Stop, int]:
        at = self.ids.index(job)
        return Stop(self.found.stop[at]), int(self.found.stopped_by[at])


def decided(n, wanted, *, seconds=100.0, book=None, share=0.1, most=16, ours=None, scope=None, arrays=None, **columns):
    """What becomes of `n` jobs when the policy wants these ids, in that order; `seconds` of each of them.

    `ours`: site factor that an earlier cycle has left, by job. `arrays`: array of each task that runs.
    """
    columns.setdefault("user", [f"user{at}" for at in range(n)])
    columns.setdefault("priority", [1000 - 100 * at for at in range(n)])
    columns.setdefault("submit_time", NOW - HOUR)
    site = np.broadcast_to(np.asarray(columns.pop("site_factor", 0)), (n,)).copy()
    for job, value in (ours or {}).items():
        site[job - 1] = value
    columns["priority"] = np.asarray(columns["priority"]) + site
    jobs = pending(n, site_factor=site, **columns)
    snapshot = replace(make_snapshot(jobs), array_of=arrays or {})
    applied = {
        job: Applied(job, int(jobs.submit_time[job - 1]), site_factor=value) for job, value in (ours or {}).items()
    }
    managed = managed_jobs(snapshot, Config(scope=scope or ScopeSection()), AppliedChanges(applied))
    ids = jobs.job_id[managed.rows].tolist()
    window = np.array([ids.index(job) for job in wanted], dtype=np.intp)
    cost = np.broadcast_to(np.asarray(seconds, dtype=np.float64), (len(wanted),))
    book = book or Book(time=NOW)
    found = raise_jobs(
        managed, window, -np.arange(len(wanted), dtype=np.float64), cost, book, LendSection(share=share, most=most)
    )
    return Outcome(managed, found)


def has_lent(gpu_seconds, job=1, submit_time=NOW - HOUR):
    return Book(time=NOW, given={job: Given(int(submit_time), gpu_seconds, 1, (99,))})


# --- going ahead


def test_a_job_goes_just_before_the_first_that_can_lend_and_that_one_lends():
    made = decided(3, [3])
    assert (made.targets, made.order) == ({3: 1001}, [3, 1, 2])
    assert made.lenders(3) == {1: 1.0}, "one GPU is covered by the first: the second lends nothing"
    assert made.found.offers[3] == Offer(int(NOW - HOUR), 1, 1, 1.0, 100.0, (Part(1, int(NOW - HOUR), 1.0),))
    assert made.stop(3) == (Stop.FRONT, 0)


def test_a_job_that_has_lent_its_part_is_passed_by_nobody_else():
    made = decided(3, [3], book=has_lent(WHOLE))
    assert (made.order, made.lenders(3)) == ([1, 3, 2], {2: 1.0})
    assert made.stop(3) == (Stop.LENT, 1)
    # Not even where those before it would cover the size.
    behind = decided(3, [3], book=has_lent(WHOLE, job=2))
    assert (behind.targets, behind.stop(3)) == ({}, (Stop.LENT, 2))


def test_a_raised_job_keeps_its_place_while_that_is_lent_and_moves_where_that_halves_the_number_before_it():
    five = {"seconds": 100.0, "book": has_lent(WHOLE)}
    # It stands behind the second, and could pass that one, too: one of two.
    made = decided(5, [5], ours={5: 250}, **five)
    assert (made.targets, made.order) == ({5: 901}, [1, 5, 2, 3, 4])
    # Behind the third: two of three.
    made = decided(6, [6], ours={6: 350}, **five)
    assert (made.targets, made.order) == ({6: 901}, [1, 6, 2, 3, 4, 5])
    # It could pass one of three that it may pass; where all before it can lend, it goes to the front.
    waits = [NOW - HOUR, *[NOW - 1800.0] * 2, *[NOW - 7200.0] * 4]
    made = decided(
        7, [7], ours={7: 250}, eligible_time=waits, submit_time=NOW - 7200.0, seconds=190.0, book=Book(time=NOW)
    )
    assert (made.order, made.stop(7)) == ([7, 1, 2, 3, 4, 5, 6], (Stop.FRONT, 0))
    lent = has_lent(WHOLE, submit_time=NOW - 7200.0)
    made = decided(7, [7], ours={7: 250}, eligible_time=waits, submit_time=NOW - 7200.0, seconds=190.0, book=lent)
    assert (made.targets, made.stop(7)) == ({7: 650}, (Stop.FEW, 3))
    # What it stands before can lend no more: it goes back as far as it must.
    made = decided(7, [7], ours={7: 450}, book=has_lent(WHOLE, job=3))
    assert (made.targets, made.order) == ({7: 701}, [1, 2, 3, 7, 4, 5, 6])


def test_one_that_cannot_lend_as_much_as_the_other_would_use_is_not_passed():
    made = decided(3, [3], book=has_lent(WHOLE - 99.0))
    assert (made.order, made.stop(3)) == ([1, 3, 2], (Stop.LENT, 1))
    assert decided(3, [3], book=has_lent(WHOLE - 100.0)).order == [3, 1, 2]
    # One that has lent nothing yet, and can lend nothing, is passed where those before it cover the size.
    fresh = decided(3, [3], eligible_time=[NOW - HOUR, NOW, NOW])
    assert (fresh.order, fresh.lenders(3)) == ([3, 1, 2], {1: 1.0})


def test_of_one_user_half_of_those_that_may_be_raised_come_before_others():
    users, columns = ["a", "a", *"b" * 5], {"cpus": [1, 1, 2, 3, 4, 5, 6], "seconds": 60.0, "most": 3}
    assert list(decided(7, [3, 4, 5, 6, 7], user=users, **columns).targets) == [3, 4, 5]
    users[-1] = "c"
    assert list(decided(7, [3, 4, 5, 6, 7], user=users, **columns).targets) == [3, 4, 7]
    # Also where all places are taken by that user's jobs.
    ours = {3: 250, 4: 350, 5: 450}
    assert list(decided(7, [3, 4, 5, 6, 7], user=users, ours=ours, **columns).targets) == [3, 4, 7]


def test_at_most_so_many_are_ahead_at_a_time():
    made = decided(6, [6, 5, 4, 3], most=2)
    assert made.order == [6, 5, 1, 2, 3, 4]
    assert [made.stop(job)[0] for job in (4, 3)] == [Stop.MOST, Stop.MOST]
    assert decided(6, [6, 5], most=0).targets == {}


def test_one_that_is_wanted_more_and_has_nobody_to_pass_stays_ahead():
    made = decided(3, [1, 3])
    assert (made.order, made.lenders(3), made.stop(1)) == ([1, 3, 2], {2: 1.0}, (Stop.FRONT, 0))
    assert decided(3, [1, 2, 3]).targets == {}
    # One that is wanted less is passed, and so is one that shares no nodes.
    assert decided(3, [3, 1]).order == [3, 1, 2]
    assert decided(3, [1, 3], gpu_type=["p100", "", "k80"]).targets == {3: 901}


def test_a_job_that_the_policy_has_not_seen_stays():
    assert decided(3, [2]).stop(3) == (Stop.UNSEEN, 0)


# --- who is passed, and who not


@pytest.mark.parametrize(
    ("columns", "scope"),
    [
        ({"deadline": [NOW + HOUR, np.nan, np.nan]}, {}),
        ({"site_known": [False, True, True]}, {}),
        ({"qos": ["normal,low", "normal", "normal"]}, {}),
        ({"qos": ["high", "normal", "normal"]}, {"exclude_qos": ("high",)}),
        ({"partition": ["share", "gpu", "gpu"]}, {"exclude_partitions": ("share",)}),
        ({"account": ["secret", "acct", "acct"]}, {"exclude_accounts": ("secret",)}),
        ({"user": ["bob", "a", "b"]}, {"exclude_users": ("bob",)}),
        ({"partition": ["share", "gpu", "gpu"]}, {"partitions": ("gpu",)}),
    ],
)
def test_nobody_passes_a_job_that_is_out_of_scope_or_of_which_too_little_is_known(columns, scope):
    made = decided(3, [3], scope=ScopeSection(**scope), **columns)
    assert (made.order, made.stop(3)) == ([1, 3, 2], (Stop.DECIDED, 1))


@pytest.mark.parametrize(
    "columns",
    [
        {"reason": ["Resources", "Licenses", "Priority"]},
        {"reason": ["Resources", "AssocGrpGRES", "Priority"]},
        {"dependent": [False, True, False]},
        {"eligible_time": [NOW - HOUR, NOW + 60.0, NOW - HOUR]},
        {"eligible_time": [NOW - HOUR, np.nan, NOW - HOUR]},
        {"nodes": [1, 9, 1]},
        {"held": [False, True, False]},
    ],
)
def test_passing_a_job_that_cannot_start_costs_nobody_anything(columns):
    # It would stop everybody if it could start.
    made = decided(3, [3], deadline=[np.nan, NOW + HOUR, np.nan], gpus=[1, 1, 2], **columns)
    assert (made.targets, made.lenders(3)) == ({3: 1001}, {1: 1.0})


def test_of_one_users_jobs_that_ask_for_the_same_slurms_order_stands():
    made = decided(4, [4, 3], user=["a", "b", "c", "c"])
    assert made.order == [3, 4, 1, 2], "whatever the policy says"
    # The older one would use more than the first can lend: the younger one does not go past it.
    made = decided(3, [2, 3], user=["a", "c", "c"], seconds=[500.0, 50.0])
    assert (made.targets, made.stop(3)) == ({}, (Stop.SIBLING, 2))
    # Neither where it goes ahead itself, but less far.
    made = decided(
        4, [3, 4], user=["a", "b", "c", "c"], eligible_time=[NOW - 600.0] + [NOW - HOUR] * 3, seconds=[100.0, 50.0]
    )
    assert made.order == [1, 3, 4, 2]
    # What asks for something else is free to go.
    assert decided(3, [3], user=["a", "c", "c"], cpus=[1, 1, 2], seconds=50.0).order == [3, 1, 2]


# --- several partitions, arrays


def test_a_job_that_stands_before_another_in_its_best_partition_is_not_raised_and_nobody_lends():
    made = decided(
        2, [2], partition=["gpu", "gpu,share"], priority=[700, 1000], base=[700, 1000], base_least=[700, 500]
    )
    assert (made.targets, made.found.offers, made.found.raises) == ({}, {}, ())
    # It is raised where that lets it pass one before it.
    made = decided(
        3, [3], partition=["gpu", "gpu", "gpu,share"], priority=[1200, 700, 1000], base=[1200, 700, 1000],
        base_least=[1200, 700, 500],
    )  # fmt: skip
    assert made.targets == {3: 1202}, "and a little more, for all that are raised to stand there"


def test_an_array_lends_and_borrows_for_each_task_that_may_start():
    array = decided(3, [3], array_tasks=[0, 0, 3], gpus=[1, 4, 1], gpu_type="p100")
    assert (array.lenders(3), array.found.offers[3].tasks, array.found.offers[3].able) == ({1: 1.0, 2: 2.0}, 3, 3)
    # Of 20 tasks four at a time, of which three run.
    running = {900 + task: 3 for task in range(3)}
    few = decided(3, [3], array_tasks=[0, 0, 20], array_limit=[0, 0, 4], arrays=running)
    assert (few.lenders(3), few.found.offers[3].tasks, few.found.offers[3].able) == ({1: 1.0}, 20, 1)
    # Its user lifts the limit: it goes ahead with all tasks, or not at all.
    one = {"array_tasks": [0, 4], "gpus": [4, 1], "gpu_type": "p100", "seconds": 400.0}
    assert decided(2, [2], array_limit=[0, 1], **one).lenders(2) == {1: 1.0}
    assert decided(2, [2], ours={2: 102}, **one).targets == {}
    assert decided(2, [2], ours={2: 102}, **{**one, "seconds": 300.0}).lenders(2) == {1: 4.0}
    lender = decided(2, [2], array_tasks=[3, 0], gpus=[1, 4], gpu_type="p100")
    assert lender.lenders(2) == {1: 3.0}
    assert lender.found.lendable[0] == pytest.approx(3 * WHOLE)
    limited = decided(2, [2], array_tasks=[9, 0], array_limit=[2, 0], gpus=[1, 4], gpu_type="p100")
    assert (limited.lenders(2), limited.found.lendable[0]) == ({1: 2.0}, pytest.approx(2 * WHOLE))


# --- what it is worth


def test_a_job_may_lend_a_part_of_its_wait_times_its_size_less_what_it_has_lent():
    made = decided(4, [], gpus=[4, 1, 1, 1], gpu_type="p100", eligible_time=[NOW - HOUR, NOW - 2 * HOUR, NOW, np.nan])
    assert made.found.lendable.tolist() == pytest.approx([4 * WHOLE, 2 * WHOLE, 0.0, 0.0])
    book = has_lent(WHOLE + 1.0)
    assert lendable(made.managed, book, 0.1)[0] == pytest.approx(3 * WHOLE - 1.0)
    assert (lendable(made.managed, book, 0.0) <= 0).all()


def test_charged_is_the_median_but_at_least_a_twentieth_of_the_limit_and_a_minute():
    median = np.array([500.0, 10.0, np.nan, 9000.0, 1.0, np.nan])
    limit = np.array([1000.0, 10_000.0, 700.0, 5000.0, 60.0, np.inf])
    assert charged_seconds(median, limit).tolist() == [500.0, 500.0, 700.0, 5000.0, LEAST_SECONDS, UNLIMITED]


def promising(parts):
    """A book of jobs of one GPU that could not be given back; `parts`: the ids of the lenders of each, by its id."""
    offers = {
        job: Offer(int(NOW - HOUR), 1, 1, 1.0, WHOLE, tuple(Part(of, int(NOW - HOUR), 1.0) for of in lenders), True)
        for job, lenders in parts.items()
    }
    return Book(time=NOW, offers=offers)


def test_what_was_promised_to_a_job_that_could_not_be_given_back_is_lent_to_nobody_but_that_one():
    assert decided(3, [3], book=promising({2: [1]})).targets == {3: 901}, "it passes 2 alone"
    assert decided(3, [3], book=promising({3: [1]})).targets == {3: 1001}
    assert decided(3, [3], book=promising({2: [77]})).targets == {3: 1001}, "its lender has left the queue"


def test_what_was_promised_takes_memory_for_who_promised_it_and_not_for_all_who_wait():
    n = 3000
    book = promising({job: [n + 1 - job] for job in range(1, n + 1)})
    tracemalloc.start()
    try:
        made = decided(n, [n], book=book, priority=np.arange(n, 0, -1) * 100)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.order[0] == n, "1 has promised all it has to this very job"
    assert most < 4 * n * n, "bytes: a number for each of both would take twice as many"


# --- which value


def test_a_job_that_stands_right_keeps_the_priority_that_it_has():
    assert decided(3, [3], ours={3: 250}).targets == {3: 1050}, "800 + 250: before the first, whose priority is 1000"
    assert decided(3, [3], ours={3: 150}).targets == {3: 1001}, "that was behind the first"
    # Between 900 and 1000, which has lent its part, it may stay; before that it may not.
    lent = has_lent(WHOLE)
    assert decided(3, [3], ours={3: 150}, book=lent).targets == {3: 950}
    assert decided(3, [3], ours={3: 250}, book=lent).targets == {3: 901}
    assert decided(3, [], ours={3: 250}).targets == {}, "wanted no more"
    # At the upper end a point of age that is cut off at another moment would put it before the first.
    assert decided(3, [3], ours={3: 199}, book=lent).targets == {3: 999}
    assert decided(3, [3], ours={3: 200}, book=lent).targets == {3: 901}
    assert decided(3, [3], priority=[902, 900, 800], ours={3: 101}, book=lent).targets == {3: 901}, "no other number"


def test_of_those_without_room_the_last_is_left_out_which_may_make_room_for_the_others():
    """There is no number for 4 and for 5; once 5 is left out, there is one for 4."""
    made = decided(
        8,
        [2, 8, 4, 3, 7, 5],
        priority=[507, 504, 501, 502, 504, 505, 505, 506],
        submit_time=[NOW - HOUR - 13.0 * (job == 3) for job in range(1, 9)],
        user=["a", "a", "b", "c", "b", "d", "a", "e"],
        cpus=[3, 3, 1, 1, 1, 1, 3, 1],
        seconds=[100.0, 100.0, 100.0, 60.0, 100.0, 100.0],
        book=has_lent(WHOLE, job=4),
    )
    assert made.targets == {2: 505, 4: 506, 7: 507, 8: 508}

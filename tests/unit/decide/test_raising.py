"""The rule, sentence by sentence: who goes ahead, whom he passes, and who lends for it.

Unless a test says otherwise each job belongs to another user, has one GPU, has waited for an hour (so that it may lend
360 GPU-seconds), and a raised job is charged for 100 s. The first job is the first in Slurm's own order.
"""

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
WHOLE = 360.0
"""GPU-seconds that a job of one GPU may lend after an hour."""


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


def test_the_first_lend_each_as_many_gpus_as_it_has_until_the_size_is_covered():
    made = decided(4, [4], gpus=[1, 2, 4, 4], gpu_type="p100")
    assert made.lenders(4) == {1: 1.0, 2: 2.0, 3: 1.0}
    assert made.order == [4, 1, 2, 3]


def test_where_all_that_are_passed_are_smaller_they_lend_all_that_they_have():
    made = decided(2, [2], gpus=[1, 4], gpu_type="p100")
    assert (made.lenders(2), made.targets) == ({1: 1.0}, {2: 1001})


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


def test_who_goes_ahead_is_not_replaced_by_others_on_the_same_nodes():
    columns = {"user": [*"abcd"], "cpus": [1, 2, 3, 4]}
    assert decided(4, [4, 3], most=1, **columns).order == [4, 1, 2, 3]
    made = decided(4, [4, 3], most=1, ours={3: 205}, **columns)
    assert (made.targets, made.stop(4)) == ({3: 1005}, (Stop.MOST, 0))
    # It has nobody left to pass: another one goes ahead.
    made = decided(4, [4, 3], most=1, ours={3: 205}, decided=["qos=1", "qos=1", "", "qos=1"], **columns)
    assert (made.order, made.stop(3)) == ([4, 1, 2, 3], (Stop.DECIDED, 2))
    # Other nodes are no matter of its own.
    elsewhere = {"gpu_type": ["p100", "m40", "p100", "m40"]}
    assert decided(4, [4, 3], most=1, ours={3: 205}, **columns, **elsewhere).order == [1, 4, 2, 3]


def test_where_a_job_goes_that_is_wanted_less_changes_nothing_for_one_that_cannot_go_there():
    book = Book(time=NOW, given={1: Given(int(NOW - HOUR), WHOLE - 60.0, 1, ())})
    made = decided(5, [4, 5], seconds=[100.0, 60.0], user=[*"abcdd"], cpus=[1, 1, 1, 1, 2], book=book)
    assert (made.order, made.targets) == ([5, 1, 4, 2, 3], {4: 901, 5: 1001})
    # Another user's job does not pass the one that is wanted more, though the first could lend to it.
    made = decided(5, [4, 5], seconds=[100.0, 60.0], user=[*"abcde"], cpus=[1, 1, 1, 1, 2], book=book)
    assert (made.order, made.stop(4), made.stop(5)) == ([1, 4, 5, 2, 3], (Stop.LENT, 1), (Stop.AHEAD, 0))


def test_one_that_cannot_lend_as_much_as_the_other_would_use_is_not_passed():
    made = decided(3, [3], book=has_lent(WHOLE - 99.0))
    assert (made.order, made.stop(3)) == ([1, 3, 2], (Stop.LENT, 1))
    assert decided(3, [3], book=has_lent(WHOLE - 100.0)).order == [3, 1, 2]
    # One that has lent nothing yet, and can lend nothing, is passed where those before it cover the size.
    fresh = decided(3, [3], eligible_time=[NOW - HOUR, NOW, NOW])
    assert (fresh.order, fresh.lenders(3)) == ([3, 1, 2], {1: 1.0})


def test_the_last_of_the_lenders_needs_its_part_only():
    lent = Book(time=NOW, given={2: Given(int(NOW - HOUR), 4 * WHOLE - 100.0, 1, ())})
    made = decided(3, [3], gpus=[1, 4, 2], gpu_type="p100", book=lent)
    assert (made.order, made.lenders(3)) == ([3, 1, 2], {1: 1.0, 2: 1.0})
    assert decided(3, [3], gpus=[1, 4, 2], gpu_type="p100", book=lent, seconds=101.0).order == [1, 2, 3]


def test_of_one_user_half_of_those_that_may_be_raised_come_before_others():
    users, columns = ["a", "a", *"b" * 5], {"cpus": [1, 1, 2, 3, 4, 5, 6], "seconds": 60.0, "most": 3}
    assert list(decided(7, [3, 4, 5, 6, 7], user=users, **columns).targets) == [3, 4, 5]
    users[-1] = "c"
    assert list(decided(7, [3, 4, 5, 6, 7], user=users, **columns).targets) == [3, 4, 7]
    # Also where all places are taken by that user's jobs.
    ours = {3: 250, 4: 350, 5: 450}
    assert list(decided(7, [3, 4, 5, 6, 7], user=users, ours=ours, **columns).targets) == [3, 4, 7]


def test_what_one_raised_job_borrows_the_next_cannot():
    made = decided(4, [3, 4], seconds=[200.0, 200.0])
    assert made.order == [3, 1, 4, 2]
    assert (made.lenders(3), made.lenders(4)) == ({1: 1.0}, {2: 1.0})
    assert decided(4, [3, 4], seconds=[180.0, 180.0]).order == [3, 4, 1, 2]


def test_what_is_promised_to_a_job_that_could_not_be_given_back_stays_promised():
    offer = Offer(int(NOW - HOUR), 1, 1, 1.0, 300.0, (Part(1, int(NOW - HOUR), 1.0),), unwanted=True)
    book = Book(time=NOW, offers={4: offer})
    assert decided(4, [3], book=book, ours={4: 400}).order == [1, 3, 2, 4]
    # The job itself has it: wanted again, it keeps its place.
    assert decided(4, [4], book=book, ours={4: 400}).order == [4, 1, 2, 3]


def test_nothing_can_be_lent_where_the_share_is_nought_and_own_jobs_pass_all_the_same():
    assert decided(3, [3], share=0.0).targets == {}
    mine = decided(3, [3], share=0.0, user=["a", "b", "b"], time_limit=[600.0, 600.0, 60.0])
    assert (mine.order, mine.found.offers[3].parts) == ([1, 3, 2], ())


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
    ("first", "third"),
    [
        ("partition=50", ""),
        ("qos=50", ""),
        ("assoc=50", ""),
        ("", "nice=50"),
        ("partition=50 or partition=0", ""),
        ("partition=50", "partition=50 or partition=0"),
        ("partition=100 nice=50", "qos=20"),
    ],
)
def test_nobody_passes_a_job_for_which_more_was_decided(first, third):
    made = decided(3, [3], decided=[first, "", third])
    assert made.order[0] == 1
    assert made.stop(3) == ((Stop.DECIDED, 2) if third.startswith("nice") else (Stop.DECIDED, 1))
    # The other way round it is a loan as any other.
    assert decided(3, [3], decided=[third if "or" not in third else "", "", first.split(" or")[0]]).order == [3, 1, 2]


def test_not_even_the_own_user_passes_what_he_has_put_behind_with_a_nice():
    made = decided(2, [2], user="a", time_limit=[600.0, 60.0], decided=["", "nice=50"])
    assert (made.targets, made.stop(2)) == ({}, (Stop.DECIDED, 1))


def test_what_somebody_else_adds_to_a_priority_was_decided_and_what_he_takes_away_too():
    assert decided(3, [3], site_factor=[300, 0, 0], priority=[900, 900, 800]).order == [1, 3, 2]
    lowered = decided(3, [3], site_factor=[-50, 0, 0], priority=[1000, 900, 800])
    assert (lowered.order, lowered.lenders(3), lowered.targets) == ([3, 1, 2], {1: 1.0}, {3: 951})


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


def test_the_own_jobs_are_passed_for_nothing():
    made = decided(4, [4], user=["a", "b", "a", "a"], time_limit=[900.0, 900.0, 900.0, 60.0])
    assert (made.order, made.lenders(4)) == ([4, 1, 2, 3], {2: 1.0})
    # Own ones that have lent their part do not stop the user himself.
    alone = decided(2, [2], user="a", time_limit=[900.0, 60.0], book=has_lent(WHOLE))
    assert (alone.order, alone.lenders(2)) == ([2, 1], {})


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


def test_jobs_that_share_no_nodes_do_not_matter():
    kinds = ["p100", "k80", "k80"]
    made = decided(3, [3], gpu_type=kinds, decided=["partition=900", "", ""], book=has_lent(WHOLE))
    assert (made.targets, made.lenders(3)) == ({3: 901}, {2: 1.0})
    assert decided(3, [3], gpu_type=kinds, book=has_lent(WHOLE, job=2)).targets == {}
    # Any GPU may be a P100, too.
    assert decided(3, [3], gpu_type=["p100", "k80", ""], book=has_lent(WHOLE)).order == [1, 3, 2]


def test_a_job_moves_among_those_of_its_tier_only():
    tiers = ["urgent", "gpu", "urgent", "gpu"]
    made = decided(4, [4, 3], partition=tiers)
    assert (made.targets, made.lenders(4), made.lenders(3)) == ({4: 901, 3: 1001}, {2: 1.0}, {1: 1.0})
    assert made.order == [3, 1, 4, 2]
    # One that may run in both tiers stands in both.
    both = decided(3, [3], partition=["gpu,urgent", "gpu", "gpu"], book=has_lent(WHOLE))
    assert (both.targets, both.lenders(3)) == ({3: 901}, {2: 1.0})


def test_jobs_in_a_reservation_meet_those_in_one_only():
    every = ScopeSection(exclude_reservations=())
    made = decided(3, [3], reservation=["lab", "", ""], scope=every)
    assert (made.targets, made.lenders(3)) == ({3: 901}, {2: 1.0})
    made = decided(3, [3], reservation=["lab", "", "lab"], scope=every)
    assert (made.targets, made.lenders(3)) == ({3: 1001}, {1: 1.0})


# --- several partitions, arrays


def test_of_a_job_in_several_partitions_each_place_counts_and_it_lends_once():
    several = {"partition": ["gpu,share", "gpu", "gpu", "gpu"], "gpus": [1, 1, 1, 4], "gpu_type": "p100"}
    base, least = [1000, 900, 800, 700], [850, 900, 800, 700]
    made = decided(4, [4], base=base, base_least=least, **several)
    assert (made.targets, made.lenders(4)) == ({4: 1001}, {2: 1.0, 1: 1.0, 3: 1.0})
    # It has lent its part: the place in its worse partition is not passed either.
    made = decided(4, [4], base=base, base_least=least, book=has_lent(WHOLE), **several)
    assert (made.targets, made.lenders(4)) == ({4: 801}, {3: 1.0})
    # In the better partition it is passed, though in the other one it stays behind: it lends.
    made = decided(2, [2], partition=["gpu,share", "gpu"], base=[1000, 800], base_least=[500, 800])
    assert (made.targets, made.lenders(2)) == ({2: 1001}, {1: 1.0})


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


def test_several_that_pass_the_same_job_stand_in_the_order_of_the_policy():
    made = decided(5, [5, 3, 4], seconds=60.0)
    assert made.order == [5, 3, 4, 1, 2]
    assert made.targets == {4: 1001, 3: 1001, 5: 1002}, "the third was submitted before the fourth"


def test_of_jobs_of_the_same_priority_the_earlier_submission_is_the_first():
    same = {"priority": [500, 500, 500], "submit_time": [NOW - HOUR, NOW - HOUR + 1, NOW - HOUR + 2]}
    assert decided(3, [3], **same).targets == {3: 501}
    # An older one needs no more than the priority of whom it passes.
    older = {"priority": [500, 400], "submit_time": [NOW - HOUR, NOW - HOUR - 60.0]}
    assert decided(2, [2], **older).targets == {2: 500}


def test_where_no_priority_lies_between_two_jobs_it_goes_behind_the_next_with_room():
    """The first has lent its part, the second has the same priority: there is no number between them."""
    made = decided(4, [4], priority=[500, 500, 450, 400], book=has_lent(WHOLE))
    assert (made.targets, made.lenders(4)) == ({4: 451}, {3: 1.0})
    made = decided(3, [3], priority=[500, 500, 400], book=has_lent(WHOLE))
    assert made.targets == {}
    assert decided(3, [3], priority=[501, 500, 400], book=has_lent(WHOLE)).targets == {3: 501}


def test_one_that_is_wanted_less_is_left_out_where_there_is_room_for_one_only():
    """One number lies between the first, which has lent its part, and the second; there the older one comes first."""
    columns = {"priority": [501, 500, 400, 300], "book": has_lent(WHOLE), "seconds": 60.0}
    columns["submit_time"] = [NOW - HOUR, NOW - HOUR + 1, NOW - HOUR + 3, NOW - HOUR + 2]
    made = decided(4, [3, 4], **columns)
    assert (made.targets, made.order) == ({3: 501}, [1, 3, 2, 4])
    # What would stand before it has been there in Slurm's own order, too.
    made = decided(4, [4, 3], **columns)
    assert (made.targets, made.order) == ({3: 501, 4: 501}, [1, 4, 3, 2])


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


def test_one_that_is_wanted_less_does_not_go_past_one_that_is_raised_and_lends_nothing():
    # The third is wanted first, but the first cannot lend so much; to the fourth it could.
    columns = {"eligible_time": [NOW - HOUR, NOW - 2 * HOUR, NOW - HOUR, NOW - HOUR], "seconds": [370.0, 60.0]}
    made = decided(4, [3, 4], **columns)
    assert (made.order, made.lenders(4)) == ([1, 3, 4, 2], {2: 1.0})
    own = decided(4, [3, 4], user=["a", "b", "c", "c"], cpus=[1, 1, 1, 2], **columns)
    assert (own.order, own.lenders(4)) == ([4, 1, 3, 2], {1: 1.0}), "the own one may"
    nice = decided(
        4,
        [3, 4],
        user=["a", "b", "c", "c"],
        cpus=[1, 1, 1, 2],
        decided=["nice=10"] * 2 + ["nice=9", "nice=10"],
        **columns,
    )
    assert nice.order == [1, 3, 4, 2], "not if its user put it behind with a nice"


def test_nothing_is_below_what_slurm_alone_gives():
    rng = np.random.default_rng(3)
    for _ in range(20):
        made = decided(12, rng.permutation(np.arange(1, 13)).tolist(), priority=np.sort(rng.integers(1, 30, 12))[::-1])
        assert (made.found.target >= made.managed.base).all()

"""The book of loans: what becomes of what was lent, reading by reading.

Job 1 lends; jobs from 11 on borrow. Each reading is a minute after the last.
"""

import json
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from rltuned.core.changes import JobState
from rltuned.core.plain_tables import job_table
from rltuned.core.unread import Unread
from rltuned.decide import loans
from rltuned.decide.loans import UNTOLD, Book, Given, Inherited, Offer, Part, Told

from .conftest import NOW, make_snapshot

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
SUBMIT = int(NOW - 10 * HOUR)


@dataclass
class Row:
    """A job in the queue."""

    state: JobState = JobState.PENDING
    start: float = np.nan
    submit: float = SUBMIT
    user: str = "lender"
    minutes: int = 10  # time limit
    tasks: int = 0
    limit: int = 0
    array: int = 0  # of a task that has a record of its own
    gpus: int = 1
    eligible: float = np.nan


@dataclass
class World:
    """A queue, an accounting, and the book as it goes from reading to reading."""

    rows: dict[int, Row] = field(default_factory=lambda: {1: Row()})
    now: float = NOW
    jump: float = 0.0  # by which the wall clock is wrong
    took: dict[int, tuple[float, float]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    """Jobs of which a row is there, and cannot be understood."""
    book: Book = field(default_factory=Book)

    def __post_init__(self):
        self.read(0.0)

    def snapshot(self):
        rows = sorted((job, row) for job, row in self.rows.items() if job not in self.unread)
        eligible = [row.submit if np.isnan(row.eligible) else row.eligible for _, row in rows]
        held = {JobState.RUNNING: (0,), JobState.PENDING: (), JobState.OTHER: ()}
        jobs = job_table(
            len(rows),
            [held[row.state] for _, row in rows],
            job_id=[job for job, _ in rows],
            state=[int(row.state) for _, row in rows],
            submit_time=[row.submit for _, row in rows],
            eligible_time=eligible,
            start_time=[row.start for _, row in rows],
            user=[row.user for _, row in rows],
            time_limit=[60.0 * row.minutes for _, row in rows],
            array_tasks=[row.tasks for _, row in rows],
            array_limit=[row.limit for _, row in rows],
            gpus=[row.gpus for _, row in rows],
        )
        array_of = {job: row.array for job, row in rows if row.array}
        unread = Unread(jobs=dict.fromkeys(self.unread, "column Nice: cannot understand it"))
        return replace(make_snapshot(jobs, now=self.now + self.jump), array_of=array_of, unread=unread)

    def read(self, seconds=MINUTE):
        self.now += seconds
        self.book = self.book.advanced(self.snapshot(), self.now, Told(self.took.get, self.cancelled))
        return self

    def offer(self, job, *parts, seconds=100.0, tasks=1, able=1, size=1.0):
        """Job `job` goes ahead: the parts are GPUs by lender."""
        given = tuple(Part(lender, int(self.rows[lender].submit), gpus) for lender, gpus in parts)
        made = Offer(int(self.rows[job].submit), tasks, able, size, seconds, given)
        self.book = self.book.offering({**self.book.offers, job: made})
        return self

    def start(self, job, ago=0.0, **values):
        self.rows[job] = replace(
            self.rows.get(job) or Row(), state=JobState.RUNNING, start=self.now + self.jump - ago, **values
        )

    def requeue(self, job):
        self.rows[job] = replace(
            self.rows[job], state=JobState.PENDING, start=np.nan, submit=int(self.now + self.jump) + 1
        )

    def restart(self):
        """The daemon: what it knows is what is on disk."""
        self.book = Book.from_dict(json.loads(json.dumps(self.book.as_dict())))

    def lent(self, job=1):
        snapshot = self.snapshot()
        rows = np.array([snapshot.jobs.row_of[job]])
        return round(float(self.book.lent(snapshot.jobs, rows)[0]), 3)

    def wait(self, job=1):
        snapshot = self.snapshot()
        return round(float(self.book.wait(snapshot, np.array([snapshot.jobs.row_of[job]]))[0]), 3)


def borrowing(gpus=1):
    """Job 11 is raised, and 1 lends."""
    world = World()
    world.rows[11] = Row(user="borrower", gpus=gpus)
    return world.read().offer(11, (1, float(gpus)), size=float(gpus))


# --- one borrower


def test_while_it_runs_the_larger_of_what_was_predicted_and_what_it_has_used_is():
    world = borrowing(2)
    world.start(11)
    assert world.read().lent() == 200.0
    assert world.read(HOUR).lent() == 2 * (HOUR + MINUTE)


@pytest.mark.parametrize("told", [True, False])
def test_when_it_has_ended_exactly_what_it_used_is_lent_as_accounting_says_or_else_the_last_reading(told):
    world = borrowing()
    world.start(11)
    start = world.now
    world.read()
    del world.rows[11]
    assert world.read(600.0).lent() == 660.0, "until accounting tells"
    if told:
        world.took[11] = (start, 125.0)
    assert world.read().lent() == (125.0 if told else 660.0)
    assert bool(world.book.loans) != told
    assert world.read(DAY).lent() == (125.0 if told else 660.0)
    assert (world.book.loans, world.book.given[1].loans, world.book.given[1].borrowers) == ({}, 1, (11,))


def test_what_accounting_says_of_another_run_does_not_count():
    world = borrowing()
    world.start(11)
    world.read()
    world.took[11] = (world.now - 5 * HOUR, 3.0)
    del world.rows[11]
    assert world.read(600.0).lent() == 660.0
    # Nor what is more than it can have been.
    world.took[11] = (world.now - 660.0, 900.0)
    assert world.read().lent() == 660.0


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.OTHER, None])
def test_a_loan_ends_when_its_lender_starts_or_is_gone(state):
    world = borrowing()
    world.start(11)
    world.read()
    if state is None:
        del world.rows[1]
    elif state is JobState.PENDING:
        world.start(1)
    else:
        world.rows[1].state = state
    world.read()
    assert (world.book.loans, world.book.given) == ({}, {})
    # It waits again, as another job.
    world.rows[1] = Row(submit=world.now)
    assert world.read().lent() == 0


def test_a_borrower_in_a_state_that_nobody_knows_has_ended():
    world = borrowing()
    world.start(11)
    world.read()
    world.rows[11].state = JobState.OTHER
    assert world.read().read().lent() == 120.0


def test_one_that_ended_unseen_used_at_most_what_has_passed():
    world = borrowing()
    start = world.now + 5.0
    del world.rows[11]
    assert world.read().lent() == MINUTE
    world.took[11] = (start, 12.0)
    assert world.read().lent() == 12.0
    assert world.book.loans == {}


def test_one_that_was_cancelled_before_it_ran_used_nothing():
    world = borrowing()
    del world.rows[11]
    assert world.read().lent() == MINUTE, "nobody knows yet"
    world.cancelled.add(11)
    assert world.read().lent() == 0
    assert world.book.loans == {}


def test_one_that_is_given_back_and_then_starts_borrows_nothing():
    world = borrowing()
    world.book = world.book.carried(set())
    world.start(11)
    assert world.read().lent() == 0


# --- requeue, changes


def test_a_borrower_that_is_requeued_has_used_what_it_ran_and_its_next_run_is_lent_again():
    world = borrowing()
    world.start(11)
    start = world.now
    world.read().read()
    world.requeue(11)
    assert world.read().lent() == 180.0
    # It still carries the raise: it is on the book until it is given back.
    assert world.book.offers[11].parts == (Part(1, SUBMIT, 1.0),)
    world.start(11)
    assert world.read().lent() == 180.0 + 100.0
    assert world.read(10 * MINUTE).lent() == 180.0 + 660.0
    world.took[11] = (start, 170.0)
    assert world.read().lent() == 180.0 + 720.0, "that was the first run"


def test_a_raised_job_that_ran_and_was_requeued_between_two_readings_is_lent_and_keeps_its_raise():
    world = borrowing()
    world.start(11)
    world.requeue(11)
    assert world.read().lent() == MINUTE
    world.start(11)
    assert world.read().lent() == MINUTE + 100.0


def test_a_borrower_that_starts_with_more_than_it_was_raised_for_is_lent_what_it_takes():
    world = borrowing()
    world.start(11, gpus=4)
    assert world.read().lent() == 4 * 100.0
    less = borrowing(4)
    less.start(11, gpus=1)
    assert less.read().lent() == 400.0, "what it was raised for, until it has ended"


# --- rows that cannot be understood


@pytest.mark.parametrize("job", [1, 11])
def test_a_row_that_cannot_be_understood_for_a_while_changes_nothing_of_a_loan(job):
    world = borrowing()
    world.start(11)
    world.read()
    world.unread = {job}
    world.read().read()
    world.unread = set()
    assert world.read().lent() == 240.0
    assert set(world.book.loans) == {11}
    assert (world.book.left, world.book.inherited) == ({}, {})


def test_a_lender_whose_submit_time_cannot_be_understood_lends_on():
    world = borrowing()
    world.start(11)
    world.read()
    world.rows[1].submit = 0.0  # its row is there, and says something else
    strange = replace(world.snapshot(), unread=Unread(jobs={1: "column SubmitTime: cannot understand it"}))
    assert set(world.book.advanced(strange, world.book.time + MINUTE).loans) == {11}
    assert set(world.book.advanced(world.snapshot(), world.book.time + MINUTE).loans) == set()


def test_nor_of_a_raise_or_of_what_was_given():
    world = borrowing()
    world.book = replace(world.book, given={1: Given(SUBMIT, 50.0, 1, ())}, inherited={1: Inherited(SUBMIT, 99.0)})
    offer, wait = world.book.offers[11], world.wait()
    world.unread = {1, 11}
    world.read()
    world.unread = set()
    world.read()
    assert (world.book.offers, world.lent(), world.wait()) == ({11: offer}, 50.0, wait + 2 * MINUTE)
    world.start(11)
    assert world.read().lent() == 150.0


@pytest.mark.parametrize("there", [True, False])
def test_a_raised_array_whose_row_cannot_be_understood_lends_for_the_tasks_that_start(there):
    world = array(3, 3)
    task_starts(world, 20)
    was, world.now = world.rows[11], world.now + MINUTE
    if there:  # and says something else
        world.rows[11] = Row(submit=0.0, user="borrower", tasks=0)
        strange = replace(world.snapshot(), unread=Unread(jobs={11: "column SubmitTime: cannot understand it"}))
    else:
        world.unread = {11}
        strange = world.snapshot()
    world.book = world.book.advanced(strange, world.now)
    world.rows[11], world.unread = was, set()
    assert (world.lent(), set(world.book.loans), world.book.offers[11].tasks) == (100.0, {20}, 2)
    assert (world.read().lent(), world.book.given) == (120.0, {})


def test_a_task_of_before_that_cannot_be_understood_for_a_while_is_not_new():
    world = World({1: Row(), 11: Row(tasks=3)})
    task_starts(world, 20)
    world.read().offer(11, (1, 2.0), tasks=2, able=2)
    world.unread = {20}
    world.read()
    world.unread = set()
    assert world.read().lent() == 0


# --- arrays


def array(tasks, able, *parts, limit=0):
    world = World()
    world.rows[11] = Row(user="borrower", tasks=tasks, limit=limit)
    return world.read().offer(11, *(parts or ((1, float(able)),)), tasks=tasks, able=able)


def task_starts(world, task):
    world.start(task, user="borrower", array=11)
    world.rows[11].tasks -= 1


def test_tasks_of_an_array_that_start_one_by_one_are_lent_one_by_one():
    world = array(3, 3)
    task_starts(world, 21)
    assert world.read().lent() == 100.0
    task_starts(world, 22)
    assert world.read().lent() == 120.0 + 100.0
    # The last one takes the record.
    world.start(11, array=11, tasks=0)
    assert world.read().lent() == 180.0 + 120.0 + 100.0
    assert (set(world.book.loans), world.book.offers) == ({21, 22, 11}, {})


def test_tasks_that_start_together_use_up_the_lenders_in_their_order():
    world = World({1: Row(), 2: Row(), 3: Row(), 11: Row(tasks=3, gpus=2)})
    world.read().offer(11, (1, 1.0), (2, 3.0), (3, 2.0), tasks=3, able=3, size=2.0)
    for task in (21, 22):
        task_starts(world, task)
    world.read()
    assert [world.lent(job) for job in (1, 2, 3)] == [100.0, 300.0, 0]
    world.start(11, gpus=2)
    world.rows[11].tasks = 0
    world.read()
    assert [world.lent(job) for job in (1, 2, 3)] == [120.0, 360.0, 200.0]


@pytest.mark.parametrize(("tasks", "able"), [(20, 4), (20, 1)])
def test_an_array_with_a_limit_is_lent_for_the_tasks_that_run_though_others_wait(tasks, able):
    world = array(tasks, able, limit=able)
    for task in range(able):
        task_starts(world, 21 + task)
    assert world.read().lent() == able * 100.0
    assert world.book.offers[11].tasks == tasks - able
    # Their turn is over, the next ones have started, and the raise was not given back in time.
    for task in range(able):
        del world.rows[21 + task]
        task_starts(world, 31 + task)
    assert world.read().lent() == able * (MINUTE * 2 + 100.0)


def test_a_user_who_takes_the_limit_away_once_his_array_is_raised_borrows_for_all_that_start():
    world = array(20, 1, limit=1)
    for task in range(5):
        task_starts(world, 21 + task)
    assert world.read().lent() == 5 * 100.0


def test_short_tasks_of_an_array_with_a_limit_use_no_more_than_it():
    world = array(50, 2, limit=2)
    world.rows[11].tasks -= 30
    assert world.read().lent() == 2 * MINUTE


def test_a_task_that_started_in_the_second_of_the_last_reading_hides_no_other():
    world = array(5, 5)
    task_starts(world, 21)
    world.read(0.0)
    task_starts(world, 22)
    world.read()
    assert set(world.book.loans) == {21, 22}
    assert world.lent() == 200.0


def test_a_task_that_is_requeued_hides_none_that_starts_and_is_lent_when_it_starts_again():
    world = array(5, 5)
    task_starts(world, 21)
    world.read()
    # Slurm shows it with the array, and the array has a task more.
    first = world.rows.pop(21)
    world.rows[11].tasks += 1
    task_starts(world, 22)
    world.read()
    assert (set(world.book.loans), world.lent()) == ({21, 22}, 120.0 + 100.0)
    world.rows[21] = replace(first, submit=int(world.now), start=world.now)
    world.rows[11].tasks -= 1
    world.read()
    assert world.lent() == 120.0 + 120.0 + 100.0, "the first run, 22, and the second run"


def test_after_a_restart_the_start_tells_which_tasks_are_new():
    world = World({1: Row(), 11: Row(tasks=5)})
    task_starts(world, 20)
    world.read().offer(11, (1, 4.0), tasks=4, able=4)
    world.restart()
    world.now += HOUR - 30.0
    task_starts(world, 21)
    world.now -= HOUR - 30.0
    world.read(HOUR)
    assert set(world.book.loans) == {21}


# --- what a user gains by submitting again


def cancel(world, job=1):
    del world.rows[job]
    world.read()
    world.cancelled.add(job)


def test_a_cancelled_job_passes_its_wait_and_what_it_lent_to_the_next_of_the_same_request():
    world = borrowing()
    world.start(11)
    world.read()
    wait = world.wait()
    cancel(world)
    world.rows[12] = Row(submit=world.now, user="lender")
    world.read(HOUR)
    assert (world.wait(12), world.lent(12)) == (wait + HOUR, 100.0)
    # To one of them, of the same user and request.
    # Another limit makes no other job of it.
    world.rows |= {
        13: Row(submit=world.now),
        14: Row(submit=world.now, minutes=11),
        15: Row(submit=world.now, user="other"),
    }
    world.rows[16] = Row(submit=world.now, gpus=2)
    cancel(world, 12)
    world.read(0.0)
    assert [world.wait(job) for job in (13, 14, 15, 16)] == [MINUTE, wait + HOUR + MINUTE, MINUTE, MINUTE]
    assert [world.lent(job) for job in (13, 14, 15, 16)] == [0, 100.0, 0, 0]


@pytest.mark.parametrize(("first", "following"), [(1, 12), (67_043_327, 1), (4_294_967_293, 12)])
def test_the_next_one_may_be_submitted_before_the_first_is_cancelled_and_have_a_smaller_id(first, following):
    """Ids start over behind slurm.conf's MaxJobId."""
    world = World({first: Row()})
    world.rows[following] = Row(submit=world.now)
    wait = world.read().wait(first)
    cancel(world, first)
    world.read()
    assert world.wait(following) == pytest.approx(wait + 2 * MINUTE)


def test_no_moment_of_waiting_counts_twice():
    """A hundred jobs of the same request that are cancelled one after the other."""
    world = World({job: Row() for job in range(1, 101)})
    wait = world.wait(100)
    for job in range(1, 100):
        cancel(world, job)
    world.read()
    assert world.wait(100) == pytest.approx(wait + 100 * MINUTE)
    assert world.lent(100) == 0


def test_thousands_of_one_request_are_no_work_without_end():
    world = World({job: Row() for job in range(1, 5001)})
    for job in range(1, 2501):
        del world.rows[job]
        world.cancelled.add(job)
    world.rows |= {6000: Row(submit=world.now), 6001: Row(submit=world.now)}
    before = time.process_time()
    world.read().read()
    assert time.process_time() - before < 3.0
    assert world.wait(6000) > HOUR < world.wait(6001)
    assert world.wait(5000) < world.wait(6000) + 3 * MINUTE, "those of before were there at the same time"
    assert set(world.book.inherited) == {6000, 6001}


def test_thousands_that_leave_at_once_while_many_borrow_are_no_work_without_end(monkeypatch):
    world = World({job: Row(user=f"user{job % 200}", gpus=1 + job % 4) for job in range(1, 10_001)})
    world.rows |= {20_000 + job: Row(user="borrower") for job in range(1000)}
    world.read()
    for job in range(1000):
        parts = tuple((1 + (7 * job + nth) % 10_000, 1.0) for nth in range(4))
        made = Offer(SUBMIT, 1, 1, 4.0, 100.0, tuple(Part(lender, SUBMIT, gpus) for lender, gpus in parts))
        world.book = world.book.offering({**world.book.offers, 20_000 + job: made})
        world.start(20_000 + job)
    world.read()
    assert len(world.book.loans) == 1000
    for job in range(1, 5001):
        del world.rows[job]
    looks = []
    through_all = Book.open_parts
    monkeypatch.setattr(Book, "open_parts", lambda book: looks.append(book) or through_all(book))
    book = world.book.advanced(world.snapshot(), world.now + MINUTE)
    assert 0 < len(looks) <= 2, "not once for each that left"
    assert len(book.left) == 5000
    assert book.left[8].lent == 100.0


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8)])
def test_what_was_lent_is_taken_over_as_it_is_by_a_job_that_is_smaller_or_larger(before, after):
    """An array, of which each task asks for the same: what it may lend is another part of its wait, in GPU-seconds."""
    world = World({1: Row(tasks=before), 11: Row(user="borrower")})
    world.read().offer(11, (1, 1.0))
    world.start(11)
    world.read()
    wait = world.wait()
    cancel(world)
    world.rows[12] = Row(submit=world.now, tasks=after)
    assert world.read().lent(12) == 100.0
    assert world.wait(12) == wait + MINUTE


def test_the_time_for_which_a_job_was_held_or_not_eligible_is_no_wait_and_is_not_passed_on():
    world = World()
    assert world.wait() == 10 * HOUR
    # Slurm shows no eligible time of a held job, and a new one once it is released.
    world.rows[1].eligible = np.inf
    assert world.read(HOUR).wait() == 0
    world.rows[1].eligible = world.now
    assert world.read().wait() == MINUTE
    cancel(world)
    world.rows[12] = Row(submit=world.now)
    assert world.read().wait(12) <= 3 * MINUTE


def test_one_that_has_run_or_of_which_nothing_is_known_passes_nothing_on():
    world = World()
    del world.rows[1]
    world.rows[12] = Row(submit=world.now)
    world.read()
    assert world.wait(12) == MINUTE, "accounting has not told yet"
    world.took[1] = (world.now - 30.0, 20.0)
    world.cancelled.add(1)
    assert (world.read().wait(12), world.book.left) == (2 * MINUTE, {})


def test_what_is_remembered_of_jobs_that_left_is_forgotten_after_a_day():
    world = World()
    del world.rows[1]
    world.read()
    assert set(world.book.left) == {1}
    world.read(UNTOLD)
    world.read()
    assert world.book.left == {}


def test_of_many_jobs_that_left_the_last_are_remembered(monkeypatch):
    monkeypatch.setattr(loans, "MOST_REMEMBERED", 3)
    world = World({job: Row(user=str(job)) for job in range(1, 11)})
    for job in range(1, 11):
        del world.rows[job]
        world.read()
    assert set(world.book.left) == {8, 9, 10}


# --- clocks


@pytest.mark.parametrize("jump", [90 * DAY, -90 * DAY])
def test_a_wall_clock_that_is_wrong_for_two_readings_changes_nothing(jump):
    world, right = borrowing(), borrowing()
    for one in (world, right):
        one.start(11)
        one.read()
        one.rows[12] = Row(user="borrower")
        one.read().offer(12, (1, 1.0))
    world.jump = jump
    for one in (world, right):
        one.start(12)
        one.read().read()
    assert world.lent() == right.lent() == 240.0 + 120.0
    world.jump = 0.0
    assert (world.read().lent(), world.wait()) == (right.read().lent(), right.wait())


@pytest.mark.parametrize("jump", [90 * DAY, -90 * DAY])
def test_a_wall_clock_that_jumps_between_a_start_and_the_reading_hides_a_minute_at_most(jump):
    world = borrowing()
    world.start(11)
    world.jump = jump
    assert world.read().lent() == 100.0
    world.jump = 0.0
    assert 10 * MINUTE <= world.read(10 * MINUTE).lent() <= 11 * MINUTE


def test_a_wall_clock_that_is_wrong_gives_nobody_more_wait():
    world = World()
    wait = world.wait()
    world.jump = 90 * DAY
    assert world.read().wait() == wait + MINUTE
    world.jump = -90 * DAY
    assert world.read().wait() == 0, "the least that one of the clocks says"


def test_a_clock_that_went_back_over_a_restart_forgives_nothing():
    world = borrowing()
    world.start(11)
    world.read().read(HOUR)
    world.restart()
    world.now -= 90 * DAY
    del world.rows[11]
    assert world.read().lent() == pytest.approx(HOUR + MINUTE)
    assert world.read(2 * DAY).lent() == pytest.approx(HOUR + MINUTE)


def test_a_long_pause_of_the_daemon_is_charged_as_the_borrower_ran():
    world = borrowing()
    world.restart()
    world.now += 5 * HOUR
    world.start(11, ago=2 * HOUR)
    world.book = world.book.advanced(world.snapshot(), world.now)
    assert world.lent() == 2 * HOUR


# --- lost, kept


def test_a_lost_book_says_that_each_has_lent_all_that_it_could_until_now():
    world = World({1: Row(), 2: Row()})
    world.book = world.book.lost(world.snapshot(), np.array([360.0, 0.0]))
    assert (world.lent(1), world.lent(2)) == (360.0, 0)
    assert world.book.given == {1: Given(SUBMIT, 360.0, 0, ())}
    assert world.read().lent() == 360.0


def full():
    """A book with something of everything."""
    world = World({1: Row(), 2: Row(), 3: Row(), 11: Row(), 12: Row(), 13: Row(tasks=4)})
    world.offer(11, (1, 0.5), (2, 0.5)).offer(12, (2, 1.0)).offer(13, (1, 2.0), tasks=4, able=2)
    world.book = replace(world.book, given={1: Given(SUBMIT, 7.5, 3, (5, 6))}, inherited={2: Inherited(SUBMIT, 99.0)})
    world.start(11)
    del world.rows[3]
    world.read()
    assert all([world.book.offers, world.book.loans, world.book.given, world.book.inherited, world.book.left])
    return world


def test_what_is_on_disk_is_the_same_book():
    world = full()
    text = json.dumps(world.book.as_dict(), allow_nan=False)
    found = Book.from_dict(json.loads(text))
    assert found.as_dict() == world.book.as_dict()
    assert replace(found, waiting=None) == replace(world.book, waiting=None)
    before = world.lent(1), world.lent(2), world.wait(2)
    world.restart()
    assert (world.lent(1), world.lent(2), world.wait(2)) == before


def changed(value, path):
    """`value` with what is at `path` changed by the last of it."""
    if len(path) == 1:
        return path[0]
    made = list(value) if isinstance(value, list) else dict(value)
    if callable(path[0]):
        return path[0](made)
    made[path[0]] = changed(made[path[0]], path[1:])
    return made


@pytest.mark.parametrize(
    "path",
    [
        ("format", 99),
        ("time", "soon"),
        ("time", float("nan")),
        ("time", None),
        ("offers", []),
        ("offers", "11", 7),
        ("offers", "x", None),
        ("offers", "12", 2, 0),
        ("offers", "12", 3, 0.0),
        ("offers", "12", 4, float("inf")),
        ("offers", "12", 5, [[1, 2]]),
        ("offers", "12", 5, [[1, 2, -3.0]]),
        ("loans", "11", 0, float("inf")),
        ("loans", "11", 1, 10**400),
        ("loans", "11", [1, 2, 3]),
        ("given", "1", 1, -5.0),
        ("given", "1", 3, None),
        ("inherited", "2", 1, -1.0),
        ("left", "3", 3, "much"),
        ("left", None),
    ],
    ids=repr,
)
def test_what_is_no_book_is_refused(path):
    data = json.loads(json.dumps(full().book.as_dict()))
    if path[:2] == ("offers", "x"):
        data["offers"]["x"] = data["offers"]["12"]
    elif path[:2] == ("offers", "11"):
        data["offers"]["11"] = path[2]
    else:
        data = changed(data, path)
    with pytest.raises(ValueError, match=r"\S"):
        Book.from_dict(data)


@pytest.mark.parametrize("data", [[], None, "book", {}, {"format": 1}, 5], ids=repr)
def test_nor_is_anything_else(data):
    with pytest.raises(ValueError, match="no book of loans"):
        Book.from_dict(data)

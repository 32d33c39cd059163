"""Random lives of a small cluster under `plan()` and the book of loans, whatever happens between two readings.

What must hold at each step (and does so of what is true, not of what the book believes):

- nobody lends more than his part of his wait, beside what borrowers use beyond what they were charged for;
- no job that has lent its part is passed by anybody else's, nor one for which more was decided;
- no job has less priority than Slurm alone gives it, and what carries a raise is on the book;
- what is charged is what is used: never less, and exactly that when all has ended and accounting has told.

`RLTUNED_TEST_LENDING_MINUTES=30` makes it go on for so long, with seeds of its own.
"""

import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied, Field, JobState
from rltuned.core.config import Config, LendSection
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.tables import Partition, Snapshot
from rltuned.decide.expect.predictions import RunTimes
from rltuned.decide.loans import GRACE, Book, Offer, Told
from rltuned.decide.managed import managed_jobs
from rltuned.decide.plan import plan
from rltuned.decide.raising import lendable
from rltuned.decide.rank.heuristics import by_name

STEPS = 60
SEEDS = 40
MINUTES = float(os.environ.get("RLTUNED_TEST_LENDING_MINUTES", "0"))
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
PARTITIONS = {"a": {0, 1}, "b": {2, 3}, "a,b": {0, 1, 2, 3}}
GPUS = 4  # of each node


@dataclass
class Job:
    """A job, an array, or a task of one that has a record of its own."""

    job_id: int
    user: str
    submit: int
    base: int
    partition: str
    gpus: int
    limit: float
    run: float  # seconds that it will take
    median: float
    tasks: int = 0
    at_once: int = 0  # tasks of the array that may run at a time; 0: all
    array: int = 0
    nice: int = 0
    deadline: bool = False
    held: bool = False
    blocked: bool = False
    site: int = 0
    eligible: float = 0.0
    state: JobState = JobState.PENDING
    start: float = np.nan  # by the wall clock
    began: float = 0.0

    @property
    def request(self):
        return f"{self.gpus}/{self.limit}/{self.partition}"

    @property
    def alone(self):
        """Priority that Slurm alone gives."""
        return max(self.base - self.nice, 1)


@dataclass
class Start:
    """Something that started, as it is."""

    job: int
    array: int
    raised: bool
    gpus: int
    began: float
    ended: float = np.inf
    seen_to_end: float = 0.0  # seconds between the two readings between which it ended
    clean: bool = True  # no clock was wrong, and its end was not before the next reading


@dataclass
class Loan:
    """What one start costs one lender."""

    start: Start
    lender: tuple[int, int]
    gpus: float
    promised: float  # GPUs that the plan reckoned with
    seconds: float
    late: bool  # the last plan did not want it any more

    def used(self, now):
        if self.start.ended < np.inf:
            return self.start.ended - self.start.began
        return max(now - self.start.began, self.seconds)


class Random:
    """A policy that wants whom it wants."""

    name = "random"

    def __init__(self, rng):
        self.rng = rng

    def score(self, observation):
        return np.array([self.rng.random() for _ in range(len(observation))])


@dataclass
class World:
    """The cluster, the daemon, and what is true."""

    seed: int
    now: float = 1e9
    jump: float = 0.0  # by which the wall clock is wrong
    jobs: dict[int, Job] = field(default_factory=dict)
    next_id: int = 1
    book: Book = field(default_factory=Book)
    disk: str = ""
    claims: dict[int, set[int]] = field(default_factory=dict)
    """Values that the journal knows of, by job."""
    steady_from: float = 0.0
    """By which the daemon's own clock is wrong: it began with the wall clock."""
    records: list[tuple[float, int, tuple[float, float] | None]] = field(default_factory=list)
    """What accounting will tell, and when: of each job start and run time, or that it never ran."""
    started: list[Start] = field(default_factory=list)  # since the last reading
    loans: list[Loan] = field(default_factory=list)
    loose: set[tuple[int, int]] = field(default_factory=set)
    """Lenders of which too much may be charged: tasks of arrays that nobody saw, a lost book, an inheritance."""
    read_at: float = 1e9
    most_size: dict[tuple[int, int], float] = field(default_factory=dict)
    allowed: dict[tuple[int, int], float] = field(default_factory=Counter)
    """GPU-seconds that a lender may have lent beside its part: what it inherited."""
    arrays: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)  # since the last reading
    clock_changed: bool = False
    """Whether the daemon's own clock is another one since the last reading."""
    requeued: set[int] = field(default_factory=set)
    requests: dict[int, str] = field(default_factory=dict)
    """For which request each value of ours was written."""
    may_carry: dict[int, set[int]] = field(default_factory=dict)
    """By job, the values of which the journal knows, or fears, that it has one."""
    seen: Counter = field(default_factory=Counter)
    """What has happened, to see that the tests test something."""

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        share = self.rng.choice([0.1, 0.1, 0.1, 0.5, 1.0, 0.0])
        self.config = Config(lend=LendSection(share=share, most=self.rng.choice([1, 4, 16])))
        self.policy = self.rng.choice(
            [Random(self.rng), Random(self.rng), by_name("saf"), by_name("sjf"), by_name("wfp3")]
        )
        self.book = Book()
        self.keep()

    @property
    def wall(self):
        return self.now + self.jump

    @property
    def steady(self):
        return self.now + self.steady_from

    # --- the cluster and its people

    def submit(self, like=None):
        rng = self.rng
        limit = rng.choice([120.0, 600.0, 1800.0, 7200.0])
        job = Job(
            job_id=self.next_id,
            user=rng.choice("abcde"),
            submit=int(self.wall),
            base=rng.choice([rng.randint(100, 110), rng.randint(1, 10_000)]),
            partition=rng.choice(["a", "a", "b", "a,b"]),
            gpus=rng.choice([1, 1, 1, 2, 4]),
            limit=limit,
            run=min(limit, limit * rng.random() ** 2 + 1.0),
            median=limit * rng.choice([0.02, 0.1, 0.5, 1.0]),
            deadline=rng.random() < 0.03,
            eligible=float(int(self.wall)),
        )
        if rng.random() < 0.25:
            job.tasks, job.at_once = rng.randint(1, 8), rng.choice([0, 0, 1, 2])
            self.arrays.add(job.job_id)
        if like is not None:
            same = ("user", "partition", "gpus", "limit", "tasks", "at_once", "base", "nice")
            job = replace(job, **{name: getattr(like, name) for name in same})
            self.arrays |= {job.job_id} if job.tasks else set()
        self.jobs[job.job_id] = job
        self.next_id += 1

    def waiting(self):
        return [job for job in self.jobs.values() if job.state == JobState.PENDING]

    def running(self):
        return [job for job in self.jobs.values() if job.state == JobState.RUNNING]

    def can_start(self, job):
        tasks = sum(other.array == job.job_id for other in self.running())
        room = not job.at_once or tasks < job.at_once
        return not (job.held or job.blocked) and job.eligible <= self.wall and room

    def start(self, job):
        """It starts, or a task of it does."""
        raised = self.carries(job.job_id)
        if job.tasks > 1:
            job.tasks -= 1
            task = replace(job, job_id=self.next_id, array=job.job_id, tasks=0)
            self.next_id += 1
            self.jobs[task.job_id] = task
        else:
            task = job
            task.array, task.tasks = (job.array or job.job_id, 0) if job.tasks else (job.array, 0)
        task.state, task.start, task.began = JobState.RUNNING, self.wall, self.now
        clean = not self.jump and not self.steady_from
        self.started.append(Start(task.job_id, task.array, raised, task.gpus, self.now, clean=clean))

    def end(self, job):
        del self.jobs[job.job_id]
        self.over(job)

    def over(self, job):
        ran = max(self.wall - job.start, 0.0)
        self.records.append((self.now + self.rng.choice([0.0, 200.0, 4000.0]), job.job_id, (self.wall - ran, ran)))
        for start in [*self.started, *(loan.start for loan in self.loans)]:
            if start.job == job.job_id and start.ended == np.inf:
                start.ended = self.now
                start.clean &= not self.jump and not self.steady_from

    def requeue(self, job):
        array = self.jobs.get(job.array)
        if job.array and array is not job and array is not None and array.state != JobState.PENDING:
            return  # the last task has the number of the array, and runs
        self.over(job)
        self.seen["requeue"] += 1
        # A task that is requeued hides one that starts and ends between two readings, and so does its own short run.
        self.requeued |= {job.job_id, job.array} - {0}
        if job.array and job.array != job.job_id:
            # Slurm shows it with its array.
            del self.jobs[job.job_id]
            if array is None:
                job.job_id = job.array
                self.jobs[job.job_id] = job
                job.state, job.start, job.tasks, job.array = JobState.PENDING, np.nan, 1, 0
                job.submit, job.eligible = int(self.wall) + 1, self.wall + 120.0
            else:
                array.tasks += 1
            return
        job.tasks = 1 if job.array else 0
        job.array, job.state, job.start = 0, JobState.PENDING, np.nan
        job.submit, job.eligible = int(self.wall) + 1, self.wall + 120.0

    def cancel(self, job):
        self.cancelled.add(job.job_id)
        del self.jobs[job.job_id]
        self.records.append((self.now + self.rng.choice([0.0, 200.0, 4000.0]), job.job_id, None))
        self.seen["cancel"] += 1

    def something(self):
        """One thing happens."""
        rng, waiting = self.rng, self.waiting()
        what = rng.random()
        if what < 0.3 or len(waiting) < 3:
            self.submit()
        elif what < 0.6:
            able = [job for job in waiting if self.can_start(job)]
            if able:
                raised = [job for job in able if job.site > 0]
                self.start(rng.choice(raised if raised and rng.random() < 0.7 else able))
        elif what < 0.7:
            if running := self.running():
                self.end(rng.choice(running))
        elif what < 0.75:
            if running := self.running():
                self.requeue(rng.choice(running))
        elif what < 0.82:
            job = rng.choice(waiting)
            self.cancel(job)
            if rng.random() < 0.7:
                self.submit(like=job)
        elif what < 0.86:
            job = rng.choice(waiting)
            job.held = not job.held
        elif what < 0.88:
            job = rng.choice(waiting)
            job.blocked = not job.blocked
        elif what < 0.92:
            job = rng.choice(waiting)
            job.gpus = rng.choice([1, 2, 4])
        elif what < 0.94:
            job = rng.choice(waiting)
            job.nice = rng.choice([0, 10, 500])
        elif what < 0.95:
            job = rng.choice(waiting)
            job.site = rng.choice([-50, 700])
            self.seen["foreign"] += 1
        else:
            rng.choice(waiting).base += rng.randint(0, 50)

    def passes(self, seconds, things):
        for _ in range(things):
            self.now += seconds / things
            self.something()
            for job in self.running():
                if self.now - job.began >= job.run and self.rng.random() < 0.9:
                    self.end(job)

    # --- what the daemon reads

    def snapshot(self):
        jobs = sorted(self.jobs.values(), key=lambda job: job.job_id)
        running = [job.state == JobState.RUNNING for job in jobs]
        free = {"a": 0, "b": 2, "a,b": 0}
        table = job_table(
            len(jobs),
            [(free[job.partition],) if runs else () for job, runs in zip(jobs, running, strict=True)],
            job_id=[job.job_id for job in jobs],
            state=[int(job.state) for job in jobs],
            user=[job.user for job in jobs],
            submit_time=[job.submit for job in jobs],
            eligible_time=[job.eligible for job in jobs],
            start_time=[job.start for job in jobs],
            time_limit=[job.limit for job in jobs],
            partition=[job.partition for job in jobs],
            gpus=[job.gpus for job in jobs],
            cpus=0,
            mem=0.0,
            array_tasks=[job.tasks for job in jobs],
            array_limit=[job.at_once for job in jobs],
            nice=[job.nice for job in jobs],
            decided=[f"nice={job.nice}" if job.nice else "" for job in jobs],
            deadline=[self.wall if job.deadline else np.nan for job in jobs],
            held=[job.held for job in jobs],
            reason=["Licenses" if job.blocked else "Priority" for job in jobs],
            site_known=[not job.held for job in jobs],
            site_factor=[job.site for job in jobs],
            priority=[0 if job.held else max(job.base - job.nice + job.site, 1) for job in jobs],
            base=[job.base - job.nice for job in jobs],
            request=[job.request for job in jobs],
        )
        nodes = node_table(["n0", "n1", "n2", "n3"], ["gpu"], GPUS)
        partitions = tuple(Partition(name, np.array(sorted(PARTITIONS[name]), dtype=np.int32)) for name in "ab")
        array_of = {job.job_id: job.array for job in jobs if job.array and job.state == JobState.RUNNING}
        return Snapshot(self.wall, (24, 11), table, nodes, partitions, array_of=array_of)

    def told(self):
        took, cancelled = {}, set()
        for known, job, ran in self.records:
            if known <= self.now:
                if ran is None:
                    cancelled.add(job)
                else:
                    took[job] = ran
        return Told(took.get, cancelled)

    def applied(self):
        """What is ours, by the journal and by what Slurm shows; a job that was requeued carries it still."""
        found = {}
        for job_id, values in list(self.claims.items()):
            job = self.jobs.get(job_id)
            if job is None:
                del self.claims[job_id]
                self.may_carry.pop(job_id, None)
            elif job.state == JobState.PENDING and job.site in values and job.site > 0:
                found[job_id] = Applied(job_id, job.submit, site_factor=job.site, request=self.requests.get(job_id, ""))
        return AppliedChanges(found)

    # --- a cycle of the daemon

    def keep(self, book=None):
        self.disk = json.dumps((book or self.book).as_dict(), allow_nan=False)

    def restart(self):
        """kill -9, and the daemon is there again."""
        if self.steady_from != self.jump:
            self.clock_changed = True
            for loan in self.loans:
                loan.start.clean = False
            # What accounting has not told yet may count as never to be told.
            ended = [loan for loan in self.book.loans.values() if loan.used >= 0]
            self.loose |= {(part.lender, part.submit_time) for loan in ended for part in loan.parts}
        self.book, self.steady_from = Book.from_dict(json.loads(self.disk)), self.jump
        assert json.dumps(self.book.as_dict(), allow_nan=False) == self.disk
        # A task that started in the seconds of the last reading counts as one that started after it.
        arrays = [offer for job, offer in self.book.offers.items() if job in self.arrays]
        self.loose |= {(part.lender, part.submit_time) for offer in arrays for part in offer.parts}
        self.seen["restart"] += 1

    def cycle(self):
        """Read, plan, write; the world goes on in between. What was not written is tried in the next one."""
        snapshot, passed = self.snapshot(), self.now - self.read_at
        self.note_starts(passed)
        before = self.book
        book = before.advanced(snapshot, self.steady, self.told())
        self.note_inheritance(before, book)
        applied = self.applied()
        # Who waits, and carries nothing of ours by this reading, borrows nothing any more.
        waiting = set(snapshot.jobs.job_id[snapshot.jobs.pending].tolist())
        book = book.carried((book.offers.keys() - waiting) | self.carrying())
        if self.rng.random() < 0.01:
            managed = managed_jobs(snapshot, self.config, applied)
            could = lendable(managed, Book(time=self.steady), self.config.lend.part)
            book = book.lost(snapshot, could).offering(book.offers)
            self.loans.clear()
            self.loose |= {(job.job_id, job.submit) for job in self.waiting()}
            self.seen["lost"] += 1
        self.book, self.read_at = book, self.now
        self.check_book(snapshot)
        estimates = np.array([self.jobs[job].median for job in snapshot.jobs.job_id.tolist()])
        made = plan(snapshot, self.policy, self.config, applied, RunTimes(estimates), book)
        self.check_plan(made)
        self.keep(made.book.offering(made.book.offers, self.book))
        clear = self.write(made)
        if clear is None:
            return
        self.book = made.book.offering(made.book.offers, self.book).carried(self.carrying() | self.book.offers.keys())
        self.keep()
        if clear:
            raised = {int(made.snapshot.jobs.job_id[made.rows[at]]) for at in np.flatnonzero(made.target > made.base)}
            ours = {job for job in made.snapshot.jobs.job_id.tolist() if self.carries(job)}
            assert ours <= raised, "what was not wanted was given back"

    def carrying(self):
        """Jobs that carry a raise of ours by the journal."""
        return {job for job, values in self.may_carry.items() if max(values) > 0}

    def carries(self, job_id):
        job = self.jobs.get(job_id)
        return (
            job is not None
            and job.state == JobState.PENDING
            and job.site > 0
            and job.site in self.claims.get(job_id, ())
        )

    def write(self, made):
        """Whether all was written; None: killed before that was known."""
        rng, jobs = self.rng, made.snapshot.jobs
        back = [(job, 0, jobs.request.value(jobs.row_of[job])) for job in made.withdraw]
        back += [(one.job_id, int(one.after), one.request) for one in made.changes if one.field is Field.SITE_FACTOR]
        assert all(value >= 0 for _, value, _ in back)
        throttled, killed = (rng.randint(0, len(back)) if rng.random() < 0.15 else len(back) for _ in range(2))
        quiet = True
        for nth, (job_id, value, request) in enumerate(back):
            if nth == killed:
                self.restart()
                return None
            if nth >= throttled:
                self.seen["throttled"] += 1
                return False
            if rng.random() < 0.1:
                self.something()
                quiet = False
            job = self.jobs.get(job_id)
            if job is None or job.state != JobState.PENDING or job.held or job.request != request:
                quiet = False
                continue
            if job.site and job.site not in self.claims.get(job_id, ()):
                quiet = False
                continue  # somebody else's
            self.claims.setdefault(job_id, set()).add(value)
            self.requests[job_id] = request
            self.may_carry.setdefault(job_id, set()).add(value)
            if rng.random() < 0.97:  # else it is lost on the way
                job.site = value
                self.seen["raised" if value else "given back"] += 1
            if rng.random() < 0.1:
                self.something()
                quiet = False
            if self.jobs.get(job_id) is job and job.state == JobState.PENDING:
                quiet &= job.site == value
                self.may_carry[job_id] = {job.site if job.site in self.claims[job_id] else 0}
        return quiet

    # --- what is true

    def note_starts(self, passed):
        """What each start since the last reading costs whom, as the book must have it."""
        for job_id in self.cancelled & self.book.offers.keys():
            # Nobody knows that the tasks of an array have not run.
            if (offer := self.book.offers[job_id]).tasks > 1:
                self.loose |= {(part.lender, part.submit_time) for part in offer.parts}
        self.cancelled.clear()
        by_array = {}
        for start in self.started:
            by_array.setdefault(start.array or start.job, []).append(start)
        for start in self.started:
            start.clean &= not (self.jump or self.steady_from or self.clock_changed)
        self.clock_changed = False
        for job_id, starts in by_array.items():
            offer, open_loan = self.book.offers.get(job_id), self.book.loans.get(job_id)
            if offer is None and open_loan is not None and open_loan.used < 0:
                # It was requeued, and carries still what it had.
                size = sum(part.gpus for part in open_loan.parts)
                offer = Offer(open_loan.submit_time, 1, 1, size, open_loan.seconds, open_loan.parts)
            if offer is None:
                # One that is requeued after its lenders have started may start once more before it is given back.
                known = self.seen["lost"] or job_id in self.requeued
                assert known or not any(start.raised for start in starts), f"{job_id} is raised, off the book"
                continue
            for start in starts:
                start.clean &= start.ended == np.inf or job_id not in self.requeued
            seen = sorted(
                (start for start in starts if start.ended == np.inf), key=lambda start: (start.job != job_id, start.job)
            )
            if len(starts) > 1 or (offer.tasks > 1 and not seen):
                # Which task used up which lender cannot be told from outside.
                self.loose |= {(part.lender, part.submit_time) for part in offer.parts}
                self.seen["tasks together"] += 1
            rest = []
            for nth, start in enumerate(seen or starts[:1]):
                taken, rest = first_gpus(rest if nth % offer.able else list(offer.parts), offer.size)
                more = max(start.gpus / offer.size, 1.0) if start.ended == np.inf else 1.0
                for part in taken:
                    key = part.lender, part.submit_time
                    if self.waits(key):
                        self.loans.append(Loan(start, key, part.gpus * more, part.gpus, offer.seconds, offer.unwanted))
                        self.seen["loan"] += 1
                        self.seen["loan of an array"] += offer.tasks > 1
                        self.seen["late"] += offer.unwanted
        self.started.clear()
        self.loans = [loan for loan in self.loans if self.waits(loan.lender)]
        for loan in self.loans:
            if loan.start.ended < np.inf and not loan.start.seen_to_end:
                loan.start.seen_to_end = passed

    def waits(self, key):
        job = self.jobs.get(key[0])
        return job is not None and job.state == JobState.PENDING and job.submit == key[1]

    def note_inheritance(self, before, book):
        for job, given in book.given.items():
            known = before.given.get(job)
            if job in book.inherited and before.inherited.get(job) != book.inherited[job]:
                self.loose.add((job, given.submit_time))
                own = known.seconds if known and known.submit_time == given.submit_time else 0.0
                self.allowed[job, given.submit_time] += given.seconds - own
                self.seen["inherited"] += 1

    def check_book(self, snapshot):
        """Nobody lends more than his part, and nothing is charged less than it cost."""
        rows = snapshot.jobs.pending
        lent, wait = self.book.lent(snapshot.jobs, rows), self.book.wait(snapshot, rows)
        tasks = snapshot.jobs.startable_tasks(rows, Counter(snapshot.array_of.values()))
        share = self.config.lend.part
        # A raised job that is gone unseen may have run all the time, until accounting tells.
        unknown = {part.lender for loan in self.book.loans.values() if not loan.start for part in loan.parts}
        for at, row in enumerate(rows.tolist()):
            key = int(snapshot.jobs.job_id[row]), int(snapshot.jobs.submit_time[row])
            size = float(snapshot.jobs.gpus[row]) * int(tasks[at])
            self.most_size[key] = max(self.most_size.get(key, 0.0), size)
            mine = [loan for loan in self.loans if loan.lender == key]
            true = sum(loan.gpus * loan.used(self.now) for loan in mine)
            # Clocks that went back hide at most the time between two readings.
            hidden = sum(loan.gpus * 4 * HOUR for loan in mine if not loan.start.clean)
            excused = hidden + 1e-3 + sum(loan.gpus * GRACE for loan in mine)
            assert key in self.loose or lent[at] >= true - excused, f"{key} has lent more than the book says"
            if share and not self.jump and not self.steady_from and key not in self.loose and key[0] not in unknown:
                over = sum(loan.gpus * max(loan.used(self.now) - loan.seconds, 0.0) for loan in mine)
                over += sum((loan.gpus - loan.promised) * loan.seconds for loan in mine)
                over += sum(loan.gpus * loan.seconds for loan in mine if loan.late)
                over += sum(loan.gpus * loan.start.seen_to_end for loan in mine)  # until accounting tells
                most = share * wait[at] * self.most_size[key] + self.allowed[key]
                if all(loan.start.clean for loan in mine):
                    assert lent[at] <= most + over + 1e-3, f"{key} has lent more than its part"
                    self.seen["bounded"] += bool(mine)

    def check_plan(self, made):
        """Whom each raised job passes."""
        lent = dict(zip(made.snapshot.jobs.job_id[made.scope.rows].tolist(), made.raised.lent.tolist(), strict=True))
        left = dict(
            zip(made.snapshot.jobs.job_id[made.scope.rows].tolist(), made.raised.lendable.tolist(), strict=True)
        )
        target = {
            int(made.snapshot.jobs.job_id[row]): int(to)
            for row, to in zip(made.rows.tolist(), made.target.tolist(), strict=True)
        }
        raised = [int(made.snapshot.jobs.job_id[made.scope.rows[one.at]]) for one in made.raised.raises]
        assert set(raised) == {job for job, to in target.items() if to > self.jobs[job].alone}
        assert len(raised) <= self.config.lend.most
        assert set(made.book.offers) == set(raised)
        promised = Counter()
        for offer in made.book.offers.values():
            for part in offer.parts:
                promised[part.lender] += part.gpus * offer.seconds
        for borrower, offer in self.book.offers.items():
            # What could not be given back before is promised still.
            if offer.unwanted and borrower not in made.book.offers:
                promised.update(
                    {part.lender: part.gpus * offer.seconds for part in offer.parts if part.lender in promised}
                )
        for lender, seconds in promised.items():
            assert seconds <= max(left[lender], 0.0) + 1e-3, f"{lender} promises more than it has left"
        for job_id in raised:
            job = self.jobs[job_id]
            where = -target[job_id], job.submit, job_id
            for other in self.waiting():
                theirs = other.site if other.site and other.site not in self.claims.get(other.job_id, ()) else 0
                place = -max(other.base - other.nice + theirs, 1), other.submit, other.job_id
                able = not (other.held or other.blocked) and other.eligible <= self.wall
                meets = PARTITIONS[job.partition] & PARTITIONS[other.partition]
                if other is job or not able or not meets or not (where < place < (-job.alone, job.submit, job_id)):
                    continue
                self.seen["passed"] += 1
                if other.job_id in raised and (-target[other.job_id], other.submit, other.job_id) < where:
                    continue
                assert not other.deadline
                assert theirs - other.nice <= -job.nice, "more was decided"
                if other.user != job.user:
                    assert not (lent[other.job_id] > 1e-3 and left[other.job_id] <= 0), (
                        f"{other.job_id} has lent its part"
                    )
                    wanted_more = other.job_id in raised and raised.index(other.job_id) < raised.index(job_id)
                    assert not wanted_more, f"{other.job_id} is raised, and lends nothing"
                    self.seen["passed of others"] += 1

    def settle(self):
        """All that runs ends, and accounting tells of it."""
        for _ in range(2):
            self.jump, self.steady_from = 0.0, 0.0
            self.now += MINUTE
            self.cycle_quietly()
        for job in self.running():
            self.end(job)
        self.now += 2 * HOUR
        self.cycle_quietly()
        snapshot = self.snapshot()
        rows = snapshot.jobs.pending
        for row, lent in zip(rows.tolist(), self.book.lent(snapshot.jobs, rows).tolist(), strict=True):
            key = int(snapshot.jobs.job_id[row]), int(snapshot.jobs.submit_time[row])
            mine = [loan for loan in self.loans if loan.lender == key]
            # Of a job that runs again its earlier run may be closed by what the readings showed.
            if key in self.loose or not all(loan.start.clean and loan.start.job not in self.requeued for loan in mine):
                continue
            true = sum(loan.gpus * (loan.start.ended - loan.start.began) for loan in mine)
            assert lent == pytest.approx(true, abs=GRACE * sum(loan.gpus for loan in mine) + 1e-3), f"{key} in the end"
            self.seen["settled"] += bool(mine)

    def cycle_quietly(self):
        """A reading only."""
        self.note_starts(self.now - self.read_at)
        before = self.book
        self.book, self.read_at = before.advanced(self.snapshot(), self.steady, self.told()), self.now
        self.note_inheritance(before, self.book)

    def step(self):
        rng = self.rng
        chance = rng.random()
        if chance < 0.02:
            self.jump = rng.choice([90 * DAY, -90 * DAY, 7.0, -7.0]) if not self.jump else 0.0
            self.seen["jump"] += 1
        elif self.jump and chance < 0.4:
            self.jump = 0.0
        if rng.random() < 0.02:
            self.restart()
        long = rng.random() < 0.03
        self.passes(rng.choice([HOUR, 3 * HOUR]) if long else MINUTE, rng.randint(1, 4))
        self.cycle()


def first_gpus(parts, gpus):
    """The first of what is lent, and the rest."""
    taken, rest = [], []
    for part in parts:
        use = min(part.gpus, max(gpus, 0.0))
        gpus -= use
        if use > 1e-9:
            taken.append(part._replace(gpus=use))
        if part.gpus - use > 1e-9:
            rest.append(part._replace(gpus=part.gpus - use))
    return taken, rest


def live(seed, steps=STEPS):
    world = World(seed)
    for _ in range(8):
        world.submit()
        world.now += world.rng.choice([10.0, HOUR])
    for _ in range(steps):
        world.step()
    world.settle()
    return world.seen


@pytest.mark.timeout(600 + 60 * MINUTES)
def test_whatever_happens_nobody_lends_more_than_a_part_of_his_wait():
    until, first = time.monotonic() + 60 * MINUTES, random.SystemRandom().randrange(2**40) if MINUTES else 0
    seen, done = Counter(), 0
    while done < SEEDS or time.monotonic() < until:
        try:
            seen += live(first + done)
        except AssertionError as error:
            raise AssertionError(f"seed {first + done}: {error}") from error
        done += 1
    happened = (
        *(
            "loan",
            "loan of an array",
            "tasks together",
            "passed of others",
            "settled",
            "bounded",
            "raised",
            "given back",
        ),
        *("requeue", "cancel", "inherited", "lost", "restart", "jump", "throttled", "foreign"),
    )
    assert min(seen[what] for what in happened) > 0, seen

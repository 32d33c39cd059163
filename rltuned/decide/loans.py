"""The book of loans: what each waiting job has lent, to whom, and what is left of it (docs/lending.md).

Pure: the moment comes from the caller, who keeps the book between two cycles and saves it. A raised job has an *offer*:
who lends what when it starts. When it has started, the offer is a *loan*: it is charged with the larger of what was
predicted and what it has used, and with exactly what it used when it has ended. A loan ends when its lender starts or
is gone. What was lent is remembered as long as the lender waits.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final, NamedTuple, Self

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from rltuned.core.changes import JobState
from rltuned.core.tables import Floats, JobTable, Rows, Snapshot
from rltuned.core.taken import sizes_held

Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[Number, Field(ge=0)]  # of seconds, GPUs or GPU-seconds

FORMAT: Final = 1
GRACE: Final = 2.0  # seconds by which Slurm's whole seconds and our own readings may differ
UNTOLD: Final = 86_400.0
"""Seconds after which a loan that accounting says nothing of is settled by what the readings showed."""
MOST_REMEMBERED: Final = 10_000
"""Jobs that have left the queue and are remembered; the oldest are forgotten first."""
MOST_BORROWERS: Final = 8  # borrowers that are named of each lender: the last


class Part(NamedTuple):
    """What one lender gives to one borrower."""

    lender: int
    submit_time: int  # epoch seconds; with the id, the lender's identity
    gpus: Amount


class Offer(NamedTuple):
    """What one raised job borrows when it starts."""

    submit_time: int
    tasks: int  # waiting tasks of an array, else 1
    able: Annotated[int, Field(ge=1)]
    """Of these, the tasks that may start at a time. Should the user lift the array's limit, more start until the next
    plan counts anew: the same ones lend for each of them, and are not passed until they have waited for that."""
    size: Annotated[Number, Field(gt=0)]  # GPUs that each of them keeps from others
    seconds: Amount  # that each is charged for before it has ended
    parts: tuple[Part, ...]  # of `able` tasks, in the order in which these use them up
    unwanted: bool = False
    """The last plan does not want it, but the job carries the raise still: it could not be given back."""


class Loan(NamedTuple):
    """What one job borrowed that has started."""

    submit_time: int
    seconds: Number  # charged before it has ended
    began: Number  # when it started by the clock that never jumps
    start: Number  # the same as Slurm says it, epoch seconds; 0: it was not seen running
    used: Number  # seconds that it ran, at most, when it was gone; −1: it runs
    ended: Number  # when it was found to be gone, by the clock that never jumps; 0: it runs
    parts: tuple[Part, ...]

    def charged(self, now: float) -> float:
        """Seconds that its lenders have lent for."""
        return max(self.seconds, now - self.began) if self.used < 0 else self.used


class Given(NamedTuple):
    """What one waiting job has lent to borrowers that have ended, or that its book does not name any more."""

    submit_time: int
    seconds: Amount  # GPU-seconds
    loans: int
    borrowers: tuple[int, ...]  # the last of them, `MOST_BORROWERS` at most


class Inherited(NamedTuple):
    """What a job has of one with the same request that its user cancelled while it waited."""

    submit_time: int
    wait: Amount  # seconds


class Left(NamedTuple):
    """A job that has left the queue without being seen running: cancelled, or over within one cycle."""

    owner: str
    """Its user and what it asked for, but for limit and memory: who changes these has waited as long."""
    last: Number  # when it was seen last, by the clock that never jumps
    wait: Amount
    lent: Amount
    """GPU-seconds. What was lent was lent: the next one takes it over as it is, however much it asks for. A smaller one
    has less to lend for longer, a larger one may lend the rest."""
    cancelled: bool  # accounting says that it never ran


class Told(NamedTuple):
    """What accounting says of jobs that have ended."""

    took: Callable[[int], tuple[float, float] | None] = lambda _job: None
    """Start (epoch seconds) and run time in seconds of the job with this id; None: nothing is known."""
    cancelled: Collection[int] = frozenset()  # jobs that were cancelled before they ran


NOTHING_TOLD: Final = Told()


class Promise(NamedTuple):
    """What was promised to a job that could not be given back. It names only those who did: such jobs may be as many as
    wait, and a number for each of both is too much.
    """

    lenders: Rows  # (k,) positions of them
    seconds: Floats  # (k,) GPU-seconds that each has promised


NOTHING_PROMISED: Final = Promise(np.zeros(0, dtype=np.intp), np.zeros(0))


class _LastReading(NamedTuple):
    """The queue of the last reading, to find out who left it."""

    jobs: JobTable
    wait: Floats  # (P,) of the pending jobs
    tasks: Collection[int]  # tasks of arrays that had started


@dataclass(frozen=True)
class Book:
    """What waiting jobs lend. A new one at each step; nothing in it is changed."""

    time: Number = 0.0  # of the last reading, seconds of a clock that never jumps
    offers: Mapping[int, Offer] = field(default_factory=dict)
    """By id, the waiting jobs that carry a raise, or carried one after the last reading."""
    loans: Mapping[int, Loan] = field(default_factory=dict)
    """By id, the jobs that started raised, as long as their loans are open."""
    given: Mapping[int, Given] = field(default_factory=dict)  # by id of the lender
    inherited: Mapping[int, Inherited] = field(default_factory=dict)
    left: Mapping[int, Left] = field(default_factory=dict)
    waiting: _LastReading | None = None  # not kept on disk

    # --- what it says

    def lent(self, jobs: JobTable, rows: Rows) -> Floats:
        """(n,) GPU-seconds that these waiting jobs have lent."""
        total: dict[tuple[int, int], float] = defaultdict(float)
        for _, part, seconds in self.open_parts():
            total[part.lender, part.submit_time] += seconds
        for lender, given in self.given.items():
            total[lender, given.submit_time] += given.seconds
        return _by_row(total, jobs, rows)

    def wait(self, snapshot: Snapshot, rows: Rows) -> Floats:
        """(n,) seconds that these jobs have waited: the least by Slurm's clock and by ours, and what they inherited.

        Since when they are eligible: Slurm sets that anew when a hold, a dependency or a begin time is over.
        """
        now = min(snapshot.time, self.time) if self.time else snapshot.time
        wait = np.fmax(now - snapshot.jobs.eligible_time[rows], 0.0)
        return np.asarray(wait + self.inherited_wait(snapshot.jobs, rows), dtype=np.float64)

    def inherited_wait(self, jobs: JobTable, rows: Rows) -> Floats:
        """(n,) seconds that these jobs have from jobs that their users cancelled."""
        return _by_row({(job, one.submit_time): one.wait for job, one in self.inherited.items()}, jobs, rows)

    def open_parts(self) -> Iterator[tuple[int, Part, float]]:
        """Borrower, part and GPU-seconds until now of each open loan."""
        for job, loan in self.loans.items():
            seconds = loan.charged(self.time)
            for part in loan.parts:
                yield job, part, part.gpus * seconds

    def promised(self, jobs: JobTable, rows: Rows) -> dict[int, Promise]:
        """What these, by their positions in `rows`, have promised to each job that could not be given back, by its id;
        without those whom nobody has promised anything.
        """
        position = np.full(len(jobs), -1)
        position[rows] = np.arange(len(rows))
        promises: dict[int, Promise] = {}
        for job, one in self.offers.items():
            parts = one.parts if one.unwanted else ()
            of_row = _of_rows({(part.lender, part.submit_time): part.gpus * one.seconds for part in parts}, jobs)
            found = {int(position[row]): seconds for row, seconds in of_row if position[row] >= 0}
            if found:
                promises[job] = Promise(np.array([*found], dtype=np.intp), np.array([*found.values()]))
        return promises

    def borrowers(self) -> dict[int, tuple[int, ...]]:
        """By id of the lender, the jobs that have an open loan of it."""
        found: dict[int, dict[int, None]] = defaultdict(dict)
        for job, part, _ in self.open_parts():
            found[part.lender][job] = None
        return {lender: tuple(jobs) for lender, jobs in found.items()}

    # --- what changes it

    def advanced(self, snapshot: Snapshot, now: float, told: Told = NOTHING_TOLD) -> "Book":
        """The book once a new reading is known; `now`: seconds of a clock that never jumps."""
        return _Step(self, snapshot, now, told).taken()

    def offering(self, offers: Mapping[int, Offer], before: "Book | None" = None) -> "Book":
        """With these offers, those of a plan; beside those `before` it, which are to be given back."""
        kept = {} if before is None else {job: offer._replace(unwanted=True) for job, offer in before.offers.items()}
        return replace(self, offers={**kept, **offers})

    def carried(self, jobs: Collection[int]) -> "Book":
        """Without the offers to jobs that carry no raise."""
        return replace(self, offers={job: offer for job, offer in self.offers.items() if job in jobs})

    def lost(self, snapshot: Snapshot, lendable: Floats) -> "Book":
        """A new book: each waiting job has lent all that it could, (P,) GPU-seconds, until now."""
        amounts = np.maximum(lendable, 0.0).tolist()
        given = {
            job: Given(submit, amount, 0, ())
            for (job, submit), amount in zip(_waiting(snapshot.jobs), amounts, strict=True)
            if amount > 0
        }
        return Book(time=self.time, given=given, waiting=self.waiting)

    # --- on disk

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"format": FORMAT, **{name: getattr(self, name) for name in _kept()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Of what JSON has made of `as_dict`. ValueError: it is not of this form."""
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']!r}; this rltuned reads {FORMAT}")
            return cls(**{name: TypeAdapter(form).validate_python(data[name]) for name, form in _kept().items()})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"no book of loans: {first['msg']} at {first['loc']} of {error.title}") from error
        except (TypeError, KeyError) as error:
            raise ValueError(f"no book of loans: {error!r}") from error


NOTHING_LENT: Final = Book()


def _kept() -> dict[str, Any]:
    """The fields of a book that are on disk, and of which form they are."""
    return {one.name: one.type for one in fields(Book) if one.name != "waiting"}


def _waiting(jobs: JobTable) -> Iterator[tuple[int, int]]:
    """Id and submit time of each pending job."""
    rows = jobs.pending
    return zip(jobs.job_id[rows].tolist(), jobs.submit_time[rows].astype(np.int64).tolist(), strict=True)


def _by_row(found: Mapping[tuple[int, int], float], jobs: JobTable, rows: Rows) -> Floats:
    """(n,) of these rows what is found by id and submit time, or 0."""
    values = np.zeros(len(jobs))
    for row, value in _of_rows(found, jobs):
        values[row] = value
    return values[rows]


def _of_rows(found: Mapping[tuple[int, int], float], jobs: JobTable) -> Iterator[tuple[int, float]]:
    """Row, and what is found by id and submit time, of the jobs that are in the table."""
    for (job, submit), value in found.items():
        row = jobs.row_of.get(job)
        if row is not None and int(jobs.submit_time[row]) == submit:
            yield row, value


class _Step:
    """From the last reading to this one."""

    def __init__(self, book: Book, snapshot: Snapshot, now: float, told: Told) -> None:
        self.book, self.snapshot, self.jobs, self.now, self.told = book, snapshot, snapshot.jobs, now, told
        self.passed = max(now - book.time, 0.0) if book.time else 0.0
        self.waiting = dict(_waiting(self.jobs))
        self.given = dict(book.given)
        self.offers: dict[int, Offer] = {}
        # After a restart the clock may have gone back: it began with the wall clock.
        back = max(book.time - now, 0.0)
        self.loans = {
            job: self.followed(job, loan._replace(began=loan.began - back)) for job, loan in book.loans.items()
        }

    def taken(self) -> Book:
        """The book after it."""
        tasks: dict[int, list[int]] = defaultdict(list)
        for task, array in self.snapshot.array_of.items():
            tasks[array].append(task)
        for job, offer in {**self.book.offers, **self.requeued()}.items():
            self.start(job, offer, tasks[job])
        loans = {job: open_loan for job, loan in self.loans.items() if (open_loan := self.settled(job, loan))}
        book = Book(
            time=self.now,
            offers={job: offer._replace(parts=self.still(offer.parts)) for job, offer in self.offers.items()},
            loans=loans,
            given={job: one for job, one in self.given.items() if self.waits(job, one.submit_time)},
            inherited={job: one for job, one in self.book.inherited.items() if self.waits(job, one.submit_time)},
        )
        book = self.passed_on(book, self.who_left())
        before = () if self.book.waiting is None else self.book.waiting.tasks
        running = {*self.snapshot.array_of, *filter(self.snapshot.is_unread, before)}
        return replace(book, waiting=_LastReading(self.jobs, book.wait(self.snapshot, self.jobs.pending), running))

    def waits(self, job: int, submit_time: int) -> bool:
        """Whether this job still does; nothing tells that one does not whose row cannot be understood."""
        return self.waiting.get(job) == submit_time or self.snapshot.is_unread(job)

    def still(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """Those of lenders that wait."""
        return tuple(part for part in parts if self.waits(part.lender, part.submit_time))

    def give(self, borrower: int, parts: Iterable[Part], seconds: float) -> None:
        """Note what was lent to a run that is over."""
        for part in parts:
            known = self.given.get(part.lender)
            if known is None or known.submit_time != part.submit_time:
                known = Given(part.submit_time, 0.0, 0, ())
            borrowers = (*known.borrowers, borrower)[-MOST_BORROWERS:]
            amount = known.seconds + part.gpus * seconds
            self.given[part.lender] = Given(part.submit_time, amount, known.loans + 1, borrowers)

    # --- loans

    def followed(self, job: int, loan: Loan) -> Loan:
        """The loan as the reading shows its borrower."""
        jobs, row = self.jobs, self.jobs.row_of.get(job)
        if loan.used >= 0 or (row is None and self.snapshot.is_unread(job)):
            return loan
        runs = row is not None and jobs.state[row] == JobState.RUNNING and jobs.submit_time[row] == loan.submit_time
        return loan if runs else loan._replace(used=max(self.now - loan.began, 0.0), ended=self.now)

    def settled(self, job: int, loan: Loan) -> Loan | None:
        """The loan as far as it is open. When it is known what the borrower has used, that is what was given."""
        parts = self.still(loan.parts)
        used = self.used(job, loan) if parts else 0.0
        if used is None:
            return loan._replace(parts=parts)
        self.give(job, parts, used)
        return None

    def used(self, job: int, loan: Loan) -> float | None:
        """Seconds that the borrower really used; None while nobody knows."""
        if loan.used < 0:
            return None
        if not loan.start and job in self.told.cancelled:
            return 0.0
        if (known := self.told.took(job)) is not None:
            start, took = known
            this_run = abs(start - loan.start) <= GRACE if loan.start else start >= loan.submit_time
            if this_run and took <= loan.used + GRACE:
                return took
        return loan.used if self.now - loan.ended > UNTOLD else None

    # --- offers

    def requeued(self) -> dict[int, Offer]:
        """Offers to jobs that were requeued while they ran: they carry their raise still."""
        offers, jobs = {}, self.jobs
        for job, loan in self.loans.items():
            row = None if job in self.book.offers else jobs.row_of.get(job)
            if row is not None and jobs.state[row] != JobState.OTHER and self.book.loans[job].used < 0 <= loan.used:
                size = sum(part.gpus for part in loan.parts)
                offers[job] = Offer(int(jobs.submit_time[row]), 1, 1, size, loan.seconds, loan.parts)
        return offers

    def start(self, job: int, offer: Offer, tasks: Iterable[int]) -> None:
        """What became of an offer: who of those that it is for has started since the last reading is lent for.

        `tasks`: of the array, those that have a record of their own.
        """
        jobs, row = self.jobs, self.jobs.row_of.get(job)
        waits = row is not None and jobs.state[row] == JobState.PENDING
        submit, waiting = (int(jobs.submit_time[row]), max(int(jobs.array_tasks[row]), 1)) if waits else (0, 0)
        rest, seen = offer.parts, self.new_tasks(job, tasks)
        if (waits or row is None) and self.snapshot.is_unread(job):  # nothing tells that the others do not wait
            waits, submit, waiting = True, offer.submit_time, max(offer.tasks - len(seen), 0)
        for nth, at in enumerate(seen):
            rest = rest if nth % offer.able else offer.parts
            taken, rest = _split(rest, offer.size)
            start = float(jobs.start_time[at])
            start, ran = (start, self.snapshot.time - start) if np.isfinite(start) else (0.0, self.passed)
            began = self.now - min(max(ran, 0.0), self.passed)
            # It may have been given more than it asked for when it was raised.
            more = max(float(sizes_held(self.snapshot, np.array([at]))[0]) / offer.size, 1.0)
            taken = tuple(part._replace(gpus=part.gpus * more) for part in taken)
            loan = Loan(int(jobs.submit_time[at]), offer.seconds, began, start, -1.0, 0.0, taken)
            self.begin(int(jobs.job_id[at]), loan)
        # Those that nobody saw were over within a cycle, or were cancelled. If it was requeued, what waits has run.
        unseen = max(offer.tasks - (waiting if submit == offer.submit_time else 0) - len(seen), 0)
        taken, rest = _split(rest if unseen + len(seen) <= offer.able else offer.parts, unseen * offer.size)
        if offer.tasks > 1:
            self.give(job, taken, self.passed)
        else:
            times = self.now - self.passed, 0.0, self.passed, self.now
            self.begin(job, Loan(offer.submit_time, offer.seconds, *times, taken))
        if waits:
            self.offers[job] = offer._replace(submit_time=submit, tasks=waiting, parts=rest or offer.parts)

    def begin(self, job: int, loan: Loan) -> None:
        """A borrower starts; of an earlier run nothing more will be known."""
        if not loan.parts:
            return
        if (before := self.loans.get(job)) is not None:
            self.give(job, before.parts, before.charged(self.now))
        self.loans[job] = loan

    def new_tasks(self, job: int, tasks: Iterable[int]) -> list[int]:
        """Rows of the jobs that a raised one stood for and that run since the last reading."""
        jobs, before, since = self.jobs, self.book.waiting, self.snapshot.time - self.passed
        found = []
        for task in dict.fromkeys((job, *tasks)):  # the last task has the number of its array
            row = jobs.row_of.get(task)
            if row is None or jobs.state[row] != JobState.RUNNING:
                continue
            known = self.book.loans.get(task)
            if known is not None and known.used < 0 and known.submit_time == int(jobs.submit_time[row]):
                continue
            # After a restart of ours only the start tells.
            new = jobs.start_time[row] >= since - GRACE if before is None else task not in before.tasks
            if task == job or new:
                found.append(row)
        return found

    # --- what is passed on

    def who_left(self) -> dict[int, Left]:
        """Jobs that have left the queue, and are remembered."""
        left, before, told = dict(self.book.left), self.book.waiting, self.told
        if before is not None:
            was = before.jobs
            gone = np.flatnonzero(~np.isin(was.job_id[was.pending], self.jobs.job_id))
            lent = self.book.lent(was, was.pending[gone]).tolist() if len(gone) else ()
            for at, amount in zip(gone.tolist(), lent, strict=True):
                row = was.pending[at]
                if not self.snapshot.is_unread(job := int(was.job_id[row])) and was.user.codes[row] >= 0:
                    left[job] = Left(_owner(was, row), self.book.time, float(before.wait[at]), amount, cancelled=False)
        # One of which accounting knows a run time has run.
        known = {job: one for job, one in left.items() if self.now - one.last <= UNTOLD and told.took(job) is None}
        return {job: one._replace(cancelled=one.cancelled or job in told.cancelled) for job, one in known.items()}

    def passed_on(self, book: Book, left: dict[int, Left]) -> Book:
        """The book with the wait of cancelled jobs on their users' next ones of the same request."""
        jobs, given, inherited = self.jobs, dict(book.given), dict(book.inherited)
        cancelled = sorted((job for job, one in left.items() if one.cancelled), key=lambda job: left[job].last)
        owners = {left[job].owner for job in cancelled}
        next_ones = _of_owners(jobs, owners, inherited) if cancelled else {}
        for job in cancelled:
            gone, rows = left[job], next_ones.get(left[job].owner)
            # The last one that was submitted: nobody looks through thousands of jobs of one request.
            if not rows or (wait := _waited_before(jobs, gone, rows[-1])) <= GRACE:  # it was there as early
                continue
            row = rows.pop()
            heir, submit = int(jobs.job_id[row]), int(jobs.submit_time[row])
            inherited[heir] = Inherited(submit, wait)
            if gone.lent > 0:
                known = given.get(heir, Given(submit, 0.0, 0, ()))
                given[heir] = known._replace(seconds=known.seconds + gone.lent * wait / gone.wait)
            del left[job]
        if len(left) > MOST_REMEMBERED:
            last = sorted(left, key=lambda job: left[job].last)[-MOST_REMEMBERED:]
            left = {job: left[job] for job in last}
        return replace(book, given=given, inherited=inherited, left=left)


def _split(parts: Iterable[Part], gpus: float) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The first `gpus` of what is lent, and the rest."""
    taken: list[Part] = []
    rest: list[Part] = []
    for part in parts:
        used = min(part.gpus, max(gpus, 0.0))
        gpus -= used
        if used > 0:
            taken.append(part._replace(gpus=used))
        if part.gpus - used > 1e-9:
            rest.append(part._replace(gpus=part.gpus - used))
    return tuple(taken), tuple(rest)


def _owner(jobs: JobTable, row: int) -> str:
    cpus = 0 if jobs.gpus[row] else jobs.cpus[row]
    asked = jobs.partition.value(row), jobs.nodes[row], jobs.gpus[row], jobs.gpu_type.value(row), cpus
    return "\0".join(map(str, (jobs.user.value(row), *asked)))


def _of_owners(jobs: JobTable, owners: Collection[str], but: Collection[int]) -> dict[str, list[int]]:
    """Rows of the waiting jobs of these owners, as submitted; without `but`."""
    users = {owner.partition("\0")[0] for owner in owners}
    rows = jobs.pending[jobs.user[jobs.pending].mapped(users.__contains__, none=False)]
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows[np.lexsort((jobs.job_id[rows], jobs.submit_time[rows]))].tolist():
        if int(jobs.job_id[row]) not in but:
            found[_owner(jobs, row)].append(row)
    return found


def _waited_before(jobs: JobTable, gone: Left, row: int) -> float:
    """Seconds that the job that is gone had waited before this one was there: no moment counts twice."""
    since = jobs.eligible_time[row] if np.isfinite(jobs.eligible_time[row]) else jobs.submit_time[row]
    return float(np.clip(since - (gone.last - gone.wait), 0.0, gone.wait))

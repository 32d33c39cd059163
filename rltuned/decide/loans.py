"""The book of loans: what each waiting job has lent, to whom, and what is left of it (docs/lending.md).

Pure: the moment comes from the caller, who keeps the book between two cycles and saves it. A raised job has an *offer*:
who lends what when it starts. When it has started, the offer is a *loan*: it is charged with the larger of what was
predicted and what it has used, and with exactly what it used when it has ended. A loan ends when its lender starts or
is gone. What was lent is remembered as long as the lender waits.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np

from rltuned.cluster.changes import JobState
from rltuned.cluster.tables import Floats, JobTable, Rows, Snapshot
from rltuned.cluster.taken import sizes_held

FORMAT: Final = 1
GRACE: Final = 2.0
"""Seconds by which Slurm's whole seconds and our own readings may differ."""
UNTOLD: Final = 86_400.0
"""Seconds after which a loan that accounting says nothing of is settled by what the readings showed."""
MOST_REMEMBERED: Final = 10_000
"""Jobs that have left the queue and are remembered; the oldest are forgotten first."""
MOST_NAMED: Final = 8
"""Borrowers that are named of each lender: the last."""


class Part(NamedTuple):
    """What one lender gives to one borrower."""

    lender: int
    submit_time: int
    """Epoch seconds; with the id, the lender's identity."""
    gpus: float


class Offer(NamedTuple):
    """What one raised job borrows when it starts."""

    submit_time: int
    tasks: int
    """Waiting tasks of an array; 1 where it is none."""
    able: int
    """Of these, the tasks that may start at a time."""
    size: float
    """GPUs that each of them keeps from others."""
    seconds: float
    """That each is charged for before it has ended."""
    parts: tuple[Part, ...]
    """Of `able` tasks, in the order in which these use them up."""
    unwanted: bool = False
    """The last plan does not want it, but the job carries the raise still: it could not be given back."""


class Loan(NamedTuple):
    """What one job borrowed that has started."""

    submit_time: int
    seconds: float
    """Charged before it has ended."""
    began: float
    """When it started by the clock that never jumps."""
    start: float
    """The same as Slurm says it, epoch seconds; 0: it was not seen running."""
    used: float
    """Seconds that it ran, at most, when it was gone; −1: it runs."""
    ended: float
    """When it was found to be gone, by the clock that never jumps; 0: it runs."""
    parts: tuple[Part, ...]

    def charged(self, now: float) -> float:
        """Seconds that its lenders have lent for."""
        return max(self.seconds, now - self.began) if self.used < 0 else self.used


class Given(NamedTuple):
    """What one waiting job has lent to borrowers that have ended, or that its book does not name any more."""

    submit_time: int
    seconds: float
    """GPU-seconds."""
    loans: int
    borrowers: tuple[int, ...]
    """The last of them, `MOST_NAMED` at most."""


class Inherited(NamedTuple):
    """What a job has of one with the same request that its user cancelled while it waited."""

    submit_time: int
    wait: float
    """Seconds."""


class Left(NamedTuple):
    """A job that has left the queue without being seen running: cancelled, or over within one cycle."""

    owner: str
    """Its user and what it asked for, but for limit and memory: who changes these has waited as long."""
    last: float
    """When it was seen last, by the clock that never jumps."""
    wait: float
    lent: float
    cancelled: bool
    """Accounting says that it never ran."""


class Told(NamedTuple):
    """What accounting says of jobs that have ended."""

    took: Callable[[int], tuple[float, float] | None] = lambda _job: None
    """Start (epoch seconds) and run time in seconds of the job with this id; None: nothing is known."""
    cancelled: Collection[int] = frozenset()
    """Jobs that were cancelled before they ran."""


NOTHING_TOLD: Final = Told()


class _Waiting(NamedTuple):
    """The queue of the last reading, to find out who left it."""

    jobs: JobTable
    wait: Floats
    """(P,) of the pending jobs."""
    tasks: Collection[int]
    """Tasks of arrays that had started."""


@dataclass(frozen=True)
class Book:
    """What waiting jobs lend. A new one at each step; nothing in it is changed."""

    time: float = 0.0
    """Of the last reading, seconds of a clock that never jumps."""
    offers: Mapping[int, Offer] = field(default_factory=lambda: MappingProxyType({}))
    """By id, the waiting jobs that carry a raise."""
    loans: Mapping[int, Loan] = field(default_factory=lambda: MappingProxyType({}))
    """By id, the jobs that started raised, as long as their loans are open."""
    given: Mapping[int, Given] = field(default_factory=lambda: MappingProxyType({}))
    """By id of the lender."""
    inherited: Mapping[int, Inherited] = field(default_factory=lambda: MappingProxyType({}))
    left: Mapping[int, Left] = field(default_factory=lambda: MappingProxyType({}))
    waiting: _Waiting | None = None
    """Not kept on disk."""

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
        """(n,) seconds that these jobs have waited: the least by Slurm's clock and by ours, and what they inherited."""
        jobs = snapshot.jobs
        now = min(snapshot.time, self.time) if self.time else snapshot.time
        wait: Floats = np.maximum(now - jobs.eligible_time[rows], 0.0)
        wait = np.where(np.isnan(wait), 0.0, wait)
        return wait + self.inherited_wait(jobs, rows)

    def inherited_wait(self, jobs: JobTable, rows: Rows) -> Floats:
        """(n,) seconds that these jobs have from jobs that their users cancelled."""
        found = {(job, one.submit_time): one.wait for job, one in self.inherited.items()}
        return _by_row(found, jobs, rows)

    def open_parts(self) -> Iterator[tuple[int, Part, float]]:
        """Borrower, part and GPU-seconds until now of each open loan."""
        for job, loan in self.loans.items():
            seconds = loan.charged(self.time)
            for part in loan.parts:
                yield job, part, part.gpus * seconds

    def borrowers(self) -> dict[int, tuple[int, ...]]:
        """By id of the lender, the jobs that have an open loan of it."""
        found: dict[int, dict[int, None]] = defaultdict(dict)
        for job, part, _ in self.open_parts():
            found[part.lender][job] = None
        return {lender: tuple(jobs) for lender, jobs in found.items()}

    # --- what changes it

    def advanced(self, snapshot: Snapshot, now: float, told: Told = NOTHING_TOLD) -> "Book":
        """The book once a new reading is known.

        Args:
            snapshot: as read.
            now: seconds of a clock that never jumps.
            told: what accounting says.
        """
        jobs, passed = snapshot.jobs, max(now - self.time, 0.0) if self.time else 0.0
        # After a restart the clock may have gone back: it began with the wall clock.
        back = max(self.time - now, 0.0)
        loans = {
            job: _followed(snapshot, job, loan._replace(began=loan.began - back), now)
            for job, loan in self.loans.items()
        }
        offers, loans, over = _started(self, _again(self, loans, jobs), loans, snapshot, now, passed)
        given = dict(self.given)
        for job, parts, seconds in over:
            _give(given, job, parts, seconds)
        still: dict[int, Loan] = {}
        for job, loan in loans.items():
            parts = tuple(part for part in loan.parts if _waits(snapshot, part.lender, part.submit_time))
            if not parts:
                continue
            used = _settled(job, loan, told, now)
            if used is None:
                still[job] = loan._replace(parts=parts)
            else:
                _give(given, job, parts, used)
        given = {job: one for job, one in given.items() if _waits(snapshot, job, one.submit_time)}
        inherited = {job: one for job, one in self.inherited.items() if _waits(snapshot, job, one.submit_time)}
        kept = {
            job: offer._replace(
                parts=tuple(part for part in offer.parts if _waits(snapshot, part.lender, part.submit_time))
            )
            for job, offer in offers.items()
        }
        book = replace(self, time=now, offers=kept, loans=still, given=given, inherited=inherited)
        return _passed_on(book, self, snapshot, told)

    def offering(self, offers: Mapping[int, Offer], before: "Book | None" = None) -> "Book":
        """With these offers, those of a plan; beside those `before` it, which are to be given back."""
        kept = {} if before is None else {job: offer._replace(unwanted=True) for job, offer in before.offers.items()}
        return replace(self, offers={**kept, **offers})

    def carried(self, jobs: Collection[int]) -> "Book":
        """Without the offers to jobs that carry no raise."""
        return replace(self, offers={job: offer for job, offer in self.offers.items() if job in jobs})

    def lost(self, snapshot: Snapshot, lendable: Floats) -> "Book":
        """A new book: each waiting job has lent all that it could, (P,) GPU-seconds, until now."""
        jobs, rows = snapshot.jobs, snapshot.jobs.pending
        given = {
            job: Given(submit, seconds, 0, ())
            for job, submit, seconds in zip(
                jobs.job_id[rows].tolist(),
                jobs.submit_time[rows].astype(np.int64).tolist(),
                np.maximum(lendable, 0.0).tolist(),
                strict=True,
            )
            if seconds > 0
        }
        return Book(time=self.time, given=given, waiting=self.waiting)

    # --- on disk

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "format": FORMAT,
            "time": self.time,
            "offers": {
                str(job): [*offer[:-2], list(map(list, offer.parts)), offer.unwanted]
                for job, offer in self.offers.items()
            },
            "loans": {str(job): [*loan[:-1], list(map(list, loan.parts))] for job, loan in self.loans.items()},
            "given": {str(job): [*given[:-1], list(given.borrowers)] for job, given in self.given.items()},
            "inherited": {str(job): list(one) for job, one in self.inherited.items()},
            "left": {str(job): list(one) for job, one in self.left.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Of `as_dict`.

        Raises:
            ValueError: it is not of this form.
        """
        try:
            return cls._of(data)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"no book of loans: {error!r}") from error

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Self:
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}; this rltuned reads {FORMAT}")
        return cls(
            time=_number(data["time"]),
            offers={int(job): _offer(*values) for job, values in data["offers"].items()},
            loans={
                int(job): Loan(int(submit), *_numbers(times), _parts(parts))
                for job, (submit, *times, parts) in data["loans"].items()
            },
            given={
                int(job): Given(int(submit), _amount(seconds), int(loans), tuple(map(int, borrowers)))
                for job, (submit, seconds, loans, borrowers) in data["given"].items()
            },
            inherited={
                int(job): Inherited(int(submit), _amount(wait)) for job, (submit, wait) in data["inherited"].items()
            },
            left={
                int(job): Left(str(owner), _number(last), _amount(wait), _amount(lent), bool(cancelled))
                for job, (owner, last, wait, lent, cancelled) in data["left"].items()
            },
        )


NOTHING_LENT: Final = Book()


def _number(value: Any) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise ValueError(f"{value!r} is no number of seconds")
    return number


def _numbers(values: Iterable[Any]) -> tuple[float, float, float, float, float]:
    seconds, began, start, used, ended = map(_number, values)
    return seconds, began, start, used, ended


def _offer(submit: Any, tasks: Any, able: Any, size: Any, seconds: Any, parts: Any, unwanted: Any) -> Offer:
    offer = Offer(
        int(submit), int(tasks), int(able), _amount(size), _amount(seconds), _parts(parts), unwanted=bool(unwanted)
    )
    if offer.able < 1 or not offer.size:
        raise ValueError(f"{offer} is to no job")
    return offer


def _amount(value: Any) -> float:
    number = _number(value)
    if number < 0:
        raise ValueError(f"{value!r} is below 0")
    return number


def _parts(found: Iterable[Any]) -> tuple[Part, ...]:
    return tuple(Part(int(lender), int(submit), _amount(gpus)) for lender, submit, gpus in found)


def _owner(jobs: JobTable, row: int) -> str:
    cpus = 0 if jobs.gpus[row] else jobs.cpus[row]
    asked = jobs.partition.value(row), jobs.nodes[row], jobs.gpus[row], jobs.gpu_type.value(row), cpus
    return "\0".join(map(str, (jobs.user.value(row), *asked)))


def _by_row(found: Mapping[tuple[int, int], float], jobs: JobTable, rows: Rows) -> Floats:
    values = np.zeros(len(jobs))
    for (job, submit), value in found.items():
        row = jobs.row_of.get(job)
        if row is not None and int(jobs.submit_time[row]) == submit:
            values[row] = value
    return values[rows]


def _passed_on(after: Book, before: Book, snapshot: Snapshot, told: Told) -> Book:
    """The book with the wait of cancelled jobs on their users' next ones of the same request."""
    jobs = snapshot.jobs
    rows = jobs.pending
    left = dict(before.left)
    if before.waiting is not None:
        was, waited = before.waiting.jobs, before.waiting.wait
        for at in np.flatnonzero(~np.isin(was.job_id[was.pending], jobs.job_id)).tolist():
            row = was.pending[at]
            job = int(was.job_id[row])
            if not snapshot.is_unread(job) and was.user.codes[row] >= 0:
                lent = before.given[job].seconds if job in before.given else 0.0
                lent += sum(
                    part.gpus * loan.charged(before.time)
                    for loan in before.loans.values()
                    for part in loan.parts
                    if part.lender == job
                )
                left[job] = Left(_owner(was, row), before.time, float(waited[at]), lent, cancelled=False)
    for job in [job for job in left if told.took(job) is not None]:
        del left[job]  # it has run
    left = {
        job: one._replace(cancelled=True) if job in told.cancelled else one
        for job, one in left.items()
        if after.time - one.last <= UNTOLD
    }
    given, inherited = dict(after.given), dict(after.inherited)
    heirs = sorted((job for job, one in left.items() if one.cancelled), key=lambda job: left[job].last)
    next_ones = _of_owners(jobs, {left[job].owner for job in heirs}, inherited, min(heirs)) if heirs else {}
    for job in heirs:
        gone, rows_left = left[job], next_ones.get(left[job].owner)
        # The last one that was submitted: nobody looks through thousands of jobs of one request.
        if not rows_left or int(jobs.job_id[rows_left[-1]]) < job:
            continue
        row = rows_left[-1]
        if not (wait := _waited_before(jobs, gone, row)):
            continue
        rows_left.pop()
        heir, submit = int(jobs.job_id[row]), int(jobs.submit_time[row])
        inherited[heir] = Inherited(submit, wait)
        if gone.lent > 0:
            known = given.get(heir, Given(submit, 0.0, 0, ()))
            given[heir] = known._replace(seconds=known.seconds + gone.lent * wait / gone.wait)
        del left[job]
    if len(left) > MOST_REMEMBERED:
        last = sorted(left, key=lambda job: left[job].last)[-MOST_REMEMBERED:]
        left = {job: left[job] for job in last}
    book = replace(after, given=given, inherited=inherited, left=left)
    waiting = _Waiting(
        jobs,
        book.wait(snapshot, rows),
        {*snapshot.array_of, *filter(snapshot.is_unread, () if before.waiting is None else before.waiting.tasks)},
    )
    return replace(book, waiting=waiting)


def _waits(snapshot: Snapshot, job: int, submit_time: int) -> bool:
    if snapshot.is_unread(job):
        return True  # nothing tells that it does not, whatever else its row says
    jobs, row = snapshot.jobs, snapshot.jobs.row_of.get(job)
    return row is not None and bool(jobs.state[row] == JobState.PENDING and int(jobs.submit_time[row]) == submit_time)


def _give(given: dict[int, Given], borrower: int, parts: Iterable[Part], seconds: float) -> None:
    for part in parts:
        known = given.get(part.lender)
        if known is None or known.submit_time != part.submit_time:
            known = Given(part.submit_time, 0.0, 0, ())
        given[part.lender] = Given(
            part.submit_time,
            known.seconds + part.gpus * seconds,
            known.loans + 1,
            (*known.borrowers, borrower)[-MOST_NAMED:],
        )


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


def _of_owners(jobs: JobTable, owners: Collection[str], but: Collection[int], first: int) -> dict[str, list[int]]:
    """Rows of the waiting jobs of these users and requests, the last one that was submitted last; without `but`, and
    with ids above `first`.
    """
    users = {owner.partition("\0")[0] for owner in owners}
    rows = jobs.pending[jobs.job_id[jobs.pending] > first]
    rows = rows[jobs.user.take(rows).mapped(users.__contains__, none=False)]
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows[np.lexsort((jobs.job_id[rows], jobs.submit_time[rows]))].tolist():
        if int(jobs.job_id[row]) not in but:
            found[_owner(jobs, row)].append(row)
    return found


def _waited_before(jobs: JobTable, gone: Left, row: int) -> float:
    """Seconds that the job that is gone had waited before this one was there: no moment counts twice."""
    since = jobs.eligible_time[row] if np.isfinite(jobs.eligible_time[row]) else jobs.submit_time[row]
    return float(np.clip(since - (gone.last - gone.wait), 0.0, gone.wait))


def _again(book: Book, loans: Mapping[int, Loan], jobs: JobTable) -> dict[int, Offer]:
    """The offers, with those to jobs that were requeued while they ran: they carry their raise still."""
    offers = dict(book.offers)
    for job, loan in loans.items():
        row = jobs.row_of.get(job)
        if row is None or jobs.state[row] == JobState.OTHER or job in offers:
            continue
        if book.loans[job].used < 0 <= loan.used:
            size = sum(part.gpus for part in loan.parts)
            offers[job] = Offer(int(jobs.submit_time[row]), 1, 1, size, loan.seconds, loan.parts)
    return offers


class _Started(NamedTuple):
    offers: dict[int, Offer]
    """To jobs that still wait."""
    loans: dict[int, Loan]
    over: list[tuple[int, tuple[Part, ...], float]]
    """Runs that are over, of which nothing more will be known: the job, what was lent for it, and seconds."""


def _started(
    book: Book, given: Mapping[int, Offer], loans: dict[int, Loan], snapshot: Snapshot, now: float, passed: float
) -> _Started:
    """What became of the offers, `passed` seconds after the last reading."""
    jobs, found = snapshot.jobs, _Started({}, loans, [])
    tasks_of: dict[int, list[int]] = defaultdict(list)
    for task, array in snapshot.array_of.items() if given else ():
        tasks_of[array].append(task)

    def begin(job: int, loan: Loan) -> None:
        if (before := loans.get(job)) is not None:
            found.over.append((job, before.parts, before.charged(now)))
        loans[job] = loan

    for job, offer in given.items():
        row = jobs.row_of.get(job)
        if row is None and snapshot.is_unread(job):
            found.offers[job] = offer
            continue
        waits = row is not None and jobs.state[row] == JobState.PENDING
        submit, tasks = (int(jobs.submit_time[row]), max(int(jobs.array_tasks[row]), 1)) if waits else (0, 0)
        # If it was requeued, what waits now has run before.
        left = tasks if submit == offer.submit_time else 0
        rest, seen = offer.parts, _new_tasks(book, snapshot, job, tasks_of[job], snapshot.time - passed)
        for nth, at in enumerate(seen):
            rest = rest if nth % offer.able else offer.parts
            taken, rest = _split(rest, offer.size)
            if taken:
                start = float(jobs.start_time[at])
                ran = min(max(snapshot.time - start, 0.0), passed) if np.isfinite(start) else passed
                # It may have been given more than it asked for when it was raised.
                more = max(float(sizes_held(snapshot, np.array([at]))[0]) / offer.size, 1.0)
                taken = tuple(part._replace(gpus=part.gpus * more) for part in taken)
                submitted, start = int(jobs.submit_time[at]), start if np.isfinite(start) else 0.0
                begin(int(jobs.job_id[at]), Loan(submitted, offer.seconds, now - ran, start, -1.0, 0.0, taken))
        # Those that nobody saw were over within a cycle, or were cancelled.
        unseen = max(offer.tasks - left - len(seen), 0)
        taken, rest = _split(rest if unseen + len(seen) <= offer.able else offer.parts, unseen * offer.size)
        if taken and offer.tasks > 1:
            found.over.append((job, taken, passed))
        elif taken:
            begin(job, Loan(offer.submit_time, offer.seconds, now - passed, 0.0, passed, now, taken))
        if waits:
            found.offers[job] = offer._replace(submit_time=submit, tasks=tasks, parts=rest or offer.parts)
    return found


def _new_tasks(book: Book, snapshot: Snapshot, job: int, tasks: Iterable[int], since: float) -> list[int]:
    """Rows of the jobs that a raised one stood for and that run since the last reading."""
    jobs, before = snapshot.jobs, book.waiting
    found = []
    for task in dict.fromkeys((job, *tasks)):  # the last task has the number of its array
        row = jobs.row_of.get(task)
        if row is None or jobs.state[row] != JobState.RUNNING:
            continue
        open_loan = book.loans.get(task)
        if open_loan is not None and open_loan.used < 0 and open_loan.submit_time == int(jobs.submit_time[row]):
            continue
        # After a restart of ours only the start tells.
        new = jobs.start_time[row] >= since - GRACE if before is None else task not in before.tasks
        if task == job or new:
            found.append(row)
    return found


def _followed(snapshot: Snapshot, job: int, loan: Loan, now: float) -> Loan:
    """The loan as the reading shows its borrower."""
    jobs = snapshot.jobs
    row = jobs.row_of.get(job)
    if loan.used >= 0 or (row is None and snapshot.is_unread(job)):
        return loan
    runs = row is not None and jobs.state[row] == JobState.RUNNING and int(jobs.submit_time[row]) == loan.submit_time
    return loan if runs else loan._replace(used=max(now - loan.began, 0.0), ended=now)


def _settled(job: int, loan: Loan, told: Told, now: float) -> float | None:
    """Seconds that the borrower really used; None while nobody knows."""
    if loan.used < 0:
        return None
    if not loan.start and job in told.cancelled:
        return 0.0
    known = told.took(job)
    if known is not None:
        start, took = known
        if (abs(start - loan.start) <= GRACE if loan.start else start >= loan.submit_time) and (
            took <= loan.used + GRACE
        ):
            return took
    return loan.used if now - loan.ended > UNTOLD else None

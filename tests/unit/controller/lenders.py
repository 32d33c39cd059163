"""What waiting jobs have lent, counted beside rltuned: from what was promised on disk, and from who started and ended.

Knows nothing of `rltuned.decide.loans`. Times are those of a clock that nobody sets.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SLACK = 6.0  # seconds by which Slurm's whole seconds and the moments of readings may differ

Key = tuple[int, int]  # id and submit time of a job


class Lent(NamedTuple):
    """What one job gives to another one."""

    lender: Key
    gpus: float


@dataclass
class Promise:
    """What is lent for one raised job when it starts; for an array, task by task."""

    submit_time: int
    tasks: int  # that wait
    seconds: float
    size: float
    parts: list[Lent]
    able: int = 1  # tasks that the parts are for, together
    started: int = 0
    left: list[Lent] = field(default_factory=list)  # of an array, what those that have started have left

    def take(self) -> list[Lent]:
        """Who lends for the one that starts now."""
        left, need = self.left if self.started % self.able else list(self.parts), self.size
        taken, self.left, self.started = [], [], self.started + 1
        for lender, gpus in left:
            used = min(gpus, need)
            need -= used
            if used > 0:
                taken.append(Lent(lender, used))
            if gpus - used > 1e-9:
                self.left.append(Lent(lender, gpus - used))
        return taken


@dataclass
class Loan:
    """One job that started ahead of others."""

    borrower: Key
    seconds: float
    began: float
    parts: list[Lent]
    more: float  # times the GPUs that it asked for when it was raised it has been given
    ended: float | None = None
    unseen: bool = False  # nobody could read how it was when it started
    forgotten: bool = False  # the file was lost since: what it has used beyond what was promised nobody can know

    def used(self, now: float) -> float:
        """Seconds that it has run."""
        return max((now if self.ended is None else min(self.ended, now)) - self.began, 0.0)

    def charged(self, now: float) -> float:
        """Seconds that are lent for."""
        if self.ended is not None and self.ended <= now:
            return self.used(now)
        return self.seconds if self.forgotten else max(self.seconds, self.used(now))

    def beyond(self, now: float) -> float:
        """GPU-seconds, for each GPU that was promised, that it has used and nobody could expect."""
        return max(self.more * self.charged(now) - self.seconds, 0.0)


@dataclass
class Lenders:
    """Of one cluster."""

    path: Path  # of the file of loans
    promises: dict[int, Promise] = field(default_factory=dict)  # on disk, by id of the raised job
    claims: dict[Key, float] = field(default_factory=dict)
    """GPU-seconds that each lender has lent by the file, and what it has promised."""
    loans: list[Loan] = field(default_factory=list)
    time: float = 0.0  # of the last reading before the file was written, by the clock of its process
    _seen: bytes = b""

    def look(self) -> bool:
        """Read the file, if it can be read. Whether it is another one than before."""
        try:
            data = self.path.read_bytes()
            if data == self._seen:
                return False
            book = json.loads(data)["book"]
        except (OSError, ValueError, KeyError):
            return False
        self._seen, self.time = data, book["time"]
        before, self.promises, self.claims = self.promises, {}, {}
        for job, (submit, tasks, able, size, seconds, parts, _unwanted) in book["offers"].items():
            lent = [Lent((lender, submitted), gpus) for lender, submitted, gpus in parts]
            known = before.get(int(job))
            # The same parts for fewer tasks are those of another plan.
            same = known is not None and (known.submit_time, known.tasks, known.parts) == (submit, tasks, lent)
            self.promises[int(job)] = promise = Promise(submit, tasks, seconds, size, lent, able)
            if known is not None and same:
                promise.started, promise.left = known.started, known.left
            self._claim(parts, seconds)
            # Whoever started since the reading that this is about borrows as it says.
            for loan in self.loans:
                if not same and loan.borrower == (int(job), submit) and loan.ended is None:
                    loan.seconds, loan.parts = seconds, promise.take()
        for job, (submit, seconds, began, _start, used, _ended, parts) in book["loans"].items():
            self._claim(parts, max(seconds, book["time"] - began) if used < 0 else used)
            if used < 0 and int(job) not in self.promises:  # should it have been requeued since that reading
                lent = [Lent((lender, submitted), gpus) for lender, submitted, gpus in parts]
                self.promises[int(job)] = Promise(submit, 1, seconds, max(sum(part.gpus for part in lent), 1e-3), lent)
        for lender, (submit, seconds, *_) in book["given"].items():
            self._claim([(int(lender), submit, 1.0)], seconds)
        return True

    def _claim(self, parts: Iterable[Any], seconds: float) -> None:
        for lender, submit, gpus in parts:
            self.claims[lender, submit] = self.claims.get((lender, submit), 0.0) + gpus * seconds

    def started(self, job: int, key: Key, size: float, now: float, *, unseen: bool) -> bool:
        """A job starts that carries a raise; of an array, `job` is the array. Whether anybody lends for it."""
        self.look()
        promise = self.promises.get(job)
        if promise is None:
            return False
        more = max(size / promise.size, 1.0)
        self.loans.append(Loan(key, promise.seconds, now, promise.take(), more, unseen=unseen))
        return True

    def ended(self, key: Key, now: float) -> None:
        """A job runs no more."""
        for loan in self.loans:
            if loan.borrower == key and loan.ended is None:
                loan.ended = now

    def requeued(self, key: Key, now: float) -> None:
        """A job that ran waits again, with what it carries: the same ones lend for it."""
        self.look()
        for loan in self.loans:
            if loan.borrower == key and loan.ended is None:
                size = sum(part.gpus for part in loan.parts)
                self.promises[key[0]] = Promise(key[1], 1, loan.seconds, max(size, 1e-3), list(loan.parts))
        self.ended(key, now)

    def unseen(self, key: Key, since: float) -> None:
        """Slurm has forgotten that a job ran: nobody knows of it, if it began after that."""
        self.loans = [loan for loan in self.loans if loan.borrower != key or loan.began <= since]

    def no_lender(self, key: Key) -> None:
        """A job waits no more: what it has lent counts no more."""
        for loan in self.loans:
            loan.parts = [part for part in loan.parts if part.lender != key]

    def lost(self) -> None:
        """The file was lost: rltuned takes everybody for having lent all that was promised."""
        for loan in self.loans:
            loan.forgotten = True

    def of(self, lender: Key) -> Iterator[tuple[Loan, float]]:
        """The loans of one lender, and the GPUs of each that are its."""
        for loan in self.loans:
            for part in loan.parts:
                if part.lender == lender:
                    yield loan, part.gpus

    def lent(self, lender: Key, now: float) -> tuple[float, float]:
        """GPU-seconds that a job has lent, and how many of these nobody could expect."""
        total = beyond = 0.0
        for loan, gpus in self.of(lender):
            total += gpus * loan.more * loan.charged(now)
            beyond += gpus * loan.beyond(now)
        return total, beyond

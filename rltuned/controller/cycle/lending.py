"""The book of loans, the largest requests of jobs and `lend.share`, kept over cycles and restarts (docs/lending.md).

What is about to be offered is on disk before a job is raised. Where the file is lost, or tells of fewer raised jobs
than the journal, every waiting job counts as having lent all that it could, and the book starts anew.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rltuned.controller.cycle.choice import Choice, Share, lent_by
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.write.apply import Result
from rltuned.controller.write.journal import Journal
from rltuned.core.applied import NONE_KNOWN, AppliedChanges, LargestRequests, Request
from rltuned.core.changes import IN_FORCE, Field, Outcome
from rltuned.core.config import Config
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import read, write
from rltuned.core.tables import Snapshot
from rltuned.decide.loans import Book, Told
from rltuned.decide.managed import managed_jobs
from rltuned.decide.plan import Plan
from rltuned.decide.raising import lendable

FILE_NAME: Final = "loans.json"
MOST_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class _File:
    book: Mapping[str, Any]
    largest: Mapping[int, tuple[int, int, float | None]] = field(default_factory=dict)
    """Submit time, GPUs and time limit of the largest request, by id of each job that asks for less now."""
    share: Share | None = None

    def requests(self) -> LargestRequests:
        return LargestRequests.of(
            {
                job: Request(submit, gpus, math.inf if limit is None else limit)
                for job, (submit, gpus, limit) in self.largest.items()
            }
        )


def read_book(directory: Path) -> tuple[Book, LargestRequests, Share | None] | None:
    """The book of loans, the largest requests of jobs that ask for less, the share in force; None where there is none.
    RltunedError names the file that cannot be used.
    """
    path, remedy = directory / FILE_NAME, "delete it: waiting jobs then count as having lent all that they could"
    try:
        found = read(_File, path, "a book of loans", MOST_BYTES)
        return None if found is None else (Book.from_dict(found.book), found.requests(), found.share)
    except RltunedError as error:
        raise RltunedError(f"{error}; {remedy}") from error
    except (ValueError, OverflowError) as error:
        raise RltunedError(f"{path}: cannot be used: {error}; {remedy}") from error


class Lending:
    """What waiting jobs have lent, as the running daemon knows it."""

    def __init__(self, runtime: Runtime, journal: Journal, *, keep: bool) -> None:
        """Take over what an earlier daemon has left; `keep`: the files are this daemon's, not so in a dry run. Where
        the book does not tell who lends for a job that is raised by the journal, it is lost.
        """
        self._runtime, self._keeps = runtime, keep
        self._trouble: str | None = None
        self._directory = directory = runtime.config.state.directory
        self._shrunk: dict[int, Request] = {}
        self.book, self.largest = Book(), NONE_KNOWN
        self._share: Share | None = None
        self._lost: str | None = None  # why
        try:
            found = read_book(directory)
            if found is not None:
                self.book, self.largest, self._share = found
            elif journal.used:
                self._lost = f"{directory / FILE_NAME} is not there"
        except RltunedError as error:
            self._lost = str(error)
        self._unknown = _raised(journal) - self.book.offers.keys()
        if self.book == Book() and not self._lost:
            self._keep(self.book)  # from now on, a file that is not there is one that was lost

    def let_go(self) -> None:
        """Keep to memory from now on: the files may be another process's."""
        self._keeps = False

    def advance(self, snapshot: Snapshot, now: float, told: Told, config: Config, journal: Journal) -> None:
        """Bring the book to this reading, which the journal was compared with; `now` by the clock that never jumps.

        Who starts after the last reading borrows, even of a raise that was given back since: slurmctld may have begun
        to look at its queue before. Who waits by this one, and carries a raise no more by the journal, does not.
        """
        unknown, self._unknown = self._unknown, set()
        book = self.book.advanced(snapshot, now, told)
        waiting = set(snapshot.jobs.job_id[snapshot.jobs.pending].tolist())
        # It may have run when the file was written, and wait again.
        if (unknown - book.offers.keys()) & waiting:
            self._lost = self._lost or "it does not tell who lends for the jobs that are raised"
        self.book = book.carried((book.offers.keys() - waiting) | _raised(journal))
        if self._lost:
            sentence = "The book of loans is lost: every waiting job counts as having lent all that it could."
            self._runtime.log.warning("loans.lost", sentence=sentence, reason=self._lost)
            managed = managed_jobs(snapshot, config, replace(journal.applied(), largest=self.largest))
            part = config.lend.part
            if isinstance(config.lend.share, str):  # "auto" may have let jobs lend all of their wait
                part = 1.0 if self._share is None else max(part, self._share.value)
            lent = lendable(managed, Book(time=now), part)
            self.book = self.book.lost(snapshot, lent).offering(self.book.offers)
            self._lost = None

    def followed(self, choice: Choice, config: Config) -> Config:
        """`lent_by` at the last reading. What "auto" has become is said once."""
        before, (self._share, followed) = self._share, lent_by(choice, config, self._share, self.book.time)
        share = self._share.value
        if followed is not config and (before is None or before.value != share):
            sentence = f"A waiting job may lend {share:g} of its wait; the verdict goes to {choice.share:g}."
            self._runtime.log.info("lend.share", sentence=sentence, share=share, goal=choice.share)
        return followed

    def promise(self, plan: Plan) -> str | None:
        """Put on disk what is about to be offered, beside what the jobs carry that are still to be given back. Why it
        cannot be.
        """
        book = plan.book.offering(plan.book.offers, self.book)
        trouble = self._keep(book, durable=True)
        self.book = self.book if trouble else book
        return trouble

    def take_in(self, plan: Plan, journal: Journal, before: Book, results: Collection[Result]) -> None:
        """Note the jobs that carry a raise of ours by the journal, or did `before`. Where what was to be written was
        not (`results`), those who lent before lend.
        """
        # Of a raise that was undone, what it goes ahead by at the next calculation is lent; of one that was to go less
        # far, what it still goes ahead by.
        written = {
            change.job_id
            for change, outcome, _ in results
            if outcome in IN_FORCE or (outcome is Outcome.UNDONE and not change.gives_back)
        }
        wanted = {change.job_id for change in plan.changes if change.field is Field.SITE_FACTOR}
        stand = {job: before.offers[job]._replace(unwanted=True) for job in wanted - written if job in before.offers}
        book = self.book.offering({**self.book.offers, **stand})
        self.book = book.carried(_raised(journal) | before.offers.keys())
        self.largest = self.largest.grown(plan.snapshot)
        self._shrunk = self.largest.shrunk(plan.snapshot.jobs)
        self._keep(self.book)

    def _keep(self, book: Book, *, durable: bool = False) -> str | None:
        if not self._keeps:
            return None
        largest = {
            job: (submit, gpus, limit if math.isfinite(limit) else None)
            for job, (submit, gpus, limit) in self._shrunk.items()
        }
        trouble = None
        try:
            write(self._directory / FILE_NAME, _File(book.as_dict(), largest, self._share), durable=durable)
        except RltunedError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            sentence = "The book of loans cannot be kept. Nobody is raised until it can be."
            self._runtime.log.warning("loans.not_kept", sentence=sentence, reason=trouble)
        self._trouble = trouble
        return trouble


def _raised(journal: Journal) -> set[int]:
    return {job for job, entry in journal.entries.items() if entry.may_be_raised}


def planned_on(
    config: Config, snapshot: Snapshot, applied: AppliedChanges, now: float
) -> tuple[AppliedChanges, Book, Share | None]:
    """What a plan beside the daemon starts from; RltunedError: the book cannot be used."""
    book, largest, share = read_book(config.state.directory) or (Book(), NONE_KNOWN, None)
    return replace(applied, largest=largest), book.advanced(snapshot, now), share

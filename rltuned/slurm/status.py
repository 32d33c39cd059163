"""The few facts about jobs that are re-read right before and right after a write."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rltuned.core.changes import JobState, JobStatus
from rltuned.core.errors import SlurmParseError
from rltuned.core.unread import Unread
from rltuned.slurm import notation
from rltuned.slurm.commands import SEPARATOR, SITE_FIELDS, STATUS_FIELDS
from rltuned.slurm.controller import release
from rltuned.slurm.process import Answer, Runner
from rltuned.slurm.separated import rows_of
from rltuned.slurm.squeue import job_columns, multifactor, read_records, skip_strange, started_tasks

_ID_COLUMNS: Final[Mapping[str, tuple[int, int]]] = {
    "status": (2, len(STATUS_FIELDS)),
    "status-exclusive": (2, len(STATUS_FIELDS) + 1),
    "site-factors": (1, len(SITE_FIELDS)),
}
"""How many first columns of a table are ids of jobs; and how many columns there are."""


class _RowsOf(Runner):
    """Runs each command once. Of its tables only rows of some jobs are left, unless all are needed (`whole`)."""

    def __init__(self, runner: Runner, job_ids: Iterable[int]) -> None:
        self._runner = runner
        self._ids = frozenset(map(str, job_ids))
        self._answers: dict[str, Answer] = {}
        self.whole = False

    def run(self, name: str, *words: str, stdin: str = "") -> Answer:
        """See `Runner`."""
        if name not in self._answers:
            self._answers[name] = self._runner.run(name, *words, stdin=stdin)
        answer, columns = self._answers[name], _ID_COLUMNS.get(name)
        if self.whole or columns is None:
            return answer
        kept = rows_of(answer.stdout, self._ids, *columns)
        if columns[0] == 2:
            # sprio knows the tasks of an array by their own numbers.
            self._ids |= {row.split(SEPARATOR, 1)[0] for row in kept.splitlines()}
        return replace(answer, stdout=kept)


def read_status(runner: Runner, job_ids: Sequence[int] | None) -> dict[int, JobStatus]:
    """Status of these jobs, None: of every pending one. Three commands whatever the number of jobs.

    A job whose row cannot be understood is there as one that is not (`JobStatus.not_understood`): it is not gone.
    """
    narrow, unread = _RowsOf(runner, job_ids or ()), Unread()
    # sprio is asked first: a job that starts between the two commands is seen to run, not to wait without site factor.
    # Its rows are chosen afterwards, by what squeue says of the tasks of arrays.
    narrow.run("site-factors")
    if job_ids is not None:
        with contextlib.suppress(SlurmParseError):
            found = _read_status(narrow, job_ids, unread)
            if not unread:
                return found
    # What is strange is judged by all rows.
    narrow.whole = True
    return _read_status(narrow, job_ids, Unread())


def _read_status(runner: Runner, job_ids: Sequence[int] | None, unread: Unread) -> dict[int, JobStatus]:
    texts = job_columns(runner, release(runner), unread, brief=True)
    records = read_records(texts, multifactor(runner, unread))
    wanted = None if job_ids is None else set(job_ids)
    found: dict[int, JobStatus] = {}
    for row in records.rows:
        job, pending = records.ids[row], records.state[row] == JobState.PENDING
        if row in records.columns.strange or (not pending if wanted is None else job not in wanted):
            continue
        if job in records.sites_differ:
            found[job] = JobStatus.not_understood(job, "its waiting tasks differ in site factor")
            continue
        factors = records.factors[row]
        found[job] = JobStatus(
            job_id=job,
            submit_time=int(records.submit_time[row]),
            pending=pending,
            held=records.held[row],
            priority=records.priority[row],
            site_factor=factors.site if factors else None,
            bases=factors.bases if factors else (),
            oversubscribe=records.oversubscribe[row],
            reason=notation.text(texts["Reason"][row]),
            request=records.request[row],
        )
    skip_strange(records, unread, "squeue (status)")
    return _completed(found, wanted, started_tasks(texts)[0], unread)


def _completed(
    found: dict[int, JobStatus], wanted: set[int] | None, arrays: Mapping[int, int], unread: Unread
) -> dict[int, JobStatus]:
    """What was found, with arrays that have started (submit time by id) and jobs that were not understood.

    `wanted`: only these jobs, None: all.
    """
    known = dict(found)
    for array, began in arrays.items():
        if wanted is not None and array in wanted and array not in known:
            known[array] = JobStatus.started(array, began)
    if unread:
        for job in {*known, *unread.jobs} if wanted is None else wanted:
            if job in known and not known[job].pending:
                continue  # sprio matters for pending jobs only
            if reason := unread.about(job, queued=job in known):
                known[job] = JobStatus.not_understood(job, reason)
    return known

"""What earlier cycles left on the queue and know of it, as `plan()` needs it.

By the largest request that it has shown a job is ranked for its life: who asks for less to be moved to the front, and
then for what is needed, gains nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rltuned.core.changes import Applied
from rltuned.core.tables import Floats, Ints, JobTable, Rows, Snapshot


class Request(NamedTuple):
    """What one job asked for."""

    submit_time: int
    gpus: int
    time_limit: float  # seconds, infinite when unlimited


@dataclass(frozen=True)
class LargestRequests:
    """Of n pending jobs."""

    job_id: Ints  # (n,) ascending; so are the others, in this order
    submit_time: Ints
    gpus: Ints
    time_limit: Floats

    @classmethod
    def of(cls, requests: Mapping[int, Request]) -> Self:
        """Of requests by job id."""
        ids = sorted(requests)
        columns = [requests[job] for job in ids]
        return cls(
            np.array(ids, dtype=np.int64),
            np.array([of.submit_time for of in columns], dtype=np.int64),
            np.array([of.gpus for of in columns], dtype=np.int64),
            np.array([of.time_limit for of in columns], dtype=np.float64),
        )

    def grown(self, snapshot: Snapshot) -> "LargestRequests":
        """With what the pending jobs of a reading ask for; without the jobs that are not among them. Of those whose
        rows cannot be understood, what they asked for before stands.
        """
        jobs = self.shown_by(snapshot.jobs)
        rows = jobs.pending[~np.isin(jobs.job_id[jobs.pending], list(snapshot.unread.jobs))]
        gone = np.flatnonzero(~np.isin(self.job_id, jobs.job_id[rows]))
        at = gone[[snapshot.is_unread(job) for job in self.job_id[gone].tolist()]]
        submit = jobs.submit_time[rows].astype(np.int64)
        columns: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = [
            (self.job_id[at], jobs.job_id[rows]),
            (self.submit_time[at], submit),
            (self.gpus[at], jobs.gpus[rows]),
            (self.time_limit[at], jobs.time_limit[rows]),
        ]
        ids, *others = map(np.concatenate, columns)
        order = np.argsort(ids)
        return LargestRequests(ids[order], *(of[order] for of in others))

    def shown_by(self, jobs: JobTable) -> JobTable:
        """The table in which each pending job asks for the largest that it has shown, this reading included."""
        at, rows = self._larger(jobs)
        if not len(rows):
            return jobs
        gpus, limits = jobs.gpus.copy(), jobs.time_limit.copy()
        gpus[rows] = np.maximum(self.gpus[at], gpus[rows])
        limits[rows] = np.fmax(self.time_limit[at], limits[rows])
        return replace(jobs, gpus=gpus, time_limit=limits)

    def shrunk(self, jobs: JobTable) -> dict[int, Request]:
        """Those that are larger than what the job asks for now, by job id."""
        at, _ = self._larger(jobs)
        columns = (self.job_id, self.submit_time, self.gpus, self.time_limit)
        return {job: Request(*request) for job, *request in zip(*(of[at].tolist() for of in columns), strict=True)}

    def _larger(self, jobs: JobTable) -> tuple[Rows, Rows]:
        """Places here, and rows of the table, of the pending jobs that ask for less now."""
        rows = jobs.pending
        if not len(self.job_id) or not len(rows):
            return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
        at = np.minimum(np.searchsorted(self.job_id, jobs.job_id[rows]), len(self.job_id) - 1)
        same = (self.job_id[at] == jobs.job_id[rows]) & (self.submit_time[at] == jobs.submit_time[rows])
        at, rows = at[same], rows[same]
        larger = (self.gpus[at] > jobs.gpus[rows]) | (self.time_limit[at] > jobs.time_limit[rows])
        return at[larger], rows[larger]


NONE_KNOWN: Final = LargestRequests.of({})


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """What earlier cycles left on the queue, as `plan()` needs it."""

    by_job: Mapping[int, Applied] = field(default_factory=dict)
    largest: LargestRequests = NONE_KNOWN
    undone: Mapping[int, int] = field(default_factory=dict)
    """By id of each job that squeue shows with an older site factor of ours than sprio does: that one. Slurm's backfill
    has put the older priority back."""

    def of_these(self, jobs: JobTable) -> Self:
        """Without records of other jobs of the same id: ids start over when slurmctld loses its state."""
        return replace(
            self,
            by_job={
                job: record
                for job, record in self.by_job.items()
                if (row := jobs.row_of.get(job)) is not None and int(jobs.submit_time[row]) == record.submit_time
            },
        )

    def on(self, jobs: JobTable, rows: Rows) -> list[tuple[int, Applied]]:
        """The records of the jobs of `rows`, each with its position there, in that order."""
        if not self.by_job:
            return []
        position = np.full(len(jobs), -1, dtype=np.intp)
        position[rows] = np.arange(len(rows))
        places = position.tolist()
        found = [
            (places[row], record)
            for job, record in self.by_job.items()
            if (row := jobs.row_of.get(job)) is not None and places[row] >= 0
        ]
        return sorted(found, key=itemgetter(0))

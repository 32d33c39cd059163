"""What of Slurm's answers could not be understood and is therefore left alone.

One strange row costs itself: the job, node or partition that it is about is named here and counted, and everything else
is used. The rule of when rows are strange no more, but a format that is not known: `slurm.separated.refuse_unknown`.
"""

import enum
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

SHOWN: Final = 50  # rows that are kept with their reason; the others are counted


class RowKind(enum.StrEnum):
    """What a row is about."""

    JOB = "job"
    NODE = "node"
    PARTITION = "partition"
    SITE_FACTOR = "site-factor"
    EXCLUDED_NODES = "excluded-nodes"


@dataclass(frozen=True, slots=True)
class Skipped:
    """One row that could not be understood."""

    kind: RowKind
    name: str  # of the job, node or partition; "" where not even that can be read
    reason: str

    def __str__(self) -> str:
        """One sentence, harmless on a terminal: an administrator may give a partition any name."""
        return (
            f"{self.kind} {repr(self.name)[1:-1][:64]}: {self.reason}" if self.name else f"{self.kind}: {self.reason}"
        )


@dataclass(slots=True)
class Unread:
    """All that one reading could not understand. Plain containers: a snapshot is sent to another process."""

    rows: list[Skipped] = field(default_factory=list)  # the first `SHOWN` of them
    counts: Counter[RowKind] = field(default_factory=Counter)
    jobs: dict[int, str] = field(default_factory=dict)  # reason by id of each job that is to be left alone
    listed: dict[RowKind, Collection[int]] = field(default_factory=dict)
    """Ids that were read of a table some row of which has none, or is missing: a job that is not among them may be that
    row."""

    def __len__(self) -> int:
        """How many rows."""
        return self.counts.total()

    def skip(self, row: Skipped, jobs: Iterable[int] = ()) -> None:
        """Count a row, and leave alone the jobs that it may be about."""
        self.counts[row.kind] += 1
        if len(self.rows) < SHOWN:
            self.rows.append(row)
        for job in jobs:
            self.jobs.setdefault(job, row.reason)

    def about(self, job_id: int, *, queued: bool) -> str:
        """Why nothing tells how this job is; "" where it was read, or is gone. `queued`: the queue has a row of it."""
        if reason := self.jobs.get(job_id):
            return reason
        for kind, ids in self.listed.items():
            if (kind is not RowKind.JOB) is queued and job_id not in ids:
                return f"a row ({kind}) does not say whose it is, or is missing; it may be this job's"
        return ""

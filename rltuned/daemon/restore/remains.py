"""What of rltuned's is on the queue, for `rltuned doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass

from rltuned.cluster.changes import JobStatus
from rltuned.daemon.fields import ISOLATED
from rltuned.daemon.journal import Journal


@dataclass(frozen=True, slots=True)
class Remains:
    """Pending jobs with something of rltuned's."""

    jobs: tuple[int, ...] = ()
    """They carry a value of ours."""
    unverifiable: tuple[int, ...] = ()
    """They may carry something of ours: sprio does not list them (held, explicit priority, restart), or what Slurm says
    of them cannot be understood."""
    foreign: tuple[int, ...] = ()
    """Somebody else changed them: marked to be left alone."""
    orphans: tuple[int, ...] = ()
    """They have a SiteFactor unknown to the journal."""

    @property
    def nothing(self) -> bool:
        """Whether every pending job's priority is what Slurm alone computes, as far as rltuned is concerned."""
        return not self.jobs and not self.unverifiable


def remains(journal: Journal, seen: Mapping[int, JobStatus]) -> Remains:
    """Compare the journal with `SlurmReader.status(None)`; changes nothing."""
    jobs, unverifiable, foreign = [], [], []
    for job, entry in journal.entries.items():
        status = seen.get(job)
        if status is not None and status.strange and not entry.is_empty:
            unverifiable.append(job)
        if status is None or not status.pending or status.submit_time != entry.submit_time:
            continue
        if entry.applied.foreign:
            foreign.append(job)
        isolated = entry.applied.oversubscribe is not None and status.oversubscribe in ISOLATED
        if status.site_factor in entry.factors or isolated:
            jobs.append(job)
        elif entry.factors and status.site_factor is None:
            unverifiable.append(job)
    stray = [
        job
        for job, status in seen.items()
        if status.pending and status.site_factor not in {None, 0} and job not in journal.entries
    ]
    return Remains(tuple(sorted(jobs)), tuple(sorted(unverifiable)), tuple(sorted(foreign)), tuple(sorted(stray)))

"""What a living daemon gives back: jobs that leave the plan, and everything where no plan can be carried out.

`restore` undoes a set of jobs and proves it. This decides which jobs go back in this cycle, within the write
budget. What could not be given back is tried again, later after each failure, for ever.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from rltuned.controller.give_back.batches import Leftover, Slurm, WhatToRestore, hidden, restore
from rltuned.controller.health.rpc_budget import STATUS_RPCS
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.health.slurmctld import Slurmctld
from rltuned.controller.write.claims import which_slurmctld
from rltuned.controller.write.journal import Journal
from rltuned.core.errors import JournalError
from rltuned.core.tables import Snapshot
from rltuned.slurm.port import SlurmReader, SlurmWriter

MOST_NAMED: Final = 20
LONGEST_RETRY: Final = 600.0
"""Longest time between two tries to give a job back, seconds."""


@dataclass(slots=True)
class Retries:
    """Jobs that could not be given back, and when each is tried again. Times are monotonic seconds."""

    first: float  # seconds until the second try; doubles with each failure
    final: set[int] = field(default_factory=set)  # jobs on which something stays that Slurm cannot take back
    _waits: dict[int, tuple[float, float]] = field(default_factory=dict)  # when it is due, and the wait that ends then

    def due(self, jobs: Iterable[int], now: float) -> list[int]:
        """Those of `jobs` that may be tried now."""
        return [job for job in jobs if self._waits.get(job, (now, 0.0))[0] <= now]

    def note(self, tried: Collection[int], left: Sequence[Leftover], now: float) -> list[Leftover]:
        """Take in how a try went. Returns what is left, as far as it is said for the first time."""
        failed = {item.job_id: item for item in left if not item.final}
        new = [item for item in left if item.final and item.job_id not in self.final]
        self.final.update(item.job_id for item in new)
        for job in tried:
            if job not in failed:
                self._waits.pop(job, None)
                continue
            if job not in self._waits:
                new.append(failed[job])
            wait = min(LONGEST_RETRY, max(self.first, 2.0 * self._waits.get(job, (0.0, 0.0))[1]))
            self._waits[job] = (now + wait, wait)
        return new

    @property
    def waiting(self) -> list[int]:
        """Jobs that could not be given back yet."""
        return sorted(self._waits)

    def keep(self, jobs: Collection[int]) -> None:
        """Forget all but these jobs."""
        for job in self._waits.keys() - set(jobs):
            del self._waits[job]
        self.final.intersection_update(jobs)

    def soon(self) -> None:
        """Try all again at the next opportunity: something has changed (a reload, the privilege)."""
        self._waits.clear()


@dataclass(slots=True)
class DaemonRestore:
    """Gives jobs back to Slurm. Times are monotonic seconds."""

    runtime: Runtime
    journal: Journal
    reader: SlurmReader
    writer: Callable[[], SlurmWriter] | None  # None in a dry run: nothing is given back
    slurmctld: Slurmctld
    retries: Retries
    calculated: bool = False  # sprio listed a job in the last snapshot

    def out(self, snapshot: Snapshot) -> list[int]:
        """Jobs that wait, or of which the snapshot does not tell whether they do, and carry a value of ours, or may."""
        waiting = set(snapshot.jobs.job_id[snapshot.jobs.pending].tolist())
        return [
            job
            for job, entry in self.journal.entries.items()
            if (job in waiting or snapshot.is_unread(job))
            and (entry.carries or (entry.applied.oversubscribe is not None and job not in self.retries.final))
        ]

    def refuse_hidden(self, snapshot: Snapshot) -> None:
        """Where all jobs of the journal are gone at once, raise SlurmDeniedError if this user may not see them."""
        jobs, slurmctld = snapshot.jobs, self.slurmctld
        carrying = [entry for entry in self.journal.entries.values() if entry.carries]
        for entry in carrying:
            job, row = entry.job_id, jobs.row_of.get(entry.job_id)
            # Another cluster has jobs of the same ids.
            same = row is not None and jobs.submit_time[row] == entry.submit_time
            if same or job in snapshot.arrays or snapshot.is_unread(job):
                return  # nearly always the first one
        if not carrying:
            return
        slurmctld.forget_facts()
        slurmctld.refresh_facts()
        if slurmctld.facts is not None and slurmctld.facts.hides_jobs:
            raise hidden(slurmctld.facts.user)

    def leaving(self, snapshot: Snapshot, withdraw: Iterable[int], undone: Collection[int] = ()) -> list[int]:
        """Find the jobs that carry a value of ours which the plan does not want, or can `withdraw`; and those that were
        given back and stand raised all the same (`reconcile.undone`).
        """
        entries = self.journal.entries
        # A value of ours under somebody's explicit priority would come into force with their release. And what no plan
        # can see, none wants.
        unplanned = (
            job
            for job in self.out(snapshot)
            if entries[job].applied.foreign
            or snapshot.is_unread(job)
            or self._may_be_back(job, snapshot)
            or (job in undone and not entries[job].claims)
        )
        return list(dict.fromkeys((*unplanned, *withdraw)))

    def _may_be_back(self, job: int, snapshot: Snapshot) -> bool:
        """Whether a held job, which was given back, may carry our value again, which Slurm does not show."""
        entry, facts, row = self.journal.entries[job], self.slurmctld.facts, snapshot.jobs.row_of.get(job)
        # Unless the slurmctld that runs now took it from the held job, one that was killed may have brought it back.
        held = row is not None and bool(snapshot.jobs.held[row])
        return held and not entry.claims and facts is not None and entry.cleared != which_slurmctld(facts)

    def give_back(self, jobs: Collection[int], why: Callable[[int], str]) -> tuple[tuple[int, ...], set[int]]:
        """Give back those that are due, within the budget, and say `why`. Which were, and which are left, or started as
        they were.
        """
        slurmctld, clock, entries = self.slurmctld, self.runtime.clock, self.journal.entries
        due = self.retries.due(jobs, clock.monotonic())
        if self.writer is None or not due:
            return (), set(jobs)
        # Up to two writes a job; what does not fit into the budget waits for the next cycle.
        tried = due[: slurmctld.budget.allowance(2 * len(due), clock.monotonic()) // 2 or 1]
        before = {job: entries[job].applied.site_factor for job in tried if job in entries}
        slurm = Slurm(self.reader, self.writer(), slurmctld.budget, clock, slurmctld.facts, self.calculated)
        report = restore(self.journal, slurm, WhatToRestore(tried))
        if slurmctld.primacy.stands_by:
            # The same value on these jobs is the other host's from now on: two daemons that think alike write alike.
            with suppress(JournalError):
                self.journal.update((), report.restored)
        if report.left:
            slurmctld.forget_facts()
        self._say_left(self.retries.note(tried, report.left, clock.monotonic()))
        self.runtime.metrics.restored.inc(len(report.restored))
        for job in report.restored:
            sentence = f"Job {job} has Slurm's own place again: {why(job)}."
            self.runtime.log.info("job.given_back", sentence=sentence, job=job, before=before.get(job), after=0)
        left = [item.job_id for item in report.left if not item.final]
        return report.restored, {*jobs}.difference(tried).union(report.gone, report.running, report.foreign, left)

    def give_all_back(self) -> int:
        """Give back all jobs that wait, as their status says: no nodes, no model, no plan. Returns how many were.
        SlurmError: the queue could not be read. JournalError: the journal is of another cluster.
        """
        ours = [job for job, entry in self.journal.entries.items() if entry.carries]
        if not ours:
            return 0
        self.slurmctld.refuse_other()
        seen = self.reader.status(None)
        self.slurmctld.budget.spend(STATUS_RPCS, self.runtime.clock.monotonic())
        restored, _ = self.give_back([job for job in ours if job in seen], lambda _: "no plan could be carried out")
        return len(restored)

    def _say_left(self, left: Sequence[Leftover]) -> None:
        """Name what could not be given back, once; grouped, because a lost privilege concerns thousands of jobs."""
        for final, ending in ((False, "They are tried again."), (True, "Slurm has no way to take it back.")):
            same = [item for item in left if item.final is final]
            if same:
                first = same[0]
                self.runtime.log.warning(
                    "jobs.not_returned",
                    sentence=f"{len(same)} jobs could not be given back to Slurm. {ending}",
                    jobs=[item.job_id for item in same[:MOST_NAMED]],
                    field=first.field,
                    reason=first.reason,
                    remedy=first.remedy,
                )

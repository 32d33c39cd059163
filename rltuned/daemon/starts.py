"""Which managed jobs have started since the last reading, and how long they have waited. Reads snapshots only."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rltuned.cluster.tables import Ints, Snapshot
from rltuned.daemon.metrics import TIERS
from rltuned.decide.plan import Plan


class Start(NamedTuple):
    """A managed job that has started."""

    tier: str
    """One of `rltuned.daemon.metrics.TIERS`."""
    waited: float
    """Seconds from when it was eligible, as `rltuned.observe` counts waiting."""


@dataclass
class Starts:
    """What the last plan managed, and what ran at the last reading."""

    _tiers: dict[int, str] = field(default_factory=dict)
    """Tier by id of each job (or array) that the last plan manages."""
    _running: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Ids of the jobs that ran at the last reading."""

    def since_last(self, snapshot: Snapshot) -> list[Start]:
        """Jobs of the last plan that run now and did not at the last reading; a task of an array counts as a job.

        One that starts and ends between two readings is not seen.
        """
        jobs = snapshot.jobs
        running, before = jobs.job_id[jobs.running], self._running
        self._running = running
        if not self._tiers:
            return []
        found = []
        for row in jobs.running[~np.isin(running, before)].tolist():
            job = int(jobs.job_id[row])
            tier = self._tiers.get(job) or self._tiers.get(snapshot.array_of.get(job, job))
            began, eligible = jobs.start_time[row], jobs.eligible_time[row]
            waited = float(began - (jobs.submit_time[row] if np.isnan(eligible) else eligible))
            if tier is not None and np.isfinite(waited):
                found.append(Start(tier, max(waited, 0.0)))
        return found

    def manages(self, plan: Plan) -> None:
        """This is the last plan now."""
        tiers = sorted({partition.priority_tier for partition in plan.snapshot.partitions}, reverse=True)
        ranks = {tier: rank for rank, tier in enumerate(tiers)}
        names = [TIERS[min(ranks[tier], len(TIERS) - 1)] for tier in plan.classes.tiers]
        ids = plan.snapshot.jobs.job_id[plan.rows].tolist()
        self._tiers = {job: names[of] for job, of in zip(ids, plan.classes.of.tolist(), strict=True)}

    def manages_none(self) -> None:
        """No plan was made, and none is to come soon."""
        self._tiers = {}

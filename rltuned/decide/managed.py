"""The managed jobs of one reading: where Slurm alone has them, where they stand, and with whom they exchange places."""

from dataclasses import dataclass, replace

import numpy as np

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.pools import Pools, bounded_pools
from rltuned.cluster.tables import Category, Ints, Snapshot
from rltuned.config import Config
from rltuned.decide.classes import Classes, classify
from rltuned.decide.outside import Outside, Rows
from rltuned.decide.scope import Scope, examine


@dataclass(frozen=True)
class ManagedJobs:
    """The n jobs that a plan may move. Every step of the plan after the scope reads this."""

    snapshot: Snapshot
    """As read, with what the users themselves have asked for in place of what earlier cycles set."""
    applied: AppliedChanges
    scope: Scope
    at: Rows
    """(n,) positions among the pending jobs (`JobTable.pending`)."""
    rows: Rows
    """(n,) rows of the job table."""
    base: Ints
    """(n,) priority that Slurm alone gives."""
    current: Ints
    """(n,) priority that the job has now; of several partitions, the highest."""
    tier: Ints
    classes: Classes
    pools: Pools
    outside: Outside

    def positions(self, rows: Rows) -> Rows:
        """Positions of those of the jobs that have these rows."""
        position = np.zeros(len(self.snapshot.jobs), dtype=np.intp)
        position[self.rows] = np.arange(len(self.rows))
        return position[rows]

    def queue(self, priority: Ints) -> Rows:
        """Positions of the jobs in the order of the whole queue with these priorities: tier, then priority."""
        return np.lexsort((self.outside.tie[self.at], -priority, -self.tier))


def managed_jobs(snapshot: Snapshot, config: Config, applied: AppliedChanges) -> ManagedJobs:
    """Who is managed, and all that the reading says of them."""
    applied = applied.of_these(snapshot.jobs)
    snapshot = _with_isolation(snapshot, applied)
    pools = bounded_pools(snapshot, snapshot.jobs.pending)
    scope = examine(snapshot, pools, config, applied)
    at = scope.managed
    rows, tier, jobs = scope.rows[at], scope.tier[at], snapshot.jobs
    # Of sprio where it lists them: of one moment with the base.
    own = np.maximum(jobs.base[rows] + jobs.site_factor[rows], 1)
    return ManagedJobs(
        snapshot=snapshot,
        applied=applied,
        scope=scope,
        at=at,
        rows=rows,
        base=scope.base[at],
        current=np.where(jobs.site_known[rows], own, jobs.priority[rows]),
        tier=tier,
        classes=classify(jobs, rows, tier, config.decide),
        pools=Pools(pools.pool_of[at], pools.nodes, pools.gpu_type),
        outside=Outside(snapshot, pools, scope),
    )


def _with_isolation(snapshot: Snapshot, applied: AppliedChanges) -> Snapshot:
    """The snapshot with our isolation, which Slurm does not show since 26.05."""
    jobs = snapshot.jobs
    isolated: dict[int, str] = {}
    for job, record in applied.by_job.items():
        row = jobs.row_of[job]
        if record.oversubscribe is OverSubscribe.NO and jobs.oversubscribe.value(row) == OverSubscribe.UNKNOWN:
            isolated[row] = OverSubscribe.NO.value
    if not isolated:
        return snapshot
    shown = jobs.oversubscribe
    column = Category.of([isolated.get(row, shown.value(row)) for row in range(len(shown.codes))])
    return replace(snapshot, jobs=replace(jobs, oversubscribe=column))

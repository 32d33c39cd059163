"""The managed jobs of one reading: where Slurm alone has them, where they stand, and what each keeps from others."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import OverSubscribe
from rltuned.core.config import Config
from rltuned.core.pools import Pools, bounded_pools
from rltuned.core.tables import Category, Floats, Ints, Rows, Snapshot
from rltuned.core.taken import sizes
from rltuned.decide.scope import Scope, examine

Order = npt.NDArray[np.intp]  # a permutation, front of the queue first


def ranks_of(order: Order) -> Order:
    """Rank of each member; inverse of the permutation."""
    ranks = np.empty(len(order), dtype=np.intp)
    ranks[order] = np.arange(len(order))
    return ranks


@dataclass(frozen=True)
class ManagedJobs:
    """All P pending jobs, and the n that a plan may raise. Every step of the plan after the scope reads this."""

    snapshot: Snapshot
    """As read, with what the users themselves have asked for in place of what earlier cycles set."""
    applied: AppliedChanges
    scope: Scope
    all_pools: Pools  # of all pending jobs
    at: Rows  # (n,) positions among the pending jobs (`JobTable.pending`)
    rows: Rows  # (n,) rows of the job table
    base: Ints  # (n,) priority that Slurm alone gives
    current: Ints  # (n,) priority that the job has now; of several partitions, the highest
    tier: Ints
    pools: Pools

    @cached_property
    def tie(self) -> Order:
        """(P,) place among jobs of the same priority: the earlier submission, then the lower id (slurmctld's order)."""
        jobs, rows = self.snapshot.jobs, self.scope.rows
        return ranks_of(np.lexsort((jobs.job_id[rows], jobs.submit_time[rows])))

    @cached_property
    def size(self) -> Floats:
        """(P,) GPUs that each job, or one task of an array, keeps from others."""
        return sizes(self.snapshot, self.scope.rows, self.all_pools)

    @cached_property
    def tasks(self) -> Ints:
        """(P,) jobs that each stands for: the tasks of an array that may start."""
        return self.snapshot.jobs.startable_tasks(self.scope.rows, Counter(self.snapshot.array_of.values()))

    def positions(self, rows: Rows) -> Rows:
        """Positions, among the managed ones, of those jobs that have these rows."""
        position = np.zeros(len(self.snapshot.jobs), dtype=np.intp)
        position[self.rows] = np.arange(len(self.rows))
        return position[rows]

    def queue(self, priority: Ints) -> Order:
        """(n,) positions of the managed jobs in the order of the whole queue with these priorities: tier, then
        priority.
        """
        return np.lexsort((self.tie[self.at], -priority, -self.tier))


def managed_jobs(snapshot: Snapshot, config: Config, applied: AppliedChanges) -> ManagedJobs:
    """Who is managed, and all that the reading says of them."""
    applied = applied.of_these(snapshot.jobs)
    snapshot = _with_isolation(snapshot, applied)
    pools = bounded_pools(snapshot, snapshot.jobs.pending)
    scope = examine(snapshot, pools, config, applied)
    at = scope.managed
    rows, jobs = scope.rows[at], snapshot.jobs
    # Of sprio where it lists them: of one moment with the base.
    own = np.maximum(jobs.base[rows] + jobs.site_factor[rows], 1)
    return ManagedJobs(
        snapshot=snapshot,
        applied=applied,
        scope=scope,
        all_pools=pools,
        at=at,
        rows=rows,
        base=scope.base[at],
        current=np.where(jobs.site_known[rows], own, jobs.priority[rows]),
        tier=scope.tier[at],
        pools=Pools(pools.pool_of[at], pools.nodes, pools.gpu_type),
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

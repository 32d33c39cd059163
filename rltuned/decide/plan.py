"""`plan()`: one cycle's decision, as a pure function of what was read."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Change
from rltuned.core.config import Config
from rltuned.core.tables import Bools, Floats, Ints, JobTable, Rows, Snapshot
from rltuned.decide.expect.predictions import RunTimes
from rltuned.decide.loans import NOTHING_LENT, Book
from rltuned.decide.managed import ManagedJobs, Order, managed_jobs, ranks_of
from rltuned.decide.planned_changes import Front, changes_of, newly_foreign, place_front, to_withdraw
from rltuned.decide.raising import Raised, charged_seconds, raise_jobs
from rltuned.decide.rank.actor import Actor, Scored, on_means
from rltuned.decide.rank.protocol import Policy
from rltuned.decide.scope import Scope
from rltuned.decide.see.observation import STATE_COLUMNS, Observation, observe


@dataclass(frozen=True)
class Plan:
    """What one cycle wants, and why. n managed jobs."""

    policy: str
    config: Config
    managed: ManagedJobs
    raised: Raised
    book: Book  # of loans, with what this plan offers
    observation: Observation
    window: Rows
    """(w,) positions of the managed jobs that the policy saw, in the order of `observation.rows`."""
    run_times: RunTimes  # of the N jobs of the table
    predicted: Bools  # (w,) whether the run time rests on a prediction that is below the time limit
    scores: Floats  # (w,) by the policy
    scored: Scored | None
    """What a model's scores are made of; None: they are of a plain rule, or Slurm's own order."""
    queue: Order
    """(n,) positions of the managed jobs in the planned order of the whole queue: tier, then target priority."""
    front: Front
    foreign: tuple[int, ...]  # jobs of the journal that somebody else changed since
    withdraw: tuple[int, ...]
    """Jobs that carry a value of ours but are out of scope now: to be undone."""

    @property
    def snapshot(self) -> Snapshot:
        """What was read."""
        return self.managed.snapshot

    @property
    def scope(self) -> Scope:
        """Of all pending jobs."""
        return self.managed.scope

    @property
    def rows(self) -> Rows:
        """(n,) rows of the managed jobs."""
        return self.managed.rows

    @property
    def base(self) -> Ints:
        """(n,) priority that Slurm alone gives."""
        return self.managed.base

    @property
    def target(self) -> Ints:
        """(n,) priority that each managed job shall have."""
        return self.raised.target

    @cached_property
    def rank(self) -> Order:
        """(n,) place of each managed job in the planned order of the whole queue, 0 first."""
        return ranks_of(self.queue)

    @cached_property
    def base_rank(self) -> Order:
        """(n,) the same by Slurm alone."""
        return ranks_of(self.managed.queue(self.base))

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """In the order of writing. Made when it is asked for: a simulation that only ranks never does."""
        return changes_of(self.managed, self.queue, self.target, self.front, self.withdraw)


def plan(
    snapshot: Snapshot,
    policy: Policy,
    config: Config,
    applied: AppliedChanges | None = None,
    run_times: RunTimes | None = None,
    book: Book = NOTHING_LENT,
) -> Plan:
    """Decide one cycle: scope, observe, score, raise, place; the changes when they are asked for.

    Args:
        snapshot: the queue and the nodes as read; its `time` is "now".
        policy: ranks the visible jobs.
        config: settings; `cycle.stage` matters only for the canary's scope.
        applied: what earlier cycles left on the jobs, and the largest request that each job has shown: by that one it
            is ranked.
        run_times: of the jobs of the table; None: each goes by its time limit.
        book: of loans, `advanced` to this reading.
    """
    if run_times is None:
        run_times = RunTimes(np.full(len(snapshot.jobs), np.nan))
    if run_times.predicted is not None:
        policy = on_means(policy)
    managed = managed_jobs(snapshot, config, applied or AppliedChanges())
    snapshot = managed.snapshot
    jobs = _waited_longer(managed.applied.largest.shown_by(snapshot.jobs), book)
    asked = snapshot if jobs is snapshot.jobs else replace(snapshot, jobs=jobs)
    users = jobs.user.codes[managed.rows]
    observation = observe(
        asked,
        managed.rows,
        run_times.expected,
        pools=managed.pools,
        base=managed.base,
        users=users,
        named=STATE_COLUMNS,
    )
    window = managed.positions(observation.rows)
    scored = policy.explained(observation) if isinstance(policy, Actor) else None
    scores = policy.score(observation) if scored is None else scored.scores
    failed = len(scores) != len(window) or not np.isfinite(scores).all()
    if failed:
        # A policy that fails must not decide: Slurm's own order stands, and whoever goes ahead is given back.
        scores, scored = managed.base[window].astype(np.float64), None
    seen = run_times.expected[observation.rows]
    median = seen if run_times.predicted is None else run_times.predicted.median[observation.rows]
    seconds = charged_seconds(median, snapshot.jobs.time_limit[observation.rows])
    asking = window[:0] if failed else window
    raised = raise_jobs(managed, asking, scores[: len(asking)], seconds[: len(asking)], book, config.lend)
    queue = managed.queue(raised.target)
    return Plan(
        policy=policy.name,
        config=config,
        managed=managed,
        raised=raised,
        book=book.offering(raised.offers),
        observation=observation,
        window=window,
        run_times=run_times,
        predicted=np.isfinite(seen) & (seen < snapshot.jobs.time_limit[observation.rows]),
        scores=scores,
        scored=scored,
        queue=queue,
        front=place_front(managed, queue, window, config.placement.apply),
        foreign=newly_foreign(managed),
        withdraw=to_withdraw(managed),
    )


def _waited_longer(jobs: JobTable, book: Book) -> JobTable:
    """The table in which each job has waited as long as the jobs that its user cancelled for it, too."""
    if not book.inherited:
        return jobs
    eligible = jobs.eligible_time.copy()
    eligible[jobs.pending] -= book.inherited_wait(jobs, jobs.pending)
    return replace(jobs, eligible_time=eligible)

"""`plan()`: one cycle's decision, as a pure function of what was read."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.borrowed import Borrowed
from rltuned.cluster.changes import Change
from rltuned.cluster.tables import Bools, Floats, Ints, Snapshot
from rltuned.config import Config
from rltuned.decide.borrowing import Purse, charged
from rltuned.decide.classes import Classes
from rltuned.decide.managed import ManagedJobs, managed_jobs
from rltuned.decide.ordering import Ordered, order_classes
from rltuned.decide.outside import Rows
from rltuned.decide.planned_changes import Front, changes_of, newly_foreign, place_front, to_withdraw
from rltuned.decide.rollout import RolloutResult, RolloutSearch, rollout_request
from rltuned.decide.scope import Scope
from rltuned.estimates.predictions import EndedJobs, RunTimePredictions
from rltuned.observe import Observation, observe
from rltuned.policy.actor import Actor, Scored, on_means
from rltuned.policy.protocol import Policy


@dataclass(frozen=True)
class Plan(Ordered):
    """What one cycle wants, and why. n managed jobs."""

    policy: str
    config: Config
    managed: ManagedJobs
    observation: Observation
    window: Rows
    """(w,) positions of the managed jobs that the policy saw, in the order of `observation.rows`."""
    estimates: Floats
    """(N,) predicted run time of every job of the table, seconds, NaN where there is none."""
    distribution: RunTimePredictions | None
    predicted: Bools
    """(w,) whether the run time rests on a prediction that is below the time limit."""
    scores: Floats
    """(w,) by the policy. The rollouts may order jobs otherwise."""
    scored: Scored | None
    """What a model's scores are made of; None: they are of a plain rule, or Slurm's own order."""
    rollout: RolloutResult | None
    queue: Rows
    """(n,) positions of the managed jobs in the planned order of the whole queue: tier, then target priority."""
    front: Front
    foreign: tuple[int, ...]
    """Jobs of the journal that somebody else changed since."""
    withdraw: tuple[int, ...]
    """Jobs that carry a value of ours but are out of scope now: to be undone."""
    borrowed: Borrowed
    budget: float
    """GPU-seconds that each account may owe."""

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
    def classes(self) -> Classes:
        """Of the managed jobs."""
        return self.managed.classes

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Head of the queue first. Made when it is asked for: a simulation that only ranks never does."""
        return changes_of(self.managed, self.queue, self.target, self.front, self.withdraw)


def plan(
    snapshot: Snapshot,
    policy: Policy,
    config: Config,
    applied: AppliedChanges | None = None,
    estimates: Floats | None = None,
    search: RolloutSearch | None = None,
    ended: EndedJobs | None = None,
    distribution: RunTimePredictions | None = None,
) -> Plan:
    """Decide one cycle: scope and classes, observe, score, rollout, order, place; the changes when they are asked for.

    Args:
        snapshot: the queue and the nodes as read; its `time` is "now".
        policy: ranks the visible jobs.
        config: settings; `cycle.stage` matters only for the canary's scope.
        applied: what earlier cycles left on the jobs, what accounts had borrowed by then, and the largest request that
            each job has shown: by that one it is ranked.
        estimates: (N,) predicted run times of all jobs of the table in seconds, NaN where there is none; the time limit
            bounds each, and stands in where there is no prediction.
        search: simulates the queue in the policy's order and in a few others; None: the policy's order stands.
        ended: jobs that have ended: they show how wrong expected run times are.
        distribution: of the run time of each of the (N,) jobs, whose mean `estimates` are; NaN: not known. None: of no
            job; `estimates` may err.
    """
    if distribution is not None:
        policy = on_means(policy)
    if estimates is None:
        estimates = np.full(len(snapshot.jobs), np.nan)  # no prediction: the features take the time limit
    managed = managed_jobs(snapshot, config, applied or AppliedChanges())
    snapshot = managed.snapshot
    jobs = managed.applied.largest.shown_by(snapshot.jobs)
    asked = snapshot if jobs is snapshot.jobs else replace(snapshot, jobs=jobs)
    observation = observe(asked, managed.rows, estimates, config.decide.window, managed.pools, base=managed.base)
    window = managed.positions(observation.rows)
    scored = policy.explained(observation) if isinstance(policy, Actor) else None
    scores = policy.score(observation) if scored is None else scored.scores
    classes, rollout = managed.classes.of[window], None
    if len(scores) != len(window) or not np.isfinite(scores).all():
        # A policy that fails must not decide: Slurm's own order, through the same path, undoes what is applied.
        scores, scored = managed.base[window].astype(np.float64), None
    elif search is not None:
        rows, base = observation.rows, managed.base[window]
        rollout = search(rollout_request(snapshot, policy, rows, scores, estimates, ended, classes, base))
    preference = _reordered(scores, observation.rows, classes, rollout)
    borrowed = charged(managed.applied.borrowed, snapshot)
    purse = Purse(snapshot, managed.rows, estimates, borrowed, config.decide.borrow)
    ordered = order_classes(managed, window, preference, config.decide, purse)
    queue = managed.queue(ordered.target)
    seen = estimates[observation.rows]
    return Plan(
        policy=policy.name,
        config=config,
        managed=managed,
        observation=observation,
        window=window,
        estimates=estimates,
        distribution=distribution,
        predicted=np.isfinite(seen) & (seen < snapshot.jobs.time_limit[observation.rows]),
        scores=scores,
        scored=scored,
        rollout=rollout,
        **vars(ordered),
        queue=queue,
        front=place_front(managed, queue, window, config.placement),
        foreign=newly_foreign(managed),
        withdraw=to_withdraw(managed),
        borrowed=borrowed,
        budget=purse.budget,
    )


def _reordered(scores: Floats, rows: Rows, classes: npt.NDArray[np.intp], rollout: RolloutResult | None) -> Floats:
    """(w,) the scores, exchanged within each class between the jobs that the rollouts have put in another order."""
    if rollout is None or rollout.order is None:
        return scores
    by_row = np.argsort(rows)
    simulated = by_row[np.searchsorted(rows[by_row], rollout.order)]
    made = scores.copy()
    for of in np.unique(classes[simulated]):
        at = simulated[classes[simulated] == of]
        best = np.sort(scores[at])
        # Jobs of one score would be ordered by priority again. The class has nobody above these jobs, but it may have
        # jobs of the least of their scores that were not simulated: these stay behind all of them.
        best[0] = np.nextafter(best[0], np.inf)
        for place in range(1, len(best)):
            best[place] = max(best[place], np.nextafter(best[place - 1], np.inf))
        made[at] = best[::-1]
    return made

"""`plan()`: one cycle's decision, as a pure function of what was read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.changes import (
    MAX_FACTOR,
    MAX_PRIORITY,
    Applied,
    ApplyMode,
    Change,
    Field,
    History,
    OverSubscribe,
)
from rltuned.cluster.hostlist import compress
from rltuned.cluster.pools import Pools, bounded_pools
from rltuned.cluster.tables import Category, Floats, Ints, JobTable, Snapshot
from rltuned.config import Config, DecideSection, PlacementApply
from rltuned.decide.classes import Classes, classify
from rltuned.decide.outside import Border, Outside
from rltuned.decide.predictions import EndedJobs
from rltuned.decide.ranks import (
    Guard,
    Order,
    account_share,
    age_bound,
    defer,
    merge,
    policy_order,
    ranks_of,
    slurm_order,
)
from rltuned.decide.rollout import MoveTo, RolloutResult, RolloutSearch, rollout_request
from rltuned.decide.scope import Scope, Veto, examine, priority_tiers
from rltuned.decide.targets import hand_out, settle
from rltuned.observe import Observation, observe
from rltuned.placement.base import Placement
from rltuned.placement.problem import build
from rltuned.placement.run import place
from rltuned.placement.steer import steer
from rltuned.policy.base import Policy


@dataclass(frozen=True)
class Plan:
    """What one cycle wants, and why. n managed jobs, in the order of `rows`."""

    snapshot: Snapshot
    policy: str
    config: Config
    scope: Scope
    rows: npt.NDArray[np.intp]
    """(n,) rows of the managed jobs."""
    base: Ints
    """(n,) priority that Slurm alone gives."""
    target: Ints
    """(n,) priority that the job shall have."""
    classes: Classes
    base_rank: Order
    """(n,) rank within its class by Slurm alone, 0 first."""
    rank: Order
    """(n,) planned rank within its class."""
    guards: npt.NDArray[np.int8]
    """(n,) `Guard` flags."""
    outside: Outside
    """What the classes may not pass."""
    held_behind: Ints
    """(n,) id of the job outside of its class that each was kept behind, 0 where there is none."""
    window: npt.NDArray[np.intp]
    """(w,) positions (in `rows`) that the policy saw, in the order of `observation.rows`."""
    observation: Observation
    estimates: Floats
    """(N,) predicted run time of every job of the table, seconds, NaN where there is none."""
    predicted: npt.NDArray[np.bool_]
    """(w,) whether the run time rests on a prediction that is below the time limit."""
    scores: Floats
    """(w,) by the policy; a job that the rollouts moved has the best or the worst of all."""
    rollout: RolloutResult | None
    """What the rollouts found; None where none were made."""
    placement: Placement | None
    placed_rows: npt.NDArray[np.intp]
    """(K,) rows of the jobs that the placement is about, in its order."""
    isolate: frozenset[int]
    """Rows of jobs that the placement spreads onto idle nodes now."""
    exclude: Mapping[int, tuple[int, ...]]
    """Node rows to keep a job away from, by row of the job table, for jobs that are planned to start now."""
    current: Ints
    """(n,) priority that the job has now; of several partitions, the highest."""
    history: History
    """What earlier cycles left on these jobs."""
    foreign: tuple[int, ...] = ()
    """Jobs that the journal claims, but that somebody else changed since; newly found by this plan."""
    withdraw: tuple[int, ...] = ()
    """Jobs that carry a value of ours but are out of scope now (or carry it by the other apply mode): to be undone."""

    @property
    def ranks_changed(self) -> int:
        """Jobs whose planned rank is not Slurm's own."""
        return int((self.rank != self.base_rank).sum())

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Head of the queue first. Made when it is asked for: a simulation that only ranks never does."""
        return _changes(self)

    @cached_property
    def queue(self) -> npt.NDArray[np.intp]:
        """Positions of the managed jobs in the planned order of the whole queue: tier, then target priority."""
        tie = self.outside.tie[self.scope.managed]
        return np.lexsort((tie, -self.target, -priority_tiers(self.snapshot, self.rows)))


def plan(
    snapshot: Snapshot,
    policy: Policy,
    config: Config,
    history: History | None = None,
    estimates: Floats | None = None,
    search: RolloutSearch | None = None,
    ended: EndedJobs | None = None,
) -> Plan:
    """Decide one cycle.

    Args:
        snapshot: the queue and the nodes as read; its `time` is "now".
        policy: ranks the visible jobs.
        config: settings; `cycle.stage` matters only for the canary's scope.
        history: what earlier cycles left on the jobs.
        estimates: (N,) predicted run times of all jobs of the table in seconds, NaN where there is none; the time limit
            bounds each, and stands in where there is no prediction.
        search: simulates the queue in the policy's order and in a few others; None: the policy's order stands.
        ended: jobs that have ended: they show how wrong expected run times are.
    """
    history = _of_these_jobs(history or History(), snapshot.jobs)
    snapshot = _as_users_asked(snapshot, history)
    jobs = snapshot.jobs
    pools = bounded_pools(snapshot, jobs.pending)
    scope = examine(snapshot, pools, config, history)
    managed = scope.managed
    rows, base = scope.rows[managed], scope.base[managed]
    current = _current(jobs, rows)
    classes = classify(snapshot, rows, config.decide)
    mine = Pools(pools.pool_of[managed], pools.nodes, pools.gpu_type)
    if estimates is None:
        estimates = np.full(len(jobs), np.nan)  # no prediction: the features take the time limit
    observation = observe(snapshot, rows, estimates, config.decide.window, mine, base=base)
    position = np.zeros(len(jobs), dtype=np.intp)
    position[rows] = np.arange(len(rows))
    window = position[observation.rows]
    scores = policy.score(observation)
    rollout = None
    if len(scores) != len(window) or not np.isfinite(scores).all():
        # A policy that fails must not decide: Slurm's own order, through the same path, undoes what is applied.
        scores = base[window].astype(np.float64)
    elif search is not None:
        rollout = search(rollout_request(snapshot, policy, observation.rows, scores, estimates, ended))
        scores = _moved(scores, observation, rollout)
    outside = Outside(snapshot, pools, scope)
    ordered = _Ordering(snapshot, config.decide, rows, base, current, history, outside).all_classes(
        classes, window, scores
    )
    result = Plan(
        snapshot=snapshot,
        policy=policy.name,
        config=config,
        scope=scope,
        rows=rows,
        base=base,
        target=ordered.target,
        classes=classes,
        base_rank=ordered.base_rank,
        rank=ordered.rank,
        guards=ordered.guards,
        outside=outside,
        held_behind=ordered.held_behind,
        window=window,
        observation=observation,
        estimates=estimates,
        predicted=np.isfinite(estimates[observation.rows])
        & (estimates[observation.rows] < jobs.time_limit[observation.rows]),
        scores=scores,
        rollout=rollout,
        placement=None,
        placed_rows=np.zeros(0, dtype=np.intp),
        isolate=frozenset(),
        exclude={},
        current=current,
        history=history,
        foreign=_newly_foreign(scope, jobs, history),
        withdraw=_withdrawn(scope, jobs, history, config.decide.mode),
    )
    return _place(result, mine, config)


def _moved(scores: Floats, observation: Observation, rollout: RolloutResult | None) -> Floats:
    """The scores, with the job that the rollouts move before all others or behind the simulated ones."""
    if rollout is None or rollout.moved is None:
        return scores
    rows = observation.rows
    if rollout.to is MoveTo.FIRST:
        score = scores.max() + 1.0
    elif rollout.behind is None:
        score = scores.min() - 1.0
    else:
        score = np.nextafter(scores[rows == rollout.behind][0], -np.inf)
    return np.where(rows == rollout.moved, score, scores)


def _of_these_jobs(history: History, jobs: JobTable) -> History:
    """Without records of other jobs of the same id: ids start over when slurmctld loses its state."""
    submit = jobs.submit_time.tolist() if history.applied else []
    return History(
        {
            job: record
            for job, record in history.applied.items()
            if (row := jobs.row_of.get(job)) is not None and int(submit[row]) == record.submit_time
        },
        history.now,
    )


def _as_users_asked(snapshot: Snapshot, history: History) -> Snapshot:
    """The snapshot with the users' own node lists, and with our isolation where Slurm does not show it.

    Our steering must not look like a request. And since 26.05 a job that we isolated looks like a default one: the nodes
    that it runs on would seem open to others.
    """
    jobs = snapshot.jobs
    lists: dict[int, str] = {}
    isolated: dict[int, str] = {}
    for job, record in history.applied.items():
        row = jobs.row_of[job]
        if record.exc_nodes is not None:
            lists[row] = record.exc_nodes_before
        if record.oversubscribe is OverSubscribe.NO and jobs.oversubscribe.value(row) == OverSubscribe.UNKNOWN:
            isolated[row] = OverSubscribe.NO.value
    if lists:
        jobs = replace(jobs, exc_nodes=_overlaid(jobs.exc_nodes, lists))
    if isolated:
        jobs = replace(jobs, oversubscribe=_overlaid(jobs.oversubscribe, isolated))
    return snapshot if jobs is snapshot.jobs else replace(snapshot, jobs=jobs)


def _overlaid(column: Category, values: Mapping[int, str]) -> Category:
    return Category.of([values.get(row, column.value(row)) for row in range(len(column.codes))])


def _current(jobs: JobTable, rows: npt.NDArray[np.intp]) -> Ints:
    """(n,) priority that these jobs have now. Of sprio where it lists them: of one moment with the base."""
    own = np.maximum(jobs.base[rows] + jobs.site_factor[rows], 1)
    return np.where(jobs.site_known[rows], own, jobs.priority[rows])


@dataclass
class _Ordered:
    """Ranks and targets of n managed jobs, filled class by class."""

    rank: Order
    base_rank: Order
    target: Ints
    guards: npt.NDArray[np.int8]
    held_behind: Ints


@dataclass(frozen=True)
class _Ordering:
    """Ranks and targets of all classes; one object so that the steps share their inputs."""

    snapshot: Snapshot
    settings: DecideSection
    rows: npt.NDArray[np.intp]
    base: Ints
    current: Ints
    history: History
    outside: Outside

    def all_classes(self, classes: Classes, window: npt.NDArray[np.intp], scores: Floats) -> _Ordered:
        n = len(self.rows)
        score = np.zeros(n)
        score[window] = scores
        visible = np.zeros(n, dtype=np.bool_)
        visible[window] = True
        jobs, now = self.snapshot.jobs, self.snapshot.time
        old = (now - jobs.eligible_time[self.rows]) > self.settings.age_bound
        ours, dwelling = self._touched()
        managed = self.outside.scope.managed
        tiers = priority_tiers(self.snapshot, self.rows)
        result = _Ordered(
            rank=np.zeros(n, dtype=np.intp),
            base_rank=np.zeros(n, dtype=np.intp),
            target=self.base.copy(),
            guards=np.where(visible, 0, Guard.OUTSIDE_WINDOW).astype(np.int8),
            held_behind=np.zeros(n, dtype=np.int64),
        )
        guards = result.guards
        for members in classes.members() if n else []:
            tie, base, current = self.outside.tie[managed[members]], self.base[members], self.current[members]
            by_slurm = ranks_of(slurm_order(base, tie))
            in_force = slurm_order(current, tie)
            seen = np.flatnonzero(visible[members])
            wanted = seen[policy_order(score[members][seen], by_slurm[seen], self.settings.authority)]
            pinned = dwelling[members] & visible[members]
            free_order = merge(in_force, visible[members], wanted, by_slurm, pinned)
            guards[members[pinned]] |= Guard.DWELL
            shared = self._share(free_order, by_slurm, members)
            guards[members[ranks_of(shared) > ranks_of(free_order)]] |= Guard.ACCOUNT_SHARE
            bound = age_bound(shared, by_slurm, old[members])
            guards[members[old[members] & (ranks_of(bound) < ranks_of(shared))]] |= Guard.AGE_BOUND
            border = self.outside.border(managed[members], int(tiers[members[0]]))
            place = _Class(border, base, tie, by_slurm, old[members], visible[members] & ~pinned)
            exact, order, behind = place.hold_back(bound)
            guards[members[behind >= 0]] |= Guard.OUTSIDE
            result.held_behind[members] = np.where(behind >= 0, jobs.job_id[self.outside.scope.rows[behind]], 0)
            tolerance = int(self.settings.hysteresis * (base.max() - base.min()))
            free = ours[members] & place.may_keep(current, exact)
            result.target[members] = settle(order, exact, current, tie, free, tolerance)
            result.rank[members], result.base_rank[members] = ranks_of(order), by_slurm
        return result

    def _share(self, order: Order, base_rank: Order, members: npt.NDArray[np.intp]) -> Order:
        if self.settings.account_share >= 1.0:
            return order
        cap = int(self.settings.account_share * self.settings.head)
        accounts = self.snapshot.jobs.account.codes[self.rows[members]]
        return account_share(order, base_rank, accounts, self.settings.head, cap)

    def _touched(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which managed jobs carry a value of ours, and which of them were moved within the dwell time."""
        ours = np.zeros(len(self.rows), dtype=np.bool_)
        dwelling = ours.copy()
        now = self.snapshot.time if self.history.now is None else self.history.now
        for at, record in _records(self.history, self.snapshot.jobs, self.rows):
            if record.site_factor != 0 or record.priority is not None:
                ours[at] = True
                dwelling[at] = now - record.changed_at < self.settings.dwell
        return ours, dwelling


def _records(history: History, jobs: JobTable, rows: npt.NDArray[np.intp]) -> list[tuple[int, Applied]]:
    """What earlier cycles left on the jobs of `rows`, each with its position there, in that order.

    Few of a long queue have anything: these are looked for among the rows, not the other way.
    """
    if not history.applied:
        return []
    position = np.full(len(jobs), -1, dtype=np.intp)
    position[rows] = np.arange(len(rows))
    places = position.tolist()
    found = [
        (places[row], record)
        for job, record in history.applied.items()
        if (row := jobs.row_of.get(job)) is not None and places[row] >= 0
    ]
    found.sort(key=itemgetter(0))
    return found


@dataclass(frozen=True)
class _Class:
    """From the order of one class of n jobs to targets that no outside job has to pay for."""

    border: Border
    base: Ints
    tie: Order
    base_rank: Order
    old: npt.NDArray[np.bool_]
    """Waited longer than the age bound."""
    movable: npt.NDArray[np.bool_]
    """The policy sees them, and they were not moved a moment ago."""

    def hold_back(self, wanted: Order) -> tuple[Ints, Order, npt.NDArray[np.intp]]:
        """Exact targets, the order that they make, and the outside job that each member was put behind (−1: none).

        Jobs that are held back free places. Other jobs move up into them and may pass an outside job in turn, so a second
        pass only holds back.
        """
        targets, behind, late = self._held(wanted)
        order = wanted
        if late.any():
            earliest = np.zeros(len(wanted), dtype=np.intp)
            earliest[late] = np.searchsorted(-np.sort(self.base)[::-1], -targets[late])
            order = age_bound(defer(wanted, self.movable | late, earliest), self.base_rank, self.old)
            targets, again, later = self._held(order)
            behind = np.where(later, again, np.where(ranks_of(order) > ranks_of(wanted), behind, -1))
        return targets, slurm_order(targets, self.tie), behind

    def _held(self, order: Order) -> tuple[Ints, npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Targets in this order, behind whom each member was put for that, and who was."""
        exact = hand_out(order, self.base, self.tie, self.old)
        held, behind = self.border.hold_back(exact, order, self.old)
        return held, behind, held < exact

    def may_keep(self, current: Ints, target: Ints) -> npt.NDArray[np.bool_]:
        """(n,) whether each may keep the priority that it has: at no outside job's cost, and not below an old job's base."""
        higher = np.flatnonzero(current > target)
        keep = ~self.old | (current >= self.base)
        keep[higher] &= ~self.border.crossed(target, current, higher)
        return np.asarray(keep, dtype=np.bool_)


def _place(result: Plan, pools: Pools, config: Config) -> Plan:
    """Place the front of the planned queue, as far as the policy saw it."""
    if config.placement.apply is PlacementApply.OFF or not len(result.rows):
        return result
    visible = np.zeros(len(result.rows), dtype=np.bool_)
    visible[result.window] = True
    head = result.queue[visible[result.queue]][: config.placement.top_k]
    rows = result.rows[head]
    problem = build(result.snapshot, rows, config.placement, Pools(pools.pool_of[head], pools.nodes, pools.gpu_type))
    placement = place(problem, config.placement)
    wanted = steer(placement, problem, result.snapshot.nodes.asleep)
    return replace(
        result,
        placement=placement,
        placed_rows=rows,
        isolate=frozenset(int(rows[k]) for k in wanted.isolate),
        exclude={int(rows[k]): nodes for k, nodes in wanted.exclude.items()},
    )


def _changes(result: Plan) -> tuple[Change, ...]:
    jobs, history, queue = result.snapshot.jobs, result.history, result.queue
    withdrawn = frozenset(result.withdraw)
    leaving = np.isin(jobs.job_id[result.rows], list(withdrawn))
    if withdrawn:
        # They are given back first, and moved by a later plan: what rests on that waits as long.
        result = replace(result, current=np.where(leaving, result.base, result.current))
    of, before, after = _moves(result)
    moved = (result.target != result.current) & (before != after)
    steered = np.isin(result.rows, [*result.isolate, *result.exclude])
    steered |= np.isin(
        jobs.job_id[result.rows], [job for job, old in history.applied.items() if old.exc_nodes is not None]
    )
    steering: list[Change] = []
    for position in np.flatnonzero((steered & ~leaving)[queue]).tolist():
        at = queue[position]
        row = int(result.rows[at])
        job, submit = int(jobs.job_id[row]), int(jobs.submit_time[row])
        identity = {
            "job_id": job,
            "submit_time": submit,
            "position": position,
            "base": int(result.base[at]),
        }
        steering += _placement_changes(result, row, history.applied.get(job), identity)
    positions = np.flatnonzero(moved[queue])
    moving = queue[positions]
    rows = result.rows[moving]
    ids = jobs.job_id[rows]
    present = ranks_of(np.lexsort((ids, -result.current[moving])))
    places = np.concatenate((positions, np.array([change.position for change in steering], dtype=np.intp)))
    turns, steering_turns = np.split(_urgent_first(places, present), [len(moving)])
    turns, rests_on = _in_turn(result, moving, turns)
    columns = (
        *(ids, jobs.submit_time[rows].astype(np.int64), before[moving], after[moving]),
        *(positions, result.base[moving], turns),
    )
    changes = [
        Change(job, submit, of, old, new, position, base, turn, rests_on.get(job, ()))
        for job, submit, old, new, position, base, turn in zip(*(column.tolist() for column in columns), strict=True)
        if job not in withdrawn
    ]
    if steering:
        changes += [change._replace(turn=turn) for change, turn in zip(steering, steering_turns.tolist(), strict=True)]
        changes.sort(key=attrgetter("position"))  # stable: a job's move stands before its steering
    return tuple(changes)


def _urgent_first(places: npt.NDArray[np.intp], present: Order) -> Order:
    """The order in which a short budget is spent: jobs that enter or leave the head of the queue first.

    A job moved to the head is only there once the one before it has moved away; so what counts is the better of the
    planned place and the present one.

    Args:
        places: (k,) where the plan has each job that changes: first m that are moved, then those that are only steered.
        present: (m,) places of the moved jobs among each other as they stand now.

    Returns:
        (k,) turns.
    """
    urgency = places.copy()
    np.minimum(urgency[: len(present)], present, out=urgency[: len(present)])
    return ranks_of(np.lexsort((places, urgency)))


def _moves(result: Plan) -> tuple[Field, Ints, Ints]:
    """The field by which jobs are moved, and (n,) its value now and as wanted."""
    jobs, rows = result.snapshot.jobs, result.rows
    if result.config.decide.mode is ApplyMode.PRIORITY:
        return Field.PRIORITY, result.current, np.clip(result.target, 1, MAX_PRIORITY)
    # Slurm shows 1 for a sum below it: a job that shall have what it has anyway needs no factor.
    wanted = np.where(result.target != result.base, result.target - jobs.base[rows], 0)
    return Field.SITE_FACTOR, jobs.site_factor[rows], np.clip(wanted, -MAX_FACTOR, MAX_FACTOR)


def _in_turn(result: Plan, moving: npt.NDArray[np.intp], turns: Order) -> tuple[Order, dict[int, tuple[int, ...]]]:
    """The turns of the moved jobs, so exchanged within each class that no outside job pays for a part of them.

    Args:
        result: the plan.
        moving: (k,) the managed jobs that are moved.
        turns: (k,) the turn of each, the most urgent first.

    Returns:
        (k,) turns, and by job id the jobs that must be lowered before it, where there are any.
    """
    rests_on: dict[int, tuple[int, ...]] = {}
    jobs, scope = result.snapshot.jobs, result.scope
    turn = np.full(len(result.rows), -1, dtype=np.intp)
    turn[moving] = turns
    target = np.where(turn >= 0, result.target, result.current)
    tiers = priority_tiers(result.snapshot, result.rows)
    for members in result.classes.members():
        changing = np.flatnonzero(turn[members] >= 0)
        if not len(changing):
            continue
        changing = changing[np.argsort(turn[members[changing]])]
        border = result.outside.border(scope.managed[members], int(tiers[members[0]]))
        order = border.turns(result.current[members], target[members], changing)
        if not order:
            continue
        turn[members[[member for member, _ in order]]] = turn[members[changing]]
        names = jobs.job_id[result.rows[members]].tolist()
        rests_on |= {names[member]: tuple(map(names.__getitem__, before)) for member, before in order if before}
    return turn[moving], rests_on


def _placement_changes(result: Plan, row: int, record: Applied | None, identity: dict[str, Any]) -> list[Change]:
    jobs, how = result.snapshot.jobs, result.config.placement.apply
    # The tasks of an array share one record: what is right for the task that starts now would bind all the others.
    single = jobs.array_tasks[row] <= 1
    changes = []
    if how is PlacementApply.OVERSUBSCRIBE and row in result.isolate and single:
        # One-way in Slurm: only from the default, never on a job whose user asked for something.
        shown = jobs.oversubscribe.value(row)
        free = _is_default(shown) and not jobs.exclusive[row] and not _was_isolated(record)
        if free and _isolation_counts(result.snapshot, jobs.partition.value(row)):
            changes.append(Change(field=Field.OVERSUBSCRIBE, before=shown, after=OverSubscribe.NO.value, **identity))
    ours = record.exc_nodes if record is not None else None
    if how is PlacementApply.EXCLUDE_NODES or ours is not None:
        own = jobs.exc_nodes.value(row)
        wanted = own
        if how is PlacementApply.EXCLUDE_NODES and single and (excluded := result.exclude.get(row)):
            names = [result.snapshot.nodes.names[node] for node in excluded]
            wanted = ",".join(filter(None, (own, compress(names))))
        present = ours if ours is not None else own
        if wanted != present:
            changes.append(Change(field=Field.EXC_NODES, before=present, after=wanted, **identity))
    return changes


def _isolation_counts(snapshot: Snapshot, partitions: str) -> bool:
    """Whether OverSubscribe=NO means something in each of these partitions: not under FORCE, nor under EXCLUSIVE."""
    counts = {OverSubscribe.NO, OverSubscribe.YES}
    return all(part is not None and part.oversubscribe in counts for part in snapshot.partitions_of(partitions))


def _is_default(shown: str) -> bool:
    """Whether the job has OverSubscribe's default. Since 26.05 Slurm shows it as it shows NO: the reader's UNKNOWN.

    Writing NO to a job that has it already changes nothing, so the doubt does no harm.
    """
    return shown in {OverSubscribe.OK, OverSubscribe.UNKNOWN}


def _was_isolated(record: Applied | None) -> bool:
    return record is not None and record.oversubscribe is not None


def _newly_foreign(scope: Scope, jobs: JobTable, history: History) -> tuple[int, ...]:
    if not history.applied:
        return ()
    ids = (int(jobs.job_id[row]) for row in scope.vetoed().get(Veto.FOREIGN, ()))
    return tuple(job for job in ids if (record := history.applied.get(job)) is not None and not record.foreign)


_HANDS_OFF: Final = frozenset({Veto.UNREADABLE, Veto.FOREIGN, Veto.HELD, Veto.NO_PRIORITY})
"""Vetoes under which not even our own value is taken back: the job is somebody else's business now."""


def _withdrawn(scope: Scope, jobs: JobTable, history: History, mode: ApplyMode) -> tuple[int, ...]:
    order, codes = tuple(Veto), scope.veto.tolist()
    withdrawn = []
    for at, record in _records(history, jobs, scope.rows):
        if record.foreign:
            continue
        by_factor, by_priority = record.site_factor != 0, record.priority is not None
        wrong_mode = by_priority if mode is ApplyMode.SITE_FACTOR else by_factor
        veto = order[codes[at]] if codes[at] >= 0 else None
        # Under site-factor, a job with our explicit priority is vetoed as NO_PRIORITY by that very priority.
        if veto in _HANDS_OFF and not (wrong_mode and veto is Veto.NO_PRIORITY):
            continue
        ours = by_factor or by_priority or record.exc_nodes is not None
        if (veto is not None and ours) or wrong_mode:
            withdrawn.append(record.job_id)
    return tuple(withdrawn)

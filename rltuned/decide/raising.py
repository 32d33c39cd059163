"""The rule: who goes ahead, and who lends for it (docs/lending.md).

In the order of the policy, a job goes ahead as far as those that it passes in Slurm's own order can lend, and gets a
priority just above that of the first of them. It keeps its place as long as that is lent, and goes further only where
that at least halves the number of those before it that it could pass: so little is written. Passing jobs that cannot
start is free, and so is passing the own user's jobs. A job that is wanted more and has nobody to pass is not passed by
one that is wanted less.
"""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.config import LendSection
from rltuned.core.tables import Bools, Floats, Ints, Rows
from rltuned.decide.loans import NOTHING_PROMISED, Book, Offer, Part
from rltuned.decide.managed import ManagedJobs, Order, ranks_of

UNLIMITED: Final = 365 * 86_400.0
"""Seconds that a job without a limit is taken to run, as the features have it."""
LEAST_SECONDS: Final = 60.0  # that any job is charged for before it has ended
OF_LIMIT: Final = 0.05
"""Share of its time limit that a job is charged for at least, before it has ended: what a prediction that is wrong, or
that somebody has poisoned, costs the lenders at most."""
_SPARE: Final = 64
"""So much less than its priority is the room that all raised jobs leave above the first that they pass: priorities
change each minute by what jobs age, and each that falls behind another one would be written again."""
_WIDEST: Final = 2**32 - 1000  # Slurm's priorities are 32 bits wide
_ROUNDING: Final = 1e-6  # GPU-seconds
_FIRST: Final = np.iinfo(np.int64).max  # a key ahead of every job's
_Whole = Any  # a whole number, or (n,) of them


class Stop(enum.IntEnum):
    """Why a job goes no further ahead than it does."""

    NONE = 0
    UNSEEN = 1  # the policy has not seen it
    MOST = 2  # as many jobs as may be are raised already
    LENT = 3  # the job before it has lent its part, or cannot lend as much
    DECIDED = 4
    """The site or its people decided more for the job before it, or that job is left alone."""
    FRONT = 5  # nobody whom it could pass is before it
    SIBLING = 6  # a job of the same user that asks for the same is before it
    FEW = 7  # it could go further, but most of those that it could pass would still be before it
    AHEAD = 8  # a job that is wanted more stands there, or no priority lies between the two


STOP_MEANING: Final[Mapping[Stop, str]] = {
    Stop.UNSEEN: "too far back and too large to be seen by the policy in this cycle",
    Stop.MOST: "others that the policy wants more go ahead already, as many as may at a time",
    Stop.LENT: "the job before it has lent its part, or cannot lend as much as this one would use",
    Stop.DECIDED: "the site or its people decided more for the job before it, or that one is left alone",
    Stop.FRONT: "nobody whom it could pass is before it",
    Stop.SIBLING: "a job of the same user that asks for the same is before it",
    Stop.FEW: "it keeps its place: it moves when it can pass more of the jobs before it",
    Stop.AHEAD: "a job that is wanted more is there already",
}
"""No ids in it: users read it, too."""
_CLOSED: Final = (Stop.LENT, Stop.SIBLING, Stop.DECIDED)  # why a job may not pass another one, whatever that lends


class Raise(NamedTuple):
    """One job that goes ahead."""

    at: int  # position among the pending jobs
    low: int  # the least priority with which it passes whom it passes …
    high: int  # … and the highest with which it passes nobody else
    first: int  # position of the first job that it passes
    lenders: tuple[tuple[int, float], ...]  # positions, and the GPUs that each lends


@dataclass(frozen=True)
class Raised:
    """Whom a plan raises. n managed jobs."""

    target: Ints  # (n,) priority that each shall have
    raises: tuple[Raise, ...]  # the most wanted first
    offers: Mapping[int, Offer]  # by id of the raised job
    stop: npt.NDArray[np.int8]  # (n,) `Stop`
    stopped_by: Ints  # (n,) id of the job that each stays behind, 0 where there is none
    lendable: Floats
    """(P,) GPU-seconds that each pending job can lend: its part of its wait less what it has lent."""
    lent: Floats  # (P,) GPU-seconds that each has lent


def charged_seconds(median: Floats, limit: Floats) -> Floats:
    """(n,) seconds that jobs are charged for before they have ended, by their median predicted run times (NaN: none)
    and time limits. Where Slurm shortens a limit at the start (--time-min), the end settles what was too much.
    """
    limit = np.minimum(limit, UNLIMITED)
    predicted = np.where(np.isnan(median), limit, np.minimum(median, limit))
    return np.asarray(np.maximum(np.maximum(predicted, OF_LIMIT * limit), LEAST_SECONDS), dtype=np.float64)


def lendable(managed: ManagedJobs, book: Book, share: float) -> Floats:
    """(P,) GPU-seconds that each pending job can lend; below 0 where borrowers use more than was expected."""
    rows, jobs = managed.scope.rows, managed.snapshot.jobs
    part: Floats = share * book.wait(managed.snapshot, rows) * managed.size * managed.tasks
    return part - book.lent(jobs, rows)


def raise_jobs(
    managed: ManagedJobs, window: Rows, scores: Floats, seconds: Floats, book: Book, settings: LendSection
) -> Raised:
    """Who goes ahead. `window`: (w,) positions, among the n managed jobs, of those that the policy has seen; `scores`:
    (w,) its scores, higher first; `seconds`: (w,) that each is charged for before it has ended; `book`: of loans, after
    this reading.
    """
    cost = np.zeros(len(managed.scope.rows))
    cost[managed.at[window]] = seconds
    rule = _Rule(managed, cost, book, settings)
    wanted = managed.at[window[_wanted(managed, rule.same, window, scores)]]
    left_out: set[int] = set()
    while True:
        attempt = _Attempt(rule, left_out)
        attempt.run(wanted)
        values, without_room = attempt.values()
        if not without_room:
            break
        left_out.add(without_room[-1])
    raised = np.array([one.at for one in attempt.raises], dtype=np.intp)
    target, where = managed.base.copy(), managed.positions(managed.scope.rows[raised])
    target[where] = np.maximum(values, target[where])
    return Raised(
        target=target,
        raises=tuple(attempt.raises),
        offers={int(rule.ids[one.at]): rule.offer(one) for one in attempt.raises},
        stop=attempt.stop[managed.at],
        stopped_by=attempt.stopped_by[managed.at],
        lendable=rule.lendable,
        lent=rule.lent,
    )


def _wanted(managed: ManagedJobs, same: Ints, window: Rows, scores: Floats) -> Order:
    """(w,) places in the window, the most wanted first. Of a user's jobs that ask for the `same`, Slurm's order stands:
    a policy that prefers fresh jobs must not let the old ones wait for ever.
    """
    at = managed.at[window]
    by_slurm = ranks_of(np.lexsort((managed.tie[at], -managed.base[window])))
    order = np.lexsort((by_slurm, -scores))
    places = np.argsort(same[at][order], kind="stable")
    result: Order = np.empty(len(window), dtype=np.intp)
    result[places] = np.lexsort((by_slurm, same[at]))
    return result


def _alike(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """(P,) a number for each row, the same where all (P,) columns are the same."""
    order = np.lexsort(columns)
    new = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    same = np.zeros(len(order), dtype=np.int64)
    same[order[1:]] = np.cumsum(new)
    return same


class _Rule:
    """What does not change while jobs are raised in one cycle. P pending jobs."""

    def __init__(self, managed: ManagedJobs, cost: Floats, book: Book, settings: LendSection) -> None:
        """`cost`: (P,) seconds that each is charged for."""
        scope, jobs = managed.scope, managed.snapshot.jobs
        rows = scope.rows
        self.managed, self.scope, self.cost, self.tie, self.most = managed, scope, cost, managed.tie, settings.most
        self.ids, self.user, self.pool = jobs.job_id[rows], jobs.user.codes[rows], managed.all_pools.pool_of
        self.total: Floats = managed.size * managed.tasks
        self.unit = len(rows) + 2
        self.current = scope.base.copy()
        """(P,) priority that each has now."""
        self.current[managed.at] = managed.current
        self.high, self.low = (self.key(of, np.arange(len(rows))) for of in (scope.base, scope.least))
        self.lent = book.lent(jobs, rows)
        self.lendable = lendable(managed, book, settings.part)
        self.exhausted: Bools = (self.lent > _ROUNDING) & (self.lendable <= _ROUNDING)
        self.promised = book.promised(jobs, rows)
        asks = (of[rows] for of in (jobs.nodes, jobs.gpus, jobs.cpus, jobs.time_limit))
        self.same = _alike((self.user, self.pool, *asks))
        """(P,) of jobs of one user that ask for the same, the same number."""
        self.reservation: Bools = jobs.reservation.codes[rows] >= 0
        nodes = managed.all_pools.nodes.astype(np.float32)
        self.share_nodes: Bools = nodes @ nodes.T > 0.5
        """(K, K) whether two pools have a node in common."""
        self.queue_of = _alike((scope.tier, self.reservation, self.pool))
        """(P,) of jobs that meet the same ones, the same number below Q."""
        one = np.unique(self.queue_of, return_index=True)[1]
        pool, tier, reserved = self.pool[one], scope.tier[one], self.reservation[one]
        self.meets: Bools = self.share_nodes[pool][:, pool] & (tier == tier[:, None]) & (reserved == reserved[:, None])
        """(Q, Q) whether those of one number meet those of another."""
        self._queues: dict[int, tuple[Rows, Ints]] = {}

    def offer(self, one: Raise) -> Offer:
        """What a raised job borrows when it starts."""
        jobs, at = self.managed.snapshot.jobs, one.at
        submitted, tasks = jobs.submit_time[self.scope.rows], int(jobs.array_tasks[self.scope.rows[at]])
        parts = (Part(int(self.ids[by]), int(submitted[by]), round(gpus, 6)) for by, gpus in one.lenders)
        able, size = int(self.managed.tasks[at]), float(self.managed.size[at])
        return Offer(int(submitted[at]), max(tasks, 1), able, size, float(self.cost[at]), tuple(parts))

    def key(self, priority: _Whole, at: Rows | int) -> _Whole:
        """Priority and tie-break of the jobs at these positions as one number, the higher ahead."""
        return priority * self.unit - self.tie[at]

    def least(self, at: int, key: _Whole) -> _Whole:
        """The least priority with which that job is ahead of this key …"""
        return (key + self.tie[at]) // self.unit + 1

    def highest(self, at: int, key: _Whole) -> _Whole:
        """… and the highest with which it is behind it."""
        return (key + self.tie[at] - 1) // self.unit

    def closed(self, at: int, who: Rows | int) -> tuple[Any, Any, Any]:
        """Whether a job may not pass these, or this one, whatever they lend: for each reason of `_CLOSED`."""
        lent = self.exhausted[who] & (self.user[who] != self.user[at])
        sibling = self.same[who] == self.same[at]
        decided = ~self.scope.passable[who] | (self.scope.most_decided[who] > self.scope.decided[at])
        return lent, sibling, decided

    def barrier(self, at: int, who: Rows) -> tuple[int, Stop, int]:
        """How many of those whom a job meets it may not pass, whatever they lend; why, and the id of the last one."""
        closed = self.closed(at, who)
        found = np.flatnonzero(np.logical_or.reduce(closed))
        if not len(found):
            return 0, Stop.FRONT, 0
        last = int(found[-1])
        return last + 1, next(compress(_CLOSED, (of[last] for of in closed))), int(self.ids[who[last]])

    def queue(self, at: int) -> tuple[Rows, Ints]:
        """Positions of those whom a job meets on its way, and their keys below 0, ascending: all of its tier that could
        run where it can, in Slurm's own order; one whose priority differs between its partitions stands in two places.
        """
        number = int(self.queue_of[at])
        if number not in self._queues:
            tier, reserved, pool = int(self.scope.tier[at]), bool(self.reservation[at]), int(self.pool[at])
            in_tier = self.managed.snapshot.by_partitions(
                self.scope.rows, lambda parts: any(part and part.priority_tier == tier for part in parts), none=False
            )
            met = self.scope.startable & (self.scope.base > 0) & in_tier & (self.reservation == reserved)
            members = np.flatnonzero(met & self.share_nodes[pool][self.pool])
            several = members[self.low[members] < self.high[members]]
            job = np.concatenate((members, several))
            behind = -np.concatenate((self.high[members], self.low[several]))
            order = np.argsort(behind, kind="stable")
            self._queues[number] = job[order], behind[order]
        return self._queues[number]

    def meet(self, one: int, others: Rows) -> Bools:
        """(n,) which of these managed jobs stand in one queue with that one and share nodes with it."""
        return np.asarray(self.meets[self.queue_of[one], self.queue_of[others]], dtype=np.bool_)

    def bars(self, one: int, raised: Rows) -> Bools:
        """(n,) which of these raised jobs, none of which lends, that one may not stand before."""
        ahead = self.meet(one, raised) & (self.high[raised] >= self.low[one])
        barred = (self.user[raised] != self.user[one]) | (self.same[raised] == self.same[one])
        barred |= self.scope.most_decided[raised] > self.scope.decided[one]
        return np.asarray(ahead & barred, dtype=np.bool_)


class _Attempt:
    """Raises one job after the other."""

    def __init__(self, rule: _Rule, left_out: set[int]) -> None:
        """`left_out`: positions of jobs that are not raised: there is no room for them between two priorities."""
        self.rule, self.left_out, self.raises = rule, left_out, list[Raise]()
        self.left: Floats = rule.lendable.copy()
        """(P,) GPU-seconds that each can still lend. What was promised to a job that could not be given back stays
        promised until it is."""
        for promise in rule.promised.values():
            self.left[promise.lenders] -= promise.seconds
        self.raised, self.kept = np.zeros((2, len(rule.ids)), dtype=np.bool_)
        """(P,) who goes ahead; who is wanted, and has nobody to pass."""
        self.front = Counter[int]()
        """By number of the queue, the first so many of it are raised or kept, at least."""
        self.stop = np.full(len(rule.ids), Stop.UNSEEN, dtype=np.int8)
        self.stopped_by = np.zeros(len(rule.ids), dtype=np.int64)

    def run(self, wanted: Rows) -> None:
        """Raise of the wanted jobs, positions among the pending ones, as many as may be.

        Two kinds follow when others had their turn: of one user, those beyond half of the places; and who does not go
        ahead yet, where all places are taken by jobs that do, unless none of these is on any of its nodes.
        """
        rule, half, later = self.rule, (self.rule.most + 1) // 2, list[int]()
        ahead = rule.current > rule.scope.base
        carrying = wanted[ahead[wanted]]
        there: Bools = np.any(rule.share_nodes[:, rule.pool[carrying]], axis=1)
        """(K,) whether somebody goes ahead on some of the nodes of each pool."""
        free = rule.most - sum(min(count, half) for count in Counter(rule.user[carrying].tolist()).values())
        of_user = Counter[int]()
        self.stop[wanted] = Stop.MOST  # of whom no turn comes
        for at in wanted.tolist():
            if self._is_full():
                return
            user, new = int(rule.user[at]), not ahead[at]
            if of_user[user] >= half or (new and free <= 0 and there[rule.pool[at]]):
                later.append(at)
            elif self._raise(at):
                of_user[user] += 1
                if new:
                    free -= 1
                    there |= rule.share_nodes[:, rule.pool[at]]
        for at in later:
            if self._is_full():
                return
            self._raise(at)

    def _is_full(self) -> bool:
        return len(self.raises) >= self.rule.most

    def _raise(self, at: int) -> bool:
        rule = self.rule
        if at in self.left_out:
            self.stop[at] = Stop.LENT
            return False
        # Most meet nobody, or may not pass the one right before them: that is found out first, and without arrays.
        if (nearest := self._nearest(at)) < 0:
            self.stop[at], self.kept[at] = Stop.FRONT, True
            return False
        if any(closed := rule.closed(at, nearest)):
            self.stop[at], self.stopped_by[at] = next(compress(_CLOSED, closed)), rule.ids[nearest]
            return False
        own = rule.promised.get(int(rule.ids[at]), NOTHING_PROMISED)
        self.left[own.lenders] += own.seconds
        if (found := self._found(at)) is None:
            self.left[own.lenders] -= own.seconds
            self.kept[at] = self.stop[at] == Stop.FRONT
            return False
        for lender, gpus in found.lenders:
            self.left[lender] -= gpus * rule.cost[at]
        self.raises.append(found)
        self.raised[at] = True
        return True

    def _found(self, at: int) -> Raise | None:
        """How far ahead a job can go that may pass the one right before it; notes what stops it."""
        rule, size, current, base = self.rule, self.rule.total[at], self.rule.current[at], self.rule.scope.base[at]
        # Whom it meets, and those of them that it may pass: all behind the last one that it may not.
        who, key = self._met(at)
        begin, self.stop[at], self.stopped_by[at] = rule.barrier(at, who)
        top = rule.highest(at, key[begin - 1]) if begin else _FIRST
        who, key = who[begin:], key[begin:]
        # The first of them before whom it can stand: all from there on lend enough, and a priority lies there.
        gpus, last, lent = self._lent(at, who, key)
        low, high, free = self._between(at, key, top)
        able = lent & free
        nth = int(able.argmax()) if able.any() else len(who)
        if nth:
            stopped = (Stop.AHEAD, 0) if lent[nth - 1] else (Stop.LENT, rule.ids[who[nth - 1]])
            self.stop[at], self.stopped_by[at] = stopped
        # It keeps its place where most of those that it could pass would still be before it.
        stands = int(np.searchsorted(-key, -rule.key(current, at)))  # behind so many
        keeps = current > base and stands < len(who) and bool(able[stands])
        if keeps and 2 * nth > stands and low[stands] <= current <= high[stands]:
            self.stop[at] = Stop.FEW if nth < stands else self.stop[at]
            nth = stands
        if nth == len(who) or low[nth] <= base:  # of several partitions, it stands in the best one already
            return None
        who, gpus = who[nth : last[nth] + 1], gpus[nth : last[nth] + 1]
        used = np.minimum(gpus, size - (np.cumsum(gpus) - gpus))  # until its size is covered
        lenders = tuple((lender, most) for lender, most in zip(who.tolist(), used.tolist(), strict=True) if most > 0)
        return Raise(at, int(low[nth]), int(high[nth]), int(who[0]), lenders)

    def _ahead(self, at: int) -> tuple[Rows, Ints]:
        """Who is ahead of a job in Slurm's own order, of those whom it meets; with their keys below 0, ascending."""
        who, behind = self.rule.queue(at)
        ahead = behind.searchsorted(-self.rule.low[at])
        return who[:ahead], behind[:ahead]

    def _nearest(self, at: int) -> int:
        """The last one of `_met`, or −1."""
        who, number = self._ahead(at)[0], int(self.rule.queue_of[at])
        while self.front[number] < len(who) and self._stays(int(who[self.front[number]])):
            self.front[number] += 1
        behind = map(int, reversed(who[self.front[number] :]))
        return next((one for one in behind if one != at and not self._stays(one)), -1)

    def _stays(self, one: int) -> bool:
        """Whether a job is raised, or wanted more than those that come next."""
        return bool(self.raised[one] or self.kept[one])

    def _met(self, at: int) -> tuple[Rows, Ints]:
        """Who is ahead of a job, the first first, and neither raised nor wanted more; with their keys."""
        who, behind = self._ahead(at)
        here = ~self.raised[who] & ~self.kept[who] & (who != at)
        return who[here], -behind[here]

    def _lent(self, at: int, who: Rows, key: Ints) -> tuple[Floats, Ints, Bools]:
        """(n,) the GPUs that each of those whom a job may pass lends. And, by which of them it passes first: (n,) the
        last that lends, n where all together do not cover its size; (n,) whether all of these can lend that.
        """
        rule, n, seconds, size = self.rule, len(who), self.rule.cost[at], self.rule.total[at]
        # One in two places lends once, in the last in which it is passed.
        last_place = (key == rule.low[who]) | (rule.low[who] <= rule.low[at])
        gpus = np.where(last_place & (rule.user[who] != rule.user[at]), rule.total[who], 0.0)
        short = (gpus > 0) & (self.left[who] < gpus * seconds - _ROUNDING)
        covered, shorts = (np.concatenate(([0.0], np.cumsum(each))) for each in (gpus, short))
        last = np.searchsorted(covered[1:], covered[:-1] + size - _ROUNDING)
        payer = np.minimum(last, n - 1)
        part = np.minimum(covered[:-1] + size - covered[payer], gpus[payer])
        pays = (last == n) | (self.left[who[payer]] >= part * seconds - _ROUNDING)
        return gpus, last, (shorts[last] == shorts[:-1]) & pays

    def _between(self, at: int, key: Ints, top: int) -> tuple[Ints, Ints, Bools]:
        """(n,) the least priority with which a job is ahead of each of those whom it may pass; (n,) the highest with
        which it passes nobody else, `top` for the first of them; (n,) whether there is one between the two.
        """
        rule = self.rule
        low, high = rule.least(at, key), np.append(top, rule.highest(at, key[:-1]))
        # Who is wanted more and has nobody to pass stays ahead.
        kept = np.flatnonzero(self.kept & (rule.high >= rule.low[at]))
        if len(kept := kept[rule.meet(at, kept)]):
            high = np.minimum(high, rule.highest(at, rule.high[kept].min()))
        # So do the raised jobs that it may not pass.
        ends = [one for one in self.raises if one.high < _FIRST]
        before = np.array([one.at for one in ends], dtype=np.intp)
        ahead = rule.key(np.array([one.high for one in ends], dtype=np.int64), before)
        return low, high, (low <= high) & (rule.key(low, at) < ahead[rule.bars(at, before)].min(initial=_FIRST))

    def values(self) -> tuple[Ints, list[int]]:
        """Priorities of the raised jobs, in the order of `raises`; and those that there is no room for: a job that is
        wanted less would stand before one that does not lend to it.

        A job that stands right keeps the priority that it has, unless somebody has the last one before a job that it
        does not pass: Slurm cuts what age adds to whole numbers, so two may come one nearer before the next cycle.
        """
        rule, raises = self.rule, self.raises
        at = np.array([one.at for one in raises], dtype=np.intp)
        value, key = self._values(at, keep=True)
        if any(now == one.high > one.low for now, one in zip(value, raises, strict=True)):
            value, key = self._values(at, keep=False)
        without_room = [
            one.at
            for nth, one in enumerate(raises)
            if key[nth] > min(compress(key[:nth], rule.bars(one.at, at[:nth])), default=_FIRST)
        ]
        return np.array(value, dtype=np.int64), without_room

    def _values(self, at: Rows, *, keep: bool) -> tuple[list[int], list[int]]:
        """Priorities, and keys, of the raised jobs `at`. `keep`: whoever stands right keeps the one that it has."""
        rule, raises, ties = self.rule, self.raises, self.rule.tie[at].tolist()
        value, key = [0] * len(raises), [0] * len(raises)
        for nth in range(len(raises) - 1, -1, -1):
            one = raises[nth]
            # One that is wanted less, and stands where this one cannot go, changes nothing for it.
            most = one.high * rule.unit - ties[nth]
            met = compress(key[nth + 1 :], rule.meet(one.at, at[nth + 1 :]))
            behind = max((other for other in met if other < most), default=0)
            least = max(one.low, (behind + ties[nth]) // rule.unit + 1)
            now = int(rule.current[one.at])
            spare = max(min(one.high - one.low, _WIDEST - one.low, one.low // _SPARE), 0) // rule.most
            value[nth] = now if keep and least <= now <= one.high else min(least + spare, one.high)
            key[nth] = value[nth] * rule.unit - ties[nth]
        return value, key

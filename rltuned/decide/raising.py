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
from rltuned.decide.loans import Book, Offer, Part
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
    rule = _Rule(managed, book, settings)
    wanted = managed.at[window[_wanted(managed, rule.same, window, scores)]]
    cost = np.zeros(len(rule.ids))
    cost[managed.at[window]] = seconds
    left_out: set[int] = set()
    while True:
        attempt = _Attempt(rule, cost, left_out)
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
        offers={int(rule.ids[one.at]): rule.offer(one, cost) for one in attempt.raises},
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


class _Queue(NamedTuple):
    """The jobs of one tier that could run where one kind of job can run, in Slurm's own order; one whose priority
    differs between its partitions stands in two places.
    """

    at: Rows  # positions among the pending jobs
    behind: Ints  # −`_Rule.key`, ascending
    twice: bool  # whether a job stands in two places


class _Rule:
    """What does not change while jobs are raised in one cycle. P pending jobs."""

    def __init__(self, managed: ManagedJobs, book: Book, settings: LendSection) -> None:
        scope, jobs = managed.scope, managed.snapshot.jobs
        rows = scope.rows
        self.managed, self.scope, self.tie, self.most = managed, scope, managed.tie, settings.most
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
        self._queues: dict[tuple[int, bool, int], _Queue] = {}

    def offer(self, one: Raise, cost: Floats) -> Offer:
        """What a raised job borrows when it starts; `cost`: (P,) seconds that each is charged for."""
        jobs, at = self.managed.snapshot.jobs, one.at
        submitted, tasks = jobs.submit_time[self.scope.rows], int(jobs.array_tasks[self.scope.rows[at]])
        parts = (Part(int(self.ids[by]), int(submitted[by]), round(gpus, 6)) for by, gpus in one.lenders)
        able, size = int(self.managed.tasks[at]), float(self.managed.size[at])
        return Offer(int(submitted[at]), max(tasks, 1), able, size, float(cost[at]), tuple(parts))

    def key(self, priority: Ints, at: Rows) -> Ints:
        """Priority and tie-break of the jobs at these positions as one number, the higher ahead."""
        return priority * self.unit - self.tie[at]

    def queue(self, at: int) -> _Queue:
        """Whom a job meets on its way ahead."""
        tier, reserved, pool = where = int(self.scope.tier[at]), bool(self.reservation[at]), int(self.pool[at])
        if where not in self._queues:
            in_tier = self.managed.snapshot.by_partitions(
                self.scope.rows, lambda parts: any(part and part.priority_tier == tier for part in parts), none=False
            )
            met = self.scope.startable & (self.scope.base > 0) & in_tier & (self.reservation == reserved)
            members = np.flatnonzero(met & self.share_nodes[pool][self.pool])
            several = members[self.low[members] < self.high[members]]
            job = np.concatenate((members, several))
            behind = -np.concatenate((self.high[members], self.low[several]))
            order = np.argsort(behind, kind="stable")
            self._queues[where] = _Queue(job[order], behind[order], bool(len(several)))
        return self._queues[where]

    def meet(self, one: int, others: Rows) -> Bools:
        """(n,) which of these managed jobs stand in one queue with that one and share nodes with it."""
        tier, reserved = self.scope.tier, self.reservation
        same = (tier[others] == tier[one]) & (reserved[others] == reserved[one])
        return np.asarray(same & self.share_nodes[self.pool[one], self.pool[others]], dtype=np.bool_)

    def bars(self, one: int, raised: Rows) -> Bools:
        """(n,) which of these raised jobs, none of which lends, that one may not stand before."""
        ahead = self.meet(one, raised) & (self.high[raised] >= self.low[one])
        barred = (self.user[raised] != self.user[one]) | (self.same[raised] == self.same[one])
        barred |= self.scope.most_decided[raised] > self.scope.decided[one]
        return np.asarray(ahead & barred, dtype=np.bool_)


class _Attempt:
    """Raises one job after the other."""

    def __init__(self, rule: _Rule, cost: Floats, left_out: set[int]) -> None:
        """`cost`: (P,) seconds that each is charged for. `left_out`: positions of jobs that are not raised: there is no
        room for them between two priorities.
        """
        self.rule, self.cost, self.left_out, self.raises = rule, cost, left_out, list[Raise]()
        self.left: Floats = rule.lendable.copy()
        """(P,) GPU-seconds that each can still lend. What was promised to a job that could not be given back stays
        promised until it is."""
        for promised in rule.promised.values():
            self.left -= promised
        self.raised, self.kept = np.zeros((2, len(rule.ids)), dtype=np.bool_)
        """(P,) who goes ahead; who is wanted, and has nobody to pass."""
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
        for at in wanted.tolist():
            user, new = int(rule.user[at]), not ahead[at]
            if of_user[user] >= half or (new and free <= 0 and there[rule.pool[at]]):
                later.append(at)
            elif self._raise(at):
                of_user[user] += 1
                if new:
                    free -= 1
                    there |= rule.share_nodes[:, rule.pool[at]]
        for at in later:
            self._raise(at)

    def _raise(self, at: int) -> bool:
        rule = self.rule
        if len(self.raises) >= rule.most:
            self.stop[at] = Stop.MOST
            return False
        if at in self.left_out:
            self.stop[at] = Stop.LENT
            return False
        own = rule.promised.get(int(rule.ids[at]), 0.0)
        self.left += own
        if (found := self._found(at)) is None:
            self.left -= own
            self.kept[at] = self.stop[at] == Stop.FRONT
            return False
        for lender, gpus in found.lenders:
            self.left[lender] -= gpus * self.cost[at]
        self.raises.append(found)
        self.raised[at] = True
        return True

    def _found(self, at: int) -> Raise | None:
        """How far ahead a job can go; notes what stops it."""
        rule, scope, queue = self.rule, self.rule.scope, self.rule.queue(at)
        ahead = int(np.searchsorted(queue.behind, -rule.low[at], side="left"))
        who = queue.at[:ahead]
        here = ~self.raised[who] & ~self.kept[who] & (who != at)
        who, key = who[here], -queue.behind[:ahead][here]
        others = rule.user[who] != rule.user[at]
        closed = ~scope.passable[who] | (scope.most_decided[who] > scope.decided[at]) | (others & rule.exhausted[who])
        closed |= rule.same[who] == rule.same[at]
        total = len(who)
        begin = int(np.flatnonzero(closed)[-1]) + 1 if closed.any() else 0
        lends = others.copy()
        if queue.twice:  # a job lends once, in the last place in which it is passed
            lends[:] = False
            lends[total - 1 - np.unique(who[::-1], return_index=True)[1]] = True
            lends &= others
        gpus = np.where(lends, rule.total[who], 0.0)
        seconds, size = float(self.cost[at]), float(rule.total[at])
        gaps = np.append(np.flatnonzero(lends & (self.left[who] < gpus * seconds - _ROUNDING)), total)
        covered = np.concatenate(([0.0], np.cumsum(gpus)))
        starts = np.arange(begin, total)
        # The lender that covers what is left of the size, from each start on; `total` where all together do not.
        last = np.searchsorted(covered[1:], covered[starts] + size - _ROUNDING)
        payer = np.minimum(last, total - 1)
        part = covered[starts] + size - covered[payer]
        next_gap = gaps[np.searchsorted(gaps, starts)]
        partly = (next_gap == last) & (self.left[who[payer]] >= part * seconds - _ROUNDING)
        lent = (next_gap > last) | (next_gap >= total) | partly
        low = (key[starts] + rule.tie[at]) // rule.unit + 1
        high = np.append(_FIRST, -((-key[:-1] - rule.tie[at]) // rule.unit) - 1)[starts]
        # Who is wanted more and has nobody to pass stays ahead.
        kept = np.flatnonzero(self.kept & (rule.high >= rule.low[at]))
        if len(kept := kept[rule.meet(at, kept)]):
            high = np.minimum(high, (rule.high[kept].min() + rule.tie[at] - 1) // rule.unit)
        able = lent & (low <= high)  # else no priority lies between these two
        # It stays behind the raised jobs that it may not pass.
        ends = [one for one in self.raises if one.high < _FIRST]
        before = np.array([one.at for one in ends], dtype=np.intp)
        top = rule.key(np.array([one.high for one in ends], dtype=np.int64), before)
        able &= low * rule.unit - rule.tie[at] < top[rule.bars(at, before)].min(initial=_FIRST)
        found = np.flatnonzero(able)
        start = begin + int(found[0]) if len(found) else total
        self._note(at, who, begin, start)
        if start > begin and lent[start - begin - 1]:
            self.stop[at], self.stopped_by[at] = Stop.AHEAD, 0
        stands = int(np.searchsorted(-key, rule.tie[at] - rule.current[at] * rule.unit))  # behind so many
        nth, here = start - begin, stands - begin
        may = rule.current[at] > scope.base[at] and 0 <= here < len(able) and bool(able[here])
        if may and 2 * nth > here and low[here] <= rule.current[at] <= high[here]:
            # Most of those that it could pass would still be before it.
            self.stop[at] = Stop.FEW if nth < here else self.stop[at]
            nth, start = here, begin + here
        if start == total or low[nth] <= scope.base[at]:  # of several partitions, it stands in the best one already
            return None
        end = min(int(last[nth]) + 1, total)
        lenders = _lenders(who[start:end], gpus[start:end], size)
        return Raise(at, int(low[nth]), int(high[nth]), int(who[start]), lenders)

    def _note(self, at: int, who: Rows, begin: int, start: int) -> None:
        """Why the job goes no further ahead than before `who[start]`; those before `begin` may not be passed."""
        rule, before = self.rule, int(who[start - 1]) if start else -1
        if not start:
            self.stop[at] = Stop.FRONT
        elif start > begin or (rule.exhausted[before] and rule.user[before] != rule.user[at]):
            self.stop[at] = Stop.LENT
        else:
            self.stop[at] = Stop.SIBLING if rule.same[before] == rule.same[at] else Stop.DECIDED
        self.stopped_by[at] = rule.ids[before] if start else 0

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
            if any(key[nth] > other for other in compress(key[:nth], rule.bars(one.at, at[:nth])))
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


def _lenders(who: Rows, gpus: Floats, size: float) -> tuple[tuple[int, float], ...]:
    """Who lends how many GPUs until this size is covered."""
    found: list[tuple[int, float]] = []
    for at, most in zip(who.tolist(), gpus.tolist(), strict=True):
        used = min(most, size)
        if used > 0:
            found.append((at, used))
            size -= used
    return tuple(found)

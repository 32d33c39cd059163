"""Permute, never inflate: what the jobs outside of a class may not lose (decision 0110).

The promise: for every job outside of a class and for every set of nodes, the class has no more jobs ahead of it that
could run on these nodes than Slurm alone would have it. A class that exchanges its priorities keeps their multiset, but
not which nodes its jobs can run on: a job that can run where an outside job can may come to stand before it in exchange
for one that cannot.

How it is kept. Take an outside job. For each class job that rltuned moved ahead of it, there must be a different class
job that rltuned moved behind it. The second must fit on every node that the first shares with the outside job. Such a
pairing makes the promise true for every set of nodes at once. Where none is found, the least wanted job stays behind
the outside job.

Only jobs of the same priority tier are compared: between tiers Slurm does not look at priorities. A job in a
reservation stands before all jobs without one. An array counts as many jobs as it has tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.pools import Bits, Pools, distinct_bits, distinct_rows
from rltuned.cluster.tables import Bools, Ints, Snapshot
from rltuned.decide.ranks import Order, ranks_of
from rltuned.decide.scope import Scope

Rows = npt.NDArray[np.intp]

EXACT_TURNS: Final = 64
"""Raised jobs of a class before which the fewest others are lowered. Before later ones all are."""

CELLS: Final = 2**19
"""Pairs of a type and a place that are counted at once: what bounds the memory."""

FAR: Final = 256
"""Moves of a class that are looked at one by one because they may be long: as many as a policy can see."""


@dataclass(frozen=True)
class Outside:
    """All P pending jobs where Slurm alone has them, in the order of `JobTable.pending`."""

    snapshot: Snapshot
    pools: Pools
    scope: Scope

    @cached_property
    def tie(self) -> Order:
        """(P,) place among jobs of the same priority: the earlier submission, then the lower id (slurmctld's order)."""
        jobs, rows = self.snapshot.jobs, self.scope.rows
        return ranks_of(np.lexsort((jobs.job_id[rows], jobs.submit_time[rows])))

    @property
    def _unit(self) -> int:
        return len(self.scope.rows) + 2

    def keys(self, priority: Ints, at: Rows) -> Ints:
        """Priority and tie-break of the jobs at these positions as one even number, the higher ahead."""
        return 2 * (priority * self._unit - self.tie[at])

    def key_from(self, priority: int) -> int:
        """A key ahead of which stand exactly the jobs with this priority or a higher one."""
        return 2 * (priority * self._unit - len(self.scope.rows))

    def behind(self, key: int, at: int) -> int:
        """The highest priority with which the job at this position stands behind that key."""
        priority = -(-(key // 2) // self._unit)
        return priority if self.tie[at] >= priority * self._unit - key // 2 else priority - 1

    @cached_property
    def tasks(self) -> Ints:
        """(P,) jobs that each record stands for."""
        return np.maximum(self.snapshot.jobs.array_tasks[self.scope.rows].astype(np.int64), 1)

    @cached_property
    def kinds(self) -> tuple[Rows, Rows, Bits]:
        """Kinds of node sets.

        Returns:
            (P,) the kind of each job: the nodes that it is told to want; (P,) those that it can get: none by way of a
            partition that is down; and (K, ⌈A/8⌉) which groups of nodes, each alike to all jobs, are in each kind, as
            bits.
        """
        jobs, nodes = self.snapshot.jobs, self.pools.nodes.copy()
        codes = np.full(len(nodes), -1, dtype=np.int64)
        codes[self.pools.pool_of] = jobs.partition.codes[self.scope.rows]
        for code, name in enumerate(jobs.partition.names):
            parts = [part for part in self.snapshot.partitions_of(name) if part is not None]
            if not all(part.up for part in parts):
                nodes[codes == code] &= self.snapshot.nodes_of([part for part in parts if part.up])
        bits = np.packbits(distinct_rows(np.concatenate((self.pools.nodes, nodes)).T)[0].T, axis=1)
        first, of = distinct_bits(bits)
        wanted, can_get = np.split(of, 2)
        return wanted[self.pools.pool_of], can_get[self.pools.pool_of], bits[first]

    @cached_property
    def _places(self) -> tuple[Rows, Ints, Ints]:
        """Job, tier and key of each place in the queue: one for each priority that a job's partitions give it."""
        jobs, rows, scope = self.snapshot.jobs, self.scope.rows, self.scope
        parts = (filter(None, self.snapshot.partitions_of(name)) for name in jobs.partition.names)
        tiers = [*(sorted({part.priority_tier for part in these}) for these in parts), []]
        codes = jobs.partition.codes[rows]
        waiting = scope.base > 0
        at, tier = [], []
        for nth in range(max(len(these) for these in tiers)):
            value = np.array([these[nth] if nth < len(these) else -1 for these in tiers], dtype=np.int64)[codes]
            at.append(np.flatnonzero(waiting & (value >= 0)))
            tier.append(value[at[-1]])
        job = np.concatenate(at) if at else np.zeros(0, dtype=np.intp)
        of_tier = np.concatenate(tier) if tier else np.zeros(0, dtype=np.int64)
        several = scope.least[job] < scope.base[job]
        job, of_tier = np.concatenate((job, job[several])), np.concatenate((of_tier, of_tier[several]))
        low = np.arange(len(job)) >= len(several)
        key = self.keys(np.where(low, scope.least[job], scope.base[job]), job)
        order = np.argsort(key, kind="stable")
        return job[order], of_tier[order], key[order]

    def border(self, members: Rows, tier: int) -> "Border":
        """What the class of the jobs at these positions, which are of this priority tier, may not cross."""
        job, of_tier, key = self._places
        inside = np.zeros(len(self.scope.rows), dtype=np.bool_)
        inside[members] = True
        reserved = self.snapshot.jobs.reservation.codes[self.scope.rows] >= 0
        mine = bool(reserved[members[0]]) if len(members) else False
        kept = np.flatnonzero((of_tier == tier) & ~inside[job] & (reserved[job] == mine))
        return Border(self, members, job[kept], key[kept])


def _first_over(begin: Rows, end: Rows, size: int) -> Rows:
    """(size,) the first of n non-empty intervals [begin, end) that covers each place; n where none does."""
    first = np.full(size, len(begin), dtype=np.intp)
    power = np.frexp(end - begin)[1] - 1
    for exponent in range(int(power.max(initial=-1)), -1, -1):
        half = 1 << exponent
        these = np.flatnonzero(power == exponent)
        first[half:] = np.minimum(first[half:], first[:-half])
        for starts in (begin[these], end[these] - half):
            np.minimum.at(first, starts, these)
    return first


class _Crossing(NamedTuple):
    """Jobs that cross places of the queue."""

    moved: Rows
    """(m,) which of the moved jobs of the class."""
    since: Ints
    """(m,) the key from which each moves up (or, if it is lowered, to which it moves down)."""
    until: Ints
    """(m,) the key to which (or from which) it does."""


@dataclass(frozen=True)
class _Group:
    """Outside jobs of one kind of node set that jobs of the class cross: L places, T types of class jobs."""

    key: Ints
    """(L,) ascending."""
    job: Rows
    """(L,) the outside job; −1: a job of the class itself."""
    tasks: Ints
    """(m,) how many each moved job of the class counts for."""
    type_of: Rows
    """(m,) type of each moved job: equal node sets, as far as they are the outside jobs'. T: none in common."""
    types: Bits
    """(T, ⌈A/8⌉) groups of nodes in the node set of each type, as bits."""

    @cached_property
    def size(self) -> Ints:
        """(T,) how many groups of nodes each type has."""
        return np.asarray(np.bitwise_count(self.types).sum(axis=1), dtype=np.int64)

    @cached_property
    def _holders(self) -> dict[int, tuple[int, ...]]:
        return {}

    def holders(self, kind: int) -> tuple[int, ...]:
        """Types whose node sets contain this type's: itself, then the smallest first."""
        if kind not in self._holders:
            contained = ~(~self.types & self.types[kind]).any(axis=1)
            others = sorted(
                np.flatnonzero(contained).tolist(), key=lambda other: (other != kind, int(self.size[other]))
            )
            self._holders[kind] = tuple(others)
        return self._holders[kind]

    def counts(self, crossing: "_Crossing", places: slice) -> Ints:
        """(T, l) how many cross each of these places."""
        key = self.key[places]
        shape = len(self.types) + 1, len(key) + 1
        of, tasks = self.type_of[crossing.moved] * shape[1], self.tasks[crossing.moved]
        first = key.searchsorted(crossing.since, side="right")
        last = np.maximum(key.searchsorted(crossing.until), first)
        steps = np.bincount(of + first, weights=tasks, minlength=shape[0] * shape[1])
        steps -= np.bincount(of + last, weights=tasks, minlength=shape[0] * shape[1])
        return np.cumsum(steps.reshape(shape), axis=1)[:-1, :-1].astype(np.int64)

    def count(self, crossing: "_Crossing", key: int) -> list[int]:
        """(T,) how many cross the place with this key."""
        these = crossing.moved[(crossing.since < key) & (key < crossing.until)]
        found = np.bincount(self.type_of[these], self.tasks[these], len(self.types) + 1)
        counts: list[int] = found[:-1].astype(np.int64).tolist()
        return counts

    def lacking(self, ahead: "_Crossing", behind: "_Crossing", first: int, last: int) -> list[int]:
        """Places from `first` up to `last` where the jobs brought ahead cannot be paired with those brought behind."""
        found: list[int] = []
        step = max(CELLS // len(self.types), 1)
        for start in range(first, last, step):
            places = slice(start, min(start + step, last))
            lacking = self._unpaired(self.counts(ahead, places), self.counts(behind, places))
            found += (start + np.flatnonzero(lacking)).tolist()
        return found

    def _unpaired(self, ahead: Ints, behind: Ints) -> Bools:
        """(l,) places where the (T, l) jobs brought ahead cannot be paired with those brought behind."""
        lacking: Bools = np.asarray((ahead > behind).any(axis=0), dtype=np.bool_)
        places = np.flatnonzero(lacking)
        if len(places) and len(self.types) > 1:
            # Each takes of its own type first; who still wants, the largest node set first, takes of those that contain
            # it.
            own = np.minimum(ahead[:, places], behind[:, places])
            wanted, left = ahead[:, places] - own, behind[:, places] - own
            short = np.flatnonzero(wanted.any(axis=1))
            for kind in short[np.argsort(-self.size[short], kind="stable")].tolist():
                for holder in self.holders(kind)[1:]:
                    used = np.minimum(wanted[kind], left[holder])
                    wanted[kind] -= used
                    left[holder] -= used
            lacking[places] = (wanted > 0).any(axis=0)
        return lacking

    def paired(self, kind: int, tasks: int, left: list[int]) -> bool:
        """Take what a job of this type needs out of `left`, smallest node sets first; nothing if it is too little."""
        if sum(left[holder] for holder in self.holders(kind)) < tasks:
            return False
        for holder in self.holders(kind):
            used = min(tasks, left[holder])
            left[holder] -= used
            tasks -= used
        return True


@dataclass(frozen=True)
class Border:
    """The outside jobs that one class of n jobs may not pass by more than Slurm alone would have it."""

    outside: Outside
    members: Rows
    """(n,) positions of the class's jobs."""
    job: Rows
    """(R,) outside jobs."""
    key: Ints
    """(R,) ascending."""

    @cached_property
    def base(self) -> tuple[Ints, Ints]:
        """(n,) keys of the highest and of the lowest priority that Slurm alone gives."""
        base = self.outside.scope.base[self.members]
        return self.outside.keys(base, self.members), self.lowest(base)

    def lowest(self, priority: Ints) -> Ints:
        """(n,) keys in that partition of each member that gives it least, when these are its highest priorities."""
        scope = self.outside.scope
        return self.outside.keys(priority - (scope.base - scope.least)[self.members], self.members)

    def ahead(self, at: Ints) -> tuple[Rows, Ints, Ints]:
        """Members that stand higher than Slurm alone has them; the keys from (the lowest) and to which they do."""
        high, low = self.base
        rows = np.flatnonzero(at > high)
        return rows, low[rows], at[rows]

    def behind(self, at: Ints) -> tuple[Rows, Ints, Ints]:
        """Members that stand lower than Slurm alone has them, in every partition."""
        low = self.base[1]
        rows = np.flatnonzero(at < low)
        return rows, at[rows], low[rows]

    def crossed(self, since: Ints, until: Ints, of: Rows) -> Bools:
        """Whether members `of` cross outside jobs with nodes in common, from (n,) priorities `since` to `until`."""
        result = np.zeros(len(of), dtype=np.bool_)
        if not len(of) or not len(self.key):
            return result
        wanted, can_get, nodes = self.outside.kinds
        low, high = self.lowest(since)[of], self.outside.keys(until, self.members)[of]
        job, key = self._around(low, high, np.concatenate((low, high)))
        theirs, mine = wanted[job], can_get[self.members[of]]
        for one in np.unique(mine):
            keys = key[(nodes & nodes[one]).any(axis=1)[theirs]]
            these = np.flatnonzero(mine == one)
            result[these] = np.searchsorted(keys, high[these]) > np.searchsorted(keys, low[these], side="right")
        return result

    def groups(self, moved: Rows, since: Ints, until: Ints, breaks: Ints) -> list[_Group]:
        """The outside jobs that members cross on the way from the keys `since` to `until`, by kind of node set.

        Args:
            moved: members that cross anything, whichever way; `_Group.type_of` is about these.
            since: (u,) keys from which members rise.
            until: (u,) keys to which they do.
            breaks: keys at which a crossing may begin or end.
        """
        job, key = self._around(since, until, breaks)
        if not len(key):
            return []
        wanted, can_get, nodes = self.outside.kinds
        rising = np.searchsorted(np.sort(since), key) - np.searchsorted(np.sort(until), key, side="right")
        job, key = job[rising > 0], key[rising > 0]
        stretch = np.searchsorted(np.sort(breaks), key)
        first = np.unique(wanted[job] * (len(breaks) + 1) + stretch, return_index=True)[1]
        job, key = job[first], key[first]
        order = np.argsort(key, kind="stable")
        job, key = job[order], key[order]
        tasks = self.outside.tasks[self.members[moved]]
        kinds, of_kind = np.unique(can_get[self.members[moved]], return_inverse=True)
        groups = []
        for one in np.unique(wanted[job]):
            both = nodes[kinds] & nodes[one]
            distinct, of = distinct_bits(both)
            shared = both[distinct].any(axis=1)
            types = both[distinct[shared]]
            if not len(types):
                continue
            number = np.where(shared, np.cumsum(shared) - 1, len(types))[of]
            these = np.flatnonzero(wanted[job] == one)
            groups.append(_Group(key[these], job[these], tasks, number[of_kind], types))
        return groups

    def _around(self, since: Ints, until: Ints, breaks: Ints) -> tuple[Rows, Ints]:
        """Outside places between the lowest of `since` and the highest of `until`, by ascending key."""
        if not len(since) or not len(self.key):
            return self.job[:0], self.key[:0]
        lowest, highest = int(since.min()), int(until.max())
        first, last = np.searchsorted(self.key, (lowest, highest))
        job, key = self.job[first:last], self.key[first:last]
        outside, scope = self.outside, self.outside.scope
        # Not read of each job: what the partitions between its highest and its lowest priority give it, and where Slurm
        # begins to keep resources for those ahead.
        extra: list[tuple[Rows, Ints]] = []
        wanted = outside.kinds[0]
        partitions = outside.snapshot.jobs.partition
        many = np.array([name.count(",") >= 2 for name in partitions.names] + [False], dtype=np.bool_)
        spread = many[partitions.codes[scope.rows[self.job]]] & (scope.least[self.job] < scope.base[self.job])
        several = np.unique(self.job[spread])
        starts = np.unique(breaks[(breaks >= lowest) & (breaks < highest)])
        begin = np.searchsorted(starts, outside.keys(scope.least[several], several), side="right")
        end = np.searchsorted(starts, outside.keys(scope.base[several], several))
        for kind in np.unique(wanted[several]):
            # One job of each kind is enough at each place, however many have it.
            of = np.flatnonzero((wanted[several] == kind) & (begin < end))
            first = _first_over(begin[of], end[of], len(starts))
            covered = np.flatnonzero(first < len(of))
            extra.append((several[of[first[covered]]], starts[covered] + 1))
        reserve_from = outside.snapshot.scheduler.bf_min_prio_reserve
        if reserve_from > 0:
            without = scope.base[self.job] < reserve_from
            kinds = wanted[self.job[without]]
            one_of_each = self.job[without][np.unique(kinds, return_index=True)[1]]
            reserve_key = np.full(len(one_of_each), outside.key_from(reserve_from), dtype=np.int64)
            extra.append((one_of_each, reserve_key))
        if extra:
            job = np.concatenate((job, *(jobs for jobs, _ in extra)))
            key = np.concatenate((key, *(keys for _, keys in extra)))
            order = np.argsort(key, kind="stable")
            job, key = job[order], key[order]
        return job, key

    # --- what a plan may ask for

    def hold_back(self, priority: Ints, order: Order, old: Bools) -> tuple[Ints, Rows]:
        """Priorities with which no outside job loses anything, and no old one of the class its rank.

        Args:
            priority: (n,) what the plan wants.
            order: members in the planned order: the last of it are held back first.
            old: (n,) old members: their rank must not get worse through ties at Slurm's floor.

        Returns:
            (n,) the priorities, some of them lower, none below what Slurm alone gives; and (n,) the position of the
            outside job behind which each of those was put, −1 for the others.
        """
        held, put_behind = priority.copy(), np.full(len(priority), -1, dtype=np.intp)
        outside, members = self.outside, self.members
        at = outside.keys(held, members)
        up, since, until = self.ahead(at)
        if not len(up):
            return held, put_behind
        down, low_since, low_until = self.behind(at)
        moved = np.concatenate((up, down))
        rising, falling = np.arange(len(up)), np.arange(len(up), len(moved))
        groups = self.groups(moved, since, until, np.concatenate((since, until, low_since, low_until)))
        if old.any():
            own, once = np.sort(self.base[0][old]), np.ones(len(moved), dtype=np.int64)
            theirs, all_alike = np.full(len(own), -1), np.zeros(len(moved), dtype=np.intp)
            groups.append(_Group(own, theirs, once, all_alike, np.ones((1, 1), dtype=np.uint8)))
        wanted = ranks_of(order)[up]
        flagged: list[tuple[int, int, int]] = []
        ahead, behind = _Crossing(rising, since, until), _Crossing(falling, low_since, low_until)
        for number, group in enumerate(groups):
            lacking = group.lacking(ahead, behind, 0, len(group.key))
            flagged += [(int(group.key[place]), number, place) for place in lacking]
        # From the front: who is put behind a place no longer crosses what is ahead of it, and nothing else changes.
        for key, number, place in sorted(flagged, reverse=True):
            group = groups[number]
            types, none = group.type_of, len(group.types)
            crossing = np.flatnonzero((since < key) & (key < until))
            crossing = crossing[types[crossing] < none]  # those who rise come first among the moved
            if not len(crossing):
                continue
            left = group.count(behind, key)
            for one in crossing[np.argsort(wanted[crossing])].tolist():
                if group.paired(int(types[one]), int(group.tasks[one]), left):
                    continue
                member = up[one]
                alone = outside.scope.base[members[member]]
                held[member] = max(outside.behind(key, int(members[member])), alone)
                # A job of several priorities counts as raised from its lowest one, but not where Slurm alone has it.
                stays = outside.keys(held[member : member + 1], members[member : member + 1])[0]
                until[one] = stays if held[member] > alone else since[one]
                put_behind[member] = group.job[place]
        return held, put_behind

    def turns(self, current: Ints, target: Ints, changes: Rows) -> list[tuple[int, tuple[int, ...]]]:
        """The order of writing in which no outside job ever loses more than it has lost.

        Args:
            current: (n,) priority that each member has now.
            target: (n,) priority that it shall have.
            changes: members whose priority is written, the most urgent first.

        Returns:
            The same members, each with those that must have been lowered before it; nothing where any order will do.
        """
        raised = changes[target[changes] > current[changes]]
        if not self.crossed(current, target, raised).any():
            return []
        return _Turns(self, current, target, changes.tolist()).order()


class _Turns:
    """Puts each raised job after the jobs that have to be lowered before it, and no more of them than it takes."""

    def __init__(self, border: Border, current: Ints, target: Ints, changes: Sequence[int]) -> None:
        self._border = border
        outside, members = border.outside, border.members
        self._start, self._goal = outside.keys(current, members), outside.keys(target, members)
        self._from, self._to = border.lowest(current), border.lowest(target)
        self._now = self._start.copy()
        self._raised = [member for member in changes if target[member] > current[member]]
        self._lowered = [member for member in changes if target[member] <= current[member]]
        high, low = border.base
        moved = np.flatnonzero((self._start != high) | (self._goal != high))
        self._row = np.full(len(members), -1, dtype=np.intp)
        self._row[moved] = np.arange(len(moved))
        breaks = np.concatenate((self._start[moved], self._goal[moved], low[moved], high[moved]))
        self._groups = border.groups(moved, self._from[self._raised], self._goal[self._raised], breaks)

    def order(self) -> list[tuple[int, tuple[int, ...]]]:
        """The members, and what each rests on."""
        turns: list[tuple[int, tuple[int, ...]]] = []
        sent: list[int] = []
        late: list[int] = []
        for member in self._raised[:EXACT_TURNS]:
            before = self._needed(member, sent)
            if before is None:
                late.append(member)
                continue
            sent += before
            turns += [(other, ()) for other in before]
            turns.append((member, self._rests_on([member], sent)[0]))
        done = set(sent)
        turns += [(member, ()) for member in self._lowered if member not in done]
        late += self._raised[EXACT_TURNS:]
        return turns + list(zip(late, self._rests_on(late, self._lowered), strict=True))

    def _needed(self, member: int, sent: Sequence[int]) -> list[int] | None:
        """Members to be lowered before this one is raised, beside those that have been; None: nothing less than all."""
        self._now[member] = self._goal[member]
        before: list[int] = []
        while (found := self._lacking(member)) is not None:
            group, place = found
            others = np.array(self._lowered, dtype=np.intp)
            others = others[~np.isin(others, [*sent, *before]) & self._make_room(others, group, int(group.key[place]))]
            if not len(others):
                for each in (member, *before):
                    self._now[each] = self._start[each]
                return None
            holds = np.isin(group.type_of[self._row[others]], group.holders(int(group.type_of[self._row[member]])))
            best = int(others[np.lexsort((others, self._goal[others], ~holds))[0]])
            before.append(best)
            self._now[best] = self._goal[best]
        return before

    def _lacking(self, member: int) -> tuple[_Group, int] | None:
        """The first place that this raised member crosses and where those ahead cannot be paired with those behind."""
        up, since, until = self._border.ahead(self._now)
        down, low_since, low_until = self._border.behind(self._now)
        ahead, behind = _Crossing(self._row[up], since, until), _Crossing(self._row[down], low_since, low_until)
        found: tuple[_Group, int] | None = None
        for group in self._groups:
            first, last = (int(group.key.searchsorted(key[member])) for key in (self._from, self._goal))
            if first == last or group.type_of[self._row[member]] == len(group.types):
                continue
            lacking = group.lacking(ahead, behind, first, last)
            if lacking and (found is None or group.key[lacking[-1]] > found[0].key[found[1]]):
                found = group, lacking[-1]
        return found

    def _make_room(self, members: Rows, group: _Group, key: int) -> Bools:
        """Whether lowering each of these leaves one job less ahead of this place, or one more behind it."""
        high, low = (keys[members] for keys in self._border.base)
        start, goal = self._start[members], self._goal[members]
        leaves = (start > high) & (low < key) & (key < start) & ~((goal > high) & (key < goal))
        joins = (goal < low) & (goal < key) & (key < low) & ~((start < low) & (start < key))
        return np.asarray((group.type_of[self._row[members]] < len(group.types)) & (leaves | joins), dtype=np.bool_)

    def _rests_on(self, raised: Sequence[int], lowered: Sequence[int]) -> list[tuple[int, ...]]:
        """Of each raised member those of the lowered ones, in their order, that may have made room for it."""
        rows, members = np.asarray(raised, dtype=np.intp), np.asarray(lowered, dtype=np.intp)
        low, high = self._to[members], self._start[members]
        # Most stretches of the queue that members pass are short: who passes some place is looked for near it.
        by_length = np.argsort(low - high, kind="stable")
        far, near = by_length[:FAR], np.sort(by_length[FAR:])
        near = near[np.argsort(low[near], kind="stable")]
        since, until = self._from[rows], self._goal[rows]
        first = np.searchsorted(low[near], since - int((high - low)[near].max(initial=0)))
        last = np.searchsorted(low[near], until)
        found = []
        for start, end, one, other in zip(since.tolist(), until.tolist(), first.tolist(), last.tolist(), strict=True):
            close = near[one:other]
            passing = np.concatenate((close[high[close] > start], far[(low[far] < end) & (high[far] > start)]))
            found.append(tuple(members[np.sort(passing)].tolist()))
        return found

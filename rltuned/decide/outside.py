"""Permute, never inflate: what the jobs outside of a class may not lose (decision 0110).

The promise: for every job outside of a class and for every set of nodes, the class has no more jobs ahead of it that
could run on these nodes than Slurm alone would have it. A class that exchanges its priorities keeps their multiset, but
not which nodes its jobs can run on: a job that can run where an outside job can may come to stand before it in exchange
for one that cannot.

How it is kept: at the place of an outside job, each class job that rltuned has brought before it needs a class job that
rltuned has brought behind it and that could run on all of these nodes, too (as far as the outside job could). Such a
pairing makes the promise true for every set of nodes at once. Where none is found, the least wanted job stays behind the
outside job.

Only jobs of the same priority tier are compared: between tiers Slurm does not look at priorities. A job in a reservation
stands before all jobs without one. An array counts as many jobs as it has tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.pools import Pools
from rltuned.cluster.tables import Bools, Ints, Snapshot
from rltuned.decide.ranks import Order, ranks_of
from rltuned.decide.scope import Scope

Rows = npt.NDArray[np.intp]

EXACT_TURNS: Final = 64
"""Raised jobs of a class for which the fewest jobs to be lowered first are looked for. A larger number of changes is only
written at once where nothing limits the writes, and there all are lowered before any other is raised."""


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
        """Priority and tie-break of the jobs at these positions as one number: the higher stands ahead.

        Even: there is room for a place between any two of them.
        """
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
    def kinds(self) -> tuple[Rows, Rows, Bools]:
        """Kinds of node sets.

        Returns:
            (P,) the kind of each job: the nodes that it is told to want; (P,) those that it can get: none by way of a
            partition that is down; and (K, A) which groups of nodes, each alike to all jobs, are in each kind.
        """
        jobs, nodes = self.snapshot.jobs, self.pools.nodes.copy()
        codes = np.full(len(nodes), -1, dtype=np.int64)
        codes[self.pools.pool_of] = jobs.partition.codes[self.scope.rows]
        for code, name in enumerate(jobs.partition.names):
            parts = [self.snapshot.partition_by_name.get(part) for part in name.split(",")]
            if any(part is not None and not part.up for part in parts):
                up = np.zeros(nodes.shape[1], dtype=np.bool_)
                for part in parts:
                    if part is not None and part.up:
                        up[part.nodes] = True
                nodes[codes == code] &= up
        kinds, of = _distinct(np.concatenate((self.pools.nodes, nodes)))
        wanted, can_get = np.split(of, 2)
        return wanted[self.pools.pool_of], can_get[self.pools.pool_of], _distinct(kinds.T)[0].T

    @cached_property
    def _places(self) -> tuple[Rows, Ints, Ints]:
        """Job, tier and key of each place that a job has in the queue: one for each priority that its partitions give it.

        A job of three or more partitions may have priorities between its highest and its lowest; `Border` adds those.
        """
        jobs, rows, scope = self.snapshot.jobs, self.scope.rows, self.scope
        tiers = [*(_tiers(self.snapshot, name) for name in jobs.partition.names), []]
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


def _distinct(rows: Bools) -> tuple[Bools, Rows]:
    """The distinct rows of a matrix, and which of them each row is. As one text per row: much faster than by columns."""
    packed = np.packbits(np.column_stack((rows, np.ones(len(rows), dtype=np.bool_))), axis=1)
    text = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, of = np.unique(text, return_index=True, return_inverse=True)
    return rows[first], of.reshape(-1).astype(np.intp)


def _tiers(snapshot: Snapshot, partitions: str) -> list[int]:
    found = [snapshot.partition_by_name.get(name) for name in partitions.split(",")]
    return sorted({part.priority_tier for part in found if part is not None})


@dataclass(frozen=True)
class _Group:
    """The outside jobs of one kind of node set, as far as jobs of the class cross them. L places, T types of class jobs.

    Places between which no class job starts or ends are one place, the lowest of them.
    """

    key: Ints
    """(L,) ascending."""
    job: Rows
    """(L,) the outside job; −1: a job of the class itself."""
    tasks: Ints
    """(m,) how many each moved job of the class counts for."""
    type_of: Rows
    """(m,) type of each moved job: equal node sets, as far as they are the outside jobs'. −1: none in common."""
    nodes: Bools
    """(T, A) node set of each type."""

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """(T,) types whose node sets contain this type's, itself first, then the smallest."""
        size: list[int] = self.nodes.sum(axis=1).tolist()
        found = []
        for own, nodes in enumerate(self.nodes):
            inside = np.flatnonzero(~(nodes & ~self.nodes).any(axis=1))
            found.append((own, *sorted((other for other in inside.tolist() if other != own), key=size.__getitem__)))
        return tuple(found)

    @property
    def by_size(self) -> list[int]:
        """Types, the largest node set first: it has the fewest that contain it."""
        found: list[int] = np.argsort(-self.nodes.sum(axis=1), kind="stable").tolist()
        return found

    def counts(self, moved: Rows, since: Ints, until: Ints) -> Ints:
        """(T, L) how many cross each place: those of the moved jobs, from the key `since` up to `until` each."""
        steps = np.zeros((len(self.nodes) + 1, len(self.key) + 1), dtype=np.int64)
        of, tasks = self.type_of[moved], self.tasks[moved]
        first = np.searchsorted(self.key, since, side="right")
        np.add.at(steps, (of, first), tasks)
        np.add.at(steps, (of, np.maximum(np.searchsorted(self.key, until), first)), -tasks)
        return np.cumsum(steps, axis=1)[:-1, :-1]

    def lacking(self, ahead: Ints, behind: Ints) -> Bools:
        """(L,) places where the (T, L) jobs brought ahead cannot be paired with those brought behind."""
        lacking: Bools = np.asarray((ahead > behind).any(axis=0), dtype=np.bool_)
        places = np.flatnonzero(lacking)
        if len(places) and len(self.nodes) > 1:
            wanted, left = ahead[:, places].copy(), behind[:, places].copy()
            for kind in self.by_size:
                for holder in self.holders[kind]:
                    used = np.minimum(wanted[kind], left[holder])
                    wanted[kind] -= used
                    left[holder] -= used
            lacking[places] = (wanted > 0).any(axis=0)
        return lacking

    def paired(self, kind: int, tasks: int, left: list[int]) -> bool:
        """Take what a job of this type needs out of `left`, the smallest node sets first, or nothing if it is too little."""
        if sum(left[holder] for holder in self.holders[kind]) < tasks:
            return False
        for holder in self.holders[kind]:
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
    """(R,) outside jobs by ascending key."""
    key: Ints
    """(R,)"""

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
        """Members that stand higher than Slurm alone has them; the keys from and to which they do.

        A job with several priorities counts as raised from its lowest one: it is further ahead in every partition.
        """
        high, low = self.base
        rows = np.flatnonzero(at > high)
        return rows, low[rows], at[rows]

    def behind(self, at: Ints) -> tuple[Rows, Ints, Ints]:
        """Members that stand lower than Slurm alone has them, in every partition."""
        low = self.base[1]
        rows = np.flatnonzero(at < low)
        return rows, at[rows], low[rows]

    def crossed(self, since: Ints, until: Ints, of: Rows) -> Bools:
        """Whether these members cross an outside job with nodes in common on their way up.

        Args:
            since: (n,) priorities from which members rise.
            until: (n,) priorities to which they do.
            of: (m,) which of them.
        """
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
            types, of = _distinct(nodes[kinds] & nodes[one])
            shared = types.any(axis=1)
            if shared.any():
                number = np.where(shared, np.cumsum(shared) - 1, -1)[of[of_kind]]
                these = np.flatnonzero(wanted[job] == one)
                groups.append(_Group(key[these], job[these], tasks, number, types[shared]))
        return groups

    def _around(self, since: Ints, until: Ints, breaks: Ints) -> tuple[Rows, Ints]:
        """Outside places between the lowest of `since` and the highest of `until`, by ascending key.

        With them, those that are not read of each job: what the partitions between a job's highest and lowest priority
        give it, and where Slurm begins to keep resources for those ahead.
        """
        if not len(since) or not len(self.key):
            return self.job[:0], self.key[:0]
        lowest, highest = int(since.min()), int(until.max())
        first, last = np.searchsorted(self.key, (lowest, highest))
        job, key = self.job[first:last], self.key[first:last]
        for more, places in (self._between(np.unique(breaks)), self._threshold()):
            if len(more):
                job, key = np.concatenate((job, more)), np.concatenate((key, places))
                order = np.argsort(key, kind="stable")
                job, key = job[order], key[order]
        return job, key

    def _between(self, breaks: Ints) -> tuple[Rows, Ints]:
        """Places just above each of these keys, for outside jobs that have one priority below and another one above it.

        Only of jobs of three or more partitions: those of two have no priority but the highest and the lowest.
        """
        outside, scope = self.outside, self.outside.scope
        column = outside.snapshot.jobs.partition
        many = np.array([name.count(",") >= 2 for name in column.names] + [False], dtype=np.bool_)
        jobs = np.unique(self.job[many[column.codes[scope.rows[self.job]]]])
        jobs = jobs[scope.least[jobs] < scope.base[jobs]]
        if not len(jobs):
            return jobs, np.zeros(0, dtype=np.int64)
        # Jobs that want the same nodes are one: from where the lowest begins to where the highest ends, gaps left out.
        kinds, of = np.unique(outside.kinds[0][jobs], return_inverse=True)
        steps = np.zeros((len(kinds), len(breaks) + 1), dtype=np.int64)
        first = np.searchsorted(breaks, outside.keys(scope.least[jobs], jobs), side="right")
        np.add.at(steps, (of, first), 1)
        np.add.at(steps, (of, np.maximum(np.searchsorted(breaks, outside.keys(scope.base[jobs], jobs)), first)), -1)
        kind, at = np.nonzero(np.cumsum(steps, axis=1)[:, :-1] > 0)
        return jobs[np.unique(of, return_index=True)[1]][kind], breaks[at] + 1

    def _threshold(self) -> tuple[Rows, Ints]:
        """The place from which on Slurm keeps resources, for each kind of outside job that stands behind it."""
        outside, reserve_from = self.outside, self.outside.snapshot.reserve_from
        without = self.job[outside.scope.base[self.job] < reserve_from]
        jobs = without[np.unique(outside.kinds[0][without], return_index=True)[1]]
        return jobs, np.full(len(jobs), outside.key_from(reserve_from), dtype=np.int64)

    # --- what a plan may ask for

    def hold_back(self, priority: Ints, order: Order, old: Bools) -> tuple[Ints, Rows]:
        """Priorities with which no outside job loses anything, and no old one of the class its rank.

        Args:
            priority: (n,) what the plan wants.
            order: members in the planned order: the last of it are held back first.
            old: (n,) members behind whose own places no more of the class may come than Slurm alone would put there. Their
                ranks allow for that already, but at Slurm's floor ties turn jobs round.

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
            groups.append(
                _Group(
                    own,
                    np.full(len(own), -1),
                    once,
                    np.zeros(len(moved), dtype=np.intp),
                    np.ones((1, 1), dtype=np.bool_),
                )
            )
        wanted = ranks_of(order)[up]
        flagged: list[tuple[int, int, int]] = []
        behind: list[Ints] = []
        for number, group in enumerate(groups):
            behind.append(group.counts(falling, low_since, low_until))
            lacking = np.flatnonzero(group.lacking(group.counts(rising, since, until), behind[-1]))
            flagged += [(int(group.key[place]), number, int(place)) for place in lacking]
        # From the front: who is put behind a place no longer crosses what is ahead of it, and nothing else changes.
        for key, number, place in sorted(flagged, reverse=True):
            group = groups[number]
            types = group.type_of[rising]
            crossing = np.flatnonzero((since < key) & (key < until) & (types >= 0))
            left = behind[number][:, place].tolist()
            for one in crossing[np.argsort(wanted[crossing])].tolist():
                if group.paired(int(types[one]), int(group.tasks[one]), left):
                    continue
                member = up[one]
                held[member] = outside.behind(key, int(members[member]))
                until[one] = outside.keys(held[member : member + 1], members[member : member + 1])[0]
                put_behind[member] = group.job[place]
        return held, put_behind

    def turns(self, current: Ints, target: Ints, changes: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """The order in which changes may be written: whatever part of it is, no outside job loses more than it has lost.

        Args:
            current: (n,) priority that each member has now.
            target: (n,) priority that it shall have.
            changes: members whose priority is written, the most urgent first.

        Returns:
            The same members in the order of writing; each with the members that must have been lowered before it.
        """
        raised = np.array([member for member in changes if target[member] > current[member]], dtype=np.intp)
        if not self.crossed(current, target, raised).any():
            return [(member, ()) for member in changes]
        return _Turns(self, current, target, changes).order()


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
            turns.append((member, self._rests_on(member, sent)))
        done = set(sent)
        turns += [(member, ()) for member in self._lowered if member not in done]
        return turns + [(member, self._rests_on(member, self._lowered)) for member in late + self._raised[EXACT_TURNS:]]

    def _needed(self, member: int, sent: Sequence[int]) -> list[int] | None:
        """Members to be lowered before this one is raised, beside those that have been; None: nothing less than all."""
        self._now[member] = self._goal[member]
        before: list[int] = []
        while (found := self._lacking(member)) is not None:
            group, place = found
            holders = group.holders[group.type_of[self._row[member]]]
            best: tuple[bool, int, int] | None = None
            for other in self._lowered:
                if other not in sent and other not in before and self._makes_room(other, group, int(group.key[place])):
                    rank = (group.type_of[self._row[other]] not in holders, int(self._goal[other]), other)
                    best = rank if best is None else min(best, rank)
            if best is None:
                for each in (member, *before):
                    self._now[each] = self._start[each]
                return None
            before.append(best[2])
            self._now[best[2]] = self._goal[best[2]]
        return before

    def _lacking(self, member: int) -> tuple[_Group, int] | None:
        """The first place that this raised member crosses and where those ahead cannot be paired with those behind."""
        up, since, until = self._border.ahead(self._now)
        down, low_since, low_until = self._border.behind(self._now)
        found: tuple[_Group, int] | None = None
        for group in self._groups:
            first, last = np.searchsorted(group.key, (self._from[member], self._goal[member]))
            if first == last or group.type_of[self._row[member]] < 0:
                continue
            ahead = group.counts(self._row[up], since, until)
            behind = group.counts(self._row[down], low_since, low_until)
            lacking = np.flatnonzero(group.lacking(ahead[:, first:last], behind[:, first:last]))
            if len(lacking) and (found is None or group.key[first + lacking[-1]] > found[0].key[found[1]]):
                found = group, int(first + lacking[-1])
        return found

    def _makes_room(self, member: int, group: _Group, key: int) -> bool:
        """Whether lowering this member leaves one job less ahead of this place, or one more behind it."""
        high, low = (int(keys[member]) for keys in self._border.base)
        start, goal = int(self._start[member]), int(self._goal[member])
        leaves = start > high and low < key < start and not (goal > high and key < goal)
        joins = goal < low and goal < key < low and not (start < low and start < key)
        return group.type_of[self._row[member]] >= 0 and (leaves or joins)

    def _rests_on(self, member: int, lowered: Sequence[int]) -> tuple[int, ...]:
        """Those of the lowered members that may have made room for it."""
        since, until = self._from[member], self._goal[member]
        return tuple(other for other in lowered if self._to[other] < until and since < self._start[other])

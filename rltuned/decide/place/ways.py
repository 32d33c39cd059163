"""From a problem to columns: job classes, node classes, and a handful of ways for each job class.

A way names concrete nodes only where it shares them. Nodes that it takes whole it takes from a *class* of equal nodes
(a token each): which of them is settled after solving, so equal idle nodes cost one row instead of one each.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Floats, Ints, Rows
from rltuned.decide.place.outcome import PlacementKind
from rltuned.decide.place.problem import PlacementProblem

WASTE: Final = 0.1
"""Most that spread pays, per GPU of the job, for GPUs of its nodes that nobody else can use meanwhile."""
CONTENTION: Final = 0.1
"""Most that a way pays, per GPU, for CPU or memory pressure of running co-tenants."""
EXTRA_NODES: Final = 0.05  # most that a way pays, per GPU, for using more nodes than the job needs
ISOLATION: Final = 0.02
"""What spread pays per GPU: OverSubscribe=NO cannot be taken back (decision 0020), so it must gain something."""
CROWDING: Final = 0.1
"""Cost of crowding by planned jobs, per GPU of the node and share of its CPUs or memory above `CROWD`."""
CROWD: Final = 0.75
"""Share of a node's CPUs, or memory, that planned jobs may take together before each more of it costs."""
ALTERNATIVES: Final = 3  # nodes per job class offered beside those of the greedy passes

COLUMN_BUDGET: Final = 1024
"""Columns that GLPK solves in time; many different jobs get fewer alternatives each (decision 0020)."""
IDLE_CLASSES: Final = 32
"""Classes of idle nodes looked at for whole-node ways, the largest first; real clusters have a few."""

_Parts = tuple[tuple[int, int], ...]


class Pattern(NamedTuple):
    """One way of one job class."""

    job_class: int
    kind: PlacementKind
    gpu_type: int
    parts: _Parts = ()  # row of each shared node, and the GPUs from it
    tokens: _Parts = ()  # node class of each node taken whole, and the GPUs from it


_Found = tuple[float, Pattern] | None  # what a search found, and its cost


@dataclass(frozen=True)
class Classes:
    """Equal requests and equal nodes. C job classes, N node classes."""

    job_of: Rows  # (K,) class of each job
    jobs: tuple[Rows, ...]  # rows of each job class, in rank order
    node_of: Rows  # (M,) class of each node
    nodes: tuple[Rows, ...]  # rows of each node class, ascending

    @cached_property
    def first_job(self) -> Rows:
        """(C,) the best-ranked job of each class."""
        return np.array([rows[0] for rows in self.jobs], dtype=np.intp)

    @cached_property
    def first_node(self) -> Rows:
        """(N,)"""
        return np.array([rows[0] for rows in self.nodes], dtype=np.intp)


def _group(keys: Sequence[Hashable]) -> tuple[Rows, tuple[Rows, ...]]:
    """Equal rows: the group of each, and the rows of each group; groups in order of first appearance."""
    rows: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    of, groups = np.empty(len(keys), dtype=np.intp), tuple(np.array(group, dtype=np.intp) for group in rows.values())
    for number, group in enumerate(groups):
        of[group] = number
    return of, groups


def classify(problem: PlacementProblem) -> Classes:
    """Group equal requests (all columns but the weight) and equal nodes (all capacities and who may use them)."""
    p = problem
    requests = (p.nodes, p.gpus, p.gpus_per_node, p.gpu_type, p.cpus, p.mem, p.tmp, p.exclusive)
    eligible = [row.tobytes() for row in p.eligible]
    job_of, jobs = _group(list(zip(*(column.tolist() for column in requests), eligible, strict=True)))
    users = [column.tobytes() for column in p.eligible[[rows[0] for rows in jobs]].T]
    capacities = np.column_stack((p.free, p.total, p.idle))
    node_of, nodes = _group(list(zip(map(tuple, capacities.tolist()), users, strict=True)))
    return Classes(job_of, jobs, node_of, nodes)


@dataclass(frozen=True)
class WayColumns:
    """All ways on offer: P patterns with what they take and what they cost. D = T + 3 dimensions."""

    patterns: tuple[Pattern, ...]
    job_class: Rows  # (P,)
    part_pattern: Rows
    part_node: Rows
    part_use: Floats
    """One row per shared node of a pattern: which pattern, which node, (·, D) what it takes."""
    token_pattern: Rows
    token_class: Rows  # one row per whole node of a pattern
    cost: Floats  # (P,) sum of the penalties: waste, contention, extra nodes, isolation


@dataclass(frozen=True)
class WaySet:
    """What the model is built from: the ways, and the greedy choice among them."""

    problem: PlacementProblem
    classes: Classes
    columns: WayColumns
    greedy: Rows  # (K,) pattern that the greedy pass in rank order gives each job, −1 none


def pressure(problem: PlacementProblem) -> Floats:
    """(M,) how hard running jobs press on each node: 0 while they hold at most half of its CPUs and of its memory,
    1 when they hold all of either.
    """
    held = 1.0 - problem.free[:, -3:-1] / np.maximum(problem.total[:, -2:], 1.0)
    return np.asarray(np.clip(2.0 * held.max(axis=1) - 1.0, 0.0, 1.0))


def best_fit(free: Floats) -> Floats:
    """(n,) order in which best fit takes nodes: fewest free GPUs, then fewest free CPUs. `free` is (D, n)."""
    types = len(free) - 3
    key = free[types] * 1e-3
    for column in range(types):
        key += free[column]
    return np.asarray(key)


class _Cluster:
    """Capacity that is left while a greedy pass places jobs: at first all that is free. Mutable; lives for one pass."""

    def __init__(self, problem: PlacementProblem, classes: Classes) -> None:
        self.avail = problem.free.T.copy()
        """(D, M)"""
        self.untouched = np.ones(len(problem.free), dtype=np.bool_)
        self._idle = problem.idle
        self._classes = classes

    def tokens(self, node_class: int) -> Rows:
        """Nodes of the class that can still be taken whole."""
        rows = self._classes.nodes[node_class]
        return rows[self.untouched[rows]] if self._idle[rows[0]] else rows[:0]

    def take(self, pattern: Pattern, finder: "_Enumerator") -> None:
        for node, gpus in pattern.parts:
            self.avail[:, node] -= finder.use(pattern.job_class, pattern.gpu_type, gpus)
            self.untouched[node] = False
        for node_class, _ in pattern.tokens:
            # From the end: shared ways prefer low rows, so that the two rarely want the same node.
            node = self.tokens(node_class)[-1]
            self.avail[:, node] = -1.0
            self.untouched[node] = False


class _Enumerator:
    """Finds ways for one job class on a given state of the cluster."""

    def __init__(self, problem: PlacementProblem, classes: Classes) -> None:
        self.p = problem
        self.classes = classes
        self.types = problem.types
        self.pressure = pressure(problem)
        first = classes.first_job
        self.nodes = problem.nodes[first].tolist()
        self.gpus = problem.gpus[first].tolist()
        self.per_node = problem.gpus_per_node[first].tolist()
        self.cpus = problem.cpus[first].tolist()
        self.mem = problem.mem[first].tolist()
        self.tmp = problem.tmp[first].tolist()
        self.exclusive = problem.exclusive[first].tolist()
        self.eligible = problem.eligible[first]
        self.size = problem.size[first].tolist()
        self.class_gpus = problem.node_sizes[classes.first_node].tolist()
        free = problem.free[:, : self.types].sum(axis=1)
        self.class_free = free[classes.first_node].tolist()
        """Free GPUs on each node of a class."""
        self.scarcity = min(1.0, float(problem.gpus.sum()) / max(float(free.sum()), 1.0))
        sizes = np.array([len(rows) for rows in classes.nodes])
        largest = np.argsort(-sizes, kind="stable")
        self._idle = largest[problem.idle[classes.first_node[largest]]][:IDLE_CLASSES]
        self.types_of = [self._types_of(c) for c in range(len(self.gpus))]
        self._uses: dict[tuple[int, int, int], Floats] = {}

    def _types_of(self, c: int) -> tuple[int, ...]:
        """GPU types that may serve a class: some eligible node has enough of them; (−1,) for a job without GPUs."""
        if self.gpus[c] == 0:
            return (-1,)
        enough = (self.p.total_gpus[self.eligible[c]] >= max(self.per_node[c], 1)).any(axis=0)
        wanted = self.p.gpu_type[self.classes.first_job[c]]
        return tuple(t for t in np.flatnonzero(enough).tolist() if wanted in {-1, t})

    def equal(self, c: int) -> bool:
        """Whether every node of the job takes the same: a fixed number per node, no GPUs, or one node's worth."""
        return bool(self.per_node[c] > 0 or self.gpus[c] == 0)

    def chooses_whole(self, pattern: Pattern) -> bool:
        """Whether a pattern takes whole nodes for a job that need not."""
        return pattern.kind is PlacementKind.SPREAD and not self.exclusive[pattern.job_class]

    def use(self, c: int, gpu_type: int, gpus: int) -> Floats:
        """(D,) what class `c` takes from a node that gives it `gpus` GPUs; CPUs and memory in proportion."""
        key = (c, gpu_type, gpus)
        found = self._uses.get(key)
        if found is None:
            found = np.zeros(self.types + 3)
            if gpu_type >= 0:
                found[gpu_type] = gpus
            found[self.types : self.types + 2] = self.p.share(self.classes.first_job[c], gpus)
            found[self.types + 2] = self.tmp[c]
            self._uses[key] = found
        return found

    # -- shared nodes

    def _fits(self, c: int, use: Floats, avail: Floats) -> Rows:
        """Nodes that have `use` left. Only the dimensions that the job uses are compared."""
        mask = self.eligible[c]
        for dimension, amount in enumerate(use.tolist()):
            if amount > 0:
                mask = mask & (avail[dimension] >= amount)
        return np.asarray(mask.nonzero()[0], dtype=np.intp)

    def _best(self, c: int, t: int, avail: Floats) -> _Found:
        """Best fit: the nodes with the least left, where each gives the same; how much that is."""
        count = self.nodes[c] if self.equal(c) else 1
        gpus = self.per_node[c] or self.gpus[c]
        nodes = self._fits(c, self.use(c, t, gpus), avail)
        if len(nodes) < count:
            return None
        left = best_fit(avail[:, nodes])
        if count == 1:  # nearly every call: no whole order is needed
            at = int(left.argmin())
            return float(left[at]), Pattern(c, PlacementKind.PACK, t, ((int(nodes[at]), gpus),))
        order = np.argsort(left, kind="stable")[:count]
        parts = tuple((node, gpus) for node in np.sort(nodes[order]).tolist())
        return float(left[order].sum()), Pattern(c, PlacementKind.PACK, t, parts)

    def pack(self, c: int, cluster: _Cluster) -> Pattern | None:
        """Best fit next to others; None where it does not fit or must not share."""
        if self.exclusive[c]:
            return None
        found = None
        if self.equal(c) or self.nodes[c] == 1:
            found = _least(self._best(c, t, cluster.avail) for t in self.types_of[c])
        if found is None and not self.equal(c):
            found = _least(self._split(c, t, cluster.avail) for t in self.types_of[c])
        return found

    def _most(self, c: int, t: int, free: Floats) -> Ints:
        """(n,) GPUs that the job could take from each node, its CPUs and memory going along. `free` is (D, n)."""
        total, cpus, mem = self.gpus[c], free[self.types], free[self.types + 1]
        most = np.minimum(free[t], total)
        most = np.minimum(most, np.floor(cpus * (total / self.cpus[c]) + 1e-9))
        if self.mem[c] > 0:
            most = np.minimum(most, np.floor(mem * (total / self.mem[c]) + 1e-9))
        # A node must give one CPU even to the smallest share.
        return np.where((free[self.types + 2] >= self.tmp[c]) & (cpus >= 1), np.maximum(most, 0), 0).astype(np.int64)

    def _parts(self, c: int, most: Sequence[int] | Ints) -> list[int] | None:
        """GPUs from each of the first nodes of an order, of which each can give `most`: as few nodes as possible, the
        first ones to the full, at least one GPU each; None where the nodes do not suffice.
        """
        least, total = self.nodes[c], self.gpus[c]
        if self.equal(c):
            return [self.per_node[c]] * least if len(most) >= least else None
        count = max(int(np.searchsorted(np.cumsum(most), total)) + 1, least)
        if count > len(most) or least > total:
            return None
        rest = total - count
        gpus = []
        for limit in most[:count]:
            more = min(int(limit) - 1, rest)
            gpus.append(1 + more)
            rest -= more
        return gpus

    def _split(self, c: int, t: int, avail: Floats) -> _Found:
        """A total over as few nodes as possible: the fullest shares first, the rest where it fits best; how many."""
        most = np.where(self.eligible[c], self._most(c, t, avail), 0)
        order = np.argsort(-most, kind="stable")
        order = order[most[order] > 0]
        gpus = self._parts(c, most[order])
        if gpus is None:
            return None
        fitting = order[len(gpus) - 1 :]
        fitting = fitting[most[fitting] >= gpus[-1]]
        nodes = [*order[: len(gpus) - 1].tolist(), int(fitting[np.argmin(most[fitting])])]
        return len(nodes), Pattern(c, PlacementKind.PACK, t, tuple(sorted(zip(nodes, gpus, strict=True))))

    # -- whole nodes

    def _whole(self, c: int, t: int, cluster: _Cluster) -> list[tuple[int, int, int]]:
        """Idle node classes that can host a part of the job: (GPUs a node can give, nodes left, class)."""
        first = self.classes.first_node[self._idle]
        free = self.p.free[first].T
        hosts = self.eligible[c, first]
        if self.equal(c):
            gives = np.full(len(first), self.per_node[c], dtype=np.int64)
            hosts &= (free >= self.use(c, t, self.per_node[c])[:, None]).all(axis=0)
        else:
            gives = self._most(c, t, free)
            hosts &= gives > 0
        found = []
        for at in np.flatnonzero(hosts).tolist():
            n = int(self._idle[at])
            left = len(cluster.tokens(n))
            if left > 0:
                found.append((int(gives[at]), left, n))
        return found

    def spread(self, c: int, cluster: _Cluster) -> Pattern | None:
        """Idle nodes for itself: as few as possible, and those on which least is left unused."""
        return _least(self._on_whole_nodes(c, t, cluster) for t in self.types_of[c])

    def _on_whole_nodes(self, c: int, t: int, cluster: _Cluster) -> _Found:
        """Whole nodes of a type, those that can give the most and are the smallest first; and their GPUs."""
        classes = sorted(self._whole(c, t, cluster), key=lambda found: (-found[0], self.class_gpus[found[2]], found[2]))
        # More nodes of a class than GPUs, or than nodes, are never taken.
        enough = max(self.nodes[c], self.gpus[c])
        order = [(gives, n) for gives, left, n in classes for _ in range(min(left, enough))]
        gpus = self._parts(c, [gives for gives, _ in order])
        if gpus is None:
            return None
        tokens = tuple((n, taken) for (_, n), taken in zip(order[: len(gpus)], gpus, strict=True))
        return sum(self.class_gpus[n] for n, _ in tokens), Pattern(c, PlacementKind.SPREAD, t, tokens=tokens)


def _least(found: Iterable[_Found]) -> Pattern | None:
    """The first of those that cost least."""
    best = min((one for one in found if one is not None), key=lambda one: one[0], default=None)
    return None if best is None else best[1]


def _greedy(finder: _Enumerator, order: Iterable[int]) -> list[Pattern | None]:
    """Place the jobs one after the other by best fit. One pattern (or None) per job."""
    cluster = _Cluster(finder.p, finder.classes)
    full = [False] * len(finder.nodes)
    result: list[Pattern | None] = [None] * len(finder.p)
    for k in order:
        c = int(finder.classes.job_of[k])
        if full[c]:  # capacity only shrinks during a pass
            continue
        pattern = finder.pack(c, cluster)
        if pattern is None and finder.exclusive[c]:
            pattern = finder.spread(c, cluster)
        if pattern is not None:
            cluster.take(pattern, finder)
            result[k] = pattern
        full[c] = pattern is None
    return result


def _by_class(finder: _Enumerator) -> list[Pattern | None]:
    """Ways of each class on the cluster as it is, nobody else of the queue being there."""
    every = range(len(finder.nodes))
    single = [
        (c, t) for c in every if finder.nodes[c] == 1 and not finder.exclusive[c] for t in finder.types_of[c]
    ]  # fmt: skip
    cluster = _Cluster(finder.p, finder.classes)
    found: list[Pattern | None] = list(_best_nodes(finder, single))
    idle = bool(finder.p.idle.any())
    for c in every:
        if finder.nodes[c] > 1:
            found.append(finder.pack(c, cluster))
        if idle:
            found.append(finder.spread(c, cluster))
    return found


def _best_nodes(finder: _Enumerator, single: list[tuple[int, int]]) -> list[Pattern]:
    """The cheapest nodes for each (job class, GPU type) that needs one node: all classes at once."""
    if not single:
        return []
    free = finder.p.free
    offers = max(1, min(ALTERNATIVES, COLUMN_BUDGET // (4 * len(finder.nodes))))
    gpus = [finder.per_node[c] or finder.gpus[c] for c, _ in single]
    uses = np.stack([finder.use(c, t, g) for (c, t), g in zip(single, gpus, strict=True)])
    fits = finder.eligible[[c for c, _ in single]]
    for dimension in np.flatnonzero(uses.any(axis=0)):
        fits &= (free[:, dimension] >= uses[:, dimension, None]) | (uses[:, dimension, None] == 0)
    left = best_fit(free.T)
    keys = np.where(fits, left, np.inf)
    count = min(2 * offers, len(free))
    short = np.sort(np.argpartition(keys, count - 1, axis=1)[:, :count], axis=1)
    found: list[Pattern] = []
    scores = np.where(np.take_along_axis(fits, short, axis=1), CONTENTION * finder.pressure[short], np.inf)
    scores += 1e-6 * left[short]
    order = np.argsort(scores, axis=1, kind="stable")[:, :offers]
    for row, (c, t) in enumerate(single):
        nodes = short[row, order[row]][np.isfinite(scores[row, order[row]])].tolist()
        found += [Pattern(c, PlacementKind.PACK, t, ((node, gpus[row]),)) for node in nodes]
    return found


def enumerate_ways(problem: PlacementProblem) -> WaySet:
    """The ways on offer for each job class, with penalties, and the greedy choice among them.

    Two greedy passes (rank order; largest job first) make ways that go together; for each class come the best nodes
    on the cluster as it is, and spread.
    """
    finder = _Enumerator(problem, classify(problem))
    ranked = _greedy(finder, range(len(problem)))
    largest = _greedy(finder, np.argsort(-problem.size, kind="stable").tolist())
    found = dict.fromkeys(p for p in (*ranked, *largest, *_by_class(finder)) if p is not None)
    patterns = _worthwhile(finder, {pattern: _cost(finder, pattern) for pattern in found})
    index = {pattern: j for j, pattern in enumerate(patterns)}
    return WaySet(
        problem=problem,
        classes=finder.classes,
        columns=_columns(finder, patterns),
        greedy=np.array([-1 if p is None else index[p] for p in ranked], dtype=np.intp),
    )


def _cost(finder: _Enumerator, pattern: Pattern) -> float:
    """The sum of a pattern's penalties."""
    c, spots = pattern.job_class, len(pattern.parts) + len(pattern.tokens)
    size, total = finder.size[c], finder.gpus[c]

    def share(gpus: int) -> float:
        return float(size * (gpus / total if total else 1.0 / spots))

    waste = tenants = 0.0
    for n, gpus in pattern.tokens:
        # Of a node taken whole nobody can use the rest; that counts where the queue asks for as many GPUs as are free.
        rest = (finder.class_free[n] - gpus) / finder.class_gpus[n]
        waste += finder.scarcity * share(gpus) * rest
    for node, gpus in pattern.parts:
        tenants += share(gpus) * float(finder.pressure[node])
    isolation = ISOLATION * size if finder.chooses_whole(pattern) else 0.0
    more_nodes = EXTRA_NODES * size * (1.0 - finder.nodes[c] / spots)
    return float(WASTE * waste + CONTENTION * tenants + more_nodes + isolation)


def _worthwhile(finder: _Enumerator, cost: Mapping[Pattern, float]) -> dict[Pattern, float]:
    """Leave out spread where sharing is cheaper however crowded the shared node gets by planned jobs.

    Unless every shared node is full, no better solution is lost; the fewer whole-node ways, the tighter the relaxation.
    """
    shared, crowding = [math.inf] * len(finder.nodes), [0.0] * len(finder.nodes)
    for pattern, penalties in cost.items():
        c = pattern.job_class
        if not finder.chooses_whole(pattern):
            shared[c] = min(shared[c], penalties)
        for node, gpus in pattern.parts:
            use, total = finder.use(c, pattern.gpu_type, gpus)[-3:-1], np.maximum(finder.p.total[node, -2:], 1.0)
            crowding[c] = max(crowding[c], float((use / total).max() * finder.p.node_sizes[node]))
    # What crowding a job can bring about, itself or by joining: its share of a node, as far as it may lie above CROWD.
    most = (1.0 - CROWD) * float(finder.p.node_sizes.max(initial=1.0))
    least = [cheapest + CROWDING * min(own, most) for cheapest, own in zip(shared, crowding, strict=True)]
    return {
        pattern: penalties
        for pattern, penalties in cost.items()
        if not finder.chooses_whole(pattern) or penalties < least[pattern.job_class]
    }


def _columns(finder: _Enumerator, cost: Mapping[Pattern, float]) -> WayColumns:
    parts = [(j, node) for j, p in enumerate(cost) for node, _ in p.parts]
    tokens = [(j, n) for j, p in enumerate(cost) for n, _ in p.tokens]
    uses = [finder.use(p.job_class, p.gpu_type, gpus) for p in cost for _, gpus in p.parts]
    part_pattern, part_node = np.array(parts, dtype=np.intp).reshape(-1, 2).T
    token_pattern, token_class = np.array(tokens, dtype=np.intp).reshape(-1, 2).T
    return WayColumns(
        patterns=tuple(cost),
        job_class=np.array([p.job_class for p in cost], dtype=np.intp),
        part_pattern=part_pattern,
        part_node=part_node,
        part_use=np.array(uses, dtype=np.float64).reshape(-1, finder.types + 3),
        token_pattern=token_pattern,
        token_class=token_class,
        cost=np.array(list(cost.values()), dtype=np.float64),
    )

"""From a problem to columns: job classes, node classes, and a handful of ways for each job class.

A way names concrete nodes only where it shares them. Nodes that it takes whole it takes from a *class* of equal nodes
(a token each): which of them is settled after solving, so equal idle nodes cost one row instead of one each.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Floats
from rltuned.placement.base import Kind, PlacementProblem
from rltuned.placement.fragmentation import Demand, demand_mix

FRAGMENTATION: Final = 0.1
"""Most that a way pays, per GPU of the job, for fragmenting its nodes."""
CONTENTION: Final = 0.1
"""Most that a way pays, per GPU, for CPU or memory pressure of running co-tenants."""
EXTRA_NODES: Final = 0.05
"""Most that a way pays, per GPU, for using more nodes than the job needs."""
ISOLATION: Final = 0.02
"""What spread pays per GPU: OverSubscribe=NO cannot be taken back (docs/placement.md), so it must gain something."""
CROWDING: Final = 0.1
"""Cost of crowding by planned jobs, per GPU of the node and share of its CPUs or memory above `CROWD`."""
CROWD: Final = 0.75
"""Share of a node's CPUs, or memory, that planned jobs may take together before each more of it costs."""
ALTERNATIVES: Final = 3
"""Nodes per job class offered beside those of the greedy passes."""

COLUMN_BUDGET: Final = 1024
"""Columns that GLPK solves in time; many different jobs get fewer alternatives each (docs/placement.md)."""


class Pattern(NamedTuple):
    """One way of one job class."""

    job_class: int
    kind: Kind
    gpu_type: int
    places: tuple[int, ...]
    """Rows of the nodes that it shares; of nodes taken whole (SPREAD) their node classes, a token each."""
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Classes:
    """Equal requests and equal nodes. C job classes, N node classes."""

    job_of: npt.NDArray[np.intp]
    """(K,) class of each job."""
    jobs: tuple[npt.NDArray[np.intp], ...]
    """Rows of each job class, in rank order."""
    node_of: npt.NDArray[np.intp]
    """(M,) class of each node."""
    nodes: tuple[npt.NDArray[np.intp], ...]
    """Rows of each node class, ascending."""

    @cached_property
    def first_job(self) -> npt.NDArray[np.intp]:
        """(C,) the best-ranked job of each class."""
        return np.array([rows[0] for rows in self.jobs], dtype=np.intp)

    @cached_property
    def first_node(self) -> npt.NDArray[np.intp]:
        """(N,)"""
        return np.array([rows[0] for rows in self.nodes], dtype=np.intp)


def _group(columns: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.intp], tuple[npt.NDArray[np.intp], ...]]:
    """Equal rows: the group of each, and the rows of each group; groups in order of first appearance."""
    index: dict[bytes, int] = {}
    of = np.array([index.setdefault(row.tobytes(), len(index)) for row in columns], dtype=np.intp)
    order = np.argsort(of, kind="stable")
    cuts = np.flatnonzero(np.diff(of[order])) + 1
    return of, tuple(np.split(order, cuts)) if len(of) else ()


def _bytes(*columns: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    rows = [np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1) for column in columns]
    return np.ascontiguousarray(np.concatenate(rows, axis=1))


def classify(problem: PlacementProblem) -> Classes:
    """Group equal requests (all columns but the weight) and equal nodes (all capacities and who may use them)."""
    requests = np.stack(
        [
            problem.nodes, problem.gpus, problem.gpus_per_node, problem.gpu_type,
            problem.cpus, problem.mem, problem.tmp, problem.exclusive,
        ],
        axis=1,
    ).astype(np.float64) + 0.0  # fmt: skip
    job_of, jobs = _group(_bytes(requests, np.packbits(problem.eligible, axis=1)))
    first = [rows[0] for rows in jobs]
    node_of, nodes = _group(
        _bytes(
            problem.free + 0.0,
            problem.idle,
            problem.total_gpus,
            problem.total_cpus,
            problem.total_mem + 0.0,
            np.packbits(problem.eligible[first].T, axis=1),
        )
    )
    return Classes(job_of, jobs, node_of, nodes)


@dataclass(frozen=True)
class Columns:
    """All ways on offer: P patterns with what they take and what they cost. D = T + 3 dimensions."""

    patterns: tuple[Pattern, ...]
    job_class: npt.NDArray[np.intp]
    """(P,)"""
    part_pattern: npt.NDArray[np.intp]
    part_node: npt.NDArray[np.intp]
    part_use: Floats
    """One row per shared node of a pattern: which pattern, which node, (·, D) what it takes."""
    token_pattern: npt.NDArray[np.intp]
    token_class: npt.NDArray[np.intp]
    """One row per whole node of a pattern."""
    cost: Floats
    """(P,) sum of the penalties."""


@dataclass(frozen=True)
class WaySet:
    """What the model is built from: the ways, and the greedy choice among them."""

    problem: PlacementProblem
    classes: Classes
    columns: Columns
    greedy: npt.NDArray[np.intp]
    """(K,) pattern that the greedy pass in rank order gives each job, −1 none."""


def pressure(problem: PlacementProblem) -> Floats:
    """(M,) how hard running jobs press on each node: 0 while they hold at most half of its CPUs and of its memory,
    1 when they hold all of either.
    """
    cpus = 1.0 - problem.free_cpus / np.maximum(problem.total_cpus, 1)
    mem = 1.0 - problem.free_mem / np.maximum(problem.total_mem, 1.0)
    return np.clip(2.0 * np.maximum(cpus, mem) - 1.0, 0.0, 1.0)


def best_fit(free: Floats) -> Floats:
    """(n,) order in which best fit takes nodes: fewest free GPUs, then fewest free CPUs. `free` is (D, n)."""
    types = len(free) - 3
    key = free[types] * 1e-3
    for column in range(types):
        key += free[column]
    return np.asarray(key)


class _Cluster:
    """Capacity that is left while a greedy pass places jobs. Mutable; lives for one pass."""

    def __init__(self, problem: PlacementProblem, classes: Classes) -> None:
        self.avail = problem.free.T.copy()
        """(D, M)"""
        self.alone = problem.idle.copy()
        """(M,) nodes that can still be taken whole."""
        self._classes = classes

    def take(self, pattern: Pattern, uses: list[Floats]) -> None:
        for place, use in zip(pattern.places, uses, strict=True):
            if pattern.kind is Kind.PACK:
                node = place
                self.avail[:, node] -= use
            else:
                # From the end: shared ways prefer low rows, so that the two rarely want the same node.
                rows = self._classes.nodes[place]
                node = int(rows[self.alone[rows]][-1])
                self.avail[:, node] = -1.0
            self.alone[node] = False


class _Enumerator:
    """Finds ways for one job class on a given state of the cluster."""

    def __init__(self, problem: PlacementProblem, classes: Classes, demand: Demand) -> None:
        self.p = problem
        self.classes = classes
        self.demand = demand
        self.types = problem.free_gpus.shape[1]
        self.pressure = pressure(problem)
        first = classes.first_job
        self.nodes = problem.nodes[first].tolist()
        self.gpus = problem.gpus[first].tolist()
        self.per_node = problem.gpus_per_node[first].tolist()
        self.type = problem.gpu_type[first].tolist()
        self.cpus = problem.cpus[first].tolist()
        self.mem = problem.mem[first].tolist()
        self.tmp = problem.tmp[first].tolist()
        self.exclusive = problem.exclusive[first].tolist()
        self.eligible = problem.eligible[first]
        self.node_gpus = np.maximum(problem.total_gpus.sum(axis=1), 1).astype(np.float64)
        # Types that some eligible node has enough of; (−1,) for a job without GPUs.
        part = np.where(np.array(self.per_node) > 0, self.per_node, np.minimum(self.gpus, 1))
        has = [
            (eligible[:, None] & (problem.total_gpus >= least)).any(axis=0)
            for eligible, least in zip(self.eligible, part.tolist(), strict=True)
        ]
        self.gpu_types = [
            (
                (-1,)
                if g == 0
                else tuple(t for t in (range(self.types) if wanted < 0 else (wanted,)) if t < self.types and some[t])
            )
            for g, wanted, some in zip(self.gpus, self.type, has, strict=True)
        ]
        self._uses: dict[tuple[int, int, int], Floats] = {}

    def equal(self, c: int) -> bool:
        """Whether every node of the job takes the same: a fixed number per node, no GPUs, or one node's worth."""
        return bool(self.per_node[c] > 0 or self.gpus[c] == 0)

    def use(self, c: int, gpu_type: int, gpus: int) -> Floats:
        """(D,) what class `c` takes from a node that gives it `gpus` GPUs; CPUs and memory in proportion."""
        key = (c, gpu_type, gpus)
        found = self._uses.get(key)
        if found is None:
            found = np.zeros(self.types + 3)
            if gpu_type >= 0:
                found[gpu_type] = gpus
            if self.equal(c):
                found[self.types] = -(-self.cpus[c] // self.nodes[c])
                found[self.types + 1] = self.mem[c] / self.nodes[c]
            else:
                found[self.types] = max(1, -(-self.cpus[c] * gpus // self.gpus[c]))
                found[self.types + 1] = self.mem[c] * gpus / self.gpus[c]
            found[self.types + 2] = self.tmp[c]
            self._uses[key] = found
        return found

    def uses(self, pattern: Pattern) -> list[Floats]:
        return [self.use(pattern.job_class, pattern.gpu_type, gpus) for gpus in pattern.gpus]

    def _best(self, use: Floats, count: int, avail: Floats, among: Bools) -> tuple[float, npt.NDArray[np.intp]] | None:
        """Best fit: of the nodes `among` the `count` with the least left, ascending, and how much that is."""
        # Only the dimensions that the job uses are compared.
        for dimension in np.flatnonzero(use).tolist():
            among = among & (avail[dimension] >= use[dimension])
        nodes = np.flatnonzero(among)
        if len(nodes) < count:
            return None
        left = best_fit(avail[:, nodes])
        order = np.argsort(left, kind="stable")[:count]
        return float(left[order].sum()), np.sort(nodes[order])

    def pack(self, c: int, avail: Floats) -> Pattern | None:
        """Best fit next to others; None where it does not fit or must not share."""
        if self.exclusive[c] or (best := self._find(c, avail, self.eligible[c])) is None:
            return None
        gpu_type, nodes, gpus = best
        return Pattern(c, Kind.PACK, gpu_type, tuple(nodes.tolist()), tuple(gpus))

    def spread(self, c: int, avail: Floats, alone: Bools) -> Pattern | None:
        """Nodes for itself, of those (M,) that can be taken whole: as few as possible, with the least left unused."""
        if (best := self._find(c, avail, self.eligible[c] & alone)) is None:
            return None
        gpu_type, nodes, gpus = best
        tokens = sorted(zip(self.classes.node_of[nodes].tolist(), gpus, strict=True))
        return Pattern(c, Kind.SPREAD, gpu_type, tuple(n for n, _ in tokens), tuple(g for _, g in tokens))

    def _find(self, c: int, avail: Floats, among: Bools) -> tuple[int, npt.NDArray[np.intp], list[int]] | None:
        """GPU type, nodes and GPUs from each, on the nodes `among` by best fit; one node before several."""
        best: tuple[float, int, npt.NDArray[np.intp], list[int]] | None = None
        if self.equal(c) or self.nodes[c] == 1:
            count, gpus = self.nodes[c], self.per_node[c] or self.gpus[c]
            for t in self.gpu_types[c]:
                found = self._best(self.use(c, t, gpus), count, avail, among)
                if found is not None and (best is None or found[0] < best[0]):
                    best = (found[0], t, found[1], [gpus] * count)
        if best is None and not self.equal(c):
            for t in self.gpu_types[c]:
                split = self._split(c, t, avail, among)
                if split is not None and (best is None or len(split[0]) < len(best[2])):
                    best = (0.0, t, *split)
        return best and best[1:]

    def _most(self, c: int, t: int, free: Floats) -> npt.NDArray[np.int64]:
        """(n,) GPUs that the job could take from each node, its CPUs and memory going along. `free` is (D, n)."""
        total, cpus, mem = self.gpus[c], free[self.types], free[self.types + 1]
        most = np.minimum(free[t], total)
        most = np.minimum(most, np.floor(cpus * (total / self.cpus[c]) + 1e-9))
        if self.mem[c] > 0:
            most = np.minimum(most, np.floor(mem * (total / self.mem[c]) + 1e-9))
        # A node must give one CPU even to the smallest share.
        return np.where((free[self.types + 2] >= self.tmp[c]) & (cpus >= 1), np.maximum(most, 0), 0).astype(np.int64)

    def _split(self, c: int, t: int, avail: Floats, among: Bools) -> tuple[npt.NDArray[np.intp], list[int]] | None:
        """A total over as few nodes as possible: the fullest shares first, the rest where it fits best."""
        most = np.where(among, self._most(c, t, avail), 0)
        order = np.argsort(-most, kind="stable")
        order = order[most[order] > 0]
        least, total = self.nodes[c], self.gpus[c]
        if len(order) < least or least > total:
            return None
        reach = np.cumsum(most[order])
        enough = int(np.searchsorted(reach, total)) + 1
        if enough > len(order):
            return None
        count = max(enough, least)
        chosen = order[:count]
        gpus = _fill(most[chosen], total)
        rest = gpus[-1]
        fitting = order[count - 1 :][most[order[count - 1 :]] >= rest]
        last = fitting[np.argmin(most[fitting])]
        nodes = np.concatenate((chosen[:-1], [last]))
        by_row = np.argsort(nodes)
        return nodes[by_row], [gpus[i] for i in by_row]


def _fill(most: npt.NDArray[np.int64], total: int) -> list[int]:
    """Split `total` over all nodes of `most`: at least one each, the first ones to the full."""
    rest = total - len(most)
    gpus = []
    for limit in most.tolist():
        more = min(limit - 1, rest)
        gpus.append(1 + more)
        rest -= more
    return gpus


def _greedy(finder: _Enumerator, order: npt.NDArray[np.intp]) -> list[Pattern | None]:
    """Place the jobs one after the other by best fit. One pattern (or None) per job."""
    problem, classes = finder.p, finder.classes
    cluster = _Cluster(problem, classes)
    full = [False] * len(classes.jobs)
    result: list[Pattern | None] = [None] * len(problem)
    for k in order.tolist():
        c = int(classes.job_of[k])
        if full[c]:  # capacity only shrinks during a pass
            continue
        pattern = (
            finder.spread(c, cluster.avail, cluster.alone) if finder.exclusive[c] else finder.pack(c, cluster.avail)
        )
        if pattern is not None:
            cluster.take(pattern, finder.uses(pattern))
            result[k] = pattern
        full[c] = pattern is None
    return result


def _best_nodes(finder: _Enumerator) -> list[Pattern]:
    """The cheapest nodes for each (job class, GPU type) that needs one node: all classes at once."""
    alone = [c for c, nodes in enumerate(finder.nodes) if nodes == 1 and not finder.exclusive[c]]
    single = [(c, t) for c in alone for t in finder.gpu_types[c]]
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
    flat = short.ravel()
    before = free[flat]
    after = before - np.repeat(uses, count, axis=0)
    growth = (finder.demand.fragments(after) - finder.demand.fragments(before)) / finder.node_gpus[flat]
    scores = FRAGMENTATION * finder.demand.scarcity * growth + CONTENTION * finder.pressure[flat]
    scores = np.where(fits[np.repeat(np.arange(len(single)), count), flat], scores + 1e-6 * left[flat], np.inf)
    order = np.argsort(scores.reshape(-1, count), axis=1, kind="stable")[:, :offers]
    for row, (c, t) in enumerate(single):
        for at in order[row]:
            if np.isfinite(scores[row * count + at]):
                node = int(short[row, at])
                found.append(Pattern(c, Kind.PACK, t, (node,), (gpus[row],)))
    return found


def enumerate_ways(problem: PlacementProblem) -> WaySet:
    """The ways on offer for each job class, with penalties, and the greedy choice among them.

    Two greedy passes (rank order; largest job first) make ways that go together; for each class come the best nodes
    on the cluster as it is, and spread.
    """
    classes = classify(problem)
    finder = _Enumerator(problem, classes, demand_mix(problem))
    ranked = _greedy(finder, np.arange(len(problem)))
    found = [*ranked, *_greedy(finder, np.argsort(-problem.size, kind="stable")), *_best_nodes(finder)]
    for c in range(len(classes.jobs)):
        if finder.nodes[c] > 1:
            found.append(finder.pack(c, problem.free.T))
        if problem.idle.any():
            found.append(finder.spread(c, problem.free.T, problem.idle))
    index: dict[Pattern, int] = {}
    for pattern in found:
        if pattern is not None:
            index.setdefault(pattern, len(index))
    greedy = np.array([-1 if pattern is None else index[pattern] for pattern in ranked], dtype=np.intp)
    return WaySet(problem, classes, _columns(finder, tuple(index)), greedy)


def _columns(finder: _Enumerator, patterns: tuple[Pattern, ...]) -> Columns:
    problem, classes = finder.p, finder.classes
    count = len(patterns)
    job_class = np.array([p.job_class for p in patterns], dtype=np.intp)
    shared = [(j, p) for j, p in enumerate(patterns) if p.kind is Kind.PACK]
    whole = [(j, p) for j, p in enumerate(patterns) if p.kind is Kind.SPREAD]
    part_pattern, part_node, part_use = _places(finder, shared)
    token_pattern, token_class, token_use = _places(finder, whole)

    size = problem.size[classes.first_job][job_class]
    spots = np.array([len(p.places) for p in patterns], dtype=np.float64)
    gpus = problem.gpus[classes.first_job][job_class]

    def share(pattern: npt.NDArray[np.intp], use: Floats) -> Floats:
        taken = use[:, : finder.types].sum(axis=1)
        return np.asarray(
            size[pattern] * np.where(gpus[pattern] > 0, taken / np.maximum(gpus[pattern], 1), 1 / spots[pattern])
        )

    before = problem.free[part_node]
    fragments = finder.demand.fragments(before - part_use) - finder.demand.fragments(before)
    fragments /= finder.node_gpus[part_node]
    part_share = share(part_pattern, part_use)
    first = classes.first_node[token_class]
    free = problem.free[first]
    # Of a node taken whole nobody can use the rest.
    rest = (free - token_use)[:, : finder.types].sum(axis=1) - finder.demand.fragments(free)
    token_share = share(token_pattern, token_use)
    growth = np.zeros(count)
    np.add.at(growth, part_pattern, part_share * fragments)
    np.add.at(growth, token_pattern, token_share * rest / finder.node_gpus[first])
    tenants = np.zeros(count)
    np.add.at(tenants, part_pattern, part_share * finder.pressure[part_node])
    least = problem.nodes[classes.first_job][job_class]
    chosen = np.array([p.kind is Kind.SPREAD and not finder.exclusive[p.job_class] for p in patterns], dtype=np.bool_)
    return Columns(
        patterns=patterns,
        job_class=job_class,
        part_pattern=part_pattern,
        part_node=part_node,
        part_use=part_use,
        token_pattern=token_pattern,
        token_class=token_class,
        cost=FRAGMENTATION * finder.demand.scarcity * growth
        + CONTENTION * tenants
        + EXTRA_NODES * size * (1.0 - least / np.maximum(spots, 1.0))
        + np.where(chosen, ISOLATION * size, 0.0),
    )


def _places(
    finder: _Enumerator, patterns: list[tuple[int, Pattern]]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats]:
    """One row for each place of the patterns: which pattern, which place, (·, D) what it takes there."""
    uses = [use for _, pattern in patterns for use in finder.uses(pattern)]
    return (
        np.array([j for j, pattern in patterns for _ in pattern.places], dtype=np.intp),
        np.array([place for _, pattern in patterns for place in pattern.places], dtype=np.intp),
        np.stack(uses) if uses else np.zeros((0, finder.types + 3)),
    )

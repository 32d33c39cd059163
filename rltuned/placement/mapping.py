"""From counts of patterns back to jobs and nodes, what a choice is worth, and the proof that it can be carried out."""

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.placement.base import Kind, Placement, PlacementProblem, Way
from rltuned.placement.model import node_sizes
from rltuned.placement.ways import CROWD, CROWDING, WaySet


def choose(ways: WaySet, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """(K,) pattern of each job, −1 none: the best-ranked jobs of a class get one."""
    chosen = np.full(len(ways.problem), -1, dtype=np.intp)
    columns = ways.columns
    used = np.flatnonzero(counts > 0)
    order = used[np.lexsort((used, columns.job_class[used]))]
    repeated = np.repeat(order, counts[order])
    classes = columns.job_class[repeated]
    for c in np.unique(classes).tolist():
        mine = repeated[classes == c]
        chosen[ways.classes.jobs[c][: len(mine)]] = mine
    return chosen


def crowding(ways: WaySet, chosen: npt.NDArray[np.intp]) -> Floats:
    """(M,) what each node's crowding by planned jobs costs."""
    columns, problem = ways.columns, ways.problem
    depth = problem.free.shape[1]
    counts = np.bincount(chosen[chosen >= 0], minlength=len(columns.patterns))[columns.part_pattern]
    totals = np.maximum(np.stack([problem.total_cpus, problem.total_mem], axis=1), 1.0)
    share = np.zeros_like(totals)
    np.add.at(share, columns.part_node, columns.part_use[:, depth - 3 : depth - 1] * counts[:, None])
    over = np.maximum((share / totals).max(axis=1, initial=0.0) - CROWD, 0.0)
    return np.asarray(CROWDING * node_sizes(problem) * over)


def worth(ways: WaySet, chosen: npt.NDArray[np.intp]) -> float:
    """The objective of a choice, straight from its definition (docs/placement.md), job by job."""
    columns, problem = ways.columns, ways.problem
    jobs = np.flatnonzero(chosen >= 0)
    pattern = chosen[jobs]
    value = problem.weight[jobs] * problem.size[jobs]
    return float((value - columns.cost[pattern]).sum() - crowding(ways, chosen).sum())


def concrete(ways: WaySet, chosen: npt.NDArray[np.intp]) -> tuple[Way, ...]:
    """Name the nodes: shared ones are named already, whole ones come from the end of their class, best rank first."""
    columns, classes, problem = ways.columns, ways.classes, ways.problem
    taken = np.zeros(len(problem.free), dtype=np.bool_)
    counts = np.bincount(chosen[chosen >= 0], minlength=len(columns.patterns))
    taken[columns.part_node[counts[columns.part_pattern] > 0]] = True
    left = {
        n: [int(row) for row in classes.nodes[n] if not taken[row]] for n in np.unique(columns.token_class).tolist()
    }
    extra = crowding(ways, chosen)
    tenants = np.bincount(columns.part_node, counts[columns.part_pattern], minlength=len(taken))
    result = []
    for k in np.flatnonzero(chosen >= 0).tolist():
        j = int(chosen[k])
        pattern = columns.patterns[j]
        spots = [(node, gpus, False) for node, gpus in zip(pattern.nodes, pattern.gpus, strict=True)]
        spots += [(left[n].pop(), gpus, True) for n, gpus in zip(pattern.tokens, pattern.token_gpus, strict=True)]
        spots.sort()
        shares = [per_node(problem, k, gpus) for _, gpus, _ in spots]
        crowd = sum(float(extra[node] / tenants[node]) for node in pattern.nodes)
        result.append(
            Way(
                job=k,
                kind=pattern.kind,
                nodes=tuple(node for node, _, _ in spots),
                gpus=tuple(gpus for _, gpus, _ in spots),
                gpu_type=pattern.gpu_type,
                cpus=tuple(cpus for cpus, _ in shares),
                mem=tuple(mem for _, mem in shares),
                whole=tuple(whole for _, _, whole in spots),
                value=float(problem.weight[k] * problem.size[k]),
                fragmentation=float(columns.fragmentation[j]),
                contention=float(columns.contention[j]) + crowd,
                extra_nodes=float(columns.extra_nodes[j]),
                isolation=float(columns.isolation[j]),
            )
        )
    return tuple(result)


def per_node(problem: PlacementProblem, job: int, gpus: int) -> tuple[int, float]:
    """CPUs and MiB that a job takes from a node which gives it `gpus` GPUs: even where its nodes are equal, else in
    proportion to the GPUs; CPUs rounded up.
    """
    cpus, mem = int(problem.cpus[job]), float(problem.mem[job])
    if problem.gpus_per_node[job] > 0 or problem.gpus[job] == 0:
        nodes = int(problem.nodes[job])
        return -(-cpus // nodes), mem / nodes
    total = int(problem.gpus[job])
    return max(1, -(-cpus * gpus // total)), mem * gpus / total


def verify(problem: PlacementProblem, placement: Placement) -> tuple[str, ...]:
    """Check a placement node by node against the problem alone; the violations in words.

    Knows nothing of patterns, classes or the model: every job at most once, enough nodes, right GPUs of one right
    type, eligible nodes, no capacity exceeded, nodes taken whole idle and never joined.
    """
    found: list[str] = []
    nodes, types = problem.free_gpus.shape
    used = np.zeros((nodes, types + 3))
    tenants = np.zeros(nodes, dtype=np.int64)
    whole = np.zeros(nodes, dtype=np.int64)
    seen: set[int] = set()
    for way in placement.ways:
        k, where = way.job, np.array(way.nodes, dtype=np.intp)
        found += _verify_way(problem, way)
        if k in seen:
            found.append(f"job {k} is placed twice")
        seen.add(k)
        tenants[where] += 1
        whole[where] += np.array(way.whole, dtype=np.int64)
        if way.gpu_type >= 0:
            used[where, way.gpu_type] += way.gpus
        used[where, types] += way.cpus
        used[where, types + 1] += way.mem
        used[where, types + 2] += problem.tmp[k]
    for node, dimension in np.argwhere(used > problem.free * (1 + 1e-9) + 1e-6).tolist():
        found.append(f"node {node} gives more than it has in dimension {dimension}")
    found += [
        f"node {node} is whole for one job and has others"
        for node in np.flatnonzero((whole > 0) & (tenants > 1)).tolist()
    ]
    return tuple(found)


def _verify_way(problem: PlacementProblem, way: Way) -> list[str]:
    k, types = way.job, problem.free_gpus.shape[1]
    gpus, fixed = int(problem.gpus[k]), int(problem.gpus_per_node[k])
    where = np.array(way.nodes, dtype=np.intp)
    asked = int(problem.gpu_type[k])
    whole = np.array(way.whole, dtype=np.bool_)
    checks = {
        "names a node twice or out of order": list(way.nodes) != sorted(set(way.nodes)),
        "has too few nodes": len(way.nodes) < problem.nodes[k],
        "has more nodes than it asked for": (fixed > 0 or gpus == 0) and len(way.nodes) != problem.nodes[k],
        "has the wrong number of GPUs": sum(way.gpus) != gpus,
        "has the wrong number of GPUs on a node": fixed > 0 and set(way.gpus) != {fixed},
        "has a node without a GPU": gpus > 0 and min(way.gpus, default=0) < 1,
        "has the wrong GPU type": (way.gpu_type != asked and asked >= 0 and gpus > 0) or not -1 <= way.gpu_type < types,
        "has GPUs of no type": gpus > 0 and way.gpu_type < 0,
        "has too few CPUs": sum(way.cpus) < problem.cpus[k],
        "has too little memory": sum(way.mem) < problem.mem[k] * (1 - 1e-9) - 1e-6,
        "is on a node that it may not use": not problem.eligible[k, where].all(),
        "shares a node that it must have for itself": bool(problem.exclusive[k]) and not all(way.whole),
        "spreads onto shared nodes": way.kind is Kind.SPREAD and not all(way.whole),
        "takes a node whole that is not idle": not problem.idle[where[whole]].all(),
    }
    return [f"job {k} {text}" for text, wrong in checks.items() if wrong]

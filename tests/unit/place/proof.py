"""The proof that a placement can be carried out."""

import numpy as np

from rltuned.decide.place.outcome import PlacementKind
from rltuned.decide.place.problem import Placement, PlacementProblem, Way


def verify(problem: PlacementProblem, placement: Placement) -> tuple[str, ...]:
    """Check a placement node by node against the problem alone; the violations in words.

    Knows nothing of patterns, classes or the model: every job at most once, enough nodes, right GPUs of one right
    type, eligible nodes, no capacity exceeded, nodes taken whole idle and never joined.
    """
    found: list[str] = []
    nodes, types = problem.total_gpus.shape
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
        whole[where] += way.kind is PlacementKind.SPREAD
        if way.gpu_type >= 0:
            used[where, way.gpu_type] += way.gpus
        used[where, types : types + 2] += np.array([problem.share(k, gpus) for gpus in way.gpus]).reshape(-1, 2)
        used[where, types + 2] += problem.tmp[k]
    for node, dimension in np.argwhere(used > problem.free * (1 + 1e-9) + 1e-6).tolist():
        found.append(f"node {node} gives more than it has in dimension {dimension}")
    found += [
        f"node {node} is whole for one job and has others"
        for node in np.flatnonzero((whole > 0) & (tenants > 1)).tolist()
    ]
    return tuple(found)


def _verify_way(problem: PlacementProblem, way: Way) -> list[str]:
    k, types = way.job, problem.types
    gpus, fixed = int(problem.gpus[k]), int(problem.gpus_per_node[k])
    where = np.array(way.nodes, dtype=np.intp)
    asked = int(problem.gpu_type[k])
    whole = way.kind is PlacementKind.SPREAD
    shares = [problem.share(k, taken) for taken in way.gpus]
    checks = {
        "names a node twice or out of order": list(way.nodes) != sorted(set(way.nodes)),
        "has too few nodes": len(way.nodes) < problem.nodes[k],
        "has more nodes than it asked for": (fixed > 0 or gpus == 0) and len(way.nodes) != problem.nodes[k],
        "has the wrong number of GPUs": sum(way.gpus) != gpus,
        "has the wrong number of GPUs on a node": fixed > 0 and set(way.gpus) != {fixed},
        "has a node without a GPU": gpus > 0 and min(way.gpus, default=0) < 1,
        "has the wrong GPU type": (way.gpu_type != asked and asked >= 0 and gpus > 0) or not -1 <= way.gpu_type < types,
        "has GPUs of no type": gpus > 0 and way.gpu_type < 0,
        "has too few CPUs": sum(cpus for cpus, _ in shares) < problem.cpus[k],
        "has too little memory": sum(mem for _, mem in shares) < problem.mem[k] * (1 - 1e-9) - 1e-6,
        "is on a node that it may not use": not problem.eligible[k, where].all(),
        "shares a node that it must have for itself": bool(problem.exclusive[k]) and not whole,
        "takes a node whole that is not idle": whole and not problem.idle[where].all(),
    }
    return [f"job {k} {text}" for text, wrong in checks.items() if wrong]

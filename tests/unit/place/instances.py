"""Random placement problems for the tests of this package: small, crowded, of every shape a queue shows."""

import numpy as np

from rltuned.decide.place.problem import PlacementProblem


def random_problem(
    rng: np.random.Generator, jobs: int, nodes: int, *, types: int = 2, distinct: bool | None = None
) -> PlacementProblem:
    """K jobs on M nodes of up to 8 GPUs each; about half of the nodes busy."""
    distinct = bool(rng.random() < 0.5) if distinct is None else distinct
    per_node = int(rng.choice([2, 4, 8]))
    total_gpus = np.zeros((nodes, types), dtype=np.int32)
    node_type = rng.integers(0, types, nodes)
    total_gpus[np.arange(nodes), node_type] = rng.choice([per_node, per_node, per_node, 0], nodes)
    total_cpus = np.full(nodes, 8 * per_node, dtype=np.int32)
    total_mem = np.full(nodes, 1000.0 * per_node)
    busy = rng.random(nodes) < rng.random()
    held_gpus = np.where(busy[:, None], rng.integers(0, total_gpus + 1), 0)
    held_cpus = np.where(busy, rng.integers(1, total_cpus + 1), 0)
    held_mem = np.where(busy, rng.integers(1, total_mem.astype(int) + 1), 0).astype(np.float64)
    total = np.column_stack((total_gpus, total_cpus, total_mem)).astype(np.float64)
    held = np.column_stack((held_gpus, held_cpus, held_mem))
    several = rng.random(jobs) < 0.25
    count = np.where(several, rng.integers(2, 4, jobs), 1)
    fixed = np.where(rng.random(jobs) < 0.4, rng.choice([1, 2, per_node], jobs), 0)
    gpus = np.where(fixed > 0, count * fixed, rng.choice([0, 1, 1, 2, per_node, 2 * per_node], jobs))
    share = rng.integers(1, 9, jobs) if distinct else np.full(jobs, 4)
    return PlacementProblem(
        weight=np.sort(rng.uniform(0.5, 1.0, jobs))[::-1].copy(),
        nodes=count.astype(np.int32),
        gpus=gpus.astype(np.int32),
        gpus_per_node=fixed.astype(np.int32),
        gpu_type=np.where(gpus > 0, rng.choice([-1, -1, *range(types)], jobs), -1).astype(np.int32),
        cpus=np.maximum(count, np.maximum(gpus, 1) * share).astype(np.int32),
        mem=np.maximum(gpus, 1) * (rng.integers(0, 1001, jobs) if distinct else np.full(jobs, 500)).astype(np.float64),
        tmp=rng.choice([0.0, 0.0, 0.0, 60.0], jobs),
        exclusive=rng.random(jobs) < 0.1,
        eligible=(rng.random((jobs, nodes)) < 0.8) | (rng.random((jobs, 1)) < 0.5),
        free=np.column_stack((total - held, rng.choice([0.0, 100.0], nodes))),
        total=total,
        idle=~busy,
    )

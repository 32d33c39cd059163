"""Random placement problems for the tests of this package: small, crowded, of every shape a queue shows."""

import numpy as np

from rltuned.placement.base import PlacementProblem


def random_problem(
    rng: np.random.Generator, jobs: int, nodes: int, *, slots: int = 2, types: int = 2, distinct: bool | None = None
) -> PlacementProblem:
    """K jobs on M nodes of up to 8 GPUs each; about half of the nodes busy, some of them released at later slots."""
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
    free_gpus = np.zeros((slots, nodes, types), dtype=np.int32)
    free_cpus = np.zeros((slots, nodes), dtype=np.int32)
    free_mem, idle = np.zeros((slots, nodes)), np.zeros((slots, nodes), dtype=np.bool_)
    for slot in range(slots):
        if slot > 0:
            released = rng.random(nodes) < 0.4
            part = rng.choice([0.0, 0.5], nodes)
            held_gpus = np.where(released[:, None], np.floor(held_gpus * part[:, None]), held_gpus)
            held_cpus = np.where(released, np.floor(held_cpus * part), held_cpus)
            held_mem = np.where(released, held_mem * part, held_mem)
        free_gpus[slot] = total_gpus - held_gpus
        free_cpus[slot] = total_cpus - held_cpus
        free_mem[slot] = total_mem - held_mem
        idle[slot] = (held_gpus.sum(axis=1) == 0) & (held_cpus == 0) & (held_mem == 0)
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
        slot_time=np.arange(slots) * 600.0,
        free_gpus=free_gpus,
        free_cpus=free_cpus,
        free_mem=free_mem,
        free_tmp=np.repeat(rng.choice([0.0, 100.0], nodes)[None, :], slots, axis=0),
        idle=idle,
        total_gpus=total_gpus,
        total_cpus=total_cpus,
        total_mem=total_mem,
    )

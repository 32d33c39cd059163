"""Generated queue states: whole snapshots of invented clusters, for tests.

They differ as real sites do: node types and sizes, partitions, load, fragmentation, CPU jobs, array-like repeats of one
request, time limits as people write them, run-time estimates that are good, bad or absent. Nothing is taken from a
trace, so every trace stays unseen.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.tables import Codes, Floats, NodeTable, Partition, Snapshot
from rltuned.simulate.workload.simulated_estimates import written_limit

_LONGEST_LIMIT: Final = 30 * 86400.0
_NOW: Final = 1_700_000_000.0
_TYPES: Final = ("k80", "m40", "p100", "v100", "a100", "h100")


@dataclass(frozen=True)
class QueueSettings:
    """From which distributions a state is drawn. Pairs are the ends of a range, drawn anew for each state."""

    jobs: tuple[int, int] = (2, 256)  # pending jobs, log-uniform
    pools: tuple[int, int] = (1, 4)  # kinds of node
    nodes: tuple[int, int] = (1, 40)  # nodes of a kind, log-uniform
    load: tuple[float, float] = (0.0, 1.0)  # share of the GPUs that running jobs hold
    run_time: tuple[float, float] = (300.0, 40_000.0)  # median run time, seconds, log-uniform
    run_time_spread: tuple[float, float] = (0.4, 2.5)  # σ of ln(run time)
    estimate_error: tuple[float, float] = (0.0, 2.0)  # σ of ln(estimate / run time)
    limit_only: float = 0.3
    """Share of the states in which no job has an estimate and ranking goes by the limit."""
    cpu_jobs: tuple[float, float] = (0.0, 0.5)  # share of the jobs that ask for no GPU
    repeats: tuple[float, float] = (0.0, 0.5)
    """Share of the jobs that are copies of another one, as array tasks are."""
    wait: tuple[float, float] = (60.0, 3e5)  # mean wait so far, seconds, log-uniform


UNSEEN: Final = QueueSettings(
    jobs=(40, 256),
    pools=(1, 6),
    nodes=(8, 120),
    load=(0.6, 1.0),
    run_time=(60.0, 200_000.0),
    run_time_spread=(0.8, 3.0),
    estimate_error=(0.5, 1.5),
    limit_only=0.5,
    cpu_jobs=(0.0, 0.8),
    repeats=(0.0, 0.3),
    wait=(10.0, 2e6),
)
"""Another parametrisation: larger and fuller clusters."""


def generate(rng: np.random.Generator, settings: QueueSettings) -> tuple[Snapshot, Floats]:
    """One snapshot, and (N,) run-time estimates of its jobs in seconds, NaN where there is none.

    Its first rows are running jobs, the rest is pending; the order of the pending ones is random.
    """
    nodes, kind, per_node = _cluster(rng, settings)
    running_nodes, running_gpus, running_type, nodes = _run_jobs(rng, nodes, kind, per_node, settings)
    pending = _log_uniform_int(rng, settings.jobs)
    kinds = len(per_node)
    # A job belongs to one kind of node and asks for its partition, most of the time also for its type.
    home = rng.integers(kinds, size=pending)
    size = per_node[home]
    wants_cpu = (rng.random(pending) < rng.uniform(*settings.cpu_jobs)) | (size == 0)
    gpus = np.where(wants_cpu, 0, 2 ** rng.binomial(6, rng.uniform(0.05, 0.5), size=pending))
    gpus = np.where(rng.random(pending) < 0.05, np.minimum(gpus * 3, 48), gpus)
    in_home = np.bincount(kind, minlength=kinds)[home] * size
    gpus = np.minimum(gpus, np.maximum(in_home, 0)).astype(np.int32)
    count = np.maximum(1, -(-gpus // np.maximum(size, 1))).astype(np.int32)
    divisible = rng.random(pending) < 0.3
    gpus_per_node = np.where(divisible | (gpus == 0), 0, -(-gpus // count)).astype(np.int32)
    gpus = np.where(gpus_per_node > 0, gpus_per_node * count, gpus).astype(np.int32)
    count = np.where(divisible, 1, count).astype(np.int32)
    cpus = np.where(wants_cpu, 2 ** rng.integers(0, 6, size=pending), gpus * rng.choice((1, 2, 4, 8), size=pending))
    mem = np.where(rng.random(pending) < 0.1, np.nan, np.maximum(cpus, 1) * rng.choice((1e3, 4e3, 8e3), size=pending))

    median = _log_uniform(rng, settings.run_time)
    run_time = np.maximum(median * np.exp(rng.uniform(*settings.run_time_spread) * rng.standard_normal(pending)), 10.0)
    limit = _written_limit(run_time * np.exp(np.abs(1.2 * rng.standard_normal(pending))))
    limit[rng.random(pending) < 0.02] = np.inf
    if rng.random() < settings.limit_only:
        estimate = np.full(pending, np.nan)
    else:
        estimate = run_time * np.exp(rng.uniform(*settings.estimate_error) * rng.standard_normal(pending))
        estimate[rng.random(pending) < 0.1] = np.nan
    submit = _NOW - np.floor(rng.exponential(_log_uniform(rng, settings.wait), size=pending))
    eligible = np.where(rng.random(pending) < 0.1, submit + (_NOW - submit) * rng.random(pending), submit)
    original = np.arange(pending)
    copies = rng.random(pending) < rng.uniform(*settings.repeats)
    original[copies] = rng.integers(pending, size=int(copies.sum()))

    running = len(running_nodes)
    held_for = rng.exponential(_log_uniform(rng, settings.run_time), size=running)
    running_limit = _written_limit(held_for * np.exp(np.abs(rng.standard_normal(running))) + 60.0)
    typed = np.where(rng.random(pending) < 0.7, home, -1)
    start = _NOW - held_for
    asked_type = np.where(gpus > 0, typed, -1)
    # −1, any type, has no name.
    type_names = np.array([*nodes.gpu_types, ""])
    jobs = job_table(
        running + pending,
        held_nodes=[*running_nodes, *([()] * pending)],
        state=np.repeat((JobState.RUNNING, JobState.PENDING), (running, pending)),
        submit_time=np.concatenate((start, submit)),
        eligible_time=np.concatenate((start, eligible)),
        start_time=np.concatenate((start, np.full(pending, np.nan))),
        end_time=np.concatenate((start + running_limit, np.full(pending, np.nan))),
        time_limit=np.concatenate((running_limit, limit[original])),
        nodes=np.concatenate(([len(held) for held in running_nodes], count[original])),
        gpus=np.concatenate((running_gpus, gpus[original])),
        gpus_per_node=np.concatenate((np.zeros(running), gpus_per_node[original])),
        gpu_type=type_names[np.concatenate((running_type, asked_type[original]))].tolist(),
        partition=[f"part{index}" for index in np.concatenate((running_type, home[original]))],
        cpus=np.concatenate((np.maximum(running_gpus, 1), np.maximum(cpus, 1)[original])),
        mem=np.concatenate((np.full(running, 1e3), mem[original])),
        priority=np.concatenate((np.zeros(running), rng.integers(1, 100_000, size=pending))),
    )
    partitions = tuple(
        Partition(f"part{index}", np.flatnonzero(kind == index).astype(np.int32), True, 1, OverSubscribe.NO, 1, np.inf)
        for index in range(kinds)
    )
    snapshot = Snapshot(_NOW, (24, 11), jobs, nodes, partitions)
    return snapshot, np.concatenate((np.full(running, np.nan), estimate[original]))


def _cluster(rng: np.random.Generator, settings: QueueSettings) -> tuple[NodeTable, Codes, Codes]:
    """Idle nodes; the kind of each node; GPUs per node of each kind. Kind i has GPU type i, or no GPUs."""
    kinds = int(rng.integers(settings.pools[0], settings.pools[1] + 1))
    counts = [_log_uniform_int(rng, settings.nodes) for _ in range(kinds)]
    per_node = rng.choice(np.array((1, 2, 4, 8), dtype=np.int32), size=kinds)
    if kinds > 1 and rng.random() < 0.3:
        per_node[-1] = 0
    kind = np.repeat(np.arange(kinds, dtype=np.int32), counts)
    gpus = np.zeros((len(kind), kinds), dtype=np.int32)
    gpus[np.arange(len(kind)), kind] = per_node[kind]
    cpus = np.maximum(per_node[kind], 4) * rng.choice((4, 8, 16), size=kinds)[kind]
    nodes = node_table(
        [f"n{row}" for row in range(len(kind))],
        _TYPES[:kinds],
        gpus,
        cpus=cpus,
        mem=cpus * 8e3,
        usable=rng.random(len(kind)) > rng.choice((0.0, 0.05)),
    )
    return nodes, kind, per_node


def _run_jobs(
    rng: np.random.Generator, nodes: NodeTable, kind: Codes, per_node: Codes, settings: QueueSettings
) -> tuple[list[list[int]], Codes, Codes, NodeTable]:
    """Fill the nodes with running jobs: nodes of each, GPUs of each, kind of each, and the nodes with less free."""
    load = rng.uniform(*settings.load)
    scattered = rng.random()
    cpus_alloc, gpus_alloc = nodes.cpus_alloc.copy(), nodes.gpus_alloc.copy()
    held: list[list[int]] = []
    gpus: list[int] = []
    kinds: list[int] = []
    for node in range(len(nodes)):
        size = int(per_node[kind[node]])
        # Scattered: each node carries the load. Packed: some nodes carry all of theirs, the others nothing.
        share = load if rng.random() < scattered else float(rng.random() < load)
        target = int(rng.binomial(size, share)) if 0 < share < 1 else round(size * share)
        while target > 0:
            taken = min(target, 2 ** int(rng.integers(0, 4)))
            target -= taken
            gpus_alloc[node, kind[node]] += taken
            cpus_alloc[node] += min(taken * int(rng.integers(1, 5)), int(nodes.cpus[node] - cpus_alloc[node]))
            # Whole nodes next to each other are sometimes one job.
            joins = taken == size and held and gpus[-1] == size * len(held[-1]) and kinds[-1] == kind[node]
            if joins and rng.random() < 0.3:
                held[-1].append(node)
                gpus[-1] += taken
                continue
            held.append([node])
            gpus.append(taken)
            kinds.append(int(kind[node]))
    mem_alloc = np.asarray(cpus_alloc * rng.uniform(1e3, 8e3), dtype=np.float64)
    filled = replace(nodes, cpus_alloc=cpus_alloc, gpus_alloc=gpus_alloc, mem_alloc=mem_alloc)
    return held, np.asarray(gpus, dtype=np.int32), np.asarray(kinds, dtype=np.int32), filled


def _written_limit(seconds: Floats) -> Floats:
    """The next limit that people write; the sites here allow no more than 30 days."""
    return np.minimum(written_limit(seconds), _LONGEST_LIMIT)


def _log_uniform(rng: np.random.Generator, ends: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(np.log(ends[0]), np.log(ends[1]))))


def _log_uniform_int(rng: np.random.Generator, ends: tuple[int, int]) -> int:
    return min(int(np.exp(rng.uniform(np.log(ends[0]), np.log(ends[1] + 1)))), ends[1])

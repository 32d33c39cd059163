"""How many nodes running jobs should have that can resize themselves (docs/elastic.md).

An advice, on which only the job's own process acts. Nodes that no waiting job can use soon go to the job that gains
most by them (marginal gain; Optimus, Peng et al., EuroSys '18). What such jobs hold beyond their fewest nodes goes to a
waiting job that can start there, where they lose less time by that than it would wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from pydantic import Field

from rltuned.core.pools import job_pools
from rltuned.core.tables import Bools, Category, Codes, Floats, Snapshot
from rltuned.decide.plan import Plan
from rltuned.decide.see.supply import CENTURY, expected_ends
from rltuned.job.elastic import STARTUP

MOST_WAITING: Final = 64  # jobs of the front of the queue that are looked at
SOON: Final = 900.0  # seconds: for a job that starts within these, what is idle is kept
RESTART: Final = STARTUP  # seconds that a job loses by going on with fewer nodes
_YEAR: Final = 365 * 86_400.0


@dataclass(frozen=True)
class Scaling:
    """How the run time of a job depends on its number of nodes."""

    parallel: float  # Amdahl's p: the part of the run time on one node that the nodes share
    sync: float  # what doubling the nodes costs, of the run time on one node

    def more_nodes(self, n: int) -> Floats:
        """(n,) run time on 1 to n nodes with the same GPUs on each and one global batch, over that on one node."""
        nodes = np.arange(1, n + 1, dtype=np.float64)
        return np.asarray(1.0 - self.parallel * (1.0 - 1.0 / nodes) + self.sync * np.log2(nodes))


POOLED: Final = Scaling(parallel=0.80, sync=0.035)
"""The geometric mean of six measured models (studies/scaling.toml): what is assumed of each job."""


@dataclass(frozen=True)
class Registration:
    """What a job's process says of the job: the nodes that it may have, and the seconds that getting more takes."""

    version: Literal[1]
    least: Annotated[int, Field(ge=1)]
    most: Annotated[int, Field(ge=1, le=10_000)]
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class ResizeAdvice:
    """For a job that runs on `nodes` nodes."""

    job_id: int
    nodes: int
    advised: int
    saves: float
    """Share of its remaining run time that the change saves; below 0 where it gives nodes back."""
    left: float  # seconds of its time limit; a year where it has none


@dataclass(frozen=True)
class Resizable:
    """A running job that can go on, on another number of nodes."""

    held: tuple[int, ...]  # rows of its nodes. With fewer nodes it keeps the first.
    least: int
    most: int
    gpus: int  # on each node
    capable: Bools  # (M,) nodes that it may get
    remaining: float  # expected seconds on its present nodes
    factors: Floats  # (most,) run time by number of nodes, from one, in any unit
    cost: float

    def gained(self, nodes: int) -> float:
        """Expected seconds that so many nodes save, without the restart; below 0 of fewer than it has."""
        return float(self.remaining * (1.0 - self.factors[nodes - 1] / self.factors[len(self.held) - 1]))

    def next_gain(self, nodes: int) -> float:
        """Of one node more than that, by GPU."""
        return (self.gained(nodes + 1) - self.gained(nodes)) / self.gpus


class Waiting(NamedTuple):
    """A job that waits for room."""

    nodes: int
    gpus: int  # on each of its nodes
    capable: Bools  # (M,) nodes that could run it
    wait: float  # seconds after which it is expected to start anyway


def advised_nodes(running: Sequence[Resizable], free: Codes, waiting: Sequence[Waiting]) -> list[int]:
    """Nodes for each of the running jobs. `free`: (M,) GPUs that a new job could get; `waiting`: the first of the queue
    first.
    """
    free, size, kept = free.copy(), [len(job.held) for job in running], np.zeros(len(free), dtype=np.bool_)
    for wants in waiting:
        if not _take(wants, free) and not _make_room(wants, running, free, size) and wants.wait < SOON:
            kept |= wants.capable
    got: list[list[int]] = [[] for _ in running]
    able = [at for at, job in enumerate(running) if size[at] == len(job.held) and job.gained(job.most) > job.cost]
    while able:
        at = max(able, key=lambda at: running[at].next_gain(len(running[at].held) + len(got[at])))
        job = running[at]
        room = job.capable & ~kept & (free >= job.gpus)
        room[[*job.held, *got[at]]] = False
        grows = bool(room.any()) and job.next_gain(len(job.held) + len(got[at])) > 0.0
        if grows:
            got[at].append(int(np.where(room, free, np.iinfo(np.int32).max).argmin()))
            free[got[at][-1]] -= job.gpus
        if not grows or len(job.held) + len(got[at]) == job.most:
            able.remove(at)
    for at, job in enumerate(running):
        if got[at] and job.gained(len(job.held) + len(got[at])) > job.cost:
            size[at] += len(got[at])
    return size


def _take(job: Waiting, free: Codes) -> bool:
    """Take the fullest nodes for a job, if there are enough."""
    nodes = np.flatnonzero(job.capable & (free >= job.gpus))
    if len(nodes) >= job.nodes:
        free[nodes[np.argsort(free[nodes], kind="stable")[: job.nodes]]] -= job.gpus
    return len(nodes) >= job.nodes


def _make_room(wants: Waiting, running: Sequence[Resizable], free: Codes, size: list[int]) -> bool:
    """Let running jobs give nodes back where that lets a waiting job start and pays: those that lose least by it."""
    # What each can give back: its last nodes first, down to the last one where the waiting job can run.
    offers: list[tuple[float, int, int]] = []
    for at, (job, nodes) in enumerate(zip(running, size, strict=True)):
        useful, loss = np.flatnonzero(wants.capable[list(job.held[job.least : nodes])]), -np.inf
        for number in range(nodes - 1, job.least + int(useful[0]) - 1 if len(useful) else nodes, -1):
            loss = max(loss, job.next_gain(number))
            offers.append((loss, at, -number))
    trial, left = free.tolist(), list(size)
    missing = wants.nodes - np.count_nonzero(wants.capable & (free >= wants.gpus))
    for _, at, number in sorted(offers):
        if not missing:
            break
        left[at], node = -number, running[at].held[-number]
        had, trial[node] = trial[node], trial[node] + running[at].gpus
        missing -= bool(wants.capable[node]) and had < wants.gpus <= trial[node]
    if missing:
        return False
    for at, job in enumerate(running):  # not each of these was needed
        while left[at] < size[at]:
            node = job.held[left[at]]
            if wants.capable[node] and trial[node] - job.gpus < wants.gpus <= trial[node]:
                break
            trial[node], left[at] = trial[node] - job.gpus, left[at] + 1
    lost = sum(
        job.gained(had) - job.gained(nodes) + RESTART
        for job, had, nodes in zip(running, size, left, strict=True)
        if nodes < had
    )
    if lost > wants.wait:
        return False
    free[:], size[:] = trial, left
    _take(wants, free)
    return True


def advice(plan: Plan, registered: Mapping[int, Registration]) -> dict[str, list[ResizeAdvice]]:
    """By user, for the running jobs that have registered and have GPUs per node. Of those that wait `registered` has
    only jobs that ran a moment ago.
    """
    snapshot, nodes, expected = plan.snapshot, plan.snapshot.nodes, plan.run_times.expected
    found = dict[str, list[ResizeAdvice]]()
    jobs, running = snapshot.jobs, dict[int, Resizable]()
    free = np.where(nodes.cpus_free > 0, nodes.gpus_free.sum(axis=1), 0).astype(np.int32)
    rows = np.array([jobs.row_of[job] for job in registered], dtype=np.intp)
    # The table has the GPU types that a running job got, not those that it asked for: it may get more of these.
    pools = job_pools(replace(snapshot, jobs=replace(jobs, gpu_type=Category.of([""] * len(jobs)))), rows)
    for row, said, pool in zip(rows.tolist(), registered.values(), pools.pool_of, strict=True):
        gpus, held, capable = int(jobs.gpus_per_node[row]), tuple(jobs.nodes_of(row).tolist()), pools.nodes[pool]
        if gpus and not held and not jobs.held[row] and not jobs.dependent[row]:
            # It has requeued itself, and takes what it can.
            any(_take(Waiting(number, gpus, capable, 0.0), free) for number in range(min(said.most, len(free)), 0, -1))
        elif gpus and held and said.least <= len(held) <= said.most:
            elapsed, whole = snapshot.time - jobs.start_time[row], np.fmin(expected[row], jobs.time_limit[row])
            types = (nodes.gpus[list(held)] > 0).any(axis=0)
            running[row] = Resizable(
                held=held,
                least=said.least,
                most=said.most,
                gpus=gpus,
                capable=capable & (nodes.gpus[:, types].sum(axis=1) >= gpus),
                # One that has run longer than expected goes on for a quarter of that.
                remaining=min(max(float(whole - elapsed), 0.25 * float(elapsed), 1.0), _YEAR),
                factors=POOLED.more_nodes(said.most),
                cost=said.cost,
            )
    if not running:
        return found
    sizes = advised_nodes(list(running.values()), free, _waiting(plan))
    for (row, job), size in zip(running.items(), sizes, strict=True):
        saves, left = job.gained(size) / job.remaining, min(float(jobs.end_time[row]) - snapshot.time, _YEAR)
        made = ResizeAdvice(int(jobs.job_id[row]), len(job.held), size, round(saves, 4), round(left, 1))
        found.setdefault(jobs.user.value(row), []).append(made)
    return found


def gpu_releases(snapshot: Snapshot, estimates: Floats) -> Floats:
    """(M, G) when each GPU of each node comes free, ascending: seconds from now, 0 where it is; `CENTURY` where there
    is none, or nobody knows. `estimates`: (N,) expected run time of all jobs, seconds.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    total, free = nodes.gpus.sum(axis=1), np.maximum(nodes.gpus_free.sum(axis=1), 0)
    released = np.full((len(nodes), int(total.max(initial=0))), CENTURY)
    released[np.arange(released.shape[1]) < free[:, None]] = 0.0
    left = np.clip(expected_ends(snapshot, jobs.running, estimates) - snapshot.time, 1.0, CENTURY)
    filled = free.copy()
    for at in np.argsort(left, kind="stable").tolist():
        row = int(jobs.running[at])
        held = jobs.nodes_of(row)
        share = -(-int(jobs.gpus[row]) // max(len(held), 1))
        for node in held.tolist():
            end = min(filled[node] + share, int(total[node]))
            released[node, filled[node] : end] = left[at]
            filled[node] = end
    return released


def _waiting(plan: Plan) -> list[Waiting]:
    """The front of the queue. GPUs in all count as on the fewest nodes."""
    jobs, usable, found = plan.snapshot.jobs, plan.snapshot.nodes.usable, []
    expected = plan.run_times.expected
    releases = gpu_releases(plan.snapshot, np.where(np.isnan(expected), jobs.time_limit, expected))
    for at in plan.queue[:MOST_WAITING].tolist():
        row, capable = plan.rows[at], plan.managed.pools.nodes[plan.managed.pools.pool_of[at]]
        nodes, gpus, total = int(jobs.nodes[row]), int(jobs.gpus_per_node[row]), int(jobs.gpus[row])
        if total and not gpus:
            largest = int(plan.snapshot.nodes.gpus[capable].sum(axis=1).max(initial=1))
            nodes = max(nodes, -(-total // max(largest, 1)))
            gpus = -(-total // nodes)
        if gpus:
            # Of each node, when it has so many; never where it is too small.
            ready = np.sort(releases[capable & usable, gpus - 1 : gpus].ravel())
            found.append(Waiting(nodes, gpus, capable, float(ready[nodes - 1]) if nodes <= len(ready) else CENTURY))
    return found

"""What of a placement Slurm can be told, and for which jobs (SLURM notes in docs/placement.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rltuned.cluster.tables import Bools
from rltuned.placement.base import Kind, Placement, PlacementProblem


@dataclass(frozen=True)
class Steering:
    """Jobs are rows of the problem, nodes rows of the node table."""

    isolate: tuple[int, ...]
    """Jobs planned to spread now, onto nodes that are idle now: candidates of OverSubscribe=NO, in rank order.

    One-way in Slurm, and not free: a NO job waits until a whole node is idle and keeps everybody else off it. The
    caller still has to check that the job's value is the default and its partition allows it.
    """
    pack: tuple[int, ...]
    """Jobs planned to start now next to others: to be left alone."""
    exclude: Mapping[int, tuple[int, ...]]
    """Where GPU types differ in speed (`PlacementProblem.avoid`): the nodes whose type a job is better off without,
    and nothing else; which of the others it gets is Slurm's choice. Else, for jobs planned to start now: the nodes to
    put on ExcNodeList so that Slurm starts them where planned.

    These are the capable nodes that have room for a part of the job now and are not planned for it. Nodes without room
    need no exclusion, and leaving them out is the slack: the job may use them later, if the plan comes to nothing.
    The planned nodes are never among them, so no list covers every capable node. A job without an entry needs none.
    """


def steer(placement: Placement, problem: PlacementProblem, asleep: Bools | None = None) -> Steering:
    """The part of `placement` that concerns jobs starting now (slot 0); later slots are Slurm's to decide when due.

    A job planned for a node that is asleep (M,) is left to Slurm: it shares a node that is up before it wakes another,
    and an isolated job, or one kept off the others, would wait minutes for the node to come up (measured).
    """
    isolate: list[int] = []
    pack: list[int] = []
    exclude: dict[int, tuple[int, ...]] = {}
    for way in placement.ways:
        if way.slot != 0:
            continue
        nodes = np.array(way.nodes, dtype=np.intp)
        if asleep is not None and asleep[nodes].any():
            continue
        if way.kind is not Kind.SPREAD:
            pack.append(way.job)
        elif problem.idle[0, nodes].all() and not problem.exclusive[way.job]:
            # A job that is exclusive already has what NO would give it.
            isolate.append(way.job)
        others = room_now(problem, way.job)
        others[nodes] = False
        if others.any() and problem.avoid is None:
            exclude[way.job] = tuple(np.flatnonzero(others).tolist())
    if problem.avoid is not None:
        # Also without room: a job that waits for its type must not start on another one between two cycles.
        for job in np.flatnonzero(problem.avoid.any(axis=1) & problem.eligible.any(axis=1)).tolist():
            exclude[job] = tuple(np.flatnonzero(problem.avoid[job]).tolist())
    return Steering(tuple(isolate), tuple(pack), MappingProxyType(exclude))


def room_now(problem: PlacementProblem, job: int) -> Bools:
    """(M,) capable nodes on which Slurm could put a part of `job` now, as far as the free capacity tells.

    The smallest part counts: the GPUs per node where fixed, else one GPU of a total that may be split; and one CPU,
    since Slurm may divide CPUs otherwise than we do.
    """
    fixed, gpus = int(problem.gpus_per_node[job]), int(problem.gpus[job])
    part = fixed or min(gpus, 1)
    wanted = int(problem.gpu_type[job])
    free = problem.free_gpus[0]
    if wanted >= free.shape[1]:
        return np.zeros(free.shape[0], dtype=np.bool_)
    if part > 0:
        have = free[:, wanted] if wanted >= 0 else free.max(axis=1, initial=0)
    else:
        have = np.zeros(free.shape[0], dtype=np.int32)
    room = problem.eligible[job] & (have >= part) & (problem.free_cpus[0] >= 1)
    if problem.exclusive[job]:
        room &= problem.idle[0]
    return np.asarray(room, dtype=np.bool_)

"""Which jobs of a placement Slurm is told to isolate (docs/placement.md)."""

import numpy as np

from rltuned.cluster.tables import Bools
from rltuned.placement.placement_values import Kind, Placement, PlacementProblem


def isolated(placement: Placement, problem: PlacementProblem, asleep: Bools | None = None) -> tuple[int, ...]:
    """Jobs planned to spread onto idle nodes: candidates of OverSubscribe=NO, in rank order.

    One-way in Slurm, and not free: a NO job waits until a whole node is idle and keeps everybody else off it. The
    caller still has to check that the job's value is the default and its partition allows it.

    A job planned for a node that is asleep (M,) is left to Slurm: it shares a node that is up before it wakes another,
    and an isolated job would wait minutes for the node to come up (measured).
    """
    found: list[int] = []
    for way in placement.ways:
        nodes = np.array(way.nodes, dtype=np.intp)
        if way.kind is not Kind.SPREAD or (asleep is not None and asleep[nodes].any()):
            continue
        # A job that is exclusive already has what NO would give it.
        if problem.idle[nodes].all() and not problem.exclusive[way.job]:
            found.append(way.job)
    return tuple(found)

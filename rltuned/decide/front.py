"""What Slurm is told of the placement of the front of the planned queue: jobs to isolate, by the integer program; or
nodes to keep a job away from, by expected run times on each type of GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from rltuned.cluster.pools import Pools
from rltuned.cluster.tables import Floats
from rltuned.config import PlacementApply, PlacementSection
from rltuned.decide.managed import ManagedJobs
from rltuned.decide.outside import Rows
from rltuned.placement.base import Placement
from rltuned.placement.problem import build
from rltuned.placement.run import place
from rltuned.placement.steer import isolated
from rltuned.placement.types import avoided, running


@dataclass(frozen=True)
class Front:
    """The K jobs that the placement is about. Jobs and nodes are rows of the snapshot's tables."""

    rows: Rows
    """(K,) in the planned order."""
    placement: Placement | None
    """Of the integer program; its jobs are positions in `rows`. None: it was not run, because nothing that Slurm is
    told would come of it."""
    isolate: frozenset[int]
    """Jobs that the placement spreads onto idle nodes now."""
    exclude: Mapping[int, tuple[int, ...]]
    """Nodes to keep a job away from, because of the type of their GPUs."""


_NOTHING: Final = Front(np.zeros(0, dtype=np.intp), None, frozenset(), MappingProxyType({}))


def place_front(
    managed: ManagedJobs,
    queue: Rows,
    window: Rows,
    settings: PlacementSection,
    by_type: Floats | None = None,
    age_bound: float = np.inf,
) -> Front:
    """What Slurm is told of the front of the planned queue, as far as the policy saw it: whom to isolate (the integer
    program decides that), or which GPU types to avoid.

    Args:
        managed: n managed jobs.
        queue: (n,) their positions in the planned order.
        window: (w,) positions of those that the policy saw.
        settings: of the placement.
        by_type: (N, T) expected run times of all jobs of the table on each GPU type; None: nothing is known of that.
        age_bound: seconds; a job that has waited for longer waits for no type.
    """
    by_lists = settings.apply is PlacementApply.EXCLUDE_NODES
    if settings.apply is PlacementApply.OFF or (by_lists and by_type is None) or not len(queue):
        return _NOTHING
    visible = np.zeros(len(queue), dtype=np.bool_)
    visible[window] = True
    head = queue[visible[queue]][: settings.top_k]
    rows, pools = managed.rows[head], managed.pools
    problem = build(managed.snapshot, rows, settings, Pools(pools.pool_of[head], pools.nodes, pools.gpu_type))
    if by_lists and by_type is not None:
        snapshot = managed.snapshot
        old = snapshot.time - snapshot.jobs.eligible_time[rows] > age_bound
        expected = np.where(old[:, None], np.nan, by_type[rows])
        without = avoided(problem, expected, running(snapshot, by_type), snapshot.nodes.usable)
        # Also without room: a job that waits for its type must not start on another one between two cycles.
        keeps = np.flatnonzero(without.any(axis=1)).tolist()
        lists = {int(rows[k]): tuple(np.flatnonzero(without[k]).tolist()) for k in keeps}
        return Front(rows, None, frozenset(), MappingProxyType(lists))
    placement = place(problem, settings)
    isolate = isolated(placement, problem, managed.snapshot.nodes.asleep)
    return Front(rows, placement, frozenset(int(rows[k]) for k in isolate), MappingProxyType({}))

"""What Slurm is told of the placement of the front of the planned queue: which jobs to isolate."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.cluster.pools import Pools
from rltuned.config import PlacementApply, PlacementSection
from rltuned.decide.managed import ManagedJobs
from rltuned.decide.outside import Rows
from rltuned.placement import Placement, build, isolated, place


@dataclass(frozen=True)
class Front:
    """The K jobs that the placement is about."""

    rows: Rows
    """(K,) rows of the job table in the planned order."""
    placement: Placement | None
    """Its jobs are positions in `rows`. None: placement is off, or there is no job."""
    isolate: frozenset[int]
    """Rows of the job table: jobs that the placement spreads onto idle nodes."""


_NOTHING: Final = Front(np.zeros(0, dtype=np.intp), None, frozenset())


def place_front(managed: ManagedJobs, queue: Rows, window: Rows, settings: PlacementSection) -> Front:
    """Place the front of the queue, (n,) positions of managed jobs, as far as they are in the (w,) `window`."""
    if settings.apply is PlacementApply.OFF or not len(queue):
        return _NOTHING
    visible = np.zeros(len(queue), dtype=np.bool_)
    visible[window] = True
    head = queue[visible[queue]][: settings.top_k]
    rows, pools = managed.rows[head], managed.pools
    problem = build(managed.snapshot, rows, Pools(pools.pool_of[head], pools.nodes, pools.gpu_type))
    placement = place(problem, settings)
    isolate = isolated(placement, problem, managed.snapshot.nodes.asleep)
    return Front(rows, placement, frozenset(int(rows[k]) for k in isolate))

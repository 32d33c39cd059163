"""`observe`, the way in: which jobs are seen, and their features → the 8 columns of the state, padding and mask."""

from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.pools import Pools, job_pools
from rltuned.core.tables import Codes, Floats, Ints, JobTable, Snapshot
from rltuned.decide.see.features import FEATURES, demand, features
from rltuned.decide.see.supply import PoolStats, pool_stats

STATE_COLUMNS: Final = (
    "requested_time",
    "requested_limit",
    "requested_gpus",
    "demand_supply_ratio",
    "future_availability",
    "can_schedule_now",
    "time_to_free",
    "job_urgency",
)
"""The sampled columns. Each has its place in every cycle (decision 0010)."""

CRITIC_COLUMNS: Final = ("submit_time", "requested_time", "requested_gpus", "can_schedule_now", "job_size")
"""What the critic of a training sees (paper §4.1): wait, requested time, requested GPUs, can schedule now, job size."""

WINDOW: Final = 256  # rows of the observation (paper §4.1)

HEAD_SHARE: Final = 0.75
"""Share of a full window that goes to the head of the queue; the rest goes to the smallest jobs behind it."""
OF_USER: Final = 8
"""Jobs behind the head that come before others because of their size, of one user: small ones that wait for ever,
with a nice that is large enough, cost their user nothing."""
GPUS_SCALE: Final = log(4096.0)  # where requested_gpus of the state reaches 1
_GPUS: Final = STATE_COLUMNS.index("requested_gpus")


@dataclass(frozen=True)
class Observation:
    """The window of pending jobs as the networks and the plain rules see it (paper §4.1; W = 256 rows).

    Rows past the number of visible jobs are zero and masked out.
    """

    state: npt.NDArray[np.float32]  # (W, 8) sampled features, `STATE_COLUMNS`
    mask: npt.NDArray[np.bool_]  # (W,) which rows are jobs
    rows: npt.NDArray[np.intp]
    """(n,) row in the snapshot's job table of each visible job; n = mask.sum()."""
    features: npt.NDArray[np.float32]
    """(n, F) the features that were asked for, before sampling; `named` names them."""
    named: tuple[str, ...]
    run_time: Floats  # (n,) estimated run time, s
    time_limit: Floats  # (n,) s, at least 1, infinite when unlimited
    gpus: Floats
    """(n,) GPUs that it takes in all; plain rules use max(gpus, 1) so that CPU jobs have a size."""
    wait: Floats  # (n,) seconds since eligible
    submit: Floats
    """(n,) seconds since the start of the window (earliest submission among the visible)."""
    priority: Floats  # (n,) what Slurm alone gives: the priority without the site factor
    cluster_gpus: float  # of all nodes, usable or not; at least 1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def critic(self) -> npt.NDArray[np.float32]:
        """(W, 5) `CRITIC_COLUMNS`, of features that were asked for: ValueError where one was not."""
        found = np.zeros((WINDOW, len(CRITIC_COLUMNS)), dtype=np.float32)
        found[: len(self)] = self.features.take([self.named.index(name) for name in CRITIC_COLUMNS], axis=1)
        return found


def observe(
    snapshot: Snapshot,
    rows: npt.NDArray[np.intp],
    estimates: Floats,
    pools: Pools | None = None,
    stats: PoolStats | None = None,
    base: Ints | None = None,
    users: Codes | None = None,
    named: tuple[str, ...] = FEATURES,
) -> Observation:
    """What the policy sees of the pending jobs in `rows`.

    Args:
        snapshot: the cluster.
        rows: rows of the jobs that may be ranked; when there are more than `WINDOW`, `select_window` chooses.
        estimates: (N,) estimated run time of every job of the snapshot, seconds, NaN where there is no prediction.
        pools: `job_pools(snapshot, rows)` where the caller has them.
        stats: `pool_stats` of those pools, likewise; not used when the window leaves jobs out.
        base: (len(rows),) priority that Slurm alone gives, where the caller knows more than the table: what a priority
            that rltuned set explicitly has replaced.
        users: as of `select_window`.
        named: `FEATURES` that are read, those of the state among them; others are not computed.
    """
    if len(rows) > WINDOW:
        every = demand(snapshot, rows, estimates)
        area = every.run_time * np.maximum(every.gpus, 1.0)
        seen = select_window(snapshot.jobs, rows, area, users)
        rows, pools, stats = rows[seen], None if pools is None else _of(pools, seen), None
        base = None if base is None else base[seen]
    if pools is None:
        pools, stats = job_pools(snapshot, rows), None
    if stats is None:
        stats = pool_stats(snapshot, pools, estimates)
    asked = demand(snapshot, rows, estimates)
    numeric = features(snapshot, rows, asked, pools, stats, named)
    submit = snapshot.jobs.submit_time[rows]
    submit[~np.isfinite(submit)] = snapshot.time
    shown = len(rows)
    state = np.zeros((WINDOW, len(STATE_COLUMNS)), dtype=np.float32)
    mask = np.zeros(WINDOW, dtype=np.bool_)
    state[:shown] = numeric.take([named.index(name) for name in STATE_COLUMNS], axis=1)
    # On a scale that is the same everywhere: a policy compares jobs of different pools, and a power of it means the
    # same on each cluster.
    state[:shown, _GPUS] = np.minimum(np.log(np.maximum(asked.gpus, 1.0)) / GPUS_SCALE, 1.0)
    mask[:shown] = True
    return Observation(
        state=state,
        mask=mask,
        rows=rows,
        features=numeric,
        named=named,
        run_time=asked.run_time,
        time_limit=asked.time_limit,
        gpus=asked.gpus,
        wait=asked.wait,
        submit=submit - submit.min(initial=np.inf) if shown else submit,
        priority=(_base(snapshot.jobs, rows) if base is None else base).astype(np.float64),
        cluster_gpus=max(stats.configured_gpus, 1.0),
    )


def _base(jobs: JobTable, rows: npt.NDArray[np.intp]) -> Ints:
    """(n,) priority without the site factor, as far as sprio tells it; 1 is the least that Slurm gives."""
    return np.where(jobs.site_known[rows], np.maximum(jobs.base[rows], 1), jobs.priority[rows])


def _of(pools: Pools, jobs: npt.NDArray[np.intp]) -> Pools:
    """The pools of some of the jobs, without those that only the others have."""
    used, pool_of = np.unique(pools.pool_of[jobs], return_inverse=True)
    return Pools(pool_of.astype(np.int32), pools.nodes[used], pools.gpu_type[used])


def select_window(
    jobs: JobTable, rows: npt.NDArray[np.intp], area: Floats, users: Codes | None = None
) -> npt.NDArray[np.intp]:
    """Where in `rows` the jobs stand that are seen: at most `WINDOW`, in Slurm's order (priority, submission, job id).

    When there are more, the first three quarters of the window are the head of the queue, and the rest are the smallest
    jobs behind it: those that a policy would most likely put in front. In the next cycle they are in the head, and the
    next smallest are seen. Which jobs these are does not depend on the order of `rows`.

    Args:
        jobs: the job table.
        rows: (n,) rows of the jobs that may be ranked.
        area: (n,) how small a job is: estimated run time times GPUs.
        users: (n,) whose job each is: of each user `OF_USER` of the smallest jobs come first. None: all are one's.
    """
    order = np.lexsort((jobs.job_id[rows], jobs.submit_time[rows], -jobs.priority[rows]))
    if len(order) <= WINDOW:
        return order
    head = int(WINDOW * HEAD_SHARE)
    smallest = np.argsort(area[order[head:]], kind="stable")
    if users is not None:
        of = users[order[head:]][smallest]
        by_user = np.argsort(of, kind="stable")
        first = np.searchsorted(of[by_user], of[by_user])
        more = np.empty(len(of), dtype=np.bool_)
        more[by_user] = np.arange(len(of)) - first >= OF_USER
        smallest = smallest[np.argsort(more, kind="stable")]
    return np.concatenate((order[:head], order[head + np.sort(smallest[: WINDOW - head])]))

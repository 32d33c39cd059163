"""The 13 numeric features of Table 3, the time limit and the time until GPUs come free (docs/ranking.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.pools import Pools
from rltuned.core.tables import Bools, Codes, Floats, Snapshot
from rltuned.core.taken import alone, taken_gpus
from rltuned.decide.see.supply import CENTURY, MOST_GPUS, MOST_MIB, PoolStats

FEATURES: Final = (
    "requested_gpus",
    "requested_time",
    "submit_time",
    "req_cpu",
    "req_mem",
    "free_nodes",
    "can_schedule_now",
    "num_ways_to_schedule",
    "demand_supply_ratio",
    "job_size",
    "job_urgency",
    "future_availability",
    "fragmentation",
    "requested_limit",
    "time_to_free",
)
"""The 13 of Table 3 that are numbers, in the order of the columns, and behind them what the paper leaves out. The other
four (job id, user, virtual cluster, GPU type) select the pool and feed the run-time estimate.
"""

RUN_TIME_HORIZON: Final = 30 * 86400.0  # seconds at which the time scales reach 1: 30 days

UNLIMITED_RUN_TIME: Final = 365 * 86400.0
"""Run time of a job that has neither limit nor estimate, seconds: behind every job that has one."""

_TIME_SCALE: Final = float(np.log1p(RUN_TIME_HORIZON))
_URGENCY_SCALE: Final = float(np.log1p(RUN_TIME_HORIZON / 10.0))


@dataclass(frozen=True)
class Demand:
    """What n pending jobs ask for, in plain units."""

    run_time: Floats  # (n,) r, seconds, finite, at least 1
    wait: Floats  # (n,) w, seconds since eligible, finite, not negative
    gpus: Floats  # (n,) g, that it takes in all
    time_limit: Floats  # (n,) L, seconds, at least 1, infinite when unlimited


def known_run_times(estimates: Floats, time_limit: Floats) -> Floats:
    """(n,) r = min(time limit, estimate), seconds, finite, at least 1; NaN stands for no estimate, or no limit."""
    known: Floats = np.fmin(estimates, time_limit)
    known[~np.isfinite(known)] = UNLIMITED_RUN_TIME
    return np.maximum(known, 1.0, out=known)


def demand(snapshot: Snapshot, rows: npt.NDArray[np.intp], estimates: Floats) -> Demand:
    """r, w and g of the jobs in `rows`.

    r = min(time limit, estimate); `estimates`: (N,) seconds, one per row of the job table, NaN where there is no
    prediction. w is 0 while a job is not eligible and where a clock is behind.
    """
    jobs = snapshot.jobs
    limit = jobs.time_limit[rows]
    wait = np.fmax(snapshot.time - jobs.eligible_time[rows], 0.0)
    return Demand(
        run_time=known_run_times(estimates[rows], limit),
        wait=np.minimum(wait, CENTURY),
        gpus=taken_gpus(snapshot, rows),
        time_limit=np.fmax(np.where(np.isnan(limit), np.inf, limit), 1.0),
    )


def features(
    snapshot: Snapshot,
    rows: npt.NDArray[np.intp],
    asked: Demand,
    pools: Pools,
    stats: PoolStats,
    named: Sequence[str] = FEATURES,
) -> npt.NDArray[np.float32]:
    """(n, F) float32 in [0, 1]: these features of the jobs in `rows` (equations 1–3 of the paper, docs/ranking.md).

    `asked` and `pools` are of the same rows, `stats` of those pools.
    """
    jobs = snapshot.jobs
    pool = pools.pool_of.astype(np.intp)
    gpus, run_time, wait = asked.gpus, asked.run_time, asked.wait
    # Something of a pool that has nothing is more than all of it, and is cut to 1 below.
    total, free = np.maximum(stats.gpus, 1.0), stats.free_gpus

    def of_pool(amount: npt.NDArray[Any], whole: Floats) -> Floats:
        """A share of the pool; where the amount is not given (0, NaN), that of its GPUs."""
        return np.where(amount > 0, amount / np.maximum(whole, 1.0)[pool], gpus / total[pool])

    def ratio() -> Floats:
        found = gpus / np.maximum(free, 0.5)[pool]
        return np.asarray(found / (1.0 + found))

    def future() -> Floats:
        ended = stats.release_time.searchsorted(snapshot.time + run_time, side="right")
        return np.asarray(np.maximum((free[pool] + stats.released[pool, ended] - gpus) / total[pool] + 1.0, 0.0) / 2.0)

    ways = num_ways(snapshot, rows, pools, stats)
    columns: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "requested_gpus": lambda: np.log1p(gpus) / np.log1p(total)[pool],
        "requested_time": lambda: np.log1p(run_time) / _TIME_SCALE,
        "submit_time": lambda: np.log1p(wait) / _TIME_SCALE,
        "req_cpu": lambda: of_pool(jobs.cpus[rows], stats.sums[1]),
        "req_mem": lambda: of_pool(np.minimum(jobs.mem[rows], MOST_MIB), stats.sums[2]),
        "free_nodes": lambda: stats.sums[0][pool],
        "can_schedule_now": lambda: ways > 0,
        "num_ways_to_schedule": lambda: ways / np.float32(3.0),
        "demand_supply_ratio": ratio,
        "job_size": lambda: np.log1p(gpus * run_time) / np.log1p(total * RUN_TIME_HORIZON)[pool],
        "job_urgency": lambda: np.log1p(wait / np.maximum(run_time, 10.0)) / _URGENCY_SCALE,
        "future_availability": future,
        "fragmentation": lambda: stats.fragmentation[pool],
        "requested_limit": lambda: np.log1p(np.minimum(asked.time_limit, RUN_TIME_HORIZON)) / _TIME_SCALE,
        "time_to_free": lambda: np.log1p(time_to_free(gpus, pool, stats, snapshot.time)) / _TIME_SCALE,
    }
    out = np.empty((len(rows), len(named)), dtype=np.float32)
    for at, name in enumerate(named):
        out[:, at] = columns[name]()
    return np.minimum(out, np.float32(1.0), out=out)


def time_to_free(gpus: Floats, pool: npt.NDArray[np.intp], stats: PoolStats, now: float) -> Floats:
    """(n,) seconds until the job's pool has its GPUs if nothing else starts, at most `RUN_TIME_HORIZON`: never."""
    # One search for the pools together: the row of each is lifted above that of the pool before it. Shares of GPUs are
    # rounded.
    lift = float(stats.released[:, -1].max()) + 1.0
    missing = np.clip(gpus - stats.free_gpus[pool] - 1e-6, 0.0, lift - 0.5)
    rows, columns = stats.released.shape
    lifted = (stats.released + lift * np.arange(rows)[:, None]).ravel()
    least = lifted.searchsorted(missing + lift * pool) - columns * pool
    # The first column stands for now, the last one for never.
    ends = np.concatenate(((0.0,), np.clip(stats.release_time - now, 0.0, RUN_TIME_HORIZON), (RUN_TIME_HORIZON,)))
    return np.asarray(ends[least])


def num_ways(snapshot: Snapshot, rows: npt.NDArray[np.intp], pools: Pools, stats: PoolStats) -> npt.NDArray[np.int8]:
    """(n,) distinct kinds of placement that are possible now, 0 … 3, by GPUs, CPUs, memory, disk and pool.

    Pack: all on nodes that run something already. Spread: all on idle nodes. Hierarchical: over several nodes, idle
    ones and shared ones together, or, where the job lets Slurm split its GPUs, as many from each as it has.
    """
    jobs, pool = snapshot.jobs, pools.pool_of
    count, gpus, per_node, cpus = jobs.nodes[rows], jobs.gpus[rows], jobs.gpus_per_node[rows], jobs.cpus[rows]
    mem, tmp = jobs.mem[rows], np.minimum(jobs.tmp[rows], MOST_MIB)
    on_idle_only = alone(snapshot, rows)
    mem = np.minimum(np.fmax(mem, 0.0), MOST_MIB)
    # What one of the job's nodes must give. A job of no GPUs needs a node of the pool (−1 is less than 0), a job of
    # more than can be counted fits nowhere.
    wanted = np.maximum(count, 1)
    need_gpus = np.where(per_node > 0, per_node, np.ceil(gpus / wanted))
    fits = stats.room_gpus.take(pool, axis=0) >= np.minimum(need_gpus, MOST_GPUS).astype(np.int16)[:, None]
    fits &= stats.room_cpus >= np.ceil(cpus / wanted).astype(np.int32)[:, None]
    fits &= stats.room_mem >= (mem / wanted).astype(np.float32)[:, None]
    if tmp.any():
        fits &= stats.room_tmp >= tmp.astype(np.float32)[:, None]
    # Counting idle and shared nodes as one small matrix product is several times faster than two sums.
    idle = np.arange(len(stats.room_cpus)) < stats.idle_candidates
    on_idle, on_shared = (fits.astype(np.float32) @ np.array((idle, ~idle), dtype=np.float32).T).T
    on_shared[on_idle_only] = 0.0
    spread, pack = on_idle >= wanted, on_shared >= wanted
    together = (count > 1) & (on_idle > 0) & (on_shared > 0) & (on_idle + on_shared >= wanted)
    # Only where the pool has the GPUs at all: on a busy cluster that leaves few.
    divisible = ((count <= 1) & (per_node <= 0) & (gpus > 1) & (gpus <= stats.free_gpus[pool])).nonzero()[0]
    if len(divisible):
        together[divisible] = _splits(
            gpus[divisible], cpus[divisible], mem[divisible], on_idle_only[divisible], pool[divisible], stats
        )
    return np.asarray(spread.astype(np.int8) + pack + together, dtype=np.int8)


def _splits(gpus: Codes, cpus: Codes, mem: Floats, on_idle_only: Bools, pool: Codes, stats: PoolStats) -> Bools:
    """(d,) whether a job's GPUs can come from two or more nodes, each giving CPUs and memory in proportion."""
    room = stats.room_gpus.take(pool, axis=0).astype(np.float32)
    # How many of the job's GPUs a node has the CPUs and the memory for. The thousandth keeps rounding from taking one
    # away; the tiny request instead of none keeps the division defined.
    per_cpu = (gpus / np.maximum(cpus, 1)).astype(np.float32)
    per_mib = (gpus / np.maximum(mem, 1e-6)).astype(np.float32)
    enough = np.minimum(stats.room_cpus.astype(np.float32) * per_cpu[:, None], stats.room_mem * per_mib[:, None])
    enough += np.float32(1e-3)
    np.minimum(room, np.floor(enough, out=enough), out=room)
    # At least one GPU is taken elsewhere, so that the job really is on several nodes.
    np.minimum(room, (gpus - 1).astype(np.float32)[:, None], out=room)
    np.maximum(room, np.float32(0.0), out=room)
    if on_idle_only.any():
        room[on_idle_only, stats.idle_candidates :] = 0.0
    return np.asarray(room.sum(axis=1) >= gpus, dtype=np.bool_)

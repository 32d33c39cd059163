"""Settings, estimates and results of a simulation."""

import enum
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from rltuned.core.scheduler import LIMITS, WHOLE_QUEUE, SchedulerParameters
from rltuned.core.tables import Bools, Codes, Floats
from rltuned.simulate.workload.jobs import Estimates as Estimates  # noqa: PLC0414 - re-exported: a value of the simulator, too

BOUND: Final = 10.0
"""Seconds: a shorter run counts as that long in a bounded slowdown (Feitelson and Rudolph, JSSPP 1998)."""


def bounded_slowdown(wait: Floats, run_time: Floats) -> Floats:
    """(n,) max((wait + run) / max(run, 10 s), 1)."""
    return np.maximum((wait + run_time) / np.maximum(run_time, BOUND), 1.0)


class Backfill(enum.StrEnum):
    """Which later jobs may start before a blocked one (slurm.conf(5), SchedulerType)."""

    NONE = "none"
    """None: the main pass only."""
    EASY = "easy"
    """Those that do not delay the first blocked job of a partition (Lifka 1995). It alone has a reservation."""
    SLURM = "slurm"
    """sched/backfill: each of the first `bf_max_job_test` jobs that cannot start gets a reservation of whole nodes."""


class Fit(enum.StrEnum):
    """Which of the nodes that have room a job gets."""

    BEST = "best"
    """The least free GPUs (CPUs for a CPU job) first: fills nodes up. Ties: the first node."""
    WORST = "worst"
    """The most free first. Ties: the first node."""
    SLURM = "slurm"
    """As select/cons_tres without topology chooses by default (docs/simulator.md)."""


@dataclass(frozen=True)
class SimulationSettings:
    """How the simulated Slurm is configured. Times in seconds.

    By default as one whose slurm.conf says nothing, but for `default_queue_depth`.
    """

    backfill: Backfill = Backfill.SLURM
    fit: Fit = Fit.SLURM
    sched_interval: float = 0.0
    """A main pass of the whole queue at each multiple of this that follows a change. 0: a pass at each event, of
    `default_queue_depth` jobs and one more, and of all at the next whole minute where others might start."""
    default_queue_depth: int = WHOLE_QUEUE
    bf_interval: float = 30.0  # a backfill pass at each multiple of this that follows a change; 0: at each event
    bf_offset: float = 0.0  # added to these multiples: slurmctld's two schedulers have clocks of their own
    bf_max_job_test: int = 500  # jobs that a pass of `Backfill.SLURM` looks at
    bf_max_job_user: int = 0  # of them, of a user; 0: all. It passes over the others, which do not count
    bf_max_job_part: int = 0  # likewise of a partition. A trace without users has one user
    bf_max_job_start: int = 0  # jobs that a pass starts, likewise
    bf_min_age_reserve: int = 0
    """Seconds that a job must have waited to get a reservation of `Backfill.SLURM`, and to block its partition."""
    bf_job_part_count_reserve: int = 0  # reservations of a pass for jobs of a partition; 0: as many as there are
    bf_window: float = 86_400.0
    """How far ahead `Backfill.SLURM` plans; a job that would start later gets no reservation."""
    bf_resolution: float = 60.0
    """A reservation of `Backfill.SLURM` takes all of the steps of this length that it touches, one at least."""
    refresh: float = 60.0  # the policy ranks the queue at multiples of this, as the daemon does
    stale: float = 600.0
    """A ranking that only the passing of time could change is renewed after this; a change of the queue or of the nodes
    renews it at the next multiple of `refresh`. Equal to `refresh`: at every one."""
    turnover: float = 0.0  # from the end of a job until its resources are free (epilog, completing)
    launch: float = 0.0  # from the start that counts to the first instruction: added to every run time
    kill_interval: float = 0.0
    """Jobs past their limits are killed at multiples of this (slurmctld looks every 30 s); 0: at the limit."""

    @classmethod
    def of_cluster(cls, scheduler: SchedulerParameters) -> Self:
        """Of a Slurm whose backfill is configured like that."""
        return cls(
            backfill=Backfill.SLURM if scheduler.backfill else Backfill.NONE,
            default_queue_depth=scheduler.default_queue_depth,
            bf_interval=scheduler.bf_interval,
            bf_window=scheduler.bf_window,
            bf_resolution=scheduler.bf_resolution,
            bf_max_job_test=scheduler.bf_max_job_test,
            **{name: getattr(scheduler, name) for name in LIMITS},
        )

    def parameters(self) -> dict[str, str]:
        """SchedulerParameters of such a Slurm, as `SchedulerParameters.read` takes them: whole numbers."""
        minutes = self.bf_window / 60.0
        return {
            "default_queue_depth": str(self.default_queue_depth),
            "bf_continue": "",
            "bf_interval": f"{max(self.bf_interval, 1.0):.0f}",
            "bf_window": f"{max(minutes, 1.0):.0f}",
            "bf_resolution": f"{max(self.bf_resolution, 1.0):.0f}",
            "bf_max_job_test": str(self.bf_max_job_test),
            **{name: str(value) for name in LIMITS if (value := getattr(self, name))},
        }


class JobFate(enum.IntEnum):
    """What became of a job."""

    WAITING = 0
    RUNNING = 1
    COMPLETED = 2
    TIMEOUT = 3
    REJECTED = 4
    """Can never run on this cluster; `SimulationResult.rejected` says why."""
    CANCELLED = 5


@dataclass(frozen=True)
class SimulationResult:
    """When and where each job ran. N jobs, by row of the workload."""

    fate: npt.NDArray[np.int8]
    start: Floats  # seconds on the workload's clock; NaN while it waits
    end: Floats  # seconds; NaN while it has not ended
    rejected: dict[int, str]  # why, by row: jobs that can never run
    node_ptr: Codes  # (N+1,) row pointer into `node_idx`: the nodes each job got
    node_idx: Codes
    backfilled: Bools  # (N,) started by the backfill pass, ahead of a blocked job
    passes: int  # main and backfill passes together
    refreshes: int

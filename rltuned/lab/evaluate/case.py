"""One window, cut out of its trace with all that a simulation of it needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from rltuned.core.tables import Bools, Category, Floats, owners
from rltuned.lab.evaluate.window_metrics import NOT_ASKED, Runs, against_slurm, measure
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.requests import Requests, requests
from rltuned.simulate.run_times import PAST_JOBS
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import SimulationSettings
from rltuned.simulate.workload.jobs import Estimates, Workload

_USUAL: Final = SimulationSettings()


@dataclass(frozen=True)
class Case:
    """A window of a trace on a cluster. Of the size of the window: it is sent to other processes."""

    window: Window
    shape: ClusterShape
    jobs: Workload  # the jobs of a warm start, then those of the window, whose first is submitted at 0
    past: int
    """How many of `jobs` come before the window. They run and queue by FIFO, the same for every policy."""
    estimates: Estimates  # of `jobs`
    before: Workload
    """Jobs that were submitted earlier, on the same clock, for estimates by history; else empty."""
    before_estimates: Estimates  # of `before`
    predicted: bool = False
    """Whether the run times of `estimates` are predicted means, which a model does not correct (`on_means`)."""
    history: bool = False
    """Whether run times are predicted during the simulation, by the jobs that have ended."""
    named: bool = False  # whether they are predicted by what jobs are called, too
    warming: SimulationSettings = _USUAL  # the Slurm that the jobs before the window run in
    seed: int = 0  # of what differs by chance (`AGAIN`)
    slurm: Floats | None = None
    """(n,) starts in Slurm's own order, seconds, where accounts are held against it."""

    @property
    def submitted(self) -> Workload:
        """`jobs` as they are submitted: to the cluster's only partition, where that is none of the trace's."""
        partitions = self.shape.partitions
        if len(partitions) > 1 or partitions[0].name in self.jobs.partition.names:
            return self.jobs
        return replace(self.jobs, partition=Category(np.full(len(self.jobs), -1, dtype=np.int32), ()))

    @property
    def measured(self) -> Bools:
        """The window's own jobs."""
        return np.arange(len(self.jobs)) >= self.past

    @property
    def groups(self) -> Category:
        """Whom fairness is about: users, or partitions where no user is known."""
        return self.jobs.user if (self.jobs.user.codes[self.past :] >= 0).any() else self.jobs.partition

    @cached_property
    def asked(self) -> Requests:
        """What `submitted` asks of the cluster: the same for every policy."""
        return requests(self.shape, self.submitted, self.estimates.time_limit)

    @property
    def rejected(self) -> dict[int, str]:
        """Reason by row: jobs of the window that can never run on this cluster, whoever ranks them."""
        return {row: reason for row, reason in self.asked.rejected.items() if row >= self.past}

    @property
    def killed(self) -> Bools:
        """(n,) jobs that run into their time limit."""
        return np.asarray(self.jobs.run_time > self.estimates.time_limit, dtype=np.bool_)

    @property
    def capacity(self) -> float:
        """GPUs of the usable nodes."""
        return float(self.shape.nodes.gpus[self.shape.nodes.usable].sum())

    @property
    def load(self) -> float:
        """GPU-seconds of the window's jobs, over what the GPUs can do while these are submitted; infinite: at once."""
        rows, jobs = self.measured & ~np.isin(np.arange(len(self.jobs)), list(self.rejected)), self.jobs
        asked = float((np.minimum(jobs.run_time, self.estimates.time_limit) * jobs.gpus)[rows].sum())
        able = float(np.ptp(jobs.submit_time[self.measured])) * self.capacity
        return asked / able if able else np.inf

    def own_estimates(self) -> Estimates:
        """`estimates` for one simulation: what a predictor learns changes the run times."""
        return Estimates(self.estimates.time_limit, self.estimates.run_time.copy())

    def metrics(self, start: Floats, end: Floats, runs: Runs | None = None) -> dict[str, float]:
        """`WindowMetrics` and `AgainstSlurm`, by name, of a simulation with these (n,) starts and ends, seconds, NaN
        where a job never ran; `runs`: of `measure`.
        """
        submit, gpus = self.jobs.submit_time, self.jobs.gpus.astype(np.float64)
        found = measure(submit, start, end, gpus, self.measured, self.groups, self.capacity, runs)
        fares = NOT_ASKED
        if self.slurm is not None:
            accounts = owners(self.jobs.account, self.jobs.user)
            fares = against_slurm(submit, start, self.slurm, self.measured, accounts)
        return found._asdict() | fares._asdict()


def cases(
    jobs: Workload,
    estimates: Estimates,
    shape: ClusterShape,
    windows: Sequence[Window],
    past: int = 0,
    *,
    history: bool = False,
    named: bool = False,
    warming: SimulationSettings = _USUAL,
    seed: int = 0,
) -> Iterator[Case]:
    """The windows of a trace; `past`: jobs before each that a warm start simulates, as far as there are any."""
    for window in windows:
        first = max(window.start - past, 0)
        rows = slice(first, window.start + window.jobs)
        earlier = slice(max(first - PAST_JOBS, 0), first if history else 0)
        zero = float(jobs.submit_time[window.start])
        yield Case(
            window=window,
            shape=shape,
            jobs=_rebased(jobs.take(rows), zero),
            past=window.start - first,
            estimates=estimates.take(rows),
            before=_rebased(jobs.take(earlier), zero),
            before_estimates=estimates.take(earlier),
            history=history,
            named=named,
            warming=warming,
            seed=seed,
        )


def _rebased(jobs: Workload, zero: float) -> Workload:
    return replace(jobs, submit_time=jobs.submit_time - zero)

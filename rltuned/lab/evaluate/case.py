"""One window, cut out of its trace with all that a simulation of it needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from rltuned.core.tables import Bools, Category, Floats, Rows, owners
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
    since: float = 0.0  # when the first of the past was submitted, on the same clock: what ended before is known
    really: Floats | None = None
    """(past,) when the jobs of the past were submitted, if they come otherwise (`Start.REAL`)."""
    slurm: Floats | None = None
    """(n,) starts in Slurm's own order, seconds, where accounts are held against it."""

    @property
    def submitted(self) -> Workload:
        """`jobs` as they are submitted to the cluster."""
        return submitted(self.jobs, self.shape)

    @property
    def submit_time(self) -> Floats:
        """(n,) when the jobs were submitted, which of the past need not be when they come (`really`)."""
        come = self.jobs.submit_time
        return come if self.really is None else np.concatenate((self.really, come[self.past :]))

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


def submitted(jobs: Workload, shape: ClusterShape) -> Workload:
    """Jobs as they are submitted: to the cluster's only partition, where that is none of the trace's."""
    if len(shape.partitions) > 1 or shape.partitions[0].name in jobs.partition.names:
        return jobs
    return replace(jobs, partition=Category(np.full(len(jobs), -1, dtype=np.int32), ()))


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
    really: bool = False,
) -> Iterator[Case]:
    """The windows of a trace; `past`: jobs before each that are simulated, too, as far as there are any. `really`: and
    earlier ones that still ran or waited; those that had started come when they did, the others with the window.
    """
    for window in windows:
        first, last = max(window.start - past, 0), window.start + window.jobs
        rows, come = np.arange(first, last), jobs.submit_time[first:last]
        if really:
            rows, come = _as_it_was(jobs, first, window)
        earlier = slice(max(first - PAST_JOBS, 0), first if history else 0)
        zero, before = float(jobs.submit_time[window.start]), len(rows) - window.jobs
        yield Case(
            window=window,
            shape=shape,
            jobs=replace(jobs.take(rows), submit_time=come - zero),
            past=before,
            estimates=estimates.take(rows),
            before=_rebased(jobs.take(earlier), zero),
            before_estimates=estimates.take(earlier),
            history=history,
            named=named,
            warming=warming,
            seed=seed,
            since=float(jobs.submit_time[first]) - zero,
            really=jobs.submit_time[rows[:before]] - zero if really else None,
        )


def _as_it_was(jobs: Workload, first: int, window: Window) -> tuple[Rows, Floats]:
    """Rows of the jobs of a simulation that begins as the cluster really was, and when they come: those from `first`
    on, and earlier ones that had not ended. Where it is not known when a job started, it comes when it was submitted.
    """
    zero, last = jobs.submit_time[window.start], window.start + window.jobs
    start = jobs.submit_time + jobs.wait_time
    there = np.flatnonzero((start + jobs.run_time)[:first] > zero)
    rows = np.concatenate((there, np.arange(first, last)))
    really = np.where(np.isnan(start), jobs.submit_time, np.minimum(start, zero))[rows]
    come = np.where(rows < window.start, really, jobs.submit_time[rows])
    order = np.argsort(come, kind="stable")
    return rows[order], come[order]


def _rebased(jobs: Workload, zero: float) -> Workload:
    return replace(jobs, submit_time=jobs.submit_time - zero)

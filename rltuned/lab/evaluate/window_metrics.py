"""What is measured of one policy on one window. Pure functions over arrays; times in seconds."""

from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Bools, Category, Floats, Ints
from rltuned.simulate.values import bounded_slowdown

LEAST_JOBS: Final = 5  # jobs of a window that an account must have for its mean wait to say something
PATIENCE: Final = 300.0  # seconds that nobody minds: they are added to waits before a ratio of two is taken


class Runs(NamedTuple):
    """Runs of jobs; R rows."""

    row: Ints  # of the workload
    submit: Floats  # seconds, like start and end: since when it waited for that run
    start: Floats
    end: Floats
    gpus: Floats  # that it had


class AgainstSlurm(NamedTuple):
    """How accounts and jobs fare against Slurm's own order; NaN where nothing is known."""

    accounts_worse: float
    """Share of the accounts with `LEAST_JOBS` jobs and more whose mean wait is longer, by more than a tenth and five
    minutes."""
    worst_tenth: float
    """90th percentile over the same accounts of (mean wait + five minutes) over that in Slurm's own order."""
    late: float  # share of the jobs that start later, by more than a tenth of their wait and an hour
    wait_ratio_p95: float
    """95th percentile over the jobs of (wait + five minutes) over that in Slurm's own order."""


AGAINST_SLURM: Final = AgainstSlurm._fields
_UNKNOWN: Final = float("nan")
NOT_ASKED: Final = AgainstSlurm(*[_UNKNOWN] * len(AGAINST_SLURM))


class WindowMetrics(NamedTuple):
    """Of the jobs of a window that ran; NaN where there is nothing to measure."""

    wait_mean: float  # start − submission
    wait_p50: float
    wait_p99: float
    wait_max: float
    jct_mean: float  # end − submission
    bsld_mean: float  # bounded slowdown (`rltuned.simulate.values.bounded_slowdown`)
    utilization: float  # per cent of the GPU-seconds that the cluster had during the makespan
    makespan: float  # last end − first submission
    idle: float
    """GPU-hours that stand idle while a job waits, until the last submission: then a window runs dry, as no cluster
    does."""
    fairness: float  # Jain's index of the users' mean bounded slowdowns (`fairness`)


COMPARED: Final = (*WindowMetrics._fields, "objective")
"""The metrics that policies are compared by, in the order of reports. Scheduling time is none: it is the machine's."""


def fairness(slowdown: Floats, groups: Category) -> float:
    """Jain's index (Σx)² / (n Σx²) of the mean slowdown of each group: 1 when all are equal, 1/n when one has
    everything. Jobs of none are left out; NaN for fewer than two groups.
    """
    known = groups.codes >= 0
    counts = np.bincount(groups.codes[known], minlength=len(groups.names))
    sums = np.bincount(groups.codes[known], weights=slowdown[known], minlength=len(groups.names))
    there = counts > 0
    shares = sums[there] / counts[there]
    squares = len(shares) * float(np.sum(shares**2))
    return float(np.sum(shares)) ** 2 / squares if len(shares) > 1 and squares > 0 else float("nan")


def busy(start: Floats, end: Floats, gpus: Floats, first: float, last: float) -> float:
    """GPU-seconds that jobs hold between two moments; NaN starts and ends belong to jobs that never ran."""
    held = np.minimum(np.where(np.isnan(end), last, end), last) - np.maximum(start, first)
    return float(np.nansum(np.maximum(held, 0.0) * gpus))


def most_in_use(start: Floats, end: Floats, gpus: Floats) -> float:
    """The most GPUs that jobs ever held at once; NaN starts and ends belong to jobs that never ran."""
    ran = np.isfinite(start) & np.isfinite(end)
    held = np.concatenate((-gpus[ran], gpus[ran]))  # what ends makes room for what starts then
    order = np.argsort(np.concatenate((end[ran], start[ran])), kind="stable")
    return float(np.cumsum(held[order]).max(initial=0.0))


def idle_while_waiting(
    submit: Floats, start: Floats, end: Floats, gpus: Floats, span: tuple[float, float], capacity: float
) -> float:
    """GPU-seconds between two moments that no job holds while at least one waits; jobs that never ran do not wait."""
    ran = ~np.isnan(start)
    held = gpus[ran]
    moment = np.concatenate((submit[ran], start[ran], np.where(np.isnan(end), np.inf, end)[ran]))
    waiting = np.repeat((1, -1, 0), len(held))
    holding = np.concatenate((np.zeros(len(held)), held, -held))
    order = np.argsort(moment, kind="stable")
    lasts = np.diff(np.clip(moment[order], *span))
    waiting, holding = np.cumsum(waiting[order])[:-1], np.cumsum(holding[order])[:-1]
    return float((lasts * (capacity - holding))[waiting > 0].sum())


def measure(
    submit: Floats,
    start: Floats,
    end: Floats,
    gpus: Floats,
    measured: Bools,
    groups: Category,
    capacity: float,
    runs: Runs | None = None,
) -> WindowMetrics:
    """Metrics of one simulation of n jobs, (n,) each; seconds, NaN for a job that never ran.

    `measured`: the window's jobs; others (of a warm start) only count as load. `groups`: user (or partition) of each
    job. `capacity`: GPUs of the cluster. `runs`: None: each job has run once, on its GPUs.
    """
    if runs is None:
        runs = Runs(np.arange(len(submit)), submit, start, end, gpus)
    ran = measured & ~np.isnan(start) & ~np.isnan(end)
    if not ran.any():
        return WindowMetrics(*[_UNKNOWN] * len(WindowMetrics._fields))
    wait, jct = start[ran] - submit[ran], end[ran] - submit[ran]
    slowdown = bounded_slowdown(wait, end[ran] - start[ran])
    first, last = float(submit[ran].min()), float(end[ran].max())
    supply = capacity * (last - first)
    middle, high = np.percentile(wait, [50.0, 99.0])
    return WindowMetrics(
        wait_mean=float(wait.mean()),
        wait_p50=float(middle),
        wait_p99=float(high),
        wait_max=float(wait.max()),
        jct_mean=float(jct.mean()),
        bsld_mean=float(slowdown.mean()),
        utilization=100.0 * busy(*runs[2:], first, last) / supply if supply > 0 else float("nan"),
        makespan=last - first,
        idle=idle_while_waiting(*runs[1:], (first, float(submit[ran].max())), capacity) / 3600.0,
        fairness=fairness(slowdown, groups[ran]),
    )


def against_slurm(submit: Floats, start: Floats, slurm: Floats, measured: Bools, accounts: Category) -> AgainstSlurm:
    """How accounts and jobs fare in one simulation, (n,) each as of `measure`, over Slurm's own order, in which they
    start at `slurm`. Jobs of none belong to no account.
    """
    ran = measured & ~np.isnan(start) & ~np.isnan(slurm)
    if not ran.any():
        return NOT_ASKED
    wait, before = (start - submit)[ran], (slurm - submit)[ran]
    late = float((wait > 1.1 * before + 3600.0).mean())
    high = float(np.quantile((wait + PATIENCE) / (before + PATIENCE), 0.95))
    of = accounts.codes[ran]
    known, size = of >= 0, len(accounts.names)
    count = np.bincount(of[known], minlength=size)
    many = count >= LEAST_JOBS
    if not many.any():
        return AgainstSlurm(_UNKNOWN, _UNKNOWN, late, high)
    now, then = (
        np.bincount(of[known], weights=each[known], minlength=size)[many] / count[many] for each in (wait, before)
    )
    worse = float(((now > 1.1 * then) & (now > then + PATIENCE)).mean())
    return AgainstSlurm(worse, float(np.quantile((now + PATIENCE) / (then + PATIENCE), 0.9)), late, high)

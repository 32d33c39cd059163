"""What no schedule can beat: lower bounds of the mean completion time of a set of jobs on G GPUs.

**Area.** A job of g GPUs and r seconds needs g·r GPU-seconds, and all jobs together get at most G of them per second.
Look at one machine that does G units of work per second, and at any schedule of the cluster, whatever it knows,
preempts, packs or leaves idle. Let the machine give each job, at every moment, the share that the cluster gives it:
that is allowed, and no job ends later there. So the best mean completion time of that machine is at most the cluster's.
Sharing does not help such a machine: preemptive SRPT (the smallest remaining work first) has the least mean completion
time of all schedules with release times (Schrage 1968). Hence its mean is a lower bound for every schedule of the
cluster. It forgets that a job cannot run faster than on its g GPUs, and that GPUs come in nodes.

**Run times.** No job ends before it has run: the mean of r is a lower bound as well.

The two cannot be added, and the larger cannot be taken job by job (SRPT minimises the mean, not each job's time). The
larger of the two means is a lower bound.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from rltuned.cluster.tables import Floats


@dataclass(frozen=True)
class LowerBound:
    """Seconds; NaN for no jobs."""

    jct_mean: float
    """Of preemptive SRPT on GPU-area."""
    run_time_mean: float
    """Of the jobs' own run times."""

    @property
    def larger(self) -> float:
        """The larger of the two: still a lower bound."""
        return max(self.jct_mean, self.run_time_mean)


def lower_bound(submit: Floats, run_time: Floats, gpus: Floats, capacity: float) -> LowerBound:
    """Bounds of the mean completion time of n jobs. (n,) each; seconds, seconds, GPUs; `capacity`: GPUs of the cluster.

    A job of no GPUs has no area: only its run time counts. Without any GPU in the cluster there is no area bound (0).
    """
    if not len(submit):
        return LowerBound(float("nan"), float("nan"))
    return LowerBound(
        srpt(submit, run_time * gpus, capacity) if capacity > 0 else 0.0,
        float(np.mean(run_time)),
    )


def srpt(submit: Floats, work: Floats, speed: float) -> float:
    """Mean completion time (end − submission) of preemptive SRPT on one machine; (n,) each. O(n log n)."""
    order = np.argsort(submit, kind="stable")
    arrivals, works = submit[order].tolist(), work[order].tolist()
    n, total, now, at = len(arrivals), 0.0, 0.0, 0
    waiting: list[tuple[float, float]] = []  # (remaining work, submission)
    while at < n or waiting:
        if not waiting:
            now = max(now, arrivals[at]) if at else arrivals[at]
        while at < n and arrivals[at] <= now:
            heapq.heappush(waiting, (works[at], arrivals[at]))
            at += 1
        left, came = waiting[0]
        until = now + left / speed
        if at < n and arrivals[at] < until:
            heapq.heapreplace(waiting, (left - (arrivals[at] - now) * speed, came))
            now = arrivals[at]
        else:
            heapq.heappop(waiting)
            total += until - came
            now = until
    return total / n

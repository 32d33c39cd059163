"""Small windows for the tests of training."""

import numpy as np

from rltuned.cluster.shape import parse_shape
from rltuned.evaluate.case import Case
from rltuned.evaluate.windows import Window
from rltuned.workload.jobs import Source, Workload, workload
from rltuned.workload.simulated_estimates import estimate


def jobs_of(submit, run, gpus) -> Workload:
    return workload(Source("by hand", sha256="0" * 64, form="csv"), submit, run, gpus)


def busy_jobs(n: int = 60, seed: int = 3) -> Workload:
    """Jobs that a cluster of 2 × 4 GPUs cannot keep up with."""
    rng = np.random.default_rng(seed)
    return jobs_of(
        np.cumsum(rng.exponential(60.0, n)).round(),
        np.maximum(rng.lognormal(6.5, 1.5, n).round(), 1.0),
        rng.choice([1, 1, 2, 4, 8], n),
    )


def case_of(jobs: Workload, cluster: str = "2x4", estimates: str = "true") -> Case:
    made, none = estimate(jobs, estimates, 1), jobs.take(slice(0))
    return Case(Window(0, 0, len(jobs)), parse_shape(cluster), jobs, 0, made, none, estimate(none, "true", 1))


def waiting_at_once(n: int = 12, seed: int = 0) -> Case:
    """One GPU, and jobs of different lengths that all come at the same time: the best order is the shortest first."""
    lengths = np.random.default_rng(seed).permutation(np.geomspace(60.0, 36_000.0, n).round())
    return case_of(jobs_of(np.zeros(n), lengths, np.ones(n, dtype=int)), "1x1")

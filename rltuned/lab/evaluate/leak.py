"""How much time limits tell of run times.

Users' own tell little. Limits that were drawn from run times tell nearly all, and a predictor learns it from them: what
is evaluated with such limits knows what no site knows (docs/estimates.md).
"""

from typing import Final

import numpy as np

from rltuned.core.tables import Floats
from rltuned.simulate.workload.jobs import Workload

LEAK: Final = 0.5
"""Correlation above which limits tell more than users' own do: these tell 0.19 to 0.46, drawn ones 0.85 and more
(`python -m studies.limits`)."""
FEWEST: Final = 100
"""Jobs beyond the first of a user and size: fewer say nothing."""
ROUNDING: Final = 1e-6  # a sum of squares below this is of equal values


def products(jobs: Workload, limit: Floats) -> Floats:
    """(3, U) sums over the jobs of each user of x · y, x² and y²: ln limit and ln run time, each less its mean over the
    jobs of the same user with as many GPUs. Jobs that name no user are one user's; `limit`: (N,) seconds, NaN or
    infinite for jobs to leave out. Zeros, where too few are left.
    """
    known = np.isfinite(limit)
    user, gpus = jobs.user.codes[known] + 1, jobs.gpus[known]
    _, group = np.unique(np.column_stack((user, gpus)), axis=0, return_inverse=True)
    count = np.bincount(group)
    if int((count - 1).sum()) < FEWEST:
        return np.zeros((3, 1))
    x, y = (
        of - (np.bincount(group, weights=of) / count)[group]
        for of in (np.log(limit[known]), np.log(np.maximum(jobs.run_time[known], 1.0)))
    )
    return np.array([np.bincount(user, weights=of) for of in (x * y, x * x, y * y)])


def told(jobs: Workload, limit: Floats) -> float | None:
    """Correlation of ln limit and ln run time among jobs of one user and size. None: too few jobs, or each user has one
    limit, which tells nothing. `limit`: as `products`.
    """
    xy, xx, yy = products(jobs, limit).sum(axis=1)
    return float(xy / np.sqrt(xx * yy)) if min(xx, yy) > ROUNDING else None

"""What training begins with: smallest area first, on the run times that are expected."""

from collections.abc import Sequence

import numpy as np

from rltuned.cluster.tables import Singles
from rltuned.evaluate.case import Case
from rltuned.observe.features import RUN_TIME_HORIZON
from rltuned.observe.observation import GPUS_SCALE
from rltuned.policy.actor import Actor, plain_rule


def run_time_coefficients(cases: Sequence[Case]) -> Singles:
    """(3,) c of ln T = c0 + c1 ln r + c2 ln L by least squares over the jobs whose estimate is below their limit.

    (0, 1, 0), the estimate itself, where these are too few to say, and the limit counts as one of 30 days at most.
    """
    estimate_itself = np.array([0.0, 1.0, 0.0], dtype=np.float32)
    if not cases:
        return estimate_itself
    r = np.concatenate([case.estimates.run_time for case in cases])
    limit = np.minimum(np.concatenate([case.estimates.time_limit for case in cases]), RUN_TIME_HORIZON)
    true = np.maximum(np.concatenate([case.jobs.run_time for case in cases]), 1.0)
    known = r < limit
    if np.count_nonzero(known) < 100:
        return estimate_itself
    columns = np.column_stack((np.ones(known.sum()), np.log(r[known]), np.log(limit[known])))
    found, *_ = np.linalg.lstsq(columns, np.log(true[known]), rcond=None)
    return np.asarray(found, dtype=np.float32)


def smallest_area_first(name: str, run_time: Singles) -> Actor:
    """SAF on the run times that these coefficients expect."""
    return plain_rule(
        name, run_time, requested_time=-1.0, requested_gpus=-GPUS_SCALE / float(np.log1p(RUN_TIME_HORIZON))
    )

"""Which of the eligible jobs the policy sees."""

from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import JobTable

WINDOW: Final = 256
"""Rows of the observation (paper §4.1)."""

HEAD_SHARE: Final = 0.75
"""Share of a full window that goes to the head of the queue; the rest is the even sample."""


def select_window(jobs: JobTable, rows: npt.NDArray[np.intp], size: int = WINDOW) -> npt.NDArray[np.intp]:
    """Where in `rows` the jobs stand that are seen: at most `size`, in Slurm's order (priority, submission, job id).

    When there are more, the first three quarters of the window are the head of the queue and the rest is taken at even
    distances from the jobs behind it, so that a short job far back has its chance. Which jobs these are does not depend
    on the order of `rows`.
    """
    order = np.lexsort((jobs.job_id[rows], jobs.submit_time[rows], -jobs.priority[rows]))
    if len(order) <= size:
        return order
    head = int(size * HEAD_SHARE)
    behind = len(order) - head
    sampled = size - head
    # The middle of each of `sampled` equal stretches: integers, so no rounding decides who is seen.
    middle = head + (2 * np.arange(sampled) + 1) * behind // (2 * sampled)
    return np.concatenate((order[:head], order[middle]))

"""Which of the eligible jobs the policy sees."""

from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Codes, Floats, JobTable

WINDOW: Final = 256  # rows of the observation (paper §4.1)

HEAD_SHARE: Final = 0.75
"""Share of a full window that goes to the head of the queue; the rest goes to the smallest jobs behind it."""


OF_USER: Final = 8
"""Jobs behind the head that come before others because of their size, of one user: small ones that wait for ever,
with a nice that is large enough, cost their user nothing."""


def select_window(
    jobs: JobTable, rows: npt.NDArray[np.intp], area: Floats, users: Codes | None = None
) -> npt.NDArray[np.intp]:
    """Where in `rows` the jobs stand that are seen: at most `WINDOW`, in Slurm's order (priority, submission, job id).

    When there are more, the first three quarters of the window are the head of the queue, and the rest are the smallest
    jobs behind it: those that a policy would most likely put in front. In the next cycle they are in the head, and the
    next smallest are seen. Which jobs these are does not depend on the order of `rows`.

    Args:
        jobs: the job table.
        rows: (n,) rows of the jobs that may be ranked.
        area: (n,) how small a job is: estimated run time times GPUs.
        users: (n,) whose job each is: of each user `OF_USER` of the smallest jobs come first. None: all are one's.
    """
    order = np.lexsort((jobs.job_id[rows], jobs.submit_time[rows], -jobs.priority[rows]))
    if len(order) <= WINDOW:
        return order
    head = int(WINDOW * HEAD_SHARE)
    smallest = np.argsort(area[order[head:]], kind="stable")
    if users is not None:
        of = users[order[head:]][smallest]
        by_user = np.argsort(of, kind="stable")
        first = np.searchsorted(of[by_user], of[by_user])
        more = np.empty(len(of), dtype=np.bool_)
        more[by_user] = np.arange(len(of)) - first >= OF_USER
        smallest = smallest[np.argsort(more, kind="stable")]
    return np.concatenate((order[:head], order[head + np.sort(smallest[: WINDOW - head])]))

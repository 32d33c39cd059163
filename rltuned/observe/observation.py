"""What a policy sees."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats


@dataclass(frozen=True)
class Observation:
    """The window of pending jobs as the networks and the plain rules see it (paper §4.1; W = 256 rows).

    Rows past the number of visible jobs are zero and masked out.
    """

    state: npt.NDArray[np.float32]
    """(W, 8) sampled features, `columns` names them."""
    critic: npt.NDArray[np.float32]
    """(W, 5): wait, requested_time, requested_gpus, can_schedule_now, job_size."""
    mask: npt.NDArray[np.bool_]
    """(W,) which rows are jobs."""
    rows: npt.NDArray[np.intp]
    """(n,) row in the snapshot's job table of each visible job; n = mask.sum()."""
    columns: tuple[str, ...]
    """Names of the 8 columns of `state`, in order."""
    features: npt.NDArray[np.float32]
    """(n, 14) all numeric features before sampling (Table 3 and the limit); `observe.FEATURES` names them."""
    run_time: Floats
    """(n,) estimated run time, s."""
    time_limit: Floats
    """(n,) s, at least 1, infinite when unlimited."""
    gpus: Floats
    """(n,) GPUs in all; plain rules use max(gpus, 1) so that CPU jobs have a size."""
    wait: Floats
    """(n,) seconds since eligible."""
    submit: Floats
    """(n,) seconds since the start of the window (earliest submission among the visible)."""
    priority: Floats
    """(n,) what Slurm alone gives: the priority without the site factor."""

    def __len__(self) -> int:
        return len(self.rows)

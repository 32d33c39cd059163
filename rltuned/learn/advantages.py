"""How much better each decision was than those of other orders of the same queue. NumPy only: workers compute it."""

from collections.abc import Sequence

import numpy as np

from rltuned.cluster.tables import Floats
from rltuned.learn.cost import FinishedJobs, Objective, cost


def leave_one_out(
    objective: Objective, trajectories: Sequence[FinishedJobs], base: FinishedJobs, times: Sequence[Floats]
) -> list[Floats]:
    """Advantage of each step of each of K trajectories of the same arrivals: the cost-to-go of the others at that time,
    on average, less that of this one (an input-dependent baseline, Mao et al., ICLR 2019; RLOO).

    `times`: of the steps of each trajectory, seconds.
    """
    grid = np.unique(np.concatenate(times))
    spans = [cost(objective, one, base) for one in trajectories]
    ahead = np.array([one.total for one in spans])[:, None] - np.stack([one.until(grid) for one in spans])
    others = (ahead.sum(axis=0) - ahead) / max(len(trajectories) - 1, 1)
    return [(others[at] - ahead[at])[np.searchsorted(grid, each)] for at, each in enumerate(times)]

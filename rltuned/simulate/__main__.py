"""``python -m rltuned.simulate``: compile the kernel now, so that nobody waits for it later (Numba keeps what it compiled)."""

import numpy as np

from rltuned.cluster.shape import parse_shape
from rltuned.policy import by_name
from rltuned.simulate import Estimates, RuleRanker, simulate
from rltuned.workload.jobs import Source, workload

if __name__ == "__main__":
    one = workload(Source("one job"), [0.0], [1.0], [1])
    simulate(parse_shape("1x1"), one, Estimates(np.ones(1), np.ones(1)), RuleRanker(by_name("fifo")))

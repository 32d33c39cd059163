"""RLScheduler (Zhang, Dai, He, Bao and Xie, SC'20), a learned peer to compare with: a small network scores each job.

What is theirs: the kernel network, an MLP of 32, 16 and 8 units that all visible jobs share; a window of 128 jobs in
order of submission; the picked job is the one of the highest output; which job attributes it sees. What is different
here, and why:

- They pick one job at each decision, and wait for it to fit (with backfill behind it). The output for a job depends on
  that job alone, so picking again and again from unchanged outputs is the order of the outputs: that order is the
  ranking. Between two refreshes it stands, while their picks would follow the clock.
- Their wait is cut at 12 hours and their run time scaled by the longest of the trace. Here both have the logarithmic
  scale of `rltuned.decide.see`, on which a day and a week differ, and which needs no look at the trace.
- User, group and executable ids are not inputs: as numbers they mean nothing, and on another cluster other things.
- Their public code fills the window with short and small jobs once more than 128 wait, and not first come first served
  as the paper has it. Here it is the paper's. Jobs beyond the window follow behind, as they were submitted.

It ranks what an `Observation` shows, at most 256 of the queue.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Bools, Floats
from rltuned.decide.rank.heuristics import places
from rltuned.decide.see.features import FEATURES
from rltuned.decide.see.observation import Observation
from studies.peers.net import Net, untrained

COLUMNS: Final = ("submit_time", "requested_time", "requested_gpus", "req_mem", "can_schedule_now")
"""The kernel's inputs, all of `decide.see.FEATURES`: wait, run time, GPUs, memory, whether it could start now."""

VISIBLE: Final = 128
"""Jobs that the network sees (MAX_QUEUE_SIZE)."""

_FROM: Final = tuple(FEATURES.index(name) for name in COLUMNS)


@dataclass(frozen=True)
class RLScheduler:
    """A `Policy`."""

    net: Net
    """Its inputs are `COLUMNS`."""

    @property
    def name(self) -> str:
        """Name the model."""
        return self.net.name

    def score(self, observation: Observation) -> Floats:
        """(n,) 0 for the job that is picked first, −1 for the next …, then those that the network does not see."""
        seen = visible(observation)
        # Rounded: equal jobs must tie whatever their place in the matrix.
        key = np.where(seen, -np.round(self.net.network(inputs(observation)), 6), np.inf)
        return -places(key, observation.submit).astype(np.float64)


def inputs(observation: Observation) -> npt.NDArray[np.float32]:
    """(n, 5) `COLUMNS` of the observed jobs."""
    return observation.features.take(_FROM, axis=1)


def visible(observation: Observation) -> Bools:
    """(n,) the jobs with fewer than `VISIBLE` submitted before them; of those submitted at once, all or none."""
    return np.asarray(np.searchsorted(np.sort(observation.submit), observation.submit) < VISIBLE, dtype=np.bool_)


def fresh(seed: int, name: str = "rlscheduler") -> RLScheduler:
    """An untrained one, the same for the same seed."""
    return RLScheduler(untrained(name, len(COLUMNS), seed))

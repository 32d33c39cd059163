"""SchedInspector (Zhang, Dai and Xie, HPDC'22), a learned peer: a base rule picks, a network may reject.

What is theirs: at each decision the base rule picks one job, and a small network that sees this job and the state of
the cluster accepts or rejects it; a rejected job is looked at again at the next decision, at most 72 times, and a
rejection lasts at most 600 s (72 · 600 s = 12 h). What is different here, and why:

- Their rejection stops *everything* until the next event or for 600 s: nothing starts, GPUs stay free on purpose for
  what may come. A ranking cannot say that, and Slurm will not leave GPUs free for the first job of a queue: only a hold
  would, and rltuned never holds. Here a rejected job goes to the end of the ranking until the next refresh, and others
  may start in its place. That gives away what their inspector gains from waiting, and keeps what it gains from the
  order.
- One job is inspected per refresh, the base rule's first.
- How often a job was rejected is not in a queue of Slurm. The most there can have been is taken, one per 600 s of wait:
  so a job of more than 12 h is never rejected again.
- Their public code has seven inputs; the paper names an eighth, the backfilling contribution, without a formula that we
  could find. Here it is the share of the other jobs that could start now. Time and size inputs are on the scales of
  `rltuned.decide.see`; the sum over the queue is scaled by the window of 256.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Floats, Ints
from rltuned.decide.rank.heuristics import Rule, by_name
from rltuned.decide.see.features import FEATURES
from rltuned.decide.see.observation import WINDOW, Observation
from studies.peers.net import Net, untrained

COLUMNS: Final = (
    "submit_time",
    "requested_time",
    "requested_gpus",
    "free_nodes",
    "can_schedule_now",
    "rejections",
    "queue_delay",
    "backfilling",
)
"""The network's inputs. The first five are the picked job's of `decide.see.FEATURES` (wait, run time, GPUs, idle
nodes of its pool, whether it could start now); rejections over 72; what a delay of all waiting jobs by 600 s adds to
their bounded slowdowns; the share of the other jobs that could start now."""

MAX_REJECTIONS: Final = 72
INTERVAL: Final = 600.0
"""Seconds that a rejection lasts at most."""

_BOUND: Final = 10.0
"""Seconds; the bound of the bounded slowdown."""

_FROM: Final = tuple(FEATURES.index(name) for name in COLUMNS[:5])
_RUNNABLE: Final = FEATURES.index("can_schedule_now")


@dataclass(frozen=True)
class SchedInspector:
    """A `Policy` around another one."""

    net: Net
    """Its inputs are `COLUMNS`. Theirs ends in two outputs, accept and reject; this one is their difference: positive
    rejects."""
    base: Rule
    """Picks the job."""

    @property
    def name(self) -> str:
        """Name the model."""
        return self.net.name

    def score(self, observation: Observation) -> Floats:
        """(n,) the base rule's scores, its first job behind all others if the network rejects it."""
        scores = self.base.score(observation)
        if len(scores):
            rejections = rejected_before(observation)
            picked = head(observation, self.base, rejections)
            row = inputs(observation, picked, int(rejections[picked]))[None]
            if rejections[picked] < MAX_REJECTIONS and self.net.network(row)[0] > 0.0:
                scores[picked] = scores.min() - 1.0
        return scores


def rejected_before(observation: Observation) -> Ints:
    """(n,) how often each job may have been rejected."""
    return np.floor(observation.wait / INTERVAL).astype(np.int64)


def head(observation: Observation, base: Rule, rejections: Ints) -> int:
    """The job that the base rule picks; of several equal ones, one that does not depend on the order of the rows."""
    first = np.flatnonzero(base.score(observation) == 0.0)
    columns = (*observation.features[first].T, rejections[first], observation.gpus[first], observation.run_time[first])
    return int(first[np.lexsort(columns)[0]])


def inputs(observation: Observation, picked: int, rejections: int) -> npt.NDArray[np.float32]:
    """(8,) `COLUMNS` for the job in row `picked`, which was rejected `rejections` times; all in [0, 1]."""
    row = np.empty(len(COLUMNS), dtype=np.float32)
    row[:5] = observation.features[picked, _FROM]
    row[5] = min(rejections / MAX_REJECTIONS, 1.0)
    delay = float((INTERVAL / np.maximum(observation.run_time, _BOUND)).sum())
    row[6] = min(delay / (INTERVAL / _BOUND * WINDOW), 1.0)
    runnable = observation.features[:, _RUNNABLE]
    others = max(len(observation) - 1, 1)
    row[7] = (float(runnable.sum()) - float(runnable[picked])) / others
    return row


def fresh(seed: int, base: str = "sjf", name: str = "schedinspector") -> SchedInspector:
    """An untrained one, the same for the same seed.

    Raises:
        ConfigError: there is no rule `base`.
    """
    return SchedInspector(untrained(name, len(COLUMNS), seed), by_name(base))

"""Whether jobs have really waited longer since a version came into force (docs/learning.md, decision 0152).

What really happened is held against one simulation of a plain rule (`YARDSTICK`) on the same jobs, before the change
and after it: a difference of differences, as a ratio. The load changes both alike; so does what the simulator lacks.

    D = (real wait / simulated wait, after) / (real wait / simulated wait, before)
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rltuned.core.tables import Codes, Floats
from rltuned.lab.evaluate.bootstrap import counts
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings, Start
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.windows import Window
from rltuned.records.gate_verdict import DAY
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

YARDSTICK: Final = "saf"
"""The simulated order. Any will do that answers to load as the real one does; it is not what the version is held
against."""
LOOK_DAYS: Final = 14.0
"""A version is watched for so long after it came into force, and compared with so long before."""
LEAD: Final = 500  # jobs that fill the simulated cluster before the first one that counts
SMALLEST_BLOCK: Final = 32
MOST_BLOCKS: Final = 30
FEWEST_BLOCKS: Final = 8  # on either side
CERTAINTY: Final = 0.99  # of one look, one-sided
MARGIN: Final = 1.25
"""So much longer must jobs wait with this certainty. Less may be chance: neighbouring blocks are not independent."""


@dataclass(frozen=True)
class Live:
    """What really happened since a version came into force."""

    ratio: float  # D; NaN: too few jobs, or nobody waits
    low: float  # its lower end at `CERTAINTY`, one-sided
    before: int  # blocks of jobs before the change
    after: int

    @property
    def worse(self) -> bool:
        """Whether jobs certainly wait longer than before."""
        return bool(self.low > MARGIN)

    def __str__(self) -> str:
        return f"{self.ratio:.3f} times as long as before it, at least {self.low:.3f} times with {CERTAINTY:.0%}"


UNKNOWN: Final = Live(float("nan"), float("nan"), 0, 0)


def look(
    settings: EvaluationSettings, jobs: Workload, shape: ClusterShape, revision: str, came: float, since: float
) -> Live:
    """One look at a version, with `settings` of `site.of_settings`, on `jobs` with real waits. Epoch seconds: the
    version before it `came` into force then, and it itself `since` then.
    """
    submitted = jobs.submit_time + jobs.source.start
    first = max(int(np.searchsorted(submitted, max(came, since - LOOK_DAYS * DAY))), LEAD)
    middle, last = (int(at) for at in np.searchsorted(submitted, [since, since + LOOK_DAYS * DAY]))
    if min(middle - first, last - middle) < FEWEST_BLOCKS * SMALLEST_BLOCK:
        return UNKNOWN
    asked = replace(settings, policies=(YARDSTICK,), window=last - first, windows=1, warm_jobs=LEAD, start=Start.WARM)
    (case,) = ready(asked, jobs, shape, revision, (Window(0, first, last - first),)).cases
    compile_kernel()
    result = simulate_case(case, contender(YARDSTICK, asked)).result()
    simulated = np.asarray((result.start - case.jobs.submit_time)[case.past :], dtype=np.float64)
    users = jobs.user.codes[first:last]
    return compare(jobs.wait_time[first:last], simulated, users, middle - first, settings.seed)


def compare(real: Floats, simulated: Floats, users: Codes, middle: int, seed: int) -> Live:
    """D of the waits of n jobs, seconds, in order of submission; the change was before job `middle`.

    The lower end is the lower one of two: with blocks of jobs resampled (Carlstein, Annals of Statistics 14, 1986), for
    neighbours in the queue are not independent; and with users resampled, for the jobs of one may wait for a node or a
    limit of their own.
    """
    rng, blocks = np.random.default_rng(seed), []
    sums = np.zeros((2, 2, int(users.max(initial=-1)) + 2))  # side, real and simulated, user
    for side, jobs in enumerate((slice(0, middle), slice(middle, None))):
        waits = np.stack((real[jobs], simulated[jobs]))
        known = np.isfinite(waits).all(axis=0)
        waits = waits[:, known]
        count = waits.shape[1]
        if count < FEWEST_BLOCKS * SMALLEST_BLOCK:
            return UNKNOWN
        starts = np.array_split(np.arange(count), min(count // SMALLEST_BLOCK, MOST_BLOCKS))
        blocks.append(np.add.reduceat(waits, [block[0] for block in starts], axis=1))
        np.add.at(sums[side].T, users[jobs][known], waits.T)
    sums = sums[:, :, sums.any(axis=(0, 1))]
    if sums.sum(axis=2).min() <= 0.0:
        return UNKNOWN
    of_blocks = [of @ counts(of.shape[1], rng).T for of in blocks]
    of_users = sums @ counts(sums.shape[2], rng).T
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0 of 0 could be anything, also no change for the worse.
        drawn = [np.nan_to_num(_ratio(*of), nan=0.0) for of in (of_blocks, of_users)]
    low = min(float(np.quantile(of, 1.0 - CERTAINTY)) for of in drawn)
    return Live(float(_ratio(*sums.sum(axis=2))), low, *(of.shape[1] for of in blocks))


def _ratio(before: Floats, after: Floats) -> Floats:
    """D of (2, …) sums of real and simulated waits."""
    found: Floats = after[0] / after[1] / (before[0] / before[1])
    return found

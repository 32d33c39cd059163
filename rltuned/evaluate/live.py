"""Whether jobs have really waited longer since a version came into force (docs/learning.md, decision 0152).

What really happened is held against one simulation of a plain rule (`YARDSTICK`) on the same jobs, before the change
and after it: a difference of differences, as a ratio. The load changes both alike; so does what the simulator lacks.

    D = (real wait / simulated wait, after) / (real wait / simulated wait, before)
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rltuned.cluster.gate_verdict import DAY
from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Floats
from rltuned.evaluate.bootstrap import RESAMPLES
from rltuned.evaluate.evaluation import ready
from rltuned.evaluate.evaluation_settings import EvaluationSettings, Start
from rltuned.evaluate.measure import simulate_case
from rltuned.evaluate.policies import contender
from rltuned.evaluate.windows import Window
from rltuned.simulate.rankers import compile_kernel
from rltuned.workload.jobs import Workload

YARDSTICK: Final = "saf"
"""The simulated order. Any will do that answers to load as the real one does; it is not what the version is held
against."""
LOOK_DAYS: Final = 14.0
"""A version is watched for so long after it came into force, and compared with so long before."""
LEAD: Final = 500
"""Jobs that fill the simulated cluster before the first one that counts."""
SMALLEST_BLOCK: Final = 32
MOST_BLOCKS: Final = 30
FEWEST_BLOCKS: Final = 8
"""On either side."""
CERTAINTY: Final = 0.99
"""Of one look, one-sided."""
MARGIN: Final = 1.25
"""So much longer must jobs wait with this certainty. Less may be chance: neighbouring blocks are not independent."""


@dataclass(frozen=True)
class Live:
    """What really happened since a version came into force."""

    ratio: float
    """D; NaN: too few jobs, or nobody waits."""
    low: float
    """Its lower end at `CERTAINTY`, one-sided."""
    before: int
    """Blocks of jobs before the change."""
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
    """One look at a version, with `settings` of the gate (`gate.site_of`), on `jobs` with real waits. Epoch seconds:
    the version before it `came` into force then, and it itself `since` then.
    """
    submitted = jobs.submit_time + jobs.source.start
    first = max(int(np.searchsorted(submitted, max(came, since - LOOK_DAYS * DAY))), LEAD)
    middle, last = (int(at) for at in np.searchsorted(submitted, [since, since + LOOK_DAYS * DAY]))
    if min(middle - first, last - middle) < FEWEST_BLOCKS * SMALLEST_BLOCK:
        return UNKNOWN
    asked = replace(settings, policies=(YARDSTICK,), window=last - first, windows=1, warm_jobs=LEAD, start=Start.WARM)
    (case,) = ready(asked, jobs, shape, revision, (Window(0, first, last - first),)).cases
    compile_kernel()
    result = simulate_case(case, contender(YARDSTICK, asked), asked).result()
    simulated = np.asarray((result.start - case.jobs.submit_time)[case.past :], dtype=np.float64)
    real, at = jobs.wait_time[first:last], middle - first
    return compare(real[:at], simulated[:at], real[at:], simulated[at:], settings.seed)


def compare(real: Floats, simulated: Floats, real_after: Floats, simulated_after: Floats, seed: int) -> Live:
    """D of the waits of jobs before the change and after it, (n,) and (m,) seconds, in order of submission. Blocks of
    jobs are resampled (Carlstein, Annals of Statistics 14, 1986): neighbours in the queue are not independent.
    """
    rng, sides = np.random.default_rng(seed), []
    for above, below in ((real, simulated), (real_after, simulated_after)):
        known = np.isfinite(above) & np.isfinite(below)
        rows = np.flatnonzero(known)
        if len(rows) < FEWEST_BLOCKS * SMALLEST_BLOCK:
            return UNKNOWN
        blocks = np.array_split(rows, min(len(rows) // SMALLEST_BLOCK, MOST_BLOCKS))
        sums = np.array([[above[block].sum(), below[block].sum()] for block in blocks])
        drawn = rng.multinomial(len(blocks), np.full(len(blocks), 1.0 / len(blocks)), size=RESAMPLES) @ sums
        sides.append((sums.sum(axis=0), drawn, len(blocks)))
    (was, was_drawn, before), (now, now_drawn, after) = sides
    if min(*was, *now) <= 0.0:
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (now_drawn[:, 0] / now_drawn[:, 1]) / (was_drawn[:, 0] / was_drawn[:, 1])
    # 0 of 0 could be anything, also no change for the worse.
    low = float(np.quantile(np.where(np.isfinite(drawn), drawn, 0.0), 1.0 - CERTAINTY))
    return Live(float(now[0] / now[1] / (was[0] / was[1])), low, before, after)

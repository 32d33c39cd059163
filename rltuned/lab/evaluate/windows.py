"""Which jobs: runs of consecutive ones, drawn once for all policies, from one part of a trace."""

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.bootstrap import FEWEST


class Split(enum.StrEnum):
    """Part of a trace, by time: what a policy is trained on comes before what it is measured on."""

    ALL = "all"
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


FRACTIONS: Final = {
    Split.ALL: (0.0, 1.0),
    Split.TRAIN: (0.0, 0.7),
    Split.VALIDATION: (0.7, 0.85),
    Split.TEST: (0.85, 1.0),
}
"""From where to where each part goes, as shares of the jobs in order of submission."""
RECENT: Final = 3000  # jobs of a window of `recent`: shorter ones never have the queue that a site has
SHORTEST: Final = 64
MOST: Final = 30  # of them


@dataclass(frozen=True)
class Window:
    """Consecutive jobs of a trace, so many from row `start` on; `index`: 0 for the first that was drawn."""

    index: int
    start: int
    jobs: int


def bounds(jobs: int, split: Split) -> tuple[int, int]:
    """First row of a part of a trace of `jobs` jobs, and the first row behind it."""
    first, last = FRACTIONS[split]
    return round(first * jobs), round(last * jobs)


def draw(jobs: int, length: int, count: int, seed: int, split: Split = Split.ALL) -> tuple[Window, ...]:
    """Windows that begin at different jobs, each equally likely, wholly inside of their part of the trace. Fewer
    windows of the same length and seed are the first of more. EvaluationError: the part has too few jobs or beginnings.
    """
    first, last = bounds(jobs, split)
    beginnings = last - first - length + 1
    part = (
        f"the trace has {last - first:,} jobs"
        if split is Split.ALL
        else f"its part '{split}' has {last - first:,} jobs"
    )
    if beginnings < 1:
        raise EvaluationError(
            f"a window of {length:,} jobs is longer than what it is drawn from: {part}; use a smaller --window"
        )
    if count > beginnings:
        raise EvaluationError(
            f"{count:,} windows of {length:,} jobs cannot begin at different jobs: {part}, so there are {beginnings:,} "
            f"beginnings; use a smaller --windows or --window"
        )
    starts = np.random.default_rng(seed).permutation(beginnings)[:count] + first
    return tuple(Window(index, int(start), length) for index, start in enumerate(starts))


def recent(
    jobs: int,
    split: Split,
    length: int | None = None,
    count: int = MOST,
    past: int | None = None,
    begin: int = 0,
    *,
    whose: str = "the gate",
) -> tuple[Window, ...]:
    """Windows that share no job, the last ones that fit into the recent part of a trace, from early to late.

    Disjoint, where `draw` lets windows overlap: a decision is taken on these, and overlapping windows look surer
    than they are. `split`: which part; the whole trace means its last half, so that there is a past to learn run times
    from. `length`: jobs of a window; None: `RECENT`, or fewer where the part is short. `count`: at most so many.
    `past`: jobs before each window that a warm start simulates; None: as many as a window has. The first window begins
    behind as many. `begin`: no window begins before this row. Raises EvaluationError: fewer than `FEWEST` fit; says of
    `whose`.
    """
    first, last = bounds(jobs, split) if split is not Split.ALL else (jobs // 2, jobs)
    first = max(first, begin)
    there = max(last - first, 0)
    chosen = length if length is not None else min(RECENT, there // FEWEST)
    first = max(first, chosen if past is None else past)
    fit = min((last - first) // chosen, count) if chosen else 0
    if fit < FEWEST or (length is None and chosen < SHORTEST):
        wanted = length if length is not None else SHORTEST
        raise EvaluationError(
            f"{whose} needs {FEWEST} windows of at least {wanted} jobs that share none, and the recent part "
            f"of the history has {there:,} jobs: give more of it (--from-sacct DAYS, --trace), or a smaller --window"
        )
    start = last - fit * chosen
    return tuple(Window(index, start + index * chosen, chosen) for index in range(fit))

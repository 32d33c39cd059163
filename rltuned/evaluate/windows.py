"""Which jobs: runs of consecutive ones, drawn once for all policies, from one part of a trace."""

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.errors import EvaluationError


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

"""Drift: whether the jobs that end now are still like those that a verdict was made on (docs/learning.md).

Of each feature the distance between two distributions is the largest difference of their shares of jobs below a value
(Kolmogorov and Smirnov). How large it may be by chance no formula says: users submit in bursts. So it is held against
what was usual: the largest distance between a stretch of `SAMPLE` jobs of the verdict's own history and all of them. If
the jobs of now are like any other stretch, they exceed the largest of m with a probability of 1 in m + 1.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rltuned.cluster.tables import Floats
from rltuned.cluster.verdict import DRIFT_FEATURES

SAMPLE: Final = 500
"""Jobs that are compared."""
FEWEST: Final = 200
"""Of now; fewer say nothing."""
STRETCHES: Final = 4
"""Least number of them in a history that says what is usual."""
ALARM: Final = 1.5
"""Times the usual distance."""
_LEAST: Final = 0.1
"""A smaller distance is no news, however even the history was."""
_SHORT: Final = 60.0
"""Seconds: as `rltuned.decide.predictions`."""


def columns(run_time: Floats, time_limit: Floats, gpus: Floats, predicted: Floats) -> dict[str, Floats]:
    """(n,) each, by feature. Seconds; not finite: not known of this job."""
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(np.log(np.maximum(run_time, _SHORT) / np.maximum(predicted, _SHORT)))
    return dict(zip(DRIFT_FEATURES, (run_time, time_limit, gpus, error), strict=True))


def usual(found: Mapping[str, Floats]) -> dict[str, Any]:
    """What is usual, of a history in order of time, as `columns`. Plain data, for a verdict's file.

    A feature that too few jobs have is left out.
    """
    made = {}
    for name, values in found.items():
        known = values[np.isfinite(values)]
        pieces = len(known) // SAMPLE
        if pieces < STRETCHES:
            continue
        points = np.unique(np.quantile(known, np.linspace(0.05, 0.95, 19)))
        below = _below(known, points)
        largest = max(float(np.abs(_below(piece, points) - below).max()) for piece in np.array_split(known, pieces))
        made[name] = {
            "points": [float(value) for value in points],
            "below": [round(float(value), 6) for value in below],
            "largest": round(max(largest, _LEAST), 6),
        }
    return made


def drift(made: Mapping[str, Any] | None, found: Mapping[str, Floats]) -> dict[str, float]:
    """How far the jobs of now are from a history, by feature: times its usual distance, NaN where that is not known.

    Args:
        made: `usual`, as a file had it: anything may be in it.
        found: `columns` of the last jobs.
    """
    ratios = dict.fromkeys(DRIFT_FEATURES, float("nan"))
    for name in DRIFT_FEATURES:
        values = found[name][np.isfinite(found[name])]
        try:
            one = (made or {})[name]
            points, below = np.array(one["points"], dtype=np.float64), np.array(one["below"], dtype=np.float64)
            if len(values) >= FEWEST and len(points) and points.shape == below.shape:
                ratios[name] = float(np.abs(_below(values, points) - below).max()) / float(one["largest"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            continue
    return ratios


def _below(values: Floats, points: Floats) -> Floats:
    """Share of the values at each point or below it."""
    return np.searchsorted(np.sort(values), points, side="right") / len(values)

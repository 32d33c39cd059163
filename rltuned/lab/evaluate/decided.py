"""How good run-time predictions are for the jobs that a decision is about: those that wait, as they start."""

from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Bools, Floats
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation_settings import OWN, EvaluationSettings
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.simulate.run_times import HistoryPredictor, past

WAITED: Final = 60.0
"""Seconds."""


class Decided(NamedTuple):
    """(n,) of the jobs of one window that waited, as they started; seconds."""

    took: Floats
    size: Floats  # GPUs, or CPUs
    limit: Floats
    mean: Floats
    median: Floats
    inside: Bools  # the run time is in the interval


def decided(case: Case, settings: EvaluationSettings) -> Decided:
    """What was expected of each job of a window just before it started, in Slurm's own order."""
    jobs, limit = case.jobs, case.estimates.time_limit
    result = simulate_case(case, contender(OWN, settings)).result()
    start, end = result.start, result.end
    before = past(case.before, case.before_estimates, case.since, named=case.named)
    predictor = HistoryPredictor(jobs, limit, before)
    ends = np.argsort(end, kind="stable")
    ends = ends[np.isfinite(end[ends])]
    rows = np.flatnonzero(case.measured & (start - jobs.submit_time > WAITED))
    rows, told, found = rows[np.argsort(start[rows], kind="stable")], 0, []
    for row, now in zip(rows.tolist(), np.searchsorted(end[ends], start[rows], side="right").tolist(), strict=True):
        fresh, told = ends[told:now], now
        predictor.ended(fresh, (end - start)[fresh], end[fresh])
        found.append(np.concatenate(predictor.predict(np.array([row]))))
    mean, median, low, high = np.array(found).reshape(-1, 4).T
    took = np.maximum((end - start)[rows], 1.0)
    inside = (low <= took * 1.001) & (took <= high * 1.001)  # values are rounded
    return Decided(took, np.maximum(jobs.gpus[rows], 1.0), limit[rows], mean, median, inside)


def order_cost(expected: Floats, took: Floats, size: Floats) -> float:
    """Mean completion in order of expected area over that in order of true area, on one machine."""
    by = (np.cumsum((took * size)[np.argsort(area * size, kind="stable")]).mean() for area in (expected, took))
    return float(next(by) / next(by))

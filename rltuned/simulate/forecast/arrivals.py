"""Who comes next: a model of submissions, fitted to those of the past (docs/start-times.md).

People submit in batches: several jobs of one user, minutes apart. The model is a Poisson process of batches whose rate
depends on the hour and on the weekday (a marked cluster process: Neyman and Scott, JRSS B 1958). A batch that comes is
one of the past as it was: its user, sizes, limits, run times and the gaps between its jobs. Recent ones are likelier.
How much busy days differ from quiet ones is counted, and drawn for each scenario.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.core.draws import uniform
from rltuned.core.tables import Floats, Ints, Rows
from rltuned.simulate.forecast.submissions import Submissions

HOUR: Final = 3600.0
DAY: Final = 86_400.0
BATCH_GAP: Final = 600.0  # seconds: longest time between two jobs of one batch
BATCH_SPAN: Final = 2 * HOUR  # seconds: a longer batch is another one from there on
HALF_LIFE: Final = 3 * DAY
"""Seconds after which a batch counts half: for the rate, and for what comes."""
SHRINK_HOURS: Final = 5.0
"""Batches of an hour of the day (and of a weekday) that count as seen at the mean rate: with few, the profile is flat.
"""
LEAST_JOBS: Final = 20  # with fewer submissions there is no model
_STREAM: Final = 7  # of `uniform`
_LOCAL_MONDAY: Final = 4 * DAY  # 1970-01-05 was a Monday


@dataclass(frozen=True)
class ArrivalModel:
    """Fitted to submissions."""

    submissions: Submissions
    now: float
    per_hour: float  # batches in an hour, in the mean over the week
    by_hour: Floats  # (24,) rate in each hour of the day over the mean; UTC
    by_weekday: Floats  # (7,) likewise, Monday first
    busy: float
    """Standard deviation of the batches of a day over what was expected of that day, beyond chance."""
    batch_ptr: Rows  # (B+1,) where each batch begins in `rows`
    rows: Rows  # rows of `submissions`, batch by batch, each in the order of submission
    weight: Floats  # (B,) cumulated chance of each batch

    @classmethod
    def of(cls, submissions: Submissions, now: float) -> "ArrivalModel | None":
        """Fitted to what is known at `now`. None: these are too few, or of one moment."""
        known = np.flatnonzero(submissions.submit_time <= now)
        if len(known) < LEAST_JOBS:
            return None
        submit, user = submissions.submit_time, submissions.user.codes
        rows = known[np.lexsort((submit[known], user[known]))]
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = (user[rows][1:] != user[rows][:-1]) | (user[rows][1:] < 0) | (np.diff(submit[rows]) > BATCH_GAP)
        first = submit[rows][np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))]
        spans = np.floor((submit[rows] - first) / BATCH_SPAN)
        new[1:] |= (spans[1:] != spans[:-1]) & ~new[1:]
        ptr = np.append(np.flatnonzero(new), len(rows))
        began = submit[rows[ptr[:-1]]]
        since = float(began.min())
        span = now - since
        if span < HOUR:
            return None
        weight = 0.5 ** ((now - began) / HALF_LIFE)
        hours = np.arange(np.floor(since / HOUR), np.ceil(now / HOUR), dtype=np.float64) * HOUR
        exposure = np.minimum(hours + HOUR, now) - np.maximum(hours, since)
        fading: Floats = exposure / HOUR * 0.5 ** ((now - hours - HOUR / 2) / HALF_LIFE)
        per_hour = float(weight.sum() / max(fading.sum(), 1e-9))
        by_hour = _profile(_hour_of(began), _hour_of(hours), exposure / HOUR, 24)
        by_weekday = _profile(_weekday_of(began), _weekday_of(hours), exposure / HOUR, 7)
        expected: Floats = by_hour[_hour_of(hours)] * by_weekday[_weekday_of(hours)]
        per_hour /= max(float((fading * expected).sum() / max(fading.sum(), 1e-9)), 1e-3)
        busy = _busy(began, hours, expected * exposure)
        return cls(submissions, now, per_hour, by_hour, by_weekday, busy, ptr, rows, np.cumsum(weight) / weight.sum())

    def sample(self, scenario: int, horizon: float, most: int) -> tuple[Floats, Rows]:
        """What comes within `horizon` seconds from now, at `most` so many jobs, in the order of submission: seconds
        from now, and the rows of `submissions` whose like each is. What comes in an hour depends on the hour and the
        number of the scenario, so that forecasts of one minute and the next see the same.
        """
        level = self._level(scenario)
        times: list[Floats] = [np.zeros(0)]
        rows: list[Rows] = [np.zeros(0, dtype=np.intp)]
        first, jobs = np.floor(self.now / HOUR), 0
        for hour in range(int(np.ceil(horizon / HOUR)) + 1):
            begins = (first + hour) * HOUR
            if begins >= self.now + horizon or jobs > most + len(self.rows) // 10:
                break
            rng = np.random.default_rng((_STREAM, scenario, int(first) + hour))
            at = _hour_of(np.array([begins])), _weekday_of(np.array([begins]))
            rate = level * self.per_hour * float(self.by_hour[at[0]][0] * self.by_weekday[at[1]][0])
            count = int(rng.poisson(rate))
            start = np.sort(rng.random(count)) * HOUR
            batches = np.searchsorted(self.weight, rng.random(count))
            for offset, batch in zip(start.tolist(), batches.tolist(), strict=True):
                own = self.rows[self.batch_ptr[batch] : self.batch_ptr[batch + 1]]
                submit = self.submissions.submit_time[own]
                times.append(begins + offset + submit - submit[0])
                rows.append(own)
                jobs += len(own)
        come, which = np.concatenate(times) - self.now, np.concatenate(rows)
        order = np.argsort(come, kind="stable")
        order = order[(come[order] > 0.0) & (come[order] <= horizon)][:most]
        return come[order], which[order]

    def _level(self, scenario: int) -> float:
        """How busy the time is in this scenario: 1 in the mean, log-normal."""
        spread = float(np.sqrt(np.log1p(self.busy**2)))
        one, two = (float(uniform(np.array([scenario]), _STREAM, stream)[0]) for stream in (1, 2))
        normal = float(np.sqrt(-2.0 * np.log(one)) * np.cos(2.0 * np.pi * two))
        return float(np.exp(spread * normal - spread**2 / 2))


def _hour_of(times: Floats) -> Ints:
    return (np.floor(times / HOUR) % 24).astype(np.int64)


def _weekday_of(times: Floats) -> Ints:
    return (np.floor((times - _LOCAL_MONDAY) / DAY) % 7).astype(np.int64)


def _profile(of: Ints, hours: Ints, exposure: Floats, size: int) -> Floats:
    """(size,) events over the mean in each part of the day or the week, shrunk to 1 where few were seen."""
    seen = np.bincount(of, minlength=size).astype(np.float64)
    looked = np.bincount(hours, weights=exposure, minlength=size)
    expected = looked * (len(of) / max(exposure.sum(), 1e-9))
    found: Floats = (seen + SHRINK_HOURS) / (expected + SHRINK_HOURS)
    return found


def _busy(began: Floats, hours: Floats, expected: Floats) -> float:
    """Relative deviation of the batches of a day, beyond that of a Poisson number; 0 with less than three days."""
    day = np.floor(hours / DAY).astype(np.int64)
    first = int(day[0])
    mean = np.bincount(day - first, weights=expected)
    mean *= len(began) / max(mean.sum(), 1e-9)
    seen = np.bincount(np.clip(np.floor(began / DAY).astype(np.int64) - first, 0, len(mean) - 1), minlength=len(mean))
    whole = mean > 0.2 * mean.max()
    if whole.sum() < 3:
        return 0.0
    beyond = float((((seen - mean)[whole]) ** 2 - mean[whole]).mean())
    return float(np.sqrt(max(beyond, 0.0)) / max(mean[whole].mean(), 1e-9))

"""How long a job runs, as a distribution: a mixture of what the jobs like it took.

A job is expected to take what one of ten earlier jobs of its kind took (people run the same again), nearly or roughly
so; or to reach its limit; or to be like nothing known. Each way has a weight of each user's, which begins from one of
everybody's, learned from ended jobs by expectation-maximization (Dempster, Laird and Rubin, J. R. Statist. Soc. B 39,
1977). The mean is corrected by what the limits of ended jobs say beside it. The interval is calibrated by how far the
last ended jobs were outside of theirs (conformalized quantile regression: Romano, Patterson and Candès, NeurIPS 2019).
Why this and not boosted trees: docs/decisions/0150-run-times-as-mixtures.md. Pure NumPy.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import WorkloadError
from rltuned.core.tables import Bools, Floats
from rltuned.decide.expect.predictions import COVER, RunTimePredictions
from rltuned.decide.see.features import RUN_TIME_HORIZON

Known = npt.NDArray[np.float32]

LAST: Final = 10  # earlier jobs of each kind that count

_AGES: Final = (0, 1, 4)
"""The last job, the three before it, and those before them have a weight each."""
_WIDTHS: Final = np.array([0.02, 0.3, 1.3])
"""Scales of the Laplace kernels of ln(seconds): the same again, nearly, roughly."""
_LIMIT_WIDTH: Final = 0.005
_ANY: Final = (7.5, 2.5)
"""ln(seconds) and scale of a job that is like nothing known: around half an hour."""
_LONGEST: Final = 19.0  # ln(seconds): longer than anything

_LEVELS: Final = np.array([0.25, 0.2, 0.15, 0.15, 0.1])
"""What the weights start from, on a site of which nothing is known: by level (`run_time_history.LEVELS`) …"""
_NAMED_LEVELS: Final = np.array([0.2, 0.15, 0.1, 0.1, 0.05, 0.15, 0.1])  # … where names are read, too …
_BY_AGE: Final = np.array([0.25, 0.35, 0.4])
_BY_WIDTH: Final = np.array([0.5, 0.35, 0.15])
"""… by age, by scale; of the limit, and of being like nothing known:"""
_OTHERS: Final = np.array([0.05, 0.1])
_START: Final = 200  # ended jobs that the start counts as
_START_OWN: Final = 100
"""Jobs that everybody's weights count as among a user's own. People differ in how often they run the same again."""
_LEAST_OWN: Final = 20  # ended jobs of a user that has weights of its own
_AT_ONCE: Final = 256
_ROUNDS: Final = 20
_RARE: Final = 1e-30
_CALIBRATE: Final = 1000  # last ended jobs that calibrate the interval
_CERTAIN: Final = 200  # with fewer than so many, the interval is not calibrated

_RESOLUTION: Final = np.float32(2000.0)
"""Of ln(seconds), where values and weights share 32 bits: 0.05 %."""
_SHARE: Final = np.float32(65_535.0)

_NEWTON_STEPS = 100
_CLOSE = 1e-6


class Mixture:
    """Weights of the ways in which jobs are like earlier ones. Its arrays are replaced, never changed: a shallow copy
    is independent.
    """

    def __init__(self, *, named: bool = False) -> None:
        """`named`: of levels that go by names, too."""
        self._start = _start(_NAMED_LEVELS if named else _LEVELS)
        self._weights: Floats = self._start[None]
        """(1 + users, ways): everybody's, and those of `_own`."""
        self._own: dict[str, int] = {}  # rows of `_weights` by user
        self._wider = 0.0
        """By how much an interval is to be wider at each end, ln(seconds), so that `COVER` of the last ended jobs would
        have been in theirs; may be below 0."""
        self._mean: Floats = np.array([0.0, 1.0, 0.0])
        """c0, c1, c2 of ln T = c0 + c1 ln m + c2 ln L: the mean T of the jobs of which the mixture has the mean m, and
        of limit L. Limits say something that earlier run times do not."""

    def learn(self, known: Known, users: Sequence[str], time_limit: Floats, run_time: Floats) -> None:
        """Weights and interval anew, from n jobs of `users` ("": unknown) that have ended, in this order; seconds,
        limits infinite or NaN: none.

        `known`: (n, levels, `LAST`) ln(seconds) of the earlier jobs of each kind that had ended when these started, the
        last one first; NaN: no such job.
        """
        took, limit = np.log(np.maximum(run_time, 1.0)), _log_limit(time_limit)
        there, count = _present(known)
        density = self._density(known, there, count, took, limit)
        ways = np.repeat((count > 0).reshape(len(took), -1), len(_WIDTHS), axis=1)
        possible = np.column_stack((ways, np.isfinite(limit), np.ones(len(took), dtype=np.bool_))).astype(np.float32)
        of_user: dict[str, list[int]] = {}
        for row, user in enumerate(users):
            of_user.setdefault(user, []).append(row)
        rows = {user: its for user, its in of_user.items() if user and len(its) >= _LEAST_OWN}
        shared = _learned(density, possible, _START * self._start)
        own = [_learned(density[its], possible[its], _START_OWN * shared) for its in rows.values()]
        self._own, self._weights = {name: 1 + at for at, name in enumerate(rows)}, np.stack((shared, *own))
        weights, last = self._weights_of(users), slice(-_CALIBRATE, None)
        if len(took) >= _CERTAIN:
            _, _, low, high = self._of(known[last], weights[last], limit[last])
            beyond = np.maximum(low - took[last], took[last] - high)
            self._wider = float(np.quantile(beyond, COVER))
        columns = _columns(self._of(known, weights, limit)[0], limit)
        # As many jobs as the start counts as took just what was expected of them.
        all_columns, values = np.concatenate((columns, columns)), np.exp(np.concatenate((took, columns[:, 1])))
        counts = np.repeat([1.0, _START / max(len(took), 1)], len(took))
        self._mean = mean_regression(all_columns, values, counts)

    def _weights_of(self, users: Sequence[str]) -> npt.NDArray[np.float32]:
        """(n, ways) weights of the jobs of these users."""
        # A file has rounded ones.
        weights: Floats = self._weights / np.maximum(self._weights.sum(axis=1, keepdims=True), 1.0)
        return weights[[self._own.get(user, 0) for user in users]].astype(np.float32)

    @staticmethod
    def _density(
        known: Known, there: Bools, count: npt.NDArray[np.int64], took: Floats, limit: Floats
    ) -> npt.NDArray[np.float32]:
        """(n, ways) density of ln(run time) at `took`, in each way."""
        found = []
        apart = np.where(there, np.abs(took[:, None, None] - known), np.inf).astype(np.float32)
        for width in _WIDTHS.astype(np.float32):
            near = np.add.reduceat(np.exp(-apart / width) / (2.0 * width), _AGES, axis=2)
            found.append(near / np.maximum(count, 1))
        limited = np.exp(-np.abs(took - limit) / _LIMIT_WIDTH) / (2.0 * _LIMIT_WIDTH)
        anything = np.exp(-np.abs(took - _ANY[0]) / _ANY[1]) / (2.0 * _ANY[1])
        ways = np.stack(found, axis=3).reshape(len(took), -1)
        return np.column_stack((ways, limited, anything)).astype(np.float32)

    def run_times(self, known: Known, users: Sequence[str], time_limit: Floats) -> RunTimePredictions:
        """Of (n, levels, `LAST`) `known`, n `users` and (n,) `time_limit`, as in `learn`."""
        limit = _log_limit(time_limit)
        mean, centre, low, high = self._of(known, self._weights_of(users), limit)
        mean = _columns(mean, limit) @ self._mean
        low, high = np.fmin(low - self._wider, centre), np.fmax(high + self._wider, centre)
        at_limit = limit - 1.0 / float(_RESOLUTION)  # rounded values may be a little below it
        limited, columns = np.maximum(time_limit, 1.0), (mean, centre, low, high)
        seconds = (np.where(value > at_limit, limited, np.exp(np.maximum(value, 0.0))) for value in columns)
        return RunTimePredictions(*seconds)

    @staticmethod
    def _of(known: Known, weights: npt.NDArray[np.float32], limit: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """ln(seconds): of the mean, the median, and the ends of the interval as the mixture has them."""
        found = np.empty((4, len(known)))
        for first in range(0, len(known), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            found[:, rows] = _of_few(known[rows], weights[rows], limit[rows].astype(np.float32))
        return found[0], found[1], found[2], found[3]

    def to_json(self) -> dict[str, Any]:
        """All that it knows, as JSON-able data."""
        return {
            "weights": np.round(self._weights[0], 6).tolist(),
            "own": {user: np.round(self._weights[row], 6).tolist() for user, row in self._own.items()},
            "wider": round(self._wider, 6),
            "mean": np.round(self._mean, 6).tolist(),
        }

    @classmethod
    def from_json(cls, value: Any, *, named: bool = False) -> Self:
        """What `to_json` made; WorkloadError: it is something else."""
        made = cls(named=named)
        match value:
            case {"weights": shared, "own": dict(own), "wider": int(wider) | float(wider), "mean": [*mean]} if (
                all(_are_weights(weights, len(made._start)) for weights in (shared, *own.values()))
                and all(isinstance(user, str) for user in own)
                and len(mean) == len(made._mean)
                and all(isinstance(v, int | float) and math.isfinite(v) for v in mean)
                and math.isfinite(wider)
            ):
                made._weights = np.array([shared, *own.values()], dtype=np.float64)
                made._own = {user: 1 + at for at, user in enumerate(own)}
                made._mean, made._wider = np.array(mean, dtype=np.float64), float(wider)
                return made
        raise WorkloadError("the weights of the history cannot be understood")


def _are_weights(value: Any, ways: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == ways
        and all(isinstance(v, int | float) and 0.0 <= v <= 1.0 for v in value)
        and 0.5 < sum(value) < 1.5
    )


def _learned(density: npt.NDArray[np.float32], possible: npt.NDArray[np.float32], prior: Floats) -> Floats:
    """(ways,) weights by expectation-maximization, from (n, ways) densities of n jobs at their run times and which ways
    were possible; `prior`: jobs that were like each way before.
    """
    weights = prior / prior.sum()
    for _ in range(_ROUNDS):
        mass = possible @ weights.astype(np.float32)
        share = density @ weights.astype(np.float32)  # impossible ways have no density
        found = weights * ((mass / np.maximum(share, _RARE)) @ density)
        # What a job cannot be like keeps its weight.
        found += weights * (len(density) - possible.sum(axis=0)) + prior
        weights = found / found.sum()
    return np.asarray(weights, dtype=np.float64)


def _of_few(known: Known, weights: npt.NDArray[np.float32], limit: npt.NDArray[np.float32]) -> Floats:
    """(4, n) as `Mixture._of`, of a few jobs: what is computed on the way stays in the processor's cache."""
    there, count = _present(known)
    jobs = len(known)
    ways = weights[:, :-2].reshape(jobs, known.shape[1], len(_AGES), len(_WIDTHS))
    ways = ways / np.maximum(count, 1).astype(np.float32)[..., None]
    weight = np.repeat(ways, np.diff((*_AGES, known.shape[2])), axis=2) * there[..., None]
    value = np.where(there, known, np.float32(0.0)).reshape(jobs, -1)
    bounded = np.isfinite(limit)
    other_value = np.empty((jobs, 1 + len(_ANYTHING)), dtype=np.float32)
    other_value[:, 0], other_value[:, 1:] = np.where(bounded, limit, np.float32(0.0)), _ANYTHING
    other_weight = np.repeat(weights[:, -1:] / np.float32(len(_ANYTHING)), 1 + len(_ANYTHING), axis=1)
    other_weight[:, 0] = np.where(bounded, weights[:, -2], np.float32(0.0))
    values, shares = [other_value], [other_weight]
    for width, offsets in enumerate(_OFFSETS):
        share = weight[..., width].reshape(jobs, -1) / np.float32(len(offsets))
        values += [value + np.float32(offset) for offset in offsets]
        shares += [share] * len(offsets)
    most, tail = np.minimum(limit, np.float32(_LONGEST)), (1.0 - COVER) / 2.0
    each = np.concatenate((other_value, value), axis=1)
    of_each = np.concatenate((other_weight, weight.sum(axis=3).reshape(jobs, -1)), axis=1)
    centre = _quantiles(each, of_each, most, (0.5,))
    seconds = np.exp(np.clip(each, np.float32(0.0), most[:, None]))
    mean = np.log((seconds * of_each).sum(axis=1) / of_each.sum(axis=1))
    ends = _quantiles(np.concatenate(values, axis=1), np.concatenate(shares, axis=1), most, (tail, 1.0 - tail))
    return np.stack((mean, *centre, *ends))


def _start(levels: Floats) -> Floats:
    ways = (levels[:, None, None] * _BY_AGE[:, None] * _BY_WIDTH).ravel()
    return np.concatenate((ways, _OTHERS))


def _columns(mean: Floats, limit: Floats) -> Floats:
    """(n, 3) what the mean is a product of powers of: 1, and ln(seconds) of the mixture's mean and of the limit."""
    return np.column_stack((np.ones(len(mean)), mean, np.minimum(limit, math.log(RUN_TIME_HORIZON))))


def _log_limit(time_limit: Floats) -> Floats:
    return np.log(np.maximum(np.where(np.isnan(time_limit), np.inf, time_limit), 1.0))


def _present(known: Known) -> tuple[Bools, npt.NDArray[np.int64]]:
    """Which earlier jobs there are, and (n, levels, ages) how many of each age."""
    there = ~np.isnan(known)
    return there, np.add.reduceat(there.astype(np.int64), _AGES, axis=2)


def _laplace_points(number: int) -> Floats:
    """Values of a standard Laplace distribution, as likely each."""
    part = (np.arange(number) + 0.5) / number
    return np.where(part < 0.5, np.log(2.0 * part), -np.log(2.0 * (1.0 - part)))


_OFFSETS: Final[Sequence[Floats]] = tuple(
    width * _laplace_points(number) for width, number in zip(_WIDTHS, (1, 2, 4), strict=True)
)
"""Each kernel as a few values of ln(seconds); the narrow one as one."""
_ANYTHING: Final = _ANY[0] + _ANY[1] * _laplace_points(8)


def mean_regression(columns: Floats, values: Floats, weights: Floats | None = None) -> Floats:
    """(k,) c for which exp(columns · c) is the mean of (N,) `values` above 0, which count by `weights`. A constant must
    be among the (N, k) columns.

    Regression with a gamma distribution and a logarithmic link (McCullagh and Nelder 1989, chapter 8). Its loss, the
    mean of y e^−xc + xc, is convex: Newton's method, each step so short that no mean changes by more than a factor e.
    """
    counts = np.ones(len(values)) if weights is None else weights
    root = np.sqrt(counts)
    found, *_ = np.linalg.lstsq(columns * root[:, None], np.log(values) * root, rcond=None)
    for _ in range(_NEWTON_STEPS):
        share = values * np.exp(-columns @ found)
        curvature = columns.T @ (columns * (counts * share)[:, None])
        step, *_ = np.linalg.lstsq(curvature, columns.T @ (counts * (share - 1.0)), rcond=None)
        moved = float(np.abs(columns @ step).max())
        found = found + step / max(1.0, moved)
        if moved < _CLOSE:
            break
    return np.asarray(found, dtype=np.float64)


def _quantiles(values: Known, weights: Known, most: Known, parts: Sequence[float]) -> list[Floats]:
    """Weighted quantiles of each row of (n, k) values, cut to (n,) `most`; the weights are at most 1 in all."""
    # Value and weight share 32 bits: sorting one array of integers is ten times as fast as sorting by an index.
    packed = (np.clip(values, np.float32(0.0), most[:, None]) * _RESOLUTION + np.float32(0.5)).astype(np.uint32)
    packed <<= np.uint32(16)
    packed |= (weights * _SHARE + np.float32(0.5)).astype(np.uint32)
    packed.sort(axis=1)
    sums = np.cumsum(packed & np.uint32(0xFFFF), axis=1, dtype=np.uint32)
    found = []
    for part in parts:
        place = (sums < (part * sums[:, -1])[:, None]).sum(axis=1)
        chosen = packed[np.arange(len(packed)), np.minimum(place, packed.shape[1] - 1)]
        found.append((chosen >> np.uint32(16)) / float(_RESOLUTION))
    return found

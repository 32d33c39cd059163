"""How sure a difference between two policies is: paired bootstrap over windows (Efron and Tibshirani 1993, ch. 13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Floats

RESAMPLES: Final = 10_000
LEVEL: Final = 0.95
FEWEST: Final = 10
"""Fewer windows, or blocks, say nothing certain: a percentile interval of a handful is too narrow."""
GUARDED: Final = ("bsld_mean", "wait_p99")  # metrics that may not pay for a shorter mean wait, …
MOST_WORSE: Final = 1.05  # … and how much of the other policy's value is allowed for each
DIGITS: Final = 6
"""Decimals that are kept: a resampled interval has no more, and rounding makes equal runs equal to the last byte."""


@dataclass(frozen=True)
class Comparison:
    """The mean of one policy over the mean of another on the same windows."""

    ratio: float | None  # None where there is none: no windows in common, or the other's mean is 0
    lo: float | None  # 2.5th percentile at the usual level; None with a single window, or where it has no end
    hi: float | None  # 97.5th percentile, likewise

    @property
    def lower(self) -> bool:
        """Whether it is certainly below 1: two policies that never differ (1, 1, 1) are not a win for either."""
        return self.ratio is not None and self.hi is not None and self.ratio < 1.0 and self.hi <= 1.0

    def __str__(self) -> str:
        if self.ratio is None:
            return "no ratio (nobody waits)"
        ends = ", ".join("?" if end is None else f"{end:.3f}" for end in (self.lo, self.hi))
        return f"{self.ratio:.3f} [{ends}]"


def mean(values: Floats) -> float:
    """Of what is known; infinite for nothing."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("inf")


def counts(windows: int, seed: int | np.random.Generator, resamples: int = RESAMPLES) -> Floats:
    """(resamples, windows) how often each window is drawn: so many draws with replacement as there are windows."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(windows, np.full(windows, 1.0 / windows), size=resamples).astype(np.float64)


def compare(above: Floats, below: Floats, drawn: Floats) -> Comparison:
    """The mean of one policy over that of another, with the percentile interval.

    (W,) a metric of each on the same windows, NaN where a window has none; (R, W) of `counts`. Both are resampled
    alike, so that what makes a window hard for both cancels out.
    """
    both = np.isfinite(above) & np.isfinite(below)
    above, below, drawn = above[both], below[both], drawn[:, both]
    if not both.any():
        return Comparison(None, None, None)
    sums = float(above.sum()), float(below.sum())
    return of_resampled(*sums, drawn @ above, drawn @ below, interval=len(above) > 1)


def simultaneous(values: Floats, drawn: Floats) -> Floats:
    """(P,) upper ends of the means of P policies over that of the last one, which hold for all of them at once.

    One of them is chosen by its value, so each has to allow for all others. What goes up and down together is one
    choice, not many: each end is at the same percentile, which no ratio of a resample exceeds with this certainty
    (balanced confidence sets: Beran, Journal of the American Statistical Association 83, 1988).

    `values`: (P + 1, W) a metric of each policy; windows that not all have are left out. `drawn`: (R, W) of `counts`.
    """
    known = np.isfinite(values).all(axis=0)
    sums = drawn[:, known] @ values[:, known].T
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = sums[:, :-1] / sums[:, -1:]
    ratios[np.isnan(ratios)] = np.inf
    ranks = ratios.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    at = int(np.quantile(ranks.max(axis=1), (1.0 + LEVEL) / 2.0, method="higher"))
    return np.asarray(np.sort(ratios, axis=0)[at])


def of_resampled(above: float, below: float, drawn_above: Floats, drawn_below: Floats, *, interval: bool) -> Comparison:
    """The ratio of two values, with the percentile interval of (R,) resampled ones if so wanted."""
    if not below > 0.0:
        return Comparison(None, None, None)
    ratio = round(above / below, DIGITS)
    if not interval:
        return Comparison(ratio, None, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = drawn_above / drawn_below
    resampled = np.sort(np.where(np.isnan(resampled), np.inf, resampled))  # 0 of 0: could be anything
    ends = (float(resampled[int(share * len(resampled))]) for share in ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    return Comparison(ratio, *(round(end, DIGITS) if np.isfinite(end) else None for end in ends))


def pooled_quantiles(values: Floats, block: npt.NDArray[np.intp], drawn: Floats, shares: Sequence[float]) -> Floats:
    """(R, Q) quantiles over all values of the blocks that each resample draws, pooled; interpolated as by NumPy.

    `values`: (n,) none NaN. `block`: (n,) that each belongs to; blocks are of about the same size. `drawn`: (R, B) of
    `counts`. `shares`: (Q,) from 0 to 1.
    """
    order = np.argsort(values, kind="stable")
    ordered, block = values[order], block[order]
    at = np.asarray(shares, dtype=np.float64)
    found = np.empty((len(drawn), len(at)))
    for row, times in enumerate(drawn.astype(np.int64)):
        upto = np.cumsum(times[block])
        place = at * (upto[-1] - 1)
        low = np.floor(place)
        below, above = (ordered[upto.searchsorted(end, side="right")] for end in (low, np.ceil(place)))
        found[row] = below + (above - below) * (place - low)
    return found

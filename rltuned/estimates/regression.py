"""The mean as a product of powers: how run times go with an estimate and a limit."""

import numpy as np

from rltuned.cluster.tables import Floats

_STEPS = 100
_CLOSE = 1e-6


def mean_regression(columns: Floats, values: Floats, weights: Floats | None = None) -> Floats:
    """(k,) c for which exp(columns · c) is the mean of `values`.

    Regression with a gamma distribution and a logarithmic link (McCullagh and Nelder 1989, chapter 8). Its loss, the
    mean of y e^−xc + xc, is convex: Newton's method, each step so short that no mean changes by more than a factor e.

    Args:
        columns: (N, k), a constant among them.
        values: (N,) above 0.
        weights: (N,) above 0, how much each counts; None: all alike.
    """
    counts = np.ones(len(values)) if weights is None else weights
    root = np.sqrt(counts)
    found, *_ = np.linalg.lstsq(columns * root[:, None], np.log(values) * root, rcond=None)
    for _ in range(_STEPS):
        share = values * np.exp(-columns @ found)
        curvature = columns.T @ (columns * (counts * share)[:, None])
        step, *_ = np.linalg.lstsq(curvature, columns.T @ (counts * (share - 1.0)), rcond=None)
        moved = float(np.abs(columns @ step).max())
        found = found + step / max(1.0, moved)
        if moved < _CLOSE:
            break
    return np.asarray(found, dtype=np.float64)

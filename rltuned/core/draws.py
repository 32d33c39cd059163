"""Draws that depend on nothing but what they are for."""

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Floats, Ints


def uniform(key: Ints, seed: int, stream: int) -> Floats:
    """(N,) numbers in (0, 1), a function of key, seed and stream: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) as a
    hash, its 53 highest bits.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is what is meant
        start = _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + np.uint64(stream))
        bits = _mix(_mix(key.astype(np.int64).view(np.uint64)) ^ start)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One step and the output function of SplitMix64."""
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

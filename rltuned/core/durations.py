"""Durations as Slurm and its users write them."""

import math
import re
from typing import Final

_ENDLESS: Final = frozenset({"UNLIMITED", "INFINITE"})
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,9})-)?([0-9]{1,12})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?(\.[0-9]{1,9})?\Z", re.ASCII
)


def duration(text: str) -> float:
    """Seconds of a time as Slurm writes it (sbatch(1) --time): minutes, minutes:seconds, hours:minutes:seconds,
    days-hours, days-hours:minutes, days-hours:minutes:seconds; infinite for UNLIMITED; NaN for anything else.
    """
    if text.upper() in _ENDLESS:
        return math.inf
    match = _DURATION.match(text)
    if match is None:
        return math.nan
    first = float(match.group(2))
    days, second, third, fraction = (float(group) if group else None for group in match.group(1, 3, 4, 5))
    # Without days, and with fewer than three parts, the first part is minutes.
    hours, minutes, seconds = (first, second, third) if days is not None or third is not None else (0.0, first, second)
    return (days or 0.0) * 86400 + hours * 3600 + (minutes or 0.0) * 60 + (seconds or 0.0) + (fraction or 0.0)

"""What published traces look like, as generated workloads need it: `presets.toml`.

The file holds quantiles, shares and rates, and says of each where it was counted.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SizeClass(_Part):
    """Jobs of about the same number of GPUs."""

    share: float  # of all jobs
    gpus: tuple[tuple[int, float], ...]  # numbers of GPUs, and the share of each within the class
    run_time: tuple[int, ...]  # quantiles at `Presets.levels`, seconds.


class Preset(_Part):
    """What one published trace looks like."""

    hours: tuple[float, ...]
    """Submissions in each of the 24 hours of the day relative to the mean, from 0:00."""
    day_spread: float  # standard deviation of the submissions of a day relative to the mean
    sweep: float  # α of the sweep sizes, P(size > n) = (n + 1)^−α
    gap: float  # mean time between two jobs of a sweep, seconds
    classes: tuple[SizeClass, ...]


class PerGpu(_Part):
    """What a job takes beside its GPUs, of what the node has per GPU: quantiles at `levels`."""

    levels: tuple[float, ...]
    cpus: tuple[float, ...]
    mem: tuple[float, ...]


class Presets(_Part):
    """The whole file."""

    levels: tuple[float, ...]
    """Of the quantiles of run times, from 0 to 1; between them the logarithm is linear."""
    per_gpu: PerGpu
    presets: Mapping[str, Preset]


@cache
def presets() -> Presets:
    """Those that rltuned comes with."""
    text = (resources.files(__package__) / "presets.toml").read_text(encoding="utf-8")
    return Presets.model_validate(tomllib.loads(text))

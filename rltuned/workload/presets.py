"""What published traces look like, as generated workloads need it: `presets.toml`, checked when it is read.

The file holds quantiles, shares and rates, and says of each where it was counted.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rltuned.errors import WorkloadError

FILE: Final = "presets.toml"
"""In this package."""
ROUNDED: Final = 0.005
"""Shares are written with three or four digits: their sum may differ from 1 by so much."""

Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Size = Annotated[int, Field(ge=1)]
Seconds = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SizeClass(_Part):
    """Jobs of about the same number of GPUs."""

    share: Share
    """Of all jobs."""
    gpus: tuple[tuple[Size, Share], ...]
    """Numbers of GPUs, and the share of each within the class."""
    run_time: tuple[Seconds, ...]
    """Quantiles at `Presets.levels`, seconds."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _rising("gpus", [size for size, _ in self.gpus], strictly=True)
        _whole("gpus", [share for _, share in self.gpus])
        _rising("run_time", self.run_time)
        return self


class Preset(_Part):
    """What one published trace looks like."""

    hours: Annotated[tuple[Positive, ...], Field(min_length=24, max_length=24)]
    """Submissions in each hour of the day relative to the mean, from 0:00."""
    day_spread: Positive
    """Standard deviation of the submissions of a day relative to the mean."""
    sweep: Positive
    """α of the sweep sizes, P(size > n) = (n + 1)^−α."""
    gap: Positive
    """Mean time between two jobs of a sweep, seconds."""
    classes: tuple[SizeClass, ...]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _whole("classes", [one.share for one in self.classes])
        return self


class PerGpu(_Part):
    """What a job takes beside its GPUs, of what the node has per GPU: quantiles at `levels`."""

    levels: tuple[float, ...]
    cpus: tuple[Share, ...]
    mem: tuple[Share, ...]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _levels(self.levels)
        for name in ("cpus", "mem"):
            _rising(name, getattr(self, name))
            _as_many(name, getattr(self, name), self.levels)
        return self


class Presets(_Part):
    """The whole file."""

    levels: tuple[float, ...]
    """Of the quantiles of run times, from 0 to 1; between them the logarithm is linear."""
    per_gpu: PerGpu
    presets: Mapping[str, Preset]
    """By name."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _levels(self.levels)
        for name, preset in self.presets.items():
            for number, one in enumerate(preset.classes):
                _as_many(f"presets.{name}.classes.{number}.run_time", one.run_time, self.levels)
        return self


@cache
def presets() -> Presets:
    """Those that rltuned comes with.

    Raises:
        WorkloadError: as `parse`, or the file is not there.
    """
    file = resources.files(__package__) / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{file}: cannot be read: {error}") from error
    return parse(text, str(file))


def parse(text: str, name: str) -> Presets:
    """The presets in the text of a file; `name`: of the file, for messages.

    Raises:
        WorkloadError: it is no TOML, or says something that cannot be; the message names file, field and reason.
    """
    try:
        return Presets.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{name}: {error}") from error
    except ValidationError as error:
        raise WorkloadError(f"{name}: {'; '.join(map(_sentence, error.errors()))}") from error


def _sentence(found: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in found["loc"])
    reason = str(found["msg"]).removeprefix("Value error, ")
    return f"{place}: {reason}" if place else reason


def _levels(levels: Sequence[float]) -> None:
    _rising("levels", levels, strictly=True)
    if not levels or (levels[0], levels[-1]) != (0, 1):
        raise ValueError("levels: expected numbers from 0 to 1")


def _rising(name: str, values: Sequence[float], *, strictly: bool = False) -> None:
    for before, after in pairwise(values):
        if after < before or (strictly and after == before):
            raise ValueError(f"{name}: {after:g} after {before:g}, expected rising numbers")


def _whole(name: str, shares: Sequence[float]) -> None:
    if abs(sum(shares) - 1) > ROUNDED:
        raise ValueError(f"{name}: the sum of the shares is {sum(shares):g}, expected 1")


def _as_many(name: str, values: Sequence[float], levels: Sequence[float]) -> None:
    if len(values) != len(levels):
        raise ValueError(f"{name}: {len(values)} values for {len(levels)} levels")

"""How fast jobs run on GPUs of each type, and spread over nodes: drawn from what others have measured (`speeds.toml`).

A trace says how long a job ran, not how long it would have run elsewhere. Each job gets one of the measured kinds of
training, by a hash of seed, user and number of GPUs: users repeat themselves, so that a history has something to learn.
"""

import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Bools, Floats, Ints
from rltuned.errors import WorkloadError
from rltuned.workload.estimates import estimate, uniform
from rltuned.workload.jobs import Estimates, Workload

FILE: Final = "speeds.toml"
"""In this package."""
SAME: Final = 0.8
"""Share of a user's jobs of one number of GPUs that are of one kind; the others are of any kind. An assumption."""

Speed = Annotated[float, Field(gt=0)]


class _Kinds(BaseModel):
    """Measured kinds of training with one number of GPUs, a row each."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gpus: Annotated[int, Field(ge=1)]
    speed: tuple[tuple[Speed, ...], ...]
    """By type, relative to the first."""
    spread: tuple[tuple[Annotated[float, Field(gt=0, le=1)], ...], ...]
    """What is left of it over several nodes."""


class _Measured(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    types: tuple[str, ...]
    like: Mapping[str, tuple[str, ...]]
    """Types that nobody measured: the geometric mean of these."""
    kinds: tuple[_Kinds, ...]
    """By rising `gpus`."""


@dataclass(frozen=True)
class Speeds:
    """Of N jobs on T types of GPUs. 1 is the speed at which a job takes the run time of its workload."""

    types: tuple[str, ...]
    rate: Floats
    """(N, 2, T) above 0: on the fewest nodes, and spread over more."""

    def take(self, rows: npt.NDArray[np.intp] | Bools | slice) -> "Speeds":
        """Those of some jobs."""
        return replace(self, rate=self.rate[rows])

    def of(self, types: tuple[str, ...]) -> Floats:
        """(N, 2, len(types)) in the order of these types."""
        return self.rate[:, :, [self.types.index(name) for name in types]]

    def extremes(self, jobs: Workload) -> tuple[Floats, Floats]:
        """(N,) slowest and fastest speed that a job may get: over all types, or the one that it asks for."""
        column = _columns(jobs, self.types)[:, None, None]
        allowed = np.broadcast_to((column < 0) | (np.arange(len(self.types)) == column), self.rate.shape)
        slowest = np.where(allowed, self.rate, np.inf).min(axis=(1, 2))
        return slowest, np.where(allowed, self.rate, 0.0).max(axis=(1, 2))


def draw(jobs: Workload, shape: ClusterShape, seed: int) -> Speeds:
    """Speeds of all jobs on the types of a cluster.

    The run time of a job is the one on the type that it asks for. Of a job that asks for none, it is the one on the
    type of which the cluster has most GPUs. Job ids, users and GPUs decide, so a job has the same speeds in whichever
    window it is found.

    Raises:
        WorkloadError: a type of GPU whose speed is not known.
    """
    types = shape.nodes.gpu_types
    table = _measured()
    columns = [_sources(table, name) for name in types]
    counts = np.array([kinds.gpus for kinds in table.kinds])
    of = np.maximum(np.searchsorted(counts, jobs.gpus, side="right") - 1, 0)
    first, second, third = (uniform(key, seed, stream) for key, stream in _keys(jobs))
    chosen = np.where((jobs.user.codes >= 0) & (first < SAME), second, third)
    rate = np.ones((len(jobs), 2, len(types)))
    for at, kinds in enumerate(table.kinds):
        rows = np.flatnonzero((of == at) & (jobs.gpus > 0))
        kind = (chosen[rows] * len(kinds.speed)).astype(np.intp)
        packed = np.array(kinds.speed)
        for column, sources in enumerate(columns):
            for place, values in enumerate((packed, packed * np.array(kinds.spread))):
                rate[rows, place, column] = np.exp(np.log(values[:, sources]).mean(axis=1))[kind]
    usual = int(np.argmax(shape.nodes.gpus[shape.nodes.usable].sum(axis=0))) if types else 0
    asked = _columns(jobs, types)
    own = np.where(asked >= 0, asked, usual)
    if types:
        rate /= rate[np.arange(len(jobs)), 0, own][:, None, None]
    return Speeds(types, rate)


def estimates_for(jobs: Workload, speeds: Speeds, how: str, seed: int) -> Estimates:
    """As `estimate`, with limits for the slowest that a job may get: users who name no type ask for what that needs.

    Raises:
        ConfigError: as `estimate`.
    """
    slowest, _ = speeds.extremes(jobs)
    slow = replace(jobs, run_time=jobs.run_time / slowest, time_limit=jobs.time_limit / slowest)
    return Estimates(estimate(slow, how, seed).time_limit, estimate(jobs, how, seed).run_time)


def _keys(jobs: Workload) -> tuple[tuple[Ints, int], ...]:
    """What is hashed, and the stream: is the job as usual, what is usual for its user, what is it otherwise."""
    names = np.array([zlib.crc32(name.encode()) for name in jobs.user.names] + [0], dtype=np.int64)
    habit = names[jobs.user.codes] * 4096 + np.minimum(jobs.gpus, 4095)
    return (jobs.job_id, 3), (habit, 4), (jobs.job_id, 5)


def _columns(jobs: Workload, types: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """(N,) column of the type that a job asks for; −1: none, or one that is not there."""
    of_name = [types.index(name.lower()) if name.lower() in types else -1 for name in jobs.gpu_type.names]
    return np.array([*of_name, -1], dtype=np.intp)[jobs.gpu_type.codes]


def _sources(table: _Measured, name: str) -> list[int]:
    """Columns of the measured types that a type is taken from."""
    if name not in table.types and name not in table.like:
        known = ", ".join((*table.types, *table.like))
        raise WorkloadError(f"nothing is known of the speed of GPUs of type {name!r}; there are {known}")
    return [table.types.index(one) for one in table.like.get(name, (name,))]


@cache
def _measured() -> _Measured:
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return _Measured.model_validate(tomllib.loads(text))

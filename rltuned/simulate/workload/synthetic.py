"""Generated workloads: GPU jobs as Philly, Helios and PAI saw them, for the demonstration and tests without a trace.

What the public traces say (quantiles, shares and rates, no rows) is in `presets.toml`. What those traces do not have
(users) is counted from HPC2N and SDSC-BLUE of the Parallel Workloads Archive. What no trace has is an assumption and
called one. Both stand below.

How it works: users open sessions at moments that follow the hour of the day and good and bad days; a session is a sweep
of jobs that are alike, seconds apart; a user's sessions are made from few habits. Run time, GPUs and limit of a job are
then read from the preset's quantiles at the rank of the job's habit, so that the whole has exactly the preset's
distributions, however few users there are, and its demand is exactly the load that was asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.core.errors import ConfigError
from rltuned.core.tables import Codes, Floats, Ints, Rows
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Source, Workload, workload
from rltuned.simulate.workload.presets import Preset, presets
from rltuned.simulate.workload.simulated_estimates import OVER_ASKING, written_limit

LONGEST_SWEEP: Final = 500
"""Assumption: nobody sends more at once. (Of HPC2N's sweeps 0.04 % are longer.)"""

_USERS: Final = (2.0, 0.43)
"""Users among n jobs: a·n^b. Of 256, 1,024, 10,000 and 100,000 jobs HPC2N has 13, 23, 57 and 185 users, SDSC-BLUE 35,
67, 164 and 399."""

_ZIPF: Final = 1.0
"""Sessions of the k-th busiest user ∝ k^−1. Then 5 % of 160 users submit 48 % of the jobs (HPC2N: 56 %, SDSC-BLUE:
34 %)."""

_HABITS: Final = 3
"""Assumption: kinds of work that a user does. With `_STAY` it gives about the correlation of the logarithms of two
consecutive run times of a user that HPC2N (0.84) and SDSC-BLUE (0.75) have."""
_STAY: Final = 0.75
"""Assumption: share of the sessions that go on with the kind of work of the user's last one."""
_ALIKE: Final = 0.85  # correlation of the normal scores of the run times of one habit's jobs
_TYPED: Final = 0.5
"""Assumption: share of the habits that insist on a GPU type where a partition has several."""
_LARGEST: Final = 0.5
"""A job is cut to the largest size of its class and below that half of its partition can hold: otherwise a 128-GPU job
of Philly's would make a 160-GPU cluster wait for it."""


def generate(preset: str, jobs: int, shape: ClusterShape, seed: int, load: float = 1.0) -> Workload:
    """A workload of so many jobs for a cluster; the same arguments give the same workload. `load`: Σ run time · GPUs /
    (time from first to last submission · GPUs of the cluster). Raises ConfigError: an unknown preset, a number out of
    its range, or a cluster without GPUs.
    """
    tables = presets()
    if preset not in tables.presets:
        raise ConfigError(f"no preset {preset!r}; choose one of {', '.join(tables.presets)}")
    if not 1 <= jobs <= 10_000_000:
        raise ConfigError(f"number of jobs: expected 1 to 10,000,000, not {jobs}")
    if seed < 0:
        raise ConfigError(f"seed: expected a number from 0, not {seed}")
    if not 1e-3 <= load <= 1000:
        raise ConfigError(f"load: expected a number from 0.001 to 1000, not {load:g}")
    if not shape.gpus:
        raise ConfigError(f"{shape.text}: a cluster without GPUs; the presets are GPU jobs")
    made = tables.presets[preset]
    rng = np.random.default_rng((seed, jobs))
    people = _people(rng, jobs, shape)
    sizes, habits = _sessions(rng, made, jobs, people)
    habit = np.repeat(habits, sizes)

    gpus, size_class = _sizes(rng, made, people.size_score[habit])
    gpus = _fit(gpus, made, people.most[habit])
    score = math.sqrt(_ALIKE) * people.time_score[habit] + math.sqrt(1 - _ALIKE) * rng.standard_normal(jobs)
    run_time = _run_times(rng, made, tables.levels, size_class, score)
    run_time = np.maximum(np.round(np.minimum(run_time, people.max_time[habit])), 1.0)
    limit = _limits(rng, run_time, sizes, people.max_time[habit])

    span = float((run_time * gpus).sum()) / (load * shape.gpus)
    submit = _arrivals(rng, made, sizes, span)
    share = people.resources[habit]
    per_gpu = tables.per_gpu
    most_cpus = people.cpus_per_gpu[habit]
    cpus = np.maximum(np.floor(most_cpus * np.interp(share, per_gpu.levels, per_gpu.cpus)), 1)
    cpus = np.where(most_cpus > 0, cpus, 0)
    mem = np.floor(people.mem_per_gpu[habit] * np.interp(share, per_gpu.levels, per_gpu.mem))
    user = people.user[habit]
    accounts = math.isqrt(people.users) or 1
    order = np.argsort(submit, kind="stable")
    return workload(
        Source(f"synthetic {preset}, load {load:g}, seed {seed}, for {shape.text}", form="synthetic"),
        submit[order],
        run_time[order],
        gpus[order],
        time_limit=limit[order],
        cpus=(cpus * gpus)[order],
        mem=(mem * gpus)[order],
        user=[f"user{one}" for one in user[order]],
        account=[f"group{one % accounts}" for one in user[order]],
        partition=[people.partitions[one] for one in people.partition[habit][order]],
        gpu_type=[people.types[one] for one in people.gpu_type[habit][order]],
    )


# --- people ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _People:
    """Habits, one row each; the habits of user u are rows u·_HABITS … (u+1)·_HABITS − 1."""

    users: int
    partitions: tuple[str, ...]
    types: tuple[str, ...]
    user: Codes
    partition: Codes
    gpu_type: Codes  # row of `types`; the last is "", any
    size_score: Floats  # in (0, 1): where the habit stands among all by GPUs
    time_score: Floats  # standard normal: where it stands by run time
    resources: Floats  # in (0, 1): where it stands by CPUs and memory per GPU
    most: Codes  # most GPUs of a job
    max_time: Floats
    cpus_per_gpu: Floats  # of the leanest node that it may get
    mem_per_gpu: Floats


def _people(rng: np.random.Generator, jobs: int, shape: ClusterShape) -> _People:
    users = max(1, round(_USERS[0] * jobs ** _USERS[1]))
    habits = users * _HABITS
    nodes = shape.nodes
    total = nodes.gpus.sum(axis=1)
    parts = [part for part in shape.partitions if part.up and total[part.nodes].sum() > 0]
    weight = np.array([total[part.nodes].sum() for part in parts], dtype=np.float64)
    # A user works in one partition (virtual cluster), the larger ones having more users. The busiest users are dealt
    # out like cards, by the rest of the demand, so that no partition is idle by chance alone.
    home = _dealt(1.0 / np.arange(1, users + 1) ** _ZIPF, weight)
    partition = np.repeat(home, _HABITS)
    types = (*nodes.gpu_types, "")
    gpu_type = np.full(habits, len(types) - 1, dtype=np.int32)
    most = np.zeros(habits, dtype=np.int32)
    cpus, mem = np.zeros(habits), np.zeros(habits)
    insists, which = rng.random(habits) < _TYPED, rng.random(habits)
    for row in range(habits):
        part = parts[partition[row]]
        by_type = nodes.gpus[part.nodes].sum(axis=0)
        members = part.nodes[total[part.nodes] > 0]
        if insists[row] and (by_type > 0).sum() > 1:
            gpu_type[row] = np.searchsorted(np.cumsum(by_type) / by_type.sum(), which[row], side="right")
            members = part.nodes[nodes.gpus[part.nodes, gpu_type[row]] > 0]
        # Any type: one kind of node must be able to hold it, as Slurm does not mix the types of a job.
        kinds = nodes.gpus[members].sum(axis=0)
        largest = kinds[gpu_type[row]] if gpu_type[row] < len(nodes.gpu_types) else kinds.max()
        most[row] = max(1, int(largest * _LARGEST))
        cpus[row] = (nodes.cpus[members] / total[members]).min()
        mem[row] = (nodes.mem[members] / total[members]).min()
    return _People(
        users=users,
        partitions=tuple(part.name for part in parts),
        types=types,
        user=np.repeat(np.arange(1, users + 1, dtype=np.int32), _HABITS),
        partition=partition,
        gpu_type=gpu_type,
        size_score=rng.random(habits),
        time_score=rng.standard_normal(habits),
        resources=rng.random(habits),
        most=most,
        max_time=np.array([parts[one].max_time for one in partition], dtype=np.float64),
        cpus_per_gpu=cpus,
        mem_per_gpu=mem,
    )


def _dealt(demand: Floats, weight: Floats) -> Codes:
    """Where each of the users, busiest first, works: where most of the weight is still free."""
    free = weight / weight.sum() * demand.sum()
    home = np.zeros(len(demand), dtype=np.int32)
    for row, amount in enumerate(demand.tolist()):
        home[row] = int(np.argmax(free))
        free[home[row]] -= amount
    return home


# --- sessions ----------------------------------------------------------------------------------------------------


def _sessions(rng: np.random.Generator, made: Preset, jobs: int, people: _People) -> tuple[Ints, Rows]:
    """Size and habit of each sweep, in order of time."""
    sizes = np.minimum(np.floor(rng.random(jobs) ** (-1.0 / made.sweep)), LONGEST_SWEEP).astype(np.int64)
    count = int(np.searchsorted(np.cumsum(sizes), jobs)) + 1
    sizes = sizes[:count]
    sizes[-1] -= sizes.sum() - jobs
    chance = np.cumsum(1.0 / np.arange(1, people.users + 1) ** _ZIPF)
    user = np.searchsorted(chance / chance[-1], rng.random(count), side="right")
    stays, which = rng.random(count) < _STAY, rng.integers(_HABITS, size=count)
    last = np.zeros(people.users, dtype=np.intp)
    habit = np.zeros(count, dtype=np.intp)
    for row, one in enumerate(user.tolist()):
        if not stays[row]:
            last[one] = which[row]
        habit[row] = one * _HABITS + last[one]
    return sizes, habit


def _arrivals(rng: np.random.Generator, made: Preset, sizes: Ints, span: float) -> Floats:
    """(N,) whole seconds, the first 0, the last `span`: hours of the day, good and bad days, sweeps."""
    hours = max(1, math.ceil(span / 3600))
    sigma = math.sqrt(math.log1p(made.day_spread**2))  # log-normal with that ratio of deviation and mean
    days = np.exp(sigma * rng.standard_normal(hours // 24 + 1))
    hour = np.arange(hours)
    intensity = days[hour // 24] * np.array(made.hours)[hour % 24]
    passed = np.concatenate(([0.0], np.cumsum(intensity)))
    start = np.interp(np.sort(rng.random(len(sizes))) * passed[-1], passed, np.arange(hours + 1) * 3600.0)
    first = np.cumsum(sizes) - sizes
    gaps = rng.exponential(made.gap, size=int(sizes.sum()))
    gaps[first] = 0.0
    within = np.cumsum(gaps)
    submit = np.repeat(start - within[first], sizes) + within
    submit -= submit.min()
    longest = submit.max()
    return np.round(submit * (span / longest)) if longest > 0 else np.zeros(len(submit))


# --- jobs --------------------------------------------------------------------------------------------------------


def _places(rng: np.random.Generator, score: Floats) -> Floats:
    """(n,) in (0, 1): evenly spread, in the order of `score`; equal scores stay together, in a random order."""
    order = np.lexsort((rng.random(len(score)), score))
    place = np.empty(len(score))
    place[order] = (np.arange(len(score)) + rng.random(len(score))) / max(len(score), 1)
    return place


def _sizes(rng: np.random.Generator, made: Preset, score: Floats) -> tuple[Codes, Codes]:
    """(N,) GPUs and (N,) size classes."""
    rows = [(one.share * part, gpus, at) for at, one in enumerate(made.classes) for gpus, part in one.gpus]
    shares = np.cumsum([share for share, _, _ in rows])
    chosen = np.minimum(np.searchsorted(shares / shares[-1], _places(rng, score), side="right"), len(rows) - 1)
    return (
        np.array([gpus for _, gpus, _ in rows], dtype=np.int32)[chosen],
        np.array([at for _, _, at in rows], dtype=np.int32)[chosen],
    )


def _fit(gpus: Codes, made: Preset, most: Codes) -> Codes:
    """The largest size of the preset that is at most the job's own and at most `most`."""
    known = np.array(sorted({size for one in made.classes for size, _ in one.gpus}), dtype=np.int32)
    return known[np.searchsorted(known, np.minimum(gpus, most), side="right") - 1]


def _run_times(
    rng: np.random.Generator, made: Preset, levels: Sequence[float], size_class: Codes, score: Floats
) -> Floats:
    """(N,) seconds: within each class the preset's distribution, in the order of `score`."""
    found = np.zeros(len(score))
    for at, one in enumerate(made.classes):
        rows = np.flatnonzero(size_class == at)
        found[rows] = np.exp(np.interp(_places(rng, score[rows]), levels, np.log(one.run_time)))
    return found


def _limits(rng: np.random.Generator, run_time: Floats, sizes: Ints, max_time: Floats) -> Floats:
    """(N,) a written limit for a whole sweep, as generous as people are; a job that needs longer has its own."""
    # In HPC2N and SDSC-BLUE 92 and 95 % of the consecutive jobs of a sweep have the same limit.
    first = np.cumsum(sizes) - sizes
    typical = np.exp(np.add.reduceat(np.log(run_time), first) / sizes)
    asked = np.repeat(typical * np.exp(OVER_ASKING * np.abs(rng.standard_normal(len(sizes)))), sizes)
    return np.minimum(written_limit(np.maximum(asked, run_time), run_time), max_time)

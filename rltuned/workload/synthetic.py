"""Generated workloads: GPU jobs as Philly, Helios and PAI saw them, for the demonstration and for tests without a trace.

Every number below says where it comes from. Most are counted from the public traces themselves (Philly: Jeon et al.,
USENIX ATC'19; Helios, cluster Venus: Hu et al., SC'21; PAI: Weng et al., NSDI'22; the files that docs/workloads.md
describes): quantiles, shares and rates, no rows. What those traces do not have (users) is counted from HPC2N and SDSC-BLUE of
the Parallel Workloads Archive, what no trace has is an assumption and called one.

How it works: users open sessions at moments that follow the hour of the day and good and bad days; a session is a sweep
of jobs that are alike, seconds apart; a user's sessions are made from few habits. Run time, GPUs and limit of a job are
then read from the preset's quantiles at the rank of the job's habit, so that the whole has exactly the preset's
distributions, however few users there are, and its demand is exactly the load that was asked for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Codes, Floats
from rltuned.errors import ConfigError
from rltuned.workload.estimates import OVER_ASKING, written_limit
from rltuned.workload.jobs import Source, Workload, workload

_LEVELS: Final = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 1)
"""Of the quantiles below; between them the logarithm is linear."""


@dataclass(frozen=True)
class SizeClass:
    """Jobs of about the same number of GPUs."""

    share: float
    """Of all jobs."""
    gpus: Mapping[int, float]
    """Share of each number of GPUs within the class."""
    run_time: tuple[int, ...]
    """Quantiles at `_LEVELS`, seconds."""


@dataclass(frozen=True)
class Preset:
    """What one published trace looks like."""

    classes: tuple[SizeClass, ...]
    hours: tuple[float, ...]
    """Submissions in each hour of the day relative to the mean, from 0:00."""
    day_spread: float
    """Standard deviation of the submissions of a day relative to the mean."""
    sweep: float
    """α of the sweep sizes, P(size > n) = (n + 1)^−α."""
    gap: float
    """Mean time between two jobs of a sweep, seconds."""


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        # Shares, quantiles, hours and the spread of days: the first 90 % (by time) of philly, 100,394 jobs.
        "philly": Preset(
            classes=(
                SizeClass(0.8715, {1: 1.0}, (1, 17, 45, 59, 78, 301, 718, 1300, 2005, 2787, 5785, 15751, 46652, 159230, 591977, 1244703, 2940945, 5196151)),
                SizeClass(0.0218, {2: 1.0}, (2, 5, 10, 12, 16, 18, 21, 27, 113, 1821, 47378, 229886, 453255, 598925, 1123319, 1557065, 2501238, 5150146)),
                SizeClass(0.0492, {4: 1.0}, (1, 17, 41, 98, 426, 939, 1931, 9211, 22387, 62590, 113797, 236612, 479603, 908580, 1877993, 2056810, 4402654, 5186933)),
                SizeClass(0.0490, {8: 1.0}, (1, 15, 40, 85, 492, 1309, 4384, 13172, 31764, 88521, 193303, 400474, 730307, 1208430, 1978640, 2670993, 4472933, 5187472)),
                SizeClass(0.0066, {12: 0.018, 16: 0.982}, (9, 23, 40, 51, 272, 1022, 3211, 11183, 25385, 49455, 111035, 289777, 574999, 740763, 1402188, 2602560, 3327676, 3412913)),
                SizeClass(0.0019, {24: 0.097, 32: 0.867, 64: 0.026, 128: 0.010}, (12, 14, 26, 49, 187, 609, 1262, 3419, 14398, 38428, 53406, 71496, 124092, 195146, 1432023, 1504288, 2779334, 3098095)),
            ),
            hours=(1.3, 1.03, 1.24, 1.11, 0.78, 1.12, 1.6, 1.9, 1.09, 0.91, 0.87, 0.73, 0.68, 0.63, 0.58, 0.69, 1.01, 0.72, 0.85, 0.75, 1.0, 0.91, 1.27, 1.25),
            day_spread=1.14,
            sweep=1.1,
            gap=8.0,
        ),
        # As above: helios-venus from April 2020, 112,683 jobs. Its run times are cut at 48 h for 1.9 % of the jobs; these
        # were given an exponential excess whose mean, 211,157 s, makes the mean run time the published one (13,041 s).
        "helios": Preset(
            classes=(
                SizeClass(0.5054, {1: 1.0}, (1, 1, 5, 16, 43, 88, 132, 192, 321, 802, 2149, 9612, 33508, 71810, 221882, 369864, 685180, 1348605)),
                SizeClass(0.0545, {2: 1.0}, (1, 1, 6, 17, 46, 95, 138, 209, 357, 1021, 5689, 78233, 180926, 324306, 539871, 715122, 926684, 1369602)),
                SizeClass(0.0767, {3: 0.021, 4: 0.979}, (1, 1, 5, 14, 38, 73, 109, 167, 303, 917, 4792, 32837, 84903, 167052, 324683, 464454, 710830, 1746260)),
                SizeClass(0.2586, {6: 0.007, 7: 0.008, 8: 0.985}, (1, 1, 8, 26, 72, 125, 167, 215, 376, 730, 2442, 24744, 62595, 131737, 283047, 424323, 773195, 1944870)),
                SizeClass(0.0445, {16: 1.0}, (1, 1, 6, 20, 69, 151, 239, 405, 959, 4636, 20061, 62120, 113072, 207054, 412475, 547719, 882969, 1314672)),
                SizeClass(0.0603, {24: 0.149, 32: 0.485, 40: 0.050, 48: 0.048, 56: 0.033, 64: 0.044, 72: 0.014, 80: 0.027, 96: 0.011, 120: 0.024, 128: 0.066, 152: 0.017, 160: 0.032}, (1, 1, 5, 5, 21, 66, 83, 172, 291, 559, 1858, 30034, 99602, 205473, 404737, 568490, 983735, 1163087)),
            ),
            hours=(0.91, 0.66, 0.61, 0.37, 0.26, 0.2, 0.18, 0.23, 0.38, 0.8, 1.32, 1.48, 1.18, 1.3, 1.57, 1.64, 1.7, 1.73, 1.23, 1.31, 1.33, 1.38, 1.15, 1.08),
            day_spread=0.55,
            sweep=1.5,
            gap=20.0,
        ),
        # As above: alibaba-pai, 54,094 tasks (run times cut at 48 h for 0.15 %; shares of a GPU counted as one).
        "pai": Preset(
            classes=(
                SizeClass(0.7675, {1: 1.0}, (5, 18, 25, 35, 65, 158, 276, 485, 956, 2122, 4751, 10988, 20897, 35946, 59820, 103954, 166368, 172800)),
                SizeClass(0.0309, {2: 1.0}, (6, 16, 39, 49, 68, 108, 181, 283, 558, 1102, 3136, 10210, 27910, 55287, 102517, 172800, 172800, 172800)),
                SizeClass(0.0294, {3: 0.512, 4: 0.488}, (15, 36, 66, 107, 239, 436, 539, 920, 1405, 2629, 4318, 16620, 37472, 52989, 101727, 122349, 172346, 172800)),
                SizeClass(0.0326, {5: 0.521, 6: 0.076, 7: 0.018, 8: 0.385}, (27, 48, 67, 84, 140, 283, 580, 1374, 3025, 5225, 8691, 19286, 40039, 79886, 151273, 172800, 172800, 172800)),
                SizeClass(0.0630, {9: 0.006, 10: 0.630, 12: 0.131, 15: 0.072, 16: 0.161}, (29, 59, 102, 160, 260, 416, 801, 1280, 1818, 3242, 6262, 16741, 27942, 37689, 72201, 88686, 172800, 172800)),
                SizeClass(0.0766, {20: 0.308, 25: 0.096, 30: 0.141, 40: 0.109, 50: 0.203, 60: 0.026, 64: 0.017, 80: 0.026, 100: 0.054, 200: 0.020}, (18, 33, 102, 186, 462, 997, 1616, 2530, 4005, 6060, 10353, 20424, 37615, 57899, 83571, 128404, 172800, 172800)),
            ),
            hours=(0.65, 0.82, 0.9, 0.96, 1.18, 0.91, 0.86, 1.22, 1.35, 1.04, 1.0, 1.02, 1.11, 1.04, 1.14, 1.16, 0.94, 0.92, 0.86, 0.69, 0.7, 1.46, 1.07, 0.99),
            day_spread=0.27,
            sweep=2.2,
            gap=20.0,
        ),
    }
)  # fmt: skip
"""By name."""

LONGEST_SWEEP: Final = 500
"""Assumption: nobody sends more at once. (Of HPC2N's sweeps 0.04 % are longer.)"""

_CPU_SHARE: Final = ((0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (0.18, 0.18, 0.57, 0.66, 0.70, 0.93, 1.0, 1.0))
_MEM_SHARE: Final = ((0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (0.07, 0.07, 0.30, 0.59, 0.61, 0.80, 0.96, 1.0))
"""CPUs and memory per GPU, as a share of what the node has per GPU: quantiles over the 3,986 pods of alibaba-openb-2023
that ask for whole GPUs (correlation 0.79: one rank for both here), cut at 1, so that all GPUs of a node can be used."""

_USERS: Final = (2.0, 0.43)
"""Users among n jobs: a·n^b. HPC2N has 13, 23, 57, 185 among 256, 1,024, 10,000, 100,000 jobs, SDSC-BLUE 35, 67, 164, 399."""

_ZIPF: Final = 1.0
"""Sessions of the k-th busiest user ∝ k^−1. Then 5 % of 160 users submit 48 % of the jobs (HPC2N: 56 %, SDSC-BLUE: 34 %)."""

_HABITS: Final = 3
"""Assumption: kinds of work that a user does. With `_STAY` it gives the correlation of the logarithms of two consecutive run
times of a user that HPC2N (0.84) and SDSC-BLUE (0.75) have, about."""
_STAY: Final = 0.75
"""Assumption: share of the sessions that go on with the kind of work of the user's last one."""
_ALIKE: Final = 0.85
"""Correlation of the normal scores of the run times of one habit's jobs."""
_TYPED: Final = 0.5
"""Assumption: share of the habits that insist on a GPU type where a partition has several."""
_LARGEST: Final = 0.5
"""A job is cut to the largest size of its class and below that half of its partition can hold: otherwise a 128-GPU job of
Philly's would make a 160-GPU cluster wait for it."""


def generate(preset: str, jobs: int, shape: ClusterShape, seed: int, load: float = 1.0) -> Workload:
    """A workload of `jobs` jobs for a cluster.

    Args:
        preset: `philly`, `helios` or `pai`.
        jobs: how many, 1 to 10,000,000.
        shape: partitions, GPU types and sizes; also what CPUs and memory go with a GPU.
        seed: from 0; the same arguments give the same workload.
        load: Σ run time · GPUs / (time from first to last submission · GPUs of the cluster). Above 1 the queue grows.

    Raises:
        ConfigError: an unknown preset, a number out of its range, or a cluster without GPUs.
    """
    if preset not in PRESETS:
        raise ConfigError(f"no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if not 1 <= jobs <= 10_000_000:
        raise ConfigError(f"number of jobs: expected 1 to 10,000,000, not {jobs}")
    if seed < 0:
        raise ConfigError(f"seed: expected a number from 0, not {seed}")
    if not 0 < load <= 1000:
        raise ConfigError(f"load: expected a number above 0 and up to 1000, not {load:g}")
    if not shape.gpus:
        raise ConfigError(f"{shape.text}: a cluster without GPUs; the presets are GPU jobs")
    made = PRESETS[preset]
    rng = np.random.default_rng((seed, jobs))
    people = _people(rng, jobs, shape)
    sessions = _sessions(rng, made, jobs, people)
    session = np.repeat(np.arange(len(sessions.size)), sessions.size)
    habit = sessions.habit[session]

    gpus, size_class = _sizes(rng, made, people.size_score[habit])
    gpus = _fit(gpus, made, people.most[habit])
    score = math.sqrt(_ALIKE) * people.time_score[habit] + math.sqrt(1 - _ALIKE) * rng.standard_normal(jobs)
    run_time = _run_times(rng, made, size_class, score)
    run_time = np.maximum(np.round(np.minimum(run_time, people.max_time[habit])), 1.0)
    limit = _limits(rng, run_time, sessions.size, people.max_time[habit])

    span = float((run_time * gpus).sum()) / (load * shape.gpus)
    submit = _arrivals(rng, made, sessions.size, span)
    share = people.resources[habit]
    cpus = np.where(
        people.cpus_per_gpu[habit] > 0,
        np.maximum(np.floor(people.cpus_per_gpu[habit] * np.interp(share, *_CPU_SHARE)), 1),
        0,
    )
    mem = np.floor(people.mem_per_gpu[habit] * np.interp(share, *_MEM_SHARE))
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
    gpu_type: Codes
    """Row of `types`; the last is "", any."""
    size_score: Floats
    """In (0, 1): where the habit stands among all by GPUs."""
    time_score: Floats
    """Standard normal: where it stands by run time."""
    resources: Floats
    """In (0, 1): where it stands by CPUs and memory per GPU."""
    most: Codes
    """Most GPUs of a job."""
    max_time: Floats
    cpus_per_gpu: Floats
    """Of the leanest node that it may get."""
    mem_per_gpu: Floats


def _people(rng: np.random.Generator, jobs: int, shape: ClusterShape) -> _People:
    users = max(1, round(_USERS[0] * jobs ** _USERS[1]))
    habits = users * _HABITS
    nodes = shape.nodes
    total = nodes.gpus.sum(axis=1)
    parts = [part for part in shape.partitions if part.up and total[part.nodes].sum() > 0]
    weight = np.array([total[part.nodes].sum() for part in parts], dtype=np.float64)
    # A user works in one partition (virtual cluster), the larger ones having more users. The busiest users are dealt out
    # like cards, by the rest of the demand, so that no partition is idle by chance alone.
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


@dataclass(frozen=True)
class _Sessions:
    """Sweeps, one row each, in order of time."""

    size: npt.NDArray[np.int64]
    habit: npt.NDArray[np.intp]


def _sessions(rng: np.random.Generator, made: Preset, jobs: int, people: _People) -> _Sessions:
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
    return _Sessions(sizes, habit)


def _arrivals(rng: np.random.Generator, made: Preset, sizes: npt.NDArray[np.int64], span: float) -> Floats:
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
    rows = [(one.share * part, gpus, at) for at, one in enumerate(made.classes) for gpus, part in one.gpus.items()]
    shares = np.cumsum([share for share, _, _ in rows])
    chosen = np.minimum(np.searchsorted(shares / shares[-1], _places(rng, score), side="right"), len(rows) - 1)
    return (
        np.array([gpus for _, gpus, _ in rows], dtype=np.int32)[chosen],
        np.array([at for _, _, at in rows], dtype=np.int32)[chosen],
    )


def _fit(gpus: Codes, made: Preset, most: Codes) -> Codes:
    """The largest size of the preset that is at most the job's own and at most `most`."""
    known = np.array(sorted({size for one in made.classes for size in one.gpus}), dtype=np.int32)
    return known[np.searchsorted(known, np.minimum(gpus, most), side="right") - 1]


def _run_times(rng: np.random.Generator, made: Preset, size_class: Codes, score: Floats) -> Floats:
    """(N,) seconds: within each class the preset's distribution, in the order of `score`."""
    found = np.zeros(len(score))
    for at, one in enumerate(made.classes):
        rows = np.flatnonzero(size_class == at)
        found[rows] = np.exp(np.interp(_places(rng, score[rows]), _LEVELS, np.log(one.run_time)))
    return found


def _limits(rng: np.random.Generator, run_time: Floats, sizes: npt.NDArray[np.int64], max_time: Floats) -> Floats:
    """(N,) a written limit for a whole sweep, as generous beside its typical run time as people are; a job that needs
    longer has its own. In HPC2N and SDSC-BLUE 92 and 95 % of the consecutive jobs of a sweep have the same limit.
    """
    first = np.cumsum(sizes) - sizes
    typical = np.exp(np.add.reduceat(np.log(run_time), first) / sizes)
    asked = np.repeat(typical * np.exp(OVER_ASKING * np.abs(rng.standard_normal(len(sizes)))), sizes)
    return np.minimum(written_limit(np.maximum(asked, run_time), run_time), max_time)

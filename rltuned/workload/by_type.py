"""Run times on each type of GPU, learned from finished jobs: who gains how much from which type. No profiling.

`rltuned.workload.predict` says how long a job takes on what its user's last jobs ran on. Here is by how much that
differs from type to type. What all users together show (P100 three times as fast as K80) is known soon. What one user's
jobs of one size show beside that counts as far as their run times are alike: a normal prior, whose variance is that of
measured kinds of training, and a normal error, whose variance is the user's own.
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from rltuned.cluster.tables import Floats, JobTable, Rows
from rltuned.errors import WorkloadError
from rltuned.workload.jobs import Estimates, Workload
from rltuned.workload.predict import (
    HistoryPredictor,
    Kind,
    RunTimeHistory,
    distinct_kinds,
    ended_before,
    kinds_of,
)

MOST_KEYS: Final = 10_000
"""Users times numbers of GPUs that are kept, about 10 MiB when each has `LAST` jobs."""
LAST: Final = 10
"""Last jobs of each that count."""
KINDS_DIFFER: Final = 0.3
"""σ of ln(run time on a type) among users, beside what is the same for all. Measured kinds of training differ by 0.45
(Narayanan et al., OSDI'20); with that, what is taken for a user's own is mostly chance (docs/estimates.md).
"""
JOBS_DIFFER: Final = 1.5
"""σ of ln(run time) among a user's jobs of one size, as long as little is known of them."""
_DOUBT: Final = 10.0
"""How many jobs `JOBS_DIFFER` counts as."""
_ALIKE: Final = 2.0
"""How many jobs the guess counts as that all types are alike."""
_SHORT: Final = 60.0
"""Seconds: whether a job takes a second or a minute says nothing about GPUs."""
_AGAIN: Final = 1.1
"""What all users show is computed again when so many times the jobs are known."""

_Key = tuple[str, int]
"""User, GPUs. Not the partition: many sites have one for each type."""


class RunTimesByType:
    """The last run times of each user's jobs of each size, with the types that they ran on. Pure; bounded memory."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most = most_keys
        self._last: OrderedDict[_Key, tuple[tuple[str, float], ...]] = OrderedDict()
        """In order of last use; values are type and ln(seconds), oldest first."""
        self._known = 0
        """Jobs that have ended."""
        self._common: dict[str, float] = {}
        self._common_of = 0
        """`_known` when `_common` was computed."""

    def __len__(self) -> int:
        """Keys kept."""
        return len(self._last)

    def copy(self) -> "RunTimesByType":
        """An independent one that knows the same."""
        other = RunTimesByType(self._most)
        other._last = self._last.copy()
        other._known, other._common, other._common_of = self._known, self._common, self._common_of
        return other

    def ended(self, kind: Kind, gpu_type: str, run_time: float) -> None:
        """A job of that kind ended after `run_time` seconds on GPUs of that type ("": not known)."""
        if not gpu_type or not kind.gpus:
            return
        key = kind.user, kind.gpus
        entry = gpu_type, math.log(max(run_time, _SHORT))
        self._last[key] = (*self._last.get(key, ()), entry)[-LAST:]
        self._last.move_to_end(key)
        self._known += 1
        while len(self._last) > self._most:
            self._last.popitem(last=False)

    def predict(self, kind: Kind, seconds: float, types: Sequence[str]) -> Floats:
        """(T,) seconds that a job takes on each of these types.

        Args:
            kind: of the job.
            seconds: what is expected of it whatever it gets (`RunTimeHistory.predict`), by its user's last jobs, on the
                types that these ran on.
            types: of GPUs.
        """
        common, last = self.common(), self._last.get((kind.user, kind.gpus), ())
        own = _own(last, common)
        log = {name: common.get(name, 0.0) + own.get(name, 0.0) for name in {*types, *(name for name, _ in last)}}
        usual = sum(log[name] for name, _ in last) / len(last) if last else 0.0
        return np.array([seconds * math.exp(log[name] - usual) for name in types], dtype=np.float64)

    def common(self) -> Mapping[str, float]:
        """By type: ln of the run time there, relative to the mean of all types, as all users together show it.

        Users' jobs of one size that ran on several types are compared, a user with himself. A type that nobody can be
        compared on is at 0.
        """
        if self._known > self._common_of * _AGAIN:
            self._common, self._common_of = _common(self._last.values()), self._known
        return self._common

    def to_json(self) -> list[Any]:
        """All that it knows, least recently used first."""
        return [[*key, [[name, round(log, 3)] for name, log in last]] for key, last in self._last.items()]

    @classmethod
    def from_json(cls, value: Any, most_keys: int = MOST_KEYS) -> Self:
        """What `to_json` made.

        Raises:
            WorkloadError: something else.
        """
        made = cls(most_keys)
        for entry in value if isinstance(value, list) else [None]:
            match entry:
                case [str(user), int(gpus), list(last)] if 1 <= len(last) <= LAST:
                    made._last[user, gpus] = tuple(map(_run, last))
                    made._known += len(last)
                case _:
                    raise WorkloadError("an entry of the run times by type cannot be understood")
        return made


class TypedPredictor(HistoryPredictor):
    """As `HistoryPredictor`, and it learns by type what its jobs took."""

    def __init__(
        self,
        jobs: Workload,
        time_limit: Floats,
        past: RunTimeHistory | None = None,
        past_by_type: RunTimesByType | None = None,
    ) -> None:
        """As `HistoryPredictor`; `past_by_type` is copied, too. Set `types_of` before the first job ends."""
        super().__init__(jobs, time_limit, past)
        self._by_type = past_by_type.copy() if past_by_type is not None else RunTimesByType()
        self.types_of: Callable[[Rows], Sequence[str]] = lambda rows: [""] * len(rows)
        """The GPU types that jobs ran on (`Simulation.gpu_types_of`)."""

    def ended(self, rows: Rows, run_times: Floats, ends: Floats) -> None:
        """As `HistoryPredictor.ended`."""
        super().ended(rows, run_times, ends)
        for row, name, seconds in zip(rows.tolist(), self.types_of(rows), run_times.tolist(), strict=True):
            self._by_type.ended(self._kinds[row], name, seconds)

    def by_type(self, rows: Rows, seconds: Floats, types: Sequence[str]) -> Floats:
        """(n, T) seconds on each type of jobs that take (n,) `seconds` on what their users' last jobs ran on."""
        pairs = zip(rows.tolist(), seconds.tolist(), strict=True)
        found = [self._by_type.predict(self._kinds[row], expected, types) for row, expected in pairs]
        return np.array(found, dtype=np.float64).reshape(len(rows), len(types))


def past_by_type(jobs: Workload, estimates: Estimates, until: float, types: Sequence[str]) -> RunTimesByType:
    """As `predict.past`; `types`: (N,) what the jobs ran on."""
    rows, ran, _ = ended_before(jobs, estimates, until)
    made = RunTimesByType()
    kinds = kinds_of(jobs.take(rows), estimates.time_limit[rows])
    for row, kind, seconds in zip(rows.tolist(), kinds, ran.tolist(), strict=True):
        made.ended(kind, types[row], seconds)
    return made


def predict_by_type(made: RunTimesByType, jobs: JobTable, seconds: Floats, types: Sequence[str]) -> Floats:
    """(N, T) run times of a live queue on each type, seconds; `seconds`: (N,) of `predict.predict_table`, the same for
    jobs of one kind. Each kind is looked up once.
    """
    kind_of, first = distinct_kinds(jobs)
    kinds = kinds_of(jobs.take(first), jobs.time_limit[first])
    found = [made.predict(kind, expected, types) for kind, expected in zip(kinds, seconds[first].tolist(), strict=True)]
    return np.array(found, dtype=np.float64).reshape(len(first), len(types))[kind_of]


def _run(value: Any) -> tuple[str, float]:
    match value:
        case [str(name), int(log) | float(log)] if name and math.isfinite(log):
            return name, float(log)
    raise WorkloadError("a run time by type cannot be understood")


def _medians(last: Iterable[tuple[str, float]]) -> dict[str, tuple[float, int]]:
    """Median of the logarithms, and number, by type."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, log in last:
        found[name].append(log)
    return {name: (float(np.median(logs)), len(logs)) for name, logs in found.items()}


def _common(every: Iterable[Sequence[tuple[str, float]]]) -> dict[str, float]:
    """Least squares of (median of a user on a type) = (level of the user) + (offset of the type), small offsets
    preferred.
    """
    names: dict[str, int] = {}
    rows: list[tuple[int, int, float, float]] = []
    users = 0
    for last in every:
        if len({name for name, _ in last}) > 1:
            for name, (median, count) in _medians(last).items():
                rows.append((users, names.setdefault(name, len(names)), median, math.sqrt(count)))
            users += 1
    if not rows:
        return {}
    table = np.array(rows)
    user, kind = table[:, 0].astype(np.intp), table[:, 1].astype(np.intp)
    value, weight = table[:, 2], table[:, 3]
    offset = np.zeros(len(names))
    for _ in range(30):  # alternately; two or three types need few rounds
        level = np.bincount(user, weight * (value - offset[kind])) / np.bincount(user, weight)
        of_type = np.bincount(kind, weight * (value - level[user]), len(names))
        offset = of_type / (np.bincount(kind, weight, len(names)) + _ALIKE)
        offset -= offset.mean()
    return dict(zip(names, offset.tolist(), strict=True))


def _own(last: Sequence[tuple[str, float]], common: Mapping[str, float]) -> dict[str, float]:
    """By type: how a user's jobs differ from `common`, as far as they are sure to."""
    rest = [(name, log - common.get(name, 0.0)) for name, log in last]
    medians = _medians(rest)
    if len(medians) < 2:
        return {}
    level = float(np.mean([median for median, _ in medians.values()]))
    squares = sum((log - medians[name][0]) ** 2 for name, log in rest)
    error = (squares + _DOUBT * JOBS_DIFFER**2) / (len(rest) + _DOUBT)
    prior = KINDS_DIFFER**2
    return {name: (median - level) * prior / (prior + error / count) for name, (median, count) in medians.items()}

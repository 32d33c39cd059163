"""Run-time predictions from jobs that have ended: the `history` estimates of simulation and of the live daemon.

After Tsafrir, Etsion and Feitelson, "Backfilling using system-generated predictions rather than user runtime
estimates", IEEE TPDS 18(6), 2007: what a user's last jobs took says more than what the user asked for. What is like
what, and which average, was measured (docs/decisions/0040-predictor.md). Backfill never sees these numbers: they may be
too short.
"""

import enum
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, JobTable
from rltuned.errors import WorkloadError
from rltuned.workload.jobs import Estimates, Workload

FORMAT: Final = 1
"""Version of the JSON form."""

MOST_KEYS: Final = 50_000
"""Keys that are kept, about 15 MiB; the ones not used for longest go first. A job has up to five."""

LAST_OF_USER: Final = 3
LAST_OF_GROUP: Final = 10
"""How many of the last run times count: of one user's jobs, and of many people's."""

PAST_JOBS: Final = 20_000
"""Jobs before a window that `past` looks at."""


class Basis(enum.IntEnum):
    """What a prediction rests on, most telling first."""

    REQUEST = 0
    """The user's last jobs with the same GPUs, partition and time limit."""
    KIND = 1
    """The user's last jobs with the same GPUs and partition."""
    USER = 2
    ACCOUNT = 3
    PARTITION = 4
    LIMIT = 5
    """Nothing known: the time limit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a job before it runs, as far as predictions go."""

    user: str = ""
    """"" where a trace has no users: then the last jobs of the same kind count, whoever's they are."""
    account: str = ""
    partition: str = ""
    """A comma list for a pending job of several partitions."""
    gpus: int = 0
    time_limit: float = math.inf
    """Seconds; NaN or infinite: none."""


_OF_USERS: Final = int(Basis.USER)
"""Up to here a key names the user."""

_Key = tuple[int, str, str, int, int]
"""Basis, user (or account), partition, GPUs, limit in seconds; what does not matter is "" or −1."""


class RunTimeHistory:
    """The last run times of each kind of job. Pure; a few microseconds per job; bounded memory."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most = most_keys
        # In order of last use; values are the last run times, oldest first.
        self._last: OrderedDict[_Key, tuple[float, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Keys kept."""
        return len(self._last)

    def copy(self) -> "RunTimeHistory":
        """An independent history that knows the same."""
        other = RunTimeHistory(self._most)
        other._last = self._last.copy()
        return other

    def ended(self, kind: Kind, run_time: float) -> None:
        """A job ended after `run_time` seconds."""
        last = self._last
        for key in _keys(kind, kind.partition):
            last[key] = (*last.get(key, ()), run_time)[-_memory(key) :]
            last.move_to_end(key)
        while len(last) > self._most:
            last.popitem(last=False)

    def predict(self, kind: Kind) -> tuple[float, Basis]:
        """Seconds that the job is expected to run, at least 1 and at most its limit, and what that rests on.

        Infinite with `Basis.LIMIT` for a job without limit of which nothing is known.
        """
        limit = math.inf if math.isnan(kind.time_limit) else max(kind.time_limit, 1.0)
        found: tuple[_Key, tuple[float, ...]] | None = None
        for partition in kind.partition.split(","):
            for key in _keys(kind, partition):
                known = self._last.get(key)
                if known is not None:
                    if found is None or key[0] < found[0][0]:
                        found = key, known
                    break
        if found is None:
            return limit, Basis.LIMIT
        key, known = found
        return min(max(_median(known), 1.0), limit), Basis(key[0])

    def to_json(self) -> dict[str, Any]:
        """All that it knows, as JSON-able data, least recently used first."""
        return {"format": FORMAT, "last": [[*key, list(known)] for key, known in self._last.items()]}

    @classmethod
    def from_json(cls, value: Any, most_keys: int = MOST_KEYS) -> Self:
        """The history that `to_json` wrote.

        Raises:
            WorkloadError: something else, or of another version.
        """
        if not isinstance(value, Mapping) or value.get("format") != FORMAT or not isinstance(value.get("last"), list):
            raise WorkloadError(f"no history of format {FORMAT}")
        history = cls(most_keys)
        for entry in value["last"][-most_keys:]:
            key, times = _entry(entry)
            history._last[key] = times
        return history


def _keys(kind: Kind, partition: str) -> Iterator[_Key]:
    """The keys under which a job is remembered and looked up, most telling first."""
    seconds = kind.time_limit
    limit = round(seconds) if math.isfinite(seconds) else -1
    # Plain numbers: the hash of an enum's member is computed in Python.
    yield 0, kind.user, partition, kind.gpus, limit
    yield 1, kind.user, partition, kind.gpus, -1
    if kind.user:
        yield 2, kind.user, "", -1, -1
    if kind.account:
        yield 3, kind.account, "", -1, -1
    if partition:
        yield 4, "", partition, -1, -1


def _memory(key: _Key) -> int:
    return LAST_OF_USER if key[0] <= _OF_USERS and key[1] else LAST_OF_GROUP


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _entry(entry: Any) -> tuple[_Key, tuple[float, ...]]:
    match entry:
        case [int(basis), str(name), str(partition), int(gpus), int(limit), list(times)] if (
            0 <= basis < Basis.LIMIT
            and 1 <= len(times) <= LAST_OF_GROUP
            and all(isinstance(t, int | float) and not isinstance(t, bool) and 0 <= t < math.inf for t in times)
        ):
            return (basis, name, partition, gpus, limit), tuple(map(float, times))
    raise WorkloadError("an entry of the history cannot be understood")


# --- whole tables ------------------------------------------------------------------------------------------------


class HistoryPredictor:
    """`rltuned.simulate.Predictor`: predictions for the jobs of one simulation, from what has ended in it and
    before.
    """

    def __init__(self, jobs: Workload, time_limit: Floats, past: RunTimeHistory | None = None) -> None:
        """`time_limit`: (N,) seconds as in `Estimates`. `past`: what had ended before; it is copied, not changed."""
        self._history = past.copy() if past is not None else RunTimeHistory()
        self._kinds = kinds_of(jobs, time_limit)

    def ended(self, rows: npt.NDArray[np.intp], run_times: Floats) -> None:
        """These jobs have ended since the last call, after (n,) seconds, in this order."""
        for row, seconds in zip(rows.tolist(), run_times.tolist(), strict=True):
            self._history.ended(self._kinds[row], seconds)

    def predict(self, rows: npt.NDArray[np.intp]) -> Floats:
        """(n,) seconds. Infinite where nothing is known and nothing was asked: the caller bounds it."""
        return np.array([self._history.predict(self._kinds[row])[0] for row in rows.tolist()], dtype=np.float64)


def past(jobs: Workload, estimates: Estimates, until: float, most: int = PAST_JOBS) -> RunTimeHistory:
    """What was known at `until` (seconds on the workload's clock): of the last `most` jobs submitted before, those that
    had ended on the machine of the trace. Where the trace has no wait, none is assumed.
    """
    rows, ran = ended_before(jobs, estimates, until, most)
    history = RunTimeHistory()
    for kind, seconds in zip(kinds_of(jobs.take(rows), estimates.time_limit[rows]), ran.tolist(), strict=True):
        history.ended(kind, seconds)
    return history


def ended_before(
    jobs: Workload, estimates: Estimates, until: float, most: int = PAST_JOBS
) -> tuple[npt.NDArray[np.intp], Floats]:
    """The jobs of `past`, in the order in which they ended, and the seconds that they ran."""
    stop = int(np.searchsorted(jobs.submit_time, until, side="left"))
    rows = np.arange(max(0, stop - most), stop)
    ran: Floats = np.minimum(jobs.run_time[rows], estimates.time_limit[rows])
    end = jobs.submit_time[rows] + np.nan_to_num(jobs.wait_time[rows]) + ran
    order = np.argsort(end, kind="stable")
    order = order[end[order] <= until]
    return rows[order], ran[order]


def predict_table(history: RunTimeHistory, jobs: JobTable) -> Floats:
    """(N,) predicted run times of a live queue, seconds; NaN where nothing is known. Each kind is looked up once."""
    kind_of, first = distinct_kinds(jobs)
    kinds = kinds_of(jobs.take(first), jobs.time_limit[first])
    known = [history.predict(kind) for kind in kinds]
    seconds = [math.nan if basis is Basis.LIMIT else predicted for predicted, basis in known]
    return np.array(seconds, dtype=np.float64)[kind_of]


def distinct_kinds(jobs: JobTable) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(N,) kind of each job, and for each kind the row of one such job."""
    kind = np.zeros(len(jobs), dtype=np.int64)
    first = np.zeros(0, dtype=np.intp)
    limits = np.unique(jobs.time_limit, return_inverse=True)[1]
    for column in (jobs.user.codes, jobs.account.codes, jobs.partition.codes, jobs.gpus, limits):
        # Fewer kinds than jobs, and codes of 32 bits: the product stays within 64.
        both = kind * (int(column.max(initial=0)) + 2) + column
        _, first, inverse = np.unique(both, return_index=True, return_inverse=True)
        kind = inverse.astype(np.int64)
    return kind.astype(np.intp), first


def kinds_of(jobs: Workload | JobTable, time_limit: Floats) -> list[Kind]:
    """What is known of each job."""
    columns = zip(
        jobs.user.texts(),
        jobs.account.texts(),
        jobs.partition.texts(),
        jobs.gpus.tolist(),
        time_limit.tolist(),
        strict=True,
    )
    return [Kind(*values) for values in columns]

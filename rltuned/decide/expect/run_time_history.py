"""Run-time predictions from jobs that have ended: the `history` estimates of simulation and of the live daemon.

What a user's last jobs took says more than what the user asked for (Tsafrir, Etsion and Feitelson, "Backfilling using
system-generated predictions rather than user runtime estimates", IEEE TPDS 18(6), 2007). Here are the last run times of
each kind of job; `decide.expect.mixture` says what they tell. Backfill never sees these numbers: they may be too
short.
"""

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import WorkloadError
from rltuned.core.tables import Bools, Category, Codes, Floats, Ints, JobTable, distinct
from rltuned.decide.expect.mixture import LAST, Known, Mixture
from rltuned.decide.expect.predictions import RunTimePredictions

FORMAT: Final = 3  # version of the JSON form
NAMED_FORMAT: Final = 4  # of one that goes by names, too

MOST_KEYS: Final = 50_000
"""Keys that are kept, about 15 MiB; those of whoever was not seen for longest go first. A job has up to seven."""

MOST_OF_ONE: Final = 1_000
"""Keys of one user that are kept: who sends many kinds of jobs drives out what is known of nobody else."""

LEARN_FROM: Final = 10_000
"""Jobs that the weights are learned from: as many of the last ones of each user, and fewer only of whoever has fewer.
So who ends thousands of jobs decides for nobody else what a job is like."""
_FEW: Final = 500  # jobs of one user that may be more than half of those of all others together
_LEAST_NEW: Final = 100
_NEW_SHARE: Final = 0.05
"""The weights are learned anew when so many jobs have ended, and this share of those that they are learned from."""

SLIGHT: Final = 0.01
"""A job that ran for less than this part of the longest of the last jobs of its kind is slight."""

LAST_OF_USER: Final = 20
"""Jobs of each user that `RunTimeHistory.last_of_users` names."""

LEVELS: Final = 5
"""What is like a job, most telling first: the user's jobs with the same GPUs, partition, limit and CPUs; with any CPUs;
with any limit, too; all of the user's; everybody's."""
NAMED_LEVELS: Final = LEVELS + 2
"""Where names are read, beside these: the user's jobs of the same name, GPUs, partition and limit; of the same name."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """What is known of a job before it runs, as far as predictions go."""

    user: str = ""
    """"" where a trace has no users: then the last jobs of the same kind count, whoever's they are."""
    account: str = ""
    partition: str = ""  # a comma list for a pending job of several partitions
    gpus: int = 0
    time_limit: float = math.inf  # seconds; NaN or infinite: none
    cpus: int = 0
    name: int = 0  # what it is called, as of `core.name_kinds`; 0: not known


_Key = tuple[int, str, str, int, int, int]
"""Level of `NAMED_LEVELS`, user, partition, GPUs, limit in seconds, and CPUs, or the name; what does not matter is ""
or −1."""

_UNTOLD: Final = -1  # name of a job of whose name none has ended
_NOTHING: Final[Mapping[_Key, int]] = {}


class _Ended(NamedTuple):
    user: str
    rows: tuple[int, ...]  # of `RunTimeHistory._took`, by level
    run_time: float
    end: float
    limit: float
    again: tuple[bool, ...]  # by level: it is slight, and counts as one with the one before it (`_with_last`)


class RunTimeHistory:
    """The last run times of each kind of job, and what they tell. Pure; bounded memory."""

    def __init__(self, most_keys: int = MOST_KEYS, *, named: bool = False) -> None:
        """`named`: names tell, too. Else it is as if no job had one."""
        self._most = most_keys
        self.named, self.levels = named, NAMED_LEVELS if named else LEVELS
        self._place: OrderedDict[str, OrderedDict[_Key, int]] = OrderedDict()
        """Row of `_took` by user ("": everybody) and key, each in order of last use."""
        self._keys = 0
        self._took: npt.NDArray[np.float32] = np.full((1, LAST), np.nan, dtype=np.float32)
        """ln(seconds) of the last jobs of each key, the last one first, NaN: none. Row 0 is of no key."""
        self._log: list[_Ended] = []
        """The last jobs, in order of their ends; at most twice `LEARN_FROM`."""
        self._new = 0
        """Jobs since the weights were learned."""
        self._mixture = Mixture(named=named)

    def __len__(self) -> int:
        """Keys kept."""
        return self._keys

    def copy(self) -> "RunTimeHistory":
        """An independent history that knows the same."""
        other = RunTimeHistory(self._most, named=self.named)
        other._place = OrderedDict((user, keys.copy()) for user, keys in self._place.items())
        other._keys, other._took = self._keys, self._took.copy()
        other._log, other._new, other._mixture = self._log.copy(), self._new, copy(self._mixture)
        return other

    def ended(self, kind: JobKind, run_time: float, end: float) -> None:
        """A job ended after `run_time` seconds, at `end`, of any clock that is always the same."""
        rows = [self._row(key) for key in _keys(kind, kind.partition)[: self.levels]]
        took = math.log(max(run_time, 1.0))
        limit = math.inf if math.isnan(kind.time_limit) else kind.time_limit
        self._took[rows], again = _with_last(self._took[rows], took)
        self._log.append(_Ended(kind.user, tuple(rows), run_time, end, limit, tuple(again.tolist())))
        if len(self._log) >= 2 * LEARN_FROM:
            self._log = _fair(self._log)
        self._new += 1

    @property
    def due(self) -> bool:
        """Whether so many jobs have ended since the weights were learned that `renew` learns them anew."""
        return self._new >= max(_LEAST_NEW, len(self._log) * _NEW_SHARE)

    def renew(self) -> None:
        """Learn the weights anew, where that is due."""
        if not self.due:
            return
        self._new, self._log = 0, _fair(self._log)
        users, *columns = zip(*self._log, strict=True)
        rows, run_time, end, limit, again = map(np.array, columns)
        # What was known of a job just before it started is what a plan goes by when it counts.
        known = _as_of(rows, np.log(np.maximum(run_time, 1.0)), end, end - run_time, again)
        # What came before the first jobs of a full log is not known any more.
        first = len(rows) // 10 if len(rows) > 0.9 * LEARN_FROM else 0
        self._mixture.learn(known[first:], users[first:], limit[first:], run_time[first:])

    def run_times(self, kinds: Sequence[JobKind]) -> RunTimePredictions:
        """What is expected of jobs of these kinds. NaN while nothing has ended."""
        limit = np.array([kind.time_limit for kind in kinds], dtype=np.float64)
        if not self._place or not kinds:
            return RunTimePredictions(*np.full((4, len(kinds)), np.nan))
        rows = np.array([self._rows(kind) for kind in kinds], dtype=np.intp)
        return self.run_times_by(self._took[rows], [kind.user for kind in kinds], limit)

    def told_by(self, user: str, name: int) -> bool:
        """Whether jobs of that name of that user are known to have ended."""
        return (6, user, "", -1, -1, name) in self._place.get(user, _NOTHING)

    def known(self, kind: JobKind) -> Known:
        """(levels, `LAST`) ln(seconds) of the last jobs like it now, the last one first; NaN: none."""
        return self._took[self._rows(kind)]

    def run_times_by(self, known: Known, users: Sequence[str], time_limit: Floats) -> RunTimePredictions:
        """What is expected of n jobs of these `users` of which (n, levels, `LAST`) was `known`; never NaN."""
        return self._mixture.run_times(known, users, time_limit)

    def predict(self, kind: JobKind) -> float:
        """Seconds that the job is expected to run, in the mean; NaN while nothing has ended."""
        return float(self.run_times([kind]).expected[0])

    def last_of_users(self) -> dict[str, list[tuple[float, float]]]:
        """Seconds and limit of the last `LAST_OF_USER` jobs of each user that had a limit, the last one first."""
        found: dict[str, list[tuple[float, float]]] = {}
        for job in reversed(self._log):
            last = found.setdefault(job.user, [])
            if len(last) < LAST_OF_USER and math.isfinite(job.limit):
                last.append((job.run_time, job.limit))
        return found

    def to_json(self) -> dict[str, Any]:
        """All that it knows, as JSON-able data, least recently used first."""
        last = []
        places = [place for keys in self._place.values() for place in keys.items()]
        for key, row in places:
            took = self._took[row, ~np.isnan(self._took[row])].astype(np.float64)
            last.append([*key, np.exp(took).round(1).tolist()])
        number = {row: at for at, row in enumerate(row for _, row in places)}
        log = [
            [user, [number[row] for row in rows], *times, limit if math.isfinite(limit) else None, [*map(int, again)]]
            for user, rows, *times, limit, again in self._log
        ]
        form = NAMED_FORMAT if self.named else FORMAT
        return {"format": form, "last": last, "log": log, "new": self._new, "mixture": self._mixture.to_json()}

    @classmethod
    def from_json(cls, value: Any, most_keys: int = MOST_KEYS) -> Self:
        """The history that `to_json` wrote; WorkloadError: it is something else, or of another version."""
        match value:
            case {"format": version, "last": list(last), "log": list(log), "new": int(new), "mixture": mixture} if (
                version in {FORMAT, NAMED_FORMAT} and len(last) <= most_keys and len(log) <= 2 * LEARN_FROM and new >= 0
            ):
                history = cls(most_keys, named=version == NAMED_FORMAT)
            case _:
                raise WorkloadError(f"no history of format {FORMAT} or {NAMED_FORMAT}")
        history._mixture, history._new = Mixture.from_json(mixture, named=history.named), new
        rows = []
        for entry in last:
            key, took = _entry(entry, history.levels)
            row = history._row(key)  # the columns may grow here
            history._took[row, : len(took)] = np.log(np.maximum(took, 1.0))
            rows.append(row)
        history._log.extend(_logged(entry, rows, history.levels) for entry in log)
        return history

    def _row(self, key: _Key) -> int:
        """The row of a key that is used now; a new one where there is none."""
        keys = self._place.setdefault(key[1], OrderedDict())
        self._place.move_to_end(key[1])
        row = keys.get(key)
        if row is None:
            # A job of the log that had a key which is forgotten is taken for one of the new key.
            if len(keys) >= MOST_OF_ONE:
                _, row = keys.popitem(last=False)
            elif self._keys >= self._most:
                user = next(iter(self._place))
                _, row = self._place[user].popitem(last=False)
                if not self._place[user]:
                    del self._place[user]
            else:
                row = self._keys = self._keys + 1
                if row == len(self._took):
                    self._took = np.concatenate((self._took, np.full_like(self._took, np.nan)))
            self._took[row] = np.nan
            keys[key] = row
        keys.move_to_end(key)
        return row

    def _rows(self, kind: JobKind) -> list[int]:
        """The row of each level, 0 where nothing is known. Of several partitions: of the one that tells most."""
        every = [
            [self._place.get(key[1], _NOTHING).get(key, 0) for key in _keys(kind, partition)[: self.levels]]
            for partition in kind.partition.split(",")
        ]
        return every[0] if len(every) == 1 else max(every, key=lambda rows: [row > 0 for row in rows])


def _fair(log: list[_Ended]) -> list[_Ended]:
    """`log` without what is too much of its users, the oldest first (`LEARN_FROM`)."""
    numbers: dict[str, int] = {}
    user = np.array([numbers.setdefault(job.user, len(numbers)) for job in log])
    count = np.bincount(user)
    most = bisect_right(range(int(count.max())), LEARN_FROM, key=lambda each: int(np.minimum(count, each + 1).sum()))
    most = max(most, 1)
    if len(count) > 1:
        most = min(most, max(_FEW, (len(log) - int(count.max())) // 2))
    order = np.argsort(user, kind="stable")
    newer = np.empty(len(log), dtype=np.int64)
    newer[order] = np.repeat(np.cumsum(count), count) - np.arange(len(log)) - 1
    return [log[row] for row in np.flatnonzero(newer < most)[-LEARN_FROM:].tolist()]


def _with_last(last: Known, took: float) -> tuple[Known, Bools]:
    """(levels, `LAST`) `last` with a job of ln(seconds) `took`; (levels,) where it counts as one with the last one."""
    # Slight jobs that end one after the other are kept as one: else ten runs of a few seconds would drive out all that
    # is known of a user's long jobs, and the next long one would be expected to be short, at hardly any cost.
    slight = np.fmax.reduce(last, axis=1, initial=0.0) + math.log(SLIGHT)
    again = (took < slight) & (last[:, 0] < slight)  # False where there is no last one (NaN)
    made = np.where(again[:, None], last, np.roll(last, 1, axis=1))
    made[:, 0] = took
    return made, again


def _keys(kind: JobKind, partition: str) -> tuple[_Key, ...]:
    """The keys under which a job is remembered and looked up, by level."""
    seconds = kind.time_limit
    limit = round(seconds) if math.isfinite(seconds) else -1
    user, gpus = kind.user, kind.gpus
    return (
        (0, user, partition, gpus, limit, kind.cpus),
        (1, user, partition, gpus, limit, -1),
        (2, user, partition, gpus, -1, -1),
        (3, user, "", -1, -1, -1),
        (4, "", "", -1, -1, -1),
        # Jobs of which no name is known are alike in that.
        (5, user, partition, gpus, limit, kind.name),
        (6, user, "", -1, -1, kind.name),
    )


def _as_of(rows: Ints, took: Floats, ends: Floats, asked: Floats, again: Bools) -> Known:
    """(n, levels, `LAST`) what was known of jobs of keys `rows` (n, levels) when they were `asked` about, as
    `RunTimeHistory.known` says it; `ends` is in order, `again` of `_Ended`.
    """
    known = np.full((*rows.shape, LAST), np.nan, dtype=np.float32)
    place = np.arange(len(rows))
    ended = np.searchsorted(ends, asked, side="right")
    for level, key in enumerate(rows.T):
        order = np.argsort(key, kind="stable")
        of = key[order]
        # The job before each one that counts as one with it, where there are any.
        first = np.maximum.accumulate(np.where(again[order, level], 0, place))
        # Where in `order` the jobs of the same key end that had ended by then.
        at = np.searchsorted(of * (len(rows) + 1) + order, key * (len(rows) + 1) + ended) - 1
        for nth in range(LAST):
            same = (at >= 0) & (of[at] == key)
            known[:, level, nth] = np.where(same, took[order[at]], np.nan)
            at = np.where(same, first[at] - 1, -1)
    return known


def _entry(entry: Any, levels: int) -> tuple[_Key, list[float]]:
    match entry:
        case [int(level), str(user), str(partition), int(gpus), int(limit), int(cpus), list(took)] if (
            0 <= level < levels and 1 <= len(took) <= LAST and all(map(_is_time, took))
        ):
            return (level, user, partition, gpus, limit, cpus), took
    raise WorkloadError("an entry of the history cannot be understood")


def _logged(entry: Any, rows: Sequence[int], levels: int) -> _Ended:
    """One of the log; `rows`: of `RunTimeHistory._took`, by number of a key in the file."""
    match entry:
        case [str(user), list(keys), run_time, int(end) | float(end), limit, list(again)] if (
            len(keys) == len(again) == levels
            and all(one in (0, 1) for one in again)
            and all(isinstance(key, int) and 0 <= key < len(rows) for key in keys)
            and all(map(_is_time, (run_time, abs(end), 0.0 if limit is None else limit)))
        ):
            limit = math.inf if limit is None else limit
            return _Ended(user, tuple(rows[key] for key in keys), run_time, end, limit, tuple(map(bool, again)))
    raise WorkloadError("a job of the history cannot be understood")


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


# --- whole tables ------------------------------------------------------------------------------------------------


def predict_table(history: RunTimeHistory, jobs: JobTable, names: Ints | None = None) -> RunTimePredictions:
    """(N,) of a live queue; NaN while nothing has ended. Each kind is looked up once. `names`: (N,) of each job, as
    `JobKind.name`; None: none is known.
    """
    called = [0] * len(jobs) if names is None else names.tolist()
    if history.named:
        # Names that tell nothing make no kinds: of 10,000 jobs with one each, these would take a quarter of a second.
        known_of = zip(jobs.user.texts(), called, strict=True)
        called = [name if history.told_by(user, name) else _UNTOLD for user, name in known_of]
    names = np.array(called, dtype=np.int64)
    first, kind_of = distinct((jobs.user.codes, jobs.partition.codes, jobs.gpus, jobs.time_limit, jobs.cpus, names))
    of = jobs.take(first)
    known = history.run_times(kinds(of.user, of.account, of.partition, of.gpus, of.time_limit, of.cpus, names[first]))
    return RunTimePredictions(*(column[kind_of] for column in known))


def kinds(
    user: Category, account: Category, partition: Category, gpus: Codes, time_limit: Floats, cpus: Codes, names: Ints
) -> list[JobKind]:
    """What is known of each job, by (N,) columns."""
    texts = user.texts(), account.texts(), partition.texts()
    return list(map(JobKind, *texts, gpus.tolist(), time_limit.tolist(), cpus.tolist(), names.tolist()))

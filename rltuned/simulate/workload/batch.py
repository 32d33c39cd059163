"""Rows of text into columns of numbers: fast where all is well, exact about the row and the reason where it is not.

A `Batch` converts whole columns; what is wrong with a row is noted beside it and the conversion goes on, so that one
code serves the strict reader (raises the first note) and `skip_bad` (drops the rows and counts). A `Collector` puts the
batches together into a `Workload`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import WorkloadError
from rltuned.core.notation import duration, tres_name
from rltuned.core.tables import Bools, Category, Floats, Ints
from rltuned.simulate.workload.jobs import NUMBERS, TEXTS, Source, Workload

MAX_TIME: Final = 1e11
"""Largest time stamp, seconds: milliseconds since the epoch are beyond it."""
MAX_DURATION: Final = 100 * 366 * 86400.0
MAX_GPUS: Final = 1_000_000.0
MAX_NODES: Final = 1_000_000.0
MAX_CPUS: Final = 1e9
MAX_MEM: Final = 1e12
"""MiB."""

_PLAIN: Final = frozenset("0123456789+-.eE")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?\Z", re.ASCII)
_STAMP: Final = frozenset("0123456789-: T")
_STAMP_FORM = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\Z",
    re.ASCII,
)
NOTHING: Final = frozenset({"", "None", "Unknown", "null", "NULL", "NaN", "nan", "N/A", "-", "none", "(null)"})
"""How the publishers write that a text or a time is not known."""
_NO_LIMIT: Final = NOTHING | {"Partition_Limit", "NOT_SET", "INVALID"}
_ANY_GPU: Final = NOTHING | {"-1", "gpu", "GPU", "cpu", "CPU"}
_ENDLESS: Final = frozenset({"UNLIMITED", "INFINITE", "INF"})


def shown(value: str) -> str:
    """A value inside a message: quoted, not longer than a line."""
    return repr(value if len(value) <= 60 else value[:60] + "…")


class Batch:
    """Rows as columns of text; n rows."""

    def __init__(self, lines: Ints, columns: Mapping[str, Sequence[str]]) -> None:
        """`lines`: (n,) their line numbers. `columns`: by the names that the format uses; absent ones are unknown."""
        self.lines = lines
        self.columns = columns
        self.notes: dict[int, str] = {}
        """What is wrong, by row; the first thing found."""
        self.never_ran: Bools = np.zeros(len(lines), dtype=np.bool_)
        self.unknown: Bools = np.zeros(len(lines), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.lines)

    def has(self, name: str) -> bool:
        """Whether the file has this column."""
        return name in self.columns

    def note(self, mask: Bools, reason: Callable[[int], str]) -> None:
        """Say what is wrong with the rows of `mask`."""
        for row in np.flatnonzero(mask).tolist():
            self.notes.setdefault(row, reason(row))

    def number(self, name: str, most: float, *, required: bool = False, scale: float = 1.0) -> Floats:
        """(n,) numbers ≥ 0 times `scale`; NaN where empty, −1 or without this column, which `required` forbids."""
        if name not in self.columns:
            return np.full(len(self), np.nan)
        cells = self.columns[name]
        values = self._floats(name, cells)
        unknown = np.isnan(values) | (values == -1)
        if required:
            self.note(
                unknown,
                lambda row: (
                    f"{name}: is empty" if not cells[row].strip() else f"{name}: {cells[row].strip()} means not known"
                ),
            )
        with np.errstate(invalid="ignore"):
            self.note((values < 0) & ~unknown, lambda row: f"{name}: {cells[row].strip()} is below 0")
            self.note(values > most, lambda row: f"{name}: {shown(cells[row].strip())} is above {most:,.0f}")
            return np.where(unknown | (values < 0) | (values > most), np.nan, values * scale)

    def _floats(self, name: str, cells: Sequence[str]) -> Floats:
        if _PLAIN.issuperset("".join(cells)):
            try:
                quick: Floats = np.array(list(map(float, cells)), dtype=np.float64)
            except ValueError:
                pass
            else:
                if np.isfinite(quick).all():
                    return quick
        values = np.full(len(cells), np.nan)
        for row, cell in enumerate(cells):
            text = cell.strip()
            if _NUMBER.match(text):
                number = float(text)
                if math.isfinite(number):
                    values[row] = number
                else:
                    self.notes.setdefault(row, f"{name}: {shown(text)} is too large a number")
            elif text.lstrip("+-").lower() in {"nan", "inf", "infinity"}:
                self.notes.setdefault(row, f"{name}: {text} is not a finite number")
            elif text:
                self.notes.setdefault(row, f"{name}: {shown(text)} is not a number")
        return values

    def count(self, name: str, most: float, *, required: bool = False, scale: float = 1.0) -> Floats:
        """(n,) whole numbers, rounded up (a share of a device takes the device); NaN as in `number`."""
        # The small subtraction keeps 3.0000000001 of a division at 3.
        return np.ceil(self.number(name, most, required=required, scale=scale) - 1e-9) + 0.0

    def limit(self, name: str, scale: float = 1.0) -> Floats:
        """(n,) limits, numbers times `scale`: NaN: unknown (empty, −1, 0); infinite: UNLIMITED or above a century."""

        def parse(cell: str) -> float | None:
            text = cell.strip()
            if text.upper() in _ENDLESS:
                return math.inf
            if not _NUMBER.match(text):
                return math.nan if text in _NO_LIMIT else None
            number = float(text)
            if number < 0 and number != -1:
                return None
            return math.nan if number <= 0 else number * scale if number * scale <= MAX_DURATION else math.inf

        return self._each(name, parse, "is no time limit")

    def slurm_limit(self, name: str) -> Floats:
        """(n,) time limits as Slurm writes them, ``1-00:00:00``; NaN where there is none."""

        def parse(cell: str) -> float | None:
            seconds = duration(cell)
            return None if math.isnan(seconds) and cell not in _NO_LIMIT else seconds

        return self._each(name, parse, "is no time limit")

    def _each(self, name: str, parse: Callable[[str], float | None], what: str) -> Floats:
        """(n,) `parse` of each cell, once per different one; None: note that it `what`. NaN without this column."""
        if name not in self.columns:
            return np.full(len(self), np.nan)
        cells = self.columns[name]
        known = {cell: parse(cell) for cell in dict.fromkeys(cells)}
        values: Floats = np.array(list(map(known.__getitem__, cells)), dtype=np.float64)
        if None in known.values():
            for row, cell in enumerate(cells):
                if known[cell] is None:
                    self.notes.setdefault(row, f"{name}: {shown(cell.strip())} {what}")
        return values

    def elapsed(self, name: str) -> Floats:
        """(n,) durations as Slurm writes them, ``[D-]HH:MM:SS``; a bad one is noted."""
        values = self.slurm_limit(name)
        with np.errstate(invalid="ignore"):
            self.note(~np.isfinite(values), lambda row: f"{name}: {shown(self.columns[name][row])} is no duration")
        return values

    def stamp(self, name: str, *, required: bool = False) -> Floats:
        """(n,) times: ``2020-06-09 18:41:01``, with T, fractions or a zone as well, or epoch seconds; NaN: not known.

        Without a zone it is read as UTC: differences are right except across a change of the clock.
        """
        if name not in self.columns:
            return np.full(len(self), np.nan)
        cells = self.columns[name]
        if all(map((19).__eq__, map(len, cells))) and _STAMP.issuperset("".join(cells)):
            try:
                moments: Floats = np.array(cells, dtype="datetime64[s]").astype(np.float64)
            except ValueError:
                pass
            else:
                # NumPy knows years that no calendar has; the slow way says what is wrong with them.
                if ((moments >= 0) & (moments <= MAX_TIME)).all():
                    return moments
        values = np.full(len(cells), np.nan)
        for row, cell in enumerate(cells):
            text = cell.strip()
            if text in NOTHING:
                continue
            try:
                if _STAMP_FORM.match(text):
                    moment = datetime.fromisoformat(text)
                    values[row] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
                elif _NUMBER.match(text) and 0 <= float(text) <= MAX_TIME:
                    values[row] = float(text)
                else:
                    self.notes.setdefault(row, f"{name}: {shown(text)} is no time such as 2020-06-09 18:41:01")
            except ValueError as error:
                self.notes.setdefault(row, f"{name}: {shown(text)} is no time: {error}")
        if required:
            self.note(np.isnan(values), lambda _: f"{name}: is not known")
        return values

    def text(self, name: str) -> list[str] | None:
        """The n texts, "" where there is none; None without this column."""
        return self._texts(name, lambda text: "" if text in NOTHING or text == "-1" else text)

    def gpu_type(self, name: str) -> list[str] | None:
        """The n GPU types in lower case, "" for any: none is named, or several (``a|b``). None without this column."""
        return self._texts(name, lambda text: "" if text in _ANY_GPU or "|" in text else tres_name(text))

    def _texts(self, name: str, clean: Callable[[str], str]) -> list[str] | None:
        if name not in self.columns:
            return None
        cells = self.columns[name]
        known = {cell: clean(cell.strip()) for cell in dict.fromkeys(cells)}
        return list(map(known.__getitem__, cells))


Rows = dict[str, Any]
"""Columns of the jobs of a batch as in `Workload`, before bad rows are dropped; NaN, None or no such column: not known.
"""


class Collector:
    """Gathers the jobs of a file."""

    def __init__(self, name: str, *, skip_bad: bool, keep_unknown: bool) -> None:
        """`name`: of the file, for messages. `keep_unknown`: rows whose run time is not known count as run time 0."""
        self.name = name
        self.skipped = 0
        self.first_skipped = ""
        self.left_out = 0
        self.unknown = 0
        self._skip_bad = skip_bad
        self._keep_unknown = keep_unknown
        self._numbers: dict[str, list[npt.NDArray[Any]]] = {column: [] for column in NUMBERS}
        self._codes: dict[str, list[npt.NDArray[np.int32]]] = {column: [] for column in TEXTS}
        self._index: dict[str, dict[str, int]] = {column: {"": -1} for column in TEXTS}

    def bad(self, line: int, reason: str) -> None:
        """A row that cannot be read.

        Raises:
            WorkloadError: unless such rows are skipped.
        """
        if not self._skip_bad:
            raise WorkloadError(f"{self.name}:{line}: {reason}")
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"line {line}: {reason}"

    def add(self, batch: Batch, rows: Rows) -> None:
        """Take the good rows of a batch, in its order.

        Raises:
            WorkloadError: the first row with a note, unless such rows are skipped.
        """
        run_time: Floats = rows["run_time"]
        missing = ~batch.never_ran & ~np.isfinite(run_time)
        batch.unknown |= missing
        for row in sorted(batch.notes):
            self.bad(int(batch.lines[row]), batch.notes[row])
        good = np.ones(len(batch), dtype=np.bool_)
        good[list(batch.notes)] = False
        self.left_out += int((good & batch.never_ran).sum())
        good &= ~batch.never_ran
        self.unknown += int((good & batch.unknown).sum())
        if not self._keep_unknown:
            good &= ~batch.unknown
        keep = np.flatnonzero(good)
        columns = rows | {"line": batch.lines, "run_time": np.where(batch.unknown, 0.0, run_time)}
        for column, (kind, default) in NUMBERS.items():
            values = columns.get(column)
            kept = np.full(len(keep), default) if values is None else values[keep]
            self._numbers[column].append(np.where(np.isnan(kept), default, kept).astype(kind))
        for column in TEXTS:
            texts = rows.get(column)
            if texts is None:
                codes = np.full(len(keep), -1, dtype=np.int32)
            else:
                index = self._index[column]
                for text in dict.fromkeys(texts):
                    index.setdefault(text, len(index) - 1)
                codes = np.array(list(map(index.__getitem__, texts)), dtype=np.int32)[keep]
            self._codes[column].append(codes)

    def finish(self, source: Source) -> Workload:
        """The workload, in order of submission.

        Raises:
            WorkloadError: no jobs.
        """
        source = replace(source, skipped=self.skipped, left_out=self.left_out, unknown=self.unknown)
        columns: dict[str, Any] = {
            name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in self._numbers.items()
        }
        n = len(columns["submit_time"])
        if not n:
            raise WorkloadError(f"{self.name}: no jobs in it{self._why_none()}")
        start = float(columns["submit_time"].min())
        columns["submit_time"] = columns["submit_time"] - start
        order = np.argsort(columns["submit_time"], kind="stable")
        ids = columns["job_id"]
        # Jobs are told apart by their id: where there are none, they are numbered, and so are all runs but the last one
        # of a job that has several (it was requeued, or changed its size).
        nameless = (ids <= 0).any()
        last = order[n - 1 - np.unique(ids[order][::-1], return_index=True)[1]]
        others = order if nameless else order[~np.isin(order, last)]
        columns["job_id"] = ids.astype(np.int64)
        columns["job_id"][others] = np.arange(1, len(others) + 1) + (0 if nameless else int(ids.max()))
        for column, parts in self._codes.items():
            columns[column] = Category(np.concatenate(parts), tuple(name for name in self._index[column] if name))
        whole = Workload(source=replace(source, start=start), **columns)
        return whole if (order[:-1] < order[1:]).all() else whole.take(order)

    def _why_none(self) -> str:
        reasons = []
        if self.skipped:
            reasons.append(f"{self.skipped:,} lines cannot be read ({self.first_skipped})")
        if self.left_out:
            reasons.append(f"{self.left_out:,} jobs never ran or have not ended")
        if self.unknown and not self._keep_unknown:
            reasons.append(f"{self.unknown:,} have no run time")
        return f": {'; '.join(reasons)}" if reasons else ""

"""Rows of separated text into columns of numbers: fast where all is well, exact about the row and the reason where not.

`read_table` makes a `Batch` of some thousand lines. A batch converts whole columns; what is wrong with a row is noted
beside it and the conversion goes on, so that one code serves the strict reader (raises the first note) and `skip_bad`
(drops the rows and counts). A `Collector` puts the batches together into a `Workload`.

A row's fields are split on its own line: no format has line breaks inside a field, and a quote that is not closed is
then an error of one line, not of the rest of the file.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import WorkloadError
from rltuned.core.notation import tres_name
from rltuned.core.tables import Bools, Category, Floats, Ints
from rltuned.simulate.workload.jobs import NUMBERS, TEXTS, Source, Workload
from rltuned.simulate.workload.lines import TextFile, strange

MAX_TIME: Final = 1e11
"""Largest time stamp, seconds: milliseconds since the epoch are beyond it."""
MAX_DURATION: Final = 100 * 366 * 86400.0
MAX_GPUS: Final = 1_000_000.0
MAX_NODES: Final = 1_000_000.0
MAX_CPUS: Final = 1e9
MAX_MEM: Final = 1e12  # MiB

_PLAIN: Final = frozenset("0123456789+-.eE")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?\Z", re.ASCII)
_STAMP: Final = frozenset("0123456789-: T")
_STAMP_FORM = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\Z",
    re.ASCII,
)
NOTHING: Final = frozenset({"", "None", "Unknown", "null", "NULL", "NaN", "nan", "N/A", "-", "none", "(null)"})
"""How the publishers write that a text or a time is not known."""
NO_LIMIT: Final = NOTHING | {"Partition_Limit", "NOT_SET", "INVALID"}
_ANY_GPU: Final = NOTHING | {"-1", "gpu", "GPU", "cpu", "CPU"}
_ENDLESS: Final = frozenset({"UNLIMITED", "INFINITE", "INF"})

Rows = dict[str, Any]
"""Columns of the jobs of a batch as in `Workload`, before bad rows are dropped; NaN, None or no such column: not known.
"""


def shown(value: str) -> str:
    """A value inside a message: quoted, not longer than a line."""
    return repr(value if len(value) <= 60 else value[:60] + "…")


@dataclass
class Batch:
    """Rows as columns of text; n rows."""

    lines: Ints  # (n,) their line numbers
    columns: Mapping[str, Sequence[str]]
    """By the names that the format uses; absent ones are unknown."""
    notes: dict[int, str] = field(default_factory=dict)
    """What is wrong, by row; the first thing found."""

    def __post_init__(self) -> None:
        self.never_ran: Bools = np.zeros(len(self), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.lines)

    def has(self, name: str) -> bool:
        """Whether the file has this column."""
        return name in self.columns

    def note(self, mask: Bools, reason: Callable[[int], str]) -> None:
        """Say what is wrong with the rows of `mask`."""
        for row in np.flatnonzero(mask).tolist():
            self.notes.setdefault(row, reason(row))

    def cells(self, name: str, parse: Callable[[str], Any], unknown: Any) -> list[Any]:
        """The n values that `parse` gives, called once per different cell; `unknown` and a note where it raises a
        ValueError. Without this column, what it makes of "".
        """
        cells = self.columns.get(name)
        if cells is None:
            return [parse("")] * len(self)
        known, wrong = {}, {}
        for cell in dict.fromkeys(cells):
            try:
                known[cell] = parse(cell.strip())
            except ValueError as error:
                known[cell], wrong[cell] = unknown, f"{name}: {error}"
        if wrong:
            for row, cell in enumerate(cells):
                if cell in wrong:
                    self.notes.setdefault(row, wrong[cell])
        return list(map(known.__getitem__, cells))

    def floats(self, name: str, parse: Callable[[str], float]) -> Floats:
        """(n,) what `parse` gives, as `cells`; NaN without this column."""
        if name not in self.columns:
            return np.full(len(self), np.nan)
        return np.array(self.cells(name, parse, np.nan), dtype=np.float64)

    def number(self, name: str, most: float, *, required: bool = False, scale: float = 1.0) -> Floats:
        """(n,) numbers ≥ 0 times `scale`; NaN where empty, −1 or without this column, which `required` forbids."""
        cells = self.columns.get(name, ())
        if _PLAIN.issuperset("".join(cells)):
            try:
                quick: Floats = np.array(list(map(float, cells)), dtype=np.float64)
            except ValueError:
                pass
            else:
                if len(quick) and quick.min() >= 0.0 and quick.max() <= most:
                    return quick * scale
        return self.floats(name, lambda text: _number(text, most, required=required)) * scale

    def count(self, name: str, most: float, *, required: bool = False, scale: float = 1.0) -> Floats:
        """(n,) whole numbers, rounded up (a share of a device takes the device); NaN as in `number`."""
        # The small subtraction keeps 3.0000000001 of a division at 3.
        return np.ceil(self.number(name, most, required=required, scale=scale) - 1e-9) + 0.0

    def ids(self, name: str) -> Floats:
        """(n,) integers; NaN (then the jobs are numbered) where one is none. Never wrong: ids may be text."""
        cells = self.columns.get(name, [""] * len(self))
        whole = (cell.isascii() and cell.isdigit() and len(cell) <= 15 for cell in cells)
        return np.array([float(cell) if ok else np.nan for cell, ok in zip(cells, whole, strict=True)])

    def stamp(self, name: str) -> Floats:
        """(n,) times as `epoch_seconds` reads them."""
        cells = self.columns.get(name, ())
        if cells and all(map((19).__eq__, map(len, cells))) and _STAMP.issuperset("".join(cells)):
            try:
                moments: Floats = np.array(cells, dtype="datetime64[s]").astype(np.float64)
            except ValueError:
                pass
            else:
                # NumPy knows years that no calendar has; the slow way says what is wrong with them.
                if ((moments >= 0) & (moments <= MAX_TIME)).all():
                    return moments
        return self.floats(name, epoch_seconds)

    def lasted(self, start: Floats, end: Floats, what: str) -> Floats:
        """(n,) durations of `what`; a negative one is noted."""
        self.note(end < start, lambda row: f"{what}: ends {start[row] - end[row]:,.0f} s before it starts")
        self.note(end - start > MAX_DURATION, lambda _: f"{what}: lasts more than a century")
        return np.maximum(end - start, 0.0)

    def text(self, name: str) -> list[str]:
        """The n texts, "" where there is none."""
        return self.cells(name, lambda text: "" if text in NOTHING or text == "-1" else text, "")

    def gpu_type(self, name: str) -> list[str]:
        """The n GPU types in lower case, "" for any: none is named, or several (``a|b``)."""
        return self.cells(name, lambda text: "" if text in _ANY_GPU or "|" in text else tres_name(text), "")


# --- what a cell says; a ValueError says why it says nothing ------------------------------------------------------


def _number(text: str, most: float, *, required: bool) -> float:
    if not _NUMBER.match(text):
        if text:
            endless = text.lstrip("+-").lower() in {"nan", "inf", "infinity"}
            raise ValueError(f"{text} is not a finite number" if endless else f"{shown(text)} is not a number")
        if required:
            raise ValueError("is empty")
        return math.nan
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{shown(text)} is too large a number")
    if value == -1:
        if required:
            raise ValueError(f"{text} means not known")
        return math.nan
    if value < 0:
        raise ValueError(f"{text} is below 0")
    if value > most:
        raise ValueError(f"{shown(text)} is above {most:,.0f}")
    return value


def limit(text: str, scale: float = 1.0) -> float:
    """A time limit, a number times `scale`; NaN: unknown (empty, −1, 0); infinite: UNLIMITED or above a century."""
    if text.upper() in _ENDLESS:
        return math.inf
    if text in NO_LIMIT:
        return math.nan
    number = float(text) if _NUMBER.match(text) else math.nan
    if not (number >= 0 or number == -1):
        raise ValueError(f"{shown(text)} is no time limit")
    return math.nan if number <= 0 else number * scale if number * scale <= MAX_DURATION else math.inf


def epoch_seconds(text: str) -> float:
    """A time: ``2020-06-09 18:41:01``, with T, fractions or a zone as well, or epoch seconds; NaN: not known.

    Without a zone it is read as UTC: differences are right except across a change of the clock.
    """
    if text in NOTHING:
        return math.nan
    if _NUMBER.match(text) and 0 <= float(text) <= MAX_TIME:
        return float(text)
    if not _STAMP_FORM.match(text):
        raise ValueError(f"{shown(text)} is no time such as 2020-06-09 18:41:01")
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError as error:
        raise ValueError(f"{shown(text)} is no time: {error}") from None


# --- tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableFormat:
    """A format of separated text with a header line."""

    name: str
    separators: str  # the one with which the header has most names that are known, and then most fields
    required: Sequence[tuple[str, ...]]  # each a choice of columns of which one must be there
    convert: Callable[[Batch], Rows]
    aliases: Mapping[str, str]
    """Other spellings of a column, in lower case, by the name that `convert` uses."""
    quotes: bool = True  # whether fields may be quoted as in CSV
    steps: Sequence[str] = ()
    """Rows with a dot in one of these columns are no jobs but steps of one (sacct)."""


def fits(line: str, table: TableFormat) -> bool:
    """Whether a file whose first line this is can be of this format."""
    try:
        header(line, table, "")
    except WorkloadError:
        return False
    return True


def header(line: str, table: TableFormat, where: str) -> tuple[list[str], str]:
    """The columns' names as `table.convert` knows them ("" for one that it does not need), and what separates them.
    Raises WorkloadError: a column is missing or there twice.
    """
    known = {*table.aliases, *(name for choice in table.required for name in choice)}
    parts = {one: [name.strip(' "').lower() for name in line.split(one)] for one in table.separators}
    separator = max(parts, key=lambda one: (len(known.intersection(parts[one])), len(parts[one])))
    try:
        found = [name.strip() for name in _fields(line, separator, table)]
    except csv.Error as error:
        raise WorkloadError(f"{where}: {error}") from error
    lower = [name.lower() for name in found]
    names: list[str] = []
    for name in lower:
        alias = table.aliases.get(name, name)
        # What is called by its own name is meant.
        names.append("" if alias != name and (alias in lower or alias in names) else alias)
    for choice in table.required:
        if not set(choice) & set(names):
            listed = ", ".join(found) if len(found) > 1 else shown(line)
            raise WorkloadError(f"{where}: no column {' or '.join(choice)} ({table.name}); there is {listed[:300]}")
        if twice := next((name for name in choice if names.count(name) > 1), None):
            raise WorkloadError(f"{where}: two columns are called {twice}")
    return names, separator


def _fields(line: str, separator: str, table: TableFormat) -> list[str]:
    """csv.Error: a quote that is not closed, or text after one."""
    if '"' not in line or not table.quotes:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator, strict=True))


def read_table(file: TextFile, table: TableFormat, collector: "Collector") -> None:
    """Read all jobs of `file`. Raises WorkloadError: header or (unless skipped) row wrong, with its line."""
    number, line = file.first
    if wrong := strange(line):
        raise WorkloadError(f"{file.name}:{number}: {wrong}")
    names, separator = header(line, table, f"{file.name}:{number}")
    read_rows(file, names, separator, table, collector, header=number)


def read_rows(
    file: TextFile, names: Sequence[str], separator: str, table: TableFormat, collector: "Collector", header: int = 0
) -> None:
    """`read_table` of columns with these names. `header`: the line that has them."""
    steps = [names.index(key) for key in table.steps if key in names]

    def fields(line: str) -> Sequence[str] | None:
        if wrong := strange(line):
            raise ValueError(wrong)
        try:
            found = _fields(line, separator, table)
        except csv.Error as error:
            raise ValueError(f"wrong quotes: {error}") from error
        return None if steps and any(at < len(found) and "." in found[at] for at in steps) else found

    for lines in file.batches():
        batch = as_batch(lines[lines[0][0] == header :], names, fields)
        if len(batch):
            collector.add(batch, table.convert(batch))


def as_batch(
    lines: Sequence[tuple[int, str]], names: Sequence[str], fields: Callable[[str], Sequence[str] | None]
) -> Batch:
    """The rows of numbered lines, as columns with these names; that of "" is left out.

    `fields`: of a line, None where it is no job; a ValueError says what is wrong with it. A wrong row, also one of
    another number of fields, has none.
    """
    numbers: list[int] = []
    rows: list[Sequence[str]] = []
    notes: dict[int, str] = {}
    for number, line in lines:
        wrong = ""
        try:
            found = fields(line)
        except ValueError as error:
            found, wrong = (), str(error)
        if found is None:
            continue
        if len(found) != len(names):
            notes[len(rows)] = wrong or f"{len(found)} fields instead of {len(names)}"
            found = [""] * len(names)
        numbers.append(number)
        rows.append(found)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    columns.pop("", None)
    return Batch(np.array(numbers, dtype=np.int64), columns, notes)


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
        self._parts: dict[str, list[npt.NDArray[Any]]] = {column: [] for column in (*NUMBERS, *TEXTS)}
        self._index: dict[str, dict[str, int]] = {column: {"": -1} for column in TEXTS}

    def bad(self, line: int, reason: str) -> None:
        """A row that cannot be read. Raises WorkloadError: unless such rows are skipped."""
        if not self._skip_bad:
            raise WorkloadError(f"{self.name}:{line}: {reason}")
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"line {line}: {reason}"

    def add(self, batch: Batch, rows: Rows) -> None:
        """Take the good rows of a batch, in its order. Raises WorkloadError: the first row with a note, unless such
        rows are skipped.
        """
        for row in sorted(batch.notes):
            self.bad(int(batch.lines[row]), batch.notes[row])
        good = np.ones(len(batch), dtype=np.bool_)
        good[list(batch.notes)] = False
        self.left_out += int((good & batch.never_ran).sum())
        good &= ~batch.never_ran
        unknown = ~np.isfinite(rows["run_time"])
        self.unknown += int((good & unknown).sum())
        if not self._keep_unknown:
            good &= ~unknown
        columns = rows | {"line": batch.lines, "run_time": np.where(unknown, 0.0, rows["run_time"])}
        for column, (kind, default) in NUMBERS.items():
            values = columns.get(column)
            kept = np.full(good.sum(), default) if values is None else values[good]
            self._parts[column].append(np.where(np.isnan(kept), default, kept).astype(kind))
        for column in TEXTS:
            texts, index = rows.get(column, [""] * len(batch)), self._index[column]
            for text in dict.fromkeys(texts):
                index.setdefault(text, len(index) - 1)
            self._parts[column].append(np.array(list(map(index.__getitem__, texts)), dtype=np.int32)[good])

    def finish(self, source: Source) -> Workload:
        """The workload, in order of submission. Raises WorkloadError: no jobs."""
        source = replace(source, skipped=self.skipped, left_out=self.left_out, unknown=self.unknown)
        columns: dict[str, Any] = {
            name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in self._parts.items()
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
        ids[others] = np.arange(1, len(others) + 1) + (0 if nameless else int(ids.max()))
        for column, index in self._index.items():
            columns[column] = Category(columns[column], tuple(name for name in index if name))
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

"""The queue as squeue and sprio print it: the one reading of their columns. `snapshot` makes tables of it, `status` the
few facts around a write.

Columns are read as a whole, and each distinct text of a column only once: 10,000 jobs of a few hundred kinds cost
little more than splitting the answer. A row that cannot be understood costs the job that it is about, no other.
"""

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rltuned.core.changes import SPLIT, JobState, OverSubscribe
from rltuned.core.errors import SlurmParseError
from rltuned.core.reasons import Waits, parse
from rltuned.core.unread import RowKind, Skipped, Unread
from rltuned.slurm import notation
from rltuned.slurm.commands import (
    CUT,
    EXCLUSIVE,
    EXCLUSIVE_SINCE,
    GPU_OPTIONS,
    JOB_FIELDS,
    REQUEST_FIELDS,
    SEPARATOR,
    SITE_FIELDS,
    STATUS_FIELDS,
)
from rltuned.slurm.notation import NOTHING, PENDING, begins_with_value, named_job
from rltuned.slurm.process import Runner, failure
from rltuned.slurm.separated import by_job, ids_in, refuse_unknown, skip_misfits, table

_STATES: Final[Mapping[str, int]] = {
    **dict.fromkeys(notation.KNOWN_STATES, int(JobState.OTHER)),
    **dict.fromkeys(notation.WAITING_STATES, int(JobState.PENDING)),
    **dict.fromkeys(notation.HOLDING_STATES, int(JobState.RUNNING)),
}


def job_state(value: str) -> int:
    """`JobState` of a compact state."""
    if value not in _STATES:
        raise notation.bad("job state", value)
    return _STATES[value]


class Column(NamedTuple):
    """How a column of squeue is read."""

    reads: Callable[[str], Any]
    kind: str  # NumPy's name of it; nothing here imports NumPy: `restore` works where it is broken
    instead: Any = 0  # stands for a text that is not understood
    plain: range = range(0)  # numbers that `int` reads as `reads` does, and faster


_TIME: Final = Column(notation.epoch, "float64", math.nan, range(10**12))
_NUMBER: Final = Column(notation.integer, "int64", 0, range(10**15))
COLUMNS: Final[Mapping[str, Column]] = {
    "JobID": Column(named_job, "int64", 0, range(1, 2**32)),
    "HetJobID": Column(notation.job_id, "int64", 0, range(2**32)),
    "ArrayTaskID": Column(notation.array_tasks, "int32"),
    "StateCompact": Column(job_state, "int8", int(JobState.OTHER)),
    "SubmitTime": _TIME._replace(reads=notation.known_epoch, instead=0.0),
    **dict.fromkeys(("EligibleTime", "StartTime", "EndTime", "Deadline"), _TIME),
    "TimeLimit": Column(notation.slurm_seconds, "float64", math.nan),
    **dict.fromkeys(("NumNodes", "NumTasks", "NumCPUs"), Column(notation.count, "int32")),
    **dict.fromkeys(("MinMemory", "MinTmpDisk"), Column(notation.memory, "float64", math.nan)),
    "tres-alloc": Column(notation.tres, "object", notation.Tres()),
    **dict.fromkeys(GPU_OPTIONS, Column(notation.gres, "object", {})),
    "mem-per-tres": Column(notation.is_given, "bool"),
    "Dependency": Column(notation.begins_with_value, "bool"),
    **dict.fromkeys(("PriorityLong", "Nice"), _NUMBER),
}
"""By field. What is not here is a text, or an id that only some rows need."""


class Columns:
    """squeue's columns as values. What cannot be understood is noted with its row."""

    def __init__(self, texts: Mapping[str, list[str]]) -> None:
        self.texts = texts
        self.strange: dict[int, str] = {}  # reason by row
        self._coded: dict[str, tuple[list[str], array[int]]] = {}

    def note(self, row: int, reason: str) -> None:
        """This row cannot be understood."""
        self.strange.setdefault(row, reason)

    def coded(self, field: str) -> tuple[list[str], "array[int]"]:
        """The distinct texts of a column, in order of first appearance, and which of them each row has. Found once."""
        if field not in self._coded:
            self._coded[field] = _encode(self.texts[field])
        return self._coded[field]

    def distinct(self, field: str) -> tuple[list[Any], "array[int]"]:
        """The values of the distinct texts, and which of them each row has."""
        (reads, _, instead, plain), (texts, codes) = COLUMNS[field], self.coded(field)
        found: list[Any] = []
        wrong: dict[int, SlurmParseError] = {}
        for code, value in enumerate(texts):
            if plain and value.isdecimal() and value.isascii() and len(value) <= 15 and (number := int(value)) in plain:
                found.append(number)
                continue
            try:
                found.append(reads(value))
            except SlurmParseError as error:
                found.append(instead)
                wrong[code] = error
        if wrong:
            for row, code in enumerate(codes):
                if code in wrong:
                    self.note(row, f"column {field}: {wrong[code]}")
        return found, codes

    def values(self, field: str) -> list[Any]:
        """The value of each row."""
        found, codes = self.distinct(field)
        return [found[code] for code in codes]


def _encode(values: list[Any]) -> tuple[list[Any], "array[int]"]:
    # Most columns hold one text only; comparing is much cheaper than looking each up.
    if values and values.count(values[0]) == len(values):
        return values[:1], array("i", [0]) * len(values)
    index = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return list(index), array("i", map(index.__getitem__, values))


# --- sprio -------------------------------------------------------------------------------------------------------


class Factors(NamedTuple):
    """What priority/multifactor adds up for one job."""

    site: int
    bases: tuple[int, ...]
    """The other terms together, before Slurm's floor of 1: of each partition, each value once, ascending."""
    decided: str
    """Terms of nice, partition, QOS and association that are not 0, "nice=20 partition=1000"; " or " between them."""

    def beside(self, other: "Factors") -> "Factors":
        """Of a job that stands in the queue at two places: another partition's, another task's. A task that was
        requeued may lack its array's site factor, or its array what the task has.
        """
        several = " or ".join(sorted({*self.decided.split(" or "), *other.decided.split(" or ")}))
        return Factors(self.site or other.site, tuple(sorted({*self.bases, *other.bases})), several)


def multifactor(runner: Runner, unread: Unread) -> dict[int, Factors | None]:
    """Factors of each job that is under multifactor: pending, eligible, not held, no explicit priority.

    sprio lists a job with an explicit priority with every term 0 and nothing for TRES (measured on all releases): None
    here, and so is one under multifactor that looks like it. Empty under priority/basic.
    """
    answer = runner.run("site-factors")
    if answer.code != 0:
        said = answer.stderr.lower()
        if "unable to find jobs" in said or "priority plugin" in said or "multifactor" in said:
            return {}
        raise failure(answer)
    return by_job(answer.stdout, SITE_FIELDS, "sprio", (RowKind.SITE_FACTOR, 1), _factors, unread)


def _factors(table: Sequence[Sequence[str]]) -> dict[int, Factors | None]:
    ids, sites, shown, tres, *terms = table
    numbers = list(map(notation.named_job, ids))
    site_of = {site: notation.integer(site) for site in set(sites)}
    for column in (shown, *terms):
        for number in set(column):
            notation.integer(number)
    for weighted in set(tres):
        notation.tres_terms(weighted)
    nothing = ("0",) * (len(terms) + 1)
    found: dict[int, Factors | None] = {}
    for job, site, priority, of_tres, *others in zip(numbers, sites, shown, tres, *terms, strict=True):
        if not of_tres and (site, *others) == nothing:
            found.setdefault(job)
            continue
        factor = site_of[site]
        base = _base(int(priority), factor, of_tres, others)
        known, one = found.get(job), Factors(factor, (base,), _decided(others[0], *others[4:]))
        found[job] = one.beside(known) if known else one
    return found


@lru_cache(maxsize=4096)
def _decided(nice: str, partition: str, qos: str, association: str) -> str:
    """As `Factors.decided`. Few differ, but a user may set any nice: hence the bound."""
    terms = {"nice": nice, "partition": partition, "qos": qos, "association": association}
    return " ".join(f"{name}={term}" for name, term in terms.items() if term != "0")


def _base(shown: int, site: int, tres: str, terms: Sequence[str]) -> int:
    """Slurm's sum without the site factor, fractions dropped: of one row of sprio, so of one moment."""
    base = shown - site
    if shown > 1:
        return base
    # Slurm shows 1 for every sum below 2, so only the terms tell. Each is rounded, and the sum is no more than `base`.
    nice, *others = (int(term) for term in terms)
    return min(base, sum(others) - nice + sum(notation.tres_terms(tres).values()))


# --- records -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """What every reading of the queue has: one entry for each row of squeue."""

    columns: Columns
    ids: list[int]
    """What scontrol takes for the row: the array's id for its pending tasks, else the job's own; 0: cannot be told."""
    rows: list[int]  # the one that tells about each id, ascending
    state: list[int]  # `JobState`
    submit_time: list[float]
    priority: list[int]
    held: list[bool]
    oversubscribe: list[OverSubscribe]
    exclusive: list[bool]  # it asked for nodes of its own
    request: list[str]  # as `JobTable.request`
    factors: list[Factors | None]
    sites_differ: frozenset[int] = frozenset()
    """Arrays of whose waiting tasks two have site factors that are neither 0 nor the same."""


def read_records(
    texts: Mapping[str, list[str]],
    factors: Mapping[int, Factors | None],
    array_of: Mapping[int, int] = MappingProxyType({}),
) -> Records:
    """The records of squeue's columns, and sprio's factors by number; `array_of`: as of `excluded_nodes`."""
    columns = Columns(texts)
    own, state, priority = (columns.values(field) for field in ("JobID", "StateCompact", "PriorityLong"))
    ids = _record_ids(columns, own)
    released = {reason for reason in set(texts["Reason"]) if parse(reason).waits is Waits.RELEASE}
    shares, alone = _shares(texts)
    records = Records(
        columns=columns,
        ids=ids,
        rows=_one_row_each(columns, ids),
        state=state,
        submit_time=columns.values("SubmitTime"),
        priority=priority,
        held=[
            waits == JobState.PENDING and (not points or reason in released)
            for waits, points, reason in zip(state, priority, texts["Reason"], strict=True)
        ],
        oversubscribe=shares,
        exclusive=alone,
        request=request_digests(columns),
        # sprio knows a requeued task of an array by its own number.
        factors=[factors.get(job) or factors.get(number) for job, number in zip(ids, own, strict=True)],
    )
    apart = _apart(records, own, factors, array_of)
    return _with_split(records, apart, factors) if apart else records


def _with_split(
    records: Records, apart: Mapping[int, Mapping[int, int]], factors: Mapping[int, Factors | None]
) -> Records:
    """The records where what differs among the waiting tasks of an array is told; `apart`: as of `_apart`."""
    request, of_rows = list(records.request), list(records.factors)
    sites_differ: set[int] = set()
    for job, row_of in apart.items():
        rows, terms = [row for row in row_of.values() if row >= 0], [factors[n] for n in row_of if n in factors]
        known = [of for of in terms if of]
        if len({of.site for of in known} - {0}) > 1:  # what is taken off one can be taken off those that have none
            sites_differ.add(job)
        seen = {(request[row], records.held[row]) for row in rows}
        shown = {(of.site, of.decided) if of else None for of in terms}
        if len(rows) == len(row_of) and len(seen) == 1 and len(shown) <= 1:
            continue
        for row in rows:
            request[row], own = SPLIT, of_rows[row]
            # It stands in the queue wherever one of its tasks does.
            of_rows[row] = reduce(Factors.beside, known, own) if own else None
    return replace(records, request=request, factors=of_rows, sites_differ=frozenset(sites_differ))


def _apart(
    records: Records, own: Sequence[int], factors: Mapping[int, Factors | None], array_of: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """Arrays whose waiting tasks have several records: of each, its row by its number; −1 where squeue has none."""
    ids, waits = records.ids, [state == JobState.PENDING for state in records.state]
    # squeue prints a task that was changed as one of those that were not (print.c, _combine_pending_array_tasks).
    listed = set(own)
    hidden = {number: array for number, array in array_of.items() if number in factors and number not in listed}
    suspects = {job for job, rows in Counter(ids).items() if job and rows > 1} | set(hidden.values())
    found: dict[int, dict[int, int]] = {job: {} for job in suspects}
    for row, job in enumerate(ids) if suspects else ():
        if job in suspects and waits[row]:
            found[job].setdefault(own[row], row)
    for number, job in hidden.items():
        if found[job]:
            found[job][number] = -1
    return {job: records for job, records in found.items() if len(records) > 1}


def _record_ids(columns: Columns, own: list[int]) -> list[int]:
    """As `Records.ids`: an update of an array's id reaches all waiting tasks, requeued ones too, and splits nothing."""
    ids = list(own)
    states, arrays = columns.texts["StateCompact"], columns.texts["ArrayJobID"]
    for row, tasks in enumerate(columns.texts["ArrayTaskID"]):
        if begins_with_value(tasks) and states[row] == PENDING:
            try:
                ids[row] = named_job(arrays[row])
            except SlurmParseError as error:
                columns.note(row, f"column ArrayJobID: {error}")
    return ids


def _one_row_each(columns: Columns, ids: list[int]) -> list[int]:
    """As `Records.rows`; notes rows of the same id. Of tasks: one that waits, with the array's number, the oldest."""
    if len(set(ids)) == len(ids):
        return list(range(len(ids)))
    states, own, tasks = (columns.texts[field] for field in ("StateCompact", "JobID", "ArrayTaskID"))
    rows_of: dict[int, list[int]] = {}
    for row, job in enumerate(ids):
        rows_of.setdefault(job, []).append(row)
    for job, rows in rows_of.items():
        if job and len(rows) > 1 and not all(begins_with_value(tasks[row]) for row in rows):
            for row in rows:
                columns.note(row, f"job {job} appears twice")
    return sorted(min(rows, key=lambda at: (states[at] != PENDING, len(own[at]), own[at])) for rows in rows_of.values())


def started_tasks(texts: Mapping[str, list[str]]) -> tuple[dict[int, int], dict[int, int]]:
    """As `Snapshot.arrays` and `Snapshot.array_of`. Rows that cannot be understood are passed over."""
    arrays: dict[int, int] = {}
    array_of: dict[int, int] = {}
    fields = ("ArrayTaskID", "StateCompact", "JobID", "ArrayJobID", "SubmitTime")
    for tasks, state, own, whole, submitted in zip(*(texts[field] for field in fields), strict=True):
        if begins_with_value(tasks) and state != PENDING:
            with contextlib.suppress(SlurmParseError):
                arrays.setdefault(named_job(whole), int(notation.known_epoch(submitted)))
            with contextlib.suppress(SlurmParseError):
                array_of[named_job(own)] = named_job(whole)
    return arrays, array_of


def request_digests(columns: Columns) -> list[str]:
    """A digest of what each job asks for (`REQUEST_FIELDS`), the same in every reading until somebody changes it."""
    rows = list(zip(*(columns.texts[field] for field in REQUEST_FIELDS), strict=True))
    digests: dict[tuple[str, ...], str] = {}
    for row in set(rows):
        asked = dict(zip(REQUEST_FIELDS, row, strict=True))
        if "," in asked["Partition"]:  # then Slurm sets these itself, by the partition that it has looked at last
            asked |= {"NumNodes": "", "NumCPUs": ""}
        digests[row] = blake2b("\0".join(asked.values()).encode(), digest_size=8).hexdigest()
    return [digests[row] for row in rows]


# --- OverSubscribe -----------------------------------------------------------------------------------------------


def _shares(texts: Mapping[str, list[str]]) -> tuple[list[OverSubscribe], list[bool]]:
    """OverSubscribe of each job, and whether it asked for nodes of its own."""
    pairs, codes = _encode(list(zip(texts["OverSubscribe"], texts.get(EXCLUSIVE, repeat(None)), strict=False)))
    shares = [_share(*pair) for pair in pairs]
    return [shares[code][0] for code in codes], [shares[code][1] for code in codes]


def _share(shown: str, exclusive: str | None) -> tuple[OverSubscribe, bool]:
    """The same of squeue's columns OverSubscribe and, since 26.05, Exclusive (None: no such column).

    Since 26.05 a job that asked for nothing and one that was set to NO both show NO: that is `UNKNOWN` here. A word
    that is not known counts as NO, the value that is never touched. Before 26.05 a NO that rltuned wrote looks like one
    of somebody who asked for a node alone.
    """
    told = None if exclusive in NOTHING else exclusive
    try:
        value = OverSubscribe(shown.upper())
        if told == "NO":
            value = OverSubscribe.UNKNOWN if value is OverSubscribe.NO else value
        elif told is not None:
            value = OverSubscribe(told.upper())
    except ValueError:
        value = OverSubscribe.NO
    alone = {OverSubscribe.NO, OverSubscribe.USER, OverSubscribe.MCS, OverSubscribe.TOPO}
    return value, value in alone if told is None else told != "NO"


# --- what is asked for -------------------------------------------------------------------------------------------


def job_columns(runner: Runner, of_release: tuple[int, int], unread: Unread, *, brief: bool) -> dict[str, list[str]]:
    """The texts of squeue's columns by field name; `brief`: only those of `STATUS_FIELDS`."""
    name, fields = ("status", STATUS_FIELDS) if brief else ("jobs", JOB_FIELDS)
    if of_release >= EXCLUSIVE_SINCE:
        name, fields = f"{name}-exclusive", (*fields, EXCLUSIVE)
    found, misfits = table(runner.ask(name), fields, f"squeue ({name})")
    texts = dict(zip(fields, found, strict=True))
    skip_misfits(misfits, RowKind.JOB, found[:2], len(fields), unread)
    if RowKind.JOB in unread.listed:
        unread.listed[RowKind.JOB] = _all_ids(texts) | unread.jobs.keys()
    return texts


def _all_ids(texts: Mapping[str, list[str]]) -> set[int]:
    """Every id that a row may be known by; the array's is that of its pending tasks."""
    pairs = zip(texts["ArrayJobID"], texts["StateCompact"], strict=True)
    return {*ids_in(texts["JobID"]), *ids_in([array for array, state in pairs if state == PENDING])}


def skip_strange(records: Records, unread: Unread, command: str) -> None:
    """Leave the jobs of the strange rows alone; SlurmParseError where these are too many (`refuse_unknown`)."""
    texts = records.columns.texts
    reasons = []
    for row, reason in sorted(records.columns.strange.items()):
        own, array = ids_in([texts["JobID"][row]]), ids_in([texts["ArrayJobID"][row]])
        certain = own and array and texts["StateCompact"][row] in notation.KNOWN_STATES
        about = [records.ids[row]] if certain else [*own, *array]
        name = str(about[0]) if about else ""
        reasons.append(f"{command}, job {name or '?'}, {reason}")
        unread.skip(Skipped(RowKind.JOB, name, reasons[-1]), about)
        if not (own and array):
            unread.listed[RowKind.JOB] = ()
    refuse_unknown(reasons, len(records.ids))
    if RowKind.JOB in unread.listed:
        unread.listed[RowKind.JOB] = {*_all_ids(texts), *unread.jobs}


def excluded_nodes(runner: Runner, unread: Unread) -> tuple[dict[int, str], dict[int, int]]:
    """Excluded nodes by job (or array) id, without jobs that exclude none; and the array of each task's record."""
    # A list that was cut has no end, and so is not read: who asks for it is left alone, and lends.
    answer = runner.ask("excluded").replace(f"{CUT}\n", f"[{SEPARATOR}\n")
    return by_job(
        answer,
        ("id", "array", "tasks", "excluded"),
        "squeue (excluded)",
        (RowKind.EXCLUDED_NODES, 2),
        _excluded,
        unread,
    )


def _excluded(columns: Sequence[Sequence[str]]) -> tuple[dict[int, str], dict[int, int]]:
    found: dict[int, str] = {}
    array_of: dict[int, int] = {}
    for own, whole, tasks, value in zip(*columns, strict=True):
        if begins_with_value(tasks) and own != whole:
            array_of[named_job(own)] = named_job(whole)
        if nodes := notation.text(value):
            # Own id as well: a running task of an array is a row of its own.
            found.setdefault(named_job(whole if begins_with_value(tasks) else own), nodes)
            found.setdefault(named_job(own), nodes)
    return found, array_of

"""Understands what Slurm prints. Every function is total: it returns a value or raises `SlurmParseError`, nothing else.

Covers the spellings of 22.05, 24.11 and 26.05. Pure text in, plain Python values out; imports no NumPy (see package).
All of it is linear in the length of the text.

Functions that read a whole answer leave out the rows that they cannot understand and name them (`cluster.unread`). They
raise where the answer is cut short, or where so many rows are strange that the format is not known (`refuse_unknown`).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple, TypeVar

from rltuned.cluster import durations
from rltuned.cluster.unread import RowKind, Skipped
from rltuned.errors import SlurmParseError
from rltuned.slurm.commands import SEPARATOR

NOTHING: Final = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "(none)"})
"""How Slurm's programs say that there is no value."""

MAX_COUNT: Final = 2**31 - 1
"""Largest count (GPUs, CPUs, nodes, tasks) that the tables hold."""

FEW: Final = 3
"""So many strange rows are never taken for an unknown format, even where they are all there is: a queue of one job."""

_T = TypeVar("_T")


def text(value: str) -> str:
    """The value, "" where Slurm says there is none."""
    return "" if value in NOTHING else value


def _bad(what: str, value: str) -> SlurmParseError:
    shown = value if len(value) <= 80 else value[:80] + "…"
    return SlurmParseError(f"{what}: cannot understand {shown!r}")


# --- tables ------------------------------------------------------------------------------------------------------


_ROW_END: Final = SEPARATOR + "\n"
_BLOCK: Final = 1 << 16
"""Characters that are split at a time: what they become stays in the processor's cache, and does not stand beside the
whole answer in memory."""


def columns(answer: str, fields: tuple[str, ...], command: str) -> list[list[str]]:
    """The columns of a separated table: ``value 0x1f value 0x1f … 0x1f newline`` per row, no header.

    Proof that nothing is missing: the text ends with separator and newline, the number of values is a multiple of the
    number of fields, and exactly the first value of each row follows a newline. An empty text is an empty table.

    Raises:
        SlurmParseError: truncated, or a row with too few or too many fields; names the command and the line.
    """
    width = len(fields)
    if answer and not answer.endswith(_ROW_END):
        line = answer.count("\n") + 1
        raise SlurmParseError(f"{command}, line {line}: the answer is cut short (no separator and newline at its end)")
    table: list[list[str]] = [[] for _ in fields]
    # Text that many rows share is kept once: 100,000 jobs of 34 columns are 200 MB otherwise.
    shared: list[dict[str, str] | None] = [{} for _ in fields]
    start = 0
    while start < len(answer):
        end = answer.find(_ROW_END, start + _BLOCK)
        end = len(answer) - len(_ROW_END) if end < 0 else end
        values = answer[start:end].split(SEPARATOR)
        rows = answer.count("\n", start, end) + 1
        start = end + len(_ROW_END)
        # The newline that ends a row sticks to the front of the next row's first value. Rows − 1 of those and the last
        # one are all newlines there are, so no other value holds one.
        if len(values) != rows * width or not all(map(str.startswith, values[width::width], repeat("\n"))):
            raise _misfit(answer, fields, command)
        values[width::width] = [value[1:] for value in values[width::width]]
        for index, column in enumerate(table):
            found, known = values[index::width], shared[index]
            if known is not None:
                if found[0] == found[-1] and found.count(found[0]) == rows:
                    found = [known.setdefault(found[0], found[0])] * rows
                else:
                    found = list(map(known.setdefault, found, found))
                if 2 * len(known) > len(column) + rows:
                    shared[index] = None  # ids and the like: nothing to share
            column.extend(found)
    return table


def rows_of(answer: str, ids: AbstractSet[str], id_columns: int, width: int) -> str:
    """The rows of a separated table in which one of the first `id_columns`, one or two, is one of `ids` (job ids, as
    text).

    The whole answer where it is cut short, a row does not have `width` fields, or an id is no plain number: then all
    has to be looked at. To take the other rows apart is most of the work with a table of 100,000.
    """
    if not answer.endswith(_ROW_END) or not answer.isascii():
        return answer
    rows = answer.split(_ROW_END)
    rows.pop()
    if answer.count("\n") != len(rows) or set(map(str.count, rows, repeat(SEPARATOR))) != {width - 1}:
        return answer
    plain = f"(?:[1-9][0-9]*{SEPARATOR}){{{id_columns}}}"
    if re.match(plain, answer) is None or re.search(rf"\n(?!{plain}|\Z)", answer) is not None:
        return answer
    kept = [
        row for row in rows if (front := row.split(SEPARATOR, id_columns))[0] in ids or front[id_columns - 1] in ids
    ]
    return "".join([row + _ROW_END for row in kept])


class Misfit(NamedTuple):
    """A line that does not have its number of fields."""

    number: int
    """Of the line, 1 first."""
    line: str
    fields: int
    reason: str


def fitting_rows(answer: str, fields: tuple[str, ...], command: str) -> tuple[str, list[Misfit]]:
    """The answer without the lines that do not have their number of fields, and those lines.

    For tables in which a row may be missing. What follows the last newline stays: `columns` finds that the answer is
    cut short.
    """
    lines = answer.split("\n")
    wrong = [
        Misfit(number, line, count, f"{command}, line {number}: {count} fields instead of {len(fields)}")
        for number, line in enumerate(lines[:-1], start=1)
        if (count := line.count(SEPARATOR)) != len(fields)
    ]
    if not wrong:
        return answer, []
    left_out = {misfit.number for misfit in wrong}
    return "\n".join(line for number, line in enumerate(lines, start=1) if number not in left_out), wrong


def _misfit(answer: str, fields: tuple[str, ...], command: str) -> SlurmParseError:
    """Which line does not have its number of fields."""
    _, wrong = fitting_rows(answer, fields, command)
    return SlurmParseError(wrong[0].reason if wrong else f"{command}: rows and fields do not fit")


def table(answer: str, fields: tuple[str, ...], command: str) -> tuple[list[list[str]], list[Misfit]]:
    """As `columns`, without the rows that do not have their number of fields; and those rows.

    A name that holds the separator or a newline, which only an administrator can give, makes such a row.

    Raises:
        SlurmParseError: truncated, or a format that is not known: see `refuse_unknown`; or no line has its number of
            fields, and one of them has too few (a column is missing: this Slurm is not one that rltuned knows).
    """
    try:
        return columns(answer, fields, command), []
    except SlurmParseError as error:  # seldom: only then each line is looked at by itself
        fitting, wrong = fitting_rows(answer, fields, command)
        if not wrong:
            raise
        found = columns(fitting, fields, command)
        if not found[0] and any(misfit.fields < len(fields) for misfit in wrong):
            raise SlurmParseError(str(error)) from None
        refuse_unknown([misfit.reason for misfit in wrong], len(found[0]) + len(wrong))
        return found, wrong


def refuse_unknown(reasons: Sequence[str], rows: int) -> None:
    """Tell strange rows from a strange format: more than half of all `rows`, and more than `FEW`, are a format.

    What Slurm says of one job may be odd; where it is so of most, this is not the Slurm that rltuned knows, and nothing
    that was understood can be relied upon.

    Raises:
        SlurmParseError: with the first of the reasons.
    """
    if len(reasons) > FEW and 2 * len(reasons) > rows:
        raise SlurmParseError(
            f"{reasons[0]}; likewise {len(reasons) - 1} more of {rows} rows: a format that rltuned does not know"
        )


def row_by_row(
    found: list[list[str]], reads: Callable[[list[list[str]]], _T]
) -> tuple[_T, list[tuple[list[str], SlurmParseError]]]:
    """What `reads` makes of the columns `found`, without the rows that it does not understand; and those rows, with the
    reason.

    All at once; only where that fails, each row by itself and then all that are understood.
    """
    try:
        return reads(found), []
    except SlurmParseError:
        wrong: list[tuple[list[str], SlurmParseError]] = []
        kept: list[list[str]] = []
        for values in map(list, zip(*found, strict=True)):
            try:
                reads([[value] for value in values])
            except SlurmParseError as error:
                wrong.append((values, error))
            else:
                kept.append(values)
        return reads([list(column) for column in zip(*kept, strict=True)] if kept else [[] for _ in found]), wrong


# --- numbers -----------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"-?[0-9]{1,15}\Z", re.ASCII)
_COUNT = re.compile(r"([0-9]{1,15})(\.[0-9]{1,9})?([KMGTP]?)(?:-[0-9]{1,15}(?:\.[0-9]{1,9})?[KMGTP]?)?\Z", re.ASCII)
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def integer(value: str) -> int:
    """A plain decimal integer of at most 15 digits: a few thousand of them add up in 64 bits."""
    if not _INTEGER.match(value):
        raise _bad("number", value)
    return int(value)


def are_plain(values: list[str]) -> bool:
    """Whether each value is made of 1 to 15 digits. True for none."""
    if not values:
        return True
    joined = "".join(values)
    if not (joined.isascii() and joined.isdigit()):
        return False
    lengths = set(map(len, values))
    return 0 not in lengths and max(lengths) <= 15


def plain_integers(values: list[str]) -> list[int] | None:
    """All of a column as integers, at once, when they `are_plain`; else None: look at each."""
    return list(map(int, values)) if are_plain(values) else None


def job_id(value: str) -> int:
    """A positive job id; 0 where Slurm says there is none."""
    if value in NOTHING:
        return 0
    number = integer(value)
    if not 0 <= number < 2**32:
        raise _bad("job id", value)
    return number


def named_job(value: str) -> int:
    """A job id, where there must be one."""
    if number := job_id(value):
        return number
    raise _bad("job id", value)


def count(value: str) -> int:
    """A count as squeue abbreviates it: ``4``, ``4K`` (4096), the lower end of ``1-2``; 0 where there is none."""
    if len(value) < 10 and value.isdigit() and value.isascii():
        return int(value)
    if value in NOTHING:
        return 0
    match = _COUNT.match(value)
    if match is None:
        raise _bad("count", value)
    whole, fraction, unit = match.groups()
    number = (
        int(float(whole + (fraction or "")) * 1024 ** _POWER[unit]) if fraction else int(whole) * 1024 ** _POWER[unit]
    )
    if number > MAX_COUNT:
        raise _bad("count", value)
    return number


_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTPkmgtp]?)(?:[Bb]?[NCnc]?)\Z", re.ASCII)


def memory(value: str) -> float:
    """Memory or disk in MiB: ``4000M``, ``62.50G``, ``16Gn``, ``16Gc``, a plain number (MiB); NaN where there is
    none.
    """
    if value in NOTHING:
        return math.nan
    match = _MEMORY.match(value)
    if match is None:
        raise _bad("memory", value)
    unit = match.group(2).upper()
    return float(match.group(1)) * 1024.0 ** (_POWER[unit] - 2 if unit else 0)


# --- times -------------------------------------------------------------------------------------------------------

_UNLIMITED: Final = frozenset({"UNLIMITED", "INFINITE", "unlimited", "infinite"})
_UNSET: Final = frozenset({"NOT_SET", "INVALID", "Partition_Limit", "Unknown", "UNKNOWN", "NO_VAL"}) | NOTHING


def duration(value: str) -> float:
    """Seconds of a Slurm time (squeue(1), sbatch(1) --time).

    ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``, ``HH:MM:SS``, ``MM:SS``, ``MM``; infinite for UNLIMITED, NaN for NOT_SET,
    INVALID, Partition_Limit and the like.
    """
    if value in _UNSET:
        return math.nan
    seconds = durations.duration(value)
    if math.isnan(seconds):
        raise _bad("time", value)
    return seconds


def epoch(value: str) -> float:
    """Epoch seconds (``SLURM_TIME_FORMAT=%s``); NaN for N/A, Unknown, None."""
    if value in _UNSET or value in _UNLIMITED:
        return math.nan
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise _bad("time stamp", value)
    return float(value)


def moment(value: str) -> float:
    """Epoch seconds, where there must be some: a submit time, which with the id tells a job from any other."""
    seconds = epoch(value)
    if math.isnan(seconds):
        raise _bad("time stamp", value)
    return seconds


# --- TRES and GRES -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tres:
    """A TRES list as ``cpu=4,mem=4000M,node=2,gres/gpu=8,gres/gpu:p100=8``."""

    cpu: int = 0
    mem: float = math.nan
    """MiB."""
    node: int = 0
    gpus: int | None = None
    """All GPUs; None when gres/gpu is not tracked or not asked for."""
    gpu_types: tuple[tuple[str, int], ...] = ()


def tres(value: str) -> Tres:
    """A TRES list with ``=`` (squeue ``tres-alloc``, scontrol CfgTRES). Unknown resources are skipped."""
    if value in NOTHING:
        return Tres()
    cpu = node = 0
    mem = math.nan
    gpus: int | None = None
    types: dict[str, int] = {}
    for part in value.split(","):
        name, equals, amount = part.partition("=")
        if not equals:
            raise _bad("TRES", value)
        if name == "cpu":
            cpu = count(amount)
        elif name == "mem":
            mem = memory(amount)
        elif name == "node":
            node = count(amount)
        elif name == "gres/gpu":
            gpus = count(amount)
        elif name.startswith("gres/gpu:"):
            kind = name.removeprefix("gres/gpu:")
            types[kind] = types.get(kind, 0) + count(amount)
    if types:
        gpus = max(gpus or 0, sum(types.values()))
        if gpus > MAX_COUNT:
            raise _bad("TRES", value)
    return Tres(cpu, mem, node, gpus, tuple(types.items()))


def tres_terms(value: str) -> dict[str, int]:
    """The weighted TRES of a priority, sprio(1) ``%T``: ``cpu=1,mem=0,gres/gpu=308``; empty where there are none."""
    found: dict[str, int] = {}
    for part in value.split(",") if value not in NOTHING else ():
        name, equals, amount = part.rpartition("=")
        if not (name and equals):
            raise _bad("TRES of a priority", value)
        found[name] = integer(amount)
    return found


_GRES_WORD = re.compile(r"[^\x00-\x20\x7f:,=()]{1,128}\Z")
"""Name, type or count. slurm.conf(5) and gres.conf(5) forbid nothing in a type, and Slurm ends it at ``:``, ``,``,
``=`` or ``(``; real ones are ``a100``, ``1g.10gb``, ``1g.10gb+me``, ``nvidia_a100-sxm4-80gb``, ``h100/2``."""
_ANY_TYPE: Final = ""
_NO_CONSUME: Final = "no_consume"
"""A flag of a node's GRES: jobs name it and use none of it up."""
_NO_TYPE: Final = ":(null)"
"""How 22.05 and 24.11 print the missing type of GPUs whose cores are known: ``gpu:(null):2(IDX:0-1)``."""


def gres(value: str) -> dict[str, int]:
    """GPUs by type ("" : no type) of a GRES list, summed; other resources (shard, nic, license) are skipped.

    All spellings: ``gpu:p100:4(S:0-1)``, ``gpu:p100:2(IDX:0-1)``, ``gpu:(null):2(IDX:0-1)``, ``gres:gpu:p100:4``
    (22.05), ``gres/gpu:p100:4`` (24.11), ``gres/gpu:k80=1`` (26.05), ``gpu``, ``gpu:2``, ``gpu(null):2``,
    ``gpu:no_consume:2``, ``cpu=4,gres/gpu:1``.
    """
    found: dict[str, int] = {}
    if value in NOTHING:
        return found
    for part in _outside_parentheses(value.replace(_NO_TYPE, "")):
        item = part.strip()
        if not item:
            raise _bad("GRES", value)
        for prefix in ("gres/", "gres:"):
            item = item.removeprefix(prefix)
        name, equals, amount = item.partition("=")
        words = name.split(":")
        if words[0] != "gpu":
            continue
        if equals:
            words.append(amount)
        if not all(_GRES_WORD.match(word) for word in words):
            raise _bad("GRES", value)
        kind, number = _gpu([word for word in words[1:] if word != _NO_CONSUME], value)
        found[kind] = found.get(kind, 0) + number
        if found[kind] > MAX_COUNT:
            raise _bad("GRES", value)
    return found


_SHARDS = re.compile(r"(?:\A|,)shard:(?:([^\x00-\x20\x7f:,=()]{1,128}|\(null\)):)?[0-9]{1,15}\(([^()]*)\)")
_SHARED = re.compile(r"(?:\A|,)0*[1-9][0-9]*/")
_RANGES = re.compile(r"IDX:([0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*)\Z")


def shared_gpus(value: str) -> dict[str, int]:
    """GPUs by type ("gpu": none) of which some shards are in use, of a GresUsed.

    ``gpu:2(IDX:0-1),shard:(null):3(3/4,0/4)`` (shards used of each GPU), ``shard:(null):1(IDX:0)`` (22.05: the GPUs).
    Nobody can have such a GPU as a whole, although it does not count as used (measured on all releases).
    """
    found: dict[str, int] = {}
    for kind, parts in _SHARDS.findall(value):
        of = "gpu" if kind in {"", "(null)"} else kind
        ranges = _RANGES.match(parts)
        found[of] = found.get(of, 0) + (array_tasks(ranges.group(1)) if ranges else len(_SHARED.findall(parts)))
    return found


def _gpu(words: list[str], whole: str) -> tuple[str, int]:
    """Type and number of the words after ``gpu``."""
    # A type may consist of digits only in theory; in Slurm the last word is the count when it can be one.
    match words:
        case []:
            return _ANY_TYPE, 1
        case [one]:
            return (_ANY_TYPE, count(one)) if _COUNT.match(one) else (one, 1)
        case [kind, number]:
            return kind, count(number)
    raise _bad("GRES", whole)


_PARENTHESES = re.compile(r"\([^()]*\)")


def _outside_parentheses(value: str) -> list[str]:
    """Split at commas that are not inside ``(S:0,2)`` or ``(IDX:0-1,3)``, and drop those remarks."""
    bare = _PARENTHESES.sub("", value)
    if "(" in bare or ")" in bare:
        raise _bad("GRES", value)
    return bare.split(",")


# --- arrays, dependencies ----------------------------------------------------------------------------------------

_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z", re.ASCII)


def array_tasks(value: str) -> int:
    """Number of tasks of ``1-20%5``, ``1,3-5``, ``1-20:4``, ``7``; at least those shown when cut (``1,3,...``); 0 for
    N/A.

    The id in front and the brackets, as in ``6_[1-20%5]``, may be there or not.
    """
    if value in NOTHING:
        return 0
    expression = value.rpartition("_")[2] if "_" in value else value
    expression = expression.removeprefix("[").removesuffix("]").partition("%")[0]
    total = 0
    parts = expression.split(",")
    for number, part in enumerate(parts):
        if part.endswith("...") and number == len(parts) - 1:
            # squeue's own cut, possibly in the middle of a number: what is left of it counts as one task at most.
            total += 1 if part != "..." else 0
            break
        match = _TASKS.match(part)
        if match is None:
            raise _bad("array tasks", value)
        low, high, step = int(match.group(1)), int(match.group(2) or match.group(1)), int(match.group(3) or 1)
        if high < low or step < 1:
            raise _bad("array tasks", value)
        total += (high - low) // step + 1
    if total > MAX_COUNT:
        raise _bad("array tasks", value)
    return total


def depends(value: str) -> bool:
    """Whether a dependency (squeue ``Dependency``) is still open: ``afterok:12(unfulfilled)``, ``singleton`` …"""
    return value not in NOTHING


# --- states ------------------------------------------------------------------------------------------------------

PENDING: Final = "PD"
WAITING_STATES: Final = frozenset({PENDING, "SE", "RD"})
"""Compact states of jobs that wait: pending, and held after a special exit or with their reservation deleted,
squeue(1)."""
HOLDING_STATES: Final = frozenset({"R", "S", "CG", "CF", "SO", "ST", "SI", "RS", "RQ", "RH"})
"""Compact states of jobs that hold resources, squeue(1): running, suspended, completing (also before they are
requeued), configuring, staging out …"""

KNOWN_STATES: Final = HOLDING_STATES | {
    *(PENDING, "RD", "RF", "RH", "RQ", "RV", "SE"),  # waiting, one way or another
    *("BF", "CA", "CD", "DL", "F", "LF", "NF", "OOM", "PR", "TO"),  # ended
}
"""Every compact state, squeue(1) "JOB STATE CODES"."""

_STATE_SUFFIX: Final = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_USABLE_BASE: Final = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_ASLEEP: Final = frozenset({"POWERED_DOWN", "POWERING_UP"})
"""Power saving: Slurm wakes the node for a job, and gives it more jobs while it comes up (measured on all releases).
One that is POWERING_DOWN gets none until it is down."""
_HARMLESS: Final = _ASLEEP | {
    *("PLANNED", "COMPLETING", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "DYNAMIC", "RESUME", "UNDRAIN"),
}
"""Flags of a node that may take a job."""
_STATE = re.compile(r"([A-Za-z_]{1,32})([*~#!%$@^\-]{0,4})((?:\+[A-Za-z_]{1,32}[*~#!%$@^\-]{0,4}){0,16})\Z", re.ASCII)
_FLAG = re.compile(r"\+([A-Za-z_]+)([*~#!%$@^\-]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's base state and flags, e.g. IDLE and {DRAIN}."""

    base: str
    flags: frozenset[str]

    @property
    def usable(self) -> bool:
        """Whether the node may take a new job. Unknown states and flags count as not usable."""
        # A node that comes up does not respond yet.
        flags = self.flags - {"NOT_RESPONDING"} if "POWERING_UP" in self.flags else self.flags
        return self.base in _USABLE_BASE and flags <= _HARMLESS

    @property
    def asleep(self) -> bool:
        """Whether a job that starts on the node has to wait until it is up."""
        return not self.flags.isdisjoint(_ASLEEP)


def node_state(value: str) -> NodeState:
    """A node state as scontrol or sinfo print it: ``IDLE+DRAIN``, ``MIXED*``, ``mixed-``, ``DOWN*+DRAIN``,
    ``inval``.
    """
    match = _STATE.match(value)
    if match is None:
        raise _bad("node state", value)
    base, suffixes, rest = match.groups()
    flags = {_STATE_SUFFIX[mark] for mark in suffixes}
    for flag, marks in _FLAG.findall(rest):
        flags.add(flag.upper())
        flags.update(_STATE_SUFFIX[mark] for mark in marks)
    return NodeState(base.upper(), frozenset(flags))


# --- scontrol ----------------------------------------------------------------------------------------------------

_FREE_TEXT: Final = (" Reason=", " Comment=", " Extra=")
"""What administrators write. It comes after everything that is needed, on every release (measured), so the line is cut
at the first of them: no text in it can pass for a state or a resource."""


@dataclass(frozen=True, slots=True)
class Node:
    """One line of ``scontrol -d -o show node``."""

    name: str
    state: NodeState
    cpus: int
    """CPUs that jobs may use (CPUEfctv)."""
    cpus_alloc: int
    mem: float
    """MiB that jobs may use: RealMemory less MemSpecLimit."""
    mem_alloc: float
    tmp: float
    features: frozenset[str]
    gpus: Mapping[str, int]
    """By type, "gpu" where none is given."""
    gpus_alloc: Mapping[str, int]
    weight: int = 1


def _tokens(line: str) -> dict[str, str]:
    """``key=value`` words of a line; the first of a key counts; words without ``=`` (the OS) are skipped."""
    found: dict[str, str] = {}
    for word in line.split(" "):
        key, equals, value = word.partition("=")
        if equals:
            found.setdefault(key, value)
    return found


def _required(found: Mapping[str, str], key: str, where: str) -> str:
    try:
        return found[key]
    except KeyError:
        raise SlurmParseError(f"{where}: no {key}=") from None


def nodes(answer: str) -> tuple[list[Node], list[Skipped]]:
    """All nodes of ``scontrol --details --oneliner show node``, and the lines that cannot be understood.

    A node whose line cannot be understood, or that has two lines, is there without anything that a job could use.

    Raises:
        SlurmParseError: cut short, no node at all, or a format that is not known (`refuse_unknown`).
    """
    command = "scontrol show node"
    found: dict[str, Node] = {}
    strange: dict[str, Skipped] = {}
    nameless: list[Skipped] = []
    gpus: dict[str, dict[str, int]] = {}
    continues = False
    if not answer.endswith("\n"):
        raise SlurmParseError(f"{command}: the answer is {'cut short' if answer else 'empty'}")
    for number, line in enumerate(answer.split("\n")[:-1], start=1):
        where = f"{command}, line {number}"
        if not line.startswith("NodeName="):
            # A blank line, or an administrator's comment that goes on after a newline.
            if line.strip() and not continues:
                nameless.append(Skipped(RowKind.NODE, "", f"{where}: not a node: {line[:60]!r}"))
            continue
        ends = [at for mark in _FREE_TEXT if (at := line.find(mark)) >= 0]
        continues = bool(ends)
        words = _tokens(line[: min(ends)] if ends else line)
        name = words["NodeName"]
        if not name:
            nameless.append(Skipped(RowKind.NODE, "", f"{where}: a node without a name"))
            continue
        reason = ""
        try:
            node = _node(words, where, gpus)
        except SlurmParseError as error:
            node, reason = unusable_node(name), str(error)
        if name in found:
            # Which of them is true nobody knows: a comment with a newline may imitate a node.
            node, reason = unusable_node(name), f"{where}: node {name[:64]!r} appears twice"
        found[name] = node
        if reason:
            strange.setdefault(name, Skipped(RowKind.NODE, name, reason))
    skipped = [*strange.values(), *nameless]
    if not found:
        raise SlurmParseError(skipped[0].reason if skipped else f"{command}: no nodes in the answer")
    refuse_unknown([row.reason for row in skipped], len(found) + len(nameless))
    return list(found.values()), skipped


def unusable_node(name: str) -> Node:
    """A node of which nothing but the name is known."""
    state = NodeState("UNKNOWN", frozenset())
    return Node(name, state, 0, 0, 0.0, 0.0, 0.0, frozenset(), {}, {})


_NODE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}\Z", re.ASCII)


def is_node_name(value: str) -> bool:
    """Whether a node can have that name (slurm.conf(5) NodeName)."""
    return _NODE_NAME.match(value) is not None


def _node(found: Mapping[str, str], where: str, gpus: dict[str, dict[str, int]]) -> Node:
    """`gpus`: what each text of Gres or GresUsed means, of which a cluster has few."""
    try:
        total = count(_required(found, "CPUTot", where))
        memory_total = memory(_required(found, "RealMemory", where))
        reserved = memory(found.get("MemSpecLimit", "0"))
        configured = _by_type(found.get("Gres", ""), gpus)
        used = _by_type(found.get("GresUsed", ""), gpus)
        allocated = tres(_required(found, "AllocTRES", where))
        if "GresUsed" not in found and allocated.gpus:
            used = dict(allocated.gpu_types) or {"gpu": allocated.gpus}
        if "shard:" in (sharing := found.get("GresUsed", "")):
            used = used | {kind: used.get(kind, 0) + number for kind, number in shared_gpus(sharing).items()}
        used = _as_configured(used, configured)
        features = text(found.get("ActiveFeatures", ""))
        name = _required(found, "NodeName", where)
        if not is_node_name(name):
            raise _bad("node name", name)
        return Node(
            name=name,
            state=node_state(_required(found, "State", where)),
            cpus=count(found.get("CPUEfctv", str(total))),
            cpus_alloc=count(_required(found, "CPUAlloc", where)),
            mem=max(_or_zero(memory_total) - _or_zero(reserved), 0.0),
            mem_alloc=_or_zero(memory(_required(found, "AllocMem", where))),
            tmp=_or_zero(memory(found.get("TmpDisk", "0"))),
            features=frozenset(part for part in features.split(",") if part),
            gpus=configured,
            gpus_alloc=used,
            weight=count(found.get("Weight", "1")),
        )
    except SlurmParseError as error:
        if str(error).startswith(where):
            raise
        raise SlurmParseError(f"{where}, node {found.get('NodeName', '?')[:64]!r}: {error}") from None


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _by_type(value: str, known: dict[str, dict[str, int]]) -> dict[str, int]:
    if value not in known:
        found: dict[str, int] = {}
        for kind, number in gres(value).items():
            found[kind or "gpu"] = found.get(kind or "gpu", 0) + number
        known[value] = found
    return known[value]


def _as_configured(used: dict[str, int], configured: Mapping[str, int]) -> dict[str, int]:
    """GPUs in use by the types that the node is configured with.

    The two may be named differently: GPUs without a type in slurm.conf, to which gres.conf or AutoDetect gives one. In
    use they are all the same, and must not seem free.
    """
    if used.keys() <= configured.keys():
        return used
    found = {kind: number for kind, number in used.items() if kind in configured}
    rest = sum(number for kind, number in used.items() if kind not in configured)
    for kind, most in configured.items():
        taken = min(rest, max(most - found.get(kind, 0), 0))
        found[kind] = found.get(kind, 0) + taken
        rest -= taken
    return found


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """One line of ``scontrol -o show partition``."""

    name: str
    nodes: str
    """Node list expression."""
    up: bool
    priority_tier: int
    oversubscribe: str
    """NO, YES, FORCE or EXCLUSIVE."""
    oversubscribe_count: int
    max_time: float
    max_nodes: float
    default: bool
    understood: bool = True
    """Whether anything but the name is known."""


_OVERSUBSCRIBE: Final = frozenset({"NO", "YES", "FORCE", "EXCLUSIVE"})


def partitions(answer: str) -> tuple[list[PartitionLine], list[Skipped]]:
    """All partitions of ``scontrol --oneliner show partition``, and the lines that cannot be understood.

    26.05 moved EXCLUSIVE to ``Exclusive=NODE``. A partition whose line cannot be understood, or that has two lines, is
    there as one that is not up, of a tier that is not known (−1).

    Raises:
        SlurmParseError: cut short, no partition at all, or a format that is not known (`refuse_unknown`).
    """
    command = "scontrol show partition"
    if not answer.endswith("\n"):
        raise SlurmParseError(f"{command}: the answer is {'cut short' if answer else 'empty'}")
    found: dict[str, PartitionLine] = {}
    strange: dict[str, Skipped] = {}
    nameless: list[Skipped] = []
    for number, line in enumerate(answer.split("\n")[:-1], start=1):
        where = f"{command}, line {number}"
        if not line.strip():
            continue
        if not line.startswith("PartitionName="):
            nameless.append(Skipped(RowKind.PARTITION, "", f"{where}: not a partition: {line[:60]!r}"))
            continue
        # The name may hold anything, blanks too; the keys begin behind it. (A name may even hold that key: the last one
        # counts.)
        head, key, rest = line.rpartition(" AllowGroups=")
        words = {**_tokens(key + rest), "PartitionName": head.removeprefix("PartitionName=")} if key else _tokens(line)
        name = words["PartitionName"]
        if not name:
            nameless.append(Skipped(RowKind.PARTITION, "", f"{where}: a partition without a name"))
            continue
        reason = ""
        try:
            partition = _partition(words, where)
        except SlurmParseError as error:
            partition = closed_partition(name, text(words.get("Nodes", "")))
            reason = str(error) if str(error).startswith(where) else f"{where}: {error}"
        if name in found:
            partition = closed_partition(name)
            reason = f"{where}: partition {name[:64]!r} appears twice"
        found[name] = partition
        if reason:
            strange.setdefault(name, Skipped(RowKind.PARTITION, name, reason))
    skipped = [*strange.values(), *nameless]
    if not found:
        raise SlurmParseError(skipped[0].reason if skipped else f"{command}: no partitions in the answer")
    refuse_unknown([row.reason for row in skipped], len(found) + len(nameless))
    return list(found.values()), skipped


def closed_partition(name: str, listed: str = "") -> PartitionLine:
    """A partition of which nothing but the name, and perhaps the list of its nodes, is known."""
    return PartitionLine(name, listed, False, -1, "NO", 1, math.inf, math.inf, False, understood=False)


def _partition(words: Mapping[str, str], where: str) -> PartitionLine:
    mode, _, times = _required(words, "OverSubscribe", where).partition(":")
    if words.get("Exclusive") == "NODE":
        mode = "EXCLUSIVE"
    if mode not in _OVERSUBSCRIBE:
        raise _bad("OverSubscribe", mode)
    most = _required(words, "MaxNodes", where)
    limit = duration(_required(words, "MaxTime", where))
    return PartitionLine(
        name=words["PartitionName"],
        nodes=text(_required(words, "Nodes", where)),
        up=_required(words, "State", where) in {"UP", "DRAIN"},  # DRAIN takes no new jobs, but starts those that it has
        priority_tier=integer(_required(words, "PriorityTier", where)),
        oversubscribe=mode,
        oversubscribe_count=max(count(times), 1),
        max_time=math.inf if math.isnan(limit) else limit,
        max_nodes=math.inf if most in _UNLIMITED else float(count(most)),
        default=words.get("Default") == "YES",
    )


def config(answer: str) -> dict[str, str]:
    """``scontrol show config``: key → value, "" for ``(null)``; section titles and the ping lines are skipped.

    Raises:
        SlurmParseError: cut short, or not a configuration.
    """
    if not answer.endswith("\n"):
        raise SlurmParseError("scontrol show config: the answer is cut short or empty")
    found: dict[str, str] = {}
    for line in answer.split("\n"):
        key, equals, value = line.partition("=")
        name = key.strip()
        if equals and name and " " not in name:
            found.setdefault(name, text(value.strip()))
    if "ClusterName" not in found or "SLURM_VERSION" not in found:
        raise SlurmParseError("scontrol show config: no ClusterName or SLURM_VERSION in the answer")
    return found


def parameters(value: str) -> dict[str, str]:
    """``a,b=1,c=x`` as a mapping; a word without ``=`` has the value ""."""
    found: dict[str, str] = {}
    for word in text(value).split(","):
        key, _, setting = word.strip().partition("=")
        if key:
            found[key] = setting
    return found


_SECONDS = re.compile(r"([0-9]{1,12}) sec\Z", re.ASCII)


def config_seconds(value: str) -> float:
    """A duration of scontrol show config: ``00:01:00``, ``7-00:00:00``, ``30 sec``."""
    match = _SECONDS.match(value)
    return float(match.group(1)) if match else duration(value)


_VERSION = re.compile(r"(?:slurm(?:-wlm)?\s+)?([0-9]{2})\.([0-9]{2})\.([0-9A-Za-z.\-]{1,24})\s*\Z", re.ASCII)


def version(value: str) -> tuple[str, tuple[int, int]]:
    """``slurm-wlm 24.11.5`` → ("24.11.5", (24, 11))."""
    match = _VERSION.match(value)
    if match is None:
        raise _bad("version", value)
    year, month, rest = match.groups()
    return f"{year}.{month}.{rest}", (int(year), int(month))


# --- sdiag, ping -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What sdiag(1) says about slurmctld."""

    server_threads: int
    agent_queue: int
    cycle_mean_us: int
    backfill_mean_us: int
    jobs_pending: int
    """As of `counted_at`: slurmctld counts every half minute."""
    jobs_running: int
    counted_at: float


_DIAGNOSTIC = re.compile(r"\s*([A-Za-z][A-Za-z ()_]{1,60}):\s*([0-9]{1,15})\s*\Z", re.ASCII)
_STAMP = re.compile(r"Job states ts:.{1,60}\(([0-9]{1,12})\)\s*\Z", re.ASCII)


def diagnostics(answer: str) -> Diagnostics:
    """The answer of sdiag. Mean cycles are 0 before the first cycle.

    Raises:
        SlurmParseError: not sdiag's answer.
    """
    found: dict[str, int] = {}
    section = ""
    counted = math.nan
    for line in answer.split("\n"):
        if stamp := _STAMP.match(line):
            counted = float(stamp.group(1))
        if match := _DIAGNOSTIC.match(line):
            found.setdefault(f"{section}{match.group(1)}", int(match.group(2)))
        elif line.startswith("Main schedule statistics"):
            section = "main "
        elif line.startswith("Backfilling stats"):
            section = "backfill "
        elif line.startswith("Remote Procedure Call"):
            break
    if "Server thread count" not in found or "Agent queue size" not in found:
        raise SlurmParseError("sdiag: no server thread count or agent queue size in the answer")
    return Diagnostics(
        server_threads=found["Server thread count"],
        agent_queue=found["Agent queue size"],
        cycle_mean_us=found.get("main Mean cycle", 0),
        backfill_mean_us=found.get("backfill Mean cycle", 0),
        jobs_pending=found.get("Jobs pending", 0),
        jobs_running=found.get("Jobs running", 0),
        counted_at=counted,
    )


def is_up(answer: str) -> bool:
    """Whether ``scontrol ping`` found a controller that is up: ``Slurmctld(primary) at ctl is UP``."""
    return any(line.startswith("Slurmctld(") and line.endswith(" is UP") for line in answer.splitlines())


_CONTROLLER = re.compile(r"Slurmctld\([^)\n]{1,40}\) at (\S{1,255}) is (UP|DOWN)\Z", re.ASCII)


def controllers(answer: str) -> list[tuple[str, bool]]:
    """``scontrol ping``: each controller and whether it answers, the primary first."""
    return [(match[1], match[2] == "UP") for line in answer.splitlines() if (match := _CONTROLLER.match(line))]


_FEDERATION = re.compile(r"^Federation:\s*(\S{1,255})\s*$", re.MULTILINE | re.ASCII)


def federation(answer: str) -> str:
    """``scontrol show federation``: its name; "" when the answer is empty, which it is for a cluster in none."""
    match = _FEDERATION.search(answer)
    return match[1] if match else ""

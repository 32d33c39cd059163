"""Values as Slurm's programs write them: numbers, times, TRES, GRES, arrays, states.

Covers the spellings of 22.05, 24.11 and 26.05. Each function returns a value or raises `SlurmParseError`, nothing else,
and takes time linear in the length of the text.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from rltuned.core import notation
from rltuned.core.errors import SlurmParseError
from rltuned.core.notation import tres_name

NOTHING: Final = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "(none)"})
"""How Slurm's programs say that there is no value."""

MAX_COUNT: Final = 2**31 - 1  # largest count (GPUs, CPUs, nodes, tasks) that the tables hold


def text(value: str) -> str:
    """The value, "" where Slurm says there is none."""
    return "" if value in NOTHING else value


def bad(what: str, value: str) -> SlurmParseError:
    """The error about a value that cannot be understood."""
    shown = value if len(value) <= 80 else value[:80] + "…"
    return SlurmParseError(f"{what}: cannot understand {shown!r}")


# --- numbers -----------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"-?[0-9]{1,15}\Z", re.ASCII)
_COUNT = re.compile(r"([0-9]{1,15})(\.[0-9]{1,9})?([KMGTP]?)(?:-[0-9]{1,15}(?:\.[0-9]{1,9})?[KMGTP]?)?\Z", re.ASCII)
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def integer(value: str) -> int:
    """A plain decimal integer of at most 15 digits: a few thousand of them add up in 64 bits."""
    if not _INTEGER.match(value):
        raise bad("number", value)
    return int(value)


def job_id(value: str) -> int:
    """A positive job id; 0 where Slurm says there is none."""
    if value in NOTHING:
        return 0
    number = integer(value)
    if not 0 <= number < 2**32:
        raise bad("job id", value)
    return number


def named_job(value: str) -> int:
    """A job id, where there must be one."""
    if number := job_id(value):
        return number
    raise bad("job id", value)


def count(value: str) -> int:
    """A count as squeue abbreviates it: ``4``, ``4K`` (4096), the lower end of ``1-2``; 0 where there is none."""
    if len(value) < 10 and value.isdigit() and value.isascii():
        return int(value)
    if value in NOTHING:
        return 0
    match = _COUNT.match(value)
    if match is None:
        raise bad("count", value)
    whole, fraction, unit = match.groups()
    number = int((float(whole + fraction) if fraction else int(whole)) * 1024 ** _POWER[unit])
    if number > MAX_COUNT:
        raise bad("count", value)
    return number


_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTPkmgtp]?)(?:[Bb]?[NCnc]?)\Z", re.ASCII)


def memory(value: str) -> float:
    """Memory or disk in MiB: ``4000M``, ``62.50G``, ``16Gn``, ``16Gc``, a plain number; NaN where there is none."""
    if value in NOTHING:
        return math.nan
    match = _MEMORY.match(value)
    if match is None:
        raise bad("memory", value)
    unit = match.group(2).upper()
    return float(match.group(1)) * 1024.0 ** (_POWER[unit] - 2 if unit else 0)


# --- times -------------------------------------------------------------------------------------------------------

UNLIMITED: Final = frozenset({"UNLIMITED", "INFINITE", "unlimited", "infinite"})
_UNSET: Final = frozenset({"NOT_SET", "INVALID", "Partition_Limit", "Unknown", "UNKNOWN", "NO_VAL"}) | NOTHING


def slurm_seconds(value: str) -> float:
    """Seconds of a Slurm time (squeue(1)); infinite for UNLIMITED, NaN for NOT_SET, Partition_Limit and the like."""
    if value in _UNSET:
        return math.nan
    seconds = notation.seconds_of(value)
    if math.isnan(seconds):
        raise bad("time", value)
    return seconds


def epoch(value: str) -> float:
    """Epoch seconds (``SLURM_TIME_FORMAT=%s``); NaN for N/A, Unknown, None."""
    if value in _UNSET or value in UNLIMITED:
        return math.nan
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise bad("time stamp", value)
    return float(value)


def known_epoch(value: str) -> float:
    """Epoch seconds, where there must be some: a submit time, which with the id tells a job from any other."""
    seconds = epoch(value)
    if math.isnan(seconds):
        raise bad("time stamp", value)
    return seconds


# --- TRES and GRES -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tres:
    """A TRES list as ``cpu=4,mem=4000M,node=2,gres/gpu=8,gres/gpu:p100=8``."""

    cpu: int = 0
    mem: float = math.nan  # MiB
    node: int = 0
    gpus: int | None = None  # in all; None when gres/gpu is not tracked or not asked for
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
            raise bad("TRES", value)
        name = tres_name(name)
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
            raise bad("TRES", value)
    return Tres(cpu, mem, node, gpus, tuple(types.items()))


def tres_terms(value: str) -> dict[str, int]:
    """The weighted TRES of a priority, sprio(1) ``%T``: ``cpu=1,mem=0,gres/gpu=308``; empty where there are none."""
    found: dict[str, int] = {}
    for part in value.split(",") if value not in NOTHING else ():
        name, equals, amount = part.rpartition("=")
        if not (name and equals):
            raise bad("TRES of a priority", value)
        found[name] = integer(amount)
    return found


_WEIGHT = re.compile(r"([-+]?(?:[0-9]{1,15}\.?[0-9]{0,9}|\.[0-9]{1,9}))([KMGTPkmgtp]?)\Z", re.ASCII)


def tres_weights(value: str) -> dict[str, float]:
    """Weights of TRES by name, for each CPU, MiB, GPU …: ``CPU=1.0,Mem=0.25G,GRES/gpu=-2``, slurm.conf(5).

    What is no weight is left out: slurmctld does not start with one.
    """
    found: dict[str, float] = {}
    for part in value.split(",") if value not in NOTHING else ():
        name, _, amount = part.rpartition("=")
        name, match = tres_name(name), _WEIGHT.match(amount)
        if name and match is not None:
            unit = match.group(2).upper()
            found[name] = float(match.group(1)) / 1024.0 ** (_POWER[unit] - (name == "mem") * 2 if unit else 0)
    return found


_GRES_WORD = re.compile(r"[^\x00-\x20\x7f:,=()]{1,128}\Z")
"""Name, type or count; Slurm ends it at ``:``, ``,``, ``=`` or ``(``: ``a100``, ``1g.10gb+me``, ``h100/2``."""
_PARENTHESES = re.compile(r"\([^()]*\)")  # remarks as ``(S:0,2)`` and ``(IDX:0-1,3)``


def gres(value: str) -> dict[str, int]:
    """GPUs by type ("" : no type) of a GRES list, summed; other resources (shard, nic, license) are skipped.

    All spellings: ``gpu:p100:4(S:0-1)``, ``gpu:p100:2(IDX:0-1)``, ``gpu:(null):2(IDX:0-1)``, ``gres:gpu:p100:4``
    (22.05), ``gres/gpu:p100:4`` (24.11), ``gres/gpu:k80=1`` (26.05), ``gpu``, ``gpu:2``, ``gpu(null):2``,
    ``gpu:no_consume:2``, ``cpu=4,gres/gpu:1``.
    """
    found: dict[str, int] = {}
    if value in NOTHING:
        return found
    # 22.05 and 24.11 print (null) for the missing type of GPUs whose cores are known.
    bare = _PARENTHESES.sub("", value.replace(":(null)", ""))
    if "(" in bare or ")" in bare:
        raise bad("GRES", value)
    for part in bare.split(","):
        item = part.strip()
        if not item:
            raise bad("GRES", value)
        for prefix in ("gres/", "gres:"):
            item = item.removeprefix(prefix)
        name, equals, amount = item.partition("=")
        words = name.split(":")
        if words[0] != "gpu":
            continue
        if equals:
            words.append(amount)
        if not all(_GRES_WORD.match(word) for word in words):
            raise bad("GRES", value)
        # Jobs name a no_consume GRES of a node, and use none of it up.
        kind, number = _gpu([word for word in words[1:] if word != "no_consume"], value)
        found[kind] = found.get(kind, 0) + number
        if found[kind] > MAX_COUNT:
            raise bad("GRES", value)
    return found


_SHARING = re.compile(r"(?:\A|,)(?:shard|mps):(?:([^\x00-\x20\x7f:,=()]{1,128}|\(null\)):)?[0-9]{1,15}\(([^()]*)\)")
_SHARED = re.compile(r"(?:\A|,)0*[1-9][0-9]*/")
_RANGES = re.compile(r"IDX:([0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*)\Z")


def shared_gpus(value: str) -> dict[str, int]:
    """GPUs by type ("gpu": none) that nobody can have as a whole, because parts of them are in use, of a GresUsed.

    ``gpu:2(IDX:0-1),shard:(null):3(3/4,0/4)`` (shards used of each GPU), ``mps:a100:50(50/100,0/100)`` (per cent of
    each), ``shard:(null):1(IDX:0)`` (22.05: the GPUs).
    """
    found: dict[str, int] = {}
    for kind, parts in _SHARING.findall(value):
        of = "gpu" if kind in {"", "(null)"} else tres_name(kind)
        ranges = _RANGES.match(parts)
        found[of] = found.get(of, 0) + (array_tasks(ranges.group(1)) if ranges else len(_SHARED.findall(parts)))
    return found


def _gpu(words: list[str], whole: str) -> tuple[str, int]:
    """Type and number of the words after ``gpu``."""
    # A type may consist of digits only in theory; in Slurm the last word is the count when it can be one.
    match words:
        case []:
            return "", 1
        case [one]:
            return ("", count(one)) if _COUNT.match(one) else (tres_name(one), 1)
        case [kind, number]:
            return tres_name(kind), count(number)
    raise bad("GRES", whole)


# --- arrays, dependencies ----------------------------------------------------------------------------------------

_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z", re.ASCII)


def array_limit(value: str) -> int:
    """Tasks that may run at a time: 5 of ``1-20%5`` and ``6_[1-20%5]``; 0: as many as there are."""
    limit = value.partition("%")[2].removesuffix("]")
    return int(limit) if limit.isascii() and limit.isdigit() and len(limit) <= 9 else 0


def array_tasks(value: str) -> int:
    """Number of tasks of ``1-20%5``, ``1,3-5``, ``6_[1-20:4]``; at least those shown of ``1,3,...``; 0 for N/A."""
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
            raise bad("array tasks", value)
        low, high, step = int(match.group(1)), int(match.group(2) or match.group(1)), int(match.group(3) or 1)
        if high < low or step < 1:
            raise bad("array tasks", value)
        total += (high - low) // step + 1
    if total > MAX_COUNT:
        raise bad("array tasks", value)
    return total


def is_given(value: str) -> bool:
    """Whether there is a value at all: a dependency that is still open, say."""
    return value not in NOTHING


def begins_with_value(value: str) -> bool:
    """As `is_given`, of the first character of a dependency or of a task's number, or of more."""
    return value[:1] not in {"", " ", "(", "N"}


# --- states ------------------------------------------------------------------------------------------------------

PENDING: Final = "PD"
WAITING_STATES: Final = frozenset({PENDING, "SE", "RD"})
"""Of jobs that wait: pending, and held after a special exit or with their reservation deleted, squeue(1)."""
HOLDING_STATES: Final = frozenset({"R", "S", "CG", "CF", "SO", "ST", "SI", "RS", "RQ", "RH"})
"""Of jobs that hold resources, squeue(1): running, suspended, completing, configuring, staging out …"""

KNOWN_STATES: Final = HOLDING_STATES | {
    *(PENDING, "RD", "RF", "RH", "RQ", "RV", "SE"),  # waiting, one way or another
    *("BF", "CA", "CD", "DL", "F", "LF", "NF", "OOM", "PR", "TO"),  # ended
}
"""Every compact state, squeue(1) "JOB STATE CODES"."""

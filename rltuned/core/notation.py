"""How Slurm and its users write durations, node lists and the names of resources; the rest is in `slurm.notation`."""

import math
import re
from collections.abc import Iterable
from itertools import groupby, product
from typing import Final

from rltuned.core.errors import SlurmParseError

_ENDLESS: Final = frozenset({"UNLIMITED", "INFINITE"})
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,9})-)?([0-9]{1,12})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?(\.[0-9]{1,9})?\Z", re.ASCII
)


def tres_name(name: str) -> str:
    """The name of a TRES or a GPU type as tables have it: Slurm compares them without case (assoc_mgr.c), and a site
    writes gpu:A100 in one place and gres/gpu:a100 in another.
    """
    return name.lower()


def seconds_of(text: str) -> float:
    """Seconds of a time as Slurm writes it (sbatch(1) --time): minutes, minutes:seconds, hours:minutes:seconds,
    days-hours, days-hours:minutes, days-hours:minutes:seconds; infinite for UNLIMITED; NaN for anything else.
    """
    if text.upper() in _ENDLESS:
        return math.inf
    match = _DURATION.match(text)
    if match is None:
        return math.nan
    first = float(match.group(2))
    days, second, third, fraction = (float(group) if group else None for group in match.group(1, 3, 4, 5))
    # Without days, and with fewer than three parts, the first part is minutes.
    hours, minutes, seconds = (first, second, third) if days is not None or third is not None else (0.0, first, second)
    return (days or 0.0) * 86400 + hours * 3600 + (minutes or 0.0) * 60 + (seconds or 0.0) + (fraction or 0.0)


# --- node lists, as ``p100-[1-2],k80-[01,03-05]`` (scontrol(1) "show hostnames") ----------------------------------

MAX_HOSTS: Final = 200_000
"""Slurm's own MaxNodeCount is 65,533; more than this is not a node list but an attack or a defect."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"(?:[^\[\],]+|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z")
_TAIL = re.compile(r"(.*?)(\d{1,18})\Z", re.DOTALL)


def expand(text: str, most: int = MAX_HOSTS) -> list[str]:
    """Names in the order given; several bracket groups in a name multiply (``r[1-2]n[1-4]``)."""
    if not {"[", "]"}.isdisjoint(_BRACKETS.sub("", text)):
        raise SlurmParseError(f"unbalanced brackets in node list {text[:80]!r}")
    names: list[str] = []
    for part in map(str.strip, _PART.findall(text)):
        if part:
            names.extend(_expand_one(part, text, most))
        if len(names) > most:
            raise SlurmParseError(f"node list has more than {most} names: {text[:80]!r}")
    return names


def _expand_one(part: str, text: str, most: int) -> Iterable[str]:
    if "[" not in part:
        return [part]
    choices: list[list[str]] = []
    for index, piece in enumerate(_BRACKETS.split(part)):
        if index % 2 == 0:
            choices.append([piece])
            continue
        values: list[str] = []
        for item in piece.split(","):
            match = _RANGE.match(item.strip())
            low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
            if not 1 <= int(high) - int(low) + 1 <= most - len(values):
                raise SlurmParseError(f"bad range {item[:40]!r} in node list {text[:80]!r}")
            values.extend(str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        choices.append(values)
        if math.prod(map(len, choices)) > most:
            raise SlurmParseError(f"node list has more than {most} names: {text[:80]!r}")
    return map("".join, product(*choices))


def compress(names: Iterable[str]) -> str:
    """Shortest usual form of a set of names: one bracket group per prefix and width, sorted. Inverse of `expand`."""
    tails = [(name, _TAIL.match(name)) for name in sorted(set(names))]
    parts = [name for name, match in tails if match is None]
    numbered = [match.groups() for _, match in tails if match]
    # Only zero-padded numbers have a fixed width: n9 and n10 are one group; n08 and n10 another, of two digits.
    padded = {(prefix, len(digits)) for prefix, digits in numbered if digits.startswith("0") and len(digits) > 1}
    groups: dict[tuple[str, int], list[int]] = {}
    for prefix, digits in numbered:
        width = len(digits) if (prefix, len(digits)) in padded else 0
        groups.setdefault((prefix, width), []).append(int(digits))
    for (prefix, width), numbers in sorted(groups.items()):
        # Numbers that follow each other are as far from their places as the first of them.
        runs = groupby(enumerate(sorted(numbers)), key=lambda placed: placed[1] - placed[0])
        ends = [[str(number).zfill(width) for _, number in run] for _, run in runs]
        ranges = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends]
        parts.append(prefix + ranges[0] if len(numbers) == 1 else f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)

"""Node list expressions, as in ``p100-[1-2],k80-[01,03-05]`` (scontrol(1) "show hostnames")."""

import re
from collections.abc import Iterable
from itertools import product
from typing import Final

from rltuned.core.errors import SlurmParseError

MAX_HOSTS: Final = 200_000
"""Slurm's own MaxNodeCount is 65,533; more than this is not a node list but an attack or a defect."""

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z")
_TAIL = re.compile(r"(.*?)(\d{1,18})\Z", re.DOTALL)


def expand(text: str, most: int = MAX_HOSTS) -> list[str]:
    """Names in the order given; several bracket groups in a name multiply (``r[1-2]n[1-4]``).

    Raises:
        SlurmParseError: unbalanced brackets, bad ranges, more than `most` names.
    """
    names: list[str] = []
    for part in _split(text):
        names.extend(_expand_one(part, text, most))
        if len(names) > most:
            raise SlurmParseError(f"node list has more than {most} names: {text[:80]!r}")
    return names


def compress(names: Iterable[str]) -> str:
    """Shortest usual form of a set of names: one bracket group per prefix and width, sorted. Inverse of `expand`."""
    plain: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = _TAIL.match(name)
        if match is None:
            plain.append(name)
            continue
        prefix, digits = match.groups()
        # Only zero-padded numbers have a fixed width: n9 and n10 are one group, n09 and n10 another.
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault((prefix, width), []).append(int(digits))
    parts = list(plain)
    # A padded group of width w also takes unpadded numbers of exactly w digits (n01..n10).
    for prefix, width in sorted(groups):
        if width and (prefix, 0) in groups:
            same = [n for n in groups[prefix, 0] if len(str(n)) == width]
            groups[prefix, width].extend(same)
            groups[prefix, 0] = [n for n in groups[prefix, 0] if len(str(n)) != width]
    for (prefix, width), numbers in sorted(groups.items()):
        ranges = _ranges(sorted(numbers), width)
        if len(numbers) == 1:
            parts.append(prefix + ranges[0])
        elif ranges:
            parts.append(f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)


def _ranges(numbers: list[int], width: int) -> list[str]:
    ranges: list[str] = []
    start = previous = -1
    for number in [*numbers, -10]:
        if previous >= 0 and number == previous + 1:
            previous = number
            continue
        if previous >= 0:
            first, last = str(start).zfill(width), str(previous).zfill(width)
            ranges.append(first if start == previous else f"{first}-{last}")
        start = previous = number
    return ranges


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts: list[str] = []
    depth = start = 0
    for position, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
        if depth not in {0, 1}:
            raise SlurmParseError(f"unbalanced brackets in node list {text[:80]!r}")
    if depth:
        raise SlurmParseError(f"unbalanced brackets in node list {text[:80]!r}")
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand_one(part: str, text: str, most: int) -> Iterable[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    if len(pieces) == 1:
        return [part]
    choices: list[list[str]] = []
    total = 1
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            choices.append([piece])
            continue
        values: list[str] = []
        for item in piece.split(","):
            match = _RANGE.match(item.strip())
            if match is None:
                raise SlurmParseError(f"bad range {item[:40]!r} in node list {text[:80]!r}")
            low, high = match.group(1), match.group(2) or match.group(1)
            count = int(high) - int(low) + 1
            if count < 1 or count > most - len(values):
                raise SlurmParseError(f"bad range {item[:40]!r} in node list {text[:80]!r}")
            values.extend(str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        total *= len(values)
        if total > most:
            raise SlurmParseError(f"node list has more than {most} names: {text[:80]!r}")
        choices.append(values)
    return ("".join(combination) for combination in product(*choices))

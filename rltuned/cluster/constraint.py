"""Feature constraints of jobs (sbatch(1) --constraint): which nodes could satisfy an expression."""

import re
from collections.abc import Callable
from typing import Final

_TOKEN: Final = re.compile(r"\s*([&|()\[\]!]|\*\s*\d+|[^&|()\[\]!*\s]+)")

Test = Callable[[frozenset[str]], bool]


def compile_constraint(expression: str) -> Test:
    """A test of one node's features. ``&`` and ``|`` are applied left to right, as slurmctld does.

    Counts (``a*2``) and matching groups (``[a&b]``, ``[r1|r2]``) spread over several nodes: for one node they mean "has
    one of these". What cannot be understood accepts every node: Slurm has the last word on where a job runs.
    """
    symbols = _TOKEN.findall(expression)
    if "".join(symbols).replace(" ", "") != re.sub(r"\s", "", expression):
        return lambda _features: True
    position = 0

    def term(inside: bool) -> Test:
        nonlocal position
        if position >= len(symbols):
            raise _UnclearError
        symbol = symbols[position]
        position += 1
        if symbol == "!":
            inner = term(inside)
            return lambda features: not inner(features)
        if symbol in "([":
            inner = chain(inside=inside or symbol == "[")
            if position >= len(symbols) or symbols[position] != (")" if symbol == "(" else "]"):
                raise _UnclearError
            position += 1
        elif symbol in "&|)]" or symbol.startswith("*"):
            raise _UnclearError
        else:
            inner = _has(symbol)
        if position < len(symbols) and symbols[position].startswith("*"):
            position += 1
        return inner

    def chain(*, inside: bool) -> Test:
        nonlocal position
        left = term(inside)
        while position < len(symbols) and symbols[position] in "&|":
            conjunction = symbols[position] == "&" and not inside
            position += 1
            left = _both(left, term(inside)) if conjunction else _either(left, term(inside))
        return left

    try:
        whole = chain(inside="*" in expression and "[" not in expression)
    except (_UnclearError, RecursionError):
        return lambda _features: True
    return whole if position == len(symbols) else lambda _features: True


class _UnclearError(Exception):
    """The expression is not of the known grammar."""


def _has(name: str) -> Test:
    return lambda features: name in features


def _both(left: Test, right: Test) -> Test:
    return lambda features: left(features) and right(features)


def _either(left: Test, right: Test) -> Test:
    return lambda features: left(features) or right(features)

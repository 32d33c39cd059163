"""Tables as squeue, sprio and sacct print them: rows of values with a separator behind each.

A row that does not fit is left out and named (`core.unread`). An answer that is cut short is an error, and so is one
of a format that is not known: no row has its fields, or most have a strange value (`refuse_unknown`).
"""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import repeat
from typing import Final, NamedTuple, TypeVar

from rltuned.core.errors import SlurmParseError
from rltuned.core.unread import RowKind, Skipped, Unread
from rltuned.slurm.commands import SEPARATOR
from rltuned.slurm.notation import job_id

_T = TypeVar("_T")

FEW: Final = 3
"""So many strange rows are never taken for an unknown format, not even of a queue of one job."""
_ROW_END: Final = SEPARATOR + "\n"
_BLOCK: Final = 1 << 16
"""Characters that are split at a time: what they become stays in the processor's cache."""


class Misfit(NamedTuple):
    """A line that does not have its number of fields."""

    number: int  # of the line, 1 first
    line: str
    fields: int
    reason: str


def table(answer: str, fields: tuple[str, ...], command: str) -> tuple[list[list[str]], list[Misfit]]:
    """The columns of a separated table (each value, then 0x1f; no header), and the lines without that many fields."""
    width, lines = len(fields), answer.count("\n")
    if answer and not answer.endswith("\n"):
        raise SlurmParseError(f"{command}, line {lines + 1}: the answer is cut short (no newline at its end)")
    if (found := _columns(answer, width)) is not None:
        return found, []
    # Seldom: only then each line is looked at by itself.
    fitting: list[str] = []
    wrong: list[Misfit] = []
    for number, line in enumerate(answer.split("\n")[:-1], start=1):
        if (count := line.count(SEPARATOR)) == width:
            fitting.append(line + "\n")
        else:
            reason = f"{command}, line {number}: {count} fields instead of {width}"
            wrong.append(Misfit(number, line, count, reason))
    found = _columns("".join(fitting), width)
    if found is None or not wrong:
        raise SlurmParseError(f"{command}, line {lines}: rows and fields do not fit")
    # Where any row fits, the format is known: what is odd in the others is a user's, who may have most of the rows.
    if not found[0]:
        if any(misfit.fields < width for misfit in wrong):
            raise SlurmParseError(wrong[0].reason)
        refuse_unknown([misfit.reason for misfit in wrong], len(wrong))
    return found, wrong


def _columns(answer: str, width: int) -> list[list[str]] | None:
    """The columns; None where a row does not have `width` values."""
    # Proof that nothing is missing: the text ends with separator and newline, the number of values is a multiple of the
    # number of fields, and exactly the first value of each row follows a newline.
    if not answer.endswith(_ROW_END):
        return None if answer else [[] for _ in range(width)]
    table: list[list[str]] = [[] for _ in range(width)]
    # Text that many rows share is kept once: 100,000 jobs of 34 columns are 200 MB otherwise.
    shared: list[dict[str, str] | None] = [{} for _ in range(width)]
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
            return None
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
    """The rows of a table in which one of the first `id_columns`, one or two, is one of `ids` (job ids, as text).

    The whole answer where it is cut short, a row does not have `width` fields, or an id is no plain number. To take the
    other rows apart is most of the work with a table of 100,000.
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


def refuse_unknown(reasons: Sequence[str], rows: int) -> None:
    """Tell strange rows from a strange format: more than half of all `rows`, and more than `FEW`, are a format."""
    if len(reasons) > FEW and 2 * len(reasons) > rows:
        raise SlurmParseError(
            f"{reasons[0]}; likewise {len(reasons) - 1} more of {rows} rows: a format that rltuned does not know"
        )


def row_by_row(
    found: list[list[str]], reads: Callable[[list[list[str]]], _T]
) -> tuple[_T, list[tuple[list[str], SlurmParseError]]]:
    """What `reads` makes of the columns, without the rows that it does not understand; and those, with the reason."""
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


# --- tables about jobs -------------------------------------------------------------------------------------------


def by_job(
    answer: str,
    fields: tuple[str, ...],
    command: str,
    about: tuple[RowKind, int],
    reads: Callable[[list[list[str]]], _T],
    unread: Unread,
) -> _T:
    """What `reads` makes of a table; the jobs of its strange rows are left alone. `about`: kind of row, id columns."""
    kind, id_columns = about
    columns, misfits = table(answer, fields, command)
    found, wrong = row_by_row(columns, reads)
    skip_misfits(misfits, kind, columns[:id_columns], len(fields), unread)
    reasons = []
    for values, error in wrong:
        ids = ids_in(values[:id_columns])
        reasons.append(f"{command}, job {ids[0] if ids else '?'}: {error}")
        unread.skip(Skipped(kind, str(ids[0]) if ids else "", reasons[-1]), ids)
        if len(ids) < len(set(values[:id_columns])):
            unread.listed[kind] = ()
    refuse_unknown(reasons, len(columns[0]))
    if kind in unread.listed:
        unread.listed[kind] = {job for column in columns[:id_columns] for job in ids_in(column)}
    return found


def skip_misfits(
    misfits: Sequence[Misfit], kind: RowKind, ids_of: Sequence[Sequence[str]], width: int, unread: Unread
) -> None:
    """Note the lines with too few or too many fields; `ids_of`: the first columns, of ids, of those that fit."""
    id_columns, open_at = len(ids_of), 0
    listed = {one for column in ids_of for one in ids_in(column)} if misfits else set()
    for number, line, fields, reason in misfits:
        front = line.split(SEPARATOR, id_columns)[:id_columns]
        ids = ids_in(front)
        if len(ids) < len(set(front)):
            ids = []
        if number == open_at and listed.issuperset(ids):
            open_at = number + 1  # a name with a newline in it: the row goes on, and may name a job of somebody else's
            continue
        unread.skip(Skipped(kind, str(ids[0]) if ids else "", reason), ids)
        if not ids:
            unread.listed[kind] = ()
        open_at = number + 1 if fields < width else 0


def ids_in(values: Sequence[str]) -> list[int]:
    """The job ids among these values, each once."""
    found: dict[int, None] = {}
    for value in values:
        with suppress(SlurmParseError):
            found[job_id(value)] = None
    found.pop(0, None)  # where Slurm says that there is none
    return list(found)

"""How a result is kept: what is read of a report, in few lines, with every number as it was computed.

Readers: the page and the picture (`windows`, `policies.NAME.seconds`, `meta`). A kept result still is a
report of ``rltuned evaluate --json``: both read it alike.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.evaluation_settings import LEARNED
from rltuned.lab.evaluate.state import state_path
from rltuned.lab.evaluate.window_metrics import COMPARED

LINE: Final = 640
"""An object or a list that fits takes one line: a window of one policy, a policy of a window, a comparison of two."""


def slim(report: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a report.

    Left out are how plain rules compare with each other, which follows from the windows and is most of a report; the
    names of rejected and killed jobs; and the time that each window took, which differs from run to run.
    """
    compared = {pair: values for pair, values in report["comparisons"].items() if pair.split("/")[0] in LEARNED}
    return {**report, "windows": [_window(window) for window in report["windows"]], "comparisons": compared}


def _window(window: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "start": window["start"],
        "jobs": window["jobs"],
        "rejected": {"count": window["rejected"]["count"]},
        "policies": {
            name: {metric: values[metric] for metric in COMPARED if metric in values}
            for name, values in window["policies"].items()
        },
    }


def text(result: Mapping[str, Any]) -> str:
    """JSON whose lines are whole things, so that a difference of two versions names what differs."""
    return "".join(_lines(result, 0)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    line = json.dumps(value, allow_nan=False)
    if len(line) <= LINE or not isinstance(value, (dict, list)):
        yield line
        return
    first, last = "{}" if isinstance(value, dict) else "[]"
    entries = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    yield first
    for number, (name, item) in enumerate(entries):
        yield ("," if number else "") + "\n" + " " * (depth + 1)
        yield "" if name is None else f"{json.dumps(name)}: "
        yield from _lines(item, depth + 1)
    yield "\n" + " " * depth + last


def write(result: Mapping[str, Any], path: Path) -> None:
    """The result as a file, whole or not at all; the state of the evaluation that made it goes.

    Raises:
        EvaluationError: it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text(result), encoding="utf-8")
        part.replace(path)
        state_path(path).unlink(missing_ok=True)
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_report(path: Path) -> dict[str, Any]:
    """A report from its file.

    Raises:
        EvaluationError: it cannot be read.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: cannot be read: {error}") from error
    if not isinstance(report, dict) or "comparisons" not in report:
        raise EvaluationError(f"{path}: not a report of `rltuned evaluate --json`")
    return report


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, as they are written; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file, whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)

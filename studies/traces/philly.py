"""Microsoft Philly's ``cluster_job_log``: one JSON list of jobs (or one job after the other), read object by object.

https://github.com/msr-fiddle/philly-traces. A job has attempts; an attempt has a start, an end, and GPUs by machine.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rltuned.core.errors import WorkloadError
from rltuned.simulate.workload.batch import MAX_DURATION, MAX_GPUS, NOTHING, Batch, Collector, Rows
from rltuned.simulate.workload.lines import MAX_LINE, TextFile, strange

_KEYS: Final = ("submitted_time", "attempts")
_JOB = re.compile(r'\{\s*"(?:status|vc|jobid|attempts|submitted_time|user)"\s*:')
"""How a job begins: none of the objects inside one has these keys."""
_SPACE = re.compile(r"[\s,\[]*")
BATCH: Final = 10_000
BLOCK: Final = 1 << 20
"""Characters that are read together."""


@dataclass(frozen=True)
class _Found:
    """One object of the list, or where there is none."""

    line: int
    value: Any
    problem: str = ""


def read_philly(file: TextFile, collector: Collector) -> None:
    """Read all jobs of `file`.

    Raises:
        WorkloadError: no JSON, or an object that is no job (unless skipped), with the line where it begins.
    """
    batch: list[_Found] = []
    for found in _Objects(file).all():
        batch.append(found)
        if len(batch) >= BATCH:
            _add(batch, collector)
            batch = []
    if batch:
        _add(batch, collector)


class _Objects:
    """The objects of a JSON list in a file, without holding the file."""

    def __init__(self, file: TextFile) -> None:
        self._name = file.name
        self._file = file
        self._line, text = file.first
        """Line of the file where `_at` is."""
        self._text = text + "\n"
        """What has been read and is still needed."""
        self._at = 0
        """How much of it is done with."""
        self._ended = False
        self._list = text.lstrip().startswith("[")

    def all(self) -> Iterator[_Found]:
        """Each object with its line. After one that is broken it goes on where the next job begins."""
        while self._space():
            if self._text[self._at] == "]" and self._list:
                self._close()
                return
            yield self._next()
        if self._list:
            yield _Found(self._line, None, "the list is not closed: the file is truncated")

    def _space(self) -> bool:
        """Go to the next object or the end of the list; False at the end of the file."""
        while True:
            blank = _SPACE.match(self._text, self._at)
            self._go(blank.end() if blank is not None else self._at)
            if self._at < len(self._text):
                return True
            if self._ended:
                return False
            self._more()

    def _close(self) -> None:
        while not self._ended:
            self._more()
        if self._text[self._at :].strip() != "]":
            raise WorkloadError(f"{self._name}:{self._line}: text after the end of the list")

    def _next(self) -> _Found:
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                # An object that goes on in the next chunk looks broken too.
                if not self._ended and len(self._text) - self._at < MAX_LINE:
                    self._more()
                    continue
                return self._broken(error)
            found = _Found(self._line, value)
            self._go(end)
            return found

    def _broken(self, error: Exception) -> _Found:
        line, reason = self._line, "nested too deeply"
        if isinstance(error, json.JSONDecodeError):
            line += self._text.count("\n", self._at, error.pos)
            reason = f"not JSON: {error.msg}"
        following = _JOB.search(self._text, self._at + 1)
        if following is None and self._ended:
            reason += " (and no job follows: is the file truncated?)"
            self._list = False
        elif following is None:
            raise WorkloadError(f"{self._name}:{line}: {reason}; no job follows within {MAX_LINE:,} bytes") from error
        self._go(following.start() if following is not None else len(self._text))
        return _Found(line, None, reason)

    def _go(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end

    def _more(self) -> None:
        text = self._file.read(BLOCK)
        self._ended = not text
        line = self._line + self._text.count("\n", self._at)
        self._text, self._at = self._text[self._at :] + text, 0
        if not text.isascii():
            for number, one in enumerate(text.split("\n"), line):
                if (wrong := strange(one)).startswith("not UTF-8"):
                    raise WorkloadError(f"{self._name}:{number}: {wrong}")


def _add(found: list[_Found], collector: Collector) -> None:
    names = ("submitted_time", "start_time", "end_time", "user", "vc")
    columns: dict[str, list[str]] = {name: [] for name in names}
    gpus, notes = [], {}
    for row, item in enumerate(found):
        values, count = dict.fromkeys(names, ""), 0
        try:
            if item.problem:
                notes[row] = item.problem
            else:
                values, count = _job(item.value)
        except ValueError as error:
            notes[row] = str(error)
        for name in names:
            columns[name].append(values[name])
        gpus.append(count)
    batch = Batch(np.array([item.line for item in found], dtype=np.int64), columns, notes)
    submit = batch.stamp("submitted_time")
    batch.note(np.isnan(submit), lambda _: "submitted_time: is not known")
    start, end = batch.stamp("start_time"), batch.stamp("end_time")
    # Attempts are missing for a job that never got GPUs, the last end for one that was still running.
    batch.never_ran |= np.isnan(start) | np.isnan(end) | (np.array(gpus) == 0)
    batch.note(end < start, lambda row: f"the last attempt ends {start[row] - end[row]:,.0f} s before the first starts")
    batch.note(end - start > MAX_DURATION, lambda _: "the attempts last more than a century")
    wait = np.where(start >= submit, start - submit, np.nan)
    collector.add(
        batch,
        Rows(
            submit_time=submit,
            run_time=end - start,
            gpus=np.array(gpus, dtype=np.float64),
            wait_time=wait,
            user=batch.text("user"),
            partition=batch.text("vc"),
        ),
    )


def _job(value: Any) -> tuple[dict[str, str], int]:
    """Times and names of a job as text, and its GPUs: those of the first attempt that lists any.

    Raises:
        ValueError: what is wrong with it.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a job, not {json.dumps(value)[:60]}")  # noqa: TRY004 # a wrong value in a file, not a wrong call
    for key in _KEYS:
        if key not in value:
            raise ValueError(f"a job without {key}")
    attempts = value["attempts"] or []
    if not isinstance(attempts, list) or not all(isinstance(attempt, Mapping) for attempt in attempts):
        raise ValueError("attempts: expected a list of objects")
    gpus = 0
    for attempt in attempts:
        gpus = gpus or _gpus(attempt.get("detail") or [])
    if gpus > MAX_GPUS:
        raise ValueError(f"attempts: {gpus:,} GPUs")
    starts = [text for text in (_text(attempt, "start_time") for attempt in attempts) if text not in NOTHING]
    last = _text(attempts[-1], "end_time") if attempts else ""
    return {
        "submitted_time": _text(value, "submitted_time"),
        "start_time": starts[0] if starts else "",
        "end_time": last,
        "user": _text(value, "user"),
        "vc": _text(value, "vc"),
    }, gpus


def _gpus(detail: Any) -> int:
    if not isinstance(detail, list):
        raise ValueError("detail: expected a list of machines")  # noqa: TRY004 # a wrong value in a file, not a wrong call
    total = 0
    for machine in detail:
        devices = machine.get("gpus") if isinstance(machine, Mapping) else None
        if not isinstance(devices, list):
            raise ValueError("detail: a machine without its list of gpus")  # noqa: TRY004 # see above
        total += len(devices)
    return total


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise ValueError(f"{key}: expected a text, not {json.dumps(found)[:60]}")  # noqa: TRY004 # see above
    return found

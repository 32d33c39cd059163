"""Structured logs on stderr: a line for each job that is raised or given back, and ``cycle.done``, a sentence for each
cycle, at debug where it says nothing new.

Names of users, partitions or nodes may hold anything; here they become printable, so that no name can forge a line or
move a terminal's cursor. Writing a log never fails: a full disk behind stderr must not stop a cycle half-way.
"""

import contextlib
import json
import logging
import os
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import FilteringBoundLogger

MAX_TEXT: Final = 2_000
DEFECT: Final = "This is a defect; please report it."  # the sentence of an error that nothing should raise
PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}  # syslog(3)'s, by the level of an event


Log = FilteringBoundLogger  # what the daemon says: an event's name and values


class _Lines:
    """Writes lines and never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = msg


def make(level: str, form: str, stream: TextIO) -> Log:
    """A logger on `stream`; `form` is "auto" (text on a terminal, JSON otherwise), "text" or "json"."""
    as_json = form == "json" or (form == "auto" and not stream.isatty())
    logger: Log = structlog.wrap_logger(
        _Lines(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _escape,
            _json if as_json else _text,
            lambda _logger, level, text: prioritised(level, str(text), stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        context_class=dict,
    )
    return logger


def prioritised(level: str, text: str, stream: TextIO) -> str:
    """`text`, each line with the priority of its level in front where systemd has connected the stream to journald.

    journald takes it off again (sd-daemon(3)); systemd.exec(5) has what JOURNAL_STREAM says.
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # it is no file
        return text
    if os.environ.get("JOURNAL_STREAM") != f"{found.st_dev}:{found.st_ino}":
        return text
    return "\n".join(f"<{PRIORITIES[level]}>{line}" for line in text.split("\n"))


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """`text` with everything that is not printable (control characters, direction marks) as a backslash escape."""
    if text.isprintable() and len(text) <= limit:
        return text
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(str(value))
    if isinstance(value, Mapping):
        return {printable(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return printable(str(value))


def _escape(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    trace = values.pop("exception", None)
    cleaned = {key: _clean(value) for key, value in values.items()}
    if trace is not None:
        cleaned["exception"] = [printable(line) for line in str(trace).splitlines()]
    return cleaned


def _json(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> str:
    return json.dumps(dict(values))


def _text(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> str:
    head = f"{values.pop('timestamp')} {values.pop('level'):7} {values.pop('event')}"
    sentence = values.pop("sentence", None)
    trace = values.pop("exception", [])
    parts = [head, *([f": {sentence}"] if sentence else [])]
    parts += [f" {key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "".join(parts) + "".join(f"\n    {line}" for line in trace)

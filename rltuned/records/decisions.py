"""Decisions on disk: the record of the last cycle, and the log of all (docs/good-for-us.md).

The record is there whole or not at all, and bounded in size. The log has a line for each cycle, is append-only, and
bounded in size and age: one directory of files, each of a day at most and named after its first entry; all but the
newest are compressed. Nothing is synced: a cycle never waits for it.
"""

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import (
    FILE_MODE,
    encode,
    give_to_owner_of,
    make_directory,
    parse,
    read,
    write,
    write_all,
    write_atomic,
)
from rltuned.decide.decision import DecisionRecord
from rltuned.decide.entry import CycleEntry, lean

RECORD: Final = "decision.json"
MAX_RECORD: Final = 32 * 1024 * 1024
"""Bytes; a record of 10,000 managed jobs takes about 2 MB."""
DIRECTORY: Final = "decisions"
DAY: Final = 86_400.0
KEEP: Final = 35 * DAY
"""Seconds after which an entry is deleted: five weeks, so that a month can be looked at."""
PIECES: Final = 8
"""The file that is written, uncompressed, is at most this part of the limit."""
LARGEST: Final = 16 * 1024 * 1024
"""Bytes of that file at most: it is read and compressed in one go."""
CLOCKS: Final = 3600.0
"""Seconds by which a clock that was set may have put entries out of order."""
COMPRESSED: Final = 3.0
"""By how much decisions are taken to shrink. Where they shrink less, the log keeps fewer days."""
MIB: Final = 1024 * 1024

_STAMP: Final = "%Y%m%dT%H%M%SZ"
_NAME: Final = re.compile(r"(\d{8}T\d{6}Z)\.jsonl(\.gz)?")
_LEFT: Final = re.compile(r"\.\d{8}T\d{6}Z\.jsonl\.gz\.\d+\.tmp")  # of `write_atomic`, after a crash
_TIME: Final = re.compile(rb'"time":([0-9.e+]+)')
_DECISION: Final = b',"decision":'  # in a text its quotes would be escaped
_NO_DECISION: Final = _DECISION + b"null}"


def save(directory: Path, record: DecisionRecord) -> None:
    """Write the record. RltunedError: why not; an old one then stays."""
    # Not durable: it describes a moment, and a cycle must not wait for the disk twice.
    write(directory / RECORD, record, durable=False, most=MAX_RECORD)


def load(directory: Path) -> DecisionRecord:
    """The last record; where there is none that can be read, RltunedError says so, and what to do."""
    path = directory / RECORD
    try:
        found = read(DecisionRecord, path, "a decision record", MAX_RECORD)
    except RltunedError as error:
        raise RltunedError(f"{error}; wait for the next cycle of the running daemon") from error
    if found is None:
        raise RltunedError(
            f"{path}: no decision record yet: `systemctl start rltuned`; `rltuned plan` shows what it would decide"
        )
    return found


class DecisionLog:
    """Writes the log. One writer per directory: the daemon that also writes the decision record."""

    def __init__(self, state: Path, limit: float) -> None:
        """`limit`: MiB that all files together may take; 0: no log. Nothing is written yet."""
        self._directory = state / DIRECTORY
        self._limit = int(limit * MIB)
        self._file_limit = min(self._limit // PIECES, LARGEST)
        self._allowed, self._at = 1.0, float("-inf")
        """Bytes of decisions that may be written now: the limit, spread evenly over `KEEP`, saved up for a day."""

    def add(self, entry: CycleEntry) -> None:
        """Append an entry; its decision only where the limit has room for `KEEP` seconds of them. RltunedError says why
        it cannot be.
        """
        if not self._limit:
            return
        try:
            line = self._line(entry)
            make_directory(self._directory)
            self._append(line, entry.time)
        except (OSError, ValueError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise RltunedError(f"{self._directory}: cannot be written: {why}") from error

    def _line(self, entry: CycleEntry) -> bytes:
        share = self._limit / KEEP * COMPRESSED
        passed = max(entry.time - self._at, 0.0) if self._at > float("-inf") else 0.0
        self._allowed, self._at = min(self._allowed + share * passed, share * DAY), entry.time
        if entry.decision is not None and self._allowed > 0:
            line = encode(replace(entry, decision=lean(entry.decision)))
            if len(line) <= self._file_limit:
                # A decision that is larger than what is allowed is paid for by the cycles that follow.
                self._allowed -= len(line)
                return line
        return encode(replace(entry, decision=None))

    def _append(self, line: bytes, now: float) -> None:
        path = self._current(len(line), now)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            size = os.fstat(fd).st_size
            if not size:
                give_to_owner_of(self._directory, fd)
            elif os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last one was cut off; it is one bad line and costs no other
            write_all(fd, line)
        finally:
            os.close(fd)

    def _current(self, more: int, now: float) -> Path:
        """The file to append to; a full or old one is compressed, and what is too much or too old is deleted."""
        kept = files(self._directory)
        plain = [path for path in kept if path.suffix != ".gz"]
        # Nobody would look into a file of the future for what happens now.
        if plain and plain[-1].stat().st_size + more <= self._file_limit and 0 <= now - began(plain[-1]) < DAY:
            return plain[-1]
        for path in self._directory.iterdir():
            if _LEFT.fullmatch(path.name) or (_NAME.fullmatch(path.name) and path not in kept):
                path.unlink()  # a crash left it
        # Deleted before anything is compressed: that needs room on the disk.
        room = self._limit - self._file_limit - sum(path.stat().st_size for path in kept)
        # One wrong time deletes nothing for its age: it has to be old beside the newest file, too.
        oldest = min(now, began(kept[-1])) - KEEP if kept else 0.0
        for path in kept:
            if room < 0 or began(path) + DAY < oldest:
                room += path.stat().st_size
                path.unlink()
        for path in files(self._directory):
            if path.suffix != ".gz":
                packed = path.with_name(path.name + ".gz")
                write_atomic(packed, gzip.compress(path.read_bytes(), 6, mtime=0), durable=False)
                path.unlink()
        taken, moment = {path.name.partition(".")[0] for path in files(self._directory)}, int(now)
        while (stamp := datetime.fromtimestamp(moment, UTC).strftime(_STAMP)) in taken:
            moment += 1
        return self._directory / f"{stamp}.jsonl"


def files(directory: Path) -> list[Path]:
    """The log's files, from early to late; OSError. Of one that a crash left twice, the compressed one is whole."""
    found: dict[str, Path] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            if (match := _NAME.fullmatch(path.name)) and (match[2] or match[1] not in found):
                found[match[1]] = path
    return [found[stamp] for stamp in sorted(found)]


def began(path: Path) -> float:
    """When a file's first entry was made, epoch seconds, by its name."""
    return datetime.strptime(path.name.partition(".")[0], _STAMP).replace(tzinfo=UTC).timestamp()


def entries(state: Path, since: float, until: float, *, decisions: bool = True) -> Iterator[CycleEntry]:
    """The entries of [since, until), epoch seconds, from early to late, without bad lines; without their decisions,
    which take most of the time, where these are not asked for. Raises RltunedError.
    """
    paths = _there(state)
    for path, following in zip(paths, [*map(began, paths[1:]), float("inf")], strict=False):
        if following + CLOCKS < since or began(path) >= until:
            continue
        for line in _lines_of(path):
            time = _time(line)
            if time is not None and since <= time < until:
                with contextlib.suppress(RltunedError):
                    yield _entry(line if decisions else line.partition(_DECISION)[0] + _NO_DECISION)


def last_before(state: Path, moment: float) -> CycleEntry:
    """The last entry with a decision at a moment or before it, epoch seconds; RltunedError where there is none."""
    for path in reversed([path for path in _there(state) if began(path) <= moment]):
        found = []
        for line in _lines_of(path):
            time = _time(line)
            if time is not None and time <= moment and not line.rstrip().endswith(_NO_DECISION):
                found.append(line)
        for line in reversed(found):
            with contextlib.suppress(RltunedError):  # cut off: the one before it
                return _entry(line)
    raise RltunedError(
        f"{state / DIRECTORY}: no decision of that time: the log keeps {KEEP / DAY:.0f} days, or less where "
        "state.decision_log is small"
    )


def _there(state: Path) -> list[Path]:
    try:
        return files(state / DIRECTORY)
    except OSError as error:
        raise _unreadable(state, error) from error


def _lines_of(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError:  # compressed, or deleted, while somebody reads
        packed = path.with_name(path.name + ".gz")
        if path.suffix != ".gz" and packed.exists():
            yield from _lines_of(packed)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return  # the rest of a damaged file is lost, not the log
    except OSError as error:
        raise _unreadable(path.parent.parent, error) from error


def _entry(line: bytes) -> CycleEntry:
    return parse(CycleEntry, line, "an entry of a decision log")


def _time(line: bytes) -> float | None:
    match = _TIME.search(line, 0, 80)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def _unreadable(state: Path, error: OSError) -> RltunedError:
    return RltunedError(
        f"{error.filename or state / DIRECTORY}: the decision log cannot be read: {error.strerror}; "
        "run this as root or as the daemon's user"
    )

"""The write-ahead journal: what rltuned may have put on which job, on disk before Slurm hears of it.

Format (docs/state-files.md): JSON lines, each ``{"crc":"xxxxxxxx","seq":N,"kind":K,…}``; the checksum is CRC-32 of the
bytes after the first comma. Every line about a job carries the whole `Entry`, so the last readable line of a job says
all, and a lost line loses no more than itself. Kinds: ``begin`` (a compacted state of `count` entries follows),
``entry``, ``intent`` (before a write), ``outcome`` (after it), ``forget`` (the job left).

Two copies are kept, the second on another file system. Reading takes the union of the readable lines of both, ordered
by sequence number. Writing needs one of them: with one copy gone rltuned goes on and raises an alarm; with both gone it
writes nothing to Slurm. A copy that failed is written anew as soon as its file system takes it again.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from rltuned.controller.write.claims import Entry, Value
from rltuned.core.changes import Applied, Change, Field, Outcome, OverSubscribe
from rltuned.core.errors import JournalError
from rltuned.core.safe_files import make_directory, write_all, write_atomic

if TYPE_CHECKING:
    from rltuned.core.applied import AppliedChanges

FORMAT: Final = 1
GONE: Final = ("exc_nodes", "priority", "nice")
"""Of an entry: what rltuned wrote once, and this version cannot give back."""
FILE_NAME: Final = "journal.jsonl"
COMPACT_LINES: Final = 4_000
"""Lines beyond four times the number of entries plus this make a compaction worthwhile."""
MAX_MESSAGE: Final = 200

_APPLIED: Final = {
    "site_factor": int,
    "oversubscribe": OverSubscribe,
    "oversubscribe_before": OverSubscribe,
    "foreign": bool,
    "request": str,
}
_ENTRY: Final = {"touched": float, "shares": OverSubscribe, "cleared": float}
"""Fields of `Applied` and of `Entry` that are written where they have a value."""
_PREFIX: Final = b'{"crc":"'
_JSON: Final = json.JSONEncoder(separators=(",", ":"))  # made once: a cycle may write 20,000 lines


class Settlement(NamedTuple):
    """The end of one intent: what became of the change, and the entry as it is now."""

    change: Change
    outcome: Outcome
    message: str
    entry: Entry


@dataclass(slots=True)
class _Copy:
    path: Path
    fd: int = -1
    error: str | None = None  # while it cannot be written
    size: int = 0  # bytes up to the end of the last whole line

    def append(self, data: bytes) -> None:
        found = os.fstat(self.fd) if self.fd >= 0 else None
        if found is None or found.st_nlink == 0:
            raise OSError("the file is not there any more")
        if found.st_size != self.size:
            # What is appended to half a line is lost with it.
            raise OSError("the file was changed by another process")
        try:
            write_all(self.fd, data)
            os.fsync(self.fd)
        except OSError:
            # Cut the torn line off (works on a full disk), so that what follows starts on a line of its own.
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.size)
            raise
        self.size += len(data)

    def replace(self, data: bytes) -> None:
        make_directory(self.path.parent)
        write_atomic(self.path, data)
        self.close()
        # Whose directory it is may have put a link there by now.
        self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.size = len(data)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            # It is closed whatever comes of it, and all lines are on the disk: NFS may tell of a quota only now.
            with contextlib.suppress(OSError):
                os.close(fd)


@dataclass(slots=True)
class Journal:
    """The journal of one cluster: `open` (the lock's holder), `look` (a dry run) or `read` (everybody else) it."""

    _copies: list[_Copy] = field(default_factory=list)
    _entries: dict[int, Entry] = field(default_factory=dict)
    _seq: int = 0
    _lines: int = 0
    damage: str | None = None  # what was wrong when it was loaded
    used: bool = False  # a job was ever noted in it
    cluster: str = ""  # whose jobs these are; "": not noted yet
    damaged_lines: int = 0  # lines that could not be read (truncated, bad checksum)
    on_disk: bool = True  # whether what is learned is written
    _looked_at: tuple[Path, ...] = ()  # files of which only a reading is kept (`look`)

    @classmethod
    def read(cls, directory: Path, mirror: Path | None = None) -> Self:
        """Load; every write raises. JournalError: of a newer rltuned, or there are copies and none can be read."""
        journal = cls()
        journal._load(_files(directory, mirror))
        return journal

    @classmethod
    def look(cls, directory: Path, mirror: Path | None = None) -> Self:
        """Load for a dry run: what is learned stays in memory, until `look_again`. Needs no lock. Raises as `read`."""
        journal = cls(on_disk=False, _looked_at=_files(directory, mirror))
        journal.look_again()
        return journal

    def look_again(self) -> None:
        """Load anew what another process may have written meanwhile, after `look` only. Raises as `read`."""
        if self._looked_at:
            self._entries.clear()
            self._load(self._looked_at)

    @classmethod
    def open(cls, directory: Path, mirror: Path | None = None) -> Self:
        """Load and open for writing, for the holder of the lock. Raises as `read`; see `writable`."""
        paths = _files(directory, mirror)
        journal = cls([_Copy(path) for path in paths])
        journal._load(paths)
        journal.compact()
        return journal

    def let_go(self) -> None:
        """Keep to memory from now on: the files may be another process's."""
        self.close()
        self.on_disk = False

    def refuse_other(self, cluster: str) -> None:
        """Raise JournalError where these are jobs of another cluster; where that is not noted yet, note it."""
        if not self.cluster:
            self.cluster = cluster
            if self._copies and self.on_disk:
                self.compact()
        elif self.cluster != cluster:
            raise JournalError(
                f"the journal is of cluster {self.cluster}, and {cluster} answers: nothing is written or forgotten;"
                " look where slurm.conf and DNS lead to. If only the name is new: `systemctl stop rltuned`, `rltuned"
                f" restore --orphans`, and remove {FILE_NAME} in state.directory and state.mirror"
            )

    @property
    def read_only(self) -> bool:
        """Whether it is there to be read only: nothing is learned, and every write raises."""
        return self.on_disk and not self._copies

    @property
    def writable(self) -> bool:
        """Whether at least one copy took the last write."""
        return any(not copy.error for copy in self._copies)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Copies that do not work at present, each with the reason."""
        return tuple(f"{copy.path}: {copy.error}" for copy in self._copies if copy.error)

    @property
    def entries(self) -> Mapping[int, Entry]:
        """What is known, by job id."""
        return MappingProxyType(self._entries)

    def entry(self, job_id: int, submit_time: int) -> Entry | None:
        """The entry of this very job; None also when the id now belongs to another one."""
        entry = self._entries.get(job_id)
        return entry if entry is not None and entry.submit_time == submit_time else None

    def is_orphan(self, job_id: int, factor: int | None) -> bool:
        """Whether nothing here explains the site factor of a pending job: the job is not known, or it has a raise that
        may be ours although it counts as somebody else's, of a newer journal than this copy.
        """
        entry = self._entries.get(job_id)
        if entry is None:
            return bool(factor)
        return entry.applied.foreign and (factor or 0) > 0 and factor not in entry.factors

    def applied(self) -> "AppliedChanges":
        """The claims, as `plan()` needs them."""
        from rltuned.core.applied import AppliedChanges  # noqa: PLC0415 - restore works where NumPy is broken

        claims = {job: entry.applied for job, entry in self._entries.items() if not entry.applied.is_empty}
        return AppliedChanges(MappingProxyType(claims))

    def intend(self, intents: Sequence[tuple[Change, Entry]]) -> None:
        """Put intended values on disk before the first write. JournalError: no copy took it, so nothing may be sent."""
        self._commit([_of(entry, "intent", field=change.field, after=change.after) for change, entry in intents])
        self._entries |= {entry.job_id: entry for _, entry in intents}

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Record outcomes. JournalError: no copy took it, and the intents stand in for them; in memory they count."""
        for item in settlements:
            self._keep(item.entry)
        self._commit(
            [
                _of(
                    self._entries.get(entry.job_id, entry),
                    "outcome",
                    field=change.field,
                    after=change.after,
                    outcome=outcome,
                    message=message[:MAX_MESSAGE],
                )
                for change, outcome, message, entry in settlements
            ]
        )

    def update(self, entries: Iterable[Entry] = (), forget: Iterable[int] = ()) -> None:
        """Record what was learned by reading, and forget jobs. JournalError: no copy took it; in memory it counts."""
        records: list[dict[str, Any]] = []
        for entry in entries:
            self._keep(entry)
            records.append({"kind": "forget", "job": entry.job_id} if entry.is_empty else _of(entry))
        records += [{"kind": "forget", "job": job} for job in forget if self._entries.pop(job, None) is not None]
        self._commit(records)

    def _keep(self, entry: Entry) -> None:
        if entry.is_empty:
            self._entries.pop(entry.job_id, None)
        else:
            self._entries[entry.job_id] = entry

    def compact(self) -> None:
        """Write the state anew into each copy. A copy that does not take it keeps its old content."""
        first = self._seq + 1
        begin = {"kind": "begin", "format": FORMAT, "count": len(self._entries), "used": self.used}
        records = [begin | {"cluster": self.cluster}, *map(_of, self._entries.values())]
        data = b"".join(_line(first + index, record) for index, record in enumerate(records))
        for copy in self._copies:
            try:
                copy.replace(data)
                copy.error = None
            except OSError as error:
                copy.error = _reason(error)
        self._seq += len(records)
        self._lines = len(records)

    def close(self) -> None:
        """Close the files."""
        for copy in self._copies:
            copy.close()

    def _commit(self, records: Sequence[dict[str, Any]]) -> None:
        if not records or not self.on_disk:
            return
        if self.read_only:
            raise JournalError("the journal was opened for reading only")
        self.used = True
        if any(copy.error for copy in self._copies) or self._lines > 4 * len(self._entries) + COMPACT_LINES:
            self.compact()
        data = b"".join(_line(self._seq + 1 + index, record) for index, record in enumerate(records))
        # Sequence numbers are spent even on failure: a line that did get through must not meet its double.
        self._seq += len(records)
        self._lines += len(records)
        for copy in self._copies:
            if copy.error:
                continue
            try:
                copy.append(data)
            except OSError as error:
                copy.error = _reason(error)
        if not self.writable:
            raise JournalError("no copy of the journal can be written: " + "; ".join(self.alarms))

    def _load(self, paths: Sequence[Path]) -> None:
        records: dict[int, dict[str, Any]] = {}
        lines, readable, unreadable = 0, 0, []
        for path in paths:
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                unreadable.append(f"{path}: {_reason(error)}")
                continue
            readable += 1
            found, bad = _parse(data, path)
            lines += bad
            for seq, record in found:
                records.setdefault(seq, record)
        if unreadable and not readable:
            raise JournalError(
                "no copy of the journal can be read: " + "; ".join(unreadable) + "; nothing may be changed without it"
            )
        torn = False
        for seq in sorted(records):
            record = records[seq]
            if record["kind"] == "begin":
                self.cluster = record.get("cluster", "") or self.cluster
                parts = [records.get(seq + 1 + index) for index in range(record["count"])]
                if all(part is not None and part["kind"] == "entry" for part in parts):
                    self._entries.clear()
                else:
                    torn = True
            elif record["kind"] == "forget":
                self._entries.pop(record["job"], None)
            else:
                self._keep(record["entry"])
        self._seq = max(records, default=0)
        self.used = lines > 0 or any(one["kind"] != "begin" or one.get("used", False) for one in records.values())
        self._lines = len(records)
        self.damaged_lines = lines
        wrong = [f"{lines} damaged line{'s' if lines > 1 else ''}"] if lines else []
        if torn:  # older lines were kept beside those that are left
            wrong.append("a compacted state with missing lines")
        self.damage = "; ".join([*wrong, *unreadable]) or None


def _of(entry: Entry, kind: str = "entry", **more: Any) -> dict[str, Any]:
    return {"kind": kind, **more, "entry": entry_to_json(entry)}


def _files(directory: Path, mirror: Path | None) -> tuple[Path, ...]:
    return tuple(root / FILE_NAME for root in (directory, mirror) if root is not None)


def _line(seq: int, record: Mapping[str, Any]) -> bytes:
    body = _JSON.encode({"seq": seq, **record}).encode()[1:]
    return _PREFIX + f'{zlib.crc32(body):08x}",'.encode() + body + b"\n"


def _parse(data: bytes, path: Path) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """All readable lines, and the number of the others."""
    found: list[tuple[int, dict[str, Any]]] = []
    bad = 0
    head = len(_PREFIX) + len('00000000",')
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        body = line[head:]
        if line[:head] != _PREFIX + f'{zlib.crc32(body):08x}",'.encode():
            bad += 1
            continue
        try:
            record = json.loads(line)
            if record["kind"] == "begin" and record["format"] > FORMAT:
                raise JournalError(
                    f"{path}: journal format {record['format']} is newer than this rltuned ({FORMAT});"
                    " restore with the version that wrote it"
                )
            if "entry" in record:
                record["entry"] = entry_from_json(record["entry"])
            found.append((int(record["seq"]), record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"{path}:{number}: is whole, but cannot be understood ({error!r}): another version of rltuned wrote it,"
                " and what that left on jobs, this one cannot give back; run `rltuned restore` of that version, and"
                " again half a minute later"
            ) from error
    return found, bad


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Plain data; what has no value is left out."""
    data: dict[str, Any] = {"job": entry.job_id, "submit": entry.submit_time}
    data |= {name: value for name in _APPLIED if (value := getattr(entry.applied, name))}
    data |= {name: value for name in _ENTRY if (value := getattr(entry, name))}
    if entry.doubts:
        data["doubts"] = dict(entry.doubts)
    if entry.previous:
        data["previous"] = {Field.SITE_FACTOR: entry.previous}
    return data


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """Inverse of `entry_to_json`. KeyError, ValueError, TypeError: not such data."""

    def known(kinds: Mapping[str, Any]) -> dict[str, Any]:
        return {name: kind(data[name]) for name, kind in kinds.items() if data.get(name)}

    def by_field(name: str) -> dict[Field, tuple[Value, ...]]:
        return {Field(of): tuple(values) for of, values in data.get(name, {}).items() if values}

    if gone := [of for of in GONE if data.get(of)]:
        raise ValueError(f"job {data['job']} has {gone[0]}")
    return Entry(
        Applied(int(data["job"]), int(data["submit"]), **known(_APPLIED)),
        doubts=by_field("doubts"),
        previous=by_field("previous").get(Field.SITE_FACTOR, ()),
        **known(_ENTRY),
    )


def _reason(error: OSError) -> str:
    return error.strerror or str(error)

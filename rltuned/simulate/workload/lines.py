"""Text files in blocks of lines: packed or not, hashed as they are read, with the number of every line."""

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Self

from rltuned.core.errors import WorkloadError
from rltuned.core.workers.progress import Progress, silent

BLOCK: Final = 1 << 20
"""Bytes of unpacked text that are looked at together."""
MAX_LINE: Final = 1 << 22
"""Bytes of the longest line (or JSON object) that is accepted: a file that is no text has no line ends."""
_PACKED: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\x89HDF": "HDF5",
    b"PAR1": "Parquet",
}


@dataclass
class Block:
    """Consecutive lines."""

    first: int
    """Number of the first of them; the first line of a file is 1."""
    lines: list[str]
    """Without their line ends; "" for one that could not be read."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Reason by index: not UTF-8, NUL bytes."""


class _Counted(io.RawIOBase):
    """Hashes and counts what is read through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override] # io wants WriteableBuffer
        data = self._file.read(len(buffer))
        self.hash.update(data)
        self.count += len(data)
        buffer[: len(data)] = data
        return len(data)


class TextFile:
    """One pass over a file, gzip or plain by its first bytes. Use as a context; `sha256` is known at its end."""

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        """Open it.

        Raises:
            WorkloadError: it cannot be opened, is empty, or is packed in another way than gzip.
        """
        self.name = str(path)
        self._progress = progress
        try:
            self._size = path.stat().st_size
            self._file = path.open("rb")
        except OSError as error:
            raise WorkloadError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        self._raw = _Counted(self._file)
        buffered = io.BufferedReader(self._raw, BLOCK)
        try:
            magic = buffered.peek(8)[:8]
        except OSError as error:
            self._file.close()
            raise WorkloadError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        problem = next(
            (f"is packed with {how}; only gzip is read" for mark, how in _PACKED.items() if magic.startswith(mark)), ""
        )
        if not magic:
            problem = "is empty"
        elif magic.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            problem = "is UTF-16; convert it to UTF-8"
        if problem:
            self._file.close()
            raise WorkloadError(f"{self.name}: {problem}")
        # Of a truncated stream `read1` gives all that is there before it says that the rest is missing.
        read = gzip.GzipFile(fileobj=buffered).read1 if magic.startswith(b"\x1f\x8b") else buffered.read
        self._block: Callable[[], bytes] = partial(read, BLOCK)
        self._head: bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        """Of all of the file as it is on disk; reads what is left of it."""
        while self._raw.read(BLOCK):
            pass
        return self._raw.hash.hexdigest()

    def head(self) -> bytes:
        """The first unpacked bytes, at least a line where lines are not very long, without a byte order mark; `chunks`
        gives them again.

        Raises:
            WorkloadError: as `chunks`.
        """
        if self._head is None:
            data = self._read(1)
            more = data
            while more and b"\n" not in data and len(data) < BLOCK:
                more = self._read(1)
                data += more
            if data[257:262] == b"ustar":
                raise WorkloadError(f"{self.name}: is a tar archive; unpack it first")
            self._head = data.removeprefix(codecs.BOM_UTF8)
        return self._head

    def chunks(self) -> Iterator[bytes]:
        """The unpacked bytes, from the beginning, without a byte order mark.

        Raises:
            WorkloadError: a damaged or truncated gzip stream, with the line where it ends; a tar archive.
        """
        data = self.head()
        line = 1
        while data:
            line += data.count(b"\n")
            yield data
            data = self._read(line)

    def _read(self, line: int) -> bytes:
        """The next bytes; as long as a truncated stream gives any, those."""
        try:
            data = self._block()
        except (EOFError, zlib.error, OSError) as error:
            reason = "the gzip stream ends here: the file is truncated"
            if not isinstance(error, EOFError):
                damaged = isinstance(error, zlib.error | gzip.BadGzipFile)
                reason = f"the gzip stream is damaged: {error}" if damaged else str(error)
            raise WorkloadError(f"{self.name}:{line}: {reason}") from error
        self._progress("reading", self._raw.count, self._size)
        return data

    def blocks(self) -> Iterator[Block]:
        """The lines, in blocks of about a MiB.

        Raises:
            WorkloadError: as `chunks`; a line that is too long; no line at all.
        """
        number = 1
        rest = b""
        for data in self.chunks():
            whole, end, rest = (rest + data).rpartition(b"\n")
            if end:
                yield _block(number, whole)
                number += whole.count(b"\n") + 1
            if len(rest) > MAX_LINE:
                raise WorkloadError(f"{self.name}:{number}: a line of more than {MAX_LINE:,} bytes: not a text file?")
        if rest:
            yield _block(number, rest)
        elif number == 1:
            raise WorkloadError(f"{self.name}: is empty")


def _block(first: int, data: bytes) -> Block:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if b"\0" not in data:
        try:
            return Block(first, data.decode("utf-8").split("\n"))
        except UnicodeDecodeError:
            pass
    block = Block(first, [])
    for index, line in enumerate(data.split(b"\n")):
        text = ""
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            block.unreadable[index] = f"not UTF-8: byte 0x{line[error.start]:02x} in column {error.start + 1}"
        if b"\0" in line:
            text = ""
            block.unreadable[index] = f"a NUL byte in column {line.index(0) + 1}"
        block.lines.append(text)
    return block

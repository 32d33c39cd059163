"""Text files line by line: packed or not, hashed as they are read, with the number of every line."""

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, Self, cast

from rltuned.core.errors import WorkloadError
from rltuned.core.workers.progress import Progress, silent

ROWS: Final = 10_000  # lines that are looked at together
MAX_LINE: Final = 1 << 22
"""Characters of the longest line (or JSON object) that is accepted: a file that is no text has no line ends."""
_OTHERS: Final = {
    b"BZh": "is packed with bzip2; only gzip is read",
    b"\xfd7zXZ\x00": "is packed with xz; only gzip is read",
    b"\x28\xb5\x2f\xfd": "is packed with zstd; only gzip is read",
    b"PK\x03\x04": "is packed with zip; only gzip is read",
    b"\x89HDF": "is packed with HDF5; only gzip is read",
    b"PAR1": "is packed with Parquet; only gzip is read",
    codecs.BOM_UTF16_LE: "is UTF-16; convert it to UTF-8",
    codecs.BOM_UTF16_BE: "is UTF-16; convert it to UTF-8",
}


class _Hashed(io.FileIO):
    """Hashes and counts what is read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.hash = hashlib.sha256()
        self.count = 0

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override] # io wants WriteableBuffer
        count = super().readinto(buffer) or 0
        self.hash.update(memoryview(buffer)[:count])
        self.count += count
        return count


class TextFile:
    """One pass over a file, gzip or plain by its first bytes. Use as a context; `sha256` is known at its end. Raises
    WorkloadError: it cannot be opened, is empty, or is packed in another way than gzip. Whatever reads it: a damaged or
    truncated gzip stream, with the line where it ends.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        self.name = str(path)
        self._progress = progress
        self._number = 0
        """Lines that have been read."""
        try:
            self._size = path.stat().st_size
            self._disk = _Hashed(path)
            buffered = io.BufferedReader(self._disk)
            magic = buffered.peek(8)[:8]
        except OSError as error:
            raise WorkloadError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        problem = next((what for mark, what in _OTHERS.items() if magic.startswith(mark)), "")
        if problem or not magic:
            buffered.close()
            raise WorkloadError(f"{self.name}: {problem or 'is empty'}")
        unpacked = gzip.GzipFile(fileobj=buffered) if magic.startswith(b"\x1f\x8b") else buffered
        # What is not UTF-8 stays one character for each byte: `strange` tells of it, line by line.
        self._text = io.TextIOWrapper(cast("io.BufferedReader", unpacked), "utf-8-sig", "surrogateescape", newline="\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()

    @property
    def sha256(self) -> str:
        """Of all of the file as it is on disk; reads what is left of it."""
        while self._disk.readinto(bytearray(1 << 20)):
            pass
        return self._disk.hash.hexdigest()

    @cached_property
    def first(self) -> tuple[int, str]:
        """Number and text of the first line that is not blank."""
        found = next(self._rest(), None)
        if found is None:
            raise WorkloadError(f"{self.name}: is empty")
        if found[1][257:262] == "ustar":
            raise WorkloadError(f"{self.name}: is a tar archive; unpack it first")
        return found

    def batches(self) -> Iterator[list[tuple[int, str]]]:
        """The lines that are not blank, with their numbers (the first line of a file is 1), without their line ends."""
        rest = self._rest()
        lines = [self.first]
        while lines := [*lines, *islice(rest, ROWS)]:
            self._progress("reading", self._disk.count, self._size)
            yield lines
            lines = []

    def _rest(self) -> Iterator[tuple[int, str]]:
        while line := self._tried(self._text.readline, MAX_LINE + 1):
            self._number += 1
            if len(line) > MAX_LINE:
                raise WorkloadError(
                    f"{self.name}:{self._number}: a line of more than {MAX_LINE:,} bytes: not a text file?"
                )
            if not line.isspace():
                yield self._number, line.rstrip("\r\n")

    def read(self, most: int) -> str:
        """The next text behind `first`; "" at the end."""
        text = self._tried(self._text.read, most)
        self._number += text.count("\n")
        self._progress("reading", self._disk.count, self._size)
        return text

    def _tried(self, read: Callable[[int], str], most: int) -> str:
        try:
            return read(most)
        except (EOFError, zlib.error, OSError) as error:
            reason = str(error)
            if isinstance(error, EOFError):
                reason = "the gzip stream ends here: the file is truncated"
            elif isinstance(error, zlib.error | gzip.BadGzipFile):
                reason = f"the gzip stream is damaged: {error}"
            raise WorkloadError(f"{self.name}:{self._number + 1}: {reason}") from error


def strange(line: str) -> str:
    """Why a line cannot be read: it has a NUL byte, or is not UTF-8; "": it can."""
    if "\0" in line:
        return f"a NUL byte in column {line.index(chr(0)) + 1}"
    if line.isascii():
        return ""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        return f"not UTF-8: byte 0x{ord(line[error.start]) - 0xDC00:02x} in column {error.start + 1}"
    return ""

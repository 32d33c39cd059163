"""One writer per cluster: flock(2) on a file of the state directory.

The kernel gives it back when the holder dies, however it dies. The file's content only says who holds it.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from rltuned.controller.health.clock import Seconds
from rltuned.core.errors import LockedError, RltunedError, StateError
from rltuned.core.safe_files import (
    FILE_MODE,
    encode,
    give_all_to,
    give_to_owner_of,
    make_directory,
    read,
    user_name,
    write_all,
)

FILE_NAME: Final = "lock"
NEEDS_LOCKS: Final = "put state.directory on a local file system of this host"
PATIENCE: Final = 1.0  # seconds that those who only ask for the holder are waited for


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock."""

    pid: int
    host: str
    user: str
    since: Seconds  # since the epoch
    purpose: str  # the command, "run" or "restore"

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"rltuned {self.purpose}, process {self.pid} of {self.user} on {self.host} since {began}"


class Lock:
    """A held lock; `release` it, or die."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def acquire(cls, directory: Path, purpose: str, now: float) -> Self:
        """Take the lock at once, or not at all: LockedError, StateError say who has it, or what to do."""
        path = directory / FILE_NAME
        try:
            make_directory(directory)
            fd = _open(path)
        except OSError as error:
            raise StateError(f"{path}: cannot be opened: {error.strerror}{_remedy(path)}") from error
        # Whoever asks for the holder shares the lock for a moment: that is waited for.
        until = time.monotonic() + PATIENCE
        try:
            while not _locks(fd, fcntl.LOCK_EX):
                shared = _locks(fd, fcntl.LOCK_SH)
                if not shared or time.monotonic() > until:
                    os.close(fd)
                    who = "somebody who only asks for its holder" if shared else _read(path) or "an unknown process"
                    raise LockedError(f"{path}: held by {who}")
                time.sleep(0.001)
        except OSError as error:
            os.close(fd)
            raise StateError(f"{path}: cannot be locked: {error.strerror}; {NEEDS_LOCKS}") from error
        holder = Holder(os.getpid(), socket.gethostname(), user_name(os.geteuid()), now, purpose)
        with contextlib.suppress(OSError):
            # On a full disk, or one that takes no writes, the lock holds all the same; only its holder stays unnamed.
            give_to_owner_of(directory, fd)
            os.ftruncate(fd, 0)
            try:
                write_all(fd, encode(holder))
            except OSError:
                os.ftruncate(fd, 0)
        return cls(fd, path)

    def still_held(self) -> bool:
        """Whether the file that others would lock is the one that we hold: somebody may have removed it. What cannot be
        looked at for a moment was not.
        """
        try:
            there, ours = self.path.stat(), os.fstat(self._fd)
        except OSError as error:
            return error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):  # it is closed whatever comes of it
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open(path: Path) -> int:
    """The file, made where it is not there."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, FILE_MODE)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.ENOSPC, errno.EDQUOT}:
            raise
    # The file system became read-only, or is full. Without the file the directory does to give back; a daemon writes
    # nothing by it (`still_held`).
    try:
        return os.open(path, flags | os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path.parent, flags | os.O_RDONLY | os.O_DIRECTORY)


def _locks(fd: int, kind: int) -> bool:
    """Whether the file can be locked at once; it is then. OSError: the file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(directory: Path) -> Holder | None:
    """Who holds the lock at this moment; None when it is free, or nobody can hold or see it."""
    with contextlib.suppress(OSError):
        return _holder(directory / FILE_NAME)
    return None


def trouble(directory: Path) -> str | None:
    """Why the lock cannot be had, where that is a matter of the file system."""
    try:
        _holder(directory / FILE_NAME)
    except (FileNotFoundError, PermissionError):
        return None
    except OSError as error:
        return f"{directory / FILE_NAME}: cannot be locked: {error.strerror}"
    return None


def _holder(path: Path) -> Holder | None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return None if _locks(fd, fcntl.LOCK_SH) else _read(path) or Holder(0, "?", "?", 0.0, "?")
    finally:
        os.close(fd)


def _read(path: Path) -> Holder | None:
    with contextlib.suppress(RltunedError):
        return read(Holder, path, "the holder of a lock")
    return None


def _remedy(path: Path) -> str:
    """The end of a sentence: what of the way to a file belongs to somebody else, and what to do."""
    me = os.geteuid()
    for place in (path, *path.parents[:2]):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        if owner != me:
            return f"; {place} belongs to {user_name(owner)}. As root: {give_all_to(me, path.parent)}"
    return ""

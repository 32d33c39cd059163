"""User records in a directory that users can enter: written by the daemon, read by ``explain`` and ``when``.

Each user has a directory there of the number of the user, with a POSIX access control list (acl(5)) that lets this one
user in; without such lists nothing is written. The directory itself cannot be listed. All records are written again in
every cycle, also the empty one of a user who had a job once: neither sizes nor times tell others who has jobs now. It
cannot hold up a cycle: `publish` only leaves the plan for a thread.
"""

import contextlib
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from rltuned.controller.health.runtime import Runtime
from rltuned.controller.tell.logs import DEFECT
from rltuned.controller.users.registrations import lately_running, name_of, registered, uid_of
from rltuned.core.safe_files import encode, write_all
from rltuned.core.tables import Snapshot
from rltuned.decide.resizing import Registration
from rltuned.decide.user_record import LastJobs, UserRecords
from rltuned.records.published import MARK, NAME, Mark

MOST_USERS: Final = 2000
_ACL: Final = "system.posix_acl_access"
_PATIENCE: Final = 5.0
"""Seconds that the end of the daemon waits for a thread that a file server or a name service keeps waiting."""


class UserFiles:
    """Writes the records into a directory, in a thread of its own."""

    def __init__(self, directory: Path, runtime: Runtime, last: Callable[[], LastJobs]) -> None:
        """Starts it. Trouble is said once for as long as it stays the same, and each cycle is another try. `last`: what
        is known of the jobs of each user that ended last, asked in that thread.
        """
        self._directory, self._runtime, self._last = directory, runtime, last
        self._next: UserRecords | None = None
        self._stop = False
        self._turn = threading.Condition()
        self._trouble: str | None = None
        self._ran = dict[int, float]()
        self._thread = threading.Thread(target=self._run, name="user-files", daemon=True)
        self._thread.start()

    def publish(self, records: UserRecords) -> None:
        """Write these next, instead of any that still wait."""
        with self._turn:
            self._next = records
            self._turn.notify()

    def close(self, patience: float = _PATIENCE) -> None:
        """Stop. What is there stays, and says of when it is."""
        with self._turn:
            self._stop = True
            self._turn.notify()
        self._thread.join(patience)

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._stop or self._next is not None)
                records, self._next = self._next, None
                if self._stop or records is None:
                    return
            try:
                records = replace(records.advised(self._running), last=self._last())
                self._say(write_all_records(self._directory, records))
            except Exception:  # the next cycle is another try
                self._runtime.log.exception("users.defect", sentence=DEFECT)
            del records  # and with them the plan

    def _running(self, snapshot: Snapshot) -> dict[int, Registration]:
        return lately_running(registered(self._directory, snapshot.jobs), snapshot, self._ran)

    def _say(self, trouble: str | None) -> None:
        if trouble and trouble != self._trouble:
            self._runtime.log.warning("users.not_published", sentence="Users do not see their record.", reason=trouble)
        self._trouble = trouble


def write_all_records(directory: Path, records: UserRecords) -> str | None:
    """Write the record of everybody who has a job, and an empty one for all who had one. Why not, where that fails."""
    try:
        top = _open_ours(directory)
        try:
            return _write_users(top, directory, records)
        finally:
            os.close(top)
    except OSError as error:
        return f"users.directory {directory}: {error.strerror or error}"


def _write_users(top: int, directory: Path, records: UserRecords) -> str | None:
    trouble = None
    now = {uid: name for name in records.users if (uid := uid_of(name)) is not None}
    if len(now) > MOST_USERS:
        trouble = f"users.directory {directory}: {len(now)} users have jobs, the first {MOST_USERS} get a record"
        now = dict(sorted(now.items())[:MOST_USERS])
    past = sorted({int(name) for name in os.listdir(top) if name.isascii() and name.isdigit()} - now.keys())
    room = MOST_USERS - len(now)
    for uid in past[room:]:
        _remove(top, uid)
    for uid in [*now, *past[:room]]:
        record = records.record(now[uid] if uid in now else name_of(uid)).as_dict()
        try:
            _write_user(top, uid, encode(record))
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS}:
                why = (
                    "its file system has no POSIX access control lists, so no file can be for one user alone; use "
                    "one that has them (ext4, XFS, tmpfs, Lustre, NFS version 3)"
                )
                return f"users.directory {directory}: {why}"
            trouble = f"users.directory {directory}/{uid}: {why}"
    try:
        _replace(top, MARK, encode(Mark(records.snapshot.time, records.interval)), None)
    except OSError as error:
        trouble = f"users.directory {directory}/{MARK}: {error.strerror}"
    return trouble


def _open_ours(directory: Path) -> int:
    """The directory, where only this process's user can make files; else OSError."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(top)
        if status.st_uid != os.geteuid():
            raise PermissionError(0, f"belongs to uid {status.st_uid}; give it to the daemon's user ({os.geteuid()})")
        if stat.S_IMODE(status.st_mode) != 0o711:
            os.fchmod(top, 0o711)  # others may enter, not list: the names are those of all who have had jobs
    except OSError:
        os.close(top)
        raise
    return top


def _write_user(top: int, uid: int, data: bytes) -> None:
    name = str(uid)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=top)
    own = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        _let_in(own, uid, directory=True)
        _replace(own, NAME, data, uid)
    finally:
        os.close(own)


def _remove(top: int, uid: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(f"{uid}/{NAME}", dir_fd=top)
    with contextlib.suppress(OSError):
        os.rmdir(str(uid), dir_fd=top)


def _replace(directory: int, name: str, data: bytes, uid: int | None) -> None:
    """Replace a file; who reads it sees the old or the new content. None: for everybody, else for this one user."""
    temporary = f".{name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        if uid is None:
            os.fchmod(fd, 0o644)
        else:
            _let_in(fd, uid, directory=False)
        write_all(fd, data)
    finally:
        os.close(fd)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def _let_in(fd: int, uid: int, *, directory: bool) -> None:
    """Let the owner and this user in, and nobody else; OSError where the file system does not."""
    wanted = access_list(uid, directory=directory)
    with contextlib.suppress(OSError):
        if os.getxattr(fd, _ACL) == wanted:
            return
    os.setxattr(fd, _ACL, wanted)
    if os.getxattr(fd, _ACL) != wanted:
        raise PermissionError(0, "its file system does not keep the access control list")


def access_list(uid: int, *, directory: bool) -> bytes:
    """The extended attribute of acl(5): the owner may write, `uid` may read, nobody else may anything.

    Layout: linux/posix_acl_xattr.h, version 2; tag, permissions and id of each entry, the least tag first.
    """
    nobody, theirs = 0xFFFFFFFF, 5 if directory else 4
    owner_tag, user_tag, group_tag, mask_tag, others_tag = 0x01, 0x02, 0x04, 0x10, 0x20
    entries: Iterable[tuple[int, int, int]] = (
        (owner_tag, theirs | 2, nobody),
        (user_tag, theirs, uid),
        (group_tag, 0, nobody),
        (mask_tag, theirs, nobody),
        (others_tag, 0, nobody),
    )
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)

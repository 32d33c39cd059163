"""What jobs have said that they could do (docs/elastic.md), each in a file of its owner's; and who is who."""

import contextlib
import os
import pwd
import stat
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Final

from rltuned.core.changes import JobState
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import parse
from rltuned.core.tables import JobTable, Snapshot
from rltuned.decide.resizing import SOON, Registration
from rltuned.job.elastic import REGISTERED, registration_name

MOST_LISTED: Final = 1_000_000
"""Names in the directory of registrations that are looked at."""
MOST_REMOVED: Final = 10_000
"""Of these, so many that are no registrations are removed in a cycle."""
_OVERFLOW: Final = 65534
"""The uid by which the kernel shows a user of another user namespace: it may be anybody."""
_LAST: Final = 2**32 - 2
"""The greatest uid; the next number is none, and asks chown() to change nothing."""


def uid_of(name: str) -> int | None:
    """The user whom squeue on this host calls `name`. None: that is not sure."""
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        # squeue prints what has no name as a number.
        uid = int(name) if name.isascii() and name.isdigit() else _OVERFLOW
    if uid == _OVERFLOW or uid > _LAST or (name.isdigit() and uid != int(name)):
        return None
    return uid


def name_of(uid: int) -> str:
    """What squeue on this host calls that user. "": that is not sure."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return name if uid_of(name) == uid else ""


def registered(directory: Path, jobs: JobTable) -> dict[int, Registration]:
    """What these jobs have said that they could do, each in a file of its owner's. Nothing where the directory for
    them is missing: the site wants no such jobs (docs/elastic.md). What else is there is removed: files of jobs that
    are gone, and of users who have taken names of others' jobs. (A job newer than this reading registers again.)
    """
    found, others, there = dict[int, Registration](), list[Path](), directory / REGISTERED
    with contextlib.suppress(OSError), os.scandir(there) as entries:
        uids = {user: uid_of(user) for user in jobs.user.names}
        owners = zip(jobs.job_id.tolist(), map(uids.get, jobs.user.texts()), strict=True)
        expected = {registration_name(uid, job): (job, uid) for job, uid in owners if uid is not None}
        for entry in islice(entries, MOST_LISTED):
            job, uid = expected.get(entry.name, (0, 0))
            content = _plain_file_of(uid, there / entry.name) if job else None
            if content is not None:
                with contextlib.suppress(RltunedError):
                    found[job] = parse(Registration, content, "a registration")
            elif len(others) < MOST_REMOVED and (job or not entry.is_dir(follow_symlinks=False)):
                others.append(there / entry.name)
    for path in others:
        try:
            path.unlink()
        except OSError:
            # A directory in the way of a registration. With something in it, it can only be moved.
            with contextlib.suppress(OSError):
                path.rename(there / f".{token_hex(8)}")
    return found


def lately_running(
    told: Mapping[int, Registration], snapshot: Snapshot, ran: dict[int, float]
) -> dict[int, Registration]:
    """Of these registrations those of jobs that run, or did within the last `SOON` seconds: they have requeued
    themselves. (Any user can leave a registration of a job that only waits.) `ran`: when each was last seen to run, by
    job id; it is brought up to date.
    """
    jobs, now = snapshot.jobs, snapshot.time
    ran |= {job: now for job in told if jobs.state[jobs.row_of[job]] == JobState.RUNNING}
    for job in [job for job, seen in ran.items() if now - seen > SOON]:
        del ran[job]
    return {job: said for job, said in told.items() if job in ran}


def _plain_file_of(uid: int, path: Path) -> bytes | None:
    """The beginning of a file of this user's; None: it is something else, as a link or a pipe."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_uid == uid:
                return file.read(1000)
    return None

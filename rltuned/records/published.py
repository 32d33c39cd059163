"""What the daemon publishes for users (`controller.users.user_records`), as their commands read it."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rltuned.core.config import Config, UsersSection
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import read
from rltuned.decide.user_record import VERSION, UserRecord

MOST_BYTES: Final = 4 * 1024 * 1024
MARK: Final = "published.json"  # for everybody: when the records were written
NAME: Final = "jobs.json"  # the record, in the user's directory


@dataclass(frozen=True)
class Mark:
    """When the records were written."""

    time: float  # of the reading of Slurm, epoch seconds
    interval: float  # seconds between two readings
    version: int = VERSION


def only_own(config: Config) -> bool:
    """Whether this user gets their own record only: the state directory is closed, and records are published."""
    return config.users.directory is not None and not os.access(config.state.directory, os.R_OK | os.X_OK)


def fetch(settings: UsersSection, uid: int) -> UserRecord:
    """The record of user `uid`, who runs this; RltunedError says why there is none."""
    if settings.directory is None:
        raise RltunedError("rltuned shows users nothing here: users.directory is not set (docs/installation.md)")
    path = settings.directory / str(uid) / NAME
    try:
        found = read(UserRecord, path, "a user record", MOST_BYTES)
    except RltunedError as error:
        raise RltunedError(f"{error}; the daemon and this command may be of different versions") from error
    if found is not None:
        return found
    mark = published(settings.directory)
    if mark is None:
        raise RltunedError(f"{settings.directory}: nothing is published here; is the daemon running?")
    return UserRecord(
        version=VERSION, time=mark.time, interval=mark.interval, user="", moves=False, managed=0, jobs=(), left_out=0
    )


def published(directory: Path) -> Mark | None:
    """When the records in `users.directory` were written; None where nobody has, or nobody can say."""
    with contextlib.suppress(RltunedError):
        return read(Mark, directory / MARK, "a mark")
    return None

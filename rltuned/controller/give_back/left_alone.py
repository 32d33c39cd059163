"""Jobs that an admin wants left alone, told to a living daemon: one small file for each.

``rltuned restore JOBID`` beside a daemon may not write the daemon's journal. The daemon would find out by itself about
a job whose value has changed, but not about one that carried nothing.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import FILE_MODE, make_directory

DIRECTORY: Final = "hands-off"


def ask(state: Path, job_ids: Iterable[int]) -> list[int]:
    """Leave the request for the daemon of this state directory; which jobs are new. RltunedError: it cannot be."""
    directory, new = state / DIRECTORY, []
    try:
        make_directory(directory)
        for job in job_ids:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(directory / str(job), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
                new.append(job)
    except OSError as error:
        raise RltunedError(
            f"{directory}: the daemon cannot be told to leave the jobs alone: {error.strerror}; run as root or as the"
            " daemon's user"
        ) from error
    return new


def asked(state: Path) -> list[int]:
    """Job ids that were asked for and not answered yet; empty where nothing can be read."""
    try:
        names = [entry.name for entry in os.scandir(state / DIRECTORY)]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 10)


def answered(state: Path, job_ids: Iterable[int]) -> None:
    """Take the requests away. One that stays is answered again, which changes nothing."""
    for job in job_ids:
        with contextlib.suppress(OSError):
            (state / DIRECTORY / str(job)).unlink()

"""What jobs are called, where the site asks for it (`estimates.names`): as keyed hashes, whose key stays in the state
directory. Here is no name: `slurm.job_names` makes numbers of them.
"""

import os
import secrets
from pathlib import Path
from stat import S_IMODE
from typing import Final, Self

import numpy as np

from rltuned.core.config import Config
from rltuned.core.ended import EndedJob
from rltuned.core.errors import AnswerTooLongError, RltunedError, SlurmError
from rltuned.core.name_kinds import NameKinds
from rltuned.core.safe_files import make_directory, write_atomic
from rltuned.core.tables import Ints, JobTable
from rltuned.records.gate_verdict import DAY, MAX_BYTES, parse_verdict, verdict_file
from rltuned.slurm.job_names import MOST_ASKED, JobNames
from rltuned.slurm.port import JobNamesReader

KEY_NAME: Final = "names.key"
KEY_BYTES: Final = 32
KEY_MODE: Final = 0o600


class Names:
    """Kinds of names. The cycle calls `look` and `of`; `called` is for the thread that reads the accounting."""

    def __init__(self, names: JobNames, *, fresh: bool) -> None:
        self._names = names
        self.fresh = fresh
        """Whether the key is new: what was hashed before it tells nothing."""
        self.trouble = ""  # why names could not be read; said and emptied by who shows it
        self._most = MOST_ASKED  # jobs of the next command
        self._known: dict[int, tuple[float, int]] = {}
        """Submission and kind of waiting jobs by id."""

    @classmethod
    def open(cls, reader: object, directory: Path, *, make: bool = True) -> Self | None:
        """By the key in the state directory, which is made where there is none and `make` asks for it; None: this
        reader knows no names. RltunedError: the key cannot be read or made, or others may know it.
        """
        if not isinstance(reader, JobNamesReader):
            return None
        path = directory / KEY_NAME
        try:
            key = _read(path)
            if fresh := key is None and make:
                key = secrets.token_bytes(KEY_BYTES)
                make_directory(directory)
                write_atomic(path, key, mode=KEY_MODE)
        except OSError as error:
            raise RltunedError(f"{path}: cannot be used: {error.strerror}") from error
        if key is None:
            raise RltunedError(f"{path}: there is none yet; the daemon makes it")
        return cls(reader.job_names(NameKinds(key)), fresh=fresh)

    def look(self, jobs: JobTable) -> int:
        """Read what waiting jobs are called whose names are not known, at most `MOST_ASKED` at a time. Gives the RPCs
        that it took; where it fails, these jobs have no name until the next call.
        """
        submitted = dict(zip(jobs.job_id[jobs.pending].tolist(), jobs.submit_time[jobs.pending].tolist(), strict=True))
        self._known = {job: known for job, known in self._known.items() if submitted.get(job) == known[0]}
        unknown = [job for job in submitted if job not in self._known][: min(self._most, MOST_ASKED)]
        if not unknown:
            return 0
        try:
            found = self._names.waiting(unknown)
        except SlurmError as error:
            self.trouble = str(error)
            if not isinstance(error, AnswerTooLongError):
                return 1
            # Each task of an array may have a row of its own. One that is too long alone has no name.
            self._most = len(unknown) // 2
            if self._most:
                return 1
            found = {}
        self._most = min(max(2 * self._most, 1), MOST_ASKED)
        # Also of those that it does not tell of: else they would be asked about in each cycle.
        self._known |= {job: (submitted[job], found.get((job, submitted[job]), 0)) for job in unknown}
        return 1

    def of(self, jobs: JobTable) -> Ints:
        """(N,) as `JobKind.name`; 0 where it is not known."""
        pairs = zip(jobs.job_id.tolist(), jobs.submit_time.tolist(), strict=True)
        known = ((self._known.get(job, (0.0, 0)), submitted) for job, submitted in pairs)
        return np.array([kind if at == submitted else 0 for (at, kind), submitted in known], dtype=np.int64)

    def called(self, jobs: list[EndedJob], start: float, end: float) -> list[EndedJob]:
        """These jobs, which ended in [start, end), with the kinds of their names where these can be read."""
        if not jobs:
            return jobs
        try:
            found = self._names.ended(start, end)
        except SlurmError as error:
            self.trouble = str(error)
            return jobs
        return [job._replace(name=found.get((job.job_id, job.end), 0)) for job in jobs]


def opened(before: Names | None, reader: object, config: Config, now: float, *, make: bool) -> Names | None:
    """What reads names from now on, `before` until now, where the site asks for that, or the gate's verdict does for
    it. Raises as `Names.open`.
    """
    if config.estimates.names == "auto" and not _advised(config, now):
        return None
    return before or Names.open(reader, config.state.directory, make=make)


def _advised(config: Config, now: float) -> bool:
    """Whether there is a verdict whose time it is, and that says that names certainly help."""
    path = verdict_file(config.policy.model, config.state.directory)
    try:
        found = parse_verdict(_begin(path, MAX_BYTES + 1)[0])
    except (OSError, RltunedError):
        return False
    return found.names is not None and found.names.on and found.made_at - DAY <= now <= found.expires


def _read(path: Path) -> bytes | None:
    """None: there is no file. OSError, RltunedError: it is not to be used."""
    try:
        key, mode = _begin(path, KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    if mode & ~KEY_MODE or len(key) != KEY_BYTES:
        why = f"its mode is {mode:o}" if mode & ~KEY_MODE else f"it does not have {KEY_BYTES} bytes"
        raise RltunedError(f"{path}: {why}; remove it, and a new one is made")
    return key


def _begin(path: Path, most: int) -> tuple[bytes, int]:
    """At most so many bytes of a file, and its mode. A link is not followed, and a named pipe holds nobody up."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, most), S_IMODE(os.fstat(fd).st_mode)
    finally:
        os.close(fd)

"""What accounts have borrowed, and the requests of jobs that ask for less now, kept over restarts."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rltuned.cluster.applied import NONE_KNOWN, LargestRequests, Request
from rltuned.cluster.borrowed import NOTHING, Borrowed
from rltuned.cluster.changes import Applied
from rltuned.daemon.logs import Log
from rltuned.decide.plan import Plan
from rltuned.errors import RltunedError
from rltuned.safe_files import write_atomic

FILE_NAME: Final = "borrowed.json"
MOST_BYTES: Final = 16 * 1024 * 1024


def read_debts(directory: Path) -> tuple[Borrowed, LargestRequests]:
    """What accounts have borrowed, and the largest requests of jobs that ask for less. RltunedError names the file."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MOST_BYTES))
        largest = {
            int(job): Request(int(submit), int(gpus), math.inf if limit is None else float(limit))
            for job, (submit, gpus, limit) in data.get("largest", {}).items()
        }
        return Borrowed.from_dict(data), LargestRequests.of(largest)
    except FileNotFoundError:
        return NOTHING, NONE_KNOWN
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RltunedError(f"{path}: cannot be used: {error}; delete it: all accounts then owe nothing") from error


class Debts:
    """What accounts owe, as the running daemon knows it."""

    def __init__(self, directory: Path, log: Log) -> None:
        """Takes over what an earlier daemon has left. Where that cannot be read, nobody owes anything."""
        self._directory, self._log, self._trouble = directory, log, ""
        self._shrunk: dict[int, Request] = {}
        self.borrowed, self.largest = NOTHING, NONE_KNOWN
        try:
            self.borrowed, self.largest = read_debts(directory)
        except RltunedError as error:
            log.warning("debts.lost", sentence="What accounts had borrowed is not known any more.", reason=str(error))

    def take_in(self, plan: Plan, claims: Mapping[int, Applied], *, keep: bool) -> None:
        """Note the jobs that carry a raise of ours by the journal's `claims`; `keep` them on disk but in a dry run."""
        loans = {**plan.borrowed.raised, **plan.raised}
        raised = {job: loan for job, loan in loans.items() if job in claims and claims[job].site_factor > 0}
        before, self.borrowed = self.borrowed, plan.borrowed.raising(raised)
        jobs = plan.snapshot.jobs
        self.largest = self.largest.grown(jobs)
        shrunk, self._shrunk = self._shrunk, self.largest.shrunk(jobs)
        owing = any(known.owed or known.raised or known.running for known in (before, self.borrowed))
        if keep and (owing or shrunk or self._shrunk):
            trouble = self._write()
            if trouble and trouble != self._trouble:
                self._log.warning("debts.not_kept", sentence="A restart will forget what was borrowed.", reason=trouble)
            self._trouble = trouble

    def _write(self) -> str:
        """Why not, or ""."""
        largest = {
            str(job): (submit, gpus, limit if math.isfinite(limit) else None)
            for job, (submit, gpus, limit) in self._shrunk.items()
        }
        data = self.borrowed.as_dict() | {"largest": largest}
        text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
        try:
            write_atomic(self._directory / FILE_NAME, text, durable=False)
        except OSError as error:
            return f"{self._directory / FILE_NAME}: {error.strerror}"
        return ""

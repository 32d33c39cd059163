"""What accounts have borrowed, kept over restarts: `borrowed.json` in the state directory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rltuned.cluster.borrowed import NOTHING, Borrowed
from rltuned.cluster.changes import Applied
from rltuned.daemon.logs import Log
from rltuned.decide.plan import Plan
from rltuned.errors import RltunedError
from rltuned.safe_files import write_atomic

FILE_NAME: Final = "borrowed.json"
MOST_BYTES: Final = 16 * 1024 * 1024


def read_debts(directory: Path) -> Borrowed:
    """What the file says; nothing where there is none.

    Raises:
        RltunedError: it cannot be read; names the file.
    """
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            return Borrowed.from_dict(json.loads(file.read(MOST_BYTES)))
    except FileNotFoundError:
        return NOTHING
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RltunedError(f"{path}: cannot be used: {error}; delete it: all accounts then owe nothing") from error


class Debts:
    """What accounts owe, as the running daemon knows it."""

    def __init__(self, directory: Path, log: Log) -> None:
        """Takes over what an earlier daemon has left. Where that cannot be read, nobody owes anything, and the log says
        so.
        """
        self._directory, self._log, self._trouble = directory, log, ""
        self.borrowed = NOTHING
        try:
            self.borrowed = read_debts(directory)
        except RltunedError as error:
            log.warning("debts.lost", sentence="What accounts had borrowed is not known any more.", reason=str(error))

    def settle(self, plan: Plan, claims: Mapping[int, Applied], *, keep: bool) -> None:
        """Note what the order that is in force now borrows: jobs that carry a raise of ours.

        Args:
            plan: of this cycle.
            claims: of the journal, after the writes.
            keep: whether to write the file; not in a dry run.
        """
        loans = {**plan.borrowed.raised, **plan.raised}
        raised = {job: loan for job, loan in loans.items() if job in claims and claims[job].site_factor > 0}
        before, self.borrowed = self.borrowed, plan.borrowed.raising(raised)
        if keep and any(known.owed or known.raised or known.running for known in (before, self.borrowed)):
            self._say(self._write())

    def _write(self) -> str:
        data = json.dumps(self.borrowed.as_dict(), separators=(",", ":")).encode()
        try:
            write_atomic(self._directory / FILE_NAME, data, durable=False)
        except OSError as error:
            return f"{self._directory / FILE_NAME}: {error.strerror}"
        return ""

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log.warning("debts.not_kept", sentence="A restart will forget what was borrowed.", reason=trouble)
        self._trouble = trouble

"""Writes to Slurm: many update lines on the standard input of one scontrol.

What is checked here is that nothing but a few numbers, YES and NO ever reaches scontrol. What became of a
change is told by reading back; only where Slurm names the job in an error is the outcome settled here. Errors about
single tasks of an array settle nothing: Slurm reports tasks that have finished although the pending ones were updated.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from rltuned.core.changes import MAX_FACTOR, Change, Field, Outcome, SiteFactor, WriteResult
from rltuned.core.errors import SlurmError, SlurmUnavailableError
from rltuned.slurm.commands import EXCLUSIVE_SINCE
from rltuned.slurm.controller import release as installed_release
from rltuned.slurm.process import Runner, failure, one_line

MAX_JOB_ID: Final = 2**32 - 2

_OVERSUBSCRIBE: Final = frozenset({"YES", "NO"})
"""The only values that scontrol takes (measured); it has no word for the default."""


def update_word(change: Change) -> str:
    """``Field=value`` of one change; SlurmError where that is not one that may be written."""
    job, value = change.job_id, change.after
    if type(job) is not int or not 1 <= job <= MAX_JOB_ID:
        raise SlurmError(f"refusing the job id {one_line(str(job), 30)!r}")
    match change.field:
        case Field.SITE_FACTOR:
            legal = type(value) is SiteFactor and value <= MAX_FACTOR
        case Field.OVERSUBSCRIBE:
            legal = value in _OVERSUBSCRIBE
    if not legal:
        raise SlurmError(f"job {job}: refusing {change.field}={one_line(str(value), 60)!r}")
    return f"{change.field.value}={value}"


_JOB = re.compile(r"\bfor job ([0-9]{1,10})\s*\Z")
_TASKS = re.compile(r"\s*([0-9]{1,10})(?:_\S*)?: ")
"""A complaint about tasks of an array: ``6_21-50: Invalid job id specified``."""
_VERDICTS: Final = (
    ("invalid job id specified", Outcome.GONE),
    ("already finished", Outcome.GONE),
    ("no longer pending execution", Outcome.GONE),
    ("in held state", Outcome.HELD),
    ("permission denied", Outcome.DENIED),
    ("invalid user id", Outcome.DENIED),
    ("not persistent", Outcome.DENIED),
)
"""Slurm's sentences, the same in all releases tried, and what they settle."""

_UNREACHABLE = re.compile(
    r"unable to contact|socket timed out|unexpected message received|connection refused|getaddrinfo|zero bytes",
    re.IGNORECASE,
)
"""scontrol lost slurmctld on the way ("Unexpected message received" is what it says of a refused connection)."""


class _Complaint(NamedTuple):
    outcome: Outcome | None
    message: str


def complaints(stderr: str) -> dict[int, _Complaint]:
    """What scontrol said about each job that it names, the first sentence of each. Job 0: what names no job."""
    found: dict[int, _Complaint] = {}
    for line in stderr.splitlines():
        if match := _JOB.search(line):
            found.setdefault(int(match.group(1)), _Complaint(verdict(line), one_line(line)))
        elif match := _TASKS.match(line):
            if "already finished" in line:
                continue  # of some tasks of an array; the others are updated (measured)
            found.setdefault(int(match.group(1)), _Complaint(None, one_line(line)))
        elif line.strip():
            found.setdefault(0, _Complaint(None, one_line(line)))
    return found


def verdict(message: str) -> Outcome | None:
    """What a sentence of Slurm settles; None: nothing, read back."""
    lower = message.lower()
    return next((outcome for words, outcome in _VERDICTS if words in lower), None)


def unreachable(message: str) -> bool:
    """Whether Slurm says that the client lost slurmctld on the way."""
    return _UNREACHABLE.search(message) is not None


class ScontrolWriter:
    """`SlurmWriter` on scontrol. Never holds, releases, cancels or requeues."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        """Send the changes, one line per job, at the place of its site factor (so jobs pass in order), or of the first.

        A change whose value may not be written is not sent and FAILED; the others of its job are sent. Where scontrol
        loses slurmctld (SlurmUnavailableError), any of the lines may have been applied.
        """
        words: dict[int, list[str]] = {}
        refused: dict[int, str] = {}
        for index, change in enumerate(changes):
            try:
                word = update_word(change)
            except SlurmError as error:
                refused[index] = str(error)
                continue
            others = words.get(change.job_id, [])
            if change.field is Field.SITE_FACTOR:
                words.pop(change.job_id, None)
            words[change.job_id] = [*others, word]
        said: dict[int, _Complaint] = {}
        blind = False
        if words:
            lines = "".join(f"update JobId={job} {' '.join(parts)}\n" for job, parts in words.items())
            answer = self._runner.run("update", stdin=lines)
            said = complaints(answer.stderr)
            if answer.code != 0 and unreachable(answer.stderr):
                raise SlurmUnavailableError(str(failure(answer)))
            # Since 26.05 a default job and one set to NO look the same: reading back proves nothing there, so that
            # scontrol's word counts, as long as each of its complaints names a job.
            if 0 not in said and any(change.field is Field.OVERSUBSCRIBE for change in changes):
                blind = installed_release(self._runner) >= EXCLUSIVE_SINCE
        results = []
        for index, change in enumerate(changes):
            settled = Outcome.APPLIED if blind and change.field is Field.OVERSUBSCRIBE else None
            outcome, message = said.get(change.job_id, _Complaint(settled, ""))
            if index in refused:
                outcome, message = Outcome.FAILED, refused[index]
            results.append(WriteResult(change, sent=index not in refused, outcome=outcome, message=message))
        return results

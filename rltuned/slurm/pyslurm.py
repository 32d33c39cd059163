"""The optional adapter for pyslurm 25.11 (Slurm 25.11). Imports pyslurm, and nothing heavy, when constructed.

What goes through pyslurm: updates (`Job.modify` with a `JobSubmitDescription`), so that no process is started for them.
What does not, and why:

- all readings: pyslurm tells neither site factors nor all of what squeue tells of a request, so that a request that was
  changed under a loan would pass unseen; and of the whole queue it is slower and larger than squeue's text (10,000
  jobs: 0.4 to 0.8 s and 90 MB against 0.11 s and 27 MB);
- SiteFactor=0: pyslurm drops a false value silently instead of sending it, so those jobs' updates go through scontrol.

pyslurm's calls have no time-out of their own; Slurm's MessageTimeout (10 s by default) bounds each.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Final

from rltuned.core.changes import Change, Field, Outcome, WriteResult
from rltuned.core.errors import PrerequisiteError, SlurmError, SlurmUnavailableError
from rltuned.core.installed import how_to_install
from rltuned.slurm.process import Runner, one_line
from rltuned.slurm.writer import ScontrolWriter, unreachable, update_word, verdict

NEEDED: Final = ("Job", "JobSubmitDescription", "RPCError")
"""What rltuned uses of pyslurm; the versions of before 2023 (17.11, 18.8) have none of it."""


def load_module() -> Any:
    """The installed pyslurm."""
    try:
        module = importlib.import_module("pyslurm")
    except ImportError as error:
        raise PrerequisiteError(
            f"slurm.backend is 'pyslurm', but pyslurm cannot be imported ({one_line(str(error))}); on "
            f'a host with the headers of Slurm 25.11: {how_to_install("pyslurm")}, or set slurm.backend = "cli"'
        ) from error
    missing = [name for name in NEEDED if not hasattr(module, name)]
    if missing:
        raise PrerequisiteError(
            f"pyslurm {getattr(module, '__version__', '?')} has no {', '.join(missing)}; 25.11 is needed, "
            'or set slurm.backend = "cli"'
        )
    return module


class PyslurmWriter:
    """`SlurmWriter` on `Job.modify`. Never holds, releases, cancels or requeues."""

    def __init__(self, runner: Runner) -> None:
        self._pyslurm = load_module()
        self._scontrol = ScontrolWriter(runner)

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        """Send the changes, one update per job, jobs in order of first appearance; resets last, through scontrol."""
        results: dict[int, WriteResult] = {}
        of_job: dict[int, list[int]] = {}
        for index, change in enumerate(changes):
            try:
                update_word(change)  # the same checks as for scontrol
            except SlurmError as error:
                results[index] = WriteResult(change, sent=False, outcome=Outcome.FAILED, message=str(error))
            else:
                of_job.setdefault(change.job_id, []).append(index)
        resets: list[int] = []
        for job, indices in of_job.items():
            if any(not changes[index].after for index in indices):
                resets.extend(indices)
                continue
            said = self._modify(job, [changes[index] for index in indices])
            for index in indices:
                results[index] = WriteResult(changes[index], sent=True, outcome=verdict(said), message=said)
        if resets:
            sent = self._scontrol.write([changes[index] for index in resets])
            results.update(zip(resets, sent, strict=True))
        return [results[index] for index in range(len(changes))]

    def _modify(self, job: int, changes: Sequence[Change]) -> str:
        """Update one job; what Slurm objected to, "" when nothing."""
        names = {Field.SITE_FACTOR: "site_factor", Field.OVERSUBSCRIBE: "resource_sharing"}
        values = {names[change.field]: change.after for change in changes}
        wanted = {name: value.lower() if isinstance(value, str) else value for name, value in values.items()}
        description = self._pyslurm.JobSubmitDescription(**wanted)
        try:
            self._pyslurm.Job(job).modify(description)
        except self._pyslurm.RPCError as error:
            if unreachable(str(error)):
                raise SlurmUnavailableError(f"pyslurm, job {job}: {one_line(str(error))}") from error
            return one_line(str(error))
        return ""

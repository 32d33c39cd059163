"""The optional adapter for pyslurm 25.11 (Slurm 25.11). Imports pyslurm, and nothing heavy, when constructed.

What goes through pyslurm: the status of jobs around a write (`Jobs.load`), updates (`Job.modify` with a
`JobSubmitDescription`) and `Job.release`: no process is started for them. What does not, and why:

- the snapshot: pyslurm tells neither the GPUs of a ``--gpus`` request, nor who asked for exclusive nodes, nor site
  factors, and is slower and larger than squeue's text (10,000 jobs: 0.4 to 0.8 s and 90 MB against 0.11 s and 27 MB);
- site factors: only sprio tells them;
- SiteFactor=0 and Nice=0: pyslurm drops a false value silently instead of sending it, so those jobs' updates go through
  scontrol.

pyslurm's calls have no time-out of their own; Slurm's MessageTimeout (10 s by default) bounds each.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Final

from rltuned.cluster.changes import Change, Field, JobStatus, Outcome, WriteResult
from rltuned.cluster.unread import RowKind, Skipped, Unread
from rltuned.errors import PrerequisiteError, SlurmDeniedError, SlurmError, SlurmUnavailableError
from rltuned.installed import how_to_install
from rltuned.slurm.cli import CliReader
from rltuned.slurm.process import Runner, printable
from rltuned.slurm.separated import refuse_unknown
from rltuned.slurm.sprio import Factors, multifactor
from rltuned.slurm.squeue import oversubscribe
from rltuned.slurm.status import completed
from rltuned.slurm.writer import ScontrolWriter, unreachable, update_word, verdict

NEEDED: Final = ("Job", "Jobs", "JobSubmitDescription", "RPCError")
"""What rltuned uses of pyslurm; the versions of before 2023 (17.11, 18.8) have none of it."""


def load_module() -> Any:
    """The installed pyslurm.

    Raises:
        PrerequisiteError: not installed, built for another Slurm, or too old.
    """
    try:
        module = importlib.import_module("pyslurm")
    except ImportError as error:
        raise PrerequisiteError(
            f"slurm.backend is 'pyslurm', but pyslurm cannot be imported ({printable(str(error))}); on "
            f'a host with the headers of Slurm 25.11: {how_to_install("pyslurm")}, or set slurm.backend = "cli"'
        ) from error
    missing = [name for name in NEEDED if not hasattr(module, name)]
    if missing:
        raise PrerequisiteError(
            f"pyslurm {getattr(module, '__version__', '?')} has no {', '.join(missing)}; 25.11 is needed, "
            'or set slurm.backend = "cli"'
        )
    return module


class PyslurmReader(CliReader):
    """`SlurmReader`: status through pyslurm, everything else as `CliReader` (see above)."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._pyslurm = load_module()

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """Fresh facts of these jobs (None: of every pending one); ids that Slurm no longer knows are absent."""
        try:
            jobs = self._pyslurm.Jobs.load()
        except self._pyslurm.RPCError as error:
            said = f"pyslurm: {printable(str(error))}"
            denied = verdict(said) is Outcome.DENIED
            raise (SlurmDeniedError(said) if denied else SlurmUnavailableError(said)) from error
        unread = Unread()
        factors = multifactor(self._runner, unread)
        wanted = None if job_ids is None else set(job_ids)
        found: dict[int, JobStatus] = {}
        started: dict[int, int] = {}
        reasons: list[str] = []
        for job in jobs.values():
            state = str(job.state)
            pending = state == "PENDING"
            if not pending and (wanted is None or state not in _HOLDING):
                continue  # finished jobs stay listed for MinJobAge
            try:
                number = int(job.array_id) if pending and job.array_id else int(job.id)
                if not pending and job.array_id:
                    started.setdefault(int(job.array_id), int(job.submit_time or 0))
                known = number in found and found[number].pending
                if (wanted is not None and number not in wanted) or (known and not (pending and int(job.id) == number)):
                    continue
                found[number] = _status(job, number, factors.get(number) or factors.get(int(job.id)), pending=pending)
            except (TypeError, ValueError) as error:
                ids = [one for one in (job.id, job.array_id) if isinstance(one, int) and one]
                name = str(ids[0]) if ids else ""
                reasons.append(f"pyslurm, job {name or '?'}: {printable(str(error))}")
                unread.skip(Skipped(RowKind.JOB, name, reasons[-1]), ids)
                if not ids:
                    unread.listed[RowKind.JOB] = found.keys()
        refuse_unknown(reasons, len(found) + len(reasons))
        return completed(found, wanted, started, unread)


_HOLDING: Final = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "STOPPED", "SIGNALING", "RESIZING"}
)


def _status(job: Any, number: int, factors: Factors | None, *, pending: bool) -> JobStatus:
    """Raises TypeError or ValueError where pyslurm's values are not what they should be."""
    priority = int(job.priority or 0)
    reason = str(job.state_reason or "")
    return JobStatus(
        job_id=number,
        submit_time=int(job.submit_time or 0),
        pending=pending,
        held=pending and (priority == 0 or reason.startswith("JobHeld")),
        priority=priority,
        site_factor=factors.site if factors else None,
        oversubscribe=oversubscribe(str(job.resource_sharing), None),
        reason="" if reason == "None" else reason,
    )


class PyslurmWriter:
    """`SlurmWriter` on `Job.modify` and `Job.release`. Never holds, cancels or requeues."""

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
                raise SlurmUnavailableError(f"pyslurm, job {job}: {printable(str(error))}") from error
            return printable(str(error))
        return ""

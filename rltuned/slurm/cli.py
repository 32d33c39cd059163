"""Reads Slurm through its own commands: works with every release. Imports NumPy only when a snapshot is taken."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rltuned.cluster.changes import JobStatus
from rltuned.cluster.ended import Past
from rltuned.errors import SlurmUnavailableError
from rltuned.slurm import parse
from rltuned.slurm.facts import read_facts
from rltuned.slurm.history import read_ended
from rltuned.slurm.port import ClusterFacts
from rltuned.slurm.process import Runner, printable
from rltuned.slurm.status import read_status

if TYPE_CHECKING:
    from rltuned.cluster.tables import Snapshot


class CliReader:
    """`SlurmReader` and `HistoryReader` on squeue, scontrol, sprio, sdiag, sacctmgr and sacct. Keeps nothing between calls."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def ping(self) -> None:
        """Return when slurmctld answers ``scontrol ping``.

        Raises:
            SlurmUnavailableError: it does not.
        """
        answer = self._runner.run("ping")
        if not parse.is_up(answer.stdout):
            raise SlurmUnavailableError(f"scontrol ping: {printable(answer.stdout or answer.stderr) or 'no answer'}")

    def facts(self) -> ClusterFacts:
        """Version, plugins, privileges, limiter."""
        return read_facts(self._runner)

    def snapshot(self, now: float) -> "Snapshot":
        """The whole queue and all nodes, in seven commands whatever the length of the queue."""
        from rltuned.slurm.snapshot import read_snapshot  # noqa: PLC0415 - NumPy; restore works without it

        return read_snapshot(self._runner, now)

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """Fresh facts of these jobs (None: of every pending one); ids that Slurm no longer knows are absent."""
        return read_status(self._runner, job_ids)

    def ended(self, start: float, end: float) -> Past:
        """Jobs that ended in [start, end), as sacct knows them."""
        return read_ended(self._runner, start, end)

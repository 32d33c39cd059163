"""Reader and writer that report progress after each answer of Slurm, for the watchdog."""

from collections.abc import Callable, Sequence

from rltuned.cluster.changes import Change, JobStatus, WriteResult
from rltuned.cluster.tables import Snapshot
from rltuned.daemon.liveness import Liveness
from rltuned.errors import SlurmUnavailableError
from rltuned.slurm.port import ClusterFacts, SlurmReader, SlurmWriter

OUTDATED = "the dead-man timer may have been at work since the reading"


class WatchedReader:
    """Reads Slurm. A status that took so long that the dead-man timer may have acted meanwhile is an error: what it
    shows may be the timer's doing.
    """

    def __init__(self, reader: SlurmReader, liveness: Liveness) -> None:
        self._reader, self._liveness = reader, liveness

    def ping(self) -> None:
        """See `SlurmReader`."""
        self._reader.ping()
        self._liveness.progress()

    def facts(self) -> ClusterFacts:
        """See `SlurmReader`."""
        answer = self._reader.facts()
        self._liveness.progress()
        return answer

    def snapshot(self, now: float) -> Snapshot:
        """See `SlurmReader`."""
        answer = self._reader.snapshot(now)
        self._liveness.progress()
        return answer

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """See `SlurmReader`.

        Raises:
            SlurmUnavailableError: the answer came too late.
        """
        answer = self._reader.status(job_ids)
        self._liveness.progress()
        if self._liveness.outdated:
            raise SlurmUnavailableError(f"the jobs' status came too late: {OUTDATED}")
        return answer


class WatchedWriter:
    """Writes to Slurm."""

    def __init__(self, writer: SlurmWriter, progress: Callable[[], None]) -> None:
        self._writer, self._progress = writer, progress

    def write(self, changes: Sequence[Change]) -> list[WriteResult]:
        """See `SlurmWriter`."""
        answer = self._writer.write(changes)
        self._progress()
        return answer

"""Reads Slurm through its own commands: works with every release."""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rltuned.core.changes import JobStatus
from rltuned.core.ended import Past
from rltuned.core.errors import SlurmUnavailableError
from rltuned.slurm import controller
from rltuned.slurm.facts import read_facts
from rltuned.slurm.port import ClusterFacts, Controller
from rltuned.slurm.process import Answer, Runner, one_line
from rltuned.slurm.sacct import read_ended
from rltuned.slurm.status import read_status

if TYPE_CHECKING:
    from rltuned.core.name_kinds import NameKind
    from rltuned.core.tables import Snapshot
    from rltuned.slurm.job_names import JobNames

CONNECT_SECONDS: Final = 2.0  # as long as Slurm's own clients try to connect (TCPTimeout)


class CliReader:
    """`SlurmReader` and all that a reader may offer beside it, on Slurm's own commands. Keeps nothing between calls."""

    def __init__(self, runner: Runner, user: int | None = None) -> None:
        """`user`: whose privilege `facts` tells; None: that of this process."""
        self._runner, self._user = runner, user

    def ping(self) -> None:
        """See `port.SlurmReader`."""
        answer = self._runner.run("ping")
        if not any(up for _, up in controller.controllers(answer.stdout)):
            raise _no_controller(answer)

    def controllers(self, facts: ClusterFacts) -> tuple[Controller, ...]:
        """Every controller, the primary first, and whether it is there.

        The RPC limiter turns pings away, and scontrol then calls a healthy controller DOWN (measured on 24.11). So of
        one that is said to be down the port is tried: that of a dead one takes no connection.
        """
        answer = self._runner.run("ping")  # ends with 1 when none is up
        found = controller.controllers(answer.stdout)
        if not found:
            raise _no_controller(answer)
        where = dict(zip(facts.controllers, facts.addresses, strict=False))
        return tuple(Controller(host, up, not up and _listens(where.get(host))) for host, up in found)

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:
        """See `port.SlurmReader`."""
        return read_facts(self._runner, known, self._user)

    def backfills(self) -> bool:
        """See `port.SlurmReader`."""
        return controller.backfills(self._runner.ask("diagnostics"))

    def names(self, what: str) -> frozenset[str]:
        """See `port.NamesReader`."""
        return controller.names(what, self._runner.ask(what))

    def snapshot(self, now: float) -> "Snapshot":
        """The whole queue and all nodes, in seven commands whatever the length of the queue."""
        from rltuned.slurm.snapshot import read_snapshot  # noqa: PLC0415 - restore works where NumPy is broken

        return read_snapshot(self._runner, now)

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """Fresh facts of these jobs (None: of every pending one); ids that Slurm no longer knows are absent."""
        return read_status(self._runner, job_ids)

    def ended(self, start: float, end: float) -> Past:
        """Jobs that ended in [start, end), as sacct knows them."""
        return read_ended(self._runner, start, end)

    def job_names(self, kind: "NameKind") -> "JobNames":
        """See `port.JobNamesReader`."""
        from rltuned.slurm.job_names import JobNames  # noqa: PLC0415 - most sites ask for no names

        return JobNames(self._runner, kind)


def _no_controller(answer: Answer) -> SlurmUnavailableError:
    return SlurmUnavailableError(f"scontrol ping: {one_line(answer.stdout or answer.stderr) or 'no answer'}")


def _listens(address: tuple[str, int] | None) -> bool:
    """Whether something takes connections there."""
    if address is None:
        return False
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True

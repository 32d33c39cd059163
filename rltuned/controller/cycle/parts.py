"""What a daemon is made of."""

import random
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rltuned.controller.cycle.execution import Execution
from rltuned.controller.cycle.lending import Lending
from rltuned.controller.cycle.planning import planned
from rltuned.controller.cycle.policy import Loaded, PolicyChoice
from rltuned.controller.cycle.report import Notifier, Reporting
from rltuned.controller.cycle.state import DaemonState
from rltuned.controller.cycle.undoing import Undoing
from rltuned.controller.give_back.by_daemon import MOST_NAMED, DaemonRestore, Retries
from rltuned.controller.health.heartbeat import Condition
from rltuned.controller.health.liveness import Liveness, WatchedReader
from rltuned.controller.health.primacy import Primacy, own_names
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.health.slurmctld import Slurmctld
from rltuned.controller.learnt.forecast_worker import ForecastWorker
from rltuned.controller.learnt.start_times import StartTimes
from rltuned.controller.tell.metrics import Starts
from rltuned.controller.write.journal import Journal
from rltuned.core.applied import AppliedChanges
from rltuned.core.config import Config
from rltuned.core.errors import RltunedError
from rltuned.core.tables import JobTable, Snapshot
from rltuned.decide.loans import NOTHING_TOLD, Book, Told
from rltuned.decide.plan import Plan
from rltuned.decide.rank import Policy
from rltuned.slurm.port import SlurmReader, SlurmWriter

if TYPE_CHECKING:  # see `Reporting.users`
    from rltuned.decide.user_record import UserRecords

Planner = Callable[[Snapshot, Policy, Config, AppliedChanges, Book], Plan]


@dataclass(kw_only=True)
class Parts:
    """What is given to a daemon, and what its steps share, made of that; a part that is set later does nothing."""

    runtime: Runtime
    policy: InitVar[Loaded]
    reader: SlurmReader
    writer: Callable[[], SlurmWriter] | None
    """Called when it is first needed; None is a dry run: there is nothing that could write."""
    journal: Journal
    owns: Callable[[], bool] = lambda: True
    """Whether the lock of the state directory is still this process's."""
    planner: Planner = field(default_factory=lambda: partial(planned, lambda _: None))  # without predictions
    look: Callable[[JobTable], int] = lambda _: 0  # reads what waiting jobs are called; RPCs that it took
    told: Callable[[], Told] = lambda: NOTHING_TOLD  # what accounting says of jobs that have ended
    start_times: StartTimes | None = None
    worker: ForecastWorker | None = None  # that `start_times` asks
    publish: "Callable[[UserRecords], None] | None" = None
    """Shows users the records of their own jobs; returns at once. None: nobody asked for that."""
    notifier: Notifier = field(default_factory=Notifier)
    primacy: Primacy = field(default_factory=lambda: Primacy(own_names()))
    rng: random.Random = field(default_factory=random.Random)
    """When a cycle begins, and a back-off ends."""

    def __post_init__(self, policy: Loaded) -> None:
        """Reads nothing of Slurm's yet."""
        runtime, journal, dry_run = self.runtime, self.journal, self.writer is None
        self._written: SlurmWriter | None = None
        self.liveness = Liveness(runtime, self._condition, silent=dry_run)
        self.watched = WatchedReader(self.reader, self.liveness)
        self.slurmctld = Slurmctld(runtime, journal.refuse_other, self.watched, self.primacy, self.rng)
        self.state = DaemonState(runtime, self.liveness, self.slurmctld, dry_run=dry_run)
        write, retries = None if dry_run else self.write, Retries(runtime.config.cycle.interval)
        self.restoring = DaemonRestore(runtime, journal, self.watched, write, self.slurmctld, retries)
        self.execution = Execution(runtime, self.liveness, self.restoring, self.write, self.state)
        self.reporting = Reporting(runtime, self.notifier, journal, self.state, self.slurmctld, self.publish)
        self.choice = PolicyChoice(runtime, policy)
        self.lending = Lending(runtime, journal, keep=not dry_run)
        self.undoing = Undoing(runtime, journal)
        self.starts = Starts()

    def _condition(self) -> Condition:
        """How the daemon is at this moment, for the heartbeat."""
        unreturned = tuple(self.restoring.retries.waiting[:MOST_NAMED])
        return Condition(self.state.writes, self.liveness.inactive, unreturned)

    def write(self) -> SlurmWriter:
        """The writer; RltunedError in a dry run."""
        if self._written is None:
            if self.writer is None:
                raise RltunedError("a dry run has no writer")
            self._written = self.writer()
        return self._written

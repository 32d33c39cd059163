"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times, and with rollouts."""

from dataclasses import dataclass
from typing import Protocol

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.tables import JobTable, Snapshot
from rltuned.config import Config
from rltuned.daemon.auto_policy import AUTO
from rltuned.daemon.rollout_worker import InProcessSearch, WorkerSearch, forecasts, wanted
from rltuned.decide.loans import NOTHING_TOLD, Book, Told
from rltuned.decide.plan import Plan, plan
from rltuned.estimates.predictions import EndedJobs, RunTimePredictions
from rltuned.policy import Policy


class KnownRunTimes(Protocol):
    """What finished jobs say about run times."""

    def predicted(self, jobs: JobTable) -> RunTimePredictions | None:
        """Run times of the (N,) jobs of a table; None while nothing is known of any."""

    def ended(self) -> EndedJobs | None:
        """Jobs that have ended; None where too little is known."""

    def told(self) -> Told:
        """What accounting says of single jobs."""


@dataclass(frozen=True)
class Planning:
    """Satisfies `rltuned.daemon.loop.Planner`. None: finished jobs say nothing; no rollouts are made."""

    run_times: KnownRunTimes | None = None
    search: InProcessSearch | WorkerSearch | None = None

    def ended(self) -> EndedJobs | None:
        """Jobs that have ended, as plans know them."""
        return None if self.run_times is None else self.run_times.ended()

    def told(self) -> Told:
        """What accounting says of single jobs."""
        return NOTHING_TOLD if self.run_times is None else self.run_times.told()

    def __call__(self, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges, book: Book) -> Plan:
        """One cycle's decision."""
        search, known = self.search, self.run_times
        judged = config.policy.name == AUTO
        if search is not None and not wanted(config.rollout, policy, judged=judged):
            search.rest(forecasts=forecasts(config.rollout))
            search = None
        found = None if known is None else known.predicted(applied.largest.shown_by(snapshot.jobs))
        estimates = None if found is None else found.expected
        return plan(snapshot, policy, config, applied, estimates, search, self.ended(), distribution=found, book=book)

"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times, and with rollouts."""

from importlib.util import find_spec
from typing import Protocol

from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.tables import JobTable, Snapshot
from rltuned.config import Config
from rltuned.daemon.auto_policy import AUTO
from rltuned.daemon.rollout_worker import Find, ManagedSearch, forecasts, wanted
from rltuned.decide.plan import Plan, plan
from rltuned.estimates.predictions import EndedJobs, RunTimePredictions
from rltuned.policy import Policy


class KnownRunTimes(Protocol):
    """What finished jobs say about run times."""

    def predicted(self, jobs: JobTable) -> RunTimePredictions | None:
        """Run times of the (N,) jobs of a table; None while nothing is known of any."""

    def ended(self) -> EndedJobs | None:
        """Jobs that have ended; None where too little is known."""


class NothingKnown:
    """No job has finished yet, or none is looked at. Satisfies `KnownRunTimes`."""

    def predicted(self, jobs: JobTable) -> None:
        """There are none."""

    def ended(self) -> None:
        """None is known."""


class Planning:
    """Satisfies `rltuned.daemon.loop.Planner`."""

    def __init__(
        self,
        run_times: KnownRunTimes | None = None,
        search: ManagedSearch | None = None,
        find: Find = find_spec,
    ) -> None:
        """Args:
        run_times: what finished jobs say about them; None: nothing.
        search: asked where configuration and policy want it; None: never.
        find: finds installed modules.
        """
        self._run_times: KnownRunTimes = run_times if run_times is not None else NothingKnown()
        self._search, self._find = search, find

    def ended(self) -> EndedJobs | None:
        """Jobs that have ended, as plans know them."""
        return self._run_times.ended()

    def __call__(self, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges) -> Plan:
        """One cycle's decision."""
        search = self._search
        judged = config.policy.name == AUTO
        if search is not None and not wanted(config.rollout, policy, self._find, judged=judged):
            search.rest(forecasts=forecasts(config.rollout, self._find))
            search = None
        found = self._run_times.predicted(applied.largest.shown_by(snapshot.jobs))
        estimates = None if found is None else found.expected
        return plan(snapshot, policy, config, applied, estimates, search, self._run_times.ended(), distribution=found)

"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times, and with rollouts."""

from collections.abc import Callable
from importlib.util import find_spec

from rltuned.cluster.changes import AppliedChanges
from rltuned.cluster.tables import Floats, JobTable, Snapshot
from rltuned.config import Config
from rltuned.daemon.rollout import Find, ManagedSearch, wanted
from rltuned.daemon.verdict import AUTO
from rltuned.decide.plan import Plan, plan
from rltuned.decide.predictions import EndedJobs
from rltuned.policy import Policy

Estimating = Callable[[JobTable], Floats | None]
Ending = Callable[[], EndedJobs | None]


def no_estimates(_jobs: JobTable) -> None:
    """Nothing is known of finished jobs."""


def none_ended() -> None:
    """Nor of how predictions turned out."""


class Planning:
    """Satisfies `rltuned.daemon.loop.Planner`."""

    def __init__(
        self,
        estimates: Estimating = no_estimates,
        search: ManagedSearch | None = None,
        find: Find = find_spec,
        ended: Ending = none_ended,
    ) -> None:
        """Args:
        estimates: (N,) predicted run times of the jobs of a table; None while there are none.
        search: asked where configuration and policy want it; None: never.
        find: finds installed modules.
        ended: jobs that have ended; None where too little is known.
        """
        self._estimates, self._search, self._find, self._ended = estimates, search, find, ended

    def __call__(self, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges) -> Plan:
        """One cycle's decision."""
        search = self._search
        judged = config.policy.name == AUTO
        if search is not None and not wanted(config.rollout, policy, self._find, judged=judged):
            search.rest()
            search = None
        return plan(snapshot, policy, config, applied, self._estimates(snapshot.jobs), search, self._ended())

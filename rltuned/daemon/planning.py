"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times, and with rollouts."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from rltuned.cluster.changes import AppliedChanges
from rltuned.cluster.tables import Floats, JobTable, Snapshot
from rltuned.config import Config, PlacementApply
from rltuned.daemon.rollout import Find, ManagedSearch, wanted
from rltuned.daemon.verdict import AUTO
from rltuned.decide.plan import Plan, plan
from rltuned.decide.predictions import EndedJobs
from rltuned.policy import Policy

Estimating = Callable[[JobTable], Floats | None]
Ending = Callable[[], EndedJobs | None]
ByType = Callable[[JobTable, Floats, Sequence[str]], Floats]


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
        by_type: ByType | None = None,
    ) -> None:
        """Args:
        estimates: (N,) predicted run times of the jobs of a table; None while there are none.
        search: asked where configuration and policy want it; None: never.
        find: finds installed modules.
        ended: jobs that have ended; None where too little is known.
        by_type: (N, T) of those estimates on each type of GPU.
        """
        self._estimates, self._search, self._find, self._ended = estimates, search, find, ended
        self._by_type = by_type

    def __call__(self, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges) -> Plan:
        """One cycle's decision."""
        search = self._search
        judged = config.policy.name == AUTO
        if search is not None and not wanted(config.rollout, policy, self._find, judged=judged):
            search.rest()
            search = None
        estimates, types, by_type = self._estimates(snapshot.jobs), snapshot.nodes.gpu_types, None
        steered = config.placement.apply is PlacementApply.EXCLUDE_NODES and len(types) > 1
        if steered and estimates is not None and self._by_type is not None:
            by_type = self._by_type(snapshot.jobs, estimates, types)
        return plan(snapshot, policy, config, applied, estimates, search, self._ended(), by_type)

"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times, and with the queue played ahead."""

from collections.abc import Callable
from importlib.util import find_spec

from rltuned.cluster.changes import History
from rltuned.cluster.tables import Floats, JobTable, Snapshot
from rltuned.config import Config
from rltuned.daemon.rehearse import Find, Rehearsing, wanted
from rltuned.daemon.verdict import AUTO
from rltuned.decide.plan import Plan, plan
from rltuned.decide.rehearsal import Ended
from rltuned.policy import Policy

Estimating = Callable[[JobTable], Floats | None]
Ending = Callable[[], Ended | None]


def no_estimates(_jobs: JobTable) -> None:
    """Nothing is known of finished jobs."""


def none_ended() -> None:
    """Nor of how predictions turned out."""


class Planning:
    """Satisfies `rltuned.daemon.loop.Planner`."""

    def __init__(
        self,
        estimates: Estimating = no_estimates,
        rehearsal: Rehearsing | None = None,
        find: Find = find_spec,
        ended: Ending = none_ended,
    ) -> None:
        """Args:
        estimates: (N,) predicted run times of the jobs of a table; None while there are none.
        rehearsal: asked where configuration and policy want it; None: never.
        find: finds installed modules.
        ended: jobs that have ended lately; None where too little is known.
        """
        self._estimates, self._rehearsal, self._find, self._ended = estimates, rehearsal, find, ended

    def __call__(self, snapshot: Snapshot, policy: Policy, config: Config, history: History) -> Plan:
        """One cycle's decision."""
        rehearsal = self._rehearsal
        judged = config.policy.name == AUTO
        if rehearsal is not None and not wanted(config.rehearsal, policy, self._find, judged=judged):
            rehearsal.rest()
            rehearsal = None
        return plan(snapshot, policy, config, history, self._estimates(snapshot.jobs), rehearsal, self._ended())

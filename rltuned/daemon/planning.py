"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times, and with rollouts."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from rltuned.cluster.changes import AppliedChanges
from rltuned.cluster.tables import Floats, JobTable, Snapshot
from rltuned.config import Config, PlacementApply
from rltuned.daemon.rollout import Find, ManagedSearch, forecasts, wanted
from rltuned.daemon.verdict import AUTO
from rltuned.decide.plan import Plan, plan
from rltuned.decide.predictions import EndedJobs, RunTimePredictions
from rltuned.policy import Policy


class KnownRunTimes(Protocol):
    """What finished jobs say about run times."""

    def predicted(self, jobs: JobTable) -> RunTimePredictions | None:
        """Run times of the (N,) jobs of a table; None while nothing is known of any."""

    def ended(self) -> EndedJobs | None:
        """Jobs that have ended; None where too little is known."""

    def estimates_by_type(self, jobs: JobTable, estimates: Floats, types: Sequence[str]) -> Floats:
        """(N, T) of those estimates on each type of GPU."""


class NothingKnown:
    """No job has finished yet, or none is looked at. Satisfies `KnownRunTimes`."""

    def predicted(self, jobs: JobTable) -> None:
        """There are none."""

    def ended(self) -> None:
        """None is known."""

    def estimates_by_type(self, jobs: JobTable, estimates: Floats, types: Sequence[str]) -> Floats:  # noqa: ARG002 - as above
        """The same on every type."""
        return np.repeat(estimates[:, None], len(types), axis=1)


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
        found, types, by_type = self._run_times.predicted(snapshot.jobs), snapshot.nodes.gpu_types, None
        estimates = None if found is None else found.expected
        steered = config.placement.apply is PlacementApply.EXCLUDE_NODES and len(types) > 1
        if steered and estimates is not None:
            by_type = self._run_times.estimates_by_type(snapshot.jobs, estimates, types)
        return plan(snapshot, policy, config, applied, estimates, search, self._run_times.ended(), by_type, found)

"""The daemon's planner: `rltuned.decide.plan`, with what finished jobs say about run times."""

from collections.abc import Callable

from rltuned.core.applied import AppliedChanges
from rltuned.core.config import Config
from rltuned.core.tables import JobTable, Snapshot
from rltuned.decide.expect.predictions import RunTimePredictions, RunTimes
from rltuned.decide.loans import Book
from rltuned.decide.plan import Plan, plan
from rltuned.decide.rank import Policy

Predicted = Callable[[JobTable], RunTimePredictions | None]
"""Run times of the (N,) jobs of a table; None while nothing is known of any."""


def planned(
    predicted: Predicted, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges, book: Book
) -> Plan:
    """One cycle's decision."""
    found = predicted(applied.largest.shown_by(snapshot.jobs))
    return plan(snapshot, policy, config, applied, None if found is None else RunTimes(found.expected, found), book)

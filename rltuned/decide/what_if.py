"""What if the job had asked for something else? The visible jobs observed again, each with another request.

The rows go into the decision record; `explain` puts one of them in the place of the job's own and asks the policy
again. Only requests that a user could really have made, or a predictor said, are tried, and no running job is another.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.pools import job_pools
from rltuned.cluster.tables import Bools, Floats, Snapshot
from rltuned.decide.decision import DecisionRecord, OtherRequest, Request
from rltuned.decide.plan import Plan
from rltuned.observe import WINDOW, Observation, observe, pool_stats

MEANING: Final[Mapping[Request, str]] = {
    Request.LIMIT: "with half the time limit",
    Request.GPUS: "with half the GPUs",
    Request.TIME: "if it were predicted to run half as long",
}

DIGITS: Final = 7
"""Decimals of the state that a record keeps: a score is told to six."""


def rows_of(observation: Observation, applies: Bools | None = None) -> OtherRequest:
    """What a policy ranks by; `observation_of` is its reader. `applies`: to each by default."""
    shown = len(observation)
    return OtherRequest(
        # float64 before rounding: float32 has no short decimals
        state=tuple(map(tuple, observation.state[:shown].astype(np.float64).round(DIGITS).tolist())),
        run_time=tuple(observation.run_time.tolist()),
        # JSON has no infinity
        time_limit=tuple(limit if np.isfinite(limit) else None for limit in observation.time_limit.tolist()),
        gpus=tuple(observation.gpus.tolist()),
        applies=(True,) * shown if applies is None else tuple(applies.tolist()),
    )


def other_requests(plan: Plan) -> dict[Request, OtherRequest]:
    """`rows_of` the visible jobs under each `Request`."""
    observation, snapshot = plan.observation, plan.snapshot
    rows = observation.rows
    if not len(rows):
        return {}
    base = plan.base[plan.window]
    pools = job_pools(snapshot, rows)
    stats = pool_stats(snapshot, pools, plan.estimates)
    limits = snapshot.jobs.time_limit.copy()
    limits[rows] = np.maximum(limits[rows] / 2.0, 1.0)
    shorter = replace(snapshot, jobs=replace(snapshot.jobs, time_limit=limits))
    sooner = plan.estimates.copy()
    sooner[rows] /= 2.0
    smaller, fewer = _half_gpus(snapshot, rows)
    seen: dict[Request, tuple[Observation, Bools]] = {
        Request.LIMIT: (
            observe(shorter, rows, plan.estimates, WINDOW, pools, stats, base),
            np.isfinite(observation.time_limit) & (observation.time_limit > 1.0),
        ),
        Request.GPUS: (observe(smaller, rows, plan.estimates, WINDOW, base=base), fewer),
        Request.TIME: (observe(snapshot, rows, sooner, WINDOW, pools, stats, base), plan.predicted),
    }
    return {request: rows_of(other, applies) for request, (other, applies) in seen.items() if applies.any()}


def _half_gpus(snapshot: Snapshot, rows: npt.NDArray[np.intp]) -> tuple[Snapshot, Bools]:
    """The snapshot with half the request of each job in `rows`, and for which of them that can be asked for."""
    jobs = snapshot.jobs
    by_node = (jobs.nodes[rows] > 1) & (jobs.nodes[rows] % 2 == 0)
    within = (jobs.nodes[rows] <= 1) & (jobs.gpus[rows] > 1)
    fewer = (by_node & (jobs.gpus[rows] > 1)) | within
    changed: dict[str, Any] = {}
    for name, these in {
        "gpus": fewer,
        "cpus": fewer,
        "mem": fewer,
        "nodes": fewer & by_node,
        "gpus_per_node": fewer & within,
    }.items():
        column = getattr(jobs, name).copy()
        half = column[rows] / 2.0
        column[rows] = np.where(these, half if name == "mem" else np.ceil(half), column[rows])
        changed[name] = column
    return replace(snapshot, jobs=replace(jobs, **changed)), fewer


def observation_of(record: DecisionRecord) -> Observation:
    """What the policy saw. The critic's view, which only training uses, is empty; `rows` counts the visible jobs."""
    window, shown = record.window, len(record.window)
    state = np.zeros((WINDOW, len(record.columns)), dtype=np.float32)
    mask = np.zeros(WINDOW, dtype=np.bool_)
    mask[:shown] = True
    if shown:
        state[:shown] = window.state
    return Observation(
        state=state,
        critic=np.zeros((WINDOW, 0), dtype=np.float32),
        mask=mask,
        rows=np.arange(shown),
        columns=record.columns,
        features=np.asarray(window.values, dtype=np.float32).reshape(shown, len(record.features)),
        run_time=_floats(window.run_time),
        time_limit=_floats([np.inf if limit is None else limit for limit in window.time_limit]),
        gpus=_floats(window.gpus),
        wait=_floats(window.wait),
        submit=_floats(window.submit),
        priority=_floats(window.priority),
    )


def with_request(observation: Observation, other: OtherRequest, row: int) -> Observation:
    """The observation with the row of one job taken from another request."""
    state = observation.state.copy()
    state[row] = other.state[row]
    columns = {name: getattr(observation, name).copy() for name in ("run_time", "time_limit", "gpus")}
    for name, values in columns.items():
        value = getattr(other, name)[row]
        values[row] = np.inf if value is None else value
    return replace(observation, state=state, **columns)


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)

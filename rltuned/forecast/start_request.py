"""What a forecast of start times is asked after a decision: the queue in the order that is in force from then on."""

from typing import Final

import numpy as np

from rltuned.decide.plan import Plan
from rltuned.decide.rollout import uncertain_run_times
from rltuned.decide.scope import Veto
from rltuned.estimates.predictions import EndedJobs
from rltuned.forecast.start_forecast import Probe, StartRequest
from rltuned.forecast.submissions import Submissions
from rltuned.policy.actor import on_means
from rltuned.policy.protocol import Policy

_NOT_FOR_ROOM: Final = frozenset(
    {
        *(Veto.UNREADABLE, Veto.HELD, Veto.DEPENDENCY, Veto.NOT_ELIGIBLE, Veto.HETEROGENEOUS),
        *(Veto.RESERVATION, Veto.NEVER_RUNS, Veto.BLOCKED),
    }
)
"""Of jobs that wait for something else than their turn and free nodes: no simulation of the nodes says when they start.
"""


def start_request(
    plan: Plan,
    policy: Policy,
    ended: EndedJobs | None,
    *,
    moves: bool,
    submissions: Submissions | None = None,
    probes: tuple[Probe, ...] = (),
) -> StartRequest:
    """The request after a plan, which `policy` made. `ended`: None: not known. `moves`: the plan is written to Slurm;
    else Slurm's own order is in force.
    """
    jobs, scope = plan.snapshot.jobs, plan.scope
    codes = np.array([veto in _NOT_FOR_ROOM for veto in Veto] + [False])
    waits = ~codes[scope.veto]
    priority = jobs.priority[scope.rows].copy()
    priority[plan.managed.at] = plan.target if moves else plan.base
    order = np.lexsort((jobs.job_id[scope.rows], -priority, -scope.tier))
    rows = scope.rows[order[waits[order]]]
    policy = policy if plan.distribution is None else on_means(policy)
    run_times, spread = uncertain_run_times(plan.snapshot, policy, plan.estimates, ended)
    return StartRequest(plan.snapshot, rows, run_times, spread, submissions, probes)

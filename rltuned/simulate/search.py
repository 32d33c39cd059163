"""The search for a better order of the queue, by rollouts (docs/rollout.md; decision 0096).

A rollout policy: the queue is simulated in the policy's own order, then with each of its first `candidates` jobs moved
first and moved last. The best candidate wins, and one job is moved. Each rollout starts from the cluster as it was
read, runs jobs for their expected run times (or, where those are uncertain, for several samples), and backfills by
their time limits as Slurm does. Only a short queue gets arrivals: a long one is itself a sample of the jobs that will
come.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from rltuned.cluster.shape import parse_shape
from rltuned.cluster.tables import Rows
from rltuned.decide.rollout import MoveTo, RolloutRequest, RolloutResult
from rltuned.decide.scope import priority_tiers
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.initial_state import initial_state
from rltuned.simulate.rankers import RuleRanker, compile_kernel
from rltuned.simulate.scenarios import (
    Cost,
    Rollouts,
    expected_scenario,
    sampled_scenarios,
    size,
    with_arrivals,
)
from rltuned.simulate.values import Backfill, Estimates, SimulationSettings
from rltuned.workload.jobs import Source, workload

_SLURM: Final = SimulationSettings()
_CERTAIN: Final = 0.1
"""Spread up to which expected run times are taken as they are: the estimates are true, but for rounding."""
_MARGIN_IF_CERTAIN: Final = 0.1
"""Share of the margin that is asked for where run times are certain: there is less noise."""
_SAME: Final = 1.0001
"""A slowdown that is larger by no more than this factor counts as no worse."""


def in_time() -> bool:
    """There is always time for one more rollout."""
    return True


class _Candidate(NamedTuple):
    """One job moved."""

    at: int
    """Place in the queue."""
    to: MoveTo
    cost: Cost


@dataclass(frozen=True)
class OrderSearch:
    """Satisfies `rltuned.decide.rollout.RolloutSearch`."""

    candidates: int = 8
    """Jobs at the head of the policy's order that are tried first and last."""
    min_jobs: int = 8
    """Least number of jobs in a rollout. A shorter queue is filled up with arrivals sampled from recent jobs: two
    waiting jobs may both gain when the one that takes most of the cluster for a day goes first, and all jobs after them
    lose."""
    depth: int = 64
    """Jobs at the head of that order that are simulated; the jobs behind them follow whatever is decided here."""
    slowdown: float = 0.25
    """Weight of the bounded slowdown in the cost; the wait has the rest, each as a share of the policy's own order. A
    candidate that makes either worse is never taken: short jobs do not pay for long ones."""
    margin: float = 0.01
    """Least predicted gain, as a share of the cost: less is noise, and not worth a write. Where run times are certain,
    a tenth of it."""
    samples: int = 6
    """Scenarios in which each order is simulated where run times are uncertain: an order that is good for the expected
    run times only is good by chance. 1: only the expected ones."""
    finalists: int = 4
    """Candidates that are simulated in all scenarios; the others in the first half."""
    settings: SimulationSettings = _SLURM
    """Of the simulated Slurm."""
    time_left: Callable[[], bool] = in_time
    """Asked before each candidate: False ends the search with the best so far."""

    def __call__(self, request: RolloutRequest) -> RolloutResult | None:
        """As the protocol says."""
        rollouts = self._rollouts(request)
        if rollouts is None:
            return None
        half = (rollouts.scenarios + 1) // 2
        own = rollouts.run(rollouts.own, 0, half)
        tried = [
            _Candidate(at, to, rollouts.run(rollouts.moved(at, to), 0, half))
            for at, to in rollouts.candidates(self.candidates)
            if self.time_left()
        ]
        if half < rollouts.scenarios and tried:
            own = own.plus(rollouts.run(rollouts.own, half))
            tried.sort(key=lambda candidate: self._relative(candidate.cost, own))
            tried = [
                each._replace(cost=each.cost.plus(rollouts.run(rollouts.moved(each.at, each.to), half)))
                for each in tried[: self.finalists]
                if self.time_left()
            ]
        margin = self.margin if rollouts.scenarios > 1 else _MARGIN_IF_CERTAIN * self.margin
        good = [candidate for candidate in tried if self._better(candidate.cost, own, margin)]
        cost = float(own.wait.mean())
        if not good:
            return RolloutResult(rollouts.count, cost, cost, None, None)
        best = min(good, key=lambda candidate: self._relative(candidate.cost, own))
        moved = int(rollouts.queue[best.at])
        behind = rollouts.last_of_tier(best.at) if best.to is MoveTo.LAST else None
        return RolloutResult(rollouts.count, cost, float(best.cost.wait.mean()), moved, best.to, behind)

    def _rollouts(self, request: RolloutRequest) -> Rollouts | None:
        """Of the head of the queue, without unplaceable jobs. None: fewer than two jobs are left."""
        snapshot, jobs = request.snapshot, request.snapshot.jobs
        queue = self._head(request)
        if len(queue) < 2:
            return None
        # A job that is never started where jobs may pass each other fits on no nodes that there are. Slurm reserves
        # nothing for it, and no order changes its wait: unplaceable jobs are left out of the cost.
        passing = Backfill.EASY if self.settings.backfill is Backfill.NONE else self.settings.backfill
        state = initial_state(snapshot, queue, request.run_times, self.settings)
        expected = Rollouts(queue, state, replace(self.settings, backfill=passing), [expected_scenario(state)])
        expected.run(expected.own)
        unplaceable = expected.unplaceable
        if unplaceable.any():
            queue = queue[~unplaceable]
            if len(queue) < 2:
                return None
        certain = request.spread <= _CERTAIN or self.samples == 1
        recent = request.recent
        arrivals = 0 if recent is None else min(max(self.min_jobs - len(queue), 0), len(recent))
        if certain and not arrivals and not unplaceable.any() and passing is self.settings.backfill:
            return expected  # it is what is wanted
        if arrivals or unplaceable.any():
            state = initial_state(snapshot, queue, request.run_times, self.settings, arrivals)
        if certain:
            scenarios = [expected_scenario(state)] * (self.samples if arrivals else 1)
        else:
            scenarios = sampled_scenarios(state, jobs, queue, request.run_times, request.spread, self.samples)
        if recent is not None and arrivals:
            gpu_seconds = request.run_times[queue] * size(jobs.gpus[queue], jobs.cpus[queue])
            scenarios = with_arrivals(scenarios, state, recent, gpu_seconds)
        rollouts = Rollouts(queue, state, self.settings, scenarios)
        rollouts.count = expected.count
        return rollouts

    def _head(self, request: RolloutRequest) -> Rows:
        """Rows of the first `depth` jobs, in the order of the plan: by tier, then by score. Equal scores stay in the
        order of priority.
        """
        jobs, rows = request.snapshot.jobs, request.rows
        tiers = priority_tiers(request.snapshot, rows)
        order = np.lexsort((jobs.job_id[rows], -jobs.priority[rows], -request.scores, -tiers))
        return rows[order][: self.depth]

    def _relative(self, cost: Cost, own: Cost) -> float:
        """Cost relative to that of the policy's own order, wait and slowdown weighted."""
        scenarios = len(cost.wait)  # as many as this candidate has been simulated in
        own_wait, own_slowdown = own.wait[:scenarios].sum(), own.slowdown[:scenarios].sum()
        wait = cost.wait.sum() / own_wait if own_wait > 0.0 else 1.0
        return float((1.0 - self.slowdown) * wait + self.slowdown * cost.slowdown.sum() / own_slowdown)

    def _better(self, cost: Cost, own: Cost, margin: float) -> bool:
        """Whether a candidate is worth a write."""
        worse = cost.wait.sum() > own.wait.sum() or cost.slowdown.sum() > own.slowdown.sum() * _SAME
        return not worse and self._relative(cost, own) < 1.0 - margin


@cache
def compile_rollouts() -> None:
    """Load the kernel and all that rollouts need of it, or compile it where that has never been done (about 25 s)."""
    compile_kernel()
    jobs = workload(Source("compile"), [0.0, 0.0, 1.0, 2.0], [100.0, 50.0, 50.0, 10.0], [2, 1, 1, 2])
    simulation = Simulation(parse_shape("1x2"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()))
    simulation.run(RuleRanker(by_name("fifo")), until=5.0)
    snapshot = simulation.snapshot()
    pending = snapshot.jobs.pending
    run_times = np.full(len(snapshot.jobs), 100.0)
    OrderSearch()(RolloutRequest(snapshot, pending, np.zeros(len(pending)), run_times))

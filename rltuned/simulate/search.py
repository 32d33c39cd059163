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
from typing import Final

import numpy as np

from rltuned.cluster.shape import parse_shape
from rltuned.cluster.tables import Floats, Ints, Rows
from rltuned.decide.rollout import RolloutRequest, RolloutResult
from rltuned.decide.scope import priority_tiers
from rltuned.policy.base import QueueView
from rltuned.policy.heuristics import by_name, places
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
_SEED: Final = 0
_NEAR_THE_HEAD: Final = 0.5
_SAME: Final = 1.0001
"""A slowdown that is larger by no more than this factor counts as no worse."""


def in_time() -> bool:
    """There is always time for one more rollout."""
    return True


@dataclass(frozen=True)
class OrderSearch:
    """Satisfies `rltuned.decide.rollout.RolloutSearch`."""

    orders: int = 48
    """Orders that are simulated beside the policy's own: those of a few plain rules first, then the best so far with
    one job moved."""
    min_jobs: int = 8
    """Least number of jobs in a rollout. A shorter queue is filled up with arrivals sampled from recent jobs: two
    waiting jobs may both gain when the one that takes most of the cluster for a day goes first, and all jobs after them
    lose."""
    depth: int = 64
    """Jobs at the head of that order that are simulated; the jobs behind them follow whatever is decided here."""
    slowdown: float = 0.25
    """Weight of the bounded slowdown in the cost, the wait has the rest; each as a share of the policy's own order."""
    utilisation: float = 1.0
    """Weight of the mean end of the work, likewise, beside the two."""
    margin: float = 0.01
    """Least predicted gain, as a share of the cost: less is noise, and not worth a write. Where run times are certain,
    a tenth of it."""
    samples: int = 4
    """Scenarios in which each order is simulated where run times are uncertain: an order that is good for the expected
    run times only is good by chance. 1: only the expected ones."""
    rules: tuple[str, ...] = ("sjf", "saf", "wfp3", "unicep", "fifo")
    strict: bool = False
    settings: SimulationSettings = _SLURM
    """Of the simulated Slurm."""
    time_left: Callable[[], bool] = in_time
    """Asked before each order: False ends the search with the best so far."""

    def __call__(self, request: RolloutRequest) -> RolloutResult | None:
        """As the protocol says."""
        rollouts = self._rollouts(request)
        if rollouts is None:
            return None
        half = (rollouts.scenarios + 1) // 2
        own = rollouts.run(rollouts.own)
        keys, cost = rollouts.own, own
        rng = np.random.default_rng(_SEED)
        ruled = self._ruled(request, rollouts)
        for number in range(self.orders):
            if not self.time_left():
                break
            tried = ruled[number] if number < len(ruled) else _with_one_moved(keys, rng)
            # Half of the scenarios are enough to see that most orders are no better.
            seen = rollouts.run(tried, 0, half)
            if self._relative(seen, own) >= self._relative(cost.of_first(half), own):
                continue
            if half < rollouts.scenarios:
                seen = seen.plus(rollouts.run(tried, half))
            if self.strict and (seen.wait.sum() > own.wait.sum() or seen.slowdown.sum() > own.slowdown.sum() * _SAME):
                continue
            if self._relative(seen, own) < self._relative(cost, own):
                keys, cost = tried, seen
        margin = self.margin if rollouts.scenarios > 1 else _MARGIN_IF_CERTAIN * self.margin
        own_wait = float(own.wait.mean())
        if self._relative(cost, own) >= self._relative(own, own) - margin:
            return RolloutResult(rollouts.count, own_wait, own_wait, rollouts.queue, None)
        order = rollouts.order(keys)
        return RolloutResult(rollouts.count, own_wait, float(cost.wait.mean()), rollouts.queue, order)

    def _ruled(self, request: RolloutRequest, rollouts: Rollouts) -> list[Floats]:
        """(n,) keys of each plain rule's order, on the expected run times."""
        jobs, rows = request.snapshot.jobs, rollouts.queue
        submit = np.nan_to_num(jobs.submit_time[rows], nan=request.snapshot.time)
        eligible = np.fmin(np.nan_to_num(jobs.eligible_time[rows], nan=request.snapshot.time), request.snapshot.time)
        view = QueueView(
            run_time=request.run_times[rows],
            time_limit=jobs.time_limit[rows],
            gpus=size(jobs.gpus[rows], jobs.cpus[rows]),
            wait=request.snapshot.time - eligible,
            submit=submit - submit.min(),
            priority=jobs.priority[rows].astype(np.float64),
        )
        return [places(by_name(name).key(view), view.submit).astype(np.float64) for name in self.rules]

    def _rollouts(self, request: RolloutRequest) -> Rollouts | None:
        """Of the head of the queue, without unplaceable jobs. None: fewer than two jobs are left."""
        snapshot, jobs = request.snapshot, request.snapshot.jobs
        queue, classes = self._head(request)
        if len(queue) < 2:
            return None
        # A job that is never started where jobs may pass each other fits on no nodes that there are. Slurm reserves
        # nothing for it, and no order changes its wait: unplaceable jobs are left out of the cost.
        passing = Backfill.EASY if self.settings.backfill is Backfill.NONE else self.settings.backfill
        state = initial_state(snapshot, queue, request.run_times, self.settings)
        to_pass = replace(self.settings, backfill=passing)
        expected = Rollouts(queue, classes, state, to_pass, [expected_scenario(state)])
        expected.run(expected.own)
        unplaceable = expected.unplaceable
        if unplaceable.any():
            queue, classes = queue[~unplaceable], classes[~unplaceable]
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
        rollouts = Rollouts(queue, classes, state, self.settings, scenarios)
        rollouts.count = expected.count
        return rollouts

    def _head(self, request: RolloutRequest) -> tuple[Rows, Ints]:
        """Rows and classes of the first `depth` jobs in the order of the plan: each class has the places that Slurm
        gives to its jobs, and its jobs stand there by score. Equal scores stay in the order of priority.
        """
        jobs, rows = request.snapshot.jobs, request.rows
        job_id, tiers = jobs.job_id[rows], priority_tiers(request.snapshot, rows)
        classes = tiers if request.classes is None else request.classes
        base = jobs.priority[rows] if request.base is None else request.base
        by_slurm = np.lexsort((job_id, -base, -tiers))
        order = np.empty(len(rows), dtype=np.intp)
        places = np.argsort(classes[by_slurm], kind="stable")
        order[places] = np.lexsort((job_id, -base, -request.scores, classes))
        head = order[: self.depth]
        return rows[head], classes[head]

    def _relative(self, cost: Cost, own: Cost) -> float:
        """Cost relative to that of the policy's own order, in as many scenarios as this one has been simulated in."""
        wait, slowdown, end = (
            1.0 if theirs[: len(ours)].sum() <= 0.0 else float(ours.sum() / theirs[: len(ours)].sum())
            for ours, theirs in zip(cost, own, strict=True)
        )
        return (1.0 - self.slowdown) * wait + self.slowdown * slowdown + self.utilisation * end


def _with_one_moved(keys: Floats, rng: np.random.Generator) -> Floats:
    """(n,) keys of the same order with one job moved. Jobs and places near the head are drawn more often."""
    order, n = np.argsort(keys, kind="stable"), len(keys)
    drawn = rng.random(3)
    at = int(n * (drawn[0] ** 2 if drawn[2] < _NEAR_THE_HEAD else drawn[0]))
    to = int(n * drawn[1] ** 2)
    order = np.insert(np.delete(order, at), to, order[at]) if to < n - 1 else np.append(np.delete(order, at), order[at])
    moved = np.empty(n)
    moved[order] = np.arange(n)
    return moved


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

"""The search for a better order of the queue, by rollouts (decision 0096).

The queue is simulated in the policy's own order, in the orders of a few plain rules, and then again and again in the
best order so far with one job moved. Each rollout starts from the cluster as it was read, runs jobs for their expected
run times (or, where those are uncertain, for several samples), and backfills by their time limits as Slurm does. Only a
short queue gets arrivals: a long one is itself a sample of the jobs that will come.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from rltuned.cluster.objective import DEFAULT, Objective
from rltuned.cluster.shape import parse_shape
from rltuned.cluster.tables import Floats, Ints, Rows
from rltuned.cluster.taken import taken_gpus
from rltuned.decide.managed import ranks_of
from rltuned.decide.rollout import Gain, RolloutRequest, RolloutResult
from rltuned.decide.scope import priority_tiers
from rltuned.errors import RltunedError
from rltuned.policy.heuristics import by_name, places
from rltuned.policy.protocol import QueueView
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
_END: Final = 10.0
"""So much more the mean end of the work weighs than idle GPUs, which it stands for: where these double, it moves by a
few per cent."""
_FOR_ALL: Final = 0.5
"""Weight of wait and slowdown together from which neither may become worse for the tail or for GPUs in use."""
_RULES: Final = ("sjf", "saf", "wfp3", "unicep", "fifo")
"""Whose orders are tried first."""
_CONFIRMED: Final = 3
"""Orders that are simulated again: the best one, and where that was chance, the two that were best before it."""
_SEED: Final = 0
"""Of the jobs that are moved: the same queue gets the same order."""
_NEAR_THE_HEAD: Final = 0.5
"""Share of the moved jobs that are drawn more often the nearer they are to the head; the others are drawn evenly."""


def endless() -> float:
    """There is always time for one more rollout."""
    return math.inf


@dataclass(frozen=True)
class OrderSearch:
    """Finds a better order of a queue."""

    orders: int = 48
    """Orders that are simulated beside the policy's own."""
    min_jobs: int = 8
    """Least number of jobs in a rollout; arrivals fill up a shorter queue. Two waiting jobs may both gain when the one
    that takes most of the cluster for a day goes first, and all jobs after them lose."""
    depth: int = 64
    """Jobs at the head of that order that are simulated; the jobs behind them follow whatever is decided here."""
    objective: Objective = DEFAULT
    """What the site wants. The cost of an order is J over the policy's own order."""
    margin: float = 0.01
    """Least predicted gain, as a share of the cost: less is noise, and not worth a write. Where run times are certain,
    a tenth of it."""
    samples: int = 8
    """Scenarios where run times are uncertain. The best of many orders in a few is so partly by chance: in the first
    half the search goes on, in the other what it has found must be better, too. 1: only the expected run times."""
    settings: SimulationSettings = _SLURM
    """Of the simulated Slurm."""
    over_slurm: bool = False
    """Whether the order that is chosen is compared with Slurm's own, too; for the record only."""
    seconds_left: Callable[[], float] = endless
    """Asked before each order: the search ends when what is left is just enough to confirm the best so far."""

    def __call__(self, request: RolloutRequest) -> RolloutResult | None:
        """The best order that was found. None: fewer than two jobs can be ordered.

        Raises:
            RltunedError: there is no time for the least number of rollouts that can change an order.
        """
        begun = self.seconds_left()
        rollouts = self.rollouts(request)
        if rollouts is None:
            return None
        several = rollouts.scenarios > 1
        searched = (rollouts.scenarios + 1) // 2
        confirming = rollouts.scenarios - searched
        least = 2 * (searched + confirming)
        if not self._enough_time(rollouts, begun, least):
            taken = begun - self.seconds_left()
            raise RltunedError(
                f"a rollout of this queue takes {taken:.2f} s, and a search needs {least + 1} of them: "
                f"{(least + 1) * taken:.1f} s is the least rollout.time_limit"
            )
        own = rollouts.run(rollouts.own, 0, searched)
        before, wait = tuple(rollouts.queue.tolist()), float(own.wait.mean())
        first, better = own, [(rollouts.own, own)]
        ruled, rng = self.ruled(request, rollouts), np.random.default_rng(_SEED)
        for number in range(self.orders):
            if not self._enough_time(rollouts, begun, searched + 2 * confirming):
                break
            best, cost = better[-1]
            keys = ruled[number] if number < len(ruled) else one_moved(rollouts.positions(best), rng)
            if (rollouts.order(keys) == rollouts.order(best)).all():
                continue
            tried = self._raced(rollouts, keys, cost, own)
            if tried is not None and self._relative(tried, own) < self._relative(cost, own) and self._takes(tried, own):
                better.append((keys, tried))
        margin = self.margin if several else _MARGIN_IF_CERTAIN * self.margin
        if several and len(better) > 1:
            own = rollouts.run(rollouts.own, searched)
        for keys, tried in reversed(better[1:][-_CONFIRMED:]):
            if not self._enough_time(rollouts, begun, confirming):
                break
            cost = rollouts.run(keys, searched) if several else tried
            if self._relative(cost, own) < 1.0 - margin and self._takes(cost, own):
                after = tuple(rollouts.order(keys).tolist())
                over = self._over_slurm(request, rollouts, begun, cost, searched if several else 0)
                cost_of, best_of = float(own.wait.mean()), float(cost.wait.mean())
                error = _gain(own, cost).error
                return RolloutResult(rollouts.count, cost_of, best_of, before, after, error, over)
        over = self._over_slurm(request, rollouts, begun, first, 0)
        return RolloutResult(rollouts.count, wait, wait, before, over_slurm=over)

    def _over_slurm(
        self, request: RolloutRequest, rollouts: Rollouts, begun: float, cost: Cost, first: int
    ) -> Gain | None:
        """What an order with this cost in the scenarios from `first` on gains over the order of Slurm's priorities."""
        scenarios = len(cost.wait)
        if not self.over_slurm or not self._enough_time(rollouts, begun, scenarios):
            return None
        jobs, by_row = request.snapshot.jobs, np.argsort(request.rows)
        at = by_row[np.searchsorted(request.rows[by_row], rollouts.queue)]
        base = jobs.priority[rollouts.queue] if request.base is None else request.base[at]
        keys = ranks_of(np.lexsort((jobs.job_id[rollouts.queue], -base))).astype(np.float64)
        return _gain(rollouts.run(keys, first, first + scenarios), cost)

    def _enough_time(self, rollouts: Rollouts, begun: float, more: int) -> bool:
        """Whether there is time for so many more rollouts, if they take as long as those since `begun`."""
        left = self.seconds_left()
        return left == math.inf or left >= more * (begun - left) / rollouts.count

    def ruled(self, request: RolloutRequest, rollouts: Rollouts) -> list[Floats]:
        """(n,) keys of each plain rule's order, on the expected run times."""
        jobs, rows = request.snapshot.jobs, rollouts.queue
        submit = np.nan_to_num(jobs.submit_time[rows], nan=request.snapshot.time)
        eligible = np.fmin(np.nan_to_num(jobs.eligible_time[rows], nan=request.snapshot.time), request.snapshot.time)
        view = QueueView(
            run_time=request.run_times[rows],
            time_limit=jobs.time_limit[rows],
            gpus=size(taken_gpus(request.snapshot, rows), jobs.cpus[rows]),
            wait=request.snapshot.time - eligible,
            submit=submit - submit.min(),
            priority=jobs.priority[rows].astype(np.float64),
        )
        return [places(by_name(name).key(view), view.submit).astype(np.float64) for name in _RULES]

    def rollouts(self, request: RolloutRequest) -> Rollouts | None:
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
            gpu_seconds = request.run_times[queue] * size(taken_gpus(snapshot, queue), jobs.cpus[queue])
            scenarios = with_arrivals(scenarios, state, recent, gpu_seconds)
        rollouts = Rollouts(queue, classes, state, self.settings, scenarios)
        rollouts.count = expected.count
        return rollouts

    def _head(self, request: RolloutRequest) -> tuple[Rows, Ints]:
        """Rows and tiers of the first `depth` jobs: each tier has the places that Slurm gives to its jobs, which stand
        there by score, then by priority.
        """
        jobs, rows = request.snapshot.jobs, request.rows
        job_id, tiers = jobs.job_id[rows], priority_tiers(request.snapshot, rows)
        base = jobs.priority[rows] if request.base is None else request.base
        by_slurm = np.lexsort((job_id, -base, -tiers))
        order = np.empty(len(rows), dtype=np.intp)
        order[np.argsort(tiers[by_slurm], kind="stable")] = np.lexsort((job_id, -base, -request.scores, tiers))
        head = order[: self.depth]
        return rows[head], tiers[head]

    def _raced(self, rollouts: Rollouts, keys: Floats, best: Cost, own: Cost) -> Cost | None:
        """Cost of an order in the scenarios of the search. None: in the first one it is no better than the best."""
        first = rollouts.run(keys, 0, 1)
        alone = own.part(0, 1)
        if not self._relative(first, alone) < self._relative(best.part(0, 1), alone):  # NaN: a job does not start
            return None
        return first.and_then(rollouts.run(keys, 1, len(best.wait)))

    def _takes(self, cost: Cost, own: Cost) -> bool:
        """Whether the order is no worse than the policy's own in what must not become worse."""
        worse = cost.wait.sum() > own.wait.sum() or cost.slowdown.sum() > own.slowdown.sum() * _SAME
        return not worse or self.objective.wait + self.objective.slowdown < _FOR_ALL

    def _relative(self, cost: Cost, own: Cost) -> float:
        """J over the policy's own order, in all scenarios together."""
        weights = np.array(self.objective) * (1.0, 1.0, 1.0, _END)
        over = [
            1.0 if theirs.sum() <= 0.0 else float(ours.sum() / theirs.sum())
            for ours, theirs in zip(cost, own, strict=True)
        ]
        return float(weights @ over / weights.sum())


def _gain(before: Cost, after: Cost) -> Gain:
    """Of one order over another; both in the same scenarios, so the differences are what varies."""
    saved = before.wait - after.wait
    error = saved.std(ddof=1) / math.sqrt(len(saved)) if len(saved) > 1 else 0.0
    return Gain(float(saved.mean()), float(error))


def one_moved(order: Rows, rng: np.random.Generator) -> Floats:
    """(n,) keys of the same order with one job moved. Jobs and places near the head are drawn more often."""
    n, drawn = len(order), rng.random(3)
    at = int(n * (drawn[0] ** 2 if drawn[2] < _NEAR_THE_HEAD else drawn[0]))
    to = int(n * drawn[1] ** 2)
    return ranks_of(np.insert(np.delete(order, at), to, order[at])).astype(np.float64)


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

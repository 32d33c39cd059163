"""Scenarios, and rollouts in them: a queue simulated to its end in a given order, with sampled run times and arrivals.

All orders of a search are simulated in the same scenarios, so that they differ by their order only. Samples depend on
job ids, not on a random generator: the next cycle, a minute later, samples the same for the jobs that are still there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.objective import TAIL
from rltuned.cluster.tables import Bools, Floats, Ints, JobTable, Rows
from rltuned.decide.managed import ranks_of
from rltuned.decide.rollout import RecentJobs
from rltuned.simulate import kernel as k
from rltuned.simulate.initial_state import heap_by_end, set_time_left, setup
from rltuned.simulate.loop_kernel import advance
from rltuned.simulate.values import SimulationSettings, bounded_slowdown
from rltuned.workload.simulated_estimates import uniform

_BY_KEYS: Final = k.Ranking(fixed=True, ages=False, at_once=False)
SHARED: Final = 0.5
"""Share of the variance of ln(run time / expected) that a user's jobs have in common: most of them do the same work."""
_WITNESSES: Final = 3.0
"""Running jobs of a group that count at most: what they tell is not independent."""
_POINTS: Final = 64
_GROUPS: Final = 2**50
"""Keeps the keys of groups apart from job ids."""
_RARE: Final = 1e-6
"""Chance below which a run time counts as impossible."""
FIRST_STEP: Final = 7200.0
"""Seconds after which `Rollouts.starts` first looks whether all jobs have started; then twice as much, and so on."""
_ALIGNED: Final = 64
"""Bytes: of a cache line, and more than any record of the kernel needs."""
_CHANGING: Final = (
    "jobs",
    "need",
    "given_node",
    "given",
    "heap",
    "holding",
    "nodes",
    "amount",
    "jobs_on",
    "closed",
    "clock",
    "counts",
)
"""State that a rollout changes, or that differs between scenarios. It is copied back before the next rollout."""


class Scenario(NamedTuple):
    """One set of run times and of jobs that are assumed to come (arrivals): the parts of `kernel.State` that depend on
    them.
    """

    jobs: k.Array
    heap: k.Array
    need: k.Array


class Cost(NamedTuple):
    """Of an order, all jobs together; (scenarios,) each, in the order of the weights of `Objective`."""

    wait: Floats
    """Seconds of waiting from now on."""
    slowdown: Floats
    """Bounded slowdowns."""
    tail: Floats
    """Mean wait, from submission on, of the `TAIL` of the jobs that wait longest."""
    end: Floats
    """Mean end of the work: seconds from now at which a GPU-second of work is done by, in the mean over all work. It
    stands for idle GPUs: the work is the same in each order, so the sooner it is done, the more GPUs are in use while
    jobs wait. GPUs that idle before the last job starts are no measure of that: one wide job at the end decides it."""

    def part(self, first: int, last: int) -> "Cost":
        """In the scenarios from `first` to before `last`."""
        return Cost(*(column[first:last] for column in self))

    def and_then(self, other: "Cost") -> "Cost":
        """In these scenarios and those of `other`."""
        return Cost(*map(np.concatenate, zip(self, other, strict=True)))


def expected_scenario(state: k.State) -> Scenario:
    """The initial state as it is: every job runs for its expected run time."""
    return Scenario(state.jobs, state.heap, state.need)


def sampled_scenarios(
    state: k.State,
    jobs: JobTable,
    queue: Rows,
    run_times: Floats,
    spread: float,
    samples: int,
    groups: Ints | None = None,
) -> list[Scenario]:
    """Sample run times around the expected ones. A running job takes longer than it has run so far.

    The factor is log-logistic: like log-normal, but what is left of a running job has a closed form. The samples of a
    job, and the first half of them, are spread evenly over its distribution (Latin hypercube: McKay, Beckman and
    Conover, Technometrics 1979).

    Args:
        state: of `initial_state`.
        jobs: the job table.
        queue: (n,) rows of the waiting jobs, as `state` has them.
        run_times: (N,) expected seconds of every job of the table.
        spread: σ of ln(run time / expected).
        samples: number of scenarios.
        groups: (N,) of every job of the table; jobs of one group share `SHARED` of the variance of ln, −1: with nobody.
    """
    rows, pending = np.concatenate((queue, jobs.running)), len(queue)
    known = len(rows)  # behind them are the arrivals
    expected = np.maximum(run_times[rows], 1.0)
    elapsed = np.maximum(-state.jobs["start"][:known], 0.0)
    elapsed[:pending] = 0.0
    shared = np.ones((samples, known))
    if groups is not None:
        shared = _shared(groups[rows], elapsed / expected, spread, samples)
        spread = spread * np.sqrt(1.0 - SHARED)
    scale = spread * np.sqrt(3.0) / np.pi
    scenarios = []
    for factor, quantile in zip(shared, _quantiles(jobs.job_id[rows], samples), strict=True):
        likely = expected * factor
        over = np.where(elapsed > 0.0, elapsed / likely, 0.0) ** (1.0 / scale)
        ended = over / (1.0 + over)
        ended[over == np.inf] = 1.0
        level = ended + (1.0 - ended) * quantile
        taken = likely * (level / np.maximum(1.0 - level, _RARE)) ** scale
        records = state.jobs.copy()
        records["run"][:pending] = np.clip(taken[:pending], 1.0, records["limit"][:pending])
        set_time_left(records[pending:known], np.maximum(taken - elapsed, 1.0)[pending:])
        scenarios.append(Scenario(records, heap_by_end(records), state.need))
    return scenarios


def _shared(groups: Ints, outlived: Floats, spread: float, samples: int) -> Floats:
    """(samples, n) by how much the jobs of a group all take longer than expected, in each scenario.

    A group whose running jobs have outlived what was expected of them takes longer: the factor is drawn from its
    posterior distribution, given how long each of them has run over what was expected (`outlived`; 0 while it waits).
    """
    number, of = np.unique(groups, return_inverse=True)
    points = (np.arange(_POINTS) + 0.5) / _POINTS
    at = np.sqrt(SHARED) * spread * (np.sqrt(3.0) / np.pi) * np.log(points / (1.0 - points))
    scale = np.sqrt(1.0 - SHARED) * spread * np.sqrt(3.0) / np.pi
    running = np.flatnonzero(outlived > 0.0)
    with np.errstate(over="ignore"):
        lasts = -np.log1p(np.exp(np.minimum((np.log(outlived[running])[:, None] - at) / scale, 700.0)))
    weight = np.zeros((len(number), _POINTS))
    np.add.at(weight, of[running], lasts)
    witnesses = np.bincount(of[running], minlength=len(number))
    weight *= np.minimum(1.0, _WITNESSES / np.maximum(witnesses, 1.0))[:, None]
    weight = np.cumsum(np.exp(weight - weight.max(axis=1, keepdims=True)), axis=1)
    weight /= weight[:, -1:]
    drawn = _quantiles(number.astype(np.int64) + _GROUPS, samples)
    place = (weight[None] < drawn[:, :, None]).sum(axis=2)
    found: Floats = np.where(groups < 0, 1.0, np.exp(at[np.minimum(place, _POINTS - 1)])[:, of])
    return found


def with_arrivals(
    scenarios: Sequence[Scenario], state: k.State, recent: RecentJobs, gpu_seconds: Floats
) -> list[Scenario]:
    """Add arrivals to each scenario, sampled from recent jobs by their ids.

    An arrival asks for GPUs or CPUs in all, of any nodes of its pool. It is queued behind the waiting jobs that are
    expected to need less than it.

    Args:
        scenarios: of the waiting and running jobs.
        state: of `initial_state`, with rows for the arrivals.
        recent: jobs to sample from.
        gpu_seconds: (n,) expected run time of each waiting job, times the `size` that it takes.
    """
    first = int(state.counts[k.NEXT])
    pool, alone = state.jobs["pool"][first:], state.jobs["alone"][first:] == k.WHOLE
    most = _pool_totals(state)[pool]
    # One that has its nodes to itself takes at least such a node.
    least = np.where(alone, most[:, k.GPU] / np.maximum(np.diff(state.pool_ptr)[pool], 1), 0.0)
    joined = []
    for number, scenario in enumerate(scenarios):
        chosen = np.argsort(uniform(recent.job_id ^ (number << 40), 0, 3), kind="stable")[: len(most)]
        records, need = scenario.jobs.copy(), scenario.need.copy()
        arrivals = records[first:]
        limit = recent.time_limit[chosen]
        arrivals["submit"] = np.cumsum(recent.interarrival[chosen])
        arrivals["limit"], arrivals["run"] = limit, np.minimum(recent.run_time[chosen], limit)
        taken = np.maximum(size(recent.gpus[chosen], recent.cpus[chosen]), least)
        arrivals["fixed"] = np.searchsorted(np.sort(gpu_seconds), recent.expected[chosen] * taken, side="right") - 0.5
        need[first:, k.GPU] = np.minimum(recent.gpus[chosen].astype(np.int64), most[:, k.GPU])
        need[first:, k.CPU] = np.minimum(recent.cpus[chosen].astype(np.int64), most[:, k.CPU])
        joined.append(Scenario(records, scenario.heap, need))
    return joined


def size(gpus: npt.NDArray[Any], cpus: npt.NDArray[Any]) -> Floats:
    """(n,) GPUs in all; of a job without GPUs, its CPUs."""
    return np.where(gpus > 0, gpus, np.maximum(cpus, 1)).astype(np.float64)


def _pool_totals(state: k.State) -> Ints:
    """(L, 4) what the usable nodes of each pool have in all."""
    usable, pools = state.nodes["usable"], len(state.pool_ptr) - 1
    of_pool = np.repeat(np.arange(pools), np.diff(state.pool_ptr))
    most = np.zeros((pools, k.DIMENSIONS), dtype=np.int64)
    np.add.at(most, of_pool, state.amount[k.ROOM][state.pool_nodes] * usable[state.pool_nodes, None])
    return most


def _quantiles(job_id: Ints, samples: int) -> Floats:
    """(samples, n) where in its distribution each job is, 0 to 1: each sample in another stratum, in random order."""
    half = (samples + 1) // 2
    keys = (job_id ^ np.arange(half)[:, None] * 2**40).ravel()
    order = np.argsort(uniform(keys, 0, 1).reshape(half, -1), axis=0)
    upper = uniform(keys, 0, 2).reshape(half, -1) < 0.5
    strata = np.concatenate((2 * order + upper, 2 * order + ~upper))
    return (strata[:samples] + 0.5) / (2 * half)


class Rollouts:
    """Simulates one queue to its end, in any order, in each of its scenarios."""

    def __init__(
        self,
        queue: Rows,
        classes: Ints,
        state: k.State,
        settings: SimulationSettings,
        scenarios: Sequence[Scenario],
        *,
        plan_all: bool = False,
    ) -> None:
        """Args:
        queue: (n,) rows of the snapshot's waiting jobs, as `state` has them.
        classes: (n,) of each: jobs exchange places within their class only.
        state: of `initial_state`; it is not changed.
        settings: of the simulated Slurm.
        scenarios: to simulate in.
        plan_all: whether `planned` is wanted of all jobs.
        """
        self.queue, self.scenarios, self.count = queue, len(scenarios), 0
        """`count`: rollouts made so far, one for each order and scenario."""
        self._pending = len(queue)
        self._classes, self._places = classes, np.argsort(classes, kind="stable")
        """`_places`: (n,) of each class in turn, the places in the queue that its jobs have among them."""
        first_arrival = int(state.counts[k.NEXT])
        self._counted = np.concatenate((np.arange(len(queue)), np.arange(first_arrival, len(state.jobs))))
        # All that rollouts change lies in one piece of memory, so that one copy restores it.
        self._memory, changing = _in_one_piece([getattr(state, name) for name in _CHANGING])
        plans = k.Plans(*(column.copy() for column in state.plans))
        others = {name: getattr(state, name).copy() for name in state._fields if name not in (*_CHANGING, "plans")}
        self._state = k.State(plans=plans, **others, **dict(zip(_CHANGING, changing, strict=True)))
        self._setup = setup(settings, plan_all=plan_all)
        self._initial, self._sizes = [], []
        for scenario in scenarios:
            self._state.jobs[...], self._state.heap[...], self._state.need[...] = scenario
            self._initial.append(self._memory.copy())
            jobs, need = self._state.jobs[self._counted], self._state.need[self._counted]
            nodes = np.where(jobs["form"] == k.PER_NODE, jobs["least"], 1)
            self._sizes.append(size(need[:, k.GPU] * nodes, need[:, k.CPU] * nodes))
        self.own = np.arange(len(queue), dtype=np.float64)
        """(n,) keys of the policy's own order."""

    def order(self, keys: Floats) -> Rows:
        """(n,) rows of the snapshot's waiting jobs in the queue that these keys make."""
        return self.queue[self.positions(keys)]

    def positions(self, keys: Floats) -> Rows:
        """(n,) jobs in the order of their keys within each class, smallest first, on the places that the class has."""
        order = np.empty(self._pending, dtype=np.intp)
        order[self._places] = np.lexsort((keys, self._classes))
        return order

    def run(self, keys: Floats, first: int = 0, last: int | None = None) -> Cost:
        """Simulate the queue in the order of its keys, smallest first within a class, in the scenarios from `first` to
        before `last`. The cost is NaN where a job does not start.
        """
        s = self._state
        order = self.positions(keys)
        scenarios = self._initial[first:last]
        longest = max(round(TAIL * len(self._counted)), 1)
        cost = Cost(*np.zeros((4, len(scenarios))))
        self.count += len(scenarios)
        for at, sizes in enumerate(self._sizes[first:last]):
            self._begin(first + at, order)
            advance(s, self._setup, _BY_KEYS, np.inf)
            counted = s.jobs[self._counted]
            start, submit, run = counted["start"], counted["submit"], counted["run"]
            cost.wait[at] = (start - np.maximum(submit, 0.0)).sum()
            cost.slowdown[at] = bounded_slowdown(start - submit, run).sum()
            cost.tail[at] = np.partition(start - submit, -longest)[-longest:].sum() / longest
            work = sizes * run
            cost.end[at] = ((start + run) * work).sum() / max(work.sum(), 1.0)
        return cost

    def starts(self, scenario: int, until: float, enough: Callable[[], bool] = lambda: False) -> Floats:
        """(n,) seconds from now at which each waiting job starts in the order of `queue`; infinite: not by `until`, or
        not before there was `enough`, which is asked now and then.
        """
        self._begin(scenario, np.arange(self._pending))
        return self._until_started(slice(self._pending), until, enough)

    def start_of(
        self, scenario: int, row: int, record: k.Array, need: Ints, until: float, enough: Callable[[], bool]
    ) -> float:
        """As `starts`, of one more job that is submitted now: with this record and request, in a row of its own, which
        stays empty otherwise.
        """
        self._begin(scenario, np.arange(self._pending))
        slot = self._state.jobs["slot"][row]
        self._state.jobs[row], self._state.need[row] = record, need
        self._state.jobs["slot"][row] = slot
        return float(self._until_started(slice(row, row + 1), until, enough)[0])

    def _until_started(self, rows: slice, until: float, enough: Callable[[], bool]) -> Floats:
        self.count += 1
        step = min(FIRST_STEP, until)
        while True:
            advance(self._state, self._setup, _BY_KEYS, step)
            start = np.nan_to_num(np.asarray(self._state.jobs["start"][rows], dtype=np.float64), nan=np.inf)
            if step >= until or np.isfinite(start).all() or enough():
                return start
            step = min(2.0 * step, until)

    def _begin(self, scenario: int, order: Rows) -> None:
        """The initial state of a scenario, with the queue in this order."""
        s, n = self._state, self._pending
        self._memory[...] = self._initial[scenario]
        s.jobs["key"][:n] = s.jobs["fixed"][:n] = ranks_of(order)
        s.queue[:n] = order
        s.counts[k.QUEUED], s.counts[k.REFRESHING] = n, 1  # the queue has just been ranked
        k.something_changed(s, self._setup)

    @property
    def planned(self) -> Floats:
        """(n,) start that the last pass of sched/backfill expected of each waiting job, seconds; as it was before where
        none of the passes expected any. Without `plan_all`, none is expected behind the last job that could start.
        """
        return np.asarray(self._state.jobs["planned"][: self._pending], dtype=np.float64)

    @property
    def unplaceable(self) -> Bools:
        """(n,) jobs that the last rollout has not started."""
        return np.isnan(np.asarray(self._state.jobs["start"][: self._pending], dtype=np.float64))


def _in_one_piece(columns: Sequence[k.Array]) -> tuple[npt.NDArray[np.uint8], list[k.Array]]:
    """Memory with a copy of all columns, and the copies."""
    ends = np.cumsum([-(-column.nbytes // _ALIGNED) * _ALIGNED for column in columns])
    memory = np.zeros(int(ends[-1]) + _ALIGNED, dtype=np.uint8)
    memory = memory[-memory.ctypes.data % _ALIGNED :][: int(ends[-1])]
    copies = []
    for column, start in zip(columns, [0, *ends[:-1].tolist()], strict=True):
        copies.append(memory[start : start + column.nbytes].view(column.dtype).reshape(column.shape))
        copies[-1][...] = column
    return memory, copies

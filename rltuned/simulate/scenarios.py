"""A queue simulated ahead in scenarios: sets of run times and of jobs that are assumed to come.

Samples depend on job ids, not on a random generator: the next cycle, a minute later, samples the same for the jobs that
are still there.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.draws import uniform
from rltuned.core.tables import Floats, Ints, JobTable, Rows
from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate import kernel as k
from rltuned.simulate.engine import Simulation
from rltuned.simulate.initial_state import heap_by_end, initial_state, restore, set_time_left, setup
from rltuned.simulate.loop_kernel import advance
from rltuned.simulate.rankers import RuleRanker, compile_kernel
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Estimates, SimulationSettings
from rltuned.simulate.workload.jobs import Source, workload

_BY_KEYS: Final = k.Ranking(fixed=True, ages=False, at_once=False)
SHARED: Final = 0.5
"""Share of the variance of ln(run time / expected) that a user's jobs have in common: most of them do the same work."""
_WITNESSES: Final = 3.0
"""Running jobs of a group that count at most: what they tell is not independent."""
_POINTS: Final = 64
_GROUPS: Final = 2**50  # keeps the keys of groups apart from job ids
_RARE: Final = 1e-6  # chance below which a run time counts as impossible
FIRST_STEP: Final = 7200.0
"""Seconds after which `SimulatedQueue.starts` first looks whether all jobs have started; then twice as much, …"""


class Scenario(NamedTuple):
    """One set of run times and of jobs that are assumed to come (arrivals): the parts of `kernel.State` that depend on
    them.
    """

    jobs: k.Array
    need: k.Array


def expected_scenario(state: k.State) -> Scenario:
    """The initial state as it is: every job runs for its expected run time."""
    return Scenario(state.jobs, state.need)


def sampled_scenarios(
    state: k.State,
    jobs: JobTable,
    queue: Rows,
    run_times: Floats,
    spread: float,
    samples: int,
    groups: Ints,
) -> list[Scenario]:
    """Sample run times around the expected ones. A running job takes longer than it has run so far.

    The factor is log-logistic: like log-normal, but what is left of a running job has a closed form. The samples of a
    job, and the first half of them, are spread evenly over its distribution (Latin hypercube: McKay, Beckman and
    Conover, Technometrics 1979).

    `state` is that of `initial_state` for the (n,) rows `queue`, `run_times` (N,) the expected seconds of every job of
    the table, `spread` σ of ln(run time / expected). Jobs of one of the `groups` (N,) share `SHARED` of that variance;
    −1: with nobody.
    """
    rows, pending = np.concatenate((queue, jobs.running)), len(queue)
    known = len(rows)  # behind them are the arrivals
    expected = np.maximum(run_times[rows], 1.0)
    elapsed = np.maximum(-state.jobs["start"][:known], 0.0)
    elapsed[:pending] = 0.0
    shared = _shared(groups[rows], elapsed / expected, spread, samples)
    scale = spread * np.sqrt(1.0 - SHARED) * np.sqrt(3.0) / np.pi
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
        scenarios.append(Scenario(records, state.need))
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


def size(gpus: npt.NDArray[Any], cpus: npt.NDArray[Any]) -> Floats:
    """(n,) GPUs in all; of a job without GPUs, its CPUs."""
    return np.where(gpus > 0, gpus, np.maximum(cpus, 1)).astype(np.float64)


def _quantiles(job_id: Ints, samples: int) -> Floats:
    """(samples, n) where in its distribution each job is, 0 to 1: each sample in another stratum, in random order."""
    half = (samples + 1) // 2
    keys = (job_id ^ np.arange(half)[:, None] * 2**40).ravel()
    order = np.argsort(uniform(keys, 0, 1).reshape(half, -1), axis=0)
    upper = uniform(keys, 0, 2).reshape(half, -1) < 0.5
    strata = np.concatenate((2 * order + upper, 2 * order + ~upper))
    return (strata[:samples] + 0.5) / (2 * half)


class SimulatedQueue:
    """Simulates one queue, in its order, in each of its scenarios."""

    def __init__(
        self,
        waiting: int,
        state: k.State,
        settings: SimulationSettings,
        scenarios: Sequence[Scenario],
        *,
        plan_all: bool = False,
    ) -> None:
        """So many jobs wait: the first rows of `state` (of `initial_state`; it is not changed), in the order of the
        queue. `plan_all`: whether `planned` is wanted of all of them.
        """
        self.scenarios = scenarios
        self._waiting, self._initial, self._state = waiting, state[:-1], deepcopy(state)
        self._setup = setup(settings, plan_all=plan_all)

    def starts(
        self, scenario: int, until: float, enough: Callable[[], bool] = lambda: False, *, shorter: bool = False
    ) -> Floats:
        """(n,) seconds from now at which each waiting job starts; infinite: not by `until`, or not before there was
        `enough`, which is asked now and then. `shorter`: whether `sooner` is wanted, too.
        """
        self._begin(scenario)
        self._state.jobs["sooner"] = np.inf
        return self._until_started(slice(self._waiting), until, enough, self._setup._replace(shorter=shorter))

    def start_of(
        self, scenario: int, row: int, record: k.Array, need: Ints, until: float, enough: Callable[[], bool]
    ) -> float:
        """As `starts`, of one more job that is submitted now: with this record and request, in a row of its own, which
        stays empty otherwise.
        """
        self._begin(scenario)
        slot = self._state.jobs["slot"][row]
        self._state.jobs[row], self._state.need[row] = record, need
        self._state.jobs["slot"][row] = slot
        return float(self._until_started(slice(row, row + 1), until, enough, self._setup)[0])

    def _until_started(self, rows: slice, until: float, enough: Callable[[], bool], how: k.Setup) -> Floats:
        step = min(FIRST_STEP, until)
        while True:
            advance(self._state, how, _BY_KEYS, step)
            start = np.nan_to_num(np.asarray(self._state.jobs["start"][rows], dtype=np.float64), nan=np.inf)
            if step >= until or np.isfinite(start).all() or enough():
                return start
            step = min(2.0 * step, until)

    def _begin(self, scenario: int) -> None:
        """The initial state of a scenario."""
        s, n = self._state, self._waiting
        restore(s, self._initial)
        s.jobs[...], s.need[...] = self.scenarios[scenario]
        s.heap[...] = heap_by_end(s.jobs)
        s.jobs["key"][:n] = s.jobs["fixed"][:n] = s.queue[:n] = np.arange(n)
        s.counts[k.QUEUED], s.counts[k.REFRESHING] = n, 1  # the queue has just been ranked
        k.something_changed(s, self._setup)

    @property
    def sooner(self) -> Floats:
        """(L, n) seconds from now at which each waiting job would have started in the last `starts` with each limit of
        `kernel.SHORTER` instead of its own, at its place in the queue, everything else being the same; infinite: no
        sooner than it did. EASY backfill only.
        """
        return np.asarray(self._state.jobs["sooner"][: self._waiting], dtype=np.float64).T

    @property
    def planned(self) -> Floats:
        """(n,) start that the last pass of sched/backfill expected of each waiting job, seconds; as it was before where
        none of the passes expected any. Without `plan_all`, none is expected behind the last job that could start.
        """
        return np.asarray(self._state.jobs["planned"][: self._waiting], dtype=np.float64)


@cache
def compile_scenarios() -> None:
    """Load the kernel and all that a queue simulated ahead needs of it, or compile it where that has never been done
    (about 25 s).
    """
    compile_kernel()
    jobs = workload(Source("compile"), [0.0, 0.0, 1.0, 2.0], [100.0, 50.0, 50.0, 10.0], [2, 1, 1, 2])
    simulation = Simulation(parse_shape("1x2"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()))
    simulation.run(RuleRanker(by_name("fifo")), until=5.0)
    snapshot = simulation.snapshot()
    pending = snapshot.jobs.pending
    state = initial_state(snapshot, pending, np.full(len(snapshot.jobs), 100.0))
    SimulatedQueue(len(pending), state, SimulationSettings(), [expected_scenario(state)]).starts(0, 1000.0)

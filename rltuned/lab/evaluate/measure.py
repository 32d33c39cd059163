"""Contenders on cases: the simulations, here or in other processes, and what is measured of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.errors import RltunedError
from rltuned.core.objective import Objective
from rltuned.core.tables import Floats
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, minutes, silent
from rltuned.decide.rank.heuristics import by_name
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation_settings import AGAIN, OWN
from rltuned.lab.evaluate.policies import Contender
from rltuned.lab.evaluate.slurm_conf import configured
from rltuned.lab.evaluate.window_metrics import Runs
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.rankers import RuleRanker, compile_kernel
from rltuned.simulate.run_times import HistoryPredictor, past
from rltuned.simulate.values import JobFate

Measured = Mapping[str, Floats]
"""(W,) values on the same cases by metric: of `WindowMetrics`, `killed` and `seconds`. NaN where a case has none."""
Outcomes = dict[tuple[int, int], dict[str, float]]  # what was measured, by place of contender and case

SERVED_SECONDS: Final = 0.009
PLAIN_SECONDS: Final = 0.0003
"""Seconds of a process for each simulated job, the warm start's too: of a policy that is served, of Slurm's own order.
Rough: for the sentence that is said beforehand, and nothing else. Where hundreds wait (windows of 3,000 jobs of Venus
and Graham: 0.008 and 0.012); a fifth of it on HPC2N, where few do."""


class Task(NamedTuple):
    """What a process is sent."""

    case: Case
    contenders: Mapping[tuple[int, int], Contender]  # by place, as of `Outcomes`


def measured(
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    pool: WorkerPool,
    progress: Progress = silent,
    phase: str = "simulating",
    outcomes: Outcomes | None = None,
    at_once: int = 1,
) -> list[dict[str, Floats]]:
    """`Measured` of each contender on the same cases, of which there are some, in an entered pool.

    `phase`: what `progress` is told after each simulation. `outcomes`: of before; what is new is added. `at_once`: so
    many contenders a process tries on a case that it was sent, which takes time, too. Raises RltunedError: a job that
    can run has not ended, which is a defect of the simulation.
    """
    found: Outcomes = {} if outcomes is None else outcomes
    total, tasks = len(cases) * len(contenders), []
    for column, case in enumerate(cases):
        rows = [row for row in range(len(contenders)) if (row, column) not in found]
        parts = (rows[first : first + at_once] for first in range(0, len(rows), at_once))
        tasks += [Task(case, {(row, column): contenders[row] for row in part}) for part in parts]
    progress(phase, len(found), total)
    for done in pool.as_completed(_measure_all, tasks):
        for place, values in done.items():
            found[place] = values
        progress(phase, len(found), total)
    if len(found) != total:
        raise RltunedError(f"{total} simulations were wanted, {len(found)} came back")
    return [
        {name: np.array([found[row, column][name] for column in range(len(cases))]) for name in found[row, 0]}
        for row in range(len(contenders))
    ]


def beside_slurm(cases: Sequence[Case], slurm: Contender, pool: WorkerPool) -> list[Case]:
    """The cases with the starts in Slurm's own order, over which accounts win or lose."""
    starts = pool.map(_starts, [(case, slurm) for case in cases])
    return [replace(case, slurm=start) for case, start in zip(cases, starts, strict=True)]


def over(objective: Objective, table: Measured, slurm: Measured) -> Floats:
    """(W,) J of each case, over that of Slurm's own order."""
    rows = [[{name: of[name][row] for name in of} for row in range(len(of["wait_mean"]))] for of in (table, slurm)]
    return np.array([objective.of(own, other) for own, other in zip(*rows, strict=True)])


def how_long(cases: Sequence[Case], policies: Sequence[str], workers: int) -> str:
    """How long the simulations will take, in a sentence; a rough figure, of jobs and processes alone."""
    sizes = [len(case.jobs) for case in cases]
    each = [PLAIN_SECONDS if name in {OWN, AGAIN} else SERVED_SECONDS for name in policies]
    seconds = max(sum(sizes) * sum(each) / workers, max(sizes) * max(each))  # one simulation is one process's
    count, processes = len(cases) * len(policies), "1 process" if workers == 1 else f"{workers} processes"
    return f"{count} simulations with {processes}: about {minutes(seconds)}, less where few jobs wait"


def _starts(task: tuple[Case, Contender]) -> Floats:
    compile_kernel()
    return simulate_case(*task).result().start


def _measure_all(task: Task) -> Outcomes:
    return {place: _measure(task.case, contender) for place, contender in task.contenders.items()}


def _measure(case: Case, chosen: Contender) -> dict[str, float]:
    compile_kernel()
    begun = time.perf_counter()  # the only clock here: what scheduling costs is a result, too
    simulation = simulate_case(case, chosen)
    seconds = time.perf_counter() - begun
    result = simulation.result()
    ended = np.isin(result.fate, (JobFate.COMPLETED, JobFate.TIMEOUT, JobFate.REJECTED))
    if (stuck := np.flatnonzero(case.measured & ~ended)).size:
        raise RltunedError(f"window {case.window.index}, {chosen.name}: job {case.jobs.job_id[stuck[0]]} never started")
    gpus = simulation.jobs.gpus.astype(np.float64)
    # `AGAIN` waits from another submission.
    runs = Runs(np.arange(len(gpus)), simulation.submitted, result.start, result.end, gpus)
    found = case.metrics(result.start, result.end, runs)
    values = {name: value if np.isfinite(value) else float("nan") for name, value in found.items()}
    killed = (result.fate[case.measured] == JobFate.TIMEOUT).sum()
    return {**values, "killed": float(killed), "seconds": seconds}


def simulate_case(
    case: Case, chosen: Contender, moments: Sequence[float] = (), tell: Callable[[float], None] = lambda _: None
) -> Simulation:
    """The simulation of one policy on one window, to its end. `tell` is called at each of the `moments`."""
    estimates = case.own_estimates()
    predictor: HistoryPredictor | None = None
    if case.history and chosen.name not in {OWN, AGAIN}:  # who ask for no predictions; they are most of the time
        known = past(case.before, case.before_estimates, case.since, named=case.named)
        predictor = HistoryPredictor(case.jobs, estimates.time_limit, known)
    jobs = case.submitted
    if chosen.name == AGAIN:
        later = np.random.default_rng([case.seed, case.window.index]).uniform(0.0, 60.0, len(jobs))
        jobs = replace(jobs, submit_time=np.maximum.accumulate(jobs.submit_time + later))
    shape = configured(case.shape, chosen.values)
    asked = case.asked if shape.longest is case.shape.longest else None
    simulation = Simulation(shape, jobs, estimates, chosen.settings, predictor, asked)
    ranker = chosen.ranker()
    if case.past:
        _warm_up(simulation, ranker, case)
    for moment in moments:
        simulation.run(ranker, until=moment)
        tell(moment)
    chosen.play(simulation, ranker)
    return simulation


def _warm_up(simulation: Simulation, ranker: Ranker, case: Case) -> None:
    """The past, up to the window's first submission at 0, by FIFO; then the policy takes over its queue. Who comes with
    the window has waited before.
    """
    settings = simulation.settings
    simulation.reconfigure(case.warming)
    simulation.run(RuleRanker(by_name("fifo")), until=float(np.nextafter(0.0, -1.0)))
    simulation.reconfigure(settings)
    if case.really is not None:
        simulation.waited_since(case.really)
    waiting = simulation.pending
    keys = ranker.fixed(simulation)
    simulation.set_keys(waiting, keys[waiting] if keys is not None else ranker.keys(simulation, waiting))

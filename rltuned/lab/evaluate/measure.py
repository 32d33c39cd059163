"""One policy on one window: what a worker does, here or in another process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rltuned.core.errors import RltunedError
from rltuned.decide.rank.heuristics import by_name
from rltuned.job.elastic import EVERY
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation_settings import AGAIN, OWN, EvaluationSettings, Start
from rltuned.lab.evaluate.policies import Contender, contender
from rltuned.lab.evaluate.slurm_conf import weighted
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.rankers import RuleRanker, compile_kernel
from rltuned.simulate.run_times import HistoryPredictor, past
from rltuned.simulate.values import JobFate, SimulationSettings
from rltuned.simulate.workload.simulated_estimates import EstimateKind, parse_estimates


@dataclass(frozen=True)
class Task:
    """A window, and a policy to try on it."""

    case: Case
    policy: str
    settings: EvaluationSettings


@dataclass(frozen=True)
class Outcome:
    """What came of one policy on one window; survives JSON unchanged."""

    window: int
    """`Window.index`."""
    policy: str
    metrics: dict[str, float | None]
    killed: int
    """Jobs of the window that ran into their time limit."""
    seconds: float
    """That the simulation took, ranking included."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.metrics, "killed": self.killed, "seconds": self.seconds}


def work(task: Task) -> Outcome:
    """What came of a task."""
    return evaluate_case(task.case, contender(task.policy, task.settings), task.settings)


def evaluate_case(case: Case, chosen: Contender, settings: EvaluationSettings) -> Outcome:
    """One policy on one window.

    Raises:
        RltunedError: a job that can run has not ended: a defect of the simulation.
    """
    compile_kernel()
    begun = time.perf_counter()  # the only clock here: what scheduling costs is a result, too
    simulation = simulate_case(case, chosen, settings)
    seconds = time.perf_counter() - begun
    result, measured = simulation.result(), case.measured
    over = np.isin(result.fate, (JobFate.COMPLETED, JobFate.TIMEOUT, JobFate.REJECTED))
    if (measured & ~over).any():
        row = int(np.flatnonzero(measured & ~over)[0])
        raise RltunedError(f"window {case.window.index}, {chosen.name}: job {case.jobs.job_id[row]} never started")
    found = case.metrics(result.first_start, result.end, result.runs)
    if settings.weights:
        slurm = result if chosen.name == OWN else simulate_case(case, contender(OWN, settings), settings).result()
        found = replace(found, **case.against_slurm(result.start, slurm.start)._asdict())
    values = found.as_dict()
    metrics = {key: value if np.isfinite(value) else None for key, value in values.items()}
    killed = int((result.fate[measured] == JobFate.TIMEOUT).sum())
    return Outcome(case.window.index, chosen.name, metrics, killed, seconds)


def simulate_case(
    case: Case,
    chosen: Contender,
    settings: EvaluationSettings,
    moments: Sequence[float] = (),
    tell: Callable[[float], None] = lambda _: None,
) -> Simulation:
    """The simulation of one policy on one window, to its end. `tell` is called at each of the `moments`."""
    estimates = case.own_estimates()
    predictor: HistoryPredictor | None = None
    slurms = chosen.name in {OWN, AGAIN}  # who asks for no predictions; they are most of the time
    if parse_estimates(settings.estimates).kind is EstimateKind.HISTORY and not slurms:
        known = past(case.before, case.before_estimates, float(case.jobs.submit_time[0]))
        predictor = HistoryPredictor(case.jobs, estimates.time_limit, known)
    jobs = case.submitted
    if chosen.name == AGAIN:
        later = np.random.default_rng([settings.seed, case.window.index]).uniform(0.0, 60.0, len(jobs))
        jobs = replace(jobs, submit_time=np.maximum.accumulate(jobs.submit_time + later))
    shape = weighted(case.shape, chosen.values)
    simulation = Simulation(shape, jobs, estimates, chosen.settings, predictor, case.asked)
    ranker = chosen.ranker()
    if settings.start is Start.WARM and case.past:
        _warm_up(simulation, ranker, settings.simulated)
    for moment in moments:
        simulation.run(ranker, until=moment)
        tell(moment)
    while chosen.elastic and not simulation.done:
        # A job grows where nobody waits, too. The simulation itself asks a ranker only where somebody does.
        simulation.run(ranker, until=simulation.now + EVERY)
        if not len(simulation.pending):
            ranker.keys(simulation, simulation.pending)
    simulation.run(ranker)
    return simulation


def _warm_up(simulation: Simulation, ranker: Ranker, warming: SimulationSettings) -> None:
    """The past, up to the window's first submission at 0, by FIFO; then the policy takes over its queue."""
    settings = simulation.settings
    simulation.reconfigure(warming)
    simulation.run(RuleRanker(by_name("fifo")), until=float(np.nextafter(0.0, -1.0)))
    simulation.reconfigure(settings)
    waiting = simulation.pending
    keys = ranker.fixed(simulation)
    simulation.set_keys(waiting, keys[waiting] if keys is not None else ranker.keys(simulation, waiting))

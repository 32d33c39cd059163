"""What worker processes do for training: simulate windows under a policy, and measure or record them.

No TensorFlow here: a worker starts quickly and the network is run in NumPy. Everything that is sent is a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.objective import TAIL, Objective
from rltuned.core.tables import Floats, Ints, Rows, Singles
from rltuned.decide.rank.actor import MOMENT, Actor
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.policies import rule_ranker
from rltuned.lab.train.cost import FinishedJobs, advantages, cost
from rltuned.lab.train.evolution import Tried
from rltuned.lab.train.training_settings import PPOSettings
from rltuned.simulate.engine import Simulation
from rltuned.simulate.episodes import Episode, Trajectory

_MOMENTS: Final = 16
"""Decisions of a window whose moments stand for all."""

Measures = dict[str, float]
"""Metrics of a window (`rltuned.lab.evaluate.window_metrics`)."""


def episode(case: Case) -> Episode:
    """A window that can be run any number of times."""
    return Episode(case.shape, case.submitted, case.own_estimates(), asked=case.asked, predicted=case.predicted)


def finished_jobs(case: Case, run: Trajectory) -> FinishedJobs:
    """The jobs that ran."""
    ran = ~np.isnan(run.start) & ~np.isnan(run.end)
    gpus = case.jobs.gpus[ran].astype(np.float64)
    return FinishedJobs(case.jobs.submit_time[ran], run.start[ran], run.end[ran], gpus, case.capacity)


# --- queues as a policy saw them


def begins(count: Ints) -> Ints:
    """(S+1,) where each of S queues of so many rows begins, one behind the other; the last entry is their sum."""
    return np.concatenate(([0], np.cumsum(count))).astype(np.int64)


@dataclass(frozen=True)
class Steps:
    """What a network learns from: S decisions, and the R rows of their queues, one queue behind the other."""

    terms: Singles
    moment: Singles  # (S, 14)
    count: Ints  # (S,) rows of each
    picks: npt.NDArray[np.int32]  # (S, heads)
    advantage: Floats  # (S,)

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """One behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__))

    def take(self, steps: Rows) -> "Steps":
        """These decisions, in that order."""
        count = self.count[steps]
        first = np.repeat(begins(self.count)[steps] - begins(count)[:-1], count)
        rows = first + np.arange(int(count.sum()))
        return Steps(self.terms[rows], self.moment[steps], count, self.picks[steps], self.advantage[steps])


def kept(trajectory: Trajectory, advantage: Floats, most: int, rng: np.random.Generator) -> Steps:
    """Of the decisions with two jobs or more, at most so many, drawn evenly."""
    moment = trajectory.moment.astype(np.float32)
    found = Steps(trajectory.state, moment, np.diff(trajectory.ptr), trajectory.picks, advantage)
    steps = np.flatnonzero(found.count > 1)
    if len(steps) > most:
        steps = np.sort(rng.choice(steps, most, replace=False))
    return found.take(steps)


# --- tasks


def in_slurms_order(case: Case) -> Measures:
    """Metrics of a window in Slurm's own order."""
    simulation = Simulation(case.shape, case.submitted, case.own_estimates(), asked=case.asked)
    simulation.run(rule_ranker("multifactor"))
    result = simulation.result()
    return case.metrics(result.start, result.end)


def judge(case: Case, slurm: Measures, actor: Actor) -> Measures:
    """Metrics of an actor in a window, and as `objective` its J by what it is to want; no sampling."""
    return _judged(case, slurm, actor, episode(case).run(actor, temperature=0.0, heads=0, seed=0, record=False))


def _judged(case: Case, slurm: Measures, actor: Actor, run: Trajectory) -> Measures:
    own = case.metrics(run.start, run.end)
    return {**own, "objective": actor.objective.of(own, slurm)}


def judge_pairs(
    case: Case, slurm: Measures, actor: Actor, moved: Floats, price: float
) -> tuple[Tried, list[float], list[float]] | None:
    """What a window says of the actor with its coefficients moved by each of (pairs, 8) forth and back.

    Besides, J and makespan over Slurm's own of each run. A cost is J and `price` times the second. None: there is
    nothing to choose, or no number.
    """
    window, found = episode(case), np.zeros((0, len(MOMENT)))
    metrics: list[Measures] = []
    for by in (sign * each for each in moved for sign in (1.0, -1.0)):
        constant = (actor.weights["constant"] + by).astype(np.float32)
        tried = replace(actor, weights={**actor.weights, "constant": constant})
        first = not metrics
        run = window.run(tried, temperature=0.0, heads=0, seed=0, record=first)
        if first:
            found = _moments(run)
            if not len(found):
                return None
        metrics.append(_judged(case, slurm, actor, run))
    objective = np.array([one["objective"] for one in metrics])
    makespan = np.array([one["makespan"] for one in metrics]) / max(slurm["makespan"], 1.0)
    if not np.isfinite([objective, makespan]).all():
        return None
    cost = (objective + price * makespan).reshape(-1, 2)
    return Tried(found, cost), objective.tolist(), makespan.tolist()


def moments(case: Case, actor: Actor) -> Floats:
    """(s, 14) of some decisions of an actor in a window."""
    return _moments(episode(case).run(actor, temperature=0.0, heads=0, seed=0, record=True))


def _moments(run: Trajectory) -> Floats:
    choices = run.moment[np.diff(run.ptr) > 1]
    return np.asarray(choices[np.linspace(0, len(choices) - 1, min(len(choices), _MOMENTS)).astype(np.intp)])


def longest_queue(case: Case, actor: Actor, most: int) -> tuple[Singles, Floats] | None:
    """Terms of the first `most` jobs of the longest queue of a window, and its moment; None: never two jobs."""
    run = episode(case).run(actor, temperature=0.0, heads=0, seed=0, record=True)
    count = np.diff(run.ptr)
    if not len(count) or count.max() < 2:
        return None
    step = int(count.argmax())
    return run.state[run.ptr[step] : run.ptr[step + 1]][:most], run.moment[step]


def sample_trajectories(
    case: Case, slurm: Measures, actor: Actor, rule: Actor, settings: PPOSettings, seed: int
) -> tuple[Steps, list[float]] | str:
    """Simulate one window several times, each with another seed.

    Gives what can be learned from it and what each trajectory costs over the rule, in units of Slurm's own J; or why
    there is nothing. The rule runs in the same scenario: what is learned from is a paired difference.
    """
    window = episode(case)
    rule = replace(rule, objective=actor.objective)
    plain = window.run(rule, temperature=0.0, heads=0, seed=0, record=False)
    base = finished_jobs(case, plain)
    if len(base.submit) < 2:
        return "empty"
    trajectories = [
        window.run(actor, temperature=settings.temperature, heads=settings.heads, seed=seed + number, record=True)
        for number in range(settings.trajectories)
    ]
    times = [each.time for each in trajectories]
    if any(len(each) == 0 for each in times):
        return "no decision"
    tail = max(float(np.quantile(base.wait, 1.0 - TAIL)), 1.0)
    reference = cost(actor.objective, base, slurm, tail)
    costs = [cost(actor.objective, finished_jobs(case, each), slurm, tail) for each in trajectories]
    found = advantages(costs, reference, times)
    totals = [one.total - reference.total for one in costs]
    if not all(np.isfinite(each).all() for each in (*found, np.array(totals))):
        return "reward is no number"
    rng = np.random.default_rng([seed, 2])
    both = zip(trajectories, found, strict=True)
    steps = Steps.joined([kept(each, advantage, settings.most_steps, rng) for each, advantage in both])
    if not len(steps.count):
        return "never two jobs to choose from"
    return steps, totals


def drawn_objective(rng: np.random.Generator) -> Objective:
    """Weights of an objective: evenly among all that sum up to 1."""
    return Objective(*rng.dirichlet(np.ones(len(Objective._fields))).tolist())

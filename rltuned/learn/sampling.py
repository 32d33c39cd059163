"""What worker processes do for training: simulate windows under a policy, and measure or record them.

No TensorFlow here: a worker starts quickly and the network is run in NumPy. Everything that is sent is a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Ints, Rows, Singles
from rltuned.evaluate.case import Case
from rltuned.evaluate.policies import rule_ranker
from rltuned.learn.advantages import leave_one_out
from rltuned.learn.cost import FinishedJobs, Objective, cost
from rltuned.learn.ragged import flat_rows
from rltuned.policy.actor import Actor
from rltuned.simulate.engine import Simulation
from rltuned.simulate.episodes import Episode, Trajectory


def episode(case: Case) -> Episode:
    """A window that can be run any number of times."""
    return Episode(case.shape, case.submitted, case.own_estimates(), asked=case.asked)


def by_rule(case: Case, name: str) -> tuple[Floats, Floats]:
    """Start and end of each job under a plain rule."""
    simulation = Simulation(case.shape, case.submitted, case.own_estimates(), asked=case.asked)
    simulation.run(rule_ranker(name))
    result = simulation.result()
    return result.start, result.end


def finished_jobs(case: Case, start: Floats, end: Floats) -> FinishedJobs:
    """The jobs that ran."""
    ran = ~np.isnan(start) & ~np.isnan(end)
    return FinishedJobs(case.jobs.submit_time[ran], start[ran], end[ran])


# --- trajectories to learn from


@dataclass(frozen=True)
class SamplingTask:
    """One window, to be simulated K times."""

    case: Case
    actor: Actor
    base: str
    objective: Objective
    temperature: float
    heads: int
    count: int
    seed: int
    most_steps: int
    """Steps of each trajectory that are kept, drawn evenly."""


@dataclass(frozen=True)
class Steps:
    """What a network learns from: S decisions, R rows."""

    state: Singles
    base: Singles
    count: Ints
    """(S,) rows of each."""
    picks: npt.NDArray[np.int32]
    """(S, heads)"""
    advantage: Floats
    """(S,)"""

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """One behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__))


@dataclass(frozen=True)
class Sampled:
    """The result of a `SamplingTask`."""

    steps: Steps | None
    """None: there was nothing to learn (`skipped` says why)."""
    skipped: str = ""
    ratios: tuple[float, ...] = ()
    """The objective of each trajectory in units of the base rule's."""


def sample_trajectories(task: SamplingTask) -> Sampled:
    """Simulate one window several times, each with another seed."""
    base = finished_jobs(task.case, *by_rule(task.case, task.base))
    if len(base.submit) < 2:
        return Sampled(None, "empty")
    window = episode(task.case)
    trajectories = [
        window.run(task.actor, temperature=task.temperature, heads=task.heads, seed=task.seed + number, record=True)
        for number in range(task.count)
    ]
    finished = [finished_jobs(task.case, each.start, each.end) for each in trajectories]
    times = [each.time for each in trajectories]
    if any(len(each) == 0 for each in times):
        return Sampled(None, "no decision")
    totals = [cost(task.objective, one, base).total for one in finished]
    advantages = leave_one_out(task.objective, finished, base, times)
    if not all(np.isfinite(each).all() for each in (*advantages, np.array(totals))):
        return Sampled(None, "reward is no number")
    rng = np.random.default_rng([task.seed, 2])
    parts = [
        _kept_steps(each, advantage, task.most_steps, rng)
        for each, advantage in zip(trajectories, advantages, strict=True)
    ]
    steps = Steps.joined(parts)
    if not len(steps.count):
        return Sampled(None, "never two jobs to choose from")
    reference = cost(task.objective, base, base).total
    return Sampled(steps, ratios=tuple(1.0 + total - reference for total in totals))


def _kept_steps(trajectory: Trajectory, advantage: Floats, most: int, rng: np.random.Generator) -> Steps:
    count, steps, rows = _draw_steps(trajectory, most, rng)
    return Steps(
        state=trajectory.state[rows],
        base=trajectory.base[rows],
        count=count,
        picks=trajectory.picks[steps],
        advantage=advantage[steps],
    )


def _draw_steps(trajectory: Trajectory, most: int, rng: np.random.Generator) -> tuple[Ints, Rows, Ints]:
    """Of steps with two jobs or more, at most so many: rows of each, the steps, and their rows one behind the other."""
    count = np.diff(trajectory.ptr)
    steps = np.flatnonzero(count > 1)
    if len(steps) > most:
        steps = np.sort(rng.choice(steps, most, replace=False))
    return count[steps], steps, flat_rows(trajectory.ptr, steps)


# --- measuring and recording


@dataclass(frozen=True)
class MeasureTask:
    """A window, and the policies to measure on it, without sampling: plain rules by name, or an actor."""

    case: Case
    rules: tuple[str, ...] = ()
    actor: Actor | None = None


def measure_policies(task: MeasureTask) -> dict[str, dict[str, float]]:
    """Metrics of each policy, as `rltuned.evaluate` measures; the actor's under "actor"."""
    found = {name: task.case.metrics(*by_rule(task.case, name)).as_dict() for name in task.rules}
    if task.actor is not None:
        trajectory = episode(task.case).run(task.actor, temperature=0.0, heads=0, seed=0, record=False)
        found["actor"] = task.case.metrics(trajectory.start, trajectory.end).as_dict()
    return found


@dataclass(frozen=True)
class RecordTask:
    """A window whose queues are recorded."""

    case: Case
    actor: Actor
    temperature: float
    seed: int
    most_steps: int


@dataclass(frozen=True)
class RecordedQueues:
    """Queues as a policy saw them. S queues, R rows."""

    state: Singles
    base: Singles
    count: Ints


def record_queues(task: RecordTask) -> RecordedQueues:
    """Simulate one window and keep some of its queues."""
    trajectory = episode(task.case).run(task.actor, temperature=task.temperature, heads=4, seed=task.seed, record=True)
    count, _, rows = _draw_steps(trajectory, task.most_steps, np.random.default_rng([task.seed, 3]))
    return RecordedQueues(trajectory.state[rows], trajectory.base[rows], count)

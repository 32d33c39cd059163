"""What worker processes do for training: simulate windows under a policy, and measure or record them.

No TensorFlow here: a worker starts quickly and the network is run in NumPy. Everything that is sent is a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Ints, Rows, Singles
from rltuned.evaluate.case import Case
from rltuned.evaluate.policies import rule_ranker
from rltuned.learn.cost import FinishedJobs, cost, leave_one_out
from rltuned.learn.training_settings import PPOSettings
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


# --- queues as a policy saw them


def begins(count: Ints) -> Ints:
    """(S+1,) where each of S queues of so many rows begins, one behind the other; the last entry is their sum."""
    return np.concatenate(([0], np.cumsum(count))).astype(np.int64)


@dataclass(frozen=True)
class Steps:
    """What a network learns from: S decisions, and the R rows of their queues, one queue behind the other."""

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

    @cached_property
    def context(self) -> Singles:
        """(S, inputs) mean of the rows of each queue, none of which is empty: what a network may see of the others."""
        totals = np.add.reduceat(self.state, begins(self.count)[:-1], axis=0)
        return np.asarray(totals / self.count[:, None], dtype=np.float32)

    def take(self, steps: Rows) -> "Steps":
        """These decisions, in that order."""
        count = self.count[steps]
        first = np.repeat(begins(self.count)[steps] - begins(count)[:-1], count)
        rows = first + np.arange(int(count.sum()))
        return Steps(self.state[rows], self.base[rows], count, self.picks[steps], self.advantage[steps])


def _kept(trajectory: Trajectory, advantage: Floats, most: int, rng: np.random.Generator) -> Steps:
    """Of the decisions with two jobs or more, at most so many, drawn evenly."""
    found = Steps(trajectory.state, trajectory.base, np.diff(trajectory.ptr), trajectory.picks, advantage)
    steps = np.flatnonzero(found.count > 1)
    if len(steps) > most:
        steps = np.sort(rng.choice(steps, most, replace=False))
    return found.take(steps)


class RecordTask(NamedTuple):
    """A window whose queues are recorded."""

    case: Case
    actor: Actor
    temperature: float
    seed: int
    most_steps: int


def record_queues(task: RecordTask) -> Steps:
    """Simulate one window and keep some of its queues; their advantages say nothing."""
    trajectory = episode(task.case).run(task.actor, temperature=task.temperature, heads=4, seed=task.seed, record=True)
    rng = np.random.default_rng([task.seed, 3])
    return _kept(trajectory, np.zeros(len(trajectory)), task.most_steps, rng)


# --- trajectories to learn from


class SamplingTask(NamedTuple):
    """One window, to be simulated several times."""

    case: Case
    actor: Actor
    base: str
    settings: PPOSettings
    seed: int


class Sampled(NamedTuple):
    """The result of a `SamplingTask`."""

    steps: Steps | None
    """None: there was nothing to learn (`skipped` says why)."""
    skipped: str = ""
    ratios: tuple[float, ...] = ()
    """The objective of each trajectory in units of the base rule's."""


def sample_trajectories(task: SamplingTask) -> Sampled:
    """Simulate one window several times, each with another seed."""
    case, asked = task.case, task.settings
    base = finished_jobs(case, *by_rule(case, task.base))
    if len(base.submit) < 2:
        return Sampled(None, "empty")
    window = episode(case)
    trajectories = [
        window.run(task.actor, temperature=asked.temperature, heads=asked.heads, seed=task.seed + number, record=True)
        for number in range(asked.trajectories)
    ]
    finished = [finished_jobs(case, each.start, each.end) for each in trajectories]
    times = [each.time for each in trajectories]
    if any(len(each) == 0 for each in times):
        return Sampled(None, "no decision")
    totals = [cost(asked.objective, one, base).total for one in finished]
    advantages = leave_one_out(asked.objective, finished, base, times)
    if not all(np.isfinite(each).all() for each in (*advantages, np.array(totals))):
        return Sampled(None, "reward is no number")
    rng = np.random.default_rng([task.seed, 2])
    both = zip(trajectories, advantages, strict=True)
    steps = Steps.joined([_kept(each, advantage, asked.most_steps, rng) for each, advantage in both])
    if not len(steps.count):
        return Sampled(None, "never two jobs to choose from")
    reference = cost(asked.objective, base, base).total
    return Sampled(steps, ratios=tuple(1.0 + total - reference for total in totals))


# --- measuring


class MeasureTask(NamedTuple):
    """A window, and the policies to measure on it, without sampling: plain rules by name, or actors."""

    case: Case
    policies: Sequence[str | Actor]


def measure_policies(task: MeasureTask) -> list[dict[str, float]]:
    """Metrics of each policy, as `rltuned.evaluate` measures."""
    found = []
    for policy in task.policies:
        if isinstance(policy, str):
            times = by_rule(task.case, policy)
        else:
            trajectory = episode(task.case).run(policy, temperature=0.0, heads=0, seed=0, record=False)
            times = trajectory.start, trajectory.end
        found.append(task.case.metrics(*times).as_dict())
    return found

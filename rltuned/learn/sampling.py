"""What worker processes do for training: simulate windows under a policy, and measure or record them.

No TensorFlow here: a worker starts quickly and the network is run in NumPy. Everything that is sent is a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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


# --- tasks


def record_queues(case: Case, actor: Actor, temperature: float, seed: int, most_steps: int) -> Steps:
    """Simulate one window and keep some of its queues; their advantages say nothing."""
    trajectory = episode(case).run(actor, temperature=temperature, heads=4, seed=seed, record=True)
    return _kept(trajectory, np.zeros(len(trajectory)), most_steps, np.random.default_rng([seed, 3]))


def sample_trajectories(
    case: Case, actor: Actor, rule: str, settings: PPOSettings, seed: int
) -> tuple[Steps, list[float]] | str:
    """Simulate one window several times, each with another seed.

    Gives what can be learned from it and the objective of each trajectory in units of the rule's; or why there is
    nothing.
    """
    base = finished_jobs(case, *by_rule(case, rule))
    if len(base.submit) < 2:
        return "empty"
    window = episode(case)
    trajectories = [
        window.run(actor, temperature=settings.temperature, heads=settings.heads, seed=seed + number, record=True)
        for number in range(settings.trajectories)
    ]
    finished = [finished_jobs(case, each.start, each.end) for each in trajectories]
    times = [each.time for each in trajectories]
    if any(len(each) == 0 for each in times):
        return "no decision"
    totals = [cost(settings.objective, one, base).total for one in finished]
    advantages = leave_one_out(settings.objective, finished, base, times)
    if not all(np.isfinite(each).all() for each in (*advantages, np.array(totals))):
        return "reward is no number"
    rng = np.random.default_rng([seed, 2])
    both = zip(trajectories, advantages, strict=True)
    steps = Steps.joined([_kept(each, advantage, settings.most_steps, rng) for each, advantage in both])
    if not len(steps.count):
        return "never two jobs to choose from"
    reference = cost(settings.objective, base, base).total
    return steps, [1.0 + total - reference for total in totals]


def measure_policies(case: Case, policies: Sequence[str | Actor]) -> list[dict[str, float]]:
    """Metrics of each policy, a rule by name or an actor, in a window; as `rltuned.evaluate` measures: no sampling."""
    found = []
    for policy in policies:
        if isinstance(policy, str):
            times = by_rule(case, policy)
        else:
            trajectory = episode(case).run(policy, temperature=0.0, heads=0, seed=0, record=False)
            times = trajectory.start, trajectory.end
        found.append(case.metrics(*times).as_dict())
    return found

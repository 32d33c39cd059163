"""Small windows and settings for the tests of training."""

from collections.abc import Callable

import numpy as np
from unit.evaluate.small import jobs_of

from rltuned.decide.rank.actor import Actor
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.windows import Window
from rltuned.lab.train.curriculum import CurriculumSettings
from rltuned.lab.train.evolution import EvolutionSettings
from rltuned.lab.train.sampling import in_slurms_order, judge
from rltuned.lab.train.training_settings import PPOSettings, TrainSettings
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.simulated_estimates import estimate

SMALL = TrainSettings(
    name="small",
    steps=(4, 4),
    check=3,
    estimates="noisy:1",
    validation_window=20,
    validation_windows=3,
    curriculum=CurriculumSettings(window=(15, 20), candidates=6, estimates="noisy:1"),
    evolution=EvolutionSettings(pairs=2, windows=3),
    ppo=PPOSettings(windows=2, trajectories=2, most_steps=8, minibatch=16, heads=3),
)


def case_of(jobs: Workload, cluster: str = "2x4", estimates: str = "true") -> Case:
    made, none = estimate(jobs, estimates, 1), jobs.take(slice(0))
    return Case(Window(0, 0, len(jobs)), parse_shape(cluster), jobs, 0, made, none, estimate(none, "true", 1))


def waiting_at_once(seed: int) -> Case:
    """One GPU, and jobs of different lengths that all come at the same time: the best order is the shortest first."""
    lengths = np.random.default_rng(seed).permutation(np.geomspace(60.0, 36_000.0, 12).round())
    return case_of(jobs_of(np.zeros(12), lengths, np.ones(12, dtype=int)), "1x1")


def starving(seed: int) -> Case:
    """One GPU, some long jobs, and behind them short ones that would go first for ever: whoever counts waiting enough
    lets the long ones in, and the longest waits are less than half as long.
    """
    rng = np.random.default_rng(seed)
    submit = np.concatenate((np.zeros(12), np.sort(rng.uniform(0.0, 9_500.0, 90))))
    lengths = np.concatenate((rng.uniform(150.0, 200.0, 12), rng.uniform(80.0, 120.0, 90)))
    return case_of(jobs_of(submit, lengths.round(), np.ones(102, dtype=int)), "1x1")


def worth(actor: Actor, metric: str, window: Callable[[int], Case]) -> float:
    """A metric of an actor on windows that it has not learned from."""
    cases = [window(seed) for seed in range(1000, 1006)]
    return float(np.mean([judge(case, in_slurms_order(case), actor)[metric] for case in cases]))

"""Trains a published peer on our simulator, by its own algorithm and numbers (studies/README.md).

python -m studies.peers rlscheduler --trace FILE --cluster 16x8 --minutes 8 --out DIR
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from rltuned import revision
from rltuned.core.errors import ConfigError, RltunedError
from rltuned.core.workers.progress import Progress, progress_bar, silent
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.windows import Split, Window, bounds, draw
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import ClusterShape, read_shape
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.simulated_estimates import estimate
from studies.peers import PEERS, rlscheduler, schedinspector
from studies.peers.episodes import run_episode
from studies.peers.model import Peer, save
from studies.peers.ppo import PeerPPO, PeerPPOSettings
from studies.traces import read

WINDOW = {"rlscheduler": 256, "schedinspector": 128}
"""Jobs of a window: JOB_SEQUENCE_SIZE of the two codes."""


@dataclass(frozen=True)
class PeerSettings:
    """Everything that decides the result, but for how many epochs the minutes have room for."""

    peer: str
    seed: int = 7
    minutes: float = 30.0
    """No epoch is begun that would end later, as far as those before it tell."""
    epochs: int | None = None
    """At most; None: as many as there is time for."""
    trajectories: int = 100
    """Windows per epoch (traj_per_epoch of both codes)."""
    jobs: int | None = None
    """Of a window; None: as `WINDOW` has it."""
    ppo: PeerPPOSettings = field(default_factory=PeerPPOSettings)

    @property
    def length(self) -> int:
        """Jobs of a window."""
        return self.jobs or WINDOW[self.peer]


@dataclass(frozen=True)
class TrainingData:
    """What is trained on."""

    jobs: Workload
    estimates: Estimates
    shape: ClusterShape

    def window(self, start: int, length: int) -> Case:
        """`length` consecutive jobs."""
        return next(cases(self.jobs, self.estimates, self.shape, [Window(0, start, length)]))


def train_peer(
    data: TrainingData, settings: PeerSettings, clock: Callable[[], float], progress: Progress = silent
) -> tuple[Peer, list[float]]:
    """Train on windows of the first 70 % of the trace; returns the peer and the mean reward of each epoch.

    The same settings with a number of epochs that the minutes have room for give the same weights.

    Args:
        data: trace, estimates and cluster.
        settings: what decides the result.
        clock: seconds, monotonic.
        progress: called after each epoch.

    Raises:
        ConfigError, EvaluationError: the trace is too short for the windows, or none of its jobs can run.
    """
    draw(len(data.jobs), settings.length, 1, 0, Split.TRAIN)  # refuses a trace that is too short
    begun, rewards = clock(), list[float]()
    fresh = rlscheduler.fresh if settings.peer == "rlscheduler" else schedinspector.fresh
    untrained: Peer = fresh(settings.seed)
    ppo = PeerPPO(untrained, settings.ppo, np.random.default_rng([settings.seed, 0]))
    peer = replace(untrained, net=replace(untrained.net, weights=ppo.weights()))
    compile_kernel()
    while settings.epochs is None or len(rewards) < settings.epochs:
        spent = clock() - begun
        if rewards and spent * (len(rewards) + 1) / len(rewards) > settings.minutes * 60.0:
            break
        seeds = [(settings.seed, 1, len(rewards), at) for at in range(settings.trajectories)]
        simulated = [
            run_episode(peer, _window(data, settings, seed), np.random.default_rng((*seed, 1))) for seed in seeds
        ]
        episodes = [each for each in simulated if len(each.action) and np.isfinite(each.reward)]
        if not episodes:
            raise ConfigError("no job of the windows that were drawn can run on this cluster")
        ppo.update(episodes)
        peer = replace(untrained, net=replace(untrained.net, weights=ppo.weights()))
        rewards.append(float(np.mean([each.reward for each in episodes])))
        progress("training", len(rewards), settings.epochs or len(rewards) + 1)
    return peer, rewards


def _window(data: TrainingData, settings: PeerSettings, seed: tuple[int, ...]) -> Case:
    first, last = bounds(len(data.jobs), Split.TRAIN)
    start = np.random.default_rng([*seed, 0]).integers(first, last - settings.length + 1)
    return data.window(int(start), settings.length)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one peer and write its files; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.peers", description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--cluster", required=True, help="for example 16x8")
    parser.add_argument("--out", type=Path, required=True, help="directory for the model")
    parser.add_argument("--name", help="of the model (default: the peer's)")
    parser.add_argument("--minutes", type=float, default=30.0, help="on one core")
    parser.add_argument("--epochs", type=int, help="at most")
    parser.add_argument("--trajectories", type=int, default=100, help="windows of an epoch")
    parser.add_argument("--jobs", type=int, help="of a window")
    asked = parser.parse_args(arguments)
    settings = PeerSettings(
        asked.peer, minutes=asked.minutes, epochs=asked.epochs, trajectories=asked.trajectories, jobs=asked.jobs
    )
    try:
        jobs = read(asked.trace)
        data = TrainingData(jobs, estimate(jobs, "true", settings.seed), read_shape(asked.cluster))
        with progress_bar() as progress:
            peer, rewards = train_peer(data, settings, time.monotonic, progress)
    except RltunedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    peer = replace(peer, net=replace(peer.net, name=asked.name or asked.peer))
    training = {
        "method": "ppo, as its authors'",
        "data": f"windows of {settings.length} jobs of the first 70 % of {jobs.source.name} on {data.shape.text}",
        "traces": {jobs.source.name: jobs.source.sha256},
        "seed": settings.seed,
        "revision": revision(),
        "settings": asdict(settings),
    }
    path = save(peer, asked.out, training, {"epochs": float(len(rewards)), "reward": rewards[-1]})
    sys.stderr.write(f"{path}: {len(rewards)} epochs, mean reward {rewards[-1]:.3g}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Training of the learned peers on our simulator, by their own algorithm and numbers (docs/peers.md)."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Singles
from rltuned.config import Config
from rltuned.errors import ConfigError, RltunedError
from rltuned.evaluate.case import Case, cases
from rltuned.evaluate.windows import Split, Window, bounds, draw
from rltuned.learn.peers.episodes import Metric, Peer, PeerEpisode, mean_metric, run_episode
from rltuned.learn.peers.settings import PeerSettings
from rltuned.policy import rlscheduler, schedinspector
from rltuned.policy.files import save_peer
from rltuned.policy.heuristics import by_name
from rltuned.policy.manifest import TrainingPart
from rltuned.policy.rlscheduler import RLScheduler
from rltuned.simulate import PlanRanker, RuleRanker
from rltuned.simulate.rankers import compile_kernel
from rltuned.workers.pool import WorkerPool
from rltuned.workers.progress import Progress, silent
from rltuned.workload.estimates import EstimateKind, estimate, parse_estimates
from rltuned.workload.jobs import Estimates, Workload
from rltuned.workload.readers import read
from rltuned.workload.shapes import read_shape

GOLDEN_ROWS: Final = 16
"""Rows of the golden vector, of the last epoch."""

BESIDE: Final = ("fifo", "saf", "sjf")
"""Rules that are measured on the validation windows, too."""


@dataclass(frozen=True)
class Epoch:
    """One line of the learning curve."""

    epoch: int
    """From 1."""
    seconds: float
    """Since the start, update included."""
    reward: float
    """Mean over the epoch's windows, under the policy before the update."""
    metric: float
    decisions: int
    policy_steps: int
    kl: float
    entropy: float
    value_loss: float


@dataclass(frozen=True)
class PeerResult:
    """The result of a training."""

    peer: Peer
    settings: PeerSettings
    curve: tuple[Epoch, ...]
    interrupted: bool
    golden: Singles
    """(k, inputs) rows that the network saw."""
    validation: dict[str, float] = field(default_factory=dict)
    """Mean of the metric over the validation windows: of the peer, of itself untrained, and of plain rules."""


@dataclass(frozen=True)
class TrainingData:
    """What is trained on; the same in every process."""

    jobs: Workload
    estimates: Estimates
    shape: ClusterShape

    def window(self, start: int, length: int) -> Case:
        """`length` consecutive jobs."""
        return next(cases(self.jobs, self.estimates, self.shape, [Window(0, start, length)]))


def fresh(settings: PeerSettings) -> Peer:
    """The untrained peer.

    Raises:
        ConfigError: there is no such base rule.
    """
    name = settings.name or settings.peer
    if settings.peer == "rlscheduler":
        return rlscheduler.fresh(settings.seed, name)
    return schedinspector.fresh(settings.seed, settings.rule, name)


def train_peer(
    data: TrainingData, settings: PeerSettings, clock: Callable[[], float], progress: Progress = silent
) -> PeerResult:
    """Train on windows of the first 70 % of the trace, measure on the next 15 %.

    The same settings with a number of epochs that the minutes have room for give the same weights. Ctrl-C ends the
    training with the last epoch that was complete; nothing is measured then.

    Args:
        data: trace, estimates and cluster.
        settings: theirs, but for the budget.
        clock: seconds, monotonic.
        progress: called after each epoch and validation window.

    Raises:
        ConfigError, EvaluationError: the trace is too short for the windows.
        RltunedError: Ctrl-C before the first epoch was complete.
    """
    from rltuned.learn.peers.ppo import PeerPPO  # noqa: PLC0415 - imports TensorFlow

    draw(len(data.jobs), settings.length, 1, 0, Split.TRAIN)  # refuses a trace that is too short
    held = draw(len(data.jobs), settings.validation_jobs, settings.validation_windows, settings.seed, Split.VALIDATION)
    begun, curve, interrupted = clock(), list[Epoch](), False
    untrained = fresh(settings)
    ppo = PeerPPO(untrained, settings.ppo, np.random.default_rng([settings.seed, 0]))
    peer = start = _with(untrained, ppo.weights())
    golden = np.zeros((0, 1), dtype=np.float32)
    compile_kernel()
    try:
        with WorkerPool(settings.processes) as pool:
            while settings.epochs is None or len(curve) < settings.epochs:
                if not _room(clock() - begun, len(curve), settings):
                    break
                # Each window has a random stream of its own, so the number of processes does not matter.
                seeds = [(settings.seed, 1, len(curve), at) for at in range(settings.trajectories)]
                simulated = pool.map(_run, [_task(data, settings, peer, seed) for seed in seeds])
                episodes = [each for each in simulated if len(each.action) and np.isfinite(each.reward)]
                if not episodes:
                    raise ConfigError("no job of the windows that were drawn can run on this cluster")
                stats = ppo.update(episodes)
                rows = np.concatenate([each.rows for each in episodes])
                golden = rows[np.linspace(0, len(rows) - 1, min(GOLDEN_ROWS, len(rows))).astype(np.intp)]
                peer = _with(untrained, ppo.weights())
                curve.append(
                    Epoch(
                        epoch=len(curve) + 1,
                        seconds=clock() - begun,
                        reward=float(np.mean([each.reward for each in episodes])),
                        metric=float(np.mean([each.metric for each in episodes])),
                        decisions=sum(len(each.action) for each in episodes),
                        **asdict(stats),
                    )
                )
                progress("training", *_progress(curve, settings))
    except KeyboardInterrupt:
        if not curve:
            raise RltunedError("interrupted before the first epoch was complete: there is no model") from None
        interrupted = True
    result = PeerResult(peer, settings, tuple(curve), interrupted, golden)
    if interrupted:
        return result
    windows = list(cases(data.jobs, data.estimates, data.shape, held))
    return replace(result, validation=_validate(windows, start, peer, settings.metric, progress))


def from_options(peer: str, options: Mapping[str, Any]) -> PeerSettings:
    """Settings from options of the command line by name, absent ones left out; `objective` is the metric.

    Raises:
        ConfigError: as `PeerSettings`, or an objective that the peers do not have.
    """
    given = dict(options)
    metric = given.pop("objective", Metric.WAIT.value)
    if metric not in set(Metric):
        raise ConfigError(f"a learned peer is trained for {' or '.join(Metric)}, not {metric}")
    return PeerSettings(peer, metric=Metric(metric), **given)


def train_from_files(
    trace: str | Path,
    cluster: str,
    out: Path,
    settings: PeerSettings,
    clock: Callable[[], float],
    estimates: str = "true",
    revision: str = "unknown",
    progress: Progress = silent,
    form: str | None = None,
    skip_bad: bool = False,
) -> tuple[PeerResult, Path]:
    """What `rltuned train --peer` does: trace and cluster in, model files out; the result and the manifest's path.

    Args:
        trace: as `rltuned evaluate --trace` takes it.
        cluster: likewise.
        out: directory for the model.
        settings: theirs, but for the budget.
        clock: as `train_peer`.
        estimates: true, noisy:SIGMA or limit, drawn by the seed; `history` would need a predictor for each window.
        revision: of the code, for the manifest.
        progress: called after each step.
        form: as `rltuned.workload.readers.read`.
        skip_bad: likewise.

    Raises:
        RltunedError: trace, cluster, estimates or settings are wrong, or the files cannot be written.
    """
    if estimates == "mixed" or parse_estimates(estimates).kind is EstimateKind.HISTORY:
        raise ConfigError(f"a learned peer is trained with --estimates true, noisy:SIGMA or limit, not {estimates}")
    shape = read_shape(cluster)
    jobs = read(trace, form=form, skip_bad=skip_bad, progress=progress)
    data = TrainingData(jobs, estimate(jobs, estimates, settings.seed), shape)
    result = train_peer(data, settings, clock, progress)
    return result, write_peer(result, data, out, revision, estimates)


def sentence(result: PeerResult, path: Path) -> str:
    """The result of a training in a sentence."""
    unit = " h" if result.settings.metric is Metric.WAIT else ""
    beside = ", ".join(f"{name} {value:.3g}{unit}" for name, value in result.validation.items())
    measured = f"mean {result.settings.metric} on validation windows: {beside or 'not measured'}"
    return f"{path}: {len(result.curve)} epochs; {measured}"


def write_peer(
    result: PeerResult, data: TrainingData, directory: Path, revision: str = "unknown", estimates: str = ""
) -> Path:
    """Write the model files and ``<name>.csv``, the learning curve, into `directory`, and give the manifest's path.

    `revision`: of the code; `estimates`: how `data.estimates` were made. Both are only written down.

    Raises:
        ModelError: the files cannot be written.
        RltunedError: the curve cannot be written.
    """
    settings = {
        name: value
        for name, value in asdict(result.settings).items()
        if name not in {"peer", "name", "seed", "processes"}
    }
    settings |= {"estimates": estimates, "metric": result.settings.metric.value, "jobs": result.settings.length}
    last = result.curve[-1]
    metrics = {"epochs": float(last.epoch), "seconds": last.seconds, "reward": last.reward}
    metrics |= {f"validation.{name}": value for name, value in result.validation.items()}
    source = data.jobs.source
    training = TrainingPart(
        method="ppo, as its authors'" + (" (interrupted)" if result.interrupted else ""),
        data=f"windows of {result.settings.length} jobs of the first 70 % of {source.name} on {data.shape.text}",
        traces={source.name: source.sha256} if source.sha256 else {},
        seed=result.settings.seed,
        revision=revision,
        settings=settings,
    )
    path = save_peer(result.peer, directory, training, metrics, result.golden)
    try:
        with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(Epoch.__dataclass_fields__))
            table.writeheader()
            table.writerows(asdict(epoch) for epoch in result.curve)
    except OSError as error:
        raise RltunedError(f"{path.with_suffix('.csv')}: cannot be written: {error.strerror}") from error
    return path


def _with(peer: Peer, weights: Any) -> Peer:
    if isinstance(peer, RLScheduler):
        return RLScheduler(replace(peer.kernel, weights=weights))
    return replace(peer, inspector=replace(peer.inspector, weights=weights))


def _room(seconds: float, epochs: int, settings: PeerSettings) -> bool:
    """Whether another epoch would end in time, if it takes as long as those before it did on average."""
    return not epochs or seconds * (epochs + 1) / epochs <= settings.minutes * 60.0


def _progress(curve: Sequence[Epoch], settings: PeerSettings) -> tuple[int, int]:
    """Epochs done, and how many there will be."""
    done, seconds = len(curve), curve[-1].seconds
    possible = int(settings.minutes * 60.0 * done / seconds) if seconds > 0 else settings.epochs or done
    return done, max(done, possible if settings.epochs is None else min(settings.epochs, possible))


def _validate(
    windows: Sequence[Case], untrained: Peer, trained: Peer, metric: Metric, progress: Progress
) -> dict[str, float]:
    """Mean over the windows, served by `plan()` as `rltuned evaluate` does; windows without a job that ran left out."""
    config = Config()
    contenders = {"trained": trained, "untrained": untrained}
    found: dict[str, list[float]] = {name: [] for name in (*contenders, *BESIDE)}
    for done, window in enumerate(windows, start=1):
        for name, policy in contenders.items():
            found[name].append(mean_metric(window, PlanRanker(policy, config), metric))
        for name in BESIDE:
            found[name].append(mean_metric(window, RuleRanker(by_name(name)), metric))
        progress("measuring", done, len(windows))
    return {
        name: float(np.mean(kept))
        for name, values in found.items()
        if (kept := [each for each in values if np.isfinite(each)])
    }


# --- windows of an epoch


@dataclass(frozen=True)
class _EpisodeTask:
    """One window to simulate: small, for it may be sent to another process."""

    peer: Peer
    window: Case
    metric: Metric
    seed: tuple[int, ...]


def _task(data: TrainingData, settings: PeerSettings, peer: Peer, seed: tuple[int, ...]) -> _EpisodeTask:
    first, last = bounds(len(data.jobs), Split.TRAIN)
    start = np.random.default_rng([*seed, 0]).integers(first, last - settings.length + 1)
    return _EpisodeTask(peer, data.window(int(start), settings.length), settings.metric, (*seed, 1))


def _run(task: _EpisodeTask) -> PeerEpisode:
    return run_episode(task.peer, task.window, task.metric, np.random.default_rng(task.seed))

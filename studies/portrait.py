"""What a policy has learned, as pictures: its score of one job while one thing about it, or about the cluster, changes.

The job waits among `QUEUED` others on a cluster of 16 nodes of 8 GPUs. Everything is generated, with a seed, and
observed by the same function as in the daemon, so a curve is what the daemon would do and not what a formula says.
Only differences of height matter, and only to jobs in the same picture.

    python -m studies.portrait NAME --out DIR
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.plain_tables import job_table, node_table
from rltuned.cluster.tables import Codes, Floats, JobState, Partition, Snapshot
from rltuned.config import DEFAULT_MODEL
from rltuned.errors import EvaluationError
from rltuned.observe import FEATURES, Observation, observe
from rltuned.policy.actor import Actor, rule_level
from rltuned.policy.files import load
from rltuned.policy.heuristics import RULES
from rltuned.policy.protocol import Policy
from rltuned.workload.simulated_estimates import written_limit

NODES: Final = 16
PER_NODE: Final = 8
QUEUED: Final = 80
"""Other jobs in the queue."""

NARROW: Final = 0.2
"""Least height of a picture, in units of the score."""

_NOW: Final = 1_700_000_000.0
_HOUR: Final = 3600.0
_DAY: Final = 86400.0


@dataclass(frozen=True)
class Job:
    """The job that is looked at."""

    gpus: int = 4
    run_time: float = _HOUR
    """Expected, seconds."""
    time_limit: float = 14 * _DAY
    wait: float = 2 * _HOUR


@dataclass(frozen=True)
class Cluster:
    """What runs."""

    busy: float = 0.85
    """Share of the GPUs that running jobs hold."""
    scattered: float = 0.0
    """Share of those that are spread evenly over the nodes; the others fill one node after another."""


@dataclass(frozen=True)
class Curve:
    """One line of a picture. Numbers are relative to their mean over the rest of the queue, for differences rank."""

    label: str
    score: Floats
    rule: Floats | None
    """Level of the rule that the actor corrects; None without one."""


@dataclass(frozen=True)
class Panel:
    """One picture."""

    picture: "Picture"
    x: Floats
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Picture:
    """What a picture is to show."""

    name: str
    """Of its file."""
    title: str
    axis: str
    values: Floats
    """What is tried, from left to right."""
    scenes: Callable[[float], list[tuple[str, Job, Cluster]]]
    """The curves' names, and for each the job and the cluster at a value."""
    feature: str = ""
    """Of `rltuned.observe.FEATURES`, to stand on the axis instead of the values."""
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()


_STATES: Final = (
    ("idle cluster", Cluster(busy=0.0)),
    ("85 % in use, packed", Cluster(0.85, 0.0)),
    ("85 % in use, scattered", Cluster(0.85, 1.0)),
    ("all in use", Cluster(busy=1.0)),
)
_JOBS: Final = (
    ("1 GPU, 10 min", Job(gpus=1, run_time=600.0)),
    ("1 GPU, 1 d", Job(gpus=1, run_time=_DAY)),
    ("8 GPUs, 1 h", Job(gpus=8)),
    ("32 GPUs, 1 d", Job(gpus=32, run_time=_DAY)),
)
_TIMES: Final = ((60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"), (86400, "1 d"), (7 * 86400, "7 d"))


def _of_jobs(job: Callable[[float], Job]) -> Callable[[float], list[tuple[str, Job, Cluster]]]:
    return lambda value: [(label, job(value), state) for label, state in _STATES]


def _of_states(cluster: Callable[[float], Cluster]) -> Callable[[float], list[tuple[str, Job, Cluster]]]:
    return lambda value: [(label, job, cluster(value)) for label, job in _JOBS]


PICTURES: Final = (
    Picture(
        "run_time",
        "a job of 4 GPUs, limit 14 d",
        "expected run time",
        np.geomspace(60.0, 14 * _DAY, 25),
        _of_jobs(lambda value: Job(run_time=value)),
        log=True,
        ticks=_TIMES,
    ),
    Picture(
        "time_limit",
        "a job of 4 GPUs, expected to run 10 min",
        "time limit",
        np.geomspace(600.0, 14 * _DAY, 25),
        _of_jobs(lambda value: Job(run_time=600.0, time_limit=value)),
        log=True,
        ticks=_TIMES[1:],
    ),
    Picture(
        "gpus",
        "a job of an expected hour",
        "GPUs (above 8: whole nodes)",
        np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48, 64, 96, 128]),
        _of_jobs(lambda value: Job(gpus=int(value))),
        log=True,
        ticks=tuple((2.0**power, str(2**power)) for power in range(8)),
    ),
    Picture(
        "age",
        "a job of 4 GPUs and an expected hour",
        "hours that it has waited",
        np.linspace(0.0, 7 * 24.0, 25),
        _of_jobs(lambda value: Job(wait=value * _HOUR)),
    ),
    Picture(
        "fragmentation",
        "the same free GPUs on whole nodes (left) or on many (right), 60 % in use",
        "fragmentation (equation 3)",
        np.linspace(0.0, 1.0, 17),
        _of_states(lambda value: Cluster(0.6, value)),
        feature="fragmentation",
    ),
    Picture(
        "free_nodes",
        "from a full cluster to an idle one, packed",
        "share of nodes that are wholly free",
        np.linspace(0.0, 1.0, 17),
        _of_states(lambda value: Cluster(1.0 - value, 0.0)),
        feature="free_nodes",
    ),
)


def portrait(policy: Policy, seed: int = 7, pictures: Sequence[Picture] = PICTURES) -> tuple[Panel, ...]:
    """The pictures of a policy as numbers. The same seed gives the same queue, so models can be compared."""
    return tuple(_panel(policy, seed, picture) for picture in pictures)


def _panel(policy: Policy, seed: int, picture: Picture) -> Panel:
    rule = policy.architecture.residual if isinstance(policy, Actor) else None
    x = picture.values.copy()
    scores: dict[str, list[float]] = {}
    levels: dict[str, list[float]] = {}
    for at, value in enumerate(picture.values.tolist()):
        for label, job, cluster in picture.scenes(value):
            seen = scene(job, cluster, seed)
            scores.setdefault(label, []).append(_ahead(policy.score(seen)))
            if rule is not None:
                levels.setdefault(label, []).append(_ahead(rule_level(rule, seen)))
            if picture.feature:
                x[at] = float(seen.features[0, FEATURES.index(picture.feature)])
    curves = [
        Curve(label, np.array(values), np.array(levels[label]) if label in levels else None)
        for label, values in scores.items()
    ]
    return Panel(picture, x, tuple(curves))


def _ahead(scores: Floats) -> float:
    """How far the job is ahead of the mean of the others."""
    return float(scores[0] - scores[1:].mean())


def draw(policy: Policy, directory: Path, seed: int = 7, pictures: Sequence[Picture] = PICTURES) -> list[Path]:
    """Write the pictures, a PNG each; returns their paths. The rule that an actor corrects is dashed.

    Raises:
        EvaluationError: a file cannot be written.
    """
    written = []
    for panel in portrait(policy, seed, pictures):
        picture = panel.picture
        figure = Figure(figsize=(6.0, 4.0), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for curve in panel.curves:
            (line,) = axes.plot(panel.x, curve.score, label=curve.label, marker=".", markersize=3)
            if curve.rule is not None:
                axes.plot(panel.x, curve.rule, linestyle="--", linewidth=0.8, color=line.get_color())
        if picture.log:
            axes.set_xscale("log")
        if picture.ticks:
            axes.set_xticks([at for at, _ in picture.ticks], [text for _, text in picture.ticks], minor=False)
            axes.minorticks_off()
        low, high = axes.get_ylim()
        if high - low < NARROW:  # a line that is all but flat shall look so
            axes.set_ylim((low + high - NARROW) / 2, (low + high + NARROW) / 2)
        axes.set_xlabel(picture.axis)
        axes.set_ylabel("score − mean of the queue (higher goes first)")
        axes.set_title(f"{policy.name}: {picture.title}", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        path = directory / f"{picture.name}.png"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # No date and no version of matplotlib: the same model makes the same bytes.
            figure.savefig(path, dpi=110, metadata={"Software": None})
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error
        written.append(path)
    return written


def scene(job: Job, cluster: Cluster, seed: int) -> Observation:
    """The queue as a policy sees it; the job is row 0, the others are the same for a seed."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice((1, 1, 1, 1, 2, 2, 4, 8, 16), size=QUEUED)
    run_time = np.maximum(_HOUR * np.exp(1.5 * rng.standard_normal(QUEUED)), 30.0)
    estimate = run_time * np.exp(rng.standard_normal(QUEUED))
    limit = written_limit(run_time * np.exp(np.abs(1.2 * rng.standard_normal(QUEUED))))
    wait = rng.exponential(4 * _HOUR, size=QUEUED).round()
    held = _held(cluster)
    holders = np.flatnonzero(held)
    elapsed = rng.exponential(3 * _HOUR, size=NODES)[holders]  # drawn for all nodes: what follows stays as it is
    left = rng.exponential(3 * _HOUR, size=NODES)[holders]
    asked = np.concatenate((held[holders], [job.gpus], gpus)).astype(np.int32)
    nodes = np.maximum(-(-asked // PER_NODE), 1)
    pending = 1 + QUEUED
    since = np.concatenate((elapsed, [job.wait], wait))
    running = len(holders)
    jobs = job_table(
        running + pending,
        held_nodes=[*([int(node)] for node in holders), *([()] * pending)],
        state=np.repeat((JobState.RUNNING, JobState.PENDING), (running, pending)),
        submit_time=_NOW - since,
        eligible_time=_NOW - since,
        start_time=np.concatenate((_NOW - elapsed, np.full(pending, np.nan))),
        end_time=np.concatenate((_NOW + left, np.full(pending, np.nan))),
        time_limit=np.concatenate((elapsed + left, [job.time_limit], limit)),
        gpus=asked,
        gpus_per_node=np.where(nodes > 1, PER_NODE, asked),
        nodes=nodes,
        cpus=4 * asked,
        gpu_type="a100",
    )
    free = node_table(
        [f"n{node}" for node in range(NODES)],
        ["a100"],
        PER_NODE,
        gpus_alloc=held[:, None],
        cpus=8 * PER_NODE,
        cpus_alloc=4 * held,
        mem=1e6,
        mem_alloc=1000.0 * (held > 0),
    )
    everywhere = np.arange(NODES, dtype=np.int32)
    partition = Partition("gpu", everywhere, True, 1, OverSubscribe.NO, 1, np.inf, default=True)
    estimates = np.concatenate((elapsed + left, [job.run_time], estimate))
    return observe(Snapshot(_NOW, (24, 11), jobs, free, (partition,)), jobs.pending, estimates)


def _held(cluster: Cluster) -> Codes:
    """(NODES,) GPUs in use on each node."""
    busy = round(cluster.busy * NODES * PER_NODE)
    even = round(cluster.scattered * busy)
    held = even // NODES + (np.arange(NODES)[::-1] < even % NODES)
    for _ in range(busy - even):
        held[np.flatnonzero(held < PER_NODE)[0]] += 1
    return np.asarray(held, dtype=np.int32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.portrait", description="Draws what a policy has learned.")
    parser.add_argument("name", nargs="?", default=DEFAULT_MODEL, help="a model's name or manifest, or a plain rule")
    parser.add_argument("--out", type=Path, required=True, help="directory for the PNGs")
    parser.add_argument("--seed", type=int, default=7, help="of the queue and the cluster")
    asked = parser.parse_args(arguments)
    draw(RULES[asked.name] if asked.name in RULES else load(asked.name), asked.out, asked.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

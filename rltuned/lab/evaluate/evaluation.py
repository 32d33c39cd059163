"""A whole evaluation: from a trace and a cluster to the report."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltuned import __version__
from rltuned.core.errors import RltunedError
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.evaluation_report import assemble
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.measure import Outcome, Task, work
from rltuned.lab.evaluate.policies import contender, described
from rltuned.lab.evaluate.state import State, state_path
from rltuned.lab.evaluate.windows import Window, draw
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.shapes import read_shape
from rltuned.simulate.workload.simulated_estimates import EstimateKind, estimate, parse_estimates


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, made ready: windows are drawn, estimates are made, models have been looked at."""

    settings: EvaluationSettings
    jobs: Workload
    shape: ClusterShape
    cases: tuple[Case, ...]
    meta: Mapping[str, Any]
    """Of the report: all that the numbers depend on."""


def prepare(
    settings: EvaluationSettings, revision: str, progress: Progress = silent, shape: ClusterShape | None = None
) -> Evaluation:
    """Read trace and cluster, draw the windows, and refuse now what would fail later.

    Args:
        settings: what is asked for.
        revision: of the program.
        progress: called as reading goes on.
        shape: the cluster, where the settings name none.

    Raises:
        WorkloadError, ShapeError, ModelError, EvaluationError, ConfigError: each names what is wrong.
    """
    shape = shape or read_shape(settings.cluster)
    for name in settings.policies:
        contender(name, settings)
    jobs = read(settings.trace, skip_bad=settings.skip_bad, progress=progress)
    return ready(settings, jobs, shape, revision)


def ready(
    settings: EvaluationSettings,
    jobs: Workload,
    shape: ClusterShape,
    revision: str,
    windows: Sequence[Window] | None = None,
) -> Evaluation:
    """As `prepare`, of a workload that is there already; `windows`: those instead of drawn ones.

    Raises:
        EvaluationError, ConfigError, ModelError: as `prepare`.
    """
    if windows is None:
        windows = draw(len(jobs), settings.window, settings.windows, settings.seed, settings.split)
    estimates = estimate(jobs, settings.estimates, settings.seed)
    history = parse_estimates(settings.estimates).kind is EstimateKind.HISTORY
    made = tuple(cases(jobs, estimates, shape, windows, settings.past, history=history))
    source = jobs.source
    meta = {
        "program": "rltuned",
        "version": __version__,
        "revision": revision,
        "command": settings.command,
        "seed": settings.seed,
        "trace": {
            "name": source.name,
            "sha256": source.sha256,
            "format": source.form,
            "jobs": len(jobs),
            "skipped": source.skipped,
            "left_out": source.left_out,
            "unknown": source.unknown,
        },
        "cluster": {
            "text": shape.text,
            "nodes": len(shape.nodes),
            "gpus": shape.gpus,
            "sha256": digest(shape),
            "partitions": [partition.name for partition in shape.partitions],
        },
        "settings": settings.as_dict(),
        "policies": {name: described(name, settings) for name in settings.policies},
    }
    return Evaluation(settings, jobs, shape, made, meta)


def digest(shape: ClusterShape) -> str:
    """Of all that a simulation sees of a cluster: a file may change and keep its name."""
    nodes = shape.nodes
    columns = [nodes.usable, nodes.cpus, nodes.mem, nodes.tmp, nodes.gpus]
    if len(set(nodes.weights.tolist())) > 1:
        columns.append(nodes.weights)
    seen = [
        nodes.names,
        nodes.gpu_types,
        *(column.tolist() for column in columns),
        [sorted(of) for of in nodes.features],
    ]
    parts = [{**vars(partition), "nodes": partition.nodes.tolist()} for partition in shape.partitions]
    return hashlib.sha256(json.dumps([seen, parts], sort_keys=True).encode()).hexdigest()


def evaluate(
    evaluation: Evaluation,
    pool: WorkerPool,
    out: Path | None = None,
    *,
    progress: Progress = silent,
) -> dict[str, Any]:
    """All policies on all windows; the report, as `--json` writes it.

    Args:
        evaluation: of `prepare`.
        pool: where the work is done; it is entered here.
        out: where the report will be written: finished pieces are kept beside it (`state_path`), and the same
            evaluation goes on from them if it is interrupted.
        progress: called after each piece.

    Raises:
        EvaluationError: what is kept cannot be written.
    """
    with nullcontext() if out is None else State(state_path(out), evaluation.meta) as kept, pool:
        outcomes = list(kept.outcomes) if kept is not None else []
        tasks = missing(evaluation, outcomes)
        total = len(evaluation.cases) * len(evaluation.settings.policies)
        progress("simulating", len(outcomes), total)
        for done in pool.as_completed(work, tasks):
            if kept is not None:
                kept.add(done)
            outcomes.append(done)
            progress("simulating", len(outcomes), total)
        if len(outcomes) != total:
            raise RltunedError(f"{total} simulations were wanted, {len(outcomes)} came back")
    return assemble(evaluation.meta, evaluation.settings, evaluation.cases, outcomes)


def missing(evaluation: Evaluation, outcomes: Sequence[Outcome]) -> list[Task]:
    """What is still to be done: a task for each window and policy, those of a window one after the other."""
    there = {(outcome.window, outcome.policy) for outcome in outcomes}
    return [
        Task(case, name, evaluation.settings)
        for case in evaluation.cases
        for name in evaluation.settings.policies
        if (case.window.index, name) not in there
    ]

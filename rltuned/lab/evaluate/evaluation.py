"""A whole evaluation: from jobs and a cluster to what was measured of each policy."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rltuned import __version__
from rltuned.core.errors import EvaluationError
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.evaluation_settings import OWN, EvaluationSettings, Start
from rltuned.lab.evaluate.leak import LEAK, told
from rltuned.lab.evaluate.measure import Measured, beside_slurm, measured, over
from rltuned.lab.evaluate.policies import contender, described
from rltuned.lab.evaluate.state import EvaluationState, state_path
from rltuned.lab.evaluate.windows import Window, draw
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.simulated_estimates import estimate, parse_estimates

OVERLOAD: Final = 1.2  # offered load above which an evaluation is of no queue that a site has

Tables = dict[str, Measured]  # by policy; with J as `objective`, where Slurm's own order is among them


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, made ready: windows are drawn, estimates are made, models have been looked at."""

    settings: EvaluationSettings
    cases: tuple[Case, ...]
    meta: Mapping[str, Any]  # of the report: all that the numbers depend on


def ready(
    settings: EvaluationSettings,
    jobs: Workload,
    shape: ClusterShape,
    revision: str,
    windows: Sequence[Window] | None = None,
) -> Evaluation:
    """An evaluation that refuses now what would fail later; `windows`: those instead of drawn ones. Raises
    EvaluationError, ConfigError, ModelError.
    """
    if windows is None:
        windows = draw(len(jobs), settings.window, settings.windows, settings.seed, settings.split)
    estimates = estimate(jobs, settings.estimates, settings.seed)
    how: dict[str, Any] = {
        "history": settings.by_history,
        "warming": settings.simulated,
        "seed": settings.seed,
        "really": settings.start is Start.REAL,
    }
    if parse_estimates(settings.estimates).names:
        refuse_nameless(jobs)
        how["named"] = True
    made = tuple(cases(jobs, estimates, shape, windows, settings.past, **how))
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
        "load": load if np.isfinite(load := float(np.mean([case.load for case in made]))) else None,
        "limits_tell": told(jobs, estimates.time_limit),
        "settings": settings.as_dict(),
        "policies": {name: described(name, settings) for name in settings.policies},
    }
    return Evaluation(settings, made, meta)


def refuse_nameless(jobs: Workload) -> None:
    """EvaluationError: nothing is known of what the jobs are called."""
    if (jobs.name_kind.codes < 0).all():
        raise EvaluationError(
            f"{jobs.source.name}: no job has a name: sacct's columns JobName and WorkDir, or --from-sacct DAYS --names"
        )


def whose(meta: Mapping[str, Any]) -> str:
    """Of which jobs on which cluster, how much of it they ask for, and whether limits tell more than a site knows: the
    first line of what people are shown.
    """
    text, load, tell = f"{meta['trace']['name']} on {meta['cluster']['text']}", meta["load"], meta["limits_tell"]
    if load is not None:
        much = "" if load <= OVERLOAD else ", more than the cluster can do: a backlog that drains, not a site's queue"
        text += f", offered load {load:.2f}{much}"
    if tell is not None and tell > LEAK:
        text += f"; limits tell run times (correlation {tell:.2f}), more than users' own do"
    return text


def digest(shape: ClusterShape) -> str:
    """Of all that a simulation sees of a cluster: a file may change and keep its name."""
    nodes = shape.nodes
    columns = [nodes.usable, nodes.cpus, nodes.mem, nodes.tmp, nodes.gpus]
    if len(set(nodes.weights.tolist())) > 1:
        columns.append(nodes.weights)
    features = [sorted(of) for of in nodes.features]
    seen = [nodes.names, nodes.gpu_types, *(column.tolist() for column in columns), features]
    parts = [{**vars(partition), "nodes": partition.nodes.tolist()} for partition in shape.partitions]
    return hashlib.sha256(json.dumps([seen, parts], sort_keys=True).encode()).hexdigest()


def evaluate(
    evaluation: Evaluation, pool: WorkerPool, out: Path | None = None, *, progress: Progress = silent
) -> Tables:
    """All policies on all windows, in a `pool` that is entered here.

    `out`: where the result will be written. Finished pieces are kept beside it (`state_path`), and the same evaluation
    goes on from them if it is interrupted. Raises EvaluationError: what is kept cannot be written.
    """
    settings, chosen = evaluation.settings, evaluation.cases
    with nullcontext() if out is None else EvaluationState(state_path(out), evaluation.meta) as outcomes, pool:
        if settings.weights:
            chosen = tuple(beside_slurm(chosen, contender(OWN, settings), pool))
        contenders = [contender(name, settings) for name in settings.policies]
        found = measured(chosen, contenders, pool, progress, outcomes=outcomes)
    tables = dict(zip(settings.policies, found, strict=True))
    unknown = np.full(len(chosen), np.nan)
    return {
        name: {**table, "objective": over(settings.objective, table, tables[OWN]) if OWN in tables else unknown}
        for name, table in tables.items()
    }

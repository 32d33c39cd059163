"""A trained peer on the windows of a study, as `rltuned evaluate` measures the policies that it has."""

from pathlib import Path
from typing import Any

import numpy as np

from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.evaluation import Evaluation
from rltuned.lab.evaluate.evaluation_report import assemble
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.measure import measured
from rltuned.lab.evaluate.policies import Contender
from studies.peers.model import load, weights_sha256

MEASURED = "rl"
"""The policy of an evaluation whose place the peer takes."""


def evaluate(
    evaluation: Evaluation, peer: str, model: Path, processes: int, progress: Progress = silent
) -> dict[str, Any]:
    """Measure a peer on all windows of an evaluation of the policy `rl` alone; returns the report, under its name."""
    contender = Contender(MEASURED, evaluation.settings.simulated, load(model))
    with WorkerPool(processes) as pool:
        (found,) = measured(evaluation.cases, [contender], pool, progress)
    return assemble(evaluation, {peer: {**found, "objective": np.full(len(evaluation.cases), np.nan)}})


def described(settings: EvaluationSettings, model: Path) -> dict[str, Any]:
    """What a peer was, for the report."""
    simulated, actor = settings.simulated, load(model)
    return {
        "backfill": simulated.backfill.value,
        "fit": simulated.fit.value,
        "placement": "fit",
        "model": {"name": actor.name, "sha256": weights_sha256(model)},
    }

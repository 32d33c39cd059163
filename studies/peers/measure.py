"""A trained peer on the windows of a study, as `rltuned evaluate` measures the policies that it has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import Evaluation
from rltuned.lab.evaluate.evaluation_report import assemble
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.measure import Outcome, evaluate_case
from rltuned.lab.evaluate.policies import Contender
from studies.peers.model import Peer, load, weights_sha256

MEASURED = "rl"
"""The policy of an evaluation whose place the peer takes."""


@dataclass(frozen=True)
class PeerTask:
    """One window."""

    case: Case
    peer: Peer
    settings: EvaluationSettings


def measure(task: PeerTask) -> Outcome:
    """Simulate one window under a peer."""
    contender = Contender(MEASURED, task.settings.simulated, task.peer)
    return evaluate_case(task.case, contender, task.settings)


def evaluate(
    evaluation: Evaluation, peer: str, model: Path, processes: int, progress: Progress = silent
) -> dict[str, Any]:
    """Measure a peer on all windows of an evaluation of the policy `rl` alone; returns the report, under its name."""
    trained = load(model)
    outcomes: list[Outcome] = []
    with WorkerPool(processes) as pool:
        for done in pool.map(measure, [PeerTask(case, trained, evaluation.settings) for case in evaluation.cases]):
            outcomes.append(done)
            progress("simulating", len(outcomes), len(evaluation.cases))
    report = assemble(evaluation.meta, evaluation.settings, evaluation.cases, outcomes)
    windows = [{**window, "policies": {peer: window["policies"][MEASURED]}} for window in report["windows"]]
    return {**report, "windows": windows, "policies": {peer: report["policies"][MEASURED]}}


def described(settings: EvaluationSettings, model: Path) -> dict[str, Any]:
    """What a peer was, for the report."""
    simulated, actor = settings.simulated, load(model)
    return {
        "backfill": simulated.backfill.value,
        "fit": simulated.fit.value,
        "placement": "fit",
        "model": {"name": actor.name, "sha256": weights_sha256(model)},
    }

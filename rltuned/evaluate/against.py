"""`rltuned evaluate --against REPLAY.json`: how far the simulator is from a real Slurm, for machines and for people."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from rltuned import __version__
from rltuned.errors import EvaluationError
from rltuned.evaluate.fidelity import DAEMON, Fidelity, Waits, compare
from rltuned.evaluate.policies import model_path
from rltuned.policy import files
from rltuned.policy.heuristics import RULES


def against(path: Path, model: str, revision: str) -> dict[str, Any]:
    """The jobs of a replay on the simulator, compared; as `--json` writes it.

    Args:
        path: of the REPLAY.json.
        model: of a replay that was steered by a model: its name or manifest.
        revision: of the program.

    Raises:
        EvaluationError: the file cannot be read, or is not what `testbed replay` writes.
        ModelError: the model was refused.
    """
    try:
        data = path.read_bytes()
        replay = json.loads(data)
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise EvaluationError(f"{path}: is no JSON: {error}") from error
    if not isinstance(replay, dict) or not isinstance(replay.get("meta"), dict):
        raise EvaluationError(f"{path}: not what `testbed replay` writes: it has no meta")
    policy = str(replay["meta"].get("policy", ""))
    steered = policy.startswith(DAEMON) and policy.removeprefix(DAEMON) not in RULES
    found = compare(replay, files.load(model_path(model)) if steered else None)
    return {
        "meta": {
            "program": "rltuned",
            "version": __version__,
            "revision": revision,
            "replay": {"name": path.name, "sha256": hashlib.sha256(data).hexdigest()},
            "slurm": found.slurm,
            "policy": found.policy,
            "replayed": replay["meta"],
        },
        "wait_mean": _waits(found.total),
        "classes": {name: _waits(waits) for name, waits in found.classes.items()},
        "makespan": {"real": found.makespan_real, "simulated": found.makespan_simulated},
        "same_node": found.same_node,
        "waits": _jobs(found),
    }


def _waits(waits: Waits) -> dict[str, Any]:
    shown = {"jobs": waits.jobs, "real": waits.real, "simulated": waits.simulated}
    return {**shown, "difference": waits.difference if waits.real > 0.0 or waits.simulated == 0.0 else None}


def _jobs(found: Fidelity) -> dict[str, list[float]]:
    """Of each job, in the order of submission."""
    return {"real": found.real.tolist(), "simulated": found.simulated.tolist()}


def table(report: Mapping[str, Any]) -> Table:
    """Mean waits of all jobs and of each class, here and there."""
    meta = report["meta"]
    shown = Table(
        title=f"{meta['replay']['name']}: Slurm {meta['slurm']}, {meta['policy']}, {report['wait_mean']['jobs']} jobs",
        caption=f"makespan {report['makespan']['real']:.1f} s real, {report['makespan']['simulated']:.1f} s simulated; "
        f"{report['same_node']:.0%} of the jobs ran on the same nodes",
        caption_justify="left",
    )
    shown.add_column("jobs of class")
    for heading in ("jobs", "real wait s", "simulated s", "difference"):
        shown.add_column(heading, justify="right")
    for name, waits in {"all": report["wait_mean"], **report["classes"]}.items():
        gap = waits["difference"]
        cells = [str(waits["jobs"]), f"{waits['real']:.2f}", f"{waits['simulated']:.2f}"]
        shown.add_row(
            name, *cells, "–" if gap is None else f"{100 * gap:+.1f} %", style="bold" if name == "all" else ""
        )
    return shown

"""Does what is missing or out of date."""

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import rltuned
from rltuned.core.config import DEFAULT_MODEL
from rltuned.core.errors import EvaluationError
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.evaluation import evaluate, ready
from rltuned.lab.evaluate.evaluation_report import assemble
from rltuned.lab.evaluate.evaluation_settings import LEARNED, EvaluationSettings
from rltuned.lab.evaluate.policies import described, model_path
from rltuned.lab.evaluate.state import state_path
from rltuned.records import model_files as files
from rltuned.simulate.shape import read_shape
from studies import kept
from studies.catalogue import Study
from studies.peers import measure
from studies.traces import read

CODE: Final = (
    *(f"{room}/*.py" for room in ("core", "decide", "decide/see", "decide/expect", "decide/rank")),
    *(f"{room}/*.py" for room in ("simulate", "simulate/workload")),
    "records/model_files.py",
    *(
        f"lab/evaluate/{module}.py"
        for module in (
            "case",
            "evaluation",
            "evaluation_settings",
            "measure",
            "policies",
            "evaluation_report",
            "window_metrics",
            "windows",
        )
    ),
)
"""What the numbers come from: a change there makes a result out of date, a change of anything else does not. No study
has the integer program."""


class Say(Protocol):
    """Takes sentences for the person who waits: what becomes of each study."""

    def __call__(self, sentence: str) -> None:
        """One sentence."""


@dataclass(frozen=True)
class Sources:
    """What is on this machine."""

    traces: Path
    models: Path
    """Holds `peers/rlscheduler-philly.json` … (`Study.peer`)."""
    general: str = DEFAULT_MODEL
    """The general model: a shipped name, or the path of its manifest."""

    def settings(self, study: Study, windows: int) -> tuple[EvaluationSettings, EvaluationSettings]:
        """Local ones, with the paths of this machine, and portable ones, which say nothing about it and are kept."""
        portable = study.settings(windows)
        local = replace(portable, trace=str(self.traces / portable.trace))
        general = f"models/{Path(self.general).name}" if self.general.endswith(".json") else self.general
        return replace(local, model=self.general), replace(portable, model=general)

    def missing(self, study: Study) -> str:
        """Which file a study cannot do without; "" when all are there."""
        if not (self.traces / study.protocol.trace.file).exists():
            return f"{study.protocol.trace.file} is not among the traces"
        if study.peer is not None and not (self.models / study.peer).exists():
            return f"models/{study.peer} is not trained here yet"
        return ""


def run(
    studies: Iterable[Study],
    sources: Sources,
    out: Path,
    pool: WorkerPool,
    *,
    windows: int,
    revision: str,
    say: Say,
    progress: Progress = silent,
) -> list[str]:
    """Every study whose result is not there, or was made from something else; returns the names of those that were run.

    A study that was interrupted goes on where it stopped, if nothing has changed since.

    Raises:
        WorkloadError, ModelError, EvaluationError: as `ready`.
    """
    done = []
    begun = code()
    for study in studies:
        if lacking := sources.missing(study):
            say(f"{study.name}: left out: {lacking}")
            continue
        local, portable = sources.settings(study, windows)
        path = out / f"{study.name}.json"
        peer = None if study.peer is None else sources.models / study.peer
        command = portable.command if peer is None else f"python -m studies --only {study.name}"
        made_from = inputs(local, command, begun) if peer is None else peer_inputs(local, command, begun, study, peer)
        if changed := _changed(path, made_from):
            say(f"{study.name}: {changed}")
        else:
            say(f"{study.name}: unchanged")
            continue
        evaluation = ready(local, read(local.trace), read_shape(local.cluster), revision)
        own = {"name": study.name, "part": study.part.value, "label": study.label, "inputs": made_from}
        settings = {"command": command, "settings": portable.as_dict(), "policies": made_from["policies"]}
        meta = {**evaluation.meta, **settings, "study": own}
        evaluation = replace(evaluation, meta=meta)
        if peer is None:
            report = assemble(evaluation, evaluate(evaluation, pool, path, progress=progress))
        else:
            report = measure.evaluate(evaluation, study.label, peer, pool.processes, progress)
        # Workers that start later load what is there by then.
        if code() != begun:
            state_path(path).unlink(missing_ok=True)
            raise EvaluationError(
                f"{study.name}: the code was changed while it ran, so it is not kept: `make results` again"
            )
        kept.write(kept.slim(report), path)
        done.append(study.name)
    return done


def inputs(local: EvaluationSettings, command: str, digest: str) -> dict[str, Any]:
    """All that a result depends on, in digests; `digest`: that of the code."""
    learned = [name for name in local.policies if name in LEARNED]
    return {
        "command": command,
        "trace": _sha256(Path(local.trace)),
        "policies": {name: described(name, local) for name in local.policies},
        # Beside the weights (in `policies`), what makes a policy of them.
        "networks": {name: str(files.info(model_path(local.model)).hidden) for name in learned},
        "code": digest,
    }


def peer_inputs(local: EvaluationSettings, command: str, digest: str, study: Study, model: Path) -> dict[str, Any]:
    """The same of the result of a published peer."""
    return {
        "command": command,
        "trace": _sha256(Path(local.trace)),
        "policies": {study.label: measure.described(local, model)},
        "code": digest,
    }


def code() -> str:
    """Digest of the code that the numbers come from, without comments, docstrings and layout."""
    package = Path(rltuned.__file__).parent
    found = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in package.glob(pattern)):
        found.update(f"{path.relative_to(package)}\n{meaning(path.read_text(encoding='utf-8'))}\n".encode())
    return found.hexdigest()


def meaning(source: str) -> str:
    """Python source as its syntax tree, without strings that are statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [item for item in value if not _is_remark(item)])
    return ast.dump(tree)


def _is_remark(item: object) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(path: Path, made_from: Mapping[str, Any]) -> str:
    """Why a study has to be run; "" when it has not."""
    try:
        was = json.loads(path.read_text(encoding="utf-8"))["meta"]["study"]["inputs"]
    except FileNotFoundError:
        return "new"
    except (OSError, ValueError, KeyError, TypeError):
        return "what is there cannot be read: run again"
    now = json.loads(json.dumps(made_from))
    different = [name for name in now if was.get(name) != now[name]]
    return f"run again: changed {', '.join(different)}" if different else ""

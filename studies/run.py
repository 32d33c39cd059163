"""Does what is missing or out of date."""

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import rltuned
from rltuned.config import DEFAULT_MODEL
from rltuned.errors import EvaluationError
from rltuned.evaluate.executors import Executor
from rltuned.evaluate.policies import described, model_name
from rltuned.evaluate.run import evaluate, prepare
from rltuned.evaluate.settings import LEARNED, PEERS, EvaluationSettings
from rltuned.evaluate.state import State, state_path
from rltuned.policy import files
from rltuned.workers.progress import Progress, silent
from studies import kept
from studies.catalogue import Study

CODE: Final = (
    "config.py",
    *(f"{package}/*.py" for package in ("cluster", "observe", "policy", "decide", "simulate", "workload")),
    *(
        f"evaluate/{module}.py"
        for module in ("bound", "case", "measure", "metrics", "policies", "report", "run", "settings", "windows")
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
    """Holds `philly.json` …, and more below `unseen/`, `peers/` and `bases/` (`catalogue.studies`)."""
    general: str = DEFAULT_MODEL
    """The general model: a shipped name, or the path of its manifest."""

    def settings(self, study: Study, windows: int) -> tuple[EvaluationSettings, EvaluationSettings]:
        """Local ones, with the paths of this machine, and portable ones, which say nothing about it and are kept."""
        portable = study.settings(windows)
        local = replace(portable, trace=str(self.traces / portable.trace))
        if study.model is not None:
            return (
                _with_model(local, study, str(self.models / study.model)),
                _with_model(portable, study, f"models/{study.model}"),
            )
        general = f"models/{Path(self.general).name}" if self.general.endswith(".json") else self.general
        return replace(local, model=self.general), replace(portable, model=general)

    def missing(self, study: Study) -> str:
        """Which file a study cannot do without; "" when all are there."""
        if not (self.traces / study.protocol.trace.file).exists():
            return f"{study.protocol.trace.file} is not among the traces"
        if study.model is not None and not (self.models / study.model).exists():
            return f"models/{study.model} is not trained here yet"
        return ""


def _with_model(settings: EvaluationSettings, study: Study, model: str) -> EvaluationSettings:
    match study.policies[0]:
        case "rlscheduler":
            return replace(settings, rlscheduler=model)
        case "schedinspector":
            return replace(settings, schedinspector=model)
        case _:
            return replace(settings, model=model)


def run(
    studies: Iterable[Study],
    sources: Sources,
    out: Path,
    executor: Executor,
    *,
    windows: int,
    revision: str,
    say: Say,
    progress: Progress = silent,
) -> list[str]:
    """Every study whose result is not there, or was made from something else; returns the names of those that were run.

    A study that was interrupted goes on where it stopped, if nothing has changed since.

    Raises:
        WorkloadError, ModelError, EvaluationError: as `prepare`.
    """
    done = []
    begun = code()
    for study in studies:
        if lacking := sources.missing(study):
            say(f"{study.name}: left out: {lacking}")
            continue
        local, portable = sources.settings(study, windows)
        path = out / f"{study.name}.json"
        made_from = inputs(local, portable, begun)
        if changed := _changed(path, made_from):
            say(f"{study.name}: {changed}")
        else:
            say(f"{study.name}: unchanged")
            continue
        evaluation = prepare(local, revision)
        own = {"name": study.name, "part": study.part.value, "label": study.label, "inputs": made_from}
        meta = {**evaluation.meta, "command": portable.command, "settings": portable.as_dict(), "study": own}
        report = evaluate(
            replace(evaluation, meta=meta), executor, path, resume=_resumable(path, meta), progress=progress
        )
        # Workers that start later load what is there by then.
        if code() != begun:
            state_path(path).unlink(missing_ok=True)
            raise EvaluationError(
                f"{study.name}: the code was changed while it ran, so it is not kept: `make results` again"
            )
        kept.write(kept.slim(report), path)
        done.append(study.name)
    return done


def inputs(local: EvaluationSettings, portable: EvaluationSettings, digest: str) -> dict[str, Any]:
    """All that a result depends on, in digests; `digest`: that of the code."""
    learned = [name for name in local.policies if name in (*LEARNED, *PEERS)]
    return {
        "command": portable.command,
        "trace": _sha256(Path(local.trace)),
        "policies": {name: described(name, local) for name in local.policies},
        # Beside the weights (in `policies`), what makes a policy of them.
        "networks": {name: str(files.info(model_name(name, local)).architecture) for name in learned},
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


def _resumable(path: Path, meta: Mapping[str, Any]) -> bool:
    """Whether what was interrupted is this."""
    try:
        with State(state_path(path), meta, resume=True):
            return True
    except EvaluationError:
        return False

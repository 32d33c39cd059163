"""The directory of a training run: its settings, what was measured, and what is needed to resume it.

settings.json        what decides the result, with the traces' sha256 and the code's revision
metrics.jsonl        one line for each iteration
checkpoints/         the state after an iteration; the last two are kept
NAME.json, NAME.safetensors    the model that was kept
"""

import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import EvaluationError
from rltuned.core.safe_files import write_atomic
from rltuned.records.model_files import json_bytes

KEPT: Final = 2
"""Checkpoints: the last may have been cut off by whatever ended the run."""


class RunDirectory:
    """One run. Each file is replaced as a whole, for the run may be killed at any moment."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Begin a run, or go on with one. EvaluationError: there is a run already and `resume` is not asked for, or it
        has other settings; or the directory cannot be written.
        """
        self.path = path
        asked = json.loads(json.dumps(settings))
        file = path / "settings.json"
        try:
            # A run that failed or was killed before its first checkpoint has nothing that could be lost or mixed up.
            if file.exists() and self.last() is not None:
                there = json.loads(file.read_text(encoding="utf-8"))
                if not resume:
                    raise EvaluationError(f"{path}: there is a training run already; give --resume, or another --out")
                if changed := sorted(key for key in asked.keys() | there.keys() if asked.get(key) != there.get(key)):
                    raise EvaluationError(
                        f"{path}: was trained with other settings ({', '.join(changed)}); cannot go on"
                    )
            else:
                (path / "checkpoints").mkdir(parents=True, exist_ok=True)
                write_atomic(file, json_bytes(asked))
        except (OSError, json.JSONDecodeError) as error:
            raise EvaluationError(f"{path}: cannot be used: {error}") from error

    def save(self, iteration: int, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """The state after `iteration`; `facts`: what is not an array, as JSON."""
        partial = self.path / "checkpoints" / ".partial.npz"
        text = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        with partial.open("wb") as file:
            np.savez(file, **arrays, facts=text)  # type: ignore[arg-type]  # its stubs take the names for options
        partial.replace(partial.with_name(f"{iteration:06d}.npz"))
        for old in self._checkpoints()[:-KEPT]:
            old.unlink(missing_ok=True)

    def last(self) -> tuple[int, dict[str, npt.NDArray[Any]], dict[str, Any]] | None:
        """The newest checkpoint that is whole: iteration, arrays, and facts."""
        for path in reversed(self._checkpoints()):
            try:
                with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                    arrays = {name: held[name] for name in held.files}
            except (OSError, ValueError, EOFError, zipfile.BadZipFile):
                continue
            facts = json.loads(arrays.pop("facts").tobytes())
            return int(path.stem), arrays, facts
        return None

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def forget_metrics(self, after: int) -> None:
        """Drop the lines of metrics.jsonl that are of later iterations."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        kept = []
        for text in file.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # cut off by whatever ended the run
                kept += [f"{text}\n"] if json.loads(text).get("step", 0) <= after else []
        write_atomic(file, "".join(kept).encode())

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in (self.path / "checkpoints").glob("*.npz") if path.stem.isdigit())

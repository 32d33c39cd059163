"""What an interrupted evaluation has already measured: a file beside its output, one line for each finished piece.

The first line says what was asked for; the others are appended as they come. A last line that was cut off by whatever
ended the run is dropped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rltuned.core.errors import EvaluationError

FORMAT = 2


def state_path(out: Path) -> Path:
    """Where the state of an evaluation is whose result goes to `out`."""
    return out.with_name(out.name + ".state")


class EvaluationState(dict[tuple[int, int], dict[str, float]]):
    """`measure.Outcomes` that are in a file, too. Use as a context. Whoever has written the result removes the file."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Go on from the file, or begin anew where it is none of this evaluation.

        `asked`: what the numbers depend on: settings, trace, revision. Raises EvaluationError: it cannot be written.
        """
        super().__init__()
        self.path = path
        header = json.dumps({"format": FORMAT, "asked": asked})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = self._read(header)
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error

    def _read(self, header: str) -> list[str]:
        """The lines of this evaluation that are whole."""
        try:
            # Behind the last line end: nothing, or a line that was cut off.
            first, *lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
            found = {(row, column): values for row, column, values in map(json.loads, lines)}
        except (FileNotFoundError, ValueError, TypeError):
            return [header]
        if first != header:
            return [header]
        self.update(found)
        return [header, *lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __setitem__(self, place: tuple[int, int], values: dict[str, float]) -> None:
        super().__setitem__(place, values)
        try:
            self._file.write(json.dumps([*place, values]) + "\n")
            self._file.flush()
        except OSError as error:
            raise EvaluationError(f"{self.path}: cannot be written: {error.strerror or error}") from error

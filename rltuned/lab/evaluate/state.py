"""What an interrupted evaluation has already measured: a file beside its output, one line for each finished piece.

The first line says what was asked for; the others are outcomes, appended as they come. A last line that was cut off by
whatever ended the run is dropped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.measure import Outcome

FORMAT = 1


def state_path(out: Path) -> Path:
    """Where the state of an evaluation is whose result goes to `out`."""
    return out.with_name(out.name + ".state")


class State:
    """The state file, open for more. Use as a context. Whoever has written the result removes the file."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """Go on from the file, or begin anew where it is none of this evaluation.

        `asked`: what the numbers depend on: settings, trace, revision. Raises EvaluationError: it cannot be written.
        """
        self.path = path
        self.outcomes: list[Outcome] = []
        """What had been measured before."""
        header = json.dumps({"format": FORMAT, "asked": asked})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = self._whole(header)
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, outcome: Outcome) -> None:
        """Keep what was just measured."""
        try:
            self._file.write(json.dumps(vars(outcome)) + "\n")
            self._file.flush()
        except OSError as error:
            raise EvaluationError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _whole(self, header: str) -> list[str]:
        """The lines of this evaluation that are whole."""
        try:
            # Behind the last line end: nothing, or a line that was cut off.
            lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
            found = [Outcome(**json.loads(line)) for line in lines[1:]]
        except (FileNotFoundError, ValueError, TypeError):
            return [header]
        if lines[:1] != [header]:
            return [header]
        self.outcomes = found
        return lines

"""What an interrupted evaluation has already measured: a file beside its output, one line for each finished piece.

The first line says what was asked for; the others are outcomes, appended as they come. A last line that was cut off by
whatever ended the run is dropped.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rltuned.errors import EvaluationError
from rltuned.evaluate.measure import Outcome

FORMAT = 1


def state_path(out: Path) -> Path:
    """Where the state of an evaluation is whose result goes to `out`."""
    return out.with_name(out.name + ".state")


class State:
    """The state file, open for more. Use as a context. Whoever has written the result removes the file."""

    def __init__(self, path: Path, asked: Mapping[str, Any], *, resume: bool) -> None:
        """Begin anew, or go on from the file if `resume` and there is one.

        `asked`: what the numbers depend on: settings, trace, revision. `resume`: go on where it stopped. Raises
        EvaluationError: the file was written for something else (the message names what differs), is no state, or
        cannot be read or written.
        """
        self.path = path
        self.outcomes: list[Outcome] = []
        """What had been measured before."""
        header = {"format": FORMAT, "asked": json.loads(json.dumps(asked))}
        try:
            if resume and path.exists():
                kept = self._read(header)
                path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(header) + "\n", encoding="utf-8")
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Keep what was just measured."""
        try:
            for outcome in outcomes:
                self._file.write(json.dumps(vars(outcome)) + "\n")
            self._file.flush()
        except OSError as error:
            raise EvaluationError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _read(self, header: Mapping[str, Any]) -> list[str]:
        """The lines that are whole."""
        # Behind the last line end: nothing, or a line that was cut off.
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
        try:
            first = json.loads(lines[0])
            asked = first["asked"] if first["format"] == FORMAT else None
            self.outcomes = [Outcome(**json.loads(line)) for line in lines[1:]]
        except (ValueError, TypeError, KeyError, IndexError):
            asked = None
        if asked is None:
            raise EvaluationError(f"{self.path}: is not the state of an evaluation; remove it, or leave out --resume")
        if different := list(_differences(asked, header["asked"])):
            raise EvaluationError(
                f"{self.path}: belongs to another evaluation:\n"
                + "\n".join(f"  {name}: {was} then, {now} now" for name, was, now in different)
                + "\nrun it as it was, or leave out --resume to begin anew"
            )
        return lines


def _differences(was: Any, now: Any, name: str = "") -> Any:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            yield from _differences(was.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif was != now:
        yield name, json.dumps(was), json.dumps(now)

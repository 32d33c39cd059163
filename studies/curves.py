"""Learning curves: what is kept of a training run, and how it is drawn.

``python -m studies.curves RUN OUT.json`` keeps those of a run directory of `rltuned train` (docs/training.md);
`studies/models/train.sh` does so after each training.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rltuned.errors import EvaluationError
from rltuned.installed import needed

PREFIX: Final = "curve-"
"""Of a kept file in the directory of results; the rest of its name is that of the curve."""
FIGURE: Final = "curves"
"""Directory of their pictures, beside those of the protocols."""
DIGITS: Final = 6


@dataclass(frozen=True)
class Curve:
    """Of one training run."""

    name: str
    meta: Mapping[str, Any]
    points: Sequence[Mapping[str, float]]
    """By iteration: `objective` over the base policy's in training, `validation.METRIC` over the best plain rule's."""

    def of(self, metric: str) -> list[tuple[int, float]]:
        """Iteration and value, where it was measured."""
        return [(int(point["iteration"]), point[metric]) for point in self.points if metric in point]


def kept(run: Path) -> str:
    """JSON of what is kept of a run directory, a line for each iteration.

    Raises:
        EvaluationError: it is no run directory.
    """
    try:
        settings = json.loads((run / "settings.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        meta = {
            "traces": [f"{site['trace']} on {site['cluster']}" for site in settings["sites"]],
            "revision": settings["revision"],
            "settings": settings["settings"],
        }
        points = [
            {
                key: round(value, DIGITS)
                for key, value in line.items()
                if key in {"iteration", "objective"} or key.startswith("validation.")
            }
            for line in lines
        ]
        rows = ",\n  ".join(json.dumps(point, allow_nan=False) for point in points)
        return f'{{\n "meta": {json.dumps(meta, allow_nan=False)},\n "points": [\n  {rows}\n ]\n}}\n'
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(f"{run}: not a run directory of `rltuned train`: {error!r}") from error


def read(results: Path) -> list[Curve]:
    """All that are kept, by name.

    Raises:
        EvaluationError: one cannot be read.
    """
    found = []
    for path in sorted(results.glob(f"{PREFIX}*.json")):
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            found.append(Curve(path.stem.removeprefix(PREFIX), held["meta"], held["points"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EvaluationError(f"{path}: cannot be read: {error!r}") from error
    return found


def draw(curves: Sequence[Curve], metric: str, path: Path) -> None:
    """One picture.

    Raises:
        MissingError: matplotlib is not installed.
        EvaluationError: the file cannot be written.
    """
    with needed("a picture"):
        # Figure, not pyplot: no display, no state.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of the extra [simulate]
        from matplotlib.figure import Figure  # noqa: PLC0415 - see above
    figure = Figure(figsize=(6.5, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve in curves:
        axes.plot(*zip(*curve.of(metric), strict=True), marker=".", label=curve.name)
    axes.set(xlabel="iteration", ylabel=f"{metric}, over the best plain rule's")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Keeps the curves of a run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.curves", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of `rltuned train`")
    parser.add_argument("out", type=Path, help=f"file to write: studies/results/{PREFIX}NAME.json")
    asked = parser.parse_args(arguments)
    try:
        text = kept(asked.run)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text, encoding="utf-8")
    except (EvaluationError, OSError) as error:
        sys.stderr.write(f"curves: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/images/waiting.svg: how long jobs wait under Slurm's multifactor order and under rltuned, from one kept result.

``python -m studies.picture`` draws it. The same result gives the same bytes: numbers are rounded before they are
written, and nothing but this file decides how it looks.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final
from xml.sax.saxutils import escape

from rltuned.errors import EvaluationError
from rltuned.evaluate.evaluation_report import best_plain
from studies.kept import read_report

STUDY: Final = "philly-4x8-noisy"
"""A trace in which jobs wait for long, under Slurm as it is, with estimates that are as wrong as those of users."""
NAME: Final = "waiting.svg"
BEFORE: Final = "multifactor"
AFTER: Final = "rl"
COMMAND: Final = "python -m studies.picture"

HOUR: Final = 3600.0
WIDTH: Final = 800
HEIGHT: Final = 440
LEFT, RIGHT, TOP, BOTTOM = 58, 112, 88, 332
"""Of the plot: room for the axis, for the labels of the means, for the title, and for the text below."""

STYLE: Final = """\
.back{fill:#fff}.text{fill:#1f2328}.faint{fill:#59636e}.grid{stroke:#d1d9e0}
.before{fill:#a5aeb8}.after{fill:#0969da}.meanbefore{stroke:#59636e}.meanafter{stroke:#0969da}.said{fill:#0969da}
@media (prefers-color-scheme:dark){
.back{fill:#0d1117}.text{fill:#f0f6fc}.faint{fill:#9198a1}.grid{stroke:#3d444d}
.before{fill:#656c76}.after{fill:#4493f8}.meanbefore{stroke:#9198a1}.meanafter{stroke:#4493f8}.said{fill:#4493f8}}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:13px}
.title{font-size:21px;font-weight:600}.strong{font-weight:600}.note{font-size:12px}"""


@dataclass(frozen=True)
class Waits:
    """Mean waits of the jobs of each window under both, in hours; the longest under Slurm's order first."""

    before: tuple[float, ...]
    after: tuple[float, ...]


def waits(report: Mapping[str, Any]) -> Waits:
    """Of the windows in which jobs ran."""
    pairs = [
        (found[BEFORE]["wait_mean"], found[AFTER]["wait_mean"]) for found in (w["policies"] for w in report["windows"])
    ]
    hours = sorted(((a / HOUR, b / HOUR) for a, b in pairs if a is not None and b is not None), reverse=True)
    return Waits(tuple(a for a, _ in hours), tuple(b for _, b in hours))


def draw(report: Mapping[str, Any]) -> str:
    """The picture as SVG, which follows the reader's light or dark mode."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    meta, found = report["meta"], waits(report)
    before, after = fmean(found.before), fmean(found.after)
    title = f"Jobs wait {after:.1f} hours instead of {before:.1f}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="title source">'
    )
    yield f'<title id="title">{title}: mean wait under Slurm\'s multifactor order and under rltuned</title>'
    yield f'<desc id="source">Made by {COMMAND} from studies/results/{STUDY}.json: {escape(meta["command"])}</desc>'
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    yield _text(20, 34, title, "text title")
    for x, kind, name in ((20, "before", "Slurm’s multifactor order"), (222, "after", "rltuned")):
        yield f'<rect class="{kind}" x="{x}" y="51" width="12" height="12"/>{_text(x + 18, 62, name, "text")}'
    yield _text(312, 62, f"{_gpus(meta)}, {_trace(meta)}", "faint")
    yield from _plot(found)
    for row, line in enumerate(_notes(report, found)):
        yield _text(LEFT, BOTTOM + 50 + 18 * row, line, "faint note")
    yield "</svg>"


def _plot(found: Waits) -> Iterator[str]:
    step = _step(max(*found.before, *found.after))
    most = step * math.ceil(max(*found.before, *found.after) / step)
    scale, right = (BOTTOM - TOP) / most, WIDTH - RIGHT
    for tick in range(round(most / step) + 1):
        y = BOTTOM - tick * step * scale
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
        yield _text(LEFT - 8, y + 4, f"{tick * step:g}", "faint", "end")
    middle = (TOP + BOTTOM) / 2
    yield _text(20, middle, "mean wait of a job, hours", "faint", "middle", turned=True)
    slot = (right - LEFT) / len(found.before)
    for column, (before, after) in enumerate(zip(found.before, found.after, strict=True)):
        x = LEFT + column * slot
        yield _bar("before", x + 0.1 * slot, 0.8 * slot, before * scale)
        yield _bar("after", x + 0.28 * slot, 0.44 * slot, after * scale)
    for name, kind, values in (("before", "faint", found.before), ("after", "said", found.after)):
        y = BOTTOM - fmean(values) * scale
        yield f'<path class="mean{name}" d="M{LEFT} {y:.1f}H{right}" stroke-width="1.5" stroke-dasharray="6 4"/>'
        yield _text(right + 8, y + 4, f"mean {fmean(values):.1f} h", f"{kind} strong")
    yield _text(
        (LEFT + right) / 2,
        BOTTOM + 20,
        f"{len(found.before)} parts of the trace, by the wait under Slurm’s order",
        "faint",
        "middle",
    )


def _notes(report: Mapping[str, Any], found: Waits) -> Iterator[str]:
    """What the picture leaves out and a careful reader asks for."""
    meta, policies = report["meta"], report["policies"]
    less = sum(after < before for before, after in zip(found.before, found.after, strict=True))
    longest = policies[AFTER]["wait_max"] / policies[BEFORE]["wait_max"]
    yield (
        f"The mean wait is shorter in {less} of {len(found.before)} parts of {report['windows'][0]['jobs']:,} jobs. "
        f"The longest wait is {longest:.2f} times as long."
    )
    yield f"Simulated, with Slurm's own backfill in both cases. {_estimates(meta['settings']['estimates'])}"
    best = best_plain(report)
    rule = "" if best is None else f"The best plain rule, {best}: {policies[best]['wait_mean'] / HOUR:.1f} h. "
    yield f"{rule}Intervals and other traces: docs/results.md"


def _estimates(estimates: str) -> str:
    kind, _, sigma = estimates.partition(":")
    if kind == "noisy":
        return f"Run-time estimates are wrong by a factor of {math.exp(float(sigma)):.1f} (1 σ)."
    return "Run times are known." if kind == "true" else "Run times are estimated by the users’ time limits."


def _trace(meta: Mapping[str, Any]) -> str:
    name = meta["trace"]["name"].partition(".")[0]
    return f"jobs of the {name.capitalize()} trace"


def _gpus(meta: Mapping[str, Any]) -> str:
    return f"{meta['cluster']['gpus']} GPUs"


def _step(most: float) -> float:
    """Between the lines of a scale that has about five of them: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= most)


def _bar(kind: str, x: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{BOTTOM - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start", *, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{at}{turn}>{escape(text)}</text>'


def write(results: Path, path: Path) -> None:
    """Draws the picture from the kept results.

    Raises:
        EvaluationError: the result cannot be read, or the picture cannot be written.
    """
    picture = draw(read_report(results / f"{STUDY}.json"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the picture; returns the exit code."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(prog=COMMAND, description="Draws how long jobs wait, from a kept result.")
    parser.add_argument("--results", type=Path, default=here / "results", help="(default: studies/results)")
    parser.add_argument("--out", type=Path, default=here.parent / "docs" / "images" / NAME, help="of the picture")
    asked = parser.parse_args(arguments)
    try:
        write(asked.results, asked.out)
    except EvaluationError as error:
        sys.stderr.write(f"picture: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

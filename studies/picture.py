"""docs/images/waiting.svg: how long jobs of each size wait on a real Slurm, tuned, and with rltuned, from a kept A/B.

``python -m studies.picture`` draws it. The same result gives the same bytes: numbers are rounded before they are
written, and nothing but this file decides how it looks.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from rltuned.errors import EvaluationError
from studies import clusters
from studies.clusters import RealCluster

NAME: Final = "waiting.svg"
COMMAND: Final = "python -m studies.picture"
BARS: Final = (("multifactor", "Slurm as configured"), ("tuned", "Slurm, tuned"), ("rl", "rltuned"))
"""Arms and their names; the first is 100 %."""

WIDTH: Final = 800
HEIGHT: Final = 380
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 88, 290
"""Of the plot: room for the axis, for the title, and for the text below."""

STYLE: Final = """\
.back{fill:#fff}.text{fill:#1f2328}.faint{fill:#59636e}.grid{stroke:#d1d9e0}
.multifactor{fill:#a5aeb8}.tuned{fill:#d4a72c}.rl{fill:#0969da}
@media (prefers-color-scheme:dark){
.back{fill:#0d1117}.text{fill:#f0f6fc}.faint{fill:#9198a1}.grid{stroke:#3d444d}
.multifactor{fill:#656c76}.tuned{fill:#d29922}.rl{fill:#4493f8}}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:13px}
.title{font-size:21px;font-weight:600}.note{font-size:12px}"""


def draw(real: RealCluster) -> str:
    """The picture as SVG, which follows the reader's light or dark mode."""
    return "\n".join(_lines(real)) + "\n"


def _lines(real: RealCluster) -> Iterator[str]:
    bars = [(arm, name) for arm, name in BARS if arm in real.arms]
    found = real.ratio("rl", BARS[0][0])
    wait = 1.0 if found.ratio is None else found.ratio
    title = f"Jobs wait {100 * abs(1.0 - wait):.0f} % {'less' if wait < 1.0 else 'more'} on a real Slurm"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="title source">'
    )
    yield f'<title id="title">{title}: mean wait by size of the jobs</title>'
    yield f'<desc id="source">Made by {COMMAND} from studies/results/{clusters.TUNED}.json</desc>'
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    yield _text(20, 34, title, "text title")
    for at, (arm, name) in enumerate(bars):
        yield f'<rect class="{arm}" x="{20 + 180 * at}" y="51" width="12" height="12"/>'
        yield _text(38 + 180 * at, 62, name, "text")
    yield from _plot(real, bars)
    yield _text(
        LEFT,
        BOTTOM + 52,
        f"{real.jobs:,} jobs in {len(real.runs)} windows of {real.traces}, replayed on Slurm "
        f"{real.releases} with fair share in force.",
        "faint note",
    )
    yield _text(LEFT, BOTTOM + 70, "Intervals, other releases, what is not won: docs/results.md", "faint note")
    yield "</svg>"


def _plot(real: RealCluster, bars: list[tuple[str, str]]) -> Iterator[str]:
    groups = {"all": {"jobs": real.jobs, **{arm: real.arms[arm] for arm, _ in bars}}, **real.groups.get("size", {})}
    shares = {
        name: [100.0 * of[arm]["wait_mean"] / of[bars[0][0]]["wait_mean"] for arm, _ in bars]
        for name, of in groups.items()
        if of[bars[0][0]]["wait_mean"]
    }
    most = max(100.0, *(value for values in shares.values() for value in values))
    scale = (BOTTOM - TOP) / most
    for tick in range(0, int(most) + 1, 25):
        y = BOTTOM - tick * scale
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 8, y + 4, f"{tick} %", "faint", "end")
    slot = (WIDTH - RIGHT - LEFT) / len(shares)
    for column, (name, values) in enumerate(shares.items()):
        x, width = LEFT + (column + 0.12) * slot, 0.76 * slot / len(bars)
        for at, ((arm, _), value) in enumerate(zip(bars, values, strict=True)):
            height = value * scale
            yield (
                f'<rect class="{arm}" x="{x + at * width:.1f}" y="{BOTTOM - height:.1f}" width="{0.92 * width:.1f}" '
                f'height="{height:.1f}"/>'
            )
            if at:
                yield _text(x + (at + 0.46) * width, BOTTOM - height - 4, f"{value:.0f}", "faint note", "middle")
        yield _text(LEFT + (column + 0.5) * slot, BOTTOM + 18, name, "text", "middle")
        yield _text(LEFT + (column + 0.5) * slot, BOTTOM + 33, f"{groups[name]['jobs']:,} jobs", "faint note", "middle")


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{at}>{escape(text)}</text>'


def write(results: Path, path: Path) -> None:
    """Draws the picture from the kept results.

    Raises:
        EvaluationError: the result is not there or cannot be read, or the picture cannot be written.
    """
    found = clusters.read(results)
    if clusters.TUNED not in found:
        raise EvaluationError(f"{results / clusters.TUNED}.json: is not there")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(draw(found[clusters.TUNED]), encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be written: {error.strerror or error}") from error


def main(arguments: list[str] | None = None) -> int:
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

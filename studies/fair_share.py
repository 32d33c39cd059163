"""What a budget of borrowed service buys where fair share decides (decision 0160), as a table and a picture.

``python -m studies.fair_share TRACES`` measures what studies/fair_share.csv does not have yet, and draws
docs/images/fair-share.svg. TRACES is the directory of the published traces.
"""

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rltuned import revision
from rltuned.config import DecideSection
from rltuned.evaluate.evaluation import evaluate, ready
from rltuned.evaluate.evaluation_settings import AGAIN, EvaluationSettings, Start
from rltuned.evaluate.executors import LocalExecutor
from rltuned.workload import Workload
from rltuned.workload.shapes import read_shape
from studies.traces import read

TABLE: Final = Path("studies/fair_share.csv")
PICTURE: Final = Path("docs/images/fair-share.svg")
SLURM: Final = "multifactor"
DEFAULT: Final[float] = DecideSection().borrow
BUDGETS: Final = (0.0, DEFAULT, 0.06, 0.3, 1000.0)
BOUNDS: Final = {"worse": 0.05, "moved": 0.08}
"""By how much more than by chance accounts may be worse off, and service may be moved."""
COLUMNS: Final = (
    *("trace", "weights", "borrow", "wait", "wait_lo", "wait_hi", "wait_median_window", "slowdown", "p99"),
    *("makespan", "gpus", "worse", "worse_chance", "moved", "moved_chance"),
)


class Protocol(NamedTuple):
    """Windows of jobs with users on a cluster."""

    trace: str
    file: str
    cluster: str
    window: int


PROTOCOLS: Final = (
    Protocol("Graham", "drac-graham.csv.gz", "14x8", 768),
    Protocol("Venus", "helios-venus-users.csv.gz", "8x8:v100", 768),
    Protocol("Philly", "philly-users.csv.gz", "4x8", 512),
)


class Cell(NamedTuple):
    """One evaluation."""

    protocol: Protocol
    weights: str
    borrow: float

    @property
    def key(self) -> tuple[str, ...]:
        """As the first columns of the table have it."""
        return self.protocol.trace, self.weights, f"{self.borrow:g}"


def cells() -> Iterator[Cell]:
    """The default first."""
    for weights in ("fair-share", "usual"):
        yield from (Cell(protocol, weights, DEFAULT) for protocol in PROTOCOLS)
    for protocol in PROTOCOLS:
        yield from (Cell(protocol, "fair-share", borrow) for borrow in BUDGETS if borrow != DEFAULT)


def measured(cell: Cell, jobs: Workload, trace: Path) -> dict[str, Any]:
    """A row of the table."""
    protocol = cell.protocol
    settings = EvaluationSettings(
        trace=str(trace),
        cluster=protocol.cluster,
        window=protocol.window,
        windows=12,
        policies=(SLURM, AGAIN, "rl"),
        estimates="noisy:0.8",
        start=Start.WARM,
        warm_jobs=256,
        weights=cell.weights,
        borrow=cell.borrow,
        skip_bad=True,
        rollout=False,
    )
    found = evaluate(ready(settings, jobs, read_shape(protocol.cluster), revision()), LocalExecutor())
    ratios, ours, chance = (
        found["comparisons"][f"rl/{SLURM}"],
        found["policies"]["rl"],
        found["policies"][AGAIN],
    )
    windows = [window["policies"] for window in found["windows"]]
    return dict(
        zip(
            COLUMNS,
            (
                *cell.key,
                *(ratios["wait_mean"][of] for of in ("ratio", "lo", "hi")),
                median(of["rl"]["wait_mean"] / of[SLURM]["wait_mean"] for of in windows),
                *(ratios[metric]["ratio"] for metric in ("bsld_mean", "wait_p99", "makespan", "utilization")),
                *(of[metric] for metric in ("accounts_worse", "service_moved") for of in (ours, chance)),
            ),
            strict=True,
        )
    )


def kept() -> list[dict[str, str]]:
    """Rows of the table, as they are written; none where nothing was measured."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_default() -> list[dict[str, str]]:
    """Those of the default budget."""
    return [row for row in kept() if row["borrow"] == f"{DEFAULT:g}"]


def draw(rows: list[Mapping[str, Any]]) -> None:
    """The picture: mean wait over the service that is moved, a line for each trace, a point for each budget."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for protocol in PROTOCOLS:
        line = [row for row in rows if (row["trace"], row["weights"]) == (protocol.trace, "fair-share")]
        line.sort(key=lambda row: float(row["borrow"]))
        more = [float(row["moved"]) - float(row["moved_chance"]) for row in line]
        (drawn,) = axes.plot(more, [float(row["wait"]) for row in line], marker="o", label=protocol.trace)
        for x, row in zip(more, line, strict=True):
            share = "no bound" if float(row["borrow"]) >= 1 else f"{row['borrow']}"
            bold = "bold" if float(row["borrow"]) == DEFAULT else "normal"
            axes.annotate(share, (x, float(row["wait"])), (4, 4), textcoords="offset points", size=8, weight=bold)
        axes.plot(more, [float(row["wait_median_window"]) for row in line], ":", color=drawn.get_color())
    axes.axvline(BOUNDS["moved"], color="grey", linestyle="--", linewidth=1)
    axes.set_xlabel("share of GPU time that others got, beyond chance (dashed: what is allowed)")
    axes.set_ylabel("wait over that of Slurm's own order\n(line: of means, dots: median window)")
    axes.grid(alpha=0.3)
    axes.legend(title="decide.borrow at each point")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rltuned"}):  # the same numbers make the same bytes
        figure.savefig(PICTURE, metadata={"Date": None})


def main(directory: Path) -> None:
    """Measures what is missing, and draws."""
    rows: list[Mapping[str, Any]] = [*kept()]
    known = {tuple(row[name] for name in COLUMNS[:3]) for row in rows}
    for cell in cells():
        if cell.key in known:
            continue
        trace = directory / cell.protocol.file
        row = measured(cell, read(trace, skip_bad=True), trace)
        rows.append({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()})
        print(*rows[-1].values(), flush=True)  # noqa: T201
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    draw(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

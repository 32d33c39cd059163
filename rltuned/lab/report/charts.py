"""The report's charts: SVG by matplotlib, to stand in a page whose style sheet gives colours and fonts.

Each chart is drawn twice, for a wide and for a narrow screen. Colours are placeholders that become CSS variables, so
one drawing serves a light and a dark page.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from rltuned.lab.report.report_tables import REPLAYS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE: Final = (8.6, 3.2)  # inches, at 72 points each
NARROW: Final = (4.6, 3.4)

INK: Final = "#010101"
GRID: Final = "#010102"
REAL: Final = "#010103"
SLURM: Final = "#010104"
OURS: Final = "#010105"
_CSS: Final = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    REAL: "var(--real)",
    SLURM: "var(--slurm)",
    OURS: "var(--ours)",
}
_STYLE: Final = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
COLOURS: Final = {"real": REAL, "slurm": SLURM, "rltuned": OURS}


def draw(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Wide and narrow SVG of each chart that the report has data for, by the section that it stands in."""
    log, replay = report["log"], report["replay"]
    wanted: dict[str, Callable[[Axes, bool], None]] = {}
    if replay is not None:
        if replay["groups"].get("size"):
            wanted["waits"] = lambda axes, narrow: _waits(axes, replay["groups"]["size"], narrow=narrow)
        if replay["predictions"] is not None:
            wanted["predictions"] = lambda axes, _: _predictions(axes, replay["predictions"])
    if replay is not None or (log is not None and log["series"]["time"]):
        wanted["queue"] = lambda axes, _: _over_time(axes, log, replay, "pending", "jobs waiting")
        wanted["gpus"] = lambda axes, _: _over_time(axes, log, replay, "gpus", "GPUs in use")
    return {name: (_svg(name, paint, narrow=False), _svg(name, paint, narrow=True)) for name, paint in wanted.items()}


def _svg(name: str, paint: "Callable[[Axes, bool], None]", *, narrow: bool) -> str:
    key = f"{name}-{'narrow' if narrow else 'wide'}"
    with mpl.rc_context({**_STYLE, "svg.hashsalt": key}):  # type: ignore[dict-item]  # the keys are strings here
        figure = Figure(figsize=NARROW if narrow else WIDE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        paint(axes, narrow)
        axes.grid(axis="y", linewidth=0.6)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper left", ncols=1 if narrow else len(labels))
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(file.getvalue(), key)


def _inline(svg: str, key: str) -> str:
    """The element alone, with ids of its own, colours of the page, and the page's font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\sid="|xlink:href="#|url\(#)', rf"\g<1>{key}-", svg)
    for placeholder, colour in _CSS.items():
        svg = svg.replace(placeholder, colour)
    # Text that is black by default says nothing of its colour.
    svg = re.sub(r'<text style="(?!fill)', '<text style="fill: var(--ink); ', svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    return re.sub(r'(<svg [^>]*?)width="[^"]*"|height="[^"]*pt"', r"\1", svg, count=2)


def _waits(axes: "Axes", groups: Sequence[Mapping[str, Any]], *, narrow: bool) -> None:
    width, longest = 0.27, max(group[f"wait_{of}"] for group in groups for of in REPLAYS)
    unit, seconds = ("hours", 3600.0) if longest >= 7200.0 else ("minutes", 60.0)
    for place, of in enumerate(REPLAYS):
        at = [index + (place - 1) * width for index in range(len(groups))]
        waits = [group[f"wait_{of}"] / seconds for group in groups]
        axes.bar(at, waits, width * 0.92, color=COLOURS[of], label=REPLAYS[of])
    names = [f"{group['name']}\n{group['jobs']:,} jobs" for group in groups]
    if narrow:
        names = [name.replace(" GPUs", "").replace(" GPU", "").replace(" jobs", "") for name in names]
        axes.set_xlabel("GPUs of the job, and how many such jobs")
    axes.set_xticks(range(len(groups)), names)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"mean wait, {unit}")


def _over_time(
    axes: "Axes", log: Mapping[str, Any] | None, replay: Mapping[str, Any] | None, what: str, label: str
) -> None:
    zone = datetime.now(UTC).astimezone().tzinfo
    series = (replay or log or {})["series"]
    times: Any = [datetime.fromtimestamp(second, zone) for second in series["time"]]
    if replay is not None:
        for of, name in REPLAYS.items():
            values, colour, real = series[f"{what}_{of}"], COLOURS[of], of == "real"
            dashes = (3, 2) if real else (None, None)
            axes.plot(times, values, color=colour, label=name, linewidth=1.6, dashes=dashes, zorder=3 if real else 2)
        if what == "gpus":
            axes.axhline(replay["gpus"], color=GRID, linewidth=1.2)
    else:
        values = series["pending" if what == "pending" else "gpus_used"]
        axes.plot(times, values, color=REAL, label="what the daemon saw", linewidth=1.6)
        if what == "gpus":
            axes.plot(times, series["gpus"], color=GRID, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    # matplotlib has no types here.
    locator = AutoDateLocator(minticks=3, maxticks=7, tz=zone)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]


def _predictions(axes: "Axes", found: Mapping[str, Any]) -> None:
    names = ["under ¼", "¼ to ½", "½ to 1", "1 to 2", "2 to 4", "over 4"]
    places = range(len(names))
    for shift, key, colour, name in (
        (-0.2, "limit", SLURM, "of the time limit"),
        (0.2, "predicted", OURS, "of the expected run time"),
    ):
        shares = [100.0 * share for share in found[key]]
        axes.bar([place + shift for place in places], shares, 0.37, color=colour, label=name)
    axes.set_xticks(list(places), names)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("the job really ran so many times")
    axes.set_ylabel("% of the jobs")

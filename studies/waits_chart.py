"""docs/images/waits.svg, the picture of the README: mean waits by size, Slurm alone and rltuned as installed."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from studies import waits
from studies.tables import number

NAME: Final = "waits.svg"
_WIDTH: Final = 720
_LEFT: Final = 130
_ROW: Final = 58
_BAR: Final = 18
_TOP: Final = 62
_STYLE: Final = """\
<style>
  text { font: 14px sans-serif; fill: #24292f } .title { font-weight: bold } .slurm { fill: #9aa4af }
  .ours { fill: #1f6feb }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .slurm { fill: #6e7681 } .ours { fill: #58a6ff } }
</style>"""


def picture(rows: Sequence[Mapping[str, str]]) -> str:
    """That of the first trace."""
    first = rows[0]
    jobs, nodes = number(int(first["jobs"])), first["nodes"].replace("x", " × ")
    return chart(rows, first["trace"], f"Mean wait of {jobs} jobs of {first['trace']} on {nodes} GPUs, simulated")


def chart(rows: Sequence[Mapping[str, str]], trace: str, where: str) -> str:
    """The picture of a trace, of rows of `studies.waits`, as SVG; "" where there are none. `where`: its title."""
    of = {(one["order"], one["gpus"]): one for one in rows if one["trace"] == trace}
    slurm, ours = waits.ORDERS[0], waits.ORDERS[-1]
    sizes = [size for size in waits.SIZES if {(slurm, size), (ours, size)} <= of.keys()]
    if not sizes:
        return ""
    hours = {(order, size): float(of[order, size]["mean_h"]) for order in (slurm, ours) for size in sizes}
    scale = (_WIDTH - _LEFT - 70) / max(hours.values())
    height = _TOP + _ROW * len(sizes) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(where)}</title>",
        _STYLE,
        f'<text class="title" x="0" y="18">{escape(where)}</text>',
        f'<rect class="slurm" x="{_LEFT}" y="32" width="12" height="12"/>',
        f'<text x="{_LEFT + 18}" y="43">Slurm alone</text>',
        f'<rect class="ours" x="{_LEFT + 130}" y="32" width="12" height="12"/>',
        f'<text x="{_LEFT + 148}" y="43">rltuned as installed</text>',
    ]
    for index, size in enumerate(sizes):
        top = _TOP + _ROW * index
        label = "all jobs" if size == "all" else f"{size} GPU{'' if size == '1' else 's'}"
        lines.append(f'<text x="0" y="{top + _BAR + 5}">{label}</text>')
        for bar, (order, kind) in enumerate(((slurm, "slurm"), (ours, "ours"))):
            long, y = hours[order, size] * scale, top + bar * (_BAR + 2)
            lines.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{long:.1f}" height="{_BAR}"/>')
            lines.append(f'<text x="{_LEFT + long + 6:.1f}" y="{y + 14}">{waits.told(hours[order, size])}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"

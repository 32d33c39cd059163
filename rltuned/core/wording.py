"""Numbers, times and foreign text as people read them.

Everything that comes from users of the cluster (names of partitions, QOS, nodes) passes through `plain`, so that a
terminal never sees their control characters.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.markup import escape
from rich.table import Table


def plain(text: object) -> str:
    """Text without control characters and markup."""
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text)))


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 45 s, 12 min, 3.5 h, 2.1 d."""
    if seconds is None:
        return "-"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}" if unit < 3600 else f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86_400:.1f} d"


def local_time(seconds: float) -> str:
    """Epoch seconds in this host's time zone."""
    return f"{datetime.fromtimestamp(seconds, UTC).astimezone():%Y-%m-%d %H:%M}"


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], right: Iterable[str] = ()) -> Table:
    """A table; the columns named in `right` are numbers."""
    result = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    numbers = set(right)
    for column in columns:
        result.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        result.add_row(*(plain(cell) for cell in row))
    return result


def waited(seconds: float) -> str:
    """A wait, to the minute where it is some hours: 5 h 10 min."""
    if 7200 <= seconds < 172_800:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60} min"
    return duration(seconds)


def gpu_hours(gpu_seconds: float) -> str:
    """A number of GPU-hours."""
    hours = gpu_seconds / 3600
    return f"{hours:,.2f}" if 0 < abs(hours) < 1 else f"{hours:,.1f}"

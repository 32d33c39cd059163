"""`read`: a trace as CSV or from ``sacct -P``, as a `Workload`."""

from pathlib import Path
from typing import Final

from rltuned.core.errors import WorkloadError
from rltuned.core.workers.progress import Progress, silent
from rltuned.simulate.workload import trace_tables
from rltuned.simulate.workload.batch import Collector, shown
from rltuned.simulate.workload.jobs import Source, Workload
from rltuned.simulate.workload.lines import TextFile

FORMS: Final = {
    "csv": "a header with submit_time, num_gpus, and run_time or start_time and end_time",
    "sacct": "sacct -P with its header line",
}
"""The formats, by name."""
_TABLES: Final = {"csv": trace_tables.CSV, "sacct": trace_tables.SACCT}
_HINTS: Final = {"jobid": trace_tables.SACCT, "jobidraw": trace_tables.SACCT, "submit_time": trace_tables.CSV}
"""Columns that tell which format is meant."""


def read(
    path: str | Path,
    *,
    skip_bad: bool = False,
    progress: Progress = silent,
    keep_unknown: bool = False,
) -> Workload:
    """Read a trace; the jobs in order of submission. docs/evaluation.md says what becomes of each column.

    Reads the file once from its beginning (a pipe will do), gzip or not by its first bytes; at the peak about 250 bytes
    a job. `skip_bad`: lines that cannot be read are counted. `keep_unknown`: jobs of unknown run time (−1) are kept,
    with run time 0, to describe the file; otherwise they are left out and counted, because they cannot be replayed.

    Raises:
        WorkloadError: "FILE:LINE: reason" for a line that cannot be read; "FILE: reason" for a file that cannot be
            opened, is empty, truncated, of no known format or has no jobs in it.
    """
    path = Path(path)
    with TextFile(path, progress) as file:
        chosen = sniff(file)
        collector = Collector(file.name, skip_bad=skip_bad, keep_unknown=keep_unknown)
        trace_tables.read_table(file, _TABLES[chosen], collector)
        return collector.finish(Source(name=path.name, sha256=file.sha256, form=chosen))


def sniff(file: TextFile) -> str:
    """Find out the format of a file, from its first line that is not blank.

    Raises:
        WorkloadError: none of the known ones; says what was found and what there is.
    """
    text = file.head().decode("utf-8", errors="replace")
    stripped = text.lstrip()
    line = stripped.partition("\n")[0].rstrip("\r")
    if "|" in line and trace_tables.fits(line, trace_tables.SACCT):
        return "sacct"
    if trace_tables.fits(line, trace_tables.CSV):
        return "csv"
    if not stripped:
        raise WorkloadError(f"{file.name}: is empty")
    reason = f"the format is not recognised from its first line {shown(line)}"
    if "\0" in line:
        reason = "not a text file"
    else:
        names = set(line.lower().replace("|", ",").split(","))
        meant = next((table for name, table in _HINTS.items() if name in names), None)
        if meant is not None:
            # Says which column is missing.
            number = text[: len(text) - len(stripped)].count("\n") + 1
            trace_tables.header(line, meant, f"{file.name}:{number}")
    known = "\n".join(f"  {name}: {what}" for name, what in FORMS.items())
    raise WorkloadError(f"{file.name}: {reason}. Known formats:\n{known}")

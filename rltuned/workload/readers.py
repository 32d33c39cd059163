"""`read`: a trace in any of the known formats, as a `Workload`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rltuned.errors import WorkloadError
from rltuned.workers.progress import Progress, silent
from rltuned.workload import tables
from rltuned.workload.batch import Collector, shown
from rltuned.workload.jobs import Source, Workload
from rltuned.workload.lines import TextFile
from rltuned.workload.philly import read_philly
from rltuned.workload.swf import FIELDS, read_swf

FORMS: Final = {
    "csv": "a header with submit_time, num_gpus, and run_time or start_time and end_time",
    "swf": "Standard Workload Format: 18 numbers a line, comments behind ;",
    "philly": "Microsoft Philly cluster_job_log (JSON)",
    "helios": "SenseTime Helios cluster_log.csv",
    "pai": "Alibaba PAI pai_task_table.csv, with or without a header",
    "sacct": "sacct -P with its header line",
}
"""The formats, by the name that `form` takes."""

_SWF_LINE = re.compile(r"\s*(?:-?[0-9.]+\s+){17}-?[0-9.]+\s*\Z", re.ASCII)


def read(
    path: str | Path,
    *,
    form: str | None = None,
    skip_bad: bool = False,
    progress: Progress = silent,
    keep_unknown: bool = False,
    job_table: str | Path | None = None,
) -> Workload:
    """The jobs of a trace, in order of submission. docs/workloads.md says what becomes of each format's columns.

    Reads the file once from its beginning (a pipe will do), gzip or not by its first bytes; memory is that of the
    resulting columns, at the peak about 250 bytes a job.

    Args:
        path: the file.
        form: one of `FORMS`; None: found out from the first line.
        skip_bad: count lines that cannot be read (`Source.skipped`) instead of giving up at the first.
        progress: called with the bytes read so far.
        keep_unknown: keep jobs whose run time the trace gives as unknown (−1), with run time 0; they are left out and
            counted (`Source.unknown`) otherwise, because they cannot be replayed. For descriptions of the file.
        job_table: pai_job_table.csv, which has the users and submission times of pai_task_table.csv.

    Raises:
        WorkloadError: "FILE:LINE: reason" for a line that cannot be read; "FILE: reason" for a file that cannot be
            opened, is empty, truncated, of no known format or has no jobs in it.
    """
    path = Path(path)
    if form is not None and form not in FORMS:
        raise WorkloadError(f"{path}: unknown format {form!r}; there is {', '.join(FORMS)}")
    with TextFile(path, progress) as file:
        chosen = form or sniff(file)
        if job_table is not None and chosen != "pai":
            raise WorkloadError(f"{path}: a job table goes with the format pai, and this is {chosen}")
        collector = Collector(file.name, skip_bad=skip_bad, keep_unknown=keep_unknown)
        reader: dict[str, Callable[[], None]] = {
            "csv": lambda: tables.read_table(file, tables.CSV, collector),
            "swf": lambda: read_swf(file, collector),
            "philly": lambda: read_philly(file, collector),
            "helios": lambda: tables.read_table(file, tables.HELIOS, collector),
            "pai": lambda: tables.read_table(file, tables.pai(_job_table(job_table, collector, skip_bad)), collector),
            "sacct": lambda: tables.read_table(file, tables.sacct_table(), collector),
        }
        reader[chosen]()
        return collector.finish(Source(name=path.name, sha256=file.sha256, form=chosen))


def _job_table(path: str | Path | None, collector: Collector, skip_bad: bool) -> tables.PaiJobs | None:
    if path is None:
        return None
    with TextFile(Path(path)) as file:
        own = Collector(file.name, skip_bad=skip_bad, keep_unknown=False)
        jobs = tables.read_pai_jobs(file, own)
    collector.skipped += own.skipped
    collector.first_skipped = own.first_skipped
    return jobs


def sniff(file: TextFile) -> str:
    """The format of a file, from its first line that is not blank.

    Raises:
        WorkloadError: none of the known ones; says what was found and what there is.
    """
    text = file.head().decode("utf-8", errors="replace")
    stripped = text.lstrip()
    line = stripped.partition("\n")[0].rstrip("\r")
    if stripped[:1] in {"[", "{"}:
        return "philly"
    if line.startswith(";") or (_SWF_LINE.match(line) and len(line.split()) == len(FIELDS)):
        return "swf"
    if "|" in line and tables.fits(line, tables.sacct_table()):
        return "sacct"
    for table in (tables.CSV, tables.HELIOS, tables.pai(None)):
        if tables.fits(line, table):
            return table.name
    if not stripped:
        raise WorkloadError(f"{file.name}: is empty")
    names = set(line.lower().replace("|", ",").split(","))
    reason = f"the format is not recognised from its first line {shown(line)}"
    if set(tables.PAI_JOBS) <= names:
        reason = "this is pai_job_table; give pai_task_table, and this one as its job table"
    elif "\0" in line:
        reason = "not a text file"
    else:
        hints = {
            "jobid": tables.sacct_table(),
            "jobidraw": tables.sacct_table(),
            "gpu_num": tables.HELIOS,
            "plan_gpu": tables.pai(None),
            "submit_time": tables.CSV,
        }
        meant = [table for name, table in hints.items() if name in names]
        if meant:
            # Says which column is missing.
            number = text[: len(text) - len(stripped)].count("\n") + 1
            tables.header(line, meant[0], f"{file.name}:{number}")
    known = "\n".join(f"  --form {name}: {what}" for name, what in FORMS.items())
    raise WorkloadError(f"{file.name}: {reason}. Known formats:\n{known}")

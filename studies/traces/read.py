"""`read`: a trace in a published format, or in one of the product's, as a `Workload`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rltuned.core.errors import WorkloadError
from rltuned.core.workers.progress import Progress, silent
from rltuned.simulate.workload import readers
from rltuned.simulate.workload.batch import Collector, fits, read_table
from rltuned.simulate.workload.jobs import Source, Workload
from rltuned.simulate.workload.lines import TextFile
from studies.traces.philly import read_philly
from studies.traces.separated import HELIOS, PAI_JOBS, PAI_TASKS, PaiJobs, has_no_header, pai, read_pai, read_pai_jobs
from studies.traces.swf import FIELDS, read_swf

FORMS: Final = {
    "swf": "Standard Workload Format: 18 numbers a line, comments behind ;",
    "philly": "Microsoft Philly cluster_job_log (JSON)",
    "helios": "SenseTime Helios cluster_log.csv",
    "pai": "Alibaba PAI pai_task_table.csv, with or without a header",
}
"""The published formats, by the name that `form` takes."""

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
    """Read a trace; as `rltuned.simulate.workload.read`, and the formats of `FORMS`.

    `job_table`: pai_job_table.csv, which has the users and submission times of pai_task_table.csv.

    Raises:
        WorkloadError: as there.
    """
    path = Path(path)
    with TextFile(path, progress) as file:
        chosen = form or sniff(file)
        if job_table is not None and chosen != "pai":
            raise WorkloadError(f"{path}: a job table goes with the format pai, and this is {chosen or 'another one'}")
        if chosen in FORMS:
            collector = Collector(file.name, skip_bad=skip_bad, keep_unknown=keep_unknown)
            reader: dict[str, Callable[[], None]] = {
                "swf": lambda: read_swf(file, collector),
                "philly": lambda: read_philly(file, collector),
                "helios": lambda: read_table(file, HELIOS, collector),
                "pai": lambda: read_pai(file, pai(_job_table(job_table, collector, skip_bad)), PAI_TASKS, collector),
            }
            reader[chosen]()
            return collector.finish(Source(name=path.name, sha256=file.sha256, form=chosen))
    return readers.read(path, skip_bad=skip_bad, progress=progress, keep_unknown=keep_unknown)


def _job_table(path: str | Path | None, collector: Collector, skip_bad: bool) -> PaiJobs | None:
    if path is None:
        return None
    with TextFile(Path(path)) as file:
        own = Collector(file.name, skip_bad=skip_bad, keep_unknown=False)
        jobs = read_pai_jobs(file, own)
    collector.skipped += own.skipped
    collector.first_skipped = own.first_skipped
    return jobs


def sniff(file: TextFile) -> str | None:
    """Find out the format of a file from its first line that is not blank; None: it is none of `FORMS`.

    Raises:
        WorkloadError: it is pai_job_table alone.
    """
    line = file.first[1]
    if line.lstrip()[:1] in {"[", "{"}:
        return "philly"
    if line.startswith(";") or (_SWF_LINE.match(line) and len(line.split()) == len(FIELDS)):
        return "swf"
    if has_no_header(line, PAI_TASKS):
        return "pai"
    found = next((table.name for table in (HELIOS, pai(None)) if fits(line, table)), None)
    if found is None and set(PAI_JOBS) <= set(line.lower().split(",")):
        raise WorkloadError(f"{file.name}: this is pai_job_table; give pai_task_table, and this one as its job table")
    return found

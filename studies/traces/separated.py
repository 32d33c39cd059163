"""Published traces that are separated text: Helios and Alibaba PAI (docs/evaluation.md has the columns)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rltuned.core.tables import Floats
from rltuned.simulate.workload.batch import (
    MAX_CPUS,
    MAX_DURATION,
    MAX_GPUS,
    MAX_MEM,
    MAX_NODES,
    MAX_TIME,
    Batch,
    Collector,
    Rows,
    TableFormat,
    read_rows,
    read_table,
)
from rltuned.simulate.workload.lines import TextFile

# --- Helios ---------------------------------------------------------------------------------------------------------


def _helios(batch: Batch) -> Rows:
    submit = batch.stamp("submit_time")
    batch.note(np.isnan(submit), lambda _: "submit_time: is not known")
    start, end = batch.stamp("start_time"), batch.stamp("end_time")
    run = batch.number("duration", MAX_DURATION) if batch.has("duration") else batch.lasted(start, end, "job")
    batch.never_ran |= np.isnan(start)
    wait = batch.number("queue", MAX_DURATION) if batch.has("queue") else start - submit
    return Rows(
        submit_time=submit,
        run_time=run,
        gpus=batch.count("gpu_num", MAX_GPUS, required=True),
        job_id=batch.ids("job_id"),
        wait_time=wait,
        nodes=batch.count("node_num", MAX_NODES),
        cpus=batch.count("cpu_num", MAX_CPUS),
        user=batch.text("user"),
        partition=batch.text("vc"),
    )


HELIOS: Final = TableFormat(
    name="helios",
    separators=",",
    aliases={},
    required=[("submit_time",), ("gpu_num",), ("start_time",), ("duration", "end_time")],
    convert=_helios,
)


# --- Alibaba PAI -------------------------------------------------------------------------------------------------

PAI_TASKS: Final = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
PAI_JOBS: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")


@dataclass(frozen=True)
class PaiJobs:
    """pai_job_table: who submitted a job, and when."""

    row: Mapping[str, int]
    """By job_name."""
    user: Sequence[str]
    start: Floats

    def users(self, names: Sequence[str]) -> list[str]:
        """User of each job, "" where the table does not have it."""
        return [self.user[self.row[name]] if name in self.row else "" for name in names]

    def submitted(self, names: Sequence[str]) -> Floats:
        """Submission of each job; NaN where the table does not have it."""
        return np.array(
            [self.start[self.row[name]] if name in self.row else np.nan for name in names], dtype=np.float64
        )


def pai(jobs: PaiJobs | None) -> TableFormat:
    """pai_task_table, joined with pai_job_table where it is given."""

    def convert(batch: Batch) -> Rows:
        instances = batch.count("inst_num", MAX_GPUS, required=True)
        started, ended = batch.number("start_time", MAX_TIME), batch.number("end_time", MAX_TIME)
        # The publishers' own notebook takes a start or end of 0 for "not known".
        start, end = np.where(started == 0, np.nan, started), np.where(ended == 0, np.nan, ended)
        run = batch.lasted(start, end, "task")
        batch.never_ran |= np.isnan(run)
        submit, wait, user = start, np.full(len(batch), np.nan), [""] * len(batch)
        if jobs is not None:
            user = jobs.users(batch.columns["job_name"])
            asked = jobs.submitted(batch.columns["job_name"])
            # A task cannot have been submitted after it started; where the tables say so its start is all we know.
            submit = np.where(asked <= start, asked, start)
            wait = np.where(asked <= start, start - asked, np.nan)
        per_instance = np.nan_to_num(batch.count("plan_gpu", MAX_GPUS, scale=0.01))
        gpus = instances * per_instance
        batch.note(gpus > MAX_GPUS, lambda row: f"task: {gpus[row]:,.0f} GPUs")
        cpus = instances * batch.number("plan_cpu", MAX_CPUS, scale=0.01)
        return Rows(
            submit_time=np.where(batch.never_ran, 0.0, submit),
            run_time=run,
            gpus=np.where(gpus > MAX_GPUS, 0, gpus),
            wait_time=wait,
            cpus=np.ceil(np.minimum(cpus, MAX_CPUS) - 1e-9),
            mem=np.minimum(instances * batch.number("plan_mem", MAX_MEM, scale=1024.0), MAX_MEM),
            user=user,
            gpu_type=batch.gpu_type("gpu_type"),
        )

    return TableFormat(
        name="pai",
        separators=",",
        aliases={},
        required=[("job_name",), ("inst_num",), ("start_time",), ("end_time",), ("plan_gpu",)],
        convert=convert,
    )


def has_no_header(line: str, columns: Sequence[str]) -> bool:
    """Whether a file of these columns whose first line this is begins with a row, as Alibaba publishes them."""
    found = [cell.strip().lower() for cell in line.split(",")]
    return len(found) == len(columns) and not set(found) & set(columns)


def read_pai(file: TextFile, table: TableFormat, columns: Sequence[str], collector: Collector) -> None:
    """`read_table`, of a file with a header or without one."""
    if has_no_header(file.first[1], columns):
        read_rows(file, columns, ",", table, collector)
    else:
        read_table(file, table, collector)


def read_pai_jobs(file: TextFile, collector: Collector) -> PaiJobs:
    """Read pai_job_table.

    Raises:
        WorkloadError: header or row wrong.
    """
    index: dict[str, int] = {}
    users: list[str] = []
    starts: list[Floats] = []

    def convert(batch: Batch) -> Rows:
        start = batch.number("start_time", MAX_TIME)
        kept = np.ones(len(batch), dtype=np.bool_)
        kept[list(batch.notes)] = False
        names, owners = batch.columns["job_name"], batch.text("user")
        for row in np.flatnonzero(kept).tolist():
            index[names[row]] = len(users)
            users.append(owners[row])
        starts.append(np.where(start == 0, np.nan, start)[kept])
        none = np.zeros(len(batch))
        return Rows(submit_time=none, run_time=none, gpus=none)

    table = TableFormat(
        name="pai_job_table",
        separators=",",
        aliases={},
        required=[("job_name",), ("user",), ("start_time",)],
        convert=convert,
    )
    read_pai(file, table, PAI_JOBS, collector)
    return PaiJobs(index, users, np.concatenate(starts) if starts else np.zeros(0))

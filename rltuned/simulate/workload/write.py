"""`write_csv`: a workload as the project's own CSV, which `read` takes back unchanged (docs/evaluation.md)."""

import csv
import gzip
import io
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.errors import WorkloadError
from rltuned.simulate.workload.jobs import Workload

COLUMNS: Final = (
    "job_id",
    "user",
    "account",
    "partition",
    "qos",
    "submit_time",
    "run_time",
    "num_gpus",
    "num_nodes",
    "num_cpus",
    "mem_mib",
    "gpu_type",
    "time_limit",
)
"""Behind them, where any job has one: `tmp_mib`, `wait`, `name_kind`."""


def write_csv(jobs: Workload, path: Path) -> None:
    """Write `jobs` to `path`, packed with gzip if it ends in .gz. The same jobs give the same bytes. Raises
    WorkloadError: the file cannot be written.
    """
    more = {}
    if jobs.tmp.any():
        more["tmp_mib"] = _known(jobs.tmp.tolist())
    if not np.isnan(jobs.wait_time).all():
        more["wait"] = _numbers(jobs.wait_time.tolist())
    if (jobs.name_kind.codes >= 0).any():
        more["name_kind"] = jobs.name_kind.texts()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*COLUMNS, *more))
    writer.writerows(
        zip(
            jobs.job_id.tolist(),
            *(column.texts() for column in (jobs.user, jobs.account, jobs.partition, jobs.qos)),
            *(_numbers(column.tolist()) for column in (jobs.submit_time, jobs.run_time)),
            jobs.gpus.tolist(),
            *(_known(column.tolist()) for column in (jobs.nodes, jobs.cpus, jobs.mem)),
            jobs.gpu_type.texts(),
            ["UNLIMITED" if np.isinf(limit) else _number(limit) for limit in jobs.time_limit.tolist()],
            *more.values(),
            strict=True,
        )
    )
    data = text.getvalue().encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be written: {error.strerror or error}") from error


def _number(value: float) -> str:
    """Shortest form that reads back as the same number; "" for NaN, not known."""
    return "" if value != value else str(int(value)) if value == int(value) else repr(value)  # noqa: PLR0124 - NaN


def _numbers(values: list[float]) -> list[str]:
    return [_number(value) for value in values]


def _known(values: list[float]) -> list[str]:
    """As `_number`, "" for 0: not given."""
    return [_number(value) if value else "" for value in values]

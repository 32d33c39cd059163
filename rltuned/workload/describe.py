"""Statistics of a workload: the columns of the paper's Tables 2 and 4, and the demand."""

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from rltuned.errors import WorkloadError
from rltuned.workload.jobs import Source, Workload


def describe(workload: Workload) -> dict[str, Any]:
    """The statistics of a workload of at least one job, as JSON-able data. Times in seconds; None for what the
    trace does not tell. With one submission time only there is no rate and no demand.

    Raises:
        WorkloadError: no jobs.
    """
    n = len(workload)
    if n == 0:
        raise WorkloadError(f"{workload.source.name}: no jobs to describe")
    source, gpus, run = workload.source, workload.gpus.astype(np.int64), workload.run_time
    span = float(workload.submit_time.max() - workload.submit_time.min())
    waits = workload.wait_time[~np.isnan(workload.wait_time)]
    limited = np.isfinite(workload.time_limit) & (workload.time_limit > 0)
    used = run[limited] / workload.time_limit[limited]
    values, counts = np.unique(gpus, return_counts=True)
    order = np.lexsort((values, -counts))
    return {
        "name": source.name,
        "form": source.form,
        "sha256": source.sha256,
        "jobs": n,
        "cpu_jobs": int((gpus == 0).sum()),
        # Of the whole file, as the next two.
        "skipped": source.skipped,
        "left_out": source.left_out,
        "unknown_run_time": source.unknown,
        "start": source.start + float(workload.submit_time.min()),
        "span": span,
        "wait_mean": float(waits.mean()) if len(waits) else None,
        "run_mean": float(run.mean()),
        "run_median": float(np.median(run)),
        "run_max": float(run.max()),
        "gpus_mean": float(gpus.mean()),
        "gpus_max": int(gpus.max()),
        "gpus_total": int(gpus.sum()),
        "one_gpu": float((gpus == 1).mean()),
        "arrival_rate": n / span if span > 0 else None,
        # GPUs kept busy on average if nobody waits.
        "demand": float((run * gpus).sum()) / span if span > 0 else None,
        "users": len(np.unique(workload.user.codes[workload.user.codes >= 0])),
        "partitions": len(np.unique(workload.partition.codes[workload.partition.codes >= 0])),
        "gpu_counts": {int(values[at]): int(counts[at]) for at in order},
        "limit_known": float((~np.isnan(workload.time_limit)).mean()),
        # Of jobs with a finite limit: how well people guess, and who ran to the limit or past it.
        "limit_used": float(np.minimum(used, 1).mean()) if len(used) else None,
        "limit_reached": float((used >= 1).mean()) if len(used) else None,
    }


def between(
    workload: Workload, start: float = -math.inf, until: float = math.inf, rows: tuple[int, int] | None = None
) -> Workload:
    """The jobs submitted in [start, until), seconds as in `Workload.submit_time`, and of those the rows [first, last).

    Raises:
        WorkloadError: none is left.
    """
    part = workload.take((workload.submit_time >= start) & (workload.submit_time < until))
    if rows is not None:
        part = part.take(slice(rows[0], rows[1]))
    if not len(part):
        last = float(workload.submit_time.max())
        raise WorkloadError(
            f"{workload.source.name}: no jobs in this part; the file has {len(workload):,} jobs, submitted from "
            f"{_on_clock(workload.source, 0.0)} to {_on_clock(workload.source, last)}"
        )
    return part


DATED = "sacct"
"""The format whose own clock is a date."""


def moment(text: str, source: Source) -> float:
    """`submit_time` of a time on the file's own clock: a number as in its column of submission times, or, from sacct,
    a date ("2020-09-01", "2020-09-01T12:00:00"); a number then counts from the first job.

    Raises:
        WorkloadError: neither.
    """
    try:
        number = float(text)
        if math.isfinite(number):
            return number if source.form == DATED else number - source.start
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
            if source.form == DATED:
                return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - source.start
        except ValueError:
            pass
    wanted = (
        "a date such as 2020-09-01 or seconds since its first job" if source.form == DATED else "seconds as in the file"
    )
    raise WorkloadError(f"{source.name}: cannot understand the time {text!r}: expected {wanted}")


def _on_clock(source: Source, submit_time: float) -> str:
    if source.form == DATED:
        return datetime.fromtimestamp(source.start + submit_time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{source.start + submit_time:.0f}"

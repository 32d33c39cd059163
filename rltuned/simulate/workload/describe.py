"""Statistics of a workload: the columns of the paper's Tables 2 and 4, and the demand."""

from typing import Any

import numpy as np

from rltuned.core.errors import WorkloadError
from rltuned.simulate.workload.jobs import Workload


def describe(workload: Workload) -> dict[str, Any]:
    """The statistics of a workload of at least one job, as JSON-able data. Times in seconds; None for what the trace
    does not tell. With one submission time only there is no rate and no demand. Raises WorkloadError: no jobs.
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

"""Building tables from a few columns: for the simulator, generated queue states, benchmarks and tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.tables import Category, JobTable, NodeTable, concatenate_nodes

_TEXT = {
    "user": "alice",
    "account": "acct",
    "partition": "gpu",
    "qos": "normal",
    "reservation": "",
    "reason": "Priority",
    "gpu_type": "",
    "features": "",
    "req_nodes": "",
    "exc_nodes": "",
    "decided": "",
    "request": "",
    "oversubscribe": OverSubscribe.OK.value,
}


def job_table(n: int, held_nodes: Sequence[Sequence[int]] | None = None, **columns: Any) -> JobTable:
    """A job table of `n` rows: pending one-GPU jobs, one CPU and 1,000 MiB each, limit 1 h, but for the given columns.

    `held_nodes`: node rows that each job holds. `columns`: of `JobTable`, a sequence or one value for all rows, texts
    as plain strings. Without `base`: priority less site factor.
    """
    number: dict[str, tuple[Any, Any]] = {
        "job_id": (np.int64, np.arange(1, n + 1)),
        "state": (np.int8, int(JobState.PENDING)),
        "array_tasks": (np.int32, 0),
        "array_limit": (np.int32, 0),
        "het_job_id": (np.int64, 0),
        "submit_time": (np.float64, 0.0),
        "eligible_time": (np.float64, 0.0),
        "start_time": (np.float64, np.nan),
        "end_time": (np.float64, np.nan),
        "time_limit": (np.float64, 3600.0),
        "nodes": (np.int32, 1),
        "tasks": (np.int32, 1),
        "gpus": (np.int32, 1),
        "gpus_per_node": (np.int32, 0),
        "cpus": (np.int32, 1),
        "mem": (np.float64, 1000.0),
        "tmp": (np.float64, 0.0),
        "dependent": (np.bool_, False),
        "deadline": (np.float64, np.nan),
        "held": (np.bool_, False),
        "priority": (np.int64, 1000),
        "nice": (np.int64, 0),
        "site_factor": (np.int64, 0),
        "site_known": (np.bool_, True),
        "exclusive": (np.bool_, False),
    }
    unknown = set(columns) - set(number) - set(_TEXT) - {"base", "base_least"}
    if unknown:
        raise TypeError(f"unknown job columns: {', '.join(sorted(unknown))}")
    built: dict[str, Any] = {}
    for name, (kind, default) in number.items():
        built[name] = np.broadcast_to(np.asarray(columns.get(name, default), dtype=kind), (n,)).copy()
    base = columns.get("base", built["priority"] - built["site_factor"] * built["site_known"])
    for name, value in (("base", base), ("base_least", columns.get("base_least", base))):
        built[name] = np.broadcast_to(np.asarray(value, dtype=np.int64), (n,)).copy()
    for name, text in _TEXT.items():
        values = columns.get(name, text)
        built[name] = Category.of([values] * n if isinstance(values, str) else values)
    ptr, idx = concatenate_nodes(held_nodes if held_nodes is not None else [()] * n)
    return JobTable(**built, node_ptr=ptr, node_idx=idx)


def node_table(
    names: Sequence[str],
    gpu_types: Sequence[str],
    gpus: Any,
    *,
    gpus_alloc: Any = 0,
    cpus: Any = 64,
    cpus_alloc: Any = 0,
    mem: Any = 256_000.0,
    mem_alloc: Any = 0.0,
    tmp: Any = 0.0,
    usable: Any = True,
    features: Sequence[frozenset[str]] | None = None,
    weight: Any = 1,
) -> NodeTable:
    """A node table; `gpus` and `gpus_alloc` are (M, T) or broadcast to it, the other columns (M,) or one value."""
    m, t = len(names), len(gpu_types)

    def column(value: Any, kind: Any) -> Any:
        return np.broadcast_to(np.asarray(value, dtype=kind), (m,)).copy()

    return NodeTable(
        names=tuple(names),
        gpu_types=tuple(gpu_types),
        usable=column(usable, np.bool_),
        cpus=column(cpus, np.int32),
        cpus_alloc=column(cpus_alloc, np.int32),
        mem=column(mem, np.float64),
        mem_alloc=column(mem_alloc, np.float64),
        tmp=column(tmp, np.float64),
        gpus=np.broadcast_to(np.asarray(gpus, dtype=np.int32), (m, t)).copy(),
        gpus_alloc=np.broadcast_to(np.asarray(gpus_alloc, dtype=np.int32), (m, t)).copy(),
        features=tuple(features) if features is not None else (frozenset[str](),) * m,
        weight=column(weight, np.int64),
    )

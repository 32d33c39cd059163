"""Tables from a few columns, for the simulator, benchmarks and tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.tables import Category, JobTable, NodeTable, concatenate_nodes

_TEXT: Final = {
    "user": "alice",
    "account": "acct",
    "partition": "gpu",
    "qos": "normal",
    "reason": "Priority",
    **dict.fromkeys(("reservation", "gpu_type", "features", "req_nodes", "exc_nodes", "decided", "request"), ""),
    "oversubscribe": OverSubscribe.OK.value,
}
_NUMBERS: Final[Mapping[str, tuple[str, Any]]] = {
    "state": ("int8", int(JobState.PENDING)),
    **dict.fromkeys(("array_tasks", "array_limit", "gpus_per_node"), ("int32", 0)),
    **dict.fromkeys(("nodes", "tasks", "gpus", "cpus"), ("int32", 1)),
    **dict.fromkeys(("het_job_id", "nice", "site_factor"), ("int64", 0)),
    "priority": ("int64", 1000),
    **dict.fromkeys(("submit_time", "eligible_time", "tmp"), ("float64", 0.0)),
    **dict.fromkeys(("start_time", "end_time", "deadline"), ("float64", np.nan)),
    "time_limit": ("float64", 3600.0),
    "mem": ("float64", 1000.0),
    **dict.fromkeys(("dependent", "held", "exclusive"), ("bool", False)),
    "site_known": ("bool", True),
}


def job_table(n: int, held_nodes: Sequence[Sequence[int]] | None = None, **columns: Any) -> JobTable:
    """A job table of `n` rows: pending one-GPU jobs, one CPU and 1,000 MiB each, limit 1 h, but for the given columns.

    `held_nodes`: node rows that each job holds. `columns`: of `JobTable`, a sequence or one value for all rows, texts
    as plain strings. Without `base`: priority less site factor.
    """
    unknown = columns.keys() - _TEXT.keys() - _NUMBERS.keys() - {"job_id", "base", "base_least"}
    if unknown:
        raise TypeError(f"unknown job columns: {', '.join(sorted(unknown))}")

    def filled(values: Any, kind: str) -> Any:
        return np.broadcast_to(np.asarray(values, dtype=kind), (n,)).copy()

    built = {name: filled(columns.get(name, default), kind) for name, (kind, default) in _NUMBERS.items()}
    built["job_id"] = filled(columns.get("job_id", np.arange(1, n + 1)), "int64")
    base = columns.get("base", built["priority"] - built["site_factor"] * built["site_known"])
    built |= {"base": filled(base, "int64"), "base_least": filled(columns.get("base_least", base), "int64")}
    for name, text in _TEXT.items():
        values = columns.get(name, text)
        built[name] = Category.of([values] * n if isinstance(values, str) else values)
    ptr, idx = concatenate_nodes(held_nodes if held_nodes is not None else [()] * n)
    return JobTable(**built, node_ptr=ptr, node_idx=idx)


_NODE_NUMBERS: Final[Mapping[str, tuple[str, Any]]] = {
    "usable": ("bool", True),
    **dict.fromkeys(("cpus_alloc", "gpus_alloc"), ("int32", 0)),
    "cpus": ("int32", 64),
    "mem": ("float64", 256_000.0),
    **dict.fromkeys(("mem_alloc", "tmp"), ("float64", 0.0)),
    "weight": ("int64", 1),
}


def node_table(
    names: Sequence[str],
    gpu_types: Sequence[str],
    gpus: Any,
    features: Sequence[frozenset[str]] | None = None,
    **columns: Any,
) -> NodeTable:
    """A node table; `gpus` and `gpus_alloc` are (M, T) or broadcast to it, the other columns (M,) or one value."""
    if unknown := columns.keys() - _NODE_NUMBERS.keys():
        raise TypeError(f"unknown node columns: {', '.join(sorted(unknown))}")
    m, t = len(names), len(gpu_types)
    given = {name: (kind, columns.get(name, default)) for name, (kind, default) in _NODE_NUMBERS.items()}
    given["gpus"] = "int32", gpus
    built: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(values, dtype=kind), (m, t) if name.startswith("gpus") else (m,)).copy()
        for name, (kind, values) in given.items()
    }
    built["features"] = tuple(features) if features is not None else (frozenset[str](),) * m
    return NodeTable(names=tuple(names), gpu_types=tuple(gpu_types), **built)

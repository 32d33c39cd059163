"""`Workload`: the jobs of a trace or a generator, as columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Bools, Category, Codes, Floats, Ints, columns_at


@dataclass(frozen=True)
class Source:
    """Where a workload comes from."""

    name: str
    sha256: str = ""  # of the file as it is on disk (compressed if it is); "" for generated jobs
    form: str = ""
    skipped: int = 0  # rows that could not be read and were counted (`--skip-bad`)
    left_out: int = 0
    """Rows that were understood but cannot be replayed: the job never ran, or has not ended (docs/evaluation.md)."""
    unknown: int = 0
    """Rows without a run time (−1). They are left out as well, unless `read` was asked to keep them."""
    start: float = 0.0
    """What `submit_time` counts from, on the file's own clock: the first job's submission as the file has it (a
    number), or epoch seconds of its wall clock read as UTC."""


@dataclass(frozen=True)
class Workload:
    """Jobs in order of submission, one row each; N rows. Nothing here says when or where a job runs: the simulator
    does.

    In a trace of a CPU machine (SWF) a processor takes the place of a GPU.
    """

    source: Source
    job_id: Ints
    """The trace's own id where that is an integer, else 1, 2, 3 …"""
    line: Ints  # line of the file (1 is the first), 0 for generated jobs
    submit_time: Floats  # seconds since the first job of the file; never decreases
    run_time: Floats  # seconds the job runs if nobody kills it; ≥ 0, finite
    time_limit: Floats
    """Seconds that the user asked for; NaN where the trace does not say, infinite for unlimited."""
    wait_time: Floats
    """Seconds that the job waited on the machine of the trace; NaN where not known."""
    gpus: Codes  # GPUs in all; 0 for a CPU job
    nodes: Codes  # nodes asked for; 0 where the trace does not say
    cpus: Codes  # CPUs in all; 0 where not given: then CPUs do not limit the job
    mem: Floats  # miB in all; 0 where not given
    tmp: Floats  # local disk per node, MiB; 0 where not given
    user: Category
    account: Category
    partition: Category  # partition or virtual cluster; code −1 where the trace has none
    qos: Category
    gpu_type: Category  # type asked for; code −1: any
    name_kind: Category
    """What it is called, as hexadecimal numbers, by kind of `core.name_kinds`; code −1: not known. Never a name."""
    most_nodes: Codes
    """0: no range. Else the job takes as many nodes as have room, from `nodes` (at least 1) to so many, with the same
    on each: all amounts in all are those on `nodes` nodes, which must divide the GPUs."""
    curve: Codes  # row of `scaling`; −1: equally long on any number of nodes
    scaling: Floats = field(default_factory=lambda: np.ones((0, 1)))
    """(C, n) run time on 1, 2 … n nodes in proportion to each other; on more than n as on n. `run_time` is that on the
    fewest nodes that the job can have on the cluster."""

    def __len__(self) -> int:
        return len(self.job_id)

    def take(self, rows: npt.NDArray[np.intp] | Bools | slice) -> "Workload":
        """The rows given by index, mask or slice, in that order; times stay as they are."""
        return replace(self, **columns_at(self, np.arange(len(self))[rows], ("source", "scaling")))


@dataclass(frozen=True)
class Estimates:
    """What is known about run times before the job has run. (N,) each, by row of the workload."""

    time_limit: Floats
    """Seconds, ≥ 1, infinite when unlimited: backfill works on it, and the job is killed at it."""
    run_time: Floats
    """r, seconds, ≥ 1, ≤ time_limit: what the policy ranks on. Changed in place by a `Predictor` as jobs end."""

    def take(self, rows: slice | npt.NDArray[np.intp]) -> "Estimates":
        """A copy of these rows."""
        return Estimates(self.time_limit[rows].copy(), self.run_time[rows].copy())


NUMBERS: Final[Mapping[str, tuple[Any, float]]] = {
    "job_id": (np.int64, 0),
    "line": (np.int64, 0),
    "submit_time": (np.float64, 0.0),
    "run_time": (np.float64, 0.0),
    "time_limit": (np.float64, np.nan),
    "wait_time": (np.float64, np.nan),
    "gpus": (np.int32, 0),
    "nodes": (np.int32, 0),
    "cpus": (np.int32, 0),
    "mem": (np.float64, 0.0),
    "tmp": (np.float64, 0.0),
    "most_nodes": (np.int32, 0),
    "curve": (np.int32, -1),
}
"""Type of each column of numbers of a `Workload`, and what stands where it is not known."""
TEXTS: Final = ("user", "account", "partition", "qos", "gpu_type", "name_kind")


def workload(source: Source, submit_time: Any, run_time: Any, gpus: Any, **columns: Any) -> Workload:
    """A workload from the three required columns and any others, as sequences or one value for all rows.

    Text columns are sequences of strings ("" for none); `scaling` is no column. Rows are put in order of submission,
    ties as they come.

    Raises TypeError: a column that does not exist.
    """
    submit = np.asarray(submit_time, dtype=np.float64)
    n = len(submit)
    columns = {"job_id": np.arange(1, n + 1), **columns, "submit_time": submit, "run_time": run_time, "gpus": gpus}
    built: dict[str, Any] = {name: value for name, value in columns.items() if name not in {*NUMBERS, *TEXTS}}
    for name, (kind, default) in NUMBERS.items():
        built[name] = np.broadcast_to(np.asarray(columns.get(name, default), dtype=kind), (n,)).copy()
    for name in TEXTS:
        values = columns.get(name, "")
        built[name] = Category.of([values] * n if isinstance(values, str) else values)
    return Workload(source, **built).take(np.argsort(submit, kind="stable"))

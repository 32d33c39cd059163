"""Job, node and partition tables: NumPy columns with fixed units (see the package page)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.reasons import Waits, parse
from rltuned.core.scheduler import Health, SchedulerParameters
from rltuned.core.unread import Unread

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

NO_ROWS: Final = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class Category:
    """A text column with few distinct values: `names[codes[i]]` is the value of row i. Code −1 is "none"."""

    codes: Codes
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[str]) -> Self:
        """Encode `values`; the empty string becomes code −1. Names keep the order of first appearance."""
        index: dict[str, int] = {"": -1}
        codes = [index.setdefault(value, len(index) - 1) for value in values]
        return cls(np.asarray(codes, dtype=np.int32), tuple(name for name in index if name))

    def __len__(self) -> int:
        return len(self.codes)

    def value(self, row: int) -> str:
        """The text of one row, "" where there is none."""
        code = int(self.codes[row])
        return self.names[code] if code >= 0 else ""

    def texts(self) -> list[str]:
        """The text of every row, "" where there is none."""
        names = (*self.names, "")  # code −1 is the last
        return [names[code] for code in self.codes.tolist()]

    def __getitem__(self, rows: Rows | Codes | Bools | slice) -> "Category":
        """The rows given by index, mask or slice, with the same names."""
        return Category(self.codes[rows], self.names)

    def mapped(self, value_of: Callable[[str], Any], none: Any, kind: type = np.bool_) -> npt.NDArray[Any]:
        """(n,) what `value_of` says of the text of each row, asked once of each; `none` where there is none."""
        return np.array([*map(value_of, self.names), none], dtype=kind)[self.codes]


def columns_at(table: Any, rows: Rows | Bools | slice, others: Iterable[str] = ()) -> dict[str, Any]:
    """What the columns of a table have at these rows, by name. `others`: of its fields, those that are left out."""
    return {of.name: getattr(table, of.name)[rows] for of in fields(table) if of.name not in others}


def distinct(columns: Iterable[Codes | Ints | Floats]) -> tuple[Rows, Rows]:
    """First row of each distinct combination of values, and (n,) which of these each row has; they are in order of
    their values. `columns`: (n,) each; of 32 bits from −1 on.
    """
    first = of = np.zeros(1, dtype=np.intp)
    for column in columns:
        codes = column if column.dtype == np.int32 else np.unique(column, return_inverse=True)[1]
        # No more combinations than rows, and codes of 32 bits: the product stays within 64.
        both = of * (int(codes.max(initial=0)) + 2) + codes
        _, first, of = np.unique(both, return_index=True, return_inverse=True)
    return first, of


@dataclass(frozen=True)
class JobTable:
    """Pending and running jobs, N rows. An array record or a het component is one row."""

    job_id: Ints  # the id that scontrol takes for the whole record: the array's or component's own id
    state: npt.NDArray[np.int8]
    array_tasks: Codes  # pending tasks behind this record; 0 when it is no array
    array_limit: Codes
    """Tasks of the array that may run at a time (sbatch(1) --array, after "%"); 0: as many as there are."""
    het_job_id: Ints  # id of the leader of a heterogeneous job; 0 otherwise
    user: Category
    account: Category
    partition: Category  # as Slurm prints it: a comma list for a job that may run in several partitions
    qos: Category
    reservation: Category
    reason: Category
    submit_time: Floats
    eligible_time: Floats  # NaN while a dependency or hold keeps it unknown
    start_time: Floats
    end_time: Floats
    """Latest end of a running job (start + limit), infinite without a limit; NaN, as the start, for pending ones."""
    time_limit: Floats  # seconds, infinite when unlimited
    nodes: Codes
    """Nodes of a running job; of a pending one the least, or of a range what Slurm guesses at present."""
    tasks: Codes
    gpus: Codes  # in all; 0 for a CPU job
    gpus_per_node: Codes  # as asked; 0 when only a total (or nothing) was asked
    gpu_type: Category  # as asked for; code −1: any
    cpus: Codes
    mem: Floats  # MiB in all; NaN: not given (`--mem=0`, all of a node)
    tmp: Floats  # local disk per node, MiB
    features: Category  # constraint expression as given (sbatch(1) --constraint)
    req_nodes: Category
    exc_nodes: Category
    dependent: Bools
    deadline: Floats
    """Slurm ends it where it cannot end before this moment, which its user gave (sbatch(1) --deadline); NaN: none."""
    held: Bools  # priority 0: by user, admin or BadConstraints
    priority: Ints  # as squeue shows it; of a job of several partitions, that of one of them
    nice: Ints
    site_factor: Ints
    site_known: Bools
    """Whether sprio lists the job, so that `site_factor` is Slurm's and the priority is multifactor's."""
    base: Ints
    """Multifactor's sum without the site factor, the highest of several partitions', not cut off at Slurm's least of 1.
        Means nothing unless `site_known`."""
    base_least: Ints  # the lowest of their sums
    decided: Category
    """Terms of nice, partition, QOS and association in its priority, as "nice=20 partition=1000"; code −1: nothing."""
    request: Category
    """A digest of what the job asks for, and in whose name; `SPLIT`. Code −1: not known."""
    oversubscribe: Category
    exclusive: Bools  # asked for whole nodes or for its own user's nodes, as far as the release tells
    node_ptr: Codes  # (N+1,) row pointer into `node_idx`: nodes that a running job holds
    node_idx: Codes

    def __len__(self) -> int:
        return len(self.job_id)

    def take(self, rows: Rows | Bools) -> "JobTable":
        """The rows given by index or mask, in that order."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        counts = np.diff(self.node_ptr)[index]
        ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        idx = self.node_idx[np.repeat(self.node_ptr[:-1][index] - ptr[:-1], counts) + np.arange(ptr[-1])]
        columns = columns_at(self, index, ("node_ptr", "node_idx"))
        return JobTable(**columns, node_ptr=ptr, node_idx=idx.astype(np.int32))

    @cached_property
    def row_of(self) -> dict[int, int]:
        """Row by job id."""
        return dict(zip(self.job_id.tolist(), range(len(self)), strict=True))

    @cached_property
    def pending(self) -> Rows:
        """Rows of pending jobs."""
        return np.flatnonzero(self.state == JobState.PENDING)

    @cached_property
    def running(self) -> Rows:
        """Rows of jobs that hold resources."""
        return np.flatnonzero(self.state == JobState.RUNNING)

    def startable_tasks(self, rows: Rows, started: Mapping[int, int]) -> Ints:
        """(n,) jobs that each of these waiting records stands for: tasks that may start, 1 where it is no array.

        `started`: tasks that run, by id of the array.
        """
        tasks = np.maximum(self.array_tasks[rows], 1).astype(np.int64)
        for at in np.flatnonzero(self.array_limit[rows] > 0).tolist():
            row = rows[at]
            left = int(self.array_limit[row]) - started.get(int(self.job_id[row]), 0)
            tasks[at] = max(min(int(tasks[at]), left), 1)
        return tasks

    def nodes_of(self, row: int) -> Codes:
        """Node rows that running job `row` holds."""
        return self.node_idx[self.node_ptr[row] : self.node_ptr[row + 1]]


class FeatureSets(NamedTuple):
    """The distinct sets of features of M nodes."""

    sets: tuple[frozenset[str], ...]
    of: npt.NDArray[np.intp]


@dataclass(frozen=True)
class NodeTable:
    """Nodes, one row each; M rows, T GPU types."""

    names: tuple[str, ...]
    gpu_types: tuple[str, ...]
    """Types in the order of the columns of `gpus`; an untyped GPU has type "gpu"."""
    usable: Bools
    """May take a new job: up, answering, not drained, down, failing, reserved for maintenance or powering."""
    cpus: Codes
    cpus_alloc: Codes
    mem: Floats
    mem_alloc: Floats
    tmp: Floats
    gpus: Codes  # (M, T) configured
    gpus_alloc: Codes  # (M, T) allocated, or not to be had as a whole because shards or MPS of them are
    features: tuple[frozenset[str], ...]
    counts: Bools | None = None
    """(M,) is there in a replay: usable, or just now reserved or asleep. None: not read; see `counted`."""
    asleep: Bools | None = None
    """(M,) saves power, or is just coming up: usable, but a job that starts there waits for it. None: no node is."""
    weight: Ints | None = None
    """(M,) slurm.conf(5) Weight: Slurm takes nodes of a smaller one first. None: not read; see `weights`."""

    @property
    def counted(self) -> Bools:
        """(M,) `counts`, or `usable` where it was not read."""
        return self.usable if self.counts is None else self.counts

    @property
    def weights(self) -> Ints:
        """(M,) `weight`, or Slurm's default where it was not read."""
        return np.ones(len(self), dtype=np.int64) if self.weight is None else self.weight

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row by name."""
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def feature_sets(self) -> FeatureSets:
        """Which sets of features there are."""
        index: dict[frozenset[str], int] = {}
        of = [index.setdefault(features, len(index)) for features in self.features]
        return FeatureSets(tuple(index), np.array(of, dtype=np.intp))

    @cached_property
    def gpus_free(self) -> Codes:
        """(M, T) GPUs that a new job could get now; 0 on unusable nodes."""
        free = np.maximum(self.gpus - self.gpus_alloc, 0)
        return np.where(self.usable[:, None], free, 0).astype(np.int32)

    @cached_property
    def cpus_free(self) -> Codes:
        """(M,) free CPUs; 0 on unusable nodes."""
        return np.where(self.usable, np.maximum(self.cpus - self.cpus_alloc, 0), 0).astype(np.int32)

    @cached_property
    def mem_free(self) -> Floats:
        """(M,) MiB not allocated; 0 on unusable nodes."""
        return np.where(self.usable, np.maximum(self.mem - self.mem_alloc, 0.0), 0.0)

    @cached_property
    def counts_memory(self) -> bool:
        """Whether Slurm gives memory out (slurm.conf(5) SelectTypeParameters): else jobs run, and none is allocated."""
        return bool((self.mem_alloc > 0).any() or not (self.cpus_alloc > 0).any())

    @cached_property
    def idle(self) -> Bools:
        """(M,) usable and wholly free."""
        busy = (self.cpus_alloc > 0) | (self.gpus_alloc.sum(axis=1) > 0) | (self.mem_alloc > 0)
        return np.asarray(self.usable & ~busy, dtype=np.bool_)


@dataclass(frozen=True)
class Partition:
    """A partition (virtual cluster), slurm.conf(5) PartitionName."""

    name: str
    nodes: Codes  # rows of its nodes
    up: bool = True  # whether jobs that wait in it may start
    priority_tier: int = 1
    oversubscribe: OverSubscribe = OverSubscribe.NO  # NO, YES, FORCE or EXCLUSIVE
    oversubscribe_count: int = 1  # n of YES:n or FORCE:n, 1 otherwise
    max_time: float = float("inf")
    max_nodes: float = float("inf")
    default: bool = False
    billing: Mapping[str, float] | None = None
    """TRESBillingWeights, by name, for each CPU, MiB, GPU …; None: usage is CPUs."""
    not_simulated: tuple[str, ...] = ()
    """Settings that change who starts when and that the simulator does not know, as slurm.conf spells them."""


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of the cluster."""

    time: float  # epoch seconds on the controller host at the start of the read
    release: tuple[int, int]  # (24, 11) for Slurm 24.11.x
    jobs: JobTable
    nodes: NodeTable
    partitions: tuple[Partition, ...]
    health: Health = field(default_factory=Health)
    unread: Unread = field(default_factory=Unread)
    """What could not be understood: its jobs are left alone, its nodes not usable, its partitions not up."""
    scheduler: SchedulerParameters = field(default_factory=SchedulerParameters)
    arrays: Mapping[int, int] = field(default_factory=dict)
    """Submit time by id of each array of which a task has a record of its own, and has started; it may be requeued."""
    array_of: Mapping[int, int] = field(default_factory=dict)
    """Id of its array by the id of each task that has a record of its own, and has started."""
    bases: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By id of each job of which `JobTable.base` and `base_least` are not all: its sums in all its partitions."""

    @cached_property
    def partition_by_name(self) -> dict[str, Partition]:
        """Partition by name."""
        return {p.name: p for p in self.partitions}

    @cached_property
    def _partitions_of(self) -> dict[str, tuple[Partition | None, ...]]:
        return {}

    def unknown_reasons(self) -> Counter[str]:
        """How many pending jobs wait for each reason of Slurm's that is not known."""
        reasons = self.jobs.reason[self.jobs.pending]
        strange = {text for text in reasons.names if parse(text).waits is Waits.UNKNOWN}
        return Counter(text for text in reasons.texts() if text in strange) if strange else Counter()

    def is_unread(self, job_id: int) -> bool:
        """Whether Slurm's answers do not tell how the job is."""
        return bool(self.unread.about(job_id, queued=job_id in self.jobs.row_of))

    def partitions_of(self, names: str) -> tuple[Partition | None, ...]:
        """The partitions of a comma list (`JobTable.partition`), in its order; None for each that is not listed."""
        if (found := self._partitions_of.get(names)) is None:
            found = self._partitions_of[names] = tuple(map(self.partition_by_name.get, names.split(",")))
        return found

    def nodes_of(self, partitions: Iterable[Partition | None]) -> Bools:
        """(M,) nodes of any of these partitions."""
        mask = np.zeros(len(self.nodes), dtype=np.bool_)
        for part in filter(None, partitions):
            mask[part.nodes] = True
        return mask

    def by_partitions(
        self, rows: Rows, value_of: Callable[[tuple[Partition | None, ...]], Any], none: Any, kind: type = np.bool_
    ) -> npt.NDArray[Any]:
        """(n,) what `value_of` says of the partitions of each of these jobs; `none` of a job that names none."""
        return self.jobs.partition[rows].mapped(lambda names: value_of(self.partitions_of(names)), none, kind)


def concatenate_nodes(per_job: Sequence[Sequence[int]]) -> tuple[Codes, Codes]:
    """Row pointer and flat index (`JobTable.node_ptr`, `node_idx`) from one list of node rows per job."""
    ptr = np.zeros(len(per_job) + 1, dtype=np.int32)
    ptr[1:] = np.cumsum([len(nodes) for nodes in per_job])
    flat = [node for nodes in per_job for node in nodes]
    return ptr, np.asarray(flat, dtype=np.int32)


def owners(account: Category, user: Category) -> Category:
    """Whose waits are compared, of each job: its account; its user where all jobs are of one account."""
    return account if len(np.unique(account.codes)) > 1 else user

"""One reading of the cluster as tables. The only part of the package that needs NumPy, and therefore imported late.

Columns are converted as a whole, and each distinct text of a column only once: 10,000 jobs of a few hundred kinds cost
little more than splitting the answer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.hostlist import expand
from rltuned.cluster.tables import (
    Category,
    Codes,
    Floats,
    Health,
    Ints,
    JobState,
    JobTable,
    NodeTable,
    Partition,
    Snapshot,
    concatenate_nodes,
)
from rltuned.errors import SlurmDeniedError, SlurmParseError
from rltuned.slurm import parse
from rltuned.slurm.commands import EXCLUSIVE
from rltuned.slurm.process import Runner, printable
from rltuned.slurm.status import (
    asked_exclusive,
    excluded_nodes,
    job_columns,
    oversubscribe,
    record_ids,
    release,
    site_factors,
)

_T = TypeVar("_T")

_STATES: Final[Mapping[str, int]] = {
    parse.PENDING: int(JobState.PENDING),
    **dict.fromkeys(parse.HOLDING_STATES, int(JobState.RUNNING)),
}


def read_snapshot(runner: Runner, now: float) -> Snapshot:
    """Read everything in seven commands: version, jobs, excluded nodes, site factors, nodes, partitions, load.

    Raises:
        SlurmUnavailableError: no or late answer.
        SlurmParseError: truncated, inconsistent or unexpected answer, or a queue that looks empty but is not.
    """
    of_release = release(runner)
    columns = job_columns(runner, of_release, brief=False)
    excluded = excluded_nodes(runner)
    factors = site_factors(runner)
    nodes = parse.nodes(runner.ask("nodes"))
    partitions = parse.partitions(runner.ask("partitions"))
    load = _load(runner)
    if load is not None and not columns["JobID"]:
        _check_empty(load)
    node_table = build_nodes(nodes)
    partition_table = build_partitions(partitions, node_table)
    return Snapshot(
        time=now,
        release=of_release,
        jobs=build_jobs(columns, excluded, factors, node_table, partition_table),
        nodes=node_table,
        partitions=partition_table,
        health=Health()
        if load is None
        else Health(load.server_threads, load.agent_queue, load.cycle_mean_us, load.backfill_mean_us),
    )


def _load(runner: Runner) -> parse.Diagnostics | None:
    """What sdiag says; None where the site does not let us ask."""
    try:
        return parse.diagnostics(runner.ask("diagnostics"))
    except SlurmDeniedError:
        return None


def _check_empty(load: parse.Diagnostics) -> None:
    """An empty queue must agree with what slurmctld itself counts (every half minute).

    PrivateData=jobs shows an empty queue to whoever lost the privilege, with exit status 0.
    """
    if load.jobs_pending or load.jobs_running:
        raise SlurmParseError(
            f"squeue shows no job, but slurmctld counts {load.jobs_pending} pending and {load.jobs_running} running "
            "(sdiag): the answer is cut short, or PrivateData hides the jobs from this user"
        )


# --- nodes and partitions ----------------------------------------------------------------------------------------


def build_nodes(nodes: Sequence[parse.Node]) -> NodeTable:
    """The node table; GPU types in alphabetical order."""
    types = tuple(sorted({kind for node in nodes for kind in (*node.gpus, *node.gpus_alloc)}))
    column = {kind: index for index, kind in enumerate(types)}
    gpus = np.zeros((len(nodes), len(types)), dtype=np.int32)
    gpus_alloc = np.zeros_like(gpus)
    for row, node in enumerate(nodes):
        for kind, number in node.gpus.items():
            gpus[row, column[kind]] = number
        for kind, number in node.gpus_alloc.items():
            gpus_alloc[row, column[kind]] = number
    return NodeTable(
        names=tuple(node.name for node in nodes),
        gpu_types=types,
        usable=np.array([node.state.usable for node in nodes], dtype=np.bool_),
        cpus=np.array([node.cpus for node in nodes], dtype=np.int32),
        cpus_alloc=np.array([node.cpus_alloc for node in nodes], dtype=np.int32),
        mem=np.array([node.mem for node in nodes], dtype=np.float64),
        mem_alloc=np.array([node.mem_alloc for node in nodes], dtype=np.float64),
        tmp=np.array([node.tmp for node in nodes], dtype=np.float64),
        gpus=gpus,
        gpus_alloc=gpus_alloc,
        features=tuple(node.features for node in nodes),
    )


def build_partitions(partitions: Sequence[parse.PartitionLine], nodes: NodeTable) -> tuple[Partition, ...]:
    """Partitions with the rows of their nodes; configured nodes that scontrol does not list (FUTURE) are left out."""
    built = []
    for line in partitions:
        rows = sorted({nodes.row_of[name] for name in expand(line.nodes) if name in nodes.row_of})
        built.append(
            Partition(
                name=line.name,
                nodes=np.array(rows, dtype=np.int32),
                up=line.up,
                priority_tier=line.priority_tier,
                oversubscribe=OverSubscribe(line.oversubscribe),
                oversubscribe_count=line.oversubscribe_count,
                max_time=line.max_time,
                max_nodes=line.max_nodes,
                default=line.default,
            )
        )
    return tuple(built)


# --- jobs --------------------------------------------------------------------------------------------------------


class _Columns:
    """squeue's columns with a job's id in every complaint."""

    def __init__(self, columns: Mapping[str, list[str]], ids: Sequence[int]) -> None:
        self._columns = columns
        self._ids = ids

    def __getitem__(self, field: str) -> list[str]:
        return self._columns[field]

    def each(self, field: str, reads: Callable[[str], _T]) -> list[_T]:
        """`reads` of each value; each distinct text is read once."""
        values = self._columns[field]
        known: dict[str, _T] = {}
        for value in set(values):
            try:
                known[value] = reads(value)
            except SlurmParseError as error:
                job = self._ids[values.index(value)]
                raise SlurmParseError(f"squeue, job {job}, column {field}: {error}") from None
        return [known[value] for value in values]

    def floats(self, field: str, reads: Callable[[str], float]) -> Floats:
        return np.array(self.each(field, reads), dtype=np.float64)

    def codes(self, field: str, reads: Callable[[str], int]) -> Codes:
        return np.array(self.each(field, reads), dtype=np.int32)

    def ints(self, field: str, reads: Callable[[str], int]) -> Ints:
        return np.array(self.each(field, reads), dtype=np.int64)

    def category(self, field: str) -> Category:
        return Category.of(self.each(field, parse.text))


def build_jobs(
    columns: Mapping[str, list[str]],
    excluded: Mapping[int, str],
    factors: Mapping[int, int],
    nodes: NodeTable,
    partitions: Sequence[Partition],
) -> JobTable:
    """The job table from squeue's columns, excluded nodes and site factors by job id.

    Raises:
        SlurmParseError: names the job and the column; also for a job that appears twice, or runs on an unknown node.
    """
    columns, ids, array_tasks = _one_row_per_record(columns)
    table = _Columns(columns, ids)
    state = np.array([_STATES.get(value, int(JobState.OTHER)) for value in table["StateCompact"]], dtype=np.int8)
    running = state == JobState.RUNNING
    gpus = _gpus(table)
    end_time = table.floats("EndTime", parse.epoch)
    node_ptr, node_idx = concatenate_nodes(_nodes_of(table, nodes, ids, running))
    shown = table["OverSubscribe"]
    exclusive = columns.get(EXCLUSIVE)
    pairs: list[tuple[str, str | None]] = (
        [(value, None) for value in shown] if exclusive is None else list(zip(shown, exclusive, strict=True))
    )
    shares = {pair: oversubscribe(*pair) for pair in set(pairs)}
    priority = table.ints("PriorityLong", parse.integer)
    site = [factors.get(job) for job in ids]
    return JobTable(
        job_id=np.array(ids, dtype=np.int64),
        state=state,
        array_tasks=np.array(array_tasks, dtype=np.int32),
        het_job_id=table.ints("HetJobID", parse.job_id),
        user=table.category("UserName"),
        account=table.category("Account"),
        partition=table.category("Partition"),
        qos=table.category("QOS"),
        reservation=table.category("Reservation"),
        reason=table.category("Reason"),
        submit_time=table.floats("SubmitTime", parse.epoch),
        eligible_time=table.floats("EligibleTime", parse.epoch),
        start_time=np.where(running, table.floats("StartTime", parse.epoch), np.nan),
        end_time=np.where(running, np.where(np.isnan(end_time), np.inf, end_time), np.nan),
        time_limit=_time_limits(table, partitions),
        nodes=np.maximum(table.codes("NumNodes", parse.count), 1),
        tasks=np.maximum(table.codes("NumTasks", parse.count), 1),
        gpus=gpus.total,
        gpus_per_node=gpus.per_node,
        gpu_type=gpus.kind,
        cpus=np.maximum(table.codes("NumCPUs", parse.count), gpus.cpus).astype(np.int32),
        # --mem=0 asks for all of a node: what tres-alloc says then is a guess made of the largest one.
        mem=np.where(~running & (table.floats("MinMemory", parse.memory) == 0.0), np.nan, gpus.mem),
        tmp=np.nan_to_num(table.floats("MinTmpDisk", parse.memory)),
        features=table.category("Feature"),
        req_nodes=table.category("ReqNodes"),
        exc_nodes=Category.of([excluded.get(job, "") for job in ids]),
        dependent=np.array(table.each("Dependency", parse.depends), dtype=np.bool_),
        held=(state == JobState.PENDING)
        & ((priority == 0) | np.array(table.each("Reason", lambda value: value.startswith("JobHeld")), dtype=np.bool_)),
        priority=priority,
        nice=table.ints("Nice", parse.integer),
        site_factor=np.array([factor or 0 for factor in site], dtype=np.int64),
        site_known=np.array([factor is not None for factor in site], dtype=np.bool_),
        oversubscribe=Category.of([shares[pair].value for pair in pairs]),
        exclusive=np.array([asked_exclusive(shares[pair], pair[1]) for pair in pairs], dtype=np.bool_),
        node_ptr=node_ptr,
        node_idx=node_idx,
    )


def _one_row_per_record(columns: Mapping[str, list[str]]) -> tuple[Mapping[str, list[str]], list[int], list[int]]:
    """Columns with one row per record, the ids, and the pending tasks of each.

    The waiting tasks of an array and a running task may share the array's id: the running one then goes by its own
    number, which is the same, so it gives way. Two waiting rows of one array (tasks that were requeued) become one.
    """
    ids = record_ids(dict(columns))
    states, tasks = columns["StateCompact"], columns["ArrayTaskID"]
    waiting = [
        parse.array_tasks(task) if state == parse.PENDING else 0 for state, task in zip(states, tasks, strict=True)
    ]
    if len(set(ids)) == len(ids):
        return columns, ids, waiting
    kept: dict[int, int] = {}
    extra: dict[int, int] = {}
    for row, job in enumerate(ids):
        if job not in kept:
            kept[job] = row
            continue
        other = kept[job]
        if tasks[row] in parse.NOTHING or tasks[other] in parse.NOTHING:
            raise SlurmParseError(f"squeue: job {job} appears twice")
        if states[row] == parse.PENDING and states[other] == parse.PENDING:
            extra[job] = extra.get(job, 0) + waiting[row]
        elif states[row] == parse.PENDING:
            kept[job] = row
    rows = sorted(kept.values())
    return (
        {field: [values[row] for row in rows] for field, values in columns.items()},
        [ids[row] for row in rows],
        [waiting[row] + extra.get(ids[row], 0) for row in rows],
    )


def _nodes_of(
    table: _Columns, nodes: NodeTable, ids: Sequence[int], running: npt.NDArray[np.bool_]
) -> list[Sequence[int]]:
    """Node rows that each running job holds."""
    rows_of: dict[str, Sequence[int]] = {}
    held: list[Sequence[int]] = [()] * len(ids)
    for row in np.flatnonzero(running).tolist():
        listed = parse.text(table["NodeList"][row])
        if listed not in rows_of:
            try:
                rows_of[listed] = tuple(nodes.row_of[name] for name in expand(listed))
            except KeyError as error:
                raise SlurmParseError(
                    f"squeue: job {ids[row]} runs on {printable(str(error), 64)}, which scontrol does not list"
                ) from None
            except SlurmParseError as error:
                raise SlurmParseError(f"squeue, job {ids[row]}, column NodeList: {error}") from None
        held[row] = rows_of[listed]
    return held


def _time_limits(table: _Columns, partitions: Sequence[Partition]) -> Floats:
    """Seconds; a job without a limit of its own has the largest of its partitions."""
    limits = table.floats("TimeLimit", parse.duration)
    longest = {partition.name: partition.max_time for partition in partitions}
    for row in np.flatnonzero(np.isnan(limits)).tolist():
        names = table["Partition"][row].split(",")
        limits[row] = max((longest.get(name, math.inf) for name in names), default=math.inf)
    return limits


class _Gpus:
    """What the jobs ask for, in columns."""

    def __init__(self, rows: Iterable[tuple[int, int, str, int, float]]) -> None:
        total, per_node, kind, cpus, mem = zip(*rows, strict=True) if (rows := list(rows)) else ((), (), (), (), ())
        self.total: Codes = np.array(total, dtype=np.int32)
        self.per_node: Codes = np.array(per_node, dtype=np.int32)
        self.kind = Category.of(kind)
        self.cpus: Codes = np.array(cpus, dtype=np.int32)
        self.mem: Floats = np.array(mem, dtype=np.float64)


_REQUESTS: Final = (
    "tres-alloc",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "tres-per-socket",
    "NumNodes",
    "NumTasks",
)


def _gpus(table: _Columns) -> _Gpus:
    """GPUs, their type, CPUs and memory of each job; each distinct request is worked out once."""
    parts = (
        table.each("tres-alloc", parse.tres),
        table.each("tres-per-job", parse.gres),
        table.each("tres-per-node", parse.gres),
        table.each("tres-per-task", parse.gres),
        table.each("tres-per-socket", parse.gres),
        table.each("NumNodes", parse.count),
        table.each("NumTasks", parse.count),
    )
    keys = list(zip(*(table[field] for field in _REQUESTS), strict=True))
    known: dict[tuple[str, ...], tuple[int, int, str, int, float]] = {}
    found = []
    for row, key in enumerate(keys):
        request = known.get(key)
        if request is None:
            request = known[key] = gpu_request(*(part[row] for part in parts))  # type: ignore[arg-type]
        found.append(request)
    return _Gpus(found)


def gpu_request(
    asked: parse.Tres,
    per_job: Mapping[str, int],
    per_node: Mapping[str, int],
    per_task: Mapping[str, int],
    per_socket: Mapping[str, int],
    nodes: int,
    tasks: int,
) -> tuple[int, int, str, int, float]:
    """(GPUs in all, GPUs per node or 0, type or "", CPUs, MiB in all or NaN) of one job.

    `asked` counts wherever the site tracks gres/gpu (AccountingStorageTRES). Elsewhere the four options are all there
    is: --gpus, --gpus-per-node and --gres, --gpus-per-task, --gpus-per-socket; of the last, one socket per node is
    assumed, which is the least. A request for several types has all of them as its type, which no node has: such a job
    is never placed.
    """
    nodes, tasks = max(nodes, asked.node, 1), max(tasks, 1)
    total = asked.gpus
    if total is None:
        total = max(
            sum(per_job.values()),
            sum(per_node.values()) * nodes,
            sum(per_task.values()) * tasks,
            sum(per_socket.values()) * nodes,
        )
    types = dict(asked.gpu_types)
    if not types:
        for request in (per_job, per_node, per_task, per_socket):
            types.update({kind: number for kind, number in request.items() if kind})
    kind = ",".join(sorted(types))
    return min(total, parse.MAX_COUNT), sum(per_node.values()), kind, asked.cpu, asked.mem

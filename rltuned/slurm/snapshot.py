"""One reading of the cluster as tables. The only part of the package that needs NumPy, and therefore imported late.

Columns are converted as a whole, and each distinct text of a column only once: 10,000 jobs of a few hundred kinds cost
little more than splitting the answer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    Factors,
    asked_exclusive,
    excluded_nodes,
    job_columns,
    multifactor,
    oversubscribe,
    record_ids,
    release,
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
    factors = multifactor(runner)
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
    """squeue's columns as arrays: each distinct text is read once, and a complaint names the job."""

    def __init__(self, columns: Mapping[str, list[str]], ids: Sequence[int]) -> None:
        self._columns = columns
        self._ids = ids

    def __getitem__(self, field: str) -> list[str]:
        return self._columns[field]

    def distinct(self, field: str, reads: Callable[[str], _T]) -> tuple[list[_T], Codes]:
        """What `reads` makes of the distinct texts, in order of first appearance, and which of them each row has."""
        values = self._columns[field]
        # Most columns hold one text only; comparing is much cheaper than looking each up.
        constant = bool(values) and values.count(values[0]) == len(values)
        index = {values[0]: 0} if constant else {value: code for code, value in enumerate(dict.fromkeys(values))}
        found: list[_T] = []
        for value in index:
            try:
                found.append(reads(value))
            except SlurmParseError as error:
                job = self._ids[values.index(value)]
                raise SlurmParseError(f"squeue, job {job}, column {field}: {error}") from None
        if constant:
            return found, np.zeros(len(values), dtype=np.int32)
        return found, np.fromiter(map(index.__getitem__, values), np.int32, count=len(values))

    def floats(self, field: str, reads: Callable[[str], float]) -> Floats:
        found, codes = self.distinct(field, reads)
        return np.array(found, dtype=np.float64)[codes]

    def codes(self, field: str, reads: Callable[[str], int]) -> Codes:
        found, codes = self.distinct(field, reads)
        return np.array(found, dtype=np.int32)[codes]

    def bools(self, field: str, reads: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        found, codes = self.distinct(field, reads)
        return np.array(found, dtype=np.bool_)[codes]

    def ints(self, field: str, reads: Callable[[str], int]) -> Ints:
        plain = parse.plain_integers(self._columns[field])
        if plain is not None:
            return np.array(plain, dtype=np.int64)
        found, codes = self.distinct(field, reads)
        return np.array(found, dtype=np.int64)[codes]

    def times(self, field: str) -> Floats:
        plain = parse.plain_integers(self._columns[field])
        return self.floats(field, parse.epoch) if plain is None else np.array(plain, dtype=np.float64)

    def category(self, field: str) -> Category:
        """As `Category.of`."""
        found, codes = self.distinct(field, parse.text)
        names = tuple(dict.fromkeys(name for name in found if name))
        code = {name: number for number, name in enumerate(names)}
        return Category(np.array([code.get(name, -1) for name in found], dtype=np.int32)[codes], names)


def build_jobs(
    columns: Mapping[str, list[str]],
    excluded: Mapping[int, str],
    factors: Mapping[int, Factors],
    nodes: NodeTable,
    partitions: Sequence[Partition],
) -> JobTable:
    """The job table from squeue's columns, excluded nodes and factors by job id.

    Raises:
        SlurmParseError: names the job and the column; also for a job that appears twice, or runs on an unknown node.
    """
    columns, ids, array_tasks = _one_row_per_record(columns)
    table = _Columns(columns, ids)
    state = np.array([_STATES.get(value, int(JobState.OTHER)) for value in table["StateCompact"]], dtype=np.int8)
    running = state == JobState.RUNNING
    requests = _requests(table)
    end_time = table.times("EndTime")
    node_ptr, node_idx = concatenate_nodes(_nodes_of(table, nodes, ids, running))
    shown = table["OverSubscribe"]
    exclusive = columns.get(EXCLUSIVE)
    pairs: list[tuple[str, str | None]] = (
        [(value, None) for value in shown] if exclusive is None else list(zip(shown, exclusive, strict=True))
    )
    shares = {pair: oversubscribe(*pair) for pair in set(pairs)}
    alone = {pair: asked_exclusive(value, pair[1]) for pair, value in shares.items()}
    priority = table.ints("PriorityLong", parse.integer)
    unknown = Factors(0, 0, 0)
    site, base, least = np.array([factors.get(job, unknown) for job in ids], dtype=np.int64).reshape(len(ids), 3).T
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
        submit_time=table.times("SubmitTime"),
        eligible_time=table.times("EligibleTime"),
        start_time=np.where(running, table.times("StartTime"), np.nan),
        end_time=np.where(running, np.where(np.isnan(end_time), np.inf, end_time), np.nan),
        time_limit=_time_limits(table, partitions),
        nodes=np.maximum(table.codes("NumNodes", parse.count), 1),
        tasks=np.maximum(table.codes("NumTasks", parse.count), 1),
        gpus=requests.gpus,
        gpus_per_node=requests.per_node,
        gpu_type=requests.gpu_type,
        cpus=np.maximum(table.codes("NumCPUs", parse.count), requests.cpus).astype(np.int32),
        # --mem=0 asks for all of a node: what tres-alloc says then is a guess made of the largest one. (22.05 shows a
        # MinMemory of 0 for --mem-per-gpu, too.)
        mem=np.where(
            ~running
            & (table.floats("MinMemory", parse.memory) == 0.0)
            & table.bools("mem-per-tres", lambda value: value in parse.NOTHING),
            np.nan,
            requests.mem,
        ),
        tmp=np.nan_to_num(table.floats("MinTmpDisk", parse.memory)),
        features=table.category("Feature"),
        req_nodes=table.category("ReqNodes"),
        exc_nodes=Category.of([excluded.get(job, "") for job in ids]),
        dependent=table.bools("Dependency", parse.depends),
        held=(state == JobState.PENDING)
        & ((priority == 0) | table.bools("Reason", lambda value: value.startswith("JobHeld"))),
        priority=priority,
        nice=table.ints("Nice", parse.integer),
        site_factor=site,
        site_known=np.array([job in factors for job in ids], dtype=np.bool_),
        base=base,
        base_least=least,
        oversubscribe=Category.of([shares[pair].value for pair in pairs]),
        exclusive=np.array([alone[pair] for pair in pairs], dtype=np.bool_),
        node_ptr=node_ptr,
        node_idx=node_idx,
    )


def _one_row_per_record(columns: Mapping[str, list[str]]) -> tuple[Mapping[str, list[str]], list[int], list[int]]:
    """Columns with one row per record, the ids, and the pending tasks of each.

    The waiting tasks of an array and a running task may share the array's id: the running one then goes by its own
    number, which is the same, so it gives way. Two waiting rows of one array (tasks that were requeued) become one.
    """
    ids = record_ids(columns)
    states, tasks = columns["StateCompact"], columns["ArrayTaskID"]
    number = {task: parse.array_tasks(task) for task in set(tasks)}
    waiting = [number[task] if state == parse.PENDING else 0 for state, task in zip(states, tasks, strict=True)]
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


@dataclass(frozen=True)
class _Requests:
    """What the jobs ask for, in columns."""

    gpus: Codes
    per_node: Codes
    gpu_type: Category
    cpus: Codes
    mem: Floats


_OPTIONS: Final = ("tres-per-job", "tres-per-node", "tres-per-task", "tres-per-socket")
"""--gpus, --gpus-per-node and --gres, --gpus-per-task, --gpus-per-socket."""


def _requests(table: _Columns) -> _Requests:
    """GPUs, their type, CPUs and memory of each job.

    `tres-alloc` counts wherever the site tracks gres/gpu (AccountingStorageTRES). Elsewhere the four options are all
    there is; of GPUs per socket, one socket per node is assumed, which is the least. A request for several types has
    all of them as its type, which no node has: such a job is never placed.
    """
    asked, row = table.distinct("tres-alloc", parse.tres)
    options = {field: table.distinct(field, parse.gres) for field in _OPTIONS}
    number = {
        field: np.array([sum(found.values()) for found in distinct], dtype=np.int64)[codes]
        for field, (distinct, codes) in options.items()
    }
    tracked = np.array([-1 if found.gpus is None else found.gpus for found in asked], dtype=np.int64)[row]
    nodes = np.maximum(
        table.codes("NumNodes", parse.count), np.array([found.node for found in asked], dtype=np.int64)[row]
    )
    nodes = np.maximum(nodes, 1)
    total = np.maximum.reduce(
        [
            number["tres-per-job"],
            number["tres-per-node"] * nodes,
            number["tres-per-task"] * np.maximum(table.codes("NumTasks", parse.count), 1),
            number["tres-per-socket"] * nodes,
        ]
    )
    return _Requests(
        gpus=np.minimum(np.where(tracked >= 0, tracked, total), parse.MAX_COUNT).astype(np.int32),
        per_node=np.minimum(number["tres-per-node"], parse.MAX_COUNT).astype(np.int32),
        gpu_type=_types([",".join(sorted(dict(found.gpu_types))) for found in asked], row, options.values()),
        cpus=np.array([found.cpu for found in asked], dtype=np.int32)[row],
        mem=np.array([found.mem for found in asked], dtype=np.float64)[row],
    )


def _types(tracked: Sequence[str], row: Codes, options: Iterable[tuple[list[dict[str, int]], Codes]]) -> Category:
    """Type by job: the tracked one, else those that the options name."""
    kinds = [tracked[code] for code in row.tolist()]
    named = [[",".join(sorted(kind for kind in found if kind)) for found in distinct] for distinct, _ in options]
    for names, (_, codes) in zip(named, options, strict=True):
        if any(names):
            for at in np.flatnonzero(np.array([bool(name) for name in names], dtype=np.bool_)[codes]).tolist():
                kinds[at] = kinds[at] or names[codes[at]]
    return Category.of(kinds)

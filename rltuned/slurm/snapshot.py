"""One reading of the cluster as tables."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.changes import JobState
from rltuned.core.errors import SlurmDeniedError, SlurmParseError
from rltuned.core.notation import expand
from rltuned.core.scheduler import Health
from rltuned.core.tables import (
    Bools,
    Category,
    Codes,
    Floats,
    JobTable,
    NodeTable,
    Partition,
    Rows,
    Snapshot,
    concatenate_nodes,
)
from rltuned.core.unread import RowKind, Skipped, Unread
from rltuned.slurm import controller, listings, notation
from rltuned.slurm.commands import GPU_OPTIONS
from rltuned.slurm.process import Runner, one_line
from rltuned.slurm.separated import refuse_unknown
from rltuned.slurm.squeue import (
    COLUMNS,
    Columns,
    Factors,
    Records,
    excluded_nodes,
    job_columns,
    multifactor,
    read_records,
    skip_strange,
    started_tasks,
)

_SHOWN: Final = 0.95
"""Part of the jobs that slurmctld counted within the last half minute: some have ended since. Where fewer are shown,
the answer may be cut at the end of a line; or a strange row is of an array of many."""


def read_snapshot(runner: Runner, now: float) -> Snapshot:
    """Read everything in seven commands: version, jobs, excluded nodes, site factors, nodes, partitions, load.

    What cannot be understood costs itself: it is named and counted in `Snapshot.unread`.
    """
    unread = Unread()
    of_release = controller.release(runner)
    texts = job_columns(runner, of_release, unread, brief=False)
    excluded, array_of = excluded_nodes(runner, unread)
    factors = multifactor(runner, unread)
    nodes, strange_nodes = listings.nodes(runner.ask("nodes"))
    partitions, strange_partitions = listings.partitions(runner.ask("partitions"))
    try:
        load = controller.diagnostics(runner.ask("diagnostics"))
    except SlurmDeniedError:  # the site does not let us ask
        load = controller.Load(Health(), 0, 0)
    # PrivateData=jobs shows an empty queue to whoever lost the privilege, with exit status 0.
    if not texts["JobID"] and (load.jobs_pending or load.jobs_running):
        raise SlurmParseError(
            f"squeue shows no job, but slurmctld counts {load.jobs_pending} pending and {load.jobs_running} running "
            "(sdiag): the answer is cut short, or PrivateData hides the jobs from this user"
        )
    for row in (*strange_nodes, *strange_partitions):
        unread.skip(row)
    missing = _unlisted(texts, {node.name for node in nodes})
    if missing:
        nodes = [*nodes, *map(listings.unusable_node, missing)]
        reasons = ["a job runs on it, but scontrol does not list it"] * len(missing)
        refuse_unknown([f"scontrol show node lacks {missing[0]!r}: {reasons[0]}", *reasons[1:]], len(nodes))
        for name, reason in zip(missing, reasons, strict=True):
            unread.skip(Skipped(RowKind.NODE, name, reason))
    node_table = build_nodes(nodes)
    partition_table = build_partitions(partitions, node_table)
    arrays, started = started_tasks(texts)
    records = read_records(texts, factors, array_of)
    jobs = _build_jobs(records, excluded, node_table, partition_table, unread)
    reserved = np.array([node.state.reserved for node in nodes], dtype=np.bool_)
    shown = len(jobs.running) + int(np.maximum(jobs.array_tasks[jobs.pending], 1).sum())
    if shown < _SHOWN * (load.jobs_pending + load.jobs_running) and not unread.counts[RowKind.JOB]:
        unread.listed.setdefault(RowKind.JOB, jobs.row_of.keys() | arrays.keys())
    return Snapshot(
        time=now,
        release=of_release,
        jobs=jobs,
        nodes=replace(node_table, usable=node_table.usable | (reserved & _open_to_all(jobs, len(nodes)))),
        partitions=partition_table,
        health=load.health,
        unread=unread,
        arrays=arrays,
        array_of=started,
        bases={job: of.bases for job, of in zip(records.ids, records.factors, strict=True) if of and len(of.bases) > 2},
    )


def _unlisted(columns: Mapping[str, list[str]], known: Collection[str]) -> list[str]:
    """Nodes that jobs run on, and that are not `known`: their lines were not understood, or are missing."""
    missing: dict[str, None] = {}
    holding = zip(columns["NodeList"], columns["StateCompact"], strict=True)
    lists = dict.fromkeys(listed for listed, state in holding if listed and state in notation.HOLDING_STATES)
    for listed in lists:
        if listed in known or listed in notation.NOTHING:
            continue
        try:
            new = [name for name in expand(listed) if name not in known]
        except SlurmParseError:
            continue  # costs its job
        if all(map(listings.is_node_name, new)):
            missing.update(dict.fromkeys(new))
    return list(missing)


def _open_to_all(jobs: JobTable, nodes: int) -> Bools:
    """(M,) nodes that a job without a reservation runs on. Slurm starts none on a node that is reserved as a whole:
    where one runs, the reservation is of a part, and others may have the rest.
    """
    found = np.zeros(nodes, dtype=np.bool_)
    for row in jobs.running[jobs.reservation.codes[jobs.running] < 0].tolist():
        found[jobs.nodes_of(row)] = True
    return found


# --- nodes and partitions ----------------------------------------------------------------------------------------


def build_nodes(nodes: Sequence[listings.Node]) -> NodeTable:
    """The node table; GPU types in alphabetical order."""
    types = tuple(sorted({kind for node in nodes for kind in (*node.gpus, *node.gpus_alloc)}))
    shape = len(nodes), len(types)
    gpus, gpus_alloc = (
        np.array([[of.get(kind, 0) for kind in types] for of in by_type], dtype=np.int32).reshape(shape)
        for by_type in ([node.gpus for node in nodes], [node.gpus_alloc for node in nodes])
    )
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
        counts=np.array([node.state.counts for node in nodes], dtype=np.bool_),
        asleep=np.array([node.state.asleep for node in nodes], dtype=np.bool_),
        weight=np.array([node.weight for node in nodes], dtype=np.int64),
    )


def build_partitions(lines: Sequence[listings.PartitionLine], nodes: NodeTable) -> tuple[Partition, ...]:
    """Partitions with the rows of their nodes, as far as scontrol lists them; one not understood may have any node."""
    built = []
    for partition, names, understood in lines:
        rows = sorted({nodes.row_of[name] for name in names if name in nodes.row_of})
        if not understood and not rows:
            rows = list(range(len(nodes)))
        built.append(replace(partition, nodes=np.array(rows, dtype=np.int32)))
    return tuple(built)


# --- jobs --------------------------------------------------------------------------------------------------------


def _build_jobs(
    records: Records,
    excluded: Mapping[int, str],
    nodes: NodeTable,
    partitions: Sequence[Partition],
    unread: Unread,
) -> JobTable:
    """The job table of squeue's records and the excluded nodes by job id: one row for each record.

    A pending job that cannot be understood keeps its row, so that others are still compared with it. One that runs has
    none: what it holds is in what its nodes have allocated.
    """
    jobs, ids = _table(records, excluded, nodes, partitions), records.ids
    skip_strange(records, unread, "squeue")
    strange = {ids[row] for row in records.columns.strange}
    waits = [state == JobState.PENDING for state in records.state]
    kept = [row for row in records.rows if ids[row] and (waits[row] or ids[row] not in strange)]
    if unread:
        for row in kept:
            if waits[row] and (reason := unread.about(ids[row], queued=True)):
                unread.jobs[ids[row]] = reason
    return jobs if len(kept) == len(jobs) else jobs.take(np.array(kept, dtype=np.intp))


def _table(
    records: Records, excluded: Mapping[int, str], nodes: NodeTable, partitions: Sequence[Partition]
) -> JobTable:
    """One row for each row of squeue."""
    table, ids = records.columns, records.ids
    state, exclusive = np.array(records.state, dtype=np.int8), np.array(records.exclusive, dtype=np.bool_)
    running = state == JobState.RUNNING
    requests = _requests(table, running & exclusive)
    end_time = _array(table, "EndTime")
    node_ptr, node_idx = concatenate_nodes(_nodes_of(table, nodes, running))
    factors = [of or Factors(0, (0,), "") for of in records.factors]
    numbers = [(of.site, of.bases[-1], of.bases[0]) for of in factors]
    site, base, least = np.array(numbers, dtype=np.int64).reshape(len(ids), 3).T
    return JobTable(
        job_id=np.array(ids, dtype=np.int64),
        state=state,
        array_tasks=_waiting_tasks(records),
        array_limit=np.array([*map(notation.array_limit, table.texts["ArrayTaskID"])], dtype=np.int32),
        het_job_id=_array(table, "HetJobID"),
        user=_category(table, "UserName"),
        account=_category(table, "Account"),
        partition=_category(table, "Partition"),
        qos=_category(table, "QOS"),
        reservation=_category(table, "Reservation"),
        reason=_category(table, "Reason"),
        submit_time=np.array(records.submit_time, dtype=np.float64),
        eligible_time=_array(table, "EligibleTime"),
        start_time=np.where(running, _array(table, "StartTime"), np.nan),
        end_time=np.where(running, np.where(np.isnan(end_time), np.inf, end_time), np.nan),
        time_limit=_time_limits(table, partitions),
        nodes=np.maximum(_array(table, "NumNodes"), 1),
        tasks=np.maximum(_array(table, "NumTasks"), 1),
        gpus=requests.gpus,
        gpus_per_node=requests.per_node,
        gpu_type=requests.gpu_type,
        cpus=np.maximum(_array(table, "NumCPUs"), requests.cpus).astype(np.int32),
        # --mem=0, and no --mem where there is no DefMemPerCPU, asks for all of a node: what tres-alloc of a waiting job
        # says then is a guess made of the largest one. (22.05 shows a MinMemory of 0 for --mem-per-gpu, too.)
        mem=np.where((_array(table, "MinMemory") == 0.0) & ~_array(table, "mem-per-tres"), np.nan, requests.mem),
        tmp=np.nan_to_num(_array(table, "MinTmpDisk")),
        features=_category(table, "Feature"),
        req_nodes=_category(table, "ReqNodes"),
        exc_nodes=Category.of([excluded.get(job, "") for job in ids]),
        dependent=_array(table, "Dependency"),
        deadline=_array(table, "Deadline"),
        held=np.array(records.held, dtype=np.bool_),
        priority=np.array(records.priority, dtype=np.int64),
        nice=_array(table, "Nice"),
        site_factor=site,
        site_known=np.array([of is not None for of in records.factors], dtype=np.bool_),
        base=base,
        base_least=least,
        decided=Category.of([of.decided for of in factors]),
        request=Category.of(records.request),
        oversubscribe=Category.of([share.value for share in records.oversubscribe]),
        exclusive=exclusive,
        node_ptr=node_ptr,
        node_idx=node_idx,
    )


def _distinct(table: Columns, field: str) -> tuple[list[Any], Codes]:
    """As `Columns.distinct`."""
    found, codes = table.distinct(field)
    return found, np.asarray(codes, dtype=np.int32)


def _array(table: Columns, field: str) -> Any:
    """The values of a column."""
    found, codes = _distinct(table, field)
    return np.array(found, dtype=COLUMNS[field].kind)[codes]


def _category(table: Columns, field: str) -> Category:
    """A column of texts."""
    texts, codes = table.coded(field)
    return Category.of(map(notation.text, texts))[np.asarray(codes, dtype=np.intp)]


def _waiting_tasks(records: Records) -> Codes:
    """Waiting tasks of each record. Two waiting rows of one array (tasks that were requeued) are one record."""
    texts, tasks = records.columns.texts, _array(records.columns, "ArrayTaskID")
    waiting = np.where([state == notation.PENDING for state in texts["StateCompact"]], tasks, 0)
    _, of = np.unique(np.array(records.ids, dtype=np.int64), return_inverse=True)
    return np.bincount(of, weights=waiting)[of].astype(np.int32) if len(of) else waiting.astype(np.int32)


def _nodes_of(table: Columns, nodes: NodeTable, running: Bools) -> list[Sequence[int]]:
    """Node rows that each running job holds."""
    rows_of: dict[str, Sequence[int]] = {}
    held: list[Sequence[int]] = [()] * len(running)
    for row in np.flatnonzero(running).tolist():
        listed = notation.text(table.texts["NodeList"][row])
        if listed not in rows_of:
            try:
                rows_of[listed] = tuple(nodes.row_of[name] for name in expand(listed))
            except (SlurmParseError, KeyError) as error:
                table.note(
                    row, f"column NodeList: cannot understand {one_line(listed, 80)!r}: {one_line(str(error), 64)}"
                )
                continue
        held[row] = rows_of[listed]
    return held


def _time_limits(table: Columns, partitions: Sequence[Partition]) -> Floats:
    """Seconds; a job without a limit of its own has the largest of its partitions."""
    limits: Floats = _array(table, "TimeLimit")
    longest = {partition.name: partition.max_time for partition in partitions}
    for row in np.flatnonzero(np.isnan(limits)).tolist():
        names = table.texts["Partition"][row].split(",")
        limits[row] = max((longest.get(name, math.inf) for name in names), default=math.inf)
    return limits


class _Requests(NamedTuple):
    """What the jobs ask for, in columns."""

    gpus: Codes
    per_node: Codes
    gpu_type: Category
    cpus: Codes
    mem: Floats


def _requests(table: Columns, whole: Bools) -> _Requests:
    """GPUs, their type, CPUs and memory of each job: of `tres-alloc` where gres/gpu is tracked, else of options.

    `whole`: jobs that run on nodes of their own, for which `tres-alloc` has all GPUs of these.
    """
    asked, row = _distinct(table, "tres-alloc")
    options = {field: _distinct(table, field) for field in GPU_OPTIONS}
    number = {
        field: np.array([sum(found.values()) for found in distinct], dtype=np.int64)[codes]
        for field, (distinct, codes) in options.items()
    }
    tracked = np.array([-1 if found.gpus is None else found.gpus for found in asked], dtype=np.int64)[row]
    nodes = np.maximum(_array(table, "NumNodes"), np.array([found.node for found in asked], dtype=np.int64)[row])
    nodes = np.maximum(nodes, 1)
    # One socket per node is the least.
    total = np.maximum.reduce(
        [
            number["tres-per-job"],
            number["tres-per-node"] * nodes,
            number["tres-per-task"] * np.maximum(_array(table, "NumTasks"), 1),
            number["tres-per-socket"] * nodes,
        ]
    )
    return _Requests(
        gpus=np.minimum(np.where((tracked >= 0) & ~whole, tracked, total), notation.MAX_COUNT).astype(np.int32),
        per_node=np.minimum(number["tres-per-node"], notation.MAX_COUNT).astype(np.int32),
        gpu_type=_types([([dict(found.gpu_types) for found in asked], row), *options.values()]),
        cpus=np.array([found.cpu for found in asked], dtype=np.int32)[row],
        mem=np.array([found.mem for found in asked], dtype=np.float64)[row],
    )


def _types(columns: Sequence[tuple[list[dict[str, int]], Codes]]) -> Category:
    """Type by job: all that `columns` name. (Of those that a job asks for, a site may track some only.)"""
    of: Rows = np.zeros(len(columns[0][1]), dtype=np.intp)
    for distinct, codes in columns:
        if any(map(any, distinct)):
            of = np.unique(of * len(distinct) + codes, return_inverse=True)[1]
    _, first, of = np.unique(of, return_index=True, return_inverse=True)
    kinds = [{kind for distinct, codes in columns for kind in distinct[codes[row]]} for row in first.tolist()]
    texts = [",".join(sorted(kind - {""})) for kind in kinds]
    return Category.of([texts[kind] for kind in of.tolist()])

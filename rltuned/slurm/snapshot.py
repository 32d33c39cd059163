"""One reading of the cluster as tables. The only part of the package that needs NumPy, and therefore imported late.

Columns are converted as a whole, and each distinct text of a column only once: 10,000 jobs of a few hundred kinds cost
little more than splitting the answer.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from rltuned.cluster.unread import Collector, RowKind, Skipped
from rltuned.errors import SlurmDeniedError, SlurmParseError
from rltuned.slurm import controller, listings, notation, separated
from rltuned.slurm.commands import EXCLUSIVE
from rltuned.slurm.process import Runner, printable
from rltuned.slurm.status import (
    Factors,
    arrays_of_tasks,
    asked_exclusive,
    excluded_nodes,
    job_columns,
    multifactor,
    note_twins,
    number_in_sprio,
    oversubscribe,
    record_ids,
    release,
    skip_jobs,
    spokesmen,
    started_arrays,
)

_T = TypeVar("_T")

_STATES: Final[Mapping[str, int]] = {
    **dict.fromkeys(notation.WAITING_STATES, int(JobState.PENDING)),
    **dict.fromkeys(notation.HOLDING_STATES, int(JobState.RUNNING)),
}


def read_snapshot(runner: Runner, now: float) -> Snapshot:
    """Read everything in seven commands: version, jobs, excluded nodes, site factors, nodes, partitions, load.

    What cannot be understood costs itself: it is named and counted in `Snapshot.unread`.

    Raises:
        SlurmUnavailableError: no or late answer.
        SlurmParseError: truncated answer, a format that is not known, or a queue that looks empty but is not.
    """
    unread = Collector()
    of_release = release(runner)
    columns = job_columns(runner, of_release, unread, brief=False)
    excluded = excluded_nodes(runner, unread)
    factors = multifactor(runner, unread)
    nodes, strange_nodes = listings.nodes(runner.ask("nodes"))
    partitions, strange_partitions = listings.partitions(runner.ask("partitions"))
    load = _load(runner)
    if load is not None and not columns["JobID"]:
        _check_empty(load)
    for row in (*strange_nodes, *strange_partitions):
        unread.skip(row)
    missing = _unlisted(columns, {node.name for node in nodes})
    if missing:
        nodes = [*nodes, *map(listings.unusable_node, missing)]
        reasons = ["a job runs on it, but scontrol does not list it"] * len(missing)
        separated.refuse_unknown([f"scontrol show node lacks {missing[0]!r}: {reasons[0]}", *reasons[1:]], len(nodes))
        for name, reason in zip(missing, reasons, strict=True):
            unread.skip(Skipped(RowKind.NODE, name, reason))
    node_table = build_nodes(nodes)
    partition_table = build_partitions(partitions, node_table, unread)
    return Snapshot(
        time=now,
        release=of_release,
        jobs=build_jobs(columns, excluded, factors, node_table, partition_table, unread),
        nodes=node_table,
        partitions=partition_table,
        health=Health()
        if load is None
        else Health(load.server_threads, load.agent_queue, load.cycle_mean_us, load.backfill_mean_us),
        unread=unread.found(),
        arrays=started_arrays(columns),
        array_of=arrays_of_tasks(columns),
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


def _load(runner: Runner) -> controller.Diagnostics | None:
    """What sdiag says; None where the site does not let us ask."""
    try:
        return controller.diagnostics(runner.ask("diagnostics"))
    except SlurmDeniedError:
        return None


def _check_empty(load: controller.Diagnostics) -> None:
    """An empty queue must agree with what slurmctld itself counts (every half minute).

    PrivateData=jobs shows an empty queue to whoever lost the privilege, with exit status 0.
    """
    if load.jobs_pending or load.jobs_running:
        raise SlurmParseError(
            f"squeue shows no job, but slurmctld counts {load.jobs_pending} pending and {load.jobs_running} running "
            "(sdiag): the answer is cut short, or PrivateData hides the jobs from this user"
        )


# --- nodes and partitions ----------------------------------------------------------------------------------------


def build_nodes(nodes: Sequence[listings.Node]) -> NodeTable:
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
        asleep=np.array([node.state.asleep for node in nodes], dtype=np.bool_),
        weight=np.array([node.weight for node in nodes], dtype=np.int64),
    )


def build_partitions(
    partitions: Sequence[listings.PartitionLine], nodes: NodeTable, unread: Collector
) -> tuple[Partition, ...]:
    """Partitions with the rows of their nodes; configured nodes that scontrol does not list (FUTURE) are left out.

    A partition that was not understood may have any node.
    """
    built = []
    for said in partitions:
        line = said
        try:
            rows = sorted({nodes.row_of[name] for name in expand(line.nodes) if name in nodes.row_of})
        except SlurmParseError as error:
            if line.understood:
                reason = f"scontrol show partition, partition {printable(line.name, 64)!r}: {error}"
                unread.skip(Skipped(RowKind.PARTITION, line.name, reason))
            line, rows = listings.closed_partition(line.name), []
        if not line.understood and not rows:
            rows = list(range(len(nodes)))
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


_WORDS: Final = 8
_LAST_MOMENT: Final = 10**12
"""What a column of moments may hold to be read at once: few words, and numbers that `notation.epoch` takes."""


class _Columns:
    """squeue's columns as arrays: each distinct text is read once. What cannot be understood is noted with its row."""

    def __init__(self, columns: Mapping[str, list[str]], strange: dict[int, str]) -> None:
        self._columns = columns
        self._strange = strange
        self._coded: dict[str, tuple[list[str], Codes]] = {}

    def __getitem__(self, field: str) -> list[str]:
        return self._columns[field]

    def get(self, field: str) -> list[str] | None:
        return self._columns.get(field)

    def distinct(self, field: str, reads: Callable[[str], _T], instead: _T) -> tuple[list[_T], Codes]:
        """What `reads` makes of the distinct texts, in order of first appearance, and which of them each row has.

        `instead` stands for a text that it does not understand.
        """
        texts, codes = self.coded(field)
        found: list[_T] = []
        wrong: dict[str, SlurmParseError] = {}
        for value in texts:
            try:
                found.append(reads(value))
            except SlurmParseError as error:
                found.append(instead)
                wrong[value] = error
        if wrong:
            for row, value in enumerate(self._columns[field]):
                if value in wrong:
                    self.note(row, field, wrong[value])
        return found, codes

    def coded(self, field: str) -> tuple[list[str], Codes]:
        """The distinct texts of a column, in order of first appearance, and which of them each row has. Found once."""
        if field not in self._coded:
            values = self._columns[field]
            # Most columns hold one text only; comparing is much cheaper than looking each up.
            if values and values.count(values[0]) == len(values):
                self._coded[field] = values[:1], np.zeros(len(values), dtype=np.int32)
            else:
                index = {value: code for code, value in enumerate(dict.fromkeys(values))}
                self._coded[field] = (
                    list(index),
                    np.fromiter(map(index.__getitem__, values), np.int32, count=len(values)),
                )
        return self._coded[field]

    def note(self, row: int, field: str, error: SlurmParseError | str) -> None:
        """This row cannot be understood."""
        self._strange.setdefault(row, f"column {field}: {error}")

    def floats(self, field: str, reads: Callable[[str], float]) -> Floats:
        found, codes = self.distinct(field, reads, math.nan)
        return np.array(found, dtype=np.float64)[codes]

    def codes(self, field: str, reads: Callable[[str], int]) -> Codes:
        found, codes = self.distinct(field, reads, 0)
        return np.array(found, dtype=np.int32)[codes]

    def bools(self, field: str, reads: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        found, codes = self.distinct(field, reads, instead=False)
        return np.array(found, dtype=np.bool_)[codes]

    def ints(self, field: str, reads: Callable[[str], int]) -> Ints:
        plain = _plain(self._columns[field])
        if plain is not None:
            return plain
        found, codes = self.distinct(field, reads, 0)
        return np.array(found, dtype=np.int64)[codes]

    def times(self, field: str, reads: Callable[[str], float] = notation.epoch) -> Floats:
        values = self._columns[field]
        plain = _plain(values)
        if plain is not None:
            return plain.astype(np.float64)
        # Moments are nearly all different, and some are missing, in a few words: only these are looked at by
        # themselves.
        plain = _plain([value if value.isdigit() else "0" for value in values])
        words = {value for value in values if not value.isdigit()}
        if plain is None or len(words) > _WORDS or plain.max() >= _LAST_MOMENT:
            return self.floats(field, reads)
        found = plain.astype(np.float64)
        for word in words:
            rows = np.fromiter(map(word.__eq__, values), dtype=np.bool_, count=len(values))
            try:
                found[rows] = reads(word)
            except SlurmParseError as error:
                found[rows] = math.nan
                for row in np.flatnonzero(rows).tolist():
                    self.note(row, field, error)
        return found

    def category(self, field: str) -> Category:
        """As `Category.of`."""
        return _category(*self.distinct(field, notation.text, ""))


def _plain(values: list[str]) -> Ints | None:
    """A column of plain integers (`notation.are_plain`); None: it is none. Five times as fast as `int` for each."""
    return np.fromstring(",".join(values), dtype=np.int64, sep=",") if notation.are_plain(values) else None


def _category(values: Sequence[str], codes: Codes) -> Category:
    """As `Category.of` of ``[values[code] for code in codes]``, where each value appears first before those behind
    it.
    """
    names = tuple(dict.fromkeys(name for name in values if name))
    code = {name: number for number, name in enumerate(names)}
    return Category(np.array([code.get(name, -1) for name in values], dtype=np.int32)[codes], names)


def build_jobs(
    columns: Mapping[str, list[str]],
    excluded: Mapping[int, str],
    factors: Mapping[int, Factors],
    nodes: NodeTable,
    partitions: Sequence[Partition],
    unread: Collector,
) -> JobTable:
    """The job table from squeue's columns, excluded nodes and factors by job id.

    A job that cannot be understood (also one that appears twice, or runs on an unknown node) goes into `unread`. A
    pending job keeps its row, with the unreadable columns empty, so that others are still compared with it. One that
    runs has
    none: what it holds is in what its nodes have allocated.

    Raises:
        SlurmParseError: so many that the format is not known.
    """
    strange_rows: dict[int, str] = {}
    all_ids = record_ids(columns, strange_rows)
    note_twins(columns, all_ids, strange_rows)
    kept, array_tasks, strange = _one_row_per_record(columns, all_ids, strange_rows)
    if kept is None:
        shown, ids = columns, all_ids
    else:
        shown = {field: [values[row] for row in kept] for field, values in columns.items()}
        ids = [all_ids[row] for row in kept]
    before = frozenset(strange)
    jobs = _table(_Columns(shown, strange), ids, array_tasks, excluded, factors, nodes, partitions)
    for row in strange.keys() - before:
        strange_rows[row if kept is None else kept[row]] = strange[row]
    skip_jobs(columns, all_ids, strange_rows, unread, "squeue")
    if not unread:
        return jobs
    for row in jobs.pending.tolist():
        if reason := unread.about(ids[row], queued=True):
            unread.jobs[ids[row]] = reason
    keep = np.ones(len(jobs), dtype=np.bool_)
    lost = [row for row in strange if ids[row] == 0 or jobs.state[row] != JobState.PENDING]
    keep[lost] = False
    return jobs.take(keep)


def _table(
    table: _Columns,
    ids: Sequence[int],
    array_tasks: Sequence[int],
    excluded: Mapping[int, str],
    factors: Mapping[int, Factors],
    nodes: NodeTable,
    partitions: Sequence[Partition],
) -> JobTable:
    """One row for each row of the columns; `array_tasks`: pending tasks of each."""
    states, state_of = table.coded("StateCompact")
    state = np.array([_STATES.get(value, int(JobState.OTHER)) for value in states], dtype=np.int8)[state_of]
    running = state == JobState.RUNNING
    requests = _requests(table)
    end_time = table.times("EndTime")
    node_ptr, node_idx = concatenate_nodes(_nodes_of(table, nodes, running))
    shares, alone = _shares(table)
    priority = table.ints("PriorityLong", notation.integer)
    unknown = Factors(0, 0, 0)
    numbers = [number_in_sprio(factors, job, own) for job, own in zip(ids, table["JobID"], strict=True)]
    site, base, least = np.array([factors.get(of, unknown) for of in numbers], dtype=np.int64).reshape(len(ids), 3).T
    return JobTable(
        job_id=np.array(ids, dtype=np.int64),
        state=state,
        array_tasks=np.array(array_tasks, dtype=np.int32),
        het_job_id=table.ints("HetJobID", notation.job_id),
        user=table.category("UserName"),
        account=table.category("Account"),
        partition=table.category("Partition"),
        qos=table.category("QOS"),
        reservation=table.category("Reservation"),
        reason=table.category("Reason"),
        submit_time=np.nan_to_num(table.times("SubmitTime", notation.moment)),
        eligible_time=table.times("EligibleTime"),
        start_time=np.where(running, table.times("StartTime"), np.nan),
        end_time=np.where(running, np.where(np.isnan(end_time), np.inf, end_time), np.nan),
        time_limit=_time_limits(table, partitions),
        nodes=np.maximum(table.codes("NumNodes", notation.count), 1),
        tasks=np.maximum(table.codes("NumTasks", notation.count), 1),
        gpus=requests.gpus,
        gpus_per_node=requests.per_node,
        gpu_type=requests.gpu_type,
        cpus=np.maximum(table.codes("NumCPUs", notation.count), requests.cpus).astype(np.int32),
        # --mem=0 asks for all of a node: what tres-alloc says then is a guess made of the largest one. (22.05 shows a
        # MinMemory of 0 for --mem-per-gpu, too.)
        mem=np.where(
            ~running
            & (table.floats("MinMemory", notation.memory) == 0.0)
            & table.bools("mem-per-tres", lambda value: value in notation.NOTHING),
            np.nan,
            requests.mem,
        ),
        tmp=np.nan_to_num(table.floats("MinTmpDisk", notation.memory)),
        features=table.category("Feature"),
        req_nodes=table.category("ReqNodes"),
        exc_nodes=_excluded(excluded, ids),
        dependent=table.bools("Dependency", notation.depends),
        held=(state == JobState.PENDING)
        & ((priority == 0) | table.bools("Reason", lambda value: value.startswith("JobHeld"))),
        priority=priority,
        nice=table.ints("Nice", notation.integer),
        site_factor=site,
        site_known=np.array([of in factors for of in numbers], dtype=np.bool_),
        base=base,
        base_least=least,
        oversubscribe=shares,
        exclusive=alone,
        node_ptr=node_ptr,
        node_idx=node_idx,
    )


def _shares(table: _Columns) -> tuple[Category, npt.NDArray[np.bool_]]:
    """OverSubscribe of each job, and whether it asked for nodes of its own."""
    if table.get(EXCLUSIVE) is None:
        shown, codes = table.coded("OverSubscribe")
        pairs: list[tuple[str, str | None]] = [(value, None) for value in shown]
    else:
        both = list(zip(table["OverSubscribe"], table[EXCLUSIVE], strict=True))
        index = {pair: code for code, pair in enumerate(dict.fromkeys(both))}
        pairs, codes = list(index), np.fromiter(map(index.__getitem__, both), np.int32, count=len(both))
    values = [oversubscribe(*pair) for pair in pairs]
    alone = [asked_exclusive(value, pair[1]) for value, pair in zip(values, pairs, strict=True)]
    return _category([value.value for value in values], codes), np.array(alone, dtype=np.bool_)[codes]


def _excluded(excluded: Mapping[int, str], ids: Sequence[int]) -> Category:
    """As `Category.of`; most jobs exclude nothing."""
    rows = [row for row, job in enumerate(ids) if job in excluded]
    some = Category.of([excluded[ids[row]] for row in rows])
    codes = np.full(len(ids), -1, dtype=np.int32)
    codes[rows] = some.codes
    return Category(codes, some.names)


def _one_row_per_record(
    columns: Mapping[str, list[str]], ids: Sequence[int], strange: dict[int, str]
) -> tuple[list[int] | None, list[int], dict[int, str]]:
    """Which rows to keep so that each record has one (None: all), the pending tasks of each, and which are strange.

    The waiting tasks of an array and a running task may share the array's id: the running one then goes by its own
    number, which is the same, so it gives way. Two waiting rows of one array (tasks that were requeued) become one.
    """
    states, tasks = columns["StateCompact"], columns["ArrayTaskID"]
    number: dict[str, int] = {}
    wrong: dict[str, SlurmParseError] = {}
    for task in set(tasks):
        try:
            number[task] = notation.array_tasks(task)
        except SlurmParseError as error:
            number[task], wrong[task] = 0, error
    if wrong:
        for row, task in enumerate(tasks):
            if task in wrong:
                strange.setdefault(row, f"column ArrayTaskID: {wrong[task]}")
    waiting = [number[task] if state == notation.PENDING else 0 for state, task in zip(states, tasks, strict=True)]
    if len(set(ids)) == len(ids):
        return None, waiting, dict(strange)
    together: dict[int, int] = {}
    odd: dict[int, str] = {}
    for row, job in enumerate(ids):
        if row in strange:
            odd.setdefault(job, strange[row])
        together[job] = together.get(job, 0) + waiting[row]
    rows = sorted(spokesmen(columns, ids).values())
    return (
        rows,
        [together[ids[row]] for row in rows],
        {at: odd[ids[row]] for at, row in enumerate(rows) if ids[row] in odd},
    )


def _nodes_of(table: _Columns, nodes: NodeTable, running: npt.NDArray[np.bool_]) -> list[Sequence[int]]:
    """Node rows that each running job holds."""
    rows_of: dict[str, Sequence[int]] = {}
    held: list[Sequence[int]] = [()] * len(running)
    for row in np.flatnonzero(running).tolist():
        listed = notation.text(table["NodeList"][row])
        if listed not in rows_of:
            try:
                rows_of[listed] = tuple(nodes.row_of[name] for name in expand(listed))
            except (SlurmParseError, KeyError) as error:
                table.note(row, "NodeList", f"cannot understand {printable(listed, 80)!r}: {printable(str(error), 64)}")
                continue
        held[row] = rows_of[listed]
    return held


def _time_limits(table: _Columns, partitions: Sequence[Partition]) -> Floats:
    """Seconds; a job without a limit of its own has the largest of its partitions."""
    limits = table.floats("TimeLimit", notation.duration)
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
    asked, row = table.distinct("tres-alloc", notation.tres, notation.Tres())
    nothing: dict[str, int] = {}
    options = {field: table.distinct(field, notation.gres, nothing) for field in _OPTIONS}
    number = {
        field: np.array([sum(found.values()) for found in distinct], dtype=np.int64)[codes]
        for field, (distinct, codes) in options.items()
    }
    tracked = np.array([-1 if found.gpus is None else found.gpus for found in asked], dtype=np.int64)[row]
    nodes = np.maximum(
        table.codes("NumNodes", notation.count), np.array([found.node for found in asked], dtype=np.int64)[row]
    )
    nodes = np.maximum(nodes, 1)
    total = np.maximum.reduce(
        [
            number["tres-per-job"],
            number["tres-per-node"] * nodes,
            number["tres-per-task"] * np.maximum(table.codes("NumTasks", notation.count), 1),
            number["tres-per-socket"] * nodes,
        ]
    )
    return _Requests(
        gpus=np.minimum(np.where(tracked >= 0, tracked, total), notation.MAX_COUNT).astype(np.int32),
        per_node=np.minimum(number["tres-per-node"], notation.MAX_COUNT).astype(np.int32),
        gpu_type=_types([",".join(sorted(dict(found.gpu_types))) for found in asked], row, options.values()),
        cpus=np.array([found.cpu for found in asked], dtype=np.int32)[row],
        mem=np.array([found.mem for found in asked], dtype=np.float64)[row],
    )


def _types(tracked: Sequence[str], row: Codes, options: Iterable[tuple[list[dict[str, int]], Codes]]) -> Category:
    """Type by job: the tracked one and those that the options name."""
    index: dict[str, int] = {"": 0}
    kinds = np.array([index.setdefault(kind, len(index)) for kind in tracked], dtype=np.int64)[row]
    for distinct, codes in options:
        named = [",".join(sorted(kind for kind in found if kind)) for found in distinct]
        if any(named):
            names = np.array([index.setdefault(kind, len(index)) for kind in named], dtype=np.int64)[codes]
            pairs, of = np.unique(kinds * len(index) + names, return_inverse=True)
            known = list(index)
            # A site may track some types only.
            both = [
                {*known[pair // len(known)].split(","), *known[pair % len(known)].split(",")} - {""}
                for pair in pairs.tolist()
            ]
            kinds = np.array([index.setdefault(",".join(sorted(kind)), len(index)) for kind in both], dtype=np.int64)[
                of
            ]
    texts = list(index)
    used, first, of = np.unique(kinds, return_index=True, return_inverse=True)
    order = np.argsort(first)  # of first appearance
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    return _category([texts[kind] for kind in used[order].tolist()], place[of])

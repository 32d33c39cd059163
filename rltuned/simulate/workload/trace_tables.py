"""Traces that are separated text: this project's CSV columns and sacct(1).

docs/evaluation.md says what each column becomes. A row's fields are split on its own line: none of these formats has
line breaks inside a field, and a quote that is not closed is then an error of one line, not of the rest of the file.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.ended import final, only_waited
from rltuned.core.errors import WorkloadError
from rltuned.core.notation import tres_name
from rltuned.core.tables import Bools, Floats
from rltuned.simulate.workload.batch import (
    MAX_CPUS,
    MAX_DURATION,
    MAX_GPUS,
    MAX_MEM,
    MAX_NODES,
    MAX_TIME,
    Batch,
    Collector,
    Rows,
    shown,
)
from rltuned.simulate.workload.lines import Block, TextFile


@dataclass(frozen=True)
class Table:
    """A format of separated text with a header line."""

    name: str
    separator: str
    aliases: Mapping[str, str]
    """Other spellings of a column, in lower case, by the name that `convert` uses."""
    required: Sequence[tuple[str, ...]]
    """Each a choice of columns of which one must be there."""
    convert: Callable[[Batch], Rows]
    steps: Sequence[str] = ()
    """Rows with a dot in one of these columns are no jobs but steps of one (sacct)."""
    no_header: Sequence[str] = ()
    """Names of the columns when the first line is no header."""


def read_table(file: TextFile, table: Table, collector: Collector) -> None:
    """Read all jobs of `file`.

    Raises:
        WorkloadError: header or (unless skipped) row wrong, with its line.
    """
    names: list[str] = []
    for block in file.blocks():
        start = 0
        if not names:
            # Blank lines may stand before the header.
            while start < len(block.lines) and not block.lines[start].strip():
                if start in block.unreadable:
                    raise WorkloadError(f"{file.name}:{block.first + start}: {block.unreadable[start]}")
                start += 1
            if start == len(block.lines):
                continue
            names, is_header = header(block.lines[start], table, f"{file.name}:{block.first + start}")
            start += is_header
        batch = _batch(block, start, names, table)
        if len(batch):
            collector.add(batch, table.convert(batch))
    if not names:
        raise WorkloadError(f"{file.name}: is empty")


def header(line: str, table: Table, where: str) -> tuple[list[str], bool]:
    """The columns' names as `table.convert` knows them ("" for one that it does not need), and whether `line` is them.

    Raises:
        WorkloadError: a column is missing or there twice.
    """
    try:
        found = [name.strip() for name in split(line, table.separator)]
    except csv.Error as error:
        raise WorkloadError(f"{where}: {error}") from error
    lower = [name.lower() for name in found]
    if table.no_header and len(found) == len(table.no_header) and not set(lower) & set(table.no_header):
        return list(table.no_header), False
    names: list[str] = []
    for name in lower:
        alias = table.aliases.get(name, name)
        # What is called by its own name is meant.
        names.append("" if alias != name and (alias in lower or alias in names) else alias)
    wanted = {name for choice in table.required for name in choice}
    for choice in table.required:
        if not set(choice) & set(names):
            listed = ", ".join(found) if len(found) > 1 else shown(line)
            raise WorkloadError(f"{where}: no column {' or '.join(choice)} ({table.name}); there is {listed[:300]}")
    for name in wanted:
        if names.count(name) > 1:
            raise WorkloadError(f"{where}: two columns are called {name}")
    return names, True


def split(line: str, separator: str) -> list[str]:
    """The fields of a line, with CSV's quotes where the separator is a comma.

    Raises:
        csv.Error: a quote that is not closed, or text after one.
    """
    if separator != "," or '"' not in line:
        return line.split(separator)
    return next(csv.reader([line], strict=True))


def _batch(block: Block, start: int, names: list[str], table: Table) -> Batch:
    width, separator = len(names), table.separator
    numbers = list(range(start, len(block.lines)))
    texts = block.lines[start:] if start else block.lines
    if "" in texts or block.unreadable:
        numbers = [index for index in numbers if block.lines[index].strip() or index in block.unreadable]
        texts = [block.lines[index] for index in numbers]
    notes: dict[int, str] = {}
    quoted = separator == "," and any('"' in text for text in texts)
    rows = [] if quoted else [text.split(separator) for text in texts]
    if quoted:
        for row, text in enumerate(texts):
            try:
                rows.append(split(text, separator))
            except csv.Error as error:
                notes[row] = f"wrong quotes: {error}"
                rows.append([])
    for key in table.steps:
        column = names.index(key) if key in names else width
        jobs = [row for row, fields in enumerate(rows) if len(fields) <= column or "." not in fields[column]]
        if len(jobs) < len(rows):
            rows, numbers = [rows[row] for row in jobs], [numbers[row] for row in jobs]
    if set(map(len, rows)) - {width} or notes or block.unreadable:
        for row, fields in enumerate(rows):
            if numbers[row] in block.unreadable:
                notes[row] = block.unreadable[numbers[row]]
            elif len(fields) != width:
                notes.setdefault(row, f"{len(fields)} fields instead of {width}")
            if row in notes:
                rows[row] = [""] * width
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    batch = Batch(np.asarray(numbers, dtype=np.int64) + block.first, {n: c for n, c in columns.items() if n})
    batch.notes.update(notes)
    return batch


def lasted(start: Floats, end: Floats, batch: Batch, what: str) -> Floats:
    """Durations; a negative one is noted."""
    with np.errstate(invalid="ignore"):
        batch.note(end < start, lambda row: f"{what}: ends {start[row] - end[row]:,.0f} s before it starts")
        batch.note(end - start > MAX_DURATION, lambda _: f"{what}: lasts more than a century")
        return np.maximum(end - start, 0.0)


def job_ids(batch: Batch, name: str) -> Floats:
    """The column as integers; NaN (then the jobs are numbered) where one is none. Never wrong: ids may be text."""
    cells = batch.columns.get(name, [""] * len(batch))
    whole = (cell.isascii() and cell.isdigit() and len(cell) <= 15 for cell in cells)
    return np.array([float(cell) if ok else np.nan for cell, ok in zip(cells, whole, strict=True)])


# --- the columns of this project ---------------------------------------------------------------------------------


def _csv(batch: Batch) -> Rows:
    submit = batch.number("submit_time", MAX_TIME, required=True)
    start, end = batch.number("start_time", MAX_TIME), batch.number("end_time", MAX_TIME)
    wait = batch.number("wait", MAX_DURATION)
    if batch.has("run_time"):
        run = batch.number("run_time", MAX_DURATION)
    else:
        run = lasted(start, end, batch, "job")
        batch.never_ran |= np.isnan(run)
    if batch.has("start_time") and not batch.has("wait"):
        with np.errstate(invalid="ignore"):
            batch.note(start < submit, lambda _: "job: starts before it is submitted")
            wait = start - submit
    return Rows(
        submit_time=submit,
        run_time=run,
        gpus=batch.count("num_gpus", MAX_GPUS, required=True),
        job_id=job_ids(batch, "job_id"),
        time_limit=batch.limit("time_limit"),
        wait_time=wait,
        nodes=batch.count("num_nodes", MAX_NODES),
        cpus=batch.count("cpu_milli", MAX_CPUS * 1000, scale=1e-3)
        if batch.has("cpu_milli")
        else batch.count("num_cpus", MAX_CPUS),
        mem=batch.number("mem_gib", MAX_MEM, scale=1024.0)
        if batch.has("mem_gib")
        else batch.number("mem_mib", MAX_MEM),
        tmp=batch.number("tmp_mib", MAX_MEM),
        user=batch.text("user"),
        account=batch.text("account"),
        partition=batch.text("partition"),
        qos=batch.text("qos"),
        gpu_type=batch.gpu_type("gpu_type"),
    )


CSV: Final = Table(
    name="csv",
    separator=",",
    aliases={
        "gpus": "num_gpus",
        "num_gpu": "num_gpus",
        "vc": "partition",
        "nodes": "num_nodes",
        "cpus": "num_cpus",
        "cpu": "num_cpus",
        "num_cpu": "num_cpus",
        "mem": "mem_mib",
        "memory_mib": "mem_mib",
        "mem_gb": "mem_gib",
        "memory_gib": "mem_gib",
        "memory_gb": "mem_gib",
        "gpu_spec": "gpu_type",
        "wait_time": "wait",
        "creation_time": "submit_time",
        "scheduled_time": "start_time",
        "deletion_time": "end_time",
    },
    required=[("submit_time",), ("num_gpus",), ("run_time", "end_time"), ("run_time", "start_time")],
    convert=_csv,
)


# --- sacct -------------------------------------------------------------------------------------------------------

_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTPE]?)[cn]?\Z", re.ASCII)
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


class _Tres(NamedTuple):
    """What a TRES list says, NaN or "" for what it does not; or columns of that."""

    gpus: Any = np.nan
    gpu_type: Any = ""
    cpus: Any = np.nan
    mem: Any = np.nan
    """MiB."""
    nodes: Any = np.nan


def _amount(text: str, unit: str) -> float:
    """A TRES amount in units of `unit`; NaN when it is none. Slurm writes memory without a letter in MiB."""
    match = _AMOUNT.match(text)
    if match is None:
        return np.nan
    letter = match.group(2) or unit
    return float(match.group(1)) * 1024.0 ** (_POWER[letter] - _POWER[unit])


def _parse_tres(text: str) -> _Tres | None:
    """``billing=4,cpu=4,gres/gpu:p100=8,gres/gpu=8,mem=4000M,node=2``, in any order; None when it is no TRES list."""
    found = {"cpu": np.nan, "mem": np.nan, "node": np.nan, "gres/gpu": np.nan}
    typed: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals or not name:
            return None
        name = tres_name(name)
        if name in found or name.startswith("gres/gpu:"):
            amount = _amount(value, "M" if name == "mem" else "")
            if np.isnan(amount):
                return None
            if name in found:
                found[name] = amount
            else:
                kind = name.removeprefix("gres/gpu:")
                typed[kind] = typed.get(kind, 0.0) + amount
    gpus = found["gres/gpu"]
    if typed:
        gpus = max(np.nan_to_num(gpus), sum(typed.values()))
    # Jobs of two types at once cannot be said in one column; they may then take any.
    only = next(iter(typed)) if len(typed) == 1 and sum(typed.values()) >= gpus else ""
    return _Tres(gpus, only, found["cpu"], found["mem"], found["node"])


def _tres_column(batch: Batch, name: str) -> _Tres:
    """The columns of a TRES list; a bad one is noted."""
    cells = batch.columns.get(name, [""] * len(batch))
    known = {cell: _parse_tres(cell) for cell in dict.fromkeys(cells)}
    if None in known.values():
        for row, cell in enumerate(cells):
            if known[cell] is None:
                batch.notes.setdefault(row, f"{name}: {shown(cell)} is no TRES list such as cpu=4,mem=4000M,gres/gpu=2")
    gpus, gpu_type, *others = zip(*(known[cell] or _Tres() for cell in cells), strict=True)
    return _Tres(np.array(gpus), gpu_type, *map(np.array, others))


def _sacct(batch: Batch) -> Rows:
    submitted, eligible = batch.stamp("submit"), batch.stamp("eligible")
    start, end = batch.stamp("start"), batch.stamp("end")
    with np.errstate(invalid="ignore"):
        # A job counts from when it could have run: dependencies and --begin are no waiting. Held ones are never
        # eligible.
        submit = np.where(np.isnan(eligible) | (eligible < submitted), submitted, eligible)
    batch.note(np.isnan(submit), lambda _: "submit: is not known")
    if batch.has("elapsedraw"):
        run = batch.number("elapsedraw", MAX_DURATION)
    elif batch.has("elapsed"):
        run = batch.elapsed("elapsed")
    else:
        run = lasted(start, end, batch, "job")
    batch.never_ran |= _not_replayable(batch, start, end, run)
    asked, got = _tres_column(batch, "reqtres"), _tres_column(batch, "alloctres")
    # TimelimitRaw, unless it is the only empty one of the two.
    numeric = batch.has("timelimitraw") and (any(batch.columns["timelimitraw"]) or not batch.has("timelimit"))
    limit = batch.limit("timelimitraw", scale=60.0) if numeric else batch.slurm_limit("timelimit")
    with np.errstate(invalid="ignore"):
        wait = np.where(start >= submit, start - submit, np.nan)
        gpus, cpus, mem = (
            np.where(want > 0, want, have)
            for want, have in ((asked.gpus, got.gpus), (asked.cpus, got.cpus), (asked.mem, got.mem))
        )
    partitions = batch.text("partition")
    rows = Rows(
        submit_time=submit,
        run_time=run,
        gpus=np.nan_to_num(gpus),
        job_id=job_ids(batch, "jobidraw" if batch.has("jobidraw") else "jobid"),
        time_limit=limit,
        wait_time=wait,
        nodes=_nodes(batch, asked, got),
        cpus=np.where(np.isnan(cpus), batch.count("ncpus", MAX_CPUS), cpus),
        mem=mem,
        user=batch.text("user"),
        account=batch.text("account"),
        partition=partitions and [name.partition(",")[0] for name in partitions],
        qos=batch.text("qos"),
        gpu_type=asked.gpu_type,
    )
    for column, most in (("gpus", MAX_GPUS), ("nodes", MAX_NODES), ("cpus", MAX_CPUS), ("mem", MAX_MEM)):
        values = rows[column]
        with np.errstate(invalid="ignore"):
            batch.note(values > most, lambda row, c=column, v=values: f"{c}: {v[row]:,.0f} is too large")  # type: ignore[misc] # the defaults bind the loop's values
    return rows


def _not_replayable(batch: Batch, start: Floats, end: Floats, run: Floats) -> Bools:
    """Jobs that never started or have not ended."""
    out = np.zeros(len(batch), dtype=np.bool_)
    if batch.has("start"):
        out |= np.isnan(start)
    if batch.has("end"):
        out |= np.isnan(end)
    if batch.has("state"):
        states = batch.columns["state"]
        if not batch.has("end"):
            out |= np.array([final(state) is None for state in states], dtype=np.bool_)
        out |= np.array(list(map(only_waited, states, run.tolist())), dtype=np.bool_)
    return out


def _nodes(batch: Batch, asked: _Tres, got: _Tres) -> Floats:
    """Nodes asked for; 0 (any number) where a job asked for one and got several: it named GPUs or tasks only."""
    want = asked.nodes
    have = np.where(np.isnan(got.nodes), batch.count("nnodes", MAX_NODES), got.nodes)
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(want), have, np.where((want <= 1) & (have > 1), 0.0, want))


SACCT: Final = Table(
    name="sacct",
    separator="|",
    aliases={"allocnodes": "nnodes", "alloccpus": "ncpus", "reqcpus": "ncpus"},
    required=[
        ("jobid", "jobidraw"),
        ("submit", "eligible"),
        ("elapsedraw", "elapsed", "end"),
        ("reqtres", "alloctres"),
    ],
    convert=_sacct,
    steps=("jobid", "jobidraw"),
)
"""``sacct -P`` with its header line, of 22.05, 24.11 and 26.05."""


def fits(line: str, table: Table) -> bool:
    """Whether a file whose first line this is can be of this format."""
    try:
        header(line, table, "")
    except WorkloadError:
        return False
    return True

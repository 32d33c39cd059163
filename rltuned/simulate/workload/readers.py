"""`read`: a trace as CSV or from ``sacct -P``, as a `Workload`. docs/evaluation.md says what each column becomes."""

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.ended import final, only_waited
from rltuned.core.errors import WorkloadError
from rltuned.core.notation import tres_name
from rltuned.core.tables import Bools, Floats
from rltuned.core.workers.progress import Progress, silent
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
    TableFormat,
    fits,
    header,
    read_table,
    shown,
)
from rltuned.simulate.workload.jobs import Source, Workload
from rltuned.simulate.workload.lines import TextFile


def read(
    path: str | Path,
    *,
    skip_bad: bool = False,
    progress: Progress = silent,
    keep_unknown: bool = False,
) -> Workload:
    """Read a trace; the jobs in order of submission.

    Reads the file once from its beginning (a pipe will do), gzip or not by its first bytes; at the peak about 250 bytes
    a job. `skip_bad`: lines that cannot be read are counted. `keep_unknown`: jobs of unknown run time (−1) are kept,
    with run time 0, to describe the file; otherwise they are left out and counted, because they cannot be replayed.

    Raises WorkloadError: "FILE:LINE: reason" for a line that cannot be read; "FILE: reason" for a file that cannot be
    opened, is empty, truncated, of no known format or has no jobs in it.
    """
    path = Path(path)
    with TextFile(path, progress) as file:
        table = sniff(file)
        collector = Collector(file.name, skip_bad=skip_bad, keep_unknown=keep_unknown)
        read_table(file, table, collector)
        return collector.finish(Source(name=path.name, sha256=file.sha256, form=table.name))


def sniff(file: TextFile) -> TableFormat:
    """Find out the format of a file, from its first line that is not blank. Raises WorkloadError: none of the known
    ones; says what was found and what there is.
    """
    number, line = file.first
    if not number:
        raise WorkloadError(f"{file.name}: is empty")
    if found := next((table for table in (SACCT, CSV) if fits(line, table)), None):
        return found
    reason = f"the format is not recognised from its first line {shown(line)}"
    if "\0" in line:
        reason = "not a text file"
    else:
        names = set(re.split(r"[,;|^\t]", line.lower()))
        for table, meant in ((SACCT, {"jobid", "jobidraw"}), (CSV, {"submit_time"})):
            if names & meant:
                header(line, table, f"{file.name}:{number}")  # says which column is missing
    raise WorkloadError(
        f"{file.name}: {reason}. Known formats:\n"
        "  csv: a header with submit_time, num_gpus, and run_time or start_time and end_time\n"
        "  sacct: sacct -P with its header line"
    )


# --- the columns of this project ---------------------------------------------------------------------------------


class _Column(NamedTuple):
    """A column of numbers."""

    of: str  # of `Workload`, or a time that gives one
    names: tuple[str, ...]  # the first one is how messages call it
    most: float  # in the unit of the file
    unit: float = 1.0  # times it
    whole: bool = False
    required: bool = False


_NUMBERS: Final = (
    _Column("submit_time", ("submit_time", "creation_time"), MAX_TIME, required=True),
    _Column("start", ("start_time", "scheduled_time"), MAX_TIME),
    _Column("end", ("end_time", "deletion_time"), MAX_TIME),
    _Column("wait_time", ("wait", "wait_time"), MAX_DURATION),
    _Column("run_time", ("run_time",), MAX_DURATION),
    _Column("gpus", ("num_gpus", "gpus", "num_gpu"), MAX_GPUS, whole=True, required=True),
    _Column("nodes", ("num_nodes", "nodes"), MAX_NODES, whole=True),
    _Column("cpus", ("num_cpus", "cpus", "cpu", "num_cpu"), MAX_CPUS, whole=True),
    _Column("cpus", ("cpu_milli",), MAX_CPUS * 1000, 1e-3, whole=True),
    _Column("mem", ("mem_mib", "mem", "memory_mib"), MAX_MEM),
    _Column("mem", ("mem_gib", "mem_gb", "memory_gib", "memory_gb"), MAX_MEM, 1024.0),
    _Column("tmp", ("tmp_mib",), MAX_MEM),
)
"""Of two for the same thing, the last one that the file has counts."""
_TEXTS: Final = ("user", "account", "partition", "qos")


def _csv(batch: Batch) -> Rows:
    rows: Rows = {name: batch.text(name) for name in _TEXTS}
    for column in {column.of: column for column in _NUMBERS if batch.has(column.names[0])}.values():
        convert = batch.count if column.whole else batch.number
        rows[column.of] = convert(column.names[0], column.most, required=column.required, scale=column.unit)
    nothing = np.full(len(batch), np.nan)
    start, end = rows.pop("start", nothing), rows.pop("end", nothing)
    if "run_time" not in rows:
        rows["run_time"] = batch.lasted(start, end, "job")
        batch.never_ran |= np.isnan(rows["run_time"])
    if batch.has("start_time") and "wait_time" not in rows:
        with np.errstate(invalid="ignore"):
            rows["wait_time"] = start - rows["submit_time"]
            batch.note(rows["wait_time"] < 0.0, lambda _: "job: starts before it is submitted")
    return rows | {
        "job_id": batch.ids("job_id"),
        "time_limit": batch.limit("time_limit"),
        "gpu_type": batch.gpu_type("gpu_type"),
    }


CSV: Final = TableFormat(
    name="csv",
    separators=",;\t|^",
    required=[("submit_time",), ("num_gpus",), ("run_time", "end_time"), ("run_time", "start_time")],
    convert=_csv,
    aliases={other: column.names[0] for column in _NUMBERS for other in column.names[1:]}
    | {"vc": "partition", "gpu_spec": "gpu_type"},
)


# --- sacct -------------------------------------------------------------------------------------------------------

_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTPE]?)[cn]?\Z", re.ASCII)
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


class _Tres(NamedTuple):
    """What a TRES list says, NaN or "" for what it does not; or columns of that."""

    gpus: Any = np.nan
    gpu_type: Any = ""
    cpus: Any = np.nan
    mem: Any = np.nan  # miB
    nodes: Any = np.nan


def _tres(text: str) -> _Tres:
    """``billing=4,cpu=4,gres/gpu:p100=8,gres/gpu=8,mem=4000M,node=2``, in any order. Memory without a letter is MiB.
    Raises ValueError: it is no TRES list.
    """
    found = {"cpu": np.nan, "mem": np.nan, "node": np.nan, "gres/gpu": np.nan}
    typed: dict[str, float] = {}
    wrong = ValueError(f"{shown(text)} is no TRES list such as cpu=4,mem=4000M,gres/gpu=2")
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise wrong
        name = tres_name(name)
        if name in found or name.startswith("gres/gpu:"):
            match = _AMOUNT.match(value)
            if match is None:
                raise wrong
            unit = "M" if name == "mem" else ""
            amount = float(match.group(1)) * 1024.0 ** (_POWER[match.group(2) or unit] - _POWER[unit])
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
        run = batch.lasted(start, end, "job")
    batch.never_ran |= _not_replayable(batch, start, end, run)
    asked, got = (
        _Tres(*(column if at == 1 else np.array(column) for at, column in enumerate(zip(*lists, strict=True))))
        for lists in (batch.cells(name, _tres, _Tres()) for name in ("reqtres", "alloctres"))
    )
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
        job_id=batch.ids("jobidraw" if batch.has("jobidraw") else "jobid"),
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


SACCT: Final = TableFormat(
    name="sacct",
    separators="|^;\t",
    required=[
        ("jobid", "jobidraw"),
        ("submit", "eligible"),
        ("elapsedraw", "elapsed", "end"),
        ("reqtres", "alloctres"),
    ],
    convert=_sacct,
    aliases={"allocnodes": "nnodes", "alloccpus": "ncpus", "reqcpus": "ncpus"},
    quotes=False,
    steps=("jobid", "jobidraw"),
)
"""``sacct -P`` with its header line, of 22.05, 24.11 and 26.05."""

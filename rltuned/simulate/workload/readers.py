"""`read`: a trace as CSV or from ``sacct -P``, as a `Workload`. docs/evaluation.md says what each column becomes."""

import math
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.ended import final, only_waited
from rltuned.core.errors import WorkloadError
from rltuned.core.name_kinds import NameKinds
from rltuned.core.notation import seconds_of, tres_name
from rltuned.core.tables import Bools, Floats
from rltuned.core.workers.progress import Progress, silent
from rltuned.simulate.workload.batch import (
    MAX_CPUS,
    MAX_DURATION,
    MAX_GPUS,
    MAX_MEM,
    MAX_NODES,
    MAX_TIME,
    NO_LIMIT,
    Batch,
    Collector,
    Rows,
    TableFormat,
    fits,
    header,
    limit,
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


def _csv(batch: Batch) -> Rows:
    submit = batch.number("submit_time", MAX_TIME, required=True)
    start, end = batch.number("start_time", MAX_TIME), batch.number("end_time", MAX_TIME)
    rows = Rows(
        submit_time=submit,
        wait_time=batch.number("wait", MAX_DURATION),
        run_time=batch.number("run_time", MAX_DURATION),
        gpus=batch.count("num_gpus", MAX_GPUS, required=True),
        nodes=batch.count("num_nodes", MAX_NODES),
        cpus=batch.count("cpu_milli", MAX_CPUS * 1000, scale=1e-3)
        if batch.has("cpu_milli")
        else batch.count("num_cpus", MAX_CPUS),
        mem=batch.number("mem_gib", MAX_MEM, scale=1024.0)
        if batch.has("mem_gib")
        else batch.number("mem_mib", MAX_MEM),
        tmp=batch.number("tmp_mib", MAX_MEM),
    )
    if not batch.has("run_time"):
        rows["run_time"] = batch.lasted(start, end, "job")
        batch.never_ran |= np.isnan(rows["run_time"])
    if batch.has("start_time") and not batch.has("wait"):
        rows["wait_time"] = start - submit
        batch.note(rows["wait_time"] < 0.0, lambda _: "job: starts before it is submitted")
    return rows | {
        "job_id": batch.ids("job_id"),
        "time_limit": batch.floats("time_limit", limit),
        **{name: batch.text(name) for name in ("user", "account", "partition", "qos", "name_kind")},
        "gpu_type": batch.gpu_type("gpu_type"),
    }


_ALSO_CALLED: Final = {
    "submit_time": ("creation_time",),
    "start_time": ("scheduled_time",),
    "end_time": ("deletion_time",),
    "wait": ("wait_time",),
    "num_gpus": ("gpus", "num_gpu"),
    "num_nodes": ("nodes",),
    "num_cpus": ("cpus", "cpu", "num_cpu"),
    "mem_mib": ("mem", "memory_mib"),
    "mem_gib": ("mem_gb", "memory_gib", "memory_gb"),
    "partition": ("vc",),
    "gpu_type": ("gpu_spec",),
}
CSV: Final = TableFormat(
    name="csv",
    separators=",;\t|^",
    required=[("submit_time",), ("num_gpus",), ("run_time", "end_time"), ("run_time", "start_time")],
    convert=_csv,
    aliases={other: name for name, others in _ALSO_CALLED.items() for other in others},
)


# --- sacct -------------------------------------------------------------------------------------------------------

_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTPE]?)[cn]?\Z", re.ASCII)
_KIND: Final = NameKinds(b"")
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


def _time_limit(text: str) -> float:
    """A time limit as Slurm writes it, ``1-00:00:00``; NaN: there is none."""
    seconds = seconds_of(text)
    if math.isnan(seconds) and text not in NO_LIMIT:
        raise ValueError(f"{shown(text)} is no time limit")
    return seconds


def _elapsed(text: str) -> float:
    seconds = seconds_of(text)
    if not math.isfinite(seconds):
        raise ValueError(f"{shown(text)} is no duration")
    return seconds


def _sacct(batch: Batch) -> Rows:
    submitted, eligible, start, end = (batch.stamp(name) for name in ("submit", "eligible", "start", "end"))
    # A job counts from when it could have run: dependencies and --begin are no waiting. Held ones are never eligible.
    submit = np.fmax(submitted, eligible)
    batch.note(np.isnan(submit), lambda _: "submit: is not known")
    if batch.has("elapsedraw"):
        run = batch.number("elapsedraw", MAX_DURATION)
    elif batch.has("elapsed"):
        run = batch.floats("elapsed", _elapsed)
    else:
        run = batch.lasted(start, end, "job")
    batch.never_ran |= _not_replayable(batch, start, end, run)
    asked, got = (
        _Tres(*(column if at == 1 else np.array(column) for at, column in enumerate(zip(*lists, strict=True))))
        for lists in (batch.cells(name, _tres, _Tres()) for name in ("reqtres", "alloctres"))
    )
    gpus, cpus, mem = (
        np.where(want > 0, want, have)
        for want, have in ((asked.gpus, got.gpus), (asked.cpus, got.cpus), (asked.mem, got.mem))
    )
    # TimelimitRaw, unless it is the only empty one of the two.
    numeric = batch.has("timelimitraw") and (any(batch.columns["timelimitraw"]) or not batch.has("timelimit"))
    rows = Rows(
        submit_time=submit,
        run_time=run,
        gpus=np.nan_to_num(gpus),
        job_id=batch.ids("jobidraw" if batch.has("jobidraw") else "jobid"),
        time_limit=batch.floats("timelimitraw", lambda text: limit(text, 60.0))
        if numeric
        else batch.floats("timelimit", _time_limit),
        wait_time=np.where(start >= submit, start - submit, np.nan),
        nodes=_nodes(batch, asked, got),
        cpus=np.where(np.isnan(cpus), batch.count("ncpus", MAX_CPUS), cpus),
        mem=mem,
        user=batch.text("user"),
        account=batch.text("account"),
        partition=[name.partition(",")[0] for name in batch.text("partition")],
        qos=batch.text("qos"),
        gpu_type=asked.gpu_type,
        name_kind=_name_kinds(batch),
    )
    for column, most in (("gpus", MAX_GPUS), ("nodes", MAX_NODES), ("cpus", MAX_CPUS), ("mem", MAX_MEM)):
        values = rows[column]
        # The defaults bind the loop's values.
        batch.note(values > most, lambda row, c=column, v=values: f"{c}: {v[row]:,.0f} is too large")  # type: ignore[misc]
    return rows


def _name_kinds(batch: Batch) -> list[str]:
    """NameKind as it is (`lab.evaluate.site.history`); else of JobName and WorkDir, where there is one of them. A name
    is not kept, and its kind needs no key: who reads this has the file.
    """
    if batch.has("namekind") or not (batch.has("jobname") or batch.has("workdir")):
        return batch.text("namekind")
    nothing = [""] * len(batch)
    columns = (batch.columns.get(name, nothing) for name in ("user", "jobname", "workdir"))
    return [f"{kind:x}" if kind else "" for kind in map(_KIND, *columns)]


def _not_replayable(batch: Batch, start: Floats, end: Floats, run: Floats) -> Bools:
    """Jobs that never started or have not ended."""
    out = np.isnan(start) & batch.has("start") | np.isnan(end) & batch.has("end")
    states = batch.columns.get("state", ())
    if states and not batch.has("end"):
        out |= np.array([final(state) is None for state in states], dtype=np.bool_)
    if states:
        out |= np.array(list(map(only_waited, states, run.tolist())), dtype=np.bool_)
    return out


def _nodes(batch: Batch, asked: _Tres, got: _Tres) -> Floats:
    """Nodes asked for; 0 (any number) where a job asked for one and got several: it named GPUs or tasks only."""
    want = asked.nodes
    have = np.where(np.isnan(got.nodes), batch.count("nnodes", MAX_NODES), got.nodes)
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

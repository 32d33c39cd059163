"""What a site itself can be asked for, instead of a trace and a description: its finished jobs, and its nodes now."""

import math
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.changes import OverSubscribe
from rltuned.core.config import SlurmSection
from rltuned.core.errors import ShapeError, SlurmError, WorkloadError
from rltuned.core.name_kinds import NameKinds
from rltuned.core.tables import Snapshot
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.window_metrics import most_in_use
from rltuned.simulate.shape import ClusterShape, read_shape
from rltuned.simulate.values import Backfill
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.simulated_estimates import EstimateKind
from rltuned.slurm import not_simulated
from rltuned.slurm.connect import open_reader, runner
from rltuned.slurm.job_names import JobNames, Kinds
from rltuned.slurm.port import ClusterFacts
from rltuned.slurm.sacct import Outage, TraceRows, read_outages, read_trace, trace_header

_DAY: Final = 86400.0
SLICE: Final = 6 * 3600.0
"""Seconds of the past that one command asks for: bounds the answer, whatever the site."""


def of_settings(
    settings: EvaluationSettings,
    slurm: SlurmSection,
    now: float,
    tell: Callable[[str], None],
    progress: Progress = silent,
    period: tuple[float, float] | None = None,
) -> tuple[EvaluationSettings, Workload, ClusterShape]:
    """The jobs and the cluster that the settings are about: of files where these name them, else of Slurm itself
    (`of_slurm`), with the nodes of the `period`, epoch seconds, or of the jobs' own. Raises WorkloadError, ShapeError,
    SlurmError: jobs or cluster cannot be read.
    """
    shape = read_shape(settings.cluster) if settings.cluster else None
    if settings.from_sacct is not None:
        # With a key of this run's, which nobody ever sees.
        names = JobNames(runner(slurm), NameKinds(secrets.token_bytes(32))) if settings.asks_names else None
        called = None if names is None else names.ended
        jobs = history(partial(read_trace, runner(slurm)), settings.from_sacct, now, tell, progress, called)
        if names is not None and (jobs.name_kind.codes < 0).all():
            tell("no job has a name that can be read: nothing goes by names")
            settings = replace(settings, estimates=str(EstimateKind.HISTORY), names=False)
    else:
        jobs = read(settings.trace, skip_bad=settings.skip_bad, progress=progress)
    if shape is not None:
        return settings, jobs, shape
    settings, shape = of_slurm(settings, slurm, now, tell)
    if jobs.source.form != "sacct":
        return settings, jobs, shape
    submitted = jobs.submit_time + jobs.source.start
    last = submitted + np.nan_to_num(jobs.wait_time) + jobs.run_time
    since, until = period or (float(submitted[0]), float(last.max()))
    try:
        outages = read_outages(runner(slurm), since)
    except SlurmError as error:
        outages = []
        tell(f"what nodes went through is not known: {error}")
    return settings, jobs, as_it_was(shape, outages, jobs, since, until, tell)


def of_slurm(
    settings: EvaluationSettings, slurm: SlurmSection, now: float, tell: Callable[[str], None]
) -> tuple[EvaluationSettings, ClusterShape]:
    """The settings with this cluster's scheduler and weights, where they name none, and its shape; as `own_cluster`."""
    shape, facts = own_cluster(slurm, now, tell)
    scheduler = facts.scheduler
    weights = ",".join(f"{name}={value:.15g}" for name, value in facts.priority_weights.items())
    return replace(
        settings,
        backfill=settings.backfill if scheduler.backfill else Backfill.NONE,
        scheduler=settings.scheduler or scheduler.text(),
        weights=settings.weights or weights,
    ), shape


def own_cluster(slurm: SlurmSection, now: float, tell: Callable[[str], None]) -> tuple[ClusterShape, ClusterFacts]:
    """`live_shape` of the configured cluster, and how that is configured. `tell` gets `not_simulated.sentence`, where
    anything is not. Raises SlurmError, ShapeError.
    """
    reader = open_reader(slurm)
    facts = reader.facts()
    shape = live_shape(replace(reader.snapshot(now), scheduler=facts.scheduler), facts.cluster_name)
    if sentence := not_simulated.sentence(facts.not_simulated, shape.partitions, shape.nodes):
        tell(sentence)
    return shape, facts


def history(
    ask: Callable[[float, float], TraceRows],
    days: float,
    now: float,
    tell: Callable[[str], None],
    progress: Progress = silent,
    called: Callable[[float, float], Kinds] | None = None,
) -> Workload:
    """The site's jobs that ended within the last days, as its accounting has them (``--from-sacct DAYS``).

    A row that cannot be understood is left out: nobody can mend what the accounting has; `tell` gets a sentence. `ask`:
    jobs that ended between two moments. `called`: the same of what they are called; None: nobody wants that. Raises
    SlurmError: the accounting does not answer, or strangely. WorkloadError: no job ended in that time, or none that can
    be understood.
    """
    start = now - days * _DAY
    pieces = math.ceil((now - start) / SLICE)
    found: list[str] = []
    strange: list[str] = []
    numbers: dict[int, int] = {}
    for piece in range(pieces):
        stretch = start + piece * SLICE, min(start + (piece + 1) * SLICE, now)
        rows = ask(*stretch)
        found += rows.lines if called is None else _with_kinds(rows.lines, called, stretch, numbers, tell)
        strange += rows.left_out
        progress("asking sacct", piece + 1, pieces)
    if not found:
        why = f", and {len(strange):,} rows cannot be understood, the first of them: {strange[0]}" if strange else ""
        raise WorkloadError(f"sacct: no job ended in the last {days:g} days{why}")
    # Through the reader of saved answers of sacct, so that both are understood alike. Nobody else may read it
    # meanwhile.
    with tempfile.TemporaryDirectory(prefix="rltuned-") as directory:
        path = Path(directory) / f"sacct-{days:g}d"
        header = trace_header() + ("" if called is None else "|NameKind")
        path.write_text("\n".join([header, *found]) + "\n", encoding="utf-8")
        jobs = read(path, skip_bad=True)
    if count := len(strange) + jobs.source.skipped:
        first = f", the first of them: {strange[0]}" if strange else ""
        tell(f"{count:,} rows of sacct cannot be understood and are left out of {len(strange) + len(found):,}{first}")
    return jobs


def _with_kinds(
    lines: list[str],
    called: Callable[[float, float], Kinds],
    stretch: tuple[float, float],
    numbers: dict[int, int],
    tell: Callable[[str], None],
) -> list[str]:
    """Lines of `read_trace` with a column more, the number of the kind of the job's name, which goes into `numbers`;
    empty where it has none.
    """
    try:
        kinds = called(*stretch)
    except SlurmError as error:
        kinds = {}
        tell(f"{len(lines):,} jobs are without names: {error}")
    job, end = (trace_header().split("|").index(column) for column in ("JobIDRaw", "End"))
    known = {(str(number), f"{time:.0f}"): kind for (number, time), kind in kinds.items() if kind}
    rows = (line.split("|") for line in lines)
    found = (known.get((row[job], row[end])) for row in rows)
    # As they come, not the hashes: a run that was interrupted goes on with another key, and with the same jobs.
    texts = ("" if kind is None else f"{numbers.setdefault(kind, len(numbers) + 1):x}" for kind in found)
    return [f"{line}|{text}" for line, text in zip(lines, texts, strict=True)]


def as_it_was(
    shape: ClusterShape,
    outages: Sequence[Outage],
    jobs: Workload,
    since: float,
    until: float,
    tell: Callable[[str], None],
) -> ClusterShape:
    """The cluster of a period, epoch seconds, whatever is out of use now: the nodes that were in use for most of it, as
    many as there were GPUs in the mean, and at least as many as `jobs` ever held at once.

    `outages`: since the period began. `tell`: called with a sentence where they do not say since when a node is out of
    use: then only what jobs held at once tells whether it was there.
    """
    nodes, span = shape.nodes, max(until - since, 1.0)
    gone = dict.fromkeys(nodes.names, 0.0)
    over = dict.fromkeys(nodes.names, since)
    for node, start, end in sorted(outages, key=lambda one: one.start):
        if node in gone:
            gone[node] += max(min(end, until) - max(start, over[node]), 0.0)
            over[node] = max(over[node], min(end, until))
    there = 1.0 - np.array([gone[name] for name in nodes.names]) / span
    still = {one.node for one in outages if math.isinf(one.end)}
    unknown = ~nodes.usable & ~np.isin(nodes.names, list(still))
    there[unknown] = 0.0
    gpus = nodes.gpus.sum(axis=1)
    began = jobs.submit_time + jobs.source.start + jobs.wait_time
    held = np.isfinite(began) & (began < until) & (began + jobs.run_time > since)
    most = most_in_use(began[held], (began + jobs.run_time)[held], jobs.gpus[held].astype(np.float64))
    usable, found, mean = np.zeros_like(nodes.usable), 0, float(there @ gpus)
    for node in np.argsort(-there, kind="stable").tolist():
        usable[node] = there[node] >= 0.5 if not gpus[node] else found < most or mean - found >= gpus[node] / 2.0
        found += int(usable[node] * gpus[node])
    if unknown.any():
        tell(
            f"since when {int(unknown.sum())} of {len(nodes.names)} nodes are out of use is not known: the simulation "
            f"has the others, and at least the most GPUs that were in use at once, {most:g}"
        )
    return replace(shape, nodes=replace(nodes, usable=usable))


def live_shape(snapshot: Snapshot, name: str) -> ClusterShape:
    """The cluster of a snapshot, with nothing running on it and no node reserved; drained nodes stay so. Raises
    ShapeError: it has no nodes.
    """
    nodes = snapshot.nodes
    if not len(nodes) or not snapshot.partitions:
        raise ShapeError(f"cluster {name}: Slurm shows no nodes, or no partitions")
    empty = replace(
        nodes,
        usable=nodes.counted,
        counts=None,
        cpus_alloc=np.zeros_like(nodes.cpus_alloc),
        mem_alloc=np.zeros_like(nodes.mem_alloc),
        gpus_alloc=np.zeros_like(nodes.gpus_alloc),
    )
    # Slurm need not have a default partition; a shape has one.
    default = next((row for row, part in enumerate(snapshot.partitions) if part.default), 0)
    parts = tuple(replace(part, default=row == default) for row, part in enumerate(snapshot.partitions))
    if snapshot.scheduler.whole_nodes:
        parts = tuple(replace(part, oversubscribe=OverSubscribe.EXCLUSIVE) for part in parts)
    return ClusterShape(empty, parts, name)

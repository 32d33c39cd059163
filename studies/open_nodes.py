"""Workloads whose users left the number of nodes open, and what is measured of them. No trace says what its users left
open: who does is drawn, and how the jobs scale is one of the measured models (`studies.scaling`).
"""

from dataclasses import replace
from typing import Final
from zlib import crc32

import numpy as np

from rltuned.core.draws import uniform
from rltuned.core.tables import Bools, Floats, Ints
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.window_metrics import Runs
from rltuned.simulate.engine import Simulation
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.simulated_estimates import estimate
from studies.scaling import MOST_NODES, scalings

WIDEST: Final = 2
"""A range goes up to so many times the GPUs of the trace, and down to a `NARROWEST`-th of them."""
NARROWEST: Final = 4


def opened(jobs: Workload, share: float, seed: int, shape: ClusterShape) -> Workload:
    """The same jobs, of which some leave their nodes open. Run times, limits and sizes are those on the fewest nodes.

    Who does is drawn by user (by job where no user is known), and so is how the user's jobs scale. A job of G GPUs
    becomes a range around G with the same GPUs on each node: from a quarter of G to twice as many, and as long as in
    the trace on G.

    Args:
        jobs: of a trace.
        share: of the users whose jobs of several GPUs have a range of nodes.
        seed: of the draws.
        shape: where they will run: a range has no more GPUs on a node than there are, nor more nodes.
    """
    names = [crc32(name.encode()) for name in jobs.user.names]
    key = np.where(jobs.user.codes >= 0, np.array([*names, 0], dtype=np.int64)[jobs.user.codes], jobs.job_id)
    models = list(scalings().values())
    drawn = 1 + (uniform(key, seed, 3) * (len(models) - 1)).astype(np.int32)
    open_ = (jobs.gpus > 1) & (uniform(key, seed, 4) < share)
    scaling = np.array([model.more_nodes(MOST_NODES) for model in models])
    return _ranges(replace(jobs, curve=drawn, scaling=scaling), open_, shape)


def _ranges(jobs: Workload, wanted: Bools, shape: ClusterShape) -> Workload:
    """Make ranges of the wanted jobs, where there are two sizes at least."""
    most_gpus, most_nodes = _room(jobs, shape)
    gpus = jobs.gpus.astype(np.int64)
    each = _largest_divisor(gpus, np.minimum(np.maximum(gpus // NARROWEST, 1), most_gpus))
    asked = gpus // each
    least = -(-gpus // (NARROWEST * each))
    most = np.minimum(WIDEST * asked, most_nodes)
    wanted = wanted & (most > least) & (most_gpus > 0)
    factors = jobs.scaling[np.maximum(jobs.curve, 0)]
    rows, last = np.arange(len(jobs)), factors.shape[1] - 1
    longer = factors[rows, np.minimum(least - 1, last)] / factors[rows, np.minimum(asked - 1, last)]
    longer, part = np.where(wanted, longer, 1.0), np.where(wanted, least / np.maximum(asked, 1), 1.0)
    return replace(
        jobs,
        run_time=jobs.run_time * longer,
        time_limit=jobs.time_limit * longer,
        gpus=np.where(wanted, each * least, gpus).astype(np.int32),
        cpus=np.ceil(jobs.cpus * part).astype(np.int32),
        mem=jobs.mem * part,
        nodes=np.where(wanted, least, jobs.nodes).astype(np.int32),
        most_nodes=np.where(wanted, most, 0).astype(np.int32),
        curve=np.where(wanted, jobs.curve, -1).astype(np.int32),
    )


def _room(jobs: Workload, shape: ClusterShape) -> tuple[Ints, Ints]:
    """(N,) most GPUs of a node, and usable nodes with GPUs, of the partition and type of each job."""
    index = {partition.name: partition for partition in shape.partitions}
    kinds = {name: column for column, name in enumerate(shape.nodes.gpu_types)}
    pairs, of = np.unique(np.stack((jobs.partition.codes, jobs.gpu_type.codes)), axis=1, return_inverse=True)
    found = np.zeros((2, pairs.shape[1]), dtype=np.int64)
    for at, (part, kind) in enumerate(pairs.T.tolist()):
        partition = index.get(jobs.partition.names[part] if part >= 0 else "", shape.default)
        nodes = partition.nodes[shape.nodes.usable[partition.nodes]]
        gpus = shape.nodes.gpus[nodes]
        if kind >= 0:
            column = kinds.get(jobs.gpu_type.names[kind], -1)
            gpus = gpus[:, [column]] if column >= 0 else gpus[:, :0]
        on = gpus.sum(axis=1)
        found[:, at] = on.max(initial=0), min(int((on > 0).sum()), partition.max_nodes)
    return found[0, of], found[1, of]


def _largest_divisor(numbers: Ints, bounds: Ints) -> Ints:
    """(N,) the largest divisor of each number that is not above its bound; 1 where there is none."""
    found = np.ones_like(numbers)
    for each in range(2, int(bounds.max(initial=1)) + 1):
        found = np.where((each <= bounds) & (numbers % each == 0), each, found)
    return found


def slowest(jobs: Workload) -> Floats:
    """(N,) the longest run time on any number of nodes that the job may get, over that on the fewest; 1 or above."""
    factor = np.ones(len(jobs))
    rows = np.flatnonzero(jobs.curve >= 0)
    curves, least = jobs.scaling[jobs.curve[rows]], np.maximum(jobs.nodes[rows], 1)
    most = np.maximum(jobs.most_nodes[rows], least)
    column = np.arange(1, curves.shape[1] + 1)
    there = (column >= least[:, None]) & (column <= most[:, None])
    first = curves[np.arange(len(rows)), np.minimum(least, curves.shape[1]) - 1]
    factor[rows] = np.maximum(np.where(there, curves, 0.0).max(axis=1, initial=0.0) / first, 1.0)
    return factor


def estimate_open(jobs: Workload, how: str, seed: int) -> Estimates:
    """As `estimate`, with limits for the slowest number of nodes: nobody is killed because of where he was put."""
    known, factor = estimate(jobs, how, seed), slowest(jobs)
    if (factor == 1.0).all():
        return known
    slow = estimate(replace(jobs, run_time=jobs.run_time * factor, time_limit=jobs.time_limit * factor), how, seed)
    return Estimates(slow.time_limit, np.minimum(known.run_time, slow.time_limit))


def runs_of(simulation: Simulation) -> tuple[Floats, Floats, Runs]:
    """(N,) first start and end of each job, NaN where it has none, and all runs: those that ended because the job
    requeued itself, then the last one of each job.
    """
    result = simulation.result()
    earlier = np.array(simulation.earlier, dtype=np.float64).reshape(len(simulation.earlier), len(Runs._fields))
    gpus = simulation.jobs.gpus * simulation.grown
    last = (np.arange(len(gpus)), simulation.submitted, result.start, result.end, gpus)
    row, *others = np.concatenate((earlier, np.stack(last, axis=1))).T
    runs = Runs(row.astype(np.int64), *others)
    first = np.full(len(gpus), np.inf)
    np.fmin.at(first, runs.row, runs.start)
    return np.where(np.isinf(first), np.nan, first), result.end, runs


def of_open(case: Case, start: Floats, end: Floats, runs: Runs) -> dict[str, float]:
    """Mean wait and JCT of the jobs of a window that leave their nodes open, and of the others, and the GPU-seconds of
    all: of one simulation, as `Case.metrics`.
    """
    submit, measured, open_ = case.jobs.submit_time, case.measured, case.jobs.most_nodes > 0
    ran, found = measured & ~np.isnan(start) & ~np.isnan(end), {}
    for name, since in (("wait", start), ("jct", end)):
        for kind, rows in (("open", ran & open_), ("rigid", ran & ~open_)):
            found[f"{name}_{kind}"] = float((since - submit)[rows].mean()) if rows.any() else float("nan")
    seconds = (runs.end - runs.start) * runs.gpus
    return {**found, "gpu_seconds": float(np.nansum(seconds[ran[runs.row]]))}

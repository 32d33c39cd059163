"""Small clusters and workloads, by hand and at random, and the two simulators that must agree on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from oracles.reference import reference

from rltuned.core.changes import OverSubscribe
from rltuned.core.plain_tables import node_table
from rltuned.core.scheduler import WHOLE_QUEUE
from rltuned.core.tables import Category, Floats, Partition
from rltuned.decide.expect.predictions import RunTimePredictions
from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.requests import Requests, requests
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Backfill, Estimates, Fit, SimulationResult, SimulationSettings
from rltuned.simulate.workload.jobs import Source, Workload, workload

Simulator = Callable[..., SimulationResult]


def compiled(
    shape: ClusterShape,
    jobs: Workload,
    estimates: Estimates,
    ranker: Any,
    settings: SimulationSettings,
    isolated: Sequence[int] = (),
    predictor: Any = None,
    asked: Requests | None = None,
) -> SimulationResult:
    simulation = Simulation(shape, jobs, estimates, settings, predictor, asked)
    for row in isolated:
        simulation.set_isolated(row, isolated=True)
    simulation.run(ranker)
    return simulation.result()


SIMULATORS: dict[str, Simulator] = {"engine": compiled, "reference": reference}


def partition(name: str, nodes: Sequence[int], **values: Any) -> Partition:
    usual: dict[str, Any] = {
        "up": True,
        "priority_tier": 1,
        "oversubscribe": OverSubscribe.NO,
        "oversubscribe_count": 1,
        "max_time": np.inf,
    }
    return Partition(name=name, nodes=np.asarray(nodes, dtype=np.int32), **{**usual, **values})


def cluster(
    gpus: Sequence[int],
    *,
    types: Sequence[str] | None = None,
    cpus: Any = 64,
    mem: Any = 256_000.0,
    tmp: Any = 0.0,
    weight: Any = 1,
    partitions: Sequence[Partition] = (),
) -> ClusterShape:
    """One node for each number of GPUs; the first partition is the default one."""
    named = list(types) if types is not None else ["gpu"] * len(gpus)
    every = tuple(dict.fromkeys(named))
    table = np.zeros((len(gpus), len(every)), dtype=np.int32)
    for node, (count, name) in enumerate(zip(gpus, named, strict=True)):
        table[node, every.index(name)] = count
    names = [f"n{node}" for node in range(len(gpus))]
    nodes = node_table(names, every, table, cpus=cpus, mem=mem, tmp=tmp, weight=weight)
    parts = tuple(partitions) or (partition("main", range(len(gpus))),)
    return ClusterShape(nodes, (replace(parts[0], default=True), *parts[1:]), "by hand")


def jobs_of(submit: Sequence[float], run: Sequence[float], gpus: Sequence[int], **columns: Any) -> Workload:
    return workload(Source("by hand"), submit, run, gpus, **columns)


def given(limits: Sequence[float], estimates: Sequence[float] | None = None) -> Estimates:
    limit = np.maximum(np.asarray(limits, dtype=np.float64), 1.0)
    return Estimates(limit, np.maximum(np.asarray(limits if estimates is None else estimates, dtype=np.float64), 1.0))


class Asked(RuleRanker):
    """A rule that is asked for keys at each refresh, whether or not they change by time, perhaps at each submission
    too."""

    def __init__(self, rule: str, *, at_once: bool) -> None:
        super().__init__(by_name(rule))
        self.at_once = at_once

    def fixed(self, simulation: Simulation) -> None:
        return None


class Average:
    """Predicts the mean of what has ended so far; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, float, float]] = []
        self.asked: list[int] = []

    def ended(self, rows: npt.NDArray[np.intp], run_times: Floats, ends: Floats) -> None:
        self.told += zip(map(int, rows), map(float, run_times), map(float, ends), strict=True)

    def predict(self, rows: npt.NDArray[np.intp]) -> RunTimePredictions:
        self.asked += map(int, rows)
        mean = sum(time for _, time, _ in self.told) / max(len(self.told), 1)
        return RunTimePredictions(*[mean + (rows % 7) * 20.0] * 4)


@dataclass
class Instance:
    """Everything that a simulation needs."""

    shape: ClusterShape
    jobs: Workload
    estimates: Estimates
    rule: str
    settings: SimulationSettings
    isolated: tuple[int, ...] = ()

    @cached_property
    def asked(self) -> Requests:
        return requests(self.shape, self.jobs, self.estimates.time_limit)

    def simulation(self) -> Simulation:
        """At its beginning, to be run by hand."""
        estimates = Estimates(self.estimates.time_limit.copy(), self.estimates.run_time.copy())
        simulation = Simulation(self.shape, self.jobs, estimates, self.settings)
        for row in self.isolated:
            simulation.set_isolated(row, isolated=True)
        return simulation

    def run(self, simulator: Simulator, ranker: Any = None, predictor: Any = None) -> SimulationResult:
        estimates = Estimates(self.estimates.time_limit.copy(), self.estimates.run_time.copy())
        ranker = ranker or RuleRanker(by_name(self.rule))
        return simulator(self.shape, self.jobs, estimates, ranker, self.settings, self.isolated, predictor, self.asked)


def random_cluster(rng: np.random.Generator, named: tuple[str, str, str] = ("p100", "v100", "p100")) -> ClusterShape:
    nodes = int(rng.integers(1, 9))
    kinds = rng.choice([0, 1, 2, 4, 4, 8, 8], 3)
    pick = rng.integers(0, 3, nodes)
    gpus = kinds[pick]
    types = np.array(named)[pick]
    every = np.arange(nodes)
    parts = [partition("main", every)]
    form = rng.integers(0, 4)
    if form == 1 and nodes > 1:  # virtual clusters with nodes of their own
        cut = int(rng.integers(1, nodes))
        parts = [partition("left", every[:cut]), partition("right", every[cut:])]
    elif form > 1:  # partitions that share nodes
        parts = []
        for name in ("main", "some", "few")[: int(rng.integers(2, 4))]:
            chosen = np.flatnonzero(rng.random(nodes) < 0.7)
            parts.append(
                partition(
                    name,
                    chosen if len(chosen) else every[:1],
                    priority_tier=int(rng.integers(1, 3)),
                    max_nodes=float(rng.choice([np.inf, np.inf, 2, 3])),
                    max_time=float(rng.choice([np.inf, 400.0])),
                    oversubscribe=OverSubscribe.EXCLUSIVE if rng.random() < 0.15 else OverSubscribe.NO,
                )
            )
    cpus, mem, tmp = rng.choice([8, 16, 64], 3)[pick], rng.choice([100.0, 400.0], 3)[pick], rng.choice([0, 50.0], nodes)
    weight = rng.spawn(1)[0].choice([1, 1, 1, 7], 3)[pick]
    return cluster(gpus, types=types, cpus=cpus, mem=mem, tmp=tmp, weight=weight, partitions=parts)


def random_jobs(rng: np.random.Generator, shape: ClusterShape) -> tuple[Workload, Estimates]:
    n = int(rng.integers(1, 45))
    whole = rng.random() < 0.7  # whole seconds: many things happen at one instant
    span = float(rng.choice([0.0, 100.0, 600.0, 3000.0]))
    submit = np.sort(rng.uniform(0.0, span, n))
    run = rng.exponential(150.0, n) * rng.choice([0.0, 1.0, 1.0, 1.0], n)
    if whole:
        submit, run = np.round(submit), np.round(run)
    if rng.random() < 0.3:
        submit, run = np.round(submit / 30) * 30, np.round(run / 30) * 30
    limit = np.maximum(run * rng.choice([0.5, 1.0, 1.0, 1.5, 3.0], n), 1.0)
    limit = np.round(limit) if whole else limit
    limit = np.where(rng.random(n) < 0.05, np.inf, np.maximum(limit, 1.0))
    some = rng.random(3) < 0.4  # which columns the trace has
    names = [part.name for part in shape.partitions]
    jobs = workload(
        Source("at random"),
        submit,
        run,
        rng.choice([0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 4, 8, 12, 16], n),
        nodes=np.where(rng.random(n) < 0.2, rng.integers(1, 4, n), 0),
        cpus=rng.choice([0, 1, 2, 4, 8, 20], n) * some[0],
        mem=rng.choice([0.0, 10.0, 20.0, 60.0, 90.0, 250.0], n) * some[1],
        tmp=rng.choice([0.0, 0.0, 0.0, 20.0, 40.0], n) * some[2],
        partition=[names[k] for k in rng.integers(0, len(names), n)],
        gpu_type=[("", "", "", "", "p100", "v100")[k] for k in rng.integers(0, 6, n)],
    )
    estimate = np.clip(np.minimum(limit, run * rng.choice([0.5, 1.0, 2.0], n)), 1.0, 1e6)
    return jobs, Estimates(limit, np.round(estimate) if whole else estimate)


def opened(rng: np.random.Generator, jobs: Workload) -> Workload:
    """The same jobs, some of which leave open on how many nodes they run."""
    n = len(jobs)
    ranged = (rng.random(n) < 0.3) & (jobs.gpus > 0)
    nodes = np.where(ranged, np.where(jobs.gpus % 2 == 0, rng.integers(1, 3, n), 1), jobs.nodes).astype(np.int32)
    return replace(
        jobs,
        nodes=nodes,
        most_nodes=np.where(ranged, nodes + rng.integers(0, 4, n), 0).astype(np.int32),
        curve=rng.integers(-1, 2, n).astype(np.int32),
        scaling=np.array([[1.0, 0.7, 0.5], [1.0, 1.25, 1.5]]),
    )


def left_open(instance: Instance, seed: int) -> Instance:
    """With such jobs."""
    return replace(instance, jobs=opened(np.random.default_rng([seed, 0x52]), instance.jobs))


def floating(instance: Instance, seed: int) -> Instance:
    """With nodes that perhaps take short jobs only."""
    rng, shape = np.random.default_rng([seed, 0x53]), instance.shape
    longest = rng.choice([np.inf, np.inf, 120.0, 400.0], len(shape.nodes))
    return replace(instance, shape=replace(shape, longest=longest)) if rng.random() < 0.3 else instance


def random_instance(seed: int, types: tuple[str, str, str] = ("p100", "v100", "p100"), **settings: Any) -> Instance:
    rng = np.random.default_rng([seed, 0x51])
    shape = random_cluster(rng, types)
    jobs, estimates = random_jobs(rng, shape)
    limits = rng.spawn(1)[0]
    users = limits.integers(0, 4, len(jobs))
    jobs = replace(jobs, user=Category.of([("", "ann", "bob", "cy")[at] for at in users]))
    drawn: dict[str, Any] = {
        "backfill": list(Backfill)[rng.choice([0, 1, 1, 2])],
        "fit": list(Fit)[rng.choice([0, 0, 1, 2])],
        "bf_interval": float(rng.choice([30.0, 30.0, 0.0, 7.0])),
        "bf_max_job_test": int(rng.choice([500, 3])),
        **{f"bf_max_job_{of}": int(limits.choice([0, 0, 1, 2, 4])) for of in ("user", "part", "start")},
        "bf_min_age_reserve": int(limits.choice([0, 0, 0, 50, 400])),
        "default_queue_depth": int(limits.choice([WHOLE_QUEUE, 0, 2, 5])),
        "bf_job_part_count_reserve": int(limits.choice([0, 0, 1, 2])),
        "bf_window": float(rng.choice([86_400.0, 120.0])),
        "bf_resolution": float(rng.choice([60.0, 1.0])),
        "refresh": float(rng.choice([60.0, 25.0])),
        "stale": float(rng.choice([600.0, 120.0, 60.0])),
        "turnover": float(rng.choice([0.0, 0.0, 4.0])),
        "sched_interval": float(rng.choice([0.0, 0.0, 1.0, 20.0])),
        "bf_offset": float(rng.choice([0.0, 0.0, 0.5])),
        "launch": float(rng.choice([0.0, 0.0, 0.25])),
        "kill_interval": float(rng.choice([0.0, 0.0, 30.0])),
    }
    isolated = tuple(int(row) for row in np.flatnonzero(rng.random(len(jobs)) < rng.choice([0.0, 0.1])))
    rule = str(rng.choice(["fifo", "sjf", "saf", "saf", "wfp3", "unicep"]))
    return Instance(shape, jobs, estimates, rule, SimulationSettings(**{**drawn, **settings}), isolated)

"""Small workloads and evaluations for these tests."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rltuned.core.workers.pool import WorkerPool
from rltuned.lab.evaluate.evaluation import Evaluation, evaluate, ready
from rltuned.lab.evaluate.evaluation_report import assemble
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Source, Workload, workload


def jobs_of(submit: Sequence[float], run: Sequence[float], gpus: Sequence[int], **columns: Any) -> Workload:
    return workload(Source("by hand", sha256="0" * 64, form="csv"), submit, run, gpus, **columns)


def busy_jobs(n: int = 80, seed: int = 3) -> Workload:
    """Jobs of five users that a cluster of 2 × 4 GPUs cannot keep up with."""
    rng = np.random.default_rng(seed)
    return jobs_of(
        np.cumsum(rng.exponential(60.0, n)).round(),
        np.maximum(rng.lognormal(6.0, 1.5, n).round(), 1.0),
        rng.choice([1, 1, 2, 4, 8], n),
        user=[f"u{k}" for k in rng.integers(5, size=n)],
    )


def bursts(count: int, each: int = 12) -> Workload:
    """Jobs of two users on one GPU, that come in bursts which it can just do: a third are long, and come first."""
    run = np.tile(np.where(np.arange(each) < each // 3, 900.0, 100.0), count)
    submit = np.repeat(np.arange(count) * 1.1 * run[:each].sum(), each) + np.tile(np.arange(each), count)
    return jobs_of(submit, run, np.ones(len(run), dtype=int), user=[f"u{k % 2}" for k in range(len(run))])


def settings(**values: Any) -> EvaluationSettings:
    usual: dict[str, Any] = {
        "trace": "t.csv",
        "cluster": "2x4",
        "window": 20,
        "windows": 4,
        "seed": 1,
        "policies": ("fifo-strict", "fifo", "saf"),
    }
    return EvaluationSettings(**{**usual, **values})


def prepared(jobs: Workload | None = None, **values: Any) -> Evaluation:
    asked = settings(**values)
    return ready(asked, jobs if jobs is not None else busy_jobs(), parse_shape(asked.cluster), "revision")


def report(jobs: Workload | None = None, **values: Any) -> dict[str, Any]:
    return reported(prepared(jobs, **values), WorkerPool(1))


def reported(evaluation: Evaluation, pool: WorkerPool, out: Path | None = None) -> dict[str, Any]:
    return assemble(evaluation, evaluate(evaluation, pool, out))


def without_timings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_timings(inner) for key, inner in value.items() if key != "seconds"}
    return [without_timings(inner) for inner in value] if isinstance(value, list) else value


class Recording(WorkerPool):
    """Does the work here, remembers it, and is interrupted after some pieces if so wanted."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__(1)
        self.done: list[tuple[int, int]] = []
        self._stop_after = stop_after

    def as_completed(self, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        for outcome in super().as_completed(function, tasks):
            if len(self.done) == self._stop_after:
                raise KeyboardInterrupt
            self.done += outcome
            yield outcome

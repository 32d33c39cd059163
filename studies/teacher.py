"""What rollouts know, as data to learn from: decision points of simulated clusters, and what each of many orders costs.

    python -m studies.teacher TRACES OUT --windows 400

A window of a trace is simulated under the shipped model without rollouts, and a few of its refreshes are kept: the
queue, what runs, what is free, and the cost of the policy's order, of those of the plain rules, of each job moved to
the front, of the first jobs moved to the end and of randomly moved ones, in the scenarios in which the daemon's search
would try them. Windows come from the training part of each trace, and each
fourth from the validation part. A file for each window; what is there is not made again, so the same command goes on.
"""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np

from rltuned.cluster.tables import Floats, Rows
from rltuned.decide.ranks import ranks_of
from rltuned.decide.rollout import RolloutRequest, rollout_request
from rltuned.evaluate.case import Case, cases
from rltuned.evaluate.measure import simulate_case
from rltuned.evaluate.settings import EvaluationSettings, Start
from rltuned.evaluate.windows import Split, draw
from rltuned.observe import observe
from rltuned.observe.supply import expected_ends
from rltuned.policy import files
from rltuned.policy.actor import Actor
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import compile_kernel, ended_jobs
from rltuned.simulate.search import OrderSearch, compile_rollouts, one_moved
from rltuned.simulate.values import SimulationSettings
from rltuned.workload.estimates import estimate
from rltuned.workload.readers import read
from rltuned.workload.shapes import read_shape

SITES: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("venus", "helios-venus.csv.gz", "16x8", "noisy:1.5"),
    ("pai", "alibaba-pai.csv.gz", "8x8", "noisy:1.5"),
    ("philly", "philly.csv.gz", "4x8", "noisy:1.5"),
    ("venus", "helios-venus.csv.gz", "16x8", "true"),
    ("pai", "alibaba-pai.csv.gz", "8x8", "true"),
    ("philly", "philly.csv.gz", "4x8", "true"),
    ("users", "helios-venus-users.csv.gz", "16x8:v100", "history"),
)
WINDOW: Final = 256
POINTS: Final = 5
"""Refreshes of a window that are kept."""
LEAST: Final = 4
"""Jobs that must wait."""
FRONT: Final = 20
"""Jobs that are tried in front of all others."""
BACK: Final = 4
"""Jobs that are tried behind all others."""
MOVED: Final = 24
"""Random moves."""
SEED: Final = 11


class LevelRanker:
    """The rule that a model corrects, without a plan at each refresh."""

    ages = False
    at_once = False

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.simulation: Simulation | None = None
        """That asked last."""

    def fixed(self, simulation: Simulation) -> Floats | None:
        """The keys of all jobs."""
        self.simulation = simulation
        return self.keys(simulation, np.arange(len(simulation.jobs)))

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """The highest level first."""
        return -self.actor.level(simulation.view(rows))


class Asked(NamedTuple):
    """What the daemon would ask its rollouts at one refresh."""

    request: RolloutRequest
    estimates: Floats
    """(N,) run times of every job of the snapshot, as the policy sees them, seconds."""


def decision_point(asked: Asked, search: OrderSearch) -> dict[str, Any] | None:
    """What is seen at one refresh, and what orders cost. None: fewer than two jobs can be ordered."""
    request, estimates = asked
    rollouts = search.rollouts(request)
    if rollouts is None:
        return None
    queue, n = rollouts.queue, len(rollouts.queue)
    rng = np.random.default_rng([SEED, n, int(request.snapshot.time) % 2**31])
    own = np.arange(n)
    orders = [own, *(np.argsort(keys, kind="stable") for keys in search.ruled(request, rollouts))]
    orders += [_moved(own, at, 0) for at in range(1, min(n, FRONT + 1))]
    orders += [_moved(own, at, n - 1) for at in range(min(n - 1, BACK))]
    orders += [rollouts.positions(one_moved(own, rng)) for _ in range(MOVED)]
    costs = [rollouts.run(ranks_of(order).astype(np.float64)) for order in orders]
    return {
        **_seen(request, estimates, queue),
        "orders": np.array(orders, dtype=np.int16),
        "costs": np.array([np.stack(cost) for cost in costs]),
    }


def _moved(order: Rows, at: int, to: int) -> Rows:
    return np.insert(np.delete(order, at), to, order[at])


def _seen(request: RolloutRequest, estimates: Floats, queue: Rows) -> dict[str, Any]:
    snapshot, jobs, nodes = request.snapshot, request.snapshot.jobs, request.snapshot.nodes
    observation = observe(snapshot, queue, estimates)  # the head of a queue: never more than the window
    score = dict(zip(request.rows.tolist(), request.scores.tolist(), strict=True))
    running = jobs.running
    counts = np.diff(jobs.node_ptr)[running]
    return {
        "state": observation.state[: len(queue)],
        "features": observation.features,
        "score": np.array([score[row] for row in queue.tolist()]),
        "run": request.run_times[queue],
        "limit": jobs.time_limit[queue],
        "gpus": jobs.gpus[queue],
        "cpus": jobs.cpus[queue],
        "nodes": jobs.nodes[queue],
        "per_node": jobs.gpus_per_node[queue],
        "wait": snapshot.time - jobs.submit_time[queue],
        "left": expected_ends(snapshot, running, request.run_times) - snapshot.time,
        "left_limit": jobs.end_time[running] - snapshot.time,
        "held_gpus": jobs.gpus[running],
        "held_on": counts,
        "free": nodes.gpus_free.sum(axis=1),
        "free_cpus": nodes.cpus_free,
        "total": nodes.gpus.sum(axis=1),
        "usable": nodes.usable,
        "spread": np.float64(request.spread),
        "waiting": np.int64(len(request.rows)),
    }


@dataclass(frozen=True)
class _Served:
    """As a `Contender` to `simulate_case`."""

    made: LevelRanker
    settings: SimulationSettings = field(default_factory=SimulationSettings)

    def ranker(self) -> LevelRanker:
        return self.made


def requests_of(case: Case, settings: EvaluationSettings, actor: Actor) -> list[Asked]:
    """What the daemon would ask its rollouts at a few moments at which `LEAST` jobs wait."""
    ranker = LevelRanker(actor)
    served: Any = _Served(ranker)
    done = simulate_case(case, served, settings)
    submitted, started = case.jobs.submit_time, np.nan_to_num(done.start, nan=np.inf)
    times = np.unique(np.concatenate((submitted, started)))
    times = times[np.isfinite(times) & (times >= 0.0)]
    # Jobs that can never run do not start, and are no queue.
    waiting = np.array([((submitted <= time) & (started > time) & np.isfinite(started)).sum() for time in times])
    busy = times[waiting >= LEAST]
    if len(busy) < POINTS:
        return []
    found: list[Asked] = []

    def ask(_: float) -> None:
        simulation = ranker.simulation
        if simulation is None:
            return
        snapshot = simulation.snapshot()
        rows = snapshot.jobs.pending
        if len(rows) >= LEAST:
            estimates = simulation.estimates.run_time[np.concatenate((simulation.running, simulation.pending))]
            scores = actor.level(simulation.view(simulation.pending))
            request = rollout_request(snapshot, actor, rows, scores, estimates, ended_jobs(simulation))
            found.append(Asked(request, estimates))

    rng = np.random.default_rng([SEED, case.window.start])
    moments = np.sort(rng.choice(busy, POINTS, replace=False))
    simulate_case(case, served, settings, moments.tolist(), ask)
    return found


def windows_of(traces: Path, site: tuple[str, str, str, str], count: int) -> Iterator[tuple[str, Case]]:
    """Names and windows: of the training part, and each fourth of the validation part."""
    name, file, cluster, how = site
    jobs, shape = read(str(traces / file)), read_shape(cluster)
    history = how == "history"
    made = estimate(jobs, how, SEED)
    for split, share in ((Split.TRAIN, 3), (Split.VALIDATION, 1)):
        windows = draw(len(jobs), WINDOW, count * share // 4, SEED, split)
        for case in cases(jobs, made, shape, windows, WINDOW if history else 0, history=history):
            yield f"{name}-{how.partition(':')[0]}-{split.value}-{case.window.index:04d}", case


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=400, help="of each site")
    parsed = parser.parse_args()
    parsed.out.mkdir(parents=True, exist_ok=True)
    compile_kernel()
    compile_rollouts()
    actor = files.load("general")
    streams = [(site, list(windows_of(parsed.traces, site, parsed.windows))) for site in SITES]
    # Interleaved, so that each moment's data is of all sites and both parts.
    for turn in range(parsed.windows):
        for site, windows in streams:
            train = [one for one in windows if "-train-" in one[0]]
            others = [one for one in windows if "-train-" not in one[0]]
            chosen = others if turn % 4 == 3 else train
            at = turn // 4 if turn % 4 == 3 else turn - turn // 4
            if at >= len(chosen):
                continue
            name, case = chosen[at]
            file = parsed.out / f"{name}.npz"
            if file.exists():
                continue
            start = Start.WARM if site[3] == "history" else Start.IDLE
            settings = EvaluationSettings(trace=site[1], cluster=site[2], window=WINDOW, estimates=site[3], start=start)
            made = [decision_point(asked, OrderSearch()) for asked in requests_of(case, settings, actor)]
            points = [one for one in made if one is not None]
            partial = file.with_suffix(".partial")
            with partial.open("wb") as stream:
                flat = {f"{number}.{key}": value for number, one in enumerate(points) for key, value in one.items()}
                np.savez_compressed(stream, **flat)
            partial.replace(file)
            click.echo(f"{file.name}: {len(points)}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

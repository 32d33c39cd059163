"""How many nodes jobs should get that leave this open: rules side by side, on the same windows.

``python -m studies.elastic TRACES`` writes studies/elastic.csv, or goes on with it (an hour). A row: a trace, the share
of the users whose jobs of several GPUs have a range of nodes, and a rule. All but Slurm alone rank by the model.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.config import Config
from rltuned.core.errors import RltunedError
from rltuned.core.tables import Floats, Rows
from rltuned.core.workers.pool import WorkerPool
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.rank.protocol import Policy
from rltuned.decide.resizing import POOLED, Registration, advice
from rltuned.job.elastic import EVERY
from rltuned.lab.evaluate.bootstrap import compare, counts
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import Contender, contender
from rltuned.lab.evaluate.windows import Split, draw
from rltuned.records import model_files as files
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.rankers import PlanRanker, compile_kernel
from rltuned.simulate.shape import read_shape
from rltuned.simulate.values import JobFate
from rltuned.simulate.workload.readers import read
from studies.kept import read_table, write_table
from studies.open_nodes import estimate_open, of_open, opened, runs_of
from studies.scaling import MOST_NODES

FILE: Final = Path(__file__).with_suffix(".csv")
TRACES: Final = (("helios-venus", "8x8"), ("alibaba-pai", "6x8"), ("philly", "6x8"))
SHARES: Final = (0.5, 1.0, 0.2)
METRICS: Final = ("jct_mean", "wait_mean", "wait_p99", "jct_open", "jct_rigid", "wait_rigid", "makespan", "gpu_seconds")
COLUMNS: Final = ("trace", "cluster", "share", "rule", "jct_mean", "lo", "hi", *METRICS[1:])
AGAINST: Final = "greedy"
"""What all rules are compared with: Slurm gives a job of a range as many nodes as are free."""

Value = Callable[[float, float], float]
"""Of a size to a job, by its run time over that on the least nodes, and its expected seconds on these."""


@dataclass(frozen=True)
class Rule:
    """Sizes of all jobs of a range, each time that the queue is ranked."""

    value: Value
    """Nodes go one by one to the job whose value grows most by it, by GPU."""
    running: bool = True
    """Whether jobs that run are resized, too."""
    profiled: bool = True
    """Whether it knows how each job scales; else all scale as the mean of the models, as rltuned takes it."""


RULES: Final[Mapping[str, Rule]] = {
    "least": Rule(lambda _shorter, _seconds: 0.0, running=False),
    "equal shares": Rule(lambda shorter, _seconds: -shorter, profiled=False),
    "least remaining time": Rule(lambda shorter, seconds: -seconds * shorter),
    "fair speedup": Rule(lambda shorter, _seconds: -shorter),
}


RESTART: Final = 60.0
"""Seconds after which a job that has changed its number of nodes goes on with its work …"""
REQUEUE: Final = 120.0
"""… and more where it requeued itself for that: so long Slurm keeps it (measured, docs/elastic.md). Here it holds its
nodes meanwhile."""


def resize(simulation: Simulation, row: int, nodes: int, restart: float = RESTART, requeue: float = REQUEUE) -> None:
    """A job of a range asks for exactly so many nodes, between two runs of the simulation or in a ranker's `keys`.

    A running job goes on with its work, `restart` seconds later. It keeps the first of its nodes where it asks for
    fewer. Where it asks for more, it requeues itself: its place is that of a job that is submitted now, its time limit
    begins anew, and it holds its new nodes for `requeue` seconds more.

    Raises:
        RltunedError: it neither waits nor runs, or its range has no such number of nodes.
    """
    job, asked = simulation.state.jobs[row], simulation.asked
    if not (simulation.ranged[row] and asked.nodes[row] <= nodes <= asked.most_nodes[row]):
        raise RltunedError(f"job {row + 1} did not ask for {nodes} nodes")
    if job["fate"] == JobFate.WAITING:
        job["least"] = job["most_nodes"] = nodes
        return simulation.something_changed()
    if job["fate"] != JobFate.RUNNING or job["end"] <= simulation.now:
        raise RltunedError(f"job {row + 1} has ended")
    if nodes == job["on"]:
        return None
    gpus = simulation.jobs.gpus[row] * simulation.grown[row]
    simulation.earlier.append((row, simulation.submitted[row], float(job["start"]), simulation.now, gpus))
    lasts = job["run"] - job["lost"]
    worked = simulation.now - job["start"] - simulation.settings.launch - job["lost"]
    job["work"] *= 1.0 - min(max(worked, 0.0) / lasts, 1.0)
    job["lost"] = restart
    simulation.submitted = simulation.submitted.copy()
    simulation.submitted[row] = simulation.now
    fewer, left = nodes < job["on"], job["ends_by"] - simulation.now
    simulation.stop(row)
    job["least"] = job["most_nodes"] = nodes
    if fewer:
        return simulation.go_on(row, nodes, float(left))
    job["lost"] += requeue
    job["fate"], job["ends_by"], job["on"] = JobFate.WAITING, np.inf, 0
    job["start"] = job["end"] = np.nan
    job["run"] = job["work"] + job["lost"]  # as long as it has no curve
    return simulation.queue_again(row)


class Advised(PlanRanker):
    """Running jobs follow the advice, as `rltuned elastic` does. Each looks at it `EVERY` seconds after a start."""

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """As the plan has them; the sizes change."""
        keys = super().keys(simulation, rows)
        asked, running = simulation.asked, simulation.running
        looks = simulation.ranged[running] & (simulation.now - simulation.start[running] >= EVERY)
        registered = {
            row + 1: Registration(1, int(asked.nodes[row]), int(asked.most_nodes[row]), RESTART + REQUEUE)
            for row in running[looks & (simulation.end[running] > simulation.now)].tolist()
        }
        for told in chain.from_iterable(advice(self.made, registered).values() if self.made else ()):
            resize(simulation, told.job_id - 1, told.advised)
        return keys


class Sizing(PlanRanker):
    """The shipped model's order, with a rule's sizes."""

    def __init__(self, policy: Policy, rule: Rule) -> None:
        super().__init__(policy, Config())
        self._rule, self._pooled = rule, POOLED.more_nodes(MOST_NODES)

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """As the model has them; the sizes change."""
        keys = super().keys(simulation, rows)
        running = simulation.running[simulation.end[simulation.running] > simulation.now]
        present = [row for row in (*running.tolist(), *rows.tolist()) if simulation.ranged[row]]
        wanted = self._sizes(simulation, present, rows)
        on, begun = simulation.state.jobs["on"], simulation.start
        for row, nodes in wanted.items():
            runs = row in running
            if not runs or (self._rule.running and nodes != on[row] and simulation.now - begun[row] >= EVERY):
                resize(simulation, row, nodes)
        return keys

    def _sizes(self, simulation: Simulation, present: Sequence[int], waiting: Rows) -> dict[int, int]:
        asked, known = simulation.asked, simulation.estimates.run_time
        least, most = asked.nodes, asked.most_nodes
        rigid = waiting[~simulation.ranged[waiting]]
        held = simulation.grown * simulation.jobs.gpus
        left = simulation.free[:, 0].sum() + sum(held[row] for row in present if row in simulation.running)
        left -= simulation.jobs.gpus[rigid].sum() + sum(asked.gpus[row] * least[row] for row in present)
        size = {row: int(least[row]) for row in present}
        jobs = simulation.jobs
        curves = {row: jobs.scaling[jobs.curve[row]] if self._rule.profiled else self._pooled for row in present}

        def value(row: int, nodes: int) -> float:
            return self._rule.value(float(curves[row][nodes - 1] / curves[row][least[row] - 1]), float(known[row]))

        def gain(row: int) -> float:
            return (value(row, size[row] + 1) - value(row, size[row])) / float(asked.gpus[row])

        able = {row for row in present if most[row] > least[row]}
        while able:
            row = max(able, key=lambda row: (gain(row), -row))
            if gain(row) <= 0.0 or left < asked.gpus[row]:
                able.discard(row)
                continue
            size[row] += 1
            left -= asked.gpus[row]
            if size[row] == most[row]:
                able.discard(row)
        return size


@dataclass(frozen=True)
class Elastic(Contender):
    """A policy whose advice jobs with a range of nodes follow, or a rule of this study."""

    rule: Rule | None = None

    def ranker(self) -> PlanRanker:
        """A new one."""
        policy = self.policy or by_name("saf")
        return Advised(policy, Config()) if self.rule is None else Sizing(policy, self.rule)

    def play(self, simulation: Simulation, ranker: Ranker) -> None:
        """A job grows where nobody waits, too. The simulation itself asks a ranker only where somebody does."""
        while (self.rule is None or self.rule.running) and not simulation.done:
            simulation.run(ranker, until=simulation.now + EVERY)
            if not len(simulation.pending):
                ranker.keys(simulation, simulation.pending)
        simulation.run(ranker)


def window(task: tuple[Case, EvaluationSettings]) -> dict[str, dict[str, float]]:
    """Each rule on one window."""
    compile_kernel()
    case, settings = task
    model = files.load(settings.model)
    contenders: dict[str, Contender] = {
        "Slurm alone": contender("multifactor", settings),
        AGAINST: contender("rl", settings),
        "rltuned elastic": Elastic("rl", settings.simulated, policy=model),
    }
    for name, rule in RULES.items():
        contenders[name] = Elastic("rl", settings.simulated, policy=model, rule=rule)
    found = {}
    for name, chosen in contenders.items():
        times = runs_of(simulate_case(case, chosen))
        found[name] = case.metrics(*times) | of_open(case, *times)
    return found


def measured(
    traces: Path, trace: str, cluster: str, share: float, windows: int, pool: WorkerPool
) -> list[dict[str, str]]:
    """The rows of a trace and a share."""
    path = str(traces / f"{trace}.csv.gz")
    settings = EvaluationSettings(
        trace=path,
        cluster=cluster,
        policies=("rl",),
        window=256,
        windows=windows,
        seed=7,
        estimates="noisy:0.8",
        split=Split.TEST,
    )
    shape = read_shape(cluster)
    jobs = opened(read(Path(path)), share, settings.seed, shape)
    chosen = draw(len(jobs), settings.window, settings.windows, settings.seed, settings.split)
    made = cases(jobs, estimate_open(jobs, settings.estimates, settings.seed), shape, chosen)
    found = list(pool.map(window, [(case, settings) for case in made]))
    drawn, rows = counts(len(found), settings.seed), []
    for rule in found[0]:
        row = {"trace": trace, "cluster": cluster, "share": str(share), "rule": rule}
        for metric in METRICS:
            values = np.array([[each[which][metric] for each in found] for which in (AGAINST, rule)])
            ratio = compare(values[1], values[0], drawn)
            row[metric] = f"{ratio.ratio:.3f}"
            if metric == "jct_mean" and ratio.lo is not None and ratio.hi is not None:
                row |= {"lo": f"{ratio.lo:.3f}", "hi": f"{ratio.hi:.3f}"}
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(prog="python -m studies.elastic", description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    chosen = parser.parse_args(arguments)
    rows = read_table(FILE)
    with WorkerPool(chosen.jobs) as pool:
        for share, (trace, cluster) in product(SHARES, TRACES):
            if any((row["trace"], row["share"]) == (trace, str(share)) for row in rows):
                continue
            rows += measured(chosen.traces, trace, cluster, share, chosen.windows, pool)
            write_table(FILE, COLUMNS, rows)
            print(f"{trace}, a share of {share}", flush=True)  # noqa: T201 - progress of a command


if __name__ == "__main__":
    main()

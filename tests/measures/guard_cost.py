"""What `decide.outside` costs: mean waits under a policy, with jobs outside of its classes, on clusters with
partitions.

    python tests/measures/guard_cost.py TRACES [--windows 8] [--jobs 512] [--policy general]

`TRACES`: the directory of the published traces (docs/evaluation.md). The base priority is Slurm's own (multifactor with
the usual weights); rltuned is `decide.plan()` every 60 s. Run it with PYTHONPATH at another commit to compare the two.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.shape import Pool, shape
from rltuned.cluster.tables import Category, Partition
from rltuned.config import Config, PlacementApply, PlacementSection, ScopeSection
from rltuned.decide import plan
from rltuned.evaluate.windows import draw
from rltuned.policy.base import Policy
from rltuned.policy.files import load
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.priorities import MultifactorPriorities
from rltuned.simulate.rankers import compile_kernel
from rltuned.workload.estimates import estimate
from rltuned.workload.readers import read

OUTSIDE = "left"
"""QOS of the jobs that rltuned leaves alone."""

VIRTUAL = {"11cb48": 2, "6214e9": 8, "b436b2": 8, "ee9e8c": 8, "7f04ca": 4, "6c71a0": 4, "0e4a51": 4, "e13805": 2}
"""Nodes of 8 GPUs of Philly's larger virtual clusters: an eighth of them."""


@dataclass
class Ranker:
    """The queue as Slurm would have it after each plan: managed jobs by their targets, the others by their
    priorities."""

    policy: Policy | None
    config: Config
    ages = True
    at_once = False
    priorities: MultifactorPriorities | None = None
    held: int = 0
    planned: int = 0

    def fixed(self, simulation):
        return None

    def keys(self, simulation, rows):
        if self.priorities is None:
            self.priorities = MultifactorPriorities(simulation)
        self.priorities.passed(simulation)
        every = np.arange(len(simulation.jobs))
        base = np.maximum(self.priorities.sums(simulation, every), 1)
        snapshot = simulation.snapshot(priority=base)
        value = base[rows].astype(np.float64)
        if self.policy is not None:
            running = len(snapshot.jobs) - len(rows)
            known = simulation.estimates.run_time
            result = plan(
                snapshot, self.policy, self.config, estimates=np.concatenate((known[simulation.running], known[rows]))
            )
            value[result.rows - running] = result.target
            self.planned += len(result.rows)
            self.held += int((result.guards & 16 > 0).sum())
        order = np.lexsort((rows, -value))
        keys = np.empty(len(rows))
        keys[order] = np.arange(len(rows))
        return keys


def apart(nodes):
    """A cluster of partitions that share no node."""
    pools = [Pool(number, 8) for number in nodes.values()]
    parts = [(partition(name), [at]) for at, name in enumerate(nodes)]
    return shape(pools, "virtual clusters", parts)


def overlapping():
    """Sixteen nodes of 8 GPUs: one partition of all, one of ten, one of the other six, one of four of each."""
    pools = [Pool(6, 8), Pool(4, 8), Pool(4, 8), Pool(2, 8)]
    parts = [
        (partition("all"), range(4)),
        (partition("left"), [0, 1]),
        (partition("right"), [2, 3]),
        (partition("both"), [1, 2]),
    ]
    return shape(pools, "overlapping partitions", parts)


def partition(name):
    return Partition(name, np.zeros(0, dtype=np.int32), True, 1, OverSubscribe.NO, 1, np.inf, default=False)


def category(values):
    return Category.of([str(value) for value in values])


def chance(jobs, salt):
    """A number in [0, 1) for each job, the same in every run."""
    return np.array([np.random.default_rng((salt, int(job))).random() for job in jobs.job_id])


def cases(folder, size, windows, seed):
    """Name, cluster, workload of each window."""
    philly = read(folder / "philly.csv.gz")
    inside = np.flatnonzero(np.isin(philly.partition.texts(), list(VIRTUAL)))
    philly = philly.take(inside)
    venus = read(folder / "helios-venus.csv.gz")
    names = np.array(["all", "left", "right", "both"])
    venus = replace(
        venus, partition=category(names[np.searchsorted([0.4, 0.65, 0.85], chance(venus, 1), side="right")])
    )
    for name, trace, parts in (
        ("Philly, 8 virtual clusters", philly, apart(VIRTUAL)),
        ("Venus, 4 overlapping partitions", venus, overlapping()),
    ):
        # Default partition: the first.
        cluster = replace(parts, partitions=(replace(parts.partitions[0], default=True), *parts.partitions[1:]))
        for window in draw(len(trace), size, windows, seed, "all"):
            jobs = trace.take(slice(window.start, window.start + size))
            yield name, cluster, replace(jobs, submit_time=jobs.submit_time - jobs.submit_time[0])


def simulate(cluster, jobs, policy, config):
    known = estimate(jobs, "noisy:0.88", 7)
    simulation = Simulation(cluster, jobs, known)
    ranker = Ranker(policy, config)
    simulation.run(ranker)
    return simulation.result().start - jobs.submit_time, ranker


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("traces", type=Path)
    arguments.add_argument("--windows", type=int, default=8)
    arguments.add_argument("--jobs", type=int, default=512)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--policy", default="general")
    given = arguments.parse_args()
    compile_kernel()
    policy = by_name(given.policy) if given.policy in {"saf", "sjf"} else load(given.policy)
    off = PlacementSection(apply=PlacementApply.OFF)
    plain = Config(placement=off)
    outside = Config(placement=off, scope=ScopeSection(exclude_qos=(OUTSIDE,)))
    waits = {}
    for name, cluster, jobs in cases(given.traces, given.jobs, given.windows, given.seed):
        draws = chance(jobs, 2)
        for title, share, config in (
            ("no job outside", 0.0, plain),
            ("10 % outside", 0.1, outside),
            ("30 % outside", 0.3, outside),
            ("two QOS, both managed", 0.5, plain),
        ):
            left = draws < share
            these = replace(jobs, qos=category(np.where(left, OUTSIDE, "normal")))
            for who in (None, policy):
                wait, ranker = simulate(cluster, these, who, config)
                ran = np.isfinite(wait)
                total = waits.setdefault((name, title, who is None), [0.0, 0, 0.0, 0, 0, 0])
                total[0] += wait[ran & ~left].sum()
                total[1] += (ran & ~left).sum()
                total[2] += wait[ran & left].sum()
                total[3] += (ran & left).sum()
                total[4] += ranker.held
                total[5] += ranker.planned
    lines = [f"{'':34}{'':24}{'Slurm alone':>24}{'rltuned':>24}{'held back':>12}"]
    for (name, title, alone), one in waits.items():
        if alone:
            other = waits[name, title, False]
            cells = [f"{x[0] / max(x[1], 1):>11,.0f} {x[2] / max(x[3], 1):>11,.0f}" for x in (one, other)]
            lines.append(f"{name:34}{title:24}{cells[0]:>24}{cells[1]:>24}{other[4] / max(other[5], 1):>12.2%}")
    lines.append("mean wait in seconds: of the managed jobs (of the first QOS), and of the others")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

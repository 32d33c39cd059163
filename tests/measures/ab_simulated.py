"""`testbed ab` by the simulator alone: what each arm would give, without a cluster; a minute for an arm and a seed.

    python tests/measures/ab_simulated.py [--seeds 1,2,3] [--arms saf,rl] [--minutes 30] [--load 1.2]
    python tests/measures/ab_simulated.py --objective "wait=1;wait=1,idle=1" --plot frontier.png

To try something out on the policy or the guards before it is tried on real clusters: docs/slurm-measured.md says how
near the two are.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docker-slurm-testbed"))

from ab_jobs import ARMS, CLUSTER, Arm, chosen, draw, synthetic
from ab_report import Run, Times, summary, table
from ab_simulated import simulate
from matplotlib import pyplot as plt

from rltuned.simulate.shape import from_json

LAUNCH = 0.15
"""Seconds that a real job takes beyond its sleep."""


def main() -> None:
    """Prints the table of `testbed ab`, of simulations."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    arguments.add_argument("--seeds", default="1,2,3")
    arguments.add_argument("--arms", default=",".join(ARMS))
    arguments.add_argument("--jobs", type=int, default=1024)
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--load", type=float, default=1.2)
    arguments.add_argument("--interval", type=float, default=5.0)
    arguments.add_argument("--objective", default="", help="rl with each of these objectives, too; ';' between them")
    arguments.add_argument("--plot", help="PNG: mean wait and makespan of each arm over those of Slurm alone")
    options = arguments.parse_args()
    arms = chosen(options.arms)
    for objective in filter(None, options.objective.split(";")):
        sections = dict(ARMS["rl"].sections or {})
        policy = {**sections["policy"], "objective": objective}
        arms.append(Arm(f"rl, {objective}", {**sections, "policy": policy}))
    shape, runs = from_json(dict(CLUSTER), "testbed"), []
    for seed in map(int, options.seeds.split(",")):
        jobs, site = draw(options.jobs, seed, options.minutes, options.load), synthetic(options.minutes)
        times = {
            arm.name: Times(
                jobs.workload.submit_time,
                *simulate(jobs, shape, arm, site, options.interval, LAUNCH, draw=0),
            )
            for arm in arms
        }
        runs.append(Run(seed, "simulated", site, options.interval, jobs, CLUSTER, times, {}))
    found = summary(runs)
    sys.stdout.write(table(found) + "\n")
    if options.plot:
        frontier(found["ratios"], Path(options.plot))


def frontier(ratios: Mapping[str, Any], path: Path) -> None:
    """A point for each arm; those with an objective of their own are joined by a line."""
    figure, (waits, slowdowns) = plt.subplots(1, 2, figsize=(9.0, 3.6), sharey=True, layout="constrained")
    for axes, metric, label in ((waits, "wait_mean", "mean wait"), (slowdowns, "bsld_mean", "mean slowdown")):
        line = []
        for name, of in {"multifactor": None, **ratios}.items():
            at = (1.0, 1.0) if of is None else (of[metric]["ratio"], of["makespan"]["ratio"])
            axes.plot(*at, "o" if name.startswith("rl") else "s", label=name)
            line += [at] if name.startswith("rl, ") else []
        axes.plot(*zip(*line, strict=True), color="grey", linewidth=0.8, zorder=0) if line else None
        axes.set_xlabel(f"{label} over that of multifactor")
        axes.grid(alpha=0.3)
    waits.set_ylabel("makespan over that of multifactor")
    slowdowns.legend(fontsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()

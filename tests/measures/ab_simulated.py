"""`testbed ab` by the simulator alone: what each arm would give, without a cluster; a minute for an arm and a seed.

    python tests/measures/ab_simulated.py [--seeds 1,2,3] [--arms saf,rl] [--minutes 30] [--load 1.2]

To try something out on the policy, the rollouts or the guards before it is tried on real clusters: docs/testbed.md says
how near the two are.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docker-slurm-testbed"))

from ab_jobs import ARMS, CLUSTER, chosen, draw
from ab_report import Run, Times, summary, table
from ab_simulated import simulate

from rltuned.cluster.shape import from_json

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
    options = arguments.parse_args()
    shape, runs = from_json(dict(CLUSTER), "testbed"), []
    for seed in map(int, options.seeds.split(",")):
        jobs = draw(options.jobs, seed, options.minutes, options.load)
        times = {
            arm.name: Times(
                jobs.workload.submit_time,
                *simulate(jobs, shape, arm, options.minutes, options.interval, LAUNCH, draw=0),
            )
            for arm in chosen(options.arms)
        }
        runs.append(Run(seed, "simulated", options.minutes, options.interval, jobs, CLUSTER, times, {}))
    sys.stdout.write(table(summary(runs)) + "\n")


if __name__ == "__main__":
    main()

"""Jobs per second of the simulator on one core, as JSON (docs/simulator.md).

    PYTHONPATH=. python tests/measures/simulator_speed.py [--windows 1000] [--seed 1]

Windows of 256 jobs of a synthetic, Philly-like trace under SAF with EASY and best fit, and as Slurm does it, on
clusters of three sizes, also with long queues. All that a window costs is counted but compiling and loading.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np

from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.requests import requests
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Backfill, Estimates, Fit, SimulationSettings
from rltuned.simulate.workload.simulated_estimates import estimate
from rltuned.simulate.workload.synthetic import generate

WINDOW = 256
BUSY = 7.3  # GPU time asked per GPU time that there is, while jobs come: Philly's own on 160 GPUs
SWAMPED = 60.0  # for a long sequence: thousands queue
SHAPES = ("20x8:p100", "128x8:p100", "1000x8:p100")
QUEUES = (2_000, 10_000)
SAF = RuleRanker(by_name("saf"))
EASY = SimulationSettings(backfill=Backfill.EASY, fit=Fit.BEST)


class Trace:
    """Jobs with everything that does not depend on the window."""

    def __init__(self, jobs, load, seed, cluster=SHAPES[0], *, at_once=False):
        self.shape = parse_shape(cluster)
        self.jobs = generate("philly", jobs, self.shape, seed, load)
        if at_once:
            self.jobs = replace(self.jobs, submit_time=np.full(jobs, self.jobs.submit_time[0]))
        self.estimates = estimate(self.jobs, "true", seed)
        self.asked = requests(self.shape, self.jobs, self.estimates.time_limit)

    def run(self, settings, first=0, length=None):
        rows = slice(first, None if length is None else first + length)
        part = Estimates(self.estimates.time_limit[rows], self.estimates.run_time[rows])
        Simulation(self.shape, self.jobs.take(rows), part, settings, asked=self.asked.take(rows)).run(SAF)


def rate(calls, jobs):
    """Jobs per second of one core, after a call that does not count."""
    calls[0]()
    start = time.process_time()
    for call in calls:
        call()
    return round(jobs * len(calls) / (time.process_time() - start))


def main(windows, seed):
    def say(what, jobs_per_s):
        sys.stdout.write(json.dumps({"what": what, "jobs_per_s": jobs_per_s}) + "\n")
        sys.stdout.flush()

    for cluster in SHAPES:
        whole = Trace(30 * WINDOW, BUSY, seed, cluster)
        starts = np.random.default_rng(seed).integers(0, len(whole.jobs) - WINDOW, windows).tolist()
        for name, settings in (("EASY", EASY), ("as Slurm", SimulationSettings())):
            calls = [partial(whole.run, settings, first, WINDOW) for first in starts]
            say(f"{cluster}, windows, {name}", rate(calls, WINDOW))
            for about in QUEUES:
                long = Trace(about + 7 * whole.shape.gpus // 10, BUSY, seed, cluster, at_once=True)
                say(f"{cluster}, {about} queued, {name}", rate([partial(long.run, settings)], len(long.jobs)))
    long = Trace(10_000, SWAMPED, seed)
    say("a sequence of 10,000 jobs, EASY", rate([partial(long.run, EASY)], len(long.jobs)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Jobs per second of the simulator.")
    parser.add_argument("--windows", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    main(**vars(parser.parse_args()))

"""Jobs per second of the simulator on one core, as JSON.

    PYTHONPATH=. python tests/measures/simulator_speed.py [--windows 1000] [--seed 1]

Windows of 256 jobs of a synthetic, Philly-like trace on 20 nodes of 8 GPUs under SAF with EASY and best fit, and as
Slurm does it on clusters of three sizes, also with long queues; under the shipped model, as training plays a window
(`Episode`) and with the daemon's whole plan; and forecasts of start times, jobs times scenarios. All that a window
costs is counted but compiling and loading.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np

from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.decide.rank.heuristics import by_name
from rltuned.lab.benchmarks import snapshot
from rltuned.records.model_files import load
from rltuned.simulate.engine import Simulation
from rltuned.simulate.episodes import Episode, compile_episodes
from rltuned.simulate.forecast.arrivals import Submissions
from rltuned.simulate.forecast.start_forecast import StartRequest, probes_of
from rltuned.simulate.forecast.start_simulation import StartSimulation
from rltuned.simulate.rankers import PlanRanker, RuleRanker
from rltuned.simulate.requests import requests
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import LITERATURE, Estimates, SimulationSettings
from rltuned.simulate.workload.simulated_estimates import estimate
from rltuned.simulate.workload.synthetic import generate

WINDOW = 256
BUSY = 7.3
"""GPU time asked per GPU time that there is, while jobs come: Philly's own on 160 GPUs."""
SWAMPED = 60.0
"""For a long sequence: thousands queue."""
SHAPES = ("20x8:p100", "128x8:p100", "1000x8:p100")
QUEUES = (2_000, 10_000)
FORECAST_JOBS = 1_000


class Trace:
    """Jobs with everything that does not depend on the window."""

    def __init__(self, jobs, load, seed, cluster=SHAPES[0], *, at_once=False):
        self.shape = parse_shape(cluster)
        self.jobs = generate("philly", jobs, self.shape, seed, load)
        if at_once:
            self.jobs = replace(self.jobs, submit_time=np.full(jobs, self.jobs.submit_time[0]))
        self.estimates = estimate(self.jobs, "true", seed)
        self.asked = requests(self.shape, self.jobs, self.estimates.time_limit)

    def parts(self, first=0, length=None):
        """What a simulation of consecutive jobs is made of."""
        rows = slice(first, None if length is None else first + length)
        part = Estimates(self.estimates.time_limit[rows], self.estimates.run_time[rows])
        return self.shape, self.jobs.take(rows), part, self.asked.take(rows)

    def run(self, ranker, settings, first=0, length=None):
        *parts, asked = self.parts(first, length)
        Simulation(*parts, settings, asked=asked).run(ranker)

    def episode(self, model, first):
        """A window ranked by a network, compiled as a whole."""
        *parts, asked = self.parts(first, WINDOW)
        episode = Episode(*parts, LITERATURE, asked=asked)
        return episode.run(model, temperature=0.0, heads=0, seed=0, record=False)


def rate(calls, jobs):
    """Jobs per second of one core, after a call that does not count."""
    calls[0]()
    start = time.process_time()
    for call in calls:
        call()
    return round(jobs * len(calls) / (time.process_time() - start))


def forecast_request(nodes, seed):
    """A queue by expected GPU time on a synthetic cluster, and five days of submissions that were like it."""
    snap, rng = snapshot(FORECAST_JOBS, nodes, seed), np.random.default_rng(seed)
    jobs = snap.jobs
    expected = 0.4 * jobs.time_limit
    rows = jobs.pending[np.argsort(expected[jobs.pending] * np.maximum(jobs.gpus[jobs.pending], 1))]
    like = rng.choice(jobs.pending, 3 * FORECAST_JOBS)
    columns = ("user", "partition", "gpu_type")
    numbers = ("nodes", "gpus", "gpus_per_node", "cpus", "mem", "time_limit")
    past = Submissions(
        job_id=np.arange(len(like)),
        submit_time=np.sort(snap.time - rng.uniform(0, 5 * 86_400.0, len(like))),
        expected=expected[like],
        run_time=expected[like] * rng.lognormal(0.0, 1.0, len(like)),
        **{name: getattr(jobs, name).take(like) for name in columns},
        **{name: getattr(jobs, name)[like] for name in numbers},
    )
    return StartRequest(snap, rows, expected, 1.0, past, probes_of(snap))


def main(windows, seed):
    saf, slurm = RuleRanker(by_name("saf")), SimulationSettings()

    def say(what, jobs_per_s):
        sys.stdout.write(json.dumps({"what": what, "jobs_per_s": jobs_per_s}) + "\n")
        sys.stdout.flush()

    for cluster in SHAPES:
        whole = Trace(30 * WINDOW, BUSY, seed, cluster)
        starts = np.random.default_rng(seed).integers(0, len(whole.jobs) - WINDOW, windows).tolist()
        for name, settings in (("EASY", LITERATURE), ("as Slurm", slurm)):
            calls = [partial(whole.run, saf, settings, first, WINDOW) for first in starts]
            say(f"{cluster}, windows, {name}", rate(calls, WINDOW))
            for about in QUEUES:
                long = Trace(about + 7 * whole.shape.gpus // 10, BUSY, seed, cluster, at_once=True)
                say(f"{cluster}, {about} queued, {name}", rate([partial(long.run, saf, settings)], len(long.jobs)))
    long = Trace(10_000, SWAMPED, seed)
    say("a sequence of 10,000 jobs, EASY", rate([partial(long.run, saf, LITERATURE)], len(long.jobs)))
    compile_episodes()
    model, whole = load(DEFAULT_MODEL), Trace(30 * WINDOW, BUSY, seed)
    ranker = PlanRanker(model, Config())
    starts = np.random.default_rng(seed).integers(0, len(whole.jobs) - WINDOW, 40).tolist()
    say("windows under the model", rate([partial(whole.episode, model, first) for first in starts], WINDOW))
    planned = [partial(whole.run, ranker, LITERATURE, first, WINDOW) for first in starts]
    say("the same by the daemon's plan", rate(planned, WINDOW))
    for nodes in (64, 500):
        asked = replace(forecast_request(nodes, seed), probes=())
        say(f"start times on {nodes} nodes", rate([partial(StartSimulation(scenarios=4), asked)], 4 * FORECAST_JOBS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Jobs per second of the simulator.")
    parser.add_argument("--windows", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    main(**vars(parser.parse_args()))

"""``rltuned bench simulate``: jobs per second of the simulator, beside the plain-Python loop that it replaces.

The workload is synthetic, Philly-like, and the same for a given seed; the cluster has 20 nodes of 8 GPUs. All that a
window costs is counted: cutting it out of the trace, the books of the simulation, the simulation, its result. What is
paid once is not, and stated apart: compiling (once for an installation, Numba keeps it), loading the compiled kernel
(once for a process).

The same is timed as Slurm does it: `Backfill.SLURM` and `Fit.SLURM`, on clusters of three sizes, with windows of 256
jobs and with long queues. The comparison of these is EASY with best fit.

A forecast of start times is timed as the worker of the daemon makes it (docs/start-times.md).

A window under the shipped model is timed in two ways: as training plays it, compiled as a whole (`Episode`), and with
the whole of the daemon's plan, guards and all, asked at each refresh, as `rltuned evaluate` does.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from rltuned.bench import snapshot
from rltuned.cluster.shape import ClusterShape, parse_shape
from rltuned.config import DEFAULT_MODEL
from rltuned.daemon.rollout import FORECAST
from rltuned.decide.start_times import StartRequest, probes_of
from rltuned.decide.submissions import Submissions
from rltuned.evaluate.policies import plan_config
from rltuned.policy.files import load
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import simulate
from rltuned.simulate.episodes import Episode, Network, Trajectory, compile_episodes
from rltuned.simulate.forecast import StartSimulation
from rltuned.simulate.rankers import PlanRanker, RuleRanker
from rltuned.simulate.reference import reference
from rltuned.simulate.requests import Requests, requests
from rltuned.simulate.values import LITERATURE, Estimates, SimulationResult, SimulationSettings
from rltuned.workload.estimates import estimate
from rltuned.workload.jobs import Workload
from rltuned.workload.synthetic import generate

CLUSTER: Final = "20x8:p100"
WINDOW: Final = 256
LONG: Final = 10_000
ROUNDS: Final = 10
_BUSY: Final = 7.3
"""GPU time asked per GPU time that there is, while jobs come: Philly's own on 160 GPUs."""
_SWAMPED: Final = 60.0
"""For the long sequence: thousands queue."""
SLURM_LIKE: Final = SimulationSettings()
"""As slurmctld with a slurm.conf that says nothing."""
_SHAPES: Final = (CLUSTER, "128x8:p100", "1000x8:p100")
_QUEUES: Final = (2_000, 10_000)
"""About how many jobs queue in a sequence. All are submitted at once; seven of ten GPUs take one."""
_SLURM_WINDOWS: Final = 100
FORECAST_JOBS: Final = 1_000
_FORECAST_NODES: Final = (64, 500)
_PLAIN_WINDOWS: Final = 4
_PLAIN_JOBS: Final = 500
_RANKED_WINDOWS: Final = 40


@dataclass(frozen=True, slots=True)
class Speed:
    """One measure."""

    key: str
    what: str
    jobs_per_s: float
    """Median of the rounds, per second of one core."""
    simpler: str
    simpler_jobs_per_s: float
    note: str = ""


@dataclass(frozen=True)
class Trace:
    """Jobs with everything that does not depend on the window."""

    shape: ClusterShape
    jobs: Workload
    estimates: Estimates
    asked: Requests

    def window(self, first: int, length: int) -> "Trace":
        """Consecutive jobs."""
        rows = slice(first, first + length)
        part = Estimates(self.estimates.time_limit[rows], self.estimates.run_time[rows])
        return Trace(self.shape, self.jobs.take(rows), part, self.asked.take(rows))

    def compiled(self, settings: SimulationSettings = LITERATURE) -> SimulationResult:
        """SAF; EASY + best fit if nothing else is said."""
        return simulate(self.shape, self.jobs, self.estimates, RuleRanker(by_name("saf")), settings, asked=self.asked)

    def episode(self, network: Network) -> Trajectory:
        """Ranked by a network, compiled as a whole."""
        episode = Episode(self.shape, self.jobs, self.estimates, LITERATURE, asked=self.asked)
        return episode.run(network, temperature=0.0, heads=0, seed=0, record=False)

    def planned(self, ranker: PlanRanker) -> SimulationResult:
        """Ranked by the daemon's plan."""
        return simulate(self.shape, self.jobs, self.estimates, ranker, LITERATURE, asked=self.asked)

    def plain(self) -> SimulationResult:
        """The same, by the plain loop."""
        return reference(self.shape, self.jobs, self.estimates, RuleRanker(by_name("saf")), LITERATURE)


def trace(jobs: int, load: float, seed: int, cluster: str = CLUSTER) -> Trace:
    """A synthetic trace; limits are exact, as in the paper's protocol."""
    shape = parse_shape(cluster)
    made = generate("philly", jobs, shape, seed, load)
    estimates = estimate(made, "true", seed)
    return Trace(shape, made, estimates, requests(shape, made, estimates.time_limit))


def at_once(several: Trace) -> Trace:
    """The same jobs, all submitted when the first one is."""
    jobs = replace(several.jobs, submit_time=np.full(len(several.jobs), several.jobs.submit_time[0]))
    return replace(several, jobs=jobs)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call: it uses one core, and other programs on the machine do not count."""
    start = time.process_time()
    call()
    return time.process_time() - start


def most_queued(jobs: Workload, result: SimulationResult) -> int:
    """The longest that the queue ever was."""
    started = ~np.isnan(result.start)
    times = np.concatenate((jobs.submit_time[started], result.start[started]))
    change = np.repeat((1, -1), int(started.sum()))
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


def in_windows(whole: Trace, starts: list[int], settings: SimulationSettings = LITERATURE) -> None:
    """All windows, one after the other."""
    for first in starts:
        whole.window(first, WINDOW).compiled(settings)


def slurm_like(seed: int, progress: Callable[[str], None]) -> list[Speed]:
    """Backfill and placement as Slurm's own, beside EASY and best fit."""
    speeds = []
    for cluster in _SHAPES:
        nodes = cluster.partition("x")[0]
        progress(f"as Slurm does it: {nodes} nodes")
        whole = trace(30 * WINDOW, _BUSY, seed, cluster)
        starts = [int(row) for row in np.random.default_rng(seed).integers(0, len(whole.jobs) - WINDOW, _SLURM_WINDOWS)]
        in_windows(whole, starts[:1], SLURM_LIKE)
        took, easy = (seconds(partial(in_windows, whole, starts, each)) for each in (SLURM_LIKE, LITERATURE))
        what = f"SAF as Slurm does it, {nodes} nodes, windows of {WINDOW} jobs, {len(starts)} of them"
        jobs, key = WINDOW * len(starts), f"slurm_jobs_per_s_{nodes}_nodes"
        speeds.append(Speed(f"{key}_{WINDOW}", what, jobs / took, "EASY, best fit", jobs / easy))
        for about in _QUEUES:
            length = about + 7 * whole.shape.gpus // 10
            long = at_once(trace(length, _BUSY, seed, cluster))
            took, easy = (seconds(partial(long.compiled, each)) for each in (SLURM_LIKE, LITERATURE))
            queued = most_queued(long.jobs, long.compiled(SLURM_LIKE))
            what = f"SAF as Slurm does it, {nodes} nodes, {length:,} jobs, up to {queued:,} queued"
            speeds.append(Speed(f"{key}_{about}_queued", what, length / took, "EASY, best fit", length / easy))
    return speeds


def forecasts(seed: int) -> tuple[list[Speed], dict[str, Any]]:
    """A forecast of start times as the worker makes it, on two clusters: how long it takes, and of how many scenarios
    it is; beside one in which nobody comes.
    """
    speeds, result = [], {}
    for nodes in _FORECAST_NODES:
        asked = forecast_request(nodes, seed)
        StartSimulation(scenarios=2)(asked)
        begun = time.process_time()
        found = StartSimulation(seconds_left=partial(_left, begun + FORECAST))(asked)
        took = time.process_time() - begun
        scenarios = 0 if found is None else found.scenarios
        few = StartSimulation(scenarios=4)
        asked = replace(asked, probes=())
        easy, hard = (seconds(partial(few, one)) / 4 for one in (replace(asked, submissions=None), asked))
        what = f"start times of {FORECAST_JOBS:,} jobs on {nodes} nodes, jobs times scenarios"
        note = f"{scenarios} scenarios in {FORECAST:g} s"
        key = f"forecast_{FORECAST_JOBS}_jobs_{nodes}_nodes"
        speeds.append(Speed(key, what, FORECAST_JOBS / hard, "nobody comes", FORECAST_JOBS / easy, note))
        result[f"{key}_s"], result[f"{key}_scenarios"] = round(took, 3), scenarios
    return speeds, result


def _left(until: float) -> float:
    return until - time.process_time()


def forecast_request(nodes: int, seed: int) -> StartRequest:
    """A queue by expected GPU time on a synthetic cluster, and five days of submissions that were like it."""
    snap = snapshot(FORECAST_JOBS, nodes, seed)
    jobs, rng = snap.jobs, np.random.default_rng(seed)
    expected = 0.4 * jobs.time_limit
    rows = jobs.pending[np.argsort(expected[jobs.pending] * np.maximum(jobs.gpus[jobs.pending], 1))]
    like = rng.choice(jobs.pending, 3 * FORECAST_JOBS)
    past = Submissions(
        job_id=np.arange(len(like)),
        submit_time=np.sort(snap.time - rng.uniform(0, 5 * 86_400.0, len(like))),
        user=jobs.user.take(like),
        partition=jobs.partition.take(like),
        gpu_type=jobs.gpu_type.take(like),
        nodes=jobs.nodes[like],
        gpus=jobs.gpus[like],
        gpus_per_node=jobs.gpus_per_node[like],
        cpus=jobs.cpus[like],
        mem=jobs.mem[like],
        time_limit=jobs.time_limit[like],
        expected=expected[like],
        run_time=expected[like] * rng.lognormal(0.0, 1.0, len(like)),
    )
    return StartRequest(snap, rows, expected, 1.0, past, probes_of(snap))


def fresh_process(cache: str) -> tuple[float, float]:
    """Seconds until a new process has simulated its first small window, and its peak resident memory after the long
    sequence, MiB. Numba keeps what it compiles in `cache`.
    """
    code = (
        "import time\n"
        "start = time.perf_counter()\n"
        "from rltuned import bench_simulate as bench\n"
        "bench.trace(10, 1.5, 1).compiled()\n"
        "print(time.perf_counter() - start)\n"
        f"bench.trace({LONG}, {_SWAMPED}, 1).compiled()\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
    )
    first, memory = done.stdout.split()
    return float(first), int(memory) / 1024


def run(windows: int, seed: int, progress: Callable[[str], None]) -> tuple[list[Speed], dict[str, Any]]:
    """All measures, and the object of ``bench simulate --json``. `windows`: in all, spread over `ROUNDS` rounds."""
    progress("compiling, in a process of its own")
    with tempfile.TemporaryDirectory() as cache:
        compile_s, _ = fresh_process(cache)
        load_s, memory = fresh_process(cache)
    speeds = []

    progress(f"{windows:,} windows of {WINDOW} jobs")
    whole = trace(30 * WINDOW, _BUSY, seed)
    starts = [int(row) for row in np.random.default_rng(seed).integers(0, len(whole.jobs) - WINDOW, windows)]
    in_windows(whole, starts[:1])
    rounds = [starts[at::ROUNDS] for at in range(min(ROUNDS, windows))]
    rate = float(np.median([WINDOW * len(some) / seconds(partial(in_windows, whole, some)) for some in rounds]))
    few = [whole.window(first, WINDOW) for first in starts[:_PLAIN_WINDOWS]]
    slow = float(np.median([WINDOW / seconds(one.plain) for one in few]))
    what = f"windows of {WINDOW} jobs, SAF + EASY, {windows:,} of them"
    note = f"the plain loop: {len(few)} windows"
    speeds.append(Speed(f"simulate_jobs_per_s_{WINDOW}", what, rate, "plain Python loop", slow, note))

    progress(f"{min(windows, _RANKED_WINDOWS)} windows under the shipped model")
    compile_episodes()
    model = load(DEFAULT_MODEL)
    network, ranker = Network.from_actor(model), PlanRanker(model, plan_config(placement=False))
    ranked = [whole.window(first, WINDOW) for first in starts[:_RANKED_WINDOWS]]
    played = [seconds(partial(one.episode, network)) for one in ranked]
    planned = [seconds(partial(one.planned, ranker)) for one in ranked]
    refreshes = float(np.mean([one.planned(ranker).refreshes for one in ranked]))
    rate, slow = (WINDOW * len(ranked) / sum(each) for each in (played, planned))
    what = f"windows of {WINDOW} jobs under the shipped model, {len(ranked)} of them"
    note = f"{refreshes:.0f} refreshes a window"
    speeds.append(Speed(f"rl_jobs_per_s_{WINDOW}", what, rate, "the daemon's plan", slow, note))

    progress(f"a sequence of {LONG:,} jobs")
    long = trace(LONG, _SWAMPED, seed)
    rate = float(np.median([LONG / seconds(long.compiled) for _ in range(3)]))
    queued = most_queued(long.jobs, long.compiled())
    progress(f"the plain loop on {_PLAIN_JOBS:,} jobs")
    short = trace(_PLAIN_JOBS, _SWAMPED, seed)
    slow = _PLAIN_JOBS / seconds(short.plain)
    what = f"a sequence of {LONG:,} jobs, up to {queued:,} queued, SAF + EASY"
    note = f"the plain loop: {_PLAIN_JOBS:,} jobs, up to {most_queued(short.jobs, short.plain()):,} queued"
    speeds.append(Speed(f"simulate_jobs_per_s_{LONG}", what, rate, "plain Python loop", slow, note))

    speeds += slurm_like(seed, progress)
    progress(f"start times of {FORECAST_JOBS:,} jobs")
    forecast, of_forecast = forecasts(seed)
    speeds += forecast
    result: dict[str, Any] = {speed.key: round(speed.jobs_per_s) for speed in speeds} | of_forecast
    for key, each in ((f"rl_window_{WINDOW}_ms", played), (f"rl_window_{WINDOW}_plan_ms", planned)):
        result[key] = {f"p{p}": round(float(np.percentile(each, p)) * 1e3, 3) for p in (50, 99)}
        result[key]["mean"] = round(float(np.mean(each)) * 1e3, 3)
    result[f"rl_window_{WINDOW}_refreshes"] = round(refreshes, 1)
    result["simulate_queued_10000"] = queued
    result["simulate_compile_s"] = round(compile_s, 2)
    result["simulate_load_s"] = round(load_s, 2)
    result["simulate_rss_mb_10000"] = round(memory, 1)
    result["simpler"] = {
        speed.key: {"way": speed.simpler, "jobs_per_s": round(speed.simpler_jobs_per_s)} for speed in speeds
    }
    return speeds, result

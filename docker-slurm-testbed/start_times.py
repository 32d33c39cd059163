"""Forecasts of start times beside `squeue --start`, on a real cluster: the same jobs, at the same moments.

    docker-slurm-testbed/testbed build forecast
    PYTHONPATH=docker-slurm-testbed .venv/bin/python docker-slurm-testbed/start_times.py --json OUT.json

One cluster of the testbed; jobs of the A/B (README.md), but with limits that fit their run times: minutes for
minutes. A daemon in stage `shadow` forecasts in each cycle, and Slurm is asked what it expects. When all jobs have
started, both are held against what came.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ab import LOOK
from ab_jobs import LIMIT_MINUTES, draw, slurm_conf
from replay import MINUTE, RLTUNED, played, prepared, read_cluster, sbatch, steered
from testbed import DEFAULT_RELEASE, SUITES, Project, TestbedError, build, ensure_engine, say

from rltuned.core.errors import RltunedError
from rltuned.simulate.shape import from_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay import Jobs

LOAD_KERNEL: Final = (
    f"{RLTUNED.rpartition('/')[0]}/python -c 'from pathlib import Path;"
    " from rltuned.controller.learnt.forecast_worker import load_kernel;"
    ' load_kernel(Path("/var/lib/rltuned/numba"))\''
)
"""Compiles what forecasts need, as the daemon's user: on a real host once for an installation."""
EVERY: Final = 20.0
"""Seconds from one look to the next."""
AS_OF: Final = 3
"""Cycles that a forecast may be old."""
FIRST: Final = 0.2
"""Share of the run before the first forecast that counts: until then the daemon has seen next to nothing."""
THEN: Final = "---\n"
ASK: Final = (
    f"cat /var/lib/rltuned/decision.json; printf -- '{THEN}'; date +%s.%N;"
    " SLURM_TIME_FORMAT=%s squeue --start -h -o '%A|%S'"
)
"""`%S` is N/A where Slurm expects nothing."""


@dataclass(frozen=True)
class Said:
    """About one job at one moment; epoch seconds, NaN: nothing was said."""

    moment: int
    job: int
    at: float
    low: float
    middle: float
    high: float
    slurm: float


def looked(project: Project, moment: int, interval: float) -> list[Said]:
    """What is said now, of each job that has a forecast; nothing while there is none."""
    record, _, rest = project.execute(ASK, check=False).stdout.partition(THEN)
    now, *lines = rest.split("\n")
    try:
        decision, at = json.loads(record), float(now)
    except ValueError:
        return []
    starts = decision["starts"]
    if starts is None or at - decision["time"] > AS_OF * interval:
        return []
    expected = {int(job): float(start) for job, start in (line.split("|") for line in lines if line) if start != "N/A"}
    columns = zip(starts["id"], starts["low"], starts["middle"], starts["high"], strict=True)
    far = float("inf")
    return [
        Said(moment, job, at, *(far if value is None else value for value in ends), expected.get(job, float("nan")))
        for job, *ends in columns
    ]


def run(jobs: Jobs, options: argparse.Namespace, image: str) -> tuple[list[Said], dict[int, float]]:
    """All that was said, and when each job started, epoch seconds; the cluster is removed."""
    project = Project(options.project, options.slurm, image)
    sections = {
        "cycle": {"interval": options.interval, "stage": "shadow"},
        "policy": {"name": "saf"},
        "estimates": {"source": "history", "refresh": 10.0},
    }
    said: list[Said] = []
    over = threading.Event()

    def watch() -> None:
        moment = 0
        while not over.wait(EVERY):
            moment += 1
            said.extend(looked(project, moment, options.interval))

    try:
        project.down()  # what a run left that was killed
        project.up()
        shape = from_json(read_cluster(project), project.name)
        commands = sbatch(jobs, shape, np.zeros(len(jobs.workload), np.int64))
        with prepared(project, slurm_conf(options.minutes)), steered(project, sections, LOAD_KERNEL):
            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                _, zero, ids, ran = played(project, jobs, commands, lambda what, n: said_of(what, n, len(said)), LOOK)
            finally:
                over.set()
                watcher.join()
    finally:
        project.down()
    return said, {job: zero + one["start"] for job, one in zip(ids, ran, strict=True)}


def said_of(what: str, number: int, forecasts: int) -> None:
    """Progress, now and then."""
    if number % 10 == 0:
        say(f"{number} jobs {what}; {forecasts} forecasts")


def summary(said: Sequence[Said], start: dict[int, float], seed: int) -> dict[str, Any]:
    """Coverage and errors; intervals by a bootstrap over the moments. A job that has started meanwhile is left out."""
    kept = [one for one in said if one.job in start and start[one.job] > one.at]
    if not kept:
        message = "no forecast was made before a job started"
        raise TestbedError(message)
    first = min(one.at for one in said) + FIRST * (max(one.at for one in said) - min(one.at for one in said))
    kept = [one for one in kept if one.at >= first]
    came = np.array([start[one.job] for one in kept])
    low, middle, high, slurm, at = (
        np.array([getattr(one, of) for one in kept]) for of in ("low", "middle", "high", "slurm", "at")
    )
    moment = np.array([one.moment for one in kept])
    both = np.isfinite(slurm)
    ours, theirs = np.abs(middle - came), np.abs(slurm - came)
    rng, moments, ratios = np.random.default_rng(seed), np.unique(moment), []
    rows = {of: np.flatnonzero(both & (moment == of)) for of in moments}
    for _ in range(2000):
        drawn = np.concatenate([rows[of] for of in rng.choice(moments, len(moments))])
        if len(drawn):
            ratios.append(np.median(ours[drawn]) / np.median(theirs[drawn]))
    return {
        "forecasts": len(kept),
        "moments": len(moments),
        "wait_median_s": float(np.median(came - at)),
        "coverage": float(np.mean((low <= came) & (came <= high))),
        "squeue_says": float(both.mean()),
        "error_median_s": float(np.median(ours[both])),
        "squeue_error_median_s": float(np.median(theirs[both])),
        "ratio": float(np.median(ours[both]) / np.median(theirs[both])),
        "ratio_95": np.quantile(ratios, [0.025, 0.975]).tolist(),
        "error_median_of_all_s": float(np.median(ours)),
    }


def with_short_limits(jobs: Jobs) -> Jobs:
    """The limits of the A/B are of runs whose seconds stand for minutes. Here they fit; no job is killed."""
    small = jobs.workload
    as_long = small.time_limit / (LIMIT_MINUTES * MINUTE)
    minutes = np.maximum(np.ceil(as_long / MINUTE), np.ceil(small.run_time / MINUTE) + 1.0)
    return replace(jobs, workload=replace(small, time_limit=minutes * MINUTE), shown_to_policy=minutes * MINUTE)


def main(argv: Sequence[str]) -> int:
    """0, or 1 with the reason on stderr."""
    top = argparse.ArgumentParser(description="Forecasts of start times beside `squeue --start`, on a real cluster.")
    top.add_argument("--slurm", choices=SUITES, default=DEFAULT_RELEASE, help="release (default: %(default)s)")
    top.add_argument("--jobs", type=int, default=200, help="default: %(default)s")
    top.add_argument("--minutes", type=float, default=40.0, help="planned; jobs arrive in three quarters of it")
    top.add_argument("--load", type=float, default=1.5, help="as of `testbed ab` (default: %(default)s)")
    top.add_argument("--interval", type=float, default=10.0, help="the daemon's cycle, seconds (default: %(default)s)")
    top.add_argument("--seed", type=int, default=1)
    top.add_argument("--project", default="rltuned-starts", help="name of the cluster (default: %(default)s)")
    top.add_argument("--json", type=Path, metavar="OUT", help="where everything goes, for machines")
    options = top.parse_args(argv)
    try:
        jobs = with_short_limits(draw(options.jobs, options.seed, options.minutes, options.load))
        ensure_engine()
        said, start = run(jobs, options, build(options.slurm, "forecast"))
        found = summary(said, start, options.seed)
        if options.json:
            rows = [vars(one) for one in said]
            options.json.write_text(json.dumps({"summary": found, "said": rows, "start": start}, indent=1) + "\n")
    except (TestbedError, RltunedError, OSError) as error:
        say(str(error))
        return 1
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

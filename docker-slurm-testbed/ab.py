"""`testbed ab`: the same jobs on real clusters side by side, with Slurm alone and with rltuned.

    docker-slurm-testbed/testbed ab [--slurm 24.11] [--seeds 1,2,3] --json AB.json --plot DIR
    docker-slurm-testbed/testbed ab --arms multifactor,rl --jobs 200 --minutes 5
    docker-slurm-testbed/testbed ab --trace ../shared/traces/helios-venus-users.csv.gz,philly --nodes 8
    docker-slurm-testbed/testbed ab --pool AB1.json AB2.json --json BOTH.json

A cluster of its own for each arm, new for each seed, all at the same time. README.md says what the jobs are and
what is measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ab_jobs import ARMS, ON_TUNED, TRACE_ARMS, TUNED, Arm, Site, as_rows, chosen, draw, from_rows, synthetic, tuned
from ab_report import Run, Times, summary, table
from ab_report import draw as draw_plots
from ab_simulated import simulate
from ab_trace import enrol, tuned_lines, window
from replay import (
    described,
    grid,
    played,
    prepared,
    read_cluster,
    sbatch,
    steered,
)
from testbed import DEFAULT_RELEASE, SUITES, Project, TestbedError, build, ensure_engine, nodes_and_gpus, say

from rltuned.core.ended import EndedJob
from rltuned.core.errors import RltunedError
from rltuned.lab.evaluate.evaluation_settings import AGAIN
from rltuned.simulate.shape import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay import Jobs

FORM: Final = 1
"""Version of the JSON."""
PROGRESS: Final = 60.0
"""Seconds from one line about progress to the next."""
LOOK: Final = 5.0
"""Seconds from one look at the queues to the next: each costs the machine a process in a container."""
PATIENCE: Final = 6.0
"""Planned run times after which an arm that has not ended is given up."""
COMPLETED: Final = "COMPLETED"
"""The state of a job in sacct(1)."""


class Cluster:
    """One arm on its own cluster."""

    def __init__(self, arm: Arm, project: Project) -> None:
        self.arm, self.project = arm, project
        self.said = "starting"
        self.cluster: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}

    def run(self, jobs: Jobs, site: Site, settings: Settings, together: threading.Barrier) -> list[dict[str, Any]]:
        """All of it; when and where each job ran."""
        try:
            self.project.down()  # what a run left that was killed
            self.project.up()
            if site.scale:
                enrol(self.project, jobs, site)
            with prepared(self.project, {**site.conf, **self.arm.conf}), ExitStack() as stack:
                self.cluster = read_cluster(self.project)
                shape = from_json(self.cluster, self.project.name)
                commands = sbatch(jobs, shape, np.zeros(len(jobs.workload), np.int64))
                daemon: dict[str, Any] = {}
                if self.arm.sections is not None:
                    configuration = self.arm.configuration(settings.interval)
                    daemon = stack.enter_context(steered(self.project, configuration))
                self.said = "ready"
                together.wait()
                ran = self._played(jobs, commands, settings)
            self.facts |= {"daemon": daemon, "conf": dict(self.arm.conf)}
            self.said = f"over after {max(job['end'] for job in ran):.0f} s"
        except BaseException:
            together.abort()  # nobody waits for this one
            raise
        return ran

    def _played(self, jobs: Jobs, commands: Sequence[Sequence[str]], settings: Settings) -> list[dict[str, Any]]:
        """The jobs are submitted, and all have ended."""
        deadline = time.monotonic() + PATIENCE * 60.0 * settings.minutes

        def progress(what: str, number: int) -> None:
            self.said = f"{number} {what}"
            if time.monotonic() > deadline:
                message = f"{self.arm.name}: after {PATIENCE:g} times the planned minutes there are still jobs"
                raise TestbedError(message)

        logged, zero, ids, ran = played(self.project, jobs, commands, progress, LOOK)
        # One that failed would count as a short run.
        others = [
            f"{job} ({one['state']})" for job, one in zip(ids, ran, strict=True) if one["state"] not in {COMPLETED, ""}
        ]
        if others:
            message = f"{self.arm.name}: {len(others)} jobs did not complete: {', '.join(others[:5])}"
            raise TestbedError(message)
        self.facts |= {
            "slurm": self.project.execute("scontrol -V").stdout.split()[-1],
            "main_pass": grid(logged.main_passes, zero),
            "backfill_pass": grid(logged.backfill_passes, zero),
            "backfilled": len(logged.backfilled),
        }
        return ran


@dataclass(frozen=True)
class Settings:
    """Of an A/B."""

    release: str
    minutes: float
    interval: float
    project: str
    """What the names of its clusters begin with."""


def run_seed(settings: Settings, arms: Sequence[Arm], jobs: Jobs, site: Site, seed: int, image: str) -> Run:
    """One seed, each arm on a new cluster; whatever happens, the clusters are removed."""
    nodes, gpus = nodes_and_gpus(site.scale or "0")
    clusters = [
        Cluster(arm, Project(f"{settings.project}-{arm.name}", settings.release, image, nodes, gpus=gpus))
        for arm in arms
    ]
    together = threading.Barrier(len(clusters))
    began = time.monotonic()
    try:
        with ThreadPoolExecutor(len(clusters)) as pool:
            try:
                running = [pool.submit(each.run, jobs, site, settings, together) for each in clusters]
                while wait(running, PROGRESS, FIRST_EXCEPTION).not_done and not any(map(_failed, running)):
                    shown = "; ".join(f"{each.arm.name} {each.said}" for each in clusters)
                    say(f"seed {seed}, {(time.monotonic() - began) / 60.0:.0f} min: {shown}")
                _raise_from(running)
            except BaseException:
                # The threads wait for commands in the containers; without containers these end.
                together.abort()
                remove(clusters)
                raise
    finally:
        remove(clusters)
    ran = {each.arm.name: future.result() for each, future in zip(clusters, running, strict=True)}
    places = {name: {of: [job[of] for job in jobs_ran] for of in ("nodes", "state")} for name, jobs_ran in ran.items()}
    return Run(
        seed,
        clusters[0].facts["slurm"],
        site,
        settings.interval,
        jobs,
        clusters[0].cluster,
        {
            name: Times(*(np.array([job[of] for job in jobs_ran]) for of in ("submit", "start", "end")))
            for name, jobs_ran in ran.items()
        },
        {each.arm.name: {**each.facts, **places[each.arm.name]} for each in clusters},
    )


def _failed(future: Future[Any]) -> BaseException | None:
    return future.exception() if future.done() else None


def _raise_from(running: Sequence[Future[Any]]) -> None:
    """Raise what made an arm fail; the others then only say that the barrier is broken."""
    failed = [each for each in running if _failed(each) is not None]
    for each in sorted(failed, key=lambda each: isinstance(_failed(each), threading.BrokenBarrierError)):
        each.result()


def remove(clusters: Sequence[Cluster]) -> None:
    """All of them; one that is not there is no error."""
    with ThreadPoolExecutor(len(clusters)) as pool:
        list(pool.map(lambda each: each.project.down(), clusters))


# --- the prediction ----------------------------------------------------------------------------


def predict(run: Run, draws: int) -> None:
    """Fills in what the simulator says of a run's jobs. Where it cannot, it says why: the real numbers stand alone."""
    arms = dict(TRACE_ARMS if run.site.scale else ARMS)
    for name in arms.keys() & {TUNED, ON_TUNED} & run.facts.keys():
        arms[name] = replace(arms[name], conf=run.facts[name].get("conf", {}))
    unknown = sorted(run.real.keys() - arms)
    if unknown:
        say(f"seed {run.seed}: no prediction: there is no arm {', '.join(unknown)} any more")
        return
    try:
        run.simulated.update(_simulated(run, arms, draws))
    except TestbedError as error:
        say(f"seed {run.seed}: no prediction: {error}")


def _simulated(run: Run, arms: Mapping[str, Arm], draws: int) -> dict[str, list[Times]]:
    # As they were submitted: a machine that is busy is late.
    submitted = np.maximum.accumulate(np.mean([times.submit for times in run.real.values()], axis=0))
    jobs = replace(run.jobs, workload=replace(run.jobs.workload, submit_time=submitted))
    shape = from_json(dict(run.cluster), "testbed")
    beyond = [times.end - times.start - jobs.workload.run_time for times in run.real.values()]
    launch = float(np.median(np.concatenate(beyond)))
    found = {}
    for name in run.real:
        say(f"seed {run.seed}: simulating {name}")
        found[name] = [
            Times(
                jobs.workload.submit_time,
                *simulate(jobs, shape, arms[name], run.site, run.interval, launch, number),
            )
            # Two equal arms differ by chance.
            for number in range(draws * (name == AGAIN), draws * (1 + (name == AGAIN)))
        ]
    return found


# --- files and the command line ----------------------------------------------------------------


def to_json(runs: Sequence[Run], argv: Sequence[str]) -> dict[str, Any]:
    """Everything, as `--json` writes it."""

    def lists(times: Times) -> dict[str, list[float]]:
        return {of: np.round(getattr(times, of), 3).tolist() for of in ("submit", "start", "end")}

    return {
        "meta": {"form": FORM, "command_line": ["testbed", "ab", *argv]},
        "summary": summary(runs),
        "runs": [
            {
                "seed": run.seed,
                "slurm": run.slurm,
                "minutes": run.site.minutes,
                "site": {**asdict(run.site), "past": [list(job) for job in run.site.past]},
                "trace": run.jobs.workload.source.name,
                "warm": run.jobs.warm,
                "interval": run.interval,
                "cluster": run.cluster,
                "jobs": as_rows(run.jobs, described(run.jobs)),
                "arms": {name: {**lists(times), **run.facts[name]} for name, times in run.real.items()},
                "simulated": {name: [lists(times) for times in of] for name, of in run.simulated.items()},
            }
            for run in runs
        ],
    }


def from_json_file(path: Path) -> list[Run]:
    """The runs of a file that `--json` wrote.

    Raises:
        TestbedError: it cannot be read, or is something else.
    """

    def times(of: Mapping[str, Any]) -> Times:
        return Times(*(np.array(of[name], dtype=np.float64) for name in ("submit", "start", "end")))

    def site(run: Mapping[str, Any]) -> Site:
        of = run.get("site")
        return Site(**{**of, "past": tuple(EndedJob(*job) for job in of["past"])}) if of else synthetic(run["minutes"])

    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        found = [
            Run(
                run["seed"],
                run["slurm"],
                site(run),
                run["interval"],
                from_rows(run["jobs"], run.get("trace", f"testbed A/B, seed {run['seed']}"), run.get("warm", 0)),
                run["cluster"],
                {name: times(of) for name, of in run["arms"].items()},
                run["arms"],
                {name: [times(each) for each in of] for name, of in run["simulated"].items()},
            )
            for run in read["runs"]
            if read["meta"]["form"] == FORM
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path}: not what `testbed ab --json` writes: {error!r}"
        raise TestbedError(message) from error
    if not found:
        message = f"{path}: has no runs of form {FORM}"
        raise TestbedError(message)
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="testbed ab",
        description="Runs the same jobs on real clusters side by side, one for each arm, and compares them with Slurm "
        "alone (multifactor).",
    )
    top.add_argument("--slurm", choices=SUITES, default=DEFAULT_RELEASE, help="release (default: %(default)s)")
    top.add_argument(
        "--arms",
        default="",
        help=f"default: all, {', '.join(ARMS)}, and of a trace {', '.join(TRACE_ARMS)}; multifactor always runs",
    )
    top.add_argument("--jobs", type=int, help="of each seed (default: 1024, and 256 of a trace)")
    top.add_argument("--seeds", "--seed", default="1", help="one after the other, such as 1,2,3 (default: %(default)s)")
    top.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        help="planned length of a run; jobs arrive in three quarters of it (default: %(default)s)",
    )
    top.add_argument(
        "--load",
        type=float,
        default=1.2,
        help="GPU-seconds of the jobs over those of the cluster while they arrive (default: %(default)s)",
    )
    top.add_argument(
        "--exclusive",
        action="store_true",
        help="a node runs one job, as where nobody says how much memory a job needs; --load is of nodes",
    )
    trace = top.add_argument_group("windows of traces instead of drawn jobs")
    trace.add_argument(
        "--trace",
        default="",
        metavar="FILE[,…]",
        help="jobs of a file's test part, or of a generated trace: philly, helios or pai",
    )
    trace.add_argument("--nodes", type=int, default=8, help="of 8 GPUs (default: %(default)s)")
    top.add_argument("--interval", type=float, default=5.0, help="the daemon's cycle, seconds (default: %(default)s)")
    top.add_argument(
        "--draws",
        type=int,
        default=3,
        help="simulations of each arm for the prediction; 0: none (default: %(default)s)",
    )
    top.add_argument("--json", type=Path, metavar="OUT", help="where everything goes, for machines")
    top.add_argument("--plot", type=Path, metavar="DIR", help="where the plots go")
    top.add_argument(
        "--pool", type=Path, nargs="+", metavar="FILE", help="run nothing: report the runs of these files together"
    )
    top.add_argument(
        "--project", type=str.lower, default="rltuned-ab", help="what the names of its clusters begin with"
    )
    return top


def runs_of(options: argparse.Namespace, kept: list[Run]) -> None:
    """Runs all seeds, and adds each to `kept` as soon as it is over."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    settings = Settings(options.slurm, options.minutes, options.interval, options.project)
    # All jobs first: what cannot be drawn is no reason to start a cluster.
    runs: list[tuple[list[Arm], Jobs, Site, int]] = []
    for seed in seeds:
        for name in filter(None, options.trace.split(",")):
            jobs, site, earlier = window(
                name, options.nodes, options.jobs or 256, options.minutes, seed, exclusive=options.exclusive
            )
            arms = {arm.name: arm for arm in chosen(options.arms, TRACE_ARMS)}
            if with_lines := arms.keys() & {TUNED, ON_TUNED}:
                conf = tuned(tuned_lines(earlier, options.nodes, site, seed), site.conf)
                arms |= {of: replace(arms[of], conf=conf) for of in with_lines}
            runs.append((list(arms.values()), jobs, site, seed))
        if not options.trace:
            jobs = draw(options.jobs or 1024, seed, options.minutes, options.load, exclusive=options.exclusive)
            runs.append((chosen(options.arms), jobs, synthetic(options.minutes), seed))
    ensure_engine()
    image = build(settings.release)
    for run in runs:
        kept.append(run_seed(settings, *run, image))
        if options.json:  # the next seed may be interrupted
            options.json.write_text(json.dumps(to_json(kept, options.argv), indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """`testbed ab`; 0, 1 with the reason on stderr, or 130 where it was interrupted."""
    # An end that is asked for removes the clusters, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parser().parse_args(argv)
    options.argv = list(argv)
    runs: list[Run] = []
    try:
        if options.json:  # before an hour of work: whether it can be written
            options.json.touch()
        if options.pool:
            runs = [run for path in options.pool for run in from_json_file(path)]
        else:
            runs_of(options, runs)
        for run in runs:
            if options.draws and not run.simulated:
                predict(run, options.draws)
        if options.json:
            options.json.write_text(json.dumps(to_json(runs, options.argv), indent=1) + "\n", encoding="utf-8")
        if options.plot:
            draw_plots(runs, options.plot)
    except (TestbedError, RltunedError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(summary(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

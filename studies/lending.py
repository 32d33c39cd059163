"""What is gained where a waiting job lends a part of its wait, and whom that harms: the frontier of `rltuned gate` at
the load of real sites, as a table.

``python -m studies.lending TRACES`` measures what studies/lending.csv does not have yet, and prints it. TRACES is the
directory of the published traces. A protocol that was interrupted goes on where it was, if the code is the same.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rltuned.core.errors import EvaluationError
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, progress_bar, silent
from rltuned.lab.evaluate.bootstrap import mean
from rltuned.lab.evaluate.evaluation import Tables, evaluate, ready
from rltuned.lab.evaluate.evaluation_settings import OWN, EvaluationSettings, Start
from rltuned.lab.evaluate.frontier import RATIOS, TESTED, Point, contenders, parse_shares, points
from rltuned.lab.evaluate.state import state_path
from rltuned.simulate.shape import read_shape
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.simulated_estimates import written_limit
from studies.kept import read_table, write_table
from studies.run import code
from studies.traces import read

HERE: Final = Path(__file__).resolve().parent
TABLE: Final = HERE / "lending.csv"
UNFINISHED: Final = HERE / "results"
SHARES: Final = (0.1, 0.2, 0.5)
"""`lend.share`: the default, and where most of what a site can gain lies. `rltuned gate` replays more."""
SEEDS: Final = (7, 11)
WEIGHTS: Final = {"fair share": "age=1000,fairshare=100000", "age": "age=100000,fairshare=1000"}
"""By what decides in Slurm's own order."""
OWN_LIMITS: Final = "users'"
LIKE_GRAHAM: Final = "as Graham's"  # drawn, and they tell as much as Graham's users' own do (`studies.limits`)
TELL_MORE: Final = "tell more"  # drawn, and they tell more than that
ONE_LIMIT: Final = "one"  # of all jobs: it tells nothing
EVIDENCE: Final = (OWN_LIMITS, LIKE_GRAHAM)
"""Limits that tell what a site knows, no more and no less."""
KEY: Final = ("trace", "nodes", "weights")
POINT: Final = ("policy", "share", "wait", "lo", "hi", "slowdown", "p99", "gpus", "j", "worse", "worse_chance")
MORE: Final = ("worst_tenth", "worst_tenth_chance", "late", "late_chance", "p95", "p95_chance", "certain", "harms")
CHANCE: Final = ("p99_chance", "gpus_chance")
"""What submissions up to a minute later do to Slurm's own order."""
COLUMNS: Final = (*KEY, *POINT, *MORE, "windows", "seeds", "slurm_wait_h", "load", *CHANCE)


class Protocol(NamedTuple):
    """Windows of a trace on a cluster of about the size at which its users' jobs load it."""

    trace: str
    file: str
    cluster: str
    window: int = 3000
    windows: int = 4
    """Of each seed."""
    warm: int = 1000
    """Jobs before each window."""
    limits: str = OWN_LIMITS

    @property
    def nodes(self) -> str:
        """Of the cluster: 64x8."""
        return self.cluster.partition(":")[0]

    def jobs(self, traces: Path) -> Workload:
        """From the directory of the traces."""
        jobs = read(traces / self.file, skip_bad=True)
        if self.limits != ONE_LIMIT:
            return jobs
        return replace(jobs, time_limit=np.full(len(jobs), float(written_limit(jobs.run_time).max())))

    def settings(self, weights: str, seed: int, shares: Sequence[float]) -> EvaluationSettings:
        """Of one seed; the trace by its name alone."""
        return EvaluationSettings(
            trace=self.file,
            cluster=self.cluster,
            window=self.window,
            windows=self.windows,
            seed=seed,
            policies=contenders(shares),
            estimates="history",
            start=Start.WARM,
            warm_jobs=self.warm,
            weights=weights,
            skip_bad=True,
        )


PROTOCOLS: Final = (
    Protocol("Venus", "helios-venus-users-limits.csv.gz", "64x8:v100", limits=LIKE_GRAHAM),
    Protocol("Venus, one limit", "helios-venus-users-limits.csv.gz", "64x8:v100", limits=ONE_LIMIT),
    Protocol("Graham", "drac-graham.csv.gz", "14x8:p100"),
    Protocol("HPC2N", "hpc2n.swf.gz", "240x1"),
    Protocol("SDSC-BLUE", "sdsc-blue.swf.gz", "144x8"),
    # Its windows need 1,581 GPUs in the median.
    Protocol("Philly", "philly-users-limits.csv.gz", "200x8", limits=TELL_MORE),
)
LIMITS: Final = {protocol.trace: protocol.limits for protocol in PROTOCOLS}


def measured(
    protocol: Protocol,
    decides: str,
    jobs: Workload,
    pool: WorkerPool,
    shares: Sequence[float],
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Rows of the table: a protocol with one kind of weights. EvaluationError: the code has changed meanwhile."""
    begun, shape = code(), read_shape(protocol.cluster)
    found: list[Tables] = []
    loads: list[float] = []
    states = []
    for seed in SEEDS:
        evaluation = ready(protocol.settings(WEIGHTS[decides], seed, shares), jobs, shape, begun)
        name = f"lending-{protocol.trace}-{decides}-{seed}-{begun[:8]}".lower().replace(" ", "-")
        out = UNFINISHED / name
        found.append(evaluate(evaluation, pool, out, progress=progress))
        loads += [case.load for case in evaluation.cases]
        states.append(state_path(out))
    # Processes that start later load what is there by then.
    if code() != begun:
        raise EvaluationError(f"{protocol.trace}: the code was changed while it ran, so it is not kept")
    both = {
        name: {metric: np.concatenate([of[name][metric] for of in found]) for metric in found[0][name]}
        for name in found[0]
    }
    tried, chance = points(both, SEEDS[0])
    about = {
        "windows": len(loads),
        "seeds": " ".join(map(str, SEEDS)),
        "slurm_wait_h": mean(both[OWN][TESTED]) / 3600.0,
        "load": float(np.mean(loads)),
    }
    key = dict(zip(KEY, (protocol.trace, protocol.nodes, decides), strict=True))
    rows = [{**key, **_row(point, chance), **about} for point in tried]
    for state in states:
        state.unlink()
    return rows


def _row(point: Point, chance: Point) -> dict[str, Any]:
    wait, *others = (point.ratios[metric] for metric in RATIOS)
    names = {"worse": "accounts_worse", "worst_tenth": "worst_tenth", "late": "late", "p95": "wait_ratio_p95"}
    shares = {
        f"{name}{end}": of.means[metric]
        for name, metric in names.items()
        for end, of in (("", point), ("_chance", chance))
    }
    ratios = dict(zip(("slowdown", "p99", "gpus"), (one.ratio for one in others), strict=True)) | {"j": point.objective}
    ratios |= {f"{name}_chance": chance.ratios[of].ratio for name, of in (("p99", RATIOS[2]), ("gpus", RATIOS[3]))}
    about = {"policy": point.policy, "share": point.share, "wait": wait.ratio, "lo": wait.lo, "hi": wait.hi}
    harms = "; ".join(harm.words for harm in point.harms)
    return {**about, **ratios, **shares, "certain": "yes" if point.certain else "no", "harms": harms}


def kept() -> list[dict[str, str]]:
    """Rows of the table, as they are written; none where nothing was measured."""
    return read_table(TABLE)


def missing(only: str, shares: Sequence[float]) -> Iterator[tuple[Protocol, str, tuple[float, ...]]]:
    """What the table does not have of these shares, of the protocols whose names begin so, several with commas: fair
    share first.
    """
    there = {(*(row[name] for name in KEY), float(row["share"])) for row in kept()}
    for decides in WEIGHTS:
        for protocol in PROTOCOLS:
            wanted = protocol.trace.lower().startswith(tuple(only.lower().split(",")))
            lacking = [one for one in shares if (protocol.trace, protocol.nodes, decides, one) not in there]
            if wanted and lacking:
                yield protocol, decides, tuple(lacking)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.lending", description=__doc__)
    parser.add_argument("traces", type=Path, help="directory of the published traces")
    parser.add_argument("--only", default="", help="only traces whose names begin so, several with commas")
    parser.add_argument("--shares", default=SHARES, type=parse_shares, help="of `lend.share`, as .05,.1")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    asked = parser.parse_args(arguments)
    for protocol, decides, shares in list(missing(asked.only, asked.shares)):
        jobs = protocol.jobs(asked.traces)
        with progress_bar() as progress:
            rows = measured(protocol, decides, jobs, WorkerPool(asked.workers), shares, progress)
        written = [
            {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
        ]
        write_table(TABLE, COLUMNS, [*kept(), *written])
        for row in written:
            sys.stdout.write(" ".join(f"{name}={row[name]}" for name in COLUMNS) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

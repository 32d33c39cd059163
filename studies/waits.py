"""How long jobs wait, in hours, in the windows of `studies.lending` that are evidence, where fair share decides.

``python -m studies.waits TRACES`` measures the traces that studies/waits.csv does not have yet, and prints it. TRACES
is the directory of the published traces.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.tables import Floats
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import OWN, with_share
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import Contender, contender
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import read_shape
from studies.kept import read_table, write_table
from studies.lending import EVIDENCE, PROTOCOLS, SEEDS, WEIGHTS, Protocol
from studies.run import code

TABLE: Final = Path(__file__).resolve().parent / "waits.csv"
SHARE: Final = 0.1
"""`lend.share` as installed."""
ORDERS: Final = (OWN, with_share("saf", SHARE), with_share("rl", SHARE))
DECIDES: Final = "fair share"
LARGE: Final = "64 and more"
SIZES: Final = {
    "all": (0.0, np.inf),
    "1": (0.0, 1.0),
    "2 to 8": (2.0, 8.0),
    "9 to 63": (9.0, 63.0),
    LARGE: (64.0, np.inf),
}
"""GPUs, from and to. A job without one counts as one."""
COLUMNS: Final = ("trace", "nodes", "order", "gpus", "jobs", "mean_h", "p25_h", "p50_h", "p75_h", "p90_h", "p99_h")


def waits(task: tuple[Case, Contender]) -> tuple[Floats, Floats]:
    """(n,) hours that each job of a window waits, and (n,) its GPUs; jobs that can never run are left out."""
    compile_kernel()
    case, start = task[0], simulate_case(*task).result().start
    rows = case.measured & np.isfinite(start)
    return (start[rows] - case.jobs.submit_time[rows]) / 3600.0, np.asarray(case.jobs.gpus[rows], float)


def measured(protocol: Protocol, traces: Path, workers: int) -> list[dict[str, str]]:
    """Rows of the table: a trace."""
    jobs, shape = protocol.jobs(traces), read_shape(protocol.cluster)
    settings = [protocol.settings(WEIGHTS[DECIDES], seed, (SHARE,)) for seed in SEEDS]
    cases = [(case, one) for one in settings for case in ready(one, jobs, shape, code()).cases]
    tasks = [(case, contender(order, one)) for order in ORDERS for case, one in cases]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        found = list(pool.map(waits, tasks))
    rows = []
    for index, order in enumerate(ORDERS):
        of = found[index * len(cases) : (index + 1) * len(cases)]
        rows += list(_rows(protocol, order, *(np.concatenate(each) for each in zip(*of, strict=True))))
    return rows


def _rows(protocol: Protocol, order: str, hours: Floats, gpus: Floats) -> Iterator[dict[str, str]]:
    for size, (low, high) in SIZES.items():
        these = hours[(gpus >= low) & (gpus <= high)]
        if len(these):
            values = [float(these.mean()), *np.percentile(these, (25, 50, 75, 90, 99))]
            about = (protocol.trace, protocol.nodes, order, size, str(len(these)))
            yield dict(zip(COLUMNS, (*about, *(f"{value:.4g}" for value in values)), strict=True))


def told(hours: float) -> str:
    """Hours, minutes or seconds, as people say them."""
    if hours >= 1.0:
        return f"{hours:.1f} h" if hours < 20.0 else f"{hours:.0f} h"
    if hours >= 1.0 / 60.0:
        return f"{60.0 * hours:.{0 if hours >= 1.0 / 6.0 else 1}f} min"
    return f"{3600.0 * hours:.0f} s"


def kept() -> list[dict[str, str]]:
    """Rows of the table, as they are written; none where nothing was measured."""
    return read_table(TABLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.waits", description=__doc__)
    parser.add_argument("traces", type=Path, help="directory of the published traces")
    parser.add_argument("--only", default="", help="only traces whose names begin so, several with commas")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    asked = parser.parse_args(arguments)
    for protocol in PROTOCOLS:
        wanted = protocol.limits in EVIDENCE and protocol.trace.lower().startswith(tuple(asked.only.lower().split(",")))
        if not wanted or protocol.trace in {row["trace"] for row in kept()}:
            continue
        write_table(TABLE, COLUMNS, [*kept(), *measured(protocol, asked.traces, asked.workers)])
        for row in kept():
            if row["trace"] == protocol.trace:
                sys.stdout.write(" ".join(f"{name}={row[name]}" for name in COLUMNS) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How often a verdict calls Slurm's own order certainly better than itself (docs/decisions/0093-gate.md).

``python -m studies.chance TRACES [RUNS]`` simulates Slurm's own order on the last half of Graham's jobs, RUNS times,
with each job submitted up to a minute later, in one long replay and in windows that share no job, and prints a row for
each. All runs are alike, so what is called certain of one over another is wrong. TRACES: the directory of the traces.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.tables import Floats, owners
from rltuned.lab.evaluate.bootstrap import LEVEL, counts
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.evaluation_settings import AGAIN
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import read_shape
from rltuned.simulate.workload.simulated_estimates import estimate
from studies.lending import PROTOCOLS, WEIGHTS

(GRAHAM,) = (protocol for protocol in PROTOCOLS if protocol.trace == "Graham")
RUNS: Final = 13
RESAMPLES: Final = 2000
WINDOWS: Final = (1, 3, 10)
"""How many the half is cut into: one is a long replay of 33 days."""
HEAD: Final = """\
| windows | jobs each | mean wait, h | σ of ln mean wait | resampled | less than one other | less than two others |
| ---: | ---: | ---: | ---: | --- | ---: | ---: |"""


def wrong(resampled: Floats) -> tuple[float, float]:
    """How often a run is called certainly less than one other, and than two others; (N, R) resampled mean waits."""
    share = (1.0 + LEVEL) / 2.0
    runs = range(len(resampled))
    less = {(one, other): np.quantile(resampled[one] / resampled[other], share) <= 1.0
            for one, other in permutations(runs, 2)}  # fmt: skip
    two = [less[one, other] and less[one, third] for one, other, third in permutations(runs, 3)]
    return float(np.mean([*less.values()])), float(np.mean(two))


def by_days_and_accounts(case: Case, waits: Floats) -> Iterator[tuple[str, Floats]]:
    """(N, R) sums of the waits (N, jobs) of one long replay, by what is resampled (Owen, Annals of Applied Statistics
    1, 2007, for both at once).
    """
    rows = case.measured
    day = np.unique(case.jobs.submit_time[rows] // 86_400.0, return_inverse=True)[1]
    account = owners(case.jobs.account, case.jobs.user).codes[rows]
    cells = np.zeros((len(waits), int(day.max()) + 1, int(account.max()) + 1))
    for run, of in enumerate(waits):
        np.add.at(cells[run], (day, account), of)
    days, accounts = (counts(size, 1, RESAMPLES) for size in cells.shape[1:])
    yield "days", np.array([days @ of.sum(axis=1) for of in cells])
    yield "days and accounts", np.array([((days @ of) * accounts).sum(axis=1) for of in cells])


def row(traces: Path, windows: int, runs: int) -> Iterator[str]:
    """Of the table."""
    jobs = GRAHAM.jobs(traces)
    first = len(jobs) // 2
    length = (len(jobs) - first) // windows
    settings = GRAHAM._replace(window=length, windows=windows).settings(WEIGHTS["fair share"], 7, ())
    cut = [Window(index, len(jobs) - (windows - index) * length, length) for index in range(windows)]
    shape, estimates = read_shape(GRAHAM.cluster), estimate(jobs, settings.estimates, settings.seed)
    found = list(cases(jobs, estimates, shape, cut, settings.past, history=True, warming=settings.simulated))
    again = contender(AGAIN, settings)
    waits = np.array(
        [
            [
                (simulate_case(replace(case, seed=run), again).result().start - case.jobs.submit_time)[case.measured]
                for case in found
            ]
            for run in range(runs)
        ]
    )
    mean = waits.mean(axis=(1, 2))
    head = f"| {windows} | {length:,} | {mean.mean() / 3600.0:.0f} | {np.log(mean).std():.3f} |"
    drawn = [("windows", waits.mean(axis=2) @ counts(windows, 1, RESAMPLES).T)]
    for what, resampled in drawn if windows > 1 else by_days_and_accounts(found[0], waits[:, 0]):
        one, two = wrong(resampled)
        yield f"{head} {what} | {one:.3f} | {two:.3f} |"


def main() -> int:
    """Prints the table; returns the exit code."""
    compile_kernel()
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS
    sys.stdout.write(f"{HEAD}\n")
    for windows in WINDOWS:
        for line in row(Path(sys.argv[1]), windows, runs):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What time limits tell of run times, of each trace (docs/estimates.md has the table).

``python -m studies.limits TRACES`` prints it. TRACES is the directory of the published traces.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Floats
from rltuned.lab.evaluate.bootstrap import LEVEL, counts
from rltuned.lab.evaluate.leak import products
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.simulated_estimates import estimate
from studies.lending import ONE_LIMIT, PROTOCOLS
from studies.traces import read

SEED: Final = 7
DRAWN: Final = "drawn from the run time"
WITHOUT: Final = ("helios-venus-users.csv.gz", "philly-users.csv.gz", "helios-venus.csv.gz", "philly.csv.gz")
PAI: Final = "alibaba-pai.csv.gz"
HEAD: Final = """\
| trace | limits | correlation |
| --- | --- | ---: |"""


class Told(NamedTuple):
    """Correlation of ln limit and ln run time among jobs of one user and size, with its interval over users; NaN ends
    where there is one.
    """

    value: float
    lo: float
    hi: float


def told(jobs: Workload, limit: Floats) -> Told:
    """Of limits (N,) in seconds, with the interval of resampled users."""
    sums = products(jobs, limit)
    value = float(_correlation(sums.sum(axis=1)))
    users = sums[:, sums[1:].any(axis=0)]
    if users.shape[1] < 2:
        return Told(value, np.nan, np.nan)
    drawn = _correlation(users @ counts(users.shape[1], SEED).T)
    lo, hi = np.quantile(drawn, ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    return Told(value, float(lo), float(hi))


def _correlation(sums: Floats) -> Floats:
    return np.asarray(sums[0] / np.sqrt(sums[1] * sums[2]))


def measured(traces: Path) -> Iterator[tuple[str, str, Told]]:
    """Trace, whose limits, what they tell."""
    for protocol in PROTOCOLS:
        if protocol.limits != ONE_LIMIT:
            jobs = protocol.jobs(traces)
            yield protocol.file, protocol.limits, told(jobs, jobs.time_limit)
    for name in (*WITHOUT, PAI):
        jobs = read(traces / name, skip_bad=True)
        yield name, DRAWN, told(jobs, estimate(jobs, "history", SEED).time_limit)


def main() -> int:
    """Prints the table; returns the exit code."""
    sys.stdout.write(f"{HEAD}\n")
    for name, whose, (value, lo, hi) in measured(Path(sys.argv[1])):
        interval = "" if np.isnan(lo) else f" [{lo:.2f}, {hi:.2f}]"
        sys.stdout.write(f"| {name.partition('.')[0]} | {whose} | {value:.2f}{interval} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

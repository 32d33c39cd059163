"""How near a simulation comes to what really happened, by what it begins with (docs/decisions/0093-gate.md).

``python -m studies.beginnings TRACES`` takes a simulation of all of Graham's jobs in Slurm's own order for reality, and
simulates its last windows as `rltuned gate` does, begun in different ways. TRACES: the directory of the traces.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.tables import Floats
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.evaluation_settings import OWN
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.windows import Split, recent
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import read_shape
from rltuned.simulate.workload.simulated_estimates import estimate
from studies.chance import GRAHAM
from studies.lending import WEIGHTS

BEGINNINGS: Final = {
    "1,000 jobs by FIFO": (1000, False),
    "3,000 jobs by FIFO": (3000, False),
    "what ran and waited, of 1,000 jobs and of all that had not ended": (1000, True),
    "what ran and waited, of 3,000 jobs and of all that had not ended": (3000, True),
}
WINDOWS: Final = 10


def main() -> int:
    """Prints the table; returns the exit code."""
    jobs, shape = GRAHAM.jobs(Path(sys.argv[1])), read_shape(GRAHAM.cluster)
    estimates = estimate(jobs, "limit", 7)
    slurm = contender(OWN, GRAHAM.settings(WEIGHTS["fair share"], 7, ()))

    def waits(case: Case) -> Floats:
        return (simulate_case(case, slurm).result().start - case.jobs.submit_time)[case.measured]

    compile_kernel()
    whole = recent(len(jobs), Split.ALL, count=WINDOWS, past=0)
    (everything,) = cases(jobs, estimates, shape, [replace(whole[0], start=0, jobs=len(jobs))])
    really = waits(everything)
    known = replace(jobs, wait_time=really)
    sys.stdout.write(f"reality: {really.mean() / 3600.0:.0f} h; {len(whole)} windows of {whole[0].jobs} jobs\n")
    sys.stdout.write("| begun with | mean of ln ratio | least, greatest ratio |\n| --- | ---: | --- |\n")
    for words, (past, as_it_was) in BEGINNINGS.items():
        ratio = np.array(
            [
                waits(case).sum() / really[case.window.start :][: case.window.jobs].sum()
                for case in cases(known, estimates, shape, whole, past, really=as_it_was)
            ]
        )
        row = f"{np.log(ratio).mean():.2f} | {ratio.min():.2f}, {ratio.max():.2f}"
        sys.stdout.write(f"| {words} | {row} |\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

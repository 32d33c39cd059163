"""How good run-time predictions are for jobs that wait, as they start (docs/estimates.md has the table).

``python -m studies.run_times TRACES [NAME ...]`` prints it. TRACES is the directory of the published traces. Windows of
3,000 and of 768 jobs are simulated in Slurm's own order at the load of real sites (`studies.lending`); each job that
has waited for more than a minute is predicted just before it starts, from the jobs that had ended by then.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.lab.evaluate.bootstrap import compare, counts
from rltuned.lab.evaluate.decided import Decided, decided, order_cost
from rltuned.lab.evaluate.evaluation import ready
from rltuned.simulate.shape import read_shape
from studies.lending import ONE_LIMIT, PROTOCOLS, SEEDS, WEIGHTS

WINDOWS: Final = (3000, 768)
"""Jobs of one."""
BLOCKS: Final = 40
"""Stretches of jobs that are resampled: jobs of one stretch are alike."""
HEAD: Final = """\
| waiting jobs, at their start | error | order cost | error over the limit's | in the interval |
| --- | ---: | ---: | ---: | ---: |"""


def rows(of: list[Decided], name: str) -> Iterator[str]:
    """Of the table: one trace, one length of windows."""
    took, _, limit, _, median, inside = (np.concatenate(column) for column in zip(*of, strict=True))
    ways = {"the limit": limit, "predicted": median}
    error = {way: np.abs(np.log(expected / took)) for way, expected in ways.items()}
    blocks = min(BLOCKS, len(took))
    own, other = (np.array([part.mean() for part in np.array_split(column, blocks)]) for column in error.values())
    ratio = compare(other, own, counts(blocks, SEEDS[0]))
    more = {"the limit": " | |", "predicted": f" {ratio} | {inside.mean():.0%} |"}
    for way, apart in error.items():
        cost = np.mean([order_cost(one.limit if way == "the limit" else one.mean, one.took, one.size) for one in of])
        yield f"| {name}: {way} | {apart.mean():.2f} | {cost:.2f} |{more[way]}"


def main(directory: Path, names: list[str]) -> None:
    """Prints the rows of these traces, of all where there are none."""
    print(HEAD)  # noqa: T201
    for protocol in PROTOCOLS:
        if protocol.limits == ONE_LIMIT or (names and protocol.trace not in names):
            continue
        jobs, shape = protocol.jobs(directory), read_shape(protocol.cluster)
        for window in WINDOWS:
            found = []
            for seed in SEEDS:
                settings = protocol._replace(window=window).settings(WEIGHTS["fair share"], seed, ())
                found += [decided(case, settings) for case in ready(settings, jobs, shape, "").cases]
            if waited := [one for one in found if len(one.took)]:
                print("\n".join(rows(waited, f"{protocol.trace}, {window}")), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

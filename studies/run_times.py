"""How good run-time predictions are for jobs that wait, as they start (docs/estimates.md has the table).

``python -m studies.run_times TRACES [NAME ...]`` prints it. TRACES is the directory of the published traces. Windows of
3,000 and of 768 jobs are simulated in Slurm's own order at the load of real sites (`studies.lending`); each job that
has waited for more than a minute is predicted just before it starts, from the jobs that had ended by then.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.tables import Bools, Floats
from rltuned.lab.evaluate.bootstrap import compare, counts
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import OWN, EvaluationSettings
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.simulate.run_times import HistoryPredictor, past
from rltuned.simulate.shape import read_shape
from studies.lending import ONE_LIMIT, PROTOCOLS, SEEDS, WEIGHTS

WINDOWS: Final = (3000, 768)
"""Jobs of one."""
WAITED: Final = 60.0
"""Seconds."""
BLOCKS: Final = 40
"""Stretches of jobs that are resampled: jobs of one stretch are alike."""
HEAD: Final = """\
| waiting jobs, at their start | error | order cost | error over the limit's | in the interval |
| --- | ---: | ---: | ---: | ---: |"""


class Decided(NamedTuple):
    """(n,) of the jobs of one window that waited, as they started; seconds."""

    took: Floats
    size: Floats  # GPUs, or CPUs
    limit: Floats
    mean: Floats
    median: Floats
    inside: Bools  # the run time is in the interval


def decided(case: Case, settings: EvaluationSettings) -> Decided:
    """What was expected of each job of a window just before it started."""
    jobs, limit = case.jobs, case.estimates.time_limit
    result = simulate_case(case, contender(OWN, settings)).result()
    start, end = result.start, result.end
    before = past(case.before, case.before_estimates, float(jobs.submit_time[0]))
    predictor = HistoryPredictor(jobs, limit, before)
    ends = np.argsort(end, kind="stable")
    ends = ends[np.isfinite(end[ends])]
    rows = np.flatnonzero(case.measured & (start - jobs.submit_time > WAITED))
    rows, told, found = rows[np.argsort(start[rows], kind="stable")], 0, []
    for row, now in zip(rows.tolist(), np.searchsorted(end[ends], start[rows], side="right").tolist(), strict=True):
        fresh, told = ends[told:now], now
        predictor.ended(fresh, (end - start)[fresh], end[fresh])
        found.append(np.concatenate(predictor.predict(np.array([row]))))
    mean, median, low, high = np.array(found).reshape(-1, 4).T
    took = np.maximum((end - start)[rows], 1.0)
    inside = (low <= took * 1.001) & (took <= high * 1.001)  # values are rounded
    return Decided(took, np.maximum(jobs.gpus[rows], 1.0), limit[rows], mean, median, inside)


def order_cost(expected: Floats, took: Floats, size: Floats) -> float:
    """Mean completion in order of expected area over that in order of true area, on one machine."""
    by = (np.cumsum((took * size)[np.argsort(area * size, kind="stable")]).mean() for area in (expected, took))
    return float(next(by) / next(by))


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

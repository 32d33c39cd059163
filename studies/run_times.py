"""How good run-time predictions are, on the later half of traces with users (docs/estimates.md has the table).

``python -m studies.run_times TRACES`` prints it. TRACES is the directory of the published traces. Each job is predicted
at its submission, from the jobs that had ended by then on the machine of the trace.
"""

import sys
from collections import defaultdict, deque
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.config import DEFAULT_MODEL
from rltuned.core.tables import Floats
from rltuned.decide.expect.predictions import COVER, expected_run_times
from rltuned.decide.expect.run_time_history import JobKind
from rltuned.lab.evaluate.bootstrap import compare, counts
from rltuned.records import model_files as files
from rltuned.simulate.run_times import at_submission, ended_before, kinds_of
from rltuned.simulate.workload.jobs import Estimates, Workload
from studies.traces import read

TRACES: Final = {
    "Graham": "drac-graham.csv.gz",
    "Venus": "helios-venus-users.csv.gz",
    "Philly": "philly-users.csv.gz",
    "HPC2N": "hpc2n.swf.gz",
    "SDSC-BLUE": "sdsc-blue.swf.gz",
}
MOST: Final = 60_000
"""First jobs of a trace that are looked at."""
BLOCKS: Final = 40
"""Stretches of jobs that are resampled: jobs of one stretch are alike."""
SEED: Final = 7
_TAILS: Final = ((1.0 - COVER) / 2.0, 0.5, (1.0 + COVER) / 2.0)
_LAST: Final = (3, 3, 3, 10, 10)


class Predicted(NamedTuple):
    """(n,) seconds each."""

    median_of_three: Floats
    mean: Floats
    median: Floats
    low: Floats
    high: Floats


class MedianOfThree:
    """The prediction before this one (decision 0150).

    The median of the user's last three run times with the same GPUs, partition and limit; else of less alike jobs.
    """

    def __init__(self) -> None:
        self._last: defaultdict[tuple[object, ...], deque[float]] = defaultdict(lambda: deque(maxlen=10))

    def ended(self, kind: JobKind, run_time: float) -> None:
        """A job ended after so many seconds."""
        for key in self._keys(kind):
            self._last[key].append(run_time)

    def predict(self, kind: JobKind) -> float:
        """Seconds; the limit where nothing is known."""
        for key, last in zip(self._keys(kind), _LAST, strict=True):
            if key in self._last:
                return min(max(float(np.median(list(self._last[key])[-last:])), 1.0), _limit(kind))
        return _limit(kind)

    @staticmethod
    def _keys(kind: JobKind) -> tuple[tuple[object, ...], ...]:
        same = kind.user, kind.partition, kind.gpus
        # A name that is not known is a key of its own job only.
        account, partition = (name or object() for name in (kind.account, kind.partition))
        return (0, *same, _limit(kind)), (1, *same), (2, kind.user), (3, account), (4, partition)


def predicted(jobs: Workload) -> Predicted:
    """Of all jobs, each at its submission; NaN where nothing had ended."""
    kinds, limit = kinds_of(jobs, jobs.time_limit), np.fmin(jobs.time_limit, np.inf)
    rows, ran, ends = ended_before(jobs, Estimates(limit, limit), np.inf, len(jobs))
    before, median, told = MedianOfThree(), np.empty(len(jobs)), 0
    for row, now in enumerate(np.searchsorted(ends, jobs.submit_time, side="right").tolist()):
        for at in range(told, now):
            before.ended(kinds[rows[at]], float(ran[at]))
        told = now
        median[row] = before.predict(kinds[row])
    return Predicted(median, *at_submission(jobs, Estimates(limit, limit)))


def table(name: str, jobs: Workload) -> list[str]:
    """Rows of the table of one trace."""
    jobs = jobs.take(slice(0, MOST))
    told = predicted(jobs)
    limit = np.where(np.isnan(jobs.time_limit), np.inf, np.maximum(jobs.time_limit, 1.0))
    took = np.maximum(np.minimum(jobs.run_time, limit), 1.0)
    late = np.arange(len(jobs)) >= len(jobs) // 2
    late &= np.isfinite(told.median_of_three) & np.isfinite(told.median)
    with_actor = expected_run_times(files.load(DEFAULT_MODEL), told.median_of_three, limit)
    ways = {
        "the limit": (limit,),
        "median of three": (told.median_of_three,),
        "as the shipped model expects": (with_actor,),
        "mixture": (told.median, told.low, told.high),
    }
    drawn, rows = counts(BLOCKS, SEED), []
    base = np.abs(np.log(told.median_of_three / took))[late]
    for way, (expected, *ends) in ways.items():
        guess = expected[late]
        if not np.isfinite(limit[late]).all() and way not in {"median of three", "mixture"}:
            continue  # nobody is known to have asked for a limit
        error = np.abs(np.log(guess / took[late]))
        accuracy = float(np.mean(np.minimum(guess, took[late]) / np.maximum(guess, took[late])))
        own, other = (np.array([part.mean() for part in np.array_split(of, BLOCKS)]) for of in (error, base))
        ratio = compare(own, other, drawn)
        text = f"| {name}: {way} | {accuracy:.4f} | {error.mean():.3f} | {error.mean() / base.mean():.3f} "
        text += "" if way == "median of three" else f"[{ratio.lo:.2f}, {ratio.hi:.2f}] "
        if ends:
            low, high = (column[late] for column in ends)
            inside = float(np.mean((low <= took[late]) & (took[late] <= high)))
            loss = np.mean([_pinball(took[late], q, part) for q, part in zip((low, guess, high), _TAILS, strict=True)])
            text += f"| {loss:.3f} | {100 * inside:.1f} % |"
        else:
            loss = np.mean([_pinball(took[late], guess, part) for part in _TAILS])
            text += f"| {loss:.3f} | |"
        rows.append(text)
    return rows


def _pinball(took: Floats, quantile: Floats, part: float) -> float:
    """Mean loss of a quantile of ln(seconds) (Koenker and Bassett, Econometrica 46, 1978)."""
    above = np.log(took / quantile)
    return float(np.mean(np.maximum(part * above, (part - 1.0) * above)))


def _limit(kind: JobKind) -> float:
    return max(kind.time_limit, 1.0) if kind.time_limit > 0 else np.inf


def main(directory: Path, names: list[str]) -> None:
    """Prints the rows of these traces, of all where there are none."""
    print("| | accuracy | mean error of ln(t) | over median of three | pinball | in the interval |")  # noqa: T201
    print("| --- | ---: | ---: | ---: | ---: | ---: |")  # noqa: T201
    for name in names or TRACES:
        print("\n".join(table(name, read(directory / TRACES[name]))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

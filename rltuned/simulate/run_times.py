"""Run-time predictions for the jobs of a workload, by what the daemon would know at each moment."""

from itertools import islice
from typing import Final

import numpy as np

from rltuned.core.tables import Floats, Rows
from rltuned.decide.expect.mixture import LAST
from rltuned.decide.expect.predictions import RunTimePredictions
from rltuned.decide.expect.run_time_history import LEVELS, JobKind, RunTimeHistory, kinds
from rltuned.simulate.workload.jobs import Estimates, Workload

PAST_JOBS: Final = 20_000  # jobs before a window that `past` looks at


class HistoryPredictor:
    """`simulate.engine.Predictor`: predictions for the jobs of one simulation, from what has ended in it and
    before.
    """

    def __init__(self, jobs: Workload, time_limit: Floats, past: RunTimeHistory | None = None) -> None:
        """`time_limit`: (N,) seconds as in `Estimates`. `past`: what had ended before, by names or not; it is copied,
        not changed.
        """
        self._history = past.copy() if past is not None else RunTimeHistory()
        self._kinds = kinds_of(jobs, time_limit)
        numbers: dict[JobKind, int] = {}
        self._number = np.array([numbers.setdefault(kind, len(numbers)) for kind in self._kinds], dtype=np.int64)
        """(N,) the same for jobs of one kind."""

    def ended(self, rows: Rows, run_times: Floats, ends: Floats) -> None:
        """These jobs have ended since the last call, after (n,) seconds, at (n,) times, in this order."""
        for row, seconds, end in zip(rows.tolist(), run_times.tolist(), ends.tolist(), strict=True):
            self._history.ended(self._kinds[row], seconds, end)
        self._history.renew()

    def predict(self, rows: Rows) -> RunTimePredictions:
        """Of (n,) jobs. NaN while nothing has ended: the caller takes the limit."""
        _, first, kind_of = np.unique(self._number[rows], return_index=True, return_inverse=True)
        found = self._history.run_times([self._kinds[row] for row in rows[first].tolist()])
        return RunTimePredictions(*(column[kind_of] for column in found))


def past(
    jobs: Workload, estimates: Estimates, until: float, most: int = PAST_JOBS, *, named: bool = False
) -> RunTimeHistory:
    """What was known at `until` (seconds on the workload's clock): of the last `most` jobs submitted before, those that
    had ended on the machine of the trace. Where the trace has no wait, none is assumed. `named`: it
    goes by what jobs are called, too.
    """
    rows, ran, ends = ended_before(jobs, estimates, until, most)
    history = RunTimeHistory(named=named)
    kinds = kinds_of(jobs.take(rows), estimates.time_limit[rows])
    for kind, seconds, end in zip(kinds, ran.tolist(), ends.tolist(), strict=True):
        history.ended(kind, seconds, end)
    history.renew()
    return history


def at_submission(jobs: Workload, estimates: Estimates) -> RunTimePredictions:
    """(N,) what the daemon would have expected of each job when it was submitted: from the jobs that had ended by then
    (`ended_before`). NaN where none had.
    """
    kinds, limit = kinds_of(jobs, estimates.time_limit), estimates.time_limit
    users = [kind.user for kind in kinds]
    rows, ran, ends = ended_before(jobs, estimates, np.inf, len(jobs))
    before = np.searchsorted(ends, jobs.submit_time, side="right")
    ended = zip(rows.tolist(), ran.tolist(), ends.tolist(), strict=True)
    # The weights change hundreds of times at most. In between, what was known is kept, for one call is far faster.
    history, known = RunTimeHistory(), np.empty((len(jobs), LEVELS, LAST), dtype=np.float32)
    found, told, first = np.full((4, len(jobs)), np.nan), 0, 0
    for row, until in enumerate(before.tolist()):
        for at, seconds, end in islice(ended, until - told):
            history.ended(kinds[at], seconds, end)
        told = until
        if history.due:
            found[:, first:row] = history.run_times_by(known[first:row], users[first:row], limit[first:row])
            history.renew()
            first = row
        known[row] = history.known(kinds[row])
    found[:, first:] = history.run_times_by(known[first:], users[first:], limit[first:])
    return RunTimePredictions(*np.where(before > 0, found, np.nan))


def ended_before(
    jobs: Workload, estimates: Estimates, until: float, most: int = PAST_JOBS
) -> tuple[Rows, Floats, Floats]:
    """The jobs of `past`, in the order in which they ended, the seconds that they ran, and when they ended."""
    stop = int(np.searchsorted(jobs.submit_time, until, side="left"))
    rows = np.arange(max(0, stop - most), stop)
    ran: Floats = np.minimum(jobs.run_time[rows], estimates.time_limit[rows])
    end = jobs.submit_time[rows] + np.nan_to_num(jobs.wait_time[rows]) + ran
    order = np.argsort(end, kind="stable")
    order = order[end[order] <= until]
    return rows[order], ran[order], end[order]


def kinds_of(jobs: Workload, time_limit: Floats) -> list[JobKind]:
    """What is known of each job before it runs. `time_limit`: (N,) seconds as in `Estimates`."""
    names = 1 + jobs.name_kind.codes.astype(np.int64)
    return kinds(jobs.user, jobs.account, jobs.partition, jobs.gpus, time_limit, jobs.cpus, names)

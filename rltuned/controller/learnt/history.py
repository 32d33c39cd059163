"""Run-time estimates of the live queue, from the site's own finished jobs: read beside the cycle, never in it.

slurmdbd that is slow, down or absent costs a log line and nothing else: what was learnt stays, and what was never
learnt is the time limit.
"""

import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np

from rltuned.controller.health.runtime import Runtime
from rltuned.controller.tell.logs import DEFECT
from rltuned.core.config import EstimatesSection
from rltuned.core.ended import EndedJob
from rltuned.core.errors import RltunedError, SlurmError, SlurmParseError, WorkloadError
from rltuned.core.safe_files import read, write
from rltuned.core.tables import Ints, JobTable
from rltuned.decide.expect.predictions import EndedJobs, RunTimePredictions
from rltuned.decide.expect.run_time_history import JobKind, RunTimeHistory, predict_table
from rltuned.decide.loans import Told
from rltuned.slurm.port import HistoryReader

if TYPE_CHECKING:  # see `LearntRunTimes._open_names`
    from rltuned.controller.learnt.names import Names

FILE_NAME: Final = "history.json"
VERSION: Final = 3
MAX_BYTES: Final = 64 * 1024 * 1024  # a full history takes about 10 MB
SLICE: Final = 6 * 3600.0
"""Seconds of the past that one command asks for: bounds the answer, whatever the site."""
MOST_ENDED: Final = 500
"""Ended jobs whose predictions are kept, to know how good predictions are."""
MOST_TOLD: Final = 20_000
"""Single jobs that are remembered for the book of loans."""
OVERLAP: Final = 3600.0
"""Seconds that are asked for again: slurmctld tells slurmdbd of an end later than it happens."""
_DAY: Final = 86400.0
_NO_NAMES: Final = ("names.unavailable", "Run times are predicted without the names that could not be read.")


class LearntRunTimes:
    """What the finished jobs say about the run times of the waiting ones."""

    def __init__(self, reader: HistoryReader, runtime: Runtime, *, make_key: bool = True) -> None:
        """`make_key`: names may be hashed by a new key where there is none; not so in a dry run."""
        self._reader, self._runtime, self._make_key = reader, runtime, make_key
        self._known = Known()
        """Replaced, never changed: the cycle's thread reads it at any moment."""
        self._names: Names | None = None  # what reads them, where the site asks for that
        self._said: set[str] = set()  # events of trouble that has been said
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # --- the cycle's side

    def predicted(self, jobs: JobTable) -> RunTimePredictions | None:
        """Run times of (N,) jobs; None while there is nothing to predict from."""
        reader = self._names  # the other thread may set it to None at any moment
        names = None if reader is None else reader.of(jobs)
        found = None if self._runtime.config.estimates.source == "limit" else self._known.predicted(jobs, names)
        if found is None:
            return None
        self._runtime.metrics.predicted.set(int(np.isfinite(found.expected[jobs.pending]).sum()))
        return found

    def look(self, jobs: JobTable) -> int:
        """Read what the waiting ones of these are called, where the site asks for that; RPCs that it took."""
        names = self._names
        return 0 if names is None else names.look(jobs)

    def ended(self) -> EndedJobs | None:
        """How predictions have turned out; None while nothing is known of that."""
        return None if self._runtime.config.estimates.source == "limit" else self._known.ended()

    def last_of_users(self) -> dict[str, list[tuple[float, float]]]:
        """See `RunTimeHistory`; from any thread."""
        return {} if self._runtime.config.estimates.source == "limit" else self._known.last_of_users()

    def told(self) -> Told:
        """What accounting says of single jobs."""
        return self._known.told()

    # --- the other side

    def load(self) -> None:
        """Take what an earlier run left in the state directory, if it is there and good."""
        try:
            self._take(saved(self._runtime.config.estimates, self._runtime.config.state.directory))
        except RltunedError as error:
            self._runtime.log.warning("history.unreadable", sentence="It is read anew.", reason=str(error))
        self._open_names()  # with a new key the file is gone

    def start(self) -> None:
        """Load, then read and refresh in a thread until `stop`."""
        self.load()
        # A daemon thread: a command that hangs must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No further command is started. What is under way is not waited for: it ends by itself or with the service."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.refresh()
            except Exception:  # as for a cycle: it is reported, and the next one comes
                self._runtime.metrics.history_errors.inc()
                self._runtime.log.exception("history.defect", sentence=DEFECT)
            self._stop.wait(self._runtime.config.estimates.refresh)

    def refresh(self) -> None:
        """Read the jobs that have ended since the last time; keep what was read, also when it ends in an error."""
        settings = self._runtime.config.estimates
        self._open_names()
        if settings.source == "limit":
            return
        now, names = self._runtime.clock.time(), self._names
        before = self._known
        oldest = now - settings.days * _DAY
        # Where the clock was set back, what is new cannot be told from what is known; nor with other names.
        alike = before.history.named == (names is not None) and (names is None or not names.fresh)
        made = before.copy() if alike and before.until <= now else Known(RunTimeHistory(named=names is not None))
        anew = made.until < oldest
        first = start = max(oldest, made.until - OVERLAP)
        count, trouble, left_out = 0, "", ""
        while start < now and not self._stop.is_set() and not trouble:
            end = min(start + SLICE, now)
            try:
                past = self._reader.ended(start, end)
                count += made.learn(past.jobs if names is None else names.called(past.jobs, start, end), end)
                made.cancelled(past.cancelled)
                if past.left_out:
                    left_out = f"{len(past.left_out)} rows are left out, the first of them: {past.left_out[0]}"
            except SlurmParseError as error:
                # It would be the same next time: the rest is worth more than these hours.
                made.learn([], end)
                left_out = f"{SLICE / 3600:g} hours are left out: {error}"
            except SlurmError as error:
                trouble = str(error)
            start = end
        if made.until:  # else nothing was answered
            self._take(made)
        if names is not None:
            names.fresh &= not made.until
            if names.trouble:
                self._trouble(*_NO_NAMES, reason=names.trouble)
            names.trouble = ""
        if left_out:
            sentence = "Run times are predicted from the other finished jobs."
            self._trouble("history.incomplete", sentence=sentence, reason=left_out)
        if trouble:
            self._trouble(
                "history.unavailable",
                sentence="Run times are predicted from what is known so far, else from the time limits.",
                reason=trouble,
                remedy='if this cluster has no accounting: estimates.source = "limit"',
            )
            return
        if count and (anew or "history.unavailable" in self._said):
            self._runtime.log.info(
                "history.read",
                sentence=f"{count} finished jobs of the last {(now - first) / _DAY:.3g} days; run times are predicted "
                "from them.",
            )
        self._said.discard("history.unavailable")
        if count:
            self._save(made)

    def _open_names(self) -> None:
        config = self._runtime.config
        if config.estimates.source == "limit" or config.estimates.names == "off":
            self._names = None
            return
        from rltuned.controller.learnt.names import opened  # noqa: PLC0415 - most sites ask for no names

        try:
            self._names = opened(self._names, self._reader, config, self._runtime.clock.time(), make=self._make_key)
            if self._names is not None and self._names.fresh:
                # A later daemon could not tell that its hashes are of no key that there is.
                (config.state.directory / FILE_NAME).unlink(missing_ok=True)
        except (OSError, RltunedError) as error:
            self._trouble(*_NO_NAMES, reason=str(error))

    def _take(self, made: "Known") -> None:
        self._known = made
        self._runtime.metrics.history_until.set(made.until if len(made.history) else 0.0)

    def _trouble(self, event: str, sentence: str, **values: str) -> None:
        self._runtime.metrics.history_errors.inc()
        if event not in self._said:
            self._runtime.log.warning(event, sentence=sentence, **values)
        self._said.add(event)

    def _save(self, made: "Known") -> None:
        try:
            write(self._runtime.config.state.directory / FILE_NAME, made.kept(), durable=False)
        except RltunedError as error:
            self._runtime.log.warning("history.not_written", detail=str(error))


class Known:
    """A history and how far it reaches."""

    def __init__(self, history: RunTimeHistory | None = None, until: float = 0.0) -> None:
        self.history = history if history is not None else RunTimeHistory()
        self.until = until  # epoch seconds: ends before this are known
        self.last_ended: deque[tuple[float, float, float]] = deque(maxlen=MOST_ENDED)
        """The last jobs, as the fields of `decide.expect.predictions.EndedJobs`: what was predicted of them before
        their ends were known, their limits, what they took."""
        self._took: dict[int, tuple[float, float]] = {}
        """Start and run time by id of the last jobs that ended. Not kept on disk: a loan that nothing is known of is
        settled by what the readings showed."""
        self._cancelled: dict[int, None] = {}
        """The last jobs that were cancelled before they ran."""
        self._recent: dict[tuple[int, float], None] = {}
        """Job and end of what ended within the overlap, so that nothing counts twice."""

    def copy(self) -> "Known":
        """An independent one that knows the same."""
        other = Known(self.history.copy(), self.until)
        other._recent, other.last_ended = self._recent.copy(), self.last_ended.copy()
        other._took, other._cancelled = self._took.copy(), self._cancelled.copy()
        return other

    def cancelled(self, jobs: Iterable[int]) -> None:
        """Take in jobs that were cancelled before they ran."""
        self._cancelled |= dict.fromkeys(jobs)
        for job in list(self._cancelled)[:-MOST_TOLD]:
            del self._cancelled[job]

    def told(self) -> Told:
        """What is known of single jobs."""
        return Told(self._took.get, self._cancelled.keys())

    def last_of_users(self) -> dict[str, list[tuple[float, float]]]:
        """See `RunTimeHistory`."""
        return self.history.last_of_users()

    def learn(self, jobs: list[EndedJob], until: float) -> int:
        """Take in jobs in order of their ends. Returns how many were new."""
        new = {(job.job_id, job.end): job for job in jobs if (job.job_id, job.end) not in self._recent}
        kinds = [
            JobKind(job.user, job.account, job.partition, job.gpus, job.time_limit, job.cpus, job.name)
            for job in new.values()
        ]
        last = list(zip(kinds, new.values(), strict=True))[-MOST_ENDED:]
        predicted = self.history.run_times([kind for kind, _ in last]).expected.tolist()
        for (_, job), expected in zip(last, predicted, strict=True):
            limit = math.inf if math.isnan(job.time_limit) else job.time_limit
            estimate = limit if math.isnan(expected) else expected
            if math.isfinite(estimate):
                self.last_ended.append((estimate, limit, job.run_time))
        for kind, (mark, job) in zip(kinds, new.items(), strict=True):
            self._recent[mark] = None
            self.history.ended(kind, job.run_time, job.end)
        # What is read again after a restart is not new, but may be what an open loan waits for.
        for job in jobs:
            self._took.pop(job.job_id, None)
            self._took[job.job_id] = job.end - job.run_time, job.run_time
        for forgotten in list(self._took)[:-MOST_TOLD]:
            del self._took[forgotten]
        self.history.renew()
        self.until = max(self.until, until)
        self._recent = {mark: None for mark in self._recent if mark[1] >= self.until - OVERLAP}
        return len(new)

    def predicted(self, jobs: JobTable, names: Ints | None = None) -> RunTimePredictions | None:
        """Run times of (N,) jobs, of these `names`; None while there is nothing to predict from."""
        return predict_table(self.history, jobs, names) if len(self.history) else None

    def ended(self) -> EndedJobs | None:
        """The last jobs that ended, with what was predicted of them; None where there are none."""
        return EndedJobs(*np.array(self.last_ended).T) if self.last_ended else None

    def kept(self) -> "_File":
        """For the disk."""
        ended = ((known, limit if math.isfinite(limit) else None, took) for known, limit, took in self.last_ended)
        return _File(VERSION, self.until, tuple(self._recent), self.history.to_json(), tuple(ended))

    @classmethod
    def of(cls, file: "_File") -> Self:
        """What was `kept`. WorkloadError: the history in it is none."""
        known = cls(RunTimeHistory.from_json(file.history), file.until)
        known._recent = dict.fromkeys(file.recent)
        known.last_ended.extend((said, math.inf if limit is None else limit, took) for said, limit, took in file.ended)
        return known


@dataclass(frozen=True)
class _File:
    """The fields of `Known`."""

    version: Literal[3]
    until: float
    recent: tuple[tuple[int, float], ...]
    history: Any
    ended: tuple[tuple[float, float | None, float], ...]


def load(directory: Path) -> Known | None:
    """What a daemon left in its state directory; None where there is nothing. RltunedError: it cannot be used."""
    path = directory / FILE_NAME
    found = read(_File, path, "a history", MAX_BYTES)
    try:
        return None if found is None else Known.of(found)
    except (ValueError, OverflowError, WorkloadError) as error:
        raise RltunedError(f"{path}: cannot be used: {error}") from error


def saved(settings: EstimatesSection, directory: Path) -> Known:
    """What the daemon left on disk; nothing where it is not wanted. Raises as `load`."""
    return Known() if settings.source == "limit" else load(directory) or Known()

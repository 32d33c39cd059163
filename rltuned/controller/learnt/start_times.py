"""When jobs start: what the daemon learns for its forecasts, and makes of them (docs/start-times.md).

It sees who submits what, and when the jobs start whose forecasts it has kept. Both are bounded, and kept in the state
directory from one run to the next. A forecast that cannot be had costs nothing but itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from rltuned.controller.health.runtime import Runtime
from rltuned.controller.tell.logs import DEFECT
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import read, write
from rltuned.core.tables import Bools, Category, Floats, Ints, Rows, Snapshot, columns_at
from rltuned.decide.decision import LimitRecord, ProbeRecord, StartRecord
from rltuned.decide.expect.predictions import EndedJobs
from rltuned.decide.plan import Plan
from rltuned.decide.rank.protocol import Policy
from rltuned.simulate.forecast.start_forecast import (
    FAR,
    NOTHING_KNOWN,
    Interval,
    Scores,
    ShorterLimits,
    StartForecast,
    StartRequest,
    calibrated,
    in_logs,
    known_at,
    probes_of,
    sampled,
    start_request,
)
from rltuned.simulate.forecast.submissions import Submissions
from rltuned.slurm import not_simulated

FILE_NAME: Final = "start-times.json"
VERSION: Final = 1
MAX_BYTES: Final = 16 * 1024 * 1024  # a full file takes about 1.5 MB
MOST_SUBMISSIONS: Final = 5000
MOST_FORECASTS: Final = 2000  # that are kept to see how they turn out
A_CYCLE: Final = 3  # forecasts of a cycle that are kept
OLDEST: Final = 28 * 86_400.0  # seconds after which a submission is forgotten
SAVED_EVERY: Final = 600.0  # seconds
_TEXTS: Final = ("user", "partition", "gpu_type")
_INTEGERS: Final = {"job_id": np.int64} | dict.fromkeys(("nodes", "gpus", "gpus_per_node", "cpus"), np.int32)
_ORDER: Final = (
    *("job_id", "submit_time", *_TEXTS, "nodes", "gpus", "gpus_per_node", "cpus", "mem"),
    *("time_limit", "expected", "start", "run_time"),
)
"""Columns of `SeenJobs` in the file."""
_May = float | None
_Count = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # what a column holds
_Row = tuple[int, float, str, str, str, _Count, _Count, _Count, _Count, float, _May, float, _May, _May]


@dataclass(frozen=True)
class SeenJobs(Submissions):
    """The jobs that the daemon has seen, in the order of their submission and then of their ids."""

    start: Floats
    """Epoch seconds; NaN: it waits, or was never seen running."""

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> Self:
        """What `rows` gave."""
        made: dict[str, Any] = {}
        for name, column in zip(_ORDER, zip(*rows, strict=True) if rows else [()] * len(_ORDER), strict=True):
            made[name] = Category.of(column) if name in _TEXTS else np.array(column, _INTEGERS.get(name, np.float64))
        return cls(**made | {"time_limit": np.nan_to_num(made["time_limit"], nan=np.inf)})

    def rows(self) -> list[_Row]:
        """For JSON, which has no NaN and no infinity."""
        columns = ((name, getattr(self, name)) for name in _ORDER)
        values = [column.texts() if name in _TEXTS else map(_finite, column.tolist()) for name, column in columns]
        return list(zip(*values, strict=True))

    def submissions(self) -> Submissions | None:
        """Without `start`, names in the order of their first job; None where there are none."""
        found = {column.name: getattr(self, column.name) for column in fields(Submissions)}
        names = {name: Category.of(found[name].texts()) for name in _TEXTS}
        return Submissions(**found | names) if len(self) else None

    def take(self, rows: Rows | Bools) -> Self:
        """These jobs."""
        return replace(self, **columns_at(self, rows))


class KeptForecast(NamedTuple):
    """A forecast, and what came of it."""

    job_id: int
    submit_time: float
    made: float  # epoch seconds
    low: float  # seconds from then, like the others; not calibrated; at most `FAR`
    middle: float
    high: float
    started: float | None  # epoch seconds; None: it waits
    inside: bool | None  # whether it started within the interval that was published
    first: float  # of that interval: epoch seconds
    last: float | None


@dataclass(frozen=True)
class _File:
    version: Literal[1]
    submitted: Annotated[list[_Row], Field(max_length=MOST_SUBMISSIONS)]
    kept: Annotated[list[KeptForecast], Field(max_length=MOST_FORECASTS)]


class StartTimes:
    """Makes the forecast of a cycle. For the thread of the cycle only."""

    def __init__(
        self,
        forecast: Callable[[StartRequest], StartForecast | None],
        ended: Callable[[], EndedJobs | None],
        runtime: Runtime,
    ) -> None:
        """`forecast`: asks the worker. `ended`: jobs that have ended, as the plan knows them."""
        self._forecast, self._ended, self._clock, self._runtime = forecast, ended, runtime.clock, runtime
        self._path = runtime.config.state.directory / FILE_NAME
        self.seen = SeenJobs.of([])
        self._kept: list[KeptForecast] = []
        self._probes: dict[Any, ProbeRecord] = {}
        self._next_probe = 0
        self._saved = runtime.clock.monotonic()
        self._silent = False

    def look(self, plan: Plan, policy: Policy, settings: Sequence[str], *, moves: bool) -> StartRecord | None:
        """What is expected of the pending jobs; None: nothing. Never raises. `settings`: of slurm.conf that are not
        simulated. `moves`: the plan is written to Slurm.
        """
        try:
            made = self._look(plan, policy, settings, moves=moves)
        except Exception:  # as for a cycle: it is reported, and the next one comes
            self._runtime.log.exception("forecast.defect", sentence=DEFECT)
            return None
        if self._clock.monotonic() - self._saved >= SAVED_EVERY:
            self.save()
        return made

    def _look(self, plan: Plan, policy: Policy, settings: Sequence[str], *, moves: bool) -> StartRecord | None:
        snapshot = plan.snapshot
        every = probes_of(snapshot)
        turn = self._next_probe % max(len(every), 1)
        request = start_request(plan, policy, self._ended(), moves=moves, probes=(*every[turn:], *every[:turn]))
        self._see(snapshot, request.run_times)
        self._resolve(snapshot)
        known = self._scores(snapshot.time)
        found = self._forecast(replace(request, submissions=self.seen.submissions()))
        if found is None:
            return None
        rows = request.rows[: len(found)]
        ids = snapshot.jobs.job_id[rows]
        interval = calibrated(found.waits, known)
        self._keep(snapshot, ids, found.waits, interval)
        probed = len(found.probes)
        self._next_probe = (turn + probed) % max(len(every), 1)
        told = calibrated(found.probes, known) if probed else Interval(np.zeros(0), np.zeros(0), np.zeros(0))
        for at, probe in enumerate(request.probes[:probed]):
            if not np.isnan(found.probes[at]).any():
                low, middle, high = (_epoch(snapshot.time, column[at]) for column in told)
                self._probes[probe] = ProbeRecord(**vars(probe), time=snapshot.time, low=low, middle=middle, high=high)
        self._probes = {probe: self._probes[probe] for probe in every if probe in self._probes}
        over = [kept.inside for kept in self._kept if kept.inside is not None]
        lows, middles, highs = (tuple(_epoch(snapshot.time, value) for value in column) for column in interval)
        return StartRecord(
            id=tuple(ids.tolist()),
            low=lows,
            middle=middles,
            high=highs,
            scenarios=found.scenarios,
            outcomes=int((~known.open).sum()),
            coverage=sum(over) / len(over) if over else None,
            probes=tuple(self._probes.values()),
            not_simulated=not_simulated.sentence(settings, snapshot.partitions, snapshot.nodes),
            limit=tuple(map(_finite, snapshot.jobs.time_limit[rows].tolist())),
            limits=found.shorter.limits,
            shorter=_shorter(snapshot.time, ids, interval, found.shorter, calibrated(found.shorter.waits, known)),
        )

    # --- what is learnt

    def _see(self, snapshot: Snapshot, run_times: Floats) -> None:
        """Note who has come, and how long those ran that are gone."""
        jobs, now, seen = snapshot.jobs, snapshot.time, self.seen
        # Of a job that is not there, all is NaN.
        submitted = np.append(np.where(np.isfinite(jobs.submit_time), jobs.submit_time, now), np.nan)
        started = np.append(np.where(np.isfinite(jobs.start_time), jobs.start_time, np.nan), np.nan)
        rows = np.concatenate([jobs.running, jobs.pending])
        here = dict(zip(jobs.job_id[rows].tolist(), rows.tolist(), strict=True))
        at = np.array([here.get(job, -1) for job in seen.job_id.tolist()], dtype=np.intp)
        gone, same = at < 0, submitted[at] == seen.submit_time
        ended = gone & np.isnan(seen.run_time)
        seen = replace(
            seen,
            start=np.where(same, started[at], seen.start),
            run_time=np.where(ended, np.maximum(now - seen.start, 1.0), seen.run_time),
        )
        # A job that was cancelled while it waited never took anything.
        seen = seen.take((same | (gone & ~np.isnan(seen.start))) & (seen.submit_time >= now - OLDEST))
        new = rows[~np.isin(jobs.job_id[rows], seen.job_id) & (submitted[rows] >= now - OLDEST)]
        new = new[np.argsort(-submitted[new], kind="stable")]
        # Those for which there is room, or that came after the oldest one that is known.
        oldest = seen.submit_time.min(initial=np.inf)
        new = new[(np.arange(len(new)) < MOST_SUBMISSIONS - len(seen)) | (submitted[new] > oldest)]
        limit = jobs.time_limit[new]
        seen = seen.and_then(
            SeenJobs(
                **{name: getattr(jobs, name)[new] for name in (*_TEXTS, *_INTEGERS)},
                submit_time=submitted[new],
                mem=np.nan_to_num(jobs.mem[new], nan=0.0),
                time_limit=np.where(np.isfinite(limit), limit, np.inf),
                expected=run_times[new],
                run_time=np.full(len(new), np.nan),
                start=started[new],
            )
        )
        self.seen = seen.take(np.lexsort((seen.job_id, seen.submit_time))[-MOST_SUBMISSIONS:])

    def _resolve(self, snapshot: Snapshot) -> None:
        """Note which jobs have started, an array with its next task. Of a job that was never seen running, nothing is
        learnt.
        """
        jobs, left = snapshot.jobs, []
        tasks: dict[int, list[float]] = {}
        for task, array in snapshot.array_of.items():
            if (row := jobs.row_of.get(task)) is not None:
                tasks.setdefault(array, []).append(float(jobs.start_time[row]))
        for kept in self._kept:
            if kept.started is not None:
                left.append(kept)
                continue
            starts = [start for start in tasks.get(kept.job_id, ()) if start > kept.made]
            row = jobs.row_of.get(kept.job_id)
            if row is not None and float(jobs.submit_time[row]) == kept.submit_time:
                starts.append(float(jobs.start_time[row]))
            if not starts:
                continue
            start = float(np.fmin.reduce(starts))
            if math.isfinite(start):
                inside = kept.first <= start <= (math.inf if kept.last is None else kept.last)
                left.append(kept._replace(started=start, inside=inside))
            else:
                left.append(kept)
        self._kept = left

    def _scores(self, now: float) -> Scores:
        if not self._kept:
            return NOTHING_KNOWN
        waits = np.array([(one.low, one.middle, one.high) for one in self._kept])
        made = np.array([one.made for one in self._kept])
        started = np.array([math.nan if one.started is None else one.started for one in self._kept])
        return known_at(in_logs(waits)[0], waits, made, started, now)

    def _keep(self, snapshot: Snapshot, ids: Any, waits: Floats, interval: Interval) -> None:
        """Some of the forecasts, to see how they turn out."""
        jobs, now = snapshot.jobs, snapshot.time
        for at in sampled(ids, A_CYCLE, int(now)).tolist():
            low, middle, high = np.minimum(waits[at], FAR).tolist()
            first, last = float(interval.low[at]), float(interval.high[at])
            self._kept.append(
                KeptForecast(
                    job_id=int(ids[at]),
                    submit_time=float(jobs.submit_time[jobs.row_of[int(ids[at])]]),
                    made=now,
                    low=low,
                    middle=middle,
                    high=high,
                    started=None,
                    inside=None,
                    first=now + first,
                    last=_epoch(now, last),
                )
            )
        del self._kept[: max(len(self._kept) - MOST_FORECASTS, 0)]

    # --- the disk

    def load(self) -> None:
        """Take what an earlier run left, if it is there and good."""
        try:
            found = read(_File, self._path, "start times", MAX_BYTES)
            if found is not None:
                self.seen, self._kept = SeenJobs.of(found.submitted), found.kept
        except RltunedError as error:
            self._runtime.log.warning("forecast.unreadable", sentence="It is learnt anew.", reason=str(error))

    def save(self) -> None:
        """Leave what is known to the next run."""
        self._saved = self._clock.monotonic()
        try:
            write(self._path, _File(VERSION, self.seen.rows(), self._kept), durable=False)
        except (RltunedError, ValueError) as error:
            if not self._silent:
                self._runtime.log.warning("forecast.not_written", detail=str(error))
            self._silent = True


def _shorter(
    now: float, ids: Ints, own: Interval, found: ShorterLimits, told: Interval
) -> dict[int, tuple[LimitRecord, ...]]:
    """As `StartRecord.shorter`: what is `told` of the shorter limits of the jobs `ids`, with the interval of each."""
    # Each is calibrated by forecasts of about the same wait; still nobody starts later with a shorter limit.
    waits = (np.minimum(column, of[found.at]).tolist() for column, of in zip(told, own, strict=True))
    made: dict[int, tuple[LimitRecord, ...]] = {}
    for job, limit, low, middle, high in zip(ids[found.at].tolist(), found.limit.tolist(), *waits, strict=True):
        one = LimitRecord(limit, round(now + low, 1), round(now + middle, 1), _epoch(now, high))
        made[job] = (*made.get(job, ()), one)
    return made


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _epoch(now: float, wait: float) -> float | None:
    """None: infinite."""
    return round(now + float(wait), 1) if math.isfinite(wait) else None

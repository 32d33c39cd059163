"""When jobs start: what the daemon learns for its forecasts, and makes of them (docs/start-times.md).

It sees who submits what, and when the jobs start whose forecasts it has kept. Both are bounded, and kept in the state
directory from one run to the next. A forecast that cannot be had costs nothing but itself.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rltuned.controller.cycle.runtime import Runtime
from rltuned.core.safe_files import write_atomic
from rltuned.core.tables import Category, Floats, Snapshot
from rltuned.decide.decision import ProbeRecord, StartRecord
from rltuned.decide.expect.predictions import EndedJobs
from rltuned.decide.plan import Plan
from rltuned.decide.rank.protocol import Policy
from rltuned.simulate.forecast.arrivals import Submissions
from rltuned.simulate.forecast.start_forecast import (
    FAR,
    NOTHING_KNOWN,
    Interval,
    Scores,
    StartForecast,
    StartRequest,
    calibrated,
    in_logs,
    known_at,
    probes_of,
    sampled,
    start_request,
)
from rltuned.slurm import not_simulated

FILE_NAME: Final = "start-times.json"
VERSION: Final = 1
MAX_BYTES: Final = 16 * 1024 * 1024
"""A full file takes about 1.5 MB."""
MOST_SUBMISSIONS: Final = 5000
MOST_FORECASTS: Final = 2000
"""That are kept to see how they turn out."""
A_CYCLE: Final = 3
"""Forecasts of a cycle that are kept."""
OLDEST: Final = 28 * 86_400.0
"""Seconds after which a submission is forgotten."""
SAVED_EVERY: Final = 600.0
"""Seconds."""
_INTEGERS: Final = {"job_id": np.int64} | dict.fromkeys(("nodes", "gpus", "gpus_per_node", "cpus"), np.int32)
"""Types of columns of `Submissions` that are no floats."""


class Submitted(NamedTuple):
    """A job that the daemon has seen."""

    job_id: int
    submit_time: float
    user: str
    partition: str
    gpu_type: str
    nodes: int
    gpus: int
    gpus_per_node: int
    cpus: int
    mem: float
    time_limit: float | None
    """Seconds; None: none."""
    expected: float
    start: float | None
    """Epoch seconds; None: it waits, or was never seen running."""
    run_time: float | None
    """Seconds; None: it has not ended."""


class Kept(NamedTuple):
    """A forecast, and what came of it."""

    job_id: int
    submit_time: float
    made: float
    """Epoch seconds."""
    low: float
    """Seconds from then, like the others; not calibrated; at most `FAR`."""
    middle: float
    high: float
    started: float | None
    """Epoch seconds; None: it waits."""
    inside: bool | None
    """Whether it started within the interval that was published."""
    first: float
    """Of that interval: epoch seconds."""
    last: float | None


@dataclass(frozen=True)
class _File:
    __pydantic_config__ = ConfigDict(strict=True)

    version: Literal[1]
    submitted: Annotated[list[Submitted], Field(max_length=MOST_SUBMISSIONS)]
    kept: Annotated[list[Kept], Field(max_length=MOST_FORECASTS)]


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
        self._submitted: dict[int, Submitted] = {}
        self._kept: list[Kept] = []
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
            self._runtime.log.exception("forecast.defect", sentence="This is a defect; please report it.")
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
        found = self._forecast(replace(request, submissions=self._submissions()))
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
        )

    # --- what is learnt

    def _see(self, snapshot: Snapshot, run_times: Floats) -> None:
        """Note who has come, and how long those ran that are gone."""
        jobs, now = snapshot.jobs, snapshot.time
        rows = np.concatenate([jobs.running, jobs.pending])
        here = set(jobs.job_id[rows].tolist())
        new: list[int] = []
        for row, job in zip(rows.tolist(), jobs.job_id[rows].tolist(), strict=True):
            before = self._submitted.get(job)
            if before is None or before.submit_time != _submitted_at(snapshot, row):
                self._submitted.pop(job, None)
                new.append(row)
            elif before.start != (started := _finite(jobs.start_time[row])):
                self._submitted[job] = before._replace(start=started)
        for job, known in self._submitted.items():
            if known.run_time is None and known.start is not None and job not in here:
                self._submitted[job] = known._replace(run_time=max(now - known.start, 1.0))
        # A job that was cancelled while it waited never took anything.
        gone = [job for job, known in self._submitted.items() if known.start is None and job not in here]
        old = [job for job, known in self._submitted.items() if known.submit_time < now - OLDEST]
        for job in (*gone, *old):
            self._submitted.pop(job, None)
        for row in self._newest(snapshot, new):
            job = int(jobs.job_id[row])
            self._submitted[job] = Submitted(
                job_id=job,
                submit_time=_submitted_at(snapshot, row),
                user=jobs.user.value(row),
                partition=jobs.partition.value(row),
                gpu_type=jobs.gpu_type.value(row),
                nodes=int(jobs.nodes[row]),
                gpus=int(jobs.gpus[row]),
                gpus_per_node=int(jobs.gpus_per_node[row]),
                cpus=int(jobs.cpus[row]),
                mem=float(np.nan_to_num(jobs.mem[row], nan=0.0)),
                time_limit=_finite(jobs.time_limit[row]),
                expected=float(run_times[row]),
                start=_finite(jobs.start_time[row]),
                run_time=None,
            )
        if (more := len(self._submitted) - MOST_SUBMISSIONS) > 0:
            for job in sorted(self._submitted, key=lambda one: self._submitted[one].submit_time)[:more]:
                del self._submitted[job]

    def _newest(self, snapshot: Snapshot, rows: list[int]) -> list[int]:
        """Those that may be kept: for which there is room, or that came after the oldest one that is known."""
        newest = sorted(rows, key=lambda row: _submitted_at(snapshot, row), reverse=True)
        room = max(MOST_SUBMISSIONS - len(self._submitted), 0)
        if len(newest) <= room:
            return newest
        oldest = min((known.submit_time for known in self._submitted.values()), default=math.inf)
        return newest[:room] + [row for row in newest[room:] if _submitted_at(snapshot, row) > oldest]

    def _submissions(self) -> Submissions | None:
        """In the order of submission."""
        known = sorted(self._submitted.values(), key=lambda one: (one.submit_time, one.job_id))
        if not known:
            return None
        found: dict[str, Any] = {}
        for name, column in zip(Submitted._fields, zip(*known, strict=True), strict=True):
            if name in {"user", "partition", "gpu_type"}:
                found[name] = Category.of(column)
            elif name != "start":
                found[name] = np.array(column, dtype=_INTEGERS.get(name, np.float64))  # None becomes NaN
        found["time_limit"][np.isnan(found["time_limit"])] = math.inf
        return Submissions(**found)

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
                Kept(
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
            with self._path.open("rb") as file:
                found = TypeAdapter(_File).validate_json(file.read(MAX_BYTES))
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            why = str(error).splitlines()[0]
            self._runtime.log.warning(
                "forecast.unreadable", sentence="It is learnt anew.", reason=f"{self._path}: {why}"
            )
            return
        self._submitted = {one.job_id: one for one in found.submitted}
        self._kept = found.kept

    def save(self) -> None:
        """Leave what is known to the next run."""
        self._saved = self._clock.monotonic()
        value = {"version": VERSION, "submitted": list(self._submitted.values()), "kept": self._kept}
        try:
            data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
            write_atomic(self._path, data, durable=False)
        except (OSError, ValueError) as error:
            if not self._silent:
                self._runtime.log.warning("forecast.not_written", detail=f"{self._path}: {error}")
            self._silent = True


def _submitted_at(snapshot: Snapshot, row: int) -> float:
    """Epoch seconds; now where Slurm does not say."""
    submit = _finite(snapshot.jobs.submit_time[row])
    return snapshot.time if submit is None else submit


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _epoch(now: float, wait: float) -> float | None:
    """None: infinite."""
    return round(now + float(wait), 1) if math.isfinite(wait) else None

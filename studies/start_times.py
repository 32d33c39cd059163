"""How good are forecasts of start times? Measured in simulation, beside `squeue --start` (docs/start-times.md).

    python -m studies.start_times TRACE --cluster 20x8 --estimates noisy:1.5 --policy saf --json OUT.json

A trace is simulated under an order, as Slurm does it. Every `--every` seconds, forecasts are made of all pending jobs
as the daemon makes them: of what is known then, calibrated on the outcomes that earlier forecasts have had by then. At
the same moments one pass of Slurm's backfill says when it expects each job to start. The simulation then shows when
they start. Windows follow each other; what was learnt in one is known in the next.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.core.tables import Bools, Category, Floats, Rows, Snapshot
from rltuned.decide.expect.predictions import PredictionError, prediction_error
from rltuned.decide.expect.run_time_history import RunTimeHistory
from rltuned.decide.rank.heuristics import by_name
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.evaluation_settings import LEARNED
from rltuned.lab.evaluate.policies import rule_ranker
from rltuned.lab.evaluate.windows import Window
from rltuned.records.model_files import load
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.forecast.start_forecast import (
    GRAIN,
    HORIZON,
    NOTHING_KNOWN,
    StartRequest,
    calibrated,
    in_logs,
    known_at,
    sampled,
)
from rltuned.simulate.forecast.start_simulation import StartSimulation
from rltuned.simulate.forecast.submissions import Submissions
from rltuned.simulate.initial_state import initial_state
from rltuned.simulate.rankers import PlanRanker, RuleRanker, compile_kernel
from rltuned.simulate.run_times import HistoryPredictor, kinds_of
from rltuned.simulate.run_times import past as past_of
from rltuned.simulate.scenarios import SimulatedQueue, expected_scenario
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import SimulationSettings
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.simulated_estimates import LONGEST, estimate
from studies.traces import read

MOST_ENDED: Final = 500
"""Ended jobs that say how wrong predictions are, as the daemon keeps them."""
LEARN: Final = 12
"""Forecasts of a moment whose outcomes later ones are calibrated on."""
KEPT: Final = 2000
PAST: Final = 3000
"""Jobs before a window that arrivals are modelled on."""
DEPTHS: Final = (0, 20, 100, 10**9)
SIZES: Final = (0, 1, 4, 8, 10**9)
COLUMNS: Final = (
    *("window", "moment", "row", "gpus", "depth", "place", "started"),
    *("low", "middle", "high", "raw_low", "raw_middle", "raw_high", "squeue"),
)


def planned_starts(snapshot: Snapshot, rows: Rows, settings: SimulationSettings) -> Floats:
    """(n,) seconds from now at which sched/backfill expects each of `rows` (pending jobs in the order of their
    priorities) to start, as `squeue --start` shows it: one pass, by time limits, with nobody to come. NaN: it expects
    nothing. The backfill of `settings` must be Slurm's.
    """
    limits = np.where(np.isfinite(snapshot.jobs.time_limit), snapshot.jobs.time_limit, 365 * 86_400.0)
    state = initial_state(snapshot, rows, limits, settings)
    state.jobs["planned"] = np.nan
    queue = SimulatedQueue(len(rows), state, settings, [expected_scenario(state)], plan_all=True)
    started = queue.starts(0, 0.0)
    return np.where(np.isfinite(started), 0.0, queue.planned)


class Watched:
    """The forecasts of one policy on a trace, and what became of them."""

    def __init__(self, forecaster: StartSimulation, settings: SimulationSettings, *, arrivals: bool) -> None:
        self.forecaster, self.settings, self.arrivals = forecaster, settings, arrivals
        self.records: list[list[float]] = []
        self.learnt: list[tuple[float, float, float, float, float, int, int]] = []
        """ln of the median; quantiles; when it was made; window; row."""
        self.seconds: list[float] = []
        self.outcomes: dict[int, Floats] = {}
        """(N,) start of each job of a window that is over."""
        self.before = np.zeros(0), np.zeros(0)
        """What was expected of the jobs before the window, and what they took."""

    def look(self, window: int, simulation: Simulation, past: Submissions, zero: float) -> None:
        """Make forecasts of all that wait now."""
        snapshot = simulation.snapshot(epoch=zero)
        rows = snapshot.jobs.pending
        if not len(rows):
            return
        ids = snapshot.jobs.job_id
        run_times = simulation.estimates.run_time[ids - 1].copy()
        error = _error(simulation, self.before)
        run_times = np.clip(run_times * np.exp(error.bias), 1.0, snapshot.jobs.time_limit)
        submissions = _submissions(simulation, past, zero) if self.arrivals else None
        request = StartRequest(snapshot, rows, run_times, error.spread, submissions)
        begun = time.perf_counter()
        found = self.forecaster(request)
        self.seconds.append(time.perf_counter() - begun)
        if found is None:
            return
        expected = planned_starts(snapshot, rows[: len(found)], self.settings)
        middle = in_logs(found.waits)[0]
        known = self._known(window, simulation)
        interval = calibrated(found.waits, known)
        jobs = ids[found.rows] - 1
        for at, row in enumerate(jobs.tolist()):
            self.records.append(
                [window, simulation.now, row, simulation.jobs.gpus[row], len(rows), at, np.nan]
                + [float(part[at]) for part in interval]
                + found.waits[at].tolist()
                + [float(expected[at])]
            )
        for at in sampled(jobs, LEARN, int(simulation.now)):
            self.learnt.append((middle[at], *found.waits[at], simulation.now, window, int(jobs[at])))

    def _known(self, window: int, simulation: Simulation) -> Any:
        if not self.learnt:
            return NOTHING_KNOWN
        last = self.learnt[-KEPT:]
        columns = np.array([entry[:5] for entry in last])
        now, start = simulation.now, simulation.start
        # What was made in an earlier window is over.
        made = np.where([entry[5] == window for entry in last], columns[:, 4], -1e9)
        started = np.array(
            [
                (start[row] if start[row] <= now else np.nan) if of == window else self.outcomes[of][row] - at - 1e9
                for _, _, _, _, at, of, row in last
            ]
        )
        return known_at(columns[:, 0], columns[:, 1:4], made, started, now)

    def over(self, window: int, simulation: Simulation) -> None:
        """A window has ended."""
        self.outcomes[window] = simulation.start.copy()
        for record in self.records:
            if record[0] == window:
                record[6] = float(simulation.start[int(record[2])])


def _error(simulation: Simulation, before: tuple[Floats, Floats]) -> PredictionError:
    """Of the last jobs that ended, in the simulation and before it: of the short ones alone it would be too small."""
    rows = simulation.ended
    rows = rows[np.argsort(simulation.end[rows], kind="stable")]
    expected = np.concatenate((before[0], simulation.estimates.run_time[rows]))[-MOST_ENDED:]
    taken = np.concatenate((before[1], (simulation.end - simulation.start)[rows]))[-MOST_ENDED:]
    return prediction_error(expected, taken)


def ended_before(jobs: Workload, estimates: Estimates, *, history: bool) -> tuple[Floats, Floats]:
    """What was expected of the jobs before a window, and what they took."""
    taken = np.minimum(jobs.run_time, estimates.time_limit)
    if not history:
        return estimates.run_time, taken
    known, expected = RunTimeHistory(), np.empty(len(jobs))
    for row, kind in enumerate(kinds_of(jobs, estimates.time_limit)):
        expected[row] = min(known.predict(kind), LONGEST)
        known.ended(kind, float(taken[row]), float(jobs.submit_time[row] + taken[row]))
        known.renew()
    return expected, taken


def _columns(jobs: Any, limit: Floats, expected: Floats, run_time: Floats, zero: float) -> Submissions:
    rows = slice(None)
    return Submissions(
        job_id=jobs.job_id[rows],
        submit_time=jobs.submit_time + zero,
        user=jobs.user,
        partition=Category(np.full(len(jobs), -1, dtype=np.int32), ()),
        gpu_type=Category(np.full(len(jobs), -1, dtype=np.int32), ()),
        nodes=np.maximum(jobs.nodes, 1),
        gpus=jobs.gpus,
        gpus_per_node=np.where(jobs.nodes > 1, jobs.gpus // np.maximum(jobs.nodes, 1), 0).astype(np.int32),
        cpus=jobs.cpus,
        mem=jobs.mem,
        time_limit=limit,
        expected=expected,
        run_time=run_time,
    )


def _submissions(simulation: Simulation, past: Submissions, zero: float) -> Submissions:
    """The jobs before the window and those that it has submitted so far."""
    came = np.flatnonzero(simulation.jobs.submit_time <= simulation.now)
    ended = np.isin(came, simulation.ended)
    run_time = np.where(ended, simulation.end[came] - simulation.start[came], np.nan)
    now = _columns(
        simulation.jobs.take(came),
        simulation.estimates.time_limit[came],
        simulation.estimates.run_time[came],
        run_time,
        zero,
    )
    return past.and_then(now)


def watch(
    simulation: Simulation,
    ranker: Ranker,
    case: Case,
    given: argparse.Namespace,
    past: Submissions,
    zero: float,
    watched: Watched,
) -> None:
    """One window, to its end."""
    every = given.every
    # Behind the window nobody comes: what is forecast must start before that shows.
    last = float(simulation.jobs.submit_time[round(case.past + given.looked * (len(simulation.jobs) - case.past))])
    moment = every
    while moment <= last:
        simulation.run(ranker, until=moment)
        watched.look(case.window.index, simulation, past, zero)
        moment += every
    simulation.run(ranker)
    watched.over(case.window.index, simulation)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--estimates", default="noisy:1.5")
    parser.add_argument("--policy", default="saf")
    parser.add_argument("--first", type=float, default=0.7, help="where in the trace it begins, as a share of its jobs")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--every", type=float, default=1800.0)
    parser.add_argument("--looked", type=float, default=0.35, help="share of a window's jobs while forecasts are made")
    parser.add_argument("--scenarios", type=int, default=16)
    parser.add_argument("--no-arrivals", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    compile_kernel()
    jobs, shape = read(str(given.trace)), parse_shape(given.cluster)
    estimates = estimate(jobs, given.estimates, given.seed)
    first = round(given.first * len(jobs))
    step = (len(jobs) - first - given.window) // max(given.windows - 1, 1)
    windows = [Window(n, first + n * min(step, 10 * given.window), given.window) for n in range(given.windows)]
    history = given.estimates == "history"
    settings = SimulationSettings()
    forecaster = StartSimulation(scenarios=given.scenarios, settings=settings)
    watched = Watched(forecaster, settings, arrivals=not given.no_arrivals)
    for window, case in zip(
        windows, cases(jobs, estimates, shape, windows, min(given.window // 3, 1024), history=history), strict=True
    ):
        zero = float(jobs.submit_time[window.start])
        before = slice(max(window.start - PAST, 0), max(window.start - case.past, 0))
        known = jobs.take(before)
        part = Estimates(estimates.time_limit[before], estimates.run_time[before])
        watched.before = ended_before(known, part, history=history)
        past = _columns(known, part.time_limit, watched.before[0], watched.before[1], 0.0)
        simulation, ranker = start_of(case, given.policy, settings, history=history)
        watch(simulation, ranker, case, given, past, zero, watched)
        sys.stdout.write(f"window {window.index}: {len(watched.records)} forecasts, ")
        sys.stdout.write(f"{np.mean(watched.seconds or [0]):.2f} s each\n")
        found = summary(np.array(watched.records))
        sys.stdout.write(json.dumps(found["all"]) + "\n")
        sys.stdout.flush()
        if given.json:
            given.json.write_text(json.dumps({"command": sys.argv[1:], **found, "seconds": watched.seconds}, indent=1))
            np.save(given.json.with_suffix(".npy"), np.array(watched.records))
    return 0


def start_of(case: Case, policy: str, settings: SimulationSettings, *, history: bool) -> tuple[Simulation, Ranker]:
    """The simulation of a window after the jobs before it, and its order."""
    estimates = case.own_estimates()
    predictor = None
    if history:
        zero = float(case.jobs.submit_time[0])
        predictor = HistoryPredictor(case.jobs, estimates.time_limit, past_of(case.before, case.before_estimates, zero))
    simulation = Simulation(case.shape, case.submitted, estimates, settings, predictor, case.asked)
    if policy in LEARNED:
        ranker: Ranker = PlanRanker(load(DEFAULT_MODEL), Config())
    else:
        ranker = rule_ranker(policy)
    if case.past:
        simulation.run(RuleRanker(by_name("fifo")), until=float(np.nextafter(0.0, -1.0)))
        waiting = simulation.pending
        keys = ranker.fixed(simulation)
        simulation.set_keys(waiting, keys[waiting] if keys is not None else ranker.keys(simulation, waiting))
    return simulation, ranker


def summary(records: Floats) -> dict[str, Any]:
    """Coverage and errors of all forecasts, by queue depth and by size."""
    if not len(records):
        return {"all": {}}
    column = {name: records[:, at] for at, name in enumerate(COLUMNS)}
    out: dict[str, Any] = {"all": _measures(column, np.ones(len(records), dtype=np.bool_))}
    for name, bounds in (("depth", DEPTHS), ("gpus", SIZES)):
        out[name] = {
            f"{low}-{high}": _measures(column, (column[name] >= low) & (column[name] < high))
            for low, high in pairwise(bounds)
        }
    return out


def _measures(column: dict[str, Floats], part: Bools) -> dict[str, float]:
    wait = (column["started"] - column["moment"])[part]
    low, middle, high, raw = (column[name][part] for name in ("low", "middle", "high", "raw_middle"))
    squeue = column["squeue"][part]
    both = np.isfinite(squeue) & np.isfinite(wait)
    if not len(wait) or not both.any():
        return {"forecasts": len(wait)}
    error, theirs = np.abs(np.minimum(middle, HORIZON) - wait), np.abs(squeue - wait)
    raw_in = (wait >= column["raw_low"][part]) & (wait <= column["raw_high"][part])
    return {
        "forecasts": len(wait),
        "coverage": float(((wait >= low) & (wait <= high)).mean()),
        "below": float((wait < low).mean()),
        "above": float((wait > high).mean()),
        "raw_coverage": float(raw_in.mean()),
        "median_wait_h": float(np.median(wait)) / 3600,
        "median_error_h": float(np.median(error)) / 3600,
        "squeue_says": float(both.mean()),
        "median_error_both_h": float(np.median(error[both])) / 3600,
        "median_error_raw_both_h": float(np.median(np.abs(np.minimum(raw, HORIZON) - wait)[both])) / 3600,
        "median_error_squeue_h": float(np.median(theirs[both])) / 3600,
        "mean_ln_error_both": float(np.mean(_ln(middle, wait)[both])),
        "mean_ln_error_squeue": float(np.mean(_ln(squeue, wait)[both])),
        "median_width": float(
            np.median(np.log((np.minimum(high, HORIZON) + GRAIN) / (np.minimum(low, HORIZON) + GRAIN)))
        ),
    }


def _ln_of(wait: Floats) -> Floats:
    """(n,) infinite waits as long as the horizon."""
    found: Floats = np.log(np.minimum(wait, HORIZON) + GRAIN)
    return found


def _ln(said: Floats, wait: Floats) -> Floats:
    """(n,) |ln| of what was said over what came."""
    with np.errstate(invalid="ignore"):
        return np.abs(np.log((np.minimum(said, 1e7) + GRAIN) / (wait + GRAIN)))


if __name__ == "__main__":
    sys.exit(main())

"""Rankers of a simulated queue: a plain rule, or the plan that the daemon serves."""

from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied, Field
from rltuned.core.config import Config
from rltuned.core.tables import Floats, Ints, Rows
from rltuned.core.workers.pool import one_at_a_time
from rltuned.decide.expect.predictions import RunTimePredictions, RunTimes
from rltuned.decide.loans import Book, Told
from rltuned.decide.managed import ranks_of
from rltuned.decide.plan import Plan, plan
from rltuned.decide.rank.heuristics import Rule, by_name
from rltuned.decide.rank.protocol import Policy
from rltuned.simulate.engine import Simulation
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Estimates, Source, workload

_FIRST_MOMENT: Final = 1e-6  # seconds: at 0 a book of loans has seen nothing yet


class RuleRanker:
    """A plain rule on r, the limit, the GPUs and the wait of each pending job; no features, no guards."""

    at_once = False

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    @property
    def ages(self) -> bool:
        """As the rule says."""
        return self.rule.ages

    def fixed(self, simulation: Simulation) -> Floats | None:
        """The rule's keys of all jobs, when they do not depend on the moment."""
        return None if self.rule.ages else self.rule.key(simulation.view(np.arange(len(simulation.jobs))))

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """The rule's keys now."""
        return self.rule.key(simulation.view(rows))


class PlanRanker:
    """What the daemon would do: `decide.plan()` with features, window and guards; with placement on, steering, too."""

    ages = True
    at_once = False

    def __init__(
        self,
        policy: Policy,
        config: Config,
        slurm: Callable[[Simulation, Rows], Ints] | None = None,
    ) -> None:
        """`slurm`: priorities that Slurm alone gives pending jobs; None: the earlier submission has the higher one."""
        self.policy, self.config, self._slurm = policy, config, slurm
        self.made: Plan | None = None
        """The last plan."""
        self._book = Book()
        self._factors: dict[int, int] = {}
        """By row, what raises the jobs that wait."""

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        """None: there is a new plan at each refresh."""
        return None

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """Place of each job in the planned queue. Jobs that the plan leaves alone follow behind, in Slurm's order."""
        priority = None
        if self._slurm is not None:
            priority = np.zeros(len(simulation.jobs), dtype=np.int64)
            priority[rows] = self._slurm(simulation, rows)
        waiting = set(rows.tolist())
        self._factors = {row: factor for row, factor in self._factors.items() if factor and row in waiting}
        factors = np.zeros(len(simulation.jobs), dtype=np.int64)
        factors[list(self._factors)] = list(self._factors.values())
        snapshot = simulation.snapshot(priority=priority, site_factor=factors)
        applied = AppliedChanges(
            {row + 1: Applied(row + 1, int(simulation.submitted[row]), factor) for row, factor in self._factors.items()}
        )
        self._book = self._book.advanced(snapshot, max(snapshot.time, _FIRST_MOMENT), Told(_accounting(simulation)))
        self.made = result = plan(snapshot, self.policy, self.config, applied, _run_times(simulation, rows), self._book)
        self._book = result.book
        keys = np.full(len(snapshot.jobs), np.inf)
        alone = np.arange(len(rows)) if priority is None else ranks_of(np.lexsort((rows, -priority[rows])))
        running = len(snapshot.jobs) - len(rows)
        keys[running:] = len(rows) + alone
        keys[result.rows[result.queue]] = np.arange(len(result.queue))
        for change in result.changes:
            if change.field is Field.OVERSUBSCRIBE:
                simulation.set_isolated(change.job_id - 1, isolated=True)
            else:
                self._factors[change.job_id - 1] = int(change.after)
        return keys[running:]


def _accounting(simulation: Simulation) -> Callable[[int], tuple[float, float] | None]:
    """What accounting says of a job that has ended."""
    start, end, now = simulation.start, simulation.end, simulation.now

    def took(job: int) -> tuple[float, float] | None:
        began, over = float(start[job - 1]), float(end[job - 1])
        return (began, over - began) if over <= now else None

    return took


def _run_times(simulation: Simulation, rows: Rows) -> RunTimes:
    """As the daemon has them of the snapshot's jobs: the running ones, then the pending ones in `rows`."""
    found, known = simulation.predicted(rows), simulation.estimates.run_time
    expected = np.concatenate((known[simulation.running], known[rows]))
    if found is None:
        return RunTimes(expected)
    unknown = np.full(len(expected) - len(rows), np.nan)
    columns = (np.concatenate((unknown, column)) for column in found[1:])
    return RunTimes(expected, RunTimePredictions(expected, *columns))


@cache
def compile_kernel() -> None:
    """Load the compiled simulator, or compile it where that has never been done (about 25 s): one worker process does
    so for all. Call it before anything is timed.
    """
    jobs = workload(Source("compile"), [0.0, 1.0, 2.0], [100.0, 50.0, 10.0], [1, 2, 1])
    estimates = Estimates(jobs.run_time, jobs.run_time.copy())
    with one_at_a_time():
        Simulation(parse_shape("1x2"), jobs, estimates).run(RuleRanker(by_name("saf")))

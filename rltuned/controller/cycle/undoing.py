"""What Slurm's backfill undoes of our writes (docs/operations.md, When backfill undoes a write)."""

from collections.abc import Collection, Mapping, Sequence

from rltuned.controller.cycle.execution import Execution
from rltuned.controller.give_back.by_daemon import MOST_NAMED
from rltuned.controller.health.rpc_budget import LEAST_BURST, STATUS_RPCS, Budget
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.write.apply import Result
from rltuned.controller.write.journal import Journal
from rltuned.controller.write.reconcile import undone
from rltuned.core.changes import TAKEN, Change, Field, Outcome
from rltuned.decide.plan import Plan
from rltuned.slurm.port import SlurmReader


class Undoing:
    """Which writes are undone, and which were sent so lately that they may be."""

    def __init__(self, runtime: Runtime, journal: Journal) -> None:
        self._runtime, self._journal = runtime, journal
        self.found: Mapping[int, int] = {}  # as `reconcile.undone`, at the last reading
        self.newly = 0
        self._counted: set[int] = set()  # jobs whose last write was undone, and counted as that
        self._sent: tuple[Plan, Sequence[Change]] | None = None
        """The last cycle's plan and the site factors of it that were written."""
        self._until = 0.0  # backfill may undo them until then, monotonic seconds

    def look(self, found: Mapping[int, int]) -> None:
        """Take in what a reading shows."""
        # It stays undone until it is written again: what does not fit into a cycle's budget is seen again and again.
        self.newly, self._counted = len(found.keys() - self._counted), set(found)
        self._runtime.metrics.changes.labels(Field.SITE_FACTOR.value, Outcome.UNDONE.value).inc(self.newly)
        if found and not self.found:
            self._runtime.log.warning(
                "writes.undone",
                sentence=f"squeue shows {len(found)} jobs with an older priority, which backfill has put back; they are"
                " written again.",
                jobs=sorted(found)[:MOST_NAMED],
                remedy="where it happens often: `rltuned doctor`",
            )
        self.found = found

    def wrote(self, results: Sequence[Result], restored: Collection[int] = ()) -> None:
        """Note whose last write was counted as undone."""
        of = {item.change.job_id: item.outcome for item in results if item.change.field is Field.SITE_FACTOR}
        self._counted |= {job for job, outcome in of.items() if outcome is Outcome.UNDONE}
        self._counted -= {job for job, outcome in of.items() if outcome is Outcome.APPLIED}
        self._counted.difference_update(restored)

    def watch(self, made: Plan, results: Sequence[Result], seconds: float) -> None:
        """Look again at what was written of this plan, for so long."""
        taken = (change for change, outcome, _ in results if outcome in TAKEN)
        sent = [change for change in taken if change.field is Field.SITE_FACTOR]
        self._sent = (made, sent) if sent else None
        self._until = self._runtime.clock.monotonic() + seconds

    def forget(self) -> None:
        """What was written last may be wanted by nobody."""
        self._sent = None

    @property
    def watches(self) -> bool:
        """Whether there is something to look at again."""
        return self._sent is not None and self._runtime.clock.monotonic() <= self._until

    def again(self, reader: SlurmReader, budget: Budget, execution: Execution) -> None:
        """Read the jobs of the last writes, and write again what is undone. Raises SlurmError, JournalError."""
        clock = self._runtime.clock
        if self._sent is None or not budget.allowance(1, clock.monotonic(), keep=LEAST_BURST):
            return
        made, sent = self._sent
        jobs = {change.job_id for change in sent}
        seen = reader.status(sorted(jobs))
        budget.spend(STATUS_RPCS, clock.monotonic())
        # Of all others nothing new is known.
        others = {job: older for job, older in self.found.items() if job not in jobs}
        self.look({**others, **undone(self._journal, seen)})
        again = [change for change in sent if change.job_id in self.found and self._claims(change)]
        if again:
            self.wrote(execution.again(made, again))

    def _claims(self, change: Change) -> bool:
        """Whether this is the last that was written to the job: it may have been given back since."""
        entry = self._journal.entries.get(change.job_id)
        return entry is not None and entry.applied.site_factor == change.after

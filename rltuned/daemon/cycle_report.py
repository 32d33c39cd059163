"""What one cycle did, as a value and as the sentence that the log says."""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rltuned.cluster.changes import Outcome
from rltuned.config import Stage
from rltuned.daemon.apply import Result
from rltuned.daemon.permission import WRITING
from rltuned.decide.decision import DecisionRecord
from rltuned.decide.entry import Seen


class CycleOutcome(enum.StrEnum):
    """How a cycle ended."""

    DONE = "done"
    SHED = "shed"
    """slurmctld is under load: planned, but wrote nothing."""
    WAITING = "waiting"
    """The circuit breaker is open."""
    STANDBY = "standby"
    """slurmctld runs on another host, and nothing of ours is out: nothing was read."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle did."""

    outcome: CycleOutcome
    stage: Stage
    sentence: str
    pending: int = 0
    managed: int = 0
    moved: int = 0
    planned: int = 0
    results: tuple[Result, ...] = ()
    restored: int = 0
    acted: bool = False
    """The queue is as the plan wants it: its changes were sent. In a stage that writes nothing: none of ours is out."""
    seen: Seen | None = None
    """None: the cluster could not be read."""
    record: DecisionRecord | None = None
    """None: nothing was planned."""

    def count(self, outcome: Outcome) -> int:
        """Changes with this outcome."""
        return sum(result.outcome is outcome for result in self.results)


def sentence_of(
    pending: int, record: DecisionRecord, held_back: str, results: Sequence[Result], why: str, restored: int
) -> str:
    """Say what a cycle did.

    `held_back`: why the configured stage is not in force. `why`: nothing was written in this cycle. Both "" otherwise.
    """
    head = f"{pending} pending, {len(record.jobs)} managed, {record.ranks_changed} at another rank"
    wanted, tally = len(record.changes), Counter(result.outcome for result in results)
    if record.stage not in WRITING:
        reason = f" ({held_back})" if held_back else ""
        tail = f"{wanted} changes not written: stage {record.stage}{reason}"
    elif why:
        tail = f"{wanted} changes not written: {why}"
    elif not wanted and not tally:
        tail = "nothing to change"
    else:
        others = ", ".join(f"{count} {outcome}" for outcome, count in tally.items() if outcome is not Outcome.APPLIED)
        tail = f"{tally[Outcome.APPLIED]} of {tally.total()} changes applied" + (f" ({others})" if others else "")
    return head + "; " + tail + (f"; {restored} given back" if restored else "")

"""What all parts of a running daemon share, and whether it may write to Slurm.

Whatever the state, what an earlier stage wrote is given back as far as the state allows: a dry run has no writer, and
all others have one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rltuned.controller.health.clock import Clock
from rltuned.controller.tell.logs import Log
from rltuned.controller.tell.metrics import Metrics
from rltuned.core.config import Config, Stage

ALARMS: Final = 3
"""In a row: the breaker opened, or half of a cycle's writes failed. Then the stage falls to shadow."""
WRITING: Final = frozenset({Stage.CANARY, Stage.ACTIVE})


@dataclass
class Runtime:
    """Settings, time and output. A reload puts a new configuration and a new log here, between two cycles."""

    config: Config
    clock: Clock
    log: Log
    metrics: Metrics


@dataclass
class Permissions:
    """Collects what stands against writing."""

    runtime: Runtime
    dry_run: bool
    unseen: Callable[[], bool]
    """Whether no disk has taken the heartbeat for long."""
    missing: Callable[[], list[str]]
    standby: str = ""
    """Why another host's daemon writes, or is to give back first; "" where this one may."""
    paused: str = ""
    """Until when an admin wants nothing written (`give_back.pause`); "" where nobody does."""
    lock_lost: bool = False
    demoted: str = ""
    """Which alarms made the stage fall to shadow; "" where none did."""
    alarms: int = 0
    """In a row."""

    @property
    def against(self) -> str:
        """What stands against writing: of several reasons, the first; "" where writing is allowed."""
        if self.dry_run:
            return "dry run"
        if self.standby:
            return self.standby
        if self.lock_lost:
            return "the lock's file was removed, so another rltuned may be at work"
        if self.paused:
            return self.paused
        if self.demoted:
            return f"demoted: {self.demoted}"
        if self.unseen():
            return "no state directory takes the heartbeat, so the dead-man timer would undo what is written"
        return "; ".join(self.missing())

    @property
    def held_back(self) -> str:
        """Why the configured stage, which writes, is not in force; "" where it is."""
        return self.against if self.runtime.config.cycle.stage in WRITING else ""

    @property
    def hindered(self) -> str:
        """The same, where nobody wants it so."""
        return "" if self.dry_run or self.held_back in {self.standby, self.paused} else self.held_back

    @property
    def stage(self) -> Stage:
        """The stage in force: the configured one, or shadow where it writes and writing is not allowed."""
        wanted = self.runtime.config.cycle.stage
        return Stage.SHADOW if self.held_back else wanted

    @property
    def writes(self) -> bool:
        """Whether the stage in force writes to Slurm."""
        return self.stage in WRITING

    def alarm(self, why: str) -> None:
        """Count an alarm; `ALARMS` of them in a row make the stage fall to shadow."""
        self.alarms += 1
        if self.alarms < ALARMS or self.demoted or not self.writes:
            return
        self.demoted = f"{self.alarms} alarms in a row, the last: {why}"
        self.runtime.metrics.demotions.inc()
        self.runtime.log.error(
            "stage.demoted",
            sentence=f"Fell back to stage shadow after {self.demoted}. The queue is given back to Slurm.",
            remedy="find the cause, then `systemctl reload rltuned`",
        )

    def forgive(self) -> None:
        """Forget all alarms, and the demotion that they brought."""
        self.demoted, self.alarms = "", 0

"""Whether the loop moves and is able to act: for the watchdog, for the dead-man timer, and for the daemon itself.

The dead-man timer gives all jobs back when it sees no heartbeat, or one of a daemon that has long been unable to act.
A reading of Slurm from before that time must not be acted on: what it shows has changed since.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rltuned.controller.health.clock import Moment
from rltuned.controller.health.heartbeat import DEAD_MAN_PATIENCE, Condition, beat, stale_after, stop_beating
from rltuned.controller.health.runtime import Runtime
from rltuned.core.changes import JobStatus
from rltuned.core.errors import SlurmUnavailableError
from rltuned.core.tables import Snapshot
from rltuned.slurm.port import ClusterFacts, Controller, ControllerReader, SlurmReader

BEAT_SECONDS: Final = 5.0
STUCK_TIMEOUTS: Final = 6.0
"""A step of a cycle that takes so many time-outs of Slurm's commands is stuck: the watchdog may act."""

OUTDATED: Final = "the dead-man timer may have been at work since the reading"

_Answer = TypeVar("_Answer")


class Liveness:
    """The daemon's signs of life, and the time in which it gave none. All times are monotonic seconds."""

    def __init__(self, runtime: Runtime, condition: Callable[[], Condition], *, silent: bool = False) -> None:
        """`condition`: asked at each beat."""
        self._runtime, self._condition = runtime, condition
        now = runtime.clock.monotonic()
        self.silent = silent
        """Without a writer or a lock: a heartbeat would keep the dead-man timer from giving back."""
        self.in_cycle = False
        self.outdated = True
        """The dead-man timer may have given jobs back since the last reading. True at the start: it may have found no
        room on any disk to note that."""
        self.acted = False  # whether a cycle has done all it should, ever
        self.unable = 0.0  # seconds for which Slurm has answered but no plan could be carried out
        self._moved_at = self._looked_at = self._acted_at = now
        self._beat_at = self._shown_at = -math.inf

    def progress(self) -> None:
        """Note that the loop has moved."""
        self._moved_at = self._runtime.clock.monotonic()
        self.beat()

    def healthy(self) -> bool:
        """Whether the loop moves: not stuck in a step, and not overdue."""
        config = self._runtime.config
        idle = self._runtime.clock.monotonic() - self._moved_at
        patience = STUCK_TIMEOUTS * config.slurm.timeout
        return idle < (patience if self.in_cycle else 2 * config.cycle.interval + patience)

    def beat(self) -> None:
        """Show a sign of life, unless the last one is young."""
        now = self._runtime.clock.monotonic()
        if self.silent or now - self._beat_at < BEAT_SECONDS:
            return
        # Whoever reads this sign of life sees one.
        self._beat_at, shown_at, self._shown_at = now, self._shown_at, now
        if beat(self._directories(), Moment.of(self._runtime.clock), self.stale_after, self._condition()):
            self.outdated |= self.stale_after < now - shown_at < math.inf
        else:
            self._shown_at = shown_at

    def end(self) -> None:
        """Take the heartbeat away, unless it is somebody else's."""
        if not self.silent:
            stop_beating(self._directories())

    @property
    def stale_after(self) -> float:
        """Age at which the dead-man timer takes the heartbeat for stale."""
        return stale_after(self._runtime.config.cycle.interval)

    def unseen_for(self, seconds: float) -> bool:
        """Whether no state directory has taken the heartbeat for so long."""
        return self._runtime.clock.monotonic() - self._shown_at > seconds

    @property
    def inactive(self) -> float:
        """Seconds since a cycle has done all it should, or since the start."""
        return self._runtime.clock.monotonic() - self._acted_at

    def given_up(self) -> bool:
        """Whether the daemon has been inactive for so long that the dead-man timer gives back in its place."""
        return self.inactive > DEAD_MAN_PATIENCE * self._runtime.config.write.give_back_after

    def begin_reading(self) -> bool:
        """Start over with a new reading. Whether the dead-man timer may have given jobs back since the last one."""
        before = self.outdated or self.given_up() or self.unseen_for(self.stale_after)
        self.outdated = False
        return before

    def ended_cycle(self, *, acted: bool, slurm_away: bool) -> None:
        """Count the time in which no plan could be carried out; that in which slurmctld was away does not count."""
        now = self._runtime.clock.monotonic()
        passed, self._looked_at = now - self._looked_at, now
        if acted:
            self.acted, self.unable, self._acted_at = True, 0.0, now
        elif not slurm_away:
            self.unable += passed

    def _directories(self) -> Sequence[Path]:
        state = self._runtime.config.state
        return [root for root in (state.directory, state.mirror) if root is not None]


@dataclass(frozen=True, slots=True)
class WatchedReader:
    """A reader of which each answer shows that the loop moves; that a write does, its reading back shows."""

    reader: SlurmReader
    liveness: Liveness

    def ping(self) -> None:
        """See `SlurmReader`, as for the others."""
        self.reader.ping()
        self.liveness.progress()

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:
        """As there."""
        return self._heard(self.reader.facts(known))

    def backfills(self) -> bool:
        """As there."""
        return self._heard(self.reader.backfills())

    def snapshot(self, now: float) -> Snapshot:
        """As there."""
        return self._heard(self.reader.snapshot(now))

    def status(self, job_ids: Sequence[int] | None = None) -> dict[int, JobStatus]:
        """As there. SlurmUnavailableError also where it came too late."""
        seen = self._heard(self.reader.status(job_ids))
        if self.liveness.outdated:
            raise SlurmUnavailableError(f"the jobs' status came too late: {OUTDATED}")
        return seen

    def controllers(self, facts: ClusterFacts) -> tuple[Controller, ...]:
        """See `ControllerReader`; none where the reader cannot tell."""
        return self._heard(self.reader.controllers(facts)) if isinstance(self.reader, ControllerReader) else ()

    def _heard(self, answer: _Answer) -> _Answer:
        self.liveness.progress()
        return answer

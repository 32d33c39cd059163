"""When to leave Slurm alone: a circuit breaker with exponential back-off and jitter."""

import enum
import random
from dataclasses import dataclass


class BreakerState(enum.StrEnum):
    """The usual three."""

    CLOSED = "closed"
    OPEN = "open"
    """Too many failed in a row: wait."""
    HALF_OPEN = "half-open"
    """One cycle is tried."""


@dataclass(slots=True)
class Breaker:
    """Counts failed cycles. Times are monotonic seconds; randomness is passed in."""

    failures: int
    base: float
    """Seconds of the first wait; doubles with each failed trial."""
    longest: float
    rng: random.Random
    state: BreakerState = BreakerState.CLOSED
    until: float = 0.0
    """When the open breaker lets the next trial through."""
    _failed: int = 0
    _trials: int = 0

    def allow(self, now: float) -> bool:
        """Whether a cycle may run now."""
        if self.state is BreakerState.OPEN and now >= self.until:
            self.state = BreakerState.HALF_OPEN
        return self.state is not BreakerState.OPEN

    def probe(self) -> None:
        """What made it open has gone (slurmctld answers again): try at once."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN

    def success(self) -> None:
        """A cycle went well."""
        self.state, self._failed, self._trials = BreakerState.CLOSED, 0, 0

    def failure(self, now: float) -> bool:
        """A cycle failed. True when this opened the breaker (and not when it was only a failed trial)."""
        self._failed += 1
        if self.state is BreakerState.HALF_OPEN:
            self._trials += 1
        elif self._failed < self.failures:
            return False
        opened = self.state is BreakerState.CLOSED
        wait = min(self.longest, self.base * 2.0 ** min(self._trials, 32))
        self.state = BreakerState.OPEN
        self.until = now + wait * self.rng.uniform(0.5, 1.0)
        return opened

"""How much is asked of slurmctld: a token bucket below its own RPC limiter, and a circuit breaker.

Slurm's limiter (SlurmctldParameters=rl_enable, 23.02 and later) counts every job of an update, and makes the client
sleep without a word when its bucket is empty; 256 updates then take two minutes. Below it each batch is short: what
does not fit waits for the next batch, of this cycle (`Execution._spread`) or of the next one.
"""

import random
from dataclasses import dataclass, field
from typing import Final, Self

from rltuned.controller.tell.states import BreakerState
from rltuned.core.config import WriteSection
from rltuned.slurm.port import ClusterFacts, Privilege

STATUS_RPCS: Final = 2  # one `SlurmReader.status`: squeue and sprio
LOOK_RPCS: Final = 2 + STATUS_RPCS
"""Before each batch: slurm.conf's settings (scontrol pings after them), and the status of the jobs."""
SNAPSHOT_RPCS: Final = 7
"""One `SlurmReader.snapshot`: squeue twice, sprio, nodes, partitions, sdiag, ping."""
LEAST_BURST: Final = LOOK_RPCS + 1 + STATUS_RPCS
"""One change: read, written and read back. A smaller bucket is overdrawn by it, once it is full."""
BUCKET: Final = 30  # Slurm's own rl_bucket_size
REFILL: Final = 2.0  # Slurm's own rl_refill_rate, per second
SHARE: Final = 0.75
"""Share of the limiter's bucket and refill that rltuned uses at most: other commands of the same user need some too."""


@dataclass(slots=True)
class Budget:
    """Tokens, one per RPC. Times are monotonic seconds."""

    limited: bool
    burst: float
    rate: float  # tokens per second
    per_cycle: int
    _tokens: float = field(init=False, compare=False)
    _at: float = field(init=False, default=0.0, compare=False)
    _written: int = field(init=False, default=0, compare=False)

    def __post_init__(self) -> None:
        self._tokens = self.burst

    @classmethod
    def of(cls, settings: WriteSection, facts: ClusterFacts | None) -> Self:
        """The budget for this cluster and user; without facts, the careful one."""
        exempt = facts is not None and (not facts.rate_limiter or facts.privilege is Privilege.SLURM_USER)
        bucket, refill = (BUCKET, REFILL) if facts is None else (facts.rate_bucket, facts.rate_refill or REFILL)
        return cls(not exempt, max(1.0, SHARE * bucket), SHARE * refill, settings.per_cycle)

    def start_cycle(self) -> None:
        """Begin to count the writes of a new cycle."""
        self._written = 0

    def tokens(self, now: float) -> float:
        """What is in the bucket; negative after reads that had to be made anyway."""
        self._tokens = min(self.burst, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        return self._tokens

    def full(self, now: float) -> bool:
        """Whether waiting would bring no more tokens than are there (a whole one; `wait` rounds)."""
        return self.tokens(now) >= int(self.burst) - 1e-6

    def allowance(self, wanted: int, now: float, *, keep: int = 0, least: int = 0) -> int:
        """How many of `wanted` writes may go out now, `least` in any case; `keep` tokens are for reading back."""
        room = min(wanted, self.per_cycle - self._written)
        if self.limited:
            room = min(room, max(least, int(self.tokens(now)) - keep))
        return max(0, room)

    def spend(self, rpcs: int, now: float, *, writes: int = 0) -> None:
        """Take tokens for what was sent."""
        deepest = max(self.burst, SNAPSHOT_RPCS + LEAST_BURST)  # a small bucket, too, pays for all of a cycle
        self._tokens = max(-deepest, self.tokens(now) - rpcs - writes)
        self._written += writes

    def wait(self, rpcs: int, now: float) -> float:
        """Seconds until so many tokens (at most a full bucket) are there."""
        if not self.limited:
            return 0.0
        return max(0.0, (min(float(rpcs), self.burst) - self.tokens(now)) / self.rate)


IN_A_ROW: Final = 3  # failed cycles that open the breaker
LONGEST: Final = 900.0  # longest wait of the open breaker, seconds
DOUBLINGS: Final = 4  # where cycles are short: 16 of them


@dataclass(slots=True)
class Breaker:
    """When to leave Slurm alone: exponential back-off with jitter, by failed cycles. Times are monotonic seconds."""

    interval: float
    """Seconds from one cycle to the next. The first wait is two of them; it doubles with each failed trial."""
    rng: random.Random
    state: BreakerState = BreakerState.CLOSED
    until: float = 0.0  # when the open breaker lets the next trial through
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
        elif self._failed < IN_A_ROW:
            return False
        opened = self.state is BreakerState.CLOSED
        wait = min(LONGEST, self.interval * 2.0 ** min(1 + self._trials, DOUBLINGS))
        self.state = BreakerState.OPEN
        self.until = now + wait * self.rng.uniform(0.5, 1.0)
        return opened

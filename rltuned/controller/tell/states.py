"""What the daemon says of itself in one word of a closed set: labels of its metrics."""

import enum


class CycleOutcome(enum.StrEnum):
    """How a cycle ended."""

    DONE = "done"
    SHED = "shed"  # slurmctld is under load: planned, but wrote nothing
    WAITING = "waiting"  # the circuit breaker is open
    STANDBY = "standby"  # slurmctld runs on another host, and nothing of ours is out: nothing was read
    FAILED = "failed"


class BreakerState(enum.StrEnum):
    """Of the circuit breaker (`health.rpc_budget`)."""

    CLOSED = "closed"
    OPEN = "open"  # too many failed in a row: wait
    HALF_OPEN = "half-open"  # one cycle is tried


class Standing(enum.StrEnum):
    """What a verdict is worth now."""

    UNUSED = "unused"
    GOOD = "good"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    EXPIRED = "expired"
    OTHER_CLUSTER = "other-cluster"
    OTHER_MODEL = "other-model"
    """It chose the model, and the model is another one by now, or is refused."""

"""What all parts of a running daemon share, and whether it may write to Slurm.

Whatever the state, what an earlier stage wrote is given back as far as the state allows: a dry run has no writer, and
all others have one.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

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


class Cause(enum.StrEnum):
    """What stands against writing. Of several the first counts."""

    DRY_RUN = "dry-run"
    STANDBY = "standby"  # another host's daemon writes, or is to give back first
    LOCK_LOST = "lock-lost"
    PAUSED = "paused"
    DEMOTED = "demoted"
    UNSEEN = "unseen"  # no disk has taken the heartbeat for long
    PREREQUISITE = "prerequisite"
    # For one cycle, in which the stage stays and nothing is given back:
    JOURNAL = "journal"
    OVERLOADED = "overloaded"
    OUTDATED = "outdated"  # the reading is from before the dead-man timer may have been at work


WANTED: Final = frozenset({Cause.DRY_RUN, Cause.STANDBY, Cause.PAUSED})  # somebody wants it so


class Refusal(NamedTuple):
    """Why nothing is written."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return self.detail


def may_write(standing: Mapping[Cause, str]) -> Refusal | None:
    """Why nothing may be written, of all that stands against it, with what is said of each; None: it may."""
    return next((Refusal(cause, standing[cause]) for cause in Cause if cause in standing), None)

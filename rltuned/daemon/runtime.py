"""What all parts of a running daemon share."""

from dataclasses import dataclass

from rltuned.config import Config
from rltuned.daemon.clock import Clock
from rltuned.daemon.logs import Log
from rltuned.daemon.metrics import Metrics


@dataclass
class Runtime:
    """Settings, time and output. A reload puts a new configuration and a new log here, between two cycles."""

    config: Config
    clock: Clock
    log: Log
    metrics: Metrics

"""How slurmctld is doing, and how it is configured, as far as a plan and a simulation go by it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from rltuned.core.errors import ConfigError

_UNITS: Final[Mapping[str, float]] = {"bf_window": 60.0}  # seconds, where slurm.conf says it in others
_AT_LEAST_1: Final = frozenset({"bf_interval", "bf_window", "bf_resolution", "bf_max_job_test"})
WHOLE_QUEUE: Final = 2**31 - 1
"""default_queue_depth where no site has said one: every main pass tries all jobs. slurmctld takes no larger number."""
_RESERVE: Final = ("bf_min_age_reserve", "bf_job_part_count_reserve")
LIMITS: Final = ("bf_max_job_user", "bf_max_job_part", "bf_max_job_start", *_RESERVE)
_SIMULATED: Final = ("default_queue_depth", "bf_interval", "bf_window", "bf_resolution", "bf_max_job_test", *LIMITS)


@dataclass(frozen=True)
class Health:
    """How slurmctld is doing, from sdiag(1): what load shedding looks at."""

    server_threads: int = 0
    agent_queue: int = 0
    backfill_mean_us: int = 0
    since: int = 0
    """When it began to count, epoch seconds: at its start, at each midnight, and since 23.11 at each reconfigure."""


@dataclass(frozen=True, slots=True)
class SchedulerParameters:
    """Of slurm.conf(5), most of it SchedulerParameters; the defaults are those of a slurm.conf that says nothing."""

    backfill: bool = True  # SchedulerType=sched/backfill, and not switched off by bf_interval=-1
    bf_interval: float = 30.0
    bf_window: float = 86_400.0  # seconds, as the interval and the resolution
    bf_resolution: float = 60.0
    bf_max_job_test: int = 500
    bf_min_prio_reserve: int = 0
    """Priority from which on a waiting job gets a reservation; 0: every one."""
    half_life: float = 7 * 86_400.0  # PriorityDecayHalfLife, seconds; 0: usage does not decay
    bf_max_job_user: int = 0  # jobs of a user that a backfill pass looks at; 0: all. Likewise of a partition …
    bf_max_job_part: int = 0
    bf_max_job_start: int = 0  # … and that it starts
    bf_min_age_reserve: int = 0  # seconds that a job waits before it keeps resources from those behind it
    bf_job_part_count_reserve: int = 0  # jobs of a partition for which a backfill pass keeps them; 0: all
    default_queue_depth: int = 100  # jobs that a main pass tries, but for one a minute, which tries all
    whole_nodes: bool = False
    """SelectType=select/linear: a job has all of its nodes, whatever it asks for."""

    @classmethod
    def read(
        cls,
        parameters: Mapping[str, str],
        scheduler_type: str = "sched/backfill",
        half_life: float = 7 * 86_400.0,
        select_type: str = "",
    ) -> Self:
        """Of a cluster: SchedulerParameters by name (bf_window in minutes), SchedulerType and SelectType ("": not
        known), seconds.

        What is no number counts as not said: slurmctld does the same, with a line in its log.
        """
        off = parameters.get("bf_interval", "").strip() == "-1" or scheduler_type not in {"", "sched/backfill"}
        usual, found = cls(), dict[str, Any]()
        for name in ("bf_min_prio_reserve", *_SIMULATED):
            unit, default = _UNITS.get(name, 1.0), getattr(usual, name)
            number = whole_number(parameters, name, default / unit)
            found[name] = type(default)(max(number, 1.0 if name in _AT_LEAST_1 else 0.0) * unit)
        whole = select_type == "select/linear"
        return cls(backfill=not off, half_life=half_life, whole_nodes=whole, **found)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of a text as slurm.conf has it, with nothing but what is simulated: ``bf_interval=60,bf_window=2880``. What
        it does not say is the default, but for default_queue_depth: `WHOLE_QUEUE`.
        """
        parameters = {"default_queue_depth": str(WHOLE_QUEUE)}
        for word in filter(None, text.split(",")):
            name, _, value = word.strip().partition("=")
            if name not in _SIMULATED:
                raise ConfigError(f"scheduler parameters: '{name}' is not simulated; {', '.join(_SIMULATED)} are")
            if not _is_number(value):
                raise ConfigError(f"scheduler parameters: {name}: '{value}' is no whole number")
            parameters[name] = value
        return cls.read(parameters)

    def text(self) -> str:
        """What of it is simulated, as `parse` takes it: only what differs from what that takes for not said."""
        usual = replace(type(self)(), default_queue_depth=WHOLE_QUEUE)
        said = [name for name in _SIMULATED if getattr(self, name) != getattr(usual, name)]
        return ",".join(f"{name}={getattr(self, name) / _UNITS.get(name, 1.0):.0f}" for name in said)


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 10


def whole_number(parameters: Mapping[str, str], name: str, default: float) -> float:
    """A parameter that slurm.conf may name; what is no number counts as not said."""
    value = parameters.get(name, "").strip()
    return float(value) if _is_number(value) else default

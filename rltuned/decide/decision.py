"""The decision record: what one cycle decided and why, as a value without tables.

`record.record` builds it of a plan and of what became of its changes. ``explain``, ``doctor``, the metrics and the
report of a cycle read it. Columns rather than one object per job, so that 100,000 jobs stay small. No names of users
or accounts are kept. A field is called in the JSON as it is here, but for `_ALIASES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, cached_property
from operator import ne
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic import Field as Alias

from rltuned.cluster.changes import ApplyMode, Field, Outcome
from rltuned.config import PlacementApply, Stage
from rltuned.decide.scope import Veto
from rltuned.errors import RltunedError
from rltuned.placement.base import Kind, SolveOutcome

VERSION: Final = 1
_OPTIONAL: Final = ("run_times", "starts")
OFF: Final = "off"
"""The outcome of a placement that nobody asked for."""

Whole = tuple[int, ...]
Numbers = tuple[float, ...]

_STRICT: Final = ConfigDict(strict=True)
_ALIASES: Final = {"class_of": "class"}
"""Names in the JSON that Python does not allow."""


class Request(StrEnum):
    """What a job could have asked for instead (`what_if`)."""

    LIMIT = "half_limit"
    """Half the time limit; the estimate bounded by it."""
    GPUS = "half_gpus"
    """Half the nodes, or half of a single node's GPUs; CPUs and memory with them."""
    TIME = "half_time"
    """Half the predicted run time, where there is a prediction: the limit stays."""


@dataclass(frozen=True)
class JobColumns:
    """The n managed jobs: a value of each in each column."""

    __pydantic_config__ = _STRICT

    id: Whole
    class_of: Annotated[Whole, Alias(alias=_ALIASES["class_of"])]
    """Index into `DecisionRecord.classes`."""
    base: Whole
    """Priority that Slurm alone gives."""
    current: Whole
    """Priority as read."""
    target: Whole
    """Priority that the job shall have."""
    base_rank: Whole
    """Rank within its class by Slurm alone, 0 first."""
    rank: Whole
    """Planned rank within its class."""
    guards: Whole
    """`ranks.Guard` flags."""
    held_behind: Whole
    """Id of the job outside of its class that it was kept behind, 0 where there is none."""
    seen: Whole
    """Its row in the window; −1: the policy did not see it."""
    position: Whole
    """Place in the planned order of the whole queue, 0 first."""

    def __post_init__(self) -> None:
        _same_length(self, len(self.id))

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Window:
    """The w jobs that the policy saw: a value of each in each column."""

    __pydantic_config__ = _STRICT

    score: Numbers
    values: tuple[Numbers, ...]
    """(w, F) features."""
    predicted: tuple[bool, ...]
    """Whether the run time rests on a prediction that is below the time limit."""
    wait: Numbers
    submit: Numbers
    priority: Numbers
    state: tuple[Numbers, ...]
    """(w, C) what the policy ranks by."""
    run_time: Numbers
    time_limit: tuple[float | None, ...]
    """None: none."""
    gpus: Numbers

    def __post_init__(self) -> None:
        _same_length(self, len(self.score))

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True)
class RunTimeRecord:
    """Between which times the run times of the w jobs of the window are, with 80 %. None: not known."""

    __pydantic_config__ = _STRICT

    low: tuple[float | None, ...]
    """Seconds."""
    high: tuple[float | None, ...]

    def __post_init__(self) -> None:
        _same_length(self, len(self.low))


@dataclass(frozen=True)
class OtherRequest:
    """The w jobs of the window, each as if it had asked for something else."""

    __pydantic_config__ = _STRICT

    state: tuple[Numbers, ...]
    run_time: Numbers
    time_limit: tuple[float | None, ...]
    gpus: Numbers
    applies: tuple[bool, ...]
    """Whether the request makes sense for the job."""

    def __post_init__(self) -> None:
        _same_length(self, len(self.applies))


@dataclass(frozen=True)
class RolloutRecord:
    """What the rollouts found."""

    __pydantic_config__ = _STRICT

    rollouts: int
    """Simulations of the queue."""
    simulated: int
    """Jobs that were simulated."""
    places: Mapping[int, tuple[int, int]]
    """Id of each job that has another place among them: that by the policy's scores and the new one, 1 first."""
    gain: float
    """Seconds of waiting that the new order is expected to save, all simulated jobs together."""


@dataclass(frozen=True)
class WayRecord:
    """How the placement has one job start now."""

    __pydantic_config__ = _STRICT

    kind: Kind
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class PlacementRecord:
    """What the placement says of the front of the queue."""

    __pydantic_config__ = _STRICT

    outcome: SolveOutcome | Literal["off"]
    apply: PlacementApply
    ways: Mapping[int, WayRecord]
    """By job id."""


class ChangeRecord(NamedTuple):
    """One change that the plan wants."""

    job_id: int
    field: Field
    before: int | str
    after: int | str


class ProbeRecord(NamedTuple):
    """A job that nobody has submitted: when it would start. Amounts are per node."""

    partition: str
    nodes: int
    gpus: int
    cpus: int
    mem: int
    """MiB."""
    time_limit: float
    """Seconds."""
    time: float
    """When this was simulated, epoch seconds; likewise the others."""
    low: float | None
    """None: beyond the horizon."""
    middle: float | None
    high: float | None


@dataclass(frozen=True)
class StartRecord:
    """When pending jobs are expected to start: the front of the queue in the order in force."""

    __pydantic_config__ = _STRICT

    id: Whole
    low: tuple[float | None, ...]
    """Epoch seconds; the job starts before it in one of ten cases. None: not within the horizon of the simulation."""
    middle: tuple[float | None, ...]
    """In half of the cases."""
    high: tuple[float | None, ...]
    """In nine of ten."""
    scenarios: int
    outcomes: int
    """Earlier forecasts that the intervals are calibrated on."""
    coverage: float | None
    """Share of those with an outcome whose interval held it; None: there are none."""
    probes: tuple[ProbeRecord, ...]


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """One cycle's decision."""

    __pydantic_config__ = _STRICT

    version: Literal[1]
    """`VERSION`."""
    time: float
    """Of the reading, epoch seconds."""
    policy: str
    mode: ApplyMode
    stage: Stage
    """The stage in force; of a plan that no daemon made, the configured one."""
    authority: float
    age_bound: float
    classes: tuple[str, ...]
    class_sizes: Whole
    features: tuple[str, ...]
    """(F,) names."""
    columns: tuple[str, ...]
    """(C,) names of the features that the policy ranks by."""
    jobs: JobColumns
    window: Window
    other_requests: Mapping[Request, OtherRequest]
    rollout: RolloutRecord | None
    """None: none were made."""
    vetoed: Mapping[Veto, Whole]
    """Ids of the jobs that are left to Slurm."""
    placement: PlacementRecord
    changes: tuple[ChangeRecord, ...]
    """Head of the queue first."""
    outcomes: Mapping[int, Mapping[Field, Outcome]]
    """What became of the changes, by job id."""
    policy_why: str
    """Why it is this policy, where the configuration says "auto"."""
    rollout_trouble: str
    """Why no rollouts were made although they should; "" where there is no trouble."""
    run_times: RunTimeRecord | None = None
    """None: nothing is known, and in the records of earlier releases."""
    starts: StartRecord | None = None
    """When jobs are expected to start; None: nothing is said of that."""

    @cached_property
    def ranks_changed(self) -> int:
        """Jobs whose planned rank is not Slurm's own."""
        return sum(map(ne, self.jobs.rank, self.jobs.base_rank))

    @property
    def displacement(self) -> float:
        """Mean distance of the planned rank from Slurm's own; 0 without jobs."""
        moved = zip(self.jobs.rank, self.jobs.base_rank, strict=True)
        return sum(abs(rank - base_rank) for rank, base_rank in moved) / max(len(self.jobs), 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data; without `run_times` and `starts` where nothing is said of them."""
        plain: dict[str, Any] = _plain(self)
        return {name: value for name, value in plain.items() if value is not None or name not in _OPTIONAL}

    @staticmethod
    def from_json(data: bytes | str) -> "DecisionRecord":
        """The record that was written as this JSON.

        Raises:
            RltunedError: it is none, or of another version; names the field.
        """
        try:
            return _adapter().validate_json(data)
        except ValidationError as error:
            where, why = first_error(error)
            if where == "version":
                why = f"this rltuned reads {VERSION}"
            raise RltunedError(f"not a decision record: {where}: {why}") from error


def first_error(error: ValidationError) -> tuple[str, str]:
    """Where the first thing stands that is wrong with a record, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])) or "as a whole", first["msg"]


@cache
def _adapter() -> TypeAdapter[DecisionRecord]:
    """Made when a record is read: the daemon only writes them."""
    return TypeAdapter(DecisionRecord)


def _same_length(columns: Any, length: int) -> None:
    for column in fields(columns):
        if len(getattr(columns, column.name)) != length:
            raise ValueError(f"'{column.name}' has {len(getattr(columns, column.name))} values, not {length}")


def _plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts; the columns as they are: JSON knows tuples, numbers and names."""
    if is_dataclass(value):
        return {_ALIASES.get(item.name, item.name): _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return value

"""The decision record: what one cycle decided and why, as a value without tables.

``explain``, ``doctor``, the metrics and the report of a cycle read it. Columns rather than one object per job, so that
100,000 jobs stay small. No names of users or accounts are kept. A field is called in the JSON as it is here, but for
`_ALIASES`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from operator import ne
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field as Alias
from pydantic import TypeAdapter, ValidationError

from rltuned.cluster.borrowed import owners
from rltuned.cluster.changes import Change, Field, Outcome
from rltuned.cluster.tables import Floats
from rltuned.config import PlacementApply, Stage
from rltuned.decide.plan import Plan
from rltuned.decide.ranks import ranks_of
from rltuned.decide.scope import Veto
from rltuned.errors import RltunedError
from rltuned.observe import FEATURES
from rltuned.placement.placement_values import Kind, SolveOutcome

VERSION: Final = 1
OFF: Final = "off"

Whole = tuple[int, ...]
Numbers = tuple[float, ...]

_ALIASES: Final = {"class_of": "class"}


class _Columns:
    """A dataclass of columns: all of the length of the first, or None."""

    def __post_init__(self) -> None:
        for column in fields(self):  # type: ignore[arg-type]
            values = getattr(self, column.name)
            if values is not None and len(values) != len(self):
                raise ValueError(f"'{column.name}' has {len(values)} values, not {len(self)}")

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]


@dataclass(frozen=True)
class JobColumns(_Columns):
    """The n managed jobs: a value of each in each column."""

    id: Whole
    class_of: Annotated[Whole, Alias(alias=_ALIASES["class_of"])]
    """Index into `DecisionRecord.classes`."""
    base: Whole
    """Priority that Slurm alone gives."""
    current: Whole
    """Priority as read."""
    target: Whole
    base_rank: Whole
    """Rank within its class by Slurm alone, 0 first."""
    rank: Whole
    guards: Whole
    held_behind: Whole
    """Id of the job outside of its class that it was kept behind, 0 where there is none."""
    seen: Whole
    """Its row in the window; −1: the policy did not see it."""
    position: Whole
    """Place in the planned order of the whole queue, 0 first."""
    owed: Numbers | None = None
    """GPU-seconds that its account has borrowed. None: of an earlier version."""


@dataclass(frozen=True)
class Window(_Columns):
    """The w jobs that the policy saw: a value of each in each column."""

    score: Numbers
    values: tuple[Numbers, ...]
    """(w, F) features."""
    predicted: tuple[bool, ...]
    """Whether the run time rests on a prediction that is below the time limit."""
    wait: Numbers
    run_time: Numbers
    time_limit: tuple[float | None, ...]
    """None: none."""
    gpus: Numbers
    run_time_low: tuple[float | None, ...] | None = None
    """Seconds that each job runs at least, with 80 % between this and `run_time_high`; None: not known."""
    run_time_high: tuple[float | None, ...] | None = None
    terms: tuple[Numbers, ...] | None = None
    """(w, C) what the model's score weighs of each job; None: a plain rule ranks, or the record is of an earlier
    version."""


@dataclass(frozen=True)
class RolloutRecord:
    """What the rollouts found."""

    rollouts: int
    simulated: int
    places: Mapping[int, tuple[int, int]]
    """Id of each job that has another place among them: that by the policy's scores and the new one, 1 first."""
    gain: float
    """Seconds of waiting that the new order is expected to save, all simulated jobs together."""


@dataclass(frozen=True)
class WayRecord:
    """How the placement has one job start now."""

    kind: Kind
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class PlacementRecord:
    """What the placement says of the front of the queue."""

    outcome: SolveOutcome | Literal["off"]
    apply: PlacementApply
    ways: Mapping[int, WayRecord]


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
    middle: float | None
    high: float | None


@dataclass(frozen=True)
class StartRecord:
    """When pending jobs are expected to start: the front of the queue in the order in force."""

    id: Whole
    low: tuple[float | None, ...]
    """Epoch seconds; the job starts before it in one of ten cases. None: not within the horizon of the simulation."""
    middle: tuple[float | None, ...]
    """In half of the cases."""
    high: tuple[float | None, ...]
    """In nine of ten."""
    scenarios: int
    outcomes: int
    coverage: float | None
    """Share of those with an outcome whose interval held it; None: there are none."""
    probes: tuple[ProbeRecord, ...]


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """One cycle's decision."""

    version: Literal[1]
    time: float
    """Of the reading, epoch seconds."""
    policy: str
    stage: Stage
    """The stage in force; of a plan that no daemon made, the configured one."""
    age_bound: float
    classes: tuple[str, ...]
    class_sizes: Whole
    features: tuple[str, ...]
    columns: tuple[str, ...]
    """(C,) names of the features that the policy ranks by."""
    jobs: JobColumns
    window: Window
    rollout: RolloutRecord | None
    vetoed: Mapping[Veto, Whole]
    """Ids of the jobs that are left to Slurm."""
    placement: PlacementRecord
    changes: tuple[ChangeRecord, ...]
    """Head of the queue first."""
    outcomes: Mapping[int, Mapping[Field, Outcome]]
    policy_why: str
    """Why it is this policy, where the configuration says "auto"."""
    rollout_trouble: str
    starts: StartRecord | None = None
    budget: float | None = None
    """GPU-seconds that each account may borrow. None: of an earlier version."""
    coefficients: Numbers | None = None
    """(C,) of `Window.terms` in this cycle; None where these are."""
    objective: str | None = None
    """`policy.objective`. None: of an earlier version."""

    def __post_init__(self) -> None:
        terms, coefficients = self.window.terms, self.coefficients
        if terms is None and coefficients is None:
            return
        if terms is None or coefficients is None:
            raise ValueError("'coefficients' and 'terms' belong together")
        if any(len(row) != len(self.columns) for row in (coefficients, *terms)):
            raise ValueError(f"'coefficients' and each row of 'terms' need {len(self.columns)} values")

    @cached_property
    def ranks_changed(self) -> int:
        """Jobs whose planned rank is not Slurm's own."""
        return sum(map(ne, self.jobs.rank, self.jobs.base_rank))

    @property
    def displacement(self) -> float:
        """Mean distance of the planned rank from Slurm's own; 0 without jobs."""
        moved = zip(self.jobs.rank, self.jobs.base_rank, strict=True)
        return sum(abs(rank - base_rank) for rank, base_rank in moved) / max(len(self.jobs), 1)

    def to_json(self) -> Any:
        """Plain data."""
        return as_plain(self)

    @staticmethod
    def from_json(data: bytes | str) -> "DecisionRecord":
        """The record that was written as this JSON; see `read`."""
        return read(DecisionRecord, data, "a decision record")


_T = TypeVar("_T")


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    """Made when something is read: the daemon only writes."""
    return TypeAdapter(form)


def read(form: Callable[..., _T], data: bytes | str, name: str) -> _T:
    """The record of this form that was written as this JSON.

    Raises:
        RltunedError: it is none, or of another version; names the field.
    """
    try:
        found: _T = _adapter(form).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "as a whole"
        why = f"this rltuned reads {VERSION}" if where == "version" else first["msg"]
        raise RltunedError(f"not {name}: {where}: {why}") from error
    return found


def as_plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts; the columns as they are: JSON knows tuples, numbers and names."""
    if is_dataclass(value):
        return {_ALIASES.get(item.name, item.name): as_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_plain(item) for name, item in value.items()}
    return value


# --- of a plan


def record(
    plan: Plan,
    *,
    stage: Stage | None = None,
    policy_why: str = "",
    rollout_trouble: str = "",
    results: Iterable[tuple[Change, Outcome, str]] = (),
    starts: StartRecord | None = None,
) -> DecisionRecord:
    """The decision record of a plan.

    Args:
        plan: the decision.
        stage: in force; the configured one by default.
        policy_why: why it is this policy, where the configuration says "auto".
        rollout_trouble: why no rollouts were made although they should.
        results: what became of the changes, and what Slurm said.
        starts: when jobs are expected to start.
    """
    jobs, observation, scored = plan.snapshot.jobs, plan.observation, plan.scored
    ids = jobs.job_id[plan.rows]
    seen = np.full(len(ids), -1, dtype=np.intp)
    seen[plan.window] = np.arange(len(plan.window))
    known = None if plan.distribution is None else plan.distribution.take(observation.rows)
    outcomes: dict[int, dict[Field, Outcome]] = {}
    for change, outcome, _ in results:
        outcomes.setdefault(change.job_id, {})[change.field] = outcome
    return DecisionRecord(
        version=VERSION,
        time=plan.snapshot.time,
        policy=plan.policy,
        stage=plan.config.cycle.stage if stage is None else stage,
        age_bound=plan.config.decide.age_bound,
        classes=plan.classes.names,
        class_sizes=tuple(map(len, plan.classes.members)),
        features=tuple(FEATURES),
        columns=tuple(observation.columns),
        jobs=JobColumns(
            id=tuple(ids.tolist()),
            class_of=tuple(plan.classes.of.tolist()),
            base=tuple(plan.base.tolist()),
            current=tuple(jobs.priority[plan.rows].tolist()),
            target=tuple(plan.target.tolist()),
            base_rank=tuple(plan.base_rank.tolist()),
            rank=tuple(plan.rank.tolist()),
            guards=tuple(plan.guards.tolist()),
            held_behind=tuple(plan.held_behind.tolist()),
            seen=tuple(seen.tolist()),
            position=tuple(ranks_of(plan.queue).tolist()),
            owed=_owed(plan),
        ),
        window=Window(
            score=tuple(plan.scores.tolist()),
            values=tuple(map(tuple, observation.features.round(6).tolist())),
            predicted=tuple(plan.predicted.tolist()),
            wait=tuple(observation.wait.tolist()),
            run_time=tuple(observation.run_time.tolist()),
            time_limit=_finite(observation.time_limit),
            gpus=tuple(observation.gpus.tolist()),
            run_time_low=None if known is None else _finite(known.low.round()),
            run_time_high=None if known is None else _finite(known.high.round()),
            terms=None if scored is None else tuple(map(tuple, scored.terms.astype(np.float64).round(6).tolist())),
        ),
        rollout=_rollout(plan),
        vetoed={veto: tuple(jobs.job_id[rows].tolist()) for veto, rows in plan.scope.vetoed().items()},
        placement=_placement(plan),
        changes=tuple(
            ChangeRecord(change.job_id, change.field, change.before, change.after) for change in plan.changes
        ),
        outcomes=outcomes,
        policy_why=policy_why,
        rollout_trouble=rollout_trouble,
        starts=starts,
        budget=round(plan.budget, 1),
        coefficients=None if scored is None else tuple(scored.coefficients.round(6).tolist()),
        objective=str(plan.config.policy.objective),
    )


def _owed(plan: Plan) -> Numbers:
    jobs = plan.snapshot.jobs
    accounts, owed = owners(jobs.account, jobs.user), plan.borrowed.owed
    of_code = [round(owed.get(name, 0.0), 1) for name in (*accounts.names, "")]
    return tuple(of_code[code] for code in accounts.codes[plan.rows].tolist())


def _finite(values: Floats) -> tuple[float | None, ...]:
    """JSON has no infinity."""
    return tuple(value if math.isfinite(value) else None for value in values.tolist())


def _placement(plan: Plan) -> PlacementRecord:
    front, how = plan.front, plan.config.placement.apply
    if front.placement is None:
        return PlacementRecord(OFF, how, {})
    ids, names = plan.snapshot.jobs.job_id[front.rows].tolist(), plan.snapshot.nodes.names
    ways = {ids[way.job]: WayRecord(way.kind, tuple(names[node] for node in way.nodes)) for way in front.placement.ways}
    return PlacementRecord(front.placement.outcome, how, ways)


def _rollout(plan: Plan) -> RolloutRecord | None:
    found = plan.rollout
    if found is None:
        return None
    ids = plan.snapshot.jobs.job_id
    before = {row: place for place, row in enumerate(found.simulated, 1)}
    after = enumerate(found.order or found.simulated, 1)
    places = {int(ids[row]): (before[row], place) for place, row in after if before[row] != place}
    return RolloutRecord(found.rollouts, len(before), places, float(found.gain))

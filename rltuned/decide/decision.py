"""The decision record: what one cycle decided and why, as a value without tables.

``explain``, ``doctor``, the metrics and the report of a cycle read it. Columns rather than one object per job, so that
100,000 jobs stay small. No names of users or accounts are kept.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from rltuned.core.changes import Change, Field, Outcome
from rltuned.core.config import PlacementApply, Stage
from rltuned.core.tables import Floats, JobTable, Rows
from rltuned.decide.loans import MOST_BORROWERS
from rltuned.decide.place.outcome import PlacementKind, SolveOutcome
from rltuned.decide.plan import Plan
from rltuned.decide.scope import Veto
from rltuned.decide.see.observation import STATE_COLUMNS

VERSION: Final = 2
OFF: Final = "off"

Whole = tuple[int, ...]
Numbers = tuple[float, ...]


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
    base: Whole  # priority that Slurm alone gives
    current: Whole  # priority as read
    target: Whole
    base_rank: Whole  # place in the whole queue by Slurm alone, 0 first
    rank: Whole  # place in the planned order
    seen: Whole  # its row in the window; −1: the policy did not see it
    stop: Whole  # `raising.Stop`: why it goes no further ahead
    stopped_by: Whole  # id of the job that it stays behind, 0 where there is none
    wait: Numbers  # seconds that it has waited
    may_lend: Numbers  # GPU-seconds in all: a part of its wait, times its size
    site: tuple[int | None, ...] | None = None
    """Site factor as read; None: sprio does not list the job. As a whole: in the decision log; so is `LeftColumns` of
    the record."""


@dataclass(frozen=True)
class LeftColumns(_Columns):
    """The jobs that are left to Slurm, as they were read: a value of each in each column."""

    id: Whole
    priority: Whole
    site: tuple[int | None, ...]
    reason: Whole  # Slurm's, as an index into `DecisionRecord.reasons`; −1: none


@dataclass(frozen=True)
class WindowColumns(_Columns):
    """The w jobs that the policy saw: a value of each in each column."""

    score: Numbers
    values: tuple[Numbers, ...]  # (w, F) features
    predicted: tuple[bool, ...]
    """Whether the run time rests on a prediction that is below the time limit."""
    run_time: Numbers
    time_limit: tuple[float | None, ...]  # None: none
    gpus: Numbers
    run_time_low: tuple[float | None, ...] | None = None
    """Seconds that each job runs at least, with 80 % between this and `run_time_high`; None: not known."""
    run_time_high: tuple[float | None, ...] | None = None
    terms: tuple[Numbers, ...] | None = None
    """(w, C) what the model's score weighs of each job; None: a plain rule ranks; so it is in the decision log."""


class LenderRecord(NamedTuple):
    """What one job lends to a raised one when that starts."""

    id: int
    gpus: float


class RaiseRecord(NamedTuple):
    """One job that goes ahead."""

    id: int
    first: int  # id of the first job that it passes
    seconds: float  # that it is charged for before it has ended
    lenders: tuple[LenderRecord, ...]


class LentRecord(NamedTuple):
    """What one waiting job has lent, and what it may lend. GPU-seconds."""

    lent: float
    most: float  # a part of its wait, times its size
    loans: int
    borrowers: Whole  # ids of the last of them


class LoanRecord(NamedTuple):
    """An open loan."""

    borrower: int
    lender: int
    lent: float  # GPU-seconds until now


@dataclass(frozen=True)
class WayRecord:
    """How the placement has one job start now."""

    kind: PlacementKind
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
    mem: int  # MiB
    time_limit: float  # seconds
    time: float  # when this was simulated, epoch seconds; likewise the others
    low: float | None
    middle: float | None
    high: float | None


class LimitRecord(NamedTuple):
    """When a pending job would start with another time limit, everything else being the same."""

    time_limit: float  # seconds
    low: float  # epoch seconds, as in `StartRecord`; never beyond the horizon
    middle: float
    high: float | None


@dataclass(frozen=True)
class StartAnswer:
    """When one job is expected to start, epoch seconds; None: beyond the horizon of the simulation."""

    low: float | None  # it starts before it in one of ten cases
    high: float | None  # in nine of ten
    middle: float | None  # in half of the cases
    before: int  # jobs that stand before it
    outcomes: int  # as in `StartRecord`, likewise the next
    not_simulated: str
    limit: float | None  # the job's own

    @property
    def interval(self) -> tuple[float, float | None] | None:
        """With 80 %, it starts between the two; None: not within the horizon."""
        return None if self.low is None else (self.low, self.high)


@dataclass(frozen=True)
class StartRecord:
    """When pending jobs are expected to start: the front of the queue in the order in force."""

    id: Whole
    low: tuple[float | None, ...]  # as in `StartAnswer`; likewise the next two
    middle: tuple[float | None, ...]
    high: tuple[float | None, ...]
    scenarios: int
    outcomes: int
    coverage: float | None
    """Share of those with an outcome whose interval held it; None: there are none."""
    probes: tuple[ProbeRecord, ...]
    not_simulated: str = ""
    """What of the site's Slurm changes who starts when, and the forecast does not know: a sentence."""
    limit: tuple[float | None, ...] = ()  # of each job, seconds; None: none
    limits: Numbers = ()  # seconds: with each, the jobs that ask for longer were simulated, too
    shorter: Mapping[int, tuple[LimitRecord, ...]] = field(default_factory=dict)
    """By id, those of `limits` with which a job would start noticeably sooner, the shortest first."""

    @cached_property
    def _row_of(self) -> dict[int, int]:
        return {job: row for row, job in enumerate(self.id)}

    def of(self, job_id: int) -> StartAnswer | None:
        """Of one job; None: the forecast did not look at it."""
        if (at := self._row_of.get(job_id)) is None:
            return None
        limit = self.limit[at] if self.limit else None  # a daemon of before does not say
        return StartAnswer(self.low[at], self.high[at], self.middle[at], at, self.outcomes, self.not_simulated, limit)


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """One cycle's decision."""

    version: Literal[2]
    time: float  # of the reading, epoch seconds
    policy: str
    stage: Stage  # the stage in force; of a plan that no daemon made, the configured one
    held_back: str = ""  # why that is not the configured stage; "" where it is
    share: float  # `lend.share`
    most: int  # `lend.most`
    features: tuple[str, ...]
    columns: tuple[str, ...]  # (C,) names of the features that the policy ranks by
    jobs: JobColumns
    window: WindowColumns
    raises: tuple[RaiseRecord, ...]  # the most wanted first
    lent: Mapping[int, LentRecord]  # by id, the waiting jobs that have lent
    loans: tuple[LoanRecord, ...]
    vetoed: Mapping[Veto, Whole]  # ids of the jobs that are left to Slurm
    left: LeftColumns | None = None
    reasons: tuple[str, ...] = ()
    placement: PlacementRecord
    changes: tuple[ChangeRecord, ...]  # head of the queue first
    outcomes: Mapping[int, Mapping[Field, Outcome]]
    policy_why: str  # why it is this policy, where the configuration says "auto"
    forecast_trouble: str = ""  # why no start times are forecast although they should be
    starts: StartRecord | None = None
    coefficients: Numbers | None = None
    """(C,) of `WindowColumns.terms` in this cycle; None where these are."""
    objective: str  # `policy.objective`

    def __post_init__(self) -> None:
        terms, coefficients = self.window.terms, self.coefficients
        if terms is None and coefficients is None:
            return
        if terms is None or coefficients is None:
            raise ValueError("'coefficients' and 'terms' belong together")
        if any(len(row) != len(self.columns) for row in (coefficients, *terms)):
            raise ValueError(f"'coefficients' and each row of 'terms' need {len(self.columns)} values")

    @cached_property
    def raised(self) -> frozenset[int]:
        """Ids of the raised jobs."""
        return frozenset(one.id for one in self.raises)

    @property
    def in_force(self) -> int:
        """How many raised jobs stand where the plan wants them, as squeue showed them before its writes."""
        written = {change.job_id for change in self.changes if change.field is Field.SITE_FACTOR}
        return len(self.raised - written)

    def veto_of(self, job_id: int) -> Veto | None:
        """Why the job is left to Slurm; None: it is managed, or does not wait."""
        return next((veto for veto, ids in self.vetoed.items() if job_id in ids), None)


# --- of a plan


def record(
    plan: Plan,
    *,
    stage: Stage | None = None,
    held_back: str = "",
    policy_why: str = "",
    forecast_trouble: str = "",
    results: Iterable[tuple[Change, Outcome, str]] = (),
    starts: StartRecord | None = None,
) -> DecisionRecord:
    """The decision record of a plan. `results`: what became of the changes, and what Slurm said of each."""
    jobs, observation, scored = plan.snapshot.jobs, plan.observation, plan.scored
    ids = jobs.job_id[plan.rows]
    seen = np.full(len(ids), -1, dtype=np.intp)
    seen[plan.window] = np.arange(len(plan.window))
    predicted = plan.run_times.predicted
    known = None if predicted is None else predicted.take(observation.rows)
    left = plan.scope.rows[plan.scope.veto >= 0]
    outcomes: dict[int, dict[Field, Outcome]] = {}
    for change, outcome, _ in results:
        outcomes.setdefault(change.job_id, {})[change.field] = outcome
    return DecisionRecord(
        version=VERSION,
        time=plan.snapshot.time,
        policy=plan.policy,
        stage=plan.config.cycle.stage if stage is None else stage,
        held_back=held_back,
        share=plan.config.lend.part,
        most=plan.config.lend.most,
        features=observation.named,
        columns=STATE_COLUMNS,
        jobs=JobColumns(
            id=tuple(ids.tolist()),
            base=tuple(plan.base.tolist()),
            current=tuple(jobs.priority[plan.rows].tolist()),
            target=tuple(plan.target.tolist()),
            base_rank=tuple(plan.base_rank.tolist()),
            rank=tuple(plan.rank.tolist()),
            seen=tuple(seen.tolist()),
            stop=tuple(plan.raised.stop.tolist()),
            stopped_by=tuple(plan.raised.stopped_by.tolist()),
            wait=tuple(plan.book.wait(plan.snapshot, plan.rows).round().tolist()),
            may_lend=tuple((plan.raised.lent + plan.raised.lendable)[plan.managed.at].round(1).tolist()),
            site=_site_factors(jobs, plan.rows),
        ),
        window=WindowColumns(
            score=tuple(plan.scores.tolist()),
            values=tuple(map(tuple, observation.features.round(6).tolist())),
            predicted=tuple(plan.predicted.tolist()),
            run_time=tuple(observation.run_time.tolist()),
            time_limit=_finite(observation.time_limit),
            gpus=tuple(observation.gpus.tolist()),
            run_time_low=None if known is None else _finite(known.low.round()),
            run_time_high=None if known is None else _finite(known.high.round()),
            terms=None if scored is None else tuple(map(tuple, scored.terms.astype(np.float64).round(6).tolist())),
        ),
        raises=_raises(plan),
        lent=lent_by(plan),
        loans=tuple(LoanRecord(job, part.lender, round(seconds, 1)) for job, part, seconds in plan.book.open_parts()),
        vetoed={veto: tuple(jobs.job_id[rows].tolist()) for veto, rows in plan.scope.vetoed().items()},
        left=LeftColumns(
            id=tuple(jobs.job_id[left].tolist()),
            priority=tuple(jobs.priority[left].tolist()),
            site=_site_factors(jobs, left),
            reason=tuple(jobs.reason.codes[left].tolist()),
        ),
        reasons=jobs.reason.names,
        placement=_placement(plan),
        changes=tuple(
            ChangeRecord(change.job_id, change.field, change.before, change.after) for change in plan.changes
        ),
        outcomes=outcomes,
        policy_why=policy_why,
        forecast_trouble=forecast_trouble,
        starts=starts,
        coefficients=None if scored is None else tuple(scored.coefficients.round(6).tolist()),
        objective=str(plan.config.policy.objective),
    )


def _site_factors(jobs: JobTable, rows: Rows) -> tuple[int | None, ...]:
    known = zip(jobs.site_factor[rows].tolist(), jobs.site_known[rows].tolist(), strict=True)
    return tuple(site if listed else None for site, listed in known)


def _raises(plan: Plan) -> tuple[RaiseRecord, ...]:
    ids, offers = plan.snapshot.jobs.job_id[plan.scope.rows].tolist(), plan.raised.offers
    return tuple(
        RaiseRecord(
            ids[one.at],
            ids[one.first],
            round(offers[ids[one.at]].seconds, 1),
            tuple(LenderRecord(ids[at], round(gpus, 3)) for at, gpus in one.lenders),
        )
        for one in plan.raised.raises
    )


def lent_by(plan: Plan) -> dict[int, LentRecord]:
    """What the waiting jobs of a plan have lent, by id; of those that have."""
    raised, book, ids = plan.raised, plan.book, plan.snapshot.jobs.job_id[plan.scope.rows]
    borrowers, found = book.borrowers(), {}
    for at in np.flatnonzero(raised.lent > 0).tolist():
        job, lent = int(ids[at]), float(raised.lent[at])
        now, before = borrowers.get(job, ()), book.given.get(job)
        count, named = (0, ()) if before is None else (before.loans, before.borrowers)
        most = round(lent + float(raised.lendable[at]), 1)
        found[job] = LentRecord(round(lent, 1), most, count + len(now), (*named, *now)[-MOST_BORROWERS:])
    return found


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

"""Why is this job at this rank? A typed answer, from a decision record."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from rltuned.cluster.changes import Outcome
from rltuned.config import PlacementApply
from rltuned.decide.decision import DecisionRecord
from rltuned.decide.ranks import Guard
from rltuned.decide.scope import MEANING
from rltuned.policy.heuristics import RULES

GUARD_MEANING: Final[Mapping[Guard, str]] = {
    Guard.AGE_BOUND: "it has waited longer than the age bound, so it is never moved back",
    Guard.BUDGET: "its account has used up its budget of borrowed service, so it passes no job of another account",
    Guard.OUTSIDE_WINDOW: "too far back and too large to be seen by the policy in this cycle, it keeps Slurm's order",
    Guard.OUTSIDE: "it is not moved before a job that is outside of its class and would lose by it",
}


OUTCOME_MEANING: Final[Mapping[Outcome, str]] = {
    Outcome.THROTTLED: "waits: the budget below Slurm's RPC limiter was spent on jobs further ahead; a later cycle",
    Outcome.GONE: "not written: the job left the queue in between",
    Outcome.HELD: "not written: the job was held in between",
    Outcome.FOREIGN: "not written: somebody else changed the job in between",
    Outcome.CHANGED: "not written: its limit, size, partition, account or QOS was changed in between",
    Outcome.ALTERED: "written; its limit, size, partition, account or QOS changed at the same moment",
    Outcome.DENIED: "refused by Slurm for lack of privilege",
    Outcome.FAILED: "sent, but not seen on the job; the next cycle settles it",
}


FINISHED_JOBS: Final = "finished jobs"
TIME_LIMIT: Final = "time limit"
"""What a run-time estimate rests on: the site's finished jobs (docs/estimates.md), or what the job asked for."""


class Verdict(enum.StrEnum):
    """What rltuned does with the job."""

    FORWARD = "moved forward"
    BACK = "moved back"
    KEPT = "left where Slurm has it"
    NOT_MANAGED = "not managed"
    NOT_PENDING = "not pending"


@dataclass(frozen=True, slots=True)
class FeatureValue:
    """One feature of the job as the policy saw it."""

    name: str
    value: float
    median: float
    """Over the visible queue, for comparison."""
    used: bool
    """Whether it is among the eight sampled columns."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a model's score. The score is the sum of all products."""

    name: str
    value: float
    coefficient: float
    """In that cycle, of all jobs."""
    product: float


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """When a job is expected to start, epoch seconds; None: beyond the horizon of the simulation."""

    low: float | None
    """With 80 %, it starts between this"""
    high: float | None
    """and this."""
    middle: float | None
    """As likely before as after it."""
    before: int
    outcomes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to ``rltuned explain JOBID``."""

    job_id: int
    verdict: Verdict
    time: float
    """When the decision was made, epoch seconds."""
    policy: str = ""
    policy_why: str = ""
    policy_terms: str = ""
    """What a plain rule ranks by."""
    stage: str = ""
    class_name: str = ""
    class_size: int = 0
    slurm_rank: int | None = None
    """1 is the front of its class; what it would have been without rltuned."""
    rank: int | None = None
    queue_position: int | None = None
    slurm_priority: int | None = None
    target_priority: int | None = None
    score: float | None = None
    better_scored: int | None = None
    """Visible jobs of its class with a higher score."""
    run_time_estimate: float | None = None
    """Seconds that it is expected to run, in the mean."""
    run_time_low: float | None = None
    """With 80 % it runs for so many seconds at least …"""
    run_time_high: float | None = None
    """… and at most."""
    estimated_from: str = ""
    gpus: float | None = None
    wait: float | None = None
    features: tuple[FeatureValue, ...] = ()
    terms: tuple[Term, ...] = ()
    """Of a model's score, in the order of the columns; empty where a plain rule ranks."""
    guards: tuple[str, ...] = ()
    borrowed: float | None = None
    """GPU-seconds that its account has borrowed from others' fair share."""
    budget: float | None = None
    veto: str = ""
    placement: str = ""
    outcome: str = ""
    rollout: str = ""
    start: StartAnswer | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def explain(record: DecisionRecord, job_id: int) -> Explanation:
    """Explain one job from a decision record."""
    common: dict[str, Any] = {
        "job_id": job_id,
        "time": record.time,
        "policy": record.policy,
        "policy_why": record.policy_why,
        "policy_terms": RULES[record.policy].terms if record.policy in RULES else "",
        "stage": record.stage,
    }
    jobs = record.jobs
    common["start"] = start_of(record, job_id)
    if job_id not in jobs.id:
        for veto, ids in record.vetoed.items():
            if job_id in ids:
                return Explanation(verdict=Verdict.NOT_MANAGED, veto=f"{veto}: {MEANING[veto]}", **common)
        return Explanation(verdict=Verdict.NOT_PENDING, **common)
    at = jobs.id.index(job_id)
    rank, base_rank, seen = jobs.rank[at], jobs.base_rank[at], jobs.seen[at]
    verdict = Verdict.FORWARD if rank < base_rank else Verdict.BACK if rank > base_rank else Verdict.KEPT
    visible = _visible(record, at, seen) if seen >= 0 else {}
    guards = tuple(
        f"{meaning}: job {jobs.held_behind[at]}" if guard is Guard.OUTSIDE else meaning
        for guard, meaning in GUARD_MEANING.items()
        if jobs.guards[at] & guard
    )
    outcomes = record.outcomes.get(job_id, {})
    return Explanation(
        verdict=verdict,
        class_name=record.classes[jobs.class_of[at]],
        class_size=record.class_sizes[jobs.class_of[at]],
        slurm_rank=base_rank + 1,
        rank=rank + 1,
        queue_position=jobs.position[at] + 1,
        slurm_priority=jobs.base[at],
        target_priority=jobs.target[at],
        guards=guards,
        borrowed=None if jobs.owed is None else jobs.owed[at],
        budget=record.budget,
        placement=_placement(record, job_id),
        rollout=_rollout(record, job_id),
        outcome=", ".join(f"{name} {OUTCOME_MEANING.get(outcome, outcome)}" for name, outcome in outcomes.items()),
        **visible,
        **common,
    )


def start_of(record: DecisionRecord, job_id: int) -> StartAnswer | None:
    """When the job is expected to start; None: the record does not say."""
    found = record.starts
    if found is None or job_id not in found.id:
        return None
    at = found.id.index(job_id)
    return StartAnswer(found.low[at], found.high[at], found.middle[at], at, found.outcomes)


def _visible(record: DecisionRecord, at: int, seen: int) -> dict[str, Any]:
    window, jobs, weights = record.window, record.jobs, record.coefficients
    score = window.score[seen]
    mine = jobs.class_of[at]
    better = sum(
        1
        for other, index in enumerate(jobs.seen)
        if index >= 0 and jobs.class_of[other] == mine and window.score[index] > score
    )
    medians = np.median(np.array(window.values), axis=0).tolist()
    features = tuple(
        FeatureValue(name, value, median, name in record.columns)
        for name, value, median in zip(record.features, window.values[seen], medians, strict=True)
    )
    return {
        "score": score,
        "better_scored": better,
        "run_time_estimate": window.run_time[seen],
        "run_time_low": None if window.run_time_low is None else window.run_time_low[seen],
        "run_time_high": None if window.run_time_high is None else window.run_time_high[seen],
        "estimated_from": FINISHED_JOBS if window.predicted[seen] else TIME_LIMIT,
        "gpus": window.gpus[seen],
        "wait": window.wait[seen],
        "features": features,
        "terms": () if window.terms is None or weights is None else _terms(record.columns, window.terms[seen], weights),
    }


def _terms(names: Sequence[str], values: Sequence[float], coefficients: Sequence[float]) -> tuple[Term, ...]:
    return tuple(
        Term(name, value, coefficient, coefficient * value)
        for name, value, coefficient in zip(names, values, coefficients, strict=True)
    )


def _rollout(record: DecisionRecord, job_id: int) -> str:
    found = record.rollout
    if found is None or job_id not in found.places:
        return ""
    before, after = found.places[job_id]
    return (
        f"place {after} instead of {before} among the first {found.simulated} jobs after {found.rollouts} rollouts; "
        f"their order is expected to save {found.gain / 3600:.1f} h of waiting in all"
    )


def _placement(record: DecisionRecord, job_id: int) -> str:
    way = record.placement.ways.get(job_id)
    if record.placement.apply is PlacementApply.OFF or way is None:
        return ""
    return f"{way.kind} on {','.join(way.nodes)} now"

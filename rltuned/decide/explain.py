"""Why is this job at this rank? A typed answer, from a decision record."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from rltuned.cluster.changes import Outcome
from rltuned.config import PlacementApply
from rltuned.decide.decision import DecisionRecord
from rltuned.decide.ranks import Guard
from rltuned.decide.scope import MEANING
from rltuned.decide.what_if import MEANING as REQUEST_MEANING
from rltuned.decide.what_if import observation_of, with_request
from rltuned.observe.observation import Observation
from rltuned.policy.actor import Actor, on_means
from rltuned.policy.attribution import attribute
from rltuned.policy.base import Policy

GUARD_MEANING: Final[Mapping[Guard, str]] = {
    Guard.AGE_BOUND: "it has waited longer than the age bound, so it is never moved back",
    Guard.ACCOUNT_SHARE: "its account already has its share of the places at the front",
    Guard.DWELL: "it was moved a moment ago and keeps its place for the dwell time",
    Guard.OUTSIDE_WINDOW: "too far back and too large to be seen by the policy in this cycle, it keeps Slurm's order",
    Guard.OUTSIDE: "it is not moved before a job that is outside of its class and would lose by it",
}


OUTCOME_MEANING: Final[Mapping[Outcome, str]] = {
    Outcome.THROTTLED: "waits: the budget below Slurm's RPC limiter was spent on jobs further ahead; a later cycle",
    Outcome.GONE: "not written: the job left the queue in between",
    Outcome.HELD: "not written: the job was held in between",
    Outcome.FOREIGN: "not written: somebody else changed the job in between",
    Outcome.DENIED: "refused by Slurm for lack of privilege",
    Outcome.FAILED: "sent, but not seen on the job; the next cycle settles it",
}


FINISHED_JOBS: Final = "finished jobs"
TIME_LIMIT: Final = "time limit"
"""What a run-time estimate rests on: the site's finished jobs (docs/estimates.md), or what the job asked for."""

SAME: Final = 1e-4
"""Scores of the record and of the policy at hand that are nearer than this are of the same policy."""


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
class Part:
    """What one number of the job adds to its score, compared with the average of the visible jobs."""

    name: str
    """A column of the state."""
    value: float
    """Of the job, in [0, 1], as the policy's state has it."""
    average: float
    """Over the visible jobs."""
    rule: float
    """Through the rule that the actor corrects; exact. 0 without one."""
    network: float
    """Through the network, by integrated gradients."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A learned score taken apart: ``score = reference + Σ (rule + network)``."""

    score: float
    reference: float
    """Of the average visible job."""
    corrected: str
    """Name of the rule that the network corrects, "" without one."""
    parts: tuple[Part, ...]
    """The most important first."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The job scored again as if it had asked for something else."""

    request: str
    """`decision.Request`."""
    meaning: str
    score: float
    place: int
    """By score among the visible jobs of its class, 1 first; guards and rollouts are not asked again."""
    instead_of: int
    among: int


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
    """Jobs of the queue that stand before it."""
    outcomes: int
    """Earlier forecasts that the interval is calibrated on."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to ``rltuned explain JOBID``."""

    job_id: int
    verdict: Verdict
    time: float
    """When the decision was made, epoch seconds."""
    policy: str = ""
    policy_why: str = ""
    """Why it is this one, where the configuration says "auto"."""
    mode: str = ""
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
    """`FINISHED_JOBS` or `TIME_LIMIT`."""
    gpus: float | None = None
    wait: float | None = None
    features: tuple[FeatureValue, ...] = ()
    guards: tuple[str, ...] = ()
    veto: str = ""
    placement: str = ""
    outcome: str = ""
    """What became of the change at the last write."""
    sum: Sum | None = None
    """Why the score is what it is; only of an actor that is at hand."""
    alternatives: tuple[Alternative, ...] = ()
    """What would change its place."""
    policy_note: str = ""
    """Why the score could not be taken apart, nor the policy be asked again."""
    rollout: str = ""
    """What the rollouts did to this job."""
    start: StartAnswer | None = None
    """When it is expected to start; None: nothing is said of that."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def explain(record: DecisionRecord, job_id: int, policy: Policy | None = None) -> Explanation:
    """Explain one job from a decision record.

    `policy`: the one that decided, where it is at hand. It is asked what moved the score, and what would change the
    place.
    """
    common: dict[str, Any] = {
        "job_id": job_id,
        "time": record.time,
        "policy": record.policy,
        "policy_why": record.policy_why,
        "mode": record.mode,
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
    visible: dict[str, Any] = {}
    if seen >= 0:
        visible = _visible(record, at, seen)
        if policy is not None:
            visible |= _asked_again(record, at, seen, policy)
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
    window, jobs = record.window, record.jobs
    score = window.score[seen]
    mine = jobs.class_of[at]
    better = sum(
        1
        for other, index in enumerate(jobs.seen)
        if index >= 0 and jobs.class_of[other] == mine and window.score[index] > score
    )
    values = window.values
    features = tuple(
        FeatureValue(name, values[seen][column], _median([row[column] for row in values]), name in record.columns)
        for column, name in enumerate(record.features)
    )
    return {
        "score": score,
        "better_scored": better,
        "run_time_estimate": window.run_time[seen],
        "run_time_low": None if record.run_times is None else record.run_times.low[seen],
        "run_time_high": None if record.run_times is None else record.run_times.high[seen],
        "estimated_from": FINISHED_JOBS if window.predicted[seen] else TIME_LIMIT,
        "gpus": window.gpus[seen],
        "wait": window.wait[seen],
        "features": features,
    }


def _asked_again(record: DecisionRecord, at: int, seen: int, policy: Policy) -> dict[str, Any]:
    """What only the policy itself can tell."""
    observation = observation_of(record)
    policy = policy if record.run_times is None else on_means(policy)
    jobs, scores = record.jobs, policy.score(observation)
    if policy.name != record.policy or not np.allclose(scores, record.window.score, atol=SAME):
        changed = "the model or the configuration was changed"
        return {"policy_note": f"'{policy.name}' as it is now is not what decided: {changed}"}
    mine = jobs.class_of[at]
    others = np.array([i for other, i in enumerate(jobs.seen) if i >= 0 and i != seen and jobs.class_of[other] == mine])

    def place(given: Any) -> int:
        return 1 + int((given[others.astype(np.intp)] > given[seen]).sum())

    alternatives = []
    for request, other in record.other_requests.items():
        if other.applies[seen]:
            again = policy.score(with_request(observation, other, seen))
            alternatives.append(
                Alternative(
                    request=request,
                    meaning=REQUEST_MEANING[request],
                    score=float(again[seen]),
                    place=place(again),
                    instead_of=place(scores),
                    among=len(others) + 1,
                )
            )
    parts: dict[str, Any] = {"alternatives": tuple(alternatives)}
    if isinstance(policy, Actor):
        parts["sum"] = _sum(policy, observation, seen)
    return parts


def _sum(actor: Actor, observation: Observation, seen: int) -> Sum:
    attributed = attribute(actor, observation, seen)
    state = observation.state[: len(observation)].astype(np.float64)
    parts = [
        Part(
            name=name,
            value=float(state[seen, column]),
            average=float(state[:, column].mean()),
            rule=attributed.rule.get(name, 0.0),
            network=float(attributed.network[column]),
        )
        for column, name in enumerate(attributed.columns)
    ]
    parts.sort(key=lambda part: -abs(part.rule + part.network))
    return Sum(attributed.score, attributed.reference, actor.architecture.residual or "", tuple(parts))


def _rollout(record: DecisionRecord, job_id: int) -> str:
    found = record.rollout
    if found is None or job_id not in found.places:
        return ""
    before, after = found.places[job_id]
    return (
        f"place {after} instead of {before} among the first {found.simulated} jobs after {found.rollouts} rollouts; "
        f"their order is expected to save {found.gain / 3600:.1f} h of waiting in all"
    )


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _placement(record: DecisionRecord, job_id: int) -> str:
    way = record.placement.ways.get(job_id)
    if record.placement.apply is PlacementApply.OFF or way is None:
        return ""
    return f"{way.kind} on {','.join(way.nodes)} now"

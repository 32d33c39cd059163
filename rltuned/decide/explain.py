"""Why is this job at this place? A typed answer, from a decision record."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rltuned.core.changes import Field, Outcome
from rltuned.decide.decision import DecisionRecord, LenderRecord, StartAnswer
from rltuned.decide.raising import STOP_MEANING, Stop
from rltuned.decide.rank.heuristics import RULES

OUTCOME_MEANING: Final[Mapping[Outcome, str]] = {
    Outcome.THROTTLED: "waits: the budget below Slurm's RPC limiter was spent on jobs further ahead; a later cycle",
    Outcome.GONE: "not written: the job left the queue in between",
    Outcome.HELD: "not written: the job was held in between",
    Outcome.FOREIGN: "not written: somebody else changed the job in between",
    Outcome.CHANGED: "not written: its limit, size, partition, account or QOS was changed in between",
    Outcome.ALTERED: "written; its limit, size, partition, account or QOS changed at the same moment",
    Outcome.UNDONE: "written; squeue shows its old priority, which Slurm's backfill has put back; a later cycle",
    Outcome.DENIED: "refused by Slurm for lack of privilege",
    Outcome.FAILED: "sent, but not seen on the job; the next cycle settles it",
}


FINISHED_JOBS: Final = "finished jobs"
TIME_LIMIT: Final = "time limit"
"""What a run-time estimate rests on: the site's finished jobs (docs/estimates.md), or what the job asked for."""


class Treatment(enum.StrEnum):
    """What rltuned does with the job."""

    RAISED = "goes ahead"
    KEPT = "left where Slurm has it"
    NOT_MANAGED = "not managed"
    NOT_PENDING = "not pending"
    NEW = "came after the last decision"


@dataclass(frozen=True, slots=True)
class FeatureValue:
    """One feature of the job as the policy saw it."""

    name: str
    value: float
    median: float  # over the visible queue, for comparison


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a model's score. The score is the sum of all products."""

    name: str
    value: float
    coefficient: float  # in that cycle, of all jobs
    product: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to ``rltuned explain JOBID``."""

    job_id: int
    verdict: Treatment
    time: float  # when the decision was made, epoch seconds
    policy: str = ""
    policy_why: str = ""
    policy_terms: str = ""  # what a plain rule ranks by
    stage: str = ""
    held_back: str = ""  # why that is not the configured stage
    queue_size: int = 0  # managed jobs that wait
    slurm_rank: int | None = None
    """1 is the front of the queue; what it would have been without rltuned."""
    rank: int | None = None
    slurm_priority: int | None = None
    target_priority: int | None = None
    score: float | None = None
    better_scored: int | None = None  # visible jobs with a higher score
    run_time_estimate: float | None = None  # seconds that it is expected to run, in the mean
    run_time_low: float | None = None  # with 80 % it runs for so many seconds at least …
    run_time_high: float | None = None  # … and at most
    estimated_from: str = ""
    gpus: float | None = None
    wait: float | None = None  # seconds
    features: tuple[FeatureValue, ...] = ()
    terms: tuple[Term, ...] = ()
    """Of a model's score, in the order of the columns; empty where a plain rule ranks."""
    stopped: str = ""  # why it goes no further ahead
    stopped_by: int | None = None  # the job that it stays behind
    passes: int | None = None  # the first job that it passes
    charged: float | None = None  # seconds that it is charged for before it has ended
    lenders: tuple[LenderRecord, ...] = ()  # who lends for it when it starts
    may_lend: float | None = None
    """GPU-seconds in all: a part of its wait, times its size; None: not known."""
    lent: float = 0.0  # GPU-seconds
    borrowers: tuple[int, ...] = ()  # the last jobs that it has lent to
    loans: int = 0  # to how many it has lent
    lends_for: tuple[int, ...] = ()  # raised jobs to which it lends when they start
    veto: str = ""
    priority: int | None = None  # as read; likewise the others
    site_factor: int | None = None
    reason: str = ""  # Slurm's, of a job that is not managed
    placement: str = ""
    outcome: str = ""
    force: str = ""  # of a raised job: whether squeue showed that before the writes of this cycle
    start: StartAnswer | None = None


def explain(record: DecisionRecord, job_id: int) -> Explanation:
    """Explain one job from a decision record."""
    common: dict[str, Any] = {
        "job_id": job_id,
        "time": record.time,
        "policy": record.policy,
        "policy_why": record.policy_why,
        "policy_terms": RULES[record.policy].terms if record.policy in RULES else "",
        "stage": record.stage,
        "held_back": record.held_back,
    }
    jobs = record.jobs
    common["start"] = None if record.starts is None else record.starts.of(job_id)
    common["lends_for"] = tuple(one.id for one in record.raises if job_id in {lender.id for lender in one.lenders})
    if (given := record.lent.get(job_id)) is not None:
        common |= {"may_lend": given.most, "lent": given.lent, "borrowers": given.borrowers, "loans": given.loans}
    if job_id not in jobs.id:
        if (left := record.left) is not None and job_id in left.id:
            at = left.id.index(job_id)
            common |= {"priority": left.priority[at], "site_factor": left.site[at]}
            common["reason"] = record.reasons[left.reason[at]] if left.reason[at] >= 0 else ""
        if (veto := record.veto_of(job_id)) is not None:
            return Explanation(verdict=Treatment.NOT_MANAGED, veto=f"{veto}: {veto.meaning}", **common)
        return Explanation(verdict=Treatment.NOT_PENDING, **common)
    at = jobs.id.index(job_id)
    seen, stop = jobs.seen[at], Stop(jobs.stop[at])
    raised = next((one for one in record.raises if one.id == job_id), None)
    visible = _visible(record, seen) if seen >= 0 else {}
    outcomes, way = record.outcomes.get(job_id, {}), record.placement.ways.get(job_id)
    common["may_lend"] = jobs.may_lend[at]
    if raised is not None:
        common |= {"passes": raised.first, "charged": raised.seconds, "lenders": raised.lenders}
        common["force"] = _force(record, job_id)
    return Explanation(
        verdict=Treatment.KEPT if raised is None else Treatment.RAISED,
        queue_size=len(jobs),
        slurm_rank=jobs.base_rank[at] + 1,
        rank=jobs.rank[at] + 1,
        slurm_priority=jobs.base[at],
        target_priority=jobs.target[at],
        priority=jobs.current[at],
        site_factor=None if jobs.site is None else jobs.site[at],
        stopped=STOP_MEANING.get(stop, ""),
        stopped_by=jobs.stopped_by[at] or None,
        wait=jobs.wait[at],
        placement="" if way is None else f"{way.kind} on {','.join(way.nodes)} now",
        outcome=", ".join(f"{name} {OUTCOME_MEANING.get(outcome, outcome)}" for name, outcome in outcomes.items()),
        **visible,
        **common,
    )


def _force(record: DecisionRecord, job: int) -> str:
    """Whether squeue showed the raise of this job."""
    change = next((one for one in record.changes if (one.job_id, one.field) == (job, Field.SITE_FACTOR)), None)
    if change is None:
        return "in force"
    if change.before == change.after:
        return "Slurm's backfill had put back what was written, so it was to be written again"
    return "not in force yet"


def _visible(record: DecisionRecord, seen: int) -> dict[str, Any]:
    window = record.window
    columns, values = ((), ()) if window.terms is None else (record.columns, window.terms[seen])
    score = window.score[seen]
    better = sum(other > score for other in window.score)
    medians = np.median(np.array(window.values), axis=0).tolist()
    features = tuple(
        FeatureValue(name, value, median)
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
        "features": features,
        "terms": tuple(
            Term(name, value, weight, weight * value)
            for name, value, weight in zip(columns, values, record.coefficients or (), strict=True)
        ),
    }

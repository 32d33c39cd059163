"""Why is this job at this rank? A typed answer, from a decision record."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rltuned.cluster.changes import Outcome
from rltuned.decide.ranks import Guard
from rltuned.decide.record import RECORD_VERSION
from rltuned.decide.scope import MEANING, Veto
from rltuned.errors import RltunedError

GUARD_MEANING: Final[Mapping[Guard, str]] = {
    Guard.AGE_BOUND: "it has waited longer than the age bound, so it is never moved back",
    Guard.ACCOUNT_SHARE: "its account already has its share of the places at the front",
    Guard.DWELL: "it was moved a moment ago and keeps its place for the dwell time",
    Guard.OUTSIDE_WINDOW: "it is too far back for the policy to see in this cycle and keeps Slurm's order",
}


OUTCOME_MEANING: Final[Mapping[str, str]] = {
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
class Explanation:
    """The answer to ``rltuned explain JOBID``."""

    job_id: int
    verdict: Verdict
    time: float
    """When the decision was made, epoch seconds."""
    policy: str = ""
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

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def explain(record: Mapping[str, Any], job_id: int) -> Explanation:
    """Explain one job from a decision record (`record.record`).

    Raises:
        RltunedError: the record is of another version.
    """
    if record.get("version") != RECORD_VERSION:
        raise RltunedError(
            f"the decision record has version {record.get('version')!r}, this rltuned reads {RECORD_VERSION}; "
            "wait for the next cycle of the running daemon"
        )
    common: dict[str, Any] = {
        "job_id": job_id,
        "time": record["time"],
        "policy": record["policy"],
        "mode": record["mode"],
        "stage": record["stage"],
    }
    jobs = record["jobs"]
    if job_id not in jobs["id"]:
        for name, ids in record["vetoed"].items():
            if job_id in ids:
                return Explanation(verdict=Verdict.NOT_MANAGED, veto=f"{name}: {MEANING[Veto(name)]}", **common)
        return Explanation(verdict=Verdict.NOT_PENDING, **common)
    at = jobs["id"].index(job_id)
    rank, base_rank, seen = jobs["rank"][at], jobs["base_rank"][at], jobs["seen"][at]
    verdict = Verdict.FORWARD if rank < base_rank else Verdict.BACK if rank > base_rank else Verdict.KEPT
    visible: dict[str, Any] = {}
    if seen >= 0:
        visible = _visible(record, at, seen)
    guards = tuple(meaning for guard, meaning in GUARD_MEANING.items() if jobs["guards"][at] & guard)
    outcomes = record["outcomes"].get(str(job_id), {})
    return Explanation(
        verdict=verdict,
        class_name=record["classes"][jobs["class"][at]],
        class_size=record["class_sizes"][jobs["class"][at]],
        slurm_rank=base_rank + 1,
        rank=rank + 1,
        queue_position=jobs["position"][at] + 1,
        slurm_priority=jobs["base"][at],
        target_priority=jobs["target"][at],
        guards=guards,
        placement=_placement(record, job_id),
        outcome=", ".join(f"{name} {OUTCOME_MEANING.get(outcome, outcome)}" for name, outcome in outcomes.items()),
        **visible,
        **common,
    )


def _visible(record: Mapping[str, Any], at: int, seen: int) -> dict[str, Any]:
    window, jobs = record["window"], record["jobs"]
    score = window["score"][seen]
    mine = jobs["class"][at]
    better = sum(
        1
        for other, index in enumerate(jobs["seen"])
        if index >= 0 and jobs["class"][other] == mine and window["score"][index] > score
    )
    values = window["values"]
    features = tuple(
        FeatureValue(name, values[seen][column], _median([row[column] for row in values]), name in record["columns"])
        for column, name in enumerate(record["features"])
    )
    return {
        "score": score,
        "better_scored": better,
        "run_time_estimate": window["run_time"][seen],
        "estimated_from": FINISHED_JOBS if window.get("predicted", {seen: False})[seen] else TIME_LIMIT,
        "gpus": window["gpus"][seen],
        "wait": window["wait"][seen],
        "features": features,
    }


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _placement(record: Mapping[str, Any], job_id: int) -> str:
    placement = record["placement"]
    if placement["apply"] == "off":
        return ""
    way = placement["ways"].get(str(job_id))
    if way is None:
        return ""
    when = "now" if way["slot"] == 0 else "when running jobs have ended"
    return f"{way['kind']} on {','.join(way['nodes'])} {when}"

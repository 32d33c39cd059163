"""What the decision log says of a period, in one pass. Memory grows with the jobs, not with the cycles."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rltuned.core.changes import Outcome
from rltuned.core.config import Stage
from rltuned.decide.decision import DecisionRecord
from rltuned.decide.entry import CycleEntry
from rltuned.decide.scope import Veto

POINTS: Final = 240  # points of a series over the period
LONGEST_GAP: Final = 900.0  # seconds between two entries that count as covered, …
PATIENCE: Final = 4.0  # … or so many intervals of cycles
MOST_FAULTS: Final = 20
SOUND: Final = frozenset({"done", "standby"})  # outcomes of cycles that did what they should
_NUMBER: Final = re.compile(r"\d[\d.,]*")


class Prediction(NamedTuple):
    """What was expected of a job when the policy first saw it. Seconds."""

    run_time: float
    time_limit: float | None
    learned: bool  # rests on finished jobs, not on the time limit


Faults = dict[tuple[str, str, str], dict[str, Any]]
"""Cycles that did not do what they should, by stage, outcome and cause: how many, the first and the last."""


@dataclass
class Period:
    """What the log says of [since, until), epoch seconds."""

    since: float
    until: float
    interval: float = 60.0
    cycles: Counter[str] = field(default_factory=Counter)  # by outcome
    stages: Counter[Stage] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    covered: float = 0.0  # seconds of which the log has cycles
    faults: Faults = field(default_factory=dict)
    held_back: Faults = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    """Over the cycles with a plan: of those (`cycles`), and of jobs (`pending`, `managed`, `raised`, `changes`)."""
    most_pending: int = 0
    oldest: float = 0.0  # longest wait of a pending job that was seen, seconds
    stopped: Counter[str] = field(default_factory=Counter)  # sums of jobs over the cycles
    vetoed: Counter[Veto] = field(default_factory=Counter)
    results: Counter[Outcome] = field(default_factory=Counter)
    restored: int = 0
    skipped: int = 0  # cycles with rows that could not be understood
    decisions: int = 0
    raised: set[int] = field(default_factory=set)  # jobs that were to go ahead at some time
    lent: dict[int, float] = field(default_factory=dict)
    """GPU-seconds by id of the lender, as they were when it was seen waiting last."""
    loans: dict[tuple[int, int], float] = field(default_factory=dict)
    """GPU-seconds by ids of borrower and lender, of the loans that were seen open, as they were last."""
    seen: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    canary: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)  # jobs that stage canary left alone
    predictions: dict[int, Prediction] = field(default_factory=dict)
    points: dict[int, Counter[str]] = field(default_factory=dict)
    """Sums over the entries of each stretch of the period: of those (`count`), and as `series` has them."""
    share: float | None = None  # `lend.share` of the last decision; None: there is none
    _last: float = float("-inf")

    @property
    def total(self) -> int:
        """Cycles."""
        return sum(self.cycles.values())

    @property
    def coverage(self) -> float:
        """Share of the period of which the log has cycles."""
        return round(min(self.covered / max(self.until - self.since, 1.0), 1.0), 4)

    @property
    def mode(self) -> Stage:
        """What rltuned did for most of the period: steered the queue, or a part of it (canary), or only looked on."""
        active = self.stages[Stage.ACTIVE]
        if 2 * active > self.total:
            return Stage.ACTIVE
        return Stage.CANARY if 2 * (active + self.stages[Stage.CANARY]) > self.total else Stage.SHADOW

    @property
    def policy(self) -> str:
        """That decided most of the cycles; "" where none did."""
        return self.policies.most_common(1)[0][0] if self.policies else ""

    def add(self, entry: CycleEntry) -> None:
        """One more cycle; they come in the order of time."""
        self.cycles[entry.outcome] += 1
        self.stages[entry.stage] += 1
        if self._last >= self.since:
            self.covered += min(max(entry.time - self._last, 0.0), max(LONGEST_GAP, PATIENCE * self.interval))
        self._last = entry.time
        if entry.outcome not in SOUND:
            _count(self.faults, entry, entry.sentence)
        if entry.held_back:
            _count(self.held_back, entry, entry.held_back)
        self.results.update(entry.results)
        self.restored += entry.restored
        if (seen := entry.seen) is not None:
            self.most_pending = max(self.most_pending, seen.pending)
            self.oldest = max(self.oldest, seen.oldest)
            self.skipped += seen.skipped > 0
            share = (entry.time - self.since) / max(self.until - self.since, 1.0)
            at = min(max(int(share * POINTS), 0), POINTS - 1)
            raised = entry.wanted.raised if entry.wanted is not None else 0
            self.points.setdefault(at, Counter()).update(
                count=1, pending=seen.pending, gpus=seen.gpus, gpus_used=seen.gpus_used, raised=raised
            )
        if (wanted := entry.wanted) is not None:
            self.policies[wanted.policy] += 1
            pending = seen.pending if seen is not None else 0
            self.sums.update(
                cycles=1, pending=pending, managed=wanted.managed, raised=wanted.raised, changes=wanted.changes
            )
            self.stopped.update(wanted.stopped)
            self.vetoed.update(wanted.vetoed)
        if entry.decision is not None:
            self._look_at(entry.decision)

    def _look_at(self, made: DecisionRecord) -> None:
        jobs, window = made.jobs, made.window
        self.decisions += 1
        self.share = made.share
        self.seen.update(jobs.id)
        self.raised |= made.raised
        self.lent.update((job, one.lent) for job, one in made.lent.items())
        self.loans.update(((one.borrower, one.lender), one.lent) for one in made.loans)
        for job, seen in zip(jobs.id, jobs.seen, strict=True):
            if seen >= 0 and job not in self.predictions:
                expected = window.run_time[seen], window.time_limit[seen], window.predicted[seen]
                self.predictions[job] = Prediction(*expected)
        for job, outcomes in made.outcomes.items():
            if Outcome.APPLIED in outcomes.values():
                self.written.add(job)
        if made.stage is Stage.CANARY:
            self.canary.update(jobs.id)
            self.others.update(made.vetoed.get(Veto.CANARY, ()))

    def series(self) -> dict[str, list[float]]:
        """Means over stretches of the period, and `time`, the middle of each, epoch seconds."""
        step = (self.until - self.since) / POINTS
        rows = sorted(self.points.items())
        found = {"time": [round(self.since + (at + 0.5) * step, 1) for at, _ in rows]}
        for name in ("pending", "gpus", "gpus_used", "raised"):
            found[name] = [round(point[name] / point["count"], 2) for _, point in rows]
        return found

    def to_json(self, *, names: bool = True) -> dict[str, Any]:
        """Plain data; sums as means over the cycles with a plan. `names`: with the sentences of faults."""
        cycles = max(self.sums["cycles"], 1)

        def mean(total: float) -> float:
            return round(total / cycles, 2)

        return {
            "cycles": dict(self.cycles),
            "stages": {stage.value: count for stage, count in self.stages.items()},
            "policies": dict(self.policies),
            "covered": self.coverage,
            "decisions": self.decisions,
            "queue": {
                "pending_mean": mean(self.sums["pending"]),
                "pending_most": self.most_pending,
                **{f"{name}_mean": mean(self.sums[name]) for name in ("managed", "raised", "changes")},
                "oldest": self.oldest,
            },
            "jobs": {
                "managed": len(self.seen),
                "raised": len(self.raised),
                "written": len(self.written),
                "lenders": len(self.lent),
                "borrowers": len({borrower for borrower, _ in self.loans}),
            },
            "lent": round(sum(self.lent.values()), 1),
            "results": {outcome.value: count for outcome, count in self.results.items()},
            "restored": self.restored,
            "stopped": {name: mean(count) for name, count in self.stopped.most_common()},
            "vetoed": {veto.value: mean(count) for veto, count in self.vetoed.most_common()},
            "cycles_with_skipped_rows": self.skipped,
            "faults": _listed(self.faults, names=names),
            "held_back": _listed(self.held_back, names=names),
            "series": self.series(),
        }


def read(entries: Iterable[CycleEntry], since: float, until: float, interval: float = 60.0) -> Period:
    """The period of a log's entries, which come in the order of time. `interval`: of the cycles, seconds."""
    period = Period(since, until, interval)
    for entry in entries:
        period.add(entry)
    return period


def _count(faults: Faults, entry: CycleEntry, sentence: str) -> None:
    stage, outcome = entry.stage.value, entry.outcome
    fault = faults.setdefault(
        (stage, outcome, _NUMBER.sub("#", sentence)),
        {"stage": stage, "outcome": outcome, "what": sentence, "count": 0, "first": entry.time},
    )
    fault["count"] += 1
    fault["last"] = entry.time


def _listed(faults: Faults, *, names: bool) -> list[dict[str, Any]]:
    """Without names no sentence: it may carry ids of jobs and text of users."""
    found: Faults = {}
    for (stage, outcome, cause), one in faults.items():
        fault = found.setdefault((stage, outcome, cause if names else ""), {**one, "count": 0})
        if not names:
            fault["what"] = ""
        fault["count"] += one["count"]
        fault["first"], fault["last"] = min(fault["first"], one["first"]), max(fault["last"], one["last"])
    return sorted(found.values(), key=lambda fault: -fault["count"])[:MOST_FAULTS]

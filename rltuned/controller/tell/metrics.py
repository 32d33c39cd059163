"""``rltuned_*`` metrics on a registry of their own. Slurm's own state is the business of the Slurm exporters.

Base units, closed label sets, never a job, a user or an account as a label: the number of series depends on nothing
that users do. A scrape reads values that the last cycle left here; it never touches Slurm.
"""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from rltuned import __version__
from rltuned.controller.tell.states import BreakerState, CycleOutcome, Standing
from rltuned.core.changes import Field, Outcome
from rltuned.core.config import Stage
from rltuned.core.tables import Ints, Snapshot
from rltuned.core.unread import RowKind
from rltuned.decide.plan import Plan

PHASES: Final = ("read", "reconcile", "plan", "apply", "forecast", "report", "total")
ERRORS: Final = ("unavailable", "parse", "denied", "other")
TIERS: Final = ("first", "second", "third", "lower")
"""Priority tiers by rank among all partitions of the cluster, the highest first: a closed set whatever the numbers."""
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WAITING: Final = (10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0, 604800.0)


_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)


class Metrics:
    """All metrics. Every label value is there from the start, so that a rate over a rare event works."""

    def __init__(self, vetoes: Iterable[str] = (), placements: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, **labels: Iterable[str]) -> Gauge:
            return _filled(Gauge(f"rltuned_{name}", text, list(labels), registry=self.registry), labels)

        def counter(name: str, text: str, **labels: Iterable[str]) -> Counter:
            return _filled(Counter(f"rltuned_{name}", text, list(labels), registry=self.registry), labels)

        def histogram(name: str, text: str, buckets: Sequence[float], **labels: Iterable[str]) -> Histogram:
            made = Histogram(f"rltuned_{name}", text, list(labels), registry=self.registry, buckets=buckets)
            return _filled(made, labels)

        self._vetoes = tuple(vetoes)
        self.build = gauge("build_info", "Version of rltuned; always 1.", version=[__version__])
        self.build.labels(__version__).set(1)
        self.cycles = counter("cycles", "Cycles by how they ended.", outcome=CycleOutcome)
        self.seconds = histogram("cycle_duration_seconds", "Duration of a cycle, by phase.", BUCKETS, phase=PHASES)
        self.overruns = counter("cycle_overruns", "Cycles that were due while the one before still ran.")
        self.last_cycle = gauge("last_cycle_timestamp_seconds", "When the last cycle ended, however it ended.")
        self.last_success = gauge("last_success_timestamp_seconds", "When the last cycle ended well.")
        self.interval = gauge("cycle_interval_seconds", "Configured time from cycle to cycle.")
        self.changes = counter("changes", "Changes by field and outcome.", field=Field, outcome=Outcome)
        self.pending = gauge("pending_jobs", "Pending jobs at the last reading.")
        self.managed = gauge("managed_jobs", "Pending jobs that the last plan manages.")
        self.vetoed = gauge(
            "vetoed_jobs", "Pending jobs that the last plan leaves alone, by reason.", reason=self._vetoes
        )
        self.waiting = histogram(
            "job_wait_seconds",
            "How long managed jobs had waited when they started, by rank of their partition's priority tier.",
            WAITING,
            tier=TIERS,
        )
        self.raised = gauge("raised_jobs", "Jobs that the last plan wants ahead of their place in Slurm's order.")
        self.raised_in_force = gauge(
            "raised_jobs_in_force",
            "Of these, the jobs that squeue showed at the last reading where the plan wants them.",
        )
        self.lent = gauge("lent_gpu_seconds", "GPU-seconds that the jobs that wait now have lent until now.")
        self.open_loans = gauge(
            "open_loans", "Loans, of a job that waits to one that started ahead of it, that are not settled."
        )
        self.share = gauge("lend_share", "Part of its wait that a waiting job may lend by the last plan (lend.share).")
        self.placements = counter("placements", "Placement problems by how the solver ended.", outcome=placements)
        self.stage = gauge("stage", "Stage in force: 1 for the one, 0 for the others.", stage=Stage)
        self.demotions = counter("demotions", "Times that alarms made the stage fall to shadow.")
        self.demoted = gauge("demoted", "Whether it is in stage shadow now because of alarms: 1 or 0.")
        self.blocked = gauge("prerequisite_errors", "Unmet prerequisites that keep the daemon in shadow mode.")
        self.standby = gauge("standby", "Whether it stands by, because slurmctld runs on another host: 1 or 0.")
        self.paused = gauge("paused", "Whether an admin has paused it: it gives back and writes nothing: 1 or 0.")
        self.breaker = gauge("breaker_state", "Circuit breaker: 1 for its state, 0 for the others.", state=BreakerState)
        self.unknown_reasons = gauge("unknown_reasons", "Pending jobs whose reason in squeue rltuned does not know.")
        self.skipped = gauge(
            "skipped_rows", "Rows of Slurm's answers that could not be understood, by kind.", kind=RowKind
        )
        self.errors = counter("slurm_errors", "Failed reads and writes of Slurm, by kind.", kind=ERRORS)
        self.tokens = gauge("write_budget_tokens", "RPCs that the write budget has left.")
        self.journal_jobs = gauge("journal_jobs", "Jobs that the journal knows.")
        self.journal_damage = gauge("journal_damaged_lines", "Journal lines that could not be read at start.")
        self.journal_failed = gauge("journal_failed_copies", "Copies of the journal that cannot be written now.")
        self.foreign = gauge("foreign_jobs", "Jobs that somebody else changed and that are left alone.")
        self.orphans = gauge("orphan_jobs", "Pending jobs with a site factor that the journal does not explain.")
        self.predicted = gauge("predicted_jobs", "Pending jobs whose run time is predicted from finished ones.")
        self.history_until = gauge("history_timestamp_seconds", "Up to when finished jobs are known; 0: none are.")
        self.history_errors = counter("history_errors", "Times that finished jobs could not be read.")
        self.unable = gauge(
            "unable_seconds", "Time for which Slurm has answered but no plan could be carried out; 0: the last one was."
        )
        self.unreturned = gauge(
            "unreturned_jobs",
            "Pending jobs that are to be given back to Slurm and could not be yet; tried again for ever.",
        )
        self.restored = counter("restored_jobs", "Jobs that the running daemon gave back to Slurm.")
        self.verdict = gauge(
            "verdict_state",
            "What the verdict is worth to policy auto: 1 for its state, 0 for the others.",
            state=Standing,
        )
        self.verdict_end = gauge("verdict_end_timestamp_seconds", "When the verdict of policy auto ends; NaN: none is.")
        self.model_version = gauge("model_version", "Version of the model store that is in force; 0: none is.")
        self.reloads = counter(
            "reloads",
            "Configuration reloads, and versions of the model store, by result.",
            result=("applied", "refused"),
        )
        ProcessCollector("rltuned", registry=self.registry)
        self.verdict_end.set(math.nan)
        show(self.stage, Stage.SHADOW)
        show(self.breaker, BreakerState.CLOSED)
        show(self.verdict, Standing.UNUSED)

    def set_vetoes(self, counts: Mapping[str, int]) -> None:
        """Jobs by the reason why they are left alone; reasons that are not given are 0."""
        for reason in self._vetoes:
            self.vetoed.labels(reason).set(counts.get(reason, 0))


def show(gauge: Gauge, one: enum.StrEnum) -> None:
    """Set 1 for this one and 0 for the others of its kind."""
    for other in type(one):
        gauge.labels(other.value).set(other is one)


def _filled(metric: _Metric, labels: Mapping[str, Iterable[str]]) -> _Metric:
    """The metric, with each value of its labels."""
    for values in product(*labels.values()):
        if values:
            metric.labels(*values)
    return metric


@dataclass
class Starts:
    """Which managed jobs have started since the last reading, and how long they have waited."""

    _tiers: dict[int, str] = field(default_factory=dict)
    """Of `TIERS`, by id of each job (or array) that the last plan manages."""
    _running: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def since_last(self, snapshot: Snapshot) -> list[tuple[str, float]]:
        """Tier and seconds of waiting (from when it was eligible) of jobs of the last plan that run now and did not at
        the last reading. A task of an array counts as a job. One that starts and ends between two readings is not seen.
        """
        jobs = snapshot.jobs
        running, before = jobs.job_id[jobs.running], self._running
        self._running = running
        if not self._tiers:
            return []
        found = []
        for row in jobs.running[~np.isin(running, before)].tolist():
            job = int(jobs.job_id[row])
            tier = self._tiers.get(job) or self._tiers.get(snapshot.array_of.get(job, job))
            began, eligible = jobs.start_time[row], jobs.eligible_time[row]
            waited = float(began - (jobs.submit_time[row] if np.isnan(eligible) else eligible))
            if tier is not None and np.isfinite(waited):
                found.append((tier, max(waited, 0.0)))
        return found

    def manages(self, plan: Plan) -> None:
        """This is the last plan now."""
        tiers = sorted({partition.priority_tier for partition in plan.snapshot.partitions}, reverse=True)
        ranks = {tier: rank for rank, tier in enumerate(tiers)}
        ids = plan.snapshot.jobs.job_id[plan.rows].tolist()
        self._tiers = {
            job: TIERS[min(ranks[tier], len(TIERS) - 1)]
            for job, tier in zip(ids, plan.managed.tier.tolist(), strict=True)
        }

    def manages_none(self) -> None:
        """No plan was made, and none is to come soon."""
        self._tiers = {}

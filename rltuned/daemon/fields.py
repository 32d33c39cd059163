"""What is known of each field that rltuned writes: one row per field, for apply, reconcile and restore alike.

A row tells how a field is claimed and shown, which changes of it may be sent, what its outcome is after a write, and
what a look at the job settles. How it is taken back: `rltuned.daemon.restore.batches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rltuned.cluster.changes import MAX_FACTOR, Applied, Change, Field, JobStatus, Outcome, OverSubscribe, WriteResult
from rltuned.daemon.claims import (
    SETTLE_SECONDS,
    Entry,
    Row,
    Value,
    blank,
    estranged,
    recognised,
    without_doubts,
)

NO_TERMS: Final = 1
"""Priority of a job of which every term is 0. sprio shows it like a job with the explicit priority 1, so it counts as
not listed."""

NOT_ELIGIBLE: Final = frozenset({"Dependency", "DependencyNeverSatisfied", "BeginTime"})
"""Reasons for which sprio(1) leaves a job out although its priority is multifactor's."""

ISOLATED: Final = frozenset({OverSubscribe.NO, OverSubscribe.UNKNOWN})
"""How a job that we isolated shows: recent releases do not tell it from a default one."""

EXPLICIT: Final = "somebody set an explicit priority"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a change may be sent."""

    outcome: Outcome | None = None
    """What became of it already; None: it may be sent."""
    message: str = ""
    entry: Entry | None = None
    """Of the job, where something was learned."""


def old(entry: Entry, now: float) -> bool:
    """Whether slurmctld, killed now, would not bring back what was before the last write."""
    return now - entry.touched >= SETTLE_SECONDS


def recognise(entry: Entry | None, row: Row, value: Value) -> Entry | None:
    """Return the entry when a value in doubt turned out to be on the job; None when there is nothing to learn."""
    in_doubt = entry is not None and value in entry.doubts.get(row.field, ())
    return recognised(entry, row, value) if entry is not None and in_doubt else None


class _SiteFactor:
    """SiteFactor: its methods say what those of each row do."""

    field = Field.SITE_FACTOR
    neutral: Value | None = 0

    def claimed(self, applied: Applied) -> Value:
        return applied.site_factor

    def take(self, applied: Applied, value: Value | None) -> Applied:
        return replace(applied, site_factor=int(value or 0))

    def shown(self, status: JobStatus) -> Value | None:
        """Return the field's value as read; None where Slurm does not show it."""
        return status.site_factor

    def unsendable(self, change: Change) -> str:
        """Say why a value must never be sent: the last line of defence; "" where it may."""
        out = abs(int(change.after)) > MAX_FACTOR
        return f"site factor {change.after} is outside ±{MAX_FACTOR}" if out else ""

    def judge(self, change: Change, status: JobStatus, entry: Entry | None, *, listed: bool) -> Judgement:
        """Judge a change of a pending job that is not held, as it was read right now.

        `listed`: sprio lists any job: if not, slurmctld has probably just started and not calculated yet.
        """
        known, value = entry or blank(change), status.site_factor
        if value is None:
            if status.reason in NOT_ELIGIBLE:
                return Judgement(Outcome.THROTTLED, "it is not eligible any more")
            if not listed:
                return Judgement(Outcome.THROTTLED, "sprio lists no job at present (slurmctld just started)")
            # The plan saw the job in sprio; it is gone from there while others are not.
            return Judgement(Outcome.FOREIGN, EXPLICIT, estranged(known, self, hidden=True))
        if value not in known.ours(self):
            return Judgement(Outcome.FOREIGN, f"somebody set SiteFactor={value}", estranged(known, self))
        if value == change.after:
            return Judgement(Outcome.UNCHANGED, entry=recognise(entry, self, value))
        return Judgement()

    def accepted(self, change: Change, answer: WriteResult, status: JobStatus) -> str:
        """Say why a write counts as done although the job does not show it; "" where it does not count."""
        unseen = status.site_factor is None and change.after == 0 and status.priority == NO_TERMS
        return "accepted; without any term sprio does not show it" if unseen and not answer.message else ""

    def lost(self, status: JobStatus, entry: Entry, *, listed: bool) -> Judgement | None:
        """Judge a write that was not seen on the job and that Slurm did not refuse; None: compare with before."""
        if status.site_factor is not None:
            return None
        if listed and status.reason not in NOT_ELIGIBLE:
            return Judgement(Outcome.FOREIGN, EXPLICIT, estranged(entry, self, hidden=True))
        return Judgement(Outcome.FAILED, "sprio does not list it at present")

    def settle(self, entry: Entry, status: JobStatus, now: float, *, explicit: bool) -> Entry:
        """Settle what a look at a pending job shows.

        `explicit`: sprio left it out twice in a row, with the same priority, while it listed others.
        """
        value = status.site_factor
        if status.held:
            return entry
        if value is None:
            looks_the_same = entry.applied.site_factor == 0 and status.priority == NO_TERMS
            at_stake = entry.applied.site_factor != 0 or self.field in entry.doubts
            if at_stake and explicit and not looks_the_same and status.reason not in NOT_ELIGIBLE:
                return estranged(entry, self, hidden=True)
            return entry
        if value == entry.applied.site_factor:
            unsettled = self.field in entry.doubts or entry.previous
            return without_doubts(entry, self) if unsettled and old(entry, now) else entry
        return recognise(entry, self, value) or estranged(entry, self)


class _OverSubscribe:
    """OverSubscribe: one-way in Slurm (docs/placement.md)."""

    field = Field.OVERSUBSCRIBE
    neutral: Value | None = None

    def claimed(self, applied: Applied) -> Value | None:
        return None if applied.oversubscribe is None else applied.oversubscribe.value

    def take(self, applied: Applied, value: Value | None) -> Applied:
        if value is None:
            return replace(applied, oversubscribe=None, oversubscribe_before=None)
        return replace(applied, oversubscribe=OverSubscribe(str(value)))

    def shown(self, status: JobStatus) -> Value:
        return status.oversubscribe.value

    def unsendable(self, change: Change) -> str:
        return "" if change.after == OverSubscribe.NO else f"OverSubscribe={change.after} is never set by a plan"

    def judge(self, change: Change, status: JobStatus, entry: Entry | None, *, listed: bool) -> Judgement:  # noqa: ARG002 - of every row
        value, ours = status.oversubscribe.value, () if entry is None else entry.ours(self)
        if entry is not None and ours:
            free = entry.applied.oversubscribe is None and value == entry.applied.oversubscribe_before
            if value not in ours and not free:
                return Judgement(Outcome.FOREIGN, f"somebody set OverSubscribe={value}", estranged(entry, self))
            if value == change.after:
                return Judgement(Outcome.UNCHANGED, entry=recognise(entry, self, value))
        elif value != change.before:
            # Nothing of ours is at stake: the user edited their own request, and the plan was about the old one.
            return Judgement(Outcome.FOREIGN, "OverSubscribe changed since the plan was made")
        return Judgement()

    def accepted(self, change: Change, answer: WriteResult, status: JobStatus) -> str:  # noqa: ARG002 - of every row
        # Recent releases show the same for a default job and an isolated one: scontrol's word counts.
        unseen = answer.outcome is Outcome.APPLIED and status.oversubscribe is OverSubscribe.UNKNOWN
        return "accepted; this release does not show it" if unseen else ""

    def lost(self, status: JobStatus, entry: Entry, *, listed: bool) -> None:  # noqa: ARG002 - of every row
        return None

    def settle(self, entry: Entry, status: JobStatus, now: float, *, explicit: bool) -> Entry:  # noqa: ARG002 - of every row
        if self.field not in entry.doubts:
            return entry
        if status.oversubscribe in ISOLATED:
            # Recent releases do not tell; taking it for ours costs nothing but a line of the report.
            return without_doubts(recognised(entry, self, OverSubscribe.NO.value), self)
        return without_doubts(entry, self) if old(entry, now) else entry


SITE_FACTOR: Final = _SiteFactor()
OVERSUBSCRIBE: Final = _OverSubscribe()
TABLE: Final[Mapping[Field, _SiteFactor | _OverSubscribe]] = {
    Field.SITE_FACTOR: SITE_FACTOR,
    Field.OVERSUBSCRIBE: OVERSUBSCRIBE,
}
"""Rows in the order in which they are settled and taken back."""

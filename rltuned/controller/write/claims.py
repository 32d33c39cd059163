"""What rltuned may call its own on a job.

An `Entry` is the journal's knowledge of one job: the claim (`Applied`: what we wrote and saw there) and, per field, the
*doubts*: values that may still turn out to be ours, because the write was not seen to succeed (crash, time-out; Slurm
may even carry it out later). A value that is neither claim nor doubt is somebody else's. One exception: slurmctld saves
its state every few seconds and comes back with the older one when it is killed, so for a while the *previous* value is
remembered too; it counts only when most of the jobs written last show theirs again (`reconcile`).

What is special about a field is a row of `TABLE`, for apply, reconcile and restore alike: how it is claimed and shown,
which changes of it may be sent, what its outcome is after a write, and what a look at the job settles. How it is taken
back: `rltuned.controller.give_back.batches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from rltuned.core.changes import Applied, Change, Field, JobStatus, Outcome, OverSubscribe, WriteResult
from rltuned.slurm.port import ClusterFacts

Value = int | str

SETTLE_SECONDS: Final = 30.0
"""slurmctld saves job state at most 5 s after a change (slurm/src/slurmctld/state_save.c, SAVE_MAX_WAIT); with a
margin."""

READING_SECONDS: Final = 60.0
"""How old a reading of a job may be when it is written to: the three commands of one, each close to its time-out. More
have passed when the process or the machine stood still meanwhile."""

MAX_DOUBTS: Final = 8

NO_TERMS: Final = 1
"""Priority of a job of which every term is 0. sprio shows it like a job with the explicit priority 1, so it counts as
not listed."""

ROUNDING: Final = 1
"""squeue and sprio add up the same terms, each in its own order: their sums differ by a fraction at most."""

ISOLATED: Final = frozenset({OverSubscribe.NO, OverSubscribe.UNKNOWN})
"""How a job that we isolated shows: recent releases do not tell it from a default one."""

UNLISTED: Final = "sprio does not list it at present (not eligible, an explicit priority, slurmctld just started?)"
"""No verdict: one reading may lack a row. Two in a row settle it (`reconcile`)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The journal's knowledge of one job."""

    applied: Applied
    doubts: Mapping[Field, tuple[Value, ...]] = field(default_factory=dict)
    previous: tuple[Value, ...] = ()
    """Site factors before the last writes that were seen to succeed, the latest first: a slurmctld that is killed
    before it saves them comes back with one of these. Until the last write is old enough to be safe."""
    touched: float = 0.0  # when the last intent or outcome was noted: epoch seconds by `Clock.steady`
    shares: OverSubscribe | None = None
    """OverSubscribe of the job's partition when we toggled the job's: decides whether that can be undone."""
    cleared: float = 0.0
    """When the slurmctld had started that took 0 as the site factor of a job of which it shows none (a held one), epoch
    seconds; 0: none has. What is in doubt can be there only where that one was killed before it saved this."""

    @property
    def job_id(self) -> int:
        """Of the job."""
        return self.applied.job_id

    @property
    def submit_time(self) -> int:
        """Epoch seconds; with the id, the job's identity."""
        return self.applied.submit_time

    @property
    def is_empty(self) -> bool:
        """Whether nothing of ours is on the job or can come back to it."""
        return self.applied.is_empty and not self.doubts and not self.previous

    @property
    def claims(self) -> bool:
        """Whether a value of ours was last seen on the job, as far as it can be taken back."""
        return self.applied.site_factor != 0

    @property
    def carries(self) -> bool:
        """Whether a value of ours that can be taken back is on the job, or may be."""
        return self.claims or any(self.doubts.get(Field.SITE_FACTOR, ()))

    @property
    def may_be_raised(self) -> bool:
        """Whether a raise of ours is on the job, or may be by a write that nobody has seen."""
        unseen = set(self.doubts.get(Field.SITE_FACTOR, ())) - set(self.previous)
        return self.claims or any(unseen)

    @property
    def factors(self) -> set[Value]:
        """Site factors of ours that may be on the job, also after slurmctld came back with an older state; never 0."""
        return {self.applied.site_factor, *self.doubts.get(Field.SITE_FACTOR, ()), *self.previous} - {0}

    def ours(self, row: "FieldRules") -> tuple[Value, ...]:
        """Return all values of a field that are ours: the claim first, then the doubts."""
        claim = row.claimed(self.applied)
        return (*(() if claim is None else (claim,)), *self.doubts.get(row.field, ()))


def standing(entry: Entry, status: JobStatus) -> int | None:
    """Return the site factor with which the job stands in Slurm's queue; None: sprio does not list it.

    It is the one that sprio shows, unless squeue's priority is nearer to the sum with an earlier one of ours, or with
    none: a backfill cycle that had begun before our write puts the priority of its beginning back, and it stays until
    priorities are calculated anew. Ageing, or a fair share that changes between the two commands of a reading, moves a
    priority by less than a site factor as a rule; else the same value is written once more, which changes nothing.
    """
    factor = status.site_factor
    if factor is None or status.held or (factor and factor not in entry.ours(SITE_FACTOR)):
        return factor

    def off(other: int) -> int:
        return min((abs(status.priority - max(base + other, 1)) for base in status.bases), default=0)

    if off(factor) <= ROUNDING:
        return factor
    earlier = {0, *map(int, entry.factors)} - {factor}
    return min((factor, *sorted(earlier)), key=off)


def intended(
    entry: Entry | None, row: "FieldRules", change: Change, now: float, *, shares: OverSubscribe | None = None
) -> Entry:
    """Return the entry to be on disk before `change` is sent. `shares`: OverSubscribe of the job's partition."""
    if entry is None or entry.submit_time != change.submit_time:
        entry = Entry(Applied(change.job_id, change.submit_time))
    of, applied = row.field, entry.applied
    if of is Field.OVERSUBSCRIBE and applied.oversubscribe is None and of not in entry.doubts:
        applied = replace(applied, oversubscribe_before=OverSubscribe(str(change.before)))
        entry = replace(entry, shares=shares)
    doubts = (*(value for value in entry.doubts.get(of, ()) if value != change.after), change.after)[-MAX_DOUBTS:]
    return replace(
        entry,
        applied=replace(applied, request=change.request) if change.request else applied,
        doubts=_with(entry.doubts, of, doubts),
        # Seen again, it will be this write, not an old state.
        previous=tuple(value for value in entry.previous if of is not Field.SITE_FACTOR or value != change.after),
        touched=now,
        cleared=_cleared(entry, row),
    )


def landed(entry: Entry, row: "FieldRules", value: Value, now: float) -> Entry:
    """Return the entry once `value` was seen on the job after our write. What a neutral one takes back stays in doubt:
    on a job that is held meanwhile, nothing shows what a slurmctld that was killed came back with.
    """
    if value == row.neutral:
        return replace(given_back(entry, row, sure=False), touched=now)
    return replace(
        entry,
        applied=row.take(entry.applied, value),
        doubts=_with(entry.doubts, row.field, ()),
        previous=_past(entry, row, value),
        touched=now,
    )


def recognised(entry: Entry, row: "FieldRules", value: Value) -> Entry:
    """Return the entry once a value in doubt was seen on the job: it is the claim now."""
    others = tuple(other for other in entry.doubts.get(row.field, ()) if other != value)
    return replace(
        entry,
        applied=row.take(entry.applied, value),
        doubts=_with(entry.doubts, row.field, others),
        previous=_past(entry, row, value),
        cleared=_cleared(entry, row),
    )


def rolled_back(entry: Entry, value: int) -> Entry:
    """Return the entry once slurmctld came back with this site factor of before our last writes."""
    return replace(entry, applied=replace(entry.applied, site_factor=value), previous=(), cleared=0.0)


def refused(entry: Entry, change: Change) -> Entry:
    """Return the entry once Slurm refused the write for certain: the intended value is nobody's."""
    left = tuple(value for value in entry.doubts.get(change.field, ()) if value != change.after)
    return replace(entry, doubts=_with(entry.doubts, change.field, left))


def estranged(entry: Entry, row: "FieldRules", *, hidden: bool = False) -> Entry:
    """Return the entry once somebody else changed the job: never planned again; our claim to that field is dropped,
    unless our site factor may lie `hidden` under an explicit priority and come back with their release.
    """
    applied = replace(entry.applied, foreign=True)
    if hidden:
        return replace(entry, applied=applied)
    # Should slurmctld be killed before it saves what they did, ours is there again.
    previous = _past(entry, row, None) if row.claimed(applied) else entry.previous
    doubts = _with(entry.doubts, row.field, ())
    return replace(entry, applied=row.take(applied, row.neutral), doubts=doubts, previous=previous)


def noticed(before: Entry | None, after: Entry, now: float) -> Entry:
    """Return the entry, of now if the job has just been found to be somebody else's: ours may come back for a while."""
    known = before is not None and before.applied.foreign
    return replace(after, touched=now) if after.applied.foreign and not known else after


def given_back(entry: Entry, row: "FieldRules", *, sure: bool) -> Entry:
    """Return the entry once the field was seen with its neutral value after we, or the dead-man for us, took ours back.
    Unless `sure`, what was ours stays in doubt: slurmctld may have been killed before it saved the undoing.
    """
    before, previous = entry.ours(row), _past(entry, row, row.neutral)
    entry = replace(entry, applied=row.take(entry.applied, row.neutral), previous=previous)
    if sure:
        return without_doubts(entry, row)
    doubts = tuple(dict.fromkeys(value for value in before if value != row.neutral))
    return replace(entry, doubts=_with(entry.doubts, row.field, doubts[-MAX_DOUBTS:]))


def without_doubts(entry: Entry, row: "FieldRules") -> Entry:
    """Return the entry with nothing in doubt about one field."""
    previous = () if row.field is Field.SITE_FACTOR else entry.previous
    return replace(entry, doubts=_with(entry.doubts, row.field, ()), previous=previous)


def requeued(entry: Entry, status: JobStatus, *, ids_go_on: bool) -> Entry | None:
    """Return the entry of a job that ran and was requeued: same id, new submit time, our value still on it. None when
    it is, or may be, another job: ids start over when slurmctld loses its state, unless another one kept its submit
    time (`ids_go_on`).
    """
    may_carry = ids_go_on and status.site_factor is None and bool(entry.factors)
    if status.site_factor not in entry.factors and not may_carry:
        return None
    return replace(entry, applied=replace(entry.applied, submit_time=status.submit_time))


def dated(entry: Entry, now: float) -> Entry:
    """Return the entry with an age: one from the future, noted before the wall clock was set back, counts from now."""
    return entry if entry.touched <= now else replace(entry, touched=now)


def _cleared(entry: Entry, row: "FieldRules") -> float:
    return 0.0 if row.field is Field.SITE_FACTOR else entry.cleared


def _with(
    doubts: Mapping[Field, tuple[Value, ...]], of: Field, values: tuple[Value, ...]
) -> Mapping[Field, tuple[Value, ...]]:
    changed = {name: old for name, old in doubts.items() if name is not of}
    if values:
        changed[of] = values
    return changed


def _past(entry: Entry, row: "FieldRules", value: Value | None) -> tuple[Value, ...]:
    """Site factors of the past once `value` is seen in the field: the claim, and what was past already."""
    if row.field is not Field.SITE_FACTOR:
        return entry.previous
    past = dict.fromkeys((entry.applied.site_factor, *entry.previous))
    return tuple(other for other in past if other != value)[:MAX_DOUBTS]


def settling_seconds(facts: ClusterFacts | None) -> float:
    """Return seconds after which a write can be undone no more: by a killed slurmctld, or by a backfill cycle."""
    return SETTLE_SECONDS if facts is None else max(SETTLE_SECONDS, facts.backfill_seconds)


def recognise(entry: Entry | None, row: "FieldRules", value: Value) -> Entry | None:
    """Return the entry when a value in doubt turned out to be on the job; None when there is nothing to learn."""
    in_doubt = entry is not None and value in entry.doubts.get(row.field, ())
    return recognised(entry, row, value) if entry is not None and in_doubt else None


class Judgement(NamedTuple):
    """Whether a change may be sent."""

    outcome: Outcome | None = None  # what became of it already; None: it may be sent
    message: str = ""
    entry: Entry | None = None  # of the job, where something was learned


class Look(NamedTuple):
    """A pending job as a reading shows it."""

    status: JobStatus
    now: float
    settling: float
    """Seconds after which what was before a write can come back no more (`settling_seconds`)."""
    explicit: bool
    """sprio left the job out twice in a row, with the same priority, while it listed others."""

    def settled(self, entry: Entry) -> bool:
        """Whether what was before the last write can come back no more: neither would slurmctld, killed now, bring it
        back, nor does a backfill cycle that had begun before.
        """
        old = self.now - entry.touched >= self.settling
        return old and standing(entry, self.status) == self.status.site_factor


class FieldRules(Protocol):
    """What is special about a field."""

    field: Field
    neutral: Value | None
    """With it, nothing of ours is on the job. None: Slurm has no such value."""

    def claimed(self, applied: Applied) -> Value | None:
        """Return what we wrote last; the neutral value where we wrote none."""

    def take(self, applied: Applied, value: Value | None) -> Applied:
        """Return the claim with this value in the field; the neutral value ends the claim to it."""

    def shown(self, status: JobStatus) -> Value | None:
        """Return the field's value as read; None where Slurm does not show it."""

    def judge(self, change: Change, status: JobStatus, entry: Entry | None) -> Judgement:
        """Judge a change of a pending job that is not held, as it was read right now."""

    def accepted(self, answer: WriteResult, status: JobStatus) -> str | None:
        """Say why a write counts as done although the job does not show it; None where it does not count."""

    def lost(self, status: JobStatus) -> str | None:
        """Say why nothing can be said of a write that was not seen on the job; None: compare with before."""

    def settle(self, entry: Entry, look: Look) -> Entry:
        """Settle what a look at a pending job shows."""


class _SiteFactor:
    field = Field.SITE_FACTOR
    neutral: Value | None = 0

    def claimed(self, applied: Applied) -> Value | None:
        return applied.site_factor

    def take(self, applied: Applied, value: Value | None) -> Applied:
        return replace(applied, site_factor=int(value or 0))

    def shown(self, status: JobStatus) -> Value | None:
        return status.site_factor

    def judge(self, change: Change, status: JobStatus, entry: Entry | None) -> Judgement:
        known, value = entry or Entry(Applied(change.job_id, change.submit_time)), status.site_factor
        if value is None:
            return Judgement(Outcome.THROTTLED, UNLISTED)
        if value not in known.ours(self):
            return Judgement(Outcome.FOREIGN, f"somebody set SiteFactor={value}", estranged(known, self))
        if value == change.after == standing(known, status):
            return Judgement(Outcome.UNCHANGED, entry=recognise(entry, self, value))
        return Judgement()

    def accepted(self, answer: WriteResult, status: JobStatus) -> str | None:
        unseen = status.site_factor is None and answer.change.after == 0 and status.priority == NO_TERMS
        return "accepted; without any term sprio does not show it" if unseen and not answer.message else None

    def lost(self, status: JobStatus) -> str | None:
        return UNLISTED if status.site_factor is None else None

    def settle(self, entry: Entry, look: Look) -> Entry:
        status, value = look.status, look.status.site_factor
        if status.held:
            return entry
        if value is None:
            looks_the_same = entry.applied.site_factor == 0 and status.priority == NO_TERMS
            at_stake = entry.applied.site_factor != 0 or self.field in entry.doubts
            hides = at_stake and look.explicit and not looks_the_same and status.eligible
            return estranged(entry, self, hidden=True) if hides else entry
        if value == entry.applied.site_factor:
            unsettled = self.field in entry.doubts or entry.previous
            return without_doubts(entry, self) if unsettled and look.settled(entry) else entry
        return recognise(entry, self, value) or estranged(entry, self)


class _OverSubscribe:
    """One-way in Slurm (decision 0020)."""

    field = Field.OVERSUBSCRIBE
    neutral: Value | None = None

    def claimed(self, applied: Applied) -> Value | None:
        return None if applied.oversubscribe is None else applied.oversubscribe.value

    def take(self, applied: Applied, value: Value | None) -> Applied:
        if value is None:
            return replace(applied, oversubscribe=None, oversubscribe_before=None)
        return replace(applied, oversubscribe=OverSubscribe(str(value)))

    def shown(self, status: JobStatus) -> Value | None:
        return status.oversubscribe.value

    def judge(self, change: Change, status: JobStatus, entry: Entry | None) -> Judgement:
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

    def accepted(self, answer: WriteResult, status: JobStatus) -> str | None:
        # Recent releases show the same for a default job and an isolated one: scontrol's word counts.
        unseen = answer.outcome is Outcome.APPLIED and status.oversubscribe is OverSubscribe.UNKNOWN
        return "accepted; this release does not show it" if unseen else None

    def lost(self, status: JobStatus) -> str | None:  # noqa: ARG002 - of every field
        return None

    def settle(self, entry: Entry, look: Look) -> Entry:
        if self.field not in entry.doubts:
            return entry
        if look.status.oversubscribe in ISOLATED:
            # Recent releases do not tell; taking it for ours costs nothing but a line of the report.
            return without_doubts(recognised(entry, self, OverSubscribe.NO.value), self)
        return without_doubts(entry, self) if look.now - entry.touched >= look.settling else entry


SITE_FACTOR: Final = _SiteFactor()
OVERSUBSCRIBE: Final = _OverSubscribe()
TABLE: Final[Mapping[Field, FieldRules]] = {Field.SITE_FACTOR: SITE_FACTOR, Field.OVERSUBSCRIBE: OVERSUBSCRIBE}
"""In the order in which the fields are settled and taken back."""

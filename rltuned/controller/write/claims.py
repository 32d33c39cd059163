"""What rltuned may call its own on a job.

An `Entry` is the journal's knowledge of one job: the claim (`Applied`: what we wrote and saw there) and, per field, the
*doubts*: values that may still turn out to be ours, because the write was not seen to succeed (crash, time-out; Slurm
may even carry it out later). A value that is neither claim nor doubt is somebody else's. One exception: slurmctld saves
its state every few seconds and comes back with the older one when it is killed, so for a while the *previous* value is
remembered too; it counts only when most of the jobs written last show theirs again (`reconcile`).

What is special about a field is in `RULES`, for apply, reconcile and restore alike: how it is claimed and shown,
which changes of it may be sent, what its outcome is after a write, and what a look at the job settles. How it is taken
back: `rltuned.controller.give_back.batches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, Self

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

NEUTRAL: Final[Mapping[Field, Value | None]] = {Field.SITE_FACTOR: 0, Field.OVERSUBSCRIBE: None}
"""With it, nothing of ours is on the job. None: Slurm has no such value."""

UNLISTED: Final = "sprio does not list it at present (not eligible, an explicit priority, slurmctld just started?)"
"""No verdict: one reading may lack a row. Two in a row settle it (`reconcile`)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The journal's knowledge of one job. A method returns what it is after something was done or seen."""

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

    def claim(self, of: Field) -> Value | None:
        """What we wrote last; the neutral value where we wrote none."""
        if of is Field.SITE_FACTOR:
            return self.applied.site_factor
        return None if self.applied.oversubscribe is None else self.applied.oversubscribe.value

    def ours(self, of: Field) -> tuple[Value, ...]:
        """All values of a field that are ours: the claim first, then the doubts."""
        claim = self.claim(of)
        return (*(() if claim is None else (claim,)), *self.doubts.get(of, ()))

    def standing(self, status: JobStatus) -> int | None:
        """The site factor with which the job stands in Slurm's queue; None: sprio does not list it.

        It is the one that sprio shows, unless squeue's priority is nearer to the sum with an earlier one of ours, or
        with none: a backfill cycle that had begun before our write puts the priority of its beginning back, and it
        stays until priorities are calculated anew. Ageing, or a fair share that changes between the two commands of a
        reading, moves a priority by less than a site factor as a rule; else the same value is written once more, which
        changes nothing.
        """
        factor = status.site_factor
        if factor is None or status.held or (factor and factor not in self.ours(Field.SITE_FACTOR)):
            return factor

        def off(other: int) -> int:
            return min((abs(status.priority - max(base + other, 1)) for base in status.bases), default=0)

        if off(factor) <= ROUNDING:
            return factor
        earlier = {0, *map(int, self.factors)} - {factor}
        return min((factor, *sorted(earlier)), key=off)

    @classmethod
    def blank(cls, change: Change) -> Self:
        """Of a job that was never touched."""
        return cls(Applied(change.job_id, change.submit_time))

    def intended(self, change: Change, now: float, *, shares: OverSubscribe | None = None) -> Self:
        """To be on disk before `change` is sent. `shares`: OverSubscribe of the job's partition."""
        of, applied, first = change.field, self.applied, False
        if of is Field.OVERSUBSCRIBE and applied.oversubscribe is None and of not in self.doubts:
            applied, first = replace(applied, oversubscribe_before=OverSubscribe(str(change.before))), True
        doubts = (*(value for value in self.doubts.get(of, ()) if value != change.after), change.after)[-MAX_DOUBTS:]
        return replace(
            self,
            applied=replace(applied, request=change.request) if change.request else applied,
            doubts=self._doubting(of, doubts),
            # Seen again, it will be this write, not an old state.
            previous=tuple(value for value in self.previous if of is not Field.SITE_FACTOR or value != change.after),
            touched=now,
            shares=shares if first else self.shares,
            cleared=self._cleared(of),
        )

    def landed(self, of: Field, value: Value, now: float) -> Self:
        """`value` was seen on the job after our write. What a neutral one takes back stays in doubt: on a job that is
        held meanwhile, nothing shows what a slurmctld that was killed came back with.
        """
        if value == NEUTRAL[of]:
            return replace(self.given_back(of, sure=False), touched=now)
        applied, doubts = self._claiming(of, value), self._doubting(of, ())
        return replace(self, applied=applied, doubts=doubts, previous=self._past(of, value), touched=now)

    def recognised(self, of: Field, value: Value) -> Self:
        """A value in doubt was seen on the job: it is the claim now."""
        others = tuple(other for other in self.doubts.get(of, ()) if other != value)
        applied, doubts = self._claiming(of, value), self._doubting(of, others)
        return replace(self, applied=applied, doubts=doubts, previous=self._past(of, value), cleared=self._cleared(of))

    def rolled_back(self, value: int) -> Self:
        """Slurmctld came back with this site factor of before our last writes."""
        return replace(self, applied=replace(self.applied, site_factor=value), previous=(), cleared=0.0)

    def refused(self, change: Change) -> Self:
        """Slurm refused the write for certain: the intended value is nobody's."""
        left = tuple(value for value in self.doubts.get(change.field, ()) if value != change.after)
        return replace(self, doubts=self._doubting(change.field, left))

    def estranged(self, of: Field, *, hidden: bool = False) -> Self:
        """Somebody else changed the job: never planned again; our claim to that field is dropped, unless our site
        factor may lie `hidden` under an explicit priority and come back with their release.
        """
        if hidden:
            return replace(self, applied=replace(self.applied, foreign=True))
        # Should slurmctld be killed before it saves what they did, ours is there again.
        previous = self._past(of, None) if self.claim(of) else self.previous
        applied = replace(self._claiming(of, NEUTRAL[of]), foreign=True)
        return replace(self, applied=applied, doubts=self._doubting(of, ()), previous=previous)

    def noticed(self, before: "Entry | None", now: float) -> Self:
        """Of now if the job has just been found to be somebody else's: ours may come back for a while."""
        known = before is not None and before.applied.foreign
        return replace(self, touched=now) if self.applied.foreign and not known else self

    def given_back(self, of: Field, *, sure: bool) -> Self:
        """The field was seen with its neutral value after we, or the dead-man for us, took ours back. Unless `sure`,
        what was ours stays in doubt: slurmctld may have been killed before it saved the undoing.
        """
        neutral = NEUTRAL[of]
        doubts = tuple(dict.fromkeys(value for value in self.ours(of) if value != neutral))[-MAX_DOUBTS:]
        applied, previous = self._claiming(of, neutral), self._past(of, neutral)
        entry = replace(self, applied=applied, doubts=self._doubting(of, doubts), previous=previous)
        return entry.without_doubts(of) if sure else entry

    def without_doubts(self, of: Field) -> Self:
        """Nothing is in doubt about one field."""
        previous = () if of is Field.SITE_FACTOR else self.previous
        return replace(self, doubts=self._doubting(of, ()), previous=previous)

    def requeued(self, status: JobStatus, *, ids_go_on: bool) -> Self | None:
        """Of a job that ran and was requeued: same id, new submit time, our value still on it. None when it is, or may
        be, another job: ids start over when slurmctld loses its state, unless another one kept its submit time
        (`ids_go_on`).
        """
        may_carry = ids_go_on and status.site_factor is None and bool(self.factors)
        if status.site_factor not in self.factors and not may_carry:
            return None
        return replace(self, applied=replace(self.applied, submit_time=status.submit_time))

    def dated(self, now: float) -> Self:
        """With an age: one from the future, noted before the wall clock was set back, counts from now."""
        return self if self.touched <= now else replace(self, touched=now)

    def _cleared(self, of: Field) -> float:
        return 0.0 if of is Field.SITE_FACTOR else self.cleared

    def _claiming(self, of: Field, value: Value | None) -> Applied:
        if of is Field.SITE_FACTOR:
            return replace(self.applied, site_factor=int(value or 0))
        if value is None:
            return replace(self.applied, oversubscribe=None, oversubscribe_before=None)
        return replace(self.applied, oversubscribe=OverSubscribe(str(value)))

    def _doubting(self, of: Field, values: tuple[Value, ...]) -> Mapping[Field, tuple[Value, ...]]:
        others = {name: old for name, old in self.doubts.items() if name is not of}
        return others | {of: values} if values else others

    def _past(self, of: Field, value: Value | None) -> tuple[Value, ...]:
        """Site factors of the past once `value` is seen in the field: the claim, and what was past already."""
        if of is not Field.SITE_FACTOR:
            return self.previous
        past = dict.fromkeys((self.applied.site_factor, *self.previous))
        return tuple(other for other in past if other != value)[:MAX_DOUBTS]


def settling_seconds(facts: ClusterFacts | None) -> float:
    """Return seconds after which a write can be undone no more: by a killed slurmctld, or by a backfill cycle."""
    return SETTLE_SECONDS if facts is None else max(SETTLE_SECONDS, facts.backfill_seconds)


def which_slurmctld(facts: ClusterFacts) -> float:
    """The one that runs, as `Entry.cleared` has it: when it started, or 1 where that is unknown, since 0 is none."""
    return facts.started or 1.0


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
        return old and entry.standing(self.status) == self.status.site_factor


class FieldRules(Protocol):
    """What is special about a field."""

    def shown(self, status: JobStatus) -> Value | None:
        """Return the field's value as read; None where Slurm does not show it."""

    def judge(self, change: Change, status: JobStatus, entry: Entry) -> Judgement:
        """Judge a change of a pending job that is not held, as it was read right now."""

    def accepted(self, answer: WriteResult, status: JobStatus) -> str | None:
        """Say why a write counts as done although the job does not show it; None where it does not count."""

    def lost(self, status: JobStatus) -> str | None:
        """Say why nothing can be said of a write that was not seen on the job; None: compare with before."""

    def settle(self, entry: Entry, look: Look) -> Entry:
        """Settle what a look at a pending job shows."""


def _recognised(entry: Entry, of: Field, value: Value) -> Entry | None:
    """The entry where this value was in doubt; None: there is nothing to learn."""
    return entry.recognised(of, value) if value in entry.doubts.get(of, ()) else None


class _SiteFactor:
    def shown(self, status: JobStatus) -> Value | None:
        return status.site_factor

    def judge(self, change: Change, status: JobStatus, entry: Entry) -> Judgement:
        of, value = Field.SITE_FACTOR, status.site_factor
        if value is None:
            return Judgement(Outcome.THROTTLED, UNLISTED)
        if value not in entry.ours(of):
            return Judgement(Outcome.FOREIGN, f"somebody set SiteFactor={value}", entry.estranged(of))
        if value == change.after == entry.standing(status):
            return Judgement(Outcome.UNCHANGED, entry=_recognised(entry, of, value))
        return Judgement()

    def accepted(self, answer: WriteResult, status: JobStatus) -> str | None:
        unseen = status.site_factor is None and answer.change.after == 0 and status.priority == NO_TERMS
        return "accepted; without any term sprio does not show it" if unseen and not answer.message else None

    def lost(self, status: JobStatus) -> str | None:
        return UNLISTED if status.site_factor is None else None

    def settle(self, entry: Entry, look: Look) -> Entry:
        of, status, value = Field.SITE_FACTOR, look.status, look.status.site_factor
        if status.held:
            return entry
        if value is None:
            looks_the_same = entry.applied.site_factor == 0 and status.priority == NO_TERMS
            at_stake = entry.applied.site_factor != 0 or of in entry.doubts
            hides = at_stake and look.explicit and not looks_the_same and status.eligible
            return entry.estranged(of, hidden=True) if hides else entry
        if value == entry.applied.site_factor:
            unsettled = of in entry.doubts or entry.previous
            return entry.without_doubts(of) if unsettled and look.settled(entry) else entry
        return _recognised(entry, of, value) or entry.estranged(of)


class _OverSubscribe:
    """One-way in Slurm (decision 0020)."""

    def shown(self, status: JobStatus) -> Value | None:
        return status.oversubscribe.value

    def judge(self, change: Change, status: JobStatus, entry: Entry) -> Judgement:
        of, value = Field.OVERSUBSCRIBE, status.oversubscribe.value
        if ours := entry.ours(of):
            free = entry.applied.oversubscribe is None and value == entry.applied.oversubscribe_before
            if value not in ours and not free:
                return Judgement(Outcome.FOREIGN, f"somebody set OverSubscribe={value}", entry.estranged(of))
            if value == change.after:
                return Judgement(Outcome.UNCHANGED, entry=_recognised(entry, of, value))
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
        of = Field.OVERSUBSCRIBE
        if of not in entry.doubts:
            return entry
        if look.status.oversubscribe in ISOLATED:
            # Recent releases do not tell; taking it for ours costs nothing but a line of the report.
            return entry.recognised(of, OverSubscribe.NO.value).without_doubts(of)
        return entry.without_doubts(of) if look.now - entry.touched >= look.settling else entry


RULES: Final[Mapping[Field, FieldRules]] = {Field.SITE_FACTOR: _SiteFactor(), Field.OVERSUBSCRIBE: _OverSubscribe()}
"""In the order in which the fields are settled and taken back."""

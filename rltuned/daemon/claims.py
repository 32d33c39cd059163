"""What rltuned may call its own on a job. Pure values; imports no NumPy.

An `Entry` is the journal's knowledge of one job: the claim (`Applied`: what we wrote and saw there) and, per field, the
*doubts*: values that may still turn out to be ours, because the write was not seen to succeed (crash, time-out; Slurm
may even carry it out later). A value that is neither claim nor doubt is somebody else's. One exception: slurmctld saves
its state every few seconds and comes back with the older one when it is killed, so for a while the *previous* value is
remembered too; it counts only when most of the jobs written last show theirs again (`reconcile`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from rltuned.cluster.changes import MOVES, Applied, Change, Field, JobStatus, OverSubscribe

Value = int | str

MULTIFACTOR: Final = 0
"""Stands for "no explicit priority" where explicit priorities are compared; Slurm's 0 means held and is never ours."""

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

NOT_ELIGIBLE: Final = frozenset({"Dependency", "DependencyNeverSatisfied", "BeginTime"})
"""Reasons for which sprio(1) leaves a job out although its priority is multifactor's."""


def _none() -> Mapping[Field, tuple[Value, ...]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Entry:
    """The journal's knowledge of one job."""

    applied: Applied
    doubts: Mapping[Field, tuple[Value, ...]] = field(default_factory=_none)
    previous: Mapping[Field, tuple[Value, ...]] = field(default_factory=_none)
    """What the field had before the last writes that were seen to succeed, the latest first: a slurmctld that is killed
    before it saves them comes back with one of these. Until the last write is old enough to be safe."""
    touched: float = 0.0
    """When the last intent or outcome was noted: epoch seconds by the steady clock (`rltuned.daemon.clock`)."""
    shares: OverSubscribe | None = None
    """OverSubscribe of the job's partition when we toggled the job's: decides whether that can be undone."""
    cleared: float = 0.0
    """When the slurmctld had started that took 0 as the site factor of a job of which it shows none (a held one), epoch
    seconds; 0: none has. What is in doubt can be there only where that one was killed before it saved this."""

    @property
    def job_id(self) -> int:
        """The job."""
        return self.applied.job_id

    @property
    def submit_time(self) -> int:
        """Epoch seconds; with the id, the job's identity."""
        return self.applied.submit_time

    @property
    def is_empty(self) -> bool:
        """Nothing of ours is on the job, can come back to it, or is owed to it."""
        return self.applied.is_empty and not self.doubts and not self.previous and not self.owes_nice

    @property
    def claims(self) -> bool:
        """Whether a value of ours was last seen on the job, as far as it can be taken back."""
        applied = self.applied
        return applied.site_factor != 0 or applied.priority is not None

    @property
    def carries(self) -> bool:
        """Whether a value of ours that can be taken back is on the job, or may be."""
        return any(self.ours(Field.SITE_FACTOR)) or any(self.ours(Field.PRIORITY)) or self.owes_nice

    @property
    def owes_nice(self) -> bool:
        """Our explicit priority is gone, but the user's nice, which Slurm reset to 0 with it, is not back."""
        return self.applied.priority is None and self.applied.nice != 0

    def traces(self, of: Field) -> tuple[Value, ...]:
        """All values of a field that a restore may find and has to take back.

        Also those before the last writes: a slurmctld that was killed comes back with one of them.
        """
        return tuple(value for value in (*self.ours(of), *self.previous.get(of, ())) if value != MULTIFACTOR)

    def seen_on(self, status: JobStatus) -> bool:
        """Whether the job was read with a value of ours that can be taken back, the last one or a former one."""
        return any(shown(status, of) in self.traces(of) for of in MOVES)

    def ours(self, of: Field) -> tuple[Value, ...]:
        """All values of a field that are ours: the claim first, then the doubts."""
        claim = claimed(self.applied, of)
        return (*(() if claim is None else (claim,)), *self.doubts.get(of, ()))


def claimed(applied: Applied, of: Field) -> Value | None:
    """What we wrote last; the neutral value where we wrote none, None where the neutral value is the user's own."""
    match of:
        case Field.SITE_FACTOR:
            return applied.site_factor
        case Field.PRIORITY:
            return MULTIFACTOR if applied.priority is None else applied.priority
        case Field.OVERSUBSCRIBE:
            return None if applied.oversubscribe is None else applied.oversubscribe.value
        case Field.NICE:
            return None


def shown(status: JobStatus, of: Field) -> Value | None:
    """The field's value as read; None where Slurm does not show it (SiteFactor of a job that sprio leaves out)."""
    match of:
        case Field.SITE_FACTOR:
            return status.site_factor
        case Field.PRIORITY:
            return status.priority if status.site_factor is None else MULTIFACTOR
        case Field.OVERSUBSCRIBE:
            return status.oversubscribe.value
        case Field.NICE:
            return status.nice


def blank(change: Change) -> Entry:
    """An entry of a job that was never touched."""
    return Entry(Applied(change.job_id, change.submit_time, changed_at=0.0))


def intended(
    entry: Entry | None, change: Change, now: float, *, nice: int = 0, shares: OverSubscribe | None = None
) -> Entry:
    """The entry to be on disk before `change` is sent: its value is in doubt, and what undoing it needs is kept.

    Args:
        entry: of this job so far.
        change: to be sent.
        now: steady time.
        nice: the user's, which an explicit priority resets; written back when that is undone.
        shares: OverSubscribe of the job's partition, which decides whether a change of the job's own can be undone.
    """
    if entry is None or entry.submit_time != change.submit_time:
        entry = blank(change)
    applied, of = entry.applied, change.field
    untouched = claimed(applied, of) in {None, MULTIFACTOR} and not entry.doubts.get(of)
    if of is Field.PRIORITY and untouched and change.after != MULTIFACTOR:
        # Slurm resets the nice with the first explicit priority, so a 0 seen later is not the user's.
        applied = replace(applied, base=change.base, nice=nice or applied.nice)
    elif of is Field.OVERSUBSCRIBE and untouched:
        applied = replace(applied, oversubscribe_before=OverSubscribe(str(change.before)))
        entry = replace(entry, shares=shares)
    doubts = (*(v for v in entry.doubts.get(change.field, ()) if v != change.after), change.after)[-MAX_DOUBTS:]
    return replace(
        entry,
        applied=applied,
        doubts=_with(entry.doubts, change.field, doubts),
        # Seen again, it will be this write, not an old state.
        previous=_remember(entry.previous, change.field, entry.previous.get(change.field, ()), without=change.after),
        touched=now,
        cleared=0.0 if change.field is Field.SITE_FACTOR else entry.cleared,
    )


def landed(entry: Entry, of: Field, value: Value, now: float) -> Entry:
    """The entry once `value` was seen on the job after our write.

    A site factor of 0 takes ours back. Then what was ours stays in doubt: on a job that is held meanwhile, nothing
    shows what a slurmctld that was killed came back with.
    """
    back = of is Field.SITE_FACTOR and value == 0
    return replace(
        entry,
        applied=replace(take(entry.applied, of, value), changed_at=now),
        doubts=given_back(entry, of, sure=False).doubts if back else _with(entry.doubts, of, ()),
        previous=_remember(entry.previous, of, _before(entry, of), without=value),
        touched=now,
    )


def recognised(entry: Entry, of: Field, value: Value) -> Entry:
    """The entry once a value in doubt was seen on the job: it is the claim now."""
    return replace(
        entry,
        applied=replace(take(entry.applied, of, value), changed_at=entry.touched),
        doubts=_with(entry.doubts, of, tuple(v for v in entry.doubts.get(of, ()) if v != value)),
        previous=_remember(entry.previous, of, _before(entry, of), without=value),
        cleared=0.0 if of is Field.SITE_FACTOR else entry.cleared,
    )


def rolled_back(entry: Entry, of: Field, value: Value) -> Entry:
    """The entry once slurmctld came back with this value of before our last writes."""
    applied = take(entry.applied, of, value)
    if of is Field.PRIORITY and applied.priority is None:
        applied = replace(applied, base=0, nice=0)  # the nice came back with the old state
    cleared = 0.0 if of is Field.SITE_FACTOR else entry.cleared
    return replace(entry, applied=applied, previous=_remember(entry.previous, of, ()), cleared=cleared)


def confirmed(entry: Entry, of: Field) -> Entry:
    """The entry once the claim was seen again, long enough after the write: nothing is in doubt any more."""
    return without_doubts(entry, of)


def refused(entry: Entry, change: Change) -> Entry:
    """The entry once Slurm refused the write for certain: the intended value is nobody's."""
    left = tuple(value for value in entry.doubts.get(change.field, ()) if value != change.after)
    applied = entry.applied
    if change.field is Field.PRIORITY and applied.priority is None and not left:
        applied = replace(applied, base=0, nice=0)  # the nice was never reset
    return replace(entry, applied=applied, doubts=_with(entry.doubts, change.field, left))


def estranged(entry: Entry, of: Field, *, hidden: bool = False) -> Entry:
    """The entry once somebody else changed the job: never planned again; our claim to that field is dropped.

    `hidden`: our site factor may still lie under an explicit priority that somebody set (it would come back with their
    release), so the claim stays for `restore`.
    """
    applied = replace(entry.applied, foreign=True)
    doubts, before = entry.doubts, entry.previous.get(of, ())
    if not hidden:
        if claimed(entry.applied, of):
            # Should slurmctld be killed before it saves what they did, ours is there again.
            before = _before(entry, of)
        if of is Field.OVERSUBSCRIBE:
            applied = replace(applied, oversubscribe=None, oversubscribe_before=None)
        else:
            applied = take(applied, of, MULTIFACTOR if of is Field.PRIORITY else 0)
        doubts = _with(doubts, of, ())
    return replace(entry, applied=applied, doubts=doubts, previous=_remember(entry.previous, of, before))


def noticed(before: Entry | None, after: Entry, now: float) -> Entry:
    """The entry, of now if the job has just been found to be somebody else's.

    What a killed slurmctld may bring back is remembered for a while from then on.
    """
    known = before is not None and before.applied.foreign
    return replace(after, touched=now) if after.applied.foreign and not known else after


def take(applied: Applied, of: Field, value: Value) -> Applied:
    """The claim with `value` in the field; the neutral value (or the user's own) ends the claim to it."""
    match of:
        case Field.SITE_FACTOR:
            return replace(applied, site_factor=int(value))
        case Field.PRIORITY:
            return replace(applied, priority=int(value) or None)
        case Field.OVERSUBSCRIBE:
            return replace(applied, oversubscribe=OverSubscribe(str(value)))
        case Field.NICE:
            return replace(applied, nice=0)


def given_back(entry: Entry, of: Field, *, sure: bool) -> Entry:
    """The entry once the field was seen with its neutral value after we, or the dead-man for us, took ours back.

    Unless `sure`, what was ours stays in doubt: slurmctld may have been killed before it saved the undoing.
    """
    before = entry.ours(of)
    entry = replace(entry, applied=take(entry.applied, of, MULTIFACTOR))
    if sure:
        return without_doubts(entry, of)
    doubts = tuple(dict.fromkeys(value for value in before if value != MULTIFACTOR))
    return replace(entry, doubts=_with(entry.doubts, of, doubts[-MAX_DOUBTS:]))


def without_doubts(entry: Entry, of: Field) -> Entry:
    """The entry with nothing in doubt about one field."""
    return replace(entry, doubts=_with(entry.doubts, of, ()), previous=_remember(entry.previous, of, ()))


def requeued(entry: Entry, status: JobStatus, *, ids_go_on: bool) -> Entry | None:
    """The entry of a job that ran and was requeued: same id, new submit time, our value still on it.

    None when it is, or may be, another job: ids start over when slurmctld loses its state. A job that was requeued and
    held shows no site factor. It is taken for the same job if another journal job kept its submit time (`ids_go_on`).
    """
    may_carry = ids_go_on and status.site_factor is None and may_be_requeued(entry)
    if not entry.seen_on(status) and not may_carry:
        return None
    return replace(entry, applied=replace(entry.applied, submit_time=status.submit_time))


def may_be_requeued(entry: Entry) -> bool:
    """Whether a value of ours can be on the job where no reading shows it."""
    return bool(entry.traces(Field.SITE_FACTOR) or entry.traces(Field.PRIORITY))


def dated(entry: Entry, now: float) -> Entry:
    """The entry with an age. One from the future was noted before somebody set the wall clock back: it counts from
    now.
    """
    if entry.touched <= now:
        return entry
    applied = replace(entry.applied, changed_at=min(entry.applied.changed_at, now))
    return replace(entry, applied=applied, touched=now)


def _with(
    doubts: Mapping[Field, tuple[Value, ...]], of: Field, values: tuple[Value, ...]
) -> Mapping[Field, tuple[Value, ...]]:
    changed = {name: old for name, old in doubts.items() if name is not of}
    if values:
        changed[of] = values
    return MappingProxyType(changed)


def _remember(
    previous: Mapping[Field, tuple[Value, ...]], of: Field, values: tuple[Value, ...], without: Value | None = None
) -> Mapping[Field, tuple[Value, ...]]:
    if of is Field.OVERSUBSCRIBE:  # one-way: after a roll-back there is nothing to undo
        values = ()
    return _with(previous, of, tuple(value for value in values if value != without)[:MAX_DOUBTS])


def _before(entry: Entry, of: Field) -> tuple[Value, ...]:
    """What is the past once another value is seen: the claim, and what was past already."""
    value, older = claimed(entry.applied, of), entry.previous.get(of, ())
    return older if value is None else (value, *(other for other in older if other != value))

"""``rltuned restore`` as a whole: lock, journal, connection, `restore`.

Three callers: an admin, the unit's ExecStopPost, and the dead-man timer (`if_stale`). All do the same; they differ in
what a living daemon means to them.
"""

from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from typing import Final

from rltuned.controller.give_back import left_alone
from rltuned.controller.give_back.batches import Progress, RestoreReport, Slurm, WhatToRestore, restore
from rltuned.controller.health.clock import Clock, Moment, SystemClock
from rltuned.controller.health.heartbeat import DEAD_MAN_PATIENCE, Heartbeat, fresh_heartbeat
from rltuned.controller.health.lock import Lock, holder
from rltuned.controller.health.primacy import look_once, own_names
from rltuned.controller.health.rpc_budget import Budget
from rltuned.controller.write.journal import Journal
from rltuned.core.config import Config, SlurmSection
from rltuned.core.errors import JournalError, LockedError, SlurmError
from rltuned.slurm.connect import open_reader, open_writer
from rltuned.slurm.port import SlurmReader, SlurmWriter

SECOND_LOOK: Final = 5.0
"""Seconds after which a lock that is held without a sign of life is looked at once more."""


def restore_queue(
    config: Config,
    *,
    job_ids: Collection[int] = (),
    orphans: bool = False,
    if_stale: float | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
    names: frozenset[str] | None = None,
    connect_reader: Callable[[SlurmSection], SlurmReader] = open_reader,
    connect_writer: Callable[[SlurmSection], SlurmWriter] = open_writer,
) -> RestoreReport | None:
    """Give the queue, or some jobs, back to Slurm.

    While a daemon runs, everything can only be restored by stopping it (it would apply its plan again a minute later);
    single jobs can be restored beside it: the daemon is told (`left_alone`) and leaves them alone for good. A daemon
    that holds the lock but shows no sign of life, or lives but can neither act nor give anything back, is no obstacle
    for `if_stale`.

    `job_ids`: only these jobs, and hands off them from now on; empty: all. `orphans`: also clear site factors that the
    journal does not know; then even an unreadable journal is no obstacle. `if_stale`: do nothing unless the daemon's
    heartbeat is older than so many seconds (and several cycles). `names`: short names of this host (`primacy`). Returns
    None when `if_stale` found the daemon alive; else the report. Raises LockedError: a daemon runs (or another
    restore); the message says who and what to do. StateError: this user cannot use the state directory. JournalError:
    the journal cannot be read, so that nothing is known, or is of another cluster. SlurmError: the queue could not be
    read; try again, nothing is lost. RltunedError: a living daemon could not be told to leave the jobs alone; nothing
    was changed.
    """
    clock = clock or SystemClock()
    state = config.state

    if if_stale is not None and _daemon_is_able(config, if_stale, clock, connect_reader):
        return None
    with ExitStack() as stack:
        locked = _locked(config, stack, clock, beside_daemon=bool(job_ids) or if_stale is not None)
        try:
            journal = (Journal.open if locked else Journal.read)(state.directory, state.mirror)
        except JournalError:
            if not orphans:
                raise
            journal = Journal()
        stack.callback(journal.close)
        if not orphans and not job_ids and not journal.entries:
            return RestoreReport()
        reader = connect_reader(config.slurm)
        try:
            facts = reader.facts()
        except SlurmError:
            facts = None  # the careful budget; if slurmctld is down, the next read says so
        try:
            if facts is not None:
                journal.refuse_other(facts.cluster_name)
        except JournalError:
            if not orphans:
                raise
            journal = Journal()
        if job_ids and journal.read_only:
            asked = left_alone.ask(state.directory, job_ids)
            # Nothing was changed, so nothing was asked for: but what an earlier restore asked for still is.
            stack.push(lambda kind, *_: left_alone.answered(state.directory, asked) if kind is not None else None)
        try:
            budget = Budget.of(config.write, facts)
            slurm = Slurm(reader, connect_writer(config.slurm), budget, clock, facts, outlasts=True)
            report = restore(journal, slurm, WhatToRestore(job_ids or None, orphans, hands_off=bool(job_ids)), progress)
        except SlurmError as error:
            kept = sum(entry.carries for entry in journal.entries.values())
            if not kept:
                raise
            raise type(error)(
                f"{error}\n{kept} jobs may still carry values of rltuned; rltuned-deadman.timer gives them back once"
                " Slurm answers, as does `rltuned restore`"
            ) from error
        with suppress(JournalError, SlurmError):
            if not journal.read_only and not job_ids and facts is not None:
                primacy = look_once(reader, facts, names or own_names())
                if primacy is not None and primacy.stands_by:
                    journal.update((), report.restored)  # the same value again is of the other host's daemon
        return report


def _daemon_is_able(
    config: Config, if_stale: float, clock: Clock, connect_reader: Callable[[SlurmSection], SlurmReader]
) -> bool:
    """Whether a daemon lives that looks after the queue by itself."""
    state, patience = config.state, DEAD_MAN_PATIENCE * config.write.give_back_after

    def sign() -> Heartbeat | None:
        return fresh_heartbeat(if_stale, Moment.of(clock), state.directory, state.mirror)

    first = sign()
    if first is not None and first.inactive <= patience:
        return True
    if first is not None:
        # It lives, but carries out no plan and gave nothing back. Perhaps nobody can; and a slurmctld that is just back
        # is the daemon's to use first.
        try:
            connect_reader(config.slurm).ping()
        except SlurmError:
            return True
        clock.sleep(first.stale_after / 2)
        second = sign()
        return second is not None and second.inactive <= patience
    if holder(state.directory) is None:
        return False
    # A daemon that is just starting, or ending: it beats in a moment, or the lock is free.
    clock.sleep(SECOND_LOOK)
    return sign() is not None


def _locked(config: Config, stack: ExitStack, clock: Clock, *, beside_daemon: bool) -> bool:
    """Take the lock if it is free. False: work beside the daemon that holds it, without touching its journal."""
    try:
        stack.enter_context(Lock.acquire(config.state.directory, "restore", clock.time()))
    except LockedError as error:
        held = holder(config.state.directory)
        if held is None or held.purpose != "run":
            raise
        if not beside_daemon:
            raise LockedError(
                f"{error}: `systemctl stop rltuned` or `rltuned pause` gives all back; to give back single jobs, which"
                " the daemon then leaves alone, name them"
            ) from error
        return False
    return True

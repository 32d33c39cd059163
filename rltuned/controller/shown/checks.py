"""Can this cluster be steered, by this user, safely? What ``rltuned doctor`` says."""

import contextlib
import os
import pwd
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from rltuned.controller.cycle.auto_policy import Refused, evidence
from rltuned.controller.give_back import pause
from rltuned.controller.health.clock import Clock, Moment
from rltuned.controller.health.heartbeat import Heartbeat, elsewhere, is_fresh, read_heartbeat, stale_after
from rltuned.controller.health.lock import FILE_NAME as LOCK
from rltuned.controller.health.lock import NEEDS_LOCKS, Holder, holder
from rltuned.controller.health.lock import trouble as lock_trouble
from rltuned.controller.health.prerequisites import Finding, Severity, prerequisites
from rltuned.controller.health.primacy import Primacy, look_once, own_names
from rltuned.controller.health.runtime import WRITING
from rltuned.controller.tell.states import Standing
from rltuned.controller.write.claims import ISOLATED
from rltuned.controller.write.journal import FILE_NAME as JOURNAL
from rltuned.controller.write.journal import Journal
from rltuned.core import safe_files as files
from rltuned.core.changes import JobStatus, Outcome
from rltuned.core.config import AUTO, Config, did_you_mean
from rltuned.core.errors import JournalError, RltunedError, SlurmDeniedError, SlurmError, SlurmParseError
from rltuned.core.installed import forecast_remedy, has_numba
from rltuned.core.notation import compress
from rltuned.core.safe_files import give_all_to, user_name
from rltuned.core.scheduler import Health
from rltuned.core.tables import Snapshot
from rltuned.records.gate_verdict import DAY
from rltuned.slurm import not_simulated
from rltuned.slurm.port import ClusterFacts, NamesReader, Privilege, SlurmReader

if TYPE_CHECKING:  # needs NumPy
    from rltuned.decide.entry import CycleEntry


HOUR = 3600.0
OFTEN = 0.1  # share of the cycles in which backfill may undo a write

SOON_DAYS = 7.0  # so long before its end a verdict is to be renewed


def simulation(facts: ClusterFacts, snapshot: Snapshot) -> list[Finding]:
    """What the figures of gate, tune and report, and start times, do not know."""
    cause = not_simulated.sentence(facts.not_simulated, snapshot.partitions, snapshot.nodes)
    remedy = "verdicts, replays and start times are without it: compare a report's replay with what really happened"
    return [Finding(Severity.NOTE, "simulator", cause, remedy)] if cause else []


def controllers(facts: ClusterFacts, primacy: Primacy | None) -> list[Finding]:
    """Which of several controllers acts, and what that means for the daemon of this host (`primacy.look_once`)."""
    if primacy is None:
        return []
    hosts = ", ".join(facts.controllers)
    if not primacy.concerns(facts.controllers):
        cause = f"controllers are {hosts}, and this host is none of them: nothing keeps its daemon and theirs apart"
        return [Finding(Severity.NOTE, "controllers", cause, "run rltuned on one host, or on each controller's")]
    doing = "the daemon of this host stands by" if primacy.stands_by else "the daemon of this host writes"
    return [Finding(Severity.OK, "controllers", f"{hosts}; {primacy.acting or 'none'} acts: {doing}")]


def examine(reader: SlurmReader, config: Config, clock: Clock, names: frozenset[str] | None = None) -> list[Finding]:
    """Everything that ``rltuned doctor`` reports; writes nothing. `names`: short names of this host (`primacy`)."""
    cycles = _last_cycles(config, clock.time())
    findings = [*_examine(reader, config, clock, names, cycles)]
    return [_status(cycles, config, clock.time(), findings), *findings]


def _last_cycles(config: Config, now: float) -> "list[CycleEntry]":
    """Those of the last hour, without their decisions."""
    from rltuned.records import decisions  # noqa: PLC0415 - NumPy

    try:
        return list(decisions.entries(config.state.directory, now - HOUR, now + 1.0, decisions=False))
    except RltunedError:
        return []  # `state` has its own finding


def _status(cycles: "Sequence[CycleEntry]", config: Config, now: float, findings: Sequence[Finding]) -> Finding:
    """In one line: the stage in force, what the last cycle said, and which of the findings are to be looked at."""
    stage, wanted = config.cycle.stage, config.cycle.stage
    how = "no cycle has ended in the last hour"
    if cycles:
        last = cycles[-1]
        stage, how = last.stage, f"the last cycle ended {now - last.time:.0f} s ago, {last.outcome}: {last.sentence}"
        if last.held_back:
            how = f"{wanted} is configured, but {last.held_back}; {how}"
    nothing = "" if stage in WRITING else " (nothing is written to Slurm)"
    of = {finding.subject: None for finding in findings if finding.severity in {Severity.WARNING, Severity.ERROR}}
    cause = f"stage {stage}{nothing}; {how}; look at: {', '.join(of) or 'nothing'}"
    severity = Severity.NOTE if nothing else Severity.OK
    return Finding(
        severity, "status", cause, "" if wanted in WRITING else "docs/roll-out.md says when to set cycle.stage"
    )


def _examine(
    reader: SlurmReader, config: Config, clock: Clock, names: frozenset[str] | None, cycles: "Sequence[CycleEntry]"
) -> Iterator[Finding]:
    facts = seen = snapshot = None
    elsewhere = False
    try:
        facts = reader.facts()
        yield from prerequisites(facts, config, cycles)
        primacy = look_once(reader, facts, names or own_names())
        yield from controllers(facts, primacy)
        elsewhere = primacy is not None and primacy.stands_by
        seen = reader.status(None)
        # All that a cycle reads: what cannot be understood would otherwise show in the daemon's log only.
        snapshot = reader.snapshot(clock.time())
        for check in (answers, reasons, node_sets, gpu_types):
            yield from check(snapshot)
        yield from simulation(facts, snapshot)
        yield loans(snapshot, config)
        with contextlib.suppress(SlurmError):  # the privilege, or slurmdbd, has its own finding
            for _, finding in scope_names(reader, config, facts):
                yield finding
    except SlurmParseError as error:
        yield Finding(Severity.ERROR, "answers", f"no cycle is possible: {error}", _REPORT)
    except SlurmError as error:
        remedy = "start it, or look at slurm.bin_dir and slurm.conf"
        yield Finding(Severity.ERROR, "slurmctld", str(error), remedy)
    told = kept(config, clock, None if snapshot is None else int(snapshot.nodes.gpus.sum()))
    yield from told.findings
    journal, living = told.journal, told.living
    if journal is None:
        return
    if facts is not None and journal.cluster not in {"", facts.cluster_name}:
        cause = f"it is of cluster {journal.cluster}, and {facts.cluster_name} answers: nothing is written"
        yield Finding(Severity.ERROR, "journal", cause, "look where slurm.conf and DNS lead to")
        return
    if seen is None:
        return
    found = remains(journal, seen)
    if elsewhere:  # what the journal does not know is the other host's daemon's
        found = replace(found, orphans=())
    wanted = living is not None and living.writing
    if wanted and facts is not None and snapshot is not None:
        yield from in_force(cycles, facts, snapshot.health)
    yield from leftovers(found, running=living is not None, wanted=wanted)


@dataclass(slots=True)
class Kept:
    """What the daemon's files say, each read once."""

    now: Moment
    holder: Holder | None  # of the lock: the daemon, or a restore
    heartbeat: Heartbeat | None
    journal: Journal | None = None  # None: it cannot be read
    findings: list[Finding] = field(default_factory=list)

    @property
    def living(self) -> Heartbeat | None:
        """The sign of life of a daemon that runs."""
        return self.heartbeat if self.holder is not None and is_fresh(self.heartbeat, self.now) else None


def kept(config: Config, clock: Clock, gpus: int | None = None) -> Kept:
    """Look at the files, without Slurm. `gpus`: of the cluster, if known."""
    now, state = Moment.of(clock), config.state
    found = Kept(now, holder(state.directory), read_heartbeat(now, state.directory, state.mirror))
    told = found.findings
    if config.policy.name == AUTO:
        told += _verdict(gpus, config, now.time)
    told += [*forecast(config, now.time), *state_files(config), *paused(config, now), *_daemon(config, found)]
    if found.living is not None:
        told += users(config, now.time)
    try:
        found.journal = journal = Journal.read(state.directory, state.mirror)
    except JournalError as error:
        told.append(Finding(Severity.ERROR, "journal", str(error), "look at the disk"))
        return found
    if journal.damage:
        remedy = "nothing is lost that the other copy has; the daemon writes it anew when it starts"
        told.append(Finding(Severity.WARNING, "journal", journal.damage, remedy))
    else:
        told.append(Finding(Severity.OK, "journal", f"{len(journal.entries)} jobs"))
    return found


_REPORT = (
    "report it with this line, the release of Slurm and what its command prints for the job, node or partition"
    " (docs/operations.md, Answers that cannot be understood)"
)
_NAMED = 5


def answers(snapshot: Snapshot) -> list[Finding]:
    """Whether all that a cycle reads can be understood."""
    unread = snapshot.unread
    if not unread:
        jobs, nodes, partitions = len(snapshot.jobs), len(snapshot.nodes), len(snapshot.partitions)
        cause = f"all understood: {jobs} jobs, {nodes} nodes, {partitions} partitions"
        return [Finding(Severity.OK, "answers", cause)]
    counts = ", ".join(f"{count} {kind}" for kind, count in unread.counts.items())
    named = "; ".join(map(str, unread.rows[:_NAMED])) + ("; …" if len(unread) > _NAMED else "")
    cause = f"{len(unread)} rows of Slurm's answers cannot be understood and are left alone ({counts}): {named}"
    return [Finding(Severity.WARNING, "answers", cause, _REPORT)]


def reasons(snapshot: Snapshot) -> list[Finding]:
    """Whether it is known of each pending job what Slurm says that it waits for."""
    unknown = snapshot.unknown_reasons()
    if not unknown:
        return []
    named = "; ".join(f"{count} of {reason!r}" for reason, count in unknown.most_common(_NAMED))
    cause = f"{unknown.total()} pending jobs are left alone (blocked), for reasons that are not known: {named}"
    return [Finding(Severity.WARNING, "reasons", cause, _REPORT)]


_SCOPED = {
    "partitions": ("partitions", "exclude_partitions", "canary"),
    "reservations": ("exclude_reservations",),
    "qos": ("qos", "exclude_qos"),
    "accounts": ("accounts", "exclude_accounts"),
    "users": ("users", "exclude_users"),
}
"""Settings of [scope], by what they name."""


def scope_names(
    reader: SlurmReader, config: Config, facts: ClusterFacts | None = None
) -> Iterator[tuple[str, Finding]]:
    """Names in [scope] that Slurm does not have, with the key of each. SlurmError: it cannot be asked for (more)."""
    for what, keys in _SCOPED.items():
        given = {key: names for key in keys if isinstance(names := getattr(config.scope, key), tuple)}
        if not any(given.values()) or not isinstance(reader, NamesReader):
            continue
        facts = facts or reader.facts()
        if facts.privilege is Privilege.NONE:
            raise SlurmDeniedError(f"{facts.user} is no operator and may not see them all")
        known = reader.names(what)
        for key, name in ((key, name) for key, names in given.items() for name in names):
            if name not in known and not (what == "users" and _on_this_host(name)):
                cause = f"Slurm has no {what.removesuffix('s')} '{name}'{did_you_mean(name, known)}"
                # Reservations come and go.
                severity = Severity.NOTE if what == "reservations" else Severity.WARNING
                remedy = f"correct scope.{key}, then `systemctl reload rltuned`"
                yield key, Finding(severity, "scope", cause, remedy)


def _on_this_host(user: str) -> bool:
    """Without enforced associations a user whom slurmdbd does not know may submit jobs, too."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def node_sets(snapshot: Snapshot) -> list[Finding]:
    """Whether jobs are left alone because the queue asks for more, or longer, node lists than are compared."""
    from rltuned.core.pools import MOST_SETS, bounded_pools  # noqa: PLC0415 - NumPy, as the snapshot

    jobs = snapshot.jobs
    pools = bounded_pools(snapshot, jobs.pending)
    users = Counter(jobs.user.value(int(row)) for row in jobs.pending[pools.pool_of == pools.rest])
    if not users:
        return []
    named = ", ".join(f"{user} {count}" for user, count in users.most_common(_NAMED))
    left = f"{users.total()} pending jobs are left alone (node-sets)"
    cause = f"{left}: the queue asks for more than {MOST_SETS} sets of nodes, or for node lists that are too long"
    remedy = "these users' node lists (--exclude, --nodelist) may be a constraint (--constraint) instead"
    return [Finding(Severity.WARNING, "node sets", f"{cause}; most are of {named}", remedy)]


def gpu_types(snapshot: Snapshot) -> list[Finding]:
    """Whether Slurm knows which GPU type a job that names none shall get; nothing where no partition has several."""
    nodes, subject = snapshot.nodes, "GPU types"
    of_type = dict(zip(nodes.gpu_types, (nodes.gpus > 0).T, strict=True))
    mixed = {
        partition.name: types
        for partition in snapshot.partitions
        if len(types := [name for name, has in of_type.items() if has[partition.nodes].any()]) > 1
    }
    if not mixed:
        return []
    where = "; ".join(f"{name} has {', '.join(types)}" for name, types in list(mixed.items())[:_NAMED])

    def weights(name: str) -> set[int]:
        return set(nodes.weights[of_type[name]].tolist())

    pairs = {pair for types in mixed.values() for pair in combinations(types, 2)}
    alike = sorted({name for pair in pairs if weights(pair[0]) & weights(pair[1]) for name in pair})
    if not alike:
        return [Finding(Severity.OK, subject, f"{where}; their nodes differ in Weight")]
    lists = [compress([nodes.names[row] for row in of_type[name].nonzero()[0].tolist()]) for name in alike]
    cause = f"{where}; Slurm gives a job that names no type any of them: nodes of equal Weight are {', '.join(lists)}"
    lines = "; ".join(f"NodeName={found} ... Weight={10 * place}" for place, found in enumerate(lists, start=1))
    remedy = f"in slurm.conf, the smaller for the faster GPUs, which are taken first: {lines}"
    return [Finding(Severity.NOTE, subject, cause, remedy)]


def loans(snapshot: Snapshot, config: Config) -> Finding:
    """What waiting jobs have lent."""
    from rltuned.controller.cycle.lending import read_book  # noqa: PLC0415 - NumPy, as the snapshot

    try:
        found = read_book(config.state.directory)
    except RltunedError as error:
        return Finding(Severity.WARNING, "loans", str(error))
    if found is None:
        return Finding(Severity.OK, "loans", "no job has lent anything")
    book, _, _ = found
    lent = book.lent(snapshot.jobs, snapshot.jobs.pending)
    hours, lenders = lent.sum() / 3600, int((lent > 0).sum())
    cause = f"{lenders} waiting jobs have lent {hours:.1f} GPU-hours; {len(book.loans)} borrowers run"
    return Finding(Severity.OK, "loans", cause)


def _verdict(gpus: int | None, config: Config, now: float) -> Iterator[Finding]:
    """What the policy "auto" stands for now, on a cluster of so many GPUs."""
    found = evidence(config)
    verdict, todo = found.verdict, found.remedy
    if gpus is None:  # Slurm does not say: the cluster is taken for the one that was judged
        gpus = 0 if isinstance(verdict, Refused) else verdict.cluster.gpus
    choice = found.choose(now, gpus)
    if isinstance(verdict, Refused) or choice.standing is not Standing.GOOD:
        yield Finding(Severity.WARNING, "verdict", str(choice.why), todo)
        return
    left = (verdict.expires - now) / DAY
    yield Finding(Severity.OK, "verdict", f"'{choice.runs}' for another {left:.0f} days: {choice.why}")
    if left < SOON_DAYS:
        cause = f"the verdict ends in {left:.1f} days; then Slurm's own order stays"
        yield Finding(Severity.NOTE, "verdict", cause, todo)
    other = "the model that is there was never judged here; the verdict is about another one"
    if (trouble := found.not_judged(verdict, other)) is not None:
        yield Finding(Severity.NOTE, "verdict", trouble, todo)
    judged = verdict.settings.estimates
    if judged.partition(":")[0] != config.estimates.source:
        cause = f"judged with estimates '{judged}', and estimates.source is '{config.estimates.source}'"
        yield Finding(Severity.NOTE, "verdict", cause, todo)


def forecast(config: Config, now: float) -> list[Finding]:
    """Whether the daemon's last cycle could forecast start times, where it should."""
    if config.forecast.enabled == "off" or not has_numba():
        return []
    from rltuned.records import decisions  # noqa: PLC0415 - NumPy

    try:
        made = decisions.load(config.state.directory)
    except RltunedError:
        return []  # no cycle yet; `daemon` has its own finding
    trouble = made.forecast_trouble
    if not trouble or now - made.time > stale_after(config.cycle.interval):
        return []
    cause = f"no start times are forecast: {trouble}"
    return [Finding(Severity.WARNING, "start times", cause, forecast_remedy(trouble))]


def users(config: Config, now: float) -> list[Finding]:
    """Whether users' records reach them, where a daemon runs that should publish them."""
    from rltuned.records.published import published  # noqa: PLC0415 - NumPy

    directory = config.users.directory
    if directory is None:
        return []
    mark = published(directory)
    if mark is not None and now - mark.time <= stale_after(config.cycle.interval):
        return [Finding(Severity.OK, "users", f"users.directory {directory}")]
    last = "never" if mark is None else f"{now - mark.time:.0f} s ago"
    cause = f"users.directory {directory}: records were last written there: {last}"
    return [Finding(Severity.WARNING, "users", cause, "its log names the cause (users.not_published)")]


def state_files(config: Config) -> list[Finding]:
    """Whether the daemon's user can work with the state directories and what is in them."""
    roots = [root for root in (config.state.directory, config.state.mirror) if root is not None]
    troubles = [trouble for root in roots if (trouble := _state_of(root)) is not None]
    if cause := lock_trouble(config.state.directory):
        troubles.append(Finding(Severity.ERROR, "state", cause, NEEDS_LOCKS))
    return troubles or [Finding(Severity.OK, "state", ", ".join(map(str, roots)))]


def _state_of(root: Path) -> Finding | None:
    """What is wrong with a state directory."""
    try:
        if not root.is_dir():
            return None
        owner = root.stat().st_uid
        found = [path for path in (root / LOCK, root / JOURNAL) if path.exists()]
    except PermissionError:
        cause = f"{root}: {user_name(os.geteuid())} may not look into it"
        return Finding(Severity.WARNING, "state", cause, "run doctor as root or as the user that owns it")
    strange = [path.name for path in found if path.stat().st_uid != owner]
    if strange and owner != 0:
        others = ", ".join(sorted({user_name(path.stat().st_uid) for path in found} - {user_name(owner)}))
        cause = f"{root} belongs to {user_name(owner)}, who cannot use {', '.join(strange)} in it: of {others}"
        return Finding(Severity.ERROR, "state", cause, give_all_to(owner, root))
    with contextlib.suppress(KeyError):
        service = pwd.getpwnam(files.SERVICE_USER)
        if owner == 0:
            cause = f"{root} belongs to root, and the units run as {service.pw_name}"
            return Finding(Severity.WARNING, "state", cause, give_all_to(service.pw_uid, root))
    return None


def paused(config: Config, now: Moment) -> list[Finding]:
    """Whether an admin wants nothing written; a warning where that may have been forgotten."""
    found = pause.asked(config.state.directory, now)
    if found is None:
        return []
    severity = Severity.WARNING if found.passed(now) > pause.LONG else Severity.NOTE
    return [Finding(severity, "paused", found.sentence(now), "rltuned resume")]


def _daemon(config: Config, found: Kept) -> Iterator[Finding]:
    held, heartbeat, now = found.holder, found.heartbeat, found.now
    if held is None:
        strange = elsewhere(config.state.directory, now)
        if strange is not None:
            yield Finding(Severity.ERROR, "daemon", strange, NEEDS_LOCKS)
        else:
            yield Finding(Severity.NOTE, "daemon", "not running", "systemctl start rltuned")
        return
    if (sign := found.living) is None:
        told = "none yet" if heartbeat is None else f"{now.since(heartbeat):.0f} s old"
        yield Finding(Severity.WARNING, "daemon", f"{held}; heartbeat {told}", "systemctl restart rltuned")
        return
    if sign.inactive > config.write.give_back_after:
        cause = f"{held}; it lives, but the last plan that it could carry out is {sign.inactive:.0f} s old"
        yield Finding(Severity.ERROR, "daemon", cause, "its log (journalctl -u rltuned) names the cause")
    else:
        yield Finding(Severity.OK, "daemon", str(held))
    if sign.unreturned:
        cause = f"jobs that could not be given back yet, and are tried again: {_some(sign.unreturned)}"
        yield Finding(Severity.ERROR, "unreturned", cause, "its log names the reason (jobs.not_returned)")


def in_force(cycles: "Sequence[CycleEntry]", facts: ClusterFacts, health: Health) -> list[Finding]:
    """Whether backfill often undoes a write; how many raised jobs squeue showed in force is in the cycle's sentence."""
    undoing = sum(entry.results.get(Outcome.UNDONE, 0) > 0 for entry in cycles)
    if undoing <= OFTEN * len(cycles):
        return []
    cause = f"Slurm's backfill undid writes in {undoing} of {len(cycles)} cycles of the last hour"
    remedy = (
        f"set PriorityCalcPeriod to a minute (it is {facts.priority_calc_period:.0f} s), and keep backfill's cycles"
        f" short (sdiag: {health.backfill_mean_us / 1e6:.1f} s in the mean): a smaller bf_max_time or bf_max_job_test,"
        " a smaller bf_yield_sleep, a larger bf_interval (docs/operations.md, When backfill undoes a write)"
    )
    return [Finding(Severity.WARNING, "in force", cause, remedy)]


@dataclass(frozen=True, slots=True)
class Remains:
    """Pending jobs with something of rltuned's."""

    jobs: tuple[int, ...] = ()
    unverifiable: tuple[int, ...] = ()
    """They may carry something of ours: sprio does not list them (held, explicit priority, restart), or what Slurm says
    of them cannot be understood."""
    foreign: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()  # they have a SiteFactor that the journal does not explain


def remains(journal: Journal, seen: Mapping[int, JobStatus]) -> Remains:
    """Compare the journal with `SlurmReader.status(None)`; changes nothing."""
    jobs, unverifiable, foreign = [], [], []
    for job, entry in journal.entries.items():
        status = seen.get(job)
        if status is not None and status.strange and not entry.is_empty:
            unverifiable.append(job)
        if status is None or not status.pending or status.submit_time != entry.submit_time:
            continue
        if entry.applied.foreign:
            foreign.append(job)
        isolated = entry.applied.oversubscribe is not None and status.oversubscribe in ISOLATED
        if status.site_factor in entry.factors or isolated:
            jobs.append(job)
        elif entry.factors and status.site_factor is None:
            unverifiable.append(job)
    stray = [job for job, status in seen.items() if status.pending and journal.is_orphan(job, status.site_factor)]
    return Remains(tuple(sorted(jobs)), tuple(sorted(unverifiable)), tuple(sorted(foreign)), tuple(sorted(stray)))


def leftovers(found: Remains, *, running: bool, wanted: bool) -> Iterator[Finding]:
    """What is still changed on the queue, in words. `wanted`: by a daemon that runs in a stage that writes.

    Without such a daemon nothing should be; one in another stage (`running`) gives back what there is.
    """
    parts = []
    if found.jobs:
        parts.append(f"{len(found.jobs)} pending jobs carry values of rltuned's ({_some(found.jobs)})")
    if found.unverifiable:
        parts.append(f"{len(found.unverifiable)} may, but Slurm does not show it ({_some(found.unverifiable)})")
    severity, remedy = Severity.ERROR, "rltuned restore"
    if wanted or not parts:
        severity, remedy = Severity.OK, ""
    elif running:
        severity, remedy = Severity.WARNING, "the daemon is giving them back; if they stay: systemctl stop rltuned"
    nothing = "nothing of rltuned's is on any pending job: each priority is what Slurm alone computes"
    yield Finding(severity, "leftovers", "; ".join(parts) or nothing, remedy)
    if found.foreign:
        cause = f"{len(found.foreign)} jobs were changed by somebody else and are left alone ({_some(found.foreign)})"
        yield Finding(Severity.NOTE, "foreign changes", cause)
    if found.orphans:
        cause = f"{len(found.orphans)} pending jobs have a SiteFactor that rltuned did not set ({_some(found.orphans)})"
        remedy = "if nobody else, and no other rltuned, uses SiteFactor: rltuned restore --orphans"
        yield Finding(Severity.WARNING, "orphans", cause, remedy)


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")

"""What ``rltuned plan``, ``explain`` and ``when`` show, without a daemon. Writes nothing.

Where there is a record, `explain` needs no Slurm and no estimates: `decide` imports what only it needs.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rltuned.controller.cycle.choice import lent_by
from rltuned.controller.cycle.lending import planned_on
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.health.clock import SystemClock
from rltuned.controller.write.journal import Journal
from rltuned.core.applied import AppliedChanges
from rltuned.core.config import Config, Stage, did_you_mean
from rltuned.core.errors import JournalError, RltunedError, SlurmError
from rltuned.core.installed import has_numba, how_to_install
from rltuned.core.tables import JobTable, Snapshot
from rltuned.decide.decision import DecisionRecord, StartRecord
from rltuned.decide.decision import record as record_of
from rltuned.decide.explain import Explanation, Treatment
from rltuned.decide.explain import explain as explain_job
from rltuned.decide.listing import listing
from rltuned.decide.loans import Book
from rltuned.decide.user_record import UserRecord
from rltuned.records import decisions
from rltuned.records.published import fetch, only_own
from rltuned.simulate.forecast.start_offer import (
    Asked,
    JobAnswer,
    LimitAnswer,
    OtherLimits,
    StartOffer,
    offer_of,
    with_limit,
)

if TYPE_CHECKING:  # see above
    from rltuned.controller.cycle.planning import Predicted
    from rltuned.controller.learnt.history import Known

Tell = Callable[[str], None]  # told in a sentence what is not known and what is taken instead


def _no_forecast(config: Config) -> RltunedError:
    """Why nothing says when jobs start."""
    cause = "the daemon's last cycle made none; where the next ones make none either, its log says why"
    if config.forecast.enabled == "off":
        cause = 'forecast.enabled is "off"'
    elif config.cycle.stage is Stage.OBSERVE:
        cause = "stage observe makes no plan"
    elif not (has_numba() or only_own(config)):  # a user's host need not be the daemon's
        cause = f"Numba is not installed: {how_to_install('simulate')}, and restart the daemon (docs/start-times.md)"
    return RltunedError(f"no start times are forecast: {cause}")


def decide(config: Config, tell: Tell) -> tuple[DecisionRecord, JobTable]:
    """The record of a plan made now, by the journal where it may be read, and the jobs that it is about. SlurmError,
    RltunedError: there is none.
    """
    from rltuned.controller.cycle.planning import planned  # noqa: PLC0415 - see above
    from rltuned.controller.learnt.history import Known, saved  # noqa: PLC0415 - see above
    from rltuned.slurm.connect import open_reader  # noqa: PLC0415 - see above

    try:
        applied = Journal.read(config.state.directory, config.state.mirror).applied()
    except JournalError as error:
        tell(f"planning without the journal: {error}")
        applied = AppliedChanges()
    reader = open_reader(config.slurm)
    snapshot = replace(reader.snapshot(SystemClock().time()), scheduler=reader.facts().scheduler)
    book, share, now = Book(), None, SystemClock().steady()
    try:
        applied, book, share = planned_on(config, snapshot, applied, now)
    except RltunedError as error:
        tell(f"planning as if nobody had lent anything: {error}")
    try:
        known = saved(config.estimates, config.state.directory)
    except RltunedError as error:
        tell(f"run times are the time limits: {error}")
        known = Known()
    named = known.history.named and config.estimates.names != "off"
    predicted = _by_names(known, reader, config, snapshot, tell) if named else known.predicted
    policy, choice = load_policy(config).choose(snapshot)
    _, config = lent_by(choice, config, share, now)
    made = planned(predicted, snapshot, policy, config, applied, book)
    return record_of(made, policy_why=choice.why or ""), snapshot.jobs


def _by_names(known: "Known", reader: object, config: Config, snapshot: Snapshot, tell: Tell) -> "Predicted":
    """`Known.predicted` by what the daemon knows the waiting jobs by, where its key may be read."""
    from rltuned.controller.learnt.names import Names  # noqa: PLC0415 - most sites ask for no names

    try:
        names, trouble = Names.open(reader, config.state.directory, make=False), ""
    except RltunedError as error:
        names, trouble = None, str(error)
    if names is not None:
        names.look(snapshot.jobs)
        trouble = names.trouble
    if trouble:
        tell(f"run times are predicted without names: {trouble}")
    return lambda jobs: known.predicted(jobs, None if names is None else names.of(jobs))


def plan(config: Config, tell: Tell, *, user: str = "", partition: str = "") -> dict[str, Any]:
    """`decide` as `decide.listing` has it, of the jobs of a user and of a partition only where these are given.
    RltunedError, too: no pending job is of that user or partition.
    """
    made, jobs = decide(config, tell)
    rows = jobs.pending.tolist()
    several = "--partition", partition, jobs.partition, ","
    for option, wanted, column, between in (("--user", user, jobs.user, "\0"), several):
        if wanted:
            names = {row: column.value(row).split(between) for row in rows}
            known = {name for of in names.values() for name in of}
            if wanted not in known:
                near = did_you_mean(wanted, sorted(known))
                raise RltunedError(f"{option} {wanted}: no pending job is of that {option.removeprefix('--')}{near}")
            rows = [row for row in rows if wanted in names[row]]
    return listing(made, set(jobs.job_id[rows].tolist()).__contains__)


def explain(config: Config, job_id: int, tell: Tell, *, fresh: bool = False, at: float | None = None) -> Explanation:
    """Why a job is at its place: by the daemon's last decision, else, or where `fresh` asks for it, by `decide`; or by
    the decision of the log that held `at` a time, epoch seconds. SlurmError, RltunedError: there is none.
    """
    if at is not None:
        kept = decisions.last_before(config.state.directory, at).decision
        assert kept is not None  # noqa: S101 - what `last_before` looks for
        return explain_job(kept, job_id)
    made: DecisionRecord | None = None
    if not fresh:
        try:
            made = decisions.load(config.state.directory)
        except RltunedError as error:
            tell(f"{error}; planning afresh")
    if made is None:
        return explain_job(decide(config, tell)[0], job_id)
    answer = explain_job(made, job_id)
    return _looked_for(config, answer, tell) if answer.verdict is Treatment.NOT_PENDING else answer


def _looked_for(config: Config, answer: Explanation, tell: Tell) -> Explanation:
    """Whether a job that was not in the queue at the last decision waits now."""
    from rltuned.slurm.connect import open_reader  # noqa: PLC0415 - see above

    try:
        job = open_reader(config.slurm).status([answer.job_id]).get(answer.job_id)
    except SlurmError as error:
        tell(f"Slurm cannot be asked whether it waits now: {error}")
        return answer
    if job is None or not job.pending:
        return answer
    now = replace(answer, priority=job.priority, site_factor=job.site_factor, reason=job.reason)
    return replace(now, verdict=Treatment.NEW)


def start_of_job(config: Config, job_id: int) -> JobAnswer:
    """When a pending job starts; RltunedError says why nothing can be read."""
    return _known_of(config, job_id)[0]


def start_with_limit(config: Config, job_id: int, limit: float) -> LimitAnswer:
    """When it would start with this time limit, seconds. RltunedError as before."""
    job, other = _known_of(config, job_id)
    return with_limit(job, limit, other)


def _known_of(config: Config, job_id: int) -> tuple[JobAnswer, OtherLimits]:
    """When a pending job starts, and with shorter limits."""
    if only_own(config):
        own = fetch(config.users, os.geteuid())
        start, likely, meaning = None, None, "At the last cycle it was not among your pending jobs."
        other = OtherLimits(None, own.limits, ())
        for job in own.jobs:
            if job.job_id == job_id:
                start, likely, meaning = job.start, job.likely, job.meaning
                other = OtherLimits(job.time_limit, own.limits, job.shorter)
        return JobAnswer(job_id, own.time, start, likely, meaning, own.outcomes, own.not_simulated), other
    made = decisions.load(config.state.directory)
    if (starts := made.starts) is None:
        raise _no_forecast(config)
    if (found := starts.of(job_id)) is not None:
        start, likely = found.interval, found.middle
        meaning = f"{found.before} jobs stand before it." if found.before else "It is the first in the queue."
    else:
        start, likely, veto = None, None, made.veto_of(job_id)
        meaning = "The last forecast did not look at it: it came later, runs, has ended, or is further back."
        if veto is not None:
            meaning = f"Nothing is forecast: {veto.meaning}."
    other = OtherLimits(None if found is None else found.limit, starts.limits, starts.shorter.get(job_id, ()))
    return JobAnswer(job_id, made.time, start, likely, meaning, starts.outcomes, starts.not_simulated), other


def start_offer(config: Config, asked: Asked) -> StartOffer:
    """When a job would start that nobody has submitted; RltunedError says why nothing is known."""
    found = _probed(config, asked)
    return offer_of(asked, found.probes, found.outcomes, found.not_simulated)


def start_offers(config: Config, asked: Asked) -> list[StartOffer]:
    """The same with each time limit that was simulated, whatever its own is; the shortest first."""
    found = _probed(config, asked)
    limits = sorted({probe.time_limit for probe in found.probes if asked.partition in {"", probe.partition}})
    offers = [
        offer_of(asked._replace(time_limit=limit), found.probes, found.outcomes, found.not_simulated)
        for limit in limits
    ]
    return [offer for offer in offers if offer.found is not None] or offers[:1]


def _probed(config: Config, asked: Asked) -> UserRecord | StartRecord:
    """What the last forecast says of jobs that nobody has submitted."""
    own = only_own(config)
    found = fetch(config.users, os.geteuid()) if own else decisions.load(config.state.directory).starts
    if found is None or not found.probes:
        raise _no_forecast(config)
    known = sorted({probe.partition for probe in found.probes})
    if asked.partition and asked.partition not in known:
        raise RltunedError(
            f"--partition {asked.partition}: nothing is forecast for it: there is no such partition, or it is not up, "
            f"or has no usable node (there are {', '.join(known)}){did_you_mean(asked.partition, known)}"
        )
    return found

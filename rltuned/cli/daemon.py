"""What an admin needs on the controller host: `rltuned run`, `restore`, `pause`, `status`, `doctor` and others."""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from rltuned.cli.common import (
    TIME,
    Real,
    config_option,
    console,
    emit,
    epoch_of,
    job_number,
    json_option,
    load,
    of_daemon,
    remark,
    span,
)
from rltuned.core.config import Stage, UsersSection
from rltuned.core.errors import ExitCode, JournalError

WRITES = os.R_OK | os.W_OK | os.X_OK
"""What a command that writes needs of the state directory."""


@click.command()
@config_option
@click.option("--dry-run", is_flag=True, help="Shadow mode whatever the configuration says; no writer is constructed.")
@click.option("--once", is_flag=True, help="One cycle, then end.")
@click.option("--stage", type=click.Choice([stage.value for stage in Stage]), help="Override cycle.stage.")
def run(config_path: Path | None, *, dry_run: bool, once: bool, stage: str | None) -> None:
    """Run the daemon (what systemd starts)."""
    from rltuned.controller.cycle.service import serve

    of_daemon(load(config_path).config, WRITES)
    flags: dict[str, tuple[Any, str]] = {}
    if stage is not None:
        flags["cycle.stage"] = (stage, "--stage")
    if dry_run:
        effective = load(config_path, flags)
        observing = effective.config.cycle.stage is Stage.OBSERVE
        flags["cycle.stage"] = (Stage.OBSERVE.value if observing else Stage.SHADOW.value, "--dry-run")
    serve(lambda: load(config_path, flags), dry_run=dry_run, once=once)


@click.command()
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, type=job_number)
@config_option
@click.option(
    "--orphans",
    is_flag=True,
    help="Also clear site factors that the journal does not know. Only for sites where nobody else uses SiteFactor.",
)
@click.option(
    "--if-stale",
    type=Real(min=0),
    metavar="SECONDS",
    help="Do nothing unless the daemon's heartbeat is older (what the dead-man timer runs).",
)
@json_option
def restore(
    job_ids: tuple[int, ...], config_path: Path | None, *, orphans: bool, if_stale: float | None, as_json: bool
) -> None:
    """Undo everything that rltuned has put on the queue.

    It is proven by reading back. With JOBIDs (as of `rltuned explain`) only those jobs, which the daemon then leaves
    alone for good. Works without the daemon and without a model. Exit code 10: something could not be taken back; each
    such job is named with the reason and the remedy.
    """
    import time

    from rltuned.controller.give_back.by_command import restore_queue
    from rltuned.controller.health.lock import holder
    from rltuned.core.workers.progress import ProgressLines

    lines = ProgressLines(time.monotonic, partial(click.echo, err=True), every=10.0)
    config = of_daemon(load(config_path).config, WRITES)
    report = restore_queue(
        config,
        job_ids=job_ids,
        orphans=orphans,
        if_stale=if_stale,
        progress=partial(lines, "restoring jobs"),
    )
    if report is None:
        nothing = "The daemon is alive; nothing was done."
        if holder(config.state.directory) is None:
            nothing = (
                "The daemon's process is gone, but its last sign of life is young: nothing was done. If it does not "
                "come back, the dead-man timer gives everything back; `rltuned restore` does it now."
            )
        click.echo("null" if as_json else nothing)
        return
    if as_json:
        emit(report.to_json())
    else:
        click.echo(report.sentence())
        for left in report.left:
            click.echo(f"  job {left.job_id}: {left.field}={left.value} stays: {left.reason} → {left.remedy}")
        for job in report.unknown:
            click.echo(f"  job {job} does not wait, and rltuned has nothing on it: there is nothing to give back")
    if report.journal_trouble:
        click.echo(f"The journal could not be brought up to date: {report.journal_trouble}", err=True)
    if not report.complete:
        raise click.exceptions.Exit(ExitCode.FINDINGS)
    if report.journal_trouble and job_ids:
        raise JournalError(
            "the jobs are given back, but a daemon will not know that it has to leave them alone: make room for the "
            "journal, then run this again"
        )


@click.command()
@config_option
@click.option(
    "--for",
    "seconds",
    type=span,
    metavar="TIME",
    help="End by itself after 5m, 2h or 3d. [default: with `rltuned resume`]",
)
def pause(config_path: Path | None, seconds: float | None) -> None:
    """Have the daemon give everything back and write nothing.

    It is not stopped: it goes on reading, planning and reporting, and says in each cycle that it is paused. A restart
    keeps the pause.

    \b
    Examples:
      rltuned pause --for 2h
      rltuned resume
    """
    from rltuned.controller.give_back.pause import ask
    from rltuned.controller.health.clock import Moment, SystemClock
    from rltuned.controller.health.lock import holder

    directory = of_daemon(load(config_path).config, WRITES).state.directory
    now = Moment.of(SystemClock())
    click.echo(f"rltuned is {ask(directory, now, seconds).sentence(now)}.")
    gives = "From its next cycle on the daemon gives everything back to Slurm, and writes nothing else."
    click.echo(gives if holder(directory) else "No daemon runs; one that starts writes nothing until then.")


@click.command()
@config_option
def resume(config_path: Path | None) -> None:
    """End a pause: the daemon goes on in its next cycle."""
    from rltuned.controller.give_back.pause import end

    ended = end(of_daemon(load(config_path).config, WRITES).state.directory)
    click.echo("The pause has ended; the next cycle goes on." if ended else "Nothing was paused.")


@click.command()
@config_option
@json_option
def status(config_path: Path | None, *, as_json: bool) -> None:
    """How the daemon is, on one screen.

    Stage, last cycle, raised jobs, what was lent, alarms, from its files: Slurm is not asked.

    Exit code 10: one of the alarms is an error. 17: no daemon runs.
    """
    from rltuned.cli import show
    from rltuned.controller.health.clock import SystemClock
    from rltuned.controller.health.prerequisites import Severity
    from rltuned.controller.shown.status import look

    found = look(of_daemon(load(config_path).config), SystemClock())
    if as_json:
        emit(found.as_dict())
    else:
        show.status(console(), found)
    if any(item.severity is Severity.ERROR for item in found.alarms):
        raise click.exceptions.Exit(ExitCode.FINDINGS)
    if found.holder is None or found.holder.purpose == "restore":  # on a full disk a daemon's lock says nothing
        raise click.exceptions.Exit(ExitCode.STOPPED)


@click.command()
@config_option
@json_option
def doctor(config_path: Path | None, *, as_json: bool) -> None:
    """Is this cluster ready, and what is missing?

    Looks at versions, privileges, plugins, the rate limiter, settings that conflict and leftovers. Each finding names
    its remedy. Exit code 10: one of them is an error.
    """
    from rltuned.cli import show
    from rltuned.controller.health.clock import SystemClock
    from rltuned.controller.health.prerequisites import Severity
    from rltuned.controller.shown.checks import examine
    from rltuned.core.safe_files import user_of
    from rltuned.slurm.connect import open_reader

    config = of_daemon(load(config_path).config)
    # Not this user's privilege counts, but that of the daemon's.
    found = examine(open_reader(config.slurm, user_of(config.state.directory)), config, SystemClock())
    if as_json:
        emit([asdict(item) for item in found])
    else:
        show.findings(console(), found)
    if any(item.severity is Severity.ERROR for item in found):
        raise click.exceptions.Exit(ExitCode.FINDINGS)


@click.command()
@config_option
@click.option("--user", default="", help="Only the jobs of this user.")
@click.option("--partition", default="", help="Only jobs that may run in this partition.")
@click.option("--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Jobs to print.")
@json_option
def plan(config_path: Path | None, user: str, partition: str, limit: int, *, as_json: bool) -> None:
    """One cycle, printed as a diff against Slurm's own order. Writes nothing."""
    from rltuned.controller.shown import once

    made = once.plan(of_daemon(load(config_path).config), remark, user=user, partition=partition)
    if as_json:
        emit(made)
    else:
        from rltuned.cli import show

        show.plan_diff(console(), made, limit)


@click.command()
@click.argument("job_id", metavar="[JOBID]", required=False, type=job_number)
@config_option
@click.option("--fresh", is_flag=True, help="Read Slurm now instead of the running daemon's last decision.")
@click.option(
    "--at",
    type=epoch_of,
    metavar="TIME",
    help=f"From the decision log: the decision that held then. TIME: {TIME}.",
)
@json_option
def explain(job_id: int | None, config_path: Path | None, *, fresh: bool, at: float | None, as_json: bool) -> None:
    """Why is this job at this rank, and why does it wait?

    Admins get the daemon's last decision about any job; where there is none, that of a fresh plan. Slurm is asked only
    whether a job waits that came after it. Everybody else gets what concerns their own pending jobs, as far as
    `[users]` in the configuration allows; so does who names no job.

    JOBID: 123; 123_4 for a task of an array, which waits as one with the array; 123+1 for a component of a
    heterogeneous job. Exit code 16: the job does not wait.
    """
    if fresh and at is not None:
        raise click.UsageError("--fresh reads Slurm now, --at asks about the past: give one of them")
    from rltuned.cli import show
    from rltuned.controller.shown import once
    from rltuned.decide.explain import Treatment
    from rltuned.records import published

    if job_id is None and (fresh or at is not None):
        raise click.UsageError(f"{'--fresh' if fresh else '--at'} needs a JOBID")
    config = load(config_path, for_everybody=True).config
    if job_id is None or (not fresh and at is None and published.only_own(config)):
        _explain_own(config.users, job_id, as_json=as_json)
        return
    answer = once.explain(of_daemon(config), job_id, remark, fresh=fresh, at=at)
    if as_json:
        emit(asdict(answer))
    else:
        show.explanation(console(), answer)
    if answer.verdict is Treatment.NOT_PENDING:
        raise click.exceptions.Exit(ExitCode.ABSENT)


def _explain_own(settings: UsersSection, job_id: int | None, *, as_json: bool) -> None:
    from dataclasses import replace

    from rltuned.cli import show
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.wording import duration
    from rltuned.records.published import fetch

    found = fetch(settings, os.geteuid())
    if job_id is not None:
        found = replace(found, jobs=tuple(job for job in found.jobs if job.job_id == job_id))
    if as_json:
        emit(found.as_dict())
    elif job_id is not None and not found.jobs:
        more = f" (of {found.left_out} more of yours nothing is shown)" if found.left_out else ""
        when = f"{duration(SystemClock().time() - found.time)} ago"
        then = f"job {job_id} was not among your pending jobs {when}"
        remark(f"{then}: it came later, runs, has ended, or is not yours{more}")
    else:
        show.user_record(console(), found, SystemClock().time(), only=job_id is not None)
    if job_id is not None and not found.jobs:
        raise click.exceptions.Exit(ExitCode.ABSENT)

"""`rltuned run`, `restore`, `doctor`, `plan`, `explain`: what an admin needs on the controller host."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from rltuned.commands.common import EXIT_FINDINGS, config_option, console, emit, json_option, load, remark
from rltuned.config import Config, Stage
from rltuned.errors import JournalError, RltunedError


@click.command()
@config_option
@click.option("--dry-run", is_flag=True, help="Shadow mode whatever the configuration says; no writer is constructed.")
@click.option("--once", is_flag=True, help="One cycle, then end.")
@click.option("--stage", type=click.Choice([stage.value for stage in Stage]), help="Override cycle.stage.")
def run(config_path: Path | None, *, dry_run: bool, once: bool, stage: str | None) -> None:
    """Run the daemon (what systemd starts)."""
    from rltuned.daemon.service import serve

    flags: dict[str, tuple[Any, str]] = {}
    if stage is not None:
        flags["cycle.stage"] = (stage, "--stage")
    if dry_run:
        effective = load(config_path, flags)
        observing = effective.config.cycle.stage is Stage.OBSERVE
        flags["cycle.stage"] = (Stage.OBSERVE.value if observing else Stage.SHADOW.value, "--dry-run")
    serve(lambda: load(config_path, flags), dry_run=dry_run, once=once)


@click.command()
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, type=click.IntRange(min=1))
@config_option
@click.option(
    "--orphans",
    is_flag=True,
    help="Also clear site factors that the journal does not know. Only for sites where nobody else uses SiteFactor.",
)
@click.option(
    "--if-stale",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Do nothing unless the daemon's heartbeat is older (what the dead-man timer runs).",
)
@json_option
def restore(
    job_ids: tuple[int, ...], config_path: Path | None, *, orphans: bool, if_stale: float | None, as_json: bool
) -> None:
    """Undo everything that rltuned has put on the queue, and prove it by reading back.

    With JOBIDs only those jobs, which the daemon then leaves alone for good. Works without the daemon and without a
    model. Exit code 10: something could not be taken back; each such job is named with the reason and the remedy.
    """
    from rltuned.daemon.undo import undo

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\rrestoring {done}/{total}", nl=done == total, err=True)

    report = undo(load(config_path).config, job_ids=job_ids, orphans=orphans, if_stale=if_stale, progress=progress)
    if report is None:
        click.echo("null" if as_json else "The daemon is alive; nothing was done.")
        return
    if as_json:
        emit(report.to_json())
    else:
        click.echo(report.sentence())
        for left in report.left:
            click.echo(f"  job {left.job_id}: {left.field}={left.value} stays: {left.reason} → {left.remedy}")
    if not report.complete:
        raise click.exceptions.Exit(EXIT_FINDINGS)


@click.command()
@config_option
@json_option
def doctor(config_path: Path | None, *, as_json: bool) -> None:
    """Check versions, privileges, plugins, rate limiter, conflicting settings and leftovers; each with its remedy."""
    from rltuned import show
    from rltuned.daemon.checks import Severity, examine
    from rltuned.daemon.clock import SystemClock
    from rltuned.slurm.connect import open_reader

    config = load(config_path).config
    found = examine(open_reader(config.slurm), config, SystemClock())
    if as_json:
        emit([asdict(item) for item in found])
    else:
        show.findings(console(), found)
    if any(item.severity is Severity.ERROR for item in found):
        raise click.exceptions.Exit(EXIT_FINDINGS)


@click.command("plan")
@config_option
@click.option("--limit", default=40, show_default=True, help="Jobs to print.")
@json_option
def plan(config_path: Path | None, limit: int, *, as_json: bool) -> None:
    """One cycle, printed as a diff against Slurm's own order. Writes nothing."""
    made = _fresh_record(load(config_path).config)
    if as_json:
        emit(made)
    else:
        from rltuned import show

        show.plan_diff(console(), made, limit)


@click.command()
@click.argument("job_id", metavar="JOBID", type=click.IntRange(min=1))
@config_option
@click.option("--fresh", is_flag=True, help="Read Slurm now instead of the running daemon's last decision.")
@json_option
def explain(job_id: int, config_path: Path | None, *, fresh: bool, as_json: bool) -> None:
    """Why is this job at this rank? Answers from the daemon's last decision; without one, from a fresh plan."""
    from rltuned import show
    from rltuned.daemon import record
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.verdict import Auto
    from rltuned.decide import explain as explain_job

    config = load(config_path).config
    made: dict[str, Any] | None = None
    if not fresh:
        try:
            made = record.load(config.state.directory)
        except RltunedError as error:
            remark(f"{error}; planning afresh")
    made = made if made is not None else _fresh_record(config)
    try:
        policy = load_policy(config.policy)
    except RltunedError as error:
        remark(f"what moved the score is not known: {error}")
        policy = None
    answer = explain_job(made, job_id, policy.named(made["policy"]) if isinstance(policy, Auto) else policy)
    if as_json:
        emit(answer.as_dict())
    else:
        show.explanation(console(), answer)


def _fresh_record(config: Config) -> dict[str, Any]:
    """The record of a plan made now, with what the journal says about earlier cycles where it may be read."""
    from rltuned.cluster.changes import History
    from rltuned.daemon.clock import SystemClock
    from rltuned.daemon.history import Known, saved
    from rltuned.daemon.journal import Journal
    from rltuned.daemon.logs import make
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.metrics import Metrics
    from rltuned.daemon.planning import Planning
    from rltuned.daemon.rehearse import KERNELS, Here
    from rltuned.daemon.verdict import chosen
    from rltuned.decide import record
    from rltuned.slurm.connect import open_reader

    try:
        history = Journal.read(config.state.directory, config.state.mirror).history()
    except JournalError as error:
        remark(f"planning without the journal: {error}")
        history = History()
    snapshot = open_reader(config.slurm).snapshot(SystemClock().time())
    try:
        known = saved(config.estimates, config.state.directory)
    except RltunedError as error:
        remark(f"run times are the time limits: {error}")
        known = Known()
    policy, choice = chosen(load_policy(config.policy), snapshot, config.rehearsal)
    log = make(config.log.level, config.log.format, sys.stderr)
    rehearsal = Here(lambda: config.rehearsal, SystemClock(), log, Metrics(), config.state.directory / KERNELS)
    made = Planning(known.estimates, rehearsal, ended=known.ended)(snapshot, policy, config, history)
    return record(made) | {"policy_why": choice.why}

"""`rltuned tune`: the best that slurm.conf alone can do."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltuned import revision
from rltuned.cli.common import (
    EXIT_UNPROVEN,
    NUMBER,
    Real,
    as_objective,
    config_option,
    console,
    emit,
    given,
    json_option,
    load,
    processes,
    remark,
    usage,
)
from rltuned.core.objective import DEFAULT

if TYPE_CHECKING:
    from rich.table import Table

    from rltuned.lab.evaluate.tune import Tuned


@click.command()
@click.option("--trace", metavar="FILE", help="Jobs: CSV or sacct -P; gzip or not. See `rltuned traces`.")
@click.option(
    "--from-sacct",
    type=Real(0, 366, min_open=True),
    metavar="DAYS",
    help="Jobs of the last DAYS from sacct, instead of --trace.",
)
@click.option("--cluster", help="20x8:p100 or FILE.json. [default: what Slurm shows]")
@click.option(
    "--weights",
    metavar="WEIGHTS",
    help="Of the site's slurm.conf: usual (all factors weigh alike), fair-share (it decides), or a list as "
    "age=1000,fairshare=100000,favor_small=1. [default: what Slurm shows; with --cluster usual]",
)
@click.option(
    "--scheduler",
    metavar="PARAMETERS",
    help="SchedulerParameters of the site, as bf_interval=60,bf_window=2880. [default: what Slurm shows; with "
    "--cluster those of a slurm.conf that says nothing]",
)
@click.option(
    "--estimates",
    help="What rltuned knows of run times, and where time limits come from: true, noisy:SIGMA, limit or history. "
    "[default: estimates.source]",
)
@click.option(
    "--objective",
    metavar="WEIGHTS",
    callback=as_objective,
    help=f"What J weighs, each over the site's own order. [default: policy.objective, or {DEFAULT}]",
)
@click.option(
    "--budget",
    type=click.IntRange(min=5),  # differential evolution needs a population of so many
    metavar="N",
    help="How many candidates are tried. [default: 300]",
)
@click.option(
    "--accounts-may-lose",
    is_flag=True,
    help="Search also what gives accounts less than they have now: what fair share weighs is then free.",
)
@click.option("--rltuned/--no-rltuned", default=True, help="Whether to judge rltuned, too; it takes half of the time.")
@click.option("--window", type=NUMBER, help="Jobs of a window. [default: 256, or fewer in a short history]")
@click.option("--seed", type=click.IntRange(min=0), help="Of the search, estimates, resamples. [default: 7]")
@click.option("--skip-bad", is_flag=True, default=None, help="Count lines that cannot be read and go on.")
@config_option
@click.option("--workers", type=NUMBER, help="Processes. [default: one per core, one beside slurmctld]")
@json_option
def tune(
    budget: int | None,
    window: int | None,
    workers: int | None,
    config_path: Path | None,
    *,
    rltuned: bool,
    accounts_may_lose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """What is the best that slurm.conf alone can do here?

    Tries a few hundred slurm.confs on the site's recent jobs in the simulator: weights of the priority, PriorityMaxAge,
    PriorityFavorSmall, SMALL_RELATIVE_TO_TIME, backfill's parameters, Weight of the nodes of a GPU type. The best one
    is judged on later jobs, which the search has not seen; if it is certainly better, the lines are printed. Accounts
    may not lose, nor the longest waits grow. Only reads Slurm, and writes nothing: the lines are yours to put in.
    Exit code 14: your slurm.conf is as good; 13: too little history.

    \b
    Examples:
      rltuned tune --from-sacct 30
      rltuned tune --trace jobs.csv.gz --cluster 16x8:a100 --weights age=1000,fairshare=100000
    """
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.evaluate import evaluation_report, gate, site
    from rltuned.lab.evaluate import tune as tuning

    if (options["trace"] is None) == (options["from_sacct"] is None):
        raise click.UsageError("tune needs the site's jobs: either --from-sacct DAYS or --trace FILE")
    if options["trace"] is not None and options["cluster"] is None:
        raise click.UsageError("--trace needs --cluster: the file need not be of the cluster that is reached from here")
    config = load(config_path).config
    if options["cluster"] is not None and options["weights"] is None:
        options["weights"] = "usual"
    with usage():
        settings = gate.as_configured(config, given(options | {"from_slurm": options["cluster"] is None}))
    with progress_bar() as progress:
        settings, jobs, shape = site.of_settings(settings, config.slurm, SystemClock().time(), remark, progress)
        found = tuning.tune(
            settings,
            jobs,
            shape,
            revision(),
            processes=processes(workers),
            budget=budget or tuning.BUDGET,
            length=window,
            fairly=not accounts_may_lose,
            daemon=rltuned,
            progress=progress,
        )
    if as_json:
        emit(found.as_dict())
    else:
        evaluation_report.show(console(), _table(found))
        click.echo(found.reason)
        for line in found.lines():
            click.echo(line)
    if not found.better:
        raise click.exceptions.Exit(EXIT_UNPROVEN)


def _table(found: "Tuned") -> "Table":
    """What each does on the later jobs."""
    from rich.table import Table

    from rltuned.lab.evaluate.evaluation_report import difference
    from rltuned.lab.evaluate.tune import SHOWN

    searched, judged = found.windows
    shown = Table(
        title=f"{found.about['trace']['name']} on {found.about['cluster']['text']}: {judged} later windows of "
        f"{found.jobs} jobs, over your slurm.conf",
        caption=f"{found.candidates} candidates on {searched} earlier windows. accounts worse: a share; worst tenth: "
        f"their wait over that with yours; by chance {_shares(found, 'chance')}. idle GPUs: while jobs wait",
        caption_justify="left",
    )
    shown.add_column("")
    for heading in (*SHOWN.values(), "accounts worse, worst tenth"):
        shown.add_column(heading, justify="right")
    names = {"tuned": "slurm.conf, tuned", "rltuned": "rltuned", "both": "rltuned on top"}
    for name, of in found.compared.items():
        shown.add_row(names[name], *(difference(vars(of[metric])) for metric in SHOWN), _shares(found, name))
    return shown


def _shares(found: "Tuned", name: str) -> str:
    return ", ".join(f"{share:.2f}" if math.isfinite(share) else "–" for share in found.fairness[name].values())

"""`rltuned learn`: renew the site's own model and its verdict."""

from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.cli.common import (
    STORE_OPTION,
    Real,
    console,
    emit,
    given,
    json_option,
    load,
    model_store,
    processes,
    remark,
    usage,
)
from rltuned.cli.lab_options import options, whose_jobs
from rltuned.core.errors import ExitCode

DAYS = 60.0
"""Of jobs that are learned from where nobody says more."""
MOST_WORKERS = 8
"""Processes where nobody asks for more: they take 0.25 GB each, the training 1.1 GB, and the unit's limit is 4 GB."""


@click.command()
@STORE_OPTION
@options(
    *("from_sacct", "trace", "cluster", "window", "shares", "seed", "valid_days", "workers"),
    from_sacct=f"{DAYS:g}",
    window="up to 3000",
    workers=f"one per core, at most {MOST_WORKERS}; one beside slurmctld",
)
@click.option(
    "--budget",
    "minutes",
    default=30.0,
    show_default=True,
    type=Real(min=0),
    metavar="MINUTES",
    help="Of the training, on 2 cores; 0: no candidate, only the verdict is renewed.",
)
@json_option
def learn(
    root: Path | None,
    config_path: Path | None,
    minutes: float,
    window: int | None,
    valid_days: float | None,
    workers: int | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Renew the site's own model and its verdict.

    `rltuned-learn.timer` does it every night. Trains a candidate on the site's earlier jobs (needs the extra [train];
    without it only the verdict is renewed). The gate judges the candidate and the version in force on the same later
    jobs. The candidate comes into force only where the gate chooses it and it certainly waits less than that version.
    The daemon takes it with its next cycle. A run that was killed goes on where it was, for a day. Before all that:
    where jobs have really waited longer since the version in force was taken, the one before it comes back.
    docs/learning.md explains it.

    Exit code 14: Slurm's own order is the verdict; 13: too little history, and the old verdict stays.

    \b
    Examples:
      rltuned learn                                   as the timer does
      rltuned learn --budget 0                        only renew the verdict
      rltuned learn --trace jobs.csv.gz --cluster 16x8:a100 --store /tmp/models
    """
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.pool import WorkerPool
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.evaluate import evaluation_report, gate
    from rltuned.lab.train import renew
    from rltuned.records.gate_verdict import SLURM

    whose_jobs(options, DAYS)
    config, store = load(config_path).config, model_store(root, config_path)
    with usage():
        settings = gate.asked(config, given(options))
    with store.locked(), progress_bar() as progress:
        run = renew.Run(
            store=store,
            settings=settings,
            pool=WorkerPool(processes(workers, MOST_WORKERS)),
            now=SystemClock().time(),
            revision=revision(),
            length=window,
            valid_days=valid_days or gate.VALID_DAYS,
            tell=remark,
            progress=progress,
        )
        made = renew.learn(run, config.slurm, minutes)
    if as_json:
        emit(made.as_dict())
    else:
        evaluation_report.show(console(), made.verdict.table())
        for line in made.verdict.lines():
            click.echo(line)
        if made.given_up:
            click.echo(f"version {made.given_up} is given up (`rltuned model list` says why)")
        if made.over_current is not None:
            click.echo(f"mean wait of the candidate / of the version in force: {made.over_current}")
        click.echo(made.why)
        click.echo(f"version {made.version} of {store.root} is in force, and its verdict is new")
    if made.verdict.chosen == SLURM:
        raise click.exceptions.Exit(ExitCode.UNPROVEN)

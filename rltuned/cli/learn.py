"""`rltuned learn`: renew the site's own model and its verdict."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.cli.common import (
    EXIT_UNPROVEN,
    NUMBER,
    STORE_OPTION,
    Real,
    config_option,
    console,
    emit,
    given,
    json_option,
    load,
    processes,
    remark,
    store_root,
    usage,
)
from rltuned.core.config import DEFAULT_MODEL

BUDGET = 30.0
"""Minutes on 2 cores, as of `rltuned train`."""
MOST_WORKERS = 8
"""Processes where nobody asks for more: they take 0.25 GB each, the training 1.1 GB, and the unit's limit is 4 GB."""


@click.command()
@STORE_OPTION
@click.option(
    "--from-sacct",
    type=Real(0, 366, min_open=True),
    metavar="DAYS",
    help="Learn from the jobs of the last DAYS.  [default: 60]",
)
@click.option("--trace", metavar="FILE", help="Jobs of this file instead; needs --cluster. See `rltuned traces`.")
@click.option("--cluster", metavar="SHAPE", help="16x8:a100 or FILE.json. [default: what Slurm shows]")
@click.option(
    "--budget",
    default=BUDGET,
    show_default=True,
    type=Real(min=0),
    metavar="MINUTES",
    help="Of the training, on 2 cores; 0: no candidate, only the verdict is renewed.",
)
@click.option("--steps", metavar="EVOLUTION,PPO", help="Steps, as of train. [default: as --budget allows]")
@click.option("--window", type=click.IntRange(min=2), help="Jobs of a window of the gate. [default: up to 3000]")
@click.option("--windows", type=click.IntRange(min=2), help="Windows of the gate, at most. [default: 30]")
@click.option("--shares", metavar="SHARE,SHARE…", help="As of `rltuned gate`.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0), help="Of training and gate.")
@click.option("--valid-days", type=Real(1, 366), help="Of the verdict. [default: 90]")
@click.option("--workers", type=NUMBER, help="Processes. [default: cores, at most 8; beside slurmctld 1]")
@config_option
@json_option
def learn(
    root: Path | None,
    from_sacct: float | None,
    trace: str | None,
    cluster: str | None,
    budget: float,
    steps: str | None,
    window: int | None,
    valid_days: float | None,
    workers: int | None,
    config_path: Path | None,
    seed: int,
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
    from rltuned.core.installed import require

    require("learn", "numba")
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.pool import WorkerPool
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.evaluate import evaluation_report, gate, site
    from rltuned.lab.train import renew
    from rltuned.records.gate_verdict import SLURM
    from rltuned.records.store import ModelStore

    if trace is not None and (from_sacct is not None or cluster is None):
        raise click.UsageError("--trace needs --cluster, and does not go with --from-sacct")
    config = load(config_path).config
    store, clock = ModelStore(store_root(root, config_path)), SystemClock()
    asked = given(options) | {"seed": seed}
    asked |= {"trace": trace} if trace is not None else {"from_sacct": from_sacct or 60.0}
    asked |= {"cluster": cluster} if cluster is not None else {"from_slurm": True}
    with usage():
        settings = gate.as_configured(config, asked)
    workers = processes(workers, MOST_WORKERS)
    work = store.root / "work"
    with store.locked(), progress_bar() as progress:
        now = clock.time()
        begun = renew.moment(work, now)
        settings, jobs, shape = site.of_settings(settings, config.slurm, begun, remark, progress)
        why_not = "" if budget else "--budget 0"
        if not why_not and find_spec("tensorflow") is None:
            why_not = "TensorFlow is not installed on this host (docs/learning.md)"

        def train(jobs: Any, shape: Any, out: Path) -> Path:
            """A candidate, as `rltuned train` makes one; goes on with what an interrupted run has left."""
            from rltuned.lab.train import command
            from rltuned.lab.train.curriculum import CurriculumSettings, Site

            # Two windows at least in the part that chooses the checkpoint.
            most = min(CurriculumSettings().window[1], round(0.15 * len(jobs)) // 2)
            asked = command.settings(
                name="site",
                budget=budget,
                steps=steps,
                seed=seed,
                window=most,
                objective=settings.objective,
                begin=DEFAULT_MODEL,
            )
            made = command.run(
                [Site(jobs, shape)],
                asked,
                out,
                command="rltuned learn",
                revision=revision(),
                processes=workers,
                resume=True,
                minutes=budget,
                progress=progress,
            )
            return made.path

        made = renew.renew(
            store,
            settings,
            jobs,
            shape,
            trainer=train,
            pool=WorkerPool(workers),
            now=now,
            revision=revision(),
            work=work,
            length=window,
            valid_days=valid_days or gate.VALID_DAYS,
            why_not=why_not,
            tell=remark,
            progress=progress,
        )
    if as_json:
        emit(made.as_dict())
    else:
        evaluation_report.show(console(), gate.frontier(made.verdict))
        for line in gate.lines(made.verdict):
            click.echo(line)
        if made.given_up:
            click.echo(f"version {made.given_up} is given up (`rltuned model list` says why)")
        if made.over_current is not None:
            click.echo(f"mean wait of the candidate / of the version in force: {made.over_current}")
        click.echo(made.why)
        click.echo(f"version {made.version} of {store.root} is in force, and its verdict is new")
    if made.verdict["chosen"] == SLURM:
        raise click.exceptions.Exit(EXIT_UNPROVEN)

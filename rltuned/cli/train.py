"""`rltuned train`."""

import os
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.cli.common import (
    FOLDER,
    NUMBER,
    Real,
    as_objective,
    config_option,
    emit,
    given,
    json_option,
    load,
    remark,
    usage,
)
from rltuned.core.config import DEFAULT_MODEL
from rltuned.core.objective import DEFAULT


@click.command()
@click.option("--trace", "traces", multiple=True, help="Jobs to learn from; may be given again. See `rltuned traces`.")
@click.option(
    "--cluster", "clusters", multiple=True, help="Cluster of each trace, in their order: 16x8:a100, FILE.json."
)
@click.option("--from-sacct", type=Real(min=0, min_open=True), metavar="DAYS", help="This site's own jobs.")
@config_option
@click.option("--out", type=FOLDER, help="Run directory: model, curves, checkpoints.")
@click.option("--name", default="site", show_default=True, help="Name of the model.")
@click.option(
    "--objective",
    metavar="WEIGHTS",
    callback=as_objective,
    help="What J weighs, each over Slurm's own order, as of evaluate. [default: with --from-sacct the site's "
    f"policy.objective, else {DEFAULT}]",
)
@click.option(
    "--estimates",
    default="mixed",
    show_default=True,
    metavar="true|noisy:SIGMA|limit|history|mixed",
    help="What is known of run times, as of evaluate; mixed: drawn for each window, half of them history where the "
    "trace has users.",
)
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0), help="The same seed, the same model.")
@click.option(
    "--budget",
    "--minutes",
    "budget",
    type=Real(min=0, min_open=True),
    metavar="MINUTES",
    help="On 2 cores. [default: 30]",
)
@click.option(
    "--steps",
    metavar="EVOLUTION,PPO",
    help="Steps of the evolution strategy and of PPO. [default: as --budget allows]",
)
@click.option(
    "--from",
    "begin",
    default=DEFAULT_MODEL,
    metavar="MODEL",
    help="Model that training goes on from, a name or FILE.json; none: smallest area first. [default: the shipped one]",
)
@click.option("--window", type=click.IntRange(min=2), help="Most jobs of a window. [default: 384]")
@click.option("--processes", type=NUMBER, help="Worker processes that simulate windows. [default: cores]")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, to the same end.")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@json_option
def train(
    traces: tuple[str, ...],
    clusters: tuple[str, ...],
    from_sacct: float | None,
    config_path: Path | None,
    out: Path | None,
    name: str,
    budget: float | None,
    steps: str | None,
    window: int | None,
    processes: int | None,
    *,
    resume: bool,
    skip_bad: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a policy on jobs of the past (needs the extra [train]).

    An evolution strategy and PPO go on from the shipped model, on the simulator. The first 70 % of each trace teaches,
    the next 15 % decides which step is kept; the rest is for `rltuned evaluate --split test`. docs/learning.md explains
    every file in --out.

    \b
    Examples:
      rltuned train --trace jobs.csv.gz --cluster 16x8:a100 --out run
      rltuned train --from-sacct 180 --out run          this site's own jobs and nodes
      rltuned train --trace a.csv --cluster 20x8 --trace b.csv --cluster 240x1 --objective wait=1 --out run
      rltuned train --trace jobs.csv.gz --cluster 16x8:a100 --out run --resume      after a kill
      rltuned evaluate --trace jobs.csv.gz --cluster 16x8:a100 --split test --model run/site.json
    """
    if bool(traces) == (from_sacct is not None):
        raise click.UsageError("what to learn from: either --trace FILE with --cluster SPEC, or --from-sacct DAYS")
    if traces and len(traces) != len(clusters):
        raise click.UsageError(
            f"{len(traces)} traces and {len(clusters)} clusters: give one --cluster for each --trace"
        )
    if len(clusters) > 1 and not traces:
        raise click.UsageError("--from-sacct has one cluster")
    if out is None:
        raise click.UsageError("--out DIR: where the model, its curves and its checkpoints go")
    from rltuned.core.installed import require

    require("training", "tensorflow", "numba")
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.train import command

    if from_sacct is not None:
        config = load(config_path).config
        options["objective"] = options["objective"] or config.policy.objective
    with usage():
        settings = command.settings(name=name, budget=budget, steps=steps, window=window, **given(options))
    cores = processes or len(os.sched_getaffinity(0))
    with progress_bar() as report:
        if from_sacct is not None:
            sites = [command.own_site(config.slurm, from_sacct, clusters, SystemClock().time(), remark, report)]
        else:
            sites = command.read_sites(traces, clusters, skip_bad=skip_bad)
        result = command.run(
            sites,
            settings,
            out,
            command=command.line(traces, clusters, from_sacct, settings, skip_bad=skip_bad),
            revision=revision(),
            processes=cores,
            resume=resume,
            minutes=budget,
            progress=report,
        )
    if as_json:
        emit(result.as_dict())
        return
    for told in command.lines(result):
        click.echo(told)

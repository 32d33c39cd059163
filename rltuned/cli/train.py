"""`rltuned train`."""

import math
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.cli.common import (
    FOLDER,
    Real,
    emit,
    given,
    json_option,
    load,
    processes,
    remark,
    usage,
)
from rltuned.cli.lab_options import options, whose_jobs
from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.core.objective import DEFAULT


@click.command()
@options(
    *("from_sacct", "trace", "cluster", "objective", "estimates", "seed", "skip_bad", "workers"),
    several=True,
    objective=f"with --from-sacct the site's policy.objective, else {DEFAULT}",
    estimates="mixed: drawn for each window, half of them history where the trace has users",
)
@click.option("--out", type=FOLDER, required=True, help="Run directory: model, metrics, checkpoints.")
@click.option("--name", default="site", show_default=True, help="Name of the model.")
@click.option("--budget", type=Real(min=0, min_open=True), metavar="MINUTES", help="On 2 cores. [default: 30]")
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
@click.option("--resume", is_flag=True, help="Go on with the run in --out, to the same end.")
@json_option
def train(
    config_path: Path | None,
    out: Path,
    budget: float | None,
    workers: int | None,
    *,
    resume: bool,
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
    whose_jobs(options)
    from rltuned.core.installed import require

    require("training", "tensorflow", "numba")
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.train import command
    from rltuned.lab.train.training import train as train_on

    config = Config() if options["from_sacct"] is None else load(config_path).config
    options["objective"] = options["objective"] or config.policy.objective
    asked = command.sources(*(options.pop(name) for name in ("trace", "cluster", "from_sacct", "skip_bad")))
    with usage():
        settings = command.settings(budget=budget, **given(options))
    with progress_bar() as report:
        result = train_on(
            command.read_sites(asked, config.slurm, SystemClock().time(), remark, report),
            settings,
            out,
            command=command.line(asked, settings),
            revision=revision(),
            processes=processes(workers),
            resume=resume,
            seconds=60.0 * budget if budget else math.inf,
            progress=report,
        )
    if as_json:
        emit(result.as_dict())
        return
    for told in command.lines(result):
        click.echo(told)

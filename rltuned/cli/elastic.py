"""`rltuned elastic`: a job that changes its number of nodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rltuned.cli.common import config_option, load, remark
from rltuned.core.errors import RltunedError
from rltuned.job.elastic import OPTIONS, run


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for name, kind, default, meaning in reversed(OPTIONS):
        command = click.option(f"--{name}", type=kind, default=default, show_default=bool(default), help=meaning)(
            command
        )
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_options
@config_option
def elastic(command: tuple[str, ...], config_path: Path | None, **options: Any) -> None:
    """Run a program in a batch job, on as many nodes as pay.

    \b
      #SBATCH --nodes=1-4 --gpus-per-node=2 --requeue
      rltuned elastic --least 1 --most 4 -- ./train.sh

    The daemon advises a number of nodes. Where a change pays, the program is asked to save and end, and the job gives
    nodes back or requeues itself for more. Without advice the program runs as if this command were not there. Signals
    are passed on; the exit code is the program's. docs/elastic.md explains it.
    """
    try:
        directory = load(config_path, for_everybody=True).config.users.directory
        options["records"] = options["records"] or str(directory or "")
    except RltunedError as error:
        remark(str(error))  # no reason not to run the program
    raise click.exceptions.Exit(run(list(command), options))

"""`rltuned demo`: the demonstration on a simulated cluster."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from rltuned.cli.common import FOLDER, Real, console, emit, json_option
from rltuned.core.errors import ExitCode


@click.command()
@click.option("--jobs", default=1500, show_default=True, type=click.IntRange(1, 100_000), help="How many come.")
@click.option(
    "--preset",
    default="helios",
    show_default=True,
    type=click.Choice(["philly", "helios", "pai"]),
    help="Published trace that the generated jobs resemble.",
)
@click.option("--seed", default=7, show_default=True, help="The same seed gives the same jobs, people and summary.")
@click.option(
    "--load",
    default=1.4,
    show_default=True,
    type=Real(0, 100, min_open=True),
    help="Demand over capacity while jobs come; above 1 the queue grows.",
)
@click.option("--cluster", default="", help="For example 20x8:a100, or FILE.json. [default: 80 nodes, three GPU types]")
@click.option("--policy", default="model", show_default=True, help="`model`, or a plain rule: saf, sjf, wfp3, fifo …")
@click.option("--speed", default=0.0, type=Real(0), help="Virtual seconds per second at most. [default: no bound]")
@click.option(
    "--state",
    type=FOLDER,
    help="Directory for configuration, log, last decision, summary and report. [default: ~/.cache/rltuned/demo]",
)
@json_option
def demo(*, speed: float, state: Path | None, as_json: bool, **settings: Any) -> None:
    """See the daemon at work on a simulated cluster.

    The real daemon steers a simulated Slurm at high speed, among users who come, go, hold and change their jobs; a twin
    with the same jobs runs under Slurm's multifactor priorities alone. Needs no Slurm, no GPU and no root. Ctrl-C ends
    it with the summary so far. The first start compiles the simulator, which takes half a minute.
    """
    from rltuned.cli import show
    from rltuned.controller.health.clock import SystemClock

    screen = console(stderr=as_json)
    screen.print("loading the simulator; the first time it is compiled, which takes half a minute …")
    from rltuned.lab.demo.demo_clusters import DemoSettings, demonstrate
    from rltuned.simulate.rankers import compile_kernel

    compile_kernel()
    kept = state or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rltuned" / "demo"
    summary, trouble = demonstrate(DemoSettings(**settings), kept, SystemClock(), screen.print, speed)
    if trouble:
        screen.print(f"nothing was kept: {trouble}")
    if as_json:
        emit(summary)
    else:
        script = sys.argv[0] if os.access(sys.argv[0], os.X_OK) else f"{sys.executable} -m rltuned"
        program = "rltuned" if shutil.which("rltuned") else script
        show.demo_summary(screen, summary, None if trouble else kept, program)
    if summary["restore"]["left"]:
        raise click.exceptions.Exit(ExitCode.FINDINGS)

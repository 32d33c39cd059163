"""`rltuned demo`: the demonstration on a simulated cluster."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from rltuned.cli.common import EXIT_FINDINGS, FOLDER, Real, console, emit, json_option


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
@click.option(
    "--estimates",
    default="history",
    show_default=True,
    help="What the daemon knows of run times: history (predicted from finished jobs), limit, noisy:SIGMA, true.",
)
@click.option("--speed", default=0.0, type=Real(0), help="Virtual seconds per second at most. [default: no bound]")
@click.option("--seconds", type=Real(0, min_open=True), help="Stop after so many real seconds.")
@click.option(
    "--metrics-port", default=0, type=click.IntRange(0, 65535), help="Port on 127.0.0.1. [default: any free one]"
)
@click.option(
    "--state",
    type=FOLDER,
    help="Directory for configuration, log, last decision and summary. [default: ~/.cache/rltuned/demo]",
)
@json_option
def demo(*, speed: float, seconds: float | None, state: Path | None, as_json: bool, **settings: Any) -> None:
    """See the daemon at work on a simulated cluster.

    The real daemon steers a simulated Slurm at high speed, among users who come, go, hold and change their jobs; a twin
    with the same jobs runs under Slurm's multifactor priorities alone. Needs no Slurm, no GPU and no root. Ctrl-C ends
    it with the summary so far. The first start compiles the simulator, which takes half a minute.
    """
    import math
    import shutil
    import signal
    import tempfile

    from rich.live import Live

    from rltuned.cli import show
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.installed import needed

    screen = console(stderr=as_json)
    loading = "loading the simulator; the first time it is compiled, which takes half a minute …"
    if not screen.is_terminal:
        screen.print(loading)
    with screen.status(loading):
        with needed("the demonstration"):
            from rltuned.lab.demo.demo_clusters import Demo, DemoSettings, play
            from rltuned.lab.demo.demo_report import demo_report
            from rltuned.lab.report import charts, page
            from rltuned.simulate.rankers import compile_kernel
        compile_kernel()
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there, as in any temporary place
    fast = str(memory) if os.access(memory, os.W_OK) else None
    chosen = DemoSettings(**settings)
    stopped: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    try:
        with tempfile.TemporaryDirectory(prefix="rltuned-demo-", dir=fast) as work, Demo(chosen, Path(work)) as shown:
            head = f"policy {shown.policy.name}   metrics {shown.url}"
            live = Live(console=screen, auto_refresh=False)
            if screen.is_terminal:
                live.start()
            else:
                screen.print(head)
            try:
                cut = play(
                    shown,
                    lambda scene: (
                        live.update(show.demo_picture(scene, head), refresh=True)
                        if screen.is_terminal
                        else screen.print(show.demo_line(scene), soft_wrap=True)
                    ),
                    SystemClock(),
                    stop=lambda: bool(stopped),
                    every=0.2 if screen.is_terminal else 3.0,
                    speed=speed,
                    seconds=math.inf if seconds is None else seconds,
                )
            finally:
                if screen.is_terminal:
                    live.stop()
            summary = shown.summary(interrupted=cut)
            place = state or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rltuned" / "demo"
            kept: Path | None = place
            try:
                shown.keep(place, summary)
                if summary["jobs"]["compared"]:
                    made = demo_report(shown, SystemClock().time())
                    (place / "report.html").write_text(page.render(made, charts.draw(made)), encoding="utf-8")
            except OSError as error:
                screen.print(f"nothing was kept: {place}: {error.strerror}")
                kept = None
    finally:
        signal.signal(signal.SIGINT, before)
    if as_json:
        emit(summary)
    else:
        show.demo_summary(screen, summary)
        show.demo_next(screen, summary, kept, "rltuned" if shutil.which("rltuned") else sys.argv[0])
    if summary["restore"]["left"]:
        raise click.exceptions.Exit(EXIT_FINDINGS)

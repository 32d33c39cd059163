"""`rltuned report`: what a period was worth, from the decision log, the accounting and the simulator."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltuned import revision
from rltuned.cli.common import (
    FILE,
    FILE_OR_DASH,
    TIME,
    check_outputs,
    config_option,
    console,
    epoch_of,
    given,
    load,
    of_daemon,
    processes,
    remark,
    removed,
    write,
)
from rltuned.core.config import Config, Stage
from rltuned.core.errors import RltunedError
from rltuned.core.installed import how_to_install

if TYPE_CHECKING:
    from rltuned.lab.report.period import Period
    from rltuned.lab.report.replay import Replay


@click.command()
@click.option("--since", type=epoch_of, default="14d", show_default=True, metavar="TIME", help=f"{TIME}.")
@click.option("--until", type=epoch_of, default="0d", metavar="TIME", help="As --since. [default: now]")
@click.option("--html", type=FILE, metavar="FILE", help="Write one HTML page.")
@click.option(
    "--json",
    "out",
    type=FILE_OR_DASH,
    metavar="FILE",
    help="Write JSON; - for standard output instead of the text.",
)
@click.option(
    "--names/--no-names",
    default=True,
    show_default=True,
    help="Whether job ids, users, accounts and sentences of faults are in it. Without them the page may be shown to "
    "everybody.",
)
@click.option(
    "--replay/--no-replay",
    "wanted",
    default=True,
    show_default=True,
    help="Whether the period's jobs are replayed in the simulator: what rltuned gains. Takes minutes.",
)
@click.option("--trace", metavar="FILE", help="Jobs of this file (sacct -P, in UTC) instead of sacct.")
@click.option("--cluster", metavar="SHAPE", help="With --trace: 20x8:p100 or FILE.json. [default: what Slurm shows]")
@removed("--jobs", "the last 10,000 jobs of the period are replayed, at most")
@config_option
def report(
    *,
    since: float,
    until: float,
    html: Path | None,
    out: str | None,
    names: bool,
    wanted: bool,
    trace: str | None,
    cluster: str | None,
    config_path: Path | None,
) -> None:
    """What was a period worth, or would it have been?

    Tells what rltuned did, or would have done. Reads the decision log, asks sacct for the period's jobs, and replays
    them in the simulator under Slurm's order and under rltuned. In stages shadow and canary it ends with go, no-go or
    undecided, with the reasons. docs/good-for-us.md explains it.

    \b
    Examples:
      The last two weeks, as text
        rltuned report
      A page for a web server, without names
        rltuned report --since 7d --html /var/lib/rltuned/report/index.html --no-names
      What the decision log alone says, at once
        rltuned report --since 1d --no-replay
    """
    from rltuned.controller.health.clock import SystemClock
    from rltuned.lab.report import build, report_tables
    from rltuned.lab.report.period import read
    from rltuned.records import decisions

    if until <= since:
        raise click.UsageError("--until is not after --since")
    if cluster is not None and trace is None:
        raise click.UsageError("--cluster goes with --trace")
    path = Path(out) if out and out != "-" else None
    check_outputs({"--html": html, "--json": path})
    config = of_daemon(load(config_path).config)
    period = read(decisions.entries(config.state.directory, since, until), since, until, config.cycle.interval)
    missing: list[str] = []
    if not period.total:
        missing.append(
            f"The decision log ({config.state.directory / decisions.DIRECTORY}) has no cycle of this period."
        )
    replayed, about = None, ""
    if wanted:
        replayed, about = _replayed(config, period, missing, trace, cluster, names=names)
    else:
        missing.append("The period's jobs were not replayed (--no-replay).")
    if replayed is None and not period.total:
        raise RltunedError("there is nothing to report:\n" + "\n".join(missing))
    made = build.assemble(
        period,
        replayed,
        missing=missing,
        made_at=SystemClock().time(),
        cluster=about,
        names=names,
    )
    outputs: dict[Path, str] = {}
    if html is not None:
        from rltuned.lab.report import page

        try:
            from rltuned.lab.report import charts

            drawn = charts.draw(made)
        except ImportError:
            missing.append(_lacking("matplotlib", "the charts"))
            drawn = {}
        outputs[html] = page.render(made, drawn)
    value = json.dumps(made, indent=1, allow_nan=False) + "\n"
    if path is not None:
        outputs[path] = value
    for file, content in outputs.items():
        # Readable as the umask says, so that a web server may show it.
        write(file, content, durable=False, mode=0o666)
    if out == "-":
        click.echo(value, nl=False)
    else:
        report_tables.show_report(console(), made)
    for file in outputs:
        click.echo(f"{file}: written", err=out == "-")


def _replayed(
    config: Config,
    period: "Period",
    missing: list[str],
    trace: str | None,
    cluster: str | None,
    *,
    names: bool,
) -> "tuple[Replay | None, str]":
    """The replay and what it is about; None, and the reason in `missing`, where it cannot be made."""
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.progress import progress_bar

    try:
        from rltuned.lab.evaluate import site
        from rltuned.lab.evaluate.evaluation_settings import not_judged
        from rltuned.lab.report.replay import LEAD_DAYS, replay, settings_of
        from rltuned.slurm import not_simulated
    except ImportError as error:
        missing.append(_lacking(error.name or "numba", "the replay of the period's jobs"))
        return None, ""
    # A job is in the accounting when it has ended: what the period left running or waiting is asked for, too.
    lead = LEAD_DAYS * 86_400.0
    asked = min(SystemClock().time(), period.until + lead)
    days = (asked - period.since + lead) / 86_400.0 if trace is None else None
    chosen = given({"from_sacct": days, "trace": trace, "cluster": cluster})

    def tell(sentence: str) -> None:
        remark(sentence)
        said = f"The replay: {sentence}."
        if not names and not sentence.startswith(not_simulated.BEGINNING):  # it may quote what the accounting says
            said = "The replay leaves something out; whoever made this report was told what."
        missing.append(said)

    processes(1)  # beside slurmctld, it goes first
    try:
        with progress_bar() as progress:
            settings = settings_of(config, period.policy, chosen, period.share)
            settings, jobs, shape = site.of_settings(
                settings, config.slurm, asked, tell, progress, (period.since, period.until)
            )
            made = replay(
                settings,
                jobs,
                shape,
                period.since,
                period.until,
                revision=revision(),
                wrote=period.mode is Stage.ACTIVE,
                progress=progress,
                tell=remark,
            )
    except RltunedError as error:
        if not period.total or trace is not None:
            raise
        if not names:  # it may quote a row of the accounting
            remark(str(error))
        cause = f": {error}" if names else "; whoever made this report was told why."
        missing.append(f"The period's jobs could not be replayed{cause}")
        return None, ""
    if differing := not_judged(config):
        missing.append(f"The replay has the defaults of {', '.join(differing)}, where your configuration differs.")
    return made, shape.text


def _lacking(module: str, what: str) -> str:
    return f"{what}, because {module} is not installed here: {how_to_install('simulate')}"

"""The program `rltuned`: its group of commands, and its entry point."""

import io
import os
import sys
from collections import UserDict
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from rltuned import __version__
from rltuned.cli.common import config_option
from rltuned.core.errors import ExitCode, RltunedError

GROUPS: Final = {
    "For operators": {
        **dict.fromkeys(("run", "status", "doctor", "plan", "pause", "resume", "restore"), "daemon"),
        "report": "report",
    },
    "For users": {"explain": "daemon", "when": "when", "elastic": "elastic"},
    "Configuration": {"config": "configuration"},
    "Models": {"model": "model"},
    "Laboratory": {
        **dict.fromkeys(("evaluate", "gate", "tune"), "evaluate"),
        **{name: name for name in ("train", "learn", "traces", "bench", "demo")},
    },
}
"""The commands as people look for them, and the file that each is in."""
RENAMED: Final = {
    "check-config": "rltuned config check",
    "show-config": "rltuned config show (with --sample: rltuned config sample)",
}


class _OnDemand(UserDict[str, Any]):
    """The commands by their names. Who asks for one loads its file: what starts the daemon loads no other's."""

    def __getitem__(self, name: str) -> Any:
        return getattr(import_module(f"rltuned.cli.{self.data[name]}"), name)


class _Commands(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click: group by group."""
        widest = max(map(len, self.list_commands(ctx)))
        limit = formatter.width - widest - 4
        for title, commands in GROUPS.items():
            with formatter.section(title):
                found = [self.commands[name] for name in commands]
                formatter.write_dl([(f"{one.name:{widest}}", one.get_short_help_str(limit)) for one in found])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click. UsageError has the new name of a command of before."""
        if args[0] in RENAMED:
            ctx.fail(f"'{args[0]}' is now {RENAMED[args[0]]}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    commands=_OnDemand({name: file for group in GROUPS.values() for name, file in group.items()}),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="rltuned")
@config_option
@click.option("--dry-run", is_flag=True, help="Shadow mode: plan, record and measure, but write nothing to Slurm.")
@click.option("--once", is_flag=True, help="One cycle, then end.")
@click.pass_context
def cli(context: click.Context, config_path: Path | None, *, dry_run: bool, once: bool) -> None:
    """rltuned makes a Slurm GPU cluster finish work sooner.

    A daemon on the slurmctld host that raises a few of the pending jobs, those that a learned policy wants first, and
    can always be undone. Without a command it runs: `rltuned --dry-run` plans and records, and has nothing that writes.
    """
    if context.invoked_subcommand is None:
        context.invoke(cli.commands["run"], config_path=config_path, dry_run=dry_run, once=once, stage=None)
    elif config_path is not None or dry_run or once:
        raise click.UsageError(f"options stand behind the command: rltuned {context.invoked_subcommand} --config …")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors raised on purpose become one line and their exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every console is UTF-8
    try:
        code = cli.main(args=arguments, prog_name="rltuned", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("rltuned: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except RltunedError as error:
        from rltuned.controller.tell.logs import printable, prioritised

        for line in str(error).splitlines() or [type(error).__name__]:
            click.echo(prioritised("error", f"rltuned: {printable(line, len(line))}", sys.stderr), err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        from rltuned.core import installed

        name = (error.name or "").partition(".")[0]
        if name not in installed.MODULES:
            raise
        click.echo(f"rltuned: {installed.missing(name, 'this')}", err=True)
        sys.exit(RltunedError.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)

r"""rltuned(1) as roff, generated from the command line itself, so that the two cannot differ.

``python -m studies.manpage > docs/rltuned.1`` writes it, with ``--exit-codes`` docs/exit-codes.md; a test holds the
committed pages equal. Uses the macros of man(7). What click knows (usage, options, defaults) comes from the command
tree, exit codes from `ExitCode`; files and environment stand here.
"""

import inspect
import re
import sys
from collections.abc import Iterator

import click

from rltuned import __version__
from rltuned.cli.main import cli
from rltuned.core.config import DEFAULT_PATH, Config
from rltuned.core.errors import ExitCode


def exit_codes() -> str:
    """docs/exit-codes.md."""
    rows = "\n".join(f"| {code:d} | {code.__doc__} |" for code in ExitCode)
    return f"# Exit codes\n\n| code | meaning |\n| ---: | --- |\n{rows}\n"


def page() -> str:
    """The manual page, ending in a newline."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    state = Config().state
    root = click.Context(cli, info_name="rltuned", **cli.context_settings)
    yield f'.TH RLTUNED 1 "" "rltuned {_text(__version__)}" "User Commands"'
    yield from (".SH NAME", r"rltuned \- makes a Slurm GPU cluster finish work sooner")
    yield ".SH SYNOPSIS"
    yield from (".B rltuned", r"[\fB\-\-config\fR \fIFILE\fR] [\fB\-\-dry\-run\fR] [\fB\-\-once\fR]", ".br")
    yield from (".B rltuned", r"\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...")
    yield ".SH DESCRIPTION"
    yield from _prose(cli.help)
    yield from (".SH OPTIONS", *_options(cli, root))
    yield ".SH COMMANDS"
    yield from _commands(cli, root)
    yield ".SH FILES"
    files = (
        (str(DEFAULT_PATH), "Configuration. rltuned config sample prints one with every key and its meaning."),
        (str(state.directory), "Journal, last decision, lock."),
        (str(state.directory / "verdict.json"), "What gate has found, for the policy auto."),
        (str(state.mirror), "Second copy of the journal, on another file system."),
    )
    for name, meaning in files:
        yield from (".TP", f".I {_text(name)}", _text(meaning))
    yield ".SH ENVIRONMENT"
    yield from (".TP", r".BI RLTUNED_ SECTION __ KEY")
    yield _text("Overrides a key of the configuration file, as RLTUNED_CYCLE__STAGE=shadow does. Flags override both.")
    yield from (".SH SIGNALS", ".TP", ".B SIGHUP")
    yield _text("The daemon checks its configuration and takes it over if it is good.")
    yield from (".TP", ".BR SIGTERM , \\ SIGINT")
    yield _text("The daemon finishes the running cycle and ends. The systemd unit then runs rltuned restore.")
    yield ".SH EXIT STATUS"
    for code in ExitCode:
        yield from (".TP", f".B {code:d}", _text(f"{code.__doc__}"))
    yield from (".SH SEE ALSO", ".BR scontrol (1),", ".BR squeue (1),", ".BR sprio (1),", ".BR slurm.conf (5)")


def commands(group: click.Group, parent: click.Context) -> Iterator[click.Context]:
    """Each command that a user sees, those of its groups in their place, as the context that it would run in."""
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from commands(command, context)
        else:
            yield context


def _commands(group: click.Group, parent: click.Context) -> Iterator[str]:
    for context in commands(group, parent):
        command = context.command
        pieces = " ".join(command.collect_usage_pieces(context))
        yield f'.SS "{_text(context.command_path.removeprefix("rltuned "))} {_text(pieces)}"'
        yield from _prose(command.help)
        yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        # --help once is enough; arguments stand in the usage.
        is_help = not set(context.help_option_names).isdisjoint(parameter.opts)
        if not isinstance(parameter, click.Option) or (context.parent and is_help):
            continue
        shown = parameter.get_help_record(context)
        if shown is not None:
            names, meaning = shown
            yield from (".TP", f".B {_text(names)}", _text(meaning))


def _prose(text: str | None) -> Iterator[str]:
    r"""Paragraphs; one that starts with click's mark \b keeps its lines."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text or ""))):
        lines = paragraph.splitlines()
        if number:
            yield ".PP"
        if lines and lines[0].strip() == "\b":
            yield from (".nf", *(_text(line, filled=False) for line in lines[1:]), ".fi")
        elif paragraph:
            yield _text(paragraph)


def _text(text: str, *, filled: bool = True) -> str:
    """Escaped so that roff prints it as it is: no escape, no request at a line's start, plain hyphens, ASCII."""
    if filled:
        text = " ".join(text.split())
    text = text.replace("`", "").replace("…", "...").replace("\\", r"\e")
    text = text.replace("-", r"\-").replace("'", r"\(aq").replace('"', r"\(dq")
    text = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in text)
    return r"\&" + text if text.startswith(".") else text


if __name__ == "__main__":
    sys.stdout.write(exit_codes() if "--exit-codes" in sys.argv else page())

"""The examples of each command's help, which the man page repeats. Where one needs a cluster or hours, it is parsed."""

import re
import shlex

import click
import pytest

from rltuned.cli.main import cli, main
from rltuned.simulate.shape import parse_shape

TRACES = (".csv", ".csv.gz", ".sacct", ".txt")
"""Of files that hold what `--trace` takes: CSV, and sacct -P (docs/evaluation.md)."""


def commands(command, name="rltuned"):
    yield name, command
    for each in getattr(command, "commands", {}).values():
        yield from commands(each, f"{name} {each.name}")


def examples():
    for _, command in commands(cli):
        for line in (command.help or "").splitlines():
            # What stands behind two blanks is a remark.
            if found := re.match(r"\s+(?:.* \| )?rltuned (\S.*?)(?:\s{2}|$)", line):
                yield found[1].replace("JOBID", "4711")


def parsed(words):
    """The context of the last command in which these words are all understood."""
    context = cli.make_context("rltuned", words)
    while isinstance(context.command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("example", sorted(set(examples())))
def test_an_example_is_understood_and_names_files_of_a_format_that_is_read(example):
    context = parsed(shlex.split(example))
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in context.params.items() if value}
    for name, of in values.items():
        if name.startswith("cluster"):
            assert all(parse_shape(str(text)) for text in of)
        elif name.startswith("trace") or (name == "file" and str(of[0]) != "/dev/stdin"):
            assert all(str(path).endswith(TRACES) for path in of), of


@pytest.mark.parametrize("example", [example for example in sorted(set(examples())) if "traces generate" in example])
def test_an_example_that_makes_jobs_makes_some_that_can_be_described(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (shlex.split(example), ["traces", "describe", example.rpartition(" ")[2]]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0, capsys.readouterr().err


def test_no_example_is_missed():
    assert len(set(examples())) > 20
    with pytest.raises(click.UsageError):
        parsed(["train", "--no-such-option"])

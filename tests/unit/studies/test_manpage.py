"""rltuned(1) says what the command line says, in roff that groff has nothing to complain about."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from rltuned.cli.main import cli
from studies import manpage, reference

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "rltuned.1"


def commands(group=cli, path=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def plain(roff):
    return re.sub(r"\\\(aq", "'", roff.replace(r"\-", "-"))


def test_the_committed_pages_are_the_generated_ones():
    assert PAGE.read_text() == manpage.page(), "renew it: python -m studies.manpage > docs/rltuned.1"
    codes = (ROOT / "docs" / "exit-codes.md").read_text()
    assert codes == manpage.exit_codes(), "renew it: python -m studies.manpage --exit-codes > docs/exit-codes.md"


def test_the_committed_reference_is_the_generated_one():
    text = (ROOT / "docs" / "reference.md").read_text()
    assert text == reference.page(), "renew it: python -m studies.reference > docs/reference.md"
    assert text.count("\n| [`Rltuned") == reference.RULES.read_text().count("- alert: ")
    assert text.count("\n| `rltuned:") == reference.RULES.read_text().count("- record: ")


def test_every_command_and_option_is_on_the_page():
    text = plain(manpage.page())
    found = dict(
        re.findall(r'^\.SS "([a-z -]+?) \[OPTIONS\][^\n]*"\n(.*?)(?=^\.S[SH] |\Z)', text, re.MULTILINE | re.DOTALL)
    )
    expected = dict(commands())
    assert set(found) == set(expected)
    assert "restore" in expected
    for name, command in expected.items():
        shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        for option in shown:
            assert f".B {option.opts[0]}" in found[name], f"{name} {option.opts[0]}"


def test_text_cannot_become_a_roff_request():
    @click.group(help=".SH INJECTED\n\nback\\slash 'quote' \"double\" – dash")
    def group(): ...

    lines = list(manpage._prose(group.help))
    assert lines == [
        r"\&.SH INJECTED",
        ".PP",
        r"back\eslash \(aqquote\(aq \(dqdouble\(dq \[u2013] dash",
    ]
    assert manpage.page().isascii()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_reads_it_without_a_warning():
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tascii", "-P-c", str(PAGE)], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    rendered = re.sub(r".\x08", "", done.stdout)
    assert "rltuned - makes a Slurm GPU cluster finish work sooner" in rendered
    assert "--dry-run" in rendered

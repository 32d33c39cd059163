"""What the operator's pages tell to type exists, and what they tell to write is a configuration."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rltuned import __version__
from rltuned.cli.main import cli
from rltuned.core.config import Stage, resolve

ROOT = Path(__file__).resolve().parents[3]
NAMES = (
    "README.md",
    "deploy/README.md",
    "docs/good-for-us.md",
    "docs/installation.md",
    "docs/learning.md",
    "docs/lending.md",
    "docs/monitoring.md",
    "docs/operations.md",
    "docs/roll-out.md",
    "docs/runbook.md",
    "docs/try.md",
)
PAGES = {name: (ROOT / name).read_text() for name in NAMES}
WRITTEN = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("deploy/*.md"),
        *ROOT.glob("docker-slurm-testbed/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("models/*.md"),
        *ROOT.glob("studies/*.md"),
    ]
)


def code(text):
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)


def rltuned_calls(text):
    for line in code(text):
        for found in re.finditer(r"(?:^|&& |-- )rltuned ([a-z-]+)((?: [^&>]*)?)", line):
            yield found[1], found[2].split()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_command_of_rltuned_on_the_page_exists(name):
    calls = list(rltuned_calls(PAGES[name]))
    assert calls
    for command, words in calls:
        assert command in cli.commands, command
        known = {
            text for parameter in cli.commands[command].params for text in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in words if word.startswith("--")} <= known, (command, words)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_file_of_the_source_tree_on_the_page_exists(name):
    named = re.findall(r"(?<![\w/.-])((?:systemd|deploy|docs)/[\w./-]+[\w])", PAGES[name])
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def anchors(page):
    """The fragments by which the headings of a page can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[\w ]+\]: (\S+)$", text, re.MULTILINE)
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not fragment or fragment in anchors(target), link


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_but_of_a_table_is_wider_than_120_columns(page):
    lines = page.read_text().splitlines()
    assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > 120 and line[0] != "|"] == []


def test_each_stage_of_the_way_to_active_is_a_valid_configuration():
    snippets = re.findall(r"```toml\n(.*?)```", PAGES["docs/roll-out.md"], re.DOTALL)
    effective = [resolve(text, "roll-out.md", {}, {}) for text in snippets]
    stages = [one.config.cycle.stage for one in effective if "cycle.stage" in one.sources]
    assert stages == [Stage.CANARY, Stage.ACTIVE]


def rltuned(**environment):
    program = [sys.executable, "-c", "from rltuned.cli.main import main; main()"]
    done = subprocess.run(program, env={**os.environ, **environment}, check=False, capture_output=True, text=True)
    return done.stdout


def complete(*words):
    answer = rltuned(_RLTUNED_COMPLETE="bash_complete", COMP_WORDS=" ".join(words), COMP_CWORD=str(len(words) - 1))
    return {line.split(",")[-1] for line in answer.splitlines()}


def test_shell_completion_knows_commands_options_and_choices():
    assert complete("rltuned", "re") == {"report", "restore", "resume"}
    assert "--dry-run" in complete("rltuned", "run", "--")
    assert complete("rltuned", "run", "--stage", "") == {stage.value for stage in Stage}


def test_the_citation_is_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_completion_script_is_printed(shell):
    assert f"_RLTUNED_COMPLETE={shell}_source rltuned" in PAGES["docs/installation.md"]
    assert f"_RLTUNED_COMPLETE={shell}_complete" in rltuned(_RLTUNED_COMPLETE=f"{shell}_source")

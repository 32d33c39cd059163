"""`rltuned model …` as typed."""

import json
import re

import pytest
from click.testing import CliRunner
from unit.rank.conftest import saved

from rltuned.cli.main import cli
from rltuned.core.errors import ModelError


def run(*words):
    return CliRunner().invoke(cli, ["model", *(str(word) for word in words)], catch_exceptions=False)


@pytest.fixture
def one(tmp_path):
    return saved(tmp_path, "one", 1)


def test_info_tells_the_manifest(one):
    said = run("info", one)
    assert said.exit_code == 0
    assert "6 hidden units" in said.stdout
    assert json.loads(run("info", one, "--json").stdout)["settings"] == {"steps": 1}


def test_info_says_of_the_shipped_model_what_each_term_weighs_and_how_far_the_moment_changes_that():
    said = run("info", "general").stdout.partition("\n\n")[0]
    words = " ".join(line[line.find(" " * 3) :].strip() for line in said.splitlines())
    assert re.search(r"-\d\.\d\d ± \d\.\d\d · requested_time", words)
    assert "what the moment changes, by 14 hidden units" in words
    assert json.loads(run("info", "general", "--json").stdout)["hidden"] == 14


def test_a_relative_path_names_a_model_as_well(one, monkeypatch):
    monkeypatch.chdir(one.parent)
    assert run("verify", "one.json").exit_code == 0
    assert json.loads(run("verify", "one.json", "--json").stdout)["path"] == str(one)


def test_verify_refuses_weights_that_are_not_the_manifests(one):
    assert "ok  golden" in run("verify", one).stdout
    weights = one.with_suffix(".safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ModelError, match="sha256") as refused:
        run("verify", one)
    assert refused.value.exit_code == 4

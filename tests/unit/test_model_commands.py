"""`rltuned model …` as typed."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console
from unit.learn.test_compare import saved

from rltuned import show
from rltuned.commands.main import cli
from rltuned.errors import ModelError
from rltuned.evaluate import portrait


def run(*words):
    return CliRunner().invoke(cli, ["model", *(str(word) for word in words)], catch_exceptions=False)


@pytest.fixture
def one(tmp_path):
    return saved(tmp_path, "one", 1)


def test_info_tells_the_manifest_and_shows_the_card_once_there_is_one(one):
    before = run("info", one)
    assert before.exit_code == 0
    assert "8 → 32 → 16 → 8 → 1, relu" in before.stdout
    assert "No card" in before.stdout
    assert run("card", one).exit_code == 0
    after = run("info", one)
    card = one.with_suffix(".md").read_text()
    assert after.stdout.endswith(f"\n{card}"), "as it was written, line by line"
    told = json.loads(run("info", one, "--json").stdout)
    assert told["card"] == one.with_suffix(".md").read_text()
    assert told["settings"] == {"steps": 1}


def test_info_says_that_the_shipped_model_is_a_plain_rule():
    said = run("info", "general").stdout.partition("\n\n")[0]
    words = " ".join(line[line.find(" " * 3) :].strip() for line in said.splitlines())
    assert "the plain rule saf on expected run times" in words
    assert "the network corrects nothing" in words
    assert json.loads(run("info", "general", "--json").stdout)["summary"].endswith("; the network corrects nothing")


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


def test_compare_tells_two_models_apart(one, tmp_path):
    two = saved(tmp_path, "two", 2)
    told = json.loads(run("compare", one, two, "--states", "4", "--json").stdout)
    assert told["models"] == ["one", "two"]
    assert told["differences"]["seed"] == [1, 2]
    assert told["likeness"]["tau"] < 0.999
    text = " ".join(run("compare", one, one, "--states", "4").stdout.split())
    assert "Their manifests say the same." in text
    assert "tau 1.0000" in text
    refused = run("compare", one, two, "--trace", "jobs.csv")
    assert refused.exit_code == 2
    assert "--trace and --cluster go together" in refused.output


def test_compare_on_a_trace_prints_the_ratio_with_its_interval(one, tmp_path):
    two = saved(tmp_path, "two", 2)
    trace = tmp_path / "t.csv"
    trace.write_text(
        "submit_time,run_time,num_gpus\n" + "".join(f"{30 * k},{100 + 37 * (k % 11)},{1 + k % 3}\n" for k in range(40))
    )
    words = (
        "compare",
        one,
        two,
        "--states",
        "1",
        "--trace",
        trace,
        "--cluster",
        "2x2",
        "--window",
        "20",
        "--windows",
        "2",
    )
    told = json.loads(run(*words, "--workers", "1", "--json").stdout)
    ratio = told["paired"]["comparison"]["one/two"]["wait_mean"]
    assert ratio["lo"] <= ratio["ratio"] <= ratio["hi"]
    console = Console(width=200, file=io.StringIO())
    show.model_comparison(console, told)
    text = console.file.getvalue()
    assert "2 windows of 20 jobs" in text
    assert f"{ratio['ratio']:.4f}" in text


def test_portrait_writes_a_picture_for_each_thing_that_may_matter(one, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        portrait, "draw", lambda policy, out, seed: drawn.append((policy.name, out, seed)) or [out / "age.png"]
    )
    done = run("portrait", one, "--out", tmp_path / "plots", "--seed", "5")
    assert done.stdout.strip() == str(tmp_path / "plots" / "age.png")
    run("portrait", "saf", "--out", tmp_path)
    assert drawn == [("one", tmp_path / "plots", 5), ("saf", tmp_path, 7)]
    assert {picture.name for picture in portrait.PICTURES} == {
        "run_time",
        "time_limit",
        "gpus",
        "age",
        "fragmentation",
        "free_nodes",
    }

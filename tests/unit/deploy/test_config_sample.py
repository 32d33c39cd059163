"""deploy/config.toml is the schema's own sample, and means nothing until a line is uncommented."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from rltuned.cli.main import cli
from rltuned.core.config import Config, resolve, sample
from rltuned.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
KEY_LINE = re.compile(r"^# (?=[a-z_]+ = )", re.MULTILINE)


def keys_of_the_schema():
    return {f"{name}.{key}" for name, section in Config.model_fields.items() for key in section.annotation.model_fields}


def test_the_shipped_file_is_what_config_sample_prints():
    printed = CliRunner().invoke(cli, ["config", "sample"])
    assert printed.exit_code == 0
    shipped = (ROOT / "deploy" / "config.toml").read_text()
    assert shipped == printed.output, "renew it: rltuned config sample > deploy/config.toml"


def test_the_shipped_file_as_it_is_changes_nothing():
    effective = resolve(sample(), "config.toml", {}, {})
    assert effective.config == Config()
    assert effective.sources == {}


def test_each_line_can_be_uncommented_alone():
    lines = sample().splitlines()
    section = ""
    uncommented = set()
    for number, line in enumerate(lines):
        if line.startswith("["):
            section = line.strip("[]")
        if not KEY_LINE.match(line):
            continue
        text = "\n".join([*lines[:number], KEY_LINE.sub("", line), *lines[number + 1 :]])
        effective = resolve(text, "config.toml", {}, {})
        key = line.removeprefix("# ").split(" = ")[0]
        assert effective.config == Config()
        assert effective.sources == {f"{section}.{key}": f"config.toml:{number + 1}"}
        uncommented.add(f"{section}.{key}")
    assert uncommented == keys_of_the_schema()


def test_a_key_of_before_is_refused_with_what_says_it_now():
    for given in (("[write]\nburst = 24\n", {}), (None, {"RLTUNED_WRITE__BURST": "24"})):
        with pytest.raises(
            ConfigError, match=r"(config\.toml:2|BURST): key 'write\.burst' is gone, take it out: .*rl_bucket_size"
        ):
            resolve(given[0], "config.toml", given[1], {})


@pytest.mark.parametrize(("section", "key"), [("slurm", "conf"), ("state", "mirror")])
def test_an_empty_path_means_none_in_file_and_environment(section, key):
    by_file = resolve(f'[{section}]\n{key} = ""\n', "f", {}, {}).config
    by_environment = resolve(None, "f", {f"RLTUNED_{section.upper()}__{key.upper()}": ""}, {}).config
    assert getattr(getattr(by_file, section), key) is None
    assert getattr(getattr(by_environment, section), key) is None
    set_again = resolve(f'[{section}]\n{key} = "/x/y"\n', "f", {}, {}).config
    assert getattr(getattr(set_again, section), key) == Path("/x/y")


def test_what_config_show_prints_is_a_configuration_again(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(
        '[state]\nmirror = ""\n[policy]\nobjective = "idle=3,wait=1"\n[lend]\nmost = 8\n[cycle]\nstage = "active"\n'
        '[scope]\nusers = ["a\\u001bb\\u007f", "c\\"d\\\\"]\n'
    )
    printed = CliRunner().invoke(cli, ["config", "show", "--config", str(path)])
    assert printed.exit_code == 0
    assert tomllib.loads(printed.output)["state"]["mirror"] == ""
    as_json = CliRunner().invoke(cli, ["config", "show", "--config", str(path), "--json"]).output
    assert json.loads(as_json)["config"]["policy"]["objective"].startswith("wait=0.25,slowdown=0,")
    again = resolve(printed.output, "printed", {}, {}).config
    assert again == resolve(path.read_text(), "config.toml", {}, {}).config

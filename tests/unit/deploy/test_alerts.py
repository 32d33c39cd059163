"""The alert rules speak of metrics, labels and commands that exist. That they fire:
tests/cluster/test_prometheus.py."""

import re
import shlex
from pathlib import Path

import click
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from unit.controller.support import all_metrics

from rltuned.cli.main import cli
from rltuned.core.config import Config

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = (FOLDER / "rltuned.rules.yml").read_text()
CASES = (FOLDER / "rltuned.rules.test.yml").read_text()
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()

ALERTS = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=      - alert: |\Z)", RULES, re.DOTALL))
RECORDED = dict(re.findall(r"- record: (\S+)\n(.*?)(?=      - |      #|\n\n|\Z)", RULES, re.DOTALL))
SECTIONS = dict(re.findall(r"^## (.*?)\n\n(.*?)(?=^## |\Z)", RUNBOOK, re.DOTALL | re.MULTILINE))
NOT_OURS = {"up"}


def exposition():
    metrics = all_metrics()
    return list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))


def samples():
    found = {}
    for family in exposition():
        for sample in family.samples:
            if not sample.name.endswith("_created"):  # switched off in the daemon
                for label, value in sample.labels.items():
                    found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
                found.setdefault(sample.name, {})
    return found


def expression(body):
    return re.search(r"expr: (?:\|-\n)?(.*?)\n        (?:for|labels):", body, re.DOTALL)[1]


def annotation(body, key):
    return " ".join(
        re.search(rf"          {key}: (?:>-)?(.*?)(?=\n          \w+: |\n\n|\Z)", body, re.DOTALL)[1].split()
    )


def test_the_rules_are_found():
    assert len(ALERTS) == RULES.count("alert:") > 15
    assert len(RECORDED) == RULES.count("record:") > 4


@pytest.mark.parametrize("name", [*sorted(ALERTS), *sorted(RECORDED)])
def test_each_rule_uses_metrics_and_label_values_that_the_daemon_exposes(name):
    known = samples()
    text = expression(ALERTS[name]) if name in ALERTS else RECORDED[name]
    selectors = re.findall(r"\b(rltuned_\w+|up)\b(?:\{([^}]*)\})?", text)
    assert selectors
    for metric, matchers in selectors:
        if metric in NOT_OURS:
            assert matchers == 'job="rltuned"'
            continue
        assert metric in known, metric
        for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
            wanted = set(value.split("|")) if operator == "=~" else {value}
            assert wanted <= known[metric][label], (metric, label)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_each_alert_names_a_remedy_that_exists(name):
    body = ALERTS[name]
    assert re.search(r"severity: (info|warning|critical)\n", body)
    assert annotation(body, "summary").strip('"').endswith(".")
    remedies = re.findall(r"`([^`]+)`", annotation(body, "description"))
    programs = {remedy.split()[0] for remedy in remedies}
    assert programs & {"rltuned", "systemctl", "sacctmgr"}
    for remedy in remedies:
        words = shlex.split(remedy)
        if words[0] != "rltuned":
            continue
        command = cli.commands[words[1]]
        if isinstance(command, click.Group) and len(words) > 2:
            command, words = command.commands[words[2]], words[1:]
        known = {text for parameter in command.params for text in parameter.opts}
        assert {word for word in words[2:] if word.startswith("-")} <= known, remedy
        if any(not word.startswith("-") for word in words[2:]):
            assert any(isinstance(parameter, click.Argument) for parameter in command.params), remedy


def settings_that_do_not_exist(text):
    sections = "|".join(Config.model_fields)
    named = re.findall(rf"\b({sections})\.(\w+)\b", text)
    return [each for each in named if each[1] not in Config.model_fields[each[0]].annotation.model_fields]


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_each_alert_names_settings_that_exist_and_has_a_case_for_and_a_case_against_it(name):
    assert settings_that_do_not_exist(annotation(ALERTS[name], "description")) == []
    # One alert may be shown both ways in one case ("not before", "until").
    assert f'alertname="{name}",alertstate="firing"' in CASES
    assert re.search(rf"name: {name} (does not fire|fires)", CASES)
    blocks = [block for block in CASES.split("  - name: ") if block.startswith(f"{name} ")]
    assert any("exp_samples: []" in block for block in blocks)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_each_recorded_series_has_a_case(name):
    assert name in CASES


def test_each_alert_has_its_section_in_the_runbook_and_each_section_its_alert():
    assert sorted(SECTIONS) == sorted(ALERTS)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_the_section_of_an_alert_says_its_severity_what_it_means_what_to_look_at_and_what_to_do(name):
    severity = re.search(r"severity: (\w+)", ALERTS[name])[1]
    opening, *points = re.split(r"^- (?=\*\*)", SECTIONS[name], flags=re.MULTILINE)
    assert opening.startswith({"info": "Information: "}.get(severity, f"{severity.capitalize()}: "))
    assert [point.split("**")[1] for point in points] == ["Means:", "Look at:", "Do:"]
    assert annotation(ALERTS[name], "runbook_url") == f"https://rltuned.example.org/docs/runbook.html#{name.lower()}"


def test_settings_and_metrics_that_the_runbook_names_exist():
    assert settings_that_do_not_exist(" ".join(re.findall(r"`(\w+\.\w+)(?: = [^`]*)?`", RUNBOOK))) == []
    named = set(re.findall(r"\brltuned_\w+", RUNBOOK))
    assert len(named) > 3
    assert named <= set(samples())

"""The dashboards in deploy/grafana are what the generator makes, of series that there are. A real Prometheus answers
their queries in tests/cluster/test_prometheus.py."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "grafana"
BOARDS = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
RULES = (ROOT / "deploy" / "prometheus" / "rltuned.rules.yml").read_text()
DOCUMENTED = (ROOT / "docs" / "reference.md").read_text()


@dataclass(frozen=True)
class Asked:
    """A query of a dashboard, as Grafana sends it when all daemons are shown."""

    where: str
    expr: str
    legend: str


def filled(expr):
    return expr.replace("$instance", ".*").replace("$__rate_interval", "5s")


def panels():
    return [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]


def queries():
    found = [
        Asked(f"{name}: annotation {note['name']}", filled(note["expr"]), "")
        for name, board in BOARDS.items()
        for note in board["annotations"]["list"]
    ]
    for name, panel in panels():
        for target in panel["targets"]:
            where = f"{name}: {panel['title']} {target['refId']}"
            found.append(Asked(where, filled(target["expr"]), target.get("legendFormat", "")))
    return found


def test_the_files_are_what_the_generator_makes():
    from studies.dashboards import DASHBOARDS, text

    assert sorted(BOARDS) == sorted(DASHBOARDS) == ["benefit.json", "fleet.json"]
    for name, make in DASHBOARDS.items():
        assert (FOLDER / name).read_text() == text(make()), "renew it: python -m studies.dashboards"


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_panels_have_a_title_a_description_and_a_place_of_their_own(name):
    board = BOARDS[name]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith(".")


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_site_chooses_the_prometheus_and_the_daemon(name):
    board = BOARDS[name]
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "instance"]
    of_board = [panel for other, panel in panels() if other == name]
    assert {panel["datasource"]["uid"] for panel in of_board} == {"${datasource}"}
    assert board["uid"] == f"rltuned-{name.removesuffix('.json')}"


def test_each_recorded_series_is_shown_and_each_series_shown_is_documented():
    shown = " ".join(query.expr for query in queries())
    recorded = set(re.findall(r"record: (\S+)", RULES))
    assert set(re.findall(r"rltuned:[\w:]+", shown)) == recorded
    metrics = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\brltuned_\w+", shown)}
    assert len(metrics) > 30
    assert sorted(name for name in metrics if f"`{name}`" not in DOCUMENTED) == []

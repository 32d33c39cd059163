"""The dashboards in deploy/grafana are what the generator makes, and a real Prometheus that scrapes a daemon answers
every query of theirs and every rule."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from unit.daemon.test_loop import house

from rltuned.config import MetricsSection, PlacementApply, PlacementSection
from rltuned.daemon.endpoint import serve
from rltuned.daemon.metrics import SearchOutcome
from rltuned.decide.rollout import Gain, RolloutResult

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "grafana"
BOARDS = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
RULES = (ROOT / "deploy" / "prometheus" / "rltuned.rules.yml").read_text()
SCRAPE = (ROOT / "deploy" / "prometheus" / "scrape.yml").read_text()
DOCUMENTED = (ROOT / "docs" / "monitoring.md").read_text()
STEP = 1
"""Seconds from scrape to scrape, and from rule to rule."""


@dataclass(frozen=True)
class Asked:
    """A query of a dashboard, as Grafana sends it when all daemons are shown."""

    where: str
    expr: str
    legend: str
    instant: bool

    @property
    def may_be_empty(self):
        """Whether a healthy daemon has no such series: no alert fires, and no stage was changed long ago."""
        return "ALERTS{" in self.expr or " unless " in self.expr


def filled(expr):
    return expr.replace("$instance", ".*").replace("$__rate_interval", "5s")


def panels():
    return [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]


def queries():
    found = [
        Asked(f"{name}: annotation {note['name']}", filled(note["expr"]), "", instant=False)
        for name, board in BOARDS.items()
        for note in board["annotations"]["list"]
    ]
    for name, panel in panels():
        for target in panel["targets"]:
            where = f"{name}: {panel['title']} {target['refId']}"
            legend = target.get("legendFormat", "")
            found.append(Asked(where, filled(target["expr"]), legend, bool(target.get("instant"))))
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


# --- against a real Prometheus


class Prometheus:
    """The server, and its HTTP API."""

    def __init__(self, program, folder, target):
        scrape = SCRAPE.replace("localhost:9815", target)
        for old, new in (("scrape_interval: 30s", "scrape_interval: 1s"), ("scrape_timeout: 5s", "scrape_timeout: 1s")):
            assert old in scrape
            scrape = scrape.replace(old, new)
        assert "    interval: 1m\n" in RULES
        rules = RULES.replace("    interval: 1m\n", f"    interval: {STEP}s\n")
        (folder / "rules.yml").write_text(rules)
        head = f"global: {{evaluation_interval: {STEP}s}}\nrule_files: [rules.yml]\n"
        (folder / "prometheus.yml").write_text(head + scrape)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path, **parameters):
        """The data of an answer; an error of a query raises."""
        url = f"http://{self.address}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.loads(answer.read())["data"]

    def ready(self):
        try:
            return self.get("/api/v1/query", query="up")["result"] != []
        except OSError:
            assert self.process.poll() is None, (self.log.seek(0), self.log.read())[1]
            return False

    def ask(self, query):
        """The series of a query: their labels and numbers."""
        if query.instant:
            found = self.get("/api/v1/query", query=query.expr)["result"]
            return [(series["metric"], [series["value"][1]]) for series in found]
        now = time.time()
        found = self.get("/api/v1/query_range", query=query.expr, start=now - 60, end=now, step=STEP)["result"]
        return [(series["metric"], [number for _, number in series["values"]]) for series in found]

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def until(condition, what):
    deadline = time.monotonic() + 120.0
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
    return found


def a_days_work(run, jobs):
    """These jobs start; one is held, one cannot be understood. Each tick is a cycle."""
    run.slurm.hold(2)
    run.slurm.strange.add(3)
    run.tick()
    for job in jobs:
        run.slurm.start(job)
        run.tick()
    found = RolloutResult(50, 900.0, 600.0, (1, 2), (2, 1), 20.0, Gain(500.0, 40.0))
    run.daemon.runtime.metrics.searched(SearchOutcome.MOVED, found, 0.5)
    run.daemon.runtime.metrics.history_until.set(time.time())


@pytest.fixture
def prometheus(tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus (the Debian package) is not installed; a cluster test asks the queries in a container")
    run = house(tmp_path, placement=PlacementSection(apply=PlacementApply.OVERSUBSCRIBE))
    a_days_work(run, (4, 5))
    endpoint = serve(run.daemon.runtime.metrics, MetricsSection(port=0))
    server = Prometheus(program, tmp_path, f"127.0.0.1:{endpoint.port}")
    try:
        until(server.ready, lambda: "Prometheus has scraped the daemon")
        # Rates need a second look at a counter that has grown.
        a_days_work(run, (6, 7))
        server.metrics = run.daemon.runtime.metrics
        yield server
    finally:
        server.close()
        endpoint.close()


def test_a_real_prometheus_answers_every_query_and_carries_out_every_rule(prometheus):
    asked = queries()
    assert len(asked) > 50
    left = {query.where: query for query in asked}

    def all_answered():
        for query in list(left.values()):
            # An error is an HTTP status, which raises.
            if prometheus.ask(query) or query.may_be_empty:
                del left[query.where]
        return not left

    until(all_answered, lambda: f"series for {sorted(left)}")
    for query in asked:
        for labels, numbers in prometheus.ask(query):
            assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= set(labels), query.where
            assert "NaN" not in numbers[-1:], query.where

    def rules():
        groups = prometheus.get("/api/v1/rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else None

    found = until(rules, lambda: "every rule was carried out")
    assert len(found) == RULES.count("- alert:") + RULES.count("- record:")
    assert {rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"} == {}


def test_the_expected_gain_is_a_share_of_the_waiting_without_it_and_leaves_no_series_while_there_is_none(prometheus):
    gain = Asked("", "rltuned:rollout_expected_gain:ratio", "", instant=True)
    over = until(lambda: prometheus.ask(gain), lambda: "the expected gain")
    shares = {labels["over"]: float(numbers[0]) for labels, numbers in over}
    assert shares == {"policy": pytest.approx(300.0 / 900.0), "slurm": pytest.approx(500.0 / 1100.0)}
    prometheus.metrics.expects(None)
    until(lambda: not prometheus.ask(gain), lambda: "NaN is dropped")

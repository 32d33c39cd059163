"""Debian's Prometheus and promtool on what rltuned exposes and on the files in deploy/prometheus."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator

import pytest
from cluster.conftest import Clusters
from cluster.support import OPERATOR, RLTUNED, ROOT, USERS, Background, Cluster, wait_until
from unit.deploy.test_dashboards import queries

DEPLOYED = ROOT / "deploy" / "prometheus"
# Where docs/monitoring.md says that the files go.
INSTALLED = "/etc/prometheus/rltuned"
DOCUMENTED = re.search(
    r"```yaml\n(scrape_config_files:.*?)```", (ROOT / "docs" / "monitoring.md").read_text(), re.DOTALL
)

CONFIG = """\
[cycle]
stage = "active"
interval = {interval}
[state]
directory = "/tmp/metrics-state"
mirror = "/tmp/metrics-mirror"
[metrics]
listen = "0.0.0.0:9815"
"""


def promtool(image: str, *args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs promtool where deploy/prometheus and the documented prometheus.yml are installed."""
    if text is not None:
        command = ["docker", "run", "--rm", "-i", "--entrypoint", "promtool", image, *args]
        return subprocess.run(command, check=False, capture_output=True, text=True, input=text)
    assert DOCUMENTED is not None
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(DEPLOYED.iterdir()):
            tar.add(path, path.name)
        example = DOCUMENTED[1].encode()
        entry = tarfile.TarInfo("prometheus.yml")
        entry.size = len(example)
        tar.addfile(entry, io.BytesIO(example))
    script = f'mkdir {INSTALLED} && tar -C {INSTALLED} -x && cd {INSTALLED} && promtool "$@"'
    command = ["docker", "run", "--rm", "-i", "--entrypoint", "sh", image, "-c", script, "sh", *args]
    done = subprocess.run(command, check=False, capture_output=True, input=archive.getvalue())
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_promtool_accepts_the_alert_rules(prometheus_image: str):
    done = promtool(prometheus_image, "check", "rules", "--lint=all", "--lint-fatal", "rltuned.rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    text = (DEPLOYED / "rltuned.rules.yml").read_text()
    assert f"{text.count('- alert:') + text.count('- record:')} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_not_otherwise(prometheus_image: str):
    done = promtool(prometheus_image, "test", "rules", "rltuned.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_promtool_accepts_the_documented_configuration(prometheus_image: str):
    done = promtool(prometheus_image, "check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


@pytest.fixture
def trixie(clusters: Clusters) -> Iterator[Cluster]:
    """A clean cluster of 24.11, with the daemon installed; one release is enough for metrics."""
    running = clusters.get("24.11")
    running.reset()
    running.install_rltuned("ctl")
    running.sh("rm -rf /tmp/metrics-*")
    yield running
    running.reset()


def start_daemon(cluster: Cluster, interval: int) -> Background:
    cluster.write_file("/tmp/metrics.toml", CONFIG.format(interval=interval))
    return cluster.background([RLTUNED, "run", "--config", "/tmp/metrics.toml"])


def scrape(cluster: Cluster) -> str:
    """The exposition as a scrape on the daemon's own host sees it; "" when nothing answers."""
    return cluster.run(["curl", "-sf", "http://127.0.0.1:9815/metrics"], check=False).stdout


def value(text: str, sample: str) -> float | None:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def wait_for_cycles(cluster: Cluster, count: int = 1) -> None:
    wait_until(
        lambda: (value(scrape(cluster), 'rltuned_cycles_total{outcome="done"}') or 0) >= count,
        f"{count} cycles end well",
    )


def test_promtool_check_metrics_passes(trixie: Cluster, prometheus_image: str):
    trixie.fill()
    trixie.submit_many([(user, "--gres=gpu:1", "-t", str(10 * n)) for n, user in enumerate(USERS, start=1)])
    start_daemon(trixie, 1)
    wait_for_cycles(trixie)
    exposed = scrape(trixie)
    assert value(exposed, "rltuned_pending_jobs") == len(USERS)
    checked = promtool(prometheus_image, "check", "metrics", text=exposed)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_scrape_asks_slurm_nothing(trixie: Cluster):
    # Right after a queue was emptied, slurmctld still counts its jobs: an empty answer is not believed for half a
    # minute.
    trixie.fill()
    start_daemon(trixie, 3600)
    wait_for_cycles(trixie)
    trixie.reset_rpc_counts()
    for _ in range(10):
        assert "rltuned_build_info" in scrape(trixie)
    assert OPERATOR not in trixie.sdiag_rpc_counts().by_user


def test_a_real_prometheus_scrapes_it_and_series_do_not_grow_with_users_or_jobs(trixie: Cluster):
    trixie.fill()
    few = [("alice", "--gres=gpu:1", "-t", str(10 * n)) for n in range(1, 6)]
    qos = ("normal", "high", "low")
    many = [
        (USERS[n % len(USERS)], f"--gres=gpu:{1 + n % 2}", "-t", str(5 + n % 60), f"--qos={qos[n % 3]}")
        for n in range(200)
    ]
    shipped = (DEPLOYED / "scrape.yml").read_text()
    configuration = shipped.replace("localhost:9815", "ctl:9815")
    configuration = configuration.replace("scrape_interval: 30s", "scrape_interval: 1s")
    configuration = configuration.replace("scrape_timeout: 5s", "scrape_timeout: 1s")
    trixie.submit_many(few)
    start_daemon(trixie, 2)
    wait_for_cycles(trixie)

    def series() -> set[frozenset[tuple[str, str]]]:
        found = trixie.query_prometheus('{job="rltuned",__name__=~"rltuned_.*"}')
        return {frozenset(item["metric"].items()) for item in found}  # type: ignore[attr-defined]

    def scraped(jobs: int) -> bool:
        return bool(trixie.query_prometheus(f"rltuned_pending_jobs == {jobs} and rltuned_managed_jobs > 0"))

    try:
        trixie.start_prometheus(configuration)
        wait_until(lambda: scraped(len(few)), "a cycle with 5 jobs of one user is scraped")
        assert trixie.query_prometheus('up{job="rltuned"} == 1')
        before = series()
        submitted = trixie.submit_many(many)
        # Once they are ranked, not only counted: sprio lists a new job at its next calculation.
        wait_until(
            lambda: scraped(len(few) + len(many)) and trixie.query_prometheus(f"rltuned_managed_jobs > {len(few)}"),
            "a cycle with 205 jobs of four users is scraped",
        )
        after = series()
        # An error of a query raises. Which series there are where the rules are loaded: tests/unit/deploy.
        shown = {asked.where: trixie.query_prometheus(asked.expr) for asked in queries()}
    finally:
        trixie.remove_host("prometheus")
    assert after == before
    assert shown["benefit.json: Pending jobs A"]
    for asked in queries():
        for series in shown[asked.where]:
            assert set(re.findall(r"\{\{(\w+)\}\}", asked.legend)) <= set(series["metric"]), asked.where
    assert len(before) > 100
    values = {text for labels in after for _, text in labels}
    assert values.isdisjoint({*USERS, *map(str, submitted), "physics", "biology", "gpu"})

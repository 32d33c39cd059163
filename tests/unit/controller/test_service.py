"""The process as systemd sees it: notification socket, signals, exit status, lock, metrics endpoint."""

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rltuned import controller as daemon_package
from rltuned.controller.give_back import pause
from rltuned.controller.health.clock import Moment, SystemClock
from rltuned.controller.health.heartbeat import HEARTBEAT_NAME, fresh_heartbeat
from rltuned.controller.health.lock import Lock

ROOT = Path(__file__).parents[3]
TURNED = "order [8, 7, 6, 5, 4, 3, 2, 1]"

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

CONFIG = """
[log]
level = "debug"
[cycle]
interval = 1
stage = "active"
[policy]
name = "sjf"
[metrics]
listen = "127.0.0.1:0"
[state]
directory = "{root}/state"
mirror = "{root}/mirror"
"""


class Process:
    """The daemon, its notifications, its log."""

    def __init__(self, root, *flags, abstract=False, **environment):
        self.root = root
        self.config = root / "config.toml"
        if not self.config.exists():
            self.config.write_text(CONFIG.format(root=root))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(300)
        name = f"@rltuned-test-{os.getpid()}-{root.name}" if abstract else str(root / f"notify-{len(flags)}")
        self.socket.bind("\0" + name[1:] if abstract else name)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "NOTIFY_SOCKET": name,
            "WATCHDOG_USEC": "1500000",
            **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/unit/controller/served.py"), str(self.config), *flags],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self, wanted):
        """Wait for a notification that contains `wanted`."""
        while True:
            message = self.socket.recv(4096).decode()
            if wanted in message:
                return message

    def drain(self):
        """Forget the notifications of the past."""
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.socket.recv(4096)
        self.socket.settimeout(60)

    def logged(self, event):
        """Wait for a log event."""
        for line in self.process.stderr:
            entry = json.loads(line)
            if entry["event"] == event:
                return entry
        raise AssertionError(f"ended without {event}")

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=300)
        return out, err, self.process.returncode


@pytest.fixture
def start(tmp_path):
    processes = []

    def begin(*flags, **values):
        processes.append(Process(tmp_path, *flags, **values))
        return processes[-1]

    yield begin
    for one in processes:
        one.process.kill()
        one.process.communicate()
        one.socket.close()


@pytest.mark.parametrize("abstract", [False, True])
def test_it_says_ready_feeds_the_watchdog_shows_the_cycle_and_stops_on_sigterm(start, tmp_path, abstract):
    daemon = start(abstract=abstract)
    daemon.told("READY=1")
    daemon.told("WATCHDOG=1")
    assert "8 pending" in daemon.told("STATUS=active: ")
    out, _, code = daemon.end()
    assert code == 0
    daemon.told("STOPPING=1")
    assert TURNED in out
    assert not (tmp_path / "state" / HEARTBEAT_NAME).exists()


def test_what_backfill_undoes_is_written_again_long_before_the_next_cycle(start, tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG.format(root=tmp_path).replace("interval = 1", "interval = 3600"))
    daemon = start("--undone")
    daemon.logged("cycle.done")
    daemon.logged("writes.undone")
    assert TURNED in daemon.end()[0]


def test_it_is_ready_while_slurmctld_is_down_and_does_not_crash_loop(start, tmp_path):
    daemon = start("--down")
    daemon.told("READY=1")
    assert daemon.process.poll() is None
    assert (tmp_path / "state" / HEARTBEAT_NAME).exists()


def test_metrics_are_served_on_the_loopback_only_and_are_ours_only(start):
    daemon = start()
    started = daemon.logged("daemon.started")
    daemon.logged("cycle.done")
    with urllib.request.urlopen(f"http://127.0.0.1:{started['metrics_port']}/metrics") as answer:
        names = [line.split()[2] for line in answer.read().decode().splitlines() if line.startswith("# TYPE")]
    assert "rltuned_cycles_total" in names
    assert all(name.startswith("rltuned_") and not name.endswith("_created") for name in names)
    for path, line in (("healthz", b"the loop moves\n"), ("readyz", b"stage active\n")):
        with urllib.request.urlopen(f"http://127.0.0.1:{started['metrics_port']}/{path}") as answer:
            assert (answer.status, answer.read()) == (200, line)


def test_a_port_in_use_ends_it_without_a_sign_of_life_that_would_hold_the_dead_man_back(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "config.toml").write_text(CONFIG.format(root=tmp_path).replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        daemon = start()
        _, err = daemon.process.communicate(timeout=300)
    assert daemon.process.returncode
    assert f"metrics.listen 127.0.0.1:{port}" in err
    assert not (tmp_path / "state" / HEARTBEAT_NAME).exists()


def test_a_pause_and_its_end_are_taken_up_by_the_next_cycle(start, tmp_path):
    daemon = start()
    while daemon.logged("cycle.done")["stage"] != "active":
        pass
    pause.ask(tmp_path / "state", Moment.of(SystemClock()), 3600.0)
    while daemon.logged("cycle.done")["stage"] != "shadow":
        pass
    assert "paused until " in daemon.told("STATUS=shadow: ")
    pause.end(tmp_path / "state")
    while daemon.logged("cycle.done")["stage"] != "active":
        pass
    assert TURNED in daemon.end()[0]


def test_sighup_takes_a_good_configuration_and_refuses_a_bad_one(start):
    daemon = start()
    daemon.logged("cycle.done")
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace('"active"', '"actve"'))
    daemon.process.send_signal(signal.SIGHUP)
    assert "cycle.stage" in daemon.logged("reload.refused")["reason"]
    assert daemon.logged("cycle.done")["stage"] == "active"
    daemon.config.write_text(text.replace('"active"', '"shadow"'))
    daemon.process.send_signal(signal.SIGHUP)
    daemon.logged("reload.done")
    assert daemon.logged("cycle.done")["stage"] == "shadow"
    message = daemon.told("RELOADING=1")
    assert "MONOTONIC_USEC=" in message
    daemon.told("READY=1")


def test_a_reload_waits_for_the_cycle_while_the_watchdog_is_fed_and_every_signal_counts(start, tmp_path):
    daemon = start("--wait")
    assert daemon.process.stdout.readline() == "reading\n"
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace('"active"', '"observe"'))
    daemon.process.send_signal(signal.SIGHUP)
    daemon.drain()
    for _ in range(3):
        assert "READY" not in daemon.told("WATCHDOG=1")
    # The reload reads what is there when it begins.
    daemon.config.write_text(text.replace('"active"', '"shadow"'))
    daemon.process.send_signal(signal.SIGHUP)
    (tmp_path / "go-on").touch()
    assert daemon.logged("cycle.done")["stage"] == "active"
    assert "Policy sjf, stage shadow" in daemon.logged("reload.done")["sentence"]
    daemon.told("RELOADING=1")
    daemon.told("READY=1")
    assert daemon.logged("cycle.done")["stage"] == "shadow"
    # Once it has begun, the next signal is about the next one.
    daemon.config.write_text(text)
    daemon.process.send_signal(signal.SIGHUP)
    assert "stage active" in daemon.logged("reload.done")["sentence"]


def test_a_daemon_whose_cycle_hangs_feeds_the_watchdog_no_more(start, tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG.format(root=tmp_path) + "[slurm]\ntimeout = 0.2\n")
    daemon = start("--wait", WATCHDOG_USEC="300000")
    assert daemon.process.stdout.readline() == "reading\n"
    daemon.told("WATCHDOG=1")
    daemon.socket.settimeout(3.0)
    with pytest.raises(TimeoutError):
        all(daemon.told("WATCHDOG=1") for _ in range(150))  # of a quarter of a minute
    assert daemon.process.poll() is None


def test_no_part_of_the_daemon_keeps_the_log_that_a_reload_replaces():
    keepers = [
        f"{path.name}:{node.lineno}"
        for path in Path(daemon_package.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id == "Log"
    ]
    assert keepers == [], "take the Runtime, and its log when there is something to say"


def test_a_daemon_that_is_to_end_does_not_wait_for_a_reload(start, tmp_path):
    daemon = start("--wait")
    assert daemon.process.stdout.readline() == "reading\n"
    daemon.process.send_signal(signal.SIGHUP)
    daemon.drain()
    daemon.told("WATCHDOG=1")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.told("STOPPING=1")
    (tmp_path / "go-on").touch()
    _out, err = daemon.process.communicate(timeout=60)
    assert daemon.process.returncode == 0
    assert "reload.done" not in err


def test_a_worker_beside_the_daemon_forecasts_until_a_reload_or_the_end_does_away_with_it(start):
    daemon = start()
    daemon.logged("forecast.ready")
    text = daemon.config.read_text()

    def workers():
        threads = Path(f"/proc/{daemon.process.pid}/task").glob("*/children")
        found = {int(child) for one in threads for child in one.read_text().split()}
        return {child for child in found if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()}

    [worker] = workers()
    daemon.logged("cycle.done")
    assert json.loads((daemon.root / "state" / "decision.json").read_text())["forecast_trouble"] == ""
    daemon.config.write_text(text + '[forecast]\nenabled = "of"\n')
    daemon.process.send_signal(signal.SIGHUP)
    assert "forecast.enabled" in daemon.logged("reload.refused")["reason"]
    assert workers() == {worker}
    _, err, code = daemon.end()
    assert (code, "Traceback" in err) == (0, False)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime (Debian package) is not installed")
def test_a_wall_clock_that_is_set_neither_stops_the_cycles_nor_sets_the_dead_man_on_them(start, tmp_path):
    wall = tmp_path / "wall"
    wall.write_text("+0")
    daemon = start(
        LD_PRELOAD=str(FAKETIME),
        FAKETIME_TIMESTAMP_FILE=str(wall),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    # Where the clock stops the cycles, waiting for the next one would take an hour.
    patience = threading.Timer(120.0, daemon.process.kill)
    patience.start()
    daemon.logged("cycle.done")
    for hours in (-1, 5, 0):
        wall.write_text(f"{3600 * hours:+d}")
        # The first of them may have begun before.
        told = [daemon.logged("cycle.done") for _ in range(2)][-1]["timestamp"]
        ahead = datetime.fromisoformat(told) - datetime.now(UTC)
        assert abs(ahead - timedelta(hours=hours)) < timedelta(minutes=1), "the process does not see the wall clock set"
        assert fresh_heartbeat(300.0, Moment.of(SystemClock()), tmp_path / "state", tmp_path / "mirror")
        assert daemon.process.poll() is None
    patience.cancel()


def test_the_second_daemon_refuses_and_says_who_holds_the_lock(start):
    first = start()
    first.logged("cycle.done")
    second = start("--second")
    _, err = second.process.communicate(timeout=300)
    assert second.process.returncode == 9
    assert f"process {first.process.pid}" in err
    assert first.process.poll() is None


def test_a_restore_that_holds_the_lock_is_waited_for(start, tmp_path):
    with Lock.acquire(tmp_path / "state", "restore", 0.0):
        daemon = start()
        daemon.socket.settimeout(3)
        with pytest.raises(TimeoutError):
            daemon.told("READY=1")
        assert daemon.process.poll() is None
    daemon.socket.settimeout(300)
    daemon.told("READY=1")


def test_once_runs_one_cycle_and_ends(start):
    out, _ = start("--once").process.communicate(timeout=300)
    assert TURNED in out


def test_once_with_slurmctld_down_ends_with_its_exit_status(start):
    daemon = start("--once", "--down")
    _, err = daemon.process.communicate(timeout=300)
    assert daemon.process.returncode == 5
    assert "Unable to contact slurm controller" in err


def test_killed_it_leaves_a_journal_with_all_that_is_needed_to_undo_it(start, tmp_path):
    from rltuned.controller.write.journal import Journal

    daemon = start()
    daemon.logged("cycle.done")
    daemon.end(signal.SIGKILL)
    for directory in ("state", "mirror"):
        journal = Journal.read(tmp_path / directory)
        assert not journal.damage
        assert {job: entry.applied.site_factor for job, entry in journal.entries.items()}.keys() == set(range(2, 9))
    assert (tmp_path / "state" / HEARTBEAT_NAME).exists()

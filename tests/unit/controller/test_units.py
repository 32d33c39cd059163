"""The systemd units, as systemd itself judges them."""

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "systemd"
SERVICES = ["rltuned.service", "rltuned-deadman.service", "rltuned-report.service", "rltuned-learn.service"]

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)"
)


def analyze(*words, check=True):
    return subprocess.run(["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, check=check)


def unit(name):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(UNITS / name)
    return parser


@pytest.mark.parametrize("name", [*SERVICES, "rltuned-deadman.timer", "rltuned-report.timer", "rltuned-learn.timer"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path, name):
    # The program is not installed here: a copy of the unit runs /bin/true, everything else is as shipped.
    for path in UNITS.glob("rltuned*"):
        text = path.read_text().replace("/opt/rltuned/venv/bin/rltuned", "/bin/true")
        (tmp_path / path.name).write_text(re.sub(r"(?m)^Documentation=man:\S+ ", "Documentation=", text))
    done = analyze("verify", "--man=no", str(tmp_path / name), check=False)
    ours = [line for line in done.stderr.splitlines() if "rltuned" in line]
    assert ours == []
    assert done.returncode == 0


def test_systemd_finds_nothing_wrong_with_the_drop_in_for_forecasts(tmp_path):
    text = (UNITS / "rltuned.service").read_text().replace("/opt/rltuned/venv/bin/rltuned", "/bin/true")
    (tmp_path / "rltuned.service").write_text(re.sub(r"(?m)^Documentation=man:\S+$", "", text))
    (tmp_path / "rltuned.service.d").mkdir()
    shutil.copy(UNITS / "rltuned-forecast.conf", tmp_path / "rltuned.service.d" / "forecast.conf")
    done = analyze("verify", "--man=no", str(tmp_path / "rltuned.service"), check=False)
    assert [line for line in done.stderr.splitlines() if "rltuned" in line or "forecast" in line] == []


@pytest.mark.parametrize("name", SERVICES)
def test_exposure_is_at_most_two(name):
    done = analyze("security", "--offline=yes", str(UNITS / name))
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(match[1]) <= 2.0


def test_what_slurm_commands_and_munge_need_is_allowed():
    for name in SERVICES:
        service = unit(name)["Service"]
        assert service["RestrictAddressFamilies"].split() == ["AF_UNIX", "AF_INET", "AF_INET6"]
        assert "PrivateNetwork" not in service
        assert "PrivateUsers" not in service, "munge and the users' socket have to see the real uid"


def test_what_the_users_socket_and_files_need_is_allowed():
    """A socket for everybody, and access control lists: docs/decisions/0039."""
    allowed, seen = set(), set()

    def expand(group):
        if group not in seen:
            seen.add(group)
            for line in analyze("syscall-filter", group).stdout.splitlines()[1:]:
                name = line.strip()
                expand(name) if name.startswith("@") else allowed.add(name)

    expand("@system-service")
    kept, seen = allowed, set()
    allowed = set()
    for group in ("@privileged", "@resources"):
        expand(group)
    assert {"fsetxattr", "fgetxattr", "fchmod", "bind", "accept4", "getsockopt", "renameat"} <= kept - allowed


def test_however_the_daemon_ends_the_queue_is_restored_and_the_dead_man_needs_no_daemon():
    daemon, deadman = unit("rltuned.service"), unit("rltuned-deadman.service")
    assert daemon["Service"]["ExecStopPost"] == "-/opt/rltuned/venv/bin/rltuned restore"
    assert deadman["Service"]["ExecStart"].endswith("rltuned restore --if-stale 300")
    text = (UNITS / "rltuned-deadman.service").read_text() + (UNITS / "rltuned-deadman.timer").read_text()
    for word in ("Requires=", "BindsTo=", "PartOf="):
        assert word not in text
    assert all(part["Service"]["RuntimeDirectoryPreserve"] == "yes" for part in (daemon, deadman))


def test_the_files_for_users_and_directories_are_understood(tmp_path):
    for tool in ("systemd-sysusers", "systemd-tmpfiles"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    subprocess.run(["systemd-sysusers", f"--root={root}", str(UNITS / "rltuned.sysusers")], check=True)
    users = (root / "etc" / "passwd").read_text()
    assert re.search(r"^rltuned:x:\d+:\d+:rltuned daemon:/var/lib/rltuned:/usr/sbin/nologin$", users, re.MULTILINE)
    subprocess.run(["systemd-tmpfiles", "--create", f"--root={root}", str(UNITS / "rltuned.tmpfiles")], check=True)
    for name, mode in (("etc/rltuned", 0o755), ("var/lib/rltuned", 0o750), ("run/rltuned", 0o750)):
        assert (root / name).stat().st_mode & 0o777 == mode
    assert (root / "run/rltuned-users").stat().st_mode & 0o777 == 0o711
    assert json.dumps(sorted(path.name for path in (root / "run").iterdir())) == '["rltuned", "rltuned-users"]'

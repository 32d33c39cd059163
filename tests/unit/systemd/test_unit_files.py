"""What the unit files promise each other and the host, and how systemd judges them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rltuned.cli.main import cli
from rltuned.controller.cycle.service import RESTORE_WAIT
from rltuned.controller.health.heartbeat import STALE_SECONDS
from rltuned.core.errors import ExitCode, StateError
from rltuned.slurm.process import OUTPUT_LIMIT

UNITS = Path(__file__).parents[3] / "systemd"
SERVICES = ["rltuned.service", "rltuned-deadman.service", "rltuned-report.service", "rltuned-learn.service"]
UNIT_OF_TIME = {"": 1, "s": 1, "min": 60, "h": 3600}


def values(name, key):
    return re.findall(rf"(?m)^{key}=(.*)$", (UNITS / name).read_text())


def seconds(name, key):
    number, unit = re.fullmatch(r"(\d+)(\w*)", values(name, key)[0]).groups()
    return int(number) * UNIT_OF_TIME[unit]


def test_the_watchdog_has_killed_a_hung_daemon_before_the_dead_man_takes_it_for_dead():
    killed = seconds("rltuned.service", "WatchdogSec") + seconds("rltuned.service", "TimeoutAbortSec")
    stale_after = float(values("rltuned-deadman.service", "ExecStart")[0].split("--if-stale ")[1])
    assert killed < min(stale_after, STALE_SECONDS)


def test_a_start_that_waits_for_a_running_restore_is_not_cut_off():
    assert seconds("rltuned.service", "TimeoutStartSec") > RESTORE_WAIT


def test_reload_asks_whether_the_configuration_is_good_before_it_signals_the_daemon():
    check, signal = values("rltuned.service", "ExecReload")
    assert check == "/opt/rltuned/venv/bin/rltuned config check"
    assert signal == "/bin/kill -HUP $MAINPID"


def test_a_daemon_that_was_told_why_it_cannot_start_is_not_started_again():
    # docs/exit-codes.md: 3 configuration, 4 model, 15 state directory.
    assert values("rltuned.service", "RestartPreventExitStatus") == ["3 4 15"]


def test_a_dead_man_that_may_not_use_the_state_directory_fails_and_is_seen():
    # 9: another restore is at it. 10: what cannot be taken back was named.
    assert values("rltuned-deadman.service", "SuccessExitStatus") == ["9 10"]
    assert StateError.exit_code not in {0, 9, 10}


def test_the_unit_has_the_memory_for_the_largest_answer_that_is_accepted():
    mebibytes = int(values("rltuned.service", "MemoryHigh")[0].removesuffix("M"))
    assert mebibytes * 2**20 >= 5 * OUTPUT_LIMIT


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one processor there is one thread anyway")
def test_numpy_starts_no_threads_of_its_own_under_the_unit_s_environment():
    program = "import os, numpy; m = numpy.ones((512, 512)); m @ m; print(len(os.listdir('/proc/self/task')))"

    def threads(**environment):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        )
        return int(done.stdout)

    assignments = dict(pair.split("=") for line in values("rltuned.service", "Environment") for pair in line.split())
    clean = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    assert threads(**clean, OPENBLAS_NUM_THREADS="4", OMP_NUM_THREADS="4") > 1, "this NumPy has no threads at all"
    assert threads(**clean, **assignments) == 1


def test_a_worker_that_the_kernel_ends_for_want_of_memory_does_not_end_the_daemon():
    assert values("rltuned.service", "OOMPolicy") == ["continue"]


def test_the_unit_can_write_the_users_records():
    (line,) = [line for line in (UNITS / "rltuned.tmpfiles").read_text().splitlines() if " 0711 rltuned " in line]
    assert values("rltuned.service", "ReadWritePaths") == ["-" + line.split()[1]]


def test_the_drop_in_for_forecasts_allows_machine_code_and_the_memory_of_its_worker_and_nothing_else():
    lines = [line for line in (UNITS / "rltuned-forecast.conf").read_text().splitlines() if not line.startswith("#")]
    assert lines[:2] == ["[Service]", "MemoryDenyWriteExecute=no"]
    memory = dict(line.split("=") for line in lines[2:])
    assert list(memory) == ["MemoryHigh", "MemoryMax"]
    # Beside the daemon, which has what it has without a worker.
    for name, size in memory.items():
        (alone,) = values("rltuned.service", name)
        assert int(size.removesuffix("M")) - int(alone.removesuffix("M")) >= 384  # what it takes while it compiles
    assert values("rltuned.service", "MemoryDenyWriteExecute") == ["yes"]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) of Linux")
def test_without_the_drop_in_the_worker_says_that_it_may_not_make_machine_code(tmp_path):
    # PR_SET_MDWE is what systemd's MemoryDenyWriteExecute= sets on Linux 6.3 and later.
    program = """
import ctypes, multiprocessing, pathlib, sys
from rltuned.core.installed import forecast_remedy
from rltuned.controller.learnt.forecast_worker import work
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit("this kernel has no PR_SET_MDWE")
context = multiprocessing.get_context("spawn")
ours, theirs = context.Pipe()
worker = context.Process(target=work, args=(theirs, pathlib.Path(sys.argv[1])), daemon=True)
worker.start()
said = ours.recv()
print(said, "|", forecast_remedy(said))
"""
    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "PR_SET_MDWE" in done.stderr:
        pytest.skip("this kernel cannot forbid it")
    assert "cannot allocate executable memory" in done.stdout
    assert "rltuned-forecast.conf" in done.stdout


def test_the_weekly_report_writes_only_what_everybody_may_read_and_nothing_of_the_daemon_s():
    (command,) = values("rltuned-report.service", "ExecStart")
    assert "--no-names" in command
    assert values("rltuned-report.service", "StateDirectory") == ["rltuned-report"]
    written = re.findall(r"--(?:html|json) (\S+)", command)
    assert {str(Path(path).parent) for path in written} == {"/var/lib/rltuned-report"}


@pytest.mark.parametrize("unit", ["rltuned-report.service", "rltuned-learn.service"])
def test_the_command_of_a_timed_unit_is_one_that_rltuned_takes(unit):
    words = values(unit, "ExecStart")[0].split()[1:]
    command, known = cli.commands[words[0]], set()
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_learning_writes_its_store_only_and_a_verdict_for_slurms_order_is_no_failure():
    (command,) = values("rltuned-learn.service", "ExecStart")
    assert values("rltuned-learn.service", "StateDirectory") == [Path(command.split()[-1]).name]
    assert values("rltuned-learn.service", "SuccessExitStatus") == [str(ExitCode.UNPROVEN)]


def hardening(name):
    return (UNITS / name).read_text().partition("\nNoNewPrivileges=")[2].partition("\n[")[0].strip().splitlines()


@pytest.mark.parametrize("unit", ["rltuned-report.service", "rltuned-learn.service"])
def test_a_timed_unit_is_locked_down_as_the_daemon_but_for_the_machine_code_of_the_simulator(unit):
    assert set(hardening("rltuned.service")) - set(hardening(unit)) == {"MemoryDenyWriteExecute=yes"}


def test_both_services_are_locked_down_alike():
    assert hardening("rltuned.service") == hardening("rltuned-deadman.service") != []


def test_what_cannot_see_slurmctld_under_its_unit_is_told_to_take_one_process():
    # ProtectProc=invisible hides slurmctld; the report takes one process by itself.
    assert values("rltuned-learn.service", "ProtectProc") == ["invisible"]
    assert "--workers 1 " in values("rltuned-learn.service", "ExecStart")[0]


# --- as systemd itself judges them

by_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (systemd)")


def analyze(*words, check=True):
    return subprocess.run(["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, check=check)


@by_systemd
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


@by_systemd
def test_systemd_finds_nothing_wrong_with_the_drop_in_for_forecasts(tmp_path):
    text = (UNITS / "rltuned.service").read_text().replace("/opt/rltuned/venv/bin/rltuned", "/bin/true")
    (tmp_path / "rltuned.service").write_text(re.sub(r"(?m)^Documentation=man:\S+$", "", text))
    (tmp_path / "rltuned.service.d").mkdir()
    shutil.copy(UNITS / "rltuned-forecast.conf", tmp_path / "rltuned.service.d" / "forecast.conf")
    done = analyze("verify", "--man=no", str(tmp_path / "rltuned.service"), check=False)
    assert [line for line in done.stderr.splitlines() if "rltuned" in line or "forecast" in line] == []


@by_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_exposure_is_at_most_two(name):
    done = analyze("security", "--offline=yes", str(UNITS / name))
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(match[1]) <= 2.0


def test_what_slurm_commands_and_munge_need_is_allowed():
    for name in SERVICES:
        assert values(name, "RestrictAddressFamilies") == ["AF_UNIX AF_INET AF_INET6"]
        # munge and the users' socket have to see the real uid
        assert not values(name, "PrivateNetwork") + values(name, "PrivateUsers")


@by_systemd
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
    assert values("rltuned.service", "ExecStopPost") == ["-/opt/rltuned/venv/bin/rltuned restore"]
    assert values("rltuned-deadman.service", "ExecStart")[0].endswith("rltuned restore --if-stale 300")
    for name in ("rltuned-deadman.service", "rltuned-deadman.timer"):
        assert not [key for key in ("Requires", "BindsTo", "PartOf") if values(name, key)]
    for name in ("rltuned.service", "rltuned-deadman.service"):
        assert values(name, "RuntimeDirectoryPreserve") == ["yes"]


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
    assert sorted(path.name for path in (root / "run").iterdir()) == ["rltuned", "rltuned-users"]

import fcntl
import os
import signal
import subprocess
import sys

import pytest
from unit.controller.support import files_no_longer_than

from rltuned.controller.health.lock import Lock, holder
from rltuned.core.errors import LockedError, StateError

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom rltuned.controller.health.lock import Lock\n"
    "lock = Lock.acquire(Path(sys.argv[1]), 'run', 1.0)\nprint('held', flush=True)\ntime.sleep(600)\n"
)


@pytest.fixture
def other(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_daemon_is_refused_and_told_who_holds_the_lock(tmp_path, other):
    with pytest.raises(LockedError, match=f"held by rltuned run, process {other.pid} of .* since 1970-01-01T00:00:01Z"):
        Lock.acquire(tmp_path, "run", 2.0)
    assert holder(tmp_path).pid == other.pid


def test_a_killed_holder_leaves_no_stale_lock(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert holder(tmp_path) is None
    with Lock.acquire(tmp_path, "restore", 2.0):
        assert holder(tmp_path).purpose == "restore"
        assert holder(tmp_path).pid == os.getpid()
    assert holder(tmp_path) is None


ASK = (
    "import sys\nfrom pathlib import Path\nfrom rltuned.controller.health.lock import holder\n"
    "print('asks', flush=True)\n"
    "while True: holder(Path(sys.argv[1]))\n"
)


def test_to_ask_who_holds_the_lock_keeps_nobody_from_it(tmp_path):
    Lock.acquire(tmp_path, "run", 1.0).release()
    with subprocess.Popen([sys.executable, "-c", ASK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "asks\n"
            for _ in range(1000):
                with Lock.acquire(tmp_path, "restore", 2.0):
                    assert holder(tmp_path).purpose == "restore"
        finally:
            process.kill()


def test_one_who_asks_and_never_ends_is_no_reason_to_wait_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("rltuned.controller.health.lock.PATIENCE", 0.05)
    Lock.acquire(tmp_path, "run", 1.0).release()
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(LockedError, match="somebody who only asks"):
            Lock.acquire(tmp_path, "restore", 2.0)


def test_a_full_disk_does_not_cost_the_lock(tmp_path):
    with (
        files_no_longer_than(0),
        Lock.acquire(tmp_path, "run", 1.0),
        pytest.raises(LockedError, match="unknown process"),
    ):
        Lock.acquire(tmp_path, "run", 2.0)


def test_a_holder_that_began_at_no_time_of_a_calendar_is_an_unknown_process(tmp_path):
    with Lock.acquire(tmp_path, "run", 1.0):
        path = tmp_path / "lock"
        path.write_text(path.read_text().replace('"since":1.0', f'"since":{10**10 * 31_557_600}.0'))
        assert "process 0 of ?" in str(holder(tmp_path))
        with pytest.raises(LockedError, match="unknown process"):
            Lock.acquire(tmp_path, "restore", 2.0)


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="file"):
        Lock.acquire(tmp_path / "file", "run", 1.0)


def test_a_lock_that_is_a_link_is_not_taken_and_what_it_points_to_is_left(tmp_path):
    precious = tmp_path / "of-roots"
    precious.write_text("precious")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(StateError, match="lock: cannot be opened"):
        Lock.acquire(tmp_path, "run", 1.0)
    assert precious.read_text() == "precious"


def test_who_holds_a_file_that_somebody_has_removed_does_not_hold_the_one_that_others_lock_by_then(tmp_path):
    with Lock.acquire(tmp_path, "run", 1.0) as first:
        assert first.still_held()
        first.path.unlink()
        assert not first.still_held()
        with Lock.acquire(tmp_path, "run", 2.0) as second:
            assert (first.still_held(), second.still_held()) == (False, True)

"""Disks that are full, broken, or of a network: at every single call that the daemon makes on its files."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from unit.controller.faulty_disk import FaultyDisk
from unit.controller.test_loop import ALL, again, house

from rltuned.controller.cycle.service import open_journal
from rltuned.controller.health.clock import Moment
from rltuned.controller.health.heartbeat import beat
from rltuned.controller.health.lock import Lock, holder
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import Field
from rltuned.core.errors import LockedError, StateError
from rltuned.core.safe_files import write_atomic

TESTS = Path(__file__).resolve().parents[2]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def more_jobs(run, seed):
    """Jobs that the next plan raises, so that it has something to write."""
    for number in range(4):
        run.slurm.submit(900 - 13 * number - seed, time_limit=3.0 + number + seed)


def watch(run):
    """What is sent to Slurm although the journal on disk does not have it."""
    found, carry_out = [], run.slurm.carry_out

    def checked(line):
        _, job, *settings = line.split()
        state = run.daemon.config.state
        entry = Journal.read(state.directory, state.mirror).entries.get(int(job.removeprefix("JobId=")))
        for name, _, value in (setting.partition("=") for setting in settings):
            if value != "0" and (entry is None or int(value) not in entry.ours(Field(name))):
                found.append(f"{line}: {entry}")
        return carry_out(line)

    run.slurm.carry_out = checked
    return found


def cycles(run):
    more_jobs(run, 0)
    run.tick()


def restart(run):
    run.daemon.stop()
    more_jobs(run, 0)
    after = again(run.daemon.config.state.directory.parent, run.slurm, lend=ALL)
    run.daemon, run.stream = after.daemon, after.stream
    run.tick()


def give_back(run):
    run.daemon.stop()
    assert run.restore() is not None
    assert run.untouched()


def through(act, fails):
    """A daemon that has raised jobs does `act` on such a disk; then the disk is well. Returns the calls."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        run = house(Path(place), jobs=6, lend=ALL)
        unwritten = watch(run)
        run.tick()
        with FaultyDisk(Path(place), fails) as disk:
            act(run)
        if act is not give_back:
            assert not run.events("cycle.defect")
            more_jobs(run, 60)
            run.tick()
            last = run.tick()
            assert last.outcome is CycleOutcome.DONE
            assert last.stage == "active"
            assert not run.daemon.journal.alarms
            assert not any(entry.applied.foreign for entry in run.daemon.journal.entries.values())
            run.daemon.stop()
        assert run.restore() is not None
        assert run.untouched()
        assert not unwritten
        assert not list(Path(place).rglob("*.tmp"))
        return disk.calls


MAKES = ("make", "mkdir", "write", "fsync", "close")
"""Calls that need room; a close, where a file system takes data late (NFS, quotas)."""


ACTS = pytest.mark.parametrize("act", [cycles, restart, give_back])


@ACTS
def test_whichever_call_fails_nothing_is_written_unjournalled_and_all_is_well_after_it(act):
    calls = through(act, lambda _at, _call: 0)
    for call in dict.fromkeys(calls):
        needs_room, bad = call.split()[0] in MAKES, calls.index(call) + 1
        number = (errno.ENOSPC, errno.EDQUOT)[bad % 2] if needs_room else (errno.EIO, errno.ESTALE)[bad % 2]
        through(act, lambda at, _call, bad=bad, number=number: number if at == bad else 0)


@ACTS
def test_from_whichever_call_on_there_is_no_room_all_is_well_once_there_is(act):
    calls = through(act, lambda _at, _call: 0)
    for first in sorted({calls.index(call) + 1 for call in calls})[::5]:
        through(act, lambda at, call, first=first: errno.ENOSPC * (at >= first and call.split()[0] in MAKES))


def test_a_journal_whose_file_cannot_be_closed_takes_no_file_of_others_for_its_own(tmp_path):
    with FaultyDisk(tmp_path, lambda _at, call: errno.EDQUOT * (call == "close journal.jsonl")):
        run = house(tmp_path, lend=ALL)
        run.tick()
        run.daemon.journal.compact()  # closes the file that was there before
        with (tmp_path / "another").open("wb") as another:  # gets its number
            more_jobs(run, 0)
            run.tick()
            os.fstat(another.fileno())
        assert (tmp_path / "another").read_bytes() == b""
        assert run.daemon.journal.alarms == (), "each line was synced before"
        run.end()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_where_no_lock_can_be_made_the_directory_is_locked_and_the_queue_is_given_back(tmp_path, number):
    run = house(tmp_path, lend=ALL)
    run.tick()
    run.daemon.stop()
    with FaultyDisk(tmp_path, lambda _at, call: number * (call.split()[0] in MAKES)):
        assert run.restore().complete
        with Lock.acquire(tmp_path / "state", "restore", 1.0) as lock:
            assert not lock.still_held(), "a daemon does not write by it: others may make the file"
    assert run.untouched()


NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of flock(2) on file systems that have no locks, or whose server does not answer."""


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_file_system_without_locks_is_named_and_nobody_is_taken_for_the_holder(tmp_path, monkeypatch, number):
    run = house(tmp_path, lend=ALL)
    Lock.acquire(tmp_path / "state", "run", 1.0).release()
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    with pytest.raises(StateError, match=rf"state/lock: .*{os.strerror(number)}.*local file system"):
        Lock.acquire(tmp_path / "state", "run", 1.0)
    assert holder(tmp_path / "state") is None
    found = {finding.subject: finding for finding in run.examine()}
    assert found["state"].severity is Severity.ERROR
    assert os.strerror(number) in found["state"].cause
    assert "local file system" in found["state"].remedy


@pytest.mark.parametrize(("number", "held"), [(errno.EIO, True), (errno.EACCES, True), (errno.ESTALE, False)])
def test_a_lock_that_cannot_be_looked_at_for_a_moment_is_held_still(tmp_path, monkeypatch, number, held):
    with Lock.acquire(tmp_path, "run", 1.0) as lock:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", lambda *_, **__: (_ for _ in ()).throw(OSError(number, "")))
            assert lock.still_held() is held
        assert lock.still_held()
        lock.path.unlink()
        assert not lock.still_held()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_syncs_no_directories_takes_files_all_the_same(tmp_path, number):
    with FaultyDisk(tmp_path, lambda _at, call: number * (call == f"fsync {tmp_path.name}")):
        if number == errno.EINVAL:
            write_atomic(tmp_path / "file", b"new")
        else:
            with pytest.raises(OSError, match="Input/output error"):
                write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_directory_that_another_hosts_daemon_works_in_is_refused_although_its_lock_is_free(tmp_path):
    run = house(tmp_path, lend=ALL)
    run.tick()  # its lock is not seen, as where a network file system keeps locks to the host
    now = Moment.of(run.slurm.clock)
    with ExitStack() as stack:
        open_journal(run.daemon.config, run.slurm.clock, stack, dry_run=False)  # a daemon that was killed here
    other = replace(now, host="ctl2", boot="another")
    beat([tmp_path / "state"], other, 300.0)
    with ExitStack() as stack, pytest.raises(LockedError, match=r"on ctl2 works in it.*local file system"):
        open_journal(run.daemon.config, run.slurm.clock, stack, dry_run=False)
    (found,) = [finding for finding in run.examine() if finding.subject == "daemon"]
    assert found.severity is Severity.ERROR
    assert "on ctl2 works in it" in found.cause
    beat([tmp_path / "state"], replace(other, boot=now.boot), 300.0)
    with ExitStack() as stack:
        open_journal(run.daemon.config, run.slurm.clock, stack, dry_run=False)  # another container of this machine
    beat([tmp_path / "state"], other, 300.0)
    run.slurm.clock.sleep(400.0)
    with ExitStack() as stack:
        open_journal(run.daemon.config, run.slurm.clock, stack, dry_run=False)  # the other one is gone


PAGE = 4096
MOUNTED = """mount -t tmpfs -o size=512k none "$1" && exec "$2" -c "
import sys, pathlib
from unit.controller.test_disk_faults import with_little_room
with_little_room(pathlib.Path(sys.argv[1]))
" "$1" """


def with_little_room(disk):
    """On a small file system: cycles, and the way back, with 0 and more pages left; then there is room again."""
    for pages, goes_on in product((0, 1, 3, 6), (True, False)):
        run = house(disk / f"{pages}{goes_on}", jobs=6, lend=ALL)
        unwritten = watch(run)
        run.tick()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(PAGE)) == PAGE:
                pass
        os.truncate(filler, max(filler.stat().st_size - pages * PAGE, 0))
        for seed in (0, 20):
            more_jobs(run, seed)
            run.tick()
        said = run.events("loans.not_kept") + run.events("journal.degraded")
        assert said or pages, "on a full disk something is not kept"
        assert all("No space left on device" in str(event) and str(disk) in str(event) for event in said)
        if goes_on:
            filler.unlink()
            more_jobs(run, 40)
            run.tick()
            assert run.tick().outcome is CycleOutcome.DONE
            assert not run.daemon.journal.alarms
        run.daemon.stop()
        run.restore()
        assert run.untouched()
        assert not unwritten
        assert not run.events("cycle.defect")
        filler.unlink(missing_ok=True)
        shutil.rmtree(disk / f"{pages}{goes_on}")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts a file system")
def test_on_a_real_disk_with_little_room_nothing_is_unjournalled_and_the_way_back_works(tmp_path):
    words = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", str(tmp_path), sys.executable]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=TESTS)
    if "permission denied" in done.stderr.lower() or "not permitted" in done.stderr.lower():
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr[-3000:]

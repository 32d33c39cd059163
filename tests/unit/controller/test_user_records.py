"""Who can read which record: tried as two real users in a real directory, and by hostile ones."""

import errno
import io
import json
import os
import re
import resource
import shutil
import stat
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from unit.controller.support import as_user, typed_as
from unit.controller.test_loop import config as loop_config
from unit.controller.test_loop import house
from unit.controller.test_service import CONFIG, Process
from unit.decide.conftest import NOW, make_snapshot, pending

from rltuned.controller.health.clock import SystemClock
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.users import registrations
from rltuned.controller.users import user_records as module
from rltuned.controller.users.registrations import lately_running, name_of, registered, uid_of
from rltuned.controller.users.user_records import UserFiles, access_list, write_all_records
from rltuned.core.changes import JobState
from rltuned.core.config import Config, Stage, UsersSection, resolve
from rltuned.core.errors import ConfigError, RltunedError
from rltuned.decide.plan import plan
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.user_record import UserRecords
from rltuned.job.elastic import advice_of
from rltuned.records.published import MARK, NAME, fetch

ALICE, BOB = 61001, 61002  # without names here, so squeue would print the numbers

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")


def records(*users, now=NOW, reason="Priority"):
    """Job n (from 1) is of the n-th of these users."""
    jobs = pending(len(users), user=[str(user) for user in users], reason=reason)
    return UserRecords(make_snapshot(jobs, now=now), interval=60.0)


def runtime(stream):
    return Runtime(Config(), SystemClock(), make("info", "json", stream), Metrics())


def ids(record):
    return [job.job_id for job in record.jobs]


@pytest.fixture
def place():
    """A directory that other users can enter, which pytest's own cannot be."""
    path = Path(tempfile.mkdtemp(prefix="rltuned-users-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def top(place):
    """Where the records go."""
    path = place / "shared"
    path.mkdir()
    return path


@pytest.fixture
def there(place):
    """Where jobs register."""
    path = place / "elastic"
    path.mkdir()
    path.chmod(0o1733)
    return path


REGISTRATION = json.dumps({"version": 1, "least": 1, "most": 4, "cost": 240.0})


def run_as(uid, call):
    """What `call` returns in a process of this user, or the text of its exception."""
    try:
        return as_user(uid, call)
    except Exception as error:  # noqa: BLE001 - the test judges it
        return f"{type(error).__name__}: {error}"


def fetched_as(uid, section):
    return run_as(uid, lambda: ids(fetch(section, os.geteuid())))


# --- who is who


def test_a_name_that_is_somebody_elses_number_belongs_to_nobody(monkeypatch):
    class Entry:
        pw_uid, pw_name = 2000, str(ALICE)

    def getpwnam(name):
        if name == str(ALICE):
            return Entry
        raise KeyError(name)

    def getpwuid(uid):
        if uid == 2000:
            return Entry
        raise KeyError(uid)

    assert (uid_of(str(ALICE)), name_of(ALICE)) == (ALICE, str(ALICE))
    monkeypatch.setattr(registrations.pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(registrations.pwd, "getpwuid", getpwuid)
    assert (uid_of(str(ALICE)), name_of(ALICE), name_of(2000)) == (None, "", "")
    assert (uid_of(str(BOB)), name_of(BOB)) == (BOB, str(BOB))
    assert uid_of("carol") is None


def test_root_has_its_name_and_the_user_whom_the_kernel_cannot_tell_has_none():
    assert (uid_of("root"), name_of(0)) == (0, "root")
    assert (uid_of("65534"), name_of(65534)) == (None, "")


@pytest.mark.parametrize("number", ["4294967295", "20231104567", "9" * 40])
def test_a_number_that_is_no_uid_is_nobody_and_costs_no_other_user_the_record(place, number):
    assert uid_of(number) is None
    assert not write_all_records(place, records(number, os.geteuid()))
    assert (place / str(os.geteuid()) / NAME).exists()


# --- the files


def test_a_relative_path_is_no_place():
    with pytest.raises(ConfigError, match=r"users\.directory: an absolute path is wanted"):
        resolve('[users]\ndirectory = "here"\n', "config.toml", {}, {})


@as_root
def test_each_user_can_read_their_own_file_and_list_and_read_nothing_else(top):
    assert not write_all_records(top, records(ALICE, BOB, ALICE))
    section = UsersSection(directory=top)
    assert fetched_as(ALICE, section) == [1, 3]
    assert fetched_as(BOB, section) == [2]
    own, others = top / str(ALICE), top / str(BOB)
    assert run_as(ALICE, lambda: [path.name for path in own.iterdir()]) == [NAME]
    for call in (
        lambda: list(top.iterdir()),
        lambda: list(others.iterdir()),
        (others / NAME).read_text,
        lambda: (others / NAME).stat().st_size,
        lambda: (own / NAME).write_text("x"),
        lambda: (own / "new").write_text("x"),
        (own / NAME).unlink,
        lambda: own.rename(top / "away"),
        (top / "61009").mkdir,
        lambda: own.chmod(0o755),
        lambda: os.setxattr(own, "system.posix_acl_access", access_list(BOB, directory=True)),
    ):
        assert run_as(ALICE, call).startswith("PermissionError"), "only reading one's own is allowed"
    assert run_as(BOB, lambda: ids(fetch(section, ALICE))).startswith("RltunedError")
    assert run_as(61003, lambda: ids(fetch(section, os.geteuid()))) == [], "who never had a job learns that"


@as_root
def test_a_daemon_without_privilege_can_do_it_too(top):
    os.chown(top, 61010, 61010)
    made = records(ALICE, BOB)
    assert run_as(61010, lambda: write_all_records(top, made)) is None
    section = UsersSection(directory=top)
    assert (fetched_as(ALICE, section), fetched_as(BOB, section)) == ([1], [2])
    assert run_as(ALICE, lambda: Path(top, str(BOB), NAME).read_text()).startswith("PermissionError")
    status = (top / str(ALICE) / NAME).stat()
    assert status.st_uid == 61010, "no file is given away"


@as_root
def test_who_has_no_job_any_more_has_an_empty_record_of_the_same_time(top):
    write_all_records(top, records(ALICE, BOB))
    before = (top / str(ALICE) / NAME).stat()
    assert not write_all_records(top, records(BOB, now=NOW + 60.0))
    after = (top / str(ALICE) / NAME).stat()
    assert after.st_ino != before.st_ino or after.st_mtime_ns != before.st_mtime_ns, "its time says nothing to others"
    record = run_as(ALICE, lambda: fetch(UsersSection(directory=top), ALICE).as_dict())
    assert (record["jobs"], record["time"]) == ([], NOW + 60.0)


@as_root
def test_a_changed_access_list_is_put_right_in_the_next_cycle(top):
    write_all_records(top, records(ALICE, BOB))
    for path in (top / str(ALICE), top / str(ALICE) / NAME):
        path.chmod(0o777)
    top.chmod(0o777)
    assert fetched_as(ALICE, UsersSection(directory=top)) == [1]
    write_all_records(top, records(ALICE, BOB))
    assert run_as(BOB, lambda: Path(top, str(ALICE), NAME).read_text()).startswith("PermissionError")
    assert stat.S_IMODE(top.stat().st_mode) == 0o711


@as_root
def test_a_file_system_without_access_lists_gets_no_record_and_the_reason_is_said(place):
    top = place / "plain"
    top.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "ramfs", str(top)], capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    try:
        top.chmod(0o755)
        trouble = write_all_records(top, records(ALICE))
        assert "no POSIX access control lists" in trouble
        assert not list(top.rglob(NAME))
        assert not (top / MARK).exists()
    finally:
        subprocess.run(["umount", str(top)], check=True)


@as_root
def test_a_directory_of_somebody_else_is_refused_and_a_link_in_ours_not_followed(place, top):
    os.chown(top, ALICE, ALICE)
    assert f"belongs to uid {ALICE}" in write_all_records(top, records(ALICE))
    assert list(top.iterdir()) == []
    os.chown(top, 0, 0)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (top / str(ALICE)).symlink_to(elsewhere)
    assert str(ALICE) in write_all_records(top, records(ALICE, BOB))
    assert list(elsewhere.iterdir()) == []
    assert fetched_as(BOB, UsersSection(directory=top)) == [2], "one that fails costs itself"


@as_root
def test_a_full_disk_leaves_the_old_record_whole(top):
    write_all_records(top, records(ALICE))
    many = records(*[ALICE] * 200)

    def on_a_full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        return write_all_records(top, many)

    os.chown(top, 61010, 61010)
    for path in (top / str(ALICE), top / str(ALICE) / NAME):
        os.chown(path, 61010, 61010)
    os.chown(top / MARK, 61010, 61010)
    assert "File too large" in run_as(61010, on_a_full_disk)
    assert fetched_as(ALICE, UsersSection(directory=top)) == [1]


@as_root
def test_directories_are_bounded_and_those_without_jobs_go_first(top, monkeypatch):
    write_all_records(top, records(ALICE, BOB))
    monkeypatch.setattr(module, "MOST_USERS", 3)
    assert not write_all_records(top, records(BOB, 61003, 61004))
    assert {path.name for path in top.iterdir()} == {str(BOB), "61003", "61004", MARK}
    assert "5 users have jobs, the first 3" in write_all_records(top, records(61003, 61004, 61005, 61006, 61007))


def test_nothing_published_is_not_the_same_as_no_jobs(place):
    with pytest.raises(RltunedError, match=r"users\.directory is not set"):
        fetch(UsersSection(), ALICE)
    with pytest.raises(RltunedError, match="nothing is published here"):
        fetch(UsersSection(directory=place), ALICE)
    (place / str(ALICE)).mkdir()
    (place / str(ALICE) / NAME).write_text("{}")
    with pytest.raises(RltunedError, match="different versions"):
        fetch(UsersSection(directory=place), ALICE)


@pytest.mark.parametrize(
    ("error", "event"),
    [(OSError(errno.ESTALE, "Stale file handle"), "users.not_published"), (ValueError("?"), "defect")],
)
def test_a_directory_that_cannot_be_listed_once_is_said_and_tried_again(place, monkeypatch, error, event):
    listdir, said = os.listdir, io.StringIO()

    def fails(_directory):
        monkeypatch.setattr(module.os, "listdir", listdir)
        raise error

    monkeypatch.setattr(module.os, "listdir", fails)
    files = UserFiles(place, runtime(said), dict)
    files.publish(records("root"))
    while not said.getvalue():
        time.sleep(0.01)
        assert files._thread.is_alive()
    assert event in said.getvalue()
    files.publish(records("root"))
    while not (place / MARK).exists():
        time.sleep(0.01)
        assert files._thread.is_alive()
    files.close()


def test_a_file_server_that_hangs_holds_up_neither_the_cycle_nor_the_end(place, monkeypatch):
    hangs, entered = threading.Event(), threading.Event()

    def slow(_directory, _records):
        entered.set()
        hangs.wait(60)
        return ""

    monkeypatch.setattr(module, "write_all_records", slow)
    files = UserFiles(place, runtime(io.StringIO()), dict)
    files.publish(records("root"))
    assert entered.wait(60)
    for _ in range(100):
        files.publish(records("root"))  # returns at once
    files.close(patience=0.05)
    assert files._thread.is_alive()
    hangs.set()
    files._thread.join(60)
    assert not files._thread.is_alive()


def test_trouble_is_said_once_for_as_long_as_it_stays_the_same_and_after_a_reload_in_the_new_log(place):
    before, stream = io.StringIO(), io.StringIO()
    shared = runtime(before)
    files = UserFiles(place / "absent", shared, dict)
    shared.log = make("info", "json", stream)
    for _ in range(3):
        files.publish(records("root"))
        while files._next is not None:
            time.sleep(0.001)
    files.close()
    assert not before.getvalue()
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert line["event"] == "users.not_published"
    assert "absent: No such file or directory" in line["reason"]


# --- the daemon and the command


def test_a_cycle_publishes_in_every_stage_and_a_defect_in_it_costs_no_cycle(tmp_path):
    for stage, places in ((Stage.ACTIVE, [2, 4, 6]), (Stage.SHADOW, [1, 3, 5]), (Stage.OBSERVE, [None] * 3)):
        run = house(tmp_path / stage, jobs=6, stage=stage)
        seen = []
        run.daemon.parts.reporting.publish = seen.append
        run.tick()
        (made,) = seen
        assert made.moves is (stage is Stage.ACTIVE)
        assert [job.place for job in made.record("alice").jobs] == places

        def fails(_records):
            raise ZeroDivisionError

        run.daemon.parts.reporting.publish = fails
        assert run.tick().outcome == "done"
        assert run.events("users.defect")


def test_a_reload_does_not_change_the_directory(tmp_path):
    run = house(tmp_path)
    other = loop_config(tmp_path, users=UsersSection(directory=tmp_path / "other"))
    run.daemon.reload(lambda: other)
    assert run.daemon.config.users == UsersSection()
    assert "[users]" in run.events("reload.partial")[0]["sentence"]


def explain_as(uid, config, *arguments):
    """Exit code, output and errors of `rltuned explain` as this user."""
    return typed_as(uid, "explain", "--config", config, *arguments)


@as_root
def test_a_job_is_registered_by_its_own_user_in_a_plain_small_file_and_by_nobody_else(place, there):
    jobs, good = make_snapshot(pending(9, user=[str(ALICE)] * 8 + [str(BOB)])).jobs, REGISTRATION
    assert registered(place / "other", jobs) == {}, "the site has no directory for them"
    secret = place / "secret"
    secret.write_text(good)

    def put():
        (there / f"{ALICE}.1").write_text(good)
        (there / f"{ALICE}.2").symlink_to(there / f"{ALICE}.1")
        os.mkfifo(there / f"{ALICE}.3")
        (there / f"{ALICE}.4").mkdir()
        (there / f"{ALICE}.5").write_text(" " * 10_000 + good)
        (there / f"{ALICE}.6").write_text(good.replace("240.0", "Infinity"))
        (there / f"{ALICE}.7").write_text(good.replace('"least": 1', '"least": 0'))
        for name in (f"{ALICE}.9", f"{BOB}.9", f"{ALICE}.10", f"{ALICE}.٣", "1", "x", "1" * 200):
            (there / name).write_text(good)

    assert run_as(ALICE, put) is None
    os.link(secret, there / f"{ALICE}.8")
    found = registered(place, jobs)
    assert {job: (told.least, told.most, told.cost) for job, told in found.items()} == {1: (1, 4, 240.0)}
    assert run_as(BOB, lambda: [path.name for path in there.iterdir()]).startswith("PermissionError")


@as_root
@pytest.mark.parametrize("taken_by", ["a file", "a directory"])
def test_a_registration_whose_name_somebody_else_has_taken_or_that_others_hide_comes_through(
    place, there, monkeypatch, taken_by
):
    monkeypatch.setattr(registrations, "MOST_REMOVED", 10)
    jobs, said = make_snapshot(pending(1, user=str(ALICE))).jobs, REGISTRATION

    def taken():
        if taken_by == "a file":
            (there / f"{ALICE}.1").touch()
        else:
            (there / f"{ALICE}.1").mkdir()
            (there / f"{ALICE}.1" / "of").touch()
        for number in range(50):
            (there / f"{BOB}.{number}").write_text(said)
        (there / "full").mkdir()
        (there / "full" / "of").touch()

    def register():
        (there / "new").write_text(said)
        (there / "new").chmod(0o644)
        (there / "new").replace(there / f"{ALICE}.1")

    assert run_as(BOB, taken) is None
    assert "Error" in run_as(ALICE, register)
    for _ in range(7):
        found = registered(place, jobs)
        run_as(ALICE, register)
    assert [*found] == [1]
    assert [path.name for path in there.iterdir() if not path.is_dir()] == [f"{ALICE}.1"]


def test_only_a_job_that_ran_a_moment_ago_is_registered_while_it_waits(place, there):
    me = str(os.geteuid())
    for job in (1, 2, 3):
        (there / f"{me}.{job}").write_text(REGISTRATION)

    def told(now, *states):
        jobs = pending(3, user=me, state=states, held_nodes=[(at,) if state else () for at, state in enumerate(states)])
        snapshot = make_snapshot(jobs, now=now)
        return sorted(lately_running(registered(place, snapshot.jobs), snapshot, ran))

    ran = dict[int, float]()
    waits, runs = JobState.PENDING, JobState.RUNNING
    assert told(NOW, waits, runs, runs) == [2, 3]
    assert told(NOW + 60.0, waits, waits, runs) == [2, 3]
    assert told(NOW + 900.0, waits, waits, runs) == [2, 3]
    assert told(NOW + 960.0, waits, waits, waits) == [3]
    assert [*ran] == [3], "of jobs that have ended nothing is kept"


def test_of_registrations_so_many_are_looked_at_and_of_others_so_many_removed_in_a_cycle(place, there, monkeypatch):
    jobs = make_snapshot(pending(3, user=str(os.geteuid()))).jobs
    for job in (1, 2, 3):
        (there / f"{os.geteuid()}.{job}").write_text(REGISTRATION)
    with monkeypatch.context() as few:
        few.setattr(registrations, "MOST_LISTED", 2)
        assert len(registered(place, jobs)) == 2
    monkeypatch.setattr(registrations, "MOST_REMOVED", 2)
    for number in range(5):
        (there / f"other{number}").touch()
    assert len(registered(place, jobs)) == 3
    assert len([*there.iterdir()]) == 3 + 3


def test_a_registration_through_a_pipe_or_for_more_nodes_than_there_are_is_none(place, there):
    jobs = make_snapshot(pending(2, user=str(os.geteuid()))).jobs
    os.mkfifo(there / f"{os.geteuid()}.1")
    pipe = os.open(there / f"{os.geteuid()}.1", os.O_RDWR | os.O_NONBLOCK)
    os.write(pipe, REGISTRATION.encode())
    (there / f"{os.geteuid()}.2").write_text(REGISTRATION.replace('"most": 4', '"most": 10001'))
    assert registered(place, jobs) == {}
    os.close(pipe)


def test_a_file_system_that_takes_an_access_list_and_does_not_keep_it_gets_no_record(place, monkeypatch):
    monkeypatch.setattr(module.os, "setxattr", lambda *_: None)
    uid = os.geteuid()
    assert str(place / str(uid)) in write_all_records(place, records(uid))
    assert not (place / str(uid) / NAME).exists()


def test_what_registered_jobs_are_advised_and_used_of_their_limits_is_in_their_users_record(place, there):
    daemon_user = str(os.geteuid())
    state = [JobState.RUNNING, JobState.PENDING]
    jobs = pending(
        2,
        user=[daemon_user, str(BOB)],
        state=state,
        held_nodes=[(0, 1), ()],
        start_time=[NOW - 60.0, np.nan],
        end_time=NOW + 9000.0,
        nodes=[2, 1],
        gpus=[4, 4],
        gpus_per_node=[2, 4],
    )
    snapshot = make_snapshot(jobs, gpus_alloc=[[2, 0, 0], [2, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    for job in (1, 9):
        (there / f"{daemon_user}.{job}").write_text(REGISTRATION)
    files = UserFiles(place, runtime(io.StringIO()), lambda: {daemon_user: [(90.0, 3600.0)], str(BOB): [(1.0, 2.0)]})
    made = plan(snapshot, by_name("sjf"), Config())
    try:
        files.publish(UserRecords(snapshot, interval=60.0, plan=made, moves=True))
        while not (place / MARK).exists():
            time.sleep(0.01)
    finally:
        files.close()
    assert advice_of(place, 1, 2) == (2, 0.0, 0.0), "it is of long ago"
    assert [path.name for path in there.iterdir()] == [f"{daemon_user}.1"], "what a job that is gone left is removed"
    own = json.loads((place / daemon_user / NAME).read_text())
    told = own["elastic"]
    assert [(each["job_id"], each["nodes"], each["advised"], each["left"]) for each in told] == [(1, 2, 1, 9000.0)]
    assert own["limits_used"] == {"jobs": 1, "ran": 90.0, "asked": 3600.0, "reached": 0}, "asked of that thread"


@as_root
def test_explain_answers_an_ordinary_user_about_own_jobs_only_and_asks_slurm_nothing(place, top):
    made = UserRecords(
        make_snapshot(
            pending(4, user=[str(ALICE), str(BOB), str(BOB), str(ALICE)], reason=["Priority", *["Dependency"] * 3]),
            now=time.time(),
        ),
        interval=60.0,
    )
    write_all_records(top, made)
    state = place / "state"
    state.mkdir(mode=0o750)
    config = place / "config.toml"
    # A Slurm that is not there: whoever asked it would fail.
    config.write_text(f'[users]\ndirectory = "{top}"\n[state]\ndirectory = "{state}"\n[slurm]\nbin_dir = "/nowhere"\n')
    code, out, err = explain_as(ALICE, config)
    assert (code, err) == (0, "")
    assert "Your 2 pending jobs" in out
    assert "Job 1" in out
    assert "Job 4" in out
    assert "Job 2" not in out
    assert "It waits for another job" in out
    code, out, _ = explain_as(ALICE, config, "1", "--json")
    assert (code, [job["job_id"] for job in json.loads(out)["jobs"]]) == (0, [1])
    theirs, absent = (explain_as(ALICE, config, number) for number in ("2", "99"))
    assert theirs[0] == absent[0] == 16
    same = [re.sub("job [0-9]+|[0-9]+ s ago", "", answer[2]) for answer in (theirs, absent)]
    assert same[0] == same[1], "another's job and none at all look the same"
    assert "it came later, runs, has ended, or is not yours" in absent[2]
    code, out, _ = explain_as(61003, config)
    assert (code, "You have no pending jobs" in out) == (0, True)


@as_root
def test_a_real_daemon_shows_each_user_their_jobs(place, top):
    config = place / "config.toml"
    config.write_text(CONFIG.format(root=place) + f'[users]\ndirectory = "{top}"\n')
    daemon = Process(place, "--users")
    try:
        for _ in range(3):  # a record is written after its cycle
            daemon.logged("cycle.done")
        assert fetched_as(ALICE, UsersSection(directory=top)) == [7, 5, 3, 1], "as sjf orders them"
        assert fetched_as(BOB, UsersSection(directory=top)) == [8, 6, 4, 2]
        code, out, _ = explain_as(ALICE, config, "7")
        assert code == 0
        assert "Job 7: place 2 of 8 (Slurm alone: 7)" in out
        assert explain_as(ALICE, config, "8")[0] == 16
        assert daemon.end()[2] == 0
    finally:
        daemon.process.kill()
        daemon.process.communicate()
        daemon.socket.close()


@as_root
def test_the_default_configuration_that_a_user_may_not_read_counts_as_absent(place, top, monkeypatch):
    hidden = place / "config.toml"
    hidden.write_text("not toml at all")
    hidden.chmod(0o600)
    from rltuned.cli import common

    monkeypatch.setattr(common, "DEFAULT_PATH", hidden)
    monkeypatch.setenv("RLTUNED_USERS__DIRECTORY", str(top))
    write_all_records(top, records(ALICE))
    assert "Job 1" in typed_as(ALICE, "explain", "1")[1]


def test_control_characters_of_a_reason_reach_no_terminal(place, capsys):
    from rltuned.cli import show
    from rltuned.cli.common import console

    snapshot = make_snapshot(pending(1, user="alice", reason="\x1b[2J[red]gone"))
    show.user_record(console(), UserRecords(snapshot, interval=60.0).record("alice"), NOW + 1000.0, only=False)
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert "[red]gone" in out
    assert "This is old" in out


def test_the_access_list_is_the_one_that_setfacl_makes(place):
    setfacl = shutil.which("setfacl")
    if setfacl is None:
        pytest.skip("no setfacl here")
    for directory in (True, False):
        path = place / f"{directory}"
        path.mkdir() if directory else path.touch()
        rights = "rx" if directory else "r"
        subprocess.run(
            [setfacl, "-b", "-m", f"u::{rights}w,u:{ALICE}:{rights},g::-,o::-,m::{rights}", str(path)], check=True
        )
        assert os.getxattr(path, "system.posix_acl_access") == access_list(ALICE, directory=directory)
    assert struct.unpack("<I", access_list(ALICE, directory=True)[:4]) == (2,)
    assert np.frombuffer(access_list(ALICE, directory=True)[4:], dtype="<u2,<u2,<u4")["f2"].tolist()[1] == ALICE

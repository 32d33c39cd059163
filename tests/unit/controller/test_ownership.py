"""root looks at the cluster first, and the service's user has to live with the files. Real users: needs root."""

import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from unit.controller.model_slurm import ModelSlurm, VirtualClock
from unit.controller.support import as_user, typed_as
from unit.slurm.standin import StandIn

from rltuned.cli import common
from rltuned.controller.cycle.service import serve
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.health.lock import Lock, holder
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.shown.checks import examine
from rltuned.controller.write.journal import Journal
from rltuned.core import safe_files as files
from rltuned.core.config import Config, CycleSection, Effective, PolicySection, StateSection
from rltuned.core.errors import LockedError, StateError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")

SERVICE, ADMIN = 64501, 64502  # users without a name


@pytest.fixture
def home(monkeypatch):
    """A directory of the service's user that everybody may enter; there is no user of the units' name here."""
    monkeypatch.setattr(files, "SERVICE_USER", "rltuned-nobody-here")
    path = Path(tempfile.mkdtemp(prefix="rltuned-"))
    path.chmod(0o755)
    os.chown(path, SERVICE, SERVICE)
    yield path
    shutil.rmtree(path)


def config(home):
    return Config(
        cycle=CycleSection(stage="active"),
        policy=PolicySection(name="sjf"),
        state=StateSection(directory=home / "lib" / "state", mirror=home / "run" / "mirror"),
    )


def run(home, **values):
    """One cycle on a cluster of four jobs. How many updates Slurm got."""
    slurm = ModelSlurm(VirtualClock())
    for number in range(4):
        slurm.submit(1000 - number, time_limit=60.0 * (4 - number))
    serve(
        lambda: Effective(config(home), {}),
        once=True,
        connect_reader=lambda _: slurm.reader(),
        connect_writer=lambda _: slurm.writer(),
        clock=slurm.clock,
        **values,
    )
    return slurm.updates


def restore(home, **values):
    slurm = ModelSlurm(VirtualClock())
    return restore_queue(
        config(home),
        clock=slurm.clock,
        connect_reader=lambda _: slurm.reader(),
        connect_writer=lambda _: slurm.writer(),
        **values,
    )


def owners(home):
    return {path.relative_to(home): path.stat().st_uid for path in home.rglob("*")}


def test_a_dry_run_of_roots_writes_no_journal_needs_no_lock_and_leaves_nothing_in_the_way_of_the_service(home):
    assert run(home, dry_run=True) == 0
    assert {path.name for path in (home / "lib" / "state").iterdir()} == {"decision.json", "decisions"}
    with Lock.acquire(home / "lib" / "state", "run", 0.0):
        before = (home / "lib" / "state" / "decision.json").read_bytes()
        run(home, dry_run=True)
        assert (home / "lib" / "state" / "decision.json").read_bytes() == before, "it is the daemon's"
    assert as_user(SERVICE, lambda: run(home)) > 0


def test_what_root_makes_belongs_to_the_owner_of_the_place_where_it_is_made(home):
    run(home)
    assert set(owners(home).values()) == {SERVICE}
    assert {path.name for path in owners(home)} >= {"state", "mirror", "lock", "journal.jsonl", "decision.json"}
    assert as_user(SERVICE, lambda: restore(home)) is not None


@pytest.mark.parametrize("step", ["os.chown", "open"])
def test_a_link_that_the_service_puts_in_the_place_of_a_new_directory_gives_it_nothing_of_roots(home, step):
    new, precious = home / "hands-off", home / "of-roots"
    precious.mkdir()

    def make_and_swap():
        def swap(event, arguments):
            if event == step and new.is_dir() and not new.is_symlink() and new.name in str(arguments[0]):
                new.rename(home / "elsewhere")
                new.symlink_to(precious)

        sys.addaudithook(swap)  # for good: hence in a process of its own
        with suppress(OSError):
            files.make_directory(new)

    as_user(0, make_and_swap)
    assert precious.stat().st_uid == 0


def test_or_to_the_user_of_the_units_where_there_is_one(home, monkeypatch):
    monkeypatch.setattr(files, "SERVICE_USER", "nobody")
    os.chown(home, 0, 0)  # like /var/lib
    run(home)
    nobody = Path("/etc/passwd").read_text().partition("\nnobody:x:")[2].partition(":")[0]
    assert set(owners(home).values()) == {int(nobody)}


@pytest.fixture
def spoilt(home):
    """Lock and journal belong to root, in a directory of the service's."""
    run(home)
    for path in owners(home):
        if (home / path).is_file():
            os.chown(home / path, 0, 0)
    return home


def test_a_lock_that_cannot_be_opened_is_not_one_that_is_held_and_says_what_to_do(spoilt):
    for attempt in (lambda: run(spoilt), lambda: restore(spoilt, if_stale=300.0), lambda: restore(spoilt)):
        with pytest.raises(StateError, match=r"state/lock: .*belongs to root.*chown -R 64501 ") as refused:
            as_user(SERVICE, attempt)
        assert not isinstance(refused.value, LockedError)
        assert refused.value.exit_code == 15


def test_a_directory_of_roots_is_named_as_such(home):
    for path in (home / "lib", home / "lib" / "state"):
        path.mkdir(mode=0o700)
    with pytest.raises(StateError, match="/lib belongs to root"):
        as_user(SERVICE, lambda: run(home))


def findings(home, uid=0):
    found = as_user(uid, lambda: examine(ModelSlurm(VirtualClock()).reader(), config(home), VirtualClock()))
    return [item for item in found if item.subject == "state"]


def test_doctor_names_files_that_the_service_cannot_use_with_the_remedy(spoilt):
    for uid in (0, SERVICE):
        state, mirror = findings(spoilt, uid)
        assert state.severity is mirror.severity is Severity.ERROR
        assert "lock" in state.cause
        assert "journal.jsonl" in state.cause
        assert state.remedy == f"chown -R {SERVICE} {spoilt}/lib/state"
    run(spoilt, dry_run=True)
    for name in ("lib/state", "run/mirror"):
        for path in (spoilt / name).iterdir():
            os.chown(path, SERVICE, SERVICE)
    (good,) = findings(spoilt)
    assert good.severity is Severity.OK


def test_doctor_tells_somebody_else_that_they_cannot_see_the_state(home):
    (missing,) = findings(home)
    assert missing.severity is Severity.OK, "nothing is wrong with directories that do not exist yet"
    run(home)
    found = findings(home, ADMIN)
    assert {item.severity for item in found} == {Severity.WARNING}
    assert "as root or as the user" in found[0].remedy


def test_doctor_says_where_the_units_user_would_find_directories_of_roots(home, monkeypatch):
    run(home)
    os.chown(home / "lib" / "state", 0, 0)
    monkeypatch.setattr(files, "SERVICE_USER", "nobody")
    state = findings(home)[0]
    assert state.severity is Severity.WARNING
    assert state.remedy == f"chown -R nobody: {home}/lib/state"


def test_the_journal_of_a_dry_run_is_read_anew_and_never_written(home):
    run(home)
    state, mirror = home / "lib" / "state", home / "run" / "mirror"
    looked = Journal.look(state, mirror)
    assert len(looked.entries) == 3
    before = (state / "journal.jsonl").read_bytes()
    looked.update((), [2])
    assert len(looked.entries) == 2
    looked.look_again()
    assert len(looked.entries) == 3
    assert (state / "journal.jsonl").read_bytes() == before
    assert holder(state) is None


COMMANDS = (
    ("doctor",),
    ("plan",),
    ("run", "--once"),
    ("run", "--dry-run", "--once"),
    ("restore",),
    ("restore", "7"),
    ("restore", "--if-stale", "300"),
    ("explain", "7"),
    ("explain", "7", "--fresh"),
    ("when", "7"),
    ("when", "--time", "1:00:00"),
    ("report",),
)


def told(uid, *arguments):
    """Exit code and all that a command says to this user."""
    code, out, err = typed_as(uid, *arguments)
    return code, out + err


@pytest.fixture
def site(home):
    """A configuration of everybody's, and the state directory of the service."""
    run(home)
    path = home / "config.toml"
    path.write_text(f'[state]\ndirectory = "{config(home).state.directory}"\nmirror = ""\n')
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_another_user_is_told_as_whom_to_run_a_command_and_nothing_else(site, command):
    code, said = told(ADMIN, command[0], "--config", site, *command[1:])
    assert code == 15
    (line,) = said.splitlines()
    assert f"run it as {SERVICE} (as root: `runuser -u {SERVICE} -- rltuned {command[0]}" in line
    for wrong in ("chown", "delete", "systemctl", "sacctmgr"):
        assert wrong not in line


def test_a_configuration_that_another_user_may_not_read_says_so_too(site, monkeypatch):
    site.chmod(0o600)
    monkeypatch.setattr(files, "SERVICE_USER", "nobody")
    monkeypatch.setattr(common, "DEFAULT_PATH", site)
    code, said = told(ADMIN, "doctor")
    assert (code, "runuser -u nobody -- rltuned doctor" in said) == (3, True), said


def test_its_own_user_and_root_may(site):
    for uid in (SERVICE, 0):
        assert "runuser" not in told(uid, "doctor", "--config", site)[1]


def test_roots_doctor_looks_at_the_privilege_of_the_daemons_user(site):
    slurm = StandIn(site.parent / "slurm")
    site.write_text(site.read_text() + f'[slurm]\nbin_dir = "{slurm.bin_dir}"\n')

    def found():
        findings = json.loads(told(0, "doctor", "--config", site, "--json")[1])
        return [(one["severity"], one["cause"]) for one in findings if one["subject"] == "privilege"]

    ((severity, cause),) = found()
    assert severity == "error"
    assert f"{SERVICE} may not change" in cause
    slurm.answer("privilege", f"{SERVICE}|Operator\n")
    assert found() == [("ok", f"{SERVICE} is operator")]

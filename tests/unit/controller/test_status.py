"""`rltuned status`: one screen from the files of the state directory."""

import json

import pytest
from unit.controller.model_slurm import VirtualClock
from unit.controller.test_loop import house

from rltuned.cli.main import main
from rltuned.controller.give_back import pause
from rltuned.controller.health.clock import Moment
from rltuned.controller.health.lock import Lock
from rltuned.controller.write.journal import FILE_NAME as JOURNAL
from rltuned.core.config import Stage
from rltuned.core.errors import ExitCode


@pytest.fixture
def screen(tmp_path, capsys, monkeypatch):
    """What the command prints, by this clock."""
    config = tmp_path / "config.toml"
    config.write_text(
        '[cycle]\nstage = "active"\ninterval = 60\n[policy]\nname = "sjf"\n'
        f'[state]\ndirectory = "{tmp_path / "state"}"\nmirror = "{tmp_path / "mirror"}"\n'
    )

    def printed(clock, *words, code=0):
        monkeypatch.setattr("rltuned.controller.health.clock.SystemClock", lambda: clock)
        with pytest.raises(SystemExit) as end:
            main(["status", *words, "--config", str(config)])
        said = capsys.readouterr()
        assert (end.value.code, said.err) == (code, ""), said.out
        return said.out if words else {line[:10].strip(): line[11:] for line in said.out.splitlines()}

    return printed


def test_where_there_is_nothing_yet_it_says_what_to_do_next(screen):
    said = screen(VirtualClock(), code=ExitCode.STOPPED)
    assert said["stage"] == "active is configured"
    assert said["last cycle"].endswith("one comes soon after a start, else ask `rltuned doctor`")
    assert said["daemon"] == "not running: systemctl start rltuned"
    assert (said["raised"], said["paused"]) == ("-", "no")
    assert json.loads(screen(VirtualClock(), "--json", code=ExitCode.STOPPED)) == {
        "configured_stage": "active",
        "daemon": None,
        "last_cycle": None,
        "raised": None,
        "lent": {"gpu_seconds": 0.0, "loans": 0, "share": None},
        "paused": "",
        "alarms": [],
    }


def test_it_says_stage_daemon_last_cycle_what_is_in_force_and_what_was_lent(screen, tmp_path):
    run = house(tmp_path)
    with Lock.acquire(tmp_path / "state", "run", run.slurm.clock.time()):
        run.ticks(3)
        run.slurm.start(12)
        run.ticks(3)
        said, told = screen(run.slurm.clock), json.loads(screen(run.slurm.clock, "--json"))
    assert said["stage"] == "active"
    assert said["daemon"].startswith("rltuned run, process ")
    assert said["last cycle"].startswith("60 s ago, done: 11 pending, 11 managed, 10 raised, 10 in force; ")
    assert said["raised"] == "10 jobs wanted, 10 in force"
    assert told["raised"] == {"wanted": 10, "in_force": 10}
    assert told["lent"]["loans"] > 0
    assert told["lent"]["gpu_seconds"] > 0
    assert f"{told['lent']['loans']} loans of the last 24 hours; a job may lend 0.1 of its wait" in said["lent"]
    assert told["lent"]["share"] == 0.1
    assert told["last_cycle"]["sentence"] in said["last cycle"]
    assert told["daemon"]["purpose"] == "run"
    assert said["alarms"].startswith("none")
    run.slurm.clock.sleep(90_000.0)
    told = json.loads(screen(run.slurm.clock, "--json", code=ExitCode.STOPPED))
    assert told["lent"]["loans"] == 0, "of another day"


def test_while_restore_holds_the_lock_no_daemon_runs(screen, tmp_path):
    with Lock.acquire(tmp_path / "state", "restore", 1_000_000.0):
        assert screen(VirtualClock(), code=ExitCode.STOPPED)["daemon"].startswith("rltuned restore, process ")


def test_a_daemon_whose_lock_says_nothing_since_the_disk_was_full_runs_all_the_same(screen, tmp_path):
    with Lock.acquire(tmp_path / "state", "run", 1_000_000.0):
        next(path for path in (tmp_path / "state").iterdir() if "lock" in path.name).write_text("")
        assert screen(VirtualClock())["daemon"].startswith("rltuned ?, process ")


def test_a_pause_shows_at_once_and_why_the_configured_stage_is_not_in_force_from_the_next_cycle_on(screen, tmp_path):
    run = house(tmp_path)
    run.tick()
    pause.ask(tmp_path / "state", Moment.of(run.slurm.clock), None)
    said = screen(run.slurm.clock, code=ExitCode.STOPPED)
    assert (said["stage"], said["paused"]) == ("active", "paused until `rltuned resume`")
    run.ticks(2)
    said = screen(run.slurm.clock, code=ExitCode.STOPPED)
    assert said["stage"] == f"{Stage.SHADOW}: active is configured, but paused until `rltuned resume`"
    assert said["raised"] == "11 jobs wanted, 0 in force"


def test_what_doctor_would_name_from_the_files_is_an_alarm_and_an_error_ends_with_10(screen, tmp_path):
    run = house(tmp_path)
    run.tick()
    run.slurm.clock.sleep(5000.0)
    with Lock.acquire(tmp_path / "state", "run", run.slurm.clock.time()):
        said = screen(run.slurm.clock)
    assert "heartbeat" in said["daemon"]
    assert said["alarms"] == ""
    run.daemon.stop()
    for copy in ("state", "mirror"):
        (tmp_path / copy / JOURNAL).unlink()
        (tmp_path / copy / JOURNAL).mkdir()
    alarms = json.loads(screen(run.slurm.clock, "--json", code=ExitCode.FINDINGS))["alarms"]
    assert [(item["severity"], item["subject"]) for item in alarms] == [("error", "journal")]

"""`rltuned pause` and `resume`: what a daemon makes of them, whatever happens to it, to the file and to clocks."""

import json
import os
from dataclasses import asdict, replace

import pytest
from unit.controller.support import as_user
from unit.controller.test_loop import again, house
from unit.decide.test_explain import printed

from rltuned.cli.main import main
from rltuned.controller.give_back import pause
from rltuned.controller.health import clock as clocks
from rltuned.controller.health.clock import Moment, SystemClock
from rltuned.controller.health.lock import Lock
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.tell.states import CycleOutcome
from rltuned.core.config import Stage
from rltuned.core.errors import RltunedError
from rltuned.decide.explain import explain
from rltuned.records.decisions import load

HOUR = 3600.0


def now(run):
    return Moment.of(run.slurm.clock)


def paused(run, seconds=None):
    pause.ask(run.daemon.config.state.directory, now(run), seconds)


def resumed(run):
    return pause.end(run.daemon.config.state.directory)


def explained(run, job):
    """What ``rltuned explain`` prints, without the table of features."""
    answer = explain(load(run.daemon.config.state.directory), job)
    return printed(replace(answer, features=(), terms=())).strip()


def test_paused_it_gives_everything_back_goes_on_planning_and_says_so_until_it_is_resumed(tmp_path):
    run = house(tmp_path)
    run.tick()
    assert not run.untouched()
    paused(run)
    report = run.tick()
    assert (report.outcome, report.stage, report.restored) == (CycleOutcome.DONE, Stage.SHADOW, 11)
    assert report.acted
    assert run.untouched()
    assert run.tick().sentence.endswith("11 changes not written: stage shadow (paused until `rltuned resume`)")
    assert all("paused until" in line["sentence"] for line in run.events("job.given_back"))
    assert explained(run, 12).endswith("Stage 'shadow' (paused until `rltuned resume`): nothing was written to Slurm.")
    assert run.metric("rltuned_paused") == 1
    assert run.examine()[0].cause.startswith(
        "stage shadow (nothing is written to Slurm); active is configured, but paused until `rltuned resume`; the last"
    )
    updates = run.slurm.updates
    run.ticks(5)
    assert run.slurm.updates == updates
    assert resumed(run)
    assert not resumed(run), "there is nothing to end any more"
    assert run.tick().stage is Stage.ACTIVE
    assert run.slurm.order() == list(range(12, 0, -1))
    assert run.metric("rltuned_paused") == 0


def test_what_backfill_undid_is_not_written_again_while_it_is_paused(tmp_path):
    run = house(tmp_path)
    run.tick()
    paused(run)
    run.tick()
    updates = run.slurm.updates
    run.daemon.look_again()
    assert run.slurm.updates == updates


def test_a_restart_keeps_the_pause_and_the_time_that_is_left_of_it(tmp_path):
    run = house(tmp_path)
    paused(run, 2 * HOUR)
    run.tick()
    run.daemon.stop()
    run.slurm.clock.sleep(HOUR)
    run = again(tmp_path, run.slurm)
    assert run.tick().stage is Stage.SHADOW
    run.slurm.clock.sleep(HOUR)
    assert run.tick().stage is Stage.ACTIVE
    assert not (tmp_path / "state" / pause.FILE_NAME).exists(), "no clock brings it back"


@pytest.mark.parametrize("jump", [-1e6, -HOUR, HOUR, 1e6])
@pytest.mark.parametrize("boot", ["", "one"])
def test_no_wall_clock_that_is_set_ends_a_pause_or_makes_it_longer(tmp_path, monkeypatch, jump, boot):
    (tmp_path / "boot").write_text(boot)
    monkeypatch.setattr(clocks, "BOOT_ID", tmp_path / "boot")
    run = house(tmp_path)
    paused(run, 2 * HOUR)
    run.slurm.clock.set(jump)
    run.slurm.clock.sleep(2 * HOUR - 60.0)
    assert run.tick().stage is Stage.SHADOW
    assert run.tick().stage is Stage.ACTIVE


@pytest.mark.parametrize(("jump", "lasts"), [(0.0, True), (-HOUR / 2, True), (HOUR, False), (-1e6, False)])
def test_of_a_machine_that_was_started_anew_the_wall_clock_tells_in_both_directions(tmp_path, monkeypatch, jump, lasts):
    (tmp_path / "boot").write_text("one")
    monkeypatch.setattr(clocks, "BOOT_ID", tmp_path / "boot")
    run = house(tmp_path)
    paused(run, HOUR)
    (tmp_path / "boot").write_text("two")
    run.slurm.clock.set(jump)
    assert (run.tick().stage is Stage.SHADOW) is lasts
    run.slurm.clock.sleep(2 * HOUR)
    assert run.tick().stage is Stage.ACTIVE, "twice as long at most"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"seconds": 60}',
        '{"began": {}, "seconds": null}',
        '{"began": 1, "seconds": null}',
        '{"began": BEGAN, "seconds": "for ever"}',
        '{"began": BEGAN, "seconds": -1}',
        '{"began": BEGAN, "seconds": 1e300}',
        '{"began": BEGAN, "seconds": 1e999}',
        '{"began": LATE, "seconds": 60}',
    ],
)
def test_a_file_that_cannot_be_understood_pauses_and_is_named_until_it_is_removed(tmp_path, content):
    run = house(tmp_path)
    path = tmp_path / "state" / pause.FILE_NAME
    began = asdict(now(run))
    late = began | {"time": 1e18, "monotonic": 1e18}
    path.write_text(content.replace("BEGAN", json.dumps(began)).replace("LATE", json.dumps(late)))
    report = run.tick()
    assert report.stage is Stage.SHADOW
    assert f"paused, because {path}: cannot be used: " in report.sentence
    (finding,) = (item for item in run.examine() if item.subject == "paused")
    assert (finding.severity, finding.remedy) == (Severity.WARNING, "rltuned resume")
    resumed(run)
    assert run.tick().stage is Stage.ACTIVE


def test_doctor_names_a_pause_and_warns_of_one_that_lasts_for_more_than_a_day(tmp_path):
    run = house(tmp_path)
    assert not [item for item in run.examine() if item.subject == "paused"]
    paused(run)
    for severity in (Severity.NOTE, Severity.WARNING):
        (finding,) = (item for item in run.examine() if item.subject == "paused")
        assert (finding.severity, finding.remedy) == (severity, "rltuned resume")
        run.slurm.clock.sleep(25 * HOUR)
    assert "paused" in run.examine()[0].cause.rpartition("look at: ")[2]


def test_what_stands_against_writing_in_a_dry_run_is_that_and_the_pause_is_not_tidied_up(tmp_path):
    run = house(tmp_path, dry_run=True)
    paused(run, 60.0)
    assert "dry run" in run.tick().sentence
    run.tick()
    assert (tmp_path / "state" / pause.FILE_NAME).exists(), "a daemon beside it may need it"


def test_the_dead_man_gives_back_what_a_paused_daemon_could_not(tmp_path):
    run = house(tmp_path)
    run.tick()
    paused(run)
    run.slurm.clock.sleep(10 * HOUR)  # it hangs
    run.restore(if_stale=300.0)
    assert run.untouched()


def test_a_pause_that_cannot_be_asked_for_or_ended_names_the_file_and_the_remedy(tmp_path):
    run = house(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RltunedError, match="run as root or as the daemon's user"):
        pause.ask(blocked / "state", now(run), None)
    (tmp_path / "state" / pause.FILE_NAME).mkdir()
    with pytest.raises(RltunedError, match=rf"{pause.FILE_NAME}: the pause cannot be ended"):
        resumed(run)
    assert run.tick().stage is Stage.SHADOW, "what cannot be read is a pause"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path):
    run = house(tmp_path)
    other = tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / "state" / pause.FILE_NAME).symlink_to(other)
    paused(run)
    assert other.read_text() == "theirs"
    resumed(run)
    assert other.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_root_leaves_belongs_to_the_daemons_user_and_is_nobody_elses_to_read(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 12_345, 12_345)
    for place in (tmp_path, *tmp_path.parents[:3]):
        place.chmod(place.stat().st_mode | 0o011)
    moment = Moment(1.0, 1.0, "here", "")
    pause.ask(state, moment, None)
    found = (state / pause.FILE_NAME).stat()
    assert (found.st_uid, found.st_mode & 0o007) == (12_345, 0)
    assert as_user(12_345, lambda: pause.asked(state, replace(moment, monotonic=2.0), tidy=True)).seconds is None
    assert as_user(12_345, lambda: pause.end(state))


# --- the commands


@pytest.fixture
def command(tmp_path, capsys):
    """Exit code, and what is said."""
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndirectory = "{tmp_path / "state"}"\nmirror = ""\n')

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([*words, "--config", str(config)])
        said = capsys.readouterr()
        return end.value.code, said.out + said.err

    return run


def test_the_commands_pause_and_resume_say_what_happens_next_with_a_daemon_and_without(command, tmp_path):
    state = tmp_path / "state"
    code, said = command("pause")
    assert (code, said.splitlines()[0]) == (0, "rltuned is paused until `rltuned resume`.")
    assert "No daemon runs" in said
    with Lock.acquire(state, "run", 0.0):
        code, said = command("pause", "--for", "1.5h")
    assert code == 0
    assert "From its next cycle on the daemon gives everything back" in said
    assert pause.asked(state, Moment.of(SystemClock())).seconds == 1.5 * HOUR, "the later one counts"
    assert command("resume") == (0, "The pause has ended; the next cycle goes on.\n")
    assert command("resume") == (0, "Nothing was paused.\n")


@pytest.mark.parametrize("text", ["0m", "2", "h", "-1h", "1e3h", "99999999d", "9" * 400 + "d", "2h30m", "until noon"])
def test_a_duration_that_is_none_is_refused_and_nothing_is_paused(command, tmp_path, text):
    code, said = command("pause", f"--for={text}")
    assert code == 2
    assert "write 5m, 2h or 3d" in said
    assert not (tmp_path / "state").exists()

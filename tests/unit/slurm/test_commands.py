"""The registry: what rltuned can ask of Slurm at all."""

import re
from pathlib import Path

import pytest

from rltuned.core.errors import SlurmError
from rltuned.slurm.commands import (
    ENDED_FIELDS,
    JOB_FIELDS,
    REGISTRY,
    SEPARATOR,
    STATUS_FIELDS,
    TRACE_FIELDS,
    WAITING_NAMES,
    environment,
)

BIN = Path("/opt/slurm/bin")
WRITTEN_BY_USERS = {
    *("name", "jobname", "comment", "admincomment", "admin_comment", "system_comment", "extra", "command", "workdir"),
    *("stdin", "stdout", "stderr", "wckey", "licenses", "network", "container", "mcslabel", "burstbuffer"),
}
DAY = ("--starttime=2026-01-01T00:00:00", "--endtime=2026-01-02T00:00:00")
USER_LETTERS = {"j", "k", "o", "Z", "w", "all"}


NAMES = {"waiting-names", "ended-names"}  # read where the site asks for it, see test_job_names
DRAWN = "w" + "5" * 64


def test_no_column_that_users_write_freely_is_ever_asked_for_but_names_in_commands_of_their_own():
    asked = {field.lower() for field in (*JOB_FIELDS, *STATUS_FIELDS, *ENDED_FIELDS, *TRACE_FIELDS)}
    for command in (command for name, command in REGISTRY.items() if name not in NAMES):
        for word in command.arguments:
            asked.update(part.partition(":")[0].lower() for part in word.split(",") if SEPARATOR in word)
            asked.update(word.removeprefix("--format=").lower().split(","))
            assert not set(re.findall(r"%([A-Za-z])", word)) & USER_LETTERS
    assert not asked & WRITTEN_BY_USERS


def test_what_has_text_of_users_is_separated_by_a_word_of_the_call_and_never_said():
    assert {name for name, command in REGISTRY.items() if command.private} == NAMES
    for name in NAMES:
        assert SEPARATOR not in "".join(REGISTRY[name].arguments)
    format_of = "--format=%F{0}%V{0}%u{0}%j{0}%Z{0}"
    assert REGISTRY["waiting-names"].argv(BIN, "--jobs=7,8", format_of.format(DRAWN))[-2:] == [
        "--jobs=7,8",
        format_of.format(DRAWN),
    ]
    for drawn in (DRAWN[:-1], "", "|", SEPARATOR, "w" + "g" * 64):
        with pytest.raises(SlurmError, match="refusing the argument"):
            REGISTRY["waiting-names"].argv(BIN, "--jobs=7", format_of.format(drawn))
        with pytest.raises(SlurmError, match="refusing the argument"):
            REGISTRY["ended-names"].argv(BIN, *DAY, f"--delimiter={drawn}")
    two = format_of.format(DRAWN).replace(f"%j{DRAWN}", f"%jw{'6' * 64}")
    with pytest.raises(SlurmError, match="refusing the argument"):
        REGISTRY["waiting-names"].argv(BIN, "--jobs=7", two)


def test_job_records_of_scontrol_which_hold_user_text_are_never_asked_for():
    assert all("job" not in " ".join(command.arguments).lower().split() for command in REGISTRY.values())


def test_programs_are_run_by_absolute_path():
    words = {"privilege": ("user=rltuned",), "history": DAY, "trace": DAY, "events": ("Start=2026-01-01T00:00:00",)}
    words["waiting-names"] = "--jobs=7", f"--format={''.join(column + DRAWN for column in WAITING_NAMES)}"
    words["ended-names"] = (*DAY, f"--delimiter={DRAWN}")
    for command in REGISTRY.values():
        assert command.argv(BIN, *words.get(command.name, ()))[0] == f"/opt/slurm/bin/{command.program}"


def test_only_one_command_can_change_anything_and_it_is_scontrol_with_lines_on_standard_input():
    writers = [command for command in REGISTRY.values() if command.writes]
    assert [(command.program, command.arguments) for command in writers] == [("scontrol", ())]


def test_no_reading_command_has_a_word_that_changes_slurm():
    words = {word for command in REGISTRY.values() if not command.writes for word in command.arguments}
    assert not words & {"update", "hold", "release", "requeue", "cancel", "suspend", "create", "delete", "reconfigure"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *(("privilege", [f"user={name}"]) for name in ("a b", "", "-x", "a\nb", "a;b", "a" * 80)),
        ("privilege", ["where"]),
        *(
            ("history", ["--starttime=2026-01-01T00:00:00", word])
            for word in ("--endtime=now", "--endtime=", "--endtime=2026-01-01T00:00:00 -o JobName", "--user=x")
        ),
    ],
)
def test_a_variable_word_must_fit_its_pattern(command, words):
    with pytest.raises(SlurmError, match="refusing the argument"):
        REGISTRY[command].argv(BIN, *words)


@pytest.mark.parametrize(
    ("command", "takes", "words"), [("ping", 0, ["user=x"]), ("privilege", 1, []), ("history", 2, ["--starttime=x"])]
)
def test_a_command_takes_exactly_the_words_that_it_declares(command, takes, words):
    with pytest.raises(SlurmError, match=f"takes {takes} variable words, not {len(words)}"):
        REGISTRY[command].argv(BIN, *words)


def test_the_environment_is_pinned_and_holds_nothing_of_the_callers(monkeypatch):
    monkeypatch.setenv("SQUEUE_FORMAT", "%j")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    pinned = environment(Path("/etc/slurm/slurm.conf"))
    assert pinned["SLURM_TIME_FORMAT"] == "%s"
    assert pinned["LC_ALL"] == "C"
    assert pinned["SLURM_BITSTR_LEN"] == "0", "any other number cuts the tasks of an array"
    assert pinned["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert set(pinned) == {"SLURM_TIME_FORMAT", "LC_ALL", "TZ", "SLURM_BITSTR_LEN", "SLURM_CONF"}
    assert "SLURM_CONF" not in environment(None)

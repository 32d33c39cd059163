"""Running one command: what hangs, floods, dies or lies must not take the daemon with it."""

import os
import time
from pathlib import Path

import pytest

from rltuned.core.errors import SlurmDeniedError, SlurmError, SlurmParseError, SlurmUnavailableError
from rltuned.slurm.commands import CUT
from rltuned.slurm.process import LINE_LIMIT, one_line


def gone(process):
    """Whether it ends soon."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_a_command_that_hangs_is_killed_with_its_grandchildren(slurm):
    pids = slurm.folder / "pids"
    slurm.script(
        "squeue",
        f"#!/bin/sh\necho $$ >> {pids}\nsh -c 'echo $$ >> {pids}; sleep 1000' &\necho $! >> {pids}\nsleep 1000\n",
    )
    with pytest.raises(SlurmUnavailableError, match=r"squeue \(jobs\) gave no complete answer within 1.5 s; killed"):
        slurm.runner(timeout=1.5).run("jobs")
    started = {int(line) for line in pids.read_text().split()}
    assert len(started) >= 2
    assert all(gone(pid) for pid in started)


@pytest.mark.parametrize("script", ["sleep 1000 &\necho $! > {}\nexit 0", "echo $$ > {}\nexec >&- 2>&-\nsleep 1000"])
def test_a_grandchild_that_keeps_the_output_open_and_who_closes_it_without_ending_are_killed(slurm, script):
    pid = slurm.folder / "pid"
    slurm.script("squeue", f"#!/bin/sh\n{script.format(pid)}\n")
    with pytest.raises(SlurmUnavailableError, match="killed"):
        slurm.runner(timeout=1.5).run("jobs")
    assert gone(int(pid.read_text()))


@pytest.mark.parametrize("rows", [3, 400])
def test_of_lines_as_long_as_a_user_likes_the_rest_is_left_out_and_all_rows_are_there(slurm, rows):
    long = "b" * 200_000
    text = "".join(f"{number}{long}\n{number}b\n" for number in range(rows)) + "é" * 16_000 + "\nend"
    (slurm.folder / "text").write_text(text)
    slurm.script("squeue", f"#!/bin/sh\ncat {slurm.folder}/text\n")
    lines = slurm.runner(output_limit=2 * 1024 * 1024).ask("jobs").split("\n")
    assert [line.strip("b" + CUT) for line in lines[: 2 * rows]] == [str(n) for n in range(rows) for _ in range(2)]
    assert all(line.endswith(CUT) and len(line) <= LINE_LIMIT + 1 for line in lines[: 2 * rows : 2])
    assert lines[1 : 2 * rows : 2] == [f"{number}b" for number in range(rows)]
    assert (lines[-2].startswith("ééé"), lines[-2] == "é" * 16_000, lines[-1]) == (True, rows == 3, "end")
    slurm.script("scontrol", f"#!/bin/sh\nhead -c 500000 {slurm.folder}/text\n")
    assert slurm.runner().ask("nodes") == text[:500_000], "no user writes what scontrol says of nodes"


def test_of_rows_that_are_the_same_one_after_the_other_the_first_is_kept(slurm):
    rows = [*["a"] * 600_000, *["b" * 20_000] * 60, "c", "a", "a", "", "", "d", "d"]
    (slurm.folder / "text").write_text("\n".join(rows))
    slurm.script("squeue", f"#!/bin/sh\ncat {slurm.folder}/text\n")
    lines = slurm.runner(output_limit=1_000_000).ask("jobs").split("\n")
    assert [line[:1] for line in lines] == ["a", "b", "c", "a", "", "d", "d"], "the last has no end yet"


def test_a_slow_command_that_ends_in_time_is_an_answer(slurm):
    slurm.script("squeue", "#!/bin/sh\nprintf a; sleep 0.3; printf b\n")
    assert slurm.runner(timeout=20).ask("jobs") == "ab"


def test_a_health_check_has_less_patience_than_a_write(slurm):
    slurm.script("scontrol", "#!/bin/sh\ncat >/dev/null; sleep 1.6; echo done\n")
    with pytest.raises(SlurmUnavailableError, match=r"within 1.5 s"):
        slurm.runner(timeout=6.0).run("ping")
    assert slurm.runner(timeout=6.0).run("update", stdin="x\n").stdout == "done\n"


def test_output_without_end_is_cut_and_the_command_killed(slurm):
    slurm.script("squeue", "#!/bin/sh\nseq 100000000\n")
    with pytest.raises(SlurmParseError, match="longer than 100000 bytes"):
        slurm.runner(output_limit=100_000).run("jobs")


def test_complaints_without_end_are_dropped_not_kept(slurm):
    slurm.script("squeue", "#!/bin/sh\nhead -c 9000000 /dev/zero >&2\necho fine\n")
    answer = slurm.runner().run("jobs")
    assert answer.stdout == "fine\n"
    assert len(answer.stderr) <= 4 * 1024 * 1024


def test_a_large_input_and_a_large_answer_arrive_whole_while_the_command_talks(slurm):
    slurm.script("scontrol", "#!/bin/sh\nexec cat\n")
    lines = "update JobId=1 Priority=1\n" * 120_000
    assert slurm.runner().run("update", stdin=lines).stdout == lines


def test_a_command_that_ends_without_reading_its_input_is_judged_by_its_exit_status(slurm):
    slurm.script("scontrol", "#!/bin/sh\nexec <&-\nexit 3\n")
    assert slurm.runner().run("update", stdin="x\n" * 400_000).code == 3


def test_only_writing_commands_take_input(slurm):
    with pytest.raises(SlurmError, match="takes no input"):
        slurm.runner().run("ping", stdin="update JobId=1 Priority=0\n")


def test_a_command_that_is_not_installed_names_the_remedy(slurm):
    (slurm.bin_dir / "squeue").unlink()
    with pytest.raises(SlurmUnavailableError, match=r"slurm\.bin_dir"):
        slurm.runner().run("jobs")


def test_a_command_killed_by_somebody_else_is_a_failure_even_with_a_good_answer(slurm):
    slurm.script("squeue", "#!/bin/sh\necho fine\nkill -9 $$\n")
    with pytest.raises(SlurmUnavailableError, match="signal 9"):
        slurm.runner().ask("jobs")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", SlurmUnavailableError),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", SlurmUnavailableError),
        ("slurm_load_jobs error: Access/permission denied", SlurmDeniedError),
        ("squeue: error: Invalid job format specification: Exclusive", SlurmParseError),
        ("squeue: unrecognized option '--local'", SlurmParseError),
        ("Segmentation fault", SlurmUnavailableError),
        ("", SlurmUnavailableError),
    ],
)
def test_exit_status_1_is_an_error_that_quotes_what_slurm_said(slurm, said, error):
    slurm.answer("jobs", "1\x1f\n", said + "\n", code=1)
    with pytest.raises(error) as caught:
        slurm.runner().ask("jobs")
    assert (said or "no message") in str(caught.value) or said in str(caught.value)
    assert "exit status 1" in str(caught.value) or said


def test_an_unknown_column_is_an_error_although_squeue_says_nothing_by_its_exit_status(slurm):
    slurm.answer("jobs", "1\x1f\n", "squeue: error: Invalid job format specification: mem-per-tres\n")
    with pytest.raises(SlurmParseError, match="does not know what rltuned asks for"):
        slurm.runner().ask("jobs")


def test_garbage_bytes_do_not_raise_and_terminal_escapes_never_reach_a_message(slurm):
    slurm.answer("jobs", b"\xff\xfe", b"\x1b[31mred\x07\xff\r\nnext \xe2\x80\xaeevil\n", code=1)
    with pytest.raises(SlurmUnavailableError) as caught:
        slurm.runner().ask("jobs")
    message = str(caught.value)
    assert "red" in message
    assert "evil" in message
    assert all(char.isprintable() for char in message)


def test_a_printable_text_is_one_bounded_line():
    assert one_line("a\nb\tc\x1b]0;t\x07") == "a·b·c·]0;t·"
    assert len(one_line("x" * 10_000)) <= 301


def test_the_command_sees_the_pinned_environment_only_and_no_terminal(slurm, monkeypatch):
    monkeypatch.setenv("SQUEUE_FORMAT", "%j")
    slurm.script("squeue", "#!/bin/sh\nexec /usr/bin/env\n")
    seen = dict(line.split("=", 1) for line in slurm.runner().ask("jobs").splitlines())
    assert {name for name in seen if name.startswith(("SLURM", "SQUEUE"))} == {"SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"}
    assert set(seen) <= {"SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "LC_ALL", "TZ", "PWD", "_", "SHLVL", "OLDPWD"}


def test_the_command_runs_in_a_session_of_its_own(slurm):
    slurm.script("squeue", "#!/bin/sh\ncut -d' ' -f6 /proc/$$/stat\n")
    assert int(slurm.runner().ask("jobs")) != os.getsid(0)


def test_no_descriptor_is_left_open_after_failures(slurm):
    slurm.script("squeue", "#!/bin/sh\nsleep 1000\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(SlurmUnavailableError):
            slurm.runner(timeout=0.1).run("jobs")
    assert len(list(Path("/proc/self/fd").iterdir())) == before

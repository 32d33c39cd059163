"""Progress of long work."""

from rltuned.core.workers.progress import ProgressLines, progress_bar


def test_nothing_is_printed_where_there_is_no_terminal(capfd, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress_bar() as report:
        for done in range(1, 4):
            report("training", done, 3)
    assert capfd.readouterr() == ("", "")


def test_a_log_gets_a_line_a_minute_with_what_is_left():
    now, lines = [0.0], []
    report = ProgressLines(lambda: now[0], lines.append)
    for step in range(41):
        now[0] = 5.0 * step
        report("simulating", 10 + step, 70)
    assert lines == [
        "rltuned: simulating: 22 of 70 after 1 min, about 4 min left",
        "rltuned: simulating: 34 of 70 after 2 min, about 3 min left",
        "rltuned: simulating: 46 of 70 after 3 min, about 2 min left",
    ]


def test_short_work_may_be_told_more_often_in_seconds():
    now, lines = [0.0], []
    report = ProgressLines(lambda: now[0], lines.append, every=10.0)
    for step in range(9):
        now[0] = 4.0 * step
        report("restoring jobs", 20 * step, 160)
    assert lines == [
        "rltuned: restoring jobs: 60 of 160 after 12 s, about 20 s left",
        "rltuned: restoring jobs: 120 of 160 after 24 s, about 8 s left",
    ]


def test_the_lines_are_what_is_used_where_there_is_no_terminal(capfd, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    now = iter([0.0, 0.0, 61.0])
    with progress_bar(lambda: next(now)) as report:
        report("simulating", 0, 2)
        report("simulating", 1, 2)
    assert capfd.readouterr().err == "rltuned: simulating: 1 of 2 after 1 min, about 1 min left\n"


def test_a_terminal_shows_each_stage_and_how_far_it_is(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as report:
        report("training", 3, 3)
    shown = capfd.readouterr().err
    assert "training" in shown
    assert "3/3" in shown

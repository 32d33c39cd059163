"""Progress of long work."""

from rltuned.workers.progress import progress_bar


def test_nothing_is_printed_where_there_is_no_terminal(capfd, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress_bar() as report:
        for done in range(1, 4):
            report("training", done, 3)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_each_stage_and_how_far_it_is(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as report:
        report("training", 3, 3)
    shown = capfd.readouterr().err
    assert "training" in shown
    assert "3/3" in shown

"""What accounts have borrowed is kept: over cycles, restarts and bad files, and never by a dry run."""

import json

import pytest
from unit.daemon.model_slurm import ModelSlurm, VirtualClock
from unit.daemon.test_loop import again

from rltuned.cluster.borrowed import NOTHING
from rltuned.config import DecideSection, Stage
from rltuned.daemon.checks import Severity, examine
from rltuned.daemon.debts import FILE_NAME, read_debts
from rltuned.decide.borrowing import budget_of
from rltuned.errors import RltunedError

TEN_MINUTES = 600.0


def flooded(directory, **values):
    """One long job of "physics" at the front, then four jobs of ten minutes of "flood", which may borrow two."""
    slurm = ModelSlurm(VirtualClock())
    slurm.submit(1000, account="physics", time_limit=86_400.0)
    for number in range(4):
        slurm.submit(900 - number, account="flood", time_limit=TEN_MINUTES)
    share = 2.5 * TEN_MINUTES / budget_of(slurm.reader().snapshot(slurm.clock.time()), 1.0)
    return again(directory, slurm, decide=DecideSection(borrow=share, hysteresis=0), **values)


def borrowed(directory, **values):
    """Two of the account's jobs have started."""
    run = flooded(directory, **values)
    run.tick()
    for job in (2, 3):
        run.slurm.start(job)
    return run


def test_an_account_that_floods_the_queue_passes_others_only_as_long_as_it_can_pay(tmp_path):
    run = flooded(tmp_path)
    run.tick()
    assert run.slurm.order() == [2, 3, 1, 4, 5]
    for job in (2, 3):
        run.slurm.start(job)
    run.tick()
    assert run.slurm.order() == [1, 4, 5], "two have started, and the account has nothing left"
    assert read_debts(tmp_path / "state")[0].owed == pytest.approx({"flood": 2 * TEN_MINUTES}, rel=1e-3)
    assert run.metric("rltuned_borrowed_budget_ratio") == pytest.approx(0.8, rel=1e-3)


def test_a_restart_forgets_no_debt_and_a_week_half_of_it(tmp_path):
    run = borrowed(tmp_path)
    run.tick()
    run = again(tmp_path, run.slurm, decide=run.daemon.config.decide)
    run.tick()
    assert run.slurm.order() == [1, 4, 5]
    for job in (2, 3):
        del run.slurm.jobs[job]
    run.slurm.clock.sleep(7 * 86_400.0)
    run.ticks(2)
    assert run.slurm.order() == [4, 1, 5]


@pytest.mark.parametrize("values", [{"dry_run": True}, {"stage": Stage.SHADOW}])
def test_where_nothing_is_written_nobody_borrows(tmp_path, values):
    run = borrowed(tmp_path, **values)
    assert run.tick().planned > 0
    assert read_debts(tmp_path / "state")[0] == NOTHING


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"time": 1}', '{"time": 1, "owed": {"a": "x"}, "raised": {}, "running": {}}']
)
def test_a_file_that_cannot_be_used_is_named_and_the_daemon_goes_on_without_debts(tmp_path, text):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE_NAME).write_text(text)
    with pytest.raises(RltunedError, match=r"borrowed\.json: cannot be used.*delete it"):
        read_debts(tmp_path / "state")
    run = flooded(tmp_path)
    assert run.events("debts.lost")
    assert run.tick().planned > 0
    assert json.loads((tmp_path / "state" / FILE_NAME).read_text())["raised"]


def test_where_nobody_has_borrowed_there_is_nothing(tmp_path):
    assert read_debts(tmp_path / "state")[0] == NOTHING


def finding(run):
    config = run.daemon.config
    (found,) = [
        item for item in examine(run.slurm.reader(), config, run.slurm.clock) if item.subject == "borrowed service"
    ]
    return found


def test_doctor_names_who_has_borrowed_most_and_how_many_have_used_up_their_budget(tmp_path):
    run = flooded(tmp_path)
    assert finding(run).cause == "no account has borrowed any of its 0.4 GPU-hours"
    run.tick()
    for job in (2, 3):
        run.slurm.start(job)
    run.tick()
    assert finding(run).cause == "of 0.4 GPU-hours each, 1 accounts have borrowed some (flood 0.3) and 0 all"
    (tmp_path / "state" / FILE_NAME).write_text("{")
    assert (finding(run).severity, "cannot be used" in finding(run).cause) == (Severity.WARNING, True)

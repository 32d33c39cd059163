"""The file of loans: kept over cycles and restarts, on disk before a job is raised, and lost to the safe side."""

import json

import pytest
from unit.controller.model_slurm import WAITED, ModelSlurm, VirtualClock
from unit.controller.support import planned
from unit.controller.test_loop import Deaf, again, house

from rltuned.controller.cycle.lending import FILE_NAME, read_book
from rltuned.controller.health.prerequisites import Severity
from rltuned.core.changes import Outcome
from rltuned.core.config import LendSection, Stage
from rltuned.core.errors import RltunedError, SlurmUnavailableError
from rltuned.decide.loans import UNTOLD

CHARGED = 1500.0
"""Seconds that each borrower is charged for: its limit."""
LENDABLE = 0.1 * WAITED
"""GPU-seconds that job 1 may lend: two borrowers' worth."""


def flooded(directory, **values):
    """A long job of Ann's at the front, then four shorter ones of another user, who wants them first."""
    slurm = ModelSlurm(VirtualClock())
    slurm.submit(1000, user="ann", time_limit=86_400.0)
    for number in range(4):
        slurm.submit(900 - number, user="flood", time_limit=CHARGED)
    return again(directory, slurm, **values)


def borrowed(directory, **values):
    """Two have started ahead of Ann's job."""
    run = flooded(directory, **values)
    run.tick()
    for job in (2, 3):
        run.slurm.start(job)
    run.tick()
    return run


def on_disk(directory):
    return read_book(directory / "state")[0]


def lent(run, directory, job=1):
    """GPU-seconds that the job has lent, by the file."""
    jobs = run.slurm.reader().snapshot(run.slurm.clock.time()).jobs
    return float(on_disk(directory).lent(jobs, jobs.pending)[jobs.pending.tolist().index(jobs.row_of[job])])


def test_a_job_is_passed_until_it_has_lent_its_part_and_by_nobody_then(tmp_path):
    run = flooded(tmp_path)
    run.tick()
    assert run.slurm.order() == [2, 3, 1, 4, 5], "a third one would have to borrow more than the job may lend"
    for job in (2, 3):
        run.slurm.start(job)
    run.ticks(3)
    assert run.slurm.order() == [1, 4, 5]
    assert lent(run, tmp_path) == 2 * CHARGED
    assert run.metric("rltuned_lent_gpu_seconds") == 2 * CHARGED
    assert run.metric("rltuned_open_loans") == 2
    run.slurm.clock.sleep(2 * 3600.0)
    run.tick()
    assert lent(run, tmp_path) > 2 * 7200.0, "what runs longer than it was charged for is lent, too"


def test_a_restart_forgets_no_loan_and_what_has_waited_longer_may_lend_more(tmp_path):
    run = borrowed(tmp_path)
    run = again(tmp_path, run.slurm)
    run.tick()
    assert not run.events("loans.lost")
    assert run.slurm.order() == [1, 4, 5]
    for job in (2, 3):
        run.slurm.leave(job)
    run.tick()
    run.slurm.clock.sleep(UNTOLD)
    run.ticks(2)
    assert lent(run, tmp_path) < 2 * CHARGED, "nothing was told of the two: they used what the readings showed"
    assert run.slurm.order() == [4, 5, 1]


@pytest.mark.parametrize("values", [{"dry_run": True}, {"stage": Stage.SHADOW}])
def test_where_nothing_is_written_nobody_borrows(tmp_path, values):
    run = borrowed(tmp_path, **values)
    assert planned(run.tick()) > 0
    assert run.metric("rltuned_open_loans") == 0
    if "dry_run" in values:
        assert not (tmp_path / "state" / FILE_NAME).exists()
    else:
        assert (on_disk(tmp_path).offers, on_disk(tmp_path).loans) == ({}, {})


def test_a_dry_run_beside_a_daemon_reads_its_file_and_leaves_it_as_it_is(tmp_path):
    run = borrowed(tmp_path)
    before = (tmp_path / "state" / FILE_NAME).read_bytes()
    look = again(tmp_path, run.slurm, dry_run=True)
    look.ticks(2)
    assert look.metric("rltuned_lent_gpu_seconds") == 2 * CHARGED
    assert (tmp_path / "state" / FILE_NAME).read_bytes() == before


DAMAGES = ["", "{", "[]", '{"book": {"format": 9}}', '{"book": {"format": 1, "time": 1, "offers": {"2": [1]}}}', None]
"""What is in the file; None: it is not there any more."""


@pytest.mark.parametrize("text", DAMAGES)
def test_where_the_file_is_lost_every_waiting_job_counts_as_having_lent_all_that_it_could(tmp_path, text):
    run = borrowed(tmp_path)
    path = tmp_path / "state" / FILE_NAME
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
        with pytest.raises(RltunedError, match=r"loans\.json: cannot be used.*delete it"):
            read_book(tmp_path / "state")
    run.slurm.submit(800, user="carol", time_limit=60.0)
    run = again(tmp_path, run.slurm)
    assert planned(run.tick()) == 0
    (event,) = run.events("loans.lost")
    assert "counts as having lent all that it could" in event["sentence"]
    assert lent(run, tmp_path) == pytest.approx(0.1 * (WAITED + 120.0))
    assert lent(run, tmp_path, job=6) == pytest.approx(LENDABLE), "those who could not be passed, too"
    run.slurm.clock.sleep(900.0)
    run.tick()
    assert run.slurm.order()[0] == 6, "what it has waited since, it may lend"
    assert len(run.events("loans.lost")) == 1


def test_a_file_that_tells_nothing_of_a_job_that_is_raised_is_lost(tmp_path):
    run = flooded(tmp_path)
    before = (tmp_path / "state" / FILE_NAME).read_bytes()
    run.tick()
    (tmp_path / "state" / FILE_NAME).write_bytes(before)
    run = again(tmp_path, run.slurm)
    run.tick()
    assert "who lends for the jobs that are raised" in run.events("loans.lost")[0]["reason"]
    assert run.slurm.order() == [1, 2, 3, 4, 5]
    assert lent(run, tmp_path) > LENDABLE


@pytest.mark.parametrize(("share", "most"), [(0.5, 0.5), (None, 1.0)])
def test_where_auto_lets_jobs_lend_a_lost_book_counts_the_share_in_force_or_all_where_that_is_lost_too(
    tmp_path, share, most
):
    run = flooded(tmp_path)
    path = tmp_path / "state" / FILE_NAME
    before = json.loads(path.read_bytes())
    run.tick()
    if share is None:
        path.unlink()
    else:
        path.write_text(json.dumps(before | {"share": [share, run.slurm.clock.steady()]}))
    run = again(tmp_path, run.slurm)
    run.daemon.runtime.config = run.daemon.config.model_copy(update={"lend": LendSection(share="auto")})
    run.tick()
    assert run.events("loans.lost")
    assert lent(run, tmp_path) >= most * WAITED


def test_a_new_installation_and_what_is_requeued_while_the_daemon_is_down_have_lost_nothing(tmp_path):
    run = borrowed(tmp_path)
    assert not run.events("loans.lost")
    run.slurm.requeue(2)
    run = again(tmp_path, run.slurm)
    run.tick()
    assert not run.events("loans.lost")


def test_who_lends_is_on_disk_before_a_job_is_raised_and_until_a_reading_shows_that_it_was_given_back(tmp_path):
    run, seen = house(tmp_path, jobs=0), []
    for number in range(3):
        run.slurm.submit(1000 - number, time_limit=100.0 * (3 - number))

    def look(_number):
        seen.append(set(on_disk(tmp_path).offers))

    run.slurm.before_update = look
    run.tick()
    assert seen == [{2, 3}, {2, 3}]
    run.slurm.jobs[3].time_limit = 90_000.0
    run.tick()
    assert run.slurm.log[-1][::2] == (3, 0)
    assert seen[2:] == [{2, 3}]
    assert set(on_disk(tmp_path).offers) == {2, 3}, "it may have started meanwhile"
    run.tick()
    assert set(on_disk(tmp_path).offers) == {2}


def test_a_file_that_cannot_be_written_is_said_once_and_nobody_is_raised_until_it_can_be(tmp_path):
    run = house(tmp_path, lend=LendSection(most=1))
    run.tick()
    path = tmp_path / "state" / FILE_NAME
    path.unlink()
    path.mkdir()
    run.slurm.jobs[12].time_limit = 500.0
    run.slurm.submit(900, time_limit=1.0)
    reports = [run.tick() for _ in range(3)]
    assert run.slurm.jobs[12].site_factor == 0, "what nobody wants any more is given back"
    assert run.slurm.jobs[13].site_factor == 0
    (stopped,) = (item for item in reports[-1].results if item.outcome is Outcome.THROTTLED)
    assert str(path) in stopped.message
    assert len(run.events("loans.not_kept")) == 1
    path.rmdir()
    run.tick()
    assert run.slurm.jobs[13].site_factor > 0


def test_who_was_given_back_and_starts_then_borrows_nothing(tmp_path):
    run = flooded(tmp_path, reader=Deaf)
    run.tick()
    run.daemon.parts.reader.broken = True
    run.ticks(20)
    assert run.untouched()
    run.daemon.parts.reader.broken = False
    run.daemon.parts.planner, planner = (lambda *_: 1 / 0), run.daemon.parts.planner
    run.tick()
    run.slurm.start(2)
    run.daemon.parts.planner = planner
    run.ticks(2)
    assert on_disk(tmp_path).loans == {}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("later", [0, 1])
def test_who_starts_before_a_reading_shows_that_it_was_given_back_borrows_and_later_nothing(tmp_path, later, killed):
    """Slurm may have begun to look at its queue before the raise was taken back."""
    run = one_more(tmp_path)
    run.tick()
    assert run.slurm.jobs[12].site_factor == 0
    run = again(tmp_path, run.slurm, lend=LendSection(most=1)) if killed else run
    for _ in range(later):
        run.tick()
    run.slurm.start(12)
    run.tick()
    assert (12 in on_disk(tmp_path).loans) is (not later)
    assert 12 not in on_disk(tmp_path).offers
    assert not run.events("loans.lost")


@pytest.mark.parametrize("when", ["before", "after", "next minute"])
def test_tasks_of_an_array_that_start_while_it_is_given_back_borrow(tmp_path, when):
    slurm = ModelSlurm(VirtualClock())
    slurm.submit(1000, user="ann", time_limit=86_400.0)
    slurm.submit(900, user="bob", time_limit=600.0, tasks="100-199%2")
    run = again(tmp_path, slurm)
    run.tick()
    assert slurm.jobs[2].site_factor > 0
    # Ann's people decide more for her job: the array is to go behind it.
    slurm.jobs[1].nice, slurm.jobs[1].multifactor = -20, 1050
    update, started = slurm.before_update, []

    def starts(_number):
        if when == "before" and not started:
            started.append(slurm.start_task(2))

    slurm.before_update = starts
    run.tick()
    assert slurm.jobs[2].site_factor == 0
    slurm.before_update = update
    if when == "next minute":
        run.tick()
    if not started:
        started.append(slurm.start_task(2))
    started[0].site_factor = 0  # what it had does not matter
    run.tick()
    assert (started[0].job_id in on_disk(tmp_path).loans) is (when != "next minute")


@pytest.mark.parametrize("killed", [False, True])
def test_who_starts_by_a_write_that_nobody_has_seen_borrows(tmp_path, killed):
    run, reads = flooded(tmp_path), []

    def fails(number):
        reads.append(number)
        if run.slurm.log and run.slurm.jobs[2].state == "PD":
            run.slurm.start(2)
            raise SlurmUnavailableError("slurmctld is away")

    run.slurm.before_read = fails
    run.daemon.tick()
    run.slurm.before_read = lambda _: None
    assert run.slurm.jobs[2].state == "R"
    if killed:
        run = again(tmp_path, run.slurm)
    run.tick()
    assert on_disk(tmp_path).loans.keys() == {2}
    assert not run.events("loans.lost")


# --- what is raised, and when


def one_more(directory, **values):
    """Job 12 goes ahead, alone; then it asks for more, and another one comes that is wanted."""
    run = house(directory, lend=LendSection(most=1), **values)
    run.ticks(2)
    assert [job for job in run.slurm.jobs.values() if job.site_factor] == [run.slurm.jobs[12]]
    run.slurm.jobs[12].time_limit = 500.0
    run.slurm.submit(900, time_limit=1.0)
    return run


def test_what_is_given_back_is_written_before_what_is_raised(tmp_path):
    run = one_more(tmp_path)
    before = len(run.slurm.log)
    run.tick()
    assert [(job, value > 0) for job, _, value in run.slurm.log[before:]] == [(12, False), (13, True)]


@pytest.mark.parametrize("befalls", ["denied", "started"])
def test_nobody_is_raised_on_what_was_promised_to_a_job_that_may_start_raised(tmp_path, befalls):
    run = one_more(tmp_path)
    plain, began = run.slurm.carry_out, run.slurm.reads
    if befalls == "denied":
        refused = "Access/permission denied for job 12\n"
        run.slurm.carry_out = lambda line: refused if "JobId=12 " in line else plain(line)
    else:  # once the plan is made
        run.slurm.before_read = lambda number: run.slurm.start(12) if number == began + 2 else None
    outcomes = {item.change.job_id: item for item in run.tick().results}
    assert outcomes[13].outcome is Outcome.THROTTLED
    assert outcomes[13].message == "jobs that go ahead no more are given back first"
    run.tick()
    # Who lends for job 12 goes on lending for it, and others for job 13.
    assert run.slurm.jobs[12].site_factor > 0
    assert run.slurm.jobs[13].site_factor > 0
    book = on_disk(tmp_path)
    assert (12 in book.loans) is (befalls == "started")
    assert set(book.offers) == ({13} if befalls == "started" else {12, 13})
    run.slurm.carry_out = plain
    run.ticks(12)
    assert run.slurm.jobs[12].site_factor == 0 or befalls == "started"


def test_who_starts_before_it_is_moved_borrows_of_those_whom_it_passed(tmp_path):
    slurm = ModelSlurm(VirtualClock())
    for user, priority, limit in (("ann", 1000, 86_400.0), ("bob", 900, 86_400.0), ("cat", 500, 600.0)):
        slurm.submit(priority, user=user, time_limit=limit)
    run = again(tmp_path, slurm)
    run.tick()
    assert slurm.order() == [3, 1, 2]
    # Ann's people decide more for her job: the third is to go behind it.
    slurm.jobs[1].nice, slurm.jobs[1].multifactor = -20, 950
    began = slurm.reads
    slurm.before_read = lambda number: slurm.start(3) if number == began + 2 else None
    (result,) = run.tick().results
    assert (result.change.job_id, result.outcome) == (3, Outcome.GONE)
    slurm.before_read = lambda _: None
    run.tick()
    assert [part.lender for part in on_disk(tmp_path).loans[3].parts] == [1]


def test_a_strange_row_keeps_nobody_else_from_being_raised(tmp_path):
    run = one_more(tmp_path)
    run.slurm.strange.add(12)
    assert run.tick().count(Outcome.THROTTLED) == 1, "what was promised to it, nobody else gets"
    run.tick()
    assert run.slurm.jobs[12].site_factor > 0
    assert run.slurm.jobs[11].site_factor > 0
    assert set(on_disk(tmp_path).offers) == {11, 12}


# --- doctor


def finding(run):
    (one,) = (item for item in run.examine() if item.subject == "loans")
    return one


def test_doctor_says_what_was_lent(tmp_path):
    run = flooded(tmp_path)
    (tmp_path / "state" / FILE_NAME).unlink()
    assert finding(run).cause == "no job has lent anything"
    run.tick()
    for job in (2, 3):
        run.slurm.start(job)
    run.tick()
    assert finding(run).cause == "1 waiting jobs have lent 0.8 GPU-hours; 2 borrowers run"
    (tmp_path / "state" / FILE_NAME).write_text("{")
    assert (finding(run).severity, "cannot be used" in finding(run).cause) == (Severity.WARNING, True)

"""Slurm's backfill puts the priority of its beginning back after a write: what counts is what squeue shows."""

import pytest
from unit.controller.model_slurm import ModelSlurm, VirtualClock
from unit.controller.support import Bench, planned
from unit.controller.test_loop import ALL, LIMITED, Deaf, again, house
from unit.decide.test_explain import printed

from rltuned.controller.health.lock import Lock
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.health.runtime import Cause
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.claims import Entry
from rltuned.core.changes import Applied, Field, JobStatus, Outcome, OverSubscribe
from rltuned.core.config import Stage
from rltuned.decide.explain import explain
from rltuned.records.decisions import entries, load


def shown(run):
    """Jobs that squeue shows with another priority than sprio adds up."""
    return [job for job in run.slurm.jobs if run.slurm.in_queue(run.slurm.jobs[job]) != priority(run, job)]


def priority(run, job):
    return run.slurm.priority(run.slurm.jobs[job])


def undone_changes(run):
    return run.metric('rltuned_changes_total{field="SiteFactor",outcome="undone"}')


def status(shown, *bases, factor, held=False):
    return JobStatus(1, 1, True, held, shown, factor, OverSubscribe.OK, bases=bases)


@pytest.mark.parametrize(
    ("seen", "stands"),
    [
        (status(57_437, 7437, factor=50_000), 50_000),
        (status(7430, 7437, factor=50_000), 0),
        (status(57_500, 7437, factor=50_000), 50_000),  # it has aged between the two commands
        (status(7437 + 900, 7437, factor=50_000), 900),  # it had 900 before
        (status(57_436, 7437, factor=50_000), 50_000),  # fractions
        (status(8337, 7437, factor=901), 901),
        (status(1, -80_000, factor=50_000), 50_000),  # Slurm's least, with and without
        (status(1000, 100, 1000, factor=500), 0),  # of two partitions
        (status(600, 100, 1000, factor=500), 500),
        (status(1500, 100, 1000, factor=500), 500),
        (status(800, 100, 500, 1000, factor=300), 300),  # and of the one between
        (status(500, 100, 500, 1000, factor=300), 0),
        (status(7430, 7437, factor=77), 77),  # somebody else's
        (status(0, 7437, factor=50_000, held=True), 50_000),
        (status(7430, 7437, factor=None), None),
        (status(7430, factor=50_000), 50_000),  # the sum is not known
    ],
)
def test_a_job_stands_with_the_site_factor_that_squeue_shows(seen, stands):
    factor = seen.site_factor if seen.site_factor in {50_000, 901, 500, 300} else 0
    assert Entry(Applied(1, 1, site_factor=factor), previous=(900,)).standing(seen) == stands


@pytest.mark.parametrize("stands", [0, 500, 900])
def test_a_job_that_was_given_back_stands_as_squeue_shows_it(stands):
    entry = Entry(Applied(1, 1), doubts={Field.SITE_FACTOR: (900,)}, previous=(500,))
    assert entry.standing(status(7430 + stands, 7437, factor=0)) == stands


def test_a_raise_that_backfill_undoes_is_written_again_in_the_next_cycle_and_counted(tmp_path):
    run = house(tmp_path, jobs=4)
    run.daemon.tick()
    run.slurm.backfill_goes_on()
    assert run.slurm.order() == [1, 2, 3, 4]
    run.slurm.clock.sleep(60.0)
    report = run.tick()
    assert report.count(Outcome.APPLIED) == planned(report) == 3
    assert run.slurm.order() == [4, 3, 2, 1]
    assert undone_changes(run) == 3
    assert not shown(run)
    (event,) = run.events("writes.undone")
    assert event["jobs"] == [2, 3, 4]
    assert "3 raised, 0 in force" in report.sentence
    report = run.tick()
    assert (planned(report), undone_changes(run)) == (0, 3)
    assert "3 raised, 3 in force" in report.sentence
    assert run.metric("rltuned_raised_jobs_in_force") == 3


def test_a_raise_that_is_undone_before_it_is_read_back_is_an_outcome_of_its_own_and_no_alarm(tmp_path):
    run = house(tmp_path, jobs=4)
    reads = run.slurm.reads
    # Facts, snapshot, before the first write, after it: what slurmctld took is read back.
    run.slurm.before_read = lambda number: run.slurm.backfill_goes_on() if number > reads + 3 else None
    report = run.tick()
    assert report.count(Outcome.UNDONE) == 3
    assert run.daemon.state.alarms == 0
    assert report.acted
    assert {outcome for of in load(tmp_path / "state").outcomes.values() for outcome in of.values()} == {Outcome.UNDONE}
    assert undone_changes(run) == 3
    run.slurm.before_read = lambda _: None
    report = run.daemon.tick()
    assert report.count(Outcome.APPLIED) == 3
    assert run.slurm.order() == [4, 3, 2, 1]
    assert (undone_changes(run), report.undone) == (3, 0), "each is counted once"
    run.slurm.backfill_goes_on()
    run.slurm.clock.sleep(60.0)
    assert run.tick().undone == 3, "the next time is another one"
    assert undone_changes(run) == 6


def test_what_stays_undone_because_nothing_may_be_written_is_counted_once(tmp_path):
    run = house(tmp_path, jobs=4, reader=Deaf)
    run.daemon.tick()
    run.slurm.backfill_goes_on()
    run.slurm.clock.sleep(60.0)
    run.daemon.parts.reader.busy = True
    run.ticks(2)
    assert run.slurm.order() == [1, 2, 3, 4]
    assert undone_changes(run) == 3
    assert [entry.results.get(Outcome.UNDONE, 0) for entry in entries(tmp_path / "state", 0.0, 1e12)] == [0, 3, 0]


def test_what_was_given_back_is_counted_again_each_time_that_it_is_undone(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    leaves_active(run)
    for count in (3, 6):
        run.daemon.tick()
        assert not shown(run)
        run.slurm.backfill_goes_on(60.0 if count == 3 else 120.0)
        run.slurm.clock.sleep(60.0)
    run.tick()
    assert undone_changes(run) == 6


def undone_and_looked_at(directory, between=lambda _: None, seconds=5.0, **values):
    """A cycle whose raises backfill undoes; what happens `between`; and a look so long after."""
    run = house(directory, jobs=4, **values)
    run.daemon.tick()
    run.slurm.backfill_goes_on()
    run.slurm.log.clear()
    between(run)
    run.slurm.clock.sleep(seconds)
    run.daemon.look_again()
    return run


def test_a_raise_that_backfill_undoes_is_written_again_before_the_next_cycle(tmp_path):
    run = undone_and_looked_at(tmp_path)
    assert run.slurm.order() == [4, 3, 2, 1]
    assert undone_changes(run) == 3
    assert not shown(run)
    reads = run.slurm.reads
    run.daemon.look_again()
    assert (len(run.slurm.log), run.slurm.reads) == (3, reads + 1), "one look, and nothing to do"
    run.slurm.clock.sleep(120.0)
    run.daemon.look_again()
    assert run.slurm.reads == reads + 1, "no backfill cycle can undo it any more"
    report = run.tick()
    assert (planned(report), undone_changes(run)) == (0, 3)


WHAT_BEFALLS = (
    *("shadow", "steering is forbidden", "held", "an admin's value", "another request", "managed no more"),
    *("given back", "the cycle failed", "given up", "stopping", "slurmctld is down", "another cycle"),
)


def befalls(run, what):
    daemon, slurm = run.daemon, run.slurm
    match what:
        case "shadow":
            daemon.state.put(Cause.DEMOTED, "for a test")
        case "steering is forbidden":
            slurm.scheduler_parameters = "enable_user_top,bf_continue"
        case "held" | "an admin's value" | "another request":
            for job in (2, 3, 4):
                slurm.hold(job) if what == "held" else None
                slurm.jobs[job].site_factor = 5 if what == "an admin's value" else slurm.jobs[job].site_factor
                slurm.jobs[job].time_limit += 600.0 if what == "another request" else 0.0
        case "managed no more":
            scope = daemon.config.scope.model_copy(update={"users": ("nobody",)})
            daemon.reload(lambda: daemon.config.model_copy(update={"scope": scope}))
        case "given back":  # all of it; and backfill brings the raises back
            slurm.put_back.clear()
            daemon.restoring.give_all_back()
            slurm.backfill_goes_on()
        case "the cycle failed":
            daemon._failed()
        case "given up":  # the dead-man timer may be at work
            daemon.liveness._acted_at -= 3 * daemon.config.write.give_back_after
        case "stopping":
            daemon.request_stop()
        case "slurmctld is down":
            slurm.up = False
        case "another cycle":
            slurm.clock.sleep(55.0)
            daemon.tick()
            slurm.put_back.clear()
    slurm.log.clear()


@pytest.mark.parametrize("what", WHAT_BEFALLS)
def test_between_two_cycles_nothing_is_written_but_what_backfill_undid_and_may_be_written(tmp_path, what):
    assert undone_and_looked_at(tmp_path, lambda run: befalls(run, what)).slurm.log == []


def test_what_a_look_between_two_cycles_does_not_see_is_not_counted_anew(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    run.slurm.backfill_goes_on(120.0)
    # One of three fits into the cycle.
    write = run.daemon.config.write.model_copy(update={"per_cycle": 1})
    run.daemon.reload(lambda: run.daemon.config.model_copy(update={"write": write}))
    run.daemon.tick()
    assert undone_changes(run) == 3
    run.slurm.clock.sleep(5.0)
    run.daemon.slurmctld.budget.start_cycle()  # as a bucket that has filled again
    reads = run.slurm.reads
    run.daemon.look_again()
    assert run.slurm.reads == reads + 1
    run.slurm.clock.sleep(55.0)
    run.tick()
    assert undone_changes(run) == 3
    assert len(run.events("writes.undone")) == 1


def test_a_defect_in_a_look_between_two_cycles_is_told_and_ends_that_look_only(tmp_path):
    run = undone_and_looked_at(tmp_path, lambda run: setattr(run.slurm, "jobs", None))
    assert run.slurm.log == []
    assert len(run.events("look.defect")) == 1


def leaves_active(run):
    run.daemon.reload(
        lambda: run.daemon.config.model_copy(
            update={"cycle": run.daemon.config.cycle.model_copy(update={"stage": Stage.SHADOW})}
        )
    )


def test_what_was_given_back_and_stands_raised_all_the_same_is_given_back_again(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    leaves_active(run)
    run.daemon.tick()
    assert run.untouched()
    run.slurm.backfill_goes_on()
    assert run.slurm.order() == [4, 3, 2, 1]
    run.slurm.clock.sleep(60.0)
    run.tick()
    assert run.slurm.order() == [1, 2, 3, 4]
    assert not shown(run)
    run.ticks(2)
    assert not run.daemon.journal.entries


def test_a_job_that_left_the_plan_and_stands_raised_all_the_same_is_given_back_before_anybody_is_raised(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    run.slurm.jobs[4].time_limit = 11.0
    run.daemon.tick()
    assert run.slurm.jobs[4].site_factor == 0
    run.slurm.backfill_goes_on(jobs=[4])
    run.slurm.clock.sleep(60.0)
    run.slurm.log.clear()
    run.slurm.submit(500, time_limit=5.0)
    run.tick()
    assert run.slurm.log[0] == (4, "SiteFactor", 0)
    assert len(run.slurm.log) > 1
    assert not shown(run)


def test_a_long_backfill_cycle_is_waited_for(tmp_path):
    run = house(tmp_path, jobs=4)
    run.slurm.scheduler_parameters = "bf_continue,bf_interval=60,bf_max_time=400"
    run.tick()
    leaves_active(run)
    assert run.ticks(4).acted, "to wait for a backfill cycle that may undo it is not to be unable to give back"
    run.slurm.backfill_goes_on(400.0)
    assert run.slurm.order() == [4, 3, 2, 1]
    run.tick()
    assert run.slurm.order() == [1, 2, 3, 4]
    run.ticks(8)
    assert not run.daemon.journal.entries


def test_a_restart_after_a_job_was_given_back_does_not_take_the_book_for_lost(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    run.slurm.jobs[4].nice = -1
    run.tick()
    assert run.slurm.jobs[4].site_factor == 0
    run.daemon.stop()
    run = again(tmp_path, run.slurm)
    run.tick()
    assert not run.events("loans.lost")


def test_a_restore_is_not_done_before_squeue_shows_it(tmp_path):
    bench = Bench.make(tmp_path, [1000, 900, 800])
    bench.cycle([3, 2, 1])
    slurm, reads = bench.slurm, bench.slurm.reads
    slurm.before_read = lambda number: slurm.backfill_goes_on() if number == reads + 2 else None
    report = bench.restore()
    assert (report.complete, report.restored) == (True, (2, 3))
    assert report.sentence() == "2 jobs restored (2, 3)"
    assert slurm.order() == [1, 2, 3]
    assert not slurm.put_back


@pytest.mark.parametrize(("passing", "least", "most"), [(4, 0.0, 30.0), (10_000, 30.0, 35.0)])
def test_a_restore_outlasts_the_pass_of_backfill_that_goes_on_for_no_longer_than_one_takes_and_looks_once_more(
    tmp_path, passing, least, most
):
    run = house(tmp_path, jobs=4)
    run.tick()
    run.daemon.stop()
    run.slurm.passing, began = passing, run.slurm.clock.steady()
    report = run.restore()
    assert (report.complete, report.restored) == (True, (2, 3, 4))
    assert least <= run.slurm.clock.steady() - began < most
    assert 1.0 <= report.outlasted <= run.slurm.clock.steady() - began
    assert f"of the time {report.outlasted:.0f} s for a pass of Slurm's backfill to end" in report.sentence()
    assert run.slurm.order() == [1, 2, 3, 4]
    assert not run.slurm.put_back
    began = run.slurm.clock.steady()
    assert not run.restore().restored
    assert run.slurm.clock.steady() - began < 5.0, "it wrote nothing, so it waits for no pass"


def test_a_restore_says_which_jobs_squeue_still_shows_otherwise_and_until_when_and_the_next_one_goes_on(tmp_path):
    bench = Bench.make(tmp_path, [1000, 900, 800])
    bench.cycle([3, 2, 1])
    slurm = bench.slurm
    facts = slurm.reader().facts()
    slurm.before_read = lambda _: slurm.backfill_goes_on()
    report = bench.restore(facts=facts)
    assert [left.job_id for left in report.left] == [2, 3]
    assert not report.restored
    assert "within 60 s" in report.left[0].reason
    assert bench.clock.slept[-1] < 10.0
    slurm.before_read = lambda _: None
    report = bench.restore()
    assert (report.complete, report.restored) == (True, (2, 3))
    assert slurm.order() == [1, 2, 3]


def test_after_a_restore_the_dead_man_timer_looks_again_until_no_backfill_cycle_can_undo_it(tmp_path):
    run = house(tmp_path, jobs=4)
    run.slurm.scheduler_parameters = "bf_continue,bf_interval=400"
    run.tick()
    run.daemon.stop()
    assert run.restore().complete
    run.slurm.clock.sleep(360.0)
    assert not run.restore(if_stale=300.0).restored
    run.slurm.backfill_goes_on(400.0)
    assert run.slurm.order() == [4, 3, 2, 1]
    run.slurm.clock.sleep(60.0)
    assert run.restore(if_stale=300.0).restored == (2, 3, 4)
    assert run.slurm.order() == [1, 2, 3, 4]
    run.slurm.clock.sleep(400.0)
    run.restore(if_stale=300.0)
    reads = run.slurm.reads
    run.restore(if_stale=300.0)
    assert run.slurm.reads == reads, "the journal is empty"


@pytest.mark.parametrize(("jobs", "reader"), [(8, None), (8, LIMITED), (60, None), (60, LIMITED)])
def test_a_change_of_weights_and_a_nice_are_given_back_in_the_cycle_that_sees_it_before_anybody_is_raised(
    tmp_path, jobs, reader
):
    run = house(tmp_path, jobs=jobs, reader=reader, lend=ALL)
    run.ticks(8)
    slurm = run.slurm
    assert all(job.site_factor > 0 for job in slurm.jobs.values() if job.job_id > 1)
    # Everything weighs a tenth now, an admin has put back some that go ahead, and there are others to be raised.
    for job in slurm.jobs.values():
        job.multifactor = 300 + job.multifactor // 10
        job.nice = 40 if job.job_id % 5 == 0 else 0
        job.time_limit += 1.0 if job.job_id % 7 == 0 else 0.0
    for number in range(3):
        slurm.submit(350 - number, time_limit=1.0 + number)
    for cycle in range(8):
        slurm.log.clear()
        before = {job.job_id: job.site_factor for job in slurm.jobs.values()}
        assert run.tick().outcome is CycleOutcome.DONE
        lower = {
            change.job_id: change.after for change in load(tmp_path / "state").changes if change.after < change.before
        }
        assert bool(lower) is (cycle == 0) or jobs == 60
        raising = [after > before[job] for job, _, after in slurm.log]
        assert raising == sorted(raising), "what is given back comes first"
        if any(raising):
            assert lower.items() <= {job.job_id: job.site_factor for job in slurm.jobs.values()}.items()
    assert any(raised.site_factor for raised in slurm.jobs.values() if raised.job_id > jobs)


def often_undone(directory, cycles):
    """A daemon with a lock, after cycles after each of which backfill has undone its writes."""
    run = house(directory, jobs=6)
    for _ in range(cycles):
        run.daemon.tick()
        run.slurm.backfill_goes_on()
        run.slurm.clock.sleep(60.0)
    run.tick()
    return run


def findings(run, directory):
    with Lock.acquire(directory / "state", "run", 0.0):
        return {finding.subject: finding for finding in run.examine()}


def test_doctor_says_how_many_raised_jobs_are_in_force_and_what_to_set_where_writes_are_often_undone(tmp_path):
    run = house(tmp_path, jobs=6)
    run.ticks(3)
    found = findings(run, tmp_path)
    assert "6 pending, 6 managed, 5 raised, 5 in force; nothing to change" in found["status"].cause
    assert "in force" not in found
    run = often_undone(tmp_path / "other", 3)
    found = findings(run, tmp_path / "other")
    assert "5 raised, 0 in force" in found["status"].cause
    assert found["status"].cause.endswith("look at: in force")
    assert found["in force"].severity is Severity.WARNING
    assert "backfill undid writes in 3 of 4 cycles of the last hour" in found["in force"].cause
    assert "PriorityCalcPeriod to a minute (it is 60 s)" in found["in force"].remedy


def test_explain_says_whether_squeue_shows_the_raise(tmp_path):
    run = house(tmp_path, jobs=4)
    run.daemon.tick()
    record = load(tmp_path / "state")
    assert explain(record, 4).force == "not in force yet"
    assert explain(record, 1).force == ""
    run.slurm.backfill_goes_on()
    run.slurm.clock.sleep(60.0)
    run.tick()
    undone = explain(load(tmp_path / "state"), 4)
    assert undone.force == "Slurm's backfill had put back what was written, so it was to be written again"
    told = printed(undone)
    assert told.count("riority 997") == 2, "what Slurm alone gives it, and what squeue showed"
    assert f"  Priority 997, site factor {undone.site_factor} at that reading: Slurm's backfill had" in told
    run.tick()
    assert explain(load(tmp_path / "state"), 4).force == "in force"


def test_an_array_and_a_held_job_are_judged_as_squeue_shows_them(tmp_path):
    slurm = ModelSlurm(VirtualClock())
    slurm.submit(1000, time_limit=100.0)
    slurm.submit(900, time_limit=10.0, tasks="1-3")
    slurm.submit(800, time_limit=20.0)
    run = again(tmp_path, slurm)
    run.daemon.tick()
    assert slurm.order() == [2, 3, 1]
    slurm.backfill_goes_on()
    slurm.hold(3)
    slurm.clock.sleep(60.0)
    run.tick()
    assert slurm.order() == [2, 1]
    assert undone_changes(run) == 1

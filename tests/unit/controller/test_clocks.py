"""The wall clock is set, or the machine is suspended: nothing is forgotten, nothing is kept for ever, nothing old is
written."""

import pytest
from unit.controller.support import Bench
from unit.controller.test_loop import house

from rltuned.controller.health.heartbeat import HEARTBEAT_NAME
from rltuned.controller.health.runtime import Cause
from rltuned.controller.write.claims import SETTLE_SECONDS
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import Outcome

HOUR = 3600.0
JUMPS = pytest.mark.parametrize("seconds", [5 * HOUR, -5 * HOUR], ids=["forward", "back"])


def remembered(bench):
    return {job for job, entry in bench.journal.entries.items() if entry.previous or entry.doubts}


@JUMPS
def test_what_a_killed_slurmctld_may_bring_back_is_remembered_for_half_a_minute_whatever_the_wall_clock_says(
    bench, seconds
):
    bench.apply(bench.reorder([4, 3, 2, 1]))
    bench.clock.set(seconds)
    bench.reconcile()
    assert remembered(bench) == {2, 3, 4}
    bench.clock.sleep(SETTLE_SECONDS)
    bench.reconcile()
    assert remembered(bench) == set()


@JUMPS
def test_a_killed_slurmctld_is_told_from_a_person_across_a_jump(tmp_path, seconds):
    # Batches are told apart by when they were written: an old one, and after the jump a new one, which is lost.
    bench = Bench.make(tmp_path, range(1000, 200, -100))
    bench.apply(bench.reorder([4, 3, 2, 1, 5, 6, 7, 8]))
    bench.slurm.save_state()
    bench.clock.sleep(10.0)
    bench.clock.set(seconds)
    bench.apply(bench.reorder([4, 3, 2, 1, 8, 7, 6, 5]))
    bench.slurm.crash_and_start()
    bench.slurm.calculated = True
    assert bench.reconcile() == ()


def test_a_daemon_that_finds_entries_from_the_future_lets_their_doubts_age_from_now_on(bench):
    bench.apply(bench.reorder([4, 3, 2, 1]))
    bench.restart_daemon()
    bench.clock.now -= 5 * HOUR  # what the new process takes for the time
    bench.reconcile()
    assert remembered(bench) == {2, 3, 4}
    bench.clock.sleep(SETTLE_SECONDS)
    bench.reconcile()
    assert remembered(bench) == set()


def test_a_restore_forgets_entries_from_the_future_half_a_minute_after_it_has_seen_them(bench):
    bench.cycle([4, 3, 2, 1])
    bench.restart_daemon()
    bench.clock.now -= 5 * HOUR
    for _ in range(3):
        bench.restore()
        bench.clock.sleep(SETTLE_SECONDS)
    assert bench.journal.entries == {}


def test_a_machine_suspended_between_reading_and_writing_reads_anew_before_it_writes(bench, monkeypatch):
    intend = Journal.intend

    def suspended(journal, intents):
        intend(journal, intents)
        bench.clock.suspend(5 * HOUR)
        bench.slurm.admin_site_factor(4, 7)

    changes = bench.reorder([4, 3, 2, 1])
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "intend", suspended)
        results = bench.apply(changes)
    assert {result.outcome for result in results} == {Outcome.THROTTLED}
    assert bench.slurm.updates == 0
    assert bench.journal.entries == {}, "what was not sent is nobody's"
    assert {result.change.job_id for result in bench.apply(changes) if result.outcome is Outcome.APPLIED} == {2, 3}
    assert bench.slurm.jobs[4].site_factor == 7


def test_a_machine_suspended_in_the_middle_of_a_restore_reads_anew_before_it_writes(bench, monkeypatch):
    bench.cycle([4, 3, 2, 1])
    update, nights = Journal.update, iter([5 * HOUR])

    def suspended(journal, *arguments):
        update(journal, *arguments)
        for night in nights:
            bench.clock.suspend(night)
            bench.slurm.admin_site_factor(4, 7)

    monkeypatch.setattr(Journal, "update", suspended)
    report = bench.restore()
    assert report.restored == (2, 3)
    assert report.foreign == (4,)
    assert bench.slurm.jobs[4].site_factor == 7


def test_a_suspended_machine_is_not_stuck(tmp_path):
    run = house(tmp_path)
    run.tick()
    run.slurm.clock.suspend(5 * HOUR)
    assert run.daemon.liveness.healthy()
    assert run.tick().count(Outcome.FAILED) == 0
    run.slurm.clock.sleep(HOUR)
    assert not run.daemon.liveness.healthy()


def test_a_daemon_that_cannot_show_a_sign_of_life_writes_nothing_because_the_dead_man_would_undo_it(tmp_path):
    run = house(tmp_path)
    for root in ("state", "mirror"):
        (tmp_path / root / HEARTBEAT_NAME).unlink()
        (tmp_path / root / HEARTBEAT_NAME).mkdir()
    run.ticks(2)
    assert run.slurm.order() == list(range(12, 0, -1)), "not yet"
    run.ticks(3)
    assert all(run.slurm.untouched(job) for job in run.slurm.jobs.values())
    assert run.daemon.state.refusal.cause is Cause.UNSEEN
    for root in ("state", "mirror"):
        (tmp_path / root / HEARTBEAT_NAME).rmdir()
    assert run.tick().count(Outcome.APPLIED) == 11

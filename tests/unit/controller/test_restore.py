import json
import re

import pytest
from unit.controller.support import Bench, files_no_longer_than

from rltuned.controller.give_back import batches
from rltuned.controller.give_back.batches import WhatToRestore
from rltuned.controller.health.rpc_budget import Budget
from rltuned.controller.shown.checks import Remains, remains
from rltuned.controller.write.journal import Journal
from rltuned.core.changes import Change, Field, OverSubscribe
from rltuned.core.workers.progress import ProgressLines
from rltuned.slurm.port import Privilege


def returned(bench):
    return all(bench.slurm.untouched(job) for job in bench.slurm.jobs.values())


def test_every_priority_is_what_slurm_alone_computes_and_it_can_be_proved(bench):
    bench.cycle([4, 3, 2, 1])
    assert remains(bench.journal, bench.slurm.reader().status()).jobs
    report = bench.restore()
    assert report.complete
    assert report.restored == (2, 3, 4)
    assert bench.priorities() == {1: 1000, 2: 900, 3: 800, 4: 700}
    assert remains(bench.journal, bench.slurm.reader().status()) == Remains()
    assert bench.forgets_everything()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_slurmctld_that_is_killed_right_after_the_restore_and_comes_back_with_our_values_is_restored_again(
    tmp_path, hidden
):
    bench = Bench.make(tmp_path)
    for priority, nice in ((1000, 0), (900, 300), (800, 0)):
        bench.slurm.submit(priority, nice=nice)
    alone = bench.priorities()
    bench.cycle([3, 2, 1])
    if hidden:
        bench.slurm.hold(1)
    bench.slurm.save_state()
    assert bench.restore().complete
    bench.slurm.crash_and_start()
    bench.slurm.calculate()
    assert not returned(bench)
    bench.restart_daemon()
    bench.clock.sleep(60.0)
    assert bench.restore().complete
    assert returned(bench)
    bench.slurm.user_release(1) if hidden else None
    assert bench.priorities() == alone
    assert bench.forgets_everything() or hidden
    assert bench.slurm.violations == []


def test_restore_works_with_the_disk_full_and_with_the_journal_only_in_its_mirror(bench):
    bench.cycle([4, 3, 2, 1])
    (bench.directory / "state" / "journal.jsonl").unlink()
    bench.restart_daemon()
    with files_no_longer_than(5):
        report = bench.restore()
    assert report.complete
    assert returned(bench)
    assert "no copy" in report.journal_trouble


def test_only_the_given_jobs_are_restored_and_then_left_alone(bench):
    bench.cycle([4, 3, 2, 1])
    untouched = bench.slurm.jobs[3].site_factor
    report = bench.restore(asked=WhatToRestore([2, 4], hands_off=True))
    assert report.restored == (2, 4)
    assert bench.slurm.jobs[2].site_factor == bench.slurm.jobs[4].site_factor == 0
    assert bench.slurm.jobs[3].site_factor == untouched
    for order in ([4, 3, 2, 1], [1, 2, 3, 4]):
        bench.cycle(order)
    assert bench.slurm.jobs[2].site_factor == bench.slurm.jobs[4].site_factor == 0


def test_a_given_job_that_carried_nothing_is_left_alone_from_now_on_too(bench):
    bench.cycle([1, 2, 3, 4])
    report = bench.restore(asked=WhatToRestore([2, 99], hands_off=True))
    assert report.marked == (2,)
    bench.cycle([4, 3, 2, 1])
    assert bench.slurm.jobs[2].site_factor == 0
    assert bench.slurm.jobs[4].site_factor != 0


def test_beside_a_living_daemon_restore_writes_no_journal_and_the_daemon_leaves_the_jobs_alone(bench):
    bench.cycle([4, 3, 2, 1])
    on_disk, slurm = (bench.directory / "state" / "journal.jsonl").read_bytes(), bench.slurm
    living, bench.journal = bench.journal, Journal.read(bench.directory / "state")
    report = bench.restore(asked=WhatToRestore([4], hands_off=True))
    bench.journal = living
    assert report.complete
    assert report.journal_trouble == ""
    assert (bench.directory / "state" / "journal.jsonl").read_bytes() == on_disk
    assert bench.reconcile() == (4,)
    bench.cycle([2, 1, 3, 4])
    assert slurm.jobs[4].site_factor == 0


@pytest.mark.parametrize("daemon_lives", [True, False])
@pytest.mark.parametrize("hold", [True, False])
def test_what_a_requeued_task_of_an_array_carries_is_given_back_although_the_task_with_the_arrays_number_has_ended(
    bench, daemon_lives, hold
):
    slurm = bench.slurm
    bench.cycle([4, 3, 2, 1])
    tasks = [slurm.start_task(4) for _ in range(2)]
    slurm.start(4)
    bench.cycle([3, 2, 1]) if daemon_lives else None
    slurm.leave(4)
    for _ in range(5 if daemon_lives else 0):
        bench.cycle([3, 2, 1])
    assert bench.restore().running == (4,)
    assert 4 in bench.journal.entries
    task = tasks[0]
    slurm.requeue(task.job_id)
    slurm.hold(task.job_id, "admin") if hold else None
    for _ in range(3 if daemon_lives else 0):
        bench.cycle([3, 2, 1])
    assert bench.restore().complete
    assert slurm.jobs[task.job_id].site_factor == 0
    for task in tasks:
        slurm.leave(task.job_id)
    for _ in range(3):
        bench.cycle([3, 2, 1])
    assert 4 not in bench.journal.entries


def test_a_held_job_that_may_be_another_one_with_the_id_is_named_and_not_forgotten(bench):
    bench.cycle([4, 3, 2, 1])
    for job in (1, 2, 3):
        bench.slurm.leave(job)
    bench.slurm.requeue(4)
    bench.slurm.hold(4, "admin")
    written = bench.slurm.updates
    report = bench.restore()
    assert [(item.job_id, item.field) for item in report.left] == [(4, "SiteFactor")]
    assert "neither can be ruled out" in report.left[0].reason
    assert bench.slurm.updates == written
    bench.slurm.user_release(4)
    assert bench.restore().restored == (4,)
    assert returned(bench)


@pytest.mark.parametrize("whose", ["ours", "an admin's"])
def test_before_slurmctld_has_calculated_nobody_can_tell_whose_factor_it_is_and_none_is_taken_back(bench, whose):
    bench.cycle([4, 3, 2, 1])
    if whose == "an admin's":
        bench.slurm.admin_site_factor(4, 77)
    bench.slurm.restart()
    written = bench.slurm.updates
    report = bench.restore()
    assert bench.slurm.updates == written
    assert {item.job_id for item in report.left} == {2, 3, 4}
    assert "has not calculated" in report.left[0].reason
    bench.slurm.calculate()
    bench.restore()
    assert bench.slurm.jobs[4].site_factor == (0 if whose == "ours" else 77)
    assert bench.slurm.jobs[3].site_factor == 0


def test_orphans_are_reported_and_cleared_only_when_asked_for(bench):
    bench.slurm.admin_site_factor(2, 55)
    assert bench.restore().orphans == (2,) or bench.restore().orphans == ()
    assert remains(bench.journal, bench.slurm.reader().status()).orphans == (2,)
    assert bench.slurm.jobs[2].site_factor == 55
    report = bench.restore(asked=WhatToRestore(orphans=True))
    assert report.cleared_orphans == (2,)
    assert returned(bench)


def test_without_privilege_everything_left_is_named_with_reason_and_remedy(bench):
    bench.cycle([4, 3, 2, 1])
    bench.slurm.privilege = Privilege.NONE
    report = bench.restore()
    assert not report.complete
    assert {item.job_id for item in report.left} == {2, 3, 4}
    assert all("permission denied" in item.reason for item in report.left)
    assert report.left[0].remedy == "scontrol update JobId=2 SiteFactor=0"
    json.dumps(report.to_json())
    bench.slurm.privilege = Privilege.OPERATOR
    assert bench.restore().complete
    assert returned(bench)


def test_under_the_rpc_limiter_restore_is_slow_but_finishes_and_shows_progress(tmp_path):
    bench = Bench.make(tmp_path, range(1000, 1120))
    bench.cycle(range(1, 121))
    sent, seen, told = [], [], []
    start = bench.clock.now
    read_at = [start]
    lines = ProgressLines(lambda: bench.clock.now, told.append, every=10.0)
    bench.slurm.before_read = lambda _: read_at.append(bench.clock.now)
    bench.slurm.before_update = lambda _: sent.append((bench.clock.now - start, bench.clock.now - read_at[-1]))
    budget = Budget(limited=True, burst=24, rate=1.5, per_cycle=5000)
    report = bench.restore(budget, progress=lambda *done: seen.append(done) or lines("restoring jobs", *done))
    assert report.complete
    assert returned(bench)
    assert seen[-1] == (119, 119)
    assert len(told) >= 4, "a log hears of it every few batches"
    assert re.match(r"rltuned: restoring jobs: \d+ of 119 after 1\d s, about .* left", told[0])
    for number, (at, age) in enumerate(sent):
        assert number + 1 <= 24 + 1.5 * at + 1, "never faster than the bucket allows"
        assert age <= 1.0, "no write waits for the limiter after its reading"


ISOLATED_CASES = [
    ((22, 5), OverSubscribe.NO, True),
    ((24, 11), OverSubscribe.NO, False),
    ((26, 5), OverSubscribe.NO, True),
    ((23, 11), OverSubscribe.NO, False),
    ((22, 5), OverSubscribe.YES, False),
    ((24, 11), OverSubscribe.YES, False),
]


@pytest.mark.parametrize(("release", "shares", "packs_again"), ISOLATED_CASES)
def test_isolation_is_taken_back_only_where_yes_means_packing_and_named_elsewhere(
    tmp_path, release, shares, packs_again
):
    bench = Bench.make(tmp_path, [1000, 900], release=release, shares=shares)
    shown = bench.slurm.oversubscribe(bench.slurm.jobs[1]).value
    change = Change(1, bench.slurm.jobs[1].submit_time, Field.OVERSUBSCRIBE, shown, "NO", position=0)
    bench.apply([change], shares={1: shares})
    report = bench.restore()
    assert report.complete is packs_again
    assert bench.slurm.jobs[1].share == ("yes" if packs_again else "no")
    if not packs_again:
        (left,) = report.left
        assert left.job_id == 1
        assert left.field == "OverSubscribe"
        assert "cannot be taken back" in left.reason
        assert 1 in bench.journal.entries, "named until the job leaves"


def test_a_restore_of_many_jobs_reads_them_in_batches_before_it_writes_to_them(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "CHUNK", 10)
    bench = Bench.make(tmp_path, range(1000, 1040))
    bench.cycle(range(1, 41))
    written = [0]
    bench.slurm.before_read = lambda _: written.append(0)
    bench.slurm.before_update = lambda _: written.append(written.pop() + 1)
    assert bench.restore().complete
    assert max(written) == 10

import pytest
from unit.controller.support import Bench

from rltuned.controller.health.rpc_budget import LOOK_RPCS, STATUS_RPCS, Budget
from rltuned.controller.write.apply import SPARE, Applier
from rltuned.controller.write.claims import SETTLE_SECONDS
from rltuned.core.changes import Change, Field, Outcome, OverSubscribe, SiteFactor
from rltuned.slurm.port import Privilege


def outcomes(results):
    return {result.change.job_id: result.outcome for result in results}


def test_taking_the_last_term_off_a_job_is_seen_as_done_although_sprio_shows_nothing_then(tmp_path):
    bench = Bench.make(tmp_path, [1000, 900, 5])
    bench.cycle([3, 2, 1])
    job = bench.slurm.jobs[3]
    job.multifactor = 0
    change = Change(3, job.submit_time, Field.SITE_FACTOR, job.site_factor, SiteFactor(0), position=0)
    (result,) = bench.apply([change])
    assert result.outcome is Outcome.APPLIED
    assert not bench.journal.entries[3].applied.foreign


@pytest.mark.parametrize(
    "changed", [{"time_limit": 60.0}, {"gpus": 4}, {"partition": "other"}, {"account": "x"}, {"qos": "high"}], ids=str
)
def test_a_job_whose_request_was_changed_since_the_plan_is_not_written(bench, changed):
    status = bench.slurm.reader().status()
    changes = [change._replace(request=status[change.job_id].request) for change in bench.reorder([4, 3, 2, 1])]
    for name, value in changed.items():
        setattr(bench.slurm.jobs[4], name, value)
    found = outcomes(bench.apply(changes))
    assert found[4] is Outcome.CHANGED
    assert bench.slurm.jobs[4].site_factor == 0
    assert 4 not in bench.journal.entries


def test_a_job_that_started_left_or_lost_its_id_before_the_write_is_gone(tmp_path):
    bench = Bench.make(tmp_path, [1000, 900, 800, 700, 600])
    changes = bench.reorder([5, 4, 3, 2, 1])
    bench.slurm.start(2)
    bench.slurm.leave(3)
    bench.slurm.jobs[4].submit_time += 5
    results = outcomes(bench.apply(changes))
    assert results == {2: Outcome.GONE, 3: Outcome.GONE, 4: Outcome.GONE, 5: Outcome.APPLIED}
    assert {job for job, _, _ in bench.slurm.log} == {5}


def test_jobs_that_left_are_forgotten_but_not_before_a_killed_slurmctld_would_not_bring_them_back(bench):
    bench.cycle([4, 3, 2, 1])
    gone = bench.slurm.jobs.pop(2)
    bench.reconcile()
    bench.clock.sleep(SETTLE_SECONDS)
    bench.slurm.jobs[2] = gone
    bench.reconcile()
    assert 2 in bench.journal.entries
    bench.slurm.leave(2)
    for _ in range(2):
        bench.reconcile()
        assert 2 in bench.journal.entries
        bench.clock.sleep(SETTLE_SECONDS / 2)
    bench.reconcile()
    bench.restart_daemon()
    assert set(bench.journal.entries) == {3, 4}


def test_an_admin_who_comes_between_write_and_read_back_wins(bench):
    changes = bench.reorder([4, 3, 2, 1])
    reads = []

    def meddle(number):
        reads.append(number)
        if len(reads) == 2:
            bench.slurm.admin_site_factor(4, 4242)

    bench.slurm.before_read = meddle
    assert outcomes(bench.apply(changes))[4] is Outcome.FOREIGN
    bench.cycle([2, 1, 3, 4])
    assert bench.slurm.jobs[4].site_factor == 4242


@pytest.mark.parametrize(("befalls", "outcome"), [("admin_site_factor", Outcome.FOREIGN), ("hold", Outcome.HELD)])
def test_a_job_that_is_held_by_now_or_whose_site_factor_somebody_else_has_set_is_not_written_nor_isolated(
    bench, befalls, outcome
):
    getattr(bench.slurm, befalls)(4, *([4242] if outcome is Outcome.FOREIGN else []))
    submit = bench.slurm.jobs[4].submit_time
    both = [
        Change(4, submit, Field.SITE_FACTOR, 0, SiteFactor(50), position=0),
        Change(4, submit, Field.OVERSUBSCRIBE, "OK", "NO", position=0),
    ]
    assert [result.outcome for result in bench.apply(both)] == [outcome] * 2
    assert bench.slurm.updates == 0


def test_a_denied_write_says_so_and_leaves_nothing_in_the_journal(bench):
    bench.slurm.privilege = Privilege.NONE
    results = bench.apply(bench.reorder([4, 3, 2, 1]))
    assert {result.outcome for result in results} == {Outcome.DENIED}
    assert "permission denied" in results[0].message
    assert bench.journal.entries == {}


def test_when_the_budget_is_short_the_first_turns_are_taken(bench):
    budget = Budget(limited=True, burst=LOOK_RPCS + STATUS_RPCS + 2, rate=0.01, per_cycle=5000)
    turns = {4: 0, 2: 1, 3: 2}
    changes = [change._replace(turn=turns[change.job_id]) for change in bench.reorder([4, 3, 2, 1])]
    results = bench.apply(list(reversed(changes)), budget)
    assert [result.change.position for result in results] == [0, 1, 2]
    applied = {result.change.job_id for result in results if result.outcome is Outcome.APPLIED}
    assert applied == {4, 2}
    assert bench.slurm.order()[0] == 4


@pytest.mark.parametrize("release", [(22, 5), (24, 11), (26, 5)])
def test_isolating_a_job_is_applied_once_and_journalled_with_what_its_partition_allows(tmp_path, release):
    bench = Bench.make(tmp_path, [1000, 900], release=release)
    before = bench.slurm.oversubscribe(bench.slurm.jobs[1]).value
    change = Change(1, bench.slurm.jobs[1].submit_time, Field.OVERSUBSCRIBE, before, "NO", position=0)
    (result,) = bench.apply([change], shares={1: OverSubscribe.NO})
    assert result.outcome is Outcome.APPLIED
    assert bench.slurm.jobs[1].share == "no"
    bench.restart_daemon()
    entry = bench.journal.entries[1]
    assert entry.applied.oversubscribe is OverSubscribe.NO
    assert entry.applied.oversubscribe_before == before
    assert entry.shares is OverSubscribe.NO


def seen_writes(bench):
    """Pending jobs in Slurm's order before each update of the batch."""
    orders = []
    bench.slurm.before_update = lambda _number: orders.append(bench.slurm.order())
    return orders


def test_changes_are_written_in_their_turn_whatever_their_place_in_the_queue(bench):
    changes = [change._replace(turn=turn) for change, turn in zip(bench.reorder([4, 3, 2, 1]), (2, 0, 1), strict=True)]
    orders = seen_writes(bench)
    results = bench.apply(changes)
    assert [result.change.position for result in results] == [0, 1, 2]
    assert orders == [[1, 2, 3, 4], [3, 1, 2, 4], [3, 2, 1, 4]]
    assert bench.slurm.order() == [4, 3, 2, 1]


def test_changes_that_come_too_late_for_the_budget_are_not_looked_at(tmp_path):
    jobs = 300
    bench = Bench.make(tmp_path, range(10 * jobs, 0, -10))
    changes = [change._replace(turn=change.position) for change in bench.reorder(range(jobs, 0, -1))]
    reader, asked = bench.slurm.reader(), []

    class Asked:
        def status(self, job_ids):
            asked.append(list(job_ids))
            return reader.status(job_ids)

    bench.slurm.admin_site_factor(changes[3].job_id, 77)
    bench.slurm.admin_site_factor(changes[-1].job_id, 77)
    budget = Budget(limited=False, burst=1.0, rate=1.0, per_cycle=10)
    results = Applier(Asked(), bench.slurm.writer(), bench.journal, budget, bench.clock).apply(changes)
    assert [result.change for result in results] == changes
    assert len(asked[0]) == SPARE + 20
    assert [result.outcome for result in results[:11]].count(Outcome.APPLIED) == 10
    assert results[3].outcome is Outcome.FOREIGN
    assert {result.outcome for result in results[11:]} == {Outcome.THROTTLED}

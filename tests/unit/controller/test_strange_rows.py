"""One strange row costs itself: a job that cannot be understood is left alone, and not forgotten."""

import json

import pytest
from unit.controller.support import Bench
from unit.controller.test_loop import house

from rltuned.controller.give_back.batches import WhatToRestore
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.claims import SETTLE_SECONDS
from rltuned.core.changes import Outcome
from rltuned.core.errors import SlurmParseError
from rltuned.core.unread import RowKind
from rltuned.decide.scope import Veto

KINDS = pytest.mark.parametrize("kind", ["strange", "nameless"])
"""How the row of a job cannot be understood: a value in it, or even whose it is."""


@pytest.fixture
def bench(tmp_path):
    return Bench.make(tmp_path, [1000, 900, 800])


def out(bench):
    """Jobs that carry something of rltuned's."""
    return {job for job, about in bench.slurm.jobs.items() if not bench.slurm.untouched(about)}


@KINDS
def test_of_the_others_those_that_left_are_forgotten_as_ever_or_once_every_row_says_whose_it_is(bench, kind):
    bench.cycle([3, 2, 1])
    getattr(bench.slurm, kind).add(3)
    bench.slurm.leave(2)
    bench.reconcile()
    bench.clock.sleep(SETTLE_SECONDS)
    bench.reconcile()
    assert (2 in bench.journal.entries) is (kind != "strange")
    getattr(bench.slurm, kind).clear()
    bench.reconcile()
    bench.clock.sleep(SETTLE_SECONDS)
    bench.reconcile()
    assert bench.journal.entries.keys() == {3}


@KINDS
def test_restore_leaves_a_job_that_cannot_be_understood_names_it_and_comes_back_to_it(bench, kind):
    bench.cycle([3, 2, 1])
    before = bench.slurm.updates
    getattr(bench.slurm, kind).add(3)
    report = bench.restore()
    assert not report.complete
    (left,) = report.left
    assert (left.job_id, left.remedy) == (3, "rltuned doctor")
    assert "cannot be understood" in left.reason
    assert report.gone == report.running == ()
    assert out(bench) == {3}
    assert 3 in bench.journal.entries
    assert 3 not in [job for job, _, _ in bench.slurm.log[before:]]
    getattr(bench.slurm, kind).clear()
    assert bench.restore().complete
    assert out(bench) == set()


@pytest.mark.parametrize("hands_off", [False, True])
def test_a_job_that_becomes_strange_in_the_middle_of_a_restore_is_not_taken_for_restored(bench, hands_off):
    bench.cycle([3, 2, 1])
    first = bench.slurm.reads

    def turn(number):
        if number - first == 2:  # after the write
            bench.slurm.strange.add(3)

    bench.slurm.before_read = turn
    report = bench.restore(asked=WhatToRestore([2, 3], hands_off=hands_off))
    assert [left.job_id for left in report.left] == [3]
    assert 3 not in report.restored
    assert not bench.journal.entries[3].is_empty
    bench.slurm.before_read = lambda _: None
    bench.slurm.strange.clear()
    bench.restore(asked=WhatToRestore([3]))
    assert 3 not in out(bench)


@KINDS
def test_a_job_that_becomes_strange_between_plan_and_write_is_not_written(bench, kind):
    changes = bench.reorder([3, 2, 1])
    getattr(bench.slurm, kind).add(3)
    results = {result.change.job_id: result for result in bench.apply(changes)}
    assert results[3].outcome is Outcome.THROTTLED
    assert "cannot be understood" in results[3].message
    assert results[2].outcome is Outcome.APPLIED
    assert 3 not in bench.journal.entries
    assert out(bench) == {2}


def test_a_job_that_becomes_strange_between_write_and_read_back_stays_in_doubt_and_is_settled_later(bench):
    changes = bench.reorder([3, 2, 1])

    def turn(number):
        if number == 2:
            bench.slurm.strange.add(3)

    bench.slurm.before_read = turn
    results = {result.change.job_id: result for result in bench.apply(changes)}
    assert results[3].outcome is Outcome.FAILED
    assert "could not be read back" in results[3].message
    assert bench.journal.entries[3].doubts
    bench.slurm.before_read = lambda _: None
    for _ in range(3):
        bench.reconcile()
        bench.clock.sleep(60.0)
    bench.slurm.strange.clear()
    bench.reconcile()
    assert not bench.journal.entries[3].doubts
    bench.restore()
    assert out(bench) == set()


# --- the daemon


def test_a_cycle_goes_on_with_the_other_jobs_counts_the_strange_row_and_says_so_once(tmp_path):
    home = house(tmp_path)
    home.slurm.strange.add(5)
    reports = [home.tick() for _ in range(4)]
    assert {report.outcome for report in reports} == {CycleOutcome.DONE}
    assert len(reports[0].record.jobs) == 11
    assert home.slurm.untouched(home.slurm.jobs[5])
    assert home.metric('rltuned_skipped_rows{kind="job"}') == 1
    assert home.metric('rltuned_skipped_rows{kind="node"}') == 0
    assert home.metric('rltuned_vetoed_jobs{reason="unreadable"}') == 1
    (event,) = home.events("rows.skipped")
    assert "1 rows" in event["sentence"]
    assert "job 5: squeue, job 5, column Nice" in event["rows"][0]
    home.slurm.strange.add(6)
    home.ticks(2)
    assert len(home.events("rows.skipped")) == 2
    home.slurm.strange.clear()
    assert len(home.tick().record.jobs) == 12
    assert home.metric('rltuned_skipped_rows{kind="job"}') == 0
    assert len(home.events("rows.skipped")) == 2
    assert "doctor" in Veto.UNREADABLE.meaning


def test_a_job_that_becomes_strange_keeps_what_it_carries_until_it_can_be_read_again(tmp_path):
    home = house(tmp_path)
    home.ticks(2)
    factor = home.slurm.jobs[12].site_factor
    assert factor
    home.slurm.strange.add(12)
    home.ticks(5)
    assert home.slurm.jobs[12].site_factor == factor
    assert home.daemon.journal.entries[12].applied.site_factor == factor
    assert not home.daemon.journal.entries[12].applied.foreign
    home.slurm.strange.clear()
    home.ticks(2)
    assert not home.daemon.journal.entries[12].applied.foreign


# --- doctor


def test_doctor_names_the_rows_that_it_cannot_understand_and_what_is_on_their_jobs(bench, doctor):
    bench.cycle([3, 2, 1])
    answers = doctor()["answers"]
    assert (answers.severity, answers.cause) == (Severity.OK, "all understood: 3 jobs, 4 nodes, 1 partitions")
    bench.slurm.strange |= {1, 2, 3}
    found = doctor()
    assert found["answers"].severity is Severity.WARNING
    assert "3 rows" in found["answers"].cause
    assert "(3 job)" in found["answers"].cause
    assert "job 1: squeue, job 1, column Nice: number: cannot understand '?'" in found["answers"].cause
    assert "docs/operations.md" in found["answers"].remedy
    assert "2 may" in found["leftovers"].cause


class UnknownFormat:
    """A reader to whom the answer of one command is of a format that it does not know."""

    def __init__(self, reader):
        self._reader = reader

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def snapshot(self, now):
        raise SlurmParseError(
            "scontrol show node, line 1, node 'n1': GRES: cannot understand 'gpu:a:b:c'; likewise 6 more"
        )


def test_doctor_finds_an_answer_that_no_cycle_can_use_and_goes_on(bench, doctor):
    bench.cycle([3, 2, 1])
    found = doctor(UnknownFormat(bench.slurm.reader()))
    assert found["answers"].severity is Severity.ERROR
    assert "node 'n1': GRES" in found["answers"].cause
    assert "slurmctld" not in found
    assert "2 pending jobs carry values" in found["leftovers"].cause


def test_the_label_of_the_metric_is_a_closed_set():
    assert [kind.value for kind in RowKind] == ["job", "node", "partition", "site-factor", "excluded-nodes"]
    assert json.dumps(RowKind.JOB) == '"job"'

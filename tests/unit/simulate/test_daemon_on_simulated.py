"""The real daemon on the simulated Slurm, for hundreds of virtual minutes, among users who come, go and meddle."""

import os

import numpy as np
from unit.controller.lenders import SLACK, Lenders
from unit.simulate.house import NO_ONE, House, busy_slurm, config

from rltuned.controller.cycle.lending import FILE_NAME
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.tell.states import CycleOutcome
from rltuned.core.changes import Field, Outcome
from rltuned.decide.scope import Veto
from rltuned.lab.demo.simulated_slurm import Profile
from rltuned.simulate.values import JobFate

CYCLES = int(os.environ.get("RLTUNED_TEST_SIMULATED_CYCLES", "60"))
"""Of the longest tests: `make test-fast` has little time, 400 take a quarter of a minute."""


def untouchable(slurm):
    """Jobs that people hold, or have given a priority or (as far as sprio shows it) a site factor of their own."""
    rows = slurm.waiting()
    shown = (slurm._their_site[rows] != 0) & slurm._sprio(rows)
    changed = (slurm._hold[rows] > 0) | (slurm._explicit[rows] >= 0) | shown
    return {int(row) + 1 for row in rows[changed]}


def restored(house):
    """``rltuned restore``."""
    report = restore_queue(
        house.config,
        clock=house.slurm.clock,
        connect_reader=lambda _: house.slurm,
        connect_writer=lambda _: house.slurm,
    )
    assert report is not None
    return report


def test_for_hours_it_lowers_nobody_and_touches_nothing_of_others_and_restore_leaves_what_people_left(memory_path):
    house = House(busy_slurm(2 * CYCLES, seed=4), config(memory_path))
    slurm = house.slurm
    vetoes, raced = set(), set()
    moved = 0
    for _ in range(CYCLES):
        house.wait()
        theirs = untouchable(slurm)
        began = slurm.simulation.now
        report = house.cycle()
        assert report.outcome is CycleOutcome.DONE, report.sentence
        # Who decides in the very moment of a write cannot be told from who did not: Slurm has no compare-and-set.
        raced |= {one.row + 1 for one in slurm._interventions if began <= one.time <= slurm.simulation.now}
        plan = house.plans[-1]
        raised = plan.target > plan.base
        moved += int(raised.sum())
        vetoes |= set(plan.scope.vetoed())
        assert (plan.target >= plan.base).all()
        assert raised.sum() <= plan.config.lend.most
        # Of a job with an explicit priority, and of one that people have set back, they decide.
        rows = np.array([row for row in slurm.waiting() if row + 1 not in theirs | raced], dtype=np.intp)
        assert (slurm.priority(rows) >= slurm.alone(rows)).all()
        written = {change.job_id for change, outcome, _ in report.results if outcome is Outcome.APPLIED}
        assert not written & theirs - raced
    assert moved > CYCLES
    assert {Veto.HELD, Veto.FOREIGN} <= vetoes
    assert house.events("cycle.defect") == []
    # Whatever it wrote is in the journal, and restore takes all of it back.
    before = slurm.leftovers()
    assert len(before) > 1
    assert {left.job_id for left in before} <= set(house.daemon.journal.entries)
    house.daemon.stop()
    report = restored(house)
    theirs = {*report.foreign, *raced}
    rows = np.array([row for row in slurm.waiting() if row + 1 not in theirs])
    assert report.complete
    assert [left for left in slurm.leftovers() if left.job_id not in theirs] == []
    assert np.array_equal(slurm.priority(rows), slurm.alone(rows))


def test_with_placement_on_every_job_still_runs(memory_path):
    house = House(busy_slurm(60, seed=4, rates=NO_ONE), config(memory_path, placement="oversubscribe"))
    slurm = house.slurm
    for _ in range(40):
        assert house.tick().outcome is CycleOutcome.DONE
    house.daemon.stop()
    restored(house)
    assert {left.field for left in slurm.leftovers()} <= {Field.OVERSUBSCRIBE}
    slurm.finish()
    assert set(slurm.simulation.result().fate.tolist()) == {int(JobFate.COMPLETED)}


def test_jobs_that_start_between_reading_and_writing_are_gone_not_failed(memory_path):
    house = House(busy_slurm(60, profile=Profile(reading=15.0), rates=NO_ONE), config(memory_path))
    outcomes = [result.outcome for _ in range(25) for result in house.tick().results]
    assert outcomes.count(Outcome.GONE) > 0
    assert set(outcomes) <= {Outcome.GONE, Outcome.APPLIED, Outcome.UNCHANGED, Outcome.THROTTLED}


def test_for_hours_nobody_lends_more_than_its_part_by_who_starts_and_ends(memory_path):
    house = House(busy_slurm(2 * CYCLES, seed=2), config(memory_path))
    slurm, lenders = house.slurm, Lenders(house.config.state.directory / FILE_NAME)
    jobs, simulation, share = slurm.jobs, slurm.simulation, house.config.lend.part
    size, most = np.maximum(jobs.gpus, 1e-3), 0.0
    key = {row: (row + 1, int(slurm.profile.epoch + at)) for row, at in enumerate(jobs.submit_time)}
    for _ in range(CYCLES):
        house.cycle()
        lenders.look()
        started = np.isfinite(simulation.start)
        house.wait()
        for row in np.flatnonzero(np.isfinite(simulation.start) & ~started).tolist():
            lenders.no_lender(key[row])
            lenders.started(row + 1, key[row], float(size[row]), float(simulation.start[row]), unseen=False)
        for row in np.flatnonzero(np.isfinite(simulation.end)).tolist():
            lenders.ended(key[row], float(simulation.end[row]))
        for row in slurm.waiting().tolist():
            lent, beyond = lenders.lent(key[row], simulation.now)
            assert lent <= share * (simulation.now - jobs.submit_time[row]) * size[row] + beyond + SLACK * size[row]
            most += lent
    assert most > 0.0
    assert lenders.loans

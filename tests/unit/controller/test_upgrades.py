"""Slurm is upgraded under the daemon: its programs, then slurmctld, or the other way round, between any two answers."""

import itertools

import pytest
from unit.controller.test_loop import ALL, house

from rltuned.controller.tell.states import CycleOutcome

RELEASES = ((22, 5), (24, 11), (26, 5))


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(RELEASES, 2)))
@pytest.mark.parametrize("restarted", [False, True])
def test_the_cycle_after_an_upgrade_reads_and_writes_as_the_new_release_does(tmp_path, before, after, restarted):
    run = house(tmp_path, lend=ALL)
    run.slurm.release = before
    run.ticks(2)
    raised = {job.job_id: job.site_factor for job in run.slurm.jobs.values()}
    run.slurm.release = after
    if restarted:
        run.slurm.save_state()
        run.slurm.restart()
        run.slurm.calculate()
    run.slurm.submit(900, time_limit=1.0)
    last = run.ticks(3)
    assert last.outcome is CycleOutcome.DONE
    assert last.stage == "active"
    assert run.daemon.slurmctld.facts.release == after, "read before each batch"
    assert not run.events("job.foreign")
    assert not run.events("cycle.defect")
    assert run.slurm.jobs[13].site_factor > 0
    assert {job for job, factor in raised.items() if factor} <= {
        job.job_id for job in run.slurm.jobs.values() if job.site_factor
    }
    run.end()


@pytest.mark.parametrize("step", range(1, 15))
def test_programs_that_are_exchanged_in_the_middle_of_a_cycle_cost_this_cycle_at_most(tmp_path, step):
    run = house(tmp_path, lend=ALL)
    run.slurm.release = (24, 11)
    run.tick()
    run.slurm.submit(900, time_limit=1.0)
    asked, answer = 0, type(run.daemon.parts.reader._runner).answer

    def exchanged(self, name):
        nonlocal asked
        asked += 1
        if asked == step:
            run.slurm.release = (26, 5)
        return answer(self, name)

    commands = run.daemon.parts.reader._runner
    commands.answer = exchanged.__get__(commands)
    run.tick()
    del commands.answer
    last = run.ticks(2)
    assert last.outcome is CycleOutcome.DONE
    assert not run.events("job.foreign")
    assert not run.events("cycle.defect")
    run.end()

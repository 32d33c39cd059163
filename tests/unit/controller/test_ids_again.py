"""Job ids that come again (MaxJobId): a new job has nothing of the one that had its id before."""

import pytest
from unit.controller.test_loop import ALL, again, house

from rltuned.controller.cycle.lending import read_book
from rltuned.slurm.port import Privilege


def another_with_the_id(run, job_id, **values):
    """The job is gone, and somebody submits another one that gets its id."""
    run.slurm.jobs.pop(job_id, None)
    following, run.slurm.next_id = run.slurm.next_id, job_id
    job = run.slurm.submit(700, time_limit=5000.0, submit_time=int(run.slurm.clock.now), **values)
    run.slurm.next_id = following
    assert job.job_id == job_id
    return job


@pytest.mark.parametrize("seen", ["at once", "in between", "after a restart", "while nothing can be written"])
@pytest.mark.parametrize("held", [False, True])
def test_a_new_job_with_the_id_of_a_raised_one_is_a_job_like_any_other(tmp_path, held, seen):
    run = house(tmp_path, lend=ALL)
    run.tick()
    which = [job for job, entry in run.daemon.journal.entries.items() if entry.claims][3]
    if seen == "in between":
        run.slurm.leave(which)
        run.slurm.clock.sleep(1.0)
        run.daemon.tick()
        run.slurm.clock.sleep(1.0)
    if seen == "after a restart":
        run.daemon.stop()
        run = again(tmp_path, run.slurm, lend=ALL)
    if seen == "while nothing can be written":
        run.slurm.privilege = Privilege.NONE
        run.slurm.clock.sleep(400.0)
    new = another_with_the_id(run, which, hold="user" if held else "")
    if held and seen != "at once":
        run.tick()
    run.slurm.privilege = Privilege.OPERATOR
    if held:
        run.slurm.user_release(which)
    run.ticks(3)
    assert not run.events("job.foreign")
    entry = run.daemon.journal.entries.get(which)
    assert entry is None or not entry.applied.foreign
    book = read_book(tmp_path / "state")[0]
    # What the one before may have used is still lent: nobody knows yet what became of it.
    assert which not in book.loans or book.loans[which].submit_time < new.submit_time
    assert which not in book.offers or book.offers[which].submit_time == new.submit_time
    run.end()

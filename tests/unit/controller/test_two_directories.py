"""Two daemons on one cluster that do not know of each other: each has a state directory of its own."""

from unit.controller.test_loop import ALL, again, house

from rltuned.controller.tell.states import CycleOutcome


def test_of_two_daemons_none_touches_what_the_other_wrote_and_the_second_says_so(tmp_path):
    first = house(tmp_path / "first", lend=ALL)
    first.tick()
    second = again(tmp_path / "second", first.slurm, lend=ALL)
    for number in range(4):
        first.slurm.submit(850 - number, time_limit=2.0 + number)
        raised = {job: first.slurm.jobs[job].site_factor for job in first.daemon.journal.entries}
        assert second.tick().outcome is CycleOutcome.DONE
        assert {job: first.slurm.jobs[job].site_factor for job in raised} == raised
        assert first.tick().outcome is CycleOutcome.DONE
    for run in (first, second):
        assert not run.events("job.foreign")
    assert not set(first.daemon.journal.entries) & set(second.daemon.journal.entries)
    assert "no other rltuned" in second.events("jobs.orphaned")[0]["remedy"]
    (found,) = [finding for finding in second.examine() if finding.subject == "orphans"]
    assert "no other rltuned" in found.remedy
    for run in (first, second):
        run.daemon.stop()
        assert run.restore().complete
    assert first.untouched()

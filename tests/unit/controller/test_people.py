"""What users, admins and plugins do while rltuned has lent a job a better place."""

import pytest
from unit.controller.test_loop import again, house

from rltuned.core.changes import Outcome
from rltuned.core.config import Stage


@pytest.mark.parametrize("befalls", ["held by its user", "held by an admin", "limit of its QOS"])
def test_a_job_that_is_held_or_blocked_gives_back_what_raised_it_within_a_cycle(tmp_path, befalls):
    run = house(tmp_path)
    run.ticks(2)
    raised, shown = 12, run.slurm.reason
    assert run.slurm.jobs[raised].site_factor > 0
    if befalls == "limit of its QOS":
        run.slurm.reason = lambda job: "QOSMaxGRESPerUser" if job.job_id == raised else shown(job)
    else:
        run.slurm.hold(raised, "user" if "user" in befalls else "admin")
    before = len(run.slurm.log)
    run.tick()
    assert run.slurm.jobs[raised].site_factor == 0
    run.ticks(5)
    assert [value for job, _, value in run.slurm.log[before:] if job == raised] == [0], "once"


def job_submit(slurm, plugin):
    """The plugin runs on each update, as slurmctld has it."""
    plain = slurm.carry_out

    def carry_out(line):
        plugin(slurm.jobs[int(line.split(" ")[1].removeprefix("JobId="))])
        return plain(line)

    slurm.carry_out = carry_out


def test_the_first_write_is_of_one_job_and_a_plugin_that_changes_jobs_with_it_ends_in_shadow(tmp_path):
    run = house(tmp_path)
    job_submit(run.slurm, lambda job: setattr(job, "time_limit", job.time_limit + 60.0))
    report = run.tick()
    assert run.slurm.updates == 1
    assert [item.outcome for item in report.results if item.outcome is not Outcome.THROTTLED] == [Outcome.ALTERED]
    run.ticks(8)
    assert run.daemon.stage is Stage.SHADOW
    assert "job_submit plugin" in str(run.daemon.state.refusal)
    assert all(job.site_factor == 0 for job in run.slurm.jobs.values())


def test_after_a_first_write_that_changes_nothing_else_the_same_cycle_writes_the_rest(tmp_path):
    run = house(tmp_path)
    sent = []
    job_submit(run.slurm, lambda _: sent.append(run.slurm.reads))
    report = run.tick()
    assert {item.outcome for item in report.results} == {Outcome.APPLIED}
    assert [sent.count(reads) for reads in dict.fromkeys(sent)] == [1, len(report.results) - 1]
    # One job again for a slurmctld that was started since: its plugins may be others.
    sent.clear()
    run.slurm.restart()
    run.slurm.calculate()
    run.slurm.clock.sleep(3600.0)
    run.ticks(2)
    for job in run.slurm.jobs.values():
        job.multifactor = 2000 - job.multifactor
    run.ticks(2)
    assert [sent.count(reads) for reads in dict.fromkeys(sent)][:1] == [1]


def array_of_two(run, **values):
    """An array, the last of the queue and the smallest job, and a task of it with a record of its own."""
    tiny = {"user": "dora", "account": "other", "time_limit": 30.0}
    array = run.slurm.submit(500, tasks="0-3", **tiny)
    return array, run.slurm.submit(500, array=array.job_id, **tiny | values)


@pytest.mark.parametrize(
    "task",
    [
        {"nodes": 4, "gpus": 16, "time_limit": 7 * 86_400.0},
        {"qos": "high"},
        {"nice": 7},
        {"site_factor": -400},
        {"explicit": 900},
        {"hold": "user"},
        {"partition": "left"},
    ],
)
def test_a_task_of_an_array_that_was_changed_alone_is_not_raised_with_the_others_and_keeps_what_others_set(
    tmp_path, task
):
    run = house(tmp_path)
    array, changed = array_of_two(run, **task)
    changed.site_factor = changed.site_factor or (-77 if changed.hold else 0)
    before = changed.site_factor
    report = run.ticks(3)
    assert (array.site_factor, changed.site_factor) == (0, before)
    assert any(job.site_factor for job in run.slurm.jobs.values())
    assert array.job_id in report.record.vetoed["split-array"]
    assert run.metric("rltuned_unknown_reasons") == 0


@pytest.mark.parametrize(
    ("task", "left"),
    [({"time_limit": 7 * 86_400.0}, False), ({"site_factor": 0}, False), ({"site_factor": -400}, True)],
    ids=["changed", "requeued", "of an admin"],
)
def test_a_task_that_is_changed_after_its_array_was_raised_takes_the_raise_from_it_but_never_an_admins_value(
    tmp_path, task, left
):
    run = house(tmp_path)
    array, changed = array_of_two(run)
    del run.slurm.jobs[changed.job_id]
    run.ticks(2)
    ours = array.site_factor
    assert ours > 0
    run.slurm.jobs[changed.job_id] = changed
    for name, value in ({"site_factor": ours} | task).items():
        setattr(changed, name, value)
    run.ticks(2)
    assert (array.site_factor, changed.site_factor) == ((ours, -400) if left else (0, 0))
    assert run.daemon.restoring.retries.waiting == ([array.job_id] if left else [])


def test_a_job_is_ranked_by_the_largest_request_that_it_ever_showed(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    assert run.slurm.order() == [4, 3, 2, 1]
    run.slurm.jobs[2].time_limit = 1.0
    run.tick()
    assert run.slurm.order() == [4, 3, 1, 2], "what was written for the old request is taken back"
    run.tick()
    assert run.slurm.order() == [4, 3, 2, 1]
    run.daemon.stop()
    run = again(tmp_path, run.slurm)
    run.tick()
    assert run.slurm.order() == [4, 3, 2, 1], "a daemon that is started again knows it"
    # It was another job that had the id.
    run.slurm.jobs[2].submit_time += 100
    run.ticks(2)
    assert run.slurm.order()[0] == 2


def test_a_first_write_that_proves_nothing_is_followed_by_another_one(tmp_path):
    run = house(tmp_path)
    sent = []

    def start_the_first(job):
        if not sent:
            run.slurm.start(job.job_id)
        sent.append((run.slurm.reads, job.job_id))

    job_submit(run.slurm, start_the_first)
    report = run.tick()
    outcomes = {item.change.job_id: item.outcome for item in report.results}
    assert outcomes[sent[0][1]] is Outcome.GONE
    batches = [reads for reads, _ in sent]
    assert [batches.count(reads) for reads in dict.fromkeys(batches)][:2] == [1, 1]
    assert Outcome.APPLIED in outcomes.values()

"""What the state machine has found, each as the shortest run of its rules: kept for ever.

A failing run of `test_machine` prints its rules as they stand here. Say in the key what it is about; numbers are those
of the list of defects that it was found for.
"""

import pytest
from unit.controller.test_machine import Machine

from rltuned.core.config import PlacementApply, Stage
from rltuned.slurm.port import Privilege


class Rules:
    """`do.rule(argument=…)` is a step of a run."""

    def __getattr__(self, name):
        return lambda **values: lambda machine: getattr(machine, name)(**values)


do = Rules()


def begin(*, at_stake=True, **values):
    """`at_stake`: the first cycle has moved jobs."""
    usual = {"release": (24, 11), "placement": PlacementApply.OFF, "ageing": 0.0, "limiter": False}
    return at_stake, usual | {"jobs": 3, "stage": Stage.ACTIVE} | values


def an_admin_sets_a_factor_before_the_cycle_reads(machine):
    """Between slurmctld's last saving and the cycle that sees it."""
    world = machine.world
    world.anchored.append(("command jobs", lambda: world.slurm.person_sets_factor(7, -70_001)))
    world.pass_time(300.0)


OURS = {"nice": 0, "partition": "gpu", "qos": "normal", "tasks": "", "waited": 0.0, "dependent": False, "gpus": 1}

FOUND = {
    **{
        f"1 a cluster of which {answer} cannot be understood for hours is given back by the daemon itself": [
            begin(),
            do.answers_make_no_sense(names={answer}, cut=False),
            do.hours_pass(hours=5),
        ]
        for answer in ("nodes", "jobs", "partitions")
    },
    **{
        f"1 a row that nobody understands for hours is given back as soon as it can be, {unreadable}": [
            begin(),
            do.strange_row(which=1, unreadable=unreadable),
            do.hours_pass(hours=5),
        ]
        for unreadable in (False, True)
    },
    **{
        f"4 leftovers are given back whatever starts next, {stage}, {dry_run}": [
            begin(),
            do.kill(name="daemon", steps=0, supervised=False),
            do.start(stage=stage, dry_run=dry_run, supervised=True),
        ]
        for stage in (Stage.SHADOW, Stage.OBSERVE, Stage.ACTIVE)
        for dry_run in (False, True)
    },
    **{
        f"8 requeue-held jobs keep their entry while they keep our value, {how}": [
            begin(),
            do.start_job(after=0, which=1),
            do.requeue_held(after=0, how=how, which=1),
            do.time_passes(minutes=11),
        ]
        for how in ("requeue", "special")
    },
    **{
        f"9 a wall clock that jumps lets nobody restore beside a living daemon, {seconds}": [
            begin(),
            do.the_wall_clock_jumps(seconds=seconds),
            do.the_policy_changes_its_mind(mind=7),
        ]
        for seconds in (-3600.0, -20.0, 300.0, 7200.0)
    },
    "an admins change that a killed slurmctld forgets leaves nothing of ours": [
        begin(jobs=9),
        an_admin_sets_a_factor_before_the_cycle_reads,
        do.slurmctld_killed_and_started(after=0),
    ],
    "1 a cluster that is under load for hours is given back": [
        begin(),
        do.fault(what="overloaded", after=0),
        do.hours_pass(hours=5),
    ],
    "1 disks that are full for hours leave nothing that nobody wants": [
        begin(),
        do.disk(copy="state", how="full"),
        do.disk(copy="mirror", how="full"),
        do.the_policy_changes_its_mind(mind=9),
        do.hours_pass(hours=5),
    ],
    "2 an admins priority of one stands": [
        begin(),
        do.set_priority(after=0, value=1, which=0),
        do.time_passes(minutes=11),
    ],
    "2 what is hidden under an admins priority of one is taken back": [
        begin(),
        do.set_priority(after=0, value=1, which=0),
        do.stop(steps=None),
    ],
    "3 a paced restore reads again before each batch": [
        begin(limiter=True, jobs=14),
        do.time_passes(minutes=20),
        do.stop(steps=None),
    ],
    "5 what could not be given back once is tried again": [
        begin(),
        do.privilege_changes(level=Privilege.NONE),
        do.reload(stage=Stage.SHADOW, mind=1),
        do.hours_pass(hours=2),
    ],
    "13 restore of a job that carried nothing yet keeps hands off it": [
        begin(stage=Stage.SHADOW),
        do.stop(steps=None),
        do.restore_by_name(which=1),
        do.start(stage=Stage.ACTIVE, dry_run=False, supervised=True),
        do.time_passes(minutes=11),
    ],
    "13 restore beside a daemon of a job that carries nothing keeps hands off it": [
        begin(),
        do.submit(
            after=0, dependent=False, gpus=1, nice=0, partition="gpu", priority=900, qos="normal", tasks="", user="bob"
        ),
        do.restore_by_name(which=3),
        *(do.the_policy_changes_its_mind(mind=mind) for mind in (3, 5, 7)),
    ],
    "slurmctld killed right after a restore brings nothing back that nobody knows": [
        begin(),
        do.stop(steps=None),
        do.slurmctld_killed_and_started(after=0),
    ],
    "restore knows our earlier value after slurmctld was killed": [
        begin(ageing=0.01, jobs=5),
        do.stop(steps=0),
        do.slurmctld_killed_and_started(after=0),
    ],
    "a state directory that became read only does not keep restore from giving back": [
        begin(),
        do.disk(copy="state", how="readonly"),
        do.stop(steps=None),
        do.hours_pass(hours=2),
    ],
    "a cancelled job that a killed slurmctld brings back is still known": [
        begin(jobs=5),
        do.cancel(after=0, which=0),
        do.stop(steps=None),
        do.slurmctld_killed_and_started(after=0),
    ],
    "what restore gave back while both disks were full is not taken for somebody elses doing": [
        begin(release=(22, 5)),
        do.disk(copy="mirror", how="full"),
        do.disk(copy="state", how="full"),
        do.stopped_for_a_while(after=0, minutes=6),
    ],
    "what the dead man gives back while no disk takes the heartbeat is not somebody elses doing": [
        begin(release=(22, 5), jobs=5, limiter=True),
        do.disk(copy="state", how="full"),
        do.more_time_passes(minutes=5),
        do.disk(copy="mirror", how="full"),
        *[do.more_time_passes(minutes=5)] * 5,
    ],
    "a dead man that helps in the very cycle in which the daemon can act again is nobody else": [
        begin(release=(22, 5), jobs=9, limiter=True),
        do.slurmctld_stops(after=0),
        do.more_time_passes(minutes=5),
        do.time_passes(minutes=20),
        do.limit(limited=True, which=0),
    ],
    "a dead man that helps once the privilege is back is nobody else": [
        begin(release=(22, 5), jobs=5, limiter=True),
        do.privilege_changes(level=Privilege.NONE),
        do.restore_by_name(which=0),
        do.stopped_for_a_while(after=0, minutes=6),
        do.change_nice(after=0, nice=0, which=0),
        do.hours_pass(hours=1),
    ],
    "a journal that is cut in the middle of a line does not lose the next one too": [
        begin(release=(22, 5), jobs=5),
        do.hold(after=0, which=0, who="user"),
        *[do.partition_down(partition="gpu", up=False)] * 8,
        do.journal_damaged(at=0.5, copy="state", how="torn"),
        do.journal_damaged(at=0.0, copy="mirror", how="gone"),
    ],
    "a restore by name that cannot understand the job does not say that it is done": [
        begin(at_stake=False, release=(22, 5), jobs=2, ageing=0.01),
        do.stopped_for_a_while(after=21, minutes=6),
        do.the_policy_changes_its_mind(mind=7),
        do.answers_make_no_sense(cut=False, names={"status"}),
        do.restore_by_name(which=0),
    ],
    "ours comes back with a slurmctld that forgets an admins change although a restore ran in between": [
        begin(release=(22, 5), jobs=3),
        do.restore_all(),
        do.restore_all(),
        do.set_site_factor(after=1, value=-70001, which=1),
        do.the_policy_changes_its_mind(mind=3),
        do.restore_all(),
        do.stop(steps=None),
        do.slurmctld_killed_and_started(after=0),
    ],
    "the dead man gives back where the lock is gone and the file system read only": [
        begin(release=(22, 5), jobs=3),
        do.lock_removed(),
        do.slurmctld_stops(after=0),
        do.stopped_for_a_while(after=8, minutes=6),
        do.slurmctld_comes_back(lost=False),
        do.disk(copy="state", how="readonly"),
        do.hours_pass(hours=2),
    ],
    "a value that the plan took back is in doubt on a job that is held when slurmctld is killed": [
        begin(release=(22, 5), jobs=9),
        do.the_policy_changes_its_mind(mind=20),
        do.lock_removed(),
        do.slurmctld_killed_and_started(after=0),
        do.hold(after=0, which=11, who="user"),
        do.hours_pass(hours=1),
    ],
    "a value that the plan took back is in doubt on a job that has an explicit priority by then": [
        begin(release=(22, 5), jobs=5, ageing=0.01),
        do.hours_pass(hours=1),
        *[do.restore_all()] * 4,
        do.cancel(after=1, which=0),
        *[do.restore_all()] * 3,
        do.answers_make_no_sense(cut=False, names={"status", "jobs"}),
        do.set_priority(after=0, value=1, which=0),
        do.slurmctld_killed_and_started(after=0),
        do.hours_pass(hours=1),
        do.set_priority(after=0, value=1, which=3),
        do.restore_all(),
    ],
    "a value that a killed slurmctld brings back is in doubt on a job that is held before it is seen": [
        begin(release=(22, 5), jobs=5),
        do.stopped_for_a_while(after=1, minutes=6),
        do.slurmctld_killed_and_started(after=0),
        do.hold(after=0, which=0, who="user"),
    ],
    "a queue that nobody can read for a while does not end what was lent": [
        begin(release=(22, 5), jobs=2, at_stake=False),
        do.the_policy_changes_its_mind(mind=2),
        do.answers_make_no_sense(cut=False, names={"jobs"}),
        do.front_starts(count=1),
    ],
    "what a borrower uses counts from the moment of the reading however long that takes": [
        begin(release=(22, 5)),
        do.fault(after=0, what="slow"),
        do.a_raised_job_starts(after=0, which=0),
        do.hours_pass(hours=1),
    ],
    "a job has the wait of one that its user cancelled also with another limit": [
        begin(release=(22, 5), jobs=14, calm=True, put_back=True),
        do.the_policy_changes_its_mind(mind=1),
        do.the_policy_changes_its_mind(mind=1),
        do.a_job_ends(after=0, which=0),
        do.the_policy_changes_its_mind(mind=46),
        do.submit(after=0, limit=60.0, user="alice", priority=2144, **OURS),
        do.the_policy_changes_its_mind(mind=1),
        do.the_policy_changes_its_mind(mind=1),
        do.cancel(after=0, which=0),
        do.a_job_ends(after=0, which=0),
        do.the_policy_changes_its_mind(mind=1),
        do.the_policy_changes_its_mind(mind=3),
        do.a_raised_job_starts(after=0, which=0),
    ],
    "a borrower that ends while few are shown is counted by the next reading": [
        begin(release=(22, 5), ageing=0.01, predicted=0.1, calm=True),
        do.cancel(after=1, which=0),
        do.submit(after=13, limit=60.0, priority=1, user="alice", **OURS),
        do.another_raised_job_starts(after=0, minutes=6, which=0),
        do.time_passes(minutes=6),
    ],
}


@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_what_the_machine_has_found_does_not_come_again(found):
    (at_stake, values), *steps = found
    machine = Machine()
    try:
        machine.begin(**values)
        assert bool(machine.world.ours()) is at_stake or values["stage"] is not Stage.ACTIVE, "nothing is at stake"
        machine.fine()
        for step in steps:
            step(machine)
            machine.fine()
        machine.finish()
    finally:
        machine.finish = lambda: None
        machine.teardown()

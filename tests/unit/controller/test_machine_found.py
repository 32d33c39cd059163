"""What the state machine has found, each as the shortest run of its rules: kept for ever.

A failing run of `test_machine` prints its rules as they stand here. Say above each what it is about; numbers are those
of the list of defects that it was found for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from unit.controller.test_machine import Machine

from rltuned.core.config import PlacementApply, Stage
from rltuned.slurm.port import Privilege

BEGIN = {
    "release": (24, 11),
    "placement": PlacementApply.OFF,
    "ageing": 0.0,
    "limiter": False,
    "jobs": 3,
    "stage": Stage.ACTIVE,
}


class Played:
    """A machine whose invariants are asked for after each rule."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __getattr__(self, name: str):
        rule = getattr(self.machine, name)

        def play(**values: object) -> None:
            rule(**values)
            self.machine.fine()

        return play


@contextmanager
def run(*, at_stake: bool = True, **values: object) -> Iterator[Played]:
    """A run; at its end all faults end, and all must be given back. `at_stake`: the first cycle has moved jobs."""
    machine = Machine()
    try:
        machine.begin(**BEGIN | values)
        writes = values.get("stage", Stage.ACTIVE) is Stage.ACTIVE
        assert bool(machine.world.ours()) is at_stake or not writes, "nothing is at stake"
        machine.fine()
        yield Played(machine)
        finish, machine.finish = machine.finish, lambda: None
        finish()
    finally:
        machine.finish = lambda: None
        machine.teardown()


@pytest.mark.parametrize("answer", ["nodes", "jobs", "partitions"])
def test_1_a_cluster_that_cannot_be_understood_for_hours_is_given_back_by_the_daemon_itself(answer):
    with run() as play:
        play.answers_make_no_sense(names={answer}, cut=False)
        play.hours_pass(hours=5)


def test_1_a_cluster_that_is_under_load_for_hours_is_given_back():
    with run() as play:
        play.fault(what="overloaded", after=0)
        play.hours_pass(hours=5)


@pytest.mark.parametrize("unreadable", [False, True])
def test_1_a_row_that_nobody_understands_for_hours_is_given_back_as_soon_as_it_can_be(unreadable):
    with run() as play:
        play.strange_row(which=1, unreadable=unreadable)
        play.hours_pass(hours=5)


def test_1_disks_that_are_full_for_hours_leave_nothing_that_nobody_wants():
    with run() as play:
        play.disk(copy="state", how="full")
        play.disk(copy="mirror", how="full")
        play.the_policy_changes_its_mind(mind=9)
        play.hours_pass(hours=5)


def test_2_an_admins_priority_of_one_stands():
    with run() as play:
        play.set_priority(after=0, value=1, which=0)
        play.time_passes(minutes=11)


def test_2_what_is_hidden_under_an_admins_priority_of_one_is_taken_back():
    with run() as play:
        play.set_priority(after=0, value=1, which=0)
        play.stop(steps=None)


def test_3_a_paced_restore_reads_again_before_each_batch():
    with run(limiter=True, jobs=14) as play:
        play.time_passes(minutes=20)
        play.stop(steps=None)


@pytest.mark.parametrize("stage", [Stage.SHADOW, Stage.OBSERVE, Stage.ACTIVE])
@pytest.mark.parametrize("dry_run", [False, True])
def test_4_leftovers_are_given_back_whatever_starts_next(stage, dry_run):
    with run() as play:
        play.kill(name="daemon", steps=0, supervised=False)
        play.start(stage=stage, dry_run=dry_run, supervised=True)


def test_5_what_could_not_be_given_back_once_is_tried_again():
    with run() as play:
        play.privilege_changes(level=Privilege.NONE)
        play.reload(stage=Stage.SHADOW, mind=1)
        play.hours_pass(hours=2)


@pytest.mark.parametrize("how", ["requeue", "special"])
def test_8_requeue_held_jobs_keep_their_entry_while_they_keep_our_value(how):
    with run() as play:
        play.start_job(after=0, which=1)
        play.requeue_held(after=0, how=how, which=1)
        play.time_passes(minutes=11)


@pytest.mark.parametrize("seconds", [-3600.0, -20.0, 300.0, 7200.0])
def test_9_a_wall_clock_that_jumps_lets_nobody_restore_beside_a_living_daemon(seconds):
    with run() as play:
        play.the_wall_clock_jumps(seconds=seconds)
        play.the_policy_changes_its_mind(mind=7)


def test_13_restore_of_a_job_that_carried_nothing_yet_keeps_hands_off_it():
    with run(stage=Stage.SHADOW) as play:
        play.stop(steps=None)
        play.restore_by_name(which=1)
        play.start(stage=Stage.ACTIVE, dry_run=False, supervised=True)
        play.time_passes(minutes=11)


def test_13_restore_beside_a_daemon_of_a_job_that_carries_nothing_keeps_hands_off_it():
    with run() as play:
        play.submit(
            after=0, dependent=False, gpus=1, nice=0, partition="gpu", priority=900, qos="normal", tasks="", user="bob"
        )
        play.restore_by_name(which=3)
        for mind in (3, 5, 7):
            play.the_policy_changes_its_mind(mind=mind)


def test_slurmctld_killed_right_after_a_restore_brings_nothing_back_that_nobody_knows():
    with run() as play:
        play.stop(steps=None)
        play.slurmctld_killed_and_started(after=0)


def test_restore_knows_our_earlier_value_after_slurmctld_was_killed():
    with run(ageing=0.01, jobs=5) as play:
        play.stop(steps=0)
        play.slurmctld_killed_and_started(after=0)


def test_a_state_directory_that_became_read_only_does_not_keep_restore_from_giving_back():
    with run() as play:
        play.disk(copy="state", how="readonly")
        play.stop(steps=None)
        play.hours_pass(hours=2)


def test_a_cancelled_job_that_a_killed_slurmctld_brings_back_is_still_known():
    with run(jobs=5) as play:
        play.cancel(after=0, which=0)
        play.stop(steps=None)
        play.slurmctld_killed_and_started(after=0)


def test_an_admins_change_that_a_killed_slurmctld_forgets_leaves_nothing_of_ours():
    with run(jobs=9) as play:
        world = play.machine.world
        # Between slurmctld's last saving and the cycle that sees it.
        world.anchored.append(("command jobs", lambda: world.slurm.person_sets_factor(7, -70_001)))
        world.pass_time(300.0)
        play.slurmctld_killed_and_started(after=0)


def test_what_restore_gave_back_while_both_disks_were_full_is_not_taken_for_somebody_elses_doing():
    with run(release=(22, 5)) as play:
        play.disk(copy="mirror", how="full")
        play.disk(copy="state", how="full")
        play.stopped_for_a_while(after=0, minutes=6)


def test_what_the_dead_man_gives_back_while_no_disk_takes_the_heartbeat_is_not_somebody_elses_doing():
    with run(release=(22, 5), jobs=5, limiter=True) as play:
        play.disk(copy="state", how="full")
        play.more_time_passes(minutes=5)
        play.disk(copy="mirror", how="full")
        for _ in range(5):
            play.more_time_passes(minutes=5)


def test_a_dead_man_that_helps_in_the_very_cycle_in_which_the_daemon_can_act_again_is_nobody_else():
    with run(release=(22, 5), jobs=9, limiter=True) as play:
        play.slurmctld_stops(after=0)
        play.more_time_passes(minutes=5)
        play.time_passes(minutes=20)
        play.limit(limited=True, which=0)


def test_a_dead_man_that_helps_once_the_privilege_is_back_is_nobody_else():
    with run(release=(22, 5), jobs=5, limiter=True) as play:
        play.privilege_changes(level=Privilege.NONE)
        play.restore_by_name(which=0)
        play.stopped_for_a_while(after=0, minutes=6)
        play.change_nice(after=0, nice=0, which=0)
        play.hours_pass(hours=1)


def test_a_journal_that_is_cut_in_the_middle_of_a_line_does_not_lose_the_next_one_too():
    with run(release=(22, 5), jobs=5) as play:
        play.hold(after=0, which=0, who="user")
        for _ in range(8):
            play.partition_down(partition="gpu", up=False)
        play.journal_damaged(at=0.5, copy="state", how="torn")
        play.journal_damaged(at=0.0, copy="mirror", how="gone")


def test_a_restore_by_name_that_cannot_understand_the_job_does_not_say_that_it_is_done():
    with run(at_stake=False, release=(22, 5), jobs=2, ageing=0.01) as play:
        play.stopped_for_a_while(after=21, minutes=6)
        play.the_policy_changes_its_mind(mind=7)
        play.answers_make_no_sense(cut=False, names={"status"})
        play.restore_by_name(which=0)


def test_ours_comes_back_with_a_slurmctld_that_forgets_an_admins_change_although_a_restore_ran_in_between():
    with run(release=(22, 5), jobs=3) as play:
        play.restore_all()
        play.restore_all()
        play.set_site_factor(after=1, value=-70001, which=1)
        play.the_policy_changes_its_mind(mind=3)
        play.restore_all()
        play.stop(steps=None)
        play.slurmctld_killed_and_started(after=0)


def test_the_dead_man_gives_back_where_the_lock_is_gone_and_the_file_system_read_only():
    with run(release=(22, 5), jobs=3) as play:
        play.lock_removed()
        play.slurmctld_stops(after=0)
        play.stopped_for_a_while(after=8, minutes=6)
        play.slurmctld_comes_back(lost=False)
        play.disk(copy="state", how="readonly")
        play.hours_pass(hours=2)


def test_a_value_that_the_plan_took_back_is_in_doubt_on_a_job_that_is_held_when_slurmctld_is_killed():
    with run(release=(22, 5), jobs=9) as play:
        play.the_policy_changes_its_mind(mind=20)
        play.lock_removed()
        play.slurmctld_killed_and_started(after=0)
        play.hold(after=0, which=11, who="user")
        play.hours_pass(hours=1)


def test_a_value_that_the_plan_took_back_is_in_doubt_on_a_job_that_has_an_explicit_priority_by_then():
    with run(release=(22, 5), jobs=5, ageing=0.01) as play:
        play.hours_pass(hours=1)
        for _ in range(4):
            play.restore_all()
        play.cancel(after=1, which=0)
        for _ in range(3):
            play.restore_all()
        play.answers_make_no_sense(cut=False, names={"status", "jobs"})
        play.set_priority(after=0, value=1, which=0)
        play.slurmctld_killed_and_started(after=0)
        play.hours_pass(hours=1)
        play.set_priority(after=0, value=1, which=3)
        play.restore_all()


def test_a_value_that_a_killed_slurmctld_brings_back_is_in_doubt_on_a_job_that_is_held_before_it_is_seen():
    with run(release=(22, 5), jobs=5) as play:
        play.stopped_for_a_while(after=1, minutes=6)
        play.slurmctld_killed_and_started(after=0)
        play.hold(after=0, which=0, who="user")


def test_a_queue_that_nobody_can_read_for_a_while_does_not_end_what_was_lent():
    with run(release=(22, 5), jobs=2, at_stake=False) as play:
        play.the_policy_changes_its_mind(mind=2)
        play.answers_make_no_sense(cut=False, names={"jobs"})
        play.front_starts(count=1)


def test_what_a_borrower_uses_counts_from_the_moment_of_the_reading_however_long_that_takes():
    with run(release=(22, 5)) as play:
        play.fault(after=0, what="slow")
        play.a_raised_job_starts(after=0, which=0)
        play.hours_pass(hours=1)


def test_a_job_has_the_wait_of_one_that_its_user_cancelled_also_with_another_limit():
    """Found after half an hour, in the count beside: limits may differ."""
    with run(release=(22, 5), jobs=14, calm=True, put_back=True) as play:
        play.the_policy_changes_its_mind(mind=1)
        play.the_policy_changes_its_mind(mind=1)
        play.a_job_ends(after=0, which=0)
        play.the_policy_changes_its_mind(mind=46)
        ours = {"nice": 0, "partition": "gpu", "priority": 2144, "qos": "normal", "tasks": "", "waited": 0.0}
        play.submit(after=0, dependent=False, gpus=1, limit=60.0, user="alice", **ours)
        play.the_policy_changes_its_mind(mind=1)
        play.the_policy_changes_its_mind(mind=1)
        play.cancel(after=0, which=0)
        play.a_job_ends(after=0, which=0)
        play.the_policy_changes_its_mind(mind=1)
        play.the_policy_changes_its_mind(mind=3)
        play.a_raised_job_starts(after=0, which=0)


def test_a_borrower_that_ends_while_few_are_shown_is_counted_by_the_next_reading():
    """Found after half an hour, in the count beside: of three jobs one ended between sdiag and squeue."""
    with run(release=(22, 5), ageing=0.01, predicted=0.1, calm=True) as play:
        play.cancel(after=1, which=0)
        ours = {"nice": 0, "partition": "gpu", "qos": "normal", "tasks": "", "waited": 0.0}
        play.submit(after=13, dependent=False, gpus=1, limit=60.0, priority=1, user="alice", **ours)
        play.another_raised_job_starts(after=0, minutes=6, which=0)
        play.time_passes(minutes=6)

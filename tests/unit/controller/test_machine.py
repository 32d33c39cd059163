"""Everything that may happen, in any order: a state machine of the whole daemon (see `machine_world`).

`make test` runs a bounded number of examples. RLTUNED_TEST_MACHINE_MINUTES=30 (`make soak-machine`) runs with random
seeds for so long and prints what it did. A run that fails is written down for ever in `test_machine_found`.
"""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from unit.controller.machine_slurm import PARTITIONS, Cluster
from unit.controller.machine_world import NAMES, OUTSIDER, World
from unit.controller.model_slurm import WAITED

from rltuned.core.config import PlacementApply, Stage
from rltuned.slurm.port import Privilege

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
USERS = ("alice", "bob", "carol")
STEPS = 30  # rules of one example
EXAMPLES = int(os.environ.get("RLTUNED_TEST_MACHINE_EXAMPLES", "100"))
PARTS = 4  # tests that share the examples, so that workers can share them, too

MINUTES = float(os.environ.get("RLTUNED_TEST_MACHINE_MINUTES", "0"))  # go on for so long with random seeds
IGNORED = frozenset(filter(None, os.environ.get("RLTUNED_TEST_MACHINE_IGNORE", "").split(",")))
"""Invariants that are not asked for, by name (`machine_world.NAMES`): to look behind a defect that is known."""

COUNTS: Counter[str] = Counter()

WHICH = st.integers(0, 15)  # place of a job in the queue, modulo its length
SOON = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, 13, 21, 34])  # how many steps of ours later it happens; 0: at once
STAGES = st.sampled_from([Stage.ACTIVE, Stage.ACTIVE, Stage.ACTIVE, Stage.CANARY, Stage.SHADOW, Stage.OBSERVE])
COPIES = st.sampled_from(["state", "mirror"])
TROUBLE = precondition(lambda self: not self.calm)
"""Not in a run in which only jobs come and start: there orders last, and budgets are used up."""
READS = ("jobs", "status", "site-factors", "nodes", "partitions", "diagnostics", "excluded", "config")


def to_a_job(name, act, *, trouble=False, **draws):
    """A rule: what somebody does to one job, as a method of the cluster does it."""

    def play(self, which, after, **values):
        self.to_job(which, after, lambda job: act(self.world.slurm, job, **values))

    play.__name__ = name
    made = rule(which=WHICH, after=SOON, **draws)(play)
    return TROUBLE(made) if trouble else made


class Machine(RuleBasedStateMachine):
    """Rules are what may happen; invariants are the promises of the README."""

    world: World
    calm = False

    @initialize(
        release=st.sampled_from([(22, 5), (24, 11), (26, 5)]),
        placement=st.sampled_from([PlacementApply.OFF, PlacementApply.OFF, PlacementApply.OVERSUBSCRIBE]),
        ageing=st.sampled_from([0.0, 0.01]),
        limiter=st.booleans(),
        jobs=st.sampled_from([2, 3, 5, 9, 14]),
        stage=STAGES,
        share=st.sampled_from([0.1, 0.1, 0.5, 0.0]),
        most=st.sampled_from([16, 16, 2]),
        predicted=st.sampled_from([1.0, 0.1]),
        calm=st.sampled_from([False, False, False, True]),
        put_back=st.booleans(),
    )
    def begin(self, jobs, stage, calm=False, put_back=False, **settings):
        self.calm, stage = calm, Stage.ACTIVE if calm else stage
        self.directory = tempfile.mkdtemp(dir=MEMORY)
        self.world = World(Path(self.directory), ignored=IGNORED, **settings)
        for number in range(jobs):
            user, limit = USERS[number % len(USERS)], 600.0 * (number % 3 + 1)
            self.world.slurm.submit(500 + 733 * number % 1000, user=user, time_limit=limit)
        self.world.pass_time(60.0)
        self.world.backfill = self.world.slurm.backfill_goes_on if put_back else None
        self.world.start(stage)
        self.world.pass_time(301.0)

    def teardown(self):
        world = getattr(self, "world", None)
        if world is None:
            return
        try:
            if not world.violations:
                self.finish()
            for kind, number in (("checks", world.checks), ("ticks", world.ticks), ("operations", world.slurm.op)):
                COUNTS[kind] += number
            COUNTS["examples"] += 1
        finally:
            world.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def finish(self):
        """All faults end, nobody does anything; then the daemon is stopped for good."""
        self.world.settle()
        self.fine()
        self.world.leave()
        self.fine()

    @invariant()
    def fine(self):
        world = getattr(self, "world", None)
        if world is None:
            return
        COUNTS["rules"] += 1
        world.look_around()
        texts = [f"[{name}] {text}" for name, text in world.violations]
        assert not texts, "\n".join(texts[:5])

    # --- helpers

    def job(self, which: int) -> int | None:
        ids = sorted(self.world.slurm.jobs)
        return ids[which % len(ids)] if ids else None

    def somebody(self, after: int, act) -> None:
        """What a person or Slurm does, now or in the middle of something of ours. Only while slurmctld answers."""
        self.soon(after, lambda: act() if self.world.slurm.answers else None)

    def soon(self, after: int, act) -> None:
        if after == 0:
            act()
        else:
            self.world.later.append((after, act))

    def to_job(self, which: int, after: int, act) -> None:
        self.one_of(sorted(self.world.slurm.jobs), which, after, act)

    def one_of(self, jobs: list[int], which: int, after: int, act) -> None:
        if jobs:
            job = jobs[which % len(jobs)]
            self.somebody(after, lambda: act(job) if job in self.world.slurm.jobs else None)

    # --- time

    @rule(minutes=st.sampled_from([1, 5, 6, 11, 20]))
    def time_passes(self, minutes):
        self.world.pass_time(60.0 * minutes)

    @rule(minutes=st.sampled_from([5, 6, 11, 45]))
    def more_time_passes(self, minutes):
        self.world.pass_time(60.0 * minutes)

    @TROUBLE
    @rule(hours=st.sampled_from([1, 2, 5]))
    def hours_pass(self, hours):
        self.world.pass_time(3600.0 * hours)

    @TROUBLE
    @rule(seconds=st.sampled_from([-3600.0, -20.0, 20.0, 300.0, 7200.0]))
    def the_wall_clock_jumps(self, seconds):
        self.world.set_clock(seconds)
        self.world.pass_time(120.0)

    # --- users

    @rule(
        priority=st.integers(1, 3000),
        nice=st.sampled_from([0, 0, 300, -20]),
        user=st.sampled_from([*USERS, OUTSIDER]),
        partition=st.sampled_from([*PARTITIONS, "left,right"]),
        qos=st.sampled_from(["normal", "normal", "high"]),
        tasks=st.sampled_from(["", "", "", "1-5"]),
        dependent=st.sampled_from([False, False, False, True]),
        gpus=st.sampled_from([1, 1, 2, 4]),
        limit=st.sampled_from([60.0, 600.0, 3600.0, 36_000.0]),
        waited=st.sampled_from([0.0, 3600.0, WAITED, WAITED]),
        after=SOON,
    )
    def submit(self, priority, after, limit=600.0, waited=WAITED, **values):
        def act():
            if len(self.world.slurm.jobs) < 16:
                submitted = int(self.world.clock.time() - waited)
                self.world.slurm.submit(priority, time_limit=limit, submit_time=submitted, **values)

        self.somebody(after, act)

    hold = to_a_job("hold", Cluster.person_holds, trouble=True, who=st.sampled_from(["user", "admin"]))
    release = to_a_job("release", Cluster.person_releases, admin=st.booleans())
    change_nice = to_a_job("change_nice", Cluster.person_sets_nice, nice=st.sampled_from([0, 50, 500, -70]))
    top = to_a_job("top", Cluster.person_tops)
    exclude_nodes = to_a_job("exclude_nodes", Cluster.person_excludes, nodes=st.sampled_from(["", "n1", "n2,n3"]))
    cancel = to_a_job("cancel", Cluster.leave)
    set_priority = to_a_job(
        "set_priority", Cluster.person_sets_priority, trouble=True, value=st.sampled_from([1, 1, 777, 100_000])
    )
    set_site_factor = to_a_job(
        "set_site_factor", Cluster.person_sets_factor, trouble=True, value=st.sampled_from([-70_001, 13, 70_001])
    )
    requeue_held = to_a_job(
        "requeue_held", Cluster.requeue_held, trouble=True, how=st.sampled_from(["requeue", "special"])
    )
    start_job = to_a_job("start_job", Cluster.start)
    requeue = to_a_job("requeue", Cluster.requeue, trouble=True)

    @rule(
        which=WHICH,
        what=st.sampled_from(
            [
                *(("time_limit", 60.0), ("time_limit", 90_000.0), ("gpus", 4)),
                *(("qos", "high"), ("partition", "left"), ("account", "chemistry")),
            ]
        ),
        after=SOON,
    )
    def change_request(self, which, what, after):
        self.to_job(which, after, lambda job: self.world.slurm.person_changes_request(job, *what))

    # --- admins

    @TROUBLE
    @rule(which=WHICH)
    def restore_by_name(self, which):
        job = self.job(which)
        if job is not None:
            self.world.restore_by_name(job)

    @TROUBLE
    @rule()
    def restore_all(self):
        self.world.restore("restore")

    @TROUBLE
    @rule(partition=st.sampled_from(sorted(PARTITIONS)), up=st.booleans())
    def partition_down(self, partition, up):
        self.world.slurm.happened()
        (self.world.slurm.down.discard if up else self.world.slurm.down.add)(partition)

    # --- Slurm

    @rule(which=st.one_of(st.none(), WHICH), after=SOON, mind=st.integers(1, 50))
    def backfill_goes_on(self, which, after, mind):
        """A backfill cycle that began before what was written lately puts old priorities back."""
        slurm, job = self.world.slurm, None if which is None else self.job(which)

        def act():
            slurm.backfill_goes_on(jobs=None if job is None else [job])

        self.world.policy.seed = mind
        if after == 0:
            self.world.backfill = act
        else:
            self.somebody(after, act)
        self.world.pass_time(301.0)

    @rule(count=st.integers(1, 4))
    def front_starts(self, count):
        """As many jobs start as Slurm finds room for, in the order of priority; others come."""
        slurm = self.world.slurm
        if slurm.answers:
            front = sorted(slurm.tasks(), key=lambda job: (-slurm.priority(job), job.job_id))
            waiting = [job.job_id for job in front if job.state == "PD" and slurm.eligible(job)]
            for job in waiting[:count]:
                slurm.start(job)
            for number in range(min(count, 16 - len(slurm.jobs))):
                user, limit = USERS[slurm.next_id % len(USERS)], 600.0 * (number + 1)
                slurm.submit(500 + 733 * slurm.next_id % 1000, user=user, time_limit=limit)
        self.world.pass_time(301.0)

    @rule(which=WHICH, after=SOON)
    def a_raised_job_starts(self, which, after):
        """It was raised for that."""
        slurm = self.world.slurm
        raised = [job.job_id for job in slurm.tasks() if job.state == "PD" and job.site_factor > 0]
        self.one_of(raised, which, after, slurm.start)

    @rule(which=WHICH, after=SOON)
    def a_job_ends(self, which, after):
        slurm = self.world.slurm
        running = [job.job_id for job in slurm.tasks() if job.state == "R"]
        self.one_of(running, which, after, slurm.leave)

    @rule(which=WHICH, after=SOON, minutes=st.sampled_from([6, 11, 45]))
    def another_raised_job_starts(self, which, after, minutes):
        self.a_raised_job_starts(which, after)
        self.world.pass_time(60.0 * minutes)

    @TROUBLE
    @rule(which=WHICH, limited=st.booleans())
    def limit(self, which, limited):
        job = self.job(which)
        if job is not None:
            self.world.slurm.happened()
            self.world.slurm.task(job).limited = limited

    @TROUBLE
    @rule(after=SOON)
    def slurmctld_restarted(self, after):
        self.somebody(after, self.world.slurm.restart)

    @TROUBLE
    @rule(after=SOON)
    def slurmctld_killed_and_started(self, after):
        self.somebody(after, self.world.slurm.crash_and_start)

    @TROUBLE
    @rule()
    def slurmctld_loses_its_state(self):
        self.somebody(0, self.world.slurm.lose_state)

    @TROUBLE
    @rule(after=SOON)
    def slurmctld_stops(self, after):
        self.somebody(after, lambda: setattr(self.world.slurm, "up", False))

    @TROUBLE
    @rule(after=SOON)
    def slurmctld_freezes(self, after):
        self.somebody(after, lambda: setattr(self.world.slurm, "frozen", True))

    @precondition(lambda self: not self.world.slurm.answers)
    @rule(lost=st.booleans())
    def slurmctld_comes_back(self, lost):
        slurm = self.world.slurm
        if slurm.frozen and not lost:
            slurm.thaw()
        else:
            slurm.crash_and_start()

    @TROUBLE
    @rule(
        what=st.sampled_from(
            ["refused", "cut", "lost_answers", "overloaded", "dbd_away", "slow", "very slow", "strange_node", "none"]
        ),
        after=SOON,
    )
    def fault(self, what, after):
        def act():
            faults = self.world.slurm.faults
            if what == "none":
                self.world.end_faults()
            elif what in {"slow", "very slow"}:
                faults.slow = 3.0 if what == "slow" else 25.0
            else:
                setattr(faults, what, True)

        self.soon(after, act)

    @TROUBLE
    @rule(which=WHICH, unreadable=st.booleans())
    def strange_row(self, which, unreadable):
        faults = self.world.slurm.faults
        faults.strange_job, faults.unreadable = self.job(which) or 0, unreadable

    @TROUBLE
    @rule(names=st.sets(st.sampled_from(READS), min_size=1, max_size=2), cut=st.booleans())
    def answers_make_no_sense(self, names, cut):
        faults = self.world.slurm.faults
        exclusive = {f"{name}-exclusive" for name in names & {"jobs", "status"}}
        if cut:
            faults.truncated |= names | exclusive
        else:
            faults.garbled |= names | exclusive

    @TROUBLE
    @rule(level=st.sampled_from([Privilege.NONE, Privilege.NONE, Privilege.OPERATOR, Privilege.ADMIN]))
    def privilege_changes(self, level):
        self.world.slurm.privilege = level

    # --- disk

    @TROUBLE
    @rule(copy=COPIES, how=st.sampled_from(["full", "readonly", "fine"]))
    def disk(self, copy, how):
        disk, root = self.world.disk, self.world.root / copy
        disk.full.discard(root)
        disk.readonly.discard(root)
        if how != "fine":
            getattr(disk, how).add(root)

    @TROUBLE
    @rule(copy=COPIES, how=st.sampled_from(["gone", "torn", "flipped"]), at=st.floats(0, 1))
    def journal_damaged(self, copy, how, at):
        self.world.damage(copy, how, at)

    @TROUBLE
    @rule(how=st.sampled_from(["gone", "torn"]), at=st.floats(0, 0.99))
    def loans_damaged(self, how, at):
        self.world.damage_loans(how, at)

    # --- kernel and systemd

    @TROUBLE
    @precondition(lambda self: self.world.daemon is not None)
    @rule(
        name=st.sampled_from(["daemon", "daemon", "stop-post", "dead-man"]),
        steps=st.integers(0, 60),
        supervised=st.booleans(),
    )
    def kill(self, name, steps, supervised):
        self.world.plan_kill(name, steps, supervised=supervised)
        self.world.pass_time(301.0)

    @TROUBLE
    @precondition(lambda self: self.world.daemon is not None)
    @rule(steps=st.one_of(st.none(), st.integers(0, 40)))
    def stop(self, steps):
        if steps is not None:
            self.world.plan_kill("stop-post", steps, supervised=self.world.supervised)
        self.world.stop()

    @TROUBLE
    @precondition(lambda self: self.world.daemon is not None)
    @rule(minutes=st.sampled_from([2, 6, 25, 60]), after=SOON)
    def stopped_for_a_while(self, minutes, after):
        """SIGSTOP, a debugger, swapping."""
        self.soon(after, lambda: self.world.stop_for(60.0 * minutes))
        self.world.pass_time(301.0)

    @TROUBLE
    @rule()
    def lock_removed(self):
        self.world.remove_lock()

    @precondition(lambda self: self.world.daemon is None)
    @rule(
        stage=STAGES,
        dry_run=st.sampled_from([False, False, False, True]),
        supervised=st.booleans(),
    )
    def start(self, stage, dry_run, supervised):
        self.world.start(stage, dry_run=dry_run, supervised=supervised)

    @TROUBLE
    @precondition(lambda self: self.world.daemon is not None)
    @rule(
        stage=STAGES,
        mind=st.integers(1, 50),
        placement=st.sampled_from([None, *PlacementApply]),
        out=st.sampled_from([(OUTSIDER,), (OUTSIDER, "bob")]),
    )
    def reload(self, stage, mind, placement=None, out=(OUTSIDER,)):
        world = self.world
        world.policy.seed, world.outsiders = mind, out
        world.placement = placement or world.placement
        world.reload(stage)

    @TROUBLE
    @rule(hours=st.sampled_from([None, 1, 5]))
    def pause(self, hours):
        self.world.pause(None if hours is None else 3600.0 * hours)
        self.world.pass_time(301.0)

    @TROUBLE
    @rule()
    def resume(self):
        self.world.resume()
        self.world.pass_time(301.0)

    @rule(mind=st.integers(1, 50))
    def the_policy_changes_its_mind(self, mind):
        self.world.policy.seed = mind
        self.world.pass_time(301.0)


def run(examples: int, number: int | None = None, *, shrink: bool = True) -> None:
    """So many examples of the machine; of the seed `number`, where there is one."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    machine = Machine if number is None else seed(number)(Machine)
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.skipif(MINUTES > 0, reason="RLTUNED_TEST_MACHINE_MINUTES: random seeds instead")
@pytest.mark.parametrize("number", range(1, PARTS + 1))
def test_whatever_happens_the_queue_is_given_back_and_nobody_lends_more_than_a_part(number):
    assert set(NAMES) >= IGNORED
    run(EXAMPLES // PARTS, number)  # the same each time: what chance finds is `make soak-machine`'s to find


@pytest.mark.skipif(MINUTES <= 0, reason="takes long: make soak-machine")
def test_whatever_happens_for_a_long_time_the_queue_is_given_back_and_nobody_lends_more_than_a_part():
    until, found = time.monotonic() + 60.0 * MINUTES, []
    while time.monotonic() < until:
        number = random.SystemRandom().randrange(1 << 32)
        try:
            run(100, number)
        except AssertionError as error:
            found.append(f"seed {number}: {error}\n" + "\n".join(getattr(error, "__notes__", [])))
            print(found[-1], flush=True)  # noqa: T201 - asked for by hand
        done = ", ".join(f"{count} {what}" for what, count in sorted(COUNTS.items()))
        print(f"seed {number}: {len(found)} violations so far; {done}", flush=True)  # noqa: T201 - asked for by hand
    assert not found, "\n\n".join(found)

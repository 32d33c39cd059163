import io
import json
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace

import pytest
from prometheus_client import generate_latest
from unit.controller.model_slurm import WAITED, Commands, ModelReader, ModelSlurm, VirtualClock
from unit.controller.support import files_no_longer_than, make_daemon, planned

from rltuned.controller.cycle.lending import read_book
from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.give_back import pause
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.health.clock import Moment
from rltuned.controller.health.heartbeat import read_heartbeat
from rltuned.controller.health.lock import Lock
from rltuned.controller.health.prerequisites import Severity
from rltuned.controller.health.runtime import Cause
from rltuned.controller.health.slurmctld import FACTS_SECONDS
from rltuned.controller.shown.checks import examine, remains
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.states import BreakerState, CycleOutcome
from rltuned.core.changes import Field, Outcome
from rltuned.core.config import (
    Config,
    CycleSection,
    LendSection,
    PolicySection,
    ScopeSection,
    Stage,
    StateSection,
    WriteSection,
)
from rltuned.core.errors import (
    ConfigError,
    JournalError,
    RltunedError,
    SlurmDeniedError,
    SlurmParseError,
    SlurmUnavailableError,
)
from rltuned.core.scheduler import Health
from rltuned.records.decisions import load
from rltuned.slurm.port import Privilege


@dataclass
class House:
    """A daemon on the model cluster, its log as JSON lines."""

    slurm: ModelSlurm
    daemon: Daemon
    stream: io.StringIO

    def tick(self):
        report = self.daemon.tick()
        self.slurm.clock.sleep(60.0)
        return report

    def ticks(self, count):
        return [self.tick() for _ in range(count)][-1]

    def events(self, name):
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    def untouched(self):
        """Whether nothing of ours is on any job."""
        return all(map(self.slurm.untouched, self.slurm.jobs.values()))

    def restore(self, **values):
        """``rltuned restore``."""
        values = {"connect_reader": lambda _: self.slurm.reader()} | values
        connect = {"clock": self.slurm.clock, "connect_writer": lambda _: self.slurm.writer()}
        return restore_queue(self.daemon.config, **connect, **values)

    def end(self):
        """The daemon stops, and all that is ours is given back."""
        self.daemon.stop()
        assert self.restore().complete
        assert self.untouched()

    def examine(self):
        """``rltuned doctor``."""
        return examine(self.slurm.reader(), self.daemon.config, self.slurm.clock)

    def metric(self, name):
        text = generate_latest(self.daemon.runtime.metrics.registry).decode()
        (value,) = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name + " ")]
        return float(value)


def config(directory, stage=Stage.ACTIVE, **sections):
    return Config(
        cycle=CycleSection(stage=stage, interval=60.0),
        policy=PolicySection(name="sjf"),
        state=StateSection(directory=directory / "state", mirror=directory / "mirror"),
        **sections,
    )


def showing(**facts):
    """A reader to which these facts of the cluster are others."""

    class Showing(ModelReader):
        def facts(self, known=None):
            return replace(super().facts(known), **facts)

    return Showing


LIMITED = showing(rate_limiter=True)
"""A slurmctld with its RPC limiter on."""
ALL = LendSection(share=1.0, most=100)
"""All may be raised."""


def house(directory, *, jobs=12, **values):
    slurm = ModelSlurm(VirtualClock())
    # Short jobs come last: sjf turns the queue round. The first one is raised by nobody.
    for number in range(jobs):
        slurm.submit(1000 - number, time_limit=10.0 * (jobs - number))
    return again(directory, slurm, **values)


def again(directory, slurm, *, dry_run=False, reader=None, **values):
    """A new daemon on the cluster."""
    stream, asked = io.StringIO(), reader(slurm) if reader else slurm.reader()
    writer = None if dry_run else slurm.writer
    return House(slurm, make_daemon(config(directory, **values), asked, writer, slurm.clock, log=stream), stream)


def test_one_cycle_brings_the_queue_into_the_policys_order_and_lowers_nobody(tmp_path):
    run = house(tmp_path)
    report = run.tick()
    assert report.outcome is CycleOutcome.DONE
    assert report.count(Outcome.APPLIED) == planned(report) == len(report.record.raises) == 11
    assert run.slurm.order() == list(range(12, 0, -1))
    raised = {job.job_id for job in run.slurm.jobs.values() if run.slurm.priority(job) > run.slurm.alone(job)}
    assert raised == set(range(2, 13))
    assert run.slurm.untouched(run.slurm.jobs[1])
    assert planned(run.tick()) == 0


def test_each_cycle_says_one_sentence_at_info_only_where_it_says_something_else_than_in_the_last_hour(tmp_path):
    run = house(tmp_path)
    run.ticks(3)
    done = run.events("cycle.done")
    assert "12 pending, 12 managed, 11 raised" in done[0]["sentence"]
    assert "11 of 11 changes applied" in done[0]["sentence"]
    assert "nothing to change" in done[2]["sentence"]
    run.ticks(60)
    levels = [event["level"] for event in run.events("cycle.done")]
    assert [at for at, level in enumerate(levels) if level == "info"] == [0, 1, 61], "and once an hour"
    assert set(levels) == {"info", "debug"}
    run.slurm.submit(10, time_limit=1.0)
    run.daemon.parts.planner = None
    run.ticks(2)
    assert [event["level"] for event in run.events("cycle.done")][-2:] == ["warning", "warning"]


def test_each_job_that_is_raised_or_given_back_is_a_line_at_info_with_why_and_how_many_it_passes(tmp_path):
    run = house(tmp_path, jobs=6)
    run.ticks(2)
    raised = {event["job"]: event for event in run.events("job.raised")}
    assert sorted(raised) == [2, 3, 4, 5, 6]
    assert len(run.events("job.raised")) == 5
    last = raised[6]
    assert next(iter(last)) == "sentence"
    said = "Job 6 goes ahead of 5 others, from place 6 to 1: policy sjf wants it; 1 of them lend."
    assert (last["sentence"], last["level"], last["passes"]) == (said, "info", 5)
    assert (last["before"], last["after"]) == (0, run.slurm.jobs[6].site_factor)
    run.slurm.jobs[6].time_limit = 1000.0
    run.slurm.jobs[5].nice = -5
    run.ticks(2)
    back = {event["job"]: event for event in run.events("job.given_back")}
    assert {5, 6} <= back.keys()
    assert back[6]["before"] == last["after"]
    assert "Job 6 has Slurm's own place again: what it asks for has changed" in back[6]["sentence"]
    assert "Job 5 has Slurm's own place again: an admin gave it a negative nice" in back[5]["sentence"]
    assert {event["level"] for event in back.values()} == {"info"}


def test_a_raise_that_becomes_smaller_is_no_giving_back(tmp_path):
    run = house(tmp_path, jobs=4)
    first, second, *_ = run.slurm.jobs.values()
    first.nice = -5  # nobody passes it
    first.multifactor, second.multifactor = 200_000, 100_000
    run.ticks(2)
    first.multifactor, second.multifactor = 3_000, 2_000
    run.ticks(2)
    assert not run.events("job.given_back")
    *_, event = run.events("job.raised")
    assert 0 < event["after"] < event["before"]
    assert f"Job {event['job']} goes ahead of" in event["sentence"]


def test_a_job_that_goes_ahead_no_more_is_given_back_with_the_reason_of_the_rule(tmp_path):
    run = house(tmp_path, jobs=4)
    run.ticks(2)
    config = run.daemon.config
    run.daemon.reload(lambda: config.model_copy(update={"lend": LendSection(share=1.0, most=1)}))
    run.tick()
    assert [event["job"] for event in run.events("job.given_back")] == [2, 3]
    (*_, event) = run.events("job.given_back")
    assert event["sentence"].endswith("others that the policy wants more go ahead already, as many as may at a time.")
    assert event["after"] == 0
    run.daemon.state.put(Cause.DEMOTED, "demoted: too many alarms")
    run.tick()
    (*_, event) = run.events("job.given_back")
    assert event["sentence"] == "Job 4 has Slurm's own place again: demoted: too many alarms."


def test_a_dry_run_constructs_no_writer_yet_plans_measures_and_records(tmp_path):
    run = house(tmp_path, dry_run=True)
    report = run.ticks(3)
    assert run.slurm.writers == 0
    assert run.slurm.updates == 0
    assert report.stage is Stage.SHADOW
    assert planned(report) == 11
    assert "dry run" in report.sentence
    assert len(load(tmp_path / "state").changes) == 11
    assert run.metric("rltuned_managed_jobs") == 12
    assert run.metric('rltuned_stage{stage="shadow"}') == 1
    with pytest.raises(RltunedError, match="no writer"):
        run.daemon.parts.write()
    beat = read_heartbeat(Moment.of(run.slurm.clock), tmp_path / "state", tmp_path / "mirror")
    assert beat is None, "the dead-man timer has to give leftovers back"


@pytest.mark.parametrize("stage", [Stage.OBSERVE, Stage.SHADOW])
def test_observe_and_shadow_write_nothing_to_slurm(tmp_path, stage):
    run = house(tmp_path, stage=stage)
    assert (planned(run.ticks(2)) == 0) is (stage is Stage.OBSERVE)
    assert run.slurm.updates == run.slurm.writers == 0


def test_canary_writes_only_to_its_share_of_the_jobs(tmp_path):
    run = house(tmp_path, jobs=60, stage=Stage.CANARY, scope=ScopeSection(canary="40 %"))
    report = run.tick()
    touched = {job for job, _, _ in run.slurm.log}
    assert len(touched) == 16
    assert touched == {result.change.job_id for result in report.results}
    assert all(zlib.crc32(str(job).encode()) % 10_000 < 4000 for job in touched)


def test_the_decision_record_tells_what_became_of_each_change(tmp_path):
    run = house(tmp_path)
    run.slurm.before_read = lambda number: run.slurm.hold(3) if number == 3 else None
    run.tick()
    outcomes = load(tmp_path / "state").outcomes
    assert outcomes[3] == {Field.SITE_FACTOR: Outcome.HELD}
    assert outcomes[4] == {Field.SITE_FACTOR: Outcome.APPLIED}


def test_a_slurmctld_that_is_down_at_the_start_is_waited_for(tmp_path):
    run = house(tmp_path)
    run.slurm.up = False
    assert run.ticks(5).outcome is not CycleOutcome.DONE
    assert run.daemon.slurmctld.breaker.state is BreakerState.OPEN
    run.slurm.up = True
    assert run.tick().outcome is CycleOutcome.DONE, "the cheap question is asked in each cycle"
    assert run.slurm.order() == list(range(12, 0, -1))


def test_an_unexpected_error_is_logged_with_its_traceback_and_the_loop_goes_on(tmp_path):
    run = house(tmp_path)
    plan, calls = run.daemon.parts.planner, []

    def broken(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError("nobody foresaw this")
        return plan(*arguments)

    run.daemon.parts.planner = broken
    assert run.tick().outcome is CycleOutcome.FAILED
    (defect,) = run.events("cycle.defect")
    assert any("nobody foresaw this" in line for line in defect["exception"])
    assert run.tick().outcome is CycleOutcome.DONE


def test_an_answer_that_cannot_be_understood_writes_nothing_and_backs_off(tmp_path):
    run = house(tmp_path, reader=Deaf)
    run.daemon.parts.reader.broken = True
    run.ticks(3)
    assert run.tick().outcome is CycleOutcome.WAITING, "ping answers, but that was not the trouble"
    assert run.slurm.updates == 0
    assert run.metric('rltuned_slurm_errors_total{kind="parse"}') == 3
    run.daemon.parts.reader.broken = False
    assert any(run.tick().outcome is CycleOutcome.DONE for _ in range(4))


@pytest.mark.parametrize("load", [Health(server_threads=129), Health(agent_queue=501)], ids=["threads", "messages"])
def test_under_load_a_cycle_plans_but_writes_nothing(tmp_path, load):
    run = house(tmp_path, reader=Deaf)
    run.daemon.parts.reader.busy, run.daemon.parts.reader.load = True, load
    report = run.tick()
    assert report.outcome is CycleOutcome.SHED
    assert planned(report) == 11
    assert run.slurm.updates == 0
    run.daemon.parts.reader.busy = False
    assert run.tick().count(Outcome.APPLIED) == 11


def test_missing_privilege_keeps_it_in_shadow_mode_names_the_remedy_and_is_noticed_when_granted(tmp_path):
    run = house(tmp_path)
    run.slurm.privilege = Privilege.NONE
    report = run.ticks(3)
    assert report.stage is Stage.SHADOW
    assert run.slurm.writers == run.slurm.updates == 0
    (error,) = run.events("prerequisite.missing")
    assert "AdminLevel=Operator" in error["remedy"]
    run.slurm.privilege = Privilege.OPERATOR
    run.slurm.clock.sleep(3600.0)
    assert run.tick().stage is Stage.ACTIVE


def test_alarms_in_a_row_demote_to_shadow_give_the_queue_back_and_a_reload_ends_that(tmp_path):
    run = house(tmp_path, reader=showing(privilege=Privilege.OPERATOR))
    run.tick()
    run.slurm.privilege = Privilege.NONE  # which accounting does not know: every write is denied from now on
    for number in range(6):
        run.slurm.submit(500 - number, time_limit=1.0 + number)  # all of them belong in front
    run.ticks(2)
    assert run.daemon.stage is Stage.ACTIVE
    run.tick()
    assert run.daemon.stage is Stage.SHADOW
    (event,) = run.events("stage.demoted")
    assert "3 alarms in a row" in event["sentence"]
    assert run.metric("rltuned_demoted") == 1
    run.slurm.privilege = Privilege.OPERATOR
    run.ticks(3)
    assert run.untouched()
    pause.ask(tmp_path / "state", Moment.of(run.slurm.clock), 30.0)
    run.tick()
    assert run.metric("rltuned_demoted") == 1, "a pause does not take back the demotion"
    run.tick()
    assert run.metric("rltuned_demoted") == 1
    assert run.daemon.reload(lambda: config(tmp_path))
    assert run.tick().stage is Stage.ACTIVE
    assert run.metric("rltuned_demoted") == 0


class Deaf(ModelReader):
    """Answers the cheap questions; what the plan needs cannot be understood (`broken`) or does not come in time
    (`slow`: no outage of slurmctld), or that is `busy`, with this `load`."""

    broken = slow = busy = False
    load = Health(server_threads=129)

    def snapshot(self, now):
        if self.slow:
            self.slurm.clock.sleep(20.0)
            raise SlurmUnavailableError("scontrol (nodes) gave no complete answer within 20 s; killed")
        if self.broken:
            raise SlurmParseError("scontrol show node, line 3: GRES: cannot understand 'gpu:(null):2'")
        shot = super().snapshot(now)
        return replace(shot, health=replace(self.load, since=shot.health.since)) if self.busy else shot


@pytest.mark.parametrize("trouble", ["broken", "slow", "busy", "defect"])
def test_a_daemon_that_lives_but_cannot_act_gives_everything_back_after_a_while_and_starts_anew_later(
    tmp_path, trouble
):
    run = house(tmp_path, reader=Deaf)
    run.tick()
    assert not run.untouched()
    with ExitStack() as stack:
        if trouble == "defect":
            stack.callback(setattr, run.daemon.parts, "planner", run.daemon.parts.planner)
            run.daemon.parts.planner = lambda *_: 1 / 0
        else:
            setattr(run.daemon.parts.reader, trouble, True)
            stack.callback(setattr, run.daemon.parts.reader, trouble, False)
        run.ticks(10)
        assert not run.untouched(), "not for a trouble of some minutes"
        assert run.metric("rltuned_unable_seconds") > 500
        run.ticks(10)
        assert run.untouched()
        assert len(run.events("queue.given_back")) == 1
        written = run.slurm.updates
        run.ticks(180)
        assert run.slurm.updates == written
    run.ticks(20)
    assert run.slurm.order() == list(range(12, 0, -1))
    assert run.metric("rltuned_unable_seconds") == 0
    assert run.metric("rltuned_foreign_jobs") == 0


class Blind(ModelReader):
    """A user who lost the privilege where PrivateData hides the jobs of others: they see their own, or none."""

    own: ModelSlurm | None = None

    def facts(self, known=None):
        return replace(super().facts(known), private_jobs=True)

    def snapshot(self, now):
        if self.slurm.privilege is not Privilege.NONE:
            return super().snapshot(now)
        if self.own is None:
            raise SlurmParseError("squeue shows no job, but slurmctld counts 12 pending")
        return self.own.reader().snapshot(now)

    def status(self, job_ids=None):
        return {} if self.slurm.privilege is Privilege.NONE else super().status(job_ids)


@pytest.mark.parametrize("own_jobs", [0, 1])
def test_jobs_that_a_lost_privilege_hides_are_not_gone(tmp_path, own_jobs):
    run = house(tmp_path, reader=Blind)
    run.tick()
    if own_jobs:
        run.daemon.parts.reader.own = ModelSlurm(run.slurm.clock)
        run.daemon.parts.reader.own.submit(500)  # the id of a job that is not in the journal
        run.daemon.parts.reader.own.jobs = {99: replace(run.daemon.parts.reader.own.jobs[1], job_id=99)}
    run.slurm.privilege = Privilege.NONE
    run.ticks(60)
    assert len(run.daemon.journal.entries) == 11
    run.daemon.stop()
    for _ in range(3):
        with pytest.raises(SlurmDeniedError, match="PrivateData=jobs hides"):
            run.restore(connect_reader=lambda _: Blind(run.slurm))
        run.slurm.clock.sleep(60.0)
    run.slurm.privilege = Privilege.OPERATOR
    assert len(run.restore(connect_reader=lambda _: Blind(run.slurm)).restored) == 11
    assert run.untouched()


@pytest.mark.parametrize("first", [1, 5001])
@pytest.mark.parametrize(("out", "passed"), [(True, 0.0), (False, FACTS_SECONDS), (False, 0.0)])
def test_while_another_cluster_answers_nothing_is_written_to_it_and_nothing_is_forgotten(tmp_path, first, out, passed):
    run = house(tmp_path, jobs=12 if out else 0)
    run.tick()
    slurm, ours = run.slurm, {job: one.site_factor for job, one in run.slurm.jobs.items()}
    mine, entries = slurm.jobs, dict(run.daemon.journal.entries)
    slurm.cluster, slurm.jobs, slurm.next_id = "other", {}, first
    slurm.clock.sleep(passed)
    for number in range(5):
        slurm.submit(900 - number, time_limit=10.0 * (5 - number), submit_time=500_000)
    before = slurm.updates
    report = run.ticks(40)
    assert (report.outcome, "cluster model, and other answers" in report.sentence) == (CycleOutcome.FAILED, True)
    run.daemon.stop()
    with nullcontext() if not out else pytest.raises(JournalError, match="cluster model, and other answers"):
        run.restore()
    run = again(tmp_path, slurm)
    run.ticks(3)
    assert (slurm.updates, dict(run.daemon.journal.entries)) == (before, entries)
    slurm.cluster, slurm.jobs = "model", mine
    report = run.ticks(2)
    assert report.outcome is CycleOutcome.DONE
    assert {job: one.site_factor for job, one in slurm.jobs.items()} == ours


def cut(run, command, kept=slice(None), nth=None):
    """From now on, or the `nth` time, the answer to a command of Slurm's has these lines only. Ends it, if called."""
    asked, whole = [], run.daemon.parts.reader._runner

    class Cut(Commands):
        def answer(self, name):
            out, err, code = super().answer(name)
            asked.extend([name] * (name == command))
            short = name == command and nth in {None, len(asked)}
            return "".join(out.splitlines(keepends=True)[kept]) if short else out, err, code

    run.daemon.parts.reader._runner = Cut(run.slurm)
    return lambda: setattr(run.daemon.parts.reader, "_runner", whole)


@pytest.mark.parametrize("kept", range(9))
@pytest.mark.parametrize(("command", "cycles"), [("site-factors", 1), ("jobs", 3), ("status", 3)])
def test_an_answer_that_is_cut_at_the_end_of_a_line_makes_no_job_foreign_or_forgotten(tmp_path, command, cycles, kept):
    run = house(tmp_path, jobs=9)
    run.ticks(2)
    before = {job: one.site_factor for job, one in run.slurm.jobs.items()}
    run.slurm.jobs[9].time_limit = 1.0  # something to write

    whole = cut(run, command, slice(kept))
    run.ticks(cycles)
    whole()
    run.ticks(20)
    assert not [job for job, entry in run.daemon.journal.entries.items() if entry.applied.foreign]
    assert run.metric("rltuned_orphan_jobs") == 0
    assert {job: one.site_factor for job, one in run.slurm.jobs.items()} == before
    run.end()


def test_what_a_job_has_lent_stands_although_a_reading_lacks_it(tmp_path):
    run = house(tmp_path, jobs=9)
    run.ticks(2)
    run.slurm.start(9)
    run.ticks(10)

    def lent():
        book, _, _ = read_book(run.daemon.config.state.directory)
        found = Counter({job: one.seconds for job, one in book.given.items()})
        for _, part, seconds in book.open_parts():
            found[part.lender] += seconds
        return found

    before = lent()
    assert before.total() > 0

    whole = cut(run, "jobs", slice(6, None))
    run.tick()
    whole()
    run.tick()
    assert not {job for job, seconds in before.items() if lent()[job] < seconds}


@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_who_is_missing_in_one_reading_of_sprio_around_a_write_is_not_somebody_elses(tmp_path, nth):
    run = house(tmp_path, jobs=9)
    cut(run, "site-factors", slice(4), nth)
    report = run.tick()
    assert {item.outcome for item in report.results} <= {Outcome.APPLIED, Outcome.FAILED, Outcome.THROTTLED}
    run.ticks(20)
    assert not [job for job, entry in run.daemon.journal.entries.items() if entry.applied.foreign]
    assert len(run.daemon.journal.entries) == 8


def test_values_of_ours_that_a_journal_of_last_week_does_not_explain_are_named_and_can_be_cleared(tmp_path):
    run = house(tmp_path)
    run.ticks(2)
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    for number in range(4):
        run.slurm.submit(1500 + number, time_limit=5.0 + number)
        run.slurm.jobs[12 - number].multifactor += 50 * number
        run.ticks(3)
    run.daemon.journal.close()  # power cut
    shutil.rmtree(tmp_path / "mirror")
    shutil.rmtree(tmp_path / "state")
    shutil.move(tmp_path / "backup", tmp_path / "state")
    run = again(tmp_path, run.slurm)
    run.ticks(3)
    odd = [job for job, entry in run.daemon.journal.entries.items() if entry.applied.foreign]
    assert odd
    found = remains(run.daemon.journal, run.slurm.reader().status(None))
    assert set(found.orphans) >= set(odd)
    assert run.metric("rltuned_orphan_jobs") == len(found.orphans), "the daemon has the same idea of an orphan"
    run.daemon.stop()
    run.restore()
    assert not run.untouched()
    run.restore(orphans=True)
    assert run.untouched()


class Limited(Deaf, LIMITED):
    """`Deaf`, with the RPC limiter on."""


def test_what_cannot_act_gives_back_to_those_who_wait_however_many_of_ours_run(tmp_path):
    run = house(tmp_path, jobs=60, reader=Limited)
    run.ticks(12)
    for job in [job.job_id for job in run.slurm.jobs.values() if job.site_factor > 0]:
        run.slurm.start(job)
    run.daemon.parts.reader.broken = True
    run.ticks(60)
    assert not [job for job in run.slurm.jobs.values() if job.state == "PD" and job.site_factor != 0]


def test_a_daemon_that_comes_back_late_and_cannot_read_the_configuration_gives_back_all_the_same(tmp_path):
    class Strange(ModelReader):
        def facts(self, known=None):
            raise SlurmParseError("scontrol show config: no ClusterName or SLURM_VERSION in the answer")

    run = house(tmp_path)
    run.ticks(3)
    run.daemon.journal.close()
    run.slurm.clock.sleep(600.0)
    late = again(tmp_path, run.slurm, reader=Strange)
    late.ticks(60)
    assert late.untouched()


def test_a_daemon_that_lost_its_lock_does_not_keep_the_dead_man_from_helping_the_next_one(tmp_path):
    run = house(tmp_path)
    run.daemon.parts.owns = Lock.acquire(tmp_path / "state", "run", 0.0).still_held
    run.tick()
    (tmp_path / "state" / "lock").unlink()
    run.ticks(3)
    assert run.untouched()
    following = again(tmp_path, run.slurm)
    following.ticks(2)
    assert not run.untouched()
    following.daemon.journal.close()  # killed
    for _ in range(10):
        run.tick()
        run.restore(if_stale=300.0)
    assert run.untouched()


class Unaccounted(ModelReader):
    """slurmdbd may be away, and slurm.conf may be changed meanwhile."""

    away, flags = True, ()

    def facts(self, known=None):
        facts = replace(super().facts(known), priority_flags=self.flags)
        silent = {"privilege": Privilege.NONE, "accounting_reachable": False, "preempts_by": "a QOS may"}
        return replace(facts, **silent) if self.away else facts


def test_while_slurmdbd_is_away_the_facts_are_looked_at_in_each_cycle(tmp_path):
    run = house(tmp_path, reader=Unaccounted)
    assert run.tick().stage is Stage.SHADOW
    run.daemon.parts.reader.away = False
    assert run.ticks(2).stage is Stage.ACTIVE
    run.daemon.parts.reader.away = True
    run.slurm.clock.sleep(3600.0)
    assert run.tick().stage is Stage.ACTIVE, "slurmctld remembers the privilege, and what each QOS is"
    run.daemon.parts.reader.flags = ("INCR_ONLY",)
    assert run.ticks(2).stage is Stage.SHADOW


def test_with_both_disks_full_everything_is_given_back_at_once_because_the_dead_man_would(tmp_path):
    run = house(tmp_path)
    run.tick()
    with files_no_longer_than(5):
        run.ticks(3)
        assert run.untouched()
    run.ticks(3)
    assert run.slurm.order() == list(range(12, 0, -1))
    assert run.metric("rltuned_foreign_jobs") == 0


def test_an_outage_of_slurmctld_is_no_reason_to_give_anything_back(tmp_path):
    run = house(tmp_path, reader=Deaf)
    run.tick()
    written = run.slurm.updates
    run.slurm.up = False
    run.ticks(120)
    run.slurm.up, run.daemon.parts.reader.broken = True, True
    assert run.tick().outcome is CycleOutcome.FAILED, "another trouble, which has just begun"
    run.daemon.parts.reader.broken = False
    assert planned(run.tick()) == 0
    assert run.slurm.updates == written


@pytest.mark.parametrize("interval", [5.0, 20.0, 60.0])
def test_a_held_job_is_given_back_once_and_what_an_admin_sets_then_stands(tmp_path, interval):
    run = house(tmp_path)
    run.ticks(3)
    held = 12
    run.slurm.hold(held, "admin")
    run.daemon.reload(lambda: config(tmp_path, stage=Stage.SHADOW))
    before = len(run.slurm.log)
    for number in range(60):
        run.daemon.tick()
        run.slurm.clock.sleep(interval)
        if number == 1:
            run.slurm.admin_site_factor(held, 7000)
    writes = [value for job, _, value in run.slurm.log[before:] if job == held]
    assert writes == [0]
    assert run.slurm.jobs[held].site_factor == 7000
    assert {job.job_id for job in run.slurm.jobs.values() if not run.slurm.untouched(job)} <= {held}
    assert run.daemon.journal.entries == {}


@pytest.mark.parametrize("stage", [Stage.SHADOW, Stage.ACTIVE])
@pytest.mark.parametrize("interval", [5.0, 60.0])
def test_a_held_job_that_a_killed_slurmctld_brings_back_with_our_value_is_given_back_again(tmp_path, interval, stage):
    run = house(tmp_path)
    run.ticks(3)
    held = 12
    run.slurm.hold(held, "admin")
    run.slurm.save_state()
    run.daemon.reload(lambda: config(tmp_path, stage=stage))
    run.daemon.tick()
    assert run.slurm.jobs[held].site_factor == 0
    run.slurm.crash_and_start()
    run.slurm.calculate()
    assert run.slurm.jobs[held].site_factor != 0
    for _ in range(30):
        run.slurm.clock.sleep(interval)
        run.daemon.tick()
    assert run.slurm.jobs[held].site_factor == 0
    assert run.untouched() == (stage is Stage.SHADOW)


@pytest.mark.parametrize("said", [True, False], ids=["Slurm says why", "nothing that Slurm says changes"])
def test_jobs_that_could_not_be_given_back_are_tried_again_for_ever_less_and_less_often_and_visibly(tmp_path, said):
    run = house(tmp_path)
    run.tick()
    run.daemon.reload(lambda: config(tmp_path, stage=Stage.SHADOW))
    tries, carry_out = [], run.slurm.carry_out
    run.slurm.before_update = lambda _: tries.append(run.slurm.clock.now)
    if said:
        run.slurm.privilege = Privilege.NONE
    else:
        run.slurm.carry_out = lambda line: f"Access/permission denied for job {line.split('=')[1].split()[0]}\n"
    run.ticks(130)
    assert run.metric("rltuned_unreturned_jobs") == 11
    (event,) = run.events("jobs.not_returned")
    assert "11 jobs could not be given back" in event["sentence"]
    assert len(set(tries)) < 60, "each try is a retry within one restore, and they become rare"
    run.slurm.privilege, run.slurm.carry_out = Privilege.OPERATOR, carry_out
    run.ticks(11)
    assert run.untouched(), "within ten minutes"
    assert run.metric("rltuned_unreturned_jobs") == 0


def leave_alone(run, directory, job_id):
    """``rltuned restore JOBID`` beside the daemon."""
    with Lock.acquire(directory / "state", "run", 0.0):
        return run.restore(job_ids=[job_id])


def requests(directory):
    return sorted(path.name for path in (directory / "state" / "hands-off").iterdir())


@pytest.mark.parametrize("kind", ["strange", "nameless"])
@pytest.mark.parametrize("moved", [True, False])
def test_a_job_that_cannot_be_understood_when_an_admin_asks_for_it_is_given_back_and_left_alone_once_it_can(
    tmp_path, kind, moved
):
    run = house(tmp_path, jobs=5)
    run.ticks(2)
    job = 5 if moved else 1
    factor = run.slurm.jobs[job].site_factor
    assert bool(factor) is moved
    getattr(run.slurm, kind).add(job)
    run.tick()
    leave_alone(run, tmp_path, job)
    run.ticks(3)
    assert run.slurm.jobs[job].site_factor == factor
    assert requests(tmp_path) == [str(job)]
    getattr(run.slurm, kind).clear()
    run.ticks(2)
    assert requests(tmp_path) == []
    run.slurm.jobs[job].time_limit = 100_000.0
    run.ticks(3)
    assert run.slurm.jobs[job].site_factor == 0
    assert run.slurm.jobs[2].site_factor != 0
    assert run.daemon.journal.entries[job].applied.foreign


def test_a_request_stands_although_a_later_one_for_the_same_job_fails(tmp_path):
    run = house(tmp_path, jobs=3)
    run.tick()
    leave_alone(run, tmp_path, 2)
    run.slurm.up = False
    with pytest.raises(SlurmUnavailableError):
        leave_alone(run, tmp_path, 2)
    assert requests(tmp_path) == ["2"]


def test_a_restore_by_name_says_so_where_the_job_cannot_be_understood_and_was_never_touched(tmp_path):
    run = house(tmp_path, jobs=3, stage=Stage.SHADOW)
    run.tick()
    run.slurm.strange.add(2)
    report = run.restore(job_ids=[2])
    assert [(left.job_id, left.remedy) for left in report.left] == [(2, "rltuned doctor")]
    assert not report.complete
    assert not report.marked


def test_a_job_that_is_requeued_and_held_and_cannot_be_identified_is_not_forgotten_when_an_admin_asks_for_it(tmp_path):
    run = house(tmp_path, jobs=3)
    run.ticks(2)
    job = 3
    assert run.slurm.jobs[job].site_factor
    for other in (1, 2):
        run.slurm.leave(other)
    run.slurm.requeue(job)
    run.slurm.hold(job, "admin")
    leave_alone(run, tmp_path, job)
    run.ticks(3)
    assert run.slurm.jobs[job].site_factor, "whose it is cannot be told"
    assert requests(tmp_path) == [str(job)]
    run.slurm.user_release(job)
    run.ticks(3)
    assert run.slurm.jobs[job].site_factor == 0
    assert requests(tmp_path) == []
    assert run.daemon.journal.entries[job].applied.foreign


def test_a_job_whose_terms_all_fall_to_zero_is_given_back_and_not_taken_for_somebody_elses(tmp_path):
    run = house(tmp_path)
    run.tick()
    job = run.slurm.jobs[12]
    assert job.site_factor > 0
    job.multifactor, job.user = 0, "bob"
    run.daemon.reload(lambda: config(tmp_path, scope=ScopeSection(exclude_users=("bob",))))
    run.ticks(3)
    assert run.slurm.untouched(job)
    assert run.metric("rltuned_foreign_jobs") == 0
    job.multifactor = 1.0
    run.daemon.reload(lambda: config(tmp_path))
    job.multifactor = 990
    run.ticks(2)
    assert job.site_factor != 0


@pytest.mark.parametrize("hangs", ["between cycles", "while it reads", "before it writes"])
def test_a_hung_daemon_that_wakes_up_after_the_dead_man_goes_on_with_all_jobs(tmp_path, hangs):
    run = house(tmp_path)
    with Lock.acquire(tmp_path / "state", "run", 0.0):
        run.ticks(3)
        order = [11, 12, 9, 10, 7, 8, 5, 6, 3, 4, 2, 1]
        for place, job in enumerate(order, start=1):
            run.slurm.jobs[job].time_limit = 120.0 + place
        count = run.slurm.reads

        def hang(number=0):
            run.slurm.before_read = lambda _: None
            run.slurm.clock.sleep(400.0)
            assert run.restore(if_stale=300.0).complete
            assert run.untouched()

        if hangs == "between cycles":
            hang()
        else:
            at = count + (1 if hangs == "while it reads" else 2)
            run.slurm.before_read = lambda number: hang() if number == at else None
        run.ticks(5)
    assert run.slurm.order() == order
    assert run.metric("rltuned_foreign_jobs") == 0
    assert run.slurm.violations == []


def test_a_daemon_whose_lock_was_removed_gives_everything_back_and_leaves_the_files_to_whoever_has_them(tmp_path):
    run = house(tmp_path)
    with Lock.acquire(tmp_path / "state", "run", 0.0) as lock:
        run.daemon.parts.owns = lock.still_held
        run.tick()
        shutil.rmtree(tmp_path / "state")
        with Lock.acquire(tmp_path / "state", "run", 0.0):
            run.ticks(3)
            assert run.untouched()
            assert run.daemon.stage is Stage.SHADOW
            assert len(run.events("lock.lost")) == 1
            made = {path.name for path in (tmp_path / "state").iterdir()}
            assert made == {"lock", "heartbeat.json"}, "neither a journal nor a file of loans"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("configuration", "config.toml:3: unknown key"),
        ("model", "/not/there.json"),
        ("files of another version", "cannot import name 'evidence'"),
    ],
)
def test_a_bad_configuration_or_model_keeps_the_old_one(tmp_path, wrong, said):
    run = house(tmp_path)
    old_config, old_policy = run.daemon.config, run.daemon.parts.choice.policy

    def load():
        if wrong == "configuration":
            raise ConfigError(said)
        return config(tmp_path, stage=Stage.SHADOW).model_copy(update={"policy": PolicySection(model=said)})

    def replaced(_config):
        raise ImportError(said)

    assert not run.daemon.reload(load, *([replaced] if wrong == "files of another version" else []))
    assert run.daemon.config is old_config
    assert run.daemon.parts.choice.policy is old_policy
    (event,) = run.events("reload.refused")
    assert said in event["reason"]
    assert run.metric('rltuned_reloads_total{result="refused"}') == 1
    assert run.tick().count(Outcome.APPLIED) == 11


def test_what_needs_a_restart_is_not_changed_by_a_reload(tmp_path):
    run = house(tmp_path)
    elsewhere = StateSection(directory=tmp_path / "elsewhere", mirror=None)
    fresh = config(tmp_path).model_copy(update={"state": elsewhere, "cycle": CycleSection(stage="shadow")})
    assert run.daemon.reload(lambda: fresh)
    assert run.daemon.config.state.directory == tmp_path / "state"
    assert run.daemon.config.cycle.stage is Stage.SHADOW
    assert "[state]" in run.events("reload.partial")[0]["sentence"]


def test_the_sign_of_life_after_a_long_gap_says_what_the_daemon_does(tmp_path):
    run = house(tmp_path)
    run.tick()
    run.slurm.clock.sleep(200.0)
    run.daemon.parts.liveness.beat()
    beat = read_heartbeat(Moment.of(run.slurm.clock), tmp_path / "state")
    assert beat.writing


def test_never_two_cycles_at_once(tmp_path):
    run = house(tmp_path, reader=showing(scheduler_parameters={"bf_continue": "", "bf_min_prio_reserve": "69121"}))
    inner, plan = [], run.daemon.parts.planner

    def nested(snapshot, *arguments):
        inner.append(run.daemon.tick())
        assert snapshot.scheduler.bf_min_prio_reserve == 69121, "it knows how backfill is configured"
        return plan(snapshot, *arguments)

    run.daemon.parts.planner = nested
    run.tick()
    assert inner == [None]
    assert run.metric("rltuned_cycle_overruns_total") == 1


def test_a_cycle_longer_than_its_interval_is_logged_and_counted(tmp_path):
    run = house(tmp_path)
    run.slurm.before_read = lambda _: run.slurm.clock.sleep(25.0)
    run.tick()
    assert run.metric("rltuned_cycle_overruns_total") == 1
    assert "longer than its 60 s" in run.events("cycle.overrun")[0]["sentence"]


def test_a_full_disk_stops_the_writing_not_the_loop_and_is_over_when_there_is_room(tmp_path):
    run = house(tmp_path)
    with files_no_longer_than(5):
        report = run.tick()
        assert report.count(Outcome.THROTTLED) == planned(report) == 11
        assert "loans.json: cannot be written: File too large" in report.results[0].message
        assert run.slurm.updates == 0
    assert run.tick().count(Outcome.APPLIED) == 11
    assert run.metric("rltuned_journal_failed_copies") == 0


def test_the_heartbeat_goes_on_while_slurm_is_down_and_ends_with_the_daemon(tmp_path):
    run = house(tmp_path)
    run.slurm.up = False
    run.ticks(3)
    now = Moment.of(run.slurm.clock)
    beat = read_heartbeat(now, tmp_path / "state")
    assert now.since(beat) < 120
    assert beat.stale_after >= 4 * 60
    assert read_heartbeat(now, tmp_path / "mirror") == beat
    run.daemon.stop()
    assert read_heartbeat(now, tmp_path / "state", tmp_path / "mirror") is None


def test_the_watchdog_is_fed_only_while_the_loop_moves(tmp_path):
    run = house(tmp_path)
    run.tick()
    assert run.daemon.liveness.healthy()
    run.slurm.clock.sleep(3600.0)
    assert not run.daemon.liveness.healthy()
    stuck = []

    def hang(_number):
        run.slurm.clock.sleep(1000.0)
        stuck.append(run.daemon.liveness.healthy())

    run.slurm.before_read = hang
    run.tick()
    assert not any(stuck)


def test_it_is_alive_while_the_loop_moves_and_ready_while_it_does_what_is_wanted_of_it(tmp_path):
    run = house(tmp_path)
    daemon, slurm = run.daemon, run.slurm
    assert daemon.alive()[0]
    assert daemon.ready() == (False, "no cycle has ended well yet")
    run.tick()
    assert daemon.ready() == (True, "stage active")
    slurm.up = False
    run.ticks(10)
    assert daemon.ready()[0], "slurmctld may be restarted"
    run.ticks(10)
    ready, why = daemon.ready()
    assert not ready
    assert re.fullmatch("the last cycle that did all it should ended 1[0-9]{3} s ago; the log has the cause", why)
    assert daemon.alive() == (True, "the loop moves")
    slurm.up = True
    run.ticks(30)
    assert daemon.ready()[0]
    slurm.privilege = Privilege.NONE
    daemon.slurmctld.forget_facts()
    run.tick()
    ready, why = daemon.ready()
    assert not ready
    assert re.fullmatch("stage shadow: .* may not change other users' jobs", why)
    slurm.clock.sleep(3600.0)
    assert daemon.alive() == daemon.ready() == (False, "the loop has not moved for long")


def test_who_is_paused_or_dry_or_in_shadow_because_somebody_wants_it_is_ready(tmp_path):
    for name, said, values in (
        ("shadow", "stage shadow", {"stage": Stage.SHADOW}),
        ("dry", "stage shadow: dry run", {"dry_run": True}),
        ("paused", "stage shadow: paused until `rltuned resume`", {}),
    ):
        run = house(tmp_path / name, **values)
        if name == "paused":
            pause.ask(run.daemon.config.state.directory, Moment.of(run.slurm.clock), None)
        run.ticks(30)
        assert run.daemon.ready() == (True, said)


def test_under_the_rpc_limiter_the_queue_gets_there_in_several_cycles_head_first(tmp_path):
    run = house(tmp_path, jobs=100, reader=LIMITED, lend=ALL)
    began = run.slurm.clock.monotonic()
    first = run.tick()
    # More than one full bucket: the cycle goes on as it refills; but not for ever.
    assert 25 < first.count(Outcome.APPLIED) < 100
    interval = run.daemon.config.cycle.interval
    assert 0 < run.slurm.clock.monotonic() - began - interval <= 0.5 * interval, "tick() itself waits one interval"
    assert first.count(Outcome.THROTTLED) == 99 - first.count(Outcome.APPLIED)
    assert run.slurm.order()[:3] == [100, 99, 98]
    run.ticks(12)
    assert run.slurm.order() == list(range(100, 0, -1))


def test_what_is_given_back_counts_among_the_writes_of_its_cycle(tmp_path):
    run = house(tmp_path, write=WriteSection(per_cycle=8))
    run.ticks(5)
    for job in (9, 10, 11, 12):
        run.slurm.hold(job)
    for _ in range(8):
        run.slurm.submit(500, time_limit=5.0)
    before = run.slurm.updates
    run.tick()
    assert [run.slurm.jobs[job].site_factor for job in (9, 10, 11, 12)] == [0] * 4
    assert run.slurm.updates == before + 8


@pytest.mark.parametrize("bucket", [6, 4, 1])
def test_a_bucket_of_the_limiter_that_is_too_small_for_a_batch_lets_one_change_at_a_time_through(tmp_path, bucket):
    run = house(tmp_path, reader=showing(rate_limiter=True, rate_bucket=bucket))
    assert 0 < run.tick().count(Outcome.APPLIED) < 12
    run.ticks(12)
    assert run.slurm.order() == list(range(12, 0, -1))


def test_a_daemon_for_which_the_limiter_leaves_nothing_says_that_it_cannot_act_and_gives_everything_back(tmp_path):
    # Less refill in a minute than the snapshot takes.
    run = house(tmp_path, reader=showing(rate_limiter=True, rate_refill=0.13))
    assert run.tick().acted
    for number in range(6):
        run.slurm.submit(500 - number, time_limit=1.0 + number)  # all of them belong in front
    report = run.ticks(10)
    assert report.count(Outcome.THROTTLED) == planned(report) > 0
    assert not report.acted
    assert run.metric("rltuned_unable_seconds") > 500
    run.ticks(60)
    assert run.untouched()


def test_a_daemon_that_is_told_to_stop_does_not_wait_for_the_limiter(tmp_path):
    run = house(tmp_path, jobs=100, reader=LIMITED, lend=ALL)
    run.daemon.request_stop()
    began = run.slurm.clock.monotonic()
    assert 0 < run.tick().count(Outcome.APPLIED) < 25
    assert run.slurm.clock.monotonic() - began == run.daemon.config.cycle.interval


def test_names_of_users_cannot_forge_log_lines_or_move_the_cursor():
    for form in ("json", "text"):
        stream = io.StringIO()
        make("info", form, stream).info("job.changed", user="eve\n2026 root logged in\x1b[2J\u202e")
        (line,) = stream.getvalue().splitlines()
        assert "\x1b" not in line
        assert "\u202e" not in line
        assert "eve" in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_each_line_has_its_priority_where_systemd_has_connected_journald_and_nowhere_else(tmp_path, monkeypatch, form):
    def said(name, connected):
        with (tmp_path / name).open("w") as stream:
            found = os.fstat((stream if connected else sys.stderr).fileno())
            monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
            log = make("debug", form, stream)
            for level in ("debug", "info", "warning", "error"):
                getattr(log, level)(f"it.is.{level}")
            log.error("cycle.defect", exc_info=RltunedError("why"))
        return (tmp_path / name).read_text().splitlines()

    lines = said("journal", connected=True)
    assert [line[:3] for line in lines[:4]] == ["<7>", "<6>", "<4>", "<3>"]
    assert "it.is.warning" in lines[2]
    assert {line[:3] for line in lines[4:]} == {"<3>"}, "of several lines each has one"
    assert not [line for line in said("elsewhere", connected=False) if line.startswith("<")]


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path):
    with (tmp_path / "log").open("w") as stream, files_no_longer_than(3):
        make("info", "text", stream).info("cycle.done", sentence="this does not fit")


def test_the_number_of_series_does_not_grow_with_jobs_or_users(tmp_path):
    def series(jobs):
        run = house(tmp_path / str(jobs), jobs=jobs)
        for job in run.slurm.jobs.values():
            job.user = f"user{job.job_id}"
        run.ticks(2)
        text = generate_latest(run.daemon.runtime.metrics.registry).decode()
        return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}

    assert series(3) == series(60)
    assert all(name.startswith("rltuned_") for name in series(4))


def waits(run, tier="first"):
    """Number and sum of the waiting times that are counted of a tier."""
    registry, labels = run.daemon.runtime.metrics.registry, {"tier": tier}
    return tuple(registry.get_sample_value(f"rltuned_job_wait_seconds_{name}", labels) for name in ("count", "sum"))


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_waiting_time_of_a_managed_job_is_counted_once_when_it_is_seen_to_run(tmp_path, dry_run):
    run = house(tmp_path, dry_run=dry_run)
    run.ticks(2)
    run.slurm.start(3)
    assert waits(run) == (0, 0)
    run.ticks(3)
    assert waits(run) == (1, WAITED + 120.0)
    run.slurm.requeue(3)
    run.ticks(2)
    run.slurm.start(3)
    run.tick()
    assert waits(run) == (2, WAITED + 120.0 + 119.0), "from when it was requeued"
    for _ in range(2):
        run.slurm.start_task(5)  # each task counts as a job
    run.tick()
    assert waits(run)[0] == 4


def test_jobs_that_are_not_managed_or_ran_before_the_first_cycle_are_not_counted(tmp_path):
    run = house(tmp_path)
    run.slurm.start(1)
    run.slurm.hold(2)
    run.tick()
    run.slurm.user_release(2)
    run.slurm.start(2)
    run.tick()
    assert waits(run) == (0, 0)
    run.daemon.runtime.config = config(tmp_path, stage=Stage.OBSERVE)
    for job in (3, 4):
        run.slurm.start(job)
        run.tick()
        assert waits(run) == (1, WAITED + 120.0), "the last plan managed 3; nothing is managed in stage observe"


def test_tiers_are_counted_by_their_rank_among_all_partitions(tmp_path):
    def several(slurm):
        class Several(ModelReader):
            def snapshot(self, now):
                found = super().snapshot(now)
                (gpu,) = found.partitions
                tiers = {"gpu": 40, "top": 65533, "low": 7, "lower": 3, "lowest": 0}
                return replace(found, partitions=tuple(replace(gpu, name=n, priority_tier=t) for n, t in tiers.items()))

        return Several(slurm)

    run = house(tmp_path, reader=several)
    for number, partition in enumerate(["top", "gpu", "low", "lower", "lowest"], start=1):
        run.slurm.jobs[number].partition = partition
    run.tick()
    for job in range(1, 6):
        run.slurm.start(job)
    run.tick()
    assert [waits(run, tier)[0] for tier in ("first", "second", "third", "lower")] == [1, 1, 1, 2]


def test_what_was_lent_to_another_request_is_taken_back_in_the_cycle_that_sees_it(tmp_path):
    run = house(tmp_path, jobs=4)
    run.tick()
    assert run.slurm.order() == [4, 3, 2, 1]
    assert run.slurm.jobs[4].site_factor > 0
    run.slurm.jobs[4].time_limit = 90_000.0  # it was the shortest, and so went to the front
    run.tick()
    assert run.slurm.jobs[4].site_factor == 0
    run.tick()
    assert run.slurm.order() == [3, 2, 1, 4]
    run = again(tmp_path, run.slurm)
    run.slurm.jobs[3].time_limit = 90_000.0
    run.tick()
    assert run.slurm.jobs[3].site_factor == 0, "a restart forgets no request"


def test_a_raised_job_that_asks_for_something_else_is_given_back_first_although_it_is_wanted_as_much(tmp_path):
    run = house(tmp_path)
    run.ticks(2)
    run.slurm.jobs[12].account = "other"
    for raised in (False, True):
        run.tick()
        assert (run.slurm.jobs[12].site_factor > 0) == raised


def asks_more(run):
    """A job comes that the policy wants first, so that there is something to write."""
    return run.slurm.submit(900, time_limit=1.0)


def test_what_forbids_writing_is_seen_before_the_next_batch_and_what_is_out_goes_back(tmp_path):
    run = house(tmp_path)
    run.ticks(3)
    run.slurm.scheduler_parameters = "bf_continue,enable_user_top"
    asks_more(run)
    written = run.slurm.updates
    report = run.tick()
    assert run.slurm.updates == written, "it was there before the cycle began"
    assert report.count(Outcome.THROTTLED) == planned(report) > 0
    assert "enable_user_top" in report.results[0].message
    assert run.metric("rltuned_prerequisite_errors") == 1
    assert run.tick().stage is Stage.SHADOW
    assert run.untouched()
    run.slurm.scheduler_parameters = "bf_continue"
    assert run.ticks(2).stage is Stage.ACTIVE


def test_what_forbids_writing_ends_it_between_two_batches(tmp_path):
    run = house(tmp_path)
    run.slurm.before_update = lambda _: setattr(run.slurm, "scheduler_parameters", "bf_continue,enable_user_top")
    assert run.tick().count(Outcome.APPLIED) == 1, "the first write is of one job"
    assert run.slurm.updates == 1
    assert run.tick().stage is Stage.SHADOW
    assert run.untouched()


@pytest.mark.parametrize("stage", [Stage.ACTIVE, Stage.SHADOW])
def test_a_slurmctld_that_was_started_anew_is_asked_again_for_its_configuration(tmp_path, stage):
    run = house(tmp_path, stage=stage)
    run.ticks(2)
    assert not run.daemon.slurmctld.budget.limited
    run.slurm.limiter = True
    run.slurm.restart()
    run.slurm.calculate()
    run.tick()
    assert run.daemon.slurmctld.budget.limited
    assert run.daemon.slurmctld.facts.started == int(run.slurm.started)


def test_the_configuration_is_looked_at_every_five_minutes_where_nothing_hints_at_a_change(tmp_path):
    run = house(tmp_path)
    run.ticks(3)
    run.slurm.scheduler_parameters = "bf_continue,enable_user_top"  # a reconfigure before 23.11 leaves no trace
    assert run.ticks(6).stage is Stage.SHADOW
    assert run.untouched()


@pytest.mark.parametrize("leaves", [False, True])
def test_after_a_write_that_was_refused_the_privilege_is_looked_at(tmp_path, leaves):
    run = house(tmp_path)
    run.ticks(3)
    run.slurm.privilege = Privilege.NONE
    asks_more(run)
    if leaves:
        run.slurm.jobs[2].time_limit = 1e6  # what is on it is to be given back
    run.tick()
    assert run.tick().stage is Stage.SHADOW
    assert run.events("prerequisite.missing")


def test_reasons_that_are_not_known_are_counted_and_named_and_their_jobs_left_alone(tmp_path):
    run = house(tmp_path)
    run.slurm.reason = lambda job: "SomethingOf2031" if job.job_id > 9 else "Priority"
    report = run.tick()
    assert run.metric("rltuned_unknown_reasons") == 3
    assert not {10, 11, 12} & {result.change.job_id for result in report.results}
    (finding,) = (one for one in run.examine() if one.subject == "reasons")
    assert (finding.severity, "3 of 'SomethingOf2031'" in finding.cause) == (Severity.WARNING, True)
    run.slurm.reason = lambda job: "Priority"
    run.tick()
    assert run.metric("rltuned_unknown_reasons") == 0
    assert not [one for one in run.examine() if one.subject == "reasons"]

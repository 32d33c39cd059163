"""Two controllers, each with a daemon of its own: one writes, and a fail-over hands the queue over."""

import io
from dataclasses import dataclass, field, replace

import pytest
from unit.controller.model_slurm import ModelReader, ModelSlurm, VirtualClock
from unit.controller.support import make_daemon, planned
from unit.controller.test_loop import House, config

from rltuned.controller.health.prerequisites import Severity, blocking, prerequisites
from rltuned.controller.health.primacy import HANDOVER, Primacy, look_once
from rltuned.controller.shown.checks import controllers, examine
from rltuned.controller.tell.states import CycleOutcome
from rltuned.core.config import Stage
from rltuned.slurm.port import Controller

HOSTS = ("ctl", "ctl2")


@dataclass
class Pair:
    """A cluster with a backup controller, and who of the two is up."""

    slurm: ModelSlurm = field(default_factory=lambda: ModelSlurm(VirtualClock()))
    up: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(HOSTS, True))
    asked: int = 0

    def reader(self):
        pair = self

        class Reader(ModelReader):
            def facts(self, known=None):
                return replace(super().facts(known), controllers=HOSTS)

            def controllers(self, _facts):
                pair.asked += 1
                return tuple(Controller(host, pair.up[host]) for host in HOSTS)

        return Reader(self.slurm)

    def daemon(self, directory, host, **values):
        settings, stream, slurm = config(directory / host, **values), io.StringIO(), self.slurm
        primacy = Primacy(frozenset({host}))
        daemon = make_daemon(settings, self.reader(), slurm.writer, slurm.clock, log=stream, primacy=primacy)
        return House(slurm, daemon, stream)

    def ticks(self, *houses, count=1):
        """Cycles of all daemons, a minute apart."""
        for _ in range(count):
            reports = [house.daemon.tick() for house in houses]
            self.slurm.clock.sleep(60.0)
        return reports


@pytest.fixture
def pair():
    made = Pair()
    for number in range(12):
        made.slurm.submit(1000 - number, time_limit=60.0 * (12 - number))
    return made


@pytest.fixture
def both(pair, tmp_path):
    """The daemons of both hosts, after two cycles in which the first one's slurmctld acts."""
    daemons = [pair.daemon(tmp_path, host) for host in HOSTS]
    pair.ticks(*daemons, count=2)
    return daemons


def turned(pair):
    return pair.slurm.order() == list(range(12, 0, -1))


def test_only_the_daemon_beside_the_acting_controller_writes_and_the_other_one_does_not_even_read(pair, both):
    first, second = both
    assert turned(pair)
    reads = pair.slurm.reads
    (report,) = pair.ticks(second)
    assert report.outcome is CycleOutcome.STANDBY
    assert report.sentence == "stands by: slurmctld runs on ctl; nothing of this daemon's is out"
    assert pair.slurm.reads == reads, "but the controllers"
    assert second.metric("rltuned_standby") == 1
    assert first.metric("rltuned_standby") == 0
    assert second.metric("rltuned_unable_seconds") == 0
    assert second.metric("rltuned_last_success_timestamp_seconds") > 0
    assert second.daemon.journal.entries == {}


def test_a_fail_over_hands_the_queue_over_and_back(pair, both):
    first, second = both
    for up, here, there in ((False, second, first), (True, first, second)):
        pair.up["ctl"] = up
        # The new one waits although it comes first, the old one gives back.
        pair.ticks(here, there)
        assert first.untouched()
        pair.ticks(here, there, count=4)
        assert turned(pair)
        assert {job for job, entry in here.daemon.journal.entries.items() if entry.carries} == set(range(2, 13))
        assert there.daemon.stage is Stage.SHADOW
        assert there.daemon.journal.entries == {}
        for house in (here, there):
            assert house.metric("rltuned_foreign_jobs") == house.metric("rltuned_orphan_jobs") == 0
    assert [event["sentence"].split(". ")[0] for event in second.events("primacy.changed")] == [
        "slurmctld runs on ctl",
        "slurmctld runs on ctl2",
        "slurmctld runs on ctl",
    ]


def test_before_slurmctld_has_calculated_priorities_nobody_knows_what_is_left(pair, both):
    _, second = both
    pair.up["ctl"] = False
    pair.slurm.calculated = False
    pair.ticks(second, count=3)
    assert second.daemon.state.refusal.detail == "takes over: slurmctld has not calculated priorities yet"
    pair.slurm.calculated = True
    pair.ticks(second)
    assert "11 jobs are still to be given back" in second.daemon.state.refusal.detail


def test_both_write_for_no_moment_whatever_the_order_of_their_cycles(pair, both):
    first, second = both
    pair.up["ctl"] = False
    for houses in ((second,), (second, first), (first, second), (second,)):
        pair.ticks(*houses)
        ours = [set(house.daemon.restoring.out(pair.reader().snapshot(0.0))) for house in (first, second)]
        assert not ours[0] & ours[1]
    pair.ticks(second)
    assert turned(pair)


def test_a_host_that_died_with_its_journal_is_waited_for_then_its_jobs_are_named_and_left_alone(pair, both, tmp_path):
    first, second = both
    pair.up["ctl"] = False
    for _ in range(4):
        pair.slurm.submit(500, user="carol", time_limit=90_000.0)
    before = pair.slurm.updates
    (report,) = pair.ticks(second)
    assert "takes over: 11 jobs are still to be given back by another host" in second.daemon.state.refusal.detail
    pair.ticks(second, count=int(HANDOVER // 60))
    assert pair.slurm.updates == before
    pair.slurm.submit(500, user="carol", time_limit=6.0)
    (report,) = pair.ticks(second)
    assert report.stage is Stage.ACTIVE
    assert {change.job_id for change, *_ in report.results} == {17}
    assert second.metric("rltuned_orphan_jobs") == 11
    assert "11 pending jobs" in second.events("jobs.orphaned")[0]["sentence"]
    # The host comes up again, with its journal, and slurmctld goes back to it.
    first.daemon.journal.close()
    pair.up["ctl"] = True
    first = pair.daemon(tmp_path, "ctl")
    pair.ticks(first, second, count=6)
    assert first.daemon.stage is Stage.ACTIVE
    assert second.daemon.journal.entries == {}
    assert first.metric("rltuned_orphan_jobs") == first.metric("rltuned_foreign_jobs") == 0


def test_a_daemon_that_starts_where_slurmctld_runs_writes_at_once_but_not_over_another_ones_factors(pair, tmp_path):
    first = pair.daemon(tmp_path, "ctl")
    (report,) = pair.ticks(first)
    assert planned(report) == len(report.results) == 11
    pair.up["ctl"] = False
    second = pair.daemon(tmp_path, "ctl2")
    (report,) = pair.ticks(second)
    assert report.results == ()
    assert "takes over" in report.sentence


def test_what_is_still_in_the_journal_of_a_daemon_that_starts_on_standby_is_given_back(pair, tmp_path):
    first = pair.daemon(tmp_path, "ctl")
    pair.ticks(first)
    first.daemon.journal.close()
    pair.up["ctl"] = False
    again = pair.daemon(tmp_path, "ctl")
    pair.ticks(again, count=3)
    assert first.untouched()
    assert pair.ticks(again)[0].outcome is CycleOutcome.STANDBY


def test_a_restore_on_the_host_that_lost_its_slurmctld_gives_back_once_and_not_what_the_other_daemon_writes(pair, both):
    first, second = both
    first.daemon.stop()
    pair.up["ctl"] = False

    def dead_man():
        first.restore(if_stale=300.0, names=frozenset({"ctl"}), connect_reader=lambda _: pair.reader())

    dead_man()
    assert first.untouched()
    pair.ticks(second, count=3)
    assert turned(pair)
    dead_man()
    assert turned(pair)


def test_where_no_controller_answers_nothing_is_given_up(pair, tmp_path):
    first = pair.daemon(tmp_path, "ctl")
    pair.ticks(first)
    pair.up.update(ctl=False, ctl2=False)
    pair.slurm.up = False
    (report,) = pair.ticks(first)
    assert report.outcome is CycleOutcome.FAILED
    assert not first.daemon.parts.primacy.stands_by


@pytest.mark.parametrize("host", ["login", "ctl"])
def test_one_controller_or_a_host_that_is_none_asks_nobody(pair, tmp_path, host):
    alone = pair.daemon(tmp_path, host)
    if host == "ctl":
        alone.daemon.parts.reader.facts = lambda known=None: replace(
            ModelReader(pair.slurm).facts(), controllers=("ctl",)
        )
    pair.up["ctl"] = False
    pair.ticks(alone)
    assert turned(pair)
    assert pair.asked == 0


def test_a_host_is_known_by_its_short_name_whatever_its_case():
    primacy = Primacy(frozenset({"ctl"}))
    assert primacy.concerns(["CTL.example.org", "ctl2.example.org"])
    assert not primacy.concerns(["ctl1", "ctl2"])
    assert not primacy.concerns(["ctl"])
    assert primacy.look([Controller("CTL.example.org", True), Controller("ctl2", True)], 0.0)
    assert not primacy.stands_by


def test_doctor_says_who_acts_and_what_this_hosts_daemon_does(pair):
    reader = pair.reader()

    def found(host, facts, reader=reader):
        return controllers(facts, look_once(reader, facts, frozenset({host})))

    def cause(host):
        (finding,) = found(host, reader.facts())
        return finding.severity, finding.cause

    assert cause("ctl") == (Severity.OK, "ctl, ctl2; ctl acts: the daemon of this host writes")
    assert cause("ctl2") == (Severity.OK, "ctl, ctl2; ctl acts: the daemon of this host stands by")
    severity, said = cause("login")
    assert severity is Severity.NOTE
    assert "this host is none of them" in said
    assert found("ctl", replace(reader.facts(), controllers=("ctl",))) == []
    assert found("ctl", reader.facts(), object()) == []


def test_doctor_on_standby_does_not_take_the_other_ones_factors_for_orphans(pair, tmp_path):
    pair.ticks(pair.daemon(tmp_path, "ctl"))
    for host, orphans in (("ctl2", False), ("login", True)):
        pair.asked = 0
        found = examine(pair.reader(), config(tmp_path / host), pair.slurm.clock, frozenset({host}))
        assert pair.asked == (host == "ctl2"), "asked once, and only where the answer counts"
        subjects = {finding.subject for finding in found}
        assert "controllers" in subjects
        assert ("orphans" in subjects) is orphans


def test_in_a_federation_nothing_is_written(pair, tmp_path):
    facts = replace(pair.reader().facts(), federation="fed")
    (finding,) = blocking(prerequisites(facts, config(tmp_path)))
    assert "federation 'fed'" in finding.cause


def test_who_gains_its_slurmctld_waits_for_a_cycle_although_nothing_is_left_by_another_host():
    primacy = Primacy(frozenset({"ctl2"}))
    assert primacy.look([Controller("ctl", True), Controller("ctl2", True)], 0.0)
    assert primacy.look([Controller("ctl", False), Controller("ctl2", True)], 60.0)
    assert "another host may still be writing" in primacy.why(0, 60.0)
    assert primacy.why(0, 120.0) is None


def test_a_port_that_takes_connections_counts_for_some_minutes_only_where_no_ping_is_answered():
    primacy = Primacy(frozenset({"ctl2"}))
    throttled = Controller("ctl1", up=False, listens=True)
    backup = Controller("ctl2", up=True)
    assert primacy.look([Controller("ctl1", up=True), backup], 0.0)
    for now in (60.0, 600.0):
        assert not primacy.look([throttled, backup], now), "the RPC limiter turns pings away"
    assert not primacy.look([Controller("ctl1", up=True), backup], 660.0)
    assert not primacy.look([throttled, backup], 1200.0)
    assert primacy.stands_by
    assert primacy.look([throttled, backup], 1320.0), "anybody may listen on the port of a dead one"
    assert (primacy.acting, primacy.stands_by) == ("ctl2", False)
    assert primacy.look([Controller("ctl1", up=True), backup], 1380.0)
    assert primacy.stands_by


def test_a_daemon_that_begins_beside_a_port_that_takes_connections_gives_it_as_long():
    primacy = Primacy(frozenset({"ctl2"}))
    controllers = [Controller("ctl1", up=False, listens=True), Controller("ctl2", up=True)]
    assert primacy.look(controllers, 5000.0)
    assert primacy.stands_by
    assert not primacy.look(controllers, 5600.0)
    assert primacy.look(controllers, 5660.0)
    assert not primacy.stands_by

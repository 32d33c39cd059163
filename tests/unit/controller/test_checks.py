import json
from dataclasses import replace

import pytest
from unit.controller.model_slurm import NODES, ModelSlurm, VirtualClock
from unit.controller.support import Bench
from unit.controller.test_loop import ALL, house, showing

from rltuned.controller.health.clock import Moment
from rltuned.controller.health.heartbeat import Condition, beat
from rltuned.controller.health.lock import Lock
from rltuned.controller.health.prerequisites import Severity, blocking, prerequisites
from rltuned.controller.shown.checks import examine
from rltuned.controller.users.user_records import MARK
from rltuned.core import pools
from rltuned.core.changes import OverSubscribe
from rltuned.core.config import Config, Stage, UsersSection
from rltuned.decide.rank.multifactor import FLAGS
from rltuned.slurm.port import Privilege

FACTS = ModelSlurm(VirtualClock()).reader().facts()


def test_a_cluster_as_it_should_be_has_no_finding_worse_than_ok():
    assert {finding.severity for finding in prerequisites(FACTS, Config())} == {Severity.OK}


@pytest.mark.parametrize(
    ("change", "cause", "remedy"),
    [
        ({"privilege": Privilege.NONE}, "may not change other users' jobs", "AdminLevel=Operator"),
        ({"privilege": Privilege.NONE, "accounting": False}, "may not change", "run rltuned as SlurmUser"),
        ({"accounting": False, "accounting_reachable": False}, "no slurmdbd", "AccountingStorageType"),
        ({"priority_type": "priority/basic"}, "priority/basic", "PriorityType=priority/multifactor"),
        ({"site_factor_plugin": "site_factor/example"}, "overwrites the site factors", "remove it from slurm.conf"),
        ({"scheduler_parameters": {}}, "lacks bf_continue", "scontrol reconfigure"),
        ({"scheduler_parameters": {"bf_continue": "", "enable_user_top": ""}}, "scontrol top", "enable_user_top from"),
        ({"priority_flags": ("ACCRUE_ALWAYS", "INCR_ONLY")}, "could not be given back", "remove INCR_ONLY"),
        ({"preempts_by": "PreemptMode=within,requeue of a QOS"}, "would stop others", "format=name,preemptmode"),
    ],
)
def test_each_missing_prerequisite_is_named_with_cause_and_remedy_and_forbids_writing(change, cause, remedy):
    findings = blocking(prerequisites(replace(FACTS, **change), Config()))
    assert any(cause in finding.cause and remedy in finding.remedy for finding in findings)


@pytest.mark.parametrize(
    "change",
    [
        {"rate_limiter": True},
        {"job_submit_plugins": "lua"},
        {"priority_weights": {"max_age": 604800.0, "half_life": 604800.0, "favor_small": 1.0}},
        {"release": (23, 11)},
        {"accounting_tres": ()},
        {"free_accounts": True},
        {"accounting_reachable": False},
    ],
)
def test_what_is_only_less_good_is_said_but_forbids_nothing(change):
    findings = prerequisites(replace(FACTS, **change), Config())
    assert any(finding.severity in {Severity.NOTE, Severity.WARNING} for finding in findings)
    assert not blocking(findings)


@pytest.mark.parametrize(
    ("release", "severity", "said"),
    [
        ((24, 11), Severity.OK, ", tested on clusters"),
        ((25, 5), Severity.NOTE, ", tested on its answers only; clusters were of 22.05, 24.11, 26.05"),
        ((25, 11), Severity.NOTE, ", tested on its answers only; clusters were of 22.05, 24.11, 26.05"),
        ((23, 2), Severity.WARNING, " was not tested; tested are 22.05, 24.11, 26.05 on clusters, 25.05, 25.11 on"),
        ((26, 11), Severity.WARNING, " was not tested; tested are 22.05"),
    ],
)
def test_how_a_release_was_tested_is_said_in_one_line(release, severity, said):
    (found,) = (one for one in prerequisites(replace(FACTS, release=release), Config()) if one.subject == "release")
    assert found.severity is severity
    assert said in found.cause
    assert bool(found.remedy) is (severity is not Severity.OK)


def test_a_bucket_of_the_limiter_that_is_too_small_for_a_batch_is_named_with_its_remedy():
    facts = replace(FACTS, rate_limiter=True, rate_bucket=6)
    (finding,) = (finding for finding in prerequisites(facts, Config()) if finding.subject == "RPC limiter")
    assert finding.severity is Severity.WARNING
    assert "one change at a time" in finding.cause
    assert "rl_bucket_size to at least 10" in finding.remedy
    enough = prerequisites(replace(facts, rate_bucket=10), Config())
    assert Severity.WARNING not in {finding.severity for finding in enough}


@pytest.mark.parametrize(
    ("stage", "bucket", "said", "remedy"),
    [
        (Stage.ACTIVE, 30, "at most 79 changes; of 79 changes 35 fitted", "rl_bucket_size=131 lets"),
        (Stage.ACTIVE, 131, "at most 79 changes, and all of each cycle fitted", ""),
        (Stage.SHADOW, 30, "at most 79 changes", "rl_bucket_size=131 lets so many into one cycle"),
        (Stage.SHADOW, 131, "at most 79 changes", ""),
    ],
)
def test_the_limiter_is_told_with_what_cycles_wanted_what_fitted_and_which_bucket_would(
    tmp_path, stage, bucket, said, remedy
):
    reader = showing(rate_limiter=True, rate_bucket=bucket, rate_refill=2.0)
    run = house(tmp_path, jobs=80, reader=reader, lend=ALL, stage=stage)
    run.ticks(2)
    facts = run.daemon.parts.reader.facts()
    found = examine(run.daemon.parts.reader, run.daemon.config, run.slurm.clock)
    (finding,) = (one for one in found if one.subject == "RPC limiter")
    assert said in finding.cause
    assert remedy in finding.remedy
    assert finding.severity is (Severity.NOTE if remedy else Severity.OK)
    (new,) = (one for one in prerequisites(facts, run.daemon.config) if one.subject == "RPC limiter")
    assert "after some cycles" in new.remedy


def test_the_first_line_says_the_stage_in_force_the_last_cycle_and_what_to_look_at(tmp_path):
    run = house(tmp_path, stage=Stage.SHADOW)
    first, *_ = run.examine()
    assert (first.subject, first.severity, first.remedy) == (
        "status",
        Severity.NOTE,
        "docs/roll-out.md says when to set cycle.stage",
    )
    assert first.cause.startswith("stage shadow (nothing is written to Slurm); no cycle has ended in the last hour; ")
    run = house(tmp_path / "active", jobs=4)
    run.ticks(2)
    first, *others = run.examine()
    assert first.severity is Severity.OK
    said = "stage active; the last cycle ended 60 s ago, done: 4 pending, 4 managed, 3 raised, 3 in force; nothing to"
    assert first.cause.startswith(said)
    serious = {item.subject for item in others if item.severity in {Severity.WARNING, Severity.ERROR}}
    assert set(first.cause.rpartition("look at: ")[2].split(", ")) == serious == {"leftovers"}, "nobody has its lock"
    run.slurm.scheduler_parameters = "bf_continue,enable_user_top"
    run.daemon.slurmctld.forget_facts()
    run.tick()
    first, *_ = run.examine()
    assert first.cause.startswith("stage shadow (nothing is written to Slurm); active is configured, but Scheduler")
    assert "scontrol top" in first.cause.rpartition("look at: ")[2]
    assert first.remedy == "", "the finding has it"


@pytest.fixture
def bench(tmp_path):
    return Bench.make(tmp_path, [1000, 900, 800])


def test_doctor_proves_that_nothing_is_left_after_restore_and_says_when_something_is(bench, doctor):
    bench.cycle([3, 2, 1])
    left = doctor()["leftovers"]
    assert left.severity is Severity.ERROR
    assert "2 pending jobs carry values of rltuned's" in left.cause
    assert left.remedy == "rltuned restore"
    bench.restore()
    assert doctor()["leftovers"].severity is Severity.OK
    assert bench.slurm.updates == 4


def test_doctor_names_orphans_foreign_changes_and_a_damaged_journal(bench, doctor):
    bench.slurm.admin_site_factor(3, 5)
    bench.cycle([2, 1])
    bench.slurm.admin_site_factor(2, 7)
    bench.reconcile()
    path = bench.directory / "state" / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b"torn")
    found = doctor()
    assert "1 jobs were changed by somebody else" in found["foreign changes"].cause
    assert "(2, 3)" in found["orphans"].cause, "a raise that the journal does not explain may be ours"
    assert "1 damaged line" in found["journal"].cause


def test_doctor_says_who_runs_and_whether_it_lives(bench, doctor):
    assert doctor()["daemon"].cause == "not running"
    with Lock.acquire(bench.directory / "state", "run", 0.0):
        assert "heartbeat none yet" in doctor()["daemon"].cause
        beat([bench.directory / "state"], Moment.of(bench.clock), 300.0)
        assert doctor()["daemon"].severity is Severity.OK
        bench.clock.sleep(301.0)
        assert "301 s old" in doctor()["daemon"].cause


@pytest.mark.parametrize(
    ("condition", "subject", "severity"),
    [
        (Condition(), "leftovers", Severity.OK),
        (Condition(writing=False), "leftovers", Severity.WARNING),
        (Condition(inactive=901.0), "daemon", Severity.ERROR),
        (Condition(unreturned=(2, 3)), "unreturned", Severity.ERROR),
    ],
)
def test_doctor_does_not_take_a_living_daemon_for_one_that_keeps_its_promises(
    bench, doctor, condition, subject, severity
):
    bench.cycle([3, 2, 1])
    with Lock.acquire(bench.directory / "state", "run", 0.0):
        beat([bench.directory / "state"], Moment.of(bench.clock), 300.0, condition)
        assert doctor()[subject].severity is severity


def test_doctor_says_where_users_do_not_get_their_records(bench, doctor, tmp_path):
    users = UsersSection(directory=tmp_path / "records")

    def found():
        beat([bench.directory / "state"], Moment.of(bench.clock), 300.0)
        one = doctor(users=users).get("users")
        return one and (one.severity, one.cause.partition(f"{tmp_path}/")[2])

    assert found() is None, "nobody publishes anything where no daemon runs"
    with Lock.acquire(bench.directory / "state", "run", 0.0):
        assert found() == (Severity.WARNING, "records: records were last written there: never")
        users.directory.mkdir()
        (users.directory / MARK).write_text(json.dumps({"time": bench.clock.time(), "interval": 60.0}))
        assert found() == (Severity.OK, "records")
        bench.clock.sleep(301.0)
        assert found() == (Severity.WARNING, "records: records were last written there: 301 s ago")


def test_doctor_works_while_slurmctld_is_down(bench, doctor):
    bench.slurm.up = False
    found = doctor()
    assert found["slurmctld"].severity is Severity.ERROR
    assert "journal" in found


def test_node_lists_beyond_what_is_compared_are_reported_with_their_users(bench, doctor, monkeypatch):
    assert "node sets" not in doctor()
    monkeypatch.setattr(pools, "MOST_SETS", 1)
    bench.slurm.jobs[1].exc_nodes = next(iter(NODES))
    found = doctor()["node sets"]
    assert found.severity is Severity.WARNING
    user = bench.slurm.jobs[1].user
    assert found.cause.startswith("1 pending jobs are left alone (node-sets)")
    assert found.cause.endswith(f"most are of {user} 1")


@pytest.mark.parametrize(("first", "severity"), [(1, Severity.NOTE), (5, Severity.OK)])
def test_gpu_types_of_one_partition_shall_differ_in_weight(bench, doctor, first, severity):
    assert "GPU types" not in doctor(), "there is one"
    bench.slurm.gpu_types = ("k80", "v100")
    bench.slurm.weights = (first, 1, first, 1)
    found = doctor()["GPU types"]
    assert found.severity is severity
    assert found.cause.startswith("gpu has k80, v100; ")
    lines = "NodeName=n[1,3] ... Weight=10; NodeName=n[2,4] ... Weight=20"
    assert found.remedy.endswith(lines) == (severity is Severity.NOTE)


def test_what_is_not_simulated_is_said_of_partitions_too(bench, doctor):
    assert "simulator" not in doctor()
    bench.slurm.shares = OverSubscribe.YES
    found = doctor()["simulator"]
    assert found.severity is Severity.NOTE
    assert found.cause == "not simulated, though it changes who starts when: OverSubscribe=YES (partition gpu)"


@pytest.mark.parametrize("weight", ["age", "fairshare", "job_size", "partition", "qos", "gres/gpu"])
def test_multifactor_without_weights_is_named_with_the_line_that_helps(weight):
    def said(weights):
        found = prerequisites(replace(FACTS, priority_weights={"max_age": 604800.0} | weights), Config())
        return [finding for finding in found if finding.subject == "priority weights"]

    (finding,) = said({})
    assert said(dict.fromkeys(FLAGS, 1.0)) == [finding], "flags are no weights"
    assert "can raise no job" in finding.cause
    assert "PriorityWeightAge=" in finding.remedy
    assert "scontrol reconfigure" in finding.remedy
    assert said({weight: 1.0}) == []

"""Facts: version, plugins, privilege, limiter; a missing slurmdbd is one of them, not an error."""

import os
import pwd
import socket
from dataclasses import replace

import pytest
from unit.slurm.standin import CONFIG, PARTITIONS

from rltuned.core.errors import SlurmParseError, SlurmUnavailableError
from rltuned.decide.rank.multifactor import Weights
from rltuned.slurm import controller
from rltuned.slurm.cli import CliReader
from rltuned.slurm.facts import facts_from, read_facts
from rltuned.slurm.port import Controller, Privilege

NOBODY = 65534
"""An ordinary user that every system has."""


@pytest.fixture
def nobody():
    return pwd.getpwuid(NOBODY).pw_name


def facts(slurm, config=CONFIG, uid=NOBODY):
    return facts_from(controller.config(config), slurm.runner(), uid)


def test_version_plugins_and_parameters(slurm):
    slurm.answer("config", CONFIG)
    found = read_facts(slurm.runner())
    assert (found.version, found.release, found.cluster_name) == ("24.11.5", (24, 11), "testbed")
    assert (found.priority_type, found.site_factor_plugin) == ("priority/multifactor", "")
    assert found.scheduler_parameters == {"bf_interval": "1", "bf_continue": ""}
    assert found.priority_calc_period == 60.0
    assert found.accounting_tres == ("cpu", "mem", "gres/gpu")
    assert found.user == pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(("enforce", "free"), [("none", True), ("nojobs", True), ("associations,limits,qos", False)])
def test_whether_a_job_may_name_any_account(slurm, enforce, free):
    assert facts(slurm, CONFIG + f"AccountingStorageEnforce = {enforce}\n").free_accounts is free


def test_a_ping_that_the_rate_limiter_turns_away_takes_nothing_from_the_configuration(slurm):
    slurm.answer("config", CONFIG.replace("is UP", "is DOWN"), code=1)
    assert read_facts(slurm.runner()).cluster_name == "testbed"
    slurm.answer("config", CONFIG.partition("Slurmctld(")[0], "slurm_load_ctl_conf error: Unable to contact\n", code=1)
    with pytest.raises(SlurmUnavailableError):
        read_facts(slurm.runner())


def test_of_known_facts_only_the_configuration_is_read_anew(slurm, nobody):
    slurm.answer("privilege", f"{nobody}|Operator\n")
    slurm.answer("federation", "Federation: fed\n")
    known = facts(slurm)
    asked = len(slurm.calls)
    changed = CONFIG.replace("bf_continue", "bf_continue,enable_user_top")
    again = facts_from(controller.config(changed), slurm.runner(), NOBODY, known)
    assert again == replace(known, scheduler_parameters={**known.scheduler_parameters, "enable_user_top": ""})
    assert len(slurm.calls) == asked


PREEMPTING = "PreemptType             = preempt/{}\nPreemptMode             = {}"


@pytest.mark.parametrize(
    ("kind", "mode", "qos", "partition", "said"),
    [
        ("none", "OFF", "within,requeue", "PRIORITY,CANCEL", ""),
        ("qos", "REQUEUE", "cluster", "PRIORITY,CANCEL", ""),  # with which the mode of a partition does not count
        ("partition_prio", "GANG,SUSPEND", "within,requeue", "REQUEUE", ""),  # nor that of a QOS
        ("qos", "WITHIN,REQUEUE", "cluster", "OFF", "PreemptMode=WITHIN,REQUEUE in slurm.conf"),
        ("partition_prio", "PRIORITY,CANCEL", "cluster", "OFF", "PreemptMode=PRIORITY,CANCEL in slurm.conf"),
        ("qos", "REQUEUE", "within,requeue", "OFF", "PreemptMode=within,requeue of a QOS"),
        ("qos", "REQUEUE", "priority", "OFF", "PreemptMode=priority of a QOS"),
        ("partition_prio", "REQUEUE", "cluster", "PRIORITY,SUSPEND", "PreemptMode=PRIORITY,SUSPEND of a partition"),
    ],
)
def test_whether_priority_decides_who_is_stopped(slurm, kind, mode, qos, partition, said):
    slurm.answer("preemption", f"cluster\n{qos}\n")
    slurm.answer("partitions", PARTITIONS.replace(" State=UP", f" OverTimeLimit=NONE PreemptMode={partition} State=UP"))
    config = CONFIG.replace("PreemptType             = (null)", PREEMPTING.format(kind, mode))
    assert facts(slurm, config).preempts_by == said


def test_without_slurmdbd_a_qos_may_let_priority_decide_who_is_stopped(slurm):
    slurm.answer("preemption", "", "sacctmgr: error: Problem talking to the database\n", code=1)
    config = CONFIG.replace("PreemptType             = (null)", PREEMPTING.format("qos", "REQUEUE"))
    assert "slurmdbd" in facts(slurm, config).preempts_by


@pytest.mark.parametrize(
    ("parameters", "limiter"),
    [
        ("rl_enable,rl_bucket_size=60,rl_refill_rate=10,rl_refill_period=5", (True, 60, 2.0)),
        ("rl_enable", (True, 30, 2.0)),
        ("rl_bucket_size=60", (False, 60, 2.0)),
    ],
)
def test_the_rate_limiter(slurm, parameters, limiter):
    found = facts(slurm, CONFIG.replace("rl_enable,rl_bucket_size=60,rl_refill_rate=10,rl_refill_period=5", parameters))
    assert (found.rate_limiter, found.rate_bucket, found.rate_refill) == limiter


@pytest.mark.parametrize(
    ("level", "privilege"),
    [
        *(("Operator", Privilege.OPERATOR), ("Administrator", Privilege.ADMIN), ("Admin", Privilege.ADMIN)),
        ("None", Privilege.NONE),
    ],
)
def test_privilege_is_what_slurmdbd_says(slurm, nobody, level, privilege):
    slurm.answer("privilege", f"{nobody}|{level}\n")
    found = facts(slurm)
    assert (found.user, found.privilege, found.accounting_reachable) == (nobody, privilege, True)


def test_who_slurmdbd_does_not_know_has_no_privilege_but_root_and_slurm_user_need_none(slurm):
    for said in ("", "somebodyelse|Administrator\n"):
        slurm.answer("privilege", said)
        assert facts(slurm).privilege is Privilege.NONE
        assert facts(slurm, uid=0).privilege is Privilege.SLURM_USER
        assert facts(slurm, CONFIG.replace("64030", str(NOBODY))).privilege is Privilege.SLURM_USER


def test_a_slurmdbd_that_does_not_answer_is_a_fact_and_where_there_is_none_nobody_is_asked(slurm):
    none = facts(slurm, CONFIG.replace("accounting_storage/slurmdbd", "(null)"))
    assert (none.accounting, none.accounting_reachable, none.privilege) == (False, False, Privilege.NONE)
    assert slurm.calls == []
    slurm.answer("privilege", "", "sacctmgr: error: Sending PersistInit msg: Connection refused\n", code=1)
    found = facts(slurm)
    assert (found.accounting, found.accounting_reachable, found.privilege) == (True, False, Privilege.NONE)
    slurm.script("sacctmgr", "#!/bin/sh\nsleep 1000\n")
    found = facts_from(controller.config(CONFIG), slurm.runner(timeout=0.3), NOBODY)
    assert (found.accounting, found.accounting_reachable) == (True, False)


def test_plugins_that_matter_are_named_and_none_is_empty(slurm):
    text = CONFIG.replace("PrioritySiteFactorPlugin = (null)", "PrioritySiteFactorPlugin = site_factor/example")
    assert facts(slurm, text).site_factor_plugin == "site_factor/example"
    assert facts(slurm, text.replace("site_factor/example", "site_factor/none")).site_factor_plugin == ""


def test_a_site_factor_plugin_that_show_config_does_not_show_is_read_from_slurm_conf(slurm, tmp_path):
    # Every release tried prints (null) with site_factor/example loaded.
    (tmp_path / "site.conf").write_text("prioritysitefactorplugin = site_factor/example  # ours\n")
    main = tmp_path / "slurm.conf"
    main.write_text("ClusterName=testbed\n#PrioritySiteFactorPlugin=site_factor/none\nInclude site.conf\n")
    config = CONFIG + f"SLURM_CONF = {main}\n"
    assert facts(slurm, config).site_factor_plugin == "site_factor/example"
    main.write_text("ClusterName=testbed\nInclude slurm.conf\n")
    assert facts(slurm, config).site_factor_plugin == ""
    main.unlink()
    assert facts(slurm, config).site_factor_plugin == ""


def test_a_user_without_a_name_is_a_number(slurm):
    assert facts(slurm, uid=4_000_000).user == "4000000"


def test_no_answer_and_a_strange_answer_are_errors(slurm):
    slurm.answer("config", "what\n")
    with pytest.raises(SlurmParseError, match="show config"):
        read_facts(slurm.runner())
    slurm.answer("config", "", "slurm_load_ctl_conf error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(SlurmUnavailableError, match="Unable to contact"):
        read_facts(slurm.runner())


@pytest.mark.parametrize(("value", "expected"), [("69121", 69121), ("0", 0), ("-5", 0), ("99999999999", 0), ("", 0)])
def test_the_priority_from_which_on_slurm_keeps_resources(slurm, value, expected):
    text = CONFIG.replace("bf_interval=1,bf_continue", f"bf_interval=1,bf_min_prio_reserve={value},bf_continue")
    assert facts(slurm, text).scheduler.bf_min_prio_reserve == expected
    assert facts(slurm).scheduler.bf_min_prio_reserve == 0


def test_priority_flags(slurm):
    assert facts(slurm).priority_flags == ()
    text = CONFIG.replace("PriorityType  ", "PriorityFlags           = ACCRUE_ALWAYS,INCR_ONLY\nPriorityType  ")
    assert facts(slurm, text).priority_flags == ("ACCRUE_ALWAYS", "INCR_ONLY")


# As a pair of 24.11 answered, its primary killed.
PING_OF_A_PAIR = """\
Slurmctld(primary) at ctl is DOWN
Slurmctld(backup) at ctl2 is UP
*****************************************
** RESTORE SLURMCTLD DAEMON TO SERVICE **
*****************************************
"""


def test_several_controllers_are_told_in_their_order_and_who_of_them_answers(slurm):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    hosts = f"SlurmctldHost[0] = ctl(127.0.0.1)\nSlurmctldHost[1] = ctl2\nSlurmctldPort = {port}-{port + 2}\n"
    known = facts(slurm, hosts + CONFIG.replace("SlurmctldHost[0]", "Other"))
    assert known.controllers == ("ctl", "ctl2")
    assert known.addresses == (("127.0.0.1", port), ("ctl2", port))
    slurm.answer("ping", PING_OF_A_PAIR)
    reader = CliReader(slurm.runner())
    assert reader.controllers(known) == (Controller("ctl", up=False), Controller("ctl2", up=True))
    reader.ping()
    # The RPC limiter makes scontrol say the same of one that is there.
    with socket.create_server(("127.0.0.1", port)):
        assert reader.controllers(known) == (Controller("ctl", up=False, listens=True), Controller("ctl2", up=True))
    slurm.answer("ping", PING_OF_A_PAIR.splitlines()[0] + "\n", code=1)
    assert reader.controllers(known) == (Controller("ctl", up=False),)
    slurm.answer("ping", "", "slurm_load_ctl_conf error", code=1)
    with pytest.raises(SlurmUnavailableError, match="slurm_load_ctl_conf"):
        reader.controllers(known)


def test_a_federation_is_told_and_none_is_an_empty_answer(slurm):
    assert facts(slurm).federation == ""
    # As 24.11 answered.
    told = "Federation: fed\nSelf:       testbed:192.0.2.5:6817 ID:1 FedState:ACTIVE Features:\n"
    slurm.answer("federation", told)
    assert facts(slurm).federation == "fed"
    slurm.answer("federation", "", "Access denied", code=1)
    assert facts(slurm).federation == ""


def test_private_data_hides_jobs_from_who_has_no_privilege(slurm):
    assert not facts(slurm).private_jobs
    found = facts(slurm, CONFIG + "PrivateData = accounts,jobs,usage\n")
    assert found.private_jobs
    assert not replace(found, privilege=Privilege.OPERATOR).hides_jobs
    assert replace(found, privilege=Privilege.NONE).hides_jobs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GRES/gpu=-1000", {"gres/gpu": -1000.0}),
        ("CPU=1000,Mem=2048G,GRES/gpu:A100=3000", {"cpu": 1000.0, "mem": 2.0, "gres/gpu:a100": 3000.0}),
        ("CPU=.25,Mem=0.5T,Node=5.", {"cpu": 0.25, "mem": 0.5 / 1024**2, "node": 5.0}),
        ("(null)", {}),
    ],
)
def test_weights_of_tres_may_be_negative_and_have_units(slurm, text, expected):
    weights = facts(slurm, CONFIG + f"PriorityWeightTRES = {text}\n").priority_weights
    named = {name: weight for name, weight in weights.items() if name in {"cpu", "mem", "node"} or "gres" in name}
    assert named == expected
    text = ",".join(f"{name}={weight:.15g}" for name, weight in weights.items())
    assert not text or dict(Weights.parse(text).tres) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("PreemptType = preempt/qos", "PreemptType=preempt/qos"),
        ("PriorityWeightAssoc = 1000000", "PriorityWeightAssoc=1000000"),
        ("Licenses = matlab:10", "Licenses=matlab:10"),
        ("SchedulerParameters = bf_max_job_assoc=5,bf_interval=60", "SchedulerParameters=bf_max_job_assoc=5"),
        ("SchedulerParameters = bf_job_part_count_reserve=20,bf_min_age_reserve=600", ""),
        ("SchedulerParameters = bf_continue,bf_min_prio_reserve=600", "SchedulerParameters=bf_min_prio_reserve=600"),
        ("SelectTypeParameters = CR_CORE_MEMORY,CR_LLN", "SelectTypeParameters=CR_LLN"),
        ("PriorityWeightTRES = CPU=1,license/x=10,billing=3", "PriorityWeightTRES=license/x=10"),
        ("SchedulerParameters = default_queue_depth=20,bf_max_job_test=900,bf_continue", ""),
        ("PriorityWeightTRES = CPU=1,Mem=-2,GRES/gpu:a100=3,Node=1", ""),
        ("PriorityFlags = CALCULATE_RUNNING,SMALL_RELATIVE_TO_TIME", ""),
        ("PreemptType = preempt/none", ""),
        ("SelectTypeParameters = CR_CORE", "SelectTypeParameters=CR_CORE"),
        ("SelectTypeParameters = CR_SOCKET_MEMORY,CR_CORE_DEFAULT_DIST_BLOCK", "SelectTypeParameters=CR_SOCKET_MEMORY"),
        ("SelectTypeParameters = CR_CPU_MEMORY", ""),
        ("PriorityFlags = INCR_ONLY", "PriorityFlags=INCR_ONLY"),
        ("PriorityFlags = MAX_TRES,NO_NORMAL_ALL", "PriorityFlags=NO_NORMAL_ALL"),  # so it shows NO_NORMAL_TRES alone
        ("SchedulerParameters = bf_window_linear=60", "SchedulerParameters=bf_window_linear=60"),
        ("SlurmctldParameters = enable_expedited_requeue,x", "SlurmctldParameters=enable_expedited_requeue"),
    ],
)
def test_what_changes_who_starts_when_and_is_not_simulated_is_told(slurm, line, said):
    name = line.partition(" ")[0]
    plain = "".join(one for one in CONFIG.splitlines(keepends=True) if not one.startswith(name))
    found = facts(slurm, f"{plain}{line}\n").not_simulated
    assert said in found if said else not found


def test_the_weights_of_multifactor_are_those_that_are_above_0(slurm):
    more = """PriorityWeightAge = 10000
PriorityWeightQOS = 0
PriorityWeightFairShare = 100000
PriorityWeightTRES = CPU=100,Mem=0,GRES/gpu=1000.5
PriorityMaxAge = 1-00:00:00
PriorityDecayHalfLife = 00:21:00
PriorityFavorSmall = Yes
PriorityFlags = SMALL_RELATIVE_TO_TIME,CALCULATE_RUNNING
"""
    weights = {"age": 10_000.0, "fairshare": 100_000.0, "cpu": 100.0, "gres/gpu": 1000.5}
    times = {"max_age": 86_400.0, "half_life": 1260.0}
    assert facts(slurm, CONFIG + more).priority_weights == {
        **weights,
        **times,
        **dict.fromkeys(("favor_small", "small_relative_to_time"), 1.0),
    }

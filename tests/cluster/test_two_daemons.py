"""One rltuned steers a cluster; and only one that can steer it well does."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime

from cluster.daemon_support import Rltuned, named
from cluster.failure_support import alive, installed, more_jobs
from cluster.support import (
    NO_SLURMDBD,
    OPERATOR,
    PRIORITY_BASIC,
    SITE_FACTOR_PLUGIN,
    UNPRIVILEGED,
    Cluster,
    on_one_release,
    on_the_oldest,
)


@on_one_release
def test_the_second_daemon_refuses_and_says_who_holds_the_lock(cluster: Cluster):
    with installed(cluster) as rltuned:
        first = rltuned.start()
        since = json.loads(cluster.read_file(f"{first.state}/lock"))["since"]
        began = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        holder = f"process {first.program.pid} of {rltuned.user} on ctl since {began}"

        second = rltuned.run("run", check=False)
        assert second.returncode == 9
        assert holder in second.stderr
        assert second.stderr.count("\n") == 1, "one line, no traceback"

        refused = rltuned.run("restore", check=False)
        assert refused.returncode == 9
        assert holder in refused.stderr
        assert "systemctl stop rltuned" in refused.stderr
        assert holder in rltuned.doctor()["daemon"]["cause"]

        first.program.kill("KILL")
        first.program.wait()
        third = rltuned.start()
        third.wait_cycles(1)
        assert alive(third), "a lock does not outlive its holder"
        assert third.stop() == 0


Lacks = tuple[str, str]
"""A finding of doctor: its subject, and words of its remedy."""


def stays_in_shadow_mode_and_doctor_says_why(rltuned: Rltuned, lacks: Iterable[Lacks]) -> None:
    """Configured to write, it does not; the log and doctor, which ends with 10, name cause and remedy."""
    cluster = rltuned.cluster
    doctor = rltuned.run("doctor", "--json", check=False)
    assert doctor.returncode == 10, doctor.stdout + doctor.stderr
    found = {finding["subject"]: finding for finding in json.loads(doctor.stdout)}
    cluster.reset_rpc_counts()
    once = rltuned.cycle("--stage", "active")
    missing = {event["subject"]: event for event in named(once.log, "prerequisite.missing")}
    for subject, remedy in lacks:
        assert found[subject]["severity"] == "error", found[subject]
        assert remedy in found[subject]["remedy"]
        assert missing[subject]["cause"] == found[subject]["cause"]
        assert found[subject]["cause"] in once.done["sentence"]
    assert once.done["stage"] == "shadow"
    assert {*once.record.managed, *once.record.vetoes} == cluster.priorities().keys(), "it decided about all"
    assert cluster.sdiag_rpc_counts().job_updates == 0


@on_one_release
def test_an_operator_without_privilege_is_told_so_and_stays_in_shadow_mode(cluster: Cluster):
    cluster.fill()
    more_jobs(cluster, 5, seed=1)
    rltuned = installed(cluster, user=UNPRIVILEGED)
    stays_in_shadow_mode_and_doctor_says_why(
        rltuned, [("privilege", f"sacctmgr modify user {UNPRIVILEGED} set AdminLevel=Operator")]
    )


# The configurations of each release are recorded (tests/recorded, config-….txt).
@on_the_oldest
def test_a_cluster_that_is_not_configured_for_it_is_named_with_the_remedy_and_left_in_shadow_mode(cluster: Cluster):
    cluster.fill()
    more_jobs(cluster, 5, seed=1)
    lacks = [("site factor plugin", "slurm.conf"), ("backfill", "bf_continue"), ("preemption", "PRIORITY and WITHIN")]
    preempts = {"PreemptType": "preempt/qos", "PreemptMode": "WITHIN,REQUEUE"}
    with cluster.conf({**SITE_FACTOR_PLUGIN, **preempts, **cluster.scheduler_parameters(remove=["bf_continue"])}):
        stays_in_shadow_mode_and_doctor_says_why(installed(cluster, user=OPERATOR), lacks)
    lacks = [("accounting", "slurmdbd"), ("privilege", "SlurmUser"), ("priority plugin", "priority/multifactor")]
    with cluster.conf({**NO_SLURMDBD, **PRIORITY_BASIC}):
        stays_in_shadow_mode_and_doctor_says_why(installed(cluster, user=OPERATOR), lacks)

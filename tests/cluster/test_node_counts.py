"""On how many nodes Slurm starts a job that left it open, who may decide that, and what of it can be taken back."""

from contextlib import ExitStack

import pytest
from cluster.support import NODES, OPERATOR, UNPRIVILEGED, Cluster, wait_until

GUARD = "MinTmpDiskNode=0"
"""The value that it has. Slurm refuses it for a job that has started, before it comes to the node count."""
IN_ALL, TYPED, RANGE = ("--gpus=4",), ("--gpus=p100:4",), ("-N1-4", "--gres=gpu:2")
P100_2, BOTH_P100 = "ExcNodeList=k80-[1-2],m40-1,p100-1", "ExcNodeList=k80-[1-2],m40-1"
STARTED = "Job is no longer pending execution"
NOT_ASKED = ("Time", "JobId", "Priority", "Reason", "LastSchedEval", "Scheduler", "SchedNodeList")


def write(cluster: Cluster, job: int, *changes: str, user: str = "root") -> str:
    """What scontrol has against it: its exit status may be 0 even so."""
    guard = [GUARD] if "NumNodes" in changes[0] else []
    return cluster.run(["scontrol", "update", f"JobId={job}", *changes, *guard], user=user, check=False).stderr.strip()


def request_of(cluster: Cluster, job: int) -> set[tuple[str, str]]:
    return {(name, value) for name, value in cluster.job(job).items() if not name.endswith(NOT_ASKED)}


def submit(cluster: Cluster, request: tuple[str, ...], *changes: str, user: str = "root") -> int:
    """A job that was written to before Slurm could start it."""
    job = cluster.submit("alice", *request, "-t10", "--hold", "--requeue")
    assert [write(cluster, job, change, user=user) for change in changes] == [""] * len(changes)
    cluster.run(["scontrol", "release", str(job)])
    return job


def nodes(cluster: Cluster, job: int) -> int:
    cluster.wait_state(job, "RUNNING")
    got = int(cluster.job(job)["NumNodes"])
    cluster.cancel(job)
    wait_until(lambda: job not in cluster.states(), "it is gone")
    return got


def wait_reason(cluster: Cluster, job: int, reason: str) -> None:
    wait_until(lambda: cluster.job(job)["Reason"] == reason, f"{job} waits for {reason}")


def occupy(cluster: Cluster, *request: str) -> None:
    cluster.wait_state(cluster.submit("alice", *request, "-t60"), "RUNNING")


def unlimited(cluster: Cluster) -> str:
    """22.05 takes no 0. A limit above the partition's MaxNodes would be PartitionNodeLimit."""
    return f"1-{len(NODES)}" if cluster.release == "22.05" else "1-0"


@pytest.mark.parametrize("size", ["1-1", "1", "2-2", "1-2"])
def test_a_count_beside_its_guard_changes_nothing_once_the_job_runs(cluster: Cluster, size: str) -> None:
    job = cluster.submit("alice", "-N2", "--gres=gpu:2", "-t10")
    cluster.wait_state(job, "RUNNING")
    before = request_of(cluster, job)
    assert STARTED in write(cluster, job, f"NumNodes={size}", user=OPERATOR)
    assert STARTED in write(cluster, job, "ExcNodeList=p100-1", user=OPERATOR)
    assert request_of(cluster, job) == before >= {("NumNodes", "2")}


def test_no_job_shrinks_however_close_to_its_start_it_is_written_to(cluster: Cluster) -> None:
    filler = cluster.fill()
    jobs = cluster.submit_many([("alice", "-N2", "--gres=gpu:1", "-t10")] * 5)
    commands = "".join(f"update JobId={job} NumNodes=1-1 {GUARD}\n" for job in jobs)
    cluster.cancel(filler)
    wait_until(lambda: STARTED in cluster.run(["scontrol"], input=commands, check=False).stderr, "one starts", pause=0)
    shrunk = cluster.sh("sed -n 's/.*set node count to .* for JobId=//p' /var/log/slurm/slurmctld.log").stdout.split()
    assert not {str(job) for job in jobs} & {*shrunk}


def test_one_node_for_gpus_in_all_can_be_taken_back_unless_the_minimum_was_raised(cluster: Cluster) -> None:
    cluster.fill()
    job, twin = cluster.submit_many([("alice", *IN_ALL, "-t10")] * 2)
    # Before that it shows 1-1 for both, limited or not.
    wait_until(lambda: {cluster.job(each)["NumNodes"] for each in (job, twin)} == {"1"}, "the scheduler looks at them")
    assert write(cluster, job, "NumNodes=1-1") == ""
    assert request_of(cluster, job) - request_of(cluster, twin) == {("NumNodes", "1-1")}
    assert write(cluster, job, f"NumNodes={unlimited(cluster)}") == ""
    left = {("NumNodes", "1-5")} if cluster.release == "22.05" else set()
    assert request_of(cluster, job) - request_of(cluster, twin) == left
    assert [write(cluster, job, f"NumNodes={size}") for size in ("2-2", unlimited(cluster))] == ["", ""]
    assert (cluster.job(twin)["NumCPUs"], cluster.job(job)["NumCPUs"]) == ("1", "2")


def test_gpus_in_all_that_are_limited_to_one_node_wait_for_it_and_others_do_not(cluster: Cluster) -> None:
    occupy(cluster, "-wp100-[1-2]", "--gres=gpu:2")
    limited = submit(cluster, IN_ALL, "NumNodes=1-1")
    wait_reason(cluster, limited, "Resources")
    assert nodes(cluster, submit(cluster, IN_ALL)) == 2
    assert (write(cluster, limited, f"NumNodes={unlimited(cluster)}"), nodes(cluster, limited)) == ("", 2)


@pytest.mark.parametrize("asked", [("--gpus=4", "-N1"), IN_ALL, ("-n4", "--gpus-per-task=1")])
def test_26_05_does_not_find_the_one_node_for_gpus_in_all(cluster: Cluster, asked: tuple[str, ...]) -> None:
    job = submit(cluster, asked, *(["NumNodes=1-1"] if asked == IN_ALL else []))
    if cluster.release == "26.05" and "--gpus=4" in asked:
        wait_reason(cluster, job, "Resources")  # on idle nodes: two K80 nodes come first, which are enough together
        assert write(cluster, job, P100_2) == ""
    assert nodes(cluster, job) == 1


def test_an_exclusion_decides_how_many_nodes_a_job_takes_and_leaves_no_trace(cluster: Cluster) -> None:
    for expected, *changes in (4,), (1, P100_2), (2, BOTH_P100), (4, P100_2, "ExcNodeList="):
        assert nodes(cluster, submit(cluster, RANGE, *changes)) == expected
    occupy(cluster, "-wp100-2", "--gres=gpu:4")
    job = submit(cluster, RANGE, P100_2)
    wait_reason(cluster, job, "Resources")
    assert (write(cluster, job, "ExcNodeList="), nodes(cluster, job)) == ("", 3)


@pytest.mark.parametrize(("user", "expected"), [(OPERATOR, 1), (UNPRIVILEGED, 4)])
def test_an_operators_count_keeps_a_range_at_its_minimum(cluster: Cluster, user: str, expected: int) -> None:
    with ExitStack() as undo:
        cluster.sh(f"sacctmgr -i add coordinator account=physics names={UNPRIVILEGED}")
        undo.callback(cluster.sh, f"sacctmgr -i remove coordinator account=physics names={UNPRIVILEGED}")
        assert nodes(cluster, submit(cluster, RANGE, "NumNodes=1-3", "NumNodes=1-4", user=user)) == expected


def test_limits_of_nodes_in_use_do_not_bind_where_an_operator_has_changed_a_maximum(cluster: Cluster) -> None:
    with ExitStack() as undo:
        cluster.sh("sacctmgr -i modify account physics set GrpTRES=node=2")
        undo.callback(cluster.sh, "sacctmgr -i modify account physics set GrpTRES=node=-1")
        occupy(cluster, "-N2", "--gres=gpu:1")
        for request, *changes in ((RANGE,), (RANGE, P100_2, "ExcNodeList="), (TYPED, "NumNodes=1-1")):
            wait_reason(cluster, submit(cluster, request, *changes), "AssocGrpNodeLimit")
        assert nodes(cluster, submit(cluster, RANGE, "NumNodes=1-1", "NumNodes=1-4")) == 1
        assert nodes(cluster, submit(cluster, TYPED, "NumNodes=1-1", f"NumNodes={unlimited(cluster)}")) == 1


def test_a_requeued_job_carries_what_was_written_before_it_started(cluster: Cluster) -> None:
    job = submit(cluster, TYPED, P100_2, "NumNodes=1-1")
    cluster.wait_state(job, "RUNNING")
    cluster.drain(*NODES)
    cluster.sh(f"scontrol requeue {job}")
    cluster.wait_state(job, "PENDING")
    assert ("ExcNodeList", P100_2.partition("=")[2]) in request_of(cluster, job)
    assert cluster.job(job)["NumNodes"] == ("1" if cluster.release == "22.05" else "1-1"), "22.05 does not show it"


def test_an_array_of_which_a_task_runs_takes_an_exclusion_for_the_others_and_no_count(cluster: Cluster) -> None:
    array = cluster.submit("alice", "--array=1-5", "-N2", "--gres=gpu:p100:4", "-t10")
    cluster.wait_state(array, "RUNNING")
    assert "not supported for job arrays" in write(cluster, array, "NumNodes=1-1")
    assert STARTED in write(cluster, array, "ExcNodeList=m40-1")
    shown = cluster.run(["scontrol", "-o", "show", "job", str(array)]).stdout.splitlines()
    assert sorted(("RUNNING" in line, "ExcNodeList=m40-1" in line) for line in shown) == [(False, True), (True, False)]

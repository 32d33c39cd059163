"""Placement on a real Slurm: who is isolated, where jobs land, who may join them, and the way back."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from cluster.daemon_support import SLURM_USER, Record, Rltuned
from cluster.support import Cluster, wait_until

# Most CPUs of a P100 node beside one of its four GPUs: the integer program gives it a node of its own.
HUNGRY = ("--gres=gpu:p100:1", "-c50", "-t", "60")
SMALL = ("--gres=gpu:p100:1", "-c1", "-t", "60")
MODEST = ("--gres=gpu:k80:1", "-c4", "-t", "60")

# Neither scheduler runs: jobs stay pending while nodes are idle.
STILL = "defer,sched_interval=-1,bf_interval=10800,bf_continue"
LONGEST_DELAY = 2.5
"""Seconds: sched_min_interval, by which slurmctld puts off a pass that it has been asked for, is 2."""


def reconfigure(cluster: Cluster, **settings: str) -> None:
    """Takes the testbed's slurm.conf with other values over without a restart, and waits until slurmctld is back."""
    changes = ";".join(f"s/^{name}=.*/{name}={value}/" for name, value in settings.items())
    cluster.sh(f"sed '{changes}' /etc/slurm/slurm.conf.testbed >/etc/slurm/slurm.conf && scontrol reconfigure")
    cluster.slurmctld.wait_ready()


@contextlib.contextmanager
def queue_at_rest(cluster: Cluster, **settings: str) -> Iterator[None]:
    """While it lasts Slurm starts no job; afterwards it starts what fits, within a second or two."""
    settings = {"SchedulerParameters": STILL, **settings}
    reconfigure(cluster, **settings)
    seen: list[list[str]] = []

    def no_new_pass() -> bool:
        seen.append(re.findall(r"Total cycles: +([0-9]+)", cluster.sh("sdiag").stdout))
        if len(seen) % 8 == 0:
            # The schedulers take a new configuration over when its time, in whole seconds, is another one: they miss a
            # second change within a second.
            reconfigure(cluster, **settings)
        return len(seen) > 1 and seen[-1] == seen[-2]

    # On a busy machine a pass that was due before the change comes after it.
    wait_until(no_new_pass, "neither scheduler makes a pass any more", pause=LONGEST_DELAY)
    try:
        yield
    finally:
        reconfigure(cluster)


def expanded(cluster: Cluster, nodes: str) -> tuple[str, ...]:
    return tuple(cluster.run(["scontrol", "show", "hostnames", nodes]).stdout.split())


def where_of(cluster: Cluster, job: int) -> tuple[str, ...]:
    return expanded(cluster, cluster.sh(f"squeue -h -t R -j {job} -o %N").stdout.strip())


def wait_running(cluster: Cluster, jobs: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """The nodes of the jobs, once all of them run."""
    wanted = list(jobs)
    query = f"squeue -h -t R -j {','.join(map(str, wanted))} -o %A"
    try:
        wait_until(lambda: len(cluster.sh(query, check=False).stdout.split()) == len(wanted), f"{wanted} run")
    except AssertionError as error:
        error.add_note(cluster.sh("squeue -l; sinfo -N -l; scontrol show config | grep SchedulerParam").stdout)
        raise
    return {job: where_of(cluster, job) for job in wanted}


def oversubscribe(cluster: Cluster, *jobs: int) -> list[tuple[str, str]]:
    """OverSubscribe and (26.05; else "") Exclusive of each job, as scontrol shows them."""
    shown = (cluster.job(job) for job in jobs)
    return [(job["OverSubscribe"], job.get("Exclusive", "")) for job in shown]


def toggled(record: Record) -> dict[int, Any]:
    """The new OverSubscribe of each job that the plan wants to toggle."""
    return {job: after for job, field, _, after in record.changes if field == "OverSubscribe"}


def ways(record: Record) -> dict[int, dict[str, Any]]:
    """The planned way of each placed job."""
    return {int(job): way for job, way in record.data["placement"]["ways"].items()}


def wait_considered(cluster: Cluster, jobs: Iterable[int]) -> None:
    """Waits until Slurm has looked at the jobs and found no room for them."""
    listed = ",".join(map(str, jobs))
    query = f"squeue -h -t PD -j {listed} -o %r"
    wait_until(
        lambda: (
            set(cluster.sh(query).stdout.split()) <= {"Resources", "Priority"}
            and "Resources" in cluster.sh(query).stdout
        ),
        f"{listed} wait for room",
    )


def test_spread_gets_an_idle_node_that_nobody_else_may_join_and_pack_lets_it_share(cluster: Cluster) -> None:
    with Rltuned(cluster, user=SLURM_USER, policy={"name": "fifo"}, placement={"apply": "oversubscribe"}) as rltuned:
        with queue_at_rest(cluster):
            spread = cluster.submit_many([("alice", "-p", "gpu", *HUNGRY), ("bob", "-p", "share", *HUNGRY)])
            # On a named node: a busy machine's nodes may not answer for a moment, and Slurm takes another one.
            packed = cluster.submit_many(
                [("carol", "-p", "gpu", "-w", "k80-1", *MODEST), ("dave", "-p", "share", "-w", "k80-1", *MODEST)]
            )
            cluster.wait_sprio([*spread, *packed])
            before = oversubscribe(cluster, *packed)
            cycle = rltuned.cycle()
            chosen = ways(cycle.record)
            assert [chosen[job]["kind"] for job in (*spread, *packed)] == ["spread", "spread", "pack", "pack"]
            assert toggled(cycle.record) == dict.fromkeys(spread, "NO")
            assert [cycle.record.data["outcomes"][str(job)]["OverSubscribe"] for job in spread] == ["applied"] * 2
            assert [value for value, _ in oversubscribe(cluster, *spread)] == ["NO", "NO"]
            assert oversubscribe(cluster, *packed) == before
        where = wait_running(cluster, [*spread, *packed])
        assert {where[job] for job in spread} == {("p100-1",), ("p100-2",)}
        assert where[packed[0]] == where[packed[1]] == ("k80-1",), "packed jobs share a node"
        # Each P100 node has six CPUs and three GPUs to spare, and nobody gets them.
        late = cluster.submit_many([("dave", "-p", partition, *SMALL) for partition in ("gpu", "share")])
        wait_considered(cluster, late)
        # What the daemon sees agrees: it plans nothing beside them before they end.
        assert ways(rltuned.plan()).keys().isdisjoint(late)
        cluster.cancel(*spread)
        wait_running(cluster, late)
        # The same request left alone lets others join.
        cluster.cancel(*late)
        alone = cluster.submit("alice", *HUNGRY)
        (node,) = wait_running(cluster, [alone])[alone]
        joins = cluster.submit("dave", "-w", node, *SMALL)
        assert wait_running(cluster, [joins]) == {joins: (node,)}


def test_a_users_own_exclusive_or_oversubscribe_is_never_touched_nor_what_has_no_effect_written(
    cluster: Cluster,
) -> None:
    pairs = (
        (("gpu", "--oversubscribe"), ("share", "--oversubscribe")),
        (("force",), ("excl",)),
        (("gpu", "--exclusive=user"), ("share", "--exclusive")),
    )
    with Rltuned(cluster, user=SLURM_USER, policy={"name": "fifo"}, placement={"apply": "oversubscribe"}) as rltuned:
        with queue_at_rest(cluster):
            for pair in pairs:
                jobs = cluster.submit_many(
                    [("alice", "-p", partition, *options, *HUNGRY) for partition, *options in pair]
                )
                cluster.wait_sprio(jobs)
                before = oversubscribe(cluster, *jobs)
                cycle = rltuned.cycle()
                chosen = ways(cycle.record)
                assert [chosen[job]["kind"] for job in jobs] == ["spread"] * 2, "candidates"
                assert toggled(cycle.record) == {}
                assert rltuned.restore()["complete"]
                assert oversubscribe(cluster, *jobs) == before
                if pair != pairs[-1]:
                    cluster.cancel(*jobs)
        wait_running(cluster, jobs)
        assert cluster.job(jobs[1])["NumCPUs"] == "56", "--exclusive still gets the whole node"
        stranger = cluster.submit("bob", "-p", "gpu", "-w", *where_of(cluster, jobs[0]), *SMALL)
        wait_considered(cluster, [stranger])
        cluster.cancel(stranger)
        friend = cluster.submit("alice", "-p", "gpu", "-w", *where_of(cluster, jobs[0]), *SMALL, "--exclusive=user")
        wait_running(cluster, [friend])


def test_undo_does_all_that_the_release_allows_and_names_what_it_cannot(cluster: Cluster) -> None:
    # YES packs in an OverSubscribe=NO partition, but for 24.11, where it means a node for each job.
    takes_back = cluster.release != "24.11"
    with Rltuned(cluster, user=SLURM_USER, policy={"name": "fifo"}, placement={"apply": "oversubscribe"}) as rltuned:
        cluster.cancel(*cluster.submit_many([("dave", "--hold")] * 9))  # so that no job has a number that is a count
        with queue_at_rest(cluster):
            plain, sharing = cluster.submit_many([("alice", "-p", "gpu", *HUNGRY), ("bob", "-p", "share", *HUNGRY)])
            cluster.wait_sprio([plain, sharing])
            assert set(toggled(rltuned.cycle().record)) == {plain, sharing}
            before = rltuned.doctor()["leftovers"]
            assert before["severity"] == "error"

            done = rltuned.run("restore", "--json", check=False)
            assert done.returncode == 10
            report = json.loads(done.stdout)
            assert report["restored"] == ([plain] if takes_back else [])
            left = {item["job_id"]: item for item in report["left"]}
            assert set(left) == ({sharing} if takes_back else {plain, sharing})
            for item in left.values():
                assert item["field"] == "OverSubscribe"
                assert "cannot be taken back" in item["reason"]
                assert item["remedy"]
            assert [value for value, _ in oversubscribe(cluster, plain, sharing)] == [
                "YES" if takes_back else "NO",
                "NO",
            ]
            # People read the same, and doctor names the jobs as long as they wait.
            said = rltuned.run("restore", check=False)
            assert said.returncode == 10
            assert all(str(job) in said.stdout + said.stderr for job in left)
            assert rltuned.run("doctor", check=False).returncode == 10
            after = rltuned.doctor()["leftovers"]
            assert after["severity"] == "error"
            # Whole numbers: job 1 is not in "12 jobs".
            named = set(map(int, re.findall(r"\d+", after["cause"] + after["remedy"])))
            assert set(left) <= named
            assert takes_back is (plain not in named)
        where = wait_running(cluster, [plain, sharing])
        joins = cluster.submit("carol", "-p", "gpu", *SMALL)
        if takes_back:
            assert wait_running(cluster, [joins])[joins] == where[plain], "it packs again"
        else:
            wait_considered(cluster, [joins])

"""Kinds of node that real sites have: untyped GPUs, slices, shards, hyper-threads, power saving, reservations."""

from cluster.daemon_support import SLURM_USER, Rltuned, named
from cluster.support import POWER_OFF, Cluster, wait_until
from cluster.test_placement import queue_at_rest, toggled, ways

# One job on each kind of node.
RUNNING = (
    ("alice", "-w", "core1", "--gres=gpu:2"),
    ("alice", "-w", "plain1", "--gres=gpu:1"),
    ("alice", "-w", "auto1", "--gres=gpu:1"),
    ("bob", "-w", "mig1", "--gres=gpu:1g.10gb:1"),
    ("bob", "-w", "mig1", "--gres=gpu:1g.10gb+me:1"),
    ("carol", "-w", "shard1", "--gres=shard:3"),
    ("dave", "-w", "multi1", "--gres=gpu:a100:1,nic:1,lustre:2G"),
    ("dave", "-w", "smt1", "--gres=gpu:1", "--ntasks-per-core=1", "-n2"),
)
UNTYPED = ("-p", "untyped", "--gres=gpu:2")


def state_of(cluster: Cluster, node: str) -> str:
    """``IDLE+CLOUD+POWERED_DOWN``."""
    return cluster.run(["scontrol", "-o", "show", "node", node]).stdout.partition(" State=")[2].partition(" ")[0]


def wait_node(cluster: Cluster, node: str, flag: str) -> None:
    wait_until(lambda: flag in state_of(cluster, node), f"{node} is {flag}")


def test_a_site_with_every_kind_of_node_is_understood_and_a_job_that_wants_untyped_gpus_is_moved(
    mixed_cluster: Cluster,
) -> None:
    cluster = mixed_cluster
    running = cluster.submit_many(RUNNING)
    for job in running:
        cluster.wait_state(job, "RUNNING")
    for name, flags, node in (("upkeep", "maint", "maint1"), ("course", "ignore_jobs", "resv1")):
        words = [f"ReservationName={name}", "StartTime=now", "Duration=60", "Users=alice", f"Nodes={node}"]
        cluster.run(["scontrol", "create", "reservation", *words, f"Flags={flags}"])
    # The long one is ahead of the short one, because it came first.
    long, short = cluster.submit_many([("bob", *UNTYPED, "-t", "600"), ("bob", *UNTYPED, "-t", "5")])
    slices = cluster.submit("carol", "--gres=gpu:1g.10gb:1,gpu:1g.10gb+me:1", "-t", "30")
    cluster.wait_sprio([long, short, slices])
    before = cluster.priorities()
    assert before[long] >= before[short]
    with Rltuned(cluster, user=SLURM_USER, policy={"name": "sjf"}) as rltuned:
        first = rltuned.cycle()
        assert first.done["outcome"] == "done"
        assert set(first.record.managed) == {long, short, slices}
        assert named(first.log, "rows.skipped") == []
        after = cluster.priorities()
        assert after[short] > after[long]
        second = rltuned.cycle()
        assert second.done["outcome"] == "done"
        said = rltuned.doctor()["answers"]
        assert said["severity"] == "ok", said
        assert said["cause"].startswith("all understood: 11 jobs, 12 nodes, ")
        # Two untyped GPUs with cores become free.
        cluster.cancel(running[0])
        cluster.wait_state(short, "RUNNING")
        assert cluster.job(short)["NodeList"] == "core1"
        assert cluster.states()[long] == "PENDING"
        assert rltuned.restore()["complete"]
        assert set(cluster.site_factors().values()) <= {0}


def test_what_sleeps_is_woken_by_slurm_and_nobody_is_isolated_on_it(mixed_cluster: Cluster) -> None:
    cluster = mixed_cluster
    for node in ("cloud1", "cloud2"):
        wait_node(cluster, node, "POWERED_DOWN")
    cluster.sh(f"touch {POWER_OFF}", service="mixed")
    with Rltuned(cluster, user=SLURM_USER, policy={"name": "fifo"}, placement={"apply": "oversubscribe"}) as rltuned:
        with queue_at_rest(cluster):
            # Most of a node's CPUs beside one of its two GPUs: worth a node of its own, if one were up.
            hungry = cluster.submit("alice", "-p", "cloud", "--gres=gpu:a100:1", "-c7", "-t", "60")
            cluster.wait_sprio([hungry])
            cycle = rltuned.cycle()
            way = ways(cycle.record)[hungry]
            assert way["kind"] == "spread"
            assert toggled(cycle.record) == {}
        # Slurm wakes a node for it, and gives the node more jobs while it comes up.
        cluster.wait_state(hungry, "CONFIGURING")
        node = cluster.job(hungry)["NodeList"]
        wait_node(cluster, node, "POWERING_UP")
        other = cluster.submit("bob", "-p", "cloud", "-w", node, "--gres=gpu:a100:1", "-t", "60")
        cluster.wait_state(other, "CONFIGURING")
        assert rltuned.doctor()["answers"]["severity"] == "ok"
        assert rltuned.cycle().done["outcome"] == "done"
    cluster.sh(f"rm {POWER_OFF}", service="mixed")
    for job in (hungry, other):
        cluster.wait_state(job, "RUNNING")

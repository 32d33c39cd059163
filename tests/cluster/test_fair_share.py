"""An account that has used up its share and floods the queue with small jobs gets no more than its budget."""

from cluster.daemon_support import SLURM_USER, Rltuned
from cluster.support import Cluster, on_one_release, wait_until

FLOOD, OTHER = "alice", "carol"
"""Users of the accounts physics and biology."""
JOBS = 32
SECONDS = {FLOOD: 4, OTHER: 15}
"""That each job of theirs runs, on one GPU."""
FAIR_SHARE: dict[str, str | None] = {
    "PriorityWeightFairshare": "100000",
    "PriorityDecayHalfLife": "00:10:00",
    "PriorityCalcPeriod": "00:00:10",
    **{f"PriorityWeight{name}": "0" for name in ("Age", "JobSize", "Partition", "QOS")},
    "PriorityWeightTRES": None,
    "SlurmctldParameters": None,
}


def fair_shares(cluster: Cluster) -> dict[str, float]:
    """Fair-share factor of each of the two."""
    words = ["sshare", "-n", "-P", "-u", f"{FLOOD},{OTHER}", "-o", "User,FairShare"]
    rows = (row.split("|") for row in cluster.run(words).stdout.split())
    return {user: float(share) for user, share in rows if user}


def pending(cluster: Cluster) -> set[int]:
    return {job for job, state in cluster.states().items() if state == "PENDING"}


def taken_by_the_flood(cluster: Cluster, **decide: float) -> float:
    """GPU time that the flood gets before the last job of the other account starts, over that account's.

    Slurm alone starts all of the other account's jobs first.
    """
    with (
        cluster.conf(FAIR_SHARE),
        Rltuned(cluster, user=SLURM_USER, policy={"name": "saf"}, cycle={"interval": 2.0}, decide=decide) as rltuned,
    ):
        filler = cluster.fill(FLOOD)
        wait_until(lambda: (of := fair_shares(cluster))[FLOOD] < of[OTHER], "the flood has used up its share")
        jobs = {
            user: set(
                cluster.submit_many([(user, "--gres=gpu:p100:1", limit)] * JOBS, command=f"sleep {SECONDS[user]}")
            )
            for user, limit in ((FLOOD, "-t1"), (OTHER, "-t10"))
        }
        cluster.wait_sprio(jobs[FLOOD] | jobs[OTHER])
        daemon = rltuned.start()
        assert daemon.wait_cycles(1)[0]["outcome"] == "done"
        cluster.cancel(filler)
        wait_until(lambda: not jobs[OTHER] & pending(cluster), "all jobs of the other account have started")
        started = len(jobs[FLOOD] - pending(cluster))
        assert daemon.stop() == 0
    return started * SECONDS[FLOOD] / (JOBS * SECONDS[OTHER])


def test_an_account_that_has_used_up_its_share_and_floods_the_queue_takes_less_than_a_twentieth_of_anothers_gpu_time(
    cluster: Cluster,
):
    assert taken_by_the_flood(cluster, borrow=0.02) <= 0.05


@on_one_release
def test_without_a_budget_the_flood_would_go_first(cluster: Cluster):
    assert taken_by_the_flood(cluster, borrow=1000.0) > 0.2

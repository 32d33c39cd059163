"""An account that has used up its share and floods the queue with short jobs takes what the others' jobs lend, no more.

Slurm alone starts all of the other account's jobs first.
"""

import time

from cluster.daemon_support import SLURM_USER, Rltuned
from cluster.support import Cluster, on_one_release, wait_until

FLOOD, OTHER = "alice", "carol"
"""Users of the accounts physics and biology."""
JOBS = {FLOOD: 24, OTHER: 6}
GPUS = {FLOOD: 1, OTHER: 4}
SECONDS = {FLOOD: 4, OTHER: 8}
"""That each job of theirs runs."""
SHARE = 0.5
CHARGED = 60.0
"""Seconds, before it has ended, of a job with the time limit of the flood's."""
FAIR_SHARE: dict[str, str | None] = {
    "PriorityWeightFairshare": "100000",
    "PriorityDecayHalfLife": "00:10:00",
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


@on_one_release
def test_a_flood_of_an_account_that_has_used_up_its_share_takes_no_more_than_the_jobs_of_others_lend(cluster: Cluster):
    # What has been used counts when slurmctld calculates, which it does once a minute and as it starts.
    cluster.run(["sacctmgr", "-i", "modify", "account", "root", "set", "RawUsage=0"])
    filler = cluster.fill(FLOOD)
    with (
        cluster.conf(FAIR_SHARE),
        Rltuned(
            cluster, user=SLURM_USER, policy={"name": "saf"}, cycle={"interval": 2.0}, lend={"share": SHARE}
        ) as rltuned,
    ):
        wait_until(lambda: (of := fair_shares(cluster))[FLOOD] < of[OTHER], "the flood has used up its share")
        began = time.monotonic()
        jobs = {
            user: set(
                cluster.submit_many(
                    [(user, f"--gres=gpu:p100:{GPUS[user]}", limit)] * JOBS[user], command=f"sleep {SECONDS[user]}"
                )
            )
            for user, limit in ((FLOOD, "-t1"), (OTHER, "-t10"))
        }
        cluster.wait_sprio(jobs[FLOOD] | jobs[OTHER])
        daemon = rltuned.start()

        def ahead() -> tuple[int, float]:
            """Jobs of the flood before the last of the others', and how many these can lend to now, at most."""
            order, factors = cluster.queue_order(), cluster.site_factors()
            assert min(factors.values()) >= 0
            last = max(order.index(job) for job in jobs[OTHER])
            lent = SHARE * (time.monotonic() - began) * GPUS[OTHER] * JOBS[OTHER]
            return sum(job in jobs[FLOOD] for job in order[:last]), lent / (CHARGED * GPUS[FLOOD])

        seen = []

        def some_are_ahead() -> bool:
            seen.append(ahead())
            return seen[-1][0] > 0

        wait_until(some_are_ahead, "jobs of the flood go ahead")
        assert all(count <= most for count, most in seen)
        assert seen[-1][0] < JOBS[FLOOD], "the others' jobs cannot lend to all"
        cluster.cancel(filler)
        wait_until(lambda: not jobs[OTHER] & pending(cluster), "all jobs of the other account have started")
        started = len(jobs[FLOOD] - pending(cluster))
        waited = time.monotonic() - began
        assert 0 < started * SECONDS[FLOOD] <= SHARE * waited * GPUS[OTHER] * JOBS[OTHER]
        assert daemon.stop() == 0

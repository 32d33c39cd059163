"""What goes on in Slurm under site factors, how many are written at once, and what Slurm's limiter makes of it."""

import pytest
from cluster.daemon_support import SLURM_USER, Rltuned
from cluster.support import OPERATOR, WANTED, Cluster, on_the_oldest, wait_until

# Hours of waiting count in seconds, and so does what a running job uses.
QUICK: dict[str, str | None] = {
    "PriorityWeightAge": "1000000",
    "PriorityMaxAge": "0-02:00",
    "PriorityWeightFairshare": "1000000",
    "SlurmctldParameters": None,
}
# A bucket that fits into a test: the limiter's default lets 30 requests through, then two a second.
LIMITED: dict[str, str | None] = {
    "SlurmctldParameters": "rl_enable,rl_bucket_size=80,rl_refill_rate=10",
    # Raised jobs stand one point apart: where the age moves sums by a point, two may change places for a cycle.
    "PriorityWeightAge": "0",
    "PriorityCalcPeriod": "60",
}
REVERSE = {"policy": {"name": "sjf"}, "placement": {"apply": "off"}}
"""Shortest first: turns a queue of ever shorter jobs round."""


def ever_shorter(cluster: Cluster, jobs: int) -> list[int]:
    """Jobs of one user, each shorter than the one before and behind it; nobody may start.

    The last 80 differ in size and so in priority; jobs of one size are in the order of submission.
    """
    cluster.fill("dave")
    sizes = [min(jobs - 1 - n, 79) for n in range(jobs)]
    wanted = [
        ("alice", f"--gres=gpu:{1 + size // 20}", f"-c{1 + size % 20}", f"-t{1000 - n}") for n, size in enumerate(sizes)
    ]
    ids = cluster.submit_many(wanted)
    cluster.wait_sprio(ids)
    return ids


def terms(cluster: Cluster) -> dict[int, tuple[int, int]]:
    """Ageing and fair share in the priority of each job that multifactor ranks, weighted."""
    rows = [row.split() for row in cluster.run(["sprio", "-h", "-o", "%i %A %F"]).stdout.splitlines()]
    return {int(job): (int(float(age)), int(float(share))) for job, age, share in rows}


def test_ageing_fair_share_and_nice_go_on_under_site_factors(cluster: Cluster):
    # What other tests ran counts until slurmctld calculates again, which it does once a minute and as it starts.
    cluster.run(["sacctmgr", "-i", "modify", "account", "root", "set", "RawUsage=0"])
    with cluster.conf(QUICK), Rltuned(cluster, **REVERSE) as rltuned:
        users = ("alice", "bob", "carol")
        shares = ["sshare", "-n", "-P", "-u", ",".join(users), "-o", "User,FairShare"]
        wait_until(
            lambda: (
                {row.partition("|")[2] for row in cluster.run(shares).stdout.split() if row[0] != "|"} == {"1.000000"}
            ),
            "nobody has used anything",
        )
        cluster.fill("alice")
        # Those of one user and nice stand side by side: the second of two goes ahead of the first.
        jobs = cluster.submit_many(
            [(users[n // 4], f"--nice={100 * (n % 2) + 1}", "--gres=gpu:1", f"-t{600 - n}") for n in range(12)]
        )
        cluster.wait_sprio(jobs)
        nice = cluster.nice_values()
        assert {nice[job] for job in jobs} == {1, 101}

        record = rltuned.cycle().record
        assert record.outcomes.keys() == {"applied"}
        written, factors, before = cluster.priorities(), cluster.site_factors(), terms(cluster)
        assert {job for job, factor in factors.items() if factor > 0} == set(record.raises) != set()
        cluster.slurmctld.restart()  # it calculates all priorities as it starts
        cluster.wait_sprio(jobs)
        wait_until(lambda: all(terms(cluster)[job][0] > before[job][0] for job in jobs), "every job has aged")
        # alice's job runs, bob's and carol's do not.
        wait_until(lambda: terms(cluster)[jobs[0]][1] < before[jobs[0]][1], "her share of the machine is used up")
        assert all(cluster.priorities()[job] != written[job] for job in jobs)
        assert cluster.site_factors() == factors
        assert cluster.nice_values() == nice

        assert rltuned.restore()["complete"]
        assert cluster.nice_values() == nice


@on_the_oldest
def test_255_changes_are_applied_and_read_back_in_one_cycle_as_slurm_user(cluster: Cluster):
    """How long it takes is measured by docker-slurm-testbed/measure_apply.py."""
    with Rltuned(cluster, user=SLURM_USER, **REVERSE) as rltuned:
        ever_shorter(cluster, 256)
        cycle = rltuned.cycle()
        wanted = {job: after for job, field, _, after in cycle.record.changes if field == "SiteFactor"}
        assert len(wanted) == 255, "all go ahead of the longest, which stays where it is"
        assert cycle.outcomes == {"applied": len(wanted)}
        assert cycle.record.outcomes == {"applied": len(wanted)}
        found = cluster.site_factors()
        assert {job: found[job] for job in wanted} == wanted
        assert rltuned.restore()["complete"]


@pytest.mark.parametrize("cluster", [of for of in WANTED if of != "22.05"][-1:], indirect=True)  # 22.05 has no limiter
def test_an_operator_stays_below_the_rpc_limiter_and_a_few_cycles_finish_the_job(cluster: Cluster):
    with cluster.conf(LIMITED), Rltuned(cluster, cycle={"interval": 6.0}, **REVERSE) as rltuned:
        jobs = ever_shorter(cluster, 80)
        # The limiter says in slurmctld's log whom it makes sleep.
        limited = f"grep -c 'RPC rate limit exceeded by uid '$(id -u {OPERATOR}) /var/log/slurm/slurmctld.log || true"
        before = cluster.sh(limited).stdout
        daemon = rltuned.start()
        first = daemon.wait_cycles(1)[0]
        assert first["changes"]["applied"] > 20
        assert first["changes"]["throttled"] > 20
        # What the first cycle wrote is the front: the shortest jobs, which were last.
        assert cluster.queue_order()[:10] == jobs[::-1][:10]

        wait_until(lambda: not daemon.cycles()[-1]["changes"].get("throttled"), "nothing is put off")
        cycles = daemon.cycles()
        assert 1 < len(cycles) < 10
        assert all("failed" not in cycle["changes"] for cycle in cycles)
        assert cluster.queue_order() == jobs[::-1]
        assert cluster.sh(limited).stdout == before
        assert daemon.stop() == 0

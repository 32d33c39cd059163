"""On a real cluster: an interval is said to admins, to the owner, and for jobs that nobody has submitted; then the job
starts, and that is learnt.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster.daemon_support import Rltuned
from cluster.support import RLTUNED, Cluster, wait_until

USERS = "/run/rltuned-users"
TAKES = 12.0
"""Seconds that each job takes; its limit is two minutes."""


def started(cluster: Cluster, job: int) -> float:
    """Epoch seconds at which the job has started, or ran."""
    text = cluster.sh(f"TZ=UTC sacct -nPX -j {job} -o Start").stdout.strip()
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:  # "Unknown" while it waits, nothing where slurmdbd has not heard of it
        return float("nan")


def starts_of(rltuned: Rltuned) -> dict[str, Any]:
    """What the last record says of start times; empty where it says nothing."""
    return dict(rltuned.record().data.get("starts") or {})


@pytest.mark.parametrize("cluster", ["24.11"], indirect=True)  # the compilation takes a minute
def test_an_interval_is_said_to_those_whom_it_concerns_and_its_outcome_is_learnt(cluster: Cluster):
    cluster.install_simulator()
    cluster.sh(f"install -d -o slurm -m 711 {USERS}")
    with Rltuned(
        cluster,
        user="slurm",
        cycle={"interval": 3.0, "stage": "active"},
        policy={"name": "sjf"},
        users={"directory": USERS},
    ) as rltuned:
        daemon = rltuned.start()
        # The worker compiles the simulator first; then it answers for jobs that nobody has submitted.
        wait_until(lambda: any(cycle["outcome"] == "done" for cycle in daemon.cycles()), "a cycle is done")
        wait_until(lambda: starts_of(rltuned).get("probes"), "probes are simulated")
        whole = ("-p", "gpu", "--exclusive", "-N1", "-t", "2")
        jobs = cluster.submit_many(
            [("carol" if number % 2 else "dave", *whole) for number in range(60)], command=f"sleep {TAKES:g}"
        )
        wait_until(lambda: len(starts_of(rltuned).get("id", ())) >= 30, "start times are forecast")
        starts = starts_of(rltuned)
        assert starts["scenarios"] >= 2
        known = [job for job, low in zip(starts["id"], starts["low"], strict=True) if low is not None]
        waiting = [job for job in known if job in jobs]
        assert len(waiting) >= 10
        last = max(job for job in waiting if jobs.index(job) % 2)  # one of carol's

        answer = json.loads(rltuned.run("when", "--json", str(last)).stdout)
        low, high = answer["start"]
        assert low <= answer["likely"]
        assert high is None or answer["likely"] <= high
        assert "stand before it" in answer["waits_for"]
        assert f"Job {last} starts" in rltuned.run("when", str(last)).stdout
        # Its owner, and nobody else, by their record; the state directory is closed to both.
        own = json.loads(cluster.run([RLTUNED, "when", "--json", str(last)], user="carol").stdout)
        assert own["start"][0] is not None
        assert own["job_id"] == last
        other = cluster.run([RLTUNED, "when", str(last)], user="dave", check=False)
        assert other.returncode == 16
        assert "not among your pending jobs" in other.stdout
        offer = cluster.run([RLTUNED, "when", "--json", "--gpus", "1", "--time", "10"], user="carol", check=False)
        assert json.loads(offer.stdout)["found"]["gpus"] >= 1

        wait_until(lambda: started(cluster, last) > 0, f"job {last} has started")
        # How good the forecast is, the study measures: here jobs end long before their limits, which nobody knows yet.
        wait_until(lambda: starts_of(rltuned).get("outcomes", 0) >= 1, "outcomes are learnt")
        assert daemon.stop() == 0
        assert daemon.log("forecast.defect") == []
        kept = json.loads(cluster.read_file("/var/lib/rltuned/start-times.json"))
        assert sum(entry[6] is not None for entry in kept["kept"]) >= 1
        assert len(kept["submitted"]) >= len(waiting)


@pytest.mark.parametrize("cluster", ["24.11"], indirect=True)
def test_users_are_told_what_another_limit_is_worth_for_their_own_jobs_and_what_their_last_jobs_used(cluster: Cluster):
    cluster.install_simulator()
    cluster.sh(f"install -d -o slurm -m 711 {USERS}")
    with Rltuned(
        cluster,
        user="slurm",
        cycle={"interval": 3.0, "stage": "shadow"},
        users={"directory": USERS},
        estimates={"source": "history", "refresh": 2.0, "days": 0.02},
    ) as rltuned:
        daemon = rltuned.start()
        wait_until(lambda: any(cycle["outcome"] == "done" for cycle in daemon.cycles()), "a cycle is done")
        wait_until(lambda: starts_of(rltuned).get("probes"), "probes are simulated")
        # Each wants ten hours of a whole node, and takes seconds. Limits of half an hour would do.
        whole = ("-p", "gpu", "--exclusive", "-N1", "-t", "600")
        jobs = cluster.submit_many([("carol", *whole)] * 60, command=f"sleep {TAKES:g}")
        wait_until(lambda: jobs[-1] in starts_of(rltuned).get("id", ()), "start times are forecast")
        starts = starts_of(rltuned)
        assert 1800.0 in starts["limits"]
        assert starts["limit"][starts["id"].index(jobs[-1])] == 36_000.0

        def ask(*arguments: object, user: str = "carol") -> Any:
            return cluster.run([RLTUNED, "when", *map(str, arguments)], user=user, check=False)

        answer = json.loads(ask("--json", jobs[-1], "--time", "0:30:00").stdout)
        assert (answer["asked"], answer["time_limit"]) == (1800.0, 36_000.0)
        # Whether the limit gains anything depends on the other jobs; which of the two it is, is said.
        assert (answer["found"] is None) == bool(answer["meaning"])
        assert "starts no sooner with a longer one" in ask(jobs[-1], "--time", "2-0").stdout
        other = ask(jobs[-1], "--time", "30", user="dave")
        assert (other.returncode, "not among your pending jobs" in other.stdout) == (16, True)
        assert ask(jobs[-1], "--time", "soon").returncode == 2
        assert f"Job {jobs[-1]} (time limit 10.0 h)" in ask().stdout
        assert len(json.loads(ask("--gpus", "1", "--json").stdout)) >= 1

        def used() -> Any:
            return json.loads(ask("--json").stdout)["limits_used"] or {}

        # What other tests have left of hers counts, too.
        wait_until(lambda: used().get("asked", 0.0) >= 36_000.0, "carol is told what her last jobs used")
        assert 1 <= used()["jobs"] <= 20
        assert 0.0 < used()["ran"] < 0.05 * used()["asked"]
        assert not {job["job_id"] for job in json.loads(ask("--json", user="dave").stdout)["jobs"]} & set(jobs)
        assert daemon.stop() == 0
        assert daemon.log("forecast.defect") == daemon.log("users.defect") == []
        # Nothing was changed for anybody's question.
        assert cluster.sh(f"squeue -h -j {jobs[-1]} -o %l").stdout.strip() in {"10:00:00", ""}

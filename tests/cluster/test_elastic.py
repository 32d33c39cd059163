"""Jobs that resize themselves on a real Slurm: a sleeper whose work depends on its nodes, within rigid jobs.

Slurm keeps a requeued job for `AuthInfo=cred_expire` seconds, 120 where nothing is said: ten here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.daemon_support import Rltuned
from cluster.support import WANTED, Cluster, on_one_release, on_the_oldest, wait_until

import rltuned.job.elastic

RECORDS, WORK, PLACE = "/shared/records", "/shared/work", "/shared"
SOON = {"AuthInfo": "cred_expire=10"}
SLEEPER = """#!/bin/bash
# Takes node-seconds, and has done so many as it says in its file. $1: those of its whole work, $2: its exit code.
mine=/shared/work/$SLURM_JOB_ID
trap 'echo TERM >>$mine.signals; exit 143' TERM
trap 'echo USR2 >>$mine.signals' USR2
done=$(cat $mine 2>/dev/null || echo 0)
srun --nodes=$SLURM_NNODES --ntasks-per-node=1 hostname | sort -u | wc -l >>$mine.sizes
touch "${RLTUNED_ELASTIC:-/tmp}/ready"
while [ $done -lt $1 ]; do
    if [ -e "$RLTUNED_ELASTIC/checkpoint" ]; then
        echo $done >$mine
        touch $RLTUNED_ELASTIC/saved
        exit 0
    fi
    sleep 1
    done=$((done + SLURM_NNODES))
done
echo $done >$mine
exit ${2:-0}
"""


def prepare(cluster: Cluster) -> None:
    """A directory that all hosts see, with the program, its place, and the one file of rltuned that it needs."""
    cluster.sh(
        f"rm -rf {PLACE}/*; install -d -o rltuned -m 711 {RECORDS}; install -d -m 1777 {WORK}; "
        f"install -d -o rltuned -m 1733 {RECORDS}/elastic"
    )
    cluster.copy_in(Path(rltuned.job.elastic.__file__), f"{PLACE}/elastic.py")
    cluster.write_file(f"{PLACE}/sleeper", SLEEPER, mode="755")


@contextmanager
def steered(cluster: Cluster) -> Iterator[Rltuned]:
    with Rltuned(
        cluster, cycle={"interval": 2.0, "stage": "active"}, policy={"name": "sjf"}, users={"directory": RECORDS}
    ) as installed:
        yield installed


def submit(cluster: Cluster, *request: str, work: int, code: int = 0, user: str = "alice", most: int = 2) -> int:
    wrapper = f"exec python3 -I -S {PLACE}/elastic.py --most {most} --every 3 --records {RECORDS}"
    command = f"{wrapper} -- {PLACE}/sleeper {work} {code}"
    return cluster.submit(user, "--requeue", *request, "-t", "600", "-D", WORK, command=command)


def sizes(cluster: Cluster, job: int) -> list[int]:
    """On how many nodes its program has been started."""
    return [int(word) for word in cluster.sh(f"cat {WORK}/{job}.sizes 2>/dev/null", check=False).stdout.split()]


def left_behind(cluster: Cluster) -> str:
    return cluster.sh(f"ls -d {RECORDS}/elastic/* {WORK}/.rltuned* 2>/dev/null", check=False).stdout


def state(cluster: Cluster, job: int) -> tuple[str, str, str]:
    shown = cluster.job(job)
    return shown["JobState"], shown["ExitCode"], shown["Restarts"]


BOTH = ("-N1-2", "--gres=gpu:p100:4")


# On 24.11 many of them do so at the same time, below.
@pytest.mark.parametrize("cluster", [of for of in WANTED if of != "24.11"] or list(WANTED), indirect=True)
def test_a_job_gives_a_node_to_one_that_waits_and_takes_it_back_when_it_is_idle(cluster: Cluster) -> None:
    prepare(cluster)
    with cluster.conf(SOON), steered(cluster) as installed:
        daemon = installed.start()
        job = submit(cluster, *BOTH, work=90)
        wait_until(lambda: sizes(cluster, job) == [2], "it starts on both nodes")
        rigid = cluster.submit("dave", "--gres=gpu:p100:4", "-t", "60", command="sleep 20")
        cluster.wait_state(rigid, "RUNNING")
        wait_until(lambda: sizes(cluster, job) == [2, 1], "it goes on, on one node")
        shown = cluster.job(job)
        assert (shown["NumNodes"], shown["Restarts"], shown["JobState"]) == ("1", "0", "RUNNING")
        wait_until(lambda: sizes(cluster, job) == [2, 1, 2], "it takes the idle node")
        assert cluster.job(rigid)["JobState"] == "COMPLETED"
        cluster.wait_state(job, "COMPLETED")
        assert state(cluster, job) == ("COMPLETED", "0:0", "1")
        assert int(cluster.read_file(f"{WORK}/{job}")) in {90, 91}
        assert left_behind(cluster) == ""
        assert daemon.stop() == 0
        assert daemon.log("users.defect") == []


@on_one_release
def test_without_a_daemon_nothing_happens_and_a_killed_one_leaves_nothing_behind(cluster: Cluster) -> None:
    prepare(cluster)
    with steered(cluster) as installed:
        daemon = installed.start()
        job = submit(cluster, *BOTH, work=10_000)
        wait_until(lambda: sizes(cluster, job) == [2], "it starts on both nodes")
        daemon.wait_cycles(len(daemon.cycles()) + 3)
        installed.kill()
        rigid = cluster.submit("dave", "--gres=gpu:p100:4", "-t", "60", command="sleep 600")
        failing = submit(cluster, "-N1-2", "--gres=gpu:k80:1", work=8, code=7)
        cluster.wait_state(failing, "FAILED")
        assert state(cluster, failing) == ("FAILED", "7:0", "0")
        assert (sizes(cluster, job), cluster.job(rigid)["JobState"]) == ([2], "PENDING")
        uid = cluster.sh("id -u alice").stdout.strip()
        assert left_behind(cluster).split() == [f"{RECORDS}/elastic/{uid}.{job}", f"{WORK}/.rltuned-elastic-{job}"]
        installed.start()
        cluster.wait_state(rigid, "RUNNING")
        wait_until(lambda: sizes(cluster, job) == [2, 1], "it goes on, on one node")


def test_signals_reach_the_program_and_a_cancelled_job_does_not_come_back(cluster: Cluster) -> None:
    prepare(cluster)
    job = submit(cluster, *BOTH, work=10_000)
    wait_until(lambda: sizes(cluster, job) == [2], "it starts")

    def signals() -> list[str]:
        return cluster.sh(f"cat {WORK}/{job}.signals 2>/dev/null", check=False).stdout.split()

    cluster.run(["scancel", "-b", "-s", "USR2", str(job)], user="alice")
    wait_until(lambda: signals() == ["USR2"], "the batch script's signal is passed on")
    cluster.run(["scancel", str(job)], user="alice")
    wait_until(lambda: job not in cluster.states(), "it is gone")
    # slurmctld sends TERM again where a busy machine does not answer it in time.
    assert (signals()[0], {*signals()[1:]}) == ("USR2", {"TERM"})
    assert cluster.job(job)["JobState"] == "CANCELLED"
    assert (sizes(cluster, job), left_behind(cluster)) == ([2], "")


@on_the_oldest
def test_a_job_that_may_not_be_requeued_still_gives_nodes_back(cluster: Cluster) -> None:
    prepare(cluster)
    with steered(cluster) as installed:
        installed.start()
        job = submit(cluster, *BOTH, "--no-requeue", work=60)
        wait_until(lambda: sizes(cluster, job) == [2], "it starts on both nodes")
        rigid = cluster.submit("dave", "--gres=gpu:p100:4", "-t", "60", command="sleep 5")
        wait_until(lambda: sizes(cluster, job) == [2, 1], "it goes on, on one node")
        cluster.wait_state(rigid, "COMPLETED")
        wait_until(lambda: sizes(cluster, job) == [2, 1, 1], "it asks for more nodes, and goes on without")
        cluster.wait_state(job, "COMPLETED")
        assert state(cluster, job) == ("COMPLETED", "0:0", "0")


@pytest.mark.parametrize("cluster", ["24.11"], indirect=True)  # minutes
def test_twenty_of_them_side_by_side_with_rigid_ones_lose_no_work(cluster: Cluster) -> None:
    prepare(cluster)
    with cluster.conf(SOON), steered(cluster) as installed:
        daemon = installed.start()
        users = ("alice", "bob", "carol", "dave")
        jobs = [
            submit(cluster, "-N1-3", "--gres=gpu:1", work=30 + 2 * number, user=users[number % 4], most=3)
            for number in range(20)
        ]
        rigid = cluster.submit_many(
            [(users[number % 4], f"--gres=gpu:{1 + number % 2}", "-t", "10") for number in range(20)],
            command="sleep 10",
        )
        wait_until(lambda: not cluster.states().keys() & {*jobs, *rigid}, "all have ended")
        for number, job in enumerate(jobs):
            assert 30 + 2 * number <= int(cluster.read_file(f"{WORK}/{job}")) <= 33 + 2 * number
        ids = ",".join(map(str, (*jobs, *rigid)))
        # slurmdbd has another line of a job until it shrank, and hears of an end a moment later.
        ends = f"sacct -nPX -j {ids} -o State,ExitCode | grep -v RESIZING | sort | uniq -c"
        wait_until(
            lambda: cluster.sh(ends).stdout.split() == ["40", "COMPLETED|0:0"], "all are known to have ended well"
        )
        changes = [len(sizes(cluster, job)) - 1 for job in jobs]
        # How often depends on who waits when somebody looks: 4 to 12 times.
        assert sum(changes) > 0
        assert left_behind(cluster) == ""
        assert daemon.stop() == 0
        assert daemon.log("users.defect") == []

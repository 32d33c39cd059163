"""On real clusters: run times are predicted from the jobs that slurmdbd remembers, and slurmdbd being away hurts
nobody."""

import statistics

import pytest
from cluster.daemon_support import STATE, Rltuned
from cluster.support import UNPRIVILEGED, Cluster, on_one_release, on_the_oldest, wait_until

from rltuned.controller.learnt.history import FILE_NAME

HOUR = ("-t", "60", "--gres=gpu:1")
LESS = ("-t", "59", "--gres=gpu:1")
HISTORY = {"source": "history", "refresh": 2.0, "days": 0.02}
"""Half an hour back: a cluster may have served other tests before this one."""


@pytest.fixture
def finished(cluster: Cluster) -> Cluster:
    """Three jobs of carol's, of an hour's limit, have ended after some 4 s, one of a visitor's, of a minute less, after
    30 s; then the cluster is full. No other test has jobs of a visitor's: what they took would count, too.
    """
    jobs = cluster.submit_many([("carol", *HOUR)] * 3, command="sleep 4")
    jobs.append(cluster.submit(UNPRIVILEGED, *LESS, command="sleep 30"))
    cluster.wait_accounted(jobs)
    cluster.fill()
    return cluster


# What sacct of each release prints is recorded.
@on_the_oldest
def test_estimates_follow_the_finished_jobs_and_survive_slurmdbd(finished: Cluster):
    cluster = finished
    # By what they ask for the visitor's job is the shorter one; by what such jobs took, carol's.
    visitor = cluster.submit(UNPRIVILEGED, *LESS)
    carol = cluster.submit("carol", *HOUR, command="sleep 4")
    with Rltuned(
        cluster,
        cycle={"interval": 2.0, "stage": "shadow"},
        policy={"name": "sjf"},
        estimates=HISTORY,
    ) as rltuned:
        first = rltuned.cycle().record
        assert first.scores[visitor] > first.scores[carol]
        assert rltuned.explain(carol)[carol]["estimated_from"] == "time limit"

        daemon = rltuned.start()
        wait_until(
            lambda: rltuned.explain(carol)[carol]["estimated_from"] == "finished jobs",
            "carol's past is known",
        )
        answer = rltuned.explain(carol)[carol]
        rows = cluster.sh("sacct -nPX -u carol -S now-30minutes -o State,ElapsedRaw").stdout.splitlines()
        taken = [int(seconds) for state, seconds in (row.split("|") for row in rows) if state == "COMPLETED"]
        # So few jobs that have ended make little certain: the mean is well above what they took, the interval holds it.
        # The slowest of them may have taken half a minute longer than the others on a busy machine.
        assert answer["run_time_low"] <= max(taken) + 1.0
        assert statistics.median(taken) + 1.0 < answer["run_time_estimate"] < 1800.0
        assert answer["run_time_high"] >= min(taken)
        record = rltuned.record()
        assert record.scores[carol] > record.scores[visitor]
        assert daemon.metrics()["rltuned_predicted_jobs"] >= 1
        # Once for all refreshes, unless the machine was so busy that sacct did not answer in between.
        assert 1 <= len(daemon.log("history.read")) <= 1 + len(daemon.log("history.unavailable"))

        # The accounting goes away: cycles go on with what is known.
        before = len(daemon.log("history.unavailable"))
        cluster.sh("pkill -STOP -x slurmdbd", service="dbd")
        try:
            wait_until(lambda: len(daemon.log("history.unavailable")) > before, "the silence of slurmdbd is noticed")
            done = len(daemon.cycles())
            daemon.wait_cycles(done + 3)
            assert rltuned.explain(carol)[carol]["estimated_from"] == "finished jobs"
            assert len(daemon.log("history.unavailable")) == before + 1
        finally:
            cluster.sh("pkill -CONT -x slurmdbd", service="dbd")
        assert daemon.stop() == 0

        # What was learnt is on disk: a plan, and the next start, know it at once.
        assert cluster.read_file(f"{STATE}/{FILE_NAME}")
        planned = rltuned.plan()
        assert planned.scores[carol] > planned.scores[visitor]
        again = rltuned.cycle().record
        assert again.scores[carol] > again.scores[visitor]


@on_one_release
def test_a_cluster_without_accounting_goes_by_the_limits(cluster: Cluster):
    cluster.fill()
    job = cluster.submit("carol", *HOUR)
    with Rltuned(cluster, cycle={"interval": 2.0, "stage": "shadow"}, estimates=HISTORY) as rltuned:
        # sacct cannot find slurmdbd: as where there is none.
        cluster.sh("mv /usr/bin/sacct /usr/bin/sacct.away")
        try:
            daemon = rltuned.start()
            daemon.wait_cycles(4)
            assert len(daemon.log("history.unavailable")) == 1
            assert rltuned.explain(job)[job]["estimated_from"] == "time limit"
            assert daemon.stop() == 0
        finally:
            cluster.sh("mv /usr/bin/sacct.away /usr/bin/sacct")

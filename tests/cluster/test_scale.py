"""Ten thousand pending jobs cost Slurm as many commands as ten, and the daemon stays small."""

from collections import Counter

import pytest
from cluster.daemon_support import SLURM_USER, Rltuned
from cluster.support import Cluster
from cluster.test_placement import queue_at_rest

FEW = 10
MANY = 10_000
MEMORY = 150 * 1024
"""KiB of resident memory."""

COUNTED = "/opt/counted"
CALLS = "/tmp/slurm-calls"


def count_commands(cluster: Cluster) -> None:
    """Puts wrappers of Slurm's commands into COUNTED, each of which notes its call."""
    cluster.sh(
        f"""
        rm -rf {COUNTED}; mkdir -p {COUNTED}
        for name in squeue scontrol sprio sdiag sacctmgr; do
            printf '#!/bin/sh\\necho %s "$1" "$2" >>{CALLS}\\nexec /usr/bin/%s "$@"\\n' $name $name >{COUNTED}/$name
        done
        chmod 755 {COUNTED}/*; rm -f {CALLS}; touch {CALLS}; chmod 666 {CALLS}
        """
    )


def calls(cluster: Cluster) -> Counter[str]:
    """The calls so far, which are forgotten."""
    return Counter(cluster.sh(f"cat {CALLS}; : >{CALLS}").stdout.splitlines())


def submit(cluster: Cluster, jobs: int) -> None:
    """Submits that many jobs of one user, of different limits, four at a time."""
    cluster.sh(
        f"""
        cd /tmp
        loop() {{
            for n in $(seq $1 4 {jobs}); do
                sbatch --parsable --uid=alice -o /dev/null -t $((n * 7919 % 1000 + 1)) --gres=gpu:$((n % 4)) --wrap=true
            done >/dev/null
        }}
        loop 1 & loop 2 & loop 3 & loop 4 & wait
        """,
        timeout=900,
    )


@pytest.mark.parametrize("cluster", ["24.11"], indirect=True)  # sbatch takes 10 ms a job, whatever one does
def test_ten_thousand_jobs_take_as_many_slurm_commands_as_ten_and_the_daemon_stays_below_150_mb(
    cluster: Cluster,
) -> None:
    count_commands(cluster)
    sections = {"slurm": {"bin_dir": COUNTED}, "policy": {"name": "sjf"}, "cycle": {"stage": "active", "interval": 5.0}}
    with (
        Rltuned(cluster, user=SLURM_USER, **sections, log={"level": "debug", "format": "json"}) as rltuned,
        queue_at_rest(cluster),
    ):
        submit(cluster, FEW)
        cluster.wait_sprio(cluster.priorities())
        small = rltuned.cycle()
        of_few = calls(cluster)
        assert small.done["pending"] == FEW
        assert small.outcomes["applied"] > 0
        assert of_few["squeue --noheader --all"] > 1, "the wrappers count"
        try:
            submit(cluster, MANY - FEW)
            cluster.wait_sprio(cluster.priorities())
            large = rltuned.cycle()
            assert large.done["pending"] == MANY
            assert large.outcomes["applied"] > FEW
            assert calls(cluster) == of_few

            daemon = rltuned.start()
            assert {cycle["pending"] for cycle in daemon.wait_cycles(3)} == {MANY}
            status = cluster.sh(f"cat /proc/{daemon.program.pid}/status").stdout.splitlines()
            memory = dict(line.split(":", 1) for line in status)
            # The high-water mark counts: it includes the largest answer while it is read.
            assert int(memory["VmHWM"].split()[0]) <= MEMORY, memory["VmHWM"]
            print(MANY, "pending:", memory["VmRSS"], "resident, most", memory["VmHWM"], large.done["seconds"])  # noqa: T201 - shown with -s
            assert daemon.stop() == 0
        finally:
            # To cancel them one by one would take as long as the test. Started at rest, 22.05 would stay so
            # (Cluster.note_conf).
            cluster.slurmctld.stop("KILL")
            cluster.sh("cp /etc/slurm/slurm.conf.testbed /etc/slurm/slurm.conf")
            cluster.slurmctld.start(wipe_state=True)

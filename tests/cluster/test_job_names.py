"""On real clusters: jobs are predicted by what they are called, whatever others call theirs, and neither a name nor the
key of its hash is anywhere but where it belongs.
"""

import re
from typing import Final

from cluster.daemon_support import MIRROR, STATE, Rltuned
from cluster.support import Cluster, on_one_release, wait_until
from cluster.test_hostile import JOB_NAMES, PWNED

from rltuned.controller.learnt.names import KEY_NAME
from rltuned.slurm.commands import SEPARATOR

LIKE: Final = ("-t", "60", "--gres=gpu:1")
SHORT, LONG = "quokkasprint", "quokkamarathon"
GUESSED: Final = "w" + "0" * 64
ESTIMATES: Final = {"source": "history", "refresh": 2.0, "days": 0.02, "names": "hashed"}
HISTORY_ERRORS: Final = "rltuned_history_errors_total"


def forged(job: int) -> list[str]:
    """Names that look like a row of that job's, for any separator that somebody may think of."""
    row = (str(job), "1000000000", "carol", LONG, "/tmp", "")
    rows = [mark.join(row) for mark in (GUESSED, "|", "\x1f", "\t", " ")]
    return [f"x{row[:200]}\n{row[:800]}\n" for row in rows]


def test_jobs_are_predicted_by_name_whatever_others_call_theirs_and_no_name_or_key_gets_out(cluster: Cluster) -> None:
    ended = [
        job
        for name, seconds in ((SHORT, 3), (LONG, 30))
        for job in cluster.submit_many(
            [("carol", *LIKE, f"--job-name={name}_{number}") for number in range(3)], command=f"sleep {seconds}"
        )
    ]
    ended += cluster.submit_many([("bob", "-t", "60", f"--job-name={name}") for name in JOB_NAMES], command="true")
    cluster.wait_accounted(ended)
    cluster.fill()
    short, long = cluster.submit_many([("carol", *LIKE, f"--job-name={name}_9") for name in (SHORT, LONG)])
    names = [*JOB_NAMES, *forged(short)]
    strange = cluster.submit_many([("bob", "-t", "60", f"--job-name={name}") for name in names])
    cluster.run(["scontrol", "update", f"JobId={strange[0]}", f"JobName={'x' * 10_240}"], check=False)
    # Slurm's RPC limiter would let the many commands of the test wait for tokens.
    with (
        cluster.conf(SlurmctldParameters=None),
        Rltuned(
            cluster, cycle={"interval": 2.0, "stage": "shadow"}, policy={"name": "sjf"}, estimates=ESTIMATES
        ) as rltuned,
    ):
        daemon = rltuned.start()
        wait_until(
            lambda: rltuned.explain(short)[short]["estimated_from"] == "finished jobs", "what has ended is known"
        )
        daemon.wait_cycles(len(daemon.cycles()) + 2)
        answers = rltuned.explain(short, long, *strange)
        # They differ in nothing but their names; what others ran on the same cluster counts for both.
        assert answers[short]["run_time_estimate"] < answers[long]["run_time_estimate"]
        assert {answers[job]["estimated_from"] for job in strange} == {"finished jobs"}
        record = rltuned.record()
        assert record.scores[short] > record.scores[long]
        assert daemon.log("names.unavailable") == []
        # Nothing is left out, but for jobs of other tests whose accounts or partitions have the reader's separator.
        asked = f"sacct -nXaP --delimiter=, -S now-1hour -o Account,Partition,User | grep -cF $'\\x{ord(SEPARATOR):x}'"
        others = int(cluster.sh(asked, check=False).stdout)
        assert others or not daemon.log("history.incomplete")
        assert others or not daemon.metrics()[HISTORY_ERRORS]

        # The key belongs to the daemon's user alone, and what it has hashed is known again after a restart.
        key = f"{STATE}/{KEY_NAME}"
        assert cluster.sh(f"stat -c '%a %s %U' {key}").stdout.split() == ["600", "32", rltuned.user]
        secret = cluster.sh(f"od -An -v -tx1 {key}").stdout.replace(" ", "").replace("\n", "")
        planned = rltuned.plan()
        assert planned.scores[short] > planned.scores[long]

        port = daemon.log("daemon.started")[0]["metrics_port"]
        said = [
            daemon.program.output(),
            cluster.run(["curl", "-sf", f"http://127.0.0.1:{port}/metrics"]).stdout,
            *(rltuned.run(*words, check=False).stdout for words in (("plan",), ("plan", "--json"), ("doctor",))),
            *(rltuned.run("explain", "--json", str(job)).stdout for job in (short, strange[1])),
        ]
        assert daemon.stop() == 0
        kept = cluster.sh(
            f"cd / && find {STATE} {MIRROR} -type f ! -name {KEY_NAME} ! -path '*/numba/*' -exec cat {{}} +"
        ).stdout
        assert '"format":4' in kept, "hashes are kept"
        texts = [*said, kept]
        for text in texts:
            for name in (SHORT, LONG, "two\nlines", "JobId=1 Priority=0", "x" * 200, GUESSED, PWNED):
                assert name not in text
            assert secret not in text.lower()
        everywhere = cluster.sh(
            f"find {STATE} {MIRROR} -type f ! -name {KEY_NAME} ! -path '*/numba/*' -exec od -An -v -tx1 {{}} + "
            "| tr -d ' \\n'"
        ).stdout
        assert secret not in everywhere
        assert cluster.sh(f"test -e {PWNED}", check=False).returncode == 1


@on_one_release
def test_a_site_that_asks_for_no_names_reads_none(cluster: Cluster) -> None:
    cluster.fill()
    cluster.submit("carol", *LIKE, f"--job-name={SHORT}")
    # squeue and sacct say what they were asked for.
    for program in ("squeue", "sacct"):
        cluster.sh(
            f"mv /usr/bin/{program} /usr/bin/{program}.real && printf '%s\\n' '#!/bin/sh' "
            f"'echo \"{program} $*\" >> /tmp/asked' 'exec /usr/bin/{program}.real \"$@\"' > /usr/bin/{program} && "
            f"chmod 755 /usr/bin/{program} && install -m 666 /dev/null /tmp/asked"
        )
    try:
        estimates = {**ESTIMATES, "names": "off"}
        with Rltuned(cluster, cycle={"interval": 2.0, "stage": "shadow"}, estimates=estimates) as rltuned:
            daemon = rltuned.start()
            daemon.wait_cycles(3)
            assert daemon.stop() == 0
        asked = cluster.read_file("/tmp/asked")
        assert "squeue" in asked
        assert "sacct" in asked
        assert not re.search(r"%j|%Z|JobName|WorkDir", asked)
        assert cluster.sh(f"test -e {STATE}/{KEY_NAME}", check=False).returncode == 1
    finally:
        for program in ("squeue", "sacct"):
            cluster.sh(f"mv /usr/bin/{program}.real /usr/bin/{program}")

"""Names that nobody should give to users, accounts, partitions, QOS, reservations and jobs: they change nothing.

How each release prints them is recorded (tests/recorded, jobs-hostile-names.txt and jobs-separator-in-name.txt).
"""

import contextlib
import itertools
import re
import shlex
from collections.abc import Iterator
from typing import Final

from cluster.daemon_support import SLURM_USER, Rltuned, named
from cluster.support import Cluster, on_one_release, on_the_oldest
from cluster.test_placement import queue_at_rest

PWNED: Final = "/tmp/pwned"
# An administrator can give QOS, accounts, partitions and reservations all of these names.
NAMES: Final = (
    "a|b",
    "we ird;x",
    f"$(touch {PWNED})",
    "esc\x1b[31m",
    "tab\tx",
    "ümlaut\u202eabc",
    "p%c%n%s",
    f"`touch {PWNED}`",
    "x -rf --help",  # one that begins with a dash cannot be given to a user
    "x" * 200,
)
# Users by number; their names are whatever /etc/passwd of the controller says.
USERS: Final = ("ev il|$(touch " + PWNED + ")", "x -u root", "esc\x1b[2kx", "p%n;x")
FIRST_UID: Final = 7001
JOB_NAMES: Final = (
    "a|b|c",
    "two\nlines\nJobId=1 Priority=0",
    "us\x1fus\x1f9999\x1f",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    f"$(touch {PWNED}) `touch {PWNED}` ; touch {PWNED}",
    "%s%n%x",
    "é\u202e\u2028",
    "x" * 1_000,
)
HARMLESS: Final = tuple(f"name{n}" for n in range(len(NAMES)))
QOS: Final = ("normal", "high", "low")
"""As image/testbed-accounts gives them to every user."""
SEPARATOR: Final = "us\x1fx"

CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def admin(cluster: Cluster, *words: str) -> None:
    cluster.run(["sacctmgr", "-i", *words])


@contextlib.contextmanager
def entities(cluster: Cluster, names: tuple[str, ...]) -> Iterator[None]:
    """An account, a QOS, a partition and a reservation of each name, all open to alice."""
    try:
        # One at a time: sacctmgr would read the bracket of an escape as the beginning of a range.
        for name in names:
            admin(cluster, "add", "qos", f"name={name}")
            admin(cluster, "add", "account", f"name={name}", "cluster=testbed")
            admin(cluster, "add", "user", "alice", f"account={name}", "cluster=testbed")
            admin(cluster, "modify", "user", "alice", "set", f"qos+={name}")
            cluster.run(["scontrol", "create", f"PartitionName={name}", "Nodes=ALL"])
            reservation = ["scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now"]
            cluster.run([*reservation, "Duration=60", "Users=alice", "Nodes=m40-1", "Flags=ignore_jobs,overlap"])
        yield
    finally:
        cluster.cancel_all()
        for name in names:
            cluster.run(["scontrol", "delete", f"ReservationName={name}"], check=False)
            cluster.run(["scontrol", "delete", f"PartitionName={name}"], check=False)
            for entity in (("user", "alice", f"account={name}"), ("account", f"name={name}"), ("qos", f"name={name}")):
                cluster.run(["sacctmgr", "-i", "delete", *entity], check=False)
        # slurmdbd 22.05 takes more from a user's list than the QOS that is deleted ("low" of alice's).
        admin(cluster, "modify", "user", "alice", "set", f"qos={','.join(QOS)}")


@contextlib.contextmanager
def users(cluster: Cluster, names: tuple[str, ...]) -> Iterator[list[int]]:
    """Users of these names, by number."""
    lines = [f"{name}:x:{FIRST_UID + n}:{FIRST_UID + n}::/tmp:/bin/sh" for n, name in enumerate(names)]
    cluster.sh("cp /etc/passwd /etc/passwd.before")
    cluster.run(["tee", "-a", "/etc/passwd"], input="\n".join(lines) + "\n")
    try:
        for name in names:
            admin(cluster, "add", "user", f"name={name}", "account=physics", "cluster=testbed")
        yield [FIRST_UID + n for n in range(len(names))]
    finally:
        cluster.cancel_all()
        for name in names:
            cluster.run(["sacctmgr", "-i", "delete", "user", f"name={name}"], check=False)
        cluster.sh("mv /etc/passwd.before /etc/passwd")


def submit(cluster: Cluster, requests: list[list[str]]) -> list[int]:
    """As Cluster.submit_many, but once slurmctld knows what slurmdbd was just told."""
    script = ["set -e", "cd /tmp"]
    for words in requests:
        one = shlex.join(["sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap=true"])
        script.append(
            f"for try in $(seq 1000); do {one} 2>/tmp/refused && continue 2; sleep 0.1; done; "
            "cat /tmp/refused >&2; exit 1"
        )
    # `continue 2` needs a loop around each command.
    text = "\n".join(script[:2] + [f"for once in 1; do {line}; done" for line in script[2:]])
    return [int(word) for word in cluster.sh(text).stdout.split()]


def requests(names: tuple[str, ...], strangers: list[int], job_names: tuple[str, ...]) -> list[list[str]]:
    """A job of each QOS and partition, of each name, of each user, and in each reservation; the later, the smaller."""
    kinds = (
        [["--uid=alice", f"--account={name}", f"--qos={name}", f"--partition={name}"] for name in names],
        [["--uid=bob", f"--job-name={name}", f"--comment={name[:1000]}"] for name in job_names],
        [[f"--uid={uid}"] for uid in strangers],
        [["--uid=alice", f"--account={name}", f"--reservation={name}"] for name in names],
    )
    asked = list(itertools.chain(*kinds))
    n = len(asked)
    return [[*words, "-t", str(k * 37 % n + 1), "--gres=gpu:1", f"-c{n - k}"] for k, words in enumerate(asked)]


def order(rltuned: Rltuned, jobs: list[int]) -> list[int]:
    """Which of the jobs, by number in the list, the plan puts first, second, ..."""
    record = rltuned.plan()
    assert set(record.managed) == set(jobs), record.vetoes
    return [jobs.index(job) for job in record.order]


@on_one_release
def test_hostile_names_have_no_effect_on_the_plan_and_reach_no_terminal(cluster: Cluster) -> None:
    sections = {
        "policy": {"name": "sjf"},
        # How long they have waited by then must not matter: jobs of one user alone pass each other.
        "lend": {"share": 0.0},
        "scope": {"exclude_reservations": []},
        "placement": {"apply": "oversubscribe"},
    }
    with (
        # slurmctld calculates the share of a user that it has just heard of when it comes to it.
        queue_at_rest(cluster, PriorityWeightFairshare="0"),
        entities(cluster, NAMES + HARMLESS),
        users(cluster, USERS + HARMLESS[: len(USERS)]) as strangers,
        Rltuned(cluster, user=SLURM_USER, **sections) as rltuned,
    ):
        # No two of a size, so no two of a priority: there is room for a raised job between any two.
        plain = requests(HARMLESS, strangers[len(USERS) :], HARMLESS[: len(JOB_NAMES)])
        jobs = submit(cluster, plain)
        cluster.wait_sprio(jobs)
        expected = order(rltuned, jobs)
        assert expected != list(range(len(plain)))
        cluster.cancel_all()

        jobs = submit(cluster, requests(NAMES, strangers[: len(USERS)], JOB_NAMES))
        cluster.wait_sprio(jobs)
        assert order(rltuned, jobs) == expected
        # A cycle writes as ever.
        rltuned.configure(log={"level": "debug"})
        cycle = rltuned.cycle()
        assert set(cycle.outcomes) == {"applied"}
        shown = [
            cycle.log,
            cluster.read_file("/var/lib/rltuned/decision.json"),
            *(rltuned.run("plan", *options).stdout for options in ((), ("--json",))),
            *(rltuned.run("explain", str(job)).stdout for job in (jobs[1], jobs[3], jobs[12], jobs[-2])),
            rltuned.run("explain", "--json", str(jobs[3])).stdout,
            *(done.stdout + done.stderr for done in (rltuned.run("doctor", check=False), rltuned.run("restore"))),
        ]
        for text in shown:
            found = CONTROL.search(text)
            assert found is None, text[max(0, found.start() - 200) : found.end() + 50]
        assert set(cluster.site_factors().values()) == {0}
        everything = "".join(shown)
        assert not any(name in everything for name in ("JobId=1 Priority=0", "x" * 1_000)), "no job names"
        assert cluster.sh(f"test -e {PWNED}", check=False).returncode == 1


@on_one_release
def test_what_slurm_refuses_of_hostile_requests_is_refused_and_the_rest_harms_nothing(cluster: Cluster) -> None:
    options = ("constraint", "nodelist", "exclude", "licenses", "reservation", "dependency", "begin", "wckey")
    values = ("$(id)|x", "a\x1fb", "esc\x1b[31m", "p100&[x*3", "x\ny")
    with queue_at_rest(cluster), Rltuned(cluster, user=SLURM_USER, policy={"name": "sjf"}) as rltuned:
        jobs = cluster.submit_many([("alice", "-t", str(limit)) for limit in (9, 3, 6)])
        asked = [f"--{option}={value}" for option in options for value in values]
        asked += [f"--{option}={'x' * 65_536}" for option in ("job-name", "comment")]  # Slurm takes 1,024 bytes
        tries = [shlex.join(["sbatch", "--uid=bob", "-o", "/dev/null", one, "--wrap=true"]) for one in asked]
        cluster.sh("cd /tmp\n" + "\n".join(f"{line} >/dev/null 2>&1" for line in tries) + "\ntrue")
        cluster.wait_sprio(jobs)
        record = rltuned.plan()
        assert [job for job in record.order if job in jobs] == [jobs[1], jobs[2], jobs[0]]
        assert not CONTROL.search(rltuned.run("plan").stdout)


@on_the_oldest
def test_a_qos_named_with_the_readers_separator_costs_its_own_jobs_and_is_no_wrong_queue(cluster: Cluster) -> None:
    with entities(cluster, (SEPARATOR,)), Rltuned(cluster, user=SLURM_USER) as rltuned, queue_at_rest(cluster):
        plain = cluster.submit("bob", "-t", "5")
        (hostile,) = submit(cluster, [["--uid=alice", f"--account={SEPARATOR}", f"--qos={SEPARATOR}"]])
        cluster.wait_sprio([plain, hostile])
        cycle = rltuned.cycle()
        assert cycle.record.managed == [plain]
        (event,) = named(cycle.log, "rows.skipped")
        assert f"job {hostile}: " in event["rows"][0]
        assert "fields instead of" in event["rows"][0]
        said = rltuned.doctor()["answers"]
        assert (said["severity"], f"job {hostile}: " in said["cause"]) == ("warning", True)
        assert not CONTROL.search(rltuned.run("doctor", check=False).stdout + cycle.log)

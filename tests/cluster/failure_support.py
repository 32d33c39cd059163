"""What the tests of failures share beside `daemon_support`: wrappers around Slurm's commands, a daemon that is watched,
and what the queue and the log say afterwards.

rltuned runs as SlurmUser here: the RPC rate limiter, which holds up an operator, would make each of these tests take
minutes, and how a short budget is spent is another test's matter.
"""

import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cluster.daemon_support import SLURM_USER, STATE, Daemon, Record, Rltuned
from cluster.support import USERS, Cluster, wait_until

COMMANDS = ("squeue", "scontrol", "sprio", "sdiag", "sacctmgr")
BIN = "/tmp/slurm-bin"
DRIFT = 10
"""Points by which neighbours may be out of order, or a sum of rounded terms off: slurmctld recalculates a job's age
when it is updated and all jobs once a minute (7 points here), so that what was a moment ago the plan's value moves a
little."""


def installed(cluster: Cluster, *, user: str = SLURM_USER, service: str = "ctl", **sections: Any) -> Rltuned:
    """rltuned with short cycles and a policy whose order is known (SAF), which changes nothing but priorities,
    exactly."""
    chosen: dict[str, Any] = {
        "cycle": {"interval": 1.0, "stage": "active"},
        "policy": {"name": "saf"},
        "placement": {"apply": "off"},
        "metrics": {"listen": ""},
    }
    return Rltuned(cluster, user=user, service=service, **(chosen | sections))


def wrap(rltuned: Rltuned, program: str, script: str) -> None:
    """Puts a shell script in the place of one of the commands that this rltuned uses."""
    links = "\n".join(f"ln -s /usr/bin/{name} {BIN}/{name}" for name in COMMANDS if name != program)
    rltuned.cluster.sh(
        f"rm -rf {BIN}; install -d -o {rltuned.user} {BIN}\n{links}\ncat >{BIN}/{program} <<'END'\n"
        f"#!/bin/bash\nPATH=/usr/bin:/bin\n{script}\nEND\nchmod 755 {BIN}/{program}",
        service=rltuned.service,
    )
    rltuned.configure(slurm={"bin_dir": BIN})


def arm(rltuned: Rltuned, name: str, text: object = "") -> None:
    """A file beside the wrapper, which takes it as the order to misbehave (and removes it)."""
    # Complete before it is there: a daemon may be at work.
    rltuned.cluster.write_file(f"{BIN}/.{name}", f"{text}\n", service=rltuned.service, owner=rltuned.user)
    rltuned.cluster.sh(f"mv {BIN}/.{name} {BIN}/{name}", service=rltuned.service)


def alive(daemon: Daemon) -> bool:
    """Whether the process that was started still runs; nothing in these tests would start it again."""
    return daemon.program.returncode() is None


@contextlib.contextmanager
def running(rltuned: Rltuned) -> Iterator[Daemon]:
    """The daemon, from its first cycle on. It must be the same process at the end, and stop cleanly."""
    with rltuned:
        daemon = rltuned.start()
        daemon.wait_cycles(1)
        yield daemon
        assert alive(daemon), daemon.program.output()[-4000:]
        assert daemon.stop() == 0, daemon.program.output()[-4000:]


def next_cycles(daemon: Daemon, count: int) -> list[dict[str, Any]]:
    """Waits for so many cycles that begin after now (one may be under way), and returns their reports."""
    before = len(daemon.cycles()) + 1
    return daemon.wait_cycles(before + count)[before : before + count]


def wait_cycle(daemon: Daemon, condition: Callable[[Mapping[str, Any]], object], what: str) -> dict[str, Any]:
    """Waits for a cycle, from now on, whose report meets a condition."""
    before = len(daemon.cycles())
    found: list[dict[str, Any]] = []

    def seen() -> bool:
        found[:] = [cycle for cycle in daemon.cycles()[before:] if condition(cycle)]
        return bool(found)

    wait_until(seen, f"a cycle that {what}")
    return found[0]


def mixed_jobs(cluster: Cluster, count: int = 40, seed: int = 1) -> list[int]:
    """Fills the nodes, and submits jobs of one user, of mixed size and limit, that stay pending."""
    cluster.fill()
    return more_jobs(cluster, count, seed)


def more_jobs(cluster: Cluster, count: int, seed: int) -> list[int]:
    """Submits jobs of mixed size and limit, for all of which the same was decided. They are one user's, who lends to
    nobody: they pass each other freely, so a plan puts them into the policy's order at once."""
    draw = random.Random(seed)
    jobs = cluster.submit_many(
        (USERS[0], f"--gres=gpu:{draw.randint(1, 2)}", f"-t{draw.randint(1, 300)}") for _ in range(count)
    )
    cluster.wait_sprio(jobs)
    return jobs


def terms(cluster: Cluster) -> dict[int, tuple[int, int]]:
    """Per job that sprio lists: site factor, and the sum of all other terms (what Slurm alone computes)."""
    found: dict[int, tuple[int, int]] = {}
    for row in cluster.run(["sprio", "-h", "-o", "%i %S %N %A %F %J %P %Q %B %T"], check=False).stdout.splitlines():
        job, site, nice, *others = row.split()
        tres = sum(int(part.split("=")[1]) for part in others[6].split(",") if "=" in part) if len(others) > 6 else 0
        found[int(job)] = int(site), sum(map(int, others[:6])) + tres - int(nice)
    return found


def left_to_slurm(cluster: Cluster, jobs: Iterable[int]) -> list[str]:
    """What speaks against each job's priority being what Slurm alone computes; empty when it is.

    Nothing is compared with a value from before, because priorities age. Slurm rounds each term that sprio shows, so
    their sum may be a few points off; an explicit priority has all terms 0.
    """
    priorities, computed = cluster.priorities(), terms(cluster)
    problems = []
    for job in jobs:
        site, alone = computed.get(job, (None, 0))
        if site != 0 or abs(priorities[job] - alone) > DRIFT:
            problems.append(f"job {job}: priority {priorities[job]}, site factor {site}, alone {alone}")
    return problems


def order_problems(rltuned: Rltuned, jobs: Iterable[int]) -> list[str]:
    """Where the queue of `more_jobs` is not in the order of the last plan; empty when it is.

    Also that no job has less than Slurm alone gives it, and none more than it takes to pass the first job of the queue:
    one for each raised job (a recalculation between two readings may move each by a few points).
    """
    directory = rltuned.sections.get("state", {}).get("directory", STATE)
    text = rltuned.cluster.read_file(f"{directory}/decision.json", service=rltuned.service)
    record = Record(json.loads(text))
    actual, computed = rltuned.cluster.priorities(), terms(rltuned.cluster)
    problems = [f"job {job} is not in the plan" for job in sorted(set(jobs) - set(record.managed))]
    ids = [job for job in record.order if job in actual and job in computed]
    for ahead, behind in itertools.pairwise(ids):
        if actual[ahead] < actual[behind] - DRIFT:
            problems.append(f"{ahead} ({actual[ahead]}) is not ahead of {behind} ({actual[behind]})")
    most = max((alone for _, alone in computed.values()), default=0) + len(record.raises) + DRIFT
    for job in ids:
        site, alone = computed[job]
        if site < 0 or actual[job] < alone - DRIFT:
            problems.append(f"{job} has {actual[job]}, less than the {alone} that Slurm computed; site factor {site}")
        if actual[job] > most:
            problems.append(f"{job} has {actual[job]}, more than the first of the queue needs, {most}")
        if site and job not in record.raises:
            problems.append(f"{job} is not raised, but carries {site}")
    return problems


def became(log: Iterable[Mapping[str, Any]], job: int) -> Counter[str]:
    """What became of a job's changes, by the log."""
    return Counter(event["outcome"] for event in log if event.get("job") == job and "outcome" in event)
